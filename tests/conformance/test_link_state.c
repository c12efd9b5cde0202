/* test_link_state.c: what only a look inside the engine can make happen in time: a stream that is closed under an
 * event, rumours of death, silence that nobody listened to, announcements that were taken back.
 */
#include "test_link_util.h"

#include "dataplane/link_priv.h"

static const variant_t shm_only = {"shm", "shm", false}, tcp_only = {"tcp", "tcp", false};

static mcpg_link_t *link_of(node_t *n, uint32_t rank) {
    return n->e->links[rank];
}

static bool wait_in_epoll(node_t *n) { /* returns with the lock held */
    for (uint64_t until = now_us() + WAIT_US; now_us() < until;) {
        mcpg__engine_lock(n->e);
        if (n->e->in_epoll) return true;
        mcpg__engine_unlock(n->e);
        usleep(100);
    }
    return false;
}

/* The progress thread has an event of the stream in hand when the stream is closed and freed. */
static void closed_under_an_event(const variant_t *v) {
    for (uint32_t i = 0; i < 20; i++) {
        node_t n0, n1;
        node_start(&n0, 0, 1, v);
        node_start(&n1, 1, 2, v);
        link_pair(&n0, &n1);
        assert_true(wait_in_epoll(&n0));
        node_stop(&n1);
        for (uint64_t until = now_us() + WAIT_US; atomic_load(&n0.e->lock_wanted) == 0 && now_us() < until;)
            usleep(100);
        assert_true(atomic_load(&n0.e->lock_wanted) > 0); /* out of the kernel, waits for the lock */
        link_of(&n0, 1)->expected = false;
        mcpg__link_down(link_of(&n0, 1), MCPG_LINK_ST_NONE, false);
        assert_true(n0.e->stale);
        mcpg__engine_unlock(n0.e);
        node_stop(&n0);
    }
}
static void closed_under_an_event_shm(void **state) {
    (void)state;
    closed_under_an_event(&shm_only);
}
static void closed_under_an_event_tcp(void **state) {
    (void)state;
    closed_under_an_event(&tcp_only);
}

static void open_far(node_t *n, const node_t *to, uint64_t host_id) {
    uint8_t ep[MCPG_ENDPOINT_CAP];
    size_t len = mcpg__engine_endpoint(to->e, ep, sizeof(ep));
    node_open_at(n, to->rank, to->inc, ep, (uint32_t)len, host_id);
}

static void say_dead(node_t *from, const node_t *to, const node_t *of) {
    mcpg__engine_lock(from->e);
    mcpg__tx_control(link_of(from, to->rank), MCPG_FT_DEAD, of->rank, &of->inc, sizeof(of->inc));
    mcpg__tx_soon(link_of(from, to->rank));
    mcpg__engine_unlock(from->e);
    /* a probe that follows it there and back */
    unsigned before = atomic_load(&from->checked_ok);
    mcpg__engine_check_link(from->e, (mcpg_rank_t){to->rank}, to->inc, 1);
    assert_true(node_wait_count(from, &from->checked_ok, before + 1, WAIT_US));
}

typedef struct {
    mcpg_link_t *l;
} rumour_t;
static bool rumour_settled(void *arg) {
    return ((rumour_t *)arg)->l->relay_nonce == 0;
}

