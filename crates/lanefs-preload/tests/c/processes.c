/* Children and other programs. Run with a prefix where the host has files of the same names, which
 * must not be seen: they hold HOST. */
#include "common.h"

extern char **environ;

static void finish(const char *what, pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    char buf[100] = {0};
    int fd = open(in("a"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    SAY(write(fd, "volume", 6));
    FILE *stream = fopen(in("stream"), "w");
    fputs("once", stream);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        SAY(write(fd, "child", 5));
        SAY(pread(fd, buf, 5, 0));
        SAY(open(in("a"), O_RDONLY));
        SAY(access(in("a"), R_OK));
        printf("%d\n", opendir(dir) == NULL);
        int copy = dup(fd);
        printf("%d %s\n", copy, strerrorname_np(errno));
        SAY(close(fd));
        SAY(close(fd));
        SAY(open("/dev/null", O_RDONLY) == fd);
        exit(0);
    }
    finish("fork", pid);
    SAY(pwrite(fd, "VOLUME", 6, 0));
    fclose(stream);
    show("stream");
    pid = vfork();
    if (pid == 0) {
        execl("/bin/cat", "cat", in("a"), NULL);
        _exit(99);
    }
    finish("vfork, execl", pid);
    pid = fork();
    if (pid == 0) {
        dup2(fd, 0);
        execlp("cat", "cat", NULL);
        _exit(99);
    }
    finish("a descriptor handed on", pid);
    pid = fork();
    if (pid == 0) {
        char *none[] = {NULL};
        execle("/bin/cat", "cat", in("a"), NULL, none);
        _exit(99);
    }
    finish("without an environment", pid);
    char command[PATH_MAX];
    snprintf(command, sizeof command, "cat %s", in("a"));
    int status = system(command);
    printf("system: %d\n", WEXITSTATUS(status));
    FILE *p = popen(command, "r");
    printf("popen: %d\n", fgetc(p));
    pclose(p);
    char *args[] = {"cat", in("a"), NULL}, *none[] = {NULL};
    SAY(posix_spawn(&pid, "/bin/cat", NULL, NULL, args, none));
    finish("posix_spawn", pid);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    printf("%d\n", posix_spawn_file_actions_addopen(&actions, 0, in("a"), O_RDONLY, 0) == EBUSY);
    SAY(execl(in("a"), "a", NULL));
    chdir(dir);
    printf("relative: %d\n", WEXITSTATUS(system("cat a")));
    SAY(pread(fd, buf, 10, 0));
    printf("%s\n", buf);
    fflush(stdout);
    /* Without a sync: the next program finds it all the same. */
    pwrite(fd, " to the next", 12, 6);
    execl("/bin/cat", "cat", in("a"), "a", NULL);
    return 99;
}
