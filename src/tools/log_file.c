/* log_file.c: see log_file.h. */
#include "tools/log_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- which logs ---- */

static bool is_segment_name(const char *name) {
    size_t len = strlen(name);
    return len > 2 && name[len - 2] == '.' && (name[len - 1] == '0' || name[len - 1] == '1');
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool has_segment(const char *prefix) {
    char path[4096];
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path, sizeof path, "%s.%d", prefix, i);
        if (n > 0 && (size_t)n < sizeof path && is_file(path)) return true;
    }
    return false;
}

static bool add_prefix(mcpg_log_list_t *list, const char *prefix, size_t len) {
    for (uint32_t i = 0; i < list->count; i++)
        if (strlen(list->prefix[i]) == len && memcmp(list->prefix[i], prefix, len) == 0) return true;
    char **grown = realloc(list->prefix, (list->count + 1u) * sizeof *grown);
    if (grown == NULL) return false;
    list->prefix = grown;
    list->prefix[list->count] = strndup(prefix, len);
    return list->prefix[list->count] != NULL && ++list->count > 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_folder(mcpg_log_list_t *list, const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return false;
    uint32_t before = list->count;
    bool ok = true;
    for (struct dirent *entry = readdir(dir); ok && entry != NULL; entry = readdir(dir)) {
        char path[4096];
        int n = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (is_segment_name(entry->d_name) && n > 0 && (size_t)n < sizeof path && is_file(path))
            ok = add_prefix(list, path, (size_t)n - 2u);
    }
    closedir(dir);
    if (ok && list->count > before) qsort(list->prefix + before, list->count - before, sizeof *list->prefix, by_name);
    return ok;
}

bool mcpg__log_list_add(mcpg_log_list_t *list, const char *argument, char *error, size_t error_cap) {
    struct stat st;
    uint32_t before = list->count;
    if (stat(argument, &st) == 0 && S_ISDIR(st.st_mode)) {
        bool ok = add_folder(list, argument);
        if (!ok || list->count == before)
            (void)snprintf(error, error_cap, "no event log is in folder '%s': give one with files that end in .0 or .1",
                           argument);
        return ok && list->count > before;
    }
    bool ok = true;
    if (has_segment(argument))
        ok = add_prefix(list, argument, strlen(argument));
    else if (is_segment_name(argument) && is_file(argument))
        ok = add_prefix(list, argument, strlen(argument) - 2u);
    else
        ok = false;
    if (!ok)
        (void)snprintf(error, error_cap,
                       "no event log is at '%s': give a segment file (LOG.0), its name without the ending, or a folder",
                       argument);
    return ok;
}

void mcpg__log_list_free(mcpg_log_list_t *list) {
    for (uint32_t i = 0; i < list->count; i++) free(list->prefix[i]);
    free(list->prefix);
    *list = (mcpg_log_list_t){0};
}

/* ---- loading ---- */

static bool read_file(const char *path, uint8_t **bytes_out, size_t *len_out) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    uint8_t *bytes = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? malloc((size_t)st.st_size + 1u) : NULL;
    size_t len = 0;
    while (bytes != NULL && len < (size_t)st.st_size) {
        ssize_t got = read(fd, bytes + len, (size_t)st.st_size - len);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        len += (size_t)got;
    }
    close(fd);
    *bytes_out = bytes;
    *len_out = len;
    return bytes != NULL;
}

static void free_segment(mcpg_log_segment_t *s) {
    free(s->path);
    free(s->bytes);
    *s = (mcpg_log_segment_t){0};
}

/* A segment that is not there or was never begun is passed over. */
static bool load_segment(mcpg_log_file_t *log, int index, char *error, size_t error_cap) {
    mcpg_log_segment_t *s = &log->segment[log->count];
    char path[4096];
    int n = snprintf(path, sizeof path, "%s.%d", log->prefix, index);
    if (n < 0 || (size_t)n >= sizeof path || !is_file(path)) return true;
    if (!read_file(path, &s->bytes, &s->len) || (s->path = strdup(path)) == NULL) {
        (void)snprintf(error, error_cap, "'%s' cannot be read (%s): check its owner and mode", path, strerror(errno));
        return false;
    }
    mcpg_status_t status = mcpg__eventlog_header(s->bytes, s->len, &s->header);
    if (status == MCPG_NOT_FOUND) {
        free_segment(s);
        return true;
    }
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap, "'%s' is no event log: its header is not one", path);
        return false;
    }
    if (!s->header.same_caps) {
        (void)snprintf(
            error, error_cap,
            "'%s' was written by a build with other limits or another protocol: use that build's mooncake-pg", path);
        return false;
    }
    log->count++;
    return true;
}

