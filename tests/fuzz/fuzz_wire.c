/* fuzz_wire.c: the properties of the codec that every wire target checks. It must never look into the codec: it knows
 * what codec.h promises, and compares messages by the dump of the unit tests.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "tools/text.h"
#include "unit/test_common_samples.h"

#define DUMP_CAP   ((size_t)2 << 20)
#define BYTES_CAP  (MCPG_MSG_CAP + 4096u)
#define EDITS_MOST 6u
#define LONG_BYTES 4096u /* of such a message one damaged form is enough */

static mcpg_arena_t *kept_arena(mcpg_arena_t *arena, size_t cap) {
    if (arena->base == NULL) arena->base = malloc(cap);
    FUZZ_REQUIRE(arena->base != NULL);
    arena->cap = cap;
    arena->used = 0;
    return arena;
}
mcpg_arena_t *fuzz_decode_arena(void) {
    static mcpg_arena_t arena;
    return kept_arena(&arena, MCPG_DECODE_ARENA_CAP);
}
mcpg_arena_t *fuzz_build_arena(void) {
    static mcpg_arena_t arena;
    return kept_arena(&arena, FUZZ_ARENA_CAP);
}

static mcpg_status_t pack(fuzz_wire_t wire, const fuzz_msg_t *msg, uint8_t *buf, size_t *len_out) {
    switch (wire) {
    case FUZZ_UP:
        return mcpg__up_pack(&msg->up, buf, MCPG_MSG_CAP, len_out);
    case FUZZ_DOWN:
        return mcpg__down_pack(&msg->down, buf, MCPG_MSG_CAP, len_out);
    case FUZZ_RECORD:
        break;
    }
    return mcpg__record_pack(&msg->record, buf, MCPG_MSG_CAP, len_out);
}

static mcpg_status_t unpack(fuzz_wire_t wire, const uint8_t *buf, size_t len, mcpg_arena_t *arena, fuzz_msg_t *out) {
    switch (wire) {
    case FUZZ_UP:
        return mcpg__up_unpack(buf, len, arena, &out->up);
    case FUZZ_DOWN:
        return mcpg__down_unpack(buf, len, arena, &out->down);
    case FUZZ_RECORD:
        break;
    }
    return mcpg__record_unpack(buf, len, arena, &out->record);
}

static bool valid(fuzz_wire_t wire, const fuzz_msg_t *msg) {
    switch (wire) {
    case FUZZ_UP:
        return fuzz_up_valid(&msg->up);
    case FUZZ_DOWN:
        return fuzz_down_valid(&msg->down);
    case FUZZ_RECORD:
        break;
    }
    return fuzz_record_valid(&msg->record);
}

static size_t dump(fuzz_wire_t wire, const fuzz_msg_t *msg, uint8_t *buf) {
    mcpg_put_t put = {.ptr = buf, .cap = DUMP_CAP};
    switch (wire) {
    case FUZZ_UP:
        dump_up(&put, &msg->up);
        break;
    case FUZZ_DOWN:
        dump_down(&put, &msg->down);
        break;
    case FUZZ_RECORD:
        DUMP(&put, msg->record.term, msg->record.coordinator_id, msg->record.has_view);
        if (msg->record.has_view) dump_view(&put, &msg->record.view);
        break;
    }
    FUZZ_REQUIRE(!put.bad);
    return put.len;
}

/* Freed at once or after the last use: an address sanitizer then sees what is still read of it. */
static uint8_t *exact_copy(const uint8_t *data, size_t len) {
    uint8_t *copy = malloc(len > 0 ? len : 1);
    FUZZ_REQUIRE(copy != NULL);
    if (len > 0) memcpy(copy, data, len);
    return copy;
}

/* The canonical bytes again, in an arena of just the size that they need, then in one that is too small. */
static void check_tight_arena(fuzz_wire_t wire, const uint8_t *bytes, size_t len, size_t used) {
    mcpg_arena_t tight = {.base = malloc(used > 0 ? used : 1), .cap = used};
    FUZZ_REQUIRE(tight.base != NULL);
    fuzz_msg_t msg;
    FUZZ_REQUIRE(unpack(wire, bytes, len, &tight, &msg) == MCPG_OK && tight.used == used);
    if (used > 0) {
        tight.cap = len % used;
        tight.used = 0;
        FUZZ_REQUIRE(unpack(wire, bytes, len, &tight, &msg) == MCPG_CORRUPT);
    }
    free(tight.base);
}

