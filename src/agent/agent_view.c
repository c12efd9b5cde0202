/* agent_view.c: PREPARE, hold, ACK, COMMIT, ABORT of views, and SYNCING.
 *
 * Only the highest view seen counts, and only the coordinator attached to prepares one; everything older is answered or
 * dropped without effect on the data plane. The newest COMMIT is kept whole, for whoever needs it again. Effects of a
 * COMMIT leave in the order install, acknowledge, resolve, answer, notify. It must never install a view twice, never
 * install one that it was told was aborted, and never end a hold on its own account.
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

void mcpg__agent_view_send_ack(mcpg_agent_t *agent, mcpg_agent_group_t *group, mcpg_agent_effects_t *fx) {
    group->again_us = mcpg__agent_after(agent->now, MCPG_AGENT_SAY_AGAIN_US);
    mcpg_up_ack_t *ack = &mcpg__agent_send(fx, MCPG_UP_ACK)->u.ack;
    ack->gid = group->gid;
    ack->view = group->preparing;
    ack->next_seq = group->next_seq;
    ack->steps = group->steps;
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

static void keep_wanted(mcpg_agent_t *agent, mcpg_agent_group_t *group, const mcpg_view_body_t *view) {
    for (uint32_t i = 0; i < group->capacity; i++) agent->slots[group->base + i].wanted = false;
    for (uint32_t i = 0; i < view->active_count; i++) {
        mcpg_agent_slot_t *s = &agent->slots[group->base + view->active[i].slot.v];
        s->wanted = true;
        s->wanted_rank = view->active[i].rank;
        s->wanted_inc = view->active[i].inc;
    }
}

void mcpg__agent_view_prepare(mcpg_agent_t *agent, const mcpg_down_prepare_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_group_disown(agent, msg->gid, fx);
        return;
    }
    mcpg_agent_group_t *group = &agent->groups[index];
    if (!body_valid(agent, group, &msg->view) || msg->view.id.term != agent->term) return;
    if (mcpg__agent_view_any(group->preparing) && mcpg__view_eq(msg->view.id, group->preparing)) {
        if (group->acked) mcpg__agent_view_send_ack(agent, group, fx);
        return;
    }
    if (mcpg__view_cmp(msg->view.id, group->highest) <= 0) return; /* I1: stale, aborted or committed */
    if (group->acked) {
        /* What became of the earlier one was lost: it comes first, or numbers of its view would run in an older one. */
        mcpg__agent_view_send_ack(agent, group, fx);
        return;
    }
    group->highest = msg->view.id;
    keep_wanted(agent, group, &msg->view);
    group->preparing = msg->view.id;
    group->acked = false;
    emit_view(group, MCPG_AGENT_FX_DP_HOLD, group->preparing, fx);
}

void mcpg__agent_view_held(mcpg_agent_t *agent, const mcpg_agent_held_ev_t *event, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, event->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    mcpg_agent_group_t *group = &agent->groups[index];
    /* Of an aborted view: its DP_RELEASE came after the DP_HOLD, so nothing is held. */
    if (!mcpg__agent_view_any(group->preparing) || !mcpg__view_eq(group->preparing, event->view) || group->acked)
        return;
    group->acked = true;
    group->next_seq = event->next_seq;
    group->steps = event->steps;
    group->again_us = agent->now.us;
    if (mcpg__agent_up(agent)) mcpg__agent_view_send_ack(agent, group, fx);
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
    for (uint32_t i = 0; i < group->capacity; i++) {
        agent->slots[group->base + i].active = false;
        agent->slots[group->base + i].left = false;
    }
    for (uint32_t i = 0; i < msg->view.active_count; i++) {
        const mcpg_member_t *m = &msg->view.active[i];
        mcpg_agent_slot_t *s = &agent->slots[group->base + m->slot.v];
        s->active = true;
        s->view_rank = m->rank;
        s->view_inc = m->inc;
    }
    for (uint32_t i = 0; i < msg->leave_count; i++) {
        mcpg_agent_slot_t *s = &agent->slots[group->base + msg->leaves[i].slot.v];
        s->left = true;
        s->leave_seq = msg->leaves[i].leave_seq;
    }
    group->switch_seq = msg->switch_seq;
    group->sync = msg->sync;
    group->sync_failed = msg->sync_failed;
    group->sync_first_failed_seq = msg->sync_first_failed_seq;
    group->committed = msg->view.id;
    group->orphan = false;
    if (mcpg__view_cmp(msg->view.id, group->highest) > 0) group->highest = msg->view.id;
    if (msg->switch_seq > group->next_seq) group->next_seq = msg->switch_seq;
    if (msg->sync) group->syncing = false;
    if (mcpg__agent_view_has_self(agent, group)) group->isolated = false;
    group->in_doubt = false;
}

