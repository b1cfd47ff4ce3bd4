#include "common.h"

/* Says what a file has from a place on. */
static void from(int fd, int at) {
    char text[16] = "";
    SAY(pread(fd, text, 8, at));
    for (int i = 0; i < 8; i++)
        putchar(text[i] ? text[i] : '.');
    putchar('\n');
}

/* What is stored behind the end of a file, in its last page, is not seen when it becomes longer. */
int main(int argc, char **argv) {
    begin(argc, argv);
    for (int way = 0; way < 4; way++) {
        int fd = open(in("tail"), O_RDWR | O_CREAT | O_TRUNC, 0600);
        SAY(write(fd, "abc", 3));
        char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        memset(map + 3, '#', 100);
        map[1] = 'B';
        switch (way) {
        case 0: SAY(ftruncate(fd, 10)); break;
        case 1: SAY(pwrite(fd, "z", 1, 9)); break;
        case 2: SAY(fallocate(fd, 0, 0, 10)); break;
        case 3: SAY(pwrite(fd, "de", 2, 3)); SAY(ftruncate(fd, 9000)); break;
        }
        from(fd, 0);
        from(fd, 3);
        printf("%d %d\n", map[4], map[6]);
        /* Behind the new end it is kept for who stored it. */
        map[50] = '!';
        printf("%c\n", map[50]);
        SAY(munmap(map, 4096));
        from(fd, 0);
        from(fd, 3);
        SAY(close(fd));
    }
    return 0;
}
