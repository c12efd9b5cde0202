/* pg_bootstrap.c: finds the coordinator (configuration, environment, record, election), and follows its record when
 * contact is lost.
 *
 * Key-value callbacks may block, so they only ever run on a helper thread: never on the executor, the callback thread
 * or a data plane thread. The record is one line of text, "mcpg1 open|closing TERM ADDRESS"; every change of it is a
 * compare-and-set.
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

static mcpg_status_t read_record(const mcpg_context_t *context, uint32_t timeout_ms, record_t *out, char *error,
                                 size_t error_cap) {
    char raw[RECORD_CAP];
    size_t len = 0;
    memset(out, 0, sizeof(*out));
    mcpg_status_t status = context->kv.get(context->kv.user, KEY_RECORD, raw, sizeof(raw), &len, timeout_ms);
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

/* One candidacy. OK with *won_out false: somebody else was first; the loop reads the record again. */
static mcpg_status_t campaign(mcpg_context_t *context, const record_t *old, bool *won_out, char *error,
                              size_t error_cap) {
    int64_t term = 0;
    mcpg_status_t status = context->kv.add(context->kv.user, KEY_TERM, 1, &term);
    if (status != MCPG_OK || term <= 0) {
        (void)snprintf(error, error_cap,
                       "the key-value store gave no term for a coordinator (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    mcpg_coord_host_config_t config = {.rpc = mcpg__rpc_grpc(),
                                       .bind = "127.0.0.1:0",
                                       .term = (uint64_t)term,
                                       .timers = context->timers,
                                       .event_log_dir = context->event_log_dir,
                                       .log = context->log};
    mcpg_coord_host_t *host = NULL;
    MCPG_TRY(mcpg__coord_host_start(&config, &host, error, error_cap));
    record_t mine;
    char stored[RECORD_CAP];
    size_t stored_len = 0;
    memset(&mine, 0, sizeof(mine));
    (void)mcpg__coord_host_address(host, mine.address, sizeof(mine.address));
    mine.term = (uint64_t)term;
    mine.raw_len = (size_t)snprintf(mine.raw, sizeof(mine.raw), "mcpg1 open %" PRId64 " %s", term, mine.address);
    status = context->kv.compare_set(context->kv.user, KEY_RECORD, old->raw, old->raw_len, mine.raw, mine.raw_len,
                                     stored, sizeof(stored), &stored_len);
    *won_out = status == MCPG_OK && stored_len == mine.raw_len && memcmp(stored, mine.raw, stored_len) == 0;
    if (!*won_out) {
        mcpg__coord_host_stop(host);
        if (status == MCPG_OK) return MCPG_OK;
        (void)snprintf(error, error_cap,
                       "the key-value store did not take the coordinator's record (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    use_record(context, &mine);
    context->bootstrap.hosted = host;
    memcpy(context->bootstrap.record, mine.raw, mine.raw_len + 1);
    mcpg__log(&context->log, MCPG_LOG_INFO, "coordinator_elected term %" PRId64 " address %s", term, mine.address);
    return MCPG_OK;
}

static mcpg_status_t search(mcpg_context_t *context, uint64_t above_term, uint64_t deadline_us, char *error,
                            size_t error_cap) {
    uint64_t wait_us = (uint64_t)context->rank * ELECTION_STEP_US;
    if (wait_us > ELECTION_LAST_US) wait_us = ELECTION_LAST_US;
    uint64_t candidate_at = mcpg__now().us + wait_us;
    for (;;) {
        uint64_t now = mcpg__now().us;
        uint64_t until = context->may_host && candidate_at < deadline_us ? candidate_at : deadline_us;
        uint64_t left_ms = until > now ? (until - now) / 1000u + 1u : 1u;
        record_t r;
        MCPG_TRY(read_record(context, left_ms < GET_SLICE_MS ? (uint32_t)left_ms : GET_SLICE_MS, &r, error, error_cap));
        if (r.present && !r.closing && r.term > above_term) {
            use_record(context, &r);
            return MCPG_OK;
        }
        now = mcpg__now().us;
        bool past = !r.present || r.closing; /* an open record of a coordinator that refused us is about to be marked */
        if (context->may_host && past && now >= candidate_at) {
            bool won = false;
            MCPG_TRY(campaign(context, &r, &won, error, error_cap));
            if (won) return MCPG_OK;
            continue;
        }
        if (now >= deadline_us) {
            (void)snprintf(error, error_cap,
                           "no rank has published a coordinator under \"" KEY_RECORD
                           "\" in the key-value store: start one, or let a rank "
                           "host it (may_host_coordinator)");
            return MCPG_UNAVAILABLE;
        }
        if (r.present) pause_us(POLL_US);
    }
}

typedef struct {
    mcpg_context_t *context;
    uint64_t above_term, deadline_us;
    mcpg_status_t status;
    char *error;
    size_t error_cap;
} search_t;

static void *search_main(void *arg) {
    search_t *s = arg;
    (void)pthread_setname_np(pthread_self(), "mcpg-kv");
    s->status = search(s->context, s->above_term, s->deadline_us, s->error, s->error_cap);
    return NULL;
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
    search_t s = {.context = context,
                  .above_term = above_term,
                  .deadline_us = deadline_us,
                  .error = error,
                  .error_cap = error_cap};
    pthread_t thread;
    if (pthread_create(&thread, NULL, search_main, &s) != 0) {
        (void)snprintf(error, error_cap, "a helper thread cannot be started");
        return MCPG_SYSTEM;
    }
    pthread_join(thread, NULL);
    return s.status;
}

static void *closing_main(void *arg) {
    mcpg_context_t *context = arg;
    const mcpg_bootstrap_t *b = &context->bootstrap;
    char closing[RECORD_CAP + 1], stored[RECORD_CAP];
    size_t stored_len = 0;
    int len = snprintf(closing, sizeof(closing), "mcpg1 closing %" PRIu64 " %s", b->term, b->address);
    mcpg_status_t status = context->kv.compare_set(context->kv.user, KEY_RECORD, b->record, strlen(b->record), closing,
                                                   (size_t)len, stored, sizeof(stored), &stored_len);
    if (status != MCPG_OK) /* the store may be gone by now: nobody can read the record then, either */
        mcpg__log(&context->log, MCPG_LOG_INFO, "coordinator_record_not_marked status %s", mcpg_status_name(status));
    return NULL;
}

void mcpg__bootstrap_mark_closing(mcpg_context_t *context) {
    pthread_t thread;
    if (context->bootstrap.hosted == NULL || pthread_create(&thread, NULL, closing_main, context) != 0) return;
    pthread_join(thread, NULL);
}

void mcpg__bootstrap_stop_hosted(mcpg_context_t *context) {
    mcpg__coord_host_stop(context->bootstrap.hosted);
    context->bootstrap.hosted = NULL;
}

/* ---- following the record while contact is lost ---- */

static void follow_once(mcpg_context_t *context) {
    record_t r;
    char error[MCPG_ERROR_CAP] = "";
    if (read_record(context, 1u, &r, error, sizeof(error)) != MCPG_OK || !r.present || r.closing) return;
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
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

mcpg_status_t mcpg__follow_start(mcpg_context_t *context) {
    if (!context->bootstrap.from_record || context->bootstrap.hosted != NULL) return MCPG_OK;
    if (pthread_create(&context->watch.thread, NULL, watch_main, context) != 0) return MCPG_SYSTEM;
    context->watch.started = true;
    return MCPG_OK;
}

void mcpg__follow_lost(mcpg_context_t *context, bool lost) {
    mcpg_watch_t *w = &context->watch;
    pthread_mutex_lock(&w->mu);
    w->lost = lost;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mu);
}

void mcpg__follow_stop(mcpg_context_t *context) {
    mcpg_watch_t *w = &context->watch;
    if (!w->started) return;
    pthread_mutex_lock(&w->mu);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->mu);
    pthread_join(w->thread, NULL);
    w->started = false;
}
