/* rpc_grpc_relay.c: accepts TLS connections and carries their bytes to gRPC and back. Never decrypts, never decides who
 * a peer is, never lets one peer hold up another. */
#include "rpc/rpc_grpc_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_security.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/executor.h"
#include "rpc/rpc_grpc_impl.h"
#include "rpc/rpc_grpc_listen.h"

#define CHUNK         32768u
#define EVENTS        64
#define TICK_MS       100
#define SILENT_US     5000000u /* until the first byte */
#define LAST_WORDS_US 5000000u /* for what gRPC wrote before it hung up */
#define TLS_HANDSHAKE 0x16u    /* how every TLS connection begins */
#define FDS_EACH      3u       /* outer, inner, gRPC's end of inner */
#define TAG_WAKE      0u
#define TAG_LISTEN    1u

/* Bytes that the other side would not take yet. Nothing is read for a lane that holds some. */
typedef struct {
    uint8_t *bytes;
    size_t at, len;
} lane_t;

typedef struct tunnel {
    struct tunnel *next, *prev;
    int outer, inner; /* inner -1: nothing was heard yet */
    lane_t up, down;  /* outer to inner, inner to outer */
    uint32_t outer_mask, inner_mask;
    uint64_t deadline_us; /* UINT64_MAX: none */
    bool hung_up;         /* gRPC did; its last words go out, then the tunnel ends */
    bool over;
} tunnel_t;

struct mcpg_grelay {
    int inner_path_fd; /* the nameless socket that gRPC listens at */
    int listen_fd, wake_fd, epoll_fd;
    bool is_tcp, is_running, is_paused;
    atomic_bool stop, cut, end;
    pthread_t thread;
    tunnel_t *tunnels, *dead;
    uint32_t count, limit, refused_count;
    uint32_t timed_count; /* tunnels with a deadline */
    uint8_t chunk[CHUNK];
};

/* ---- the place where gRPC listens ---- */

static int connect_inner(const mcpg_grelay_t *r) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    (void)snprintf(un.sun_path, sizeof(un.sun_path), "/proc/self/fd/%d", r->inner_path_fd);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&un, sizeof(un)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* The name exists for a moment, in a folder that only this user may enter; afterwards the socket can be reached through
 * this process's descriptor only. */
static bool listen_inner(mcpg_grelay_t *r, grpc_server *server, grpc_server_credentials *creds) {
    const char *base = getenv("TMPDIR");
    char dir[80], address[128];
    if (base == NULL || base[0] != '/' || strlen(base) > 48) base = "/tmp";
    (void)snprintf(dir, sizeof(dir), "%s/mooncake-pg-XXXXXX", base);
    if (mkdtemp(dir) == NULL) return false;
    (void)snprintf(address, sizeof(address), "unix:%s/s", dir);
    const char *path = address + strlen("unix:");
    if (grpc_server_add_http2_port(server, address, creds) != 0)
        r->inner_path_fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    (void)unlink(path);
    (void)rmdir(dir);
    int trial = r->inner_path_fd >= 0 ? connect_inner(r) : -1;
    if (trial >= 0) (void)close(trial);
    return trial >= 0;
}

mcpg_status_t mcpg__grelay_open(grpc_server *server, grpc_server_credentials *creds, mcpg_grelay_t **out, char *error,
                                size_t error_cap) {
    mcpg_grelay_t *r = calloc(1, sizeof(*r));
    if (r == NULL) return MCPG_NO_MEMORY;
    r->inner_path_fd = r->listen_fd = -1;
    r->limit = mcpg__gconn_limit(FDS_EACH);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wake = {.events = EPOLLIN, .data.u64 = TAG_WAKE};
    bool ok = r->wake_fd >= 0 && r->epoll_fd >= 0 && epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, r->wake_fd, &wake) == 0;
    if (ok && listen_inner(r, server, creds)) {
        *out = r;
        return MCPG_OK;
    }
    (void)snprintf(error, error_cap,
                   "no private socket could be made for TLS (%s): set TMPDIR to a folder that this user may write, and "
                   "see that /proc is mounted",
                   strerror(errno));
    mcpg__grelay_free(r);
    return MCPG_SYSTEM;
}

