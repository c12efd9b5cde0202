/* link_conn.c: the life of a link: attempt, up, down, dead, replaced.
 *
 * The higher rank connects, so two streams never cross. A link belongs to one incarnation of its rank; what was posted
 * for an older one ends with PEER_DEAD. Decides nothing about membership: it tells the observer.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

mcpg_link_t *mcpg__link_get(mcpg_engine_t *e, mcpg_rank_t rank) {
    if (rank.v >= MCPG_MAX_RANKS || rank.v == e->rank.v) return NULL;
    if (e->links[rank.v] != NULL) return e->links[rank.v];
    mcpg_link_t *l = calloc(1, sizeof(*l));
    if (l == NULL) return NULL;
    l->e = e;
    l->rank = rank;
    l->pidfd = -1;
    l->tx.credits = MCPG_EAGER_CREDITS;
    e->links[rank.v] = l;
    e->all[e->all_count++] = l;
    return l;
}

void mcpg__link_free(mcpg_link_t *l) {
    mcpg__watch_stop(l);
    free(l->rx.stage);
    free(l);
}

void mcpg__link_fail(mcpg_link_t *l, const char *why) {
    if (l->failed) return;
    l->failed = true;
    l->failed_why = why;
}

static void changed(mcpg_link_t *l, mcpg_incarnation_t inc, mcpg_link_st_t state) {
    mcpg_engine_t *e = l->e;
    if (e->hooks.link_changed != NULL) e->hooks.link_changed(e->hooks.user, l->rank, inc, state);
}

static void tell(mcpg_link_t *l, mcpg_obs_kind_t kind, mcpg_proof_t proof) {
    mcpg_obs_t obs = {.kind = kind, .rank = l->rank, .inc = l->inc, .proof = proof};
    mcpg__obs_tell(l->e, &obs);
}

/* ---- up ---- */
static void resend_left(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    for (uint32_t i = 0; i < MCPG_TOMBS_MAX; i++) {
        const mcpg_tomb_t *t = &e->tombs[i];
        if (!t->used || t->rank.v != mcpg__tomb_own_side(e, &t->key, l->rank).v) continue;
        mcpg__tx_control(l, MCPG_FT_LEFT, 0, &t->key, sizeof(t->key));
    }
}

void mcpg__link_up(mcpg_link_t *l, mcpg_stream_t *stream, int64_t pid) {
    mcpg_engine_t *e = l->e;
    l->stream = stream;
    stream->link = l;
    stream->readable = true;
    l->stream_id = ++e->stream_ids;
    l->failed = l->hung_up = l->bye = false;
    l->failed_why = NULL;
    l->hangup_until_us = 0;
    l->connect_running = false;
    l->reconnects++;
    l->last_heard_us = e->now_us;
    l->state = MCPG_LINK_ST_UP;
    l->up_index = e->up_count;
    e->up[e->up_count++] = l;
    if (!stream->polled) e->event_streams++;
    mcpg__watch_start(l, pid);
    mcpg__log(&e->log, MCPG_LOG_DEBUG, "link up rank %u transport %s", l->rank.v, stream->ops->name);
    resend_left(l);
    mcpg__link_send_checks(l);
    for (mcpg_lx_t *x = l->waiting.head, *next; x != NULL; x = next) {
        next = x->next;
        if (!mcpg__inc_eq(x->peer_inc, l->inc)) continue;
        mcpg__lx_unlink(x);
        mcpg__tx_queue(l, x);
    }
    tell(l, MCPG_OBS_UP, MCPG_PROOF_PIDFD);
    changed(l, l->inc, MCPG_LINK_ST_UP);
}

/* ---- down and dead ---- */
static void stream_drop(mcpg_link_t *l, mcpg_lx_result_t result) {
    mcpg_engine_t *e = l->e;
    mcpg_stream_t *stream = l->stream;
    if (stream == NULL) return;
    e->stale = true;
    l->stream = NULL; /* from here on nothing is queued for it */
    e->up[l->up_index] = e->up[--e->up_count];
    e->up[l->up_index]->up_index = l->up_index;
    if (!stream->polled) e->event_streams--;
    mcpg__rx_reset(l, result);
    mcpg__tx_reset(l, result);
    mcpg__unexpected_drop_stream(e, l->rank, l->stream_id);
    stream->ops->close(stream);
}

