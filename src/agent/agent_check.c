/* agent_check.c: digests of the agent machine and its invariants.
 *
 * It only reads. Ids are those of docs/protocol.md.
 */
#include "agent/agent_state.h"
#include "common/state_digest.h"

/* ---- digests ---- */

uint64_t mcpg__agent_wire_digest(const mcpg_agent_t *agent) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < agent->rank_high; i++) {
        const mcpg_agent_rank_t *r = &agent->ranks[i];
        if (r->listed) sum += mcpg__digest_rank((mcpg_rank_t){i}, r->inc, r->state, r->dead);
    }
    for (uint32_t i = 0; i < agent->group_high; i++) {
        const mcpg_agent_group_t *group = &agent->groups[i];
        if (group->stage != MCPG_AGENT_GROUP_OPEN || !group->registered) continue;
        sum += mcpg__digest_view(group->gid, group->committed);
        for (uint32_t k = 0; k < group->member_count; k++) {
            const mcpg_agent_slot_t *s = &agent->slots[group->base + k];
            mcpg_group_member_t member = {.slot = {k}, .rank = s->rank, .inc = s->inc, .awaiting = s->awaiting};
            sum += mcpg__digest_member(group->gid, &member);
        }
    }
    return mcpg__digest_wire(sum);
}

static uint64_t add_inc(uint64_t d, mcpg_incarnation_t inc) {
    return mcpg__digest_u64(mcpg__digest_u64(d, inc.term), inc.counter);
}
static uint64_t add_view(uint64_t d, mcpg_view_id_t view) {
    return mcpg__digest_u64(mcpg__digest_u64(d, view.term), view.epoch);
}
static uint64_t add_bits(uint64_t d, bool a, bool b, bool c, bool e) {
    return mcpg__digest_u64(d, (a ? 1u : 0u) | (b ? 2u : 0u) | (c ? 4u : 0u) | (e ? 8u : 0u));
}

static uint64_t add_rank(uint64_t d, const mcpg_agent_rank_t *r) {
    d = add_bits(d, r->listed, r->dead, r->proved, false);
    d = mcpg__digest_u64(d, (uint64_t)r->state | (uint64_t)r->proof << 8 | (uint64_t)r->link << 16);
    d = add_inc(add_inc(add_inc(add_inc(d, r->inc), r->open_inc), r->link_inc), r->proved_inc);
    d = mcpg__digest_u64(mcpg__digest_u64(d, r->host_id), (uint64_t)r->pid);
    return mcpg__digest_bytes(d, r->endpoint, r->endpoint_len);
}

static uint64_t add_group(uint64_t d, const mcpg_agent_t *agent, const mcpg_agent_group_t *g) {
    d = mcpg__digest_u64(d, (uint64_t)g->stage | (uint64_t)g->gid.v << 32);
    d = add_bits(d, g->is_extension, g->manual, g->no_auto_sync, g->isolated);
    d = add_bits(d, g->registered, g->syncing, g->acked, g->in_doubt);
    d = mcpg__digest_u64(d, g->slot.v | (uint64_t)g->capacity << 32);
    d = mcpg__digest_u64(d, g->order_count | (uint64_t)g->member_count << 32);
    d = mcpg__digest_bytes(d, g->key, g->key_len);
    d = mcpg__digest_bytes(d, g->label, g->label_len);
    d = mcpg__digest_bytes(d, g->device_kind, g->device_kind_len);
    d = add_view(add_view(add_view(add_view(d, g->committed), g->preparing), g->highest), g->aborted);
    d = mcpg__digest_u64(mcpg__digest_u64(mcpg__digest_u64(d, g->next_seq), g->again_us), g->left_us);
    d = add_bits(mcpg__digest_u64(d, (uint64_t)g->refused), g->orphan, g->sync, g->steps, false);
    d = mcpg__digest_u64(mcpg__digest_u64(d, g->switch_seq), g->sync_first_failed_seq);
    d = mcpg__digest_bytes(d, &g->sync_failed, sizeof(g->sync_failed));
    for (uint32_t i = 0; i < g->capacity; i++) {
        const mcpg_agent_slot_t *s = &agent->slots[g->base + i];
        d = add_inc(mcpg__digest_u64(d, s->rank.v | (uint64_t)s->view_rank.v << 32), s->inc);
        d = add_inc(add_bits(d, s->awaiting, s->active, s->left, s->wanted), s->view_inc);
        d = mcpg__digest_u64(mcpg__digest_u64(d, s->leave_seq), s->wanted_rank.v);
        d = add_inc(d, s->wanted_inc);
    }
    return d;
}

