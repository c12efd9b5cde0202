/* test_coord_clique.c: the healthy set against an enumeration of subsets that shares nothing with the search.
 *
 * Every graph of up to 6 ranks with every set of active ranks; every graph of 7 with none and with drawn ones; random
 * graphs of up to 14; and what the search does when its budget is spent. The oracle must never use a bound, a component
 * or a reduction: it lists the subsets from the most to the least wanted and takes the first that is a clique.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "coordinator/coord_state.h"

#define MAX_N   14u
#define SUBSETS (1u << MAX_N)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 61u /* the whole is for the optimised build */
#else
#define STRIDE 1u
#endif

typedef struct {
    uint32_t n;
    uint32_t links[MAX_N]; /* bit b of links[a] */
    uint32_t active;
} small_t;

static uint64_t draw(uint64_t *seed) {
    *seed ^= *seed << 13u;
    *seed ^= *seed >> 7u;
    *seed ^= *seed << 17u;
    return *seed;
}

/* ---- the oracle ---- */

static uint32_t ones(uint32_t set) {
    uint32_t count = 0;
    for (; set != 0; set &= set - 1u) count++;
    return count;
}

/* Larger: more wanted. Ranks count from the top, so that of two sets the one with the lowest differing rank is ahead.
 */
static uint64_t rating(uint32_t n, uint32_t active, uint32_t set) {
    uint64_t low_first = 0;
    for (uint32_t r = 0; r < n; r++) low_first = low_first * 2u + ((set >> r) & 1u);
    return ((uint64_t)ones(set & active) << 40u) | ((uint64_t)ones(set) << 32u) | low_first;
}

static uint32_t order_n, order_active;
static int by_rating(const void *left, const void *right) {
    uint64_t a = rating(order_n, order_active, *(const uint16_t *)left);
    uint64_t b = rating(order_n, order_active, *(const uint16_t *)right);
    return a < b ? 1 : a > b ? -1 : 0;
}

/* All subsets of n ranks, most wanted first. */
static void list_subsets(uint32_t n, uint32_t active, uint16_t *out) {
    for (uint32_t set = 0; set < 1u << n; set++) out[set] = (uint16_t)set;
    order_n = n;
    order_active = active;
    qsort(out, (size_t)1 << n, sizeof(*out), by_rating);
}

/* good[set]: all of it are linked with one another. */
static void mark_cliques(const small_t *g, uint8_t *good) {
    good[0] = 1;
    for (uint32_t set = 1; set < 1u << g->n; set++) {
        uint32_t top = 31u - (uint32_t)__builtin_clz(set), rest = set & ~(1u << top);
        good[set] = good[rest] != 0 && (rest & ~g->links[top]) == 0;
    }
}

static uint32_t first_clique(const uint8_t *good, const uint16_t *wanted) {
    while (good[*wanted] == 0) wanted++; /* bounded: the empty set is a clique */
    return *wanted;
}

/* ---- the searched one ---- */

static uint32_t solve(const small_t *g, uint32_t members, uint64_t budget, uint64_t at_least, bool *exact_out) {
    uint64_t rows[MAX_N];
    mcpg_rankset_t in, active, out;
    mcpg__rankset_clear(&in);
    mcpg__rankset_clear(&active);
    for (uint32_t r = 0; r < g->n; r++) rows[r] = g->links[r];
    in.w[0] = members;
    active.w[0] = g->active & members;
    mcpg_coord_graph_t graph = {.n = g->n,
                                .words = 1,
                                .adjacency = rows,
                                .members = &in,
                                .active = &active,
                                .node_budget = budget,
                                .at_least = at_least};
    *exact_out = mcpg__coord_clique(&graph, &out);
    return (uint32_t)out.w[0];
}

