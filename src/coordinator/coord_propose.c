/* coord_propose.c: what callers ask of a group's membership: checked, merged, queued, waited for, answered.
 *
 * One entry per distinct request, any number of callers on it. Each caller is answered exactly once (I5), and only when
 * the view is installed everywhere. It must never change a view itself; it opens barriers.
 */
#include "coordinator/coord_state.h"

/* ---- tables ---- */

static uint32_t prop_new(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    for (uint32_t i = 0; i < c->prop_cap; i++) {
        mcpg_coord_prop_t *p = &c->props[i];
        if (p->phase != MCPG_COORD_PROP_FREE) continue;
        if (i >= c->prop_high) c->prop_high = i + 1;
        memset(p, 0, sizeof(*p));
        p->group = (uint32_t)(g - c->groups);
        p->next = p->first_caller = MCPG_COORD_NONE;
        if (g->last_proposal == MCPG_COORD_NONE)
            g->first_proposal = i;
        else
            c->props[g->last_proposal].next = i;
        g->last_proposal = i;
        g->proposal_count++;
        c->props_used++;
        return i;
    }
    return MCPG_COORD_NONE;
}

static void prop_free(mcpg_coord_t *c, uint32_t index) {
    mcpg_coord_prop_t *p = &c->props[index];
    mcpg_coord_group_t *g = &c->groups[p->group];
    uint32_t before = MCPG_COORD_NONE;
    for (uint32_t i = g->first_proposal; i != index; i = c->props[i].next) before = i;
    if (before == MCPG_COORD_NONE)
        g->first_proposal = p->next;
    else
        c->props[before].next = p->next;
    if (g->last_proposal == index) g->last_proposal = before;
    g->proposal_count--;
    c->props_used--;
    memset(p, 0, sizeof(*p));
}

static bool caller_add(mcpg_coord_t *c, uint32_t prop, uint64_t conn, uint64_t call_id, uint64_t wait_us) {
    for (uint32_t i = 0; i < c->caller_cap; i++) {
        mcpg_coord_caller_t *caller = &c->callers[i];
        if (caller->used) continue;
        if (i >= c->caller_high) c->caller_high = i + 1;
        *caller = (mcpg_coord_caller_t){.used = true,
                                        .next = MCPG_COORD_NONE,
                                        .conn = conn,
                                        .call_id = call_id,
                                        .wait_until_us = wait_us == 0 ? 0 : mcpg__after(c->now, wait_us)};
        uint32_t *link = &c->props[prop].first_caller; /* appended: answered in the order of the calls */
        while (*link != MCPG_COORD_NONE) link = &c->callers[*link].next;
        *link = i;
        c->callers_used++;
        return true;
    }
    return false;
}

static void caller_free(mcpg_coord_t *c, uint32_t *link) {
    uint32_t index = *link;
    *link = c->callers[index].next;
    memset(&c->callers[index], 0, sizeof(c->callers[index]));
    c->callers_used--;
}

/* ---- checks ---- */

static bool active_for_good(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_rank_t *r = mcpg__coord_rank_of(c, g, slot);
    return mcpg__rankset_has(&g->active, slot) && !mcpg__rankset_has(&g->fenced, slot) && !r->dead &&
           mcpg__inc_eq(mcpg__coord_slot(c, g, slot)->active, r->inc);
}

/* What is still to do: rule 9 for additions, stamps for removals. */
static void still_to_do(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_coord_prop_t *p,
                        mcpg_rankset_t *add, mcpg_rankset_t *remove) {
    *add = p->activate;
    for (uint32_t s = mcpg__rankset_next(&p->activate, 0); s < g->order_count;
         s = mcpg__rankset_next(&p->activate, s + 1))
        if (active_for_good(c, g, s)) mcpg__rankset_del(add, s);
    *remove = p->deactivate;
    mcpg__rankset_and(remove, &g->active);
    mcpg__rankset_minus(remove, &p->stale);
    for (uint32_t s = mcpg__rankset_next(remove, 0); s < g->order_count; s = mcpg__rankset_next(remove, s + 1))
        if (mcpg__coord_slot(c, g, s)->active_since > p->admit_epoch) mcpg__rankset_del(remove, s);
}

