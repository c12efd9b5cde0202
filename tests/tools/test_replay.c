/* test_replay.c: mooncake-pg replay: a log that is as it was recorded, one with another event, one with other effects,
 * a damaged one, a cut one, one whose start was overwritten; its text; the machine's state; wrong usage.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_host_codec.h"
#include "coordinator/coord_host_codec.h"
#include "tools/log_replay.h"
#include "tools/tool_run.h"

#define SAYS(text, words)                                                                                              \
    do {                                                                                                               \
        if (strstr(text, words) == NULL) fail_msg("\"%s\" is not in: %s", words, text);                                \
    } while (0)

/* ---- logs ---- */

static void story(void) {
    tool_log_script(TEST_FOLDER "/tools/story-4.script", "story");
}

/* A coordinator that is attached to once and then hears heartbeats, in small segments. */
static void heartbeats(const char *prefix, uint32_t count) {
    mcpg_coord_config_t config = {.term = 5,
                                  .coordinator_id = 9,
                                  .max_ranks = 8,
                                  .max_groups = 4,
                                  .max_slots_total = 64,
                                  .clique_node_budget = 1000,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    uint8_t bytes[MCPG_COORD_CONFIG_CAP], *buf = malloc(MCPG_COORD_EVENT_CAP);
    size_t len = 0, size = mcpg_coord_size(&config);
    mcpg_eventlog_t *log = NULL;
    mcpg_coord_effects_t fx = {0};
    mcpg_coord_t *coord = NULL;
    mcpg_coord_effects_worst(&config, &fx.cap, &fx.arena_cap);
    fx.items = calloc(fx.cap, sizeof *fx.items);
    fx.arena = calloc(1, fx.arena_cap);
    void *mem = calloc(1, size);
    assert_int_equal(mcpg_coord_init(mem, size, &config, &coord), MCPG_OK);
    assert_int_equal(mcpg__coord_config_encode(&config, bytes, sizeof bytes, &len), MCPG_OK);
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_COORD, bytes, (uint32_t)len, (size_t)64 << 10, &log),
                     MCPG_OK);
    for (uint32_t i = 0; i < count; i++) {
        mcpg_up_msg_t msg = {.kind = i == 0 ? MCPG_UP_ATTACH : MCPG_UP_HEARTBEAT};
        if (i == 0)
            msg.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                              .session = {77},
                                              .host_id = 1,
                                              .pid = 4,
                                              .endpoint = {(const uint8_t *)"a b\"c", 5}};
        else
            msg.u.heartbeat.sent_us = i;
        mcpg_coord_event_t event = {.now = {1000u + i}, .kind = MCPG_COORD_EV_MSG, .conn = 3, .msg = &msg};
        mcpg__coord_log_event(log, i + 1u, &event, NULL, 0, buf);
        mcpg_coord_effects_reset(&fx);
        assert_int_equal(mcpg_coord_step(coord, &event, &fx), MCPG_OK);
        uint32_t crc = mcpg__coord_effects_crc(&fx, buf, MCPG_COORD_EVENT_CAP);
        mcpg__coord_log_effects(log, i + 1u, event.now, fx.count, crc, coord);
    }
    mcpg__eventlog_close(log);
    free(mem);
    free(fx.items);
    free(fx.arena);
    free(buf);
}

/* ---- as it was ---- */

static void test_same(void **state) {
    (void)state;
    story();
    const char *prefix = tool_path("story");
    tool_result_t r = TOOL("replay", prefix);
    assert_int_equal(r.code, 0);
    unsigned long events = 0, digests = 0;
    assert_int_equal(sscanf(r.out, "ok: %lu events, %lu digests", &events, &digests), 2);
    assert_true(events > 200 && digests == events / 64u);
    assert_string_equal(r.err, "");
    char *first = strdup(r.out);
    r = TOOL("replay", tool_path("story.0")); /* by a segment, by the folder, twice the same */
    assert_string_equal(r.out, first);
    r = TOOL("replay", tool_folder);
    assert_int_equal(r.code, 0);
    SAYS(r.out, first);
    r = TOOL("replay", tool_path("story.0"), prefix);
    assert_string_equal(r.out, first);
    free(first);
}

