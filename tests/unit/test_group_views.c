/* test_group_views.c: the ordered list of views: which one a number runs in, who has left by it, what is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dataplane/dp_priv.h"

typedef struct {
    mcpg_dp_t dp;
    mcpg_dpgroup_t *g;
} fixture_t;

static fixture_t *fixture(void) {
    fixture_t *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->dp.inc = (mcpg_incarnation_t){1, 10};
    const mcpg_dp_group_config_t c = {{1}, {0}, 4, false, false, false};
    f->g = mcpg__group_new(&f->dp, &c);
    assert_non_null(f->g);
    return f;
}

static void done(fixture_t *f) {
    mcpg__view_free_all(f->g);
    free(f->g->gone);
    free(f->g);
    free(f);
}

/* Slots as bits; counter[i]: incarnation of slot i. */
static void commit(fixture_t *f, uint64_t epoch, uint32_t active, const uint64_t *counter, uint64_t switch_seq,
                   uint32_t leaver, uint64_t leave_seq) {
    mcpg_member_t m[4];
    uint32_t n = 0;
    for (uint32_t s = 0; s < 4; s++)
        if ((active >> s) & 1u) m[n++] = (mcpg_member_t){{s}, {s}, {1, counter[s]}};
    const mcpg_leave_t leave = {{leaver}, leave_seq};
    const mcpg_down_commit_t c = {.gid = {1},
                                  .view = {{1, epoch}, n, m},
                                  .switch_seq = switch_seq,
                                  .leave_count = leaver < 4 ? 1 : 0,
                                  .leaves = &leave};
    assert_int_equal(mcpg__view_add(f->g, &c), MCPG_OK);
}

static const uint64_t plain[4] = {10, 11, 12, 13};

static uint64_t epoch_of(const fixture_t *f, uint64_t seq) {
    return mcpg__view_of(f->g, seq)->id.epoch;
}

static uint64_t leave_of(const mcpg_dpview_t *v, uint32_t slot) {
    return v->leave_seq[mcpg__view_find(v, slot)];
}

static void number_runs_in_the_last_view_that_began(void **state) {
    (void)state;
    fixture_t *f = fixture();
    commit(f, 1, 7, plain, 0, 9, 0);
    commit(f, 2, 3, plain, 10, 2, 8);
    commit(f, 4, 7, plain, 10, 9, 0); /* 3 was aborted; the same number: the newer one counts */
    commit(f, 5, 15, plain, 20, 9, 0);
    const struct { uint64_t seq, epoch; } want[] = {{0, 1}, {9, 1}, {10, 4}, {19, 4}, {20, 5}, {UINT64_MAX - 1u, 5}};
    for (size_t i = 0; i < 6; i++) assert_int_equal(epoch_of(f, want[i].seq), want[i].epoch);
    const mcpg_dpview_t *first = mcpg__view_of(f->g, 0);
    assert_int_equal(leave_of(first, 2), 8);
    assert_true(leave_of(f->g->newest, 2) == MCPG_NO_SEQ);
    assert_true(mcpg__view_runs(f->g, first, 9));
    assert_int_equal(mcpg__view_find(first, 3), -1);
    mcpg__group_set_next(f->g, 15);
    mcpg__view_prune(f->g);
    assert_int_equal(epoch_of(f, 0), 4); /* nothing starts in older ones any more */
    mcpg__view_of(f->g, 15)->refs = 1;
    mcpg__group_set_next(f->g, 25);
    mcpg__view_prune(f->g);
    assert_int_equal(epoch_of(f, 15), 4); /* something runs in it */
    mcpg__view_release(f->g, mcpg__view_of(f->g, 15));
    assert_null(f->g->newest->older);
    done(f);
}

static void leaving_and_fencing(void **state) {
    (void)state;
    fixture_t *f = fixture();
    commit(f, 1, 7, plain, 0, 9, 0);
    commit(f, 2, 7, plain, 5, 2, 3); /* fenced: still active */
    assert_int_equal(leave_of(mcpg__view_of(f->g, 0), 2), 3);
    assert_int_equal(leave_of(f->g->newest, 2), 3);
    commit(f, 3, 7, plain, 6, 9, 0);
    assert_int_equal(leave_of(f->g->newest, 2), 3); /* as long as it is the same process */
    const uint64_t replaced[4] = {10, 11, 99, 13};
    commit(f, 4, 7, replaced, 7, 2, 0); /* the old process left at 0, the new one is fine */
    assert_int_equal(leave_of(mcpg__view_of(f->g, 6), 2), 0);
    assert_true(leave_of(f->g->newest, 2) == MCPG_NO_SEQ);
    commit(f, 5, 5, replaced, 9, 1, 8);
    commit(f, 6, 6, replaced, 12, 0, 11); /* this rank itself */
    assert_true(mcpg__view_runs(f->g, mcpg__view_of(f->g, 10), 10));
    assert_false(mcpg__view_runs(f->g, mcpg__view_of(f->g, 11), 11));
    assert_false(mcpg__view_runs(f->g, mcpg__view_of(f->g, 12), 12));
    const uint64_t other[4] = {77, 11, 99, 13};
    commit(f, 7, 7, other, 13, 9, 0); /* this slot, but another process */
    assert_false(mcpg__view_runs(f->g, f->g->newest, 13));
    done(f);
}

static void dead_founder_is_fenced_in_the_first_view(void **state) {
    (void)state;
    fixture_t *f = fixture();
    commit(f, 1, 7, plain, 0, 1, 0);
    assert_int_equal(leave_of(f->g->newest, 1), 0);
    assert_true(leave_of(f->g->newest, 2) == MCPG_NO_SEQ);
    done(f);
}

static void pairs_are_named_by_the_view_they_met_in(void **state) {
    (void)state;
    fixture_t *f = fixture();
    const mcpg_view_id_t *base;
    commit(f, 1, 7, plain, 0, 9, 0);
    commit(f, 2, 3, plain, 0, 2, 0);
    commit(f, 3, 7, plain, 0, 9, 0);
    base = f->g->newest->pair_base;
    assert_true(base[0].epoch == 1 && base[1].epoch == 1 && base[2].epoch == 3);
    commit(f, 4, 6, plain, 0, 0, 0);
    commit(f, 5, 7, plain, 0, 9, 0); /* this rank came back: it meets everybody anew */
    base = f->g->newest->pair_base;
    assert_true(base[0].epoch == 5 && base[1].epoch == 5 && base[2].epoch == 5);
    done(f);
}

static void a_quiet_group_is_small(void **state) {
    (void)state;
    /* 1,024 slots, all active: group and view. */
    const size_t view =
        sizeof(mcpg_dpview_t) + 1024u * (sizeof(mcpg_member_t) + sizeof(uint64_t) + sizeof(mcpg_view_id_t));
    assert_true(sizeof(mcpg_dpgroup_t) + view + 256u < 65536u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_runs_in_the_last_view_that_began), cmocka_unit_test(leaving_and_fencing),
        cmocka_unit_test(dead_founder_is_fenced_in_the_first_view),
        cmocka_unit_test(pairs_are_named_by_the_view_they_met_in), cmocka_unit_test(a_quiet_group_is_small)};
    return cmocka_run_group_tests_name("group_views", tests, NULL, NULL);
}
