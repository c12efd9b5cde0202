/* sim_dp.c: the model data plane's groups: numbers, holds, views, fences.
 *
 * It keeps what the real one keeps: taking a number and testing the hold is one step; a number runs in the view with
 * the largest switch_seq that is not above it; nobody waits for a slot from its leave_seq on. Operations are in
 * sim_ops.c. It must never look at another process.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

sim_mine_t *sim_mine(sim_node_t *node, uint32_t gid) {
    for (uint32_t i = 0; i < SIM_MINE; i++)
        if (node->mine[i].used && node->mine[i].open && node->mine[i].gid == gid) return &node->mine[i];
    return NULL;
}

void sim_mine_clear(sim_mine_t *m) {
    for (uint32_t i = 0; i < m->view_count; i++) free(m->views[i]);
    free(m->runs);
    memset(m, 0, sizeof(*m));
}

/* Which of the user's calls this belongs to: the coordinator's answer named it. */
void sim_dp_group(sim_t *w, sim_node_t *node, const mcpg_agent_dp_group_t *group) {
    if (sim_mine(node, group->gid.v) != NULL) {
        sim_fail(w, "dp", "rank %u: group %u is opened twice", node->rank, group->gid.v);
        return;
    }
    sim_mine_t *m = NULL;
    for (uint32_t i = 0; i < SIM_MINE && m == NULL; i++) {
        sim_mine_t *at = &node->mine[i];
        if (!at->used || at->open || at->register_call == 0) continue;
        if (sim_call(w, at->register_call)->gid == group->gid.v) m = at;
    }
    if (m == NULL) {
        sim_fail(w, "dp", "rank %u: group %u is opened and nobody asked for it", node->rank, group->gid.v);
        return;
    }
    m->open = true;
    m->gid = group->gid.v;
    m->slot = group->slot.v;
    m->isolated = group->isolated;
    m->manual = group->manual;
    m->no_auto_sync = group->no_auto_sync;
    m->held = m->fenced = false;
    m->next = 0;
    m->view_count = 0;
    m->first_failed = MCPG_NO_SEQ;
    m->group = sim_group(w, group->gid.v);
    m->group->manual = group->manual;
    m->group->no_auto_sync = group->no_auto_sync;
    m->group->spec = m->filler ? SIM_NO : m->spec;
}

void sim_dp_gone(sim_t *w, sim_node_t *node, uint32_t gid) {
    sim_mine_t *m = sim_mine(node, gid);
    if (m == NULL) {
        sim_fail(w, "dp", "rank %u: group %u goes and is not there", node->rank, gid);
        return;
    }
    for (uint32_t i = 0; i < m->view_count; i++) free(m->views[i]);
    m->view_count = 0;
    m->open = m->held = m->fenced = false;
    m->op_count = 0;
    m->run_count = 0;
    if (m->stage == SIM_APP_MEMBER) m->stage = SIM_APP_NONE; /* not the user's doing: it declares the group again */
    if (m->filler && m->stage == SIM_APP_NONE) m->used = false;
}

void sim_dp_hold(sim_t *w, sim_node_t *node, const mcpg_agent_dp_view_t *hold) {
    sim_mine_t *m = sim_mine(node, hold->gid.v);
    if (m == NULL) {
        sim_fail(w, "dp", "rank %u: hold of a group that is not there", node->rank);
        return;
    }
    if (!m->held) {
        m->hold_seq = m->view_count == 0 && m->op_count > 0 ? m->ops[0].seq : m->next;
        m->held_at_us = w->now;
    }
    m->held = true;
    sim_trace(w, "  rank %u: holds group %u from %llu", node->rank, m->gid, U(m->hold_seq));
    mcpg_agent_event_t e;
    memset(&e, 0, sizeof(e));
    e.kind = MCPG_AGENT_EV_HELD;
    e.u.held = (mcpg_agent_held_ev_t){
        .gid = hold->gid, .view = hold->view, .next_seq = m->isolated ? m->next : m->hold_seq, .steps = m->steps};
    sim_agent_pend(w, node, &e);
}

void sim_dp_release(sim_t *w, sim_node_t *node, uint32_t gid) {
    sim_mine_t *m = sim_mine(node, gid);
    if (m == NULL || !m->held) {
        sim_fail(w, "dp", "rank %u: a hold ends in group %u that was not there", node->rank, gid);
        return;
    }
    m->held = false;
    sim_ops_start(w, node, m);
}

/* ---- views ---- */

