/* sim_work.c: the users of the job: they declare groups, run operations, join, propose, agree after a failure, leave,
 * end, and come back, as programs that use the library do.
 *
 * While the job is disturbed they do so at random; while it heals they do what brings it back. Every call goes through
 * the executor's queue, like any other thread's. A user must never be told what only the simulator knows, but for one
 * thing: who founds the next generation of a group is agreed on outside.
 */
#include <string.h>

#include "sim/sim.h"

static sim_local_t *new_call(sim_t *w, sim_node_t *node, mcpg_agent_ev_kind_t kind) {
    sim_local_t *item = sim_local_new(w, node, SIM_LOCAL_EVENT, 5u + sim_below(&w->work, 300));
    item->event.kind = kind;
    return item;
}

static uint32_t index_of(const sim_node_t *node, const sim_mine_t *m) {
    return (uint32_t)(m - node->mine);
}

static void set_bits(mcpg_rankset_t *set, uint64_t bits) {
    set->w[0] = bits;
}

/* ---- calls ---- */

static void call_register(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_REGISTER);
    mcpg_agent_call_register_t *call = &item->event.u.call_register;
    static const uint8_t cpu[] = "cpu";
    uint64_t timeout_us = sim_between(&w->work, 5u * SIM_SECOND, 40u * SIM_SECOND);
    m->register_call = sim_call_new(w, node, index_of(node, m), SIM_CALL_REGISTER, timeout_us);
    call->call_id = m->register_call;
    call->device_kind = (mcpg_bytes_t){cpu, 3};
    call->timeout_us = timeout_us;
    if (m->filler) {
        call->key = (mcpg_bytes_t){m->key, m->key_len};
        call->order = &node->rank;
        call->order_count = call->capacity = 1;
    } else {
        const sim_spec_t *s = &w->specs[m->spec];
        bool founder = m->place < s->base_count;
        call->key = (mcpg_bytes_t){s->key, s->key_len};
        call->order = s->order;
        call->order_count = founder ? s->base_count : m->place + 1u;
        call->capacity = s->capacity;
        call->is_extension = !founder || node->replaces || m->extends;
        call->manual = s->manual;
        call->no_auto_sync = s->no_auto_sync;
    }
    m->stage = SIM_APP_REGISTERING;
    sim_local_post(w, node, item);
}

static void call_join(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_JOIN);
    uint64_t timeout_us = sim_between(&w->work, 2u * SIM_SECOND, 60u * SIM_SECOND);
    m->join_call = sim_call_new(w, node, index_of(node, m), SIM_CALL_JOIN, timeout_us);
    item->event.u.call_join =
        (mcpg_agent_call_join_t){.call_id = m->join_call, .gid = {m->gid}, .timeout_us = timeout_us};
    sim_local_post(w, node, item);
}

static void call_sync(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_SYNC);
    uint64_t timeout_us = sim_between(&w->work, 1u * SIM_SECOND, 40u * SIM_SECOND);
    m->sync_call = sim_call_new(w, node, index_of(node, m), SIM_CALL_SYNC, timeout_us);
    mcpg_agent_call_sync_t *call = &item->event.u.call_sync;
    call->call_id = m->sync_call;
    call->gid.v = m->gid;
    set_bits(&call->failed, m->failed_slots);
    call->first_failed_seq = m->first_failed;
    call->timeout_us = timeout_us;
    sim_local_post(w, node, item);
}

static void call_propose(sim_t *w, sim_node_t *node, sim_mine_t *m, uint64_t activate, uint64_t deactivate,
                         uint64_t expected_epoch, uint64_t wait_us) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_PROPOSE);
    m->propose_call = sim_call_new(w, node, index_of(node, m), SIM_CALL_PROPOSE, wait_us + 150u * SIM_SECOND);
    sim_call_t *call = sim_call(w, m->propose_call);
    call->activate = activate;
    call->deactivate = deactivate;
    mcpg_agent_call_propose_t *p = &item->event.u.call_propose;
    p->call_id = m->propose_call;
    p->gid.v = m->gid;
    set_bits(&p->activate, activate);
    set_bits(&p->deactivate, deactivate);
    p->expected_epoch = expected_epoch;
    p->wait_us = wait_us;
    sim_local_post(w, node, item);
}