static void wrong(const small_t *g, uint32_t got, uint32_t want) {
    (void)fprintf(stderr, "%u ranks, active 0x%x, found 0x%x, enumeration says 0x%x; links:", g->n, g->active, got,
                  want);
    for (uint32_t r = 0; r < g->n; r++) (void)fprintf(stderr, " 0x%x", g->links[r]);
    (void)fprintf(stderr, "\n");
    fail();
}

static void graph_from_bits(small_t *g, uint32_t n, uint32_t bits) {
    memset(g, 0, sizeof(*g));
    g->n = n;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = a + 1; b < n; b++, bits >>= 1u)
            if ((bits & 1u) != 0) {
                g->links[a] |= 1u << b;
                g->links[b] |= 1u << a;
            }
}

static void graph_random(small_t *g, uint64_t *seed) {
    memset(g, 0, sizeof(*g));
    g->n = 1u + (uint32_t)(draw(seed) % MAX_N);
    uint32_t percent = (uint32_t)(draw(seed) % 101u);
    for (uint32_t a = 0; a < g->n; a++)
        for (uint32_t b = a + 1; b < g->n; b++)
            if (draw(seed) % 100u < percent) {
                g->links[a] |= 1u << b;
                g->links[b] |= 1u << a;
            }
    g->active = (uint32_t)draw(seed) & (uint32_t)draw(seed) & ((1u << g->n) - 1u);
    if (draw(seed) % 4u == 0) g->active = 0;
}

/* ---- exact ---- */

static void up_to_six_all_active_sets(void **state) {
    (void)state;
    static uint16_t wanted[64][64];
    uint8_t good[64];
    small_t g;
    bool exact;
    for (uint32_t n = 1; n <= 6; n++) {
        uint32_t pairs = n * (n - 1u) / 2u;
        for (uint32_t active = 0; active < 1u << n; active++) list_subsets(n, active, wanted[active]);
        for (uint32_t bits = 0; bits < 1u << pairs; bits += STRIDE) {
            graph_from_bits(&g, n, bits);
            mark_cliques(&g, good);
            for (g.active = 0; g.active < 1u << n; g.active++) {
                uint32_t got = solve(&g, (1u << n) - 1u, 100000, 0, &exact),
                         want = first_clique(good, wanted[g.active]);
                if (!exact || got != want) wrong(&g, got, want);
            }
        }
    }
}

/* Every graph with nobody active (size, then rank 0, then lowest decide), and with two drawn sets of active ranks: each
 * of the 128 sets meets more than 30,000 of the graphs. */
static void every_graph_of_seven(void **state) {
    (void)state;
    static uint16_t wanted[128][128];
    uint8_t good[128];
    small_t g;
    bool exact;
    uint64_t seed = 88172645463325252u;
    for (uint32_t active = 0; active < 128; active++) list_subsets(7, active, wanted[active]);
    for (uint32_t bits = 0; bits < 1u << 21; bits += STRIDE) {
        graph_from_bits(&g, 7, bits);
        mark_cliques(&g, good);
        uint64_t drawn = draw(&seed);
        const uint32_t actives[3] = {0, (uint32_t)(drawn & 127u), (uint32_t)((drawn >> 32u) & 127u)};
        for (uint32_t i = 0; i < 3; i++) {
            g.active = actives[i];
            uint32_t got = solve(&g, 127, 100000, 0, &exact), want = first_clique(good, wanted[g.active]);
            if (!exact || got != want) wrong(&g, got, want);
        }
    }
}

/* The optimum as the search weighs it. */
static uint64_t weight_of(const small_t *g, uint32_t set) {
    mcpg_rankset_t active, chosen;
    mcpg__rankset_clear(&active);
    mcpg__rankset_clear(&chosen);
    active.w[0] = g->active;
    chosen.w[0] = set;
    mcpg_coord_graph_t graph = {.n = g->n, .words = 1, .active = &active};
    return mcpg__coord_clique_weight(&graph, &chosen);
}