/* ---- one tunnel ---- */

static void set_deadline(mcpg_grelay_t *r, tunnel_t *t, uint64_t at_us) {
    if (t->deadline_us != UINT64_MAX) r->timed_count--;
    t->deadline_us = at_us;
    if (at_us != UINT64_MAX) r->timed_count++;
}

/* Its descriptors go at once, its memory when no event of this turn can name it any more. */
static void end_tunnel(mcpg_grelay_t *r, tunnel_t *t) {
    if (t->over) return;
    t->over = true;
    set_deadline(r, t, UINT64_MAX);
    (void)close(t->outer);
    if (t->inner >= 0) (void)close(t->inner);
    free(t->up.bytes);
    free(t->down.bytes);
    if (t->prev != NULL)
        t->prev->next = t->next;
    else
        r->tunnels = t->next;
    if (t->next != NULL) t->next->prev = t->prev;
    t->next = r->dead;
    r->dead = t;
    r->count--;
}

static void bury(mcpg_grelay_t *r) {
    while (r->dead != NULL) {
        tunnel_t *t = r->dead;
        r->dead = t->next;
        free(t);
    }
}

static bool is_passing(int error) {
    return error == EAGAIN || error == EINTR;
}

/* False: the receiver is gone. */
static bool push(lane_t *lane, int to) {
    while (lane->at < lane->len) {
        ssize_t n = send(to, lane->bytes + lane->at, lane->len - lane->at, MSG_NOSIGNAL);
        if (n < 0) return is_passing(errno);
        lane->at += (size_t)n;
    }
    free(lane->bytes);
    *lane = (lane_t){NULL, 0, 0};
    return true;
}

/* False: the receiver is gone. */
static bool hand_on(mcpg_grelay_t *r, lane_t *lane, size_t len, int to) {
    ssize_t n = send(to, r->chunk, len, MSG_NOSIGNAL);
    if (n < 0 && !is_passing(errno)) return false;
    size_t sent = n > 0 ? (size_t)n : 0;
    if (sent == len) return true;
    lane->bytes = malloc(len - sent);
    if (lane->bytes == NULL) return false;
    memcpy(lane->bytes, r->chunk + sent, len - sent);
    lane->len = len - sent;
    return true;
}

/* False: one of the two is gone. A lane that holds something is not read for. */
static bool pull(mcpg_grelay_t *r, lane_t *lane, int from, int to, bool *got_out) {
    *got_out = false;
    if (lane->len > 0) return true;
    ssize_t n = recv(from, r->chunk, CHUNK, 0);
    if (n < 0) return is_passing(errno);
    if (n == 0) return false;
    *got_out = true;
    return hand_on(r, lane, (size_t)n, to);
}

/* The first bytes: whoever does not begin like TLS never reaches gRPC. */
static bool begin(mcpg_grelay_t *r, tunnel_t *t) {
    ssize_t n = recv(t->outer, r->chunk, CHUNK, 0);
    if (n < 0) return is_passing(errno);
    if (n == 0 || r->chunk[0] != TLS_HANDSHAKE) return false;
    t->inner = connect_inner(r);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)(uintptr_t)t | 1u};
    if (t->inner < 0 || epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, t->inner, &ev) != 0) return false;
    t->inner_mask = EPOLLIN;
    set_deadline(r, t, UINT64_MAX);
    return hand_on(r, &t->up, (size_t)n, t->inner);
}

/* A descriptor that hung up would be reported for ever: it is watched no more, and read when there is room. */
static void hang_up(mcpg_grelay_t *r, tunnel_t *t) {
    if (t->hung_up) return;
    t->hung_up = true;
    (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, t->inner, NULL);
    set_deadline(r, t, mcpg__now().us + LAST_WORDS_US);
}

