/* coord_view.c: one membership change at a time per group: PREPARE, ACK, COMMIT or ABORT.
 *
 * Added ranks are asked first, then those that stay and the removed ones that are HEALTHY. What happens meanwhile is
 * folded into the COMMIT. It must never commit a view without an ACK of every stayer or a recorded drop (I6), nor add a
 * rank that is not HEALTHY at that moment (I3), nor reuse an epoch (I1).
 */
#include "coordinator/coord_state.h"

static bool is_boot(const mcpg_coord_group_t *g) {
    return g->barrier.kind == MCPG_COORD_BARRIER_BOOT;
}

static void stayers_of(const mcpg_coord_group_t *g, mcpg_rankset_t *out) {
    *out = g->active;
    mcpg__rankset_minus(out, &g->barrier.removed);
    mcpg__rankset_minus(out, &g->barrier.added);
}

/* The process that the barrier adds is still there. */
static bool added_here(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, slot);
    return mcpg__coord_registered(c, g, slot) && mcpg__inc_eq(mcpg__coord_slot(c, g, slot)->target, r->inc) &&
           r->state != MCPG_RANK_OFFLINE;
}

/* ---- messages ---- */

mcpg_member_t *mcpg__coord_copy_members(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *set,
                                        const mcpg_rankset_t *added, uint32_t *count_out, mcpg_coord_effects_t *fx) {
    uint32_t count = mcpg__rankset_count(set), at = 0;
    mcpg_member_t *members = (mcpg_member_t *)mcpg__fx_alloc(fx, count * sizeof(*members));
    for (uint32_t s = mcpg__rankset_next(set, 0); s < g->order_count; s = mcpg__rankset_next(set, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        bool is_new = added != NULL && mcpg__rankset_has(added, s);
        members[at++] = (mcpg_member_t){.slot = {s}, .rank = slot->rank, .inc = is_new ? slot->target : slot->active};
    }
    *count_out = count;
    return members;
}

static void send_prepare(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *slots,
                         mcpg_coord_effects_t *fx) {
    mcpg_rankset_t to, target = g->active;
    mcpg__rankset_clear(&to);
    for (uint32_t s = mcpg__rankset_next(slots, 0); s < g->order_count; s = mcpg__rankset_next(slots, s + 1)) {
        uint32_t rank = mcpg__coord_slot(c, g, s)->rank.v;
        if (c->conns[rank] != 0) mcpg__rankset_add(&to, rank);
    }
    if (mcpg__rankset_empty(&to)) return;
    mcpg__rankset_minus(&target, &g->barrier.removed);
    mcpg__rankset_or(&target, &g->barrier.added);
    mcpg_down_prepare_t *prepare = &mcpg__fx_send(fx, &to, MCPG_DOWN_PREPARE)->u.prepare;
    prepare->gid = g->gid;
    prepare->view.id = g->barrier.id;
    prepare->view.active = mcpg__coord_copy_members(c, g, &target, &g->barrier.added, &prepare->view.active_count, fx);
}

/* I2: built from nothing but what the commit has stored, so that a resent COMMIT is the same. */
void mcpg__coord_send_commit(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *to,
                             mcpg_coord_effects_t *fx) {
    mcpg_down_commit_t *commit = &mcpg__fx_send(fx, to, MCPG_DOWN_COMMIT)->u.commit;
    uint32_t at = 0;
    commit->gid = g->gid;
    commit->view.id = g->committed;
    commit->view.active = mcpg__coord_copy_members(c, g, &g->active, NULL, &commit->view.active_count, fx);
    commit->switch_seq = g->switch_seq;
    commit->leave_count = mcpg__rankset_count(&g->leaves);
    mcpg_leave_t *leaves = (mcpg_leave_t *)mcpg__fx_alloc(fx, commit->leave_count * sizeof(*leaves));
    for (uint32_t s = mcpg__rankset_next(&g->leaves, 0); s < g->order_count; s = mcpg__rankset_next(&g->leaves, s + 1))
        leaves[at++] = (mcpg_leave_t){.slot = {s}, .leave_seq = mcpg__coord_slot(c, g, s)->leave_seq};
    commit->leaves = leaves;
    commit->sync = g->sync_last;
    if (!g->sync_last) return;
    commit->sync_failed = g->last_sync_failed;
    commit->sync_first_failed_seq = g->last_sync_first;
}

/* ---- opening ---- */

/* A PREPARE or an ACK may be lost on a stream that lives: whoever owes an ACK is asked again at his heartbeats. */
static void again_from(mcpg_coord_t *c, mcpg_coord_barrier_t *b) {
    b->again_after_us = 2u * c->config.timers.heartbeat_us;
    b->again_us = mcpg__after(c->now, b->again_after_us);
}

void mcpg__coord_barrier_nag(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    mcpg_coord_barrier_t *b = &g->barrier;
    if (b->phase == MCPG_COORD_BARRIER_NONE || c->now.us < b->again_us) return;
    b->again_after_us = 2u * b->again_after_us;
    b->again_us = mcpg__after(c->now, b->again_after_us);
    b->again = true;
    mcpg__coord_touch(g);
}

static void ask_all(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t ask, candidates = g->active;
    mcpg__rankset_clear(&ask);
    mcpg__rankset_minus(&candidates, &b->added);
    for (uint32_t s = mcpg__rankset_next(&candidates, 0); s < g->order_count;
         s = mcpg__rankset_next(&candidates, s + 1)) {
        bool wanted = !mcpg__rankset_has(&b->removed, s) || mcpg__coord_rank_of(c, g, s)->state == MCPG_RANK_HEALTHY;
        if (wanted && mcpg__coord_live(c, g, s)) mcpg__rankset_add(&ask, s);
    }
    b->phase = MCPG_COORD_BARRIER_ALL;
    b->deadline_us = mcpg__after(c->now, c->config.timers.ack_us);
    b->removed_deadline_us = mcpg__after(c->now, c->config.timers.ack_added_us);
    again_from(c, b);
    mcpg__coord_want(c, b->deadline_us);
    if (!mcpg__rankset_empty(&b->removed)) mcpg__coord_want(c, b->removed_deadline_us);
    send_prepare(c, g, &ask, fx);
    mcpg__rankset_or(&b->asked, &ask);
}

void mcpg__coord_barrier_open(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_barrier_kind_t kind,
                              const mcpg_rankset_t *added, const mcpg_rankset_t *removed, uint32_t proposal,
                              mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    memset(b, 0, sizeof(*b));
    b->kind = kind;
    b->phase = MCPG_COORD_BARRIER_ADDED;
    b->id = (mcpg_view_id_t){c->config.term, ++g->epoch_used}; /* I1 */
    b->added = *added;
    b->removed = *removed;
    b->proposal = proposal;
    for (uint32_t s = mcpg__rankset_next(added, 0); s < g->order_count; s = mcpg__rankset_next(added, s + 1))
        mcpg__coord_slot(c, g, s)->target = mcpg__coord_rank_of(c, g, s)->inc;
    if (mcpg__rankset_empty(added)) {
        ask_all(c, g, fx);
        return;
    }
    /* A founder is no guest: it gets the time of one that stays. */
    b->deadline_us = mcpg__after(c->now, is_boot(g) ? c->config.timers.ack_us : c->config.timers.ack_added_us);
    again_from(c, b);
    mcpg__coord_want(c, b->deadline_us);
    mcpg_rankset_t ask;
    mcpg__rankset_clear(&ask);
    for (uint32_t s = mcpg__rankset_next(added, 0); s < g->order_count; s = mcpg__rankset_next(added, s + 1))
        if (added_here(c, g, s)) mcpg__rankset_add(&ask, s);
    send_prepare(c, g, &ask, fx);
    b->asked = ask;
}

void mcpg__coord_barrier_ask_again(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t one, stayers;
    if (b->phase == MCPG_COORD_BARRIER_NONE || mcpg__rankset_has(&b->acked, slot)) return;
    stayers_of(g, &stayers);
    bool back = b->phase == MCPG_COORD_BARRIER_ALL && mcpg__rankset_has(&stayers, slot) && mcpg__coord_live(c, g, slot);
    if (!mcpg__rankset_has(&b->asked, slot) && !back) return;
    mcpg__rankset_clear(&one);
    mcpg__rankset_add(&one, slot);
    send_prepare(c, g, &one, fx);
    mcpg__rankset_add(&b->asked, slot);
}

/* ---- closing ---- */

static void barrier_end(mcpg_coord_group_t *g) {
    memset(&g->barrier, 0, sizeof(g->barrier));
    g->barrier.proposal = MCPG_COORD_NONE;
}

/* Whoever holds for it is released; a proposal that ran is queued again unless the caller rejects it. */
void mcpg__coord_barrier_abort(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t to;
    mcpg__rankset_clear(&to);
    for (uint32_t s = mcpg__rankset_next(&b->asked, 0); s < g->order_count; s = mcpg__rankset_next(&b->asked, s + 1)) {
        mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        if (!mcpg__coord_registered(c, g, s)) continue;
        slot->abort_view = b->id; /* should this ABORT be lost */
        if (c->conns[slot->rank.v] != 0) mcpg__rankset_add(&to, slot->rank.v);
    }
    if (!mcpg__rankset_empty(&to)) {
        mcpg_down_abort_t *message = &mcpg__fx_send(fx, &to, MCPG_DOWN_ABORT)->u.abort;
        message->gid = g->gid;
        message->view = b->id;
    }
    if (b->proposal != MCPG_COORD_NONE) c->props[b->proposal].phase = MCPG_COORD_PROP_QUEUED;
    barrier_end(g);
}

static void abort_all_added_lost(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    uint32_t proposal = g->barrier.proposal;
    mcpg_rankset_t lost = g->barrier.dropped;
    mcpg__coord_barrier_abort(c, g, fx);
    if (proposal == MCPG_COORD_NONE) return;
    mcpg_coord_text_t text = {.len = 0};
    uint32_t slot = mcpg__rankset_next(&lost, 0);
    if (slot < g->order_count) {
        mcpg__coord_say_rank(&text, c, mcpg__coord_slot(c, g, slot)->rank.v);
        mcpg__coord_say(&text, " and did not acknowledge the view that adds it: ask again when it waits in join_group");
    }
    mcpg__coord_proposal_reject(c, proposal, MCPG_NOT_HEALTHY, g->committed.epoch, &text);
}

/* Rule 8: somebody would be left out unproved, and the store does not say that nobody newer rules. */
static void abort_unrecorded(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    uint32_t proposal = g->barrier.proposal;
    mcpg__coord_barrier_abort(c, g, fx);
    if (proposal == MCPG_COORD_NONE) return;
    mcpg_coord_text_t text = {.len = 0};
    mcpg__coord_say(&text,
                    "the view would leave out a rank that may be alive, and the key-value store did not take its "
                    "record: check the store and try again");
    mcpg__coord_proposal_reject(c, proposal, MCPG_UNAVAILABLE, g->committed.epoch, &text);
}

static uint64_t next_step(uint64_t seq) {
    return ((seq >> MCPG_STEP_SHIFT) + 1u) << MCPG_STEP_SHIFT;
}

/* Never falls; beyond the step that anybody is in when a rank is added and steps are used, or after a sync. */
static uint64_t switch_for(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *stayers) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    uint64_t highest = g->switch_seq;
    for (uint32_t s = mcpg__rankset_next(stayers, 0); s < g->order_count; s = mcpg__rankset_next(stayers, s + 1)) {
        uint64_t ack = mcpg__coord_slot(c, g, s)->ack_seq;
        if (mcpg__rankset_has(&b->acked, s) && ack > highest) highest = ack;
    }
    /* What a rank did before it said goodbye ends with it: nobody may be past that in the new view, least of all its
     * root. */
    for (uint32_t s = mcpg__rankset_next(&g->leaving, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->leaving, s + 1)) {
        uint64_t next = mcpg__coord_slot(c, g, s)->ack_seq;
        if (mcpg__rankset_has(&b->removed, s) && !mcpg__rankset_has(&g->fenced, s) && next > highest) highest = next;
    }
    /* With nobody left who stays, whoever is added goes on after everything that was done before. */
    for (uint32_t s = mcpg__rankset_next(&b->removed, 0); mcpg__rankset_empty(stayers) && s < g->order_count;
         s = mcpg__rankset_next(&b->removed, s + 1)) {
        uint64_t next = mcpg__coord_slot(c, g, s)->ack_seq;
        if (mcpg__rankset_has(&b->acked, s) && next > highest) highest = next;
    }
    if (b->kind == MCPG_COORD_BARRIER_SYNC) return next_step(highest);
    if (!mcpg__rankset_empty(&b->added) && b->steps) return next_step(highest);
    return highest;
}

