/* test_link_strangers.c: strangers that call, peers of another version and peers that lie: each loses its own
 * connection, nothing else happens.
 */
#include "test_link_util.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "dataplane/shm_ring.h"
#include "dataplane/transport_priv.h"

static const variant_t shm_only = {"shm", "shm", false}, tcp_only = {"tcp", "tcp", false},
                       both = {"shm,tcp", "shm,tcp", false};

static bool endpoint_of(node_t *n, const char *name, uint8_t *part, size_t *len) {
    uint8_t ep[MCPG_ENDPOINT_CAP];
    size_t ep_len = mcpg__engine_endpoint(n->e, ep, sizeof(ep));
    size_t at = 1;
    while (at + 2 < ep_len) {
        size_t nl = ep[at], pl = ep[at + 1 + nl];
        if (strlen(name) == nl && memcmp(ep + at + 1, name, nl) == 0) {
            memcpy(part, ep + at + 2 + nl, pl);
            *len = pl;
            return true;
        }
        at += 2 + nl + pl;
    }
    return false;
}
static int tcp_call(node_t *n) {
    uint8_t part[64];
    size_t len;
    assert_true(endpoint_of(n, "tcp", part, &len));
    struct sockaddr_in a = {.sin_family = AF_INET};
    memcpy(&a.sin_addr, part + 1, 4);
    memcpy(&a.sin_port, part + 5, 2);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}
static int shm_call(node_t *n) {
    uint8_t part[64];
    size_t len;
    assert_true(endpoint_of(n, "shm", part, &len));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int k = snprintf(a.sun_path + 1, 100, "mcpg-");
    for (size_t i = 0; i < len; i++, k += 2) snprintf(a.sun_path + 1 + k, 3, "%02x", part[i]);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(
        connect(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)k)), 0);
    return fd;
}
/* Bytes that come back until the other side closes; -1: it did not within 3 s. */
static ssize_t read_to_end(int fd, uint8_t *buf, size_t cap) {
    size_t at = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 3000) == 1) {
        ssize_t n = read(fd, buf + at, cap - at);
        if (n <= 0) return (ssize_t)at;
        at += (size_t)n;
    }
    return -1;
}
static mcpg_greeting_t greeting(const node_t *from, const node_t *to) {
    mcpg_greeting_t g = {
        .hello = {
            .magic = MCPG_HELLO_MAGIC, .version = MCPG_DATA_VERSION, .rank_from = from->rank, .rank_to = to->rank}};
    g.hello.inc_from_term = from->inc.term;
    g.hello.inc_from_counter = from->inc.counter;
    g.hello.inc_to_term = to->inc.term;
    g.hello.inc_to_counter = to->inc.counter;
    return g;
}

