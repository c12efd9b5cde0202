/* agent_world.c: see agent_world.h. After each step: the machine's own invariants; a rejected event changed nothing;
 * every message it sends is one that the codec accepts; each call is answered once (I5), views rise (I1), links, holds,
 * groups and reports are opened and ended in pairs, nothing is sent without a stream, nothing comes after STOP; and a
 * second machine that gets the events through the event log's encoding does exactly the same.
 */
#include "fuzz/agent_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text.h"

#define EVENT_CAP (MCPG_MSG_CAP + 64u)

static uint8_t scratch[EVENT_CAP];

/* ---- memory, kept between inputs ---- */

static void machine_memory(mcpg_agent_config_t most, void **mem_out, mcpg_agent_effects_t *fx_out) {
    *mem_out = fuzz_block(mcpg_agent_size(&most));
    mcpg_agent_effects_worst(&most, &fx_out->cap, &fx_out->arena_cap);
    fx_out->items = fuzz_block(fx_out->cap * sizeof *fx_out->items);
    fx_out->arena = fuzz_block(fx_out->arena_cap);
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

void world_begin(world_t *w, const uint8_t *data, size_t size) {
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

dp_group_t *world_group(world_t *w, mcpg_gid_t gid) {
    for (uint32_t i = 0; i < GIDS; i++)
        if (w->groups[i].used && w->groups[i].gid.v == gid.v) return &w->groups[i];
    return NULL;
}

static void see_dp_group(world_t *w, const mcpg_agent_dp_group_t *e) {
    FUZZ_REQUIRE(world_group(w, e->gid) == NULL && e->slot.v < e->capacity);
    for (uint32_t i = 0; i < GIDS; i++) {
        if (w->groups[i].used) continue;
        w->groups[i] = (dp_group_t){.used = true, .gid = e->gid, .capacity = e->capacity};
        return;
    }
    fuzz_fail(__FILE__, __LINE__, "more groups than the configuration allows");
}

static void see_install(world_t *w, const mcpg_down_commit_t *m) {
    dp_group_t *g = world_group(w, m->gid);
    FUZZ_REQUIRE(g != NULL && mcpg__view_cmp(m->view.id, g->installed) > 0);
    for (uint32_t i = 0; i < m->view.active_count; i++) FUZZ_REQUIRE(m->view.active[i].slot.v < g->capacity);
    g->installed = m->view.id;
    g->held = false; /* an install ends the hold; what is held on is said again */
}

static void see_group_gone(world_t *w, mcpg_gid_t gid) {
    dp_group_t *g = world_group(w, gid);
    FUZZ_REQUIRE(g != NULL);
    g->used = false;
    w->gone[w->gone_count++ % GIDS] = gid.v;
    for (uint32_t i = 0; i < REPORTS; i++)
        if (w->reports[i].gid == gid.v) w->reports[i].open = false; /* the data plane drops them with the group */
}

static void see_resolve(world_t *w, const mcpg_agent_dp_resolve_t *e) {
    if (e->status == MCPG_IN_DOUBT) {
        FUZZ_REQUIRE(world_group(w, e->gid) != NULL);
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
    dp_group_t *g = world_group(w, v->gid);
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
        FUZZ_REQUIRE(world_group(w, e->u.dp_sync_fence.gid) != NULL);
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
        FUZZ_REQUIRE(world_group(w, e->u.link_ask_view.gid) != NULL);
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

void world_step(world_t *w, mcpg_agent_event_t event) {
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