/* Rule 11. OK, or the reason with its sentence. */
static mcpg_status_t admissible(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *add,
                                mcpg_coord_text_t *text) {
    for (uint32_t s = mcpg__rankset_next(add, 0); s < g->order_count; s = mcpg__rankset_next(add, s + 1)) {
        uint32_t rank = mcpg__coord_slot(c, g, s)->rank.v;
        const mcpg_coord_rank_t *r = &c->ranks[rank];
        if (r->state != MCPG_RANK_HEALTHY || r->endpoint_len == 0) {
            uint32_t peer = r->state == MCPG_RANK_SYNCED ? mcpg__coord_missing_link(c, rank) : MCPG_COORD_NONE;
            mcpg__coord_say_rank(text, c, rank);
            if (r->state == MCPG_RANK_HEALTHY) mcpg__coord_say(text, " but has published no endpoint");
            if (peer != MCPG_COORD_NONE) {
                mcpg__coord_say(text, ", it has no working link to rank ");
                mcpg__coord_say_u64(text, peer);
            }
            mcpg__coord_say(text, r->dead || !r->known ? ": start its process, or pass wait_us"
                                                       : ": wait until get_peer_state shows it, or pass wait_us");
            return MCPG_NOT_HEALTHY;
        }
        if (!mcpg__coord_registered(c, g, s) || !mcpg__rankset_has(&g->awaiting, s)) {
            mcpg__coord_say_rank(text, c, rank);
            mcpg__coord_say(text, mcpg__coord_registered(c, g, s) ? " but has not called join_group"
                                                                  : " but has not created the group");
            mcpg__coord_say(text, ": wait until get_peer_state shows it, or pass wait_us");
            return MCPG_NOT_AWAITING;
        }
    }
    return MCPG_OK;
}

static bool in_flight(const mcpg_coord_prop_t *p) {
    return p->phase == MCPG_COORD_PROP_WAIT || p->phase == MCPG_COORD_PROP_QUEUED ||
           p->phase == MCPG_COORD_PROP_RUNNING;
}

static uint32_t find_identical(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_coord_prop_t *wanted) {
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = c->props[i].next) {
        const mcpg_coord_prop_t *p = &c->props[i];
        if (in_flight(p) && mcpg__rankset_eq(&p->activate, &wanted->activate) &&
            mcpg__rankset_eq(&p->deactivate, &wanted->deactivate) && mcpg__rankset_eq(&p->stale, &wanted->stale))
            return i;
    }
    return MCPG_COORD_NONE;
}

/* A slot that one of the two wants in and the other out, or MAX_RANKS. Removals with a stale stamp mean an older
 * process. */
static uint32_t find_opposite(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_coord_prop_t *wanted) {
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = c->props[i].next) {
        const mcpg_coord_prop_t *p = &c->props[i];
        if (!in_flight(p)) continue;
        mcpg_rankset_t out_now = wanted->deactivate, out_then = p->deactivate;
        mcpg__rankset_minus(&out_now, &wanted->stale);
        mcpg__rankset_and(&out_now, &p->activate);
        mcpg__rankset_minus(&out_then, &p->stale);
        mcpg__rankset_and(&out_then, &wanted->activate);
        mcpg__rankset_or(&out_now, &out_then);
        if (!mcpg__rankset_empty(&out_now)) return mcpg__rankset_next(&out_now, 0);
    }
    return MCPG_MAX_RANKS;
}

/* ---- arrival ---- */

