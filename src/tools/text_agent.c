/* text_agent.c: the agent's configuration, events and effects, one line each, for people. It never hides a field that
 * the machine acts on, but for the endpoints of its peers.
 */
#include <inttypes.h>

#include "tools/text.h"

static void rank_inc(FILE *out, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    fprintf(out, " rank %u/", rank.v);
    mcpg__text_inc(out, inc);
}

static void seq_field(FILE *out, const char *word, uint64_t seq) {
    fprintf(out, " %s ", word);
    mcpg__text_seq(out, seq);
}

static void set_field(FILE *out, const char *word, const mcpg_rankset_t *set) {
    fprintf(out, " %s ", word);
    mcpg__text_set(out, set);
}

static void bytes_field(FILE *out, const char *word, mcpg_bytes_t bytes) {
    if (bytes.len == 0) return;
    fprintf(out, " %s ", word);
    mcpg__text_bytes(out, bytes);
}

static void sentence(FILE *out, mcpg_bytes_t text) {
    if (text.len > 0) fprintf(out, " \"%.*s\"", (int)text.len, (const char *)text.ptr);
}

void mcpg__text_agent_config(FILE *out, const mcpg_agent_config_t *c) {
    fprintf(out, "agent rank %u session %" PRIu64 " host %" PRIu64 " pid %" PRId64, c->rank.v, c->session.v, c->host_id,
            c->pid);
    bytes_field(out, "endpoint", (mcpg_bytes_t){c->endpoint, c->endpoint_len});
    fprintf(out, " ranks %u groups %u slots %u calls %u reports %u attach_timeout %" PRIu64 " seed %" PRIu64,
            c->max_ranks, c->max_groups, c->max_slots_total, c->max_calls, c->max_reports, c->attach_timeout_us,
            c->seed);
    fprintf(out, " heartbeat %" PRIu64 " offline %" PRIu64 " ack %" PRIu64 " grace %" PRIu64 "\n",
            c->timers.heartbeat_us, c->timers.offline_us, c->timers.ack_us, c->timers.coordinator_grace_us);
}

static void members(FILE *out, const mcpg_member_t *m, uint32_t count) {
    fputs(" failed", out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, " %u:%u/", m[i].slot.v, m[i].rank.v);
        mcpg__text_inc(out, m[i].inc);
    }
}

static void call_register(FILE *out, const mcpg_agent_call_register_t *r) {
    fprintf(out, " call %" PRIu64, r->call_id);
    bytes_field(out, "key", r->key);
    bytes_field(out, "label", r->label);
    bytes_field(out, "device", r->device_kind);
    fputs(" order ", out);
    for (uint32_t i = 0; i < r->order_count; i++) fprintf(out, "%s%u", i == 0 ? "" : ",", r->order[i]);
    fprintf(out, " cap %u%s%s%s timeout %" PRIu64, r->capacity, r->is_extension ? " ext" : "",
            r->manual ? " manual" : "", r->no_auto_sync ? " no_auto_sync" : "", r->timeout_us);
}

static void call_propose(FILE *out, const mcpg_agent_call_propose_t *p) {
    fprintf(out, " call %" PRIu64 " g%u", p->call_id, p->gid.v);
    set_field(out, "activate", &p->activate);
    set_field(out, "deactivate", &p->deactivate);
    if (p->expected_epoch != MCPG_ANY_EPOCH) fprintf(out, " epoch %" PRIu64, p->expected_epoch);
    fprintf(out, " wait %" PRIu64, p->wait_us);
}

static void call_sync(FILE *out, const mcpg_agent_call_sync_t *s) {
    fprintf(out, " call %" PRIu64 " g%u", s->call_id, s->gid.v);
    set_field(out, "failed", &s->failed);
    seq_field(out, "first", s->first_failed_seq);
    fprintf(out, " timeout %" PRIu64, s->timeout_us);
}

static void call_event(FILE *out, const mcpg_agent_event_t *e) {
    if (e->kind == MCPG_AGENT_EV_CALL_REGISTER) {
        fputs("CALL_REGISTER", out);
        call_register(out, &e->u.call_register);
    } else if (e->kind == MCPG_AGENT_EV_CALL_JOIN) {
        fprintf(out, "CALL_JOIN call %" PRIu64 " g%u timeout %" PRIu64, e->u.call_join.call_id, e->u.call_join.gid.v,
                e->u.call_join.timeout_us);
    } else if (e->kind == MCPG_AGENT_EV_CALL_PROPOSE) {
        fputs("CALL_PROPOSE", out);
        call_propose(out, &e->u.call_propose);
    } else if (e->kind == MCPG_AGENT_EV_CALL_SYNC) {
        fputs("CALL_SYNC", out);
        call_sync(out, &e->u.call_sync);
    } else if (e->kind == MCPG_AGENT_EV_CALL_LEAVE) {
        fprintf(out, "CALL_LEAVE call %" PRIu64 " g%u", e->u.call_leave.call_id, e->u.call_leave.gid.v);
        seq_field(out, "next", e->u.call_leave.next_seq);
    } else {
        fprintf(out, "CALL_DETACH call %" PRIu64, e->u.call_detach.call_id);
    }
}

