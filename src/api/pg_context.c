/* pg_context.c: creates and ends contexts: data plane, coordinator's address, agent, callback thread, in that order and
 * back.
 *
 * Destroy, in this order: (1) a hosted coordinator's record is marked closing; (2) groups are left, works end; (3)
 * threads that wait for works come back; (4) no more observations, the agent detaches and stops; (5) the data plane
 * stops; (6) the callback thread runs what is queued and ends; (7) the hosted coordinator drains and stops; (8) memory
 * goes with the last work handle.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "api/pg_internal.h"
#include "common/recorder.h"
#include "common/timers.h"
#include "rpc/rpc_probe.h"

#define CONNECT_DEFAULT_US 30000000u
#define ATTACH_SLICE_US    2000000u
#define MAX_CALLS          64u
#define MAX_REPORTS        256u
#define MAX_GROUPS         1024u
#define MAX_SLOTS_TOTAL    65536u

static atomic_uint_fast64_t last_context_id;

static const char *setting(const char *given, const char *variable, const char *fallback) {
    if (given != NULL && given[0] != '\0') return given;
    const char *env = getenv(variable);
    return env != NULL && env[0] != '\0' ? env : fallback;
}

static uint64_t random_u64(void) {
    uint64_t v = 0;
    while (v == 0)
        if (getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v)) v = mcpg__now().us ^ ((uint64_t)getpid() << 32);
    return v;
}

static void on_attached(void *user, mcpg_incarnation_t inc) {
    mcpg_context_t *context = user;
    mcpg__dp_set_incarnation(context->dp, inc);
    pthread_mutex_lock(&context->groups_mu);
    context->inc = inc;
    pthread_mutex_unlock(&context->groups_mu);
}

static void on_notify(void *user, const mcpg_agent_notify_t *notify) {
    mcpg_context_t *context = user;
    if (notify->kind == MCPG_EVENT_COORDINATOR_LOST) mcpg__follow_lost(context, true);
    if (notify->kind == MCPG_EVENT_COORDINATOR_BACK) mcpg__follow_lost(context, false);
    mcpg__events_push(context, notify);
}

static void on_observe(void *user, const mcpg_dp_observer_t *observer) {
    mcpg_context_t *context = user;
    mcpg__dp_set_observer(context->dp, observer);
}

void mcpg__context_unref(mcpg_context_t *context) {
    if (atomic_fetch_sub(&context->refs, 1) != 1) return;
    while (context->spare != NULL) {
        mcpg_work_t *w = context->spare;
        context->spare = w->next;
        free(w);
    }
    pthread_mutex_destroy(&context->groups_mu);
    pthread_mutex_destroy(&context->works_mu);
    pthread_cond_destroy(&context->works_idle);
    pthread_mutex_destroy(&context->events.mu);
    pthread_cond_destroy(&context->events.wake);
    pthread_cond_destroy(&context->events.idle);
    pthread_mutex_destroy(&context->watch.mu);
    pthread_cond_destroy(&context->watch.wake);
    free(context->events.ring);
    free(context->event_log_dir);
    mcpg__security_unref(context->security);
    mcpg__credentials_unref(context->bootstrap.credentials);
    free(context);
}

static mcpg_status_t check_config(const mcpg_config_t *given, mcpg_config_t *out, char *error, size_t error_cap) {
    MCPG_TRY(mcpg__versioned_copy(out, sizeof(*out), given, "mcpg_config_t", error, error_cap));
    if (out->global_rank >= MCPG_MAX_RANKS) {
        (void)snprintf(error, error_cap, "global_rank %u is too high: ranks go from 0 to %d", out->global_rank,
                       MCPG_MAX_RANKS - 1);
        return MCPG_INVALID_ARGUMENT;
    }
    if (out->kv != NULL &&
        (out->kv->get == NULL || out->kv->set == NULL || out->kv->compare_set == NULL || out->kv->add == NULL)) {
        (void)snprintf(error, error_cap, "config.kv needs all of get, set, compare_set and add");
        return MCPG_INVALID_ARGUMENT;
    }
    if ((out->may_host_coordinator || out->may_take_over) && out->kv == NULL) {
        (void)snprintf(
            error, error_cap,
            "may_host_coordinator and may_take_over need config.kv: the other ranks find the coordinator through it");
        return MCPG_INVALID_ARGUMENT;
    }
    if (out->connect_timeout_us == 0) out->connect_timeout_us = CONNECT_DEFAULT_US;
    return MCPG_OK;
}

static mcpg_context_t *allocate(const mcpg_config_t *config) {
    mcpg_context_t *context = calloc(1, sizeof(*context));
    if (context == NULL) return NULL;
    context->id = atomic_fetch_add(&last_context_id, 1) + 1;
    atomic_init(&context->refs, 1);
    context->rank = config->global_rank;
    context->may_host = config->may_host_coordinator;
    context->may_take_over = config->may_take_over || config->may_host_coordinator;
    context->has_kv = config->kv != NULL;
    if (config->kv != NULL) context->kv = *config->kv;
    char prefix[32];
    (void)snprintf(prefix, sizeof(prefix), "rank %u", config->global_rank);
    mcpg__log_init(&context->log, config->log, config->log_user, prefix);
    pthread_mutex_init(&context->groups_mu, NULL);
    pthread_mutex_init(&context->works_mu, NULL);
    mcpg__cond_init(&context->works_idle);
    pthread_mutex_init(&context->events.mu, NULL);
    mcpg__cond_init(&context->events.wake);
    mcpg__cond_init(&context->events.idle);
    pthread_mutex_init(&context->watch.mu, NULL);
    mcpg__cond_init(&context->watch.wake);
    return context;
}

static mcpg_status_t start_agent(mcpg_context_t *context, uint64_t host_id, uint64_t timeout_us, char *error,
                                 size_t error_cap) {
    mcpg_agent_host_config_t config = {.rpc = mcpg__rpc_for(context->bootstrap.address),
                                       .coordinator = context->bootstrap.address,
                                       .credentials = context->bootstrap.credentials,
                                       .dp_ops = mcpg__dp_ops(),
                                       .dp = context->dp,
                                       .attached = on_attached,
                                       .observe = on_observe,
                                       .notify = on_notify,
                                       .user = context,
                                       .event_log_dir = context->event_log_dir,
                                       .log = context->log};
    mcpg_agent_config_t *a = &config.agent;
    a->rank.v = context->rank;
    a->session.v = random_u64();
    a->host_id = host_id;
    a->pid = (int64_t)getpid();
    a->endpoint_len = (uint32_t)mcpg__dp_endpoint(context->dp, a->endpoint, sizeof(a->endpoint));
    MCPG_ASSERT(a->endpoint_len <= sizeof(a->endpoint));
    a->max_ranks = MCPG_MAX_RANKS;
    a->max_groups = MAX_GROUPS;
    a->max_slots_total = MAX_SLOTS_TOTAL;
    a->max_calls = MAX_CALLS;
    a->max_reports = MAX_REPORTS;
    a->attach_timeout_us = timeout_us;
    a->seed = random_u64();
    a->timers = context->timers;
    return mcpg__agent_host_start(&config, &context->agent, error, error_cap);
}

/* Adds why nobody answered, as far as one more connection shows it. */
static void explain(const mcpg_context_t *context, char *error, size_t error_cap) {
    char why[256];
    mcpg__rpc_explain(context->bootstrap.address, context->bootstrap.credentials, why, sizeof(why));
    size_t len = strlen(error);
    if (why[0] != '\0' && len < error_cap) (void)snprintf(error + len, error_cap - len, ": %s", why);
}

