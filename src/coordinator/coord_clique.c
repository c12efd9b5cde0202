/* coord_clique.c: the best clique of a graph, exactly, within a budget of search nodes.
 *
 * Best: most active vertices, then most vertices, then vertex 0, then lexicographically lowest. It is solved as a
 * weighted independent set of the broken links (few in practice), one connected component of them at a time, by branch
 * and bound: first the optimum, then the lowest set that reaches it. When the budget is spent a component gets the
 * deterministic greedy answer. It must never look at anything but the graph that it is given.
 */
#include "coordinator/coord_state.h"

#define ACTIVE_WEIGHT (2u * MCPG_MAX_RANKS + 1u) /* one active vertex outweighs all the others */

typedef struct {
    const mcpg_coord_graph_t *graph;
    uint64_t nodes_left;
    uint64_t best, goal; /* the search ends when best reaches goal */
    bool spent;
} search_t;

static uint64_t weight(const mcpg_coord_graph_t *graph, uint32_t v) {
    return mcpg__rankset_has(graph->active, v) ? ACTIVE_WEIGHT : 1u;
}

static uint64_t weight_of(const mcpg_coord_graph_t *graph, const mcpg_rankset_t *set) {
    uint64_t all = 0, active = 0;
    for (uint32_t i = 0; i < graph->words; i++) {
        all += mcpg__popcount64(set->w[i]);
        active += mcpg__popcount64(set->w[i] & graph->active->w[i]);
    }
    return active * (ACTIVE_WEIGHT - 1u) + all;
}

/* Vertices of `in` that v has no link to. */
static void broken(const mcpg_coord_graph_t *graph, uint32_t v, const mcpg_rankset_t *in, mcpg_rankset_t *out) {
    const uint64_t *row = graph->adjacency + (size_t)v * graph->words;
    mcpg__rankset_clear(out);
    for (uint32_t i = 0; i < graph->words; i++) out->w[i] = in->w[i] & ~row[i];
    mcpg__rankset_del(out, v);
}

static uint32_t broken_count(const mcpg_coord_graph_t *graph, uint32_t v, const mcpg_rankset_t *in) {
    const uint64_t *row = graph->adjacency + (size_t)v * graph->words;
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->words; i++) count += mcpg__popcount64(in->w[i] & ~row[i]);
    return count - (mcpg__rankset_has(in, v) && !mcpg__bit_get(row, v) ? 1u : 0u);
}

/* Takes vertices that some best answer contains; returns their weight. *branch: the vertex with most broken links, or
 * MAX_RANKS. */
