/* test_ops_views.c: numbers against views: random holds and installs, isolated joiners, safe points, refusals,
 * point-to-point across views; over fake_link.c only.
 */
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
#define OPS       40u
#define VIEWS_MAX 64u

static const mcpg_gid_t gid = {WORLD_GID};

/* ---- virtual synchrony under random interleavings ---- */
typedef struct {
    uint64_t switch_seq;
    uint32_t active;
    uint64_t leave[N]; /* of this view's members, from a later commit */
} model_view_t;

typedef struct {
    world_t *w;
    uint64_t rng;
    model_view_t views[VIEWS_MAX];
    uint32_t view_count, installed[N]; /* how many views each rank has */
    bool barrier;
    uint32_t target, held; /* of the open barrier */
    uint64_t ack[N];
    struct {
        mcpg_dp_work_t *work;
        float in, out;
        bool evicted;
    } op[N][OPS * 4u];
    uint32_t op_count[N];
} model_t;

static uint32_t rnd(model_t *m, uint32_t n) {
    m->rng ^= m->rng << 13;
    m->rng ^= m->rng >> 7;
    m->rng ^= m->rng << 17;
    return (uint32_t)(m->rng >> 11) % n;
}

static void try_op(model_t *m, uint32_t r) {
    const uint32_t i = m->op_count[r];
    if (i == OPS * 4u) return;
    m->op[r][i].in = (float)(1u << r);
    m->op[r][i].out = 0;
    const mcpg_op_t op = world_allreduce(&m->op[r][i].in, &m->op[r][i].out, 1);
    char error[256];
    mcpg_dp_work_t *work = NULL;
    const mcpg_status_t status = world_try(m->w, r, WORLD_GID, &op, &work, error, sizeof error);
    if (status == MCPG_OK)
        m->op[r][m->op_count[r]++].work = work;
    else
        assert_int_equal(status, MCPG_NOT_ACTIVE);
}

static void open_barrier(model_t *m) {
    const model_view_t *last = &m->views[m->view_count - 1u];
    uint32_t target = 0;
    while (target == 0 || (target & last->active) == 0) target = rnd(m, 16); /* somebody stays */
    if (target == last->active || m->view_count == VIEWS_MAX) return;
    for (uint32_t r = 0; r < N; r++)
        if (m->installed[r] != m->view_count) return; /* an addition starts when all have passed the previous one */
    m->barrier = true;
    m->target = target;
    m->held = 0;
}

static void commit(model_t *m) {
    model_view_t *last = &m->views[m->view_count - 1u], *next = &m->views[m->view_count++];
    uint64_t seq = last->switch_seq;
    for (uint32_t r = 0; r < N; r++)
        if ((m->target & last->active) >> r & 1u) seq = m->ack[r] > seq ? m->ack[r] : seq;
    *next = (model_view_t){.switch_seq = seq, .active = m->target};
    for (uint32_t r = 0; r < N; r++) {
        next->leave[r] = MCPG_NO_SEQ;
        const bool leaves = (last->active & ~m->target) >> r & 1u;
        const uint64_t leave = m->ack[r] < seq ? m->ack[r] : seq;
        /* It may not even have reached the view it leaves. */
        for (uint32_t v = m->view_count - 2u; leaves && (m->views[v].active >> r & 1u); v--) {
            m->views[v].leave[r] = leave;
            if (v == 0) break;
        }
    }
    m->barrier = false;
}

static void install_next(model_t *m, uint32_t r) {
    if (m->installed[r] == m->view_count) return;
    const uint32_t i = m->installed[r]++;
    mcpg_leave_t leaves[N];
    uint32_t count = 0;
    for (uint32_t s = 0; s < N; s++) {
        if ((m->views[i - 1u].active & ~m->views[i].active) >> s & 1u)
            leaves[count++] = (mcpg_leave_t){{s}, m->views[i - 1u].leave[s]};
    }
    /* A rank that is removed ends its operations from leave_seq on; when it comes back, other operations get those
     * numbers. */
    const bool removed = (m->views[i - 1u].active & ~m->views[i].active) >> r & 1u;
    for (uint32_t k = 0; removed && k < m->op_count[r]; k++)
        if (mcpg__dp_work_seq(m->op[r][k].work) >= m->views[i - 1u].leave[r]) m->op[r][k].evicted = true;
    world_commit(m->w, r, WORLD_GID, i + 1u, m->views[i].active, m->views[i].switch_seq, leaves, count, false);
}

