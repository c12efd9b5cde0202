/* codec_parts.c: the parts of messages (rank sets, members, views) between protobuf and domain structs. Never trusts a
 * length, never allocates outside the arena it was given (packing a long list takes one heap block, freed at the end of
 * the call).
 */
#include "common/codec_parts.h"

#include <stdlib.h>
#include <string.h>

#define ENTRIES_CAP MCPG_MAX_GROUPS
_Static_assert(MCPG_MAX_RANKS % 64u == 0, "every bit of a rank set is a rank");
_Static_assert(MCPG_MAX_GROUPS >= MCPG_MAX_RANKS, "the longest list of any message is the group reports of ATTACH");
_Static_assert(sizeof(Mooncake__Pg__RankInfo) + 16 + sizeof(void *) <= MCPG_WIRE_ENTRY_BYTES, "entry size");
_Static_assert(sizeof(Mooncake__Pg__GroupReport) + 16 + sizeof(void *) <= MCPG_WIRE_ENTRY_BYTES, "entry size");

void *mcpg__arena_take(mcpg_arena_t *arena, size_t size) {
    if (arena->base == NULL || arena->used > arena->cap) return NULL;
    uintptr_t at = ((uintptr_t)arena->base + arena->used + 15u) & ~(uintptr_t)15u;
    size_t used = (size_t)(at - (uintptr_t)arena->base);
    if (used > arena->cap || size > arena->cap - used) return NULL;
    arena->used = used + size;
    return arena->base + used;
}

mcpg_status_t mcpg__wire_scratch_begin(mcpg_wire_scratch_t *scratch, uint32_t entries) {
    if (entries > ENTRIES_CAP) return MCPG_LIMIT;
    size_t need = (size_t)entries * MCPG_WIRE_ENTRY_BYTES + 2048u;
    scratch->heap = NULL;
    scratch->arena = (mcpg_arena_t){.base = scratch->small, .used = 0, .cap = sizeof scratch->small};
    if (need <= sizeof scratch->small) return MCPG_OK;
    scratch->heap = malloc(need);
    if (scratch->heap == NULL) return MCPG_NO_MEMORY;
    scratch->arena.base = scratch->heap;
    scratch->arena.cap = need;
    return MCPG_OK;
}

void mcpg__wire_scratch_end(mcpg_wire_scratch_t *scratch) {
    free(scratch->heap);
    scratch->heap = NULL;
}

static void *allocator_take(void *data, size_t size) {
    return mcpg__arena_take(data, size);
}
static void allocator_give(void *data, void *pointer) {
    (void)data;
    (void)pointer;
}

ProtobufCAllocator mcpg__wire_allocator(mcpg_arena_t *arena) {
    return (ProtobufCAllocator){.alloc = allocator_take, .free = allocator_give, .allocator_data = arena};
}

