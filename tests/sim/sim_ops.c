/* sim_ops.c: the model data plane's operations: collectives that every member of a view has to take part in.
 *
 * A contribution arrives when both ends have run the number in the same view and the link between them carries bytes;
 * it is looked for at each tick, so that no message of an operation is an event. A member that has passed the number
 * elsewhere, whose link is down or which answers no probe has failed; an auto group then waits to be told what that
 * means. It must never end an operation on its own while a live peer may still come.
 */
#include <string.h>

#include "sim/sim.h"

static const sim_run_t *ran(const sim_mine_t *m, const sim_view_t *view, uint64_t seq) {
    for (uint32_t i = m->run_count; i > 0; i--) {
        const sim_run_t *r = &m->runs[i - 1u];
        if (r->view == view && seq >= r->low && seq <= r->high) return r;
    }
    return NULL;
}

static void note_run(sim_mine_t *m, sim_view_t *view, uint64_t seq, mcpg_incarnation_t as) {
    if (m->run_count > 0) {
        sim_run_t *last = &m->runs[m->run_count - 1u];
        if (last->view == view && last->high + 1u == seq && mcpg__inc_eq(last->as, as)) {
            last->high = seq;
            return;
        }
    }
    sim_grow((void **)&m->runs, &m->run_cap, m->run_count, sizeof(*m->runs));
    m->runs[m->run_count++] = (sim_run_t){.view = view, .low = seq, .high = seq, .as = as};
}

/* The number is consumed; `success`: the user's buffers hold a result. */
void sim_ops_end(sim_t *w, sim_node_t *node, sim_mine_t *m, uint32_t at, mcpg_status_t status, bool success) {
    sim_op_t op = m->ops[at];
    memmove(&m->ops[at], &m->ops[at + 1u], (m->op_count - at - 1u) * sizeof(m->ops[0]));
    m->op_count--;
    m->ended++;
    sim_trace(w, "  rank %u: group %u number %llu ends in view %llu: %s%s, failed %llx", node->rank, m->gid, U(op.seq),
              op.view == NULL ? 0ull : U(op.view->id.epoch), mcpg_status_name(status), success ? ", done" : "",
              U(op.failed_slots));
    if (op.failed_slots != 0) {
        m->failed_slots |= op.failed_slots;
        if (op.seq < m->first_failed) m->first_failed = op.seq;
    }
    if (!success || status != MCPG_OK) return;
    m->completed++;
    w->result->ops++;
    /* One whose failure the coordinator has judged is over before its COMMIT comes, which may be without this rank; and
     * a process that came back as a new incarnation ends what the old one left. */
    bool judged = op.failed_slots != 0 && (sim_attached(node) || !sim_dp_active(node, m));
    if (!judged) sim_check_completed(w, node, m, op.view, op.seq);
}

void sim_ops_start(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    uint32_t i = 0;
    while (i < m->op_count && !w->failed) { /* bounded: each turn starts or ends one, or passes it */
        sim_op_t *op = &m->ops[i];
        if (op->state != SIM_OP_WAIT) {
            i++;
            continue;
        }
        if ((m->held && (m->view_count == 0 || op->seq >= m->hold_seq)) || m->view_count == 0) return;
        sim_local_view_t *v = sim_view_of(m, op->seq);
        if (m->fenced || !sim_view_runs(node, m, v, op->seq)) {
            sim_ops_end(w, node, m, i, m->fenced ? MCPG_OK : MCPG_NOT_ACTIVE, false);
            continue;
        }
        op->state = SIM_OP_RUN;
        op->view = v->view;
        op->since_us = w->now;
        note_run(m, v->view, op->seq, sim_inc(node));
        sim_check_ran(w, node, m, v->view, op->seq);
        i++;
    }
}

void sim_ops_issue(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    if (!m->open || m->isolated || m->op_count >= w->plan.depth) return;
    bool at_step_end = (m->next & UINT32_MAX) >= w->plan.step_len && w->plan.step_len != 0;
    if (at_step_end) {
        if (m->held || m->op_count > 0) return; /* safe_point waits between ACK and COMMIT */
        m->next = ((m->next >> MCPG_STEP_SHIFT) + 1u) << MCPG_STEP_SHIFT;
        m->steps = true;
    }
    sim_op_t *op = &m->ops[m->op_count++];
    memset(op, 0, sizeof(*op));
    op->seq = m->next++;
    op->since_us = w->now;
    op->state = SIM_OP_WAIT;
    sim_ops_start(w, node, m);
}

/* ---- progress ---- */

typedef enum { PEER_WAITS, PEER_CAME, PEER_FAILED } peer_t;