static void watch(const mcpg_grelay_t *r, tunnel_t *t) {
    uint32_t outer = (t->up.len == 0 ? EPOLLIN : 0u) | (t->down.len > 0 ? EPOLLOUT : 0u);
    uint32_t inner = (t->down.len == 0 ? EPOLLIN : 0u) | (t->up.len > 0 ? EPOLLOUT : 0u);
    struct epoll_event ev = {.events = outer, .data.u64 = (uint64_t)(uintptr_t)t};
    if (outer != t->outer_mask) (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, t->outer, &ev);
    t->outer_mask = outer;
    if (t->inner < 0 || t->hung_up || inner == t->inner_mask) return;
    ev = (struct epoll_event){.events = inner, .data.u64 = (uint64_t)(uintptr_t)t | 1u};
    (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, t->inner, &ev);
    t->inner_mask = inner;
}

/* What gRPC wrote before it hung up. False: all of it is out, or cannot go. */
static bool last_words(mcpg_grelay_t *r, tunnel_t *t) {
    bool got = true;
    while (got) /* bounded: by what one socket buffer holds, and nothing is added any more */
        if (!pull(r, &t->down, t->inner, t->outer, &got)) return false;
    return t->down.len > 0;
}

static bool turn(mcpg_grelay_t *r, tunnel_t *t, bool is_inner, uint32_t events) {
    bool got = false;
    if (t->inner < 0) return (events & (EPOLLHUP | EPOLLERR)) == 0 && begin(r, t);
    if (!is_inner && (events & (EPOLLHUP | EPOLLERR)) != 0) return false;
    if (is_inner && (events & (EPOLLHUP | EPOLLERR)) != 0) hang_up(r, t);
    if (!push(&t->down, t->outer)) return false;
    if (t->hung_up) return last_words(r, t); /* nobody is there for what goes up */
    if (!push(&t->up, t->inner)) return false;
    return is_inner ? pull(r, &t->down, t->inner, t->outer, &got) : pull(r, &t->up, t->outer, t->inner, &got);
}

static void on_tunnel(mcpg_grelay_t *r, tunnel_t *t, bool is_inner, uint32_t events) {
    if (t->over) return;
    if (turn(r, t, is_inner, events))
        watch(r, t);
    else
        end_tunnel(r, t);
}

/* ---- accepting ---- */

static void admit(mcpg_grelay_t *r, int fd) {
    tunnel_t *t = r->count < r->limit ? calloc(1, sizeof(*t)) : NULL;
    if (t == NULL) {
        (void)close(fd);
        if (r->refused_count++ == 0)
            mcpg__log(mcpg__grpc_log(), MCPG_LOG_WARN,
                      "connections_full limit %u: raise \"ulimit -n\" for more; newcomers are turned away", r->limit);
        return;
    }
    int on = 1;
    if (r->is_tcp) (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    *t = (tunnel_t){.outer = fd, .inner = -1, .outer_mask = EPOLLIN, .deadline_us = UINT64_MAX};
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uint64_t)(uintptr_t)t};
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        (void)close(fd);
        free(t);
        return;
    }
    t->next = r->tunnels;
    if (r->tunnels != NULL) r->tunnels->prev = t;
    r->tunnels = t;
    r->count++;
    set_deadline(r, t, mcpg__now().us + SILENT_US);
}

static void listen_to(mcpg_grelay_t *r, bool on) {
    struct epoll_event ev = {.events = on ? EPOLLIN : 0u, .data.u64 = TAG_LISTEN};
    (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, r->listen_fd, &ev);
    r->is_paused = !on;
}

