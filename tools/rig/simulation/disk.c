/* Follows what one program does to the files below some folders, in order, and fails calls there on demand.
 *
 * Loaded with LD_PRELOAD. The record of a change is
 *     u8 kind, u32 lengths of path, second path and bytes, i64 offset or size, path, second path, bytes
 * in the machine's byte order; `sim_take` hands over what has gathered. Calls that the model of a disk does not
 * have (link, shared mappings) are not made there by the programs under test: SQLite keeps its index of the
 * log in heap memory with an exclusive lock. What posix_fallocate reserves is only counted: no file is that large.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { MAKE_FILE = 1, MAKE_FOLDER, WRITE, CUT, RENAME, REMOVE, SYNC };
enum { DESCRIPTORS = 4096, FOLDERS = 8, RESERVED = 8 };

static char *open_at[DESCRIPTORS];
static char *watched[FOLDERS];
static struct { char *folder; int write_errno, sync_errno; } failing;
static struct { char *path; int write_errno; off_t below; } failing_once;
static struct { char *folder; int64_t left; } space = { NULL, -1 };
static struct { char *path; int64_t size; } reserved[RESERVED];
static unsigned char *record;
static size_t used, room;

static int below(const char *path, const char *folder) {
    size_t length = folder ? strlen(folder) : 0;
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int follows(const char *path) {
    for (int at = 0; path && at < FOLDERS; at++)
        if (below(path, watched[at])) return 1;
    return 0;
}

static void put(const void *data, size_t size) {
    if (used + size > room) {
        while (used + size > room) room = room ? 2 * room : 1 << 20;
        if (!(record = realloc(record, room))) abort();
    }
    memcpy(record + used, data, size);
    used += size;
}

static void note(enum kind kind, const char *path, const char *to, int64_t at, const void *data, size_t size) {
    struct __attribute__((packed)) { uint8_t kind; uint32_t path, to, data; int64_t at; } head =
        { kind, strlen(path), strlen(to), size, at };
    put(&head, sizeof head);
    put(path, head.path);
    put(to, head.to);
    put(data, size);
}

static const char *path_of(int descriptor) {
    return descriptor >= 0 && descriptor < DESCRIPTORS ? open_at[descriptor] : NULL;
}

static int refused(const char *path, int wanted) {
    if (!wanted || !path || !below(path, failing.folder)) return 0;
    errno = wanted;
    return 1;
}

static int64_t *reserve_of(const char *path) {
    for (int at = 0; path && at < RESERVED; at++)
        if (reserved[at].path && strcmp(reserved[at].path, path) == 0) return &reserved[at].size;
    return NULL;
}

static int64_t size_at(const char *path) {
    struct stat found;
    int64_t *kept = reserve_of(path);
    int64_t size = stat(path, &found) == 0 ? found.st_size : 0;
    return kept && *kept > size ? *kept : size;
}

static int counts(const char *path) { return space.folder && path && below(path, space.folder); }

/* Files that do not grow are written to on a full disk too. */
static int no_room(const char *path, int64_t until) {
    if (!counts(path)) return 0;
    int kept = errno;
    int64_t grows = until - size_at(path);
    errno = kept;
    if (grows <= 0) return 0;
    if (grows > space.left) { errno = ENOSPC; return 1; }
    space.left -= grows;
    return 0;
}

/* Slots are written with one pwrite. */
static int refused_once(const char *path, off_t at) {
    if (!path || !failing_once.path || strcmp(path, failing_once.path) != 0) return 0;
    if (at >= failing_once.below) return 0;
    errno = failing_once.write_errno;
    free(failing_once.path);
    failing_once.path = NULL;
    return 1;
}

/* ---- what the simulation calls */

void sim_watch(int slot, const char *folder) {
    for (int at = 0; at < RESERVED; at++)
        if (reserved[at].path && below(reserved[at].path, watched[slot])) {
            free(reserved[at].path);
            reserved[at].path = NULL;
        }
    free(watched[slot]);
    watched[slot] = folder ? strdup(folder) : NULL;
}

void sim_fail(const char *folder, int write_errno, int sync_errno) {
    free(failing.folder);
    failing.folder = folder ? strdup(folder) : NULL;
    failing.write_errno = write_errno;
    failing.sync_errno = sync_errno;
}

void sim_fail_once(const char *path, int write_errno, off_t below_offset) {
    free(failing_once.path);
    failing_once.path = path ? strdup(path) : NULL;
    failing_once.write_errno = write_errno;
    failing_once.below = below_offset;
}

/* What is left for files below `folder` to grow by; no folder: as much as they like. */
void sim_room(const char *folder, int64_t left) {
    free(space.folder);
    space.folder = folder ? strdup(folder) : NULL;
    space.left = folder ? left : -1;
}

int64_t sim_left(void) { return space.left; }

/* A file holds room that it does not use; 0: none any more. */
void sim_reserve(const char *path, int64_t size) {
    int at = 0;
    while (at < RESERVED && !(reserved[at].path && strcmp(reserved[at].path, path) == 0)) at++;
    for (int any = 0; at == RESERVED && any < RESERVED; any++)
        if (!reserved[any].path) at = any;
    if (at == RESERVED) abort();
    free(reserved[at].path);
    reserved[at].path = size ? strdup(path) : NULL;
    reserved[at].size = size;
}

size_t sim_take(void **data) {
    size_t size = used;
    *data = record;
    used = 0;
    return size;
}

