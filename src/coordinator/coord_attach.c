/* coord_attach.c: streams, sessions, incarnations, and the ways in which a process ends.
 *
 * It decides who a connection is and when a rank is OFFLINE, proved or not. It must never change membership: it tells
 * the groups that an incarnation has ended (I4: from then on nothing stamped with it counts).
 */
#include "coordinator/coord_state.h"

/* Asked for every message: the hint is nearly always right. */
uint32_t mcpg__coord_rank_by_conn(const mcpg_coord_t *c, uint64_t conn) {
    uint32_t hint = c->hints[conn % c->config.max_ranks];
    if (c->conns[hint] == conn) return hint;
    for (uint32_t r = 0; r < c->rank_high; r++)
        if (c->conns[r] == conn) return r;
    return MCPG_COORD_NONE;
}

static void stream_set(mcpg_coord_t *c, uint32_t rank, uint64_t conn) {
    c->conns[rank] = conn;
    if (conn != 0) c->hints[conn % c->config.max_ranks] = rank;
    if (conn != 0)
        mcpg__rankset_add(&c->streams, rank);
    else
        mcpg__rankset_del(&c->streams, rank);
}

/* Everything that hangs on the stream goes with it; the caller closes the connection where that is still needed. */
static void stream_end(mcpg_coord_t *c, uint32_t rank) {
    if (c->conns[rank] == 0) return;
    uint64_t conn = c->conns[rank];
    stream_set(c, rank, 0);
    c->ranks[rank].closed_at_us = c->now.us;
    c->ranks[rank].seen_sum = 0;
    mcpg__rankset_del(&c->need_full, rank);
    mcpg__coord_callers_lost(c, conn);
    mcpg__coord_reports_forget(c, rank);
    mcpg__coord_fault_unask(c, rank);
}

static void state_offline(mcpg_coord_t *c, uint32_t rank) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    /* One that was not in the healthy set is not missed by it. */
    if (r->state == MCPG_RANK_HEALTHY) c->health_dirty = true;
    r->state = MCPG_RANK_OFFLINE;
    c->rank_sum_valid = false;
    mcpg__rankset_del(&c->present, rank);
    mcpg__coord_groups_touch_rank(c, rank);
}

void mcpg__coord_offline(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx) {
    if (c->ranks[rank].state == MCPG_RANK_OFFLINE) return;
    if (c->conns[rank] != 0 && fx != NULL) mcpg__fx_close(fx, c->conns[rank]);
    stream_end(c, rank);
    state_offline(c, rank);
    mcpg__coord_links_offline(c, rank);
}

/* The incarnation has ended for good: proved dead, or said goodbye. */
static void incarnation_ended(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    if (r->dead) return;
    if (c->conns[rank] != 0) mcpg__fx_close(fx, c->conns[rank]);
    stream_end(c, rank);
    r->dead = true;
    state_offline(c, rank);
    mcpg__coord_links_forget(c, rank);
    mcpg__coord_groups_lose_rank(c, rank);
}

/* ---- attach ---- */

static void refuse(mcpg_coord_effects_t *fx, uint64_t conn, mcpg_status_t status, const mcpg_coord_text_t *text) {
    mcpg_down_refused_t *refused = &mcpg__fx_answer(fx, conn, MCPG_DOWN_REFUSED)->u.refused;
    refused->status = status;
    refused->text = mcpg__fx_text(fx, text->buf, text->len);
    mcpg__fx_close(fx, conn);
}

