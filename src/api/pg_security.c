/* pg_security.c: reads credentials from files, makes the job's own and passes them through the store. Keys and tokens
 * are in memory only as long as needed, and overwritten afterwards. */
#include "api/pg_security.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "rpc/rpc_cert.h"

#define KEY_TLS      "mooncake_pg/tls/" /* and the term */
#define VALUE_CAP    4096u              /* of the key-value interface */
#define GET_LIMIT_MS 1000u              /* it was put there before the record that names it */

typedef enum { TLS_AUTO = 0, TLS_ALWAYS, TLS_NEVER } tls_mode_t;

struct mcpg_security {
    atomic_uint refs;
    tls_mode_t mode;
    mcpg_credentials_t *own; /* NULL: none were given */
    bool may_serve, is_wide;
    char host[64]; /* as in an address: "127.0.0.1", "[fd00::7]" */
};

/* ---- files ---- */

static const char *setting(const char *given, const char *variable) {
    if (given != NULL && given[0] != '\0') return given;
    const char *env = getenv(variable);
    return env != NULL && env[0] != '\0' ? env : NULL;
}

static mcpg_status_t bad_file(const char *variable, const char *path, const char *why, char *error, size_t error_cap) {
    (void)snprintf(error, error_cap, "the file '%.200s' (%s) %s", path, variable, why);
    return MCPG_INVALID_ARGUMENT;
}

/* A file, or a pipe of the launcher's (/dev/fd/N). Secret ones: nobody else may read them. */
static mcpg_status_t check_file(int fd, bool is_secret, const char *variable, const char *path, char *error,
                                size_t error_cap) {
    struct stat st;
    if (fstat(fd, &st) != 0 || (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode)))
        return bad_file(variable, path, "is not a regular file: give one", error, error_cap);
    if (!is_secret) return MCPG_OK;
    if ((st.st_mode & 077u) != 0)
        return bad_file(variable, path, "may be read by other users: chmod 600 it", error, error_cap);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return bad_file(variable, path, "belongs to another user: chown it to the one that runs this process", error,
                        error_cap);
    return MCPG_OK;
}

