/* test_rpc_grpc.c: what is special to the gRPC transport: which addresses it takes, strangers at the port, processes
 * that die or hang. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rpc_peers.h"
#include "rpc/rpc_address.h"
#include "rpc/rpc_cert.h"

extern char **environ;

static void expect_refused(const char *bind, const char *must_say) {
    server_peer_t s;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), bind), MCPG_INVALID_ARGUMENT);
    if (bind != NULL && strstr(s.error, bind) == NULL) fail_msg("'%s' does not name '%s'", s.error, bind);
    if (strstr(s.error, must_say) == NULL) fail_msg("'%s' does not say '%s'", s.error, must_say);
}

static void test_bind_policy(void **state) {
    (void)state;
    expect_refused("0.0.0.0:0", "bind 127.0.0.1:PORT");
    expect_refused("10.0.0.1:5000", "unix:/path");
    expect_refused("[::]:0", "not loopback");
    expect_refused("[fe80::1]:5000", "not loopback");
    expect_refused("example.org:80", "not loopback");
    expect_refused("128.0.0.1:80", "not loopback");
    expect_refused("10.0.0.1:5000", "MOONCAKE_TLS_CERT");
    expect_refused("tls:127.0.0.1:0", "there is no certificate");
    expect_refused("tls:unix:/x", "127.0.0.1:PORT");
    expect_refused("127.0.0.1", "127.0.0.1:PORT");
    expect_refused("127.0.0.1:", "127.0.0.1:PORT");
    expect_refused("127.0.0.1:65536", "127.0.0.1:PORT");
    expect_refused("127.0.0.1:+1", "127.0.0.1:PORT");
    expect_refused("::1:80", "[::1]:PORT");
    expect_refused("[::1:80", "[::1]:PORT");
    expect_refused(":80", "127.0.0.1:PORT");
    expect_refused("unix:relative", "absolute");
    expect_refused("unix:", "absolute");
    expect_refused("", "empty");
    expect_refused(NULL, "empty");
    char longer[200] = "unix:/";
    memset(longer + 6, 'x', 150);
    expect_refused(longer, "shorter");
    server_peer_t s;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "localhost:0"), MCPG_OK);
    assert_int_equal(strncmp(s.address, "127.0.0.1:", 10), 0);
    server_peer_stop(&s);
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "127.8.9.10:0"), MCPG_OK);
    assert_int_equal(strncmp(s.address, "127.8.9.10:", 11), 0);
    server_peer_stop(&s);
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "unix:/nowhere/at/all.sock"), MCPG_SYSTEM);
    assert_non_null(strstr(s.error, "/nowhere/at/all.sock"));
}

static void test_client_address(void **state) {
    (void)state;
    mcpg_rpc_address_t a;
    char error[320];
    assert_int_equal(mcpg__rpc_address_parse("127.0.0.1:0", false, &a, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "port 0"));
    assert_int_equal(mcpg__rpc_address_parse("node7:99", false, &a, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "names are not looked up"));
    assert_int_equal(mcpg__rpc_address_parse("tls:[fd00::7]:99", false, &a, error, sizeof error), MCPG_OK);
    assert_true(a.is_tls && a.is_v6 && !a.is_loopback && !a.is_unix);
    mcpg_rpc_client_events_t events = {0};
    mcpg_rpc_client_t *client = NULL;
    assert_int_equal(mcpg__rpc_grpc()->client_create("192.168.1.2:99", NULL, &events, &client, error, sizeof error),
                     MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "192.168.1.2:99"));
    assert_non_null(strstr(error, "tunnel"));
    assert_int_equal(mcpg__rpc_address_parse("[::1]:99", false, &a, NULL, 0), MCPG_OK);
    char text[64];
    assert_int_equal(mcpg__rpc_address_text(&a, text, sizeof text), 8);
    assert_string_equal(text, "[::1]:99");
    assert_int_equal(mcpg__rpc_address_text(&a, text, 4), 8); /* the full length, whatever fits */
}

static int dial(const char *address) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10))};
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Strangers at the port: none of them opens a stream, none disturbs the one that is there, and stop does not wait for
 * them. */
static void test_strangers(void **state) {
    (void)state;
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    static const char preface[] =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x09\xff\xff\xff\xff\xff garbage after a good beginning";
    server_peer_t s;
    client_peer_t c;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "127.0.0.1:0"), MCPG_OK);
    seen_set(&s.seen, &s.seen.echo, true);
    assert_int_equal(client_peer_create(&c, mcpg__rpc_grpc(), s.address), MCPG_OK);
    assert_true(client_peer_connect(&c));
    int fds[16];
    uint32_t noise = 12345;
    for (uint32_t i = 0; i < 16; i++) {
        fds[i] = dial(s.address);
        uint8_t bytes[512];
        for (size_t n = 0; n < sizeof bytes; n++) bytes[n] = (uint8_t)((noise = noise * 1664525u + 1013904223u) >> 24);
        if (i % 4 == 0) (void)send(fds[i], get, sizeof get - 1, MSG_NOSIGNAL);
        if (i % 4 == 1) (void)send(fds[i], bytes, sizeof bytes, MSG_NOSIGNAL);
        if (i % 4 == 2) (void)send(fds[i], preface, sizeof preface - 1, MSG_NOSIGNAL);
        assert_int_equal(client_peer_send_tag(&c, i), MCPG_OK);
        assert_true(seen_wait(&c.seen, &c.seen.messages, i + 1));
    }
    struct pollfd p = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1); /* the one with GET is told off or hung up on, not kept */
    assert_int_equal(seen_get(&s.seen, &s.seen.opened), 1);
    assert_int_equal(seen_get(&s.seen, &s.seen.closed), 0);
    uint64_t start_us = mcpg__now().us;
    client_peer_destroy(&c);
    server_peer_stop(&s); /* half of the strangers are still connected */
    assert_true(mcpg__now().us - start_us < 5000000u);
    for (uint32_t i = 0; i < 16; i++) (void)close(fds[i]);
}