mcpg_status_t mcpg__wire_put_bytes(mcpg_bytes_t bytes, uint32_t cap, ProtobufCBinaryData *out) {
    if (bytes.len > cap) return MCPG_LIMIT;
    out->len = bytes.len;
    out->data = bytes.len == 0 ? NULL : (uint8_t *)(uintptr_t)bytes.ptr; /* protobuf-c only reads it */
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_put_set(mcpg_arena_t *arena, const mcpg_rankset_t *set, ProtobufCBinaryData *out) {
    uint8_t *bytes = mcpg__arena_take(arena, MCPG_RANKSET_WORDS * 8u);
    if (bytes == NULL) return MCPG_LIMIT;
    size_t len = 0;
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS * 8u; i++) {
        bytes[i] = (uint8_t)(set->w[i / 8u] >> (8u * (i % 8u)));
        if (bytes[i] != 0) len = i + 1;
    }
    out->len = len;
    out->data = len == 0 ? NULL : bytes;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_put_members(mcpg_arena_t *arena, const mcpg_member_t *members, uint32_t count,
                                     size_t *count_out, Mooncake__Pg__Member ***out) {
    if (count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    if (count == 0) return MCPG_OK;
    Mooncake__Pg__Member **pointers = mcpg__arena_take(arena, count * sizeof *pointers);
    Mooncake__Pg__Member *items = mcpg__arena_take(arena, count * sizeof *items);
    if (pointers == NULL || items == NULL) return MCPG_LIMIT;
    for (uint32_t i = 0; i < count; i++) {
        mooncake__pg__member__init(&items[i]);
        items[i].slot = members[i].slot.v;
        items[i].rank = members[i].rank.v;
        items[i].inc_term = members[i].inc.term;
        items[i].inc_counter = members[i].inc.counter;
        pointers[i] = &items[i];
    }
    *count_out = count;
    *out = pointers;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_put_view(mcpg_arena_t *arena, const mcpg_view_body_t *view, Mooncake__Pg__ViewBody **out) {
    Mooncake__Pg__ViewBody *body = mcpg__arena_take(arena, sizeof *body);
    if (body == NULL) return MCPG_LIMIT;
    mooncake__pg__view_body__init(body);
    body->term = view->id.term;
    body->epoch = view->id.epoch;
    MCPG_TRY(mcpg__wire_put_members(arena, view->active, view->active_count, &body->n_active, &body->active));
    *out = body;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_bytes(ProtobufCBinaryData in, uint32_t cap, mcpg_bytes_t *out) {
    MCPG_WIRE_CHECK(in.len <= cap);
    *out = (mcpg_bytes_t){.ptr = in.len == 0 ? NULL : in.data, .len = (uint32_t)in.len};
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_set(ProtobufCBinaryData in, mcpg_rankset_t *out) {
    MCPG_WIRE_CHECK(in.len <= MCPG_RANKSET_WORDS * 8u);
    MCPG_WIRE_CHECK(in.len == 0 || in.data[in.len - 1] != 0); /* one set has one form */
    mcpg_rankset_t set = {{0}};
    for (uint32_t i = 0; i < in.len; i++) set.w[i / 8u] |= (uint64_t)in.data[i] << (8u * (i % 8u));
    *out = set;
    return MCPG_OK;
}

/* UINT64_MAX is "any" or "no number" elsewhere: never a term, an epoch or a counter. */
static bool pair_sane(uint64_t major, uint64_t minor, bool none_allowed) {
    if (major == 0) return minor == 0 && none_allowed;
    return major != UINT64_MAX && minor != UINT64_MAX;
}

mcpg_status_t mcpg__wire_get_inc(uint64_t term, uint64_t counter, bool none_allowed, mcpg_incarnation_t *out) {
    MCPG_WIRE_CHECK(pair_sane(term, counter, none_allowed));
    *out = (mcpg_incarnation_t){.term = term, .counter = counter};
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_view_id(uint64_t term, uint64_t epoch, bool none_allowed, mcpg_view_id_t *out) {
    MCPG_WIRE_CHECK(pair_sane(term, epoch, none_allowed));
    *out = (mcpg_view_id_t){.term = term, .epoch = epoch};
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_status(int32_t in, int32_t *out) {
    MCPG_WIRE_CHECK(in >= MCPG_NOT_PERMITTED && in <= MCPG_IN_PROGRESS);
    *out = in;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_members(mcpg_arena_t *arena, Mooncake__Pg__Member *const *in, size_t count, bool ascending,
                                     const mcpg_member_t **out, uint32_t *count_out) {
    MCPG_WIRE_CHECK(count <= MCPG_MAX_RANKS);
    mcpg_member_t *members = NULL;
    if (count > 0) {
        members = mcpg__arena_take(arena, count * sizeof *members);
        MCPG_WIRE_CHECK(members != NULL);
    }
    mcpg_rankset_t slots = {{0}};
    mcpg_rankset_t ranks = {{0}};
    for (size_t i = 0; i < count; i++) {
        MCPG_WIRE_CHECK(in[i]->slot < MCPG_MAX_RANKS && in[i]->rank < MCPG_MAX_RANKS);
        MCPG_WIRE_CHECK(!mcpg__rankset_has(&slots, in[i]->slot));
        MCPG_WIRE_CHECK(!ascending || !mcpg__rankset_has(&ranks, in[i]->rank));
        MCPG_WIRE_CHECK(!ascending || i == 0 || in[i]->slot > in[i - 1]->slot);
        mcpg__rankset_add(&slots, in[i]->slot);
        mcpg__rankset_add(&ranks, in[i]->rank);
        members[i].slot.v = in[i]->slot;
        members[i].rank.v = in[i]->rank;
        MCPG_TRY(mcpg__wire_get_inc(in[i]->inc_term, in[i]->inc_counter, true, &members[i].inc));
    }
    *out = members;
    *count_out = (uint32_t)count;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_view(mcpg_arena_t *arena, const Mooncake__Pg__ViewBody *in, mcpg_view_body_t *out) {
    MCPG_WIRE_CHECK(in != NULL);
    mcpg_view_body_t view;
    MCPG_TRY(mcpg__wire_get_view_id(in->term, in->epoch, false, &view.id));
    MCPG_TRY(mcpg__wire_get_members(arena, in->active, in->n_active, true, &view.active, &view.active_count));
    *out = view;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_put_commit(mcpg_arena_t *arena, const mcpg_down_commit_t *m, Mooncake__Pg__Commit *w) {
    w->gid = m->gid.v;
    w->switch_seq = m->switch_seq;
    w->sync = m->sync;
    w->sync_first_failed_seq = m->sync_first_failed_seq;
    MCPG_TRY(mcpg__wire_put_view(arena, &m->view, &w->view));
    MCPG_TRY(mcpg__wire_put_set(arena, &m->sync_failed, &w->sync_failed));
    if (m->leave_count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    if (m->leave_count == 0) return MCPG_OK;
    Mooncake__Pg__Leave **pointers = mcpg__arena_take(arena, m->leave_count * sizeof *pointers);
    Mooncake__Pg__Leave *items = mcpg__arena_take(arena, m->leave_count * sizeof *items);
    if (pointers == NULL || items == NULL) return MCPG_LIMIT;
    for (uint32_t i = 0; i < m->leave_count; i++) {
        mooncake__pg__leave__init(&items[i]);
        items[i].slot = m->leaves[i].slot.v;
        items[i].leave_seq = m->leaves[i].leave_seq;
        pointers[i] = &items[i];
    }
    w->n_leaves = m->leave_count;
    w->leaves = pointers;
    return MCPG_OK;
}

mcpg_status_t mcpg__wire_get_commit(mcpg_arena_t *arena, const Mooncake__Pg__Commit *w, mcpg_down_commit_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0 && w->n_leaves <= MCPG_MAX_RANKS);
    m->gid.v = w->gid;
    MCPG_TRY(mcpg__wire_get_view(arena, w->view, &m->view));
    mcpg_leave_t *leaves = NULL;
    if (w->n_leaves > 0) {
        leaves = mcpg__arena_take(arena, w->n_leaves * sizeof *leaves);
        MCPG_WIRE_CHECK(leaves != NULL);
    }
    mcpg_rankset_t seen = {{0}};
    for (size_t i = 0; i < w->n_leaves; i++) {
        uint32_t slot = w->leaves[i]->slot;
        MCPG_WIRE_CHECK(slot < MCPG_MAX_RANKS && !mcpg__rankset_has(&seen, slot));
        mcpg__rankset_add(&seen, slot);
        leaves[i].slot.v = slot;
        leaves[i].leave_seq = w->leaves[i]->leave_seq;
    }
    m->switch_seq = w->switch_seq;
    m->leave_count = (uint32_t)w->n_leaves;
    m->leaves = leaves;
    m->sync = w->sync != 0;
    m->sync_first_failed_seq = w->sync_first_failed_seq;
    return mcpg__wire_get_set(w->sync_failed, &m->sync_failed);
}

/* The two lists are packed side by side: an entry has room for one of each. */
uint32_t mcpg__wire_commit_entries(const mcpg_down_commit_t *m) {
    return m->view.active_count > m->leave_count ? m->view.active_count : m->leave_count;
}

mcpg_status_t mcpg__wire_get_order(const uint32_t *order, size_t count, uint32_t capacity) {
    MCPG_WIRE_CHECK(count >= 1 && count <= MCPG_MAX_RANKS);
    MCPG_WIRE_CHECK(capacity >= count && capacity <= MCPG_MAX_RANKS);
    mcpg_rankset_t seen = {{0}};
    for (size_t i = 0; i < count; i++) {
        MCPG_WIRE_CHECK(order[i] < MCPG_MAX_RANKS && !mcpg__rankset_has(&seen, order[i]));
        mcpg__rankset_add(&seen, order[i]);
    }
    return MCPG_OK;
}

/* ---- the record of a group in the key-value store ---- */

mcpg_status_t mcpg__record_pack(const mcpg_group_record_t *record, uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_wire_scratch_t scratch;
    MCPG_TRY(mcpg__wire_scratch_begin(&scratch, record->has_view ? record->view.active_count : 0));
    Mooncake__Pg__GroupRecord wire = MOONCAKE__PG__GROUP_RECORD__INIT;
    wire.term = record->term;
    wire.coordinator_id = record->coordinator_id;
    mcpg_status_t status = MCPG_OK;
    if (record->has_view) status = mcpg__wire_put_view(&scratch.arena, &record->view, &wire.view);
    if (status == MCPG_OK) {
        size_t len = mooncake__pg__group_record__get_packed_size(&wire);
        if (len > cap || len > MCPG_MSG_CAP)
            status = MCPG_LIMIT;
        else
            *len_out = mooncake__pg__group_record__pack(&wire, buf);
    }
    mcpg__wire_scratch_end(&scratch);
    return status;
}

mcpg_status_t mcpg__record_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_group_record_t *out) {
    MCPG_WIRE_CHECK(len > 0 && len <= MCPG_MSG_CAP);
    ProtobufCAllocator allocator = mcpg__wire_allocator(arena);
    Mooncake__Pg__GroupRecord *wire = mooncake__pg__group_record__unpack(&allocator, len, buf);
    MCPG_WIRE_CHECK(wire != NULL && wire->term != 0 && wire->term != UINT64_MAX);
    mcpg_group_record_t record;
    memset(&record, 0, sizeof record);
    record.term = wire->term;
    record.coordinator_id = wire->coordinator_id;
    record.has_view = wire->view != NULL;
    if (record.has_view) MCPG_TRY(mcpg__wire_get_view(arena, wire->view, &record.view));
    *out = record;
    return MCPG_OK;
}