/* The coordinator that a record names may be closing: it refuses newcomers, or is gone when they come. So the record is
 * read again now and then; the next coordinator has a higher term. */
static mcpg_status_t attach(mcpg_context_t *context, const mcpg_config_t *config, uint64_t host_id, char *error,
                            size_t error_cap) {
    uint64_t deadline = mcpg__now().us + config->connect_timeout_us;
    uint64_t above_term = 0, slice = ATTACH_SLICE_US;
    for (;;) {
        MCPG_TRY(mcpg__bootstrap(context, config->coordinator, above_term, deadline, error, error_cap));
        uint64_t now = mcpg__now().us;
        uint64_t left = now < deadline ? deadline - now : 1000u;
        bool may_move = context->bootstrap.from_record && context->bootstrap.hosted == NULL;
        mcpg_status_t status = start_agent(context, host_id, may_move && slice < left ? slice : left, error, error_cap);
        bool passing = status == MCPG_SHUTTING_DOWN || status == MCPG_UNAVAILABLE || status == MCPG_RANK_IN_USE;
        bool again = passing && may_move && mcpg__now().us < deadline;
        if (status != MCPG_OK && context->bootstrap.hosted != NULL) {
            mcpg__bootstrap_mark_closing(context);
            mcpg__bootstrap_stop_hosted(context, true);
        }
        if (!again) {
            if (status == MCPG_UNAVAILABLE || status == MCPG_TIMED_OUT) explain(context, error, error_cap);
            return status;
        }
        if (status == MCPG_SHUTTING_DOWN) above_term = context->bootstrap.term;
        slice *= 2;
    }
}

