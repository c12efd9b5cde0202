/* rpc_cert.h: makes and reads certificates: the job's own CA, and certificates of those who bring theirs.
 *
 * P-256 keys, SHA-256. The only file of the project that speaks to libcrypto's certificate part. Never writes a file,
 * never opens a socket, never keeps a key longer than its object lives.
 */
#ifndef MCPG_RPC_RPC_CERT_H
#define MCPG_RPC_RPC_CERT_H

#include "rpc/rpc_auth.h"

/* ---- making ---- */

typedef struct mcpg_ca mcpg_ca_t;
typedef struct {
    const char *job;     /* 1 to 64 of A-Z a-z 0-9 . _ - */
    bool is_coordinator; /* may serve: DNS name and server usage */
    bool is_rank;        /* may attach: URI of a rank and client usage; both may be set */
    bool any_rank;       /* is_rank: every rank of the job; else rank */
    uint32_t rank;
    int64_t from_s, until_s; /* validity, relative to now */
} mcpg_cert_spec_t;
typedef struct {
    char *cert; /* PEM */
    mcpg_secret_t key;
} mcpg_cert_t;

/* A new CA with a key of its own. INVALID_ARGUMENT: job. */
MCPG_MUST_USE mcpg_status_t mcpg__ca_new(const char *job, int64_t from_s, int64_t until_s, mcpg_ca_t **out);
/* One that was made before. INVALID_ARGUMENT: not PEM, or the key does not belong to the certificate. */
MCPG_MUST_USE mcpg_status_t mcpg__ca_load(const char *cert, const char *key, mcpg_ca_t **out);
const char *mcpg__ca_cert(const mcpg_ca_t *ca);                                    /* PEM, borrowed */
MCPG_MUST_USE mcpg_status_t mcpg__ca_key(const mcpg_ca_t *ca, mcpg_secret_t *out); /* PEM, for who keeps it in a file */
void mcpg__ca_free(mcpg_ca_t *ca);                                                 /* wipes the key; NULL allowed */
MCPG_MUST_USE mcpg_status_t mcpg__ca_issue(const mcpg_ca_t *ca, const mcpg_cert_spec_t *spec, mcpg_cert_t *out);
void mcpg__cert_fini(mcpg_cert_t *cert);

/* What a job without certificates of its own uses: a CA that signs exactly two certificates and then forgets its key.
 * coordinator_out: to serve with. rank_out: to attach with, as any rank. Some 0.3 ms. */
MCPG_MUST_USE mcpg_status_t mcpg__cert_make_job(const char *job, mcpg_credentials_t **coordinator_out,
                                                mcpg_credentials_t **rank_out);

/* ---- reading ---- */

typedef struct {
    int64_t not_before_s, not_after_s; /* since 1970 */
    bool is_coordinator;               /* has the coordinators' DNS name */
    mcpg_rpc_grant_t grant;
} mcpg_cert_info_t;
MCPG_MUST_USE mcpg_status_t mcpg__cert_read(const char *pem, mcpg_cert_info_t *out);
/* Whether they can be used at all, so that a user hears of it before a handshake fails: PEM, key and certificate
 * belong together, dates, names. now_s: since 1970. */
MCPG_MUST_USE mcpg_status_t mcpg__cert_check(const mcpg_credentials_t *c, bool for_server, int64_t now_s, char *error,
                                             size_t error_cap);

#endif
