/* test_machines.c: coordinator and agents together, the way jobs use them, each story over many seeds.
 *
 * MCPG_MACHINES_SEEDS: how many seeds (default 200). MCPG_MACHINES_SEED: only this one, traced. The seed decides the
 * order in which streams of different agents deliver; a failure names it.
 */
#include "unit/machines/stories.h"

/* ---- stories ---- */

static void bootstrap(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 30);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(mcpg_agent_rank_state(w->nodes[i].agent, (mcpg_rank_t){r}), MCPG_RANK_HEALTHY);
    world_run_for(w, 1000000);
    uint64_t told[MCPG_DOWN__COUNT];
    memcpy(told, w->told, sizeof(told));
    world_run_for(w, 3000000); /* at rest: heartbeats agree, nothing is sent again */
    for (uint32_t i = 0; i < MCPG_DOWN__COUNT; i++)
        assert_true(i == MCPG_DOWN_HEARTBEAT_REPLY || w->told[i] == told[i]);
    assert_true(w->told[MCPG_DOWN_HEARTBEAT_REPLY] > told[MCPG_DOWN_HEARTBEAT_REPLY] + 50);
    assert_int_equal(w->view_count[gid], 1);
    /* A second group over the same ranks and a subgroup do not disturb the first. */
    static const uint32_t odd[] = {1, 3};
    uint64_t a = call_register(w, 1, odd, 2, 2, "", LONG_US), b = call_register(w, 3, odd, 2, 2, "", LONG_US);
    assert_int_equal(expect(w, a, MCPG_OK)->gid.v, expect(w, b, MCPG_OK)->gid.v);
    assert_int_equal(w->view_count[gid], 1);
}

static void kill_and_replace(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 20);
    uint32_t victim = (uint32_t)world_random(w, 4), leader = victim == 0 ? 1 : 0;
    uint64_t rest = 15u & ~S(victim), killed_us;
    world_kill(w, victim);
    killed_us = w->now.us;
    for (uint32_t i = 0; i < 4; i++) op_fail(w, i, gid, victim);
    work(w, gid, 10);
    until_active(w, gid, rest, rest);
    assert_true(w->now.us - killed_us < 1000000); /* proved: no window, no time-out */
    world_until(w, all_judged, NULL, "the failed operations are judged");
    work(w, gid, 20);
    uint32_t node = replace(w, gid, victim, leader);
    until_active(w, gid, rest | S(node), 15);
    work(w, gid, 20);
}

/* Killed without a proof: stream and all links are lost. */
static void kill_unproved(world_t *w) {
    w->prove_deaths = false;
    uint32_t gid = found(w, 4, "");
    world_kill(w, 2);
    op_fail(w, 0, gid, 2);
    op_fail(w, 3, gid, 2);
    until_active(w, gid, 11, 11);
    world_until(w, all_judged, NULL, "the failed operations are judged");
    world_exit_seen(w, 2);
    uint32_t node = replace(w, gid, 2, 0);
    until_active(w, gid, 11u | S(node), 15);
    work(w, gid, 10);
}

static void two_killed(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 20);
    world_kill(w, 1);
    work(w, gid, (uint32_t)world_random(w, 12));
    world_kill(w, 3);
    op_fail(w, 0, gid, 1);
    op_fail(w, 0, gid, 3);
    op_fail(w, 2, gid, 3);
    until_active(w, gid, 5, 5);
    world_until(w, all_judged, NULL, "the failed operations are judged");
    uint32_t a = world_spawn(w, 1), b = world_spawn(w, 3);
    uint64_t ra = call_register(w, a, order4, 4, 4, "e", LONG_US), rb = call_register(w, b, order4, 4, 4, "e", LONG_US);
    (void)expect(w, ra, MCPG_OK);
    (void)expect(w, rb, MCPG_OK);
    uint64_t ja = call_join(w, a, gid, LONG_US), jb = call_join(w, b, gid, LONG_US);
    uint64_t propose = call_propose(w, 0, gid, 10, 0, 20000000); /* waits for both */
    work(w, gid, 20);
    (void)expect(w, propose, MCPG_OK);
    (void)expect(w, ja, MCPG_OK);
    (void)expect(w, jb, MCPG_OK);
    until_active(w, gid, 5u | S(a) | S(b), 15);
}