/* Whole and NUL-terminated; buf has MCPG_RPC_PEM_CAP bytes. */
static mcpg_status_t read_all(int fd, char *buf, const char *variable, const char *path, char *error,
                              size_t error_cap) {
    size_t len = 0;
    for (;;) { /* bounded: by the buffer */
        ssize_t n = read(fd, buf + len, MCPG_RPC_PEM_CAP - len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return bad_file(variable, path, "cannot be read: check the path", error, error_cap);
        if (n == 0) break;
        len += (size_t)n;
        if (len == MCPG_RPC_PEM_CAP)
            return bad_file(variable, path, "is longer than 64 KiB: give the right one", error, error_cap);
    }
    buf[len] = '\0';
    if (len == 0 || strlen(buf) != len)
        return bad_file(variable, path, "is empty or not text: give PEM (or a token of 64 hexadecimal digits)", error,
                        error_cap);
    return MCPG_OK;
}

/* *out stays none when no path is given. */
static mcpg_status_t load(const char *path, bool is_secret, const char *variable, mcpg_secret_t *out, char *error,
                          size_t error_cap) {
    if (path == NULL) return MCPG_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe that nobody writes must not hang us */
    if (fd < 0) {
        char why[96];
        (void)snprintf(why, sizeof(why), "cannot be opened (%s): check the path", strerror(errno));
        return bad_file(variable, path, why, error, error_cap);
    }
    (void)fcntl(fd, F_SETFL, 0);
    char *buf = malloc(MCPG_RPC_PEM_CAP + 1u);
    mcpg_status_t status = buf != NULL ? check_file(fd, is_secret, variable, path, error, error_cap) : MCPG_NO_MEMORY;
    if (status == MCPG_OK) status = read_all(fd, buf, variable, path, error, error_cap);
    if (status == MCPG_OK) status = mcpg__secret_copy(buf, strlen(buf), out);
    if (buf != NULL) explicit_bzero(buf, MCPG_RPC_PEM_CAP);
    free(buf);
    (void)close(fd);
    return status;
}

static mcpg_status_t load_own(mcpg_security_t *s, const mcpg_security_config_t *c, char *error, size_t error_cap) {
    mcpg_secret_t ca = {NULL, 0}, cert = {NULL, 0}, key = {NULL, 0}, token = {NULL, 0};
    mcpg_status_t status =
        load(setting(c->ca_file, "MOONCAKE_TLS_CA"), false, "MOONCAKE_TLS_CA", &ca, error, error_cap);
    if (status == MCPG_OK)
        status = load(setting(c->cert_file, "MOONCAKE_TLS_CERT"), false, "MOONCAKE_TLS_CERT", &cert, error, error_cap);
    if (status == MCPG_OK)
        status = load(setting(c->key_file, "MOONCAKE_TLS_KEY"), true, "MOONCAKE_TLS_KEY", &key, error, error_cap);
    if (status == MCPG_OK)
        status =
            load(setting(c->token_file, "MOONCAKE_TOKEN_FILE"), true, "MOONCAKE_TOKEN_FILE", &token, error, error_cap);
    mcpg_credentials_text_t text = {ca.bytes, cert.bytes, key.bytes, token.bytes};
    bool any = ca.bytes != NULL || cert.bytes != NULL || key.bytes != NULL || token.bytes != NULL;
    if (status == MCPG_OK && any) status = mcpg__credentials_new(&text, &s->own, error, error_cap);
    mcpg__secret_wipe(&ca);
    mcpg__secret_wipe(&cert);
    mcpg__secret_wipe(&key);
    mcpg__secret_wipe(&token);
    return status;
}

/* ---- the settings ---- */

static mcpg_status_t parse_mode(const char *text, tls_mode_t *out, char *error, size_t error_cap) {
    *out = TLS_AUTO;
    if (text == NULL || strcmp(text, "auto") == 0) return MCPG_OK;
    *out = TLS_ALWAYS;
    if (strcmp(text, "always") == 0) return MCPG_OK;
    *out = TLS_NEVER;
    if (strcmp(text, "never") == 0) return MCPG_OK;
    (void)snprintf(error, error_cap, "MOONCAKE_TLS is '%.40s': give auto, always or never", text);
    return MCPG_INVALID_ARGUMENT;
}

static void take_host(mcpg_security_t *s, const char *host_ip) {
    struct in_addr v4;
    struct in6_addr v6;
    bool is_v4 = host_ip != NULL && inet_pton(AF_INET, host_ip, &v4) == 1;
    bool is_v6 = host_ip != NULL && inet_pton(AF_INET6, host_ip, &v6) == 1;
    s->is_wide = (is_v4 && (ntohl(v4.s_addr) >> 24) != 127u) || (is_v6 && !IN6_IS_ADDR_LOOPBACK(&v6));
    if (s->mode == TLS_NEVER) s->is_wide = false;
    (void)snprintf(s->host, sizeof(s->host), is_v6 && s->is_wide ? "[%.46s]" : "%.46s",
                   s->is_wide ? host_ip : "127.0.0.1");
}

static mcpg_status_t judge_own(mcpg_security_t *s, bool is_coordinator, char *error, size_t error_cap) {
    bool has_ca = mcpg__credentials_ca(s->own) != NULL, has_cert = mcpg__credentials_cert(s->own) != NULL;
    bool has_token = mcpg__credentials_token(s->own) != NULL;
    if (s->mode == TLS_NEVER && (has_ca || has_cert)) {
        (void)snprintf(error, error_cap,
                       "MOONCAKE_TLS=never contradicts MOONCAKE_TLS_CA and MOONCAKE_TLS_CERT: unset one of them");
        return MCPG_INVALID_ARGUMENT;
    }
    if (has_ca && !has_cert && !has_token) {
        (void)snprintf(error, error_cap,
                       "a CA alone proves nothing about this process: set MOONCAKE_TLS_CERT with MOONCAKE_TLS_KEY, or "
                       "MOONCAKE_TOKEN_FILE");
        return MCPG_INVALID_ARGUMENT;
    }
    MCPG_TRY(mcpg__cert_check(s->own, is_coordinator, (int64_t)time(NULL), error, error_cap));
    mcpg_cert_info_t info;
    s->may_serve = !has_ca || has_cert;
    if (has_cert && mcpg__cert_read(mcpg__credentials_cert(s->own), &info) == MCPG_OK)
        s->may_serve = info.is_coordinator;
    return MCPG_OK;
}

mcpg_status_t mcpg__security_new(const mcpg_security_config_t *config, mcpg_security_t **out, char *error,
                                 size_t error_cap) {
    mcpg_security_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return MCPG_NO_MEMORY;
    atomic_init(&s->refs, 1);
    s->may_serve = true;
    mcpg_status_t status = parse_mode(setting(config->tls, "MOONCAKE_TLS"), &s->mode, error, error_cap);
    if (status == MCPG_OK) status = load_own(s, config, error, error_cap);
    if (status == MCPG_OK && s->own != NULL) status = judge_own(s, config->is_coordinator, error, error_cap);
    bool lacks = s->mode == TLS_ALWAYS && mcpg__credentials_cert(s->own) == NULL;
    if (status == MCPG_OK && lacks && config->is_coordinator) {
        (void)snprintf(error, error_cap,
                       "MOONCAKE_TLS=always, but the coordinator has no certificate: set MOONCAKE_TLS_CERT and "
                       "MOONCAKE_TLS_KEY, with MOONCAKE_TLS_CA or MOONCAKE_TOKEN_FILE");
        status = MCPG_INVALID_ARGUMENT;
    }
    if (status != MCPG_OK) {
        mcpg__security_unref(s);
        return status;
    }
    take_host(s, config->host_ip);
    *out = s;
    return MCPG_OK;
}

mcpg_security_t *mcpg__security_ref(mcpg_security_t *s) {
    if (s != NULL) atomic_fetch_add(&s->refs, 1);
    return s;
}

void mcpg__security_unref(mcpg_security_t *s) {
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1) return;
    mcpg__credentials_unref(s->own);
    free(s);
}

