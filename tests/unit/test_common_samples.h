/* test_common_samples.h: random valid messages of every kind, and a flat dump of a message to compare two of them by.
 * The dump names every field by hand and must never share code with the codec, so that a field that the codec forgets
 * shows.
 */
#ifndef MCPG_TESTS_UNIT_SAMPLES_H
#define MCPG_TESTS_UNIT_SAMPLES_H

#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/codec.h"

typedef struct {
    uint64_t state;
    mcpg_arena_t arena;
    uint32_t size; /* entries of lists, 1 to MCPG_MAX_RANKS */
} sample_t;

static inline uint64_t sample_u64(sample_t *s) {
    uint64_t z = (s->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) >> (z & 63u); /* any magnitude */
}
static inline uint32_t sample_below(sample_t *s, uint32_t n) {
    return (uint32_t)(sample_u64(s) % n);
}
static inline bool sample_bool(sample_t *s) {
    return (sample_u64(s) & 1u) != 0;
}
static inline void *sample_take(sample_t *s, size_t size) {
    void *p = mcpg__arena_take(&s->arena, size);
    if (p == NULL) abort();
    memset(p, 0, size);
    return p;
}
static inline mcpg_bytes_t sample_bytes(sample_t *s, uint32_t cap) {
    uint32_t len = s->size >= MCPG_MAX_RANKS ? cap : sample_below(s, cap + 1);
    uint8_t *p = sample_take(s, len + 1u);
    for (uint32_t i = 0; i < len; i++) p[i] = (uint8_t)sample_u64(s);
    return (mcpg_bytes_t){.ptr = p, .len = len};
}
static inline mcpg_incarnation_t sample_inc(sample_t *s) {
    return (mcpg_incarnation_t){.term = 1 + sample_u64(s) / 2, .counter = sample_u64(s) / 2};
}
static inline mcpg_view_id_t sample_view_id(sample_t *s) {
    return (mcpg_view_id_t){.term = 1 + sample_u64(s) / 2, .epoch = sample_u64(s) / 2};
}
static inline mcpg_gid_t sample_gid(sample_t *s) {
    return (mcpg_gid_t){.v = 1 + sample_below(s, UINT32_MAX - 1)};
}
static inline mcpg_rank_t sample_rank(sample_t *s) {
    return (mcpg_rank_t){.v = sample_below(s, MCPG_MAX_RANKS)};
}
static inline mcpg_rankset_t sample_set(sample_t *s) {
    mcpg_rankset_t set = {{0}};
    for (uint32_t i = 0; i < s->size; i++) mcpg__rankset_add(&set, sample_below(s, MCPG_MAX_RANKS));
    return set;
}
/* Ascending slots; ranks are a rotation, so none comes twice. */
static inline const mcpg_member_t *sample_members(sample_t *s, uint32_t *count_out) {
    uint32_t turn = sample_below(s, MCPG_MAX_RANKS), skip = MCPG_MAX_RANKS / s->size;
    mcpg_member_t *m = sample_take(s, s->size * sizeof *m);
    for (uint32_t i = 0; i < s->size; i++) {
        m[i].slot.v = i * skip + (skip > 1 ? sample_below(s, skip) : 0);
        m[i].rank.v = (m[i].slot.v + turn) % MCPG_MAX_RANKS;
        if (!sample_bool(s)) m[i].inc = sample_inc(s);
    }
    *count_out = s->size;
    return m;
}
static inline mcpg_view_body_t sample_view(sample_t *s) {
    mcpg_view_body_t view = {.id = sample_view_id(s)};
    view.active = sample_members(s, &view.active_count);
    return view;
}
static inline int32_t sample_status(sample_t *s) {
    return -(int32_t)sample_below(s, 36);
}

