/* p2p.c: send and receive. Numbered per (slot, tag) and direction, stamped with incarnations and with the view in which
 * the two met, so that they survive view changes that keep both ends and never meet a message from before (contract
 * D12).
 *
 * Works of this file complete in no order and are not held by a membership change. Never takes a number of the group.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

static mcpg_pair_t *pair_of(mcpg_dpgroup_t *g, uint32_t slot, uint64_t tag, mcpg_view_id_t base) {
    if (g->pairs == NULL) g->pairs = (mcpg_pair_t **)calloc(MCPG_PAIR_BUCKETS, sizeof *g->pairs);
    if (g->pairs == NULL) return NULL;
    mcpg_pair_t **bucket = &g->pairs[(slot * 31u + tag) % MCPG_PAIR_BUCKETS];
    mcpg_pair_t *p = *bucket;
    while (p != NULL && (p->slot != slot || p->tag != tag)) p = p->next;
    if (p == NULL) {
        p = (mcpg_pair_t *)calloc(1, sizeof *p);
        if (p == NULL) return NULL;
        p->slot = slot;
        p->tag = tag;
        p->base = base;
        p->next = *bucket;
        *bucket = p;
    }
    if (!mcpg__view_eq(p->base, base)) {
        p->base = base;
        p->send_next = p->recv_next = 0;
    }
    return p;
}

static void append(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    w->group = g;
    w->prev = g->p2p_tail;
    if (g->p2p_tail != NULL) {
        g->p2p_tail->next = w;
    } else {
        g->p2p_head = w;
    }
    g->p2p_tail = w;
    g->outstanding++;
}

void mcpg__p2p_complete(mcpg_dp_work_t *w) {
    mcpg_dpgroup_t *g = w->group;
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        g->p2p_head = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    } else {
        g->p2p_tail = w->prev;
    }
    w->next = w->prev = NULL;
    g->outstanding--;
    mcpg__work_complete(w);
}

static void finish(mcpg_dp_work_t *w) {
    mcpg__work_set_state(w, MCPG_W_DONE);
    mcpg__p2p_complete(w);
}

/* ---- to oneself ---- */
static size_t seg_bytes(const mcpg_dp_work_t *w, const mcpg_seg_t *s) {
    return s->count * mcpg_dtype_size(w->op.dtype);
}

static void self_deliver(mcpg_dp_work_t *recv, const void *data, size_t bytes, uint32_t dtype) {
    const size_t room = seg_bytes(recv, &recv->op.out);
    if (bytes != room || dtype != (uint32_t)recv->op.dtype) {
        mcpg__work_fail(recv, MCPG_MISMATCH,
                        "in-group rank %u (this one) sent %zu bytes %s to itself but receives %zu bytes %s: pass the "
                        "same dtype and size",
                        recv->op.peer, bytes, mcpg_dtype_name((mcpg_dtype_t)dtype), room,
                        mcpg_dtype_name(recv->op.dtype));
    } else if (bytes != 0) {
        memmove(recv->op.out.ptr, data, bytes);
    }
}

static mcpg_dp_work_t *self_waiting(const mcpg_dpgroup_t *g, const mcpg_dp_work_t *for_work) {
    for (mcpg_dp_work_t *w = g->p2p_head; w != NULL; w = w->next) {
        if (w != for_work && w->op.peer == g->slot.v && w->op.kind != for_work->op.kind &&
            w->op.tag == for_work->op.tag && w->pair_seq == for_work->pair_seq && mcpg__work_state(w) == MCPG_W_WAITING)
            return w;
    }
    return NULL;
}

static void self_send(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    const size_t bytes = seg_bytes(w, &w->op.in);
    mcpg_dp_work_t *recv = self_waiting(g, w);
    if (recv != NULL) {
        self_deliver(recv, w->op.in.ptr, bytes, (uint32_t)w->op.dtype);
        finish(recv);
        finish(w);
        return;
    }
    mcpg_self_msg_t *msg = bytes <= MCPG_EAGER_BYTES ? (mcpg_self_msg_t *)malloc(sizeof *msg + bytes) : NULL;
    if (msg == NULL) return; /* waits for the receive */
    msg->tag = w->op.tag;
    msg->seq = w->pair_seq;
    msg->dtype = (uint32_t)w->op.dtype;
    msg->bytes = bytes;
    if (bytes != 0) memcpy(msg->data, w->op.in.ptr, bytes);
    msg->next = g->self_msgs;
    g->self_msgs = msg;
    finish(w);
}