static uint64_t reduce(const mcpg_coord_graph_t *graph, mcpg_rankset_t *rest, uint32_t *branch) {
    uint64_t taken = 0;
    bool changed;
    do {
        changed = false;
        uint32_t most = 0;
        *branch = MCPG_MAX_RANKS;
        for (uint32_t v = mcpg__rankset_next(rest, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(rest, v + 1)) {
            uint32_t degree = broken_count(graph, v, rest);
            if (degree > most) {
                most = degree;
                *branch = v;
            }
            if (degree > 1) continue;
            mcpg_rankset_t other;
            broken(graph, v, rest, &other);
            if (degree == 1 && weight(graph, v) < weight(graph, mcpg__rankset_next(&other, 0))) continue;
            taken += weight(graph, v);
            mcpg__rankset_minus(rest, &other);
            mcpg__rankset_del(rest, v);
            changed = changed || degree == 1;
        }
    } while (changed);
    return taken;
}

/* No answer within rest weighs more: of vertices none of which is linked to another, at most one is in it. */
static uint64_t upper_bound(const mcpg_coord_graph_t *graph, const mcpg_rankset_t *rest) {
    uint64_t sum = 0;
    mcpg_rankset_t open = *rest;
    for (uint32_t v = mcpg__rankset_next(&open, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&open, v + 1)) {
        mcpg_rankset_t rivals, common;
        uint64_t heaviest = weight(graph, v);
        broken(graph, v, &open, &rivals);
        for (uint32_t u = mcpg__rankset_next(&rivals, v + 1); u < MCPG_MAX_RANKS;
             u = mcpg__rankset_next(&rivals, u + 1)) {
            if (weight(graph, u) > heaviest) heaviest = weight(graph, u);
            mcpg__rankset_del(&open, u);
            broken(graph, u, &rivals, &common);
            rivals = common;
        }
        sum += heaviest;
    }
    return sum;
}

/* Raises best to the heaviest answer within rest, on top of `have`. The recursion is at most a third of the vertices
 * deep. */
static void search(search_t *s, mcpg_rankset_t rest, uint64_t have) {
    for (;;) { /* bounded: every turn takes one vertex out of rest and one node off the budget */
        if (s->nodes_left == 0) {
            s->spent = true;
            return;
        }
        /* A node costs what it looks at, so that the budget bounds time at every size. */
        uint64_t cost = 1u + mcpg__rankset_count(&rest) / 16u;
        s->nodes_left -= cost < s->nodes_left ? cost : s->nodes_left;
        uint32_t branch;
        have += reduce(s->graph, &rest, &branch);
        if (have > s->best && mcpg__rankset_empty(&rest)) s->best = have;
        if (s->best >= s->goal || mcpg__rankset_empty(&rest)) return;
        if (have + upper_bound(s->graph, &rest) <= s->best) return;
        mcpg_rankset_t with, other;
        broken(s->graph, branch, &rest, &other);
        mcpg__rankset_del(&rest, branch);
        with = rest;
        mcpg__rankset_minus(&with, &other);
        search(s, with, have + weight(s->graph, branch));
        if (s->spent || s->best >= s->goal) return;
    }
}

/* Lexicographically lowest of the answers that weigh `optimum`. False: budget spent. */
static bool lowest(search_t *s, mcpg_rankset_t rest, uint64_t optimum, mcpg_rankset_t *out) {
    uint64_t have = 0;
    for (uint32_t v = mcpg__rankset_next(&rest, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&rest, v + 1)) {
        mcpg_rankset_t other, with;
        broken(s->graph, v, &rest, &other);
        mcpg__rankset_del(&rest, v);
        with = rest;
        mcpg__rankset_minus(&with, &other);
        uint64_t need = optimum - have;
        if (need == 0) break;
        bool take = mcpg__rankset_empty(&other);
        if (!take) {
            uint64_t own = weight(s->graph, v);
            if (own > need) continue;
            s->goal = need - own;
            s->best = s->goal > 0 ? s->goal - 1u : 0;
            if (s->goal > 0) search(s, with, 0);
            if (s->spent) return false;
            take = s->best >= s->goal;
        }
        if (!take) continue;
        have += weight(s->graph, v);
        mcpg__rankset_add(out, v);
        rest = with;
    }
    return true;
}

/* Active first, then fewest broken links, then lowest. */
static void greedy(const mcpg_coord_graph_t *graph, const mcpg_rankset_t *component, mcpg_rankset_t *out) {
    mcpg_rankset_t rest = *component;
    while (!mcpg__rankset_empty(&rest)) {
        uint32_t best = MCPG_MAX_RANKS, best_degree = 0;
        for (uint32_t v = mcpg__rankset_next(&rest, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&rest, v + 1)) {
            uint32_t degree = broken_count(graph, v, &rest);
            bool better = best == MCPG_MAX_RANKS || weight(graph, v) > weight(graph, best) ||
                          (weight(graph, v) == weight(graph, best) && degree < best_degree);
            if (!better) continue;
            best = v;
            best_degree = degree;
        }
        mcpg_rankset_t other;
        broken(graph, best, &rest, &other);
        mcpg__rankset_add(out, best);
        mcpg__rankset_minus(&rest, &other);
        mcpg__rankset_del(&rest, best);
    }
}

/* Moves the vertices that are linked with all the others from rest to out: every best answer has them. */
static void take_unbroken(const mcpg_coord_graph_t *graph, mcpg_rankset_t *rest, mcpg_rankset_t *out) {
    const mcpg_rankset_t all = *rest;
    for (uint32_t v = mcpg__rankset_next(&all, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&all, v + 1)) {
        if (broken_count(graph, v, &all) > 0) continue;
        mcpg__rankset_del(rest, v);
        mcpg__rankset_add(out, v);
    }
}

/* The vertices that broken links connect with v, v included. */
static void component_of(const mcpg_coord_graph_t *graph, uint32_t v, const mcpg_rankset_t *rest, mcpg_rankset_t *out) {
    mcpg_rankset_t outside = *rest, front;
    mcpg__rankset_clear(out);
    mcpg__rankset_clear(&front);
    mcpg__rankset_add(&front, v);
    mcpg__rankset_del(&outside, v);
    for (uint32_t u = v; u < MCPG_MAX_RANKS; u = mcpg__rankset_next(&front, 0)) {
        mcpg_rankset_t other;
        broken(graph, u, &outside, &other);
        mcpg__rankset_or(&front, &other);
        mcpg__rankset_minus(&outside, &other);
        mcpg__rankset_del(&front, u);
        mcpg__rankset_add(out, u);
    }
}

static uint64_t total_bound(const mcpg_coord_graph_t *graph, mcpg_rankset_t rest) {
    mcpg_rankset_t component;
    uint64_t sum = 0;
    for (uint32_t v = mcpg__rankset_next(&rest, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&rest, v + 1)) {
        component_of(graph, v, &rest, &component);
        mcpg__rankset_minus(&rest, &component);
        sum += upper_bound(graph, &component);
    }
    return sum;
}

uint64_t mcpg__coord_clique_weight(const mcpg_coord_graph_t *graph, const mcpg_rankset_t *set) {
    return weight_of(graph, set);
}

bool mcpg__coord_clique(const mcpg_coord_graph_t *graph, mcpg_rankset_t *out) {
    search_t s = {.graph = graph, .nodes_left = graph->node_budget};
    mcpg_rankset_t rest = *graph->members;
    bool exact = true;
    mcpg__rankset_clear(out);
    take_unbroken(graph, &rest, out);
    /* of what is still unsolved, plus what was found */
    uint64_t bound = graph->at_least > 0 ? weight_of(graph, out) + total_bound(graph, rest) : 0;
    if (bound < graph->at_least) {
        mcpg__rankset_clear(out);
        return true;
    }
    for (uint32_t v = mcpg__rankset_next(&rest, 0); v < MCPG_MAX_RANKS; v = mcpg__rankset_next(&rest, v + 1)) {
        mcpg_rankset_t component, chosen;
        component_of(graph, v, &rest, &component);
        mcpg__rankset_minus(&rest, &component);
        mcpg__rankset_clear(&chosen);
        uint64_t own_bound = graph->at_least > 0 ? upper_bound(graph, &component) : 0, floor = 0;
        if (graph->at_least > bound - own_bound) floor = graph->at_least - (bound - own_bound);
        s.best = floor > 0 ? floor - 1u : 0;
        s.goal = UINT64_MAX;
        search(&s, component, 0);
        if (!s.spent && s.best < floor) { /* however good the others are, it does not reach at_least */
            mcpg__rankset_clear(out);
            return true;
        }
        uint64_t best = s.best;
        if (s.spent || !lowest(&s, component, best, &chosen)) {
            exact = false;
            mcpg__rankset_clear(&chosen);
            greedy(graph, &component, &chosen);
            best = weight_of(graph, &chosen);
        }
        bound = bound - own_bound + best;
        mcpg__rankset_or(out, &chosen);
    }
    return exact;
}
