/* test_rpc_auth.c: who gets in and who does not, over real handshakes on loopback: the job's own CA, certificates of
 * others, expired ones, one rank's for another's, plaintext against TLS both ways, half-open handshakes, tokens, and
 * that no secret is ever printed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/codec.h"
#include "coordinator/coord_host.h"
#include "common/timers.h"
#include "rpc_peers.h"
#include "rpc/rpc_cert.h"
#include "rpc/rpc_probe.h"

#define DAY_S 86400
#define TOKEN "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define OTHER "00112233445566778899aabbccddeeff00112233445566778899aabbccddee00"

/* One job's CA and what is signed with it. */
typedef struct {
    mcpg_ca_t *ca;
    mcpg_credentials_t *server, *any, *rank3, *expired, *nobody, *early;
} pki_t;
static pki_t P;
static mcpg_credentials_t *stranger_server, *stranger; /* another job's */

static mcpg_credentials_t *credentials(const char *ca, const char *cert, const char *key, const char *token) {
    mcpg_credentials_text_t text = {ca, cert, key, token};
    mcpg_credentials_t *c = NULL;
    char error[256] = "";
    if (mcpg__credentials_new(&text, &c, error, sizeof error) != MCPG_OK) fail_msg("%s", error);
    return c;
}

static mcpg_credentials_t *issue(const mcpg_cert_spec_t *spec, const char *token) {
    mcpg_cert_t cert;
    assert_int_equal(mcpg__ca_issue(P.ca, spec, &cert), MCPG_OK);
    mcpg_credentials_t *c = credentials(mcpg__ca_cert(P.ca), cert.cert, cert.key.bytes, token);
    mcpg__cert_fini(&cert);
    return c;
}

static int make_pki(void **state) {
    (void)state;
    assert_int_equal(mcpg__ca_new("job-a", -DAY_S, 10 * DAY_S, &P.ca), MCPG_OK);
    mcpg_cert_spec_t spec = {.job = "job-a", .is_coordinator = true, .from_s = -DAY_S, .until_s = DAY_S};
    P.server = issue(&spec, NULL);
    spec = (mcpg_cert_spec_t){.job = "job-a", .is_rank = true, .any_rank = true, .from_s = -DAY_S, .until_s = DAY_S};
    P.any = issue(&spec, NULL);
    spec.any_rank = false;
    spec.rank = 3;
    P.rank3 = issue(&spec, NULL);
    spec.until_s = -60;
    P.expired = issue(&spec, NULL);
    spec.from_s = DAY_S / 2;
    spec.until_s = DAY_S;
    P.early = issue(&spec, NULL);
    spec = (mcpg_cert_spec_t){.job = "job-b", .is_rank = true, .any_rank = true, .from_s = -DAY_S, .until_s = DAY_S};
    P.nobody = issue(&spec, NULL); /* signed, but for another job */
    assert_int_equal(mcpg__cert_make_job("job-a", &stranger_server, &stranger), MCPG_OK); /* same name, another CA */
    return 0;
}

static int free_pki(void **state) {
    (void)state;
    mcpg__ca_free(P.ca);
    mcpg_credentials_t *all[] = {P.server, P.any, P.rank3, P.expired, P.nobody, P.early, stranger_server, stranger};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mcpg__credentials_unref(all[i]);
    return 0;
}

static void server_start(server_peer_t *s, const char *bind, mcpg_credentials_t *c) {
    if (server_peer_start_as(s, mcpg__rpc_grpc(), bind, c) != MCPG_OK) fail_msg("%s", s->error);
    seen_set(&s->seen, &s->seen.echo, true);
}

static void pause_ms(long ms) {
    struct timespec at = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&at, NULL);
}

/* Goes in, is heard, goes out. */
static void expect_welcome(server_peer_t *s, const char *address, mcpg_credentials_t *as) {
    client_peer_t c;
    uint32_t before = seen_get(&s->seen, &s->seen.opened);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), address, as), MCPG_OK);
    assert_true(client_peer_connect(&c));
    assert_int_equal(client_peer_send_tag(&c, 1), MCPG_OK);
    assert_true(seen_wait(&c.seen, &c.seen.messages, 1));
    assert_int_equal(seen_get(&s->seen, &s->seen.opened), before + 1);
    client_peer_destroy(&c);
}

/* Dials for a second, during which a welcome guest is in ten times over; the probe must say why. */
static void expect_shut_out(server_peer_t *s, const char *address, mcpg_credentials_t *as, const char *must_say) {
    client_peer_t c;
    char why[256];
    uint32_t before = seen_get(&s->seen, &s->seen.opened);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), address, as), MCPG_OK);
    assert_int_equal(c.rpc->client_connect(c.client), MCPG_OK);
    mcpg__rpc_explain(address, as, why, sizeof why);
    if (strstr(why, must_say) == NULL) fail_msg("'%s' does not say '%s'", why, must_say);
    pause_ms(600);
    assert_int_equal(seen_get(&c.seen, &c.seen.opened), 0);
    assert_int_equal(seen_get(&s->seen, &s->seen.opened), before);
    client_peer_destroy(&c);
}

