/* Which open files a child has, where its parent serves a mount at the prefix. */
#include "common.h"

static int made(const char *name) {
    int fd = open(in(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, "parent", 6);
    return fd;
}

static void handed(const char *name, int fd) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int n = (int)write(fd, "child", 5);
        printf("%s: %s\n", name, n == 5 ? "written" : strerrorname_np(errno));
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    struct stat st;
    fstat(fd, &st);
    printf("parent of %s: %d\n", name, (int)st.st_size);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    handed("plain", made("plain"));
    int fd = made("locked");
    flock(fd, LOCK_EX);
    handed("locked", fd);
    fd = made("unlinked");
    unlink(in("unlinked"));
    handed("unlinked", fd);
    fd = made("mapped");
    mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    handed("mapped", fd);
    fd = made("renamed");
    rename(in("renamed"), in("other"));
    made("renamed");
    handed("renamed", fd);
    while (wait(NULL) > 0)
        ;
    printf("all children are known: %d\n", errno == ECHILD);
    return 0;
}
