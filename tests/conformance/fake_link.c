/* fake_link.c: see fake_link.h. Never used outside tests. */
#include "fake_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/executor.h"

fnet_t fake_net;
#define net fake_net

/* Replaces the clock of src/common. */
mcpg_time_t mcpg__now(void) {
    return (mcpg_time_t){net.now};
}

static uint64_t rnd(void) {
    net.rng ^= net.rng << 13;
    net.rng ^= net.rng >> 7;
    net.rng ^= net.rng << 17;
    return net.rng;
}

void fake_reset(uint64_t seed) {
    for (uint32_t i = 0; i < RANKS; i++) {
        MCPG_ASSERT(net.e[i] == NULL);
        for (uint32_t k = 0; k < RANKS; k++) {
            while (net.q[i][k].head != NULL) {
                fmsg_t *m = net.q[i][k].head;
                net.q[i][k].head = m->next;
                free(m->data);
                free(m);
            }
        }
    }
    memset(&net, 0, sizeof net);
    for (uint32_t i = 0; i < RANKS; i++)
        for (uint32_t k = 0; k < RANKS; k++) net.q[i][k].end = &net.q[i][k].head;
    net.now = 1000000;
    net.rng = seed * 2654435761u + 88172645463325252u;
    net.kill_at = UINT64_MAX;
}

void fake_push(uint32_t from, uint32_t to, const fmsg_t *proto) {
    if (net.e[to] == NULL || net.e[to]->dead) {
        free(proto->data);
        return;
    }
    fmsg_t *m = malloc(sizeof *m);
    MCPG_ASSERT(m != NULL);
    *m = *proto;
    m->next = NULL;
    m->from = from;
    m->inc = net.e[from]->own;
    *net.q[from][to].end = m;
    net.q[from][to].end = &m->next;
}

static bool unlist(mcpg_lx_t **list, mcpg_lx_t *x) {
    for (; *list != NULL; list = &(*list)->next) {
        if (*list != x) continue;
        *list = x->next;
        x->next = NULL;
        return true;
    }
    return false;
}

static void end(mcpg_engine_t *e, mcpg_lx_t *x, mcpg_lx_result_t result) {
    (void)(unlist(&e->recvs, x) || unlist(&e->sends, x));
    x->result = (uint8_t)result;
    mcpg_lx_t **at = &e->ended;
    while (*at != NULL) at = &(*at)->next;
    *at = x;
    x->next = NULL;
}

bool fake_same_op(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b) {
    return a->gid == b->gid && (a->flags & MCPG_KEY_P2P) == (b->flags & MCPG_KEY_P2P) && a->view_term == b->view_term &&
           a->view_epoch == b->view_epoch && a->seq == b->seq && a->tag == b->tag;
}

static bool hits(uint32_t left_flags, bool is_send) {
    const uint32_t which = left_flags & (MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV);
    return which == 0 || (which & (is_send ? MCPG_KEY_LEFT_RECV : MCPG_KEY_LEFT_SEND)) != 0;
}

static const ftomb_t *tomb(const mcpg_engine_t *e, uint32_t from, const mcpg_msg_key_t *key, bool is_send) {
    for (const ftomb_t *t = e->tombs; t != NULL; t = t->next)
        if (t->from == from && fake_same_op(&t->key, key) && hits(t->key.flags, is_send)) return t;
    return NULL;
}

static void add_tomb(mcpg_engine_t *e, uint32_t from, const mcpg_msg_key_t *key, const mcpg_msg_sig_t *sig) {
    ftomb_t *t = calloc(1, sizeof *t);
    MCPG_ASSERT(t != NULL);
    t->from = from;
    t->key = *key;
    t->mismatch = sig != NULL;
    if (sig != NULL) t->sig = *sig;
    t->next = e->tombs;
    e->tombs = t;
}

/* Ends what this engine has with a peer in one operation. */
static void end_op(mcpg_engine_t *e, uint32_t peer, const mcpg_msg_key_t *key, const mcpg_msg_sig_t *sig) {
    add_tomb(e, peer, key, sig);
    for (uint32_t send = 0; send < 2; send++) {
        for (mcpg_lx_t *x = send ? e->sends : e->recvs, *next; x != NULL; x = next) {
            next = x->next;
            if (x->peer.v != peer || !fake_same_op(&x->key, key) || !hits(key->flags, send != 0)) continue;
            if (sig != NULL) x->peer_sig = *sig;
            end(e, x, sig != NULL ? MCPG_LX_MISMATCH : MCPG_LX_LEFT);
        }
    }
}