static inline void sample_attach(sample_t *s, mcpg_up_attach_t *m) {
    m->version = (uint32_t)sample_u64(s);
    m->rank = sample_rank(s);
    m->session.v = 1 + sample_u64(s) / 2;
    if (sample_bool(s)) m->prev_inc = sample_inc(s);
    m->highest_term = sample_u64(s) / 2;
    m->host_id = sample_u64(s);
    m->pid = (int64_t)sample_u64(s);
    m->endpoint = sample_bytes(s, MCPG_ENDPOINT_CAP);
    m->report_count = s->size == MCPG_MAX_RANKS ? MCPG_MAX_GROUPS : s->size;
    mcpg_group_report_t *reports = sample_take(s, m->report_count * sizeof *reports);
    for (uint32_t i = 0; i < m->report_count; i++) {
        reports[i].gid = sample_gid(s);
        if (sample_bool(s)) reports[i].committed = sample_view_id(s);
        if (sample_bool(s)) reports[i].acked = sample_view_id(s);
        reports[i].next_seq = sample_u64(s);
    }
    m->reports = reports;
}
static inline void sample_register(sample_t *s, mcpg_up_register_t *m) {
    *m = (mcpg_up_register_t){.call_id = sample_u64(s),
                              .key = sample_bytes(s, MCPG_KEY_CAP),
                              .label = sample_bytes(s, MCPG_KEY_CAP),
                              .device_kind = sample_bytes(s, MCPG_KEY_CAP),
                              .order_count = s->size,
                              .is_extension = sample_bool(s),
                              .manual = sample_bool(s),
                              .no_auto_sync = sample_bool(s)};
    uint32_t turn = sample_below(s, MCPG_MAX_RANKS);
    uint32_t *order = sample_take(s, s->size * sizeof *order);
    for (uint32_t i = 0; i < s->size; i++) order[i] = (i * 7u + turn) % MCPG_MAX_RANKS;
    m->order = order;
    m->capacity = s->size + sample_below(s, MCPG_MAX_RANKS - s->size + 1);
}
static inline void sample_commit(sample_t *s, mcpg_down_commit_t *m) {
    mcpg_leave_t *leaves = sample_take(s, s->size * sizeof *leaves);
    for (uint32_t i = 0; i < s->size; i++) leaves[i] = (mcpg_leave_t){{MCPG_MAX_RANKS - 1 - i}, sample_u64(s)};
    *m = (mcpg_down_commit_t){.gid = sample_gid(s),
                              .view = sample_view(s),
                              .switch_seq = sample_u64(s),
                              .leave_count = s->size,
                              .leaves = leaves,
                              .sync = sample_bool(s),
                              .sync_failed = sample_set(s),
                              .sync_first_failed_seq = sample_bool(s) ? MCPG_NO_SEQ : sample_u64(s)};
}
static inline void sample_rebuild(sample_t *s, mcpg_up_rebuild_t *m) {
    mcpg_up_register_t r;
    sample_register(s, &r);
    *m = (mcpg_up_rebuild_t){.gid = sample_gid(s),
                             .key = r.key,
                             .label = r.label,
                             .device_kind = r.device_kind,
                             .order_count = r.order_count,
                             .order = r.order,
                             .capacity = r.capacity,
                             .manual = r.manual,
                             .no_auto_sync = r.no_auto_sync,
                             .awaiting = sample_bool(s),
                             .next_seq = sample_u64(s),
                             .has_commit = sample_bool(s)};
    if (sample_bool(s)) m->acked = sample_view_id(s);
    if (m->acked.epoch != 0) m->doubt = sample_members(s, &m->doubt_count);
    if (sample_bool(s)) m->aborted = sample_view_id(s);
    if (!m->has_commit) return;
    sample_commit(s, &m->commit);
    m->commit.gid = m->gid;
}
static inline mcpg_up_msg_t sample_up(sample_t *s, mcpg_up_kind_t kind) {
    mcpg_up_msg_t m;
    memset(&m, 0, sizeof m);
    m.kind = kind;
    switch (kind) {
    case MCPG_UP_ATTACH:
        sample_attach(s, &m.u.attach);
        break;
    case MCPG_UP_HEARTBEAT:
        m.u.heartbeat = (mcpg_up_heartbeat_t){sample_u64(s), sample_u64(s)};
        break;
    case MCPG_UP_LINK:
        m.u.link = (mcpg_up_link_t){sample_rank(s), sample_inc(s), (uint8_t)sample_below(s, 2), sample_u64(s)};
        break;
    case MCPG_UP_DEATH:
        m.u.death = (mcpg_up_death_t){sample_rank(s), sample_inc(s), (uint8_t)sample_below(s, 3)};
        break;
    case MCPG_UP_REGISTER:
        sample_register(s, &m.u.register_group);
        break;
    case MCPG_UP_JOIN:
        m.u.join = (mcpg_up_join_t){sample_u64(s), sample_gid(s)};
        break;
    case MCPG_UP_PROPOSE:
        m.u.propose = (mcpg_up_propose_t){.call_id = sample_u64(s),
                                          .gid = sample_gid(s),
                                          .activate = sample_set(s),
                                          .deactivate = sample_set(s),
                                          .expected_epoch = sample_bool(s) ? MCPG_ANY_EPOCH : sample_u64(s),
                                          .wait_us = sample_u64(s)};
        m.u.propose.stamps = sample_members(s, &m.u.propose.stamp_count);
        break;
    case MCPG_UP_ACK:
        m.u.ack = (mcpg_up_ack_t){sample_gid(s), sample_view_id(s), sample_u64(s), sample_bool(s)};
        break;
    case MCPG_UP_COMMIT_ACK:
        m.u.commit_ack = (mcpg_up_commit_ack_t){sample_gid(s), sample_view_id(s)};
        break;
    case MCPG_UP_OP_FAILED:
        m.u.op_failed = (mcpg_up_op_failed_t){.gid = sample_gid(s), .report_id = sample_u64(s), .seq = MCPG_NO_SEQ};
        m.u.op_failed.failed = sample_members(s, &m.u.op_failed.failed_count);
        break;
    case MCPG_UP_SYNC_ENTER:
        m.u.sync_enter = (mcpg_up_sync_enter_t){sample_u64(s), sample_gid(s), sample_set(s), sample_u64(s)};
        break;
    case MCPG_UP_LEAVE_GROUP:
        m.u.leave_group.gid = sample_gid(s);
        break;
    case MCPG_UP_REBUILD:
        sample_rebuild(s, &m.u.rebuild);
        break;
    case MCPG_UP_REBUILD_END:
    case MCPG_UP_DETACH:
    case MCPG_UP__COUNT:
        break;
    }
    return m;
}

