/* test_ops_faults.c: death at each message, cut and slow links, silence, timeouts, disagreement, abort, SYNCING; over
 * fake_link.c only. */
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

#define N         4u
#define VICTIM    2u
#define COUNT_MAX 600000u

static float in[N][COUNT_MAX], out[N][N * COUNT_MAX];

typedef struct {
    mcpg_op_t op;
    mcpg_seg_t ins[N], outs[N];
} call_t;

static float value(uint32_t rank, uint32_t piece) {
    return (float)((1u << rank) + 100u * piece);
}

static void make_call(call_t *c, mcpg_op_kind_t kind, uint32_t rank, uint32_t root, size_t count) {
    memset(c, 0, sizeof *c);
    c->op = MCPG_OP_INITIALIZER;
    c->op.kind = kind;
    c->op.dtype = MCPG_F32;
    c->op.redop = MCPG_SUM;
    c->op.root = root;
    for (uint32_t p = 0; p < N; p++) c->outs[p] = (mcpg_seg_t){out[rank] + p * count, count};
    for (size_t i = 0; i < count; i++) in[rank][i] = value(rank, 0);
    for (size_t i = 0; i < N * count; i++) out[rank][i] = -1.0f;
    for (uint32_t p = 0; p < N; p++) c->ins[p] = (mcpg_seg_t){in[rank], count};
    c->op.in = c->ins[0];
    c->op.out = c->outs[0];
    if (kind == MCPG_OP_BROADCAST)
        for (size_t i = 0; i < count && rank == root; i++) out[rank][i] = value(rank, 0);
    c->op.ins = c->ins;
    c->op.outs = c->outs;
    c->op.in_count = c->op.out_count = N;
}

static bool all_equal(const float *p, size_t count, float v) {
    for (size_t i = 0; i < count; i++)
        if (p[i] != v) return false;
    return true;
}

/* Each element is the sum over everybody, or over everybody but the victim when it is hinted. */
static void check_sum(uint32_t rank, size_t count, bool hinted) {
    float full = 0;
    for (uint32_t r = 0; r < N; r++) full += value(r, 0);
    for (size_t i = 0; i < count; i++) {
        const bool without = hinted && out[rank][i] == full - value(VICTIM, 0);
        if (out[rank][i] != full && !without) fail_msg("rank %u element %zu is %f", rank, i, (double)out[rank][i]);
    }
}

static void check_survivor(const call_t *c, uint32_t rank, uint32_t root, size_t count, uint32_t hints) {
    assert_int_equal(hints & ~(1u << VICTIM), 0);
    const bool hinted = hints != 0;
    switch (c->op.kind) {
    case MCPG_OP_ALLREDUCE:
        check_sum(rank, count, hinted);
        break;
    case MCPG_OP_REDUCE:
        if (rank == root)
            check_sum(rank, count, hinted);
        else
            assert_true(all_equal(out[rank], count, -1.0f));
        break;
    case MCPG_OP_REDUCE_SCATTER:
        check_sum(rank, count, hinted);
        break;
    case MCPG_OP_ALLGATHER:
    case MCPG_OP_ALLTOALL:
        for (uint32_t p = 0; p < N; p++) {
            const bool ok = all_equal(out[rank] + p * count, count, value(p, 0));
            if (p != VICTIM || !hinted) assert_true(ok);
        }
        break;
    case MCPG_OP_GATHER:
        for (uint32_t p = 0; p < N && rank == root; p++) {
            if (p != VICTIM || !hinted) assert_true(all_equal(out[rank] + p * count, count, value(p, 0)));
        }
        break;
    case MCPG_OP_BROADCAST:
    case MCPG_OP_SCATTER:
        if (root != VICTIM || !hinted) assert_true(all_equal(out[rank], count, value(root, 0)));
        break;
    case MCPG_OP_BARRIER:
    case MCPG_OP_SEND:
    case MCPG_OP_RECV:
    case MCPG_OP__COUNT:
        break;
    }
}

static void remove_victim(world_t *w, uint64_t next) {
    const mcpg_leave_t leave = {{VICTIM}, 0};
    for (uint32_t r = 0; r < N; r++)
        if (r != VICTIM) world_commit(w, r, WORLD_GID, 2, 0xfu & ~(1u << VICTIM), next, &leave, 1, false);
}