/* The joiner dies at any moment of its activation: the view is aborted or comes without it, and nobody stays held. */
static void joiner_dies(world_t *w) {
    uint32_t gid = found(w, 4, "");
    world_kill(w, 3);
    until_active(w, gid, 7, 7);
    uint32_t node = world_spawn(w, 3);
    (void)expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    (void)call_join(w, node, gid, LONG_US);
    peer_t peer = {gid, 3, 0};
    world_until(w, peer_ok, &peer, "the joiner awaits");
    uint64_t propose = call_propose(w, 0, gid, 8, 0, 0);
    for (uint64_t k = world_random(w, 40); k > 0; k--) {
        op_run(w, (uint32_t)world_random(w, 3), gid);
        (void)world_step(w);
    }
    world_kill(w, node);
    (void)world_answer(w, propose); /* whatever it is, it comes */
    until_active(w, gid, 7, 7);
    world_run_for(w, 3000000);
    for (uint32_t i = 0; i < 3; i++) assert_false(w->nodes[i].groups[gid].held);
    until_active(w, gid, 7, 7);
    work(w, gid, 10);
    node = replace(w, gid, 3, 1);
    until_active(w, gid, 7u | S(node), 15);
}

static void eight_identical(world_t *w) {
    uint32_t gid = found(w, 4, "");
    world_kill(w, 3);
    until_active(w, gid, 7, 7);
    uint32_t node = world_spawn(w, 3);
    (void)expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    uint64_t join = call_join(w, node, gid, LONG_US), calls[8];
    uint64_t epoch = world_epoch(w, 0, gid);
    for (uint32_t i = 0; i < 8; i++) {
        calls[i] = call_propose(w, i % 3u, gid, 8, 0, 20000000);
        work(w, gid, (uint32_t)world_random(w, 4));
    }
    for (uint32_t i = 0; i < 8; i++) {
        const mcpg_agent_call_done_t *done = expect(w, calls[i], MCPG_OK);
        assert_true(done->view.epoch > epoch && !done->dropped_any);
    }
    (void)expect(w, join, MCPG_OK);
    until_active(w, gid, 7u | S(node), 15);
    world_run_for(w, 2000000);
    assert_int_equal(w->view_count[gid], 3); /* founded, lost 3, got 3 back: one view for eight calls */
}

static void invalid_proposals(world_t *w) {
    uint32_t gid = found(w, 4, "");
    (void)expect(w, call_propose(w, 0, gid, 1, 0, 0), MCPG_OK); /* already so */
    (void)expect(w, call_propose(w, 0, gid, S(7), 0, 0), MCPG_INVALID_ARGUMENT);
    world_kill(w, 2);
    until_active(w, gid, 11, 11);
    (void)expect(w, call_propose(w, 0, gid, 4, 0, 0), MCPG_NOT_HEALTHY);
    (void)expect(w, call_propose(w, 0, gid, 4, 0, 500000), MCPG_NOT_HEALTHY);
    uint32_t node = world_spawn(w, 2);
    (void)expect(w, call_register(w, node, order4, 4, 4, "", LONG_US), MCPG_NEEDS_EXTENSION);
    (void)expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    until_state(w, 0, 2, MCPG_RANK_HEALTHY);
    (void)expect(w, call_propose(w, 0, gid, 4, 0, 0), MCPG_NOT_AWAITING);
    (void)expect(w, call_propose(w, 1, gid, 0, 4, 0), MCPG_OK); /* gone already */
    assert_int_equal(world_active(w, 0, gid), 11);
}

