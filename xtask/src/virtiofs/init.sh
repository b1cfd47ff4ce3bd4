#!/bin/busybox sh
# The guest's first process. The kernel's command line names what is to be done (lanefs=STAGE).
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
# What needs another module goes in behind that one.
for round in 1 2 3 4 5; do
    for module in /modules/*.ko; do insmod "$module" 2>/dev/null; done
done
stage=$(sed 's/.*lanefs=\([a-z]*\).*/\1/' /proc/cmdline)

give_up() {
    echo "guest: failed: $1"
    reboot -f
}

mount -t virtiofs home /mnt || give_up "mount -t virtiofs"
cd /mnt || give_up "cd"

case $stage in
work)
    mkdir -p tree/a/b || give_up mkdir
    sh /work.sh || give_up work
    cd /
    umount /mnt || give_up umount
    # Another mount of the same device begins anew.
    mount -t virtiofs home /mnt || give_up "the second mount"
    (cd /mnt && md5sum -c sums >/dev/null) || give_up "sums after the second mount"
    ;;
times)
    mkdir -p /mnt/d /ext
    mount -t ext4 /dev/vda /ext || give_up "mount -t ext4"
    mkdir -p /ext/d
    for round in 1 2 3; do
        guest times /mnt/d 2000 || give_up times
        guest times /ext/d 2000 || give_up times
    done
    umount /ext
    ;;
sync)
    mkdir -p /mnt/synced
    guest sync /mnt/synced || give_up sync
    ;;
*) give_up "no stage $stage" ;;
esac
cd /
umount /mnt || give_up umount
echo "guest: done"
reboot -f
