/* fuzz_agent.c: the input as a sequence of events for the agent machine: a coordinator that says what it likes (any
 * valid message), a stream that comes and goes, a data plane and callers that keep their contracts. agent_world.c
 * checks each step; at the end the machine's timer must not spin. It must never keep the contract of an honest
 * coordinator.
 */
#include "fuzz/agent_world.h"

#include <string.h>

#define TIMERS_MOST 100u
#define SAME_TIME   40u /* bounded: TIMER steps in a row that may ask for another one at the same time */

static void world_say(world_t *w, const mcpg_down_msg_t *msg) {
    if (w->stream == STREAM_OPEN && fuzz_down_valid(msg))
        world_step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_MSG, .u.msg = msg});
}

/* ---- what a coordinator may say ---- */

static void refresh_hints(world_t *w) {
    fuzz_hints_t *h = &w->hints;
    *h = (fuzz_hints_t){.ranks = w->config.max_ranks, .slots = 4, .inc_count = RANKS};
    for (uint32_t r = 0; r < RANKS; r++) h->incs[r] = (mcpg_incarnation_t){w->term, r + 1};
    (void)mcpg_agent_attached(w->agent, &h->incs[w->config.rank.v]);
    for (uint32_t i = 0; i < GIDS; i++) {
        const dp_group_t *g = &w->groups[i];
        if (!g->used) continue;
        h->gids[h->gid_count++] = g->gid;
        if (g->held && h->view_count < FUZZ_HINTS) h->views[h->view_count++] = g->hold;
        if (g->installed.term != 0 && h->view_count < FUZZ_HINTS) h->views[h->view_count++] = g->installed;
    }
    if (h->gid_count == 0) h->gids[h->gid_count++].v = 1;
    h->views[h->view_count < FUZZ_HINTS ? h->view_count++ : 0] = (mcpg_view_id_t){w->term, ++w->epoch};
    for (uint64_t i = 0; i < CALLS && h->number_count < 8; i++)
        if (w->call_open[i]) h->numbers[h->number_count++] = CALL_ID_FIRST + 1 + i;
    for (uint64_t i = 0; i < REPORTS && h->number_count < 12; i++)
        if (w->reports[i].open) h->numbers[h->number_count++] = i + 1;
    h->numbers[h->number_count++] = UINT64_C(1) << 63 | fuzz_below(&w->in, 4); /* a REGISTER of the machine's own */
}

static void any_message(world_t *w, mcpg_down_kind_t kind) {
    mcpg_down_msg_t m = fuzz_down(&w->in, kind, &w->hints, fuzz_build_arena());
    if (fuzz_down_through(&m, fuzz_decode_arena())) world_say(w, &m);
}

static void welcome(world_t *w) {
    uint8_t how = fuzz_u8(&w->in);
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_WELCOME};
    mcpg_incarnation_t inc = {0, 0};
    (void)mcpg_agent_attached(w->agent, &inc);
    if (how & 1u) w->term++;
    if (inc.term == 0 || how & 2u) inc = (mcpg_incarnation_t){w->term, 100 + ++w->counter};
    m.u.welcome = (mcpg_down_welcome_t){.term = w->term, .coordinator_id = 9, .inc = inc, .resumed = (how & 2u) == 0};
    m.u.welcome.heartbeat_us = 200000;
    m.u.welcome.offline_us = 1000000;
    m.u.welcome.rebuilding = how & 4u;
    world_say(w, &m);
}

/* Everybody is there, some are not. */
static void rank_states(world_t *w) {
    uint8_t healthy = fuzz_u8(&w->in), offline = fuzz_u8(&w->in), suspect = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    mcpg_rank_info_t ranks[RANKS];
    memset(ranks, 0, sizeof ranks);
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_RANK_STATES};
    m.u.rank_states = (mcpg_down_rank_states_t){.full = how & 1u, .count = w->config.max_ranks, .ranks = ranks};
    if (suspect != 0) m.u.rank_states.check_id = how + 1u;
    if (how & 64u) m.u.rank_states.end = RANKS;
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        bool off = offline >> r & 1u;
        ranks[r].rank.v = r;
        ranks[r].inc = w->hints.incs[r];
        if (how & 2u && r == (how >> 2 & 7u)) ranks[r].inc.counter += 8;
        ranks[r].state = off ? MCPG_RANK_OFFLINE : healthy >> r & 1u ? MCPG_RANK_HEALTHY : MCPG_RANK_SYNCED;
        ranks[r].dead = off && how & 32u;
        ranks[r].suspect = suspect >> r & 1u;
        if (!off) ranks[r].endpoint = (mcpg_bytes_t){(const uint8_t *)"e", 1};
    }
    world_say(w, &m);
}

