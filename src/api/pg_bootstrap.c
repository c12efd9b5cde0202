/* pg_bootstrap.c: finds the coordinator (configuration, environment, record, election), and follows its record when
 * contact is lost.
 *
 * Key-value callbacks may block, so they only ever run on a helper thread: never on the executor, the callback thread
 * or a data plane thread. A store that does not answer at all costs its caller a bounded time: the helper thread is
 * left behind, begins no other callback, and owns what it still touches. The record is one line of text, "mcpg1
 * open|closing TERM ADDRESS"; every change of it is a compare-and-set.
 *
 * Election: whoever may host and finds no open record starts a coordinator first, then publishes its record; who comes
 * second stops its own again and uses the winner's. Ranks wait a little, in the order of their numbers, so that the
 * lowest one usually wins and few start one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/pg_internal.h"

#define KEY_RECORD       "mooncake_pg/coordinator"
#define KEY_TERM         "mooncake_pg/term"
#define RECORD_CAP       (MCPG_ADDRESS_CAP + 64u)
#define POLL_US          50000u
#define GET_SLICE_MS     1000u
#define ELECTION_STEP_US 100000u /* per rank number */
#define ELECTION_LAST_US 2000000u
#define WATCH_LAST_US    1000000u
#define KV_GRACE_US      2000000u /* beyond its own limit, until a callback counts as stuck */

typedef struct {
    bool present, closing;
    uint64_t term;
    char address[MCPG_ADDRESS_CAP];
    char raw[RECORD_CAP + 1];
    size_t raw_len;
} record_t;

static void pause_us(uint64_t us) {
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000u), .tv_nsec = (long)(us % 1000000u) * 1000};
    (void)nanosleep(&ts, NULL);
}

/* False: not a record of ours. */
static bool parse(const char *raw, size_t len, record_t *out) {
    char state[8];
    memset(out, 0, sizeof(*out));
    if (len == 0 || len > RECORD_CAP) return false;
    memcpy(out->raw, raw, len);
    out->raw_len = len;
    if (sscanf(out->raw, "mcpg1 %7s %" SCNu64 " %255s", state, &out->term, out->address) != 3) return false;
    out->closing = strcmp(state, "closing") == 0;
    out->present = true;
    return out->closing || strcmp(state, "open") == 0;
}

static mcpg_status_t read_record(const mcpg_kv_t *kv, uint32_t timeout_ms, record_t *out, char *error,
                                 size_t error_cap) {
    char raw[RECORD_CAP];
    size_t len = 0;
    memset(out, 0, sizeof(*out));
    mcpg_status_t status = kv->get(kv->user, KEY_RECORD, raw, sizeof(raw), &len, timeout_ms);
    if (status == MCPG_TIMED_OUT || status == MCPG_NOT_FOUND) return MCPG_OK; /* absent */
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap,
                       "the key-value store did not answer a read of \"" KEY_RECORD "\" (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    if (!parse(raw, len < sizeof(raw) ? len : sizeof(raw), out)) {
        (void)snprintf(error, error_cap,
                       "the record \"" KEY_RECORD
                       "\" in the key-value store is not understood: another version wrote it, or the store is "
                       "shared with another program");
        return MCPG_VERSION_MISMATCH;
    }
    return MCPG_OK;
}

static void use_record(mcpg_context_t *context, const record_t *r) {
    pthread_mutex_lock(&context->groups_mu);
    (void)snprintf(context->bootstrap.address, sizeof(context->bootstrap.address), "%s", r->address);
    context->bootstrap.term = r->term;
    context->bootstrap.from_record = true;
    pthread_mutex_unlock(&context->groups_mu);
}

/* One search on its helper thread. Whoever of the two is last frees it. */
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done, abandoned; /* abandoned: nobody waits for it any more */
    mcpg_kv_t kv;
    mcpg_log_t log;
    mcpg_timers_t timers;
    uint32_t rank;
    bool may_host;
    char *event_log_dir;
    uint64_t above_term, deadline_us;
    mcpg_status_t status;
    record_t found;
    mcpg_coord_host_t *hosted;
    char error[MCPG_ERROR_CAP];
} search_t;

static bool is_abandoned(search_t *s) {
    pthread_mutex_lock(&s->mu);
    bool abandoned = s->abandoned;
    pthread_mutex_unlock(&s->mu);
    return abandoned;
}

static void search_free(search_t *s) {
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->mu);
    free(s->event_log_dir);
    free(s);
}

