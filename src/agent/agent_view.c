/* agent_view.c: PREPARE, hold, ACK, COMMIT, ABORT of views, and SYNCING.
 *
 * Only the highest view seen counts; everything older is answered or dropped without effect on the data plane. Effects
 * of a COMMIT leave in the order install, acknowledge, resolve, answer, notify. It must never install a view twice and
 * never end a hold on its own account.
 */
#include "agent/agent_state.h"

static const mcpg_view_id_t no_view = {0, 0};

bool mcpg__agent_view_has_self(const mcpg_agent_t *agent, const mcpg_agent_group_t *group) {
    const mcpg_agent_slot_t *own = &agent->slots[group->base + group->slot.v];
    return own->active && own->view_rank.v == agent->config.rank.v && mcpg__inc_eq(own->view_inc, agent->inc);
}

static bool body_valid(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_view_body_t *view) {
    if (view->active_count > group->capacity) return false;
    for (uint32_t i = 0; i < view->active_count; i++) {
        const mcpg_member_t *m = &view->active[i];
        if (m->slot.v >= group->capacity || m->rank.v >= agent->config.max_ranks) return false;
        if (i > 0 && m->slot.v <= view->active[i - 1u].slot.v) return false;
    }
    return true;
}

static void send_ack(const mcpg_agent_group_t *group, mcpg_agent_effects_t *fx) {
    mcpg_up_ack_t *ack = &mcpg__agent_send(fx, MCPG_UP_ACK)->u.ack;
    ack->gid = group->gid;
    ack->view = group->preparing;
    ack->next_seq = group->next_seq;
}

static void send_commit_ack(const mcpg_agent_group_t *group, mcpg_agent_effects_t *fx) {
    mcpg_up_commit_ack_t *ack = &mcpg__agent_send(fx, MCPG_UP_COMMIT_ACK)->u.commit_ack;
    ack->gid = group->gid;
    ack->view = group->committed;
}

static void emit_view(const mcpg_agent_group_t *group, mcpg_agent_fx_kind_t kind, mcpg_view_id_t view,
                      mcpg_agent_effects_t *fx) {
    mcpg_agent_effect_t *effect = mcpg__agent_emit(fx, kind);
    mcpg_agent_dp_view_t *what = kind == MCPG_AGENT_FX_DP_HOLD ? &effect->u.dp_hold : &effect->u.dp_release;
    what->gid = group->gid;
    what->view = view;
}

void mcpg__agent_view_prepare(mcpg_agent_t *agent, const mcpg_down_prepare_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_group_disown(agent, msg->gid, fx);
        return;
    }
    mcpg_agent_group_t *group = &agent->groups[index];
    if (!body_valid(agent, group, &msg->view)) return;
    bool open = !mcpg__view_eq(group->preparing, no_view);
    if (open && mcpg__view_eq(msg->view.id, group->preparing)) {
        if (group->acked) send_ack(group, fx);
        return;
    }
    if (mcpg__view_cmp(msg->view.id, group->highest) <= 0) return; /* I1: stale, aborted or committed */
    group->highest = msg->view.id;
    group->preparing = msg->view.id;
    group->acked = false;
    emit_view(group, MCPG_AGENT_FX_DP_HOLD, group->preparing, fx);
}

void mcpg__agent_view_held(mcpg_agent_t *agent, const mcpg_agent_held_ev_t *event, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, event->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    mcpg_agent_group_t *group = &agent->groups[index];
    /* Of an aborted view: its DP_RELEASE came after the DP_HOLD, so nothing is held. */
    if (mcpg__view_eq(group->preparing, no_view) || !mcpg__view_eq(group->preparing, event->view) || group->acked)
        return;
    group->acked = true;
    group->next_seq = event->next_seq;
    if (mcpg__agent_up(agent)) send_ack(group, fx);
}

static void emit_install(const mcpg_down_commit_t *msg, mcpg_agent_effects_t *fx) {
    mcpg_down_commit_t *copy = (mcpg_down_commit_t *)mcpg__agent_take(fx, sizeof(*copy));
    *copy = *msg;
    copy->view.active = NULL;
    copy->leaves = NULL;
    if (msg->view.active_count > 0) {
        size_t size = msg->view.active_count * sizeof(mcpg_member_t);
        mcpg_member_t *active = (mcpg_member_t *)mcpg__agent_take(fx, size);
        memcpy(active, msg->view.active, size);
        copy->view.active = active;
    }
    if (msg->leave_count > 0) {
        size_t size = msg->leave_count * sizeof(mcpg_leave_t);
        mcpg_leave_t *leaves = (mcpg_leave_t *)mcpg__agent_take(fx, size);
        memcpy(leaves, msg->leaves, size);
        copy->leaves = leaves;
    }
    mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_INSTALL)->u.dp_install = copy;
}

