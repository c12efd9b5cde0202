/* engine_links.c: the agent's calls about links, the published endpoint, and what status shows.
 *
 * An endpoint is {1, then for each transport: name length, name, part length, part}. Bytes from a peer: read with
 * bounds, ignored when malformed.
 */
#include <inttypes.h>
#include <string.h>

#include "common/executor.h"
#include "dataplane/link_priv.h"

#include <stdio.h>

#define ENDPOINT_VERSION 1u
#define DRAIN_SLICES     64u

bool mcpg__endpoint_part(const uint8_t *endpoint, size_t len, const char *name, const uint8_t **part,
                         size_t *part_len) {
    size_t at = 1, name_len = strlen(name);
    if (len < 1 || endpoint[0] != ENDPOINT_VERSION) return false;
    while (at < len) {
        size_t n = endpoint[at++];
        if (n + 1 > len - at) return false;
        const uint8_t *found = endpoint + at;
        at += n;
        size_t p = endpoint[at++];
        if (p > len - at) return false;
        if (n == name_len && memcmp(found, name, n) == 0) {
            *part = endpoint + at;
            *part_len = p;
            return true;
        }
        at += p;
    }
    return false;
}

size_t mcpg__engine_endpoint(const mcpg_engine_t *e, uint8_t *buf, size_t cap) {
    size_t at = 0;
    if (cap < 1) return 0;
    buf[at++] = ENDPOINT_VERSION;
    for (uint32_t i = 0; i < e->transport_count; i++) {
        uint8_t part[64];
        size_t n = strlen(e->transports[i].ops->name);
        size_t p = e->transports[i].ops->endpoint(e->transports[i].t, part, sizeof(part));
        if (at + 2 + n + p > cap) break;
        buf[at++] = (uint8_t)n;
        memcpy(buf + at, e->transports[i].ops->name, n);
        at += n;
        buf[at++] = (uint8_t)p;
        memcpy(buf + at, part, p);
        at += p;
    }
    return at;
}

void mcpg__engine_set_incarnation(mcpg_engine_t *e, mcpg_incarnation_t own) {
    mcpg__engine_lock(e);
    e->own = own;
    e->tick_due = true;
    mcpg__engine_kick(e);
    mcpg__engine_unlock(e);
}

/* What the process before this one had sent still counts, as with a dead one. It has ended: what is left is at most
 * what fits in a ring or a socket's buffers. */
static void drain(mcpg_link_t *l) {
    for (uint32_t i = 0; i < DRAIN_SLICES; i++) { /* bounded */
        uint64_t budget = MCPG_SLICE_BYTES;
        if (l->stream == NULL || l->failed || l->hung_up || !mcpg__rx_pump(l, &budget)) return;
    }
}

void mcpg__engine_drain_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    if (l == NULL || !mcpg__inc_eq(l->inc, inc)) return;
    drain(l);
    mcpg__link_deliver(e);
}

static void replace(mcpg_link_t *l, mcpg_incarnation_t inc) {
    mcpg_engine_t *e = l->e;
    drain(l);
    if (!mcpg__inc_none(l->inc)) mcpg__link_die(l);
    mcpg__match_end_from(e, l->rank, inc, true, MCPG_LX_PEER_DEAD);
    for (mcpg_lx_t *x = l->waiting.head, *next; x != NULL; x = next) {
        next = x->next;
        if (mcpg__inc_cmp(x->peer_inc, inc) < 0) mcpg__lx_end(e, x, MCPG_LX_PEER_DEAD);
    }
    /* What the process before this one had sent may still be wanted; what the one before that had sent is not. */
    mcpg__unexpected_drop_older(e, l->rank, l->inc);
    l->inc = inc;
    l->state = MCPG_LINK_ST_NONE;
    l->connect_running = false;
    l->pid = 0;
    l->bytes_in = l->bytes_out = l->reconnects = 0;
    l->probe_nonce = 0;
}

void mcpg__engine_open_link(mcpg_engine_t *e, const mcpg_dp_peer_t *peer) {
    mcpg__engine_lock(e);
    e->now_us = mcpg__now().us;
    mcpg_link_t *l = mcpg__link_get(e, peer->rank);
    if (l == NULL || peer->endpoint_len > sizeof(l->endpoint) || mcpg__inc_none(peer->inc)) goto out;
    int cmp = mcpg__inc_cmp(peer->inc, l->inc);
    if (cmp < 0 || (cmp == 0 && l->state == MCPG_LINK_ST_DEAD)) goto out;
    if (cmp > 0) replace(l, peer->inc);
    l->expected = true;
    l->host_id = peer->host_id;
    if (peer->endpoint_len > 0) memcpy(l->endpoint, peer->endpoint, peer->endpoint_len);
    l->endpoint_len = peer->endpoint_len;
    switch (l->state) {
    case MCPG_LINK_ST_NONE:
    case MCPG_LINK_ST_DOWN:
        mcpg__link_attempt(l);
        break;
    case MCPG_LINK_ST_UP: {
        mcpg_obs_t obs = {.kind = MCPG_OBS_UP, .rank = l->rank, .inc = l->inc};
        mcpg__obs_tell(e, &obs);
        break;
    }
    case MCPG_LINK_ST_CONNECTING:
    case MCPG_LINK_ST_DEAD:
        break;
    }
    mcpg__engine_kick(e);
out:
    mcpg__engine_unlock(e);
}

