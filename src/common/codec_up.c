/* codec_up.c: messages from agent to coordinator: protobuf <-> domain structs, with every limit checked. Never keeps a
 * byte of the input and never lets a message through that base.h's bounds do not allow.
 */
#include <string.h>

#include "common/codec_parts.h"

/* ---- out ---- */
static mcpg_status_t put_attach(mcpg_arena_t *arena, const mcpg_up_attach_t *m, Mooncake__Pg__Attach *w) {
    w->rank = m->rank.v;
    w->session = m->session.v;
    w->prev_inc_term = m->prev_inc.term;
    w->prev_inc_counter = m->prev_inc.counter;
    w->highest_term = m->highest_term;
    w->host_id = m->host_id;
    w->pid = m->pid;
    MCPG_TRY(mcpg__wire_put_bytes(m->endpoint, MCPG_ENDPOINT_CAP, &w->endpoint));
    if (m->report_count > MCPG_MAX_GROUPS) return MCPG_LIMIT;
    if (m->report_count == 0) return MCPG_OK;
    Mooncake__Pg__GroupReport **pointers = mcpg__arena_take(arena, m->report_count * sizeof *pointers);
    Mooncake__Pg__GroupReport *items = mcpg__arena_take(arena, m->report_count * sizeof *items);
    if (pointers == NULL || items == NULL) return MCPG_LIMIT;
    for (uint32_t i = 0; i < m->report_count; i++) {
        const mcpg_group_report_t *r = &m->reports[i];
        mooncake__pg__group_report__init(&items[i]);
        items[i].gid = r->gid.v;
        items[i].committed_term = r->committed.term;
        items[i].committed_epoch = r->committed.epoch;
        items[i].acked_term = r->acked.term;
        items[i].acked_epoch = r->acked.epoch;
        items[i].next_seq = r->next_seq;
        pointers[i] = &items[i];
    }
    w->n_reports = m->report_count;
    w->reports = pointers;
    return MCPG_OK;
}

static mcpg_status_t put_heartbeat(mcpg_arena_t *arena, const mcpg_up_heartbeat_t *m, Mooncake__Pg__Heartbeat *w) {
    (void)arena;
    w->digest = m->digest;
    w->sent_us = m->sent_us;
    return MCPG_OK;
}

static mcpg_status_t put_link(mcpg_arena_t *arena, const mcpg_up_link_t *m, Mooncake__Pg__Link *w) {
    (void)arena;
    w->peer = m->peer.v;
    w->inc_term = m->peer_inc.term;
    w->inc_counter = m->peer_inc.counter;
    w->state = m->state;
    w->check_id = m->check_id;
    return MCPG_OK;
}

static mcpg_status_t put_death(mcpg_arena_t *arena, const mcpg_up_death_t *m, Mooncake__Pg__Death *w) {
    (void)arena;
    w->rank = m->rank.v;
    w->inc_term = m->inc.term;
    w->inc_counter = m->inc.counter;
    w->proof = m->proof;
    return MCPG_OK;
}

