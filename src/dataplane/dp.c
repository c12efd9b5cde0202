/* dp.c: the data plane as one object: made of one engine, its groups, and the turn that operations get when links
 * moved. Never holds the engine lock while it calls anything outside.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

mcpg_dpgroup_t *mcpg__dp_group(const mcpg_dp_t *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = dp->buckets[gid.v % MCPG_GROUP_BUCKETS];
    while (g != NULL && g->gid.v != gid.v) g = g->next;
    return g;
}

void mcpg__dp_arm(mcpg_dp_t *dp, uint64_t at_us) {
    if (at_us >= dp->deadline_us) return;
    dp->deadline_us = at_us;
    dp->kick = true; /* the driver sleeps towards a later time */
}

void mcpg__dp_turn(mcpg_dp_t *dp) {
    dp->turn_bytes = 0;
    while (dp->ready != NULL && dp->turn_bytes < MCPG_TURN_BYTES) {
        mcpg_exec_t *x = dp->ready;
        dp->ready = x->next;
        if (dp->ready == NULL) dp->ready_end = &dp->ready;
        x->queued = false;
        x->coll->progress(x);
    }
    if (dp->ready != NULL) mcpg__engine_kick(dp->engine);
}

void mcpg__dp_unlock(mcpg_dp_t *dp) {
    mcpg__dp_turn(dp);
    const bool kick = dp->kick;
    dp->kick = false;
    dp->news |= kick;
    mcpg__engine_unlock(dp->engine);
    if (kick) mcpg__engine_kick(dp->engine);
}

bool mcpg__dp_wait(mcpg_dp_t *dp, bool (*done)(void *arg), void *arg, uint64_t deadline_us) {
    mcpg__dp_turn(dp);
    dp->waiting++;
    const bool result = mcpg__engine_wait(dp->engine, done, arg, deadline_us);
    dp->waiting--;
    return result;
}

static uint64_t group_timers(mcpg_dpgroup_t *g, uint64_t now_us) {
    uint64_t earliest = MCPG_NO_SEQ;
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next) {
        const uint64_t at = mcpg__op_timer(w, now_us);
        if (at < earliest) earliest = at;
    }
    for (mcpg_dp_work_t *w = g->p2p_head, *next; w != NULL; w = next) {
        next = w->next;
        const uint64_t at = mcpg__op_timer(w, now_us);
        if (at < earliest) earliest = at;
        if (mcpg__work_state(w) == MCPG_W_DONE) mcpg__p2p_complete(w);
    }
    mcpg__group_start_ready(g);
    return earliest;
}

static bool progress_hook(void *user, uint64_t now_us) {
    mcpg_dp_t *dp = (mcpg_dp_t *)user;
    bool moved = dp->ready != NULL;
    if (now_us >= dp->deadline_us) {
        dp->deadline_us = MCPG_NO_SEQ;
        for (uint32_t b = 0; b < MCPG_GROUP_BUCKETS; b++) {
            for (mcpg_dpgroup_t *g = dp->buckets[b]; g != NULL; g = g->next) {
                const uint64_t at = group_timers(g, now_us);
                if (at < dp->deadline_us) dp->deadline_us = at;
            }
        }
        moved = true;
    }
    mcpg__dp_turn(dp);
    moved |= dp->news || dp->kick || dp->ready != NULL;
    dp->news = dp->kick = false; /* this is the driver */
    return moved;
}

static uint64_t deadline_hook(void *user) {
    return ((const mcpg_dp_t *)user)->deadline_us;
}

/* Transfers end by themselves with the reason; operations that start later ask the link. */
static void link_changed_hook(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_link_st_t state) {
    (void)user;
    (void)rank;
    (void)inc;
    (void)state;
}

mcpg_status_t mcpg__dp_create(const mcpg_dp_config_t *config, mcpg_dp_t **out, char *error, size_t error_cap) {
    mcpg_dp_t *dp = (mcpg_dp_t *)calloc(1, sizeof *dp);
    if (dp == NULL) return MCPG_NO_MEMORY;
    dp->rank = config->rank;
    dp->log = config->log;
    dp->collective_timeout_us = config->collective_timeout_us;
    dp->p2p_timeout_us = config->p2p_timeout_us;
    dp->deadline_us = MCPG_NO_SEQ;
    dp->ready_end = &dp->ready;
    mcpg_status_t status = MCPG_NO_MEMORY;
    dp->core = mcpg__core_new();
    if (dp->core == NULL) goto err_free;
    const mcpg_engine_config_t engine = {
        .rank = config->rank,
        .host_id = config->host_id,
        .host_ip = config->host_ip,
        .transports = config->transports,
        .hooks = {dp, progress_hook, deadline_hook, link_changed_hook, mcpg__dp_unlocked_hook, mcpg__op_stray_hook},
        .log = config->log,
    };
    status = mcpg__engine_create(&engine, &dp->engine, error, error_cap);
    if (status != MCPG_OK) goto err_core;
    *out = dp;
    return MCPG_OK;
err_core:
    mcpg__core_release(dp->core);
err_free:
    free(dp);
    return status;
}

static void close_groups(mcpg_dp_t *dp) {
    for (uint32_t b = 0; b < MCPG_GROUP_BUCKETS; b++) {
        while (dp->buckets[b] != NULL)
            mcpg__group_close(dp->buckets[b], MCPG_SHUTTING_DOWN,
                              "the context was destroyed while the operation was outstanding: wait for it first");
    }
}

static void free_execs(mcpg_exec_t *list) {
    while (list != NULL) {
        mcpg_exec_t *x = list;
        list = x->next;
        mcpg__exec_free(x);
    }
}

void mcpg__dp_destroy(mcpg_dp_t *dp) {
    if (dp == NULL) return;
    mcpg__engine_lock(dp->engine);
    close_groups(dp);
    mcpg__dp_unlock(dp);
    mcpg__engine_destroy(dp->engine);
    while (mcpg__dp_unlocked_hook(dp)) continue; /* bounded: the callbacks of works that just ended */
    free_execs(dp->free_coll);
    free_execs(dp->free_p2p);
    mcpg__scratch_free_all(dp);
    mcpg__core_release(dp->core);
    free(dp);
}

void mcpg__dp_set_observer(mcpg_dp_t *dp, const mcpg_dp_observer_t *observer) {
    mcpg__engine_set_observer(dp->engine, observer);
}

void mcpg__dp_set_incarnation(mcpg_dp_t *dp, mcpg_incarnation_t own) {
    mcpg__engine_set_incarnation(dp->engine, own);
    mcpg__engine_lock(dp->engine);
    dp->inc = own;
    mcpg__dp_unlock(dp);
}

size_t mcpg__dp_endpoint(const mcpg_dp_t *dp, uint8_t *buf, size_t cap) {
    return mcpg__engine_endpoint(dp->engine, buf, cap);
}

void mcpg__dp_set_timeouts(mcpg_dp_t *dp, uint64_t collective_us, uint64_t p2p_us) {
    mcpg__engine_lock(dp->engine);
    dp->collective_timeout_us = collective_us;
    dp->p2p_timeout_us = p2p_us;
    mcpg__dp_unlock(dp);
}
