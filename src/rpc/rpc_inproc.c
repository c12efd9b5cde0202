/* rpc_inproc.c: the twin of the gRPC transport inside one process, for tests: same table, same bounds, same order of
 * callbacks.
 *
 * Addresses are "inproc:NAME"; binding "inproc:0" makes a name. One lock for everything, one delivery thread per server
 * and client. Never used between processes.
 */
#include "rpc/rpc_inproc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/codec.h"
#include "common/executor.h"
#include "rpc/rpc_address.h"

#define OUT_COUNT  4096u
#define OUT_BYTES  ((size_t)8 << 20)
#define FLUSH_US   1000000u
#define REOFFER_US 2000u
#define NAME_CAP   64u

typedef struct node {
    struct node *next;
    size_t len;
    uint8_t bytes[];
} node_t;

typedef struct {
    node_t *head, *tail;
    uint32_t count;
    size_t size;
    uint64_t retry_us; /* the receiver refused the head: not before this */
} lane_t;

/* One stream. Freed by the side that is done last. */
typedef struct pipe {
    struct pipe *next; /* in the server's list */
    mcpg_rpc_server_t *server;
    mcpg_rpc_client_t *client;
    uint64_t conn;
    lane_t up, down;
    uint64_t server_deadline_us, client_deadline_us;
    mcpg_status_t why; /* of a break, as the client is told */
    bool opened, connected, broken, server_closing, client_leaving, server_done, client_done;
} pipe_t;

struct mcpg_rpc_server {
    mcpg_rpc_server_t *next;
    mcpg_rpc_server_events_t events;
    char address[NAME_CAP];
    pipe_t *pipes;
    uint64_t last_conn;
    bool stopping;
    pthread_cond_t wake;
    pthread_t thread;
};

struct mcpg_rpc_client {
    mcpg_rpc_client_t *next;
    mcpg_rpc_client_events_t events;
    char address[NAME_CAP];
    pipe_t *pipe;
    bool connecting, leaving, destroying; /* connecting: no server of that name yet */
    pthread_cond_t wake;
    pthread_t thread;
};

static struct {
    pthread_mutex_t lock;
    mcpg_rpc_server_t *servers;
    mcpg_rpc_client_t *clients;
    uint32_t last_name;
} reg = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void lock(void) {
    (void)pthread_mutex_lock(&reg.lock);
}
static void unlock(void) {
    (void)pthread_mutex_unlock(&reg.lock);
}

/* ---- lanes and pipes: lock held ---- */

static void lane_push_front(lane_t *lane, node_t *node) {
    node->next = lane->head;
    lane->head = node;
    if (lane->tail == NULL) lane->tail = node;
    lane->count++;
    lane->size += node->len;
}

static node_t *lane_pop(lane_t *lane) {
    node_t *node = lane->head;
    if (node == NULL) return NULL;
    lane->head = node->next;
    if (lane->head == NULL) lane->tail = NULL;
    lane->count--;
    lane->size -= node->len;
    return node;
}

static void lane_drop(lane_t *lane) {
    for (node_t *node = lane_pop(lane); node != NULL; node = lane_pop(lane)) free(node);
}

static mcpg_status_t lane_push(lane_t *lane, const uint8_t *buf, size_t len) {
    if (lane->count >= OUT_COUNT || lane->size + len > OUT_BYTES) return MCPG_BUSY;
    node_t *node = (node_t *)malloc(sizeof *node + len);
    if (node == NULL) return MCPG_NO_MEMORY;
    node->next = NULL;
    node->len = len;
    if (len > 0) memcpy(node->bytes, buf, len);
    if (lane->tail != NULL)
        lane->tail->next = node;
    else
        lane->head = node;
    lane->tail = node;
    lane->count++;
    lane->size += len;
    return MCPG_OK;
}

static void pipe_wake(pipe_t *p) {
    if (!p->server_done) (void)pthread_cond_signal(&p->server->wake);
    if (!p->client_done) (void)pthread_cond_signal(&p->client->wake);
}

