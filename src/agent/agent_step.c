/* agent_step.c: memory layout, the effect buffer and the dispatch of events of the agent machine.
 *
 * It validates an event and makes sure that the worst case fits before anything changes; it must never decide anything
 * itself.
 */
#include "agent/agent_state.h"

static size_t round16(size_t size) {
    return (size + 15u) & ~(size_t)15u;
}

static uint32_t failed_cap_of(const mcpg_agent_config_t *config) {
    return 4u * config->max_ranks + 4u * config->max_reports;
}

size_t mcpg_agent_size(const mcpg_agent_config_t *config) {
    size_t size = round16(sizeof(mcpg_agent_t));
    size += round16((size_t)config->max_ranks * sizeof(mcpg_agent_rank_t));
    size += round16((size_t)config->max_groups * sizeof(mcpg_agent_group_t));
    size += round16((size_t)config->max_slots_total * sizeof(mcpg_agent_slot_t));
    size += round16((size_t)config->max_calls * sizeof(mcpg_agent_call_t));
    size += round16((size_t)config->max_reports * sizeof(mcpg_agent_report_t));
    size += round16((size_t)failed_cap_of(config) * sizeof(mcpg_member_t));
    return size;
}

static bool config_valid(const mcpg_agent_config_t *config) {
    const mcpg_timers_t *timers = &config->timers;
    if (config->max_ranks == 0 || config->max_ranks > MCPG_MAX_RANKS || config->rank.v >= config->max_ranks)
        return false;
    if (config->max_groups == 0 || config->max_groups > MCPG_MAX_GROUPS) return false;
    if (config->max_slots_total == 0 || config->max_slots_total > MCPG_MAX_SLOTS_TOTAL) return false;
    if (config->max_calls == 0 || config->max_calls > 65536u || config->max_reports == 0 ||
        config->max_reports > 65536u)
        return false;
    if (config->endpoint_len > MCPG_ENDPOINT_CAP || config->session.v == 0 || config->attach_timeout_us == 0)
        return false;
    return timers->heartbeat_us != 0 && timers->offline_us != 0 && timers->ack_us != 0 && timers->ack_added_us != 0 &&
           timers->coordinator_grace_us != 0;
}

mcpg_status_t mcpg_agent_init(void *mem, size_t size, const mcpg_agent_config_t *config, mcpg_agent_t **out) {
    if (mem == NULL || config == NULL || out == NULL || !config_valid(config)) return MCPG_INVALID_ARGUMENT;
    if (size < mcpg_agent_size(config)) return MCPG_LIMIT;
    uint8_t *at = (uint8_t *)mem;
    mcpg_agent_t *agent = (mcpg_agent_t *)mem;
    at += round16(sizeof(mcpg_agent_t));
    agent->ranks = (mcpg_agent_rank_t *)(void *)at;
    at += round16((size_t)config->max_ranks * sizeof(mcpg_agent_rank_t));
    agent->groups = (mcpg_agent_group_t *)(void *)at;
    at += round16((size_t)config->max_groups * sizeof(mcpg_agent_group_t));
    agent->slots = (mcpg_agent_slot_t *)(void *)at;
    at += round16((size_t)config->max_slots_total * sizeof(mcpg_agent_slot_t));
    agent->calls = (mcpg_agent_call_t *)(void *)at;
    at += round16((size_t)config->max_calls * sizeof(mcpg_agent_call_t));
    agent->reports = (mcpg_agent_report_t *)(void *)at;
    at += round16((size_t)config->max_reports * sizeof(mcpg_agent_report_t));
    agent->failed = (mcpg_member_t *)(void *)at;
    agent->failed_cap = failed_cap_of(config);
    agent->config = *config;
    agent->stage = MCPG_AGENT_NEW;
    agent->armed_us = MCPG_AGENT_NEVER;
    agent->heartbeat_us = config->timers.heartbeat_us;
    agent->offline_us = config->timers.offline_us;
    agent->random = mcpg__digest_u64(config->seed, config->rank.v);
    *out = agent;
    return MCPG_OK;
}