static inline void sample_rank_states(sample_t *s, mcpg_down_rank_states_t *m) {
    mcpg_rank_info_t *ranks = sample_take(s, s->size * sizeof *ranks);
    for (uint32_t i = 0; i < s->size; i++) {
        ranks[i].rank.v = i * (MCPG_MAX_RANKS / s->size);
        ranks[i].state = (uint8_t)sample_below(s, 3);
        ranks[i].suspect = sample_bool(s);
        bool needs_inc = ranks[i].state != MCPG_RANK_OFFLINE || ranks[i].suspect;
        if (needs_inc || sample_bool(s)) ranks[i].inc = sample_inc(s);
        ranks[i].dead = sample_bool(s);
        ranks[i].host_id = sample_u64(s);
        ranks[i].pid = -(int64_t)(sample_u64(s) / 2);
        ranks[i].endpoint = sample_bytes(s, MCPG_ENDPOINT_CAP);
    }
    *m = (mcpg_down_rank_states_t){.full = sample_bool(s), .check_id = sample_u64(s), .count = s->size, .ranks = ranks};
    if (m->full && sample_bool(s)) m->end = MCPG_MAX_RANKS;
}
static inline mcpg_down_msg_t sample_down(sample_t *s, mcpg_down_kind_t kind) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof m);
    m.kind = kind;
    switch (kind) {
    case MCPG_DOWN_WELCOME:
        m.u.welcome = (mcpg_down_welcome_t){1 + sample_u64(s) / 2, sample_u64(s),         sample_inc(s), sample_bool(s),
                                            1 + sample_u64(s) / 2, 1 + sample_u64(s) / 2, sample_bool(s)};
        break;
    case MCPG_DOWN_REFUSED:
        m.u.refused = (mcpg_down_refused_t){-1 + sample_status(s) / 2, sample_bytes(s, MCPG_TEXT_CAP - 1)};
        break;
    case MCPG_DOWN_HEARTBEAT_REPLY:
        m.u.heartbeat_reply = (mcpg_down_heartbeat_reply_t){sample_u64(s), sample_u64(s)};
        break;
    case MCPG_DOWN_RANK_STATES:
        sample_rank_states(s, &m.u.rank_states);
        break;
    case MCPG_DOWN_REGISTERED:
        m.u.registered = (mcpg_down_registered_t){.call_id = sample_u64(s),
                                                  .status = sample_status(s),
                                                  .text = sample_bytes(s, MCPG_TEXT_CAP - 1),
                                                  .gid = sample_gid(s),
                                                  .slot = {s->size - 1},
                                                  .capacity = s->size,
                                                  .isolated = sample_bool(s),
                                                  .manual = sample_bool(s),
                                                  .no_auto_sync = sample_bool(s)};
        break;
    case MCPG_DOWN_MEMBERS: {
        mcpg_group_member_t *members = sample_take(s, s->size * sizeof *members);
        for (uint32_t i = 0; i < s->size; i++) {
            members[i] = (mcpg_group_member_t){.slot = {i}, .rank = sample_rank(s), .awaiting = sample_bool(s)};
            if (sample_bool(s)) members[i].inc = sample_inc(s);
        }
        m.u.members = (mcpg_down_members_t){.gid = sample_gid(s), .count = s->size, .members = members};
        break;
    }
    case MCPG_DOWN_PREPARE:
        m.u.prepare = (mcpg_down_prepare_t){sample_gid(s), sample_view(s)};
        break;
    case MCPG_DOWN_COMMIT:
        sample_commit(s, &m.u.commit);
        break;
    case MCPG_DOWN_ABORT:
        m.u.abort = (mcpg_down_abort_t){sample_gid(s), sample_view_id(s)};
        break;
    case MCPG_DOWN_REPLY:
        m.u.reply = (mcpg_down_reply_t){.call_id = sample_u64(s),
                                        .status = sample_status(s),
                                        .dropped_any = sample_bool(s),
                                        .dropped = sample_set(s),
                                        .epoch = sample_u64(s),
                                        .text = sample_bytes(s, MCPG_TEXT_CAP - 1)};
        break;
    case MCPG_DOWN_RECONCILED:
        m.u.reconciled = (mcpg_down_reconciled_t){sample_gid(s), sample_u64(s), sample_set(s)};
        break;
    case MCPG_DOWN_SYNCING:
        m.u.syncing.gid = sample_gid(s);
        break;
    case MCPG_DOWN__COUNT:
        break;
    }
    return m;
}

