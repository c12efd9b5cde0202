/* sim_log.c: the machines' event logs in the flight recorder's own format and by its own encoders, so that the replay
 * tool reads what a failing seed leaves behind. Without a folder nothing is written. Never decides anything.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_host_codec.h"
#include "common/eventlog.h"
#include "coordinator/coord_host_codec.h"
#include "sim/sim.h"

#define SEGMENT_BYTES ((size_t)32 << 20) /* a whole run of most machines */

typedef struct {
    mcpg_eventlog_t *log;
    uint8_t *scratch;
    uint64_t seq;
} log_t;

static log_t *open_log(const char *prefix, mcpg_eventlog_machine_t machine, const uint8_t *config, size_t len) {
    log_t *log = sim_zalloc(sizeof(*log));
    log->scratch = sim_zalloc(MCPG_COORD_EVENT_CAP);
    if (mcpg__eventlog_open(prefix, machine, config, (uint32_t)len, SEGMENT_BYTES, &log->log) != MCPG_OK)
        log->log = NULL; /* no room: the run goes on without it */
    return log;
}

static void close_log(log_t *log) {
    if (log == NULL) return;
    mcpg__eventlog_close(log->log);
    free(log->scratch);
    free(log);
}

/* ---- coordinators ---- */

void sim_log_coord_open(sim_t *w, sim_coord_t *c) {
    if (w->options.log_dir == NULL) return;
    uint8_t config[MCPG_COORD_CONFIG_CAP];
    size_t len = 0;
    char prefix[600];
    snprintf(prefix, sizeof(prefix), "%s/coordinator-%llu", w->options.log_dir, U(c->term));
    if (mcpg__coord_config_encode(&c->config, config, sizeof(config), &len) != MCPG_OK) return;
    c->log = open_log(prefix, MCPG_LOG_COORD, config, len);
}

void sim_log_coord_event(sim_t *w, sim_coord_t *c, const mcpg_coord_event_t *event, const uint8_t *raw, size_t len) {
    (void)w;
    log_t *log = c->log;
    if (log != NULL) mcpg__coord_log_event(log->log, ++log->seq, event, raw, len, log->scratch);
}

void sim_log_coord_effects(sim_t *w, sim_coord_t *c, const mcpg_coord_event_t *event, uint32_t crc) {
    log_t *log = c->log;
    if (log == NULL) return;
    mcpg__coord_log_effects(log->log, log->seq, event->now, w->coord_fx.count, crc, c->machine);
}

void sim_log_coord_close(sim_coord_t *c) {
    close_log(c->log);
    c->log = NULL;
}

/* ---- agents ---- */

void sim_log_agent_open(sim_t *w, sim_node_t *node) {
    if (w->options.log_dir == NULL) return;
    uint8_t config[MCPG_AGENT_CONFIG_CAP];
    size_t len = 0;
    char prefix[600];
    snprintf(prefix, sizeof(prefix), "%s/agent-%u-%lld", w->options.log_dir, node->rank, (long long)node->pid);
    if (mcpg__agent_config_encode(&node->config, config, sizeof(config), &len) != MCPG_OK) return;
    node->log = open_log(prefix, MCPG_LOG_AGENT, config, len);
}

void sim_log_agent_event(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event, const uint8_t *raw, size_t len) {
    (void)w;
    log_t *log = node->log;
    if (log == NULL) return;
    if (raw == NULL) {
        if (mcpg__agent_event_encode(event, log->scratch, MCPG_MSG_CAP, &len) != MCPG_OK) len = 0;
        raw = log->scratch;
    }
    mcpg__eventlog_event(log->log, ++log->seq, event->now, (uint16_t)event->kind, raw, len);
}

void sim_log_agent_effects(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event) {
    log_t *log = node->log;
    if (log == NULL) return;
    uint32_t crc = mcpg__agent_effects_crc(&w->agent_fx, log->scratch, MCPG_MSG_CAP);
    mcpg__eventlog_effects(log->log, log->seq, event->now, w->agent_fx.count, crc);
    if (mcpg__eventlog_digest_due(log->seq))
        mcpg__eventlog_digest(log->log, log->seq, event->now, mcpg_agent_digest(node->agent));
}

void sim_log_agent_close(sim_node_t *node) {
    close_log(node->log);
    node->log = NULL;
}
