/* agent_group.c: the group table: register, member table, join, leave.
 *
 * A group entry is made with the call, so that its declaration is there to be sent again. The slot pool is kept without
 * holes: freeing a group moves the later ones down. It must never decide who is a member; that is what MEMBERS and
 * COMMIT say.
 */
#include "agent/agent_state.h"

uint32_t mcpg__agent_group_find(const mcpg_agent_t *agent, mcpg_gid_t gid) {
    for (uint32_t i = 0; i < agent->group_high; i++)
        if (agent->groups[i].stage == MCPG_AGENT_GROUP_OPEN && agent->groups[i].gid.v == gid.v) return i;
    return MCPG_AGENT_NO_INDEX;
}

static void free_slots(mcpg_agent_t *agent, mcpg_agent_group_t *group) {
    uint32_t end = group->base + group->capacity;
    if (group->capacity == 0) return;
    memmove(&agent->slots[group->base], &agent->slots[end], (agent->slots_used - end) * sizeof(*agent->slots));
    agent->slots_used -= group->capacity;
    memset(&agent->slots[agent->slots_used], 0, group->capacity * sizeof(*agent->slots));
    for (uint32_t i = 0; i < agent->group_high; i++)
        if (agent->groups[i].capacity > 0 && agent->groups[i].base >= end) agent->groups[i].base -= group->capacity;
    group->base = 0;
    group->capacity = 0;
}

void mcpg__agent_group_drop(mcpg_agent_t *agent, uint32_t index) {
    mcpg_agent_group_t *group = &agent->groups[index];
    free_slots(agent, group);
    memset(group, 0, sizeof(*group));
    while (agent->group_high > 0 && agent->groups[agent->group_high - 1u].stage == MCPG_AGENT_GROUP_FREE)
        agent->group_high--;
}

static void send_leave(mcpg_gid_t gid, uint64_t next_seq, mcpg_agent_effects_t *fx) {
    mcpg_up_leave_group_t *leave = &mcpg__agent_send(fx, MCPG_UP_LEAVE_GROUP)->u.leave_group;
    leave->gid = gid;
    leave->next_seq = next_seq;
}

void mcpg__agent_group_end(mcpg_agent_t *agent, uint32_t index, mcpg_agent_effects_t *fx) {
    mcpg_agent_group_t *group = &agent->groups[index];
    mcpg__agent_report_drop_group(agent, index);
    mcpg__agent_call_end_group(agent, index, MCPG_ABORTED, "the group was destroyed", fx);
    if (group->stage == MCPG_AGENT_GROUP_OPEN) {
        mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_GROUP_GONE)->u.dp_group_gone.gid = group->gid;
        if (agent->stage != MCPG_AGENT_FAILED) {
            group->stage = MCPG_AGENT_GROUP_LEAVING;
            group->acked = false;
            free_slots(agent, group);
            if (!mcpg__agent_up(agent)) return;
            group->left_us = agent->now.us;
            send_leave(group->gid, group->next_seq, fx);
            return;
        }
    }
    mcpg__agent_group_drop(agent, index);
}

/* ---- register ---- */

static const char *declaration_fault(const mcpg_agent_t *agent, const mcpg_agent_call_register_t *call,
                                     mcpg_slot_t *slot_out) {
    if (call->order_count == 0 || call->order == NULL) return "rank_order is empty: name the global rank of every slot";
    if (call->capacity < call->order_count) return "max_group_size is smaller than group_size: raise it or pass 0";
    if (call->capacity > agent->config.max_ranks) return "max_group_size is above the limit of ranks: lower it";
    if (call->key.len > MCPG_KEY_CAP || call->label.len > MCPG_KEY_CAP || call->device_kind.len > MCPG_KEY_CAP)
        return "group_key, label or device_kind is longer than 128 bytes: shorten it";
    mcpg_rankset_t seen;
    mcpg__rankset_clear(&seen);
    bool found = false;
    for (uint32_t i = 0; i < call->order_count; i++) {
        uint32_t rank = call->order[i];
        if (rank >= agent->config.max_ranks) return "rank_order names a rank above the limit: use ranks of this job";
        if (mcpg__rankset_has(&seen, rank)) return "rank_order names a rank twice: each rank has one slot";
        mcpg__rankset_add(&seen, rank);
        if (rank == agent->config.rank.v) {
            slot_out->v = i;
            found = true;
        }
    }
    return found ? NULL : "rank_order does not contain this process's rank: only members create a group";
}

