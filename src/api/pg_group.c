/* pg_group.c: groups: create, leave, views, joins, proposals, agreement after a failure.
 *
 * Checks arguments and turns answers into sentences; what is decided, the coordinator decides. Never holds a lock while
 * it waits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/pg_internal.h"

#define GROUP_DEFAULT_US 300000000u
#define ABORT_US         1000000u

/* ---- create ---- */

static mcpg_status_t check_order(const mcpg_context_t *context, const mcpg_group_config_t *c) {
    if (c->rank_order == NULL || c->group_size == 0 || c->group_size > MCPG_MAX_RANKS)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "group_size %u with rank_order %s: give 1 to %d ranks",
                          c->group_size, c->rank_order != NULL ? "set" : "NULL", MCPG_MAX_RANKS);
    mcpg_rankset_t seen;
    mcpg__rankset_clear(&seen);
    for (uint32_t i = 0; i < c->group_size; i++) {
        uint32_t r = c->rank_order[i];
        if (r >= MCPG_MAX_RANKS)
            return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "rank_order[%u] is %u: ranks go from 0 to %d", i, r,
                              MCPG_MAX_RANKS - 1);
        if (mcpg__rankset_has(&seen, r))
            return mcpg__fail(context, MCPG_INVALID_ARGUMENT,
                              "rank %u is in rank_order twice (again at %u): list each rank once", r, i);
        mcpg__rankset_add(&seen, r);
    }
    if (!mcpg__rankset_has(&seen, context->rank))
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT,
                          "this process is rank %u, which is not in rank_order: only members create a group",
                          context->rank);
    return MCPG_OK;
}

static mcpg_status_t check_text(const mcpg_context_t *context, const char *name, const char *text) {
    if (text != NULL && strlen(text) > MCPG_KEY_CAP)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s has %zu bytes: at most %u are possible", name,
                          strlen(text), MCPG_KEY_CAP);
    return MCPG_OK;
}

static mcpg_status_t check_group_config(const mcpg_context_t *context, const mcpg_group_config_t *given,
                                        mcpg_group_config_t *c) {
    char error[MCPG_ERROR_CAP];
    mcpg_status_t status = mcpg__versioned_copy(c, sizeof(*c), given, "mcpg_group_config_t", error, sizeof(error));
    if (status != MCPG_OK) return mcpg__fail(context, status, "%s", error);
    MCPG_TRY(check_order(context, c));
    if (c->max_group_size == 0) c->max_group_size = c->group_size;
    if (c->max_group_size < c->group_size || c->max_group_size > MCPG_MAX_RANKS)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "max_group_size is %u: it must be from group_size (%u) to %d",
                          c->max_group_size, c->group_size, MCPG_MAX_RANKS);
    if (c->device_kind == NULL) c->device_kind = "cpu";
    MCPG_TRY(check_text(context, "group_key", c->group_key));
    MCPG_TRY(check_text(context, "label", c->label));
    MCPG_TRY(check_text(context, "device_kind", c->device_kind));
    if (c->timeout_us == 0) c->timeout_us = GROUP_DEFAULT_US;
    return MCPG_OK;
}

static mcpg_bytes_t bytes_of(const char *text) {
    if (text == NULL) return (mcpg_bytes_t){NULL, 0};
    return (mcpg_bytes_t){(const uint8_t *)text, (uint32_t)strlen(text)};
}

static void link_group(mcpg_group_t *g) {
    pthread_mutex_lock(&g->context->groups_mu);
    g->next = g->context->groups;
    g->context->groups = g;
    pthread_mutex_unlock(&g->context->groups_mu);
}

static void unlink_group(mcpg_group_t *g) {
    pthread_mutex_lock(&g->context->groups_mu);
    for (mcpg_group_t **at = &g->context->groups; *at != NULL; at = &(*at)->next) {
        if (*at != g) continue;
        *at = g->next;
        break;
    }
    pthread_mutex_unlock(&g->context->groups_mu);
}

