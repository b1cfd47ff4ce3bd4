/* Makes files from a number on, and says each number once it is durable. */
#include "common.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    char name[40], text[100];
    for (int i = atoi(argv[2]);; i++) {
        sprintf(name, "tmp-%d", i);
        int n = sprintf(text, "record %d\n", i), bad = 0;
        int fd = open(in(name), O_RDWR | O_CREAT | O_EXCL, 0600);
        bad |= fd < 0 || write(fd, text, n) != n;
        int append = open(in("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
        bad |= write(append, text, n) != n;
        sprintf(text, "%s/record-%d", dir, i);
        bad |= rename(in(name), text) != 0;
        bad |= (i % 2 ? fdatasync(append) : fsync(append)) != 0 || fsync(fd) != 0;
        close(append);
        close(fd);
        if (bad)
            return 1;
        printf("%d\n", i);
        fflush(stdout);
    }
}