/* The table is full: one whose LEAVE_GROUP was sent at least once gives its place up. */
static uint32_t spare_leaver(mcpg_agent_t *agent) {
    for (uint32_t i = 0; i < agent->group_high; i++) {
        if (agent->groups[i].stage != MCPG_AGENT_GROUP_LEAVING || agent->groups[i].left_us == 0) continue;
        memset(&agent->groups[i], 0, sizeof(agent->groups[i]));
        return i;
    }
    return agent->config.max_groups;
}

static uint32_t new_group(mcpg_agent_t *agent, const mcpg_agent_call_register_t *call, mcpg_slot_t slot) {
    uint32_t index = 0;
    while (index < agent->group_high && agent->groups[index].stage != MCPG_AGENT_GROUP_FREE) index++;
    if (index == agent->config.max_groups) index = spare_leaver(agent);
    if (index == agent->config.max_groups || call->capacity > agent->config.max_slots_total - agent->slots_used)
        return MCPG_AGENT_NO_INDEX;
    if (index == agent->group_high) agent->group_high++;
    mcpg_agent_group_t *group = &agent->groups[index];
    group->stage = MCPG_AGENT_GROUP_ASKED;
    group->is_extension = call->is_extension;
    group->manual = call->manual;
    group->no_auto_sync = call->no_auto_sync;
    group->slot = slot;
    group->capacity = call->capacity;
    group->order_count = call->order_count;
    group->base = agent->slots_used;
    agent->slots_used += call->capacity;
    for (uint32_t i = 0; i < call->order_count; i++) agent->slots[group->base + i].rank.v = call->order[i];
    group->key_len = call->key.len;
    if (call->key.len > 0) memcpy(group->key, call->key.ptr, call->key.len);
    group->label_len = call->label.len;
    if (call->label.len > 0) memcpy(group->label, call->label.ptr, call->label.len);
    group->device_kind_len = call->device_kind.len;
    if (call->device_kind.len > 0) memcpy(group->device_kind, call->device_kind.ptr, call->device_kind.len);
    return index;
}

const uint32_t *mcpg__agent_group_order(const mcpg_agent_t *agent, const mcpg_agent_group_t *group,
                                        mcpg_agent_effects_t *fx) {
    uint32_t *order = (uint32_t *)mcpg__agent_take(fx, group->order_count * sizeof(*order));
    for (uint32_t i = 0; i < group->order_count; i++) order[i] = agent->slots[group->base + i].rank.v;
    return order;
}

void mcpg__agent_group_send_register(mcpg_agent_t *agent, uint32_t index, uint64_t call_id, mcpg_agent_effects_t *fx) {
    const mcpg_agent_group_t *group = &agent->groups[index];
    mcpg_up_register_t *up = &mcpg__agent_send(fx, MCPG_UP_REGISTER)->u.register_group;
    up->call_id = call_id;
    up->key = mcpg__agent_copy(fx, group->key, group->key_len);
    up->label = mcpg__agent_copy(fx, group->label, group->label_len);
    up->device_kind = mcpg__agent_copy(fx, group->device_kind, group->device_kind_len);
    up->order_count = group->order_count;
    up->order = mcpg__agent_group_order(agent, group, fx);
    up->capacity = group->capacity;
    /* A group that has had a view is not founded again: a process that comes back replaces what it was. */
    up->is_extension = group->is_extension || mcpg__agent_view_any(group->committed);
    up->manual = group->manual;
    up->no_auto_sync = group->no_auto_sync;
}

void mcpg__agent_group_register(mcpg_agent_t *agent, const mcpg_agent_call_register_t *call, mcpg_agent_effects_t *fx) {
    mcpg_slot_t slot = {0};
    const char *fault = declaration_fault(agent, call, &slot);
    if (fault != NULL) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_INVALID_ARGUMENT, fault);
        return;
    }
    if (agent->stage == MCPG_AGENT_FAILED) {
        mcpg__agent_call_refuse_failed(agent, call->call_id, fx);
        return;
    }
    uint32_t index = new_group(agent, call, slot);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_LIMIT, "this process has too many groups: destroy one first");
        return;
    }
    if (mcpg__agent_call_open(agent, MCPG_AGENT_CALL_REGISTER, call->call_id, index, call->timeout_us, fx) == NULL) {
        mcpg__agent_group_drop(agent, index);
        return;
    }
    if (mcpg__agent_up(agent) && !agent->rebuilding) mcpg__agent_group_send_register(agent, index, call->call_id, fx);
}

#define WENT_ON "the group went on without this process: destroy it and create it again"

