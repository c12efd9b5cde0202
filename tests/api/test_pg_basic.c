/* test_pg_basic.c: healthy groups of real processes through pg.h: operations, types, lifetimes, groups, transports. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "job.h"

#define N 37u

/* ---- all_reduce in every type ---- */

typedef union {
    uint8_t u8[N];
    int8_t i8[N];
    uint16_t u16[N];
    int16_t i16[N];
    uint32_t u32[N];
    int32_t i32[N];
    uint64_t u64[N];
    int64_t i64[N];
    float f32[N];
    double f64[N];
} any_t;

#define FOR_TYPES(X)                                                                                                   \
    X(U8, u8) X(I8, i8) X(U16, u16) X(I16, i16) X(U32, u32) X(I32, i32) X(U64, u64) X(I64, i64) X(F32, f32) X(F64, f64)

static void put(any_t *a, mcpg_dtype_t t, uint32_t i, double v) {
#define X(NAME, field)                                                                                                 \
    if (t == MCPG_##NAME) a->field[i] = (__typeof__(a->field[0]))v;
    FOR_TYPES(X)
#undef X
}
static double take(const any_t *a, mcpg_dtype_t t, uint32_t i) {
#define X(NAME, field)                                                                                                 \
    if (t == MCPG_##NAME) return (double)a->field[i];
    FOR_TYPES(X)
#undef X
    return -1;
}

static double value_of(uint32_t rank, uint32_t i) {
    return (double)((rank + i) % 5u + 1u);
}

static double expected(mcpg_redop_t op, uint32_t world, uint32_t i) {
    double v = value_of(0, i);
    for (uint32_t r = 1; r < world; r++) {
        double x = value_of(r, i);
        if (op == MCPG_SUM || op == MCPG_AVG) v += x;
        if (op == MCPG_PRODUCT) v *= x;
        if (op == MCPG_MIN && x < v) v = x;
        if (op == MCPG_MAX && x > v) v = x;
    }
    return op == MCPG_AVG ? v / world : v;
}

static void one_reduce(mcpg_context_t *c, mcpg_group_t *g, const role_t *role, mcpg_dtype_t t, mcpg_redop_t redop) {
    any_t in, out;
    memset(&in, 0, sizeof(in));
    memset(&out, 0, sizeof(out));
    for (uint32_t i = 0; i < N; i++) put(&in, t, i, value_of(role->rank, i));
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = t;
    op.redop = redop;
    op.in = (mcpg_seg_t){&in, N};
    op.out = (mcpg_seg_t){&out, N};
    mcpg_work_t *w = NULL;
    OK(c, mcpg_group_submit(g, &op, &w));
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    CHECK(hint_of(c, w) == 0);
    for (uint32_t i = 0; i < N; i++) {
        double want = expected(redop, role->world, i);
        if (redop == MCPG_AVG && t != MCPG_F32 && t != MCPG_F64) want = (double)(int64_t)want;
        char text[128];
        (void)snprintf(text, sizeof(text), "%s %s [%u]: %g, expected %g", mcpg_dtype_name(t), mcpg_redop_name(redop), i,
                       take(&out, t, i), want);
        double d = take(&out, t, i) - want;
        CHECK_TEXT(d < 1e-3 && d > -1e-3, text);
        CHECK(take(&in, t, i) == (double)value_of(role->rank, i));
    }
}

static void role_types(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    CHECK(mcpg_group_rank(g) == role->rank);
    CHECK(mcpg_group_size(g) == role->world);
    static const mcpg_redop_t ops[] = {MCPG_SUM, MCPG_MIN, MCPG_MAX};
    for (mcpg_dtype_t t = MCPG_U8; t <= MCPG_F64; t++)
        for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) one_reduce(c, g, role, t, ops[i]);
    one_reduce(c, g, role, MCPG_F32, MCPG_AVG);
    one_reduce(c, g, role, MCPG_F64, MCPG_AVG);
    mcpg_op_t op = MCPG_OP_INITIALIZER; /* refused before anything is sent: everybody goes on */
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = MCPG_BYTES;
    char byte = 0;
    op.in = op.out = (mcpg_seg_t){&byte, 1};
    mcpg_work_t *w = NULL;
    CHECK(mcpg_group_submit(g, &op, &w) == MCPG_NOT_SUPPORTED);
    CHECK(w == NULL && mcpg_context_error(c)[0] != '\0');
    CHECK(sum(c, g, 1) == role->world);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

/* ---- the other operations ---- */

static void run(mcpg_context_t *c, mcpg_group_t *g, const mcpg_op_t *op) {
    mcpg_work_t *w = NULL;
    OK(c, mcpg_group_submit(g, op, &w));
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    CHECK(mcpg_work_kind(w) == op->kind);
    CHECK(hint_of(c, w) == 0);
}

static void moves(mcpg_context_t *c, mcpg_group_t *g, const role_t *role) {
    int32_t own[3] = {(int32_t)role->rank, 10, 20}, all[8][3], back[3] = {0}, b;
    const uint32_t root = role->world - 1;
    b = role->rank == root ? 77 : 0;
    memset(all, 0xff, sizeof(all));
    mcpg_seg_t segs[8];
    for (uint32_t i = 0; i < role->world; i++) segs[i] = (mcpg_seg_t){all[i], 3};
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.dtype = MCPG_I32;
    op.kind = MCPG_OP_BROADCAST;
    op.root = root;
    op.out = (mcpg_seg_t){&b, 1};
    run(c, g, &op);
    CHECK(b == 77);
    op = MCPG_OP_INITIALIZER;
    op.dtype = MCPG_I32;
    op.kind = MCPG_OP_ALLGATHER;
    op.in = (mcpg_seg_t){own, 3};
    op.outs = segs;
    op.out_count = role->world;
    run(c, g, &op);
    for (uint32_t i = 0; i < role->world; i++) CHECK(all[i][0] == (int32_t)i && all[i][2] == 20);
    memset(all, 0, sizeof(all));
    op.kind = MCPG_OP_GATHER;
    op.root = root;
    run(c, g, &op);
    for (uint32_t i = 0; i < role->world; i++) CHECK(all[i][0] == (role->rank == op.root ? (int32_t)i : 0));
    for (uint32_t i = 0; i < role->world; i++) all[i][0] = (int32_t)(100 + i);
    op = MCPG_OP_INITIALIZER;
    op.dtype = MCPG_I32;
    op.kind = MCPG_OP_SCATTER;
    op.root = 0;
    op.ins = segs;
    op.in_count = role->world;
    op.out = (mcpg_seg_t){back, 3};
    run(c, g, &op);
    CHECK(back[0] == (int32_t)(100 + role->rank));
    op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_BARRIER;
    run(c, g, &op);
}

static void messages(mcpg_context_t *c, mcpg_group_t *g, const role_t *role) {
    static int64_t big[200000], got[200000];
    uint32_t next = (role->rank + 1) % role->world, prev = (role->rank + role->world - 1) % role->world;
    for (size_t size = 1; size <= 200000; size *= 200000) {
        for (size_t i = 0; i < size; i++) big[i] = (int64_t)(role->rank * 1000003u + i);
        mcpg_op_t op = MCPG_OP_INITIALIZER;
        op.dtype = MCPG_I64;
        op.kind = MCPG_OP_SEND;
        op.peer = next;
        op.tag = 5;
        op.in = (mcpg_seg_t){big, size};
        mcpg_work_t *s = NULL, *r = NULL;
        OK(c, mcpg_group_submit(g, &op, &s));
        op.kind = MCPG_OP_RECV;
        op.peer = prev;
        op.out = (mcpg_seg_t){got, size};
        OK(c, mcpg_group_submit(g, &op, &r));
        CHECK_TEXT(mcpg_work_wait(r, 30000000) == MCPG_OK, mcpg_work_error(r));
        CHECK_TEXT(mcpg_work_wait(s, 30000000) == MCPG_OK, mcpg_work_error(s));
        CHECK(mcpg_work_seq(s) == UINT64_MAX);
        for (size_t i = 0; i < size; i++) CHECK(got[i] == (int64_t)(prev * 1000003u + i));
        CHECK(hint_of(c, s) == 0 && hint_of(c, r) == 0);
        if (size == 200000) break;
    }
}

static void large(mcpg_context_t *c, mcpg_group_t *g, const role_t *role) {
    static float big[1u << 20];
    for (size_t i = 0; i < 1u << 20; i++) big[i] = (float)(role->rank + i % 7);
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = MCPG_F32;
    op.redop = MCPG_SUM;
    op.in = op.out = (mcpg_seg_t){big, 1u << 20};
    run(c, g, &op);
    float ranks = (float)(role->world * (role->world - 1) / 2);
    for (size_t i = 0; i < 1u << 20; i++) CHECK(big[i] == ranks + (float)(role->world * (i % 7)));
}

static void role_ops(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    for (int i = 0; i < 5; i++) moves(c, g, role);
    messages(c, g, role);
    large(c, g, role);
    static char json[65536];
    CHECK(mcpg_context_status_json(c, json, sizeof(json)) < sizeof(json));
    CHECK_TEXT(json[0] == '{' && json[strlen(json) - 1] == '}' && strstr(json, "\"links\":") != NULL, json);
    if (strcmp(role->option, "tcp") == 0)
        CHECK_TEXT(strstr(json, "\"shm\"") == NULL && strstr(json, "\"tcp\"") != NULL, json);
    if (strcmp(role->option, "shm") == 0)
        CHECK_TEXT(strstr(json, "\"tcp\"") == NULL && strstr(json, "\"shm\"") != NULL, json);
    char small[16];
    CHECK(mcpg_context_status_json(c, small, sizeof(small)) > sizeof(small) && strlen(small) == 15);
    int64_t v[16];
    mcpg_work_t *w[16];
    for (int i = 0; i < 16; i++) {
        v[i] = i;
        w[i] = start_sum(c, g, &v[i]);
    }
    for (int i = 15; i >= 0; i--) {
        CHECK_TEXT(mcpg_work_wait(w[i], 30000000) == MCPG_OK, mcpg_work_error(w[i]));
        CHECK(v[i] == i * (int64_t)role->world);
        CHECK(hint_of(c, w[i]) == 0);
    }
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

/* ---- lifetimes and groups ---- */

static void role_again(const role_t *role) {
    for (int life = 0; life < 3; life++) {
        mcpg_context_t *c = make_context(role);
        mcpg_group_t *g = make_group(c, role->world, 0, false, false);
        CHECK(sum(c, g, life + 1) == (int64_t)role->world * (life + 1));
        mcpg_group_destroy(g);
        mcpg_context_destroy(c);
    }
    mcpg_context_t *c = make_context(role); /* the group alone: same context */
    for (int i = 0; i < 3; i++) {
        mcpg_group_t *g = make_group(c, role->world, 0, false, false);
        CHECK(sum(c, g, 1) == (int64_t)role->world);
        mcpg_group_destroy(g);
    }
    mcpg_context_destroy(c);
}

static void role_single(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, 1, 0, false, false);
    CHECK(mcpg_group_size(g) == 1 && mcpg_group_rank(g) == 0 && !mcpg_group_is_isolated(g));
    CHECK(sum(c, g, 5) == 5);
    moves(c, g, &(role_t){.rank = 0, .world = 1});
    mcpg_view_t v;
    OK(c, mcpg_group_safe_point(g, &v));
    CHECK(v.slot_count == 1 && v.active[0] == 1 && v.start_seq == UINT64_C(1) << 32);
    CHECK(sum(c, g, 6) == 6);
    mcpg_context_destroy(c); /* leaves the group, too */
}

static mcpg_group_t *group_of(mcpg_context_t *c, const uint32_t *order, uint32_t n, const char *key) {
    mcpg_group_config_t config = MCPG_GROUP_CONFIG_INITIALIZER;
    config.rank_order = order;
    config.group_size = n;
    config.group_key = key;
    config.timeout_us = 30000000;
    mcpg_group_t *g = NULL;
    OK(c, mcpg_group_create(c, &config, &g));
    return g;
}

static void role_subgroups(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    uint32_t odd = role->rank % 2;
    const uint32_t half[2] = {odd, odd + 2}, swapped[2] = {odd + 2, odd};
    mcpg_group_t *first = group_of(c, half, 2, NULL); /* the first group is not WORLD */
    mcpg_group_t *world = make_group(c, role->world, 0, false, false);
    mcpg_group_t *other = group_of(c, swapped, 2, odd ? "odd" : "even");
    for (int i = 0; i < 20; i++) {
        CHECK(sum(c, first, (int64_t)role->rank) == (odd ? 4 : 2));
        CHECK(sum(c, world, (int64_t)role->rank) == 6);
        CHECK(sum(c, other, 1) == 2);
    }
    CHECK(mcpg_group_rank(first) == role->rank / 2);
    CHECK(mcpg_group_rank(other) == 1 - role->rank / 2);
    mcpg_group_destroy(first);
    CHECK(sum(c, world, 1) == 4);
    CHECK(sum(c, other, 1) == 2);
    mcpg_group_destroy(other);
    mcpg_group_destroy(world);
    mcpg_context_destroy(c);
}

/* ---- disagreement between ranks ---- */

static mcpg_status_t odd_one(mcpg_context_t *c, mcpg_group_t *g, size_t count, mcpg_dtype_t t, char *text, size_t cap) {
    int64_t buf[8] = {0};
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = t;
    op.in = op.out = (mcpg_seg_t){buf, count};
    mcpg_work_t *w = NULL;
    OK(c, mcpg_group_submit(g, &op, &w));
    mcpg_status_t status = mcpg_work_wait(w, 20000000);
    (void)snprintf(text, cap, "%s", mcpg_work_error(w));
    mcpg_work_release(w);
    return status;
}

static void role_mismatch(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    char text[512];
    CHECK(sum(c, g, 1) == role->world);
    mcpg_status_t shape = odd_one(c, g, role->rank == 0 ? 4 : 8, MCPG_I64, text, sizeof(text));
    CHECK_TEXT(shape == MCPG_MISMATCH, mcpg_status_name(shape));
    CHECK(text[0] != '\0');
    CHECK(sum(c, g, 2) == 2 * (int64_t)role->world);
    mcpg_status_t type = odd_one(c, g, 4, role->rank == 0 ? MCPG_F64 : MCPG_I64, text, sizeof(text));
    CHECK_TEXT(type == MCPG_MISMATCH, mcpg_status_name(type));
    CHECK_TEXT(strstr(text, "f64") != NULL || strstr(text, "F64") != NULL || strstr(text, "float64") != NULL, text);
    CHECK(active_mask(c, g) == (1u << role->world) - 1);
    CHECK(sum(c, g, 3) == 3 * (int64_t)role->world);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

/* ---- callbacks ---- */

static _Atomic int calls, views;
static void on_done(void *user, mcpg_work_t *w) {
    CHECK(mcpg_work_test(w) == MCPG_OK);
    CHECK(user == &calls);
    calls++;
}
static void on_event(void *user, const mcpg_event_t *ev) {
    (void)user;
    if (ev->kind == MCPG_EVENT_VIEW) views++;
}

static void role_callbacks(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    OK(c, mcpg_context_on_event(c, on_event, NULL));
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    int64_t v[10];
    for (int i = 0; i < 10; i++) {
        v[i] = 1;
        mcpg_work_t *w = start_sum(c, g, &v[i]);
        OK(c, mcpg_work_on_complete(w, on_done, &calls));
        CHECK(mcpg_work_on_complete(w, on_done, &calls) == MCPG_INVALID_STATE);
        mcpg_work_release(w);
    }
    CHECK(sum(c, g, 1) == role->world); /* after the others: completion is in issue order */
    for (uint64_t t0 = now_us(); calls < 10;) CHECK(now_us() - t0 < 20000000);
    OK(c, mcpg_context_on_event(c, NULL, NULL));
    int64_t late = 1;
    mcpg_work_t *kept = start_sum(c, g, &late);
    CHECK(mcpg_work_wait(kept, 20000000) == MCPG_OK);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
    CHECK(mcpg_work_test(kept) == MCPG_OK && late == role->world); /* a work outlives its context */
    mcpg_work_release(kept);
}

const role_entry_t roles[] = {
    {"types", role_types},         {"ops", role_ops},           {"again", role_again},         {"single", role_single},
    {"subgroups", role_subgroups}, {"mismatch", role_mismatch}, {"callbacks", role_callbacks}, {NULL, NULL}};

static void run_job(const char *role, uint32_t world, const char *option) {
    job_t job;
    job_begin(&job, role, world, option);
    job_spawn_all(&job);
    job_end(&job);
}
static void test_types(void **state) {
    (void)state, run_job("types", 4, "");
}
static void test_ops(void **state) {
    (void)state, run_job("ops", 4, "");
}
static void test_ops_tcp(void **state) {
    (void)state, run_job("ops", 4, "tcp");
}
static void test_ops_shm(void **state) {
    (void)state, run_job("ops", 4, "shm");
}
static void test_again(void **state) {
    (void)state, run_job("again", 4, "");
}
static void test_single(void **state) {
    (void)state, run_job("single", 1, "");
}
static void test_subgroups(void **state) {
    (void)state, run_job("subgroups", 4, "");
}
static void test_mismatch(void **state) {
    (void)state, run_job("mismatch", 4, "");
}
static void test_callbacks(void **state) {
    (void)state, run_job("callbacks", 3, "");
}

int main(int argc, char **argv) {
    int code;
    if (job_child_main(argc, argv, &code)) return code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),    cmocka_unit_test(test_types),    cmocka_unit_test(test_ops),
        cmocka_unit_test(test_ops_tcp),   cmocka_unit_test(test_ops_shm),  cmocka_unit_test(test_again),
        cmocka_unit_test(test_subgroups), cmocka_unit_test(test_mismatch), cmocka_unit_test(test_callbacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
