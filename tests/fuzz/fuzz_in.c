/* fuzz_in.c: the fuzzer's bytes as numbers, and messages built from them. What is built need not be valid: bounds are
 * overstepped now and then. It must never read a bound from the codec: fuzz_valid.c has its own list.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

_Noreturn void fuzz_fail(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: broken property: %s\n", file, line, what);
    abort();
}

bool fuzz_verbose;

const fuzz_hints_t fuzz_hints_none = {.ranks = 8, .slots = 8};

uint8_t fuzz_u8(fuzz_in_t *in) {
    return in->at < in->end ? *in->at++ : 0;
}

uint32_t fuzz_below(fuzz_in_t *in, uint32_t n) {
    return fuzz_u8(in) % n;
}

bool fuzz_bool(fuzz_in_t *in) {
    return (fuzz_u8(in) & 1u) != 0;
}

uint64_t fuzz_u64(fuzz_in_t *in) {
    static const uint64_t edges[] = {UINT64_MAX,
                                     UINT64_MAX - 1,
                                     UINT64_MAX / 2,
                                     UINT64_MAX / 2 + 1,
                                     UINT32_MAX,
                                     (uint64_t)UINT32_MAX + 1,
                                     (uint64_t)2 << 32,
                                     255,
                                     1023,
                                     1024,
                                     4096};
    uint8_t first = fuzz_u8(in);
    if (first < 200) return first;
    if (first < 250) return edges[first % (sizeof edges / sizeof edges[0])];
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = (value << 8) | fuzz_u8(in);
    return value;
}

void *fuzz_block(size_t size) {
    void *p = malloc(size);
    FUZZ_REQUIRE(p != NULL);
    return p;
}

mcpg_timers_t fuzz_timers(void) {
    mcpg_timers_t timers;
    uint64_t each[sizeof timers / sizeof(uint64_t)];
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) each[i] = 1000000;
    memcpy(&timers, each, sizeof timers);
    timers.heartbeat_us = 200000;
    timers.ack_added_us = 200000;
    timers.reconcile_us = 400000;
    timers.coordinator_grace_us = 3000000;
    return timers;
}

/* Mostly one of the first n, else anything. */
static uint32_t mostly_below(fuzz_in_t *in, uint32_t n) {
    uint8_t first = fuzz_u8(in);
    if (first < 240 && n > 0) return first % n;
    return (uint32_t)fuzz_u64(in);
}

mcpg_gid_t fuzz_gid(fuzz_in_t *in, const fuzz_hints_t *hints) {
    uint8_t first = fuzz_u8(in);
    if (first < 224 && hints->gid_count > 0) return hints->gids[first % hints->gid_count];
    return (mcpg_gid_t){(uint32_t)fuzz_u64(in)};
}
mcpg_rank_t fuzz_rank(fuzz_in_t *in, const fuzz_hints_t *hints) {
    return (mcpg_rank_t){mostly_below(in, hints->ranks)};
}
mcpg_slot_t fuzz_slot(fuzz_in_t *in, const fuzz_hints_t *hints) {
    return (mcpg_slot_t){mostly_below(in, hints->slots)};
}
mcpg_incarnation_t fuzz_inc(fuzz_in_t *in, const fuzz_hints_t *hints, uint32_t rank) {
    uint8_t first = fuzz_u8(in);
    if (first < 160 && rank < hints->inc_count) return hints->incs[rank];
    if (first < 192 && hints->inc_count > 0) return hints->incs[first % hints->inc_count];
    if (first < 224) return (mcpg_incarnation_t){1, fuzz_u8(in)};
    uint64_t term = fuzz_u64(in);
    return (mcpg_incarnation_t){term, fuzz_u64(in)};
}
mcpg_view_id_t fuzz_view_id(fuzz_in_t *in, const fuzz_hints_t *hints) {
    uint8_t first = fuzz_u8(in);
    if (first < 192 && hints->view_count > 0) return hints->views[first % hints->view_count];
    if (first < 224) return (mcpg_view_id_t){1, fuzz_u8(in)};
    uint64_t term = fuzz_u64(in);
    return (mcpg_view_id_t){term, fuzz_u64(in)};
}
uint64_t fuzz_number(fuzz_in_t *in, const fuzz_hints_t *hints) {
    uint8_t first = fuzz_u8(in);
    if (first < 192 && hints->number_count > 0) return hints->numbers[first % hints->number_count];
    return fuzz_u64(in);
}
mcpg_rankset_t fuzz_set(fuzz_in_t *in) {
    mcpg_rankset_t set = {{fuzz_u8(in)}};
    if (fuzz_u8(in) >= 240) set.w[fuzz_below(in, MCPG_RANKSET_WORDS)] |= fuzz_u64(in);
    return set;
}

