/* sim_check.c: what is checked of views, from above: what coordinators say, what agents install, what operations run
 * in.
 *
 * Ids are those of docs/protocol.md, section Invariants. A checker only reads what the machines said and what really
 * happened to processes; it must never be used by the models to decide anything.
 */
#include <stdlib.h>
#include <string.h>

#include "common/eventlog.h"
#include "sim/sim.h"

sim_group_t *sim_group(sim_t *w, uint32_t gid) {
    for (uint32_t i = w->group_count; i > 0; i--)
        if (w->groups[i - 1u]->gid == gid) return w->groups[i - 1u];
    sim_grow((void **)&w->groups, &w->group_cap, w->group_count, sizeof(*w->groups));
    sim_group_t *g = sim_zalloc(sizeof(*g));
    g->gid = gid;
    g->spec = SIM_NO;
    w->groups[w->group_count++] = g;
    return g;
}

void sim_groups_free(sim_t *w) {
    for (uint32_t i = 0; i < w->group_count; i++) {
        for (uint32_t k = 0; k < w->groups[i]->view_count; k++) free(w->groups[i]->views[k]);
        free(w->groups[i]->views);
        free(w->groups[i]);
    }
    free(w->groups);
}

uint32_t sim_node_of(const sim_t *w, mcpg_incarnation_t inc) {
    for (uint32_t i = w->inc_count; i > 0; i--)
        if (mcpg__inc_eq(w->incs[i - 1u].inc, inc)) return w->incs[i - 1u].node;
    return SIM_NO;
}

void sim_check_register_inc(sim_t *w, mcpg_incarnation_t inc, uint32_t node) {
    uint32_t known = sim_node_of(w, inc);
    if (known == node) return;
    if (known != SIM_NO) {
        sim_fail(w, "I4", "incarnation %llu.%llu is given to process %u and to process %u", U(inc.term), U(inc.counter),
                 known, node);
        return;
    }
    sim_grow((void **)&w->incs, &w->inc_cap, w->inc_count, sizeof(*w->incs));
    w->incs[w->inc_count].inc = inc;
    w->incs[w->inc_count++].node = node;
}

/* ---- the register of views ---- */

static sim_view_t *find_view(const sim_group_t *g, mcpg_view_id_t id) {
    for (uint32_t i = g->view_count; i > 0; i--)
        if (mcpg__view_eq(g->views[i - 1u]->id, id)) return g->views[i - 1u];
    return NULL;
}

static sim_view_t *enter_view(sim_t *w, sim_group_t *g, const mcpg_down_commit_t *commit, uint64_t digest) {
    if (commit->view.active_count > SIM_RANKS) return NULL;
    sim_view_t *v = sim_zalloc(sizeof(*v));
    v->id = commit->view.id;
    v->switch_seq = commit->switch_seq;
    v->digest = digest;
    v->at_us = w->now;
    v->count = commit->view.active_count;
    v->sync = commit->sync;
    v->sync_failed = commit->sync_failed.w[0];
    v->sync_first = commit->sync_first_failed_seq;
    v->done_low = MCPG_NO_SEQ;
    for (uint32_t i = 0; i < v->count; i++) {
        v->members[i] = commit->view.active[i];
        v->nodes[i] = sim_node_of(w, v->members[i].inc);
        v->place[v->members[i].slot.v] = (uint8_t)(i + 1u);
        v->active |= UINT64_C(1) << v->members[i].slot.v;
    }
    for (uint32_t i = 0; i < commit->leave_count; i++)
        if (v->place[commit->leaves[i].slot.v] != 0) v->fenced |= UINT64_C(1) << commit->leaves[i].slot.v;
    sim_grow((void **)&g->views, &g->view_cap, g->view_count, sizeof(*g->views));
    uint32_t at = g->view_count++;
    while (at > 0 && mcpg__view_cmp(g->views[at - 1u]->id, v->id) > 0) { /* bounded: by the count */
        g->views[at] = g->views[at - 1u];
        at--;
    }
    g->views[at] = v;
    w->result->views++;
    return v;
}

/* What that coordinator builds on: the newest view that it committed in the group or was told of. */
static const sim_view_t *view_before(const sim_group_t *g, const sim_coord_t *c) {
    return g->base[c->index].epoch == 0 ? NULL : find_view(g, g->base[c->index]);
}

static bool same_member(const sim_view_t *v, const mcpg_member_t *m) {
    uint32_t at = v == NULL ? 0 : v->place[m->slot.v];
    return at != 0 && mcpg__inc_eq(v->members[at - 1u].inc, m->inc);
}

