/* timeline_collect.c: see timeline.h. What happens is read from the events and from the effects that come now; the
 * states of ranks from the machine itself, after each step.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/timeline.h"

#define NO_RANK UINT32_MAX

/* Which rank speaks on a connection: a list, for there are few at a time and conns are never reused. */
typedef struct {
    uint64_t conn;
    uint32_t rank;
} speaker_t;

typedef struct {
    timeline_t *t;
    const mcpg_replay_t *r;
    timeline_list_t speakers;
    uint32_t open_state[MCPG_MAX_RANKS];   /* index in states + 1 */
    uint32_t open_suspect[MCPG_MAX_RANKS]; /* index in suspects + 1 */
    mcpg_incarnation_t inc[MCPG_MAX_RANKS];
    bool dead[MCPG_MAX_RANKS];
    bool no_memory;
} collector_t;

static void *grow(collector_t *c, timeline_list_t *list, size_t size) {
    if (list->count == list->cap) {
        uint32_t cap = list->cap == 0 ? 64u : list->cap * 2u;
        void *grown = realloc(list->items, cap * size);
        if (grown == NULL) {
            c->no_memory = true;
            return NULL;
        }
        list->items = grown;
        list->cap = cap;
    }
    void *item = (uint8_t *)list->items + list->count * size;
    memset(item, 0, size);
    list->count++;
    return item;
}
#define ADD(c, list, type) ((type *)grow(c, list, sizeof(type)))
#define AT(list, type, i)  (&((type *)(list).items)[i])

static uint32_t rank_of(const collector_t *c, uint64_t conn) {
    for (uint32_t i = c->speakers.count; i > 0; i--)
        if (AT(c->speakers, speaker_t, i - 1u)->conn == conn) return AT(c->speakers, speaker_t, i - 1u)->rank;
    return NO_RANK;
}

static void mark(collector_t *c, uint32_t rank, timeline_mark_kind_t kind) {
    if (rank == NO_RANK) return;
    timeline_mark_t *m = ADD(c, &c->t->marks, timeline_mark_t);
    if (m != NULL) *m = (timeline_mark_t){c->r->now.us, rank, kind};
}

static void note(collector_t *c, const char *text) {
    const timeline_list_t *notes = &c->t->notes; /* the same, for each of many groups: once */
    if (notes->count > 0 && strcmp(AT(*notes, timeline_note_t, notes->count - 1u)->text, text) == 0) return;
    timeline_note_t *n = ADD(c, &c->t->notes, timeline_note_t);
    if (n == NULL) return;
    n->at = c->r->now.us;
    (void)snprintf(n->text, sizeof n->text, "%s", text);
}

static uint32_t group_of(collector_t *c, mcpg_gid_t gid) {
    timeline_list_t *groups = &c->t->groups;
    for (uint32_t i = 0; i < groups->count; i++)
        if (AT(*groups, timeline_group_t, i)->gid.v == gid.v) return i;
    timeline_group_t *g = ADD(c, groups, timeline_group_t);
    if (g == NULL) return 0;
    g->gid = gid;
    (void)snprintf(g->name, sizeof g->name, "g%u", gid.v);
    return groups->count - 1u;
}

/* ---- events ---- */

static void set_text(char *buf, size_t cap, const char *word, const mcpg_rankset_t *set) {
    size_t len = strlen(buf);
    uint32_t count = mcpg__rankset_count(set);
    if (count == 0) return;
    len += (size_t)snprintf(buf + len, cap - len, "%s%s", len > 0 ? " " : "", word);
    if (count > 6 && len < cap) {
        (void)snprintf(buf + len, cap - len, "%u ranks", count);
        return;
    }
    const char *comma = "";
    for (uint32_t s = mcpg__rankset_next(set, 0); s < MCPG_MAX_RANKS && len < cap; s = mcpg__rankset_next(set, s + 1)) {
        len += (size_t)snprintf(buf + len, cap - len, "%s%u", comma, s);
        comma = ",";
    }
}