/* ---- parts ---- */

/* Lists of a few entries, or of a length near a limit. */
static uint32_t list_count(fuzz_in_t *in, uint32_t limit) {
    uint8_t first = fuzz_u8(in);
    if (first < 248) return first % 6u;
    const uint32_t lengths[] = {7, 20, 30, limit, limit + 1};
    return lengths[first % 5u];
}

static void *list_room(mcpg_arena_t *arena, uint32_t count, size_t size) {
    void *room = mcpg__arena_take(arena, (count + 1u) * size);
    FUZZ_REQUIRE(room != NULL);
    memset(room, 0, (count + 1u) * size);
    return room;
}

static mcpg_bytes_t some_bytes(fuzz_in_t *in, uint32_t cap, mcpg_arena_t *arena) {
    static const uint8_t filler[4] = {'k', 0, 0xff, '\n'};
    uint8_t first = fuzz_u8(in);
    uint32_t len = first < 248 ? first % 5u : cap - 1u + first % 3u;
    uint8_t *room = list_room(arena, len, 1);
    for (uint32_t i = 0; i < len; i++) room[i] = len < 5 ? fuzz_u8(in) : filler[i % 4u];
    return (mcpg_bytes_t){.ptr = room, .len = len};
}

/* Ascending and all different, but for one entry that says something else: long lists cost few bytes. */
static const mcpg_member_t *some_members(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena,
                                         uint32_t *count_out) {
    uint32_t count = list_count(in, MCPG_MAX_RANKS);
    mcpg_member_t *members = list_room(arena, count, sizeof *members);
    for (uint32_t i = 0; i < count; i++) {
        members[i] = (mcpg_member_t){.slot = {i}, .rank = {i}, .inc = {1, i + 1u}};
        if (i < hints->inc_count) members[i].inc = hints->incs[i];
        if (count > 5) continue;
        members[i].slot.v = i + fuzz_below(in, 2);
        members[i].rank = fuzz_rank(in, hints);
        members[i].inc = fuzz_inc(in, hints, members[i].rank.v);
    }
    if (count > 5) {
        mcpg_member_t *odd = &members[fuzz_u64(in) % count];
        *odd = (mcpg_member_t){fuzz_slot(in, hints), fuzz_rank(in, hints), fuzz_inc(in, hints, 0)};
    }
    *count_out = count;
    return members;
}

static const uint32_t *some_order(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena, uint32_t *count_out) {
    uint32_t count = list_count(in, MCPG_MAX_RANKS);
    uint32_t *order = list_room(arena, count, sizeof *order);
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    if (count > 0 && fuzz_u8(in) >= 128) order[fuzz_u64(in) % count] = fuzz_rank(in, hints).v;
    *count_out = count;
    return order;
}

static mcpg_view_body_t some_view(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_view_body_t view = {.id = fuzz_view_id(in, hints)};
    view.active = some_members(in, hints, arena, &view.active_count);
    return view;
}

static int32_t some_status(fuzz_in_t *in) {
    uint8_t first = fuzz_u8(in);
    return first < 240 ? 1 - first % 40 : (int32_t)(uint32_t)fuzz_u64(in);
}

mcpg_down_commit_t fuzz_commit(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_down_commit_t m = {.gid = fuzz_gid(in, hints), .view = some_view(in, hints, arena)};
    m.switch_seq = fuzz_number(in, hints);
    m.leave_count = list_count(in, MCPG_MAX_RANKS);
    mcpg_leave_t *leaves = list_room(arena, m.leave_count, sizeof *leaves);
    for (uint32_t i = 0; i < m.leave_count; i++) leaves[i] = (mcpg_leave_t){{i}, i};
    if (m.leave_count > 0)
        leaves[fuzz_u64(in) % m.leave_count] = (mcpg_leave_t){fuzz_slot(in, hints), fuzz_number(in, hints)};
    m.leaves = leaves;
    m.sync = fuzz_bool(in);
    if (m.sync) m.sync_failed = fuzz_set(in);
    if (m.sync) m.sync_first_failed_seq = fuzz_number(in, hints);
    return m;
}

mcpg_group_record_t fuzz_record(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_group_record_t r = {.term = fuzz_u64(in), .coordinator_id = fuzz_u64(in), .has_view = fuzz_bool(in)};
    if (r.has_view) r.view = some_view(in, hints, arena);
    return r;
}

