/* coord_host_codec.c: see coord_host_codec.h. It decides nothing and never writes struct memory: padding would leak
 * into logs and make equal events differ.
 */
#include "coordinator/coord_host_codec.h"

#include <string.h>

#include "common/bytes.h"

#define TIMERS        (sizeof(mcpg_timers_t) / sizeof(uint64_t))
#define CONFIG_FIELDS (8u + TIMERS)
_Static_assert(sizeof(mcpg_timers_t) == TIMERS * sizeof(uint64_t), "timers are uint64_t, without padding");
_Static_assert(sizeof(mcpg_coord_config_t) == 48 + sizeof(mcpg_timers_t),
               "a field was added: name it in encode and decode, then here");
_Static_assert(CONFIG_FIELDS * sizeof(uint64_t) <= MCPG_COORD_CONFIG_CAP, "a configuration always fits");

/* Every field as u64, in the order of coord.h; then the timers, in the order of pg.h. */
mcpg_status_t mcpg__coord_config_encode(const mcpg_coord_config_t *c, uint8_t *buf, size_t cap, size_t *len_out) {
    uint64_t fields[CONFIG_FIELDS] = {
        c->term,      c->coordinator_id, c->max_ranks, c->max_groups, c->max_slots_total, c->clique_node_budget,
        c->has_store, c->predecessor,
    };
    memcpy(&fields[CONFIG_FIELDS - TIMERS], &c->timers, sizeof c->timers);
    mcpg_put_t put = {.ptr = buf, .cap = cap};
    for (size_t i = 0; i < CONFIG_FIELDS; i++) mcpg__put_u64(&put, fields[i]);
    if (put.bad) return MCPG_LIMIT;
    *len_out = put.len;
    return MCPG_OK;
}

mcpg_status_t mcpg__coord_config_decode(const uint8_t *buf, size_t len, mcpg_coord_config_t *out) {
    mcpg_get_t get = {.ptr = buf, .len = len};
    uint64_t f[CONFIG_FIELDS];
    for (size_t i = 0; i < CONFIG_FIELDS; i++) f[i] = mcpg__get_u64(&get);
    if (get.bad || get.at != get.len || f[2] > MCPG_MAX_RANKS || f[3] > MCPG_MAX_GROUPS || f[4] > MCPG_MAX_SLOTS_TOTAL)
        return MCPG_CORRUPT;
    *out = (mcpg_coord_config_t){
        .term = f[0],
        .coordinator_id = f[1],
        .max_ranks = (uint32_t)f[2],
        .max_groups = (uint32_t)f[3],
        .max_slots_total = (uint32_t)f[4],
        .clique_node_budget = f[5],
        .has_store = f[6] != 0,
        .predecessor = f[7] != 0,
    };
    memcpy(&out->timers, &f[CONFIG_FIELDS - TIMERS], sizeof out->timers);
    return MCPG_OK;
}

/* A record that cannot be packed is a bug of the machine; nothing then stands for it. */
static void put_record(mcpg_put_t *put, const mcpg_group_record_t *record) {
    size_t len = 0;
    if (put->bad || mcpg__record_pack(record, put->ptr + put->len, put->cap - put->len, &len) != MCPG_OK) return;
    put->len += len;
}

mcpg_status_t mcpg__coord_event_encode(const mcpg_coord_event_t *event, const uint8_t *raw, size_t raw_len,
                                       uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_put_t put = {.ptr = buf, .cap = cap};
    switch (event->kind) {
    case MCPG_COORD_EV_MSG:
        mcpg__put_u64(&put, event->conn);
        if (put.bad) return MCPG_LIMIT;
        if (raw != NULL) {
            mcpg__put_raw(&put, raw, raw_len);
        } else {
            MCPG_TRY(mcpg__up_pack(event->msg, put.ptr + put.len, put.cap - put.len, &raw_len));
            put.len += raw_len;
        }
        break;
    case MCPG_COORD_EV_CLOSED:
        mcpg__put_u64(&put, event->conn);
        break;
    case MCPG_COORD_EV_EXIT:
        mcpg__put_u32(&put, event->rank.v);
        mcpg__put_u64(&put, (uint64_t)event->pid);
        break;
    case MCPG_COORD_EV_RECORD:
        mcpg__put_u32(&put, event->gid.v);
        mcpg__put_u32(&put, (uint32_t)event->status);
        mcpg__put_u8(&put, event->record != NULL);
        if (event->record != NULL) put_record(&put, event->record);
        break;
    case MCPG_COORD_EV_TIMER:
    case MCPG_COORD_EV_SHUTDOWN:
        break;
    case MCPG_COORD_EV__COUNT:
        return MCPG_INVALID_ARGUMENT;
    }
    if (put.bad) return MCPG_LIMIT;
    *len_out = put.len;
    return MCPG_OK;
}

