/* agent_doubt.c: between an ACK and its COMMIT or ABORT: says the ACK again while attached; while contact is lost asks
 * the peers what became of the view, takes what they relay, and in the end gives up what is held.
 *
 * It must never decide alone: only a COMMIT or an ABORT that a coordinator made ends a doubt. What this process told a
 * newer coordinator is a promise, so the COMMIT of an older one, relayed later, is not taken.
 */
#include "agent/agent_state.h"

static bool lost_for_now(const mcpg_agent_t *agent) {
    return agent->lost && agent->stage != MCPG_AGENT_FAILED && agent->stage != MCPG_AGENT_STOPPED;
}

/* Something has to be said about its open ACK now and then. */
static bool says(const mcpg_agent_t *agent, const mcpg_agent_group_t *group) {
    return group->stage == MCPG_AGENT_GROUP_OPEN && group->acked && (mcpg__agent_up(agent) || lost_for_now(agent));
}

void mcpg__agent_doubt_lost(mcpg_agent_t *agent) {
    for (uint32_t i = 0; i < agent->group_high; i++)
        if (agent->groups[i].acked) agent->groups[i].again_us = agent->now.us;
}

/* ---- what peers ask and tell ---- */

void mcpg__agent_doubt_asked(mcpg_agent_t *agent, const mcpg_agent_view_asked_ev_t *event, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, event->gid);
    if (index == MCPG_AGENT_NO_INDEX) return;
    const mcpg_agent_group_t *group = &agent->groups[index];
    bool committed = mcpg__agent_view_any(group->committed) && mcpg__view_cmp(group->committed, event->view) >= 0;
    if (!committed && !mcpg__view_eq(group->aborted, event->view)) return; /* it does not know either */
    mcpg_down_msg_t *msg = (mcpg_down_msg_t *)mcpg__agent_take(fx, sizeof(*msg));
    if (committed) {
        msg->kind = MCPG_DOWN_COMMIT;
        mcpg__agent_view_rebuild_commit(agent, group, &msg->u.commit, fx);
    } else {
        msg->kind = MCPG_DOWN_ABORT;
        msg->u.abort = (mcpg_down_abort_t){.gid = event->gid, .view = event->view};
    }
    mcpg_agent_tell_view_t *tell = &mcpg__agent_emit(fx, MCPG_AGENT_FX_LINK_TELL_VIEW)->u.link_tell_view;
    tell->rank = event->rank;
    tell->inc = event->inc;
    tell->msg = msg;
}

void mcpg__agent_doubt_told(mcpg_agent_t *agent, const mcpg_down_msg_t *msg, mcpg_agent_effects_t *fx) {
    bool commit = msg->kind == MCPG_DOWN_COMMIT;
    uint32_t index = mcpg__agent_group_find(agent, commit ? msg->u.commit.gid : msg->u.abort.gid);
    if (index == MCPG_AGENT_NO_INDEX || !lost_for_now(agent)) return;
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (!group->acked) return;
    if (!commit) {
        if (mcpg__view_eq(msg->u.abort.view, group->preparing)) mcpg__agent_view_abort(agent, &msg->u.abort, fx);
        return;
    }
    const mcpg_view_id_t *view = &msg->u.commit.view.id;
    if (view->term == agent->term && mcpg__view_cmp(*view, group->preparing) >= 0)
        mcpg__agent_view_commit(agent, &msg->u.commit, fx);
}

/* ---- time ---- */

static bool gives_up(const mcpg_agent_t *agent, const mcpg_agent_group_t *group) {
    return lost_for_now(agent) && group->stage == MCPG_AGENT_GROUP_OPEN && !group->in_doubt &&
           mcpg__agent_view_any(group->preparing);
}

static uint64_t give_up_at(const mcpg_agent_t *agent) {
    return mcpg__agent_after((mcpg_time_t){agent->lost_at_us}, agent->config.timers.coordinator_grace_us);
}

static void say_again(mcpg_agent_t *agent, mcpg_agent_group_t *group, mcpg_agent_effects_t *fx) {
    if (mcpg__agent_up(agent)) {
        mcpg__agent_view_send_ack(agent, group, fx);
        return;
    }
    group->again_us = mcpg__agent_after(agent->now, MCPG_AGENT_SAY_AGAIN_US);
    mcpg_agent_dp_view_t *ask = &mcpg__agent_emit(fx, MCPG_AGENT_FX_LINK_ASK_VIEW)->u.link_ask_view;
    ask->gid = group->gid;
    ask->view = group->preparing;
}

void mcpg__agent_doubt_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->group_high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (says(agent, group) && agent->now.us >= group->again_us) say_again(agent, group, fx);
        if (!gives_up(agent, group) || agent->now.us < give_up_at(agent)) continue;
        group->in_doubt = true;
        mcpg_agent_dp_resolve_t *resolve = &mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_RESOLVE)->u.dp_resolve;
        resolve->gid = group->gid;
        resolve->status = MCPG_IN_DOUBT;
    }
}

uint64_t mcpg__agent_doubt_deadline(const mcpg_agent_t *agent) {
    uint64_t due = MCPG_AGENT_NEVER;
    for (uint32_t i = 0; i < agent->group_high; i++) {
        const mcpg_agent_group_t *group = &agent->groups[i];
        if (says(agent, group) && group->again_us < due) due = group->again_us;
        if (gives_up(agent, group) && give_up_at(agent) < due) due = give_up_at(agent);
    }
    return due;
}
