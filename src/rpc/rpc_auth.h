/* rpc_auth.h: who may speak to whom: credentials, the bind policy, and what a certificate lets its owner do.
 *
 * The one place that says when TLS is needed and which rank a stream may speak for. Keys and tokens live in a type that
 * no format prints, are never logged, never compared in time that depends on their content, and are wiped when freed.
 *
 * Names in certificates. A rank's: URI "mooncake-pg://JOB/rank/N" (that rank), "mooncake-pg://JOB/rank/STAR" with an
 * asterisk for STAR (any rank of the job). A coordinator's: DNS name MCPG_RPC_SERVER_NAME, and, if it serves one job of
 * several that its CA signs for, URI "mooncake-pg://JOB/coordinator".
 */
#ifndef MCPG_RPC_RPC_AUTH_H
#define MCPG_RPC_RPC_AUTH_H

#include "common/base.h"
#include "rpc/rpc_address.h"

#define MCPG_RPC_SERVER_NAME "coordinator.mooncake-pg" /* what every coordinator's certificate names */
#define MCPG_RPC_URI_SCHEME  "mooncake-pg://"
#define MCPG_RPC_JOB_CAP     65u /* bytes of a job's name, final NUL included */
#define MCPG_RPC_TOKEN_LEN   64u /* hexadecimal digits: 256 bit */
#define MCPG_RPC_PEM_CAP     65536u
#define MCPG_RPC_GRANTS      16u /* rank names in one certificate that are looked at */

/* Bytes that must never be printed. Owns them; a final NUL follows. */
typedef struct {
    char *bytes; /* NULL: none */
    size_t len;
} mcpg_secret_t;
MCPG_MUST_USE mcpg_status_t mcpg__secret_copy(const char *bytes, size_t len, mcpg_secret_t *out);
void mcpg__secret_wipe(mcpg_secret_t *secret); /* overwrites, frees, leaves none */

/* Immutable, counted, any thread. */
typedef struct mcpg_credentials mcpg_credentials_t;
typedef struct {
    const char *ca;    /* PEM: whose certificates are believed; NULL: none */
    const char *cert;  /* PEM: own certificate, then its chain */
    const char *key;   /* PEM: its private key */
    const char *token; /* 64 hexadecimal digits; white space around them is ignored */
} mcpg_credentials_text_t;
/* Copies. INVALID_ARGUMENT: nothing at all, a certificate without key, a malformed token. Does not look into PEM. */
MCPG_MUST_USE mcpg_status_t mcpg__credentials_new(const mcpg_credentials_text_t *text, mcpg_credentials_t **out,
                                                  char *error, size_t error_cap);
mcpg_credentials_t *mcpg__credentials_ref(mcpg_credentials_t *c); /* NULL gives NULL */
void mcpg__credentials_unref(mcpg_credentials_t *c);              /* NULL allowed */
/* Borrowed, NULL: none. Not for logs. */
const char *mcpg__credentials_ca(const mcpg_credentials_t *c);
const char *mcpg__credentials_cert(const mcpg_credentials_t *c);
const mcpg_secret_t *mcpg__credentials_key(const mcpg_credentials_t *c);
const mcpg_secret_t *mcpg__credentials_token(const mcpg_credentials_t *c);

/* The policy. c may be NULL. Says whether TLS is to be used; INVALID_ARGUMENT with the remedy when the address may not
 * be served or dialled with these credentials. */
MCPG_MUST_USE mcpg_status_t mcpg__rpc_policy(const mcpg_rpc_address_t *address, const mcpg_credentials_t *c,
                                             bool for_bind, bool *use_tls_out, char *error, size_t error_cap);

/* What the names in one certificate allow. */
typedef struct {
    bool any_rank;
    uint32_t count;
    uint32_t ranks[MCPG_RPC_GRANTS];
    char job[MCPG_RPC_JOB_CAP]; /* "": none was named */
} mcpg_rpc_grant_t;
/* Adds what one URI allows. False: not a name of ours (nothing added), or of another job than job ("": any). */
bool mcpg__grant_add(mcpg_rpc_grant_t *grant, const char *uri, size_t len, const char *job);
bool mcpg__grant_has(const mcpg_rpc_grant_t *grant, uint32_t rank);
/* "rank 3", "ranks 3, 4", "any rank", "no rank": copies at most cap bytes with a final NUL. */
void mcpg__grant_text(const mcpg_rpc_grant_t *grant, char *buf, size_t cap);

/* Same time for every content of given. */
bool mcpg__token_matches(const mcpg_secret_t *token, const uint8_t *given, size_t len);

#endif
