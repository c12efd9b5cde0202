/* agent_call.c: the table of calls of the API: each is answered exactly once (I5), whatever happens to the coordinator.
 *
 * PROPOSE is never sent twice, so a lost contact leaves its outcome unknown; the others are idempotent and are sent
 * again after a re-attach until their own time is over. It must never answer a call that is not in the table.
 */
#include "agent/agent_state.h"

mcpg_agent_call_t *mcpg__agent_call_find(mcpg_agent_t *agent, uint64_t call_id) {
    for (uint32_t i = 0; i < agent->call_high; i++)
        if (agent->calls[i].kind != MCPG_AGENT_CALL_FREE && agent->calls[i].call_id == call_id) return &agent->calls[i];
    return NULL;
}

mcpg_agent_call_done_t *mcpg__agent_call_answer(mcpg_agent_effects_t *fx, uint64_t call_id, mcpg_status_t status) {
    mcpg_agent_call_done_t *done = (mcpg_agent_call_done_t *)mcpg__agent_take(fx, sizeof(*done));
    done->call_id = call_id;
    done->status = status;
    mcpg__agent_emit(fx, MCPG_AGENT_FX_CALL_DONE)->u.call_done = done;
    return done;
}

static mcpg_bytes_t sentence(mcpg_agent_effects_t *fx, const char *words) {
    mcpg_agent_text_t text = mcpg__agent_text(fx);
    mcpg__agent_text_add(&text, words);
    return mcpg__agent_text_bytes(&text);
}

void mcpg__agent_call_refuse(mcpg_agent_effects_t *fx, uint64_t call_id, mcpg_status_t status, const char *words) {
    mcpg_bytes_t text = sentence(fx, words);
    mcpg__agent_call_answer(fx, call_id, status)->text = text;
}

/* A session that another process has taken over is told so; every other refusal is the coordinator's want. */
void mcpg__agent_call_refuse_failed(const mcpg_agent_t *agent, uint64_t call_id, mcpg_agent_effects_t *fx) {
    if (agent->refusal == MCPG_INVALID_STATE && agent->refusal_len > 0) {
        mcpg_bytes_t text = mcpg__agent_copy(fx, agent->refusal_text, agent->refusal_len);
        mcpg__agent_call_answer(fx, call_id, MCPG_INVALID_STATE)->text = text;
        return;
    }
    mcpg__agent_call_refuse(fx, call_id, MCPG_UNAVAILABLE,
                            "the coordinator refused this process: create a new context");
}

mcpg_agent_call_t *mcpg__agent_call_open(mcpg_agent_t *agent, mcpg_agent_call_kind_t kind, uint64_t call_id,
                                         uint32_t group, uint64_t timeout_us, mcpg_agent_effects_t *fx) {
    uint32_t index = 0;
    while (index < agent->call_high && agent->calls[index].kind != MCPG_AGENT_CALL_FREE) index++;
    if (index == agent->config.max_calls) {
        mcpg__agent_call_refuse(fx, call_id, MCPG_LIMIT,
                                "too many calls are open in this process: wait for one to return");
        return NULL;
    }
    if (index == agent->call_high) agent->call_high++;
    mcpg_agent_call_t *call = &agent->calls[index];
    memset(call, 0, sizeof(*call));
    call->kind = (uint8_t)kind;
    call->call_id = call_id;
    call->group = group;
    call->timeout_us = timeout_us == 0 ? MCPG_AGENT_CALL_TIMEOUT_US : timeout_us;
    call->deadline_us = mcpg__agent_after(agent->now, call->timeout_us);
    call->since = agent->groups[group].committed;
    agent->calls_opened++;
    return call;
}

mcpg_agent_call_done_t *mcpg__agent_call_close(mcpg_agent_t *agent, mcpg_agent_call_t *call, mcpg_status_t status,
                                               mcpg_agent_effects_t *fx) {
    mcpg_agent_call_done_t *done = mcpg__agent_call_answer(fx, call->call_id, status);
    memset(call, 0, sizeof(*call));
    while (agent->call_high > 0 && agent->calls[agent->call_high - 1u].kind == MCPG_AGENT_CALL_FREE) agent->call_high--;
    agent->calls_answered++;
    return done;
}

static void close_with(mcpg_agent_t *agent, mcpg_agent_call_t *call, mcpg_status_t status, const char *words,
                       mcpg_agent_effects_t *fx) {
    mcpg_bytes_t text = sentence(fx, words);
    mcpg__agent_call_close(agent, call, status, fx)->text = text;
}

