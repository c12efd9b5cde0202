/* sim_link.c: links between processes, as the data plane under the link manager has them: one try at a time, up at both
 * ends or lost, checks that are answered or not, deaths that peers on the same host see.
 *
 * A link carries bytes when it is up at both ends and both directions of the path are open. It must never know a group.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

#define TRY_LIMIT_US 1000000u

static void post(sim_t *w, sim_node_t *node, sim_local_kind_t kind, uint32_t rank, mcpg_incarnation_t inc,
                 uint64_t delay_us) {
    sim_local_t *item = sim_local_new(w, node, kind, delay_us);
    item->rank = rank;
    item->inc = inc;
    sim_local_post(w, node, item);
}

static uint64_t short_delay(sim_t *w) {
    return 10u + sim_below(&w->host, w->plan.latency_us * 2u + 1u);
}

static bool path(const sim_t *w, uint32_t a, uint32_t b) {
    return sim_reaches(w, a, b) && sim_reaches(w, b, a);
}

static bool joined(const sim_node_t *a, const sim_node_t *b) {
    const sim_link_t *l = &a->link[b->rank];
    return l->state == SIM_LINK_UP && l->peer == b->index;
}

bool sim_link_ok(const sim_t *w, const sim_node_t *a, const sim_node_t *b) {
    return a->alive && b->alive && joined(a, b) && joined(b, a) && path(w, a->rank, b->rank);
}

/* The process at that rank which is meant, alive; or NULL. */
static sim_node_t *meant(const sim_t *w, uint32_t rank, mcpg_incarnation_t inc) {
    uint32_t index = w->at_rank[rank];
    if (index == SIM_NO || !w->nodes[index]->alive) return NULL;
    return mcpg__inc_eq(sim_inc(w->nodes[index]), inc) ? w->nodes[index] : NULL;
}

/* ---- what the link manager asks for ---- */

typedef struct {
    sim_t *w;
    sim_node_t *node;
} link_user_t;

static void open_link(void *user, const mcpg_dp_peer_t *peer) {
    link_user_t *u = user;
    sim_link_t *l = &u->node->link[peer->rank.v];
    if (l->state == SIM_LINK_UP && !mcpg__inc_eq(l->inc, peer->inc)) sim_link_lose(u->w, u->node, peer->rank.v, 1);
    l->state = SIM_LINK_TRYING;
    l->inc = peer->inc;
    l->generation++;
    sim_at(u->w, u->w->now + short_delay(u->w), SIM_EV_LINK, u->node->index, peer->rank.v, l->generation);
}

static void close_link(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    link_user_t *u = user;
    (void)dead;
    sim_link_t *l = &u->node->link[rank.v];
    if (l->state == SIM_LINK_NONE || !mcpg__inc_eq(l->inc, inc)) return;
    sim_node_t *peer = l->state == SIM_LINK_UP ? u->w->nodes[l->peer] : NULL;
    l->state = SIM_LINK_NONE;
    l->generation++;
    if (peer != NULL && peer->alive && path(u->w, u->node->rank, rank.v))
        sim_link_lose(u->w, peer, u->node->rank, short_delay(u->w));
}

static void check_link(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    link_user_t *u = user;
    const sim_link_t *l = &u->node->link[rank.v];
    if (l->state == SIM_LINK_NONE || !mcpg__inc_eq(l->inc, inc)) return;
    const sim_node_t *peer = l->state == SIM_LINK_UP ? u->w->nodes[l->peer] : NULL;
    bool ok = peer != NULL && sim_link_ok(u->w, u->node, peer) && peer->paused_until_us <= u->w->now;
    /* Silence is answered by the manager's deadline; a broken connection at once. */
    if (!ok && l->state == SIM_LINK_UP) return;
    sim_local_t *item = sim_local_new(u->w, u->node, SIM_LOCAL_CHECKED, short_delay(u->w));
    item->rank = rank.v;
    item->inc = inc;
    item->check_id = check_id;
    item->ok = ok;
    sim_local_post(u->w, u->node, item);
}

static void link_event(void *user, const mcpg_agent_link_ev_t *event) {
    link_user_t *u = user;
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_LINK};
    e.u.link = *event;
    sim_agent_pend(u->w, u->node, &e);
}

static void death_event(void *user, const mcpg_agent_death_ev_t *event) {
    link_user_t *u = user;
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_DEATH};
    e.u.death = *event;
    sim_agent_pend(u->w, u->node, &e);
    if (event->proof != MCPG_PROOF_RELAYED && sim_chance(&u->w->host, u->w->plan.relay_permille))
        sim_link_relay(u->w, u->node, event->rank.v, event->inc);
}

mcpg_status_t sim_links_create(sim_t *w, sim_node_t *node) {
    link_user_t *u = sim_zalloc(sizeof(*u));
    u->w = w;
    u->node = node;
    node->link_user = u;
    mcpg_link_manager_out_t out = {.user = u,
                                   .open = open_link,
                                   .close = close_link,
                                   .check = check_link,
                                   .link_event = link_event,
                                   .death_event = death_event};
    mcpg_link_retry_t retry = {.first_us = 100000, .last_us = 2000000};
    return mcpg__link_manager_create(&out, w->plan.max_ranks, retry, &node->links);
}

/* ---- what becomes of a try ---- */