static uint64_t add_call(uint64_t d, const mcpg_agent_call_t *c) {
    d = mcpg__digest_u64(d, (uint64_t)c->kind | (c->installing ? 256u : 0u) | (uint64_t)c->group << 32);
    d = mcpg__digest_u64(mcpg__digest_u64(d, c->call_id), c->deadline_us);
    d = mcpg__digest_u64(add_view(d, c->since), c->first_failed_seq);
    d = mcpg__digest_bytes(mcpg__digest_u64(d, c->ask_again_us), &c->missing, sizeof(c->missing));
    return mcpg__digest_bytes(d, &c->failed, sizeof(c->failed));
}

static uint64_t add_report(uint64_t d, const mcpg_agent_t *agent, const mcpg_agent_report_t *r) {
    d = mcpg__digest_u64(d, (r->used ? 1u : 0u) | (uint64_t)r->group << 32);
    d = mcpg__digest_u64(mcpg__digest_u64(mcpg__digest_u64(d, r->report_id), r->seq), r->again_us);
    d = mcpg__digest_bytes(d, &r->cleared, sizeof(r->cleared));
    for (uint32_t i = 0; i < r->failed_count; i++) {
        const mcpg_member_t *m = &agent->failed[r->failed_base + i];
        d = add_inc(mcpg__digest_u64(d, m->slot.v | (uint64_t)m->rank.v << 32), m->inc);
    }
    return d;
}

static uint64_t add_session(uint64_t d, const mcpg_agent_t *a) {
    const uint64_t words[] = {(uint64_t)a->stage,
                              a->term,
                              a->coordinator_id,
                              a->heartbeat_us,
                              a->offline_us,
                              a->attach_deadline_us,
                              a->retry_at_us,
                              a->stage_deadline_us,
                              a->last_heard_us,
                              a->next_heartbeat_us,
                              a->lost_at_us,
                              a->armed_us,
                              a->attempts,
                              a->random,
                              (uint64_t)a->refusal,
                              a->calls_opened,
                              a->calls_answered,
                              a->register_again_us,
                              a->leased_until_us,
                              a->attach_sent_us,
                              a->now.us};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    d = add_bits(d, a->stream_open, a->told_attached, a->lost, a->loss_judged);
    d = add_bits(d, a->stop_due, a->rebuilding, false, false);
    d = add_inc(d, a->inc);
    return mcpg__digest_bytes(d, a->refusal_text, a->refusal_len);
}

uint64_t mcpg_agent_digest(const mcpg_agent_t *agent) {
    uint64_t d = add_session(mcpg__digest_u64(4, agent->config.rank.v), agent);
    for (uint32_t i = 0; i < agent->rank_high; i++) d = add_rank(d, &agent->ranks[i]);
    for (uint32_t i = 0; i < agent->group_high; i++) d = add_group(d, agent, &agent->groups[i]);
    for (uint32_t i = 0; i < agent->call_high; i++) d = add_call(d, &agent->calls[i]);
    for (uint32_t i = 0; i < agent->report_high; i++) d = add_report(d, agent, &agent->reports[i]);
    return d;
}

/* ---- invariants ---- */