static mcpg_status_t put_register_group(mcpg_arena_t *arena, const mcpg_up_register_t *m,
                                        Mooncake__Pg__RegisterGroup *w) {
    (void)arena;
    if (m->order_count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    w->call_id = m->call_id;
    MCPG_TRY(mcpg__wire_put_bytes(m->key, MCPG_KEY_CAP, &w->key));
    MCPG_TRY(mcpg__wire_put_bytes(m->label, MCPG_KEY_CAP, &w->label));
    MCPG_TRY(mcpg__wire_put_bytes(m->device_kind, MCPG_KEY_CAP, &w->device_kind));
    w->n_order = m->order_count;
    w->order = (uint32_t *)(uintptr_t)m->order; /* protobuf-c only reads it */
    w->capacity = m->capacity;
    w->is_extension = m->is_extension;
    w->manual = m->manual;
    w->no_auto_sync = m->no_auto_sync;
    return MCPG_OK;
}

static mcpg_status_t put_join(mcpg_arena_t *arena, const mcpg_up_join_t *m, Mooncake__Pg__Join *w) {
    (void)arena;
    w->call_id = m->call_id;
    w->gid = m->gid.v;
    return MCPG_OK;
}

static mcpg_status_t put_propose(mcpg_arena_t *arena, const mcpg_up_propose_t *m, Mooncake__Pg__Propose *w) {
    w->call_id = m->call_id;
    w->gid = m->gid.v;
    MCPG_TRY(mcpg__wire_put_set(arena, &m->activate, &w->activate));
    MCPG_TRY(mcpg__wire_put_set(arena, &m->deactivate, &w->deactivate));
    MCPG_TRY(mcpg__wire_put_members(arena, m->stamps, m->stamp_count, &w->n_stamps, &w->stamps));
    w->expected_epoch = m->expected_epoch;
    w->wait_us = m->wait_us;
    return MCPG_OK;
}

static mcpg_status_t put_ack(mcpg_arena_t *arena, const mcpg_up_ack_t *m, Mooncake__Pg__Ack *w) {
    (void)arena;
    w->gid = m->gid.v;
    w->term = m->view.term;
    w->epoch = m->view.epoch;
    w->next_seq = m->next_seq;
    w->steps = m->steps;
    return MCPG_OK;
}

static mcpg_status_t put_commit_ack(mcpg_arena_t *arena, const mcpg_up_commit_ack_t *m, Mooncake__Pg__CommitAck *w) {
    (void)arena;
    w->gid = m->gid.v;
    w->term = m->view.term;
    w->epoch = m->view.epoch;
    return MCPG_OK;
}

static mcpg_status_t put_op_failed(mcpg_arena_t *arena, const mcpg_up_op_failed_t *m, Mooncake__Pg__OpFailed *w) {
    w->gid = m->gid.v;
    w->report_id = m->report_id;
    w->seq = m->seq;
    return mcpg__wire_put_members(arena, m->failed, m->failed_count, &w->n_failed, &w->failed);
}

static mcpg_status_t put_sync_enter(mcpg_arena_t *arena, const mcpg_up_sync_enter_t *m, Mooncake__Pg__SyncEnter *w) {
    w->call_id = m->call_id;
    w->gid = m->gid.v;
    w->first_failed_seq = m->first_failed_seq;
    return mcpg__wire_put_set(arena, &m->failed, &w->failed);
}

static mcpg_status_t put_leave_group(mcpg_arena_t *arena, const mcpg_up_leave_group_t *m, Mooncake__Pg__LeaveGroup *w) {
    (void)arena;
    w->gid = m->gid.v;
    w->next_seq = m->next_seq;
    return MCPG_OK;
}

static mcpg_status_t put_detach(mcpg_arena_t *arena, const mcpg_up_detach_t *m, Mooncake__Pg__Detach *w) {
    (void)arena;
    (void)m;
    (void)w;
    return MCPG_OK;
}

static mcpg_status_t put_rebuild(mcpg_arena_t *arena, const mcpg_up_rebuild_t *m, Mooncake__Pg__Rebuild *w) {
    if (m->order_count > MCPG_MAX_RANKS) return MCPG_LIMIT;
    w->gid = m->gid.v;
    MCPG_TRY(mcpg__wire_put_bytes(m->key, MCPG_KEY_CAP, &w->key));
    MCPG_TRY(mcpg__wire_put_bytes(m->label, MCPG_KEY_CAP, &w->label));
    MCPG_TRY(mcpg__wire_put_bytes(m->device_kind, MCPG_KEY_CAP, &w->device_kind));
    w->n_order = m->order_count;
    w->order = (uint32_t *)(uintptr_t)m->order; /* protobuf-c only reads it */
    w->capacity = m->capacity;
    w->manual = m->manual;
    w->no_auto_sync = m->no_auto_sync;
    w->awaiting = m->awaiting;
    w->acked_term = m->acked.term;
    w->acked_epoch = m->acked.epoch;
    w->aborted_term = m->aborted.term;
    w->aborted_epoch = m->aborted.epoch;
    w->next_seq = m->next_seq;
    MCPG_TRY(mcpg__wire_put_members(arena, m->doubt, m->doubt_count, &w->n_doubt, &w->doubt));
    if (!m->has_commit) return MCPG_OK;
    w->commit = mcpg__arena_take(arena, sizeof *w->commit);
    if (w->commit == NULL) return MCPG_LIMIT;
    mooncake__pg__commit__init(w->commit);
    return mcpg__wire_put_commit(arena, &m->commit, w->commit);
}

static mcpg_status_t put_rebuild_end(mcpg_arena_t *arena, const mcpg_up_rebuild_end_t *m, Mooncake__Pg__RebuildEnd *w) {
    (void)arena;
    (void)m;
    (void)w;
    return MCPG_OK;
}

/* ---- in ---- */
static mcpg_status_t get_reports(mcpg_arena_t *arena, const Mooncake__Pg__Attach *w, mcpg_up_attach_t *m) {
    MCPG_WIRE_CHECK(w->n_reports <= MCPG_MAX_GROUPS);
    mcpg_group_report_t *reports = NULL;
    if (w->n_reports > 0) {
        reports = mcpg__arena_take(arena, w->n_reports * sizeof *reports);
        MCPG_WIRE_CHECK(reports != NULL);
    }
    for (size_t i = 0; i < w->n_reports; i++) {
        const Mooncake__Pg__GroupReport *r = w->reports[i];
        MCPG_WIRE_CHECK(r->gid != 0);
        reports[i].gid.v = r->gid;
        MCPG_TRY(mcpg__wire_get_view_id(r->committed_term, r->committed_epoch, true, &reports[i].committed));
        MCPG_TRY(mcpg__wire_get_view_id(r->acked_term, r->acked_epoch, true, &reports[i].acked));
        reports[i].next_seq = r->next_seq;
    }
    m->reports = reports;
    m->report_count = (uint32_t)w->n_reports;
    return MCPG_OK;
}

static mcpg_status_t get_attach(mcpg_arena_t *arena, const Mooncake__Pg__Attach *w, mcpg_up_attach_t *m) {
    MCPG_WIRE_CHECK(w->rank < MCPG_MAX_RANKS && w->highest_term != UINT64_MAX);
    MCPG_WIRE_CHECK(w->session != 0); /* no session: such a process could not be told from one that is only named */
    m->rank.v = w->rank;
    m->session.v = w->session;
    MCPG_TRY(mcpg__wire_get_inc(w->prev_inc_term, w->prev_inc_counter, true, &m->prev_inc));
    m->highest_term = w->highest_term;
    m->host_id = w->host_id;
    m->pid = w->pid;
    MCPG_TRY(mcpg__wire_get_bytes(w->endpoint, MCPG_ENDPOINT_CAP, &m->endpoint));
    return get_reports(arena, w, m);
}

static mcpg_status_t get_heartbeat(mcpg_arena_t *arena, const Mooncake__Pg__Heartbeat *w, mcpg_up_heartbeat_t *m) {
    (void)arena;
    m->digest = w->digest;
    m->sent_us = w->sent_us;
    return MCPG_OK;
}

static mcpg_status_t get_link(mcpg_arena_t *arena, const Mooncake__Pg__Link *w, mcpg_up_link_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->peer < MCPG_MAX_RANKS && w->state <= MCPG_LINK_LOST);
    m->peer.v = w->peer;
    m->state = (uint8_t)w->state;
    m->check_id = w->check_id;
    return mcpg__wire_get_inc(w->inc_term, w->inc_counter, false, &m->peer_inc);
}

