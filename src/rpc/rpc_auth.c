/* rpc_auth.c: credentials, the bind policy, and what a certificate's names allow. Never prints a key or a token, never
 * opens a file or a socket. */
#include "rpc/rpc_auth.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mcpg_credentials {
    atomic_uint refs;
    char *ca, *cert;
    mcpg_secret_t key, token;
};

static mcpg_status_t refuse(char *error, size_t error_cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static mcpg_status_t refuse(char *error, size_t error_cap, const char *fmt, ...) {
    if (error != NULL && error_cap > 0) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(error, error_cap, fmt, args);
        va_end(args);
    }
    return MCPG_INVALID_ARGUMENT;
}

/* ---- secrets ---- */

mcpg_status_t mcpg__secret_copy(const char *bytes, size_t len, mcpg_secret_t *out) {
    char *copy = malloc(len + 1u);
    if (copy == NULL) return MCPG_NO_MEMORY;
    memcpy(copy, bytes, len);
    copy[len] = '\0';
    *out = (mcpg_secret_t){copy, len};
    return MCPG_OK;
}

void mcpg__secret_wipe(mcpg_secret_t *secret) {
    if (secret->bytes != NULL) {
        explicit_bzero(secret->bytes, secret->len);
        free(secret->bytes);
    }
    *secret = (mcpg_secret_t){NULL, 0};
}

/* ---- credentials ---- */

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Lower case, without what is around it. */
static mcpg_status_t take_token(const char *text, mcpg_secret_t *out, char *error, size_t error_cap) {
    size_t len = strlen(text), begin = 0;
    while (begin < len && is_space(text[begin])) begin++;
    while (len > begin && is_space(text[len - 1u])) len--;
    bool ok = len - begin == MCPG_RPC_TOKEN_LEN;
    for (size_t i = begin; ok && i < len; i++) {
        char c = text[i];
        ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    }
    if (!ok)
        return refuse(error, error_cap,
                      "the token has %zu characters that are not 64 hexadecimal digits (256 bit): make one with "
                      "\"openssl rand -hex 32\"",
                      len - begin);
    MCPG_TRY(mcpg__secret_copy(text + begin, len - begin, out));
    for (size_t i = 0; i < out->len; i++)
        if (out->bytes[i] >= 'A' && out->bytes[i] <= 'F') out->bytes[i] = (char)(out->bytes[i] - 'A' + 'a');
    return MCPG_OK;
}

static bool is_given(const char *text) {
    return text != NULL && text[0] != '\0';
}

static mcpg_status_t fill(mcpg_credentials_t *c, const mcpg_credentials_text_t *text, char *error, size_t error_cap) {
    if (is_given(text->ca) && (c->ca = strdup(text->ca)) == NULL) return MCPG_NO_MEMORY;
    if (is_given(text->cert)) {
        if ((c->cert = strdup(text->cert)) == NULL) return MCPG_NO_MEMORY;
        MCPG_TRY(mcpg__secret_copy(text->key, strlen(text->key), &c->key));
    }
    return is_given(text->token) ? take_token(text->token, &c->token, error, error_cap) : MCPG_OK;
}

mcpg_status_t mcpg__credentials_new(const mcpg_credentials_text_t *text, mcpg_credentials_t **out, char *error,
                                    size_t error_cap) {
    if (is_given(text->cert) != is_given(text->key))
        return refuse(error, error_cap,
                      "%s is given without its %s: set both of MOONCAKE_TLS_CERT and MOONCAKE_TLS_KEY",
                      is_given(text->cert) ? "a certificate" : "a private key",
                      is_given(text->cert) ? "private key" : "certificate");
    if (!is_given(text->ca) && !is_given(text->cert) && !is_given(text->token))
        return refuse(error, error_cap, "the credentials are empty: give a CA, a certificate with its key, or a token");
    mcpg_credentials_t *c = calloc(1, sizeof(*c));
    if (c == NULL) return MCPG_NO_MEMORY;
    atomic_init(&c->refs, 1);
    mcpg_status_t status = fill(c, text, error, error_cap);
    if (status != MCPG_OK) {
        mcpg__credentials_unref(c);
        return status;
    }
    *out = c;
    return MCPG_OK;
}

mcpg_credentials_t *mcpg__credentials_ref(mcpg_credentials_t *c) {
    if (c != NULL) atomic_fetch_add(&c->refs, 1);
    return c;
}

void mcpg__credentials_unref(mcpg_credentials_t *c) {
    if (c == NULL || atomic_fetch_sub(&c->refs, 1) != 1) return;
    mcpg__secret_wipe(&c->key);
    mcpg__secret_wipe(&c->token);
    free(c->ca);
    free(c->cert);
    free(c);
}

const char *mcpg__credentials_ca(const mcpg_credentials_t *c) {
    return c != NULL ? c->ca : NULL;
}
const char *mcpg__credentials_cert(const mcpg_credentials_t *c) {
    return c != NULL ? c->cert : NULL;
}
const mcpg_secret_t *mcpg__credentials_key(const mcpg_credentials_t *c) {
    return c != NULL && c->key.bytes != NULL ? &c->key : NULL;
}
const mcpg_secret_t *mcpg__credentials_token(const mcpg_credentials_t *c) {
    return c != NULL && c->token.bytes != NULL ? &c->token : NULL;
}

/* ---- the policy ---- */

