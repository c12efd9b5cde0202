/* shm.c: links between processes of one host: two byte rings in a sealed memfd, passed over a unix socket.
 *
 * The socket stays open as the sign that the peer has the stream; it carries nothing after the hello. Names cannot be
 * guessed and only the same user may connect. An awake peer costs no system call. Never trusts a position or a size
 * that the other side can write.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/fork.h"
#include "dataplane/shm_ring.h"
#include "dataplane/transport_priv.h"

#define NAME_BYTES  16u
#define RING_BYTES  262144u
#define PIECE_BYTES (RING_BYTES / 4u) /* published at a time: the other side copies meanwhile */
#define CTL_BYTES   4096u
#define MAP_BYTES   (CTL_BYTES + 2u * RING_BYTES)
_Static_assert((RING_BYTES & (RING_BYTES - 1u)) == 0 && 2 * sizeof(mcpg_ring_ctl_t) <= CTL_BYTES, "layout");

typedef struct {
    uint8_t name[NAME_BYTES];
    int event_fd; /* every peer of this process rings it */
    mcpg_poll_t event_poll;
    int epoll_fd;
} shm_impl_t;

typedef struct {
    mcpg_stream_t base;
    mcpg_poll_t sock_poll;
    int sock, peer_event, epoll_fd;
    uint8_t *map;
    mcpg_ring_t in, out;
    bool hung_up;
} shm_stream_t;

typedef struct {
    int memfd;
    uint8_t *map;
} shm_extra_t;

/* ---- stream ---- */
static void ring_bell(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof(one)) < 0) return; /* full: it has been rung */
}

static void bell_rung(mcpg_poll_t *self, uint32_t events) {
    shm_impl_t *impl = (shm_impl_t *)((char *)self - offsetof(shm_impl_t, event_poll));
    uint64_t count;
    (void)events;
    if (read(impl->event_fd, &count, sizeof(count)) < 0) return;
}

/* The socket is silent by design: whatever it reports is the end of the stream. Taken out of the set, for a
 * level-triggered end never stops. */
static void sock_polled(mcpg_poll_t *self, uint32_t events) {
    shm_stream_t *s = (shm_stream_t *)((char *)self - offsetof(shm_stream_t, sock_poll));
    (void)events;
    if (s->hung_up) return;
    s->hung_up = true;
    epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, s->sock, NULL);
}

static int64_t stream_writev(mcpg_stream_t *base, const struct iovec *iov, int iov_count) {
    shm_stream_t *s = (shm_stream_t *)base;
    int64_t room = mcpg__ring_writable(&s->out);
    if (room < 0) base->broken = true;
    if (base->broken || s->hung_up) return -1;
    if (room > (int64_t)PIECE_BYTES) room = (int64_t)PIECE_BYTES;
    int64_t took = 0;
    for (int i = 0; i < iov_count && room > 0; i++) {
        size_t n = iov[i].iov_len < (size_t)room ? iov[i].iov_len : (size_t)room;
        mcpg__ring_copy_in(&s->out, iov[i].iov_base, n);
        s->out.own += n;
        took += (int64_t)n;
        room -= (int64_t)n;
    }
    if (took == 0) return 0;
    atomic_store(&s->out.ctl->tail, s->out.own);
    if (atomic_load(&s->out.ctl->reader_armed) != 0 && atomic_exchange(&s->out.ctl->reader_armed, 0u) != 0)
        ring_bell(s->peer_event);
    return took;
}

static int64_t stream_read(mcpg_stream_t *base, void *buf, size_t cap) {
    shm_stream_t *s = (shm_stream_t *)base;
    /* Before the ring: what was written before the hang-up is then seen. */
    bool end = s->hung_up || base->broken;
    int64_t there = mcpg__ring_readable(&s->in);
    if (there < 0) {
        base->broken = true;
        return -1;
    }
    if (there == 0) return end ? -1 : 0;
    size_t n = cap < (size_t)there ? cap : (size_t)there;
    if (n > PIECE_BYTES) n = PIECE_BYTES;
    mcpg__ring_copy_out(&s->in, buf, n);
    s->in.own += n;
    atomic_store(&s->in.ctl->head, s->in.own);
    if (atomic_load(&s->in.ctl->writer_armed) != 0 && (uint64_t)(there - (int64_t)n) <= s->in.cap / 2u &&
        atomic_exchange(&s->in.ctl->writer_armed, 0u) != 0)
        ring_bell(s->peer_event);
    return (int64_t)n;
}

