/* log_replay.c: see log_replay.h. */
#include "tools/log_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_host_codec.h"
#include "common/bytes.h"
#include "coordinator/coord_host_codec.h"

#define SCRATCH_CAP (MCPG_COORD_EVENT_CAP + 4096u)
_Static_assert(MCPG_COORD_DECODE_CAP >= MCPG_DECODE_ARENA_CAP, "one arena serves both machines");

/* ---- making the machine ---- */

static void *zeroed(size_t size) {
    return calloc(1, size > 0 ? size : 1u);
}

static bool make_coord(mcpg_replay_t *r) {
    if (mcpg__coord_config_decode(r->cursor.config.ptr, r->cursor.config.len, &r->coord_config) != MCPG_OK)
        return false;
    if (!r->steps) return true;
    size_t size = mcpg_coord_size(&r->coord_config);
    mcpg_coord_effects_worst(&r->coord_config, &r->coord_fx.cap, &r->coord_fx.arena_cap);
    r->memory = zeroed(size);
    r->coord_fx.items = zeroed(r->coord_fx.cap * sizeof *r->coord_fx.items);
    r->coord_fx.arena = zeroed(r->coord_fx.arena_cap);
    return r->memory != NULL && r->coord_fx.items != NULL && r->coord_fx.arena != NULL &&
           mcpg_coord_init(r->memory, size, &r->coord_config, &r->coord) == MCPG_OK;
}

static bool make_agent(mcpg_replay_t *r) {
    if (mcpg__agent_config_decode(r->cursor.config.ptr, r->cursor.config.len, &r->agent_config) != MCPG_OK)
        return false;
    if (!r->steps) return true;
    size_t size = mcpg_agent_size(&r->agent_config);
    mcpg_agent_effects_worst(&r->agent_config, &r->agent_fx.cap, &r->agent_fx.arena_cap);
    r->memory = zeroed(size);
    r->agent_fx.items = zeroed(r->agent_fx.cap * sizeof *r->agent_fx.items);
    r->agent_fx.arena = zeroed(r->agent_fx.arena_cap);
    return r->memory != NULL && r->agent_fx.items != NULL && r->agent_fx.arena != NULL &&
           mcpg_agent_init(r->memory, size, &r->agent_config, &r->agent) == MCPG_OK;
}

bool mcpg__replay_open(mcpg_replay_t *r, const mcpg_log_file_t *log, bool steps, char *error, size_t error_cap) {
    memset(r, 0, sizeof *r);
    r->machine = log->segment[0].header.machine;
    r->steps = steps;
    r->cursor.log = log;
    if (steps && !mcpg__log_file_has_start(log)) {
        (void)snprintf(error, error_cap,
                       "'%s' cannot be replayed from the start: its first segments were overwritten, %llu of them; "
                       "--text prints what is left",
                       log->prefix, (unsigned long long)log->segment[0].header.number - 1u);
        return false;
    }
    r->arena = malloc(MCPG_COORD_DECODE_CAP);
    r->scratch = malloc(SCRATCH_CAP);
    r->up = zeroed(sizeof *r->up);
    r->down = zeroed(sizeof *r->down);
    mcpg_log_cursor_t peek = r->cursor;
    mcpg_record_t record;
    (void)mcpg__log_next(&peek, &record);
    r->cursor.config = peek.config;
    bool ok = r->arena != NULL && r->scratch != NULL && r->up != NULL && r->down != NULL && peek.config.ptr != NULL;
    if (ok) ok = r->machine == MCPG_LOG_COORD ? make_coord(r) : make_agent(r);
    if (!ok) {
        (void)snprintf(error, error_cap,
                       "'%s' does not say how its machine was configured: it was cut, or written by another version",
                       log->prefix);
        mcpg__replay_close(r);
    }
    return ok;
}

void mcpg__replay_close(mcpg_replay_t *r) {
    free(r->coord_fx.items);
    free(r->coord_fx.arena);
    free(r->agent_fx.items);
    free(r->agent_fx.arena);
    free(r->memory);
    free(r->arena);
    free(r->scratch);
    free(r->up);
    free(r->down);
    memset(r, 0, sizeof *r);
}

/* ---- one event ---- */

static mcpg_replay_found_t broken(mcpg_replay_t *r, const char *what) {
    (void)snprintf(r->problem, sizeof r->problem, "event %llu %s", (unsigned long long)r->seq, what);
    return MCPG_REPLAY_BROKEN;
}

static bool decode(mcpg_replay_t *r, const mcpg_record_t *record) {
    mcpg_arena_t arena = {.base = r->arena, .cap = MCPG_COORD_DECODE_CAP};
    if (r->machine == MCPG_LOG_COORD) {
        r->coord_event = (mcpg_coord_event_t){.now = record->now, .kind = (mcpg_coord_ev_kind_t)record->flags};
        return record->flags < MCPG_COORD_EV__COUNT &&
               mcpg__coord_event_decode(record->payload, record->len, &arena, r->up, &r->coord_event) == MCPG_OK;
    }
    memset(&r->agent_event, 0, sizeof r->agent_event);
    r->agent_event.now = record->now;
    r->agent_event.kind = (mcpg_agent_ev_kind_t)record->flags;
    return record->flags < MCPG_AGENT_EV__COUNT &&
           mcpg__agent_event_decode(record->payload, record->len, &arena, r->down, &r->agent_event) == MCPG_OK;
}

