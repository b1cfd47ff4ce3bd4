/* What the programs have in common: each works below the directory that it is given, and prints
 * what it was answered, so that two runs can be compared byte by byte. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static char *dir;

/* The path of a name below the directory. */
static char *in(const char *name) {
    static char paths[16][PATH_MAX];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
    return path;
}

/* Prints a call with its answer, and its errno if that is -1. */
#define SAY(call)                                                                                  \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long long r_ = (long long)(call);                                                          \
        if (r_ == -1)                                                                              \
            printf("%d: %s = -1 %s\n", __LINE__, #call, strerrorname_np(errno));                   \
        else                                                                                       \
            printf("%d: %s = %lld\n", __LINE__, #call, r_);                                        \
    } while (0)

/* Prints whether a call succeeds, where its number would differ. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        errno = 0;                                                                                 \
        int r_ = (int)(call);                                                                      \
        printf("%d: %s: %s\n", __LINE__, #call, r_ >= 0 ? "ok" : strerrorname_np(errno));          \
    } while (0)

/* Prints a file's content. */
static void show(const char *name) {
    char text[4096];
    int fd = open(in(name), O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    printf("%s: %zd [%.*s]\n", name, n, n > 0 ? (int)n : 0, text);
    if (fd >= 0)
        close(fd);
}

/* Prints what does not change from run to run of a file's attributes. */
static void look(const char *name) {
    struct stat s;
    if (lstat(in(name), &s) != 0)
        printf("%s: %s\n", name, strerrorname_np(errno));
    else if (S_ISDIR(s.st_mode))
        printf("%s: %o links %d\n", name, s.st_mode, (int)s.st_nlink);
    else
        printf("%s: %o links %d size %d\n", name, s.st_mode, (int)s.st_nlink, (int)s.st_size);
}

static void begin(int argc, char **argv) {
    if (argc < 2)
        exit(2);
    dir = argv[1];
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    umask(022);
}
