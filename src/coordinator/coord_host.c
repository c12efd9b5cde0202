/* coord_host.c: runs one coordinator machine: executor, timer, RPC server, event log.
 *
 * Order of things: transport threads only post; the executor thread decodes, records, steps, interprets. Decides
 * nothing about ranks or groups, and never blocks on the executor thread. A message that cannot be decoded costs its
 * own connection and nothing else.
 */
#include "coordinator/coord_host.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/codec.h"
#include "coordinator/coord.h"
#include "coordinator/coord_host_priv.h"

#define QUEUE_CAP  8192u
#define SLAB_CAP   ((size_t)16 << 20)
#define CLOSED_CAP 8192u
#define DRAIN_US   5500000u /* a little more than the machine's own 5 s: it answers what is open first */
#define RETRY_NS   1000000L
/* Of the clique search: bounds one step to some 100 ms on hard graphs; beyond it the answer is greedy. */
#define NODE_BUDGET 10000u

enum { ITEM_MSG = 1, ITEM_CLOSED, ITEM_EXIT, ITEM_SHUTDOWN };

/* ---- from the transport's threads ---- */

/* Counts what was posted, so that a connection's end is never handled before its messages. */
static mcpg_status_t post_locked(mcpg_coord_host_t *host, const mcpg_exec_item_t *item) {
    if (host->is_closed) return MCPG_SHUTTING_DOWN;
    mcpg_status_t status = mcpg__executor_post(host->executor, item);
    if (status == MCPG_OK) host->posted++;
    return status;
}
static mcpg_status_t post(mcpg_coord_host_t *host, const mcpg_exec_item_t *item) {
    (void)pthread_mutex_lock(&host->lock);
    mcpg_status_t status = post_locked(host, item);
    (void)pthread_mutex_unlock(&host->lock);
    return status;
}

static void on_opened(void *user, uint64_t conn) {
    const mcpg_coord_host_t *host = (const mcpg_coord_host_t *)user;
    mcpg__log(&host->log, MCPG_LOG_DEBUG, "stream_opened conn %llu", (unsigned long long)conn);
}

static bool on_message(void *user, uint64_t conn, const uint8_t *buf, size_t len) {
    mcpg_coord_host_t *host = (mcpg_coord_host_t *)user;
    if (!atomic_load_explicit(&host->is_serving, memory_order_acquire)) return false;
    mcpg_exec_item_t item = {.kind = ITEM_MSG, .a = conn, .bytes = buf, .len = len};
    return post(host, &item) != MCPG_BUSY; /* after stop nobody is there to read it: taken and dropped */
}

/* A full queue must not lose a connection's end: it is kept aside with the number of items that go before it. Beyond
 * CLOSED_CAP it is dropped, and the rank's silence says the same a little later. */
static void on_closed(void *user, uint64_t conn) {
    mcpg_coord_host_t *host = (mcpg_coord_host_t *)user;
    mcpg_exec_item_t item = {.kind = ITEM_CLOSED, .a = conn};
    bool is_lost = false;
    (void)pthread_mutex_lock(&host->lock);
    uint32_t waiting = atomic_load_explicit(&host->late_count, memory_order_relaxed);
    if (waiting > 0 || post_locked(host, &item) == MCPG_BUSY) {
        is_lost = waiting == CLOSED_CAP;
        if (!is_lost) {
            host->late[waiting] = (mcpg_coord_late_t){conn, host->posted};
            atomic_store_explicit(&host->late_count, waiting + 1u, memory_order_release);
        }
    }
    (void)pthread_mutex_unlock(&host->lock);
    if (is_lost)
        mcpg__log(&host->log, MCPG_LOG_ERROR, "closed_dropped conn %llu: queue full", (unsigned long long)conn);
}

/* ---- executor thread: effects ---- */

