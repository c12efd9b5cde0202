/* fuzz_agent.c: the input as a sequence of events for the agent machine: a coordinator that says what it likes (any
 * valid message), a stream that comes and goes, a data plane and callers that keep their contracts. After each step:
 * its own invariants; a rejected event changed nothing; every message it sends is one that the codec accepts; and the
 * contract of its effects: each call is answered once (I5), views rise (I1), links, holds, groups and reports are
 * opened and ended in pairs, nothing is sent without a stream, nothing comes after STOP; a second machine that gets the
 * events through the event log's encoding does exactly the same. At the end its timer must not spin.
 *
 * It must never know what the right answer of the machine is.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_host_codec.h"
#include "common/bytes.h"
#include "fuzz/fuzz.h"
#include "tools/text.h"

#define RANKS         8u
#define GIDS          8u
#define CALLS         64u
#define REPORTS       32u
#define STEPS_MOST    400u
#define TIMERS_MOST   100u
#define SAME_TIME     40u              /* bounded: TIMER steps in a row that may ask for another one at the same time */
#define NEVER_US      (UINT64_MAX / 4) /* a timer from here on never fires: no clock gets there */
#define EVENT_CAP     (MCPG_MSG_CAP + 64u)
#define CALL_ID_FIRST 100u

typedef struct {
    bool used, held; /* held: DP_HOLD of `hold` is in force */
    mcpg_gid_t gid;
    mcpg_view_id_t hold, held_told, installed;
    uint32_t capacity;
} dp_group_t;
typedef enum { STREAM_NONE, STREAM_OPENING, STREAM_OPEN } stream_t;

typedef struct {
    fuzz_in_t in;
    mcpg_agent_config_t config;
    mcpg_agent_t *agent, *twin;
    mcpg_agent_effects_t fx, twin_fx;
    bool with_twin, with_codec;
    uint64_t digest, armed_us;
    mcpg_time_t now;
    uint32_t steps;
    stream_t stream;
    bool closing, attached_sent, told_attached, stopped;
    mcpg_incarnation_t links[RANKS];
    dp_group_t groups[GIDS];
    uint64_t gone[GIDS]; /* gids that ended, so that the coordinator goes on about them */
    uint32_t gone_count;
    uint64_t last_call;
    bool call_open[CALLS];
    uint64_t last_report;
    struct {
        bool open;
        uint32_t gid;
    } reports[REPORTS];
    uint64_t term, epoch, last_check, counter;
    fuzz_hints_t hints;
} world_t;

static uint8_t scratch[EVENT_CAP];

/* ---- memory, kept between inputs ---- */

static void *block(size_t size) {
    void *p = malloc(size);
    FUZZ_REQUIRE(p != NULL);
    return p;
}

static void machine_memory(mcpg_agent_config_t most, void **mem_out, mcpg_agent_effects_t *fx_out) {
    *mem_out = block(mcpg_agent_size(&most));
    mcpg_agent_effects_worst(&most, &fx_out->cap, &fx_out->arena_cap);
    fx_out->items = block(fx_out->cap * sizeof *fx_out->items);
    fx_out->arena = block(fx_out->arena_cap);
}

static mcpg_agent_config_t config_of(uint8_t bits) {
    mcpg_agent_config_t c = {.rank = {bits & 3u},
                             .session = {77},
                             .host_id = 1,
                             .pid = 4711,
                             .endpoint = {'e'},
                             .endpoint_len = 1,
                             .max_ranks = bits & 4u ? 4 : RANKS,
                             .max_groups = bits & 8u ? 1 : 4,
                             .max_slots_total = bits & 16u ? 8 : 24,
                             .max_calls = bits & 32u ? 2 : 8,
                             .max_reports = bits & 64u ? 1 : 4,
                             .attach_timeout_us = 2000000,
                             .seed = 5};
    c.timers = fuzz_timers();
    return c;
}

static mcpg_agent_t *make(const mcpg_agent_config_t *config, void *mem) {
    mcpg_agent_t *agent = NULL;
    size_t size = mcpg_agent_size(config);
    memset(mem, 0, size);
    FUZZ_REQUIRE(mcpg_agent_init(mem, size, config, &agent) == MCPG_OK);
    return agent;
}

