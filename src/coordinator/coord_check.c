/* coord_check.c: the invariants that one coordinator can check on itself. Returns the first broken one, by id and text.
 *
 * I5, I8 and I2's other half need the agents' side: the simulator checks those. It must never change anything.
 */
#include "coordinator/coord_state.h"

#define CHECK(cond, text)                                                                                              \
    do {                                                                                                               \
        if (!(cond)) return text;                                                                                      \
    } while (0)

static const char *check_rank(const mcpg_coord_t *c, uint32_t rank) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    bool present = mcpg__rankset_has(&c->present, rank), stream = mcpg__rankset_has(&c->streams, rank);
    CHECK(present == (r->state != MCPG_RANK_OFFLINE), "I10 the set of present ranks differs from their states");
    CHECK(stream == (c->conns[rank] != 0), "I10 the set of streams differs from the connections");
    CHECK(!stream || (present && r->known && !r->dead), "I4 a rank that is OFFLINE or dead has a stream");
    CHECK(!r->dead || !present, "I4 a dead rank is present");
    CHECK(!r->left || r->dead, "I4 a rank that left counts as alive");
    bool from_here = r->inc.term == c->config.term && r->inc.counter <= c->last_counter;
    CHECK(!r->known || from_here || r->inc.term < c->config.term, "I4 an incarnation from the future");
    CHECK(!stream || r->session.v != 0, "I4 a rank that is only named has a stream");
    CHECK(!stream || r->reported || r->inc.term < c->config.term,
          "I4 a process of this coordinator's is still to report");
    for (uint32_t p = 0; p < c->rank_high; p++) {
        bool eff = mcpg__bit_get(mcpg__coord_eff(c, rank), p);
        CHECK(eff == mcpg__bit_get(mcpg__coord_eff(c, p), rank), "I4 links that count are not symmetric");
        bool raw = mcpg__bit_get(mcpg__coord_raw(c, rank), p) && mcpg__bit_get(mcpg__coord_raw(c, p), rank);
        CHECK(!raw || eff, "I4 both ends say up and the link does not count");
        if (!eff || raw) continue;
        bool judged = false;
        for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS && !judged; i++)
            judged = c->faults[i].used &&
                     (mcpg__rankset_has(&c->faults[i].suspects, rank) || mcpg__rankset_has(&c->faults[i].suspects, p));
        CHECK(judged, "I4 a lost link counts and no fault judges it");
    }
    return NULL;
}

static const char *check_health(const mcpg_coord_t *c) {
    if (c->health_dirty) return NULL;
    for (uint32_t r = 0; r < c->rank_high; r++) {
        bool present = mcpg__rankset_has(&c->present, r);
        CHECK(mcpg__rankset_has(&c->healthy, r) == (c->ranks[r].state == MCPG_RANK_HEALTHY),
              "I10 the healthy set differs from the ranks' states");
        CHECK(!present || mcpg__rankset_has(&c->active, r) == (c->ranks[r].active_count > 0),
              "I10 the set of active ranks differs from their counts");
    }
    for (uint32_t a = mcpg__rankset_next(&c->present, 0); a < MCPG_MAX_RANKS;
         a = mcpg__rankset_next(&c->present, a + 1))
        for (uint32_t b = mcpg__rankset_next(&c->present, a + 1); b < MCPG_MAX_RANKS;
             b = mcpg__rankset_next(&c->present, b + 1)) {
            bool both = c->ranks[a].state == MCPG_RANK_HEALTHY && c->ranks[b].state == MCPG_RANK_HEALTHY;
            CHECK(!both || mcpg__bit_get(mcpg__coord_eff(c, a), b), "I3 two HEALTHY ranks are not linked");
        }
    return NULL;
}