static void registered(world_t *w) {
    uint8_t how = fuzz_u8(&w->in);
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_REGISTERED};
    m.u.registered.call_id = fuzz_number(&w->in, &w->hints);
    m.u.registered.gid.v = 1 + (how & 7u);
    m.u.registered.slot.v = fuzz_below(&w->in, 4);
    m.u.registered.capacity = 1 + fuzz_below(&w->in, 6);
    m.u.registered.isolated = how & 8u;
    m.u.registered.manual = how & 16u;
    m.u.registered.no_auto_sync = how & 32u;
    if (how >= 224) m.u.registered.status = MCPG_NOT_FOUND;
    world_say(w, &m);
}

/* A view that fits: of a group here, with whom the byte names; as PREPARE, as COMMIT, or one after the other. */
static void view(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    mcpg_gid_t gid = fuzz_gid(&w->in, &w->hints);
    mcpg_view_id_t id = fuzz_view_id(&w->in, &w->hints);
    mcpg_member_t active[RANKS];
    mcpg_view_body_t body = {.id = id, .active = active};
    for (uint32_t r = 0; r < w->config.max_ranks; r++)
        if (who >> r & 1u) active[body.active_count++] = (mcpg_member_t){{r}, {r}, w->hints.incs[r]};
    mcpg_down_msg_t prepare = {.kind = MCPG_DOWN_PREPARE}, commit = {.kind = MCPG_DOWN_COMMIT};
    mcpg_leave_t leave = {{how >> 5}, how};
    prepare.u.prepare = (mcpg_down_prepare_t){gid, body};
    commit.u.commit = (mcpg_down_commit_t){.gid = gid, .view = body, .switch_seq = how & 31u, .sync = how & 4u};
    commit.u.commit.leave_count = how & 8u ? 1 : 0;
    commit.u.commit.leaves = &leave;
    if (commit.u.commit.sync) commit.u.commit.sync_failed.w[0] = who;
    if (!fuzz_down_valid(&prepare)) return;
    if (how & 1u) world_say(w, &prepare);
    if (how & 2u) world_say(w, &commit);
}

/* ---- what the data plane and the callers do ---- */

static void held(world_t *w) {
    dp_group_t *g = &w->groups[fuzz_below(&w->in, GIDS)];
    uint8_t seq = fuzz_u8(&w->in);
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_HELD};
    event.u.held = (mcpg_agent_held_ev_t){g->gid, seq >= 224 ? g->held_told : g->hold, seq, seq & 1u};
    if (!g->used || g->hold.term == 0) return;
    g->held_told = g->hold;
    world_step(w, event);
}

/* The data plane names incarnations that it was given. */
static bool inc_given(mcpg_incarnation_t inc) {
    return inc.term != 0 && inc.term != UINT64_MAX && inc.counter != UINT64_MAX;
}

static void link_event(world_t *w) {
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_LINK};
    uint32_t r = fuzz_u8(&w->in) % w->config.max_ranks;
    uint8_t how = fuzz_u8(&w->in);
    event.u.link = (mcpg_agent_link_ev_t){{r}, w->links[r], how & 1u, how & 2u ? w->last_check : 0};
    if (how >= 224) event.u.link.inc = fuzz_inc(&w->in, &w->hints, r);
    if (inc_given(event.u.link.inc)) world_step(w, event);
}

static void death_event(world_t *w) {
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_DEATH};
    event.u.death.rank.v = fuzz_u8(&w->in) % w->config.max_ranks;
    event.u.death.inc = fuzz_inc(&w->in, &w->hints, event.u.death.rank.v);
    event.u.death.proof = (uint8_t)fuzz_below(&w->in, 3);
    if (inc_given(event.u.death.inc)) world_step(w, event);
}

static void op_failed(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    mcpg_gid_t gid = fuzz_gid(&w->in, &w->hints);
    mcpg_member_t failed[RANKS];
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_OP_FAILED};
    event.u.op_failed = (mcpg_agent_op_failed_ev_t){.gid = gid, .seq = how, .failed = failed};
    for (uint32_t r = 0; r < w->config.max_ranks; r++)
        if (who >> r & 1u) failed[event.u.op_failed.failed_count++] = (mcpg_member_t){{r}, {r}, w->hints.incs[r]};
    if (how < 224 && w->last_report < REPORTS && event.u.op_failed.failed_count > 0 && world_group(w, gid) != NULL) {
        event.u.op_failed.report_id = ++w->last_report;
        w->reports[w->last_report - 1].open = !w->stopped;
        w->reports[w->last_report - 1].gid = gid.v;
    }
    world_step(w, event);
}

