/* test_pg_failure.c: processes that are killed with SIGKILL, and what the others see: hints, views, replacement,
 * agreement, manual mode. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

#define VICTIM 2u
#define ALL    0xfu
#define REST   (ALL & ~(1u << VICTIM))

/* Everybody enters; the victim says so and never calls: it is killed while the others wait in their all_reduce. Returns
 * the hint. */
static uint32_t lose_the_victim(mcpg_context_t *c, mcpg_group_t *g, const role_t *role) {
    CHECK(sum(c, g, 1) == role->world);
    say("ready");
    if (role->rank == VICTIM) hear("never");
    hear("go");
    int64_t v = 1;
    mcpg_work_t *w = start_sum(c, g, &v);
    say("waiting");
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    uint64_t t = now_us();
    uint32_t active = active_mask(c, g);
    uint32_t hint = hint_of(c, w);
    say("returned %" PRIu64 " hint %x active %x sum %d", t, hint, active, (int)v);
    return hint;
}

static uint64_t drive_the_loss(job_t *job, const char *expect) {
    for (uint32_t i = 0; i < 4; i++) (void)job_expect(job, &job->procs[i], "ready");
    for (uint32_t i = 0; i < 4; i++)
        if (i != VICTIM) job_tell(&job->procs[i], "go");
    for (uint32_t i = 0; i < 4; i++)
        if (i != VICTIM) (void)job_expect(job, &job->procs[i], "waiting");
    uint64_t killed = now_us(), last = 0;
    job_kill(&job->procs[VICTIM]);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM) continue;
        const char *rest = job_expect(job, &job->procs[i], "returned ");
        char *end;
        uint64_t t = strtoull(rest, &end, 10);
        if (t > last) last = t;
        if (expect != NULL) assert_string_equal(end, expect);
    }
    return last - killed;
}

/* ---- an auto group loses a process and gets another ---- */

static void go_on_with_replacement(mcpg_context_t *c, mcpg_group_t *g, const role_t *role) {
    static mcpg_view_t v;
    bool asked = false;
    uint64_t t0 = now_us();
    uint32_t before = 0, count = 0;
    for (;;) {
        CHECK(now_us() - t0 < 40000000);
        OK(c, mcpg_group_safe_point(g, &v));
        CHECK(v.start_seq % (UINT64_C(1) << 32) == 0);
        count = 0;
        for (uint32_t i = 0; i < v.slot_count; i++) count += v.active[i];
        if (count == role->world) break;
        if (role->life == 0) before++;
        CHECK(sum(c, g, 1) == count);
        uint8_t ok = 0;
        const uint32_t slot = VICTIM;
        OK(c, mcpg_group_peer_state(g, &slot, 1, &ok));
        if (role->rank != 0 || !ok || asked) continue;
        static mcpg_proposal_reply_t r;
        OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, MCPG_ANY_EPOCH, 0, &r));
        CHECK_TEXT(r.result == MCPG_PROPOSAL_APPLIED, r.text);
        CHECK(r.new_epoch > 0 && r.dropped_count == 0);
        asked = true;
    }
    CHECK(role->life == 1 || before > 0);
    CHECK(active_mask(c, g) == ALL);
    CHECK(sum(c, g, 10) == 10 * (int64_t)role->world);
    say("same %" PRIu64 " %" PRIu64 " %" PRIu64, v.epoch, v.start_seq, v.incarnation[VICTIM]);
}

