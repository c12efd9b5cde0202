/* sim_store.c: the job's key-value store as coordinators use it: one record per group, claimed and written by
 * compare-and-set, with outages of its own; and what becomes of an answer that is lost on the way.
 *
 * An operation happens at the store at one moment and its answer comes later, or never: then the coordinator is told
 * UNAVAILABLE, whether it happened or not. It must never know why a record is written.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

typedef struct {
    uint32_t gid;
    bool present, has_view;
    uint64_t term, id;
    mcpg_view_id_t view;
    uint32_t count;
    mcpg_member_t active[SIM_RANKS];
} record_t;
typedef enum { OP_AT_STORE, OP_ANSWER } op_stage_t;
typedef struct {
    bool used, claim, lost;
    uint8_t stage;
    uint32_t coord, gid;
    record_t what, said;
    mcpg_status_t status;
} op_t;
typedef struct {
    uint32_t record_count, record_cap, op_count, op_cap;
    record_t *records;
    op_t *ops;
    uint64_t down_until_us;
} store_t;

void sim_store_create(sim_t *w) {
    w->store = sim_zalloc(sizeof(store_t));
}

void sim_store_free(sim_t *w) {
    store_t *s = w->store;
    free(s->records);
    free(s->ops);
    free(s);
}

void sim_store_fail(sim_t *w, uint64_t until_us) {
    store_t *s = w->store;
    if (until_us > s->down_until_us) s->down_until_us = until_us;
}

void sim_store_heal(sim_t *w) {
    ((store_t *)w->store)->down_until_us = 0;
}

bool sim_store_down(const sim_t *w) {
    return ((const store_t *)w->store)->down_until_us > w->now;
}

static record_t *record_of(store_t *s, uint32_t gid) {
    for (uint32_t i = 0; i < s->record_count; i++)
        if (s->records[i].gid == gid) return &s->records[i];
    sim_grow((void **)&s->records, &s->record_cap, s->record_count, sizeof(*s->records));
    s->records[s->record_count].gid = gid;
    return &s->records[s->record_count++];
}

static uint64_t delay_us(sim_t *w) {
    return 50u + sim_below(&w->net, 3u * (w->plan.latency_us + w->plan.jitter_us));
}

/* From a RECORD_* effect. */
void sim_store_begin(sim_t *w, sim_coord_t *c, bool claim, mcpg_gid_t gid, const mcpg_group_record_t *record) {
    store_t *s = w->store;
    uint32_t at = 0;
    while (at < s->op_count && s->ops[at].used) at++;
    for (uint32_t i = 0; i < s->op_count; i++)
        if (s->ops[i].used && s->ops[i].coord == c->index && s->ops[i].gid == gid.v)
            sim_fail(w, "I19", "group %u: a second store operation while one is open", gid.v);
    if (at == s->op_count) {
        sim_grow((void **)&s->ops, &s->op_cap, s->op_count, sizeof(*s->ops));
        s->op_count++;
    }
    op_t *op = &s->ops[at];
    memset(op, 0, sizeof(*op));
    *op = (op_t){.used = true, .claim = claim, .coord = c->index, .gid = gid.v};
    op->what.term = record->term;
    op->what.id = record->coordinator_id;
    op->what.has_view = !claim && record->has_view;
    if (op->what.has_view) {
        op->what.view = record->view.id;
        for (uint32_t i = 0; i < record->view.active_count && i < SIM_RANKS; i++)
            op->what.active[op->what.count++] = record->view.active[i];
    }
    sim_trace(w, "  coordinator %u -> store: %s group %u", c->index, claim ? "claim" : "write", gid.v);
    sim_at(w, w->now + delay_us(w), SIM_EV_STORE, at, 0, 0);
}

/* What compare_set does: a claim takes any record of a lower or the same ruler; a write only one's own, or nothing. */
static void happen(sim_t *w, store_t *s, op_t *op) {
    record_t *r = record_of(s, op->gid);
    op->status = MCPG_OK;
    if (sim_store_down(w)) {
        op->status = MCPG_UNAVAILABLE;
        if (sim_chance(&w->net, 500)) return; /* else it happens, and the answer is lost */
    }
    bool own = r->present && r->term == op->what.term && r->id == op->what.id;
    bool higher = r->present && (r->term > op->what.term || (r->term == op->what.term && r->id > op->what.id));
    if (op->claim ? higher : r->present && !own) {
        if (op->status == MCPG_OK) op->status = MCPG_CONFLICT;
        return;
    }
    op->said = *r;
    r->present = true;
    r->term = op->what.term;
    r->id = op->what.id;
    if (op->claim) return;
    r->has_view = op->what.has_view;
    r->view = op->what.view;
    r->count = op->what.count;
    memcpy(r->active, op->what.active, sizeof(r->active));
}

static void answer(sim_t *w, op_t *op) {
    op_t done = *op;
    sim_coord_t *c = w->coords[done.coord];
    op->used = false;
    mcpg_group_record_t record = {
        .term = done.said.term,
        .coordinator_id = done.said.id,
        .has_view = done.said.has_view,
        .view = {.id = done.said.view, .active_count = done.said.count, .active = done.said.active}};
    bool said = done.claim && done.status == MCPG_OK && done.said.present;
    mcpg_coord_event_t e = {
        .kind = MCPG_COORD_EV_RECORD, .gid = {done.gid}, .status = done.status, .record = said ? &record : NULL};
    sim_coord_record(w, c, &e);
}

void sim_store_event(sim_t *w, uint32_t at) {
    store_t *s = w->store;
    op_t *op = &s->ops[at];
    sim_coord_t *c = w->coords[op->coord];
    if (op->stage == OP_AT_STORE) {
        happen(w, s, op);
        op->stage = OP_ANSWER;
        sim_at(w, w->now + delay_us(w) + (op->status == MCPG_UNAVAILABLE ? SIM_SECOND : 0), SIM_EV_STORE, at, 0, 0);
        return;
    }
    if (!c->alive || c->stopped) {
        op->used = false;
        return;
    }
    uint64_t until = c->paused_until_us > c->busy_until_us ? c->paused_until_us : c->busy_until_us;
    if (until > w->now) {
        sim_at(w, until, SIM_EV_STORE, at, 0, 0);
        return;
    }
    answer(w, op);
}
