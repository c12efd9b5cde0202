/* sim_coord.c: one coordinator: the machine and the model of its host: executor, timer, connections, the launcher's
 * notices.
 *
 * It carries effects out in order and tells the checkers what goes out and what comes in. It must never decide anything
 * for the machine.
 */
#include <stdlib.h>
#include <string.h>

#include "common/eventlog.h"
#include "coordinator/coord_host_codec.h"
#include "sim/sim.h"

#define DIGEST_EVERY 512u

sim_coord_t *sim_coord_now(const sim_t *w) {
    sim_coord_t *c = w->coord_count == 0 ? NULL : w->coords[w->address];
    return c != NULL && c->alive && !c->stopped ? c : NULL;
}

static mcpg_time_t local_now(const sim_t *w, const sim_coord_t *c) {
    return (mcpg_time_t){sim_local_time(&c->clock, w->now)};
}

static void arm(sim_t *w, sim_coord_t *c) {
    uint64_t at = sim_true_time(&c->clock, c->armed_us);
    if (at == SIM_NEVER || at >= c->heap_timer_us) return;
    c->heap_timer_us = at < w->now ? w->now : at;
    sim_at(w, c->heap_timer_us, SIM_EV_COORD_TIMER, c->index, 0, 0);
}

void sim_coord_clock(sim_t *w, sim_coord_t *c) {
    arm(w, c);
}

/* ---- effects ---- */

static size_t pack(sim_t *w, const mcpg_down_msg_t *msg) {
    size_t len = 0;
    if (mcpg__down_pack(msg, w->wire, w->wire_cap, &len) != MCPG_OK)
        sim_fail(w, "codec", "the coordinator made a %s that cannot be packed", mcpg__down_name(msg->kind));
    return len;
}