mcpg_credentials_t *mcpg__security_own(const mcpg_security_t *s) {
    return s->own;
}

bool mcpg__security_may_serve(const mcpg_security_t *s) {
    return s->may_serve;
}

/* ---- the job's own, through the store ---- */

static void key_of(uint64_t term, char buf[64]) {
    (void)snprintf(buf, 64, KEY_TLS "%" PRIu64, term);
}

/* "mcpgtls1 CA CERT KEY\n" with their lengths, then the three. */
static mcpg_status_t publish(const mcpg_kv_t *kv, uint64_t term, const mcpg_credentials_t *rank, char *error,
                             size_t error_cap) {
    char key[64], value[VALUE_CAP];
    const char *ca = mcpg__credentials_ca(rank), *cert = mcpg__credentials_cert(rank);
    const mcpg_secret_t *secret = mcpg__credentials_key(rank);
    key_of(term, key);
    int n = snprintf(value, sizeof(value), "mcpgtls1 %zu %zu %zu\n%s%s%s", strlen(ca), strlen(cert), secret->len, ca,
                     cert, secret->bytes);
    MCPG_ASSERT(n > 0 && (size_t)n < sizeof(value));
    mcpg_status_t status = kv->set(kv->user, key, value, (size_t)n);
    explicit_bzero(value, sizeof(value));
    if (status == MCPG_OK) return MCPG_OK;
    (void)snprintf(error, error_cap,
                   "the key-value store did not take the job's certificates (%s): check that it is alive",
                   mcpg_status_text(status));
    return MCPG_UNAVAILABLE;
}

/* A job's token, if one was given, is asked for besides. */
static mcpg_status_t with_token(const mcpg_security_t *s, const mcpg_credentials_t *made, mcpg_credentials_t **out) {
    const mcpg_secret_t *token = mcpg__credentials_token(s->own);
    mcpg_credentials_text_t text = {.ca = mcpg__credentials_ca(made),
                                    .cert = mcpg__credentials_cert(made),
                                    .key = mcpg__credentials_key(made)->bytes,
                                    .token = token != NULL ? token->bytes : NULL};
    return mcpg__credentials_new(&text, out, NULL, 0);
}

static mcpg_status_t make_job(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term,
                              mcpg_credentials_t **server_out, mcpg_credentials_t **agent_out, char *error,
                              size_t error_cap) {
    uint64_t id = 0;
    char job[32];
    mcpg_credentials_t *coordinator = NULL, *rank = NULL, *server = NULL, *agent = NULL;
    if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id)) id = term; /* a name for people; nothing rests on it */
    (void)snprintf(job, sizeof(job), "job-%016" PRIx64, id);
    mcpg_status_t status = mcpg__cert_make_job(job, &coordinator, &rank);
    if (status == MCPG_OK)
        status = publish(kv, term, rank, error, error_cap);
    else
        (void)snprintf(error, error_cap, "the job's certificates could not be made (%s): set MOONCAKE_TLS=never",
                       mcpg_status_text(status));
    if (status == MCPG_OK) status = with_token(s, coordinator, &server);
    if (status == MCPG_OK) status = with_token(s, rank, &agent);
    mcpg__credentials_unref(coordinator);
    mcpg__credentials_unref(rank);
    if (status != MCPG_OK) {
        mcpg__credentials_unref(server);
        return status;
    }
    *server_out = server;
    *agent_out = agent;
    return MCPG_OK;
}

mcpg_status_t mcpg__security_host(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term, char *bind,
                                  size_t bind_cap, mcpg_credentials_t **server_out, mcpg_credentials_t **agent_out,
                                  char *error, size_t error_cap) {
    bool has_cert = mcpg__credentials_cert(s->own) != NULL;
    bool use_tls = s->is_wide || s->mode == TLS_ALWAYS || has_cert;
    (void)snprintf(bind, bind_cap, "%s%s:0", use_tls ? "tls:" : "", s->host);
    if (use_tls && !has_cert) return make_job(s, kv, term, server_out, agent_out, error, error_cap);
    *server_out = mcpg__credentials_ref(s->own);
    *agent_out = mcpg__credentials_ref(s->own);
    return MCPG_OK;
}