/* ---- a view is committed ---- */

/* A slot in leaves whose process is new in the view is a replaced one: the leave is its predecessor's. */
static bool is_fenced(const sim_view_t *v, const sim_view_t *before, const mcpg_member_t *m) {
    return (v->fenced >> m->slot.v & 1u) && (before == NULL || same_member(before, m));
}

/* A coordinator that takes over builds on one of the views that it was told of. */
static bool was_told(const sim_group_t *g, const sim_coord_t *c, const mcpg_member_t *m) {
    for (uint32_t i = 0; i < 4u && i < g->told_count[c->index]; i++)
        if (same_member(find_view(g, g->told[c->index][i]), m)) return true;
    return false;
}

static void check_added(sim_t *w, const sim_coord_t *c, const sim_group_t *g, const sim_view_t *v,
                        const sim_view_t *before) {
    for (uint32_t i = 0; i < v->count; i++) {
        const mcpg_member_t *m = &v->members[i];
        if (same_member(before, m) || is_fenced(v, before, m) || was_told(g, c, m)) continue;
        /* As it said last, or as it is after the step: what a step commits it may judge otherwise later in that step.
         */
        bool healthy = m->rank.v < SIM_RANKS && (c->published[m->rank.v] == MCPG_RANK_HEALTHY ||
                                                 mcpg_coord_rank_state(c->machine, m->rank) == MCPG_RANK_HEALTHY);
        if (!healthy)
            sim_fail(w, "I3", "group %u: view %llu.%llu adds rank %u to view %llu.%llu, and it is not HEALTHY", g->gid,
                     U(v->id.term), U(v->id.epoch), m->rank.v, before == NULL ? 0ull : U(before->id.term),
                     before == NULL ? 0ull : U(before->id.epoch));
    }
}

static void check_acks(sim_t *w, const sim_group_t *g, const sim_view_t *v, const sim_view_t *before) {
    for (uint32_t i = 0; i < v->count; i++) {
        const mcpg_member_t *m = &v->members[i];
        uint32_t slot = m->slot.v;
        if (before == NULL ? (v->fenced >> slot & 1u) : is_fenced(v, before, m)) continue;
        bool acked = false;
        uint64_t seq = 0;
        for (uint32_t k = 0; k < 4; k++) {
            if (!mcpg__view_eq(g->acks[k].view, v->id) || !(g->acks[k].acked >> slot & 1u)) continue;
            acked = mcpg__inc_eq(g->acks[k].inc[slot], m->inc);
            seq = g->acks[k].seq[slot];
        }
        if (!acked)
            sim_fail(w, "I6", "group %u: view %llu is committed without the ACK of slot %u, which stays or comes",
                     g->gid, U(v->id.epoch), slot);
        else if (same_member(before, m) && seq > v->switch_seq)
            sim_fail(w, "I6", "group %u: view %llu begins at %llu, slot %u had acknowledged %llu", g->gid,
                     U(v->id.epoch), U(v->switch_seq), slot, U(seq));
    }
    if (before != NULL && v->switch_seq < before->switch_seq)
        sim_fail(w, "I6", "group %u: switch_seq falls from %llu in %llu.%llu to %llu in %llu.%llu", g->gid,
                 U(before->switch_seq), U(before->id.term), U(before->id.epoch), U(v->switch_seq), U(v->id.term),
                 U(v->id.epoch));
}

static void check_manual(sim_t *w, const sim_group_t *g, const sim_view_t *v, const sim_view_t *before) {
    if (!g->manual || before == NULL) return;
    for (uint32_t i = 0; i < v->count; i++) {
        const mcpg_member_t *m = &v->members[i];
        if (!same_member(before, m) && !(g->asked_in >> m->slot.v & 1u))
            sim_fail(w, "I7", "manual group %u: slot %u comes in view %llu and nobody asked for it", g->gid, m->slot.v,
                     U(v->id.epoch));
    }
    for (uint32_t i = 0; i < before->count; i++) {
        uint32_t slot = before->members[i].slot.v;
        if (v->place[slot] == 0 && !((g->asked_out | g->left) >> slot & 1u))
            sim_fail(w, "I7", "manual group %u: slot %u goes in view %llu and nobody asked for it", g->gid, slot,
                     U(v->id.epoch));
    }
}