static void call_register(world_t *w, mcpg_agent_event_t *event, uint32_t *order) {
    mcpg_agent_call_register_t *r = &event->u.call_register;
    uint8_t mask = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    event->kind = MCPG_AGENT_EV_CALL_REGISTER;
    for (uint32_t i = 0; i < RANKS; i++)
        if (mask >> i & 1u) order[r->order_count++] = i;
    if (how >= 248 && r->order_count > 0) order[0] = (uint32_t)fuzz_u64(&w->in);
    r->call_id = w->last_call;
    r->order = order;
    r->capacity = r->order_count + (how & 3u);
    r->is_extension = how & 4u;
    r->manual = how & 8u;
    r->no_auto_sync = how & 16u;
    r->label = (mcpg_bytes_t){(const uint8_t *)"a", how >> 5 & 1u};
    r->timeout_us = how & 64u ? 300000 : 0;
}

static void call(world_t *w) {
    mcpg_agent_event_t event;
    uint32_t order[RANKS];
    memset(&event, 0, sizeof event);
    if (w->last_call - CALL_ID_FIRST == CALLS) return;
    w->last_call++;
    uint8_t what = fuzz_u8(&w->in);
    mcpg_gid_t gid = fuzz_gid(&w->in, &w->hints);
    if (what < 80) {
        call_register(w, &event, order);
    } else if (what < 120) {
        event.kind = MCPG_AGENT_EV_CALL_JOIN;
        event.u.call_join = (mcpg_agent_call_join_t){w->last_call, gid, what & 1u ? 400000 : 0};
    } else if (what < 170) {
        event.kind = MCPG_AGENT_EV_CALL_PROPOSE;
        event.u.call_propose = (mcpg_agent_call_propose_t){.call_id = w->last_call, .gid = gid};
        event.u.call_propose.activate = fuzz_set(&w->in);
        event.u.call_propose.deactivate = fuzz_set(&w->in);
        event.u.call_propose.expected_epoch = what & 1u ? MCPG_ANY_EPOCH : fuzz_u8(&w->in);
        event.u.call_propose.wait_us = fuzz_u64(&w->in);
    } else if (what < 220) {
        event.kind = MCPG_AGENT_EV_CALL_SYNC;
        event.u.call_sync = (mcpg_agent_call_sync_t){.call_id = w->last_call, .gid = gid, .failed = {{what & 7u}}};
        event.u.call_sync.first_failed_seq = what & 8u ? MCPG_NO_SEQ : fuzz_u8(&w->in);
        event.u.call_sync.timeout_us = what & 16u ? 1500000 : 0;
    } else if (what < 253) {
        event.kind = MCPG_AGENT_EV_CALL_LEAVE;
        event.u.call_leave = (mcpg_agent_call_leave_t){w->last_call, gid, fuzz_u8(&w->in)};
    } else {
        event.kind = MCPG_AGENT_EV_CALL_DETACH;
        event.u.call_detach.call_id = w->last_call;
    }
    w->call_open[w->last_call - CALL_ID_FIRST - 1] = true;
    world_step(w, event);
}

static void peer_view(world_t *w) {
    uint8_t how = fuzz_u8(&w->in);
    mcpg_agent_event_t event;
    memset(&event, 0, sizeof event);
    if (how & 1u) {
        event.kind = MCPG_AGENT_EV_VIEW_ASKED;
        event.u.view_asked.rank.v = fuzz_u8(&w->in) % w->config.max_ranks;
        event.u.view_asked.inc = fuzz_inc(&w->in, &w->hints, event.u.view_asked.rank.v);
        event.u.view_asked.gid = fuzz_gid(&w->in, &w->hints);
        event.u.view_asked.view = fuzz_view_id(&w->in, &w->hints);
        if (inc_given(event.u.view_asked.inc)) world_step(w, event);
        return;
    }
    mcpg_down_kind_t kind = how & 2u ? MCPG_DOWN_COMMIT : MCPG_DOWN_ABORT;
    mcpg_down_msg_t m = fuzz_down(&w->in, kind, &w->hints, fuzz_build_arena());
    event.kind = MCPG_AGENT_EV_VIEW_TOLD;
    event.u.view_told = &m;
    if (fuzz_down_through(&m, fuzz_decode_arena())) world_step(w, event);
}

static void stream(world_t *w, bool up) {
    if (w->stream == STREAM_NONE) return;
    if (up) {
        if (w->stream != STREAM_OPENING || w->closing) return;
        w->stream = STREAM_OPEN;
        world_step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
        return;
    }
    w->stream = STREAM_NONE;
    world_step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_DISCONNECTED});
}

static void fire_timer(world_t *w, bool early) {
    if (!early && w->armed_us < NEVER_US && w->armed_us > w->now.us) w->now.us = w->armed_us;
    if (w->armed_us <= w->now.us) w->armed_us = NEVER_US;
    world_step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
}

