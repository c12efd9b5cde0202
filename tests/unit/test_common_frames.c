/* test_common_frames.c: differences of byte strings, and streams that carry them: whatever is told, to whomever, with
 * streams that end and begin, each receiver reads exactly the bytes that were packed; and broken frames are refused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/codec.h"
#include "common/delta.h"
#include "common/frames.h"

#define RANKS   6u
#define MEMBERS 40u
#define ROUNDS  4000u

static uint64_t draw(uint64_t *seed, uint64_t below) {
    *seed ^= *seed << 13u;
    *seed ^= *seed >> 7u;
    *seed ^= *seed << 17u;
    return *seed % below;
}

/* ---- differences ---- */

/* Changes a few places: other bytes, bytes more, bytes less. */
static uint32_t change(uint64_t *seed, const uint8_t *from, uint32_t len, uint8_t *to) {
    memcpy(to, from, len);
    uint32_t changes = (uint32_t)draw(seed, 6);
    for (uint32_t i = 0; i < changes; i++) {
        uint32_t at = len > 0 ? (uint32_t)draw(seed, len) : 0, count = 1u + (uint32_t)draw(seed, 40);
        uint64_t how = draw(seed, 3);
        if (how == 0)
            for (uint32_t k = at; k < len && k < at + count; k++) to[k] = (uint8_t)draw(seed, 256);
        if (how == 1) {
            memmove(to + at + count, to + at, len - at);
            for (uint32_t k = 0; k < count; k++) to[at + k] = (uint8_t)draw(seed, 4);
            len += count;
        }
        if (how == 2) {
            if (count > len - at) count = len - at;
            memmove(to + at, to + at + count, len - at - count);
            len -= count;
        }
    }
    return len;
}

static void differences(void **state) {
    (void)state;
    static uint8_t base[4096], whole[8192], delta[16384], back[8192];
    static uint32_t index[4096];
    uint64_t seed = 1234567;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t len = (uint32_t)draw(&seed, 4000), alphabet = 1u + (uint32_t)draw(&seed, 256);
        for (uint32_t i = 0; i < len; i++) base[i] = (uint8_t)draw(&seed, alphabet);
        uint32_t whole_len = change(&seed, base, len, whole);
        uint32_t index_cap = round % 2u != 0 ? 4096u : 64u;
        size_t back_len = SIZE_MAX;
        size_t delta_len = mcpg__delta_make((mcpg_bytes_t){base, len}, (mcpg_bytes_t){whole, whole_len}, index,
                                            index_cap, delta, sizeof(delta));
        assert_true(delta_len > 0 || whole_len == 0);
        assert_true(delta_len < 400u || alphabet < 20u ||
                    index_cap < len); /* at most 5 changes of 40 bytes, and what tells where */
        assert_true(mcpg__delta_apply((mcpg_bytes_t){base, len}, (mcpg_bytes_t){delta, (uint32_t)delta_len}, back,
                                      sizeof(back), &back_len));
        assert_int_equal(back_len, whole_len);
        assert_memory_equal(back, whole, whole_len);
        /* too small a place: refused on both sides, nothing written beyond */
        if (delta_len > 0)
            assert_int_equal(mcpg__delta_make((mcpg_bytes_t){base, len}, (mcpg_bytes_t){whole, whole_len}, index,
                                              index_cap, delta, delta_len - 1u),
                             0);
    }
}

/* Any bytes at all are applied within bounds, or refused. */
static void wild_differences(void **state) {
    (void)state;
    uint64_t seed = 99;
    uint32_t refused = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t base_len = (uint32_t)draw(&seed, 64), delta_len = (uint32_t)draw(&seed, 24);
        uint8_t *base = malloc(base_len + 1u), *delta = malloc(delta_len + 1u), *out = malloc(100);
        assert_true(base != NULL && delta != NULL && out != NULL);
        memset(base, 7, base_len + 1u);
        for (uint32_t i = 0; i < delta_len; i++)
            delta[i] = (uint8_t)(draw(&seed, 4) != 0 ? draw(&seed, 12) : draw(&seed, 256));
        size_t out_len = 0;
        bool ok =
            mcpg__delta_apply((mcpg_bytes_t){base, base_len}, (mcpg_bytes_t){delta, delta_len}, out, 100, &out_len);
        assert_true(!ok || out_len <= 100);
        refused += ok ? 0 : 1;
        free(base);
        free(delta);
        free(out);
    }
    assert_true(refused > 1000 && refused < 20000);
}

