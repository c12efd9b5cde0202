/* coord_group.c: the group table: making and forgetting groups, members, join, leave, and the order of a group's
 * reactions.
 *
 * Slots come from one pool in blocks. It must never commit a view itself: coord_view.c does.
 */
#include "coordinator/coord_state.h"

mcpg_coord_group_t *mcpg__coord_group_find(const mcpg_coord_t *c, mcpg_gid_t gid) {
    if (gid.v == 0) return NULL;
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] == gid.v) return &c->groups[i];
    return NULL;
}

uint32_t mcpg__coord_slot_of(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t rank) {
    if (!mcpg__rankset_has(&g->ranks, rank)) return MCPG_COORD_NONE;
    if (rank < g->order_count && mcpg__coord_slot(c, g, rank)->rank.v == rank) return rank; /* the usual order */
    for (uint32_t s = 0; s < g->order_count; s++)
        if (mcpg__coord_slot(c, g, s)->rank.v == rank) return s;
    return MCPG_COORD_NONE;
}

/* ---- table and slot pool ---- */

static uint32_t blocks_for(uint32_t capacity) {
    return (capacity + MCPG_COORD_BLOCK - 1u) / MCPG_COORD_BLOCK;
}

/* First run of free blocks that is long enough, or NONE. */
static uint32_t find_blocks(const mcpg_coord_t *c, uint32_t need) {
    uint32_t total = c->config.max_slots_total / MCPG_COORD_BLOCK, run = 0;
    for (uint32_t b = 0; b < total; b++) {
        run = mcpg__bit_get(c->blocks, b) ? 0 : run + 1u;
        if (run == need) return b + 1u - need;
    }
    return MCPG_COORD_NONE;
}

/* Term by term another range, so that two coordinators never give one id to two groups. */
static uint32_t gid_range(const mcpg_coord_t *c) {
    return (uint32_t)((c->config.term - 1u) & 0xFFFu) << MCPG_COORD_GID_BITS;
}

static mcpg_gid_t gid_next(mcpg_coord_t *c) {
    return (mcpg_gid_t){gid_range(c) + ++c->last_gid};
}

static void gid_taken(mcpg_coord_t *c, mcpg_gid_t gid) {
    const uint32_t mask = (1u << MCPG_COORD_GID_BITS) - 1u;
    if ((gid.v & ~mask) == gid_range(c) && (gid.v & mask) > c->last_gid) c->last_gid = gid.v & mask;
}

mcpg_coord_group_t *mcpg__coord_group_new(mcpg_coord_t *c, uint32_t capacity, mcpg_gid_t gid) {
    uint32_t index = 0, need = blocks_for(capacity);
    while (index < c->group_high && c->gids[index] != 0) index++;
    if (index == c->config.max_groups || c->last_gid >= (1u << MCPG_COORD_GID_BITS) - 1u) return NULL;
    uint32_t first = find_blocks(c, need);
    if (first == MCPG_COORD_NONE) return NULL;
    for (uint32_t b = first; b < first + need; b++) mcpg__bit_put(c->blocks, b, true);
    if (index == c->group_high) c->group_high++;
    c->groups_used++;
    c->slots_used += need * MCPG_COORD_BLOCK;
    mcpg_coord_group_t *g = &c->groups[index];
    memset(g, 0, sizeof(*g));
    g->phase = MCPG_COORD_GROUP_FORMING;
    gid_taken(c, gid);
    g->gid = gid.v != 0 ? gid : gid_next(c);
    g->created = ++c->last_created;
    g->base = first * MCPG_COORD_BLOCK;
    g->capacity = capacity;
    g->first_proposal = g->last_proposal = MCPG_COORD_NONE;
    g->sync_first = g->last_sync_first = MCPG_NO_SEQ;
    g->barrier.proposal = MCPG_COORD_NONE;
    c->gids[index] = g->gid.v;
    memset(&c->slots[g->base], 0, need * MCPG_COORD_BLOCK * sizeof(*c->slots));
    return g;
}

