/*
 * What runs in the guest beside busybox; linked statically.
 *
 *   guest times DIR N   makes, looks at and removes N files, and says what each step took
 *   guest sync DIR      makes files durable one after the other, and says so of each
 *   guest sparse FILE   a hole that a map fills is no hole any more for who asks for blocks
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("guest: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void times(const char *dir, int n)
{
	char path[4096];
	struct stat st;
	double at[4];
	int i, step;

	for (step = 0; step < 3; step++) {
		at[step] = now();
		for (i = 0; i < n; i++) {
			snprintf(path, sizeof path, "%s/%06d", dir, i);
			if (step == 0) {
				int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0644);
				if (fd < 0 || close(fd) < 0)
					fail(path);
			} else if (step == 1 ? stat(path, &st) : unlink(path)) {
				fail(path);
			}
		}
	}
	at[3] = now();
	printf("times %s: create %.1f stat %.1f unlink %.1f\n", dir, (at[1] - at[0]) / n,
	       (at[2] - at[1]) / n, (at[3] - at[2]) / n);
}

/* The content of the file of this number; xtask makes the same. */
static size_t content(unsigned i, unsigned char *bytes)
{
	size_t n, len = 1 + i * 997 % 9000;

	for (n = 0; n < len; n++)
		bytes[n] = (i * 31 + n * 7) & 0xff;
	return len;
}

static void sync_files(const char *dir)
{
	static unsigned char bytes[9001];
	char tmp[4096], path[4096];
	int fd, of_dir = open(dir, O_RDONLY | O_DIRECTORY);
	unsigned i;

	if (of_dir < 0)
		fail(dir);
	for (i = 0;; i++) {
		size_t len = content(i, bytes);
		snprintf(tmp, sizeof tmp, "%s/tmp", dir);
		snprintf(path, sizeof path, "%s/s%06u", dir, i);
		fd = open(tmp, O_CREAT | O_TRUNC | O_WRONLY, 0644);
		if (fd < 0 || write(fd, bytes, len) != (ssize_t)len || fsync(fd) || close(fd))
			fail(tmp);
		if (rename(tmp, path) || fsync(of_dir))
			fail(path);
		printf("synced %u\n", i);
		fflush(stdout);
	}
}

static void sparse(const char *path)
{
	struct stat st;
	char *map;
	int fd = open(path, O_CREAT | O_RDWR, 0644);

	if (fd < 0 || ftruncate(fd, 1 << 20) || fstat(fd, &st) || st.st_blocks != 0)
		fail(path);
	map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		fail("mmap");
	memset(map, 7, 1 << 20);
	if (munmap(map, 1 << 20) || close(fd) || stat(path, &st))
		fail(path);
	printf("blocks %ld\n", (long)st.st_blocks);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "times"))
		times(argv[2], atoi(argv[3]));
	else if (argc == 3 && !strcmp(argv[1], "sync"))
		sync_files(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "sparse"))
		sparse(argv[2]);
	else
		return 2;
	return 0;
}
