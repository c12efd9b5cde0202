/* agent_host.h: runs one agent machine: executor, timers, RPC client, link manager, event log, call table, snapshot.
 *
 * The only part of src/agent, with link_manager.c, that knows time and sockets; it decides nothing. Reaches the data
 * plane through dp_iface.h only. API threads block on calls here, never on the executor.
 */
#ifndef MCPG_AGENT_AGENT_HOST_H
#define MCPG_AGENT_AGENT_HOST_H

#include "agent/agent.h"
#include "common/dp_iface.h"
#include "common/log.h"
#include "rpc/rpc.h"

typedef struct mcpg_agent_host mcpg_agent_host_t;
typedef struct {
    const mcpg_rpc_ops_t *rpc;
    const char *coordinator;         /* address */
    mcpg_credentials_t *credentials; /* for it; NULL: plaintext; a reference is taken */
    mcpg_agent_config_t agent;
    const mcpg_dp_ops_t *dp_ops;
    void *dp;
    /* Executor thread, before the first link is opened; again with each new incarnation. */
    void (*attached)(void *user, mcpg_incarnation_t inc);
    /* Called once by start, before the first observation is possible: sets the data plane's observer. May be NULL. */
    void (*observe)(void *user, const mcpg_dp_observer_t *observer);
    void (*notify)(void *user, const mcpg_agent_notify_t *notify); /* executor thread: only queue */
    void *user;
    const char *event_log_dir;
    mcpg_log_t log;
} mcpg_agent_host_config_t;
/* Returns when the first attach was accepted or refused, or attach_timeout passed. */
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_start(const mcpg_agent_host_config_t *config, mcpg_agent_host_t **out,
                                                   char *error, size_t error_cap);
const mcpg_dp_observer_t *mcpg__agent_host_observer(mcpg_agent_host_t *host); /* for mcpg__dp_set_observer */

/* From now on the agent's coordinator is at address (a closing one was followed by another). The present stream counts
 * as lost. Blocks until the old stream is gone; any thread but the executor's. */
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_move(mcpg_agent_host_t *host, const char *address,
                                                  mcpg_credentials_t *credentials, char *error, size_t error_cap);

/* A blocking call: fills call_id itself, waits for CALL_DONE. text_out (cap bytes) gets the sentence of a refusal.
 * BUSY: queue full. */
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_register(mcpg_agent_host_t *host, mcpg_agent_call_register_t *call,
                                                      mcpg_agent_call_done_t *done_out, char *text_out,
                                                      size_t text_cap);
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_join(mcpg_agent_host_t *host, mcpg_agent_call_join_t *call,
                                                  mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap);
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_propose(mcpg_agent_host_t *host, mcpg_agent_call_propose_t *call,
                                                     mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap);
MCPG_MUST_USE mcpg_status_t mcpg__agent_host_sync(mcpg_agent_host_t *host, mcpg_agent_call_sync_t *call,
                                                  mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap);
/* next_seq: of the data plane. Waits until the machine took it. */
void mcpg__agent_host_leave(mcpg_agent_host_t *host, mcpg_gid_t gid, uint64_t next_seq);
/* Snapshot reads: any thread, no message. */
uint32_t mcpg__agent_host_rank_states(const mcpg_agent_host_t *host, mcpg_rank_state_t *states, uint32_t cap);
bool mcpg__agent_host_peer_ok(const mcpg_agent_host_t *host, mcpg_gid_t gid, mcpg_slot_t slot);
bool mcpg__agent_host_view(const mcpg_agent_host_t *host, mcpg_gid_t gid, mcpg_view_t *out);
bool mcpg__agent_host_connected(const mcpg_agent_host_t *host);
/* DETACH, flush, join, free. The observer must have been unset before. NULL allowed. */
void mcpg__agent_host_stop(mcpg_agent_host_t *host);

#endif
