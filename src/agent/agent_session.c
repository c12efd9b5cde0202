/* agent_session.c: the stream to the coordinator: connect, attach, heartbeats, silence, back-off, re-attach, detach.
 *
 * A stream is only opened after the earlier one was reported closed, so what an old stream still delivers is never
 * taken for the new one's. It must never touch views or links itself; it tells the other files when contact was lost or
 * found again.
 */
#include "agent/agent_state.h"

static uint64_t next_random(mcpg_agent_t *agent) {
    agent->random = mcpg__digest_u64(agent->random, 1);
    return agent->random;
}

/* 20 ms doubling to 1 s, spread over 3/4 to 5/4 of it so that a thousand agents do not come back in step. */
static void wait_and_retry(mcpg_agent_t *agent) {
    uint64_t base = MCPG_AGENT_BACKOFF_MAX_US;
    if (agent->attempts < 6u) base = (uint64_t)MCPG_AGENT_BACKOFF_MIN_US << agent->attempts;
    agent->attempts++;
    uint64_t delay = base - base / 4u + next_random(agent) % (base / 2u + 1u);
    if (delay > MCPG_AGENT_BACKOFF_MAX_US) delay = MCPG_AGENT_BACKOFF_MAX_US;
    agent->stage = MCPG_AGENT_WAITING;
    agent->retry_at_us = mcpg__agent_after(agent->now, delay);
}

static void connect_now(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    agent->stage = MCPG_AGENT_CONNECTING;
    agent->stream_open = true;
    agent->stage_deadline_us = mcpg__agent_after(agent->now, agent->offline_us);
    (void)mcpg__agent_emit(fx, MCPG_AGENT_FX_CONNECT);
}

static void tell_attached(mcpg_agent_t *agent, mcpg_status_t status, mcpg_bytes_t text, mcpg_agent_effects_t *fx) {
    if (agent->told_attached) return;
    agent->told_attached = true;
    mcpg_agent_effect_t *effect = mcpg__agent_emit(fx, MCPG_AGENT_FX_ATTACHED);
    effect->u.attached.status = status;
    effect->u.attached.text = text;
}

/* Contact is lost from here on; the attached state of everything is kept for the re-attach. */
static void contact_lost(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (agent->lost) return;
    agent->lost = true;
    agent->loss_judged = false;
    agent->lost_at_us = agent->now.us;
    mcpg_agent_notify_t notify = {.kind = MCPG_EVENT_COORDINATOR_LOST, .rank = agent->config.rank};
    mcpg__agent_notify(fx, &notify);
    agent->rebuilding = false;
    mcpg__agent_call_lost(agent, fx);
    mcpg__agent_doubt_lost(agent);
    mcpg__agent_report_judge(agent, MCPG_AGENT_NO_INDEX, fx);
}

/* Gives the present stream up and tries again later. */
static void drop_stream(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    bool was_attached = mcpg__agent_up(agent);
    if (agent->stream_open) (void)mcpg__agent_emit(fx, MCPG_AGENT_FX_DISCONNECT);
    wait_and_retry(agent);
    if (was_attached) contact_lost(agent, fx);
}

static void keep_refusal(mcpg_agent_t *agent, int32_t status, mcpg_bytes_t text) {
    agent->refusal = status;
    agent->refusal_len = text.len < MCPG_TEXT_CAP ? text.len : MCPG_TEXT_CAP - 1u;
    if (agent->refusal_len > 0) memcpy(agent->refusal_text, text.ptr, agent->refusal_len);
    agent->refusal_text[agent->refusal_len] = 0;
}

/* Whoever was attached once is out for good: no view will ever come again, so its groups end. */
static void end_groups(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    uint32_t high = agent->group_high;
    mcpg__agent_report_end_all(agent, MCPG_NOT_ACTIVE, fx);
    for (uint32_t i = 0; i < high; i++) {
        mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage == MCPG_AGENT_GROUP_LEAVING) mcpg__agent_group_drop(agent, i);
        if (group->stage != MCPG_AGENT_GROUP_OPEN) continue;
        mcpg_agent_dp_resolve_t *resolve = &mcpg__agent_emit(fx, MCPG_AGENT_FX_DP_RESOLVE)->u.dp_resolve;
        resolve->gid = group->gid;
        resolve->status = MCPG_NOT_ACTIVE;
    }
}