static void self_recv(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    mcpg_self_msg_t **at = &g->self_msgs;
    while (*at != NULL && ((*at)->tag != w->op.tag || (*at)->seq != w->pair_seq)) at = &(*at)->next;
    mcpg_self_msg_t *msg = *at;
    if (msg != NULL) {
        *at = msg->next;
        self_deliver(w, msg->data, msg->bytes, msg->dtype);
        free(msg);
        finish(w);
        return;
    }
    mcpg_dp_work_t *send = self_waiting(g, w);
    if (send == NULL) return;
    self_deliver(w, send->op.in.ptr, seg_bytes(send, &send->op.in), (uint32_t)send->op.dtype);
    finish(send);
    finish(w);
}

static void self_msgs_drop(mcpg_dpgroup_t *g) {
    while (g->self_msgs != NULL) {
        mcpg_self_msg_t *msg = g->self_msgs;
        g->self_msgs = msg->next;
        free(msg);
    }
}

/* ---- between ranks ---- */
static mcpg_status_t judge(const mcpg_dpgroup_t *g, const mcpg_op_t *op, char *error, size_t cap) {
    const char *name = mcpg_op_name(op->kind);
    if (g->ended != MCPG_OK) {
        (void)snprintf(error, cap, "%s refused: %s", name, g->ended_why);
        return g->ended;
    }
    if (g->quiescing) {
        (void)snprintf(error, cap, "%s refused: the group is draining for join_group: wait until it returned", name);
        return MCPG_QUIESCING;
    }
    if (g->isolated || g->fenced) return MCPG_OK;
    if (g->newest == NULL || !mcpg__view_runs(g, g->newest, mcpg__group_next(g))) {
        (void)snprintf(
            error, cap,
            "in-group rank %u (this one) is not active in the group, %s refused: call join_group and have it activated",
            g->slot.v, name);
        return MCPG_NOT_ACTIVE;
    }
    return MCPG_OK;
}

static bool peer_is_active(const mcpg_dpgroup_t *g, uint32_t slot) {
    const int32_t member = mcpg__view_find(g->newest, slot);
    return member >= 0 && g->newest->leave_seq[member] > mcpg__group_next(g);
}

static void hint_absent(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    w->hint[w->op.peer] = 1;
    w->local_success = false;
    mcpg__rankset_add(&g->failed, w->op.peer);
    finish(w);
}

/* What a process had sent before it left or died still counts, if it came here before anybody asked for it. */
static bool take_kept(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    const mcpg_op_t *op = &w->op;
    const int32_t member = mcpg__view_find(g->newest, op->peer);
    mcpg_gone_t from = {{0}, {0, 0}, {0, 0}};
    if (member >= 0) {
        from = (mcpg_gone_t){g->newest->m[member].rank, g->newest->m[member].inc, g->newest->pair_base[member]};
    } else if (g->gone != NULL) {
        from = g->gone[op->peer];
    }
    if (op->kind != MCPG_OP_RECV || mcpg__inc_none(from.inc)) return false;
    mcpg_pair_t *pair = pair_of(g, op->peer, op->tag, from.base);
    if (pair == NULL) return false;
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig, meant;
    memset(&key, 0, sizeof key);
    memset(&sig, 0, sizeof sig);
    key.gid = g->gid.v;
    key.flags = MCPG_KEY_P2P;
    key.view_term = from.base.term;
    key.view_epoch = from.base.epoch;
    key.seq = pair->recv_next;
    key.tag = op->tag;
    sig.kind = (uint8_t)MCPG_OP_SEND;
    sig.dtype = (uint8_t)op->dtype;
    sig.bytes = seg_bytes(w, &op->out);
    const mcpg_lx_result_t result =
        mcpg__link_take_kept(g->dp->engine, &key, from.rank, from.inc, &sig, op->out.ptr, &meant);
    if (result == MCPG_LX_LEFT) return false;
    pair->recv_next++;
    if (result == MCPG_LX_MISMATCH)
        mcpg__work_fail(w, MCPG_MISMATCH,
                        "recv from in-group rank %u: it sent %llu bytes %s before it left, this rank receives %llu "
                        "bytes %s: pass the same dtype and size",
                        op->peer, (unsigned long long)meant.bytes, mcpg_dtype_name((mcpg_dtype_t)meant.dtype),
                        (unsigned long long)sig.bytes, mcpg_dtype_name(op->dtype));
    finish(w);
    return true;
}

