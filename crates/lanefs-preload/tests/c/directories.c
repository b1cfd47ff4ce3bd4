#include "common.h"
#include <ftw.h>
#include <glob.h>

static int by_name(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

static void list(DIR *d) {
    char *names[2000];
    int n = 0;
    struct dirent *e;
    errno = 0;
    while ((e = readdir(d))) {
        names[n] = malloc(300);
        snprintf(names[n++], 300, "%s %d", e->d_name, e->d_type);
    }
    printf("%d entries, errno %d\n", n, errno);
    qsort(names, n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        if (n < 20)
            printf("  %s\n", names[i]);
        free(names[i]);
    }
}

static char *found[2000];
static int count;

static int visit(const char *path, const struct stat *s, int kind, struct FTW *at) {
    found[count] = malloc(300);
    snprintf(found[count++], 300, "%s kind %d level %d base %s %o", path + strlen(dir), kind, at->level,
             path + at->base, s->st_mode);
    return 0;
}
static int visit_old(const char *path, const struct stat *s, int kind) {
    (void)s;
    found[count] = malloc(300);
    snprintf(found[count++], 300, "%s kind %d", path + strlen(dir), kind);
    return 0;
}
static void found_all(void) {
    qsort(found, count, sizeof *found, by_name);
    for (int i = 0; i < count; i++)
        printf("  %s\n", found[i]);
    count = 0;
}
static int no_dots(const struct dirent *e) { return e->d_name[0] != '.'; }

int main(int argc, char **argv) {
    begin(argc, argv);
    printf("%d %s\n", opendir(in("none")) == NULL, strerrorname_np(errno));
    mkdir(in("d"), 0755);
    mkdir(in("d/e"), 0755);
    close(creat(in("d/f"), 0644));
    symlink("f", in("d/l"));
    symlink("none", in("d/dangling"));
    close(creat(in("d/e/deep"), 0600));
    printf("%d %s\n", opendir(in("d/f")) == NULL, strerrorname_np(errno));
    DIR *d = opendir(in("d"));
    list(d);
    rewinddir(d);
    list(d);
    struct stat s;
    SAY(fstatat(dirfd(d), "f", &s, 0));
    SAY(openat(dirfd(d), "none", O_RDONLY));
    rewinddir(d);
    readdir(d);
    long at = telldir(d);
    char second[300];
    strcpy(second, readdir(d)->d_name);
    readdir(d);
    seekdir(d, at);
    printf("again %d\n", strcmp(readdir(d)->d_name, second));
    SAY(closedir(d));
    int fd = open(in("d"), O_RDONLY | O_DIRECTORY);
    SAY(read(fd, second, 10));
    SAY(write(fd, second, 10));
    d = fdopendir(fd);
    printf("%d\n", dirfd(d) == fd);
    list(d);
    closedir(d);
    SAY(fcntl(fd, F_GETFD));
    fd = open(in("d/f"), O_RDONLY);
    printf("%d %s\n", fdopendir(fd) == NULL, strerrorname_np(errno));
    struct dirent **all;
    int n = scandir(in("d"), &all, no_dots, alphasort);
    for (int i = 0; i < n; i++)
        printf("scandir %s\n", all[i]->d_name);
    SAY(scandir(in("none"), &all, NULL, NULL));
    SAY(scandirat(AT_FDCWD, in("d"), &all, no_dots, alphasort));
    SAY(nftw(in("d"), visit, 10, FTW_PHYS));
    found_all();
    SAY(nftw(in("d"), visit, 10, FTW_PHYS | FTW_DEPTH));
    found_all();
    SAY(nftw(in("d/"), visit, 10, 0));
    found_all();
    SAY(ftw(in("d"), visit_old, 10));
    found_all();
    SAY(nftw(in("none"), visit, 10, 0));
    glob_t g;
    SAY(glob(in("d/*"), 0, NULL, &g));
    for (size_t i = 0; i < g.gl_pathc; i++)
        printf("glob %s\n", g.gl_pathv[i] + strlen(dir));
    globfree(&g);
    SAY(glob(in("*/e/d*"), GLOB_MARK, NULL, &g));
    printf("%d\n", (int)g.gl_pathc);
    globfree(&g);
    SAY(glob(in("d/x*"), 0, NULL, &g));
    SAY(chdir(in("d")));
    SAY(glob("*", GLOB_MARK, NULL, &g));
    for (size_t i = 0; i < g.gl_pathc; i++)
        printf("glob %s\n", g.gl_pathv[i]);
    /* Many names, removed while they are listed. */
    mkdir(in("many"), 0700);
    for (int i = 0; i < 1000; i++) {
        char name[30];
        sprintf(name, "many/%d", i);
        close(creat(in(name), 0600));
    }
    d = opendir(in("many"));
    list(d);
    rewinddir(d);
    struct dirent *e;
    int removed = 0;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            removed += unlinkat(dirfd(d), e->d_name, 0) == 0;
    closedir(d);
    printf("removed %d\n", removed);
    SAY(rmdir(in("many")));
    char raw[4096];
    fd = open(in("d"), O_RDONLY | O_DIRECTORY);
    int bytes = 0, entries = 0;
    while ((bytes = getdents64(fd, raw, sizeof raw)) > 0)
        for (int i = 0; i < bytes; i += ((struct dirent64 *)(raw + i))->d_reclen)
            entries++;
    printf("getdents64 %d %d\n", bytes, entries);
    SAY(getdents64(0, raw, sizeof raw));
    d = opendir(in("d/e"));
    unlink(in("d/e/deep"));
    SAY(rmdir(in("d/e")));
    while (readdir(d))
        ;
    printf("end %d\n", errno);
    closedir(d);
    return 0;
}