/* Two segments, none lost: the machine goes on across them. */
static void test_two_segments(void **state) {
    (void)state;
    heartbeats(tool_path("two"), 900);
    assert_int_equal(access(tool_path("two.1"), F_OK), 0);
    tool_result_t r = TOOL("replay", tool_path("two"));
    assert_int_equal(r.code, 0);
    SAYS(r.out, "ok: 900 events, 14 digests");
}

static void test_overwritten(void **state) {
    (void)state;
    heartbeats(tool_path("long"), 3000);
    tool_result_t r = TOOL("replay", tool_path("long"));
    assert_int_equal(r.code, 2);
    SAYS(r.err, "cannot be replayed from the start");
    SAYS(r.err, "--text");
    assert_string_equal(r.out, "");
    r = TOOL("replay", "--text", tool_path("long"));
    assert_int_equal(r.code, 0);
    SAYS(r.out, "its start was overwritten");
    SAYS(r.out, "config term 5 id 9 ranks 8");
    SAYS(r.out, "c3 HEARTBEAT sent 2999\n");
    r = TOOL("replay", "--text", "--effects", tool_path("long"));
    assert_int_equal(r.code, 2);
}

/* ---- not as it was ---- */

static void test_changed_event(void **state) {
    (void)state;
    story();
    size_t len = 0;
    uint8_t *file = (uint8_t *)tool_read(tool_path("story.0"), &len);
    mcpg_record_t record;
    size_t at = tool_find_event(file, len, MCPG_COORD_EV_EXIT, 1, &record);
    file[at + 24] = 1; /* rank 1's process has ended, not rank 2's */
    tool_fix_crc(file, at);
    tool_write(tool_path("story.0"), file, len);
    tool_result_t r = TOOL("replay", tool_path("story"));
    assert_int_equal(r.code, 1);
    char words[160];
    (void)snprintf(words, sizeof words, "event %llu has other effects: ", (unsigned long long)record.seq);
    SAYS(r.err, words);
    (void)snprintf(words, sizeof words, "event %llu at %llu us: exit 1 pid ", (unsigned long long)record.seq,
                   (unsigned long long)record.now.us);
    SAYS(r.err, words);
    assert_string_equal(r.out, "");
    r = TOOL("timeline", tool_path("story"), "-o", tool_path("story.svg"));
    assert_int_equal(r.code, 1);
    SAYS(r.err, "drawn up to there");
    free(file);
}

static void test_changed_effects(void **state) {
    (void)state;
    story();
    size_t len = 0, at;
    uint8_t *file = (uint8_t *)tool_read(tool_path("story.0"), &len);
    mcpg_record_t record;
    (void)tool_find_event(file, len, -1, 40, &record);
    for (at = 64; memcmp(file + at + 4, "\2\0", 2) != 0 || memcmp(file + at + 8, "\50\0\0\0", 4) != 0; at += 8)
        ;
    file[at + 24] ^= 0x40; /* the CRC of event 40's effects */
    tool_fix_crc(file, at);
    tool_write(tool_path("story.0"), file, len);
    tool_result_t r = TOOL("replay", tool_path("story"));
    assert_int_equal(r.code, 1);
    SAYS(r.err, "event 40 has other effects: ");
    SAYS(r.err, "effects now, status OK:");
    r = TOOL("replay", "--until", "39", tool_path("story"));
    assert_int_equal(r.code, 0);
    free(file);
}

static void test_changed_digest(void **state) {
    (void)state;
    story();
    size_t len = 0, at;
    uint8_t *file = (uint8_t *)tool_read(tool_path("story.0"), &len);
    for (at = 64; memcmp(file + at, "\10\0\0\0\3\0", 6) != 0; at += 8)
        ;
    file[at + 24] ^= 1;
    tool_fix_crc(file, at);
    tool_write(tool_path("story.0"), file, len);
    tool_result_t r = TOOL("replay", tool_path("story"));
    assert_int_equal(r.code, 1);
    SAYS(r.err, "after event 64 the state is another");
    free(file);
}

static void test_damage(void **state) {
    (void)state;
    story();
    size_t len = 0;
    uint8_t *file = (uint8_t *)tool_read(tool_path("story.0"), &len);
    mcpg_record_t record;
    size_t at = tool_find_event(file, len, -1, 30, &record);
    file[at + 26] ^= 0x20;
    tool_write(tool_path("story.0"), file, len);
    tool_result_t r = TOOL("replay", tool_path("story"));
    assert_int_equal(r.code, 1);
    SAYS(r.err, "is damaged at byte");
    SAYS(r.err, "behind event 29:");
    file[at + 26] ^= 0x20;
    file[0] = 'X';
    tool_write(tool_path("story.0"), file, len);
    r = TOOL("replay", tool_path("story"));
    assert_int_equal(r.code, 2);
    SAYS(r.err, "is no event log");
    free(file);
}

