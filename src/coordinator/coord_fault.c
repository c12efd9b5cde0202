/* coord_fault.c: bad news is judged: one fixed window per fault, a check of the suspects by everybody, then the answers
 * are applied.
 *
 * A fault ends when every asked rank has answered for every suspect, or at its deadline. OP_FAILED reports hang on the
 * fault that judges them. It must never change membership (I7): it only decides which links count.
 */
#include "coordinator/coord_state.h"

static bool owes(const mcpg_coord_t *c, uint32_t index, uint32_t rank, uint32_t suspect) {
    const mcpg_coord_fault_t *f = &c->faults[index];
    return rank != suspect && mcpg__rankset_has(&f->suspects, suspect) && mcpg__rankset_has(&f->asked, rank) &&
           !mcpg__bit_get(mcpg__coord_answered(c, index, rank), suspect);
}

/* The answer of an end of this link is still to come: what it says will be judged then. */
static bool fault_covers(const mcpg_coord_t *c, uint32_t index, uint32_t a, uint32_t b) {
    return c->faults[index].used && (owes(c, index, a, b) || owes(c, index, b, a));
}

bool mcpg__coord_fault_covers(const mcpg_coord_t *c, uint32_t a, uint32_t b) {
    if (c->faults_used == 0) return false;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++)
        if (fault_covers(c, i, a, b)) return true;
    return false;
}

static uint32_t youngest(const mcpg_coord_t *c) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < MCPG_COORD_MAX_FAULTS; i++)
        if (c->faults[i].check_id > c->faults[best].check_id) best = i;
    return best;
}

/* With a full table the suspects join the youngest fault: its window still covers their checks. */
void mcpg__coord_fault_open(mcpg_coord_t *c, const mcpg_rankset_t *suspects, mcpg_coord_effects_t *fx,
                            uint32_t *index_out) {
    uint32_t index = 0;
    while (index < MCPG_COORD_MAX_FAULTS && c->faults[index].used) index++;
    if (index < MCPG_COORD_MAX_FAULTS) {
        mcpg_coord_fault_t *f = &c->faults[index];
        f->used = true;
        f->check_id = ++c->last_check;
        f->deadline_us = mcpg__after(c->now, c->config.timers.reconcile_us);
        f->suspects = *suspects;
        f->asked = c->streams;
        c->faults_used++;
        mcpg__coord_want(c, f->deadline_us);
        for (uint32_t r = mcpg__rankset_next(&f->asked, 0); r < MCPG_MAX_RANKS;
             r = mcpg__rankset_next(&f->asked, r + 1))
            memset(mcpg__coord_answered(c, index, r), 0, c->words * sizeof(uint64_t));
    } else {
        index = youngest(c);
        mcpg_coord_fault_t *f = &c->faults[index];
        mcpg__rankset_or(&f->suspects, suspects);
        for (uint32_t r = mcpg__rankset_next(&f->asked, 0); r < MCPG_MAX_RANKS;
             r = mcpg__rankset_next(&f->asked, r + 1))
            for (uint32_t s = mcpg__rankset_next(suspects, 0); s < MCPG_MAX_RANKS;
                 s = mcpg__rankset_next(suspects, s + 1))
                mcpg__bit_put(mcpg__coord_answered(c, index, r), s, false);
    }
    mcpg__coord_send_suspects(c, &c->faults[index], fx);
    *index_out = index;
}

/* What a check found after check_id was sent also answers the older rounds that ask the same. */
void mcpg__coord_fault_answered(mcpg_coord_t *c, uint64_t check_id, uint32_t rank, uint32_t suspect) {
    if (c->faults_used == 0) return;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) {
        if (!c->faults[i].used || c->faults[i].check_id > check_id) continue;
        if (owes(c, i, rank, suspect)) mcpg__bit_put(mcpg__coord_answered(c, i, rank), suspect, true);
    }
}

