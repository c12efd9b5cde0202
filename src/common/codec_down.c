/* codec_down.c: messages from coordinator to agent: protobuf <-> domain structs, with every limit checked. Never keeps
 * a byte of the input and never lets a message through that base.h's bounds do not allow.
 */
#include <string.h>

#include "common/codec_parts.h"

/* ---- out ---- */
static mcpg_status_t put_welcome(mcpg_arena_t *arena, const mcpg_down_welcome_t *m, Mooncake__Pg__Welcome *w) {
    (void)arena;
    w->term = m->term;
    w->coordinator_id = m->coordinator_id;
    w->inc_term = m->inc.term;
    w->inc_counter = m->inc.counter;
    w->resumed = m->resumed;
    w->rebuilding = m->rebuilding;
    w->heartbeat_us = m->heartbeat_us;
    w->offline_us = m->offline_us;
    return MCPG_OK;
}

static mcpg_status_t put_refused(mcpg_arena_t *arena, const mcpg_down_refused_t *m, Mooncake__Pg__Refused *w) {
    (void)arena;
    w->status = m->status;
    return mcpg__wire_put_bytes(m->text, MCPG_TEXT_CAP - 1, &w->text);
}

static mcpg_status_t put_heartbeat_reply(mcpg_arena_t *arena, const mcpg_down_heartbeat_reply_t *m,
                                         Mooncake__Pg__HeartbeatReply *w) {
    (void)arena;
    w->digest = m->digest;
    w->sent_us = m->sent_us;
    return MCPG_OK;
}

