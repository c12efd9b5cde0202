/* sim_run.c: one seed: rounds of disturbance, each followed by healing within a bounded time, then the end of the job.
 *
 * It owns the world. The verdict is in the result; memory is given back whatever happened.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

#define MOST_EVENTS UINT64_C(60000000)

static void dispatch_node(sim_t *w, const sim_event_t *e) {
    sim_node_t *node = w->nodes[e->a];
    if (e->kind == SIM_EV_NODE_TIMER) sim_node_timer(w, node);
    if (e->kind == SIM_EV_LOCAL) sim_node_local(w, node);
    if (e->kind == SIM_EV_LINK) sim_link_event(w, node, e->b, e->c);
    if (e->kind == SIM_EV_TICK) sim_work_tick(w, node);
    if (e->kind != SIM_EV_EXIT || node->exit_seen) return;
    sim_coord_t *c = sim_coord_now(w);
    if (c == NULL || c->paused_until_us > w->now) { /* the launcher tries again */
        sim_at(w, w->now + SIM_SECOND, SIM_EV_EXIT, e->a, 0, 0);
        return;
    }
    node->exit_seen = true;
    sim_coord_exit(w, c, node);
}

static void spawn(sim_t *w, uint32_t rank) {
    uint32_t index = w->at_rank[rank];
    if (w->finishing || w->gone[rank] || (index != SIM_NO && w->nodes[index]->alive && !w->nodes[index]->stopped))
        return;
    if (index != SIM_NO && w->nodes[index]->alive) sim_crash(w, w->nodes[index]); /* said goodbye: its process ends */
    (void)sim_spawn(w, rank);
}

static void dispatch(sim_t *w, const sim_event_t *e) {
    switch ((sim_ev_kind_t)e->kind) {
    case SIM_EV_NODE_TIMER:
    case SIM_EV_LOCAL:
    case SIM_EV_LINK:
    case SIM_EV_TICK:
    case SIM_EV_EXIT:
        dispatch_node(w, e);
        break;
    case SIM_EV_COORD_TIMER:
        sim_coord_timer(w, w->coords[e->a]);
        break;
    case SIM_EV_UP:
    case SIM_EV_DOWN:
        sim_stream_event(w, e->a, e->kind == SIM_EV_UP);
        break;
    case SIM_EV_FAULT:
        sim_fault_next(w);
        break;
    case SIM_EV_HEAL:
        sim_fault_end(w, e->a, e->c);
        break;
    case SIM_EV_SPAWN:
        spawn(w, e->a);
        break;
    case SIM_EV_SWEEP:
        sim_check_sweep(w);
        break;
    case SIM_EV_STORE:
        sim_store_event(w, e->a);
        break;
    case SIM_EV_COORD_START:
        if (e->a == w->coord_count) (void)sim_coord_start(w);
        break;
    case SIM_EV__COUNT:
        break;
    }
}

/* Until that time, or until something fails. */
static void run_until(sim_t *w, uint64_t until_us) {
    while (!w->failed && w->heap_count > 0 && w->heap[0].at <= until_us) { /* bounded: by virtual time and events */
        sim_event_t e;
        (void)sim_pop(w, &e);
        w->now = e.at;
        w->events++;
        sim_mix(w, e.at ^ (uint64_t)e.kind << 48);
        dispatch(w, &e);
        if (w->events > MOST_EVENTS)
            sim_fail(w, "I12", "more than %llu events: something never comes to rest", U(MOST_EVENTS));
    }
    if (w->now < until_us && !w->failed) w->now = until_us;
}

static void start(sim_t *w) {
    w->call_oldest = 1;
    for (uint32_t r = 0; r < SIM_RANKS; r++) w->at_rank[r] = SIM_NO;
    sim_rng_init(&w->net, w->options.seed, 1);
    sim_rng_init(&w->fault, w->options.seed, 2);
    sim_rng_init(&w->work, w->options.seed, 3);
    sim_rng_init(&w->host, w->options.seed, 4);
    w->now = SIM_SECOND;
    w->wire_cap = MCPG_MSG_CAP;
    w->wire = malloc(w->wire_cap);
    w->arena_cap = MCPG_DECODE_ARENA_CAP;
    w->arena = aligned_alloc(16, w->arena_cap);
    if (w->wire == NULL || w->arena == NULL) abort();
    sim_plan_draw(w);
    mcpg_agent_config_t config = {.max_ranks = w->plan.max_ranks,
                                  .max_groups = SIM_MINE,
                                  .max_slots_total = SIM_SPECS * SIM_RANKS,
                                  .max_calls = 16,
                                  .max_reports = 16};
    size_t arena;
    mcpg_agent_effects_worst(&config, &w->agent_fx.cap, &arena);
    w->agent_fx.items = sim_zalloc(w->agent_fx.cap * sizeof(*w->agent_fx.items));
    w->agent_fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
    if (w->agent_fx.arena == NULL) abort();
    w->agent_fx.arena_cap = arena;
    sim_store_create(w);
    sim_trace(w, "%u ranks, %u hosts, %u groups, store %d, co-hosted %d, small caps %d, offline %llu us, tick %llu us",
              w->plan.ranks, w->plan.hosts, w->plan.specs, w->plan.has_store, w->plan.co_hosted, w->plan.small_caps,
              U(w->plan.timers.offline_us), U(w->plan.tick_us));
    (void)sim_coord_start(w);
    for (uint32_t r = 0; r < w->plan.ranks; r++)
        sim_at(w, w->now + sim_below(&w->host, 3u * SIM_SECOND), SIM_EV_SPAWN, r, 0, 0);
}