static void sync_after_failure(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 40);
    world_kill(w, 1);
    uint64_t calls[4];
    calls[0] = call_sync(w, 0, gid, 2, 9, LONG_US);
    work(w, gid, (uint32_t)world_random(w, 20));
    calls[2] = call_sync(w, 2, gid, 0, MCPG_NO_SEQ, LONG_US);
    if (w->calls[calls[2]].done) { /* SYNCING was not here yet */
        (void)expect(w, calls[2], MCPG_NO_PENDING);
        while (!w->nodes[2].groups[gid].fenced) assert_true(world_step(w)); /* bounded: SYNCING is under way */
        calls[2] = call_sync(w, 2, gid, 0, MCPG_NO_SEQ, LONG_US);
    }
    calls[3] = call_sync(w, 3, gid, 2, 7, LONG_US);
    const mcpg_agent_call_done_t *first = expect(w, calls[0], MCPG_OK);
    for (uint32_t i = 2; i < 4; i++) {
        const mcpg_agent_call_done_t *done = expect(w, calls[i], MCPG_OK);
        assert_true(mcpg__view_eq(done->view, first->view));
        assert_true(done->first_failed_seq == 7 && first->first_failed_seq == 7);
        assert_true(done->resume_seq == first->resume_seq && done->resume_seq % S(32) == 0);
        assert_true(done->failed.w[0] == 2 && first->failed.w[0] == 2);
    }
    until_active(w, gid, 13, 13);
    work(w, gid, 20);
    (void)expect(w, call_sync(w, 2, gid, 0, MCPG_NO_SEQ, LONG_US), MCPG_NO_PENDING);
}

/* SYNCING covers groups inside, and only those. */
static void sync_covers_subgroups(world_t *w) {
    uint32_t gid = found(w, 4, "");
    static const uint32_t even[] = {0, 2}, pair[] = {3};
    uint64_t a = call_register(w, 0, even, 2, 2, "", LONG_US), b = call_register(w, 2, even, 2, 2, "", LONG_US);
    uint64_t c = call_register(w, 3, pair, 1, 1, "", LONG_US);
    uint32_t sub = expect(w, a, MCPG_OK)->gid.v, single = expect(w, c, MCPG_OK)->gid.v;
    (void)expect(w, b, MCPG_OK);
    work(w, sub, 15);
    world_kill(w, 1);
    until_active(w, gid, 13, 13);
    uint64_t epoch = world_epoch(w, 0, sub), calls[3];
    calls[0] = call_sync(w, 0, gid, 2, 5, LONG_US);
    while (!w->nodes[2].groups[gid].fenced || !w->nodes[3].groups[gid].fenced)
        assert_true(world_step(w)); /* bounded: under way */
    calls[1] = call_sync(w, 2, gid, 0, MCPG_NO_SEQ, LONG_US);
    calls[2] = call_sync(w, 3, gid, 0, MCPG_NO_SEQ, LONG_US);
    for (uint32_t i = 0; i < 3; i++) (void)expect(w, calls[i], MCPG_OK);
    world_run_for(w, 1000000);
    assert_true(world_epoch(w, 0, sub) > epoch && world_epoch(w, 0, sub) == world_epoch(w, 2, sub));
    assert_false(w->nodes[0].groups[sub].fenced || w->nodes[2].groups[sub].fenced || w->nodes[3].groups[single].fenced);
    assert_true(w->nodes[0].groups[sub].next % S(32) == 0);
    work(w, sub, 10);
    work(w, gid, 10);
}