/* Returns how many messages the operation took, so that the caller knows when to stop. */
static uint64_t kill_once(mcpg_op_kind_t kind, size_t count, uint32_t root, uint64_t at, bool keep, bool late) {
    static call_t call[N];
    mcpg_dp_work_t *work[N] = {NULL};
    fake_reset(at + 1u);
    const world_config_t config = {0};
    world_t *w = world_new(N, &config);
    fake_drain();
    const uint64_t before = fake_delivered();
    fake_kill_at(VICTIM, before + at, keep);
    for (uint32_t r = 0; r < N; r++) make_call(&call[r], kind, r, root, count);
    for (uint32_t r = 0; r < N; r++)
        if (!(late && r == 0)) work[r] = world_submit(w, r, &call[r].op);
    fake_drain();
    if (late) work[0] = world_submit(w, 0, &call[0].op); /* one rank comes when the others have seen the death */
    fake_drain();
    const uint64_t took = fake_delivered() - before;
    if (!fake_is_dead(VICTIM)) fake_kill(VICTIM, keep);
    fake_drain();
    for (uint32_t r = 0; r < N; r++) {
        if (r == VICTIM) continue;
        /* Auto group: a failed operation waits for its judgement (D9). */
        if (mcpg__dp_work_test(work[r]) == MCPG_IN_PROGRESS) assert_true(w->report_count > 0);
    }
    remove_victim(w, 1);
    for (uint32_t r = 0; r < N; r++) {
        if (r == VICTIM) continue;
        assert_int_equal(world_wait(w, work[r]), MCPG_OK);
        assert_int_equal(mcpg__dp_work_seq(work[r]), 0);
        check_survivor(&call[r], r, root, count, world_hints(work[r]));
        assert_int_equal(fake_posted(r), 0);
    }
    for (uint32_t r = 0; r < N; r++) mcpg__dp_work_release(work[r]);
    /* The next one simply works (D8). */
    for (uint32_t r = 0; r < N; r++) {
        if (r == VICTIM) continue;
        make_call(&call[r], MCPG_OP_ALLREDUCE, r, 0, 5);
        work[r] = world_submit(w, r, &call[r].op);
    }
    for (uint32_t r = 0; r < N; r++) {
        if (r == VICTIM) continue;
        assert_int_equal(world_wait(w, work[r]), MCPG_OK);
        assert_int_equal(world_hints(work[r]), 0);
        assert_int_equal(mcpg__dp_work_seq(work[r]), 1);
        assert_true(all_equal(out[r], 5, value(0, 0) + value(1, 0) + value(3, 0)));
        mcpg__dp_work_release(work[r]);
        assert_int_equal(fake_kept(r), 0);
    }
    world_free(w);
    return took;
}

static void death_at_each_message(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind <= MCPG_OP_BARRIER; kind++) {
        for (uint32_t variant = 0; variant < 8; variant++) {
            const size_t count = (variant & 1u) ? 5000 : 3; /* announced, or with the header */
            const uint32_t root = (variant & 2u) ? VICTIM : 0;
            uint64_t took = 1;
            for (uint64_t at = 0; at <= took; at++)
                took = kill_once((mcpg_op_kind_t)kind, count, root, at, (variant & 4u) != 0, at % 3u == 2u);
        }
    }
}

static void death_in_chunks(void **state) {
    (void)state;
    const mcpg_op_kind_t kinds[] = {MCPG_OP_ALLREDUCE, MCPG_OP_ALLGATHER};
    for (size_t k = 0; k < 2; k++)
        for (uint64_t at = 0; at < 60; at += 3) (void)kill_once(kinds[k], COUNT_MAX, 0, at, false, false);
}

static mcpg_dp_work_t *reduce_at(world_t *w, uint32_t rank) {
    in[rank][0] = value(rank, 0);
    const mcpg_op_t op = world_allreduce(in[rank], out[rank], 1);
    return world_submit(w, rank, &op);
}

static void end_one(world_t *w, mcpg_dp_work_t *work, mcpg_status_t status, uint32_t hints) {
    const mcpg_status_t got = world_wait(w, work);
    if (got != status) fail_msg("%s: %s", mcpg_status_name(got), mcpg__dp_work_error(work));
    assert_int_equal(world_hints(work), hints);
    mcpg__dp_work_release(work);
}

