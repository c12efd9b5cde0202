/* coord_dump.c: the machine's whole state as text for people: ranks, links, groups, views, barriers, proposals, faults.
 * It changes nothing and decides nothing.
 */
#include "common/dump.h"
#include "coordinator/coord_state.h"

static const char *state_name(uint8_t state) {
    if (state == MCPG_RANK_OFFLINE) return "OFFLINE";
    return state == MCPG_RANK_SYNCED ? "SYNCED" : "HEALTHY";
}

static void dump_head(mcpg_dump_t *d, const mcpg_coord_t *c) {
    mcpg__dump(d, "coordinator");
    mcpg__dump_field(d, "term", c->config.term);
    mcpg__dump_field(d, "id", c->config.coordinator_id);
    mcpg__dump_field(d, "now", c->now.us);
    mcpg__dump_when(d, "timer", c->armed_us, c->now);
    mcpg__dump_flag(d, "shutting_down", c->shutting);
    mcpg__dump_flag(d, "stopped", c->stopped);
    mcpg__dump_flag(d, "deposed", c->deposed);
    mcpg__dump_flag(d, "more_to_do", c->more);
    mcpg__dump_when(d, "settles_until", c->settle_us, c->now);
    if (c->gathering > 0) mcpg__dump_field(d, "gathering", c->gathering);
    mcpg__dump_when(d, "mass_loss_until", c->mass_us, c->now);
    mcpg__dump_flag(d, "health_not_exact", !c->health_exact);
    mcpg__dump_when(d, "drain_until", c->shutting ? c->drain_until_us : 0, c->now);
    mcpg__dump_field(d, "groups", c->groups_used);
    mcpg__dump_field(d, "proposals", c->props_used);
    mcpg__dump_field(d, "faults", c->faults_used);
    mcpg__dump_field(d, "reports", c->reports_used);
    mcpg__dump_char(d, '\n');
}

static void dump_rank(mcpg_dump_t *d, const mcpg_coord_t *c, uint32_t r) {
    const mcpg_coord_rank_t *rank = &c->ranks[r];
    if (!rank->known) return;
    mcpg__dump(d, "rank ");
    mcpg__dump_u64(d, r);
    mcpg__dump_words_pair(d, "/", rank->inc.term, rank->inc.counter);
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, state_name(rank->state));
    mcpg__dump_flag(d, "dead", rank->dead);
    mcpg__dump_flag(d, "left", rank->left);
    mcpg__dump_flag(d, "not_reported", !rank->reported);
    mcpg__dump_flag(d, "only_named", rank->session.v == 0);
    if (!rank->published)
        mcpg__dump(d, " unpublished");
    else if (rank->pub_state != rank->state || !mcpg__inc_eq(rank->pub_inc, rank->inc) || rank->pub_dead != rank->dead)
        mcpg__dump_words_pair(d, " published_otherwise /", rank->pub_inc.term, rank->pub_inc.counter);
    if (c->conns[r] != 0) mcpg__dump_field(d, "conn", c->conns[r]);
    mcpg__dump_when(d, "heard", rank->last_heard_us, c->now);
    mcpg__dump_when(d, "closed", c->conns[r] == 0 ? rank->closed_at_us : 0, c->now);
    mcpg__dump_field(d, "host", rank->host_id);
    mcpg__dump_field(d, "pid", (uint64_t)rank->pid);
    if (rank->exited) mcpg__dump_field(d, "exited_pid", (uint64_t)rank->exited_pid);
    mcpg__dump_field(d, "active_in", rank->active_count);
    mcpg__dump_bytes(d, "endpoint", rank->endpoint, rank->endpoint_len);
    mcpg__dump_char(d, '\n');
}

