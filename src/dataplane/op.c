/* op.c: taking a number, judging, starting. Nothing is sent for an operation that is refused, and its number is
 * consumed all the same, so that the numbers of all ranks stay equal (contracts D8, D11). Never blocks on a peer,
 * except when 65,536 works are outstanding.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane/coll.h"

static uint64_t largest_bytes(const mcpg_op_t *op) {
    uint64_t count = op->in.count > op->out.count ? op->in.count : op->out.count;
    for (uint32_t i = 0; i < op->in_count; i++)
        if (op->ins[i].count > count) count = op->ins[i].count;
    for (uint32_t i = 0; i < op->out_count; i++)
        if (op->outs[i].count > count) count = op->outs[i].count;
    return count * mcpg_dtype_size(op->dtype);
}

static void fill_names(mcpg_exec_t *x) {
    const mcpg_dp_work_t *w = x->work;
    const mcpg_op_t *op = &w->op;
    memset(&x->key, 0, sizeof x->key);
    memset(&x->sig, 0, sizeof x->sig);
    x->key.gid = x->group->gid.v;
    x->sig.kind = (uint8_t)op->kind;
    x->sig.dtype = (uint8_t)op->dtype;
    if (x->p2p) {
        /* Sender and receiver name the message alike. */
        x->sig.kind = (uint8_t)MCPG_OP_SEND;
        x->key.flags = MCPG_KEY_P2P;
        x->key.view_term = w->pair_base.term;
        x->key.view_epoch = w->pair_base.epoch;
        x->key.seq = w->pair_seq;
        x->key.tag = op->tag;
        return;
    }
    x->key.view_term = x->view->id.term;
    x->key.view_epoch = x->view->id.epoch;
    x->key.seq = w->seq;
    if (mcpg__op_is_rooted(op->kind)) x->sig.root = op->root;
    if (op->kind == MCPG_OP_ALLREDUCE || op->kind == MCPG_OP_REDUCE || op->kind == MCPG_OP_REDUCE_SCATTER)
        x->sig.redop = (uint8_t)op->redop;
    if (op->kind == MCPG_OP_BARRIER) x->sig.dtype = 0;
}

void mcpg__op_start(mcpg_dp_work_t *w) {
    mcpg_dpgroup_t *g = w->group;
    mcpg_dp_t *dp = g->dp;
    const bool p2p = mcpg__op_is_p2p(w->op.kind);
    mcpg_dpview_t *view = p2p ? g->newest : mcpg__view_of(g, w->seq);
    if (!p2p) {
        char error[MCPG_ERROR_CAP];
        const mcpg_status_t judged = mcpg__op_judge(g, &w->op, w->seq, error, sizeof error);
        if (judged != MCPG_OK) {
            mcpg__op_end(w, judged, error);
            return;
        }
    }
    mcpg_exec_t *x = mcpg__exec_get(dp, p2p);
    if (x == NULL) {
        mcpg__op_end(w, MCPG_NO_MEMORY, "no memory to run the operation: free some and create the group again");
        return;
    }
    const uint64_t now = mcpg__now().us;
    x->group = g;
    x->work = w;
    x->view = view;
    view->refs++;
    fill_names(x);
    x->timeout_us = p2p ? dp->p2p_timeout_us : dp->collective_timeout_us;
    x->check_us =
        x->timeout_us == 0 || x->timeout_us > MCPG_NO_SEQ - now ? MCPG_NO_SEQ : now + x->timeout_us; /* 0: never asks */
    w->exec = x;
    mcpg__work_set_state(w, MCPG_W_RUNNING);
    if (!p2p) g->running++;
    mcpg__dp_arm(dp, x->check_us < w->deadline_us ? x->check_us : w->deadline_us);
    x->coll = mcpg__coll_select(w->op.kind, largest_bytes(&w->op), view->count, NULL);
    const mcpg_status_t status = x->coll->start(x);
    if (status != MCPG_OK)
        mcpg__op_end(w, status, "no memory for the operation's buffers: free some, or use smaller pieces");
    else if (mcpg__op_is_rooted(w->op.kind))
        mcpg__op_find_strays(x);
}

static void set_deadline(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    const uint64_t limit = w->op.timeout_us != 0 ? w->op.timeout_us : g->timeout_us;
    if (limit == 0) return;
    const uint64_t now = mcpg__now().us;
    w->deadline_us = limit > MCPG_NO_SEQ - now ? MCPG_NO_SEQ : now + limit;
    mcpg__dp_arm(g->dp, w->deadline_us);
}