static mcpg_status_t get_record_event(mcpg_get_t *get, mcpg_arena_t *arena, mcpg_coord_event_t *out) {
    out->gid.v = mcpg__get_u32(get);
    out->status = (mcpg_status_t)(int32_t)mcpg__get_u32(get);
    bool has_record = mcpg__get_u8(get) != 0;
    out->record = NULL;
    if (get->bad || !has_record) return MCPG_OK;
    mcpg_group_record_t *record = mcpg__arena_take(arena, sizeof *record);
    if (record == NULL) return MCPG_CORRUPT;
    MCPG_TRY(mcpg__record_unpack(get->ptr + get->at, get->len - get->at, arena, record));
    out->record = record;
    get->at = get->len;
    return MCPG_OK;
}

mcpg_status_t mcpg__coord_event_decode(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_up_msg_t *msg,
                                       mcpg_coord_event_t *out) {
    mcpg_get_t get = {.ptr = buf, .len = len};
    switch (out->kind) {
    case MCPG_COORD_EV_MSG:
        out->conn = mcpg__get_u64(&get);
        if (get.bad) return MCPG_CORRUPT;
        MCPG_TRY(mcpg__up_unpack(buf + get.at, len - get.at, arena, msg));
        out->msg = msg;
        get.at = len;
        break;
    case MCPG_COORD_EV_CLOSED:
        out->conn = mcpg__get_u64(&get);
        break;
    case MCPG_COORD_EV_EXIT:
        out->rank.v = mcpg__get_u32(&get);
        out->pid = (int64_t)mcpg__get_u64(&get);
        break;
    case MCPG_COORD_EV_RECORD:
        MCPG_TRY(get_record_event(&get, arena, out));
        break;
    case MCPG_COORD_EV_TIMER:
    case MCPG_COORD_EV_SHUTDOWN:
        break;
    case MCPG_COORD_EV__COUNT:
        return MCPG_CORRUPT;
    }
    return get.bad || get.at != len ? MCPG_CORRUPT : MCPG_OK;
}

/* kind u32, conn u64, at u64, gid u32 (RECORD_* only), ranks of `to` as words u64 each (SEND only), then the packed
 * message or record. */
uint32_t mcpg__coord_effect_crc(uint32_t crc, const mcpg_coord_effect_t *fx, const uint8_t *packed, size_t len) {
    uint8_t head[24 + 8 * MCPG_RANKSET_WORDS];
    mcpg_put_t put = {.ptr = head, .cap = sizeof head};
    bool is_conn = fx->kind == MCPG_COORD_FX_SEND_CONN || fx->kind == MCPG_COORD_FX_CLOSE_CONN;
    mcpg__put_u32(&put, (uint32_t)fx->kind);
    mcpg__put_u64(&put, is_conn ? fx->conn : 0);
    mcpg__put_u64(&put, fx->kind == MCPG_COORD_FX_ARM_TIMER ? fx->at.us : 0);
    if (fx->kind == MCPG_COORD_FX_RECORD_CLAIM || fx->kind == MCPG_COORD_FX_RECORD_WRITE)
        mcpg__put_u32(&put, fx->gid.v);
    if (fx->kind == MCPG_COORD_FX_SEND)
        for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) mcpg__put_u64(&put, fx->to->w[i]);
    MCPG_ASSERT(!put.bad);
    crc = mcpg__crc32c(crc, head, put.len);
    return len > 0 ? mcpg__crc32c(crc, packed, len) : crc;
}

