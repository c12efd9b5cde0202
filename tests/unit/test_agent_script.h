/* test_agent_script.h: one agent machine driven by lines of text, its effects compared with lines of text.
 *
 * Incarnations and epochs are written as their counters (the term is 1). ARM_TIMER is left out of the expected line; "armed" shows it and
 * "fire" lets it come. After every line the machine's invariants are checked. It must never be included by anything but test_agent_*.c.
 */
#ifndef MCPG_TEST_AGENT_SCRIPT_H
#define MCPG_TEST_AGENT_SCRIPT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent.h"

typedef struct {
    const char *event, *effects;
} line_t;

typedef struct {
    mcpg_agent_t *agent;
    void *mem;
    mcpg_agent_effects_t fx;
    mcpg_time_t now;
    uint64_t armed;
    char out[4096];
    size_t out_len;
    mcpg_member_t members[64];
    uint32_t order[64];
} script_t;

static inline mcpg_agent_config_t script_config(void) {
    mcpg_agent_config_t config = {.rank = {1},
                                  .session = {77},
                                  .host_id = 5,
                                  .pid = 100,
                                  .endpoint = "me",
                                  .endpoint_len = 2,
                                  .max_ranks = 8,
                                  .max_groups = 2,
                                  .max_slots_total = 8,
                                  .max_calls = 4,
                                  .max_reports = 2,
                                  .attach_timeout_us = 30000000,
                                  .seed = 1};
    config.timers = (mcpg_timers_t){.heartbeat_us = 200000,
                                    .offline_us = 5000000,
                                    .ack_us = 5000000,
                                    .ack_added_us = 1000000,
                                    .reconcile_us = 2000000,
                                    .coordinator_grace_us = 30000000,
                                    .collective_timeout_us = 1000000,
                                    .p2p_timeout_us = 10000000};
    return config;
}

static inline void script_open(script_t *t, const mcpg_agent_config_t *config) {
    memset(t, 0, sizeof(*t));
    size_t size = mcpg_agent_size(config), arena;
    uint32_t items;
    t->mem = calloc(1, size);
    assert_non_null(t->mem);
    assert_int_equal(mcpg_agent_init(t->mem, size, config, &t->agent), MCPG_OK);
    mcpg_agent_effects_worst(config, &items, &arena);
    t->fx.items = calloc(items, sizeof(*t->fx.items));
    t->fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
    t->fx.cap = items;
    t->fx.arena_cap = arena;
    t->now.us = 1000;
}

static inline void script_close(script_t *t) {
    free(t->fx.items);
    free(t->fx.arena);
    free(t->mem);
}

/* ---- effects to text ---- */

__attribute__((format(printf, 2, 3))) static inline void say(script_t *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(t->out + t->out_len, sizeof(t->out) - t->out_len, fmt, args);
    va_end(args);
    assert_true(n >= 0 && (size_t)n < sizeof(t->out) - t->out_len);
    t->out_len += (size_t)n;
}

#define U(x) ((unsigned long long)(x))

static inline void say_members(script_t *t, const mcpg_member_t *m, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) say(t, " %u:%u:%llu", m[i].slot.v, m[i].rank.v, U(m[i].inc.counter));
}

static inline void say_text(script_t *t, mcpg_bytes_t text) {
    if (text.len > 0) say(t, " '%.*s'", (int)text.len, (const char *)text.ptr);
}

static inline const char *status_name(mcpg_status_t status) {
    switch (status) {
#define X(NAME, value, class, text)                                                                                                        \
    case MCPG_##NAME: return #NAME;
#include "common/statuses.def"
#undef X
    }
    return "?";
}

