/* recorder.c: see recorder.h. Nothing here may fail a job: whatever is wrong with a folder means another one, or none.
 */
#include "common/recorder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PATH_CAP    4096u
#define LOGS_LOOKED 4096u /* bounded: more than these in a folder are not ours to tidy */

/* ---- which folder ---- */

/* Memory that is mapped from such a file may wait for a server: not on the thread that runs a rank's control plane. */
static bool is_remote(const char *folder) {
    static const unsigned long kinds[] = {0x6969u /* nfs */,
                                          0x517bu /* smb */,
                                          0xff534d42u /* cifs */,
                                          0xfe534d42u /* smb2 */,
                                          0x0bd00bd0u /* lustre */,
                                          0x47504653u /* gpfs */,
                                          0x00c36400u /* ceph */,
                                          0x5346414fu /* afs */,
                                          0x65735546u /* fuse */,
                                          0x01021997u /* 9p */,
                                          0x19830326u /* beegfs */};
    struct statfs fs;
    if (statfs(folder, &fs) != 0) return true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (((unsigned long)fs.f_type & 0xffffffffu) == kinds[i]) return true;
    return false;
}

static bool has_room(const char *folder) {
    struct statvfs vfs;
    return statvfs(folder, &vfs) == 0 && (uint64_t)vfs.f_bavail * vfs.f_frsize >= MCPG_RECORDER_FREE_BYTES;
}

/* A folder of ours that nobody else may write to or look into: no link, no stranger's. */
static bool is_private(const char *folder) {
    struct stat st;
    return lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077u) == 0;
}

static bool make_folder(const char *folder) {
    return mkdir(folder, 0700) == 0 || errno == EEXIST;
}

/* parent/a/b/c: parent must be there, the rest is created. */
static bool make_below(const char *parent, const char *rest, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s/%s", parent, rest);
    if (parent[0] != '/' || n < 0 || (size_t)n >= cap || access(parent, W_OK | X_OK) != 0) return false;
    for (char *slash = strchr(out + strlen(parent) + 1u, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool made = make_folder(out);
        *slash = '/';
        if (!made) return false;
    }
    return make_folder(out) && is_private(out) && access(out, W_OK | X_OK) == 0 && !is_remote(out) && has_room(out);
}

static bool make_default(char *out, size_t cap) {
    char own[64];
    const char *state = secure_getenv("XDG_STATE_HOME"), *home = secure_getenv("HOME");
    if (state != NULL && state[0] == '/' && make_below(state, "mooncake_pg", out, cap)) return true;
    if (home != NULL && home[0] == '/' && make_below(home, ".local/state/mooncake_pg", out, cap)) return true;
    (void)snprintf(own, sizeof own, "mooncake_pg-%lu", (unsigned long)geteuid());
    return make_below("/tmp", own, out, cap);
}

char *mcpg__recorder_folder(const char *configured) {
    const char *is_on = getenv("MOONCAKE_EVENT_LOG");
    if (is_on != NULL && (strcmp(is_on, "off") == 0 || strcmp(is_on, "0") == 0)) return NULL;
    const char *named = configured != NULL ? configured : getenv("MOONCAKE_EVENT_LOG_DIR");
    if (named != NULL) return named[0] != '\0' ? strdup(named) : NULL;
    char folder[PATH_CAP];
    if (!make_default(folder, sizeof folder)) return NULL;
    mcpg__recorder_prune(folder, MCPG_RECORDER_KEEP_LOGS, MCPG_RECORDER_KEEP_BYTES);
    return strdup(folder);
}

/* ---- which logs stay ---- */

typedef struct {
    char name[128]; /* without the segment's ending */
    time_t newest;
    uint64_t bytes;
} old_log_t;

/* agent-3-4242-0123abcd.0, coordinator-1-4242-0123abcd.1 */
static bool is_log_name(const char *name, size_t *stem_out) {
    size_t len = strlen(name);
    if (len < 8 || len >= sizeof((old_log_t *)0)->name || name[len - 2] != '.') return false;
    if (name[len - 1] != '0' && name[len - 1] != '1') return false;
    size_t head = strncmp(name, "agent-", 6) == 0 ? 6 : strncmp(name, "coordinator-", 12) == 0 ? 12 : 0;
    if (head == 0) return false;
    for (size_t i = head; i < len - 2u; i++)
        if (!isxdigit((unsigned char)name[i]) && name[i] != '-') return false;
    *stem_out = len - 2u;
    return true;
}

static int oldest_first(const void *a, const void *b) {
    const old_log_t *x = a, *y = b;
    if (x->newest != y->newest) return x->newest < y->newest ? -1 : 1;
    return strcmp(x->name, y->name);
}

static old_log_t *log_named(old_log_t *logs, uint32_t *count, const char *name, size_t stem) {
    for (uint32_t i = 0; i < *count; i++)
        if (strlen(logs[i].name) == stem && memcmp(logs[i].name, name, stem) == 0) return &logs[i];
    if (*count == LOGS_LOOKED) return NULL;
    old_log_t *log = &logs[(*count)++];
    memset(log, 0, sizeof *log);
    memcpy(log->name, name, stem);
    return log;
}

static uint32_t list_logs(int folder_fd, old_log_t *logs) {
    uint32_t count = 0;
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return 0;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        struct stat st;
        size_t stem;
        if (!is_log_name(entry->d_name, &stem)) continue;
        if (fstatat(folder_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
        old_log_t *log = log_named(logs, &count, entry->d_name, stem);
        if (log == NULL) break;
        log->bytes += (uint64_t)st.st_blocks * 512u;
        if (st.st_mtime > log->newest) log->newest = st.st_mtime;
    }
    closedir(dir);
    qsort(logs, count, sizeof *logs, oldest_first);
    return count;
}

/* Removed, unless its writer lives: that one holds a lock on both segments. */
static bool remove_log(int folder_fd, const char *name) {
    char path[2][sizeof((old_log_t *)0)->name + 4u];
    int fd[2];
    bool is_free = true;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path[i], sizeof path[i], "%s.%d", name, i);
        fd[i] = openat(folder_fd, path[i], O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd[i] >= 0 && flock(fd[i], LOCK_EX | LOCK_NB) != 0) is_free = false;
    }
    for (int i = 0; i < 2; i++) {
        if (fd[i] < 0) continue;
        if (is_free) (void)unlinkat(folder_fd, path[i], 0);
        close(fd[i]);
    }
    return is_free;
}

void mcpg__recorder_prune(const char *folder, uint32_t keep_logs, uint64_t keep_bytes) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    old_log_t *logs = fd >= 0 ? malloc(LOGS_LOOKED * sizeof *logs) : NULL;
    uint32_t count = logs != NULL ? list_logs(fd, logs) : 0, left = count;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) bytes += logs[i].bytes;
    for (uint32_t i = 0; i < count && (left > keep_logs || bytes > keep_bytes); i++) {
        if (!remove_log(fd, logs[i].name)) continue;
        left--;
        bytes -= logs[i].bytes;
    }
    free(logs);
    if (fd >= 0) close(fd);
}