void mcpg_agent_effects_worst(const mcpg_agent_config_t *config, uint32_t *item_cap_out, size_t *arena_cap_out) {
    size_t send = round16(sizeof(mcpg_up_msg_t)) + 16u;
    size_t done = round16(sizeof(mcpg_agent_call_done_t)) + round16(MCPG_TEXT_CAP) + 32u;
    size_t keys = 3u * round16(MCPG_KEY_CAP) + 48u;
    size_t arena = 4096u + MCPG_ENDPOINT_CAP + 2u * MCPG_TEXT_CAP;
    arena += (size_t)config->max_ranks * (2u * send + MCPG_ENDPOINT_CAP + 16u);
    arena +=
        (size_t)config->max_ranks * (2u * sizeof(mcpg_member_t) + sizeof(mcpg_leave_t)) + sizeof(mcpg_down_commit_t);
    arena += (size_t)config->max_groups * (5u * send + 2u * keys + sizeof(mcpg_group_report_t) + 128u);
    arena += 2u * sizeof(mcpg_down_msg_t);
    arena += (size_t)config->max_calls * (done + 2u * send + keys);
    arena +=
        (size_t)config->max_slots_total * (3u * sizeof(uint32_t) + 2u * sizeof(mcpg_member_t) + sizeof(mcpg_leave_t));
    arena += (size_t)config->max_reports * (send + 16u) + (size_t)failed_cap_of(config) * sizeof(mcpg_member_t);
    *arena_cap_out = arena;
    *item_cap_out =
        32u + 6u * config->max_ranks + 8u * config->max_groups + 6u * config->max_calls + 3u * config->max_reports;
}

mcpg_agent_effect_t *mcpg__agent_emit(mcpg_agent_effects_t *fx, mcpg_agent_fx_kind_t kind) {
    MCPG_ASSERT(fx->count < fx->cap);
    mcpg_agent_effect_t *effect = &fx->items[fx->count++];
    memset(effect, 0, sizeof(*effect));
    effect->kind = kind;
    return effect;
}

void *mcpg__agent_take(mcpg_agent_effects_t *fx, size_t size) {
    void *room = mcpg__fx_take(fx->arena, &fx->arena_used, fx->arena_cap, size);
    memset(room, 0, size);
    return room;
}

mcpg_bytes_t mcpg__agent_copy(mcpg_agent_effects_t *fx, const void *data, uint32_t len) {
    if (len == 0) return (mcpg_bytes_t){.ptr = NULL, .len = 0};
    uint8_t *room = (uint8_t *)mcpg__agent_take(fx, len);
    memcpy(room, data, len);
    return (mcpg_bytes_t){.ptr = room, .len = len};
}

mcpg_up_msg_t *mcpg__agent_send(mcpg_agent_effects_t *fx, mcpg_up_kind_t kind) {
    mcpg_up_msg_t *msg = (mcpg_up_msg_t *)mcpg__agent_take(fx, sizeof(*msg));
    msg->kind = kind;
    mcpg__agent_emit(fx, MCPG_AGENT_FX_SEND)->u.send = msg;
    return msg;
}

void mcpg__agent_notify(mcpg_agent_effects_t *fx, const mcpg_agent_notify_t *notify) {
    mcpg__agent_emit(fx, MCPG_AGENT_FX_NOTIFY)->u.notify = *notify;
}

/* ---- text ---- */

mcpg_agent_text_t mcpg__agent_text(mcpg_agent_effects_t *fx) {
    return (mcpg_agent_text_t){.buf = (uint8_t *)mcpg__agent_take(fx, MCPG_TEXT_CAP), .len = 0};
}

void mcpg__agent_text_add(mcpg_agent_text_t *text, const char *words) {
    size_t len = strlen(words);
    size_t room = MCPG_TEXT_CAP - 1u - text->len;
    if (len > room) len = room;
    memcpy(text->buf + text->len, words, len);
    text->len += (uint32_t)len;
}

void mcpg__agent_text_add_u64(mcpg_agent_text_t *text, uint64_t value) {
    char digits[21];
    size_t at = sizeof(digits) - 1u;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + (int)(value % 10u));
        value /= 10u;
    } while (value != 0);
    mcpg__agent_text_add(text, digits + at);
}

void mcpg__agent_text_add_set(mcpg_agent_text_t *text, const mcpg_rankset_t *set) {
    uint32_t total = mcpg__rankset_count(set), said = 0;
    uint32_t most = total > 10u ? 9u : total;
    for (uint32_t r = mcpg__rankset_next(set, 0); r < MCPG_MAX_RANKS && said < most;
         r = mcpg__rankset_next(set, r + 1u)) {
        if (said > 0) mcpg__agent_text_add(text, said + 1u == total ? " and " : ", ");
        mcpg__agent_text_add_u64(text, r);
        said++;
    }
    if (said < total) {
        mcpg__agent_text_add(text, " and ");
        mcpg__agent_text_add_u64(text, total - said);
        mcpg__agent_text_add(text, " more");
    }
}