mcpg_status_t mcpg_group_create(mcpg_context_t *context, const mcpg_group_config_t *config, mcpg_group_t **out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (context == NULL) return MCPG_INVALID_ARGUMENT;
    if (config == NULL || out == NULL)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "config and out must not be NULL");
    mcpg_group_config_t c;
    MCPG_TRY(check_group_config(context, config, &c));
    mcpg_group_t *g = calloc(1, sizeof(*g));
    if (g == NULL) return mcpg__fail(context, MCPG_NO_MEMORY, "no memory for a group");
    mcpg_agent_call_register_t call = {.key = bytes_of(c.group_key),
                                       .label = bytes_of(c.label),
                                       .device_kind = bytes_of(c.device_kind),
                                       .order_count = c.group_size,
                                       .order = c.rank_order,
                                       .capacity = c.max_group_size,
                                       .is_extension = c.is_extension,
                                       .manual = c.manual,
                                       .no_auto_sync = c.no_auto_sync,
                                       .timeout_us = c.timeout_us};
    mcpg_agent_call_done_t done;
    char text[MCPG_TEXT_CAP] = "";
    mcpg_status_t status = mcpg__agent_host_register(context->agent, &call, &done, text, sizeof(text));
    if (status != MCPG_OK) {
        free(g);
        return mcpg__fail(context, status, "%s", text[0] != '\0' ? text : mcpg_status_text(status));
    }
    g->context = context;
    g->gid = done.gid;
    g->slot = done.slot.v;
    g->capacity = c.max_group_size;
    g->manual = c.manual;
    status = mcpg__dp_set_group_timeout(context->dp, g->gid, c.timeout_us);
    if (status == MCPG_OK && c.active_mirror != NULL)
        status = mcpg__dp_set_mirror(context->dp, g->gid, c.active_mirror);
    if (status != MCPG_OK) {
        mcpg__agent_host_leave(context->agent, g->gid, 0);
        free(g);
        return mcpg__fail(context, status, "the group was closed while it was being created");
    }
    link_group(g);
    *out = g;
    return MCPG_OK;
}

/* ---- leave ---- */

void mcpg__group_leave(mcpg_group_t *g, uint64_t flush_us) {
    mcpg_context_t *context = g->context;
    mcpg__events_barrier(context);
    (void)mcpg__dp_flush(context->dp, g->gid, flush_us); /* a peer that does not read must not stop us for longer */
    uint32_t extent;
    bool isolated;
    uint64_t next_seq = 0;
    if (mcpg__dp_next_view(context->dp, g->gid, &extent, &isolated, &next_seq) != MCPG_OK)
        next_seq = 0; /* closed already */
    mcpg__dp_abort(context->dp, g->gid, MCPG_ABORTED, "the group was destroyed by this rank");
    mcpg__agent_host_leave(context->agent, g->gid, next_seq);
    mcpg__dp_ops()->group_close(context->dp, g->gid);
    free(g);
}

void mcpg_group_destroy(mcpg_group_t *group) {
    if (group == NULL || mcpg__forked()) return;
    unlink_group(group);
    mcpg__group_leave(group, MCPG_DRAIN_US);
}

void mcpg_group_abort(mcpg_group_t *group, const char *why) {
    if (group == NULL || mcpg__forked()) return;
    mcpg__dp_abort(group->context->dp, group->gid, MCPG_ABORTED, why != NULL ? why : "the group was aborted");
}

mcpg_status_t mcpg_group_set_timeout(mcpg_group_t *group, uint64_t timeout_us) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_status_t status = mcpg__dp_set_group_timeout(group->context->dp, group->gid, timeout_us);
    return status == MCPG_OK ? status : mcpg__fail(group->context, status, "the group is closed");
}

/* ---- views ---- */

uint32_t mcpg_group_rank(const mcpg_group_t *group) {
    return group != NULL ? group->slot : 0;
}
uint32_t mcpg_group_capacity(const mcpg_group_t *group) {
    return group != NULL ? group->capacity : 0;
}

static mcpg_status_t next_view(const mcpg_group_t *g, uint32_t *extent_out, bool *isolated_out, uint64_t *seq_out) {
    return mcpg__dp_next_view(g->context->dp, g->gid, extent_out, isolated_out, seq_out);
}