static void role_kill(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g;
    if (role->life == 0) {
        g = make_group(c, role->world, 0, false, false);
        uint32_t hint = lose_the_victim(c, g, role);
        CHECK(hint == 1u << VICTIM);
        CHECK(sum(c, g, 1) == 3); /* no call is needed to go on */
        mcpg_rank_state_t states[4];
        CHECK(mcpg_context_rank_states(c, states, 4) == 4);
        CHECK(states[VICTIM] == MCPG_RANK_OFFLINE && states[0] == MCPG_RANK_HEALTHY);
    } else {
        g = make_group(c, role->world, 0, true, false);
        CHECK(mcpg_group_is_isolated(g) && mcpg_group_size(g) == VICTIM + 1);
        CHECK(active_mask(c, g) == 1u << VICTIM);
        CHECK(sum(c, g, 7) == 7); /* warms up alone, disturbs nobody */
        CHECK(sum(c, g, 8) == 8);
        OK(c, mcpg_group_join(g, 30000000));
        CHECK(!mcpg_group_is_isolated(g));
    }
    go_on_with_replacement(c, g, role);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void kill_and_replace(const char *option) {
    job_t job;
    job_begin(&job, "kill", 4, option);
    job_spawn_all(&job);
    uint64_t us = drive_the_loss(&job, " hint 4 active b sum 3");
    printf("kill to the last survivor's return, transports \"%s\": %.1f ms\n", option, (double)us / 1000.0);
    assert_true(us < 5000000);
    proc_t *fresh = job_spawn(&job, VICTIM, 1);
    char first[256] = "";
    for (uint32_t i = 0; i < job.count; i++) {
        if (!job.procs[i].running) continue;
        const char *same = job_expect(&job, &job.procs[i], "same ");
        if (first[0] == '\0') (void)snprintf(first, sizeof(first), "%s", same);
        assert_string_equal(same, first);
    }
    assert_true(fresh->running);
    job_end(&job);
}
static void test_kill_and_replace(void **state) {
    (void)state, kill_and_replace("");
}
static void test_kill_and_replace_tcp(void **state) {
    (void)state, kill_and_replace("tcp");
}
static void test_kill_and_replace_shm(void **state) {
    (void)state, kill_and_replace("shm");
}

/* ---- agreement ---- */

static void role_sync(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    static mcpg_sync_reply_t r;
    CHECK(mcpg_group_sync_after_failure(g, 1000000, &r) == MCPG_NO_PENDING);
    uint32_t hint = lose_the_victim(c, g, role);
    CHECK((hint & ~(1u << VICTIM)) == 0); /* none, if another rank's call ended the operation here first */
    OK(c, mcpg_group_sync_after_failure(g, 20000000, &r));
    uint32_t failed = 0;
    for (uint32_t i = 0; i < r.slot_count; i++) failed |= r.failed[i] ? 1u << i : 0u;
    say("agreed %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %x", r.term, r.epoch, r.first_failed_seq, r.resume_seq,
        failed);
    CHECK(r.first_failed_seq == 1 && r.resume_seq == UINT64_C(1) << 32);
    mcpg_view_t v;
    OK(c, mcpg_group_view(g, &v));
    CHECK(v.epoch >= r.epoch && v.start_seq == r.resume_seq);
    CHECK(sum(c, g, 2) == 6);
    CHECK(mcpg_group_sync_after_failure(g, 1000000, &r) == MCPG_NO_PENDING);
    CHECK(sum(c, g, 1) == 3);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_sync_gives_the_same_answer(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "sync", 4, "");
    job_spawn_all(&job);
    (void)drive_the_loss(&job, NULL);
    char first[256] = "";
    for (uint32_t i = 0; i < 4; i++) {
        if (i == VICTIM) continue;
        const char *same = job_expect(&job, &job.procs[i], "agreed ");
        if (first[0] == '\0') (void)snprintf(first, sizeof(first), "%s", same);
        assert_string_equal(same, first);
    }
    assert_non_null(strstr(first, " 4")); /* the failed set */
    job_end(&job);
}

/* ---- manual mode ---- */

static void role_manual(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, true);
    uint32_t hint = lose_the_victim(c, g, role);
    CHECK(hint == 1u << VICTIM);
    int64_t v = 1;
    mcpg_work_t *w = start_sum(c, g, &v); /* the same again: a failure never changes membership */
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    CHECK(hint_of(c, w) == 1u << VICTIM && v == 3);
    CHECK(active_mask(c, g) == ALL);
    v = 2;
    w = start_sum(c, g, &v); /* nobody goes on before everybody has looked */
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    CHECK(hint_of(c, w) == 1u << VICTIM && v == 6);
    static mcpg_proposal_reply_t r;
    const uint32_t slot = VICTIM;
    OK(c, mcpg_group_update_ranks(g, NULL, 0, &slot, 1, MCPG_ANY_EPOCH, 0, &r)); /* identical calls are merged */
    CHECK_TEXT(r.result == MCPG_PROPOSAL_APPLIED, r.text);
    CHECK(active_mask(c, g) == REST);
    CHECK(sum(c, g, 1) == 3);
    OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, MCPG_ANY_EPOCH, 0, &r)); /* nobody is there */
    CHECK(r.result == MCPG_PROPOSAL_REJECTED && r.reason == MCPG_NOT_HEALTHY);
    CHECK_TEXT(strstr(r.text, "2") != NULL, r.text);
    OK(c, mcpg_group_update_ranks(g, NULL, 0, &slot, 1, 1, 0, &r)); /* satisfied already */
    CHECK(r.result == MCPG_PROPOSAL_APPLIED);
    const uint32_t out = 9;
    CHECK(mcpg_group_update_ranks(g, &out, 1, NULL, 0, MCPG_ANY_EPOCH, 0, &r) == MCPG_INVALID_ARGUMENT);
    CHECK(mcpg_group_update_ranks(g, &slot, 1, &slot, 1, MCPG_ANY_EPOCH, 0, &r) == MCPG_INVALID_ARGUMENT);
    CHECK(sum(c, g, 1) == 3);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_manual(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "manual", 4, "");
    job_spawn_all(&job);
    (void)drive_the_loss(&job, " hint 4 active f sum 3");
    job_end(&job);
}

