/* test_rpc.c: one conformance suite for every RPC table: what agent and coordinator rely on, whichever transport
 * carries it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/codec.h"
#include "rpc_peers.h"
#include "rpc/rpc_cert.h"
#include "rpc/rpc_inproc.h"

typedef struct {
    const mcpg_rpc_ops_t *rpc;
    const char *bind;
    mcpg_credentials_t *server_as, *client_as;
} table_t;
static table_t grpc_tcp = {.bind = "127.0.0.1:0"}, grpc_tls = {.bind = "127.0.0.1:0"}, inproc = {.bind = "inproc:0"};
static char unix_bind[128];
static table_t grpc_unix = {.bind = unix_bind};

static mcpg_status_t server_start(server_peer_t *p, const table_t *table, const char *bind) {
    return server_peer_start_as(p, table->rpc, bind, table->server_as);
}
static mcpg_status_t client_create(client_peer_t *p, const table_t *table, const char *address) {
    return client_peer_create_as(p, table->rpc, address, table->client_as);
}

/* A server, a client and the stream between them. */
typedef struct {
    server_peer_t server;
    client_peer_t client;
    uint64_t conn;
} pair_t;

static void pair_start(pair_t *p, const table_t *table) {
    memset(p, 0, sizeof *p);
    assert_int_equal(server_start(&p->server, table, table->bind), MCPG_OK);
    assert_int_equal(client_create(&p->client, table, p->server.address), MCPG_OK);
    assert_true(client_peer_connect(&p->client));
    assert_true(seen_wait(&p->server.seen, &p->server.seen.opened, 1));
    p->conn = p->server.seen.conns[0];
    assert_int_not_equal(p->conn, 0);
}
static void pair_stop(pair_t *p) {
    uint64_t start_us = mcpg__now().us;
    client_peer_destroy(&p->client);
    server_peer_stop(&p->server);
    assert_true(mcpg__now().us - start_us < 5000000u); /* whatever was blocked before */
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_order_both_ways(void **state) {
    enum { COUNT = 10000, WINDOW = 1000 };
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_set(&p.server.seen, &p.server.seen.echo, true);
    seen_set(&p.server.seen, &p.server.seen.in_order, true);
    seen_set(&p.client.seen, &p.client.seen.in_order, true);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i >= WINDOW) assert_true(seen_wait(&p.client.seen, &p.client.seen.messages, i - WINDOW));
        assert_int_equal(client_peer_send_tag(&p.client, i), MCPG_OK);
    }
    assert_true(seen_wait(&p.client.seen, &p.client.seen.messages, COUNT));
    assert_int_equal(seen_get(&p.server.seen, &p.server.seen.messages), COUNT);
    assert_int_equal(seen_get(&p.server.seen, &p.server.seen.order_errors), 0);
    assert_int_equal(seen_get(&p.client.seen, &p.client.seen.order_errors), 0);
    pair_stop(&p);
}

static void test_round_trip(void **state) {
    enum { COUNT = 1000 };
    static uint64_t took_us[COUNT];
    const table_t *table = (const table_t *)*state;
    pair_t p;
    pair_start(&p, table);
    seen_set(&p.server.seen, &p.server.seen.echo, true);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t start_us = mcpg__now().us;
        assert_int_equal(client_peer_send_tag(&p.client, i), MCPG_OK);
        assert_true(seen_wait(&p.client.seen, &p.client.seen.messages, i + 1));
        took_us[i] = mcpg__now().us - start_us;
    }
    qsort(took_us, COUNT, sizeof took_us[0], by_value);
    print_message("%s %s round trip p50 %llu us, p99 %llu us\n", table->rpc->name, p.server.address,
                  (unsigned long long)took_us[COUNT / 2], (unsigned long long)took_us[COUNT * 99 / 100]);
    assert_true(took_us[COUNT / 2] <
                20000); /* a delayed send (40 ms and more) would show; slow machines and sanitizers do not */
    pair_stop(&p);
}

static void test_large_messages(void **state) {
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_set(&p.server.seen, &p.server.seen.echo, true);
    uint8_t *big = (uint8_t *)malloc(MCPG_MSG_CAP + 1u);
    assert_non_null(big);
    memset(big, 0x5a, MCPG_MSG_CAP + 1u);
    assert_int_equal(p.client.rpc->client_send(p.client.client, big, MCPG_MSG_CAP + 1u), MCPG_LIMIT);
    assert_int_equal(p.server.rpc->server_send(p.server.server, p.conn, big, MCPG_MSG_CAP + 1u), MCPG_LIMIT);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(p.client.rpc->client_send(p.client.client, big, MCPG_MSG_CAP), MCPG_OK);
    assert_int_equal(p.client.rpc->client_send(p.client.client, big, 0), MCPG_OK);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.messages, 4));
    assert_true(p.client.seen.bytes == 3u * (uint64_t)MCPG_MSG_CAP);
    assert_int_equal(p.client.seen.last_tag, 0);
    free(big);
    pair_stop(&p);
}