void mcpg__engine_close_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    mcpg__engine_lock(e);
    e->now_us = mcpg__now().us;
    mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    if (l == NULL || !mcpg__inc_eq(l->inc, inc) || l->state == MCPG_LINK_ST_DEAD) goto out;
    if (dead) {
        l->told_dead = true;
        e->service_due = true;
    } else {
        mcpg__tx_control(l, MCPG_FT_BYE, 0, NULL, 0);
        mcpg__tx_soon(l);
        mcpg__watch_stop(l);
        l->expected = false;
        l->connect_running = false;
        mcpg__link_down(l, MCPG_LINK_ST_NONE, false);
        mcpg__lx_end_all(e, &l->waiting, MCPG_LX_LINK_LOST);
    }
    mcpg__engine_kick(e);
out:
    mcpg__engine_unlock(e);
}

void mcpg__engine_check_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    mcpg__engine_lock(e);
    e->now_us = mcpg__now().us;
    mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    bool same = l != NULL && mcpg__inc_eq(l->inc, inc) && l->expected && l->state != MCPG_LINK_ST_DEAD;
    if (same && l->check_count < MCPG_CHECKS_MAX) {
        l->checks[l->check_count].id = check_id;
        l->checks[l->check_count].until_us = e->now_us + MCPG_CHECK_US;
        l->checks[l->check_count++].nonce = 0;
        mcpg__engine_timer(e, e->now_us + MCPG_CHECK_US);
        mcpg__link_send_checks(l);
        mcpg__tx_soon(l);
    } else {
        mcpg_obs_t obs = {.kind = MCPG_OBS_CHECKED, .rank = rank, .inc = inc, .check_id = check_id};
        mcpg__obs_tell(e, &obs);
    }
    mcpg__engine_kick(e);
    mcpg__engine_unlock(e);
}

/* Whoever is no member answers nothing: the one that has the COMMIT may be in the new view only. */
void mcpg__engine_ask_view(mcpg_engine_t *e, mcpg_gid_t gid, mcpg_view_id_t view) {
    mcpg__engine_lock(e);
    e->now_us = mcpg__now().us;
    for (uint32_t i = 0; i < e->all_count; i++) {
        mcpg_link_t *l = e->all[i];
        if (l->state != MCPG_LINK_ST_UP) continue;
        mcpg__tx_control(l, MCPG_FT_ASK_VIEW, gid.v, &view, sizeof(view));
        mcpg__tx_soon(l);
    }
    mcpg__engine_kick(e);
    mcpg__engine_unlock(e);
}

void mcpg__engine_tell_view(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes,
                            size_t len) {
    mcpg__engine_lock(e);
    e->now_us = mcpg__now().us;
    mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    if (l != NULL && mcpg__inc_eq(l->inc, inc) && l->state == MCPG_LINK_ST_UP && len > 0 &&
        len <= MCPG_VIEW_BYTES_MAX) {
        mcpg__tx_view(l, bytes, (uint32_t)len);
        mcpg__tx_soon(l);
        mcpg__engine_kick(e);
    }
    mcpg__engine_unlock(e);
}

static const char *state_name(mcpg_link_st_t state) {
    switch (state) {
    case MCPG_LINK_ST_NONE:
        return "none";
    case MCPG_LINK_ST_CONNECTING:
        return "connecting";
    case MCPG_LINK_ST_UP:
        return "up";
    case MCPG_LINK_ST_DOWN:
        return "down";
    case MCPG_LINK_ST_DEAD:
        return "dead";
    }
    return "none";
}

size_t mcpg__engine_links_json(mcpg_engine_t *e, char *buf, size_t cap) {
    size_t at = 0;
    char line[320];
    mcpg__engine_lock(e);
    for (uint32_t i = 0; i <= e->all_count; i++) {
        int n;
        if (i == e->all_count) {
            n = snprintf(line, sizeof(line), "%s]", at == 0 ? "[" : "");
        } else {
            const mcpg_link_t *l = e->all[i];
            n = snprintf(line, sizeof(line),
                         "%s{\"rank\":%u,\"incarnation\":[%" PRIu64 ",%" PRIu64
                         "],\"transport\":\"%s\",\"state\":\"%s\",\"connects\":%" PRIu64 ",\"bytes_out\":%" PRIu64
                         ",\"bytes_in\":%" PRIu64 ",\"death_watch\":%s}",
                         at == 0 ? "[" : ",", l->rank.v, l->inc.term, l->inc.counter,
                         mcpg__link_transport_name(e, l->rank), state_name(l->state), l->reconnects, l->bytes_out,
                         l->bytes_in, l->pidfd >= 0 ? "true" : "false");
        }
        for (int k = 0; k < n; k++, at++)
            if (at + 1 < cap) buf[at] = line[k];
    }
    if (cap > 0) buf[at < cap ? at : cap - 1] = '\0';
    mcpg__engine_unlock(e);
    return at;
}