/* Cut anywhere, what is whole is replayed; never a crash, never a false difference. */
static void test_cut(void **state) {
    (void)state;
    story();
    size_t len = 0;
    uint8_t *file = (uint8_t *)tool_read(tool_path("story.0"), &len);
    tool_write(tool_path("cut.0"), file, len - 20);
    tool_result_t r = TOOL("replay", tool_path("cut"));
    assert_int_equal(r.code, 0);
    SAYS(r.err, "its writer died");
    uint64_t most = 0;
    for (size_t cut = len; cut > 200; cut -= cut > 1500 ? 97 : 1) {
        tool_write(tool_path("cut.0"), file, cut);
        mcpg_log_file_t log;
        mcpg_replay_t replay;
        char error[512];
        assert_true(mcpg__log_file_load(tool_path("cut"), &log, error, sizeof error));
        if (mcpg__replay_open(&replay, &log, true, error, sizeof error)) {
            mcpg_replay_found_t found;
            while ((found = mcpg__replay_next(&replay, NULL, NULL)) == MCPG_REPLAY_EVENT) {
            }
            if (found != MCPG_REPLAY_END) fail_msg("cut at %zu: %s", cut, replay.problem);
            if (most != 0) assert_true(replay.events <= most);
            most = replay.events;
            mcpg__replay_close(&replay);
        }
        mcpg__log_file_free(&log);
    }
    assert_true(most < 3);
    free(file);
}

/* ---- state ---- */

static void test_dump(void **state) {
    (void)state;
    story();
    tool_result_t r = TOOL("replay", "--until", "30", "--dump", tool_path("story"));
    assert_int_equal(r.code, 0);
    SAYS(r.out, "state after event 30:\ncoordinator term 1 id 7");
    SAYS(r.out, "\nrank 3/4 HEALTHY conn 4 ");
    SAYS(r.out, "\ngroup g1 READY view 1 ");
    SAYS(r.out, "\n  slot 2 rank 2 registered /3 active /3");
    r = TOOL("replay", "--until", "100000", "--dump", tool_path("story"));
    assert_int_equal(r.code, 2);
    SAYS(r.err, "ends with event ");
}

/* The whole text, and cut short it never goes beyond its buffer. */
static void dump_all(const char *prefix, char *text, size_t cap) {
    mcpg_log_file_t log;
    mcpg_replay_t r;
    char error[512] = "";
    if (!mcpg__log_file_load(prefix, &log, error, sizeof error)) fail_msg("%s", error);
    if (!mcpg__replay_open(&r, &log, true, error, sizeof error)) fail_msg("%s", error);
    while (mcpg__replay_next(&r, NULL, NULL) == MCPG_REPLAY_EVENT) {
        bool is_coord = r.machine == MCPG_LOG_COORD;
        size_t len = is_coord ? mcpg_coord_dump(r.coord, text, cap) : mcpg_agent_dump(r.agent, text, cap),
               cut = len / 2;
        assert_true(len > 50 && len < cap && len == strlen(text) && text[len - 1] == '\n');
        char before = text[cut];
        assert_int_equal(is_coord ? mcpg_coord_dump(r.coord, NULL, 0) : mcpg_agent_dump(r.agent, NULL, 0), len);
        assert_int_equal(is_coord ? mcpg_coord_dump(r.coord, text, cut) : mcpg_agent_dump(r.agent, text, cut), len);
        assert_int_equal(text[cut - 1], '\0');
        assert_int_equal(text[cut], before);
    }
    mcpg__replay_close(&r);
    mcpg__log_file_free(&log);
}

