/* coord_sync.c: sync_after_failure: collect the entries of all live active ranks, then one sync barrier per covered
 * group.
 *
 * The first entry fences the group and every group whose active ranks are all in it. Time-outs are the agents'. It must
 * never commit by itself: it says when a sync barrier is due (sync_go).
 */
#include "coordinator/coord_state.h"

static void active_ranks_of(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count; s = mcpg__rankset_next(&g->active, s + 1))
        mcpg__rankset_add(out, mcpg__coord_slot(c, g, s)->rank.v);
}

static void begin(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    mcpg_rankset_t ours, theirs;
    g->sync_on = true;
    g->syncing_due = true;
    active_ranks_of(c, g, &ours);
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *h = &c->groups[i];
        if (h->phase != MCPG_COORD_GROUP_READY || h == g || mcpg__rankset_empty(&h->active) || h->sync_owner.v != 0)
            continue;
        active_ranks_of(c, h, &theirs);
        if (!mcpg__rankset_subset(&theirs, &ours)) continue;
        h->sync_owner = g->gid;
        h->syncing_due = true;
        mcpg__coord_touch(h);
    }
    mcpg__coord_touch(g);
}

static void say_inactive(mcpg_coord_text_t *text, uint32_t slot) {
    mcpg__coord_say(text, "in-group rank ");
    mcpg__coord_say_u64(text, slot);
    mcpg__coord_say(text, " is not active in the group: call join_group");
}

static mcpg_status_t check(const mcpg_coord_t *c, uint32_t rank, const mcpg_up_sync_enter_t *m,
                           const mcpg_coord_group_t *g, mcpg_coord_text_t *text) {
    if (c->shutting) { /* I9 */
        mcpg__coord_say(text, "the coordinator is shutting down: no agreement is possible any more");
        return MCPG_SHUTTING_DOWN;
    }
    uint32_t slot = g == NULL ? MCPG_COORD_NONE : mcpg__coord_slot_of(c, g, rank);
    if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) {
        mcpg__coord_say(text, "rank ");
        mcpg__coord_say_u64(text, rank);
        mcpg__coord_say(text, " is not registered in group ");
        mcpg__coord_say_u64(text, m->gid.v);
        mcpg__coord_say(text, ": create the group again");
        return MCPG_NOT_FOUND;
    }
    if (!mcpg__coord_active_live(c, g, slot)) {
        say_inactive(text, slot);
        return MCPG_NOT_ACTIVE;
    }
    if (!g->sync_on && g->sync_owner.v == 0 && m->first_failed_seq == MCPG_NO_SEQ && mcpg__rankset_empty(&m->failed)) {
        mcpg__coord_say(text, "nothing failed here and nobody waits: go on");
        return MCPG_NO_PENDING;
    }
    return MCPG_OK;
}

/* Asked again by one that has entered: who is waited for, so that its time-out can name them. */
static void say_missing(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint64_t conn, uint64_t call_id,
                        mcpg_coord_effects_t *fx) {
    mcpg_down_reply_t *reply = &mcpg__fx_answer(fx, conn, MCPG_DOWN_REPLY)->u.reply;
    reply->call_id = call_id;
    reply->status = MCPG_IN_PROGRESS;
    reply->epoch = g->committed.epoch;
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count; s = mcpg__rankset_next(&g->active, s + 1))
        if (mcpg__coord_active_live(c, g, s) && !mcpg__rankset_has(&g->sync_entered, s))
            mcpg__rankset_add(&reply->dropped, s);
    reply->dropped_any = !mcpg__rankset_empty(&reply->dropped);
}

/* Who is active is not known yet: it is looked at when the group is decided. False: no member. */
static bool hold(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t rank, const mcpg_up_sync_enter_t *m) {
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    if (c->shutting || slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) return false;
    mcpg__rankset_or(&g->sync_failed, &m->failed);
    if (m->first_failed_seq < g->sync_first) g->sync_first = m->first_failed_seq;
    mcpg__coord_slot(c, g, slot)->sync_call = m->call_id;
    mcpg__rankset_add(&g->sync_held, slot);
    return true;
}