/* Pairs of ranks that are there and have no link that counts; `reported`: its loss is being judged. */
static void dump_links(mcpg_dump_t *d, const mcpg_coord_t *c) {
    bool any = false;
    for (uint32_t a = 0; a < c->rank_high; a++) {
        if (c->ranks[a].state == MCPG_RANK_OFFLINE || !c->ranks[a].known) continue;
        for (uint32_t b = a + 1; b < c->rank_high; b++) {
            if (c->ranks[b].state == MCPG_RANK_OFFLINE || !c->ranks[b].known) continue;
            bool counts = mcpg__bit_get(mcpg__coord_eff(c, a), b);
            bool both = mcpg__bit_get(mcpg__coord_raw(c, a), b) && mcpg__bit_get(mcpg__coord_raw(c, b), a);
            if (counts && both) continue;
            mcpg__dump(d, any ? " " : "links not up: ");
            any = true;
            mcpg__dump_u64(d, a);
            mcpg__dump_char(d, '-');
            mcpg__dump_u64(d, b);
            if (counts) mcpg__dump(d, " (reported, being judged)");
        }
    }
    if (any) mcpg__dump_char(d, '\n');
}

static void dump_barrier(mcpg_dump_t *d, const mcpg_coord_t *c, const mcpg_coord_barrier_t *b) {
    static const char *const kinds[] = {"BOOT", "CHANGE", "SYNC"};
    if (b->phase == MCPG_COORD_BARRIER_NONE) return;
    mcpg__dump(d, "  barrier ");
    mcpg__dump(d, kinds[b->kind]);
    mcpg__dump(d, b->phase == MCPG_COORD_BARRIER_ADDED ? " asks the added" : " asks all");
    mcpg__dump_words_pair(d, " view ", b->id.term, b->id.epoch);
    mcpg__dump_set(d, "added", &b->added);
    mcpg__dump_set(d, "removed", &b->removed);
    mcpg__dump_set(d, "asked", &b->asked);
    mcpg__dump_set(d, "acked", &b->acked);
    mcpg__dump_some(d, "dropped", &b->dropped);
    mcpg__dump_when(d, "asked_again", b->again_us, c->now);
    mcpg__dump_when(d, "deadline", b->deadline_us, c->now);
    mcpg__dump_when(d, "removed_deadline", b->removed_deadline_us, c->now);
    if (b->proposal != MCPG_COORD_NONE) mcpg__dump_field(d, "proposal", b->proposal);
    mcpg__dump_char(d, '\n');
}

static void dump_slot(mcpg_dump_t *d, const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t i) {
    const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, i);
    mcpg__dump(d, "  slot ");
    mcpg__dump_u64(d, i);
    mcpg__dump_field(d, "rank", s->rank.v);
    if (mcpg__inc_none(s->reg))
        mcpg__dump(d, " nobody");
    else
        mcpg__dump_words_pair(d, " registered /", s->reg.term, s->reg.counter);
    if (mcpg__rankset_has(&g->active, i)) {
        mcpg__dump_words_pair(d, " active /", s->active.term, s->active.counter);
        mcpg__dump_field(d, "since", s->active_since);
        mcpg__dump_field(d, "commit_acked", s->commit_acked);
    }
    mcpg__dump_flag(d, "fenced", mcpg__rankset_has(&g->fenced, i));
    mcpg__dump_flag(d, "awaiting", mcpg__rankset_has(&g->awaiting, i));
    mcpg__dump_flag(d, "leaving", mcpg__rankset_has(&g->leaving, i));
    mcpg__dump_flag(d, "unseen", mcpg__rankset_has(&g->unseen, i));
    mcpg__dump_flag(d, "resync", mcpg__rankset_has(&g->resync, i));
    if (mcpg__rankset_has(&g->joined, i)) mcpg__dump_field(d, "join_call", s->join_call);
    if (mcpg__rankset_has(&g->leaves, i) || mcpg__rankset_has(&g->leaving, i))
        mcpg__dump_number(d, "leave", s->leave_seq);
    if (g->barrier.phase != MCPG_COORD_BARRIER_NONE && mcpg__rankset_has(&g->barrier.acked, i))
        mcpg__dump_number(d, "acked_next", s->ack_seq);
    if (s->abort_view.epoch != 0) mcpg__dump_words_pair(d, " abort_view ", s->abort_view.term, s->abort_view.epoch);
    mcpg__dump_char(d, '\n');
}