/* ---- dispatch ---- */

static bool is_call(mcpg_agent_ev_kind_t kind) {
    return kind >= MCPG_AGENT_EV_CALL_REGISTER && kind <= MCPG_AGENT_EV_CALL_DETACH;
}

uint64_t mcpg_agent_event_call(const mcpg_agent_event_t *event) {
    switch (event->kind) {
    case MCPG_AGENT_EV_CALL_REGISTER:
        return event->u.call_register.call_id;
    case MCPG_AGENT_EV_CALL_JOIN:
        return event->u.call_join.call_id;
    case MCPG_AGENT_EV_CALL_PROPOSE:
        return event->u.call_propose.call_id;
    case MCPG_AGENT_EV_CALL_SYNC:
        return event->u.call_sync.call_id;
    case MCPG_AGENT_EV_CALL_LEAVE:
        return event->u.call_leave.call_id;
    case MCPG_AGENT_EV_CALL_DETACH:
        return event->u.call_detach.call_id;
    case MCPG_AGENT_EV_CONNECTED:
    case MCPG_AGENT_EV_DISCONNECTED:
    case MCPG_AGENT_EV_TIMER:
    case MCPG_AGENT_EV_MSG:
    case MCPG_AGENT_EV_LINK:
    case MCPG_AGENT_EV_DEATH:
    case MCPG_AGENT_EV_OP_FAILED:
    case MCPG_AGENT_EV_HELD:
    case MCPG_AGENT_EV_VIEW_ASKED:
    case MCPG_AGENT_EV_VIEW_TOLD:
    case MCPG_AGENT_EV__COUNT:
        break;
    }
    return 0;
}

static mcpg_status_t event_valid(mcpg_agent_t *agent, const mcpg_agent_event_t *event) {
    if ((unsigned)event->kind >= (unsigned)MCPG_AGENT_EV__COUNT) return MCPG_INVALID_ARGUMENT;
    if (event->kind == MCPG_AGENT_EV_MSG &&
        (event->u.msg == NULL || (unsigned)event->u.msg->kind >= (unsigned)MCPG_DOWN__COUNT))
        return MCPG_INVALID_ARGUMENT;
    if (event->kind == MCPG_AGENT_EV_VIEW_TOLD &&
        (event->u.view_told == NULL ||
         (event->u.view_told->kind != MCPG_DOWN_COMMIT && event->u.view_told->kind != MCPG_DOWN_ABORT)))
        return MCPG_INVALID_ARGUMENT;
    if (event->kind == MCPG_AGENT_EV_OP_FAILED &&
        (event->u.op_failed.failed_count == 0 || event->u.op_failed.failed_count > agent->config.max_ranks))
        return MCPG_INVALID_ARGUMENT;
    if (!is_call(event->kind)) return MCPG_OK;
    uint64_t call_id = mcpg_agent_event_call(event);
    if (call_id >= MCPG_AGENT_AUTO_CALL || mcpg__agent_call_find(agent, call_id) != NULL) return MCPG_INVALID_ARGUMENT;
    return MCPG_OK;
}

static void dispatch_msg(mcpg_agent_t *agent, const mcpg_down_msg_t *msg, mcpg_agent_effects_t *fx) {
    bool greeting = msg->kind == MCPG_DOWN_WELCOME || msg->kind == MCPG_DOWN_REFUSED;
    /* What a stream that was given up still delivers is not heard. */
    if (agent->stage != (greeting ? MCPG_AGENT_ATTACHING : MCPG_AGENT_ATTACHED)) return;
    agent->last_heard_us = agent->now.us;
    switch (msg->kind) {
    case MCPG_DOWN_WELCOME:
        mcpg__agent_session_welcome(agent, &msg->u.welcome, fx);
        return;
    case MCPG_DOWN_REFUSED:
        mcpg__agent_session_refused(agent, &msg->u.refused, fx);
        return;
    case MCPG_DOWN_HEARTBEAT_REPLY: /* the coordinator compares the digests and sends again */
        mcpg__agent_session_heard(agent, msg->u.heartbeat_reply.sent_us);
        mcpg__agent_group_heard(agent, msg->u.heartbeat_reply.sent_us);
        return;
    case MCPG_DOWN_RANK_STATES:
        mcpg__agent_link_states(agent, &msg->u.rank_states, fx);
        return;
    case MCPG_DOWN_REGISTERED:
        mcpg__agent_group_registered(agent, &msg->u.registered, fx);
        return;
    case MCPG_DOWN_MEMBERS:
        mcpg__agent_group_members(agent, &msg->u.members, fx);
        return;
    case MCPG_DOWN_PREPARE:
        mcpg__agent_view_prepare(agent, &msg->u.prepare, fx);
        return;
    case MCPG_DOWN_COMMIT:
        mcpg__agent_view_commit(agent, &msg->u.commit, fx);
        return;
    case MCPG_DOWN_ABORT:
        mcpg__agent_view_abort(agent, &msg->u.abort, fx);
        return;
    case MCPG_DOWN_REPLY:
        mcpg__agent_call_reply(agent, &msg->u.reply, fx);
        return;
    case MCPG_DOWN_RECONCILED:
        mcpg__agent_report_reconciled(agent, &msg->u.reconciled, fx);
        return;
    case MCPG_DOWN_SYNCING:
        mcpg__agent_view_syncing(agent, &msg->u.syncing, fx);
        return;
    case MCPG_DOWN__COUNT:
        return;
    }
}