static mcpg_status_t number(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    const mcpg_op_t *op = &w->op;
    mcpg_view_id_t base = {0, 0};
    if (!g->isolated) base = g->newest->pair_base[mcpg__view_find(g->newest, op->peer)];
    mcpg_pair_t *pair = pair_of(g, op->peer, op->tag, base);
    if (pair == NULL) return MCPG_NO_MEMORY;
    w->pair_base = base;
    w->pair_seq = op->kind == MCPG_OP_SEND ? pair->send_next++ : pair->recv_next++;
    return MCPG_OK;
}

static void route(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    const bool to_self = w->op.peer == g->slot.v;
    if (g->fenced) {
        w->local_success = false;
        finish(w);
    } else if (g->isolated && !to_self) {
        finish(w); /* on {self} there is nobody else: nothing moves */
    } else if (!to_self && !peer_is_active(g, w->op.peer)) {
        if (!take_kept(g, w)) hint_absent(g, w);
    } else if (number(g, w) != MCPG_OK) {
        mcpg__work_fail(w, MCPG_NO_MEMORY, "%s: no memory to number messages with rank %u: free some",
                        mcpg_op_name(w->op.kind), w->op.peer);
        finish(w);
    } else if (!to_self) {
        mcpg__op_start(w);
        if (mcpg__work_state(w) == MCPG_W_DONE) mcpg__p2p_complete(w);
    } else if (w->op.kind == MCPG_OP_SEND) {
        self_send(g, w);
    } else {
        self_recv(g, w);
    }
}

mcpg_status_t mcpg__p2p_submit(mcpg_dpgroup_t *g, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error, size_t cap) {
    MCPG_TRY(judge(g, op, error, cap));
    mcpg_dp_work_t *w = mcpg__work_get(g->dp, g->capacity);
    if (w == NULL) {
        (void)snprintf(error, cap, "%s: no memory for one more outstanding operation: wait for earlier ones",
                       mcpg_op_name(op->kind));
        return MCPG_NO_MEMORY;
    }
    w->op = *op;
    w->op.ins = w->op.outs = NULL;
    w->op.in_count = w->op.out_count = 0;
    const uint64_t limit = op->timeout_us != 0 ? op->timeout_us : g->timeout_us;
    const uint64_t now = limit == 0 ? 0 : mcpg__now().us;
    if (limit != 0) w->deadline_us = limit > MCPG_NO_SEQ - now ? MCPG_NO_SEQ : now + limit;
    if (limit != 0) mcpg__dp_arm(g->dp, w->deadline_us);
    append(g, w);
    *out = w;
    route(g, w);
    return MCPG_OK;
}

void mcpg__p2p_view_changed(mcpg_dpgroup_t *g) {
    const bool active = mcpg__view_runs(g, g->newest, mcpg__group_next(g));
    for (mcpg_dp_work_t *w = g->p2p_head, *next; w != NULL; w = next) {
        next = w->next;
        if (mcpg__work_state(w) != MCPG_W_RUNNING) continue;
        if (!active) {
            mcpg__op_end(w, MCPG_NOT_ACTIVE,
                         "this rank was deactivated before the message moved: call join_group to be activated again");
            mcpg__p2p_complete(w);
            continue;
        }
        mcpg_exec_t *x = w->exec;
        const int32_t then = mcpg__view_find(x->view, w->op.peer), now = mcpg__view_find(g->newest, w->op.peer);
        const bool kept =
            now >= 0 && mcpg__inc_eq(x->view->m[then].inc, g->newest->m[now].inc) && peer_is_active(g, w->op.peer);
        if (!kept) x->coll->drop(x, (uint32_t)then, MCPG_XP_GONE);
    }
}

void mcpg__p2p_forget(mcpg_dpgroup_t *g, bool all) {
    const mcpg_dpview_t *v = g->newest;
    mcpg_engine_t *engine = g->dp->engine;
    if (all) {
        mcpg__link_forget_pairs(engine, g->gid.v, v->id, NULL);
        self_msgs_drop(g);
        free(g->gone);
        g->gone = NULL;
        return;
    }
    for (uint32_t i = 0; i < v->count; i++)
        if (mcpg__view_eq(v->pair_base[i], v->id)) mcpg__link_forget_pairs(engine, g->gid.v, v->id, &v->m[i].rank);
}

void mcpg__p2p_free(mcpg_dpgroup_t *g) {
    self_msgs_drop(g);
    for (uint32_t i = 0; g->pairs != NULL && i < MCPG_PAIR_BUCKETS; i++) {
        while (g->pairs[i] != NULL) {
            mcpg_pair_t *p = g->pairs[i];
            g->pairs[i] = p->next;
            free(p);
        }
    }
    free(g->pairs);
    g->pairs = NULL;
    free(g->gone);
    g->gone = NULL;
}
