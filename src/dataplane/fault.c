/* fault.c: a transport around a transport, which cuts, corrupts, delays, refuses or swallows as a test says.
 *
 * Off unless a test turns it on by a call: no environment variable and no option reaches it.
 */
#include "dataplane/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/executor.h"
#include "dataplane/transport_priv.h"

#define PLANS_MAX     16u
#define CORRUPT_BYTES 4096u

typedef struct {
    mcpg_transport_events_t events;
    mcpg_transport_t *inner;
    const mcpg_transport_ops_t *inner_ops;
} fault_impl_t;

typedef struct {
    mcpg_stream_t base;
    mcpg_stream_t *inner;
    uint32_t own, peer;
    uint64_t written, ready_at_us;
} fault_stream_t;

static atomic_bool enabled;
static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;
static mcpg_fault_plan_t plans[PLANS_MAX];
static uint32_t plan_count;

void mcpg__fault_enable(bool on) {
    atomic_store(&enabled, on);
}

void mcpg__fault_clear(void) {
    pthread_mutex_lock(&plans_lock);
    plan_count = 0;
    pthread_mutex_unlock(&plans_lock);
}

void mcpg__fault_add(const mcpg_fault_plan_t *plan) {
    pthread_mutex_lock(&plans_lock);
    MCPG_ASSERT(plan_count < PLANS_MAX);
    plans[plan_count++] = *plan;
    pthread_mutex_unlock(&plans_lock);
}

static mcpg_fault_plan_t plan_for(uint32_t from, uint32_t to) {
    mcpg_fault_plan_t found = {.cut_after = MCPG_FAULT_NEVER, .corrupt_at = MCPG_FAULT_NEVER};
    pthread_mutex_lock(&plans_lock);
    for (uint32_t i = 0; i < plan_count; i++) {
        const mcpg_fault_plan_t *p = &plans[i];
        if ((p->from == from || p->from == MCPG_FAULT_ANY) && (p->to == to || p->to == MCPG_FAULT_ANY)) found = *p;
    }
    pthread_mutex_unlock(&plans_lock);
    return found;
}

/* ---- streams ---- */
static int64_t write_corrupt(fault_stream_t *s, const struct iovec *iov, uint64_t at) {
    uint8_t copy[CORRUPT_BYTES];
    size_t n = iov[0].iov_len < CORRUPT_BYTES ? iov[0].iov_len : CORRUPT_BYTES;
    memcpy(copy, iov[0].iov_base, n);
    if (at >= s->written && at - s->written < n) copy[at - s->written] ^= 0x10u;
    struct iovec one = {copy, n};
    return s->inner->ops->writev(s->inner, &one, 1);
}

static int64_t fault_writev(mcpg_stream_t *base, const struct iovec *iov, int iov_count) {
    fault_stream_t *s = (fault_stream_t *)base;
    mcpg_fault_plan_t p = plan_for(s->own, s->peer);
    uint64_t now = p.delay_us > 0 ? mcpg__now().us : 0;
    if (base->broken || s->written >= p.cut_after) {
        base->broken = true;
        return -1;
    }
    if (now < s->ready_at_us) return 0;
    struct iovec part = iov[0];
    int64_t n;
    if (p.swallow) {
        n = 0;
        for (int i = 0; i < iov_count; i++) n += (int64_t)iov[i].iov_len;
    } else if (p.corrupt_at != MCPG_FAULT_NEVER && s->written <= p.corrupt_at) {
        n = write_corrupt(s, iov, p.corrupt_at);
    } else if (p.cut_after != MCPG_FAULT_NEVER) {
        if (part.iov_len > p.cut_after - s->written) part.iov_len = (size_t)(p.cut_after - s->written);
        n = s->inner->ops->writev(s->inner, &part, 1);
    } else {
        n = s->inner->ops->writev(s->inner, iov, iov_count);
    }
    if (n > 0) s->written += (uint64_t)n;
    if (n > 0 && p.delay_us > 0) s->ready_at_us = now + p.delay_us;
    base->blocked = false; /* asked again each round: the inner stream's own hint is not visible here */
    return n;
}

static int64_t fault_read(mcpg_stream_t *base, void *buf, size_t cap) {
    fault_stream_t *s = (fault_stream_t *)base;
    s->inner->readable = false;
    if (base->broken) return -1;
    return s->inner->ops->read(s->inner, buf, cap);
}

static bool fault_arm(mcpg_stream_t *base, bool want_write) {
    fault_stream_t *s = (fault_stream_t *)base;
    bool awake = s->inner->ops->arm(s->inner, want_write);
    return awake || base->broken || s->inner->readable || (want_write && !s->inner->blocked && s->ready_at_us > 0);
}

static void fault_disarm(mcpg_stream_t *base) {
    fault_stream_t *s = (fault_stream_t *)base;
    s->inner->ops->disarm(s->inner);
}