/* ---- propose ---- */

static uint64_t propose_patience(const mcpg_agent_t *agent, uint64_t wait_us) {
    uint64_t barriers_us = 10u * (agent->config.timers.ack_us + agent->config.timers.ack_added_us);
    return wait_us > UINT64_MAX / 2u ? UINT64_MAX / 2u : wait_us + barriers_us;
}

static uint32_t fill_stamps(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, const mcpg_rankset_t *slots,
                            mcpg_member_t *out) {
    uint32_t count = 0;
    for (uint32_t i = mcpg__rankset_next(slots, 0); i < group->capacity; i = mcpg__rankset_next(slots, i + 1u)) {
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (s->active) out[count++] = (mcpg_member_t){.slot = {i}, .rank = s->view_rank, .inc = s->view_inc};
    }
    return count;
}

void mcpg__agent_call_propose(mcpg_agent_t *agent, const mcpg_agent_call_propose_t *call, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, call->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_NOT_FOUND, "this process has no such group: create it first");
        return;
    }
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (agent->stage == MCPG_AGENT_FAILED) {
        mcpg__agent_call_refuse_failed(agent, call->call_id, fx);
        return;
    }
    if (!mcpg__agent_up(agent)) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_UNAVAILABLE,
                                "contact to the coordinator is lost: try again when it is back");
        return;
    }
    if (mcpg__agent_group_refused(group, call->call_id, fx)) return;
    if (mcpg__rankset_meets(&call->activate, &call->deactivate)) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_INVALID_ARGUMENT,
                                "a rank is to be activated and deactivated: name it once");
        return;
    }
    uint64_t patience_us = propose_patience(agent, call->wait_us);
    if (mcpg__agent_call_open(agent, MCPG_AGENT_CALL_PROPOSE, call->call_id, index, patience_us, fx) == NULL) return;
    mcpg_up_propose_t *up = &mcpg__agent_send(fx, MCPG_UP_PROPOSE)->u.propose;
    mcpg_member_t *stamps = (mcpg_member_t *)mcpg__agent_take(fx, group->capacity * sizeof(*stamps));
    up->call_id = call->call_id;
    up->gid = call->gid;
    up->activate = call->activate;
    up->deactivate = call->deactivate;
    up->stamp_count = fill_stamps(agent, group, &call->deactivate, stamps);
    up->stamps = stamps;
    up->expected_epoch = call->expected_epoch;
    up->wait_us = call->wait_us;
}

/* ---- sync ---- */

static void send_sync(mcpg_agent_t *agent, const mcpg_agent_call_t *call, mcpg_agent_effects_t *fx) {
    mcpg_up_sync_enter_t *up = &mcpg__agent_send(fx, MCPG_UP_SYNC_ENTER)->u.sync_enter;
    up->call_id = call->call_id;
    up->gid = agent->groups[call->group].gid;
    up->failed = call->failed;
    up->first_failed_seq = call->first_failed_seq;
}

void mcpg__agent_call_sync(mcpg_agent_t *agent, const mcpg_agent_call_sync_t *call, mcpg_agent_effects_t *fx) {
    uint32_t index = mcpg__agent_group_find(agent, call->gid);
    if (index == MCPG_AGENT_NO_INDEX) {
        mcpg__agent_call_refuse(fx, call->call_id, MCPG_NOT_FOUND, "this process has no such group: create it first");
        return;
    }
    const mcpg_agent_group_t *group = &agent->groups[index];
    if (!group->syncing && mcpg__rankset_empty(&call->failed) && call->first_failed_seq == MCPG_NO_SEQ) {
        mcpg__agent_call_answer(fx, call->call_id, MCPG_NO_PENDING)->view = group->committed;
        return;
    }
    if (agent->stage == MCPG_AGENT_FAILED) {
        mcpg__agent_call_refuse_failed(agent, call->call_id, fx);
        return;
    }
    if (mcpg__agent_group_refused(group, call->call_id, fx)) return;
    mcpg_agent_call_t *open =
        mcpg__agent_call_open(agent, MCPG_AGENT_CALL_SYNC, call->call_id, index, call->timeout_us, fx);
    if (open == NULL) return;
    open->failed = call->failed;
    open->first_failed_seq = call->first_failed_seq;
    uint64_t before_us =
        open->timeout_us / 4u < MCPG_AGENT_ASK_AGAIN_US ? open->timeout_us / 4u : MCPG_AGENT_ASK_AGAIN_US;
    open->ask_again_us = open->deadline_us - before_us;
    if (mcpg__agent_up(agent)) send_sync(agent, open, fx);
}

