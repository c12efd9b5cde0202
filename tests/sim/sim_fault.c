/* sim_fault.c: what goes wrong, when, for how long; and the end of all of it.
 *
 * Kinds are drawn by the seed's weights; a fault in force undoes itself at its end, so that faults may overlap. It only
 * does what a network, a host or an operator can do. It must never touch a machine.
 */
#include <string.h>

#include "sim/sim.h"

static sim_force_t *new_force(sim_t *w, sim_fault_kind_t kind, uint64_t lasts_us) {
    for (uint32_t i = 0; i < 64u; i++) {
        sim_force_t *f = &w->force[i];
        if (f->used) continue;
        *f = (sim_force_t){.used = true, .kind = kind, .until_us = w->now + lasts_us};
        sim_at(w, f->until_us, SIM_EV_HEAL, i, 0, f->until_us);
        return f;
    }
    return NULL;
}

static uint64_t lasts(sim_t *w, uint64_t low_us, uint64_t high_us) {
    return sim_scaled(&w->fault, low_us, high_us);
}

static sim_node_t *any_node(sim_t *w) {
    uint32_t from = (uint32_t)sim_below(&w->fault, w->plan.ranks);
    for (uint32_t i = 0; i < w->plan.ranks; i++) {
        uint32_t index = w->at_rank[(from + i) % w->plan.ranks];
        if (index != SIM_NO && w->nodes[index]->alive && !w->nodes[index]->stopped) return w->nodes[index];
    }
    return NULL;
}

static sim_node_t *other_node(sim_t *w, const sim_node_t *one) {
    for (uint32_t tries = 0; one != NULL && tries < 8u; tries++) {
        sim_node_t *node = any_node(w);
        if (node != one) return node;
    }
    return NULL;
}

/* ---- paths ---- */

static void cut_path(sim_t *w, uint32_t from, uint32_t to, int by) {
    if (from == to) return;
    w->cut[from][to] = (uint8_t)(w->cut[from][to] + by);
}

/* Both sets as bits of ranks; set_c: bits of the coordinators' own sites, in the first set. */
static void cut_sets(sim_t *w, const sim_force_t *f, int by, bool back) {
    for (uint32_t a = 0; a < SIM_SITES; a++) {
        bool in_a = a < SIM_RANKS ? (f->set_a >> a & 1u) : (f->set_c >> (a - SIM_RANKS) & 1u);
        for (uint32_t b = 0; b < SIM_SITES && in_a; b++) {
            bool in_b = b < SIM_RANKS ? (f->set_b >> b & 1u) : (f->set_c >> (b - SIM_RANKS + 32u) & 1u);
            if (!in_b) continue;
            cut_path(w, a, b, by);
            if (back) cut_path(w, b, a, by);
        }
    }
}

static void reset_links(sim_t *w, const sim_force_t *f) {
    for (uint32_t a = 0; a < w->plan.ranks; a++) {
        for (uint32_t b = 0; b < w->plan.ranks; b++) {
            if (!(f->set_a >> a & 1u) || !(f->set_b >> b & 1u) || w->at_rank[a] == SIM_NO || w->at_rank[b] == SIM_NO)
                continue;
            sim_link_lose(w, w->nodes[w->at_rank[a]], b, 1u + sim_below(&w->fault, 200000));
            sim_link_lose(w, w->nodes[w->at_rank[b]], a, 1u + sim_below(&w->fault, 200000));
        }
    }
}

static void partition(sim_t *w, sim_fault_kind_t kind) {
    uint64_t all = w->plan.ranks == 64 ? UINT64_MAX : (UINT64_C(1) << w->plan.ranks) - 1u;
    sim_force_t *f = new_force(w, kind, lasts(w, 200000, 60u * SIM_SECOND));
    if (f == NULL) return;
    uint64_t side = sim_next(&w->fault) & all;
    if (kind == SIM_F_ISOLATE) side = UINT64_C(1) << sim_below(&w->fault, w->plan.ranks);
    f->set_a = side;
    f->set_b = all & ~side;
    uint64_t places = sim_below(&w->fault, 16);
    f->set_c = places | (~places & 15u) << 32;
    if (kind == SIM_F_ISOLATE) { /* from the coordinator, from the others, or from all */
        uint64_t roll = sim_below(&w->fault, 3);
        if (roll == 0) f->set_b = 0;
        f->set_c = roll == 1 ? 0 : UINT64_C(15) << 32;
    }
    cut_sets(w, f, 1, kind != SIM_F_ASYM);
    if (sim_chance(&w->fault, 400)) reset_links(w, f);
}