static inline mcpg_status_t status_of(const char *name) {
#define X(NAME, value, class, text)                                                                                                        \
    if (strcmp(name, #NAME) == 0) return MCPG_##NAME;
#include "common/statuses.def"
#undef X
    fail_msg("no status %s", name);
    return MCPG_INTERNAL;
}

static inline void say_up(script_t *t, const mcpg_up_msg_t *m) {
    switch (m->kind) {
    case MCPG_UP_ATTACH:
        say(t, "ATTACH %u prev %llu", m->u.attach.rank.v, U(m->u.attach.prev_inc.counter));
        for (uint32_t i = 0; i < m->u.attach.report_count; i++) {
            const mcpg_group_report_t *r = &m->u.attach.reports[i];
            say(t, " g%u:%llu:%llu:%llu", r->gid.v, U(r->committed.epoch), U(r->acked.epoch), U(r->next_seq));
        }
        break;
    case MCPG_UP_HEARTBEAT: say(t, "HEARTBEAT%s", m->u.heartbeat.digest == 0 ? " 0" : ""); break;
    case MCPG_UP_LINK:
        say(t, "LINK %u:%llu %s", m->u.link.peer.v, U(m->u.link.peer_inc.counter), m->u.link.state == MCPG_LINK_UP ? "up" : "lost");
        if (m->u.link.check_id != 0) say(t, " #%llu", U(m->u.link.check_id));
        break;
    case MCPG_UP_DEATH: say(t, "DEATH %u:%llu", m->u.death.rank.v, U(m->u.death.inc.counter)); break;
    case MCPG_UP_REGISTER:
        say(t, "REGISTER %llx cap %u%s%s%s order", U(m->u.register_group.call_id), m->u.register_group.capacity,
            m->u.register_group.is_extension ? " ext" : "", m->u.register_group.manual ? " manual" : "",
            m->u.register_group.no_auto_sync ? " nosync" : "");
        for (uint32_t i = 0; i < m->u.register_group.order_count; i++) say(t, " %u", m->u.register_group.order[i]);
        break;
    case MCPG_UP_JOIN: say(t, "JOIN %llu g%u", U(m->u.join.call_id), m->u.join.gid.v); break;
    case MCPG_UP_PROPOSE:
        say(t, "PROPOSE %llu g%u +%llx -%llx wait %llu", U(m->u.propose.call_id), m->u.propose.gid.v, U(m->u.propose.activate.w[0]),
            U(m->u.propose.deactivate.w[0]), U(m->u.propose.wait_us));
        say_members(t, m->u.propose.stamps, m->u.propose.stamp_count);
        break;
    case MCPG_UP_ACK: say(t, "ACK g%u:%llu @%llu", m->u.ack.gid.v, U(m->u.ack.view.epoch), U(m->u.ack.next_seq)); break;
    case MCPG_UP_COMMIT_ACK: say(t, "COMMIT_ACK g%u:%llu", m->u.commit_ack.gid.v, U(m->u.commit_ack.view.epoch)); break;
    case MCPG_UP_OP_FAILED:
        say(t, "OP_FAILED g%u #%llu @%llu", m->u.op_failed.gid.v, U(m->u.op_failed.report_id), U(m->u.op_failed.seq));
        say_members(t, m->u.op_failed.failed, m->u.op_failed.failed_count);
        break;
    case MCPG_UP_SYNC_ENTER:
        say(t, "SYNC_ENTER %llu g%u %llx @%llu", U(m->u.sync_enter.call_id), m->u.sync_enter.gid.v, U(m->u.sync_enter.failed.w[0]),
            U(m->u.sync_enter.first_failed_seq));
        break;
    case MCPG_UP_LEAVE_GROUP: say(t, "LEAVE_GROUP g%u", m->u.leave_group.gid.v); break;
    case MCPG_UP_DETACH: say(t, "DETACH"); break;
    case MCPG_UP__COUNT: fail(); break;
    }
}

static inline void say_done(script_t *t, const mcpg_agent_call_done_t *d) {
    say(t, "DONE %llu %s", U(d->call_id), status_name(d->status));
    if (d->gid.v != 0) say(t, " g%u slot %u%s", d->gid.v, d->slot.v, d->isolated ? " isolated" : "");
    if (d->view.epoch != 0) say(t, " :%llu", U(d->view.epoch));
    if (d->resume_seq != 0) say(t, " failed %llx first %llu resume %llu", U(d->failed.w[0]), U(d->first_failed_seq), U(d->resume_seq));
    if (d->dropped_any) say(t, " dropped %llx", U(d->dropped.w[0]));
    say_text(t, d->text);
}

static inline void say_install(script_t *t, const mcpg_down_commit_t *c) {
    say(t, "INSTALL g%u:%llu @%llu", c->gid.v, U(c->view.id.epoch), U(c->switch_seq));
    say_members(t, c->view.active, c->view.active_count);
    for (uint32_t i = 0; i < c->leave_count; i++) say(t, " leave %u@%llu", c->leaves[i].slot.v, U(c->leaves[i].leave_seq));
    if (c->sync) say(t, " sync");
}

static inline void say_notify(script_t *t, const mcpg_agent_notify_t *n) {
    switch (n->kind) {
    case MCPG_EVENT_VIEW: say(t, "NOTIFY view g%u:%llu", n->gid.v, U(n->view.epoch)); break;
    case MCPG_EVENT_RANK_STATE: say(t, "NOTIFY rank %u %u", n->rank.v, n->state); break;
    case MCPG_EVENT_COORDINATOR_LOST: say(t, "NOTIFY lost"); break;
    case MCPG_EVENT_COORDINATOR_BACK: say(t, "NOTIFY back"); break;
    }
}

static inline void say_effect(script_t *t, const mcpg_agent_effect_t *f) {
    if (f->kind == MCPG_AGENT_FX_ARM_TIMER) {
        t->armed = f->u.arm_timer.us;
        return;
    }
    if (t->out_len > 0) say(t, "; ");
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND: say_up(t, f->u.send); break;
    case MCPG_AGENT_FX_CONNECT: say(t, "CONNECT"); break;
    case MCPG_AGENT_FX_DISCONNECT: say(t, "DISCONNECT"); break;
    case MCPG_AGENT_FX_ARM_TIMER: break;
    case MCPG_AGENT_FX_ATTACHED:
        say(t, "ATTACHED %s", status_name(f->u.attached.status));
        say_text(t, f->u.attached.text);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
        say(t, "OPEN %u:%llu %.*s", f->u.link_open.rank.v, U(f->u.link_open.inc.counter), (int)f->u.link_open.endpoint.len,
            (const char *)f->u.link_open.endpoint.ptr);
        break;
    case MCPG_AGENT_FX_LINK_CLOSE:
        say(t, "CLOSE %u:%llu%s", f->u.link_close.rank.v, U(f->u.link_close.inc.counter), f->u.link_close.dead ? " dead" : "");
        break;
    case MCPG_AGENT_FX_LINK_CHECK:
        say(t, "CHECK %u:%llu #%llu", f->u.link_check.rank.v, U(f->u.link_check.inc.counter), U(f->u.link_check.check_id));
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        say(t, "GROUP g%u slot %u cap %u%s%s%s", f->u.dp_group.gid.v, f->u.dp_group.slot.v, f->u.dp_group.capacity,
            f->u.dp_group.isolated ? " isolated" : "", f->u.dp_group.manual ? " manual" : "", f->u.dp_group.no_auto_sync ? " nosync" : "");
        break;
    case MCPG_AGENT_FX_DP_HOLD: say(t, "HOLD g%u:%llu", f->u.dp_hold.gid.v, U(f->u.dp_hold.view.epoch)); break;
    case MCPG_AGENT_FX_DP_RELEASE: say(t, "RELEASE g%u:%llu", f->u.dp_release.gid.v, U(f->u.dp_release.view.epoch)); break;
    case MCPG_AGENT_FX_DP_INSTALL: say_install(t, f->u.dp_install); break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE: say(t, "FENCE g%u", f->u.dp_sync_fence.gid.v); break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        say(t, "RESOLVE g%u #%llu %s", f->u.dp_resolve.gid.v, U(f->u.dp_resolve.report_id), status_name(f->u.dp_resolve.status));
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE: say(t, "GONE g%u", f->u.dp_group_gone.gid.v); break;
    case MCPG_AGENT_FX_CALL_DONE: say_done(t, f->u.call_done); break;
    case MCPG_AGENT_FX_NOTIFY: say_notify(t, &f->u.notify); break;
    case MCPG_AGENT_FX_STOP: say(t, "STOP"); break;
    case MCPG_AGENT_FX__COUNT: fail(); break;
    }
}

/* ---- text to events ---- */

static inline uint64_t number(const char **at) {
    char *end = NULL;
    uint64_t value = strtoull(*at, &end, 0);
    if (end == *at) fail_msg("a number is missing at '%s'", *at);
    *at = end;
    return value;
}

static inline bool word(const char **at, char *out, size_t cap) {
    while (**at == ' ') (*at)++;
    size_t n = strcspn(*at, " ");
    if (n == 0) return false;
    assert_true(n < cap);
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return true;
}

/* "slot:rank:inc ..." until the end or a word of letters. */
static inline uint32_t read_members(const char **at, mcpg_member_t *out) {
    uint32_t count = 0;
    while (**at == ' ') (*at)++;
    while (**at >= '0' && **at <= '9') {
        mcpg_member_t *m = &out[count++];
        m->slot.v = (uint32_t)number(at);
        (*at)++;
        m->rank.v = (uint32_t)number(at);
        (*at)++;
        m->inc = (mcpg_incarnation_t){1, number(at)};
        if (m->inc.counter == 0) m->inc.term = 0;
        while (**at == ' ') (*at)++;
    }
    return count;
}

static inline void step(script_t *t, const mcpg_agent_event_t *event) {
    mcpg_agent_effects_reset(&t->fx);
    uint64_t before = mcpg_agent_digest(t->agent);
    mcpg_status_t status = mcpg_agent_step(t->agent, event, &t->fx);
    if (status != MCPG_OK) {
        assert_int_equal(t->fx.count, 0);
        assert_true(mcpg_agent_digest(t->agent) == before);
        say(t, "rejected %s", status_name(status));
    }
    for (uint32_t i = 0; i < t->fx.count; i++) say_effect(t, &t->fx.items[i]);
    const char *fault = mcpg_agent_check(t->agent);
    if (fault != NULL) fail_msg("%s", fault);
}

static inline void deliver(script_t *t, const mcpg_down_msg_t *msg) {
    mcpg_agent_event_t e = {.now = t->now, .kind = MCPG_AGENT_EV_MSG, .u.msg = msg};
    step(t, &e);
}

static inline mcpg_view_id_t view_id(uint64_t epoch) { return (mcpg_view_id_t){1, epoch}; }

/* states full|delta CHECK rank:inc:state[d][s][n] ...   d: proved dead, s: suspect, n: no endpoint */
static inline void run_states(script_t *t, const char *at) {
    static const uint8_t endpoint[] = "ep";
    mcpg_rank_info_t ranks[16];
    char kind[8];
    memset(ranks, 0, sizeof(ranks));
    assert_true(word(&at, kind, sizeof(kind)));
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_RANK_STATES};
    m.u.rank_states.full = strcmp(kind, "full") == 0;
    m.u.rank_states.check_id = number(&at);
    m.u.rank_states.ranks = ranks;
    while (*at == ' ') at++;
    while (*at != '\0') {
        mcpg_rank_info_t *r = &ranks[m.u.rank_states.count++];
        r->rank.v = (uint32_t)number(&at);
        at++;
        r->inc = (mcpg_incarnation_t){1, number(&at)};
        at++;
        r->state = (uint8_t)number(&at);
        r->endpoint = (mcpg_bytes_t){endpoint, 2};
        for (; *at != '\0' && *at != ' '; at++) {
            if (*at == 'd') r->dead = true;
            if (*at == 's') r->suspect = true;
            if (*at == 'n') r->endpoint.len = 0;
        }
        while (*at == ' ') at++;
    }
    deliver(t, &m);
}