void mcpg__coord_fault_forget_rank(mcpg_coord_t *c, uint32_t rank) {
    if (c->faults_used == 0) return;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) {
        mcpg__rankset_del(&c->faults[i].suspects, rank);
        mcpg__rankset_del(&c->faults[i].asked, rank);
    }
}

void mcpg__coord_fault_unask(mcpg_coord_t *c, uint32_t rank) {
    if (c->faults_used == 0) return;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) mcpg__rankset_del(&c->faults[i].asked, rank);
}

static bool complete(const mcpg_coord_t *c, uint32_t index) {
    const mcpg_coord_fault_t *f = &c->faults[index];
    for (uint32_t r = mcpg__rankset_next(&f->asked, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(&f->asked, r + 1)) {
        const uint64_t *row = mcpg__coord_answered(c, index, r);
        for (uint32_t i = 0; i < c->words; i++) {
            uint64_t open = f->suspects.w[i] & ~row[i];
            if (r / 64u == i) open &= ~(UINT64_C(1) << (r % 64u));
            if (open != 0) return false;
        }
    }
    return true;
}

/* The links of a suspect count from now on as their ends have said, unless a younger fault still asks about them. */
static void apply(mcpg_coord_t *c, uint32_t suspect) {
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1)) {
        if (!mcpg__bit_get(mcpg__coord_eff(c, suspect), r)) continue;
        if (mcpg__bit_get(mcpg__coord_raw(c, suspect), r) && mcpg__bit_get(mcpg__coord_raw(c, r), suspect)) continue;
        if (mcpg__coord_fault_covers(c, suspect, r)) continue;
        mcpg__bit_put(mcpg__coord_eff(c, suspect), r, false);
        mcpg__bit_put(mcpg__coord_eff(c, r), suspect, false);
        mcpg__coord_health_link_removed(c, suspect, r);
    }
}

static void close_fault(mcpg_coord_t *c, uint32_t index) {
    mcpg_coord_fault_t *f = &c->faults[index];
    mcpg_rankset_t suspects = f->suspects;
    memset(f, 0, sizeof(*f));
    c->faults_used--;
    for (uint32_t s = mcpg__rankset_next(&suspects, 0); s < MCPG_MAX_RANKS; s = mcpg__rankset_next(&suspects, s + 1))
        apply(c, s);
    mcpg__rankset_or(&c->republish, &suspects); /* no longer suspect */
    for (uint32_t i = 0; i < c->report_high; i++)
        if (c->reports[i].used && c->reports[i].fault == index) {
            c->reports[i].fault = MCPG_COORD_NONE;
            c->reports[i].due = true;
        }
}

void mcpg__coord_faults_close(mcpg_coord_t *c) {
    if (c->faults_used == 0) return;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) {
        if (!c->faults[i].used) continue;
        if (c->now.us >= c->faults[i].deadline_us || complete(c, i)) close_fault(c, i);
    }
}

uint64_t mcpg__coord_fault_deadline(const mcpg_coord_t *c) {
    uint64_t earliest = MCPG_COORD_NEVER;
    if (c->faults_used == 0) return earliest;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++)
        if (c->faults[i].used && c->faults[i].deadline_us < earliest) earliest = c->faults[i].deadline_us;
    return earliest;
}

/* ---- OP_FAILED ---- */

/* A fault that has all the suspects and in which this rank's checks are still to come. */
static uint32_t fault_to_join(const mcpg_coord_t *c, uint32_t rank, const mcpg_rankset_t *suspects) {
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS && c->faults_used > 0; i++) {
        if (!c->faults[i].used || !mcpg__rankset_subset(suspects, &c->faults[i].suspects)) continue;
        bool all = true;
        for (uint32_t s = mcpg__rankset_next(suspects, 0); s < MCPG_MAX_RANKS; s = mcpg__rankset_next(suspects, s + 1))
            all = all && owes(c, i, rank, s);
        if (all) return i;
    }
    return MCPG_COORD_NONE;
}