static mcpg_status_t put_rank_states(mcpg_arena_t *arena, const mcpg_down_rank_states_t *m,
                                     Mooncake__Pg__RankStates *w) {
    w->full = m->full;
    w->check_id = m->check_id;
    w->first = m->first;
    w->end = m->end;
    if (m->count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    if (m->count == 0) return MCPG_OK;
    Mooncake__Pg__RankInfo **pointers = mcpg__arena_take(arena, m->count * sizeof *pointers);
    Mooncake__Pg__RankInfo *items = mcpg__arena_take(arena, m->count * sizeof *items);
    if (pointers == NULL || items == NULL) return MCPG_LIMIT;
    for (uint32_t i = 0; i < m->count; i++) {
        const mcpg_rank_info_t *r = &m->ranks[i];
        mooncake__pg__rank_info__init(&items[i]);
        items[i].rank = r->rank.v;
        items[i].inc_term = r->inc.term;
        items[i].inc_counter = r->inc.counter;
        items[i].state = r->state;
        items[i].suspect = r->suspect;
        items[i].dead = r->dead;
        items[i].host_id = r->host_id;
        items[i].pid = r->pid;
        MCPG_TRY(mcpg__wire_put_bytes(r->endpoint, MCPG_ENDPOINT_CAP, &items[i].endpoint));
        pointers[i] = &items[i];
    }
    w->n_ranks = m->count;
    w->ranks = pointers;
    return MCPG_OK;
}

static mcpg_status_t put_registered(mcpg_arena_t *arena, const mcpg_down_registered_t *m, Mooncake__Pg__Registered *w) {
    (void)arena;
    w->call_id = m->call_id;
    w->status = m->status;
    w->gid = m->gid.v;
    w->slot = m->slot.v;
    w->capacity = m->capacity;
    w->isolated = m->isolated;
    w->manual = m->manual;
    w->no_auto_sync = m->no_auto_sync;
    return mcpg__wire_put_bytes(m->text, MCPG_TEXT_CAP - 1, &w->text);
}

static mcpg_status_t put_members(mcpg_arena_t *arena, const mcpg_down_members_t *m, Mooncake__Pg__Members *w) {
    w->gid = m->gid.v;
    if (m->count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    if (m->count == 0) return MCPG_OK;
    Mooncake__Pg__GroupMember **pointers = mcpg__arena_take(arena, m->count * sizeof *pointers);
    Mooncake__Pg__GroupMember *items = mcpg__arena_take(arena, m->count * sizeof *items);
    if (pointers == NULL || items == NULL) return MCPG_LIMIT;
    for (uint32_t i = 0; i < m->count; i++) {
        mooncake__pg__group_member__init(&items[i]);
        items[i].slot = m->members[i].slot.v;
        items[i].rank = m->members[i].rank.v;
        items[i].inc_term = m->members[i].inc.term;
        items[i].inc_counter = m->members[i].inc.counter;
        items[i].awaiting = m->members[i].awaiting;
        pointers[i] = &items[i];
    }
    w->n_members = m->count;
    w->members = pointers;
    return MCPG_OK;
}

static mcpg_status_t put_prepare(mcpg_arena_t *arena, const mcpg_down_prepare_t *m, Mooncake__Pg__Prepare *w) {
    w->gid = m->gid.v;
    return mcpg__wire_put_view(arena, &m->view, &w->view);
}

static mcpg_status_t put_commit(mcpg_arena_t *arena, const mcpg_down_commit_t *m, Mooncake__Pg__Commit *w) {
    return mcpg__wire_put_commit(arena, m, w);
}

static mcpg_status_t put_abort(mcpg_arena_t *arena, const mcpg_down_abort_t *m, Mooncake__Pg__Abort *w) {
    (void)arena;
    w->gid = m->gid.v;
    w->term = m->view.term;
    w->epoch = m->view.epoch;
    return MCPG_OK;
}

static mcpg_status_t put_reply(mcpg_arena_t *arena, const mcpg_down_reply_t *m, Mooncake__Pg__Reply *w) {
    w->call_id = m->call_id;
    w->status = m->status;
    w->dropped_any = m->dropped_any;
    w->epoch = m->epoch;
    MCPG_TRY(mcpg__wire_put_set(arena, &m->dropped, &w->dropped));
    return mcpg__wire_put_bytes(m->text, MCPG_TEXT_CAP - 1, &w->text);
}

static mcpg_status_t put_reconciled(mcpg_arena_t *arena, const mcpg_down_reconciled_t *m, Mooncake__Pg__Reconciled *w) {
    w->gid = m->gid.v;
    w->report_id = m->report_id;
    return mcpg__wire_put_set(arena, &m->cleared, &w->cleared);
}

static mcpg_status_t put_syncing(mcpg_arena_t *arena, const mcpg_down_syncing_t *m, Mooncake__Pg__Syncing *w) {
    (void)arena;
    w->gid = m->gid.v;
    return MCPG_OK;
}

/* ---- in ---- */
static mcpg_status_t get_welcome(mcpg_arena_t *arena, const Mooncake__Pg__Welcome *w, mcpg_down_welcome_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->term != 0 && w->term != UINT64_MAX);
    MCPG_WIRE_CHECK(w->heartbeat_us != 0 && w->offline_us != 0); /* zero would be a loop without a pause */
    m->term = w->term;
    m->coordinator_id = w->coordinator_id;
    m->resumed = w->resumed != 0;
    m->rebuilding = w->rebuilding != 0;
    m->heartbeat_us = w->heartbeat_us;
    m->offline_us = w->offline_us;
    return mcpg__wire_get_inc(w->inc_term, w->inc_counter, false, &m->inc);
}

static mcpg_status_t get_refused(mcpg_arena_t *arena, const Mooncake__Pg__Refused *w, mcpg_down_refused_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->status < 0);
    MCPG_TRY(mcpg__wire_get_status(w->status, &m->status));
    return mcpg__wire_get_bytes(w->text, MCPG_TEXT_CAP - 1, &m->text);
}

static mcpg_status_t get_heartbeat_reply(mcpg_arena_t *arena, const Mooncake__Pg__HeartbeatReply *w,
                                         mcpg_down_heartbeat_reply_t *m) {
    (void)arena;
    m->digest = w->digest;
    m->sent_us = w->sent_us;
    return MCPG_OK;
}

