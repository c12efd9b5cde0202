/* fuzz.h: what the fuzz targets share: a reader of the fuzzer's bytes, messages built from them, and the properties of
 * the codec.
 *
 * A target is one file with LLVMFuzzerTestOneInput; it is linked with libFuzzer (clang) and with replay.c (any
 * compiler). It must never depend on anything but its input: the same bytes do the same.
 */
#ifndef MCPG_TESTS_FUZZ_H
#define MCPG_TESTS_FUZZ_H

#include "common/codec.h"

/* A broken property: says which, and aborts, so that the fuzzer keeps the input. */
_Noreturn void fuzz_fail(const char *file, int line, const char *what);
#define FUZZ_REQUIRE(cond)      ((cond) ? (void)0 : fuzz_fail(__FILE__, __LINE__, #cond))
#define FUZZ_REQUIRE_NULL(text) fuzz_require_null(__FILE__, __LINE__, (text))
static inline void fuzz_require_null(const char *file, int line, const char *text) {
    if (text != NULL) fuzz_fail(file, line, text);
}

/* Set by replay -v: the state machines' targets print every event and effect. */
extern bool fuzz_verbose;

/* ---- the input ---- */
/* Beyond the end everything reads as 0, so every prefix of an input is an input. */
typedef struct {
    const uint8_t *at, *end;
} fuzz_in_t;
static inline size_t fuzz_left(const fuzz_in_t *in) {
    return (size_t)(in->end - in->at);
}
uint8_t fuzz_u8(fuzz_in_t *in);
uint32_t fuzz_below(fuzz_in_t *in, uint32_t n); /* n <= 256 */
uint64_t fuzz_u64(fuzz_in_t *in);               /* mostly small, else a boundary or eight bytes as they are */
bool fuzz_bool(fuzz_in_t *in);

void *fuzz_block(size_t size); /* kept for good */
/* Short ones, none of them 0. */
mcpg_timers_t fuzz_timers(void);

/* ---- messages ---- */
#define FUZZ_HINTS 16u
/* Values that mean something where the message goes: mostly one of them is taken. */
typedef struct {
    uint32_t ranks, slots; /* below these, mostly */
    uint32_t gid_count, inc_count, view_count, number_count;
    mcpg_gid_t gids[FUZZ_HINTS];
    mcpg_incarnation_t incs[FUZZ_HINTS]; /* by rank, as far as they go */
    mcpg_view_id_t views[FUZZ_HINTS];
    uint64_t numbers[FUZZ_HINTS]; /* call ids, report ids, check ids, sequence numbers */
} fuzz_hints_t;
extern const fuzz_hints_t fuzz_hints_none;

mcpg_gid_t fuzz_gid(fuzz_in_t *in, const fuzz_hints_t *hints);
mcpg_rank_t fuzz_rank(fuzz_in_t *in, const fuzz_hints_t *hints);
mcpg_slot_t fuzz_slot(fuzz_in_t *in, const fuzz_hints_t *hints);
mcpg_incarnation_t fuzz_inc(fuzz_in_t *in, const fuzz_hints_t *hints, uint32_t rank);
mcpg_view_id_t fuzz_view_id(fuzz_in_t *in, const fuzz_hints_t *hints);
uint64_t fuzz_number(fuzz_in_t *in, const fuzz_hints_t *hints);
mcpg_rankset_t fuzz_set(fuzz_in_t *in);
/* Any values at all, in and out of bounds; lists are taken from arena. */
mcpg_up_msg_t fuzz_up(fuzz_in_t *in, mcpg_up_kind_t kind, const fuzz_hints_t *hints, mcpg_arena_t *arena);
mcpg_down_msg_t fuzz_down(fuzz_in_t *in, mcpg_down_kind_t kind, const fuzz_hints_t *hints, mcpg_arena_t *arena);
mcpg_group_record_t fuzz_record(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena);
mcpg_down_commit_t fuzz_commit(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena);
/* The bounds of msg.h, written a second time. */
bool fuzz_up_valid(const mcpg_up_msg_t *m);
bool fuzz_down_valid(const mcpg_down_msg_t *m);
bool fuzz_record_valid(const mcpg_group_record_t *r);
/* What an executor would get of it: packed and unpacked. False: the codec refuses it. Borrows from arena. */
bool fuzz_up_through(mcpg_up_msg_t *msg, mcpg_arena_t *arena);
bool fuzz_down_through(mcpg_down_msg_t *msg, mcpg_arena_t *arena);

/* ---- properties of the codec ---- */
typedef enum { FUZZ_UP, FUZZ_DOWN, FUZZ_RECORD } fuzz_wire_t;
typedef union {
    mcpg_up_msg_t up;
    mcpg_down_msg_t down;
    mcpg_group_record_t record;
} fuzz_msg_t;
/* Whatever the bytes are: no harm; and if they are a message: it keeps no byte of them, it packs, what it packs to
 * unpacks to the same message and packs to the same bytes, and an arena of just its size will do. True: they are one.
 */
bool fuzz_wire_bytes(fuzz_wire_t wire, const uint8_t *data, size_t len);
/* A built message is refused if and only if it breaks a bound, and comes through unchanged if not. Then the rest of the
 * input damages its bytes. */
void fuzz_wire_built(fuzz_wire_t wire, const fuzz_msg_t *msg, fuzz_in_t *in);
/* Empty arenas of MCPG_DECODE_ARENA_CAP, kept between inputs: one for what is decoded, one for what is built. */
mcpg_arena_t *fuzz_decode_arena(void);
mcpg_arena_t *fuzz_build_arena(void);
#define FUZZ_ARENA_CAP ((size_t)8 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