static mcpg_status_t start(mcpg_context_t *context, const mcpg_config_t *config, char *error, size_t error_cap) {
    MCPG_TRY(mcpg__timers_resolve(&config->timers, &context->timers, error, error_cap));
    mcpg_security_config_t security = {.tls = config->tls,
                                       .ca_file = config->tls_ca,
                                       .cert_file = config->tls_cert,
                                       .key_file = config->tls_key,
                                       .token_file = config->token_file,
                                       .host_ip = setting(config->host_ip, "MOONCAKE_HOST_IP", NULL)};
    MCPG_TRY(mcpg__security_new(&security, &context->security, error, error_cap));
    context->may_host = context->may_host && mcpg__security_may_serve(context->security);
    context->may_take_over = context->may_take_over && mcpg__security_may_serve(context->security);
    context->event_log_dir = mcpg__recorder_folder(config->event_log_dir);
    uint64_t host_id = mcpg__host_id();
    mcpg_dp_config_t dp = {.rank = {context->rank},
                           .host_id = host_id,
                           .host_ip = setting(config->host_ip, "MOONCAKE_HOST_IP", "127.0.0.1"),
                           .transports = setting(config->transports, "MOONCAKE_TRANSPORTS", "shm,tcp"),
                           .collective_timeout_us = context->timers.collective_timeout_us,
                           .p2p_timeout_us = context->timers.p2p_timeout_us,
                           .log = context->log};
    MCPG_TRY(mcpg__dp_create(&dp, &context->dp, error, error_cap));
    mcpg_status_t status = mcpg__events_start(context);
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap, "the callback thread cannot be started: %s", mcpg_status_text(status));
        goto err_dp;
    }
    status = attach(context, config, host_id, error, error_cap);
    if (status != MCPG_OK) goto err_events;
    status = mcpg__follow_start(context);
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap, "a helper thread cannot be started");
        goto err_agent;
    }
    return MCPG_OK;
err_agent:
    mcpg__bootstrap_mark_closing(context);
    mcpg__dp_set_observer(context->dp, NULL);
    mcpg__agent_host_stop(context->agent);
    mcpg__bootstrap_stop_hosted(context, true);
err_events:
    mcpg__events_stop(context);
err_dp:
    mcpg__dp_destroy(context->dp);
    return status;
}

