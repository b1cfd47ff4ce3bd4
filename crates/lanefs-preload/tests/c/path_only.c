#include "common.h"
#include <grp.h>
#include <linux/fs.h>
#include <sys/statfs.h>

/* Files that are open with O_PATH, which asks for no right on the file itself: to be looked at, and
 * to begin paths in. */

/* What does not run as root is refused by modes. */
static void be_nobody(void) {
    if (chmod(dir, 0777) != 0)
        abort();
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 ||
                           setresuid(65534, 65534, 65534) != 0))
        abort();
}

static void say_kind(int fd) {
    struct stat s;
    SAY(fstat(fd, &s));
    printf("%o %d\n", s.st_mode, S_ISDIR(s.st_mode) || S_ISLNK(s.st_mode) ? 0 : (int)s.st_size);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    be_nobody();
    char text[100];
    struct stat s;
    struct statfs f;
    struct statx x;
    int fd = open(in("f"), O_RDWR | O_CREAT, 0600), flags = 0;
    SAY(write(fd, "12345", 5));
    SAY(fsetxattr(fd, "user.a", "1", 1, 0));
    SAY(close(fd) * 0);
    SAY(chmod(in("f"), 0));
    SAY(symlink("f", in("l")));
    SAY(mkfifo(in("p"), 0600));
    SAY(chmod(in("p"), 0));
    OK(open(in("f"), O_RDONLY));
    OK(fd = open(in("f"), O_PATH));
    say_kind(fd);
    printf("%x\n", fcntl(fd, F_GETFL) & (O_PATH | O_ACCMODE | O_NOFOLLOW));
    /* What the content or the inode would be needed for. */
    SAY(read(fd, text, 1));
    SAY(pread(fd, text, 1, 0));
    SAY(write(fd, "x", 1));
    SAY(pwrite(fd, "x", 1, 0));
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(ftruncate(fd, 0));
    SAY(fallocate(fd, 0, 0, 1));
    SAY(fsync(fd));
    SAY(fdatasync(fd));
    SAY(syncfs(fd));
    SAY(flock(fd, LOCK_SH));
    SAY(fcntl(fd, F_SETLK, &(struct flock){.l_type = F_RDLCK}));
    SAY(fcntl(fd, F_SETFL, O_APPEND));
    SAY(ioctl(fd, FS_IOC_GETFLAGS, &flags));
    SAY(fchmod(fd, 0600));
    SAY(fchown(fd, -1, -1));
    SAY(futimens(fd, NULL));
    SAY(fgetxattr(fd, "user.a", text, sizeof text));
    SAY(fsetxattr(fd, "user.a", "2", 1, 0));
    SAY(flistxattr(fd, text, sizeof text));
    SAY(fremovexattr(fd, "user.a"));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    /* What only has to know which file. */
    SAY(fstatfs(fd, &f));
    SAY(fstatat(fd, "", &s, AT_EMPTY_PATH));
    SAY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x));
    SAY(fchownat(fd, "", -1, -1, AT_EMPTY_PATH));
    SAY(fchdir(fd));
    int copy;
    OK(copy = dup(fd));
    say_kind(copy);
    SAY(read(copy, text, 1));
    SAY(close(copy));
    SAY(close(fd));
    /* Flags that do not count, and those that do. */
    OK(fd = open(in("f"), O_PATH | O_TRUNC | O_CREAT | O_RDWR | O_APPEND, 0600));
    say_kind(fd);
    SAY(write(fd, "x", 1));
    SAY(close(fd));
    SAY(open(in("none"), O_PATH | O_CREAT, 0600));
    SAY(open(in("f"), O_PATH | O_DIRECTORY));
    /* A link, and what cannot be opened. */
    OK(fd = open(in("l"), O_PATH | O_NOFOLLOW));
    say_kind(fd);
    SAY(readlinkat(fd, "", text, sizeof text));
    SAY(close(fd));
    OK(fd = open(in("l"), O_PATH));
    say_kind(fd);
    SAY(close(fd));
    OK(fd = open(in("p"), O_PATH));
    say_kind(fd);
    SAY(close(fd));
    SAY(linkat(AT_FDCWD, in("l"), AT_FDCWD, in("g"), AT_SYMLINK_FOLLOW));
    look("g");
    /* A directory that may be searched and not read. */
    int at;
    SAY(mkdir(in("d"), 0700));
    SAY(close(creat(in("d/x"), 0600)) * 0);
    SAY(chmod(in("d"), 0300));
    SAY(open(in("d"), O_RDONLY | O_DIRECTORY));
    OK(at = open(in("d"), O_PATH | O_DIRECTORY));
    say_kind(at);
    SAY(fstatat(at, "x", &s, 0));
    OK(fd = openat(at, "x", O_RDWR));
    SAY(write(fd, "abc", 3));
    SAY(close(fd));
    SAY(mkdirat(at, "sub", 0700));
    SAY(unlinkat(at, "sub", AT_REMOVEDIR));
    SAY(syscall(SYS_getdents64, at, text, sizeof text));
    SAY(fchdir(at));
    SAY(stat("x", &s));
    SAY(chdir("/"));
    SAY(chdir(in("d")));
    SAY(stat("x", &s));
    SAY(chdir("/"));
    /* One that may be read and not searched. */
    SAY(chmod(in("d"), 0600));
    SAY(openat(at, "x", O_RDONLY));
    SAY(fchdir(at));
    SAY(chdir(in("d")));
    say_kind(at);
    SAY(chmod(in("d"), 0700));
    SAY(close(at));
    /* Calls by name on a link itself. */
    SAY(fchmodat(AT_FDCWD, in("l"), 0600, AT_SYMLINK_NOFOLLOW));
    SAY(fchownat(AT_FDCWD, in("l"), -1, -1, AT_SYMLINK_NOFOLLOW));
    SAY(lsetxattr(in("l"), "user.a", "1", 1, 0));
    SAY(lgetxattr(in("l"), "user.a", text, sizeof text));
    SAY(lremovexattr(in("l"), "user.a"));
    SAY(faccessat(AT_FDCWD, in("l"), W_OK, AT_SYMLINK_NOFOLLOW));
    SAY(faccessat(AT_FDCWD, in("f"), R_OK, 0));
    SAY(truncate(in("f"), 3));
    SAY(chmod(in("f"), 0600));
    SAY(truncate(in("f"), 3));
    show("f");
    return 0;
}
