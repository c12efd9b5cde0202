/* coord_shutdown.c: the end: nothing new is taken (I9), what is open is answered, then STOP.
 *
 * Barriers that are not committed are aborted; committed ones are waited for until everybody has installed them. It
 * must never decide a membership any more.
 */
#include "coordinator/coord_state.h"

void mcpg__coord_shutdown(mcpg_coord_t *c) {
    if (c->shutting) return;
    c->shutting = true;
    c->drain_until_us = mcpg__after(c->now, MCPG_COORD_DRAIN_US);
    mcpg__coord_want(c, c->drain_until_us);
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] != 0) mcpg__coord_touch(&c->groups[i]);
}

/* Answers the open calls that hang on slots. False: no room left. */
static bool refuse_slots(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_rankset_t *set, bool sync,
                         mcpg_coord_effects_t *fx) {
    for (uint32_t s = mcpg__rankset_next(set, 0); s < g->order_count; s = mcpg__rankset_next(set, s + 1)) {
        if (!mcpg__fx_room_answer(c, fx)) return false;
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        mcpg_coord_text_t text = {.len = 0};
        mcpg__rankset_del(set, s);
        mcpg__coord_say(&text, "the coordinator is shutting down: the membership stays as it is");
        uint64_t conn = c->conns[slot->rank.v];
        if (conn == 0) continue;
        mcpg__fx_refuse_call(fx, conn, sync ? slot->sync_call : slot->join_call, MCPG_SHUTTING_DOWN, g->committed.epoch,
                             &text);
    }
    return true;
}

void mcpg__coord_shutdown_group(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    if (g->barrier.phase != MCPG_COORD_BARRIER_NONE) mcpg__coord_barrier_abort(c, g, fx);
    mcpg__coord_proposals_reject_all(c, g, MCPG_SHUTTING_DOWN,
                                     "the coordinator is shutting down: the membership stays as it is");
    if (!refuse_slots(c, g, &g->joined, false, fx) || !refuse_slots(c, g, &g->sync_entered, true, fx) ||
        !refuse_slots(c, g, &g->sync_held, true, fx))
        mcpg__coord_touch(g);
    g->sync_on = false;
    g->sync_agreed = false;
    g->sync_go = false;
    g->sync_owner.v = 0;
}

void mcpg__coord_shutdown_finish(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (!c->shutting || c->stopped) return;
    bool drained = c->callers_used == 0 && !c->more;
    if (!drained && c->now.us < c->drain_until_us) return;
    c->stopped = true;
    mcpg__fx_stop(fx);
}