static void call_leave(sim_t *w, sim_node_t *node, sim_mine_t *m, sim_app_stage_t then) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_LEAVE);
    uint64_t id = sim_call_new(w, node, index_of(node, m), SIM_CALL_LEAVE, SIM_SECOND);
    item->event.u.call_leave = (mcpg_agent_call_leave_t){.call_id = id, .gid = {m->gid}, .next_seq = m->next};
    m->stage = SIM_APP_LEAVING;
    m->then = then;
    m->leave_call = id;
    sim_local_post(w, node, item);
}

void sim_work_detach(sim_t *w, sim_node_t *node) {
    sim_local_t *item = new_call(w, node, MCPG_AGENT_EV_CALL_DETACH);
    item->event.u.call_detach.call_id = sim_call_new(w, node, 0, SIM_CALL_DETACH, SIM_SECOND);
    sim_local_post(w, node, item);
}

/* ---- answers ---- */

/* Somebody works in it: users of one job know that of each other. */
static bool group_works(const sim_t *w, uint32_t spec) {
    for (uint32_t i = 0; i < w->specs[spec].order_count; i++) {
        uint32_t index = w->at_rank[w->specs[spec].order[i]];
        if (index == SIM_NO) continue;
        const sim_mine_t *theirs = &w->nodes[index]->mine[spec];
        if (w->nodes[index]->alive && theirs->stage == SIM_APP_MEMBER && sim_dp_active(w->nodes[index], theirs))
            return true;
    }
    return false;
}

static uint64_t pause_us(sim_t *w) {
    return sim_between(&w->work, 50000, 2u * SIM_SECOND);
}

static void register_done(sim_t *w, sim_node_t *node, sim_mine_t *m, const mcpg_agent_call_done_t *done) {
    m->register_call = 0;
    m->wait_until_us = w->now + pause_us(w);
    if (done->status == MCPG_OK) {
        m->stage = m->open ? SIM_APP_MEMBER : SIM_APP_NONE;
        m->timed_out = 0;
        return;
    }
    m->stage = SIM_APP_NONE;
    if (done->status == MCPG_NEEDS_EXTENSION || done->status == MCPG_WORLD_MISMATCH) m->extends = true;
    if (done->status == MCPG_TIMED_OUT) m->timed_out++;
    if (m->filler && !m->open) m->used = false;
    if (m->open && done->status == MCPG_NOT_FOUND) call_leave(w, node, m, SIM_APP_NONE);
}

static void join_done(sim_t *w, sim_node_t *node, sim_mine_t *m, const mcpg_agent_call_done_t *done) {
    m->join_call = 0;
    m->wait_until_us = w->now + pause_us(w);
    if (done->status == MCPG_NOT_FOUND && group_works(w, m->spec)) m->timed_out++; /* it went on without this process */
    bool over = done->status == MCPG_NOT_FOUND || done->status == MCPG_NEEDS_EXTENSION ||
                done->status == MCPG_WORLD_MISMATCH || done->status == MCPG_INVALID_STATE;
    if (over && m->open && m->stage == SIM_APP_MEMBER) call_leave(w, node, m, SIM_APP_NONE);
}

void sim_work_done(sim_t *w, sim_node_t *node, const mcpg_agent_call_done_t *done) {
    const sim_call_t *call = sim_call(w, done->call_id);
    if (call == NULL || call->mine >= SIM_MINE) return;
    sim_mine_t *m = &node->mine[call->mine];
    switch ((sim_call_kind_t)call->kind) {
    case SIM_CALL_REGISTER:
        if (m->register_call == done->call_id) register_done(w, node, m, done);
        break;
    case SIM_CALL_JOIN:
        if (m->join_call == done->call_id) join_done(w, node, m, done);
        break;
    case SIM_CALL_PROPOSE:
        if (m->propose_call == done->call_id) m->propose_call = 0;
        m->wait_until_us = w->now + pause_us(w) / 4u;
        break;
    case SIM_CALL_SYNC:
        if (m->sync_call == done->call_id) m->sync_call = 0;
        break;
    case SIM_CALL_LEAVE:
        if (m->leave_call != done->call_id) break;
        m->leave_call = 0;
        m->stage = m->then;
        m->wait_until_us = w->now + pause_us(w);
        if (m->filler) m->used = false;
        break;
    case SIM_CALL_DETACH:
        break;
    }
}

/* ---- what an active member proposes ---- */

static const sim_view_t *newest(const sim_mine_t *m) {
    return m->view_count == 0 ? NULL : m->views[m->view_count - 1u]->view;
}