static void act(model_t *m) {
    const uint32_t r = rnd(m, N);
    const model_view_t *last = &m->views[m->view_count - 1u];
    switch (rnd(m, 6)) {
    case 0:
    case 1:
        try_op(m, r);
        break;
    case 2:
        install_next(m, r);
        break;
    case 3:
        if (!m->barrier) open_barrier(m);
        break;
    case 4:
        if (m->barrier && ((last->active >> r) & 1u) && ((m->held >> r) & 1u) == 0) {
            m->ack[r] = world_hold(m->w->dp[r], gid, NULL);
            m->held |= 1u << r;
        }
        if (m->barrier && m->held == last->active) commit(m);
        break;
    default:
        for (uint32_t k = rnd(m, 8); k != 0; k--) (void)fake_step();
        break;
    }
}

static void finish_views(model_t *m) {
    for (uint32_t r = 0; r < N && m->barrier; r++) {
        if ((m->views[m->view_count - 1u].active >> r & 1u) && (m->held >> r & 1u) == 0) {
            m->ack[r] = world_hold(m->w->dp[r], gid, NULL);
            m->held |= 1u << r;
        }
    }
    if (m->barrier) commit(m);
    for (uint32_t r = 0; r < N; r++)
        while (m->installed[r] != m->view_count) install_next(m, r);
}

/* What number n gives, by the table of commits alone. */
static void expect(const model_t *m, uint64_t n, float *sum, uint32_t *absent, uint32_t *takers) {
    uint32_t v = m->view_count - 1u;
    while (m->views[v].switch_seq > n) v--;
    *sum = 0;
    *absent = *takers = 0;
    for (uint32_t r = 0; r < N; r++) {
        if ((m->views[v].active >> r & 1u) == 0) continue;
        if (m->views[v].leave[r] <= n) {
            *absent |= 1u << r;
        } else {
            *takers |= 1u << r;
            *sum += (float)(1u << r);
        }
    }
}

static uint64_t highest_seq(const model_t *m) {
    uint64_t high = 0;
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t i = 0; i < m->op_count[r]; i++)
            if (mcpg__dp_work_seq(m->op[r][i].work) >= high) high = mcpg__dp_work_seq(m->op[r][i].work) + 1u;
    return high;
}

static void level(model_t *m) {
    /* Everybody who is active goes on until the numbers are equal. */
    const uint64_t high = highest_seq(m);
    for (uint32_t r = 0; r < N; r++) {
        if ((m->views[m->view_count - 1u].active >> r & 1u) == 0) continue;
        for (uint64_t next = 0; next < high;) {
            uint32_t extent;
            bool isolated;
            assert_int_equal(mcpg__dp_next_view(m->w->dp[r], gid, &extent, &isolated, &next), MCPG_OK);
            if (next < high) try_op(m, r);
        }
    }
}

static void check_op(model_t *m, uint32_t r, uint32_t i) {
    mcpg_dp_work_t *work = m->op[r][i].work;
    const uint64_t n = mcpg__dp_work_seq(work);
    float sum;
    uint32_t absent, takers;
    expect(m, n, &sum, &absent, &takers);
    const mcpg_status_t status = world_wait(m->w, work);
    if (m->op[r][i].evicted) {
        assert_int_equal(status, MCPG_NOT_ACTIVE);
        return;
    }
    assert_true(takers >> r & 1u);
    if (status != MCPG_OK) fail_msg("rank %u number %llu: %s", r, (unsigned long long)n, mcpg__dp_work_error(work));
    if (m->op[r][i].out != sum)
        fail_msg("rank %u number %llu: %f, not %f", r, (unsigned long long)n, (double)m->op[r][i].out, (double)sum);
    assert_int_equal(world_hints(work), absent);
}