static void send_to(mcpg_coord_host_t *host, uint64_t conn, mcpg_down_kind_t kind, mcpg_bytes_t bytes) {
    mcpg_status_t status = host->rpc->server_send(host->server, conn, bytes.ptr, bytes.len);
    if (status == MCPG_OK || status == MCPG_NOT_FOUND) return; /* gone: its CLOSED is on the way */
    mcpg__log(&host->log, MCPG_LOG_WARN, "send_failed conn %llu message %s status %s", (unsigned long long)conn,
              mcpg__down_name(kind), mcpg_status_name(status));
}

/* Each stream gets the message whole or as the difference to what it was sent before. */
static void send_to_ranks(mcpg_coord_host_t *host, const mcpg_coord_effect_t *fx, size_t len) {
    mcpg__frames_tx_begin(host->frames, fx->msg, host->packed, len);
    for (uint32_t r = mcpg__rankset_next(fx->to, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(fx->to, r + 1)) {
        uint64_t conn = 0;
        if (!mcpg_coord_rank_conn(host->coord, (mcpg_rank_t){r}, &conn)) continue;
        send_to(host, conn, fx->msg->kind, mcpg__frames_tx_frame_for(host->frames, r, conn));
    }
    mcpg__frames_tx_end(host->frames);
}

static bool pack(mcpg_coord_host_t *host, const mcpg_down_msg_t *msg, size_t *len_out) {
    mcpg_status_t status = mcpg__down_pack(msg, host->packed, MCPG_MSG_CAP, len_out);
    if (status == MCPG_OK) return true;
    mcpg__log(&host->log, MCPG_LOG_ERROR, "message_not_packed %s status %s", mcpg__down_name(msg->kind),
              mcpg_status_name(status));
    return false;
}

/* Runs one effect; returns the CRC over its canonical bytes, chained. */
static uint32_t run_effect(mcpg_coord_host_t *host, const mcpg_coord_effect_t *fx, uint32_t crc) {
    size_t len = 0;
    bool is_send = fx->kind == MCPG_COORD_FX_SEND || fx->kind == MCPG_COORD_FX_SEND_CONN;
    bool is_packed = is_send && pack(host, fx->msg, &len);
    if (host->eventlog != NULL) crc = mcpg__coord_effect_crc(crc, fx, host->packed, is_packed ? len : 0);
    switch (fx->kind) {
    case MCPG_COORD_FX_SEND:
        if (is_packed) send_to_ranks(host, fx, len);
        break;
    case MCPG_COORD_FX_SEND_CONN:
        if (is_packed) send_to(host, fx->conn, fx->msg->kind, (mcpg_bytes_t){host->packed, (uint32_t)len});
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        mcpg__conn_table_set_closing(&host->conns, fx->conn);
        host->rpc->server_close(host->server, fx->conn);
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        mcpg__executor_arm(host->executor, fx->at);
        break;
    case MCPG_COORD_FX_STOP:
        (void)pthread_mutex_lock(&host->lock);
        host->is_stopped = true;
        (void)pthread_cond_signal(&host->stopped);
        (void)pthread_mutex_unlock(&host->lock);
        host->is_over = true;
        break;
    case MCPG_COORD_FX_RECORD_CLAIM:
    case MCPG_COORD_FX_RECORD_WRITE:
    case MCPG_COORD_FX__COUNT:
        MCPG_ASSERT(false);
    }
    return crc;
}

/* ---- executor thread: events ---- */

static void step(mcpg_coord_host_t *host, const mcpg_coord_event_t *event, const uint8_t *raw, size_t raw_len) {
    if (host->is_over) return;
    host->event_seq++;
    mcpg__coord_log_event(host->eventlog, host->event_seq, event, raw, raw_len,
                          host->packed); /* free between effects */
    mcpg_coord_effects_reset(&host->effects);
    mcpg_status_t status = mcpg_coord_step(host->coord, event, &host->effects);
    if (status != MCPG_OK) {
        host->effects.count = 0; /* a rejected event changes nothing */
        mcpg__log(
            &host->log, status == MCPG_LIMIT ? MCPG_LOG_WARN : MCPG_LOG_DEBUG,
            "event_rejected kind %d conn %llu message %s status %s", (int)event->kind, (unsigned long long)event->conn,
            event->kind == MCPG_COORD_EV_MSG ? mcpg__up_name(event->msg->kind) : "none", mcpg_status_name(status));
    }
    uint32_t crc = 0;
    for (uint32_t i = 0; i < host->effects.count; i++) crc = run_effect(host, &host->effects.items[i], crc);
    mcpg__coord_log_effects(host->eventlog, host->event_seq, event->now, host->effects.count, crc, host->coord);
    mcpg__coord_check_eventlog(host);
}

static void handle_message(mcpg_coord_host_t *host, const mcpg_exec_item_t *item) {
    uint64_t conn = item->a;
    if (!mcpg__conn_table_add(&host->conns, conn)) {
        mcpg__log(&host->log, MCPG_LOG_WARN, "too_many_streams conn %llu closed", (unsigned long long)conn);
        host->rpc->server_close(host->server, conn);
        return;
    }
    if (mcpg__conn_table_is_closing(&host->conns, conn)) return;
    mcpg_up_msg_t msg;
    mcpg_arena_t arena = {.base = host->decode, .cap = MCPG_COORD_DECODE_CAP};
    mcpg_status_t status = mcpg__up_unpack(item->bytes, item->len, &arena, &msg);
    if (status != MCPG_OK) {
        mcpg__log(&host->log, MCPG_LOG_WARN, "malformed_message conn %llu bytes %zu: %s, the stream is closed",
                  (unsigned long long)conn, item->len, mcpg_status_text(status));
        mcpg__conn_table_set_closing(&host->conns, conn);
        host->rpc->server_close(host->server, conn);
        return;
    }
    if (!mcpg__coord_host_admits(host, conn, &msg)) return;
    mcpg_coord_event_t event = {.now = mcpg__now(), .kind = MCPG_COORD_EV_MSG, .conn = conn, .msg = &msg};
    step(host, &event, item->bytes, item->len);
}

/* A stream that never said anything is unknown to the machine. */
static void handle_closed(mcpg_coord_host_t *host, uint64_t conn) {
    if (!mcpg__conn_table_remove(&host->conns, conn)) return;
    mcpg_coord_event_t event = {.now = mcpg__now(), .kind = MCPG_COORD_EV_CLOSED, .conn = conn};
    step(host, &event, NULL, 0);
}

/* Ends of connections that found the queue full, as soon as everything posted before them was handled. bounded: each
 * round takes one off a list of fixed size, or returns. */
static void handle_late(mcpg_coord_host_t *host) {
    while (atomic_load_explicit(&host->late_count, memory_order_acquire) > 0) {
        (void)pthread_mutex_lock(&host->lock);
        uint32_t count = atomic_load_explicit(&host->late_count, memory_order_relaxed);
        uint64_t conn = host->late[0].conn;
        bool is_due = host->handled >= host->late[0].after;
        if (is_due) {
            memmove(&host->late[0], &host->late[1], (count - 1u) * sizeof host->late[0]);
            atomic_store_explicit(&host->late_count, count - 1u, memory_order_release);
        }
        (void)pthread_mutex_unlock(&host->lock);
        if (!is_due) return;
        handle_closed(host, conn);
    }
}

static void on_item(void *user, const mcpg_exec_item_t *item) {
    mcpg_coord_host_t *host = (mcpg_coord_host_t *)user;
    mcpg_coord_event_t event = {.now = mcpg__now()};
    switch (item->kind) {
    case ITEM_MSG:
        handle_message(host, item);
        break;
    case ITEM_CLOSED:
        handle_closed(host, item->a);
        break;
    case ITEM_EXIT:
        event.kind = MCPG_COORD_EV_EXIT;
        event.rank = (mcpg_rank_t){(uint32_t)item->a};
        event.pid = (int64_t)item->b;
        step(host, &event, NULL, 0);
        break;
    case ITEM_SHUTDOWN:
        event.kind = MCPG_COORD_EV_SHUTDOWN;
        step(host, &event, NULL, 0);
        break;
    default:
        MCPG_ASSERT(false);
    }
    host->handled++;
    handle_late(host);
}

static void on_timer(void *user, mcpg_time_t now) {
    mcpg_coord_event_t event = {.now = now, .kind = MCPG_COORD_EV_TIMER};
    step((mcpg_coord_host_t *)user, &event, NULL, 0);
}

/* ---- start and stop ---- */

static uint64_t random_id(void) {
    uint64_t id = 0;
    for (int tries = 0; tries < 16 && id == 0;
         tries++) /* bounded: a zero or an interruption, again and again, does not happen */
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = 0;
    if (id == 0) id = (mcpg__now().us << 20) ^ (uint64_t)getpid() ^ 1u;
    return id;
}

static void free_host(mcpg_coord_host_t *host) {
    mcpg__eventlog_close(host->eventlog);
    mcpg__conn_table_fini(&host->conns);
    (void)pthread_cond_destroy(&host->stopped);
    (void)pthread_mutex_destroy(&host->lock);
    free(host->late);
    free(host->packed);
    mcpg__frames_tx_free(host->frames);
    free(host->decode);
    free(host->effects.items);
    free(host->effects.arena);
    free(host->memory);
    free(host);
}

static mcpg_coord_host_t *alloc_host(void) {
    mcpg_coord_host_t *host = (mcpg_coord_host_t *)calloc(1, sizeof *host);
    if (host == NULL) return NULL;
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&host->lock, NULL);
    (void)pthread_cond_init(&host->stopped, &attr);
    (void)pthread_condattr_destroy(&attr);
    return host;
}

