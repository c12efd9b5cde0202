/* log.c: formats one log line and hands it to the sink. Never holds a lock, never allocates, never splits a line in two
 * writes. */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LINE_CAP 1024

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static mcpg_log_level_t level_from_environment(void) {
    const char *given = getenv("MOONCAKE_LOG");
    for (unsigned i = 0; given != NULL && i < sizeof level_names / sizeof level_names[0]; i++)
        if (strcasecmp(given, level_names[i]) == 0) return (mcpg_log_level_t)i;
    return MCPG_LOG_WARN;
}

static void to_stderr(mcpg_log_level_t level, const char *line) {
    char out[LINE_CAP + 32];
    int n = snprintf(out, sizeof out, "mooncake-pg %s: %s\n", level_names[level], line);
    if (n < 0) return;
    size_t len = (size_t)n < sizeof out ? (size_t)n : sizeof out - 1;
    ssize_t written = write(STDERR_FILENO, out, len); /* one write: lines of several ranks do not mix */
    (void)written;
}

void mcpg__log_init(mcpg_log_t *log, mcpg_log_func_t func, void *user, const char *prefix) {
    memset(log, 0, sizeof *log);
    log->func = func;
    log->user = user;
    log->level = level_from_environment();
    if (prefix != NULL) snprintf(log->prefix, sizeof log->prefix, "%s", prefix);
}

void mcpg__log(const mcpg_log_t *log, mcpg_log_level_t level, const char *fmt, ...) {
    if (log == NULL || level > log->level) return;
    char line[LINE_CAP];
    size_t at = 0;
    if (log->prefix[0] != '\0') {
        int n = snprintf(line, sizeof line, "%s: ", log->prefix);
        at = n < 0 ? 0 : (size_t)n;
    }
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line + at, sizeof line - at, fmt, args);
    va_end(args);
    if (n < 0) return;
    for (char *c = line; *c != '\0'; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
    if (log->func != NULL)
        log->func(log->user, level, line);
    else
        to_stderr(level, line);
}
