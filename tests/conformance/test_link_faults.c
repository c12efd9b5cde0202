/* test_link_faults.c: what links do when peers die and streams break. Processes are killed
 * by pid; loopback only. */
#include "test_link_util.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const variant_t shm_only = {"shm", "shm", false}, tcp_only = {"tcp", "tcp", false},
                       both = {"shm,tcp", "shm,tcp", false};
static const variant_t shm_fault = {"fault(shm)", "shm", true}, tcp_fault = {"fault(tcp)", "tcp", true};
static const variant_t both_fault = {"fault(shm,tcp)", "shm,tcp", true};

static int clear(void **state) {
    (void)state;
    mcpg__fault_clear();
    return 0;
}

/* ---- a peer in a process of its own ---- */
typedef struct {
    pid_t pid;
    int fd;
    node_t as;
    uint8_t ep[MCPG_ENDPOINT_CAP];
    uint32_t ep_len;
} child_t;

static void child_main(int fd, uint32_t rank, const variant_t *v, bool raw_fork) {
    node_t me, parent = {.rank = 0, .inc = {1, 1}};
    uint8_t ep[MCPG_ENDPOINT_CAP], go, data[100];
    node_start(&me, rank, 50 + rank, v);
    size_t len = mcpg__engine_endpoint(me.e, ep, sizeof(ep));
    if (write(fd, ep, len) != (ssize_t)len) _exit(3);
    ssize_t n = read(fd, ep, sizeof(ep));
    if (n <= 0) _exit(4);
    node_open_at(&me, 0, parent.inc, ep, (uint32_t)n, 77);
    if (!node_wait_state(&me, 0, parent.inc, MCPG_LINK_ST_UP, WAIT_US)) _exit(5);
    memset(data, 0x77, sizeof(data));
    xfer_t s;
    xfer_init(&s, &parent, 30, 1, data, sizeof(data));
    post(&me, &s, true);
    if (!wait_ended(&me, &s, WAIT_US)) _exit(6);
    /* A helper process that outlives this one; the raw system call runs no fork handlers, so it keeps every descriptor.
     */
    pid_t grandchild = raw_fork ? (pid_t)syscall(SYS_fork) : fork();
    if (grandchild == 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        while (poll(&p, 1, 30000) == 0) {
        }
        _exit(0); /* the parent closed its end */
    }
    if (write(fd, "U", 1) != 1) _exit(7);
    while (read(fd, &go, 1) > 0) {
    }
    _exit(0);
}

static void child_start(child_t *c, uint32_t rank, const variant_t *v, bool raw_fork) {
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
    memset(c, 0, sizeof(*c));
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        close(sv[0]);
        child_main(sv[1], rank, v, raw_fork);
    }
    close(sv[1]);
    c->fd = sv[0];
    c->as.rank = rank;
    c->as.inc = (mcpg_incarnation_t){1, 50 + rank};
    ssize_t n = read(c->fd, c->ep, sizeof(c->ep));
    assert_true(n > 0);
    c->ep_len = (uint32_t)n;
}

static void child_link(child_t *c, node_t *n) {
    uint8_t ep[MCPG_ENDPOINT_CAP], up;
    size_t len = mcpg__engine_endpoint(n->e, ep, sizeof(ep));
    node_open_at(n, c->as.rank, c->as.inc, c->ep, c->ep_len, 77);
    assert_int_equal(write(c->fd, ep, len), len);
    assert_true(node_wait_state(n, c->as.rank, c->as.inc, MCPG_LINK_ST_UP, WAIT_US));
    assert_int_equal(read(c->fd, &up, 1), 1);
}

static void kill_noticed(const variant_t *v, bool raw_fork) {
    child_t c;
    node_t n0;
    uint8_t got[100], later[100];
    xfer_t r, sent_before;
    child_start(&c, 1, v, raw_fork);
    node_start(&n0, 0, 1, v);
    child_link(&c, &n0);
    xfer_init(&r, &c.as, 30, 2, later, sizeof(later));
    post(&n0, &r, false);
    uint64_t from = now_us();
    assert_int_equal(kill(c.pid, SIGKILL), 0);
    expect(&n0, &r, MCPG_LX_PEER_DEAD);
    uint64_t took = now_us() - from;
    assert_true(node_wait_count(&n0, &n0.dead[1], 1, WAIT_US));
    print_message("%s: kill -9 noticed after %llu us (grandchild %s)\n", v->name, (unsigned long long)took,
                  raw_fork ? "keeps the descriptors" : "closed them");
    assert_true(took < 1000000);
    assert_int_equal(atomic_load(&n0.lost[1]), 0);
    /* what it had sent counts */
    xfer_init(&sent_before, &c.as, 30, 1, got, sizeof(got));
    post(&n0, &sent_before, false);
    expect(&n0, &sent_before, MCPG_LX_DONE);
    assert_int_equal(got[99], 0x77);
    waitpid(c.pid, NULL, 0);
    close(c.fd);
    node_stop(&n0);
}
static void kill_shm(void **state) {
    (void)state;
    kill_noticed(&shm_only, false);
}
static void kill_shm_raw(void **state) {
    (void)state;
    kill_noticed(&shm_only, true);
}
static void kill_tcp(void **state) {
    (void)state;
    kill_noticed(&tcp_only, false);
}
static void kill_tcp_raw(void **state) {
    (void)state;
    kill_noticed(&tcp_only, true);
}

