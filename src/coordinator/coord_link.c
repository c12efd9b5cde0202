/* coord_link.c: the matrix of links: what both ends reported, and what counts.
 *
 * raw is the newest report of each end; a link counts (eff) when both ends said up. Good news counts at once, bad news
 * when the fault that covers it closes. A link that counts without both reports is always covered by an open fault. It
 * must never look at evidence about an incarnation that is not the present one (I4).
 */
#include "coordinator/coord_state.h"

static void eff_put(mcpg_coord_t *c, uint32_t a, uint32_t b, bool on) {
    mcpg__bit_put(mcpg__coord_eff(c, a), b, on);
    mcpg__bit_put(mcpg__coord_eff(c, b), a, on);
}

static bool both_up(const mcpg_coord_t *c, uint32_t a, uint32_t b) {
    return mcpg__bit_get(mcpg__coord_raw(c, a), b) && mcpg__bit_get(mcpg__coord_raw(c, b), a);
}

static void link_up(mcpg_coord_t *c, uint32_t a, uint32_t b) {
    mcpg__bit_put(mcpg__coord_raw(c, a), b, true);
    if (!both_up(c, a, b) || mcpg__bit_get(mcpg__coord_eff(c, a), b)) return;
    eff_put(c, a, b, true);
    mcpg__coord_health_link_added(c, a, b);
}

static void link_lost(mcpg_coord_t *c, uint32_t a, uint32_t b, mcpg_coord_effects_t *fx) {
    bool was_up = mcpg__bit_get(mcpg__coord_raw(c, a), b);
    mcpg__bit_put(mcpg__coord_raw(c, a), b, false);
    if (!mcpg__bit_get(mcpg__coord_eff(c, a), b)) return;
    if (!mcpg__rankset_has(&c->present, b)) {
        eff_put(c, a, b, false); /* it is OFFLINE: nothing to judge */
        return;
    }
    if (was_up && !mcpg__coord_fault_covers(c, a, b)) {
        mcpg_rankset_t suspects;
        uint32_t fault;
        mcpg__rankset_clear(&suspects);
        mcpg__rankset_add(&suspects, a);
        mcpg__rankset_add(&suspects, b);
        mcpg__coord_fault_open(c, &suspects, fx, &fault);
    }
}

void mcpg__coord_link(mcpg_coord_t *c, uint32_t rank, const mcpg_up_link_t *m, mcpg_coord_effects_t *fx) {
    uint32_t peer = m->peer.v;
    if (peer >= c->config.max_ranks || peer == rank) return;
    const mcpg_coord_rank_t *r = &c->ranks[peer];
    mcpg__coord_name(c, peer, m->peer_inc, fx);
    if (!r->known || r->dead || !mcpg__inc_eq(r->inc, m->peer_inc)) return; /* I4 */
    if (m->state == MCPG_LINK_UP)
        link_up(c, rank, peer);
    else
        link_lost(c, rank, peer, fx);
    if (m->check_id != 0) mcpg__coord_fault_answered(c, m->check_id, rank, peer);
    if (m->state == MCPG_LINK_UP) return;
    mcpg__coord_links_all_lost(c, peer);
}

void mcpg__coord_links_forget(mcpg_coord_t *c, uint32_t rank) {
    mcpg__coord_fault_forget_rank(c, rank);
    memset(mcpg__coord_raw(c, rank), 0, c->words * sizeof(uint64_t));
    memset(mcpg__coord_eff(c, rank), 0, c->words * sizeof(uint64_t));
    for (uint32_t r = 0; r < c->rank_high; r++) {
        if (!c->ranks[r].known) continue;
        mcpg__bit_put(mcpg__coord_raw(c, r), rank, false);
        mcpg__bit_put(mcpg__coord_eff(c, r), rank, false);
    }
}

void mcpg__coord_links_offline(mcpg_coord_t *c, uint32_t rank) {
    mcpg__coord_fault_forget_rank(c, rank);
    for (uint32_t r = 0; r < c->rank_high; r++)
        if (mcpg__bit_get(mcpg__coord_eff(c, rank), r) && !both_up(c, rank, r)) eff_put(c, rank, r, false);
}

/* Stream and all links lost: OFFLINE at once, unproved. A rank that never had a link waits for its silence. */
void mcpg__coord_links_all_lost(mcpg_coord_t *c, uint32_t rank) {
    if (c->conns[rank] != 0 || !mcpg__rankset_has(&c->present, rank)) return;
    bool any = false;
    for (uint32_t r = mcpg__rankset_next(&c->streams, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->streams, r + 1)) {
        if (r == rank || !mcpg__bit_get(mcpg__coord_eff(c, rank), r)) continue;
        if (mcpg__bit_get(mcpg__coord_raw(c, r), rank)) return;
        any = true;
    }
    if (any) mcpg__coord_offline(c, rank, NULL);
}
