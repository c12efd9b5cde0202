/* test_coord_host.c: the coordinator's host with hand-made agents, over both RPC tables: messages in, answers out, one
 * bad stream harms nobody, the flight recorder can be replayed bit for bit, and stop ends in order. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/codec.h"
#include "coordinator/coord_host_priv.h"
#include "rpc_peers.h"
#include "tools/log_replay.h"

typedef struct {
    const mcpg_rpc_ops_t *rpc;
    const char *bind;
} table_t;
static table_t grpc_tcp = {NULL, "127.0.0.1:0"}, inproc = {NULL, "inproc:0"};

static const mcpg_timers_t timers = {
    .heartbeat_us = 200000,
    .offline_us = 5000000,
    .ack_us = 5000000,
    .ack_added_us = 1000000,
    .reconcile_us = 500000,
    .coordinator_grace_us = 30000000,
    .collective_timeout_us = 1000000,
    .p2p_timeout_us = 10000000,
};

/* ---- log lines that the host wrote ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[65536];
static void log_line(void *user, mcpg_log_level_t level, const char *line) {
    (void)user;
    (void)level;
    (void)pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_text);
    (void)snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
    (void)pthread_mutex_unlock(&log_lock);
}
static bool log_says(const char *what) {
    (void)pthread_mutex_lock(&log_lock);
    bool found = strstr(log_text, what) != NULL;
    (void)pthread_mutex_unlock(&log_lock);
    return found;
}

/* ---- an agent made by hand ---- */

typedef struct {
    client_peer_t peer; /* its seen: opened, closed */
    uint32_t rank;
    pthread_mutex_t lock;
    uint32_t got[MCPG_DOWN__COUNT];
    mcpg_incarnation_t inc;
    uint64_t term, sent_us;
    int32_t refused;
    uint32_t dead_ranks; /* how often a RANK_STATES said that some rank is OFFLINE and dead */
    uint32_t last_dead;
    uint8_t arena[1 << 18];
} agent_t;

static void note(agent_t *a, const mcpg_down_msg_t *m) {
    a->got[m->kind]++;
    if (m->kind == MCPG_DOWN_WELCOME) {
        a->inc = m->u.welcome.inc;
        a->term = m->u.welcome.term;
    }
    if (m->kind == MCPG_DOWN_REFUSED) a->refused = m->u.refused.status;
    if (m->kind == MCPG_DOWN_HEARTBEAT_REPLY) a->sent_us = m->u.heartbeat_reply.sent_us;
    if (m->kind != MCPG_DOWN_RANK_STATES) return;
    for (uint32_t i = 0; i < m->u.rank_states.count; i++) {
        const mcpg_rank_info_t *info = &m->u.rank_states.ranks[i];
        if (info->state != MCPG_RANK_OFFLINE || !info->dead) continue;
        a->dead_ranks++;
        a->last_dead = info->rank.v;
    }
}

static bool agent_message(void *user, const uint8_t *buf, size_t len) {
    agent_t *a = (agent_t *)user;
    mcpg_arena_t arena = {.base = a->arena, .cap = sizeof a->arena};
    mcpg_down_msg_t m;
    (void)pthread_mutex_lock(&a->peer.seen.lock);
    if (mcpg__down_unpack(buf, len, &arena, &m) == MCPG_OK)
        note(a, &m);
    else
        a->peer.seen.order_errors++;
    a->peer.seen.messages++;
    (void)pthread_cond_broadcast(&a->peer.seen.changed);
    (void)pthread_mutex_unlock(&a->peer.seen.lock);
    return true;
}

static void agent_init(agent_t *a, const table_t *table, const char *address, uint32_t rank) {
    memset(a, 0, sizeof *a);
    a->rank = rank;
    seen_init(&a->peer.seen);
    a->peer.rpc = table->rpc;
    mcpg_rpc_client_events_t events = {a, client_peer_connected, agent_message, client_peer_closed};
    assert_int_equal(table->rpc->client_create(address, NULL, &events, &a->peer.client, NULL, 0), MCPG_OK);
}

static void agent_say(agent_t *a, const mcpg_up_msg_t *m) {
    uint8_t buf[4096];
    size_t len = 0;
    assert_int_equal(mcpg__up_pack(m, buf, sizeof buf, &len), MCPG_OK);
    assert_int_equal(a->peer.rpc->client_send(a->peer.client, buf, len), MCPG_OK);
}

static int64_t pid_of(uint32_t rank) {
    return 100000 + (int64_t)rank;
}