/* I10: a forgotten group leaves nothing behind. */
void mcpg__coord_group_forget(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (!mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, r->inc) || r->active_count == 0) continue;
        r->active_count--;
        if (r->active_count == 0) c->health_dirty = true; /* active ranks are preferred */
    }
    bool decided = g->adopted && g->phase == MCPG_COORD_GROUP_READY && g->rebuild == MCPG_COORD_REBUILD_NONE;
    if (decided) c->ended[c->ended_at++ % MCPG_COORD_ENDED] = g->gid.v;
    mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_NONE);
    mcpg__coord_proposals_forget(c, g);
    mcpg__coord_sync_abandon(c, g);
    uint32_t first = g->base / MCPG_COORD_BLOCK, count = blocks_for(g->capacity);
    for (uint32_t b = first; b < first + count; b++) mcpg__bit_put(c->blocks, b, false);
    c->slots_used -= count * MCPG_COORD_BLOCK;
    memset(&c->slots[g->base], 0, count * MCPG_COORD_BLOCK * sizeof(*c->slots));
    uint32_t index = (uint32_t)(g - c->groups);
    c->gids[index] = 0;
    c->groups_used--;
    memset(g, 0, sizeof(*g));
    while (c->group_high > 0 && c->gids[c->group_high - 1u] == 0) c->group_high--;
}

bool mcpg__coord_group_deserted(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    for (uint32_t s = 0; s < g->order_count; s++)
        if (!mcpg__inc_none(mcpg__coord_slot(c, g, s)->reg)) return false;
    return true;
}

/* ---- members ---- */

void mcpg__coord_members_changed(mcpg_coord_group_t *g) {
    g->members_dirty = true;
    mcpg__coord_touch(g);
}

void mcpg__coord_listeners(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t s = 0; s < g->order_count; s++) {
        uint32_t rank = mcpg__coord_slot(c, g, s)->rank.v;
        if (c->conns[rank] != 0 && mcpg__coord_registered(c, g, s)) mcpg__rankset_add(out, rank);
    }
}

void mcpg__coord_send_members(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_rankset_t *to,
                              mcpg_coord_effects_t *fx) {
    mcpg_down_members_t *table = &mcpg__fx_send(fx, to, MCPG_DOWN_MEMBERS)->u.members;
    mcpg_group_member_t *members = (mcpg_group_member_t *)mcpg__fx_alloc(fx, g->order_count * sizeof(*members));
    for (uint32_t s = 0; s < g->order_count; s++) {
        members[s].slot.v = s;
        members[s].rank = mcpg__coord_slot(c, g, s)->rank;
        members[s].inc = mcpg__coord_slot(c, g, s)->reg;
        members[s].awaiting = mcpg__rankset_has(&g->awaiting, s);
    }
    table->gid = g->gid;
    table->count = g->order_count;
    table->members = members;
}

static uint64_t members_sum(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < g->order_count; s++) {
        mcpg_group_member_t member = {.slot = {s},
                                      .rank = mcpg__coord_slot(c, g, s)->rank,
                                      .inc = mcpg__coord_slot(c, g, s)->reg,
                                      .awaiting = mcpg__rankset_has(&g->awaiting, s)};
        sum += mcpg__digest_member(g->gid, &member);
    }
    return sum;
}

static void tell_members(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t to;
    g->members_dirty = false;
    g->members_sum = members_sum(c, g);
    mcpg__coord_listeners(c, g, &to);
    if (!mcpg__rankset_empty(&to)) mcpg__coord_send_members(c, g, &to, fx);
}

void mcpg__coord_unregister(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    if (mcpg__inc_none(s->reg)) return;
    s->reg = (mcpg_incarnation_t){0, 0};
    s->abort_view = (mcpg_view_id_t){0, 0};
    mcpg__rankset_del(&g->awaiting, slot);
    mcpg__rankset_del(&g->joined, slot);
    mcpg__rankset_del(&g->resync, slot);
    mcpg__coord_sync_slot_gone(g, slot);
    mcpg__coord_members_changed(g);
}

void mcpg__coord_groups_lose_rank(mcpg_coord_t *c, uint32_t rank) {
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !mcpg__rankset_has(&g->ranks, rank)) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
        /* A goodbye leaves every generation: the rank's next process belongs to the next one. */
        bool goodbye = c->ranks[rank].left && g->phase == MCPG_COORD_GROUP_READY;
        if (goodbye && !mcpg__inc_none(s->reg)) {
            s->left = s->reg;
            bool acked = g->barrier.phase != MCPG_COORD_BARRIER_NONE && mcpg__rankset_has(&g->barrier.acked, slot);
            if (mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(s->active, s->reg)) {
                mcpg__rankset_add(&g->leaving, slot); /* a manual group lets it go, too */
                if (!acked) s->ack_seq = 0;
            }
        }
        mcpg__coord_unregister(c, g, slot);
        mcpg__rankset_del(&g->unseen, slot);
        mcpg__coord_touch(g);
    }
}