static void interleave(uint64_t seed) {
    static model_t m;
    memset(&m, 0, sizeof m);
    m.rng = seed * 0x9e3779b97f4a7c15u + 1u;
    fake_reset(seed);
    const world_config_t config = {0};
    m.w = world_new(N, &config);
    m.views[0] = (model_view_t){0, 15, {MCPG_NO_SEQ, MCPG_NO_SEQ, MCPG_NO_SEQ, MCPG_NO_SEQ}};
    m.view_count = 1;
    for (uint32_t r = 0; r < N; r++) m.installed[r] = 1;
    for (uint32_t i = 0; i < OPS * N * 2u; i++) act(&m);
    finish_views(&m);
    level(&m);
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t i = 0; i < m.op_count[r]; i++) check_op(&m, r, i);
    for (uint32_t r = 0; r < N; r++) {
        assert_int_equal(fake_posted(r), 0);
        for (uint32_t i = 0; i < m.op_count[r]; i++) mcpg__dp_work_release(m.op[r][i].work);
    }
    world_free(m.w);
}

static void numbers_meet_the_same_view_everywhere(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) interleave(seed);
}

/* ---- single rules ---- */
static float in[N], out[N];

static mcpg_dp_work_t *reduce_at(world_t *w, uint32_t rank) {
    in[rank] = (float)(1u << rank);
    const mcpg_op_t op = world_allreduce(&in[rank], &out[rank], 1);
    return world_submit(w, rank, &op);
}

static void end_one(world_t *w, mcpg_dp_work_t *work, mcpg_status_t status, uint32_t hints) {
    const mcpg_status_t got = world_wait(w, work);
    if (got != status) fail_msg("%s: %s", mcpg_status_name(got), mcpg__dp_work_error(work));
    assert_int_equal(world_hints(work), hints);
    mcpg__dp_work_release(work);
}

static void operations_before_the_first_view_are_held(void **state) {
    (void)state;
    fake_reset(1);
    const world_config_t config = {.no_view = true};
    world_t *w = world_new(2, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_advance(1000000);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    assert_int_equal(world_hold(w->dp[0], gid, NULL), 0);
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 3, 3u, 0, NULL, 0, false);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    assert_true(out[0] == 3.0f && out[1] == 3.0f);
    world_free(w);
}

static void isolated_joiner_runs_alone_and_joins_at_switch_seq(void **state) {
    (void)state;
    fake_reset(2);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a, *b, *c;
    fake_kill(2, false);
    a = reduce_at(w, 0), b = reduce_at(w, 1);
    const mcpg_leave_t leave = {{2}, 0};
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 2, 3u, 1, &leave, 1, false);
    end_one(w, a, MCPG_OK, 4u);
    end_one(w, b, MCPG_OK, 4u);
    world_restart(w, 2, &config);
    for (uint32_t i = 0; i < 5; i++) {
        c = reduce_at(w, 2);
        assert_int_equal(mcpg__dp_work_seq(c), i);
        end_one(w, c, MCPG_OK, 0);
        assert_true(out[2] == 4.0f);
    }
    /* Rooted at another rank, and a gather without a list: alone it is root and fills its own slot. */
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_GATHER;
    op.dtype = MCPG_F32;
    op.in = (mcpg_seg_t){&in[2], 1};
    end_one(w, world_submit(w, 2, &op), MCPG_OK, 0);
    float list[3] = {-1, -1, -1};
    const mcpg_seg_t outs[3] = {{&list[0], 1}, {&list[1], 1}, {&list[2], 1}};
    op.kind = MCPG_OP_ALLGATHER;
    op.outs = outs;
    op.out_count = 3;
    end_one(w, world_submit(w, 2, &op), MCPG_OK, 0);
    assert_true(list[0] == -1.0f && list[1] == -1.0f && list[2] == 4.0f);
    uint32_t extent = 0;
    uint64_t next = 0;
    bool isolated = false;
    assert_int_equal(mcpg__dp_next_view(w->dp[2], gid, &extent, &isolated, &next), MCPG_OK);
    assert_true(isolated && extent == 3);
    assert_int_equal(mcpg__dp_quiesce(w->dp[2], gid, 1000000), MCPG_OK);
    char error[256];
    op = world_allreduce(&in[2], &out[2], 1);
    assert_int_equal(world_try(w, 2, WORLD_GID, &op, &c, error, sizeof error), MCPG_QUIESCING);
    for (uint32_t r = 0; r < 3; r++) world_commit(w, r, WORLD_GID, 3, 7u, 4, NULL, 0, false);
    mcpg_dp_work_t *old[2][3];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < 3; i++) old[r][i] = reduce_at(w, r); /* 1, 2, 3: without the joiner */
    a = reduce_at(w, 0), b = reduce_at(w, 1), c = reduce_at(w, 2);
    assert_int_equal(mcpg__dp_work_seq(c), 4);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < 3; i++) end_one(w, old[r][i], MCPG_OK, 0);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    end_one(w, c, MCPG_OK, 0);
    assert_true(out[0] == 7.0f && out[2] == 7.0f);
    world_free(w);
}

