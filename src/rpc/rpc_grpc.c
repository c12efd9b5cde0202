/* rpc_grpc.c: the coordinator's end of the agents' streams on gRPC's C core, and the table of the gRPC transport.
 *
 * One generic method, one bidirectional stream per agent, one completion-queue thread. Never interprets a message,
 * never listens where rpc_auth.h does not allow it, and never lets a stranger's bytes reach a stream that is not his.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/codec.h"
#include "common/executor.h"
#include "rpc/rpc_address.h"
#include "rpc/rpc_grpc_impl.h"
#include "rpc/rpc_grpc_listen.h"
#include "rpc/rpc_grpc_relay.h"

#define MAX_STREAMS ((size_t)4 * MCPG_MAX_RANKS) /* every rank, its replacement, and strangers */
#define REFUSAL_CAP 1024u
#define SLOT_BITS   16u /* of a connection id; the rest is a serial number */
_Static_assert(MAX_STREAMS <= 1u << SLOT_BITS, "a slot fits");

struct mcpg_rpc_server {
    mcpg_gpump_t pump; /* first: turn() casts back */
    mcpg_rpc_server_events_t events;
    grpc_server *server;
    mcpg_glisten_t *listener;
    mcpg_grelay_t *relay; /* NULL: without TLS */
    mcpg_credentials_t *credentials;
    mcpg_gauth_t auth;
    mcpg_gop_t accept_op, shutdown_op;
    grpc_call *accept_call;
    grpc_call_details accept_details;
    grpc_metadata_array accept_meta;
    bool accept_busy, stopping, cancelled_all, shutdown_done;
    uint64_t stop_deadline_us;
    uint32_t reject_count;
    uint64_t serial, refused_count;
    uint32_t free_count;
    uint16_t free_slots[MAX_STREAMS];
    struct peer *slots[MAX_STREAMS];
};

/* One agent's stream. */
typedef struct peer {
    mcpg_gstream_t s; /* first: callbacks cast back */
    mcpg_rpc_server_t *server;
    uint64_t conn;
    mcpg_rpc_grant_t grant;
    bool is_refused; /* the owner never hears of it */
    int cancelled;
} peer_t;

/* A call that is not ours, or one too many: answered with a status, then forgotten. */
typedef struct {
    mcpg_gop_t op;
    mcpg_rpc_server_t *server;
    grpc_call *call;
    int cancelled;
} reject_t;

/* ---- streams ---- */

static peer_t *find(const mcpg_rpc_server_t *server, uint64_t conn) {
    uint64_t slot = conn & ((1u << SLOT_BITS) - 1u);
    peer_t *p = slot < MAX_STREAMS ? server->slots[slot] : NULL;
    return p != NULL && p->conn == conn ? p : NULL;
}

static bool peer_deliver(mcpg_gstream_t *s, const uint8_t *buf, size_t len) {
    peer_t *p = (peer_t *)s;
    return p->server->events.message(p->server->events.user, p->conn, buf, len);
}

static void peer_end(mcpg_gstream_t *s) {
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    op.data.send_status_from_server.status = GRPC_STATUS_OK;
    mcpg__gstream_batch(s, &s->end_op, &op, 1);
}

static void peer_read_ended(mcpg_gstream_t *s) {
    mcpg__gstream_close(s);
}

static void peer_over(mcpg_gstream_t *s) {
    peer_t *p = (peer_t *)s;
    mcpg_rpc_server_t *server = p->server;
    uint16_t slot = (uint16_t)(p->conn & ((1u << SLOT_BITS) - 1u));
    server->slots[slot] = NULL;
    server->free_slots[server->free_count++] = slot;
    if (p->is_refused) return;
    (void)pthread_mutex_unlock(&server->pump.lock);
    server->events.closed(server->events.user, p->conn);
    (void)pthread_mutex_lock(&server->pump.lock);
}

static void peer_release(mcpg_gstream_t *s) {
    grpc_call_unref(s->call);
    free(s);
}

