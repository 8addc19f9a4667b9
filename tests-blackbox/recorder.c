/* Records, in order, every change that a program makes to the files under one
 * directory, so that a test can build the disk as it was at any moment.
 *
 * Preloaded with LD_PRELOAD. RECORDER_DIR names the directory, RECORDER_LOG
 * the log (outside of it). Each call runs under one lock together with its
 * record: the order in the log is the order of the calls. Absent on purpose:
 * mmap (SQLite maps only its -shm file, which is rebuilt), and system calls
 * that bypass the C library.
 *
 * While a file is where RECORDER_FAIL says, every sync under the directory fails,
 * as on a disk that is broken; while one is where RECORDER_STALL says, each waits, as on one that hangs.
 *
 * A record: op (u32), path length (u32), offset (u64), data length (u64), all
 * little-endian, then the path, then the data. For a rename the data is the
 * new path; for a truncation the offset is the new length.
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
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE = 2, SYNC = 3, UNLINK = 4, RENAME = 5, CREATE = 6, MKDIR = 7 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char dir[PATH_MAX];
static const char *broken, *hung;

__attribute__((constructor)) static void start(void) {
    const char *d = getenv("RECORDER_DIR"), *l = getenv("RECORDER_LOG");
    broken = getenv("RECORDER_FAIL");
    hung = getenv("RECORDER_STALL");
    if (!d || !l || !realpath(d, dir)) return;
    log_fd = syscall(SYS_openat, AT_FDCWD, l, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* The C library's own function of this name. */
#define NEXT(name)                \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* The path below the directory, or NULL if it is elsewhere. "" is the directory itself. */
static const char *below(const char *path) {
    size_t n = strlen(dir);
    if (log_fd < 0 || n == 0 || strncmp(path, dir, n) != 0) return NULL;
    if (path[n] == 0) return path + n;
    return path[n] == '/' ? path + n + 1 : NULL;
}

static const char *below_fd(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
    if (n <= 0) return NULL;
    buffer[n] = 0;
    return below(buffer);
}

/* Makes a path absolute without following its last part, which may not exist any more. */
static const char *below_at(int at, const char *path, char *buffer) {
    char base[PATH_MAX], joined[2 * PATH_MAX], parent[PATH_MAX];
    if (!path) return NULL;
    if (path[0] == '/') {
        snprintf(joined, sizeof joined, "%s", path);
    } else if (at == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return NULL;
        snprintf(joined, sizeof joined, "%s/%s", base, path);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
        if (n <= 0) return NULL;
        base[n] = 0;
        snprintf(joined, sizeof joined, "%s/%s", base, path);
    }
    char *slash = strrchr(joined, '/');
    if (!slash) return NULL;
    *slash = 0;
    if (!realpath(joined[0] ? joined : "/", parent)) return NULL;
    if (snprintf(buffer, PATH_MAX, "%s/%s", parent, slash + 1) >= PATH_MAX) return NULL;
    return below(buffer);
}

static void log_bytes(const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        ssize_t done = syscall(SYS_write, log_fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) abort(); /* half a log would prove nothing */
        p += done;
        n -= done;
    }
}

static void record(uint32_t op, const char *path, uint64_t offset, const void *data, uint64_t n) {
    int kept = errno;
    uint32_t path_n = strlen(path);
    char head[24];
    memcpy(head, &op, 4);
    memcpy(head + 4, &path_n, 4);
    memcpy(head + 8, &offset, 8);
    memcpy(head + 16, &n, 8);
    /* One piece, so that the log ends between records or at most inside the last one. */
    char *whole = malloc(sizeof head + path_n + n);
    if (!whole) abort();
    memcpy(whole, head, sizeof head);
    memcpy(whole + sizeof head, path, path_n);
    if (n) memcpy(whole + sizeof head + path_n, data, n);
    log_bytes(whole, sizeof head + path_n + n);
    free(whole);
    errno = kept;
}

#define LOCKED(call)                   \
    pthread_mutex_lock(&lock);         \
    call;                              \
    pthread_mutex_unlock(&lock)

/* Files elsewhere, sockets above all, never wait for the lock. */
#define ELSEWHERE(fd, call)                         \
    do {                                            \
        char elsewhere[PATH_MAX];                   \
        if (!below_fd(fd, elsewhere)) return call;  \
    } while (0)

static void wrote(int fd, const void *data, ssize_t n, off_t offset) {
    char buffer[PATH_MAX];
    const char *path = n > 0 ? below_fd(fd, buffer) : NULL;
    if (path) record(WRITE, path, offset < 0 ? lseek(fd, 0, SEEK_CUR) - n : offset, data, n);
}

ssize_t write(int fd, const void *data, size_t n) {
    NEXT(write);
    ELSEWHERE(fd, next(fd, data, n));
    ssize_t done;
    LOCKED(done = next(fd, data, n); wrote(fd, data, done, -1));
    return done;
}