/* 10,000 graphs of any density; of one in four, some ranks do not take part. */
static void random_graphs(void **state) {
    (void)state;
    static uint8_t good[SUBSETS];
    uint64_t seed = 20260101;
    small_t g;
    bool exact;
    for (uint32_t round = 0; round < 10000; round += STRIDE) {
        graph_random(&g, &seed);
        uint32_t members = (1u << g.n) - 1u;
        if (draw(&seed) % 4u == 0) members &= (uint32_t)draw(&seed) | 1u;
        mark_cliques(&g, good);
        for (uint32_t set = 0; set < 1u << g.n; set++)
            if ((set & ~members) != 0) good[set] = 0;
        uint32_t want = 0;
        for (uint32_t set = 1; set < 1u << g.n; set++)
            if (good[set] != 0 && rating(g.n, g.active, set) > rating(g.n, g.active, want)) want = set;
        uint32_t got = solve(&g, members, 1000000, 0, &exact);
        if (!exact || got != want) wrong(&g, got, want);
        /* an answer that weighs too little is not wanted; one that weighs just enough is the same one */
        got = solve(&g, members, 1000000, weight_of(&g, want), &exact);
        if (!exact || got != want) wrong(&g, got, want);
        got = solve(&g, members, 1000000, weight_of(&g, want) + 1u, &exact);
        if (!exact || got != 0) wrong(&g, got, 0);
    }
}

/* ---- budget ---- */

/* Again and again the most wanted of those that are left: active, then fewest broken links, then lowest. */
static uint32_t take_greedily(const small_t *g) {
    uint32_t left = (1u << g->n) - 1u, taken = 0;
    while (left != 0) { /* bounded: every turn takes one */
        uint32_t best = MAX_N, best_broken = 0;
        for (uint32_t r = 0; r < g->n; r++) {
            if (((left >> r) & 1u) == 0) continue;
            uint32_t broken = ones(left & ~g->links[r] & ~(1u << r));
            bool active = ((g->active >> r) & 1u) != 0, best_active = best < MAX_N && ((g->active >> best) & 1u) != 0;
            if (best < MAX_N && (active != best_active ? best_active : broken >= best_broken)) continue;
            best = r;
            best_broken = broken;
        }
        taken |= 1u << best;
        left &= g->links[best];
    }
    return taken;
}

/* Whatever the budget: exact means exact, else a clique that nobody can be added to; the same when asked again; and
 * without any budget the greedy one. */
static void any_budget(void **state) {
    (void)state;
    static uint8_t good[SUBSETS];
    uint64_t seed = 7;
    small_t g;
    bool exact, again;
    uint32_t spent = 0;
    for (uint32_t round = 0; round < 2000; round += STRIDE) {
        graph_random(&g, &seed);
        mark_cliques(&g, good);
        uint32_t all = (1u << g.n) - 1u, best = solve(&g, all, 1000000, 0, &exact);
        assert_true(exact);
        for (uint64_t budget = 0; budget < 12; budget++) {
            uint32_t got = solve(&g, all, budget, 0, &exact);
            assert_int_equal(got, solve(&g, all, budget, 0, &again));
            assert_int_equal(exact, again);
            if (exact && got != best) wrong(&g, got, best);
            if (exact) continue;
            spent++;
            assert_true(good[got] != 0);
            for (uint32_t r = 0; r < g.n; r++)
                if (((got >> r) & 1u) == 0) assert_int_equal(good[got | 1u << r], 0);
        }
        uint32_t greedy = solve(&g, all, 0, 0, &exact);
        assert_int_equal(exact, good[all]); /* without a broken link there is nothing to search for */
        if (greedy != take_greedily(&g)) wrong(&g, greedy, take_greedily(&g));
    }
    assert_true(spent >= 1000u / STRIDE);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(up_to_six_all_active_sets),
                                       cmocka_unit_test(every_graph_of_seven), cmocka_unit_test(random_graphs),
                                       cmocka_unit_test(any_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