static mcpg_status_t get_death(mcpg_arena_t *arena, const Mooncake__Pg__Death *w, mcpg_up_death_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->rank < MCPG_MAX_RANKS && w->proof <= MCPG_PROOF_RELAYED);
    m->rank.v = w->rank;
    m->proof = (uint8_t)w->proof;
    return mcpg__wire_get_inc(w->inc_term, w->inc_counter, false, &m->inc);
}

static mcpg_status_t get_register_group(mcpg_arena_t *arena, const Mooncake__Pg__RegisterGroup *w,
                                        mcpg_up_register_t *m) {
    (void)arena;
    MCPG_TRY(mcpg__wire_get_order(w->order, w->n_order, w->capacity));
    m->call_id = w->call_id;
    MCPG_TRY(mcpg__wire_get_bytes(w->key, MCPG_KEY_CAP, &m->key));
    MCPG_TRY(mcpg__wire_get_bytes(w->label, MCPG_KEY_CAP, &m->label));
    MCPG_TRY(mcpg__wire_get_bytes(w->device_kind, MCPG_KEY_CAP, &m->device_kind));
    m->order_count = (uint32_t)w->n_order;
    m->order = w->order;
    m->capacity = w->capacity;
    m->is_extension = w->is_extension != 0;
    m->manual = w->manual != 0;
    m->no_auto_sync = w->no_auto_sync != 0;
    return MCPG_OK;
}

