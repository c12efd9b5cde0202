/* link.c: what the operation engine calls: post, cancel, leave, forget, probe.
 *
 * Nothing here calls done(): results wait in e->ended for the driving thread. A cancelled transfer's buffer is never
 * touched again.
 */
#include <string.h>

#include "dataplane/link_priv.h"

static void end_posted(mcpg_engine_t *e, mcpg_lx_t *x, mcpg_lx_result_t result) {
    mcpg__lx_end(e, x, result);
    mcpg__engine_kick(e);
}

static bool begin(mcpg_engine_t *e, mcpg_lx_t *x, bool is_send) {
    MCPG_ASSERT(x->state == MCPG_LXS_IDLE || x->state > MCPG_LXS_ENDED);
    x->next = x->prev = NULL;
    x->list = NULL;
    x->handle = x->moved = x->peer_handle = 0;
    x->is_send = is_send;
    x->result = 0;
    x->state = is_send ? MCPG_LXS_WAIT : MCPG_LXS_POSTED;
    e->lx_count++;
    if (mcpg__link_get(e, x->peer) != NULL) return true;
    end_posted(e, x, MCPG_LX_LINK_LOST);
    return false;
}

/* True when the peer's side is over for good. */
static bool over(mcpg_engine_t *e, mcpg_lx_t *x) {
    if (mcpg__link_state(e, x->peer, x->peer_inc) == MCPG_LINK_ST_DEAD) {
        end_posted(e, x, MCPG_LX_PEER_DEAD);
        return true;
    }
    const mcpg_tomb_t *t = mcpg__tomb_find(e, x->peer, x->peer_inc, &x->key, x->is_send != 0);
    if (t == NULL) return false;
    if (t->mismatch) x->peer_sig = t->sig;
    end_posted(e, x, t->mismatch ? MCPG_LX_MISMATCH : MCPG_LX_LEFT);
    return true;
}

void mcpg__link_send(mcpg_engine_t *e, mcpg_lx_t *x) {
    if (!begin(e, x, true) || over(e, x)) return;
    mcpg_link_t *l = e->links[x->peer.v];
    if (l->state != MCPG_LINK_ST_UP || !mcpg__inc_eq(l->inc, x->peer_inc)) {
        mcpg__lx_push(&l->waiting, x);
        return;
    }
    mcpg__tx_queue(l, x);
    mcpg__tx_soon(l);
}

static void take_unexpected(mcpg_engine_t *e, mcpg_lx_t *x, mcpg_unexpected_t *u) {
    mcpg_link_t *l = e->links[x->peer.v];
    if (u->announced) {
        uint64_t handle = u->sender_handle;
        mcpg_msg_sig_t sig = u->sig;
        mcpg__unexpected_drop(e, u);
        mcpg__match_post(e, x);
        mcpg__rx_grant(l, x, handle, &sig);
    } else if (mcpg__sig_equal(&x->sig, &u->sig)) {
        if (u->sig.bytes > 0) memcpy(x->buf, u->data, (size_t)u->sig.bytes);
        mcpg__unexpected_drop(e, u);
        mcpg__lx_end(e, x, MCPG_LX_DONE);
    } else {
        mcpg_message_body_t body = {.key = x->key, .sig = x->sig};
        if (mcpg__inc_eq(l->inc, x->peer_inc)) mcpg__tx_control(l, MCPG_FT_NACK, 0, &body, sizeof(body));
        x->peer_sig = u->sig;
        mcpg__unexpected_drop(e, u);
        mcpg__lx_end(e, x, MCPG_LX_MISMATCH);
    }
    mcpg__tx_soon(l);
    if (e->ended.head != NULL) mcpg__engine_kick(e);
}

void mcpg__link_recv(mcpg_engine_t *e, mcpg_lx_t *x) {
    if (!begin(e, x, false)) return;
    mcpg_unexpected_t *u = mcpg__unexpected_find(e, &x->key, x->peer, x->peer_inc);
    if (u != NULL) {
        take_unexpected(e, x, u);
        return;
    }
    if (over(e, x)) return;
    mcpg__match_post(e, x);
}

mcpg_lx_result_t mcpg__link_take_kept(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source,
                                      mcpg_incarnation_t inc, const mcpg_msg_sig_t *sig, void *buf,
                                      mcpg_msg_sig_t *peer_sig_out) {
    mcpg_unexpected_t *u = mcpg__unexpected_find(e, key, source, inc);
    if (u == NULL || u->announced) return MCPG_LX_LEFT;
    const bool same = sig->kind == u->sig.kind && sig->dtype == u->sig.dtype && sig->bytes == u->sig.bytes;
    if (same && u->sig.bytes > 0) memcpy(buf, u->data, (size_t)u->sig.bytes);
    *peer_sig_out = u->sig;
    mcpg__unexpected_drop(e, u);
    return same ? MCPG_LX_DONE : MCPG_LX_MISMATCH;
}

static void cancel_send(mcpg_link_t *l, mcpg_lx_t *x) {
    if (x->state == MCPG_LXS_ANNOUNCED) l->tx.announced_count--;
    if (l->tx.lx == x) mcpg__tx_detach(l, x);
    if (x->state == MCPG_LXS_MOVING) mcpg__tx_control(l, MCPG_FT_GONE_SEND, x->peer_handle, NULL, 0);
}

static void cancel_recv(mcpg_link_t *l, mcpg_lx_t *x) {
    if (l->rx.lx == x) {
        l->rx.lx = NULL;
        l->rx.dst = NULL;
    }
    if (x->state == MCPG_LXS_GRANTED) mcpg__tx_control(l, MCPG_FT_GONE_RECV, x->peer_handle, NULL, 0);
}

