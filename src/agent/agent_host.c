/* agent_host.c: runs one agent machine on one executor: queue in, event log, step, effects out, one timer.
 *
 * Decides nothing: what an event means is the machine's business. Nothing that can block runs on the executor thread.
 *
 * Stop, in this order: (1) new calls are refused; (2) CALL_DETACH, so that the coordinator learns of a graceful end,
 * waited for at most 1 s; (3) the executor lets go of the RPC client, which is destroyed: what is queued is flushed, no
 * callback comes after it; (4) the executor runs what is queued and is joined; (5) calls that are still open are
 * answered SHUTTING_DOWN and their threads leave; (6) event log, memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/agent_host_internal.h"

#define EVENTLOG_SEGMENT_BYTES 0u /* the log's default */

/* ---- posting ---- */

bool mcpg__host_post(mcpg_agent_host_t *host, const mcpg_exec_item_t *item, bool reserved) {
    unsigned limit = reserved ? HOST_QUEUE_CAP : HOST_QUEUE_CAP - HOST_QUEUE_RESERVE;
    if (atomic_fetch_add(&host->queued, 1u) >= limit) {
        atomic_fetch_sub(&host->queued, 1u);
        return false;
    }
    mcpg_status_t status = mcpg__executor_post(host->executor, item);
    if (status == MCPG_OK) return true;
    atomic_fetch_sub(&host->queued, 1u);
    return status == MCPG_SHUTTING_DOWN;
}

void mcpg__host_push_pending(mcpg_agent_host_t *host, const host_pending_t *pending) {
    if (host->pending_head + host->pending_count == host->pending_cap) {
        if (host->pending_head > 0) {
            memmove(host->pending, host->pending + host->pending_head, host->pending_count * sizeof(*host->pending));
            host->pending_head = 0;
        } else {
            size_t cap = host->pending_cap * 2;
            host_pending_t *grown = realloc(host->pending, cap * sizeof(*grown));
            MCPG_ASSERT(grown != NULL);
            host->pending = grown;
            host->pending_cap = cap;
        }
    }
    host->pending[host->pending_head + host->pending_count++] = *pending;
}

/* ---- stepping ---- */

static void check_eventlog(mcpg_agent_host_t *host) {
    if (!mcpg__eventlog_end_if_full(&host->eventlog)) return;
    mcpg__log(&host->log, MCPG_LOG_WARN, "event_log_off event %llu: its disk is full, the job goes on without it",
              (unsigned long long)host->event_seq);
}

static void step(mcpg_agent_host_t *host, const mcpg_agent_event_t *ev, const uint8_t *payload, size_t len) {
    if (host->stopped) {
        uint64_t id = mcpg_agent_event_call(ev);
        if (id != 0) mcpg__host_fail_calls(host, id, MCPG_SHUTTING_DOWN, "the context is being destroyed");
        return;
    }
    host->event_seq++;
    mcpg__eventlog_event(host->eventlog, host->event_seq, ev->now, (uint16_t)ev->kind, payload, len);
    mcpg_agent_effects_reset(&host->effects);
    mcpg_incarnation_t inc = {0, 0};
    pthread_mutex_lock(&host->machine_mu);
    mcpg_status_t status = mcpg_agent_step(host->machine, ev, &host->effects);
    bool attached = mcpg_agent_attached(host->machine, &inc);
    uint64_t digest = mcpg__eventlog_digest_due(host->event_seq) ? mcpg_agent_digest(host->machine) : 0;
    pthread_mutex_unlock(&host->machine_mu);
    if (host->eventlog != NULL) {
        uint32_t crc = mcpg__agent_effects_crc(&host->effects, host->scratch, HOST_SCRATCH_CAP);
        mcpg__eventlog_effects(host->eventlog, host->event_seq, ev->now, host->effects.count, crc);
        if (mcpg__eventlog_digest_due(host->event_seq))
            mcpg__eventlog_digest(host->eventlog, host->event_seq, ev->now, digest);
        check_eventlog(host);
    }
    if (status != MCPG_OK) {
        mcpg__log(&host->log, MCPG_LOG_DEBUG, "event_refused kind %s status %s", mcpg__agent_event_name(ev->kind),
                  mcpg_status_name(status));
        uint64_t id = mcpg_agent_event_call(ev);
        if (id != 0) mcpg__host_fail_calls(host, id, status, mcpg_status_text(status));
        return;
    }
    atomic_store(&host->connected, attached);
    if (attached && !mcpg__inc_eq(inc, host->told_inc)) {
        host->told_inc = inc;
        if (host->config.attached != NULL) host->config.attached(host->config.user, inc);
    }
    mcpg__host_run_effects(host);
}