static timeline_call_t *open_call(collector_t *c, uint64_t conn, uint64_t call, mcpg_gid_t gid) {
    uint32_t group = group_of(c, gid);
    timeline_call_t *k = ADD(c, &c->t->calls, timeline_call_t);
    if (k == NULL) return NULL;
    *k = (timeline_call_t){
        .from = c->r->now.us, .to = UINT64_MAX, .group = group, .rank = rank_of(c, conn), .conn = conn, .call = call};
    return k;
}

static void see_propose(collector_t *c, uint64_t conn, const mcpg_up_propose_t *m) {
    timeline_call_t *k = open_call(c, conn, m->call_id, m->gid);
    if (k == NULL) return;
    set_text(k->what, sizeof k->what, "activate ", &m->activate);
    set_text(k->what, sizeof k->what, "deactivate ", &m->deactivate);
}

static void see_commit(collector_t *c, const mcpg_down_commit_t *m);

static void see_message(collector_t *c, uint64_t conn, const mcpg_up_msg_t *m) {
    uint32_t rank = rank_of(c, conn);
    timeline_link_t *link;
    timeline_call_t *call;
    switch (m->kind) {
    case MCPG_UP_LINK:
        if (m->u.link.state != MCPG_LINK_LOST || rank == NO_RANK) return;
        link = ADD(c, &c->t->links, timeline_link_t);
        if (link != NULL) *link = (timeline_link_t){c->r->now.us, rank, m->u.link.peer.v};
        return;
    case MCPG_UP_DEATH:
        mark(c, m->u.death.rank.v, TIMELINE_DEATH);
        return;
    case MCPG_UP_DETACH:
        mark(c, rank, TIMELINE_DETACHED);
        return;
    case MCPG_UP_PROPOSE:
        see_propose(c, conn, &m->u.propose);
        return;
    case MCPG_UP_SYNC_ENTER:
        call = open_call(c, conn, m->u.sync_enter.call_id, m->u.sync_enter.gid);
        if (call != NULL) call->is_sync = true;
        return;
    case MCPG_UP_ATTACH:
    case MCPG_UP_HEARTBEAT:
    case MCPG_UP_REGISTER:
    case MCPG_UP_JOIN:
    case MCPG_UP_ACK:
    case MCPG_UP_COMMIT_ACK:
    case MCPG_UP_OP_FAILED:
    case MCPG_UP_LEAVE_GROUP:
    case MCPG_UP_REBUILD_END:
    case MCPG_UP__COUNT:
        return;
    case MCPG_UP_REBUILD: /* the view that an earlier coordinator left */
        if (m->u.rebuild.has_commit) see_commit(c, &m->u.rebuild.commit);
        return;
    }
}

static void see_event(collector_t *c, const mcpg_coord_event_t *e) {
    switch (e->kind) {
    case MCPG_COORD_EV_MSG:
        if (e->msg->kind == MCPG_UP_ATTACH) {
            speaker_t *s = ADD(c, &c->speakers, speaker_t);
            if (s != NULL) *s = (speaker_t){e->conn, e->msg->u.attach.rank.v};
        }
        see_message(c, e->conn, e->msg);
        return;
    case MCPG_COORD_EV_CLOSED:
        mark(c, rank_of(c, e->conn), TIMELINE_CLOSED);
        return;
    case MCPG_COORD_EV_EXIT:
        mark(c, e->rank.v, TIMELINE_DEATH);
        return;
    case MCPG_COORD_EV_SHUTDOWN:
        note(c, "shutdown");
        return;
    case MCPG_COORD_EV_RECORD:
        if (e->status == MCPG_CONFLICT) note(c, "a newer coordinator");
        if (e->status == MCPG_UNAVAILABLE) note(c, "store unavailable");
        return;
    case MCPG_COORD_EV_TIMER:
    case MCPG_COORD_EV__COUNT:
        return;
    }
}