static void world_begin(world_t *w, const uint8_t *data, size_t size) {
    static void *mem, *twin_mem;
    static mcpg_agent_effects_t fx, twin_fx;
    if (mem == NULL) {
        machine_memory(config_of(0), &mem, &fx);
        machine_memory(config_of(0), &twin_mem, &twin_fx);
    }
    memset(w, 0, sizeof *w);
    w->in = (fuzz_in_t){data, data + size};
    w->config = config_of(fuzz_u8(&w->in));
    uint8_t extra = fuzz_u8(&w->in);
    w->with_twin = extra & 1u;
    w->with_codec = extra & 2u;
    w->agent = make(&w->config, mem);
    if (w->with_twin) w->twin = make(&w->config, twin_mem);
    w->fx = fx;
    w->twin_fx = twin_fx;
    w->digest = mcpg_agent_digest(w->agent);
    w->now.us = 1000000;
    w->armed_us = 0;
    w->term = 1;
    w->last_call = CALL_ID_FIRST;
}

/* ---- the contract of the effects ---- */

static dp_group_t *group_of(world_t *w, mcpg_gid_t gid) {
    for (uint32_t i = 0; i < GIDS; i++)
        if (w->groups[i].used && w->groups[i].gid.v == gid.v) return &w->groups[i];
    return NULL;
}

static void see_dp_group(world_t *w, const mcpg_agent_dp_group_t *e) {
    FUZZ_REQUIRE(group_of(w, e->gid) == NULL && e->slot.v < e->capacity);
    for (uint32_t i = 0; i < GIDS; i++) {
        if (w->groups[i].used) continue;
        w->groups[i] = (dp_group_t){.used = true, .gid = e->gid, .capacity = e->capacity};
        return;
    }
    fuzz_fail(__FILE__, __LINE__, "more groups than the configuration allows");
}

static void see_install(world_t *w, const mcpg_down_commit_t *m) {
    dp_group_t *g = group_of(w, m->gid);
    FUZZ_REQUIRE(g != NULL && mcpg__view_cmp(m->view.id, g->installed) > 0);
    for (uint32_t i = 0; i < m->view.active_count; i++) FUZZ_REQUIRE(m->view.active[i].slot.v < g->capacity);
    g->installed = m->view.id;
    g->held = false; /* an install ends the hold; what is held on is said again */
}

static void see_group_gone(world_t *w, mcpg_gid_t gid) {
    dp_group_t *g = group_of(w, gid);
    FUZZ_REQUIRE(g != NULL);
    g->used = false;
    w->gone[w->gone_count++ % GIDS] = gid.v;
    for (uint32_t i = 0; i < REPORTS; i++)
        if (w->reports[i].gid == gid.v) w->reports[i].open = false; /* the data plane drops them with the group */
}

static void see_resolve(world_t *w, const mcpg_agent_dp_resolve_t *e) {
    if (e->status == MCPG_IN_DOUBT) {
        FUZZ_REQUIRE(group_of(w, e->gid) != NULL);
        return;
    }
    FUZZ_REQUIRE(e->report_id >= 1 && e->report_id <= w->last_report);
    FUZZ_REQUIRE(w->reports[e->report_id - 1].open && w->reports[e->report_id - 1].gid == e->gid.v);
    w->reports[e->report_id - 1].open = false;
}

static void see_call_done(world_t *w, const mcpg_agent_call_done_t *e) {
    FUZZ_REQUIRE(e->call_id > CALL_ID_FIRST && e->call_id <= w->last_call);
    FUZZ_REQUIRE(w->call_open[e->call_id - CALL_ID_FIRST - 1] && "I5");
    FUZZ_REQUIRE(e->text.len < MCPG_TEXT_CAP);
    w->call_open[e->call_id - CALL_ID_FIRST - 1] = false;
}