static bool refused_in_general(mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_text_t text = {.len = 0};
    if (m->version != MCPG_PROTOCOL_VERSION) {
        mcpg__coord_say(&text, "this process speaks protocol version ");
        mcpg__coord_say_u64(&text, m->version);
        mcpg__coord_say(&text, ", the coordinator ");
        mcpg__coord_say_u64(&text, MCPG_PROTOCOL_VERSION);
        mcpg__coord_say(&text, ": install the same release everywhere");
        refuse(fx, conn, MCPG_VERSION_MISMATCH, &text);
        return true;
    }
    if (m->highest_term > c->config.term || m->prev_inc.term > c->config.term) { /* rule 8 */
        mcpg__coord_say(&text, "a coordinator of term ");
        mcpg__coord_say_u64(&text, m->highest_term > m->prev_inc.term ? m->highest_term : m->prev_inc.term);
        mcpg__coord_say(&text, " rules this process, this one has term ");
        mcpg__coord_say_u64(&text, c->config.term);
        mcpg__coord_say(&text, " and steps down: attach to the newer one");
        refuse(fx, conn, MCPG_UNAVAILABLE, &text);
        mcpg__coord_depose(c);
        return true;
    }
    if (c->shutting) { /* I9 */
        mcpg__coord_say(&text, "the coordinator is shutting down: attach to its successor");
        refuse(fx, conn, MCPG_SHUTTING_DOWN, &text);
        return true;
    }
    if (m->rank.v >= c->config.max_ranks) {
        mcpg__coord_say(&text, "global rank ");
        mcpg__coord_say_u64(&text, m->rank.v);
        mcpg__coord_say(&text, " is not below the coordinator's limit of ");
        mcpg__coord_say_u64(&text, c->config.max_ranks);
        refuse(fx, conn, MCPG_INVALID_ARGUMENT, &text);
        return true;
    }
    if (m->endpoint.len > MCPG_ENDPOINT_CAP) {
        mcpg__coord_say(&text, "the data plane endpoint has ");
        mcpg__coord_say_u64(&text, m->endpoint.len);
        mcpg__coord_say(&text, " bytes, more than 256");
        refuse(fx, conn, MCPG_INVALID_ARGUMENT, &text);
        return true;
    }
    return false;
}

static bool same_session(const mcpg_coord_rank_t *r, const mcpg_up_attach_t *m) {
    return r->known && r->session.v != 0 && r->session.v == m->session.v;
}

/* The process has its incarnation from an earlier coordinator and keeps it. */
static bool brings_incarnation(const mcpg_coord_t *c, const mcpg_up_attach_t *m) {
    const mcpg_coord_rank_t *r = &c->ranks[m->rank.v];
    if (m->prev_inc.term == 0 || m->prev_inc.term >= c->config.term || same_session(r, m)) return false;
    int cmp = r->known ? mcpg__inc_cmp(m->prev_inc, r->inc) : 1;
    return cmp > 0 || (cmp == 0 && r->session.v == 0 && !r->dead);
}

/* A rank that is OFFLINE and active nowhere is free for a new process: the old one is superseded. */
static bool replaceable(const mcpg_coord_t *c, const mcpg_coord_rank_t *r) {
    return r->state == MCPG_RANK_OFFLINE && r->active_count == 0 && !mcpg__coord_rebuilding(c);
}

/* False: nothing speaks against it. */
static bool refused_as_superseded(const mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m,
                                  mcpg_coord_effects_t *fx) {
    const mcpg_coord_rank_t *r = &c->ranks[m->rank.v];
    mcpg_coord_text_t text = {.len = 0};
    if (mcpg__inc_none(m->prev_inc) || same_session(r, m)) return false;
    if (m->prev_inc.term == c->config.term && m->prev_inc.counter > c->last_counter) {
        mcpg__coord_say(&text, "another coordinator of this one's term ");
        mcpg__coord_say_u64(&text, c->config.term);
        mcpg__coord_say(&text, " ruled this process: give every coordinator a higher term than the one before it");
        refuse(fx, conn, MCPG_INVALID_STATE, &text);
        return true;
    }
    if (!r->known || mcpg__inc_cmp(m->prev_inc, r->inc) >= 0) return false;
    mcpg__coord_say(&text, "another process has taken rank ");
    mcpg__coord_say_u64(&text, m->rank.v);
    mcpg__coord_say(&text, " while this one was away: end it, and start a new one under another rank if it is wanted");
    refuse(fx, conn, MCPG_INVALID_STATE, &text);
    return true;
}

