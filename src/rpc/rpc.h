/* rpc.h: the transport between agents and coordinator: one bidirectional, ordered stream of messages per agent.
 *
 * Credentials (rpc_auth.h) may be NULL: plaintext, on loopback or a unix socket only. Both ends take a reference.
 * rpc_grpc.c is the real one, rpc_inproc.c its twin for tests. Message bytes are opaque here. Nothing above this header
 * knows gRPC. Callbacks run on the transport's thread, must not block, and must not call stop. Bytes are borrowed for
 * the call.
 */
#ifndef MCPG_RPC_RPC_H
#define MCPG_RPC_RPC_H

#include "common/base.h"
#include "rpc/rpc_auth.h"

typedef struct mcpg_rpc_server mcpg_rpc_server_t;
typedef struct mcpg_rpc_client mcpg_rpc_client_t;

typedef struct {
    void *user;
    void (*opened)(void *user, uint64_t conn); /* conn: never 0, never reused */
    /* False: the receiver's queue is full. The transport keeps the message, stops reading this stream, and offers it
     * again every few ms. */
    bool (*message)(void *user, uint64_t conn, const uint8_t *buf, size_t len);
    void (*closed)(void *user, uint64_t conn); /* exactly once per opened */
    /* What a peer is told that may not be here (a missing token, a certificate without a rank): writes one message of
     * at most cap bytes, returns its length. It gets that message and nothing else, and is never "opened". NULL: the
     * stream is refused without words. */
    size_t (*refusal)(void *user, const char *why, uint8_t *buf, size_t cap);
} mcpg_rpc_server_events_t;

typedef struct {
    void *user;
    void (*connected)(void *user);
    bool (*message)(void *user, const uint8_t *buf, size_t len); /* false: as above */
    /* Exactly once per connect that was accepted. OK: an orderly end by either side. BUSY: this side's queue
     * overflowed. NOT_SUPPORTED: what answers there is not a coordinator. LIMIT: it has no room. NOT_PERMITTED: it
     * does not accept these credentials. UNAVAILABLE: lost. connect may be called from here. */
    void (*closed)(void *user, mcpg_status_t why);
} mcpg_rpc_client_events_t;

typedef struct {
    const char *name;
    /* bind: "127.0.0.1:0", "[::1]:0", "10.0.0.7:0", "unix:/path". What is not loopback or a unix socket needs TLS:
     * without the credentials for it this is refused, and error says how to do it. */
    mcpg_status_t (*serve)(const char *bind, mcpg_credentials_t *credentials, const mcpg_rpc_server_events_t *events,
                           mcpg_rpc_server_t **out, char *error, size_t error_cap);
    size_t (*server_address)(const mcpg_rpc_server_t *server, char *buf, size_t cap); /* what clients connect to */
    /* Copies and queues. NOT_FOUND: no such stream. BUSY: the peer does not read; the stream is then closed by the
     * transport. */
    mcpg_status_t (*server_send)(mcpg_rpc_server_t *server, uint64_t conn, const uint8_t *buf, size_t len);
    /* Whether that stream's peer may speak for the rank. NOT_PERMITTED: why gets the sentence. NOT_FOUND: no such
     * stream any more. */
    mcpg_status_t (*server_may_speak)(mcpg_rpc_server_t *server, uint64_t conn, uint32_t rank, char *why,
                                      size_t why_cap);
    void (*server_close)(mcpg_rpc_server_t *server, uint64_t conn); /* after what is queued was sent */
    void (*server_stop)(mcpg_rpc_server_t *server);                 /* joins its threads, frees; NULL allowed */
    mcpg_status_t (*client_create)(const char *address, mcpg_credentials_t *credentials,
                                   const mcpg_rpc_client_events_t *events, mcpg_rpc_client_t **out, char *error,
                                   size_t error_cap);
    /* One stream at a time; INVALID_STATE if one is open. Waits for a server as long as it takes: connected() or
     * closed() follows. */
    mcpg_status_t (*client_connect)(mcpg_rpc_client_t *client);
    mcpg_status_t (*client_send)(mcpg_rpc_client_t *client, const uint8_t *buf, size_t len);
    void (*client_disconnect)(mcpg_rpc_client_t *client); /* flushes what is queued, at most 1 s; then closed() */
    void (*client_destroy)(mcpg_rpc_client_t *client);    /* joins, frees; no callback after it; NULL allowed */
} mcpg_rpc_ops_t;

const mcpg_rpc_ops_t *mcpg__rpc_grpc(void);
const mcpg_rpc_ops_t *mcpg__rpc_inproc(void);

#endif