static void step_encoded(mcpg_agent_host_t *host, mcpg_agent_ev_kind_t kind, const uint8_t *payload, size_t len) {
    mcpg_agent_event_t ev;
    mcpg_down_msg_t msg;
    memset(&ev, 0, sizeof(ev));
    ev.now = mcpg__now();
    ev.kind = kind;
    host->arena.used = 0;
    mcpg_status_t status = mcpg__agent_event_decode(payload, len, &host->arena, &msg, &ev);
    if (status != MCPG_OK) { /* the peer's mistake; a stream that is out of step ends by its own silence or close */
        mcpg__log(&host->log, MCPG_LOG_WARN, "event_malformed kind %s bytes %zu", mcpg__agent_event_name(kind), len);
        return;
    }
    step(host, &ev, payload, len);
}

static void step_plain(mcpg_agent_host_t *host, mcpg_agent_ev_kind_t kind) {
    step_encoded(host, kind, NULL, 0);
}

static void step_pending(mcpg_agent_host_t *host) {
    while (host->pending_count > 0) {
        host_pending_t p = host->pending[host->pending_head++];
        if (--host->pending_count == 0) host->pending_head = 0;
        mcpg_agent_event_t ev;
        memset(&ev, 0, sizeof(ev));
        ev.now = mcpg__now();
        ev.kind = p.kind;
        if (p.kind == MCPG_AGENT_EV_LINK) ev.u.link = p.u.link;
        if (p.kind == MCPG_AGENT_EV_DEATH) ev.u.death = p.u.death;
        if (p.kind == MCPG_AGENT_EV_HELD) ev.u.held = p.u.held;
        uint8_t payload[64];
        size_t len = 0;
        MCPG_ASSERT(mcpg__agent_event_encode(&ev, payload, sizeof(payload), &len) == MCPG_OK);
        step(host, &ev, payload, len);
    }
}

static void rearm(mcpg_agent_host_t *host) {
    mcpg_time_t at = mcpg__link_manager_next(host->links);
    if (host->machine_timer.us < at.us) at = host->machine_timer;
    if (at.us == host->armed.us) return;
    host->armed = at;
    mcpg__executor_arm(host->executor, at);
}

static void on_timer(void *user, mcpg_time_t now) {
    mcpg_agent_host_t *host = user;
    host->armed.us = UINT64_MAX;
    if (host->machine_timer.us <= now.us) {
        host->machine_timer.us = UINT64_MAX;
        step_plain(host, MCPG_AGENT_EV_TIMER);
    }
    mcpg__link_manager_timer(host->links, now);
    step_pending(host);
    mcpg__executor_arm(host->executor, host->armed);
    rearm(host);
}

/* ---- the stream to the coordinator ---- */

static void on_stream_closed(mcpg_agent_host_t *host) {
    host->stream_open = false;
    host->stream_closing = false;
    step_plain(host, MCPG_AGENT_EV_DISCONNECTED);
}

void mcpg__host_connect(mcpg_agent_host_t *host) {
    mcpg_status_t status = host->config.rpc->client_connect(host->client->client);
    if (status == MCPG_OK) {
        host->stream_open = true;
        mcpg__frames_rx_reset(host->frames);
        return;
    }
    mcpg__log(&host->log, MCPG_LOG_WARN, "connect_failed status %s", mcpg_status_name(status));
    mcpg__host_push_pending(host, &(host_pending_t){.kind = MCPG_AGENT_EV_DISCONNECTED});
}