static void garbage_is_closed(void **state) {
    (void)state;
    node_t n0, n1;
    uint8_t buf[512];
    node_start(&n0, 0, 1, &both);
    node_start(&n1, 1, 2, &both);
    for (int i = 0; i < 2; i++) {
        int fd = i == 0 ? tcp_call(&n0) : shm_call(&n0);
        static const char http[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_int_equal(write(fd, http, sizeof(http) - 1), sizeof(http) - 1);
        assert_int_equal(read_to_end(fd, buf, sizeof(buf)), 0);
        close(fd);
    }
    /* callers that say nothing take no place away from real ones */
    int silent[100];
    for (int i = 0; i < 100; i++) silent[i] = tcp_call(&n0);
    link_pair(&n0, &n1);
    for (int i = 0; i < 100; i++) close(silent[i]);
    node_stop(&n0);
    node_stop(&n1);
}

/* One rank says hello again and again before it is expected: only its newest connection is kept. */
static void repeated_hello_replaces_the_parked_one(void **state) {
    (void)state;
    const node_t peer = {.rank = 1, .inc = {1, 2}};
    node_t n0;
    uint8_t buf[512];
    int fd[10];
    node_start(&n0, 0, 1, &both);
    for (int i = 0; i < 10; i++) {
        const mcpg_greeting_t g = greeting(&peer, &n0);
        fd[i] = i % 2 == 0 ? tcp_call(&n0) : shm_call(&n0);
        assert_int_equal(write(fd[i], &g, sizeof(g)), sizeof(g));
        if (i < 2) continue;
        ssize_t n = read_to_end(fd[i - 2], buf, sizeof(buf)); /* that the next one is parked shows in its end */
        if (i >= 4) assert_int_equal(n, 0);
        close(fd[i - 2]);
    }
    close(fd[8]);
    close(fd[9]);
    node_stop(&n0);
}

static void other_version_is_refused(void **state) {
    (void)state;
    node_t n0, peer = {.rank = 1, .inc = {1, 2}};
    uint8_t buf[512];
    node_start(&n0, 0, 1, &both);
    node_open_at(&n0, 1, peer.inc, (const uint8_t *)"", 0, 77);
    for (int i = 0; i < 2; i++) {
        int fd = i == 0 ? tcp_call(&n0) : shm_call(&n0);
        mcpg_greeting_t g = greeting(&peer, &n0), answer;
        g.hello.version = MCPG_DATA_VERSION + 1;
        assert_int_equal(write(fd, &g, sizeof(g)), sizeof(g));
        ssize_t n = read_to_end(fd, buf, sizeof(buf));
        if (n != (ssize_t)sizeof(answer)) fail_msg("answer of %zd bytes", n);
        memcpy(&answer, buf, sizeof(answer));
        assert_int_equal(answer.hello.version, MCPG_DATA_VERSION);
        assert_int_equal(answer.verdict, MCPG_VERDICT_VERSION);
        close(fd);
    }
    assert_int_equal(atomic_load(&n0.up[1]), 0);
    node_stop(&n0);
}

/* A listener that answers with another version: the connector gives up at once. */
static void other_version_answer_is_lost(void **state) {
    (void)state;
    node_t n1, peer = {.rank = 0, .inc = {1, 1}};
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_int_equal(bind(ls, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(ls, 4), 0);
    assert_int_equal(getsockname(ls, (struct sockaddr *)&a, &len), 0);
    uint8_t ep[13] = {1, 3, 't', 'c', 'p', 7, 4};
    memcpy(ep + 7, &a.sin_addr, 4);
    memcpy(ep + 11, &a.sin_port, 2);
    node_start(&n1, 1, 2, &tcp_only);
    uint64_t from = now_us();
    node_open_at(&n1, 0, peer.inc, ep, sizeof(ep), 77);
    int fd = accept(ls, NULL, NULL);
    mcpg_greeting_t g = greeting(&peer, &n1);
    g.hello.version = 77;
    assert_int_equal(write(fd, &g, sizeof(g)), sizeof(g));
    assert_true(node_wait_count(&n1, &n1.lost[0], 1, WAIT_US));
    assert_true(now_us() - from < 900000);
    close(fd);
    close(ls);
    node_stop(&n1);
}

/* A process that passes a ring and then lies about its position, or sends nonsense over TCP: its link breaks, nothing
 * else. */
static void lying_shm_peer(void **state) {
    (void)state;
    enum { SIZE = 4096 + 2 * 262144 };
    node_t n0, peer = {.rank = 1, .inc = {1, 2}};
    node_start(&n0, 0, 1, &shm_only);
    node_open_at(&n0, 1, peer.inc, (const uint8_t *)"", 0, 77);
    for (int lie = 0; lie < 3; lie++) {
        int fd = shm_call(&n0);
        int fds[2] = {eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
        assert_int_equal(ftruncate(fds[1], SIZE), 0);
        if (lie > 0) fcntl(fds[1], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        mcpg_greeting_t g = greeting(&peer, &n0);
        struct iovec iov = {&g, sizeof(g)};
        union {
            char buf[CMSG_SPACE(sizeof(fds))];
            struct cmsghdr align;
        } control = {.buf = {0}};
        struct msghdr msg = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(fds));
        memcpy(CMSG_DATA(c), fds, sizeof(fds));
        assert_int_equal(sendmsg(fd, &msg, 0), sizeof(g));
        uint8_t buf[512];
        if (lie == 0) { /* unsealed: the stream is never made */
            assert_true(read_to_end(fd, buf, sizeof(buf)) >= 0);
            assert_int_equal(atomic_load(&n0.up[1]), 0);
        } else {
            assert_true(node_wait_count(&n0, &n0.up[1], (unsigned)lie, WAIT_US));
            uint8_t *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
            mcpg_ring_ctl_t *ctl = (mcpg_ring_ctl_t *)(void *)map;
            atomic_store(lie == 1 ? &ctl[0].tail : &ctl[1].head, UINT64_MAX / 2);
            mcpg__engine_check_link(n0.e, (mcpg_rank_t){1}, peer.inc, 1); /* makes it write, and look */
            assert_true(node_wait_count(&n0, &n0.lost[1], (unsigned)lie, WAIT_US));
            munmap(map, SIZE);
        }
        close(fds[0]);
        close(fds[1]);
        close(fd);
    }
    node_stop(&n0);
}

static void lying_tcp_peer(void **state) {
    (void)state;
    static const uint32_t lens[] = {0, 63, 64 + 8193, 0x7fffffff};
    node_t n0, peer = {.rank = 1, .inc = {1, 2}};
    node_start(&n0, 0, 1, &tcp_only);
    node_open_at(&n0, 1, peer.inc, (const uint8_t *)"", 0, 77);
    unsigned round = 0;
    for (unsigned type = 0; type < 20; type++) {
        for (unsigned k = 0; k < 4; k++) {
            struct {
                uint16_t magic;
                uint8_t type, credit;
                uint32_t len;
                uint64_t aux;
                uint8_t body[240];
            } f;
            memset(&f, 0xab, sizeof(f));
            f.magic = 0x4d46;
            f.type = (uint8_t)type;
            f.credit = type == 13 ? 200 : 0;
            f.len = lens[k];
            int fd = tcp_call(&n0);
            mcpg_greeting_t g = greeting(&peer, &n0);
            assert_int_equal(write(fd, &g, sizeof(g)), sizeof(g));
            assert_int_equal(write(fd, &f, sizeof(f)), sizeof(f));
            shutdown(fd, SHUT_WR);
            uint8_t buf[4096];
            assert_true(read_to_end(fd, buf, sizeof(buf)) >= 0);
            close(fd);
            round++;
            assert_true(node_wait_count(&n0, &n0.lost[1], round, WAIT_US));
        }
    }
    node_stop(&n0);
}

/* ---- configuration ---- */
static void bad_configuration(void **state) {
    (void)state;
    static const struct {
        const char *transports, *ip, *word;
    } bad[] = {{"shm,carrier-pigeon", "127.0.0.1", "carrier-pigeon"},
               {"", "127.0.0.1", "empty"},
               {"tcp", "not-an-address", "not-an-address"}};
    mcpg__fault_enable(false);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mcpg_engine_config_t c = {.host_ip = bad[i].ip, .transports = bad[i].transports};
        mcpg_engine_t *e = NULL;
        char error[256] = "";
        mcpg__log_init(&c.log, NULL, NULL, "test");
        assert_int_equal(mcpg__engine_create(&c, &e, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
        assert_null(e);
        assert_non_null(strstr(error, bad[i].word));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_is_closed),        cmocka_unit_test(repeated_hello_replaces_the_parked_one),
        cmocka_unit_test(other_version_is_refused), cmocka_unit_test(other_version_answer_is_lost),
        cmocka_unit_test(lying_shm_peer),           cmocka_unit_test(lying_tcp_peer),
        cmocka_unit_test(bad_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