/* members GID slot:rank:inc ... : awaiting in every slot that has an incarnation */
static inline void run_members(script_t *t, const char *at) {
    mcpg_group_member_t members[16];
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_MEMBERS};
    m.u.members.gid.v = (uint32_t)number(&at);
    m.u.members.count = read_members(&at, t->members);
    m.u.members.members = members;
    for (uint32_t i = 0; i < m.u.members.count; i++)
        members[i] = (mcpg_group_member_t){.slot = t->members[i].slot,
                                           .rank = t->members[i].rank,
                                           .inc = t->members[i].inc,
                                           .awaiting = t->members[i].inc.counter != 0};
    deliver(t, &m);
}

/* commit GID EPOCH SWITCH slot:rank:inc ... [leave SLOT SEQ] [sync FAILED FIRST] */
static inline void run_commit(script_t *t, const char *at) {
    mcpg_leave_t leaves[4];
    char what[8];
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_COMMIT};
    mcpg_down_commit_t *c = &m.u.commit;
    c->gid.v = (uint32_t)number(&at);
    c->view.id = view_id(number(&at));
    c->switch_seq = number(&at);
    c->view.active_count = read_members(&at, t->members);
    c->view.active = t->members;
    c->leaves = leaves;
    while (word(&at, what, sizeof(what))) {
        if (strcmp(what, "leave") == 0) {
            leaves[c->leave_count].slot.v = (uint32_t)number(&at);
            leaves[c->leave_count++].leave_seq = number(&at);
        } else {
            c->sync = true;
            c->sync_failed.w[0] = number(&at);
            c->sync_first_failed_seq = number(&at);
        }
    }
    deliver(t, &m);
}