static uint32_t step(mcpg_replay_t *r, uint32_t *count_out) {
    r->is_stepped = true;
    if (r->machine == MCPG_LOG_COORD) {
        mcpg_coord_effects_reset(&r->coord_fx);
        r->status = mcpg_coord_step(r->coord, &r->coord_event, &r->coord_fx);
        if (r->status != MCPG_OK) r->coord_fx.count = 0;
        *count_out = r->coord_fx.count;
        return mcpg__coord_effects_crc(&r->coord_fx, r->scratch, SCRATCH_CAP);
    }
    mcpg_agent_effects_reset(&r->agent_fx);
    r->status = mcpg_agent_step(r->agent, &r->agent_event, &r->agent_fx);
    *count_out = r->agent_fx.count;
    return mcpg__agent_effects_crc(&r->agent_fx, r->scratch, SCRATCH_CAP);
}

static bool same_effects(mcpg_replay_t *r, const mcpg_record_t *record, uint32_t count, uint32_t crc) {
    mcpg_get_t get = {.ptr = record->payload, .len = record->len};
    uint32_t then = mcpg__get_u32(&get);
    if (!get.bad && then == crc && record->flags == count) return true;
    (void)snprintf(r->problem, sizeof r->problem,
                   "event %llu has other effects: %u with CRC %08x were recorded, %u with CRC %08x come now",
                   (unsigned long long)r->seq, record->flags, then, count, crc);
    return false;
}

static bool same_digest(mcpg_replay_t *r, const mcpg_record_t *record) {
    mcpg_get_t get = {.ptr = record->payload, .len = record->len};
    uint64_t then = mcpg__get_u64(&get);
    uint64_t is = r->machine == MCPG_LOG_COORD ? mcpg_coord_digest(r->coord) : mcpg_agent_digest(r->agent);
    if (!get.bad && then == is) return true;
    (void)snprintf(r->problem, sizeof r->problem,
                   "after event %llu the state is another: digest %016llx was recorded, it is %016llx now",
                   (unsigned long long)r->seq, (unsigned long long)then, (unsigned long long)is);
    return false;
}

/* What was recorded about the event behind it. */
static mcpg_replay_found_t compare(mcpg_replay_t *r, uint32_t count, uint32_t crc) {
    mcpg_log_cursor_t peek = r->cursor;
    mcpg_record_t record;
    mcpg_log_found_t found;
    while ((found = mcpg__log_next(&peek, &record)) == MCPG_LOG_RECORD && record.kind != MCPG_REC_EVENT) {
        r->cursor = peek;
        if (record.seq != r->seq) return broken(r, "is followed by what belongs to another");
        if (record.kind == MCPG_REC_EFFECTS) {
            r->has_effects = true;
            if (r->steps && !same_effects(r, &record, count, crc)) return MCPG_REPLAY_DIFFERS;
        } else if (record.kind == MCPG_REC_DIGEST) {
            if (r->steps && !same_digest(r, &record)) return MCPG_REPLAY_DIFFERS;
            r->digests++;
        } else {
            return broken(r, "is followed by a record of an unknown kind");
        }
    }
    if (found == MCPG_LOG_RECORD && !r->has_effects) return broken(r, "has no effects recorded, and others follow it");
    return MCPG_REPLAY_EVENT;
}

/* The next EVENT record. A log without its start may begin in the middle of an event: that rest is passed over. */
static mcpg_replay_found_t find_event(mcpg_replay_t *r, mcpg_record_t *record) {
    do {
        mcpg_log_found_t found = mcpg__log_next(&r->cursor, record);
        if (found == MCPG_LOG_DAMAGED) {
            (void)snprintf(r->problem, sizeof r->problem, "%s", r->cursor.problem);
            return MCPG_REPLAY_BROKEN;
        }
        r->is_torn = found == MCPG_LOG_TORN;
        if (found != MCPG_LOG_RECORD) return MCPG_REPLAY_END;
    } while (record->kind != MCPG_REC_EVENT && r->events == 0 && !mcpg__log_file_has_start(r->cursor.log));
    uint64_t before = r->seq;
    r->seq = record->seq;
    r->now = record->now;
    if (record->kind != MCPG_REC_EVENT) return broken(r, "has no record of its own");
    if (record->seq != before + 1u && (r->events > 0 || mcpg__log_file_has_start(r->cursor.log)))
        return broken(r, "is not the one that was due: others are missing");
    if ((record->flags & MCPG_REC_TRUNCATED) != 0) return broken(r, "was too long to be recorded whole");
    return MCPG_REPLAY_EVENT;
}

mcpg_replay_found_t mcpg__replay_next(mcpg_replay_t *r, void (*before)(void *user, const mcpg_replay_t *), void *user) {
    mcpg_record_t record;
    mcpg_replay_found_t found = find_event(r, &record);
    if (found != MCPG_REPLAY_EVENT) return found;
    r->has_effects = r->is_stepped = false;
    if (!decode(r, &record)) return broken(r, "cannot be decoded");
    r->events++;
    if (before != NULL) before(user, r);
    uint32_t count = 0, crc = 0;
    if (r->steps) crc = step(r, &count);
    return compare(r, count, crc);
}