/* ---- dumps ---- */
static inline void dump_inc(mcpg_put_t *d, mcpg_incarnation_t i) {
    mcpg__put_u64(d, i.term), mcpg__put_u64(d, i.counter);
}
static inline void dump_view_id(mcpg_put_t *d, mcpg_view_id_t v) {
    mcpg__put_u64(d, v.term), mcpg__put_u64(d, v.epoch);
}
static inline void dump_bytes(mcpg_put_t *d, mcpg_bytes_t b) {
    mcpg__put_bytes(d, b.ptr, b.len);
}
static inline void dump_set(mcpg_put_t *d, const mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) mcpg__put_u64(d, s->w[i]);
}
static inline void dump_members(mcpg_put_t *d, const mcpg_member_t *m, uint32_t count) {
    mcpg__put_u32(d, count);
    for (uint32_t i = 0; i < count; i++) {
        mcpg__put_u32(d, m[i].slot.v), mcpg__put_u32(d, m[i].rank.v);
        dump_inc(d, m[i].inc);
    }
}
static inline void dump_view(mcpg_put_t *d, const mcpg_view_body_t *v) {
    dump_view_id(d, v->id);
    dump_members(d, v->active, v->active_count);
}
static inline void dump_u64s(mcpg_put_t *d, unsigned n, const uint64_t *v) {
    for (unsigned i = 0; i < n; i++) mcpg__put_u64(d, v[i]);
}
#define DUMP(d, ...) dump_u64s(d, sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[]){__VA_ARGS__})