static void commit_goes_out(sim_t *w, const sim_coord_t *c, const mcpg_down_commit_t *commit, uint64_t digest) {
    sim_group_t *g = sim_group(w, commit->gid.v);
    sim_view_t *v = find_view(g, commit->view.id);
    const sim_view_t *before = view_before(g, c);
    if (mcpg__view_cmp(commit->view.id, g->base[c->index]) > 0) g->base[c->index] = commit->view.id;
    if (v != NULL) {
        if (v->digest != digest)
            sim_fail(w, "I2", "group %u: view %llu goes out with two contents", g->gid, U(v->id.epoch));
        return;
    }
    v = enter_view(w, g, commit, digest);
    if (v == NULL) {
        sim_fail(w, "I10", "group %u: a view with more members than the job has ranks", g->gid);
        return;
    }
    v->coord = c->index;
    if (v->id.term != c->term)
        sim_fail(w, "I1", "coordinator of term %llu commits for term %llu", U(c->term), U(v->id.term));
    if (g->views[g->view_count - 1u] != v && g->views[g->view_count - 1u]->coord == c->index)
        sim_fail(w, "I1", "group %u: view %llu is committed after a higher one", g->gid, U(v->id.epoch));
    bool takes_over = before != NULL && before->id.term != c->term;
    check_added(w, c, g, v, before);
    check_acks(w, g, v, takes_over ? NULL : before);
    if (!takes_over) check_manual(w, g, v, before);
}

/* ---- what coordinators say ---- */

static void states_go_out(sim_t *w, sim_coord_t *c, const mcpg_down_rank_states_t *states) {
    for (uint32_t i = 0; i < states->count; i++) {
        const mcpg_rank_info_t *r = &states->ranks[i];
        if (r->rank.v < SIM_RANKS) c->published[r->rank.v] = r->state;
        uint32_t node = r->dead ? sim_node_of(w, r->inc) : SIM_NO;
        if (node != SIM_NO && w->nodes[node]->alive && !w->nodes[node]->stopped)
            sim_fail(w, "I4", "rank %u is said to be dead, and its process %u lives", r->rank.v, node);
    }
}

/* "Applied" means that every live participant has installed the view. */
static void check_applied(sim_t *w, const sim_coord_t *c, const mcpg_down_reply_t *reply) {
    const sim_call_t *call = sim_call(w, reply->call_id);
    if (call == NULL || call->kind != SIM_CALL_PROPOSE || reply->status != MCPG_OK) return;
    sim_group_t *g = sim_group(w, call->gid);
    const sim_view_t *v = find_view(g, (mcpg_view_id_t){c->term, reply->epoch});
    const sim_view_t *newest = g->view_count == 0 ? NULL : g->views[g->view_count - 1u];
    for (uint32_t i = 0; v != NULL && i < v->count; i++) {
        sim_node_t *node = v->nodes[i] == SIM_NO ? NULL : w->nodes[v->nodes[i]];
        if (node == NULL || !node->alive || node->stopped || (newest->fenced >> v->members[i].slot.v & 1u)) continue;
        uint64_t conn;
        if (!mcpg__inc_eq(sim_inc(node), v->members[i].inc) || !same_member(newest, &v->members[i]) ||
            !mcpg_coord_rank_conn(c->machine, (mcpg_rank_t){node->rank}, &conn))
            continue;
        const sim_mine_t *m = sim_mine(node, call->gid);
        if (m == NULL || m->view_count == 0) continue;
        if (mcpg__view_cmp(m->views[m->view_count - 1u]->view->id, v->id) < 0)
            sim_fail(w, "I18", "group %u: applied at epoch %llu, which rank %u has not installed", call->gid,
                     U(reply->epoch), node->rank);
    }
}

static void welcome_goes_out(sim_t *w, const sim_coord_t *c, const mcpg_down_welcome_t *welcome, uint64_t conn) {
    const sim_stream_t *s = w->streams[conn];
    if (c->shutting) sim_fail(w, "I9", "a process is welcomed after the shutdown");
    if (s != NULL) sim_check_register_inc(w, welcome->inc, s->node);
}

static void registered_goes_out(sim_t *w, const sim_coord_t *c, const mcpg_down_registered_t *reply, uint64_t conn) {
    if (reply->status != MCPG_OK) return;
    if (c->shutting) sim_fail(w, "I9", "group %u takes a member after the shutdown", reply->gid.v);
    sim_call_t *call = sim_call(w, reply->call_id);
    if (call != NULL) call->gid = reply->gid.v;
    sim_group_t *g = sim_group(w, reply->gid.v);
    g->manual = reply->manual;
    g->no_auto_sync = reply->no_auto_sync;
    const sim_stream_t *s = w->streams[conn];
    if (s != NULL && reply->slot.v < SIM_RANKS) g->slot_of[w->nodes[s->node]->rank] = (uint8_t)(reply->slot.v + 1u);
}