static void safe_points_round_up_and_clear_failures(void **state) {
    (void)state;
    fake_reset(3);
    const world_config_t config = {.manual = true};
    world_t *w = world_new(2, &config);
    mcpg_view_t view;
    const uint64_t step = UINT64_C(1) << 32;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(mcpg__dp_safe_point(w->dp[r], gid, &view), MCPG_OK);
        assert_int_equal(view.start_seq, 0);
    }
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(mcpg__dp_safe_point(w->dp[r], gid, &view), MCPG_OK);
            assert_int_equal(view.start_seq, step);
        }
        assert_true(view.active[0] == 1 && view.active[1] == 1 && view.incarnation[1] == 2 && view.epoch == 1 &&
                    view.slot_count == 2);
    }
    fake_kill(1, false);
    a = reduce_at(w, 0);
    assert_int_equal(mcpg__dp_work_seq(a), step);
    end_one(w, a, MCPG_OK, 2u);
    mcpg_rankset_t failed;
    uint64_t first;
    bool fenced;
    assert_int_equal(mcpg__dp_pending_failure(w->dp[0], gid, &failed, &first, &fenced), MCPG_OK);
    assert_true(mcpg__rankset_has(&failed, 1) && first == step && !fenced);
    assert_int_equal(mcpg__dp_safe_point(w->dp[0], gid, &view), MCPG_OK);
    assert_int_equal(mcpg__dp_pending_failure(w->dp[0], gid, &failed, &first, &fenced), MCPG_OK);
    assert_true(mcpg__rankset_empty(&failed) && first == MCPG_NO_SEQ);
    world_free(w);
}

static void refusals_consume_their_number(void **state) {
    (void)state;
    fake_reset(4);
    const world_config_t config = {.manual = true};
    world_t *w = world_new(3, &config);
    const mcpg_leave_t leave = {{2}, 0};
    for (uint32_t r = 0; r < 3; r++) world_commit(w, r, WORLD_GID, 2, 3u, 0, &leave, 1, false);
    char error[512];
    mcpg_dp_work_t *work = NULL;
    for (uint32_t r = 0; r < 3; r++) {
        mcpg_op_t op = world_allreduce(&in[r], &out[r], 1);
        op.kind = MCPG_OP_BROADCAST;
        op.root = 2;
        const mcpg_status_t status = world_try(w, r, WORLD_GID, &op, &work, error, sizeof error);
        assert_int_equal(status, r == 2 ? MCPG_NOT_ACTIVE : MCPG_ROOT_NOT_ACTIVE);
        assert_non_null(strstr(error, r == 2 ? "join_group" : "root 2"));
        op = world_allreduce(&in[r], &out[r], 1);
        op.redop = MCPG_BAND;
        assert_int_equal(world_try(w, r, WORLD_GID, &op, &work, error, sizeof error), MCPG_NOT_SUPPORTED);
        op.redop = MCPG_SUM;
        op.out.count = 2;
        assert_int_equal(world_try(w, r, WORLD_GID, &op, &work, error, sizeof error),
                         MCPG_INVALID_ARGUMENT); /* no number */
        assert_null(work);
    }
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    assert_int_equal(mcpg__dp_work_seq(a), 2);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 0);
    /* Held: refused in its work. */
    assert_int_equal(world_hold(w->dp[1], gid, NULL), 3);
    b = reduce_at(w, 1);
    const mcpg_leave_t leave1 = {{1}, 3};
    world_commit(w, 1, WORLD_GID, 3, 1u, 3, &leave1, 1, false);
    world_commit(w, 0, WORLD_GID, 3, 1u, 3, &leave1, 1, false);
    end_one(w, b, MCPG_NOT_ACTIVE, 0);
    end_one(w, reduce_at(w, 0), MCPG_OK, 0);
    assert_true(out[0] == 1.0f);
    world_free(w);
}