static mcpg_status_t check_group(const mcpg_coord_t *c, uint32_t rank, const mcpg_up_propose_t *m,
                                 const mcpg_coord_group_t *g, mcpg_coord_text_t *text) {
    if (c->shutting) { /* I9 */
        mcpg__coord_say(text, "the coordinator is shutting down: the membership stays as it is");
        return MCPG_SHUTTING_DOWN;
    }
    uint32_t own = g == NULL ? MCPG_COORD_NONE : mcpg__coord_slot_of(c, g, rank);
    if (g == NULL || own == MCPG_COORD_NONE || !mcpg__coord_registered(c, g, own)) {
        mcpg__coord_say(text, "rank ");
        mcpg__coord_say_u64(text, rank);
        mcpg__coord_say(text, " is not registered in group ");
        mcpg__coord_say_u64(text, m->gid.v);
        mcpg__coord_say(text, ": create the group first");
        return MCPG_NOT_FOUND;
    }
    if (g->phase != MCPG_COORD_GROUP_READY) {
        mcpg__coord_say(text, "group ");
        mcpg__coord_say_u64(text, g->gid.v);
        mcpg__coord_say(text, " is still forming: wait until all founders have created it");
        return MCPG_INVALID_STATE;
    }
    uint32_t high = mcpg__rankset_next(&m->activate, g->order_count),
             low = mcpg__rankset_next(&m->deactivate, g->order_count);
    if (high < MCPG_MAX_RANKS || low < MCPG_MAX_RANKS || mcpg__rankset_meets(&m->activate, &m->deactivate)) {
        mcpg__coord_say(text, "a slot is named twice or is not below the group's ");
        mcpg__coord_say_u64(text, g->order_count);
        mcpg__coord_say(text, " slots: pass in-group ranks");
        return MCPG_INVALID_ARGUMENT;
    }
    return MCPG_OK;
}

/* Stamps that are no longer active: those removals are satisfied, a late one never hits a replacement (I4). */
static void stale_stamps(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_up_propose_t *m,
                         mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    for (uint32_t i = 0; i < m->stamp_count; i++) {
        uint32_t slot = m->stamps[i].slot.v;
        if (slot >= g->order_count || !mcpg__rankset_has(&m->deactivate, slot)) continue;
        bool current =
            mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(mcpg__coord_slot(c, g, slot)->active, m->stamps[i].inc);
        if (!current) mcpg__rankset_add(out, slot);
    }
}

static mcpg_status_t check_against(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_coord_prop_t *wanted,
                                   mcpg_coord_text_t *text) {
    if (wanted->expected_epoch != MCPG_ANY_EPOCH && wanted->expected_epoch != g->committed.epoch) {
        mcpg__coord_say(text, "the group is at epoch ");
        mcpg__coord_say_u64(text, g->committed.epoch);
        mcpg__coord_say(text, ", not ");
        mcpg__coord_say_u64(text, wanted->expected_epoch);
        mcpg__coord_say(text, ": read the view and decide again");
        return MCPG_STALE_EPOCH;
    }
    if (find_identical(c, g, wanted) != MCPG_COORD_NONE) return MCPG_OK;
    uint32_t slot = find_opposite(c, g, wanted);
    if (slot == MCPG_MAX_RANKS) return MCPG_OK;
    mcpg__coord_say(text, "an opposite request for in-group rank ");
    mcpg__coord_say_u64(text, slot);
    mcpg__coord_say(text, " is in flight: wait for its end and read the view");
    return MCPG_CONFLICT;
}