static void pipe_break(pipe_t *p, mcpg_status_t why) {
    if (p->broken) return;
    p->broken = true;
    p->why = why;
    pipe_wake(p);
}

static void pipe_free_if_over(pipe_t *p) {
    if (!p->server_done || !p->client_done) return;
    lane_drop(&p->up);
    lane_drop(&p->down);
    free(p);
}

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void wait_on(pthread_cond_t *cond, uint64_t until_us) {
    if (until_us == UINT64_MAX) {
        (void)pthread_cond_wait(cond, &reg.lock);
        return;
    }
    struct timespec at = {.tv_sec = (time_t)(until_us / 1000000u), .tv_nsec = (long)(until_us % 1000000u) * 1000L};
    (void)pthread_cond_timedwait(cond, &reg.lock, &at);
}

/* ---- server thread ---- */

static void server_finish(mcpg_rpc_server_t *s, pipe_t *p) {
    pipe_t **at = &s->pipes;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    uint64_t conn = p->conn;
    p->server_done = true;
    pipe_wake(p);
    pipe_free_if_over(p);
    unlock();
    s->events.closed(s->events.user, conn);
    lock();
}

/* One step of one stream; true when a callback ran (the lock was dropped: look at everything again). */
static bool server_step(mcpg_rpc_server_t *s, pipe_t *p, uint64_t now_us, uint64_t *wait_us) {
    if (!p->opened) {
        p->opened = true;
        unlock();
        s->events.opened(s->events.user, p->conn);
        lock();
        return true;
    }
    if (p->server_closing) {
        lane_drop(&p->up);
        bool is_over = p->broken || p->client_done || p->down.head == NULL;
        if (!is_over && now_us >= p->server_deadline_us) {
            pipe_break(p, MCPG_UNAVAILABLE);
            is_over = true;
        }
        *wait_us = earlier(*wait_us, p->server_deadline_us);
        if (!is_over) return false;
    } else if (!p->broken && p->up.head != NULL) {
        if (now_us < p->up.retry_us) {
            *wait_us = earlier(*wait_us, p->up.retry_us);
            return false;
        }
        node_t *node = lane_pop(&p->up);
        unlock();
        bool taken = s->events.message(s->events.user, p->conn, node->bytes, node->len);
        lock();
        p->up.retry_us = taken ? 0 : mcpg__now().us + REOFFER_US;
        if (taken)
            free(node);
        else
            lane_push_front(&p->up, node);
        if (p->up.head == NULL && !p->client_done) (void)pthread_cond_signal(&p->client->wake);
        return true;
    } else if (!p->broken && !p->client_leaving && !p->client_done) {
        return false;
    }
    server_finish(s, p);
    return true;
}

static void *server_main(void *arg) {
    mcpg_rpc_server_t *s = (mcpg_rpc_server_t *)arg;
    lock();
    for (;;) {
        uint64_t wait_us = UINT64_MAX, now_us = mcpg__now().us;
        bool moved = false;
        for (pipe_t *p = s->pipes, *next; p != NULL; p = next) {
            next = p->next; /* a step may free p, but no other: only this thread ends streams */
            if (server_step(s, p, now_us, &wait_us)) moved = true;
        }
        if (moved) continue;
        if (s->stopping && s->pipes == NULL) break;
        wait_on(&s->wake, wait_us);
    }
    unlock();
    return NULL;
}

/* ---- client thread ---- */

static void try_connect(mcpg_rpc_client_t *c) {
    mcpg_rpc_server_t *s = reg.servers;
    while (s != NULL && (s->stopping || strcmp(s->address, c->address) != 0)) s = s->next;
    if (s == NULL) return;
    pipe_t *p = (pipe_t *)calloc(1, sizeof *p);
    if (p == NULL) return;
    p->server = s;
    p->client = c;
    p->conn = ++s->last_conn;
    pipe_t **at = &s->pipes; /* in order of arrival */
    while (*at != NULL) at = &(*at)->next;
    *at = p;
    c->pipe = p;
    c->connecting = false;
    (void)pthread_cond_signal(&s->wake);
}

