/* rpc_grpc_client.c: an agent's end of its stream on gRPC's C core.
 *
 * Each connect makes a channel of its own, so no back-off of an earlier stream is inherited, and waits for the server
 * (the call is WAIT_FOR_READY and the thread always polls): a server that comes back is found within about 100 ms.
 * Never retries by itself once a stream was open: that is the machine's decision.
 */
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"
#include "rpc/rpc_address.h"
#include "rpc/rpc_grpc_impl.h"

typedef struct link link_t;

struct mcpg_rpc_client {
    mcpg_gpump_t pump; /* first: turn() casts back */
    mcpg_rpc_client_events_t events;
    char target[160];
    mcpg_credentials_t *credentials;
    grpc_channel_credentials *channel_creds;
    bool use_tls;
    link_t *link; /* the open stream, or NULL */
    bool destroying;
};

/* The one stream, from connect to closed. */
struct link {
    mcpg_gstream_t s; /* first: callbacks cast back */
    mcpg_rpc_client_t *client;
    grpc_channel *channel;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    grpc_slice token;     /* empty: none is shown */
    bool connected, left; /* left: closed by this side */
};

static bool link_deliver(mcpg_gstream_t *s, const uint8_t *buf, size_t len) {
    link_t *l = (link_t *)s;
    return l->client->events.message(l->client->events.user, buf, len);
}

static void link_end(mcpg_gstream_t *s) {
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    mcpg__gstream_batch(s, &s->end_op, &op, 1);
}

static void link_read_ended(mcpg_gstream_t *s) {
    (void)s; /* the status follows */
}

static mcpg_status_t reason(const link_t *l) {
    if (l->left) return MCPG_OK;
    /* Without a mark either the call failed, then the status says why, or it is somebody else's server and this side
     * broke it off. */
    bool is_foreign = l->s.aborted && l->s.why == MCPG_NOT_SUPPORTED;
    if (l->s.aborted && (!is_foreign || grpc_slice_str_cmp(l->details, MCPG_RPC_BROKEN_OFF) == 0)) return l->s.why;
    if (l->status == GRPC_STATUS_OK) return l->connected ? MCPG_OK : MCPG_NOT_SUPPORTED;
    if (l->status == GRPC_STATUS_UNIMPLEMENTED) return MCPG_NOT_SUPPORTED;
    if (l->status == GRPC_STATUS_RESOURCE_EXHAUSTED) return MCPG_LIMIT;
    if (l->status == GRPC_STATUS_PERMISSION_DENIED) return MCPG_NOT_PERMITTED;
    return MCPG_UNAVAILABLE;
}

static void free_link(link_t *l) {
    if (l->s.call != NULL) grpc_call_unref(l->s.call);
    grpc_channel_destroy(l->channel);
    grpc_metadata_array_destroy(&l->initial);
    grpc_metadata_array_destroy(&l->trailing);
    grpc_slice_unref(l->details);
    grpc_slice_unref(l->token);
    free(l);
}

static void link_over(mcpg_gstream_t *s) {
    link_t *l = (link_t *)s;
    mcpg_rpc_client_t *client = l->client;
    mcpg_status_t why = reason(l);
    client->link = NULL;
    (void)pthread_mutex_unlock(&client->pump.lock);
    client->events.closed(client->events.user, why);
    (void)pthread_mutex_lock(&client->pump.lock);
}

static void link_release(mcpg_gstream_t *s) {
    free_link((link_t *)s);
}

static const mcpg_gside_t link_side = {link_deliver, link_end, link_read_ended, link_over, link_release};

static void end_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    mcpg__gstream_op_done((mcpg_gstream_t *)op->who);
}
static void life_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    mcpg_gstream_t *s = (mcpg_gstream_t *)op->who;
    s->life_done = true;
    mcpg__gstream_op_done(s);
}

static bool is_marked(const grpc_metadata_array *meta) {
    for (size_t i = 0; i < meta->count; i++)
        if (grpc_slice_str_cmp(meta->metadata[i].key, MCPG_RPC_MARK) == 0) return true;
    return false;
}