/* A receiver that says no gets the same message again, and all of them in order, whichever end it is. */
static void test_busy_receiver(void **state) {
    enum { COUNT = 300 };
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_t *up = &p.server.seen, *down = &p.client.seen;
    seen_set(up, &up->busy, true);
    seen_set(up, &up->in_order, true);
    seen_set(down, &down->busy, true);
    seen_set(down, &down->in_order, true);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(client_peer_send_tag(&p.client, i), MCPG_OK);
        assert_int_equal(p.server.rpc->server_send(p.server.server, p.conn, (const uint8_t *)&i, sizeof i), MCPG_OK);
    }
    assert_true(seen_wait(up, &up->refused, 5));
    assert_true(seen_wait(down, &down->refused, 5));
    assert_int_equal(seen_get(up, &up->messages), 0);
    seen_set(up, &up->busy, false);
    seen_set(down, &down->busy, false);
    assert_true(seen_wait(up, &up->messages, COUNT));
    assert_true(seen_wait(down, &down->messages, COUNT));
    assert_int_equal(seen_get(up, &up->order_errors), 0);
    assert_int_equal(seen_get(down, &down->order_errors), 0);
    pair_stop(&p);
}

/* A receiver that never reads costs its own stream: BUSY to the sender, both ends closed once; a second stream goes on.
 */
static void test_overflow(void **state) {
    const table_t *table = (const table_t *)*state;
    static uint8_t block[65536];
    pair_t p;
    pair_start(&p, table);
    client_peer_t deaf;
    assert_int_equal(client_create(&deaf, table, p.server.address), MCPG_OK);
    seen_set(&deaf.seen, &deaf.seen.busy, true);
    assert_true(client_peer_connect(&deaf));
    assert_true(seen_wait(&p.server.seen, &p.server.seen.opened, 2));
    uint64_t conn = p.server.seen.conns[1];
    mcpg_status_t status = MCPG_OK;
    for (uint32_t i = 0; i < 4000 && status == MCPG_OK; i++)
        status = table->rpc->server_send(p.server.server, conn, block, sizeof block);
    assert_int_equal(status, MCPG_BUSY);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    assert_true(p.server.seen.last_closed == conn);
    seen_set(&deaf.seen, &deaf.seen.busy, false);
    assert_true(seen_wait(&deaf.seen, &deaf.seen.closed, 1));
    assert_int_equal(table->rpc->server_send(p.server.server, conn, block, 4), MCPG_NOT_FOUND);
    /* the other direction */
    seen_set(&p.server.seen, &p.server.seen.busy, true);
    status = MCPG_OK;
    for (uint32_t i = 0; i < 4000 && status == MCPG_OK; i++)
        status = table->rpc->client_send(p.client.client, block, sizeof block);
    assert_int_equal(status, MCPG_BUSY);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_int_equal(p.client.seen.why, MCPG_BUSY);
    seen_set(&p.server.seen, &p.server.seen.busy, false);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 2));
    client_peer_destroy(&deaf);
    pair_stop(&p);
}

static void test_server_closes_in_order(void **state) {
    enum { COUNT = 200 };
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_set(&p.client.seen, &p.client.seen.in_order, true);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(p.server.rpc->server_send(p.server.server, p.conn, (const uint8_t *)&i, sizeof i), MCPG_OK);
    p.server.rpc->server_close(p.server.server, p.conn);
    p.server.rpc->server_close(p.server.server, p.conn);
    assert_int_equal(p.server.rpc->server_send(p.server.server, p.conn, (const uint8_t *)"x", 1), MCPG_NOT_FOUND);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_int_equal(seen_get(&p.client.seen, &p.client.seen.messages), COUNT);
    assert_int_equal(p.client.seen.order_errors, 0);
    assert_int_equal(p.client.seen.why, MCPG_OK);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    assert_int_equal(client_peer_send_tag(&p.client, 1), MCPG_NOT_FOUND);
    assert_true(client_peer_connect(&p.client));
    pair_stop(&p);
}

static void test_client_leaves_in_order(void **state) {
    enum { COUNT = 200 };
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_set(&p.server.seen, &p.server.seen.in_order, true);
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(client_peer_send_tag(&p.client, i), MCPG_OK);
    p.client.rpc->client_disconnect(p.client.client);
    p.client.rpc->client_disconnect(p.client.client);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    assert_int_equal(seen_get(&p.server.seen, &p.server.seen.messages), COUNT);
    assert_int_equal(p.server.seen.order_errors, 0);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_int_equal(p.client.seen.why, MCPG_OK);
    pair_stop(&p);
}