static bool stream_arm(mcpg_stream_t *base, bool want_write) {
    shm_stream_t *s = (shm_stream_t *)base;
    if (want_write) atomic_store(&s->out.ctl->writer_armed, 1u);
    atomic_store(&s->in.ctl->reader_armed, 1u);
    if (base->broken || s->hung_up) return true;
    int64_t room = want_write ? mcpg__ring_writable(&s->out) : 0;
    return mcpg__ring_readable(&s->in) != 0 || room < 0 || (want_write && room >= mcpg__ring_enough(&s->out));
}

static void stream_disarm(mcpg_stream_t *base) {
    shm_stream_t *s = (shm_stream_t *)base;
    atomic_store_explicit(&s->in.ctl->reader_armed, 0u, memory_order_release);
    atomic_store_explicit(&s->out.ctl->writer_armed, 0u, memory_order_release);
}

static void stream_close(mcpg_stream_t *base) {
    shm_stream_t *s = (shm_stream_t *)base;
    mcpg__socket_close(s->epoll_fd, s->sock);
    mcpg__socket_close(s->epoll_fd, s->peer_event);
    munmap(s->map, MAP_BYTES);
    free(s);
}

/* ---- hello ---- */
static void rings_place(shm_stream_t *s, bool connector) {
    mcpg_ring_ctl_t *ctl = (mcpg_ring_ctl_t *)(void *)s->map;
    mcpg_ring_t first = {.ctl = &ctl[0], .data = s->map + CTL_BYTES, .cap = RING_BYTES};
    mcpg_ring_t second = {.ctl = &ctl[1], .data = s->map + CTL_BYTES + RING_BYTES, .cap = RING_BYTES};
    s->out = connector ? first : second;
    s->in = connector ? second : first;
}

static int fds_to_send(mcpg_transport_t *t, mcpg_hs_t *hs, int fds[MCPG_HS_FDS]) {
    const shm_impl_t *impl = t->impl;
    fds[0] = impl->event_fd;
    if (!hs->outgoing) return 1;
    fds[1] = ((const shm_extra_t *)hs->extra)->memfd;
    return 2;
}

/* A file that could shrink would let the peer kill this process with a bus error. */
static uint8_t *map_peer(int fd) {
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & needed) != needed || fstat(fd, &st) != 0 || st.st_size != (off_t)MAP_BYTES) return NULL;
    void *map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

static bool is_eventfd(int fd) {
    char path[48], target[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    if (n < 0) return true; /* no /proc: a write that is not one number breaks nothing here */
    target[n] = '\0';
    return strstr(target, "eventfd") != NULL;
}

static mcpg_stream_t *make(mcpg_transport_t *t, mcpg_hs_t *hs) {
    if (hs->fds[0] < 0 || !is_eventfd(hs->fds[0]) || (!hs->outgoing && hs->fds[1] < 0)) return NULL;
    int flags = fcntl(hs->fds[0], F_GETFL); /* a blocking bell could hold this process up */
    if (flags < 0 || (flags & O_NONBLOCK) == 0) return NULL;
    shm_stream_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    shm_extra_t *extra = hs->extra;
    s->map = hs->outgoing ? extra->map : map_peer(hs->fds[1]);
    if (s->map == NULL) goto err_free;
    if (hs->outgoing) extra->map = NULL;
    madvise(s->map, MAP_BYTES, MADV_DONTFORK);
    s->base.ops = t->ops;
    s->base.polled = true;
    s->sock_poll.func = sock_polled;
    s->epoll_fd = t->epoll_fd;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = &s->sock_poll};
    if (epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, hs->fd, &ev) != 0) goto err_unmap;
    s->sock = hs->fd;
    s->peer_event = hs->fds[0];
    (void)mcpg__fork_close_register(s->peer_event);
    hs->fd = hs->fds[0] = -1;
    rings_place(s, hs->outgoing);
    return &s->base;
err_unmap:
    munmap(s->map, MAP_BYTES);
err_free:
    free(s);
    return NULL;
}

static bool peer_allowed(mcpg_transport_t *t, mcpg_hs_t *hs) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(hs->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) return false;
    if (cred.uid != geteuid()) {
        mcpg__log(t->log, MCPG_LOG_WARN, "connection refused: user %u is not user %u", (unsigned)cred.uid,
                  (unsigned)geteuid());
        return false;
    }
    hs->kernel_pid = cred.pid;
    return true;
}

static void extra_free(mcpg_hs_t *hs) {
    shm_extra_t *extra = hs->extra;
    if (extra->map != NULL) munmap(extra->map, MAP_BYTES);
    mcpg__socket_close(hs->t->epoll_fd, extra->memfd);
    free(extra);
    hs->extra = NULL;
}

static const mcpg_hs_ops_t shm_hs_ops = {
    .fds_to_send = fds_to_send, .make = make, .peer_allowed = peer_allowed, .extra_free = extra_free};