static void agent_attach(agent_t *a, uint64_t session) {
    assert_true(client_peer_connect(&a->peer));
    mcpg_up_msg_t m = {.kind = MCPG_UP_ATTACH};
    m.u.attach = (mcpg_up_attach_t){
        .version = MCPG_PROTOCOL_VERSION,
        .rank = {a->rank},
        .session = {session},
        .host_id = 7,
        .pid = pid_of(a->rank),
        .endpoint = {(const uint8_t *)"endpoint", 8},
    };
    agent_say(a, &m);
}

static void agent_heartbeat(agent_t *a, uint64_t sent_us) {
    mcpg_up_msg_t m = {.kind = MCPG_UP_HEARTBEAT};
    m.u.heartbeat.sent_us = sent_us;
    agent_say(a, &m);
}

static void agent_join(agent_t *a, const table_t *table, const char *address, uint32_t rank) {
    agent_init(a, table, address, rank);
    agent_attach(a, 1000u + rank);
    assert_true(seen_wait(&a->peer.seen, &a->got[MCPG_DOWN_WELCOME], 1));
    assert_true(seen_wait(&a->peer.seen, &a->got[MCPG_DOWN_RANK_STATES], 1));
}

static void agent_stop(agent_t *a) {
    a->peer.rpc->client_destroy(a->peer.client);
    assert_int_equal(a->peer.seen.order_errors, 0); /* everything that came could be decoded */
    seen_fini(&a->peer.seen);
}

/* ---- a host ---- */

typedef struct {
    mcpg_coord_host_t *host;
    char address[160];
} hosted_t;

static mcpg_status_t host_try(hosted_t *h, const table_t *table, const char *bind, const char *dir, char *error,
                              size_t error_cap) {
    mcpg_coord_host_config_t config = {
        .rpc = table->rpc, .bind = bind, .term = 3, .timers = timers, .event_log_dir = dir};
    mcpg__log_init(&config.log, log_line, NULL, "coordinator");
    log_text[0] = '\0';
    mcpg_status_t status = mcpg__coord_host_start(&config, &h->host, error, error_cap);
    if (status == MCPG_OK) (void)mcpg__coord_host_address(h->host, h->address, sizeof h->address);
    return status;
}
static void host_start(hosted_t *h, const table_t *table, const char *dir) {
    char error[256] = "";
    if (host_try(h, table, table->bind, dir, error, sizeof error) != MCPG_OK) fail_msg("%s", error);
}

/* ---- tests ---- */

static agent_t a0, a1;

static void test_attach_and_heartbeat(void **state) {
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    host_start(&h, table, NULL);
    agent_join(&a0, table, h.address, 0);
    assert_int_equal(a0.term, 3);
    assert_false(mcpg__inc_none(a0.inc));
    agent_heartbeat(&a0, 424242);
    assert_true(seen_wait(&a0.peer.seen, &a0.got[MCPG_DOWN_HEARTBEAT_REPLY], 1));
    assert_int_equal(a0.sent_us, 424242);
    /* the same rank from another process while this one lives */
    agent_init(&a1, table, h.address, 0);
    agent_attach(&a1, 999);
    assert_true(seen_wait(&a1.peer.seen, &a1.got[MCPG_DOWN_REFUSED], 1));
    assert_int_equal(a1.refused, MCPG_RANK_IN_USE);
    agent_stop(&a1);
    agent_stop(&a0);
    mcpg__coord_host_stop(h.host);
}

static void say_raw(agent_t *a, const void *bytes, size_t len) {
    assert_int_equal(a->peer.rpc->client_send(a->peer.client, (const uint8_t *)bytes, len), MCPG_OK);
}

static void test_malformed(void **state) {
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    host_start(&h, table, NULL);
    agent_join(&a0, table, h.address, 0);
    /* a stranger who never said anything sensible */
    agent_init(&a1, table, h.address, 1);
    assert_true(client_peer_connect(&a1.peer));
    say_raw(&a1, "\xff\xff\xff\xff not a message", 18);
    assert_true(seen_wait(&a1.peer.seen, &a1.peer.seen.closed, 1));
    assert_true(log_says("malformed_message"));
    assert_true(log_says("malformed bytes")); /* the reason */
    /* the same agent, attached, then talking nonsense: its stream goes, what it says after that counts no more */
    agent_attach(&a1, 5);
    assert_true(seen_wait(&a1.peer.seen, &a1.got[MCPG_DOWN_WELCOME], 1));
    say_raw(&a1, "", 0);
    (void)a1.peer.rpc->client_send(a1.peer.client, (const uint8_t *)"\xff", 1);
    assert_true(seen_wait(&a1.peer.seen, &a1.peer.seen.closed, 2));
    agent_heartbeat(&a0, 1);
    assert_true(seen_wait(&a0.peer.seen, &a0.got[MCPG_DOWN_HEARTBEAT_REPLY], 1));
    assert_int_equal(seen_get(&a0.peer.seen, &a0.peer.seen.closed), 0);
    agent_attach(&a1, 5); /* the same session may come back */
    assert_true(seen_wait(&a1.peer.seen, &a1.got[MCPG_DOWN_WELCOME], 2));
    agent_stop(&a1);
    agent_stop(&a0);
    mcpg__coord_host_stop(h.host);
}

