/* fake_engine.c: the engine.h half of the fake: life, lock, waiting, links by hand. See fake_link.h. Never used outside
 * tests. */
#include <stdlib.h>
#include <string.h>

#include "common/executor.h"
#include "fake_priv.h"

#define net fake_net

mcpg_status_t mcpg__engine_create(const mcpg_engine_config_t *config, mcpg_engine_t **out, char *error,
                                  size_t error_cap) {
    (void)error;
    (void)error_cap;
    mcpg_engine_t *e = calloc(1, sizeof *e);
    if (e == NULL || config->rank.v >= RANKS) {
        free(e);
        return MCPG_NO_MEMORY;
    }
    e->hooks = config->hooks;
    e->rank = config->rank;
    net.e[config->rank.v] = e;
    *out = e;
    return MCPG_OK;
}

void mcpg__engine_destroy(mcpg_engine_t *e) {
    if (e == NULL) return;
    MCPG_ASSERT(e->dead || (e->recvs == NULL && e->sends == NULL));
    for (uint32_t i = 0; i < RANKS; i++) {
        fake_drop_large(e->rank.v, i, NULL);
        fake_drop_large(i, e->rank.v, NULL);
        while (net.q[i][e->rank.v].head != NULL) {
            fmsg_t *m = net.q[i][e->rank.v].head;
            net.q[i][e->rank.v].head = m->next;
            fake_free_msg(m);
        }
        net.q[i][e->rank.v].end = &net.q[i][e->rank.v].head;
        while (net.q[e->rank.v][i].head != NULL) {
            fmsg_t *m = net.q[e->rank.v][i].head;
            net.q[e->rank.v][i].head = m->next;
            fake_free_msg(m);
        }
        net.q[e->rank.v][i].end = &net.q[e->rank.v][i].head;
    }
    while (e->kept != NULL) {
        fmsg_t *m = e->kept;
        e->kept = m->next;
        fake_free_msg(m);
    }
    while (e->tombs != NULL) {
        ftomb_t *t = e->tombs;
        e->tombs = t->next;
        free(t);
    }
    net.e[e->rank.v] = NULL;
    free(e);
}

void mcpg__engine_lock(mcpg_engine_t *e) {
    MCPG_ASSERT(!e->locked);
    e->locked = true;
}
void mcpg__engine_unlock(mcpg_engine_t *e) {
    MCPG_ASSERT(e->locked);
    e->locked = false;
}
void mcpg__engine_kick(mcpg_engine_t *e) {
    e->kicked = true;
}

bool mcpg__engine_wait(mcpg_engine_t *e, bool (*done)(void *arg), void *arg, uint64_t deadline_us) {
    (void)e;
    while (!done(arg)) {
        if (fake_step()) continue;
        uint64_t at = fake_next_deadline();
        if (deadline_us < at) at = deadline_us;
        if (at == UINT64_MAX) return false; /* nothing will ever move */
        fake_tick(at);
        if (net.now >= deadline_us) return done(arg);
    }
    return true;
}

void mcpg__engine_set_observer(mcpg_engine_t *e, const mcpg_dp_observer_t *observer) {
    memset(&e->observer, 0, sizeof e->observer);
    if (observer != NULL) e->observer = *observer;
}
void mcpg__engine_set_incarnation(mcpg_engine_t *e, mcpg_incarnation_t own) {
    e->own = own;
}

size_t mcpg__engine_endpoint(const mcpg_engine_t *e, uint8_t *buf, size_t cap) {
    if (cap != 0) buf[0] = (uint8_t)e->rank.v;
    return 1;
}

void mcpg__engine_open_link(mcpg_engine_t *e, const mcpg_dp_peer_t *peer) {
    fpeer_t *p = &e->peer[peer->rank.v];
    if (mcpg__inc_cmp(peer->inc, p->inc) <= 0) return;
    fake_lose_peer(e, peer->rank.v, MCPG_LX_PEER_DEAD);
    *p = (fpeer_t){peer->inc, MCPG_LINK_ST_UP, net.now};
    e->kicked = true;
}