void sim_check_down(sim_t *w, sim_coord_t *c, const mcpg_down_msg_t *msg, uint64_t conn, const uint8_t *bytes,
                    size_t len) {
    if (msg->kind == MCPG_DOWN_WELCOME) welcome_goes_out(w, c, &msg->u.welcome, conn);
    if (msg->kind == MCPG_DOWN_REGISTERED) registered_goes_out(w, c, &msg->u.registered, conn);
    if (msg->kind == MCPG_DOWN_RANK_STATES) states_go_out(w, c, &msg->u.rank_states);
    if (msg->kind == MCPG_DOWN_REPLY) check_applied(w, c, &msg->u.reply);
    if (msg->kind == MCPG_DOWN_COMMIT)
        commit_goes_out(w, c, &msg->u.commit, mcpg__crc32c(1, bytes, len) | (uint64_t)len << 32);
}

/* ---- what coordinators hear ---- */

static void ack_comes(sim_t *w, const sim_coord_t *c, const sim_node_t *node, uint32_t stream,
                      const mcpg_up_ack_t *ack) {
    uint64_t conn = 0;
    sim_group_t *g = sim_group(w, ack->gid.v);
    uint32_t slot = g->slot_of[node->rank];
    if (slot == 0 || !mcpg_coord_rank_conn(c->machine, (mcpg_rank_t){node->rank}, &conn) || conn != stream) return;
    uint32_t at = 0;
    while (at < 4u && !mcpg__view_eq(g->acks[at].view, ack->view)) at++;
    if (at == 4u) {
        at = g->ack_next++ % 4u;
        memset(&g->acks[at], 0, sizeof(g->acks[at]));
        g->acks[at].view = ack->view;
    }
    g->acks[at].acked |= UINT64_C(1) << (slot - 1u);
    g->acks[at].seq[slot - 1u] = ack->next_seq;
    g->acks[at].inc[slot - 1u] = sim_inc(node);
}

static void gone_from(sim_group_t *g, const sim_node_t *node) {
    if (g->slot_of[node->rank] != 0) g->left |= UINT64_C(1) << (g->slot_of[node->rank] - 1u);
}

void sim_check_up(sim_t *w, sim_coord_t *c, uint32_t stream, const mcpg_up_msg_t *msg) {
    const sim_node_t *node = w->nodes[w->streams[stream]->node];
    if (msg->kind == MCPG_UP_ACK) ack_comes(w, c, node, stream, &msg->u.ack);
    if (msg->kind == MCPG_UP_PROPOSE) {
        sim_group_t *g = sim_group(w, msg->u.propose.gid.v);
        g->asked_in |= msg->u.propose.activate.w[0];
        g->asked_out |= msg->u.propose.deactivate.w[0];
    }
    if (msg->kind == MCPG_UP_REBUILD && msg->u.rebuild.has_commit) {
        sim_group_t *g = sim_group(w, msg->u.rebuild.gid.v);
        const mcpg_view_id_t *id = &msg->u.rebuild.commit.view.id;
        mcpg_view_id_t *base = &g->base[c->index];
        bool own = base->term == c->term; /* it has committed already: what comes later is not built on */
        if (!own && mcpg__view_cmp(*id, *base) > 0) *base = *id;
        g->told[c->index][g->told_count[c->index]++ % 4u] = *id;
    }
    if (msg->kind == MCPG_UP_LEAVE_GROUP) gone_from(sim_group(w, msg->u.leave_group.gid.v), node);
    for (uint32_t i = 0; msg->kind == MCPG_UP_DETACH && i < w->group_count; i++) gone_from(w->groups[i], node);
}

/* ---- what agents install and run ---- */

/* From the view in which it ran up to that one the process was never removed or fenced: nobody may have given it up. */
static bool stayed(const sim_group_t *g, const sim_view_t *from, const sim_view_t *to, uint32_t slot,
                   mcpg_incarnation_t as) {
    for (uint32_t i = g->view_count; i > 0; i--) {
        const sim_view_t *v = g->views[i - 1u];
        if (mcpg__view_cmp(v->id, to->id) > 0 || !v->installed) continue;
        if (mcpg__view_cmp(v->id, from->id) <= 0) return true;
        uint32_t at = v->place[slot];
        if (at == 0 || !mcpg__inc_eq(v->members[at - 1u].inc, as) || (v->fenced >> slot & 1u)) return false;
    }
    return true;
}

