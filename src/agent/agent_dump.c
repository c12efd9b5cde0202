/* agent_dump.c: the machine's whole state as text for people: session, ranks, groups, calls, reports. It changes
 * nothing and decides nothing.
 */
#include "agent/agent_state.h"
#include "common/dump.h"

static const char *const stage_names[] = {[MCPG_AGENT_NEW] = "NEW",
                                          [MCPG_AGENT_WAITING] = "WAITING",
                                          [MCPG_AGENT_CONNECTING] = "CONNECTING",
                                          [MCPG_AGENT_ATTACHING] = "ATTACHING",
                                          [MCPG_AGENT_ATTACHED] = "ATTACHED",
                                          [MCPG_AGENT_FAILED] = "FAILED",
                                          [MCPG_AGENT_STOPPED] = "STOPPED"};

static void dump_session(mcpg_dump_t *d, const mcpg_agent_t *a) {
    mcpg__dump(d, "agent rank ");
    mcpg__dump_u64(d, a->config.rank.v);
    mcpg__dump_words_pair(d, "/", a->inc.term, a->inc.counter);
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, stage_names[a->stage]);
    mcpg__dump_field(d, "session", a->config.session.v);
    mcpg__dump_field(d, "now", a->now.us);
    mcpg__dump_field(d, "term", a->term);
    mcpg__dump_field(d, "coordinator", a->coordinator_id);
    mcpg__dump_flag(d, "stream_open", a->stream_open);
    mcpg__dump_flag(d, "lost", a->lost);
    mcpg__dump_flag(d, "loss_judged", a->loss_judged);
    mcpg__dump_flag(d, "stop_due", a->stop_due);
    mcpg__dump_flag(d, "rebuilding", a->rebuilding);
    mcpg__dump_when(d, "register_again", a->register_again_us, a->now);
    if (a->attempts > 0) mcpg__dump_field(d, "attempts", a->attempts);
    mcpg__dump_when(d, "timer", a->armed_us, a->now);
    mcpg__dump_when(d, "heard", a->last_heard_us, a->now);
    mcpg__dump_when(d, "lost_at", a->lost ? a->lost_at_us : 0, a->now);
    mcpg__dump_when(d, "retry", a->stage == MCPG_AGENT_WAITING ? a->retry_at_us : 0, a->now);
    if (a->refusal != MCPG_OK) mcpg__dump_bytes(d, "refused", a->refusal_text, a->refusal_len);
    mcpg__dump_char(d, '\n');
}

static void dump_rank(mcpg_dump_t *d, const mcpg_agent_t *a, uint32_t i) {
    static const char *const states[] = {"OFFLINE", "SYNCED", "HEALTHY"};
    static const char *const links[] = {"none", "up", "lost"};
    const mcpg_agent_rank_t *r = &a->ranks[i];
    if (!r->listed && !r->proved && mcpg__inc_none(r->open_inc)) return;
    mcpg__dump(d, "rank ");
    mcpg__dump_u64(d, i);
    mcpg__dump_words_pair(d, "/", r->inc.term, r->inc.counter);
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, states[r->state]);
    mcpg__dump_flag(d, "not_listed", !r->listed);
    mcpg__dump_flag(d, "dead", r->dead);
    if (r->proved) mcpg__dump_words_pair(d, " proved_dead /", r->proved_inc.term, r->proved_inc.counter);
    mcpg__dump(d, " link ");
    mcpg__dump(d, links[r->link]);
    if (r->link != MCPG_AGENT_LINK_NONE) mcpg__dump_words_pair(d, " /", r->link_inc.term, r->link_inc.counter);
    if (!mcpg__inc_none(r->open_inc)) mcpg__dump_words_pair(d, " open /", r->open_inc.term, r->open_inc.counter);
    mcpg__dump_field(d, "host", r->host_id);
    mcpg__dump_field(d, "pid", (uint64_t)r->pid);
    mcpg__dump_char(d, '\n');
}

static void dump_slots(mcpg_dump_t *d, const mcpg_agent_t *a, const mcpg_agent_group_t *g) {
    uint32_t count = g->member_count > g->order_count ? g->member_count : g->order_count;
    for (uint32_t i = 0; i < count && i < g->capacity; i++) {
        const mcpg_agent_slot_t *s = &a->slots[g->base + i];
        mcpg__dump(d, "  slot ");
        mcpg__dump_u64(d, i);
        mcpg__dump_field(d, "rank", s->rank.v);
        if (mcpg__inc_none(s->inc))
            mcpg__dump(d, " nobody");
        else
            mcpg__dump_words_pair(d, " registered /", s->inc.term, s->inc.counter);
        mcpg__dump_flag(d, "awaiting", s->awaiting);
        if (s->active) mcpg__dump_words_pair(d, " active /", s->view_inc.term, s->view_inc.counter);
        if (s->wanted) mcpg__dump_words_pair(d, " wanted /", s->wanted_inc.term, s->wanted_inc.counter);
        if (s->left) mcpg__dump_number(d, "left_from", s->leave_seq);
        mcpg__dump_char(d, '\n');
    }
}

