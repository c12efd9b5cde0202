/* fuzz_eventlog.c: event logs as `mooncake-pg replay` reads them: bytes as they are, and logs built here record by
 * record with right checksums, cut or damaged. The reader must give exactly the whole records before the first that is
 * not, and what decodes must encode to what decodes to the same. It must never write a log with the writer that it
 * checks.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_host_codec.h"
#include "common/bytes.h"
#include "common/eventlog.h"
#include "coordinator/coord_host_codec.h"
#include "fuzz/fuzz.h"
#include "tools/log_replay.h"

#define FILE_CAP     65536u
#define RECORDS_MOST 24u
#define EVENT_CAP    MCPG_COORD_EVENT_CAP
#define STEPS_MOST   64u
_Static_assert(MCPG_AGENT_EVENT_CAP <= EVENT_CAP, "one buffer serves both machines");

typedef struct {
    uint8_t bytes[FILE_CAP];
    size_t len;
    size_t end[RECORDS_MOST]; /* where each record ends, padding left out: one that is cut there is whole */
    uint32_t count;
    bool damaged[RECORDS_MOST];
    mcpg_eventlog_machine_t machine;
    uint64_t seq;
} log_t;

/* ---- building ---- */

static void put_header(log_t *log, fuzz_in_t *in) {
    log->machine = fuzz_bool(in) ? MCPG_LOG_COORD : MCPG_LOG_AGENT;
    mcpg_put_t put = {.ptr = log->bytes, .cap = FILE_CAP};
    mcpg__put_raw(&put, "MCEL", 4);
    mcpg__put_u16(&put, 1);
    mcpg__put_u16(&put, (uint16_t)log->machine);
    for (uint32_t i = 0; i < 6; i++) mcpg__put_u64(&put, i);
    mcpg__put_u64(&put, 1);
    log->len = put.len;
}

static void put_record(log_t *log, fuzz_in_t *in, const mcpg_record_t *r) {
    size_t size = (24u + r->len + 4u + 7u) & ~(size_t)7u;
    if (log->count == RECORDS_MOST || size > FILE_CAP - log->len) return;
    uint8_t *at = log->bytes + log->len;
    memset(at, 0, size);
    mcpg_put_t put = {.ptr = at, .cap = size};
    mcpg__put_u32(&put, r->len);
    mcpg__put_u16(&put, r->kind);
    mcpg__put_u16(&put, r->flags);
    mcpg__put_u64(&put, r->seq);
    mcpg__put_u64(&put, r->now.us);
    mcpg__put_raw(&put, r->payload, r->len);
    mcpg__put_u32(&put, mcpg__crc32c_portable(0, at, put.len));
    log->end[log->count] = log->len + put.len;
    if (fuzz_u8(in) >= 248) {
        at[fuzz_u8(in) % put.len] ^= (uint8_t)(1u << fuzz_below(in, 8));
        log->damaged[log->count] = true;
    }
    if (r->kind == 0) log->damaged[log->count] = true;
    log->count++;
    log->len += size;
}

static size_t config_bytes(log_t *log, fuzz_in_t *in, uint8_t *buf) {
    size_t len = 0;
    if (log->machine == MCPG_LOG_COORD) {
        mcpg_coord_config_t c = {.term = 1, .max_ranks = 1 + fuzz_below(in, 8), .max_groups = 2, .max_slots_total = 16};
        c.clique_node_budget = 100;
        c.timers = fuzz_timers();
        FUZZ_REQUIRE(mcpg__coord_config_encode(&c, buf, MCPG_COORD_CONFIG_CAP, &len) == MCPG_OK);
    } else {
        mcpg_agent_config_t c = {.session = {7}, .max_ranks = 1 + fuzz_below(in, 8), .max_groups = 2};
        c.max_slots_total = 16;
        c.max_calls = 4;
        c.max_reports = 4;
        c.attach_timeout_us = 1000000;
        c.timers = fuzz_timers();
        FUZZ_REQUIRE(mcpg__agent_config_encode(&c, buf, MCPG_AGENT_CONFIG_CAP, &len) == MCPG_OK);
    }
    if (fuzz_u8(in) >= 240) len = fuzz_u8(in) % (len + 1);
    return len;
}

