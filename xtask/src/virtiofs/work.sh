# What a guest does with a volume at /mnt. The first thing that fails ends it.
set -e
i=0
while [ $i -lt 60 ]; do
    dd if=/dev/urandom of=tree/a/f$i bs=1000 count=$((i % 9 + 1)) conv=fsync 2>/dev/null
    i=$((i + 1))
done
dd if=/dev/urandom of=tree/big bs=1M count=24 conv=fsync 2>/dev/null
dd if=tree/big of=tree/direct bs=256k oflag=direct 2>/dev/null
cmp tree/big tree/direct
ln -s a/f1 tree/link
ln tree/a/f2 tree/hard
chmod 4750 tree/a/f4
mv tree/a/f3 tree/a/b/moved
mv tree/a/f5 tree/a/f6
tar cf /tmp/t.tar tree
mkdir in
tar xf /tmp/t.tar -C in
diff -r tree in/tree
tar cf out.tar tree
cmp /tmp/t.tar out.tar
# Who writes to a program takes its setuid, and who looks sees that at once.
cp /bin/guest tree/program
chmod 4755 tree/program
[ -u tree/program ]
chown 1000:1000 tree/program
chmod 4777 tree/program
[ -u tree/program ]
su -s /bin/sh nobody -c 'printf x >> tree/program'
[ ! -u tree/program ]
guest sparse /mnt/sparse
[ "$(stat -c %b sparse)" -ge 2048 ]
find tree in -type f | sort | xargs md5sum > sums
sync