/* A disconnect that is followed by destroy at once must still deliver: DETACH travels this way. */
static void test_last_words(void **state) {
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    for (uint32_t i = 0; i < 50; i++) assert_int_equal(client_peer_send_tag(&p.client, i), MCPG_OK);
    p.client.rpc->client_disconnect(p.client.client);
    p.client.rpc->client_destroy(p.client.client);
    assert_int_equal(p.client.seen.closed, 1);
    seen_fini(&p.client.seen);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    assert_int_equal(seen_get(&p.server.seen, &p.server.seen.messages), 50);
    server_peer_stop(&p.server);
}

/* A peer that does not read delays an orderly close by a second, not more. */
static void test_close_has_a_deadline(void **state) {
    static uint8_t block[65536];
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    seen_set(&p.server.seen, &p.server.seen.busy, true);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(p.client.rpc->client_send(p.client.client, block, sizeof block), MCPG_OK);
    uint64_t start_us = mcpg__now().us;
    p.client.rpc->client_disconnect(p.client.client);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_true(mcpg__now().us - start_us < 5000000u);
    seen_set(&p.server.seen, &p.server.seen.busy, false);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    pair_stop(&p);
}

static void test_one_stream_at_a_time(void **state) {
    pair_t p;
    pair_start(&p, (const table_t *)*state);
    assert_int_equal(p.client.rpc->client_connect(p.client.client), MCPG_INVALID_STATE);
    for (uint32_t round = 1; round <= 5; round++) {
        p.client.rpc->client_disconnect(p.client.client);
        assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, round));
        assert_int_equal(client_peer_send_tag(&p.client, 0), MCPG_NOT_FOUND);
        assert_true(client_peer_connect(&p.client));
    }
    seen_set(&p.client.seen, &p.client.seen.reconnect, true); /* from inside closed() */
    p.client.rpc->client_disconnect(p.client.client);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.opened, 7));
    assert_true(seen_wait(&p.server.seen, &p.server.seen.opened, 7));
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 6));
    for (uint32_t i = 0; i < 7; i++)
        for (uint32_t j = 0; j < i; j++) assert_true(p.server.seen.conns[i] != p.server.seen.conns[j]);
    pair_stop(&p);
}

static void test_server_stop_and_return(void **state) {
    const table_t *table = (const table_t *)*state;
    pair_t p;
    pair_start(&p, table);
    char address[160];
    memcpy(address, p.server.address, sizeof address);
    table->rpc->server_stop(p.server.server);
    assert_int_equal(p.server.seen.closed, 1);
    seen_fini(&p.server.seen);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_int_equal(table->rpc->client_connect(p.client.client), MCPG_OK); /* nobody is there yet */
    struct timespec away = {.tv_nsec = 300000000L};                         /* longer than any first back-off */
    (void)nanosleep(&away, NULL);
    assert_int_equal(seen_get(&p.client.seen, &p.client.seen.opened), 1);
    uint64_t start_us = mcpg__now().us;
    assert_int_equal(server_start(&p.server, table, address), MCPG_OK);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.opened, 2));
    uint64_t took_us = mcpg__now().us - start_us;
    print_message("%s found the server again after %llu us\n", table->rpc->name, (unsigned long long)took_us);
    assert_true(took_us < 3000000u); /* far below gRPC's own 5 s poll */
    assert_int_equal(seen_get(&p.client.seen, &p.client.seen.closed), 1);
    pair_stop(&p);
}

static void test_destroy_with_open_streams(void **state) {
    const table_t *table = (const table_t *)*state;
    pair_t p;
    pair_start(&p, table);
    table->rpc->client_destroy(p.client.client);
    assert_int_equal(p.client.seen.opened, 1);
    assert_int_equal(p.client.seen.closed, 1);
    seen_fini(&p.client.seen);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    char address[160];
    memcpy(address, p.server.address, sizeof address);
    server_peer_stop(&p.server);
    /* waiting for a server that never comes */
    client_peer_t lonely;
    assert_int_equal(client_create(&lonely, table, address), MCPG_OK);
    assert_int_equal(table->rpc->client_connect(lonely.client), MCPG_OK);
    table->rpc->client_disconnect(lonely.client);
    assert_true(seen_wait(&lonely.seen, &lonely.seen.closed, 1));
    assert_int_equal(lonely.seen.why, MCPG_OK);
    assert_int_equal(table->rpc->client_connect(lonely.client), MCPG_OK);
    table->rpc->client_destroy(lonely.client);
    assert_int_equal(lonely.seen.opened, 0);
    assert_int_equal(lonely.seen.closed, 2);
    seen_fini(&lonely.seen);
    table->rpc->client_destroy(NULL);
    table->rpc->server_stop(NULL);
}