/* An event's payload: a message, or bytes as they come. */
static size_t event_bytes(log_t *log, fuzz_in_t *in, uint8_t *buf, uint16_t *kind_out) {
    bool coord = log->machine == MCPG_LOG_COORD;
    *kind_out = (uint16_t)fuzz_below(in, coord ? MCPG_COORD_EV__COUNT : MCPG_AGENT_EV__COUNT);
    if (fuzz_u8(in) >= 250) *kind_out = (uint16_t)fuzz_u64(in);
    mcpg_put_t put = {.ptr = buf, .cap = EVENT_CAP};
    bool message = coord ? *kind_out == MCPG_COORD_EV_MSG : *kind_out == MCPG_AGENT_EV_MSG;
    size_t len = 0;
    if (message && coord) {
        mcpg_up_msg_t m =
            fuzz_up(in, (mcpg_up_kind_t)fuzz_below(in, MCPG_UP__COUNT), &fuzz_hints_none, fuzz_build_arena());
        mcpg__put_u64(&put, fuzz_u8(in));
        if (mcpg__up_pack(&m, put.ptr + put.len, put.cap - put.len, &len) != MCPG_OK) len = 0;
    } else if (message) {
        mcpg_down_msg_t m =
            fuzz_down(in, (mcpg_down_kind_t)fuzz_below(in, MCPG_DOWN__COUNT), &fuzz_hints_none, fuzz_build_arena());
        if (mcpg__down_pack(&m, put.ptr, put.cap, &len) != MCPG_OK) len = 0;
    } else {
        uint32_t raw = fuzz_below(in, 96);
        for (uint32_t i = 0; i < raw; i++) mcpg__put_u8(&put, fuzz_u8(in));
    }
    return put.len + len;
}

static void put_some_record(log_t *log, fuzz_in_t *in) {
    static uint8_t payload[EVENT_CAP];
    mcpg_record_t r = {.kind = MCPG_REC_EVENT, .payload = payload};
    uint8_t what = fuzz_u8(in);
    if (what < 128) {
        r.len = (uint32_t)event_bytes(log, in, payload, &r.flags);
        log->seq++;
    } else if (what < 192) {
        r.kind = MCPG_REC_EFFECTS;
        r.flags = fuzz_u8(in);
        r.len = 4;
        memset(payload, fuzz_u8(in), r.len);
    } else if (what < 224) {
        r.kind = MCPG_REC_DIGEST;
        r.len = 8;
        memset(payload, fuzz_u8(in), r.len);
    } else {
        r.kind = (uint16_t)fuzz_below(in, 6);
        r.flags = (uint16_t)fuzz_u64(in);
        r.len = fuzz_below(in, 64);
        memset(payload, what, r.len);
    }
    r.seq = fuzz_u8(in) < 240 ? log->seq : fuzz_u64(in);
    r.now.us = fuzz_u64(in);
    put_record(log, in, &r);
}

/* ---- checking ---- */

typedef struct {
    const log_t *log; /* NULL: nothing is known of what comes */
    const uint8_t *file;
    size_t len;
    uint64_t seen, stop_after;
    mcpg_eventlog_machine_t machine;
} reading_t;

