/* agent_host_codec.c: canonical bytes of the agent machine's events, config and effects. Never writes struct memory: padding would leak
 * into logs and make equal events differ.
 */
#include "agent/agent_host_codec.h"

#include <string.h>

#include "common/eventlog.h"

typedef struct {
    uint8_t *p;
    size_t used, cap;
    bool bad;
} out_t;

static void put(out_t *o, const void *data, size_t len) {
    if (o->bad || len > o->cap - o->used) {
        o->bad = true;
        return;
    }
    if (len != 0) memcpy(o->p + o->used, data, len);
    o->used += len;
}
static void put_uint(out_t *o, uint64_t v, size_t size) {
    uint8_t b[8];
    for (size_t i = 0; i < size; i++) b[i] = (uint8_t)(v >> (8 * i));
    put(o, b, size);
}
static void put8(out_t *o, uint8_t v) { put_uint(o, v, 1); }
static void put32(out_t *o, uint32_t v) { put_uint(o, v, 4); }
static void put64(out_t *o, uint64_t v) { put_uint(o, v, 8); }
static void put_inc(out_t *o, mcpg_incarnation_t v) {
    put64(o, v.term);
    put64(o, v.counter);
}
static void put_view(out_t *o, mcpg_view_id_t v) {
    put64(o, v.term);
    put64(o, v.epoch);
}
static void put_set(out_t *o, const mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) put64(o, s->w[i]);
}
static void put_bytes(out_t *o, mcpg_bytes_t b) {
    put32(o, b.len);
    put(o, b.ptr, b.len);
}
static void put_timers(out_t *o, const mcpg_timers_t *t) {
    put64(o, t->heartbeat_us);
    put64(o, t->offline_us);
    put64(o, t->ack_us);
    put64(o, t->ack_added_us);
    put64(o, t->reconcile_us);
    put64(o, t->coordinator_grace_us);
    put64(o, t->collective_timeout_us);
    put64(o, t->p2p_timeout_us);
}

typedef struct {
    const uint8_t *p;
    size_t left;
    bool bad;
} in_t;

static const uint8_t *get(in_t *in, size_t len) {
    if (in->bad || len > in->left) {
        in->bad = true;
        return NULL;
    }
    const uint8_t *at = in->p;
    in->p += len;
    in->left -= len;
    return at;
}
static uint64_t get_uint(in_t *in, size_t size) {
    const uint8_t *b = get(in, size);
    uint64_t v = 0;
    for (size_t i = 0; b != NULL && i < size; i++) v |= (uint64_t)b[i] << (8 * i);
    return v;
}
static uint8_t get8(in_t *in) { return (uint8_t)get_uint(in, 1); }
static bool get_bool(in_t *in) { return get_uint(in, 1) != 0; }
static uint32_t get32(in_t *in) { return (uint32_t)get_uint(in, 4); }
static uint64_t get64(in_t *in) { return get_uint(in, 8); }
static mcpg_incarnation_t get_inc(in_t *in) {
    uint64_t term = get64(in);
    return (mcpg_incarnation_t){term, get64(in)};
}
static mcpg_view_id_t get_view(in_t *in) {
    uint64_t term = get64(in);
    return (mcpg_view_id_t){term, get64(in)};
}
static void get_set(in_t *in, mcpg_rankset_t *s) {
    for (uint32_t i = 0; i < MCPG_RANKSET_WORDS; i++) s->w[i] = get64(in);
}
static mcpg_bytes_t get_bytes(in_t *in) {
    uint32_t len = get32(in);
    const uint8_t *p = get(in, len);
    return (mcpg_bytes_t){p, p == NULL ? 0 : len};
}
static void get_timers(in_t *in, mcpg_timers_t *t) {
    t->heartbeat_us = get64(in);
    t->offline_us = get64(in);
    t->ack_us = get64(in);
    t->ack_added_us = get64(in);
    t->reconcile_us = get64(in);
    t->coordinator_grace_us = get64(in);
    t->collective_timeout_us = get64(in);
    t->p2p_timeout_us = get64(in);
}

