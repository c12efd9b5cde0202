/* executor.h: one thread, one bounded queue, one timer: the serialized executor under both hosts.
 *
 * Nothing that can block may run in a handler. Posting never blocks: a full queue is BUSY. There is no idle tick: the
 * thread sleeps until a post or the armed time. Never used for data.
 */
#ifndef MCPG_COMMON_EXECUTOR_H
#define MCPG_COMMON_EXECUTOR_H

#include "common/base.h"

typedef struct mcpg_executor mcpg_executor_t;

typedef struct {
    uint32_t kind; /* caller's meaning */
    uint64_t a, b, c, d;
    const uint8_t *bytes; /* copied by post, valid during the handler */
    size_t len;
} mcpg_exec_item_t;

typedef struct {
    const char *thread_name; /* <= 15 characters */
    uint32_t queue_cap;      /* items; 4,096 when 0 */
    size_t slab_cap;         /* bytes of payload that may wait; 4 MiB when 0 */
    void *user;
    void (*item)(void *user, const mcpg_exec_item_t *item);
    void (*timer)(void *user, mcpg_time_t now);
} mcpg_executor_config_t;

MCPG_MUST_USE mcpg_status_t mcpg__executor_start(const mcpg_executor_config_t *config, mcpg_executor_t **out);
/* BUSY: full. SHUTTING_DOWN: after stop began. Any thread, also from a handler. */
MCPG_MUST_USE mcpg_status_t mcpg__executor_post(mcpg_executor_t *executor, const mcpg_exec_item_t *item);
/* Handler thread only: one armed time, UINT64_MAX disarms. */
void mcpg__executor_arm(mcpg_executor_t *executor, mcpg_time_t at);
bool mcpg__executor_is_current(const mcpg_executor_t *executor);
/* Runs what is queued, joins the thread, frees. Not from a handler. NULL allowed. */
void mcpg__executor_stop(mcpg_executor_t *executor);
mcpg_time_t mcpg__now(void); /* CLOCK_MONOTONIC */

#endif
