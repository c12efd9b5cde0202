/* test_agent_host.c: the agent host against a made-up coordinator (in-process RPC) and a made-up data plane. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent_host.h"
#include "agent/agent_host_codec.h"
#include "common/codec.h"
#include "common/eventlog.h"
#include "common/executor.h"
#include "tools/log_replay.h"

#define WAIT_US 5000000u

/* Everything that was seen, one word per thing, in order. */
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    char seen[4096];
    _Atomic uint64_t conn;
    mcpg_rpc_server_t *server;
    char address[64];
    mcpg_status_t refuse; /* instead of WELCOME */
    bool silent;
    _Atomic uint64_t register_call;
    const mcpg_dp_observer_t *observer;
    uint64_t hold_seq;
    const char *log_dir;
} world_t;
static world_t W;

static void see(const char *word) {
    pthread_mutex_lock(&W.mu);
    size_t used = strlen(W.seen);
    (void)snprintf(W.seen + used, sizeof(W.seen) - used, "%s ", word);
    pthread_cond_broadcast(&W.cond);
    pthread_mutex_unlock(&W.mu);
}

static bool wait_for(const char *word) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_US / 1000000u;
    pthread_mutex_lock(&W.mu);
    int rc = 0;
    while (strstr(W.seen, word) == NULL && rc == 0) rc = pthread_cond_timedwait(&W.cond, &W.mu, &until);
    bool found = strstr(W.seen, word) != NULL;
    pthread_mutex_unlock(&W.mu);
    if (!found) fprintf(stderr, "waited for \"%s\", saw: %s\n", word, W.seen);
    return found;
}

static bool before(const char *first, const char *second) {
    if (!wait_for(second)) return false;
    pthread_mutex_lock(&W.mu);
    const char *a = strstr(W.seen, first), *b = strstr(W.seen, second);
    bool ok = a != NULL && a < b;
    pthread_mutex_unlock(&W.mu);
    return ok;
}

/* ---- the made-up coordinator ---- */

static void down(mcpg_down_msg_t *m) {
    uint8_t *buf = malloc(MCPG_MSG_CAP);
    size_t len = 0;
    assert_non_null(buf);
    assert_int_equal(mcpg__down_pack(m, buf, MCPG_MSG_CAP, &len), MCPG_OK);
    (void)mcpg__rpc_inproc()->server_send(W.server, W.conn, buf, len);
    free(buf);
}

static void answer_attach(uint64_t term) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    if (W.refuse != MCPG_OK) {
        static const char text[] = "because of the test";
        m.kind = MCPG_DOWN_REFUSED;
        m.u.refused.status = W.refuse;
        m.u.refused.text = (mcpg_bytes_t){(const uint8_t *)text, sizeof(text) - 1};
    } else {
        m.kind = MCPG_DOWN_WELCOME;
        m.u.welcome = (mcpg_down_welcome_t){
            .term = term, .coordinator_id = 1, .inc = {term, 7}, .heartbeat_us = 50000, .offline_us = 2000000};
    }
    down(&m);
}

static void srv_opened(void *user, uint64_t conn) {
    (void)user;
    W.conn = conn;
    see("opened");
}
static bool srv_message(void *user, uint64_t conn, const uint8_t *buf, size_t len) {
    (void)conn;
    static _Thread_local uint8_t mem[65536];
    mcpg_arena_t arena = {.base = mem, .cap = sizeof(mem)};
    mcpg_up_msg_t m;
    assert_int_equal(mcpg__up_unpack(buf, len, &arena, &m), MCPG_OK);
    char word[64];
    (void)snprintf(word, sizeof(word), "up:%s", mcpg__up_name(m.kind));
    if (m.kind == MCPG_UP_ATTACH && !W.silent) answer_attach((uint64_t)(uintptr_t)user);
    if (m.kind == MCPG_UP_REGISTER) W.register_call = m.u.register_group.call_id;
    if (m.kind == MCPG_UP_ACK) (void)snprintf(word, sizeof(word), "up:ACK=%llu", (unsigned long long)m.u.ack.next_seq);
    if (m.kind == MCPG_UP_HEARTBEAT) return true;
    see(word);
    return true;
}
static void srv_closed(void *user, uint64_t conn) {
    (void)user, (void)conn;
    see("closed");
}

