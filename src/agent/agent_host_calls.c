/* agent_host_calls.c: blocking calls of API threads (one condition variable each) and snapshot reads.
 *
 * A call is answered exactly once: by the machine's CALL_DONE, by a refused event, or by stop. Never runs on the
 * executor thread.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agent/agent_host_internal.h"

#define CALL_DEFAULT_US  300000000u
#define CALL_BACKSTOP_US 30000000u /* beyond a call's own limit: the machine should have answered long ago */
#define LEAVE_LIMIT_US   5000000u
#define ROOM_LIMIT_US    1000000u
#define SLICE_US         1000000u

void mcpg__host_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool mcpg__host_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mu, uint64_t deadline_us) {
    struct timespec ts = {.tv_sec = (time_t)(deadline_us / 1000000u), .tv_nsec = (long)(deadline_us % 1000000u) * 1000};
    return pthread_cond_timedwait(cond, mu, &ts) == 0 || mcpg__now().us < deadline_us;
}

static void finish(host_call_t *call, mcpg_status_t status, const char *text, size_t len) {
    call->result.status = status;
    (void)snprintf(call->text, sizeof(call->text), "%.*s", (int)len, text);
    call->done = true;
    pthread_cond_signal(&call->cond);
}

static host_call_t *unlink_call(mcpg_agent_host_t *host, uint64_t id) {
    for (host_call_t **at = &host->calls; *at != NULL; at = &(*at)->next) {
        if ((*at)->id != id) continue;
        host_call_t *call = *at;
        *at = call->next;
        return call;
    }
    return NULL;
}

void mcpg__host_call_done(mcpg_agent_host_t *host, const mcpg_agent_call_done_t *done) {
    pthread_mutex_lock(&host->calls_mu);
    host_call_t *call = unlink_call(host, done->call_id);
    if (call != NULL) {
        call->result = *done;
        finish(call, done->status, done->text.len != 0 ? (const char *)done->text.ptr : "", done->text.len);
    }
    pthread_mutex_unlock(&host->calls_mu);
}

void mcpg__host_fail_calls(mcpg_agent_host_t *host, uint64_t only_id, mcpg_status_t status, const char *text) {
    pthread_mutex_lock(&host->calls_mu);
    while (host->calls != NULL) {
        host_call_t *call = unlink_call(host, only_id != 0 ? only_id : host->calls->id);
        if (call != NULL) finish(call, status, text, strlen(text));
        if (only_id != 0) break;
    }
    pthread_mutex_unlock(&host->calls_mu);
}

/* A goodbye that nobody hears would leave the others waiting for this process: it waits for room, the rest may try
 * again. */
static bool post_call(mcpg_agent_host_t *host, const mcpg_exec_item_t *item) {
    bool goodbye = item->kind == MCPG_AGENT_EV_CALL_LEAVE || item->kind == MCPG_AGENT_EV_CALL_DETACH;
    uint64_t until_us = mcpg__now().us + (goodbye ? ROOM_LIMIT_US : 0);
    while (!mcpg__host_post(host, item, false)) { /* bounded: by ROOM_LIMIT_US */
        if (mcpg__now().us >= until_us) return false;
        struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

/* In slices: time in which this process was stopped does not count, as it does not in the machine. */
static void wait_done(mcpg_agent_host_t *host, host_call_t *call, uint64_t limit_us) {
    uint64_t left_us = limit_us;
    while (!call->done && left_us > 0) {
        uint64_t begin_us = mcpg__now().us, slice_us = left_us < SLICE_US ? left_us : SLICE_US;
        while (!call->done && mcpg__host_cond_wait(&call->cond, &host->calls_mu, begin_us + slice_us)) {
        }
        left_us -= slice_us;
    }
}

/* ev has everything but the call id, which goes to *id_at inside it. */
static mcpg_status_t run_call(mcpg_agent_host_t *host, mcpg_agent_event_t *ev, uint64_t *id_at, uint64_t limit_us,
                              bool stopping, mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap) {
    MCPG_ASSERT(!mcpg__executor_is_current(host->executor));
    host_call_t call;
    memset(&call, 0, sizeof(call));
    mcpg__host_cond_init(&call.cond);
    pthread_mutex_lock(&host->calls_mu);
    if (host->refuse_calls && !stopping) {
        pthread_mutex_unlock(&host->calls_mu);
        pthread_cond_destroy(&call.cond);
        if (text_cap > 0) (void)snprintf(text_out, text_cap, "the context is being destroyed");
        return MCPG_SHUTTING_DOWN;
    }
    call.id = *id_at = ++host->next_call_id;
    call.next = host->calls;
    host->calls = &call;
    host->callers++;
    pthread_mutex_unlock(&host->calls_mu);

    uint8_t buf[MCPG_AGENT_EVENT_CAP];
    size_t len = 0;
    mcpg_status_t status = mcpg__agent_event_encode(ev, buf, sizeof(buf), &len);
    mcpg_exec_item_t item = {.kind = (uint32_t)ev->kind, .bytes = buf, .len = len};
    if (status == MCPG_OK && !post_call(host, &item)) status = MCPG_BUSY;
    if (status != MCPG_OK) mcpg__host_fail_calls(host, call.id, status, "the agent's queue is full: try again");

    pthread_mutex_lock(&host->calls_mu);
    wait_done(host, &call, limit_us);
    if (!call.done) {
        (void)unlink_call(host, call.id);
        finish(&call, MCPG_TIMED_OUT, "the agent did not answer: this is a bug, see the event log", 58);
    }
    status = call.result.status;
    if (status == MCPG_OK && done_out != NULL) {
        *done_out = call.result;
        done_out->text = (mcpg_bytes_t){NULL, 0};
    }
    if (text_cap > 0) (void)snprintf(text_out, text_cap, "%s", call.text);
    if (--host->callers == 0) pthread_cond_broadcast(&host->idle_cond);
    pthread_mutex_unlock(&host->calls_mu);
    pthread_cond_destroy(&call.cond);
    return status;
}

static uint64_t backstop(uint64_t timeout_us) {
    uint64_t t = timeout_us == 0 ? CALL_DEFAULT_US : timeout_us;
    return t > UINT64_MAX / 4 ? UINT64_MAX / 4 : t + CALL_BACKSTOP_US;
}

mcpg_status_t mcpg__agent_host_register(mcpg_agent_host_t *host, mcpg_agent_call_register_t *call,
                                        mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_REGISTER, .u.call_register = *call};
    return run_call(host, &ev, &ev.u.call_register.call_id, backstop(call->timeout_us), false, done_out, text_out,
                    text_cap);
}

mcpg_status_t mcpg__agent_host_join(mcpg_agent_host_t *host, mcpg_agent_call_join_t *call,
                                    mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_JOIN, .u.call_join = *call};
    return run_call(host, &ev, &ev.u.call_join.call_id, backstop(call->timeout_us), false, done_out, text_out,
                    text_cap);
}