/* A frame that does not fit what the stream carried before: nothing after it would, so the stream ends. */
static void on_frame(mcpg_agent_host_t *host, const uint8_t *frame, size_t len) {
    mcpg_bytes_t whole;
    mcpg_status_t status = mcpg__frames_rx_take(host->frames, frame, len, &whole);
    if (status == MCPG_OK) {
        step_encoded(host, MCPG_AGENT_EV_MSG, whole.ptr, whole.len);
        return;
    }
    mcpg__log(&host->log, MCPG_LOG_WARN, "frame_refused bytes %zu status %s: the stream is closed", len,
              mcpg_status_name(status));
    host->stream_closing = true;
    host->config.rpc->client_disconnect(host->client->client);
}

/* On the caller's stack; the item carries its address. */
typedef struct {
    host_client_t *fresh, *old;
    bool done;
    pthread_cond_t cond;
} host_move_t;

static void on_move(mcpg_agent_host_t *host, const mcpg_exec_item_t *item) {
    host_move_t *move;
    memcpy(&move, item->bytes, sizeof(move));
    host_client_t *old = host->client;
    bool was_open = host->stream_open;
    host->client = move->fresh;
    if (move->fresh == NULL) {
        host->stopped = true; /* the machine has had its DETACH; without a client no effect can be carried out */
    } else if (was_open) {
        on_stream_closed(host);
    }
    pthread_mutex_lock(&host->calls_mu);
    move->old = old;
    move->done = true;
    pthread_cond_signal(&move->cond);
    pthread_mutex_unlock(&host->calls_mu);
}

static void on_item(void *user, const mcpg_exec_item_t *item) {
    mcpg_agent_host_t *host = user;
    atomic_fetch_sub(&host->queued, 1u);
    mcpg_rank_t rank = {(uint32_t)item->a};
    mcpg_incarnation_t inc = {item->b, item->c};
    bool stale = host->client == NULL || item->a != host->client->generation;
    switch (item->kind) {
    case HOST_ITEM_START:
        step_plain(host, MCPG_AGENT_EV_TIMER);
        break;
    case HOST_ITEM_MOVE:
        on_move(host, item);
        break;
    case HOST_ITEM_LINK_UP:
        mcpg__link_manager_up(host->links, rank, inc);
        break;
    case HOST_ITEM_LINK_LOST:
        mcpg__link_manager_lost(host->links, rank, inc, mcpg__now());
        break;
    case HOST_ITEM_LINK_CHECKED_OK:
        mcpg__link_manager_checked(host->links, rank, inc, item->d, true, mcpg__now());
        break;
    case HOST_ITEM_LINK_CHECKED_BAD:
        mcpg__link_manager_checked(host->links, rank, inc, item->d, false, mcpg__now());
        break;
    case HOST_ITEM_LINK_DEATH:
        mcpg__link_manager_death(host->links, rank, inc, (mcpg_proof_t)item->d);
        break;
    case MCPG_AGENT_EV_CONNECTED:
        if (!stale && !host->stream_closing) step_plain(host, MCPG_AGENT_EV_CONNECTED);
        break;
    case MCPG_AGENT_EV_DISCONNECTED:
        if (!stale) on_stream_closed(host);
        break;
    case MCPG_AGENT_EV_MSG:
        if (!stale && !host->stream_closing) on_frame(host, item->bytes, item->len);
        break;
    default:
        step_encoded(host, (mcpg_agent_ev_kind_t)item->kind, item->bytes, item->len);
        break;
    }
    step_pending(host);
    rearm(host);
}

static void rpc_connected(void *user) {
    host_client_t *c = user;
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_CONNECTED, .a = c->generation};
    MCPG_ASSERT(mcpg__host_post(c->host, &item, true));
}

static bool rpc_message(void *user, const uint8_t *buf, size_t len) {
    host_client_t *c = user;
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_MSG, .a = c->generation, .bytes = buf, .len = len};
    return mcpg__host_post(c->host, &item, false);
}

static void rpc_closed(void *user, mcpg_status_t why) {
    host_client_t *c = user;
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_DISCONNECTED, .a = c->generation, .b = (uint64_t)(int64_t)why};
    MCPG_ASSERT(mcpg__host_post(c->host, &item, true));
}