static void record_stayers(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_rankset_t *stayers, uint64_t switch_seq) {
    mcpg_coord_barrier_t *b = &g->barrier;
    for (uint32_t s = mcpg__rankset_next(stayers, 0); s < g->order_count; s = mcpg__rankset_next(stayers, s + 1)) {
        bool acked = mcpg__rankset_has(&b->acked, s);
        if (acked && mcpg__coord_live(c, g, s)) continue;
        MCPG_ASSERT(g->manual); /* I6: an auto group has folded them into removed */
        if (mcpg__rankset_has(&b->asked, s) && !acked) mcpg__rankset_add(&b->dropped, s);
        if (mcpg__rankset_has(&g->fenced, s)) continue;
        mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        mcpg__rankset_add(&g->fenced, s);
        slot->leave_seq = !acked ? 0 : slot->ack_seq < switch_seq ? slot->ack_seq : switch_seq;
    }
}

static void record_removed(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_rankset_t *removed, uint64_t switch_seq) {
    for (uint32_t s = mcpg__rankset_next(removed, 0); s < g->order_count; s = mcpg__rankset_next(removed, s + 1)) {
        mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        bool acked = mcpg__rankset_has(&g->barrier.acked, s) || mcpg__rankset_has(&g->leaving, s);
        if (!mcpg__rankset_has(&g->fenced, s))
            slot->leave_seq = !acked ? 0 : slot->ack_seq < switch_seq ? slot->ack_seq : switch_seq;
        mcpg__rankset_del(&g->fenced, s);
        mcpg__rankset_del(&g->leaving, s);
        mcpg__coord_sync_slot_gone(g, s);
        bool successor = !mcpg__inc_none(slot->reg) && !mcpg__inc_eq(slot->reg, slot->active);
        /* One that asked to join while it was being removed goes on waiting. */
        if (successor || mcpg__rankset_has(&g->joined, s) || !mcpg__rankset_has(&g->awaiting, s)) continue;
        mcpg__rankset_del(&g->awaiting, s);
        mcpg__coord_members_changed(g);
    }
}

