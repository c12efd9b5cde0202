/* tool_run.h: runs a program and keeps what it printed; reads, writes and changes event logs. Everything lies in one
 * fresh folder below /tmp, which is removed at the end. */
#ifndef MCPG_TESTS_TOOLS_TOOL_RUN_H
#define MCPG_TESTS_TOOLS_TOOL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/eventlog.h"

extern char tool_folder[64]; /* set by tool_set_up, which is the group's set-up function; tool_tear_down removes it */
int tool_set_up(void **state);
int tool_tear_down(void **state);
const char *tool_path(const char *name); /* in the folder; valid for the next few calls */

typedef struct {
    int code; /* exit code, or -1 */
    char *out, *err;
} tool_result_t;
/* argv ends with NULL. Bounded: killed after 60 s. The next run or tool_tear_down frees the text. */
tool_result_t tool_run(const char *const *argv);
#define TOOL(...) tool_run((const char *const[]){MOONCAKE_PG, __VA_ARGS__, NULL})
/* Runs a script of the coordinator with --rewrite and --log; script and golden are copied to NAME.script/.golden. */
void tool_log_script(const char *script, const char *name);
bool tool_try_script(const char *script,
                     const char *name); /* false: the script fails by itself, which its own test says */

char *tool_read(const char *path, size_t *len_out); /* with a NUL behind it; the caller frees it */
void tool_write(const char *path, const void *bytes, size_t len);
/* The n-th EVENT record (from 1) with that machine's kind, or of any kind if it is negative: its place. */
size_t tool_find_event(const uint8_t *file, size_t len, int kind, uint32_t n, mcpg_record_t *out);
void tool_fix_crc(uint8_t *file, size_t at); /* of the record there, after it was changed */

#endif
