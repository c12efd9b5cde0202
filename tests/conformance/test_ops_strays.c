/* test_ops_strays.c: ranks that run different operations under one number, numbers that drifted apart, and messages
 * that were kept from another time; over fake_link.c only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake_link.h"
#include "ops_world.h"

#define N       3u
#define TIME_US 1000000u
#define COUNT   5000u /* announced, not sent with the header */

static const mcpg_gid_t gid = {WORLD_GID};
static float in[N][COUNT], out[N][COUNT];

static mcpg_op_t make(mcpg_op_kind_t kind, uint32_t rank, uint32_t root, size_t count) {
    mcpg_op_t op = world_allreduce(in[rank], out[rank], count);
    op.kind = kind;
    op.root = root;
    in[rank][0] = (float)(1u << rank);
    return op;
}

static mcpg_dp_work_t *call(world_t *w, mcpg_op_kind_t kind, uint32_t rank, uint32_t root, size_t count) {
    const mcpg_op_t op = make(kind, rank, root, count);
    return world_submit(w, rank, &op);
}

static void works(world_t *w, uint64_t seq) {
    mcpg_dp_work_t *work[N];
    for (uint32_t r = 0; r < w->n; r++) work[r] = call(w, MCPG_OP_ALLREDUCE, r, 0, 1);
    for (uint32_t r = 0; r < w->n; r++) {
        assert_int_equal(world_wait(w, work[r]), MCPG_OK);
        assert_int_equal(mcpg__dp_work_seq(work[r]), seq);
        assert_int_equal(world_hints(work[r]), 0);
        assert_true(out[r][0] == (float)((1u << w->n) - 1u));
        mcpg__dp_work_release(work[r]);
    }
}

static world_t *start(uint32_t n) {
    const world_config_t config = {.collective_timeout_us = TIME_US};
    fake_reset(1);
    world_t *w = world_new(n, &config);
    fake_drain();
    return w;
}

static void is_mismatch(mcpg_dp_work_t *work, const char *one, const char *other) {
    assert_int_equal(mcpg__dp_work_test(work), MCPG_MISMATCH);
    const char *text = mcpg__dp_work_error(work);
    if (strstr(text, one) == NULL || strstr(text, other) == NULL) fail_msg("%s", text);
    assert_int_equal(world_hints(work), 0);
    mcpg__dp_work_release(work);
}

static void unwanted_message_is_a_mismatch_at_once(void **state) {
    (void)state;
    for (uint32_t order = 0; order < 3; order++) { /* 2: everything of rank 1 is there before rank 0 starts */
        world_t *w = start(2);
        mcpg_dp_work_t *a = NULL, *b = NULL;
        if (order == 0) a = call(w, MCPG_OP_BROADCAST, 0, 0, COUNT);
        if (order == 0) fake_drain();
        b = call(w, MCPG_OP_REDUCE, 1, 0, COUNT);
        if (order == 2) fake_drain();
        if (order != 0) a = call(w, MCPG_OP_BROADCAST, 0, 0, COUNT);
        fake_drain(); /* no time passes */
        is_mismatch(a, "reduce", "broadcast");
        is_mismatch(b, "reduce", "broadcast");
        works(w, 1);
        for (uint32_t r = 0; r < 2; r++) assert_int_equal(fake_kept(r), 0);
        assert_int_equal(w->report_count, 0);
        world_free(w);
    }
}