void mcpg__coord_groups_touch_rank(mcpg_coord_t *c, uint32_t rank) {
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !mcpg__rankset_has(&g->ranks, rank)) continue;
        mcpg__coord_look_again(g);
    }
}

void mcpg__coord_groups_resync(mcpg_coord_t *c, uint32_t rank) {
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !mcpg__rankset_has(&g->ranks, rank)) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        if (!mcpg__coord_registered(c, g, slot)) continue;
        mcpg__rankset_add(&g->resync, slot);
        mcpg__coord_touch(g);
    }
}

void mcpg__coord_groups_nag(mcpg_coord_t *c, uint32_t rank) {
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        bool fences = g->sync_on || g->sync_owner.v != 0;
        if (g->barrier.phase == MCPG_COORD_BARRIER_NONE && !fences) continue;
        if (c->gids[i] == 0 || !mcpg__rankset_has(&g->ranks, rank)) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        if (mcpg__rankset_has(&g->barrier.asked, slot) && !mcpg__rankset_has(&g->barrier.acked, slot))
            mcpg__coord_barrier_nag(c, g);
        if (!fences || c->now.us < g->nag_us || mcpg__rankset_has(&g->sync_entered, slot)) continue;
        g->nag_us = mcpg__after(c->now, MCPG_COORD_NAG_US);
        g->syncing_due = true;
        mcpg__coord_touch(g);
    }
}

/* ---- join and leave ---- */

void mcpg__coord_join(mcpg_coord_t *c, uint32_t rank, const mcpg_up_join_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    uint32_t slot = g == NULL ? MCPG_COORD_NONE : mcpg__coord_slot_of(c, g, rank);
    if (c->shutting) { /* I9 */
        mcpg__coord_say(&text, "the coordinator is shutting down: join its successor's group");
        mcpg__fx_refuse_call(fx, c->conns[rank], m->call_id, MCPG_SHUTTING_DOWN, 0, &text);
        return;
    }
    if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) {
        mcpg__coord_say(&text, "rank ");
        mcpg__coord_say_u64(&text, rank);
        mcpg__coord_say(&text, " is not registered in group ");
        mcpg__coord_say_u64(&text, m->gid.v);
        mcpg__coord_say(&text, ": create the group again");
        mcpg__fx_refuse_call(fx, c->conns[rank], m->call_id, g == NULL ? MCPG_NOT_FOUND : MCPG_INVALID_STATE, 0, &text);
        return;
    }
    bool goes = g->barrier.phase != MCPG_COORD_BARRIER_NONE && mcpg__rankset_has(&g->barrier.removed, slot);
    if (mcpg__coord_active_live(c, g, slot) && !goes) { /* it is in: the COMMIT that says so is the answer */
        mcpg__rankset_add(&g->resync, slot);
        mcpg__coord_touch(g);
        return;
    }
    mcpg__coord_slot(c, g, slot)->join_call = m->call_id;
    mcpg__rankset_add(&g->joined, slot);
    mcpg__coord_touch(g);
    if (mcpg__rankset_has(&g->awaiting, slot)) return;
    mcpg__rankset_add(&g->awaiting, slot);
    mcpg__coord_members_changed(g);
}

/* The group has nobody left who could activate a joiner. */
static void refuse_joins(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    for (uint32_t s = mcpg__rankset_next(&g->joined, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->joined, s + 1)) {
        if (!mcpg__fx_room_answer(c, fx)) {
            mcpg__coord_touch(g);
            return;
        }
        mcpg__rankset_del(&g->joined, s);
        mcpg__rankset_del(&g->awaiting, s);
        mcpg__coord_members_changed(g);
        uint64_t conn = c->conns[mcpg__coord_slot(c, g, s)->rank.v];
        if (conn == 0) continue;
        mcpg_coord_text_t text = {.len = 0};
        mcpg__coord_say(&text, "all active members have left group ");
        mcpg__coord_say_u64(&text, g->gid.v);
        mcpg__coord_say(&text, ": nobody can activate this rank any more, create the group again");
        mcpg__fx_refuse_call(fx, conn, mcpg__coord_slot(c, g, s)->join_call, MCPG_NOT_FOUND, g->committed.epoch, &text);
    }
}