/* ---- streams ---- */

typedef struct {
    mcpg_frames_tx_t *tx;
    mcpg_frames_rx_t *rx[RANKS];
    uint64_t conn[RANKS], last_conn;
    uint64_t seed;
    mcpg_member_t members[2][MEMBERS];
    mcpg_group_member_t table[MEMBERS];
    uint64_t counter, whole_bytes, sent_bytes;
    uint8_t packed[65536];
} streams_t;

static void streams_open(streams_t *s) {
    memset(s, 0, sizeof(*s));
    s->seed = 4242;
    s->tx = mcpg__frames_tx_new(RANKS);
    assert_non_null(s->tx);
    for (uint32_t r = 0; r < RANKS; r++) {
        s->rx[r] = mcpg__frames_rx_new();
        assert_non_null(s->rx[r]);
        s->conn[r] = ++s->last_conn;
    }
}

static void streams_close(streams_t *s) {
    mcpg__frames_tx_free(s->tx);
    for (uint32_t r = 0; r < RANKS; r++) mcpg__frames_rx_free(s->rx[r]);
}

static void member_draw(streams_t *s, mcpg_member_t *m, uint32_t slot) {
    *m = (mcpg_member_t){{slot}, {slot}, {1, ++s->counter}};
}

/* A message of some group or rank, little different from the one before. */
static void message_draw(streams_t *s, mcpg_down_msg_t *msg, mcpg_rank_info_t *info, uint8_t *endpoint) {
    uint32_t group = (uint32_t)draw(&s->seed, 2), slot = (uint32_t)draw(&s->seed, MEMBERS);
    memset(msg, 0, sizeof(*msg));
    switch (draw(&s->seed, 5)) {
    case 0:
    case 1:
        member_draw(s, &s->members[group][slot], slot);
        msg->kind = MCPG_DOWN_COMMIT;
        msg->u.commit = (mcpg_down_commit_t){
            .gid = {group + 1u}, .view = {{1, ++s->counter}, MEMBERS, s->members[group]}, .switch_seq = s->counter};
        return;
    case 2:
        msg->kind = MCPG_DOWN_PREPARE;
        msg->u.prepare =
            (mcpg_down_prepare_t){.gid = {group + 1u}, .view = {{1, ++s->counter}, MEMBERS - slot, s->members[group]}};
        return;
    case 3:
        s->table[slot].inc = (mcpg_incarnation_t){1, ++s->counter};
        s->table[slot].awaiting = !s->table[slot].awaiting;
        msg->kind = MCPG_DOWN_MEMBERS;
        msg->u.members = (mcpg_down_members_t){.gid = {1}, .count = MEMBERS, .members = s->table};
        return;
    default:
        *info = (mcpg_rank_info_t){.rank = {(uint32_t)draw(&s->seed, RANKS)},
                                   .inc = {1, 7},
                                   .state = (uint8_t)draw(&s->seed, 3),
                                   .endpoint = {endpoint, 100}};
        msg->kind = MCPG_DOWN_RANK_STATES;
        msg->u.rank_states = (mcpg_down_rank_states_t){.count = 1, .ranks = info};
    }
}

/* Everybody who is told reads exactly what was packed. */
static void tell(streams_t *s, const mcpg_down_msg_t *msg) {
    size_t len = 0;
    assert_int_equal(mcpg__down_pack(msg, s->packed, sizeof(s->packed), &len), MCPG_OK);
    mcpg__frames_tx_begin(s->tx, msg, s->packed, len);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (draw(&s->seed, 4) == 0) continue; /* not for this one */
        if (draw(&s->seed, 50) == 0) {
            s->conn[r] = ++s->last_conn;
            mcpg__frames_rx_reset(s->rx[r]);
        }
        mcpg_bytes_t frame = mcpg__frames_tx_frame_for(s->tx, r, s->conn[r]), whole;
        uint8_t *copy = malloc(frame.len); /* so that a read beyond its end is seen */
        assert_non_null(copy);
        memcpy(copy, frame.ptr, frame.len);
        assert_int_equal(mcpg__frames_rx_take(s->rx[r], copy, frame.len, &whole), MCPG_OK);
        assert_int_equal(whole.len, len);
        assert_memory_equal(whole.ptr, s->packed, len);
        s->whole_bytes += len;
        s->sent_bytes += frame.len;
        free(copy);
    }
    mcpg__frames_tx_end(s->tx);
}