static void test_exit_report(void **state) {
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    host_start(&h, table, NULL);
    agent_join(&a0, table, h.address, 0);
    agent_join(&a1, table, h.address, 1);
    assert_int_equal(mcpg__coord_host_report_exit(h.host, (mcpg_rank_t){MCPG_MAX_RANKS}, 1), MCPG_INVALID_ARGUMENT);
    uint64_t start_us = mcpg__now().us;
    assert_int_equal(mcpg__coord_host_report_exit(h.host, (mcpg_rank_t){1}, pid_of(1)), MCPG_OK);
    assert_true(seen_wait(&a0.peer.seen, &a0.dead_ranks, 1));
    print_message("%s exit report to peer's news: %llu us\n", table->rpc->name,
                  (unsigned long long)(mcpg__now().us - start_us));
    assert_int_equal(a0.last_dead, 1);
    agent_stop(&a1);
    agent_stop(&a0);
    mcpg__coord_host_stop(h.host);
}

static void test_stop(void **state) {
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    host_start(&h, table, NULL);
    agent_join(&a0, table, h.address, 0);
    agent_join(&a1, table, h.address, 1);
    for (uint32_t i = 0; i < 2000; i++)
        agent_heartbeat(&a1, i); /* still on their way while it stops: posting goes on after its end */
    uint64_t start_us = mcpg__now().us;
    mcpg__coord_host_stop(h.host);
    uint64_t took_us = mcpg__now().us - start_us;
    print_message("%s stop with two agents: %llu us\n", table->rpc->name, (unsigned long long)took_us);
    assert_true(took_us < 8000000u);
    assert_true(seen_wait(&a0.peer.seen, &a0.peer.seen.closed, 1));
    assert_true(seen_wait(&a1.peer.seen, &a1.peer.seen.closed, 1));
    assert_int_equal(a0.peer.seen.closed, 1);
    agent_stop(&a0);
    agent_stop(&a1);
    mcpg__coord_host_stop(NULL);
}

/* Far more than the executor's queue holds: it pushes back, and every single heartbeat is answered. */
static void test_flood(void **state) {
    enum { COUNT = 20000, WINDOW = 3000 };
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    host_start(&h, table, NULL);
    agent_join(&a0, table, h.address, 0);
    agent_join(&a1, table, h.address, 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (i >= WINDOW) {
            assert_true(seen_wait(&a0.peer.seen, &a0.got[MCPG_DOWN_HEARTBEAT_REPLY], i - WINDOW));
            assert_true(seen_wait(&a1.peer.seen, &a1.got[MCPG_DOWN_HEARTBEAT_REPLY], i - WINDOW));
        }
        agent_heartbeat(&a0, i);
        agent_heartbeat(&a1, i);
    }
    assert_true(seen_wait(&a0.peer.seen, &a0.got[MCPG_DOWN_HEARTBEAT_REPLY], COUNT));
    assert_true(seen_wait(&a1.peer.seen, &a1.got[MCPG_DOWN_HEARTBEAT_REPLY], COUNT));
    assert_int_equal(a0.sent_us, COUNT - 1);
    agent_stop(&a1);
    agent_stop(&a0);
    mcpg__coord_host_stop(h.host);
}

static void test_bad_bind(void **state) {
    const table_t *table = (const table_t *)*state;
    hosted_t h;
    char error[256] = "";
    assert_int_equal(host_try(&h, table, "0.0.0.0:1", NULL, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "0.0.0.0:1"));
}

/* ---- replay ---- */

