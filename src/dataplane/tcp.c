/* tcp.c: links over TCP sockets: any two hosts that reach each other by IP address.
 *
 * Listens on one numeric address, never on a name. A reset or an end of stream is a lost link, never a proof of death.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/fork.h"
#include "dataplane/transport_priv.h"

typedef struct {
    mcpg_stream_t base;
    mcpg_poll_t poll;
    int fd, epoll_fd;
} tcp_stream_t;

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address_t;

static void polled(mcpg_poll_t *self, uint32_t events) {
    tcp_stream_t *s = (tcp_stream_t *)((char *)self - offsetof(tcp_stream_t, poll));
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) s->base.readable = true;
    if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) && s->base.blocked) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->poll};
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->fd, &ev);
        s->base.blocked = false;
    }
}

static void want_room(tcp_stream_t *s) {
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.ptr = &s->poll};
    epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->fd, &ev);
    s->base.blocked = true;
}

static int64_t stream_writev(mcpg_stream_t *base, const struct iovec *iov, int iov_count) {
    tcp_stream_t *s = (tcp_stream_t *)base;
    if (base->broken) return -1;
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)iov_count};
    size_t offered = 0;
    for (int i = 0; i < iov_count; i++) offered += iov[i].iov_len;
    ssize_t n = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        base->broken = true;
        return -1;
    }
    if (n < 0) n = 0;
    if ((size_t)n < offered) want_room(s);
    return n;
}

static int64_t stream_read(mcpg_stream_t *base, void *buf, size_t cap) {
    tcp_stream_t *s = (tcp_stream_t *)base;
    ssize_t n = recv(s->fd, buf, cap, MSG_DONTWAIT);
    if (n > 0) return n;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return base->broken ? -1 : 0;
    base->broken = true;
    return -1;
}

static bool stream_arm(mcpg_stream_t *base, bool want_write) {
    (void)want_write; /* writev asked for room already */
    return base->readable;
}

static void stream_disarm(mcpg_stream_t *base) {
    (void)base;
}

static void stream_close(mcpg_stream_t *base) {
    tcp_stream_t *s = (tcp_stream_t *)base;
    mcpg__socket_close(s->epoll_fd, s->fd);
    free(s);
}

static int no_fds(mcpg_transport_t *t, mcpg_hs_t *hs, int fds[MCPG_HS_FDS]) {
    (void)t;
    (void)hs;
    (void)fds;
    return 0;
}

static mcpg_stream_t *make(mcpg_transport_t *t, mcpg_hs_t *hs) {
    tcp_stream_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    s->base.ops = t->ops;
    s->poll.func = polled;
    s->fd = hs->fd;
    s->epoll_fd = t->epoll_fd;
    int one = 1;
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->poll};
    if (epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, s->fd, &ev) != 0) {
        free(s);
        return NULL;
    }
    hs->fd = -1;
    return &s->base;
}

static bool peer_allowed(mcpg_transport_t *t, mcpg_hs_t *hs) {
    (void)t;
    (void)hs;
    return true;
}

static void extra_free(mcpg_hs_t *hs) {
    (void)hs;
}

static const mcpg_hs_ops_t tcp_hs_ops = {
    .fds_to_send = no_fds, .make = make, .peer_allowed = peer_allowed, .extra_free = extra_free};

/* An endpoint part is family (4 or 6), address, port; port in network order. */
static bool address_from(const uint8_t *part, size_t len, address_t *out, socklen_t *out_len) {
    memset(out, 0, sizeof(*out));
    if (len == 7 && part[0] == 4) {
        out->v4.sin_family = AF_INET;
        memcpy(&out->v4.sin_addr, part + 1, 4);
        memcpy(&out->v4.sin_port, part + 5, 2);
        *out_len = sizeof(out->v4);
        return true;
    }
    if (len == 19 && part[0] == 6) {
        out->v6.sin6_family = AF_INET6;
        memcpy(&out->v6.sin6_addr, part + 1, 16);
        memcpy(&out->v6.sin6_port, part + 17, 2);
        *out_len = sizeof(out->v6);
        return true;
    }
    return false;
}

static size_t tcp_endpoint(const mcpg_transport_t *t, uint8_t *buf, size_t cap) {
    address_t a;
    socklen_t len = sizeof(a);
    memset(&a, 0, sizeof(a));
    if (getsockname(t->listen_fd, &a.any, &len) != 0) return 0;
    if (a.any.sa_family == AF_INET && cap >= 7) {
        buf[0] = 4;
        memcpy(buf + 1, &a.v4.sin_addr, 4);
        memcpy(buf + 5, &a.v4.sin_port, 2);
        return 7;
    }
    if (a.any.sa_family == AF_INET6 && cap >= 19) {
        buf[0] = 6;
        memcpy(buf + 1, &a.v6.sin6_addr, 16);
        memcpy(buf + 17, &a.v6.sin6_port, 2);
        return 19;
    }
    return 0;
}

static mcpg_status_t tcp_create(int epoll_fd, const char *host_ip, const mcpg_transport_events_t *events,
                                const mcpg_log_t *log, mcpg_transport_t **out) {
    address_t a;
    socklen_t len = sizeof(a.v4);
    memset(&a, 0, sizeof(a));
    if (inet_pton(AF_INET, host_ip, &a.v4.sin_addr) == 1) {
        a.v4.sin_family = AF_INET;
    } else if (inet_pton(AF_INET6, host_ip, &a.v6.sin6_addr) == 1) {
        a.v6.sin6_family = AF_INET6;
        len = sizeof(a.v6);
    } else {
        return MCPG_INVALID_ARGUMENT;
    }
    mcpg_transport_t *t = calloc(1, sizeof(*t));
    if (t == NULL) return MCPG_NO_MEMORY;
    t->ops = mcpg__transport_tcp();
    t->hs_ops = &tcp_hs_ops;
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) goto err_free;
    if (bind(fd, &a.any, len) != 0 || listen(fd, 1024) != 0) {
        close(fd);
        goto err_free;
    }
    if (mcpg__socket_transport_init(t, epoll_fd, fd, events, log) != MCPG_OK) goto err_free;
    *out = t;
    return MCPG_OK;
err_free:
    free(t);
    return MCPG_SYSTEM;
}

static mcpg_status_t tcp_open(mcpg_transport_t *t, const mcpg_hello_t *hello, const uint8_t *endpoint, size_t len) {
    address_t a;
    socklen_t a_len;
    if (!address_from(endpoint, len, &a, &a_len)) return MCPG_CORRUPT;
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return MCPG_SYSTEM;
    if (connect(fd, &a.any, a_len) != 0 && errno != EINPROGRESS) {
        close(fd);
        return MCPG_LINK_DOWN;
    }
    return mcpg__socket_connect(t, fd, hello, NULL);
}

static void tcp_destroy(mcpg_transport_t *t) {
    mcpg__socket_transport_end(t);
    free(t);
}

const mcpg_transport_ops_t *mcpg__transport_tcp(void) {
    static const mcpg_transport_ops_t ops = {
        .name = "tcp",
        .same_host_only = false,
        .create = tcp_create,
        .endpoint = tcp_endpoint,
        .open = tcp_open,
        .destroy = tcp_destroy,
        .tick = mcpg__socket_tick,
        .writev = stream_writev,
        .read = stream_read,
        .arm = stream_arm,
        .disarm = stream_disarm,
        .close = stream_close,
    };
    return &ops;
}