sim_local_view_t *sim_view_of(const sim_mine_t *m, uint64_t seq) {
    for (uint32_t i = m->view_count; i > 0; i--)
        if (m->views[i - 1u]->view->switch_seq <= seq || i == 1u) return m->views[i - 1u];
    return NULL;
}

bool sim_view_runs(const sim_node_t *node, const sim_mine_t *m, const sim_local_view_t *v, uint64_t seq) {
    uint32_t at = v == NULL ? 0 : v->view->place[m->slot];
    return at != 0 && mcpg__inc_eq(v->view->members[at - 1u].inc, sim_inc(node)) && v->leave[at - 1u] > seq;
}

static bool is_in(const sim_node_t *node, const sim_mine_t *m, const sim_local_view_t *v) {
    uint32_t at = v == NULL ? 0 : v->view->place[m->slot];
    return at != 0 && mcpg__inc_eq(v->view->members[at - 1u].inc, sim_inc(node));
}

bool sim_dp_active(const sim_node_t *node, const sim_mine_t *m) {
    return m->open && !m->isolated && m->view_count > 0 && is_in(node, m, m->views[m->view_count - 1u]);
}

static void lower(uint64_t *seq, uint64_t to) {
    if (to < *seq) *seq = to;
}

static void apply_leave(sim_mine_t *m, sim_local_view_t *fresh, const mcpg_leave_t *leave) {
    uint32_t now = fresh->view->place[leave->slot.v], last = 0;
    mcpg_incarnation_t leaver = {0, 0};
    if (m->view_count > 0) last = m->views[m->view_count - 1u]->view->place[leave->slot.v];
    if (last != 0) leaver = m->views[m->view_count - 1u]->view->members[last - 1u].inc;
    for (uint32_t i = last == 0 ? 0 : m->view_count; i > 0; i--) {
        uint32_t at = m->views[i - 1u]->view->place[leave->slot.v];
        if (at == 0 || !mcpg__inc_eq(m->views[i - 1u]->view->members[at - 1u].inc, leaver)) break;
        lower(&m->views[i - 1u]->leave[at - 1u], leave->leave_seq);
    }
    bool replaced = now != 0 && last != 0 && !mcpg__inc_eq(fresh->view->members[now - 1u].inc, leaver);
    if (now != 0 && !replaced) lower(&fresh->leave[now - 1u], leave->leave_seq);
}

static void prune(sim_mine_t *m) {
    uint32_t most = sizeof(m->views) / sizeof(m->views[0]);
    if (m->view_count < most) return;
    free(m->views[0]); /* so old that no operation can still run in it */
    memmove(&m->views[0], &m->views[1], (most - 1u) * sizeof(m->views[0]));
    m->view_count--;
}

static sim_local_view_t *add_view(sim_mine_t *m, sim_view_t *view, const mcpg_down_commit_t *commit) {
    sim_local_view_t *fresh = sim_zalloc(sizeof(*fresh));
    const sim_local_view_t *last = m->view_count == 0 ? NULL : m->views[m->view_count - 1u];
    fresh->view = view;
    for (uint32_t i = 0; i < view->count; i++) {
        uint32_t was = last == NULL ? 0 : last->view->place[view->members[i].slot.v];
        bool same = was != 0 && mcpg__inc_eq(last->view->members[was - 1u].inc, view->members[i].inc);
        fresh->leave[i] = same ? last->leave[was - 1u] : MCPG_NO_SEQ;
    }
    for (uint32_t i = 0; i < commit->leave_count; i++) apply_leave(m, fresh, &commit->leaves[i]);
    prune(m);
    m->views[m->view_count++] = fresh;
    return fresh;
}

/* What runs in an older view: whoever has left by its number is not waited for; its own end if this rank has left. */
static void apply_departures(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    for (uint32_t i = m->op_count; i > 0; i--) {
        const sim_op_t *op = &m->ops[i - 1u];
        const sim_local_view_t *v = NULL;
        for (uint32_t k = 0; k < m->view_count; k++)
            if (m->views[k]->view == op->view) v = m->views[k];
        if (op->state == SIM_OP_RUN && !sim_view_runs(node, m, v, op->seq))
            sim_ops_end(w, node, m, i - 1u, MCPG_NOT_ACTIVE, false);
    }
}

static void end_all(sim_t *w, sim_node_t *node, sim_mine_t *m, mcpg_status_t status, bool judged, uint64_t below) {
    for (uint32_t i = m->op_count; i > 0; i--) {
        const sim_op_t *op = &m->ops[i - 1u];
        if (op->seq >= below || (op->state == SIM_OP_JUDGE && !judged)) continue;
        sim_ops_end(w, node, m, i - 1u, status, false);
    }
}