/* A sync that starts while a joiner's barrier is open waits for the joiner too, which therefore hears of it. */
static void sync_meets_joiner(world_t *w) {
    uint32_t gid = found(w, 4, "");
    world_kill(w, 3);
    until_active(w, gid, 7, 7);
    uint32_t node = world_spawn(w, 3);
    (void)expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    uint64_t join = call_join(w, node, gid, LONG_US);
    peer_t peer = {gid, 3, 0};
    world_until(w, peer_ok, &peer, "the joiner awaits");
    uint64_t propose = call_propose(w, 0, gid, 8, 0, 20000000), calls[4] = {0};
    for (uint64_t k = world_random(w, 40); k > 0; k--) (void)world_step(w);
    calls[1] = call_sync(w, 1, gid, 8, 5, LONG_US);
    while (!w->calls[calls[1]].done) { /* bounded: calls[1] has its own time-out */
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t at = i == 3 ? node : i;
            bool due = w->nodes[at].groups[gid].fenced && (calls[i] == 0 || w->calls[calls[i]].done);
            if (due && world_active(w, at, gid) >> i & 1u) calls[i] = call_sync(w, at, gid, 0, MCPG_NO_SEQ, LONG_US);
        }
        assert_true(world_step(w));
    }
    (void)expect(w, calls[1], MCPG_OK);
    (void)expect(w, propose, MCPG_OK);
    (void)expect(w, join, MCPG_OK);
    until_active(w, gid, 7u | S(node), 15);
    world_run_for(w, 1000000);
    for (uint32_t i = 0; i < 4; i++) assert_false(w->nodes[i == 3 ? node : i].groups[gid].fenced);
    work(w, gid, 20);
}

static void sync_times_out(world_t *w) {
    uint32_t gid = found(w, 4, "");
    uint64_t call = call_sync(w, 0, gid, 2, 5, 300000);
    (void)expect(w, call, MCPG_TIMED_OUT);
    assert_non_null(strstr(w->calls[call].words, "1, 2 and 3"));
    call = call_sync(w, 0, gid, 2, 5, 3000000);
    uint64_t other = call_sync(w, 3, gid, 2, 5, 3000000);
    (void)expect(w, call, MCPG_TIMED_OUT);
    (void)expect(w, other, MCPG_TIMED_OUT);
    assert_non_null(strstr(w->calls[call].words, "not called by rank 1 and 2;"));
    assert_non_null(strstr(w->calls[other].words, "not called by rank 1 and 2;"));
}

/* The last active rank loses contact for longer than it takes to be OFFLINE: it is still in when it comes back. */
static void last_rank_away(world_t *w) {
    uint32_t gid = found(w, 2, "");
    world_kill(w, 1);
    world_exit_seen(w, 1);
    until_active(w, gid, 1, 1);
    mcpg_incarnation_t before = world_inc(&w->nodes[0]);
    uint64_t epoch = world_epoch(w, 0, gid);
    w->coord_deaf = true;
    world_drop_stream(w, 0);
    world_run_for(w, 8000000);
    assert_int_equal(mcpg_coord_rank_state(w->coord, (mcpg_rank_t){0}), MCPG_RANK_OFFLINE);
    w->coord_deaf = false;
    until_state(w, 0, 0, MCPG_RANK_HEALTHY);
    world_run_for(w, 2000000);
    assert_true(mcpg_agent_attached(w->nodes[0].agent, NULL) && mcpg__inc_eq(before, world_inc(&w->nodes[0])));
    assert_true(world_epoch(w, 0, gid) == epoch);
    work(w, gid, 10);
}

static void graceful_leave(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 30);
    (void)expect(w, call_leave(w, 2, gid), MCPG_OK);
    work(w, gid, 10);
    until_active(w, gid, 11, 11);
    until_state(w, 0, 2, MCPG_RANK_HEALTHY); /* it left the group, not the job */
    (void)expect(w, call_detach(w, 3), MCPG_OK);
    until_active(w, gid, 3, 3);
    until_state(w, 0, 3, MCPG_RANK_OFFLINE);
    (void)expect(w, call_detach(w, 0), MCPG_OK);
    (void)expect(w, call_detach(w, 1), MCPG_OK);
    (void)expect(w, call_detach(w, 2), MCPG_OK);
    world_until(w, quiescent, NULL, "I10: the coordinator is empty");
    assert_true(w->nodes[0].stopped && w->nodes[3].stopped);
    for (uint32_t i = 0; i < 4; i++) world_kill(w, i); /* their processes end */
    for (uint32_t i = 0; i < 4; i++) (void)world_spawn(w, i);
    uint64_t calls[4];
    for (uint32_t i = 0; i < 4; i++)
        calls[i] = call_register(w, 4u + i, order4, 4, 4, "", LONG_US); /* the next generation */
    for (uint32_t i = 0; i < 4; i++) assert_true(expect(w, calls[i], MCPG_OK)->gid.v != gid);
}

