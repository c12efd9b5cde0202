/* agent_report.c: operations with failed ranks that wait to be judged: OP_FAILED up, DP_RESOLVE down.
 *
 * A report ends OK when this rank itself or each failed slot has left the newest view (or is another incarnation
 * there), was cleared by RECONCILED, or, while the coordinator is lost, is proved dead; one offline time after the loss
 * it ends with COORDINATOR_LOST. Manual groups wait for nothing. It must never change a membership (I7).
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

static bool settled(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_member_t *failed) {
    if (failed->slot.v >= group->capacity) return true;
    /* Out itself, or not in yet: it takes no part, and no later COMMIT need ever name the slot. */
    if (!mcpg__agent_view_has_self(agent, group)) return true;
    const mcpg_agent_slot_t *s = &agent->slots[group->base + failed->slot.v];
    if (!s->active || !mcpg__inc_eq(s->view_inc, failed->inc)) return true;
    return agent->lost && mcpg__agent_link_proved_dead(agent, failed->rank, failed->inc);
}

static bool all_settled(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_member_t *failed,
                        uint32_t count, const mcpg_rankset_t *cleared) {
    for (uint32_t i = 0; i < count; i++) {
        bool fine =
            cleared != NULL && failed[i].slot.v < MCPG_MAX_RANKS && mcpg__rankset_has(cleared, failed[i].slot.v);
        if (!fine && !settled(agent, group, &failed[i])) return false;
    }
    return true;
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
    if (all_settled(agent, group, event->failed, event->failed_count, NULL)) {
        emit_resolve(event->gid, event->report_id, MCPG_OK, fx);
        return;
    }
    if (agent->loss_judged || agent->stage == MCPG_AGENT_FAILED) {
        emit_resolve(event->gid, event->report_id, MCPG_COORDINATOR_LOST, fx);
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
    memcpy(&agent->failed[report->failed_base], event->failed, event->failed_count * sizeof(*event->failed));
    if (mcpg__agent_up(agent))
        send_failed(event->gid, event->report_id, event->seq, event->failed, event->failed_count, fx);
}

void mcpg__agent_report_judge(mcpg_agent_t *agent, uint32_t group, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->report_high;
    for (uint32_t i = 0; i < high; i++) {
        const mcpg_agent_report_t *report = &agent->reports[i];
        if (!report->used || (group != MCPG_AGENT_NO_INDEX && report->group != group)) continue;
        const mcpg_agent_group_t *g = &agent->groups[report->group];
        if (!all_settled(agent, g, &agent->failed[report->failed_base], report->failed_count, &report->cleared))
            continue;
        emit_resolve(g->gid, report->report_id, MCPG_OK, fx);
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

void mcpg__agent_report_resend(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->report_high; i++) {
        const mcpg_agent_report_t *report = &agent->reports[i];
        if (!report->used) continue;
        send_failed(agent->groups[report->group].gid, report->report_id, report->seq,
                    &agent->failed[report->failed_base], report->failed_count, fx);
    }
}

void mcpg__agent_report_end_all(mcpg_agent_t *agent, mcpg_status_t status, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->report_high;
    for (uint32_t i = 0; i < high; i++) {
        if (!agent->reports[i].used) continue;
        emit_resolve(agent->groups[agent->reports[i].group].gid, agent->reports[i].report_id, status, fx);
        drop_report(agent, i);
    }
}

static uint64_t judged_at(const mcpg_agent_t *agent) {
    return mcpg__agent_after((mcpg_time_t){agent->lost_at_us}, agent->offline_us);
}

void mcpg__agent_report_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (!agent->lost || agent->loss_judged || agent->now.us < judged_at(agent)) return;
    agent->loss_judged = true;
    mcpg__agent_report_end_all(agent, MCPG_COORDINATOR_LOST, fx);
}

uint64_t mcpg__agent_report_deadline(const mcpg_agent_t *agent) {
    if (!agent->lost || agent->loss_judged || agent->stage == MCPG_AGENT_STOPPED) return MCPG_AGENT_NEVER;
    return judged_at(agent);
}
