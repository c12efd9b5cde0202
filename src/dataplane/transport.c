/* transport.c: the table of transports, and the hello exchange that socket transports share.
 *
 * Poll functions only note; everything else happens in tick. A half-open connection that breaks a rule is closed
 * without an answer, except for a version difference, which both sides log.
 */
#include "dataplane/transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/executor.h"
#include "common/fork.h"
#include "dataplane/fault.h"
#include "dataplane/transport_priv.h"

static const mcpg_transport_ops_t *(*const transports[])(void) = {mcpg__transport_shm, mcpg__transport_tcp};

const mcpg_transport_ops_t *mcpg__transport_find(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        const mcpg_transport_ops_t *ops = transports[i]();
        if (strlen(ops->name) == len && memcmp(ops->name, name, len) == 0) return mcpg__fault_wrap(ops);
    }
    return NULL;
}

/* ---- process identity ---- */
static uint64_t pid_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t mcpg__proc_start_time(int64_t pid) {
    char path[48], text[1024];
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

/* ---- descriptors ---- */
int mcpg__socket_add(int epoll_fd, int fd, uint32_t events, mcpg_poll_t *poll) {
    struct epoll_event ev = {.events = events, .data.ptr = poll};
    (void)mcpg__fork_close_register(fd);
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev);
}

void mcpg__socket_close(int epoll_fd, int fd) {
    if (fd < 0) return;
    mcpg__fork_close_unregister(fd);
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    close(fd);
}

/* ---- half-open connections ---- */
static void hs_noted(mcpg_poll_t *self, uint32_t events) {
    (void)events;
    ((mcpg_hs_t *)self)->ready = true;
}

static void accept_noted(mcpg_poll_t *self, uint32_t events) {
    mcpg_transport_t *t = (mcpg_transport_t *)((char *)self - offsetof(mcpg_transport_t, listen_poll));
    (void)events;
    t->accept_ready = true;
}

static void listen_interest(mcpg_transport_t *t, bool on) {
    if (t->accept_off == !on) return;
    struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &t->listen_poll};
    epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, t->listen_fd, &ev);
    t->accept_off = !on;
}

static mcpg_hs_t *hs_new(mcpg_transport_t *t, int fd, bool outgoing) {
    mcpg_hs_t *hs = calloc(1, sizeof(*hs));
    if (hs == NULL) return NULL;
    hs->poll.func = hs_noted;
    hs->t = t;
    hs->fd = fd;
    hs->outgoing = outgoing;
    hs->state = outgoing ? MCPG_HS_CONNECTING : MCPG_HS_READING;
    hs->until_us = mcpg__now().us + (outgoing ? MCPG_HS_CONNECT_US : MCPG_HS_LIMIT_US);
    hs->fds[0] = hs->fds[1] = -1;
    hs->prev = t->hs_tail; /* in order of arrival: of two hellos read in one turn the newer one must win */
    if (hs->prev != NULL)
        hs->prev->next = hs;
    else
        t->hs_head = hs;
    t->hs_tail = hs;
    if (!outgoing) t->strangers++;
    return hs;
}

static void hs_free(mcpg_hs_t *hs) {
    mcpg_transport_t *t = hs->t;
    if (hs->prev != NULL)
        hs->prev->next = hs->next;
    else
        t->hs_head = hs->next;
    if (hs->next != NULL)
        hs->next->prev = hs->prev;
    else
        t->hs_tail = hs->prev;
    if (!hs->outgoing && hs->state == MCPG_HS_READING) t->strangers--;
    if (!hs->outgoing && hs->state == MCPG_HS_PARKED) t->parked--;
    mcpg__socket_close(t->epoll_fd, hs->fd);
    for (int i = 0; i < MCPG_HS_FDS; i++)
        if (hs->fds[i] >= 0) close(hs->fds[i]);
    if (hs->extra != NULL) t->hs_ops->extra_free(hs);
    free(hs);
}

static void hs_fail(mcpg_hs_t *hs, mcpg_connect_fail_t how, const char *why) {
    mcpg_transport_t *t = hs->t;
    mcpg_hello_t sent = hs->sent;
    bool outgoing = hs->outgoing;
    hs_free(hs);
    if (outgoing) t->events.connect_failed(t->events.user, &sent, how, why);
}