static mcpg_status_t make_machine(mcpg_coord_host_t *host, const mcpg_coord_host_config_t *config) {
    host->machine = (mcpg_coord_config_t){
        .term = config->term,
        .coordinator_id = random_id(),
        .max_ranks = MCPG_MAX_RANKS,
        .max_groups = MCPG_MAX_GROUPS,
        .max_slots_total = MCPG_MAX_SLOTS_TOTAL,
        .clique_node_budget = NODE_BUDGET,
        .predecessor = config->predecessor,
        .timers = config->timers,
    };
    size_t size = mcpg_coord_size(&host->machine);
    mcpg_coord_effects_worst(&host->machine, &host->effects.cap, &host->effects.arena_cap);
    host->memory = calloc(1, size);
    host->effects.items = (mcpg_coord_effect_t *)calloc(host->effects.cap, sizeof *host->effects.items);
    host->effects.arena = (uint8_t *)malloc(host->effects.arena_cap);
    host->decode = (uint8_t *)malloc(MCPG_COORD_DECODE_CAP);
    host->packed = (uint8_t *)malloc(MCPG_COORD_EVENT_CAP);
    host->frames = mcpg__frames_tx_new(host->machine.max_ranks);
    host->late = (mcpg_coord_late_t *)calloc(CLOSED_CAP, sizeof *host->late);
    if (host->memory == NULL || host->effects.items == NULL || host->effects.arena == NULL || host->decode == NULL ||
        host->packed == NULL || host->frames == NULL || host->late == NULL || !mcpg__conn_table_init(&host->conns))
        return MCPG_NO_MEMORY;
    return mcpg_coord_init(host->memory, size, &host->machine, &host->coord);
}

