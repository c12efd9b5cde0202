/* test_common_codec.c: the wire codec: every kind there and back at every size, limits that must be rejected, and
 * 20,000 damaged messages that must neither crash nor get out of bounds. Never tests what the messages mean.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/test_common_samples.h"

static uint8_t *wire, *wire_again, *dump_a, *dump_b, *arena_a, *arena_b;
#define DUMP_CAP ((size_t)4 << 20)

static int set_up(void **state) {
    (void)state;
    wire = malloc(MCPG_MSG_CAP);
    wire_again = malloc(MCPG_MSG_CAP);
    dump_a = malloc(DUMP_CAP);
    dump_b = malloc(DUMP_CAP);
    arena_a = malloc(MCPG_DECODE_ARENA_CAP);
    arena_b = malloc(MCPG_DECODE_ARENA_CAP);
    return wire && wire_again && dump_a && dump_b && arena_a && arena_b ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    uint8_t *all[] = {wire, wire_again, dump_a, dump_b, arena_a, arena_b};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    return 0;
}
static sample_t sampler(uint64_t seed, uint32_t size) {
    return (sample_t){.state = seed, .arena = {.base = arena_a, .cap = MCPG_DECODE_ARENA_CAP}, .size = size};
}
static mcpg_arena_t decode_arena(void) {
    return (mcpg_arena_t){.base = arena_b, .cap = MCPG_DECODE_ARENA_CAP};
}

static void round_trip_up(mcpg_up_kind_t kind, uint32_t size, uint64_t seed) {
    sample_t s = sampler(seed, size);
    mcpg_up_msg_t msg = sample_up(&s, kind), back;
    size_t len = 0, len_again = 0;
    assert_int_equal(mcpg__up_pack(&msg, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    mcpg_arena_t arena = decode_arena();
    assert_int_equal(mcpg__up_unpack(wire, len, &arena, &back), MCPG_OK);
    mcpg_put_t a = {.ptr = dump_a, .cap = DUMP_CAP}, b = {.ptr = dump_b, .cap = DUMP_CAP};
    dump_up(&a, &msg);
    dump_up(&b, &back);
    assert_false(a.bad || b.bad);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(dump_a, dump_b, a.len);
    assert_int_equal(mcpg__up_pack(&back, wire_again, MCPG_MSG_CAP, &len_again), MCPG_OK);
    assert_int_equal(len, len_again);
    assert_memory_equal(wire, wire_again, len);
}
static void round_trip_down(mcpg_down_kind_t kind, uint32_t size, uint64_t seed) {
    sample_t s = sampler(seed, size);
    mcpg_down_msg_t msg = sample_down(&s, kind), back;
    size_t len = 0, len_again = 0;
    assert_int_equal(mcpg__down_pack(&msg, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    mcpg_arena_t arena = decode_arena();
    assert_int_equal(mcpg__down_unpack(wire, len, &arena, &back), MCPG_OK);
    mcpg_put_t a = {.ptr = dump_a, .cap = DUMP_CAP}, b = {.ptr = dump_b, .cap = DUMP_CAP};
    dump_down(&a, &msg);
    dump_down(&b, &back);
    assert_false(a.bad || b.bad);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(dump_a, dump_b, a.len);
    assert_int_equal(mcpg__down_pack(&back, wire_again, MCPG_MSG_CAP, &len_again), MCPG_OK);
    assert_int_equal(len, len_again);
    assert_memory_equal(wire, wire_again, len);
}

static void test_round_trip(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 4, 11, 100, MCPG_MAX_RANKS};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            for (int k = 0; k < MCPG_UP__COUNT; k++)
                round_trip_up((mcpg_up_kind_t)k, sizes[i], seed * 100 + (uint64_t)k);
            for (int k = 0; k < MCPG_DOWN__COUNT; k++)
                round_trip_down((mcpg_down_kind_t)k, sizes[i], seed * 100 + (uint64_t)k);
        }
}

/* A message of zeros where they are legal, and with empty lists. */
static void test_smallest(void **state) {
    (void)state;
    mcpg_up_msg_t up = {.kind = MCPG_UP_ATTACH, .u.attach.session = {1}}, up_back;
    size_t len = 0;
    mcpg_arena_t arena = decode_arena();
    assert_int_equal(mcpg__up_pack(&up, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    assert_int_equal(mcpg__up_unpack(wire, len, &arena, &up_back), MCPG_OK);
    assert_int_equal(up_back.u.attach.report_count, 0);
    assert_int_equal(up_back.u.attach.endpoint.len, 0);
    mcpg_down_msg_t down = {.kind = MCPG_DOWN_COMMIT}, down_back;
    down.u.commit.gid.v = 1;
    down.u.commit.view.id = (mcpg_view_id_t){1, 1};
    assert_int_equal(mcpg__down_pack(&down, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    assert_int_equal(mcpg__down_unpack(wire, len, &arena, &down_back), MCPG_OK);
    assert_int_equal(down_back.u.commit.view.active_count, 0);
}

static mcpg_status_t try_up(const mcpg_up_msg_t *msg) {
    size_t len = 0;
    mcpg_arena_t arena = decode_arena();
    mcpg_up_msg_t back = {.kind = MCPG_UP__COUNT};
    mcpg_status_t status = mcpg__up_pack(msg, wire, MCPG_MSG_CAP, &len);
    if (status != MCPG_OK) return status;
    status = mcpg__up_unpack(wire, len, &arena, &back);
    if (status != MCPG_OK) assert_int_equal(back.kind, MCPG_UP__COUNT); /* outputs only on success */
    return status;
}
static mcpg_status_t try_down(const mcpg_down_msg_t *msg) {
    size_t len = 0;
    mcpg_arena_t arena = decode_arena();
    mcpg_down_msg_t back = {.kind = MCPG_DOWN__COUNT};
    mcpg_status_t status = mcpg__down_pack(msg, wire, MCPG_MSG_CAP, &len);
    if (status != MCPG_OK) return status;
    status = mcpg__down_unpack(wire, len, &arena, &back);
    if (status != MCPG_OK) assert_int_equal(back.kind, MCPG_DOWN__COUNT);
    return status;
}

/* Changes one thing of a valid message: that must be rejected. */
#define BAD_UP(KIND, change)                                                                                           \
    do {                                                                                                               \
        sample_t s = sampler(7, 4);                                                                                    \
        mcpg_up_msg_t m = sample_up(&s, MCPG_UP_##KIND);                                                               \
        assert_int_equal(try_up(&m), MCPG_OK);                                                                         \
        change;                                                                                                        \
        assert_int_equal(try_up(&m), MCPG_CORRUPT);                                                                    \
    } while (0)
#define BAD_DOWN(KIND, change)                                                                                         \
    do {                                                                                                               \
        sample_t s = sampler(7, 4);                                                                                    \
        mcpg_down_msg_t m = sample_down(&s, MCPG_DOWN_##KIND);                                                         \
        assert_int_equal(try_down(&m), MCPG_OK);                                                                       \
        change;                                                                                                        \
        assert_int_equal(try_down(&m), MCPG_CORRUPT);                                                                  \
    } while (0)

static void test_limits_up(void **state) {
    (void)state;
    BAD_UP(ATTACH, m.u.attach.rank.v = MCPG_MAX_RANKS);
    BAD_UP(ATTACH, m.u.attach.session.v = 0);
    BAD_UP(ATTACH, (m.u.attach.prev_inc = (mcpg_incarnation_t){0, 5}));
    BAD_UP(ATTACH, ((mcpg_group_report_t *)m.u.attach.reports)[3].gid.v = 0);
    BAD_UP(ATTACH, (((mcpg_group_report_t *)m.u.attach.reports)[0].committed = (mcpg_view_id_t){0, 1}));
    BAD_UP(LINK, m.u.link.peer.v = MCPG_MAX_RANKS);
    BAD_UP(LINK, m.u.link.state = 2);
    BAD_UP(LINK, (m.u.link.peer_inc = (mcpg_incarnation_t){0, 0}));
    BAD_UP(DEATH, m.u.death.proof = 3);
    BAD_UP(DEATH, m.u.death.rank.v = UINT32_MAX);
    BAD_UP(DEATH, m.u.death.inc.term = UINT64_MAX);
    BAD_UP(REGISTER, m.u.register_group.capacity = 3);
    BAD_UP(REGISTER, m.u.register_group.capacity = MCPG_MAX_RANKS + 1);
    BAD_UP(REGISTER, m.u.register_group.order_count = 0);
    BAD_UP(REGISTER, ((uint32_t *)m.u.register_group.order)[1] = m.u.register_group.order[3]);
    BAD_UP(REGISTER, ((uint32_t *)m.u.register_group.order)[1] = MCPG_MAX_RANKS);
    BAD_UP(JOIN, m.u.join.gid.v = 0);
    BAD_UP(PROPOSE, m.u.propose.gid.v = 0);
    BAD_UP(PROPOSE, ((mcpg_member_t *)m.u.propose.stamps)[1].slot = m.u.propose.stamps[0].slot);
    BAD_UP(PROPOSE, ((mcpg_member_t *)m.u.propose.stamps)[1].slot.v = MCPG_MAX_RANKS);
    BAD_UP(ACK, m.u.ack.gid.v = 0);
    BAD_UP(ACK, (m.u.ack.view = (mcpg_view_id_t){0, 0}));
    BAD_UP(COMMIT_ACK, m.u.commit_ack.view.epoch = UINT64_MAX);
    BAD_UP(OP_FAILED, m.u.op_failed.gid.v = 0);
    BAD_UP(OP_FAILED, ((mcpg_member_t *)m.u.op_failed.failed)[2].rank.v = MCPG_MAX_RANKS);
    BAD_UP(SYNC_ENTER, m.u.sync_enter.gid.v = 0);
    BAD_UP(LEAVE_GROUP, m.u.leave_group.gid.v = 0);
}

static void test_limits_down(void **state) {
    (void)state;
    BAD_DOWN(WELCOME, m.u.welcome.term = 0);
    BAD_DOWN(WELCOME, m.u.welcome.heartbeat_us = 0);
    BAD_DOWN(WELCOME, (m.u.welcome.inc = (mcpg_incarnation_t){0, 0}));
    BAD_DOWN(REFUSED, m.u.refused.status = MCPG_OK);
    BAD_DOWN(REFUSED, m.u.refused.status = MCPG_NOT_PERMITTED - 1);
    BAD_DOWN(RANK_STATES, ((mcpg_rank_info_t *)m.u.rank_states.ranks)[3].rank.v = MCPG_MAX_RANKS);
    BAD_DOWN(RANK_STATES, ((mcpg_rank_info_t *)m.u.rank_states.ranks)[3].rank.v = m.u.rank_states.ranks[0].rank.v);
    BAD_DOWN(RANK_STATES, ((mcpg_rank_info_t *)m.u.rank_states.ranks)[0].state = 3);
    BAD_DOWN(RANK_STATES, (((mcpg_rank_info_t *)m.u.rank_states.ranks)[0] =
                               (mcpg_rank_info_t){.rank = {0}, .state = MCPG_RANK_SYNCED}));
    BAD_DOWN(RANK_STATES, m.u.rank_states.first = 1);
    BAD_DOWN(RANK_STATES, (m.u.rank_states.first = 9, m.u.rank_states.end = 9));
    BAD_DOWN(RANK_STATES, m.u.rank_states.end = MCPG_MAX_RANKS + 1);
    BAD_DOWN(RANK_STATES, m.u.rank_states.end = 1); /* some of its ranks are not in that part */
    BAD_DOWN(REGISTERED, (m.u.registered.status = 0, m.u.registered.gid.v = 0));
    BAD_DOWN(REGISTERED, (m.u.registered.status = 0, m.u.registered.slot.v = m.u.registered.capacity));
    BAD_DOWN(REGISTERED, m.u.registered.capacity = MCPG_MAX_RANKS + 1);
    BAD_DOWN(REGISTERED, m.u.registered.status = 2);
    BAD_DOWN(MEMBERS, ((mcpg_group_member_t *)m.u.members.members)[2].slot.v = 3);
    BAD_DOWN(MEMBERS, ((mcpg_group_member_t *)m.u.members.members)[2].rank.v = MCPG_MAX_RANKS);
    BAD_DOWN(MEMBERS, m.u.members.gid.v = 0);
    BAD_DOWN(PREPARE, (m.u.prepare.view.id = (mcpg_view_id_t){0, 0}));
    BAD_DOWN(PREPARE, ((mcpg_member_t *)m.u.prepare.view.active)[1].slot.v = m.u.prepare.view.active[2].slot.v + 1);
    BAD_DOWN(PREPARE, ((mcpg_member_t *)m.u.prepare.view.active)[1].rank = m.u.prepare.view.active[0].rank);
    BAD_DOWN(COMMIT, m.u.commit.gid.v = 0);
    BAD_DOWN(COMMIT, ((mcpg_leave_t *)m.u.commit.leaves)[1].slot.v = MCPG_MAX_RANKS);
    BAD_DOWN(COMMIT, ((mcpg_leave_t *)m.u.commit.leaves)[1].slot = m.u.commit.leaves[0].slot);
    BAD_DOWN(ABORT, m.u.abort.gid.v = 0);
    BAD_DOWN(REPLY, m.u.reply.status = -1000);
    BAD_DOWN(RECONCILED, m.u.reconciled.gid.v = 0);
    BAD_DOWN(SYNCING, m.u.syncing.gid.v = 0);
}

/* What a correct program never packs is refused before a byte is written. */
static void test_pack_limits(void **state) {
    (void)state;
    size_t len = 77;
    sample_t s = sampler(3, MCPG_MAX_RANKS);
    mcpg_down_msg_t m = sample_down(&s, MCPG_DOWN_COMMIT);
    assert_int_equal(mcpg__down_pack(&m, wire, 100, &len), MCPG_LIMIT);
    m.u.commit.view.active_count = MCPG_MAX_RANKS + 1;
    assert_int_equal(mcpg__down_pack(&m, wire, MCPG_MSG_CAP, &len), MCPG_LIMIT);
    mcpg_up_msg_t up = sample_up(&s, MCPG_UP_REGISTER);
    up.u.register_group.key.len = MCPG_KEY_CAP + 1;
    assert_int_equal(mcpg__up_pack(&up, wire, MCPG_MSG_CAP, &len), MCPG_LIMIT);
    up = sample_up(&s, MCPG_UP_ATTACH);
    up.u.attach.report_count = MCPG_MAX_GROUPS + 1;
    assert_int_equal(mcpg__up_pack(&up, wire, MCPG_MSG_CAP, &len), MCPG_LIMIT);
    up.kind = MCPG_UP__COUNT;
    assert_int_equal(mcpg__up_pack(&up, wire, MCPG_MSG_CAP, &len), MCPG_INVALID_ARGUMENT);
    assert_int_equal(len, 77);
}

/* Another version is readable where it must be answered, and nowhere else. Version is field 1, a varint. */
static void test_versions(void **state) {
    (void)state;
    sample_t s = sampler(5, 2);
    mcpg_up_msg_t up = sample_up(&s, MCPG_UP_ATTACH);
    up.u.attach.version = 99;
    assert_int_equal(try_up(&up), MCPG_OK);
    mcpg_arena_t arena = decode_arena();
    mcpg_down_msg_t down = sample_down(&s, MCPG_DOWN_REFUSED);
    size_t len = 0;
    assert_int_equal(mcpg__down_pack(&down, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    assert_int_equal(wire[0], 8);
    wire[1] = 99;
    assert_int_equal(mcpg__down_unpack(wire, len, &arena, &down), MCPG_OK);
    down = sample_down(&s, MCPG_DOWN_SYNCING);
    assert_int_equal(mcpg__down_pack(&down, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    wire[1] = 99;
    assert_int_equal(mcpg__down_unpack(wire, len, &arena, &down), MCPG_CORRUPT);
}

/* RECONCILED with a set of one byte and a trailing zero byte, one too long, an arena too small, and no bytes at all. */
static void test_not_canonical(void **state) {
    (void)state;
    mcpg_arena_t arena = decode_arena();
    mcpg_down_msg_t out;
    uint8_t bytes[] = {8, 1, 0x62, 6, 8, 1, 0x1a, 2, 4, 1};
    assert_int_equal(mcpg__down_unpack(bytes, sizeof bytes, &arena, &out), MCPG_OK);
    assert_true(mcpg__rankset_has(&out.u.reconciled.cleared, 2) && mcpg__rankset_has(&out.u.reconciled.cleared, 8));
    bytes[9] = 0;
    assert_int_equal(mcpg__down_unpack(bytes, sizeof bytes, &arena, &out), MCPG_CORRUPT);
    uint8_t wide[10 + 129] = {8, 1, 0x62, 134, 1, 8, 1, 0x1a, 129, 1};
    wide[10 + 128] = 1;
    assert_int_equal(mcpg__down_unpack(wide, sizeof wide, &arena, &out), MCPG_CORRUPT);
    bytes[9] = 1;
    mcpg_arena_t tiny = {.base = arena_b, .cap = 64};
    assert_int_equal(mcpg__down_unpack(bytes, sizeof bytes, &tiny, &out), MCPG_CORRUPT);
    assert_int_equal(mcpg__down_unpack(bytes, 0, &arena, &out), MCPG_CORRUPT);
    assert_int_equal(mcpg__down_unpack(bytes, 2, &arena, &out), MCPG_CORRUPT); /* a version and no message */
}

static size_t damage(sample_t *s, uint8_t *bytes, size_t len) {
    uint32_t edits = 1 + sample_below(s, 4);
    for (uint32_t i = 0; i < edits && len > 1; i++) {
        size_t at = (size_t)(sample_u64(s) % len);
        switch (sample_below(s, 4)) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << sample_below(s, 8));
            break;
        case 1:
            bytes[at] = (uint8_t)(sample_bool(s) ? 0xff : 0x80);
            break;
        case 2:
            len = at + 1;
            break;
        case 3:
            memmove(bytes + at, bytes + at + 1, --len - at);
            break;
        }
    }
    return len;
}

/* Bounds of what was accepted are checked by dumping it: the sanitizers see every read. */
static void test_damaged(void **state) {
    (void)state;
    uint32_t accepted = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        sample_t s = sampler(round * 977 + 1, 1 + (uint32_t)(round % 12));
        mcpg_put_t dump = {.ptr = dump_a, .cap = DUMP_CAP};
        mcpg_arena_t arena = decode_arena();
        size_t len = 0;
        if (round % 2 == 0) {
            mcpg_up_msg_t msg = sample_up(&s, (mcpg_up_kind_t)(round / 2 % MCPG_UP__COUNT));
            assert_int_equal(mcpg__up_pack(&msg, wire, MCPG_MSG_CAP, &len), MCPG_OK);
            len = damage(&s, wire, len);
            uint8_t *exact = memcpy(malloc(len), wire, len);
            mcpg_status_t status = mcpg__up_unpack(exact, len, &arena, &msg);
            free(exact); /* nothing borrows from the input */
            if (status == MCPG_OK)
                dump_up(&dump, &msg), accepted++;
            else
                assert_int_equal(status, MCPG_CORRUPT);
        } else {
            mcpg_down_msg_t msg = sample_down(&s, (mcpg_down_kind_t)(round / 2 % MCPG_DOWN__COUNT));
            assert_int_equal(mcpg__down_pack(&msg, wire, MCPG_MSG_CAP, &len), MCPG_OK);
            len = damage(&s, wire, len);
            uint8_t *exact = memcpy(malloc(len), wire, len);
            mcpg_status_t status = mcpg__down_unpack(exact, len, &arena, &msg);
            free(exact);
            if (status == MCPG_OK)
                dump_down(&dump, &msg), accepted++;
            else
                assert_int_equal(status, MCPG_CORRUPT);
        }
        assert_false(dump.bad);
    }
    assert_in_range(accepted, 100, 19900);
}

/* A group's record: there and back, and damaged bytes are CORRUPT or another valid record, never a crash. */
static void test_record(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        sample_t s = sampler(seed, 1u + (uint32_t)(seed % 64u));
        mcpg_group_record_t record = {.term = seed, .coordinator_id = sample_u64(&s), .has_view = seed % 4u != 0}, back;
        if (record.has_view) record.view = sample_view(&s);
        size_t len = 0, len_again = 0;
        assert_int_equal(mcpg__record_pack(&record, wire, MCPG_MSG_CAP, &len), MCPG_OK);
        if (len > 1) assert_int_equal(mcpg__record_pack(&record, wire_again, len - 1u, &len_again), MCPG_LIMIT);
        mcpg_arena_t arena = decode_arena();
        assert_int_equal(mcpg__record_unpack(wire, len, &arena, &back), MCPG_OK);
        assert_true(back.term == record.term && back.coordinator_id == record.coordinator_id);
        assert_int_equal(back.has_view, record.has_view);
        assert_int_equal(mcpg__record_pack(&back, wire_again, MCPG_MSG_CAP, &len_again), MCPG_OK);
        assert_int_equal(len, len_again);
        assert_memory_equal(wire, wire_again, len);
        wire[sample_below(&s, (uint32_t)len)] ^= (uint8_t)(1u + sample_below(&s, 255u));
        arena = decode_arena();
        mcpg_status_t status = mcpg__record_unpack(wire, len, &arena, &back);
        assert_true(status == MCPG_OK || status == MCPG_CORRUPT);
    }
    mcpg_group_record_t none = {.coordinator_id = 1}, back;
    size_t len = 0;
    assert_int_equal(mcpg__record_pack(&none, wire, MCPG_MSG_CAP, &len), MCPG_OK);
    mcpg_arena_t arena = decode_arena();
    assert_int_equal(mcpg__record_unpack(wire, len, &arena, &back), MCPG_CORRUPT); /* term 0 rules nothing */
    assert_int_equal(mcpg__record_unpack(wire, 0, &arena, &back), MCPG_CORRUPT);
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(mcpg__up_name(MCPG_UP_ATTACH), "ATTACH");
    assert_string_equal(mcpg__down_name(MCPG_DOWN_HEARTBEAT_REPLY), "HEARTBEAT_REPLY");
    assert_string_equal(mcpg__down_name(MCPG_DOWN__COUNT), "UNKNOWN");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),    cmocka_unit_test(test_smallest),    cmocka_unit_test(test_limits_up),
        cmocka_unit_test(test_limits_down),   cmocka_unit_test(test_pack_limits), cmocka_unit_test(test_versions),
        cmocka_unit_test(test_not_canonical), cmocka_unit_test(test_damaged),     cmocka_unit_test(test_names),
        cmocka_unit_test(test_record),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
