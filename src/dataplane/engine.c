/* engine.c: the lock, the drivers and sleep.
 *
 * One thread drives at a time. A waiting caller takes over from the progress thread, which then parks; when the last
 * waiting caller leaves, the progress thread is signalled if something is outstanding. If nothing is, it comes back by
 * itself within PARK_US, so that a loop of small synchronous operations pays for no thread switch. Only one thread is
 * ever inside epoll_wait. Never calls user code with the lock held.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/executor.h"
#include "common/fork.h"
#include "dataplane/link_priv.h"

#define PARK_US      500u
#define SPIN_MAX_US  50u
#define UNLOCKED_MAX 64u /* rounds of unlocked work in a row before driving goes on */

void mcpg__engine_lock(mcpg_engine_t *e) {
    if (pthread_mutex_trylock(&e->lock) == 0) return;
    atomic_fetch_add(&e->lock_wanted, 1u);
    pthread_mutex_lock(&e->lock);
    atomic_fetch_sub(&e->lock_wanted, 1u);
}

void mcpg__engine_unlock(mcpg_engine_t *e) {
    pthread_mutex_unlock(&e->lock);
}

static void wake_epoll(mcpg_engine_t *e) {
    uint64_t one = 1;
    if (write(e->kick_fd, &one, sizeof(one)) < 0) return; /* the counter is full: it is awake already */
}

void mcpg__engine_kick(mcpg_engine_t *e) {
    if (!atomic_exchange(&e->kicked, true) && atomic_load(&e->sleeping)) wake_epoll(e);
}

static void kick_seen(mcpg_poll_t *self, uint32_t events) {
    mcpg_engine_t *e = (mcpg_engine_t *)((char *)self - offsetof(mcpg_engine_t, kick_poll));
    uint64_t count;
    (void)events;
    if (read(e->kick_fd, &count, sizeof(count)) < 0) return;
}

static void cond_wait_until(pthread_cond_t *cond, mcpg_engine_t *e, uint64_t at_us) {
    if (at_us == UINT64_MAX) {
        pthread_cond_wait(cond, &e->lock);
        return;
    }
    struct timespec ts = {.tv_sec = (time_t)(at_us / 1000000u), .tv_nsec = (long)(at_us % 1000000u) * 1000L};
    pthread_cond_timedwait(cond, &e->lock, &ts);
}

/* Between rounds: others get the lock, completion callbacks run. */
static void breathe(mcpg_engine_t *e) {
    bool unlocked = e->unlocked_due && e->hooks.unlocked != NULL;
    bool wanted = e->woken || atomic_load_explicit(&e->lock_wanted, memory_order_relaxed) != 0;
    e->unlocked_due = e->woken = false;
    if (!unlocked && !wanted) return;
    mcpg__engine_unlock(e);
    for (uint32_t i = 0; unlocked && i < UNLOCKED_MAX && e->hooks.unlocked(e->hooks.user); i++) {
    }
    if (wanted) sched_yield(); /* bounded: once a round, and the rounds end in epoll_wait when nothing moves */
    mcpg__engine_lock(e);
}

/* Sleeps until an event, a kick or at_us; handles the events. Returns at once when something is there already. */
static void sleep_in_epoll(mcpg_engine_t *e, uint64_t at_us) {
    if (e->in_epoll) { /* the other driver is on its way out: it was kicked */
        cond_wait_until(&e->epoll_cond, e, at_us);
        return;
    }
    uint64_t wake = mcpg__engine_next_wake(e);
    if (wake < at_us) at_us = wake;
    bool something = mcpg__engine_arm(e);
    atomic_store(&e->sleeping, true);
    something |= atomic_load(&e->kicked);
    uint64_t now = mcpg__now().us;
    int timeout_ms = -1;
    if (something || at_us <= now)
        timeout_ms = 0;
    else if (at_us != UINT64_MAX)
        timeout_ms = at_us - now > 3600000000u ? 3600000 : (int)((at_us - now + 999u) / 1000u);
    struct epoll_event events[MCPG_EVENTS_MAX];
    e->in_epoll = true;
    e->stale = false;
    mcpg__engine_unlock(e);
    int n = epoll_wait(e->epoll_fd, events, MCPG_EVENTS_MAX, timeout_ms);
    mcpg__engine_lock(e);
    e->in_epoll = false;
    if (e->stale) { /* level-triggered: what is still true is said again */
        n = 0;
        e->tick_due = true;
    }
    atomic_store(&e->sleeping, false);
    mcpg__engine_disarm(e);
    mcpg__engine_dispatch(e, events, n);
    pthread_cond_broadcast(&e->epoll_cond);
}

static void wake_other_waiters(mcpg_engine_t *e) {
    if (e->waiters_asleep == 0) return;
    pthread_cond_broadcast(&e->waiter_cond);
    e->woken = true;
}