static void keep_view(mcpg_agent_t *agent, mcpg_agent_group_t *group, const mcpg_down_commit_t *msg) {
    for (uint32_t i = 0; i < group->capacity; i++) agent->slots[group->base + i].active = false;
    for (uint32_t i = 0; i < msg->view.active_count; i++) {
        const mcpg_member_t *m = &msg->view.active[i];
        mcpg_agent_slot_t *s = &agent->slots[group->base + m->slot.v];
        s->active = true;
        s->view_rank = m->rank;
        s->view_inc = m->inc;
    }
    group->committed = msg->view.id;
    if (mcpg__view_cmp(msg->view.id, group->highest) > 0) group->highest = msg->view.id;
    if (msg->switch_seq > group->next_seq) group->next_seq = msg->switch_seq;
    if (msg->sync) group->syncing = false;
    if (mcpg__agent_view_has_self(agent, group)) group->isolated = false;
    group->in_doubt = false;
}

void mcpg__agent_view_commit(mcpg_agent_t *agent, const mcpg_down_commit_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    mcpg_agent_group_t *group = &agent->groups[index];
    if (!body_valid(agent, group, &msg->view) || msg->leave_count > group->capacity) return;
    int order = mcpg__view_cmp(msg->view.id, group->committed);
    if (order == 0) send_commit_ack(group, fx); /* it came again: the first acknowledgement was lost */
    if (order <= 0) return;                     /* I1 */
    keep_view(agent, group, msg);
    emit_install(msg, fx);
    bool held = mcpg__view_cmp(group->preparing, msg->view.id) > 0;
    if (held) {
        /* The install ended the hold of a later view, which still stands. */
        group->acked = false;
        emit_view(group, MCPG_AGENT_FX_DP_HOLD, group->preparing, fx);
    } else {
        group->preparing = no_view;
        group->acked = false;
    }
    send_commit_ack(group, fx);
    mcpg__agent_report_judge(agent, index, fx);
    mcpg__agent_call_committed(agent, index, msg, fx);
    mcpg_agent_notify_t notify = {
        .kind = MCPG_EVENT_VIEW, .gid = msg->gid, .view = msg->view.id, .rank = agent->config.rank};
    mcpg__agent_notify(fx, &notify);
}

void mcpg__agent_view_abort(mcpg_agent_t *agent, const mcpg_down_abort_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    mcpg_agent_group_t *group = &agent->groups[index];
    if (mcpg__view_cmp(msg->view, group->highest) > 0)
        group->highest = msg->view; /* a PREPARE that comes later is dead */
    if (mcpg__view_eq(group->preparing, no_view) || mcpg__view_cmp(msg->view, group->preparing) < 0) return;
    emit_view(group, MCPG_AGENT_FX_DP_RELEASE, group->preparing, fx);
    group->preparing = no_view;
    group->acked = false;
    group->in_doubt = false;
}

void mcpg__agent_view_syncing(mcpg_agent_t *agent, const mcpg_down_syncing_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX || agent->groups[index].syncing) return;
    agent->groups[index].syncing = true;
    mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_SYNC_FENCE)->u.dp_sync_fence.gid = msg->gid;
}

void mcpg__agent_view_resend(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->group_high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_OPEN) continue;
        if (!renewed) {
            if (!mcpg__view_eq(group->committed, no_view)) send_commit_ack(group, fx);
            if (group->acked) send_ack(group, fx);
            continue;
        }
        /* A view was committed without this process: what was held is judged by the data plane, as any operation of a
         * rank that is out. */
        if (!mcpg__view_eq(group->preparing, no_view)) emit_view(group, MCPG_AGENT_FX_DP_RELEASE, group->preparing, fx);
        group->preparing = no_view;
        group->acked = false;
        group->syncing = false;
    }
}

static bool doubtful(const mcpg_agent_group_t *group) {
    return group->stage == MCPG_AGENT_GROUP_OPEN && !group->in_doubt && !mcpg__view_eq(group->preparing, no_view);
}

static uint64_t doubt_at(const mcpg_agent_t *agent) {
    return mcpg__agent_after((mcpg_time_t){agent->lost_at_us}, agent->config.timers.coordinator_grace_us);
}

void mcpg__agent_view_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (!agent->lost || agent->now.us < doubt_at(agent)) return;
    for (uint32_t i = 0; i < agent->group_high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (!doubtful(group)) continue;
        group->in_doubt = true;
        mcpg_agent_dp_resolve_t *resolve = &mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_RESOLVE)->u.dp_resolve;
        resolve->gid = group->gid;
        resolve->status = MCPG_IN_DOUBT;
    }
}

uint64_t mcpg__agent_view_deadline(const mcpg_agent_t *agent) {
    if (!agent->lost || agent->stage == MCPG_AGENT_STOPPED) return MCPG_AGENT_NEVER;
    for (uint32_t i = 0; i < agent->group_high; i++)
        if (doubtful(&agent->groups[i])) return doubt_at(agent);
    return MCPG_AGENT_NEVER;
}