static void two_views(sim_t *w, const sim_group_t *g, const sim_node_t *node, uint64_t seq, const sim_view_t *in,
                      const sim_view_t *rules) {
    sim_fail(w, "I13",
             "group %u: rank %u ran number %llu in view %llu.%llu, and view %llu.%llu, in which it is, rules it",
             g->gid, node->rank, U(seq), U(in->id.term), U(in->id.epoch), U(rules->id.term), U(rules->id.epoch));
}

sim_view_t *sim_check_install(sim_t *w, sim_node_t *node, sim_mine_t *m, const mcpg_down_commit_t *commit,
                              uint64_t digest) {
    sim_group_t *g = m->group;
    sim_view_t *v = find_view(g, commit->view.id);
    if (v == NULL || v->digest != digest) {
        sim_fail(w, "I2", "group %u: rank %u installs a view %llu.%llu that was not committed like that", g->gid,
                 node->rank, U(commit->view.id.term), U(commit->view.id.epoch));
        return NULL;
    }
    if (m->view_count > 0 && mcpg__view_cmp(m->views[m->view_count - 1u]->view->id, v->id) >= 0) {
        sim_fail(w, "I1", "group %u: rank %u installs view %llu after a higher one", g->gid, node->rank,
                 U(v->id.epoch));
        return NULL;
    }
    if (v->installed) return v;
    v->installed = true;
    for (uint32_t i = 0; i < v->count && !w->failed; i++) {
        uint32_t slot = v->members[i].slot.v;
        sim_node_t *peer = v->nodes[i] == SIM_NO ? NULL : w->nodes[v->nodes[i]];
        const sim_mine_t *theirs = peer == NULL ? NULL : sim_mine(peer, g->gid);
        for (uint32_t k = theirs == NULL ? 0 : theirs->run_count; k > 0; k--) {
            const sim_run_t *r = &theirs->runs[k - 1u];
            if (r->high < v->switch_seq || mcpg__view_cmp(r->view->id, v->id) >= 0) continue;
            if (mcpg__inc_eq(r->as, v->members[i].inc) && !(v->fenced >> slot & 1u) &&
                stayed(g, r->view, v, slot, r->as))
                two_views(w, g, peer, r->high, r->view, v);
        }
    }
    return v;
}

void sim_check_ran(sim_t *w, const sim_node_t *node, const sim_mine_t *m, const sim_view_t *view, uint64_t seq) {
    const sim_group_t *g = m->group;
    for (uint32_t i = g->view_count; i > 0; i--) {
        const sim_view_t *v = g->views[i - 1u];
        if (mcpg__view_cmp(v->id, view->id) <= 0) break;
        if (v->installed && v->switch_seq <= seq && stayed(g, view, v, m->slot, sim_inc(node)))
            two_views(w, g, node, seq, view, v);
    }
}

/* A living process has completed that number in the view. What a dead one has done nobody can know any more. */
static bool done_by_living(const sim_t *w, const sim_view_t *v, uint64_t seq) {
    for (uint32_t i = 0; i < v->count; i++)
        if (v->done_of[i] > seq && v->nodes[i] != SIM_NO && w->nodes[v->nodes[i]]->alive) return true;
    return false;
}

/* No number of an auto group is completed without an error in two views: the halves of a partition never both go on. */
void sim_check_completed(sim_t *w, const sim_node_t *node, const sim_mine_t *m, sim_view_t *view, uint64_t seq) {
    const sim_group_t *g = m->group;
    if (g->manual || g->no_auto_sync || view == NULL) return;
    if (seq < view->done_low) view->done_low = seq;
    uint64_t *own = &view->done_of[view->place[m->slot] - 1u];
    if (*own <= seq) *own = seq + 1u;
    for (uint32_t i = g->view_count; i > 0 && !w->failed; i--) {
        const sim_view_t *v = g->views[i - 1u];
        /* Without a store nothing tells a new coordinator that those who reach it have been left out. */
        if (v == view || v->done_low == MCPG_NO_SEQ || (!w->plan.has_store && v->id.term != view->id.term)) continue;
        bool above = mcpg__view_cmp(v->id, view->id) > 0;
        if (above ? v->done_low <= seq : done_by_living(w, v, seq))
            sim_fail(w, "I14",
                     "group %u: rank %u completes number %llu in view %llu.%llu, and view %llu.%llu has also done it",
                     g->gid, node->rank, U(seq), U(view->id.term), U(view->id.epoch), U(v->id.term), U(v->id.epoch));
    }
}