/* ---- the job's own ---- */

static void test_job_ca(void **state) {
    (void)state;
    mcpg_credentials_t *server = NULL, *rank = NULL, *server2 = NULL, *rank2 = NULL;
    uint64_t start_us = mcpg__now().us;
    assert_int_equal(mcpg__cert_make_job("job-x", &server, &rank), MCPG_OK);
    print_message("a job's CA and both certificates: %llu us\n", (unsigned long long)(mcpg__now().us - start_us));
    assert_int_equal(mcpg__cert_make_job("job-x", &server2, &rank2), MCPG_OK);
    assert_string_not_equal(mcpg__credentials_ca(server), mcpg__credentials_ca(server2));
    assert_string_not_equal(mcpg__credentials_key(rank)->bytes, mcpg__credentials_key(rank2)->bytes);
    assert_string_not_equal(mcpg__credentials_key(rank)->bytes, mcpg__credentials_key(server)->bytes);
    server_peer_t s;
    server_start(&s, "127.0.0.1:0", server);
    assert_int_equal(strncmp(s.address, "tls:127.0.0.1:", 14), 0);
    char error[256] = "";
    int64_t now_s = (int64_t)time(NULL);
    assert_int_equal(mcpg__cert_check(server, true, now_s, error, sizeof error), MCPG_OK);
    assert_int_equal(mcpg__cert_check(rank, false, now_s, error, sizeof error), MCPG_OK);
    assert_int_equal(mcpg__cert_check(rank, false, now_s - 3600, error, sizeof error), MCPG_OK); /* clocks differ */
    expect_welcome(&s, s.address, rank);
    char why[256] = "";
    for (uint32_t r = 0; r < MCPG_MAX_RANKS; r += 341) {
        client_peer_t c;
        uint32_t n = seen_get(&s.seen, &s.seen.opened);
        assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), s.address, rank), MCPG_OK);
        assert_true(client_peer_connect(&c));
        assert_true(seen_wait(&s.seen, &s.seen.opened, n + 1));
        assert_int_equal(s.rpc->server_may_speak(s.server, s.seen.conns[n], r, why, sizeof why), MCPG_OK);
        client_peer_destroy(&c);
    }
    expect_shut_out(&s, s.address, rank2, "its certificate is not accepted");
    server_peer_stop(&s);
    mcpg__credentials_unref(server);
    mcpg__credentials_unref(rank);
    mcpg__credentials_unref(server2);
    mcpg__credentials_unref(rank2);
}

static void test_reconnect(void **state) {
    (void)state;
    server_peer_t s;
    client_peer_t c;
    char address[160];
    server_start(&s, "127.0.0.1:0", P.server);
    memcpy(address, s.address, sizeof address);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), address, P.any), MCPG_OK);
    assert_true(client_peer_connect(&c));
    for (uint32_t i = 1; i <= 3; i++) {
        server_peer_stop(&s);
        assert_true(seen_wait(&c.seen, &c.seen.closed, i));
        server_start(&s, address, P.server);
        assert_true(client_peer_connect(&c));
        assert_int_equal(client_peer_send_tag(&c, i), MCPG_OK);
        assert_true(seen_wait(&c.seen, &c.seen.messages, i));
    }
    client_peer_destroy(&c);
    server_peer_stop(&s);
}

/* ---- who stays out ---- */

static void test_strange_certificates(void **state) {
    (void)state;
    server_peer_t s, t;
    server_start(&s, "127.0.0.1:0", P.server);
    expect_welcome(&s, s.address, P.any);
    expect_shut_out(&s, s.address, stranger, "MOONCAKE_TLS_CA must be the CA that signed it");
    /* believes the server, but shows a certificate of the other CA */
    mcpg_credentials_t *mixed = credentials(mcpg__ca_cert(P.ca), mcpg__credentials_cert(stranger),
                                            mcpg__credentials_key(stranger)->bytes, NULL);
    expect_shut_out(&s, s.address, mixed, "does not accept this rank's certificate");
    mcpg__credentials_unref(mixed);
    expect_shut_out(&s, s.address, P.expired, "expired on");
    expect_shut_out(&s, s.address, P.early, "is not valid before");
    /* no certificate, only a token */
    mcpg_credentials_t *bare = credentials(mcpg__ca_cert(P.ca), NULL, NULL, TOKEN);
    expect_shut_out(&s, s.address, bare, "it asks for a certificate");
    mcpg__credentials_unref(bare);
    /* a coordinator's certificate is no rank's, and a rank's is no coordinator's */
    expect_shut_out(&s, s.address, P.server, "hung up");
    assert_int_equal(server_peer_start_as(&t, mcpg__rpc_grpc(), "127.0.0.1:0", P.any), MCPG_OK);
    expect_shut_out(&t, t.address, P.any, "its certificate is not accepted");
    server_peer_stop(&t);
    assert_int_equal(seen_get(&s.seen, &s.seen.turned_away), 0); /* all of them ended in the handshake */
    expect_welcome(&s, s.address, P.rank3);
    server_peer_stop(&s);
}

