/* rpc_grpc_relay.h: what stands between the network and gRPC where TLS is spoken. Private to src/rpc.
 *
 * gRPC takes an accepted descriptor only without TLS, so with TLS it listens itself: at a unix socket that has no name
 * any more, and this part accepts at the real address and carries the bytes in between, unread but for the first one.
 * Thus what strangers can cost is bounded here, before any of gRPC's code runs for them: how many connections there
 * are, how long one may stay silent, that it begins like TLS. And a connection whose peer is frozen can be cut.
 */
#ifndef MCPG_RPC_RPC_GRPC_RELAY_H
#define MCPG_RPC_RPC_GRPC_RELAY_H

#include <grpc/grpc.h>

#include "common/base.h"

typedef struct mcpg_grelay mcpg_grelay_t;

/* Makes gRPC listen with creds, before it is started. */
MCPG_MUST_USE mcpg_status_t mcpg__grelay_open(grpc_server *server, grpc_server_credentials *creds, mcpg_grelay_t **out,
                                              char *error, size_t error_cap);
/* After gRPC was started: begins to accept, on a thread of its own. Owns listen_fd on success. */
MCPG_MUST_USE mcpg_status_t mcpg__grelay_start(mcpg_grelay_t *r, int listen_fd, bool is_tcp);
void mcpg__grelay_stop(mcpg_grelay_t *r); /* accepts no more; connections go on; NULL allowed */
void mcpg__grelay_cut(mcpg_grelay_t *r);  /* breaks every connection that is there */
void mcpg__grelay_free(mcpg_grelay_t *r); /* after gRPC's server is gone: joins; NULL allowed */

#endif
