/* rpc_grpc_auth.c: credentials as gRPC takes them, and who a call is from. The only file that asks gRPC about a peer's
 * identity. Never logs a key, a token, or what a stranger sent. */
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <string.h>

#include "rpc/rpc_cert.h"
#include "rpc/rpc_grpc_impl.h"

/* TLS 1.2 is the least that gRPC's own default allows. */
grpc_server_credentials *mcpg__gauth_server(const mcpg_credentials_t *c) {
    const char *ca = mcpg__credentials_ca(c);
    grpc_ssl_pem_key_cert_pair pair = {mcpg__credentials_key(c)->bytes, mcpg__credentials_cert(c)};
    return grpc_ssl_server_credentials_create_ex(ca, &pair, 1,
                                                 ca != NULL ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                            : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                                                 NULL);
}

grpc_channel_credentials *mcpg__gauth_channel(const mcpg_credentials_t *c, bool use_tls) {
    if (!use_tls) return grpc_insecure_credentials_create();
    bool has_pair = mcpg__credentials_cert(c) != NULL;
    grpc_ssl_pem_key_cert_pair pair = {has_pair ? mcpg__credentials_key(c)->bytes : NULL, mcpg__credentials_cert(c)};
    return grpc_ssl_credentials_create(mcpg__credentials_ca(c), has_pair ? &pair : NULL, NULL, NULL);
}

mcpg_status_t mcpg__gauth_init(mcpg_gauth_t *a, mcpg_credentials_t *c, bool use_tls, char *error, size_t error_cap) {
    memset(a, 0, sizeof(*a));
    a->needs_cert = use_tls && mcpg__credentials_ca(c) != NULL;
    a->token = mcpg__credentials_token(c);
    if (!use_tls) return MCPG_OK;
    mcpg_cert_info_t info;
    if (mcpg__cert_read(mcpg__credentials_cert(c), &info) != MCPG_OK) {
        (void)snprintf(error, error_cap,
                       "the certificate (MOONCAKE_TLS_CERT) is not PEM: give the file that \"openssl x509 -in FILE\" "
                       "reads");
        return MCPG_INVALID_ARGUMENT;
    }
    memcpy(a->job, info.grant.job, sizeof(a->job));
    return MCPG_OK;
}

/* The handshake has proved the certificate; its names say what it is for. */
static void read_grant(const mcpg_gauth_t *a, grpc_call *call, mcpg_rpc_grant_t *grant) {
    grpc_auth_context *context = grpc_call_auth_context(call);
    if (context == NULL) return;
    grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
    for (const grpc_auth_property *p = grpc_auth_property_iterator_next(&it); p != NULL;
         p = grpc_auth_property_iterator_next(&it))
        (void)mcpg__grant_add(grant, p->value, p->value_length, a->job);
    grpc_auth_context_release(context);
}

static bool has_token(const mcpg_secret_t *token, const grpc_metadata_array *meta) {
    bool found = false;
    for (size_t i = 0; i < meta->count; i++) {
        if (grpc_slice_str_cmp(meta->metadata[i].key, MCPG_RPC_TOKEN_KEY) != 0) continue;
        grpc_slice value = meta->metadata[i].value;
        found |= mcpg__token_matches(token, GRPC_SLICE_START_PTR(value), GRPC_SLICE_LENGTH(value));
    }
    return found;
}

bool mcpg__gauth_judge(const mcpg_gauth_t *a, grpc_call *call, const grpc_metadata_array *meta, mcpg_rpc_grant_t *grant,
                       char *why, size_t why_cap) {
    memset(grant, 0, sizeof(*grant));
    if (a->token != NULL && !has_token(a->token, meta)) {
        (void)snprintf(why, why_cap,
                       "the job's token is missing or another one: set MOONCAKE_TOKEN_FILE to the file that the "
                       "coordinator was given");
        return false;
    }
    if (!a->needs_cert) {
        grant->any_rank = true;
        return true;
    }
    read_grant(a, call, grant);
    if (grant->any_rank || grant->count > 0) return true;
    (void)snprintf(why, why_cap,
                   "this process's certificate names no rank of job '%s': issue one with URI:" MCPG_RPC_URI_SCHEME
                   "%s/rank/N",
                   a->job[0] != '\0' ? a->job : "JOB", a->job[0] != '\0' ? a->job : "JOB");
    return false;
}
