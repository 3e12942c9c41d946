/*
 * Preloaded into a process, it sees what happens to the files below $FAULT_DIR.
 *
 * It records every write, flush, truncation, creation, rename and removal into $FAULT_LOG, from which images of the
 * disk after a power cut are built. A flush is only recorded then, which is faster.
 *
 * And it lets the k-th call of some kinds fail: see fault_arm. A flush that fails is recorded as such.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define ORIGINAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static int record_file = -1;

static const char *kinds = "";  /* of the calls that are counted */
static int fail_at, fail_with, fail_on, is_short;
static int calls, failures;

__attribute__((constructor)) static void start(void)
{
    folder = getenv("FAULT_DIR");
    const char *record = getenv("FAULT_LOG");
    if (record != NULL)
        record_file = ORIGINAL(open)(record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/*
 * From now on, count the calls whose kind is in `which`: (w)rite, (s)ync, (t)runcate, (o)pen for creation, (u)nlink,
 * (r)ename, (m)kdir, (l)ock, (p)read. Let the k-th fail with this error, and `repeat` more after it. half: a write
 * writes a half, and reports that. k = 0: only count.
 */
void fault_arm(const char *which, int k, int error, int repeat, int half)
{
    pthread_mutex_lock(&mutex);
    kinds = strdup(which);
    fail_at = k, fail_with = error, fail_on = repeat, is_short = half;
    calls = failures = 0;
    pthread_mutex_unlock(&mutex);
}

int fault_calls(void) { return calls; }
int fault_failures(void) { return failures; }

static int ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), tail = strlen(end);
    return length >= tail && strcmp(path + length - tail, end) == 0;
}

