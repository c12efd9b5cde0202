/* coord_host_log.c: the coordinator host's flight recorder and its table of connections. Executor thread only; decides
 * nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/codec.h"
#include "coordinator/coord_host_priv.h"

#define DIGEST_EVERY 64u
#define TABLE_SIZE   16384u /* a power of two */
#define TABLE_LIMIT  (TABLE_SIZE / 4u * 3u)

/* ---- flight recorder ---- */

/* Canonical configuration: every field as u64, in the order of coord.h. */
static size_t encode_config(const mcpg_coord_config_t *c, uint8_t *buf, size_t cap) {
    const uint64_t fields[] = {
        c->term,
        c->coordinator_id,
        c->max_ranks,
        c->max_groups,
        c->max_slots_total,
        c->clique_node_budget,
        c->timers.heartbeat_us,
        c->timers.offline_us,
        c->timers.ack_us,
        c->timers.ack_added_us,
        c->timers.reconcile_us,
        c->timers.coordinator_grace_us,
        c->timers.collective_timeout_us,
        c->timers.p2p_timeout_us,
    };
    mcpg_put_t put = {.ptr = buf, .cap = cap};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) mcpg__put_u64(&put, fields[i]);
    MCPG_ASSERT(!put.bad);
    return put.len;
}

void mcpg__coord_open_eventlog(mcpg_coord_host_t *host, const char *dir) {
    if (dir == NULL || dir[0] == '\0') return;
    uint8_t config[128];
    size_t len = encode_config(&host->machine, config, sizeof config);
    char prefix[512];
    int n = snprintf(prefix, sizeof prefix, "%s/coordinator-%llu-%ld", dir, (unsigned long long)host->machine.term,
                     (long)getpid());
    mcpg_status_t status = MCPG_LIMIT;
    if (n > 0 && (size_t)n < sizeof prefix)
        status = mcpg__eventlog_open(prefix, MCPG_LOG_COORD, config, (uint32_t)len, 0, &host->eventlog);
    if (status != MCPG_OK)
        mcpg__log(&host->log, MCPG_LOG_WARN, "event_log_off dir %s status %s: give a folder that exists and has room",
                  dir, mcpg_status_name(status));
}

static void append(mcpg_coord_host_t *host, uint16_t kind, uint16_t flags, mcpg_time_t now, const mcpg_put_t *payload) {
    mcpg_record_t record = {
        .kind = kind,
        .flags = flags,
        .seq = host->event_seq,
        .now = now,
        .payload = payload->ptr,
        .len = (uint32_t)payload->len,
    };
    mcpg__eventlog_append(host->eventlog, &record);
}

/* The packing buffer is free between effects: it holds the record. A message that fills it is recorded without its last
 * bytes. */
void mcpg__coord_record_event(mcpg_coord_host_t *host, const mcpg_coord_event_t *event, const uint8_t *raw,
                              size_t raw_len) {
    if (host->eventlog == NULL) return;
    mcpg_put_t put = {.ptr = host->packed, .cap = MCPG_MSG_CAP};
    uint16_t truncated = 0;
    switch (event->kind) {
    case MCPG_COORD_EV_MSG:
        mcpg__put_u64(&put, event->conn);
        if (raw_len > put.cap - put.len) {
            raw_len = put.cap - put.len;
            truncated = MCPG_REC_TRUNCATED;
        }
        mcpg__put_raw(&put, raw, raw_len);
        break;
    case MCPG_COORD_EV_CLOSED:
        mcpg__put_u64(&put, event->conn);
        break;
    case MCPG_COORD_EV_EXIT:
        mcpg__put_u32(&put, event->rank.v);
        mcpg__put_u64(&put, (uint64_t)event->pid);
        break;
    case MCPG_COORD_EV_TIMER:
    case MCPG_COORD_EV_SHUTDOWN:
    case MCPG_COORD_EV__COUNT:
        break;
    }
    append(host, MCPG_REC_EVENT, (uint16_t)((uint16_t)event->kind | truncated), event->now, &put);
}

