/* A tour of all calls: makes a volume in the image named by the argument, or in memory without
   one, and checks what each call answers. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void names(struct lanefs_volume *v)
{
    struct lanefs_stat s;
    char target[16];
    OK(lanefs_mkdir(v, "d", 0755));
    IS(lanefs_mkdir(v, "d", 0755), -EEXIST);
    OK(lanefs_symlink(v, "d/f", "s"));
    IS(lanefs_readlink(v, "s", target, sizeof target), 3);
    IS(memcmp(target, "d/f", 3), 0);
    IS(lanefs_readlink(v, "s", target, 2), 2);
    IS(lanefs_stat(v, "s", &s), -ENOENT);
    OK(lanefs_lstat(v, "s", &s));
    IS(S_ISLNK(s.mode), 1);

    struct lanefs_file *f;
    IS(lanefs_open(v, "d/f", O_RDWR, 0, &f), -ENOENT);
    OK(lanefs_open(v, "d/f", O_RDWR | O_CREAT | O_EXCL, 0640, &f));
    OK(lanefs_close(f));
    OK(lanefs_stat(v, "s", &s));
    IS(s.mode, S_IFREG | 0640);
    OK(lanefs_link(v, "d/f", "d/g"));
    OK(lanefs_stat(v, "d/g", &s));
    IS(s.nlink, 2);
    IS(lanefs_rename(v, "d/f", "s", LANEFS_RENAME_NOREPLACE), -EEXIST);
    IS(lanefs_rename(v, "d/f", "whiteout", 4), -EINVAL);
    IS(lanefs_rename(v, "d/f", "new", 3), -EINVAL);
    OK(lanefs_rename(v, "d/g", "s", LANEFS_RENAME_EXCHANGE));
    OK(lanefs_lstat(v, "d/g", &s));
    IS(S_ISLNK(s.mode), 1);
    OK(lanefs_rename(v, "s", "d/g", 0));
    IS(lanefs_rmdir(v, "d"), -ENOTEMPTY);
    IS(lanefs_unlink(v, "d"), -EISDIR);

    struct lanefs_dir *d;
    struct lanefs_dirent e;
    int seen = 0, more;
    OK(lanefs_opendir(v, "d", &d));
    while ((more = lanefs_readdir(d, &e)) == 1) {
        IS(e.kind, DT_REG);
        IS(strlen(e.name), e.length);
        seen++;
    }
    OK(more);
    IS(seen, 2);
    OK(lanefs_closedir(d));
    IS(lanefs_opendir(v, "d/f", &d), -ENOTDIR);
    OK(lanefs_unlink(v, "d/g"));
}

static void content(struct lanefs_volume *v)
{
    struct lanefs_file *f;
    struct lanefs_stat s;
    char buf[8192], *big = malloc(1 << 20);
    OK(lanefs_open(v, "d/f", O_RDWR | O_TRUNC, 0, &f));
    IS(lanefs_write(f, "hello ", 6), 6);
    IS(lanefs_write(f, "world", 5), 5);
    IS(lanefs_pread(f, buf, sizeof buf, 0), 11);
    IS(memcmp(buf, "hello world", 11), 0);
    IS(lanefs_lseek(f, 6, SEEK_SET), 6);
    IS(lanefs_read(f, buf, 2), 2);
    IS(memcmp(buf, "wo", 2), 0);
    IS(lanefs_lseek(f, 0, SEEK_CUR), 8);
    struct iovec parts[2] = {{"ab", 2}, {"cd", 2}};
    IS(lanefs_writev(f, parts, 2, 0), 4);
    IS(lanefs_writev(f, parts, 2, -1), 4);
    IS(lanefs_lseek(f, 0, SEEK_CUR), 12);
    struct iovec into[2] = {{buf, 3}, {buf + 100, 100}};
    IS(lanefs_readv(f, into, 2, 0), 12);
    IS(memcmp(buf, "abc", 3), 0);
    IS(memcmp(buf + 100, "do woabcd", 9), 0);
    memset(buf, 0, sizeof buf);
    IS(lanefs_pread_nowait(f, buf, sizeof buf, 10), 2);
    IS(memcmp(buf, "cd", 2), 0);
    IS(lanefs_pread_nowait(f, buf, sizeof buf, 12), 0);
    OK(lanefs_write_hint(f, LANEFS_LIFE_SHORT));
    IS(lanefs_write_hint(f, 6), -EINVAL);
    IS(lanefs_write_life(f), LANEFS_LIFE_SHORT);
    OK(lanefs_write_hint(f, LANEFS_LIFE_NOT_SET));
    IS(lanefs_write_life(f), LANEFS_LIFE_NOT_SET);
    for (int life = LANEFS_LIFE_NOT_SET; life <= LANEFS_LIFE_EXTREME; life++) {
        OK(lanefs_set_write_life(f, life));
        IS(lanefs_write_life(f), life);
    }
    IS(lanefs_set_write_life(f, 6), -EINVAL);
    IS(lanefs_set_write_life(f, -1), -EINVAL);
    IS(lanefs_write_life(f), LANEFS_LIFE_EXTREME);
    IS(lanefs_set_write_life(NULL, LANEFS_LIFE_LONG), -EBADF);
    IS(lanefs_write_life(NULL), -EBADF);

    memset(big, 7, 1 << 20);
    IS(lanefs_pwrite(f, big, 1 << 20, 4 << 20), 1 << 20);
    IS(lanefs_lseek(f, 4096, SEEK_DATA), 4 << 20);
    IS(lanefs_lseek(f, 0, SEEK_HOLE), 4096);
    OK(lanefs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 << 20, 4096));
    IS(lanefs_pread(f, buf, 1, 4 << 20), 1);
    IS(buf[0], 0);
    OK(lanefs_fdatasync(f));
    OK(lanefs_ftruncate(f, 5000));
    OK(lanefs_fstat(f, &s));
    IS(s.size, 5000);
    OK(lanefs_truncate(v, "d/f", 12));
    OK(lanefs_fsync(f));
    OK(lanefs_close(f));
    free(big);
    IS(lanefs_open(v, "d", O_WRONLY, 0, &f), -EISDIR);
    OK(lanefs_open(v, "d", O_RDONLY | O_DIRECTORY, 0, &f));
    OK(lanefs_fsync(f));
    OK(lanefs_close(f));
}

/* ACLs as the kernel has them: version 2; tag, permissions and id of each entry. */
static void acls(struct lanefs_volume *v)
{
    static const char access[] = "system.posix_acl_access";
    const unsigned char plain[] = {2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255,
                                   32, 0, 4, 0, 255, 255, 255, 255};
    const unsigned char named[] = {2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0,
                                   4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 6, 0, 255, 255, 255, 255,
                                   32, 0, 0, 0, 255, 255, 255, 255};
    struct lanefs_stat s;
    unsigned char buf[64];
    /* What a mode says is the mode, and no ACL. */
    OK(lanefs_setxattr(v, "d/f", access, plain, sizeof plain, 0));
    OK(lanefs_stat(v, "d/f", &s));
    IS(s.mode & 07777, 0644);
    IS(lanefs_getxattr(v, "d/f", access, NULL, 0), -ENODATA);
    /* One that says more shows its mask in the mode, and chmod moves it. */
    OK(lanefs_setxattr(v, "d/f", access, named, sizeof named, 0));
    OK(lanefs_stat(v, "d/f", &s));
    IS(s.mode & 07777, 0760);
    OK(lanefs_chmod(v, "d/f", 0640));
    IS(lanefs_getxattr(v, "d/f", access, buf, sizeof buf), sizeof named);
    IS(buf[30], 4);
    IS(lanefs_setxattr(v, "d/f", access, named, sizeof named - 1, 0), -EINVAL);
    OK(lanefs_removexattr(v, "d/f", access));
    OK(lanefs_removexattr(v, "d/f", access));
    OK(lanefs_chmod(v, "d/f", 0600));
}

