/* rpc_cert.c: makes certificates with libcrypto. Leaves nothing in OpenSSL's error queue of the calling thread, which
 * belongs to the application. */
#include "rpc/rpc_cert.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERIAL_BYTES 16
#define DAY_S        86400
#define JOB_FROM_S   (-DAY_S) /* hosts' clocks differ */
#define JOB_UNTIL_S  ((int64_t)3650 * DAY_S)

struct mcpg_ca {
    X509 *cert;
    EVP_PKEY *key;
    char *pem;
};

static char *take_bio(BIO *bio) {
    char *bytes = NULL;
    long len = BIO_get_mem_data(bio, &bytes);
    char *copy = len > 0 ? malloc((size_t)len + 1u) : NULL;
    if (copy == NULL) return NULL;
    memcpy(copy, bytes, (size_t)len);
    copy[len] = '\0';
    return copy;
}

static char *cert_pem(X509 *cert) {
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem = bio != NULL && PEM_write_bio_X509(bio, cert) == 1 ? take_bio(bio) : NULL;
    BIO_free(bio);
    return pem;
}

/* The memory BIO is wiped by its free. */
static bool key_pem(EVP_PKEY *key, mcpg_secret_t *out) {
    BIO *bio = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    long len = 0;
    if (bio != NULL && PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1)
        len = BIO_get_mem_data(bio, &bytes);
    bool ok = len > 0 && mcpg__secret_copy(bytes, (size_t)len, out) == MCPG_OK;
    BIO_free(bio);
    return ok;
}

static X509 *read_cert(const char *pem) {
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = bio != NULL ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return cert;
}

/* A key with a pass phrase is not asked for: nobody is there to answer. */
static int no_passphrase(char *buf, int size, int rwflag, void *user) {
    (void)buf;
    (void)size;
    (void)rwflag;
    (void)user;
    return -1;
}

static EVP_PKEY *read_key(const char *pem) {
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_passphrase, NULL) : NULL;
    BIO_free(bio);
    return key;
}

/* ---- one certificate ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e != NULL && X509_add_ext(cert, e, -1) == 1;
    X509_EXTENSION_free(e);
    return ok;
}

static bool set_serial(X509 *cert) {
    unsigned char bytes[SERIAL_BYTES];
    if (RAND_bytes(bytes, (int)sizeof(bytes)) != 1) return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7fu) | 0x40u); /* positive, and never shorter */
    BIGNUM *n = BN_bin2bn(bytes, (int)sizeof(bytes), NULL);
    bool ok = n != NULL && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert)) != NULL;
    BN_free(n);
    return ok;
}

static bool set_time(ASN1_TIME *field, int64_t from_now_s) {
    return X509_time_adj_ex(field, (int)(from_now_s / DAY_S), (long)(from_now_s % DAY_S), NULL) != NULL;
}

/* Unsigned, without extensions. */
static X509 *blank(const char *name, EVP_PKEY *key, int64_t from_s, int64_t until_s) {
    X509 *cert = X509_new();
    if (cert == NULL) return NULL;
    X509_NAME *subject = X509_get_subject_name(cert);
    bool ok = X509_set_version(cert, 2) == 1 && set_serial(cert) && set_time(X509_getm_notBefore(cert), from_s) &&
              set_time(X509_getm_notAfter(cert), until_s) && X509_set_pubkey(cert, key) == 1 &&
              X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) == 1;
    if (ok) return cert;
    X509_free(cert);
    return NULL;
}

static bool is_job(const char *job) {
    char uri[MCPG_RPC_JOB_CAP + 32u];
    mcpg_rpc_grant_t grant;
    memset(&grant, 0, sizeof(grant));
    if (job == NULL) return false;
    int n = snprintf(uri, sizeof(uri), MCPG_RPC_URI_SCHEME "%s/coordinator", job);
    return n > 0 && (size_t)n < sizeof(uri) && mcpg__grant_add(&grant, uri, (size_t)n, "");
}

/* ---- the CA ---- */