static void connect_both(sim_t *w, sim_node_t *a, sim_node_t *b) {
    sim_node_t *ends[2][2] = {{a, b}, {b, a}};
    for (uint32_t i = 0; i < 2; i++) {
        sim_node_t *node = ends[i][0], *peer = ends[i][1];
        sim_link_t *l = &node->link[peer->rank];
        bool was_up = l->state == SIM_LINK_UP && l->peer == peer->index;
        l->state = SIM_LINK_UP;
        l->peer = peer->index;
        l->generation++;
        if (!was_up || i == 0) post(w, node, SIM_LOCAL_UP, peer->rank, l->inc, short_delay(w));
    }
}

void sim_link_event(sim_t *w, sim_node_t *node, uint32_t rank, uint64_t generation) {
    sim_link_t *l = &node->link[rank];
    if (!node->alive || l->generation != (uint32_t)generation || l->state != SIM_LINK_TRYING) return;
    if (node->paused_until_us > w->now) {
        sim_at(w, node->paused_until_us, SIM_EV_LINK, node->index, rank, generation);
        return;
    }
    sim_node_t *peer = meant(w, rank, l->inc);
    bool silent = !path(w, node->rank, rank) || (peer != NULL && peer->paused_until_us > w->now);
    if (silent && !l->probing) { /* nothing answers: given up after a while */
        l->probing = true;
        sim_at(w, w->now + TRY_LIMIT_US, SIM_EV_LINK, node->index, rank, generation);
        return;
    }
    l->probing = false;
    const sim_link_t *theirs = peer == NULL ? NULL : &peer->link[node->rank];
    bool wanted = theirs != NULL && theirs->state != SIM_LINK_NONE && mcpg__inc_eq(theirs->inc, sim_inc(node));
    if (!silent && wanted) {
        connect_both(w, node, peer);
        return;
    }
    l->generation++; /* the manager tries again */
    post(w, node, SIM_LOCAL_LOST, rank, l->inc, short_delay(w));
}

/* This end sees the connection break. The other end sees it by itself. */
void sim_link_lose(sim_t *w, sim_node_t *node, uint32_t rank, uint64_t delay_us) {
    sim_link_t *l = &node->link[rank];
    if (!node->alive || l->state != SIM_LINK_UP) return;
    l->state = SIM_LINK_TRYING; /* until the manager asks again */
    l->generation++;
    post(w, node, SIM_LOCAL_LOST, rank, l->inc, delay_us);
}

/* ---- deaths ---- */

void sim_link_died(sim_t *w, sim_node_t *node) {
    mcpg_incarnation_t inc = sim_inc(node);
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint32_t index = w->at_rank[r];
        sim_node_t *peer = index == SIM_NO ? NULL : w->nodes[index];
        if (peer == NULL || peer == node || !peer->alive) continue;
        sim_link_t *l = &peer->link[node->rank];
        bool up = l->state == SIM_LINK_UP && l->peer == node->index;
        if (up && path(w, node->rank, r)) sim_link_lose(w, peer, node->rank, short_delay(w));
        /* A pidfd is held from the link's set-up on. */
        if (!up || peer->host_id != node->host_id || mcpg__inc_none(inc)) continue;
        sim_local_t *item = sim_local_new(w, peer, SIM_LOCAL_DEATH, short_delay(w));
        item->rank = node->rank;
        item->inc = inc;
        item->proof = MCPG_PROOF_PIDFD;
        sim_local_post(w, peer, item);
    }
}

/* DEAD on the control lane: to every peer whose link works. */
void sim_link_relay(sim_t *w, sim_node_t *node, uint32_t rank, mcpg_incarnation_t inc) {
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint32_t index = w->at_rank[r];
        if (index == SIM_NO || r == rank || r == node->rank) continue;
        sim_node_t *peer = w->nodes[index];
        if (!sim_link_ok(w, node, peer)) continue;
        sim_local_t *item = sim_local_new(w, peer, SIM_LOCAL_DEATH, short_delay(w));
        item->rank = rank;
        item->inc = inc;
        item->proof = MCPG_PROOF_RELAYED;
        sim_local_post(w, peer, item);
    }
}

/* ---- the control lane: what became of a view ---- */

void sim_link_ask_view(sim_t *w, sim_node_t *node, mcpg_gid_t gid, mcpg_view_id_t view) {
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint32_t index = w->at_rank[r];
        if (index == SIM_NO || r == node->rank || !sim_link_ok(w, node, w->nodes[index])) continue;
        if (sim_mine(w->nodes[index], gid.v) == NULL || sim_chance(&w->net, 100)) continue;
        sim_local_t *item = sim_local_new(w, w->nodes[index], SIM_LOCAL_EVENT, short_delay(w));
        item->event.kind = MCPG_AGENT_EV_VIEW_ASKED;
        item->event.u.view_asked =
            (mcpg_agent_view_asked_ev_t){.rank = {node->rank}, .inc = sim_inc(node), .gid = gid, .view = view};
        sim_local_post(w, w->nodes[index], item);
    }
}

void sim_link_tell_view(sim_t *w, sim_node_t *node, const mcpg_agent_tell_view_t *tell) {
    sim_node_t *peer = meant(w, tell->rank.v, tell->inc);
    size_t len = 0;
    if (mcpg__down_pack(tell->msg, w->wire, w->wire_cap, &len) != MCPG_OK) {
        sim_fail(w, "codec", "rank %u relays a message that cannot be packed", node->rank);
        return;
    }
    if (peer == NULL || !sim_link_ok(w, node, peer) || sim_chance(&w->net, 100)) return;
    sim_local_t *item = sim_local_new(w, peer, SIM_LOCAL_EVENT, short_delay(w));
    item->event.kind = MCPG_AGENT_EV_VIEW_TOLD;
    item->told = sim_buf_new(w->wire, len);
    sim_local_post(w, peer, item);
}