static mcpg_status_t start_threads(mcpg_coord_host_t *host, const mcpg_coord_host_config_t *config, char *error,
                                   size_t error_cap) {
    mcpg_executor_config_t executor = {
        .thread_name = "mcpg-coord",
        .queue_cap = QUEUE_CAP,
        .slab_cap = SLAB_CAP,
        .user = host,
        .item = on_item,
        .timer = on_timer,
    };
    MCPG_TRY(mcpg__executor_start(&executor, &host->executor));
    mcpg_rpc_server_events_t events = {.user = host,
                                       .opened = on_opened,
                                       .message = on_message,
                                       .closed = on_closed,
                                       .refusal = mcpg__coord_host_refusal};
    mcpg_status_t status =
        host->rpc->serve(config->bind, config->credentials, &events, &host->server, error, error_cap);
    if (status != MCPG_OK) {
        mcpg__executor_stop(host->executor);
        return status;
    }
    atomic_store_explicit(&host->is_serving, true,
                          memory_order_release); /* host->server is in place: messages may come */
    return MCPG_OK;
}

mcpg_status_t mcpg__coord_host_start(const mcpg_coord_host_config_t *config, mcpg_coord_host_t **out, char *error,
                                     size_t error_cap) {
    if (error != NULL && error_cap > 0) error[0] = '\0';
    mcpg_coord_host_t *host = alloc_host();
    if (host == NULL) return MCPG_NO_MEMORY;
    host->rpc = config->rpc;
    host->log = config->log;
    mcpg_status_t status = make_machine(host, config);
    if (status != MCPG_OK) goto err_free;
    mcpg__coord_open_eventlog(host, config->event_log_dir);
    status = start_threads(host, config, error, error_cap);
    if (status != MCPG_OK) goto err_free;
    char address[160];
    (void)mcpg__coord_host_address(host, address, sizeof address);
    mcpg__log(&host->log, MCPG_LOG_INFO, "coordinator_started address %s term %llu", address,
              (unsigned long long)config->term);
    *out = host;
    return MCPG_OK;

err_free:
    if (error != NULL && error_cap > 0 && error[0] == '\0')
        (void)snprintf(error, error_cap, "the coordinator with term %llu could not be started: %s",
                       (unsigned long long)config->term, mcpg_status_text(status));
    free_host(host);
    return status;
}

