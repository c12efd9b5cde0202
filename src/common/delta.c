/* delta.c: see delta.h. A delta is a list of (bytes to insert, range of the base to copy): LEB128 numbers, the start of
 * a range relative to the end of the one before. It must never trust a length that it reads.
 */
#include "common/delta.h"

#include <string.h>

#define WINDOW    8u /* bytes that are looked up */
#define MIN_MATCH 6u /* a shorter copy costs as much as the bytes */

/* ---- numbers ---- */

typedef struct {
    uint8_t *ptr;
    size_t len, cap;
    bool full;
} sink_t;

static void put_bytes(sink_t *sink, const uint8_t *bytes, size_t len) {
    if (sink->full || len > sink->cap - sink->len) {
        sink->full = true;
        return;
    }
    if (len > 0) memcpy(sink->ptr + sink->len, bytes, len);
    sink->len += len;
}

static void put_number(sink_t *sink, uint64_t value) {
    uint8_t bytes[10];
    size_t len = 0;
    do {
        bytes[len++] = (uint8_t)((value & 0x7fu) | (value > 0x7fu ? 0x80u : 0u));
        value >>= 7u;
    } while (value != 0);
    put_bytes(sink, bytes, len);
}

/* At most 5 bytes: nothing here is longer than 4 GiB. */
static bool get_number(const uint8_t **at, const uint8_t *end, uint64_t *out) {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 35u && *at < end; shift += 7u) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7fu) << shift;
        if ((byte & 0x80u) != 0) continue;
        *out = value;
        return true;
    }
    return false;
}

/* ---- making ---- */

static uint32_t slot_of(const uint8_t *bytes, uint32_t index_cap) {
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return (uint32_t)((word * UINT64_C(0x9e3779b97f4a7c15)) >> 32u) & (index_cap - 1u);
}

static uint32_t match(mcpg_bytes_t base, uint64_t from, mcpg_bytes_t whole, uint32_t at) {
    uint32_t len = 0;
    if (from >= base.len) return 0;
    while (from + len < base.len && at + len < whole.len && base.ptr[from + len] == whole.ptr[at + len]) len++;
    return len;
}

static void put_step(sink_t *sink, mcpg_bytes_t whole, uint32_t from, uint32_t at, int64_t jump, uint32_t copy) {
    put_number(sink, at - from);
    put_bytes(sink, whole.ptr + from, at - from);
    put_number(sink, copy);
    if (copy > 0) put_number(sink, jump < 0 ? (uint64_t)(-jump) * 2u - 1u : (uint64_t)jump * 2u);
}

size_t mcpg__delta_make(mcpg_bytes_t base, mcpg_bytes_t whole, uint32_t *index, uint32_t index_cap, uint8_t *out,
                        size_t cap) {
    sink_t sink = {.ptr = out, .cap = cap};
    uint32_t at = 0, told = 0, copied_to = 0; /* told: of whole; copied_to: of base */
    memset(index, 0, index_cap * sizeof(*index));
    for (uint32_t i = 0; i + WINDOW <= base.len; i++) index[slot_of(base.ptr + i, index_cap)] = i + 1u;
    while (at < whole.len && !sink.full) {
        uint64_t from = (uint64_t)copied_to + (at - told); /* as if bytes had been replaced, not inserted */
        uint32_t len = match(base, from, whole, at);
        if (len < MIN_MATCH && at + WINDOW <= whole.len) {
            uint32_t found = index[slot_of(whole.ptr + at, index_cap)];
            uint32_t other = found > 0 ? match(base, found - 1u, whole, at) : 0;
            if (other > len) {
                len = other;
                from = found - 1u;
            }
        }
        if (len < MIN_MATCH && (len == 0 || at + len < whole.len)) {
            at++;
            continue;
        }
        put_step(&sink, whole, told, at, (int64_t)from - (int64_t)copied_to, len);
        at += len;
        told = at;
        copied_to = (uint32_t)from + len;
    }
    if (told < whole.len) put_step(&sink, whole, told, whole.len, 0, 0);
    return sink.full ? 0 : sink.len;
}

/* ---- applying ---- */

bool mcpg__delta_apply(mcpg_bytes_t base, mcpg_bytes_t delta, uint8_t *out, size_t cap, size_t *len_out) {
    const uint8_t *at = delta.ptr, *end = delta.ptr + delta.len;
    uint64_t insert, copy, jump;
    size_t len = 0;
    uint64_t copied_to = 0;
    while (at < end) {
        if (!get_number(&at, end, &insert) || insert > (size_t)(end - at) || insert > cap - len) return false;
        if (insert > 0) memcpy(out + len, at, insert);
        at += insert;
        len += insert;
        if (!get_number(&at, end, &copy)) return false;
        if (copy == 0) continue;
        if (!get_number(&at, end, &jump) || copy > cap - len) return false;
        uint64_t from = jump % 2u != 0 ? copied_to - (jump + 1u) / 2u : copied_to + jump / 2u;
        if (from > base.len || copy > base.len - from) return false;
        memcpy(out + len, base.ptr + from, copy);
        len += copy;
        copied_to = from + copy;
    }
    *len_out = len;
    return true;
}
