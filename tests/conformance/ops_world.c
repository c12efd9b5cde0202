/* ops_world.c: see ops_world.h. Never used outside tests. */
#include "ops_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool on_failed(void *user, mcpg_gid_t gid, uint64_t id, uint64_t seq, const mcpg_member_t *failed,
                      uint32_t count) {
    const struct world_seat *seat = user;
    world_t *w = seat->w;
    (void)pthread_mutex_lock(&w->lock);
    assert_true(w->report_count < 4096);
    world_report_t *r = &w->reports[w->report_count++];
    *r = (world_report_t){.rank = seat->rank, .gid = gid, .id = id, .seq = seq, .count = count};
    for (uint32_t i = 0; i < count && i < WORLD_MAX; i++) r->failed[i] = failed[i];
    (void)pthread_mutex_unlock(&w->lock);
    return true;
}

uint32_t world_settle(world_t *w) {
    uint32_t n = 0;
    for (;; n++) {
        (void)pthread_mutex_lock(&w->lock);
        const bool any = w->resolved < w->report_count;
        const world_report_t r = any ? w->reports[w->resolved++] : (world_report_t){0};
        (void)pthread_mutex_unlock(&w->lock);
        if (!any) return n;
        if (r.id != 0) mcpg__dp_ops()->resolve(w->dp[r.rank], r.gid, r.id, MCPG_OK);
    }
}

static void start(world_t *w, uint32_t rank, const world_config_t *config) {
    char error[256] = "";
    mcpg_dp_config_t c = {.rank = {rank}, .host_id = 1, .host_ip = "127.0.0.1", .transports = config->transports};
    if (c.transports == NULL) c.transports = "shm,tcp";
    c.collective_timeout_us = config->collective_timeout_us == 0 ? 30000000 : config->collective_timeout_us;
    c.p2p_timeout_us = c.collective_timeout_us;
    mcpg__log_init(&c.log, NULL, NULL, "test");
    c.log.level = MCPG_LOG_ERROR;
    const mcpg_status_t status = mcpg__dp_create(&c, &w->dp[rank], error, sizeof error);
    if (status != MCPG_OK) print_error("%s\n", error);
    assert_int_equal(status, MCPG_OK);
    w->seat[rank] = (struct world_seat){w, rank};
    const mcpg_dp_observer_t observer = {.user = &w->seat[rank], .op_failed = on_failed};
    mcpg__dp_set_observer(w->dp[rank], &observer);
    mcpg__dp_set_incarnation(w->dp[rank], w->inc[rank]);
}

static void connect_pair(world_t *w, uint32_t from, uint32_t to) {
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
    const size_t len = mcpg__dp_endpoint(w->dp[to], endpoint, sizeof endpoint);
    const mcpg_dp_peer_t peer = {{to}, w->inc[to], 1, 0, endpoint, (uint32_t)len};
    mcpg__dp_ops()->open_link(w->dp[from], &peer);
}

void world_group(world_t *w, uint32_t gid, bool isolated) {
    for (uint32_t r = 0; r < w->n; r++) {
        const mcpg_dp_group_config_t c = {{gid}, {r}, w->capacity, isolated, w->manual, false};
        mcpg__dp_ops()->group_open(w->dp[r], &c);
    }
}

void world_commit(world_t *w, uint32_t rank, uint32_t gid, uint64_t epoch, uint32_t active, uint64_t switch_seq,
                  const mcpg_leave_t *leaves, uint32_t leave_count, bool sync) {
    mcpg_member_t members[WORLD_MAX];
    uint32_t count = 0;
    for (uint32_t s = 0; s < w->n; s++)
        if ((active >> s) & 1u) members[count++] = (mcpg_member_t){{s}, {s}, w->inc[s]};
    const mcpg_down_commit_t c = {.gid = {gid},
                                  .view = {{1, epoch}, count, members},
                                  .switch_seq = switch_seq,
                                  .leave_count = leave_count,
                                  .leaves = leaves,
                                  .sync = sync};
    mcpg__dp_ops()->install_view(w->dp[rank], &c);
}