static void spin_adapt(mcpg_engine_t *e, uint64_t slept_us) {
    if (slept_us < SPIN_MAX_US)
        e->spin_us = e->spin_us + 5u < SPIN_MAX_US ? e->spin_us * 2u + 5u : SPIN_MAX_US;
    else
        e->spin_us /= 2u;
    if (e->spin_us > SPIN_MAX_US) e->spin_us = SPIN_MAX_US;
}

static void drive(mcpg_engine_t *e, bool (*done)(void *), void *arg, uint64_t deadline_us) {
    uint64_t idle_since = 0;
    while (!e->stopping) {
        bool moved = mcpg__engine_round(e);
        if (moved) wake_other_waiters(e);
        if (done(arg)) return;
        breathe(e);
        if (e->now_us >= deadline_us) return;
        if (moved) {
            idle_since = 0;
            continue;
        }
        if (idle_since == 0) idle_since = e->now_us;
        /* bounded: spins at most spin_us <= SPIN_MAX_US without anything moving, then sleeps */
        if (e->now_us - idle_since < e->spin_us) continue;
        uint64_t before = mcpg__now().us;
        sleep_in_epoll(e, deadline_us);
        spin_adapt(e, mcpg__now().us - before);
        idle_since = 0;
    }
}

bool mcpg__engine_wait(mcpg_engine_t *e, bool (*done)(void *arg), void *arg, uint64_t deadline_us) {
    e->waiters++;
    while (!done(arg) && !e->stopping && mcpg__now().us < deadline_us) {
        if (e->driver == MCPG_DRIVER_CALLER) {
            e->waiters_asleep++;
            cond_wait_until(&e->waiter_cond, e, deadline_us);
            e->waiters_asleep--;
            continue;
        }
        e->driver = MCPG_DRIVER_CALLER;
        e->drive_gen++;
        if (e->in_epoll) wake_epoll(e); /* the progress thread makes room */
        drive(e, done, arg, deadline_us);
        e->driver = MCPG_DRIVER_NONE;
        break;
    }
    if (e->unlocked_due) breathe(e);
    bool result = done(arg);
    e->waiters--;
    if (e->driver != MCPG_DRIVER_CALLER) {
        if (e->waiters_asleep > 0)
            pthread_cond_broadcast(&e->waiter_cond);
        else if (e->prog == MCPG_PROG_PARKED_LONG || (e->prog == MCPG_PROG_PARKED_SHORT && e->lx_count > 0))
            pthread_cond_signal(&e->prog_cond);
    }
    return result;
}

/* True when the progress thread must not drive now; it has waited a little then. */
static bool park(mcpg_engine_t *e, uint64_t *seen_gen) {
    bool caller = e->driver == MCPG_DRIVER_CALLER || e->waiters > 0;
    if (!caller && (e->drive_gen == *seen_gen || e->lx_count > 0)) return false;
    bool long_one = caller && e->drive_gen == *seen_gen;
    *seen_gen = e->drive_gen;
    e->prog = long_one ? MCPG_PROG_PARKED_LONG : MCPG_PROG_PARKED_SHORT;
    cond_wait_until(&e->prog_cond, e, long_one ? UINT64_MAX : mcpg__now().us + PARK_US);
    e->prog = MCPG_PROG_RUNNING;
    return true;
}

static void *progress_main(void *arg) {
    mcpg_engine_t *e = arg;
    uint64_t seen_gen = 0;
    mcpg__engine_lock(e);
    while (!e->stopping) {
        if (park(e, &seen_gen)) continue;
        e->driver = MCPG_DRIVER_PROGRESS;
        bool moved = mcpg__engine_round(e);
        if (moved) wake_other_waiters(e);
        breathe(e);
        if (e->driver != MCPG_DRIVER_PROGRESS || moved || e->stopping) continue;
        sleep_in_epoll(e, UINT64_MAX);
    }
    mcpg__engine_unlock(e);
    return NULL;
}

/* ---- life ---- */
static mcpg_status_t transports_create(mcpg_engine_t *e, const mcpg_engine_config_t *config, char *error,
                                       size_t error_cap) {
    const char *list = config->transports != NULL ? config->transports : "shm,tcp";
    mcpg_transport_events_t events;
    mcpg__link_events(e, &events);
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, ",");
        const mcpg_transport_ops_t *ops = mcpg__transport_find(at, len);
        if (ops == NULL || e->transport_count == MCPG_TRANSPORTS_MAX) {
            snprintf(error, error_cap,
                     "transports \"%.64s\": \"%.*s\" is not a transport of this build; use a list of shm and tcp", list,
                     len < 32 ? (int)len : 32, at);
            return MCPG_INVALID_ARGUMENT;
        }
        uint32_t i = e->transport_count;
        const char *ip = config->host_ip != NULL ? config->host_ip : "127.0.0.1";
        mcpg_status_t status = ops->create(e->epoll_fd, ip, &events, &e->log, &e->transports[i].t);
        if (status != MCPG_OK) {
            int err = errno;
            snprintf(error, error_cap,
                     "transport %s cannot listen on %.64s: %s; set host_ip to an address of this host", ops->name, ip,
                     status == MCPG_INVALID_ARGUMENT ? "not an IP address" : strerror(err));
            return status;
        }
        e->transports[i].ops = ops;
        e->transports[i].tick_us = UINT64_MAX;
        e->transport_count++;
        at += len;
        if (*at == ',') at++;
    }
    if (e->transport_count > 0) return MCPG_OK;
    snprintf(error, error_cap, "transports is empty: name at least one of shm and tcp");
    return MCPG_INVALID_ARGUMENT;
}

