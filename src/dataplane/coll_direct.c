/* coll_direct.c: one generic direct exchange: each rank sends straight to the ranks that need its data, for every kind
 * of operation.
 *
 * A table row says what goes where. Data moves in chunks, a few in flight, so that scratch stays bounded; an output
 * chunk is written only when this rank's sends of that chunk are done, so input and output may be the same memory.
 * Contributions combine in rank order, whoever arrives first (contract D1). Never waits for a peer that was dropped,
 * never writes an input.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane/coll.h"

typedef enum { WHO_NONE = 0, WHO_ALL, WHO_TO_ROOT, WHO_AT_ROOT } who_t;  /* the peer is the root; this rank is */
typedef enum { SEG_NONE = 0, SEG_IN, SEG_OUT, SEG_INS, SEG_OUTS } seg_t; /* lists: the peer's entry */

typedef struct {
    uint8_t send_who, send_seg;
    uint8_t recv_who, recv_seg; /* with combine: what one contribution is as long as */
    uint8_t own_who, own_src, own_dst;
    bool combine;
} plan_t;

static const plan_t plans[MCPG_OP__COUNT] = {
    [MCPG_OP_ALLREDUCE] = {WHO_ALL, SEG_IN, WHO_ALL, SEG_OUT, WHO_ALL, SEG_IN, SEG_OUT, true},
    [MCPG_OP_REDUCE] = {WHO_TO_ROOT, SEG_IN, WHO_AT_ROOT, SEG_OUT, WHO_AT_ROOT, SEG_IN, SEG_OUT, true},
    [MCPG_OP_BROADCAST] = {WHO_AT_ROOT, SEG_OUT, WHO_TO_ROOT, SEG_OUT, WHO_NONE, SEG_NONE, SEG_NONE, false},
    [MCPG_OP_ALLGATHER] = {WHO_ALL, SEG_IN, WHO_ALL, SEG_OUTS, WHO_ALL, SEG_IN, SEG_OUTS, false},
    [MCPG_OP_GATHER] = {WHO_TO_ROOT, SEG_IN, WHO_AT_ROOT, SEG_OUTS, WHO_AT_ROOT, SEG_IN, SEG_OUTS, false},
    [MCPG_OP_SCATTER] = {WHO_AT_ROOT, SEG_INS, WHO_TO_ROOT, SEG_OUT, WHO_AT_ROOT, SEG_INS, SEG_OUT, false},
    [MCPG_OP_REDUCE_SCATTER] = {WHO_ALL, SEG_INS, WHO_ALL, SEG_OUT, WHO_ALL, SEG_INS, SEG_OUT, true},
    [MCPG_OP_ALLTOALL] = {WHO_ALL, SEG_INS, WHO_ALL, SEG_OUTS, WHO_ALL, SEG_INS, SEG_OUTS, false},
    [MCPG_OP_BARRIER] = {WHO_ALL, SEG_NONE, WHO_ALL, SEG_NONE, WHO_NONE, SEG_NONE, SEG_NONE, false},
    [MCPG_OP_SEND] = {WHO_ALL, SEG_IN, WHO_NONE, SEG_NONE, WHO_NONE, SEG_NONE, SEG_NONE, false},
    [MCPG_OP_RECV] = {WHO_NONE, SEG_NONE, WHO_ALL, SEG_OUT, WHO_NONE, SEG_NONE, SEG_NONE, false}};

static bool takes_part(uint8_t who, bool own_is_root, bool peer_is_root) {
    return who == WHO_ALL || (who == WHO_TO_ROOT && peer_is_root) || (who == WHO_AT_ROOT && own_is_root);
}

/* The piece of memory that seg names for a slot. *missing: the list is too short for it. */
static uint64_t locate(const mcpg_op_t *op, uint8_t seg, uint32_t slot, uint8_t **ptr, bool *missing) {
    const size_t size = mcpg_dtype_size(op->dtype);
    const mcpg_seg_t *s = NULL;
    *missing = false;
    *ptr = NULL;
    switch ((seg_t)seg) {
    case SEG_NONE:
        return 0;
    case SEG_IN:
        s = &op->in;
        break;
    case SEG_OUT:
        s = &op->out;
        break;
    case SEG_INS:
        s = slot < op->in_count ? &op->ins[slot] : NULL;
        break;
    case SEG_OUTS:
        s = slot < op->out_count ? &op->outs[slot] : NULL;
        break;
    }
    *missing = s == NULL;
    if (s == NULL) return 0;
    *ptr = (uint8_t *)s->ptr;
    return (uint64_t)s->count * size;
}