static const char *check_barrier(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    if (b->phase == MCPG_COORD_BARRIER_NONE) {
        CHECK(b->proposal == MCPG_COORD_NONE, "I5 a proposal runs without a barrier");
        return NULL;
    }
    CHECK(b->id.epoch == g->epoch_used && b->id.epoch > g->committed.epoch, "I1 the open epoch is not the newest");
    CHECK(mcpg__rankset_subset(&b->acked, &b->asked), "I6 an ACK of a rank that was not asked");
    CHECK(!mcpg__rankset_meets(&b->added, &b->removed), "I6 a slot is added and removed in one view");
    CHECK(b->kind != MCPG_COORD_BARRIER_BOOT || g->phase == MCPG_COORD_GROUP_FORMING,
          "I6 a bootstrap of a group that is ready");
    CHECK(b->proposal == MCPG_COORD_NONE || c->props[b->proposal].phase == MCPG_COORD_PROP_RUNNING,
          "I5 the barrier's proposal does not run");
    return NULL;
}

static const char *check_rebuild(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    const mcpg_coord_barrier_t *b = &g->barrier;
    bool waits = g->rebuild != MCPG_COORD_REBUILD_NONE;
    CHECK(!waits || g->adopted, "I20 a group of this coordinator's is taken over");
    CHECK(!waits || b->phase == MCPG_COORD_BARRIER_NONE, "I20 a barrier is open in a group that is not decided");
    CHECK(!waits || mcpg__rankset_empty(&g->sync_entered), "I20 a sync is entered in an undecided group");
    CHECK(waits || mcpg__rankset_empty(&g->sync_held), "I20 a SYNC_ENTER is kept in a decided group");
    CHECK(g->rebuild != MCPG_COORD_REBUILD_CLAIM || g->record == MCPG_COORD_RECORD_CLAIM, "I20 nobody claims");
    CHECK(g->record == MCPG_COORD_RECORD_NONE || c->config.has_store, "I20 a record without a store");
    CHECK(mcpg__rankset_subset(&g->bound, &g->active) && (!g->manual || mcpg__rankset_empty(&g->bound)),
          "I20 a slot that the record leaves out is not active, or the group is manual");
    CHECK(g->adopted || g->committed.epoch == 0 || g->committed.term == c->config.term,
          "I20 another coordinator's view in a group of this one's");
    CHECK(g->committed.term <= c->config.term, "I1 a view from the future");
    return NULL;
}

static const char *check_group(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    CHECK(g->order_count <= g->capacity && g->base + g->capacity <= c->config.max_slots_total,
          "I10 a group exceeds its slots");
    CHECK(g->committed.epoch <= g->epoch_used, "I1 a committed epoch was never given out");
    CHECK((g->phase == MCPG_COORD_GROUP_READY) == (g->committed.epoch != 0),
          "I1 ready without a view, or a view before ready");
    CHECK(mcpg__rankset_subset(&g->fenced, &g->active), "I6 a fenced slot is not active");
    CHECK(g->manual || mcpg__rankset_empty(&g->fenced), "I7 an auto group has fenced slots");
    CHECK(mcpg__rankset_subset(&g->joined, &g->awaiting), "I5 a JOIN is open on a slot that does not wait");
    CHECK(mcpg__rankset_subset(&g->leaving, &g->active), "I6 a slot that is not active is leaving");
    CHECK(mcpg__rankset_subset(&g->sync_entered, &g->active), "I8 a slot that is not active has entered a sync");
    for (uint32_t s = 0; s < g->order_count; s++) {
        const mcpg_coord_slot_t *slot = mcpg__coord_slot(c, g, s);
        CHECK(mcpg__rankset_has(&g->ranks, slot->rank.v), "I10 a slot's rank is missing in the group's set");
        CHECK(mcpg__inc_none(slot->reg) || mcpg__coord_registered(c, g, s), "I4 an old incarnation is registered");
        CHECK(!mcpg__rankset_has(&g->awaiting, s) || !mcpg__inc_none(slot->reg),
              "I4 nobody is registered and the slot waits");
        CHECK(slot->commit_acked <= g->committed.epoch, "I1 a COMMIT_ACK of an epoch that was never committed");
        if (!mcpg__rankset_has(&g->active, s)) continue;
        CHECK(slot->active_since <= g->committed.epoch && slot->active_since > 0,
              "I1 active since an epoch that was never committed");
        CHECK(mcpg__inc_cmp(slot->active, c->ranks[slot->rank.v].inc) <= 0,
              "I4 an incarnation from the future is active");
    }
    const char *broken = check_rebuild(c, g);
    return broken != NULL ? broken : check_barrier(c, g);
}

