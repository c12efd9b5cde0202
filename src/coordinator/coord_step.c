/* coord_step.c: the machine's doors: size, init, step, queries.
 *
 * A step validates, makes sure that the worst case fits, lets the event's file mutate, then settles: faults that end,
 * the healthy set, RANK_STATES, judgements, groups, in this order, until nothing moves. What does not fit follows in a
 * TIMER step at the same time. It must never hold a rule of membership itself.
 */
#include "coordinator/coord_state.h"

/* ---- memory ---- */

typedef struct {
    size_t conns, hints, gids, ranks, raw, eff, answered, groups, slots, blocks, props, callers, reports, total;
    uint32_t words, prop_cap, caller_cap, report_cap;
} layout_t;

static size_t place(size_t *at, size_t bytes) {
    size_t here = *at;
    *at = (here + bytes + 63u) & ~(size_t)63u;
    return here;
}

static bool config_valid(const mcpg_coord_config_t *config) {
    const mcpg_timers_t *t = &config->timers;
    bool sizes = config->max_ranks > 0 && config->max_ranks <= MCPG_MAX_RANKS && config->max_groups > 0 &&
                 config->max_groups <= MCPG_MAX_GROUPS && config->max_slots_total >= MCPG_COORD_BLOCK &&
                 config->max_slots_total <= MCPG_MAX_SLOTS_TOTAL;
    return sizes && config->term != 0 && t->heartbeat_us && t->offline_us && t->ack_us && t->ack_added_us &&
           t->reconcile_us;
}

static layout_t layout_of(const mcpg_coord_config_t *config) {
    layout_t l = {.words = (config->max_ranks + 63u) / 64u};
    size_t n = config->max_ranks, row = n * l.words * sizeof(uint64_t);
    size_t at = 0;
    l.prop_cap = config->max_ranks + 64u;
    l.caller_cap = 4u * config->max_ranks + 64u;
    l.report_cap = 4u * config->max_ranks + 64u;
    (void)place(&at, sizeof(struct mcpg_coord));
    l.conns = place(&at, n * sizeof(uint64_t));
    l.hints = place(&at, n * sizeof(uint32_t));
    l.gids = place(&at, config->max_groups * sizeof(uint32_t));
    l.ranks = place(&at, n * sizeof(mcpg_coord_rank_t));
    l.raw = place(&at, row);
    l.eff = place(&at, row);
    l.answered = place(&at, MCPG_COORD_MAX_FAULTS * row);
    l.groups = place(&at, config->max_groups * sizeof(mcpg_coord_group_t));
    l.slots = place(&at, config->max_slots_total * sizeof(mcpg_coord_slot_t));
    l.blocks = place(&at, (config->max_slots_total / MCPG_COORD_BLOCK + 63u) / 64u * sizeof(uint64_t));
    l.props = place(&at, l.prop_cap * sizeof(mcpg_coord_prop_t));
    l.callers = place(&at, l.caller_cap * sizeof(mcpg_coord_caller_t));
    l.reports = place(&at, l.report_cap * sizeof(mcpg_coord_report_t));
    l.total = at;
    return l;
}

size_t mcpg_coord_size(const mcpg_coord_config_t *config) {
    return config_valid(config) ? layout_of(config).total : 0;
}

mcpg_status_t mcpg_coord_init(void *mem, size_t size, const mcpg_coord_config_t *config, mcpg_coord_t **out) {
    if (mem == NULL || config == NULL || out == NULL || !config_valid(config)) return MCPG_INVALID_ARGUMENT;
    layout_t l = layout_of(config);
    if (size < l.total || ((uintptr_t)mem & 15u) != 0) return MCPG_INVALID_ARGUMENT;
    uint8_t *base = (uint8_t *)mem;
    mcpg_coord_t *c = (mcpg_coord_t *)mem;
    c->config = *config;
    c->words = l.words;
    c->prop_cap = l.prop_cap;
    c->caller_cap = l.caller_cap;
    c->report_cap = l.report_cap;
    c->armed_us = MCPG_COORD_NEVER;
    c->want_us = MCPG_COORD_NEVER;
    c->health_exact = true;
    c->settle_us = config->predecessor ? MCPG_COORD_NEVER : 0;
    c->conns = (uint64_t *)(void *)(base + l.conns);
    c->hints = (uint32_t *)(void *)(base + l.hints);
    c->gids = (uint32_t *)(void *)(base + l.gids);
    c->ranks = (mcpg_coord_rank_t *)(void *)(base + l.ranks);
    c->raw = (uint64_t *)(void *)(base + l.raw);
    c->eff = (uint64_t *)(void *)(base + l.eff);
    c->answered = (uint64_t *)(void *)(base + l.answered);
    c->groups = (mcpg_coord_group_t *)(void *)(base + l.groups);
    c->slots = (mcpg_coord_slot_t *)(void *)(base + l.slots);
    c->blocks = (uint64_t *)(void *)(base + l.blocks);
    c->props = (mcpg_coord_prop_t *)(void *)(base + l.props);
    c->callers = (mcpg_coord_caller_t *)(void *)(base + l.callers);
    c->reports = (mcpg_coord_report_t *)(void *)(base + l.reports);
    *out = c;
    return MCPG_OK;
}