/* Ranks of a view know the same number of members, so they cut alike. Combining needs scratch for every peer: smaller
 * pieces. */
static uint64_t chunk_size(bool combine, bool p2p, uint32_t members) {
    if (p2p) return UINT64_MAX;
    const uint64_t peers = members > 1u ? members - 1u : 1u;
    const uint64_t budget = (combine ? UINT64_C(8) : UINT64_C(32)) << 20, least = combine ? 4096u : 8192u;
    uint64_t size = (combine ? UINT64_C(256) : UINT64_C(1024)) << 10;
    while (size > least && size * peers * MCPG_WINDOW > budget) size /= 2u;
    return size;
}

static uint64_t chunks_of(const mcpg_exec_t *x, uint64_t bytes) {
    if (bytes == 0) return 1;
    return x->chunk_bytes == UINT64_MAX ? 1 : (bytes + x->chunk_bytes - 1u) / x->chunk_bytes;
}

static uint64_t chunk_off(const mcpg_exec_t *x, uint64_t chunk) {
    return chunk == 0 ? 0 : chunk * x->chunk_bytes;
}

static uint64_t chunk_len(const mcpg_exec_t *x, uint64_t bytes, uint64_t chunk) {
    const uint64_t off = chunk_off(x, chunk);
    if (off >= bytes) return 0;
    return bytes - off < x->chunk_bytes ? bytes - off : x->chunk_bytes;
}

static size_t index_of(const mcpg_exec_t *x, uint32_t row, uint32_t peer) {
    return (size_t)row * x->peer_count + peer;
}

static bool overlap(const uint8_t *a, uint64_t a_len, const uint8_t *b, uint64_t b_len) {
    return a_len != 0 && b_len != 0 && (uintptr_t)a < (uintptr_t)b + b_len && (uintptr_t)b < (uintptr_t)a + a_len;
}

/* Received data that would land in memory still being sent goes through scratch. Lists are compared as a whole: rarely
 * too careful. */
static bool needs_staging(const mcpg_exec_t *x) {
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (uint32_t i = 0; i < x->peer_count; i++) {
        const mcpg_xpeer_t *p = &x->peers[i];
        if (p->send_chunks == 0 || p->send_bytes == 0) continue;
        const uintptr_t from = (uintptr_t)p->send_ptr, to = from + p->send_bytes;
        low = from < low ? from : low;
        high = to > high ? to : high;
    }
    if (x->own_bytes != 0) { /* copied when the sends are done: the same care */
        const uintptr_t from = (uintptr_t)x->own_src, to = from + x->own_bytes;
        low = from < low ? from : low;
        high = to > high ? to : high;
    }
    for (uint32_t i = 0; i < x->peer_count && low < high; i++) {
        const mcpg_xpeer_t *p = &x->peers[i];
        if (p->recv_chunks != 0 && overlap(p->recv_ptr, p->recv_bytes, (const uint8_t *)low, high - low)) return true;
    }
    return false;
}

static void plan_peer(mcpg_exec_t *x, const plan_t *plan, uint32_t member, bool own_is_root, bool peer_is_root) {
    const mcpg_op_t *op = &x->work->op;
    const uint32_t slot = x->view->m[member].slot.v;
    mcpg_xpeer_t p;
    memset(&p, 0, sizeof p);
    p.member = member;
    if (takes_part(plan->send_who, own_is_root, peer_is_root)) {
        p.send_bytes = locate(op, plan->send_seg, slot, &p.send_ptr, &p.send_missing);
        p.send_chunks = chunks_of(x, p.send_bytes);
    }
    if (takes_part(plan->recv_who, own_is_root, peer_is_root)) {
        p.recv_bytes = locate(op, plan->recv_seg, slot, &p.recv_ptr, &p.recv_missing);
        p.recv_chunks = chunks_of(x, p.recv_bytes);
    }
    if (p.send_chunks == 0 && p.recv_chunks == 0) return;
    if (slot < x->group->slot.v) x->own_pos++;
    x->peers[x->peer_count++] = p;
    x->chunks = p.send_chunks > x->chunks ? p.send_chunks : x->chunks;
    x->chunks = p.recv_chunks > x->chunks ? p.recv_chunks : x->chunks;
}

