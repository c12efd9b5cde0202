/* test_agent_say.h: effects of an agent machine as one line of text, for test_agent_script.h only. */
#ifndef MCPG_TEST_AGENT_SAY_H
#define MCPG_TEST_AGENT_SAY_H

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
#define X(NAME, value, class, text)                                                                                    \
    case MCPG_##NAME:                                                                                                  \
        return #NAME;
#include "common/statuses.def"
#undef X
    }
    return "?";
}

static inline mcpg_status_t status_of(const char *name) {
#define X(NAME, value, class, text)                                                                                    \
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
    case MCPG_UP_HEARTBEAT:
        say(t, "HEARTBEAT%s", m->u.heartbeat.digest == 0 ? " 0" : "");
        break;
    case MCPG_UP_LINK:
        say(t, "LINK %u:%llu %s", m->u.link.peer.v, U(m->u.link.peer_inc.counter),
            m->u.link.state == MCPG_LINK_UP ? "up" : "lost");
        if (m->u.link.check_id != 0) say(t, " #%llu", U(m->u.link.check_id));
        break;
    case MCPG_UP_DEATH:
        say(t, "DEATH %u:%llu", m->u.death.rank.v, U(m->u.death.inc.counter));
        break;
    case MCPG_UP_REGISTER:
        say(t, "REGISTER %llx cap %u%s%s%s order", U(m->u.register_group.call_id), m->u.register_group.capacity,
            m->u.register_group.is_extension ? " ext" : "", m->u.register_group.manual ? " manual" : "",
            m->u.register_group.no_auto_sync ? " nosync" : "");
        for (uint32_t i = 0; i < m->u.register_group.order_count; i++) say(t, " %u", m->u.register_group.order[i]);
        break;
    case MCPG_UP_JOIN:
        say(t, "JOIN %llu g%u", U(m->u.join.call_id), m->u.join.gid.v);
        break;
    case MCPG_UP_PROPOSE:
        say(t, "PROPOSE %llu g%u +%llx -%llx wait %llu", U(m->u.propose.call_id), m->u.propose.gid.v,
            U(m->u.propose.activate.w[0]), U(m->u.propose.deactivate.w[0]), U(m->u.propose.wait_us));
        say_members(t, m->u.propose.stamps, m->u.propose.stamp_count);
        break;
    case MCPG_UP_ACK:
        say(t, "ACK g%u:%llu @%llu", m->u.ack.gid.v, U(m->u.ack.view.epoch), U(m->u.ack.next_seq));
        break;
    case MCPG_UP_COMMIT_ACK:
        say(t, "COMMIT_ACK g%u:%llu", m->u.commit_ack.gid.v, U(m->u.commit_ack.view.epoch));
        break;
    case MCPG_UP_OP_FAILED:
        say(t, "OP_FAILED g%u #%llu @%llu", m->u.op_failed.gid.v, U(m->u.op_failed.report_id), U(m->u.op_failed.seq));
        say_members(t, m->u.op_failed.failed, m->u.op_failed.failed_count);
        break;
    case MCPG_UP_SYNC_ENTER:
        say(t, "SYNC_ENTER %llu g%u %llx @%llu", U(m->u.sync_enter.call_id), m->u.sync_enter.gid.v,
            U(m->u.sync_enter.failed.w[0]), U(m->u.sync_enter.first_failed_seq));
        break;
    case MCPG_UP_LEAVE_GROUP:
        say(t, "LEAVE_GROUP g%u", m->u.leave_group.gid.v);
        if (m->u.leave_group.next_seq != 0) say(t, " @%llu", U(m->u.leave_group.next_seq));
        break;
    case MCPG_UP_DETACH:
        say(t, "DETACH");
        break;
    case MCPG_UP_REBUILD:
        say(t, "REBUILD g%u", m->u.rebuild.gid.v);
        if (m->u.rebuild.has_commit)
            say(t, ":%llu.%llu", U(m->u.rebuild.commit.view.id.term), U(m->u.rebuild.commit.view.id.epoch));
        if (m->u.rebuild.acked.epoch != 0) {
            say(t, " acked %llu@%llu", U(m->u.rebuild.acked.epoch), U(m->u.rebuild.next_seq));
            say_members(t, m->u.rebuild.doubt, m->u.rebuild.doubt_count);
        }
        if (m->u.rebuild.aborted.epoch != 0) say(t, " aborted %llu", U(m->u.rebuild.aborted.epoch));
        if (!m->u.rebuild.awaiting) say(t, " idle");
        break;
    case MCPG_UP_REBUILD_END:
        say(t, "REBUILD_END");
        break;
    case MCPG_UP__COUNT:
        fail();
        break;
    }
}

static inline void say_done(script_t *t, const mcpg_agent_call_done_t *d) {
    say(t, "DONE %llu %s", U(d->call_id), status_name(d->status));
    if (d->gid.v != 0) say(t, " g%u slot %u%s", d->gid.v, d->slot.v, d->isolated ? " isolated" : "");
    if (d->view.epoch != 0) say(t, " :%llu", U(d->view.epoch));
    if (d->resume_seq != 0)
        say(t, " failed %llx first %llu resume %llu", U(d->failed.w[0]), U(d->first_failed_seq), U(d->resume_seq));
    if (d->dropped_any) say(t, " dropped %llx", U(d->dropped.w[0]));
    say_text(t, d->text);
}

