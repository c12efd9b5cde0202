/* pg_security.h: which credentials a process of a job uses: those it was given, or the job's own through the key-value
 * store. Private to src/api.
 *
 * Without credentials of its own a job gets them by itself: whoever starts the coordinator makes a CA, signs one
 * certificate for it and one for the ranks, forgets the CA's key, and puts what the ranks need into the store under the
 * coordinator's term. Who may read the store may attach as any rank: the trust is the store's.
 *
 * Nothing here decides who is let in: that is src/rpc. Never logs a key or a token.
 */
#ifndef MCPG_API_PG_SECURITY_H
#define MCPG_API_PG_SECURITY_H

#include "common/base.h"
#include "rpc/rpc_auth.h"

typedef struct mcpg_security mcpg_security_t; /* immutable, counted, any thread */

typedef struct {
    const char *tls; /* "auto", "always", "never"; NULL: MOONCAKE_TLS, then auto */
    const char *ca_file, *cert_file, *key_file, *token_file; /* NULL: MOONCAKE_TLS_CA and so on, then none */
    const char *host_ip;                                     /* resolved; NULL: loopback */
    bool is_coordinator;                                     /* serves only, never attaches */
} mcpg_security_config_t;
/* Reads the files. INVALID_ARGUMENT with a sentence: a file that cannot be read or that others may read, a certificate
 * that cannot be used. */
MCPG_MUST_USE mcpg_status_t mcpg__security_new(const mcpg_security_config_t *config, mcpg_security_t **out, char *error,
                                               size_t error_cap);
mcpg_security_t *mcpg__security_ref(mcpg_security_t *s);
void mcpg__security_unref(mcpg_security_t *s);                    /* NULL allowed */
mcpg_credentials_t *mcpg__security_own(const mcpg_security_t *s); /* borrowed; NULL: none were given */
bool mcpg__security_may_serve(const mcpg_security_t *s);          /* false: its own certificate is a rank's only */

/* Before this process starts the job's coordinator with that term: where it is to listen, with what it serves, with
 * what this process's own agent attaches. Puts what the other ranks need into the store. The two are the caller's (may
 * be NULL: plaintext). Blocks as long as kv.set does. */
MCPG_MUST_USE mcpg_status_t mcpg__security_host(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term,
                                                char *bind, size_t bind_cap, mcpg_credentials_t **server_out,
                                                mcpg_credentials_t **agent_out, char *error, size_t error_cap);
/* What this process needs for a coordinator at that address. kv: its record was found there under that term; NULL: the
 * user gave the address. *out is the caller's, NULL: plaintext. Blocks as long as kv.get does, at most 1 s. */
MCPG_MUST_USE mcpg_status_t mcpg__security_find(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term,
                                                const char *address, mcpg_credentials_t **out, char *error,
                                                size_t error_cap);

#endif