static mcpg_status_t take(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_coord_prop_t *wanted,
                          mcpg_coord_prop_phase_t phase, uint64_t conn, const mcpg_up_propose_t *m,
                          mcpg_coord_text_t *text) {
    bool merging = phase == MCPG_COORD_PROP_WAIT || phase == MCPG_COORD_PROP_QUEUED;
    uint32_t index = merging ? find_identical(c, g, wanted) : MCPG_COORD_NONE;
    bool merged = index != MCPG_COORD_NONE;
    if (!merged) index = prop_new(c, g);
    if (index == MCPG_COORD_NONE || !caller_add(c, index, conn, m->call_id, m->wait_us)) {
        if (index != MCPG_COORD_NONE && !merged) prop_free(c, index);
        mcpg__coord_say(text, "too many membership requests are open: try again");
        return MCPG_BUSY;
    }
    if (m->wait_us != 0) mcpg__coord_want(c, mcpg__after(c->now, m->wait_us));
    mcpg__coord_touch(g);
    if (merged) return MCPG_OK;
    mcpg_coord_prop_t *p = &c->props[index];
    p->phase = phase;
    p->activate = wanted->activate;
    p->deactivate = wanted->deactivate;
    p->stale = wanted->stale;
    p->expected_epoch = wanted->expected_epoch;
    p->admit_epoch = wanted->admit_epoch;
    p->epoch = g->committed.epoch;
    return MCPG_OK;
}

void mcpg__coord_propose(mcpg_coord_t *c, uint32_t rank, const mcpg_up_propose_t *m, mcpg_coord_effects_t *fx) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg_coord_group_t *g = mcpg__coord_group_find(c, m->gid);
    uint64_t conn = c->conns[rank], epoch = g == NULL ? 0 : g->committed.epoch;
    mcpg_status_t status = check_group(c, rank, m, g, &text);
    if (status == MCPG_OK) {
        mcpg_coord_prop_t wanted = {.activate = m->activate,
                                    .deactivate = m->deactivate,
                                    .expected_epoch = m->expected_epoch,
                                    .admit_epoch = epoch};
        mcpg_rankset_t add, remove;
        stale_stamps(c, g, m, &wanted.stale);
        still_to_do(c, g, &wanted, &add, &remove);
        bool satisfied = mcpg__rankset_empty(&add) && mcpg__rankset_empty(&remove);
        if (g->rebuild != MCPG_COORD_REBUILD_NONE) {
            status = m->wait_us != 0 ? take(c, g, &wanted, MCPG_COORD_PROP_WAIT, conn, m, &text) : MCPG_UNAVAILABLE;
            if (status == MCPG_UNAVAILABLE) mcpg__coord_say_gathering(&text);
        } else if (satisfied && /* what an open request is about to undo is not satisfied */
                   find_opposite(c, g, &wanted) == MCPG_MAX_RANKS) {
            status = take(c, g, &wanted, MCPG_COORD_PROP_APPLIED, conn, m, &text);
        } else {
            status = check_against(c, g, &wanted, &text);
            bool merges = status == MCPG_OK && find_identical(c, g, &wanted) != MCPG_COORD_NONE;
            mcpg_coord_prop_phase_t phase = MCPG_COORD_PROP_QUEUED;
            if (status == MCPG_OK && !merges) {
                status = admissible(c, g, &add, &text);
                if (status != MCPG_OK && m->wait_us != 0) {
                    status = MCPG_OK;
                    phase = MCPG_COORD_PROP_WAIT;
                }
            }
            if (status == MCPG_OK) status = take(c, g, &wanted, phase, conn, m, &text);
        }
    }
    if (status != MCPG_OK) mcpg__fx_refuse_call(fx, conn, m->call_id, status, epoch, &text);
}

/* ---- carrying out ---- */

void mcpg__coord_proposal_reject(mcpg_coord_t *c, uint32_t index, mcpg_status_t status, uint64_t epoch,
                                 const mcpg_coord_text_t *text) {
    mcpg_coord_prop_t *p = &c->props[index];
    p->phase = MCPG_COORD_PROP_ANSWER;
    p->status = status;
    p->epoch = epoch;
    p->text_len = text->len;
    memcpy(p->text, text->buf, text->len);
    mcpg__coord_touch(&c->groups[p->group]);
}

void mcpg__coord_proposal_applied(mcpg_coord_t *c, uint32_t index, const mcpg_rankset_t *dropped, uint64_t epoch) {
    mcpg_coord_prop_t *p = &c->props[index];
    p->phase = MCPG_COORD_PROP_APPLIED;
    p->dropped = *dropped;
    p->epoch = epoch;
}

