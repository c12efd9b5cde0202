/* pg_bootstrap.c: finds the coordinator (configuration, environment, record, election), and marks its record when it
 * ends.
 *
 * Key-value callbacks may block, so they only ever run on a helper thread: never on the executor, the callback thread
 * or a data plane thread. A store that does not answer at all costs its caller a bounded time: the helper thread is
 * left behind, begins no other callback but the one that takes its own record back, and owns what it still touches. The
 * record is one line of text, "mcpg1 open|closing|ended TERM ADDRESS"; every change of it is a compare-and-set. ended:
 * that coordinator stopped with no rank attached, so the next one has nobody to wait for.
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

#include "api/pg_election.h"

#define GET_SLICE_MS 1000u
#define DRAINED_US   4500000u /* a coordinator that stopped sooner had no rank left */

static void pause_us(uint64_t us) {
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000u), .tv_nsec = (long)(us % 1000000u) * 1000};
    (void)nanosleep(&ts, NULL);
}

static size_t record_text(char *out, size_t cap, const char *state, uint64_t term, const char *address) {
    return (size_t)snprintf(out, cap, "mcpg1 %s %" PRIu64 " %s", state, term, address);
}

/* False: not a record of ours. */
static bool parse(const char *raw, size_t len, mcpg_record_line_t *out) {
    char state[8];
    memset(out, 0, sizeof(*out));
    if (len == 0 || len > MCPG_RECORD_CAP) return false;
    memcpy(out->raw, raw, len);
    out->raw_len = len;
    if (sscanf(out->raw, "mcpg1 %7s %" SCNu64 " %255s", state, &out->term, out->address) != 3) return false;
    out->ended = strcmp(state, "ended") == 0;
    out->closing = out->ended || strcmp(state, "closing") == 0;
    out->present = true;
    return out->closing || strcmp(state, "open") == 0;
}

mcpg_status_t mcpg__record_read(const mcpg_kv_t *kv, uint32_t timeout_ms, mcpg_record_line_t *out, char *error,
                                size_t error_cap) {
    char raw[MCPG_RECORD_CAP];
    size_t len = 0;
    memset(out, 0, sizeof(*out));
    mcpg_status_t status = kv->get(kv->user, MCPG_KEY_RECORD, raw, sizeof(raw), &len, timeout_ms);
    if (status == MCPG_TIMED_OUT || status == MCPG_NOT_FOUND) return MCPG_OK; /* absent */
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap,
                       "the key-value store did not answer a read of \"" MCPG_KEY_RECORD
                       "\" (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    if (!parse(raw, len < sizeof(raw) ? len : sizeof(raw), out)) {
        (void)snprintf(error, error_cap,
                       "the record \"" MCPG_KEY_RECORD
                       "\" in the key-value store is not understood: another version wrote it, or the store is "
                       "shared with another program");
        return MCPG_VERSION_MISMATCH;
    }
    return MCPG_OK;
}

void mcpg__record_use(mcpg_context_t *context, const mcpg_record_line_t *r, mcpg_credentials_t *credentials) {
    pthread_mutex_lock(&context->groups_mu);
    mcpg__credentials_unref(context->bootstrap.credentials);
    context->bootstrap.credentials = credentials;
    (void)snprintf(context->bootstrap.address, sizeof(context->bootstrap.address), "%s", r->address);
    context->bootstrap.term = r->term;
    context->bootstrap.from_record = true;
    pthread_mutex_unlock(&context->groups_mu);
}

static bool is_abandoned(mcpg_search_t *s) {
    pthread_mutex_lock(&s->mu);
    bool abandoned = s->abandoned;
    pthread_mutex_unlock(&s->mu);
    return abandoned;
}

void mcpg__search_free(mcpg_search_t *s) {
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->mu);
    mcpg__security_unref(s->security);
    mcpg__credentials_unref(s->credentials);
    free(s->event_log_dir);
    free(s);
}

/* A record of a coordinator that nobody will ever use says so. */
void mcpg__record_retract(const mcpg_kv_t *kv, const mcpg_record_line_t *open) {
    char closing[MCPG_RECORD_CAP], stored[MCPG_RECORD_CAP];
    size_t stored_len = 0;
    size_t len = record_text(closing, sizeof(closing), "closing", open->term, open->address);
    (void)kv->compare_set(kv->user, MCPG_KEY_RECORD, open->raw, open->raw_len, closing, len, stored, sizeof(stored),
                          &stored_len);
}