/* One candidacy. OK with *won_out false: somebody else was first; the loop reads the record again. */
static mcpg_status_t campaign(search_t *s, const record_t *old, bool *won_out) {
    char *error = s->error;
    size_t error_cap = sizeof(s->error);
    int64_t term = 0;
    mcpg_status_t status = s->kv.add(s->kv.user, KEY_TERM, 1, &term);
    if (is_abandoned(s)) return MCPG_UNAVAILABLE;
    if (status != MCPG_OK || term <= 0) {
        (void)snprintf(error, error_cap,
                       "the key-value store gave no term for a coordinator (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    mcpg_coord_host_config_t config = {.rpc = mcpg__rpc_grpc(),
                                       .bind = "127.0.0.1:0",
                                       .term = (uint64_t)term,
                                       .timers = s->timers,
                                       .event_log_dir = s->event_log_dir,
                                       .log = s->log};
    mcpg_coord_host_t *host = NULL;
    MCPG_TRY(mcpg__coord_host_start(&config, &host, error, error_cap));
    record_t mine;
    char stored[RECORD_CAP];
    size_t stored_len = 0;
    memset(&mine, 0, sizeof(mine));
    (void)mcpg__coord_host_address(host, mine.address, sizeof(mine.address));
    mine.term = (uint64_t)term;
    mine.raw_len = (size_t)snprintf(mine.raw, sizeof(mine.raw), "mcpg1 open %" PRId64 " %s", term, mine.address);
    status = s->kv.compare_set(s->kv.user, KEY_RECORD, old->raw, old->raw_len, mine.raw, mine.raw_len, stored,
                               sizeof(stored), &stored_len);
    *won_out = status == MCPG_OK && stored_len == mine.raw_len && memcmp(stored, mine.raw, stored_len) == 0;
    if (!*won_out) {
        mcpg__coord_host_stop(host);
        if (status == MCPG_OK) return MCPG_OK;
        (void)snprintf(error, error_cap,
                       "the key-value store did not take the coordinator's record (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    s->found = mine;
    s->hosted = host;
    mcpg__log(&s->log, MCPG_LOG_INFO, "coordinator_elected term %" PRId64 " address %s", term, mine.address);
    return MCPG_OK;
}

static mcpg_status_t search(search_t *s) {
    char *error = s->error;
    size_t error_cap = sizeof(s->error);
    uint64_t wait_us = (uint64_t)s->rank * ELECTION_STEP_US;
    if (wait_us > ELECTION_LAST_US) wait_us = ELECTION_LAST_US;
    uint64_t candidate_at = mcpg__now().us + wait_us;
    while (!is_abandoned(s)) {
        uint64_t now = mcpg__now().us;
        uint64_t until = s->may_host && candidate_at < s->deadline_us ? candidate_at : s->deadline_us;
        uint64_t left_ms = until > now ? (until - now) / 1000u + 1u : 1u;
        record_t r;
        MCPG_TRY(read_record(&s->kv, left_ms < GET_SLICE_MS ? (uint32_t)left_ms : GET_SLICE_MS, &r, error, error_cap));
        if (r.present && !r.closing && r.term > s->above_term) {
            s->found = r;
            return MCPG_OK;
        }
        now = mcpg__now().us;
        bool past = !r.present || r.closing; /* an open record of a coordinator that refused us is about to be marked */
        if (s->may_host && past && now >= candidate_at && !is_abandoned(s)) {
            bool won = false;
            MCPG_TRY(campaign(s, &r, &won));
            if (won) return MCPG_OK;
            continue;
        }
        if (now >= s->deadline_us) {
            (void)snprintf(error, error_cap,
                           "no rank has published a coordinator under \"" KEY_RECORD
                           "\" in the key-value store: start one, or let a rank "
                           "host it (may_host_coordinator)");
            return MCPG_UNAVAILABLE;
        }
        if (r.present) pause_us(POLL_US);
    }
    return MCPG_UNAVAILABLE;
}

static void *search_main(void *arg) {
    search_t *s = arg;
    (void)pthread_setname_np(pthread_self(), "mcpg-kv");
    s->status = search(s);
    pthread_mutex_lock(&s->mu);
    s->done = true;
    bool abandoned = s->abandoned;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mu);
    if (!abandoned) return NULL; /* the one that waits frees it */
    mcpg__coord_host_stop(s->hosted);
    search_free(s);
    return NULL;
}

static search_t *search_new(const mcpg_context_t *context, uint64_t above_term, uint64_t deadline_us) {
    search_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    pthread_mutex_init(&s->mu, NULL);
    mcpg__cond_init(&s->cond);
    s->kv = context->kv;
    s->log = context->log;
    s->timers = context->timers;
    s->rank = context->rank;
    s->may_host = context->may_host;
    s->above_term = above_term;
    s->deadline_us = deadline_us;
    if (context->event_log_dir != NULL && (s->event_log_dir = strdup(context->event_log_dir)) == NULL) {
        search_free(s);
        return NULL;
    }
    return s;
}

/* Runs the function on a thread that nobody joins. */
static bool run_detached(void *(*func)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, func, arg) != 0) return false;
    (void)pthread_detach(thread);
    return true;
}

