/* rpc_probe.c: one connection, and one TLS handshake where TLS is to be spoken, to learn why there is no stream.
 * Touches neither the calling thread's signals nor its OpenSSL error queue. */
#include "rpc/rpc_probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/executor.h"
#include "rpc/rpc_cert.h"

#define LIMIT_US  2000000u
#define LISTEN_US 500000u /* for what a server says after the handshake: TLS 1.3 judges our certificate only then */

static bool wait_for(int fd, short events, uint64_t until_us) {
    uint64_t now_us = mcpg__now().us;
    struct pollfd p = {.fd = fd, .events = events};
    return now_us < until_us && poll(&p, 1, (int)((until_us - now_us) / 1000u + 1u)) == 1;
}

/* -1: why gets the words. */
static int dial(const mcpg_rpc_address_t *a, uint64_t until_us, char *why, size_t cap) {
    struct sockaddr_storage to;
    socklen_t len = sizeof(struct sockaddr_in);
    memset(&to, 0, sizeof(to));
    if (a->is_unix) {
        struct sockaddr_un *un = (struct sockaddr_un *)&to;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, a->path, sizeof(un->sun_path));
        len = sizeof(*un);
    } else if (a->is_v6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&to;
        *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(a->port)};
        (void)inet_pton(AF_INET6, a->host, &v6->sin6_addr);
        len = sizeof(*v6);
    } else {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&to;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(a->port)};
        (void)inet_pton(AF_INET, a->host, &v4->sin_addr);
    }
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    int error = 0;
    socklen_t error_len = sizeof(error);
    if (connect(fd, (struct sockaddr *)&to, len) != 0) error = errno;
    if (error == EINPROGRESS) {
        if (!wait_for(fd, POLLOUT, until_us))
            error = ETIMEDOUT;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) != 0)
            error = errno;
    }
    if (error == 0) return fd;
    (void)snprintf(why, cap, "no connection is possible there (%s)", strerror(error));
    (void)close(fd);
    return -1;
}

/* ---- plaintext ---- */

static void explain_plain(int fd, uint64_t until_us, char *why, size_t cap) {
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    char byte = 0;
    (void)send(fd, preface, sizeof(preface), MSG_NOSIGNAL);
    if (!wait_for(fd, POLLIN, until_us)) {
        (void)snprintf(why, cap, "something accepts connections there and says nothing");
        return;
    }
    if (recv(fd, &byte, 1, 0) <= 0)
        (void)snprintf(why, cap,
                       "something there hangs up on plaintext: a coordinator that speaks TLS is dialled as "
                       "tls:HOST:PORT, with MOONCAKE_TLS_CA, MOONCAKE_TLS_CERT and MOONCAKE_TLS_KEY");
}

/* ---- TLS ---- */

static bool add_ca(SSL_CTX *ctx, const char *pem) {
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *cert = NULL;
    bool any = false;
    while (bio != NULL && (cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) { /* bounded: by the text */
        any |= X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), cert) == 1;
        X509_free(cert);
    }
    BIO_free(bio);
    return any;
}

static bool add_own(SSL_CTX *ctx, const mcpg_credentials_t *c) {
    const char *own = mcpg__credentials_cert(c);
    if (own == NULL) return true;
    BIO *cert_bio = BIO_new_mem_buf(own, -1);
    BIO *key_bio = BIO_new_mem_buf(mcpg__credentials_key(c)->bytes, -1);
    X509 *cert = PEM_read_bio_X509(cert_bio, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    bool ok =
        cert != NULL && key != NULL && SSL_CTX_use_certificate(ctx, cert) == 1 && SSL_CTX_use_PrivateKey(ctx, key) == 1;
    X509_free(cert);
    EVP_PKEY_free(key);
    BIO_free(cert_bio);
    BIO_free(key_bio);
    return ok;
}

static SSL_CTX *make_context(const mcpg_credentials_t *c) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    if (ctx == NULL) return NULL;
    bool ok = SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1 && add_ca(ctx, mcpg__credentials_ca(c)) &&
              add_own(ctx, c) && SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)"\2h2", 3) == 0;
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    if (ok) return ctx;
    SSL_CTX_free(ctx);
    return NULL;
}

