/* test_link.c: the link conformance suite: the same tests over each transport, and over each transport inside the fault
 * wrapper. */
#include "test_link_util.h"

#include <sys/resource.h>

static variant_t variant;
static node_t n0, n1, n2;

static int two_up(void **state) {
    (void)state;
    mcpg__fault_clear();
    node_start(&n0, 0, 1, &variant);
    node_start(&n1, 1, 2, &variant);
    link_pair(&n0, &n1);
    return 0;
}
static int three_up(void **state) {
    two_up(state);
    node_start(&n2, 2, 3, &variant);
    link_pair(&n0, &n2);
    link_pair(&n1, &n2);
    return 0;
}
static int all_down(void **state) {
    (void)state;
    if (n0.e != NULL) node_stop(&n0);
    if (n1.e != NULL) node_stop(&n1);
    if (n2.e != NULL) node_stop(&n2);
    mcpg__fault_clear();
    return 0;
}

static void exchange(node_t *a, node_t *b, uint32_t gid, uint64_t seq, size_t bytes, bool recv_first) {
    uint8_t *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    assert_non_null(out);
    assert_non_null(in);
    fill(out, bytes, (uint32_t)(seq + bytes));
    memset(in, 0xee, bytes + 1);
    xfer_t s, r;
    xfer_init(&s, b, gid, seq, out, bytes);
    xfer_init(&r, a, gid, seq, in, bytes);
    if (recv_first) post(b, &r, false);
    post(a, &s, true);
    if (!recv_first && bytes <= MCPG_EAGER_BYTES) expect(a, &s, MCPG_LX_DONE);
    if (!recv_first) post(b, &r, false);
    expect(b, &r, MCPG_LX_DONE);
    expect(a, &s, MCPG_LX_DONE);
    assert_memory_equal(out, in, bytes);
    assert_int_equal(in[bytes], 0xee);
    free(out);
    free(in);
}

static void sizes_both_ways(void **state) {
    (void)state;
    static const size_t sizes[] = {
        0, 1, 8, 511, 513, 8191, 8192, 8193, 100000, 262144, 262145, 1 << 20, 5 * 1000 * 1000 + 3};
    uint64_t seq = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int k = 0; k < 4; k++) {
            seq++;
            exchange(k & 1 ? &n1 : &n0, k & 1 ? &n0 : &n1, 5, seq, sizes[i], (k & 2) != 0);
        }
    }
}

/* Both directions at once, and more small messages than there are credits. */
static void many_at_once(void **state) {
    (void)state;
    enum { COUNT = 400 };
    static xfer_t s[2][COUNT], r[2][COUNT];
    static uint8_t out[2][COUNT][16], in[2][COUNT][16];
    static uint8_t big_out[2][1 << 20], big_in[2][1 << 20];
    node_t *n[2] = {&n0, &n1};
    xfer_t bs[2], br[2];
    for (int d = 0; d < 2; d++) {
        fill(big_out[d], sizeof(big_out[d]), (uint32_t)d);
        xfer_init(&bs[d], n[1 - d], 9, 1, big_out[d], sizeof(big_out[d]));
        post(n[d], &bs[d], true);
        for (int i = 0; i < COUNT; i++) {
            fill(out[d][i], 16, (uint32_t)(i * 2 + d));
            xfer_init(&s[d][i], n[1 - d], 7, (uint64_t)i, out[d][i], 16);
            post(n[d], &s[d][i], true);
        }
    }
    for (int d = 0; d < 2; d++) {
        for (int i = COUNT - 1; i >= 0; i--) {
            xfer_init(&r[d][i], n[1 - d], 7, (uint64_t)i, in[d][i], 16);
            post(n[d], &r[d][i], false);
        }
        xfer_init(&br[d], n[1 - d], 9, 1, big_in[d], sizeof(big_in[d]));
        post(n[d], &br[d], false);
    }
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < COUNT; i++) {
            expect(n[d], &r[d][i], MCPG_LX_DONE);
            expect(n[d], &s[d][i], MCPG_LX_DONE);
            assert_memory_equal(in[d][i], out[1 - d][i], 16);
        }
        expect(n[d], &br[d], MCPG_LX_DONE);
        expect(n[d], &bs[d], MCPG_LX_DONE);
        assert_memory_equal(big_in[d], big_out[1 - d], sizeof(big_in[d]));
    }
}

