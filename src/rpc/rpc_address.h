/* rpc_address.h: what a coordinator address may look like.
 *
 * "127.0.0.1:0", "[::1]:0", "10.0.0.7:5000", "localhost:0", "unix:/path"; "tls:" before a host says that TLS is spoken
 * there. Everything else is refused with a sentence that names the value and the remedy. Whether an address may be
 * served or dialled is rpc_auth.h's question. Never resolves names, never opens a socket.
 */
#ifndef MCPG_RPC_RPC_ADDRESS_H
#define MCPG_RPC_RPC_ADDRESS_H

#include "common/base.h"

typedef struct {
    bool is_unix, is_v6;
    bool is_tls, is_loopback; /* is_tls: "tls:" was written, or put there by who serves it */
    uint16_t port;            /* 0: any free one (binding only) */
    char host[64];            /* "127.0.0.1", "::1"; numeric; empty for unix */
    char path[108];           /* unix */
} mcpg_rpc_address_t;

MCPG_MUST_USE mcpg_status_t mcpg__rpc_address_parse(const char *text, bool for_bind, mcpg_rpc_address_t *out,
                                                    char *error, size_t error_cap);
/* "127.0.0.1:5000", "tls:[::1]:5000", "unix:/path"; returns the full length, copies at most cap bytes with a final NUL.
 */
size_t mcpg__rpc_address_text(const mcpg_rpc_address_t *address, char *buf, size_t cap);
/* Copies at most cap bytes with a final NUL; returns the full length. */
size_t mcpg__rpc_copy_text(const char *text, char *buf, size_t cap);

#endif
