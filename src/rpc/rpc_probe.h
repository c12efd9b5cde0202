/* rpc_probe.h: says in a sentence why a coordinator's address does not answer, by one more connection of its own.
 *
 * For error texts only: nothing is decided by what it finds. Never sends a message, a key or a token.
 */
#ifndef MCPG_RPC_RPC_PROBE_H
#define MCPG_RPC_RPC_PROBE_H

#include "rpc/rpc_auth.h"

/* Blocks at most 2 s. Writes a sentence part without full stop, or "" when nothing is wrong to see. */
void mcpg__rpc_explain(const char *address, const mcpg_credentials_t *credentials, char *buf, size_t cap);

#endif