void mcpg__agent_view_rebuild_commit(const mcpg_agent_t *agent, const mcpg_agent_group_t *group,
                                     mcpg_down_commit_t *out, mcpg_agent_effects_t *fx) {
    mcpg_member_t *active = (mcpg_member_t *)mcpg__agent_take(fx, group->capacity * sizeof(*active));
    mcpg_leave_t *leaves = (mcpg_leave_t *)mcpg__agent_take(fx, group->capacity * sizeof(*leaves));
    *out = (mcpg_down_commit_t){.gid = group->gid,
                                .view = {.id = group->committed, .active = active},
                                .switch_seq = group->switch_seq,
                                .leaves = leaves,
                                .sync = group->sync,
                                .sync_failed = group->sync_failed,
                                .sync_first_failed_seq = group->sync_first_failed_seq};
    for (uint32_t i = 0; i < group->capacity; i++) { /* a coordinator names slots in this order, too (I2) */
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (s->active)
            active[out->view.active_count++] = (mcpg_member_t){.slot = {i}, .rank = s->view_rank, .inc = s->view_inc};
        if (s->left) leaves[out->leave_count++] = (mcpg_leave_t){.slot = {i}, .leave_seq = s->leave_seq};
    }
}

static bool leaves_valid(const mcpg_agent_group_t *group, const mcpg_down_commit_t *msg) {
    if (msg->leave_count > group->capacity) return false;
    for (uint32_t i = 0; i < msg->leave_count; i++)
        if (msg->leaves[i].slot.v >= group->capacity) return false;
    return true;
}

void mcpg__agent_view_commit(mcpg_agent_t *agent, const mcpg_down_commit_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    mcpg_agent_group_t *group = &agent->groups[index];
    if (!body_valid(agent, group, &msg->view) || !leaves_valid(group, msg)) return;
    if (msg->view.id.term > agent->term || mcpg__view_eq(msg->view.id, group->aborted)) return;
    int order = mcpg__view_cmp(msg->view.id, group->committed);
    if (order == 0 && mcpg__agent_up(agent)) send_commit_ack(group, fx); /* the first acknowledgement was lost */
    if (order <= 0 && msg->sync) mcpg__agent_call_synced(agent, index, msg, fx);
    if (order <= 0) return; /* I1 */
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
    if (mcpg__agent_up(agent)) send_commit_ack(group, fx); /* else at the next attach */
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
    if (msg->view.term > agent->term || mcpg__view_cmp(msg->view, group->committed) <= 0) return;
    if (mcpg__view_cmp(msg->view, group->highest) > 0)
        group->highest = msg->view; /* a PREPARE that comes later is dead */
    /* Not a higher one's: what became of the view in preparation is still to come. */
    if (!mcpg__view_eq(msg->view, group->preparing)) return;
    group->aborted = msg->view;
    emit_view(group, MCPG_AGENT_FX_DP_RELEASE, group->preparing, fx);
    group->preparing = no_view;
    group->acked = false;
    group->in_doubt = false;
    mcpg__agent_report_judge(agent, index, fx);
    if (group->orphan && mcpg__agent_group_restart(agent, index, fx)) mcpg__agent_group_send_registers(agent, fx);
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
            if (mcpg__agent_view_any(group->committed)) send_commit_ack(group, fx);
            if (group->acked) mcpg__agent_view_send_ack(agent, group, fx);
            continue;
        }
        /* A view was committed without this process: what was held is judged by the data plane, as any operation of a
         * rank that is out. */
        if (mcpg__agent_view_any(group->preparing)) emit_view(group, MCPG_AGENT_FX_DP_RELEASE, group->preparing, fx);
        group->preparing = no_view;
        group->acked = false;
        group->in_doubt = false;
        group->syncing = false;
    }
}
