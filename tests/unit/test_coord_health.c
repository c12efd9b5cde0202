/* test_coord_health.c: the healthy set against brute force: every graph of up to 6 ranks, random ones of up to 12, and
 * the named cases. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "coordinator/coord_state.h"

#define MAX_N 64u

typedef struct {
    uint32_t n, words;
    uint64_t rows[MAX_N];
    mcpg_rankset_t members, active;
} graph_t;

static void graph_clear(graph_t *g, uint32_t n) {
    memset(g, 0, sizeof(*g));
    g->n = n;
    g->words = 1;
    for (uint32_t v = 0; v < n; v++) mcpg__rankset_add(&g->members, v);
}

static void link_put(graph_t *g, uint32_t a, uint32_t b) {
    mcpg__bit_put(&g->rows[a], b, true);
    mcpg__bit_put(&g->rows[b], a, true);
}

static uint64_t solve(const graph_t *g, uint64_t budget, bool *exact_out) {
    mcpg_coord_graph_t graph = {.n = g->n,
                                .words = g->words,
                                .adjacency = g->rows,
                                .members = &g->members,
                                .active = &g->active,
                                .node_budget = budget};
    mcpg_rankset_t out;
    *exact_out = mcpg__coord_clique(&graph, &out);
    return out.w[0];
}

static bool is_clique(const graph_t *g, uint64_t set) {
    for (uint32_t v = 0; v < g->n; v++)
        if (((set >> v) & 1u) != 0 && (set & ~g->rows[v] & ~(UINT64_C(1) << v)) != 0) return false;
    return true;
}

/* Of two sets: more active, more ranks, then the one that has the lowest rank in which they differ. */
static bool is_better(const graph_t *g, uint64_t a, uint64_t b) {
    uint32_t active_a = mcpg__popcount64(a & g->active.w[0]), active_b = mcpg__popcount64(b & g->active.w[0]);
    if (active_a != active_b) return active_a > active_b;
    if (mcpg__popcount64(a) != mcpg__popcount64(b)) return mcpg__popcount64(a) > mcpg__popcount64(b);
    if (a == b) return false;
    uint64_t differ = a ^ b;
    return (a & (differ & (~differ + 1u))) != 0;
}

static uint64_t brute_force(const graph_t *g) {
    uint64_t best = 0;
    for (uint64_t set = 1; set < UINT64_C(1) << g->n; set++)
        if (is_clique(g, set) && is_better(g, set, best)) best = set;
    return best;
}

static void compare(const graph_t *g) {
    bool exact;
    uint64_t got = solve(g, 1000000, &exact), want = brute_force(g);
    assert_true(exact);
    assert_int_equal(got, want);
}

static void every_small_graph(void **state) {
    (void)state;
    graph_t g;
    for (uint32_t n = 1; n <= 6; n++) {
        uint32_t pairs = n * (n - 1) / 2;
        for (uint32_t bits = 0; bits < 1u << pairs; bits++) {
            uint32_t at = 0;
            graph_clear(&g, n);
            for (uint32_t a = 0; a < n; a++)
                for (uint32_t b = a + 1; b < n; b++, at++)
                    if ((bits >> at) & 1u) link_put(&g, a, b);
            compare(&g);
            g.active.w[0] = (bits * 2654435761u >> 7) & ((1u << n) - 1u);
            compare(&g);
        }
    }
}

static uint64_t draw(uint64_t *seed) {
    *seed = mcpg__digest_u64(*seed, 1);
    return *seed;
}

static void random_graphs(void **state) {
    (void)state;
    uint64_t seed = 12345;
    for (uint32_t round = 0; round < 3000; round++) {
        graph_t g;
        uint32_t n = 7 + (uint32_t)(draw(&seed) % 6u), percent = 10 + (uint32_t)(draw(&seed) % 90u);
        graph_clear(&g, n);
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t b = a + 1; b < n; b++)
                if (draw(&seed) % 100u < percent) link_put(&g, a, b);
        if (draw(&seed) % 2u) g.active.w[0] = draw(&seed) & ((UINT64_C(1) << n) - 1u);
        if (draw(&seed) % 4u == 0) mcpg__rankset_del(&g.members, (uint32_t)(draw(&seed) % n));
        if (mcpg__rankset_count(&g.members) < n) { /* one that does not take part has no links */
            for (uint32_t v = 0; v < n; v++) {
                g.rows[v] &= g.members.w[0];
                if (!mcpg__rankset_has(&g.members, v)) g.rows[v] = 0;
            }
            g.active.w[0] &= g.members.w[0];
            bool exact;
            uint64_t got = solve(&g, 1000000, &exact);
            assert_true(exact && is_clique(&g, got) && (got & ~g.members.w[0]) == 0);
            continue;
        }
        compare(&g);
    }
}

