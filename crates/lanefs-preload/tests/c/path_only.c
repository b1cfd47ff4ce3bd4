#include "common.h"
#include <grp.h>
#include <linux/fs.h>
#include <sys/statfs.h>
#include <termios.h>

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

/* Waits for the descriptor in every way; the kernel answers as for a number that is not open, but
 * select(2) sees that it is, and calls it ready. */
static void wait_for(int fd) {
    fd_set r, w, e;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = e = r;
    int both[2], ep = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (pipe(both) != 0)
        abort();
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN | POLLOUT}, {.fd = both[0], .events = POLLIN}};
    SAY(poll(p, 2, 1000));
    printf("%x %x\n", p[0].revents, p[1].revents);
    p[0].events = 0;
    SAY(ppoll(p, 2, &(struct timespec){.tv_sec = 1}, NULL));
    printf("%x %x\n", p[0].revents, p[1].revents);
    SAY(select(fd + 1, &r, &w, &e, &(struct timeval){.tv_usec = 1}));
    printf("%d %d %d\n", FD_ISSET(fd, &r) != 0, FD_ISSET(fd, &w) != 0, FD_ISSET(fd, &e) != 0);
    FD_ZERO(&e);
    FD_SET(fd, &e);
    SAY(pselect(fd + 1, NULL, NULL, &e, &(struct timespec){.tv_nsec = 1}, NULL));
    printf("%d\n", FD_ISSET(fd, &e) != 0);
    SAY(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
    SAY(epoll_ctl(ep, EPOLL_CTL_DEL, fd, &event));
    close(ep);
    close(both[0]);
    close(both[1]);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    be_nobody();
    char text[100];
    struct stat s;
    struct statfs f;
    struct statx x;
    int fd = open(in("f"), O_RDWR | O_CREAT, 0600), flags = 0, copy;
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
    SAY(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    SAY(posix_fadvise(fd, 0, -1, POSIX_FADV_DONTNEED));
    SAY(syscall(SYS_fadvise64, fd, 0, 0, POSIX_FADV_WILLNEED));
    SAY(readahead(fd, 0, 1));
    SAY(syscall(SYS_readahead, fd, 0, 1));
    SAY(sync_file_range(fd, 0, 0, 0));
    SAY(posix_fallocate(fd, 0, 1));
    SAY(lockf(fd, F_TEST, 0));
    SAY(fcntl(fd, F_GETLK, &(struct flock){.l_type = F_RDLCK}));
    SAY(fcntl(fd, F_OFD_SETLK, &(struct flock){.l_type = F_RDLCK}));
    SAY(fcntl(fd, F_GET_RW_HINT, &(uint64_t){0}));
    SAY(fcntl(fd, F_GETOWN));
    SAY(fcntl(fd, 9999));
    SAY(ioctl(fd, FIONREAD, &flags));
    SAY(ioctl(fd, FIONBIO, &flags));
    SAY(ioctl(fd, FIOCLEX));
    SAY(fcntl(fd, F_GETFD));
    SAY(ioctl(fd, FIONCLEX));
    SAY(isatty(fd));
    printf("%s\n", strerrorname_np(errno));
    SAY(tcgetattr(fd, &(struct termios){0}));
    OK(copy = open("/dev/null", O_WRONLY));
    SAY(sendfile(copy, fd, &(off_t){0}, 1));
    SAY(copy_file_range(fd, &(off_t){0}, fd, &(off_t){8}, 1, 0));
    SAY(preadv(fd, &(struct iovec){text, 1}, 1, 0));
    SAY(preadv2(fd, &(struct iovec){text, 1}, 1, 0, 0));
    SAY(pwritev(fd, &(struct iovec){text, 1}, 1, 0));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    SAY(fdopendir(fd) == NULL ? -1 : 0);
    wait_for(fd);
    SAY(sendfile(copy, fd, NULL, 1));
    SAY(close(copy));
    /* What only has to know which file. */
    struct statvfs v;
    SAY(fstatvfs(fd, &v));
    SAY(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SAY(fcntl(fd, F_GETFD));
    SAY(fstatfs(fd, &f));
    SAY(fstatat(fd, "", &s, AT_EMPTY_PATH));
    SAY(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x));
    SAY(fchownat(fd, "", -1, -1, AT_EMPTY_PATH));
    SAY(fchdir(fd));
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