void mcpg__coord_leave(mcpg_coord_t *c, uint32_t rank, const mcpg_up_leave_group_t *m) {
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g == NULL) return;
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    if (slot == MCPG_COORD_NONE || !(mcpg__coord_registered(c, g, slot) || g->adopted)) return;
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    mcpg_incarnation_t inc = c->ranks[rank].inc; /* of an adopted group it may not have reported that it is in it */
    /* A process never comes back into the generation that it left; one that is still forming it may. */
    if (g->phase == MCPG_COORD_GROUP_READY) s->left = inc;
    uint64_t next_seq = m->next_seq <= MCPG_COORD_SEQ_MAX ? m->next_seq : 0;
    if (g->rebuild != MCPG_COORD_REBUILD_NONE) { /* a later report may show that it is active */
        mcpg__rankset_add(&g->left_early, slot);
        s->left = inc;
        s->ack_seq = next_seq;
    }
    if (mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(s->active, inc)) {
        /* As good as an ACK: what it still does is below that number. What it holds since an ACK it never did. */
        bool acked = g->barrier.phase != MCPG_COORD_BARRIER_NONE && mcpg__rankset_has(&g->barrier.acked, slot);
        if (!acked || next_seq < s->ack_seq) s->ack_seq = next_seq;
        mcpg__rankset_add(&g->leaving, slot);
        mcpg__coord_touch(g);
    }
    mcpg__coord_unregister(c, g, slot);
    mcpg__rankset_del(&g->unseen, slot); /* it has no view here any more that it could lose */
}

/* ---- reactions ---- */

/* What one rank may have missed. */
static void resync_slot(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, bool members_told,
                        mcpg_coord_effects_t *fx) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    mcpg_rankset_t to;
    if (!mcpg__coord_registered(c, g, slot) || c->conns[s->rank.v] == 0) return;
    mcpg__rankset_clear(&to);
    mcpg__rankset_add(&to, s->rank.v);
    if (!members_told) mcpg__coord_send_members(c, g, &to, fx);
    if (g->committed.epoch != 0) mcpg__coord_send_commit(c, g, &to, fx);
    bool fenced = (g->sync_on || g->sync_owner.v != 0) && !mcpg__rankset_has(&g->sync_entered, slot);
    if (fenced && mcpg__coord_active_live(c, g, slot))
        mcpg__fx_send(fx, &to, MCPG_DOWN_SYNCING)->u.syncing.gid = g->gid;
    bool undecided = g->rebuild != MCPG_COORD_REBUILD_NONE; /* nothing is aborted before it is taken over */
    bool holds = !undecided && mcpg__view_cmp(s->abort_view, g->committed) > 0;
    if (holds && !(g->barrier.phase != MCPG_COORD_BARRIER_NONE && mcpg__view_eq(s->abort_view, g->barrier.id))) {
        mcpg_down_abort_t *abort_msg = &mcpg__fx_send(fx, &to, MCPG_DOWN_ABORT)->u.abort;
        abort_msg->gid = g->gid;
        abort_msg->view = s->abort_view;
    }
    if (!undecided) s->abort_view = (mcpg_view_id_t){0, 0};
    mcpg__coord_barrier_ask_again(c, g, slot, fx);
}

static bool resync(mcpg_coord_t *c, mcpg_coord_group_t *g, bool members_told, mcpg_coord_effects_t *fx) {
    for (uint32_t s = mcpg__rankset_next(&g->resync, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->resync, s + 1)) {
        if (!mcpg__fx_room_group(c, fx, 12)) return false;
        mcpg__rankset_del(&g->resync, s);
        resync_slot(c, g, s, members_told, fx);
    }
    return true;
}

/* Rule 14: a founder that is proved dead blocks nobody. One that said goodbye may be between two sessions of one
 * process (destroyed everything, is about to start again): it is waited for until its process is known to have ended.
 */
