/* transport_priv.h: what shm.c and tcp.c share: a listener, half-open connections and the hello exchange over a stream
 * socket.
 *
 * Half-open connections are bounded in number and time. Nothing is believed before the hello is whole and valid; a
 * stranger's bytes end its connection and nothing else.
 */
#ifndef MCPG_DATAPLANE_TRANSPORT_PRIV_H
#define MCPG_DATAPLANE_TRANSPORT_PRIV_H

#include <sys/socket.h>

#include "dataplane/transport.h"

#define MCPG_HS_STRANGERS_MAX 64u                    /* accepted, no valid hello yet */
#define MCPG_HS_PARKED_MAX    (MCPG_MAX_RANKS + 64u) /* valid hello, not expected yet */
#define MCPG_HS_LIMIT_US      5000000u               /* for one hello */
#define MCPG_HS_CONNECT_US    2000000u               /* for connect and answer */
#define MCPG_HS_PARK_US       1000000u               /* for being expected */
#define MCPG_HS_FDS           2

typedef enum {
    MCPG_VERDICT_NONE = 0,
    MCPG_VERDICT_OK = 1,
    MCPG_VERDICT_LATER = 2,
    MCPG_VERDICT_VERSION = 3
} mcpg_verdict_t;

/* The exchange: connector first, then acceptor with its verdict. Little-endian. */
typedef struct {
    mcpg_hello_t hello;
    uint32_t verdict, pad;
    uint64_t pid, pid_namespace, start_time; /* of the sender; 0: not known */
} mcpg_greeting_t;

typedef enum { MCPG_HS_CONNECTING, MCPG_HS_READING, MCPG_HS_PARKED } mcpg_hs_state_t;

typedef struct mcpg_hs {
    mcpg_poll_t poll;
    struct mcpg_hs *next, *prev;
    mcpg_transport_t *t;
    int fd;
    bool outgoing, ready;
    mcpg_hs_state_t state;
    uint64_t until_us;
    mcpg_hello_t sent; /* outgoing */
    union {
        mcpg_greeting_t greeting;
        uint8_t bytes[sizeof(mcpg_greeting_t)];
    } in;
    uint32_t in_len;
    int fds[MCPG_HS_FDS]; /* received with it, -1: none */
    void *extra;          /* the transport's own, e.g. a mapping made before connecting */
    int64_t kernel_pid;   /* the socket's peer as the kernel says, 0: not known */
} mcpg_hs_t;

/* What a socket transport adds to the exchange. */
typedef struct {
    /* Outgoing: descriptors that go with the greeting. Incoming: with the answer. Returns their number. */
    int (*fds_to_send)(mcpg_transport_t *t, mcpg_hs_t *hs, int fds[MCPG_HS_FDS]);
    /* Exchange done: makes the stream and takes hs->fd and hs->fds; NULL: the connection is dropped. Incoming: before
     * the answer is sent. */
    mcpg_stream_t *(*make)(mcpg_transport_t *t, mcpg_hs_t *hs);
    bool (*peer_allowed)(mcpg_transport_t *t, mcpg_hs_t *hs); /* after connect or accept; may set kernel_pid */
    void (*extra_free)(mcpg_hs_t *hs);
} mcpg_hs_ops_t;

struct mcpg_transport {
    const mcpg_transport_ops_t *ops;
    const mcpg_hs_ops_t *hs_ops;
    int epoll_fd;
    mcpg_transport_events_t events;
    const mcpg_log_t *log;
    int listen_fd;
    mcpg_poll_t listen_poll;
    bool accept_ready, accept_off;
    bool twin_dropped; /* a step freed another connection than its own */
    mcpg_hs_t *hs_head, *hs_tail;
    uint32_t strangers, parked;
    void *impl; /* the transport's own */
};

/* A transport with its listening socket registered; takes listen_fd in any case. */
MCPG_MUST_USE mcpg_status_t mcpg__socket_transport_init(mcpg_transport_t *t, int epoll_fd, int listen_fd,
                                                        const mcpg_transport_events_t *events, const mcpg_log_t *log);
void mcpg__socket_transport_end(mcpg_transport_t *t);
/* Starts an outgoing exchange on a connected or connecting socket; takes fd and extra in any case. */
MCPG_MUST_USE mcpg_status_t mcpg__socket_connect(mcpg_transport_t *t, int fd, const mcpg_hello_t *hello, void *extra);
uint64_t mcpg__socket_tick(mcpg_transport_t *t, uint64_t now_us);
int mcpg__socket_add(int epoll_fd, int fd, uint32_t events, mcpg_poll_t *poll); /* epoll and fork registration */
void mcpg__socket_close(int epoll_fd, int fd);                                  /* undoes it; -1 allowed */
uint64_t mcpg__proc_start_time(int64_t pid);                                    /* 0: not known */

#endif