/* What was decoded encodes to bytes that decode, and encode to the same again. */
static void check_coord_event(const mcpg_coord_event_t *event) {
    static uint8_t one[EVENT_CAP], two[EVENT_CAP];
    size_t one_len = 0, two_len = 0;
    mcpg_arena_t *arena = fuzz_build_arena();
    mcpg_up_msg_t msg;
    mcpg_coord_event_t again = {.now = event->now, .kind = event->kind};
    FUZZ_REQUIRE(mcpg__coord_event_encode(event, NULL, 0, one, sizeof one, &one_len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__coord_event_decode(one, one_len, arena, &msg, &again) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__coord_event_encode(&again, NULL, 0, two, sizeof two, &two_len) == MCPG_OK);
    FUZZ_REQUIRE(one_len == two_len && memcmp(one, two, one_len) == 0);
}

static void check_agent_event(const mcpg_agent_event_t *event) {
    static uint8_t one[MCPG_AGENT_EVENT_CAP], two[MCPG_AGENT_EVENT_CAP];
    if (event->kind == MCPG_AGENT_EV_MSG || event->kind == MCPG_AGENT_EV_VIEW_TOLD) return; /* fuzz_down.c's */
    size_t one_len = 0, two_len = 0;
    mcpg_arena_t *arena = fuzz_build_arena();
    mcpg_down_msg_t msg;
    mcpg_agent_event_t again;
    memset(&again, 0, sizeof again);
    again.kind = event->kind;
    FUZZ_REQUIRE(mcpg__agent_event_encode(event, one, sizeof one, &one_len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__agent_event_decode(one, one_len, arena, &msg, &again) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__agent_event_encode(&again, two, sizeof two, &two_len) == MCPG_OK);
    FUZZ_REQUIRE(one_len == two_len && memcmp(one, two, one_len) == 0);
}

static void check_event(mcpg_eventlog_machine_t machine, const mcpg_record_t *r) {
    mcpg_arena_t *arena = fuzz_decode_arena();
    if (machine == MCPG_LOG_COORD) {
        mcpg_up_msg_t msg;
        mcpg_coord_event_t event = {.now = r->now, .kind = (mcpg_coord_ev_kind_t)r->flags};
        if (r->flags >= MCPG_COORD_EV__COUNT) return;
        if (mcpg__coord_event_decode(r->payload, r->len, arena, &msg, &event) == MCPG_OK) check_coord_event(&event);
        return;
    }
    mcpg_down_msg_t msg;
    mcpg_agent_event_t event;
    memset(&event, 0, sizeof event);
    event.kind = (mcpg_agent_ev_kind_t)r->flags;
    if (r->flags >= MCPG_AGENT_EV__COUNT) return;
    if (mcpg__agent_event_decode(r->payload, r->len, arena, &msg, &event) == MCPG_OK) check_agent_event(&event);
}

static bool see_record(void *user, const mcpg_record_t *r) {
    reading_t *reading = user;
    FUZZ_REQUIRE(r->payload >= reading->file && r->len <= reading->len);
    FUZZ_REQUIRE(r->payload + r->len <= reading->file + reading->len && r->kind != 0);
    if (reading->log != NULL) {
        FUZZ_REQUIRE(reading->seen < reading->log->count && !reading->log->damaged[reading->seen]);
        FUZZ_REQUIRE((size_t)(r->payload + r->len + 4 - reading->file) == reading->log->end[reading->seen]);
    }
    if (r->kind == MCPG_REC_EVENT) check_event(reading->machine, r);
    reading->seen++;
    return reading->seen != reading->stop_after;
}

static void check_read(const log_t *log, const uint8_t *file, size_t len, uint64_t expected) {
    reading_t reading = {.log = log, .file = file, .len = len, .stop_after = UINT64_MAX};
    uint64_t count = 0;
    mcpg_eventlog_machine_t machine;
    mcpg_eventlog_header_t header;
    if (mcpg__eventlog_header(file, len, &header) == MCPG_OK) reading.machine = header.machine;
    mcpg_status_t status = mcpg__eventlog_read(file, len, see_record, &reading, &count, &machine);
    if (status != MCPG_OK) {
        FUZZ_REQUIRE(status == MCPG_CORRUPT && log == NULL);
        return;
    }
    FUZZ_REQUIRE(count == reading.seen && (machine == MCPG_LOG_COORD || machine == MCPG_LOG_AGENT));
    if (log != NULL) FUZZ_REQUIRE(count == expected && machine == log->machine);
    if (count < 2) return;
    reading.seen = 0;
    reading.stop_after = 1;
    FUZZ_REQUIRE(mcpg__eventlog_read(file, len, see_record, &reading, &count, &machine) == MCPG_OK && count == 1);
}

static void replay(const mcpg_log_file_t *file, bool steps) {
    mcpg_replay_t *replay = calloc(1, sizeof *replay);
    char error[512];
    FUZZ_REQUIRE(replay != NULL);
    if (mcpg__replay_open(replay, file, steps, error, sizeof error)) {
        uint32_t i = 0;
        while (i < STEPS_MOST && mcpg__replay_next(replay, NULL, NULL) == MCPG_REPLAY_EVENT) i++;
        if (replay->coord != NULL) FUZZ_REQUIRE_NULL(mcpg_coord_check(replay->coord));
        if (replay->agent != NULL) FUZZ_REQUIRE_NULL(mcpg_agent_check(replay->agent));
        mcpg__replay_close(replay);
    }
    free(replay);
}

static void check_replay(uint8_t *bytes, size_t len, bool steps) {
    char name[] = "log";
    mcpg_log_file_t file = {.prefix = name, .count = 1, .segment = {{.path = name, .bytes = bytes, .len = len}}};
    if (mcpg__eventlog_header(bytes, len, &file.segment[0].header) != MCPG_OK) return;
    replay(&file, steps);
}

/* The bytes get a block of just their length, so that reading on is seen. */
static void run_file(const log_t *log, const uint8_t *data, size_t len, uint64_t expected, uint8_t mode) {
    uint8_t *file = malloc(len > 0 ? len : 1);
    FUZZ_REQUIRE(file != NULL);
    if (len > 0) memcpy(file, data, len);
    check_read(log, file, len, expected);
    /* Now and then, for it takes long; steps only a machine that was made small here. */
    if (mode % 16u < 2) check_replay(file, len, log != NULL && mode % 16u == 1);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_in_t in = {data, data + size};
    uint8_t mode = fuzz_u8(&in);
    if (mode >= 224) {
        run_file(NULL, in.at, fuzz_left(&in), 0, mode);
        return 0;
    }
    static log_t log;
    static uint8_t config[MCPG_AGENT_CONFIG_CAP];
    memset(&log, 0, sizeof log);
    put_header(&log, &in);
    mcpg_record_t first = {.kind = MCPG_REC_CONFIG, .payload = config};
    first.len = (uint32_t)config_bytes(&log, &in, config);
    size_t cut = fuzz_u8(&in);
    put_record(&log, &in, &first);
    while (fuzz_left(&in) > 0 && log.count < RECORDS_MOST) put_some_record(&log, &in);
    size_t len = cut < 200 || cut > log.len - 64 ? log.len : log.len - (cut - 199);
    uint64_t whole = 0;
    while (whole < log.count && !log.damaged[whole] && log.end[whole] <= len) whole++;
    run_file(&log, log.bytes, len, whole, mode);
    return 0;
}
