// Preloaded into a server or a mover, for tests: a clock that is wrong (CLOCK_SHIFT seconds), and a disk that is full as
// long as the file FULL_DISK exists. Full means what it does on a real one: blocks that are there can be written, files
// of tables cannot grow. The write-ahead log is on another disk.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static time_t shift(void) {
    const char *seconds = getenv("CLOCK_SHIFT");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}

static int full(int fd, off_t end) {
    const char *flag = getenv("FULL_DISK");
    struct stat file;
    char link[64], path[1024];
    if (!flag || access(flag, F_OK) != 0 || fstat(fd, &file) != 0 || end <= file.st_size) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/base/") != NULL;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite");
    if (full(fd, at + (off_t)length)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, data, length, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwritev");
    off_t end = at;
    for (int i = 0; i < count; ++i) end += (off_t)parts[i].iov_len;
    if (full(fd, end)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, parts, count, at);
}
