/*
 * Preloaded into a process, it can stop that process once, in the middle of a checkpoint.
 *
 * A checkpoint of SQLite first reads the header of the log's index. If that has changed it then drops its memory
 * map of the database file, and only after that it begins to copy pages. The munmap() is thus the one moment at
 * which somebody else can get in between: see tests/test_wal_reset.py for what comes of it.
 *
 * The process calls stop_in_next_munmap_of(path). At the next munmap() of that file it says "paused" on its
 * standard output and goes on when it reads a line from its standard input.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char wanted[4096]; /* empty: do not stop */

void stop_in_next_munmap_of(const char *path)
{
    snprintf(wanted, sizeof wanted, "%s", path);
}

/* Whether the wanted file is mapped at this address. */
static int is_wanted(void *address)
{
    char line[8192];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (maps == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t first, last;
        char *path = strchr(line, '/');
        if (path == NULL || sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &first, &last) != 2)
            continue;
        path[strcspn(path, "\n")] = '\0';
        found = first <= (uintptr_t)address && (uintptr_t)address < last && strcmp(path, wanted) == 0;
    }
    fclose(maps);
    return found;
}

static void stop(void)
{
    static const char word[] = "paused\n";
    char heard = 0;
    if (write(STDOUT_FILENO, word, sizeof word - 1) < 0)
        return;
    while (heard != '\n' && read(STDIN_FILENO, &heard, 1) == 1)
        ;
}

int munmap(void *address, size_t length)
{
    static int (*original)(void *, size_t);
    int stops = wanted[0] != '\0' && is_wanted(address);
    int result;
    if (original == NULL)
        original = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
    result = original(address, length);
    if (stops) {
        wanted[0] = '\0';
        stop();
    }
    return result;
}