static const mcpg_gside_t peer_side = {peer_deliver, peer_end, peer_read_ended, peer_over, peer_release};

static void plain_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    mcpg__gstream_op_done((mcpg_gstream_t *)op->who);
}
static void life_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    mcpg_gstream_t *s = (mcpg_gstream_t *)op->who;
    s->life_done = true;
    mcpg__gstream_op_done(s);
}

/* Answers at once, so that the agent knows that it has a stream. */
static void peer_answer(peer_t *p) {
    mcpg_gstream_t *s = &p->s;
    grpc_metadata mark;
    memset(&mark, 0, sizeof mark);
    mark.key = grpc_slice_from_static_string(MCPG_RPC_MARK);
    mark.value = grpc_slice_from_static_string("1");
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_SEND_INITIAL_METADATA;
    op.data.send_initial_metadata.count = 1;
    op.data.send_initial_metadata.metadata = &mark;
    s->start_op = (mcpg_gop_t){plain_done, s};
    mcpg__gstream_batch(s, &s->start_op, &op, 1);
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &p->cancelled;
    s->life_op = (mcpg_gop_t){life_done, s};
    mcpg__gstream_batch(s, &s->life_op, &op, 1);
    s->end_op = (mcpg_gop_t){plain_done, s};
}

/* Tells the owner, then reads. */
static void peer_open(peer_t *p) {
    mcpg_rpc_server_t *server = p->server;
    uint64_t conn = p->conn;
    (void)pthread_mutex_unlock(&server->pump.lock);
    server->events.opened(server->events.user, conn);
    (void)pthread_mutex_lock(&server->pump.lock);
    mcpg__gstream_read(&p->s);
}

/* ---- accepting ---- */

static void reject_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    reject_t *r = (reject_t *)op->who;
    r->server->reject_count--;
    grpc_call_unref(r->call);
    free(r);
}

static void reject(mcpg_rpc_server_t *server, grpc_call *call, grpc_status_code status, const char *why) {
    reject_t *r = (reject_t *)calloc(1, sizeof *r);
    if (r == NULL) {
        (void)grpc_call_cancel(call, NULL);
        grpc_call_unref(call);
        return;
    }
    r->op = (mcpg_gop_t){reject_done, r};
    r->server = server;
    r->call = call;
    server->reject_count++;
    grpc_slice text = grpc_slice_from_static_string(why);
    grpc_op ops[3];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[1].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[1].data.send_status_from_server.status = status;
    ops[1].data.send_status_from_server.status_details = &text;
    ops[2].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    ops[2].data.recv_close_on_server.cancelled = &r->cancelled;
    grpc_call_error rc = grpc_call_start_batch(call, ops, 3, &r->op, NULL);
    MCPG_ASSERT(rc == GRPC_CALL_OK);
}

/* One message with the reason, in the owner's language; nothing that the peer sends is read. */
static void turn_away(peer_t *p, const char *why) {
    mcpg_rpc_server_t *server = p->server;
    uint8_t buf[REFUSAL_CAP];
    p->is_refused = true;
    uint64_t count = ++server->refused_count;
    if ((count & (count - 1u)) == 0) /* a stranger must not fill the log: the 1st, 2nd, 4th, 8th, ... */
        mcpg__log(mcpg__grpc_log(), MCPG_LOG_WARN, "stream_refused count %llu: %s", (unsigned long long)count, why);
    size_t len = server->events.refusal(server->events.user, why, buf, sizeof buf);
    mcpg_status_t sent = len > 0 && len <= sizeof buf ? mcpg__gstream_send(&p->s, buf, len) : MCPG_LIMIT;
    (void)sent; /* the end of the stream says as much as can be said */
    mcpg__gstream_close(&p->s);
}