static mcpg_coord_report_t *new_report(mcpg_coord_t *c) {
    for (uint32_t i = 0; i < c->report_cap; i++) {
        if (c->reports[i].used) continue;
        if (i >= c->report_high) c->report_high = i + 1;
        c->reports_used++;
        memset(&c->reports[i], 0, sizeof(c->reports[i]));
        c->reports[i].used = true;
        return &c->reports[i];
    }
    return NULL;
}

static void free_report(mcpg_coord_t *c, mcpg_coord_report_t *report) {
    memset(report, 0, sizeof(*report));
    c->reports_used--;
}

/* The named slots that are HEALTHY with the incarnation of the view. */
static void cleared(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t reporter, const mcpg_rankset_t *failed,
                    mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    if (c->ranks[reporter].state != MCPG_RANK_HEALTHY) return; /* it is about to leave: that COMMIT is its answer */
    for (uint32_t s = mcpg__rankset_next(failed, 0); s < g->order_count; s = mcpg__rankset_next(failed, s + 1))
        if (mcpg__coord_active_live(c, g, s) && mcpg__coord_rank_of(c, g, s)->state == MCPG_RANK_HEALTHY)
            mcpg__rankset_add(out, s);
}

/* Sorts what was named: suspects are live incarnations of the present view; all others are settled by views. */
static void sort_failed(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t rank, const mcpg_up_op_failed_t *m,
                        mcpg_rankset_t *slots, mcpg_rankset_t *suspects) {
    mcpg__rankset_clear(slots);
    mcpg__rankset_clear(suspects);
    for (uint32_t i = 0; i < m->failed_count; i++) {
        uint32_t slot = m->failed[i].slot.v;
        if (slot >= g->order_count || !mcpg__coord_active_live(c, g, slot)) continue;
        const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
        if (!mcpg__inc_eq(s->active, m->failed[i].inc)) continue; /* I4 */
        mcpg__rankset_add(slots, slot);
        if (s->rank.v != rank) mcpg__rankset_add(suspects, s->rank.v);
    }
}

static uint32_t judge(mcpg_coord_t *c, uint32_t rank, const mcpg_rankset_t *suspects, mcpg_coord_effects_t *fx) {
    if (mcpg__rankset_empty(suspects)) return MCPG_COORD_NONE;
    uint32_t fault = fault_to_join(c, rank, suspects);
    if (fault == MCPG_COORD_NONE) mcpg__coord_fault_open(c, suspects, fx, &fault);
    return fault;
}

/* Those named by their present incarnation (I4). */
static void keep_failed(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_up_op_failed_t *m,
                        mcpg_rankset_t *slots) {
    mcpg__rankset_clear(slots);
    for (uint32_t i = 0; i < m->failed_count; i++) {
        uint32_t slot = m->failed[i].slot.v;
        if (slot < g->order_count && mcpg__inc_eq(mcpg__coord_rank_of(c, g, slot)->inc, m->failed[i].inc))
            mcpg__rankset_add(slots, slot);
    }
}

void mcpg__coord_reports_release(mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t suspects;
    for (uint32_t i = 0; i < c->report_high && c->reports_used > 0; i++) {
        mcpg_coord_report_t *report = &c->reports[i];
        if (!report->used || !report->held || report->gid.v != g->gid.v) continue;
        if (!mcpg__fx_room_states(c, fx)) { /* judged by what is known */
            report->due = true;
            continue;
        }
        mcpg__rankset_clear(&suspects);
        for (uint32_t s = mcpg__rankset_next(&report->failed, 0); s < g->order_count;
             s = mcpg__rankset_next(&report->failed, s + 1)) {
            uint32_t rank = mcpg__coord_slot(c, g, s)->rank.v;
            if (mcpg__coord_active_live(c, g, s) && rank != report->rank.v) mcpg__rankset_add(&suspects, rank);
        }
        report->held = false;
        report->fault = judge(c, report->rank.v, &suspects, fx);
        report->due = report->fault == MCPG_COORD_NONE;
        c->more = true;
    }
}

