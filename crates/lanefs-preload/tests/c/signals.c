/* A signal handler writes to the file that the program writes to: it may be refused, nothing hangs,
 * and the program's own calls are whole. */
#include "common.h"

static int fd;
static volatile long other;

static void handler(int number) {
    (void)number;
    int before = errno;
    if (pwrite(fd, "h", 1, 0) != 1 && errno != EDEADLK)
        other++;
    errno = before;
}

int main(int argc, char **argv) {
    begin(argc, argv);
    fd = open(in("s"), O_RDWR | O_CREAT, 0600);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 200}, {0, 200}}, none = {{0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    static char block[8192];
    long bad = 0;
    for (int i = 0; i < 50000; i++) {
        bad += pwrite(fd, block, sizeof block, i % 100 * sizeof block) != sizeof block;
        if (i % 1000 == 0)
            bad += fsync(fd) != 0;
        if (i % 500 == 0) {
            int made = open(in("made"), O_RDWR | O_CREAT | O_EXCL, 0600);
            bad += made < 0 || close(made) != 0 || unlink(in("made")) != 0;
        }
    }
    setitimer(ITIMER_REAL, &none, NULL);
    printf("bad %ld\nother %ld\n", bad, other);
    return 0;
}