static mcpg_status_t refuse_bind(const char *text, bool is_wide, char *error, size_t error_cap) {
    return refuse(error, error_cap,
                  "bind address '%s' %s: set MOONCAKE_TLS_CERT, MOONCAKE_TLS_KEY and MOONCAKE_TLS_CA (or "
                  "MOONCAKE_TOKEN_FILE), or bind 127.0.0.1:PORT, [::1]:PORT or unix:/path",
                  text, is_wide ? "is not loopback, so it needs TLS" : "asks for TLS and there is no certificate");
}

static mcpg_status_t refuse_dial(const char *text, bool is_wide, char *error, size_t error_cap) {
    return refuse(error, error_cap,
                  "coordinator address '%s' %s: set MOONCAKE_TLS_CA, and MOONCAKE_TLS_CERT with MOONCAKE_TLS_KEY (or "
                  "MOONCAKE_TOKEN_FILE), or use a loopback address through a tunnel (ssh -L)",
                  text, is_wide ? "is not loopback, so it needs TLS" : "asks for TLS and the credentials lack");
}

mcpg_status_t mcpg__rpc_policy(const mcpg_rpc_address_t *address, const mcpg_credentials_t *c, bool for_bind,
                               bool *use_tls_out, char *error, size_t error_cap) {
    bool has_ca = mcpg__credentials_ca(c) != NULL, has_cert = mcpg__credentials_cert(c) != NULL;
    bool has_token = mcpg__credentials_token(c) != NULL;
    bool use_tls = !address->is_unix && (address->is_tls || !address->is_loopback || (for_bind ? has_cert : has_ca));
    bool is_enough = for_bind ? has_cert && (has_ca || has_token) : has_ca && (has_cert || has_token);
    if (use_tls && !is_enough) {
        char text[160];
        (void)mcpg__rpc_address_text(address, text, sizeof(text));
        return for_bind ? refuse_bind(text, !address->is_loopback, error, error_cap)
                        : refuse_dial(text, !address->is_loopback, error, error_cap);
    }
    *use_tls_out = use_tls;
    return MCPG_OK;
}

/* ---- names in certificates ---- */

static bool is_job_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

static bool parse_rank(const char *text, size_t len, uint32_t *out) {
    if (len == 0 || len > 6 || (len > 1 && text[0] == '0')) return false;
    uint32_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10u + (uint32_t)(text[i] - '0');
    }
    if (value >= MCPG_MAX_RANKS) return false;
    *out = value;
    return true;
}

/* The job's part of a name of ours; what follows it in *rest_out. */
static bool parse_job(const char *uri, size_t len, char job[MCPG_RPC_JOB_CAP], const char **rest_out) {
    size_t scheme = strlen(MCPG_RPC_URI_SCHEME), n = 0;
    if (len < scheme || memcmp(uri, MCPG_RPC_URI_SCHEME, scheme) != 0) return false;
    const char *at = uri + scheme, *end = uri + len;
    while (at + n < end && is_job_char(at[n])) n++;
    if (n == 0 || n >= MCPG_RPC_JOB_CAP || at + n == end || at[n] != '/') return false;
    memcpy(job, at, n);
    job[n] = '\0';
    *rest_out = at + n;
    return true;
}

bool mcpg__grant_add(mcpg_rpc_grant_t *grant, const char *uri, size_t len, const char *job) {
    static const char before[] = "/rank/";
    char named[MCPG_RPC_JOB_CAP];
    const char *rest = NULL;
    if (!parse_job(uri, len, named, &rest)) return false;
    if (job[0] != '\0' && strcmp(job, named) != 0) return false;
    size_t left = (size_t)(uri + len - rest);
    bool is_coordinator = left == strlen("/coordinator") && memcmp(rest, "/coordinator", left) == 0;
    if (!is_coordinator) {
        if (left < sizeof(before) || memcmp(rest, before, sizeof(before) - 1u) != 0) return false;
        rest += sizeof(before) - 1u;
        left -= sizeof(before) - 1u;
        uint32_t rank = 0;
        if (left == 1 && rest[0] == '*') {
            grant->any_rank = true;
        } else if (parse_rank(rest, left, &rank) && grant->count < MCPG_RPC_GRANTS) {
            grant->ranks[grant->count++] = rank;
        } else {
            return false;
        }
    }
    memcpy(grant->job, named, sizeof(named));
    return true;
}

bool mcpg__grant_has(const mcpg_rpc_grant_t *grant, uint32_t rank) {
    if (grant->any_rank) return true;
    for (uint32_t i = 0; i < grant->count; i++)
        if (grant->ranks[i] == rank) return true;
    return false;
}

void mcpg__grant_text(const mcpg_rpc_grant_t *grant, char *buf, size_t cap) {
    if (grant->any_rank || grant->count == 0) {
        (void)snprintf(buf, cap, "%s", grant->any_rank ? "any rank" : "no rank");
        return;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < grant->count; i++) {
        const char *lead = i > 0 ? ", " : grant->count > 1 ? "ranks " : "rank ";
        int n = snprintf(buf + at, cap - at, "%s%u", lead, grant->ranks[i]);
        if (n < 0 || (size_t)n >= cap - at) return;
        at += (size_t)n;
    }
}

/* ---- the token ---- */

bool mcpg__token_matches(const mcpg_secret_t *token, const uint8_t *given, size_t len) {
    volatile uint8_t differs = len == token->len ? 0 : 1; /* the length is no secret, and never differs by content */
    for (size_t i = 0; i < token->len; i++) {
        uint8_t other = len > 0 ? given[i % len] : 0;
        differs = (uint8_t)(differs | ((uint8_t)token->bytes[i] ^ other));
    }
    return differs == 0;
}