/* ---- transport ---- */
static socklen_t address_of(const uint8_t name[NAME_BYTES], struct sockaddr_un *a) {
    memset(a, 0, sizeof(*a));
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "mcpg-"); /* abstract: starts with NUL, no file */
    for (uint32_t i = 0; i < NAME_BYTES; i++, n += 2) snprintf(a->sun_path + 1 + n, 3, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1u + (size_t)n);
}

static mcpg_status_t listener_open(shm_impl_t *impl, int *out) {
    struct sockaddr_un a;
    if (getrandom(impl->name, NAME_BYTES, 0) != (ssize_t)NAME_BYTES) return MCPG_SYSTEM;
    socklen_t len = address_of(impl->name, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return MCPG_SYSTEM;
    if (bind(fd, (const struct sockaddr *)&a, len) != 0 || listen(fd, 1024) != 0) {
        close(fd);
        return MCPG_SYSTEM;
    }
    *out = fd;
    return MCPG_OK;
}

static mcpg_status_t shm_create(int epoll_fd, const char *host_ip, const mcpg_transport_events_t *events,
                                const mcpg_log_t *log, mcpg_transport_t **out) {
    (void)host_ip;
    mcpg_transport_t *t = calloc(1, sizeof(*t));
    shm_impl_t *impl = calloc(1, sizeof(*impl));
    int fd = -1;
    if (t == NULL || impl == NULL) goto err_free;
    t->ops = mcpg__transport_shm();
    t->hs_ops = &shm_hs_ops;
    t->impl = impl;
    impl->epoll_fd = epoll_fd;
    impl->event_poll.func = bell_rung;
    impl->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (impl->event_fd < 0) goto err_free;
    if (mcpg__socket_add(epoll_fd, impl->event_fd, EPOLLIN, &impl->event_poll) != 0) goto err_event;
    if (listener_open(impl, &fd) != MCPG_OK) goto err_event;
    if (mcpg__socket_transport_init(t, epoll_fd, fd, events, log) != MCPG_OK) goto err_event;
    *out = t;
    return MCPG_OK;
err_event:
    mcpg__socket_close(epoll_fd, impl->event_fd);
err_free:
    free(impl);
    free(t);
    return MCPG_SYSTEM;
}

static size_t shm_endpoint(const mcpg_transport_t *t, uint8_t *buf, size_t cap) {
    if (cap < NAME_BYTES) return 0;
    memcpy(buf, ((const shm_impl_t *)t->impl)->name, NAME_BYTES);
    return NAME_BYTES;
}

static shm_extra_t *rings_create(void) {
    shm_extra_t *extra = calloc(1, sizeof(*extra));
    if (extra == NULL) return NULL;
    extra->memfd = memfd_create("mcpg-link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (extra->memfd < 0) goto err_free;
    if (ftruncate(extra->memfd, (off_t)MAP_BYTES) != 0) goto err_close;
    if (fcntl(extra->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) goto err_close;
    void *map = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, extra->memfd, 0);
    if (map == MAP_FAILED) goto err_close;
    extra->map = map;
    (void)mcpg__fork_close_register(extra->memfd);
    return extra;
err_close:
    close(extra->memfd);
err_free:
    free(extra);
    return NULL;
}

static mcpg_status_t shm_open_link(mcpg_transport_t *t, const mcpg_hello_t *hello, const uint8_t *endpoint,
                                   size_t len) {
    struct sockaddr_un a;
    if (len != NAME_BYTES) return MCPG_CORRUPT;
    socklen_t a_len = address_of(endpoint, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return MCPG_SYSTEM;
    if (connect(fd, (const struct sockaddr *)&a, a_len) != 0) {
        close(fd);
        return MCPG_LINK_DOWN;
    }
    shm_extra_t *extra = rings_create();
    if (extra == NULL) {
        close(fd);
        return MCPG_SYSTEM;
    }
    return mcpg__socket_connect(t, fd, hello, extra);
}

static void shm_destroy(mcpg_transport_t *t) {
    shm_impl_t *impl = t->impl;
    mcpg__socket_transport_end(t);
    mcpg__socket_close(impl->epoll_fd, impl->event_fd);
    free(impl);
    free(t);
}

const mcpg_transport_ops_t *mcpg__transport_shm(void) {
    static const mcpg_transport_ops_t ops = {
        .name = "shm",
        .same_host_only = true,
        .create = shm_create,
        .endpoint = shm_endpoint,
        .open = shm_open_link,
        .destroy = shm_destroy,
        .tick = mcpg__socket_tick,
        .writev = stream_writev,
        .read = stream_read,
        .arm = stream_arm,
        .disarm = stream_disarm,
        .close = stream_close,
    };
    return &ops;
}
