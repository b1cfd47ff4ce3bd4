#include "common.h"

/* What is open, by its link in /proc or /dev. */

static char *link_of(const char *folder, int fd) {
    static char path[100];
    snprintf(path, sizeof path, "%s/%d", folder, fd);
    return path;
}

/* Says what can be read there. */
static void read_all(const char *path, int flags) {
    char text[100];
    int fd = open(path, flags);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    printf("%zd [%.*s] %s\n", n, n > 0 ? (int)n : 0, text, n < 0 ? strerrorname_np(errno) : "");
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    const char *folders[] = {"/proc/self/fd", "/dev/fd", "/proc/thread-self/fd"};
    char own[100], text[200];
    struct stat s;
    snprintf(own, sizeof own, "/proc/%d/fd", getpid());
    int fd = open(in("f"), O_RDWR | O_CREAT, 0640), again, at;
    SAY(write(fd, "12345", 5));
    for (int i = 0; i < 4; i++) {
        const char *folder = i < 3 ? folders[i] : own;
        read_all(link_of(folder, fd), O_RDONLY);
        SAY(stat(link_of(folder, fd), &s));
        printf("%o %d\n", s.st_mode, (int)s.st_size);
        SAY(access(link_of(folder, fd), R_OK));
    }
    /* Each has a position and flags of its own. */
    OK(again = open(link_of("/proc/self/fd", fd), O_WRONLY | O_APPEND));
    SAY(write(again, "67", 2));
    SAY(read(again, text, 1));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(close(again));
    show("f");
    OK(again = open(link_of("/proc/self/fd", fd), O_RDWR | O_TRUNC | O_CREAT, 0600));
    SAY(write(again, "abc", 3));
    SAY(close(again));
    show("f");
    look("f");
    OK(open(link_of("/proc/self/fd", fd), O_RDWR | O_CREAT | O_EXCL, 0600));
    OK(open(link_of("/proc/self/fd", fd), O_RDONLY | O_DIRECTORY));
    OK(open(link_of("/proc/self/fd", fd), O_RDONLY | O_NOFOLLOW));
    OK(open("/proc/self/fd/9999", O_RDONLY));
    OK(open("/dev/fd/x", O_RDONLY));
    SAY(chmod(link_of("/proc/self/fd", fd), 0604));
    SAY(truncate(link_of("/dev/fd", fd), 2));
    SAY(utimensat(AT_FDCWD, link_of("/dev/fd", fd), (struct timespec[]){{5, 0}, {6, 0}}, 0));
    SAY(setxattr(link_of("/proc/self/fd", fd), "user.a", "1", 1, 0));
    SAY(fgetxattr(fd, "user.a", text, sizeof text));
    SAY(fstat(fd, &s));
    printf("%o %d %ld\n", s.st_mode, (int)s.st_size, (long)s.st_mtime);
    FILE *stream = fopen(link_of("/dev/fd", fd), "r");
    printf("%s\n", stream && fgets(text, sizeof text, stream) ? text : "none");
    if (stream)
        fclose(stream);
    SAY(lstat(link_of("/proc/self/fd", fd), &s));
    printf("%d\n", S_ISLNK(s.st_mode));
    ssize_t n = readlink(link_of("/proc/self/fd", fd), text, sizeof text);
    printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("f"))) == 0);
    char *resolved = realpath(link_of("/proc/self/fd", fd), NULL);
    printf("%d\n", resolved && strcmp(resolved, in("f")) == 0);
    free(resolved);
    /* The standard input. */
    int kept = dup(0);
    SAY(dup2(fd, 0));
    read_all("/dev/stdin", O_RDONLY);
    SAY(stat("/dev/stdin", &s));
    printf("%d\n", (int)s.st_size);
    SAY(dup2(kept, 0));
    /* In a directory; a file that is open by a relative path. */
    SAY(mkdir(in("d"), 0755));
    SAY(chdir(in("d")));
    OK(again = open("x", O_RDWR | O_CREAT, 0600));
    n = readlink(link_of("/proc/self/fd", again), text, sizeof text);
    printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("d/x"))) == 0);
    SAY(write(again, "rel", 3));
    OK(at = open(".", O_RDONLY | O_DIRECTORY));
    snprintf(text, sizeof text, "/proc/self/fd/%d/x", at);
    read_all(text, O_RDONLY);
    snprintf(text, sizeof text, "/proc/self/fd/%d/../f", at);
    read_all(text, O_RDONLY);
    snprintf(text, sizeof text, "/dev/fd/%d/new", at);
    SAY(close(creat(text, 0600)) * 0);
    SAY(access("new", F_OK));
    OK(open(link_of("/proc/self/fd", at), O_RDWR));
    OK(open(link_of("/proc/self/fd", at), O_RDONLY | O_DIRECTORY));
    SAY(chdir("/"));
    SAY(chdir(link_of("/proc/self/fd", at)));
    SAY(access("x", F_OK));
    int root;
    SAY(chdir(dir));
    OK(root = open("f", O_RDONLY));
    n = readlink(link_of("/proc/self/fd", root), text, sizeof text);
    printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("f"))) == 0);
    SAY(chdir("d"));
    /* One that has no name any more. */
    SAY(unlink("x"));
    read_all(link_of("/proc/self/fd", again), O_RDONLY);
    /* The link of the working directory. */
    const char *cwds[] = {"/proc/self/cwd", "/proc/thread-self/cwd", own};
    snprintf(own, sizeof own, "/proc/%d/cwd", getpid());
    SAY(close(creat("here", 0600)) * 0);
    for (int i = 0; i < 3; i++) {
        n = readlink(cwds[i], text, sizeof text);
        printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("d"))) == 0);
        n = readlinkat(AT_FDCWD, cwds[i], text, sizeof text);
        printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("d"))) == 0);
        SAY(readlink(cwds[i], text, 0));
        SAY(lstat(cwds[i], &s));
        printf("%d\n", S_ISLNK(s.st_mode));
        SAY(stat(cwds[i], &s));
        printf("%d\n", S_ISDIR(s.st_mode));
        resolved = realpath(cwds[i], NULL);
        printf("%d\n", resolved && strcmp(resolved, in("d")) == 0);
        free(resolved);
        OK(open(cwds[i], O_RDONLY | O_DIRECTORY));
        snprintf(text, sizeof text, "%s/here", cwds[i]);
        SAY(access(text, F_OK));
        snprintf(text, sizeof text, "%s/../f", cwds[i]);
        SAY(access(text, F_OK));
        SAY(chdir(cwds[i]));
        SAY(access("here", F_OK));
    }
    n = readlinkat(AT_FDCWD, link_of("/proc/self/fd", root), text, sizeof text);
    printf("%d\n", n > 0 && n < (ssize_t)sizeof text && (text[n] = 0, strcmp(text, in("f"))) == 0);
    SAY(mkdir("gone", 0700));
    SAY(chdir("gone"));
    SAY(rmdir(in("d/gone")));
    n = readlink(cwds[0], text, sizeof text);
    printf("%.10s\n", n > 10 ? text + n - 10 : "short");
    SAY(chdir("/"));
    n = readlink(cwds[0], text, sizeof text);
    printf("%.*s\n", (int)n, text);
    /* One that may only be looked at. */
    OK(at = open(in("f"), O_PATH));
    read_all(link_of("/proc/self/fd", at), O_RDONLY);
    return 0;
}
