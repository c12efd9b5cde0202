/* agent_host_codec.c: canonical bytes of the agent machine's events, config and effects. Never writes struct memory:
 * padding would leak into logs and make equal events differ.
 */
#include "agent/agent_host_codec.h"

#include <string.h>

#include "common/bytes.h"
#include "common/eventlog.h"

static void put_inc(mcpg_put_t *o, mcpg_incarnation_t v) {
    mcpg__put_u64(o, v.term);
    mcpg__put_u64(o, v.counter);
}
static void put_view(mcpg_put_t *o, mcpg_view_id_t v) {
    mcpg__put_u64(o, v.term);
    mcpg__put_u64(o, v.epoch);
}
static void put_set(mcpg_put_t *o, const mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) mcpg__put_u64(o, s->w[i]);
}
static void put_bytes(mcpg_put_t *o, mcpg_bytes_t b) {
    mcpg__put_bytes(o, b.ptr, b.len);
}
static void put_timers(mcpg_put_t *o, const mcpg_timers_t *t) {
    mcpg__put_u64(o, t->heartbeat_us);
    mcpg__put_u64(o, t->offline_us);
    mcpg__put_u64(o, t->ack_us);
    mcpg__put_u64(o, t->ack_added_us);
    mcpg__put_u64(o, t->reconcile_us);
    mcpg__put_u64(o, t->coordinator_grace_us);
    mcpg__put_u64(o, t->collective_timeout_us);
    mcpg__put_u64(o, t->p2p_timeout_us);
    mcpg__put_u64(o, t->failover_us);
    mcpg__put_u64(o, t->settle_us);
    mcpg__put_u64(o, t->link_retry_us);
    mcpg__put_u64(o, t->link_retry_max_us);
}
_Static_assert(sizeof(mcpg_timers_t) == 12 * sizeof(uint64_t), "every timer is in the log's configuration");

static bool get_bool(mcpg_get_t *in) {
    return mcpg__get_u8(in) != 0;
}
static mcpg_incarnation_t get_inc(mcpg_get_t *in) {
    uint64_t term = mcpg__get_u64(in);
    return (mcpg_incarnation_t){term, mcpg__get_u64(in)};
}
static mcpg_view_id_t get_view(mcpg_get_t *in) {
    uint64_t term = mcpg__get_u64(in);
    return (mcpg_view_id_t){term, mcpg__get_u64(in)};
}
static void get_set(mcpg_get_t *in, mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) s->w[i] = mcpg__get_u64(in);
}
static void get_timers(mcpg_get_t *in, mcpg_timers_t *t) {
    t->heartbeat_us = mcpg__get_u64(in);
    t->offline_us = mcpg__get_u64(in);
    t->ack_us = mcpg__get_u64(in);
    t->ack_added_us = mcpg__get_u64(in);
    t->reconcile_us = mcpg__get_u64(in);
    t->coordinator_grace_us = mcpg__get_u64(in);
    t->collective_timeout_us = mcpg__get_u64(in);
    t->p2p_timeout_us = mcpg__get_u64(in);
    t->failover_us = mcpg__get_u64(in);
    t->settle_us = mcpg__get_u64(in);
    t->link_retry_us = mcpg__get_u64(in);
    t->link_retry_max_us = mcpg__get_u64(in);
}

static void encode_register(mcpg_put_t *o, const mcpg_agent_call_register_t *r) {
    mcpg__put_u64(o, r->call_id);
    put_bytes(o, r->key);
    put_bytes(o, r->label);
    put_bytes(o, r->device_kind);
    mcpg__put_u32(o, r->order_count);
    for (uint32_t i = 0; i < r->order_count; i++) mcpg__put_u32(o, r->order[i]);
    mcpg__put_u32(o, r->capacity);
    mcpg__put_u8(o, r->is_extension);
    mcpg__put_u8(o, r->manual);
    mcpg__put_u8(o, r->no_auto_sync);
    mcpg__put_u64(o, r->timeout_us);
}