/* Rule 9: who was in the old view and did not ACK has lost this one. */
static void record_unseen(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        bool present = mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, mcpg__coord_rank_of(c, g, s)->inc);
        if (present && mcpg__coord_registered(c, g, s) && !mcpg__rankset_has(&g->barrier.acked, s))
            mcpg__rankset_add(&g->unseen, s);
        else
            mcpg__rankset_del(&g->unseen, s);
    }
}

void mcpg__coord_count_active(mcpg_coord_t *c, const mcpg_coord_group_t *g, bool up) {
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (!mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, r->inc)) continue;
        r->active_count = up ? r->active_count + 1u : r->active_count - 1u;
    }
}

/* Slots whose present process is active somewhere and attached: the preferred ones of the healthy set. */
static void preferred(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t s = 0; s < g->order_count; s++) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (r->active_count > 0 && r->state != MCPG_RANK_OFFLINE) mcpg__rankset_add(out, s);
    }
}

/* Whoever is added while a sync is being collected has to enter it as well. */
static void fence_added(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t to;
    if (!g->sync_on && g->sync_owner.v == 0) return;
    mcpg__rankset_clear(&to);
    for (uint32_t s = mcpg__rankset_next(&g->barrier.added, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->barrier.added, s + 1)) {
        uint32_t rank = mcpg__coord_slot(c, g, s)->rank.v;
        if (c->conns[rank] != 0) mcpg__rankset_add(&to, rank);
    }
    if (!mcpg__rankset_empty(&to)) mcpg__fx_send(fx, &to, MCPG_DOWN_SYNCING)->u.syncing.gid = g->gid;
}