static void check_round_trip(fuzz_wire_t wire, const fuzz_msg_t *first) {
    static uint8_t one[MCPG_MSG_CAP], two[MCPG_MSG_CAP], before[DUMP_CAP], after[DUMP_CAP];
    size_t one_len = 0, two_len = 0;
    FUZZ_REQUIRE(pack(wire, first, one, &one_len) == MCPG_OK);
    size_t before_len = dump(wire, first, before);
    mcpg_arena_t *arena = fuzz_decode_arena();
    fuzz_msg_t second;
    uint8_t *copy = exact_copy(one, one_len);
    FUZZ_REQUIRE(unpack(wire, copy, one_len, arena, &second) == MCPG_OK);
    free(copy);
    FUZZ_REQUIRE(dump(wire, &second, after) == before_len && memcmp(before, after, before_len) == 0);
    FUZZ_REQUIRE(pack(wire, &second, two, &two_len) == MCPG_OK);
    FUZZ_REQUIRE(two_len == one_len && memcmp(one, two, one_len) == 0);
    check_tight_arena(wire, one, one_len, arena->used);
}

bool fuzz_wire_bytes(fuzz_wire_t wire, const uint8_t *data, size_t len) {
    /* An arena of its own: the round trip empties the other. */
    static mcpg_arena_t arena;
    (void)kept_arena(&arena, FUZZ_ARENA_CAP);
    uint8_t *copy = exact_copy(data, len);
    fuzz_msg_t msg;
    mcpg_status_t status = unpack(wire, copy, len, &arena, &msg);
    free(copy);
    FUZZ_REQUIRE(status == MCPG_OK || status == MCPG_CORRUPT);
    if (status != MCPG_OK) return false;
    FUZZ_REQUIRE(valid(wire, &msg));
    check_round_trip(wire, &msg);
    return true;
}

/* One edit of the bytes: change, cut out, put in, or repeat a stretch (a field that comes twice). */
static size_t edit(fuzz_in_t *in, uint8_t *bytes, size_t len) {
    uint32_t what = fuzz_below(in, 5);
    size_t at = fuzz_u8(in);
    at |= (size_t)(fuzz_u8(in) & 15u) << 8;
    at = len == 0 ? 0 : at % len;
    size_t run = fuzz_u8(in) % (len - at + 1);
    if (what == 0 && len > 0) bytes[at] = fuzz_u8(in);
    if (what == 1 && len > 0) bytes[at] ^= (uint8_t)(1u << (run & 7u));
    if (what == 2) {
        memmove(bytes + at, bytes + at + run, len - at - run);
        return len - run;
    }
    if (what < 3 || len + run > BYTES_CAP || run == 0) return len;
    memmove(bytes + at + run, bytes + at, len - at);
    for (size_t i = 0; what == 4 && i < run; i++) bytes[at + i] = fuzz_u8(in);
    return len + run;
}

static void print(fuzz_wire_t wire, const fuzz_msg_t *msg, bool good) {
    printf(good ? "within bounds: " : "out of bounds: ");
    if (wire == FUZZ_UP) mcpg__text_up(stdout, &msg->up);
    if (wire == FUZZ_DOWN) mcpg__text_down(stdout, &msg->down);
    printf("\n");
}

void fuzz_wire_built(fuzz_wire_t wire, const fuzz_msg_t *msg, fuzz_in_t *in) {
    static uint8_t bytes[BYTES_CAP], before[DUMP_CAP], after[DUMP_CAP];
    size_t len = 0;
    bool good = valid(wire, msg);
    if (fuzz_verbose) print(wire, msg, good);
    mcpg_status_t status = pack(wire, msg, bytes, &len);
    FUZZ_REQUIRE(status == MCPG_OK || (status == MCPG_LIMIT && !good));
    if (status != MCPG_OK) return;
    mcpg_arena_t *arena = fuzz_decode_arena();
    fuzz_msg_t back;
    status = unpack(wire, bytes, len, arena, &back);
    FUZZ_REQUIRE(status == (good ? MCPG_OK : MCPG_CORRUPT));
    if (good) {
        size_t before_len = dump(wire, msg, before);
        FUZZ_REQUIRE(dump(wire, &back, after) == before_len && memcmp(before, after, before_len) == 0);
    }
    for (uint32_t i = 0; i < EDITS_MOST && fuzz_left(in) > 0; i++) {
        len = edit(in, bytes, len);
        (void)fuzz_wire_bytes(wire, bytes, len);
        if (len > LONG_BYTES) return;
    }
}

bool fuzz_up_through(mcpg_up_msg_t *msg, mcpg_arena_t *arena) {
    static uint8_t bytes[MCPG_MSG_CAP];
    size_t len = 0;
    if (mcpg__up_pack(msg, bytes, sizeof bytes, &len) != MCPG_OK) return false;
    return mcpg__up_unpack(bytes, len, arena, msg) == MCPG_OK;
}
bool fuzz_down_through(mcpg_down_msg_t *msg, mcpg_arena_t *arena) {
    static uint8_t bytes[MCPG_MSG_CAP];
    size_t len = 0;
    if (mcpg__down_pack(msg, bytes, sizeof bytes, &len) != MCPG_OK) return false;
    return mcpg__down_unpack(bytes, len, arena, msg) == MCPG_OK;
}