static void encode_op_failed(mcpg_put_t *o, const mcpg_agent_op_failed_ev_t *f) {
    mcpg__put_u32(o, f->gid.v);
    mcpg__put_u64(o, f->report_id);
    mcpg__put_u64(o, f->seq);
    mcpg__put_u32(o, f->failed_count);
    for (uint32_t i = 0; i < f->failed_count; i++) {
        mcpg__put_u32(o, f->failed[i].slot.v);
        mcpg__put_u32(o, f->failed[i].rank.v);
        put_inc(o, f->failed[i].inc);
    }
}

static void encode_call(mcpg_put_t *o, const mcpg_agent_event_t *e) {
    if (e->kind == MCPG_AGENT_EV_CALL_JOIN) {
        mcpg__put_u64(o, e->u.call_join.call_id);
        mcpg__put_u32(o, e->u.call_join.gid.v);
        mcpg__put_u64(o, e->u.call_join.timeout_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_PROPOSE) {
        const mcpg_agent_call_propose_t *p = &e->u.call_propose;
        mcpg__put_u64(o, p->call_id);
        mcpg__put_u32(o, p->gid.v);
        put_set(o, &p->activate);
        put_set(o, &p->deactivate);
        mcpg__put_u64(o, p->expected_epoch);
        mcpg__put_u64(o, p->wait_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_SYNC) {
        const mcpg_agent_call_sync_t *s = &e->u.call_sync;
        mcpg__put_u64(o, s->call_id);
        mcpg__put_u32(o, s->gid.v);
        put_set(o, &s->failed);
        mcpg__put_u64(o, s->first_failed_seq);
        mcpg__put_u64(o, s->timeout_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_LEAVE) {
        mcpg__put_u64(o, e->u.call_leave.call_id);
        mcpg__put_u32(o, e->u.call_leave.gid.v);
        mcpg__put_u64(o, e->u.call_leave.next_seq);
    } else {
        mcpg__put_u64(o, e->u.call_detach.call_id);
    }
}

mcpg_status_t mcpg__agent_event_encode(const mcpg_agent_event_t *e, uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_put_t o = {.ptr = buf, .cap = cap};
    switch (e->kind) {
    case MCPG_AGENT_EV_CONNECTED:
    case MCPG_AGENT_EV_DISCONNECTED:
    case MCPG_AGENT_EV_TIMER:
        break;
    case MCPG_AGENT_EV_MSG:
    case MCPG_AGENT_EV_VIEW_TOLD:
    case MCPG_AGENT_EV__COUNT:
        return MCPG_INVALID_ARGUMENT;
    case MCPG_AGENT_EV_LINK:
        mcpg__put_u32(&o, e->u.link.rank.v);
        put_inc(&o, e->u.link.inc);
        mcpg__put_u8(&o, e->u.link.state);
        mcpg__put_u64(&o, e->u.link.check_id);
        break;
    case MCPG_AGENT_EV_DEATH:
        mcpg__put_u32(&o, e->u.death.rank.v);
        put_inc(&o, e->u.death.inc);
        mcpg__put_u8(&o, e->u.death.proof);
        break;
    case MCPG_AGENT_EV_OP_FAILED:
        encode_op_failed(&o, &e->u.op_failed);
        break;
    case MCPG_AGENT_EV_HELD:
        mcpg__put_u32(&o, e->u.held.gid.v);
        put_view(&o, e->u.held.view);
        mcpg__put_u64(&o, e->u.held.next_seq);
        mcpg__put_u8(&o, e->u.held.steps);
        break;
    case MCPG_AGENT_EV_CALL_REGISTER:
        encode_register(&o, &e->u.call_register);
        break;
    case MCPG_AGENT_EV_CALL_JOIN:
    case MCPG_AGENT_EV_CALL_PROPOSE:
    case MCPG_AGENT_EV_CALL_SYNC:
    case MCPG_AGENT_EV_CALL_LEAVE:
    case MCPG_AGENT_EV_CALL_DETACH:
        encode_call(&o, e);
        break;
    case MCPG_AGENT_EV_VIEW_ASKED:
        mcpg__put_u32(&o, e->u.view_asked.rank.v);
        put_inc(&o, e->u.view_asked.inc);
        mcpg__put_u32(&o, e->u.view_asked.gid.v);
        put_view(&o, e->u.view_asked.view);
        break;
    }
    if (o.bad) return MCPG_LIMIT;
    *len_out = o.len;
    return MCPG_OK;
}

static bool decode_register(mcpg_get_t *in, mcpg_arena_t *arena, mcpg_agent_call_register_t *r) {
    r->call_id = mcpg__get_u64(in);
    r->key = mcpg__get_bytes(in);
    r->label = mcpg__get_bytes(in);
    r->device_kind = mcpg__get_bytes(in);
    r->order_count = mcpg__get_u32(in);
    if (r->order_count > MCPG_MAX_RANKS) return false;
    uint32_t *order = mcpg__arena_take(arena, (size_t)r->order_count * sizeof(*order) + sizeof(*order));
    if (order == NULL) return false;
    for (uint32_t i = 0; i < r->order_count; i++) order[i] = mcpg__get_u32(in);
    r->order = order;
    r->capacity = mcpg__get_u32(in);
    r->is_extension = get_bool(in);
    r->manual = get_bool(in);
    r->no_auto_sync = get_bool(in);
    r->timeout_us = mcpg__get_u64(in);
    return true;
}

static bool decode_op_failed(mcpg_get_t *in, mcpg_arena_t *arena, mcpg_agent_op_failed_ev_t *f) {
    f->gid.v = mcpg__get_u32(in);
    f->report_id = mcpg__get_u64(in);
    f->seq = mcpg__get_u64(in);
    f->failed_count = mcpg__get_u32(in);
    if (f->failed_count > MCPG_MAX_RANKS) return false;
    mcpg_member_t *failed = mcpg__arena_take(arena, ((size_t)f->failed_count + 1) * sizeof(*failed));
    if (failed == NULL) return false;
    for (uint32_t i = 0; i < f->failed_count; i++) {
        failed[i].slot.v = mcpg__get_u32(in);
        failed[i].rank.v = mcpg__get_u32(in);
        failed[i].inc = get_inc(in);
    }
    f->failed = failed;
    return true;
}

static void decode_call(mcpg_get_t *in, mcpg_agent_event_t *e) {
    if (e->kind == MCPG_AGENT_EV_CALL_JOIN) {
        e->u.call_join.call_id = mcpg__get_u64(in);
        e->u.call_join.gid.v = mcpg__get_u32(in);
        e->u.call_join.timeout_us = mcpg__get_u64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_PROPOSE) {
        mcpg_agent_call_propose_t *p = &e->u.call_propose;
        p->call_id = mcpg__get_u64(in);
        p->gid.v = mcpg__get_u32(in);
        get_set(in, &p->activate);
        get_set(in, &p->deactivate);
        p->expected_epoch = mcpg__get_u64(in);
        p->wait_us = mcpg__get_u64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_SYNC) {
        mcpg_agent_call_sync_t *s = &e->u.call_sync;
        s->call_id = mcpg__get_u64(in);
        s->gid.v = mcpg__get_u32(in);
        get_set(in, &s->failed);
        s->first_failed_seq = mcpg__get_u64(in);
        s->timeout_us = mcpg__get_u64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_LEAVE) {
        e->u.call_leave.call_id = mcpg__get_u64(in);
        e->u.call_leave.gid.v = mcpg__get_u32(in);
        e->u.call_leave.next_seq = mcpg__get_u64(in);
    } else {
        e->u.call_detach.call_id = mcpg__get_u64(in);
    }
}

mcpg_status_t mcpg__agent_event_decode(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_down_msg_t *msg,
                                       mcpg_agent_event_t *e) {
    mcpg_get_t in = {.ptr = buf, .len = len};
    bool ok = true;
    switch (e->kind) {
    case MCPG_AGENT_EV_CONNECTED:
    case MCPG_AGENT_EV_DISCONNECTED:
    case MCPG_AGENT_EV_TIMER:
        break;
    case MCPG_AGENT_EV_MSG:
        MCPG_TRY(mcpg__down_unpack(buf, len, arena, msg));
        e->u.msg = msg;
        return MCPG_OK;
    case MCPG_AGENT_EV_VIEW_TOLD:
        MCPG_TRY(mcpg__down_unpack(buf, len, arena, msg));
        if (msg->kind != MCPG_DOWN_COMMIT && msg->kind != MCPG_DOWN_ABORT) return MCPG_CORRUPT;
        e->u.view_told = msg;
        return MCPG_OK;
    case MCPG_AGENT_EV_LINK:
        e->u.link.rank.v = mcpg__get_u32(&in);
        e->u.link.inc = get_inc(&in);
        e->u.link.state = mcpg__get_u8(&in);
        e->u.link.check_id = mcpg__get_u64(&in);
        break;
    case MCPG_AGENT_EV_DEATH:
        e->u.death.rank.v = mcpg__get_u32(&in);
        e->u.death.inc = get_inc(&in);
        e->u.death.proof = mcpg__get_u8(&in);
        break;
    case MCPG_AGENT_EV_OP_FAILED:
        ok = decode_op_failed(&in, arena, &e->u.op_failed);
        break;
    case MCPG_AGENT_EV_HELD:
        e->u.held.gid.v = mcpg__get_u32(&in);
        e->u.held.view = get_view(&in);
        e->u.held.next_seq = mcpg__get_u64(&in);
        e->u.held.steps = get_bool(&in);
        break;
    case MCPG_AGENT_EV_CALL_REGISTER:
        ok = decode_register(&in, arena, &e->u.call_register);
        break;
    case MCPG_AGENT_EV_CALL_JOIN:
    case MCPG_AGENT_EV_CALL_PROPOSE:
    case MCPG_AGENT_EV_CALL_SYNC:
    case MCPG_AGENT_EV_CALL_LEAVE:
    case MCPG_AGENT_EV_CALL_DETACH:
        decode_call(&in, e);
        break;
    case MCPG_AGENT_EV_VIEW_ASKED:
        e->u.view_asked.rank.v = mcpg__get_u32(&in);
        e->u.view_asked.inc = get_inc(&in);
        e->u.view_asked.gid.v = mcpg__get_u32(&in);
        e->u.view_asked.view = get_view(&in);
        break;
    case MCPG_AGENT_EV__COUNT:
        return MCPG_INVALID_ARGUMENT;
    }
    return ok && !in.bad && in.at == in.len ? MCPG_OK : MCPG_CORRUPT;
}

mcpg_status_t mcpg__agent_config_encode(const mcpg_agent_config_t *c, uint8_t *buf, size_t cap, size_t *len_out) {
    mcpg_put_t o = {.ptr = buf, .cap = cap};
    mcpg__put_u32(&o, c->rank.v);
    mcpg__put_u64(&o, c->session.v);
    mcpg__put_u64(&o, c->host_id);
    mcpg__put_u64(&o, (uint64_t)c->pid);
    put_bytes(&o, (mcpg_bytes_t){c->endpoint, c->endpoint_len});
    mcpg__put_u32(&o, c->max_ranks);
    mcpg__put_u32(&o, c->max_groups);
    mcpg__put_u32(&o, c->max_slots_total);
    mcpg__put_u32(&o, c->max_calls);
    mcpg__put_u32(&o, c->max_reports);
    mcpg__put_u64(&o, c->attach_timeout_us);
    mcpg__put_u64(&o, c->seed);
    put_timers(&o, &c->timers);
    if (o.bad) return MCPG_LIMIT;
    *len_out = o.len;
    return MCPG_OK;
}

mcpg_status_t mcpg__agent_config_decode(const uint8_t *buf, size_t len, mcpg_agent_config_t *out) {
    mcpg_get_t in = {.ptr = buf, .len = len};
    mcpg_agent_config_t c;
    memset(&c, 0, sizeof(c));
    c.rank.v = mcpg__get_u32(&in);
    c.session.v = mcpg__get_u64(&in);
    c.host_id = mcpg__get_u64(&in);
    c.pid = (int64_t)mcpg__get_u64(&in);
    mcpg_bytes_t endpoint = mcpg__get_bytes(&in);
    if (endpoint.len > MCPG_ENDPOINT_CAP) return MCPG_CORRUPT;
    if (endpoint.len != 0) memcpy(c.endpoint, endpoint.ptr, endpoint.len);
    c.endpoint_len = endpoint.len;
    c.max_ranks = mcpg__get_u32(&in);
    c.max_groups = mcpg__get_u32(&in);
    c.max_slots_total = mcpg__get_u32(&in);
    c.max_calls = mcpg__get_u32(&in);
    c.max_reports = mcpg__get_u32(&in);
    c.attach_timeout_us = mcpg__get_u64(&in);
    c.seed = mcpg__get_u64(&in);
    get_timers(&in, &c.timers);
    if (in.bad || in.at != in.len) return MCPG_CORRUPT;
    *out = c;
    return MCPG_OK;
}

static void effect_link(mcpg_put_t *o, const mcpg_agent_effect_t *f) {
    if (f->kind == MCPG_AGENT_FX_LINK_OPEN) {
        mcpg__put_u32(o, f->u.link_open.rank.v);
        put_inc(o, f->u.link_open.inc);
        mcpg__put_u64(o, f->u.link_open.host_id);
        mcpg__put_u64(o, (uint64_t)f->u.link_open.pid);
        put_bytes(o, f->u.link_open.endpoint);
    } else if (f->kind == MCPG_AGENT_FX_LINK_CLOSE) {
        mcpg__put_u32(o, f->u.link_close.rank.v);
        put_inc(o, f->u.link_close.inc);
        mcpg__put_u8(o, f->u.link_close.dead);
    } else {
        mcpg__put_u32(o, f->u.link_check.rank.v);
        put_inc(o, f->u.link_check.inc);
        mcpg__put_u64(o, f->u.link_check.check_id);
    }
}

static void effect_call_done(mcpg_put_t *o, const mcpg_agent_call_done_t *d) {
    mcpg__put_u64(o, d->call_id);
    mcpg__put_u32(o, (uint32_t)d->status);
    mcpg__put_u32(o, d->gid.v);
    mcpg__put_u32(o, d->slot.v);
    mcpg__put_u8(o, d->isolated);
    put_view(o, d->view);
    mcpg__put_u64(o, d->first_failed_seq);
    mcpg__put_u64(o, d->resume_seq);
    mcpg__put_u8(o, d->dropped_any);
    put_set(o, &d->dropped);
    put_set(o, &d->failed);
    put_bytes(o, d->text);
}

/* A message that cannot be packed is a bug of the machine; its kind alone then stands for it. */
static void effect_msg(mcpg_put_t *o, const mcpg_up_msg_t *up, const mcpg_down_msg_t *down) {
    size_t len = 0;
    size_t room = o->cap - o->len;
    mcpg_status_t s = up != NULL ? mcpg__up_pack(up, o->ptr + o->len, room, &len)
                                 : mcpg__down_pack(down, o->ptr + o->len, room, &len);
    if (s == MCPG_OK) o->len += len;
}

static void encode_effect(mcpg_put_t *o, const mcpg_agent_effect_t *f) {
    mcpg__put_u8(o, (uint8_t)f->kind);
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        effect_msg(o, f->u.send, NULL);
        break;
    case MCPG_AGENT_FX_CONNECT:
    case MCPG_AGENT_FX_DISCONNECT:
    case MCPG_AGENT_FX_STOP:
    case MCPG_AGENT_FX__COUNT:
        break;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        mcpg__put_u32(o, f->u.link_tell_view.rank.v);
        put_inc(o, f->u.link_tell_view.inc);
        effect_msg(o, NULL, f->u.link_tell_view.msg);
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        mcpg__put_u64(o, f->u.arm_timer.us);
        break;
    case MCPG_AGENT_FX_ATTACHED:
        mcpg__put_u32(o, (uint32_t)f->u.attached.status);
        put_bytes(o, f->u.attached.text);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
    case MCPG_AGENT_FX_LINK_CLOSE:
    case MCPG_AGENT_FX_LINK_CHECK:
        effect_link(o, f);
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        mcpg__put_u32(o, f->u.dp_group.gid.v);
        mcpg__put_u32(o, f->u.dp_group.slot.v);
        mcpg__put_u32(o, f->u.dp_group.capacity);
        mcpg__put_u8(o, f->u.dp_group.isolated);
        mcpg__put_u8(o, f->u.dp_group.manual);
        mcpg__put_u8(o, f->u.dp_group.no_auto_sync);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
    case MCPG_AGENT_FX_DP_RELEASE:
    case MCPG_AGENT_FX_LINK_ASK_VIEW: {
        const mcpg_agent_dp_view_t *v = f->kind == MCPG_AGENT_FX_DP_HOLD ? &f->u.dp_hold : &f->u.dp_release;
        if (f->kind == MCPG_AGENT_FX_LINK_ASK_VIEW) v = &f->u.link_ask_view;
        mcpg__put_u32(o, v->gid.v);
        put_view(o, v->view);
        break;
    }
    case MCPG_AGENT_FX_DP_INSTALL: {
        mcpg_down_msg_t m = {.kind = MCPG_DOWN_COMMIT, .u.commit = *f->u.dp_install};
        effect_msg(o, NULL, &m);
        break;
    }
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        mcpg__put_u32(o, f->u.dp_sync_fence.gid.v);
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        mcpg__put_u32(o, f->u.dp_group_gone.gid.v);
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        mcpg__put_u32(o, f->u.dp_resolve.gid.v);
        mcpg__put_u64(o, f->u.dp_resolve.report_id);
        mcpg__put_u32(o, (uint32_t)f->u.dp_resolve.status);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        effect_call_done(o, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        mcpg__put_u8(o, (uint8_t)f->u.notify.kind);
        mcpg__put_u32(o, f->u.notify.gid.v);
        put_view(o, f->u.notify.view);
        mcpg__put_u32(o, f->u.notify.rank.v);
        mcpg__put_u8(o, f->u.notify.state);
        break;
    }
}

uint32_t mcpg__agent_effects_crc(const mcpg_agent_effects_t *fx, uint8_t *scratch, size_t scratch_cap) {
    uint32_t crc = 0;
    for (uint32_t i = 0; i < fx->count; i++) {
        mcpg_put_t o = {.ptr = scratch, .cap = scratch_cap};
        encode_effect(&o, &fx->items[i]);
        crc = mcpg__crc32c(crc, scratch, o.len);
    }
    return crc;
}

const char *mcpg__agent_event_name(mcpg_agent_ev_kind_t kind) {
    static const char *const names[] = {
#define X(NAME, field, type) #NAME,
        MCPG_AGENT_EVENTS(X)
#undef X
    };
    return (unsigned)kind < MCPG_AGENT_EV__COUNT ? names[kind] : "?";
}

const char *mcpg__agent_effect_name(mcpg_agent_fx_kind_t kind) {
    static const char *const names[] = {
#define X(NAME, field, type) #NAME,
        MCPG_AGENT_EFFECTS(X)
#undef X
    };
    return (unsigned)kind < MCPG_AGENT_FX__COUNT ? names[kind] : "?";
}