static mcpg_status_t get_join(mcpg_arena_t *arena, const Mooncake__Pg__Join *w, mcpg_up_join_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->call_id = w->call_id;
    m->gid.v = w->gid;
    return MCPG_OK;
}

static mcpg_status_t get_propose(mcpg_arena_t *arena, const Mooncake__Pg__Propose *w, mcpg_up_propose_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0);
    m->call_id = w->call_id;
    m->gid.v = w->gid;
    MCPG_TRY(mcpg__wire_get_set(w->activate, &m->activate));
    MCPG_TRY(mcpg__wire_get_set(w->deactivate, &m->deactivate));
    MCPG_TRY(mcpg__wire_get_members(arena, w->stamps, w->n_stamps, false, &m->stamps, &m->stamp_count));
    m->expected_epoch = w->expected_epoch;
    m->wait_us = w->wait_us;
    return MCPG_OK;
}

static mcpg_status_t get_ack(mcpg_arena_t *arena, const Mooncake__Pg__Ack *w, mcpg_up_ack_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    m->next_seq = w->next_seq;
    m->steps = w->steps != 0;
    return mcpg__wire_get_view_id(w->term, w->epoch, false, &m->view);
}

static mcpg_status_t get_commit_ack(mcpg_arena_t *arena, const Mooncake__Pg__CommitAck *w, mcpg_up_commit_ack_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    return mcpg__wire_get_view_id(w->term, w->epoch, false, &m->view);
}

static mcpg_status_t get_op_failed(mcpg_arena_t *arena, const Mooncake__Pg__OpFailed *w, mcpg_up_op_failed_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    m->report_id = w->report_id;
    m->seq = w->seq;
    return mcpg__wire_get_members(arena, w->failed, w->n_failed, false, &m->failed, &m->failed_count);
}

static mcpg_status_t get_sync_enter(mcpg_arena_t *arena, const Mooncake__Pg__SyncEnter *w, mcpg_up_sync_enter_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->call_id = w->call_id;
    m->gid.v = w->gid;
    m->first_failed_seq = w->first_failed_seq;
    return mcpg__wire_get_set(w->failed, &m->failed);
}

static mcpg_status_t get_leave_group(mcpg_arena_t *arena, const Mooncake__Pg__LeaveGroup *w, mcpg_up_leave_group_t *m) {
    (void)arena;
    MCPG_WIRE_CHECK(w->gid != 0);
    m->gid.v = w->gid;
    m->next_seq = w->next_seq;
    return MCPG_OK;
}