static void see_send(world_t *w, const mcpg_up_msg_t *msg) {
    FUZZ_REQUIRE(w->stream == STREAM_OPEN && !w->closing);
    FUZZ_REQUIRE((msg->kind == MCPG_UP_ATTACH) != w->attached_sent && "ATTACH is the first message, and only that");
    w->attached_sent = true;
    if (!w->with_codec) return;
    size_t len = 0;
    mcpg_up_msg_t back;
    FUZZ_REQUIRE(mcpg__up_pack(msg, scratch, MCPG_MSG_CAP, &len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__up_unpack(scratch, len, fuzz_decode_arena(), &back) == MCPG_OK);
}

static void see_link(world_t *w, const mcpg_agent_effect_t *e) {
    if (e->kind == MCPG_AGENT_FX_LINK_OPEN) {
        uint32_t r = e->u.link_open.rank.v;
        FUZZ_REQUIRE(r < w->config.max_ranks && r != w->config.rank.v && w->links[r].term == 0);
        FUZZ_REQUIRE(!mcpg__inc_none(e->u.link_open.inc) && e->u.link_open.endpoint.len > 0);
        w->links[r] = e->u.link_open.inc;
    } else if (e->kind == MCPG_AGENT_FX_LINK_CLOSE) {
        uint32_t r = e->u.link_close.rank.v;
        FUZZ_REQUIRE(r < w->config.max_ranks && mcpg__inc_eq(w->links[r], e->u.link_close.inc));
        w->links[r] = (mcpg_incarnation_t){0, 0};
    } else {
        uint32_t r = e->u.link_check.rank.v;
        FUZZ_REQUIRE(r < w->config.max_ranks && w->links[r].term != 0);
        w->last_check = e->u.link_check.check_id;
    }
}

static void see_hold(world_t *w, const mcpg_agent_effect_t *e) {
    bool hold = e->kind == MCPG_AGENT_FX_DP_HOLD;
    const mcpg_agent_dp_view_t *v = hold ? &e->u.dp_hold : &e->u.dp_release;
    dp_group_t *g = group_of(w, v->gid);
    FUZZ_REQUIRE(g != NULL);
    if (hold) {
        FUZZ_REQUIRE(mcpg__view_cmp(v->view, g->installed) > 0);
        g->hold = v->view;
    } else {
        FUZZ_REQUIRE(g->held && mcpg__view_eq(g->hold, v->view));
    }
    g->held = hold;
}

static void see_effect(world_t *w, const mcpg_agent_effect_t *e) {
    FUZZ_REQUIRE(!w->stopped || e->kind == MCPG_AGENT_FX_CALL_DONE);
    switch (e->kind) {
    case MCPG_AGENT_FX_SEND:
        see_send(w, e->u.send);
        return;
    case MCPG_AGENT_FX_CONNECT:
        FUZZ_REQUIRE(w->stream == STREAM_NONE);
        w->stream = STREAM_OPENING;
        w->closing = w->attached_sent = false;
        return;
    case MCPG_AGENT_FX_DISCONNECT:
        FUZZ_REQUIRE(w->stream != STREAM_NONE);
        w->closing = true;
        return;
    case MCPG_AGENT_FX_ARM_TIMER:
        w->armed_us = e->u.arm_timer.us;
        return;
    case MCPG_AGENT_FX_ATTACHED:
        FUZZ_REQUIRE(!w->told_attached);
        w->told_attached = true;
        return;
    case MCPG_AGENT_FX_LINK_OPEN:
    case MCPG_AGENT_FX_LINK_CLOSE:
    case MCPG_AGENT_FX_LINK_CHECK:
        see_link(w, e);
        return;
    case MCPG_AGENT_FX_DP_GROUP:
        see_dp_group(w, &e->u.dp_group);
        return;
    case MCPG_AGENT_FX_DP_HOLD:
    case MCPG_AGENT_FX_DP_RELEASE:
        see_hold(w, e);
        return;
    case MCPG_AGENT_FX_DP_INSTALL:
        see_install(w, e->u.dp_install);
        return;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        FUZZ_REQUIRE(group_of(w, e->u.dp_sync_fence.gid) != NULL);
        return;
    case MCPG_AGENT_FX_DP_RESOLVE:
        see_resolve(w, &e->u.dp_resolve);
        return;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        see_group_gone(w, e->u.dp_group_gone.gid);
        return;
    case MCPG_AGENT_FX_CALL_DONE:
        see_call_done(w, e->u.call_done);
        return;
    case MCPG_AGENT_FX_LINK_ASK_VIEW:
        FUZZ_REQUIRE(group_of(w, e->u.link_ask_view.gid) != NULL);
        return;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        FUZZ_REQUIRE(e->u.link_tell_view.msg->kind == MCPG_DOWN_COMMIT ||
                     e->u.link_tell_view.msg->kind == MCPG_DOWN_ABORT);
        return;
    case MCPG_AGENT_FX_NOTIFY:
        return;
    case MCPG_AGENT_FX_STOP:
        for (uint64_t i = 0; i < CALLS; i++) FUZZ_REQUIRE(!w->call_open[i]);
        w->stopped = true;
        return;
    case MCPG_AGENT_FX__COUNT:
        break;
    }
    fuzz_fail(__FILE__, __LINE__, "an effect of no kind");
}

/* ---- a step ---- */

/* The same event as replay gets it. A message goes as its wire bytes. */
static void step_twin(world_t *w, const mcpg_agent_event_t *event, mcpg_status_t status) {
    size_t len = 0;
    mcpg_down_msg_t msg;
    mcpg_agent_event_t again;
    memset(&again, 0, sizeof again);
    again.now = event->now;
    again.kind = event->kind;
    const mcpg_down_msg_t *down = event->kind == MCPG_AGENT_EV_MSG         ? event->u.msg
                                  : event->kind == MCPG_AGENT_EV_VIEW_TOLD ? event->u.view_told
                                                                           : NULL;
    mcpg_status_t packed = down != NULL ? mcpg__down_pack(down, scratch, sizeof scratch, &len)
                                        : mcpg__agent_event_encode(event, scratch, sizeof scratch, &len);
    FUZZ_REQUIRE(packed == MCPG_OK);
    FUZZ_REQUIRE(mcpg__agent_event_decode(scratch, len, fuzz_decode_arena(), &msg, &again) == MCPG_OK);
    mcpg_agent_effects_reset(&w->twin_fx);
    FUZZ_REQUIRE(mcpg_agent_step(w->twin, &again, &w->twin_fx) == status);
    if (status != MCPG_OK) return;
    FUZZ_REQUIRE(w->twin_fx.count == w->fx.count);
    uint32_t crc = mcpg__agent_effects_crc(&w->fx, scratch, sizeof scratch);
    FUZZ_REQUIRE(mcpg__agent_effects_crc(&w->twin_fx, scratch, sizeof scratch) == crc);
    FUZZ_REQUIRE(mcpg_agent_digest(w->twin) == w->digest);
}

static void step(world_t *w, mcpg_agent_event_t event) {
    if (w->steps++ >= STEPS_MOST) return;
    event.now = w->now;
    mcpg_agent_effects_reset(&w->fx);
    if (fuzz_verbose) mcpg__text_agent_event(stdout, &event);
    mcpg_status_t status = mcpg_agent_step(w->agent, &event, &w->fx);
    for (uint32_t i = 0; fuzz_verbose && i < w->fx.count; i++) mcpg__text_agent_effect(stdout, &w->fx.items[i]);
    uint64_t digest = mcpg_agent_digest(w->agent);
    FUZZ_REQUIRE(status == MCPG_OK || (digest == w->digest && w->fx.count == 0));
    w->digest = digest;
    if (w->with_twin) step_twin(w, &event, status);
    for (uint32_t i = 0; i < w->fx.count; i++) see_effect(w, &w->fx.items[i]);
    FUZZ_REQUIRE_NULL(mcpg_agent_check(w->agent));
}

static void say(world_t *w, const mcpg_down_msg_t *msg) {
    if (w->stream == STREAM_OPEN && fuzz_down_valid(msg))
        step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_MSG, .u.msg = msg});
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
    if (fuzz_down_through(&m, fuzz_decode_arena())) say(w, &m);
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
    say(w, &m);
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
    say(w, &m);
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
    say(w, &m);
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
    if (how & 1u) say(w, &prepare);
    if (how & 2u) say(w, &commit);
}

