/* sim_rand.h: the simulator's random numbers: xoshiro256**, one generator per concern, all split from the seed, so that
 * drawing more often for one concern does not change what another one draws. Never reads a clock or the system.
 */
#ifndef MCPG_SIM_RAND_H
#define MCPG_SIM_RAND_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t s[4];
} sim_rng_t;

static inline uint64_t sim_split(uint64_t *x) {
    *x += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *x;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline void sim_rng_init(sim_rng_t *r, uint64_t seed, uint64_t concern) {
    uint64_t x = seed * UINT64_C(0x2545f4914f6cdd1d) + concern * UINT64_C(0x9e3779b97f4a7c15) + 1u;
    for (int i = 0; i < 4; i++) r->s[i] = sim_split(&x);
}

static inline uint64_t sim_rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

static inline uint64_t sim_next(sim_rng_t *r) {
    uint64_t *s = r->s, result = sim_rotl(s[1] * 5u, 7) * 9u, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = sim_rotl(s[3], 45);
    return result;
}

/* In 0..below-1; below 0 gives 0. */
static inline uint64_t sim_below(sim_rng_t *r, uint64_t below) {
    return below == 0 ? 0 : (uint64_t)(((unsigned __int128)sim_next(r) * below) >> 64);
}

static inline uint64_t sim_between(sim_rng_t *r, uint64_t low, uint64_t high) {
    return low + sim_below(r, high - low + 1u);
}

static inline bool sim_chance(sim_rng_t *r, uint32_t permille) {
    return sim_below(r, 1000) < permille;
}

/* Few long ones among many short ones: between low and high, spread evenly over the orders of magnitude. */
static inline uint64_t sim_scaled(sim_rng_t *r, uint64_t low, uint64_t high) {
    uint64_t doublings = 0;
    while (doublings < 63u && (low << doublings) < high) doublings++;
    uint64_t top = low << sim_below(r, doublings + 1u);
    uint64_t value = sim_between(r, top / 2u + 1u, top);
    return value < low ? low : value > high ? high : value;
}

#endif