static peer_t look_at(const sim_t *w, sim_node_t *node, const sim_mine_t *m, const sim_op_t *op, uint32_t i) {
    const sim_view_t *view = op->view;
    uint32_t index = view->nodes[i];
    sim_node_t *peer = index == SIM_NO ? NULL : w->nodes[index];
    uint64_t waited = w->now - op->since_us;
    uint64_t patience = w->plan.timers.collective_timeout_us;
    if (peer == NULL) return PEER_FAILED;
    bool carries = sim_link_ok(w, node, peer);
    if (!peer->alive || !carries) {
        bool silent = peer->alive && node->link[peer->rank].state == SIM_LINK_UP;
        return waited > patience || (!silent && waited > patience / 8u) ? PEER_FAILED : PEER_WAITS;
    }
    const sim_mine_t *theirs = sim_mine(peer, m->gid);
    if (theirs != NULL && ran(theirs, view, op->seq) != NULL) return PEER_CAME;
    if (peer->paused_until_us > w->now) return waited > patience + SIM_SECOND ? PEER_FAILED : PEER_WAITS;
    bool other = !mcpg__inc_eq(sim_inc(peer), view->members[i].inc);
    bool passed = theirs == NULL || other || theirs->next > op->seq;
    for (uint32_t k = 0; theirs != NULL && k < theirs->op_count && !other; k++)
        if (theirs->ops[k].seq == op->seq) passed = theirs->ops[k].state != SIM_OP_WAIT;
    return passed && waited > patience / 8u ? PEER_FAILED : PEER_WAITS;
}

static void report(sim_t *w, sim_node_t *node, sim_mine_t *m, sim_op_t *op) {
    sim_local_t *item = sim_local_new(w, node, SIM_LOCAL_EVENT, 5u + sim_below(&w->host, 200));
    item->members = sim_zalloc(op->view->count * sizeof(*item->members));
    for (uint32_t i = 0; i < op->view->count; i++)
        if (op->failed >> i & 1u) item->members[item->count++] = op->view->members[i];
    item->event.kind = MCPG_AGENT_EV_OP_FAILED;
    item->event.u.op_failed = (mcpg_agent_op_failed_ev_t){.gid = {m->gid},
                                                          .report_id = op->report_id,
                                                          .seq = op->seq,
                                                          .failed_count = item->count,
                                                          .failed = item->members};
    sim_local_post(w, node, item);
}

static uint64_t left_by(const sim_mine_t *m, const sim_op_t *op) {
    uint64_t left = 0;
    for (uint32_t k = 0; k < m->view_count; k++) {
        if (m->views[k]->view != op->view) continue;
        for (uint32_t i = 0; i < op->view->count; i++)
            if (m->views[k]->leave[i] <= op->seq) left |= UINT64_C(1) << i;
    }
    return left;
}

/* True: it has ended and is out of the list. */
static bool advance(sim_t *w, sim_node_t *node, sim_mine_t *m, uint32_t at) {
    sim_op_t *op = &m->ops[at];
    const sim_view_t *view = op->view;
    uint64_t left = left_by(m, op);
    bool waits = false;
    for (uint32_t i = 0; i < view->count; i++) {
        uint64_t bit = UINT64_C(1) << i;
        if (view->members[i].slot.v == m->slot || ((op->arrived | op->failed | left) & bit)) continue;
        switch (look_at(w, node, m, op, i)) {
        case PEER_CAME:
            op->arrived |= bit;
            break;
        case PEER_FAILED:
            op->failed |= bit;
            break;
        case PEER_WAITS:
            waits = true;
            break;
        }
    }
    if (waits) return false;
    op->failed &= ~left;
    for (uint32_t i = 0; i < view->count; i++)
        if (op->failed >> i & 1u) op->failed_slots |= UINT64_C(1) << view->members[i].slot.v;
    if (op->failed == 0) {
        sim_ops_end(w, node, m, at, MCPG_OK, true);
        return true;
    }
    bool waits_for_judgement = !m->manual && !m->no_auto_sync;
    if (waits_for_judgement) op->report_id = ++node->next_report;
    sim_trace(w, "  rank %u: group %u number %llu in view %llu: failed %llx, report %llu", node->rank, m->gid,
              U(op->seq), U(view->id.epoch), U(op->failed_slots), U(op->report_id));
    report(w, node, m, op);
    op->state = SIM_OP_JUDGE;
    if (!waits_for_judgement) {
        sim_ops_end(w, node, m, at, MCPG_OK, false);
        return true;
    }
    return false;
}

void sim_ops_progress(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    uint32_t i = 0;
    while (i < m->op_count && !w->failed) { /* bounded: each turn passes or ends one */
        if (m->ops[i].state != SIM_OP_RUN || !advance(w, node, m, i)) i++;
    }
}
