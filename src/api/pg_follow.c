/* pg_follow.c: one thread per context that keeps it at the highest coordinator: follows the record while contact is
 * lost, campaigns when nobody takes a lost coordinator's place, and stops a coordinator of this process that was
 * deposed.
 *
 * The thread calls key-value callbacks, which may hang: while it does, nobody waits for it at the end, and when it
 * comes back it touches nothing of the context any more. It never decides who is right: the record's compare-and-set
 * does.
 */
#include <inttypes.h>
#include <stdio.h>

#include "api/pg_election.h"

#define WATCH_LAST_US 1000000u

/* Around each use of the store. False: the context goes away, nothing but the watch itself may be touched. */
static bool ask(mcpg_watch_t *w, bool begin) {
    pthread_mutex_lock(&w->mu);
    bool goes_on = !w->stop;
    w->asking = begin && goes_on;
    pthread_mutex_unlock(&w->mu);
    return goes_on;
}

/* Copies: the context's own may be gone when the store answers. */
typedef struct {
    mcpg_record_line_t record;
    mcpg_credentials_t *credentials;
    mcpg_coord_host_t *hosted; /* a campaign that was won */
    mcpg_status_t status;
} finding_t;

static void finding_drop(const mcpg_search_t *s, finding_t *f) {
    if (f->hosted != NULL) mcpg__record_retract(&s->kv, &f->record);
    mcpg__coord_host_stop(f->hosted);
    mcpg__credentials_unref(f->credentials);
    f->credentials = NULL;
    f->hosted = NULL;
}

/* True: a higher coordinator is in the record, perhaps this process's own. */
static bool look(mcpg_search_t *s, bool campaigns, finding_t *f) {
    char error[MCPG_ERROR_CAP] = "";
    if (mcpg__record_read(&s->kv, 1u, &f->record, error, sizeof(error)) != MCPG_OK) return false;
    const mcpg_record_line_t *r = &f->record;
    if (r->present && !r->closing && r->term > s->above_term) {
        f->status =
            mcpg__security_find(s->security, &s->kv, r->term, r->address, &f->credentials, error, sizeof(error));
        return true;
    }
    bool won = false;
    const mcpg_record_line_t old = f->record;
    if (!campaigns || mcpg__campaign(s, &old, &won) != MCPG_OK || !won) return false;
    f->record = s->found;
    f->hosted = s->hosted;
    f->credentials = s->credentials;
    s->hosted = NULL;
    s->credentials = NULL;
    f->status = MCPG_OK;
    return true;
}

/* A coordinator of this process that a higher one has followed stops; what it still serves it would serve in vain. */
static void take_over(mcpg_context_t *context, finding_t *f) {
    char error[MCPG_ERROR_CAP] = "";
    if (f->status == MCPG_OK)
        f->status = mcpg__agent_host_move(context->agent, f->record.address, f->credentials, error, sizeof(error));
    mcpg__log(&context->log, MCPG_LOG_INFO, "coordinator_moved term %" PRIu64 " address %s status %s", f->record.term,
              f->record.address, mcpg_status_name(f->status));
    if (f->status != MCPG_OK && f->hosted == NULL) {
        mcpg__credentials_unref(f->credentials);
        return;
    }
    mcpg__record_use(context, &f->record, f->credentials);
    mcpg_coord_host_t *deposed = context->bootstrap.hosted;
    mcpg__bootstrap_host(context, f->hosted, &f->record);
    mcpg__coord_host_stop(deposed);
}

static void follow_once(mcpg_context_t *context, bool campaigns) {
    mcpg_watch_t *w = &context->watch;
    mcpg_search_t *s = mcpg__search_new(context, context->bootstrap.term, 0);
    finding_t f = {.status = MCPG_OK};
    if (s == NULL || !ask(w, true)) {
        if (s != NULL) mcpg__search_free(s);
        return;
    }
    bool found = look(s, campaigns, &f);
    bool goes_on = ask(w, false);
    if (found && goes_on) take_over(context, &f);
    if (found && !goes_on) finding_drop(s, &f);
    mcpg__search_free(s);
}

/* Nobody has taken the lost coordinator's place for so long. */
static uint64_t campaign_at(const mcpg_context_t *context) {
    return context->watch.lost_at_us + context->timers.failover_us + mcpg__election_turn_us(context->rank);
}

static void *watch_main(void *arg) {
    mcpg_context_t *context = arg;
    mcpg_watch_t *w = &context->watch;
    (void)pthread_setname_np(pthread_self(), "mcpg-watch");
    uint64_t pause = MCPG_POLL_US;
    pthread_mutex_lock(&w->mu);
    while (!w->stop) {
        bool lost = w->lost;
        bool hosts = context->bootstrap.hosted != NULL;
        if (!lost) pause = MCPG_POLL_US;
        if (!lost && !hosts) {
            (void)pthread_cond_wait(&w->wake, &w->mu);
            continue;
        }
        /* A process that hosts looks now and then even so: whoever was deposed need not have noticed. */
        bool campaigns = lost && context->may_take_over && !w->leaving && mcpg__now().us >= campaign_at(context);
        uint64_t until = mcpg__now().us + (lost ? pause : context->timers.failover_us);
        pthread_mutex_unlock(&w->mu);
        follow_once(context, campaigns);
        pthread_mutex_lock(&w->mu);
        while (!w->stop && w->lost == lost && mcpg__cond_wait_until(&w->wake, &w->mu, until)) {
        }
        if (lost) pause = pause * 2 < WATCH_LAST_US ? pause * 2 : WATCH_LAST_US;
        if (lost && pause > context->timers.failover_us / 4u) pause = context->timers.failover_us / 4u + 1000u;
    }
    w->ended = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mu);
    mcpg__context_unref(context);
    return NULL;
}

mcpg_status_t mcpg__follow_start(mcpg_context_t *context) {
    if (!context->bootstrap.from_record) return MCPG_OK;
    atomic_fetch_add(&context->refs, 1); /* the thread's */
    if (!mcpg__run_detached(watch_main, context)) {
        atomic_fetch_sub(&context->refs, 1);
        return MCPG_SYSTEM;
    }
    context->watch.started = true;
    return MCPG_OK;
}

void mcpg__follow_lost(mcpg_context_t *context, bool lost) {
    mcpg_watch_t *w = &context->watch;
    pthread_mutex_lock(&w->mu);
    if (lost && !w->lost) w->lost_at_us = mcpg__now().us;
    w->lost = lost;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mu);
}

void mcpg__follow_leaving(mcpg_context_t *context) {
    pthread_mutex_lock(&context->watch.mu);
    context->watch.leaving = true;
    pthread_mutex_unlock(&context->watch.mu);
}

void mcpg__follow_stop(mcpg_context_t *context) {
    mcpg_watch_t *w = &context->watch;
    if (!w->started) return;
    pthread_mutex_lock(&w->mu);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    uint64_t limit = mcpg__now().us + MCPG_KV_GRACE_US;
    while (!w->ended) {
        bool in_time = mcpg__cond_wait_until(&w->wake, &w->mu, limit);
        if (!in_time && w->asking) break; /* the store hangs: the thread ends when it comes back */
        if (!in_time) limit = mcpg__now().us + MCPG_KV_GRACE_US;
    }
    pthread_mutex_unlock(&w->mu);
    w->started = false;
}
