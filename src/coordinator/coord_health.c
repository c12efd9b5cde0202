/* coord_health.c: which attached ranks are HEALTHY: the best clique of the links that count.
 *
 * It must never judge evidence (coord_fault.c does) and never change membership: groups react to the states that it
 * sets.
 */
#include "coordinator/coord_state.h"

#define DEFAULT_NODE_BUDGET 20000u

/* Ranks that are active in any group: the preferred ones. */
static void active_ranks(const mcpg_coord_t *c, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1))
        if (c->ranks[r].active_count > 0) mcpg__rankset_add(out, r);
}

void mcpg__coord_health_link_added(mcpg_coord_t *c, uint32_t a, uint32_t b) {
    if (c->health_dirty || !mcpg__rankset_has(&c->present, a) || !mcpg__rankset_has(&c->present, b)) return;
    if (c->now.us < c->health_retry_us) { /* the last search was not exact: not again for every link */
        c->health_later = true;
        mcpg__coord_want(c, c->health_retry_us);
        return;
    }
    if (c->link_added) c->health_dirty = true;
    c->link_added = true;
    c->added_a = a;
    c->added_b = b;
}

/* A link that the healthy set does not use cannot be missed by it. */
void mcpg__coord_health_link_removed(mcpg_coord_t *c, uint32_t a, uint32_t b) {
    if (c->ranks[a].state == MCPG_RANK_HEALTHY && c->ranks[b].state == MCPG_RANK_HEALTHY) c->health_dirty = true;
}

/* Somebody without a link does not matter to a healthy set of two or more. */
void mcpg__coord_health_rank_added(mcpg_coord_t *c, uint32_t rank) {
    const uint64_t *row = mcpg__coord_eff(c, rank);
    if (c->ranks[rank].active_count > 0)
        mcpg__rankset_add(&c->active, rank);
    else
        mcpg__rankset_del(&c->active, rank);
    if (mcpg__rankset_count(&c->healthy) < 2) c->health_dirty = true;
    for (uint32_t i = 0; i < c->words; i++)
        if ((row[i] & c->present.w[i]) != 0) c->health_dirty = true;
}

static mcpg_coord_graph_t graph_of(const mcpg_coord_t *c, const mcpg_rankset_t *members) {
    mcpg_coord_graph_t graph = {.n = c->config.max_ranks,
                                .words = c->words,
                                .adjacency = c->eff,
                                .members = members,
                                .active = &c->active,
                                .node_budget = c->config.clique_node_budget};
    if (graph.node_budget == 0) graph.node_budget = DEFAULT_NODE_BUDGET;
    return graph;
}

/* Only a clique through the new link can be better than the present healthy set. False: the set stays as it is. */
static bool better_through_link(mcpg_coord_t *c, mcpg_rankset_t *healthy) {
    mcpg_rankset_t members = c->present, found;
    const uint64_t *row_a = mcpg__coord_eff(c, c->added_a), *row_b = mcpg__coord_eff(c, c->added_b);
    for (uint32_t i = 0; i < c->words; i++) members.w[i] &= row_a[i] & row_b[i];
    mcpg__rankset_add(&members, c->added_a);
    mcpg__rankset_add(&members, c->added_b);
    mcpg_coord_graph_t graph = graph_of(c, &members);
    uint64_t weight_now = mcpg__coord_clique_weight(&graph, &c->healthy);
    graph.at_least = weight_now;
    graph.node_budget = graph.node_budget / 16u + 1u; /* a hard graph is searched as a whole, a little later */
    if (mcpg__coord_clique_weight(&graph, &members) < weight_now) return false;
    if (!mcpg__coord_clique(&graph, &found)) c->health_exact = false;
    uint64_t weight_found = mcpg__coord_clique_weight(&graph, &found);
    if (weight_found < weight_now) return false;
    if (weight_found == weight_now) { /* the one that has the lowest rank in which they differ */
        uint32_t word = 0;
        while (word < c->words && found.w[word] == c->healthy.w[word]) word++;
        if (word == c->words) return false;
        uint64_t differ = found.w[word] ^ c->healthy.w[word];
        if ((found.w[word] & differ & (~differ + 1u)) == 0) return false;
    }
    *healthy = found;
    return true;
}

void mcpg__coord_health_timer(mcpg_coord_t *c) {
    if (!c->health_later || c->now.us < c->health_retry_us) return;
    c->health_dirty = true;
}

void mcpg__coord_health_update(mcpg_coord_t *c) {
    mcpg_rankset_t healthy;
    if (!c->health_dirty && !c->link_added) return;
    bool changed = true, whole = c->health_dirty;
    c->health_exact = true;
    if (whole) {
        active_ranks(c, &c->active);
        mcpg_coord_graph_t graph = graph_of(c, &c->present);
        c->health_exact = mcpg__coord_clique(&graph, &healthy);
    } else {
        changed = better_through_link(c, &healthy);
    }
    if (whole) c->health_later = false;
    c->health_dirty = false;
    c->link_added = false;
    if (!c->health_exact) c->health_retry_us = mcpg__after(c->now, MCPG_COORD_RETRY_US);
    if (!changed) return;
    c->healthy = healthy;
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1)) {
        uint8_t state = mcpg__rankset_has(&healthy, r) ? MCPG_RANK_HEALTHY : MCPG_RANK_SYNCED;
        if (c->ranks[r].state == state) continue;
        c->ranks[r].state = state;
        c->rank_sum_valid = false;
        mcpg__coord_groups_touch_rank(c, r);
    }
}

uint32_t mcpg__coord_missing_link(const mcpg_coord_t *c, uint32_t rank) {
    const uint64_t *row = mcpg__coord_eff(c, rank);
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1))
        if (r != rank && c->ranks[r].state == MCPG_RANK_HEALTHY && !mcpg__bit_get(row, r)) return r;
    return MCPG_COORD_NONE;
}