/* A link that breaks and comes back within the window clears its ranks; one that stays away costs a rank. */
static void link_transient(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 10);
    world_cut(w, 1, 2, true);
    world_cut(w, 1, 2, false);
    op_fail(w, 1, gid, 2);
    op_fail(w, 2, gid, 1);
    world_until(w, all_judged, NULL, "the failed operations are judged");
    for (uint32_t i = 1; i < 3; i++) assert_int_equal(w->nodes[i].reports[0].status, MCPG_OK);
    world_run_for(w, 3000000);
    assert_int_equal(world_active(w, 0, gid), 15);
    assert_int_equal(w->view_count[gid], 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(mcpg_agent_rank_state(w->nodes[0].agent, (mcpg_rank_t){i}), MCPG_RANK_HEALTHY);
}

static void link_real(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 10);
    world_cut(w, 1, 2, true);
    op_fail(w, 1, gid, 2);
    op_fail(w, 2, gid, 1);
    until_active(w, gid, 15u & ~S(2), 11); /* {0, 1, 3}: equal size, lexicographically lowest */
    until_active(w, gid, S(2), 11);        /* who is out hears it too */
    world_until(w, all_judged, NULL, "the failed operations are judged");
    until_state(w, 0, 2, MCPG_RANK_SYNCED);
    work(w, gid, 10);
    world_cut(w, 1, 2, false); /* good news counts at once; rank 2 joins again in place */
    uint64_t join = call_join(w, 2, gid, LONG_US);
    uint64_t propose = call_propose(w, 0, gid, 4, 0, 10000000);
    work(w, gid, 10);
    (void)expect(w, propose, MCPG_OK);
    (void)expect(w, join, MCPG_OK);
    until_active(w, gid, 15, 15);
    work(w, gid, 20);
}

/* Manual: failures never change membership (I7); the user does. */
static void manual_mode(world_t *w) {
    uint32_t gid = found(w, 4, "m");
    work(w, gid, 10);
    world_kill(w, 1);
    op_fail(w, 0, gid, 1);
    until_state(w, 0, 1, MCPG_RANK_OFFLINE);
    world_run_for(w, 8000000);
    assert_int_equal(world_active(w, 0, gid), 15);
    assert_int_equal(w->view_count[gid], 1);
    (void)expect(w, call_propose(w, 0, gid, 0, 2, 0), MCPG_OK);
    until_active(w, gid, 13, 13);
    uint32_t node = world_spawn(w, 1);
    (void)expect(w, call_register(w, node, order4, 4, 4, "em", LONG_US), MCPG_OK);
    uint64_t join = call_join(w, node, gid, LONG_US);
    (void)expect(w, call_propose(w, 2, gid, 2, 0, 20000000), MCPG_OK);
    (void)expect(w, join, MCPG_OK);
    until_active(w, gid, 13u | S(node), 15);
    work(w, gid, 20);
    (void)expect(w, call_propose(w, 0, gid, 0, 8, 0), MCPG_OK); /* a live one, planned */
    until_active(w, gid, 13u | S(node), 7);
    work(w, gid, 20);
}

/* Streams break and come back with the same session: nothing is lost, nobody leaves. */
static void broken_streams(world_t *w) {
    uint32_t gid = found(w, 4, "");
    for (uint32_t i = 0; i < 6; i++) {
        work(w, gid, 8);
        world_drop_stream(w, (uint32_t)world_random(w, 4));
        if (world_random(w, 2) == 0) world_run_for(w, world_random(w, 300000));
    }
    world_run_for(w, 3000000);
    assert_int_equal(world_active(w, 0, gid), 15);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(mcpg_agent_attached(w->nodes[i].agent, NULL));
        assert_int_equal(w->nodes[i].lost_count, w->nodes[i].back_count);
    }
}

