/* A library to preload (LD_PRELOAD) that lets a program's disk fail.

   FAILING_DISKS names directories, separated by colons. While the file "<directory>.failing" exists, operations on files
   below that directory fail with EIO. Which ones, the words in the file say: write, torn (half of it arrives), sync, read.
   With the word slow nothing fails, and a sync takes 80 ms. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int mode_of(int fd, char *mode, size_t size) {
    const char *disks = getenv("FAILING_DISKS");
    char link[64], path[PATH_MAX], control[PATH_MAX + 16];
    int saved = errno, found = 0;
    if (disks == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || path[0] != '/') { errno = saved; return 0; }
    path[length] = 0;
    while (*disks && !found) {
        size_t part = strcspn(disks, ":");
        if (part && part < PATH_MAX && (size_t)length > part && !strncmp(path, disks, part) && path[part] == '/') {
            snprintf(control, sizeof control, "%.*s.failing", (int)part, disks);
            int file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
            if (file >= 0) {
                long got = syscall(SYS_read, file, mode, size - 1);
                syscall(SYS_close, file);
                mode[got > 0 ? got : 0] = 0;
                found = 1;
            }
            break;
        }
        disks += part + (disks[part] == ':');
    }
    errno = saved;
    return found;
}

static int fails(int fd, const char *word) {
    char mode[64];
    return mode_of(fd, mode, sizeof mode) && strstr(mode, word) != NULL;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (fails(fd, "torn")) syscall(SYS_write, fd, data, size / 2);
    if (fails(fd, "torn") || fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (fails(fd, "torn")) syscall(SYS_pwrite64, fd, data, size / 2, at);
    if (fails(fd, "torn") || fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fails(fd, "torn") || fails(fd, "write")) { errno = EIO; return -1; }
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) {
    if (fails(fd, "read")) { errno = EIO; return -1; }
    return syscall(SYS_pread64, fd, data, size, at);
}

ssize_t pread64(int fd, void *data, size_t size, off_t at) { return pread(fd, data, size, at); }

ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    if (fails(in, "read")) { errno = EIO; return -1; }
    return syscall(SYS_sendfile, out, in, at, size);
}

ssize_t sendfile64(int out, int in, off_t *at, size_t size) { return sendfile(out, in, at, size); }

int fsync(int fd) {
    if (fails(fd, "slow")) usleep(80000);
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    if (fails(fd, "slow")) usleep(80000);
    if (fails(fd, "sync")) { errno = EIO; return -1; }
    return (int)syscall(SYS_fdatasync, fd);
}