static void fenced_slot_is_hinted_and_not_waited_for(void **state) {
    (void)state;
    fake_reset(5);
    const world_config_t config = {.manual = true};
    world_t *w = world_new(3, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0), *b = reduce_at(w, 1);
    fake_drain();
    const mcpg_leave_t leave = {{2}, 0};
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 2, 7u, 1, &leave, 1, false);
    end_one(w, a, MCPG_OK, 4u);
    end_one(w, b, MCPG_OK, 4u);
    for (uint32_t e = 3; e < 5; e++) {
        a = reduce_at(w, 0), b = reduce_at(w, 1);
        end_one(w, a, MCPG_OK, 4u);
        end_one(w, b, MCPG_OK, 4u);
        for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, e, 7u, e, NULL, 0, false); /* stays fenced */
    }
    assert_int_equal(w->report_count, 0);
    world_free(w);
}

static void in_doubt_ends_held_operations(void **state) {
    (void)state;
    fake_reset(6);
    const world_config_t config = {0};
    world_t *w = world_new(2, &config);
    assert_int_equal(world_hold(w->dp[0], gid, NULL), 0);
    mcpg_dp_work_t *a = reduce_at(w, 0);
    mcpg__dp_ops()->resolve(w->dp[0], gid, 0, MCPG_IN_DOUBT);
    assert_non_null(strstr(mcpg__dp_work_error(a), "held by a membership change"));
    end_one(w, a, MCPG_IN_DOUBT, 0);
    /* None is taken from now on, but each consumes its number. */
    mcpg_view_t view;
    mcpg_dp_work_t *work = NULL;
    char error[512];

    mcpg_op_t op = world_allreduce(&in[0], &out[0], 1);
    assert_int_equal(world_try(w, 0, WORLD_GID, &op, &work, error, sizeof error), MCPG_IN_DOUBT);
    assert_non_null(strstr(error, "coordinator was lost"));
    assert_int_equal(mcpg__dp_safe_point(w->dp[0], gid, &view), MCPG_IN_DOUBT);
    mcpg_dp_work_t *b = reduce_at(w, 1), *b1 = reduce_at(w, 1), *b2 = reduce_at(w, 1);
    mcpg__dp_ops()->release_hold(w->dp[0], gid);
    a = reduce_at(w, 0);
    end_one(w, a, MCPG_OK, 0);
    end_one(w, b, MCPG_OK, 1u); /* told when the hold ended */
    end_one(w, b1, MCPG_OK, 1u);
    end_one(w, b2, MCPG_OK, 0);
    bool steps = false; /* the hold says whether safe points are used */
    assert_int_equal(world_hold(w->dp[1], gid, &steps), 3);
    assert_false(steps);
    assert_int_equal(world_hold(w->dp[0], gid, &steps), 3);
    assert_true(steps);
    world_free(w);
}

/* Another process has the rank: everything ends, nothing more is taken. */
static void superseded_ends_the_group(void **state) {
    (void)state;
    fake_reset(7);
    const world_config_t config = {0};
    world_t *w = world_new(2, &config);
    mcpg_dp_work_t *a = reduce_at(w, 0);
    (void)world_hold(w->dp[0], gid, NULL);
    mcpg_dp_work_t *held = reduce_at(w, 0), *work = NULL;
    mcpg__dp_ops()->resolve(w->dp[0], gid, 0, MCPG_NOT_ACTIVE);
    end_one(w, a, MCPG_NOT_ACTIVE, 0);
    end_one(w, held, MCPG_NOT_ACTIVE, 0);
    char error[512];

    mcpg_op_t op = world_allreduce(&in[0], &out[0], 1);
    assert_int_equal(world_try(w, 0, WORLD_GID, &op, &work, error, sizeof error), MCPG_NOT_ACTIVE);
    assert_non_null(strstr(error, "create a new context"));
    world_free(w);
}