/* why: NULL, or the reason for which the peer may not be here. */
static void admit(mcpg_rpc_server_t *server, grpc_call *call, const mcpg_rpc_grant_t *grant, const char *why) {
    if (why != NULL && server->events.refusal == NULL) {
        reject(server, call, GRPC_STATUS_PERMISSION_DENIED, "these credentials are not accepted here");
        return;
    }
    if (server->stopping) {
        reject(server, call, GRPC_STATUS_UNAVAILABLE, "the coordinator is shutting down");
        return;
    }
    peer_t *p = server->free_count > 0 ? (peer_t *)calloc(1, sizeof *p) : NULL;
    if (p == NULL) {
        reject(server, call, GRPC_STATUS_RESOURCE_EXHAUSTED, "the coordinator has no room for another stream");
        return;
    }
    uint16_t slot = server->free_slots[--server->free_count];
    p->server = server;
    p->conn = (++server->serial << SLOT_BITS) | slot;
    p->grant = *grant;
    server->slots[slot] = p;
    mcpg__gstream_init(&p->s, &server->pump, &peer_side, call);
    peer_answer(p);
    if (why == NULL)
        peer_open(p);
    else
        turn_away(p, why);
}

static void accept_next(mcpg_rpc_server_t *server) {
    if (server->stopping || server->accept_busy) return;
    server->accept_call = NULL;
    grpc_call_details_init(&server->accept_details);
    grpc_metadata_array_init(&server->accept_meta);
    grpc_call_error rc =
        grpc_server_request_call(server->server, &server->accept_call, &server->accept_details, &server->accept_meta,
                                 server->pump.cq, server->pump.cq, &server->accept_op);
    MCPG_ASSERT(rc == GRPC_CALL_OK);
    server->accept_busy = true;
}

static void accept_done(mcpg_gop_t *op, bool ok) {
    mcpg_rpc_server_t *server = (mcpg_rpc_server_t *)op->who;
    grpc_call *call = ok ? server->accept_call : NULL;
    bool is_ours = ok && grpc_slice_str_cmp(server->accept_details.method, MCPG_RPC_METHOD) == 0;
    mcpg_rpc_grant_t grant;
    char why[256];
    bool may_be_here = is_ours && mcpg__gauth_judge(&server->auth, call, &server->accept_meta, &grant, why, sizeof why);
    grpc_call_details_destroy(&server->accept_details);
    grpc_metadata_array_destroy(&server->accept_meta);
    server->accept_busy = false;
    accept_next(server);
    if (call == NULL) return;
    if (is_ours)
        admit(server, call, &grant, may_be_here ? NULL : why);
    else
        reject(server, call, GRPC_STATUS_UNIMPLEMENTED, "only " MCPG_RPC_METHOD " is served here");
}

/* ---- start ---- */

static grpc_arg int_arg(const char *key, int value) {
    grpc_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.type = GRPC_ARG_INTEGER;
    arg.key = (char *)(uintptr_t)key;
    arg.value.integer = value;
    return arg;
}

static grpc_server *create_server(void) {
    grpc_arg list[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)MCPG_MSG_CAP),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, 8),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 5000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
        int_arg(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, MCPG_RPC_META_BYTES),
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5000),
        int_arg(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300000), /* without a call: an agent always has one */
    };
    grpc_channel_args args = {.num_args = sizeof list / sizeof list[0], .args = list};
    return grpc_server_create(&args, NULL);
}

static void shutdown_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    ((mcpg_rpc_server_t *)op->who)->shutdown_done = true;
}

/* Stop: streams get their time to flush, then calls are cancelled, then connections are cut: a frozen peer with a full
 * socket would keep both gRPC's write and its shutdown waiting for as long as it likes. */
static void server_turn(mcpg_gpump_t *pump) {
    mcpg_rpc_server_t *server = (mcpg_rpc_server_t *)pump;
    if (!server->stopping) return;
    bool is_late = mcpg__now().us >= server->stop_deadline_us;
    if (!server->cancelled_all && (pump->streams == NULL || is_late)) {
        server->cancelled_all = true;
        grpc_server_cancel_all_calls(server->server);
    }
    if (is_late && server->relay != NULL) mcpg__grelay_cut(server->relay);
    if (is_late) mcpg__glisten_cut(server->listener);
    if (server->shutdown_done && pump->streams == NULL && server->reject_count == 0 && !server->accept_busy)
        mcpg__gpump_shutdown_cq(pump);
}

