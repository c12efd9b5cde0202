/* link_frames.c: the meaning of each frame: matching, rendezvous, tombstones, probes, relayed deaths.
 *
 * Relayed views and questions about them go to the agent unread. A frame is data, never trusted: what does not fit the
 * state here makes mcpg__rx_frame return false and breaks that link only. Frames about handles that are gone are
 * answered, not errors: cancelling races with the peer by design.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

static bool body_read(const uint8_t *body, mcpg_message_body_t *out) {
    memcpy(out, body, sizeof(*out));
    return (out->key.flags & ~MCPG_KEY_P2P) == 0 && out->key.pad == 0;
}

static bool left_by_us(mcpg_link_t *l, const mcpg_msg_key_t *key) {
    mcpg_rank_t side = mcpg__tomb_own_side(l->e, key, l->rank);
    mcpg_incarnation_t inc = (key->flags & MCPG_KEY_P2P) ? l->inc : l->e->own;
    return mcpg__tomb_find(l->e, side, inc, key, true) != NULL;
}

void mcpg__link_stray(mcpg_link_t *l, const mcpg_message_body_t *body, mcpg_stray_t how) {
    const mcpg_engine_hooks_t *h = &l->e->hooks;
    if (h->stray == NULL || (body->key.flags & MCPG_KEY_P2P) != 0) return;
    h->stray(h->user, l->rank, l->inc, &body->key, &body->sig, how);
}

static void refuse(mcpg_link_t *l, const mcpg_msg_key_t *key, mcpg_lx_t *x, const mcpg_msg_sig_t *theirs) {
    mcpg_message_body_t body = {.key = *key, .sig = x->sig};
    mcpg__tx_control(l, MCPG_FT_NACK, 0, &body, sizeof(body));
    x->peer_sig = *theirs;
    mcpg__lx_end(l->e, x, MCPG_LX_MISMATCH);
}

static bool eager(mcpg_link_t *l, const uint8_t *bytes) {
    mcpg_message_body_t body;
    if (!body_read(bytes, &body) || body.sig.bytes != l->rx.left) return false;
    if (l->rx.eager_held + l->rx.credit_owed >= MCPG_EAGER_CREDITS) return false;
    if (left_by_us(l, &body.key)) return true;
    mcpg_lx_t *x = mcpg__match_posted(l->e, &body.key, l->rank, l->inc);
    if (x != NULL && !mcpg__sig_equal(&x->sig, &body.sig)) {
        refuse(l, &body.key, x, &body.sig);
        return true;
    }
    if (x != NULL) {
        mcpg__lx_unlink(x);
        x->state = MCPG_LXS_EAGER_IN;
        l->rx.lx = x;
        l->rx.dst = x->buf;
        return true;
    }
    mcpg_unexpected_t *u = mcpg__unexpected_take(l->e, (size_t)body.sig.bytes);
    if (u == NULL) return false;
    u->source = l->rank;
    u->inc = l->inc;
    u->key = body.key;
    u->sig = body.sig;
    u->stream_id = l->stream_id;
    l->rx.eager_held++;
    l->rx.entry = u;
    l->rx.dst = u->data;
    return true;
}

/* Its receive may have been posted, or its operation left, while the payload came in. */
static void entry_complete(mcpg_link_t *l, mcpg_unexpected_t *u) {
    mcpg_lx_t *x = mcpg__match_posted(l->e, &u->key, u->source, u->inc);
    if (x == NULL && !left_by_us(l, &u->key)) {
        const mcpg_message_body_t body = {.key = u->key, .sig = u->sig};
        mcpg__unexpected_add(l->e, u);
        mcpg__link_stray(l, &body, MCPG_STRAY_KEPT);
        return;
    }
    if (x != NULL && !mcpg__sig_equal(&x->sig, &u->sig)) {
        refuse(l, &u->key, x, &u->sig);
    } else if (x != NULL) {
        if (u->sig.bytes > 0) memcpy(x->buf, u->data, (size_t)u->sig.bytes);
        mcpg__lx_end(l->e, x, MCPG_LX_DONE);
    }
    mcpg__unexpected_drop(l->e, u);
}