/* ---- effects ---- */

static timeline_barrier_t *open_barrier(collector_t *c, uint32_t group, mcpg_view_id_t id) {
    for (uint32_t i = c->t->barriers.count; i > 0; i--) {
        timeline_barrier_t *b = AT(c->t->barriers, timeline_barrier_t, i - 1u);
        if (b->group == group && b->outcome == TIMELINE_OPEN && mcpg__view_eq(b->id, id)) return b;
    }
    return NULL;
}

static void see_prepare(collector_t *c, mcpg_gid_t gid, mcpg_view_id_t id) {
    uint32_t group = group_of(c, gid);
    if (open_barrier(c, group, id) != NULL) return;
    for (uint32_t i = c->t->views.count; i > 0; i--) { /* a PREPARE that is sent again behind its COMMIT */
        const timeline_view_t *v = AT(c->t->views, timeline_view_t, i - 1u);
        if (v->group == group && mcpg__view_cmp(v->id, id) >= 0) return;
    }
    timeline_barrier_t *b = ADD(c, &c->t->barriers, timeline_barrier_t);
    if (b != NULL) *b = (timeline_barrier_t){.from = c->r->now.us, .to = UINT64_MAX, .group = group, .id = id};
}

static void end_barrier(collector_t *c, mcpg_gid_t gid, mcpg_view_id_t id, timeline_outcome_t outcome) {
    timeline_barrier_t *b = open_barrier(c, group_of(c, gid), id);
    if (b == NULL) return;
    b->to = c->r->now.us;
    b->outcome = outcome;
}

/* A sync's answer is the COMMIT itself. */
static void end_syncs(collector_t *c, uint32_t group) {
    for (uint32_t i = 0; i < c->t->calls.count; i++) {
        timeline_call_t *k = AT(c->t->calls, timeline_call_t, i);
        if (!k->is_sync || k->group != group || k->is_answered) continue;
        k->to = c->r->now.us;
        k->is_answered = true;
    }
}

static void see_commit(collector_t *c, const mcpg_down_commit_t *m) {
    uint32_t group = group_of(c, m->gid);
    timeline_view_t *last = NULL;
    for (uint32_t i = c->t->views.count; i > 0 && last == NULL; i--)
        if (AT(c->t->views, timeline_view_t, i - 1u)->group == group) last = AT(c->t->views, timeline_view_t, i - 1u);
    if (last != NULL && mcpg__view_cmp(last->id, m->view.id) >= 0) return; /* sent again */
    end_barrier(c, m->gid, m->view.id, TIMELINE_COMMITTED);
    if (m->sync) end_syncs(c, group);
    if (last != NULL) last->to = c->r->now.us;
    timeline_view_t *v = ADD(c, &c->t->views, timeline_view_t);
    if (v == NULL) return;
    timeline_group_t *g = AT(c->t->groups, timeline_group_t, group);
    mcpg_rankset_t now, added, removed = g->active;
    mcpg__rankset_clear(&now);
    for (uint32_t i = 0; i < m->view.active_count; i++) mcpg__rankset_add(&now, m->view.active[i].rank.v);
    added = now;
    mcpg__rankset_minus(&added, &g->active);
    mcpg__rankset_minus(&removed, &now);
    *v = (timeline_view_t){.from = c->r->now.us,
                           .to = UINT64_MAX,
                           .group = group,
                           .id = m->view.id,
                           .active = m->view.active_count,
                           .added = mcpg__rankset_count(&added),
                           .removed = mcpg__rankset_count(&removed)};
    if (g->views > 0) {
        set_text(v->change, sizeof v->change, "+", &added);
        set_text(v->change, sizeof v->change, "\xe2\x88\x92", &removed);
        if (v->added + v->removed == 0)
            (void)snprintf(v->change, sizeof v->change, "%s", m->sync ? "sync" : "new process");
    }
    g->views++;
    g->active = now;
}

