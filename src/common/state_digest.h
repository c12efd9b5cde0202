/* state_digest.h: the anti-entropy digest that heartbeats carry: what an agent holds of the coordinator's state, in one
 * number.
 *
 * Both machines add up the same parts (wrapping 64-bit sum, so that the order does not matter and a change is one
 * subtraction and one addition): one per rank that a full RANK_STATES lists, one per slot of MEMBERS and one for the
 * committed view of every group in which the rank is registered. mcpg__digest_wire turns the sum into the value on the
 * wire. Header only; never allocates.
 */
#ifndef MCPG_COMMON_STATE_DIGEST_H
#define MCPG_COMMON_STATE_DIGEST_H

#include "common/msg.h"
#include "common/pure.h"

/* suspect is left out: it is transient. */
static inline uint64_t mcpg__digest_rank(mcpg_rank_t rank, mcpg_incarnation_t inc, uint8_t state, bool dead) {
    uint64_t d = mcpg__digest_u64(1, rank.v);
    d = mcpg__digest_u64(d, inc.term);
    d = mcpg__digest_u64(d, inc.counter);
    return mcpg__digest_u64(d, (uint64_t)state * 2u + (dead ? 1u : 0u));
}
static inline uint64_t mcpg__digest_member(mcpg_gid_t gid, const mcpg_group_member_t *member) {
    uint64_t d = mcpg__digest_u64(2, gid.v);
    d = mcpg__digest_u64(d, member->slot.v);
    d = mcpg__digest_u64(d, member->rank.v);
    d = mcpg__digest_u64(d, member->inc.term);
    d = mcpg__digest_u64(d, member->inc.counter);
    return mcpg__digest_u64(d, member->awaiting ? 1u : 0u);
}
/* Nothing for a group without a committed view. */
static inline uint64_t mcpg__digest_view(mcpg_gid_t gid, mcpg_view_id_t view) {
    if (view.term == 0 && view.epoch == 0) return 0;
    uint64_t d = mcpg__digest_u64(3, gid.v);
    d = mcpg__digest_u64(d, view.term);
    return mcpg__digest_u64(d, view.epoch);
}
/* 0 on the wire means "holds nothing", so a real sum is never 0. */
static inline uint64_t mcpg__digest_wire(uint64_t sum) {
    return sum == 0 ? 1 : sum;
}

#endif