static void view_complete(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    uint8_t *bytes = l->rx.view;
    l->rx.view = NULL;
    if (bytes != NULL && e->has_observer && e->observer.view_told != NULL)
        e->observer.view_told(e->observer.user, l->rank, l->inc, bytes, l->rx.frame.len);
    free(bytes);
}

void mcpg__rx_message_complete(mcpg_link_t *l) {
    mcpg_lx_t *x = l->rx.lx;
    mcpg_unexpected_t *u = l->rx.entry;
    l->rx.lx = NULL;
    l->rx.entry = NULL;
    if (l->rx.frame.type == MCPG_FT_VIEW) {
        view_complete(l);
        return;
    }
    if (l->rx.frame.type == MCPG_FT_DATA) {
        if (x == NULL) return;
        x->moved += l->rx.frame.len;
        if (x->moved == x->sig.bytes) mcpg__lx_end(l->e, x, MCPG_LX_DONE);
        return;
    }
    if (u != NULL) {
        entry_complete(l, u);
        return;
    }
    l->rx.credit_owed++;
    if (x != NULL) mcpg__lx_end(l->e, x, MCPG_LX_DONE);
}

static bool announce(mcpg_link_t *l, const uint8_t *bytes) {
    mcpg_message_body_t body;
    if (!body_read(bytes, &body) || l->rx.announced_held >= MCPG_ANNOUNCE_MAX) return false;
    if (left_by_us(l, &body.key)) {
        mcpg__tx_control(l, MCPG_FT_GONE_RECV, l->rx.frame.aux, NULL, 0);
        return true;
    }
    mcpg_lx_t *x = mcpg__match_posted(l->e, &body.key, l->rank, l->inc);
    if (x != NULL) {
        mcpg__rx_grant(l, x, l->rx.frame.aux, &body.sig);
        return true;
    }
    mcpg_unexpected_t *u = mcpg__unexpected_take(l->e, 0);
    if (u == NULL) return false;
    u->source = l->rank;
    u->inc = l->inc;
    u->key = body.key;
    u->sig = body.sig;
    u->stream_id = l->stream_id;
    u->sender_handle = l->rx.frame.aux;
    u->announced = true;
    l->rx.announced_held++;
    mcpg__unexpected_add(l->e, u);
    mcpg__link_stray(l, &body, MCPG_STRAY_KEPT);
    return true;
}

static void end_send(mcpg_link_t *l, mcpg_lx_t *x, mcpg_lx_result_t result) {
    if (x->state == MCPG_LXS_ANNOUNCED) l->tx.announced_count--;
    if (l->tx.lx == x) mcpg__tx_detach(l, x);
    mcpg__lx_end(l->e, x, result);
}

static bool granted(mcpg_link_t *l, const uint8_t *body) {
    uint64_t receiver;
    memcpy(&receiver, body, sizeof(receiver));
    mcpg_lx_t *x = mcpg__handle_find(l->e, l->rx.frame.aux, l->rank, true);
    if (x == NULL) {
        if (receiver != 0) mcpg__tx_control(l, MCPG_FT_GONE_SEND, receiver, NULL, 0);
        return true;
    }
    if (x->state != MCPG_LXS_ANNOUNCED || (receiver == 0) != (x->sig.bytes == 0)) return false;
    if (receiver == 0) {
        end_send(l, x, MCPG_LX_DONE);
        return true;
    }
    x->peer_handle = receiver;
    mcpg__tx_start_moving(l, x);
    return true;
}

static bool data(mcpg_link_t *l) {
    mcpg_lx_t *x = mcpg__handle_find(l->e, l->rx.frame.aux, l->rank, false);
    if (x == NULL) return true;
    if (x->state != MCPG_LXS_GRANTED || l->rx.frame.len > x->sig.bytes - x->moved) return false;
    l->rx.lx = x;
    l->rx.dst = (uint8_t *)x->buf + x->moved;
    return true;
}