static void dispatch_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    mcpg__agent_session_timer(agent, fx);
    mcpg__agent_group_timer(agent, fx);
    mcpg__agent_doubt_timer(agent, fx);
    mcpg__agent_report_timer(agent, fx);
    mcpg__agent_call_timer(agent, fx);
}

static void dispatch(mcpg_agent_t *agent, const mcpg_agent_event_t *event, mcpg_agent_effects_t *fx) {
    switch (event->kind) {
    case MCPG_AGENT_EV_CONNECTED:
        mcpg__agent_session_connected(agent, fx);
        return;
    case MCPG_AGENT_EV_DISCONNECTED:
        mcpg__agent_session_disconnected(agent, fx);
        return;
    case MCPG_AGENT_EV_TIMER:
        dispatch_timer(agent, fx);
        return;
    case MCPG_AGENT_EV_MSG:
        dispatch_msg(agent, event->u.msg, fx);
        return;
    case MCPG_AGENT_EV_LINK:
        mcpg__agent_link_event(agent, &event->u.link, fx);
        return;
    case MCPG_AGENT_EV_DEATH:
        mcpg__agent_link_death(agent, &event->u.death, fx);
        return;
    case MCPG_AGENT_EV_OP_FAILED:
        mcpg__agent_report_event(agent, &event->u.op_failed, fx);
        return;
    case MCPG_AGENT_EV_HELD:
        mcpg__agent_view_held(agent, &event->u.held, fx);
        return;
    case MCPG_AGENT_EV_VIEW_ASKED:
        mcpg__agent_doubt_asked(agent, &event->u.view_asked, fx);
        return;
    case MCPG_AGENT_EV_VIEW_TOLD:
        mcpg__agent_doubt_told(agent, event->u.view_told, fx);
        return;
    case MCPG_AGENT_EV_CALL_REGISTER:
        mcpg__agent_group_register(agent, &event->u.call_register, fx);
        return;
    case MCPG_AGENT_EV_CALL_JOIN:
        mcpg__agent_group_join(agent, &event->u.call_join, fx);
        return;
    case MCPG_AGENT_EV_CALL_PROPOSE:
        mcpg__agent_call_propose(agent, &event->u.call_propose, fx);
        return;
    case MCPG_AGENT_EV_CALL_SYNC:
        mcpg__agent_call_sync(agent, &event->u.call_sync, fx);
        return;
    case MCPG_AGENT_EV_CALL_LEAVE:
        mcpg__agent_group_leave(agent, &event->u.call_leave, fx);
        return;
    case MCPG_AGENT_EV_CALL_DETACH:
        mcpg__agent_session_detach(agent, event->u.call_detach.call_id, fx);
        return;
    case MCPG_AGENT_EV__COUNT:
        return;
    }
}

/* ARM_TIMER when the earliest deadline has changed, and after each TIMER, which used the armed one up. */
static void rearm(mcpg_agent_t *agent, bool fired, mcpg_agent_effects_t *fx) {
    uint64_t due[5] = {mcpg__agent_session_deadline(agent), mcpg__agent_group_deadline(agent),
                       mcpg__agent_doubt_deadline(agent), mcpg__agent_report_deadline(agent),
                       mcpg__agent_call_deadline(agent)};
    uint64_t earliest = MCPG_AGENT_NEVER;
    for (uint32_t i = 0; i < 5; i++)
        if (due[i] < earliest) earliest = due[i];
    if (earliest == agent->armed_us && !fired) return;
    agent->armed_us = earliest;
    mcpg__agent_emit(fx, MCPG_AGENT_FX_ARM_TIMER)->u.arm_timer.us = earliest;
}

