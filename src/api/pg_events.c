/* pg_events.c: the callback thread: completion callbacks and events, the only library thread that runs user code.
 *
 * Completions are never dropped (they are linked through their works); events wait in a bounded ring whose oldest entry
 * gives way.
 */
#include <stdlib.h>
#include <string.h>

#include "api/pg_internal.h"

static mcpg_group_t *group_of(mcpg_context_t *context, mcpg_gid_t gid) {
    pthread_mutex_lock(&context->groups_mu);
    mcpg_group_t *g = context->groups;
    while (g != NULL && g->gid.v != gid.v) g = g->next;
    pthread_mutex_unlock(&context->groups_mu);
    return g;
}

static void deliver_event(mcpg_context_t *context, const mcpg_agent_notify_t *n, mcpg_event_func_t func, void *user) {
    mcpg_event_t ev;
    memset(&ev, 0, sizeof(ev));
    ev.kind = n->kind;
    ev.global_rank = n->rank.v;
    ev.state = (mcpg_rank_state_t)n->state;
    ev.epoch = n->view.epoch;
    if (n->kind == MCPG_EVENT_VIEW) {
        ev.group = group_of(context, n->gid); /* stays valid: its destroy waits for this callback */
        if (ev.group == NULL) return;
    }
    func(user, &ev);
}

static void run_one(mcpg_context_t *context) { /* mu held */
    mcpg_events_t *e = &context->events;
    mcpg_work_t *work = e->done_head;
    mcpg_queued_event_t queued = {0};
    mcpg_event_func_t func = e->func;
    void *user = e->user;
    if (work != NULL) {
        e->done_head = work->done_next;
        if (e->done_head == NULL) e->done_tail = NULL;
    } else {
        queued = e->ring[e->ring_at];
        e->ring_at = (e->ring_at + 1) % MCPG_EVENT_QUEUE_CAP;
        e->ring_count--;
    }
    e->running = true;
    pthread_mutex_unlock(&e->mu);
    if (work != NULL) {
        work->func(work->user, work);
        mcpg__work_unref(work);
    } else if (func != NULL) {
        deliver_event(context, &queued.notify, func, user);
    }
    pthread_mutex_lock(&e->mu);
    e->running = false;
    pthread_cond_broadcast(&e->idle);
}

static void *callback_main(void *arg) {
    mcpg_context_t *context = arg;
    mcpg_events_t *e = &context->events;
    (void)pthread_setname_np(pthread_self(), "mcpg-callback");
    pthread_mutex_lock(&e->mu);
    for (;;) {
        if (e->done_head != NULL || e->ring_count > 0) {
            run_one(context);
        } else if (e->stop) {
            break;
        } else {
            (void)pthread_cond_wait(&e->wake, &e->mu);
        }
    }
    e->over = true;
    pthread_mutex_unlock(&e->mu);
    return NULL;
}

mcpg_status_t mcpg__events_start(mcpg_context_t *context) {
    mcpg_events_t *e = &context->events;
    e->ring = calloc(MCPG_EVENT_QUEUE_CAP, sizeof(*e->ring));
    if (e->ring == NULL) return MCPG_NO_MEMORY;
    if (pthread_create(&e->thread, NULL, callback_main, context) != 0)
        return MCPG_SYSTEM; /* ring: freed with the context */
    e->started = true;
    return MCPG_OK;
}

void mcpg__events_push(mcpg_context_t *context, const mcpg_agent_notify_t *notify) {
    mcpg_events_t *e = &context->events;
    pthread_mutex_lock(&e->mu);
    if (e->func != NULL && !e->stop) {
        if (e->ring_count == MCPG_EVENT_QUEUE_CAP) {
            e->ring_at = (e->ring_at + 1) % MCPG_EVENT_QUEUE_CAP;
            e->ring_count--;
            e->dropped++;
        }
        e->ring[(e->ring_at + e->ring_count++) % MCPG_EVENT_QUEUE_CAP].notify = *notify;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->mu);
}

void mcpg__events_push_work(mcpg_context_t *context, mcpg_work_t *work) {
    mcpg_events_t *e = &context->events;
    work->done_next = NULL;
    pthread_mutex_lock(&e->mu);
    if (e->over) {
        pthread_mutex_unlock(&e->mu);
        mcpg__work_unref(work);
        return;
    }
    if (e->done_tail != NULL) {
        e->done_tail->done_next = work;
    } else {
        e->done_head = work;
    }
    e->done_tail = work;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mu);
}

bool mcpg__events_over(mcpg_context_t *context) {
    pthread_mutex_lock(&context->events.mu);
    bool over = context->events.over;
    pthread_mutex_unlock(&context->events.mu);
    return over;
}

void mcpg__events_barrier(mcpg_context_t *context) {
    mcpg_events_t *e = &context->events;
    pthread_mutex_lock(&e->mu);
    if (e->started && !pthread_equal(pthread_self(), e->thread))
        while (e->running) (void)pthread_cond_wait(&e->idle, &e->mu);
    pthread_mutex_unlock(&e->mu);
}

void mcpg__events_stop(mcpg_context_t *context) {
    mcpg_events_t *e = &context->events;
    if (!e->started) return;
    pthread_mutex_lock(&e->mu);
    e->stop = true;
    e->func = NULL;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
    e->started = false;
}

mcpg_status_t mcpg_context_on_event(mcpg_context_t *context, mcpg_event_func_t func, void *user) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (context == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_events_t *e = &context->events;
    pthread_mutex_lock(&e->mu);
    e->func = func;
    e->user = user;
    if (func == NULL) e->ring_count = 0;
    pthread_mutex_unlock(&e->mu);
    if (func == NULL) mcpg__events_barrier(context);
    return MCPG_OK;
}
