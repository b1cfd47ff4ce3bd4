/* What a call that makes no sense answers: an errno, and a message, and nothing is harmed. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *has_no_error(void *unused)
{
    (void)unused;
    IS(strlen(lanefs_last_error()), 0);
    return NULL;
}

int main(void)
{
    struct lanefs_volume *v, *none = NULL;
    struct lanefs_file *f;
    struct lanefs_stat s;
    struct lanefs_time t[2] = {{0, -1}, {0, 0}};
    const char *missing = "/nowhere/at/all.lane";
    char buf[8];

    IS(lanefs_open_volume(NULL, 1, NULL, &v), -EFAULT);
    IS(lanefs_open_volume(&missing, 1, NULL, &v), -ENOENT);
    TELLS("/nowhere/at/all.lane");
    IS(lanefs_open_volume(&missing, 1, "color=blue", &v), -EINVAL);
    TELLS("color=blue");
    IS(lanefs_open_volume(&missing, 1, "cache_size=lots", &v), -EINVAL);
    TELLS("cache_size=lots");
    IS(lanefs_memory_volume(4097, &v), -EINVAL);
    IS(lanefs_memory_volume(64 << 20, NULL), -EFAULT);
    IS(lanefs_memory_volume(64 << 20, &v), 0);

    IS(lanefs_mkdir(none, "d", 0755), -EBADF);
    IS(lanefs_mkdir(v, NULL, 0755), -EFAULT);
    IS(lanefs_mkdir(v, "", 0755), -ENOENT);
    IS(lanefs_open(v, "f", O_RDWR | O_CREAT, 0644, NULL), -EFAULT);
    IS(lanefs_stat(v, "f", &s), -ENOENT); /* nothing was made for it */
    IS(lanefs_open(v, "f", O_ACCMODE | O_CREAT, 0644, &f), -EINVAL);
    IS(lanefs_open(v, "f", O_RDWR | O_CREAT, 0644, &f), 0);
    IS(lanefs_stat(v, "f", NULL), -EFAULT);
    IS(lanefs_read(NULL, buf, 1), -EBADF);
    IS(lanefs_pread(f, NULL, 1, 0), -EFAULT);
    IS(lanefs_pread(f, NULL, 0, 0), 0);
    IS(lanefs_pread(f, buf, 1, -1), -EINVAL);
    IS(lanefs_pread(f, buf, (size_t)-1, 0), -EINVAL);
    IS(lanefs_pwrite(f, buf, 1, INT64_MAX), -EFBIG);
    IS(lanefs_writev(f, NULL, 1, 0), -EFAULT);
    IS(lanefs_writev(f, NULL, 0, 0), 0);
    IS(lanefs_readv(f, NULL, -1, 0), -EINVAL);
    IS(lanefs_readv(f, NULL, 5000, 0), -EINVAL);
    IS(lanefs_lseek(f, -1, SEEK_SET), -EINVAL);
    IS(lanefs_lseek(f, 0, 99), -EINVAL);
    IS(lanefs_ftruncate(f, -1), -EINVAL);
    IS(lanefs_fallocate(f, 0, 0, 0), -EINVAL);
    IS(lanefs_flock(f, 9, 0), -EINVAL);
    IS(lanefs_lock_range(f, LANEFS_LOCK_SHARED, -1, 1, 0), -EINVAL);
    IS(lanefs_utimens(v, "f", t, 0), -EINVAL);
    IS(lanefs_chown(v, "f", 0, 0, 99), -EINVAL);
    IS(lanefs_rename(v, "f", "g", 99), -EINVAL);
    IS(lanefs_readlink(v, "f", buf, sizeof buf), -EINVAL);
    IS(lanefs_setxattr(v, "f", "user.x", NULL, 5, 0), -EFAULT);

    /* A handle to look at a file answers as the kernel's descriptors do. */
    struct lanefs_file *looks;
    struct lanefs_range_lock lock;
    IS(lanefs_open(v, "f", O_PATH, 0, &looks), 0);
    IS(lanefs_pread(looks, buf, 1, 0), -EBADF);
    IS(lanefs_flock(looks, LANEFS_LOCK_SHARED, 0), -EBADF);
    IS(lanefs_flock(looks, LANEFS_UNLOCK, 0), -EBADF);
    IS(lanefs_lock_range(looks, LANEFS_LOCK_SHARED, 0, 1, 0), -EBADF);
    IS(lanefs_lock_range(looks, LANEFS_UNLOCK, 0, 1, 0), -EBADF);
    IS(lanefs_test_range(looks, LANEFS_LOCK_SHARED, 0, 1, &lock), -EBADF);
    IS(lanefs_set_write_life(looks, LANEFS_LIFE_SHORT), -EBADF);
    IS(lanefs_write_life(looks), -EBADF);
    IS(lanefs_write_hint(looks, LANEFS_LIFE_SHORT), -EBADF);
    IS(lanefs_close(looks), 0);

    /* The last failure is each thread's own. */
    IS(lanefs_unlink(v, "gone"), -ENOENT);
    pthread_t thread;
    pthread_create(&thread, NULL, has_no_error, NULL);
    pthread_join(thread, NULL);
    TELLS("No such file");

    /* The child of a fork has no part in the volume. */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        IS(lanefs_pwrite(f, "child", 5, 0), -EIO);
        TELLS("fork");
        IS(lanefs_close_volume(v), -EIO);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    IS(status, 0);
    IS(lanefs_pwrite(f, "parent", 6, 0), 6);

    /* A file that outlives its volume answers, and is closed. */
    IS(lanefs_close_volume(v), 0);
    IS(lanefs_pread(f, buf, 1, 0), -EIO);
    IS(lanefs_close(f), 0);
    IS(lanefs_close(NULL), 0);
    IS(lanefs_closedir(NULL), 0);
    IS(lanefs_close_volume(NULL), 0);
    printf("refused done\n");
    return 0;
}