mcpg_status_t mcpg__agent_host_propose(mcpg_agent_host_t *host, mcpg_agent_call_propose_t *call,
                                       mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_PROPOSE, .u.call_propose = *call};
    return run_call(host, &ev, &ev.u.call_propose.call_id, backstop(call->wait_us), false, done_out, text_out,
                    text_cap);
}

mcpg_status_t mcpg__agent_host_sync(mcpg_agent_host_t *host, mcpg_agent_call_sync_t *call,
                                    mcpg_agent_call_done_t *done_out, char *text_out, size_t text_cap) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_SYNC, .u.call_sync = *call};
    return run_call(host, &ev, &ev.u.call_sync.call_id, backstop(call->timeout_us), false, done_out, text_out,
                    text_cap);
}

void mcpg__agent_host_leave(mcpg_agent_host_t *host, mcpg_gid_t gid, uint64_t next_seq) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_LEAVE, .u.call_leave = {.gid = gid, .next_seq = next_seq}};
    (void)run_call(host, &ev, &ev.u.call_leave.call_id, LEAVE_LIMIT_US, false, NULL, NULL, 0);
}

void mcpg__host_detach(mcpg_agent_host_t *host, uint64_t limit_us) {
    mcpg_agent_event_t ev = {.kind = MCPG_AGENT_EV_CALL_DETACH};
    (void)run_call(host, &ev, &ev.u.call_detach.call_id, limit_us, true, NULL, NULL, 0);
}

/* ---- snapshot reads: the machine's own read-only queries, between two steps ---- */

static pthread_mutex_t *machine_lock(const mcpg_agent_host_t *host) {
    return (pthread_mutex_t *)(uintptr_t)&host->machine_mu;
}

uint32_t mcpg__agent_host_rank_states(const mcpg_agent_host_t *host, mcpg_rank_state_t *states, uint32_t cap) {
    uint32_t n = cap < host->config.agent.max_ranks ? cap : host->config.agent.max_ranks;
    pthread_mutex_lock(machine_lock(host));
    for (uint32_t r = 0; r < n; r++)
        states[r] = (mcpg_rank_state_t)mcpg_agent_rank_state(host->machine, (mcpg_rank_t){r});
    pthread_mutex_unlock(machine_lock(host));
    return n;
}

bool mcpg__agent_host_peer_ok(const mcpg_agent_host_t *host, mcpg_gid_t gid, mcpg_slot_t slot) {
    pthread_mutex_lock(machine_lock(host));
    bool ok = mcpg_agent_peer_ok(host->machine, gid, slot);
    pthread_mutex_unlock(machine_lock(host));
    return ok;
}

bool mcpg__agent_host_view(const mcpg_agent_host_t *host, mcpg_gid_t gid, mcpg_view_t *out) {
    mcpg_view_id_t id = {0, 0};
    mcpg_rankset_t active;
    mcpg_incarnation_t incs[MCPG_MAX_RANKS];
    memset(incs, 0, sizeof(incs));
    mcpg__rankset_clear(&active);
    pthread_mutex_lock(machine_lock(host));
    bool ok = mcpg_agent_view(host->machine, gid, &id, &active, incs, MCPG_MAX_RANKS);
    pthread_mutex_unlock(machine_lock(host));
    if (!ok) return false;
    memset(out, 0, sizeof(*out));
    out->term = id.term;
    out->epoch = id.epoch;
    for (uint32_t s = 0; s < MCPG_MAX_RANKS; s++) {
        out->active[s] = mcpg__rankset_has(&active, s) ? 1 : 0;
        out->incarnation[s] = incs[s].counter;
    }
    return true;
}

bool mcpg__agent_host_connected(const mcpg_agent_host_t *host) {
    return atomic_load(&host->connected);
}
