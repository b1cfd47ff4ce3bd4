#include "common.h"

static void where(void) {
    char path[PATH_MAX];
    if (!getcwd(path, sizeof path))
        printf("%s\n", strerrorname_np(errno));
    else if (strncmp(path, dir, strlen(dir)) == 0)
        printf("DIR%s\n", path + strlen(dir));
    else
        printf("%s\n", path);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    mkdir(in("d"), 0755);
    mkdir(in("d/e"), 0755);
    symlink("d/e", in("s"));
    SAY(chdir(in("none")));
    SAY(close(creat(in("f"), 0600)) * 0);
    SAY(chdir(in("f")));
    SAY(chdir(dir));
    where();
    SAY(chdir("s"));
    where();
    SAY(close(creat("here", 0600)) * 0);
    SAY(access("../e/here", F_OK));
    SAY(access("../../d/e/here", F_OK));
    SAY(access("etc/passwd", F_OK));
    SAY(mkdir("sub", 0700));
    SAY(chdir("sub"));
    where();
    SAY(chdir("../.."));
    where();
    int fd = open("e", O_RDONLY | O_DIRECTORY);
    OK(fd);
    SAY(fchdir(fd));
    where();
    SAY(fchdir(open("here", O_RDONLY)));
    /* Moved while it is the working directory. */
    SAY(rename(in("d"), in("moved")));
    where();
    SAY(access("here", F_OK));
    FILE *f = fopen("stream", "w");
    fputs("x", f);
    fclose(f);
    look("moved/e/stream");
    DIR *d = opendir(".");
    int n = 0;
    while (readdir(d))
        n++;
    printf("%d\n", n);
    char small[2];
    printf("%d %s\n", getcwd(small, 2) == NULL, strerrorname_np(errno));
    char *got = get_current_dir_name();
    printf("%d\n", got != NULL);
    free(got);
    SAY(chdir("/"));
    where();
    SAY(access("here", F_OK));
    char relative[PATH_MAX];
    snprintf(relative, sizeof relative, "%s/moved", dir + 1);
    SAY(access(relative, F_OK));
    SAY(openat(open("/", O_RDONLY), relative, O_WRONLY));
    snprintf(relative, sizeof relative, "/usr/..%s/moved/../f", dir);
    SAY(access(relative, F_OK));
    snprintf(relative, sizeof relative, "/%s//./moved", dir);
    SAY(access(relative, F_OK));
    SAY(chdir(in("moved/e/sub")));
    SAY(rmdir(in("moved/e/sub")));
    SAY(open("x", O_RDWR | O_CREAT, 0600));
    where();
    /* Out of it again, by names. */
    SAY(chdir(dir));
    SAY(chdir("../../../../../../../../usr"));
    where();
    SAY(access("lib", F_OK));
    return 0;
}