/* Nothing will ever come of this group here. A founder whose call is open has no handle to destroy it with. */
static void refuse_again(mcpg_agent_t *agent, uint32_t index, mcpg_status_t status, mcpg_agent_effects_t *fx) {
    bool founding = false;
    for (uint32_t i = 0; i < agent->call_high; i++)
        if (agent->calls[i].kind == MCPG_AGENT_CALL_REGISTER && agent->calls[i].group == index) founding = true;
    agent->groups[index].refused = status;
    mcpg__agent_call_end_group(agent, index, status, WENT_ON, fx);
    if (founding) mcpg__agent_group_end(agent, index, fx);
}

bool mcpg__agent_group_refused(const mcpg_agent_group_t *group, uint64_t call_id, mcpg_agent_effects_t *fx) {
    if (group->refused == MCPG_OK) return false;
    mcpg__agent_call_refuse(fx, call_id, (mcpg_status_t)group->refused, WENT_ON);
    return true;
}

/* The answer to the machine's own REGISTER after it got a new incarnation. */
static void registered_again(mcpg_agent_t *agent, uint32_t index, const mcpg_down_registered_t *msg,
                             mcpg_agent_effects_t *fx) {
    mcpg_agent_group_t *group = index < agent->group_high ? &agent->groups[index] : NULL;
    bool mine = group != NULL && group->stage == MCPG_AGENT_GROUP_OPEN && msg->gid.v == group->gid.v;
    if (msg->status != MCPG_OK || !mine) {
        /* Destroyed meanwhile, or its generation is over and this would be the next one, which only the user may found.
         */
        bool stray = msg->status == MCPG_OK && mcpg__agent_group_find(agent, msg->gid) == MCPG_AGENT_NO_INDEX;
        if (stray) send_leave(msg->gid, 0, fx);
        if (group == NULL || group->stage != MCPG_AGENT_GROUP_OPEN || group->registered) return;
        refuse_again(agent, index, msg->status == MCPG_OK ? MCPG_NOT_FOUND : (mcpg_status_t)msg->status, fx);
        return;
    }
    group->registered = true;
    group->refused = MCPG_OK;
    for (uint32_t i = 0; i < agent->call_high; i++) {
        const mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_JOIN && call->group == index) mcpg__agent_group_send_join(agent, call, fx);
    }
}

static void register_refused(mcpg_agent_t *agent, mcpg_agent_call_t *call, const mcpg_down_registered_t *msg,
                             mcpg_agent_effects_t *fx) {
    uint32_t index = call->group;
    mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, (mcpg_status_t)msg->status, fx);
    done->text = mcpg__agent_copy(fx, msg->text.ptr, msg->text.len < MCPG_TEXT_CAP ? msg->text.len : MCPG_TEXT_CAP);
    mcpg__agent_group_drop(agent, index);
}

static void open_group(mcpg_agent_group_t *group, const mcpg_down_registered_t *msg, mcpg_agent_effects_t *fx) {
    group->stage = MCPG_AGENT_GROUP_OPEN;
    group->registered = true;
    group->gid = msg->gid;
    group->slot = msg->slot;
    group->isolated = msg->isolated;
    group->manual = msg->manual;
    group->no_auto_sync = msg->no_auto_sync;
    mcpg_agent_dp_group_t *open = &mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_GROUP)->u.dp_group;
    open->gid = msg->gid;
    open->slot = msg->slot;
    open->capacity = group->capacity;
    open->isolated = msg->isolated;
    open->manual = msg->manual;
    open->no_auto_sync = msg->no_auto_sync;
}