/* Who is new waits until the earlier coordinator's ranks are known. */
static bool refused_as_early(const mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m,
                             mcpg_coord_effects_t *fx) {
    mcpg_coord_text_t text = {.len = 0};
    if (!mcpg__coord_rebuilding(c) || same_session(&c->ranks[m->rank.v], m) || brings_incarnation(c, m)) return false;
    mcpg__coord_say_gathering(&text);
    refuse(fx, conn, MCPG_UNAVAILABLE, &text);
    return true;
}

/* The slot is another process's, or this session is over. */
static bool refused_by_slot(const mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m, mcpg_coord_effects_t *fx) {
    const mcpg_coord_rank_t *r = &c->ranks[m->rank.v];
    bool same = same_session(r, m);
    mcpg_coord_text_t text = {.len = 0};
    if (r->known && !r->dead && !same && !brings_incarnation(c, m) && !replaceable(c, r)) {
        mcpg__coord_say_rank(&text, c, m->rank.v);
        mcpg__coord_say(&text, " and its process, pid ");
        mcpg__coord_say_u64(&text, (uint64_t)r->pid);
        mcpg__coord_say(&text, ", is not known to be dead: end it first, or use another rank");
        refuse(fx, conn, MCPG_RANK_IN_USE, &text);
        return true;
    }
    /* The message of a process that the launcher has already seen end; should the pid be a new process's, trying again
     * helps. */
    if (r->exited && r->exited_pid == m->pid &&
        c->now.us < mcpg__after((mcpg_time_t){r->exited_at_us}, c->config.timers.offline_us)) {
        mcpg__coord_say(&text, "pid ");
        mcpg__coord_say_u64(&text, (uint64_t)m->pid);
        mcpg__coord_say(&text,
                        " of this rank was just reported as ended: trying again will help if it is a new process");
        refuse(fx, conn, MCPG_RANK_IN_USE, &text);
        return true;
    }
    if (r->left && same) {
        mcpg__coord_say(&text, "this session has said goodbye: create a new context");
        refuse(fx, conn, MCPG_INVALID_STATE, &text);
        return true;
    }
    return false;
}

/* Rule 9: the same session keeps its incarnation unless a view was committed without its ACK. */
bool mcpg__coord_lost_a_view(const mcpg_coord_t *c, uint32_t rank) {
    if (c->ranks[rank].renew) return true;
    for (uint32_t i = 0; i < c->group_high; i++) {
        const mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !mcpg__rankset_has(&g->ranks, rank)) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        if (slot != MCPG_COORD_NONE && mcpg__rankset_has(&g->unseen, slot)) return true;
    }
    return false;
}

/* A fresh incarnation; the earlier one, if there was any, ends here. */
static void incarnation_begin(mcpg_coord_t *c, uint32_t rank) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    if (r->known && !r->dead) {
        stream_end(c, rank);
        state_offline(c, rank);
    }
    if (r->known) {
        mcpg__coord_links_forget(c, rank);
        mcpg__coord_groups_lose_rank(c, rank);
    }
    r->inc = (mcpg_incarnation_t){c->config.term, ++c->last_counter};
    r->known = true;
    r->dead = false;
    r->left = false;
    r->reported = true;
    r->renew = false;
    r->active_count = 0;
    r->seen_sum = 0;
    if (rank >= c->rank_high) c->rank_high = rank + 1;
}

void mcpg__coord_name(mcpg_coord_t *c, uint32_t rank, mcpg_incarnation_t inc, mcpg_coord_effects_t *fx) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    if (inc.term == 0 || inc.term >= c->config.term) return; /* none, or one that only this coordinator gives */
    if (r->known && mcpg__inc_cmp(inc, r->inc) <= 0) return;
    if (r->known) {
        if (c->conns[rank] != 0) mcpg__fx_close(fx, c->conns[rank]);
        stream_end(c, rank);
        if (r->state != MCPG_RANK_OFFLINE) state_offline(c, rank);
        mcpg__coord_links_forget(c, rank);
        mcpg__coord_groups_lose_rank(c, rank);
    }
    r->inc = inc;
    r->known = true;
    r->dead = r->left = r->reported = r->renew = false;
    r->session.v = 0;
    r->host_id = 0;
    r->pid = 0;
    r->endpoint_len = 0;
    r->active_count = 0;
    r->seen_sum = 0;
    c->rank_sum_valid = false;
    if (rank >= c->rank_high) c->rank_high = rank + 1;
}