static inline void say_install(script_t *t, const mcpg_down_commit_t *c) {
    say(t, "INSTALL g%u:%llu @%llu", c->gid.v, U(c->view.id.epoch), U(c->switch_seq));
    say_members(t, c->view.active, c->view.active_count);
    for (uint32_t i = 0; i < c->leave_count; i++)
        say(t, " leave %u@%llu", c->leaves[i].slot.v, U(c->leaves[i].leave_seq));
    if (c->sync) say(t, " sync");
}

static inline void say_notify(script_t *t, const mcpg_agent_notify_t *n) {
    switch (n->kind) {
    case MCPG_EVENT_VIEW:
        say(t, "NOTIFY view g%u:%llu", n->gid.v, U(n->view.epoch));
        break;
    case MCPG_EVENT_RANK_STATE:
        say(t, "NOTIFY rank %u %u", n->rank.v, n->state);
        break;
    case MCPG_EVENT_COORDINATOR_LOST:
        say(t, "NOTIFY lost");
        break;
    case MCPG_EVENT_COORDINATOR_BACK:
        say(t, "NOTIFY back");
        break;
    }
}

/* The default is allowed here: say_effect lists every kind. */
static inline void say_dp(script_t *t, const mcpg_agent_effect_t *f) {
    int kind = (int)f->kind;
    switch (kind) {
    case MCPG_AGENT_FX_DP_GROUP:
        say(t, "GROUP g%u slot %u cap %u%s%s%s", f->u.dp_group.gid.v, f->u.dp_group.slot.v, f->u.dp_group.capacity,
            f->u.dp_group.isolated ? " isolated" : "", f->u.dp_group.manual ? " manual" : "",
            f->u.dp_group.no_auto_sync ? " nosync" : "");
        break;
    case MCPG_AGENT_FX_DP_HOLD:
        say(t, "HOLD g%u:%llu", f->u.dp_hold.gid.v, U(f->u.dp_hold.view.epoch));
        break;
    case MCPG_AGENT_FX_DP_RELEASE:
        say(t, "RELEASE g%u:%llu", f->u.dp_release.gid.v, U(f->u.dp_release.view.epoch));
        break;
    case MCPG_AGENT_FX_DP_INSTALL:
        say_install(t, f->u.dp_install);
        break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        say(t, "FENCE g%u", f->u.dp_sync_fence.gid.v);
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        say(t, "RESOLVE g%u #%llu %s", f->u.dp_resolve.gid.v, U(f->u.dp_resolve.report_id),
            status_name(f->u.dp_resolve.status));
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        say(t, "GONE g%u", f->u.dp_group_gone.gid.v);
        break;
    default:
        fail();
    }
}

static inline void say_effect(script_t *t, const mcpg_agent_effect_t *f) {
    if (f->kind == MCPG_AGENT_FX_ARM_TIMER) {
        t->armed = f->u.arm_timer.us;
        return;
    }
    if (t->out_len > 0) say(t, "; ");
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        say_up(t, f->u.send);
        break;
    case MCPG_AGENT_FX_CONNECT:
        say(t, "CONNECT");
        break;
    case MCPG_AGENT_FX_DISCONNECT:
        say(t, "DISCONNECT");
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        break;
    case MCPG_AGENT_FX_ATTACHED:
        say(t, "ATTACHED %s", status_name(f->u.attached.status));
        say_text(t, f->u.attached.text);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
        say(t, "OPEN %u:%llu %.*s", f->u.link_open.rank.v, U(f->u.link_open.inc.counter),
            (int)f->u.link_open.endpoint.len, (const char *)f->u.link_open.endpoint.ptr);
        break;
    case MCPG_AGENT_FX_LINK_CLOSE:
        say(t, "CLOSE %u:%llu%s", f->u.link_close.rank.v, U(f->u.link_close.inc.counter),
            f->u.link_close.dead ? " dead" : "");
        break;
    case MCPG_AGENT_FX_LINK_CHECK:
        say(t, "CHECK %u:%llu #%llu", f->u.link_check.rank.v, U(f->u.link_check.inc.counter),
            U(f->u.link_check.check_id));
        break;
    case MCPG_AGENT_FX_LINK_ASK_VIEW:
        say(t, "ASK_VIEW g%u:%llu", f->u.link_ask_view.gid.v, U(f->u.link_ask_view.view.epoch));
        break;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        say(t, "TELL_VIEW %u:%llu ", f->u.link_tell_view.rank.v, U(f->u.link_tell_view.inc.counter));
        if (f->u.link_tell_view.msg->kind == MCPG_DOWN_COMMIT)
            say_install(t, &f->u.link_tell_view.msg->u.commit);
        else
            say(t, "ABORT g%u:%llu", f->u.link_tell_view.msg->u.abort.gid.v,
                U(f->u.link_tell_view.msg->u.abort.view.epoch));
        break;
    case MCPG_AGENT_FX_DP_GROUP:
    case MCPG_AGENT_FX_DP_HOLD:
    case MCPG_AGENT_FX_DP_RELEASE:
    case MCPG_AGENT_FX_DP_INSTALL:
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
    case MCPG_AGENT_FX_DP_RESOLVE:
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        say_dp(t, f);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        say_done(t, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        say_notify(t, &f->u.notify);
        break;
    case MCPG_AGENT_FX_STOP:
        say(t, "STOP");
        break;
    case MCPG_AGENT_FX__COUNT:
        fail();
        break;
    }
}

#endif