/* ---- point-to-point ---- */
static mcpg_dp_work_t *message(world_t *w, uint32_t rank, bool send, uint32_t peer, uint64_t tag, void *mem,
                               size_t bytes) {
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = send ? MCPG_OP_SEND : MCPG_OP_RECV;
    op.dtype = MCPG_BYTES;
    op.peer = peer;
    op.tag = tag;
    if (send)
        op.in = (mcpg_seg_t){mem, bytes};
    else
        op.out = (mcpg_seg_t){mem, bytes};
    return world_submit(w, rank, &op);
}

static void messages_by_tag_in_order(void **state) {
    (void)state;
    fake_reset(7);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    static char big[2][100000];
    char a[4][8] = {"one", "two", "x", "three"}, b[4][8] = {{0}};
    for (uint32_t i = 0; i < 4; i++) { /* complete without a receive */
        end_one(w, message(w, 0, true, 1, i == 2 ? 9 : 5, a[i], 8), MCPG_OK, 0);
    }
    end_one(w, message(w, 1, false, 0, 9, b[2], 8), MCPG_OK, 0);
    end_one(w, message(w, 1, false, 0, 5, b[0], 8), MCPG_OK, 0);
    end_one(w, message(w, 1, false, 0, 5, b[1], 8), MCPG_OK, 0);
    end_one(w, message(w, 1, false, 0, 5, b[3], 8), MCPG_OK, 0);
    assert_memory_equal(a, b, sizeof a);
    memset(big[0], 7, sizeof big[0]);
    mcpg_dp_work_t *s = message(w, 2, true, 1, 0, big[0], sizeof big[0]);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(s), MCPG_IN_PROGRESS);
    end_one(w, message(w, 1, false, 2, 0, big[1], sizeof big[1]), MCPG_OK, 0);
    end_one(w, s, MCPG_OK, 0);
    assert_memory_equal(big[0], big[1], sizeof big[0]);
    /* A receive that waits does not hold up a collective. */
    mcpg_dp_work_t *late = message(w, 0, false, 1, 1, b[0], 8), *work[3];
    for (uint32_t r = 0; r < 3; r++) work[r] = reduce_at(w, r);
    for (uint32_t r = 0; r < 3; r++) end_one(w, work[r], MCPG_OK, 0);
    end_one(w, message(w, 1, true, 0, 1, a[3], 8), MCPG_OK, 0);
    end_one(w, late, MCPG_OK, 0);
    assert_string_equal(b[0], "three");
    /* Another size at the other end. */
    end_one(w, message(w, 0, true, 1, 2, a[0], 8), MCPG_OK, 0);
    mcpg_dp_work_t *odd = message(w, 1, false, 0, 2, b[0], 4);
    assert_int_equal(world_wait(w, odd), MCPG_MISMATCH);
    assert_non_null(strstr(mcpg__dp_work_error(odd), "send of 8 bytes"));
    mcpg__dp_work_release(odd);
    world_free(w);
}

static void messages_to_oneself(void **state) {
    (void)state;
    fake_reset(8);
    const world_config_t config = {0};
    world_t *w = world_new(1, &config);
    static char big[2][20000];
    char a[8] = "self", b[8] = "";
    end_one(w, message(w, 0, true, 0, 3, a, 8), MCPG_OK, 0);
    end_one(w, message(w, 0, false, 0, 3, b, 8), MCPG_OK, 0);
    assert_string_equal(b, "self");
    mcpg_dp_work_t *r = message(w, 0, false, 0, 3, b, 8);
    assert_int_equal(mcpg__dp_work_test(r), MCPG_IN_PROGRESS);
    strncpy(a, "again", sizeof a);
    end_one(w, message(w, 0, true, 0, 3, a, 8), MCPG_OK, 0);
    end_one(w, r, MCPG_OK, 0);
    assert_string_equal(b, "again");
    memset(big[0], 3, sizeof big[0]);
    mcpg_dp_work_t *s = message(w, 0, true, 0, 0, big[0], sizeof big[0]);
    assert_int_equal(mcpg__dp_work_test(s), MCPG_IN_PROGRESS);
    end_one(w, message(w, 0, false, 0, 0, big[1], sizeof big[1]), MCPG_OK, 0);
    end_one(w, s, MCPG_OK, 0);
    assert_memory_equal(big[0], big[1], sizeof big[0]);
    r = message(w, 0, false, 0, 4, b, 8); /* ends with the group */
    mcpg__dp_ops()->group_close(w->dp[0], gid);
    end_one(w, r, MCPG_ABORTED, 0);
    world_free(w);
}

