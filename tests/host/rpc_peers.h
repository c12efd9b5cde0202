/* rpc_peers.h: a server and a client of either RPC table that write down what happens to them, for the host tests.
 * Every wait is bounded. */
#ifndef MCPG_TESTS_HOST_RPC_PEERS_H
#define MCPG_TESTS_HOST_RPC_PEERS_H

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/executor.h"
#include "rpc/rpc.h"

#define PEERS_WAIT_US 20000000u
#define PEERS_CONNS   64u

/* What one side saw. Counters are read with the lock held. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t opened, messages, refused, closed, order_errors;
    uint32_t turned_away; /* server: may not be here */
    char text[256];       /* the beginning of the last message */
    uint64_t bytes;
    uint64_t conns[PEERS_CONNS]; /* server: in order of opening */
    uint64_t last_closed;
    uint32_t last_tag;
    mcpg_status_t why;
    bool busy;     /* refuse everything */
    bool in_order; /* each message begins with a rising u32, from 0 */
    bool echo;
    bool reconnect; /* client: connect again from inside closed() */
} seen_t;

static inline void seen_init(seen_t *s) {
    memset(s, 0, sizeof *s);
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}
static inline void seen_fini(seen_t *s) {
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
}
/* True when *counter reached at least value in time. */
static inline bool seen_wait(seen_t *s, const uint32_t *counter, uint32_t value) {
    uint64_t until_us = mcpg__now().us + PEERS_WAIT_US;
    struct timespec at = {.tv_sec = (time_t)(until_us / 1000000u), .tv_nsec = (long)(until_us % 1000000u) * 1000L};
    int rc = 0;
    (void)pthread_mutex_lock(&s->lock);
    while (*counter < value && rc == 0) rc = pthread_cond_timedwait(&s->changed, &s->lock, &at);
    bool ok = *counter >= value;
    if (!ok) (void)fprintf(stderr, "waited in vain: %u of %u\n", *counter, value);
    (void)pthread_mutex_unlock(&s->lock);
    return ok;
}
static inline uint32_t seen_get(seen_t *s, const uint32_t *counter) {
    (void)pthread_mutex_lock(&s->lock);
    uint32_t value = *counter;
    (void)pthread_mutex_unlock(&s->lock);
    return value;
}
static inline void seen_set(seen_t *s, bool *flag, bool value) {
    (void)pthread_mutex_lock(&s->lock);
    *flag = value;
    (void)pthread_mutex_unlock(&s->lock);
}
/* Lock held. */
static inline bool seen_take(seen_t *s, const uint8_t *buf, size_t len) {
    if (s->busy) {
        s->refused++;
        (void)pthread_cond_broadcast(&s->changed);
        return false;
    }
    size_t shown = len < sizeof s->text - 1 ? len : sizeof s->text - 1;
    memcpy(s->text, buf, shown);
    s->text[shown] = '\0';
    uint32_t tag = 0;
    if (len >= sizeof tag) memcpy(&tag, buf, sizeof tag);
    if (s->in_order && tag != s->messages) s->order_errors++;
    s->last_tag = tag;
    s->messages++;
    s->bytes += len;
    (void)pthread_cond_broadcast(&s->changed);
    return true;
}

/* ---- server ---- */

typedef struct {
    const mcpg_rpc_ops_t *rpc;
    mcpg_rpc_server_t *server;
    seen_t seen;
    char address[160], error[256];
} server_peer_t;

static inline void server_peer_opened(void *user, uint64_t conn) {
    seen_t *s = &((server_peer_t *)user)->seen;
    (void)pthread_mutex_lock(&s->lock);
    if (s->opened < PEERS_CONNS) s->conns[s->opened] = conn;
    s->opened++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}
static inline bool server_peer_message(void *user, uint64_t conn, const uint8_t *buf, size_t len) {
    server_peer_t *p = (server_peer_t *)user;
    (void)pthread_mutex_lock(&p->seen.lock);
    bool taken = seen_take(&p->seen, buf, len);
    bool echo = taken && p->seen.echo;
    mcpg_rpc_server_t *server = p->server; /* set under the lock by server_peer_start */
    (void)pthread_mutex_unlock(&p->seen.lock);
    if (echo) (void)p->rpc->server_send(server, conn, buf, len);
    return taken;
}
static inline void server_peer_closed(void *user, uint64_t conn) {
    seen_t *s = &((server_peer_t *)user)->seen;
    (void)pthread_mutex_lock(&s->lock);
    s->closed++;
    s->last_closed = conn;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}