mcpg_status_t mcpg_context_create(const mcpg_config_t *config, mcpg_context_t **context_out, char *error,
                                  size_t error_cap) {
    if (mcpg__forked()) return MCPG_FORKED;
    char spare[MCPG_ERROR_CAP];
    if (error == NULL || error_cap == 0) {
        error = spare;
        error_cap = sizeof(spare);
    }
    error[0] = '\0';
    if (config == NULL || context_out == NULL) {
        (void)snprintf(error, error_cap, "config and context_out must not be NULL");
        return MCPG_INVALID_ARGUMENT;
    }
    mcpg__fork_watch();
    mcpg_config_t own;
    MCPG_TRY(check_config(config, &own, error, error_cap));
    mcpg__fork_in_use(1);
    mcpg_context_t *context = allocate(&own);
    mcpg_status_t status = context == NULL ? MCPG_NO_MEMORY : start(context, &own, error, error_cap);
    if (status != MCPG_OK) {
        if (error[0] == '\0') (void)snprintf(error, error_cap, "%s", mcpg_status_text(status));
        if (context != NULL) mcpg__context_unref(context);
        mcpg__fork_in_use(-1);
        return status;
    }
    *context_out = context;
    return MCPG_OK;
}

void mcpg_context_destroy(mcpg_context_t *context) {
    if (context == NULL || mcpg__forked()) return;
    mcpg__follow_leaving(context);
    mcpg__bootstrap_mark_closing(context);
    for (;;) {
        pthread_mutex_lock(&context->groups_mu);
        mcpg_group_t *g = context->groups;
        if (g != NULL) context->groups = g->next;
        pthread_mutex_unlock(&context->groups_mu);
        if (g == NULL) break;
        mcpg__group_leave(g, MCPG_DRAIN_US);
    }
    mcpg__works_settle(context);
    mcpg__follow_stop(context);
    mcpg__bootstrap_mark_closing(context); /* of one that it was just elected to host */
    mcpg__dp_set_observer(context->dp, NULL);
    mcpg__agent_host_stop(context->agent);
    mcpg__dp_destroy(context->dp);
    mcpg__events_stop(context);
    mcpg__bootstrap_stop_hosted(context, true);
    mcpg__context_unref(context);
    mcpg__fork_in_use(-1);
}

const char *mcpg_context_error(const mcpg_context_t *context) {
    if (mcpg__forked()) return mcpg_status_text(MCPG_FORKED);
    return context != NULL ? mcpg__error_of(context) : "";
}

static size_t copy_text(const char *text, char *buf, size_t cap) {
    if (cap > 0) (void)snprintf(buf, cap, "%s", text);
    return strlen(text);
}

size_t mcpg_context_coordinator(const mcpg_context_t *context, char *buf, size_t cap) {
    if (context == NULL || mcpg__forked()) return copy_text("", buf, cap);
    pthread_mutex_t *mu = (pthread_mutex_t *)(uintptr_t)&context->groups_mu;
    char address[MCPG_ADDRESS_CAP];
    pthread_mutex_lock(mu);
    memcpy(address, context->bootstrap.address, sizeof(address));
    pthread_mutex_unlock(mu);
    return copy_text(address, buf, cap);
}

static mcpg_status_t set_timeouts(mcpg_context_t *context, uint64_t collective_us, uint64_t p2p_us) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (context == NULL) return MCPG_INVALID_ARGUMENT;
    if (collective_us == 0 && p2p_us == 0)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "a timeout of 0 is not possible: give microseconds");
    pthread_mutex_lock(&context->groups_mu);
    if (collective_us != 0) context->timers.collective_timeout_us = collective_us;
    if (p2p_us != 0) context->timers.p2p_timeout_us = p2p_us;
    collective_us = context->timers.collective_timeout_us;
    p2p_us = context->timers.p2p_timeout_us;
    pthread_mutex_unlock(&context->groups_mu);
    mcpg__dp_set_timeouts(context->dp, collective_us, p2p_us);
    return MCPG_OK;
}

mcpg_status_t mcpg_context_set_collective_timeout(mcpg_context_t *context, uint64_t timeout_us) {
    return set_timeouts(context, timeout_us, 0);
}
mcpg_status_t mcpg_context_set_p2p_timeout(mcpg_context_t *context, uint64_t timeout_us) {
    return set_timeouts(context, 0, timeout_us);
}

uint32_t mcpg_context_rank_states(const mcpg_context_t *context, mcpg_rank_state_t *states, uint32_t cap) {
    if (context == NULL || states == NULL || mcpg__forked()) return 0;
    return mcpg__agent_host_rank_states(context->agent, states, cap);
}
