/* coord_rebuild.c: what ranks of an earlier coordinator report: their groups, with the newest COMMIT and the open ACK.
 *
 * It adopts groups, raises the adopted COMMIT and registers the reporters; coord_takeover.c says when a group may be
 * decided. It must never take a report over that contradicts itself, nor let one change a group that is decided.
 */
#include "coordinator/coord_state.h"

/* ---- is the report sound? ---- */

static bool members_sound(const mcpg_coord_t *c, const mcpg_up_rebuild_t *m, const mcpg_member_t *members,
                          uint32_t count) {
    if (count > m->order_count) return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = members[i].slot.v;
        if (slot >= m->order_count || m->order[slot] != members[i].rank.v) return false;
        if (i > 0 && slot <= members[i - 1u].slot.v) return false;
        if (members[i].inc.term == 0 || members[i].inc.term >= c->config.term) return false;
    }
    return true;
}

static bool view_id_sound(const mcpg_coord_t *c, mcpg_view_id_t id) {
    return id.term != 0 && id.term < c->config.term && id.epoch != 0 && id.epoch < MCPG_COORD_SEQ_MAX;
}

static bool commit_sound(const mcpg_coord_t *c, const mcpg_up_rebuild_t *m) {
    const mcpg_down_commit_t *commit = &m->commit;
    if (!view_id_sound(c, commit->view.id) || commit->switch_seq > MCPG_COORD_SEQ_MAX) return false;
    if (commit->leave_count > m->order_count) return false;
    for (uint32_t i = 0; i < commit->leave_count; i++)
        if (commit->leaves[i].slot.v >= m->order_count) return false;
    return members_sound(c, m, commit->view.active, commit->view.active_count);
}

static bool sound(const mcpg_coord_t *c, uint32_t rank, const mcpg_up_rebuild_t *m) {
    mcpg_rankset_t seen;
    mcpg__rankset_clear(&seen);
    if (m->gid.v == 0 || m->order_count == 0 || m->order_count > m->capacity || m->capacity > MCPG_MAX_RANKS)
        return false;
    if (m->key.len > MCPG_KEY_CAP || m->label.len > MCPG_KEY_CAP || m->device_kind.len > MCPG_KEY_CAP) return false;
    for (uint32_t i = 0; i < m->order_count; i++) {
        if (m->order[i] >= c->config.max_ranks || mcpg__rankset_has(&seen, m->order[i])) return false;
        mcpg__rankset_add(&seen, m->order[i]);
    }
    if (!mcpg__rankset_has(&seen, rank) || m->next_seq > MCPG_COORD_SEQ_MAX) return false;
    if (m->aborted.epoch != 0 && !view_id_sound(c, m->aborted)) return false;
    if (m->acked.epoch != 0 && !(view_id_sound(c, m->acked) && members_sound(c, m, m->doubt, m->doubt_count)))
        return false;
    if (m->has_commit) return commit_sound(c, m);
    return m->acked.epoch != 0;
}

static bool fits(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_up_rebuild_t *m) {
    uint32_t common = m->order_count < g->order_count ? m->order_count : g->order_count;
    if (!g->adopted || m->capacity != g->capacity || m->manual != g->manual || m->no_auto_sync != g->no_auto_sync)
        return false;
    for (uint32_t i = 0; i < common; i++)
        if (mcpg__coord_slot(c, g, i)->rank.v != m->order[i]) return false;
    return true;
}

/* ---- adopting ---- */

static void keep_bytes(uint8_t *to, uint32_t *len, mcpg_bytes_t from) {
    if (from.len > 0) memcpy(to, from.ptr, from.len);
    *len = from.len;
}

static mcpg_coord_group_t *adopt(mcpg_coord_t *c, const mcpg_up_rebuild_t *m) {
    mcpg_coord_group_t *g = mcpg__coord_group_new(c, m->capacity, m->gid);
    if (g == NULL) return NULL;
    keep_bytes(g->key, &g->key_len, m->key);
    keep_bytes(g->label, &g->label_len, m->label);
    keep_bytes(g->kind, &g->kind_len, m->device_kind);
    g->manual = m->manual;
    g->no_auto_sync = m->no_auto_sync;
    g->founder_count = m->order_count;
    g->adopted = true;
    g->gather_until_us = mcpg__after(c->now, c->config.timers.offline_us);
    mcpg__coord_want(c, g->gather_until_us);
    mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_GATHER);
    return g;
}