bool mcpg__coord_effect_pack(const mcpg_coord_effect_t *fx, uint8_t *buf, size_t cap, size_t *len_out) {
    *len_out = 0;
    switch (fx->kind) {
    case MCPG_COORD_FX_SEND:
    case MCPG_COORD_FX_SEND_CONN:
        return mcpg__down_pack(fx->msg, buf, cap, len_out) == MCPG_OK;
    case MCPG_COORD_FX_RECORD_CLAIM:
    case MCPG_COORD_FX_RECORD_WRITE:
        return mcpg__record_pack(fx->record, buf, cap, len_out) == MCPG_OK;
    case MCPG_COORD_FX_CLOSE_CONN:
    case MCPG_COORD_FX_ARM_TIMER:
    case MCPG_COORD_FX_STOP:
    case MCPG_COORD_FX__COUNT:
        break;
    }
    return true;
}

uint32_t mcpg__coord_effects_crc(const mcpg_coord_effects_t *effects, uint8_t *scratch, size_t scratch_cap) {
    uint32_t crc = 0;
    for (uint32_t i = 0; i < effects->count; i++) {
        size_t len = 0;
        if (!mcpg__coord_effect_pack(&effects->items[i], scratch, scratch_cap, &len)) len = 0;
        crc = mcpg__coord_effect_crc(crc, &effects->items[i], scratch, len);
    }
    return crc;
}

const char *mcpg__coord_event_name(mcpg_coord_ev_kind_t kind) {
    switch (kind) {
    case MCPG_COORD_EV_MSG:
        return "MSG";
    case MCPG_COORD_EV_CLOSED:
        return "CLOSED";
    case MCPG_COORD_EV_EXIT:
        return "EXIT";
    case MCPG_COORD_EV_TIMER:
        return "TIMER";
    case MCPG_COORD_EV_SHUTDOWN:
        return "SHUTDOWN";
    case MCPG_COORD_EV_RECORD:
        return "RECORD";
    case MCPG_COORD_EV__COUNT:
        break;
    }
    return "?";
}

const char *mcpg__coord_effect_name(mcpg_coord_fx_kind_t kind) {
    switch (kind) {
    case MCPG_COORD_FX_SEND:
        return "SEND";
    case MCPG_COORD_FX_SEND_CONN:
        return "SEND_CONN";
    case MCPG_COORD_FX_CLOSE_CONN:
        return "CLOSE_CONN";
    case MCPG_COORD_FX_ARM_TIMER:
        return "ARM_TIMER";
    case MCPG_COORD_FX_STOP:
        return "STOP";
    case MCPG_COORD_FX_RECORD_CLAIM:
        return "RECORD_CLAIM";
    case MCPG_COORD_FX_RECORD_WRITE:
        return "RECORD_WRITE";
    case MCPG_COORD_FX__COUNT:
        break;
    }
    return "?";
}

void mcpg__coord_log_event(mcpg_eventlog_t *log, uint64_t seq, const mcpg_coord_event_t *event, const uint8_t *raw,
                           size_t raw_len, uint8_t *buf) {
    if (log == NULL) return;
    size_t len = 0;
    uint16_t flags = (uint16_t)event->kind;
    if (mcpg__coord_event_encode(event, raw, raw_len, buf, MCPG_COORD_EVENT_CAP, &len) != MCPG_OK)
        flags |= MCPG_REC_TRUNCATED;
    mcpg__eventlog_event(log, seq, event->now, flags, buf, len);
}

void mcpg__coord_log_effects(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint32_t count, uint32_t crc,
                             const mcpg_coord_t *coord) {
    if (log == NULL) return;
    mcpg__eventlog_effects(log, seq, now, count, crc);
    if (mcpg__eventlog_digest_due(seq)) mcpg__eventlog_digest(log, seq, now, mcpg_coord_digest(coord));
}