static void client_finish(mcpg_rpc_client_t *c, mcpg_status_t why) {
    pipe_t *p = c->pipe;
    c->pipe = NULL;
    c->connecting = false;
    c->leaving = false;
    if (p != NULL) {
        p->client_done = true;
        pipe_wake(p);
        pipe_free_if_over(p);
    }
    unlock();
    c->events.closed(c->events.user, why);
    lock();
}

static bool client_deliver(mcpg_rpc_client_t *c, pipe_t *p) {
    node_t *node = lane_pop(&p->down);
    unlock();
    bool taken = c->events.message(c->events.user, node->bytes, node->len);
    lock();
    p->down.retry_us = taken ? 0 : mcpg__now().us + REOFFER_US;
    if (taken)
        free(node);
    else
        lane_push_front(&p->down, node);
    if (p->down.head == NULL && !p->server_done) (void)pthread_cond_signal(&p->server->wake);
    return true;
}

static bool client_step_open(mcpg_rpc_client_t *c, pipe_t *p, uint64_t now_us, uint64_t *wait_us) {
    if (c->leaving) {
        lane_drop(&p->down);
        if (!p->server_done && (!p->server_closing || p->broken)) (void)pthread_cond_signal(&p->server->wake);
        if (!p->server_done && !p->broken && now_us < p->client_deadline_us) {
            *wait_us = earlier(*wait_us, p->client_deadline_us);
            return false;
        }
        pipe_break(p, MCPG_OK);
        client_finish(c, MCPG_OK);
        return true;
    }
    if (p->broken) {
        client_finish(c, p->why);
        return true;
    }
    if (!p->connected) {
        p->connected = true;
        unlock();
        c->events.connected(c->events.user);
        lock();
        return true;
    }
    if (p->down.head != NULL) {
        if (now_us >= p->down.retry_us) return client_deliver(c, p);
        *wait_us = earlier(*wait_us, p->down.retry_us);
        return false;
    }
    if (!p->server_done && !p->server_closing) return false;
    client_finish(c, MCPG_OK);
    return true;
}

static void *client_main(void *arg) {
    mcpg_rpc_client_t *c = (mcpg_rpc_client_t *)arg;
    lock();
    for (;;) {
        uint64_t wait_us = UINT64_MAX;
        if (c->connecting && !c->leaving) try_connect(c);
        if (c->pipe != NULL) {
            if (client_step_open(c, c->pipe, mcpg__now().us, &wait_us)) continue;
        } else if (c->connecting && c->leaving) {
            client_finish(c, MCPG_OK);
            continue;
        } else if (c->destroying) {
            break;
        }
        wait_on(&c->wake, wait_us);
    }
    unlock();
    return NULL;
}

/* ---- the table ---- */

static mcpg_status_t check_name(const char *address, char *error, size_t error_cap) {
    if (address != NULL && strncmp(address, "inproc:", 7) == 0 && address[7] != '\0' && strlen(address) < NAME_CAP)
        return MCPG_OK;
    if (error != NULL && error_cap > 0)
        (void)snprintf(error, error_cap, "address '%s' is not understood: write inproc:NAME, at most %u bytes",
                       address != NULL ? address : "", NAME_CAP - 1u);
    return MCPG_INVALID_ARGUMENT;
}

static mcpg_status_t start_thread(pthread_cond_t *cond, pthread_t *thread, void *(*main_func)(void *), void *arg) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return MCPG_NO_MEMORY;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (rc != 0) return MCPG_NO_MEMORY;
    if (pthread_create(thread, NULL, main_func, arg) == 0) return MCPG_OK;
    (void)pthread_cond_destroy(cond);
    return MCPG_SYSTEM;
}