static void serve(uint64_t term) {
    mcpg_rpc_server_events_t ev = {
        .user = (void *)(uintptr_t)term, .opened = srv_opened, .message = srv_message, .closed = srv_closed};
    char error[256];
    assert_int_equal(mcpg__rpc_inproc()->serve("inproc:0", NULL, &ev, &W.server, error, sizeof(error)), MCPG_OK);
    (void)mcpg__rpc_inproc()->server_address(W.server, W.address, sizeof(W.address));
}

/* ---- the made-up data plane ---- */

static void dp_open(void *dp, const mcpg_dp_peer_t *peer) {
    (void)dp;
    see("dp:open");
    W.observer->link_up(W.observer->user, peer->rank, peer->inc);
}
static void dp_close(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    (void)dp, (void)rank, (void)inc;
    see(dead ? "dp:close-dead" : "dp:close");
}
static void dp_check(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t id) {
    (void)dp;
    see("dp:check");
    W.observer->link_checked(W.observer->user, rank, inc, id, true);
}
static void dp_group(void *dp, const mcpg_dp_group_config_t *c) {
    (void)dp;
    see(c->isolated ? "dp:group-isolated" : "dp:group");
}
static void dp_gone(void *dp, mcpg_gid_t gid) {
    (void)dp, (void)gid;
    see("dp:gone");
}
static uint64_t dp_hold(void *dp, mcpg_gid_t gid, bool *steps_out) {
    *steps_out = false;
    (void)dp, (void)gid;
    see("dp:hold");
    return W.hold_seq;
}
static void dp_release(void *dp, mcpg_gid_t gid) {
    (void)dp, (void)gid;
    see("dp:release");
}
static void dp_install(void *dp, const mcpg_down_commit_t *c) {
    (void)dp, (void)c;
    see("dp:install");
}
static void dp_fence(void *dp, mcpg_gid_t gid) {
    (void)dp, (void)gid;
    see("dp:fence");
}
static void dp_resolve(void *dp, mcpg_gid_t gid, uint64_t id, mcpg_status_t s) {
    (void)dp, (void)gid, (void)id, (void)s;
    see("dp:resolve");
}
static void dp_ask_view(void *dp, mcpg_gid_t gid, mcpg_view_id_t view) {
    (void)dp, (void)gid, (void)view;
    see("dp:ask");
}
static void dp_tell_view(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes, size_t len) {
    (void)dp, (void)rank, (void)inc, (void)bytes, (void)len;
    see("dp:tell");
}
static const mcpg_dp_ops_t DP = {dp_open,    dp_close,   dp_check, dp_group,   dp_gone,     dp_hold,
                                 dp_release, dp_install, dp_fence, dp_resolve, dp_ask_view, dp_tell_view};

static void on_attached(void *user, mcpg_incarnation_t inc) {
    (void)user;
    char word[64];
    (void)snprintf(word, sizeof(word), "attached=%llu.%llu", (unsigned long long)inc.term,
                   (unsigned long long)inc.counter);
    see(word);
}
static void on_observe(void *user, const mcpg_dp_observer_t *o) {
    (void)user;
    W.observer = o;
    see(o != NULL ? "observe" : "unobserve");
}
static void on_notify(void *user, const mcpg_agent_notify_t *n) {
    (void)user;
    if (n->kind == MCPG_EVENT_COORDINATOR_LOST) see("lost");
    if (n->kind == MCPG_EVENT_COORDINATOR_BACK) see("back");
}

static mcpg_status_t start(const char *address, uint64_t attach_us, mcpg_agent_host_t **out, char *error, size_t cap) {
    mcpg_agent_host_config_t c = {.rpc = mcpg__rpc_inproc(),
                                  .coordinator = address,
                                  .dp_ops = &DP,
                                  .attached = on_attached,
                                  .observe = on_observe,
                                  .notify = on_notify};
    c.agent = (mcpg_agent_config_t){.rank = {1},
                                    .session = {99},
                                    .host_id = 5,
                                    .pid = 4242,
                                    .max_ranks = 8,
                                    .max_groups = 8,
                                    .max_slots_total = 64,
                                    .max_calls = 8,
                                    .max_reports = 8,
                                    .attach_timeout_us = attach_us,
                                    .seed = 1};
    c.agent.timers = (mcpg_timers_t){200000,  2000000,  5000000, 1000000, 2000000, 30000000,
                                     1000000, 10000000, 2000000, 1200000, 20000,   2000000};
    c.event_log_dir = W.log_dir;
    mcpg__log_init(&c.log, NULL, NULL, "test");
    return mcpg__agent_host_start(&c, out, error, cap);
}