static bool refused(mcpg_link_t *l, const uint8_t *bytes) {
    mcpg_message_body_t body;
    if (!body_read(bytes, &body)) return false;
    if (l->rx.frame.aux == 0) {
        mcpg__end_op_with_peer(l, &body.key, &body.sig);
        mcpg__link_stray(l, &body, MCPG_STRAY_REFUSED);
        return true;
    }
    mcpg_lx_t *x = mcpg__handle_find(l->e, l->rx.frame.aux, l->rank, true);
    if (x == NULL) return true;
    if (x->state != MCPG_LXS_ANNOUNCED) return false;
    x->peer_sig = body.sig;
    end_send(l, x, MCPG_LX_MISMATCH);
    return true;
}

static bool asked(mcpg_link_t *l, const uint8_t *bytes) {
    mcpg_message_body_t body;
    if (!body_read(bytes, &body) || (body.key.flags & MCPG_KEY_P2P) != 0) return false;
    mcpg__link_stray(l, &body, MCPG_STRAY_ASKED);
    return true;
}

static bool op_hit(const mcpg_lx_t *x, const mcpg_link_t *l, const mcpg_msg_key_t *key, uint32_t reason_flag) {
    uint32_t which = key->flags & (MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV);
    if (which != 0 && (which & reason_flag) == 0) return false;
    return x->peer.v == l->rank.v && mcpg__inc_eq(x->peer_inc, l->inc) && mcpg__key_same_op(&x->key, key);
}

static void end_list(mcpg_link_t *l, mcpg_lx_list_t *list, const mcpg_msg_key_t *key, bool sends,
                     const mcpg_msg_sig_t *mismatch) {
    for (mcpg_lx_t *x = list->head, *next; x != NULL; x = next) {
        next = x->next;
        if (!op_hit(x, l, key, sends ? MCPG_KEY_LEFT_RECV : MCPG_KEY_LEFT_SEND)) continue;
        if (mismatch != NULL) x->peer_sig = *mismatch;
        mcpg_lx_result_t result = mismatch != NULL ? MCPG_LX_MISMATCH : MCPG_LX_LEFT;
        if (sends)
            end_send(l, x, result);
        else
            mcpg__lx_end(l->e, x, result);
    }
}

/* The peer's side of this operation is over: whoever still waits for it ends, and so does whoever comes later
 * (tombstone). An eager frame that is half out goes on: it is complete in itself. */
void mcpg__end_op_with_peer(mcpg_link_t *l, const mcpg_msg_key_t *key, const mcpg_msg_sig_t *mismatch) {
    mcpg_engine_t *e = l->e;
    mcpg__tomb_add(e, l->rank, l->inc, key, mismatch);
    if (mismatch == NULL && (key->flags & (MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV)) != MCPG_KEY_LEFT_RECV)
        mcpg__unexpected_drop_announced(e, key, l->rank);
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++)
        if (e->posted[i].head != NULL) end_list(l, &e->posted[i], key, false, mismatch);
    end_list(l, &l->granted, key, false, mismatch);
    end_list(l, &l->tx.queue, key, true, mismatch);
    end_list(l, &l->tx.announced, key, true, mismatch);
    end_list(l, &l->tx.moving, key, true, mismatch);
    end_list(l, &l->waiting, key, true, mismatch);
    mcpg_lx_t *x = l->tx.lx;
    if (x != NULL && x->state == MCPG_LXS_MOVING && op_hit(x, l, key, MCPG_KEY_LEFT_RECV)) {
        if (mismatch != NULL) x->peer_sig = *mismatch;
        end_send(l, x, mismatch != NULL ? MCPG_LX_MISMATCH : MCPG_LX_LEFT);
    }
}

static bool left(mcpg_link_t *l, const uint8_t *body) {
    mcpg_msg_key_t key;
    memcpy(&key, body, sizeof(key));
    if ((key.flags & ~(MCPG_KEY_P2P | MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV)) != 0) return false;
    mcpg__end_op_with_peer(l, &key, NULL);
    return true;
}