static bool sig_equal(const mcpg_msg_sig_t *a, const mcpg_msg_sig_t *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && a->root == b->root &&
           a->bytes == b->bytes;
}

/* A message meets its receive. */
static void meet(mcpg_engine_t *e, mcpg_lx_t *r, fmsg_t *m) {
    if (!sig_equal(&r->sig, &m->sig)) {
        fmsg_t nack = {.kind = F_NACK, .key = m->key, .sig = r->sig};
        fake_push(e->rank.v, m->from, &nack);
        end_op(e, m->from, &m->key, &m->sig);
        return;
    }
    if (m->kind == F_LARGE) {
        memcpy(r->buf, m->lx->buf, m->sig.bytes);
        end(net.e[m->from], m->lx, MCPG_LX_DONE);
    } else if (m->sig.bytes != 0) {
        memcpy(r->buf, m->data, m->sig.bytes);
    }
    end(e, r, MCPG_LX_DONE);
}

bool fake_key_equal(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

void fake_free_msg(fmsg_t *m) {
    free(m->data);
    free(m);
}

void fake_lose_peer(mcpg_engine_t *e, uint32_t peer, mcpg_lx_result_t why) {
    for (mcpg_lx_t *x = e->recvs, *next; x != NULL; x = next) {
        next = x->next;
        if (x->peer.v == peer) end(e, x, why);
    }
    for (mcpg_lx_t *x = e->sends, *next; x != NULL; x = next) {
        next = x->next;
        if (x->peer.v == peer) end(e, x, why);
    }
}

void fake_drop_large(uint32_t from, uint32_t to, const mcpg_lx_t *only) {
    fqueue_t *q = &net.q[from][to];
    for (fmsg_t **at = &q->head; *at != NULL;) {
        fmsg_t *m = *at;
        if (m->kind == F_LARGE && (only == NULL || m->lx == only)) {
            *at = m->next;
            fake_free_msg(m);
        } else {
            at = &m->next;
        }
    }
    q->end = &q->head;
    while (*q->end != NULL) q->end = &(*q->end)->next;
    mcpg_engine_t *e = net.e[to];
    for (fmsg_t **at = e == NULL ? NULL : &e->kept; at != NULL && *at != NULL;) {
        fmsg_t *m = *at;
        if (m->from == from && m->kind == F_LARGE && (only == NULL || m->lx == only)) {
            *at = m->next;
            fake_free_msg(m);
        } else {
            at = &m->next;
        }
    }
}

static void stray(mcpg_engine_t *e, const fmsg_t *m, mcpg_stray_t how) {
    if ((m->key.flags & MCPG_KEY_P2P) != 0 || e->hooks.stray == NULL) return;
    const mcpg_msg_key_t key = m->key; /* a refusal drops the message */
    const mcpg_msg_sig_t sig = m->sig;
    e->hooks.stray(e->hooks.user, (mcpg_rank_t){m->from}, m->inc, &key, &sig, how);
}

static void deliver(mcpg_engine_t *e, fmsg_t *m) {
    e->peer[m->from].heard = net.now;
    switch (m->kind) {
    case F_DATA:
    case F_LARGE: {
        if (tomb(e, RANKS + m->from, &m->key, true) != NULL) break; /* own side, the receiving one, is over */
        for (mcpg_lx_t *r = e->recvs; r != NULL; r = r->next) {
            if (r->peer.v == m->from && mcpg__inc_eq(r->peer_inc, m->inc) && fake_key_equal(&r->key, &m->key)) {
                meet(e, r, m);
                fake_free_msg(m);
                return;
            }
        }
        m->next = NULL;
        fmsg_t **at = &e->kept;
        while (*at != NULL) at = &(*at)->next;
        *at = m;
        stray(e, m, MCPG_STRAY_KEPT);
        return;
    }
    case F_LEFT:
        end_op(e, m->from, &m->key, NULL);
        break;
    case F_NACK:
        end_op(e, m->from, &m->key, &m->sig);
        stray(e, m, MCPG_STRAY_REFUSED);
        break;
    case F_ASK:
        stray(e, m, MCPG_STRAY_ASKED);
        break;
    case F_DEATH:
        e->peer[m->from].st = MCPG_LINK_ST_DEAD;
        fake_lose_peer(e, m->from, MCPG_LX_PEER_DEAD);
        if (e->hooks.link_changed != NULL)
            e->hooks.link_changed(e->hooks.user, (mcpg_rank_t){m->from}, m->inc, MCPG_LINK_ST_DEAD);
        if (e->observer.death != NULL)
            (void)e->observer.death(e->observer.user, (mcpg_rank_t){m->from}, m->inc, MCPG_PROOF_PIDFD);
        break;
    case F_PROBE: {
        fmsg_t answer = {.kind = F_ANSWER};
        fake_push(e->rank.v, m->from, &answer);
        break;
    }
    case F_ANSWER:
        break;
    }
    fake_free_msg(m);
}

static void tell_ended(mcpg_engine_t *e) {
    while (e->ended != NULL) {
        mcpg_lx_t *x = e->ended;
        e->ended = x->next;
        x->next = NULL;
        x->state = 0;
        x->done(x, (mcpg_lx_result_t)x->result);
    }
}

static void turn(mcpg_engine_t *e) {
    e->kicked = false;
    tell_ended(e);
    if (e->dead) return;
    (void)e->hooks.progress(e->hooks.user, net.now);
    while (e->hooks.unlocked(e->hooks.user)) continue;
}

void mcpg__engine_drain_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    fqueue_t *q = &net.q[rank.v][e->rank.v];
    if (!mcpg__inc_eq(e->peer[rank.v].inc, inc) || q->blocked) return;
    while (q->head != NULL && q->head->kind != F_DEATH) {
        fmsg_t *m = q->head;
        q->head = m->next;
        if (m->next == NULL) q->end = &q->head;
        deliver(e, m);
    }
    tell_ended(e);
}

