/* agent_report.c: operations with failed ranks that wait to be judged: OP_FAILED up, DP_RESOLVE down.
 *
 * A report ends OK when this rank itself or each failed slot has left the newest view (or is another incarnation
 * there), was cleared by RECONCILED, or, for one offline time after the coordinator was last heard, is proved dead; one
 * offline time after the loss it ends with COORDINATOR_LOST. Manual groups wait for nothing. It must never
 * change a membership (I7).
 */
#include "agent/agent_state.h"

static void emit_resolve(mcpg_gid_t gid, uint64_t report_id, mcpg_status_t status, mcpg_agent_effects_t *fx) {
    mcpg_agent_dp_resolve_t *resolve = &mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_RESOLVE)->u.dp_resolve;
    resolve->gid = gid;
    resolve->report_id = report_id;
    resolve->status = status;
}

/* The pool is kept without holes, as the slot pool is. */
static void drop_report(mcpg_agent_t *agent, uint32_t index) {
    mcpg_agent_report_t *report = &agent->reports[index];
    uint32_t end = report->failed_base + report->failed_count, count = report->failed_count;
    memmove(&agent->failed[report->failed_base], &agent->failed[end],
            (agent->failed_used - end) * sizeof(*agent->failed));
    agent->failed_used -= count;
    for (uint32_t i = 0; i < agent->report_high; i++)
        if (agent->reports[i].used && agent->reports[i].failed_base >= end) agent->reports[i].failed_base -= count;
    memset(report, 0, sizeof(*report));
    while (agent->report_high > 0 && !agent->reports[agent->report_high - 1u].used) agent->report_high--;
}

void mcpg__agent_report_drop_group(mcpg_agent_t *agent, uint32_t group) {
    uint32_t high = agent->report_high;
    for (uint32_t i = 0; i < high; i++)
        if (agent->reports[i].used && agent->reports[i].group == group) drop_report(agent, i);
}

/* Proof of death alone settles a slot only while no coordinator can have gone on without this rank: it has heard from
 * it within one offline time, and nothing that was acknowledged here leaves it out. */
static bool proof_counts(const mcpg_agent_t *agent, const mcpg_agent_group_t *group) {
    if (!agent->lost || agent->now.us >= agent->leased_until_us) return false;
    const mcpg_agent_slot_t *own = &agent->slots[group->base + group->slot.v];
    return !group->acked || (own->wanted && mcpg__inc_eq(own->wanted_inc, agent->inc));
}

static bool settled(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_member_t *failed,
                    bool proof) {
    if (failed->slot.v >= group->capacity) return true;
    const mcpg_agent_slot_t *s = &agent->slots[group->base + failed->slot.v];
    if (!s->active || !mcpg__inc_eq(s->view_inc, failed->inc)) return true;
    return proof && mcpg__agent_link_proved_dead(agent, failed->rank, failed->inc);
}

/* What is settled once stays settled: the slot may come back, and then nobody would judge it again. */
static bool all_settled(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_member_t *failed,
                        uint32_t count, mcpg_rankset_t *cleared) {
    /* Out itself, or not in yet: it takes no part, and no later COMMIT need ever name the slots. */
    if (!mcpg__agent_view_has_self(agent, group)) return true;
    bool proof = proof_counts(agent, group), all = true;
    for (uint32_t i = 0; i < count; i++) {
        if (failed[i].slot.v < MCPG_MAX_RANKS && mcpg__rankset_has(cleared, failed[i].slot.v)) continue;
        if (!settled(agent, group, &failed[i], proof))
            all = false;
        else if (failed[i].slot.v < MCPG_MAX_RANKS)
            mcpg__rankset_add(cleared, failed[i].slot.v);
    }
    return all;
}

/* What an operation ends with whose failed slots are settled. The view went on without a rank that is out, unless its
 * departure let it finish this number. */
static mcpg_status_t verdict(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, uint64_t seq) {
    if (group->isolated || mcpg__agent_view_has_self(agent, group)) return MCPG_OK;
    const mcpg_agent_slot_t *own = &agent->slots[group->base + group->slot.v];
    return own->left && seq < own->leave_seq ? MCPG_OK : MCPG_NOT_ACTIVE;
}

static void send_failed(mcpg_gid_t gid, uint64_t report_id, uint64_t seq, const mcpg_member_t *failed, uint32_t count,
                        mcpg_agent_effects_t *fx) {
    mcpg_up_op_failed_t *up = &mcpg__agent_send(fx, MCPG_UP_OP_FAILED)->u.op_failed;
    mcpg_member_t *copy = (mcpg_member_t *)mcpg__agent_take(fx, count * sizeof(*copy));
    memcpy(copy, failed, count * sizeof(*copy));
    up->gid = gid;
    up->report_id = report_id;
    up->seq = seq;
    up->failed_count = count;
    up->failed = copy;
}

static mcpg_agent_report_t *new_report(mcpg_agent_t *agent, uint32_t failed_count) {
    uint32_t index = 0;
    while (index < agent->report_high && agent->reports[index].used) index++;
    if (index == agent->config.max_reports || failed_count > agent->failed_cap - agent->failed_used) return NULL;
    if (index == agent->report_high) agent->report_high++;
    mcpg_agent_report_t *report = &agent->reports[index];
    memset(report, 0, sizeof(*report));
    report->used = true;
    report->failed_base = agent->failed_used;
    report->failed_count = failed_count;
    agent->failed_used += failed_count;
    return report;
}