void mcpg__coord_op_failed(mcpg_coord_t *c, uint32_t rank, const mcpg_up_op_failed_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    if (g == NULL) return;
    uint32_t own = mcpg__coord_slot_of(c, g, rank);
    if (own == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, own)) return;
    mcpg_rankset_t slots, suspects;
    bool held = g->rebuild != MCPG_COORD_REBUILD_NONE; /* which of them are active is not known yet */
    if (held && m->report_id == 0) return;
    if (held)
        keep_failed(c, g, m, &slots);
    else
        sort_failed(c, g, rank, m, &slots, &suspects);
    uint32_t fault = held ? MCPG_COORD_NONE : judge(c, rank, &suspects, fx);
    if (m->report_id == 0) return; /* manual, or without auto-sync: nobody waits */
    mcpg_coord_report_t *report = new_report(c);
    if (report == NULL) { /* table full: judged by what is known now */
        mcpg_down_reconciled_t *reply = &mcpg__fx_answer(fx, c->conns[rank], MCPG_DOWN_RECONCILED)->u.reconciled;
        reply->gid = m->gid;
        reply->report_id = m->report_id;
        cleared(c, g, rank, &slots, &reply->cleared);
        return;
    }
    report->fault = fault;
    report->held = held;
    report->due = fault == MCPG_COORD_NONE && !held;
    report->rank.v = rank;
    report->inc = c->ranks[rank].inc;
    report->gid = m->gid;
    report->report_id = m->report_id;
    report->failed = slots;
}

/* A failed slot that was not cleared is still in the view: should its removal come to nothing, it is told again. */
static bool is_open(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_coord_report_t *report) {
    uint32_t own = mcpg__coord_slot_of(c, g, report->rank.v);
    if (own == MCPG_COORD_NONE || !mcpg__coord_active_live(c, g, own)) return false;
    mcpg_rankset_t open = report->failed;
    mcpg__rankset_minus(&open, &report->told);
    for (uint32_t s = mcpg__rankset_next(&open, 0); s < g->order_count; s = mcpg__rankset_next(&open, s + 1))
        if (mcpg__rankset_has(&g->active, s) &&
            mcpg__inc_eq(mcpg__coord_slot(c, g, s)->active, mcpg__coord_rank_of(c, g, s)->inc))
            return true;
    return false;
}

void mcpg__coord_reports_answer(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (c->reports_used == 0) return;
    for (uint32_t i = 0; i < c->report_high; i++) {
        mcpg_coord_report_t *report = &c->reports[i];
        if (!report->used || report->held || report->fault != MCPG_COORD_NONE) continue;
        const mcpg_coord_group_t *g = mcpg__coord_group_find(c, report->gid);
        if (g == NULL || c->conns[report->rank.v] == 0) {
            free_report(c, report);
            continue;
        }
        mcpg_rankset_t fine, fresh;
        cleared(c, g, report->rank.v, &report->failed, &fine);
        fresh = fine;
        mcpg__rankset_minus(&fresh, &report->told);
        if (report->due || !mcpg__rankset_empty(&fresh)) {
            if (!mcpg__fx_room_answer(c, fx)) {
                c->more = true;
                return;
            }
            mcpg_down_reconciled_t *reply =
                &mcpg__fx_answer(fx, c->conns[report->rank.v], MCPG_DOWN_RECONCILED)->u.reconciled;
            reply->gid = report->gid;
            reply->report_id = report->report_id;
            reply->cleared = fine;
            report->told = fine;
            report->due = false;
        }
        if (!is_open(c, g, report)) free_report(c, report);
    }
}

void mcpg__coord_reports_forget(mcpg_coord_t *c, uint32_t rank) {
    if (c->reports_used == 0) return;
    for (uint32_t i = 0; i < c->report_high; i++)
        if (c->reports[i].used && c->reports[i].rank.v == rank) free_report(c, &c->reports[i]);
}