void mcpg__link_down(mcpg_link_t *l, mcpg_link_st_t state, bool tell_observer) {
    mcpg_engine_t *e = l->e;
    if (l->stream != NULL && l->failed_why != NULL)
        mcpg__log(&e->log, MCPG_LOG_WARN, "link broken rank %u: %s", l->rank.v, l->failed_why);
    l->state = state;
    stream_drop(l, MCPG_LX_LINK_LOST);
    mcpg__match_end_from(e, l->rank, l->inc, false, MCPG_LX_LINK_LOST);
    l->failed = l->hung_up = false;
    l->hangup_until_us = 0;
    if (tell_observer) tell(l, MCPG_OBS_LOST, MCPG_PROOF_PIDFD);
    changed(l, l->inc, MCPG_LINK_ST_DOWN);
}

static void end_waiting(mcpg_link_t *l, mcpg_incarnation_t up_to) {
    for (mcpg_lx_t *x = l->waiting.head, *next; x != NULL; x = next) {
        next = x->next;
        if (mcpg__inc_cmp(x->peer_inc, up_to) <= 0) mcpg__lx_end(l->e, x, MCPG_LX_PEER_DEAD);
    }
}

static void checks_fail(mcpg_link_t *l) {
    while (l->check_count > 0) {
        mcpg_obs_t obs = {
            .kind = MCPG_OBS_CHECKED, .rank = l->rank, .inc = l->inc, .check_id = l->checks[--l->check_count].id};
        mcpg__obs_tell(l->e, &obs);
    }
}

void mcpg__link_die(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    if (l->state == MCPG_LINK_ST_DEAD) return;
    l->state = MCPG_LINK_ST_DEAD;
    mcpg__watch_stop(l);
    stream_drop(l, MCPG_LX_PEER_DEAD);
    mcpg__match_end_from(e, l->rank, l->inc, false, MCPG_LX_PEER_DEAD);
    mcpg__match_end_from(e, l->rank, l->inc, true, MCPG_LX_PEER_DEAD);
    end_waiting(l, l->inc);
    checks_fail(l);
    l->pid_dead = l->relay_dead = l->told_dead = l->failed = l->hung_up = false;
    l->relay_nonce = 0;
    changed(l, l->inc, MCPG_LINK_ST_DEAD);
}

/* ---- attempts ---- */
static bool connector(const mcpg_link_t *l) {
    return l->e->rank.v > l->rank.v;
}

void mcpg__link_attempt(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    uint64_t now = e->now_us;
    l->state = MCPG_LINK_ST_CONNECTING;
    l->attempt_until_us = now + (connector(l) ? MCPG_CONNECT_US : MCPG_ACCEPT_US);
    l->retry_at_us = now;
    l->backoff_us = 2000;
    l->transport_index = 0;
    e->tick_due = true;
    e->service_due = true;
    mcpg__engine_timer(e, l->attempt_until_us);
}

static void connect_step(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    mcpg_hello_t hello = {
        .magic = MCPG_HELLO_MAGIC, .version = MCPG_DATA_VERSION, .rank_from = e->rank.v, .rank_to = l->rank.v};
    hello.inc_from_term = e->own.term;
    hello.inc_from_counter = e->own.counter;
    hello.inc_to_term = l->inc.term;
    hello.inc_to_counter = l->inc.counter;
    for (; l->transport_index < e->transport_count; l->transport_index++) {
        const mcpg_transport_ops_t *ops = e->transports[l->transport_index].ops;
        const uint8_t *part;
        size_t len;
        if (ops->same_host_only && l->host_id != e->host_id) continue;
        if (!mcpg__endpoint_part(l->endpoint, l->endpoint_len, ops->name, &part, &len)) continue;
        if (ops->open(e->transports[l->transport_index].t, &hello, part, len) != MCPG_OK) continue;
        l->connect_running = true;
        e->tick_due = true;
        return;
    }
    l->transport_index = 0;
    l->retry_at_us = e->now_us + l->backoff_us;
    if (l->backoff_us < 100000) l->backoff_us *= 2;
}