static void test_many_clients(void **state) {
    enum { CLIENTS = 12, COUNT = 200 };
    const table_t *table = (const table_t *)*state;
    static server_peer_t server;
    static client_peer_t clients[CLIENTS];
    assert_int_equal(server_start(&server, table, table->bind), MCPG_OK);
    seen_set(&server.seen, &server.seen.echo, true);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        assert_int_equal(client_create(&clients[i], table, server.address), MCPG_OK);
        seen_set(&clients[i].seen, &clients[i].seen.in_order, true);
        assert_int_equal(table->rpc->client_connect(clients[i].client), MCPG_OK);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) assert_true(seen_wait(&clients[i].seen, &clients[i].seen.opened, 1));
    for (uint32_t n = 0; n < COUNT; n++)
        for (uint32_t i = 0; i < CLIENTS; i++) assert_int_equal(client_peer_send_tag(&clients[i], n), MCPG_OK);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        assert_true(seen_wait(&clients[i].seen, &clients[i].seen.messages, COUNT));
        assert_int_equal(clients[i].seen.order_errors, 0);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) client_peer_destroy(&clients[i]);
    assert_true(seen_wait(&server.seen, &server.seen.closed, CLIENTS));
    server_peer_stop(&server);
}

static void test_second_server(void **state) {
    const table_t *table = (const table_t *)*state;
    pair_t p;
    pair_start(&p, table);
    seen_set(&p.server.seen, &p.server.seen.echo, true);
    server_peer_t second;
    assert_int_equal(server_start(&second, table, p.server.address), MCPG_SYSTEM);
    const char *place = strchr(p.server.address, ':');
    assert_non_null(strstr(second.error, place + 1)); /* names what is taken */
    assert_non_null(strstr(second.error, "give another"));
    assert_int_equal(client_peer_send_tag(&p.client, 7), MCPG_OK);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.messages, 1));
    char address[160];
    memcpy(address, p.server.address, sizeof address);
    pair_stop(&p);
    assert_int_equal(server_start(&second, table, address), MCPG_OK); /* free again */
    server_peer_stop(&second);
}

static void test_inproc_break(void **state) {
    const table_t *table = (const table_t *)*state;
    pair_t p;
    pair_start(&p, table);
    assert_int_equal(mcpg__rpc_inproc_break("inproc:nobody", 0), 0);
    assert_int_equal(mcpg__rpc_inproc_break(p.server.address, p.conn + 1), 0);
    assert_int_equal(mcpg__rpc_inproc_break(p.server.address, p.conn), 1);
    assert_true(seen_wait(&p.client.seen, &p.client.seen.closed, 1));
    assert_int_equal(p.client.seen.why, MCPG_UNAVAILABLE);
    assert_true(seen_wait(&p.server.seen, &p.server.seen.closed, 1));
    assert_true(client_peer_connect(&p.client));
    pair_stop(&p);
}

#define ON(table, test)                                                                                                \
    { #test " " #table, test, NULL, NULL, &table }
#define SUITE(table)                                                                                                   \
    ON(table, test_order_both_ways), ON(table, test_round_trip), ON(table, test_large_messages),                       \
        ON(table, test_busy_receiver), ON(table, test_overflow), ON(table, test_server_closes_in_order),               \
        ON(table, test_client_leaves_in_order), ON(table, test_last_words), ON(table, test_close_has_a_deadline),      \
        ON(table, test_one_stream_at_a_time), ON(table, test_server_stop_and_return),                                  \
        ON(table, test_destroy_with_open_streams), ON(table, test_many_clients), ON(table, test_second_server)

int main(void) {
    (void)snprintf(unix_bind, sizeof unix_bind, "unix:/tmp/mcpg-test-rpc-%ld.sock", (long)getpid());
    grpc_tcp.rpc = grpc_tls.rpc = grpc_unix.rpc = mcpg__rpc_grpc();
    if (mcpg__cert_make_job("test", &grpc_tls.server_as, &grpc_tls.client_as) != MCPG_OK) return 1;
    inproc.rpc = mcpg__rpc_inproc();
    const struct CMUnitTest tests[] = {
        SUITE(grpc_tcp), SUITE(grpc_tls), SUITE(grpc_unix), SUITE(inproc), ON(inproc, test_inproc_break),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    mcpg__credentials_unref(grpc_tls.server_as);
    mcpg__credentials_unref(grpc_tls.client_as);
    return rc;
}
