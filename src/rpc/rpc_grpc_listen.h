/* rpc_grpc_listen.h: the gRPC server's listening socket and the connections it accepted. Private to src/rpc.
 *
 * gRPC could listen itself, but then a connection whose peer is frozen with a full socket could not be cut, and stop
 * would wait for it; and its errors would not say why. So this part accepts, hands each connection to gRPC, and keeps a
 * second descriptor of it to cut.
 */
#ifndef MCPG_RPC_RPC_GRPC_LISTEN_H
#define MCPG_RPC_RPC_GRPC_LISTEN_H

#include <grpc/grpc.h>

#include "rpc/rpc_address.h"

typedef struct mcpg_glisten mcpg_glisten_t;

/* Binds and listens; port 0 is replaced by the real one. The lock file beside a unix path belongs to one server at a
 * time. */
MCPG_MUST_USE mcpg_status_t mcpg__glisten_open(const mcpg_rpc_address_t *address, mcpg_glisten_t **out, char *error,
                                               size_t error_cap);
const mcpg_rpc_address_t *mcpg__glisten_address(const mcpg_glisten_t *l);
int mcpg__glisten_take(mcpg_glisten_t *l); /* the listening descriptor, for one who accepts himself; -1 afterwards */
uint32_t mcpg__gconn_limit(uint32_t fds_each); /* connections that there may be, by rank count and "ulimit -n" */
MCPG_MUST_USE mcpg_status_t mcpg__glisten_start(mcpg_glisten_t *l,
                                                grpc_server *server); /* begins to accept, on a thread of its own */
void mcpg__glisten_stop(mcpg_glisten_t *l);                           /* accepts no more, joins */
void mcpg__glisten_cut(mcpg_glisten_t *l);  /* after stop: breaks every connection that is still there */
void mcpg__glisten_free(mcpg_glisten_t *l); /* after stop; NULL allowed */

#endif