void mcpg__engine_close_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    if (!mcpg__inc_eq(e->peer[rank.v].inc, inc)) return;
    e->peer[rank.v].st = dead ? MCPG_LINK_ST_DEAD : MCPG_LINK_ST_DOWN;
    fake_lose_peer(e, rank.v, dead ? MCPG_LX_PEER_DEAD : MCPG_LX_LINK_LOST);
    e->kicked = true;
}

void mcpg__engine_ask_view(mcpg_engine_t *e, mcpg_gid_t gid, mcpg_view_id_t view) {
    (void)e;
    (void)gid;
    (void)view;
}

void mcpg__engine_tell_view(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes,
                            size_t len) {
    (void)e;
    (void)rank;
    (void)inc;
    (void)bytes;
    (void)len;
}

void mcpg__engine_check_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    if (e->observer.link_checked != NULL)
        (void)e->observer.link_checked(e->observer.user, rank, inc, check_id, e->peer[rank.v].st == MCPG_LINK_ST_UP);
}

void mcpg__engine_tell_op_failed(mcpg_engine_t *e, mcpg_gid_t gid, uint64_t report_id, uint64_t seq,
                                 const mcpg_member_t *failed, uint32_t count) {
    if (e->observer.op_failed != NULL)
        (void)e->observer.op_failed(e->observer.user, gid, report_id, seq, failed, count);
}

size_t mcpg__engine_links_json(mcpg_engine_t *e, char *buf, size_t cap) {
    (void)e;
    if (cap > 2) memcpy(buf, "[]", 3);
    return 2;
}

const char *mcpg__link_transport_name(const mcpg_engine_t *e, mcpg_rank_t rank) {
    (void)e;
    (void)rank;
    return "fake";
}

/* ---- words about operations ---- */
static void say_sig(mcpg_engine_t *e, mcpg_rank_t rank, fkind_t kind, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *own) {
    if (e->dead || e->peer[rank.v].st != MCPG_LINK_ST_UP) return;
    fmsg_t m = {.kind = kind, .key = *key, .sig = *own};
    fake_push(e->rank.v, rank.v, &m);
}
void mcpg__link_refuse(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                       const mcpg_msg_sig_t *own) {
    (void)inc;
    for (fmsg_t **at = &e->kept; *at != NULL;) {
        fmsg_t *m = *at;
        if (m->from == rank.v && fake_same_op(key, &m->key)) {
            *at = m->next;
            fake_free_msg(m);
        } else {
            at = &m->next;
        }
    }
    say_sig(e, rank, F_NACK, key, own);
}
void mcpg__link_ask(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *own) {
    (void)inc;
    say_sig(e, rank, F_ASK, key, own);
}
bool mcpg__link_kept(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source, mcpg_incarnation_t inc,
                     mcpg_msg_sig_t *sig_out) {
    for (const fmsg_t *m = e->kept; m != NULL; m = m->next) {
        if (m->from != source.v || !mcpg__inc_eq(m->inc, inc) || !fake_key_equal(&m->key, key)) continue;
        *sig_out = m->sig;
        return true;
    }
    return false;
}
void mcpg__link_forget_pairs(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, const mcpg_rank_t *source) {
    for (fmsg_t **at = &e->kept; *at != NULL;) {
        fmsg_t *m = *at;
        const mcpg_view_id_t v = {m->key.view_term, m->key.view_epoch};
        if (m->key.gid == gid && (m->key.flags & MCPG_KEY_P2P) != 0 && mcpg__view_cmp(v, view) < 0 &&
            (source == NULL || source->v == m->from)) {
            *at = m->next;
            fake_free_msg(m);
        } else {
            at = &m->next;
        }
    }
}