static mcpg_status_t get_rank_info(const Mooncake__Pg__RankInfo *w, mcpg_rank_info_t *m) {
    MCPG_WIRE_CHECK(w->state <= MCPG_RANK_HEALTHY);
    m->rank.v = w->rank;
    m->state = (uint8_t)w->state;
    m->suspect = w->suspect != 0;
    m->dead = w->dead != 0;
    m->host_id = w->host_id;
    m->pid = w->pid;
    /* Only a rank that is OFFLINE may have no process, and then there is no link to check either. */
    bool none_allowed = w->state == MCPG_RANK_OFFLINE && w->suspect == 0;
    MCPG_TRY(mcpg__wire_get_inc(w->inc_term, w->inc_counter, none_allowed, &m->inc));
    return mcpg__wire_get_bytes(w->endpoint, MCPG_ENDPOINT_CAP, &m->endpoint);
}

static mcpg_status_t get_rank_states(mcpg_arena_t *arena, const Mooncake__Pg__RankStates *w,
                                     mcpg_down_rank_states_t *m) {
    MCPG_WIRE_CHECK(w->n_ranks <= MCPG_MAX_RANKS && w->end <= MCPG_MAX_RANKS);
    MCPG_WIRE_CHECK(w->end == 0 ? w->first == 0 : w->first < w->end);
    mcpg_rank_info_t *ranks = NULL;
    if (w->n_ranks > 0) {
        ranks = mcpg__arena_take(arena, w->n_ranks * sizeof *ranks);
        MCPG_WIRE_CHECK(ranks != NULL);
    }
    mcpg_rankset_t seen = {{0}};
    for (size_t i = 0; i < w->n_ranks; i++) {
        const Mooncake__Pg__RankInfo *r = w->ranks[i];
        MCPG_WIRE_CHECK(r->rank < MCPG_MAX_RANKS && !mcpg__rankset_has(&seen, r->rank));
        MCPG_WIRE_CHECK(w->end == 0 || (r->rank >= w->first && r->rank < w->end));
        mcpg__rankset_add(&seen, r->rank);
        MCPG_TRY(get_rank_info(r, &ranks[i]));
    }
    m->full = w->full != 0;
    m->check_id = w->check_id;
    m->first = w->first;
    m->end = w->end;
    m->count = (uint32_t)w->n_ranks;
    m->ranks = ranks;
    return MCPG_OK;
}

static mcpg_status_t get_registered(mcpg_arena_t *arena, const Mooncake__Pg__Registered *w, mcpg_down_registered_t *m) {
    (void)arena;
    MCPG_TRY(mcpg__wire_get_status(w->status, &m->status));
    MCPG_WIRE_CHECK(w->capacity <= MCPG_MAX_RANKS && w->slot < MCPG_MAX_RANKS);
    MCPG_WIRE_CHECK(w->status != MCPG_OK || (w->gid != 0 && w->slot < w->capacity));
    m->call_id = w->call_id;
    m->gid.v = w->gid;
    m->slot.v = w->slot;
    m->capacity = w->capacity;
    m->isolated = w->isolated != 0;
    m->manual = w->manual != 0;
    m->no_auto_sync = w->no_auto_sync != 0;
    return mcpg__wire_get_bytes(w->text, MCPG_TEXT_CAP - 1, &m->text);
}

