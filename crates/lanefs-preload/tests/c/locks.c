#include "common.h"

static int lock(int fd, int command, int type, off_t start, off_t len) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    int r = fcntl(fd, command, &l);
    if (command == F_GETLK || command == F_OFD_GETLK)
        printf("type %d start %d len %d\n", l.l_type, (int)l.l_start, (int)l.l_len);
    return r;
}

static int fd2;
static void *waits(void *unused) {
    (void)unused;
    return (void *)(long)flock(fd2, LOCK_EX);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    int a = open(in("l"), O_RDWR | O_CREAT, 0600), b = open(in("l"), O_RDWR), r = open(in("l"), O_RDONLY);
    SAY(flock(a, LOCK_EX | LOCK_NB));
    SAY(flock(b, LOCK_SH | LOCK_NB));
    SAY(flock(a, LOCK_SH));
    SAY(flock(b, LOCK_SH | LOCK_NB));
    SAY(flock(b, LOCK_EX | LOCK_NB));
    SAY(flock(b, LOCK_UN));
    SAY(flock(a, 77));
    int c = dup(a);
    SAY(flock(c, LOCK_EX | LOCK_NB));
    SAY(flock(b, LOCK_SH | LOCK_NB));
    fd2 = b;
    pthread_t t;
    void *result;
    pthread_create(&t, NULL, waits, NULL);
    usleep(20000);
    SAY(flock(c, LOCK_UN));
    pthread_join(t, &result);
    printf("waited %ld\n", (long)result);
    SAY(close(b));
    SAY(flock(a, LOCK_EX | LOCK_NB));
    b = open(in("l"), O_RDWR);
    SAY(lock(a, F_OFD_SETLK, F_WRLCK, 10, 10));
    SAY(lock(b, F_OFD_SETLK, F_RDLCK, 15, 10));
    SAY(lock(b, F_OFD_GETLK, F_RDLCK, 0, 0));
    SAY(lock(b, F_OFD_SETLK, F_RDLCK, 20, 0));
    SAY(lock(a, F_OFD_SETLK, F_UNLCK, 0, 0));
    SAY(lock(b, F_OFD_SETLK, F_WRLCK, 0, 0));
    SAY(lock(r, F_OFD_SETLK, F_WRLCK, 0, 0));
    SAY(lock(b, F_OFD_SETLK, F_UNLCK, 0, 0));
    SAY(lock(a, F_SETLK, F_WRLCK, 0, 0));
    SAY(lock(b, F_SETLK, F_WRLCK, 0, 0));
    SAY(lock(b, F_GETLK, F_WRLCK, 5, 6));
    SAY(lock(b, F_SETLKW, F_RDLCK, 0, 5));
    SAY(lock(r, F_SETLK, F_WRLCK, 0, 0));
    SAY(lock(a, F_SETLK, F_WRLCK, -1, 0));
    SAY(lock(a, F_SETLK, 99, 0, 0));
    SAY(lock(a, F_SETLK, F_UNLCK, 0, 0));
    SAY(lockf(a, F_TLOCK, 0));
    SAY(lockf(a, F_TEST, 10));
    SAY(lockf(a, F_ULOCK, 0));
    SAY(lockf(r, F_LOCK, 0));
    return 0;
}