/* Everything that it takes to a group here: attached, declared, and the answer that fits. */
static void start_group(world_t *w) {
    uint8_t mask = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    uint32_t order[RANKS], own = w->config.rank.v;
    mcpg_agent_event_t event;
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_REGISTERED};
    memset(&event, 0, sizeof event);
    if (!w->told_attached) {
        stream(w, true);
        welcome(w);
    }
    if (w->last_call - CALL_ID_FIRST == CALLS) return;
    mcpg_agent_call_register_t *r = &event.u.call_register;
    event.kind = MCPG_AGENT_EV_CALL_REGISTER;
    for (uint32_t i = 0; i < w->config.max_ranks; i++) {
        if (i == own) m.u.registered.slot.v = r->order_count;
        if (i == own || mask >> i & 1u) order[r->order_count++] = i;
    }
    r->call_id = ++w->last_call;
    r->order = order;
    r->capacity = r->order_count;
    r->manual = how & 1u;
    r->no_auto_sync = how & 2u;
    w->call_open[r->call_id - CALL_ID_FIRST - 1] = true;
    world_step(w, event);
    m.u.registered.call_id = r->call_id;
    m.u.registered.gid.v = 1 + (how >> 6);
    m.u.registered.capacity = r->capacity;
    m.u.registered.manual = how & 1u;
    m.u.registered.no_auto_sync = how & 2u;
    m.u.registered.isolated = how & 4u;
    world_say(w, &m);
}

/* A view of a group here, as far as the byte lets it go: PREPARE, HELD, COMMIT or ABORT. */
static void barrier(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    dp_group_t *g = &w->groups[fuzz_below(&w->in, 4)];
    if (!g->used) return;
    mcpg_member_t active[RANKS];
    mcpg_view_body_t body = {.id = {w->term, w->epoch}, .active = active};
    for (uint32_t i = 0; i < g->capacity && i < w->config.max_ranks; i++)
        if (who >> i & 1u) active[body.active_count++] = (mcpg_member_t){{i}, {i}, w->hints.incs[i]};
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_PREPARE};
    m.u.prepare.gid = g->gid;
    m.u.prepare.view = body;
    if (how & 1u) world_say(w, &m);
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_HELD};
    event.u.held.gid = g->gid;
    event.u.held.view = g->hold;
    event.u.held.next_seq = how;
    if (how & 2u && g->held) world_step(w, event);
    m = (mcpg_down_msg_t){.kind = how & 8u ? MCPG_DOWN_ABORT : MCPG_DOWN_COMMIT};
    if (how & 8u) {
        m.u.abort.gid = g->gid;
        m.u.abort.view = body.id;
    } else {
        m.u.commit = (mcpg_down_commit_t){.gid = g->gid, .view = body, .switch_seq = how, .sync = how & 16u};
    }
    if (how & 4u) world_say(w, &m);
}

static void op_timer(world_t *w) {
    fire_timer(w, fuzz_u8(&w->in) >= 224);
}
static void op_advance(world_t *w) {
    w->now.us += (uint64_t)fuzz_u8(&w->in) * 20000u;
}
static void op_connected(world_t *w) {
    stream(w, true);
}
static void op_disconnected(world_t *w) {
    stream(w, false);
}
/* All at once, from wherever it is. */
static void op_attached(world_t *w) {
    if (w->stream == STREAM_NONE) fire_timer(w, false);
    stream(w, true);
    welcome(w);
}
static void op_any_message(world_t *w) {
    any_message(w, (mcpg_down_kind_t)fuzz_below(&w->in, MCPG_DOWN__COUNT));
}

/* The corpus is written in these numbers: append, never insert. The rest of the space does nothing. */
#define OP_SPACE 20u
static void (*const ops[OP_SPACE])(world_t *w) = {
    start_group, barrier, op_timer, op_advance, op_connected, op_disconnected, op_attached, welcome,   rank_states,
    registered,  view,    held,     link_event, death_event,  op_failed,       call,        peer_view, op_any_message,
};

/* Nobody says anything any more: the timer goes on only with time, and every call ends. */
static void run_out(world_t *w) {
    uint32_t same = 0;
    w->steps = 0;
    for (uint32_t i = 0; i < TIMERS_MOST && w->armed_us < NEVER_US && !w->stopped; i++) {
        same = w->armed_us > w->now.us ? 0 : same + 1;
        FUZZ_REQUIRE(same < SAME_TIME && "the timer spins");
        if (w->closing) stream(w, false);
        fire_timer(w, false);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static world_t world;
    world_begin(&world, data, size);
    fire_timer(&world, true);
    while (fuzz_left(&world.in) > 0 && world.steps < STEPS_MOST) {
        refresh_hints(&world);
        void (*op)(world_t *) = ops[fuzz_below(&world.in, OP_SPACE)];
        if (op != NULL) op(&world);
    }
    run_out(&world);
    return 0;
}