static void commit(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t stayers, removed = b->removed, to, before, after;
    stayers_of(g, &stayers);
    preferred(c, g, &before);
    mcpg__rankset_and(&removed, &g->active);
    uint64_t switch_seq = switch_for(c, g, &stayers);
    record_stayers(c, g, &stayers, switch_seq);
    record_removed(c, g, &removed, switch_seq);
    record_unseen(c, g);
    mcpg__coord_count_active(c, g, false);
    for (uint32_t s = mcpg__rankset_next(&b->added, 0); s < g->order_count; s = mcpg__rankset_next(&b->added, s + 1)) {
        mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        slot->active = slot->target;
        slot->active_since = b->id.epoch;
        mcpg__rankset_del(&g->fenced, s);
        mcpg__rankset_del(&g->leaving, s);
        mcpg__rankset_del(&g->joined, s);
        if (added_here(c, g, s)) continue;
        MCPG_ASSERT(is_boot(g) &&
                    g->manual); /* I3: only a dead founder of a manual group, and it is fenced from the start */
        mcpg__rankset_add(&g->fenced, s);
        slot->leave_seq = 0;
    }
    g->active = stayers;
    mcpg__rankset_or(&g->active, &b->added);
    mcpg__coord_count_active(c, g, true);
    g->leaves = removed;
    mcpg__rankset_or(&g->leaves, &g->fenced);
    g->switch_seq = switch_seq;
    g->committed = b->id;
    g->phase = MCPG_COORD_GROUP_READY;
    mcpg__rankset_clear(&g->bound);
    g->sync_last = b->kind == MCPG_COORD_BARRIER_SYNC;
    if (g->sync_last) mcpg__coord_sync_committed(c, g);
    preferred(c, g, &after);
    if (!mcpg__rankset_eq(&before, &after)) c->health_dirty = true;
    mcpg__coord_listeners(c, g, &to);
    if (!mcpg__rankset_empty(&to)) mcpg__coord_send_commit(c, g, &to, fx);
    fence_added(c, g, fx);
    if (b->proposal != MCPG_COORD_NONE) mcpg__coord_proposal_applied(c, b->proposal, &b->dropped, b->id.epoch);
    barrier_end(g);
}