static void fail_for_good(mcpg_agent_t *agent, mcpg_status_t status, mcpg_bytes_t text, mcpg_agent_effects_t *fx) {
    if (agent->stream_open) (void)mcpg__agent_emit(fx, MCPG_AGENT_FX_DISCONNECT);
    agent->stage = MCPG_AGENT_FAILED;
    agent->rebuilding = false;
    tell_attached(agent, status, text, fx);
    const char *words = "the coordinator refused this process: create a new context";
    bool superseded = agent->refusal == MCPG_INVALID_STATE && agent->refusal_len > 0;
    if (superseded) words = (const char *)agent->refusal_text;
    mcpg__agent_call_end_all(agent, superseded ? MCPG_INVALID_STATE : MCPG_UNAVAILABLE, words, fx);
    end_groups(agent, fx);
}

static void first_attach_failed(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (agent->refusal != MCPG_OK) {
        mcpg_bytes_t text = mcpg__agent_copy(fx, agent->refusal_text, agent->refusal_len);
        fail_for_good(agent, (mcpg_status_t)agent->refusal, text, fx);
        return;
    }
    mcpg_agent_text_t text = mcpg__agent_text(fx);
    mcpg__agent_text_add(&text, "no coordinator answered within ");
    mcpg__agent_text_add_u64(&text, agent->config.attach_timeout_us / 1000u);
    mcpg__agent_text_add(&text, " ms: check its address and that it is running");
    fail_for_good(agent, MCPG_UNAVAILABLE, mcpg__agent_text_bytes(&text), fx);
}

static void send_heartbeat(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    mcpg_up_msg_t *msg = mcpg__agent_send(fx, MCPG_UP_HEARTBEAT);
    msg->u.heartbeat.digest = mcpg__agent_wire_digest(agent);
    msg->u.heartbeat.sent_us = agent->now.us;
    agent->next_heartbeat_us = mcpg__agent_after(agent->now, agent->heartbeat_us);
}

static uint64_t moved(uint64_t at_us, uint64_t late_us) {
    return mcpg__agent_after((mcpg_time_t){at_us}, late_us);
}

void mcpg__agent_session_paused(mcpg_agent_t *agent, uint64_t late_us) {
    agent->last_heard_us = moved(agent->last_heard_us, late_us);
    if (agent->last_heard_us > agent->now.us) agent->last_heard_us = agent->now.us;
    agent->attach_deadline_us = moved(agent->attach_deadline_us, late_us);
    agent->stage_deadline_us = moved(agent->stage_deadline_us, late_us);
    if (!agent->lost) return;
    agent->lost_at_us = moved(agent->lost_at_us, late_us);
    if (agent->lost_at_us > agent->now.us) agent->lost_at_us = agent->now.us;
}

void mcpg__agent_session_heard(mcpg_agent_t *agent, uint64_t sent_us) {
    if (sent_us > agent->now.us) return;
    uint64_t until_us = mcpg__agent_after((mcpg_time_t){sent_us}, mcpg__lease_us(agent->offline_us));
    if (until_us > agent->leased_until_us) agent->leased_until_us = until_us;
}

void mcpg__agent_session_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    switch (agent->stage) {
    case MCPG_AGENT_NEW:
        agent->attach_deadline_us = mcpg__agent_after(agent->now, agent->config.attach_timeout_us);
        connect_now(agent, fx);
        return;
    case MCPG_AGENT_WAITING:
        if (!agent->told_attached && agent->now.us >= agent->attach_deadline_us)
            first_attach_failed(agent, fx);
        else if (!agent->stream_open && agent->now.us >= agent->retry_at_us)
            connect_now(agent, fx);
        return;
    case MCPG_AGENT_CONNECTING:
    case MCPG_AGENT_ATTACHING:
        if (!agent->told_attached && agent->now.us >= agent->attach_deadline_us)
            first_attach_failed(agent, fx);
        else if (agent->now.us >= agent->stage_deadline_us)
            drop_stream(agent, fx);
        return;
    case MCPG_AGENT_ATTACHED:
        if (agent->now.us - agent->last_heard_us >= agent->offline_us)
            drop_stream(agent, fx);
        else if (agent->now.us >= agent->next_heartbeat_us)
            send_heartbeat(agent, fx);
        return;
    case MCPG_AGENT_FAILED:
    case MCPG_AGENT_STOPPED:
        return;
    }
}