static mcpg_status_t get_detach(mcpg_arena_t *arena, const Mooncake__Pg__Detach *w, mcpg_up_detach_t *m) {
    (void)arena;
    (void)w;
    m->reserved = 0;
    return MCPG_OK;
}

static mcpg_status_t get_rebuild(mcpg_arena_t *arena, const Mooncake__Pg__Rebuild *w, mcpg_up_rebuild_t *m) {
    MCPG_WIRE_CHECK(w->gid != 0);
    MCPG_TRY(mcpg__wire_get_order(w->order, w->n_order, w->capacity));
    m->gid.v = w->gid;
    MCPG_TRY(mcpg__wire_get_bytes(w->key, MCPG_KEY_CAP, &m->key));
    MCPG_TRY(mcpg__wire_get_bytes(w->label, MCPG_KEY_CAP, &m->label));
    MCPG_TRY(mcpg__wire_get_bytes(w->device_kind, MCPG_KEY_CAP, &m->device_kind));
    m->order_count = (uint32_t)w->n_order;
    m->order = w->order;
    m->capacity = w->capacity;
    m->manual = w->manual != 0;
    m->no_auto_sync = w->no_auto_sync != 0;
    m->awaiting = w->awaiting != 0;
    MCPG_TRY(mcpg__wire_get_view_id(w->acked_term, w->acked_epoch, true, &m->acked));
    m->next_seq = w->next_seq;
    MCPG_TRY(mcpg__wire_get_view_id(w->aborted_term, w->aborted_epoch, true, &m->aborted));
    MCPG_WIRE_CHECK(w->n_doubt == 0 || m->acked.epoch != 0);
    MCPG_TRY(mcpg__wire_get_members(arena, w->doubt, w->n_doubt, true, &m->doubt, &m->doubt_count));
    m->has_commit = w->commit != NULL;
    if (!m->has_commit) return MCPG_OK;
    MCPG_WIRE_CHECK(w->commit->gid == w->gid);
    return mcpg__wire_get_commit(arena, w->commit, &m->commit);
}

static mcpg_status_t get_rebuild_end(mcpg_arena_t *arena, const Mooncake__Pg__RebuildEnd *w, mcpg_up_rebuild_end_t *m) {
    (void)arena;
    (void)w;
    m->reserved = 0;
    return MCPG_OK;
}

/* ---- envelope ---- */
/* Entries of the longest list. */
static uint32_t list_entries(const mcpg_up_msg_t *msg) {
    switch (msg->kind) {
    case MCPG_UP_ATTACH:
        return msg->u.attach.report_count;
    case MCPG_UP_PROPOSE:
        return msg->u.propose.stamp_count;
    case MCPG_UP_OP_FAILED:
        return msg->u.op_failed.failed_count;
    case MCPG_UP_REBUILD:
        return msg->u.rebuild.doubt_count +
               (msg->u.rebuild.has_commit ? mcpg__wire_commit_entries(&msg->u.rebuild.commit) : 0);
    case MCPG_UP_HEARTBEAT:
    case MCPG_UP_LINK:
    case MCPG_UP_DEATH:
    case MCPG_UP_REGISTER:
    case MCPG_UP_JOIN:
    case MCPG_UP_ACK:
    case MCPG_UP_COMMIT_ACK:
    case MCPG_UP_SYNC_ENTER:
    case MCPG_UP_LEAVE_GROUP:
    case MCPG_UP_DETACH:
    case MCPG_UP_REBUILD_END:
    case MCPG_UP__COUNT:
        break;
    }
    return 0;
}

static mcpg_status_t put_body(mcpg_arena_t *arena, const mcpg_up_msg_t *msg, Mooncake__Pg__Up *wire) {
    switch (msg->kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_UP_##NAME:                                                                                               \
        wire->field = mcpg__arena_take(arena, sizeof *wire->field);                                                    \
        if (wire->field == NULL) return MCPG_LIMIT;                                                                    \
        mooncake__pg__##field##__init(wire->field);                                                                    \
        return put_##field(arena, &msg->u.field, wire->field);
        MCPG_UP_MSGS(X)
#undef X
    case MCPG_UP__COUNT:
        break;
    }
    return MCPG_INVALID_ARGUMENT;
}

