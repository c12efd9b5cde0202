/* op_end.c: how an operation ends: everything arrived, or it was ended from outside (timeout, abort, SYNCING, removal).
 *
 * Works out hints and the report of a failure, and what waits for the judgement. Never changes membership and never
 * decides that a rank is dead: it says what it saw (contract D3).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

#define OWED_MAX 65536u

static bool auto_sync(const mcpg_dpgroup_t *g) {
    return !g->manual && !g->no_auto_sync;
}

/* Hints and the group's pending failure. Returns how many members go into the report. */
static uint32_t settle_hints(mcpg_exec_t *x, mcpg_member_t *failed) {
    mcpg_dp_work_t *w = x->work;
    mcpg_dpgroup_t *g = x->group;
    uint32_t count = 0;
    bool any = false;
    for (uint32_t i = 0; i < x->view->count; i++) {
        const mcpg_xp_t state = (mcpg_xp_t)x->member_state[i];
        if (state == MCPG_XP_OK) continue;
        const uint32_t slot = x->view->m[i].slot.v;
        any = true;
        if (slot < w->capacity) w->hint[slot] = 1;
        /* A rank that only ended its side is alive: naming it would make sync_after_failure blame it. */
        if (state != MCPG_XP_LEFT) mcpg__rankset_add(&g->failed, slot);
        if (state == MCPG_XP_FAILED) failed[count++] = x->view->m[i];
    }
    if (any) {
        w->local_success = false;
        if (w->seq < g->first_failed_seq) g->first_failed_seq = w->seq;
    }
    return count;
}

static void detach(mcpg_dp_work_t *w) {
    mcpg_exec_t *x = w->exec;
    if (!x->p2p) x->group->running--;
    w->exec = NULL;
    mcpg__exec_unready(x);
    mcpg__exec_put(x);
}

static void complete(mcpg_dp_work_t *w) {
    mcpg_dpgroup_t *g = w->group;
    if (mcpg__op_is_p2p(w->op.kind)) {
        mcpg__p2p_complete(w);
    } else {
        mcpg__group_complete(g);
    }
}

void mcpg__op_finish(mcpg_exec_t *x) {
    mcpg_dp_work_t *w = x->work;
    mcpg_dpgroup_t *g = x->group;
    mcpg_dp_t *dp = g->dp;
    mcpg_member_t failed[MCPG_MAX_RANKS];
    const uint32_t count = settle_hints(x, failed);
    if (x->status != MCPG_OK) mcpg__work_fail(w, x->status, "%s", x->error);
    /* What a hinted or disagreeing peer still sends for this number is dropped in time. */
    if (!w->local_success) g->dirty = true;
    detach(w);
    if (count != 0) w->report_id = auto_sync(g) ? ++dp->report_next : 0;
    mcpg__work_set_state(w, w->report_id != 0 ? MCPG_W_JUDGING : MCPG_W_DONE);
    const bool waits = w->report_id != 0, p2p = mcpg__op_is_p2p(w->op.kind);
    if (count != 0) mcpg__engine_tell_op_failed(dp->engine, g->gid, w->report_id, w->seq, failed, count);
    if (!waits) complete(w);
    if (!p2p) mcpg__group_start_ready(g);
}

void mcpg__op_resolve(mcpg_dp_work_t *w, mcpg_status_t status) {
    if (status != MCPG_OK && w->status == MCPG_OK) {
        mcpg__work_fail(
            w, status,
            "%s number %llu had failed ranks and %s: check the job's coordinator, then create the group again",
            mcpg_op_name(w->op.kind), (unsigned long long)w->seq, mcpg_status_text(status));
    }
    w->report_id = 0;
    mcpg__work_set_state(w, MCPG_W_DONE);
}

/* Peers that still need this rank in the operation must not wait for it. SYNCING needs no word: all ranks are told by
 * the coordinator, and a rank that has not heard yet must not take this one for failed. */
