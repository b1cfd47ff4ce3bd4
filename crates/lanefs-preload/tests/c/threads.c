#include "common.h"

/* As `in`, with memory for each thread. */
static char *in_thread(const char *name, long me) {
    static char paths[8][PATH_MAX];
    snprintf(paths[me], PATH_MAX, "%s/%s%ld", dir, name, me);
    return paths[me];
}

enum { THREADS = 4, ROUNDS = 300 };
static int shared, appended;

static void *work(void *number) {
    long me = (long)number;
    char name[40], text[40];
    for (int i = 0; i < ROUNDS; i++) {
        sprintf(name, "t%ld-%d", me, i);
        int fd = open(in_thread(name, me), O_RDWR | O_CREAT | O_EXCL, 0600);
        int n = sprintf(text, "%ld %d\n", me, i);
        if (fd < 0 || write(fd, text, n) != n || write(appended, text, n) != n)
            abort();
        /* A number is used again at once by another thread. */
        int copy = dup(fd);
        if (close(fd) != 0 || pread(copy, text, n, 0) != n || close(copy) != 0)
            abort();
        char byte;
        if (read(shared, &byte, 1) != 1)
            abort();
        if (i % 2 && unlink(in_thread(name, me)) != 0)
            abort();
        FILE *f = fopen(in_thread("stream", me), "a");
        fprintf(f, "%d\n", i);
        fclose(f);
    }
    return NULL;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    shared = open(in("shared"), O_RDWR | O_CREAT, 0600);
    SAY(ftruncate(shared, THREADS * ROUNDS));
    appended = open(in("appended"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    pthread_t t[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    /* Each read moved the position that all share by one. */
    SAY(lseek(shared, 0, SEEK_CUR));
    FILE *f = fopen(in("appended"), "r");
    int lines = 0;
    long a, sum = 0, b;
    while (fscanf(f, "%ld %ld", &a, &b) == 2) {
        lines++;
        sum += a * b;
    }
    printf("%d lines, %ld\n", lines, sum);
    DIR *d = opendir(dir);
    int names = 0;
    while (readdir(d))
        names++;
    printf("%d names\n", names);
    return 0;
}
