/* fuzz_valid.c: the bounds of every message, written a second time from msg.h and docs/protocol.md. It must never share
 * code with the codec, whose checks it judges.
 */
#include "fuzz/fuzz.h"

static bool id_ok(uint64_t major, uint64_t minor, bool none_ok) {
    if (major == 0 && minor == 0) return none_ok;
    return major != 0 && major < UINT64_MAX && minor < UINT64_MAX;
}
static bool inc_ok(mcpg_incarnation_t inc, bool none_ok) {
    return id_ok(inc.term, inc.counter, none_ok);
}
static bool view_id_ok(mcpg_view_id_t id, bool none_ok) {
    return id_ok(id.term, id.epoch, none_ok);
}
static bool status_ok(int32_t status) {
    switch (status) {
#define X(NAME, value, kind, text) case value:
#include "common/statuses.def"
#undef X
        return true;
    default:
        return false;
    }
}

/* Within bounds and not seen before. */
typedef struct {
    bool has[MCPG_MAX_RANKS];
} seen_t;
static bool is_new(seen_t *seen, uint32_t value) {
    if (value >= MCPG_MAX_RANKS || seen->has[value]) return false;
    seen->has[value] = true;
    return true;
}

static bool members_ok(const mcpg_member_t *m, uint32_t count, bool a_view) {
    seen_t slots = {{false}}, ranks = {{false}};
    if (count > MCPG_MAX_RANKS) return false;
    for (uint32_t i = 0; i < count; i++) {
        if (!is_new(&slots, m[i].slot.v) || !inc_ok(m[i].inc, true)) return false;
        if (a_view ? !is_new(&ranks, m[i].rank.v) : m[i].rank.v >= MCPG_MAX_RANKS) return false;
        if (a_view && i > 0 && m[i].slot.v <= m[i - 1].slot.v) return false;
    }
    return true;
}
static bool view_ok(const mcpg_view_body_t *view) {
    return view_id_ok(view->id, false) && members_ok(view->active, view->active_count, true);
}
static bool commit_ok(const mcpg_down_commit_t *m) {
    if (m->gid.v == 0 || !view_ok(&m->view) || m->leave_count > MCPG_MAX_RANKS) return false;
    seen_t slots = {{false}};
    for (uint32_t i = 0; i < m->leave_count; i++)
        if (!is_new(&slots, m->leaves[i].slot.v)) return false;
    return true;
}
static bool order_ok(const uint32_t *order, uint32_t count, uint32_t capacity) {
    if (count < 1 || count > MCPG_MAX_RANKS || capacity < count || capacity > MCPG_MAX_RANKS) return false;
    seen_t ranks = {{false}};
    for (uint32_t i = 0; i < count; i++)
        if (!is_new(&ranks, order[i])) return false;
    return true;
}
static bool attach_ok(const mcpg_up_attach_t *m) {
    if (m->rank.v >= MCPG_MAX_RANKS || m->highest_term == UINT64_MAX || !inc_ok(m->prev_inc, true)) return false;
    if (m->session.v == 0) return false;
    if (m->endpoint.len > 256 || m->report_count > MCPG_MAX_GROUPS) return false;
    for (uint32_t i = 0; i < m->report_count; i++) {
        const mcpg_group_report_t *r = &m->reports[i];
        if (r->gid.v == 0 || !view_id_ok(r->committed, true) || !view_id_ok(r->acked, true)) return false;
    }
    return true;
}
static bool keys_ok(mcpg_bytes_t key, mcpg_bytes_t label, mcpg_bytes_t device_kind) {
    return key.len <= 128 && label.len <= 128 && device_kind.len <= 128;
}
static bool rebuild_ok(const mcpg_up_rebuild_t *m) {
    if (m->gid.v == 0 || !order_ok(m->order, m->order_count, m->capacity)) return false;
    if (!keys_ok(m->key, m->label, m->device_kind) || !view_id_ok(m->acked, true)) return false;
    if (!view_id_ok(m->aborted, true) || !members_ok(m->doubt, m->doubt_count, true)) return false;
    if (m->doubt_count > 0 && m->acked.epoch == 0) return false;
    return !m->has_commit || (m->commit.gid.v == m->gid.v && commit_ok(&m->commit));
}

