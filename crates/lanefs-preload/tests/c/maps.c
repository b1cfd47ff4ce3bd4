#include "common.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    int fd = open(in("m"), O_RDWR | O_CREAT, 0600);
    char page[5000];
    for (int i = 0; i < 5000; i++)
        page[i] = 'a' + i % 26;
    SAY(write(fd, page, 5000));
    char *p = mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    printf("%d %d %d\n", p != MAP_FAILED, memcmp(p, page, 5000), p[5001]);
    p[0] = '#';
    SAY(pread(fd, page, 1, 0));
    printf("%c\n", page[0]);
    SAY(munmap(p, 5000));
    int r = open(in("m"), O_RDONLY);
    p = mmap(NULL, 5000, PROT_READ, MAP_SHARED, r, 0);
    printf("%d %d\n", p != MAP_FAILED, memcmp(p, page, 5000));
    SAY(close(r));
    printf("%c\n", p[4999]);
    SAY(mprotect(p, 4096, PROT_READ | PROT_WRITE));
    SAY(munmap(p, 5000));
    p = mmap(NULL, 900, PROT_READ, MAP_PRIVATE, fd, 4096);
    printf("%d %d\n", p != MAP_FAILED, memcmp(p, page + 4096, 900));
    char *q = mremap(p, 900, 10000, MREMAP_MAYMOVE);
    printf("%d %c\n", q != MAP_FAILED, q[5]);
    SAY((long)mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0));
    SAY((long)mmap(NULL, 10, PROT_READ, MAP_PRIVATE, fd, 5));
    int w = open(in("m"), O_WRONLY);
    SAY((long)mmap(NULL, 10, PROT_READ, MAP_PRIVATE, w, 0));
    r = open(in("m"), O_RDONLY);
    SAY((long)mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, r, 0));
    SAY((long)mmap(NULL, 10, PROT_READ, MAP_PRIVATE, open(dir, O_RDONLY), 0));
    char *fixed = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("%d\n", mmap(fixed, 4096, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == fixed);
    printf("%d\n", memcmp(fixed, page, 4096));
    return 0;
}
