/* coord_takeover.c: when a group of an earlier coordinator is decided: after settling, when everybody who was active
 * has reported, is proved dead, or an offline time has passed; when the greater part is here; and when the store's
 * record does not speak against it.
 *
 * It must never decide for a smaller part, nor abort a view that the greater part of it may have seen committed.
 */
#include "coordinator/coord_state.h"

/* ---- clocks ---- */

static bool settled(const mcpg_coord_t *c) {
    return c->settle_us == 0;
}

bool mcpg__coord_rebuilding(const mcpg_coord_t *c) {
    return !settled(c) || c->gathering > 0;
}

/* Not decided, and neither is anybody refused for it: it is a matter of moments. */
static bool waits(mcpg_coord_rebuild_phase_t phase) {
    return phase == MCPG_COORD_REBUILD_GATHER || phase == MCPG_COORD_REBUILD_CLAIM;
}

void mcpg__coord_rebuild_set(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_rebuild_phase_t phase) {
    if (g->rebuild == phase) return;
    if (waits(g->rebuild)) c->gathering--;
    if (waits(phase)) c->gathering++;
    g->rebuild = phase;
    mcpg__coord_touch(g);
    if (!mcpg__coord_rebuilding(c)) c->more = true; /* the full lists are due */
}

void mcpg__coord_rebuild_clock(mcpg_coord_t *c) {
    if (c->settle_us == MCPG_COORD_NEVER) {
        c->settle_us = mcpg__after(c->now, c->config.timers.settle_us);
        mcpg__coord_want(c, c->settle_us);
    }
    bool over = c->settle_us != 0 && c->now.us >= c->settle_us;
    if (over) c->settle_us = 0;
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (c->gids[i] == 0) continue;
        bool timed_out = g->rebuild == MCPG_COORD_REBUILD_GATHER && c->now.us >= g->gather_until_us;
        if (over || timed_out) mcpg__coord_look_again(g);
        if (g->record_retry_us == 0 || c->now.us < g->record_retry_us) continue;
        g->record_retry_us = 0;
        mcpg__coord_look_again(g);
    }
}

uint64_t mcpg__coord_rebuild_deadline(const mcpg_coord_t *c) {
    uint64_t earliest = c->settle_us != 0 ? c->settle_us : MCPG_COORD_NEVER;
    if (c->mass_us != 0 && c->mass_us < earliest) earliest = c->mass_us;
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_group_t *g = &c->groups[i];
        if (c->gids[i] == 0) continue;
        bool gathers = g->rebuild == MCPG_COORD_REBUILD_GATHER && g->gather_until_us > c->now.us;
        if (gathers && g->gather_until_us < earliest) earliest = g->gather_until_us;
        if (g->record_retry_us != 0 && g->record_retry_us < earliest) earliest = g->record_retry_us;
    }
    return earliest;
}

void mcpg__coord_rebuild_forgive(mcpg_coord_t *c, uint64_t late_us) {
    if (c->settle_us != 0 && c->settle_us != MCPG_COORD_NEVER)
        c->settle_us = mcpg__after((mcpg_time_t){c->settle_us}, late_us);
    if (c->mass_us != 0 && c->mass_us != MCPG_COORD_NEVER) c->mass_us = mcpg__after((mcpg_time_t){c->mass_us}, late_us);
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] != 0 && c->groups[i].rebuild == MCPG_COORD_REBUILD_GATHER)
            c->groups[i].gather_until_us = mcpg__after((mcpg_time_t){c->groups[i].gather_until_us}, late_us);
}

/* ---- who is here ---- */

bool mcpg__coord_accounted_for(const mcpg_coord_t *c, uint32_t rank) {
    return c->ranks[rank].known && (c->ranks[rank].dead || c->ranks[rank].reported);
}