/* ---- advancing ---- */

/* What left the healthy set, or the group, since the barrier was opened. */
static void fold(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t gone;
    if (is_boot(g)) return;
    mcpg__coord_auto_removed(c, g, &gone);
    mcpg__rankset_minus(&gone, &b->added);
    mcpg__rankset_minus(&gone, &b->removed);
    for (uint32_t s = mcpg__rankset_next(&gone, 0); s < g->order_count; s = mcpg__rankset_next(&gone, s + 1))
        if (mcpg__rankset_has(&b->asked, s) && !mcpg__rankset_has(&b->acked, s)) mcpg__rankset_add(&b->dropped, s);
    mcpg__rankset_or(&b->removed, &gone);
}

static void drop_added(mcpg_coord_group_t *g, uint32_t slot) {
    mcpg__rankset_del(&g->barrier.added, slot);
    mcpg__rankset_add(&g->barrier.dropped, slot);
}

/* Leaves out added ranks that cannot come. False: a bootstrap has to start over (a live founder must never be left
 * out). */
static bool prune_added(mcpg_coord_t *c, mcpg_coord_group_t *g, bool at_commit) {
    mcpg_rankset_t added = g->barrier.added;
    for (uint32_t s = mcpg__rankset_next(&added, 0); s < g->order_count; s = mcpg__rankset_next(&added, s + 1)) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (added_here(c, g, s) && (!at_commit || r->state == MCPG_RANK_HEALTHY)) continue; /* I3 */
        if (!is_boot(g))
            drop_added(g, s);
        else if (!r->dead || !mcpg__inc_eq(r->inc, mcpg__coord_slot(c, g, s)->target))
            return false;
        else if (!g->manual)
            mcpg__rankset_del(&g->barrier.added, s);
    }
    return true;
}

