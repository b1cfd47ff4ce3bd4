/* Writes records, and says of each when it is durable, until it is killed:
       ledger IMAGE FIRST
   A record is a file that replaces another by rename, and a line of a log. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static struct lanefs_volume *volume;

/* Writes a file under another name, and has it take its place. */
static void replace(const char *name, const char *text)
{
    struct lanefs_file *file;
    OK(lanefs_open(volume, "new", O_WRONLY | O_CREAT | O_TRUNC, 0644, &file));
    IS(lanefs_write(file, text, strlen(text)), strlen(text));
    OK(lanefs_fsync(file));
    OK(lanefs_close(file));
    OK(lanefs_rename(volume, "new", name, 0));
    /* The name, too. */
    OK(lanefs_open(volume, "/", O_RDONLY | O_DIRECTORY, 0, &file));
    OK(lanefs_fsync(file));
    OK(lanefs_close(file));
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const char *image = argv[1];
    char text[64], name[64];
    struct lanefs_file *log;
    long long made = lanefs_format(&image, 1, 64 << 20, "ledger");
    if (made != -EEXIST)
        OK(made);
    OK(lanefs_open_volume(&image, 1, "cache_size=16M", &volume));
    OK(lanefs_open(volume, "log", O_WRONLY | O_APPEND | O_CREAT, 0644, &log));
    for (long n = atol(argv[2]);; n++) {
        int len = snprintf(text, sizeof text, "record %ld\n", n);
        snprintf(name, sizeof name, "record-%ld", n % 50);
        replace(name, text);
        IS(lanefs_write(log, text, len), len);
        OK(n % 2 ? lanefs_fdatasync(log) : lanefs_sync(volume));
        /* Past the buffers of stdio: it is told when it is so. */
        if (dprintf(1, "%ld\n", n) < 0)
            return 1;
    }
}