/* Initial metadata arrived, or the call failed (then there is no mark and the status says why). */
static void start_done(mcpg_gop_t *op, bool ok) {
    link_t *l = (link_t *)op->who;
    mcpg_rpc_client_t *client = l->client;
    l->s.start_busy = false;
    if (ok && is_marked(&l->initial) && !l->s.closing && !l->s.aborted) {
        l->connected = true;
        (void)pthread_mutex_unlock(&client->pump.lock);
        client->events.connected(client->events.user);
        (void)pthread_mutex_lock(&client->pump.lock);
    } else {
        mcpg__gstream_abort(&l->s, MCPG_NOT_SUPPORTED); /* see reason() */
    }
    mcpg__gstream_read(&l->s);
    mcpg__gstream_op_done(&l->s);
}

static void link_start(link_t *l) {
    mcpg_gstream_t *s = &l->s;
    s->start_op = (mcpg_gop_t){start_done, l};
    s->life_op = (mcpg_gop_t){life_done, s};
    s->end_op = (mcpg_gop_t){end_done, s};
    grpc_metadata shown;
    memset(&shown, 0, sizeof shown);
    shown.key = grpc_slice_from_static_string(MCPG_RPC_TOKEN_KEY);
    shown.value = l->token;
    grpc_op ops[2];
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = GRPC_SLICE_LENGTH(l->token) > 0 ? 1 : 0;
    ops[0].data.send_initial_metadata.metadata = &shown;
    ops[0].flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY | GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &l->initial;
    s->start_busy = true;
    mcpg__gstream_batch(s, &s->start_op, ops, 2);
    memset(ops, 0, sizeof ops);
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &l->trailing;
    ops[0].data.recv_status_on_client.status = &l->status;
    ops[0].data.recv_status_on_client.status_details = &l->details;
    mcpg__gstream_batch(s, &s->life_op, ops, 1);
}

static grpc_arg int_arg(const char *key, int value) {
    grpc_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.type = GRPC_ARG_INTEGER;
    arg.key = (char *)(uintptr_t)key;
    arg.value.integer = value;
    return arg;
}

static grpc_arg name_arg(void) {
    static char server_name[] = MCPG_RPC_SERVER_NAME;
    static char key[] = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG;
    grpc_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.type = GRPC_ARG_STRING;
    arg.key = key;
    arg.value.string = server_name;
    return arg;
}

static grpc_channel *create_channel(const mcpg_rpc_client_t *client) {
    grpc_arg list[] = {
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0), /* a replayed stream would repeat messages */
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)MCPG_MSG_CAP),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000), /* longest that one attempt may take, not a back-off */
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 5000),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, MCPG_RPC_META_BYTES),
        name_arg(), /* last: of use to TLS only */
    };
    grpc_channel_args args = {.num_args = sizeof list / sizeof list[0] - (client->use_tls ? 0u : 1u), .args = list};
    return grpc_channel_create(client->target, client->channel_creds, &args);
}

static void client_turn(mcpg_gpump_t *pump) {
    mcpg_rpc_client_t *client = (mcpg_rpc_client_t *)pump;
    if (client->destroying && pump->streams == NULL) mcpg__gpump_shutdown_cq(pump);
}

static void free_client(mcpg_rpc_client_t *client) {
    grpc_channel_credentials_release(client->channel_creds);
    mcpg__credentials_unref(client->credentials);
    free(client);
    mcpg__grpc_end();
}

