#include "common.h"

static void resolve(const char *path) {
    char *real = realpath(path, NULL);
    if (real && strncmp(real, dir, strlen(dir)) == 0)
        printf("DIR%s\n", real + strlen(dir));
    else
        printf("%s\n", real ? real : strerrorname_np(errno));
    free(real);
}

static void target(const char *name) {
    char to[PATH_MAX];
    ssize_t n = readlink(in(name), to, sizeof to);
    if (n < 0)
        printf("%s: %s\n", name, strerrorname_np(errno));
    else if (strncmp(to, dir, strlen(dir)) == 0)
        printf("%s -> DIR%.*s\n", name, (int)(n - strlen(dir)), to + strlen(dir));
    else
        printf("%s -> %.*s\n", name, (int)n, to);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    SAY(mkdir(in("d"), 0777));
    SAY(mkdir(in("d"), 0777));
    SAY(mkdir(in("d/e"), 0700));
    SAY(mkdir(in("none/e"), 0700));
    SAY(mkdir(in("f/"), 0700));
    SAY(rmdir(in("d")));
    SAY(rmdir(in("none")));
    SAY(unlink(in("d")));
    SAY(close(creat(in("d/x"), 0666)) * 0);
    SAY(rmdir(in("d/x")));
    SAY(unlink(in("d/x/")));
    SAY(mkdir(in("d/x/y"), 0700));
    SAY(link(in("d/x"), in("y")));
    SAY(link(in("d/x"), in("y")));
    SAY(link(in("d"), in("z")));
    SAY(link(in("none"), in("z")));
    look("y");
    SAY(symlink("d/x", in("s")));
    SAY(symlink("d", in("sd")));
    SAY(symlink("nowhere", in("sn")));
    SAY(symlink("loop", in("loop")));
    SAY(symlink("d", in("s")));
    target("s");
    target("d/x");
    target("none");
    char small[3];
    SAY(readlink(in("s"), small, 3));
    SAY(readlink(in("s"), small, 0));
    look("s");
    look("sd/x");
    SAY(open(in("loop"), O_RDONLY));
    SAY(open(in("s"), O_RDONLY | O_NOFOLLOW));
    SAY(open(in("sn"), O_RDONLY));
    SAY(access(in("s"), R_OK | W_OK));
    SAY(access(in("sn"), F_OK));
    SAY(access(in("d"), 77));
    SAY(faccessat(AT_FDCWD, in("sn"), F_OK, AT_SYMLINK_NOFOLLOW));
    SAY(euidaccess(in("d/x"), R_OK));
    SAY(rename(in("none"), in("q")));
    SAY(rename(in("d/x"), in("q")));
    SAY(rename(in("q"), in("d")));
    SAY(rename(in("d"), in("q")));
    SAY(rename(in("d"), in("d/e/f")));
    SAY(rename(in("q"), in("d/x")));
    SAY(rename(in("d"), in("d2")));
    SAY(rename(in("d2"), in("d")));
    SAY(renameat2(AT_FDCWD, in("d"), AT_FDCWD, in("f"), RENAME_NOREPLACE));
    SAY(renameat2(AT_FDCWD, in("d"), AT_FDCWD, in("f"), RENAME_EXCHANGE));
    SAY(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("d"), RENAME_EXCHANGE));
    look("d/x");
    int d = open(in("d"), O_RDONLY | O_DIRECTORY);
    SAY(mkdirat(d, "m", 0755));
    SAY(symlinkat("../y", d, "up"));
    int up = openat(d, "up", O_RDWR);
    OK(up);
    SAY(write(up, "up", 2));
    SAY(openat(d, "../none", O_RDONLY));
    int f = openat(d, "../y", O_RDONLY);
    OK(f);
    SAY(openat(f, "z", O_RDONLY));
    SAY(openat(d, "", O_RDONLY));
    SAY(openat(77, "z", O_RDONLY));
    struct stat s;
    SAY(fstatat(d, "up", &s, 0));
    printf("%d\n", (int)s.st_size);
    SAY(fstatat(d, "up", &s, AT_SYMLINK_NOFOLLOW));
    printf("%d\n", (int)s.st_size);
    SAY(fstatat(f, "", &s, AT_EMPTY_PATH));
    SAY(fstatat(f, "", &s, 0));
    SAY(linkat(d, "x", d, "x2", 0));
    SAY(linkat(d, "up", d, "up2", AT_SYMLINK_FOLLOW));
    look("d/up2");
    SAY(renameat(d, "x2", AT_FDCWD, in("x3")));
    SAY(unlinkat(d, "m", 0));
    SAY(unlinkat(d, "m", AT_REMOVEDIR));
    SAY(unlinkat(d, "m", AT_REMOVEDIR));
    SAY(remove(in("x3")));
    SAY(remove(in("d/e")));
    SAY(remove(in("d")));
    SAY(mkfifo(in("fifo"), 0600));
    look("fifo");
    SAY(mknod(in("node"), S_IFREG | 0600, 0));
    look("node");
    resolve(in("sd/../y"));
    resolve(in("sd/x"));
    resolve(in("none"));
    resolve(in("loop"));
    resolve(in("d/./..//d/"));
    resolve(in("d/../../../../../../../../usr/lib/.."));
    /* Links with absolute targets: to the same place, out of it, and to what is made by them. */
    SAY(symlink(in("d"), in("abs")));
    SAY(symlink(in("new"), in("absnew")));
    SAY(symlink("/usr", in("out")));
    target("abs");
    look("abs/x");
    SAY(access(in("abs/x"), R_OK));
    int n = open(in("absnew"), O_RDWR | O_CREAT, 0600);
    OK(n);
    SAY(write(n, "new", 3));
    show("new");
    SAY(close(creat(in("abs/made"), 0600)) * 0);
    look("d/made");
    SAY(rename(in("abs/made"), in("abs/moved")));
    look("d/moved");
    SAY(access(in("out/lib"), R_OK));
    SAY(access(in("out/none"), R_OK));
    SAY(stat(in("out"), &s));
    resolve(in("abs/x"));
    SAY(access(in("d/../../../../../../../../../usr/lib"), R_OK));
    return 0;
}