static bool somebody_waits(const mcpg_coord_t *c, const mcpg_coord_prop_t *p) {
    for (uint32_t i = p->first_caller; i != MCPG_COORD_NONE; i = c->callers[i].next)
        if (c->callers[i].wait_until_us > c->now.us) return true;
    return false;
}

static mcpg_status_t say_stranded(const mcpg_coord_group_t *g, mcpg_coord_text_t *text) {
    mcpg__coord_say(text, "no active rank of group ");
    mcpg__coord_say_u64(text, g->gid.v);
    mcpg__coord_say(text, " is attached: try again when one is back, or pass wait_us");
    return MCPG_NOT_HEALTHY;
}

/* Looks at one entry that is not running. True: its state changed. */
static bool try_start(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t index, mcpg_coord_effects_t *fx) {
    mcpg_coord_prop_t *p = &c->props[index];
    mcpg_rankset_t add, remove;
    mcpg_coord_text_t text = {.len = 0};
    still_to_do(c, g, p, &add, &remove);
    if (mcpg__rankset_empty(&add) && mcpg__rankset_empty(&remove)) { /* satisfied by what came before it */
        mcpg_rankset_t none;
        mcpg__rankset_clear(&none);
        mcpg__coord_proposal_applied(c, index, &none, g->committed.epoch);
        return true;
    }
    mcpg_status_t status = MCPG_OK;
    if (p->expected_epoch != MCPG_ANY_EPOCH && p->expected_epoch != g->committed.epoch)
        status = check_against(c, g, p, &text);
    if (status == MCPG_OK) {
        status = mcpg__coord_stranded(c, g) ? say_stranded(g, &text) : admissible(c, g, &add, &text);
        if (status != MCPG_OK && somebody_waits(c, p)) { /* nothing waits behind it */
            p->phase = MCPG_COORD_PROP_WAIT;
            return false;
        }
    }
    if (status != MCPG_OK) {
        mcpg__coord_proposal_reject(c, index, status, g->committed.epoch, &text);
        return true;
    }
    /* An addition starts only when all have passed the view before it, and not in the middle of an agreement. */
    bool settled = mcpg__coord_everywhere(c, g, g->committed.epoch) && !g->sync_on && g->sync_owner.v == 0;
    if (!mcpg__rankset_empty(&add) && !settled) return false;
    p->phase = MCPG_COORD_PROP_RUNNING;
    mcpg__coord_barrier_open(c, g, MCPG_COORD_BARRIER_CHANGE, &add, &remove, index, fx);
    return true;
}

bool mcpg__coord_proposal_start(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    bool moved = false;
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = c->props[i].next) {
        if (c->props[i].phase != MCPG_COORD_PROP_WAIT && c->props[i].phase != MCPG_COORD_PROP_QUEUED) continue;
        moved = try_start(c, g, i, fx) || moved;
        if (g->barrier.phase != MCPG_COORD_BARRIER_NONE) return true;
    }
    return moved;
}

/* ---- answering ---- */

static void answer(const mcpg_coord_prop_t *p, const mcpg_coord_caller_t *caller, mcpg_coord_effects_t *fx) {
    mcpg_down_reply_t *reply = &mcpg__fx_answer(fx, caller->conn, MCPG_DOWN_REPLY)->u.reply;
    reply->call_id = caller->call_id;
    reply->status = p->status;
    reply->epoch = p->epoch;
    reply->dropped = p->dropped;
    reply->dropped_any = !mcpg__rankset_empty(&p->dropped);
    reply->text = mcpg__fx_text(fx, p->text, p->text_len);
}

