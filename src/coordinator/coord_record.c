/* coord_record.c: one ruler (rule 8): the store's record of a group, written before a view that leaves somebody out
 * unproved, and claimed before the first decision in a group that an earlier coordinator ruled.
 *
 * It must never let a COMMIT pass that leaves out a rank with neither ACK nor proof of death before the store has taken
 * that view, and never decide anything after somebody newer has written.
 */
#include "coordinator/coord_state.h"

bool mcpg__coord_inc_over(const mcpg_coord_t *c, uint32_t rank, mcpg_incarnation_t inc) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    if (!r->known) return false;
    int cmp = mcpg__inc_cmp(r->inc, inc);
    return cmp > 0 || (cmp == 0 && r->dead);
}

/* ---- what a view leaves out ---- */

/* Its ACK is still to come. */
static bool owing(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    bool removed = mcpg__rankset_has(&b->removed, slot);
    if (!mcpg__rankset_has(&b->asked, slot) || mcpg__rankset_has(&b->acked, slot)) return false;
    if (!mcpg__coord_live(c, g, slot)) return false;
    if (!removed) return true;
    return c->now.us < b->removed_deadline_us && mcpg__coord_rank_of(c, g, slot)->state == MCPG_RANK_HEALTHY;
}

/* A goodbye names the leaver's number: as good as an ACK. */
static bool has_acked(const mcpg_coord_group_t *g, uint32_t slot) {
    return mcpg__rankset_has(&g->barrier.acked, slot) || mcpg__rankset_has(&g->leaving, slot);
}

/* Slots that the open barrier leaves out, or fences, with neither ACK nor proof of death; kept: all others. */
static bool left_out(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *kept) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    bool any = false;
    *kept = g->active;
    mcpg__rankset_minus(kept, &b->removed);
    mcpg__rankset_minus(kept, &b->added);
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        bool here = mcpg__coord_live(c, g, s);
        bool stays = mcpg__rankset_has(kept, s) && here;
        if (!stays) mcpg__rankset_del(kept, s); /* a manual group fences it */
        if (stays || has_acked(g, s) || owing(c, g, s) || mcpg__coord_inc_over(c, slot->rank.v, slot->active)) continue;
        any = true;
    }
    for (uint32_t s = mcpg__rankset_next(&b->dropped, 0); s < g->order_count;
         s = mcpg__rankset_next(&b->dropped, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        bool was_added = !mcpg__rankset_has(&g->active, s);
        if (was_added && !has_acked(g, s) && !mcpg__coord_inc_over(c, slot->rank.v, slot->target)) any = true;
    }
    mcpg__rankset_or(kept, &b->added);
    return any;
}

/* More than half of the active ones, or half of them with the lowest, have promised or will: what is proved about the
 * others is then about ranks that nobody else can have taken over. */
static bool greater_part(const mcpg_coord_group_t *g, const mcpg_rankset_t *promised) {
    uint32_t all = mcpg__rankset_count(&g->active), here = mcpg__rankset_count(promised);
    return all == 0 ||
           mcpg__coord_greater_part(here, all, mcpg__rankset_has(promised, mcpg__rankset_next(&g->active, 0)));
}

static bool needs_record(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *kept) {
    mcpg_rankset_t promised;
    if (left_out(c, g, kept)) return true;
    mcpg__rankset_clear(&promised);
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count; s = mcpg__rankset_next(&g->active, s + 1))
        if (has_acked(g, s) || owing(c, g, s)) mcpg__rankset_add(&promised, s);
    return !greater_part(g, &promised);
}

bool mcpg__coord_record_blocked(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *removed) {
    mcpg_rankset_t promised;
    if (!c->config.has_store || c->now.us >= g->record_retry_us) return false;
    mcpg__rankset_clear(&promised);
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        bool here = mcpg__coord_live(c, g, s);
        bool goes = mcpg__rankset_has(removed, s);
        if (goes) here = here && mcpg__coord_rank_of(c, g, s)->state == MCPG_RANK_HEALTHY;
        if (here || mcpg__rankset_has(&g->leaving, s))
            mcpg__rankset_add(&promised, s);
        else if (goes && !mcpg__coord_inc_over(c, slot->rank.v, slot->active))
            return true;
    }
    return !greater_part(g, &promised);
}

/* ---- effects ---- */

static mcpg_group_record_t *emit(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_fx_kind_t kind,
                                 mcpg_coord_effects_t *fx) {
    mcpg_group_record_t *record = mcpg__fx_record(fx, kind, g->gid);
    record->term = c->config.term;
    record->coordinator_id = c->config.coordinator_id;
    return record;
}

void mcpg__coord_record_claim(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    (void)emit(c, g, MCPG_COORD_FX_RECORD_CLAIM, fx);
    g->record = MCPG_COORD_RECORD_CLAIM;
}

mcpg_coord_record_step_t mcpg__coord_record_step(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t kept;
    if (!c->config.has_store || b->kind == MCPG_COORD_BARRIER_BOOT || !needs_record(c, g, &kept))
        return MCPG_COORD_RECORD_READY;
    bool same = mcpg__view_eq(g->record_view, b->id) && mcpg__rankset_eq(&g->record_set, &kept);
    if (same && g->record_done) return MCPG_COORD_RECORD_READY;
    if (g->record != MCPG_COORD_RECORD_NONE) return MCPG_COORD_RECORD_WAIT;
    if (mcpg__view_eq(g->record_view, b->id) && g->record_failed) return MCPG_COORD_RECORD_FAILED;
    mcpg_group_record_t *record = emit(c, g, MCPG_COORD_FX_RECORD_WRITE, fx);
    record->has_view = true;
    record->view.id = b->id;
    record->view.active = mcpg__coord_copy_members(c, g, &kept, &b->added, &record->view.active_count, fx);
    g->record = MCPG_COORD_RECORD_WRITE;
    g->record_view = b->id;
    g->record_set = kept;
    g->record_done = false;
    g->record_failed = false;
    return MCPG_COORD_RECORD_WAIT;
}

