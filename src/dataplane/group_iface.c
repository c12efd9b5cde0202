/* group_iface.c: what the agent host does to groups (dp_iface.h): open, close, hold, install a view, fence, resolve.
 *
 * Each call takes the engine lock, returns promptly and calls nobody back. Unknown groups and older views are ignored.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane/coll.h"

static mcpg_dpgroup_t *enter(void *dp, mcpg_gid_t gid) {
    mcpg__engine_lock(((mcpg_dp_t *)dp)->engine);
    return mcpg__dp_group((mcpg_dp_t *)dp, gid);
}

static void leave(void *dp) {
    mcpg__dp_unlock((mcpg_dp_t *)dp);
}

static void open_link(void *dp, const mcpg_dp_peer_t *peer) {
    mcpg__engine_open_link(((mcpg_dp_t *)dp)->engine, peer);
}

static void close_link(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    mcpg__engine_close_link(((mcpg_dp_t *)dp)->engine, rank, inc, dead);
}

static void check_link(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    mcpg__engine_check_link(((mcpg_dp_t *)dp)->engine, rank, inc, check_id);
}

static void ask_view(void *dp, mcpg_gid_t gid, mcpg_view_id_t view) {
    mcpg__engine_ask_view(((mcpg_dp_t *)dp)->engine, gid, view);
}

static void tell_view(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes, size_t len) {
    mcpg__engine_tell_view(((mcpg_dp_t *)dp)->engine, rank, inc, bytes, len);
}

static void group_open(void *vdp, const mcpg_dp_group_config_t *config) {
    mcpg_dp_t *dp = (mcpg_dp_t *)vdp;
    if (enter(dp, config->gid) == NULL) {
        mcpg_dpgroup_t *g = mcpg__group_new(dp, config);
        if (g == NULL) {
            mcpg__log(&dp->log, MCPG_LOG_ERROR, "group_open_failed group %u slot %u capacity %u", config->gid.v,
                      config->slot.v, config->capacity);
        } else {
            g->next = dp->buckets[g->gid.v % MCPG_GROUP_BUCKETS];
            dp->buckets[g->gid.v % MCPG_GROUP_BUCKETS] = g;
        }
    }
    leave(dp);
}

static void group_close(void *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL)
        mcpg__group_close(g, MCPG_ABORTED,
                          "the group was destroyed while the operation was outstanding: wait for it first");
    leave(dp);
}

static uint64_t hold(void *dp, mcpg_gid_t gid, bool *steps_out) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    uint64_t next = 0;
    if (g != NULL) {
        const uint64_t before = atomic_fetch_or_explicit(&g->word, MCPG_HOLD_BIT, memory_order_relaxed);
        /* Held already: nothing from hold_seq on has run. Before the first view nothing has run at all. */
        if ((before & MCPG_HOLD_BIT) == 0) g->hold_seq = g->newest == NULL && g->head != NULL ? g->head->seq : before;
        next = g->isolated ? before & ~MCPG_HOLD_BIT : g->hold_seq;
    }
    *steps_out = g != NULL && g->steps;
    leave(dp);
    return next;
}

static void release_hold(void *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        atomic_fetch_and_explicit(&g->word, ~MCPG_HOLD_BIT, memory_order_relaxed);
        g->doubted = false;
        mcpg__op_leave_owed(g);
        mcpg__group_start_ready(g);
        ((mcpg_dp_t *)dp)->kick = true; /* a safe point may wait for this */
    }
    leave(dp);
}

/* Running operations of older views: whoever has left by their number is not waited for; this rank's own end if it has
 * left itself. */
static void apply_departures(mcpg_dpgroup_t *g) {
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next) {
        if (mcpg__work_state(w) != MCPG_W_RUNNING) continue;
        mcpg_exec_t *x = w->exec;
        if (!mcpg__view_runs(g, x->view, w->seq)) {
            mcpg__op_end(
                w, MCPG_NOT_ACTIVE,
                "this rank was deactivated before the operation completed: call join_group to be activated again");
            continue;
        }
        for (uint32_t i = 0; i < x->view->count; i++)
            if (x->view->leave_seq[i] <= w->seq && x->coll->waits_for(x, i)) x->coll->drop(x, i, MCPG_XP_GONE);
    }
    mcpg__p2p_view_changed(g);
}