/* ---- what the programs call */

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void opened(int descriptor, const char *path, int existed, int flags) {
    if (descriptor < 0 || descriptor >= DESCRIPTORS) return;
    free(open_at[descriptor]);
    open_at[descriptor] = NULL;
    if (!follows(path)) return;
    open_at[descriptor] = strdup(path);
    if (!existed) note(MAKE_FILE, path, "", 0, "", 0);
    else if (flags & O_TRUNC) note(CUT, path, "", 0, "", 0);
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        mode_t mode = 0; \
        if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        int kept = errno, existed = !follows(path) || access(path, F_OK) == 0; \
        errno = kept; \
        if (!existed && (flags & O_CREAT) && refused(path, failing.write_errno)) return -1; \
        int64_t cut = counts(path) && (flags & O_TRUNC) ? size_at(path) : 0; \
        errno = kept; \
        int descriptor = real(path, flags, mode); \
        if (descriptor >= 0) space.left += cut; \
        opened(descriptor, path, existed, flags); \
        return descriptor; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        mode_t mode = 0; \
        if (flags & O_CREAT) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); } \
        int kept = errno, existed = !follows(path) || access(path, F_OK) == 0; \
        errno = kept; \
        int descriptor = real(folder, path, flags, mode); \
        opened(descriptor, path, existed, flags); \
        return descriptor; \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int descriptor) {
    REAL(int, close, int);
    if (path_of(descriptor)) { free(open_at[descriptor]); open_at[descriptor] = NULL; }
    return real(descriptor);
}

static void wrote(const char *path, int64_t at, const void *data, ssize_t size) {
    if (path && size > 0 && follows(path)) note(WRITE, path, "", at, data, size);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    const char *path = path_of(descriptor);
    if (refused(path, failing.write_errno)) return -1;
    if (counts(path)) {
        int appends = fcntl(descriptor, F_GETFL) & O_APPEND;
        if (no_room(path, (appends ? size_at(path) : lseek(descriptor, 0, SEEK_CUR)) + (int64_t)size)) return -1;
    }
    ssize_t count = real(descriptor, data, size);
    if (path && count > 0) wrote(path, lseek(descriptor, 0, SEEK_CUR) - count, data, count);
    return count;
}

#define PWRITE(name) \
    ssize_t name(int descriptor, const void *data, size_t size, off_t at) { \
        REAL(ssize_t, name, int, const void *, size_t, off_t); \
        const char *path = path_of(descriptor); \
        if (refused(path, failing.write_errno) || refused_once(path, at)) return -1; \
        if (no_room(path, at + (int64_t)size)) return -1; \
        ssize_t count = real(descriptor, data, size, at); \
        wrote(path, at, data, count); \
        return count; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define FTRUNCATE(name) \
    int name(int descriptor, off_t size) { \
        REAL(int, name, int, off_t); \
        const char *path = path_of(descriptor); \
        if (refused(path, failing.write_errno) || no_room(path, size)) return -1; \
        int64_t cut = counts(path) && size < size_at(path) ? size_at(path) - size : 0; \
        int result = real(descriptor, size); \
        if (result == 0) space.left += cut; \
        if (result == 0 && path && follows(path)) note(CUT, path, "", size, "", 0); \
        return result; \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

#define FALLOCATE(name) \
    int name(int descriptor, off_t at, off_t size) { \
        REAL(int, name, int, off_t, off_t); \
        const char *path = path_of(descriptor); \
        if (refused(path, failing.write_errno)) return failing.write_errno; \
        if (!path || !follows(path)) return real(descriptor, at, size); \
        if (no_room(path, at + size)) return ENOSPC; \
        sim_reserve(path, at + size); \
        return 0; \
    }
FALLOCATE(posix_fallocate)
FALLOCATE(posix_fallocate64)

#define FSYNC(name) \
    int name(int descriptor) { \
        const char *path = path_of(descriptor); \
        if (refused(path, failing.sync_errno)) return -1; \
        if (path && follows(path)) { note(SYNC, path, "", 0, "", 0); return 0; } \
        REAL(int, name, int); \
        return real(descriptor); \
    }
FSYNC(fsync)
FSYNC(fdatasync)

int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    int result = real(path, mode);
    if (result == 0 && follows(path)) note(MAKE_FOLDER, path, "", 0, "", 0);
    return result;
}

int rename(const char *path, const char *to) {
    REAL(int, rename, const char *, const char *);
    int64_t over = counts(to) ? size_at(to) : 0, *kept = reserve_of(path), moved = kept ? *kept : 0;
    int result = real(path, to);
    if (result == 0) space.left += over;
    if (result == 0 && moved) { sim_reserve(path, 0); sim_reserve(to, moved); }
    if (result == 0 && follows(path)) note(RENAME, path, to, 0, "", 0);
    for (int at = 0; result == 0 && at < DESCRIPTORS; at++)
        if (open_at[at] && strcmp(open_at[at], path) == 0) { free(open_at[at]); open_at[at] = strdup(to); }
    return result;
}

#define REMOVED(name) \
    int name(const char *path) { \
        REAL(int, name, const char *); \
        int64_t cut = counts(path) ? size_at(path) : 0; \
        int result = real(path); \
        if (result == 0) space.left += cut; \
        if (result == 0 && reserve_of(path)) sim_reserve(path, 0); \
        if (result == 0 && follows(path)) note(REMOVE, path, "", 0, "", 0); \
        return result; \
    }
REMOVED(unlink)
REMOVED(rmdir)
