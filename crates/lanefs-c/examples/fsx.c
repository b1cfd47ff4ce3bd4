/* Random operations on a file, each compared with a copy in memory:
       fsx IMAGE OPERATIONS SEED
   The volume in IMAGE is made if it is not there. The same numbers do the same again. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

enum { LONGEST = 512 << 10, WIDEST = 64 << 10 };

static struct lanefs_volume *volume;
static struct lanefs_file *file;
static unsigned char good[LONGEST], bytes[LONGEST];
static int64_t size;
static const char *image;
static uint64_t state;

/* SplitMix64. */
static uint64_t number(uint64_t below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % below;
}

static void open_volume(void)
{
    OK(lanefs_open_volume(&image, 1, "cache_size=16M", &volume));
    OK(lanefs_open(volume, "fsx", O_RDWR | O_CREAT, 0644, &file));
}

static void reopen(void)
{
    OK(lanefs_close(file));
    OK(lanefs_open(volume, "fsx", O_RDWR, 0, &file));
}

/* What the file has in a range is what it must have. */
static void compare(int64_t at, int64_t len)
{
    int64_t expected = at >= size ? 0 : at + len > size ? size - at : len;
    memset(bytes, 0x5a, len);
    IS(lanefs_pread(file, bytes, len, at), expected);
    for (int64_t i = 0; i < expected; i++) {
        if (bytes[i] != good[at + i]) {
            fprintf(stderr, "at %lld: %02x, not %02x\n", (long long)(at + i), bytes[i], good[at + i]);
            exit(1);
        }
    }
}

/* From here on the file is so long at least. */
static void lengthen(int64_t to)
{
    if (to > size) {
        memset(good + size, 0, to - size);
        size = to;
    }
}

static void write_range(int64_t at, int64_t len, int how)
{
    lengthen(at);
    for (int64_t i = 0; i < len; i++)
        good[at + i] = number(256);
    if (at + len > size)
        size = at + len;
    struct iovec parts[2] = {{good + at, len / 3}, {good + at + len / 3, len - len / 3}};
    switch (how) {
    case 0:
        IS(lanefs_pwrite(file, good + at, len, at), len);
        break;
    case 1:
        IS(lanefs_writev(file, parts, 2, at), len);
        break;
    default:
        IS(lanefs_lseek(file, at, SEEK_SET), at);
        IS(lanefs_write(file, good + at, len), len);
        IS(lanefs_lseek(file, 0, SEEK_CUR), at + len);
    }
}

static void zero(int64_t at, int64_t len)
{
    if (at < size)
        memset(good + at, 0, at + len > size ? size - at : len);
}

static void step(void)
{
    int64_t at = number(LONGEST), most = LONGEST - at < WIDEST ? LONGEST - at : WIDEST;
    int64_t len = 1 + number(number(4) ? most : most < 100 ? most : 100);
    int keep = number(2) ? FALLOC_FL_KEEP_SIZE : 0;
    struct lanefs_stat s;
    switch (number(12)) {
    case 0:
    case 1:
    case 2:
        write_range(at, len, number(3));
        break;
    case 3:
    case 4:
    case 5:
        compare(at, len);
        break;
    case 6:
        OK(lanefs_ftruncate(file, at));
        lengthen(at);
        size = at;
        break;
    case 7:
        OK(lanefs_fallocate(file, keep, at, len));
        if (!keep)
            lengthen(at + len);
        break;
    case 8:
        OK(lanefs_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len));
        zero(at, len);
        break;
    case 9:
        OK(lanefs_fallocate(file, FALLOC_FL_ZERO_RANGE | keep, at, len));
        if (!keep)
            lengthen(at + len);
        zero(at, len);
        break;
    case 10:
        OK(number(2) ? lanefs_fsync(file) : lanefs_fdatasync(file));
        break;
    default:
        if (number(8)) {
            OK(lanefs_rename(volume, "fsx", "other", 0));
            OK(lanefs_rename(volume, "other", "fsx", 0));
            reopen();
        } else {
            /* All of it comes from the image again. */
            OK(lanefs_close(file));
            OK(lanefs_close_volume(volume));
            open_volume();
            compare(0, LONGEST);
        }
    }
    OK(lanefs_fstat(file, &s));
    IS(s.size, size);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    image = argv[1];
    long operations = atol(argv[2]);
    state = atol(argv[3]);
    long long made = lanefs_format(&image, 1, 64 << 20, "fsx");
    if (made != -EEXIST)
        OK(made);
    open_volume();
    OK(lanefs_ftruncate(file, 0));
    for (long n = 0; n < operations; n++)
        step();
    reopen();
    compare(0, LONGEST);
    OK(lanefs_close(file));
    OK(lanefs_close_volume(volume));
    printf("fsx done: %ld operations of seed %s\n", operations, argv[3]);
    return 0;
}
