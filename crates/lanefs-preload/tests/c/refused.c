/* What is refused below the prefix, and what the program is told. */
#include "common.h"
#include <dlfcn.h>
#include <fts.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A system call without the C library. */
static long past(long number, long a, long b, long c) {
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return number;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    int fd = open(in("a"), O_RDWR | O_CREAT, 0600);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/s", dir);
    SAY(bind(s, (void *)&at, sizeof at));
    SAY(connect(s, (void *)&at, sizeof at));
    SAY(inotify_add_watch(inotify_init(), dir, IN_CREATE));
    char *paths[] = {dir, NULL};
    printf("%d %s\n", fts_open(paths, FTS_PHYSICAL, NULL) == NULL, strerrorname_np(errno));
    printf("%d\n", dlopen(in("a"), RTLD_NOW) == NULL);
    printf("%d\n", strstr(dlerror(), "mount it instead") != NULL);
    SAY(rename(in("a"), "/tmp/lanefs-never"));
    SAY(link("/etc/passwd", in("b")));
    SAY(truncate("/tmp/lanefs-never", 0));
    SAY(chroot(dir));
    /* The descriptor of the kernel behind it has nothing to give. */
    char path[64], byte;
    snprintf(path, sizeof path, "/proc/self/fd/%d/../a", fd);
    SAY(open(path, O_RDONLY));
    printf("past the library: %ld\n", past(SYS_read, fd, (long)&byte, 1));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    long opened = past(SYS_open, (long)path, O_WRONLY, 0);
    printf("opened past the library: %ld\n", past(SYS_write, opened, (long)"lost", 4));
    return 0;
}