void mcpg__coord_sync_release(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t held = g->sync_held;
    mcpg__rankset_clear(&g->sync_held);
    for (uint32_t s = g->order_count; s < MCPG_MAX_RANKS; s++) mcpg__rankset_del(&g->sync_failed, s);
    for (uint32_t s = mcpg__rankset_next(&held, 0); s < g->order_count; s = mcpg__rankset_next(&held, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        if (!mcpg__coord_registered(c, g, s) || c->conns[slot->rank.v] == 0) continue;
        /* The COMMIT of an agreement that it has not seen is on its way, and is the answer. */
        if (g->sync_last && mcpg__view_cmp(slot->seen, g->committed) < 0) continue;
        if (!mcpg__coord_active_live(c, g, s)) {
            mcpg_coord_text_t text = {.len = 0};
            say_inactive(&text, s);
            mcpg__fx_refuse_call(fx, c->conns[slot->rank.v], slot->sync_call, MCPG_NOT_ACTIVE, g->committed.epoch,
                                 &text);
            continue;
        }
        if (!g->sync_on) begin(c, g);
        mcpg__rankset_add(&g->sync_entered, s);
    }
    if (g->sync_on || g->sync_owner.v != 0) return;
    mcpg__rankset_clear(&g->sync_failed);
    g->sync_first = MCPG_NO_SEQ;
}

void mcpg__coord_sync_enter(mcpg_coord_t *c, uint32_t rank, const mcpg_up_sync_enter_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g != NULL && g->rebuild != MCPG_COORD_REBUILD_NONE && hold(c, g, rank, m)) return;
    mcpg_status_t status = check(c, rank, m, g, &text);
    if (status != MCPG_OK) {
        mcpg__fx_refuse_call(fx, c->conns[rank], m->call_id, status, g == NULL ? 0 : g->committed.epoch, &text);
        return;
    }
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    bool same_call = mcpg__coord_slot(c, g, slot)->sync_call == m->call_id;
    /* What failed before the last agreement was agreed on by it. */
    bool agreed = g->sync_last && m->first_failed_seq < g->switch_seq && !g->sync_on && g->sync_owner.v == 0;
    if (agreed || (same_call && !mcpg__rankset_has(&g->sync_entered, slot))) {
        /* Sent again after a re-attach, and answered meanwhile: the COMMIT comes again, it is no new failure. */
        mcpg__rankset_add(&g->resync, slot);
        mcpg__coord_touch(g);
        return;
    }
    if (same_call) say_missing(c, g, c->conns[rank], m->call_id, fx);
    if (!g->sync_on) begin(c, g);
    for (uint32_t s = mcpg__rankset_next(&m->failed, 0); s < g->order_count; s = mcpg__rankset_next(&m->failed, s + 1))
        mcpg__rankset_add(&g->sync_failed, s);
    if (m->first_failed_seq < g->sync_first) g->sync_first = m->first_failed_seq;
    mcpg__rankset_add(&g->sync_entered, slot);
    mcpg__coord_slot(c, g, slot)->sync_call = m->call_id;
    mcpg__coord_touch(g);
}

/* The covered group's share of what its owner agreed on: the same ranks, in its own slots. */
static void hand_down(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_coord_group_t *h) {
    for (uint32_t s = mcpg__rankset_next(&g->sync_failed, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->sync_failed, s + 1)) {
        uint32_t slot = mcpg__coord_slot_of(c, h, mcpg__coord_slot(c, g, s)->rank.v);
        if (slot != MCPG_COORD_NONE) mcpg__rankset_add(&h->sync_failed, slot);
    }
}

static void forget(mcpg_coord_group_t *g) {
    g->sync_on = false;
    g->sync_agreed = false;
    g->sync_go = false;
    g->syncing_due = false;
    g->sync_owner.v = 0;
    g->sync_first = MCPG_NO_SEQ;
    mcpg__rankset_clear(&g->sync_failed);
    mcpg__rankset_clear(&g->sync_entered);
}

/* Nobody is left to finish this sync: the groups that it fenced are let go by a sync of their own. */
void mcpg__coord_sync_abandon(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *h = &c->groups[i];
        if (h->phase != MCPG_COORD_GROUP_READY || h->sync_owner.v != g->gid.v || h == g) continue;
        h->sync_go = true;
        mcpg__coord_touch(h);
    }
    forget(g);
}

/* Everybody who is alive and active has entered. */
static bool all_entered(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    bool anybody = false, perhaps = false;
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        bool here = mcpg__coord_registered(c, g, s) &&
                    mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, mcpg__coord_slot(c, g, s)->reg);
        perhaps = perhaps || here; /* fenced: when it comes back, it comes to enter */
        if (!here || !mcpg__coord_active_live(c, g, s)) continue;
        if (!mcpg__rankset_has(&g->sync_entered, s)) return false;
        anybody = true;
    }
    if (!anybody && !perhaps) mcpg__coord_sync_abandon(c, g);
    return anybody;
}

/* The covered groups get their barriers. True: one of them has not committed yet. */
static bool covered_pending(mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    bool pending = false;
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *h = &c->groups[i];
        if (h->phase != MCPG_COORD_GROUP_READY || h->sync_owner.v != g->gid.v || h == g) continue;
        pending = pending || !mcpg__coord_stranded(c, h);
        if (h->sync_go) continue;
        hand_down(c, g, h);
        h->sync_go = true;
        mcpg__coord_touch(h);
    }
    return pending;
}

/* Evaluated whenever the group reacts, so whenever somebody enters or dies, or a covered group has committed. The
 * owner's COMMIT is the callers' answer: it goes out last, so that nobody is answered, and asks about a covered group,
 * before that group's COMMIT is on its way to him. */
void mcpg__coord_sync_evaluate(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    if (!g->sync_on || g->sync_go) return;
    if (!g->sync_agreed && !all_entered(c, g)) return;
    g->sync_agreed = true;
    g->sync_go = !covered_pending(c, g);
}

void mcpg__coord_sync_committed(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    mcpg_coord_group_t *owner = g->sync_owner.v == 0 ? NULL : mcpg__coord_group_find(c, g->sync_owner);
    if (owner != NULL && owner != g) mcpg__coord_touch(owner);
    g->last_sync_failed = g->sync_failed;
    g->last_sync_first = g->sync_first;
    forget(g);
}

void mcpg__coord_sync_slot_gone(mcpg_coord_group_t *g, uint32_t slot) {
    mcpg__rankset_del(&g->sync_entered, slot);
    mcpg__rankset_del(&g->sync_held, slot);
}
