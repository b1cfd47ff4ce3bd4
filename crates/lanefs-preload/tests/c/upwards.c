#include "common.h"

/* `..` from open directories, and from the working directory, wherever they lie now: deeper than any
 * path can name, moved since they were opened, removed. */

/* Says the names of a directory that is reached from an open one. The names on the way out are not
 * the same everywhere. */
static void list(int from, const char *path) {
    char *names[16];
    int n = 0, fd = openat(from, path, O_RDONLY | O_DIRECTORY);
    printf("%s: %s", strlen(path) < 20 ? path : "far up", fd < 0 ? strerror(errno) : "");
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *e; d != NULL && n < 16 && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.')
            names[n++] = strdup(e->d_name);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (strcmp(names[k], names[i]) < 0) {
                char *t = names[i];
                names[i] = names[k];
                names[k] = t;
            }
    for (int i = 0; i < n; i++)
        printf(" %.20s", names[i]);
    printf("\n");
    if (d != NULL)
        closedir(d);
}

/* Makes a file that says where it is. */
static void mark(int at, const char *name) {
    int fd = openat(at, name, O_CREAT | O_WRONLY, 0600);
    if (fd < 0)
        abort();
    close(fd);
}

static int go(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        abort();
    return fd;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    if (chdir(dir) != 0)
        abort();
    mark(AT_FDCWD, "top");

    /* Deeper than a path is long. */
    char name[201], up[3 * 40 + 40];
    memset(name, 'p', 200);
    name[200] = 0;
    SAY(mkdir("deep", 0700));
    int at = go(AT_FDCWD, "deep");
    for (int i = 0; i < 25; i++) {
        char what[10];
        snprintf(what, sizeof what, "m%d", i);
        mark(at, what);
        SAY(mkdirat(at, name, 0700));
        int below = go(at, name);
        list(below, "..");
        list(below, "../..");
        close(at);
        at = below;
    }
    up[0] = 0;
    for (int i = 0; i < 25; i++)
        strcat(up, "../");
    list(at, up);
    strcat(up, "..");
    list(at, up);
    struct stat s, t;
    SAY(fstatat(at, up, &s, 0));
    SAY(stat(".", &t));
    printf("%d\n", s.st_ino == t.st_ino && s.st_dev == t.st_dev);
    SAY(fchdir(at));
    list(AT_FDCWD, "..");
    SAY(mkdir("../beside", 0700));
    SAY(unlinkat(at, "../beside", AT_REMOVEDIR));
    SAY(unlinkat(at, "../m24", 0));
    list(AT_FDCWD, "..");
    SAY(chdir(dir));

    /* By a symbolic link, and moved since. */
    SAY(mkdir("a", 0700));
    SAY(mkdir("a/b", 0700));
    SAY(mkdir("a/b/c", 0700));
    mark(AT_FDCWD, "a/in-a");
    mark(AT_FDCWD, "a/b/in-b");
    SAY(symlink("a/b/c", "link"));
    at = go(AT_FDCWD, "link");
    list(at, "..");
    list(at, "../..");
    list(at, "../../..");
    SAY(mkdir("m", 0700));
    int moved = go(AT_FDCWD, "m");
    SAY(rename("m", "a/b/c/m"));
    list(moved, "..");
    list(moved, "../..");
    list(moved, "../../..");
    list(moved, "../../../..");
    SAY(fchdir(moved));
    list(AT_FDCWD, "../../..");
    SAY(renameat(at, "m", AT_FDCWD, "../../../../m"));
    list(AT_FDCWD, "..");
    list(moved, "..");
    SAY(chdir(dir));

    /* Removed. */
    SAY(mkdir("a/gone", 0700));
    SAY(chdir("a/gone"));
    int gone = go(AT_FDCWD, ".");
    SAY(unlinkat(at, "../../gone", AT_REMOVEDIR));
    list(AT_FDCWD, "..");
    list(gone, "../..");
    SAY(chdir(dir));

    /* Out and in again: what lies above the directory is the same by both ways. */
    const char *last = strrchr(dir, '/');
    char out[300];
    snprintf(out, sizeof out, "../../../..%s/a/.//.///.", last);
    list(at, out);
    return 0;
}