static void print_event(FILE *out, const mcpg_agent_event_t *e) {
    switch (e->kind) {
    case MCPG_AGENT_EV_CONNECTED:
        fputs("CONNECTED", out);
        break;
    case MCPG_AGENT_EV_DISCONNECTED:
        fputs("DISCONNECTED", out);
        break;
    case MCPG_AGENT_EV_TIMER:
        fputs("TIMER", out);
        break;
    case MCPG_AGENT_EV_MSG:
        fputs("MSG ", out);
        mcpg__text_down(out, e->u.msg);
        break;
    case MCPG_AGENT_EV_LINK:
        fputs("LINK", out);
        rank_inc(out, e->u.link.rank, e->u.link.inc);
        fprintf(out, " %s check %" PRIu64, e->u.link.state == MCPG_LINK_UP ? "up" : "lost", e->u.link.check_id);
        break;
    case MCPG_AGENT_EV_DEATH:
        fputs("DEATH", out);
        rank_inc(out, e->u.death.rank, e->u.death.inc);
        fprintf(out, " proof %u", e->u.death.proof);
        break;
    case MCPG_AGENT_EV_OP_FAILED:
        fprintf(out, "OP_FAILED g%u report %" PRIu64, e->u.op_failed.gid.v, e->u.op_failed.report_id);
        seq_field(out, "seq", e->u.op_failed.seq);
        members(out, e->u.op_failed.failed, e->u.op_failed.failed_count);
        break;
    case MCPG_AGENT_EV_HELD:
        fputs("HELD ", out);
        mcpg__text_view(out, e->u.held.gid, e->u.held.view);
        seq_field(out, "next", e->u.held.next_seq);
        if (e->u.held.steps) fputs(" steps", out);
        break;
    case MCPG_AGENT_EV_CALL_REGISTER:
    case MCPG_AGENT_EV_CALL_JOIN:
    case MCPG_AGENT_EV_CALL_PROPOSE:
    case MCPG_AGENT_EV_CALL_SYNC:
    case MCPG_AGENT_EV_CALL_LEAVE:
    case MCPG_AGENT_EV_CALL_DETACH:
        call_event(out, e);
        break;
    case MCPG_AGENT_EV_VIEW_ASKED:
        fputs("VIEW_ASKED", out);
        rank_inc(out, e->u.view_asked.rank, e->u.view_asked.inc);
        fputc(' ', out);
        mcpg__text_view(out, e->u.view_asked.gid, e->u.view_asked.view);
        break;
    case MCPG_AGENT_EV_VIEW_TOLD:
        fputs("VIEW_TOLD ", out);
        mcpg__text_down(out, e->u.view_told);
        break;
    case MCPG_AGENT_EV__COUNT:
        break;
    }
}

void mcpg__text_agent_event(FILE *out, const mcpg_agent_event_t *e) {
    print_event(out, e);
    fputc('\n', out);
}

static void call_done(FILE *out, const mcpg_agent_call_done_t *d) {
    fprintf(out, "CALL_DONE call %" PRIu64 " %s ", d->call_id, mcpg_status_name(d->status));
    mcpg__text_view(out, d->gid, d->view);
    fprintf(out, " slot %u%s", d->slot.v, d->isolated ? " isolated" : "");
    seq_field(out, "first", d->first_failed_seq);
    seq_field(out, "resume", d->resume_seq);
    if (d->dropped_any) set_field(out, "dropped", &d->dropped);
    if (!mcpg__rankset_empty(&d->failed)) set_field(out, "failed", &d->failed);
    sentence(out, d->text);
}