/* Ends a server whose thread never ran: nothing can be pending but the shutdown itself. */
static void abandon(mcpg_rpc_server_t *server) {
    grpc_server_shutdown_and_notify(server->server, server->pump.cq, &server->shutdown_op);
    grpc_server_cancel_all_calls(server->server);
    grpc_completion_queue_shutdown(server->pump.cq);
    grpc_event event;
    do {
        event = grpc_completion_queue_next(server->pump.cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
}

static void free_server(mcpg_rpc_server_t *server) {
    grpc_server_destroy(server->server);
    mcpg__gpump_fini(&server->pump);
    mcpg__grelay_free(server->relay);
    mcpg__glisten_free(server->listener);
    mcpg__credentials_unref(server->credentials);
    free(server);
    mcpg__grpc_end();
}

static void server_stop(mcpg_rpc_server_t *server) {
    if (server == NULL) return;
    mcpg__grelay_stop(server->relay);
    mcpg__glisten_stop(server->listener);
    (void)pthread_mutex_lock(&server->pump.lock);
    server->stopping = true;
    server->pump.is_ending = true;
    server->stop_deadline_us = mcpg__now().us + MCPG_RPC_FLUSH_US;
    for (mcpg_gstream_t *s = server->pump.streams; s != NULL; s = s->next) mcpg__gstream_close(s);
    grpc_server_shutdown_and_notify(server->server, server->pump.cq, &server->shutdown_op);
    (void)pthread_mutex_unlock(&server->pump.lock);
    mcpg__gpump_join(&server->pump);
    free_server(server);
}

static mcpg_rpc_server_t *alloc_server(const mcpg_rpc_server_events_t *events, mcpg_credentials_t *credentials) {
    mcpg_rpc_server_t *server = (mcpg_rpc_server_t *)calloc(1, sizeof *server);
    if (server == NULL) return NULL;
    server->events = *events;
    server->credentials = mcpg__credentials_ref(credentials);
    server->accept_op = (mcpg_gop_t){accept_done, server};
    server->shutdown_op = (mcpg_gop_t){shutdown_done, server};
    for (size_t i = 0; i < MAX_STREAMS; i++)
        server->free_slots[server->free_count++] = (uint16_t)(MAX_STREAMS - 1u - i);
    return server;
}

/* Before gRPC starts: the socket at the real address; with TLS gRPC's own behind it. */
static mcpg_status_t open_listener(mcpg_rpc_server_t *server, const mcpg_rpc_address_t *address, char *error,
                                   size_t error_cap) {
    MCPG_TRY(mcpg__gauth_init(&server->auth, server->credentials, address->is_tls, error, error_cap));
    MCPG_TRY(mcpg__glisten_open(address, &server->listener, error, error_cap));
    if (!address->is_tls) return MCPG_OK;
    grpc_server_credentials *creds = mcpg__gauth_server(server->credentials);
    mcpg_status_t status = mcpg__grelay_open(server->server, creds, &server->relay, error, error_cap);
    grpc_server_credentials_release(creds);
    return status;
}

static mcpg_status_t start_listener(mcpg_rpc_server_t *server) {
    if (server->relay == NULL) return mcpg__glisten_start(server->listener, server->server);
    int fd = mcpg__glisten_take(server->listener);
    mcpg_status_t status = mcpg__grelay_start(server->relay, fd, true);
    if (status != MCPG_OK) (void)close(fd);
    return status;
}

static mcpg_status_t serve(const char *bind, mcpg_credentials_t *credentials, const mcpg_rpc_server_events_t *events,
                           mcpg_rpc_server_t **out, char *error, size_t error_cap) {
    char unused[1];
    if (error == NULL || error_cap == 0) {
        error = unused;
        error_cap = sizeof unused;
    }
    mcpg_rpc_address_t address;
    MCPG_TRY(mcpg__rpc_address_parse(bind, true, &address, error, error_cap));
    MCPG_TRY(mcpg__rpc_policy(&address, credentials, true, &address.is_tls, error, error_cap));
    mcpg_rpc_server_t *server = alloc_server(events, credentials);
    if (server == NULL) return MCPG_NO_MEMORY;
    mcpg__grpc_begin();
    mcpg_status_t status = mcpg__gpump_init(&server->pump, server_turn);
    if (status != MCPG_OK) goto err_end;
    server->server = create_server();
    grpc_server_register_completion_queue(server->server, server->pump.cq, NULL);
    status = open_listener(server, &address, error, error_cap);
    if (status != MCPG_OK) goto err_abandon;
    grpc_server_start(server->server);
    status = mcpg__gpump_start(&server->pump, "mcpg-rpc-srv");
    if (status != MCPG_OK) goto err_abandon;
    (void)pthread_mutex_lock(&server->pump.lock);
    accept_next(server);
    (void)pthread_mutex_unlock(&server->pump.lock);
    status = start_listener(server);
    if (status != MCPG_OK) goto err_stop;
    *out = server;
    return MCPG_OK;

err_stop:
    server_stop(server);
    return status;

err_abandon:
    abandon(server);
    free_server(server);
    return status;
err_end:
    mcpg__credentials_unref(server->credentials);
    free(server);
    mcpg__grpc_end();
    return status;
}

/* ---- the table ---- */

static size_t server_address(const mcpg_rpc_server_t *server, char *buf, size_t cap) {
    return mcpg__rpc_address_text(mcpg__glisten_address(server->listener), buf, cap);
}

static mcpg_status_t server_send(mcpg_rpc_server_t *server, uint64_t conn, const uint8_t *buf, size_t len) {
    (void)pthread_mutex_lock(&server->pump.lock);
    peer_t *p = find(server, conn);
    mcpg_status_t status = p != NULL ? mcpg__gstream_send(&p->s, buf, len) : MCPG_NOT_FOUND;
    (void)pthread_mutex_unlock(&server->pump.lock);
    return status;
}

static mcpg_status_t server_may_speak(mcpg_rpc_server_t *server, uint64_t conn, uint32_t rank, char *why,
                                      size_t why_cap) {
    char granted[96];
    (void)pthread_mutex_lock(&server->pump.lock);
    const peer_t *p = find(server, conn);
    mcpg_status_t status = p == NULL ? MCPG_NOT_FOUND : MCPG_OK;
    if (p != NULL && !mcpg__grant_has(&p->grant, rank)) {
        status = MCPG_NOT_PERMITTED;
        mcpg__grant_text(&p->grant, granted, sizeof granted);
    }
    (void)pthread_mutex_unlock(&server->pump.lock);
    if (status == MCPG_NOT_PERMITTED)
        (void)snprintf(why, why_cap,
                       "this process's certificate is for %s, not for rank %u: give it that rank's own certificate "
                       "(MOONCAKE_TLS_CERT, MOONCAKE_TLS_KEY)",
                       granted, rank);
    return status;
}

static void server_close(mcpg_rpc_server_t *server, uint64_t conn) {
    (void)pthread_mutex_lock(&server->pump.lock);
    peer_t *p = find(server, conn);
    if (p != NULL) mcpg__gstream_close(&p->s);
    (void)pthread_mutex_unlock(&server->pump.lock);
}

const mcpg_rpc_ops_t *mcpg__rpc_grpc(void) {
    static const mcpg_rpc_ops_t ops = {
        .name = "grpc",
        .serve = serve,
        .server_address = server_address,
        .server_send = server_send,
        .server_may_speak = server_may_speak,
        .server_close = server_close,
        .server_stop = server_stop,
        .client_create = mcpg__grpc_client_create,
        .client_connect = mcpg__grpc_client_connect,
        .client_send = mcpg__grpc_client_send,
        .client_disconnect = mcpg__grpc_client_disconnect,
        .client_destroy = mcpg__grpc_client_destroy,
    };
    return &ops;
}
