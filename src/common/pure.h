/* pure.h: what both step machines share and may call: a digest and an effect arena. Header only, so that the core
 * archives stay without undefined symbols; never allocates.
 */
#ifndef MCPG_COMMON_PURE_H
#define MCPG_COMMON_PURE_H

#include <string.h>

#include "common/base.h"

/* A running 64-bit digest (splitmix finaliser per word); not cryptographic. */
static inline uint64_t mcpg__digest_u64(uint64_t digest, uint64_t value) {
    uint64_t z = digest + UINT64_C(0x9e3779b97f4a7c15) + value;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
static inline uint64_t mcpg__digest_bytes(uint64_t digest, const void *data, size_t len) {
    const uint8_t *p = (const uint8_t *)data;
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        digest = mcpg__digest_u64(digest, w);
        p += 8;
        len -= 8;
    }
    uint64_t tail = len;
    for (size_t i = 0; i < len; i++) tail = (tail << 8) | p[i];
    return mcpg__digest_u64(digest, tail);
}

/* Takes size bytes, 16-aligned; asserts that the worst case was sized right. */
static inline void *mcpg__fx_take(uint8_t *arena, size_t *used, size_t cap, size_t size) {
    size_t at = (*used + 15u) & ~(size_t)15u;
    MCPG_ASSERT(at <= cap && size <= cap - at);
    *used = at + size;
    return arena + at;
}

#endif
