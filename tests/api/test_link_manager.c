/* test_link_manager.c: back-off, checks and changes of links with a made-up clock. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "agent/link_manager.h"

#define RETRY_US     20000u
#define RETRY_MAX_US 2000000u

typedef struct {
    uint32_t opens, closes, checks, deaths;
    mcpg_dp_peer_t last_open;
    uint64_t last_check;
    mcpg_agent_link_ev_t events[32];
    uint32_t event_count;
    mcpg_link_manager_t *m;
} world_t;

static void on_open(void *user, const mcpg_dp_peer_t *peer) {
    world_t *w = user;
    w->opens++;
    w->last_open = *peer;
}
static void on_close(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    (void)rank, (void)inc, (void)dead;
    ((world_t *)user)->closes++;
}
static void on_check(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    (void)rank, (void)inc;
    world_t *w = user;
    w->checks++;
    w->last_check = check_id;
}
static void on_event(void *user, const mcpg_agent_link_ev_t *ev) {
    world_t *w = user;
    assert_true(w->event_count < 32);
    w->events[w->event_count++] = *ev;
}
static void on_death(void *user, const mcpg_agent_death_ev_t *ev) {
    (void)ev;
    ((world_t *)user)->deaths++;
}

static const mcpg_incarnation_t INC = {1, 5}, NEWER = {1, 6};
static const mcpg_rank_t PEER = {3};

static int setup(void **state) {
    static world_t w;
    memset(&w, 0, sizeof(w));
    mcpg_link_manager_out_t out = {&w, on_open, on_close, on_check, on_event, on_death};
    assert_int_equal(mcpg__link_manager_create(&out, 8, (mcpg_link_retry_t){RETRY_US, RETRY_MAX_US}, &w.m), MCPG_OK);
    *state = &w;
    return 0;
}
static int teardown(void **state) {
    mcpg__link_manager_destroy(((world_t *)*state)->m);
    return 0;
}

static void want(world_t *w, mcpg_incarnation_t inc, uint64_t now) {
    static const uint8_t endpoint[] = "here";
    mcpg_agent_link_open_t o = {.rank = PEER, .inc = inc, .endpoint = {endpoint, 4}};
    mcpg__link_manager_open(w->m, &o, (mcpg_time_t){now});
}
static void check(world_t *w, uint64_t id, uint64_t now) {
    mcpg_agent_link_check_t c = {.rank = PEER, .inc = INC, .check_id = id};
    mcpg__link_manager_check(w->m, &c, (mcpg_time_t){now});
}
static uint64_t next(const world_t *w) {
    return mcpg__link_manager_next(w->m).us;
}
static void expect_event(const world_t *w, uint32_t i, mcpg_link_state_t state, uint64_t check_id) {
    assert_true(i < w->event_count);
    assert_int_equal(w->events[i].state, state);
    assert_int_equal(w->events[i].check_id, check_id);
    assert_int_equal(w->events[i].rank.v, PEER.v);
}

static void test_up_and_lost_are_told_once(void **state) {
    world_t *w = *state;
    want(w, INC, 100);
    assert_int_equal(w->opens, 1);
    assert_memory_equal(w->last_open.endpoint, "here", 4);
    mcpg__link_manager_up(w->m, PEER, INC);
    mcpg__link_manager_up(w->m, PEER, INC);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){200});
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){300});
    assert_int_equal(w->event_count, 2);
    expect_event(w, 0, MCPG_LINK_UP, 0);
    expect_event(w, 1, MCPG_LINK_LOST, 0);
}

static void test_backoff_doubles_to_two_seconds(void **state) {
    world_t *w = *state;
    uint64_t now = 1000, expected = 20000;
    want(w, INC, now);
    for (int i = 0; i < 12; i++) {
        mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){now});
        assert_int_equal(next(w), now + expected);
        mcpg__link_manager_timer(w->m, (mcpg_time_t){now + expected - 1});
        assert_int_equal(w->opens, 1 + i);
        now += expected;
        mcpg__link_manager_timer(w->m, (mcpg_time_t){now});
        assert_int_equal(w->opens, 2 + i);
        expected = expected * 2 > 2000000 ? 2000000 : expected * 2;
    }
    assert_int_equal(w->event_count, 0); /* a link that never was up is not lost */
    mcpg__link_manager_up(w->m, PEER, INC);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){now});
    assert_int_equal(next(w), now + 20000); /* starts again */
}

static void test_nothing_to_do_no_timer(void **state) {
    world_t *w = *state;
    assert_int_equal(next(w), UINT64_MAX);
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    assert_int_equal(next(w), UINT64_MAX);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){10});
    mcpg_agent_link_close_t c = {.rank = PEER, .inc = INC, .dead = true};
    mcpg__link_manager_close(w->m, &c);
    assert_int_equal(w->closes, 1);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){10000000});
    assert_int_equal(w->opens, 1);
    assert_int_equal(next(w), UINT64_MAX);
}

static void test_check_of_an_up_link_is_probed(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    check(w, 7, 100);
    assert_int_equal(w->checks, 1);
    assert_int_equal(w->last_check, 7);
    mcpg__link_manager_checked(w->m, PEER, INC, 7, true, (mcpg_time_t){0});
    mcpg__link_manager_checked(w->m, PEER, INC, 7, true, (mcpg_time_t){0}); /* answered once */
    assert_int_equal(w->event_count, 2);
    expect_event(w, 1, MCPG_LINK_UP, 7);
    check(w, 8, 200);
    mcpg__link_manager_checked(w->m, PEER, INC, 8, false, (mcpg_time_t){0});
    expect_event(w, 2, MCPG_LINK_LOST, 8);
}

