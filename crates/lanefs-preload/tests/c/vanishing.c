#include "common.h"

/* A file that goes away, or is replaced by another, in the middle of calls by its path: each
 * succeeds or says ENOENT, whenever that happens. */
enum { THREADS = 4, ROUNDS = 5000, ERRNOS = 200 };
static char name[PATH_MAX], other[PATH_MAX];
static volatile int over;
/* Calls that change the file are made too. */
static int changing;

/* Calls by path, with how often each was answered with which errno. */
#define LOOKS(X)                                                                                   \
    X(stat, stat(name, &st))                                                                       \
    X(lstat, lstat(name, &st))                                                                     \
    X(access, access(name, W_OK))                                                                  \
    X(getxattr, getxattr(name, "user.a", text, sizeof text))                                       \
    X(lgetxattr, lgetxattr(name, "user.a", text, sizeof text))                                     \
    X(listxattr, listxattr(name, text, sizeof text))                                               \
    X(open, opened(open(name, O_RDONLY)))                                                          \
    X(fopen, closed(fopen(name, "r")))
#define CHANGES(X)                                                                                 \
    X(chmod, chmod(name, 0640))                                                                    \
    X(chown, chown(name, -1, -1))                                                                  \
    X(utimes, utimes(name, NULL))                                                                  \
    X(utimensat, utimensat(AT_FDCWD, name, NULL, AT_SYMLINK_NOFOLLOW))                             \
    X(truncate, truncate(name, 100))                                                               \
    X(open_trunc, opened(open(name, O_WRONLY | O_TRUNC)))                                          \
    X(setxattr, setxattr(name, "user.a", "1", 1, 0))                                               \
    X(removexattr, removexattr(name, "user.a"))
#define CALLS(X) LOOKS(X) CHANGES(X)

enum {
#define X(id, call) id##_call,
    CALLS(X)
#undef X
        NUMBER
};
static const char *const names[] = {
#define X(id, call) #id,
    CALLS(X)
#undef X
};
static long answers[NUMBER][ERRNOS];

static int opened(int fd) {
    return fd < 0 ? fd : close(fd);
}

static int closed(FILE *f) {
    return f ? fclose(f) : -1;
}

static void *look_at_it(void *unused) {
    struct stat st;
    char text[100];
    while (!over) {
#define X(id, call)                                                                                \
    errno = 0;                                                                                     \
    __atomic_add_fetch(&answers[id##_call][(call) < 0 ? errno : 0], 1, __ATOMIC_RELAXED);
        LOOKS(X)
        if (changing) {
            CHANGES(X)
        }
#undef X
    }
    return NULL;
}

static void make(const char *path) {
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0 || close(fd) != 0)
        abort();
}

/* Has the others look while this thread changes the name; says what is no answer. */
static void race(const char *what, void (*change)(void)) {
    pthread_t t[THREADS];
    over = 0;
    memset(answers, 0, sizeof answers);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, look_at_it, NULL);
    for (int i = 0; i < ROUNDS; i++)
        change();
    over = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int call = 0; call < NUMBER; call++)
        for (int e = 0; e < ERRNOS; e++)
            if (answers[call][e] && e != 0 && e != ENOENT && e != ENODATA)
                printf("%s: %s: %s, %ld times\n", what, names[call], strerrorname_np(e),
                       answers[call][e]);
    printf("%s: done\n", what);
}

static void removed(void) {
    make(name);
    if (unlink(name) != 0)
        abort();
}

static void replaced(void) {
    make(other);
    if (rename(other, name) != 0)
        abort();
}

int main(int argc, char **argv) {
    begin(argc, argv);
    snprintf(name, PATH_MAX, "%s/name", dir);
    snprintf(other, PATH_MAX, "%s/other", dir);
    race("removed", removed);
    race("replaced", replaced);
    unlink(name);
    changing = 1;
    race("removed, changed", removed);
    race("replaced, changed", replaced);
    return 0;
}
