/* rankset.h: a fixed bitmap over MCPG_MAX_RANKS ranks or slots. Header only, pure; never allocates. */
#ifndef MCPG_COMMON_RANKSET_H
#define MCPG_COMMON_RANKSET_H

#include "common/base.h"

#define MCPG_RANKSET_WORDS ((MCPG_MAX_RANKS + 63u) / 64u)
typedef struct {
    uint64_t w[MCPG_RANKSET_WORDS];
} mcpg_rankset_t;

static inline void mcpg__rankset_clear(mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) s->w[i] = 0;
}
static inline void mcpg__rankset_add(mcpg_rankset_t *s, uint32_t r) {
    s->w[r / 64u] |= UINT64_C(1) << (r % 64u);
}
static inline void mcpg__rankset_del(mcpg_rankset_t *s, uint32_t r) {
    s->w[r / 64u] &= ~(UINT64_C(1) << (r % 64u));
}
static inline bool mcpg__rankset_has(const mcpg_rankset_t *s, uint32_t r) {
    return (s->w[r / 64u] >> (r % 64u)) & 1u;
}
/* Not the builtin: without -mpopcnt it becomes a call into libgcc, which a step machine's archive may not refer to. */
static inline uint32_t mcpg__popcount64(uint64_t x) {
    x -= (x >> 1) & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + ((x >> 2) & UINT64_C(0x3333333333333333));
    x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)((x * UINT64_C(0x0101010101010101)) >> 56);
}
static inline uint32_t mcpg__rankset_count(const mcpg_rankset_t *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) n += mcpg__popcount64(s->w[i]);
    return n;
}
static inline bool mcpg__rankset_empty(const mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++)
        if (s->w[i] != 0) return false;
    return true;
}
static inline bool mcpg__rankset_eq(const mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++)
        if (a->w[i] != b->w[i]) return false;
    return true;
}
/* a is a subset of b. */
static inline bool mcpg__rankset_subset(const mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++)
        if (a->w[i] & ~b->w[i]) return false;
    return true;
}
static inline bool mcpg__rankset_meets(const mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++)
        if (a->w[i] & b->w[i]) return true;
    return false;
}
static inline void mcpg__rankset_or(mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) a->w[i] |= b->w[i];
}
static inline void mcpg__rankset_and(mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) a->w[i] &= b->w[i];
}
static inline void mcpg__rankset_minus(mcpg_rankset_t *a, const mcpg_rankset_t *b) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) a->w[i] &= ~b->w[i];
}
/* Smallest member >= from, or MCPG_MAX_RANKS. Iterate: for (r = next(s, 0); r < MCPG_MAX_RANKS; r = next(s, r + 1)). */
static inline uint32_t mcpg__rankset_next(const mcpg_rankset_t *s, uint32_t from) {
    if (from >= MCPG_MAX_RANKS) return MCPG_MAX_RANKS;
    uint32_t i = from / 64u;
    uint64_t word = s->w[i] & (~UINT64_C(0) << (from % 64u));
    while (word == 0) {
        if (++i == MCPG_RANKSET_WORDS) return MCPG_MAX_RANKS;
        word = s->w[i];
    }
    return i * 64u + (uint32_t)__builtin_ctzll(word);
}

#endif