/* All ranks in one operation, everything fine. */
static void works(world_t *w, uint64_t seq) {
    mcpg_dp_work_t *work[WORLD_MAX];
    float sum = 0;
    for (uint32_t r = 0; r < w->n; r++) work[r] = reduce_at(w, r);
    for (uint32_t r = 0; r < w->n; r++) sum += value(r, 0);
    for (uint32_t r = 0; r < w->n; r++) {
        assert_int_equal(mcpg__dp_work_seq(work[r]), seq);
        end_one(w, work[r], MCPG_OK, 0);
        assert_true(out[r][0] == sum);
    }
}

static void cut_link_hints_both_and_heals(void **state) {
    (void)state;
    fake_reset(1);
    const world_config_t config = {.manual = true};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_drain();
    fake_cut(0, 1);
    fake_drain();
    mcpg_dp_work_t *c = reduce_at(w, 2);
    /* 0 and 1 had each other's contribution already: the cut tears nothing. */
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    end_one(w, c, MCPG_OK, 0);
    fake_heal(0, 1);
    fake_block(0, 1, true);
    a = reduce_at(w, 0), b = reduce_at(w, 1), c = reduce_at(w, 2);
    fake_drain();
    fake_cut(0, 1);
    end_one(w, b, MCPG_OK, 1u);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, c, MCPG_OK, 0);
    assert_int_equal(w->report_count, 1);
    assert_int_equal(w->reports[0].id, 0);
    assert_int_equal(w->reports[0].failed[0].slot.v, 0);
    fake_block(0, 1, false);
    fake_heal(0, 1);
    works(w, 2);
    world_free(w);
}

static void link_down_is_waited_for_up_to_the_timeout(void **state) {
    (void)state;
    fake_reset(2);
    const world_config_t config = {.manual = true, .collective_timeout_us = 5000000};
    world_t *w = world_new(2, &config);
    fake_cut(0, 1);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_advance(4000000);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    fake_heal(0, 1);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    fake_cut(0, 1);
    a = reduce_at(w, 0), b = reduce_at(w, 1);
    fake_advance(5100000);
    end_one(w, a, MCPG_OK, 2u);
    end_one(w, b, MCPG_OK, 1u);
    fake_heal(0, 1);
    works(w, 2);
    world_free(w);
}

static void silent_peer_fails_and_slow_peer_does_not(void **state) {
    (void)state;
    fake_reset(3);
    const world_config_t config = {.manual = true, .collective_timeout_us = 2000000};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_advance(60000000); /* 2 answers probes: it is only slow */
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    mcpg_dp_work_t *c = reduce_at(w, 2);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    end_one(w, c, MCPG_OK, 0);
    fake_hang(2, true);
    a = reduce_at(w, 0), b = reduce_at(w, 1);
    fake_advance(1900000);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    fake_advance(1300000);
    end_one(w, a, MCPG_OK, 4u);
    end_one(w, b, MCPG_OK, 4u);
    fake_hang(2, false); /* it finds what the others sent before they gave it up */
    c = reduce_at(w, 2);
    end_one(w, c, MCPG_OK, 0);
    works(w, 2);
    world_free(w);
}

static void hard_timeout_names_who_is_missing(void **state) {
    (void)state;
    fake_reset(4);
    const world_config_t config = {.collective_timeout_us = 1000000};
    world_t *w = world_new(3, &config);
    mcpg_op_t op = world_allreduce(in[0], out[0], 1);
    op.timeout_us = 7000000;
    mcpg_dp_work_t *a = world_submit(w, 0, &op), *b = reduce_at(w, 1);
    fake_advance(7100000);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_TIMED_OUT);
    assert_non_null(strstr(mcpg__dp_work_error(a), "allreduce number 0 timed out waiting for in-group ranks 2"));
    end_one(w, a, MCPG_TIMED_OUT, 0);
    /* What 0 had sent counts; it left, which is no evidence against it. */
    mcpg_dp_work_t *c = reduce_at(w, 2);
    assert_int_equal(world_wait(w, b), MCPG_OK);
    assert_int_equal(world_wait(w, c), MCPG_OK);
    assert_int_equal(w->report_count, 0);
    mcpg__dp_work_release(b);
    mcpg__dp_work_release(c);
    works(w, 1);
    world_free(w);
}

typedef struct {
    mcpg_op_kind_t kind;
    mcpg_dtype_t dtype;
    mcpg_redop_t redop;
    size_t count;
    uint32_t root;
    const char *text;
} odd_t;