void mcpg__agent_group_registered(mcpg_agent_t *agent, const mcpg_down_registered_t *msg, mcpg_agent_effects_t *fx) {
    if (msg->status == MCPG_UNAVAILABLE) { /* it gathers what the ranks know: not an answer */
        agent->register_again_us = mcpg__agent_after(agent->now, MCPG_AGENT_REGISTER_US);
        return;
    }
    if (msg->call_id >= MCPG_AGENT_AUTO_CALL) {
        registered_again(agent, (uint32_t)(msg->call_id & UINT32_MAX), msg, fx);
        return;
    }
    mcpg_agent_call_t *call = mcpg__agent_call_find(agent, msg->call_id);
    bool known = mcpg__agent_group_find(agent, msg->gid) != MCPG_AGENT_NO_INDEX;
    if (call == NULL || call->kind != MCPG_AGENT_CALL_REGISTER || call->installing) {
        /* Nobody waits for it any more: the caller was told that it failed, so the coordinator must not count on this
         * rank. */
        if (msg->status == MCPG_OK && !known) send_leave(msg->gid, 0, fx);
        return;
    }
    if (msg->status != MCPG_OK) {
        register_refused(agent, call, msg, fx);
        return;
    }
    uint32_t index = call->group;
    mcpg_agent_group_t *group = &agent->groups[index];
    const char *fault = NULL;
    if (known) fault = "this process already has this group: destroy it first, or pass another group_key";
    if (msg->slot.v >= group->capacity || msg->capacity != group->capacity || msg->gid.v == 0)
        fault = "the coordinator's answer does not fit the declaration: check that both run the same version";
    if (fault != NULL) {
        mcpg_agent_text_t text = mcpg__agent_text(fx);
        mcpg__agent_text_add(&text, fault);
        mcpg__agent_call_close(agent, call, known ? MCPG_INVALID_STATE : MCPG_INTERNAL, fx)->text =
            mcpg__agent_text_bytes(&text);
        if (!known) send_leave(msg->gid, 0, fx);
        mcpg__agent_group_drop(agent, index);
        return;
    }
    for (uint32_t i = 0; i < agent->group_high; i++) /* it has heard that this process had left it before */
        if (agent->groups[i].stage == MCPG_AGENT_GROUP_LEAVING && agent->groups[i].gid.v == msg->gid.v)
            memset(&agent->groups[i], 0, sizeof(agent->groups[i]));
    open_group(group, msg, fx);
    if (!msg->isolated) {
        call->installing = true; /* a founder waits for the first view */
        return;
    }
    mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, MCPG_OK, fx);
    done->gid = msg->gid;
    done->slot = msg->slot;
    done->isolated = true;
}

/* ---- members, join, leave ---- */

/* The coordinator counts on this rank in a group that ended here while its REGISTER was under way: it has to hear that.
 */
void mcpg__agent_group_disown(mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->group_high; i++)
        if (agent->groups[i].stage == MCPG_AGENT_GROUP_ASKED) return; /* perhaps it is this one: REGISTERED decides */
    send_leave(gid, 0, fx);
}

void mcpg__agent_group_members(mcpg_agent_t *agent, const mcpg_down_members_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, msg->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        for (uint32_t i = 0; i < msg->count; i++)
            if (msg->members[i].rank.v == agent->config.rank.v && mcpg__inc_eq(msg->members[i].inc, agent->inc))
                mcpg__agent_group_disown(agent, msg->gid, fx);
        return;
    }
    mcpg_agent_group_t *group = &agent->groups[index];
    if (msg->count > group->capacity) return;
    for (uint32_t i = 0; i < msg->count; i++) {
        const mcpg_group_member_t *m = &msg->members[i];
        if (m->slot.v >= msg->count || m->rank.v >= agent->config.max_ranks) continue;
        mcpg_agent_slot_t *s = &agent->slots[group->base + m->slot.v];
        s->rank = m->rank;
        s->inc = m->inc;
        s->awaiting = m->awaiting;
    }
    for (uint32_t i = msg->count; i < group->member_count; i++) {
        agent->slots[group->base + i].inc = (mcpg_incarnation_t){0, 0};
        agent->slots[group->base + i].awaiting = false;
    }
    group->member_count = msg->count;
    if (msg->count > group->order_count) group->order_count = msg->count; /* the group grew */
}

void mcpg__agent_group_send_join(mcpg_agent_t *agent, const mcpg_agent_call_t *call, mcpg_agent_effects_t *fx) {
    mcpg_up_join_t *up = &mcpg__agent_send(fx, MCPG_UP_JOIN)->u.join;
    up->call_id = call->call_id;
    up->gid = agent->groups[call->group].gid;
}

void mcpg__agent_group_join(mcpg_agent_t *agent, const mcpg_agent_call_join_t *call, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, call->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_NOT_FOUND, "this process has no such group: create it first");
        return;
    }
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (mcpg__agent_view_has_self(agent, group)) {
        mcpg__agent_call_answer(fx, call->call_id, MCPG_OK)->view = group->committed;
        return;
    }
    if (agent->stage == MCPG_AGENT_FAILED) {
        mcpg__agent_call_refuse_failed(agent, call->call_id, fx);
        return;
    }
    if (mcpg__agent_group_refused(group, call->call_id, fx)) return;
    mcpg_agent_call_t *open =
        mcpg__agent_call_open(agent, MCPG_AGENT_CALL_JOIN, call->call_id, index, call->timeout_us, fx);
    if (open != NULL && group->registered && mcpg__agent_up(agent)) mcpg__agent_group_send_join(agent, open, fx);
}