static void notify(FILE *out, const mcpg_agent_notify_t *n) {
    static const char *const names[] = {"VIEW", "RANK_STATE", "COORDINATOR_LOST", "COORDINATOR_BACK"};
    fprintf(out, "NOTIFY %s", (unsigned)n->kind < 4u ? names[n->kind] : "?");
    if (n->kind == MCPG_EVENT_VIEW) {
        fputc(' ', out);
        mcpg__text_view(out, n->gid, n->view);
    } else if (n->kind == MCPG_EVENT_RANK_STATE) {
        fprintf(out, " rank %u %s", n->rank.v, mcpg__text_rank_state(n->state));
    }
}

static void link_effect(FILE *out, const mcpg_agent_effect_t *f) {
    if (f->kind == MCPG_AGENT_FX_LINK_OPEN) {
        fputs("LINK_OPEN", out);
        rank_inc(out, f->u.link_open.rank, f->u.link_open.inc);
        fprintf(out, " host %" PRIu64 " pid %" PRId64, f->u.link_open.host_id, f->u.link_open.pid);
    } else if (f->kind == MCPG_AGENT_FX_LINK_CLOSE) {
        fputs("LINK_CLOSE", out);
        rank_inc(out, f->u.link_close.rank, f->u.link_close.inc);
        if (f->u.link_close.dead) fputs(" dead", out);
    } else {
        fputs("LINK_CHECK", out);
        rank_inc(out, f->u.link_check.rank, f->u.link_check.inc);
        fprintf(out, " check %" PRIu64, f->u.link_check.check_id);
    }
}

static void view_effect(FILE *out, const char *name, const mcpg_agent_dp_view_t *v) {
    fprintf(out, "%s ", name);
    mcpg__text_view(out, v->gid, v->view);
}

static void dp_group(FILE *out, const mcpg_agent_dp_group_t *g) {
    fprintf(out, "DP_GROUP g%u slot %u capacity %u%s%s%s", g->gid.v, g->slot.v, g->capacity,
            g->isolated ? " isolated" : "", g->manual ? " manual" : "", g->no_auto_sync ? " no_auto_sync" : "");
}

static void dp_install(FILE *out, const mcpg_down_commit_t *commit) {
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_COMMIT, .u.commit = *commit};
    fputs("DP_INSTALL ", out);
    mcpg__text_down(out, &msg);
}

static void print_effect(FILE *out, const mcpg_agent_effect_t *f) {
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        fputs("-> ", out);
        mcpg__text_up(out, f->u.send);
        break;
    case MCPG_AGENT_FX_CONNECT:
        fputs("CONNECT", out);
        break;
    case MCPG_AGENT_FX_DISCONNECT:
        fputs("DISCONNECT", out);
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        fprintf(out, "timer %" PRIu64 " us", f->u.arm_timer.us);
        break;
    case MCPG_AGENT_FX_ATTACHED:
        fprintf(out, "ATTACHED %s", mcpg_status_name(f->u.attached.status));
        sentence(out, f->u.attached.text);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
    case MCPG_AGENT_FX_LINK_CLOSE:
    case MCPG_AGENT_FX_LINK_CHECK:
        link_effect(out, f);
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        dp_group(out, &f->u.dp_group);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
        view_effect(out, "DP_HOLD", &f->u.dp_hold);
        break;
    case MCPG_AGENT_FX_DP_RELEASE:
        view_effect(out, "DP_RELEASE", &f->u.dp_release);
        break;
    case MCPG_AGENT_FX_DP_INSTALL:
        dp_install(out, f->u.dp_install);
        break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        fprintf(out, "DP_SYNC_FENCE g%u", f->u.dp_sync_fence.gid.v);
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        fprintf(out, "DP_RESOLVE g%u report %" PRIu64 " %s", f->u.dp_resolve.gid.v, f->u.dp_resolve.report_id,
                mcpg_status_name(f->u.dp_resolve.status));
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        fprintf(out, "DP_GROUP_GONE g%u", f->u.dp_group_gone.gid.v);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        call_done(out, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        notify(out, &f->u.notify);
        break;
    case MCPG_AGENT_FX_STOP:
        fputs("stop", out);
        break;
    case MCPG_AGENT_FX_LINK_ASK_VIEW:
        view_effect(out, "LINK_ASK_VIEW", &f->u.link_ask_view);
        break;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        fputs("LINK_TELL_VIEW", out);
        rank_inc(out, f->u.link_tell_view.rank, f->u.link_tell_view.inc);
        fputc(' ', out);
        mcpg__text_down(out, f->u.link_tell_view.msg);
        break;
    case MCPG_AGENT_FX__COUNT:
        break;
    }
}

void mcpg__text_agent_effect(FILE *out, const mcpg_agent_effect_t *f) {
    fputs("  ", out);
    print_effect(out, f);
    fputc('\n', out);
}