/* ---- dispatch ---- */

static bool record_valid(const mcpg_coord_t *c, const mcpg_coord_event_t *event) {
    const mcpg_group_record_t *record = event->record;
    bool known = event->status == MCPG_OK || event->status == MCPG_UNAVAILABLE || event->status == MCPG_CONFLICT;
    if (!known || event->gid.v == 0 || !c->config.has_store) return false;
    return record == NULL || !record->has_view || record->view.active_count <= MCPG_MAX_RANKS;
}

static mcpg_status_t event_valid(const mcpg_coord_t *c, const mcpg_coord_event_t *event) {
    switch (event->kind) {
    case MCPG_COORD_EV_MSG:
        if (event->msg == NULL || (unsigned)event->msg->kind >= (unsigned)MCPG_UP__COUNT) return MCPG_INVALID_ARGUMENT;
        return event->conn == 0 ? MCPG_INVALID_ARGUMENT : MCPG_OK;
    case MCPG_COORD_EV_CLOSED:
        return event->conn == 0 ? MCPG_INVALID_ARGUMENT : MCPG_OK;
    case MCPG_COORD_EV_EXIT:
        return event->rank.v >= c->config.max_ranks ? MCPG_INVALID_ARGUMENT : MCPG_OK;
    case MCPG_COORD_EV_TIMER:
    case MCPG_COORD_EV_SHUTDOWN:
        return MCPG_OK;
    case MCPG_COORD_EV_RECORD:
        return record_valid(c, event) ? MCPG_OK : MCPG_INVALID_ARGUMENT;
    case MCPG_COORD_EV__COUNT:
        break;
    }
    return MCPG_INVALID_ARGUMENT;
}

static void dispatch_msg(mcpg_coord_t *c, uint64_t conn, const mcpg_up_msg_t *msg, mcpg_coord_effects_t *fx) {
    if (msg->kind == MCPG_UP_ATTACH) {
        mcpg__coord_attach(c, conn, &msg->u.attach, fx);
        return;
    }
    uint32_t rank = mcpg__coord_rank_by_conn(c, conn);
    if (rank == MCPG_COORD_NONE) { /* an older stream of a rank, or one that never attached (I4) */
        mcpg__fx_close(fx, conn);
        return;
    }
    c->ranks[rank].last_heard_us = c->now.us;
    switch (msg->kind) {
    case MCPG_UP_ATTACH:
        return;
    case MCPG_UP_HEARTBEAT:
        mcpg__coord_heartbeat(c, rank, &msg->u.heartbeat, fx);
        return;
    case MCPG_UP_LINK:
        mcpg__coord_link(c, rank, &msg->u.link, fx);
        return;
    case MCPG_UP_DEATH:
        mcpg__coord_death(c, rank, &msg->u.death, fx);
        return;
    case MCPG_UP_REGISTER:
        mcpg__coord_register(c, rank, &msg->u.register_group, fx);
        return;
    case MCPG_UP_JOIN:
        mcpg__coord_join(c, rank, &msg->u.join, fx);
        return;
    case MCPG_UP_PROPOSE:
        mcpg__coord_propose(c, rank, &msg->u.propose, fx);
        return;
    case MCPG_UP_ACK:
        mcpg__coord_ack(c, rank, &msg->u.ack, fx);
        return;
    case MCPG_UP_COMMIT_ACK:
        mcpg__coord_commit_ack(c, rank, &msg->u.commit_ack);
        return;
    case MCPG_UP_OP_FAILED:
        mcpg__coord_op_failed(c, rank, &msg->u.op_failed, fx);
        return;
    case MCPG_UP_SYNC_ENTER:
        mcpg__coord_sync_enter(c, rank, &msg->u.sync_enter, fx);
        return;
    case MCPG_UP_LEAVE_GROUP:
        mcpg__coord_leave(c, rank, &msg->u.leave_group);
        return;
    case MCPG_UP_DETACH:
        mcpg__coord_detach(c, rank, fx);
        return;
    case MCPG_UP_REBUILD:
        mcpg__coord_rebuild(c, rank, &msg->u.rebuild, fx);
        return;
    case MCPG_UP_REBUILD_END:
        mcpg__coord_rebuild_end(c, rank, fx);
        return;
    case MCPG_UP__COUNT:
        return;
    }
}