static mcpg_status_t descriptors_open(mcpg_engine_t *e) {
    e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (e->epoll_fd < 0) return MCPG_SYSTEM;
    (void)mcpg__fork_close_register(e->epoll_fd);
    e->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->kick_fd < 0) return MCPG_SYSTEM;
    (void)mcpg__fork_close_register(e->kick_fd);
    e->kick_poll.func = kick_seen;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &e->kick_poll};
    return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, e->kick_fd, &ev) == 0 ? MCPG_OK : MCPG_SYSTEM;
}

static void close_registered(int fd) {
    if (fd < 0) return;
    mcpg__fork_close_unregister(fd);
    close(fd);
}

static void links_end(mcpg_engine_t *e) {
    for (uint32_t i = 0; i < e->all_count; i++) {
        mcpg_link_t *l = e->all[i];
        mcpg__tx_control(l, MCPG_FT_BYE, 0, NULL, 0);
        uint64_t budget = MCPG_SLICE_BYTES;
        if (l->stream != NULL) mcpg__tx_pump(l, &budget);
        mcpg__link_down(l, MCPG_LINK_ST_NONE, false);
        mcpg__lx_end_all(e, &l->waiting, MCPG_LX_LINK_LOST);
    }
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) mcpg__lx_end_all(e, &e->posted[i], MCPG_LX_LINK_LOST);
    mcpg__link_deliver(e);
}

void mcpg__engine_destroy(mcpg_engine_t *e) {
    if (e == NULL) return;
    mcpg__engine_lock(e);
    e->stopping = true;
    pthread_cond_broadcast(&e->prog_cond);
    pthread_cond_broadcast(&e->waiter_cond);
    atomic_store(&e->kicked, false);
    mcpg__engine_kick(e);
    mcpg__engine_unlock(e);
    if (e->thread_started) pthread_join(e->thread, NULL);
    mcpg__engine_lock(e);
    links_end(e);
    mcpg__engine_unlock(e);
    for (uint32_t i = 0; e->hooks.unlocked != NULL && i < UNLOCKED_MAX && e->hooks.unlocked(e->hooks.user); i++) {
    }
    mcpg__obs_clear(e);
    for (uint32_t i = 0; i < e->transport_count; i++) e->transports[i].ops->destroy(e->transports[i].t);
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++)
        MCPG_ASSERT(e->posted[i].head == NULL); /* done() must not post into a closing engine */
    mcpg__match_free(e);
    for (uint32_t i = 0; i < e->all_count; i++) mcpg__link_free(e->all[i]);
    close_registered(e->kick_fd);
    close_registered(e->epoll_fd);
    pthread_cond_destroy(&e->waiter_cond);
    pthread_cond_destroy(&e->prog_cond);
    pthread_cond_destroy(&e->epoll_cond);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void sync_init(mcpg_engine_t *e) {
    pthread_condattr_t attr;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->waiter_cond, &attr);
    pthread_cond_init(&e->prog_cond, &attr);
    pthread_cond_init(&e->epoll_cond, &attr);
    pthread_condattr_destroy(&attr);
}

mcpg_status_t mcpg__engine_create(const mcpg_engine_config_t *config, mcpg_engine_t **out, char *error,
                                  size_t error_cap) {
    mcpg_engine_t *e = calloc(1, sizeof(*e));
    if (e == NULL) return MCPG_NO_MEMORY;
    mcpg__fork_watch();
    sync_init(e);
    e->epoll_fd = e->kick_fd = -1;
    e->rank = config->rank;
    e->host_id = config->host_id;
    e->log = config->log;
    e->hooks = config->hooks;
    e->timer_us = e->ops_deadline_us = UINT64_MAX;
    e->now_us = mcpg__now().us;
    mcpg_status_t status = MCPG_NO_MEMORY;
    e->tombs = calloc(MCPG_TOMBS_MAX, sizeof(*e->tombs));
    if (e->tombs == NULL) goto err_destroy;
    status = descriptors_open(e);
    if (status != MCPG_OK) goto err_destroy;
    status = transports_create(e, config, error, error_cap);
    if (status != MCPG_OK) goto err_told;
    status = MCPG_SYSTEM;
    if (pthread_create(&e->thread, NULL, progress_main, e) != 0) goto err_destroy;
    e->thread_started = true;
    *out = e;
    return MCPG_OK;
err_destroy:
    snprintf(error, error_cap, "the data plane cannot start: %s", strerror(errno));
err_told:
    e->hooks = (mcpg_engine_hooks_t){0};
    mcpg__engine_destroy(e);
    return status;
}