uint64_t mcpg__agent_session_deadline(const mcpg_agent_t *agent) {
    uint64_t due = MCPG_AGENT_NEVER;
    switch (agent->stage) {
    case MCPG_AGENT_WAITING:
        if (!agent->stream_open) due = agent->retry_at_us;
        break;
    case MCPG_AGENT_CONNECTING:
    case MCPG_AGENT_ATTACHING:
        due = agent->stage_deadline_us;
        break;
    case MCPG_AGENT_ATTACHED:
        due = mcpg__agent_after((mcpg_time_t){agent->last_heard_us}, agent->offline_us);
        if (agent->next_heartbeat_us < due) due = agent->next_heartbeat_us;
        return due;
    case MCPG_AGENT_NEW:
        return 0; /* the first TIMER is what starts it */
    case MCPG_AGENT_FAILED:
    case MCPG_AGENT_STOPPED:
        return MCPG_AGENT_NEVER;
    }
    if (!agent->told_attached && agent->attach_deadline_us < due) due = agent->attach_deadline_us;
    return due;
}

static uint32_t fill_reports(const mcpg_agent_t *agent, mcpg_group_report_t *reports) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < agent->group_high; i++) {
        const mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_OPEN) continue;
        mcpg_group_report_t *report = &reports[count++];
        report->gid = group->gid;
        report->committed = group->committed;
        if (group->acked) report->acked = group->preparing;
        report->next_seq = group->next_seq;
    }
    return count;
}

void mcpg__agent_session_connected(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (agent->stage != MCPG_AGENT_CONNECTING) return;
    agent->stage = MCPG_AGENT_ATTACHING;
    agent->stage_deadline_us = mcpg__agent_after(agent->now, agent->offline_us);
    mcpg_up_attach_t *attach = &mcpg__agent_send(fx, MCPG_UP_ATTACH)->u.attach;
    attach->version = MCPG_PROTOCOL_VERSION;
    agent->attach_sent_us = agent->now.us;
    attach->rank = agent->config.rank;
    attach->session = agent->config.session;
    attach->prev_inc = agent->inc;
    attach->highest_term = agent->term;
    attach->host_id = agent->config.host_id;
    attach->pid = agent->config.pid;
    attach->endpoint = mcpg__agent_copy(fx, agent->config.endpoint, agent->config.endpoint_len);
    if (agent->group_high == 0) return;
    mcpg_group_report_t *reports = (mcpg_group_report_t *)mcpg__agent_take(fx, agent->group_high * sizeof(*reports));
    attach->report_count = fill_reports(agent, reports);
    attach->reports = attach->report_count > 0 ? reports : NULL;
}

void mcpg__agent_session_disconnected(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    if (!agent->stream_open) return;
    agent->stream_open = false;
    switch (agent->stage) {
    case MCPG_AGENT_CONNECTING:
    case MCPG_AGENT_ATTACHING:
    case MCPG_AGENT_ATTACHED:
        drop_stream(agent, fx);
        return;
    case MCPG_AGENT_WAITING: /* we closed it */
    case MCPG_AGENT_NEW:
    case MCPG_AGENT_FAILED:
    case MCPG_AGENT_STOPPED:
        return;
    }
}