static inline bool run_answer(script_t *t, const char *verb, const char *at) {
    static const uint8_t why[] = "why";
    char name[32];
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    if (strcmp(verb, "welcome") == 0) { /* TERM COORDINATOR INC */
        m.kind = MCPG_DOWN_WELCOME;
        m.u.welcome.term = number(&at);
        m.u.welcome.coordinator_id = number(&at);
        m.u.welcome.inc = (mcpg_incarnation_t){1, number(&at)};
    } else if (strcmp(verb, "refused") == 0) {
        m.kind = MCPG_DOWN_REFUSED;
        assert_true(word(&at, name, sizeof(name)));
        m.u.refused.status = status_of(name);
        m.u.refused.text = (mcpg_bytes_t){why, 3};
    } else if (strcmp(verb, "registered") == 0) { /* CALL STATUS GID SLOT CAP [i][m][n] */
        m.kind = MCPG_DOWN_REGISTERED;
        m.u.registered.call_id = number(&at);
        assert_true(word(&at, name, sizeof(name)));
        m.u.registered.status = status_of(name);
        if (m.u.registered.status != MCPG_OK) m.u.registered.text = (mcpg_bytes_t){why, 3};
        m.u.registered.gid.v = (uint32_t)number(&at);
        m.u.registered.slot.v = (uint32_t)number(&at);
        m.u.registered.capacity = (uint32_t)number(&at);
        m.u.registered.isolated = strchr(at, 'i') != NULL;
        m.u.registered.manual = strchr(at, 'm') != NULL;
        m.u.registered.no_auto_sync = strchr(at, 'n') != NULL;
    } else if (strcmp(verb, "reply") == 0) { /* CALL STATUS EPOCH [DROPPED] */
        m.kind = MCPG_DOWN_REPLY;
        m.u.reply.call_id = number(&at);
        assert_true(word(&at, name, sizeof(name)));
        m.u.reply.status = status_of(name);
        if (m.u.reply.status != MCPG_OK) m.u.reply.text = (mcpg_bytes_t){why, 3};
        m.u.reply.epoch = number(&at);
        if (*at == ' ') m.u.reply.dropped.w[0] = number(&at);
        m.u.reply.dropped_any = m.u.reply.dropped.w[0] != 0;
    } else if (strcmp(verb, "hb") == 0) {
        m.kind = MCPG_DOWN_HEARTBEAT_REPLY;
    } else {
        return false;
    }
    deliver(t, &m);
    return true;
}