static void send_all(sim_t *w, const sim_coord_t *c, const mcpg_coord_effect_t *f, size_t len) {
    const mcpg_rankset_t *to = f->to;
    mcpg__frames_tx_begin(c->frames, f->msg, w->wire, len);
    for (uint32_t r = mcpg__rankset_next(to, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(to, r + 1u)) {
        uint64_t conn;
        if (!mcpg_coord_rank_conn(c->machine, (mcpg_rank_t){r}, &conn)) continue;
        mcpg_bytes_t frame = mcpg__frames_tx_frame_for(c->frames, r, conn);
        sim_stream_down(w, (uint32_t)conn, sim_buf_new(frame.ptr, frame.len));
    }
    mcpg__frames_tx_end(c->frames);
}

static uint32_t run_effect(sim_t *w, sim_coord_t *c, const mcpg_coord_effect_t *f, uint32_t crc) {
    size_t len = 0;
    if (f->kind == MCPG_COORD_FX_SEND || f->kind == MCPG_COORD_FX_SEND_CONN) {
        len = pack(w, f->msg);
        if (w->failed) return crc;
        if (w->options.trace) sim_trace(w, "  coordinator -> %s", mcpg__down_name(f->msg->kind));
        sim_check_down(w, c, f->msg, f->kind == MCPG_COORD_FX_SEND_CONN ? f->conn : 0, w->wire, len);
    }
    switch (f->kind) {
    case MCPG_COORD_FX_SEND:
        send_all(w, c, f, len);
        break;
    case MCPG_COORD_FX_SEND_CONN:
        sim_stream_down(w, (uint32_t)f->conn, sim_buf_new(w->wire, len));
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        sim_stream_coord_closes(w, (uint32_t)f->conn);
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        c->armed_us = f->at.us;
        break;
    case MCPG_COORD_FX_STOP:
        c->stopped = true;
        c->deposed = mcpg_coord_deposed(c->machine);
        break;
    case MCPG_COORD_FX_RECORD_CLAIM:
    case MCPG_COORD_FX_RECORD_WRITE:
        if (!mcpg__coord_effect_pack(f, w->wire, w->wire_cap, &len)) sim_fail(w, "codec", "a record cannot be packed");
        sim_store_begin(w, c, f->kind == MCPG_COORD_FX_RECORD_CLAIM, f->gid, f->record);
        break;
    case MCPG_COORD_FX__COUNT:
        break;
    }
    return mcpg__coord_effect_crc(crc, f, w->wire, len);
}

/* ---- steps ---- */

static void step(sim_t *w, sim_coord_t *c, mcpg_coord_event_t *event, const uint8_t *raw, size_t raw_len) {
    if (!c->alive || c->stopped) return;
    event->now = local_now(w, c);
    sim_mix(w, (uint64_t)event->kind << 32 | 0x1000000u | c->index);
    sim_log_coord_event(w, c, event, raw, raw_len);
    bool looked = c->steps % DIGEST_EVERY == 0; /* a digest of everything costs as much as fifty steps */
    uint64_t before = looked ? mcpg_coord_digest(c->machine) : 0;
    mcpg_coord_effects_reset(&w->coord_fx);
    mcpg_status_t status = mcpg_coord_step(c->machine, event, &w->coord_fx);
    c->steps++;
    if (status != MCPG_OK && (w->coord_fx.count != 0 || (looked && mcpg_coord_digest(c->machine) != before)))
        sim_fail(w, "I16", "the coordinator rejected an event of kind %u with %d and changed something",
                 (unsigned)event->kind, (int)status);
    if (w->options.trace)
        sim_trace(w, "coordinator %u <- %u %s, %u effects", c->index, (unsigned)event->kind,
                  event->kind == MCPG_COORD_EV_MSG ? mcpg__up_name(event->msg->kind) : "", w->coord_fx.count);
    uint32_t crc = 0;
    for (uint32_t i = 0; i < w->coord_fx.count && !w->failed; i++) crc = run_effect(w, c, &w->coord_fx.items[i], crc);
    sim_mix(w, crc);
    sim_log_coord_effects(w, c, event, crc);
    if (c->slow_us > 0) c->busy_until_us = w->now + c->slow_us;
    if (c->stopped) { /* its host ends: the streams with it */
        sim_trace(w, "coordinator %u stops%s", c->index, c->deposed ? ": a newer one rules" : "");
        sim_stream_coord_died(w, c->index);
        return;
    }
    arm(w, c);
    if (c->steps % w->plan.check_every != 0) return;
    const char *fault = mcpg_coord_check(c->machine);
    if (fault != NULL) {
        char id[4] = {0};
        for (uint32_t i = 0; i < 3 && fault[i] != ' ' && fault[i] != '\0'; i++) id[i] = fault[i];
        sim_fail(w, id, "coordinator: %s", fault);
    }
    if (looked) sim_mix(w, mcpg_coord_digest(c->machine));
}

void sim_coord_msg(sim_t *w, sim_coord_t *c, uint32_t stream, const uint8_t *bytes, size_t len) {
    mcpg_up_msg_t msg;
    mcpg_arena_t arena = {.base = w->arena, .cap = w->arena_cap};
    if (mcpg__up_unpack(bytes, len, &arena, &msg) != MCPG_OK) {
        sim_fail(w, "codec", "a message of an agent cannot be read");
        return;
    }
    sim_check_up(w, c, stream, &msg);
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_MSG, .conn = stream, .msg = &msg};
    step(w, c, &e, bytes, len);
}

void sim_coord_closed(sim_t *w, sim_coord_t *c, uint32_t stream) {
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_CLOSED, .conn = stream};
    step(w, c, &e, NULL, 0);
}

void sim_coord_exit(sim_t *w, sim_coord_t *c, const sim_node_t *node) {
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_EXIT, .rank = {node->rank}, .pid = node->pid};
    step(w, c, &e, NULL, 0);
}

void sim_coord_shutdown(sim_t *w, sim_coord_t *c) {
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_SHUTDOWN};
    c->shutting = true;
    step(w, c, &e, NULL, 0);
}