/* ---- what the data plane and the callers do ---- */

static void held(world_t *w) {
    dp_group_t *g = &w->groups[fuzz_below(&w->in, GIDS)];
    uint8_t seq = fuzz_u8(&w->in);
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_HELD};
    event.u.held = (mcpg_agent_held_ev_t){g->gid, seq >= 224 ? g->held_told : g->hold, seq, seq & 1u};
    if (!g->used || g->hold.term == 0) return;
    g->held_told = g->hold;
    step(w, event);
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
    if (inc_given(event.u.link.inc)) step(w, event);
}

static void death_event(world_t *w) {
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_DEATH};
    event.u.death.rank.v = fuzz_u8(&w->in) % w->config.max_ranks;
    event.u.death.inc = fuzz_inc(&w->in, &w->hints, event.u.death.rank.v);
    event.u.death.proof = (uint8_t)fuzz_below(&w->in, 3);
    if (inc_given(event.u.death.inc)) step(w, event);
}

static void op_failed(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    mcpg_gid_t gid = fuzz_gid(&w->in, &w->hints);
    mcpg_member_t failed[RANKS];
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_OP_FAILED};
    event.u.op_failed = (mcpg_agent_op_failed_ev_t){.gid = gid, .seq = how, .failed = failed};
    for (uint32_t r = 0; r < w->config.max_ranks; r++)
        if (who >> r & 1u) failed[event.u.op_failed.failed_count++] = (mcpg_member_t){{r}, {r}, w->hints.incs[r]};
    if (how < 224 && w->last_report < REPORTS && event.u.op_failed.failed_count > 0 && group_of(w, gid) != NULL) {
        event.u.op_failed.report_id = ++w->last_report;
        w->reports[w->last_report - 1].open = !w->stopped;
        w->reports[w->last_report - 1].gid = gid.v;
    }
    step(w, event);
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
    step(w, event);
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
        if (inc_given(event.u.view_asked.inc)) step(w, event);
        return;
    }
    mcpg_down_kind_t kind = how & 2u ? MCPG_DOWN_COMMIT : MCPG_DOWN_ABORT;
    mcpg_down_msg_t m = fuzz_down(&w->in, kind, &w->hints, fuzz_build_arena());
    event.kind = MCPG_AGENT_EV_VIEW_TOLD;
    event.u.view_told = &m;
    if (fuzz_down_through(&m, fuzz_decode_arena())) step(w, event);
}