void fake_kill(uint32_t rank, bool keep_in_flight) {
    mcpg_engine_t *e = net.e[rank];
    if (e->dead) return;
    e->dead = true;
    for (uint32_t i = 0; i < RANKS; i++) {
        if (i == rank || net.e[i] == NULL) continue;
        fake_drop_large(rank, i, NULL);
        fake_drop_large(i, rank, NULL);
        while (!keep_in_flight && net.q[rank][i].head != NULL) {
            fmsg_t *m = net.q[rank][i].head;
            net.q[rank][i].head = m->next;
            fake_free_msg(m);
        }
        if (net.q[rank][i].head == NULL) net.q[rank][i].end = &net.q[rank][i].head;
        fmsg_t death = {.kind = F_DEATH};
        fake_push(rank, i, &death);
    }
}

void fake_kill_at(uint32_t rank, uint64_t delivered, bool keep_in_flight) {
    net.kill_rank = rank;
    net.kill_at = delivered;
    net.kill_keep = keep_in_flight;
}

bool fake_is_dead(uint32_t rank) {
    return net.e[rank]->dead;
}

bool fake_step(void) {
    if (net.delivered >= net.kill_at) {
        net.kill_at = UINT64_MAX;
        fake_kill(net.kill_rank, net.kill_keep);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        mcpg_engine_t *e = net.e[i];
        if (e == NULL || e->hung || (e->ended == NULL && !e->kicked)) continue;
        turn(e);
        return true;
    }
    fqueue_t *ready[RANKS * RANKS];
    uint32_t to[RANKS * RANKS], n = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        for (uint32_t k = 0; k < RANKS; k++) {
            if (net.q[i][k].head == NULL || net.q[i][k].blocked || net.e[k] == NULL || net.e[k]->hung || net.e[i]->hung)
                continue;
            ready[n] = &net.q[i][k];
            to[n++] = k;
        }
    }
    if (n == 0) return false;
    const uint32_t pick = (uint32_t)(rnd() % n);
    fmsg_t *m = ready[pick]->head;
    ready[pick]->head = m->next;
    if (m->next == NULL) ready[pick]->end = &ready[pick]->head;
    net.delivered++;
    mcpg_engine_t *e = net.e[to[pick]];
    if (e->dead) {
        fake_free_msg(m);
        return true;
    }
    deliver(e, m);
    e->kicked = true;
    return true;
}

void fake_drain(void) {
    while (fake_step()) continue;
}

uint64_t fake_next_deadline(void) {
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < RANKS; i++) {
        mcpg_engine_t *e = net.e[i];
        if (e == NULL || e->dead || e->hung) continue;
        const uint64_t own = e->hooks.next_deadline(e->hooks.user);
        if (own < at) at = own;
    }
    return at;
}

void fake_tick(uint64_t at) {
    if (at > net.now) net.now = at;
    for (uint32_t i = 0; i < RANKS; i++)
        if (net.e[i] != NULL && !net.e[i]->dead && !net.e[i]->hung) turn(net.e[i]);
}