static X509 *self_signed(const char *job, EVP_PKEY *key, int64_t from_s, int64_t until_s) {
    char name[MCPG_RPC_JOB_CAP + 16u];
    (void)snprintf(name, sizeof(name), "%.40s CA", job); /* a common name has at most 64 characters */
    X509 *cert = blank(name, key, from_s, until_s);
    bool ok = cert != NULL && X509_set_issuer_name(cert, X509_get_subject_name(cert)) == 1 &&
              add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
              add_extension(cert, cert, NID_key_usage, "critical,keyCertSign") &&
              add_extension(cert, cert, NID_subject_key_identifier, "hash") && X509_sign(cert, key, EVP_sha256()) > 0;
    if (ok) return cert;
    X509_free(cert);
    return NULL;
}

static mcpg_status_t finish_ca(mcpg_ca_t *ca, mcpg_status_t on_error, mcpg_ca_t **out) {
    if (ca->cert != NULL && ca->key != NULL && X509_check_private_key(ca->cert, ca->key) == 1)
        ca->pem = cert_pem(ca->cert);
    ERR_pop_to_mark();
    if (ca->pem == NULL) {
        mcpg__ca_free(ca);
        return on_error;
    }
    *out = ca;
    return MCPG_OK;
}

mcpg_status_t mcpg__ca_new(const char *job, int64_t from_s, int64_t until_s, mcpg_ca_t **out) {
    if (!is_job(job)) return MCPG_INVALID_ARGUMENT;
    mcpg_ca_t *ca = calloc(1, sizeof(*ca));
    if (ca == NULL) return MCPG_NO_MEMORY;
    (void)ERR_set_mark();
    ca->key = EVP_EC_gen("P-256");
    if (ca->key != NULL) ca->cert = self_signed(job, ca->key, from_s, until_s);
    return finish_ca(ca, MCPG_SYSTEM, out);
}

mcpg_status_t mcpg__ca_load(const char *cert, const char *key, mcpg_ca_t **out) {
    mcpg_ca_t *ca = calloc(1, sizeof(*ca));
    if (ca == NULL) return MCPG_NO_MEMORY;
    (void)ERR_set_mark();
    ca->cert = read_cert(cert);
    ca->key = read_key(key);
    return finish_ca(ca, MCPG_INVALID_ARGUMENT, out);
}

const char *mcpg__ca_cert(const mcpg_ca_t *ca) {
    return ca->pem;
}

mcpg_status_t mcpg__ca_key(const mcpg_ca_t *ca, mcpg_secret_t *out) {
    (void)ERR_set_mark();
    bool ok = key_pem(ca->key, out);
    ERR_pop_to_mark();
    return ok ? MCPG_OK : MCPG_NO_MEMORY;
}

void mcpg__ca_free(mcpg_ca_t *ca) {
    if (ca == NULL) return;
    X509_free(ca->cert);
    EVP_PKEY_free(ca->key);
    free(ca->pem);
    free(ca);
}

/* ---- what it signs ---- */

/* "URI:mooncake-pg://job/rank/3,DNS:coordinator.mooncake-pg,..." */
static void names_of(const mcpg_cert_spec_t *spec, char *buf, size_t cap) {
    size_t at = 0;
    if (spec->is_rank && spec->any_rank)
        at = (size_t)snprintf(buf, cap, "URI:" MCPG_RPC_URI_SCHEME "%s/rank/*", spec->job);
    else if (spec->is_rank)
        at = (size_t)snprintf(buf, cap, "URI:" MCPG_RPC_URI_SCHEME "%s/rank/%u", spec->job, spec->rank);
    if (spec->is_coordinator)
        (void)snprintf(buf + at, cap - at, "%sDNS:" MCPG_RPC_SERVER_NAME ",URI:" MCPG_RPC_URI_SCHEME "%s/coordinator",
                       at > 0 ? "," : "", spec->job);
}