void mcpg__op_say_left(mcpg_exec_t *x, const mcpg_member_t *peers, uint32_t count) {
    mcpg_msg_key_t key = x->key;
    if (x->p2p) key.flags |= x->work->op.kind == MCPG_OP_SEND ? MCPG_KEY_LEFT_SEND : MCPG_KEY_LEFT_RECV;
    mcpg__link_leave(x->dp->engine, &key, peers, count);
}

static void say_left(mcpg_exec_t *x) {
    if (x->view == x->group->self_view) return;
    const int32_t member = x->p2p ? mcpg__view_find(x->view, x->work->op.peer) : 0;
    if (member >= 0) mcpg__op_say_left(x, &x->view->m[member], x->p2p ? 1u : x->view->count);
}

static void end_running(mcpg_dp_work_t *w, bool quiet) {
    mcpg_exec_t *x = w->exec;
    mcpg_dpgroup_t *g = x->group;
    if (!quiet) say_left(x);
    x->coll->stop(x);
    mcpg_member_t failed[MCPG_MAX_RANKS];
    const uint32_t count = x->rows_used == 0 ? 0 : settle_hints(x, failed);
    if (count != 0) mcpg__engine_tell_op_failed(x->dp->engine, g->gid, 0, w->seq, failed, count);
    g->dirty = true;
    detach(w);
}

static void leave_now(mcpg_dpgroup_t *g, uint64_t seq) {
    const mcpg_dpview_t *v = mcpg__view_of(g, seq);
    if (v == g->self_view || !mcpg__view_runs(g, v, seq)) return;
    mcpg_msg_key_t key;
    memset(&key, 0, sizeof key);
    key.gid = g->gid.v;
    key.view_term = v->id.term;
    key.view_epoch = v->id.epoch;
    key.seq = seq;
    mcpg__link_leave(g->dp->engine, &key, v->m, v->count);
}

void mcpg__op_leave_number(mcpg_dpgroup_t *g, uint64_t seq) {
    if (!mcpg__group_held(g) || (g->newest != NULL && seq < g->hold_seq)) {
        leave_now(g, seq);
        return;
    }
    if (g->owed_count == OWED_MAX) return; /* the others find out by their own timeout */
    if (g->owed_count == g->owed_cap) {
        const uint32_t cap = g->owed_cap == 0 ? 16u : g->owed_cap * 2u;
        uint64_t *grown = (uint64_t *)realloc(g->owed, cap * sizeof *grown);
        if (grown == NULL) return; /* the others find out by their own timeout */
        g->owed = grown;
        g->owed_cap = cap;
    }
    g->owed[g->owed_count++] = seq;
}

void mcpg__op_leave_owed(mcpg_dpgroup_t *g) {
    for (uint32_t i = 0; i < g->owed_count; i++) leave_now(g, g->owed[i]);
    g->owed_count = 0;
}

void mcpg__op_end(mcpg_dp_work_t *w, mcpg_status_t status, const char *why) {
    mcpg_dpgroup_t *g = w->group;
    const mcpg_wstate_t state = mcpg__work_state(w);
    const bool quiet = status == MCPG_OK; /* SYNCING */
    MCPG_ASSERT(state == MCPG_W_WAITING || state == MCPG_W_RUNNING || state == MCPG_W_JUDGING);
    if (state == MCPG_W_RUNNING) {
        end_running(w, quiet);
    } else if (state == MCPG_W_WAITING && !quiet && status != MCPG_NOT_ACTIVE && status != MCPG_ROOT_NOT_ACTIVE) {
        if (!mcpg__op_is_p2p(w->op.kind)) mcpg__op_leave_number(g, w->seq);
    }
    w->local_success = false;
    w->report_id = 0;
    if (status != MCPG_OK && w->status == MCPG_OK)
        mcpg__work_fail(w, status, "%s", why == NULL ? mcpg_status_text(status) : why);
    mcpg__work_set_state(w, MCPG_W_DONE);
}