static void see_states(collector_t *c, const mcpg_down_rank_states_t *m) {
    for (uint32_t i = 0; i < m->count; i++) {
        c->inc[m->ranks[i].rank.v] = m->ranks[i].inc;
        c->dead[m->ranks[i].rank.v] = m->ranks[i].dead;
    }
}

static void see_reply(collector_t *c, uint64_t conn, uint64_t call, int32_t status) {
    for (uint32_t i = c->t->calls.count; i > 0; i--) {
        timeline_call_t *k = AT(c->t->calls, timeline_call_t, i - 1u);
        if (k->conn != conn || k->call != call || k->is_answered) continue;
        k->to = c->r->now.us;
        k->is_answered = true;
        k->status = status;
        return;
    }
}

static void see_effect(collector_t *c, const mcpg_coord_effect_t *fx) {
    if (fx->kind == MCPG_COORD_FX_STOP) note(c, "stopped");
    if (fx->kind == MCPG_COORD_FX_RECORD_CLAIM) note(c, "claims its groups' records");
    if (fx->kind != MCPG_COORD_FX_SEND && fx->kind != MCPG_COORD_FX_SEND_CONN) return;
    const mcpg_down_msg_t *m = fx->msg;
    uint32_t rank = fx->kind == MCPG_COORD_FX_SEND_CONN ? rank_of(c, fx->conn) : NO_RANK;
    if (m->kind == MCPG_DOWN_WELCOME && rank != NO_RANK) {
        c->inc[rank] = m->u.welcome.inc;
        c->dead[rank] = false;
        mcpg__rankset_add(&c->t->ranks, rank);
        mark(c, rank, TIMELINE_ATTACHED);
    }
    if (m->kind == MCPG_DOWN_RANK_STATES) see_states(c, &m->u.rank_states);
    if (m->kind == MCPG_DOWN_PREPARE) see_prepare(c, m->u.prepare.gid, m->u.prepare.view.id);
    if (m->kind == MCPG_DOWN_ABORT) end_barrier(c, m->u.abort.gid, m->u.abort.view, TIMELINE_ABORTED);
    if (m->kind == MCPG_DOWN_COMMIT) see_commit(c, &m->u.commit);
    if (m->kind == MCPG_DOWN_REPLY && fx->kind == MCPG_COORD_FX_SEND_CONN)
        see_reply(c, fx->conn, m->u.reply.call_id, m->u.reply.status);
}

/* ---- the machine's own state ---- */

static void see_rank(collector_t *c, uint32_t rank) {
    uint8_t state = mcpg_coord_rank_state(c->r->coord, (mcpg_rank_t){rank});
    timeline_state_t *open =
        c->open_state[rank] != 0 ? AT(c->t->states, timeline_state_t, c->open_state[rank] - 1u) : NULL;
    bool dead = state == MCPG_RANK_OFFLINE && c->dead[rank];
    if (open != NULL && open->state == state && open->dead == dead && mcpg__inc_eq(open->inc, c->inc[rank])) return;
    if (open != NULL) open->to = c->r->now.us;
    timeline_state_t *s = ADD(c, &c->t->states, timeline_state_t);
    if (s == NULL) return;
    *s = (timeline_state_t){c->r->now.us, UINT64_MAX, rank, state, dead, c->inc[rank]};
    c->open_state[rank] = c->t->states.count;
}