/* A large message that nobody receives does not hold up another group's small ones, even without credit. */
static void groups_do_not_block(void **state) {
    (void)state;
    size_t big = 3u << 20;
    uint8_t *out = calloc(1, big), *in = calloc(1, big);
    xfer_t s, r, flood[MCPG_MAX_GROUPS / 16];
    xfer_init(&s, &n1, 1, 1, out, big);
    post(&n0, &s, true);
    for (size_t i = 0; i < sizeof(flood) / sizeof(flood[0]); i++) {
        xfer_init(&flood[i], &n1, 2, i, out, 32);
        post(&n0, &flood[i], true);
    }
    for (uint64_t i = 0; i < 100; i++) exchange(&n0, &n1, 3, i, 64, true);
    mcpg__engine_lock(n0.e);
    assert_false(s.ended);
    mcpg__engine_unlock(n0.e);
    xfer_init(&r, &n0, 1, 1, in, big);
    post(&n1, &r, false);
    expect(&n1, &r, MCPG_LX_DONE);
    for (size_t i = 0; i < sizeof(flood) / sizeof(flood[0]); i++) {
        xfer_t f;
        xfer_init(&f, &n0, 2, i, in, 32);
        post(&n1, &f, false);
        expect(&n1, &f, MCPG_LX_DONE);
        expect(&n0, &flood[i], MCPG_LX_DONE);
    }
    free(out);
    free(in);
}

static void three_nodes(void **state) {
    (void)state;
    node_t *n[3] = {&n0, &n1, &n2};
    for (uint64_t i = 0; i < 30; i++)
        for (int a = 0; a < 3; a++)
            for (int b = 0; b < 3; b++)
                if (a != b)
                    exchange(n[a], n[b], 4, i * 16 + (uint64_t)(a * 4 + b), i % 3 == 0 ? 70000 : 40, (i & 1) != 0);
}

/* Late bytes of a cancelled receive never reach its buffer. */
static void cancel_then_late_data(void **state) {
    (void)state;
    for (int round = 0; round < 6; round++) {
        size_t bytes = round < 3 ? 4096 : 4u << 20;
        uint8_t *out = malloc(bytes), *in = malloc(bytes);
        memset(out, 0x55, bytes);
        memset(in, 0, bytes);
        xfer_t s, r;
        xfer_init(&r, &n0, 6, (uint64_t)round, in, bytes);
        xfer_init(&s, &n1, 6, (uint64_t)round, out, bytes);
        post(&n1, &r, false);
        if (round % 3 != 0) post(&n0, &s, true);
        if (round % 3 == 2) sched_yield();
        mcpg__engine_lock(n1.e);
        bool complete = r.ended;
        mcpg__link_cancel(n1.e, &r.x);
        uint8_t *seen = malloc(bytes);
        memcpy(seen, in, bytes);
        mcpg__engine_unlock(n1.e);
        if (round % 3 == 0) post(&n0, &s, true);
        exchange(&n0, &n1, 6, 100u + (uint64_t)round, 1000, true);
        if (!complete) {
            uint64_t view = 1;
            mcpg_msg_key_t key = {.gid = 6, .view_term = view, .view_epoch = 1, .seq = (uint64_t)round};
            mcpg_member_t m = {.rank = {0}, .inc = n0.inc};
            mcpg__engine_lock(n1.e);
            mcpg__link_leave(n1.e, &key, &m, 1);
            mcpg__engine_unlock(n1.e);
            assert_true(wait_ended(&n0, &s, WAIT_US));
            assert_true(s.result == MCPG_LX_LEFT || s.result == MCPG_LX_DONE);
        } else {
            assert_true(wait_ended(&n0, &s, WAIT_US));
        }
        exchange(&n0, &n1, 6, 200u + (uint64_t)round, 100000, true);
        assert_false(!complete && r.ended);
        assert_memory_equal(seen, in, bytes);
        free(seen);
        free(out);
        free(in);
    }
}