static void death_is_relayed_to_other_hosts(void **state) {
    (void)state;
    child_t c;
    node_t n0, far;
    uint8_t ep[MCPG_ENDPOINT_CAP];
    child_start(&c, 1, &both, true);
    node_start(&n0, 0, 1, &both);
    child_link(&c, &n0);
    node_start_on(&far, 2, 3, &both, 88);
    size_t len = mcpg__engine_endpoint(n0.e, ep, sizeof(ep));
    node_open_at(&far, 0, n0.inc, ep, (uint32_t)len, 77);
    len = mcpg__engine_endpoint(far.e, ep, sizeof(ep));
    node_open_at(&n0, 2, far.inc, ep, (uint32_t)len, 88);
    assert_true(node_wait_state(&far, 0, n0.inc, MCPG_LINK_ST_UP, WAIT_US));
    mcpg__engine_lock(far.e);
    assert_string_equal(mcpg__link_transport_name(far.e, (mcpg_rank_t){0}), "tcp");
    mcpg__engine_unlock(far.e);
    kill(c.pid, SIGKILL);
    assert_true(node_wait_count(&n0, &n0.dead[1], 1, WAIT_US));
    assert_true(node_wait_count(&far, &far.relayed[1], 1, WAIT_US));
    waitpid(c.pid, NULL, 0);
    close(c.fd);
    node_stop(&far);
    node_stop(&n0);
}

