/* rpc_grpc_impl.h: what the gRPC server and client share: the completion-queue thread and the stream. Private to
 * src/rpc.
 *
 * One pump per server and per client: a lock, a completion queue and the thread that always sits in it. Everything
 * about a stream is read and written with the pump's lock held; only the pump's thread frees streams. Callbacks to the
 * owner run without the lock.
 */
#ifndef MCPG_RPC_RPC_GRPC_IMPL_H
#define MCPG_RPC_RPC_GRPC_IMPL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>

#include "common/base.h"
#include "common/log.h"
#include "rpc/rpc.h"

#define MCPG_RPC_OUT_COUNT  4096u             /* messages that may wait in one stream */
#define MCPG_RPC_OUT_BYTES  ((size_t)8 << 20) /* and their bytes */
#define MCPG_RPC_FLUSH_US   1000000u /* an orderly close waits this long for the peer, then breaks the stream */
#define MCPG_RPC_REOFFER_US 2000u    /* a message that the receiver refused is offered again after this */
#define MCPG_RPC_METHOD     "/mooncake.pg.Coordinator/Attach"
#define MCPG_RPC_MARK       "mooncake-pg"    /* initial metadata of a real coordinator's answer */
#define MCPG_RPC_TOKEN_KEY  "mooncake-token" /* initial metadata of a call */
#define MCPG_RPC_META_BYTES 8192

#define MCPG_RPC_BROKEN_OFF "stream broken off by its owner"

/* A completion-queue tag. done: pump thread, lock held. */
typedef struct mcpg_gop {
    void (*done)(struct mcpg_gop *self, bool ok);
    void *who;
} mcpg_gop_t;

typedef struct mcpg_gstream mcpg_gstream_t;

typedef struct mcpg_gpump {
    pthread_mutex_t lock;
    grpc_completion_queue *cq;
    pthread_t thread;
    mcpg_gstream_t *streams; /* live ones */
    uint32_t stalled_count, closing_count;
    uint64_t next_tick_us;                 /* UINT64_MAX: none */
    void (*turn)(struct mcpg_gpump *self); /* after each event, lock held: the owner's shutdown */
    bool cq_down;
    bool is_ending; /* tick: the owner waits for something that makes no event */
} mcpg_gpump_t;

/* What differs between server and client. */
typedef struct {
    bool (*deliver)(mcpg_gstream_t *s, const uint8_t *buf, size_t len); /* lock not held */
    void (*end)(mcpg_gstream_t *s);        /* lock held: start the batch that ends our half */
    void (*read_ended)(mcpg_gstream_t *s); /* lock held: the peer ended its half */
    /* Lock held at entry and exit: make s unreachable for the owner, tell him without the lock. */
    void (*over)(mcpg_gstream_t *s);
    void (*release)(mcpg_gstream_t *s); /* lock held: nothing is in flight any more; free it */
} mcpg_gside_t;

typedef struct mcpg_gout {
    struct mcpg_gout *next;
    grpc_byte_buffer *bytes;
    size_t len;
} mcpg_gout_t;

struct mcpg_gstream {
    mcpg_gpump_t *pump;
    const mcpg_gside_t *side;
    grpc_call *call;
    mcpg_gstream_t *next, *prev;
    uint32_t pending; /* batches in the completion queue */
    mcpg_gop_t send_op, recv_op, end_op, life_op, start_op, wake_op;
    mcpg_gout_t *out_head, *out_tail;
    uint32_t out_count;
    size_t out_bytes;
    grpc_byte_buffer *received;
    grpc_slice in; /* have_in: read, not yet taken by the owner */
    uint64_t close_deadline_us;
    mcpg_status_t why; /* of an abort */
    bool send_busy, send_failed, recv_busy, have_in, stalled, read_on, read_ended, discard_in, closing, end_started,
        aborted, life_done, waking, start_busy, told;
};

/* Pump: create starts nothing; start runs the thread with signals blocked; join waits until the queue is shut down and
 * drained. */
MCPG_MUST_USE mcpg_status_t mcpg__gpump_init(mcpg_gpump_t *p, void (*turn)(mcpg_gpump_t *));
MCPG_MUST_USE mcpg_status_t mcpg__gpump_start(mcpg_gpump_t *p, const char *thread_name);
void mcpg__gpump_shutdown_cq(mcpg_gpump_t *p); /* lock held; once */
void mcpg__gpump_join(mcpg_gpump_t *p);
void mcpg__gpump_fini(mcpg_gpump_t *p);

/* Lock held for all of these. */
void mcpg__gstream_init(mcpg_gstream_t *s, mcpg_gpump_t *p, const mcpg_gside_t *side, grpc_call *call);
void mcpg__gstream_batch(mcpg_gstream_t *s, mcpg_gop_t *op, const grpc_op *ops, size_t count);
MCPG_MUST_USE mcpg_status_t mcpg__gstream_send(mcpg_gstream_t *s, const uint8_t *buf, size_t len);
void mcpg__gstream_read(mcpg_gstream_t *s); /* begin to read */
void mcpg__gstream_close(
    mcpg_gstream_t *s); /* in order, at most MCPG_RPC_FLUSH_US; nothing is delivered from here on */
void mcpg__gstream_abort(mcpg_gstream_t *s, mcpg_status_t why);
void mcpg__gstream_op_done(mcpg_gstream_t *s); /* end of each op's done: may free s */

/* Library start and end, in pairs; routes gRPC's log away from stderr. */
void mcpg__grpc_begin(void);
void mcpg__grpc_end(void);
const mcpg_log_t *mcpg__grpc_log(void);

/* rpc_grpc_auth.c: credentials as gRPC takes them, and who a call is from. */
grpc_server_credentials *mcpg__gauth_server(const mcpg_credentials_t *c);
grpc_channel_credentials *mcpg__gauth_channel(const mcpg_credentials_t *c, bool use_tls);
typedef struct {
    bool needs_cert;
    const mcpg_secret_t *token; /* NULL: none is asked for; borrows from the credentials */
    char job[MCPG_RPC_JOB_CAP]; /* "": any of those that the CA signs for */
} mcpg_gauth_t;
MCPG_MUST_USE mcpg_status_t mcpg__gauth_init(mcpg_gauth_t *a, mcpg_credentials_t *c, bool use_tls, char *error,
                                             size_t error_cap);
/* False: why gets the sentence. */
bool mcpg__gauth_judge(const mcpg_gauth_t *a, grpc_call *call, const grpc_metadata_array *meta, mcpg_rpc_grant_t *grant,
                       char *why, size_t why_cap);

/* rpc_grpc_client.c */
mcpg_status_t mcpg__grpc_client_create(const char *address, mcpg_credentials_t *credentials,
                                       const mcpg_rpc_client_events_t *events, mcpg_rpc_client_t **out, char *error,
                                       size_t error_cap);
mcpg_status_t mcpg__grpc_client_connect(mcpg_rpc_client_t *client);
mcpg_status_t mcpg__grpc_client_send(mcpg_rpc_client_t *client, const uint8_t *buf, size_t len);
void mcpg__grpc_client_disconnect(mcpg_rpc_client_t *client);
void mcpg__grpc_client_destroy(mcpg_rpc_client_t *client);

#endif