static const char *check_tables(const mcpg_coord_t *c) {
    uint32_t groups = 0, slots = 0, props = 0, listed = 0, callers = 0, reports = 0, faults = 0, gathering = 0;
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_group_t *g = &c->groups[i];
        CHECK((c->gids[i] != 0) == (g->phase != MCPG_COORD_GROUP_FREE),
              "I10 the index of groups differs from the table");
        if (c->gids[i] == 0) continue;
        groups++;
        slots += (g->capacity + MCPG_COORD_BLOCK - 1u) / MCPG_COORD_BLOCK * MCPG_COORD_BLOCK;
        listed += g->proposal_count;
        bool gathers = g->rebuild == MCPG_COORD_REBUILD_GATHER || g->rebuild == MCPG_COORD_REBUILD_CLAIM;
        gathering += gathers ? 1u : 0u;
        uint32_t count = 0;
        for (uint32_t p = g->first_proposal; p != MCPG_COORD_NONE && count <= g->proposal_count; p = c->props[p].next)
            count++;
        CHECK(count == g->proposal_count, "I10 a group's list of proposals is broken");
    }
    for (uint32_t i = 0; i < c->prop_high; i++) props += c->props[i].phase != MCPG_COORD_PROP_FREE ? 1u : 0u;
    for (uint32_t i = 0; i < c->caller_high; i++) callers += c->callers[i].used ? 1u : 0u;
    for (uint32_t i = 0; i < c->report_high; i++) reports += c->reports[i].used ? 1u : 0u;
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++) faults += c->faults[i].used ? 1u : 0u;
    CHECK(groups == c->groups_used && slots == c->slots_used && slots <= c->config.max_slots_total,
          "I10 groups or slots are miscounted");
    CHECK(gathering == c->gathering, "I10 groups that gather are miscounted");
    CHECK(props == c->props_used && props == listed, "I10 proposals are miscounted");
    CHECK(callers == c->callers_used && reports == c->reports_used && faults == c->faults_used,
          "I10 a table is miscounted");
    CHECK(props > 0 || callers == 0, "I5 a caller without a proposal");
    return NULL;
}

static const char *check_active_counts(const mcpg_coord_t *c) {
    for (uint32_t r = 0; r < c->rank_high; r++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < c->group_high; i++) {
            const mcpg_coord_group_t *g = &c->groups[i];
            if (c->gids[i] == 0) continue;
            uint32_t slot = mcpg__coord_slot_of(c, g, r);
            if (slot == MCPG_COORD_NONE || !mcpg__rankset_has(&g->active, slot)) continue;
            if (mcpg__inc_eq(mcpg__coord_slot(c, g, slot)->active, c->ranks[r].inc)) count++;
        }
        CHECK(count == c->ranks[r].active_count, "I3 a rank's count of active groups is wrong");
    }
    return NULL;
}

const char *mcpg_coord_check(const mcpg_coord_t *coord) {
    const mcpg_coord_t *c = coord;
    const char *broken = check_tables(c);
    for (uint32_t r = 0; r < c->rank_high && broken == NULL; r++) broken = check_rank(c, r);
    if (broken == NULL) broken = check_health(c);
    for (uint32_t i = 0; i < c->group_high && broken == NULL; i++)
        if (c->gids[i] != 0) broken = check_group(c, &c->groups[i]);
    if (broken == NULL) broken = check_active_counts(c);
    return broken;
}
