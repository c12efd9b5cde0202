/* coord_digest.c: one number of everything that decides what the machine does next, field by field, so that padding
 * never counts.
 *
 * It must never change anything, and never leave out a field of the tables: replay compares it.
 */
#include "coordinator/coord_state.h"

static uint64_t inc_add(uint64_t d, mcpg_incarnation_t inc) {
    return mcpg__digest_u64(mcpg__digest_u64(d, inc.term), inc.counter);
}
static uint64_t view_add(uint64_t d, mcpg_view_id_t id) {
    return mcpg__digest_u64(mcpg__digest_u64(d, id.term), id.epoch);
}
static uint64_t set_add(uint64_t d, const mcpg_rankset_t *set) {
    return mcpg__digest_bytes(d, set->w, sizeof(set->w));
}
static uint64_t flags_add(uint64_t d, const bool *flags, uint32_t count) {
    uint64_t word = 0;
    for (uint32_t i = 0; i < count; i++) word = word * 2u + (flags[i] ? 1u : 0u);
    return mcpg__digest_u64(d, word);
}

static uint64_t rank_add(uint64_t d, const mcpg_coord_t *c, uint32_t rank) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    const bool flags[] = {r->known, r->dead, r->left, r->exited, r->published, r->pub_dead, r->reported, r->renew};
    d = flags_add(d, flags, sizeof(flags) / sizeof(flags[0]));
    d = mcpg__digest_u64(d, (uint64_t)r->state * 4u + r->pub_state);
    d = inc_add(inc_add(d, r->inc), r->pub_inc);
    const uint64_t words[] = {
        c->conns[rank],  r->session.v,     r->host_id,      (uint64_t)r->pid, (uint64_t)r->exited_pid,
        r->exited_at_us, r->last_heard_us, r->closed_at_us, r->seen_sum,      r->active_count};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    d = mcpg__digest_bytes(d, r->endpoint, r->endpoint_len);
    d = mcpg__digest_bytes(d, mcpg__coord_raw(c, rank), c->words * sizeof(uint64_t));
    return mcpg__digest_bytes(d, mcpg__coord_eff(c, rank), c->words * sizeof(uint64_t));
}