static const char *check_groups(const mcpg_agent_t *agent) {
    uint32_t slots = 0;
    for (uint32_t i = 0; i < agent->group_high; i++) {
        const mcpg_agent_group_t *g = &agent->groups[i];
        slots += g->capacity;
        if (g->base + g->capacity > agent->slots_used) return "I10 a group's slots lie outside the pool";
        bool preparing = g->preparing.term != 0 || g->preparing.epoch != 0;
        if (mcpg__view_cmp(g->committed, g->highest) > 0) return "I1 a committed view is above the highest seen";
        if (preparing && mcpg__view_cmp(g->preparing, g->committed) <= 0)
            return "I1 a view in preparation is not above the committed one";
        if (preparing && mcpg__view_cmp(g->preparing, g->highest) > 0)
            return "I1 a view in preparation is above the highest seen";
        if (g->acked && !preparing) return "I6 an ACK is open for no view";
        if (preparing && mcpg__view_eq(g->preparing, g->aborted)) return "I1 an aborted view is in preparation";
        if (mcpg__agent_view_any(g->committed) && mcpg__view_eq(g->committed, g->aborted))
            return "I1 an aborted view was installed";
        if (g->preparing.term > agent->term || g->committed.term > agent->term)
            return "I1 a view is above every coordinator that this process obeyed";
        if (g->orphan && mcpg__agent_view_any(g->committed)) return "I1 a group without a view has one";
        if (g->stage == MCPG_AGENT_GROUP_OPEN && g->slot.v >= g->capacity) return "I10 own slot is outside the group";
        for (uint32_t k = 0; k < i; k++)
            if (g->stage == MCPG_AGENT_GROUP_OPEN && agent->groups[k].stage == g->stage &&
                agent->groups[k].gid.v == g->gid.v)
                return "I10 a group is in the table twice";
    }
    return slots == agent->slots_used ? NULL : "I10 the slot pool leaks";
}

static const char *check_calls(const mcpg_agent_t *agent) {
    uint64_t open = 0;
    for (uint32_t i = 0; i < agent->call_high; i++) {
        const mcpg_agent_call_t *c = &agent->calls[i];
        if (c->kind == MCPG_AGENT_CALL_FREE) continue;
        open++;
        if (c->group >= agent->group_high || agent->groups[c->group].stage == MCPG_AGENT_GROUP_FREE ||
            agent->groups[c->group].stage == MCPG_AGENT_GROUP_LEAVING)
            return "I5 an open call belongs to no group";
        bool asked = agent->groups[c->group].stage == MCPG_AGENT_GROUP_ASKED;
        if (asked != (c->kind == MCPG_AGENT_CALL_REGISTER && !c->installing))
            return "I5 a call does not fit the stage of its group";
        for (uint32_t k = 0; k < i; k++)
            if (agent->calls[k].kind != MCPG_AGENT_CALL_FREE && agent->calls[k].call_id == c->call_id)
                return "I5 a call is in the table twice";
    }
    if (agent->calls_opened - agent->calls_answered != open) return "I5 a call was lost or answered twice";
    if (agent->stage == MCPG_AGENT_STOPPED && open != 0) return "I9 a call is open after the end";
    return NULL;
}

static const char *check_reports(const mcpg_agent_t *agent) {
    uint32_t failed = 0;
    for (uint32_t i = 0; i < agent->report_high; i++) {
        const mcpg_agent_report_t *r = &agent->reports[i];
        if (!r->used) continue;
        failed += r->failed_count;
        if (r->group >= agent->group_high || agent->groups[r->group].stage != MCPG_AGENT_GROUP_OPEN)
            return "I10 a report belongs to no group";
        if (agent->groups[r->group].manual) return "I7 a manual group waits for a judgement";
        if (r->failed_base + r->failed_count > agent->failed_used) return "I10 a report lies outside the pool";
    }
    return failed == agent->failed_used ? NULL : "I10 the pool of failed members leaks";
}

const char *mcpg_agent_check(const mcpg_agent_t *agent) {
    if (agent->rank_high > agent->config.max_ranks || agent->group_high > agent->config.max_groups ||
        agent->call_high > agent->config.max_calls || agent->report_high > agent->config.max_reports)
        return "I10 a table is above its limit";
    if (agent->rebuilding && !mcpg__agent_up(agent)) return "I9 a lost coordinator is taken for one that rebuilds";
    for (uint32_t i = 0; i < agent->rank_high; i++) {
        const mcpg_agent_rank_t *r = &agent->ranks[i];
        if (mcpg__inc_cmp(r->open_inc, r->inc) > 0)
            return "I4 a link was opened to an incarnation that was never announced";
        if (r->dead && r->state != MCPG_RANK_OFFLINE) return "I4 a rank is proved dead and not OFFLINE";
        if (i == agent->config.rank.v && !mcpg__inc_none(r->open_inc))
            return "I4 a link was opened to this rank itself";
    }
    const char *fault = check_groups(agent);
    if (fault == NULL) fault = check_calls(agent);
    if (fault == NULL) fault = check_reports(agent);
    return fault;
}
