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

/* Of the ranks first to end - 1. */
static void send_part(const mcpg_coord_t *c, const mcpg_rankset_t *which, uint32_t first, uint32_t end,
                      const mcpg_down_rank_states_t *like, const mcpg_rankset_t *to, mcpg_coord_effects_t *fx) {
    uint32_t count = 0, at = 0;
    for (uint32_t r = mcpg__rankset_next(which, first); r < end; r = mcpg__rankset_next(which, r + 1)) count++;
    if (count == 0 && !like->full) return;
    mcpg_down_rank_states_t *states = &mcpg__fx_send(fx, to, MCPG_DOWN_RANK_STATES)->u.rank_states;
    mcpg_rank_info_t *infos = (mcpg_rank_info_t *)mcpg__fx_alloc(fx, count * sizeof(*infos));
    for (uint32_t r = mcpg__rankset_next(which, first); r < end; r = mcpg__rankset_next(which, r + 1))
        fill_info(c, r, like->check_id != 0, &infos[at++]);
    *states = *like;
    states->count = count;
    states->ranks = infos;
}

/* In parts, where one message would be too long. */
static void send_infos(const mcpg_coord_t *c, const mcpg_rankset_t *which, bool full, uint64_t check_id,
                       const mcpg_rankset_t *to, mcpg_coord_effects_t *fx) {
    mcpg_down_rank_states_t like = {.full = full, .check_id = check_id};
    if (c->config.max_ranks <= MCPG_STATES_PART) {
        send_part(c, which, 0, c->config.max_ranks, &like, to, fx);
        return;
    }
    for (uint32_t first = 0; first < c->config.max_ranks; first += MCPG_STATES_PART) {
        uint32_t end = first + MCPG_STATES_PART;
        if (end > c->config.max_ranks) end = c->config.max_ranks;
        like.first = full ? first : 0;
        like.end = full ? end : 0;
        send_part(c, which, first, end, &like, to, fx);
    }
}

void mcpg__coord_send_suspects(mcpg_coord_t *c, const mcpg_coord_fault_t *fault, mcpg_coord_effects_t *fx) {
    send_infos(c, &fault->suspects, false, fault->check_id, &fault->asked, fx);
}

static bool changed(const mcpg_coord_rank_t *r) {
    return r->known &&
           (!r->published || !mcpg__inc_eq(r->inc, r->pub_inc) || r->state != r->pub_state || r->dead != r->pub_dead);
}

/* The digest's part of all known ranks. Whoever changes one of them makes it invalid: then there is news, too. */
static void rank_sum_update(mcpg_coord_t *c) {
    if (c->rank_sum_valid) return;
    c->rank_sum = 0;
    for (uint32_t r = 0; r < c->rank_high; r++) {
        const mcpg_coord_rank_t *other = &c->ranks[r];
        if (other->known) c->rank_sum += mcpg__digest_rank((mcpg_rank_t){r}, other->inc, other->state, other->dead);
    }
    c->rank_sum_valid = true;
    c->states_due = true;
}

bool mcpg__coord_publish(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    rank_sum_update(c);
    if (!c->states_due && mcpg__rankset_empty(&c->republish) && mcpg__rankset_empty(&c->need_full)) return true;
    mcpg_rankset_t delta = c->republish, known, others = c->streams;
    mcpg__rankset_clear(&known);
    for (uint32_t r = 0; r < c->rank_high; r++) {
        if (c->ranks[r].known) mcpg__rankset_add(&known, r);
        if (changed(&c->ranks[r])) mcpg__rankset_add(&delta, r);
    }
    mcpg__rankset_minus(&others, &c->need_full);
    if (!mcpg__rankset_empty(&c->need_full) && !mcpg__coord_rebuilding(c)) { /* a full list says who is unknown */
        if (!mcpg__fx_room_states(c, fx)) return false;
        send_infos(c, &known, true, 0, &c->need_full, fx);
        mcpg__rankset_clear(&c->need_full);
    }
    if (!mcpg__rankset_empty(&delta) && !mcpg__rankset_empty(&others)) {
        if (!mcpg__fx_room_states(c, fx)) return false;
        send_infos(c, &delta, false, 0, &others, fx);
    }
    c->states_due = false;
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
    rank_sum_update(c);
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
