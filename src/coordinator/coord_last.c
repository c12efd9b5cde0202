/* coord_last.c: who leaves an auto group by itself, and who never does: want of contact never empties a group, and the
 * silence of most ranks at once says more about the coordinator's network than about them.
 *
 * It must never change anything but the count of silences: coord_view.c carries removals out.
 */
#include "coordinator/coord_state.h"

/* ---- mass loss ---- */

/* More than half of those present fell silent within one offline time: one more offline time before anybody is removed
 * for silence alone, counted from the first who comes back when nobody is left. */
void mcpg__coord_mass_note(mcpg_coord_t *c, uint32_t present_before) {
    uint64_t window = c->config.timers.offline_us;
    if (c->mass_window_us == 0 || c->now.us - c->mass_window_us > window) {
        c->mass_window_us = c->now.us;
        c->mass_base = present_before;
        c->mass_lost = 0;
    }
    c->mass_lost++;
    if (c->mass_lost * 2u <= c->mass_base) return;
    mcpg__coord_mass_begin(c);
    if (mcpg__rankset_empty(&c->streams)) c->mass_us = MCPG_COORD_NEVER;
}

void mcpg__coord_mass_begin(mcpg_coord_t *c) {
    c->mass_us = mcpg__after(c->now, c->config.timers.offline_us);
    mcpg__coord_want(c, c->mass_us);
}

void mcpg__coord_mass_back(mcpg_coord_t *c) {
    if (c->mass_us == MCPG_COORD_NEVER) mcpg__coord_mass_begin(c);
}

void mcpg__coord_mass_timer(mcpg_coord_t *c) {
    if (c->mass_us == 0 || c->now.us < c->mass_us) return;
    c->mass_us = 0;
    c->mass_window_us = 0;
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] != 0) mcpg__coord_touch(&c->groups[i]);
}

/* ---- last ranks ---- */

/* An active slot whose process is neither proved dead, nor followed by another, nor gone. */
static bool may_be_alive(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, slot);
    return mcpg__inc_eq(mcpg__coord_slot(c, g, slot)->active, r->inc) && !r->dead &&
           !mcpg__rankset_has(&g->leaving, slot);
}

static bool silent_in_mass(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *kept) {
    bool any = false;
    if (c->mass_us == 0) return false;
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (!may_be_alive(c, g, s)) continue;
        mcpg__rankset_add(kept, s);
        any = any || r->state == MCPG_RANK_OFFLINE;
    }
    return any;
}

/* An auto group is never emptied for want of contact: when none of its active ranks is HEALTHY, those that may still
 * be alive are kept: the only attached one, or, with none attached, all that are neither proved dead nor gone. (Two
 * attached ones that are both outside the healthy set are the smaller part of a split, and leave.) Returns how many of
 * them are attached; with none, nothing can change in the group until one is back. */
static uint32_t last_ranks(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *kept) {
    uint32_t attached = 0, only = 0;
    mcpg__rankset_clear(kept);
    if (g->manual) return 1;
    if (silent_in_mass(c, g, kept)) return 0;
    mcpg__rankset_clear(kept);
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (!may_be_alive(c, g, s)) continue;
        mcpg__rankset_add(kept, s);
        if (r->state == MCPG_RANK_OFFLINE) continue;
        attached++;
        only = s;
        if (r->state != MCPG_RANK_HEALTHY && attached == 1) continue;
        mcpg__rankset_clear(kept);
        return attached;
    }
    if (attached == 0) return 0;
    mcpg__rankset_clear(kept);
    mcpg__rankset_add(kept, only);
    return attached;
}

bool mcpg__coord_stranded(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    mcpg_rankset_t kept;
    if (g->rebuild == MCPG_COORD_REBUILD_STRANDED) return true;
    return last_ranks(c, g, &kept) == 0 && !mcpg__rankset_empty(&kept);
}

void mcpg__coord_auto_removed(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *out) {
    mcpg_rankset_t kept;
    mcpg__rankset_clear(out);
    if (last_ranks(c, g, &kept) == 0 && !mcpg__rankset_empty(&kept)) return;
    *out = g->leaving;
    mcpg__rankset_or(out, &g->bound);
    mcpg__rankset_and(out, &g->active);
    if (g->manual) return; /* I7: a manual group loses nobody by itself */
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count;
         s = mcpg__rankset_next(&g->active, s + 1)) {
        const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, s);
        if (r->state != MCPG_RANK_HEALTHY || !mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, r->inc))
            mcpg__rankset_add(out, s);
    }
    mcpg__rankset_minus(&kept, &g->bound);
    mcpg__rankset_minus(out, &kept);
}

/* It starts over then, with what is known now. */
bool mcpg__coord_barrier_loses_last(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    mcpg_rankset_t kept, removed = b->removed;
    if (b->kind == MCPG_COORD_BARRIER_BOOT || g->manual) return false;
    if (last_ranks(c, g, &kept) == 0 && !mcpg__rankset_empty(&kept)) return true;
    mcpg__rankset_minus(&kept, &g->bound);
    if (b->proposal != MCPG_COORD_NONE) mcpg__rankset_minus(&removed, &c->props[b->proposal].deactivate);
    if (mcpg__rankset_meets(&kept, &removed)) return true;
    if (!mcpg__rankset_subset(&g->active, &b->removed) || !mcpg__rankset_empty(&b->added)) return false;
    mcpg__rankset_minus(&removed, &g->leaving); /* one that was out of the healthy set is back in it, as the last */
    mcpg__rankset_minus(&removed, &g->bound);
    for (uint32_t s = mcpg__rankset_next(&removed, 0); s < g->order_count; s = mcpg__rankset_next(&removed, s + 1)) {
        bool here = mcpg__coord_live(c, g, s);
        if (here && mcpg__coord_rank_of(c, g, s)->state == MCPG_RANK_HEALTHY) return true;
    }
    return false;
}