/* A cancelled send's buffer may be reused at once; the peer's receive ends LEFT or with the right bytes. */
static void cancel_send(void **state) {
    (void)state;
    size_t bytes = 8u << 20;
    for (uint64_t round = 0; round < 5; round++) {
        uint8_t *out = malloc(bytes), *in = malloc(bytes);
        memset(out, 0x11, bytes);
        xfer_t s, r;
        xfer_init(&s, &n1, 8, round, out, bytes);
        xfer_init(&r, &n0, 8, round, in, bytes);
        post(&n0, &s, true);
        post(&n1, &r, false);
        for (uint64_t k = 0; k < round; k++) exchange(&n0, &n1, 8, 1000 + round * 16 + k, 64, true);
        cancel(&n0, &s);
        memset(out, 0x22, bytes);
        free(out);
        mcpg_msg_key_t key = {.gid = 8, .view_term = 1, .view_epoch = 1, .seq = round};
        mcpg_member_t m = {.rank = {1}, .inc = n1.inc};
        mcpg__engine_lock(n0.e);
        mcpg__link_leave(n0.e, &key, &m, 1);
        mcpg__engine_unlock(n0.e);
        assert_true(wait_ended(&n1, &r, WAIT_US));
        assert_true(r.result == MCPG_LX_LEFT || r.result == MCPG_LX_DONE);
        if (r.result == MCPG_LX_DONE)
            for (size_t i = 0; i < bytes; i++) assert_int_equal(in[i], 0x11);
        exchange(&n0, &n1, 8, 5000 + round, 100000, false);
        free(in);
    }
}

static void left_before_and_after(void **state) {
    (void)state;
    uint8_t buf[64] = {0};
    xfer_t r, r2, s, kept;
    mcpg_msg_key_t key = {.gid = 11, .view_term = 1, .view_epoch = 1, .seq = 1};
    mcpg_member_t m = {.rank = {1}, .inc = n1.inc};
    xfer_init(&r, &n0, 11, 1, buf, 64);
    post(&n1, &r, false);
    /* what was sent before counts, under another phase of the same operation */
    xfer_init(&kept, &n1, 11, 1, buf, 64);
    kept.x.key.phase = 1;
    post(&n0, &kept, true);
    expect(&n0, &kept, MCPG_LX_DONE);
    mcpg__engine_lock(n0.e);
    mcpg__link_leave(n0.e, &key, &m, 1);
    mcpg__engine_unlock(n0.e);
    expect(&n1, &r, MCPG_LX_LEFT);
    xfer_init(&r2, &n0, 11, 1, buf, 64);
    r2.x.key.phase = 1;
    post(&n1, &r2, false);
    expect(&n1, &r2, MCPG_LX_DONE);
    xfer_init(&r2, &n0, 11, 1, buf, 64);
    r2.x.key.phase = 2;
    post(&n1, &r2, false);
    expect(&n1, &r2, MCPG_LX_LEFT);
    xfer_init(&s, &n0, 11, 1, buf, 64);
    post(&n1, &s, true);
    expect(&n1, &s, MCPG_LX_LEFT);
    exchange(&n1, &n0, 11, 2, 64, true);
    mcpg__engine_lock(n1.e);
    mcpg__link_forget_group(n1.e, 11);
    mcpg__engine_unlock(n1.e);
}

/* Point-to-point: leaving one direction of a pair number leaves the other alone. */
static void left_one_direction(void **state) {
    (void)state;
    uint8_t buf[64] = {0}, in[64];
    xfer_t r, s, back;
    xfer_init(&r, &n0, 12, 5, in, 64);
    xfer_init(&s, &n0, 12, 5, buf, 64);
    xfer_init(&back, &n1, 12, 5, in, 64);
    r.x.key.flags = s.x.key.flags = back.x.key.flags = MCPG_KEY_P2P;
    post(&n1, &r, false);
    mcpg_msg_key_t key = r.x.key;
    key.flags |= MCPG_KEY_LEFT_SEND;
    mcpg_member_t m = {.rank = {1}, .inc = n1.inc};
    mcpg__engine_lock(n0.e);
    mcpg__link_leave(n0.e, &key, &m, 1);
    mcpg__engine_unlock(n0.e);
    expect(&n1, &r, MCPG_LX_LEFT);
    post(&n1, &s, true);
    expect(&n1, &s, MCPG_LX_DONE);
    post(&n0, &back, false);
    expect(&n0, &back, MCPG_LX_DONE);
}