static void link_fault(sim_t *w, sim_fault_kind_t kind) {
    sim_node_t *a = any_node(w), *b = other_node(w, a);
    if (b == NULL) return;
    bool told = kind != SIM_F_LINK_CUT || sim_chance(&w->fault, 600);
    if (told) {
        sim_link_lose(w, a, b->rank, 1u + sim_below(&w->fault, 50000));
        sim_link_lose(w, b, a->rank, 1u + sim_below(&w->fault, 50000));
    }
    if (kind == SIM_F_LINK_RESET) return;
    sim_force_t *f =
        new_force(w, kind, kind == SIM_F_LINK_FLAP ? lasts(w, 10000, 800000) : lasts(w, 500000, 60u * SIM_SECOND));
    if (f == NULL) return;
    f->a = a->rank;
    f->b = b->rank;
    f->set_a = 1; /* cut now */
    f->set_b = kind == SIM_F_LINK_FLAP ? 2u * sim_between(&w->fault, 1, 6) : 0;
    cut_path(w, f->a, f->b, 1);
    cut_path(w, f->b, f->a, 1);
}

/* ---- processes ---- */

static void crash_one(sim_t *w, sim_node_t *node) {
    sim_crash(w, node);
    if (sim_chance(&w->fault, w->plan.exit_permille))
        sim_at(w, w->now + lasts(w, 1000, 5u * SIM_SECOND), SIM_EV_EXIT, node->index, 0, 0);
    if (sim_chance(&w->fault, 850))
        sim_at(w, w->now + lasts(w, 100000, 40u * SIM_SECOND), SIM_EV_SPAWN, node->rank, 0, 0);
}

static void crash(sim_t *w) {
    uint64_t count = sim_chance(&w->fault, 150) ? sim_between(&w->fault, 2, w->plan.ranks) : 1;
    for (uint64_t i = 0; i < count; i++) {
        sim_node_t *node = any_node(w);
        if (node != NULL) crash_one(w, node);
    }
}

static void pause_node(sim_t *w) {
    sim_node_t *node = any_node(w);
    if (node == NULL) return;
    uint64_t until = w->now + lasts(w, 50000, 3u * w->plan.timers.offline_us);
    if (until > node->paused_until_us) node->paused_until_us = until;
}

static void slow_node(sim_t *w) {
    sim_node_t *node = any_node(w);
    sim_force_t *f = node == NULL ? NULL : new_force(w, SIM_F_SLOW, lasts(w, SIM_SECOND, 40u * SIM_SECOND));
    if (f == NULL) return;
    f->a = node->index;
    node->slow_us = lasts(w, 500, 60000);
}

static void jump_clock(sim_t *w) {
    sim_coord_t *c = sim_coord_now(w);
    uint64_t by_us = lasts(w, 10000, 2u * w->plan.timers.offline_us);
    if (c != NULL && sim_chance(&w->fault, 200)) {
        sim_clock_jump(&c->clock, w->now, by_us);
        sim_coord_clock(w, c);
        return;
    }
    sim_node_t *node = any_node(w);
    if (node == NULL) return;
    sim_clock_jump(&node->clock, w->now, by_us);
    sim_node_arm(w, node);
}