static mcpg_status_t client_new(mcpg_agent_host_t *host, const char *address, mcpg_credentials_t *credentials,
                                uint64_t generation, host_client_t **out, char *error, size_t error_cap) {
    host_client_t *c = calloc(1, sizeof(*c));
    if (c == NULL) return MCPG_NO_MEMORY;
    c->host = host;
    c->generation = generation;
    (void)snprintf(c->address, sizeof(c->address), "%s", address);
    mcpg_rpc_client_events_t events = {
        .user = c, .connected = rpc_connected, .message = rpc_message, .closed = rpc_closed};
    mcpg_status_t status =
        host->config.rpc->client_create(c->address, credentials, &events, &c->client, error, error_cap);
    if (status != MCPG_OK) {
        free(c);
        return status;
    }
    *out = c;
    return MCPG_OK;
}

static void client_free(mcpg_agent_host_t *host, host_client_t *c) {
    if (c == NULL) return;
    host->config.rpc->client_destroy(c->client);
    free(c);
}

/* From the moment this returns the executor does not touch the old client any more. False: the queue is full. */
static bool swap_client(mcpg_agent_host_t *host, host_client_t *fresh, host_client_t **old_out) {
    host_move_t move = {.fresh = fresh};
    host_move_t *self = &move;
    mcpg__host_cond_init(&move.cond);
    mcpg_exec_item_t item = {.kind = HOST_ITEM_MOVE, .bytes = (const uint8_t *)&self, .len = sizeof(self)};
    bool posted = mcpg__host_post(host, &item, true);
    pthread_mutex_lock(&host->calls_mu);
    while (posted && !move.done) (void)pthread_cond_wait(&move.cond, &host->calls_mu);
    pthread_mutex_unlock(&host->calls_mu);
    pthread_cond_destroy(&move.cond);
    if (posted) *old_out = move.old;
    return posted;
}

mcpg_status_t mcpg__agent_host_move(mcpg_agent_host_t *host, const char *address, mcpg_credentials_t *credentials,
                                    char *error, size_t error_cap) {
    MCPG_ASSERT(!mcpg__executor_is_current(host->executor));
    host_client_t *fresh = NULL, *old = NULL;
    pthread_mutex_lock(&host->calls_mu);
    uint64_t generation = ++host->next_call_id; /* any number that was not used before */
    pthread_mutex_unlock(&host->calls_mu);
    MCPG_TRY(client_new(host, address, credentials, generation, &fresh, error, error_cap));
    if (!swap_client(host, fresh, &old)) {
        client_free(host, fresh);
        (void)snprintf(error, error_cap, "the agent's queue is full: try again");
        return MCPG_BUSY;
    }
    client_free(host, old);
    return MCPG_OK;
}

/* ---- start and stop ---- */

static void links_open(void *user, const mcpg_dp_peer_t *peer) {
    mcpg_agent_host_t *host = user;
    host->config.dp_ops->open_link(host->config.dp, peer);
}
static void links_close(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    mcpg_agent_host_t *host = user;
    host->config.dp_ops->close_link(host->config.dp, rank, inc, dead);
}
static void links_check(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    mcpg_agent_host_t *host = user;
    host->config.dp_ops->check_link(host->config.dp, rank, inc, check_id);
}
static void links_event(void *user, const mcpg_agent_link_ev_t *event) {
    mcpg__host_push_pending(user, &(host_pending_t){.kind = MCPG_AGENT_EV_LINK, .u.link = *event});
}
static void links_death(void *user, const mcpg_agent_death_ev_t *event) {
    mcpg__host_push_pending(user, &(host_pending_t){.kind = MCPG_AGENT_EV_DEATH, .u.death = *event});
}