static void probe_answered(mcpg_link_t *l) {
    if (l->relay_nonce != 0 && l->rx.frame.aux >= l->relay_nonce) {
        mcpg__log(&l->e->log, MCPG_LOG_WARN, "relayed death ignored: rank %u answers", l->rank.v);
        l->relay_nonce = 0;
    }
    for (uint32_t i = 0; i < l->check_count;) {
        if (l->checks[i].nonce == 0 || l->checks[i].nonce > l->rx.frame.aux) {
            i++;
            continue;
        }
        mcpg_obs_t obs = {
            .kind = MCPG_OBS_CHECKED, .rank = l->rank, .inc = l->inc, .check_id = l->checks[i].id, .ok = true};
        l->checks[i] = l->checks[--l->check_count];
        mcpg__obs_tell(l->e, &obs);
    }
}

static bool died(mcpg_link_t *l, const uint8_t *body) {
    mcpg_incarnation_t inc;
    memcpy(&inc, body, sizeof(inc));
    if (l->rx.frame.aux >= MCPG_MAX_RANKS) return false;
    mcpg__link_relayed_death(l->e, (mcpg_rank_t){(uint32_t)l->rx.frame.aux}, inc);
    return true;
}

static bool view_asked(mcpg_link_t *l, const uint8_t *body) {
    mcpg_engine_t *e = l->e;
    mcpg_view_id_t view;
    memcpy(&view, body, sizeof(view));
    if (l->rx.frame.aux == 0 || l->rx.frame.aux > UINT32_MAX || view.term == 0) return false;
    mcpg_gid_t gid = {(uint32_t)l->rx.frame.aux};
    if (e->has_observer && e->observer.view_asked != NULL)
        e->observer.view_asked(e->observer.user, l->rank, l->inc, gid, view);
    return true;
}

static bool view_begins(mcpg_link_t *l) {
    l->rx.view = malloc(l->rx.frame.len);
    l->rx.dst = l->rx.view;
    return true;
}

static bool sender_gone(mcpg_link_t *l) {
    mcpg_lx_t *x = mcpg__handle_find(l->e, l->rx.frame.aux, l->rank, false);
    if (x != NULL) mcpg__lx_end(l->e, x, MCPG_LX_LEFT);
    return true;
}

static bool receiver_gone(mcpg_link_t *l) {
    mcpg_lx_t *x = mcpg__handle_find(l->e, l->rx.frame.aux, l->rank, true);
    if (x != NULL) end_send(l, x, MCPG_LX_LEFT);
    return true;
}

bool mcpg__rx_frame(mcpg_link_t *l, const uint8_t *body) {
    switch ((mcpg_frame_type_t)l->rx.frame.type) {
    case MCPG_FT_EAGER:
        return eager(l, body);
    case MCPG_FT_RTS:
        return announce(l, body);
    case MCPG_FT_CTS:
        return granted(l, body);
    case MCPG_FT_DATA:
        return data(l);
    case MCPG_FT_GONE_RECV:
        return receiver_gone(l);
    case MCPG_FT_GONE_SEND:
        return sender_gone(l);
    case MCPG_FT_NACK:
        return refused(l, body);
    case MCPG_FT_LEFT:
        return left(l, body);
    case MCPG_FT_PROBE:
        mcpg__tx_control(l, MCPG_FT_PROBE_ACK, l->rx.frame.aux, NULL, 0);
        return true;
    case MCPG_FT_PROBE_ACK:
        probe_answered(l);
        return true;
    case MCPG_FT_DEAD:
        return died(l, body);
    case MCPG_FT_BYE:
        l->bye = true;
        return true;
    case MCPG_FT_CREDIT:
        return true;
    case MCPG_FT_ASK:
        return asked(l, body);
    case MCPG_FT_ASK_VIEW:
        return view_asked(l, body);
    case MCPG_FT_VIEW:
        return view_begins(l);
    case MCPG_FT__COUNT:
        return false;
    }
    return false;
}