static mcpg_status_t parse_published(const mcpg_security_t *s, char *value, mcpg_credentials_t **out) {
    size_t ca_len = 0, cert_len = 0, key_len = 0, len = strlen(value);
    const char *body = strchr(value, '\n');
    if (body == NULL || sscanf(value, "mcpgtls1 %4zu %4zu %4zu\n", &ca_len, &cert_len, &key_len) != 3)
        return MCPG_CORRUPT;
    body++;
    if (ca_len + cert_len + key_len != len - (size_t)(body - value)) return MCPG_CORRUPT;
    mcpg_secret_t ca = {NULL, 0}, cert = {NULL, 0}, key = {NULL, 0};
    mcpg_credentials_t *rank = NULL;
    mcpg_status_t status = mcpg__secret_copy(body, ca_len, &ca);
    if (status == MCPG_OK) status = mcpg__secret_copy(body + ca_len, cert_len, &cert);
    if (status == MCPG_OK) status = mcpg__secret_copy(body + ca_len + cert_len, key_len, &key);
    mcpg_credentials_text_t text = {.ca = ca.bytes, .cert = cert.bytes, .key = key.bytes};
    if (status == MCPG_OK) status = mcpg__credentials_new(&text, &rank, NULL, 0);
    if (status == MCPG_OK) status = with_token(s, rank, out);
    mcpg__credentials_unref(rank);
    mcpg__secret_wipe(&ca);
    mcpg__secret_wipe(&cert);
    mcpg__secret_wipe(&key);
    return status;
}

static mcpg_status_t find_published(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term, const char *address,
                                    mcpg_credentials_t **out, char *error, size_t error_cap) {
    char key[64], value[VALUE_CAP + 1u];
    size_t len = 0;
    key_of(term, key);
    mcpg_status_t status = kv->get(kv->user, key, value, VALUE_CAP, &len, GET_LIMIT_MS);
    if (status == MCPG_TIMED_OUT || status == MCPG_NOT_FOUND) {
        (void)snprintf(error, error_cap,
                       "the coordinator at \"%.100s\" uses certificates that are not the job's own: set "
                       "MOONCAKE_TLS_CA, MOONCAKE_TLS_CERT and MOONCAKE_TLS_KEY for every rank, or for none",
                       address);
        return MCPG_INVALID_ARGUMENT;
    }
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap,
                       "the key-value store did not answer a read of \"%s\" (%s): check that it is "
                       "alive",
                       key, mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    value[len < VALUE_CAP ? len : VALUE_CAP] = '\0';
    status = parse_published(s, value, out);
    explicit_bzero(value, sizeof(value));
    if (status == MCPG_OK) return MCPG_OK;
    (void)snprintf(error, error_cap,
                   "the record \"%s\" in the key-value store is not understood: another version wrote it, or the store "
                   "is shared with another program",
                   key);
    return status == MCPG_NO_MEMORY ? status : MCPG_VERSION_MISMATCH;
}

mcpg_status_t mcpg__security_find(const mcpg_security_t *s, const mcpg_kv_t *kv, uint64_t term, const char *address,
                                  mcpg_credentials_t **out, char *error, size_t error_cap) {
    bool is_unix = strncmp(address, "unix:", 5) == 0, is_tls = strncmp(address, "tls:", 4) == 0;
    bool is_inproc = strncmp(address, "inproc:", 7) == 0;
    bool has_ca = mcpg__credentials_ca(s->own) != NULL;
    if (is_tls && kv != NULL && !has_ca) return find_published(s, kv, term, address, out, error, error_cap);
    /* A record that does not say "tls:" is of a coordinator that speaks plaintext. */
    bool is_plain = !is_tls && !is_unix && !is_inproc && (kv != NULL || !has_ca);
    if (is_plain && (s->mode == TLS_ALWAYS || has_ca)) {
        (void)snprintf(error, error_cap,
                       "the coordinator at \"%.100s\" %s, but this rank was told to use TLS: give every rank the same "
                       "MOONCAKE_TLS, MOONCAKE_TLS_CA, MOONCAKE_TLS_CERT and MOONCAKE_TLS_KEY",
                       address, kv != NULL ? "speaks plaintext" : "is to be dialled without a CA");
        return MCPG_INVALID_ARGUMENT;
    }
    *out = mcpg__credentials_ref(s->own);
    return MCPG_OK;
}