/* After every event of every script, of each of its coordinators. */
static void test_dump_everywhere(void **state) {
    (void)state;
    glob_t found;
    size_t cap = 4u << 20, good = 0;
    char *text = malloc(cap);
    assert_int_equal(glob(TEST_FOLDER "/script/coord/*.script", 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 20);
    tool_log_script(TEST_FOLDER "/tools/story-4.script", "story");
    dump_all(tool_path("story"), text, cap);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        bool runs = tool_try_script(found.gl_pathv[i], "d");
        good += runs;
        if (runs) dump_all(tool_path("d"), text, cap);
        if (runs && access(tool_path("d-2.0"), F_OK) == 0) dump_all(tool_path("d-2"), text, cap);
        (void)unlink(tool_path("d-2.0"));
    }
    assert_true(good * 10 >= found.gl_pathc * 8);
    globfree(&found);
    free(text);
}

/* ---- an agent ---- */

typedef struct {
    mcpg_eventlog_t *log;
    mcpg_agent_t *agent;
    mcpg_agent_effects_t fx;
    uint8_t *payload, *scratch;
    uint64_t seq, now;
} agent_run_t;

static void agent_step(agent_run_t *a, mcpg_agent_event_t e) {
    size_t len = 0;
    e.now.us = a->now += 1000;
    if (e.kind == MCPG_AGENT_EV_MSG)
        assert_int_equal(mcpg__down_pack(e.u.msg, a->payload, MCPG_MSG_CAP, &len), MCPG_OK);
    else
        assert_int_equal(mcpg__agent_event_encode(&e, a->payload, MCPG_MSG_CAP, &len), MCPG_OK);
    mcpg__eventlog_event(a->log, ++a->seq, e.now, (uint16_t)e.kind, a->payload, len);
    mcpg_agent_effects_reset(&a->fx);
    assert_int_equal(mcpg_agent_step(a->agent, &e, &a->fx), MCPG_OK);
    mcpg__eventlog_effects(a->log, a->seq, e.now, a->fx.count,
                           mcpg__agent_effects_crc(&a->fx, a->scratch, MCPG_MSG_CAP + 4096u));
    if (mcpg__eventlog_digest_due(a->seq)) mcpg__eventlog_digest(a->log, a->seq, e.now, mcpg_agent_digest(a->agent));
}

static void agent_hears(agent_run_t *a, mcpg_down_msg_t msg) {
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_MSG, .u.msg = &msg});
}

static void agent_acts(agent_run_t *a) {
    static const uint32_t order[] = {0, 1};
    static const mcpg_member_t active[] = {{{0}, {0}, {1, 3}}, {{1}, {1}, {1, 4}}};
    mcpg_view_body_t view = {.id = {1, 1}, .active_count = 2, .active = active};
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
    agent_hears(a,
                (mcpg_down_msg_t){
                    .kind = MCPG_DOWN_WELCOME,
                    .u.welcome = {
                        .term = 1, .coordinator_id = 8, .inc = {1, 3}, .heartbeat_us = 200000, .offline_us = 5000000}});
    mcpg_rank_info_t ranks[] = {{.rank = {0},
                                 .inc = {1, 3},
                                 .state = MCPG_RANK_HEALTHY,
                                 .host_id = 1,
                                 .pid = 5,
                                 .endpoint = {(const uint8_t *)"x", 1}},
                                {.rank = {1},
                                 .inc = {1, 4},
                                 .state = MCPG_RANK_HEALTHY,
                                 .host_id = 1,
                                 .pid = 6,
                                 .endpoint = {(const uint8_t *)"y", 1}}};
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_RANK_STATES,
                                     .u.rank_states = {.full = true, .count = 2, .ranks = ranks}});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_LINK,
                                       .u.link = {.rank = {1}, .inc = {1, 4}, .state = MCPG_LINK_UP}});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CALL_REGISTER,
                                       .u.call_register = {.call_id = 11,
                                                           .label = {(const uint8_t *)"main", 4},
                                                           .order_count = 2,
                                                           .order = order,
                                                           .capacity = 2}});
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_REGISTERED,
                                     .u.registered = {.call_id = 11, .gid = {1}, .slot = {0}, .capacity = 2}});
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_PREPARE, .u.prepare = {.gid = {1}, .view = view}});
    agent_step(a,
               (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_HELD, .u.held = {.gid = {1}, .view = {1, 1}, .next_seq = 0}});
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_COMMIT, .u.commit = {.gid = {1}, .view = view}});
    agent_step(a, (mcpg_agent_event_t){
                      .kind = MCPG_AGENT_EV_OP_FAILED,
                      .u.op_failed = {.gid = {1}, .report_id = 5, .seq = 2, .failed_count = 1, .failed = &active[1]}});
    agent_step(a, (mcpg_agent_event_t){
                      .kind = MCPG_AGENT_EV_CALL_SYNC,
                      .u.call_sync = {.call_id = 12, .gid = {1}, .first_failed_seq = 2, .timeout_us = 9000000}});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_DEATH, .u.death = {.rank = {1}, .inc = {1, 4}}});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_DISCONNECTED});
}