static void mismatch(void **state) {
    (void)state;
    static uint8_t a[100000], b[100000];
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t bytes = i < 2 ? 100 : 50000;
        xfer_t s, r, other;
        xfer_init(&s, &n1, 13, i, a, bytes);
        xfer_init(&r, &n0, 13, i, b, bytes - 4);
        xfer_init(&other, &n1, 13, i, b, 8); /* n0 waits for n1 in the same operation */
        other.x.key.phase = 9;
        if (i % 2 == 0) post(&n1, &r, false);
        post(&n0, &other, false);
        post(&n0, &s, true);
        if (i % 2 == 1 && bytes <= MCPG_EAGER_BYTES) expect(&n0, &s, MCPG_LX_DONE);
        if (i % 2 == 1) post(&n1, &r, false);
        expect(&n1, &r, MCPG_LX_MISMATCH);
        assert_int_equal(r.x.peer_sig.bytes, bytes);
        if (bytes > MCPG_EAGER_BYTES) {
            expect(&n0, &s, MCPG_LX_MISMATCH);
            assert_int_equal(s.x.peer_sig.bytes, bytes - 4);
            cancel(&n0, &other);
        } else {
            expect(&n0, &other, MCPG_LX_MISMATCH);
            assert_int_equal(other.x.peer_sig.bytes, bytes - 4);
        }
    }
    exchange(&n0, &n1, 13, 50, 1000, true);
}

static void closed_link_ends_posts_and_reopens(void **state) {
    (void)state;
    static uint8_t buf[1 << 20], in[100];
    xfer_t s, r, later;
    xfer_init(&s, &n1, 14, 1, buf, sizeof(buf));
    xfer_init(&r, &n1, 14, 2, in, 10);
    post(&n0, &s, true);
    post(&n0, &r, false);
    unsigned lost = atomic_load(&n0.lost[1]);
    mcpg__engine_close_link(n1.e, (mcpg_rank_t){0}, n0.inc, false);
    expect(&n0, &s, MCPG_LX_LINK_LOST);
    expect(&n0, &r, MCPG_LX_LINK_LOST);
    assert_true(node_wait_count(&n0, &n0.lost[1], lost + 1, WAIT_US));
    /* posted while down: waits for the next link */
    xfer_init(&later, &n1, 14, 3, buf, 100);
    post(&n0, &later, true);
    link_pair(&n0, &n1);
    xfer_init(&r, &n0, 14, 3, in, 100);
    post(&n1, &r, false);
    expect(&n1, &r, MCPG_LX_DONE);
    expect(&n0, &later, MCPG_LX_DONE);
}

static void dead_and_replaced(void **state) {
    (void)state;
    uint8_t buf[32];
    xfer_t r, w, future;
    node_t next;
    xfer_init(&r, &n1, 15, 1, buf, 32);
    post(&n0, &r, false);
    mcpg__engine_close_link(n0.e, (mcpg_rank_t){1}, n1.inc, true);
    expect(&n0, &r, MCPG_LX_PEER_DEAD);
    xfer_init(&w, &n1, 15, 2, buf, 32);
    post(&n0, &w, true);
    expect(&n0, &w, MCPG_LX_PEER_DEAD);
    node_stop(&n1);
    node_start(&next, 1, 9, &variant);
    xfer_init(&future, &next, 15, 3, buf, 32); /* before the link is known here */
    post(&n0, &future, true);
    link_pair(&n0, &next);
    exchange(&n0, &next, 15, 4, 100, true);
    xfer_t in;
    uint8_t got[32];
    xfer_init(&in, &n0, 15, 3, got, 32);
    post(&next, &in, false);
    expect(&next, &in, MCPG_LX_DONE);
    expect(&n0, &future, MCPG_LX_DONE);
    node_stop(&next);
}

/* The peer of a stale incarnation is not accepted, and says link_lost; one that is expected a little later is parked,
 * not refused. */
static void stale_refused_early_parked(void **state) {
    (void)state;
    node_t a, b;
    uint8_t ep[MCPG_ENDPOINT_CAP];
    node_start(&a, 0, 1, &variant);
    node_start(&b, 1, 2, &variant);
    size_t len = mcpg__engine_endpoint(a.e, ep, sizeof(ep));
    uint64_t from = now_us();
    node_open(&b, &a); /* a does not know b yet */
    assert_false(node_wait_state(&b, 0, a.inc, MCPG_LINK_ST_UP, 100000));
    node_open(&a, &b);
    assert_true(node_wait_state(&b, 0, a.inc, MCPG_LINK_ST_UP, WAIT_US));
    assert_true(now_us() - from < 900000);
    node_stop(&b);
    node_t stale;
    node_start(&stale, 1, 1, &variant); /* an older one of rank 1 than a knows */
    node_open_at(&stale, 0, a.inc, ep, (uint32_t)len, 77);
    assert_true(node_wait_count(&stale, &stale.lost[0], 1, 5000000));
    assert_int_equal(atomic_load(&stale.up[0]), 0);
    node_stop(&stale);
    node_stop(&a);
}