static void accept_some(mcpg_grelay_t *r) {
    for (uint32_t i = 0; i < 64; i++) { /* bounded: others get their turn, epoll comes back at once */
        int fd = accept4(r->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            admit(r, fd);
            continue;
        }
        /* Out of descriptors: look again at the next tick. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) listen_to(r, false);
        return;
    }
}

static void close_listener(mcpg_grelay_t *r) {
    if (r->listen_fd < 0) return;
    (void)close(r->listen_fd); /* whoever is still in the queue is refused */
    r->listen_fd = -1;
    r->is_paused = false;
}

static void tick(mcpg_grelay_t *r) {
    uint64_t now_us = mcpg__now().us;
    if (r->is_paused) listen_to(r, true);
    for (tunnel_t *t = r->tunnels, *next; t != NULL; t = next) {
        next = t->next;
        if (now_us >= t->deadline_us) end_tunnel(r, t);
    }
}

static void on_wake(mcpg_grelay_t *r) {
    uint64_t count = 0;
    ssize_t n = read(r->wake_fd, &count, sizeof(count));
    (void)n;
    if (atomic_load(&r->stop)) close_listener(r);
    while (atomic_load(&r->cut) && r->tunnels != NULL)
        end_tunnel(r, r->tunnels); /* bounded: it takes it off the list */
}

static void *relay_main(void *arg) {
    mcpg_grelay_t *r = arg;
    struct epoll_event events[EVENTS];
    while (!atomic_load(&r->end)) { /* bounded: each round sleeps in epoll_wait */
        bool is_timed = r->timed_count > 0 || r->is_paused;
        int n = epoll_wait(r->epoll_fd, events, EVENTS, is_timed ? TICK_MS : -1);
        bool is_asked = false;
        for (int i = 0; i < n; i++) {
            uint64_t tag = events[i].data.u64;
            if (tag == TAG_WAKE)
                on_wake(r);
            else if (tag == TAG_LISTEN)
                is_asked = true;
            else
                on_tunnel(r, (tunnel_t *)(uintptr_t)(tag & ~UINT64_C(1)), (tag & 1u) != 0, events[i].events);
        }
        if (is_asked && r->listen_fd >= 0) accept_some(r);
        if (is_timed) tick(r);
        bury(r);
    }
    return NULL;
}

/* ---- start and stop ---- */

mcpg_status_t mcpg__grelay_start(mcpg_grelay_t *r, int listen_fd, bool is_tcp) {
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = TAG_LISTEN};
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, listen_fd, &ev) != 0) return MCPG_SYSTEM;
    r->listen_fd = listen_fd;
    r->is_tcp = is_tcp;
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&r->thread, NULL, relay_main, r);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        (void)epoll_ctl(r->epoll_fd, EPOLL_CTL_DEL, listen_fd, NULL);
        r->listen_fd = -1;
        return MCPG_SYSTEM;
    }
    (void)pthread_setname_np(r->thread, "mcpg-rpc-tls");
    r->is_running = true;
    return MCPG_OK;
}

static void wake(const mcpg_grelay_t *r) {
    uint64_t one = 1;
    ssize_t n = write(r->wake_fd, &one, sizeof(one));
    (void)n; /* full: it is awake */
}

void mcpg__grelay_stop(mcpg_grelay_t *r) {
    if (r == NULL) return;
    atomic_store(&r->stop, true);
    wake(r);
}

void mcpg__grelay_cut(mcpg_grelay_t *r) {
    atomic_store(&r->cut, true);
    wake(r);
}

void mcpg__grelay_free(mcpg_grelay_t *r) {
    if (r == NULL) return;
    if (r->is_running) {
        atomic_store(&r->end, true);
        wake(r);
        (void)pthread_join(r->thread, NULL);
    }
    while (r->tunnels != NULL) end_tunnel(r, r->tunnels);
    bury(r);
    if (r->listen_fd >= 0) (void)close(r->listen_fd);
    if (r->inner_path_fd >= 0) (void)close(r->inner_path_fd);
    if (r->epoll_fd >= 0) (void)close(r->epoll_fd);
    if (r->wake_fd >= 0) (void)close(r->wake_fd);
    free(r);
}