/* What OpenSSL says when the peer sent an alert about our certificate, or the connection just ended. */
static void explain_refusal(unsigned long error, const mcpg_credentials_t *c, char *why, size_t cap) {
    char text[200] = "";
    if (mcpg__cert_check(c, false, (int64_t)time(NULL), text, sizeof(text)) != MCPG_OK) {
        (void)snprintf(why, cap, "the coordinator hung up in the TLS handshake: %s", text);
        return;
    }
    const char *alert = error != 0 ? ERR_reason_error_string(error) : NULL;
    (void)snprintf(why, cap, "the coordinator hung up in the TLS handshake%s%s%s: %s", alert != NULL ? " (" : "",
                   alert != NULL ? alert : "", alert != NULL ? ")" : "",
                   mcpg__credentials_cert(c) != NULL
                       ? "it does not accept this rank's certificate: is it signed by the CA that the coordinator has?"
                       : "it asks for a certificate: set MOONCAKE_TLS_CERT and MOONCAKE_TLS_KEY");
}

static void explain_handshake(SSL *ssl, unsigned long error, const mcpg_credentials_t *c, char *why, size_t cap) {
    long verdict = SSL_get_verify_result(ssl);
    int reason = ERR_GET_REASON(error);
    if (verdict != X509_V_OK)
        (void)snprintf(why, cap, "its certificate is not accepted (%s): MOONCAKE_TLS_CA must be the CA that signed it",
                       X509_verify_cert_error_string(verdict));
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
             reason == SSL_R_HTTP_REQUEST)
        (void)snprintf(why, cap,
                       "what answers there does not speak TLS: give the address without tls: and unset "
                       "MOONCAKE_TLS_CA, or start the coordinator with certificates");
    else
        explain_refusal(error, c, why, cap);
}

static void explain_tls(int fd, const mcpg_credentials_t *c, uint64_t until_us, char *why, size_t cap) {
    SSL_CTX *ctx = make_context(c);
    SSL *ssl = ctx != NULL ? SSL_new(ctx) : NULL;
    bool ok = ssl != NULL && SSL_set_fd(ssl, fd) == 1 && SSL_set1_host(ssl, MCPG_RPC_SERVER_NAME) == 1;
    bool is_reading = false;
    char byte = 0;
    while (ok) { /* bounded: by until_us */
        ERR_clear_error();
        int rc = is_reading ? SSL_read(ssl, &byte, 1) : SSL_connect(ssl);
        int what = SSL_get_error(ssl, rc);
        if (rc == 1 && is_reading) break; /* gRPC's first frame: nothing is wrong */
        if (rc == 1) {
            is_reading = true;
            uint64_t listen_us = mcpg__now().us + LISTEN_US;
            if (listen_us < until_us) until_us = listen_us;
            continue;
        }
        bool is_waiting = what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE;
        if (is_waiting && wait_for(fd, what == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until_us)) continue;
        if (!is_waiting)
            explain_handshake(ssl, ERR_peek_error(), c, why, cap);
        else if (!is_reading)
            (void)snprintf(why, cap, "something accepts connections there and does not answer in TLS");
        break;
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
}

typedef struct {
    const mcpg_rpc_address_t *address;
    const mcpg_credentials_t *credentials;
    bool use_tls;
    char *buf;
    size_t cap;
} probe_t;

static void *probe_main(void *arg) {
    const probe_t *p = arg;
    uint64_t until_us = mcpg__now().us + LIMIT_US;
    int fd = dial(p->address, until_us, p->buf, p->cap);
    if (fd < 0) return NULL;
    if (p->use_tls)
        explain_tls(fd, p->credentials, until_us, p->buf, p->cap);
    else
        explain_plain(fd, until_us, p->buf, p->cap);
    (void)close(fd);
    return NULL;
}

/* On a thread of its own: OpenSSL writes without MSG_NOSIGNAL and reads its thread's error queue, and both the signal
 * and the queue are the application's. */
void mcpg__rpc_explain(const char *address, const mcpg_credentials_t *credentials, char *buf, size_t cap) {
    mcpg_rpc_address_t a;
    probe_t probe = {.address = &a, .credentials = credentials, .buf = buf, .cap = cap};
    buf[0] = '\0';
    if (strncmp(address, "inproc:", 7) == 0 || mcpg__rpc_address_parse(address, false, &a, NULL, 0) != MCPG_OK ||
        mcpg__rpc_policy(&a, credentials, false, &probe.use_tls, NULL, 0) != MCPG_OK)
        return;
    sigset_t all, old;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, NULL, probe_main, &probe);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) (void)pthread_join(thread, NULL);
}