/* ---- UP ---- */

static mcpg_up_attach_t some_attach(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_up_attach_t m = {.version = MCPG_PROTOCOL_VERSION, .rank = fuzz_rank(in, hints)};
    if (fuzz_u8(in) >= 240) m.version = (uint32_t)fuzz_u64(in);
    m.session.v = fuzz_u64(in);
    m.prev_inc = fuzz_inc(in, hints, m.rank.v);
    m.highest_term = fuzz_u64(in);
    m.host_id = fuzz_u8(in);
    m.pid = (int64_t)fuzz_u64(in);
    m.endpoint = some_bytes(in, MCPG_ENDPOINT_CAP, arena);
    m.report_count = list_count(in, MCPG_MAX_GROUPS);
    mcpg_group_report_t *reports = list_room(arena, m.report_count, sizeof *reports);
    for (uint32_t i = 0; i < m.report_count; i++)
        reports[i] = (mcpg_group_report_t){.gid = {i + 1}, .committed = {1, i}, .next_seq = i};
    if (m.report_count > 0)
        reports[fuzz_u64(in) % m.report_count] = (mcpg_group_report_t){.gid = fuzz_gid(in, hints),
                                                                       .committed = fuzz_view_id(in, hints),
                                                                       .acked = fuzz_view_id(in, hints),
                                                                       .next_seq = fuzz_number(in, hints)};
    m.reports = reports;
    return m;
}

static mcpg_up_register_t some_register(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_up_register_t m = {.call_id = fuzz_number(in, hints)};
    m.key = some_bytes(in, MCPG_KEY_CAP, arena);
    m.label = some_bytes(in, MCPG_KEY_CAP, arena);
    m.device_kind = some_bytes(in, MCPG_KEY_CAP, arena);
    m.order = some_order(in, hints, arena, &m.order_count);
    m.capacity = m.order_count + fuzz_below(in, 4);
    if (fuzz_u8(in) >= 240) m.capacity = (uint32_t)fuzz_u64(in);
    uint8_t flags = fuzz_u8(in);
    m.is_extension = flags & 1u;
    m.manual = flags & 2u;
    m.no_auto_sync = flags & 4u;
    return m;
}

static mcpg_up_propose_t some_propose(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_up_propose_t m = {.call_id = fuzz_number(in, hints), .gid = fuzz_gid(in, hints)};
    m.activate = fuzz_set(in);
    m.deactivate = fuzz_set(in);
    m.stamps = some_members(in, hints, arena, &m.stamp_count);
    m.expected_epoch = fuzz_u8(in) < 200 ? MCPG_ANY_EPOCH : fuzz_number(in, hints);
    m.wait_us = fuzz_u64(in);
    return m;
}

static mcpg_up_rebuild_t some_rebuild(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_up_register_t r = some_register(in, hints, arena);
    mcpg_up_rebuild_t m = {.gid = fuzz_gid(in, hints),
                           .key = r.key,
                           .label = r.label,
                           .device_kind = r.device_kind,
                           .order_count = r.order_count,
                           .order = r.order,
                           .capacity = r.capacity,
                           .manual = r.manual,
                           .no_auto_sync = r.no_auto_sync,
                           .awaiting = r.is_extension};
    uint8_t open = fuzz_u8(in);
    if (open & 1u) m.acked = fuzz_view_id(in, hints);
    if (open & 2u) m.doubt = some_members(in, hints, arena, &m.doubt_count);
    if (open & 4u) m.aborted = fuzz_view_id(in, hints);
    m.next_seq = fuzz_number(in, hints);
    m.has_commit = fuzz_bool(in);
    if (!m.has_commit) return m;
    m.commit = fuzz_commit(in, hints, arena);
    if (fuzz_u8(in) < 240) m.commit.gid = m.gid;
    return m;
}