static void ranks_that_wait_for_each_other_find_out(void **state) {
    (void)state;
    static const struct {
        mcpg_op_kind_t a, b;
        uint32_t root_a, root_b;
        const char *one, *other;
    } cases[] = {{MCPG_OP_REDUCE, MCPG_OP_BROADCAST, 0, 0, "reduce", "broadcast"},
                 {MCPG_OP_GATHER, MCPG_OP_SCATTER, 0, 0, "gather", "scatter"},
                 {MCPG_OP_REDUCE, MCPG_OP_REDUCE, 0, 1, "root 0", "root 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world_t *w = start(2);
        const mcpg_seg_t segs[2] = {{out[0], 1}, {&out[0][1], 1}};
        mcpg_op_t op = make(cases[i].a, 0, cases[i].root_a, 1);
        op.outs = segs;
        op.out_count = 2;
        mcpg_dp_work_t *a = world_submit(w, 0, &op), *b = call(w, cases[i].b, 1, cases[i].root_b, 1);
        fake_drain();
        assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
        fake_advance(TIME_US + 100000);
        is_mismatch(a, cases[i].one, cases[i].other);
        is_mismatch(b, cases[i].one, cases[i].other);
        works(w, 1);
        world_free(w);
    }
}

/* Whoever runs the same is only slow, and is waited for however often it is asked. */
static void asking_hurts_nobody(void **state) {
    (void)state;
    world_t *w = start(3);
    for (uint32_t kind = 0; kind <= MCPG_OP_BARRIER; kind++) {
        if (kind == MCPG_OP_ALLGATHER || kind == MCPG_OP_GATHER || kind == MCPG_OP_SCATTER ||
            kind == MCPG_OP_REDUCE_SCATTER || kind == MCPG_OP_ALLTOALL)
            continue;
        mcpg_dp_work_t *work[3];
        for (uint32_t r = 0; r < 3; r++) {
            work[r] = call(w, (mcpg_op_kind_t)kind, r, 0, COUNT);
            fake_advance(5 * TIME_US);
        }
        for (uint32_t r = 0; r < 3; r++) {
            assert_int_equal(mcpg__dp_work_test(work[r]), MCPG_OK);
            assert_int_equal(world_hints(work[r]), 0);
            mcpg__dp_work_release(work[r]);
        }
    }
    assert_int_equal(w->report_count, 0);
    world_free(w);
}

static void rank_that_is_past_a_number_says_so(void **state) {
    (void)state;
    world_t *w = start(2);
    works(w, 0);
    mcpg_view_t v;
    assert_int_equal(mcpg__dp_safe_point(w->dp[1], gid, &v), MCPG_OK); /* the other forgot to call it */
    mcpg_dp_work_t *a = call(w, MCPG_OP_ALLREDUCE, 0, 0, 1);
    fake_advance(TIME_US + 100000);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_OK);
    assert_int_equal(world_hints(a), 2);
    assert_int_equal(w->report_count, 0); /* no evidence against it */
    mcpg__dp_work_release(a);
    world_free(w);
}

static mcpg_dp_work_t *message(world_t *w, mcpg_op_kind_t kind, uint32_t rank, uint32_t peer, float *at) {
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = kind;
    op.dtype = MCPG_F32;
    op.peer = peer;
    op.in = op.out = (mcpg_seg_t){at, 1};
    return world_submit(w, rank, &op);
}

static void ends(world_t *w, mcpg_dp_work_t *work, uint32_t hints) {
    assert_int_equal(world_wait(w, work), MCPG_OK);
    assert_int_equal(world_hints(work), hints);
    mcpg__dp_work_release(work);
}

static void messages_from_before_a_sync_are_forgotten(void **state) {
    (void)state;
    world_t *w = start(2);
    float old = 1, fresh = 2, got = 0;
    ends(w, message(w, MCPG_OP_SEND, 0, 1, &old), 0);
    ends(w, message(w, MCPG_OP_SEND, 1, 1, &old), 0); /* to itself */
    fake_drain();
    assert_int_equal(fake_kept(1), 1);
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 2, 3u, UINT64_C(1) << 32, NULL, 0, true);
    assert_int_equal(fake_kept(1), 0);
    for (uint32_t from = 0; from < 2; from++) {
        ends(w, message(w, MCPG_OP_SEND, from, 1, &fresh), 0);
        got = 0;
        ends(w, message(w, MCPG_OP_RECV, 1, from, &got), 0);
        assert_true(got == fresh);
    }
    works(w, UINT64_C(1) << 32);
    world_free(w);
}

static void message_of_a_rank_that_left_is_still_received(void **state) {
    (void)state;
    for (uint32_t how = 0; how < 3; how++) { /* 0: kept, 1: still on its way, 2: its process died as well */
        world_t *w = start(2);
        float sent = 5, got = 0;
        ends(w, message(w, MCPG_OP_SEND, 0, 1, &sent), 0);
        if (how == 0) fake_drain();
        if (how == 2) fake_kill(0, true);
        if (how == 2) fake_drain();
        const mcpg_leave_t leave = {{0}, 0};
        world_commit(w, 1, WORLD_GID, 2, 2u, 0, &leave, 1, false);
        ends(w, message(w, MCPG_OP_RECV, 1, 0, &got), 0);
        assert_true(got == sent);
        ends(w, message(w, MCPG_OP_RECV, 1, 0, &got), 1); /* there was only one */
        world_free(w);
    }
}