/* A stream breaks in the middle of everything that a kill and a replacement set off. */
static void broken_streams_in_barriers(world_t *w) {
    uint32_t gid = found(w, 4, "");
    world_kill(w, 3);
    op_fail(w, 0, gid, 3);
    for (uint64_t k = world_random(w, 30); k > 0; k--) (void)world_step(w);
    world_drop_stream(w, (uint32_t)world_random(w, 3));
    work(w, gid, 10);
    until_active(w, gid, 7, 7);
    uint32_t node = world_spawn(w, 3);
    (void)expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    uint64_t join = call_join(w, node, gid, LONG_US);
    uint64_t propose = call_propose(w, 0, gid, 8, 0, 20000000);
    for (uint64_t k = world_random(w, 60); k > 0; k--) (void)world_step(w);
    uint32_t whose = (uint32_t)world_random(w, 4);
    world_drop_stream(w, whose == 3 ? node : whose);
    work(w, gid, 20);
    mcpg_status_t status = world_answer(w, propose)->status;
    assert_true(status == MCPG_OK || (whose == 0 && (status == MCPG_OUTCOME_UNKNOWN || status == MCPG_UNAVAILABLE)));
    if (status != MCPG_OK) {
        world_run_for(w, 2000000);
        propose = call_propose(w, 0, gid, 8, 0, 20000000);
        (void)expect(w, propose, MCPG_OK);
    }
    (void)expect(w, join, MCPG_OK);
    until_active(w, gid, 7u | S(node), 15);
    work(w, gid, 20);
}

/* Step boundaries: a joiner enters at a multiple of 2^32 that nobody has passed. */
static void safe_points(world_t *w) {
    uint32_t gid = found(w, 4, "");
    work(w, gid, 20);
    for (uint32_t i = 0; i < 4; i++) op_safe_point(w, i, gid);
    work(w, gid, 20);
    world_kill(w, 0);
    until_active(w, gid, 14, 14);
    uint32_t node = replace(w, gid, 0, 1);
    until_active(w, gid, 14u | S(node), 15);
    const model_view_t *last = &w->views[gid][w->view_count[gid] - 1u];
    assert_true(last->switch_seq != 0 && last->switch_seq % S(32) == 0);
    assert_true(w->nodes[node].groups[gid].next >= last->switch_seq);
    work(w, gid, 20);
}

static void founder_dies(world_t *w) {
    uint64_t calls[4];
    for (uint32_t i = 0; i < 4; i++) (void)world_spawn(w, i);
    for (uint32_t i = 0; i < 3; i++) calls[i] = call_register(w, i, order4, 4, 4, "", LONG_US);
    until_state(w, 0, 3, MCPG_RANK_HEALTHY);
    world_kill(w, 3); /* an auto group forms without it */
    for (uint32_t i = 0; i < 3; i++) (void)expect(w, calls[i], MCPG_OK);
    uint32_t gid = w->calls[calls[0]].answer.gid.v;
    until_active(w, gid, 7, 7);
    work(w, gid, 10);
}

static void founder_missing(world_t *w) {
    uint64_t calls[3];
    for (uint32_t i = 0; i < 4; i++) (void)world_spawn(w, i);
    for (uint32_t i = 0; i < 3; i++) calls[i] = call_register(w, i, order4, 4, 4, "", 2000000);
    for (uint32_t i = 0; i < 3; i++) {
        (void)expect(w, calls[i], MCPG_TIMED_OUT);
        assert_non_null(strstr(w->calls[calls[i]].words, "rank"));
    }
    assert_non_null(strstr(w->calls[calls[0]].words, "3 did not create the group"));
    calls[0] = call_register(w, 0, order4, 2, 2, "", LONG_US);
    calls[1] = call_register(w, 1, order4, 2, 2, "m", LONG_US); /* other flags */
    call_t *first = &w->calls[calls[0]], *second = &w->calls[calls[1]];
    while (!first->done && !second->done) assert_true(world_step(w)); /* bounded: one of them is refused */
    assert_int_equal(first->done ? first->answer.status : second->answer.status, MCPG_WORLD_MISMATCH);
}