static int is_watched(const char *path)
{
    return folder != NULL && path != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

static int path_of(int file, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length >= 0 && is_watched(path);
}

/* Return whether this call must fail. */
static int must_fail(char kind)
{
    pthread_mutex_lock(&mutex);
    int found = strchr(kinds, kind) != NULL;
    int fails = found && ++calls >= fail_at && fail_at > 0 && calls <= fail_at + fail_on;
    failures += fails;
    pthread_mutex_unlock(&mutex);
    if (fails)
        errno = fail_with;
    return fails;
}

static void put(char kind, const char *path, int64_t number, const void *data, uint32_t size)
{
    uint32_t length = strlen(path), head = 1 + 4 + 8 + 4;
    char *entry = malloc(head + length + size);
    entry[0] = kind;
    memcpy(entry + 1, &length, 4);
    memcpy(entry + 5, &number, 8);
    memcpy(entry + 13, &size, 4);
    memcpy(entry + head, path, length);
    if (size > 0)
        memcpy(entry + head + length, data, size);
    if (ORIGINAL(write)(record_file, entry, head + length + size) < 0)
        abort();
    free(entry);
}

static int is_recorded(const char *path) { return record_file >= 0 && !ends_with(path, "-shm"); }

/* Record something that the program was told, such as the id of a message that was sent. */
void fault_mark(const char *text)
{
    if (record_file < 0)
        return;
    pthread_mutex_lock(&mutex);
    put('M', "", 0, text, strlen(text));
    pthread_mutex_unlock(&mutex);
}

/* Do the call and record it, as one step: a record must not be older or newer than what it describes. */
#define RECORDED(type, call, kind, path, number, data, size)       \
    do {                                                           \
        if (!is_recorded(path))                                    \
            return call;                                           \
        pthread_mutex_lock(&mutex);                                \
        type result = call;                                        \
        int error = errno;                                         \
        if (result >= 0)                                           \
            put(kind, path, number, data, size);                   \
        pthread_mutex_unlock(&mutex);                              \
        errno = error;                                             \
        return result;                                             \
    } while (0)

#define WRITE(call, offset)                                        \
    char path[PATH_MAX];                                           \
    if (file == record_file || !path_of(file, path))               \
        return call;                                               \
    if (must_fail('w')) {                                          \
        if (!is_short || size < 2)                                 \
            return -1;                                             \
        size /= 2;                                                 \
    }                                                              \
    RECORDED(ssize_t, call, 'W', path, offset, data, result)

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at)
{
    WRITE(ORIGINAL(pwrite64)(file, data, size, at), at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at)
{
    WRITE(ORIGINAL(pwrite)(file, data, size, at), at);
}

ssize_t write(int file, const void *data, size_t size)
{
    if (file <= 2)
        return ORIGINAL(write)(file, data, size);
    WRITE(ORIGINAL(write)(file, data, size), lseek(file, 0, SEEK_CUR) - result);
}

ssize_t pread64(int file, void *data, size_t size, off64_t at)
{
    char path[PATH_MAX];
    if (strchr(kinds, 'p') != NULL && path_of(file, path) && must_fail('p'))
        return -1;
    return ORIGINAL(pread64)(file, data, size, at);
}

static int flush(int file, int (*original)(int))
{
    char path[PATH_MAX];
    if (!path_of(file, path))
        return original(file);
    int fails = must_fail('s'), error = errno;
    if (record_file < 0)
        return fails ? -1 : original(file);
    pthread_mutex_lock(&mutex);
    put(fails ? 'F' : 'S', path, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
    errno = error;
    return fails ? -1 : 0;
}

int fsync(int file) { return flush(file, ORIGINAL(fsync)); }
int fdatasync(int file) { return flush(file, ORIGINAL(fdatasync)); }

#define TRUNCATE(call)                                             \
    char path[PATH_MAX];                                           \
    if (!path_of(file, path))                                      \
        return call;                                               \
    if (must_fail('t'))                                            \
        return -1;                                                 \
    RECORDED(int, call, 'T', path, size, NULL, 0)

int ftruncate(int file, off_t size)
{
    TRUNCATE(ORIGINAL(ftruncate)(file, size));
}

int ftruncate64(int file, off64_t size)
{
    TRUNCATE(ORIGINAL(ftruncate64)(file, size));
}

#define NAMED(call, kind, letter, text, length)                    \
    if (!is_watched(path))                                         \
        return call;                                               \
    if (must_fail(kind))                                           \
        return -1;                                                 \
    RECORDED(int, call, letter, path, 0, text, length)

int unlink(const char *path)
{
    NAMED(ORIGINAL(unlink)(path), 'u', 'U', NULL, 0);
}

int rename(const char *path, const char *target)
{
    NAMED(ORIGINAL(rename)(path, target), 'r', 'R', target, strlen(target));
}

int mkdir(const char *path, mode_t mode)
{
    NAMED(ORIGINAL(mkdir)(path, mode), 'm', 'D', NULL, 0);
}

static int open_file(int (*original)(const char *, int, ...), const char *path, int flags, mode_t mode)
{
    if (!is_watched(path) || !(flags & O_CREAT))
        return original(path, flags, mode);
    if (must_fail('o'))
        return -1;
    struct stat found;
    if (lstat(path, &found) == 0)
        return original(path, flags, mode);
    RECORDED(int, original(path, flags, mode), 'C', path, 0, NULL, 0);
}

#define OPEN(name)                                                 \
    int name(const char *path, int flags, ...)                     \
    {                                                              \
        va_list rest;                                              \
        va_start(rest, flags);                                     \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;  \
        va_end(rest);                                              \
        return open_file(ORIGINAL(name), path, flags, mode);       \
    }

OPEN(open)
OPEN(open64)

#define LOCK(name)                                                                  \
    int name(int file, int command, ...)                                            \
    {                                                                               \
        va_list rest;                                                               \
        va_start(rest, command);                                                    \
        void *argument = va_arg(rest, void *);                                      \
        va_end(rest);                                                               \
        char path[PATH_MAX];                                                        \
        int is_lock = command == F_SETLK || command == F_SETLKW;                    \
        if (is_lock && ((struct flock *)argument)->l_type != F_UNLCK                \
            && strchr(kinds, 'l') != NULL && path_of(file, path) && must_fail('l')) \
            return -1;                                                              \
        return ORIGINAL(name)(file, command, argument);                             \
    }

LOCK(fcntl)
LOCK(fcntl64)