static bool extend_and_sign(X509 *cert, const mcpg_ca_t *ca, const mcpg_cert_spec_t *spec) {
    char names[4u * (MCPG_RPC_JOB_CAP + 48u)];
    names_of(spec, names, sizeof(names));
    const char *usage = !spec->is_coordinator ? "clientAuth" : spec->is_rank ? "serverAuth,clientAuth" : "serverAuth";
    return X509_set_issuer_name(cert, X509_get_subject_name(ca->cert)) == 1 &&
           add_extension(cert, ca->cert, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(cert, ca->cert, NID_key_usage, "critical,digitalSignature") &&
           add_extension(cert, ca->cert, NID_ext_key_usage, usage) &&
           add_extension(cert, ca->cert, NID_subject_alt_name, names) &&
           add_extension(cert, ca->cert, NID_authority_key_identifier, "keyid") &&
           X509_sign(cert, ca->key, EVP_sha256()) > 0;
}

mcpg_status_t mcpg__ca_issue(const mcpg_ca_t *ca, const mcpg_cert_spec_t *spec, mcpg_cert_t *out) {
    if (!is_job(spec->job) || (!spec->is_coordinator && !spec->is_rank) || spec->rank >= MCPG_MAX_RANKS)
        return MCPG_INVALID_ARGUMENT;
    mcpg_cert_t made = {NULL, {NULL, 0}};
    (void)ERR_set_mark();
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert =
        key != NULL ? blank(spec->is_coordinator ? "coordinator" : "rank", key, spec->from_s, spec->until_s) : NULL;
    if (cert != NULL && extend_and_sign(cert, ca, spec) && key_pem(key, &made.key)) made.cert = cert_pem(cert);
    X509_free(cert);
    EVP_PKEY_free(key);
    ERR_pop_to_mark();
    if (made.cert == NULL) {
        mcpg__cert_fini(&made);
        return MCPG_SYSTEM;
    }
    *out = made;
    return MCPG_OK;
}

void mcpg__cert_fini(mcpg_cert_t *cert) {
    free(cert->cert);
    cert->cert = NULL;
    mcpg__secret_wipe(&cert->key);
}

static mcpg_status_t issue_credentials(const mcpg_ca_t *ca, const mcpg_cert_spec_t *spec, mcpg_credentials_t **out) {
    mcpg_cert_t cert;
    MCPG_TRY(mcpg__ca_issue(ca, spec, &cert));
    mcpg_credentials_text_t text = {.ca = ca->pem, .cert = cert.cert, .key = cert.key.bytes};
    mcpg_status_t status = mcpg__credentials_new(&text, out, NULL, 0);
    mcpg__cert_fini(&cert);
    return status;
}

mcpg_status_t mcpg__cert_make_job(const char *job, mcpg_credentials_t **coordinator_out,
                                  mcpg_credentials_t **rank_out) {
    mcpg_ca_t *ca = NULL;
    mcpg_credentials_t *coordinator = NULL, *rank = NULL;
    MCPG_TRY(mcpg__ca_new(job, JOB_FROM_S, JOB_UNTIL_S, &ca));
    mcpg_cert_spec_t spec = {.job = job, .is_coordinator = true, .from_s = JOB_FROM_S, .until_s = JOB_UNTIL_S};
    mcpg_status_t status = issue_credentials(ca, &spec, &coordinator);
    spec.is_coordinator = false;
    spec.is_rank = spec.any_rank = true;
    if (status == MCPG_OK) status = issue_credentials(ca, &spec, &rank);
    mcpg__ca_free(ca);
    if (status != MCPG_OK) {
        mcpg__credentials_unref(coordinator);
        return status;
    }
    *coordinator_out = coordinator;
    *rank_out = rank;
    return MCPG_OK;
}

/* ---- reading ---- */

static int64_t seconds_of(const ASN1_TIME *t) {
    ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
    int days = 0, seconds = 0;
    bool ok = epoch != NULL && ASN1_TIME_diff(&days, &seconds, epoch, t) == 1;
    ASN1_TIME_free(epoch);
    return ok ? (int64_t)days * DAY_S + seconds : 0;
}

static void read_names(X509 *cert, mcpg_cert_info_t *info) {
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        int type = 0;
        const ASN1_STRING *text = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        if (type == GEN_URI)
            (void)mcpg__grant_add(&info->grant, (const char *)ASN1_STRING_get0_data(text),
                                  (size_t)ASN1_STRING_length(text), "");
    }
    GENERAL_NAMES_free(names);
    info->is_coordinator = X509_check_host(cert, MCPG_RPC_SERVER_NAME, strlen(MCPG_RPC_SERVER_NAME), 0, NULL) == 1;
}