static void coord_fault(sim_t *w, sim_fault_kind_t kind) {
    sim_coord_t *c = sim_coord_now(w);
    if (c == NULL) return;
    if (kind == SIM_F_COORD_PAUSE) {
        uint64_t until = w->now + lasts(w, 50000, 2u * w->plan.timers.offline_us);
        if (until > c->paused_until_us) c->paused_until_us = until;
        return;
    }
    sim_force_t *f = new_force(w, kind, lasts(w, SIM_SECOND, 30u * SIM_SECOND));
    if (f == NULL) return;
    f->a = c->index;
    c->slow_us = lasts(w, 50, w->plan.ranks > 16 ? 1000 : 10000);
}

/* Points in the hosts where a real one hiccups: the executor does not get the processor for a while. */
static void buggify(sim_t *w) {
    sim_node_t *node = any_node(w);
    if (node == NULL) return;
    node->busy_until_us = w->now + lasts(w, 1000, 3u * SIM_SECOND);
    if (node->stream != SIM_NO && sim_chance(&w->fault, 250)) sim_stream_break(w, node->stream, 0);
}

static void break_streams(sim_t *w, bool late) {
    bool all = sim_chance(&w->fault, 150);
    for (uint32_t i = 0; i < (all ? w->plan.ranks : 1u); i++) {
        sim_node_t *node = any_node(w);
        if (node == NULL || node->stream == SIM_NO) continue;
        sim_stream_break(w, node->stream, late ? lasts(w, 10000, 30u * SIM_SECOND) : 0);
    }
}

static void clog_site(sim_t *w) {
    sim_force_t *f = new_force(w, SIM_F_CLOG, lasts(w, SIM_SECOND, 30u * SIM_SECOND));
    if (f == NULL) return;
    f->a = (uint32_t)sim_below(&w->fault, w->plan.ranks);
    f->set_a = lasts(w, 10000, 3u * SIM_SECOND);
    w->clog_us[f->a] += f->set_a;
}

/* ---- coordinators ---- */

/* It ends, and another one is started with a higher term: the operator, or a rank that is elected. */
static void restart_coord(sim_t *w) {
    sim_coord_t *c = sim_coord_now(w);
    if (w->coord_count + 2u >= SIM_COORDS) return;
    if (c != NULL) sim_coord_crash(w, c);
    sim_at(w, w->now + lasts(w, 10000, 15u * SIM_SECOND), SIM_EV_COORD_START, w->coord_count, 0, 0);
}

/* A second one starts while the first still lives: cut off from it with some of the ranks, or by mistake. */
static void second_coord(sim_t *w) {
    const sim_coord_t *old = sim_coord_now(w);
    if (old == NULL || !w->plan.has_store || w->coord_count + 2u >= SIM_COORDS) return;
    const sim_coord_t *c = sim_coord_start(w);
    if (c == NULL || c->site == old->site || sim_chance(&w->fault, 200)) return;
    sim_force_t *f = new_force(w, SIM_F_UNIFORM, lasts(w, SIM_SECOND, 40u * SIM_SECOND));
    if (f == NULL) return;
    uint64_t all = w->plan.ranks == 64 ? UINT64_MAX : (UINT64_C(1) << w->plan.ranks) - 1u;
    f->set_a = sim_next(&w->fault) & all;
    if (c->site < SIM_RANKS) f->set_a |= UINT64_C(1) << c->site;
    if (old->site < SIM_RANKS) f->set_a &= ~(UINT64_C(1) << old->site);
    f->set_b = all & ~f->set_a;
    if (c->site >= SIM_RANKS) f->set_c |= UINT64_C(1) << (c->site - SIM_RANKS);
    if (old->site >= SIM_RANKS) f->set_c |= UINT64_C(1) << (old->site - SIM_RANKS + 32u);
    cut_sets(w, f, 1, true);
    if (sim_chance(&w->fault, 500)) reset_links(w, f);
    for (uint32_t r = 0; r < w->plan.ranks; r++) { /* those on its side lose the old one */
        uint32_t index = w->at_rank[r];
        bool here = index != SIM_NO && (f->set_a >> r & 1u) && w->nodes[index]->alive;
        if (here && w->nodes[index]->stream != SIM_NO) sim_stream_break(w, w->nodes[index]->stream, 0);
    }
}