static bool own_is_in(const mcpg_dpgroup_t *g, const mcpg_dpview_t *v) {
    const int32_t own = v == NULL ? -1 : mcpg__view_find(v, g->slot.v);
    return own >= 0 && mcpg__inc_eq(v->m[own].inc, g->dp->inc);
}

/* Held numbers that were taken while this rank was not active: when it comes back, other operations get them. */
static void refuse_stale(mcpg_dpgroup_t *g) {
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next) {
        if (mcpg__work_state(w) != MCPG_W_WAITING || mcpg__view_runs(g, mcpg__view_of(g, w->seq), w->seq)) continue;
        mcpg__op_end(w, MCPG_NOT_ACTIVE, "the operation was issued before this rank became active: issue it again");
    }
}

/* An acknowledgement promised not to run them in the old view, and there is no other one for them here: the views
 * between may never have come. */
static void refuse_held(mcpg_dpgroup_t *g) {
    if (!mcpg__group_held(g) || g->isolated || own_is_in(g, g->newest)) return;
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next) {
        if (mcpg__work_state(w) != MCPG_W_WAITING || w->seq < g->hold_seq) continue;
        mcpg__op_end(w, MCPG_NOT_ACTIVE,
                     "this rank was deactivated before the operation started: call join_group to be activated again");
    }
}

static void install(mcpg_dpgroup_t *g, const mcpg_down_commit_t *c) {
    const bool was_in = own_is_in(g, g->newest);
    if (!was_in && g->newest != NULL && !g->isolated) refuse_stale(g);
    if (mcpg__view_add(g, c) != MCPG_OK) {
        g->ended = MCPG_NO_MEMORY;
        (void)snprintf(g->ended_why, sizeof g->ended_why,
                       "no memory for the group's new view: free some and create the group again");
        mcpg__group_end_all(g, g->ended, g->ended_why, true, MCPG_NO_SEQ);
        return;
    }
    mcpg__group_write_mirror(g);
    refuse_held(g);
    const bool joined = own_is_in(g, g->newest) && !was_in;
    const bool first = joined && !g->isolated && g->newest->older == NULL && c->switch_seq == 0;
    if (joined && g->isolated)
        mcpg__group_end_all(g, MCPG_OK, NULL, true, MCPG_NO_SEQ); /* numbers of {self} mean nothing now */
    if (c->sync && !g->isolated) {
        mcpg__group_end_all(g, MCPG_OK, NULL, false, c->switch_seq);
        mcpg__group_clear_failure(g);
        g->fenced = false;
        g->dirty = true;
    }
    if (g->newest->older != NULL || joined) mcpg__p2p_forget(g, joined || c->sync);
    if (joined) {
        g->isolated = false;
        g->fenced = false;
        mcpg__group_clear_failure(g);
    }
    if ((joined && !first) || (c->sync && mcpg__group_next(g) < c->switch_seq)) mcpg__group_set_next(g, c->switch_seq);
    if (!g->isolated) g->quiescing = false;
    g->doubted = false;
    atomic_fetch_and_explicit(&g->word, ~MCPG_HOLD_BIT, memory_order_relaxed);
    mcpg__op_leave_owed(g);
    apply_departures(g);
    mcpg__group_start_ready(g);
    mcpg__view_prune(g);
    mcpg__group_forget(g);
}

/* A process that leaves has flushed first: what it sent is here, or on its way out of the transport. */
static void drain_leavers(mcpg_dpgroup_t *g, const mcpg_down_commit_t *c) {
    const mcpg_dpview_t *v = g->newest;
    bool any = false;
    for (uint32_t i = 0, k = 0; v != NULL && i < v->count; i++) {
        while (k < c->view.active_count && c->view.active[k].slot.v < v->m[i].slot.v) k++;
        const bool stays = k < c->view.active_count && c->view.active[k].slot.v == v->m[i].slot.v &&
                           mcpg__inc_eq(c->view.active[k].inc, v->m[i].inc);
        if (stays || v->m[i].slot.v == g->slot.v) continue;
        mcpg__engine_drain_link(g->dp->engine, v->m[i].rank, v->m[i].inc);
        any = true;
    }
    if (any) mcpg__dp_turn(g->dp);
}