mcpg_up_msg_t fuzz_up(fuzz_in_t *in, mcpg_up_kind_t kind, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_up_msg_t m;
    memset(&m, 0, sizeof m);
    m.kind = kind;
    switch (kind) {
    case MCPG_UP_ATTACH:
        m.u.attach = some_attach(in, hints, arena);
        break;
    case MCPG_UP_HEARTBEAT:
        m.u.heartbeat = (mcpg_up_heartbeat_t){fuzz_number(in, hints), fuzz_u64(in)};
        break;
    case MCPG_UP_LINK:
        m.u.link.peer = fuzz_rank(in, hints);
        m.u.link.peer_inc = fuzz_inc(in, hints, m.u.link.peer.v);
        m.u.link.state = (uint8_t)mostly_below(in, 2);
        m.u.link.check_id = fuzz_number(in, hints);
        break;
    case MCPG_UP_DEATH:
        m.u.death.rank = fuzz_rank(in, hints);
        m.u.death.inc = fuzz_inc(in, hints, m.u.death.rank.v);
        m.u.death.proof = (uint8_t)mostly_below(in, 3);
        break;
    case MCPG_UP_REGISTER:
        m.u.register_group = some_register(in, hints, arena);
        break;
    case MCPG_UP_JOIN:
        m.u.join = (mcpg_up_join_t){fuzz_number(in, hints), fuzz_gid(in, hints)};
        break;
    case MCPG_UP_PROPOSE:
        m.u.propose = some_propose(in, hints, arena);
        break;
    case MCPG_UP_ACK:
        m.u.ack = (mcpg_up_ack_t){fuzz_gid(in, hints), fuzz_view_id(in, hints), fuzz_number(in, hints), fuzz_bool(in)};
        break;
    case MCPG_UP_COMMIT_ACK:
        m.u.commit_ack = (mcpg_up_commit_ack_t){fuzz_gid(in, hints), fuzz_view_id(in, hints)};
        break;
    case MCPG_UP_OP_FAILED:
        m.u.op_failed = (mcpg_up_op_failed_t){
            .gid = fuzz_gid(in, hints), .report_id = fuzz_number(in, hints), .seq = fuzz_number(in, hints)};
        m.u.op_failed.failed = some_members(in, hints, arena, &m.u.op_failed.failed_count);
        break;
    case MCPG_UP_SYNC_ENTER:
        m.u.sync_enter =
            (mcpg_up_sync_enter_t){fuzz_number(in, hints), fuzz_gid(in, hints), fuzz_set(in), fuzz_number(in, hints)};
        break;
    case MCPG_UP_LEAVE_GROUP:
        m.u.leave_group = (mcpg_up_leave_group_t){fuzz_gid(in, hints), fuzz_number(in, hints)};
        break;
    case MCPG_UP_REBUILD:
        m.u.rebuild = some_rebuild(in, hints, arena);
        break;
    case MCPG_UP_REBUILD_END:
    case MCPG_UP_DETACH:
    case MCPG_UP__COUNT:
        break;
    }
    return m;
}

/* ---- DOWN ---- */

static mcpg_down_rank_states_t some_states(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_down_rank_states_t m = {.full = fuzz_bool(in), .check_id = fuzz_number(in, hints)};
    if (fuzz_u8(in) >= 192) m.first = mostly_below(in, 4);
    if (fuzz_u8(in) >= 192) m.end = mostly_below(in, 12);
    m.count = list_count(in, MCPG_MAX_RANKS);
    mcpg_rank_info_t *ranks = list_room(arena, m.count, sizeof *ranks);
    for (uint32_t i = 0; i < m.count; i++) {
        ranks[i] =
            (mcpg_rank_info_t){.rank = {i}, .inc = {1, i + 1u}, .state = 2, .endpoint = {(const uint8_t *)"e", 1}};
        if (i < hints->inc_count) ranks[i].inc = hints->incs[i];
        if (m.count > 5) continue;
        uint8_t flags = fuzz_u8(in);
        ranks[i].rank.v = i + fuzz_below(in, 3);
        ranks[i].inc = fuzz_inc(in, hints, ranks[i].rank.v);
        ranks[i].state = flags % 3u;
        ranks[i].suspect = flags & 64u;
        ranks[i].dead = flags & 128u;
    }
    if (m.count > 0) {
        mcpg_rank_info_t *odd = &ranks[fuzz_u64(in) % m.count];
        odd->rank = fuzz_rank(in, hints);
        odd->state = (uint8_t)mostly_below(in, 3);
        odd->host_id = fuzz_u64(in);
        odd->pid = (int64_t)fuzz_u64(in);
        odd->endpoint = some_bytes(in, MCPG_ENDPOINT_CAP, arena);
    }
    m.ranks = ranks;
    return m;
}