static void test_rank_of_certificate(void **state) {
    (void)state;
    server_peer_t s;
    client_peer_t c;
    char why[256] = "";
    server_start(&s, "127.0.0.1:0", P.server);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), s.address, P.rank3), MCPG_OK);
    assert_true(client_peer_connect(&c));
    assert_true(seen_wait(&s.seen, &s.seen.opened, 1));
    uint64_t conn = s.seen.conns[0];
    assert_int_equal(s.rpc->server_may_speak(s.server, conn, 3, why, sizeof why), MCPG_OK);
    assert_int_equal(s.rpc->server_may_speak(s.server, conn, 5, why, sizeof why), MCPG_NOT_PERMITTED);
    assert_non_null(strstr(why, "is for rank 3, not for rank 5"));
    assert_non_null(strstr(why, "MOONCAKE_TLS_CERT"));
    assert_int_equal(s.rpc->server_may_speak(s.server, conn + 1, 3, why, sizeof why), MCPG_NOT_FOUND);
    client_peer_destroy(&c);
    server_peer_stop(&s);
}

/* Signed by the right CA, for another job: told so in words, and never opened. */
static void test_other_job(void **state) {
    (void)state;
    server_peer_t s;
    client_peer_t c;
    server_start(&s, "127.0.0.1:0", P.server);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), s.address, P.nobody), MCPG_OK);
    assert_true(client_peer_connect(&c));
    assert_true(seen_wait(&c.seen, &c.seen.messages, 1));
    assert_non_null(strstr(c.seen.text, "names no rank of job 'job-a'"));
    assert_true(seen_wait(&c.seen, &c.seen.closed, 1));
    assert_int_equal(seen_get(&s.seen, &s.seen.opened), 0);
    assert_int_equal(seen_get(&s.seen, &s.seen.turned_away), 1);
    client_peer_destroy(&c);
    server_peer_stop(&s);
    assert_int_equal(s.seen.closed, 0);
}

/* ---- through the coordinator's host: in the protocol's words ---- */

typedef struct {
    client_peer_t peer;
    uint8_t arena[1 << 16];
    uint32_t refused, welcome;
    int32_t status;
    char text[MCPG_TEXT_CAP];
} agent_t;

static bool agent_message(void *user, const uint8_t *buf, size_t len) {
    agent_t *a = user;
    mcpg_arena_t arena = {.base = a->arena, .cap = sizeof a->arena};
    mcpg_down_msg_t m;
    (void)pthread_mutex_lock(&a->peer.seen.lock);
    if (mcpg__down_unpack(buf, len, &arena, &m) == MCPG_OK && m.kind == MCPG_DOWN_REFUSED) {
        a->refused++;
        a->status = m.u.refused.status;
        memcpy(a->text, m.u.refused.text.ptr, m.u.refused.text.len);
    }
    if (m.kind == MCPG_DOWN_WELCOME) a->welcome++;
    (void)pthread_cond_broadcast(&a->peer.seen.changed);
    (void)pthread_mutex_unlock(&a->peer.seen.lock);
    return true;
}

static void agent_attach(agent_t *a, const char *address, mcpg_credentials_t *as, uint32_t rank) {
    memset(a, 0, sizeof *a);
    seen_init(&a->peer.seen);
    a->peer.rpc = mcpg__rpc_grpc();
    mcpg_rpc_client_events_t events = {a, client_peer_connected, agent_message, client_peer_closed};
    assert_int_equal(a->peer.rpc->client_create(address, as, &events, &a->peer.client, NULL, 0), MCPG_OK);
    assert_true(client_peer_connect(&a->peer));
    mcpg_up_msg_t m = {.kind = MCPG_UP_ATTACH};
    m.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                    .rank = {rank},
                                    .session = {77 + rank},
                                    .host_id = 7,
                                    .pid = 4000 + (int64_t)rank,
                                    .endpoint = {(const uint8_t *)"endpoint", 8}};
    uint8_t buf[4096];
    size_t len = 0;
    assert_int_equal(mcpg__up_pack(&m, buf, sizeof buf, &len), MCPG_OK);
    mcpg_status_t sent = a->peer.rpc->client_send(a->peer.client, buf, len);
    assert_true(sent == MCPG_OK || sent == MCPG_NOT_FOUND); /* it may have been turned away by now */
}

