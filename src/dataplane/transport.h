/* transport.h: one table per transport: a non-blocking, reliable, ordered byte stream to one peer process.
 *
 * A transport sets up streams and moves bytes; framing, matching, probes and the choice of transport are link.c's.
 * Everything here is called with the engine lock held, never blocks, and never calls back except through the event
 * functions given at creation. Adding a transport: one file, one line in transports[] of transport.c, one line in the
 * conformance suite.
 */
#ifndef MCPG_DATAPLANE_TRANSPORT_H
#define MCPG_DATAPLANE_TRANSPORT_H

#include <sys/uio.h>

#include "common/base.h"
#include "common/log.h"

typedef struct mcpg_transport mcpg_transport_t; /* one per engine and transport: its listener */
typedef struct mcpg_stream mcpg_stream_t;       /* one per link */

/* First bytes of each stream in both directions, checked by the transport's handshake. */
typedef struct {
    uint32_t magic;   /* MCPG_HELLO_MAGIC */
    uint32_t version; /* MCPG_DATA_VERSION; a difference is refused by both sides with a log line naming both */
    uint32_t rank_from, rank_to;
    uint64_t inc_from_term, inc_from_counter;
    uint64_t inc_to_term, inc_to_counter;
    uint8_t key_proof[32]; /* zero until links are authenticated */
} mcpg_hello_t;
#define MCPG_HELLO_MAGIC  0x4d434c31u /* "MCL1" */
#define MCPG_DATA_VERSION 1u

/* LATER: the peer does not expect this incarnation yet. VERSION: never tried again. BROKEN: this transport cannot,
 * another one may. */
typedef enum { MCPG_CONNECT_LATER, MCPG_CONNECT_VERSION, MCPG_CONNECT_BROKEN } mcpg_connect_fail_t;

typedef struct {
    void *user;
    /* A peer says hello: return true if (rank, incarnation) is expected now; false makes the peer try again later. */
    bool (*may_accept)(void *user, const mcpg_hello_t *hello);
    /* Handshake done. The link owns the stream from here. pid: the peer's, 0 if not known. */
    void (*established)(void *user, mcpg_stream_t *stream, const mcpg_hello_t *peer_hello, int64_t pid);
    /* A connect that open() started failed; the stream is gone. sent: the hello given to open(). */
    void (*connect_failed)(void *user, const mcpg_hello_t *sent, mcpg_connect_fail_t how, const char *why);
} mcpg_transport_events_t;

typedef struct {
    const char *name;
    bool same_host_only;
    /* epoll_fd: the engine's set; fds are added with epoll_event.data.ptr = an mcpg_poll_t (below). */
    mcpg_status_t (*create)(int epoll_fd, const char *host_ip, const mcpg_transport_events_t *events,
                            const mcpg_log_t *log, mcpg_transport_t **out);
    size_t (*endpoint)(const mcpg_transport_t *t, uint8_t *buf,
                       size_t cap); /* this transport's part of the published endpoint */
    mcpg_status_t (*open)(mcpg_transport_t *t, const mcpg_hello_t *hello, const uint8_t *endpoint,
                          size_t len);    /* starts a connect */
    void (*destroy)(mcpg_transport_t *t); /* streams must be closed before */
    /* Moves connects and accepts on: after poll events, after the expectations behind may_accept changed, and when the
     * returned time has come (UINT64_MAX: none). The only place that calls the event functions, never from open() or a
     * poll function. */
    uint64_t (*tick)(mcpg_transport_t *t, uint64_t now_us);
    /* Bytes taken (may be fewer than offered), 0: would block, -1: broken. */
    int64_t (*writev)(mcpg_stream_t *s, const struct iovec *iov, int iov_count);
    /* Bytes read, 0: nothing there, -1: broken or ended by the peer. */
    int64_t (*read)(mcpg_stream_t *s, void *buf, size_t cap);
    /* After writev returned less than offered: ask to be polled when there is room. Before sleeping: arm wake-ups.
     * Returns true when bytes or room appeared meanwhile, so that the engine must not sleep. */
    bool (*arm)(mcpg_stream_t *s, bool want_write);
    void (*disarm)(mcpg_stream_t *s); /* awake again: peers need not wake us */
    void (*close)(mcpg_stream_t *s);  /* frees */
} mcpg_transport_ops_t;

/* Who an epoll event is for: func is called by the engine, lock held. It only notes what happened: it closes and frees
 * nothing. */
typedef struct mcpg_poll {
    void (*func)(struct mcpg_poll *self, uint32_t epoll_events);
} mcpg_poll_t;

/* Streams of any kind begin with this, so that the engine can call through. */
struct mcpg_stream {
    const mcpg_transport_ops_t *ops;
    void *link;    /* owner, set at established */
    bool readable; /* hint from a poll event; the engine clears it */
    bool broken;
    bool polled;        /* bytes appear without an event: ask read() each round */
    bool blocked;       /* writev took less and an event will clear this: do not try before */
    uint64_t pid_start; /* start time of the peer process in clock ticks, 0: not known */
};

const mcpg_transport_ops_t *mcpg__transport_shm(void);
const mcpg_transport_ops_t *mcpg__transport_tcp(void);
const mcpg_transport_ops_t *mcpg__transport_find(const char *name, size_t len); /* NULL: unknown */

#endif