static void checks(void **state) {
    (void)state;
    mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, n1.inc, 42);
    assert_true(node_wait_count(&n0, &n0.checked_ok, 1, 1000000));
    mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, (mcpg_incarnation_t){1, 99}, 43);
    assert_true(node_wait_count(&n0, &n0.checked_bad, 1, 1000000));
    mcpg__engine_lock(n0.e);
    uint64_t before = mcpg__link_last_heard_us(n0.e, (mcpg_rank_t){1}, n1.inc);
    mcpg__engine_unlock(n0.e);
    mcpg__engine_lock(n0.e);
    mcpg__link_probe(n0.e, (mcpg_rank_t){1}, n1.inc);
    mcpg__engine_unlock(n0.e);
    mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, n1.inc, 44);
    assert_true(node_wait_count(&n0, &n0.checked_ok, 2, 1000000));
    mcpg__engine_lock(n0.e);
    assert_true(mcpg__link_last_heard_us(n0.e, (mcpg_rank_t){1}, n1.inc) > before);
    mcpg__engine_unlock(n0.e);
    char json[1024];
    size_t n = mcpg__engine_links_json(n0.e, json, sizeof(json));
    assert_true(n < sizeof(json) && strlen(json) == n);
    assert_non_null(strstr(json, "\"state\":\"up\""));
}

/* The control lane's question and answer, beside transfers, outside any operation. */
static void views_are_relayed(void **state) {
    (void)state;
    static uint8_t bytes[MCPG_CHUNK_BYTES + 1u];
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (uint8_t)(i * 7u + i / 251u);
    mcpg__engine_ask_view(n0.e, (mcpg_gid_t){9}, (mcpg_view_id_t){3, 41});
    assert_true(node_wait_count(&n1, &n1.asked, 1, WAIT_US)); /* everybody who is linked */
    assert_true(node_wait_count(&n2, &n2.asked, 1, WAIT_US));
    assert_true(atomic_load(&n1.asked_epoch) == (UINT64_C(9) << 32 | 41u));
    assert_int_equal(atomic_load(&n0.asked), 0);
    static const size_t sizes[] = {1, 100, 8192, 70000, MCPG_CHUNK_BYTES};
    unsigned told = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        mcpg__engine_tell_view(n1.e, (mcpg_rank_t){0}, (mcpg_incarnation_t){1, 99}, bytes, sizes[i]); /* not that one */
        mcpg__engine_tell_view(n1.e, (mcpg_rank_t){0}, n0.inc, bytes, sizeof(bytes));                 /* too long */
        mcpg__engine_tell_view(n1.e, (mcpg_rank_t){0}, n0.inc, bytes, 0);
        mcpg__engine_tell_view(n1.e, (mcpg_rank_t){0}, n0.inc, bytes, sizes[i]);
        exchange(&n0, &n1, 16, 5000 + i, 100000, true);
        assert_true(node_wait_count(&n0, &n0.told, ++told, WAIT_US));
        assert_int_equal(atomic_load(&n0.told), told);
        assert_true(atomic_load(&n0.told_len) == sizes[i]);
        assert_true(atomic_load(&n0.told_sum) == sum_of(bytes, sizes[i]));
    }
    for (int i = 0; i < 100; i++) /* some are dropped, nothing breaks */
        mcpg__engine_tell_view(n1.e, (mcpg_rank_t){0}, n0.inc, bytes, 200000);
    exchange(&n0, &n1, 16, 6000, 100000, true);
    assert_true(node_wait_count(&n0, &n0.told, told + 4u, WAIT_US));
    assert_int_equal(atomic_load(&n0.lost[1]), 0);
}

static void full_observer_is_asked_again(void **state) {
    (void)state;
    node_t a, b;
    node_start(&a, 0, 1, &variant);
    node_start(&b, 1, 2, &variant);
    atomic_store(&a.refuse_first, 3u);
    link_pair(&a, &b);
    assert_true(node_wait_count(&a, &a.up[1], 1, WAIT_US));
    node_stop(&a);
    node_stop(&b);
}