uint32_t mcpg_group_size(const mcpg_group_t *group) {
    uint32_t extent = 0;
    bool isolated;
    uint64_t seq;
    if (group == NULL || mcpg__forked() || next_view(group, &extent, &isolated, &seq) != MCPG_OK) return 0;
    return extent;
}

bool mcpg_group_is_isolated(const mcpg_group_t *group) {
    uint32_t extent;
    bool isolated = false;
    uint64_t seq;
    return group != NULL && !mcpg__forked() && next_view(group, &extent, &isolated, &seq) == MCPG_OK && isolated;
}

static void self_view(const mcpg_group_t *g, mcpg_view_t *v) {
    memset(v, 0, sizeof(*v));
    v->active[g->slot] = 1;
    pthread_mutex_lock(&g->context->groups_mu);
    v->term = g->context->inc.term;
    v->incarnation[g->slot] = g->context->inc.counter;
    pthread_mutex_unlock(&g->context->groups_mu);
}

mcpg_status_t mcpg_group_view(const mcpg_group_t *group, mcpg_view_t *view_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL || view_out == NULL) return MCPG_INVALID_ARGUMENT;
    uint32_t extent;
    bool isolated = false;
    uint64_t seq = 0;
    mcpg_status_t status = next_view(group, &extent, &isolated, &seq);
    if (status != MCPG_OK) return mcpg__fail(group->context, status, "the group is closed");
    mcpg_view_t v;
    if (isolated) {
        self_view(group, &v);
    } else if (!mcpg__agent_host_view(group->context->agent, group->gid, &v)) {
        return mcpg__fail(group->context, MCPG_NOT_FOUND,
                          "the group has no committed view: it is closed, or contact is being renewed");
    }
    v.start_seq = seq;
    v.slot_count = group->capacity;
    *view_out = v;
    return MCPG_OK;
}

mcpg_status_t mcpg_group_safe_point(mcpg_group_t *group, mcpg_view_t *view_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL || view_out == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_view_t v;
    memset(&v, 0, sizeof(v));
    mcpg_status_t status = mcpg__dp_safe_point(group->context->dp, group->gid, &v);
    if (status != MCPG_OK) return mcpg__fail(group->context, status, "safe_point: %s", mcpg_status_text(status));
    v.slot_count = group->capacity;
    *view_out = v;
    return MCPG_OK;
}

static mcpg_status_t check_slots(const mcpg_group_t *g, const char *what, const uint32_t *slots, uint32_t count,
                                 mcpg_rankset_t *out) {
    if (out != NULL) mcpg__rankset_clear(out);
    if (count > 0 && slots == NULL)
        return mcpg__fail(g->context, MCPG_INVALID_ARGUMENT, "%s is NULL with %u entries", what, count);
    for (uint32_t i = 0; i < count; i++) {
        if (slots[i] >= g->capacity)
            return mcpg__fail(g->context, MCPG_INVALID_ARGUMENT,
                              "%s names in-group rank %u, but the group's capacity is %u", what, slots[i], g->capacity);
        if (out != NULL) mcpg__rankset_add(out, slots[i]);
    }
    return MCPG_OK;
}

mcpg_status_t mcpg_group_peer_state(const mcpg_group_t *group, const uint32_t *slots, uint32_t slot_count,
                                    uint8_t *ok_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL || (ok_out == NULL && slot_count > 0)) return MCPG_INVALID_ARGUMENT;
    MCPG_TRY(check_slots(group, "get_peer_state", slots, slot_count, NULL));
    for (uint32_t i = 0; i < slot_count; i++)
        ok_out[i] = mcpg__agent_host_peer_ok(group->context->agent, group->gid, (mcpg_slot_t){slots[i]}) ? 1 : 0;
    return MCPG_OK;
}

/* ---- membership ---- */