/* ---- planned changes ---- */

static void role_planned(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    static mcpg_view_t v;
    static mcpg_proposal_reply_t r;
    const uint32_t slot = 3;
    CHECK(sum(c, g, 1) == 4);
    if (role->rank == 3) {
        say("out?");
        hear("yes"); /* somebody deactivated this rank */
        int64_t x = 1;
        mcpg_op_t op = MCPG_OP_INITIALIZER;
        op.kind = MCPG_OP_ALLREDUCE;
        op.dtype = MCPG_I64;
        op.in = op.out = (mcpg_seg_t){&x, 1};
        mcpg_work_t *w = NULL;
        mcpg_status_t status = mcpg_group_submit(g, &op, &w);
        if (status == MCPG_OK) { /* its COMMIT is still on its way: the operation is held, and refused in its work */
            status = mcpg_work_wait(w, 20000000);
            mcpg_work_release(w);
        }
        CHECK_TEXT(status == MCPG_NOT_ACTIVE, mcpg_status_name(status));
        say("refused");
        OK(c, mcpg_group_join(g, 30000000));
    } else {
        if (role->rank == 1) {
            hear("go");
            OK(c, mcpg_group_update_ranks(g, NULL, 0, &slot, 1, MCPG_ANY_EPOCH, 0, &r));
            CHECK_TEXT(r.result == MCPG_PROPOSAL_APPLIED, r.text);
            say("done %" PRIu64, r.new_epoch);
            OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, r.new_epoch - 1, 0, &r));
            CHECK(r.result == MCPG_PROPOSAL_REJECTED && r.reason == MCPG_STALE_EPOCH);
        }
        uint64_t t0 = now_us();
        bool three = false;
        for (;;) {
            CHECK(now_us() - t0 < 40000000);
            OK(c, mcpg_group_safe_point(g, &v));
            if (three && v.active[3]) break;
            three = three || !v.active[3];
            int64_t x = 1;
            mcpg_work_t *w = start_sum(c, g, &x);
            CHECK_TEXT(mcpg_work_wait(w, 20000000) == MCPG_OK, mcpg_work_error(w));
            /* Rank 3 does not call while it is still active: nobody waits for it from its ACK on, and it is hinted. */
            uint32_t hint = hint_of(c, w);
            CHECK(x == 3 && (hint == 0 || (hint == 8 && v.active[3])));
            if (role->rank != 1 || !three) continue;
            OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, MCPG_ANY_EPOCH, 0, &r));
            CHECK_TEXT(r.result == MCPG_PROPOSAL_APPLIED || r.reason == MCPG_NOT_AWAITING, r.text);
        }
    }
    if (role->rank == 3) OK(c, mcpg_group_safe_point(g, &v));
    CHECK(sum(c, g, 2) == 8);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_planned_leave_and_rejoin(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "planned", 4, "");
    job_spawn_all(&job);
    (void)job_expect(&job, &job.procs[3], "out?");
    job_tell(&job.procs[1], "go");
    (void)job_expect(&job, &job.procs[1], "done ");
    job_tell(&job.procs[3], "yes");
    (void)job_expect(&job, &job.procs[3], "refused");
    job_end(&job);
}