/* Case H43: links 0-1-2 whole, 3 reaches only 0. And two equal halves of four: always the one with rank 0. */
static void named_cases(void **state) {
    (void)state;
    graph_t g;
    bool exact;
    graph_clear(&g, 4);
    link_put(&g, 0, 1);
    link_put(&g, 0, 2);
    link_put(&g, 1, 2);
    link_put(&g, 0, 3);
    assert_int_equal(solve(&g, 1000, &exact), 0x7);
    graph_clear(&g, 4);
    link_put(&g, 0, 3);
    link_put(&g, 1, 2);
    assert_int_equal(solve(&g, 1000, &exact), 0x9);
    /* idle joiners never outvote a running job */
    graph_clear(&g, 6);
    link_put(&g, 0, 1);
    for (uint32_t a = 2; a < 6; a++)
        for (uint32_t b = a + 1; b < 6; b++) link_put(&g, a, b);
    assert_int_equal(solve(&g, 1000, &exact), 0x3c);
    g.active.w[0] = 0x3;
    assert_int_equal(solve(&g, 1000, &exact), 0x3);
}

/* A spent budget gives a clique all the same, the same one every time, and says so. */
static void greedy_fallback(void **state) {
    (void)state;
    uint64_t seed = 99;
    graph_t g;
    bool exact;
    graph_clear(&g, 60);
    for (uint32_t a = 0; a < 60; a++)
        for (uint32_t b = a + 1; b < 60; b++)
            if (draw(&seed) % 2u) link_put(&g, a, b);
    uint64_t first = solve(&g, 3, &exact);
    assert_false(exact);
    assert_true(is_clique(&g, first) && first != 0);
    assert_int_equal(first, solve(&g, 3, &exact));
    uint64_t best = solve(&g, 10000000, &exact);
    assert_true(exact && is_clique(&g, best) && !is_better(&g, first, best));
}

/* 1,024 ranks with 64 broken links, exactly, within few search nodes. */
static void large_graph(void **state) {
    (void)state;
    static uint64_t rows[MCPG_MAX_RANKS][MCPG_RANKSET_WORDS];
    mcpg_rankset_t members, active, out;
    mcpg__rankset_clear(&members);
    mcpg__rankset_clear(&active);
    memset(rows, 0xff, sizeof(rows));
    for (uint32_t v = 0; v < MCPG_MAX_RANKS; v++) {
        mcpg__rankset_add(&members, v);
        mcpg__bit_put(rows[v], v, false);
    }
    uint64_t seed = 5;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t a = (uint32_t)(draw(&seed) % MCPG_MAX_RANKS), b = (uint32_t)(draw(&seed) % MCPG_MAX_RANKS);
        mcpg__bit_put(rows[a], b, false);
        mcpg__bit_put(rows[b], a, false);
    }
    mcpg_coord_graph_t graph = {.n = MCPG_MAX_RANKS,
                                .words = MCPG_RANKSET_WORDS,
                                .adjacency = &rows[0][0],
                                .members = &members,
                                .active = &active,
                                .node_budget = 2000};
    assert_true(mcpg__coord_clique(&graph, &out));
    assert_true(mcpg__rankset_count(&out) >= MCPG_MAX_RANKS - 64u);
    for (uint32_t a = mcpg__rankset_next(&out, 0); a < MCPG_MAX_RANKS; a = mcpg__rankset_next(&out, a + 1)) {
        mcpg_rankset_t others = out;
        mcpg__rankset_del(&others, a);
        for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) assert_int_equal(others.w[i] & ~rows[a][i], 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_small_graph), cmocka_unit_test(random_graphs),
                                       cmocka_unit_test(named_cases), cmocka_unit_test(greedy_fallback),
                                       cmocka_unit_test(large_graph)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