static void order_take(const mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_up_rebuild_t *m) {
    for (uint32_t i = g->order_count; i < m->order_count; i++) {
        mcpg__coord_slot(c, g, i)->rank.v = m->order[i];
        mcpg__rankset_add(&g->ranks, m->order[i]);
    }
    if (m->order_count > g->order_count) g->order_count = m->order_count;
    if (m->order_count < g->founder_count) g->founder_count = m->order_count; /* who founded it knew no more */
}

static void epoch_take(mcpg_coord_group_t *g, mcpg_view_id_t id) {
    if (id.epoch > g->epoch_used) g->epoch_used = id.epoch; /* I1 */
}

static void names_take(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_member_t *members, uint32_t count,
                       mcpg_coord_effects_t *fx) {
    for (uint32_t i = 0; i < count; i++) {
        mcpg__coord_name(c, members[i].rank.v, members[i].inc, fx);
        if (g->rebuild != MCPG_COORD_REBUILD_NONE) mcpg__rankset_add(&g->wanted, members[i].rank.v);
    }
}

/* I2: everything that a COMMIT is built from, so that it is sent again byte for byte. */
static void commit_take(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_down_commit_t *m) {
    mcpg__coord_count_active(c, g, false);
    mcpg__rankset_clear(&g->active);
    mcpg__rankset_clear(&g->leaves);
    mcpg__rankset_clear(&g->leaving);
    for (uint32_t i = 0; i < m->view.active_count; i++) {
        uint32_t s = m->view.active[i].slot.v;
        mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        slot->active = m->view.active[i].inc;
        slot->active_since = m->view.id.epoch;
        mcpg__rankset_add(&g->active, s);
        if (mcpg__coord_registered(c, g, s)) mcpg__rankset_add(&g->awaiting, s);
        if (mcpg__rankset_has(&g->left_early, s) && mcpg__inc_eq(slot->left, slot->active))
            mcpg__rankset_add(&g->leaving, s);
    }
    for (uint32_t i = 0; i < m->leave_count; i++) {
        mcpg__rankset_add(&g->leaves, m->leaves[i].slot.v);
        mcpg__coord_slot(c, g, m->leaves[i].slot.v)->leave_seq = m->leaves[i].leave_seq;
    }
    g->fenced = g->leaves;
    mcpg__rankset_and(&g->fenced, &g->active);
    g->switch_seq = m->switch_seq;
    g->committed = m->view.id;
    g->phase = MCPG_COORD_GROUP_READY;
    g->sync_last = m->sync;
    g->last_sync_failed = m->sync_failed;
    g->last_sync_first = m->sync ? m->sync_first_failed_seq : MCPG_NO_SEQ;
    epoch_take(g, m->view.id);
    mcpg__coord_count_active(c, g, true);
    c->health_dirty = true; /* active ranks are preferred */
}

/* Somebody who took part in its predecessor was told that this view is aborted, or has taken part in a barrier of a
 * later coordinator, which had settled it: it counts for nobody any more. */