static void messages_survive_views_that_keep_both_ends(void **state) {
    (void)state;
    fake_reset(9);
    const world_config_t config = {0};
    world_t *w = world_new(3, &config);
    char a[8] = "kept", b[8] = "", c[8] = "";
    mcpg_dp_work_t *kept = message(w, 0, false, 1, 0, b, 8), *lost = message(w, 0, false, 2, 0, c, 8);
    const mcpg_leave_t leave = {{2}, 0};
    for (uint32_t r = 0; r < 3; r++) world_commit(w, r, WORLD_GID, 2, 3u, 0, &leave, 1, false);
    end_one(w, lost, MCPG_OK, 4u);
    end_one(w, message(w, 0, true, 2, 0, a, 8), MCPG_OK, 4u); /* not active: hinted at once */
    end_one(w, message(w, 1, true, 0, 0, a, 8), MCPG_OK, 0);
    end_one(w, kept, MCPG_OK, 0);
    assert_string_equal(b, "kept");
    /* Sent before the agreement, received after it: numbers start again and the old one is not taken for the new one.
     */
    end_one(w, message(w, 1, true, 0, 0, a, 8), MCPG_OK, 0);
    for (uint32_t r = 0; r < 2; r++) world_commit(w, r, WORLD_GID, 3, 3u, UINT64_C(1) << 32, NULL, 0, true);
    mcpg_dp_work_t *fresh = message(w, 0, false, 1, 0, b, 8);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(fresh), MCPG_IN_PROGRESS);
    strncpy(a, "new", sizeof a);
    end_one(w, message(w, 1, true, 0, 0, a, 8), MCPG_OK, 0);
    end_one(w, fresh, MCPG_OK, 0);
    assert_string_equal(b, "new");
    /* Deactivated and activated again as the same process: both ends begin with 0. */
    for (uint32_t r = 0; r < 3; r++) world_commit(w, r, WORLD_GID, 4, 7u, UINT64_C(1) << 32, NULL, 0, false);
    mcpg_dp_work_t *from2 = message(w, 0, false, 2, 0, c, 8);
    end_one(w, message(w, 2, true, 0, 0, a, 8), MCPG_OK, 0);
    end_one(w, from2, MCPG_OK, 0);
    assert_string_equal(c, "new");
    fake_kill(1, false);
    mcpg_dp_work_t *dead = message(w, 0, false, 1, 0, b, 8);
    fake_drain();
    assert_int_equal(mcpg__dp_work_test(dead), MCPG_IN_PROGRESS); /* judged first */
    end_one(w, dead, MCPG_OK, 2u);
    assert_int_equal(w->reports[w->report_count - 1u].seq, MCPG_NO_SEQ);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_meet_the_same_view_everywhere),
        cmocka_unit_test(operations_before_the_first_view_are_held),
        cmocka_unit_test(isolated_joiner_runs_alone_and_joins_at_switch_seq),
        cmocka_unit_test(safe_points_round_up_and_clear_failures),
        cmocka_unit_test(refusals_consume_their_number),
        cmocka_unit_test(fenced_slot_is_hinted_and_not_waited_for),
        cmocka_unit_test(in_doubt_ends_held_operations),
        cmocka_unit_test(superseded_ends_the_group),
        cmocka_unit_test(messages_by_tag_in_order),
        cmocka_unit_test(messages_to_oneself),
        cmocka_unit_test(messages_survive_views_that_keep_both_ends),
    };
    return cmocka_run_group_tests_name("ops_views", tests, NULL, NULL);
}