/* Time in which this process itself did not run is nobody's silence: a late step moves every deadline. So late that the
 * agents have given it up: they get time to come back. */
static void forgive(mcpg_coord_t *c, uint64_t late_us) {
    mcpg__coord_rebuild_forgive(c, late_us);
    if (late_us >= c->config.timers.offline_us) mcpg__coord_mass_begin(c);
    for (uint32_t r = 0; r < c->rank_high; r++) {
        mcpg_coord_rank_t *rank = &c->ranks[r];
        rank->last_heard_us = rank->last_heard_us + late_us < c->now.us ? rank->last_heard_us + late_us : c->now.us;
        rank->closed_at_us = rank->closed_at_us + late_us < c->now.us ? rank->closed_at_us + late_us : c->now.us;
    }
    for (uint32_t i = 0; i < MCPG_COORD_MAX_FAULTS; i++)
        if (c->faults[i].used) c->faults[i].deadline_us = mcpg__after((mcpg_time_t){c->faults[i].deadline_us}, late_us);
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_barrier_t *b = &c->groups[i].barrier;
        if (c->gids[i] == 0 || b->phase == MCPG_COORD_BARRIER_NONE) continue;
        b->deadline_us = mcpg__after((mcpg_time_t){b->deadline_us}, late_us);
        b->removed_deadline_us = mcpg__after((mcpg_time_t){b->removed_deadline_us}, late_us);
    }
}

/* Whatever event comes first after such a gap: the TIMER is still under way, and finds nothing more to forgive. */
static void forgive_gap(mcpg_coord_t *c) {
    if (c->now.us <= c->armed_us || c->now.us - c->armed_us <= c->config.timers.heartbeat_us) return;
    forgive(c, c->now.us - c->armed_us);
    c->armed_us = c->now.us;
}

static void dispatch_timer(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (c->now.us >= c->armed_us) c->armed_us = MCPG_COORD_NEVER;
    mcpg__coord_silence(c, fx);
    mcpg__coord_mass_timer(c);
    mcpg__coord_health_timer(c);
    if (!mcpg__coord_callers_expire(c, fx)) c->more = true;
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (c->gids[i] == 0 || g->barrier.phase == MCPG_COORD_BARRIER_NONE) continue;
        bool removed_due = g->barrier.phase == MCPG_COORD_BARRIER_ALL && c->now.us >= g->barrier.removed_deadline_us;
        if (c->now.us >= g->barrier.deadline_us || removed_due) mcpg__coord_touch(g);
    }
}

static void dispatch(mcpg_coord_t *c, const mcpg_coord_event_t *event, mcpg_coord_effects_t *fx) {
    switch (event->kind) {
    case MCPG_COORD_EV_MSG:
        dispatch_msg(c, event->conn, event->msg, fx);
        return;
    case MCPG_COORD_EV_CLOSED:
        mcpg__coord_closed(c, event->conn);
        return;
    case MCPG_COORD_EV_EXIT:
        mcpg__coord_exit(c, event->rank.v, event->pid, fx);
        return;
    case MCPG_COORD_EV_TIMER:
        dispatch_timer(c, fx);
        return;
    case MCPG_COORD_EV_SHUTDOWN:
        mcpg__coord_shutdown(c);
        return;
    case MCPG_COORD_EV_RECORD:
        mcpg__coord_record_event(c, event, fx);
        return;
    case MCPG_COORD_EV__COUNT:
        return;
    }
}

/* ---- settling ---- */

/* One round over the dirty groups, beginning where the last one ran out of room. False: some are left. */
static bool react_all(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    uint32_t high = c->group_high;
    if (c->group_cursor >= high) c->group_cursor = 0;
    for (uint32_t k = 0; k < high; k++) {
        uint32_t i = (c->group_cursor + k) % high;
        if (c->gids[i] == 0 || !c->groups[i].dirty) continue;
        if (mcpg__coord_group_react(c, &c->groups[i], fx)) continue;
        c->group_cursor = i;
        return false;
    }
    return true;
}

static bool any_dirty(const mcpg_coord_t *c) {
    for (uint32_t i = 0; i < c->group_high; i++)
        if (c->gids[i] != 0 && c->groups[i].dirty) return true;
    return false;
}