static inline bool run_msg(script_t *t, const char *verb, const char *at) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    if (strcmp(verb, "states") == 0) return run_states(t, at), true;
    if (strcmp(verb, "members") == 0) return run_members(t, at), true;
    if (strcmp(verb, "commit") == 0) return run_commit(t, at), true;
    if (strcmp(verb, "prepare") == 0) { /* GID EPOCH slot:rank:inc ... */
        m.kind = MCPG_DOWN_PREPARE;
        m.u.prepare.gid.v = (uint32_t)number(&at);
        m.u.prepare.view.id = view_id(number(&at));
        m.u.prepare.view.active_count = read_members(&at, t->members);
        m.u.prepare.view.active = t->members;
    } else if (strcmp(verb, "abort") == 0) {
        m.kind = MCPG_DOWN_ABORT;
        m.u.abort.gid.v = (uint32_t)number(&at);
        m.u.abort.view = view_id(number(&at));
    } else if (strcmp(verb, "reconciled") == 0) { /* GID REPORT CLEARED */
        m.kind = MCPG_DOWN_RECONCILED;
        m.u.reconciled.gid.v = (uint32_t)number(&at);
        m.u.reconciled.report_id = number(&at);
        m.u.reconciled.cleared.w[0] = number(&at);
    } else if (strcmp(verb, "syncing") == 0) {
        m.kind = MCPG_DOWN_SYNCING;
        m.u.syncing.gid.v = (uint32_t)number(&at);
    } else {
        return run_answer(t, verb, at);
    }
    deliver(t, &m);
    return true;
}