static int setup(void **state) {
    (void)state;
    memset(&W, 0, sizeof(W));
    pthread_mutex_init(&W.mu, NULL);
    pthread_cond_init(&W.cond, NULL);
    serve(1);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    mcpg__rpc_inproc()->server_stop(W.server);
    pthread_mutex_destroy(&W.mu);
    pthread_cond_destroy(&W.cond);
    return 0;
}

static mcpg_agent_host_t *started(void) {
    mcpg_agent_host_t *h = NULL;
    char error[256] = "";
    mcpg_status_t s = start(W.address, 5000000, &h, error, sizeof(error));
    if (s != MCPG_OK) fprintf(stderr, "start: %s\n", error);
    assert_int_equal(s, MCPG_OK);
    return h;
}

/* ---- tests ---- */

static void test_attach_and_stop(void **state) {
    (void)state;
    mcpg_agent_host_t *h = started();
    assert_true(mcpg__agent_host_connected(h));
    assert_true(wait_for("attached=1.7"));
    assert_true(before("observe ", "up:ATTACH"));
    mcpg__agent_host_stop(h);
    assert_true(wait_for("up:DETACH"));
    assert_true(wait_for("closed"));
    mcpg__agent_host_stop(NULL);
}

static void test_refusal_carries_the_sentence(void **state) {
    (void)state;
    W.refuse = MCPG_VERSION_MISMATCH;
    mcpg_agent_host_t *h = NULL;
    char error[256] = "";
    assert_int_equal(start(W.address, 5000000, &h, error, sizeof(error)), MCPG_VERSION_MISMATCH);
    assert_string_equal(error, "because of the test");
    assert_null(h);
}

static void test_nobody_at_the_address(void **state) {
    (void)state;
    mcpg_agent_host_t *h = NULL;
    char error[512] = "";
    uint64_t t0 = mcpg__now().us;
    assert_int_equal(start("inproc:nobody", 300000, &h, error, sizeof(error)), MCPG_UNAVAILABLE);
    assert_true(mcpg__now().us - t0 < 3000000u);
    assert_non_null(strstr(error, "inproc:nobody"));
}

typedef struct {
    mcpg_agent_host_t *h;
    mcpg_status_t status;
    mcpg_agent_call_done_t done;
    char text[MCPG_TEXT_CAP];
    uint64_t timeout_us;
} reg_t;
static void *reg_main(void *arg) {
    static const uint32_t order[] = {0, 1};
    reg_t *r = arg;
    mcpg_agent_call_register_t call = {
        .order_count = 2, .order = order, .capacity = 2, .is_extension = true, .timeout_us = r->timeout_us};
    r->status = mcpg__agent_host_register(r->h, &call, &r->done, r->text, sizeof(r->text));
    return NULL;
}

static void answer_register(void) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    m.kind = MCPG_DOWN_REGISTERED;
    m.u.registered =
        (mcpg_down_registered_t){.call_id = W.register_call, .gid = {3}, .slot = {1}, .capacity = 2, .isolated = true};
    down(&m);
}

static void do_register(mcpg_agent_host_t *h) {
    reg_t r = {.h = h, .timeout_us = 5000000};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, reg_main, &r), 0);
    assert_true(wait_for("up:REGISTER"));
    answer_register();
    pthread_join(t, NULL);
    assert_int_equal(r.status, MCPG_OK);
    assert_int_equal(r.done.gid.v, 3);
    assert_int_equal(r.done.slot.v, 1);
    assert_true(r.done.isolated);
    assert_true(wait_for("dp:group-isolated")); /* before the call returned */
}