static void read_info(X509 *cert, mcpg_cert_info_t *out) {
    memset(out, 0, sizeof(*out));
    out->not_before_s = seconds_of(X509_get0_notBefore(cert));
    out->not_after_s = seconds_of(X509_get0_notAfter(cert));
    read_names(cert, out);
}

mcpg_status_t mcpg__cert_read(const char *pem, mcpg_cert_info_t *out) {
    (void)ERR_set_mark();
    X509 *cert = read_cert(pem);
    if (cert != NULL) read_info(cert, out);
    X509_free(cert);
    ERR_pop_to_mark();
    return cert != NULL ? MCPG_OK : MCPG_INVALID_ARGUMENT;
}

static void date_text(int64_t s, char buf[32]) {
    time_t at = (time_t)s;
    struct tm tm;
    memset(&tm, 0, sizeof(tm));
    if (gmtime_r(&at, &tm) == NULL || strftime(buf, 32, "%Y-%m-%d %H:%M UTC", &tm) == 0) buf[0] = '\0';
}

/* NULL: nothing is wrong. */
static const char *fault_of(const mcpg_credentials_t *c, mcpg_cert_info_t *info) {
    const char *ca = mcpg__credentials_ca(c), *own = mcpg__credentials_cert(c);
    X509 *trusted = ca != NULL ? read_cert(ca) : NULL;
    X509 *cert = own != NULL ? read_cert(own) : NULL;
    EVP_PKEY *key = own != NULL ? read_key(mcpg__credentials_key(c)->bytes) : NULL;
    const char *fault = NULL;
    if (ca != NULL && trusted == NULL)
        fault = "the CA (MOONCAKE_TLS_CA) is not a PEM certificate: give the file that \"openssl x509 -in FILE\" reads";
    else if (own != NULL && cert == NULL)
        fault = "the certificate (MOONCAKE_TLS_CERT) is not PEM: give the file that \"openssl x509 -in FILE\" reads";
    else if (own != NULL && key == NULL)
        fault = "the private key (MOONCAKE_TLS_KEY) cannot be read: give a PEM key without pass phrase";
    else if (own != NULL && X509_check_private_key(cert, key) != 1)
        fault = "the private key (MOONCAKE_TLS_KEY) does not belong to the certificate (MOONCAKE_TLS_CERT): give both "
                "of one pair";
    if (fault == NULL && cert != NULL) read_info(cert, info);
    X509_free(trusted);
    X509_free(cert);
    EVP_PKEY_free(key);
    return fault;
}

mcpg_status_t mcpg__cert_check(const mcpg_credentials_t *c, bool for_server, int64_t now_s, char *error,
                               size_t error_cap) {
    mcpg_cert_info_t info;
    char date[32];
    memset(&info, 0, sizeof(info));
    (void)ERR_set_mark();
    const char *fault = fault_of(c, &info);
    ERR_pop_to_mark();
    if (fault != NULL) {
        (void)snprintf(error, error_cap, "%s", fault);
        return MCPG_INVALID_ARGUMENT;
    }
    if (mcpg__credentials_cert(c) == NULL) return MCPG_OK;
    if (now_s < info.not_before_s || now_s > info.not_after_s) {
        bool is_over = now_s > info.not_after_s;
        date_text(is_over ? info.not_after_s : info.not_before_s, date);
        (void)snprintf(error, error_cap, "the certificate (MOONCAKE_TLS_CERT) %s %s: %s",
                       is_over ? "expired on" : "is not valid before", date,
                       is_over ? "issue a new one" : "compare this host's clock");
        return MCPG_INVALID_ARGUMENT;
    }
    if (for_server && !info.is_coordinator) {
        (void)snprintf(error, error_cap,
                       "the certificate (MOONCAKE_TLS_CERT) lacks the name DNS:" MCPG_RPC_SERVER_NAME
                       " that ranks look for: issue one with it for whoever runs the coordinator");
        return MCPG_INVALID_ARGUMENT;
    }
    if (!for_server && !info.grant.any_rank && info.grant.count == 0) {
        (void)snprintf(error, error_cap,
                       "the certificate (MOONCAKE_TLS_CERT) names no rank: issue one with URI:" MCPG_RPC_URI_SCHEME
                       "JOB/rank/N");
        return MCPG_INVALID_ARGUMENT;
    }
    return MCPG_OK;
}