static void rank_twice(world_t *w) {
    uint32_t gid = found(w, 4, "");
    w->nodes[1].rank = 7; /* makes room in the model only: the process of rank 1 lives on */
    uint32_t twin = world_spawn(w, 1);
    world_run_for(w, 35000000);
    assert_true(w->nodes[twin].attached_told && w->nodes[twin].attached == MCPG_RANK_IN_USE);
    assert_int_equal(world_active(w, 0, gid), 15);
}

static void shutdown_story(world_t *w) {
    uint32_t gid = found(w, 4, "");
    uint64_t call = call_propose(w, 0, gid, 0, 8, 0);
    for (uint64_t k = world_random(w, 20); k > 0; k--) (void)world_step(w);
    world_shutdown(w);
    mcpg_status_t status = world_answer(w, call)->status;
    assert_true(status == MCPG_OK || status == MCPG_SHUTTING_DOWN || status == MCPG_OUTCOME_UNKNOWN ||
                status == MCPG_ABORTED);
    uint32_t late = world_spawn(w, 5);
    world_run_for(w, 8000000);
    assert_true(w->coord_stopped && !mcpg_agent_attached(w->nodes[late].agent, NULL)); /* I9 */
}

/* Pushes are lost; the digest in the heartbeats heals them. */
static void lost_pushes(world_t *w) {
    uint32_t gid = found(w, 4, "");
    w->lose_percent = 30;
    world_kill(w, 1);
    op_fail(w, 0, gid, 1);
    until_active(w, gid, 13, 13);
    world_until(w, all_judged, NULL, "the failed operations are judged");
    uint32_t node = replace(w, gid, 1, 3);
    until_active(w, gid, 13u | S(node), 15);
    work(w, gid, 20);
}

/* ---- over the seeds ---- */

typedef void (*story_t)(world_t *w);

static uint64_t from_env(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

static uint64_t tell(story_t story, uint64_t seed, bool trace) {
    world_t *w = world_new(seed);
    w->trace = trace;
    story(w);
    world_check_end(w);
    uint64_t digest = w->digest;
    world_free(w);
    return digest;
}

static void over_seeds(void **state) {
    story_t story = *(story_t *)*state;
    uint64_t only = from_env("MCPG_MACHINES_SEED", 0);
    if (only != 0) {
        (void)tell(story, only, true);
        return;
    }
    uint64_t seeds = from_env("MCPG_MACHINES_SEEDS", 200);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        uint64_t digest = tell(story, seed, false);
        if (seed == 1) assert_true(tell(story, seed, false) == digest); /* the same seed, the same run */
    }
}

#define STORY(f)                                                                                                       \
    {                                                                                                                  \
#f, over_seeds, NULL, NULL, &(story_t) {                                                                       \
            f                                                                                                          \
        }                                                                                                              \
    }

int main(void) {
    const struct CMUnitTest tests[] = {
        STORY(bootstrap),
        STORY(kill_and_replace),
        STORY(kill_unproved),
        STORY(two_killed),
        STORY(joiner_dies),
        STORY(eight_identical),
        STORY(invalid_proposals),
        STORY(sync_after_failure),
        STORY(sync_covers_subgroups),
        STORY(sync_meets_joiner),
        STORY(sync_times_out),
        STORY(last_rank_away),
        STORY(graceful_leave),
        STORY(link_transient),
        STORY(link_real),
        STORY(manual_mode),
        STORY(broken_streams),
        STORY(broken_streams_in_barriers),
        STORY(safe_points),
        STORY(founder_dies),
        STORY(founder_missing),
        STORY(rank_twice),
        STORY(shutdown_story),
        STORY(lost_pushes),
        STORY(chaos),
    };
    const char *only = getenv("MCPG_MACHINES_STORY");
    if (only != NULL) cmocka_set_test_filter(only);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