/* Long after: it is back, learns of a sync that it missed, and goes. */
static void agent_returns(agent_run_t *a) {
    static const mcpg_member_t active[] = {{{0}, {0}, {1, 3}}};
    mcpg_view_body_t view = {.id = {1, 2}, .active_count = 1, .active = active};
    for (int i = 0; i < 60; i++) agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    mcpg_group_member_t members[] = {{.slot = {0}, .rank = {0}, .inc = {1, 3}, .awaiting = true},
                                     {.slot = {1}, .rank = {1}, .inc = {1, 5}}};
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_WELCOME,
                                     .u.welcome = {.term = 1,
                                                   .coordinator_id = 8,
                                                   .inc = {1, 3},
                                                   .resumed = true,
                                                   .heartbeat_us = 200000,
                                                   .offline_us = 5000000}});
    agent_hears(
        a, (mcpg_down_msg_t){.kind = MCPG_DOWN_MEMBERS, .u.members = {.gid = {1}, .count = 2, .members = members}});
    mcpg_leave_t leave = {.slot = {1}, .leave_seq = 4};
    mcpg_down_commit_t commit = {.gid = {1},
                                 .view = view,
                                 .switch_seq = UINT64_C(1) << 32,
                                 .leave_count = 1,
                                 .leaves = &leave,
                                 .sync = true,
                                 .sync_first_failed_seq = 2};
    mcpg__rankset_add(&commit.sync_failed, 1);
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_COMMIT, .u.commit = commit});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CALL_DETACH, .u.call_detach = {.call_id = 13}});
}

static void agent_lives(agent_run_t *a) {
    agent_acts(a);
    agent_returns(a);
}

/* One that is refused for good. */
static void agent_is_refused(agent_run_t *a) {
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
    agent_hears(a, (mcpg_down_msg_t){.kind = MCPG_DOWN_REFUSED,
                                     .u.refused = {.status = MCPG_INVALID_STATE, .text = {(const uint8_t *)"go", 2}}});
}

static void agent_log(const char *prefix, void (*acts)(agent_run_t *)) {
    agent_run_t a = {.payload = malloc(MCPG_MSG_CAP), .scratch = malloc(MCPG_MSG_CAP + 4096u), .now = 1000000};
    mcpg_agent_config_t config = {.session = {99},
                                  .host_id = 1,
                                  .pid = 5,
                                  .endpoint = "x",
                                  .endpoint_len = 1,
                                  .max_ranks = 16,
                                  .max_groups = 4,
                                  .max_slots_total = 64,
                                  .max_calls = 8,
                                  .max_reports = 8,
                                  .attach_timeout_us = 9000000,
                                  .seed = 3,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    uint8_t bytes[MCPG_AGENT_CONFIG_CAP];
    size_t len = 0, size = mcpg_agent_size(&config);
    mcpg_agent_effects_worst(&config, &a.fx.cap, &a.fx.arena_cap);
    a.fx.items = calloc(a.fx.cap, sizeof *a.fx.items);
    a.fx.arena = calloc(1, a.fx.arena_cap);
    void *mem = calloc(1, size);
    assert_int_equal(mcpg_agent_init(mem, size, &config, &a.agent), MCPG_OK);
    assert_int_equal(mcpg__agent_config_encode(&config, bytes, sizeof bytes, &len), MCPG_OK);
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, bytes, (uint32_t)len, 0, &a.log), MCPG_OK);
    acts(&a);
    mcpg__eventlog_close(a.log);
    free(mem);
    free(a.fx.items);
    free(a.fx.arena);
    free(a.payload);
    free(a.scratch);
}