static bool complete(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    bool forming = g->phase == MCPG_COORD_GROUP_FORMING; /* any of its order may have seen the first COMMIT */
    const mcpg_rankset_t *wanted = forming ? &g->ranks : &g->wanted;
    for (uint32_t r = mcpg__rankset_next(wanted, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(wanted, r + 1))
        if (!mcpg__coord_accounted_for(c, r)) return false;
    return true;
}

/* At least half of those that are not proved dead have reported and are attached; exactly half: with the lowest. */
static bool greater_part_here(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *set,
                              bool in_doubt) {
    uint32_t alive = 0, here = 0;
    bool lowest_here = false;
    for (uint32_t s = mcpg__rankset_next(set, 0); s < g->order_count; s = mcpg__rankset_next(set, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        mcpg_incarnation_t inc = in_doubt ? slot->target : slot->active;
        uint32_t rank = slot->rank.v;
        if (mcpg__coord_inc_over(c, rank, inc)) continue;
        bool present = c->conns[rank] != 0 && c->ranks[rank].reported && mcpg__inc_eq(c->ranks[rank].inc, inc);
        if (alive == 0) lowest_here = present;
        alive++;
        if (present) here++;
    }
    return mcpg__coord_greater_part(here, alive, lowest_here);
}

/* ---- decided ---- */

/* Rule 9, from what the process said: a view was committed without its ACK, or it has one that was never committed. */
static bool lost_a_view(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    int seen = mcpg__view_cmp(s->seen, g->committed);
    if (seen >= 0) return seen > 0;
    if (mcpg__view_eq(s->abort_view, g->committed) || !mcpg__rankset_has(&g->was_active, slot)) return false;
    bool active = mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(s->active, s->reg);
    return !active || mcpg__rankset_has(&g->fenced, slot);
}

static void make_new(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_coord_effects_t *fx) {
    uint32_t rank = mcpg__coord_slot(c, g, slot)->rank.v;
    mcpg__rankset_add(&g->unseen, slot);
    if (c->ranks[rank].reported) mcpg__coord_offline(c, rank, fx); /* else at its REBUILD_END */
}

bool mcpg__coord_rebuild_judge(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_coord_effects_t *fx) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    if (lost_a_view(c, g, slot)) {
        make_new(c, g, slot, fx);
        return true;
    }
    if (mcpg__view_eq(s->seen, g->committed)) s->commit_acked = g->committed.epoch;
    return false;
}

void mcpg__coord_rebuild_leaver(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    const mcpg_coord_rank_t *r = &c->ranks[s->rank.v];
    if (!mcpg__inc_none(s->reg) || !mcpg__rankset_has(&g->active, slot) || !mcpg__inc_eq(s->active, r->inc)) return;
    if (!r->reported || r->dead || mcpg__rankset_has(&g->leaving, slot)) return;
    s->left = r->inc;
    s->ack_seq = 0;
    mcpg__rankset_add(&g->leaving, slot);
    mcpg__coord_touch(g);
}

static void resync_all(const mcpg_coord_t *c, mcpg_coord_group_t *g) {
    for (uint32_t s = 0; s < g->order_count; s++)
        if (mcpg__coord_registered(c, g, s)) mcpg__rankset_add(&g->resync, s);
}

void mcpg__coord_rebuild_decide(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_NONE);
    g->doubt = (mcpg_view_id_t){0, 0};
    for (uint32_t s = 0; s < g->order_count; s++) {
        if (mcpg__coord_registered(c, g, s))
            (void)mcpg__coord_rebuild_judge(c, g, s, fx);
        else
            mcpg__coord_rebuild_leaver(c, g, s);
    }
    for (uint32_t s = mcpg__rankset_next(&g->bound, 0); g->manual && s < g->order_count;
         s = mcpg__rankset_next(&g->bound, s + 1)) /* I7: fenced, not removed */
        if (mcpg__coord_registered(c, g, s)) make_new(c, g, s, fx);
    if (g->manual) mcpg__rankset_clear(&g->bound);
    mcpg__rankset_minus(&g->joined, &g->active); /* the COMMIT is their answer */
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = c->props[i].next)
        c->props[i].admit_epoch = g->committed.epoch; /* they waited for this view to be known */
    resync_all(c, g);
    mcpg__coord_members_changed(g);
    mcpg__coord_reports_release(c, g, fx);
    mcpg__coord_sync_release(c, g, fx);
    c->health_dirty = true;
}

/* The first view of a group was prepared and nobody has its COMMIT: it begins anew, under a new id. */
static void abort_forming(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t to;
    mcpg__coord_listeners(c, g, &to);
    if (!mcpg__rankset_empty(&to)) {
        mcpg_down_abort_t *message = &mcpg__fx_send(fx, &to, MCPG_DOWN_ABORT)->u.abort;
        message->gid = g->gid;
        message->view = g->doubt;
    }
    mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_NONE);
    mcpg__coord_group_forget(c, g);
}

static bool may_decide(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    if (g->phase == MCPG_COORD_GROUP_FORMING) return complete(c, g);
    if (!greater_part_here(c, g, &g->active, false)) return false;
    bool in_doubt = mcpg__view_cmp(g->doubt, g->committed) > 0 && !mcpg__coord_rebuild_buried(c, g, g->doubt);
    return !in_doubt || greater_part_here(c, g, &g->doubt_active, true);
}

static void look(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    if (!settled(c)) return;
    if (!complete(c, g) && c->now.us < g->gather_until_us) return;
    if (!may_decide(c, g)) {
        if (g->rebuild != MCPG_COORD_REBUILD_STRANDED) resync_all(c, g);
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_STRANDED);
    } else if (g->phase == MCPG_COORD_GROUP_FORMING) {
        abort_forming(c, g, fx);
    } else if (c->config.has_store) {
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_CLAIM);
        mcpg__coord_record_claim(c, g, fx);
    } else {
        mcpg__coord_rebuild_decide(c, g, fx);
    }
}

bool mcpg__coord_rebuild_react(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    if (c->shutting) { /* it stays undecided; what is open is answered */
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_STRANDED);
        g->dirty = false;
        return false;
    }
    bool look_now = g->rebuild_due && g->record == MCPG_COORD_RECORD_NONE && g->record_retry_us == 0;
    if (look_now) {
        g->rebuild_due = false;
        look(c, g, fx);
    }
    if (g->phase == MCPG_COORD_GROUP_FREE) return true;
    g->dirty = false;
    return waits(g->rebuild);
}

void mcpg__coord_say_gathering(mcpg_coord_text_t *text) {
    mcpg__coord_say(text, "the coordinator is new and still gathers what the ranks know: try again in a moment");
}