/* ---- answers ---- */

void mcpg__agent_call_reply(mcpg_agent_t *agent, const mcpg_down_reply_t *msg, mcpg_agent_effects_t *fx) {
    mcpg_agent_call_t *call = mcpg__agent_call_find(agent, msg->call_id);
    if (call == NULL || call->kind == MCPG_AGENT_CALL_REGISTER) return;
    if (msg->status == MCPG_IN_PROGRESS) { /* not the answer: who is waited for */
        call->missing = msg->dropped;
        return;
    }
    /* I8: "applied" before the view is here would be read as the old one; the COMMIT answers instead. */
    bool waits = call->kind == MCPG_AGENT_CALL_JOIN && !mcpg__agent_view_has_self(agent, &agent->groups[call->group]);
    if (msg->status == MCPG_OK && waits) return;
    uint64_t term = agent->groups[call->group].committed.term;
    mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, (mcpg_status_t)msg->status, fx);
    done->view = (mcpg_view_id_t){.term = term, .epoch = msg->epoch};
    done->dropped_any = msg->dropped_any;
    done->dropped = msg->dropped;
    done->text = mcpg__agent_copy(fx, msg->text.ptr, msg->text.len < MCPG_TEXT_CAP ? msg->text.len : MCPG_TEXT_CAP);
}

static mcpg_agent_call_done_t *answer_committed(mcpg_agent_t *agent, mcpg_agent_call_t *call,
                                                const mcpg_down_commit_t *commit, mcpg_agent_effects_t *fx) {
    const mcpg_agent_group_t *group = &agent->groups[call->group];
    bool sync = call->kind == MCPG_AGENT_CALL_SYNC;
    mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, MCPG_OK, fx);
    done->gid = group->gid;
    done->slot = group->slot;
    done->view = commit->view.id;
    if (!sync) return done;
    done->failed = commit->sync_failed;
    done->first_failed_seq = commit->sync_first_failed_seq;
    done->resume_seq = commit->switch_seq;
    return done;
}

void mcpg__agent_call_committed(mcpg_agent_t *agent, uint32_t group, const mcpg_down_commit_t *commit,
                                mcpg_agent_effects_t *fx) {
    bool inside = mcpg__agent_view_has_self(agent, &agent->groups[group]);
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE || call->group != group) continue;
        bool answers = false;
        switch ((mcpg_agent_call_kind_t)call->kind) {
        case MCPG_AGENT_CALL_REGISTER:
            answers = call->installing && inside;
            break;
        case MCPG_AGENT_CALL_JOIN:
            answers = inside;
            break;
        case MCPG_AGENT_CALL_SYNC:
            answers = commit->sync;
            break;
        case MCPG_AGENT_CALL_PROPOSE: /* REPLY answers it */
        case MCPG_AGENT_CALL_FREE:
            break;
        }
        if (answers) (void)answer_committed(agent, call, commit, fx);
    }
}

void mcpg__agent_call_synced(mcpg_agent_t *agent, uint32_t group, const mcpg_down_commit_t *commit,
                             mcpg_agent_effects_t *fx) {
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind != MCPG_AGENT_CALL_SYNC || call->group != group) continue;
        if (call->first_failed_seq >= commit->switch_seq) continue; /* of a failure since then, or of none here */
        mcpg_view_id_t since = call->since;
        mcpg_agent_call_done_t *done = answer_committed(agent, call, commit, fx);
        if (mcpg__view_cmp(done->view, since) < 0) done->view = since; /* I8 */
    }
}

void mcpg__agent_call_lost(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind != MCPG_AGENT_CALL_PROPOSE) continue;
        mcpg_view_id_t view = agent->groups[call->group].committed;
        mcpg_bytes_t text = sentence(fx, "contact to the coordinator was lost before the answer: read the epoch");
        mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, MCPG_OUTCOME_UNKNOWN, fx);
        done->view = view;
        done->text = text;
    }
}