bool mcpg__coord_proposals_answer(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx) {
    uint32_t next;
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = next) {
        mcpg_coord_prop_t *p = &c->props[i];
        next = p->next;
        bool ready = p->phase == MCPG_COORD_PROP_ANSWER ||
                     (p->phase == MCPG_COORD_PROP_APPLIED && mcpg__coord_everywhere(c, g, p->epoch));
        if (!ready && !(p->first_caller == MCPG_COORD_NONE && p->phase != MCPG_COORD_PROP_RUNNING)) continue;
        while (p->first_caller != MCPG_COORD_NONE) {
            if (!mcpg__fx_room_answer(c, fx)) return false;
            answer(p, &c->callers[p->first_caller], fx);
            caller_free(c, &p->first_caller); /* I5 */
        }
        prop_free(c, i);
    }
    return true;
}

void mcpg__coord_proposals_reject_all(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_status_t status, const char *words) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg__coord_say(&text, words);
    for (uint32_t i = g->first_proposal; i != MCPG_COORD_NONE; i = c->props[i].next)
        if (in_flight(&c->props[i])) mcpg__coord_proposal_reject(c, i, status, g->committed.epoch, &text);
}

void mcpg__coord_proposals_forget(mcpg_coord_t *c, mcpg_coord_group_t *g) {
    while (g->first_proposal != MCPG_COORD_NONE) {
        mcpg_coord_prop_t *p = &c->props[g->first_proposal];
        while (p->first_caller != MCPG_COORD_NONE) caller_free(c, &p->first_caller);
        prop_free(c, g->first_proposal);
    }
}

void mcpg__coord_callers_lost(mcpg_coord_t *c, uint64_t conn) {
    if (c->callers_used == 0) return;
    for (uint32_t i = 0; i < c->prop_high; i++) {
        mcpg_coord_prop_t *p = &c->props[i];
        if (p->phase == MCPG_COORD_PROP_FREE) continue;
        uint32_t *link = &p->first_caller;
        while (*link != MCPG_COORD_NONE) {
            if (c->callers[*link].conn == conn)
                caller_free(c, link);
            else
                link = &c->callers[*link].next;
        }
        mcpg__coord_touch(&c->groups[p->group]);
    }
}

bool mcpg__coord_callers_expire(mcpg_coord_t *c, mcpg_coord_effects_t *fx) {
    if (c->callers_used == 0) return true;
    for (uint32_t i = 0; i < c->prop_high; i++) {
        mcpg_coord_prop_t *p = &c->props[i];
        if (p->phase != MCPG_COORD_PROP_WAIT) continue;
        mcpg_coord_group_t *g = &c->groups[p->group];
        uint32_t *link = &p->first_caller;
        while (*link != MCPG_COORD_NONE) {
            mcpg_coord_caller_t *caller = &c->callers[*link];
            if (caller->wait_until_us > c->now.us) {
                link = &caller->next;
                continue;
            }
            if (!mcpg__fx_room_answer(c, fx)) return false;
            mcpg_rankset_t add, remove;
            mcpg_coord_text_t text = {.len = 0};
            still_to_do(c, g, p, &add, &remove);
            mcpg_status_t status = admissible(c, g, &add, &text);
            if (g->rebuild != MCPG_COORD_REBUILD_NONE) {
                status = MCPG_UNAVAILABLE;
                text.len = 0;
                mcpg__coord_say_gathering(&text);
            }
            if (status == MCPG_OK) break; /* ready at the last moment: it starts */
            mcpg__fx_refuse_call(fx, caller->conn, caller->call_id, status, g->committed.epoch, &text);
            caller_free(c, link);
        }
        mcpg__coord_touch(g);
    }
    return true;
}

uint64_t mcpg__coord_caller_deadline(const mcpg_coord_t *c) {
    uint64_t earliest = MCPG_COORD_NEVER;
    if (c->callers_used == 0) return earliest;
    for (uint32_t i = 0; i < c->prop_high; i++) {
        if (c->props[i].phase != MCPG_COORD_PROP_WAIT) continue;
        for (uint32_t k = c->props[i].first_caller; k != MCPG_COORD_NONE; k = c->callers[k].next)
            if (c->callers[k].wait_until_us > c->now.us && c->callers[k].wait_until_us < earliest)
                earliest = c->callers[k].wait_until_us;
    }
    return earliest;
}