void fake_advance(uint64_t us) {
    const uint64_t until = net.now + us;
    fake_drain();
    for (uint64_t at = fake_next_deadline(); at < until; at = fake_next_deadline()) {
        fake_tick(at);
        fake_drain();
    }
    fake_tick(until);
    fake_drain();
}

uint64_t fake_delivered(void) {
    return net.delivered;
}

void fake_cut(uint32_t a, uint32_t b) {
    fake_drop_large(a, b, NULL);
    fake_drop_large(b, a, NULL);
    for (uint32_t side = 0; side < 2; side++) {
        const uint32_t from = side ? b : a, to = side ? a : b;
        while (net.q[from][to].head != NULL) {
            fmsg_t *m = net.q[from][to].head;
            net.q[from][to].head = m->next;
            fake_free_msg(m);
        }
        net.q[from][to].end = &net.q[from][to].head;
        net.e[to]->peer[from].st = MCPG_LINK_ST_DOWN;
        fake_lose_peer(net.e[to], from, MCPG_LX_LINK_LOST);
        net.e[to]->kicked = true;
    }
}

static void post_send(mcpg_engine_t *e, mcpg_lx_t *x);

void fake_heal(uint32_t a, uint32_t b) {
    for (uint32_t side = 0; side < 2; side++) {
        mcpg_engine_t *e = net.e[side ? b : a];
        const uint32_t peer = side ? a : b;
        e->peer[peer].st = MCPG_LINK_ST_UP;
        for (mcpg_lx_t *x = e->sends, *next; x != NULL; x = next) {
            next = x->next;
            if (x->peer.v != peer) continue;
            (void)unlist(&e->sends, x);
            post_send(e, x);
        }
    }
}

void fake_block(uint32_t from, uint32_t to, bool blocked) {
    net.q[from][to].blocked = blocked;
}
void fake_hang(uint32_t rank, bool hung) {
    net.e[rank]->hung = hung;
}

uint32_t fake_posted(uint32_t rank) {
    uint32_t n = 0;
    for (const mcpg_lx_t *x = net.e[rank]->recvs; x != NULL; x = x->next) n++;
    for (const mcpg_lx_t *x = net.e[rank]->sends; x != NULL; x = x->next) n++;
    return n;
}

uint32_t fake_kept(uint32_t rank) {
    uint32_t n = 0;
    for (const fmsg_t *m = net.e[rank]->kept; m != NULL; m = m->next) n++;
    return n;
}

/* ---- link.h ---- */
static void post_send(mcpg_engine_t *e, mcpg_lx_t *x) {
    const fpeer_t *p = &e->peer[x->peer.v];
    const int cmp = mcpg__inc_cmp(x->peer_inc, p->inc);
    x->next = e->sends;
    e->sends = x;
    x->state = 1;
    const ftomb_t *t = tomb(e, x->peer.v, &x->key, true);
    if (t != NULL) {
        x->peer_sig = t->sig;
        end(e, x, t->mismatch ? MCPG_LX_MISMATCH : MCPG_LX_LEFT);
    } else if (cmp < 0 || (cmp == 0 && p->st == MCPG_LINK_ST_DEAD)) {
        end(e, x, MCPG_LX_PEER_DEAD);
    } else if (cmp == 0 && p->st == MCPG_LINK_ST_UP) {
        fmsg_t m = {.key = x->key, .sig = x->sig, .lx = x, .kind = x->sig.bytes > MCPG_EAGER_BYTES ? F_LARGE : F_DATA};
        if (m.kind == F_DATA && x->sig.bytes != 0) {
            m.data = malloc(x->sig.bytes);
            MCPG_ASSERT(m.data != NULL);
            memcpy(m.data, x->buf, x->sig.bytes);
        }
        if (m.kind == F_LARGE && (net.e[x->peer.v] == NULL || net.e[x->peer.v]->dead)) return; /* DEATH is on its way */
        fake_push(e->rank.v, x->peer.v, &m);
        if (m.kind == F_DATA) end(e, x, MCPG_LX_DONE);
    }
}

void mcpg__link_send(mcpg_engine_t *e, mcpg_lx_t *x) {
    MCPG_ASSERT(x->state == 0);
    if (!e->dead) post_send(e, x);
}

