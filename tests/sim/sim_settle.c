/* sim_settle.c: what "at rest" means after healing: everybody attached and HEALTHY, every group whole, in one view and
 * free of holds, nothing waiting for an answer. Only reads.
 */
#include "sim/sim.h"

static bool lives(const sim_node_t *node) {
    return node->alive && !node->stopped;
}

static bool ranks_settled(const sim_t *w, const sim_coord_t *c, const char **why) {
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        if (w->gone[r]) continue;
        const sim_node_t *node = w->at_rank[r] == SIM_NO ? NULL : w->nodes[w->at_rank[r]];
        *why = "a rank has no process";
        if (node == NULL || !lives(node)) return false;
        *why = "a rank is not attached";
        if (!sim_attached(node)) return false;
        *why = "a rank is not HEALTHY at the coordinator";
        if (mcpg_coord_rank_state(c->machine, (mcpg_rank_t){r}) != MCPG_RANK_HEALTHY) return false;
        *why = "an agent does not see another one HEALTHY";
        for (uint32_t p = 0; p < w->plan.ranks; p++)
            if (!w->gone[p] && mcpg_agent_rank_state(node->agent, (mcpg_rank_t){p}) != MCPG_RANK_HEALTHY) return false;
    }
    return true;
}

static bool here(const sim_t *w, uint32_t rank, uint32_t spec) {
    const sim_node_t *node = w->at_rank[rank] == SIM_NO ? NULL : w->nodes[w->at_rank[rank]];
    return node != NULL && lives(node) && node->mine[spec].used && node->mine[spec].stage != SIM_APP_AWAY;
}

/* One that only grows a group cannot come when no founder is left. */
static bool takes_part(const sim_t *w, uint32_t rank, uint32_t spec) {
    if (!here(w, rank, spec)) return false;
    const sim_mine_t *m = &w->nodes[w->at_rank[rank]]->mine[spec];
    bool founders = m->place < w->specs[spec].base_count || m->stage != SIM_APP_NONE;
    for (uint32_t i = 0; i < w->specs[spec].base_count && !founders; i++)
        founders = here(w, w->specs[spec].order[i], spec);
    return founders;
}

static bool group_settled(const sim_t *w, uint32_t spec, const char **why) {
    const sim_view_t *view = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->specs[spec].order_count; i++) {
        uint32_t rank = w->specs[spec].order[i];
        if (!takes_part(w, rank, spec)) continue;
        sim_node_t *node = w->nodes[w->at_rank[rank]];
        const sim_mine_t *m = &node->mine[spec];
        *why = "a member has not created its group";
        if (m->stage != SIM_APP_MEMBER || !m->open || m->generation < w->specs[spec].generation) return false;
        *why = "a member is not active";
        if (!sim_dp_active(node, m)) return false;
        const sim_view_t *newest = m->views[m->view_count - 1u]->view;
        *why = "members are in different views";
        if (view != NULL && newest != view) return false;
        view = newest;
        *why = "a member's operations are held";
        if (m->held) return false;
        *why = "a member is fenced by a sync";
        if (m->fenced) return false;
        *why = "a member of a manual group is fenced";
        if (view->fenced >> m->slot & 1u) return false;
        *why = "an operation waits to be judged";
        for (uint32_t k = 0; k < m->op_count; k++)
            if (m->ops[k].state != SIM_OP_RUN) return false;
        count++;
    }
    *why = "an auto group's view has members that do not live";
    return view == NULL || view->count == count || w->specs[spec].manual;
}

bool sim_work_settled(sim_t *w, const char **why) {
    const sim_coord_t *c = sim_coord_now(w);
    *why = "there is no coordinator";
    if (c == NULL || w->now < w->heal_began_us + 5u * SIM_SECOND) return false;
    if (!ranks_settled(w, c, why)) return false;
    for (uint32_t s = 0; s < w->plan.specs; s++)
        if (!group_settled(w, s, why)) return false;
    *why = "a call is open";
    for (uint32_t i = w->call_oldest; i <= w->call_count; i++)
        if (!w->calls[i].done && lives(w->nodes[w->calls[i].node])) return false;
    *why = "the coordinator is not at rest";
    return mcpg_coord_quiescent(c->machine);
}

/* What the members of each group have ended. A group with two living members at least must go on. */
void sim_work_progress(const sim_t *w, uint64_t done[SIM_SPECS]) {
    for (uint32_t s = 0; s < SIM_SPECS; s++) {
        uint32_t count = 0;
        done[s] = 0;
        for (uint32_t i = 0; s < w->plan.specs && i < w->specs[s].order_count; i++) {
            if (!takes_part(w, w->specs[s].order[i], s)) continue;
            count++;
            done[s] += w->nodes[w->at_rank[w->specs[s].order[i]]]->mine[s].ended;
        }
        if (count < 2) done[s] = SIM_NEVER;
    }
}

/* What a failure to come to rest looks like; into the trace. */
void sim_work_dump(sim_t *w) {
    const sim_coord_t *c = sim_coord_now(w);
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        sim_node_t *node = w->at_rank[r] == SIM_NO ? NULL : w->nodes[w->at_rank[r]];
        if (node == NULL || !lives(node)) continue;
        sim_trace(w, "rank %u node %u: attached %d, at the coordinator %u, paused %d, clock x%llu", r, node->index,
                  sim_attached(node), c == NULL ? 9u : mcpg_coord_rank_state(c->machine, (mcpg_rank_t){r}),
                  node->paused_until_us > w->now, U(node->clock.rate_ppm));
        for (uint32_t p = 0; p < w->plan.ranks; p++) {
            const sim_node_t *peer = w->at_rank[p] == SIM_NO || p == r ? NULL : w->nodes[w->at_rank[p]];
            if (peer != NULL && lives(peer) && !sim_link_ok(w, node, peer))
                sim_trace(w, "  link to %u: state %u, cut %u %u", p, node->link[p].state, w->cut[r][p], w->cut[p][r]);
        }
        for (uint32_t i = 0; i < SIM_MINE; i++) {
            const sim_mine_t *m = &node->mine[i];
            if (!m->used) continue;
            sim_trace(
                w,
                "  group%u %s gid %u stage %u generation %u open %d isolated %d active %d held %d fenced %d next %llu",
                m->spec, m->manual ? "manual" : "auto", m->gid, m->stage, m->generation, m->open, m->isolated,
                sim_dp_active(node, m), m->held, m->fenced, U(m->next));
            sim_trace(w, "    calls: register %llu join %llu propose %llu sync %llu leave %llu", U(m->register_call),
                      U(m->join_call), U(m->propose_call), U(m->sync_call), U(m->leave_call));
            for (uint32_t k = 0; k < m->op_count; k++)
                sim_trace(w, "    number %llu state %u view %llu arrived %llx failed %llx", U(m->ops[k].seq),
                          m->ops[k].state, m->ops[k].view == NULL ? 0ull : U(m->ops[k].view->id.epoch),
                          U(m->ops[k].arrived), U(m->ops[k].failed));
        }
    }
}