static mcpg_status_t get_members(mcpg_arena_t *arena, const Mooncake__Pg__Members *w, mcpg_down_members_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0 && w->n_members <= MCPG_MAX_RANKS);
    mcpg_group_member_t *members = NULL;
    if (w->n_members > 0) {
        members = mcpg__arena_take(arena, w->n_members * sizeof *members);
        MCPG_WIRE_CHECK(members != NULL);
    }
    for (size_t i = 0; i < w->n_members; i++) {
        const Mooncake__Pg__GroupMember *g = w->members[i];
        MCPG_WIRE_CHECK(g->slot == i && g->rank < MCPG_MAX_RANKS);
        members[i].slot.v = g->slot;
        members[i].rank.v = g->rank;
        members[i].awaiting = g->awaiting != 0;
        MCPG_TRY(mcpg__wire_get_inc(g->inc_term, g->inc_counter, true, &members[i].inc));
    }
    m->gid.v = w->gid;
    m->count = (uint32_t)w->n_members;
    m->members = members;
    return MCPG_OK;
}

static mcpg_status_t get_prepare(mcpg_arena_t *arena, const Mooncake__Pg__Prepare *w, mcpg_down_prepare_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    return mcpg__wire_get_view(arena, w->view, &m->view);
}

static mcpg_status_t get_commit(mcpg_arena_t *arena, const Mooncake__Pg__Commit *w, mcpg_down_commit_t *m) {
    return mcpg__wire_get_commit(arena, w, m);
}

static mcpg_status_t get_abort(mcpg_arena_t *arena, const Mooncake__Pg__Abort *w, mcpg_down_abort_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    return mcpg__wire_get_view_id(w->term, w->epoch, false, &m->view);
}

static mcpg_status_t get_reply(mcpg_arena_t *arena, const Mooncake__Pg__Reply *w, mcpg_down_reply_t *m) {
    (void)arena;
    m->call_id = w->call_id;
    m->dropped_any = w->dropped_any != 0;
    m->epoch = w->epoch;
    MCPG_TRY(mcpg__wire_get_status(w->status, &m->status));
    MCPG_TRY(mcpg__wire_get_set(w->dropped, &m->dropped));
    return mcpg__wire_get_bytes(w->text, MCPG_TEXT_CAP - 1, &m->text);
}

static mcpg_status_t get_reconciled(mcpg_arena_t *arena, const Mooncake__Pg__Reconciled *w, mcpg_down_reconciled_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    m->report_id = w->report_id;
    return mcpg__wire_get_set(w->cleared, &m->cleared);
}

static mcpg_status_t get_syncing(mcpg_arena_t *arena, const Mooncake__Pg__Syncing *w, mcpg_down_syncing_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    return MCPG_OK;
}

/* ---- envelope ---- */
/* Entries of the longest list. */
static uint32_t list_entries(const mcpg_down_msg_t *msg) {
    switch (msg->kind) {
    case MCPG_DOWN_RANK_STATES:
        return msg->u.rank_states.count;
    case MCPG_DOWN_MEMBERS:
        return msg->u.members.count;
    case MCPG_DOWN_PREPARE:
        return msg->u.prepare.view.active_count;
    case MCPG_DOWN_COMMIT:
        return mcpg__wire_commit_entries(&msg->u.commit);
    case MCPG_DOWN_WELCOME:
    case MCPG_DOWN_REFUSED:
    case MCPG_DOWN_HEARTBEAT_REPLY:
    case MCPG_DOWN_REGISTERED:
    case MCPG_DOWN_ABORT:
    case MCPG_DOWN_REPLY:
    case MCPG_DOWN_RECONCILED:
    case MCPG_DOWN_SYNCING:
    case MCPG_DOWN__COUNT:
        break;
    }
    return 0;
}
_Static_assert(sizeof(Mooncake__Pg__Member) + sizeof(Mooncake__Pg__Leave) + 2 * sizeof(void *) + 32 <=
                   MCPG_WIRE_ENTRY_BYTES,
               "one entry has room for a member and a leave");

