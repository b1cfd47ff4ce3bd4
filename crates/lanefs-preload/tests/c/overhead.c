/* What calls cost, in nanoseconds: the least of many rounds. Without an argument calls that are not
   the volume's, with a directory those on a file there. */
#include "common.h"
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

#define COST(call)                                                                                 \
    do {                                                                                           \
        double least = 1e9;                                                                        \
        for (int round = 0; round < 200; round++) {                                                \
            double from = now();                                                                   \
            for (int i = 0; i < 2000; i++)                                                         \
                (void)!(call);                                                                     \
            double each = (now() - from) / 2000;                                                   \
            least = each < least ? each : least;                                                   \
        }                                                                                          \
        printf("%-40s %7.1f\n", #call, least);                                                     \
    } while (0)

static int below(const char *dir) {
    static char page[4096];
    struct stat s;
    if (chdir(dir))
        return 1;
    int f = open("file", O_RDWR | O_CREAT, 0644);
    if (f < 0 || write(f, page, sizeof page) != sizeof page)
        return 1;
    COST(pread(f, page, sizeof page, 0));
    COST(pwrite(f, page, sizeof page, 0));
    COST(fstat(f, &s));
    COST(lseek(f, 0, SEEK_CUR));
    COST(stat("file", &s));
    COST(close(open("file", O_RDONLY)));
    COST(close(open("new", O_WRONLY | O_CREAT, 0644)) + unlink("new"));
    COST(rename("file", "other") + rename("other", "file"));
    return unlink("file");
}

int main(int argc, char **argv) {
    if (argc > 1)
        return below(argv[1]);
    int zero = open("/dev/zero", O_RDWR);
    char byte;
    struct stat s;
    struct pollfd p = {zero, POLLIN, 0};
    COST(fstat(zero, &s));
    COST(read(zero, &byte, 1));
    COST(pread(zero, &byte, 1, 0));
    COST(write(zero, &byte, 1));
    COST(lseek(zero, 0, SEEK_CUR));
    COST(fcntl(zero, F_GETFL));
    COST(poll(&p, 1, 0));
    COST(stat("/usr/share/dict/none", &s));
    COST(access("a/relative/path/that/is/none", F_OK));
    COST(close(open("/dev/null", O_RDONLY)));
    return 0;
}
