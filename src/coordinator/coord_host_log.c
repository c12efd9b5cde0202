/* coord_host_log.c: the coordinator host's flight recorder and its table of connections. Executor thread only; decides
 * nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/coord_host_priv.h"

#define TABLE_SIZE  16384u /* a power of two */
#define TABLE_LIMIT (TABLE_SIZE / 4u * 3u)

/* ---- flight recorder ---- */

void mcpg__coord_open_eventlog(mcpg_coord_host_t *host, const char *dir) {
    if (dir == NULL || dir[0] == '\0') return;
    uint8_t config[MCPG_COORD_CONFIG_CAP];
    size_t len = 0;
    MCPG_ASSERT(mcpg__coord_config_encode(&host->machine, config, sizeof config, &len) == MCPG_OK);
    char prefix[512];
    int n =
        snprintf(prefix, sizeof prefix, "%s/coordinator-%llu-%ld-%08llx", dir, (unsigned long long)host->machine.term,
                 (long)getpid(), (unsigned long long)(host->machine.coordinator_id & 0xffffffffu));
    mcpg_status_t status = MCPG_LIMIT;
    if (n > 0 && (size_t)n < sizeof prefix)
        status = mcpg__eventlog_open(prefix, MCPG_LOG_COORD, config, (uint32_t)len, 0, &host->eventlog);
    if (status != MCPG_OK)
        mcpg__log(&host->log, MCPG_LOG_WARN, "event_log_off dir %s status %s: give a folder that exists and has room",
                  dir, mcpg_status_name(status));
    else
        mcpg__log(&host->log, MCPG_LOG_INFO, "event_log path %s", prefix);
}

void mcpg__coord_check_eventlog(mcpg_coord_host_t *host) {
    if (!mcpg__eventlog_end_if_full(&host->eventlog)) return;
    mcpg__log(&host->log, MCPG_LOG_WARN, "event_log_off event %llu: its disk is full, the job goes on without it",
              (unsigned long long)host->event_seq);
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
