/* coord_host_priv.h: what the files of the coordinator's host share. Nobody else includes it. */
#ifndef MCPG_COORDINATOR_COORD_HOST_PRIV_H
#define MCPG_COORDINATOR_COORD_HOST_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/eventlog.h"
#include "common/executor.h"
#include "common/frames.h"
#include "coordinator/coord.h"
#include "coordinator/coord_host.h"
#include "coordinator/coord_host_codec.h"

/* Connections that said something: a hash table of fixed size. Executor thread only. */
typedef struct {
    uint64_t conn;
    bool is_closing;
} mcpg_conn_entry_t;
typedef struct {
    uint32_t count;
    mcpg_conn_entry_t *entries;
} mcpg_conn_table_t;
bool mcpg__conn_table_init(mcpg_conn_table_t *t);
void mcpg__conn_table_fini(mcpg_conn_table_t *t);
bool mcpg__conn_table_add(mcpg_conn_table_t *t, uint64_t conn); /* true when it is there afterwards, false when full */
bool mcpg__conn_table_is_closing(const mcpg_conn_table_t *t, uint64_t conn);
void mcpg__conn_table_set_closing(mcpg_conn_table_t *t, uint64_t conn); /* unknown: nothing */
bool mcpg__conn_table_remove(mcpg_conn_table_t *t, uint64_t conn);      /* false when it was not there */

typedef struct {
    uint64_t conn, after;
} mcpg_coord_late_t;

/* coord_host_auth.c */
size_t mcpg__coord_host_refusal(void *user, const char *why, uint8_t *buf, size_t cap); /* of rpc.h's server events */
/* False: that stream may not speak for the rank it attaches as; it was told so and is being closed. */
bool mcpg__coord_host_admits(mcpg_coord_host_t *host, uint64_t conn, const mcpg_up_msg_t *msg);

struct mcpg_coord_host {
    const mcpg_rpc_ops_t *rpc;
    mcpg_rpc_server_t *server;
    mcpg_executor_t *executor;
    mcpg_log_t log;
    atomic_bool is_serving; /* server is set */
    atomic_uint late_count;
    pthread_mutex_t lock; /* the next five */
    pthread_cond_t stopped;
    uint64_t posted;
    mcpg_coord_late_t *late;
    bool is_stopped, is_closed;
    /* executor thread, or before it starts and after it ended */
    mcpg_coord_config_t machine;
    mcpg_coord_t *coord;
    void *memory;
    mcpg_coord_effects_t effects;
    uint8_t *decode, *packed;
    mcpg_frames_tx_t *frames;
    mcpg_conn_table_t conns;
    mcpg_eventlog_t *eventlog;
    uint64_t event_seq, handled;
    bool is_over;
};

void mcpg__coord_open_eventlog(mcpg_coord_host_t *host,
                               const char *dir);          /* NULL or "": off; failure: a log line, no recorder */
void mcpg__coord_check_eventlog(mcpg_coord_host_t *host); /* a full disk ends the recording, with a log line */

#endif
