/* Serves a mount of its volume at the directory named by the argument, and uses the same files by
   system calls there. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>


int main(int argc, char **argv)
{
    struct lanefs_volume *v;
    struct lanefs_file *f;
    char path[4096], buf[64];
    if (argc != 2)
        return 2;
    IS(lanefs_memory_volume(64 << 20, &v), 0);
    IS(lanefs_serve_mount(v, "/nowhere/at/all"), -ENOENT);
    IS(lanefs_serve_mount(v, argv[1]), 0);
    IS(lanefs_serve_mount(v, argv[1]), -EBUSY);
    snprintf(path, sizeof path, "%s/shared", argv[1]);

    IS(lanefs_open(v, "shared", O_RDWR | O_CREAT, 0644, &f), 0);
    int fd = open(path, O_RDWR);
    for (int i = 0; i < 100; i++) {
        int n = snprintf(buf, sizeof buf, "in process %d", i);
        IS(lanefs_pwrite(f, buf, n, 0), n);
        char seen[64] = "";
        IS(pread(fd, seen, sizeof seen, 0), n);
        IS(memcmp(seen, buf, n), 0);
        n = snprintf(buf, sizeof buf, "by the mount %d", i);
        IS(pwrite(fd, buf, n, 0), n);
        IS(lanefs_pread(f, seen, sizeof seen, 0), n);
        IS(memcmp(seen, buf, n), 0);
        IS(lanefs_ftruncate(f, 0), 0);
    }
    close(fd);
    IS(lanefs_close(f), 0);
    IS(lanefs_unmount(v), 0);
    IS(access(path, F_OK), -1);
    IS(lanefs_unmount(v), -EINVAL);
    IS(lanefs_serve_mount(v, argv[1]), 0);
    IS(access(path, F_OK), 0);
    IS(lanefs_close_volume(v), 0); /* unmounts, too */
    IS(access(path, F_OK), -1);
    printf("served done\n");
    return 0;
}
