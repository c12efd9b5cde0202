/* bytes.h: little-endian writing into and reading from a fixed byte buffer, with a sticky error instead of a check per
 * call.
 *
 * Header only and pure. Never writes or reads past the end: an overflow sets `bad`, and every later call does nothing
 * (reads give 0).
 */
#ifndef MCPG_COMMON_BYTES_H
#define MCPG_COMMON_BYTES_H

#include <string.h>

#include "common/base.h"

typedef struct {
    uint8_t *ptr;
    size_t len, cap;
    bool bad;
} mcpg_put_t;
typedef struct {
    const uint8_t *ptr;
    size_t at, len;
    bool bad;
} mcpg_get_t;

static inline void mcpg__put_raw(mcpg_put_t *put, const void *data, size_t len) {
    if (put->bad || len > put->cap - put->len) {
        put->bad = true;
        return;
    }
    if (len > 0) memcpy(put->ptr + put->len, data, len);
    put->len += len;
}
static inline void mcpg__put_le(mcpg_put_t *put, uint64_t value, size_t size) {
    uint8_t le[8];
    for (size_t i = 0; i < size; i++) le[i] = (uint8_t)(value >> (8u * i));
    mcpg__put_raw(put, le, size);
}
static inline void mcpg__put_u8(mcpg_put_t *put, uint8_t value) {
    mcpg__put_le(put, value, 1);
}
static inline void mcpg__put_u16(mcpg_put_t *put, uint16_t value) {
    mcpg__put_le(put, value, 2);
}
static inline void mcpg__put_u32(mcpg_put_t *put, uint32_t value) {
    mcpg__put_le(put, value, 4);
}
static inline void mcpg__put_u64(mcpg_put_t *put, uint64_t value) {
    mcpg__put_le(put, value, 8);
}
/* Length (u32), then the bytes. */
static inline void mcpg__put_bytes(mcpg_put_t *put, const void *data, uint32_t len) {
    mcpg__put_u32(put, len);
    mcpg__put_raw(put, data, len);
}

/* A borrowed range of len bytes, NULL when there are not that many. */
static inline const uint8_t *mcpg__get_raw(mcpg_get_t *get, size_t len) {
    if (get->bad || len > get->len - get->at) {
        get->bad = true;
        return NULL;
    }
    const uint8_t *p = get->ptr + get->at;
    get->at += len;
    return p;
}
static inline uint64_t mcpg__get_le(mcpg_get_t *get, size_t size) {
    const uint8_t *p = mcpg__get_raw(get, size);
    uint64_t value = 0;
    for (size_t i = 0; p != NULL && i < size; i++) value |= (uint64_t)p[i] << (8u * i);
    return value;
}
static inline uint8_t mcpg__get_u8(mcpg_get_t *get) {
    return (uint8_t)mcpg__get_le(get, 1);
}
static inline uint16_t mcpg__get_u16(mcpg_get_t *get) {
    return (uint16_t)mcpg__get_le(get, 2);
}
static inline uint32_t mcpg__get_u32(mcpg_get_t *get) {
    return (uint32_t)mcpg__get_le(get, 4);
}
static inline uint64_t mcpg__get_u64(mcpg_get_t *get) {
    return mcpg__get_le(get, 8);
}
static inline mcpg_bytes_t mcpg__get_bytes(mcpg_get_t *get) {
    uint32_t len = mcpg__get_u32(get);
    const uint8_t *p = mcpg__get_raw(get, len);
    return p == NULL ? (mcpg_bytes_t){0} : (mcpg_bytes_t){.ptr = p, .len = len};
}

#endif
