/* coord_health.c: which attached ranks are HEALTHY: the best clique of the links that count.
 *
 * It must never judge evidence (coord_fault.c does) and never change membership: groups react to the states that it
 * sets.
 */
#include "coordinator/coord_state.h"

#define DEFAULT_NODE_BUDGET 20000u

static void active_ranks(const mcpg_coord_t *c, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1))
        if (c->ranks[r].active_count > 0) mcpg__rankset_add(out, r);
}

/* One new link only matters if a clique through it can be as good as the present healthy set. */
void mcpg__coord_health_link_added(mcpg_coord_t *c, uint32_t a, uint32_t b) {
    if (c->health_dirty) return;
    if (!mcpg__rankset_has(&c->present, a) || !mcpg__rankset_has(&c->present, b)) return;
    const uint64_t *row_a = mcpg__coord_eff(c, a), *row_b = mcpg__coord_eff(c, b);
    uint32_t active_now = 0, size_now = 0, active_new = 0, size_new = 0;
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1)) {
        bool through = r == a || r == b || (mcpg__bit_get(row_a, r) && mcpg__bit_get(row_b, r));
        uint32_t active = c->ranks[r].active_count > 0 ? 1u : 0u;
        if (c->ranks[r].state == MCPG_RANK_HEALTHY) {
            active_now += active;
            size_now++;
        }
        if (through) {
            active_new += active;
            size_new++;
        }
    }
    if (active_new > active_now || (active_new == active_now && size_new >= size_now)) c->health_dirty = true;
}

void mcpg__coord_health_update(mcpg_coord_t *c) {
    if (!c->health_dirty) return;
    c->health_dirty = false;
    mcpg_rankset_t active, healthy;
    active_ranks(c, &active);
    mcpg_coord_graph_t graph = {.n = c->config.max_ranks,
                                .words = c->words,
                                .adjacency = c->eff,
                                .members = &c->present,
                                .active = &active,
                                .node_budget = c->config.clique_node_budget};
    if (graph.node_budget == 0) graph.node_budget = DEFAULT_NODE_BUDGET;
    c->health_exact = mcpg__coord_clique(&graph, &healthy);
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