/* Another method of a gRPC client gets UNIMPLEMENTED, and no stream. */
static void test_other_method(void **state) {
    (void)state;
    server_peer_t s;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "127.0.0.1:0"), MCPG_OK);
    grpc_init();
    grpc_completion_queue *cq = grpc_completion_queue_create_for_next(NULL);
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(s.address, creds, NULL);
    grpc_channel_credentials_release(creds);
    grpc_call *call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, cq,
                                               grpc_slice_from_static_string("/other/Method"), NULL,
                                               gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    grpc_metadata_array initial, trailing;
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    grpc_status_code status = GRPC_STATUS_OK;
    grpc_slice details = grpc_empty_slice();
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY;
    ops[1].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[1].data.recv_status_on_client.trailing_metadata = &trailing;
    ops[1].data.recv_status_on_client.status = &status;
    ops[1].data.recv_status_on_client.status_details = &details;
    ops[2].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[2].data.recv_initial_metadata.recv_initial_metadata = &initial;
    assert_int_equal(grpc_call_start_batch(call, ops, 3, &status, NULL), GRPC_CALL_OK);
    gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(10, GPR_TIMESPAN));
    assert_int_equal(grpc_completion_queue_next(cq, until, NULL).type, GRPC_OP_COMPLETE);
    assert_int_equal(status, GRPC_STATUS_UNIMPLEMENTED);
    grpc_slice_unref(details);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_call_unref(call);
    grpc_channel_destroy(channel);
    grpc_completion_queue_shutdown(cq);
    while (grpc_completion_queue_next(cq, until, NULL).type == GRPC_OP_COMPLETE) continue;
    grpc_completion_queue_destroy(cq);
    grpc_shutdown();
    assert_int_equal(seen_get(&s.seen, &s.seen.opened), 0);
    server_peer_stop(&s);
}

/* Something accepts the connection and never says a word: the client stays unconnected and can be told to give up at
 * once. */
static void test_mute_server(void **state) {
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    char address[32];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
    client_peer_t c;
    assert_int_equal(client_peer_create(&c, mcpg__rpc_grpc(), address), MCPG_OK);
    assert_int_equal(mcpg__rpc_grpc()->client_connect(c.client), MCPG_OK);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1); /* it dialled */
    uint64_t start_us = mcpg__now().us;
    mcpg__rpc_grpc()->client_disconnect(c.client);
    assert_true(seen_wait(&c.seen, &c.seen.closed, 1));
    assert_true(mcpg__now().us - start_us < 1000000u);
    assert_int_equal(c.seen.opened, 0);
    client_peer_destroy(&c);
    (void)close(fd);
}

