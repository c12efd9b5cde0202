/* op_stray.c: ranks that run different operations under one number: found by a message that no plan wants, or by asking
 * a rank that is waited for, so that they end with MISMATCH and not by their hard limit.
 *
 * What a peer says is data: it can end operations with MISMATCH or itself hinted, nothing else. Never posts a message
 * of an operation.
 */
#include <string.h>

#include "dataplane/coll.h"

static uint32_t root_of(const mcpg_msg_sig_t *sig) {
    return sig->root & ((1u << MCPG_SIG_ROOT_BITS) - 1u);
}

/* Sizes are compared where messages meet. */
static bool same_call(const mcpg_msg_sig_t *a, const mcpg_msg_sig_t *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && root_of(a) == root_of(b);
}

static bool same_view(const mcpg_dpview_t *v, const mcpg_msg_key_t *key) {
    return v->id.term == key->view_term && v->id.epoch == key->view_epoch;
}

static int32_t member_of(const mcpg_dpview_t *v, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    for (uint32_t i = 0; i < v->count; i++)
        if (v->m[i].rank.v == rank.v && mcpg__inc_eq(v->m[i].inc, inc)) return (int32_t)i;
    return -1;
}

static void disagree(mcpg_exec_t *x, uint32_t member, const mcpg_msg_sig_t *theirs, bool tell) {
    const mcpg_member_t *m = &x->view->m[member];
    x->coll->disagrees(x, member, theirs);
    if (tell) mcpg__link_refuse(x->dp->engine, m->rank, m->inc, &x->key, &x->sig);
}

static void judge(mcpg_exec_t *x, uint32_t member, const mcpg_msg_sig_t *theirs, mcpg_stray_t how) {
    if (x->member_state[member] != MCPG_XP_OK || theirs->pad == MCPG_SIG_NO_SLOT) return;
    switch (how) {
    case MCPG_STRAY_KEPT:
        if (!x->coll->receives(x, member)) disagree(x, member, theirs, true);
        break;
    case MCPG_STRAY_ASKED:
        if (!same_call(&x->sig, theirs)) disagree(x, member, theirs, true);
        break;
    case MCPG_STRAY_REFUSED:
        disagree(x, member, theirs, false);
        break;
    }
}

/* It waits for this rank in an operation that is over here: nothing will come. */
static void answer_past(mcpg_dpgroup_t *g, const mcpg_msg_key_t *key, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    const mcpg_dpview_t *v = mcpg__view_of(g, key->seq);
    if (g->fenced || v == NULL || !same_view(v, key) || !mcpg__view_runs(g, v, key->seq)) return;
    const int32_t member = member_of(v, rank, inc);
    if (member >= 0) mcpg__link_leave(g->dp->engine, key, &v->m[member], 1);
}

void mcpg__op_stray_hook(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                         const mcpg_msg_sig_t *sig, mcpg_stray_t how) {
    mcpg_dpgroup_t *g = mcpg__dp_group((const mcpg_dp_t *)user, (mcpg_gid_t){key->gid});
    if (g == NULL || g->isolated || key->seq >= mcpg__group_next(g)) return;
    if (g->next_start != NULL && key->seq >= g->next_start->seq) return; /* the peer is ahead */
    const mcpg_dp_work_t *w = g->head;
    while (w != NULL && w->seq != key->seq) w = w->next;
    const mcpg_wstate_t state = w == NULL ? MCPG_W_COMPLETE : mcpg__work_state(w);
    if (state == MCPG_W_WAITING) return; /* looked at when it starts */
    if (state != MCPG_W_RUNNING) {
        if (how == MCPG_STRAY_ASKED) answer_past(g, key, rank, inc);
        return;
    }
    mcpg_exec_t *x = w->exec;
    const int32_t member = same_view(x->view, key) ? member_of(x->view, rank, inc) : -1;
    if (member >= 0) judge(x, (uint32_t)member, sig, how);
}

void mcpg__op_find_strays(mcpg_exec_t *x) {
    mcpg_msg_key_t key = x->key;
    for (uint32_t i = 0; i < x->view->count; i++) {
        const mcpg_member_t *m = &x->view->m[i];
        mcpg_msg_sig_t sig;
        if (m->rank.v == x->dp->rank.v || x->member_state[i] != MCPG_XP_OK || x->coll->receives(x, i)) continue;
        if (mcpg__link_kept(x->dp->engine, &key, m->rank, m->inc, &sig)) judge(x, i, &sig, MCPG_STRAY_KEPT);
    }
}
