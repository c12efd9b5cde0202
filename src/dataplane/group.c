/* group.c: a group's lists of works: what may start, what completes in which order, and the end of all of them.
 *
 * Numbers and the hold are one word (design.md 4.3 rule 1). Never looks inside a running operation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

#define FORGET_EVERY 64u /* numbers: walking the kept messages costs microseconds */

void mcpg__group_set_next(mcpg_dpgroup_t *g, uint64_t next) {
    const uint64_t hold = atomic_load_explicit(&g->word, memory_order_relaxed) & MCPG_HOLD_BIT;
    atomic_store_explicit(&g->word, next | hold, memory_order_relaxed);
}

static bool may_start(const mcpg_dpgroup_t *g, const mcpg_dp_work_t *w) {
    if (mcpg__group_held(g) && (g->newest == NULL || w->seq >= g->hold_seq)) return false;
    if (g->running == 0) return true;
    return g->running < MCPG_RUN_MAX && g->scratch_used < MCPG_GROUP_SCRATCH_MAX;
}

void mcpg__group_start_ready(mcpg_dpgroup_t *g) {
    while (g->next_start != NULL) { /* bounded: each turn passes one work */
        mcpg_dp_work_t *w = g->next_start;
        if (mcpg__work_state(w) == MCPG_W_WAITING) {
            if (!may_start(g, w)) break;
            g->next_start = w->next;
            mcpg__op_start(w);
        } else {
            g->next_start = w->next;
        }
    }
    mcpg__group_complete(g);
}

void mcpg__group_forget(mcpg_dpgroup_t *g) {
    if (!g->dirty || g->newest == NULL || g->isolated) return;
    uint64_t below = mcpg__group_next(g);
    /* Not just the oldest: after a return to the group, what was issued before it has the higher numbers. */
    for (const mcpg_dp_work_t *w = g->head; w != NULL; w = w->next)
        if (w->seq < below) below = w->seq;
    g->dirty = false;
    g->forgotten = below;
    mcpg__link_forget(g->dp->engine, g->gid.v, g->newest->id, below);
}

void mcpg__group_complete(mcpg_dpgroup_t *g) {
    while (g->head != NULL && mcpg__work_state(g->head) == MCPG_W_DONE) {
        mcpg_dp_work_t *w = g->head;
        g->head = w->next;
        if (g->head != NULL) {
            g->head->prev = NULL;
        } else {
            g->tail = NULL;
        }
        if (g->next_start == w) g->next_start = w->next;
        w->next = NULL;
        g->outstanding--;
        mcpg__work_complete(w);
    }
    if (g->dirty && mcpg__group_next(g) - g->forgotten >= FORGET_EVERY) mcpg__group_forget(g);
}

static bool can_end(const mcpg_dp_work_t *w, bool include_judging) {
    const mcpg_wstate_t state = mcpg__work_state(w);
    return state == MCPG_W_WAITING || state == MCPG_W_RUNNING || (include_judging && state == MCPG_W_JUDGING);
}

void mcpg__group_end_all(mcpg_dpgroup_t *g, mcpg_status_t status, const char *why, bool include_judging,
                         uint64_t below) {
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next)
        if (w->seq < below && can_end(w, include_judging)) mcpg__op_end(w, status, why);
    for (mcpg_dp_work_t *w = g->p2p_head, *next; w != NULL; w = next) {
        next = w->next;
        if (!can_end(w, include_judging)) continue;
        mcpg__op_end(w, status, why);
        mcpg__p2p_complete(w);
    }
    mcpg__group_complete(g);
}

void mcpg__group_clear_failure(mcpg_dpgroup_t *g) {
    mcpg__rankset_clear(&g->failed);
    g->first_failed_seq = MCPG_NO_SEQ;
}

void mcpg__group_write_mirror(const mcpg_dpgroup_t *g) {
    if (g->mirror == NULL || g->newest == NULL) return;
    uint32_t at = 0;
    for (uint32_t slot = 0; slot < g->capacity; slot++) {
        const bool active = at < g->newest->count && g->newest->m[at].slot.v == slot;
        if (active) at++;
        __atomic_store_n(&g->mirror[slot], active ? 1 : 0, __ATOMIC_RELAXED);
    }
}

mcpg_dpgroup_t *mcpg__group_new(mcpg_dp_t *dp, const mcpg_dp_group_config_t *c) {
    if (c->capacity == 0 || c->capacity > MCPG_MAX_RANKS || c->slot.v >= c->capacity) return NULL;
    mcpg_dpgroup_t *g = (mcpg_dpgroup_t *)calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    const mcpg_member_t self = {c->slot, dp->rank, dp->inc};
    g->self_view = mcpg__view_new(&self, 1);
    if (g->self_view == NULL) {
        free(g);
        return NULL;
    }
    g->dp = dp;
    g->gid = c->gid;
    g->slot = c->slot;
    g->capacity = c->capacity;
    g->isolated = c->isolated;
    g->manual = c->manual;
    g->no_auto_sync = c->no_auto_sync;
    g->ended = MCPG_OK;
    atomic_init(&g->word, 0u);
    mcpg__group_clear_failure(g);
    return g;
}

void mcpg__group_close(mcpg_dpgroup_t *g, mcpg_status_t status, const char *why) {
    mcpg_dp_t *dp = g->dp;
    mcpg_dpgroup_t **at = &dp->buckets[g->gid.v % MCPG_GROUP_BUCKETS];
    mcpg__group_end_all(g, status, why, true, MCPG_NO_SEQ);
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    MCPG_ASSERT(g->outstanding == 0);
    mcpg__link_forget_group(dp->engine, g->gid.v);
    mcpg__p2p_free(g);
    mcpg__view_free_all(g);
    free(g->owed);
    free(g);
    dp->kick = true; /* whoever waits for the group must look again */
}