/* A receive that was given up: what the sender says later is for nobody, and is not kept. */
static void late_message_for_a_receive_that_failed_is_dropped(void **state) {
    (void)state;
    const world_config_t config = {.manual = true, .collective_timeout_us = TIME_US};
    fake_reset(1);
    world_t *w = world_new(2, &config);
    float sent = 5, got = 0;
    fake_hang(0, true);
    mcpg_dp_work_t *r = message(w, MCPG_OP_RECV, 1, 0, &got);
    fake_advance(3 * TIME_US);
    ends(w, r, 1);
    fake_block(1, 0, true); /* it sends before it hears that nobody waits */
    fake_hang(0, false);
    mcpg_dp_work_t *s = message(w, MCPG_OP_SEND, 0, 1, &sent);
    fake_drain();
    assert_int_equal(fake_kept(1), 0);
    assert_true(got == 0);
    fake_block(1, 0, false);
    ends(w, s, 0);
    sent = 6;
    ends(w, message(w, MCPG_OP_SEND, 0, 1, &sent), 0);
    ends(w, message(w, MCPG_OP_RECV, 1, 0, &got), 0);
    assert_true(got == 6);
    world_free(w);
}

/* A rank that came back: operations from before have higher numbers than those that the others begin now. */
static void forgetting_spares_numbers_begun_after_a_return(void **state) {
    (void)state;
    world_t *w = start(2);
    mcpg_dp_work_t *ahead[4];
    for (uint32_t i = 0; i < 4; i++) ahead[i] = call(w, MCPG_OP_ALLREDUCE, 1, 0, 1);
    fake_cut(0, 1);
    fake_drain();
    assert_int_equal(w->report_count, 4);
    fake_heal(0, 1);
    const mcpg_leave_t leave = {{1}, 0};
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 2, 1u, 0, &leave, 1, false);
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 3, 3u, 0, NULL, 0, false);
    uint64_t last_id = 0;
    for (uint32_t i = 0; i < 4; i++) {
        if (w->reports[i].seq == 3)
            last_id = w->reports[i].id;
        else
            mcpg__dp_ops()->resolve(w->dp[1], gid, w->reports[i].id, MCPG_OK);
    }
    w->resolved = 4;
    mcpg_dp_work_t *a = call(w, MCPG_OP_ALLREDUCE, 0, 0, 1);
    fake_drain();
    assert_int_equal(fake_kept(1), 1);
    mcpg_op_t op = make(MCPG_OP_RECV, 1, 0, 1); /* one that times out makes forgetting due */
    op.peer = 0;
    op.timeout_us = 1000;
    mcpg_dp_work_t *timed = world_submit(w, 1, &op);
    fake_advance(2000);
    assert_int_equal(mcpg__dp_work_test(timed), MCPG_TIMED_OUT);
    mcpg__dp_work_release(timed);
    world_commit(w, 1, WORLD_GID, 4, 3u, 1, NULL, 0, false);
    assert_int_equal(fake_kept(1), 1);
    mcpg_dp_work_t *b = call(w, MCPG_OP_ALLREDUCE, 1, 0, 1);
    mcpg__dp_ops()->resolve(w->dp[1], gid, last_id, MCPG_OK);
    assert_int_equal(world_wait(w, b), MCPG_OK);
    assert_int_equal(world_wait(w, a), MCPG_OK);
    assert_int_equal(world_hints(a) | world_hints(b), 0);
    mcpg__dp_work_release(a);
    mcpg__dp_work_release(b);
    for (uint32_t i = 0; i < 4; i++) mcpg__dp_work_release(ahead[i]);
    world_free(w);
}

/* A long copy gives the lock back in between: a peer's probe is answered meanwhile. */
static void long_copies_take_several_turns(void **state) {
    (void)state;
    const size_t count = (size_t)6 << 20;
    float *from = malloc(count * sizeof *from), *to = calloc(count, sizeof *to);
    assert_true(from != NULL && to != NULL);
    for (size_t i = 0; i < count; i++) from[i] = (float)i;
    const world_config_t config = {.isolated = true};
    fake_reset(1);
    world_t *w = world_new(2, &config);
    const mcpg_op_t op = world_allreduce(from, to, count);
    mcpg_dp_work_t *a = world_submit(w, 0, &op);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(a), MCPG_OK);
    assert_memory_equal(from, to, count * sizeof *from);
    mcpg__dp_work_release(a);
    world_free(w);
    free(from);
    free(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unwanted_message_is_a_mismatch_at_once),
        cmocka_unit_test(ranks_that_wait_for_each_other_find_out),
        cmocka_unit_test(asking_hurts_nobody),
        cmocka_unit_test(rank_that_is_past_a_number_says_so),
        cmocka_unit_test(messages_from_before_a_sync_are_forgotten),
        cmocka_unit_test(message_of_a_rank_that_left_is_still_received),
        cmocka_unit_test(late_message_for_a_receive_that_failed_is_dropped),
        cmocka_unit_test(forgetting_spares_numbers_begun_after_a_return),
        cmocka_unit_test(long_copies_take_several_turns),
    };
    return cmocka_run_group_tests_name("ops_strays", tests, NULL, NULL);
}