static bool boot_ready(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *founders) {
    bool any = false;
    mcpg__rankset_clear(founders);
    for (uint32_t s = 0; s < g->founder_count; s++) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        bool here = mcpg__coord_registered(c, g, s) && r->state == MCPG_RANK_HEALTHY;
        if (!here && !(r->known && r->dead && (!r->left || r->exited))) return false;
        any = any || here;
        if (here || g->manual) mcpg__rankset_add(founders, s);
    }
    return any;
}

static bool start_something(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t none, some;
    mcpg__rankset_clear(&none);
    if (g->phase == MCPG_COORD_GROUP_FORMING) {
        if (!boot_ready(c, g, &some)) return false;
        mcpg__coord_barrier_open(c, g, MCPG_COORD_BARRIER_BOOT, &some, &none, MCPG_COORD_NONE, fx);
        return true;
    }
    mcpg__coord_auto_removed(c, g, &some);
    if (!mcpg__rankset_empty(&some) && mcpg__coord_record_blocked(c, g, &some)) return false;
    if (!mcpg__rankset_empty(&some)) { /* before all else: somebody waits for it */
        mcpg__coord_barrier_open(c, g, g->sync_go ? MCPG_COORD_BARRIER_SYNC : MCPG_COORD_BARRIER_CHANGE, &none, &some,
                                 MCPG_COORD_NONE, fx);
        return true;
    }
    if (g->sync_go && !mcpg__coord_stranded(c, g)) {
        mcpg__coord_barrier_open(c, g, MCPG_COORD_BARRIER_SYNC, &none, &none, MCPG_COORD_NONE, fx);
        return true;
    }
    return mcpg__coord_proposal_start(c, g, fx);
}

static void tell_syncing(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t to;
    g->syncing_due = false;
    if (!g->sync_on && g->sync_owner.v == 0) return;
    g->nag_us = mcpg__after(c->now, MCPG_COORD_NAG_US);
    mcpg__coord_listeners(c, g, &to);
    for (uint32_t s = 0; s < g->order_count; s++)
        if (!mcpg__coord_active_live(c, g, s)) mcpg__rankset_del(&to, mcpg__coord_slot(c, g, s)->rank.v);
    if (!mcpg__rankset_empty(&to)) mcpg__fx_send(fx, &to, MCPG_DOWN_SYNCING)->u.syncing.gid = g->gid;
}

bool mcpg__coord_group_react(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    if (!mcpg__fx_room_group(c, fx, 8)) return false;
    if (g->rebuild != MCPG_COORD_REBUILD_NONE && mcpg__coord_rebuild_react(c, g, fx)) return true;
    g->dirty = false;
    if (g->record == MCPG_COORD_RECORD_NONE && mcpg__coord_group_deserted(c, g)) {
        if (g->barrier.phase != MCPG_COORD_BARRIER_NONE) mcpg__coord_barrier_abort(c, g, fx);
        mcpg__coord_proposals_reject_all(c, g, MCPG_ABORTED, "the group was destroyed on all ranks");
        if (!mcpg__coord_proposals_answer(c, g, fx)) {
            mcpg__coord_touch(g);
            return false;
        }
        mcpg__coord_group_forget(c, g);
        return true;
    }
    bool members_told = g->members_dirty;
    if (g->members_dirty) tell_members(c, g, fx);
    if (!resync(c, g, members_told, fx)) {
        mcpg__coord_touch(g);
        return false;
    }
    if (g->syncing_due) tell_syncing(c, g, fx);
    if (c->shutting) mcpg__coord_shutdown_group(c, g, fx);
    if (g->rebuild != MCPG_COORD_REBUILD_NONE) return mcpg__coord_proposals_answer(c, g, fx);
    mcpg__coord_sync_evaluate(c, g);
    bool moved = false;
    if (g->barrier.phase != MCPG_COORD_BARRIER_NONE)
        moved = mcpg__coord_barrier_advance(c, g, fx);
    else if (!c->shutting && !c->health_dirty)
        moved = start_something(c, g, fx);
    else if (!c->shutting)
        mcpg__coord_touch(g);
    if (g->phase == MCPG_COORD_GROUP_READY && mcpg__rankset_empty(&g->active) && !mcpg__rankset_empty(&g->joined))
        refuse_joins(c, g, fx);
    bool answered = mcpg__coord_proposals_answer(c, g, fx);
    if (moved || !answered || g->members_dirty) mcpg__coord_touch(g);
    return answered;
}