static void plan_own(mcpg_exec_t *x, const plan_t *plan, bool own_is_root) {
    if (!takes_part(plan->own_who, own_is_root, own_is_root)) return;
    const mcpg_op_t *op = &x->work->op;
    bool no_src, no_dst;
    uint8_t *src, *dst;
    const uint64_t src_len = locate(op, plan->own_src, x->group->slot.v, &src, &no_src);
    const uint64_t dst_len = locate(op, plan->own_dst, x->group->slot.v, &dst, &no_dst);
    /* Isolated, a rank is root without having passed a root's memory. */
    if (no_src || no_dst || src_len != dst_len || src_len == 0) return;
    x->own_src = src;
    x->own_dst = dst;
    x->own_bytes = src_len;
    const uint64_t chunks = chunks_of(x, src_len);
    x->chunks = chunks > x->chunks ? chunks : x->chunks;
}

static mcpg_status_t plan_all(mcpg_exec_t *x) {
    const mcpg_op_t *op = &x->work->op;
    const plan_t *plan = &plans[op->kind];
    mcpg_dpview_t *v = x->view;
    const bool isolated = v == x->group->self_view;
    const bool own_is_root = isolated || op->root == x->group->slot.v;
    MCPG_TRY(mcpg__exec_room(x, v->count, v->count, 0));
    x->chunk_bytes = chunk_size(plan->combine, x->p2p, v->count);
    x->chunks = 1;
    for (uint32_t i = 0; i < v->count; i++) {
        const uint32_t slot = v->m[i].slot.v;
        x->member_state[i] = MCPG_XP_OK;
        if (slot == x->group->slot.v || (x->p2p && slot != op->peer)) continue;
        if (!x->p2p && v->leave_seq[i] <= x->work->seq) {
            x->member_state[i] = MCPG_XP_GONE;
            continue;
        }
        plan_peer(x, plan, i, own_is_root, slot == op->root);
    }
    plan_own(x, plan, own_is_root);
    x->combine = plan->combine && takes_part(plan->own_who, own_is_root, own_is_root);
    x->staged = !x->combine && needs_staging(x);
    x->rows_used = x->chunks < MCPG_WINDOW ? (uint32_t)x->chunks : MCPG_WINDOW;
    MCPG_TRY(mcpg__exec_room(x, v->count, x->peer_count, x->rows_used));
    uint64_t longest = 0;
    for (uint32_t i = 0; i < x->peer_count; i++)
        if (x->peers[i].recv_bytes > longest) longest = x->peers[i].recv_bytes;
    if (longest > x->chunk_bytes) longest = x->chunk_bytes;
    if ((!x->combine && !x->staged) || longest == 0) return MCPG_OK;
    x->stride = ((size_t)longest + 63u) & ~(size_t)63;
    return mcpg__exec_scratch(x, x->stride * x->rows_used * x->peer_count);
}

static void row_settle(mcpg_exec_t *x, uint32_t row) {
    mcpg_xrow_t *r = &x->rows[row];
    MCPG_ASSERT(r->pending != 0);
    if (--r->pending == 0) mcpg__exec_ready(x);
}

/* Ends one direction with a peer: nothing more is expected from it, or sent to it. */
static void stop_direction(mcpg_exec_t *x, uint32_t peer, bool send) {
    mcpg_xpeer_t *p = &x->peers[peer];
    if (send) {
        p->send_chunks = 0;
    } else {
        p->recv_chunks = 0;
    }
    for (uint32_t row = 0; row < x->rows_used; row++) {
        const size_t i = index_of(x, row, peer) * 2u + (send ? 1u : 0u);
        if (!x->flight[i]) continue;
        x->flight[i] = 0;
        if (send) x->sends_pending--;
        mcpg__link_cancel(x->dp->engine, &x->lx[i]);
        row_settle(x, row);
    }
}

static void drop_peer(mcpg_exec_t *x, uint32_t peer, mcpg_xp_t why) {
    uint8_t *state = &x->member_state[x->peers[peer].member];
    if (*state == MCPG_XP_OK) *state = (uint8_t)why;
    stop_direction(x, peer, false);
    stop_direction(x, peer, true);
}

