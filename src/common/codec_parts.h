/* codec_parts.h: what codec_up.c and codec_down.c share: conversion and checks of the parts of messages. Included by
 * codec*.c only, as it is the one place, with them, that knows the generated protobuf types. Never logs, never asserts
 * about a peer's bytes.
 */
#ifndef MCPG_COMMON_CODEC_PARTS_H
#define MCPG_COMMON_CODEC_PARTS_H

#include <pg.pb-c.h>

#include "common/codec.h"

#define MCPG_WIRE_ENTRY_BYTES 192u /* room for packing one list entry: struct and pointer */
#define MCPG_WIRE_CASE_OFFSET 2    /* oneof case = kind + 2 */

/* Peers' mistakes: the message is malformed. */
#define MCPG_WIRE_CHECK(cond)                                                                                          \
    do {                                                                                                               \
        if (!(cond)) return MCPG_CORRUPT;                                                                              \
    } while (0)

/* Room for the structs of one message that is being packed: small ones on the stack, long lists on the heap. */
typedef struct {
    mcpg_arena_t arena;
    uint8_t *heap;
    _Alignas(16) uint8_t small[4096];
} mcpg_wire_scratch_t;
/* entries: of the longest list of the message. LIMIT: more than any message may have. */
mcpg_status_t mcpg__wire_scratch_begin(mcpg_wire_scratch_t *scratch, uint32_t entries);
void mcpg__wire_scratch_end(mcpg_wire_scratch_t *scratch);

/* A protobuf allocator over an arena: never frees. */
ProtobufCAllocator mcpg__wire_allocator(mcpg_arena_t *arena);

mcpg_status_t mcpg__wire_put_bytes(mcpg_bytes_t bytes, uint32_t cap, ProtobufCBinaryData *out);
mcpg_status_t mcpg__wire_put_set(mcpg_arena_t *arena, const mcpg_rankset_t *set, ProtobufCBinaryData *out);
mcpg_status_t mcpg__wire_put_members(mcpg_arena_t *arena, const mcpg_member_t *members, uint32_t count,
                                     size_t *count_out, Mooncake__Pg__Member ***out);
mcpg_status_t mcpg__wire_put_view(mcpg_arena_t *arena, const mcpg_view_body_t *view, Mooncake__Pg__ViewBody **out);

/* All get functions write only what passed every check. */
mcpg_status_t mcpg__wire_get_bytes(ProtobufCBinaryData in, uint32_t cap, mcpg_bytes_t *out);
mcpg_status_t mcpg__wire_get_set(ProtobufCBinaryData in, mcpg_rankset_t *out);
mcpg_status_t mcpg__wire_get_inc(uint64_t term, uint64_t counter, bool none_allowed, mcpg_incarnation_t *out);
mcpg_status_t mcpg__wire_get_view_id(uint64_t term, uint64_t epoch, bool none_allowed, mcpg_view_id_t *out);
mcpg_status_t mcpg__wire_get_status(int32_t in, int32_t *out);
/* No slot twice; with ascending also in ascending order, and no rank twice. */
mcpg_status_t mcpg__wire_get_members(mcpg_arena_t *arena, Mooncake__Pg__Member *const *in, size_t count, bool ascending,
                                     const mcpg_member_t **out, uint32_t *count_out);
mcpg_status_t mcpg__wire_get_view(mcpg_arena_t *arena, const Mooncake__Pg__ViewBody *in, mcpg_view_body_t *out);

mcpg_status_t mcpg__wire_put_commit(mcpg_arena_t *arena, const mcpg_down_commit_t *m, Mooncake__Pg__Commit *w);
mcpg_status_t mcpg__wire_get_commit(mcpg_arena_t *arena, const Mooncake__Pg__Commit *w, mcpg_down_commit_t *m);
uint32_t mcpg__wire_commit_entries(const mcpg_down_commit_t *m); /* for scratch_begin */
/* A rank order of count slots in a group of that capacity: within bounds, no rank twice. */
mcpg_status_t mcpg__wire_get_order(const uint32_t *order, size_t count, uint32_t capacity);

#endif