static mcpg_status_t run_search(mcpg_context_t *context, search_t *s, char *error, size_t error_cap) {
    if (!run_detached(search_main, s)) {
        search_free(s);
        (void)snprintf(error, error_cap, "a helper thread cannot be started");
        return MCPG_SYSTEM;
    }
    uint64_t begin = mcpg__now().us, limit = s->deadline_us + KV_GRACE_US;
    pthread_mutex_lock(&s->mu);
    while (!s->done && mcpg__cond_wait_until(&s->cond, &s->mu, limit)) {
    }
    s->abandoned = !s->done;
    bool done = s->done;
    pthread_mutex_unlock(&s->mu);
    if (!done) { /* from here on it is the thread's */
        (void)snprintf(error, error_cap,
                       "the key-value store has not answered within %.1f s: check that it is alive, or give the "
                       "coordinator's address (config.coordinator or MOONCAKE_COORDINATOR)",
                       (double)(mcpg__now().us - begin) / 1e6);
        return MCPG_UNAVAILABLE;
    }
    mcpg_status_t status = s->status;
    if (status == MCPG_OK) {
        use_record(context, &s->found);
        context->bootstrap.hosted = s->hosted;
        if (s->hosted != NULL) memcpy(context->bootstrap.record, s->found.raw, s->found.raw_len + 1);
    } else {
        (void)snprintf(error, error_cap, "%s", s->error);
    }
    search_free(s);
    return status;
}

mcpg_status_t mcpg__bootstrap(mcpg_context_t *context, const char *configured, uint64_t above_term,
                              uint64_t deadline_us, char *error, size_t error_cap) {
    const char *address = configured;
    if (address == NULL || address[0] == '\0') address = getenv("MOONCAKE_COORDINATOR");
    if (address != NULL && address[0] != '\0') {
        if (strlen(address) >= MCPG_ADDRESS_CAP) {
            (void)snprintf(error, error_cap,
                           "the coordinator's address is longer than %u bytes: give \"host:port\" or \"unix:/path\"",
                           MCPG_ADDRESS_CAP - 1u);
            return MCPG_INVALID_ARGUMENT;
        }
        (void)snprintf(context->bootstrap.address, sizeof(context->bootstrap.address), "%s", address);
        return MCPG_OK;
    }
    if (!context->has_kv) {
        (void)snprintf(error, error_cap,
                       "no coordinator is known: set config.coordinator or MOONCAKE_COORDINATOR to its address, or "
                       "give config.kv");
        return MCPG_INVALID_ARGUMENT;
    }
    search_t *s = search_new(context, above_term, deadline_us);
    if (s == NULL) return MCPG_NO_MEMORY;
    return run_search(context, s, error, error_cap);
}

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done, abandoned;
    mcpg_kv_t kv;
    mcpg_status_t status;
    char open[RECORD_CAP + 1], closing[RECORD_CAP + 1];
} closing_t;

static void closing_free(closing_t *c) {
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

static void *closing_main(void *arg) {
    closing_t *c = arg;
    char stored[RECORD_CAP];
    size_t stored_len = 0;
    c->status = c->kv.compare_set(c->kv.user, KEY_RECORD, c->open, strlen(c->open), c->closing, strlen(c->closing),
                                  stored, sizeof(stored), &stored_len);
    pthread_mutex_lock(&c->mu);
    c->done = true;
    bool abandoned = c->abandoned;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mu);
    if (abandoned) closing_free(c);
    return NULL;
}