bool mcpg__coord_rebuild_buried(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_view_id_t id) {
    for (uint32_t s = mcpg__rankset_next(&g->was_active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->was_active, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        if (!mcpg__coord_registered(c, g, s) || mcpg__view_cmp(slot->seen, id) >= 0) continue;
        if (mcpg__view_eq(slot->aborted, id) || slot->aborted.term > id.term) return true;
    }
    return false;
}

static void doubt_take(const mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_up_rebuild_t *m) {
    if (mcpg__view_cmp(m->acked, g->doubt) > 0) {
        g->doubt = m->acked;
        mcpg__rankset_clear(&g->doubt_active);
        for (uint32_t i = 0; i < m->doubt_count; i++) {
            mcpg__rankset_add(&g->doubt_active, m->doubt[i].slot.v);
            mcpg__coord_slot(c, g, m->doubt[i].slot.v)->target = m->doubt[i].inc;
        }
    }
    epoch_take(g, m->acked);
    epoch_take(g, m->aborted);
}

static bool says_active(const mcpg_up_rebuild_t *m, uint32_t slot, mcpg_incarnation_t inc) {
    for (uint32_t i = 0; m->has_commit && i < m->commit.view.active_count; i++)
        if (m->commit.view.active[i].slot.v == slot) return mcpg__inc_eq(m->commit.view.active[i].inc, inc);
    return false;
}

static void reporter_take(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, const mcpg_up_rebuild_t *m) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    s->reg = c->ranks[s->rank.v].inc;
    s->left = (mcpg_incarnation_t){0, 0};
    s->commit_acked = 0;
    s->sync_call = 0;
    s->seen = m->has_commit ? m->commit.view.id : (mcpg_view_id_t){0, 0};
    s->aborted = m->aborted;
    s->abort_view = m->acked;
    s->ack_seq = m->next_seq;
    mcpg__rankset_del(&g->was_active, slot);
    if (says_active(m, slot, s->reg)) mcpg__rankset_add(&g->was_active, slot);
    bool active = mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(s->active, s->reg);
    if (m->awaiting || active) mcpg__rankset_add(&g->awaiting, slot);
    mcpg__coord_members_changed(g);
}

/* Decided here, and forgotten when its last member had left: an older report does not bring it back. */
static bool is_over(const mcpg_coord_t *c, mcpg_gid_t gid) {
    for (uint32_t i = 0; i < MCPG_COORD_ENDED; i++)
        if (c->ended[i] == gid.v) return true;
    return false;
}

void mcpg__coord_rebuild(mcpg_coord_t *c, uint32_t rank, const mcpg_up_rebuild_t *m, mcpg_coord_effects_t *fx) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    if (c->shutting || r->reported || r->inc.term >= c->config.term || !sound(c, rank, m)) return;
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g == NULL && is_over(c, m->gid)) {
        c->ranks[rank].renew = true;
        return;
    }
    if (g == NULL) g = adopt(c, m);
    if (g == NULL || !fits(c, g, m)) return;
    order_take(c, g, m);
    names_take(c, g, m->doubt, m->doubt_count, fx);
    if (m->has_commit) names_take(c, g, m->commit.view.active, m->commit.view.active_count, fx);
    if (c->conns[rank] == 0) return; /* a view names a later process of this very rank */
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    reporter_take(c, g, slot, m);
    if (g->rebuild != MCPG_COORD_REBUILD_NONE) {
        bool newer = m->has_commit && mcpg__view_cmp(m->commit.view.id, g->committed) > 0;
        if (newer && !mcpg__coord_rebuild_buried(c, g, m->commit.view.id)) commit_take(c, g, &m->commit);
        /* What was adopted so far turns out to have been aborted: back to what its participant has. */
        if (m->has_commit && mcpg__coord_rebuild_buried(c, g, g->committed)) commit_take(c, g, &m->commit);
        doubt_take(c, g, m);
    }
    mcpg__coord_look_again(g);
    if (g->rebuild != MCPG_COORD_REBUILD_NONE || mcpg__coord_rebuild_judge(c, g, slot, fx)) return;
    mcpg__rankset_add(&g->resync, slot);
}

/* It knows no other group: where it is active and has not reported, it has left. */
void mcpg__coord_rebuild_end(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx) {
    if (c->ranks[rank].reported) return;
    c->ranks[rank].reported = true;
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (c->gids[i] == 0 || !g->adopted || !mcpg__rankset_has(&g->ranks, rank)) continue;
        if (g->rebuild == MCPG_COORD_REBUILD_NONE) mcpg__coord_rebuild_leaver(c, g, mcpg__coord_slot_of(c, g, rank));
        mcpg__coord_look_again(g);
    }
    /* Not sooner: its other groups need what it had to say about them. */
    if (mcpg__coord_lost_a_view(c, rank)) mcpg__coord_offline(c, rank, fx);
}