static bool known(const mcpg_agent_t *agent, uint32_t group, uint64_t report_id) {
    for (uint32_t i = 0; i < agent->report_high; i++)
        if (agent->reports[i].used && agent->reports[i].group == group && agent->reports[i].report_id == report_id)
            return true;
    return false;
}

void mcpg__agent_report_event(mcpg_agent_t *agent, const mcpg_agent_op_failed_ev_t *event, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, event->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        if (event->report_id != 0) emit_resolve(event->gid, event->report_id, MCPG_OK, fx);
        return;
    }
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (event->report_id == 0 || group->manual || group->no_auto_sync) {
        if (mcpg__agent_up(agent)) send_failed(event->gid, 0, event->seq, event->failed, event->failed_count, fx);
        if (event->report_id != 0) emit_resolve(event->gid, event->report_id, MCPG_OK, fx);
        return;
    }
    if (known(agent, index, event->report_id)) return;
    mcpg_rankset_t cleared;
    mcpg__rankset_clear(&cleared);
    if (all_settled(agent, group, event->failed, event->failed_count, &cleared)) {
        emit_resolve(event->gid, event->report_id, verdict(agent, group, event->seq), fx);
        return;
    }
    if (agent->loss_judged || agent->stage == MCPG_AGENT_FAILED) {
        mcpg_status_t status = agent->stage == MCPG_AGENT_FAILED ? MCPG_NOT_ACTIVE : MCPG_COORDINATOR_LOST;
        emit_resolve(event->gid, event->report_id, status, fx);
        return;
    }
    mcpg_agent_report_t *report = new_report(agent, event->failed_count);
    if (report == NULL) {
        emit_resolve(event->gid, event->report_id, MCPG_LIMIT, fx);
        return;
    }
    report->group = index;
    report->report_id = event->report_id;
    report->seq = event->seq;
    report->cleared = cleared;
    report->again_us = mcpg__agent_after(agent->now, MCPG_AGENT_REPORT_US);
    memcpy(&agent->failed[report->failed_base], event->failed, event->failed_count * sizeof(*event->failed));
    if (mcpg__agent_up(agent))
        send_failed(event->gid, event->report_id, event->seq, event->failed, event->failed_count, fx);
}

void mcpg__agent_report_judge(mcpg_agent_t *agent, uint32_t group, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->report_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_report_t *report = &agent->reports[i];
        if (!report->used || (group != MCPG_AGENT_NO_INDEX && report->group != group)) continue;
        const mcpg_agent_group_t *g = &agent->groups[report->group];
        if (!all_settled(agent, g, &agent->failed[report->failed_base], report->failed_count, &report->cleared))
            continue;
        emit_resolve(g->gid, report->report_id, verdict(agent, g, report->seq), fx);
        drop_report(agent, i);
    }
}

void mcpg__agent_report_reconciled(mcpg_agent_t *agent, const mcpg_down_reconciled_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    for (uint32_t i = 0; i < agent->report_high; i++) {
        mcpg_agent_report_t *report = &agent->reports[i];
        if (report->used && report->group == index && report->report_id == msg->report_id)
            mcpg__rankset_or(&report->cleared, &msg->cleared);
    }
    mcpg__agent_report_judge(agent, index, fx);
}

static void resend(mcpg_agent_t *agent, bool all, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->report_high; i++) {
        mcpg_agent_report_t *report = &agent->reports[i];
        if (!report->used || (!all && agent->now.us < report->again_us)) continue;
        report->again_us = mcpg__agent_after(agent->now, MCPG_AGENT_REPORT_US);
        send_failed(agent->groups[report->group].gid, report->report_id, report->seq,
                    &agent->failed[report->failed_base], report->failed_count, fx);
    }
}

void mcpg__agent_report_resend(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    resend(agent, true, fx);
}

void mcpg__agent_report_end_all(mcpg_agent_t *agent, mcpg_status_t status, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->report_high;
    for (uint32_t i = 0; i < high; i++) {
        if (!agent->reports[i].used) continue;
        emit_resolve(agent->groups[agent->reports[i].group].gid, agent->reports[i].report_id, status, fx);
        drop_report(agent, i);
    }
}

/* When the coordinator is lost for too long. */
static uint64_t given_up_at(const mcpg_agent_t *agent) {
    bool over = agent->stage == MCPG_AGENT_STOPPED || agent->stage == MCPG_AGENT_FAILED;
    if (!agent->lost || agent->loss_judged || over) return MCPG_AGENT_NEVER;
    return mcpg__agent_after((mcpg_time_t){agent->lost_at_us}, agent->offline_us);
}

void mcpg__agent_report_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (mcpg__agent_up(agent)) resend(agent, false, fx);
    if (agent->now.us < given_up_at(agent)) return;
    agent->loss_judged = true;
    mcpg__agent_report_end_all(agent, MCPG_COORDINATOR_LOST, fx);
}

uint64_t mcpg__agent_report_deadline(const mcpg_agent_t *agent) {
    uint64_t due = given_up_at(agent);
    for (uint32_t i = 0; mcpg__agent_up(agent) && i < agent->report_high; i++)
        if (agent->reports[i].used && agent->reports[i].again_us < due) due = agent->reports[i].again_us;
    return due;
}