world_t *world_new(uint32_t n, const world_config_t *config) {
    world_t *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->n = n;
    w->capacity = config->capacity == 0 ? n : config->capacity;
    w->manual = config->manual;
    w->epoch = 1;
    assert_int_equal(pthread_mutex_init(&w->lock, NULL), 0);
    for (uint32_t r = 0; r < n; r++) {
        w->inc[r] = (mcpg_incarnation_t){1, r + 1u};
        start(w, r, config);
    }
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            if (a != b) connect_pair(w, a, b);
    world_group(w, WORLD_GID, config->isolated);
    for (uint32_t r = 0; r < n && !config->isolated && !config->no_view; r++)
        world_commit(w, r, WORLD_GID, 1, (1u << n) - 1u, 0, NULL, 0, false);
    return w;
}

void world_restart(world_t *w, uint32_t rank, const world_config_t *config) {
    mcpg__dp_destroy(w->dp[rank]);
    w->inc[rank].counter += 100;
    start(w, rank, config);
    for (uint32_t a = 0; a < w->n; a++) {
        if (a == rank) continue;
        connect_pair(w, a, rank);
        connect_pair(w, rank, a);
    }
    const mcpg_dp_group_config_t c = {{WORLD_GID}, {rank}, w->capacity, true, w->manual, false};
    mcpg__dp_ops()->group_open(w->dp[rank], &c);
}

void world_free(world_t *w) {
    for (uint32_t r = 0; r < w->n; r++) mcpg__dp_destroy(w->dp[r]);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}

mcpg_status_t world_try(world_t *w, uint32_t rank, uint32_t gid, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error,
                        size_t cap) {
    return mcpg__dp_submit(w->dp[rank], (mcpg_gid_t){gid}, op, out, error, cap);
}

mcpg_dp_work_t *world_submit(world_t *w, uint32_t rank, const mcpg_op_t *op) {
    char error[512] = "";
    mcpg_dp_work_t *work = NULL;
    const mcpg_status_t status = world_try(w, rank, WORLD_GID, op, &work, error, sizeof error);
    if (status != MCPG_OK) print_error("rank %u: %s\n", rank, error);
    assert_int_equal(status, MCPG_OK);
    return work;
}

mcpg_status_t world_wait(world_t *w, mcpg_dp_work_t *work) {
    mcpg_status_t status = MCPG_TIMED_OUT;
    for (uint32_t i = 0; i < 2000; i++) {
        (void)world_settle(w);
        (void)!mcpg__dp_work_wait(work, 10000);
        status = mcpg__dp_work_test(work);
        if (status != MCPG_IN_PROGRESS) return status;
    }
    char json[4096];
    for (uint32_t r = 0; r < w->n; r++) {
        (void)mcpg__dp_status_json(w->dp[r], json, sizeof json);
        print_error("rank %u: %s\n", r, json);
    }
    fail_msg("operation %s %llu did not complete", mcpg_op_name(mcpg__dp_work_kind(work)),
             (unsigned long long)mcpg__dp_work_seq(work));
    return status;
}

mcpg_op_t world_allreduce(float *in, float *out, size_t count) {
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = MCPG_F32;
    op.redop = MCPG_SUM;
    op.in = (mcpg_seg_t){in, count};
    op.out = (mcpg_seg_t){out, count};
    return op;
}

uint32_t world_hints(const mcpg_dp_work_t *work) {
    int32_t hint[WORLD_MAX] = {0};
    uint32_t bits = 0;
    bool ok = false;
    assert_int_equal(mcpg__dp_work_failed(work, hint, WORLD_MAX, &ok), MCPG_OK);
    for (uint32_t i = 0; i < WORLD_MAX; i++) bits |= hint[i] != 0 ? 1u << i : 0u;
    if (bits != 0) assert_false(ok);
    return bits;
}

uint64_t world_hold(mcpg_dp_t *dp, mcpg_gid_t gid, bool *steps_out) {
    bool steps = false;
    const uint64_t next = mcpg__dp_ops()->hold(dp, gid, &steps);
    if (steps_out != NULL) *steps_out = steps;
    return next;
}