static void identity_set(mcpg_coord_rank_t *r, const mcpg_up_attach_t *m) {
    r->session = m->session;
    r->host_id = m->host_id;
    r->pid = m->pid;
    memset(r->endpoint, 0, sizeof(r->endpoint));
    if (m->endpoint.len > 0) memcpy(r->endpoint, m->endpoint.ptr, m->endpoint.len);
    r->endpoint_len = m->endpoint.len;
}

/* What a resumed process holds open and nobody waits for is aborted when its groups are sent again. */
static void reports_take(mcpg_coord_t *c, uint32_t rank, const mcpg_up_attach_t *m) {
    for (uint32_t i = 0; i < m->report_count; i++) {
        const mcpg_group_report_t *report = &m->reports[i];
        mcpg_coord_group_t *g = mcpg__coord_group_find(c, report->gid);
        if (g == NULL) continue;
        uint32_t slot = mcpg__coord_slot_of(c, g, rank);
        if (slot == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, slot)) continue;
        mcpg__coord_slot(c, g, slot)->abort_view = report->acked;
    }
}

void mcpg__coord_attach(mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m, mcpg_coord_effects_t *fx) {
    if (mcpg__coord_rank_by_conn(c, conn) != MCPG_COORD_NONE) return; /* said twice on one stream */
    if (refused_in_general(c, conn, m, fx) || refused_as_superseded(c, conn, m, fx)) return;
    if (refused_as_early(c, conn, m, fx) || refused_by_slot(c, conn, m, fx)) return;
    uint32_t rank = m->rank.v;
    mcpg_coord_rank_t *r = &c->ranks[rank];
    mcpg__coord_mass_back(c);
    bool brings = brings_incarnation(c, m);
    if (brings) mcpg__coord_name(c, rank, m->prev_inc, fx);
    if (c->conns[rank] != 0) {
        mcpg__fx_close(fx, c->conns[rank]);
        stream_end(c, rank);
    }
    bool resumed = !r->dead && (brings || same_session(r, m)) && !mcpg__coord_lost_a_view(c, rank);
    if (!resumed) incarnation_begin(c, rank);
    identity_set(r, m);
    stream_set(c, rank, conn);
    r->last_heard_us = c->now.us;
    if (r->state == MCPG_RANK_OFFLINE) {
        r->state = MCPG_RANK_SYNCED;
        mcpg__rankset_add(&c->present, rank);
        mcpg__coord_health_rank_added(c, rank);
        mcpg__coord_groups_touch_rank(c, rank);
    }
    c->rank_sum_valid = false;
    mcpg__rankset_add(&c->need_full, rank);
    mcpg__coord_want(c, mcpg__after(c->now, c->config.timers.offline_us));
    mcpg_down_welcome_t *welcome = &mcpg__fx_answer(fx, conn, MCPG_DOWN_WELCOME)->u.welcome;
    welcome->term = c->config.term;
    welcome->coordinator_id = c->config.coordinator_id;
    welcome->inc = r->inc;
    welcome->resumed = resumed;
    welcome->heartbeat_us = c->config.timers.heartbeat_us;
    welcome->offline_us = c->config.timers.offline_us;
    welcome->rebuilding = mcpg__coord_rebuilding(c);
    if (!resumed) return;
    reports_take(c, rank, m);
    mcpg__coord_groups_resync(c, rank);
}

/* ---- heartbeats, silence, ends ---- */