mcpg_status_t mcpg__up_pack(const mcpg_up_msg_t *msg, uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_wire_scratch_t scratch;
    MCPG_TRY(mcpg__wire_scratch_begin(&scratch, list_entries(msg)));
    Mooncake__Pg__Up wire = MOONCAKE__PG__UP__INIT;
    wire.version = msg->kind == MCPG_UP_ATTACH ? msg->u.attach.version : MCPG_PROTOCOL_VERSION;
    wire.msg_case = (Mooncake__Pg__Up__MsgCase)((int)msg->kind + MCPG_WIRE_CASE_OFFSET);
    mcpg_status_t status = put_body(&scratch.arena, msg, &wire);
    if (status == MCPG_OK) {
        size_t len = mooncake__pg__up__get_packed_size(&wire);
        if (len > cap || len > MCPG_MSG_CAP)
            status = MCPG_LIMIT;
        else
            *len_out = mooncake__pg__up__pack(&wire, buf);
    }
    mcpg__wire_scratch_end(&scratch);
    return status;
}

static mcpg_status_t get_body(mcpg_arena_t *arena, const Mooncake__Pg__Up *wire, mcpg_up_msg_t *msg) {
    switch (msg->kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_UP_##NAME:                                                                                               \
        MCPG_WIRE_CHECK(wire->field != NULL);                                                                          \
        return get_##field(arena, wire->field, &msg->u.field);
        MCPG_UP_MSGS(X)
#undef X
    case MCPG_UP__COUNT:
        break;
    }
    return MCPG_CORRUPT;
}

mcpg_status_t mcpg__up_unpack(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_up_msg_t *out) {
    MCPG_WIRE_CHECK(len > 0 && len <= MCPG_MSG_CAP);
    ProtobufCAllocator allocator = mcpg__wire_allocator(arena);
    Mooncake__Pg__Up *wire = mooncake__pg__up__unpack(&allocator, len, buf);
    MCPG_WIRE_CHECK(wire != NULL);
    int kind = (int)wire->msg_case - MCPG_WIRE_CASE_OFFSET;
    MCPG_WIRE_CHECK(kind >= 0 && kind < (int)MCPG_UP__COUNT);
    MCPG_WIRE_CHECK(wire->version == MCPG_PROTOCOL_VERSION || kind == (int)MCPG_UP_ATTACH);
    mcpg_up_msg_t msg;
    memset(&msg, 0, sizeof msg);
    msg.kind = (mcpg_up_kind_t)kind;
    MCPG_TRY(get_body(arena, wire, &msg));
    if (msg.kind == MCPG_UP_ATTACH) msg.u.attach.version = wire->version;
    *out = msg;
    return MCPG_OK;
}

const char *mcpg__up_name(mcpg_up_kind_t kind) {
    switch (kind) {
#define X(NAME, field, type)                                                                                           \
    case MCPG_UP_##NAME:                                                                                               \
        return #NAME;
        MCPG_UP_MSGS(X)
#undef X
    case MCPG_UP__COUNT:
        break;
    }
    return "UNKNOWN";
}

_Static_assert((int)MOONCAKE__PG__UP__MSG_ATTACH == (int)MCPG_UP_ATTACH + MCPG_WIRE_CASE_OFFSET, "pg.proto numbers");
_Static_assert((int)MOONCAKE__PG__UP__MSG_OP_FAILED == (int)MCPG_UP_OP_FAILED + MCPG_WIRE_CASE_OFFSET,
               "pg.proto numbers");
_Static_assert((int)MOONCAKE__PG__UP__MSG_REBUILD_END == (int)MCPG_UP_REBUILD_END + MCPG_WIRE_CASE_OFFSET,
               "pg.proto numbers");