/* Slots of the set whose ACK is still awaited. */
static bool awaited(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *set, bool added,
                    mcpg_rankset_t *out) {
    *out = *set;
    mcpg__rankset_and(out, &g->barrier.asked);
    mcpg__rankset_minus(out, &g->barrier.acked);
    mcpg_rankset_t candidates = *out;
    for (uint32_t s = mcpg__rankset_next(&candidates, 0); s < g->order_count;
         s = mcpg__rankset_next(&candidates, s + 1))
        if (!(added ? added_here(c, g, s) : mcpg__coord_live(c, g, s))) mcpg__rankset_del(out, s);
    return !mcpg__rankset_empty(out);
}

static void prepare_again(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t owing, members;
    g->barrier.again = false;
    bool any = awaited(c, g, &g->barrier.added, true, &owing);
    any = awaited(c, g, &g->active, false, &members) || any;
    mcpg__rankset_or(&owing, &members);
    if (any) send_prepare(c, g, &owing, fx);
}

static void missed(mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *slots,
                   mcpg_coord_effects_t *fx) {
    for (uint32_t s = mcpg__rankset_next(slots, 0); s < g->order_count; s = mcpg__rankset_next(slots, s + 1))
        mcpg__coord_offline(c, mcpg__coord_slot(c, g, s)->rank.v, fx);
}

static bool advance_added(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t waiting;
    if (awaited(c, g, &b->added, true, &waiting)) {
        if (c->now.us < b->deadline_us) return false;
        if (is_boot(g)) {
            missed(c, g, &waiting, fx);
            mcpg__coord_barrier_abort(c, g, fx);
            return true;
        }
        for (uint32_t s = mcpg__rankset_next(&waiting, 0); s < g->order_count; s = mcpg__rankset_next(&waiting, s + 1))
            drop_added(g, s);
    }
    if (b->kind != MCPG_COORD_BARRIER_SYNC && mcpg__rankset_empty(&b->added) && mcpg__rankset_empty(&b->removed))
        abort_all_added_lost(c, g, fx);
    else
        ask_all(c, g, fx);
    return true;
}

/* Those that stay, have just attached and still tell what they know: they are asked when they have. */
static bool still_reporting(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *stayers,
                            mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t s = mcpg__rankset_next(stayers, 0); s < g->order_count; s = mcpg__rankset_next(stayers, s + 1)) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        bool here = mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, r->inc) && r->state != MCPG_RANK_OFFLINE;
        if (here && !r->reported) mcpg__rankset_add(out, s);
    }
    return !mcpg__rankset_empty(out);
}