static bool greeting_send(mcpg_hs_t *hs, const mcpg_hello_t *hello, mcpg_verdict_t verdict, const int *fds,
                          int fd_count) {
    mcpg_greeting_t g = {.hello = *hello, .verdict = (uint32_t)verdict, .pid = (uint64_t)getpid()};
    g.pid_namespace = pid_namespace();
    g.start_time = mcpg__proc_start_time(getpid());
    struct iovec iov = {&g, sizeof(g)};
    union {
        char buf[CMSG_SPACE(sizeof(int) * MCPG_HS_FDS)];
        struct cmsghdr align;
    } control;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (fd_count > 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)fd_count);
    }
    /* An empty socket takes these few bytes whole, or the peer is gone. */
    return sendmsg(hs->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(g);
}

static void fds_take(mcpg_hs_t *hs, struct msghdr *msg) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            int place = hs->fds[0] < 0 ? 0 : hs->fds[1] < 0 ? 1 : -1;
            if (place < 0)
                close(fd);
            else
                hs->fds[place] = fd;
        }
    }
}

/* 1: whole, 0: more to come, -1: over. */
static int greeting_read(mcpg_hs_t *hs) {
    while (hs->in_len < sizeof(hs->in)) {
        struct iovec iov = {hs->in.bytes + hs->in_len, sizeof(hs->in) - hs->in_len};
        union {
            char buf[CMSG_SPACE(sizeof(int) * MCPG_HS_FDS)];
            struct cmsghdr align;
        } control;
        struct msghdr msg = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)};
        ssize_t n = recvmsg(hs->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        fds_take(hs, &msg);
        hs->in_len += (uint32_t)n;
        if (hs->in_len >= 4 && hs->in.greeting.hello.magic != MCPG_HELLO_MAGIC) return -1;
        /* Another version's greeting may have another length: judge it as soon as its number is there. */
        if (hs->in_len >= 8 && hs->in.greeting.hello.version != MCPG_DATA_VERSION) return 1;
    }
    return 1;
}

static void log_version(mcpg_hs_t *hs) {
    mcpg__log(hs->t->log, MCPG_LOG_WARN,
              "link refused: the peer speaks data version %u, this process %u; run the same release on all ranks",
              hs->in.greeting.hello.version, MCPG_DATA_VERSION);
}

/* The peer's pid as this process may use it: the kernel's word, or its own when both see the same processes. */
static int64_t peer_pid(const mcpg_hs_t *hs) {
    const mcpg_greeting_t *g = &hs->in.greeting;
    if (hs->kernel_pid > 0) return hs->kernel_pid;
    if (g->pid == 0 || g->pid > INT32_MAX || g->pid_namespace == 0 || g->pid_namespace != pid_namespace()) return 0;
    return (int64_t)g->pid;
}

static void hs_established(mcpg_hs_t *hs, mcpg_stream_t *stream) {
    mcpg_transport_t *t = hs->t;
    mcpg_hello_t peer = hs->in.greeting.hello;
    int64_t pid = peer_pid(hs);
    stream->pid_start = hs->in.greeting.start_time;
    hs_free(hs);
    t->events.established(t->events.user, stream, &peer, pid);
}

/* The acceptor's hello mirrors the connector's. */
static mcpg_hello_t answer_to(const mcpg_hello_t *h) {
    mcpg_hello_t a = {
        .magic = MCPG_HELLO_MAGIC, .version = MCPG_DATA_VERSION, .rank_from = h->rank_to, .rank_to = h->rank_from};
    a.inc_from_term = h->inc_to_term;
    a.inc_from_counter = h->inc_to_counter;
    a.inc_to_term = h->inc_from_term;
    a.inc_to_counter = h->inc_from_counter;
    return a;
}

static void hs_accept(mcpg_hs_t *hs) {
    mcpg_transport_t *t = hs->t;
    mcpg_hello_t answer = answer_to(&hs->in.greeting.hello);
    int fds[MCPG_HS_FDS];
    int count = t->hs_ops->fds_to_send(t, hs, fds);
    if (!greeting_send(hs, &answer, MCPG_VERDICT_OK, fds, count)) {
        hs_free(hs);
        return;
    }
    mcpg_stream_t *stream = t->hs_ops->make(t, hs);
    if (stream != NULL)
        hs_established(hs, stream);
    else
        hs_free(hs);
}

/* A newer hello of the same rank replaces a parked one. */
static void drop_parked_twin(mcpg_transport_t *t, const mcpg_hs_t *of) {
    for (mcpg_hs_t *hs = t->hs_head, *next; hs != NULL; hs = next) {
        next = hs->next;
        if (hs != of && !hs->outgoing && hs->state == MCPG_HS_PARKED &&
            hs->in.greeting.hello.rank_from == of->in.greeting.hello.rank_from) {
            hs_free(hs);
            t->twin_dropped = true;
            return;
        }
    }
}