/* ---- drawing ---- */

static sim_fault_kind_t draw(sim_t *w) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SIM_F__COUNT; i++)
        if (i != SIM_F_PUSH_LOSS && i != SIM_F_FILL) sum += w->plan.weight[i];
    uint64_t roll = sim_below(&w->fault, sum);
    for (uint32_t i = 0; i < SIM_F__COUNT; i++) {
        if (i == SIM_F_PUSH_LOSS || i == SIM_F_FILL) continue;
        if (roll < w->plan.weight[i]) return (sim_fault_kind_t)i;
        roll -= w->plan.weight[i];
    }
    return SIM_F__COUNT;
}

static void happen(sim_t *w, sim_fault_kind_t kind) {
    switch (kind) {
    case SIM_F_BREAK:
    case SIM_F_LATE:
        break_streams(w, kind == SIM_F_LATE);
        break;
    case SIM_F_UNIFORM:
    case SIM_F_ISOLATE:
    case SIM_F_ASYM:
        partition(w, kind);
        break;
    case SIM_F_CLOG:
        clog_site(w);
        break;
    case SIM_F_LINK_RESET:
    case SIM_F_LINK_FLAP:
    case SIM_F_LINK_CUT:
        link_fault(w, kind);
        break;
    case SIM_F_CRASH:
        crash(w);
        break;
    case SIM_F_PAUSE:
        pause_node(w);
        break;
    case SIM_F_CLOCK:
        jump_clock(w);
        break;
    case SIM_F_SLOW:
        slow_node(w);
        break;
    case SIM_F_COORD_PAUSE:
    case SIM_F_COORD_SLOW:
        coord_fault(w, kind);
        break;
    case SIM_F_BUGGIFY:
        buggify(w);
        break;
    case SIM_F_STORE:
        sim_store_fail(w, w->now + lasts(w, 100000, 20u * SIM_SECOND));
        break;
    case SIM_F_RESTART:
        restart_coord(w);
        break;
    case SIM_F_SECOND:
        second_coord(w);
        break;
    case SIM_F_PUSH_LOSS:
    case SIM_F_FILL:
    case SIM_F__COUNT:
        break;
    }
}

void sim_fault_schedule(sim_t *w) {
    sim_at(w, w->now + sim_below(&w->fault, 2u * w->plan.fault_every_us), SIM_EV_FAULT, 0, 0, 0);
}

void sim_fault_next(sim_t *w) {
    if (w->healing) return; /* begins again with the next round */
    sim_fault_kind_t kind = draw(w);
    if (kind != SIM_F__COUNT) {
        sim_trace(w, "FAULT %s", sim_fault_name(kind));
        happen(w, kind);
        w->result->faults[kind]++;
    }
    if (sim_chance(&w->fault, 8)) sim_work_destroy_group(w, (uint32_t)sim_below(&w->fault, w->plan.specs));
    sim_fault_schedule(w);
}

/* ---- ending ---- */

static void toggle_flap(sim_t *w, sim_force_t *f, uint32_t index) {
    int by = f->set_a != 0 ? -1 : 1;
    f->set_a = f->set_a != 0 ? 0 : 1;
    cut_path(w, f->a, f->b, by);
    cut_path(w, f->b, f->a, by);
    if (f->set_b == 0) {
        f->used = f->set_a != 0;
    } else {
        f->set_b--;
    }
    if (!f->used) return;
    f->until_us = w->now + lasts(w, 10000, 800000);
    sim_at(w, f->until_us, SIM_EV_HEAL, index, 0, f->until_us);
    if (by < 0) return;
    if (w->at_rank[f->a] != SIM_NO)
        sim_link_lose(w, w->nodes[w->at_rank[f->a]], f->b, 1u + sim_below(&w->fault, 50000));
    if (w->at_rank[f->b] != SIM_NO)
        sim_link_lose(w, w->nodes[w->at_rank[f->b]], f->a, 1u + sim_below(&w->fault, 50000));
}

