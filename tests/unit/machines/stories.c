/* stories.c: the shared pieces of the stories. See stories.h. */
#include "unit/machines/stories.h"

const uint32_t order4[4] = {0, 1, 2, 3};

#define S(n) (UINT64_C(1) << (n))

/* ---- conditions ---- */

typedef struct {
    uint32_t gid;
    uint64_t nodes, active;
} active_t;
static bool active_is(world_t *w, const void *arg) {
    const active_t *a = arg;
    for (uint32_t i = 0; i < w->node_count; i++)
        if ((a->nodes >> i & 1u) && world_active(w, i, a->gid) != a->active) return false;
    return true;
}
void until_active(world_t *w, uint32_t gid, uint64_t nodes, uint64_t active) {
    active_t a = {gid, nodes, active};
    world_until(w, active_is, &a, "that view");
}

typedef struct {
    uint32_t node, rank;
    uint8_t state;
} state_t;
static bool state_is(world_t *w, const void *arg) {
    const state_t *s = arg;
    return mcpg_agent_rank_state(w->nodes[s->node].agent, (mcpg_rank_t){s->rank}) == s->state;
}
void until_state(world_t *w, uint32_t node, uint32_t rank, uint8_t state) {
    state_t s = {node, rank, state};
    world_until(w, state_is, &s, "that rank state");
}

bool all_judged(world_t *w, const void *arg) {
    (void)arg;
    for (uint32_t i = 0; i < w->node_count; i++)
        for (uint32_t k = 0; w->nodes[i].alive && k < w->nodes[i].report_count; k++)
            if (!w->nodes[i].reports[k].resolved) return false;
    return true;
}

bool peer_ok(world_t *w, const void *arg) {
    const peer_t *p = arg;
    return mcpg_agent_peer_ok(w->nodes[p->node].agent, (mcpg_gid_t){p->gid}, (mcpg_slot_t){p->slot});
}

bool quiescent(world_t *w, const void *arg) {
    (void)arg;
    return mcpg_coord_quiescent(w->coord);
}

/* ---- pieces of stories ---- */

/* The first `count` nodes, ranks 0.., found a group of all of them; operations go on all the time. Returns the gid. */
uint32_t found(world_t *w, uint32_t count, const char *flags) {
    uint64_t calls[WORLD_RANKS];
    for (uint32_t i = 0; i < count; i++)
        if (i >= w->node_count) (void)world_spawn(w, i);
    for (uint32_t i = 0; i < count; i++) calls[i] = call_register(w, i, order4, count, count, flags, LONG_US);
    uint32_t gid = 0;
    for (uint32_t i = 0; i < count; i++) {
        const mcpg_agent_call_done_t *done = world_answer(w, calls[i]);
        if (done->status != MCPG_OK) world_fail(w, "register", w->calls[calls[i]].words);
        assert_int_equal(done->slot.v, i);
        assert_false(done->isolated);
        assert_true(gid == 0 || gid == done->gid.v);
        gid = done->gid.v;
    }
    until_active(w, gid, S(count) - 1u, S(count) - 1u);
    return gid;
}

void work(world_t *w, uint32_t gid, uint32_t operations) {
    for (uint32_t i = 0; i < operations; i++) {
        op_run(w, (uint32_t)world_random(w, w->node_count), gid);
        for (uint64_t k = world_random(w, 3); k > 0; k--) (void)world_step(w);
    }
}

const mcpg_agent_call_done_t *expect(world_t *w, uint64_t call, mcpg_status_t status) {
    const mcpg_agent_call_done_t *done = world_answer(w, call);
    if (done->status != status) {
        char why[400];
        snprintf(why, sizeof(why), "status %d instead of %d: %s", (int)done->status, (int)status, w->calls[call].words);
        world_fail(w, "answer", why);
    }
    return done;
}

uint32_t replace(world_t *w, uint32_t gid, uint32_t slot, uint32_t leader) {
    uint32_t node = world_spawn(w, slot);
    const mcpg_agent_call_done_t *done = expect(w, call_register(w, node, order4, 4, 4, "e", LONG_US), MCPG_OK);
    assert_true(done->isolated && done->gid.v == gid && done->slot.v == slot);
    uint64_t join = call_join(w, node, gid, LONG_US);
    peer_t peer = {gid, slot, leader};
    world_until(w, peer_ok, &peer, "the joiner awaits");
    work(w, gid, 10);
    uint64_t propose = call_propose(w, leader, gid, S(slot), 0, w->lose_percent > 0 ? 20000000 : 0);
    work(w, gid, 10);
    done = expect(w, propose, MCPG_OK);
    assert_true(done->view.epoch >= expect(w, join, MCPG_OK)->view.epoch);
    return node;
}