/* A child made by fork() keeps none of the engine's descriptors: listeners, links, rings, watches. */
static int descriptors(int *out, int cap) {
    int n = 0;
    for (int fd = 3; fd < 256; fd++)
        if (fcntl(fd, F_GETFD) >= 0 && n < cap) out[n++] = fd;
    return n;
}
static void forked_child_keeps_nothing(void **state) {
    (void)state;
    node_t n0, n1;
    int before[256], count = descriptors(before, 256), status = 0;
    node_start(&n0, 0, 1, &both);
    node_start(&n1, 1, 2, &both);
    link_pair(&n0, &n1);
    int now[256];
    assert_true(descriptors(now, 256) > count + 10);
    pid_t pid = fork();
    if (pid == 0) _exit(descriptors(now, 256) == count ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    node_stop(&n0);
    node_stop(&n1);
    assert_int_equal(descriptors(now, 256), count); /* and nothing leaks in the parent */
}

static void live_rank_is_not_relayed_dead(void **state) {
    (void)state;
    node_t n0, n1, n2;
    node_start(&n0, 0, 1, &shm_only);
    node_start(&n1, 1, 2, &shm_only);
    node_start(&n2, 2, 3, &shm_only);
    link_pair(&n0, &n1);
    link_pair(&n0, &n2);
    link_pair(&n1, &n2);
    /* n2 is told by its agent that n1 died; that is not its own proof, so it floods nothing */
    mcpg__engine_close_link(n2.e, (mcpg_rank_t){1}, n1.inc, true);
    assert_true(node_wait_state(&n2, 1, n1.inc, MCPG_LINK_ST_DEAD, WAIT_US));
    mcpg__engine_check_link(n2.e, (mcpg_rank_t){0}, n0.inc, 1);
    assert_true(node_wait_count(&n2, &n2.checked_ok, 1, WAIT_US));
    assert_int_equal(atomic_load(&n0.relayed[1]), 0);
    assert_true(node_wait_state(&n0, 1, n1.inc, MCPG_LINK_ST_UP, 1000));
    node_stop(&n0);
    node_stop(&n1);
    node_stop(&n2);
}

/* ---- broken streams ---- */
static void cut_and_reopened(const variant_t *v) {
    node_t n0, n1;
    static uint8_t out[1 << 20], in[1 << 20];
    xfer_t s, r, r2, s2;
    node_start(&n0, 0, 1, v);
    node_start(&n1, 1, 2, v);
    mcpg_fault_plan_t plan = {.from = 1, .to = 0, .cut_after = 300000, .corrupt_at = MCPG_FAULT_NEVER};
    mcpg__fault_add(&plan);
    link_pair(&n0, &n1);
    fill(out, sizeof(out), 5);
    xfer_init(&r, &n1, 31, 1, in, sizeof(in));
    post(&n0, &r, false);
    xfer_init(&s, &n0, 31, 1, out, sizeof(out));
    post(&n1, &s, true);
    expect(&n1, &s, MCPG_LX_LINK_LOST);
    expect(&n0, &r, MCPG_LX_LINK_LOST);
    assert_true(node_wait_count(&n0, &n0.lost[1], 1, WAIT_US));
    assert_true(node_wait_count(&n1, &n1.lost[0], 1, WAIT_US));
    mcpg__fault_clear();
    link_pair(&n0, &n1);
    memset(in, 0, sizeof(in));
    xfer_init(&r2, &n1, 31, 2, in, sizeof(in));
    post(&n0, &r2, false);
    xfer_init(&s2, &n0, 31, 2, out, sizeof(out));
    post(&n1, &s2, true);
    expect(&n0, &r2, MCPG_LX_DONE);
    expect(&n1, &s2, MCPG_LX_DONE);
    assert_memory_equal(in, out, sizeof(in));
    node_stop(&n0);
    node_stop(&n1);
}
static void cut_shm(void **state) {
    (void)state;
    cut_and_reopened(&shm_fault);
}
static void cut_tcp(void **state) {
    (void)state;
    cut_and_reopened(&tcp_fault);
}

static void corrupt_header(const variant_t *v) {
    node_t n0, n1;
    uint8_t a[64] = {0};
    for (uint64_t at = 0; at < 8; at++) { /* magic, type, credit, length */
        node_start(&n0, 0, 1, v);
        node_start(&n1, 1, 2, v);
        mcpg_fault_plan_t plan = {.from = 1, .to = 0, .cut_after = MCPG_FAULT_NEVER, .corrupt_at = at};
        mcpg__fault_add(&plan);
        link_pair(&n0, &n1);
        xfer_t s, r;
        xfer_init(&r, &n1, 32, 1, a, sizeof(a));
        post(&n0, &r, false);
        xfer_init(&s, &n0, 32, 1, a, sizeof(a));
        post(&n1, &s, true);
        expect(&n0, &r, MCPG_LX_LINK_LOST);
        assert_true(node_wait_count(&n0, &n0.lost[1], 1, WAIT_US));
        mcpg__fault_clear();
        node_stop(&n1);
        node_stop(&n0);
    }
}
static void corrupt_shm(void **state) {
    (void)state;
    corrupt_header(&shm_fault);
}
static void corrupt_tcp(void **state) {
    (void)state;
    corrupt_header(&tcp_fault);
}

/* A link that swallows everything stays up, and the check says that it is bad within a second. */
static void silent_link_fails_its_check(void **state) {
    (void)state;
    node_t n0, n1;
    node_start(&n0, 0, 1, &tcp_fault);
    node_start(&n1, 1, 2, &tcp_fault);
    link_pair(&n0, &n1);
    mcpg_fault_plan_t plan = {
        .from = 1, .to = 0, .cut_after = MCPG_FAULT_NEVER, .corrupt_at = MCPG_FAULT_NEVER, .swallow = true};
    mcpg__fault_add(&plan);
    uint64_t from = now_us();
    mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, n1.inc, 7);
    assert_true(node_wait_count(&n0, &n0.checked_bad, 1, 3000000));
    assert_true(now_us() - from < 2000000);
    node_stop(&n0);
    node_stop(&n1);
}

static void slow_link_still_works(void **state) {
    (void)state;
    node_t n0, n1;
    static uint8_t out[200000], in[200000];
    node_start(&n0, 0, 1, &shm_fault);
    node_start(&n1, 1, 2, &shm_fault);
    mcpg_fault_plan_t plan = {.from = MCPG_FAULT_ANY,
                              .to = MCPG_FAULT_ANY,
                              .cut_after = MCPG_FAULT_NEVER,
                              .corrupt_at = MCPG_FAULT_NEVER,
                              .delay_us = 3000};
    mcpg__fault_add(&plan);
    link_pair(&n0, &n1);
    fill(out, sizeof(out), 9);
    xfer_t s, r;
    xfer_init(&s, &n1, 33, 1, out, sizeof(out));
    xfer_init(&r, &n0, 33, 1, in, sizeof(in));
    post(&n0, &s, true);
    post(&n1, &r, false);
    expect(&n1, &r, MCPG_LX_DONE);
    expect(&n0, &s, MCPG_LX_DONE);
    assert_memory_equal(in, out, sizeof(in));
    node_stop(&n0);
    node_stop(&n1);
}