/* Within one process there is nobody to keep out. */
static mcpg_status_t serve(const char *bind, mcpg_credentials_t *credentials, const mcpg_rpc_server_events_t *events,
                           mcpg_rpc_server_t **out, char *error, size_t error_cap) {
    (void)credentials;
    MCPG_TRY(check_name(bind, error, error_cap));
    mcpg_rpc_server_t *s = (mcpg_rpc_server_t *)calloc(1, sizeof *s);
    if (s == NULL) return MCPG_NO_MEMORY;
    s->events = *events;
    lock();
    if (strcmp(bind, "inproc:0") == 0)
        (void)snprintf(s->address, sizeof s->address, "inproc:auto-%u", ++reg.last_name);
    else
        (void)mcpg__rpc_copy_text(bind, s->address, sizeof s->address);
    mcpg_status_t status = MCPG_OK;
    for (mcpg_rpc_server_t *o = reg.servers; o != NULL; o = o->next)
        if (strcmp(o->address, s->address) == 0) status = MCPG_SYSTEM;
    if (status != MCPG_OK && error != NULL && error_cap > 0)
        (void)snprintf(error, error_cap, "cannot listen on '%s': it is in use; give another name", bind);
    if (status == MCPG_OK) status = start_thread(&s->wake, &s->thread, server_main, s);
    if (status == MCPG_OK) {
        s->next = reg.servers;
        reg.servers = s;
        for (mcpg_rpc_client_t *c = reg.clients; c != NULL; c = c->next) (void)pthread_cond_signal(&c->wake);
        *out = s;
    }
    unlock();
    if (status != MCPG_OK) free(s);
    return status;
}

static size_t server_address(const mcpg_rpc_server_t *s, char *buf, size_t cap) {
    return mcpg__rpc_copy_text(s->address, buf, cap);
}

static mcpg_status_t server_may_speak(mcpg_rpc_server_t *s, uint64_t conn, uint32_t rank, char *why, size_t why_cap) {
    (void)s;
    (void)conn;
    (void)rank;
    (void)why;
    (void)why_cap;
    return MCPG_OK;
}

static pipe_t *find_pipe(const mcpg_rpc_server_t *s, uint64_t conn) {
    pipe_t *p = s->pipes;
    while (p != NULL && p->conn != conn) p = p->next;
    return p;
}

static mcpg_status_t server_send(mcpg_rpc_server_t *s, uint64_t conn, const uint8_t *buf, size_t len) {
    if (len > MCPG_MSG_CAP) return MCPG_LIMIT;
    lock();
    pipe_t *p = find_pipe(s, conn);
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (p != NULL && !p->broken && !p->server_closing && !p->client_done) status = lane_push(&p->down, buf, len);
    if (status == MCPG_BUSY) pipe_break(p, MCPG_UNAVAILABLE);
    if (status == MCPG_OK) (void)pthread_cond_signal(&p->client->wake);
    unlock();
    return status;
}

static void close_pipe(pipe_t *p) {
    if (p->server_closing) return;
    p->server_closing = true;
    p->server_deadline_us = mcpg__now().us + FLUSH_US;
    pipe_wake(p);
}

static void server_close(mcpg_rpc_server_t *s, uint64_t conn) {
    lock();
    pipe_t *p = find_pipe(s, conn);
    if (p != NULL) close_pipe(p);
    unlock();
}

static void server_stop(mcpg_rpc_server_t *s) {
    if (s == NULL) return;
    lock();
    s->stopping = true;
    for (pipe_t *p = s->pipes; p != NULL; p = p->next) close_pipe(p);
    (void)pthread_cond_signal(&s->wake);
    unlock();
    (void)pthread_join(s->thread, NULL);
    lock();
    mcpg_rpc_server_t **at = &reg.servers;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    unlock();
    (void)pthread_cond_destroy(&s->wake);
    free(s);
}