static void fault_close(mcpg_stream_t *base) {
    fault_stream_t *s = (fault_stream_t *)base;
    s->inner->ops->close(s->inner);
    free(s);
}

/* ---- transport ---- */
static const mcpg_transport_ops_t *wrapped(const mcpg_transport_ops_t *inner);

static bool fault_may_accept(void *user, const mcpg_hello_t *hello) {
    mcpg_transport_t *t = user;
    fault_impl_t *impl = t->impl;
    return impl->events.may_accept(impl->events.user, hello);
}

static void fault_established(void *user, mcpg_stream_t *inner, const mcpg_hello_t *peer, int64_t pid) {
    mcpg_transport_t *t = user;
    fault_impl_t *impl = t->impl;
    fault_stream_t *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        inner->ops->close(inner);
        return;
    }
    s->base.ops = t->ops;
    s->base.polled = true;
    s->base.pid_start = inner->pid_start;
    s->inner = inner;
    s->own = peer->rank_to;
    s->peer = peer->rank_from;
    impl->events.established(impl->events.user, &s->base, peer, pid);
}

static void fault_connect_failed(void *user, const mcpg_hello_t *sent, mcpg_connect_fail_t how, const char *why) {
    mcpg_transport_t *t = user;
    fault_impl_t *impl = t->impl;
    impl->events.connect_failed(impl->events.user, sent, how, why);
}

static mcpg_status_t create_around(const mcpg_transport_ops_t *inner, int epoll_fd, const char *host_ip,
                                   const mcpg_transport_events_t *events, const mcpg_log_t *log,
                                   mcpg_transport_t **out) {
    mcpg_transport_t *t = calloc(1, sizeof(*t));
    fault_impl_t *impl = calloc(1, sizeof(*impl));
    mcpg_status_t status = MCPG_NO_MEMORY;
    if (t == NULL || impl == NULL) goto err_free;
    t->ops = wrapped(inner);
    t->impl = impl;
    impl->events = *events;
    impl->inner_ops = inner;
    mcpg_transport_events_t mine = {.user = t,
                                    .may_accept = fault_may_accept,
                                    .established = fault_established,
                                    .connect_failed = fault_connect_failed};
    status = inner->create(epoll_fd, host_ip, &mine, log, &impl->inner);
    if (status != MCPG_OK) goto err_free;
    *out = t;
    return MCPG_OK;
err_free:
    free(impl);
    free(t);
    return status;
}

static mcpg_status_t shm_around(int epoll_fd, const char *ip, const mcpg_transport_events_t *ev, const mcpg_log_t *log,
                                mcpg_transport_t **out) {
    return create_around(mcpg__transport_shm(), epoll_fd, ip, ev, log, out);
}

static mcpg_status_t tcp_around(int epoll_fd, const char *ip, const mcpg_transport_events_t *ev, const mcpg_log_t *log,
                                mcpg_transport_t **out) {
    return create_around(mcpg__transport_tcp(), epoll_fd, ip, ev, log, out);
}

static size_t fault_endpoint(const mcpg_transport_t *t, uint8_t *buf, size_t cap) {
    const fault_impl_t *impl = t->impl;
    return impl->inner_ops->endpoint(impl->inner, buf, cap);
}

static mcpg_status_t fault_open(mcpg_transport_t *t, const mcpg_hello_t *hello, const uint8_t *endpoint, size_t len) {
    fault_impl_t *impl = t->impl;
    if (plan_for(hello->rank_from, hello->rank_to).refuse) return MCPG_LINK_DOWN;
    return impl->inner_ops->open(impl->inner, hello, endpoint, len);
}

static void fault_destroy(mcpg_transport_t *t) {
    fault_impl_t *impl = t->impl;
    impl->inner_ops->destroy(impl->inner);
    free(impl);
    free(t);
}

static uint64_t fault_tick(mcpg_transport_t *t, uint64_t now_us) {
    fault_impl_t *impl = t->impl;
    return impl->inner_ops->tick(impl->inner, now_us);
}

#define WRAPPED(create_func, transport_name, local)                                                                    \
    {                                                                                                                  \
        .name = transport_name, .same_host_only = local, .create = create_func, .endpoint = fault_endpoint,            \
        .open = fault_open, .destroy = fault_destroy, .tick = fault_tick, .writev = fault_writev, .read = fault_read,  \
        .arm = fault_arm, .disarm = fault_disarm, .close = fault_close                                                 \
    }

static const mcpg_transport_ops_t *wrapped(const mcpg_transport_ops_t *inner) {
    static const mcpg_transport_ops_t shm = WRAPPED(shm_around, "shm", true);
    static const mcpg_transport_ops_t tcp = WRAPPED(tcp_around, "tcp", false);
    return inner == mcpg__transport_shm() ? &shm : &tcp;
}

const mcpg_transport_ops_t *mcpg__fault_wrap(const mcpg_transport_ops_t *ops) {
    return atomic_load(&enabled) ? wrapped(ops) : ops;
}