mcpg_status_t mcpg__campaign(mcpg_search_t *s, const mcpg_record_line_t *old, bool *won_out) {
    char *error = s->error;
    size_t error_cap = sizeof(s->error);
    int64_t term = 0;
    mcpg_status_t status = s->kv.add(s->kv.user, MCPG_KEY_TERM, 1, &term);
    if (is_abandoned(s)) return MCPG_UNAVAILABLE;
    if (status != MCPG_OK || term <= 0) {
        (void)snprintf(error, error_cap,
                       "the key-value store gave no term for a coordinator (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    char bind[MCPG_ADDRESS_CAP];
    mcpg_credentials_t *server_creds = NULL, *agent_creds = NULL;
    MCPG_TRY(mcpg__security_host(s->security, &s->kv, (uint64_t)term, bind, sizeof(bind), &server_creds, &agent_creds,
                                 error, error_cap));
    mcpg_coord_host_config_t config = {.rpc = mcpg__rpc_grpc(),
                                       .bind = bind,
                                       .credentials = server_creds,
                                       .term = (uint64_t)term,
                                       .predecessor = old->present && !old->ended,
                                       .kv = &s->kv,
                                       .timers = s->timers,
                                       .event_log_dir = s->event_log_dir,
                                       .log = s->log};
    mcpg_coord_host_t *host = NULL;
    status = mcpg__coord_host_start(&config, &host, error, error_cap);
    mcpg__credentials_unref(server_creds);
    if (status != MCPG_OK) {
        mcpg__credentials_unref(agent_creds);
        return status;
    }
    mcpg_record_line_t mine;
    char stored[MCPG_RECORD_CAP];
    size_t stored_len = 0;
    memset(&mine, 0, sizeof(mine));
    (void)mcpg__coord_host_address(host, mine.address, sizeof(mine.address));
    mine.term = (uint64_t)term;
    mine.raw_len = record_text(mine.raw, sizeof(mine.raw), "open", mine.term, mine.address);
    status = s->kv.compare_set(s->kv.user, MCPG_KEY_RECORD, old->raw, old->raw_len, mine.raw, mine.raw_len, stored,
                               sizeof(stored), &stored_len);
    *won_out = status == MCPG_OK && stored_len == mine.raw_len && memcmp(stored, mine.raw, stored_len) == 0;
    if (!*won_out) {
        mcpg__credentials_unref(agent_creds);
        if (status != MCPG_OK) mcpg__record_retract(&s->kv, &mine); /* it may be there all the same */
        mcpg__coord_host_stop(host);
        if (status == MCPG_OK) return MCPG_OK;
        (void)snprintf(error, error_cap,
                       "the key-value store did not take the coordinator's record (%s): check that it is alive",
                       mcpg_status_text(status));
        return MCPG_UNAVAILABLE;
    }
    s->found = mine;
    s->credentials = agent_creds;
    s->hosted = host;
    mcpg__log(&s->log, MCPG_LOG_INFO, "coordinator_elected term %" PRId64 " address %s", term, mine.address);
    return MCPG_OK;
}

static mcpg_status_t search(mcpg_search_t *s) {
    char *error = s->error;
    size_t error_cap = sizeof(s->error);
    uint64_t candidate_at = mcpg__now().us + mcpg__election_turn_us(s->rank);
    while (!is_abandoned(s)) {
        uint64_t now = mcpg__now().us;
        uint64_t until = s->may_host && candidate_at < s->deadline_us ? candidate_at : s->deadline_us;
        uint64_t left_ms = until > now ? (until - now) / 1000u + 1u : 1u;
        mcpg_record_line_t r;
        MCPG_TRY(
            mcpg__record_read(&s->kv, left_ms < GET_SLICE_MS ? (uint32_t)left_ms : GET_SLICE_MS, &r, error, error_cap));
        if (r.present && !r.closing && r.term > s->above_term) {
            s->found = r;
            return mcpg__security_find(s->security, &s->kv, r.term, r.address, &s->credentials, error, error_cap);
        }
        now = mcpg__now().us;
        bool past = !r.present || r.closing; /* an open record of a coordinator that refused us is about to be marked */
        if (s->may_host && past && now >= candidate_at && !is_abandoned(s)) {
            bool won = false;
            MCPG_TRY(mcpg__campaign(s, &r, &won));
            if (won) return MCPG_OK;
            continue;
        }
        if (now >= s->deadline_us) {
            (void)snprintf(error, error_cap,
                           "no rank has published a coordinator under \"" MCPG_KEY_RECORD
                           "\" in the key-value store: start one, or let a rank "
                           "host it (may_host_coordinator)");
            return MCPG_UNAVAILABLE;
        }
        if (r.present) pause_us(MCPG_POLL_US);
    }
    return MCPG_UNAVAILABLE;
}

static void *search_main(void *arg) {
    mcpg_search_t *s = arg;
    (void)pthread_setname_np(pthread_self(), "mcpg-kv");
    s->status = search(s);
    pthread_mutex_lock(&s->mu);
    s->done = true;
    bool abandoned = s->abandoned;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->mu);
    if (!abandoned) return NULL; /* the one that waits frees it */
    if (s->hosted != NULL) mcpg__record_retract(&s->kv, &s->found);
    mcpg__coord_host_stop(s->hosted);
    mcpg__search_free(s);
    return NULL;
}

mcpg_search_t *mcpg__search_new(const mcpg_context_t *context, uint64_t above_term, uint64_t deadline_us) {
    mcpg_search_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return NULL;
    pthread_mutex_init(&s->mu, NULL);
    mcpg__cond_init(&s->cond);
    s->kv = context->kv;
    s->log = context->log;
    s->timers = context->timers;
    s->security = mcpg__security_ref(context->security);
    s->rank = context->rank;
    s->may_host = context->may_host;
    s->above_term = above_term;
    s->deadline_us = deadline_us;
    if (context->event_log_dir != NULL && (s->event_log_dir = strdup(context->event_log_dir)) == NULL) {
        mcpg__search_free(s);
        return NULL;
    }
    return s;
}

bool mcpg__run_detached(void *(*func)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, func, arg) != 0) return false;
    (void)pthread_detach(thread);
    return true;
}