static void test_check_of_a_lost_link_waits_for_it(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){50});
    check(w, 9, 60);
    assert_int_equal(w->opens, 2); /* at once, not after the back-off */
    assert_int_equal(w->event_count, 2);
    mcpg__link_manager_up(w->m, PEER, INC);
    assert_int_equal(w->event_count, 4);
    expect_event(w, 2, MCPG_LINK_UP, 0);
    expect_event(w, 3, MCPG_LINK_UP, 9);
}

static void test_check_of_a_dead_end_ends_after_a_second(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    check(w, 4, 50);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){60});
    mcpg__link_manager_checked(w->m, PEER, INC, 4, false,
                               (mcpg_time_t){0}); /* not the answer: the link is being set up again */
    assert_int_equal(w->event_count, 2);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){1000049});
    assert_int_equal(w->event_count, 2);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){1000050});
    assert_int_equal(w->event_count, 3);
    expect_event(w, 2, MCPG_LINK_LOST, 4);
}

/* A peer that was only silent: the link never went down, so only a check can tell that it works again. */
static void test_a_doubted_link_is_checked_until_it_answers(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    check(w, 8, 100);
    mcpg__link_manager_checked(w->m, PEER, INC, 8, false, (mcpg_time_t){1000000});
    expect_event(w, 1, MCPG_LINK_LOST, 8);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){1000000 + RETRY_US - 1});
    assert_int_equal(w->checks, 1);
    assert_int_equal(next(w), 1000000 + RETRY_US);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){next(w)});
    assert_int_equal(w->checks, 2);
    assert_true(w->last_check == MCPG_LINK_RECHECK);
    mcpg__link_manager_checked(w->m, PEER, INC, MCPG_LINK_RECHECK, false, (mcpg_time_t){2000000});
    assert_int_equal(w->event_count, 2); /* LOST was said already */
    assert_int_equal(next(w), 2000000 + 2 * RETRY_US);
    want(w, INC, 2000001);
    assert_int_equal(w->event_count, 2); /* not taken for up before it answered */
    mcpg__link_manager_timer(w->m, (mcpg_time_t){next(w)});
    assert_int_equal(w->checks, 3);
    mcpg__link_manager_checked(w->m, PEER, INC, MCPG_LINK_RECHECK, true, (mcpg_time_t){2100000});
    assert_int_equal(w->event_count, 3);
    expect_event(w, 2, MCPG_LINK_UP, 0);
    mcpg__link_manager_timer(w->m, (mcpg_time_t){90000000});
    assert_int_equal(w->checks, 3);
    assert_int_equal(next(w), UINT64_MAX);
    mcpg__link_manager_checked(w->m, PEER, INC, MCPG_LINK_RECHECK, true, (mcpg_time_t){2100001});
    assert_int_equal(w->event_count, 3);
}

static void test_check_of_an_unknown_link(void **state) {
    world_t *w = *state;
    check(w, 2, 1);
    expect_event(w, 0, MCPG_LINK_LOST, 2);
}

static void test_too_many_checks_are_answered_from_what_is_known(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    for (uint64_t i = 1; i <= MCPG_LINK_CHECKS; i++) check(w, i, 1);
    assert_int_equal(w->event_count, 1);
    check(w, 99, 1);
    expect_event(w, 1, MCPG_LINK_UP, 99);
}

static void test_newer_incarnation_replaces_older(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    check(w, 5, 1);
    want(w, NEWER, 2);
    expect_event(w, 1, MCPG_LINK_LOST, 5);
    assert_int_equal(w->opens, 2);
    want(w, INC, 3); /* late */
    assert_int_equal(w->opens, 2);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){4}); /* of the old one */
    assert_int_equal(w->event_count, 2);
    mcpg__link_manager_up(w->m, PEER, NEWER);
    expect_event(w, 2, MCPG_LINK_UP, 0);
    assert_true(mcpg__inc_eq(w->events[2].inc, NEWER));
}

static void test_same_want_again_repeats_up(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    want(w, INC, 2);
    assert_int_equal(w->opens, 1);
    assert_int_equal(w->event_count, 2);
    expect_event(w, 1, MCPG_LINK_UP, 0);
}

static void test_death_stops_retries_and_is_told_once(void **state) {
    world_t *w = *state;
    want(w, INC, 1);
    mcpg__link_manager_up(w->m, PEER, INC);
    mcpg__link_manager_lost(w->m, PEER, INC, (mcpg_time_t){2});
    check(w, 6, 3);
    mcpg__link_manager_death(w->m, PEER, INC, MCPG_PROOF_PIDFD);
    mcpg__link_manager_death(w->m, PEER, INC, MCPG_PROOF_RELAYED);
    assert_int_equal(w->deaths, 1);
    expect_event(w, 2, MCPG_LINK_LOST, 6);
    uint32_t opens = w->opens;
    mcpg__link_manager_timer(w->m, (mcpg_time_t){90000000});
    assert_int_equal(w->opens, opens);
    check(w, 11, 4);
    expect_event(w, 3, MCPG_LINK_LOST, 11);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_up_and_lost_are_told_once),
                                       T(test_backoff_doubles_to_two_seconds),
                                       T(test_nothing_to_do_no_timer),
                                       T(test_check_of_an_up_link_is_probed),
                                       T(test_check_of_a_lost_link_waits_for_it),
                                       T(test_check_of_a_dead_end_ends_after_a_second),
                                       T(test_a_doubted_link_is_checked_until_it_answers),
                                       T(test_check_of_an_unknown_link),
                                       T(test_too_many_checks_are_answered_from_what_is_known),
                                       T(test_newer_incarnation_replaces_older),
                                       T(test_same_want_again_repeats_up),
                                       T(test_death_stops_retries_and_is_told_once)};
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