void mcpg__agent_call_end_all(mcpg_agent_t *agent, mcpg_status_t status, const char *words, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE) continue;
        uint32_t group = call->group;
        bool unready = call->kind == MCPG_AGENT_CALL_REGISTER && agent->stage == MCPG_AGENT_FAILED;
        close_with(agent, call, status, words, fx);
        if (unready)
            mcpg__agent_group_end(agent, group, fx);
        else if (agent->groups[group].stage == MCPG_AGENT_GROUP_ASKED)
            mcpg__agent_group_drop(agent, group);
    }
}

void mcpg__agent_call_end_others(mcpg_agent_t *agent, uint32_t group, uint64_t call_id, mcpg_status_t status,
                                 const char *words, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE || call->group != group || call->call_id == call_id) continue;
        close_with(agent, call, status, words, fx);
    }
}

void mcpg__agent_call_end_group(mcpg_agent_t *agent, uint32_t group, mcpg_status_t status, const char *words,
                                mcpg_agent_effects_t *fx) {
    mcpg__agent_call_end_others(agent, group, MCPG_AGENT_AUTO_CALL, status, words, fx); /* no call's id */
}

void mcpg__agent_call_resend(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->call_high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        switch ((mcpg_agent_call_kind_t)call->kind) {
        case MCPG_AGENT_CALL_JOIN:
            if (agent->groups[call->group].registered) mcpg__agent_group_send_join(agent, call, fx);
            break;
        case MCPG_AGENT_CALL_SYNC:
            send_sync(agent, call, fx);
            break;
        case MCPG_AGENT_CALL_REGISTER: /* with the groups */
        case MCPG_AGENT_CALL_PROPOSE:
        case MCPG_AGENT_CALL_FREE:
            break;
        }
    }
}

/* ---- time-out ---- */

void mcpg__agent_call_paused(mcpg_agent_t *agent, uint64_t late_us) {
    for (uint32_t i = 0; i < agent->call_high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE) continue;
        call->deadline_us = mcpg__agent_after((mcpg_time_t){call->deadline_us}, late_us);
        if (call->ask_again_us != 0) call->ask_again_us = mcpg__agent_after((mcpg_time_t){call->ask_again_us}, late_us);
    }
}

static void add_within(mcpg_agent_text_t *text, const char *words, uint64_t timeout_us) {
    mcpg__agent_text_add(text, words);
    mcpg__agent_text_add(text, " within ");
    mcpg__agent_text_add_u64(text, timeout_us / 1000u);
    mcpg__agent_text_add(text, " ms");
}

/* Which founders keep the group from being Ready. */
static void add_missing(const mcpg_agent_t *agent, const mcpg_agent_group_t *group, mcpg_agent_text_t *text) {
    mcpg_rankset_t absent, ill;
    mcpg__rankset_clear(&absent);
    mcpg__rankset_clear(&ill);
    for (uint32_t i = 0; i < group->order_count; i++) {
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (mcpg__inc_none(s->inc))
            mcpg__rankset_add(&absent, s->rank.v);
        else if (agent->ranks[s->rank.v].state != MCPG_RANK_HEALTHY)
            mcpg__rankset_add(&ill, s->rank.v);
    }
    if (!mcpg__rankset_empty(&absent)) {
        mcpg__agent_text_add(text, ": rank ");
        mcpg__agent_text_add_set(text, &absent);
        mcpg__agent_text_add(text, " did not create the group");
    }
    if (!mcpg__rankset_empty(&ill)) {
        mcpg__agent_text_add(text, mcpg__rankset_empty(&absent) ? ": rank " : ", rank ");
        mcpg__agent_text_add_set(text, &ill);
        mcpg__agent_text_add(text, " is not HEALTHY (no link to every other rank)");
    }
}

/* Who has not called sync_after_failure: as the coordinator said, else one of the active ranks besides this one. */
static void add_waited_for(const mcpg_agent_t *agent, const mcpg_agent_call_t *call, mcpg_agent_text_t *text) {
    const mcpg_agent_group_t *group = &agent->groups[call->group];
    bool told = !mcpg__rankset_empty(&call->missing);
    mcpg_rankset_t others;
    mcpg__rankset_clear(&others);
    for (uint32_t i = 0; i < group->capacity; i++) {
        const mcpg_agent_slot_t *s = &agent->slots[group->base + i];
        if (!s->active || i == group->slot.v) continue;
        bool waited =
            told ? mcpg__rankset_has(&call->missing, i) : agent->ranks[s->view_rank.v].state != MCPG_RANK_OFFLINE;
        if (waited) mcpg__rankset_add(&others, s->view_rank.v);
    }
    mcpg__agent_text_add(text, told ? ": not called by rank "
                                    : ": every active rank must call sync_after_failure; waited for rank ");
    mcpg__agent_text_add_set(text, &others);
    if (told) mcpg__agent_text_add(text, "; every active rank must call sync_after_failure");
}