mcpg_status_t mcpg__grpc_client_create(const char *address, mcpg_credentials_t *credentials,
                                       const mcpg_rpc_client_events_t *events, mcpg_rpc_client_t **out, char *error,
                                       size_t error_cap) {
    mcpg_rpc_address_t parsed;
    bool use_tls = false;
    MCPG_TRY(mcpg__rpc_address_parse(address, false, &parsed, error, error_cap));
    MCPG_TRY(mcpg__rpc_policy(&parsed, credentials, false, &use_tls, error, error_cap));
    parsed.is_tls = false; /* gRPC's name for the place has no such word */
    mcpg_rpc_client_t *client = (mcpg_rpc_client_t *)calloc(1, sizeof *client);
    if (client == NULL) return MCPG_NO_MEMORY;
    client->events = *events;
    size_t scheme = parsed.is_unix
                        ? 0
                        : mcpg__rpc_copy_text(parsed.is_v6 ? "ipv6:" : "ipv4:", client->target, sizeof client->target);
    (void)mcpg__rpc_address_text(&parsed, client->target + scheme, sizeof client->target - scheme);
    mcpg__grpc_begin();
    client->use_tls = use_tls;
    client->credentials = mcpg__credentials_ref(credentials);
    client->channel_creds = mcpg__gauth_channel(credentials, use_tls);
    mcpg_status_t status = mcpg__gpump_init(&client->pump, client_turn);
    if (status != MCPG_OK) goto err_end;
    status = mcpg__gpump_start(&client->pump, "mcpg-rpc-cli");
    if (status != MCPG_OK) goto err_fini;
    *out = client;
    return MCPG_OK;

err_fini:
    grpc_completion_queue_shutdown(client->pump.cq);
    mcpg__gpump_fini(&client->pump);
err_end:
    free_client(client);
    return status;
}

static mcpg_status_t connect_locked(mcpg_rpc_client_t *client) {
    if (client->destroying) return MCPG_SHUTTING_DOWN;
    if (client->link != NULL) return MCPG_INVALID_STATE;
    link_t *l = (link_t *)calloc(1, sizeof *l);
    if (l == NULL) return MCPG_NO_MEMORY;
    l->client = client;
    l->channel = create_channel(client);
    grpc_metadata_array_init(&l->initial);
    grpc_metadata_array_init(&l->trailing);
    l->details = grpc_empty_slice();
    const mcpg_secret_t *token = mcpg__credentials_token(client->credentials);
    l->token = token != NULL ? grpc_slice_from_copied_buffer(token->bytes, token->len) : grpc_empty_slice();
    grpc_call *call = grpc_channel_create_call(l->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->pump.cq,
                                               grpc_slice_from_static_string(MCPG_RPC_METHOD), NULL,
                                               gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (call == NULL) {
        free_link(l);
        return MCPG_SYSTEM;
    }
    mcpg__gstream_init(&l->s, &client->pump, &link_side, call);
    client->link = l;
    link_start(l);
    return MCPG_OK;
}

mcpg_status_t mcpg__grpc_client_connect(mcpg_rpc_client_t *client) {
    (void)pthread_mutex_lock(&client->pump.lock);
    mcpg_status_t status = connect_locked(client);
    (void)pthread_mutex_unlock(&client->pump.lock);
    return status;
}

mcpg_status_t mcpg__grpc_client_send(mcpg_rpc_client_t *client, const uint8_t *buf, size_t len) {
    (void)pthread_mutex_lock(&client->pump.lock);
    mcpg_status_t status = client->link != NULL ? mcpg__gstream_send(&client->link->s, buf, len) : MCPG_NOT_FOUND;
    (void)pthread_mutex_unlock(&client->pump.lock);
    return status;
}

/* A stream that was never answered has nothing to flush to. */
static void leave(mcpg_rpc_client_t *client, bool flush) {
    link_t *l = client->link;
    if (l == NULL) return;
    if (!l->s.closing && !l->s.aborted && !l->s.life_done) l->left = true;
    if (flush && l->connected)
        mcpg__gstream_close(&l->s);
    else
        mcpg__gstream_abort(&l->s, MCPG_OK);
}

void mcpg__grpc_client_disconnect(mcpg_rpc_client_t *client) {
    (void)pthread_mutex_lock(&client->pump.lock);
    leave(client, true);
    (void)pthread_mutex_unlock(&client->pump.lock);
}

void mcpg__grpc_client_destroy(mcpg_rpc_client_t *client) {
    if (client == NULL) return;
    (void)pthread_mutex_lock(&client->pump.lock);
    client->destroying = true;
    bool is_flushing = client->link != NULL && client->link->s.closing;
    if (!is_flushing) leave(client, false);
    if (client->pump.streams == NULL) mcpg__gpump_shutdown_cq(&client->pump);
    (void)pthread_mutex_unlock(&client->pump.lock);
    mcpg__gpump_join(&client->pump);
    mcpg__gpump_fini(&client->pump);
    free_client(client);
}