/* own_sig tells how many chunks this side has: with as many on the other side only the last one can differ, so the
 * total is known. */
static void describe(char *buf, size_t cap, const mcpg_exec_t *x, const mcpg_msg_sig_t *own_sig,
                     const mcpg_msg_sig_t *sig) {
    const bool known = sig->kind < MCPG_OP__COUNT && sig->dtype < MCPG_DTYPE__COUNT && sig->redop < MCPG_REDOP__COUNT;
    if (!known) {
        (void)snprintf(buf, cap, "an unknown operation");
        return;
    }
    const bool own = sig == own_sig;
    const uint64_t chunks = sig->root >> MCPG_SIG_ROOT_BITS, same = own_sig->root >> MCPG_SIG_ROOT_BITS;
    const uint64_t before = x->p2p || chunks == 0 ? 0 : (chunks - 1u) * x->chunk_bytes;
    const bool exact = chunks == same || chunks <= 1;
    char size[64] = "";
    if (chunks != 0) /* 0: what the peer runs, without a message of it */
        (void)snprintf(size, sizeof size, " of %s%llu bytes", exact ? "" : "more than ",
                       (unsigned long long)(before + (exact ? sig->bytes : 0)));
    const bool rooted = mcpg__op_is_rooted((mcpg_op_kind_t)sig->kind), reduces = plans[sig->kind].combine;
    char root[32] = "";
    if (rooted) (void)snprintf(root, sizeof root, " root %u", sig->root & ((1u << MCPG_SIG_ROOT_BITS) - 1u));
    /* A message has the same signature at both ends. */
    const mcpg_op_kind_t peers = x->work->op.kind == MCPG_OP_SEND ? MCPG_OP_RECV : MCPG_OP_SEND;
    const mcpg_op_kind_t kind = !x->p2p ? (mcpg_op_kind_t)sig->kind : own ? x->work->op.kind : peers;
    (void)snprintf(buf, cap, "%s%s %s%s%s%s", mcpg_op_name(kind), size, mcpg_dtype_name((mcpg_dtype_t)sig->dtype),
                   reduces ? " " : "", reduces ? mcpg_redop_name((mcpg_redop_t)sig->redop) : "", root);
}

static uint64_t last_len(const mcpg_exec_t *x, uint64_t bytes) {
    return chunk_len(x, bytes, chunks_of(x, bytes) - 1u);
}

static void say_mismatch(mcpg_exec_t *x, uint32_t member, const mcpg_msg_sig_t *own_sig,
                         const mcpg_msg_sig_t *peer_sig) {
    if (x->status != MCPG_OK) return;
    char own[160], theirs[160];
    describe(own, sizeof own, x, own_sig, own_sig);
    describe(theirs, sizeof theirs, x, own_sig, peer_sig);
    x->status = MCPG_MISMATCH;
    (void)snprintf(
        x->error, sizeof x->error,
        "in-group rank %u called %s, in-group rank %u (this one) called %s, as the same operation (number %llu): "
        "call the same operation with the same dtype and sizes on every rank",
        x->view->m[member].slot.v, theirs, x->group->slot.v, own, (unsigned long long)x->key.seq);
}

/* The link layer has ended both directions between the two. Lists that are as long as another view's size are no error,
 * but the two exchange nothing (design.md 4.3 rule 4). */
static void mismatch(mcpg_exec_t *x, uint32_t peer, const mcpg_lx_t *lx) {
    const mcpg_xpeer_t *p = &x->peers[peer];
    if (p->send_missing || p->recv_missing || lx->peer_sig.pad == MCPG_SIG_NO_SLOT) {
        drop_peer(x, peer, MCPG_XP_LEFT);
        return;
    }
    mcpg_msg_sig_t own_sig = lx->sig;
    own_sig.bytes = last_len(x, ((lx - x->lx) & 1) != 0 ? p->send_bytes : p->recv_bytes);
    say_mismatch(x, p->member, &own_sig, &lx->peer_sig);
    stop_direction(x, peer, false);
    stop_direction(x, peer, true);
}

static void direct_disagrees(mcpg_exec_t *x, uint32_t member, const mcpg_msg_sig_t *theirs) {
    say_mismatch(x, member, &x->sig, theirs);
    for (uint32_t i = 0; i < x->peer_count; i++) {
        if (x->peers[i].member != member) continue;
        stop_direction(x, i, false);
        stop_direction(x, i, true);
    }
}