static mcpg_status_t put_body(mcpg_arena_t *arena, const mcpg_down_msg_t *msg, Mooncake__Pg__Down *wire) {
    switch (msg->kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_DOWN_##NAME:                                                                                             \
        wire->field = mcpg__arena_take(arena, sizeof *wire->field);                                                    \
        if (wire->field == NULL) return MCPG_LIMIT;                                                                    \
        mooncake__pg__##field##__init(wire->field);                                                                    \
        return put_##field(arena, &msg->u.field, wire->field);
        MCPG_DOWN_MSGS(X)
#undef X
    case MCPG_DOWN__COUNT:
        break;
    }
    return MCPG_INVALID_ARGUMENT;
}

mcpg_status_t mcpg__down_pack(const mcpg_down_msg_t *msg, uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_wire_scratch_t scratch;
    MCPG_TRY(mcpg__wire_scratch_begin(&scratch, list_entries(msg)));
    Mooncake__Pg__Down wire = MOONCAKE__PG__DOWN__INIT;
    wire.version = MCPG_PROTOCOL_VERSION;
    wire.msg_case = (Mooncake__Pg__Down__MsgCase)((int)msg->kind + MCPG_WIRE_CASE_OFFSET);
    mcpg_status_t status = put_body(&scratch.arena, msg, &wire);
    if (status == MCPG_OK) {
        size_t len = mooncake__pg__down__get_packed_size(&wire);
        if (len > cap || len > MCPG_MSG_CAP)
            status = MCPG_LIMIT;
        else
            *len_out = mooncake__pg__down__pack(&wire, buf);
    }
    mcpg__wire_scratch_end(&scratch);
    return status;
}

static mcpg_status_t get_body(mcpg_arena_t *arena, const Mooncake__Pg__Down *wire, mcpg_down_msg_t *msg) {
    switch (msg->kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_DOWN_##NAME:                                                                                             \
        MCPG_WIRE_CHECK(wire->field != NULL);                                                                          \
        return get_##field(arena, wire->field, &msg->u.field);
        MCPG_DOWN_MSGS(X)
#undef X
    case MCPG_DOWN__COUNT:
        break;
    }
    return MCPG_CORRUPT;
}

mcpg_status_t mcpg__down_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_down_msg_t *out) {
    MCPG_WIRE_CHECK(len > 0 && len <= MCPG_MSG_CAP);
    ProtobufCAllocator allocator = mcpg__wire_allocator(arena);
    Mooncake__Pg__Down *wire = mooncake__pg__down__unpack(&allocator, len, buf);
    MCPG_WIRE_CHECK(wire != NULL);
    int kind = (int)wire->msg_case - MCPG_WIRE_CASE_OFFSET;
    MCPG_WIRE_CHECK(kind >= 0 && kind < (int)MCPG_DOWN__COUNT);
    MCPG_WIRE_CHECK(wire->version == MCPG_PROTOCOL_VERSION || kind == (int)MCPG_DOWN_REFUSED);
    mcpg_down_msg_t msg;
    memset(&msg, 0, sizeof msg);
    msg.kind = (mcpg_down_kind_t)kind;
    MCPG_TRY(get_body(arena, wire, &msg));
    *out = msg;
    return MCPG_OK;
}

const char *mcpg__down_name(mcpg_down_kind_t kind) {
    switch (kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_DOWN_##NAME:                                                                                             \
        return #NAME;
        MCPG_DOWN_MSGS(X)
#undef X
    case MCPG_DOWN__COUNT:
        break;
    }
    return "UNKNOWN";
}

_Static_assert((int)MOONCAKE__PG__DOWN__MSG_WELCOME == (int)MCPG_DOWN_WELCOME + MCPG_WIRE_CASE_OFFSET,
               "pg.proto numbers");
_Static_assert((int)MOONCAKE__PG__DOWN__MSG_COMMIT == (int)MCPG_DOWN_COMMIT + MCPG_WIRE_CASE_OFFSET,
               "pg.proto numbers");
_Static_assert((int)MOONCAKE__PG__DOWN__MSG_SYNCING == (int)MCPG_DOWN_SYNCING + MCPG_WIRE_CASE_OFFSET,
               "pg.proto numbers");