static bool may_accept(void *user, const mcpg_hello_t *hello) {
    mcpg_engine_t *e = user;
    if (hello->rank_from >= MCPG_MAX_RANKS || hello->rank_from <= e->rank.v || hello->rank_to != e->rank.v)
        return false;
    mcpg_incarnation_t to = {hello->inc_to_term, hello->inc_to_counter};
    mcpg_incarnation_t from = {hello->inc_from_term, hello->inc_from_counter};
    const mcpg_link_t *l = e->links[hello->rank_from];
    return l != NULL && l->expected && l->state != MCPG_LINK_ST_DEAD && mcpg__inc_eq(l->inc, from) &&
           mcpg__inc_eq(e->own, to);
}

static void established(void *user, mcpg_stream_t *stream, const mcpg_hello_t *peer, int64_t pid) {
    mcpg_engine_t *e = user;
    mcpg_link_t *l = peer->rank_from < MCPG_MAX_RANKS ? e->links[peer->rank_from] : NULL;
    mcpg_incarnation_t from = {peer->inc_from_term, peer->inc_from_counter};
    bool wanted = l != NULL && l->expected && l->state != MCPG_LINK_ST_DEAD && mcpg__inc_eq(l->inc, from);
    if (wanted && l->rx.stage == NULL) l->rx.stage = malloc(MCPG_STAGE_BYTES);
    if (!wanted || l->rx.stage == NULL) {
        stream->ops->close(stream);
        return;
    }
    if (l->stream != NULL) {
        l->failed_why = "the peer connected again";
        mcpg__link_down(l, MCPG_LINK_ST_DOWN, true);
    }
    mcpg__link_up(l, stream, pid);
}

static void connect_failed(void *user, const mcpg_hello_t *sent, mcpg_connect_fail_t how, const char *why) {
    mcpg_engine_t *e = user;
    mcpg_link_t *l = sent->rank_to < MCPG_MAX_RANKS ? e->links[sent->rank_to] : NULL;
    mcpg_incarnation_t to = {sent->inc_to_term, sent->inc_to_counter};
    if (l == NULL || !l->connect_running || !mcpg__inc_eq(l->inc, to)) return;
    l->connect_running = false;
    mcpg__log(&e->log, MCPG_LOG_DEBUG, "connect failed rank %u: %s", l->rank.v, why);
    if (l->state != MCPG_LINK_ST_CONNECTING) return;
    switch (how) {
    case MCPG_CONNECT_LATER:
        l->retry_at_us = e->now_us + l->backoff_us;
        if (l->backoff_us < 100000) l->backoff_us *= 2;
        break;
    case MCPG_CONNECT_BROKEN:
        l->transport_index++;
        l->retry_at_us = e->now_us;
        break;
    case MCPG_CONNECT_VERSION:
        l->attempt_until_us = e->now_us;
        break;
    }
    e->service_due = true;
}

void mcpg__link_events(mcpg_engine_t *e, mcpg_transport_events_t *out) {
    *out = (mcpg_transport_events_t){
        .user = e, .may_accept = may_accept, .established = established, .connect_failed = connect_failed};
}

/* ---- service ---- */
void mcpg__link_send_checks(mcpg_link_t *l) {
    for (uint32_t i = 0; i < l->check_count && l->state == MCPG_LINK_ST_UP; i++) {
        if (l->checks[i].nonce != 0) continue;
        l->checks[i].nonce = ++l->probe_nonce;
        mcpg__tx_control(l, MCPG_FT_PROBE, l->checks[i].nonce, NULL, 0);
    }
}