static void test_agent(void **state) {
    (void)state;
    agent_log(tool_path("agent"), agent_lives);
    agent_log(tool_path("refused"), agent_is_refused);
    char *text = malloc(1 << 20);
    dump_all(tool_path("agent"), text, 1 << 20);
    dump_all(tool_path("refused"), text, 1 << 20);
    free(text);
    tool_result_t r = TOOL("replay", tool_path("agent"));
    if (r.code != 0) fail_msg("%s", r.err);
    SAYS(r.out, "ok: 79 events, 1 digests");
    r = TOOL("replay", "--text", "--effects", tool_path("agent"));
    assert_int_equal(r.code, 0);
    SAYS(r.out, "agent rank 0 session 99 ");
    SAYS(r.out, "\n3 at 1003000 MSG WELCOME inc 3\n");
    SAYS(r.out, "\n  -> ATTACH version 1 rank 0 session 99");
    SAYS(r.out, "\n  LINK_OPEN rank 1/4 host 1 pid 6\n");
    SAYS(r.out, "\n  DP_INSTALL COMMIT g1@1 {0:0/3 1:1/4} switch 0\n");
    SAYS(r.out, "\n11 at 1011000 OP_FAILED g1 report 5 seq 2 failed 1:1/4\n");
    r = TOOL("replay", "--until", "12", "--dump", tool_path("agent"));
    assert_int_equal(r.code, 0);
    SAYS(r.out, "state after event 12:\nagent rank 0/3 ATTACHED session 99");
    SAYS(r.out, "\nrank 1/4 HEALTHY link up /4 open /4");
    SAYS(r.out, ": g1 OPEN own_slot 0 capacity 2 committed 1");
    SAYS(r.out, "\n  slot 1 rank 1 ");
    SAYS(r.out, "\ncall 12 SYNC ");
    SAYS(r.out, "\nreport 5 group 0 seq 2 failed 1:1/4");
    r = TOOL("replay", "--until", "14", "--dump", tool_path("agent"));
    SAYS(r.out, " lost ");
    r = TOOL("replay", "--until", "78", "--dump", tool_path("agent"));
    SAYS(r.out, "committed 2 highest 2 next ");
    SAYS(r.out, " sync_failed 1 sync_first 2");
    r = TOOL("replay", "--dump", tool_path("agent"));
    SAYS(r.out, "agent rank 0/3 STOPPED ");
    r = TOOL("replay", "--dump", tool_path("refused"));
    SAYS(r.out, "agent rank 0/0 FAILED ");
    r = TOOL("timeline", tool_path("agent"), "-o", tool_path("agent.svg"));
    assert_int_equal(r.code, 2);
    SAYS(r.err, "is an agent's log");
    size_t len = 0;
    mcpg_record_t record;
    uint8_t *file = (uint8_t *)tool_read(tool_path("agent.0"), &len);
    size_t at = tool_find_event(file, len, MCPG_AGENT_EV_OP_FAILED, 1, &record);
    file[at + 24 + 4] ^= 1; /* another report id */
    tool_fix_crc(file, at);
    tool_write(tool_path("agent.0"), file, len);
    r = TOOL("replay", tool_path("agent"));
    assert_int_equal(r.code, 1);
    SAYS(r.err, "event 11 has other effects");
    SAYS(r.err, "OP_FAILED g1 report 4 ");
    free(file);
}

static void test_usage(void **state) {
    (void)state;
    assert_int_equal(TOOL("replay").code, 2);
    assert_int_equal(TOOL("nonsense").code, 2);
    assert_int_equal(TOOL("replay", "--nonsense").code, 2);
    assert_int_equal(TOOL("replay", "--until", "x", tool_folder).code, 2);
    tool_result_t r = TOOL("replay", "/nonexistent/log");
    assert_int_equal(r.code, 2);
    SAYS(r.err, "'/nonexistent/log'");
    assert_int_equal(TOOL("replay", "--help").code, 0);
    assert_int_equal(TOOL("timeline", "--help").code, 0);
    assert_int_equal(TOOL("timeline", tool_folder).code, 2);
    assert_int_equal(TOOL("--help").code, 0);
    assert_int_equal(TOOL("--version").code, 0);
    assert_int_equal(tool_run((const char *const[]){MOONCAKE_PG, NULL}).code, 2);
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, tool_set_up, tool_tear_down)
    const struct CMUnitTest tests[] = {
        T(test_same),
        T(test_two_segments),
        T(test_overwritten),
        T(test_changed_event),
        T(test_changed_effects),
        T(test_changed_digest),
        T(test_damage),
        T(test_cut),
        T(test_dump),
        T(test_dump_everywhere),
        T(test_agent),
        T(test_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