#define PWRITE(name)                                                       \
    ssize_t name(int fd, const void *data, size_t n, off_t offset) {       \
        NEXT(name);        \
        ssize_t done;                                                      \
        LOCKED(done = next(fd, data, n, offset); wrote(fd, data, done, offset)); \
        return done;                                                       \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

static void wrote_pieces(int fd, const struct iovec *pieces, int count, ssize_t n, off_t offset) {
    if (n <= 0) return;
    off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) - n : offset;
    for (int i = 0; i < count && n > 0; i++) {
        ssize_t part = (ssize_t)pieces[i].iov_len < n ? (ssize_t)pieces[i].iov_len : n;
        wrote(fd, pieces[i].iov_base, part, at);
        at += part;
        n -= part;
    }
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    NEXT(writev);
    ELSEWHERE(fd, next(fd, pieces, count));
    ssize_t done;
    LOCKED(done = next(fd, pieces, count); wrote_pieces(fd, pieces, count, done, -1));
    return done;
}

#define PWRITEV(name)                                                                    \
    ssize_t name(int fd, const struct iovec *pieces, int count, off_t offset) {          \
        NEXT(name);                 \
        ssize_t done;                                                                    \
        LOCKED(done = next(fd, pieces, count, offset); wrote_pieces(fd, pieces, count, done, offset)); \
        return done;                                                                     \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

static void resized(int fd, off_t length) {
    char buffer[PATH_MAX];
    const char *path = below_fd(fd, buffer);
    if (path) record(TRUNCATE, path, length, NULL, 0);
}

#define FTRUNCATE(name)                                              \
    int name(int fd, off_t length) {                                 \
        NEXT(name);                            \
        int result;                                                  \
        LOCKED(result = next(fd, length); if (result == 0) resized(fd, length)); \
        return result;                                               \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

/* Only the length matters: what was allocated reads as zeros. */
static void allocated(int fd) {
    struct stat status;
    if (fstat(fd, &status) == 0) resized(fd, status.st_size);
}

#define FALLOCATE(name)                                                \
    int name(int fd, int mode, off_t offset, off_t length) {           \
        NEXT(name);                  \
        int result;                                                    \
        LOCKED(result = next(fd, mode, offset, length); if (result == 0) allocated(fd)); \
        return result;                                                 \
    }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                          \
    int name(int fd, off_t offset, off_t length) {                     \
        NEXT(name);                       \
        int result;                                                    \
        LOCKED(result = next(fd, offset, length); if (result == 0) allocated(fd)); \
        return result;                                                 \
    }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

static void synced(int fd) {
    char buffer[PATH_MAX];
    const char *path = below_fd(fd, buffer);
    if (path) record(SYNC, path, 0, NULL, 0);
}

static int is_there(const char *path) { return path && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0; }

static int fails(int fd) {
    char buffer[PATH_MAX];
    if (!below_fd(fd, buffer)) return 0;
    while (is_there(hung)) usleep(1000);
    return is_there(broken);
}

#define FSYNC(name)                                              \
    int name(int fd) {                                           \
        NEXT(name);                               \
        int result;                                              \
        if (fails(fd)) {                                         \
            errno = EIO;                                         \
            return -1;                                           \
        }                                                        \
        LOCKED(result = next(fd); if (result == 0) synced(fd));  \
        return result;                                           \
    }
FSYNC(fsync)
FSYNC(fdatasync)

static int unlink_at(int at, const char *path, int flags) {
    char buffer[PATH_MAX];
    int result;
    LOCKED(const char *gone = below_at(at, path, buffer); result = syscall(SYS_unlinkat, at, path, flags);
           if (result == 0 && gone) record(UNLINK, gone, 0, NULL, 0));
    return result;
}
int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return unlink_at(at, path, flags); }

static int rename_at(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    int result;
    LOCKED(const char *source = below_at(from_at, from, from_buffer); const char *target = below_at(to_at, to, to_buffer);
           result = syscall(SYS_renameat2, from_at, from, to_at, to, flags);
           if (result == 0 && source && target) record(RENAME, source, 0, target, strlen(target)));
    return result;
}
int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char *from, int to_at, const char *to) { return rename_at(from_at, from, to_at, to, 0); }
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    return rename_at(from_at, from, to_at, to, flags);
}

int mkdir(const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    int result;
    LOCKED(result = syscall(SYS_mkdirat, AT_FDCWD, path, mode);
           const char *made = result == 0 ? below_at(AT_FDCWD, path, buffer) : NULL;
           if (made) record(MKDIR, made, 0, NULL, 0));
    return result;
}

static int open_at(int at, const char *path, int flags, mode_t mode) {
    if (!(flags & (O_CREAT | O_TRUNC))) return syscall(SYS_openat, at, path, flags, mode);
    char buffer[PATH_MAX];
    struct stat status;
    int fd;
    LOCKED(const char *name = below_at(at, path, buffer); int was_there = fstatat(at, path, &status, 0) == 0;
           fd = syscall(SYS_openat, at, path, flags, mode);
           if (fd >= 0 && name && !was_there) record(CREATE, name, 0, NULL, 0);
           if (fd >= 0 && name && was_there && (flags & O_TRUNC)) record(TRUNCATE, name, 0, NULL, 0));
    return fd;
}

#define MODE_OF(flags)                                           \
    mode_t mode = 0;                                             \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                       \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode = va_arg(rest, mode_t);                             \
        va_end(rest);                                            \
    }
int open(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE_OF(flags) return open_at(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE_OF(flags) return open_at(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE_OF(flags) return open_at(at, path, flags | O_LARGEFILE, mode); }
