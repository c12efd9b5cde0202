/* log_replay.h: steps a machine again from its event log and compares what it does now with what it did then: the CRC
 * of the effects after each event, the digest of the state after each 64. It never writes anything.
 */
#ifndef MCPG_TOOLS_LOG_REPLAY_H
#define MCPG_TOOLS_LOG_REPLAY_H

#include "agent/agent.h"
#include "coordinator/coord.h"
#include "tools/log_file.h"

typedef struct {
    mcpg_eventlog_machine_t machine;
    uint64_t events, digests; /* looked at so far */
    /* the newest event */
    uint64_t seq;
    mcpg_time_t now;
    mcpg_coord_event_t coord_event; /* of the one machine or the other; valid until the next call */
    mcpg_agent_event_t agent_event;
    bool is_stepped;
    mcpg_status_t status; /* of its step */
    bool has_effects;     /* its effects were recorded; else its writer ended in this very step */
    char problem[320];    /* DIFFERS, BROKEN: one sentence */
    bool is_torn;         /* END: the last record is not whole */

    mcpg_coord_config_t coord_config;
    mcpg_agent_config_t agent_config;
    mcpg_coord_t *coord;
    mcpg_agent_t *agent;
    mcpg_coord_effects_t coord_fx;
    mcpg_agent_effects_t agent_fx;

    /* private */
    mcpg_log_cursor_t cursor;
    void *memory;
    uint8_t *arena, *scratch;
    mcpg_up_msg_t *up;
    mcpg_down_msg_t *down;
    bool steps;
} mcpg_replay_t;

typedef enum { MCPG_REPLAY_EVENT, MCPG_REPLAY_END, MCPG_REPLAY_DIFFERS, MCPG_REPLAY_BROKEN } mcpg_replay_found_t;

/* steps: the machine is made and stepped, for which the log must have its start. The log is borrowed. */
bool mcpg__replay_open(mcpg_replay_t *replay, const mcpg_log_file_t *log, bool steps, char *error, size_t error_cap);
/* Decodes the next event and steps it. before (may be NULL) sees it decoded, before the step. */
mcpg_replay_found_t mcpg__replay_next(mcpg_replay_t *replay, void (*before)(void *user, const mcpg_replay_t *),
                                      void *user);
void mcpg__replay_close(mcpg_replay_t *replay);

#endif