static void dump_proposals(mcpg_dump_t *d, const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    static const char *const phases[] = {"FREE", "WAIT", "QUEUED", "RUNNING", "APPLIED", "ANSWER"};
    uint32_t index = g->first_proposal;
    for (uint32_t n = 0; n < g->proposal_count && index < c->prop_cap; n++) {
        const mcpg_coord_prop_t *p = &c->props[index];
        mcpg__dump(d, "  proposal ");
        mcpg__dump_u64(d, index);
        mcpg__dump_char(d, ' ');
        mcpg__dump(d, phases[p->phase]);
        mcpg__dump_set(d, "activate", &p->activate);
        mcpg__dump_set(d, "deactivate", &p->deactivate);
        mcpg__dump_some(d, "stale", &p->stale);
        mcpg__dump_some(d, "dropped", &p->dropped);
        if (p->expected_epoch != MCPG_ANY_EPOCH) mcpg__dump_field(d, "expected_epoch", p->expected_epoch);
        mcpg__dump_field(d, "epoch", p->epoch);
        if (p->phase == MCPG_COORD_PROP_ANSWER) {
            mcpg__dump(d, p->status == MCPG_OK ? " ok" : " refused");
            mcpg__dump_bytes(d, "text", (const uint8_t *)p->text, p->text_len);
        }
        mcpg__dump(d, " callers");
        uint32_t caller = p->first_caller;
        for (uint32_t k = 0; k < c->caller_cap && caller < c->caller_cap; k++) {
            mcpg__dump_field(d, "conn", c->callers[caller].conn);
            mcpg__dump_field(d, "call", c->callers[caller].call_id);
            mcpg__dump_when(d, "waits_until", c->callers[caller].wait_until_us, c->now);
            caller = c->callers[caller].next;
        }
        mcpg__dump_char(d, '\n');
        index = p->next;
    }
}

static void dump_sync(mcpg_dump_t *d, const mcpg_coord_group_t *g) {
    bool is_on = g->sync_on || g->sync_agreed || g->sync_go || g->syncing_due || g->sync_owner.v != 0 ||
                 !mcpg__rankset_empty(&g->sync_entered);
    if (!is_on) return;
    mcpg__dump(d, "  sync");
    mcpg__dump_flag(d, "called", g->sync_on);
    mcpg__dump_flag(d, "agreed", g->sync_agreed);
    mcpg__dump_flag(d, "due", g->sync_go);
    mcpg__dump_flag(d, "to_be_announced", g->syncing_due);
    if (g->sync_owner.v != 0) mcpg__dump_field(d, "covered_by_g", g->sync_owner.v);
    mcpg__dump_set(d, "entered", &g->sync_entered);
    mcpg__dump_set(d, "failed", &g->sync_failed);
    mcpg__dump_number(d, "first", g->sync_first);
    mcpg__dump_char(d, '\n');
}

/* How far an earlier coordinator's group is taken over, and what the store is asked. */
static void dump_rebuild(mcpg_dump_t *d, const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    static const char *const phases[] = {"decided", "gathers", "is stranded", "claims its record"};
    static const char *const records[] = {"none", "claim", "write"};
    if (g->adopted || g->rebuild != MCPG_COORD_REBUILD_NONE) {
        mcpg__dump(d, "  taken over: ");
        mcpg__dump(d, phases[g->rebuild]);
        mcpg__dump_when(d, "until", g->rebuild == MCPG_COORD_REBUILD_GATHER ? g->gather_until_us : 0, c->now);
        mcpg__dump_set(d, "wanted_ranks", &g->wanted);
        mcpg__dump_set(d, "was_active", &g->was_active);
        if (g->doubt.epoch != 0) {
            mcpg__dump_words_pair(d, " in_doubt ", g->doubt.term, g->doubt.epoch);
            mcpg__dump_set(d, "active", &g->doubt_active);
        }
        mcpg__dump_some(d, "left_early", &g->left_early);
        mcpg__dump_some(d, "sync_held", &g->sync_held);
        mcpg__dump_some(d, "bound", &g->bound);
        mcpg__dump_char(d, '\n');
    }
    if (g->record == MCPG_COORD_RECORD_NONE && g->record_view.epoch == 0 && g->record_retry_us == 0) return;
    mcpg__dump(d, "  record open: ");
    mcpg__dump(d, records[g->record]);
    mcpg__dump_words_pair(d, " view ", g->record_view.term, g->record_view.epoch);
    mcpg__dump_set(d, "active", &g->record_set);
    mcpg__dump_flag(d, "done", g->record_done);
    mcpg__dump_flag(d, "failed", g->record_failed);
    mcpg__dump_when(d, "retry", g->record_retry_us, c->now);
    mcpg__dump_char(d, '\n');
}