static mcpg_down_members_t some_table(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_down_members_t m = {.gid = fuzz_gid(in, hints)};
    m.count = list_count(in, MCPG_MAX_RANKS);
    mcpg_group_member_t *members = list_room(arena, m.count, sizeof *members);
    for (uint32_t i = 0; i < m.count; i++) members[i] = (mcpg_group_member_t){.slot = {i}, .rank = {i}, .inc = {1, i}};
    if (m.count > 0) {
        mcpg_group_member_t *odd = &members[fuzz_u64(in) % m.count];
        if (fuzz_u8(in) >= 240) odd->slot = fuzz_slot(in, hints);
        odd->rank = fuzz_rank(in, hints);
        odd->inc = fuzz_inc(in, hints, odd->rank.v);
        odd->awaiting = fuzz_bool(in);
    }
    m.members = members;
    return m;
}

static mcpg_down_registered_t some_registered(fuzz_in_t *in, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_down_registered_t m = {.call_id = fuzz_number(in, hints), .status = some_status(in)};
    if (fuzz_bool(in)) m.status = MCPG_OK;
    m.text = some_bytes(in, MCPG_TEXT_CAP, arena);
    m.gid = fuzz_gid(in, hints);
    m.slot = fuzz_slot(in, hints);
    m.capacity = mostly_below(in, 12);
    uint8_t flags = fuzz_u8(in);
    m.isolated = flags & 1u;
    m.manual = flags & 2u;
    m.no_auto_sync = flags & 4u;
    return m;
}

static mcpg_down_welcome_t some_welcome(fuzz_in_t *in, const fuzz_hints_t *hints) {
    mcpg_down_welcome_t m = {.term = 1 + (uint64_t)fuzz_below(in, 3), .coordinator_id = fuzz_below(in, 4)};
    if (fuzz_u8(in) >= 224) m.term = fuzz_u64(in);
    m.inc = fuzz_inc(in, hints, fuzz_below(in, 8));
    uint8_t flags = fuzz_u8(in);
    m.resumed = flags & 1u;
    m.rebuilding = flags & 2u;
    m.heartbeat_us = flags >= 224 ? fuzz_u64(in) : 100000;
    m.offline_us = flags >= 224 ? fuzz_u64(in) : 1000000;
    return m;
}

mcpg_down_msg_t fuzz_down(fuzz_in_t *in, mcpg_down_kind_t kind, const fuzz_hints_t *hints, mcpg_arena_t *arena) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof m);
    m.kind = kind;
    switch (kind) {
    case MCPG_DOWN_WELCOME:
        m.u.welcome = some_welcome(in, hints);
        break;
    case MCPG_DOWN_REFUSED:
        m.u.refused = (mcpg_down_refused_t){some_status(in), some_bytes(in, MCPG_TEXT_CAP, arena)};
        break;
    case MCPG_DOWN_HEARTBEAT_REPLY:
        m.u.heartbeat_reply = (mcpg_down_heartbeat_reply_t){fuzz_number(in, hints), fuzz_u64(in)};
        break;
    case MCPG_DOWN_RANK_STATES:
        m.u.rank_states = some_states(in, hints, arena);
        break;
    case MCPG_DOWN_REGISTERED:
        m.u.registered = some_registered(in, hints, arena);
        break;
    case MCPG_DOWN_MEMBERS:
        m.u.members = some_table(in, hints, arena);
        break;
    case MCPG_DOWN_PREPARE:
        m.u.prepare.gid = fuzz_gid(in, hints);
        m.u.prepare.view = some_view(in, hints, arena);
        break;
    case MCPG_DOWN_COMMIT:
        m.u.commit = fuzz_commit(in, hints, arena);
        break;
    case MCPG_DOWN_ABORT:
        m.u.abort = (mcpg_down_abort_t){fuzz_gid(in, hints), fuzz_view_id(in, hints)};
        break;
    case MCPG_DOWN_REPLY:
        m.u.reply = (mcpg_down_reply_t){.call_id = fuzz_number(in, hints), .status = some_status(in)};
        m.u.reply.dropped_any = fuzz_bool(in);
        if (m.u.reply.dropped_any) m.u.reply.dropped = fuzz_set(in);
        m.u.reply.epoch = fuzz_number(in, hints);
        m.u.reply.text = some_bytes(in, MCPG_TEXT_CAP, arena);
        break;
    case MCPG_DOWN_RECONCILED:
        m.u.reconciled = (mcpg_down_reconciled_t){fuzz_gid(in, hints), fuzz_number(in, hints), fuzz_set(in)};
        break;
    case MCPG_DOWN_SYNCING:
        m.u.syncing.gid = fuzz_gid(in, hints);
        break;
    case MCPG_DOWN__COUNT:
        break;
    }
    return m;
}