/* What was said and perhaps not heard is said again; another coordinator is first told what each group is. */
static void say_all(mcpg_agent_t *agent, bool other, bool renewed, mcpg_agent_effects_t *fx) {
    if (other) mcpg__agent_rebuild(agent, renewed, fx);
    if (renewed) {
        mcpg__agent_link_close_all(agent, fx);
        mcpg__agent_link_tell_deaths(agent, other, fx);
    } else {
        mcpg__agent_link_resend(agent, other, fx);
    }
    if (other) (void)mcpg__agent_send(fx, MCPG_UP_REBUILD_END);
    mcpg__agent_group_send_leaves(agent, fx);
    mcpg__agent_group_resend(agent, renewed, fx);
    mcpg__agent_view_resend(agent, renewed, fx);
    mcpg__agent_call_resend(agent, fx);
    if (renewed)
        mcpg__agent_report_end_all(agent, MCPG_NOT_ACTIVE,
                                   fx); /* operations of who is out: nobody judges them any more */
    else
        mcpg__agent_report_resend(agent, fx);
}

void mcpg__agent_session_welcome(mcpg_agent_t *agent, const mcpg_down_welcome_t *msg, mcpg_agent_effects_t *fx) {
    bool lower = msg->term < agent->term || (msg->term == agent->term && msg->coordinator_id < agent->coordinator_id);
    if (lower || mcpg__inc_cmp(msg->inc, agent->inc) < 0 || mcpg__inc_none(msg->inc)) {
        drop_stream(agent, fx); /* one ruler: only the highest coordinator ever attached to is obeyed */
        return;
    }
    bool first = mcpg__inc_none(agent->inc);
    bool renewed = !first && !mcpg__inc_eq(msg->inc, agent->inc);
    bool other = !first && (msg->term != agent->term || msg->coordinator_id != agent->coordinator_id);
    agent->rebuilding = msg->rebuilding;
    agent->term = msg->term;
    agent->coordinator_id = msg->coordinator_id;
    agent->inc = msg->inc;
    agent->stage = MCPG_AGENT_ATTACHED;
    agent->attempts = 0;
    agent->refusal = MCPG_OK;
    if (msg->heartbeat_us != 0) agent->heartbeat_us = msg->heartbeat_us;
    if (msg->offline_us != 0) agent->offline_us = msg->offline_us;
    agent->next_heartbeat_us = mcpg__agent_after(agent->now, agent->heartbeat_us);
    mcpg__agent_session_heard(agent, agent->attach_sent_us);
    tell_attached(agent, MCPG_OK, (mcpg_bytes_t){NULL, 0}, fx);
    if (agent->lost) {
        agent->lost = false;
        agent->loss_judged = false;
        mcpg_agent_notify_t notify = {.kind = MCPG_EVENT_COORDINATOR_BACK, .rank = agent->config.rank};
        mcpg__agent_notify(fx, &notify);
    }
    say_all(agent, other, renewed, fx);
}

void mcpg__agent_session_refused(mcpg_agent_t *agent, const mcpg_down_refused_t *msg, mcpg_agent_effects_t *fx) {
    mcpg_status_t status = (mcpg_status_t)msg->status;
    bool again = status == MCPG_RANK_IN_USE || status == MCPG_UNAVAILABLE ||
                 (status == MCPG_SHUTTING_DOWN && agent->told_attached);
    keep_refusal(agent, msg->status, msg->text);
    if (!again) {
        fail_for_good(agent, status == MCPG_OK ? MCPG_REJECTED : status,
                      mcpg__agent_copy(fx, msg->text.ptr, msg->text.len), fx);
        return;
    }
    drop_stream(agent, fx);
}

void mcpg__agent_session_detach(mcpg_agent_t *agent, uint64_t call_id, mcpg_agent_effects_t *fx) {
    if (mcpg__agent_up(agent)) (void)mcpg__agent_send(fx, MCPG_UP_DETACH);
    mcpg__agent_call_end_all(agent, MCPG_SHUTTING_DOWN, "the context is being closed", fx);
    mcpg_agent_text_t text = mcpg__agent_text(fx);
    mcpg__agent_text_add(&text, "the context is being closed");
    tell_attached(agent, MCPG_SHUTTING_DOWN, mcpg__agent_text_bytes(&text), fx);
    (void)mcpg__agent_call_answer(fx, call_id, MCPG_OK);
    if (agent->stream_open) (void)mcpg__agent_emit(fx, MCPG_AGENT_FX_DISCONNECT);
    agent->stage = MCPG_AGENT_STOPPED;
    agent->rebuilding = false;
    agent->stop_due = true;
}