static void incoming_whole(mcpg_hs_t *hs, uint64_t now_us) {
    mcpg_transport_t *t = hs->t;
    mcpg_hello_t answer = answer_to(&hs->in.greeting.hello);
    if (hs->in.greeting.hello.version != MCPG_DATA_VERSION) {
        log_version(hs);
        (void)greeting_send(hs, &answer, MCPG_VERDICT_VERSION, NULL, 0);
        hs_free(hs);
        return;
    }
    if (t->events.may_accept(t->events.user, &hs->in.greeting.hello)) {
        hs_accept(hs);
        return;
    }
    drop_parked_twin(t, hs);
    if (t->parked >= MCPG_HS_PARKED_MAX) {
        (void)greeting_send(hs, &answer, MCPG_VERDICT_LATER, NULL, 0);
        hs_free(hs);
        return;
    }
    t->strangers--;
    t->parked++;
    hs->state = MCPG_HS_PARKED;
    hs->until_us = now_us + MCPG_HS_PARK_US;
}

static void parked_step(mcpg_hs_t *hs, uint64_t now_us) {
    mcpg_transport_t *t = hs->t;
    if (hs->ready) { /* it has nothing to say now: anything readable is its end or a mistake */
        hs->ready = false;
        uint8_t byte;
        ssize_t n = recv(hs->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
        if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            hs_free(hs);
            return;
        }
    }
    if (t->events.may_accept(t->events.user, &hs->in.greeting.hello)) {
        hs_accept(hs);
    } else if (now_us >= hs->until_us) {
        mcpg_hello_t answer = answer_to(&hs->in.greeting.hello);
        (void)greeting_send(hs, &answer, MCPG_VERDICT_LATER, NULL, 0);
        hs_free(hs);
    }
}

static void connected_step(mcpg_hs_t *hs) {
    mcpg_transport_t *t = hs->t;
    int err = 0;
    socklen_t len = sizeof(err);
    if (getsockopt(hs->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0) {
        hs_fail(hs, MCPG_CONNECT_BROKEN, strerror(err));
        return;
    }
    if (!t->hs_ops->peer_allowed(t, hs)) {
        hs_fail(hs, MCPG_CONNECT_BROKEN, "the listener belongs to another user");
        return;
    }
    int fds[MCPG_HS_FDS];
    int count = t->hs_ops->fds_to_send(t, hs, fds);
    if (!greeting_send(hs, &hs->sent, MCPG_VERDICT_NONE, fds, count)) {
        hs_fail(hs, MCPG_CONNECT_BROKEN, "the greeting could not be sent");
        return;
    }
    hs->state = MCPG_HS_READING;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &hs->poll};
    epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, hs->fd, &ev);
}

static void outgoing_whole(mcpg_hs_t *hs) {
    mcpg_transport_t *t = hs->t;
    const mcpg_hello_t *got = &hs->in.greeting.hello;
    if (got->version != MCPG_DATA_VERSION) {
        log_version(hs);
        hs_fail(hs, MCPG_CONNECT_VERSION, "data versions differ");
        return;
    }
    if (hs->in.greeting.verdict == MCPG_VERDICT_VERSION) {
        hs_fail(hs, MCPG_CONNECT_VERSION, "the peer refused our data version");
        return;
    }
    mcpg_hello_t expected = answer_to(&hs->sent);
    bool mirror = memcmp(&expected, got, offsetof(mcpg_hello_t, key_proof)) == 0;
    if (hs->in.greeting.verdict == MCPG_VERDICT_LATER || (hs->in.greeting.verdict == MCPG_VERDICT_OK && !mirror)) {
        hs_fail(hs, MCPG_CONNECT_LATER, mirror ? "not expected yet" : "another process answered");
        return;
    }
    mcpg_stream_t *stream = hs->in.greeting.verdict == MCPG_VERDICT_OK ? t->hs_ops->make(t, hs) : NULL;
    if (stream != NULL)
        hs_established(hs, stream);
    else
        hs_fail(hs, MCPG_CONNECT_BROKEN, "the answer cannot be used");
}