static uint64_t addable(const sim_t *w, const sim_node_t *node, const sim_mine_t *m) {
    const sim_view_t *v = newest(m);
    uint64_t found = 0;
    for (uint32_t s = 0; s < w->specs[m->spec].order_count; s++) {
        if (!mcpg_agent_peer_ok(node->agent, (mcpg_gid_t){m->gid}, (mcpg_slot_t){s})) continue;
        uint32_t at = v == NULL ? 0 : v->place[s];
        /* Active, but as a process that is no more, or fenced: the members see its operations fail. */
        bool real = at == 0 || (v->fenced >> s & 1u) || v->nodes[at - 1u] == SIM_NO ||
                    v->nodes[at - 1u] != w->at_rank[v->members[at - 1u].rank.v] ||
                    !mcpg__inc_eq(v->members[at - 1u].inc, sim_inc(w->nodes[v->nodes[at - 1u]]));
        if (real) found |= UINT64_C(1) << s;
    }
    return found;
}

static uint64_t random_slot(sim_t *w, const sim_mine_t *m) {
    return UINT64_C(1) << sim_below(&w->work, w->specs[m->spec].order_count);
}

static void propose(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    const sim_view_t *v = newest(m);
    uint64_t wait_us = sim_chance(&w->work, 500) ? 0 : sim_scaled(&w->work, 100000, 20u * SIM_SECOND);
    uint64_t expected = sim_chance(&w->work, 800) ? MCPG_ANY_EPOCH : v->id.epoch - sim_below(&w->work, 2);
    uint64_t in = addable(w, node, m), out = 0;
    uint64_t roll = sim_below(&w->work, 100);
    if (roll < 40) {
        if (in == 0) in = random_slot(w, m);
    } else if (roll < 75) {
        in = 0;
        out = random_slot(w, m);
    } else if (roll < 95) {
        out = random_slot(w, m) & ~in;
    } else {
        in = sim_next(&w->work) & sim_next(&w->work); /* nonsense, slots out of range included */
        out = sim_next(&w->work) & sim_next(&w->work);
    }
    if (__builtin_popcountll(v->active & ~out) < 2) out = 0;
    if ((in | out) == 0) return;
    call_propose(w, node, m, in, out, expected, wait_us);
}

/* The lowest active slot that this member sees HEALTHY speaks for the group while it heals. */
static void propose_healing(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    const sim_view_t *v = newest(m);
    uint64_t in = addable(w, node, m);
    for (uint32_t s = 0; s < m->slot; s++)
        if (v != NULL && v->place[s] != 0 && !(in >> s & 1u) &&
            mcpg_agent_peer_ok(node->agent, (mcpg_gid_t){m->gid}, (mcpg_slot_t){s}))
            return;
    if (in != 0) call_propose(w, node, m, in, 0, MCPG_ANY_EPOCH, sim_below(&w->work, 2) * 3u * SIM_SECOND);
}

/* Nobody active lives: in a manual group the operator tells one of the waiting ones to begin again. */
static void revive(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    if (!w->healing || !m->manual || m->propose_call != 0 || w->now < m->wait_until_us) return;
    if (!group_works(w, m->spec)) propose_healing(w, node, m);
}

/* ---- ticks ---- */

static void active_tick(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    bool heals = w->healing;
    uint32_t burst = heals ? SIM_OPS : 1u + (uint32_t)sim_below(&w->work, 2);
    for (uint32_t i = 0; i < burst && !w->failed; i++) sim_ops_issue(w, node, m);
    bool asked = m->fenced && (heals || sim_chance(&w->work, 300));
    bool wants = m->failed_slots != 0 && !m->manual && sim_chance(&w->work, w->plan.sync_permille);
    if (m->sync_call == 0 && (asked || (wants && !heals))) call_sync(w, node, m);
    if (m->propose_call != 0 || w->now < m->wait_until_us) return;
    if (heals)
        propose_healing(w, node, m);
    else if (sim_chance(&w->work, w->plan.propose_permille))
        propose(w, node, m);
}

/* Growers come when the founders are there; or when all begin again, and some have named them as founders. */
static bool may_register(const sim_t *w, const sim_mine_t *m) {
    bool late = w->healing && w->now > w->heal_began_us + 30u * SIM_SECOND;
    return m->place < w->specs[m->spec].base_count || late || group_works(w, m->spec);
}