static void disagreement_is_a_typed_error(void **state) {
    (void)state;
    static const odd_t odd[] = {{MCPG_OP_ALLREDUCE, MCPG_I32, MCPG_SUM, 4, 0, "i32"},
                                {MCPG_OP_ALLREDUCE, MCPG_F32, MCPG_MAX, 4, 0, "max"},
                                {MCPG_OP_ALLREDUCE, MCPG_F32, MCPG_SUM, 5, 0, "20 bytes"},
                                {MCPG_OP_ALLREDUCE, MCPG_F32, MCPG_SUM, 70000, 0, " bytes f32"},
                                {MCPG_OP_ALLREDUCE, MCPG_F32, MCPG_SUM, 300000, 0, "bytes f32"},
                                {MCPG_OP_BARRIER, MCPG_F32, MCPG_SUM, 4, 0, "barrier"}};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        for (size_t base = 4; base <= 66000; base = base == 4 ? 66000 : 70001) {
            fake_reset(i + base);
            const world_config_t config = {0};
            world_t *w = world_new(3, &config);
            mcpg_dp_work_t *work[3];
            for (uint32_t r = 0; r < 3; r++) {
                mcpg_op_t op = world_allreduce(in[r], out[r], base);
                if (r == 1) {
                    op.kind = odd[i].kind;
                    op.dtype = odd[i].dtype;
                    op.redop = odd[i].redop;
                    op.in.count = op.out.count = odd[i].count == 4 ? base : odd[i].count;
                }
                work[r] = world_submit(w, r, &op);
            }
            for (uint32_t r = 0; r < 3; r++) {
                const mcpg_status_t status = world_wait(w, work[r]);
                if (status != MCPG_MISMATCH)
                    fail_msg("odd %zu base %zu rank %u: %s", i, base, r, mcpg_status_name(status));
                const char *text = mcpg__dp_work_error(work[r]);
                if (strstr(text, odd[i].text) == NULL) fail_msg("%s", text);
                assert_non_null(strstr(text, "in-group rank"));
                assert_int_equal(world_hints(work[r]), 0);
                mcpg__dp_work_release(work[r]);
            }
            works(w, 1);
            world_free(w);
        }
    }
}

static void judged_operation_completes_in_order_when_resolved(void **state) {
    (void)state;
    fake_reset(6);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *a2 = reduce_at(w, 0), *b = reduce_at(w, 1), *b2 = reduce_at(w, 1);
    fake_kill(2, false);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    assert_int_equal(w->report_count, 4);
    const mcpg_leave_t leave = {{2}, 0};
    int32_t mirror[3] = {9, 9, 9};
    assert_int_equal(mcpg__dp_set_mirror(w->dp[0], (mcpg_gid_t){WORLD_GID}, mirror), MCPG_OK);
    world_commit(w, 0, WORLD_GID, 2, 3u, 2, &leave, 1, false);
    assert_true(mirror[0] == 1 && mirror[1] == 1 && mirror[2] == 0);
    for (uint32_t i = 0; i < 4; i++) { /* the later one first: it waits for the earlier one */
        const world_report_t *r = &w->reports[3 - i];
        assert_int_not_equal(r->id, 0);
        assert_int_equal(r->count, 1);
        if (r->rank == 0)
            mcpg__dp_ops()->resolve(w->dp[0], r->gid, r->id, r->seq == 0 ? MCPG_COORDINATOR_LOST : MCPG_OK);
        if (r->rank == 0 && r->seq == 1) assert_int_equal(mcpg__dp_work_test(a2), MCPG_IN_PROGRESS);
    }
    assert_int_equal(mcpg__dp_work_test(a), MCPG_COORDINATOR_LOST);
    assert_non_null(strstr(mcpg__dp_work_error(a), "allreduce number 0"));
    end_one(w, a, MCPG_COORDINATOR_LOST, 4u);
    end_one(w, a2, MCPG_OK, 4u);
    mcpg__dp_ops()->resolve(w->dp[1], (mcpg_gid_t){WORLD_GID}, 0, MCPG_OK);
    end_one(w, b, MCPG_OK, 4u);
    end_one(w, b2, MCPG_OK, 4u);
    world_free(w);
}