/* A host's clock is monotonic; an event that says otherwise is taken to happen now. What comes much later than the
 * timer that was armed, or than the event before, comes after a time in which this process did not run: it counts for
 * nobody.
 */
static void advance(mcpg_agent_t *agent, mcpg_time_t now) {
    if (now.us <= agent->now.us) return;
    uint64_t ran_until_us = agent->armed_us > agent->now.us ? agent->armed_us : agent->now.us;
    agent->now = now;
    if (now.us <= ran_until_us || now.us - ran_until_us <= MCPG_AGENT_PAUSE_US) return;
    mcpg__agent_session_paused(agent, now.us - ran_until_us);
    mcpg__agent_call_paused(agent, now.us - ran_until_us);
}

mcpg_status_t mcpg_agent_step(mcpg_agent_t *agent, const mcpg_agent_event_t *event, mcpg_agent_effects_t *effects) {
    if (agent == NULL || event == NULL || effects == NULL) return MCPG_INVALID_ARGUMENT;
    MCPG_TRY(event_valid(agent, event));
    uint32_t items;
    size_t arena;
    mcpg_agent_effects_worst(&agent->config, &items, &arena);
    if (effects->cap - effects->count < items || effects->arena_cap - effects->arena_used < arena) return MCPG_LIMIT;
    if (agent->stage == MCPG_AGENT_STOPPED) {
        if (is_call(event->kind))
            mcpg__agent_call_refuse(effects, mcpg_agent_event_call(event), MCPG_SHUTTING_DOWN,
                                    "the context has been closed: create a new one");
        return MCPG_OK;
    }
    advance(agent, event->now);
    dispatch(agent, event, effects);
    rearm(agent, event->kind == MCPG_AGENT_EV_TIMER, effects);
    if (agent->stop_due) {
        agent->stop_due = false;
        (void)mcpg__agent_emit(effects, MCPG_AGENT_FX_STOP);
    }
    return MCPG_OK;
}

/* ---- queries ---- */

bool mcpg_agent_attached(const mcpg_agent_t *agent, mcpg_incarnation_t *inc_out) {
    if (inc_out != NULL) *inc_out = agent->inc;
    return agent->stage == MCPG_AGENT_ATTACHED;
}

uint8_t mcpg_agent_rank_state(const mcpg_agent_t *agent, mcpg_rank_t rank) {
    if (rank.v >= agent->config.max_ranks) return MCPG_RANK_OFFLINE;
    return agent->ranks[rank.v].state;
}

bool mcpg_agent_peer_ok(const mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_slot_t slot) {
    uint32_t index = mcpg__agent_group_find(agent, gid);
    if (index == MCPG_AGENT_NO_INDEX || slot.v >= agent->groups[index].capacity) return false;
    const mcpg_agent_slot_t *s = &agent->slots[agent->groups[index].base + slot.v];
    if (mcpg__inc_none(s->inc) || s->rank.v >= agent->config.max_ranks) return false;
    const mcpg_agent_rank_t *r = &agent->ranks[s->rank.v];
    bool reachable = s->rank.v == agent->config.rank.v || r->endpoint_len > 0;
    bool member = s->awaiting || (s->active && mcpg__inc_eq(s->view_inc, s->inc));
    return reachable && member && r->state == MCPG_RANK_HEALTHY && mcpg__inc_eq(r->inc, s->inc);
}

bool mcpg_agent_view(const mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_view_id_t *id_out, mcpg_rankset_t *active_out,
                     mcpg_incarnation_t *incs_out, uint32_t cap) {
    uint32_t index = mcpg__agent_group_find(agent, gid);
    if (index == MCPG_AGENT_NO_INDEX) return false;
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (mcpg__view_eq(group->committed, (mcpg_view_id_t){0, 0})) return false;
    *id_out = group->committed;
    mcpg__rankset_clear(active_out);
    for (uint32_t i = 0; i < group->capacity && i < cap; i++) {
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (s->active) mcpg__rankset_add(active_out, i);
        if (incs_out != NULL) incs_out[i] = s->active ? s->view_inc : s->inc;
    }
    return true;
}