size_t mcpg__coord_host_address(const mcpg_coord_host_t *host, char *buf, size_t cap) {
    return host->rpc->server_address(host->server, buf, cap);
}

mcpg_status_t mcpg__coord_host_report_exit(mcpg_coord_host_t *host, mcpg_rank_t rank, int64_t pid) {
    if (rank.v >= MCPG_MAX_RANKS) return MCPG_INVALID_ARGUMENT;
    mcpg_exec_item_t item = {.kind = ITEM_EXIT, .a = rank.v, .b = (uint64_t)pid};
    return post(host, &item);
}

static void wait_stopped(mcpg_coord_host_t *host, uint64_t until_us) {
    struct timespec until = {.tv_sec = (time_t)(until_us / 1000000u), .tv_nsec = (long)(until_us % 1000000u) * 1000L};
    (void)pthread_mutex_lock(&host->lock);
    int rc = 0;
    while (!host->is_stopped && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&host->stopped, &host->lock, &until);
    bool is_stopped = host->is_stopped;
    (void)pthread_mutex_unlock(&host->lock);
    if (!is_stopped) mcpg__log(&host->log, MCPG_LOG_WARN, "coordinator_stop not drained in %u us", DRAIN_US);
}

/* The machine refuses newcomers from SHUTDOWN on; the transport goes last, so that answers still leave. */
void mcpg__coord_host_stop(mcpg_coord_host_t *host) {
    if (host == NULL) return;
    uint64_t until_us = mcpg__now().us + DRAIN_US;
    mcpg_exec_item_t item = {.kind = ITEM_SHUTDOWN};
    mcpg_status_t status = post(host, &item);
    while (status == MCPG_BUSY && mcpg__now().us < until_us) { /* bounded: by the drain deadline */
        struct timespec pause = {.tv_nsec = RETRY_NS};
        (void)nanosleep(&pause, NULL);
        status = post(host, &item);
    }
    wait_stopped(host, until_us);
    (void)pthread_mutex_lock(&host->lock);
    host->is_closed = true; /* the executor goes before the transport: nobody may post any more */
    (void)pthread_mutex_unlock(&host->lock);
    mcpg__executor_stop(host->executor);
    host->rpc->server_stop(host->server);
    mcpg__log(&host->log, MCPG_LOG_INFO, "coordinator_stopped events %llu", (unsigned long long)host->event_seq);
    free_host(host);
}