static void test_refused_in_words(void **state) {
    (void)state;
    static agent_t a, b, c;
    mcpg_timers_t none = {0}, timers;
    char error[256] = "", address[160];
    assert_int_equal(mcpg__timers_resolve(&none, &timers, error, sizeof error), MCPG_OK);
    mcpg_coord_host_config_t config = {
        .rpc = mcpg__rpc_grpc(), .bind = "tls:127.0.0.1:0", .credentials = P.server, .term = 1, .timers = timers};
    mcpg_coord_host_t *host = NULL;
    if (mcpg__coord_host_start(&config, &host, error, sizeof error) != MCPG_OK) fail_msg("%s", error);
    (void)mcpg__coord_host_address(host, address, sizeof address);
    agent_attach(&a, address, P.rank3, 3);
    assert_true(seen_wait(&a.peer.seen, &a.welcome, 1));
    agent_attach(&b, address, P.rank3, 5);
    assert_true(seen_wait(&b.peer.seen, &b.refused, 1));
    assert_int_equal(b.status, MCPG_NOT_PERMITTED);
    assert_non_null(strstr(b.text, "not for rank 5"));
    assert_true(seen_wait(&b.peer.seen, &b.peer.seen.closed, 1));
    assert_int_equal(b.welcome, 0);
    agent_attach(&c, address, P.nobody, 0);
    assert_true(seen_wait(&c.peer.seen, &c.refused, 1));
    assert_int_equal(c.status, MCPG_NOT_PERMITTED);
    assert_non_null(strstr(c.text, "names no rank"));
    assert_int_equal(seen_get(&a.peer.seen, &a.peer.seen.closed), 0);
    client_peer_destroy(&a.peer);
    client_peer_destroy(&b.peer);
    client_peer_destroy(&c.peer);
    mcpg__coord_host_stop(host);
}

/* ---- plaintext and TLS ---- */

