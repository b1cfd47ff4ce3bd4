/* Mounts at a directory, and takes the request of a thread of its own without answering it. Then it
 * ends ("dies"), or waits for ever ("waits"). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void *look(void *dir)
{
    struct stat s;
    stat(dir, &s);
    return NULL;
}

int main(int argc, char **argv)
{
    static union {
        struct fuse_in_header header;
        char bytes[1 << 17];
    } request;
    struct {
        struct fuse_out_header header;
        struct fuse_init_out init;
    } reply = {.init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION}};
    char options[100];
    pthread_t thread;
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (argc != 3 || fuse < 0)
        return 2;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (mount("dies", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0)
        return 3;
    if (read(fuse, &request, sizeof request) < 0 || request.header.opcode != FUSE_INIT)
        return 4;
    reply.header.len = sizeof reply;
    reply.header.unique = request.header.unique;
    reply.init.max_write = 4096;
    if (write(fuse, &reply, sizeof reply) != sizeof reply)
        return 5;
    if (pthread_create(&thread, NULL, look, argv[1]) != 0)
        return 6;
    if (read(fuse, &request, sizeof request) < 0)
        return 7;
    if (strcmp(argv[2], "dies") == 0)
        _exit(66);
    for (;;)
        pause();
}