bool fuzz_up_valid(const mcpg_up_msg_t *m) {
    switch (m->kind) {
    case MCPG_UP_ATTACH:
        return attach_ok(&m->u.attach);
    case MCPG_UP_HEARTBEAT:
        return true;
    case MCPG_UP_LINK:
        return m->u.link.peer.v < MCPG_MAX_RANKS && m->u.link.state <= 1 && inc_ok(m->u.link.peer_inc, false);
    case MCPG_UP_DEATH:
        return m->u.death.rank.v < MCPG_MAX_RANKS && m->u.death.proof <= 2 && inc_ok(m->u.death.inc, false);
    case MCPG_UP_REGISTER:
        return order_ok(m->u.register_group.order, m->u.register_group.order_count, m->u.register_group.capacity) &&
               keys_ok(m->u.register_group.key, m->u.register_group.label, m->u.register_group.device_kind);
    case MCPG_UP_JOIN:
        return m->u.join.gid.v != 0;
    case MCPG_UP_PROPOSE:
        return m->u.propose.gid.v != 0 && members_ok(m->u.propose.stamps, m->u.propose.stamp_count, false);
    case MCPG_UP_ACK:
        return m->u.ack.gid.v != 0 && view_id_ok(m->u.ack.view, false);
    case MCPG_UP_COMMIT_ACK:
        return m->u.commit_ack.gid.v != 0 && view_id_ok(m->u.commit_ack.view, false);
    case MCPG_UP_OP_FAILED:
        return m->u.op_failed.gid.v != 0 && members_ok(m->u.op_failed.failed, m->u.op_failed.failed_count, false);
    case MCPG_UP_SYNC_ENTER:
        return m->u.sync_enter.gid.v != 0;
    case MCPG_UP_LEAVE_GROUP:
        return m->u.leave_group.gid.v != 0;
    case MCPG_UP_REBUILD:
        return rebuild_ok(&m->u.rebuild);
    case MCPG_UP_DETACH:
    case MCPG_UP_REBUILD_END:
        return true;
    case MCPG_UP__COUNT:
        break;
    }
    return false;
}

static bool states_ok(const mcpg_down_rank_states_t *m) {
    seen_t ranks = {{false}};
    if (m->count > MCPG_MAX_RANKS || m->end > MCPG_MAX_RANKS) return false;
    if (m->end == 0 ? m->first != 0 : m->first >= m->end) return false;
    for (uint32_t i = 0; i < m->count; i++) {
        const mcpg_rank_info_t *r = &m->ranks[i];
        if (m->end != 0 && (r->rank.v < m->first || r->rank.v >= m->end)) return false;
        if (!is_new(&ranks, r->rank.v) || r->state > 2 || !inc_ok(r->inc, r->state == 0 && !r->suspect) ||
            r->endpoint.len > 256)
            return false;
    }
    return true;
}
static bool table_ok(const mcpg_down_members_t *m) {
    if (m->gid.v == 0 || m->count > MCPG_MAX_RANKS) return false;
    for (uint32_t i = 0; i < m->count; i++) {
        const mcpg_group_member_t *e = &m->members[i];
        if (e->slot.v != i || e->rank.v >= MCPG_MAX_RANKS || !inc_ok(e->inc, true)) return false;
    }
    return true;
}
static bool registered_ok(const mcpg_down_registered_t *m) {
    if (!status_ok(m->status) || m->capacity > MCPG_MAX_RANKS || m->slot.v >= MCPG_MAX_RANKS || m->text.len > 255)
        return false;
    return m->status != MCPG_OK || (m->gid.v != 0 && m->slot.v < m->capacity);
}

bool fuzz_down_valid(const mcpg_down_msg_t *m) {
    switch (m->kind) {
    case MCPG_DOWN_WELCOME:
        return m->u.welcome.term != 0 && m->u.welcome.term != UINT64_MAX && inc_ok(m->u.welcome.inc, false) &&
               m->u.welcome.heartbeat_us != 0 && m->u.welcome.offline_us != 0;
    case MCPG_DOWN_REFUSED:
        return m->u.refused.status < 0 && status_ok(m->u.refused.status) && m->u.refused.text.len <= 255;
    case MCPG_DOWN_HEARTBEAT_REPLY:
        return true;
    case MCPG_DOWN_RANK_STATES:
        return states_ok(&m->u.rank_states);
    case MCPG_DOWN_REGISTERED:
        return registered_ok(&m->u.registered);
    case MCPG_DOWN_MEMBERS:
        return table_ok(&m->u.members);
    case MCPG_DOWN_PREPARE:
        return m->u.prepare.gid.v != 0 && view_ok(&m->u.prepare.view);
    case MCPG_DOWN_COMMIT:
        return commit_ok(&m->u.commit);
    case MCPG_DOWN_ABORT:
        return m->u.abort.gid.v != 0 && view_id_ok(m->u.abort.view, false);
    case MCPG_DOWN_REPLY:
        return status_ok(m->u.reply.status) && m->u.reply.text.len <= 255;
    case MCPG_DOWN_RECONCILED:
        return m->u.reconciled.gid.v != 0;
    case MCPG_DOWN_SYNCING:
        return m->u.syncing.gid.v != 0;
    case MCPG_DOWN__COUNT:
        break;
    }
    return false;
}

bool fuzz_record_valid(const mcpg_group_record_t *r) {
    return r->term != 0 && r->term != UINT64_MAX && (!r->has_view || view_ok(&r->view));
}