static void attributes(struct lanefs_volume *v)
{
    struct lanefs_stat s;
    struct lanefs_time t[2] = {{1000, 5}, {0, LANEFS_TIME_OMIT}};
    char buf[64];
    OK(lanefs_chmod(v, "d/f", 0600));
    OK(lanefs_utimens(v, "d/f", t, 0));
    OK(lanefs_stat(v, "d/f", &s));
    IS(s.mode & 07777, 0600);
    IS(s.atime.sec, 1000);
    IS(s.atime.nsec, 5);
    IS(s.mtime.sec > 1000, 1);
    OK(lanefs_chown(v, "d/f", LANEFS_ID_OMIT, LANEFS_ID_OMIT, 0));
    OK(lanefs_setxattr(v, "d/f", "user.color", "blue", 4, 0));
    IS(lanefs_getxattr(v, "d/f", "user.color", NULL, 0), 4);
    IS(lanefs_getxattr(v, "d/f", "user.color", buf, 3), -ERANGE);
    IS(lanefs_getxattr(v, "d/f", "user.color", buf, sizeof buf), 4);
    IS(memcmp(buf, "blue", 4), 0);
    IS(lanefs_listxattr(v, "d/f", buf, sizeof buf), 11);
    IS(strcmp(buf, "user.color"), 0);
    OK(lanefs_removexattr(v, "d/f", "user.color"));
    IS(lanefs_getxattr(v, "d/f", "user.color", buf, sizeof buf), -ENODATA);
    acls(v);
    OK(lanefs_access(v, "d/f", R_OK | W_OK));

    struct lanefs_file *f;
    OK(lanefs_open(v, "d/f", O_RDWR, 0, &f));
    OK(lanefs_fchmod(v, f, 0644));
    OK(lanefs_fchown(v, f, s.uid, s.gid));
    OK(lanefs_futimens(v, f, NULL));
    OK(lanefs_fstat(f, &s));
    IS(s.mode & 07777, 0644);
    IS(s.atime.sec > 1000, 1);
    OK(lanefs_close(f));

    struct lanefs_volume *other;
    uint32_t groups[1] = {77};
    OK(lanefs_as_user(v, 4242, 4242, groups, 1, 022, &other));
    OK(lanefs_chmod(v, "d/f", 0600));
    IS(lanefs_access(other, "d/f", R_OK), -EACCES);
    IS(lanefs_mkdir(other, "no", 0777), -EACCES);
    OK(lanefs_chmod(v, "d", 0777));
    OK(lanefs_mkdir(other, "d/theirs", 0777));
    OK(lanefs_stat(v, "d/theirs", &s));
    IS(s.mode & 07777, 0755);
    IS(s.uid, 4242);
    OK(lanefs_rmdir(v, "d/theirs"));
    OK(lanefs_close_volume(other));
}