static void checks_expire(mcpg_link_t *l) {
    uint64_t budget = MCPG_SLICE_BYTES;
    bool due = false;
    for (uint32_t i = 0; i < l->check_count; i++) due |= l->checks[i].until_us <= l->e->now_us;
    if (due && l->stream != NULL && !l->failed && !l->hung_up) mcpg__rx_pump(l, &budget); /* an answer may be here */
    for (uint32_t i = 0; i < l->check_count;) {
        if (l->checks[i].until_us > l->e->now_us) {
            mcpg__engine_timer(l->e, l->checks[i++].until_us);
            continue;
        }
        mcpg_obs_t obs = {.kind = MCPG_OBS_CHECKED, .rank = l->rank, .inc = l->inc, .check_id = l->checks[i].id};
        l->checks[i] = l->checks[--l->check_count];
        mcpg__obs_tell(l->e, &obs);
    }
}

static void flood_death(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    for (uint32_t i = 0; i < e->up_count; i++)
        mcpg__tx_control(e->up[i], MCPG_FT_DEAD, l->rank.v, &l->inc, sizeof(l->inc));
}

/* What a dead process had sent still counts: the stream is read to its end first, a slice per call. */
static bool service_death(mcpg_link_t *l) {
    uint64_t budget = MCPG_SLICE_BYTES;
    if (l->stream != NULL && !l->failed && !l->hung_up && mcpg__rx_pump(l, &budget)) {
        l->e->service_due = true;
        return true;
    }
    bool seen = l->pid_dead, relayed = l->relay_dead;
    mcpg__link_die(l);
    if (seen || relayed) tell(l, MCPG_OBS_DEATH, seen ? MCPG_PROOF_PIDFD : MCPG_PROOF_RELAYED);
    if (seen) flood_death(l);
    return true;
}

static bool service_broken(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    if (!l->failed && !l->bye && l->pidfd >= 0) {
        if (l->hangup_until_us == 0) l->hangup_until_us = e->now_us + MCPG_HANGUP_US;
        if (!mcpg__watch_says_alive(l)) {
            l->pid_dead = true;
            return service_death(l);
        }
        if (e->now_us < l->hangup_until_us) {
            mcpg__engine_timer(e, l->hangup_until_us);
            return false;
        }
    }
    mcpg__link_down(l, MCPG_LINK_ST_DOWN, true);
    return true;
}

static bool service_attempt(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    if (e->now_us >= l->attempt_until_us) {
        l->state = MCPG_LINK_ST_DOWN;
        tell(l, MCPG_OBS_LOST, MCPG_PROOF_PIDFD);
        changed(l, l->inc, MCPG_LINK_ST_DOWN);
        return true;
    }
    mcpg__engine_timer(e, l->attempt_until_us);
    if (!connector(l) || l->connect_running) return false;
    if (e->now_us >= l->retry_at_us) connect_step(l);
    if (!l->connect_running) mcpg__engine_timer(e, l->retry_at_us);
    return false;
}

/* Another rank said that this one is dead: a stream that ended, or no answer, agrees. */
static void service_relay(mcpg_link_t *l) {
    uint64_t budget = MCPG_SLICE_BYTES;
    if (l->stream != NULL && !l->failed && !l->hung_up) mcpg__rx_pump(l, &budget); /* its answer may be here */
    if (l->relay_nonce == 0) return;
    if (l->stream == NULL || l->failed || l->hung_up || l->e->now_us >= l->relay_until_us) {
        l->relay_nonce = 0;
        l->relay_dead = true;
    } else {
        mcpg__engine_timer(l->e, l->relay_until_us);
    }
}

bool mcpg__link_service(mcpg_link_t *l) {
    bool moved = false;
    if (l->state == MCPG_LINK_ST_DEAD) return false;
    if (l->relay_nonce != 0) service_relay(l);
    if (l->pid_dead || l->relay_dead || l->told_dead) return service_death(l);
    if (l->stream != NULL && (l->failed || l->hung_up)) moved = service_broken(l);
    if (l->state == MCPG_LINK_ST_CONNECTING) moved |= service_attempt(l);
    if (l->check_count > 0) checks_expire(l);
    return moved;
}
