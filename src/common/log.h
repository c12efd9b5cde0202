/* log.h: leveled log lines into the context's sink. Lowercase, stable event name first, then fields ("rank 3 epoch 7").
 * Pure code never includes it. MOONCAKE_LOG=error|warn|info|debug sets the level (default warn).
 */
#ifndef MCPG_COMMON_LOG_H
#define MCPG_COMMON_LOG_H

#include "common/base.h"

typedef struct {
    mcpg_log_func_t func; /* NULL: stderr */
    void *user;
    mcpg_log_level_t level;
    char prefix[32]; /* "rank 3" */
} mcpg_log_t;
void mcpg__log_init(mcpg_log_t *log, mcpg_log_func_t func, void *user, const char *prefix);
void mcpg__log(const mcpg_log_t *log, mcpg_log_level_t level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
