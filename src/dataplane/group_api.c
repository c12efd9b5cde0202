/* group_api.c: what src/api asks of a group: safe points, pending failures, draining, abort. A waiting call drives the
 * engine and looks the group up again each time: it may be gone meanwhile. Never changes membership.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane/coll.h"

typedef struct {
    mcpg_dp_t *dp;
    mcpg_gid_t gid;
} named_t;

static mcpg_dpgroup_t *enter(mcpg_dp_t *dp, mcpg_gid_t gid) {
    mcpg__engine_lock(dp->engine);
    return mcpg__dp_group(dp, gid);
}

static uint64_t until(uint64_t timeout_us) {
    const uint64_t now = mcpg__now().us;
    return timeout_us > MCPG_NO_SEQ - now ? MCPG_NO_SEQ : now + timeout_us;
}

mcpg_status_t mcpg__dp_set_mirror(mcpg_dp_t *dp, mcpg_gid_t gid, int32_t *mirror) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        g->mirror = mirror;
        mcpg__group_write_mirror(g);
    }
    mcpg__dp_unlock(dp);
    return g != NULL ? MCPG_OK : MCPG_NOT_FOUND;
}

mcpg_status_t mcpg__dp_set_group_timeout(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) g->timeout_us = timeout_us;
    mcpg__dp_unlock(dp);
    return g != NULL ? MCPG_OK : MCPG_NOT_FOUND;
}

mcpg_status_t mcpg__dp_next_view(mcpg_dp_t *dp, mcpg_gid_t gid, uint32_t *extent_out, bool *isolated_out,
                                 uint64_t *next_seq_out) {
    const mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        const uint64_t next = mcpg__group_next(g);
        const mcpg_dpview_t *v = mcpg__view_of(g, next);
        *extent_out = v == NULL || v->count == 0 ? 0 : v->m[v->count - 1u].slot.v + 1u;
        *isolated_out = g->isolated;
        *next_seq_out = next;
    }
    mcpg__dp_unlock(dp);
    return g != NULL ? MCPG_OK : MCPG_NOT_FOUND;
}

static bool not_held(void *arg) {
    const named_t *n = (const named_t *)arg;
    const mcpg_dpgroup_t *g = mcpg__dp_group(n->dp, n->gid);
    return g == NULL || g->ended != MCPG_OK || g->doubted || !mcpg__group_held(g);
}

static void fill_view(const mcpg_dpgroup_t *g, const mcpg_dpview_t *v, uint64_t next, mcpg_view_t *out) {
    memset(out, 0, sizeof *out);
    out->term = v->id.term;
    out->epoch = v->id.epoch;
    out->start_seq = next;
    out->slot_count = g->capacity;
    for (uint32_t i = 0; i < v->count; i++) {
        out->active[v->m[i].slot.v] = 1;
        out->incarnation[v->m[i].slot.v] = v->m[i].inc.counter;
    }
}

mcpg_status_t mcpg__dp_safe_point(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_view_t *out) {
    named_t named = {dp, gid};
    mcpg_dpgroup_t *g = enter(dp, gid);
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (g != NULL) {
        g->steps = true;
        (void)mcpg__dp_wait(dp, not_held, &named, MCPG_NO_SEQ);
        g = mcpg__dp_group(dp, gid);
        status = g == NULL ? MCPG_NOT_FOUND : g->ended;
        if (status == MCPG_OK && g->doubted) status = MCPG_IN_DOUBT;
    }
    if (status == MCPG_OK) {
        const uint64_t step = UINT64_C(1) << MCPG_STEP_SHIFT;
        const uint64_t next = (mcpg__group_next(g) + step - 1u) & ~(step - 1u);
        mcpg__group_set_next(g, next);
        mcpg__group_clear_failure(g);
        mcpg__group_forget(g);
        fill_view(g, mcpg__view_of(g, next), next, out);
        mcpg__view_prune(g);
    }
    mcpg__dp_unlock(dp);
    return status;
}

mcpg_status_t mcpg__dp_pending_failure(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_rankset_t *failed_out,
                                       uint64_t *first_seq_out, bool *fenced_out) {
    const mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        *failed_out = g->failed;
        *first_seq_out = g->first_failed_seq;
        *fenced_out = g->fenced;
    }
    mcpg__dp_unlock(dp);
    return g != NULL ? MCPG_OK : MCPG_NOT_FOUND;
}

mcpg_status_t mcpg__dp_sync_done(mcpg_dp_t *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        g->fenced = false;
        mcpg__group_clear_failure(g);
        mcpg__group_start_ready(g);
    }
    mcpg__dp_unlock(dp);
    return g != NULL ? MCPG_OK : MCPG_NOT_FOUND;
}

static bool is_drained(void *arg) {
    const named_t *n = (const named_t *)arg;
    const mcpg_dpgroup_t *g = mcpg__dp_group(n->dp, n->gid);
    return g == NULL || g->outstanding == 0;
}

mcpg_status_t mcpg__dp_quiesce(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us) {
    named_t named = {dp, gid};
    mcpg_dpgroup_t *g = enter(dp, gid);
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (g != NULL) {
        g->quiescing = true;
        const bool drained = mcpg__dp_wait(dp, is_drained, &named, until(timeout_us));
        g = mcpg__dp_group(dp, gid);
        status = g == NULL ? MCPG_NOT_FOUND : drained ? MCPG_OK : MCPG_TIMED_OUT;
    }
    mcpg__dp_unlock(dp);
    return status;
}

void mcpg__dp_resume(mcpg_dp_t *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) g->quiescing = false;
    mcpg__dp_unlock(dp);
}

void mcpg__dp_abort(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_status_t status, const char *why) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL && g->ended == MCPG_OK) {
        g->ended = status == MCPG_OK ? MCPG_ABORTED : status;
        (void)snprintf(g->ended_why, sizeof g->ended_why, "the group was aborted: %s",
                       why == NULL || why[0] == '\0' ? "no reason given" : why);
        mcpg__group_end_all(g, g->ended, g->ended_why, true, MCPG_NO_SEQ);
        dp->kick = true;
    }
    mcpg__dp_unlock(dp);
}

static bool has_left(const mcpg_dp_work_t *list) {
    for (const mcpg_dp_work_t *w = list; w != NULL; w = w->next) {
        const mcpg_wstate_t state = mcpg__work_state(w);
        const mcpg_exec_t *x = w->exec;
        if (state == MCPG_W_RUNNING && (x->sends_pending != 0 || x->next_chunk < x->chunks)) return false;
        if (state == MCPG_W_WAITING && w->op.kind != MCPG_OP_RECV) return false;
    }
    return true;
}

static bool is_flushed(void *arg) {
    const named_t *n = (const named_t *)arg;
    const mcpg_dpgroup_t *g = mcpg__dp_group(n->dp, n->gid);
    return g == NULL || (has_left(g->head) && has_left(g->p2p_head));
}

mcpg_status_t mcpg__dp_flush(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us) {
    named_t named = {dp, gid};
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (enter(dp, gid) != NULL) {
        const bool flushed = mcpg__dp_wait(dp, is_flushed, &named, until(timeout_us));
        status = flushed ? MCPG_OK : MCPG_TIMED_OUT;
    }
    mcpg__dp_unlock(dp);
    return status;
}