static void locks(struct lanefs_volume *v)
{
    struct lanefs_file *a, *b;
    struct lanefs_range_lock l;
    OK(lanefs_open(v, "d/f", O_RDWR, 0, &a));
    OK(lanefs_open(v, "d/f", O_RDWR, 0, &b));
    OK(lanefs_flock(a, LANEFS_LOCK_EXCLUSIVE, 1));
    IS(lanefs_flock(b, LANEFS_LOCK_SHARED, 0), -EWOULDBLOCK);
    OK(lanefs_flock(a, LANEFS_UNLOCK, 0));
    OK(lanefs_flock(b, LANEFS_LOCK_SHARED, 0));
    OK(lanefs_lock_range(a, LANEFS_LOCK_EXCLUSIVE, 10, 20, 0));
    IS(lanefs_lock_range(b, LANEFS_LOCK_SHARED, 0, 0, 0), -EAGAIN);
    OK(lanefs_test_range(b, LANEFS_LOCK_SHARED, 0, 0, &l));
    IS(l.kind, LANEFS_LOCK_EXCLUSIVE);
    IS(l.start, 10);
    IS(l.length, 20);
    OK(lanefs_close(a));
    OK(lanefs_test_range(b, LANEFS_LOCK_SHARED, 0, 0, &l));
    IS(l.kind, LANEFS_UNLOCK);
    OK(lanefs_close(b));
}

int main(int argc, char **argv)
{
    struct lanefs_volume *v;
    struct lanefs_statfs sizes;
    const char *image = argc > 1 ? argv[1] : NULL;
    if (image) {
        OK(lanefs_format(&image, 1, 64 << 20, "tour"));
        IS(lanefs_format(&image, 1, 64 << 20, NULL), -EEXIST);
        OK(lanefs_open_volume(&image, 1, "noatime,cache_size=64M", &v));
        struct lanefs_volume *second;
        IS(lanefs_open_volume(&image, 1, NULL, &second), -EBUSY);
        IS(lanefs_format(&image, SIZE_MAX, 64 << 20, NULL), -EINVAL);
        IS(lanefs_open_volume(&image, SIZE_MAX, NULL, &second), -EINVAL);
    } else {
        OK(lanefs_memory_volume(64 << 20, &v));
    }
    names(v);
    content(v);
    attributes(v);
    locks(v);
    OK(lanefs_statfs(v, &sizes));
    IS(sizes.blocks > 0 && sizes.free < sizes.blocks, 1);
    IS(sizes.available > 0 && sizes.available < sizes.free, 1);
    OK(lanefs_sync(v));
    OK(lanefs_close_volume(v));

    if (image) {
        struct lanefs_file *f;
        char buf[32];
        OK(lanefs_open_volume(&image, 1, "ro,cache_size=64M", &v));
        OK(lanefs_open(v, "d/f", O_RDONLY, 0, &f));
        IS(lanefs_pread_nowait(f, buf, sizeof buf, 0), -EAGAIN); /* read from the device first */
        IS(lanefs_read(f, buf, sizeof buf), 12);
        IS(memcmp(buf, "abcdo woabcd", 12), 0);
        IS(lanefs_mkdir(v, "late", 0755), -EROFS);
        OK(lanefs_close(f));
        OK(lanefs_close_volume(v));
    }
    printf("tour done\n");
    return 0;
}