/* The sentence itself is the message: an owner of ours would put it into the protocol's words. */
static inline size_t server_peer_refusal(void *user, const char *why, uint8_t *buf, size_t cap) {
    seen_t *s = &((server_peer_t *)user)->seen;
    (void)pthread_mutex_lock(&s->lock);
    s->turned_away++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    size_t len = strlen(why) + 1;
    if (len > cap) return 0;
    memcpy(buf, why, len);
    return len;
}
static inline mcpg_status_t server_peer_start_as(server_peer_t *p, const mcpg_rpc_ops_t *rpc, const char *bind,
                                                 mcpg_credentials_t *credentials) {
    seen_init(&p->seen);
    p->rpc = rpc;
    p->server = NULL;
    p->error[0] = '\0';
    mcpg_rpc_server_events_t events = {p, server_peer_opened, server_peer_message, server_peer_closed,
                                       server_peer_refusal};
    (void)pthread_mutex_lock(&p->seen.lock);
    mcpg_status_t status = rpc->serve(bind, credentials, &events, &p->server, p->error, sizeof p->error);
    (void)pthread_mutex_unlock(&p->seen.lock);
    if (status == MCPG_OK)
        (void)rpc->server_address(p->server, p->address, sizeof p->address);
    else
        seen_fini(&p->seen);
    return status;
}
static inline mcpg_status_t server_peer_start(server_peer_t *p, const mcpg_rpc_ops_t *rpc, const char *bind) {
    return server_peer_start_as(p, rpc, bind, NULL);
}
static inline void server_peer_stop(server_peer_t *p) {
    if (p->server == NULL) return;
    p->rpc->server_stop(p->server);
    p->server = NULL;
    seen_fini(&p->seen);
}

/* ---- client ---- */

typedef struct {
    const mcpg_rpc_ops_t *rpc;
    mcpg_rpc_client_t *client;
    seen_t seen; /* opened: connected */
} client_peer_t;

static inline void client_peer_connected(void *user) {
    seen_t *s = &((client_peer_t *)user)->seen;
    (void)pthread_mutex_lock(&s->lock);
    s->opened++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}
static inline bool client_peer_message(void *user, const uint8_t *buf, size_t len) {
    seen_t *s = &((client_peer_t *)user)->seen;
    (void)pthread_mutex_lock(&s->lock);
    bool taken = seen_take(s, buf, len);
    (void)pthread_mutex_unlock(&s->lock);
    return taken;
}
static inline void client_peer_closed(void *user, mcpg_status_t why) {
    client_peer_t *p = (client_peer_t *)user;
    seen_t *s = &p->seen;
    (void)pthread_mutex_lock(&s->lock);
    bool again = s->reconnect;
    s->reconnect = false;
    s->closed++;
    s->why = why;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    if (again) (void)p->rpc->client_connect(p->client);
}
static inline mcpg_status_t client_peer_create_as(client_peer_t *p, const mcpg_rpc_ops_t *rpc, const char *address,
                                                  mcpg_credentials_t *credentials) {
    seen_init(&p->seen);
    p->rpc = rpc;
    p->client = NULL;
    char error[256] = "";
    mcpg_rpc_client_events_t events = {p, client_peer_connected, client_peer_message, client_peer_closed};
    return rpc->client_create(address, credentials, &events, &p->client, error, sizeof error);
}
static inline mcpg_status_t client_peer_create(client_peer_t *p, const mcpg_rpc_ops_t *rpc, const char *address) {
    return client_peer_create_as(p, rpc, address, NULL);
}
static inline bool client_peer_connect(client_peer_t *p) {
    uint32_t before = seen_get(&p->seen, &p->seen.opened);
    return p->rpc->client_connect(p->client) == MCPG_OK && seen_wait(&p->seen, &p->seen.opened, before + 1);
}
static inline mcpg_status_t client_peer_send_tag(client_peer_t *p, uint32_t tag) {
    return p->rpc->client_send(p->client, (const uint8_t *)&tag, sizeof tag);
}
static inline void client_peer_destroy(client_peer_t *p) {
    p->rpc->client_destroy(p->client);
    p->client = NULL;
    seen_fini(&p->seen);
}

#endif
