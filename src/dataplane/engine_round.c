/* engine_round.c: one turn of the engine: streams, links, timers, transfers' results, operations. Bounded work, lock
 * held throughout.
 *
 * The only place where streams are closed and done() is called. Never blocks, never calls user code.
 */
#include <sys/epoll.h>

#include "common/executor.h"
#include "dataplane/link_priv.h"

void mcpg__engine_timer(mcpg_engine_t *e, uint64_t at_us) {
    if (at_us < e->timer_us) e->timer_us = at_us;
}

void mcpg__engine_dispatch(mcpg_engine_t *e, const struct epoll_event *events, int count) {
    for (int i = 0; i < count; i++) {
        mcpg_poll_t *p = events[i].data.ptr;
        p->func(p, events[i].events);
        if (p != &e->kick_poll) e->tick_due = true;
    }
}

static bool streams_turn(mcpg_engine_t *e) {
    bool moved = false;
    uint64_t budget = MCPG_ROUND_BYTES;
    if (e->up_count > 0) e->up_start = (e->up_start + 1u) % e->up_count;
    for (uint32_t i = 0; i < e->up_count && budget > 0; i++) {
        mcpg_link_t *l = e->up[(e->up_start + i) % e->up_count];
        uint64_t slice = budget < MCPG_SLICE_BYTES ? budget : MCPG_SLICE_BYTES;
        uint64_t left = slice;
        if (!l->hung_up && !l->failed && (l->stream->polled || l->stream->readable)) moved |= mcpg__rx_pump(l, &left);
        if (mcpg__tx_pending(l) || l->rx.credit_owed >= MCPG_CREDIT_RETURN) moved |= mcpg__tx_pump(l, &left);
        budget -= slice - left;
        if (l->failed || (l->hung_up && l->hangup_until_us == 0)) e->service_due = true;
    }
    return moved;
}

static bool links_turn(mcpg_engine_t *e) {
    if (!e->service_due && e->now_us < e->timer_us) return false;
    bool moved = false;
    e->service_due = false;
    e->timer_us = UINT64_MAX;
    for (uint32_t i = 0; i < e->all_count; i++) moved |= mcpg__link_service(e->all[i]);
    mcpg__obs_retry(e);
    return moved;
}

static void transports_turn(mcpg_engine_t *e) {
    bool due = e->tick_due;
    e->tick_due = false;
    for (uint32_t i = 0; i < e->transport_count; i++)
        if (due || e->now_us >= e->transports[i].tick_us)
            e->transports[i].tick_us = e->transports[i].ops->tick(e->transports[i].t, e->now_us);
}

bool mcpg__engine_round(mcpg_engine_t *e) {
    /* Event streams, deaths and accepts show up in epoll only; ring-only engines ask the kernel seldom while they spin.
     * Never while another thread is inside epoll_wait: it was woken by an event that must stay there until it is out.
     */
    if (!e->in_epoll && (e->event_streams > 0 || (++e->rounds & 63u) == 0)) {
        struct epoll_event events[MCPG_EVENTS_MAX];
        mcpg__engine_dispatch(e, events, epoll_wait(e->epoll_fd, events, MCPG_EVENTS_MAX, 0));
    }
    e->stale |= e->in_epoll; /* this round may close what the other thread's events name */
    e->now_us = mcpg__now().us;
    bool kicked = atomic_exchange(&e->kicked, false);
    bool moved = streams_turn(e);
    transports_turn(e);
    moved |= links_turn(e);
    moved |= mcpg__link_deliver(e);
    if (moved || kicked || e->now_us >= e->ops_deadline_us) {
        if (e->hooks.progress != NULL) moved |= e->hooks.progress(e->hooks.user, e->now_us);
        e->ops_deadline_us = e->hooks.next_deadline != NULL ? e->hooks.next_deadline(e->hooks.user) : UINT64_MAX;
        e->unlocked_due = true;
        if (mcpg__link_deliver(e)) { /* operations that got ready have their turn in the next round */
            atomic_store(&e->kicked, true);
            moved = true;
        }
    }
    return moved || e->service_due || e->tick_due;
}

bool mcpg__engine_arm(mcpg_engine_t *e) {
    bool awake = false;
    for (uint32_t i = 0; i < e->up_count; i++) {
        mcpg_link_t *l = e->up[i];
        if (l->hung_up || l->failed) continue;
        awake |= l->stream->ops->arm(l->stream, mcpg__tx_pending(l));
    }
    e->armed = true;
    return awake;
}

void mcpg__engine_disarm(mcpg_engine_t *e) {
    if (!e->armed) return;
    e->armed = false;
    for (uint32_t i = 0; i < e->up_count; i++) e->up[i]->stream->ops->disarm(e->up[i]->stream);
}

uint64_t mcpg__engine_next_wake(mcpg_engine_t *e) {
    uint64_t at = e->timer_us;
    e->ops_deadline_us = e->hooks.next_deadline != NULL ? e->hooks.next_deadline(e->hooks.user) : UINT64_MAX;
    if (e->ops_deadline_us < at) at = e->ops_deadline_us;
    for (uint32_t i = 0; i < e->transport_count; i++)
        if (e->transports[i].tick_us < at) at = e->transports[i].tick_us;
    return at;
}