static void run_a_group(void) {
    mcpg_agent_host_t *h = started();
    do_register(h);
    W.hold_seq = 17;
    mcpg_member_t active[2] = {{{0}, {0}, {1, 2}}, {{1}, {1}, {1, 7}}};
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    m.kind = MCPG_DOWN_PREPARE;
    m.u.prepare = (mcpg_down_prepare_t){.gid = {3}, .view = {.id = {1, 4}, .active_count = 2, .active = active}};
    down(&m);
    assert_true(wait_for("up:ACK=17"));
    memset(&m, 0, sizeof(m));
    m.kind = MCPG_DOWN_COMMIT;
    m.u.commit =
        (mcpg_down_commit_t){.gid = {3}, .view = {.id = {1, 4}, .active_count = 2, .active = active}, .switch_seq = 17};
    down(&m);
    assert_true(wait_for("up:COMMIT_ACK"));
    assert_true(before("dp:hold", "up:ACK=17"));
    assert_true(before("dp:install", "up:COMMIT_ACK"));
    mcpg_view_t *v = malloc(sizeof(*v));
    assert_true(mcpg__agent_host_view(h, (mcpg_gid_t){3}, v));
    assert_int_equal(v->epoch, 4);
    assert_int_equal(v->active[0] + v->active[1], 2);
    assert_int_equal(v->incarnation[1], 7);
    free(v);
    mcpg_member_t failed = {{0}, {0}, {1, 2}};
    assert_true(W.observer->op_failed(W.observer->user, (mcpg_gid_t){3}, 5, 18, &failed, 1));
    assert_true(wait_for("up:OP_FAILED"));
    mcpg__agent_host_leave(h, (mcpg_gid_t){3}, 19);
    assert_true(wait_for("dp:gone"));
    assert_true(wait_for("up:LEAVE_GROUP"));
    mcpg__agent_host_stop(h);
}

static void test_hold_is_answered_and_installed(void **state) {
    (void)state;
    run_a_group();
}

/* ---- the event log of a run, stepped again by a fresh machine ---- */

static void test_event_log_replays_bit_for_bit(void **state) {
    (void)state;
    char dir[] = "/tmp/mcpg-log-XXXXXX", path[512];
    W.log_dir = mkdtemp(dir);
    assert_non_null(W.log_dir);
    run_a_group();
    (void)snprintf(path, sizeof(path), "%s/agent-1-4242-00000063.0", dir);
    mcpg_log_file_t log;
    mcpg_replay_t r;
    char error[512] = "", prefix[512];
    (void)snprintf(prefix, sizeof(prefix), "%.*s", (int)strlen(path) - 2, path);
    if (!mcpg__log_file_load(prefix, &log, error, sizeof(error))) fail_msg("%s", error);
    assert_int_equal(log.segment[0].header.machine, MCPG_LOG_AGENT);
    if (!mcpg__replay_open(&r, &log, true, error, sizeof(error))) fail_msg("%s", error);
    mcpg_replay_found_t found;
    do {
        found = mcpg__replay_next(&r, NULL, NULL);
        if (found == MCPG_REPLAY_DIFFERS || found == MCPG_REPLAY_BROKEN) fail_msg("%s", r.problem);
        assert_true(r.has_effects);
    } while (found == MCPG_REPLAY_EVENT);
    assert_true(r.events >= 8);
    mcpg__replay_close(&r);
    mcpg__log_file_free(&log);
    (void)unlink(path);
    path[strlen(path) - 1] = '1';
    (void)unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

static void test_links_checks_and_deaths_go_through(void **state) {
    (void)state;
    mcpg_agent_host_t *h = started();
    static const uint8_t endpoint[] = "e";
    mcpg_rank_info_t ranks[2] = {
        {.rank = {0}, .inc = {1, 2}, .state = MCPG_RANK_SYNCED, .host_id = 5, .pid = 1, .endpoint = {endpoint, 1}},
        {.rank = {1}, .inc = {1, 7}, .state = MCPG_RANK_SYNCED, .host_id = 5, .pid = 1, .endpoint = {endpoint, 1}}};
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    m.kind = MCPG_DOWN_RANK_STATES;
    m.u.rank_states = (mcpg_down_rank_states_t){.full = true, .count = 2, .ranks = ranks};
    down(&m);
    assert_true(wait_for("dp:open"));
    assert_true(wait_for("up:LINK"));
    mcpg_rank_state_t states[8];
    assert_int_equal(mcpg__agent_host_rank_states(h, states, 8), 8);
    assert_int_equal(states[0], MCPG_RANK_SYNCED);
    ranks[0].suspect = true;
    m.u.rank_states.check_id = 77;
    down(&m);
    assert_true(wait_for("dp:check"));
    assert_true(W.observer->death(W.observer->user, (mcpg_rank_t){0}, (mcpg_incarnation_t){1, 2}, MCPG_PROOF_PIDFD));
    assert_true(wait_for("up:DEATH"));
    mcpg__agent_host_stop(h);
}

static void test_stop_answers_open_calls(void **state) {
    (void)state;
    mcpg_agent_host_t *h = started();
    reg_t r = {.h = h, .timeout_us = 60000000};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, reg_main, &r), 0);
    assert_true(wait_for("up:REGISTER"));
    mcpg__agent_host_stop(h);
    pthread_join(t, NULL);
    assert_int_equal(r.status, MCPG_SHUTTING_DOWN);
    assert_true(r.text[0] != '\0');
}