static void end_force(sim_t *w, sim_force_t *f, uint32_t index, bool for_good) {
    if (f->kind == SIM_F_LINK_FLAP && !for_good) {
        toggle_flap(w, f, index);
        sim_path_healed(w);
        return;
    }
    f->used = false;
    if (f->kind == SIM_F_UNIFORM || f->kind == SIM_F_ISOLATE || f->kind == SIM_F_ASYM)
        cut_sets(w, f, -1, f->kind != SIM_F_ASYM);
    if ((f->kind == SIM_F_LINK_CUT || f->kind == SIM_F_LINK_FLAP) && f->set_a != 0) {
        cut_path(w, f->a, f->b, -1);
        cut_path(w, f->b, f->a, -1);
    }
    if (f->kind == SIM_F_CLOG) w->clog_us[f->a] -= f->set_a;
    if (f->kind == SIM_F_SLOW) w->nodes[f->a]->slow_us = 0;
    if (f->kind == SIM_F_COORD_SLOW) w->coords[f->a]->slow_us = 0;
    sim_path_healed(w);
}

void sim_fault_end(sim_t *w, uint32_t index, uint64_t until_us) {
    sim_force_t *f = &w->force[index];
    if (!f->used || f->until_us != until_us) return; /* ended before, the place is another's */
    sim_trace(w, "end of %s", sim_fault_name(f->kind));
    end_force(w, f, index, false);
}

/* The operator ends all coordinators but the newest one, and starts one where none is. */
static void heal_coords(sim_t *w, uint64_t *last) {
    sim_store_heal(w);
    for (uint32_t i = 0; i < w->coord_count; i++)
        if (i != w->address) sim_coord_crash(w, w->coords[i]);
    sim_coord_t *c = sim_coord_now(w);
    if (c != NULL && c->paused_until_us > *last) *last = c->paused_until_us;
    if (c == NULL) sim_at(w, w->now + lasts(w, 10000, 3u * SIM_SECOND), SIM_EV_COORD_START, w->coord_count, 0, 0);
}

/* No process of that rank has had an incarnation since. */
static bool is_last(const sim_t *w, const sim_node_t *node) {
    for (uint32_t i = node->index + 1u; i < w->node_count; i++)
        if (w->nodes[i]->rank == node->rank && !mcpg__inc_none(sim_inc(w->nodes[i]))) return false;
    return w->coord_count > 1;
}

/* A launcher tells a new coordinator about the ends that it told an earlier one. */
static void tell_exit(sim_t *w, sim_node_t *node) {
    node->exit_seen = false;
    sim_at(w, w->now + sim_below(&w->fault, 3u * SIM_SECOND), SIM_EV_EXIT, node->index, 0, 0);
}

/* Returns when the last of what cannot be shortened, a stopped process, is over. */
uint64_t sim_fault_heal_all(sim_t *w) {
    uint64_t last = w->now;
    for (uint32_t i = 0; i < 64u; i++)
        if (w->force[i].used) end_force(w, &w->force[i], i, true);
    for (uint32_t i = 0; i < w->node_count; i++) {
        sim_node_t *node = w->nodes[i];
        if (node->alive && node->paused_until_us > last) last = node->paused_until_us;
        if (!node->alive && (!node->exit_seen || is_last(w, node))) tell_exit(w, node);
    }
    heal_coords(w, &last);
    uint32_t living = 0;
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint32_t index = w->at_rank[r];
        living += index != SIM_NO && w->nodes[index]->alive && !w->nodes[index]->stopped ? 1u : 0u;
    }
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint32_t index = w->at_rank[r];
        bool here = index != SIM_NO && w->nodes[index]->alive && !w->nodes[index]->stopped;
        if (here || w->gone[r]) continue;
        if (living >= 2 && sim_chance(&w->fault, 80))
            w->gone[r] = true; /* its host is lost for good */
        else
            sim_at(w, w->now + sim_below(&w->fault, 5u * SIM_SECOND), SIM_EV_SPAWN, r, 0, 0);
    }
    return last;
}