static void encode_register(out_t *o, const mcpg_agent_call_register_t *r) {
    put64(o, r->call_id);
    put_bytes(o, r->key);
    put_bytes(o, r->label);
    put_bytes(o, r->device_kind);
    put32(o, r->order_count);
    for (uint32_t i = 0; i < r->order_count; i++) put32(o, r->order[i]);
    put32(o, r->capacity);
    put8(o, r->is_extension);
    put8(o, r->manual);
    put8(o, r->no_auto_sync);
    put64(o, r->timeout_us);
}

static void encode_op_failed(out_t *o, const mcpg_agent_op_failed_ev_t *f) {
    put32(o, f->gid.v);
    put64(o, f->report_id);
    put64(o, f->seq);
    put32(o, f->failed_count);
    for (uint32_t i = 0; i < f->failed_count; i++) {
        put32(o, f->failed[i].slot.v);
        put32(o, f->failed[i].rank.v);
        put_inc(o, f->failed[i].inc);
    }
}

static void encode_call(out_t *o, const mcpg_agent_event_t *e) {
    if (e->kind == MCPG_AGENT_EV_CALL_JOIN) {
        put64(o, e->u.call_join.call_id);
        put32(o, e->u.call_join.gid.v);
        put64(o, e->u.call_join.timeout_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_PROPOSE) {
        const mcpg_agent_call_propose_t *p = &e->u.call_propose;
        put64(o, p->call_id);
        put32(o, p->gid.v);
        put_set(o, &p->activate);
        put_set(o, &p->deactivate);
        put64(o, p->expected_epoch);
        put64(o, p->wait_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_SYNC) {
        const mcpg_agent_call_sync_t *s = &e->u.call_sync;
        put64(o, s->call_id);
        put32(o, s->gid.v);
        put_set(o, &s->failed);
        put64(o, s->first_failed_seq);
        put64(o, s->timeout_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_LEAVE) {
        put64(o, e->u.call_leave.call_id);
        put32(o, e->u.call_leave.gid.v);
    } else {
        put64(o, e->u.call_detach.call_id);
    }
}

mcpg_status_t mcpg__agent_event_encode(const mcpg_agent_event_t *e, uint8_t *buf, size_t cap, size_t *len_out) {
    out_t o = {.p = buf, .cap = cap};
    switch (e->kind) {
    case MCPG_AGENT_EV_CONNECTED:
    case MCPG_AGENT_EV_DISCONNECTED:
    case MCPG_AGENT_EV_TIMER: break;
    case MCPG_AGENT_EV_MSG:
    case MCPG_AGENT_EV__COUNT: return MCPG_INVALID_ARGUMENT;
    case MCPG_AGENT_EV_LINK:
        put32(&o, e->u.link.rank.v);
        put_inc(&o, e->u.link.inc);
        put8(&o, e->u.link.state);
        put64(&o, e->u.link.check_id);
        break;
    case MCPG_AGENT_EV_DEATH:
        put32(&o, e->u.death.rank.v);
        put_inc(&o, e->u.death.inc);
        put8(&o, e->u.death.proof);
        break;
    case MCPG_AGENT_EV_OP_FAILED: encode_op_failed(&o, &e->u.op_failed); break;
    case MCPG_AGENT_EV_HELD:
        put32(&o, e->u.held.gid.v);
        put_view(&o, e->u.held.view);
        put64(&o, e->u.held.next_seq);
        break;
    case MCPG_AGENT_EV_CALL_REGISTER: encode_register(&o, &e->u.call_register); break;
    case MCPG_AGENT_EV_CALL_JOIN:
    case MCPG_AGENT_EV_CALL_PROPOSE:
    case MCPG_AGENT_EV_CALL_SYNC:
    case MCPG_AGENT_EV_CALL_LEAVE:
    case MCPG_AGENT_EV_CALL_DETACH: encode_call(&o, e); break;
    }
    if (o.bad) return MCPG_LIMIT;
    *len_out = o.used;
    return MCPG_OK;
}

static bool decode_register(in_t *in, mcpg_arena_t *arena, mcpg_agent_call_register_t *r) {
    r->call_id = get64(in);
    r->key = get_bytes(in);
    r->label = get_bytes(in);
    r->device_kind = get_bytes(in);
    r->order_count = get32(in);
    if (r->order_count > MCPG_MAX_RANKS) return false;
    uint32_t *order = mcpg__arena_take(arena, (size_t)r->order_count * sizeof(*order) + sizeof(*order));
    if (order == NULL) return false;
    for (uint32_t i = 0; i < r->order_count; i++) order[i] = get32(in);
    r->order = order;
    r->capacity = get32(in);
    r->is_extension = get_bool(in);
    r->manual = get_bool(in);
    r->no_auto_sync = get_bool(in);
    r->timeout_us = get64(in);
    return true;
}

static bool decode_op_failed(in_t *in, mcpg_arena_t *arena, mcpg_agent_op_failed_ev_t *f) {
    f->gid.v = get32(in);
    f->report_id = get64(in);
    f->seq = get64(in);
    f->failed_count = get32(in);
    if (f->failed_count > MCPG_MAX_RANKS) return false;
    mcpg_member_t *failed = mcpg__arena_take(arena, ((size_t)f->failed_count + 1) * sizeof(*failed));
    if (failed == NULL) return false;
    for (uint32_t i = 0; i < f->failed_count; i++) {
        failed[i].slot.v = get32(in);
        failed[i].rank.v = get32(in);
        failed[i].inc = get_inc(in);
    }
    f->failed = failed;
    return true;
}

static void decode_call(in_t *in, mcpg_agent_event_t *e) {
    if (e->kind == MCPG_AGENT_EV_CALL_JOIN) {
        e->u.call_join.call_id = get64(in);
        e->u.call_join.gid.v = get32(in);
        e->u.call_join.timeout_us = get64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_PROPOSE) {
        mcpg_agent_call_propose_t *p = &e->u.call_propose;
        p->call_id = get64(in);
        p->gid.v = get32(in);
        get_set(in, &p->activate);
        get_set(in, &p->deactivate);
        p->expected_epoch = get64(in);
        p->wait_us = get64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_SYNC) {
        mcpg_agent_call_sync_t *s = &e->u.call_sync;
        s->call_id = get64(in);
        s->gid.v = get32(in);
        get_set(in, &s->failed);
        s->first_failed_seq = get64(in);
        s->timeout_us = get64(in);
    } else if (e->kind == MCPG_AGENT_EV_CALL_LEAVE) {
        e->u.call_leave.call_id = get64(in);
        e->u.call_leave.gid.v = get32(in);
    } else {
        e->u.call_detach.call_id = get64(in);
    }
}

mcpg_status_t mcpg__agent_event_decode(const uint8_t *buf, size_t len, mcpg_arena_t *arena, mcpg_down_msg_t *msg, mcpg_agent_event_t *e) {
    in_t in = {.p = buf, .left = len};
    bool ok = true;
    switch (e->kind) {
    case MCPG_AGENT_EV_CONNECTED:
    case MCPG_AGENT_EV_DISCONNECTED:
    case MCPG_AGENT_EV_TIMER: break;
    case MCPG_AGENT_EV_MSG:
        MCPG_TRY(mcpg__down_unpack(buf, len, arena, msg));
        e->u.msg = msg;
        return MCPG_OK;
    case MCPG_AGENT_EV_LINK:
        e->u.link.rank.v = get32(&in);
        e->u.link.inc = get_inc(&in);
        e->u.link.state = get8(&in);
        e->u.link.check_id = get64(&in);
        break;
    case MCPG_AGENT_EV_DEATH:
        e->u.death.rank.v = get32(&in);
        e->u.death.inc = get_inc(&in);
        e->u.death.proof = get8(&in);
        break;
    case MCPG_AGENT_EV_OP_FAILED: ok = decode_op_failed(&in, arena, &e->u.op_failed); break;
    case MCPG_AGENT_EV_HELD:
        e->u.held.gid.v = get32(&in);
        e->u.held.view = get_view(&in);
        e->u.held.next_seq = get64(&in);
        break;
    case MCPG_AGENT_EV_CALL_REGISTER: ok = decode_register(&in, arena, &e->u.call_register); break;
    case MCPG_AGENT_EV_CALL_JOIN:
    case MCPG_AGENT_EV_CALL_PROPOSE:
    case MCPG_AGENT_EV_CALL_SYNC:
    case MCPG_AGENT_EV_CALL_LEAVE:
    case MCPG_AGENT_EV_CALL_DETACH: decode_call(&in, e); break;
    case MCPG_AGENT_EV__COUNT: return MCPG_INVALID_ARGUMENT;
    }
    return ok && !in.bad && in.left == 0 ? MCPG_OK : MCPG_CORRUPT;
}

mcpg_status_t mcpg__agent_config_encode(const mcpg_agent_config_t *c, uint8_t *buf, size_t cap, size_t *len_out) {
    out_t o = {.p = buf, .cap = cap};
    put32(&o, c->rank.v);
    put64(&o, c->session.v);
    put64(&o, c->host_id);
    put64(&o, (uint64_t)c->pid);
    put_bytes(&o, (mcpg_bytes_t){c->endpoint, c->endpoint_len});
    put32(&o, c->max_ranks);
    put32(&o, c->max_groups);
    put32(&o, c->max_slots_total);
    put32(&o, c->max_calls);
    put32(&o, c->max_reports);
    put64(&o, c->attach_timeout_us);
    put64(&o, c->seed);
    put_timers(&o, &c->timers);
    if (o.bad) return MCPG_LIMIT;
    *len_out = o.used;
    return MCPG_OK;
}

mcpg_status_t mcpg__agent_config_decode(const uint8_t *buf, size_t len, mcpg_agent_config_t *out) {
    in_t in = {.p = buf, .left = len};
    mcpg_agent_config_t c;
    memset(&c, 0, sizeof(c));
    c.rank.v = get32(&in);
    c.session.v = get64(&in);
    c.host_id = get64(&in);
    c.pid = (int64_t)get64(&in);
    mcpg_bytes_t endpoint = get_bytes(&in);
    if (endpoint.len > MCPG_ENDPOINT_CAP) return MCPG_CORRUPT;
    if (endpoint.len != 0) memcpy(c.endpoint, endpoint.ptr, endpoint.len);
    c.endpoint_len = endpoint.len;
    c.max_ranks = get32(&in);
    c.max_groups = get32(&in);
    c.max_slots_total = get32(&in);
    c.max_calls = get32(&in);
    c.max_reports = get32(&in);
    c.attach_timeout_us = get64(&in);
    c.seed = get64(&in);
    get_timers(&in, &c.timers);
    if (in.bad || in.left != 0) return MCPG_CORRUPT;
    *out = c;
    return MCPG_OK;
}

static void effect_link(out_t *o, const mcpg_agent_effect_t *f) {
    if (f->kind == MCPG_AGENT_FX_LINK_OPEN) {
        put32(o, f->u.link_open.rank.v);
        put_inc(o, f->u.link_open.inc);
        put64(o, f->u.link_open.host_id);
        put64(o, (uint64_t)f->u.link_open.pid);
        put_bytes(o, f->u.link_open.endpoint);
    } else if (f->kind == MCPG_AGENT_FX_LINK_CLOSE) {
        put32(o, f->u.link_close.rank.v);
        put_inc(o, f->u.link_close.inc);
        put8(o, f->u.link_close.dead);
    } else {
        put32(o, f->u.link_check.rank.v);
        put_inc(o, f->u.link_check.inc);
        put64(o, f->u.link_check.check_id);
    }
}

static void effect_call_done(out_t *o, const mcpg_agent_call_done_t *d) {
    put64(o, d->call_id);
    put32(o, (uint32_t)d->status);
    put32(o, d->gid.v);
    put32(o, d->slot.v);
    put8(o, d->isolated);
    put_view(o, d->view);
    put64(o, d->first_failed_seq);
    put64(o, d->resume_seq);
    put8(o, d->dropped_any);
    put_set(o, &d->dropped);
    put_set(o, &d->failed);
    put_bytes(o, d->text);
}

/* A message that cannot be packed is a bug of the machine; its kind alone then stands for it. */
static void effect_msg(out_t *o, const mcpg_up_msg_t *up, const mcpg_down_msg_t *down) {
    size_t len = 0;
    size_t room = o->cap - o->used;
    mcpg_status_t s = up != NULL ? mcpg__up_pack(up, o->p + o->used, room, &len) : mcpg__down_pack(down, o->p + o->used, room, &len);
    if (s == MCPG_OK) o->used += len;
}

static void encode_effect(out_t *o, const mcpg_agent_effect_t *f) {
    put8(o, (uint8_t)f->kind);
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND: effect_msg(o, f->u.send, NULL); break;
    case MCPG_AGENT_FX_CONNECT:
    case MCPG_AGENT_FX_DISCONNECT:
    case MCPG_AGENT_FX_STOP:
    case MCPG_AGENT_FX__COUNT: break;
    case MCPG_AGENT_FX_ARM_TIMER: put64(o, f->u.arm_timer.us); break;
    case MCPG_AGENT_FX_ATTACHED:
        put32(o, (uint32_t)f->u.attached.status);
        put_bytes(o, f->u.attached.text);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
    case MCPG_AGENT_FX_LINK_CLOSE:
    case MCPG_AGENT_FX_LINK_CHECK: effect_link(o, f); break;
    case MCPG_AGENT_FX_DP_GROUP:
        put32(o, f->u.dp_group.gid.v);
        put32(o, f->u.dp_group.slot.v);
        put32(o, f->u.dp_group.capacity);
        put8(o, f->u.dp_group.isolated);
        put8(o, f->u.dp_group.manual);
        put8(o, f->u.dp_group.no_auto_sync);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
    case MCPG_AGENT_FX_DP_RELEASE: {
        const mcpg_agent_dp_view_t *v = f->kind == MCPG_AGENT_FX_DP_HOLD ? &f->u.dp_hold : &f->u.dp_release;
        put32(o, v->gid.v);
        put_view(o, v->view);
        break;
    }
    case MCPG_AGENT_FX_DP_INSTALL: {
        mcpg_down_msg_t m = {.kind = MCPG_DOWN_COMMIT, .u.commit = *f->u.dp_install};
        effect_msg(o, NULL, &m);
        break;
    }
    case MCPG_AGENT_FX_DP_SYNC_FENCE: put32(o, f->u.dp_sync_fence.gid.v); break;
    case MCPG_AGENT_FX_DP_GROUP_GONE: put32(o, f->u.dp_group_gone.gid.v); break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        put32(o, f->u.dp_resolve.gid.v);
        put64(o, f->u.dp_resolve.report_id);
        put32(o, (uint32_t)f->u.dp_resolve.status);
        break;
    case MCPG_AGENT_FX_CALL_DONE: effect_call_done(o, f->u.call_done); break;
    case MCPG_AGENT_FX_NOTIFY:
        put8(o, (uint8_t)f->u.notify.kind);
        put32(o, f->u.notify.gid.v);
        put_view(o, f->u.notify.view);
        put32(o, f->u.notify.rank.v);
        put8(o, f->u.notify.state);
        break;
    }
}

uint32_t mcpg__agent_effects_crc(const mcpg_agent_effects_t *fx, uint8_t *scratch, size_t scratch_cap) {
    uint32_t crc = 0;
    for (uint32_t i = 0; i < fx->count; i++) {
        out_t o = {.p = scratch, .cap = scratch_cap};
        encode_effect(&o, &fx->items[i]);
        crc = mcpg__crc32c(crc, scratch, o.used);
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