static uint64_t fault_add(uint64_t d, const mcpg_coord_t *c, uint32_t index) {
    const mcpg_coord_fault_t *f = &c->faults[index];
    d = mcpg__digest_u64(mcpg__digest_u64(d, f->check_id), f->deadline_us);
    d = set_add(set_add(d, &f->suspects), &f->asked);
    for (uint32_t r = mcpg__rankset_next(&f->asked, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(&f->asked, r + 1))
        d = mcpg__digest_bytes(d, mcpg__coord_answered(c, index, r), c->words * sizeof(uint64_t));
    return d;
}

static uint64_t slot_add(uint64_t d, const mcpg_coord_slot_t *s) {
    d = mcpg__digest_u64(d, s->rank.v);
    d = inc_add(inc_add(inc_add(inc_add(d, s->reg), s->left), s->active), s->target);
    const uint64_t words[] = {s->active_since, s->leave_seq, s->ack_seq, s->commit_acked, s->join_call, s->sync_call};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    return view_add(view_add(view_add(d, s->abort_view), s->seen), s->aborted);
}

static uint64_t barrier_add(uint64_t d, const mcpg_coord_barrier_t *b) {
    d = mcpg__digest_u64(d, (uint64_t)b->phase * 8u + (uint64_t)b->kind);
    if (b->phase == MCPG_COORD_BARRIER_NONE) return d;
    d = view_add(d, b->id);
    const uint64_t words[] = {b->deadline_us,
                              b->removed_deadline_us,
                              b->again_us,
                              b->again_after_us,
                              (b->again ? 1u : 0u) + (b->steps ? 2u : 0u),
                              b->proposal};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    return set_add(set_add(set_add(set_add(set_add(d, &b->added), &b->removed), &b->asked), &b->acked), &b->dropped);
}

static uint64_t rebuild_add(uint64_t d, const mcpg_coord_group_t *g) {
    const bool flags[] = {g->adopted, g->rebuild_due, g->record_done, g->record_failed};
    d = flags_add(d, flags, sizeof(flags) / sizeof(flags[0]));
    const uint64_t words[] = {(uint64_t)g->rebuild, (uint64_t)g->record, g->gather_until_us, g->record_retry_us};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    d = view_add(view_add(d, g->doubt), g->record_view);
    const mcpg_rankset_t *sets[] = {&g->doubt_active, &g->wanted, &g->was_active, &g->left_early,
                                    &g->sync_held,    &g->bound,  &g->record_set};
    for (uint32_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) d = set_add(d, sets[i]);
    return d;
}

static uint64_t group_add(uint64_t d, const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    const bool flags[] = {g->manual,      g->no_auto_sync, g->members_dirty, g->dirty,    g->sync_on,
                          g->sync_agreed, g->sync_go,      g->syncing_due,   g->sync_last};
    d = flags_add(d, flags, sizeof(flags) / sizeof(flags[0]));
    const uint64_t words[] = {(uint64_t)g->phase, g->gid.v,         g->created,        g->base,
                              g->order_count,     g->founder_count, g->capacity,       g->sync_owner.v,
                              g->epoch_used,      g->switch_seq,    g->sync_first,     g->last_sync_first,
                              g->first_proposal,  g->last_proposal, g->proposal_count, g->nag_us};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    d = mcpg__digest_bytes(d, g->key, g->key_len);
    d = mcpg__digest_bytes(d, g->label, g->label_len);
    d = mcpg__digest_bytes(d, g->kind, g->kind_len);
    d = view_add(d, g->committed);
    const mcpg_rankset_t *sets[] = {&g->ranks,    &g->active,       &g->fenced,      &g->leaves,
                                    &g->awaiting, &g->joined,       &g->leaving,     &g->unseen,
                                    &g->resync,   &g->sync_entered, &g->sync_failed, &g->last_sync_failed};
    for (uint32_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) d = set_add(d, sets[i]);
    for (uint32_t s = 0; s < g->order_count; s++) d = slot_add(d, mcpg__coord_slot(c, g, s));
    return rebuild_add(barrier_add(d, &g->barrier), g);
}

static uint64_t proposals_add(uint64_t d, const mcpg_coord_t *c) {
    for (uint32_t i = 0; i < c->prop_high; i++) {
        const mcpg_coord_prop_t *p = &c->props[i];
        d = mcpg__digest_u64(d, (uint64_t)p->phase);
        if (p->phase == MCPG_COORD_PROP_FREE) continue;
        const uint64_t words[] = {p->group,
                                  p->next,
                                  p->first_caller,
                                  p->expected_epoch,
                                  p->admit_epoch,
                                  p->epoch,
                                  (uint64_t)(int64_t)p->status};
        for (uint32_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) d = mcpg__digest_u64(d, words[k]);
        d = set_add(set_add(set_add(set_add(d, &p->activate), &p->deactivate), &p->stale), &p->dropped);
        d = mcpg__digest_bytes(d, p->text, p->text_len);
    }
    for (uint32_t i = 0; i < c->caller_high; i++) {
        const mcpg_coord_caller_t *caller = &c->callers[i];
        if (!caller->used) continue;
        const uint64_t words[] = {i, caller->next, caller->conn, caller->call_id, caller->wait_until_us};
        for (uint32_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) d = mcpg__digest_u64(d, words[k]);
    }
    return d;
}

static uint64_t reports_add(uint64_t d, const mcpg_coord_t *c) {
    for (uint32_t i = 0; i < c->report_high; i++) {
        const mcpg_coord_report_t *report = &c->reports[i];
        if (!report->used) continue;
        const uint64_t words[] = {i,
                                  (report->due ? 1u : 0u) + (report->held ? 2u : 0u),
                                  report->fault,
                                  report->rank.v,
                                  report->gid.v,
                                  report->report_id};
        for (uint32_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) d = mcpg__digest_u64(d, words[k]);
        d = set_add(set_add(inc_add(d, report->inc), &report->failed), &report->told);
    }
    return d;
}

uint64_t mcpg_coord_digest(const mcpg_coord_t *coord) {
    const mcpg_coord_t *c = coord;
    const bool flags[] = {c->shutting,     c->stopped,    c->more,         c->health_dirty,
                          c->health_exact, c->link_added, c->health_later, c->deposed};
    uint64_t d = flags_add(c->config.term, flags, sizeof(flags) / sizeof(flags[0]));
    const uint64_t words[] = {c->now.us,    c->armed_us,       c->last_counter,    c->last_check,   c->last_created,
                              c->last_gid,  c->drain_until_us, c->health_retry_us, c->rank_high,    c->group_high,
                              c->prop_high, c->caller_high,    c->report_high,     c->group_cursor, c->settle_us,
                              c->gathering, c->mass_us,        c->mass_window_us,  c->mass_base,    c->mass_lost};
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) d = mcpg__digest_u64(d, words[i]);
    for (uint32_t i = 0; i < MCPG_COORD_ENDED; i++) d = mcpg__digest_u64(d, c->ended[i]);
    d = mcpg__digest_u64(d, c->ended_at);
    d = set_add(set_add(set_add(set_add(d, &c->present), &c->streams), &c->republish), &c->need_full);
    for (uint32_t r = 0; r < c->rank_high; r++) d = rank_add(d, c, r);
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS && c->faults_used > 0; i++)
        if (c->faults[i].used) d = fault_add(mcpg__digest_u64(d, i), c, i);
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] != 0) d = group_add(mcpg__digest_u64(d, i), c, &c->groups[i]);
    return reports_add(proposals_add(d, c), c);
}