/* The only log of the folder, stepped again by a fresh machine; then it is removed. */
static void replay_folder(const char *dir, uint64_t *events_out, uint64_t *digests_out) {
    mcpg_log_list_t list = {0};
    mcpg_log_file_t log;
    mcpg_replay_t r;
    char error[512] = "", path[600];
    if (!mcpg__log_list_add(&list, dir, error, sizeof error)) fail_msg("%s", error);
    assert_int_equal(list.count, 1);
    if (!mcpg__log_file_load(list.prefix[0], &log, error, sizeof error)) fail_msg("%s", error);
    assert_int_equal(log.segment[0].header.machine, MCPG_LOG_COORD);
    if (!mcpg__replay_open(&r, &log, true, error, sizeof error)) fail_msg("%s", error);
    mcpg_replay_found_t found;
    do {
        found = mcpg__replay_next(&r, NULL, NULL);
        if (found == MCPG_REPLAY_DIFFERS || found == MCPG_REPLAY_BROKEN) fail_msg("%s", r.problem);
        assert_true(r.has_effects);
    } while (found == MCPG_REPLAY_EVENT);
    *events_out = r.events;
    *digests_out = r.digests;
    mcpg__replay_close(&r);
    mcpg__log_file_free(&log);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s.%d", list.prefix[0], i);
        (void)unlink(path);
    }
    mcpg__log_list_free(&list);
}

static void test_flight_recorder(void **state) {
    enum { BEATS = 150 };
    const table_t *table = (const table_t *)*state;
    char dir[] = "/tmp/mcpg-test-coord-XXXXXX";
    assert_non_null(mkdtemp(dir));
    hosted_t h;
    host_start(&h, table, dir);
    assert_false(log_says("event_log_off"));
    agent_join(&a0, table, h.address, 0);
    agent_join(&a1, table, h.address, 1);
    for (uint32_t i = 0; i < BEATS; i++) agent_heartbeat(&a0, i);
    assert_true(seen_wait(&a0.peer.seen, &a0.got[MCPG_DOWN_HEARTBEAT_REPLY], BEATS));
    assert_int_equal(mcpg__coord_host_report_exit(h.host, (mcpg_rank_t){1}, pid_of(1)), MCPG_OK);
    assert_true(seen_wait(&a0.peer.seen, &a0.dead_ranks, 1));
    agent_stop(&a1);
    agent_stop(&a0);
    mcpg__coord_host_stop(h.host);
    uint64_t events = 0, digests = 0;
    replay_folder(dir, &events, &digests);
    assert_true(events >= BEATS + 4u); /* two attaches, the exit, the shutdown */
    assert_int_equal(digests, events / 64u);
    assert_int_equal(rmdir(dir), 0);
    host_start(&h, table, "/nowhere/at/all");
    assert_true(log_says("event_log_off"));
    assert_true(log_says("/nowhere/at/all"));
    mcpg__coord_host_stop(h.host);
}

/* ---- the table of connections ---- */

static void test_conn_table(void **state) {
    (void)state;
    mcpg_conn_table_t t;
    assert_true(mcpg__conn_table_init(&t));
    assert_false(mcpg__conn_table_remove(&t, 0));
    uint32_t held = 0;
    for (uint64_t conn = 1; conn <= 20000; conn++)
        if (mcpg__conn_table_add(&t, conn << 16)) held++;
    assert_int_equal(held, 12288); /* its limit: it never gets full */
    for (uint64_t conn = 1; conn <= 12288; conn += 2) assert_true(mcpg__conn_table_remove(&t, conn << 16));
    for (uint64_t conn = 1; conn <= 12288; conn++) {
        bool is_there = conn % 2 == 0;
        mcpg__conn_table_set_closing(&t, conn << 16);
        assert_int_equal(mcpg__conn_table_is_closing(&t, conn << 16), is_there);
    }
    for (uint64_t conn = 2; conn <= 12288; conn += 2) assert_true(mcpg__conn_table_remove(&t, conn << 16));
    assert_int_equal(t.count, 0);
    assert_false(mcpg__conn_table_remove(&t, 2 << 16));
    mcpg__conn_table_fini(&t);
}

#define ON(table, test)                                                                                                \
    { #test " " #table, test, NULL, NULL, &table }
#define SUITE(table)                                                                                                   \
    ON(table, test_attach_and_heartbeat), ON(table, test_malformed), ON(table, test_exit_report),                      \
        ON(table, test_stop), ON(table, test_flood), ON(table, test_bad_bind), ON(table, test_flight_recorder)

int main(void) {
    grpc_tcp.rpc = mcpg__rpc_grpc();
    inproc.rpc = mcpg__rpc_inproc();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conn_table), SUITE(grpc_tcp), SUITE(inproc)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
