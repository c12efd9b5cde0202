/* ops_world.h: N data planes in one process with one group over them, for the tests of operations. What the agents
 * would do (links, views, judgements) the test does by hand. Works over the real link layer and over fake_link.c.
 */
#ifndef MCPG_TESTS_OPS_WORLD_H
#define MCPG_TESTS_OPS_WORLD_H

#include <pthread.h>

#include "dataplane/dp.h"

#define WORLD_MAX 8u
#define WORLD_GID 7u

typedef struct {
    uint32_t rank;
    mcpg_gid_t gid;
    uint64_t id, seq;
    uint32_t count;
    mcpg_member_t failed[WORLD_MAX];
} world_report_t;

typedef struct world {
    uint32_t n, capacity;
    bool manual;
    uint64_t epoch;
    mcpg_dp_t *dp[WORLD_MAX];
    mcpg_incarnation_t inc[WORLD_MAX];
    struct world_seat {
        struct world *w;
        uint32_t rank;
    } seat[WORLD_MAX];
    pthread_mutex_t lock;
    world_report_t reports[4096];
    uint32_t report_count, resolved;
} world_t;

typedef struct {
    const char *transports; /* NULL: the default */
    bool manual, isolated, no_view;
    uint64_t collective_timeout_us; /* 0: 30 s */
    uint32_t capacity;              /* 0: n */
} world_config_t;

world_t *world_new(uint32_t n, const world_config_t *config);
void world_free(world_t *w);
void world_group(world_t *w, uint32_t gid, bool isolated); /* opens one more group at every rank */
/* A COMMIT of group gid at one rank: active slots as bits. */
void world_commit(world_t *w, uint32_t rank, uint32_t gid, uint64_t epoch, uint32_t active, uint64_t switch_seq,
                  const mcpg_leave_t *leaves, uint32_t leave_count, bool sync);
void world_restart(world_t *w, uint32_t rank, const world_config_t *config); /* a new process in that rank */
mcpg_dp_work_t *world_submit(world_t *w, uint32_t rank, const mcpg_op_t *op);
mcpg_status_t world_try(world_t *w, uint32_t rank, uint32_t gid, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error,
                        size_t cap);
/* Resolves what was reported, waits up to 20 s, releases nothing. */
mcpg_status_t world_wait(world_t *w, mcpg_dp_work_t *work);
uint64_t world_hold(mcpg_dp_t *dp, mcpg_gid_t gid, bool *steps_out); /* NULL: not asked */
uint32_t world_settle(world_t *w);                                   /* resolves new reports with OK; how many */
mcpg_op_t world_allreduce(float *in, float *out, size_t count);
uint32_t world_hints(const mcpg_dp_work_t *work); /* bits */

#endif
