/* render.c: see render.h. Group 3 at epoch 2 is "g3@2", a member is slot:rank/incarnation. */
#include "script/render.h"

#include <inttypes.h>

static const char *const state_names[] = {"OFFLINE", "SYNCED", "HEALTHY"};

void render_set(FILE *out, const mcpg_rankset_t *set) {
    const char *comma = "";
    for (uint32_t r = mcpg__rankset_next(set, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(set, r + 1)) {
        fprintf(out, "%s%u", comma, r);
        comma = ",";
    }
    if (*comma == '\0') fputs("-", out);
}

static void render_seq(FILE *out, uint64_t seq) {
    if (seq == MCPG_NO_SEQ)
        fputs("none", out);
    else if (seq >> MCPG_STEP_SHIFT != 0)
        fprintf(out, "%" PRIu64 "*2^32+%" PRIu64, seq >> MCPG_STEP_SHIFT, seq & UINT32_MAX);
    else
        fprintf(out, "%" PRIu64, seq);
}

static void render_view(FILE *out, mcpg_gid_t gid, const mcpg_view_body_t *view) {
    fprintf(out, "g%u@%" PRIu64 " {", gid.v, view->id.epoch);
    for (uint32_t i = 0; i < view->active_count; i++)
        fprintf(out, "%s%u:%u/%" PRIu64, i == 0 ? "" : " ", view->active[i].slot.v, view->active[i].rank.v,
                view->active[i].inc.counter);
    fputs("}", out);
}

static void render_text(FILE *out, mcpg_bytes_t text) {
    if (text.len > 0) fprintf(out, " \"%.*s\"", (int)text.len, (const char *)text.ptr);
}

static void render_states(FILE *out, const mcpg_down_rank_states_t *m) {
    fputs(m->full ? "RANK_STATES full" : "RANK_STATES", out);
    if (m->check_id != 0) fprintf(out, " check %" PRIu64, m->check_id);
    for (uint32_t i = 0; i < m->count; i++) {
        const mcpg_rank_info_t *r = &m->ranks[i];
        fprintf(out, "%s %u/%" PRIu64 " %s%s%s", i == 0 ? "" : ",", r->rank.v, r->inc.counter, state_names[r->state],
                r->suspect ? " suspect" : "", r->dead ? " dead" : "");
    }
}

static void render_members(FILE *out, const mcpg_down_members_t *m) {
    fprintf(out, "MEMBERS g%u", m->gid.v);
    for (uint32_t i = 0; i < m->count; i++)
        fprintf(out, " %u:%u/%" PRIu64 "%s", m->members[i].slot.v, m->members[i].rank.v, m->members[i].inc.counter,
                m->members[i].awaiting ? "w" : "");
}

static void render_commit(FILE *out, const mcpg_down_commit_t *m) {
    fputs("COMMIT ", out);
    render_view(out, m->gid, &m->view);
    fputs(" switch ", out);
    render_seq(out, m->switch_seq);
    for (uint32_t i = 0; i < m->leave_count; i++) {
        fprintf(out, " leave %u from ", m->leaves[i].slot.v);
        render_seq(out, m->leaves[i].leave_seq);
    }
    if (!m->sync) return;
    fputs(" sync failed ", out);
    render_set(out, &m->sync_failed);
    fputs(" first ", out);
    render_seq(out, m->sync_first_failed_seq);
}

static void render_registered(FILE *out, const mcpg_down_registered_t *m) {
    fprintf(out, "REGISTERED call %" PRIu64 " %s", m->call_id, mcpg_status_name((mcpg_status_t)m->status));
    if (m->status == MCPG_OK)
        fprintf(out, " g%u slot %u capacity %u%s%s%s", m->gid.v, m->slot.v, m->capacity, m->isolated ? " isolated" : "",
                m->manual ? " manual" : "", m->no_auto_sync ? " no_auto_sync" : "");
    render_text(out, m->text);
}

static void render_reply(FILE *out, const mcpg_down_reply_t *m) {
    fprintf(out, "REPLY call %" PRIu64 " %s epoch %" PRIu64, m->call_id, mcpg_status_name((mcpg_status_t)m->status),
            m->epoch);
    if (m->dropped_any) {
        fputs(" dropped ", out);
        render_set(out, &m->dropped);
    }
    render_text(out, m->text);
}

static void render_msg(FILE *out, const mcpg_down_msg_t *msg) {
    switch (msg->kind) {
    case MCPG_DOWN_WELCOME:
        fprintf(out, "WELCOME inc %" PRIu64 "%s", msg->u.welcome.inc.counter, msg->u.welcome.resumed ? " resumed" : "");
        return;
    case MCPG_DOWN_REFUSED:
        fprintf(out, "REFUSED %s", mcpg_status_name((mcpg_status_t)msg->u.refused.status));
        render_text(out, msg->u.refused.text);
        return;
    case MCPG_DOWN_HEARTBEAT_REPLY:
        fputs("HEARTBEAT_REPLY", out);
        return;
    case MCPG_DOWN_RANK_STATES:
        render_states(out, &msg->u.rank_states);
        return;
    case MCPG_DOWN_REGISTERED:
        render_registered(out, &msg->u.registered);
        return;
    case MCPG_DOWN_MEMBERS:
        render_members(out, &msg->u.members);
        return;
    case MCPG_DOWN_PREPARE:
        fputs("PREPARE ", out);
        render_view(out, msg->u.prepare.gid, &msg->u.prepare.view);
        return;
    case MCPG_DOWN_COMMIT:
        render_commit(out, &msg->u.commit);
        return;
    case MCPG_DOWN_ABORT:
        fprintf(out, "ABORT g%u@%" PRIu64, msg->u.abort.gid.v, msg->u.abort.view.epoch);
        return;
    case MCPG_DOWN_REPLY:
        render_reply(out, &msg->u.reply);
        return;
    case MCPG_DOWN_RECONCILED:
        fprintf(out, "RECONCILED g%u report %" PRIu64 " cleared ", msg->u.reconciled.gid.v,
                msg->u.reconciled.report_id);
        render_set(out, &msg->u.reconciled.cleared);
        return;
    case MCPG_DOWN_SYNCING:
        fprintf(out, "SYNCING g%u", msg->u.syncing.gid.v);
        return;
    case MCPG_DOWN__COUNT:
        return;
    }
}

void render_effect(FILE *out, const mcpg_coord_effect_t *effect) {
    switch (effect->kind) {
    case MCPG_COORD_FX_SEND:
        fputs("  -> ", out);
        render_set(out, effect->to);
        fputs(": ", out);
        render_msg(out, effect->msg);
        break;
    case MCPG_COORD_FX_SEND_CONN:
        fprintf(out, "  -> c%" PRIu64 ": ", effect->conn);
        render_msg(out, effect->msg);
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        fprintf(out, "  close c%" PRIu64, effect->conn);
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        fprintf(out, "  timer %" PRIu64 " us", effect->at.us);
        break;
    case MCPG_COORD_FX_STOP:
        fputs("  stop", out);
        break;
    case MCPG_COORD_FX__COUNT:
        return;
    }
    fputc('\n', out);
}
