/* log_file.h: one event log on disk: its rotating segments in their order, and their records one after the other. It
 * never changes a file, and a log may still be growing while it is read.
 */
#ifndef MCPG_TOOLS_LOG_FILE_H
#define MCPG_TOOLS_LOG_FILE_H

#include "common/eventlog.h"

typedef struct {
    char *path;
    uint8_t *bytes;
    size_t len;
    mcpg_eventlog_header_t header;
} mcpg_log_segment_t;
typedef struct {
    char *prefix;
    uint32_t count; /* segments that were begun: 1 or 2, older first */
    mcpg_log_segment_t segment[2];
} mcpg_log_file_t;

/* Prefixes of the logs that an argument names: a segment file, a prefix, or a folder (every log in it). Each is added
 * once. False: error says why. */
typedef struct {
    char **prefix;
    uint32_t count;
} mcpg_log_list_t;
bool mcpg__log_list_add(mcpg_log_list_t *list, const char *argument, char *error, size_t error_cap);
void mcpg__log_list_free(mcpg_log_list_t *list);

bool mcpg__log_file_load(const char *prefix, mcpg_log_file_t *out, char *error, size_t error_cap);
void mcpg__log_file_free(mcpg_log_file_t *log);
static inline bool mcpg__log_file_has_start(const mcpg_log_file_t *log) {
    return log->segment[0].header.number == 1;
}

/* TORN: the last record is not whole, its writer died in it. DAMAGED: problem says where and what. */
typedef enum { MCPG_LOG_RECORD, MCPG_LOG_END, MCPG_LOG_TORN, MCPG_LOG_DAMAGED } mcpg_log_found_t;
typedef struct {
    const mcpg_log_file_t *log;
    uint32_t segment;
    size_t at;
    uint64_t last_seq;
    mcpg_bytes_t config; /* the machine's, from the first record */
    char problem[256];
} mcpg_log_cursor_t;
/* The CONFIG record of each segment is kept in config and not given out. */
mcpg_log_found_t mcpg__log_next(mcpg_log_cursor_t *cursor, mcpg_record_t *out);

#endif