/* ---- growth, and graceful departure ---- */

static void role_grow(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    bool newcomer = role->rank == 2;
    static int32_t mirror[4];
    uint32_t order[3] = {0, 1, 2};
    mcpg_group_config_t config = MCPG_GROUP_CONFIG_INITIALIZER;
    config.rank_order = order;
    config.group_size = newcomer ? 3 : 2;
    config.max_group_size = 4;
    config.is_extension = newcomer;
    config.active_mirror = mirror;
    config.timeout_us = 20000000;
    mcpg_group_t *g = NULL;
    OK(c, mcpg_group_create(c, &config, &g));
    CHECK(mcpg_group_capacity(g) == 4);
    static mcpg_view_t v;
    if (newcomer) {
        OK(c, mcpg_group_join(g, 30000000));
        OK(c, mcpg_group_safe_point(g, &v));
    } else {
        CHECK(mirror[0] == 1 && mirror[1] == 1 && mirror[2] == 0);
        CHECK(mcpg_group_size(g) == 2);
        say("founded");
        uint64_t t0 = now_us();
        for (;;) {
            CHECK(now_us() - t0 < 40000000);
            OK(c, mcpg_group_safe_point(g, &v));
            if (v.active[2]) break;
            CHECK(sum(c, g, 1) == 2);
            static mcpg_proposal_reply_t r;
            const uint32_t slot = 2;
            uint8_t ok = 0;
            OK(c, mcpg_group_peer_state(g, &slot, 1, &ok));
            if (role->rank == 0 && ok) {
                OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, MCPG_ANY_EPOCH, 1000000, &r));
                CHECK_TEXT(r.result == MCPG_PROPOSAL_APPLIED, r.text);
            }
        }
    }
    CHECK(mcpg_group_size(g) == 3);
    CHECK(mirror[0] == 1 && mirror[1] == 1 && mirror[2] == 1 && mirror[3] == 0);
    CHECK(sum(c, g, 1) == 3);
    if (role->rank == 1) { /* says goodbye: nobody waits, nothing fails */
        mcpg_group_destroy(g);
        mcpg_context_destroy(c);
        return;
    }
    uint64_t t0 = now_us();
    while ((active_mask(c, g) & 2u) != 0) CHECK(now_us() - t0 < 20000000);
    OK(c, mcpg_group_safe_point(g, &v));
    int64_t x = 1;
    mcpg_work_t *w = start_sum(c, g, &x);
    CHECK_TEXT(mcpg_work_wait(w, 20000000) == MCPG_OK, mcpg_work_error(w));
    CHECK((hint_of(c, w) & ~2u) == 0 && x == 2);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_grow_and_leave(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "grow", 2, "");
    job_spawn_all(&job);
    (void)job_expect(&job, &job.procs[0], "founded");
    (void)job_expect(&job, &job.procs[1], "founded");
    (void)job_spawn(&job, 2, 0);
    job_end(&job);
}

/* ---- two at once, and the launcher's proof ---- */

static void role_two(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    CHECK(sum(c, g, 1) == 4);
    say("ready");
    if (role->rank == 1 || role->rank == 2) hear("never");
    int64_t v = 1;
    mcpg_work_t *w = start_sum(c, g, &v);
    CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
    uint32_t hint = hint_of(c, w);
    CHECK(hint != 0 && (hint & ~6u) == 0);
    for (uint64_t t0 = now_us(); active_mask(c, g) != 9;) CHECK(now_us() - t0 < 20000000);
    static mcpg_sync_reply_t r;
    OK(c, mcpg_group_sync_after_failure(g, 20000000, &r));
    CHECK(r.failed[1] == 1 && r.failed[2] == 1 && r.failed[0] == 0);
    CHECK(sum(c, g, 1) == 2);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_two_killed(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "two", 4, "");
    job_spawn_all(&job);
    for (uint32_t i = 0; i < 4; i++) (void)job_expect(&job, &job.procs[i], "ready");
    for (uint32_t i = 1; i < 3; i++) {
        pid_t pid = job.procs[i].pid;
        job_kill(&job.procs[i]);
        assert_int_equal(mcpg_coordinator_report_exit(job.coordinator, i, pid), MCPG_OK);
    }
    job_end(&job);
}