/* The store may be gone by now: nobody can read the record then, either. */
void mcpg__bootstrap_mark_closing(mcpg_context_t *context) {
    const mcpg_bootstrap_t *b = &context->bootstrap;
    closing_t *c = b->hosted != NULL ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) return;
    pthread_mutex_init(&c->mu, NULL);
    mcpg__cond_init(&c->cond);
    c->kv = context->kv;
    (void)snprintf(c->open, sizeof(c->open), "%s", b->record);
    (void)snprintf(c->closing, sizeof(c->closing), "mcpg1 closing %" PRIu64 " %s", b->term, b->address);
    if (!run_detached(closing_main, c)) {
        closing_free(c);
        return;
    }
    uint64_t limit = mcpg__now().us + KV_GRACE_US;
    pthread_mutex_lock(&c->mu);
    while (!c->done && mcpg__cond_wait_until(&c->cond, &c->mu, limit)) {
    }
    bool done = c->done;
    c->abandoned = !done;
    mcpg_status_t status = done ? c->status : MCPG_TIMED_OUT;
    pthread_mutex_unlock(&c->mu);
    if (done) closing_free(c);
    if (status != MCPG_OK)
        mcpg__log(&context->log, MCPG_LOG_INFO, "coordinator_record_not_marked status %s", mcpg_status_name(status));
}

void mcpg__bootstrap_stop_hosted(mcpg_context_t *context) {
    mcpg__coord_host_stop(context->bootstrap.hosted);
    context->bootstrap.hosted = NULL;
}

/* ---- following the record while contact is lost ---- */

/* False: the context went away while the store was asked; nothing but the watch itself may be touched any more. */
static bool read_watched(mcpg_context_t *context, record_t *r) {
    mcpg_watch_t *w = &context->watch;
    char error[MCPG_ERROR_CAP] = "";
    pthread_mutex_lock(&w->mu);
    w->asking = !w->stop;
    bool goes_on = w->asking;
    pthread_mutex_unlock(&w->mu);
    if (!goes_on) return false;
    bool found = read_record(&context->kv, 1u, r, error, sizeof(error)) == MCPG_OK && r->present && !r->closing;
    pthread_mutex_lock(&w->mu);
    w->asking = false;
    goes_on = !w->stop;
    pthread_mutex_unlock(&w->mu);
    return found && goes_on;
}

static void follow_once(mcpg_context_t *context) {
    record_t r;
    char error[MCPG_ERROR_CAP] = "";
    if (!read_watched(context, &r)) return;
    if (r.term <= context->bootstrap.term) return;
    mcpg_status_t status = mcpg__agent_host_move(context->agent, r.address, error, sizeof(error));
    if (status == MCPG_OK) use_record(context, &r);
    mcpg__log(&context->log, MCPG_LOG_INFO, "coordinator_moved term %" PRIu64 " address %s status %s", r.term,
              r.address, mcpg_status_name(status));
}

static void *watch_main(void *arg) {
    mcpg_context_t *context = arg;
    mcpg_watch_t *w = &context->watch;
    (void)pthread_setname_np(pthread_self(), "mcpg-watch");
    uint64_t pause = POLL_US;
    pthread_mutex_lock(&w->mu);
    while (!w->stop) {
        if (!w->lost) {
            pause = POLL_US;
            (void)pthread_cond_wait(&w->wake, &w->mu);
            continue;
        }
        pthread_mutex_unlock(&w->mu);
        follow_once(context);
        pthread_mutex_lock(&w->mu);
        uint64_t until = mcpg__now().us + pause;
        while (!w->stop && w->lost && mcpg__cond_wait_until(&w->wake, &w->mu, until)) {
        }
        pause = pause * 2 < WATCH_LAST_US ? pause * 2 : WATCH_LAST_US;
    }
    w->ended = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mu);
    mcpg__context_unref(context);
    return NULL;
}

mcpg_status_t mcpg__follow_start(mcpg_context_t *context) {
    if (!context->bootstrap.from_record || context->bootstrap.hosted != NULL) return MCPG_OK;
    atomic_fetch_add(&context->refs, 1); /* the thread's */
    if (!run_detached(watch_main, context)) {
        atomic_fetch_sub(&context->refs, 1);
        return MCPG_SYSTEM;
    }
    context->watch.started = true;
    return MCPG_OK;
}

void mcpg__follow_lost(mcpg_context_t *context, bool lost) {
    mcpg_watch_t *w = &context->watch;
    pthread_mutex_lock(&w->mu);
    w->lost = lost;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->mu);
}

void mcpg__follow_stop(mcpg_context_t *context) {
    mcpg_watch_t *w = &context->watch;
    if (!w->started) return;
    pthread_mutex_lock(&w->mu);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    uint64_t limit = mcpg__now().us + KV_GRACE_US;
    while (!w->ended) {
        bool in_time = mcpg__cond_wait_until(&w->wake, &w->mu, limit);
        if (!in_time && w->asking) break; /* the store hangs: the thread ends when it comes back */
        if (!in_time) limit = mcpg__now().us + KV_GRACE_US;
    }
    pthread_mutex_unlock(&w->mu);
    w->started = false;
}