static bool advance_all(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t stayers, waiting;
    stayers_of(g, &stayers);
    (void)mcpg__coord_record_step(c, g, fx); /* in parallel with the ACKs */
    if (still_reporting(c, g, &stayers, &waiting)) {
        if (c->now.us < b->deadline_us) return false;
        missed(c, g, &waiting, fx);
        return true;
    }
    if (awaited(c, g, &stayers, false, &waiting)) {
        if (c->now.us < b->deadline_us) return false;
        mcpg__rankset_or(&b->dropped, &waiting); /* I6: recorded */
        missed(c, g, &waiting, fx);
        return true; /* the states settle first */
    }
    if (awaited(c, g, &b->removed, false, &waiting) && c->now.us < b->removed_deadline_us) {
        bool healthy = false; /* one that is not HEALTHY any more is not waited for */
        for (uint32_t s = mcpg__rankset_next(&waiting, 0); s < g->order_count; s = mcpg__rankset_next(&waiting, s + 1))
            healthy = healthy || mcpg__coord_rank_of(c, g, s)->state == MCPG_RANK_HEALTHY;
        if (healthy) return false;
    }
    if (!prune_added(c, g, true)) {
        mcpg__coord_barrier_abort(c, g, fx);
        return true;
    }
    bool nothing = b->kind != MCPG_COORD_BARRIER_SYNC && mcpg__rankset_empty(&b->added) &&
                   !mcpg__rankset_meets(&b->removed, &g->active);
    if (nothing) {
        abort_all_added_lost(c, g, fx);
        return true;
    }
    mcpg_coord_record_step_t record = mcpg__coord_record_step(c, g, fx);
    if (record == MCPG_COORD_RECORD_WAIT) return false;
    if (record == MCPG_COORD_RECORD_FAILED)
        abort_unrecorded(c, g, fx);
    else
        commit(c, g, fx);
    return true;
}

bool mcpg__coord_barrier_advance(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    if (c->health_dirty) { /* the states settle first */
        mcpg__coord_touch(g);
        return false;
    }
    fold(c, g);
    if (mcpg__coord_barrier_loses_last(c, g) || !prune_added(c, g, false)) {
        mcpg__coord_barrier_abort(c, g, fx);
        return true;
    }
    if (g->barrier.again) prepare_again(c, g, fx);
    return g->barrier.phase == MCPG_COORD_BARRIER_ADDED ? advance_added(c, g, fx) : advance_all(c, g, fx);
}

/* ---- ACK and COMMIT_ACK ---- */

/* It holds for what is over. */
static void say_over(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_view_id_t view,
                     mcpg_coord_effects_t *fx) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    mcpg_rankset_t to;
    mcpg__rankset_clear(&to);
    mcpg__rankset_add(&to, s->rank.v);
    if (mcpg__view_cmp(view, g->committed) <= 0) {
        mcpg__coord_send_commit(c, g, &to, fx);
        return;
    }
    s->abort_view = view;
    if (g->rebuild != MCPG_COORD_REBUILD_NONE) return;
    mcpg_down_abort_t *message = &mcpg__fx_send(fx, &to, MCPG_DOWN_ABORT)->u.abort;
    message->gid = g->gid;
    message->view = view;
}

void mcpg__coord_ack(mcpg_coord_t *c, uint32_t rank, const mcpg_up_ack_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g == NULL || m->next_seq > MCPG_COORD_SEQ_MAX || m->view.epoch > g->epoch_used) return;
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) return; /* I4 */
    if (g->barrier.phase == MCPG_COORD_BARRIER_NONE || !mcpg__view_eq(g->barrier.id, m->view)) {
        say_over(c, g, slot, m->view, fx);
        return;
    }
    if (!mcpg__rankset_has(&g->barrier.asked, slot) || mcpg__rankset_has(&g->barrier.acked, slot)) return;
    mcpg__rankset_add(&g->barrier.acked, slot);
    g->barrier.steps = g->barrier.steps || m->steps;
    mcpg__coord_slot(c, g, slot)->ack_seq = m->next_seq;
    mcpg__coord_touch(g);
}

void mcpg__coord_commit_ack(mcpg_coord_t *c, uint32_t rank, const mcpg_up_commit_ack_t *m) {
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g == NULL || m->view.term != g->committed.term || m->view.epoch > g->committed.epoch) return;
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) return; /* I4 */
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    if (m->view.epoch <= s->commit_acked) return;
    s->commit_acked = m->view.epoch;
    if (m->view.epoch == g->committed.epoch) mcpg__rankset_del(&g->unseen, slot);
    mcpg__coord_touch(g);
}

bool mcpg__coord_everywhere(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint64_t epoch) {
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count; s = mcpg__rankset_next(&g->active, s + 1))
        if (mcpg__coord_live(c, g, s) && mcpg__coord_slot(c, g, s)->commit_acked < epoch) return false;
    return true;
}