void mcpg__link_cancel(mcpg_engine_t *e, mcpg_lx_t *x) {
    if (x->state == MCPG_LXS_IDLE) return;
    mcpg_link_t *l = x->peer.v < MCPG_MAX_RANKS ? e->links[x->peer.v] : NULL;
    bool ended = x->state == MCPG_LXS_ENDED;
    if (!ended && l != NULL) {
        if (x->is_send)
            cancel_send(l, x);
        else
            cancel_recv(l, x);
    }
    mcpg__lx_unlink(x);
    if (x->handle != 0) mcpg__handle_drop(e, x->handle);
    x->handle = 0;
    x->state = MCPG_LXS_IDLE;
    if (ended) return;
    e->lx_count--;
    if (l != NULL) mcpg__tx_soon(l);
}

void mcpg__link_leave(mcpg_engine_t *e, const mcpg_msg_key_t *key, const mcpg_member_t *peers, uint32_t count) {
    mcpg_msg_key_t op = *key;
    op.phase = 0;
    op.pad = 0;
    bool pair = (op.flags & MCPG_KEY_P2P) != 0;
    bool receives = (op.flags & MCPG_KEY_LEFT_SEND) == 0 || (op.flags & MCPG_KEY_LEFT_RECV) != 0;
    if (!pair) {
        op.flags &= ~(MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV);
        mcpg__tomb_add(e, mcpg__tomb_own_side(e, &op, e->rank), e->own, &op, NULL);
        mcpg__unexpected_drop_op(e, &op, NULL);
    }
    for (uint32_t i = 0; i < count; i++) {
        mcpg_rank_t peer = peers[i].rank;
        if (peer.v >= MCPG_MAX_RANKS || peer.v == e->rank.v) continue;
        if (pair) mcpg__tomb_add(e, mcpg__tomb_own_side(e, &op, peer), peers[i].inc, &op, NULL);
        if (pair && receives) mcpg__unexpected_drop_op(e, &op, &peer);
        mcpg_link_t *l = e->links[peer.v];
        if (l == NULL || l->state != MCPG_LINK_ST_UP || !mcpg__inc_eq(l->inc, peers[i].inc)) continue;
        mcpg__tx_control(l, MCPG_FT_LEFT, 0, &op, sizeof(op));
        mcpg__tx_soon(l);
    }
}

static mcpg_link_t *up_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    return mcpg__link_state(e, rank, inc) == MCPG_LINK_ST_UP ? e->links[rank.v] : NULL;
}

static void say_sig(mcpg_link_t *l, mcpg_frame_type_t type, const mcpg_msg_key_t *key, const mcpg_msg_sig_t *own) {
    mcpg_message_body_t body = {.key = *key, .sig = *own};
    body.key.phase = 0;
    mcpg__tx_control(l, type, 0, &body, sizeof(body));
    mcpg__tx_soon(l);
}

void mcpg__link_refuse(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                       const mcpg_msg_sig_t *own) {
    mcpg__unexpected_drop_op(e, key, &rank);
    mcpg_link_t *l = up_link(e, rank, inc);
    if (l != NULL) say_sig(l, MCPG_FT_NACK, key, own);
}

void mcpg__link_ask(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *own) {
    mcpg_link_t *l = up_link(e, rank, inc);
    if (l != NULL) say_sig(l, MCPG_FT_ASK, key, own);
}

bool mcpg__link_kept(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source, mcpg_incarnation_t inc,
                     mcpg_msg_sig_t *sig_out) {
    if (e->unexpected_count == 0) return false;
    const mcpg_unexpected_t *u = mcpg__unexpected_find(e, key, source, inc);
    if (u != NULL) *sig_out = u->sig;
    return u != NULL;
}

void mcpg__link_forget(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, uint64_t below) {
    mcpg__unexpected_drop_group(e, gid, &view, below);
    mcpg__tomb_forget(e, gid, &view, below);
}

void mcpg__link_forget_group(mcpg_engine_t *e, uint32_t gid) {
    mcpg__unexpected_drop_group(e, gid, NULL, 0);
    mcpg__tomb_forget(e, gid, NULL, 0);
}

mcpg_link_st_t mcpg__link_state(const mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    const mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    if (l == NULL || mcpg__inc_cmp(inc, l->inc) > 0) return MCPG_LINK_ST_NONE;
    if (mcpg__inc_cmp(inc, l->inc) < 0) return MCPG_LINK_ST_DEAD;
    return l->state;
}

void mcpg__link_probe(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    if (mcpg__link_state(e, rank, inc) != MCPG_LINK_ST_UP) return;
    mcpg_link_t *l = e->links[rank.v];
    mcpg__tx_control(l, MCPG_FT_PROBE, ++l->probe_nonce, NULL, 0);
    mcpg__tx_soon(l);
}

uint64_t mcpg__link_last_heard_us(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    if (l == NULL || !mcpg__inc_eq(l->inc, inc)) return 0;
    uint64_t budget = MCPG_SLICE_BYTES;
    if (l->stream != NULL && !l->failed && !l->hung_up) {
        const bool moved = mcpg__rx_pump(l, &budget);
        if (moved || l->hung_up || l->failed) mcpg__engine_kick(e);
    }
    return l->last_heard_us;
}

const char *mcpg__link_transport_name(const mcpg_engine_t *e, mcpg_rank_t rank) {
    const mcpg_link_t *l = rank.v < MCPG_MAX_RANKS ? e->links[rank.v] : NULL;
    return l != NULL && l->stream != NULL ? l->stream->ops->name : "none";
}