static void dump_group(mcpg_dump_t *d, const mcpg_agent_t *a, uint32_t index) {
    static const char *const stages[] = {"FREE", "ASKED", "OPEN", "LEAVING"};
    const mcpg_agent_group_t *g = &a->groups[index];
    if (g->stage == MCPG_AGENT_GROUP_FREE) return;
    mcpg__dump(d, "group ");
    mcpg__dump_u64(d, index);
    mcpg__dump(d, ": g");
    mcpg__dump_u64(d, g->gid.v);
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, stages[g->stage]);
    mcpg__dump_field(d, "own_slot", g->slot.v);
    mcpg__dump_field(d, "capacity", g->capacity);
    mcpg__dump_words_pair(d, " committed ", g->committed.term, g->committed.epoch);
    if (g->preparing.epoch != 0) mcpg__dump_words_pair(d, " preparing ", g->preparing.term, g->preparing.epoch);
    mcpg__dump_flag(d, "acked", g->acked);
    mcpg__dump_words_pair(d, " highest ", g->highest.term, g->highest.epoch);
    if (g->aborted.epoch != 0) mcpg__dump_words_pair(d, " aborted ", g->aborted.term, g->aborted.epoch);
    mcpg__dump_number(d, "next", g->next_seq);
    mcpg__dump_number(d, "switch", g->switch_seq);
    if (g->sync) {
        mcpg__dump_set(d, "sync_failed", &g->sync_failed);
        mcpg__dump_number(d, "sync_first", g->sync_first_failed_seq);
    }
    mcpg__dump_when(d, "again", g->again_us, a->now);
    mcpg__dump_flag(d, "refused", g->refused != MCPG_OK);
    mcpg__dump_flag(d, "orphan", g->orphan);
    mcpg__dump_flag(d, "registered", g->registered);
    mcpg__dump_flag(d, "isolated", g->isolated);
    mcpg__dump_flag(d, "extension", g->is_extension);
    mcpg__dump_flag(d, "manual", g->manual);
    mcpg__dump_flag(d, "no_auto_sync", g->no_auto_sync);
    mcpg__dump_flag(d, "syncing", g->syncing);
    mcpg__dump_flag(d, "in_doubt", g->in_doubt);
    mcpg__dump_bytes(d, "key", g->key, g->key_len);
    mcpg__dump_bytes(d, "label", g->label, g->label_len);
    mcpg__dump_char(d, '\n');
    dump_slots(d, a, g);
}

static void dump_call(mcpg_dump_t *d, const mcpg_agent_t *a, uint32_t i) {
    static const char *const kinds[] = {"FREE", "REGISTER", "JOIN", "PROPOSE", "SYNC"};
    const mcpg_agent_call_t *c = &a->calls[i];
    if (c->kind == MCPG_AGENT_CALL_FREE) return;
    mcpg__dump(d, "call ");
    mcpg__dump_u64(d, c->call_id);
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, kinds[c->kind]);
    if (c->group != MCPG_AGENT_NO_INDEX) mcpg__dump_field(d, "group", c->group);
    mcpg__dump_flag(d, "installing", c->installing);
    mcpg__dump_when(d, "deadline", c->deadline_us, a->now);
    if (c->kind == MCPG_AGENT_CALL_SYNC) {
        mcpg__dump_words_pair(d, " since ", c->since.term, c->since.epoch);
        mcpg__dump_set(d, "failed", &c->failed);
        mcpg__dump_number(d, "first", c->first_failed_seq);
        mcpg__dump_some(d, "missing", &c->missing);
    }
    mcpg__dump_char(d, '\n');
}

static void dump_report(mcpg_dump_t *d, const mcpg_agent_t *a, uint32_t i) {
    const mcpg_agent_report_t *r = &a->reports[i];
    if (!r->used) return;
    mcpg__dump(d, "report ");
    mcpg__dump_u64(d, r->report_id);
    mcpg__dump_field(d, "group", r->group);
    mcpg__dump_number(d, "seq", r->seq);
    mcpg__dump(d, " failed");
    for (uint32_t k = 0; k < r->failed_count; k++) {
        const mcpg_member_t *m = &a->failed[r->failed_base + k];
        mcpg__dump_char(d, ' ');
        mcpg__dump_u64(d, m->slot.v);
        mcpg__dump_char(d, ':');
        mcpg__dump_u64(d, m->rank.v);
        mcpg__dump_words_pair(d, "/", m->inc.term, m->inc.counter);
    }
    mcpg__dump_some(d, "cleared", &r->cleared);
    mcpg__dump_char(d, '\n');
}

size_t mcpg_agent_dump(const mcpg_agent_t *a, char *buf, size_t cap) {
    mcpg_dump_t d = {.ptr = buf, .cap = cap};
    dump_session(&d, a);
    for (uint32_t i = 0; i < a->rank_high; i++) dump_rank(&d, a, i);
    for (uint32_t i = 0; i < a->group_high; i++) dump_group(&d, a, i);
    for (uint32_t i = 0; i < a->call_high; i++) dump_call(&d, a, i);
    for (uint32_t i = 0; i < a->report_high; i++) dump_report(&d, a, i);
    return mcpg__dump_end(&d);
}