void sim_coord_timer(sim_t *w, sim_coord_t *c) {
    if (!c->alive || c->stopped || c->heap_timer_us > w->now) return;
    uint64_t until = c->paused_until_us > c->busy_until_us ? c->paused_until_us : c->busy_until_us;
    if (until > w->now) {
        sim_at(w, until, SIM_EV_COORD_TIMER, c->index, 0, 0);
        return;
    }
    c->heap_timer_us = SIM_NEVER;
    if (c->armed_us <= local_now(w, c).us) {
        c->armed_us = SIM_NEVER;
        mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_TIMER};
        step(w, c, &e, NULL, 0);
    }
    arm(w, c);
}

void sim_coord_record(sim_t *w, sim_coord_t *c, mcpg_coord_event_t *event) {
    step(w, c, event, NULL, 0);
}

/* ---- life ---- */

sim_coord_t *sim_coord_start(sim_t *w) {
    if (w->coord_count == SIM_COORDS) return NULL;
    sim_coord_t *c = sim_zalloc(sizeof(*c));
    c->index = w->coord_count++;
    w->coords[c->index] = c;
    c->site = w->plan.co_hosted ? c->index % w->plan.ranks : SIM_RANKS + c->index % (SIM_SITES - SIM_RANKS);
    c->alive = true;
    c->term = c->index + 1u;
    c->id = sim_next(&w->host) | 1u;
    c->heap_timer_us = SIM_NEVER;
    c->armed_us = SIM_NEVER;
    sim_clock_init(&c->clock, w->now, SIM_SECOND + sim_below(&w->host, 3600u * SIM_SECOND), SIM_SECOND);
    c->config = (mcpg_coord_config_t){.term = c->term,
                                      .coordinator_id = c->id,
                                      .max_ranks = w->plan.max_ranks,
                                      .max_groups = w->plan.small_caps ? w->plan.specs + 4u : 512,
                                      .max_slots_total = w->plan.small_caps ? (w->plan.specs + 3u) * 64u : 8192,
                                      .clique_node_budget = 100000,
                                      .has_store = w->plan.has_store,
                                      .predecessor = c->index > 0,
                                      .timers = w->plan.timers};
    size_t size = mcpg_coord_size(&c->config);
    c->mem = aligned_alloc(64, (size + 63u) & ~(size_t)63u);
    if (c->mem == NULL) abort();
    memset(c->mem, 0, size);
    if (mcpg_coord_init(c->mem, size, &c->config, &c->machine) != MCPG_OK) abort();
    uint32_t items;
    size_t arena;
    mcpg_coord_effects_worst(&c->config, &items, &arena);
    if (items > w->coord_fx.cap || arena > w->coord_fx.arena_cap) {
        free(w->coord_fx.items);
        free(w->coord_fx.arena);
        w->coord_fx.items = sim_zalloc(items * sizeof(*w->coord_fx.items));
        w->coord_fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
        if (w->coord_fx.arena == NULL) abort();
        w->coord_fx.cap = items;
        w->coord_fx.arena_cap = arena;
    }
    c->frames = mcpg__frames_tx_new(w->plan.max_ranks);
    if (c->frames == NULL) abort();
    sim_log_coord_open(w, c);
    w->address = c->index;
    w->result->coords++;
    sim_trace(w, "coordinator %u starts: term %llu at site %u", c->index, U(c->term), c->site);
    return c;
}

void sim_coord_crash(sim_t *w, sim_coord_t *c) {
    if (!c->alive) return;
    sim_trace(w, "coordinator %u ends", c->index);
    c->alive = false;
    sim_stream_coord_died(w, c->index);
}

void sim_coord_free(sim_coord_t *c) {
    sim_log_coord_close(c);
    mcpg__frames_tx_free(c->frames);
    free(c->mem);
    free(c);
}
