/* Delivers mail as a server does: each message is made durable, moved into place, listed, read and
 * removed again later. Says how long a message took if it is asked to. */
#include "common.h"
#include <time.h>

int main(int argc, char **argv) {
    begin(argc, argv);
    int messages = argc > 2 ? atoi(argv[2]) : 200;
    char text[4000], from[PATH_MAX], to[PATH_MAX];
    memset(text, 'm', sizeof text);
    mkdir(in("tmp"), 0700);
    mkdir(in("new"), 0700);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    long bytes = 0, failed = 0;
    for (int i = 0; i < messages; i++) {
        snprintf(from, sizeof from, "%s/tmp/%d", dir, i);
        snprintf(to, sizeof to, "%s/new/%d", dir, i);
        int fd = open(from, O_WRONLY | O_CREAT | O_EXCL, 0600);
        failed += write(fd, text, sizeof text) != sizeof text;
        failed += fsync(fd) != 0;
        close(fd);
        failed += rename(from, to) != 0;
        int d = open(in("new"), O_RDONLY | O_DIRECTORY);
        failed += fsync(d) != 0;
        close(d);
        fd = open(to, O_RDONLY);
        bytes += read(fd, text, sizeof text);
        close(fd);
        fd = open(to, O_WRONLY | O_APPEND);
        failed += write(fd, "seen", 4) != 4;
        failed += fsync(fd) != 0;
        close(fd);
        if (i >= 50) {
            snprintf(to, sizeof to, "%s/new/%d", dir, i - 50);
            failed += unlink(to) != 0;
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%ld bytes, %ld failed\n", bytes, failed);
    DIR *d = opendir(in("new"));
    int n = 0;
    while (readdir(d))
        n++;
    printf("%d names\n", n);
    if (argc > 3)
        printf("%.1f us a message\n",
               ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / 1e3 / messages);
    return 0;
}