static inline void dump_commit(mcpg_put_t *d, const mcpg_down_commit_t *c) {
    DUMP(d, c->gid.v, c->switch_seq, c->leave_count, c->sync, c->sync_first_failed_seq);
    dump_view(d, &c->view);
    dump_set(d, &c->sync_failed);
    for (uint32_t i = 0; i < c->leave_count; i++) DUMP(d, c->leaves[i].slot.v, c->leaves[i].leave_seq);
}
static inline void dump_rebuild(mcpg_put_t *d, const mcpg_up_rebuild_t *r) {
    DUMP(d, r->gid.v, r->order_count, r->capacity, r->manual, r->no_auto_sync, r->awaiting, r->next_seq, r->has_commit);
    dump_bytes(d, r->key), dump_bytes(d, r->label), dump_bytes(d, r->device_kind);
    for (uint32_t i = 0; i < r->order_count; i++) DUMP(d, r->order[i]);
    dump_view_id(d, r->acked);
    dump_members(d, r->doubt, r->doubt_count);
    dump_view_id(d, r->aborted);
    if (r->has_commit) dump_commit(d, &r->commit);
}
static inline void dump_up(mcpg_put_t *d, const mcpg_up_msg_t *m) {
    const mcpg_up_attach_t *a = &m->u.attach;
    const mcpg_up_register_t *r = &m->u.register_group;
    const mcpg_up_propose_t *p = &m->u.propose;
    DUMP(d, m->kind);
    switch (m->kind) {
    case MCPG_UP_ATTACH:
        DUMP(d, a->version, a->rank.v, a->session.v, a->highest_term, a->host_id, (uint64_t)a->pid, a->report_count);
        dump_inc(d, a->prev_inc);
        dump_bytes(d, a->endpoint);
        for (uint32_t i = 0; i < a->report_count; i++) {
            DUMP(d, a->reports[i].gid.v, a->reports[i].next_seq);
            dump_view_id(d, a->reports[i].committed);
            dump_view_id(d, a->reports[i].acked);
        }
        break;
    case MCPG_UP_HEARTBEAT:
        DUMP(d, m->u.heartbeat.digest, m->u.heartbeat.sent_us);
        break;
    case MCPG_UP_LINK:
        DUMP(d, m->u.link.peer.v, m->u.link.state, m->u.link.check_id);
        dump_inc(d, m->u.link.peer_inc);
        break;
    case MCPG_UP_DEATH:
        DUMP(d, m->u.death.rank.v, m->u.death.proof);
        dump_inc(d, m->u.death.inc);
        break;
    case MCPG_UP_REGISTER:
        DUMP(d, r->call_id, r->order_count, r->capacity, r->is_extension, r->manual, r->no_auto_sync);
        dump_bytes(d, r->key), dump_bytes(d, r->label), dump_bytes(d, r->device_kind);
        for (uint32_t i = 0; i < r->order_count; i++) DUMP(d, r->order[i]);
        break;
    case MCPG_UP_JOIN:
        DUMP(d, m->u.join.call_id, m->u.join.gid.v);
        break;
    case MCPG_UP_PROPOSE:
        DUMP(d, p->call_id, p->gid.v, p->expected_epoch, p->wait_us);
        dump_set(d, &p->activate), dump_set(d, &p->deactivate);
        dump_members(d, p->stamps, p->stamp_count);
        break;
    case MCPG_UP_ACK:
        DUMP(d, m->u.ack.gid.v, m->u.ack.next_seq, m->u.ack.steps);
        dump_view_id(d, m->u.ack.view);
        break;
    case MCPG_UP_COMMIT_ACK:
        DUMP(d, m->u.commit_ack.gid.v);
        dump_view_id(d, m->u.commit_ack.view);
        break;
    case MCPG_UP_OP_FAILED:
        DUMP(d, m->u.op_failed.gid.v, m->u.op_failed.report_id, m->u.op_failed.seq);
        dump_members(d, m->u.op_failed.failed, m->u.op_failed.failed_count);
        break;
    case MCPG_UP_SYNC_ENTER:
        DUMP(d, m->u.sync_enter.call_id, m->u.sync_enter.gid.v, m->u.sync_enter.first_failed_seq);
        dump_set(d, &m->u.sync_enter.failed);
        break;
    case MCPG_UP_LEAVE_GROUP:
        DUMP(d, m->u.leave_group.gid.v);
        break;
    case MCPG_UP_REBUILD:
        dump_rebuild(d, &m->u.rebuild);
        break;
    case MCPG_UP_REBUILD_END:
    case MCPG_UP_DETACH:
    case MCPG_UP__COUNT:
        break;
    }
}