static void install_view(void *dp, const mcpg_down_commit_t *commit) {
    mcpg_dpgroup_t *g = enter(dp, commit->gid);
    if (g != NULL && (g->newest == NULL || mcpg__view_cmp(commit->view.id, g->newest->id) > 0)) {
        drain_leavers(g, commit);
        install(g, commit);
        ((mcpg_dp_t *)dp)->kick = true;
    }
    leave(dp);
}

static void sync_fence(void *dp, mcpg_gid_t gid) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    /* Whoever is not active has no part in it. */
    if (g != NULL && !g->isolated && own_is_in(g, g->newest)) {
        g->fenced = true;
        mcpg__group_end_all(g, MCPG_OK, NULL, false, MCPG_NO_SEQ);
    }
    leave(dp);
}

static bool resolves(const mcpg_dp_work_t *w, uint64_t report_id) {
    return mcpg__work_state(w) == MCPG_W_JUDGING && (report_id == 0 || w->report_id == report_id);
}

/* Another process has this rank, or the coordinator will have none of it: nothing is ever installed here again. */
static void end_group(mcpg_dpgroup_t *g) {
    if (g->ended != MCPG_OK) return;
    g->ended = MCPG_NOT_ACTIVE;
    (void)snprintf(g->ended_why, sizeof g->ended_why,
                   "this process is no longer part of the job: create a new context");
    mcpg__group_end_all(g, g->ended, g->ended_why, true, MCPG_NO_SEQ);
    g->dp->kick = true;
}

static void end_held(mcpg_dpgroup_t *g, mcpg_status_t status) {
    if (!mcpg__group_held(g)) return;
    g->doubted = status == MCPG_IN_DOUBT;
    g->dp->kick = true; /* a safe point may wait */
    for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next) {
        if (mcpg__work_state(w) != MCPG_W_WAITING || (g->newest != NULL && w->seq < g->hold_seq)) continue;
        char why[MCPG_ERROR_CAP];
        (void)snprintf(
            why, sizeof why,
            "%s number %llu was held by a membership change and %s: check the job's coordinator, then create the "
            "group again",
            mcpg_op_name(w->op.kind), (unsigned long long)w->seq, mcpg_status_text(status));
        mcpg__op_end(w, status, why);
    }
}

static void resolve(void *dp, mcpg_gid_t gid, uint64_t report_id, mcpg_status_t status) {
    mcpg_dpgroup_t *g = enter(dp, gid);
    if (g != NULL) {
        for (mcpg_dp_work_t *w = g->head; w != NULL; w = w->next)
            if (resolves(w, report_id)) mcpg__op_resolve(w, status);
        for (mcpg_dp_work_t *w = g->p2p_head, *next; w != NULL; w = next) {
            next = w->next;
            if (!resolves(w, report_id)) continue;
            mcpg__op_resolve(w, status);
            mcpg__p2p_complete(w);
        }
        if (report_id == 0 && status == MCPG_NOT_ACTIVE) end_group(g);
        if (report_id == 0 && status != MCPG_OK) end_held(g, status);
        mcpg__group_complete(g);
    }
    leave(dp);
}

const mcpg_dp_ops_t *mcpg__dp_ops(void) {
    static const mcpg_dp_ops_t ops = {
        .open_link = open_link,
        .close_link = close_link,
        .check_link = check_link,
        .group_open = group_open,
        .group_close = group_close,
        .hold = hold,
        .release_hold = release_hold,
        .install_view = install_view,
        .sync_fence = sync_fence,
        .resolve = resolve,
        .ask_view = ask_view,
        .tell_view = tell_view,
    };
    return &ops;
}
