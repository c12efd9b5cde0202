/* sim_plan.c: what the seed draws for the whole run: size, groups, network, timers, faults and their weights. Every
 * parameter is drawn (swarm), so that rare combinations happen. Never draws anything later on.
 */
#include <string.h>

#include "sim/sim.h"

static uint32_t draw_ranks(sim_rng_t *r) {
    uint64_t roll = sim_below(r, 100);
    if (roll < 80) return (uint32_t)sim_between(r, 2, 8);
    return roll < 95 ? 16u : 64u;
}

static void shuffle(sim_rng_t *r, uint32_t *list, uint32_t count) {
    for (uint32_t i = count; i > 1; i--) {
        uint32_t k = (uint32_t)sim_below(r, i), swap = list[i - 1u];
        list[i - 1u] = list[k];
        list[k] = swap;
    }
}

/* The first group is often the whole job; the others overlap it. Some grow: order longer than the founders'. */
static void draw_spec(sim_t *w, sim_rng_t *r, uint32_t index) {
    sim_spec_t *s = &w->specs[index];
    uint32_t ranks = w->plan.ranks;
    bool all = index == 0 && sim_chance(r, 700);
    for (uint32_t i = 0; i < ranks; i++) s->order[i] = i;
    if (!all) shuffle(r, s->order, ranks);
    s->order_count = all || ranks == 2 ? ranks : (uint32_t)sim_between(r, 2, ranks);
    s->base_count = s->order_count;
    if (s->order_count > 2 && sim_chance(r, 250)) s->base_count = (uint32_t)sim_between(r, 2, s->order_count - 1u);
    s->capacity = s->order_count;
    if (s->capacity < SIM_RANKS && sim_chance(r, 200))
        s->capacity += (uint32_t)sim_below(r, SIM_RANKS - s->capacity < 5u ? SIM_RANKS - s->capacity : 5u);
    s->manual = sim_chance(r, 250);
    s->no_auto_sync = !s->manual && sim_chance(r, 100);
    s->key_len = (uint32_t)snprintf((char *)s->key, sizeof(s->key), "group%u", index);
}

static void draw_timers(sim_t *w, sim_rng_t *r) {
    mcpg_timers_t *t = &w->plan.timers;
    uint64_t slowest = w->plan.ranks > 16 ? 4u * SIM_SECOND : 2u * SIM_SECOND;
    t->heartbeat_us = sim_between(r, w->plan.ranks > 16 ? 1500000u : 400000u, slowest);
    t->offline_us = t->heartbeat_us * sim_between(r, 3, 8);
    t->ack_us = sim_between(r, 2000000, 6000000);
    t->ack_added_us = sim_between(r, 300000, 1500000);
    t->reconcile_us = sim_between(r, 500000, 3000000);
    t->coordinator_grace_us = t->offline_us * sim_between(r, 2, 6);
    t->collective_timeout_us = sim_between(r, 300000, 2000000);
    t->p2p_timeout_us = 10000000;
}

static void draw_faults(sim_t *w, sim_rng_t *r) {
    static const uint32_t usual[SIM_F__COUNT] = {
        [SIM_F_BREAK] = 10,    [SIM_F_LATE] = 6,        [SIM_F_UNIFORM] = 3,    [SIM_F_ISOLATE] = 4,
        [SIM_F_ASYM] = 4,      [SIM_F_CLOG] = 4,        [SIM_F_LINK_RESET] = 8, [SIM_F_LINK_FLAP] = 6,
        [SIM_F_LINK_CUT] = 5,  [SIM_F_CRASH] = 8,       [SIM_F_PAUSE] = 5,      [SIM_F_CLOCK] = 3,
        [SIM_F_SLOW] = 3,      [SIM_F_COORD_PAUSE] = 2, [SIM_F_COORD_SLOW] = 2, [SIM_F_BUGGIFY] = 4,
        [SIM_F_PUSH_LOSS] = 1, [SIM_F_FILL] = 1,        [SIM_F_STORE] = 2,      [SIM_F_RESTART] = 3,
        [SIM_F_SECOND] = 2,
    };
    for (uint32_t i = 0; i < SIM_F__COUNT; i++) {
        bool on = sim_chance(r, 600);
        uint32_t weight = on ? usual[i] * (uint32_t)sim_between(r, 1, 4) : 0;
        w->plan.weight[i] = (w->options.without >> i & 1u) ? 0 : weight;
    }
    w->plan.fault_every_us = sim_between(r, 4u * SIM_SECOND, 18u * SIM_SECOND);
}

void sim_plan_draw(sim_t *w) {
    sim_rng_t rng, *r = &rng;
    sim_rng_init(r, w->options.seed, 5);
    sim_plan_t *p = &w->plan;
    uint32_t drawn = draw_ranks(r);
    p->ranks = w->options.ranks != 0 ? w->options.ranks : drawn;
    p->max_ranks = p->ranks + 4u < SIM_RANKS ? p->ranks + 4u : SIM_RANKS;
    p->hosts = (uint32_t)sim_between(r, 1, p->ranks);
    p->specs = (uint32_t)sim_between(r, 1, p->ranks > 16 ? 2 : SIM_SPECS);
    for (uint32_t i = 0; i < p->specs; i++) draw_spec(w, r, i);
    draw_timers(w, r);
    draw_faults(w, r);
    p->latency_us = sim_scaled(r, 20, 2000);
    p->jitter_us = sim_scaled(r, 20, 5000);
    p->spike_permille = sim_chance(r, 500) ? (uint32_t)sim_between(r, 1, 30) : 0;
    p->lose_permille = p->weight[SIM_F_PUSH_LOSS] > 0 ? (uint32_t)sim_between(r, 5, 300) : 0;
    p->exit_permille = (uint32_t)sim_below(r, 4) * 333u;
    p->relay_permille = sim_chance(r, 500) ? 1000u : (uint32_t)sim_below(r, 1000);
    p->buggify_permille = p->weight[SIM_F_BUGGIFY] > 0 ? 250u : 0;
    p->small_caps = p->weight[SIM_F_FILL] > 0 && sim_chance(r, 500);
    p->co_hosted = sim_chance(r, 400);
    p->has_store = sim_chance(r, 750);
    p->timers.settle_us = sim_between(r, 300000, 2000000);
    p->tick_us = sim_between(r, p->ranks > 16 ? 800000u : 150000u, p->ranks > 16 ? 3000000u : 1200000u);
    p->step_len = sim_chance(r, 300) ? 0 : sim_between(r, 2, 12);
    p->check_every = p->ranks > 16 ? 64u : p->ranks > 8 ? 16u : 4u;
    p->propose_permille = (uint32_t)sim_below(r, 120);
    p->sync_permille = sim_chance(r, 300) ? 0 : (uint32_t)sim_below(r, 500);
    p->leave_permille = sim_chance(r, 600) ? 0 : (uint32_t)sim_between(r, 1, 4);
    p->depth = (uint32_t)sim_between(r, 1, SIM_OPS);
    w->result->ranks = p->ranks;
}