static void append(mcpg_dpgroup_t *g, mcpg_dp_work_t *w) {
    w->group = g;
    w->prev = g->tail;
    if (g->tail != NULL) {
        g->tail->next = w;
    } else {
        g->head = w;
    }
    g->tail = w;
    if (g->next_start == NULL) g->next_start = w;
    g->outstanding++;
}

static mcpg_status_t refuse(mcpg_dpgroup_t *g, const mcpg_op_t *op, uint64_t seq, char *error, size_t cap) {
    if (g->ended != MCPG_OK) {
        (void)snprintf(error, cap, "%s refused: %s", mcpg_op_name(op->kind), g->ended_why);
        mcpg__op_leave_number(g, seq);
        return g->ended;
    }
    if (g->doubted) {
        (void)snprintf(error, cap,
                       "%s refused: the coordinator was lost during a membership change and nobody knows what became "
                       "of it: check the job's coordinator, and try again when it is back",
                       mcpg_op_name(op->kind));
        mcpg__op_leave_number(g, seq);
        return MCPG_IN_DOUBT;
    }
    const mcpg_status_t supported = mcpg__op_supported(op, error, cap);
    if (supported != MCPG_OK) {
        mcpg__op_leave_number(g, seq);
        return supported;
    }
    if (g->quiescing) {
        (void)snprintf(error, cap, "%s refused: the group is draining for join_group: wait until it returned",
                       mcpg_op_name(op->kind));
        return MCPG_QUIESCING;
    }
    if (g->fenced || mcpg__group_held(g)) return MCPG_OK; /* judged when its view is known */
    return mcpg__op_judge(g, op, seq, error, cap);
}

static mcpg_status_t submit_collective(mcpg_dpgroup_t *g, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error,
                                       size_t cap) {
    const uint64_t seq = atomic_fetch_add_explicit(&g->word, 1u, memory_order_relaxed) & ~MCPG_HOLD_BIT;
    MCPG_TRY(refuse(g, op, seq, error, cap));
    mcpg_dp_work_t *w = mcpg__work_get(g->dp, g->capacity);
    if (w == NULL || mcpg__work_copy_op(w, op) != MCPG_OK) {
        if (w != NULL) {
            mcpg__dp_work_release(w);
            mcpg__dp_work_release(w);
        }
        (void)snprintf(error, cap, "%s: no memory for one more outstanding operation: wait for earlier ones",
                       mcpg_op_name(op->kind));
        mcpg__op_leave_number(g, seq);
        return MCPG_NO_MEMORY;
    }
    w->seq = seq;
    append(g, w);
    *out = w;
    if (g->fenced) {
        mcpg__op_end(w, MCPG_OK, NULL);
        mcpg__group_complete(g);
        return MCPG_OK;
    }
    set_deadline(g, w);
    mcpg__group_start_ready(g);
    return MCPG_OK;
}

typedef struct {
    mcpg_dp_t *dp;
    mcpg_gid_t gid;
} room_t;

static bool has_room(void *arg) {
    const room_t *r = (const room_t *)arg;
    const mcpg_dpgroup_t *g = mcpg__dp_group(r->dp, r->gid);
    return g == NULL || g->outstanding < MCPG_OUTSTANDING_MAX;
}

mcpg_status_t mcpg__dp_submit(mcpg_dp_t *dp, mcpg_gid_t gid, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error,
                              size_t error_cap) {
    char unused[1];
    if (error == NULL || error_cap == 0) {
        error = unused;
        error_cap = sizeof unused;
    }
    error[0] = '\0';
    mcpg__engine_lock(dp->engine);
    room_t room = {dp, gid};
    if (!has_room(&room)) (void)mcpg__dp_wait(dp, has_room, &room, MCPG_NO_SEQ);
    mcpg_dpgroup_t *g = mcpg__dp_group(dp, gid);
    mcpg_status_t status = MCPG_NOT_FOUND;
    if (g == NULL) {
        (void)snprintf(error, error_cap, "the group was destroyed: create it again");
    } else {
        status = mcpg__op_check(g, op, error, error_cap);
        if (status == MCPG_OK && mcpg__op_is_p2p(op->kind)) {
            status = mcpg__p2p_submit(g, op, out, error, error_cap);
        } else if (status == MCPG_OK) {
            status = submit_collective(g, op, out, error, error_cap);
        }
    }
    mcpg__dp_unlock(dp);
    return status;
}