static void syncing_ends_operations_and_the_new_view_starts_clean(void **state) {
    (void)state;
    fake_reset(7);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    const mcpg_gid_t gid = {WORLD_GID};
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_drain();
    mcpg__dp_ops()->sync_fence(w->dp[0], gid);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_OK);
    bool ok = true;
    assert_int_equal(mcpg__dp_work_failed(a, NULL, 0, &ok), MCPG_OK);
    assert_false(ok);
    mcpg__dp_work_release(a);
    a = reduce_at(w, 0);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_OK);
    assert_int_equal(mcpg__dp_work_seq(a), 1);
    mcpg__dp_work_release(a);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(b), MCPG_IN_PROGRESS); /* not told yet: must not take 0 for failed */
    mcpg__dp_ops()->sync_fence(w->dp[1], gid);
    end_one(w, b, MCPG_OK, 0);
    mcpg_rankset_t failed;
    uint64_t first = 0;
    bool fenced = false;
    assert_int_equal(mcpg__dp_pending_failure(w->dp[0], gid, &failed, &first, &fenced), MCPG_OK);
    assert_true(fenced && mcpg__rankset_empty(&failed) && first == MCPG_NO_SEQ);
    for (uint32_t r = 0; r < 3; r++) assert_true(world_hold(w->dp[r], gid, NULL) == (r == 0 ? 2u : r == 1 ? 1u : 0u));
    for (uint32_t r = 0; r < 3; r++) world_commit(w, r, WORLD_GID, 2, 7u, UINT64_C(1) << 32, NULL, 0, true);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(mcpg__dp_sync_done(w->dp[r], gid), MCPG_OK);
    works(w, UINT64_C(1) << 32);
    for (uint32_t r = 0; r < 3; r++) assert_int_equal(fake_kept(r), 0);
    world_free(w);
}

static void abort_ends_own_works_and_tells_the_others(void **state) {
    (void)state;
    fake_reset(8);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1), *again = NULL;
    fake_block(0, 1, true);
    fake_drain();
    mcpg__dp_abort(w->dp[0], (mcpg_gid_t){WORLD_GID}, MCPG_ABORTED, "the test said so");
    end_one(w, a, MCPG_ABORTED, 0);
    char error[256];
    const mcpg_op_t op = world_allreduce(in[0], out[0], 1);
    assert_int_equal(world_try(w, 0, WORLD_GID, &op, &again, error, sizeof error), MCPG_ABORTED);
    assert_non_null(strstr(error, "the test said so"));
    fake_block(0, 1, false);
    mcpg_dp_work_t *c = reduce_at(w, 2);
    end_one(w, b, MCPG_OK, 0); /* it had sent its part before it left */
    end_one(w, c, MCPG_OK, 0);
    b = reduce_at(w, 1), c = reduce_at(w, 2);
    end_one(w, b, MCPG_OK, 1u);
    end_one(w, c, MCPG_OK, 1u);
    assert_int_equal(w->report_count, 0);
    world_free(w);
}

static void one_group_never_delays_another(void **state) {
    (void)state;
    fake_reset(9);
    const world_config_t config = {0};
    world_t *w = world_new(2, &config);
    world_group(w, 8, false);
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, 8, 1, 3u, 0, NULL, 0, false);
    mcpg_dp_work_t *stuck = reduce_at(w, 0), *work[2];
    char error[64];
    for (uint32_t r = 0; r < 2; r++) {
        const mcpg_op_t op = world_allreduce(in[r], out[r], 1);
        assert_int_equal(world_try(w, r, 8, &op, &work[r], error, sizeof error), MCPG_OK);
    }
    for (uint32_t r = 0; r < 2; r++) end_one(w, work[r], MCPG_OK, 0);
    assert_int_equal(mcpg__dp_work_test(stuck), MCPG_IN_PROGRESS);
    mcpg__dp_ops()->group_close(w->dp[0], (mcpg_gid_t){WORLD_GID});
    end_one(w, stuck, MCPG_ABORTED, 0);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(death_at_each_message),
        cmocka_unit_test(death_in_chunks),
        cmocka_unit_test(cut_link_hints_both_and_heals),
        cmocka_unit_test(link_down_is_waited_for_up_to_the_timeout),
        cmocka_unit_test(silent_peer_fails_and_slow_peer_does_not),
        cmocka_unit_test(hard_timeout_names_who_is_missing),
        cmocka_unit_test(disagreement_is_a_typed_error),
        cmocka_unit_test(judged_operation_completes_in_order_when_resolved),
        cmocka_unit_test(syncing_ends_operations_and_the_new_view_starts_clean),
        cmocka_unit_test(abort_ends_own_works_and_tells_the_others),
        cmocka_unit_test(one_group_never_delays_another),
    };
    return cmocka_run_group_tests_name("ops_faults", tests, NULL, NULL);
}