static void open_eventlog(mcpg_agent_host_t *host) {
    if (host->config.event_log_dir == NULL || host->config.event_log_dir[0] == '\0') return;
    const mcpg_agent_config_t *a = &host->config.agent;
    uint8_t config[MCPG_AGENT_CONFIG_CAP];
    size_t len = 0;
    MCPG_ASSERT(mcpg__agent_config_encode(a, config, sizeof(config), &len) == MCPG_OK);
    char prefix[512];
    int n = snprintf(prefix, sizeof(prefix), "%s/agent-%u-%lld-%08x", host->config.event_log_dir, a->rank.v,
                     (long long)a->pid, (unsigned)(a->session.v & 0xffffffffu));
    mcpg_status_t status = MCPG_LIMIT;
    if (n > 0 && (size_t)n < sizeof(prefix))
        status =
            mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, config, (uint32_t)len, EVENTLOG_SEGMENT_BYTES, &host->eventlog);
    if (status != MCPG_OK)
        mcpg__log(&host->log, MCPG_LOG_WARN, "event_log_off dir %s status %s: give a folder that exists and has room",
                  host->config.event_log_dir, mcpg_status_name(status));
    else
        mcpg__log(&host->log, MCPG_LOG_INFO, "event_log path %s", prefix);
}

static void host_free(mcpg_agent_host_t *host) {
    mcpg__eventlog_close(host->eventlog);
    mcpg__link_manager_destroy(host->links);
    pthread_cond_destroy(&host->attach_cond);
    pthread_cond_destroy(&host->idle_cond);
    pthread_mutex_destroy(&host->calls_mu);
    pthread_mutex_destroy(&host->machine_mu);
    free(host->scratch);
    mcpg__frames_rx_free(host->frames);
    free(host->arena.base);
    free(host->pending);
    free(host->effects.items);
    free(host->effects.arena);
    free(host->machine_mem);
    free(host);
}

static void *zalloc16(size_t size) {
    size_t rounded = (size + 15u) & ~(size_t)15u;
    return calloc(1, rounded == 0 ? 16 : rounded); /* malloc's alignment is 16 on every 64-bit Linux */
}

static mcpg_status_t host_allocate(mcpg_agent_host_t *host) {
    const mcpg_agent_config_t *a = &host->config.agent;
    size_t size = mcpg_agent_size(a);
    size_t arena_cap = 0;
    uint32_t item_cap = 0;
    mcpg_agent_effects_worst(a, &item_cap, &arena_cap);
    host->machine_mem = zalloc16(size);
    host->effects.items = zalloc16((size_t)item_cap * sizeof(mcpg_agent_effect_t));
    host->effects.arena = zalloc16(arena_cap);
    host->effects.cap = item_cap;
    host->effects.arena_cap = arena_cap;
    host->pending_cap = 64;
    host->pending = zalloc16(host->pending_cap * sizeof(host_pending_t));
    host->scratch = zalloc16(HOST_SCRATCH_CAP);
    host->frames = mcpg__frames_rx_new();
    host->arena.cap = MCPG_DECODE_ARENA_CAP;
    host->arena.base = zalloc16(host->arena.cap);
    if (host->machine_mem == NULL || host->effects.items == NULL || host->effects.arena == NULL ||
        host->pending == NULL || host->scratch == NULL || host->frames == NULL || host->arena.base == NULL)
        return MCPG_NO_MEMORY;
    mcpg_link_manager_out_t out = {.user = host,
                                   .open = links_open,
                                   .close = links_close,
                                   .check = links_check,
                                   .link_event = links_event,
                                   .death_event = links_death};
    mcpg_link_retry_t retry = {.first_us = a->timers.link_retry_us, .last_us = a->timers.link_retry_max_us};
    MCPG_TRY(mcpg__link_manager_create(&out, a->max_ranks, retry, &host->links));
    return mcpg_agent_init(host->machine_mem, size, a, &host->machine);
}