/* register CALL CAP flags(e m n -) TIMEOUT rank ... */
static inline void read_register(script_t *t, const char *at, mcpg_agent_call_register_t *r) {
    static const uint8_t kind[] = "cpu";
    char flags[8];
    r->call_id = number(&at);
    r->capacity = (uint32_t)number(&at);
    assert_true(word(&at, flags, sizeof(flags)));
    r->is_extension = strchr(flags, 'e') != NULL;
    r->manual = strchr(flags, 'm') != NULL;
    r->no_auto_sync = strchr(flags, 'n') != NULL;
    r->timeout_us = number(&at);
    r->device_kind = (mcpg_bytes_t){kind, 3};
    r->order = t->order;
    while (*at != '\0') t->order[r->order_count++] = (uint32_t)number(&at);
}

static inline bool read_call(script_t *t, const char *verb, const char *at, mcpg_agent_event_t *e) {
    if (strcmp(verb, "register") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_REGISTER;
        read_register(t, at, &e->u.call_register);
    } else if (strcmp(verb, "join") == 0) { /* CALL GID TIMEOUT */
        e->kind = MCPG_AGENT_EV_CALL_JOIN;
        e->u.call_join.call_id = number(&at);
        e->u.call_join.gid.v = (uint32_t)number(&at);
        e->u.call_join.timeout_us = number(&at);
    } else if (strcmp(verb, "propose") == 0) { /* CALL GID ACTIVATE DEACTIVATE WAIT */
        e->kind = MCPG_AGENT_EV_CALL_PROPOSE;
        e->u.call_propose.call_id = number(&at);
        e->u.call_propose.gid.v = (uint32_t)number(&at);
        e->u.call_propose.activate.w[0] = number(&at);
        e->u.call_propose.deactivate.w[0] = number(&at);
        e->u.call_propose.wait_us = number(&at);
        e->u.call_propose.expected_epoch = MCPG_ANY_EPOCH;
    } else if (strcmp(verb, "sync") == 0) { /* CALL GID FAILED FIRST TIMEOUT; FIRST 0: none */
        e->kind = MCPG_AGENT_EV_CALL_SYNC;
        e->u.call_sync.call_id = number(&at);
        e->u.call_sync.gid.v = (uint32_t)number(&at);
        e->u.call_sync.failed.w[0] = number(&at);
        e->u.call_sync.first_failed_seq = number(&at);
        if (e->u.call_sync.first_failed_seq == 0) e->u.call_sync.first_failed_seq = MCPG_NO_SEQ;
        e->u.call_sync.timeout_us = number(&at);
    } else if (strcmp(verb, "leave") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_LEAVE;
        e->u.call_leave.call_id = number(&at);
        e->u.call_leave.gid.v = (uint32_t)number(&at);
    } else if (strcmp(verb, "detach") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_DETACH;
        e->u.call_detach.call_id = number(&at);
    } else {
        return false;
    }
    return true;
}

static inline bool read_event(script_t *t, const char *verb, const char *at, mcpg_agent_event_t *e) {
    char what[8];
    if (strcmp(verb, "timer") == 0) {
        e->kind = MCPG_AGENT_EV_TIMER;
    } else if (strcmp(verb, "connected") == 0) {
        e->kind = MCPG_AGENT_EV_CONNECTED;
    } else if (strcmp(verb, "disconnected") == 0) {
        e->kind = MCPG_AGENT_EV_DISCONNECTED;
    } else if (strcmp(verb, "link") == 0) { /* RANK INC up|lost CHECK */
        e->kind = MCPG_AGENT_EV_LINK;
        e->u.link.rank.v = (uint32_t)number(&at);
        e->u.link.inc = (mcpg_incarnation_t){1, number(&at)};
        assert_true(word(&at, what, sizeof(what)));
        e->u.link.state = strcmp(what, "up") == 0 ? MCPG_LINK_UP : MCPG_LINK_LOST;
        e->u.link.check_id = number(&at);
    } else if (strcmp(verb, "death") == 0) {
        e->kind = MCPG_AGENT_EV_DEATH;
        e->u.death.rank.v = (uint32_t)number(&at);
        e->u.death.inc = (mcpg_incarnation_t){1, number(&at)};
    } else if (strcmp(verb, "opfailed") == 0) { /* GID REPORT SEQ slot:rank:inc ... */
        e->kind = MCPG_AGENT_EV_OP_FAILED;
        e->u.op_failed.gid.v = (uint32_t)number(&at);
        e->u.op_failed.report_id = number(&at);
        e->u.op_failed.seq = number(&at);
        e->u.op_failed.failed_count = read_members(&at, t->members);
        e->u.op_failed.failed = t->members;
    } else if (strcmp(verb, "held") == 0) { /* GID EPOCH SEQ */
        e->kind = MCPG_AGENT_EV_HELD;
        e->u.held.gid.v = (uint32_t)number(&at);
        e->u.held.view = view_id(number(&at));
        e->u.held.next_seq = number(&at);
    } else {
        return read_call(t, verb, at, e);
    }
    return true;
}