/* Shared memory that cannot be set up is no reason to have no link. */
static void falls_back_to_tcp(void **state) {
    (void)state;
    node_t n0, n1;
    uint8_t ep[MCPG_ENDPOINT_CAP];
    node_start(&n0, 0, 1, &both);
    node_start(&n1, 1, 2, &both);
    size_t len = mcpg__engine_endpoint(n0.e, ep, sizeof(ep));
    ep[1 + 4 + 1] ^= 0xffu; /* first byte of the shm name: nobody listens there */
    node_open(&n0, &n1);
    node_open_at(&n1, 0, n0.inc, ep, (uint32_t)len, 77);
    assert_true(node_wait_state(&n1, 0, n0.inc, MCPG_LINK_ST_UP, WAIT_US));
    mcpg__engine_lock(n1.e);
    assert_string_equal(mcpg__link_transport_name(n1.e, (mcpg_rank_t){0}), "tcp");
    mcpg__engine_unlock(n1.e);
    node_stop(&n0);
    node_stop(&n1);
}

static void all_refused_is_lost(void **state) {
    (void)state;
    node_t n0, n1;
    node_start(&n0, 0, 1, &both_fault);
    node_start(&n1, 1, 2, &both_fault);
    mcpg_fault_plan_t plan = {
        .from = 1, .to = 0, .cut_after = MCPG_FAULT_NEVER, .corrupt_at = MCPG_FAULT_NEVER, .refuse = true};
    mcpg__fault_add(&plan);
    uint64_t from = now_us();
    node_open(&n0, &n1);
    node_open(&n1, &n0);
    assert_true(node_wait_count(&n1, &n1.lost[0], 1, WAIT_US));
    assert_true(now_us() - from < 3000000);
    mcpg__fault_clear();
    link_pair(&n0, &n1);
    node_stop(&n0);
    node_stop(&n1);
}

/* Several waiting callers of one engine: each gets its own answer. */
typedef struct {
    node_t *n, *peer;
    uint64_t seq;
    bool ok;
} waiter_t;
static void *waiter_main(void *arg) {
    waiter_t *w = arg;
    uint8_t buf[200];
    w->ok = true;
    for (uint64_t i = 0; i < 200 && w->ok; i++) {
        xfer_t r;
        xfer_init(&r, w->peer, 40, w->seq * 1000 + i, buf, sizeof(buf));
        post(w->n, &r, false);
        w->ok = wait_ended(w->n, &r, WAIT_US) && r.result == MCPG_LX_DONE && buf[0] == (uint8_t)(w->seq + i);
    }
    return NULL;
}
static void many_waiters(void **state) {
    (void)state;
    node_t n0, n1;
    waiter_t w[4];
    pthread_t th[4];
    static uint8_t out[200][4][200];
    static xfer_t s[200][4];
    node_start(&n0, 0, 1, &both);
    node_start(&n1, 1, 2, &both);
    link_pair(&n0, &n1);
    for (uint64_t k = 0; k < 4; k++) {
        w[k] = (waiter_t){.n = &n1, .peer = &n0, .seq = k};
        assert_int_equal(pthread_create(&th[k], NULL, waiter_main, &w[k]), 0);
    }
    for (uint64_t i = 0; i < 200; i++) {
        for (uint64_t k = 0; k < 4; k++) {
            memset(out[i][k], (int)(k + i), 200);
            xfer_init(&s[i][k], &n1, 40, k * 1000 + i, out[i][k], 200);
            post(&n0, &s[i][k], true);
        }
    }
    for (uint64_t k = 0; k < 4; k++) {
        pthread_join(th[k], NULL);
        assert_true(w[k].ok);
    }
    node_stop(&n0);
    node_stop(&n1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* first: they fork, and a child of a process without engines may use the library */
        cmocka_unit_test_setup(kill_shm, clear),
        cmocka_unit_test_setup(kill_shm_raw, clear),
        cmocka_unit_test_setup(kill_tcp, clear),
        cmocka_unit_test_setup(kill_tcp_raw, clear),
        cmocka_unit_test_setup(death_is_relayed_to_other_hosts, clear),
        cmocka_unit_test_setup(forked_child_keeps_nothing, clear),
        cmocka_unit_test_setup(live_rank_is_not_relayed_dead, clear),
        cmocka_unit_test_setup(cut_shm, clear),
        cmocka_unit_test_setup(cut_tcp, clear),
        cmocka_unit_test_setup(corrupt_shm, clear),
        cmocka_unit_test_setup(corrupt_tcp, clear),
        cmocka_unit_test_setup(silent_link_fails_its_check, clear),
        cmocka_unit_test_setup(slow_link_still_works, clear),
        cmocka_unit_test_setup(falls_back_to_tcp, clear),
        cmocka_unit_test_setup(all_refused_is_lost, clear),
        cmocka_unit_test_setup(many_waiters, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
