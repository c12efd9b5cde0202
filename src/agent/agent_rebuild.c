/* agent_rebuild.c: what this process tells a coordinator that it was not attached to before: each group whole.
 *
 * The ranks are the memory of a lost coordinator. A group that never had a view here is not reported: it is registered
 * again. It must never report a group that is being left, and nothing of an earlier incarnation.
 */
#include "agent/agent_state.h"

/* Called join_group, or is a founder. */
static bool awaits(const mcpg_agent_t *agent, uint32_t index) {
    const mcpg_agent_group_t *group = &agent->groups[index];
    const mcpg_agent_slot_t *own = &agent->slots[group->base + group->slot.v];
    if (mcpg__agent_view_has_self(agent, group) || (own->awaiting && mcpg__inc_eq(own->inc, agent->inc))) return true;
    for (uint32_t i = 0; i < agent->call_high; i++) {
        const mcpg_agent_call_t *call = &agent->calls[i];
        if (call->group == index &&
            (call->kind == MCPG_AGENT_CALL_JOIN || (call->kind == MCPG_AGENT_CALL_REGISTER && call->installing)))
            return true;
    }
    return false;
}

static void fill_doubt(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, mcpg_up_rebuild_t *up,
                       mcpg_agent_effects_t *fx) {
    up->acked = group->preparing;
    mcpg_member_t *members = (mcpg_member_t *)mcpg__agent_take(fx, group->capacity * sizeof(*members));
    for (uint32_t i = 0; i < group->capacity; i++) {
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (s->wanted)
            members[up->doubt_count++] = (mcpg_member_t){.slot = {i}, .rank = s->wanted_rank, .inc = s->wanted_inc};
    }
    up->doubt = members;
}

static void report(const mcpg_agent_t *agent, uint32_t index, mcpg_agent_effects_t *fx) {
    const mcpg_agent_group_t *group = &agent->groups[index];
    mcpg_up_rebuild_t *up = &mcpg__agent_send(fx, MCPG_UP_REBUILD)->u.rebuild;
    up->gid = group->gid;
    up->key = mcpg__agent_copy(fx, group->key, group->key_len);
    up->label = mcpg__agent_copy(fx, group->label, group->label_len);
    up->device_kind = mcpg__agent_copy(fx, group->device_kind, group->device_kind_len);
    up->order_count = group->order_count;
    up->order = mcpg__agent_group_order(agent, group, fx);
    up->capacity = group->capacity;
    up->manual = group->manual;
    up->no_auto_sync = group->no_auto_sync;
    up->awaiting = awaits(agent, index);
    if (group->acked) fill_doubt(agent, group, up, fx);
    up->aborted = group->aborted;
    up->next_seq = group->next_seq;
    up->has_commit = mcpg__agent_view_any(group->committed);
    if (up->has_commit) mcpg__agent_view_rebuild_commit(agent, group, &up->commit, fx);
}

void mcpg__agent_rebuild(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->group_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_OPEN) continue;
        group->orphan = false;
        bool seen = mcpg__agent_view_any(group->committed);
        if (!renewed && (seen || group->acked)) {
            group->orphan = !seen;
            report(agent, i, fx);
        } else if (!renewed && !mcpg__agent_group_restart(agent, i, fx)) {
            group->registered = false; /* the new coordinator knows the group from its members, if at all */
        }
    }
}
