/* coord_states.c: what agents are told about ranks, and the anti-entropy digest of it.
 *
 * A newcomer gets the whole table, everybody else only what changed since it was last told. It must never change a
 * state.
 */
#include "coordinator/coord_state.h"

static void fill_info(const mcpg_coord_t *c, uint32_t rank, bool suspect, mcpg_rank_info_t *out) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    memset(out, 0, sizeof(*out));
    out->rank.v = rank;
    out->inc = r->inc;
    out->state = r->state;
    out->suspect = suspect;
    out->dead = r->dead;
    out->host_id = r->host_id;
    out->pid = r->pid;
    if (r->state == MCPG_RANK_OFFLINE) return;
    out->endpoint = (mcpg_bytes_t){
        r->endpoint, r->endpoint_len}; /* borrows from the state: nothing changes it before the next step */
}

static void send_infos(const mcpg_coord_t *c, const mcpg_rankset_t *which, bool full, uint64_t check_id,
                       const mcpg_rankset_t *to, mcpg_coord_effects_t *fx) {
    mcpg_down_rank_states_t *states = &mcpg__fx_send(fx, to, MCPG_DOWN_RANK_STATES)->u.rank_states;
    uint32_t count = mcpg__rankset_count(which);
    mcpg_rank_info_t *infos = (mcpg_rank_info_t *)mcpg__fx_alloc(fx, count * sizeof(*infos));
    uint32_t at = 0;
    for (uint32_t r = mcpg__rankset_next(which, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(which, r + 1))
        fill_info(c, r, check_id != 0, &infos[at++]);
    states->full = full;
    states->check_id = check_id;
    states->count = count;
    states->ranks = infos;
}

void mcpg__coord_send_suspects(mcpg_coord_t *c, const mcpg_coord_fault_t *fault, mcpg_coord_effects_t *fx) {
    send_infos(c, &fault->suspects, false, fault->check_id, &fault->asked, fx);
}

static bool changed(const mcpg_coord_rank_t *r) {
    return r->known &&
           (!r->published || !mcpg__inc_eq(r->inc, r->pub_inc) || r->state != r->pub_state || r->dead != r->pub_dead);
}

bool mcpg__coord_publish(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t delta = c->republish, known, others = c->streams;
    mcpg__rankset_clear(&known);
    for (uint32_t r = 0; r < c->rank_high; r++) {
        if (c->ranks[r].known) mcpg__rankset_add(&known, r);
        if (changed(&c->ranks[r])) mcpg__rankset_add(&delta, r);
    }
    mcpg__rankset_minus(&others, &c->need_full);
    if (!mcpg__rankset_empty(&c->need_full)) {
        if (!mcpg__fx_room_states(c, fx)) return false;
        send_infos(c, &known, true, 0, &c->need_full, fx);
        mcpg__rankset_clear(&c->need_full);
    }
    if (mcpg__rankset_empty(&delta)) return true;
    if (!mcpg__rankset_empty(&others)) {
        if (!mcpg__fx_room_states(c, fx)) return false;
        send_infos(c, &delta, false, 0, &others, fx);
    }
    mcpg__rankset_clear(&c->republish);
    for (uint32_t r = mcpg__rankset_next(&delta, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(&delta, r + 1)) {
        mcpg_coord_rank_t *rank = &c->ranks[r];
        rank->published = true;
        rank->pub_inc = rank->inc;
        rank->pub_state = rank->state;
        rank->pub_dead = rank->dead;
    }
    return true;
}

uint64_t mcpg__coord_digest_for(mcpg_coord_t *c, uint32_t rank) {
    if (!c->rank_sum_valid) {
        c->rank_sum = 0;
        for (uint32_t r = 0; r < c->rank_high; r++) {
            const mcpg_coord_rank_t *other = &c->ranks[r];
            if (other->known) c->rank_sum += mcpg__digest_rank((mcpg_rank_t){r}, other->inc, other->state, other->dead);
        }
        c->rank_sum_valid = true;
    }
    uint64_t sum = c->rank_sum;
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !mcpg__rankset_has(&g->ranks, rank)) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) continue;
        sum += g->members_sum + mcpg__digest_view(g->gid, g->committed);
    }
    return mcpg__digest_wire(sum);
}