void mcpg__coord_record_effects(mcpg_coord_host_t *host, mcpg_time_t now, uint32_t crc) {
    if (host->eventlog == NULL) return;
    uint8_t bytes[8];
    mcpg_put_t put = {.ptr = bytes, .cap = sizeof bytes};
    mcpg__put_u32(&put, crc);
    append(host, MCPG_REC_EFFECTS, 0, now, &put);
    if (host->event_seq % DIGEST_EVERY != 0) return;
    put.len = 0;
    mcpg__put_u64(&put, mcpg_coord_digest(host->coord));
    append(host, MCPG_REC_DIGEST, 0, now, &put);
}

uint32_t mcpg__coord_effect_crc(uint32_t crc, const mcpg_coord_effect_t *fx, const uint8_t *packed, size_t len) {
    uint8_t head[20 + 8 * MCPG_RANKSET_WORDS];
    mcpg_put_t put = {.ptr = head, .cap = sizeof head};
    bool is_conn = fx->kind == MCPG_COORD_FX_SEND_CONN || fx->kind == MCPG_COORD_FX_CLOSE_CONN;
    mcpg__put_u32(&put, (uint32_t)fx->kind);
    mcpg__put_u64(&put, is_conn ? fx->conn : 0);
    mcpg__put_u64(&put, fx->kind == MCPG_COORD_FX_ARM_TIMER ? fx->at.us : 0);
    if (fx->kind == MCPG_COORD_FX_SEND)
        for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) mcpg__put_u64(&put, fx->to->w[i]);
    MCPG_ASSERT(!put.bad);
    crc = mcpg__crc32c(crc, head, put.len);
    return len > 0 ? mcpg__crc32c(crc, packed, len) : crc;
}

/* ---- connections: open addressing, linear probing; conn 0 is an empty place ---- */

bool mcpg__conn_table_init(mcpg_conn_table_t *t) {
    t->count = 0;
    t->entries = (mcpg_conn_entry_t *)calloc(TABLE_SIZE, sizeof *t->entries);
    return t->entries != NULL;
}

void mcpg__conn_table_fini(mcpg_conn_table_t *t) {
    free(t->entries);
    t->entries = NULL;
}

static uint32_t home_of(uint64_t conn) {
    return (uint32_t)((conn * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & (TABLE_SIZE - 1u);
}

/* Where conn is, or the empty place where it belongs: the table is never full. */
static uint32_t place_of(const mcpg_conn_table_t *t, uint64_t conn) {
    uint32_t at = home_of(conn);
    while (t->entries[at].conn != 0 && t->entries[at].conn != conn) at = (at + 1u) & (TABLE_SIZE - 1u);
    return at;
}

bool mcpg__conn_table_add(mcpg_conn_table_t *t, uint64_t conn) {
    mcpg_conn_entry_t *entry = &t->entries[place_of(t, conn)];
    if (entry->conn == conn) return true;
    if (t->count >= TABLE_LIMIT) return false;
    *entry = (mcpg_conn_entry_t){.conn = conn};
    t->count++;
    return true;
}

bool mcpg__conn_table_is_closing(const mcpg_conn_table_t *t, uint64_t conn) {
    const mcpg_conn_entry_t *entry = &t->entries[place_of(t, conn)];
    return entry->conn == conn && entry->is_closing;
}

void mcpg__conn_table_set_closing(mcpg_conn_table_t *t, uint64_t conn) {
    mcpg_conn_entry_t *entry = &t->entries[place_of(t, conn)];
    if (entry->conn == conn) entry->is_closing = true;
}

/* Moves later entries of the run back, so that no search stops short. */
bool mcpg__conn_table_remove(mcpg_conn_table_t *t, uint64_t conn) {
    uint32_t hole = place_of(t, conn);
    if (conn == 0 || t->entries[hole].conn != conn) return false;
    t->count--;
    for (uint32_t at = (hole + 1u) & (TABLE_SIZE - 1u); t->entries[at].conn != 0; at = (at + 1u) & (TABLE_SIZE - 1u)) {
        uint32_t from_home = (at - home_of(t->entries[at].conn)) & (TABLE_SIZE - 1u);
        uint32_t from_hole = (at - hole) & (TABLE_SIZE - 1u);
        if (from_home < from_hole) continue;
        t->entries[hole] = t->entries[at];
        hole = at;
    }
    t->entries[hole] = (mcpg_conn_entry_t){0};
    return true;
}
