/*
 * Preloaded into a process, it can kill that process in the middle of a write to a file, or in a flush.
 *
 * The process calls kill_in_write(n). The n-th write after that is cut off in its middle, and the process is killed, as
 * by kill -9 at that very moment. A flush counts as a write, and is not done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int left; /* 0: do not kill */

void kill_in_write(int number)
{
    atomic_store(&left, number);
}

static int is_the_one(void)
{
    return atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset)
{
    static ssize_t (*original)(int, const void *, size_t, off64_t);
    int last = is_the_one();
    ssize_t written;
    if (original == NULL)
        original = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    written = original(descriptor, data, last ? size / 2 : size, offset);
    if (last)
        die();
    return written;
}

static int flush(const char *name, int descriptor)
{
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (is_the_one())
        die();
    return original(descriptor);
}

int fsync(int descriptor)
{
    return flush("fsync", descriptor);
}

int fdatasync(int descriptor)
{
    return flush("fdatasync", descriptor);
}
