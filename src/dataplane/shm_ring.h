/* shm_ring.h: one direction of a shared memory stream: a byte ring whose other end may be wrong or malicious.
 *
 * Each side keeps its own position privately and only publishes it; the other side's position is checked on every use,
 * so that a corrupt one breaks the stream, never the process. armed flags make a wake-up needed only while the other
 * side sleeps: each side stores its position, then reads the flag; the sleeper stores the flag, then reads the
 * position, all sequentially consistent.
 */
#ifndef MCPG_DATAPLANE_SHM_RING_H
#define MCPG_DATAPLANE_SHM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever written */
    _Alignas(64) _Atomic uint64_t head; /* bytes ever read */
    _Alignas(64) _Atomic uint32_t reader_armed;
    _Alignas(64) _Atomic uint32_t writer_armed;
} mcpg_ring_ctl_t;

typedef struct {
    mcpg_ring_ctl_t *ctl;
    uint8_t *data;
    uint64_t cap; /* power of two */
    uint64_t own; /* writer: tail, reader: head */
} mcpg_ring_t;

static inline void mcpg__ring_copy_in(const mcpg_ring_t *r, const uint8_t *from, size_t n) {
    size_t at = (size_t)(r->own & (r->cap - 1u));
    size_t first = n < r->cap - at ? n : (size_t)(r->cap - at);
    memcpy(r->data + at, from, first);
    if (n > first) memcpy(r->data, from + first, n - first);
}
static inline void mcpg__ring_copy_out(const mcpg_ring_t *r, uint8_t *to, size_t n) {
    size_t at = (size_t)(r->own & (r->cap - 1u));
    size_t first = n < r->cap - at ? n : (size_t)(r->cap - at);
    memcpy(to, r->data + at, first);
    if (n > first) memcpy(to + first, r->data, n - first);
}
/* Bytes to read, or room to write; -1: the other side's position makes no sense. */
static inline int64_t mcpg__ring_readable(const mcpg_ring_t *r) {
    uint64_t n = atomic_load(&r->ctl->tail) - r->own;
    return n > r->cap ? -1 : (int64_t)n;
}
static inline int64_t mcpg__ring_writable(const mcpg_ring_t *r) {
    uint64_t used = r->own - atomic_load(&r->ctl->head);
    return used > r->cap ? -1 : (int64_t)(r->cap - used);
}
/* A blocked writer is woken when half the ring is free, so that it does not wake for every few bytes. */
static inline int64_t mcpg__ring_enough(const mcpg_ring_t *r) {
    return (int64_t)(r->cap / 2u);
}

#endif