static mcpg_status_t run_search(mcpg_context_t *context, mcpg_search_t *s, char *error, size_t error_cap) {
    if (!mcpg__run_detached(search_main, s)) {
        mcpg__search_free(s);
        (void)snprintf(error, error_cap, "a helper thread cannot be started");
        return MCPG_SYSTEM;
    }
    uint64_t begin = mcpg__now().us, limit = s->deadline_us + MCPG_KV_GRACE_US;
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
        mcpg__record_use(context, &s->found, s->credentials);
        s->credentials = NULL;
        mcpg__bootstrap_host(context, s->hosted, &s->found);
    } else {
        (void)snprintf(error, error_cap, "%s", s->error);
    }
    mcpg__search_free(s);
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
        mcpg__credentials_unref(context->bootstrap.credentials);
        context->bootstrap.credentials = NULL;
        return mcpg__security_find(context->security, NULL, 0, address, &context->bootstrap.credentials, error,
                                   error_cap);
    }
    if (!context->has_kv) {
        (void)snprintf(error, error_cap,
                       "no coordinator is known: set config.coordinator or MOONCAKE_COORDINATOR to its address, or "
                       "give config.kv");
        return MCPG_INVALID_ARGUMENT;
    }
    mcpg_search_t *s = mcpg__search_new(context, above_term, deadline_us);
    if (s == NULL) return MCPG_NO_MEMORY;
    return run_search(context, s, error, error_cap);
}

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done, abandoned;
    mcpg_kv_t kv;
    mcpg_status_t status;
    char from[MCPG_RECORD_CAP + 1], to[MCPG_RECORD_CAP + 1];
} closing_t;

static void closing_free(closing_t *c) {
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

static void *closing_main(void *arg) {
    closing_t *c = arg;
    char stored[MCPG_RECORD_CAP];
    size_t stored_len = 0;
    c->status = c->kv.compare_set(c->kv.user, MCPG_KEY_RECORD, c->from, strlen(c->from), c->to, strlen(c->to), stored,
                                  sizeof(stored), &stored_len);
    pthread_mutex_lock(&c->mu);
    c->done = true;
    bool abandoned = c->abandoned;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->mu);
    if (abandoned) closing_free(c);
    return NULL;
}

/* The store may be gone by now: nobody can read the record then, either. */
static void mark(mcpg_context_t *context, const char *from, const char *to) {
    mcpg_bootstrap_t b;
    pthread_mutex_lock(&context->groups_mu);
    b = context->bootstrap;
    pthread_mutex_unlock(&context->groups_mu);
    closing_t *c = b.hosted != NULL ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) return;
    pthread_mutex_init(&c->mu, NULL);
    mcpg__cond_init(&c->cond);
    c->kv = context->kv;
    (void)record_text(c->from, sizeof(c->from), from, b.hosted_term, b.hosted_address);
    (void)record_text(c->to, sizeof(c->to), to, b.hosted_term, b.hosted_address);
    if (!mcpg__run_detached(closing_main, c)) {
        closing_free(c);
        return;
    }
    uint64_t limit = mcpg__now().us + MCPG_KV_GRACE_US;
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

void mcpg__bootstrap_mark_closing(mcpg_context_t *context) {
    mark(context, "open", "closing");
}

void mcpg__bootstrap_host(mcpg_context_t *context, mcpg_coord_host_t *hosted, const mcpg_record_line_t *record) {
    mcpg_bootstrap_t *b = &context->bootstrap;
    pthread_mutex_lock(&context->groups_mu);
    b->hosted = hosted;
    if (hosted != NULL) {
        b->hosted_term = record->term;
        (void)snprintf(b->hosted_address, sizeof(b->hosted_address), "%s", record->address);
    }
    pthread_mutex_unlock(&context->groups_mu);
}

void mcpg__bootstrap_stop_hosted(mcpg_context_t *context, bool over) {
    uint64_t begin_us = mcpg__now().us;
    mcpg__coord_host_stop(context->bootstrap.hosted);
    if (over && mcpg__now().us - begin_us < DRAINED_US) mark(context, "closing", "ended");
    mcpg__bootstrap_host(context, NULL, NULL);
}