static bool direct_receives(const mcpg_exec_t *x, uint32_t member) {
    const mcpg_op_t *op = &x->work->op;
    return takes_part(plans[op->kind].recv_who, op->root == x->group->slot.v, op->root == x->view->m[member].slot.v);
}

static void lx_done(mcpg_lx_t *lx, mcpg_lx_result_t result) {
    mcpg_exec_t *x = (mcpg_exec_t *)lx->owner;
    const size_t at = (size_t)(lx - x->lx);
    const bool send = (at & 1u) != 0;
    const uint32_t row = (uint32_t)(at / 2u / x->peer_count), peer = (uint32_t)(at / 2u % x->peer_count);
    x->flight[at] = 0;
    if (send) x->sends_pending--;
    switch (result) {
    case MCPG_LX_DONE:
        if (!send) x->arrived[at / 2u] = 1;
        break;
    case MCPG_LX_LINK_LOST:
    case MCPG_LX_PEER_DEAD:
        drop_peer(x, peer, MCPG_XP_FAILED);
        break;
    case MCPG_LX_LEFT:
        drop_peer(x, peer, MCPG_XP_LEFT);
        break;
    case MCPG_LX_MISMATCH:
        mismatch(x, peer, lx);
        break;
    }
    row_settle(x, row);
}

static void post(mcpg_exec_t *x, uint32_t row, uint32_t peer, bool send) {
    const mcpg_xpeer_t *p = &x->peers[peer];
    const uint64_t chunk = x->rows[row].chunk, chunks = send ? p->send_chunks : p->recv_chunks;
    if (chunk >= chunks) return;
    const size_t slot = index_of(x, row, peer), i = slot * 2u + (send ? 1u : 0u);
    const mcpg_member_t *m = &x->view->m[p->member];
    mcpg_lx_t *lx = &x->lx[i];
    lx->peer = m->rank;
    lx->peer_inc = m->inc;
    lx->key = x->key;
    lx->key.phase = (uint32_t)chunk;
    lx->sig = x->sig;
    lx->sig.root |= (uint32_t)chunks << MCPG_SIG_ROOT_BITS;
    lx->sig.pad = (send ? p->send_missing : p->recv_missing) ? MCPG_SIG_NO_SLOT : 0u;
    lx->sig.bytes = chunk_len(x, send ? p->send_bytes : p->recv_bytes, chunk);
    lx->done = lx_done;
    lx->owner = x;
    if (send) {
        lx->buf = p->send_ptr == NULL ? NULL : p->send_ptr + chunk_off(x, chunk);
    } else if ((x->combine || x->staged) && lx->sig.bytes != 0) {
        lx->buf = x->scratch->bytes + slot * x->stride;
    } else {
        lx->buf = p->recv_ptr == NULL ? NULL : p->recv_ptr + chunk_off(x, chunk);
    }
    x->flight[i] = 1;
    x->rows[row].pending++;
    if (send) {
        x->sends_pending++;
        mcpg__link_send(x->dp->engine, lx);
    } else {
        mcpg__link_recv(x->dp->engine, lx);
    }
}

static void row_post(mcpg_exec_t *x, uint32_t row) {
    mcpg_xrow_t *r = &x->rows[row];
    r->chunk = x->next_chunk++;
    r->active = true;
    r->pending = 1; /* until everything is posted */
    for (uint32_t i = 0; i < x->peer_count; i++) {
        /* Each rank begins with the next one up, so that not all send to the same one first. */
        const uint32_t peer = (x->own_pos + i) % x->peer_count;
        x->arrived[index_of(x, row, peer)] = 0;
        post(x, row, peer, false);
        post(x, row, peer, true);
    }
    row_settle(x, row);
}

static void row_combine(mcpg_exec_t *x, uint32_t row) {
    const uint64_t chunk = x->rows[row].chunk, len = chunk_len(x, x->own_bytes, chunk);
    if (len == 0) return;
    uint32_t n = 0;
    for (uint32_t i = 0; i <= x->peer_count; i++) {
        if (i == x->own_pos) x->sources[n++] = x->own_src + chunk_off(x, chunk);
        if (i == x->peer_count) break;
        const size_t at = index_of(x, row, i);
        if (x->arrived[at]) x->sources[n++] = x->scratch->bytes + at * x->stride;
    }
    const mcpg_op_t *op = &x->work->op;
    mcpg__reduce(x->own_dst + chunk_off(x, chunk), x->sources, n, len / mcpg_dtype_size(op->dtype), op->dtype,
                 op->redop);
}