static void idle_costs_nothing(void **state) {
    (void)state;
    struct rusage before, after;
    exchange(&n0, &n1, 16, 1, 100, true);
    /* Settled when the progress threads sleep; a timed wait on something that never comes is the idle second itself. */
    atomic_uint never = 0;
    assert_false(node_wait_count(&n0, &never, 1, 50000));
    getrusage(RUSAGE_SELF, &before);
    assert_false(node_wait_count(&n0, &never, 1, 1000000));
    getrusage(RUSAGE_SELF, &after);
    long us = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000L +
              (after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
              (after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000L +
              (after.ru_stime.tv_usec - before.ru_stime.tv_usec);
    print_message("%s: idle second used %ld us of CPU\n", variant.name, us);
    assert_true(us < 20000);
}

typedef struct {
    node_t *n;
    node_t *peer;
    bool stop;
    uint64_t rounds;
    size_t bytes;
    uint8_t *buf;
} echo_t;
static void *echo_main(void *arg) {
    echo_t *k = arg;
    for (uint64_t i = 0; i < k->rounds; i++) {
        xfer_t r, s;
        xfer_init(&r, k->peer, 20, i * 2, k->buf, k->bytes);
        post(k->n, &r, false);
        expect(k->n, &r, MCPG_LX_DONE);
        xfer_init(&s, k->peer, 20, i * 2 + 1, k->buf, k->bytes > 64 ? 8 : k->bytes);
        post(k->n, &s, true);
        expect(k->n, &s, MCPG_LX_DONE);
    }
    return NULL;
}
static double ping_pong(uint64_t rounds, size_t bytes) {
    uint8_t *a = calloc(1, bytes), *b = calloc(1, bytes);
    echo_t k = {.n = &n1, .peer = &n0, .rounds = rounds, .bytes = bytes, .buf = b};
    pthread_t th;
    assert_int_equal(pthread_create(&th, NULL, echo_main, &k), 0);
    uint64_t from = now_us();
    for (uint64_t i = 0; i < rounds; i++) {
        xfer_t r, s;
        xfer_init(&s, &n1, 20, i * 2, a, bytes);
        xfer_init(&r, &n1, 20, i * 2 + 1, a, bytes > 64 ? 8 : bytes);
        post(&n0, &r, false);
        post(&n0, &s, true);
        expect(&n0, &s, MCPG_LX_DONE);
        expect(&n0, &r, MCPG_LX_DONE);
    }
    double us = (double)(now_us() - from) / (double)rounds;
    pthread_join(th, NULL);
    free(a);
    free(b);
    return us;
}
static void speed(void **state) {
    (void)state;
    double small = ping_pong(5000, 8);
    double big = ping_pong(4, 64u << 20);
    print_message("%s: 8 byte ping-pong %.1f us one way, 64 MiB %.2f GB/s\n", variant.name, small / 2.0,
                  (double)(64u << 20) / big / 1000.0);
    assert_true(small < 100000.0);
}

int main(void) {
    static const variant_t variants[] = {
        {"shm", "shm", false}, {"tcp", "tcp", false}, {"fault(shm)", "shm", true}, {"fault(tcp)", "tcp", true}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(sizes_both_ways, two_up, all_down),
        cmocka_unit_test_setup_teardown(many_at_once, two_up, all_down),
        cmocka_unit_test_setup_teardown(groups_do_not_block, two_up, all_down),
        cmocka_unit_test_setup_teardown(three_nodes, three_up, all_down),
        cmocka_unit_test_setup_teardown(cancel_then_late_data, two_up, all_down),
        cmocka_unit_test_setup_teardown(cancel_send, two_up, all_down),
        cmocka_unit_test_setup_teardown(left_before_and_after, two_up, all_down),
        cmocka_unit_test_setup_teardown(left_one_direction, two_up, all_down),
        cmocka_unit_test_setup_teardown(mismatch, two_up, all_down),
        cmocka_unit_test_setup_teardown(closed_link_ends_posts_and_reopens, two_up, all_down),
        cmocka_unit_test_setup_teardown(dead_and_replaced, two_up, all_down),
        cmocka_unit_test(stale_refused_early_parked),
        cmocka_unit_test_setup_teardown(checks, two_up, all_down),
        cmocka_unit_test_setup_teardown(views_are_relayed, three_up, all_down),
        cmocka_unit_test(full_observer_is_asked_again),
        cmocka_unit_test_setup_teardown(idle_costs_nothing, two_up, all_down),
        cmocka_unit_test_setup_teardown(speed, two_up, all_down),
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        variant = variants[i];
        print_message("---- %s ----\n", variant.name);
        failed += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failed;
}