bool mcpg__log_file_load(const char *prefix, mcpg_log_file_t *out, char *error, size_t error_cap) {
    mcpg_log_file_t log = {.prefix = strdup(prefix)};
    bool ok = log.prefix != NULL;
    for (int i = 0; ok && i < 2; i++) ok = load_segment(&log, i, error, error_cap);
    if (ok && log.count == 0) {
        (void)snprintf(error, error_cap, "'%s' holds nothing: no segment of it was begun", prefix);
        ok = false;
    }
    if (ok && log.count == 2) {
        if (log.segment[0].header.number > log.segment[1].header.number) {
            mcpg_log_segment_t newer = log.segment[0];
            log.segment[0] = log.segment[1];
            log.segment[1] = newer;
        }
        ok = log.segment[0].header.machine == log.segment[1].header.machine &&
             log.segment[0].header.number + 1 == log.segment[1].header.number;
        if (!ok)
            (void)snprintf(error, error_cap, "'%s.0' and '%s.1' are not of one log: move one of them away", prefix,
                           prefix);
    }
    if (ok)
        *out = log;
    else
        mcpg__log_file_free(&log);
    return ok;
}

void mcpg__log_file_free(mcpg_log_file_t *log) {
    for (int i = 0; i < 2; i++) free_segment(&log->segment[i]);
    free(log->prefix);
    *log = (mcpg_log_file_t){0};
}

/* ---- records ---- */

/* A whole, newer record behind the bad place: the file was damaged and not just left in the middle of a record. */
static uint64_t later_records(const mcpg_log_segment_t *s, size_t from, uint64_t last_seq) {
    uint64_t count = 0;
    for (size_t at = (from + 8u) & ~(size_t)7u; at < s->len;) {
        mcpg_record_t record;
        size_t next = at;
        if (mcpg__eventlog_next(s->bytes, s->len, &next, &record) != MCPG_OK || record.seq <= last_seq ||
            record.seq > last_seq + (UINT64_C(1) << 32)) {
            at += 8u;
            continue;
        }
        count++;
        at = next;
    }
    return count;
}

static mcpg_log_found_t at_bad_record(mcpg_log_cursor_t *c, const mcpg_log_segment_t *s) {
    bool is_last = c->segment + 1u == c->log->count;
    uint64_t later = later_records(s, c->at, c->last_seq);
    if (is_last && later == 0) return MCPG_LOG_TORN;
    (void)snprintf(c->problem, sizeof c->problem,
                   "%s is damaged at byte %zu, behind event %llu: %llu whole records follow it there", s->path,
                   c->at == 0 ? (size_t)64 : c->at, (unsigned long long)c->last_seq, (unsigned long long)later);
    return MCPG_LOG_DAMAGED;
}

static bool keep_config(mcpg_log_cursor_t *c, const mcpg_record_t *record) {
    if (c->config.ptr == NULL) c->config = (mcpg_bytes_t){record->payload, record->len};
    if (c->config.len == record->len && (record->len == 0 || memcmp(c->config.ptr, record->payload, record->len) == 0))
        return true;
    (void)snprintf(c->problem, sizeof c->problem, "%s has another configuration than the segment before it",
                   c->log->segment[c->segment].path);
    return false;
}

mcpg_log_found_t mcpg__log_next(mcpg_log_cursor_t *c, mcpg_record_t *out) {
    while (c->segment < c->log->count) {
        const mcpg_log_segment_t *s = &c->log->segment[c->segment];
        mcpg_status_t status = mcpg__eventlog_next(s->bytes, s->len, &c->at, out);
        if (status == MCPG_OK && out->kind == MCPG_REC_CONFIG) {
            if (!keep_config(c, out)) return MCPG_LOG_DAMAGED;
        } else if (status == MCPG_OK) {
            c->last_seq = out->seq;
            return MCPG_LOG_RECORD;
        } else if (status == MCPG_CORRUPT) {
            return at_bad_record(c, s);
        } else {
            c->segment++;
            c->at = 0;
        }
    }
    return MCPG_LOG_END;
}