static void row_finish(mcpg_exec_t *x, uint32_t row) {
    const uint64_t chunk = x->rows[row].chunk;
    const uint64_t len = chunk_len(x, x->own_bytes, chunk);
    x->dp->turn_bytes += len * (x->combine ? x->peer_count + 1u : 1u);
    if (x->combine) {
        row_combine(x, row);
        return;
    }
    if (len != 0 && x->own_src != x->own_dst)
        memmove(x->own_dst + chunk_off(x, chunk), x->own_src + chunk_off(x, chunk), len);
    for (uint32_t i = 0; x->staged && i < x->peer_count; i++) {
        const size_t at = index_of(x, row, i);
        const uint64_t part = x->arrived[at] ? chunk_len(x, x->peers[i].recv_bytes, chunk) : 0;
        x->dp->turn_bytes += part;
        if (part != 0) memcpy(x->peers[i].recv_ptr + chunk_off(x, chunk), x->scratch->bytes + at * x->stride, part);
    }
}

static mcpg_status_t direct_start(mcpg_exec_t *x) {
    const mcpg_status_t status = plan_all(x);
    if (status != MCPG_OK) {
        x->rows_used = x->peer_count = 0; /* nothing is in flight */
        return status;
    }
    for (uint32_t row = 0; row < x->rows_used; row++) row_post(x, row);
    return MCPG_OK;
}

static void direct_progress(mcpg_exec_t *x) {
    bool moved = true;
    x->queued = true; /* what gets ready meanwhile is seen below */
    /* bounded: every turn finishes a chunk, and the lock is not kept for more than MCPG_TURN_BYTES */
    while (moved && x->chunks_done < x->chunks && x->dp->turn_bytes < MCPG_TURN_BYTES) {
        moved = false;
        for (uint32_t row = 0; row < x->rows_used; row++) {
            if (!x->rows[row].active || x->rows[row].pending != 0) continue;
            row_finish(x, row);
            x->rows[row].active = false;
            x->chunks_done++;
            moved = true;
            if (x->next_chunk < x->chunks) row_post(x, row);
        }
    }
    x->queued = false;
    if (x->chunks_done == x->chunks)
        mcpg__op_finish(x);
    else if (moved)
        mcpg__exec_ready(x); /* goes on in the next turn */
}

static void direct_drop(mcpg_exec_t *x, uint32_t member, mcpg_xp_t why) {
    for (uint32_t i = 0; i < x->peer_count; i++) {
        if (x->peers[i].member == member) {
            drop_peer(x, i, why);
            return;
        }
    }
    if (x->member_state[member] == MCPG_XP_OK) x->member_state[member] = (uint8_t)why;
}

static bool direct_waits_for(const mcpg_exec_t *x, uint32_t member) {
    for (uint32_t i = 0; i < x->peer_count; i++) {
        if (x->peers[i].member != member) continue;
        if (x->peers[i].send_chunks > x->next_chunk || x->peers[i].recv_chunks > x->next_chunk) return true;
        for (uint32_t row = 0; row < x->rows_used; row++) {
            const size_t at = index_of(x, row, i) * 2u;
            if (x->flight[at] || x->flight[at + 1u]) return true;
        }
    }
    return false;
}

static void direct_stop(mcpg_exec_t *x) {
    for (size_t i = 0; i < (size_t)x->rows_used * x->peer_count * 2u; i++) {
        if (!x->flight[i]) continue;
        x->flight[i] = 0;
        mcpg__link_cancel(x->dp->engine, &x->lx[i]);
    }
    x->sends_pending = 0;
}

const mcpg_coll_t mcpg__coll_direct = {.name = "direct",
                                       .start = direct_start,
                                       .progress = direct_progress,
                                       .drop = direct_drop,
                                       .waits_for = direct_waits_for,
                                       .receives = direct_receives,
                                       .disagrees = direct_disagrees,
                                       .stop = direct_stop};