static mcpg_status_t client_create(const char *address, mcpg_credentials_t *credentials,
                                   const mcpg_rpc_client_events_t *events, mcpg_rpc_client_t **out, char *error,
                                   size_t error_cap) {
    (void)credentials;
    MCPG_TRY(check_name(address, error, error_cap));
    mcpg_rpc_client_t *c = (mcpg_rpc_client_t *)calloc(1, sizeof *c);
    if (c == NULL) return MCPG_NO_MEMORY;
    c->events = *events;
    (void)mcpg__rpc_copy_text(address, c->address, sizeof c->address);
    lock();
    mcpg_status_t status = start_thread(&c->wake, &c->thread, client_main, c);
    if (status == MCPG_OK) {
        c->next = reg.clients;
        reg.clients = c;
        *out = c;
    }
    unlock();
    if (status != MCPG_OK) free(c);
    return status;
}

static mcpg_status_t client_connect(mcpg_rpc_client_t *c) {
    mcpg_status_t status = MCPG_OK;
    lock();
    if (c->destroying)
        status = MCPG_SHUTTING_DOWN;
    else if (c->pipe != NULL || c->connecting)
        status = MCPG_INVALID_STATE;
    else
        c->connecting = true;
    (void)pthread_cond_signal(&c->wake);
    unlock();
    return status;
}

static mcpg_status_t client_send(mcpg_rpc_client_t *c, const uint8_t *buf, size_t len) {
    if (len > MCPG_MSG_CAP) return MCPG_LIMIT;
    lock();
    pipe_t *p = c->pipe;
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (p != NULL && !p->broken && !c->leaving && !p->server_done) status = lane_push(&p->up, buf, len);
    if (status == MCPG_BUSY) pipe_break(p, MCPG_BUSY);
    if (status == MCPG_OK) (void)pthread_cond_signal(&p->server->wake);
    unlock();
    return status;
}

static void leave(mcpg_rpc_client_t *c) {
    if (c->leaving || (c->pipe == NULL && !c->connecting)) return;
    c->leaving = true;
    if (c->pipe != NULL) {
        c->pipe->client_leaving = true;
        c->pipe->client_deadline_us = mcpg__now().us + FLUSH_US;
        pipe_wake(c->pipe);
    }
    (void)pthread_cond_signal(&c->wake);
}

static void client_disconnect(mcpg_rpc_client_t *c) {
    lock();
    leave(c);
    unlock();
}

static void client_destroy(mcpg_rpc_client_t *c) {
    if (c == NULL) return;
    lock();
    c->destroying = true;
    if (!c->leaving) {
        leave(c);
        if (c->pipe != NULL) pipe_break(c->pipe, MCPG_OK);
    }
    (void)pthread_cond_signal(&c->wake);
    unlock();
    (void)pthread_join(c->thread, NULL);
    lock();
    mcpg_rpc_client_t **at = &reg.clients;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    unlock();
    (void)pthread_cond_destroy(&c->wake);
    free(c);
}

uint32_t mcpg__rpc_inproc_break(const char *address, uint64_t conn) {
    uint32_t count = 0;
    lock();
    for (mcpg_rpc_server_t *s = reg.servers; s != NULL; s = s->next) {
        if (strcmp(s->address, address) != 0) continue;
        for (pipe_t *p = s->pipes; p != NULL; p = p->next) {
            if (conn != 0 && p->conn != conn) continue;
            pipe_break(p, MCPG_UNAVAILABLE);
            count++;
        }
    }
    unlock();
    return count;
}

const mcpg_rpc_ops_t *mcpg__rpc_inproc(void) {
    static const mcpg_rpc_ops_t ops = {
        .name = "inproc",
        .serve = serve,
        .server_address = server_address,
        .server_send = server_send,
        .server_may_speak = server_may_speak,
        .server_close = server_close,
        .server_stop = server_stop,
        .client_create = client_create,
        .client_connect = client_connect,
        .client_send = client_send,
        .client_disconnect = client_disconnect,
        .client_destroy = client_destroy,
    };
    return &ops;
}