static void see_suspects(collector_t *c) {
    mcpg_rankset_t now;
    mcpg_coord_suspects(c->r->coord, &now);
    const mcpg_rankset_t *ranks = &c->t->ranks;
    for (uint32_t r = mcpg__rankset_next(ranks, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(ranks, r + 1)) {
        bool is_suspect = mcpg__rankset_has(&now, r);
        if (is_suspect == (c->open_suspect[r] != 0)) continue;
        if (!is_suspect) {
            AT(c->t->suspects, timeline_suspect_t, c->open_suspect[r] - 1u)->to = c->r->now.us;
            c->open_suspect[r] = 0;
            continue;
        }
        timeline_suspect_t *s = ADD(c, &c->t->suspects, timeline_suspect_t);
        if (s == NULL) return;
        *s = (timeline_suspect_t){c->r->now.us, UINT64_MAX, r};
        c->open_suspect[r] = c->t->suspects.count;
    }
}

static void see_step(collector_t *c) {
    see_event(c, &c->r->coord_event);
    for (uint32_t i = 0; i < c->r->coord_fx.count; i++) see_effect(c, &c->r->coord_fx.items[i]);
    const mcpg_rankset_t *ranks = &c->t->ranks;
    for (uint32_t r = mcpg__rankset_next(ranks, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(ranks, r + 1))
        see_rank(c, r);
    see_suspects(c);
}

/* What is still open ends with the log; calls that overlap get rows of their own. */
static void finish(collector_t *c) {
    timeline_t *t = c->t;
#define CLOSE(list, type)                                                                                              \
    for (uint32_t i = 0; i < t->list.count; i++)                                                                       \
        if (AT(t->list, type, i)->to == UINT64_MAX) AT(t->list, type, i)->to = t->end;
    CLOSE(states, timeline_state_t)
    CLOSE(suspects, timeline_suspect_t)
    CLOSE(views, timeline_view_t)
    CLOSE(barriers, timeline_barrier_t)
    CLOSE(calls, timeline_call_t)
#undef CLOSE
    for (uint32_t i = 0; i < t->calls.count; i++) {
        timeline_call_t *k = AT(t->calls, timeline_call_t, i);
        uint32_t taken = 0;
        for (uint32_t j = 0; j < i; j++) {
            const timeline_call_t *other = AT(t->calls, timeline_call_t, j);
            if (other->group == k->group && other->to >= k->from && other->row < 32u) taken |= 1u << other->row;
        }
        while (k->row < 31u && (taken & 1u << k->row) != 0) k->row++;
        timeline_group_t *g = AT(t->groups, timeline_group_t, k->group);
        if (k->row + 1u > g->rows) g->rows = k->row + 1u;
    }
}

bool timeline_collect(const mcpg_log_file_t *log, timeline_t *out, char *problem, size_t problem_cap, char *error,
                      size_t error_cap) {
    mcpg_replay_t r;
    collector_t *c = calloc(1, sizeof *c);
    *out = (timeline_t){0};
    problem[0] = '\0';
    if (c == NULL || !mcpg__replay_open(&r, log, true, error, error_cap)) {
        free(c);
        return false;
    }
    c->t = out;
    c->r = &r;
    out->term = r.coord_config.term;
    mcpg_replay_found_t found;
    while ((found = mcpg__replay_next(&r, NULL, NULL)) == MCPG_REPLAY_EVENT) {
        if (out->events++ == 0) out->start = r.now.us;
        out->end = r.now.us;
        see_step(c);
    }
    if (found != MCPG_REPLAY_END) (void)snprintf(problem, problem_cap, "%s", r.problem);
    finish(c);
    bool ok = !c->no_memory && out->events > 0;
    if (!ok) (void)snprintf(error, error_cap, "'%s' has no event to draw, or there is no memory for it", log->prefix);
    mcpg__replay_close(&r);
    free(c->speakers.items);
    free(c);
    if (!ok) timeline_free(out);
    return ok;
}

void timeline_free(timeline_t *t) {
    timeline_list_t *lists[] = {&t->states, &t->suspects, &t->views, &t->barriers, &t->calls,
                                &t->marks,  &t->links,    &t->notes, &t->groups};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) free(lists[i]->items);
    *t = (timeline_t){0};
}