/* An agreement waits for a lost coordinator no longer than the judgement of an operation does. */
static uint64_t due_at(const mcpg_agent_t *agent, const mcpg_agent_call_t *call) {
    if (call->kind != MCPG_AGENT_CALL_SYNC || mcpg__agent_up(agent)) return call->deadline_us;
    uint64_t given_up_us = mcpg__agent_after((mcpg_time_t){agent->lost_at_us}, agent->offline_us);
    return given_up_us < call->deadline_us ? given_up_us : call->deadline_us;
}

static mcpg_bytes_t timeout_text(const mcpg_agent_t *agent, const mcpg_agent_call_t *call, mcpg_agent_effects_t *fx) {
    const mcpg_agent_group_t *group = &agent->groups[call->group];
    mcpg_agent_text_t text = mcpg__agent_text(fx);
    if (!mcpg__agent_up(agent)) {
        uint64_t waited_us = due_at(agent, call) < call->deadline_us ? agent->offline_us : call->timeout_us;
        add_within(&text, "contact to the coordinator is lost and did not come back", waited_us);
        return mcpg__agent_text_bytes(&text);
    }
    switch ((mcpg_agent_call_kind_t)call->kind) {
    case MCPG_AGENT_CALL_REGISTER:
        if (call->installing) {
            add_within(&text, "the group was not ready", call->timeout_us);
            add_missing(agent, group, &text);
        } else {
            add_within(&text, "the coordinator did not answer the registration of the group", call->timeout_us);
        }
        break;
    case MCPG_AGENT_CALL_JOIN:
        add_within(&text, "this rank was not activated", call->timeout_us);
        mcpg__agent_text_add(&text, ": an active rank must call activate_ranks with ");
        mcpg__agent_text_add_u64(&text, group->slot.v);
        break;
    case MCPG_AGENT_CALL_PROPOSE:
        add_within(&text, "the coordinator did not answer", call->timeout_us);
        mcpg__agent_text_add(&text, ": read the epoch");
        break;
    case MCPG_AGENT_CALL_SYNC:
        add_within(&text, "no agreement", call->timeout_us);
        add_waited_for(agent, call, &text);
        break;
    case MCPG_AGENT_CALL_FREE:
        break;
    }
    return mcpg__agent_text_bytes(&text);
}

static void time_out(mcpg_agent_t *agent, mcpg_agent_call_t *call, mcpg_agent_effects_t *fx) {
    uint32_t group = call->group;
    bool registering = call->kind == MCPG_AGENT_CALL_REGISTER;
    mcpg_status_t status = mcpg__agent_up(agent) ? MCPG_TIMED_OUT : MCPG_UNAVAILABLE;
    if (call->kind == MCPG_AGENT_CALL_PROPOSE) status = MCPG_OUTCOME_UNKNOWN;
    mcpg_view_id_t view = agent->groups[group].committed;
    mcpg_bytes_t text = timeout_text(agent, call, fx);
    mcpg_agent_call_done_t *done = mcpg__agent_call_close(agent, call, status, fx);
    done->view = view;
    done->text = text;
    if (registering) mcpg__agent_group_end(agent, group, fx);
}

void mcpg__agent_call_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->call_high;
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE) continue;
        if (agent->now.us >= due_at(agent, call)) {
            time_out(agent, call, fx);
        } else if (call->ask_again_us != 0 && agent->now.us >= call->ask_again_us) {
            call->ask_again_us = 0;
            if (mcpg__agent_up(agent)) send_sync(agent, call, fx);
        }
    }
}

uint64_t mcpg__agent_call_deadline(const mcpg_agent_t *agent) {
    uint64_t due = MCPG_AGENT_NEVER;
    for (uint32_t i = 0; i < agent->call_high; i++) {
        const mcpg_agent_call_t *call = &agent->calls[i];
        if (call->kind == MCPG_AGENT_CALL_FREE) continue;
        if (due_at(agent, call) < due) due = due_at(agent, call);
        if (call->ask_again_us != 0 && call->ask_again_us < due) due = call->ask_again_us;
    }
    return due;
}