static void settle(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    for (uint32_t pass = 0; pass < MCPG_COORD_PASSES; pass++) {
        mcpg__coord_faults_close(c);
        mcpg__coord_health_update(c);
        bool room = mcpg__coord_publish(c, fx);
        mcpg__coord_reports_answer(c, fx);
        room = react_all(c, fx) && room;
        if (!room) break;
        if (!c->health_dirty && !any_dirty(c)) return;
    }
    c->more = true; /* a TIMER step at this very time goes on */
}

static uint64_t earliest_deadline(const mcpg_coord_t *c) {
    uint64_t due[4] = {mcpg__coord_silence_deadline(c), mcpg__coord_fault_deadline(c), mcpg__coord_caller_deadline(c),
                       mcpg__coord_rebuild_deadline(c)};
    uint64_t earliest = c->shutting && !c->stopped ? c->drain_until_us : MCPG_COORD_NEVER;
    if (c->health_later && c->health_retry_us < earliest) earliest = c->health_retry_us;
    for (uint32_t i = 0; i < 4; i++)
        if (due[i] < earliest) earliest = due[i];
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_barrier_t *b = &c->groups[i].barrier;
        if (c->gids[i] == 0 || b->phase == MCPG_COORD_BARRIER_NONE) continue;
        if (b->deadline_us > c->now.us && b->deadline_us < earliest) earliest = b->deadline_us;
        bool counts = b->removed_deadline_us > c->now.us && !mcpg__rankset_empty(&b->removed);
        if (counts && b->removed_deadline_us < earliest) earliest = b->removed_deadline_us;
    }
    return earliest;
}

/* One timer. It is never later than the earliest deadline; a deadline that moved back is found when the timer fires. */
static void arm(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (c->armed_us == MCPG_COORD_NEVER) c->want_us = earliest_deadline(c);
    if (c->more) mcpg__coord_want(c, c->now.us);
    if (c->want_us < c->armed_us && !c->stopped) {
        c->armed_us = c->want_us;
        mcpg__fx_arm(fx, c->armed_us);
    }
    c->want_us = MCPG_COORD_NEVER;
}

mcpg_status_t mcpg_coord_step(mcpg_coord_t *coord, const mcpg_coord_event_t *event, mcpg_coord_effects_t *effects) {
    if (coord == NULL || event == NULL || effects == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_coord_t *c = coord;
    if (c->stopped) return MCPG_SHUTTING_DOWN;
    MCPG_TRY(event_valid(c, event));
    uint32_t items;
    size_t arena;
    mcpg_coord_effects_worst(&c->config, &items, &arena);
    if (effects->cap - effects->count < items || effects->arena_cap - effects->arena_used < arena) return MCPG_LIMIT;
    if (event->now.us > c->now.us) c->now = event->now; /* a host's clock never goes back */
    c->more = false;
    forgive_gap(c);
    if (c->settle_us != 0 || event->kind == MCPG_COORD_EV_TIMER) mcpg__coord_rebuild_clock(c);
    dispatch(c, event, effects);
    if (!c->deposed) settle(c, effects);
    mcpg__coord_depose_finish(c, effects);
    mcpg__coord_shutdown_finish(c, effects);
    arm(c, effects);
    return MCPG_OK;
}

/* ---- queries ---- */

bool mcpg_coord_rank_conn(const mcpg_coord_t *coord, mcpg_rank_t rank, uint64_t *conn_out) {
    if (rank.v >= coord->config.max_ranks || coord->conns[rank.v] == 0) return false;
    *conn_out = coord->conns[rank.v];
    return true;
}

uint8_t mcpg_coord_rank_state(const mcpg_coord_t *coord, mcpg_rank_t rank) {
    return rank.v < coord->config.max_ranks ? coord->ranks[rank.v].state : MCPG_RANK_OFFLINE;
}

bool mcpg_coord_deposed(const mcpg_coord_t *coord) {
    return coord->deposed;
}

bool mcpg_coord_quiescent(const mcpg_coord_t *coord) {
    const mcpg_coord_t *c = coord;
    if (c->more || c->health_dirty || c->health_later || mcpg__coord_rebuilding(c) ||
        c->props_used + c->callers_used + c->reports_used + c->faults_used > 0)
        return false;
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_group_t *g = &c->groups[i];
        if (c->gids[i] == 0) continue;
        if (g->record != MCPG_COORD_RECORD_NONE || g->record_retry_us != 0) return false;
        if (g->dirty || g->barrier.phase != MCPG_COORD_BARRIER_NONE || g->sync_on || g->sync_go) return false;
    }
    return true;
}