/* ---- answers ---- */

static void retry_later(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    g->record_retry_us = mcpg__after(c->now, MCPG_COORD_RECORD_US);
    mcpg__coord_want(c, g->record_retry_us);
}

/* What the record says of a slot's process. */
typedef struct {
    uint32_t kept_attached; /* members of the COMMIT that the record keeps, and that are here */
    bool all_over;          /* every process that it keeps has ended for good */
    mcpg_rankset_t kept;    /* slots */
} verdict_t;

static void read_record(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_view_body_t *view,
                        verdict_t *out) {
    memset(out, 0, sizeof(*out));
    out->all_over = true;
    for (uint32_t i = 0; i < view->active_count; i++) {
        const mcpg_member_t *m = &view->active[i];
        if (m->rank.v >= c->config.max_ranks) continue;
        bool over = mcpg__coord_inc_over(c, m->rank.v, m->inc);
        out->all_over = out->all_over && over;
        bool ours = m->slot.v < g->order_count && mcpg__rankset_has(&g->active, m->slot.v);
        if (!ours || !mcpg__inc_eq(mcpg__coord_slot(c, g, m->slot.v)->active, m->inc)) continue;
        mcpg__rankset_add(&out->kept, m->slot.v);
        if (!over && c->conns[m->rank.v] != 0) out->kept_attached++;
    }
}

/* The view that the record names beyond what anybody here has seen; NULL: it says nothing new. */
static const mcpg_view_body_t *newer_view(const mcpg_coord_group_t *g, const mcpg_group_record_t *record) {
    bool newer = record != NULL && record->has_view && mcpg__view_cmp(record->view.id, g->committed) > 0;
    return newer ? &record->view : NULL;
}

/* The ranks that a newer view left out are not built upon while one that it kept may be alive. True: the group may be
 * decided. */
static bool claim_binds(const mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_view_body_t *view) {
    verdict_t verdict;
    mcpg__rankset_clear(&g->bound);
    if (view == NULL) return true;
    if (view->id.epoch > g->epoch_used && view->id.epoch < MCPG_COORD_SEQ_MAX) g->epoch_used = view->id.epoch;
    read_record(c, g, view, &verdict);
    if (verdict.all_over) return true;
    if (verdict.kept_attached == 0) return false;
    g->bound = g->active;
    mcpg__rankset_minus(&g->bound, &verdict.kept);
    return true;
}

/* Ranks that the record names may know its COMMIT: they are waited for as well. */
static bool wants_more(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_view_body_t *view, mcpg_coord_effects_t *fx) {
    bool more = false;
    for (uint32_t i = 0; view != NULL && i < view->active_count; i++) {
        const mcpg_member_t *m = &view->active[i];
        if (m->rank.v >= c->config.max_ranks) continue;
        mcpg__coord_name(c, m->rank.v, m->inc, fx);
        mcpg__rankset_add(&g->wanted, m->rank.v);
        more = more || !mcpg__coord_accounted_for(c, m->rank.v);
    }
    return more && c->now.us < g->gather_until_us;
}

static void claimed(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_coord_event_t *event, mcpg_coord_effects_t *fx) {
    if (g->rebuild != MCPG_COORD_REBUILD_CLAIM) return;
    const mcpg_view_body_t *view = newer_view(g, event->record);
    if (event->status != MCPG_OK) {
        retry_later(c, g);
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_STRANDED);
    } else if (wants_more(c, g, view, fx) || g->rebuild_due) { /* due: somebody came or went meanwhile */
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_GATHER);
    } else if (claim_binds(c, g, view)) {
        mcpg__coord_rebuild_decide(c, g, fx);
    } else {
        mcpg__coord_rebuild_set(c, g, MCPG_COORD_REBUILD_STRANDED);
        g->rebuild_due = false; /* until somebody comes or goes */
    }
}

void mcpg__coord_record_event(mcpg_coord_t *c, const mcpg_coord_event_t *event, mcpg_coord_effects_t *fx) {
    if (event->status == MCPG_CONFLICT) {
        mcpg__coord_depose(c);
        return;
    }
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, event->gid);
    if (g == NULL || g->record == MCPG_COORD_RECORD_NONE) return;
    bool claim = g->record == MCPG_COORD_RECORD_CLAIM;
    g->record = MCPG_COORD_RECORD_NONE;
    mcpg__coord_touch(g);
    if (claim) {
        claimed(c, g, event, fx);
        return;
    }
    g->record_done = event->status == MCPG_OK;
    g->record_failed = !g->record_done;
    if (g->record_failed) retry_later(c, g);
}

/* ---- deposed ---- */

void mcpg__coord_depose(mcpg_coord_t *c) {
    c->deposed = true;
}

void mcpg__coord_depose_finish(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (!c->deposed || c->stopped) return;
    for (uint32_t r = mcpg__rankset_next(&c->streams, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->streams, r + 1))
        mcpg__fx_close(fx, c->conns[r]);
    c->stopped = true;
    mcpg__fx_stop(fx);
}