static void streams(void **state) {
    (void)state;
    static streams_t s;
    static uint8_t endpoint[100];
    streams_open(&s);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        member_draw(&s, &s.members[0][i], i);
        member_draw(&s, &s.members[1][i], i);
        s.table[i] = (mcpg_group_member_t){.slot = {i}, .rank = {i}, .inc = {1, ++s.counter}};
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        mcpg_down_msg_t msg;
        mcpg_rank_info_t info;
        message_draw(&s, &msg, &info, endpoint);
        tell(&s, &msg);
    }
    assert_true(s.sent_bytes * 2u < s.whole_bytes);
    streams_close(&s);
}

/* More groups than there are slots: the ones unused for longest are told whole again, and nothing is mixed up. */
static void many_groups(void **state) {
    (void)state;
    static streams_t s;
    streams_open(&s);
    for (uint32_t i = 0; i < MEMBERS; i++) member_draw(&s, &s.members[0][i], i);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t gid = 1; gid <= 1500; gid++) {
            mcpg_down_msg_t msg = {.kind = MCPG_DOWN_COMMIT};
            msg.u.commit =
                (mcpg_down_commit_t){.gid = {gid}, .view = {{1, round + 1u}, MEMBERS, s.members[0]}, .switch_seq = gid};
            tell(&s, &msg);
        }
    streams_close(&s);
}

/* Any frame at all is refused or taken, within its bounds; one bit wrong in a difference never passes. */
static void broken_frames(void **state) {
    (void)state;
    static streams_t s;
    streams_open(&s);
    for (uint32_t i = 0; i < MEMBERS; i++) member_draw(&s, &s.members[0][i], i);
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_COMMIT};
    msg.u.commit = (mcpg_down_commit_t){.gid = {1}, .view = {{1, 1}, MEMBERS, s.members[0]}};
    size_t len = 0;
    mcpg_bytes_t frame, whole;
    for (uint32_t round = 0; round < 2; round++) {
        msg.u.commit.view.id.epoch = round + 1u;
        assert_int_equal(mcpg__down_pack(&msg, s.packed, sizeof(s.packed), &len), MCPG_OK);
        mcpg__frames_tx_begin(s.tx, &msg, s.packed, len);
        frame = mcpg__frames_tx_frame_for(s.tx, 0, 1);
        if (round == 1) break;
        assert_int_equal(mcpg__frames_rx_take(s.rx[0], frame.ptr, frame.len, &whole), MCPG_OK);
        mcpg__frames_tx_end(s.tx);
    }
    assert_true(frame.len < 40);
    for (uint32_t bit = 24; bit < frame.len * 8u; bit++) { /* behind kind and slot */
        uint8_t *copy = malloc(frame.len);
        assert_non_null(copy);
        memcpy(copy, frame.ptr, frame.len);
        copy[bit / 8u] ^= (uint8_t)(1u << (bit % 8u));
        assert_int_equal(mcpg__frames_rx_take(s.rx[0], copy, frame.len, &whole), MCPG_CORRUPT);
        free(copy);
    }
    for (uint32_t cut = 1; cut < frame.len; cut++) {
        uint8_t *copy = malloc(cut);
        assert_non_null(copy);
        memcpy(copy, frame.ptr, cut);
        assert_int_equal(mcpg__frames_rx_take(s.rx[0], copy, cut, &whole), MCPG_CORRUPT);
        free(copy);
    }
    /* a difference to what this stream was never sent */
    assert_int_equal(mcpg__frames_rx_take(s.rx[1], frame.ptr, frame.len, &whole), MCPG_CORRUPT);
    assert_int_equal(mcpg__frames_rx_take(s.rx[0], frame.ptr, frame.len, &whole), MCPG_OK);
    assert_memory_equal(whole.ptr, s.packed, len);
    const uint8_t no_slot[] = {1, 0xff, 0xff, 8, 1}, nothing[] = {0, 1, 2};
    assert_int_equal(mcpg__frames_rx_take(s.rx[0], no_slot, sizeof(no_slot), &whole), MCPG_CORRUPT);
    assert_int_equal(mcpg__frames_rx_take(s.rx[0], nothing, sizeof(nothing), &whole),
                     MCPG_OK); /* the codec's business */
    streams_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(differences), cmocka_unit_test(wild_differences),
                                       cmocka_unit_test(streams), cmocka_unit_test(many_groups),
                                       cmocka_unit_test(broken_frames)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