static void test_plaintext_against_tls(void **state) {
    (void)state;
    server_peer_t tls, plain;
    char address[200];
    server_start(&tls, "127.0.0.1:0", P.server);
    server_start(&plain, "127.0.0.1:0", NULL);
    assert_int_equal(strncmp(plain.address, "127.0.0.1:", 10), 0);
    expect_shut_out(&tls, tls.address + strlen("tls:"), NULL, "hangs up on plaintext");
    (void)snprintf(address, sizeof address, "tls:%s", plain.address);
    expect_shut_out(&plain, address, P.any, "does not speak TLS");
    expect_shut_out(&plain, plain.address, P.any, "does not speak TLS"); /* a CA alone means TLS: no way down */
    expect_welcome(&tls, tls.address, P.any);
    expect_welcome(&plain, plain.address, NULL);
    server_peer_stop(&tls);
    server_peer_stop(&plain);
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

/* Microseconds until the server hangs up on fd. */
static uint64_t hung_up_after(int fd, int limit_ms) {
    uint64_t start_us = mcpg__now().us;
    char byte[256];
    for (;;) { /* bounded: by limit_ms */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int left_ms = limit_ms - (int)((mcpg__now().us - start_us) / 1000u);
        if (left_ms <= 0 || poll(&p, 1, left_ms) != 1) fail_msg("still open after %d ms", limit_ms);
        if (recv(fd, byte, sizeof byte, 0) <= 0) return mcpg__now().us - start_us;
    }
}

static void test_half_open(void **state) {
    (void)state;
    static const uint8_t hello[] = {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03};
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    server_peer_t s;
    server_start(&s, "127.0.0.1:0", P.server);
    int web = dial(s.address), silent = dial(s.address), half = dial(s.address), noise = dial(s.address);
    assert_int_equal(send(half, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    uint8_t bytes[512] = {0x16};
    uint32_t n = 1;
    for (size_t i = 1; i < sizeof bytes; i++) bytes[i] = (uint8_t)((n = n * 1664525u + 1013904223u) >> 24);
    assert_int_equal(send(noise, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_int_equal(send(web, get, sizeof get - 1, MSG_NOSIGNAL), sizeof get - 1);
    assert_true(hung_up_after(web, 2000) < 1000000u);
    assert_true(hung_up_after(noise, 7000) < 6000000u);
    expect_welcome(&s, s.address, P.any);
    (void)hung_up_after(silent, 7000);
    (void)hung_up_after(half, 7000);
    (void)close(web), (void)close(silent), (void)close(half), (void)close(noise);
    /* stop waits for none of them */
    silent = dial(s.address);
    half = dial(s.address);
    assert_int_equal(send(half, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    expect_welcome(&s, s.address, P.any);
    uint64_t start_us = mcpg__now().us;
    server_peer_stop(&s);
    assert_true(mcpg__now().us - start_us < 2500000u);
    (void)close(silent), (void)close(half);
}

static bool shakes_hands(const char *address, int version) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(ctx, 0);
    assert_int_equal(SSL_CTX_set_min_proto_version(ctx, version), 1);
    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, version), 1);
    BIO *cert = BIO_new_mem_buf(mcpg__credentials_cert(P.any), -1);
    BIO *key = BIO_new_mem_buf(mcpg__credentials_key(P.any)->bytes, -1);
    X509 *x = PEM_read_bio_X509(cert, NULL, NULL, NULL);
    EVP_PKEY *k = PEM_read_bio_PrivateKey(key, NULL, NULL, NULL);
    assert_int_equal(SSL_CTX_use_certificate(ctx, x), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(ctx, k), 1);
    assert_int_equal(SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)"\2h2", 3), 0);
    SSL *ssl = SSL_new(ctx);
    int fd = dial(address);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    bool ok = SSL_connect(ssl) == 1;
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    X509_free(x);
    EVP_PKEY_free(k);
    BIO_free(cert);
    BIO_free(key);
    (void)close(fd);
    return ok;
}

static void test_tls_versions(void **state) {
    (void)state;
    server_peer_t s;
    server_start(&s, "127.0.0.1:0", P.server);
    assert_false(shakes_hands(s.address, TLS1_VERSION));
    assert_false(shakes_hands(s.address, TLS1_1_VERSION));
    assert_true(shakes_hands(s.address, TLS1_2_VERSION));
    assert_true(shakes_hands(s.address, TLS1_3_VERSION));
    server_peer_stop(&s);
}

/* Many strangers at once: the limit holds, nothing of them stays, and a rank gets in afterwards. */
static void test_many_strangers(void **state) {
    (void)state;
    enum { STRANGERS = 200 };
    int fds[STRANGERS];
    server_peer_t s;
    server_start(&s, "127.0.0.1:0", P.server);
    expect_welcome(&s, s.address, P.any);
    int before = dup(0);
    assert_true(before >= 0);
    (void)close(before);
    for (uint32_t i = 0; i < STRANGERS; i++) fds[i] = dial(s.address);
    expect_welcome(&s, s.address, P.any);
    for (uint32_t i = 0; i < STRANGERS; i++) (void)close(fds[i]);
    int after = 0;
    for (uint32_t i = 0; i < 100; i++) { /* bounded: 5 s for the server to see all of them go */
        after = dup(0);
        (void)close(after);
        if (after <= before + 4) break;
        pause_ms(50);
    }
    assert_true(after <= before + 4);
    server_peer_stop(&s);
}

/* ---- tokens ---- */

static void expect_turned_away(server_peer_t *s, const char *address, mcpg_credentials_t *as) {
    client_peer_t c;
    uint32_t before = seen_get(&s->seen, &s->seen.turned_away), opened = seen_get(&s->seen, &s->seen.opened);
    assert_int_equal(client_peer_create_as(&c, mcpg__rpc_grpc(), address, as), MCPG_OK);
    assert_true(client_peer_connect(&c));
    assert_true(seen_wait(&c.seen, &c.seen.messages, 1));
    assert_non_null(strstr(c.seen.text, "token is missing or another one"));
    assert_true(seen_wait(&c.seen, &c.seen.closed, 1));
    assert_int_equal(seen_get(&s->seen, &s->seen.turned_away), before + 1);
    assert_int_equal(seen_get(&s->seen, &s->seen.opened), opened);
    client_peer_destroy(&c);
}

static void test_tokens(void **state) {
    (void)state;
    const char *ca = mcpg__ca_cert(P.ca);
    char unix_bind[96];
    (void)snprintf(unix_bind, sizeof unix_bind, "unix:/tmp/mcpg-test-auth-%ld.sock", (long)getpid());
    mcpg_credentials_t *server =
        credentials(NULL, mcpg__credentials_cert(P.server), mcpg__credentials_key(P.server)->bytes, TOKEN);
    mcpg_credentials_t *right = credentials(ca, NULL, NULL, " " TOKEN "\n"),
                       *wrong = credentials(ca, NULL, NULL, OTHER);
    mcpg_credentials_t *only = credentials(NULL, NULL, NULL, "\t" TOKEN), *other = credentials(NULL, NULL, NULL, OTHER);
    server_peer_t s;
    server_start(&s, "127.0.0.1:0", server); /* TLS and token */
    assert_int_equal(strncmp(s.address, "tls:", 4), 0);
    expect_welcome(&s, s.address, right);
    expect_turned_away(&s, s.address, wrong);
    expect_turned_away(&s, s.address, P.any); /* a certificate is not asked for, the token is */
    server_peer_stop(&s);
    const char *binds[] = {"127.0.0.1:0", unix_bind};
    for (size_t i = 0; i < 2; i++) { /* plaintext, on this machine only */
        server_start(&s, binds[i], only);
        expect_welcome(&s, s.address, only);
        expect_turned_away(&s, s.address, other);
        expect_turned_away(&s, s.address, NULL);
        server_peer_stop(&s);
    }
    mcpg_credentials_t *both =
        credentials(ca, mcpg__credentials_cert(P.server), mcpg__credentials_key(P.server)->bytes, TOKEN);
    mcpg_credentials_t *full =
        credentials(ca, mcpg__credentials_cert(P.any), mcpg__credentials_key(P.any)->bytes, TOKEN);
    server_start(&s, "127.0.0.1:0", both); /* certificates, and the token besides */
    expect_welcome(&s, s.address, full);
    expect_turned_away(&s, s.address, P.any);
    expect_shut_out(&s, s.address, right, "it asks for a certificate");
    server_peer_stop(&s);
    mcpg_credentials_t *all[] = {server, right, wrong, only, other, both, full};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mcpg__credentials_unref(all[i]);
}

static void test_token_compare(void **state) {
    (void)state;
    mcpg_credentials_t *c =
        credentials(NULL, NULL, NULL, "AABBCCDDEEFF00112233445566778899AABBCCDDEEFF00112233445566778899");
    const mcpg_secret_t *t = mcpg__credentials_token(c);
    uint8_t given[80];
    memset(given, 0, sizeof given);
    memcpy(given, t->bytes, 64);
    assert_int_equal(given[0], 'a');
    assert_true(mcpg__token_matches(t, given, 64));
    assert_false(mcpg__token_matches(t, given, 63));
    assert_false(mcpg__token_matches(t, given, 65));
    assert_false(mcpg__token_matches(t, given, 0));
    for (size_t i = 0; i < 64; i++) {
        given[i] ^= 1;
        assert_false(mcpg__token_matches(t, given, 64));
        given[i] ^= 1;
    }
    /* The same 32 characters twice must not pass for 64 of them. */
    mcpg_credentials_t *twice =
        credentials(NULL, NULL, NULL, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff");
    assert_false(
        mcpg__token_matches(mcpg__credentials_token(twice), (const uint8_t *)"00112233445566778899aabbccddeeff", 32));
    mcpg__credentials_unref(twice);
    mcpg__credentials_unref(c);
    static const char *const bad[] = {"", "abc", TOKEN "0",
                                      "x0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
    for (size_t i = 1; i < 4; i++) {
        mcpg_credentials_text_t text = {.token = bad[i]};
        mcpg_credentials_t *none = NULL;
        char error[256] = "";
        assert_int_equal(mcpg__credentials_new(&text, &none, error, sizeof error), MCPG_INVALID_ARGUMENT);
        assert_non_null(strstr(error, "openssl rand -hex 32"));
        assert_null(strstr(error, bad[i]));
    }
}

/* ---- the policy ---- */

static void expect_policy(const char *address, const mcpg_credentials_t *c, bool for_bind, const char *must_say) {
    mcpg_rpc_address_t a;
    char error[320] = "";
    bool use_tls = false;
    assert_int_equal(mcpg__rpc_address_parse(address, for_bind, &a, error, sizeof error), MCPG_OK);
    mcpg_status_t status = mcpg__rpc_policy(&a, c, for_bind, &use_tls, error, sizeof error);
    if (must_say == NULL) {
        assert_int_equal(status, MCPG_OK);
        assert_true(use_tls);
        return;
    }
    assert_int_equal(status, MCPG_INVALID_ARGUMENT);
    assert_false(use_tls);
    if (strstr(error, must_say) == NULL || strstr(error, address) == NULL || strstr(error, "MOONCAKE_TLS_CERT") == NULL)
        fail_msg("'%s' does not say '%s'", error, must_say);
}

static void test_policy(void **state) {
    (void)state;
    const char *ca = mcpg__ca_cert(P.ca), *cert = mcpg__credentials_cert(P.server);
    const char *key = mcpg__credentials_key(P.server)->bytes;
    mcpg_credentials_t *token = credentials(NULL, NULL, NULL, TOKEN), *ca_only = credentials(ca, NULL, NULL, NULL);
    mcpg_credentials_t *no_proof = credentials(NULL, cert, key, NULL),
                       *with_token = credentials(NULL, cert, key, TOKEN);
    mcpg_credentials_t *ca_token = credentials(ca, NULL, NULL, TOKEN);
    static const char *const wide[] = {"10.0.0.1:5000", "0.0.0.0:5000",   "[fe80::1]:5000",
                                       "[::]:5000",     "128.0.0.1:5000", "tls:10.0.0.1:5000"};
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        expect_policy(wide[i], NULL, true, "is not loopback, so it needs TLS");
        expect_policy(wide[i], token, true, "bind 127.0.0.1:PORT"); /* a token in plaintext would be read on the way */
        expect_policy(wide[i], ca_only, true, "unix:/path");
        expect_policy(wide[i], no_proof, true, "MOONCAKE_TOKEN_FILE"); /* nobody would be asked for anything */
        expect_policy(wide[i], P.server, true, NULL);
        expect_policy(wide[i], with_token, true, NULL);
        expect_policy(wide[i], NULL, false, "is not loopback, so it needs TLS");
        expect_policy(wide[i], token, false, "MOONCAKE_TLS_CA"); /* the token would go to anybody */
        expect_policy(wide[i], ca_only, false, "tunnel");
        expect_policy(wide[i], P.any, false, NULL);
        expect_policy(wide[i], ca_token, false, NULL);
    }
    expect_policy("tls:127.0.0.1:5000", NULL, true, "asks for TLS");
    expect_policy("tls:127.0.0.1:5000", NULL, false, "asks for TLS");
    expect_policy("127.0.0.1:5000", P.server, true, NULL);
    expect_policy("127.0.0.1:5000", P.any, false, NULL);
    server_peer_t s;
    assert_int_equal(server_peer_start(&s, mcpg__rpc_grpc(), "0.0.0.0:0"), MCPG_INVALID_ARGUMENT);
    assert_int_equal(server_peer_start_as(&s, mcpg__rpc_grpc(), "tls:127.0.0.1:0", NULL), MCPG_INVALID_ARGUMENT);
    assert_int_equal(server_peer_start_as(&s, mcpg__rpc_grpc(), "192.0.2.1:0", P.server), MCPG_SYSTEM); /* not ours */
    assert_non_null(strstr(s.error, "cannot listen on 'tls:192.0.2.1:0'"));
    server_start(&s, "127.9.9.9:0", P.server);
    expect_welcome(&s, s.address, P.any);
    server_peer_stop(&s);
    mcpg_credentials_t *all[] = {token, ca_only, no_proof, with_token, ca_token};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mcpg__credentials_unref(all[i]);
}

/* ---- names and files ---- */

static bool grants(const char *uri, const char *job, mcpg_rpc_grant_t *g) {
    memset(g, 0, sizeof *g);
    return mcpg__grant_add(g, uri, strlen(uri), job);
}

static void test_names(void **state) {
    (void)state;
    mcpg_rpc_grant_t g;
    char text[64], few[8];
    assert_true(grants("mooncake-pg://a.b_c-1/rank/7", "", &g));
    assert_string_equal(g.job, "a.b_c-1");
    assert_true(mcpg__grant_has(&g, 7) && !mcpg__grant_has(&g, 0) && !mcpg__grant_has(&g, 70));
    assert_true(mcpg__grant_add(&g, "mooncake-pg://x/rank/0", 22, ""));
    assert_true(mcpg__grant_has(&g, 0));
    mcpg__grant_text(&g, text, sizeof text);
    assert_string_equal(text, "ranks 7, 0");
    mcpg__grant_text(&g, few, sizeof few);
    assert_string_equal(few, "ranks 7");
    assert_true(grants("mooncake-pg://a/rank/*", "a", &g));
    assert_true(mcpg__grant_has(&g, 1023));
    assert_true(grants("mooncake-pg://a/coordinator", "", &g));
    assert_false(mcpg__grant_has(&g, 0));
    mcpg__grant_text(&g, text, sizeof text);
    assert_string_equal(text, "no rank");
    static const char *const bad[] = {"mooncake-pg://a/rank/",
                                      "mooncake-pg://a/rank/07",
                                      "mooncake-pg://a/rank/-1",
                                      "mooncake-pg://a/rank/1024",
                                      "mooncake-pg://a/rank/1/",
                                      "mooncake-pg://a/rank/**",
                                      "mooncake-pg:///rank/1",
                                      "mooncake-pg://a b/rank/1",
                                      "mooncake-pg://a/rank/1 ",
                                      "http://a/rank/1",
                                      "mooncake-pg://a",
                                      "mooncake-pg://a/",
                                      "mooncake-pg://a/coordinators",
                                      "mooncake-pg://a/rank/99999999999",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (grants(bad[i], "", &g) || g.any_rank || g.count != 0) fail_msg("'%s' was taken", bad[i]);
    assert_false(grants("mooncake-pg://a/rank/1", "b", &g));
    assert_false(mcpg__grant_add(&g, "mooncake-pg://b/rank/1\0/rank/2", 30, "b")); /* a NUL ends nothing */
    char longest[128];
    (void)snprintf(longest, sizeof longest, "mooncake-pg://%064d/rank/1", 1);
    assert_true(grants(longest, "", &g));
    (void)snprintf(longest, sizeof longest, "mooncake-pg://%065d/rank/1", 1);
    assert_false(grants(longest, "", &g));
}

static void test_check(void **state) {
    (void)state;
    int64_t now_s = (int64_t)time(NULL);
    char error[320] = "";
    assert_int_equal(mcpg__cert_check(P.expired, false, now_s, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "expired on 20"));
    assert_int_equal(mcpg__cert_check(P.any, true, now_s, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, MCPG_RPC_SERVER_NAME));
    assert_int_equal(mcpg__cert_check(P.server, false, now_s, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "names no rank"));
    mcpg_credentials_t *c =
        credentials(mcpg__ca_cert(P.ca), mcpg__credentials_cert(P.any), mcpg__credentials_key(P.rank3)->bytes, NULL);
    assert_int_equal(mcpg__cert_check(c, false, now_s, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "does not belong"));
    mcpg__credentials_unref(c);
    c = credentials("rubbish", "rubbish", "rubbish", NULL);
    assert_int_equal(mcpg__cert_check(c, false, now_s, error, sizeof error), MCPG_INVALID_ARGUMENT);
    server_peer_t s;
    assert_int_equal(server_peer_start_as(&s, mcpg__rpc_grpc(), "127.0.0.1:0", c), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(s.error, "not PEM"));
    mcpg__credentials_unref(c);
    mcpg_credentials_text_t half = {.ca = "x", .cert = "y"}, nothing = {.ca = ""};
    assert_int_equal(mcpg__credentials_new(&half, &c, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "without its private key"));
    assert_int_equal(mcpg__credentials_new(&nothing, &c, error, sizeof error), MCPG_INVALID_ARGUMENT);
    mcpg_cert_spec_t spec = {.job = "a/b", .is_rank = true, .until_s = DAY_S};
    mcpg_cert_t cert;
    assert_int_equal(mcpg__ca_issue(P.ca, &spec, &cert), MCPG_INVALID_ARGUMENT);
    mcpg_ca_t *ca = NULL;
    assert_int_equal(mcpg__ca_new("a,URI:x", 0, DAY_S, &ca), MCPG_INVALID_ARGUMENT);
    /* kept in files and loaded again, it signs what the first one's servers accept */
    mcpg_secret_t key = {NULL, 0};
    assert_int_equal(mcpg__ca_key(P.ca, &key), MCPG_OK);
    assert_int_equal(mcpg__ca_load(mcpg__ca_cert(P.ca), mcpg__credentials_key(P.any)->bytes, &ca),
                     MCPG_INVALID_ARGUMENT);
    assert_int_equal(mcpg__ca_load(mcpg__ca_cert(P.ca), key.bytes, &ca), MCPG_OK);
    mcpg__secret_wipe(&key);
    spec = (mcpg_cert_spec_t){.job = "job-a", .is_rank = true, .rank = 9, .until_s = DAY_S};
    assert_int_equal(mcpg__ca_issue(ca, &spec, &cert), MCPG_OK);
    c = credentials(mcpg__ca_cert(ca), cert.cert, cert.key.bytes, NULL);
    mcpg_cert_info_t info;
    assert_int_equal(mcpg__cert_read(cert.cert, &info), MCPG_OK);
    assert_true(!info.is_coordinator && info.grant.count == 1 && info.grant.ranks[0] == 9);
    assert_true(info.not_after_s - now_s > DAY_S - 60 && info.not_after_s - now_s < DAY_S + 60);
    mcpg__cert_fini(&cert);
    server_start(&s, "127.0.0.1:0", P.server);
    expect_welcome(&s, s.address, c);
    server_peer_stop(&s);
    mcpg__credentials_unref(c);
    mcpg__ca_free(ca);
}

/* ---- nothing of it is printed ---- */

static int log_fd = -1, real_stderr = -1;

/* All of the above ran with MOONCAKE_LOG=debug and gRPC's log, into this file. */
static void test_no_secret_in_logs(void **state) {
    (void)state;
    static char text[4 << 20];
    assert_true(fflush(stderr) == 0);
    ssize_t len = pread(log_fd, text, sizeof text - 1, 0);
    assert_true(len > 0);
    text[len] = '\0';
    assert_non_null(strstr(text, "stream_refused"));
    assert_non_null(strstr(text, "grpc_error")); /* handshakes failed, and that was logged */
    assert_null(strstr(text, "PRIVATE KEY"));
    assert_null(strstr(text, TOKEN));
    assert_null(strstr(text, OTHER));
    const char *key = strchr(mcpg__credentials_key(P.any)->bytes, '\n');
    char line[33];
    memcpy(line, key + 1, 32);
    line[32] = '\0';
    assert_null(strstr(text, line));
}

int main(void) {
    char name[] = "/tmp/mcpg-test-auth-log-XXXXXX";
    log_fd = mkstemp(name);
    if (log_fd < 0) return 1;
    (void)setenv("MOONCAKE_LOG", "debug", 1);
    real_stderr = dup(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_ca),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_strange_certificates),
        cmocka_unit_test(test_rank_of_certificate),
        cmocka_unit_test(test_other_job),
        cmocka_unit_test(test_refused_in_words),
        cmocka_unit_test(test_plaintext_against_tls),
        cmocka_unit_test(test_half_open),
        cmocka_unit_test(test_tls_versions),
        cmocka_unit_test(test_many_strangers),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_token_compare),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_no_secret_in_logs),
    };
    if (dup2(log_fd, 2) != 2) return 1;
    int rc = cmocka_run_group_tests(tests, make_pki, free_pki);
    (void)dup2(real_stderr, 2);
    char text[4096];
    ssize_t n = 0;
    off_t at = 0;
    while (rc != 0 && (n = pread(log_fd, text, sizeof text, at)) > 0) { /* bounded: by the file */
        (void)fwrite(text, 1, (size_t)n, stderr);
        at += n;
    }
    (void)close(log_fd);
    (void)unlink(name); /* stays when the process dies: it says of what */
    return rc;
}