/* Besides events: "+N" advances the clock; "fire" lets the armed timer come; "armed" shows it. */
static inline void run_line(script_t *t, const char *line) {
    char verb[16];
    const char *at = line;
    t->out_len = 0;
    t->out[0] = '\0';
    if (*at == '+') {
        at++;
        t->now.us += number(&at);
    }
    if (!word(&at, verb, sizeof(verb))) return;
    mcpg_agent_event_t e;
    memset(&e, 0, sizeof(e));
    if (strcmp(verb, "armed") == 0) {
        say(t, t->armed == UINT64_MAX ? "never" : "%lld", (long long)(t->armed - t->now.us));
        return;
    }
    if (strcmp(verb, "fire") == 0) {
        assert_true(t->armed != UINT64_MAX);
        if (t->armed > t->now.us) t->now.us = t->armed;
        e.kind = MCPG_AGENT_EV_TIMER;
    } else if (run_msg(t, verb, at)) {
        return;
    } else if (!read_event(t, verb, at, &e)) {
        fail_msg("no such line: %s", line);
    }
    e.now = t->now;
    step(t, &e);
}

static inline void run_script(script_t *t, const line_t *lines, size_t count) {
    for (size_t i = 0; i < count; i++) {
        run_line(t, lines[i].event);
        if (strcmp(t->out, lines[i].effects) != 0)
            fail_msg("line %zu: %s\n  expected: %s\n  got:      %s", i, lines[i].event, lines[i].effects, t->out);
    }
}

/* Rank 1 attached with incarnation 11; ranks 0, 2, 3 (incarnations 10, 12, 13) HEALTHY, links up. */
static const line_t script_attach[] = {
    {"timer", "CONNECT"},
    {"connected", "ATTACH 1 prev 0"},
    {"welcome 1 9 11", "ATTACHED OK"},
    {"states full 0 0:10:2 1:11:2 2:12:2 3:13:2",
     "OPEN 0:10 ep; NOTIFY rank 0 2; NOTIFY rank 1 2; OPEN 2:12 ep; NOTIFY rank 2 2; OPEN 3:13 ep; NOTIFY rank 3 2"},
    {"link 0 10 up 0", "LINK 0:10 up"},
    {"link 2 12 up 0", "LINK 2:12 up"},
    {"link 3 13 up 0", "LINK 3:13 up"},
};
/* And a founder of group 7 = {0, 1, 2, 3}, view 1 committed. */
static const line_t script_found[] = {
    {"register 90 4 - 1000000 0 1 2 3", "REGISTER 5a cap 4 order 0 1 2 3"},
    {"registered 90 OK 7 1 4", "GROUP g7 slot 1 cap 4"},
    {"members 7 0:0:10 1:1:11 2:2:12 3:3:13", ""},
    {"prepare 7 1 0:0:10 1:1:11 2:2:12 3:3:13", "HOLD g7:1"},
    {"held 7 1 0", "ACK g7:1 @0"},
    {"commit 7 1 0 0:0:10 1:1:11 2:2:12 3:3:13",
     "INSTALL g7:1 @0 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:1; DONE 90 OK g7 slot 1 :1; NOTIFY view g7:1"},
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define RUN(t, lines) run_script((t), (lines), COUNT(lines))

static inline int script_setup(void **state) {
    script_t *t = malloc(sizeof(*t));
    mcpg_agent_config_t config = script_config();
    script_open(t, &config);
    *state = t;
    return 0;
}
static inline int script_setup_found(void **state) {
    if (script_setup(state) != 0) return -1;
    RUN((script_t *)*state, script_attach);
    RUN((script_t *)*state, script_found);
    return 0;
}
static inline int script_teardown(void **state) {
    script_close((script_t *)*state);
    free(*state);
    return 0;
}
#define FRESH(f) cmocka_unit_test_setup_teardown(f, script_setup, script_teardown)
#define FOUND(f) cmocka_unit_test_setup_teardown(f, script_setup_found, script_teardown)

#endif