static void stream(world_t *w, bool up) {
    if (w->stream == STREAM_NONE) return;
    if (up) {
        if (w->stream != STREAM_OPENING || w->closing) return;
        w->stream = STREAM_OPEN;
        step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
        return;
    }
    w->stream = STREAM_NONE;
    step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_DISCONNECTED});
}

static void fire_timer(world_t *w, bool early) {
    if (!early && w->armed_us < NEVER_US && w->armed_us > w->now.us) w->now.us = w->armed_us;
    if (w->armed_us <= w->now.us) w->armed_us = NEVER_US;
    step(w, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
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
    step(w, event);
    m.u.registered.call_id = r->call_id;
    m.u.registered.gid.v = 1 + (how >> 6);
    m.u.registered.capacity = r->capacity;
    m.u.registered.manual = how & 1u;
    m.u.registered.no_auto_sync = how & 2u;
    m.u.registered.isolated = how & 4u;
    say(w, &m);
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
    if (how & 1u) say(w, &m);
    mcpg_agent_event_t event = {.kind = MCPG_AGENT_EV_HELD};
    event.u.held.gid = g->gid;
    event.u.held.view = g->hold;
    event.u.held.next_seq = how;
    if (how & 2u && g->held) step(w, event);
    m = (mcpg_down_msg_t){.kind = how & 8u ? MCPG_DOWN_ABORT : MCPG_DOWN_COMMIT};
    if (how & 8u) {
        m.u.abort.gid = g->gid;
        m.u.abort.view = body.id;
    } else {
        m.u.commit = (mcpg_down_commit_t){.gid = g->gid, .view = body, .switch_seq = how, .sync = how & 16u};
    }
    if (how & 4u) say(w, &m);
}

typedef enum {
    OP_START_GROUP,
    OP_BARRIER,
    OP_TIMER,
    OP_ADVANCE,
    OP_CONNECTED,
    OP_DISCONNECTED,
    OP_ATTACHED,
    OP_WELCOME,
    OP_STATES,
    OP_REGISTERED,
    OP_VIEW,
    OP_HELD,
    OP_LINK,
    OP_DEATH,
    OP_OP_FAILED,
    OP_CALL,
    OP_PEER_VIEW,
    OP_ANY_MESSAGE,
    OP__COUNT
} op_t;

static void run_op(world_t *w, op_t op) {
    switch (op) {
    case OP_START_GROUP:
        start_group(w);
        return;
    case OP_BARRIER:
        barrier(w);
        return;
    case OP_TIMER:
        fire_timer(w, fuzz_u8(&w->in) >= 224);
        return;
    case OP_ADVANCE:
        w->now.us += (uint64_t)fuzz_u8(&w->in) * 20000u;
        return;
    case OP_CONNECTED:
    case OP_DISCONNECTED:
        stream(w, op == OP_CONNECTED);
        return;
    case OP_ATTACHED: /* all at once, from wherever it is */
        if (w->stream == STREAM_NONE) fire_timer(w, false);
        stream(w, true);
        welcome(w);
        return;
    case OP_WELCOME:
        welcome(w);
        return;
    case OP_STATES:
        rank_states(w);
        return;
    case OP_REGISTERED:
        registered(w);
        return;
    case OP_VIEW:
        view(w);
        return;
    case OP_HELD:
        held(w);
        return;
    case OP_LINK:
        link_event(w);
        return;
    case OP_DEATH:
        death_event(w);
        return;
    case OP_OP_FAILED:
        op_failed(w);
        return;
    case OP_CALL:
        call(w);
        return;
    case OP_PEER_VIEW:
        peer_view(w);
        return;
    case OP_ANY_MESSAGE:
        any_message(w, (mcpg_down_kind_t)fuzz_below(&w->in, MCPG_DOWN__COUNT));
        return;
    case OP__COUNT:
        return;
    }
}

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
        run_op(&world, (op_t)(fuzz_u8(&world.in) % OP__COUNT));
    }
    run_out(&world);
    return 0;
}
