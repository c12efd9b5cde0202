/* agent_host_internal.h: the parts of one agent host, for agent_host*.c only.
 *
 * Threads: fields under "executor" are touched by the executor thread alone; `machine_mu` is held while the machine
 * steps and while an API thread reads it; `calls_mu` guards the call table and the attach result. Lock order: none is
 * ever held while another is taken.
 */
#ifndef MCPG_AGENT_AGENT_HOST_INTERNAL_H
#define MCPG_AGENT_AGENT_HOST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/agent_host.h"
#include "agent/agent_host_codec.h"
#include "agent/link_manager.h"
#include "common/eventlog.h"
#include "common/executor.h"
#include "common/frames.h"

#define HOST_QUEUE_CAP     4096u
#define HOST_QUEUE_RESERVE 64u /* room for what may not be refused: connected, closed, start, move */

/* Items: machine events first (payload = canonical encoding), then what the host itself must look at. */
enum {
    HOST_ITEM_START = MCPG_AGENT_EV__COUNT,
    HOST_ITEM_MOVE,
    HOST_ITEM_LINK_UP,
    HOST_ITEM_LINK_LOST,
    HOST_ITEM_LINK_CHECKED_OK,
    HOST_ITEM_LINK_CHECKED_BAD,
    HOST_ITEM_LINK_DEATH
};

/* One RPC client; what an older one still says is told apart by its generation. */
typedef struct {
    struct mcpg_agent_host *host;
    mcpg_rpc_client_t *client;
    uint64_t generation;
    char address[256];
} host_client_t;

typedef struct host_call {
    uint64_t id;
    bool done;
    pthread_cond_t cond;
    mcpg_agent_call_done_t result;
    char text[MCPG_TEXT_CAP];
    struct host_call *next;
} host_call_t;

/* An event that the host makes itself while effects run: stepped when they are done, in order. */
typedef struct {
    mcpg_agent_ev_kind_t kind;
    union {
        mcpg_agent_link_ev_t link;
        mcpg_agent_death_ev_t death;
        mcpg_agent_held_ev_t held;
    } u;
} host_pending_t;

struct mcpg_agent_host {
    mcpg_agent_host_config_t config; /* strings copied or unused after start */
    mcpg_log_t log;
    mcpg_executor_t *executor;
    atomic_uint queued;
    mcpg_dp_observer_t observer;

    pthread_mutex_t machine_mu;
    mcpg_agent_t *machine;
    void *machine_mem;

    /* executor */
    host_client_t *client;
    bool stream_open, stream_closing, stopped; /* closing: the machine gave it up, closed() has not come */
    mcpg_link_manager_t *links;
    mcpg_time_t machine_timer, armed;
    mcpg_agent_effects_t effects;
    mcpg_incarnation_t told_inc;
    host_pending_t *pending;
    size_t pending_head, pending_count, pending_cap;
    mcpg_arena_t arena;
    uint8_t *scratch;         /* MCPG_MSG_CAP + room */
    mcpg_frames_rx_t *frames; /* of the present stream */
    mcpg_eventlog_t *eventlog;
    uint64_t event_seq;

    pthread_mutex_t calls_mu;
    pthread_cond_t attach_cond, idle_cond;
    host_call_t *calls;
    uint64_t next_call_id;
    uint32_t callers;
    bool refuse_calls;
    bool attach_done;
    mcpg_status_t attach_status;
    char attach_text[MCPG_TEXT_CAP];
    atomic_bool connected;
};

#define HOST_SCRATCH_CAP (MCPG_MSG_CAP + 4096u)

/* False: the queue is full; true also when the host is stopping, when nothing matters any more. */
bool mcpg__host_post(mcpg_agent_host_t *host, const mcpg_exec_item_t *item, bool reserved);
void mcpg__host_push_pending(mcpg_agent_host_t *host, const host_pending_t *pending);
void mcpg__host_run_effects(mcpg_agent_host_t *host);
void mcpg__host_init_observer(mcpg_agent_host_t *host);
/* Every open call, or the one with this id, ends with this status. */
void mcpg__host_fail_calls(mcpg_agent_host_t *host, uint64_t only_id, mcpg_status_t status, const char *text);
void mcpg__host_call_done(mcpg_agent_host_t *host, const mcpg_agent_call_done_t *done);
void mcpg__host_connect(mcpg_agent_host_t *host);
/* The machine's DETACH call; waits at most limit_us. */
void mcpg__host_detach(mcpg_agent_host_t *host, uint64_t limit_us);
void mcpg__host_cond_init(pthread_cond_t *cond); /* CLOCK_MONOTONIC */
/* False: the time has come. */
bool mcpg__host_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu, uint64_t deadline_us);

#endif