static void hs_step(mcpg_hs_t *hs, uint64_t now_us) {
    if (hs->state == MCPG_HS_PARKED) {
        parked_step(hs, now_us);
        return;
    }
    if (hs->ready && hs->state == MCPG_HS_CONNECTING) {
        hs->ready = false;
        connected_step(hs);
        return;
    }
    if (hs->ready) {
        hs->ready = false;
        int whole = greeting_read(hs);
        if (whole < 0) {
            if (!hs->outgoing) mcpg__log(hs->t->log, MCPG_LOG_DEBUG, "connection without a valid hello closed");
            hs_fail(hs, MCPG_CONNECT_LATER, "the peer closed the connection");
            return;
        }
        if (whole > 0 && hs->outgoing)
            outgoing_whole(hs);
        else if (whole > 0)
            incoming_whole(hs, now_us);
        if (whole > 0) return;
    }
    if (now_us >= hs->until_us) hs_fail(hs, MCPG_CONNECT_BROKEN, "no answer in time");
}

static void drop_oldest_stranger(mcpg_transport_t *t) {
    mcpg_hs_t *oldest = NULL;
    for (mcpg_hs_t *hs = t->hs_head; hs != NULL; hs = hs->next)
        if (!hs->outgoing && hs->state == MCPG_HS_READING && (oldest == NULL || hs->until_us < oldest->until_us))
            oldest = hs;
    if (oldest != NULL) hs_free(oldest);
}

static void accept_all(mcpg_transport_t *t) {
    for (uint32_t i = 0; i < MCPG_HS_STRANGERS_MAX; i++) {
        int fd = accept4(t->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Out of descriptors: the backlog waits; level-triggered events would only burn the CPU until one is free.
             */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) listen_interest(t, false);
            t->accept_ready = false;
            return;
        }
        if (t->strangers >= MCPG_HS_STRANGERS_MAX) drop_oldest_stranger(t);
        mcpg_hs_t *hs = hs_new(t, fd, false);
        if (hs == NULL) {
            close(fd);
            continue;
        }
        bool added = mcpg__socket_add(t->epoll_fd, fd, EPOLLIN, &hs->poll) == 0;
        if (!added || !t->hs_ops->peer_allowed(t, hs)) hs_free(hs);
    }
}

uint64_t mcpg__socket_tick(mcpg_transport_t *t, uint64_t now_us) {
    if (t->accept_off) {
        listen_interest(t, true);
        t->accept_ready = true;
    }
    if (t->accept_ready) accept_all(t);
    for (mcpg_hs_t *hs = t->hs_head, *next; hs != NULL; hs = next) {
        next = hs->next;
        /* drop_parked_twin may free any other parked one, also the next: then start over next time. */
        t->twin_dropped = false;
        hs_step(hs, now_us);
        if (t->twin_dropped && next != NULL) return now_us;
    }
    uint64_t at = t->accept_off ? now_us + 100000u : UINT64_MAX;
    for (const mcpg_hs_t *hs = t->hs_head; hs != NULL; hs = hs->next) {
        if (hs->ready) return now_us;
        if (hs->until_us < at) at = hs->until_us;
    }
    return at;
}

mcpg_status_t mcpg__socket_connect(mcpg_transport_t *t, int fd, const mcpg_hello_t *hello, void *extra) {
    mcpg_hs_t *hs = hs_new(t, fd, true);
    if (hs == NULL) {
        mcpg_hs_t loose = {.extra = extra, .t = t};
        if (extra != NULL) t->hs_ops->extra_free(&loose);
        close(fd);
        return MCPG_NO_MEMORY;
    }
    hs->sent = *hello;
    hs->extra = extra;
    if (mcpg__socket_add(t->epoll_fd, fd, EPOLLOUT, &hs->poll) == 0) return MCPG_OK;
    hs_free(hs);
    return MCPG_SYSTEM;
}

mcpg_status_t mcpg__socket_transport_init(mcpg_transport_t *t, int epoll_fd, int listen_fd,
                                          const mcpg_transport_events_t *events, const mcpg_log_t *log) {
    t->epoll_fd = epoll_fd;
    t->events = *events;
    t->log = log;
    t->listen_fd = listen_fd;
    t->listen_poll.func = accept_noted;
    if (mcpg__socket_add(epoll_fd, listen_fd, EPOLLIN, &t->listen_poll) == 0) return MCPG_OK;
    mcpg__socket_close(epoll_fd, listen_fd);
    t->listen_fd = -1;
    return MCPG_SYSTEM;
}

void mcpg__socket_transport_end(mcpg_transport_t *t) {
    for (mcpg_hs_t *hs = t->hs_head, *next; hs != NULL; hs = next) {
        next = hs->next;
        hs_free(hs);
    }
    mcpg__socket_close(t->epoll_fd, t->listen_fd);
    t->listen_fd = -1;
}