static void dump_group(mcpg_dump_t *d, const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    mcpg__dump(d, "group g");
    mcpg__dump_u64(d, g->gid.v);
    mcpg__dump(d, g->phase == MCPG_COORD_GROUP_FORMING ? " FORMING" : " READY");
    mcpg__dump_words_pair(d, " view ", g->committed.term, g->committed.epoch);
    mcpg__dump_number(d, "switch", g->switch_seq);
    mcpg__dump_set(d, "active", &g->active);
    mcpg__dump_field(d, "founders", g->founder_count);
    mcpg__dump_field(d, "order", g->order_count);
    mcpg__dump_field(d, "capacity", g->capacity);
    mcpg__dump_field(d, "epoch_used", g->epoch_used);
    mcpg__dump_flag(d, "manual", g->manual);
    mcpg__dump_flag(d, "no_auto_sync", g->no_auto_sync);
    mcpg__dump_flag(d, "members_to_be_sent", g->members_dirty);
    mcpg__dump_bytes(d, "key", g->key, g->key_len);
    mcpg__dump_bytes(d, "label", g->label, g->label_len);
    mcpg__dump_char(d, '\n');
    for (uint32_t i = 0; i < g->order_count; i++) dump_slot(d, c, g, i);
    dump_rebuild(d, c, g);
    dump_barrier(d, c, &g->barrier);
    dump_sync(d, g);
    dump_proposals(d, c, g);
}

static void dump_faults(mcpg_dump_t *d, const mcpg_coord_t *c) {
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) {
        const mcpg_coord_fault_t *f = &c->faults[i];
        if (!f->used) continue;
        mcpg__dump(d, "fault check ");
        mcpg__dump_u64(d, f->check_id);
        mcpg__dump_set(d, "suspects", &f->suspects);
        mcpg__dump_set(d, "asked", &f->asked);
        mcpg__dump_when(d, "deadline", f->deadline_us, c->now);
        mcpg__dump_char(d, '\n');
    }
    for (uint32_t i = 0; i < c->report_high; i++) {
        const mcpg_coord_report_t *r = &c->reports[i];
        if (!r->used) continue;
        mcpg__dump(d, "report rank ");
        mcpg__dump_u64(d, r->rank.v);
        mcpg__dump_words_pair(d, "/", r->inc.term, r->inc.counter);
        mcpg__dump_field(d, "g", r->gid.v);
        mcpg__dump_field(d, "report", r->report_id);
        mcpg__dump_set(d, "failed", &r->failed);
        mcpg__dump_flag(d, "due", r->due);
        mcpg__dump_flag(d, "held", r->held);
        mcpg__dump_char(d, '\n');
    }
}

void mcpg_coord_suspects(const mcpg_coord_t *c, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++)
        if (c->faults[i].used) mcpg__rankset_or(out, &c->faults[i].suspects);
}

size_t mcpg_coord_dump(const mcpg_coord_t *c, char *buf, size_t cap) {
    mcpg_dump_t d = {.ptr = buf, .cap = cap};
    dump_head(&d, c);
    for (uint32_t r = 0; r < c->rank_high; r++) dump_rank(&d, c, r);
    dump_links(&d, c);
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->groups[i].phase != MCPG_COORD_GROUP_FREE) dump_group(&d, c, &c->groups[i]);
    dump_faults(&d, c);
    return mcpg__dump_end(&d);
}
