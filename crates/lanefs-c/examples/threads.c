/* Four threads use one volume at once: each has files of its own, all append to one file, and all
   count in another under its lock. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

static struct lanefs_volume *volume;

static void *work(void *number)
{
    char path[64], line[16];
    struct lanefs_file *log, *count, *own;
    snprintf(path, sizeof path, "of-%d", (int)(long)number);
    OK(lanefs_mkdir(volume, path, 0755));
    OK(lanefs_open(volume, "log", O_WRONLY | O_APPEND | O_CREAT, 0644, &log));
    OK(lanefs_open(volume, "count", O_RDWR | O_CREAT, 0644, &count));
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(path, sizeof path, "of-%d/%d", (int)(long)number, i);
        OK(lanefs_open(volume, path, O_WRONLY | O_CREAT | O_EXCL, 0644, &own));
        IS(lanefs_write(own, path, strlen(path)), strlen(path));
        OK(lanefs_close(own));
        snprintf(line, sizeof line, "%d %5d\n", (int)(long)number, i);
        IS(lanefs_write(log, line, strlen(line)), strlen(line));

        long long n = 0;
        OK(lanefs_lock_range(count, LANEFS_LOCK_EXCLUSIVE, 0, 0, 1));
        IS(lanefs_pread(count, &n, sizeof n, 0) >= 0, 1);
        n++;
        IS(lanefs_pwrite(count, &n, sizeof n, 0), sizeof n);
        OK(lanefs_lock_range(count, LANEFS_UNLOCK, 0, 0, 0));
    }
    OK(lanefs_close(log));
    OK(lanefs_close(count));
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    OK(lanefs_memory_volume(256 << 20, &volume));
    for (long t = 0; t < THREADS; t++)
        pthread_create(&threads[t], NULL, work, (void *)t);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);

    struct lanefs_stat s;
    struct lanefs_file *f;
    long long n = 0;
    OK(lanefs_stat(volume, "log", &s));
    OK(lanefs_open(volume, "count", O_RDONLY, 0, &f));
    IS(lanefs_pread(f, &n, sizeof n, 0), sizeof n);
    OK(lanefs_close(f));
    OK(lanefs_close_volume(volume));
    if (s.size != THREADS * ROUNDS * 8 || n != THREADS * ROUNDS) {
        fprintf(stderr, "%llu bytes of log, counted to %lld\n", (unsigned long long)s.size, n);
        return 1;
    }
    printf("threads done\n");
    return 0;
}
