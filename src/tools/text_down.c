/* text_down.c: what the coordinator says, as text: the language of the golden files. It never hides anything that a
 * machine acts on.
 */
#include <inttypes.h>

#include "tools/text.h"

const char *mcpg__text_rank_state(uint8_t state) {
    static const char *const names[] = {"OFFLINE", "SYNCED", "HEALTHY"};
    return state < sizeof names / sizeof names[0] ? names[state] : "?";
}

void mcpg__text_set(FILE *out, const mcpg_rankset_t *set) {
    const char *comma = "";
    for (uint32_t r = mcpg__rankset_next(set, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(set, r + 1)) {
        fprintf(out, "%s%u", comma, r);
        comma = ",";
    }
    if (*comma == '\0') fputs("-", out);
}

void mcpg__text_seq(FILE *out, uint64_t seq) {
    if (seq == MCPG_NO_SEQ)
        fputs("none", out);
    else if (seq >> MCPG_STEP_SHIFT != 0)
        fprintf(out, "%" PRIu64 "*2^32+%" PRIu64, seq >> MCPG_STEP_SHIFT, seq & UINT32_MAX);
    else
        fprintf(out, "%" PRIu64, seq);
}

static void pair(FILE *out, uint64_t term, uint64_t counter) {
    if (term != (counter != 0 ? 1u : 0u)) fprintf(out, "%" PRIu64 ".", term);
    fprintf(out, "%" PRIu64, counter);
}

void mcpg__text_inc(FILE *out, mcpg_incarnation_t inc) {
    pair(out, inc.term, inc.counter);
}

void mcpg__text_view(FILE *out, mcpg_gid_t gid, mcpg_view_id_t id) {
    fprintf(out, "g%u@", gid.v);
    pair(out, id.term, id.epoch);
}

void mcpg__text_view_body(FILE *out, mcpg_gid_t gid, const mcpg_view_body_t *view) {
    mcpg__text_view(out, gid, view->id);
    fputs(" {", out);
    for (uint32_t i = 0; i < view->active_count; i++) {
        fprintf(out, "%s%u:%u/", i == 0 ? "" : " ", view->active[i].slot.v, view->active[i].rank.v);
        mcpg__text_inc(out, view->active[i].inc);
    }
    fputs("}", out);
}

static void render_text(FILE *out, mcpg_bytes_t text) {
    if (text.len > 0) fprintf(out, " \"%.*s\"", (int)text.len, (const char *)text.ptr);
}

static void render_states(FILE *out, const mcpg_down_rank_states_t *m) {
    fputs(m->full ? "RANK_STATES full" : "RANK_STATES", out);
    if (m->end != 0) fprintf(out, " %u..%u", m->first, m->end - 1u);
    if (m->check_id != 0) fprintf(out, " check %" PRIu64, m->check_id);
    for (uint32_t i = 0; i < m->count; i++) {
        const mcpg_rank_info_t *r = &m->ranks[i];
        fprintf(out, "%s %u/", i == 0 ? "" : ",", r->rank.v);
        mcpg__text_inc(out, r->inc);
        fprintf(out, " %s%s%s", mcpg__text_rank_state(r->state), r->suspect ? " suspect" : "", r->dead ? " dead" : "");
    }
}

static void render_members(FILE *out, const mcpg_down_members_t *m) {
    fprintf(out, "MEMBERS g%u", m->gid.v);
    for (uint32_t i = 0; i < m->count; i++) {
        fprintf(out, " %u:%u/", m->members[i].slot.v, m->members[i].rank.v);
        mcpg__text_inc(out, m->members[i].inc);
        if (m->members[i].awaiting) fputc('w', out);
    }
}

static void render_commit(FILE *out, const mcpg_down_commit_t *m) {
    fputs("COMMIT ", out);
    mcpg__text_view_body(out, m->gid, &m->view);
    fputs(" switch ", out);
    mcpg__text_seq(out, m->switch_seq);
    for (uint32_t i = 0; i < m->leave_count; i++) {
        fprintf(out, " leave %u from ", m->leaves[i].slot.v);
        mcpg__text_seq(out, m->leaves[i].leave_seq);
    }
    if (!m->sync) return;
    fputs(" sync failed ", out);
    mcpg__text_set(out, &m->sync_failed);
    fputs(" first ", out);
    mcpg__text_seq(out, m->sync_first_failed_seq);
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
        mcpg__text_set(out, &m->dropped);
    }
    render_text(out, m->text);
}

void mcpg__text_down(FILE *out, const mcpg_down_msg_t *msg) {
    switch (msg->kind) {
    case MCPG_DOWN_WELCOME:
        fputs("WELCOME inc ", out);
        mcpg__text_inc(out, msg->u.welcome.inc);
        fprintf(out, "%s%s", msg->u.welcome.resumed ? " resumed" : "", msg->u.welcome.rebuilding ? " rebuilding" : "");
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
        mcpg__text_view_body(out, msg->u.prepare.gid, &msg->u.prepare.view);
        return;
    case MCPG_DOWN_COMMIT:
        render_commit(out, &msg->u.commit);
        return;
    case MCPG_DOWN_ABORT:
        fputs("ABORT ", out);
        mcpg__text_view(out, msg->u.abort.gid, msg->u.abort.view);
        return;
    case MCPG_DOWN_REPLY:
        render_reply(out, &msg->u.reply);
        return;
    case MCPG_DOWN_RECONCILED:
        fprintf(out, "RECONCILED g%u report %" PRIu64 " cleared ", msg->u.reconciled.gid.v,
                msg->u.reconciled.report_id);
        mcpg__text_set(out, &msg->u.reconciled.cleared);
        return;
    case MCPG_DOWN_SYNCING:
        fprintf(out, "SYNCING g%u", msg->u.syncing.gid.v);
        return;
    case MCPG_DOWN__COUNT:
        return;
    }
}