/* Rank 1 runs on another host, so rank 0 has no proof of its own. Rank 2 is wrong, then right. */
static void rumour_of_death_is_asked_about(void **state) {
    (void)state;
    node_t n0, n1, n2;
    node_start_on(&n0, 0, 1, &tcp_only, 77);
    node_start_on(&n1, 1, 2, &tcp_only, 88);
    node_start_on(&n2, 2, 3, &tcp_only, 99);
    open_far(&n0, &n1, 88), open_far(&n0, &n2, 99);
    open_far(&n1, &n0, 77), open_far(&n2, &n0, 77);
    assert_true(node_wait_state(&n0, 1, n1.inc, MCPG_LINK_ST_UP, WAIT_US));
    assert_true(node_wait_state(&n0, 2, n2.inc, MCPG_LINK_ST_UP, WAIT_US));
    assert_true(node_wait_state(&n2, 0, n0.inc, MCPG_LINK_ST_UP, WAIT_US));
    say_dead(&n2, &n0, &n1);
    say_dead(&n2, &n0, &n0); /* about the listener itself */
    rumour_t r = {link_of(&n0, 1)};
    mcpg__engine_lock(n0.e);
    assert_true(mcpg__engine_wait(n0.e, rumour_settled, &r, now_us() + WAIT_US));
    mcpg__engine_unlock(n0.e);
    assert_true(node_wait_state(&n0, 1, n1.inc, MCPG_LINK_ST_UP, 1000));
    assert_int_equal(atomic_load(&n0.relayed[1]) + atomic_load(&n0.relayed[0]), 0);
    mcpg__engine_lock(n1.e); /* it answers nobody any more, and its connection stays */
    say_dead(&n2, &n0, &n1);
    uint64_t began = now_us();
    assert_true(node_wait_count(&n0, &n0.relayed[1], 1, WAIT_US));
    assert_true(now_us() - began > MCPG_RELAY_US / 2u);
    mcpg__engine_unlock(n1.e);
    node_stop(&n0);
    node_stop(&n1);
    node_stop(&n2);
}

/* Whoever did not look must not call the other silent. */
static void silence_is_judged_after_listening(void **state) {
    (void)state;
    const variant_t *variants[] = {&shm_only, &tcp_only};
    for (size_t i = 0; i < 2; i++) {
        node_t n0, n1;
        uint8_t byte = 1;
        xfer_t s;
        node_start(&n0, 0, 1, variants[i]);
        node_start(&n1, 1, 2, variants[i]);
        link_pair(&n0, &n1);
        mcpg__engine_lock(n0.e); /* n0 does not run */
        n0.e->now_us = now_us();
        const uint64_t asked_us = n0.e->now_us;
        xfer_init(&s, &n0, 1, 1, &byte, 1);
        post(&n1, &s, true);
        expect(&n1, &s, MCPG_LX_DONE);
        bool heard = false;
        for (uint64_t until = now_us() + WAIT_US; !heard && now_us() < until;) {
            n0.e->now_us = now_us();
            heard = mcpg__link_last_heard_us(n0.e, (mcpg_rank_t){1}, n1.inc) > asked_us;
        }
        assert_true(heard);
        mcpg__engine_unlock(n0.e);
        node_stop(&n0);
        node_stop(&n1);
    }
}

/* However often a large send is taken back, the receiver keeps nothing of it. */
static void announcement_taken_back_is_forgotten(void **state) {
    (void)state;
    static uint8_t big[100000];
    node_t n0, n1;
    node_start(&n0, 0, 1, &shm_only);
    node_start(&n1, 1, 2, &shm_only);
    link_pair(&n0, &n1);
    for (uint64_t seq = 0; seq < 50; seq++) {
        xfer_t s;
        xfer_init(&s, &n1, 1, seq, big, sizeof(big));
        s.x.key.flags = MCPG_KEY_P2P;
        post(&n0, &s, true);
        cancel(&n0, &s);
        mcpg_msg_key_t key = s.x.key;
        key.flags |= MCPG_KEY_LEFT_SEND;
        const mcpg_member_t m = {{1}, {1}, n1.inc};
        mcpg__engine_lock(n0.e);
        mcpg__link_leave(n0.e, &key, &m, 1);
        mcpg__engine_unlock(n0.e);
    }
    mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, n1.inc, 1);
    assert_true(node_wait_count(&n0, &n0.checked_ok, 1, WAIT_US));
    mcpg__engine_lock(n1.e);
    assert_int_equal(link_of(&n1, 0)->rx.announced_held, 0);
    assert_int_equal(n1.e->unexpected_count, 0);
    mcpg__engine_unlock(n1.e);
    node_stop(&n0);
    node_stop(&n1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_under_an_event_shm),
        cmocka_unit_test(closed_under_an_event_tcp),
        cmocka_unit_test(rumour_of_death_is_asked_about),
        cmocka_unit_test(silence_is_judged_after_listening),
        cmocka_unit_test(announcement_taken_back_is_forgotten),
    };
    return cmocka_run_group_tests_name("link_state", tests, NULL, NULL);
}