static void test_move_to_another_coordinator(void **state) {
    (void)state;
    mcpg_agent_host_t *h = started();
    mcpg_rpc_server_t *first = W.server;
    serve(2);
    char error[256] = "";
    assert_int_equal(mcpg__agent_host_move(h, W.address, NULL, error, sizeof(error)), MCPG_OK);
    assert_true(wait_for("lost"));
    assert_true(wait_for("back"));
    assert_true(wait_for("attached=2.7"));
    mcpg__agent_host_stop(h);
    mcpg__rpc_inproc()->server_stop(first);
}

static void test_event_encoding_round_trips(void **state) {
    (void)state;
    static const uint32_t order[] = {4, 2, 7};
    static const uint8_t key[] = "key";
    static uint8_t mem[65536], buf[MCPG_AGENT_EVENT_CAP], again[MCPG_AGENT_EVENT_CAP];
    mcpg_member_t failed[2] = {{{1}, {2}, {3, 4}}, {{5}, {6}, {7, 8}}};
    mcpg_rankset_t set;
    mcpg__rankset_clear(&set);
    mcpg__rankset_add(&set, 1000);
    mcpg_agent_event_t events[] = {
        {.kind = MCPG_AGENT_EV_TIMER},
        {.kind = MCPG_AGENT_EV_CONNECTED},
        {.kind = MCPG_AGENT_EV_DISCONNECTED},
        {.kind = MCPG_AGENT_EV_LINK, .u.link = {{1}, {2, 3}, MCPG_LINK_LOST, 4}},
        {.kind = MCPG_AGENT_EV_DEATH, .u.death = {{1}, {2, 3}, MCPG_PROOF_RELAYED}},
        {.kind = MCPG_AGENT_EV_OP_FAILED, .u.op_failed = {{1}, 2, 3, 2, failed}},
        {.kind = MCPG_AGENT_EV_HELD, .u.held = {{1}, {2, 3}, 4}},
        {.kind = MCPG_AGENT_EV_CALL_REGISTER,
         .u.call_register = {9, {key, 3}, {NULL, 0}, {key, 2}, 3, order, 5, true, false, true, 8}},
        {.kind = MCPG_AGENT_EV_CALL_JOIN, .u.call_join = {1, {2}, 3}},
        {.kind = MCPG_AGENT_EV_CALL_PROPOSE, .u.call_propose = {1, {2}, set, set, 3, 4}},
        {.kind = MCPG_AGENT_EV_CALL_SYNC, .u.call_sync = {1, {2}, set, 3, 4}},
        {.kind = MCPG_AGENT_EV_CALL_LEAVE, .u.call_leave = {1, {2}, 3}},
        {.kind = MCPG_AGENT_EV_CALL_DETACH, .u.call_detach = {1}},
    };
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        size_t len = 0, len2 = 0;
        assert_int_equal(mcpg__agent_event_encode(&events[i], buf, sizeof(buf), &len), MCPG_OK);
        mcpg_arena_t arena = {.base = mem, .cap = sizeof(mem)};
        mcpg_down_msg_t msg;
        mcpg_agent_event_t out;
        memset(&out, 0, sizeof(out));
        out.kind = events[i].kind;
        assert_int_equal(mcpg__agent_event_decode(buf, len, &arena, &msg, &out), MCPG_OK);
        assert_int_equal(mcpg__agent_event_encode(&out, again, sizeof(again), &len2), MCPG_OK);
        assert_int_equal(len, len2);
        assert_memory_equal(buf, again, len);
        if (len > 0) assert_int_equal(mcpg__agent_event_decode(buf, len - 1, &arena, &msg, &out), MCPG_CORRUPT);
        assert_int_equal(mcpg__agent_event_decode(buf, len + 1, &arena, &msg, &out), MCPG_CORRUPT);
    }
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {T(test_attach_and_stop),
                                       T(test_refusal_carries_the_sentence),
                                       T(test_nobody_at_the_address),
                                       T(test_hold_is_answered_and_installed),
                                       T(test_event_log_replays_bit_for_bit),
                                       T(test_links_checks_and_deaths_go_through),
                                       T(test_stop_answers_open_calls),
                                       T(test_move_to_another_coordinator),
                                       cmocka_unit_test(test_event_encoding_round_trips)};
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
