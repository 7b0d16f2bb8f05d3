# The first process of the virtual machines that `cargo run -p xtask -- resets` boots, after machine-init.sh.
#
# What to do is on the kernel's command line, as load.NAME=VALUE. The machine works until it is killed.

option() { sed -n "s/.* load\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

flags=$(option flags | tr , ' ')
case $(option medium) in
pmem) disk=/dev/pmem0 options="-o dax" ;;
disk) disk=/dev/vda options= ;;
*) fail "no load.medium on the kernel's command line" ;;
esac
device "$disk"
device /dev/vport0p1

# Makes the memory a namespace that has DAX: what `ndctl create-namespace -m fsdax -M mem` does, by sysfs.
fsdax() {
    nd=/sys/bus/nd
    echo namespace0.0 >$nd/drivers/nd_pmem/unbind || fail "unbinding the block device"
    seed=$(cat $nd/devices/region0/pfn_seed)
    {
        cat /proc/sys/kernel/random/uuid >$nd/devices/$seed/uuid &&
            echo ram >$nd/devices/$seed/mode &&
            echo 2097152 >$nd/devices/$seed/align &&
            echo namespace0.0 >$nd/devices/$seed/namespace &&
            echo "$seed" >$nd/drivers/nd_pmem/bind
    } || fail "converting the namespace to fsdax"
    device /dev/pmem0
}

# Says what each thread of the load does, if it has not begun to write long before it is given up.
(
    sleep 400
    say "not reset for 400 s"
    for task in /proc/[0-9]*/task/*; do
        case $(cat "$task/comm" 2>/dev/null) in
        reset_load | bristlecone* | e2fsck | mount | mke2fs)
            say "$task: $(cat "$task/comm"), $(sed 's/.*) //' "$task/stat" | cut -d' ' -f1,12,13), $(cat "$task/syscall")"
            sed 's/^/vm:   /' "$task/stack"
            ;;
        esac
    done
) &

say opening
case $flags in
*create*)
    [ "$disk" = /dev/vda ] || fsdax
    must /sbin/mke2fs -q -F -t ext4 -b 4096 "$disk"
    ;;
*)
    # As distributions do at boot. Without it ext4 refuses a journal whose last block is torn at a sector.
    /sbin/e2fsck -p "$disk"
    [ $? -le 1 ] || fail "e2fsck cannot repair the file system by itself"
    ;;
esac
# Not quoted: there may be no options.
must mount -t ext4 $options "$disk" /mnt
target=/mnt/db
if [ -x /tests/bristlecone ]; then
    [ ! -e /mnt/db ] || must /tests/bristlecone check /mnt/db
    ifconfig lo 127.0.0.1 up
    target=127.0.0.1:6379
    /tests/bristlecone serve /mnt/db --listen "$target" &
fi
# The flags are words.
/tests/reset_load "$target" "$(option seed)" "$(option threads)" $flags >/dev/vport0p1
fail "the load ended with status $?"
