# The first process of the virtual machine that `cargo run -p xtask -- dax` boots, after machine-init.sh.
#
# It runs twice on the same memory: the first boot ends in a reset without warning, the second finds
# what flush and fence have saved. Its last line is "vm: PASS" or "vm: FAIL ...".

device /dev/pmem0

command=/tests/bristlecone
have_command() { [ -x "$command" ]; }

if ! mount -t ext4 -o dax /dev/pmem0 /mnt 2>/dev/null; then
    say "first boot: $(cat /sys/block/pmem0/size) sectors of persistent memory"
    must /sbin/mke2fs -q -F -t ext4 -b 4096 /dev/pmem0
    must mount -t ext4 -o dax /dev/pmem0 /mnt
    must /tests/dax_probe refuse /tmp/ordinary
    must /tests/dax_probe write /mnt/pattern 100663296
    must /tests/dax_probe check /mnt/pattern 100663296
    if have_command; then
        must "$command" create /mnt/pool
        for key in one two three; do
            must "$command" put /mnt/pool "$key" "value of $key"
        done
        must "$command" del /mnt/pool two
    fi
    say "resetting the machine without unmounting or syncing"
    echo 1 >/proc/sys/kernel/sysrq
    echo b >/proc/sysrq-trigger
    sleep 60
    fail "the machine did not reset"
fi

say "second boot: the file system is there"
must /tests/dax_probe check /mnt/pattern 100663296
if have_command; then
    must "$command" get /mnt/pool one
    [ "$(cat /tmp/out)" = "value of one" ] || fail "the pool gave another value back"
    must "$command" get /mnt/pool three
    "$command" get /mnt/pool two >/dev/null 2>&1 && fail "a removed key is back"
    must "$command" check /mnt/pool
    must "$command" info /mnt/pool --json
    grep -q '"medium": *"dax"' /tmp/out || fail "the pool was not opened through the dax medium"
fi
if [ -x /tests/program ]; then
    must mkdir -p /mnt/program
    must /tests/program /mnt/program
fi
must umount /mnt

# The namespace as a devdax device: what `ndctl create-namespace -m devdax` does, by sysfs.
nd=/sys/bus/nd
say "converting $(cat $nd/devices/namespace0.0/devtype 2>/dev/null) namespace0.0 to devdax"
echo namespace0.0 >$nd/drivers/nd_pmem/unbind || fail "unbinding the block device"
seed=$(cat $nd/devices/region0/dax_seed)
{
    cat /proc/sys/kernel/random/uuid >$nd/devices/$seed/uuid &&
        echo ram >$nd/devices/$seed/mode &&
        echo 2097152 >$nd/devices/$seed/align &&
        echo namespace0.0 >$nd/devices/$seed/namespace &&
        echo "$seed" >$nd/drivers/dax_pmem/bind
} || fail "converting the namespace"
device=$(ls /dev/dax* 2>/dev/null | head -n 1)
[ -c "$device" ] || fail "no /dev/dax device"
say "$device has $(cat /sys/bus/dax/devices/${device##*/}/size) bytes"
must /tests/dax_probe write "$device" 100663296
must /tests/dax_probe check "$device" 100663296
if have_command; then
    must "$command" create "$device"
    must "$command" put "$device" four "value of four"
    must "$command" get "$device" four
    [ "$(cat /tmp/out)" = "value of four" ] || fail "the device gave another value back"
    must "$command" check "$device"
fi

say PASS
poweroff -f
sleep 60