static inline void dump_down(mcpg_put_t *d, const mcpg_down_msg_t *m) {
    const mcpg_down_welcome_t *w = &m->u.welcome;
    const mcpg_down_rank_states_t *s = &m->u.rank_states;
    const mcpg_down_registered_t *g = &m->u.registered;
    const mcpg_down_commit_t *c = &m->u.commit;
    DUMP(d, m->kind);
    switch (m->kind) {
    case MCPG_DOWN_WELCOME:
        DUMP(d, w->term, w->coordinator_id, w->resumed, w->heartbeat_us, w->offline_us, w->rebuilding);
        dump_inc(d, w->inc);
        break;
    case MCPG_DOWN_REFUSED:
        DUMP(d, (uint64_t)m->u.refused.status);
        dump_bytes(d, m->u.refused.text);
        break;
    case MCPG_DOWN_HEARTBEAT_REPLY:
        DUMP(d, m->u.heartbeat_reply.digest, m->u.heartbeat_reply.sent_us);
        break;
    case MCPG_DOWN_RANK_STATES:
        DUMP(d, s->full, s->check_id, s->count, s->first, s->end);
        for (uint32_t i = 0; i < s->count; i++) {
            const mcpg_rank_info_t *r = &s->ranks[i];
            DUMP(d, r->rank.v, r->state, r->suspect, r->dead, r->host_id, (uint64_t)r->pid);
            dump_inc(d, r->inc);
            dump_bytes(d, r->endpoint);
        }
        break;
    case MCPG_DOWN_REGISTERED:
        DUMP(d, g->call_id, (uint64_t)g->status, g->gid.v, g->slot.v, g->capacity, g->isolated, g->manual,
             g->no_auto_sync);
        dump_bytes(d, g->text);
        break;
    case MCPG_DOWN_MEMBERS:
        DUMP(d, m->u.members.gid.v, m->u.members.count);
        for (uint32_t i = 0; i < m->u.members.count; i++) {
            const mcpg_group_member_t *e = &m->u.members.members[i];
            DUMP(d, e->slot.v, e->rank.v, e->awaiting);
            dump_inc(d, e->inc);
        }
        break;
    case MCPG_DOWN_PREPARE:
        DUMP(d, m->u.prepare.gid.v);
        dump_view(d, &m->u.prepare.view);
        break;
    case MCPG_DOWN_COMMIT:
        dump_commit(d, c);
        break;
    case MCPG_DOWN_ABORT:
        DUMP(d, m->u.abort.gid.v);
        dump_view_id(d, m->u.abort.view);
        break;
    case MCPG_DOWN_REPLY:
        DUMP(d, m->u.reply.call_id, (uint64_t)m->u.reply.status, m->u.reply.dropped_any, m->u.reply.epoch);
        dump_set(d, &m->u.reply.dropped);
        dump_bytes(d, m->u.reply.text);
        break;
    case MCPG_DOWN_RECONCILED:
        DUMP(d, m->u.reconciled.gid.v, m->u.reconciled.report_id);
        dump_set(d, &m->u.reconciled.cleared);
        break;
    case MCPG_DOWN_SYNCING:
        DUMP(d, m->u.syncing.gid.v);
        break;
    case MCPG_DOWN__COUNT:
        break;
    }
}

#endif