void mcpg__agent_group_leave(mcpg_agent_t *agent, const mcpg_agent_call_leave_t *call, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, call->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_NOT_FOUND, "this process has no such group");
        return;
    }
    /* What this rank holds since an ACK it never did: the ACK's number stands. */
    mcpg_agent_group_t *group = &agent->groups[index];
    if (!group->acked || call->next_seq < group->next_seq) group->next_seq = call->next_seq;
    mcpg__agent_group_end(agent, index, fx);
    (void)mcpg__agent_call_answer(fx, call->call_id, MCPG_OK);
}

/* ---- after a loss of contact ---- */

void mcpg__agent_group_send_leaves(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->group_high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_LEAVING) continue;
        group->left_us = agent->now.us;
        send_leave(group->gid, group->next_seq, fx);
    }
}

void mcpg__agent_group_heard(mcpg_agent_t *agent, uint64_t sent_us) {
    uint32_t high = agent->group_high;
    for (uint32_t i = 0; i < high; i++) {
        const mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage == MCPG_AGENT_GROUP_LEAVING && group->left_us != 0 && group->left_us < sent_us)
            mcpg__agent_group_drop(agent, i);
    }
}

void mcpg__agent_group_resend(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; renewed && i < agent->group_high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_OPEN) continue;
        bool seen = mcpg__agent_view_any(group->committed);
        if (seen || !mcpg__agent_group_restart(agent, i, fx)) group->registered = false;
    }
    agent->register_again_us = 0;
    mcpg__agent_group_send_registers(agent, fx);
}

void mcpg__agent_group_send_registers(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (!mcpg__agent_up(agent) || agent->rebuilding) return;
    for (uint32_t i = 0; i < agent->group_high; i++) {
        const mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage == MCPG_AGENT_GROUP_OPEN && !group->registered)
            mcpg__agent_group_send_register(agent, i, MCPG_AGENT_AUTO_CALL | i, fx);
    }
    for (uint32_t i = 0; i < agent->call_high; i++) {
        const mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_REGISTER && !call->installing)
            mcpg__agent_group_send_register(agent, call->group, call->call_id, fx);
    }
}

static bool again_due(const mcpg_agent_t *agent) {
    return agent->register_again_us != 0 && mcpg__agent_up(agent) && !agent->rebuilding;
}

void mcpg__agent_group_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (!again_due(agent) || agent->now.us < agent->register_again_us) return;
    agent->register_again_us = 0;
    mcpg__agent_group_send_registers(agent, fx);
}

uint64_t mcpg__agent_group_deadline(const mcpg_agent_t *agent) {
    return again_due(agent) ? agent->register_again_us : MCPG_AGENT_NEVER;
}

/* What the first declaration said stays; all that was learned since goes. */
static void forget_answers(mcpg_agent_t *agent, mcpg_agent_group_t *group) {
    for (uint32_t i = 0; i < group->capacity; i++) {
        mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        mcpg_rank_t rank = s->rank;
        memset(s, 0, sizeof(*s));
        s->rank = rank;
    }
    const mcpg_view_id_t none = {0, 0};
    group->stage = MCPG_AGENT_GROUP_ASKED;
    group->gid.v = 0;
    group->registered = group->isolated = group->syncing = group->acked = group->in_doubt = group->orphan = false;
    group->committed = group->preparing = group->highest = group->aborted = none;
    group->refused = MCPG_OK;
    group->member_count = 0;
    group->next_seq = group->again_us = 0;
}

bool mcpg__agent_group_restart(mcpg_agent_t *agent, uint32_t index, mcpg_agent_effects_t *fx) {
    mcpg_agent_group_t *group = &agent->groups[index];
    mcpg_agent_call_t *founding = NULL;
    for (uint32_t i = 0; i < agent->call_high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->group == index && call->kind == MCPG_AGENT_CALL_REGISTER && call->installing) founding = call;
    }
    if (founding == NULL) return false;
    uint64_t call_id = founding->call_id;
    mcpg__agent_report_drop_group(agent, index);
    mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_GROUP_GONE)->u.dp_group_gone.gid = group->gid;
    founding->installing = false;
    forget_answers(agent, group);
    mcpg__agent_call_end_others(agent, index, call_id, MCPG_UNAVAILABLE, "the group is being formed again", fx);
    return true;
}