/* Healed: everything must come to rest within a bound that only depends on the timers; then operations go on. */
static void heal(sim_t *w) {
    w->healing = true;
    w->heal_began_us = sim_fault_heal_all(w);
    sim_trace(w, "HEALING");
    uint64_t bound = w->heal_began_us + 200u * SIM_SECOND + 12u * w->plan.timers.offline_us;
    const char *why = "";
    bool settled = false;
    uint32_t renewed = 0;
    while (!w->failed && !settled && w->now < bound) { /* bounded: by virtual time */
        run_until(w, w->now + 500000u);
        if (w->now > w->heal_began_us + (renewed + 1u) * 45u * SIM_SECOND) {
            renewed++;
            sim_work_renew(w);
        }
        settled = sim_work_settled(w, &why);
    }
    if (w->failed) return;
    if (!settled) {
        sim_work_dump(w);
        sim_fail(w, "I12", "healed %llu s ago and still not at rest: %s", U((w->now - w->heal_began_us) / SIM_SECOND),
                 why);
        return;
    }
    uint64_t before[SIM_SPECS], after[SIM_SPECS];
    sim_work_progress(w, before);
    run_until(w, w->now + 8u * w->plan.tick_us + 4u * SIM_SECOND);
    sim_work_progress(w, after);
    for (uint32_t s = 0; s < SIM_SPECS && !w->failed; s++) {
        if (before[s] == SIM_NEVER || before[s] != after[s]) continue;
        sim_work_dump(w);
        sim_fail(w, "I15", "at rest, and group%u completes no operation any more", s);
    }
    w->result->rounds++;
    w->healing = false;
}

static void disturb(sim_t *w) {
    uint64_t until = w->now + sim_between(&w->fault, 90u * SIM_SECOND, 240u * SIM_SECOND);
    sim_fault_schedule(w);
    while (!w->failed && w->now < until) { /* bounded: by virtual time */
        uint64_t next = w->now + 20u * SIM_SECOND;
        run_until(w, next < until ? next : until);
        sim_check_sweep(w);
    }
}

static void check_empty(sim_t *w) {
    const sim_coord_t *c = sim_coord_now(w);
    if (c != NULL && !mcpg_coord_quiescent(c->machine))
        sim_fail(w, "I10", "everybody has gone and the coordinator's tables are not empty");
    for (uint32_t i = 0; i < w->node_count; i++)
        if (w->nodes[i]->alive && !w->nodes[i]->stopped)
            sim_fail(w, "I10", "rank %u was detached and does not stop", w->nodes[i]->rank);
}

/* The end of the job: everybody goes, or the coordinator is shut down under them. */
static void finish(sim_t *w) {
    w->healing = w->finishing = true;
    if (sim_chance(&w->work, 600)) {
        for (uint32_t r = 0; r < w->plan.ranks; r++)
            if (w->at_rank[r] != SIM_NO && w->nodes[w->at_rank[r]]->alive) sim_work_detach(w, w->nodes[w->at_rank[r]]);
        run_until(w, w->now + 3u * SIM_SECOND + 2u * w->plan.timers.offline_us);
        if (!w->failed) check_empty(w);
        return;
    }
    sim_coord_t *c = sim_coord_now(w);
    if (c == NULL) return;
    for (uint32_t s = 0; s < w->plan.specs; s++)
        if (sim_chance(&w->work, 500)) sim_work_destroy_group(w, s); /* calls under way */
    run_until(w, w->now + sim_below(&w->work, SIM_SECOND));
    if (w->failed) return;
    sim_coord_shutdown(w, c);
    run_until(w, w->now + 10u * SIM_SECOND);
    if (!w->failed && !c->stopped) sim_fail(w, "I9", "the coordinator was shut down 10 s ago and has not stopped");
}

static void end(sim_t *w) {
    for (uint32_t i = 0; i < w->node_count; i++) sim_node_free(w->nodes[i]);
    for (uint32_t i = 0; i < w->coord_count; i++) sim_coord_free(w->coords[i]);
    sim_streams_free(w);
    sim_groups_free(w);
    sim_store_free(w);
    free(w->nodes);
    free(w->heap);
    free(w->incs);
    free(w->calls);
    free(w->agent_fx.items);
    free(w->agent_fx.arena);
    free(w->coord_fx.items);
    free(w->coord_fx.arena);
    free(w->wire);
    free(w->arena);
    free(w);
}

void sim_run(const sim_options_t *options, sim_result_t *result) {
    sim_t *w = sim_zalloc(sizeof(*w));
    memset(result, 0, sizeof(*result));
    w->options = *options;
    w->result = result;
    result->seed = options->seed;
    start(w);
    uint64_t until = (uint64_t)options->minutes * 60u * SIM_SECOND;
    run_until(w, w->now + sim_below(&w->fault, 20u * SIM_SECOND));
    while (!w->failed && w->now < until) { /* bounded: each round takes more than a minute */
        disturb(w);
        if (!w->failed) heal(w);
    }
    if (!w->failed) finish(w);
    result->hash = w->hash;
    result->virtual_us = w->now;
    result->events = w->events;
    result->nodes = w->node_count;
    for (uint32_t i = 0; i < SIM_F__COUNT; i++)
        if (i != SIM_F_PUSH_LOSS && i != SIM_F_FILL) result->fault_total += result->faults[i];
    end(w);
}