mcpg_lx_result_t mcpg__link_take_kept(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source,
                                      mcpg_incarnation_t inc, const mcpg_msg_sig_t *sig, void *buf,
                                      mcpg_msg_sig_t *peer_sig_out) {
    for (fmsg_t **at = &e->kept; *at != NULL; at = &(*at)->next) {
        fmsg_t *m = *at;
        if (m->from != source.v || m->kind != F_DATA || !mcpg__inc_eq(m->inc, inc) || !fake_key_equal(&m->key, key))
            continue;
        const bool same = sig->kind == m->sig.kind && sig->dtype == m->sig.dtype && sig->bytes == m->sig.bytes;
        if (same && m->sig.bytes != 0) memcpy(buf, m->data, m->sig.bytes);
        *peer_sig_out = m->sig;
        *at = m->next;
        fake_free_msg(m);
        return same ? MCPG_LX_DONE : MCPG_LX_MISMATCH;
    }
    return MCPG_LX_LEFT;
}

void mcpg__link_recv(mcpg_engine_t *e, mcpg_lx_t *x) {
    MCPG_ASSERT(x->state == 0);
    if (e->dead) return;
    x->next = e->recvs;
    e->recvs = x;
    x->state = 1;
    for (fmsg_t **at = &e->kept; *at != NULL; at = &(*at)->next) {
        fmsg_t *m = *at;
        if (m->from != x->peer.v || !mcpg__inc_eq(m->inc, x->peer_inc) || !fake_key_equal(&m->key, &x->key)) continue;
        *at = m->next;
        meet(e, x, m);
        fake_free_msg(m);
        return;
    }
    const fpeer_t *p = &e->peer[x->peer.v];
    const int cmp = mcpg__inc_cmp(x->peer_inc, p->inc);
    const ftomb_t *t = tomb(e, x->peer.v, &x->key, false);
    if (t != NULL) {
        x->peer_sig = t->sig;
        end(e, x, t->mismatch ? MCPG_LX_MISMATCH : MCPG_LX_LEFT);
    } else if (cmp < 0 || (cmp == 0 && p->st == MCPG_LINK_ST_DEAD)) {
        end(e, x, MCPG_LX_PEER_DEAD);
    }
}

void mcpg__link_cancel(mcpg_engine_t *e, mcpg_lx_t *x) {
    (void)(unlist(&e->recvs, x) || unlist(&e->sends, x) || unlist(&e->ended, x));
    x->state = 0;
    fake_drop_large(e->rank.v, x->peer.v, x);
}

static void drop_kept(mcpg_engine_t *e, uint32_t gid, const mcpg_view_id_t *view, uint64_t below,
                      const mcpg_msg_key_t *op) {
    for (fmsg_t **at = &e->kept; *at != NULL;) {
        fmsg_t *m = *at;
        const mcpg_view_id_t v = {m->key.view_term, m->key.view_epoch};
        bool drop = m->key.gid == gid;
        if (op != NULL) drop = fake_same_op(op, &m->key);
        if (view != NULL)
            drop = drop && (m->key.flags & MCPG_KEY_P2P) == 0 && mcpg__view_cmp(v, *view) <= 0 && m->key.seq < below;
        if (drop) {
            *at = m->next;
            fake_free_msg(m);
        } else {
            at = &m->next;
        }
    }
}

void mcpg__link_leave(mcpg_engine_t *e, const mcpg_msg_key_t *key, const mcpg_member_t *peers, uint32_t count) {
    for (uint32_t i = 0; i < count && !e->dead; i++) {
        const uint32_t to = peers[i].rank.v;
        if (to == e->rank.v || e->peer[to].st != MCPG_LINK_ST_UP) continue;
        fmsg_t left = {.kind = F_LEFT, .key = *key};
        fake_push(e->rank.v, to, &left);
        add_tomb(e, RANKS + to, key, NULL);
    }
    if ((key->flags & MCPG_KEY_P2P) == 0) drop_kept(e, 0, NULL, 0, key);
}

void mcpg__link_forget(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, uint64_t below) {
    drop_kept(e, gid, &view, below, NULL);
}
void mcpg__link_forget_group(mcpg_engine_t *e, uint32_t gid) {
    drop_kept(e, gid, NULL, 0, NULL);
}

mcpg_link_st_t mcpg__link_state(const mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    const fpeer_t *p = &e->peer[rank.v];
    return mcpg__inc_eq(p->inc, inc) ? p->st : mcpg__inc_cmp(inc, p->inc) < 0 ? MCPG_LINK_ST_DEAD : MCPG_LINK_ST_NONE;
}

void mcpg__link_probe(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    (void)inc;
    fmsg_t probe = {.kind = F_PROBE};
    fake_push(e->rank.v, rank.v, &probe);
}

uint64_t mcpg__link_last_heard_us(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    (void)inc;
    return e->peer[rank.v].heard;
}