static mcpg_status_t wait_attached(mcpg_agent_host_t *host, char *error, size_t error_cap) {
    uint64_t limit_us = host->config.agent.attach_timeout_us;
    uint64_t deadline = mcpg__now().us + limit_us + 1000000u;
    pthread_mutex_lock(&host->calls_mu);
    while (!host->attach_done && mcpg__host_cond_wait(&host->attach_cond, &host->calls_mu, deadline)) {
    }
    mcpg_status_t status = host->attach_done ? host->attach_status : MCPG_UNAVAILABLE;
    char text[MCPG_TEXT_CAP];
    (void)snprintf(text, sizeof(text), "%s", host->attach_text);
    pthread_mutex_unlock(&host->calls_mu);
    if (status == MCPG_OK) return MCPG_OK;
    if (strncmp(text, "no coordinator answered", 23) == 0)
        text[0] = '\0'; /* the machine does not know the address; this does */
    if (status == MCPG_UNAVAILABLE || status == MCPG_TIMED_OUT) {
        (void)snprintf(error, error_cap,
                       "no coordinator answered at \"%s\" within %.1f s: check that it runs and that the address "
                       "(config.coordinator or MOONCAKE_COORDINATOR) is right%s%s",
                       host->client->address, (double)limit_us / 1e6, text[0] != '\0' ? "; " : "", text);
    } else {
        (void)snprintf(error, error_cap, "%s", text[0] != '\0' ? text : mcpg_status_text(status));
    }
    return status;
}

mcpg_status_t mcpg__agent_host_start(const mcpg_agent_host_config_t *config, mcpg_agent_host_t **out, char *error,
                                     size_t error_cap) {
    mcpg_agent_host_t *host = calloc(1, sizeof(*host));
    if (host == NULL) return MCPG_NO_MEMORY;
    host->config = *config;
    host->log = config->log;
    host->machine_timer.us = host->armed.us = UINT64_MAX;
    pthread_mutex_init(&host->machine_mu, NULL);
    pthread_mutex_init(&host->calls_mu, NULL);
    mcpg__host_cond_init(&host->attach_cond);
    mcpg__host_cond_init(&host->idle_cond);
    mcpg__host_init_observer(host);
    mcpg_status_t status = host_allocate(host);
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap, "the agent cannot be set up: %s", mcpg_status_text(status));
        goto err_free;
    }
    open_eventlog(host);
    mcpg_executor_config_t exec = {
        .thread_name = "mcpg-agent", .queue_cap = HOST_QUEUE_CAP, .user = host, .item = on_item, .timer = on_timer};
    status = mcpg__executor_start(&exec, &host->executor);
    if (status != MCPG_OK) {
        (void)snprintf(error, error_cap, "the agent's thread cannot be started: %s", mcpg_status_text(status));
        goto err_free;
    }
    host->next_call_id = 1;
    status = client_new(host, config->coordinator, config->credentials, 1, &host->client, error, error_cap);
    if (status != MCPG_OK) goto err_executor;
    host->config.coordinator = host->client->address;
    if (config->observe != NULL) config->observe(config->user, &host->observer);
    mcpg_exec_item_t start = {.kind = HOST_ITEM_START};
    MCPG_ASSERT(mcpg__host_post(host, &start, true));
    status = wait_attached(host, error, error_cap);
    if (status != MCPG_OK) {
        if (config->observe != NULL) config->observe(config->user, NULL);
        mcpg__agent_host_stop(host);
        return status;
    }
    *out = host;
    return MCPG_OK;
err_executor:
    mcpg__executor_stop(host->executor);
err_free:
    host_free(host);
    return status;
}

void mcpg__agent_host_stop(mcpg_agent_host_t *host) {
    if (host == NULL) return;
    pthread_mutex_lock(&host->calls_mu);
    host->refuse_calls = true;
    pthread_mutex_unlock(&host->calls_mu);
    mcpg__host_detach(host, 1000000u);
    host_client_t *client = NULL;
    MCPG_ASSERT(swap_client(host, NULL, &client)); /* the reserve is never full: a few items at a time use it */
    client_free(host, client);
    mcpg__executor_stop(host->executor);
    host->executor = NULL;
    mcpg__host_fail_calls(host, 0, MCPG_SHUTTING_DOWN, "the context is being destroyed");
    pthread_mutex_lock(&host->calls_mu);
    while (host->callers > 0) (void)pthread_cond_wait(&host->idle_cond, &host->calls_mu);
    pthread_mutex_unlock(&host->calls_mu);
    host_free(host);
}

const mcpg_dp_observer_t *mcpg__agent_host_observer(mcpg_agent_host_t *host) {
    return &host->observer;
}