/* True: an answer of the coordinator, which the reply carries. False: there was none, the call itself failed. */
static bool is_answer(mcpg_status_t status) {
    switch (status) {
    case MCPG_OK:
    case MCPG_REJECTED:
    case MCPG_NOT_HEALTHY:
    case MCPG_NOT_AWAITING:
    case MCPG_CONFLICT:
    case MCPG_STALE_EPOCH:
    case MCPG_ABORTED:
    case MCPG_OUTCOME_UNKNOWN:
    case MCPG_TIMED_OUT:
    case MCPG_INVALID_ARGUMENT:
    case MCPG_INVALID_STATE:
    case MCPG_NOT_FOUND:
    case MCPG_NOT_ACTIVE:
    case MCPG_LIMIT:
        return true;
    case MCPG_IN_PROGRESS:
    case MCPG_NOT_SUPPORTED:
    case MCPG_QUIESCING:
    case MCPG_ROOT_NOT_ACTIVE:
    case MCPG_MISMATCH:
    case MCPG_BUSY:
    case MCPG_NO_MEMORY:
    case MCPG_SYSTEM:
    case MCPG_RANK_IN_USE:
    case MCPG_WORLD_MISMATCH:
    case MCPG_NEEDS_EXTENSION:
    case MCPG_AMBIGUOUS_GROUP:
    case MCPG_VERSION_MISMATCH:
    case MCPG_UNAVAILABLE:
    case MCPG_COORDINATOR_LOST:
    case MCPG_IN_DOUBT:
    case MCPG_SHUTTING_DOWN:
    case MCPG_FORKED:
    case MCPG_CORRUPT:
    case MCPG_LINK_DOWN:
    case MCPG_PEER_DEAD:
    case MCPG_NO_PENDING:
    case MCPG_INTERNAL:
    case MCPG_NOT_PERMITTED:
        return false;
    }
    return false;
}

static void fill_reply(mcpg_proposal_reply_t *r, mcpg_status_t status, const mcpg_agent_call_done_t *done,
                       const char *text) {
    memset(r, 0, sizeof(*r));
    r->reason = status;
    (void)snprintf(r->text, sizeof(r->text), "%s",
                   text[0] != '\0' || status == MCPG_OK ? text : mcpg_status_text(status));
    if (status != MCPG_OK) {
        r->result = MCPG_PROPOSAL_REJECTED;
        return;
    }
    r->new_epoch = done->view.epoch;
    r->result = done->dropped_any ? MCPG_PROPOSAL_APPLIED_WITH_DROPPED_RANKS : MCPG_PROPOSAL_APPLIED;
    for (uint32_t s = mcpg__rankset_next(&done->dropped, 0); s < MCPG_MAX_RANKS;
         s = mcpg__rankset_next(&done->dropped, s + 1))
        r->dropped[r->dropped_count++] = s;
}

mcpg_status_t mcpg_group_update_ranks(mcpg_group_t *group, const uint32_t *activate, uint32_t activate_count,
                                      const uint32_t *deactivate, uint32_t deactivate_count, uint64_t expected_epoch,
                                      uint64_t wait_us, mcpg_proposal_reply_t *reply_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    if (reply_out == NULL) return mcpg__fail(group->context, MCPG_INVALID_ARGUMENT, "reply_out must not be NULL");
    mcpg_agent_call_propose_t call = {.gid = group->gid, .expected_epoch = expected_epoch, .wait_us = wait_us};
    MCPG_TRY(check_slots(group, "activate", activate, activate_count, &call.activate));
    MCPG_TRY(check_slots(group, "deactivate", deactivate, deactivate_count, &call.deactivate));
    mcpg_rankset_t both = call.activate;
    mcpg__rankset_and(&both, &call.deactivate);
    if (!mcpg__rankset_empty(&both))
        return mcpg__fail(group->context, MCPG_INVALID_ARGUMENT,
                          "in-group rank %u is to be activated and deactivated in one call",
                          mcpg__rankset_next(&both, 0));
    mcpg_agent_call_done_t done;
    char text[MCPG_TEXT_CAP] = "";
    memset(&done, 0, sizeof(done));
    mcpg_status_t status = mcpg__agent_host_propose(group->context->agent, &call, &done, text, sizeof(text));
    if (!is_answer(status))
        return mcpg__fail(group->context, status, "%s", text[0] != '\0' ? text : mcpg_status_text(status));
    mcpg_view_t now;
    fill_reply(reply_out, status, &done, text);
    if (status != MCPG_OK && mcpg__agent_host_view(group->context->agent, group->gid, &now))
        reply_out->new_epoch = now.epoch;
    return MCPG_OK;
}