static void refuse_stale(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    for (uint32_t i = m->op_count; i > 0; i--) {
        const sim_op_t *op = &m->ops[i - 1u];
        if (op->state == SIM_OP_WAIT && !sim_view_runs(node, m, sim_view_of(m, op->seq), op->seq))
            sim_ops_end(w, node, m, i - 1u, MCPG_NOT_ACTIVE, false);
    }
}

static bool contains(const sim_view_t *v, uint32_t slot, mcpg_incarnation_t inc) {
    return v->place[slot] != 0 && mcpg__inc_eq(v->members[v->place[slot] - 1u].inc, inc);
}

/* Out of the view that ends the hold: what was held was promised to no older view, and views in between may be missing
 * here. */
static void refuse_held(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    for (uint32_t i = m->op_count; i > 0; i--) {
        const sim_op_t *op = &m->ops[i - 1u];
        if (op->state == SIM_OP_WAIT && op->seq >= m->hold_seq) sim_ops_end(w, node, m, i - 1u, MCPG_NOT_ACTIVE, false);
    }
}

static uint64_t mask_of(const mcpg_down_commit_t *commit) {
    uint64_t mask = 0;
    for (uint32_t i = 0; i < commit->view.active_count; i++)
        mask |= UINT64_C(1) << (commit->view.active[i].slot.v & 63u);
    return mask;
}

void sim_dp_install(sim_t *w, sim_node_t *node, const mcpg_down_commit_t *commit, uint64_t digest) {
    sim_mine_t *m = sim_mine(node, commit->gid.v);
    if (m == NULL) {
        sim_fail(w, "dp", "rank %u: a view of group %u that is not there", node->rank, commit->gid.v);
        return;
    }
    sim_trace(w, "  rank %u: installs group %u view %llu from %llu on, active %llx%s", node->rank, commit->gid.v,
              U(commit->view.id.epoch), U(commit->switch_seq), U(mask_of(commit)), commit->sync ? ", sync" : "");
    sim_view_t *view = sim_check_install(w, node, m, commit, digest);
    if (view == NULL || w->failed) return;
    bool was_in = m->view_count > 0 && is_in(node, m, m->views[m->view_count - 1u]);
    if (!was_in && m->view_count > 0 && !m->isolated) refuse_stale(w, node, m);
    if (m->held && m->view_count > 0 && !contains(view, m->slot, sim_inc(node))) refuse_held(w, node, m);
    bool older = m->view_count > 0;
    sim_local_view_t *fresh = add_view(m, view, commit);
    bool joined = is_in(node, m, fresh) && !was_in;
    bool first = joined && !m->isolated && !older && commit->switch_seq == 0;
    if (joined && m->isolated) end_all(w, node, m, MCPG_OK, true, MCPG_NO_SEQ);
    if (commit->sync && !m->isolated) {
        end_all(w, node, m, MCPG_OK, false, commit->switch_seq);
        m->first_failed = MCPG_NO_SEQ;
        m->failed_slots = 0;
        m->fenced = false;
    }
    if (joined) {
        m->isolated = m->fenced = false;
        m->first_failed = MCPG_NO_SEQ;
        m->failed_slots = 0;
    }
    if ((joined && !first) || (commit->sync && m->next < commit->switch_seq)) m->next = commit->switch_seq;
    m->held = false;
    apply_departures(w, node, m);
    sim_ops_start(w, node, m);
}

void sim_dp_fence(sim_t *w, sim_node_t *node, uint32_t gid) {
    sim_mine_t *m = sim_mine(node, gid);
    if (m == NULL || !sim_dp_active(node, m)) return;
    m->fenced = true;
    end_all(w, node, m, MCPG_OK, false, MCPG_NO_SEQ);
}

void sim_dp_resolve(sim_t *w, sim_node_t *node, const mcpg_agent_dp_resolve_t *resolve) {
    sim_mine_t *m = sim_mine(node, resolve->gid.v);
    if (m == NULL) return;
    uint64_t report = resolve->report_id;
    for (uint32_t i = m->op_count; i > 0; i--) {
        const sim_op_t *op = &m->ops[i - 1u];
        bool judged = op->state == SIM_OP_JUDGE && (report == 0 || op->report_id == report);
        bool held =
            report == 0 && resolve->status != MCPG_OK && m->held && op->state == SIM_OP_WAIT && op->seq >= m->hold_seq;
        if (judged || held) sim_ops_end(w, node, m, i - 1u, resolve->status, judged && resolve->status == MCPG_OK);
    }
}
