/* chaos.c: the story in which everything happens at once: kills, cut links, broken streams, proposals, syncs; then the
 * world heals and must come back to four active ranks with every call answered and every failed operation judged.
 */
#include "unit/machines/stories.h"

typedef struct {
    uint32_t gid, at[4];          /* node in each slot, WORLD_NODES: none */
    uint32_t gone[4];             /* the one before */
    uint32_t caller[WORLD_CALLS]; /* node, by call id */
    uint64_t first_call;
} chaos_t;

static void remember(chaos_t *c, uint32_t node, uint64_t call) {
    c->caller[call] = node;
}

static uint32_t some_alive(world_t *w, const chaos_t *c) {
    uint32_t slot = (uint32_t)world_random(w, 4);
    while (c->at[slot] == WORLD_NODES) slot = (slot + 1u) % 4u; /* bounded: slot 0 is never killed */
    return slot;
}

static void chaos_kill(world_t *w, chaos_t *c, uint32_t slot) {
    for (uint32_t i = 0; i < 4; i++)
        if (i != slot && c->at[i] != WORLD_NODES && world_random(w, 2) == 0) op_fail(w, c->at[i], c->gid, slot);
    world_kill(w, c->at[slot]);
    c->gone[slot] = c->at[slot];
    c->at[slot] = WORLD_NODES;
}

/* Nobody active is alive: the generation has ended, which is right and ends the story. */
static bool over(world_t *w, const chaos_t *c) {
    uint32_t last = w->view_count[c->gid] - 1u;
    for (uint32_t i = 0; i <= last; i++)
        if (mcpg__view_cmp(w->views[c->gid][i].id, w->views[c->gid][last].id) > 0) last = i;
    const model_view_t *view = &w->views[c->gid][last];
    for (uint32_t i = 0; i < view->count; i++) {
        uint32_t node = c->at[view->active[i].slot.v];
        if (node != WORLD_NODES && mcpg__inc_eq(world_inc(&w->nodes[node]), view->active[i].inc)) return false;
    }
    return true;
}

static bool registered(world_t *w, uint64_t call) {
    (void)world_answer(w, call);
    return w->calls[call].answer.status == MCPG_OK;
}

static void chaos_respawn(world_t *w, chaos_t *c, uint32_t slot) {
    world_exit_seen(w, c->gone[slot]); /* who starts a replacement has seen the end; without proof: RANK_IN_USE */
    uint32_t node = world_spawn(w, slot);
    c->at[slot] = node;
    for (uint32_t tries = 0; tries < 20; tries++) { /* bounded */
        if (registered(w, call_register(w, node, order4, 4, 4, "e", LONG_US))) {
            remember(c, node, call_join(w, node, c->gid, LONG_US));
            return;
        }
        world_run_for(w, 500000);
        if (over(w, c)) return;
    }
    world_fail(w, "chaos", "a replacement was never registered");
}

static void chaos_action(world_t *w, chaos_t *c) {
    uint32_t slot = some_alive(w, c), other = (uint32_t)world_random(w, 4);
    switch (world_random(w, 8)) {
    case 0:
        if (slot != 0 && w->node_count < WORLD_NODES - 4u) chaos_kill(w, c, slot);
        break;
    case 1:
        if (c->at[other] == WORLD_NODES && w->node_count < WORLD_NODES - 4u) chaos_respawn(w, c, other);
        break;
    case 2:
        if (slot != other) world_cut(w, slot, other, true);
        break;
    case 3:
        if (slot != other) world_cut(w, slot, other, false);
        break;
    case 4:
        world_drop_stream(w, c->at[slot]);
        break;
    case 5:
        remember(c, c->at[slot], call_propose(w, c->at[slot], c->gid, S(other), 0, world_random(w, 2) * 3000000u));
        break;
    case 6:
        if (other != 0 && __builtin_popcountll(world_active(w, c->at[slot], c->gid)) > 2)
            remember(c, c->at[slot], call_propose(w, c->at[slot], c->gid, 0, S(other), 0));
        break;
    default:
        remember(c, c->at[slot], call_sync(w, c->at[slot], c->gid, S(other), world_random(w, 50), 2000000));
        break;
    }
}

static bool chaos_settled(world_t *w, const void *arg) {
    const chaos_t *c = arg;
    for (uint32_t i = 0; i < 4; i++)
        if (world_active(w, c->at[i], c->gid) != 15 ||
            world_epoch(w, c->at[i], c->gid) != world_epoch(w, c->at[0], c->gid))
            return false;
    for (uint64_t i = c->first_call; i <= w->last_call; i++)
        if (!w->calls[i].done && w->nodes[c->caller[i]].alive) return false;
    return all_judged(w, NULL);
}

static void chaos_heal(world_t *w, chaos_t *c) {
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < a; b++) world_cut(w, a, b, false);
    for (uint32_t i = 0; i < 4; i++)
        if (c->at[i] == WORLD_NODES && !over(w, c)) chaos_respawn(w, c, i);
    for (uint32_t i = 0; i < 10 && !over(w, c) && !chaos_settled(w, c);
         i++) { /* bounded: each round is a few seconds */
        world_run_for(w, 3000000);
        for (uint32_t k = 0; k < 4; k++) /* who meets SYNCING calls sync_after_failure, as its operations tell it to */
            if (w->nodes[c->at[k]].groups[c->gid].fenced)
                remember(c, c->at[k], call_sync(w, c->at[k], c->gid, 0, MCPG_NO_SEQ, 20000000));
        for (uint32_t k = 0; k < 4; k++)
            if (world_active(w, c->at[k], c->gid) != 15)
                remember(c, c->at[k], call_join(w, c->at[k], c->gid, 20000000));
        remember(c, c->at[0], call_propose(w, c->at[0], c->gid, 15, 0, 5000000));
    }
    if (over(w, c)) return;
    world_until(w, chaos_settled, c, "healed: all active, all calls answered");
}

static void chaos_run(world_t *w) {
    chaos_t c = {.gid = found(w, 4, ""), .at = {0, 1, 2, 3}};
    c.first_call = w->last_call + 1u;
    w->prove_deaths = world_random(w, 2) == 0;
    for (uint32_t i = 0; i < 20; i++) {
        chaos_action(w, &c);
        if (over(w, &c)) return;
        work(w, c.gid, (uint32_t)world_random(w, 10));
        if (world_random(w, 4) == 0) world_run_for(w, world_random(w, 3000000));
    }
    chaos_heal(w, &c);
    if (over(w, &c)) return;
    work(w, c.gid, 20);
}

void chaos(world_t *w) {
    chaos_run(w);
    world_until(w, all_judged, NULL, "the failed operations are judged");
}
