/*
 * Preloaded into a process, it makes each flush to disk take SLOW_FLUSH_MS milliseconds longer, as on a busy disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int flush_slowly(const char *name, int descriptor)
{
    int (*original)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *delay = getenv("SLOW_FLUSH_MS");
    int result = original(descriptor);
    usleep(delay == NULL ? 0 : atoi(delay) * 1000);
    return result;
}

int fsync(int descriptor)
{
    return flush_slowly("fsync", descriptor);
}

int fdatasync(int descriptor)
{
    return flush_slowly("fdatasync", descriptor);
}
