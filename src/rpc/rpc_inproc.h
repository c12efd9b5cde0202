/* rpc_inproc.h: what tests may do to streams of the in-process transport. Nothing but tests includes it. */
#ifndef MCPG_RPC_RPC_INPROC_H
#define MCPG_RPC_RPC_INPROC_H

#include "rpc/rpc.h"

/* Breaks one stream of that server as a lost connection would: what is queued is lost, both ends get closed. conn 0:
 * all its streams. Returns how many were broken. */
uint32_t mcpg__rpc_inproc_break(const char *address, uint64_t conn);

#endif
