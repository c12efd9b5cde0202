/* codec.h: bytes <-> validated domain structs. Every limit of a message is checked here, once; a decoded message is
 * within all bounds of base.h. Malformed input is MCPG_CORRUPT, never an assert. Decoding allocates only from the
 * caller's arena.
 */
#ifndef MCPG_COMMON_CODEC_H
#define MCPG_COMMON_CODEC_H

#include "common/base.h"
#include "common/msg.h"

#define MCPG_MSG_CAP          (1u << 20) /* largest message on the wire, bytes */
#define MCPG_DECODE_ARENA_CAP (4u << 20) /* an arena of this size holds any valid message */

typedef struct {
    uint8_t *base;
    size_t used, cap;
} mcpg_arena_t;
void *mcpg__arena_take(mcpg_arena_t *arena, size_t size); /* 16-aligned, NULL when full */

/* Packs into buf; *len_out = size. LIMIT when cap is too small (1 MiB always suffices). The result is canonical. */
MCPG_MUST_USE mcpg_status_t mcpg__up_pack(const mcpg_up_msg_t *msg, uint8_t *buf, size_t cap, size_t *len_out);
MCPG_MUST_USE mcpg_status_t mcpg__down_pack(const mcpg_down_msg_t *msg, uint8_t *buf, size_t cap, size_t *len_out);
/* Borrows from the arena, which the caller empties (used = 0) before it is reused; no byte of buf is kept. CORRUPT also
 * when the arena is too small. Another protocol version is decoded for ATTACH and REFUSED only: everything else of it
 * is CORRUPT. */
MCPG_MUST_USE mcpg_status_t mcpg__up_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_up_msg_t *out);
MCPG_MUST_USE mcpg_status_t mcpg__down_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena,
                                              mcpg_down_msg_t *out);
/* The same for a group's record in the key-value store. */
MCPG_MUST_USE mcpg_status_t mcpg__record_pack(const mcpg_group_record_t *record, uint8_t *buf, size_t cap,
                                              size_t *len_out);
MCPG_MUST_USE mcpg_status_t mcpg__record_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena,
                                                mcpg_group_record_t *out);
const char *mcpg__up_name(mcpg_up_kind_t kind);
const char *mcpg__down_name(mcpg_down_kind_t kind);

#endif