/* Active already, with this process's own incarnation, and not isolated: nothing to join. */
static bool is_member(const mcpg_group_t *g) {
    if (mcpg_group_is_isolated(g)) return false;
    mcpg_view_t v;
    if (!mcpg__agent_host_view(g->context->agent, g->gid, &v) || v.active[g->slot] == 0) return false;
    pthread_mutex_lock(&g->context->groups_mu);
    uint64_t own = g->context->inc.counter;
    pthread_mutex_unlock(&g->context->groups_mu);
    return v.incarnation[g->slot] == own;
}

mcpg_status_t mcpg_group_join(mcpg_group_t *group, uint64_t timeout_us) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = group->context;
    if (is_member(group)) return MCPG_OK;
    uint64_t limit = timeout_us != 0 ? timeout_us : GROUP_DEFAULT_US;
    uint64_t begin = mcpg__now().us;
    mcpg_status_t status = mcpg__dp_quiesce(context->dp, group->gid, limit);
    if (status != MCPG_OK) {
        mcpg__dp_resume(context->dp, group->gid);
        return mcpg__fail(context, status, "join: this rank's own outstanding operations did not end: %s",
                          mcpg_status_text(status));
    }
    uint64_t spent = mcpg__now().us - begin;
    mcpg_agent_call_join_t call = {.gid = group->gid, .timeout_us = spent < limit ? limit - spent : 1};
    mcpg_agent_call_done_t done;
    char text[MCPG_TEXT_CAP] = "";
    status = mcpg__agent_host_join(context->agent, &call, &done, text, sizeof(text));
    mcpg__dp_resume(context->dp, group->gid);
    if (status == MCPG_OK) return MCPG_OK;
    return mcpg__fail(context, status, "%s", text[0] != '\0' ? text : mcpg_status_text(status));
}

mcpg_status_t mcpg_group_sync_after_failure(mcpg_group_t *group, uint64_t timeout_us, mcpg_sync_reply_t *reply_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = group->context;
    if (reply_out == NULL) return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "reply_out must not be NULL");
    mcpg_agent_call_sync_t call = {.gid = group->gid, .first_failed_seq = MCPG_NO_SEQ, .timeout_us = timeout_us};
    bool fenced = false;
    mcpg_status_t status =
        mcpg__dp_pending_failure(context->dp, group->gid, &call.failed, &call.first_failed_seq, &fenced);
    if (status != MCPG_OK) return mcpg__fail(context, status, "the group is closed");
    if (mcpg__rankset_empty(&call.failed) && !fenced)
        return mcpg__fail(context, MCPG_NO_PENDING,
                          "nothing failed at this rank and no other rank is in sync_after_failure");
    mcpg_agent_call_done_t done;
    char text[MCPG_TEXT_CAP] = "";
    if (call.timeout_us == 0) call.timeout_us = GROUP_DEFAULT_US;
    status = mcpg__agent_host_sync(context->agent, &call, &done, text, sizeof(text));
    if (status != MCPG_OK) return mcpg__fail(context, status, "%s", text[0] != '\0' ? text : mcpg_status_text(status));
    status = mcpg__dp_sync_done(context->dp, group->gid);
    if (status != MCPG_OK) return mcpg__fail(context, status, "the group is closed");
    mcpg_sync_reply_t r;
    memset(&r, 0, sizeof(r));
    r.term = done.view.term;
    r.epoch = done.view.epoch;
    r.first_failed_seq = done.first_failed_seq;
    r.resume_seq = done.resume_seq;
    r.slot_count = group->capacity;
    for (uint32_t s = 0; s < group->capacity; s++) r.failed[s] = mcpg__rankset_has(&done.failed, s) ? 1 : 0;
    *reply_out = r;
    return MCPG_OK;
}