/* Anti-entropy: two heartbeats in a row that differ from the same sum of ours are no longer a push under way. */
void mcpg__coord_heartbeat(mcpg_coord_t *c, uint32_t rank, const mcpg_up_heartbeat_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    uint64_t ours = mcpg__coord_digest_for(c, rank);
    if (m->digest == 0 || m->digest == ours) {
        r->seen_sum = 0;
    } else if (r->seen_sum == ours) {
        r->seen_sum = 0;
        mcpg__rankset_add(&c->need_full, rank);
        mcpg__coord_groups_resync(c, rank);
    } else {
        r->seen_sum = ours;
    }
    mcpg_down_heartbeat_reply_t *reply =
        &mcpg__fx_answer(fx, c->conns[rank], MCPG_DOWN_HEARTBEAT_REPLY)->u.heartbeat_reply;
    reply->digest = ours;
    reply->sent_us = m->sent_us;
    mcpg__coord_groups_nag(c, rank);
}

void mcpg__coord_closed(mcpg_coord_t *c, uint64_t conn) {
    uint32_t rank = mcpg__coord_rank_by_conn(c, conn);
    if (rank == MCPG_COORD_NONE) return;
    stream_end(c, rank);
    mcpg__coord_want(c, mcpg__after(c->now, c->config.timers.offline_us));
    mcpg__coord_links_all_lost(c, rank);
}

void mcpg__coord_exit(mcpg_coord_t *c, uint32_t rank, int64_t pid, mcpg_coord_effects_t *fx) {
    mcpg_coord_rank_t *r = &c->ranks[rank];
    r->exited = true;
    r->exited_pid = pid;
    r->exited_at_us = c->now.us;
    if (rank >= c->rank_high) c->rank_high = rank + 1;
    if (!r->known) { /* it ended before it attached: a founder proved dead blocks nobody */
        incarnation_begin(c, rank);
        r->pid = pid;
        r->dead = true;
        c->rank_sum_valid = false;
        mcpg__coord_groups_touch_rank(c, rank);
        return;
    }
    /* One that is only named has no other process that the launcher could mean. */
    if (r->pid == pid || r->session.v == 0) incarnation_ended(c, rank, fx);
}

void mcpg__coord_death(mcpg_coord_t *c, uint32_t rank, const mcpg_up_death_t *m, mcpg_coord_effects_t *fx) {
    if (m->rank.v >= c->config.max_ranks || m->rank.v == rank) return;
    const mcpg_coord_rank_t *r = &c->ranks[m->rank.v];
    mcpg__coord_name(c, m->rank.v, m->inc, fx);
    if (!r->known || !mcpg__inc_eq(r->inc, m->inc)) return; /* I4: about an older process */
    incarnation_ended(c, m->rank.v, fx);
}

void mcpg__coord_detach(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx) {
    c->ranks[rank].left = true;
    incarnation_ended(c, rank, fx);
}

static uint64_t silence_deadline(const mcpg_coord_t *c, uint32_t rank) {
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    uint64_t since = c->conns[rank] != 0 ? r->last_heard_us : r->closed_at_us;
    return mcpg__after((mcpg_time_t){since}, c->config.timers.offline_us);
}

void mcpg__coord_silence(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    mcpg_rankset_t present = c->present;
    for (uint32_t r = mcpg__rankset_next(&present, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(&present, r + 1))
        if (c->now.us >= silence_deadline(c, r)) {
            uint32_t before = mcpg__rankset_count(&c->present);
            mcpg__coord_offline(c, r, fx);
            mcpg__coord_mass_note(c, before);
        }
}

uint64_t mcpg__coord_silence_deadline(const mcpg_coord_t *c) {
    uint64_t earliest = MCPG_COORD_NEVER;
    for (uint32_t r = mcpg__rankset_next(&c->present, 0); r < MCPG_MAX_RANKS;
         r = mcpg__rankset_next(&c->present, r + 1))
        if (silence_deadline(c, r) < earliest) earliest = silence_deadline(c, r);
    return earliest;
}