static void test_unix_path(void **state) {
    (void)state;
    char where[128], lock[136];
    (void)snprintf(where, sizeof where, "unix:/tmp/mcpg-test-rpc-path-%ld.sock", (long)getpid());
    (void)snprintf(lock, sizeof lock, "%s.lock", where + 5);
    /* left behind by a process that was killed: socket file and lock file, nobody holds either */
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    memcpy(at.sun_path, where + 5, strlen(where + 5) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    (void)close(fd);
    fd = open(lock, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    server_peer_t first, second;
    assert_int_equal(server_peer_start(&first, mcpg__rpc_grpc(), where), MCPG_OK);
    struct stat st;
    assert_int_equal(stat(where + 5, &st), 0);
    assert_int_equal(st.st_mode & 077, 0); /* other users cannot connect */
    assert_int_equal(server_peer_start(&second, mcpg__rpc_grpc(), where), MCPG_SYSTEM);
    assert_non_null(strstr(second.error, "another coordinator"));
    server_peer_stop(&first);
    assert_int_equal(stat(where + 5, &st), -1);
    assert_int_equal(stat(lock, &st), -1);
}

/* ---- a client in another process ---- */

/* In the environment of children only. */
static mcpg_credentials_t *inherited(void) {
    mcpg_credentials_text_t text = {getenv("TEST_CA"), getenv("TEST_CERT"), getenv("TEST_KEY"), NULL};
    mcpg_credentials_t *c = NULL;
    return text.ca != NULL && mcpg__credentials_new(&text, &c, NULL, 0) == MCPG_OK ? c : NULL;
}
static void bequeath(const mcpg_credentials_t *c) {
    (void)setenv("TEST_CA", mcpg__credentials_ca(c), 1);
    (void)setenv("TEST_CERT", mcpg__credentials_cert(c), 1);
    (void)setenv("TEST_KEY", mcpg__credentials_key(c)->bytes, 1);
}

static int child_main(const char *address) {
    client_peer_t c;
    mcpg_credentials_t *as = inherited();
    if (client_peer_create_as(&c, mcpg__rpc_grpc(), address, as) != MCPG_OK || !client_peer_connect(&c)) return 1;
    for (uint32_t i = 0; i < 10; i++)
        if (client_peer_send_tag(&c, i) != MCPG_OK) return 1;
    (void)pause();
    return 0;
}

static pid_t start_child(const char *address) {
    pid_t pid = 0;
    char *argv[] = {(char *)(uintptr_t) "test_rpc_grpc", (char *)(uintptr_t) "--client", (char *)(uintptr_t)address,
                    NULL};
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    return pid;
}

static void test_killed_client(void **state) {
    (void)state;
    server_peer_t s;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "127.0.0.1:0"), MCPG_OK);
    pid_t pid = start_child(s.address);
    assert_true(seen_wait(&s.seen, &s.seen.messages, 10));
    uint64_t start_us = mcpg__now().us;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_true(seen_wait(&s.seen, &s.seen.closed, 1));
    print_message("server saw the killed client after %llu us\n", (unsigned long long)(mcpg__now().us - start_us));
    assert_true(mcpg__now().us - start_us < 2000000u);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(s.seen.opened, 1);
    server_peer_stop(&s);
}

/* Stopped, not dead: its socket stays open, sends pile up, then the stream is given up; stop does not wait for it. */
static void frozen_client(const char *bind, mcpg_credentials_t *server_as) {
    static uint8_t block[65536];
    server_peer_t s;
    assert_int_equal(server_peer_start_as(&s, mcpg__rpc_grpc(), bind, server_as), MCPG_OK);
    pid_t pid = start_child(s.address);
    assert_true(seen_wait(&s.seen, &s.seen.messages, 10));
    assert_int_equal(kill(pid, SIGSTOP), 0);
    mcpg_status_t status = MCPG_OK;
    for (uint32_t i = 0; i < 4000 && status == MCPG_OK; i++)
        status = mcpg__rpc_grpc()->server_send(s.server, s.seen.conns[0], block, sizeof block);
    assert_int_equal(status, MCPG_BUSY);
    uint64_t start_us = mcpg__now().us;
    assert_true(seen_wait(&s.seen, &s.seen.closed, 1));
    uint64_t closed_us = mcpg__now().us - start_us;
    server_peer_stop(&s);
    uint64_t stopped_us = mcpg__now().us - start_us;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    print_message("frozen client: closed after %llu us, stopped after %llu us\n", (unsigned long long)closed_us,
                  (unsigned long long)stopped_us);
    assert_true(stopped_us < 2500000u);
}
static void test_frozen_client(void **state) {
    (void)state;
    char path[128];
    frozen_client("127.0.0.1:0", NULL);
    (void)snprintf(path, sizeof path, "unix:/tmp/mcpg-test-rpc-frozen-%ld.sock", (long)getpid());
    frozen_client(path, NULL);
    mcpg_credentials_t *server = NULL, *rank = NULL;
    assert_int_equal(mcpg__cert_make_job("test", &server, &rank), MCPG_OK);
    bequeath(rank);
    frozen_client("127.0.0.1:0", server);
    (void)unsetenv("TEST_CA");
    mcpg__credentials_unref(server);
    mcpg__credentials_unref(rank);
}

/* Many connections come and go: nothing of them stays in the server. */
static void test_connections_are_given_back(void **state) {
    (void)state;
    server_peer_t s;
    client_peer_t c;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "127.0.0.1:0"), MCPG_OK);
    assert_int_equal(client_peer_create(&c, mcpg__rpc_grpc(), s.address), MCPG_OK);
    int before = 0, after = 0;
    for (uint32_t round = 0; round < 60; round++) {
        assert_true(client_peer_connect(&c));
        c.rpc->client_disconnect(c.client);
        assert_true(seen_wait(&c.seen, &c.seen.closed, round + 1));
        (void)close(dial(s.address));
        int fd = dup(0);
        assert_true(fd >= 0);
        (void)close(fd);
        if (round == 9) before = fd;
        after = fd; /* lowest free descriptor */
    }
    assert_true(after <= before + 10); /* the last few may still be on their way out */
    client_peer_destroy(&c);
    server_peer_stop(&s);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--client") == 0) return child_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bind_policy),
        cmocka_unit_test(test_client_address),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_other_method),
        cmocka_unit_test(test_mute_server),
        cmocka_unit_test(test_unix_path),
        cmocka_unit_test(test_killed_client),
        cmocka_unit_test(test_frozen_client),
        cmocka_unit_test(test_connections_are_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
