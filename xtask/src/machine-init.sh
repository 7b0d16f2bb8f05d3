#!/bin/sh
# Beginning of the first process of a virtual machine (busybox's shell); the script of the check follows.
#
# Lines that begin with "vm: " are read by the chore. "vm: FAIL ..." ends the machine.

say() { echo "vm: $*"; }

fail() {
    say "FAIL $*"
    dmesg | tail -n 12
    poweroff -f
    sleep 60
}

# Prints what the last command printed, with a line break at its end.
show() {
    sed 's/^/vm:   /' /tmp/out
    [ -z "$(tail -c 1 /tmp/out)" ] || echo
}

# Runs a command, shows what it prints, fails the machine if the command fails.
must() {
    say "\$ $*"
    if "$@" >/tmp/out 2>&1; then
        show
    else
        code=$?
        show
        fail "exit status $code: $*"
    fi
}

# Waits up to 5 s for a device.
device() {
    tries=0
    while [ ! -e "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -gt 50 ] && fail "no $1 after 5 s"
        usleep 100000
    done
}

/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /mnt /tmp /etc
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
: >/etc/mtab

say "Linux $(uname -r), up $(cut -d' ' -f1 /proc/uptime) s"
while read -r module; do
    must insmod "/modules/$module.ko"
done </modules/order