/* Rank 2 leaves while an operation that it has begun is unfinished: the others, who come to it later, end it in bounded
 * time, with rank 2 in it or hinted, and go on. "large": more than any buffer on the way holds. */
static void role_quit(const role_t *role) {
    static int64_t values[1 << 20];
    bool large = strcmp(role->option, "large") == 0;
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, 3, 0, false, false);
    CHECK(sum(c, g, 1) == 3);
    say("ready");
    hear("go");
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = MCPG_I64;
    op.redop = MCPG_SUM;
    op.in = op.out = (mcpg_seg_t){values, large ? sizeof(values) / sizeof(values[0]) : 1};
    mcpg_work_t *w = NULL;
    values[0] = 1;
    OK(c, mcpg_group_submit(g, &op, &w));
    if (role->rank == 2) {
        uint64_t t0 = now_us();
        mcpg_group_destroy(g);
        CHECK(now_us() - t0 < 15000000u);
        CHECK(mcpg_work_test(w) != MCPG_IN_PROGRESS);
        mcpg_work_release(w);
        say("left");
        hear("end");
    } else {
        uint64_t t0 = now_us();
        mcpg_status_t status = mcpg_work_wait(w, 20000000);
        CHECK_TEXT(status == MCPG_OK, mcpg_work_error(w));
        CHECK(now_us() - t0 < 10000000u);
        uint32_t hint = hint_of(c, w);
        CHECK(hint == 0 || hint == 4u);
        char text[64];
        (void)snprintf(text, sizeof(text), "hint 0x%x, sum %lld", hint, (long long)values[0]);
        CHECK_TEXT(hint != 0 || values[0] == 3, text); /* with a hint it has one rank's share or not: nobody uses it */
        for (t0 = now_us(); active_mask(c, g) != 3u;) CHECK(now_us() - t0 < 20000000);
        CHECK(sum(c, g, 1) == 2);
        say("done");
        hear("end");
        mcpg_group_destroy(g);
    }
    mcpg_context_destroy(c);
}

static void leave_unfinished(const char *option) {
    job_t job;
    job_begin(&job, "quit", 3, option);
    job_spawn_all(&job);
    for (uint32_t i = 0; i < 3; i++) (void)job_expect(&job, &job.procs[i], "ready");
    job_tell(&job.procs[2], "go");
    (void)job_expect(&job, &job.procs[2], "left");
    job_tell(&job.procs[0], "go");
    job_tell(&job.procs[1], "go");
    (void)job_expect(&job, &job.procs[0], "done");
    (void)job_expect(&job, &job.procs[1], "done");
    job_tell_all(&job, "end");
    job_end(&job);
}
static void test_leave_with_an_unfinished_operation(void **state) {
    (void)state;
    leave_unfinished("");
}
static void test_leave_with_a_large_unfinished_operation(void **state) {
    (void)state;
    leave_unfinished("large");
}

const role_entry_t roles[] = {{"kill", role_kill},       {"sync", role_sync}, {"manual", role_manual},
                              {"planned", role_planned}, {"grow", role_grow}, {"two", role_two},
                              {"quit", role_quit},       {NULL, NULL}};

int main(int argc, char **argv) {
    int code;
    if (job_child_main(argc, argv, &code)) return code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill_and_replace),
                                       cmocka_unit_test(test_kill_and_replace_tcp),
                                       cmocka_unit_test(test_kill_and_replace_shm),
                                       cmocka_unit_test(test_sync_gives_the_same_answer),
                                       cmocka_unit_test(test_manual),
                                       cmocka_unit_test(test_planned_leave_and_rejoin),
                                       cmocka_unit_test(test_grow_and_leave),
                                       cmocka_unit_test(test_two_killed),
                                       cmocka_unit_test(test_leave_with_an_unfinished_operation),
                                       cmocka_unit_test(test_leave_with_a_large_unfinished_operation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