static void spec_tick(sim_t *w, sim_node_t *node, sim_mine_t *m) {
    bool outdated = m->generation < w->specs[m->spec].generation;
    switch (m->stage) {
    case SIM_APP_NONE:
        m->generation = w->specs[m->spec].generation;
        if (w->now >= m->wait_until_us && may_register(w, m)) call_register(w, node, m);
        break;
    case SIM_APP_REGISTERING:
    case SIM_APP_LEAVING:
        break;
    case SIM_APP_MEMBER:
        if (outdated || (!w->healing && m->op_count == 0 && sim_chance(&w->work, w->plan.leave_permille))) {
            call_leave(w, node, m, outdated ? SIM_APP_NONE : SIM_APP_AWAY);
            break;
        }
        if (!sim_dp_active(node, m)) revive(w, node, m);
        if (sim_dp_active(node, m))
            active_tick(w, node, m);
        else if (m->join_call == 0 && w->now >= m->wait_until_us)
            call_join(w, node, m);
        break;
    case SIM_APP_AWAY:
        if (outdated) m->stage = SIM_APP_NONE;
        break;
    }
    if (m->open) sim_ops_progress(w, node, m);
}

static void filler_tick(sim_t *w, sim_node_t *node) {
    for (uint32_t i = SIM_SPECS; i < SIM_MINE; i++) {
        sim_mine_t *m = &node->mine[i];
        bool over = w->healing || w->now > m->filler_until_us;
        if (m->used && m->stage == SIM_APP_MEMBER && over) call_leave(w, node, m, SIM_APP_NONE);
        if (m->used || w->healing || w->plan.weight[SIM_F_FILL] == 0 || !sim_chance(&w->work, 3)) continue;
        sim_mine_clear(m);
        m->used = m->filler = true;
        m->spec = SIM_NO;
        m->key_len = (uint32_t)snprintf((char *)m->key, sizeof(m->key), "filler%u.%u", node->index, i);
        m->filler_until_us = w->now + sim_between(&w->work, 2u * SIM_SECOND, 60u * SIM_SECOND);
        w->result->faults[SIM_F_FILL]++;
        call_register(w, node, m);
    }
}

static void enlist(sim_t *w, sim_node_t *node) {
    for (uint32_t i = 0; i < w->plan.specs; i++) {
        sim_mine_t *m = &node->mine[i];
        if (m->used) continue;
        for (uint32_t p = 0; p < w->specs[i].order_count; p++) {
            if (w->specs[i].order[p] != node->rank) continue;
            m->used = true;
            m->spec = i;
            m->place = p;
            m->generation = w->specs[i].generation;
            m->first_failed = MCPG_NO_SEQ;
        }
    }
}

/* Told that the others did not create the group, or that it went on, while they work in it: this process has left that
 * generation (its call was given up), and only a new one can take its place. */
static bool must_restart(const sim_t *w, const sim_node_t *node) {
    for (uint32_t i = 0; i < w->plan.specs; i++) {
        const sim_mine_t *m = &node->mine[i];
        if (m->used && m->stage == SIM_APP_NONE && m->timed_out > 0 && group_works(w, i)) return true;
    }
    return false;
}

void sim_work_tick(sim_t *w, sim_node_t *node) {
    if (!node->alive || node->stopped) return;
    if (!w->finishing && must_restart(w, node)) {
        sim_crash(w, node);
        sim_at(w, w->now + 1000u, SIM_EV_EXIT, node->index, 0, 0);
        sim_at(w, w->now + SIM_SECOND, SIM_EV_SPAWN, node->rank, 0, 0);
        return;
    }
    uint64_t next_us = w->plan.tick_us / 2u + sim_below(&w->work, w->plan.tick_us);
    sim_at(w, w->now + next_us, SIM_EV_TICK, node->index, 0, 0);
    if (node->paused_until_us > w->now) return;
    enlist(w, node);
    for (uint32_t i = 0; i < w->plan.specs && !w->failed; i++)
        if (node->mine[i].used) spec_tick(w, node, &node->mine[i]);
    filler_tick(w, node);
}

/* A group in which nobody works any more, and some of whose ranks have left it, is declared again by all. */
void sim_work_renew(sim_t *w) {
    for (uint32_t s = 0; s < w->plan.specs; s++) {
        bool away = false;
        for (uint32_t i = 0; i < w->specs[s].order_count; i++) {
            uint32_t index = w->at_rank[w->specs[s].order[i]];
            if (index != SIM_NO && w->nodes[index]->alive && w->nodes[index]->mine[s].used)
                away = away || w->nodes[index]->mine[s].stage == SIM_APP_AWAY;
        }
        if (away && !group_works(w, s)) sim_work_destroy_group(w, s);
    }
}

void sim_work_destroy_group(sim_t *w, uint32_t spec) {
    sim_trace(w, "group%u is destroyed everywhere and declared again", spec);
    w->specs[spec].generation++;
}
