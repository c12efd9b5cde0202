/* world_dp.c: the model data plane, the calls of the API, and what is checked from above. See world.h.
 *
 * The model keeps what the real one must keep: taking a number and testing the hold is one step; an operation runs in
 * the view with the largest switch_seq that is not above its number.
 */
#include "unit/machines/world_priv.h"

#include "common/pure.h"

static model_group_t *group_of(node_t *node, mcpg_gid_t gid) {
    if (gid.v == 0 || gid.v >= WORLD_GIDS) fail_msg("node of rank %u: gid %u", node->rank, gid.v);
    return &node->groups[gid.v];
}

static const model_view_t *view_of(const world_t *w, const model_group_t *g, uint32_t nth) {
    return &w->views[g->gid.v][g->views[nth]];
}

static bool member(const model_view_t *view, mcpg_slot_t slot, mcpg_incarnation_t inc) {
    for (uint32_t i = 0; i < view->count; i++)
        if (view->active[i].slot.v == slot.v && mcpg__inc_eq(view->active[i].inc, inc)) return true;
    return false;
}

void dp_group(node_t *node, const mcpg_agent_dp_group_t *group) {
    model_group_t *g = group_of(node, group->gid);
    assert_false(g->open);
    memset(g, 0, sizeof(*g));
    g->open = true;
    g->gid = group->gid;
    g->slot = group->slot;
    g->isolated = group->isolated;
    g->manual = group->manual;
}

void dp_gone(node_t *node, mcpg_gid_t gid) {
    group_of(node, gid)->open = false;
    for (uint32_t i = 0; i < node->report_count; i++)
        if (node->reports[i].gid.v == gid.v) node->reports[i].resolved = true;
}

/* ---- operations ---- */

static void run(world_t *w, node_t *node, model_group_t *g, uint64_t seq) {
    uint32_t nth = g->view_count;
    for (uint32_t i = 0; i < g->view_count; i++)
        if (view_of(w, g, i)->switch_seq <= seq) nth = i;
    if (nth == g->view_count || !member(view_of(w, g, nth), g->slot, world_inc(node))) return; /* NOT_ACTIVE */
    if (g->ran_count == 512) return;
    g->ran[g->ran_count].seq = seq;
    g->ran[g->ran_count].as = world_inc(node);
    g->ran[g->ran_count++].view = g->views[nth];
}

void op_run(world_t *w, uint32_t index, uint32_t gid) {
    node_t *node = &w->nodes[index];
    model_group_t *g = group_of(node, (mcpg_gid_t){gid});
    if (!node->alive || !g->open || g->isolated || (g->view_count == 0 && !g->held)) return;
    if (g->held && g->waiting_count == 64) return;
    uint64_t seq = g->next++;
    if (g->held)
        g->waiting[g->waiting_count++] = seq;
    else
        run(w, node, g, seq);
}

void op_safe_point(world_t *w, uint32_t index, uint32_t gid) {
    model_group_t *g = group_of(&w->nodes[index], (mcpg_gid_t){gid});
    if (g->open && !g->held) g->next = (g->next + UINT32_MAX) >> MCPG_STEP_SHIFT << MCPG_STEP_SHIFT;
}

void op_fail(world_t *w, uint32_t index, uint32_t gid, uint32_t slot) {
    node_t *node = &w->nodes[index];
    model_group_t *g = group_of(node, (mcpg_gid_t){gid});
    if (!node->alive || !g->open || g->view_count == 0 || node->report_count == 64) return;
    const model_view_t *view = view_of(w, g, g->view_count - 1u);
    for (uint32_t i = 0; i < view->count; i++) {
        if (view->active[i].slot.v != slot) continue;
        mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_OP_FAILED};
        e.u.op_failed =
            (mcpg_agent_op_failed_ev_t){.gid = {gid}, .seq = g->next, .failed_count = 1, .failed = &view->active[i]};
        if (!g->manual) {
            node->reports[node->report_count] = (model_report_t){.gid = {gid}, .report_id = node->report_count + 1u};
            e.u.op_failed.report_id = ++node->report_count;
        }
        world_push_event(node, &e);
    }
}

static void end_hold(world_t *w, node_t *node, model_group_t *g, bool sync) {
    g->held = false;
    for (uint32_t i = 0; i < g->waiting_count; i++)
        if (!sync) run(w, node, g, g->waiting[i]);
    g->waiting_count = 0;
}

void dp_hold(node_t *node, const mcpg_agent_dp_view_t *hold) {
    model_group_t *g = group_of(node, hold->gid);
    assert_true(g->open);
    g->held = true;
    g->held_from = g->next;
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_HELD};
    e.u.held = (mcpg_agent_held_ev_t){
        .gid = hold->gid, .view = hold->view, .next_seq = g->next, .steps = g->next >> MCPG_STEP_SHIFT != 0};
    world_push_event(node, &e);
}

void dp_release(world_t *w, node_t *node, mcpg_gid_t gid) {
    model_group_t *g = group_of(node, gid);
    assert_true(g->open && g->held);
    end_hold(w, node, g, false);
}

/* ---- views ---- */

static uint64_t commit_digest(world_t *w, const mcpg_down_commit_t *commit) {
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_COMMIT, .u.commit = *commit};
    size_t len = 0;
    assert_int_equal(mcpg__down_pack(&msg, w->wire, WORLD_WIRE_CAP, &len), MCPG_OK);
    return mcpg__digest_bytes(1, w->wire, len);
}

/* The world's entry of a view: I2, identical bytes wherever it is installed. Views are entered in the order of their
 * ids or later moved. */
static uint32_t enter_view(world_t *w, const mcpg_down_commit_t *commit) {
    uint32_t gid = commit->gid.v;
    uint64_t digest = commit_digest(w, commit);
    for (uint32_t i = 0; i < w->view_count[gid]; i++) {
        if (!mcpg__view_eq(w->views[gid][i].id, commit->view.id)) continue;
        if (w->views[gid][i].digest != digest) world_fail(w, "I2", "one view, two contents");
        return i;
    }
    assert_true(w->view_count[gid] < WORLD_VIEWS && commit->view.active_count <= WORLD_RANKS);
    uint32_t at = w->view_count[gid]++;
    model_view_t *view = &w->views[gid][at];
    view->id = commit->view.id;
    view->switch_seq = commit->switch_seq;
    view->digest = digest;
    view->count = commit->view.active_count;
    view->sync = commit->sync;
    if (view->count > 0) memcpy(view->active, commit->view.active, view->count * sizeof(view->active[0]));
    for (uint32_t i = 0; i < commit->leave_count; i++) mcpg__rankset_add(&view->fenced, commit->leaves[i].slot.v);
    return at;
}

void dp_install(world_t *w, node_t *node, const mcpg_down_commit_t *commit) {
    model_group_t *g = group_of(node, commit->gid);
    assert_true(g->open);
    uint32_t at = enter_view(w, commit);
    const model_view_t *view = &w->views[commit->gid.v][at];
    const model_view_t *before = g->view_count > 0 ? view_of(w, g, g->view_count - 1u) : NULL;
    if (before != NULL && mcpg__view_cmp(view->id, before->id) <= 0)
        world_fail(w, "I1", "a view is not above the one before");
    if (before != NULL && view->switch_seq < before->switch_seq) world_fail(w, "switch_seq", "it fell");
    assert_true(g->view_count < WORLD_VIEWS);
    mcpg_incarnation_t own = world_inc(node);
    bool added = member(view, g->slot, own) && (before == NULL || !member(before, g->slot, own));
    bool stays = member(view, g->slot, own) && !added && !mcpg__rankset_has(&view->fenced, g->slot.v);
    uint64_t reached = g->held ? g->held_from : g->next; /* all below were started in the old view */
    if (stays && reached > view->switch_seq) world_fail(w, "switch_seq", "a rank that stays had passed it");
    g->views[g->view_count++] = at;
    if (added || commit->sync) {
        g->next = view->switch_seq;
        g->waiting_count = 0;
        g->isolated = false;
    }
    if (commit->sync) g->fenced = false;
    end_hold(w, node, g, commit->sync);
}

void dp_resolve(world_t *w, node_t *node, const mcpg_agent_dp_resolve_t *resolve) {
    for (uint32_t i = 0; i < node->report_count; i++) {
        model_report_t *r = &node->reports[i];
        if (r->report_id != resolve->report_id) continue;
        if (r->resolved) world_fail(w, "DP_RESOLVE", "an operation was resolved twice");
        r->resolved = true;
        r->status = resolve->status;
        return;
    }
    if (resolve->report_id != 0) world_fail(w, "DP_RESOLVE", "nobody asked");
}

/* ---- calls ---- */

void dp_call_done(world_t *w, const mcpg_agent_call_done_t *done) {
    assert_true(done->call_id > 0 && done->call_id < WORLD_CALLS);
    call_t *call = &w->calls[done->call_id];
    if (call->done) world_fail(w, "I5", "a call was answered twice");
    call->done = true;
    call->answer = *done;
    call->answer.text = (mcpg_bytes_t){NULL, 0};
    snprintf(call->words, sizeof(call->words), "%.*s", (int)done->text.len,
             done->text.len > 0 ? (const char *)done->text.ptr : "");
    if (w->trace) printf("  call %llu: %d %s\n", U(done->call_id), (int)done->status, call->words);
}

static uint64_t new_call(world_t *w) {
    assert_true(w->last_call + 1u < WORLD_CALLS);
    return ++w->last_call;
}

uint64_t call_register(world_t *w, uint32_t node, const uint32_t *order, uint32_t count, uint32_t capacity,
                       const char *flags, uint64_t timeout_us) {
    static const uint8_t kind[] = "cpu";
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_REGISTER};
    e.u.call_register = (mcpg_agent_call_register_t){.call_id = new_call(w),
                                                     .device_kind = {kind, 3},
                                                     .order_count = count,
                                                     .order = order,
                                                     .capacity = capacity,
                                                     .is_extension = strchr(flags, 'e') != NULL,
                                                     .manual = strchr(flags, 'm') != NULL,
                                                     .no_auto_sync = strchr(flags, 'n') != NULL,
                                                     .timeout_us = timeout_us};
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

uint64_t call_join(world_t *w, uint32_t node, uint32_t gid, uint64_t timeout_us) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_JOIN};
    e.u.call_join = (mcpg_agent_call_join_t){.call_id = new_call(w), .gid = {gid}, .timeout_us = timeout_us};
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

uint64_t call_propose(world_t *w, uint32_t node, uint32_t gid, uint64_t activate, uint64_t deactivate,
                      uint64_t wait_us) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_PROPOSE};
    e.u.call_propose = (mcpg_agent_call_propose_t){
        .call_id = new_call(w), .gid = {gid}, .expected_epoch = MCPG_ANY_EPOCH, .wait_us = wait_us};
    e.u.call_propose.activate.w[0] = activate;
    e.u.call_propose.deactivate.w[0] = deactivate;
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

uint64_t call_sync(world_t *w, uint32_t node, uint32_t gid, uint64_t failed, uint64_t first, uint64_t timeout_us) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_SYNC};
    e.u.call_sync = (mcpg_agent_call_sync_t){
        .call_id = new_call(w), .gid = {gid}, .first_failed_seq = first, .timeout_us = timeout_us};
    e.u.call_sync.failed.w[0] = failed;
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

uint64_t call_leave(world_t *w, uint32_t node, uint32_t gid) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_LEAVE};
    e.u.call_leave =
        (mcpg_agent_call_leave_t){.call_id = new_call(w), .gid = {gid}, .next_seq = w->nodes[node].groups[gid].next};
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

uint64_t call_detach(world_t *w, uint32_t node) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_CALL_DETACH};
    e.u.call_detach = (mcpg_agent_call_detach_t){.call_id = new_call(w)};
    world_agent(w, &w->nodes[node], &e);
    return w->last_call;
}

static bool answered(world_t *w, const void *arg) {
    return w->calls[*(const uint64_t *)arg].done;
}

const mcpg_agent_call_done_t *world_answer(world_t *w, uint64_t call) {
    world_until(w, answered, &call, "an answer");
    return &w->calls[call].answer;
}

/* ---- from above ---- */

uint64_t world_active(const world_t *w, uint32_t node, uint32_t gid) {
    mcpg_view_id_t id;
    mcpg_rankset_t active;
    if (!mcpg_agent_view(w->nodes[node].agent, (mcpg_gid_t){gid}, &id, &active, NULL, WORLD_RANKS)) return 0;
    return active.w[0];
}

uint64_t world_epoch(const world_t *w, uint32_t node, uint32_t gid) {
    mcpg_view_id_t id;
    mcpg_rankset_t active;
    if (!mcpg_agent_view(w->nodes[node].agent, (mcpg_gid_t){gid}, &id, &active, NULL, WORLD_RANKS)) return 0;
    return id.epoch;
}

/* The committed view that rules a number. */
static uint32_t ruler(const world_t *w, uint32_t gid, uint64_t seq) {
    uint32_t best = WORLD_VIEWS;
    for (uint32_t i = 0; i < w->view_count[gid]; i++) {
        if (w->views[gid][i].switch_seq > seq) continue;
        if (best == WORLD_VIEWS || mcpg__view_cmp(w->views[gid][i].id, w->views[gid][best].id) > 0) best = i;
    }
    return best;
}

static bool installed(const model_group_t *g, uint32_t view) {
    for (uint32_t i = 0; i < g->view_count; i++)
        if (g->views[i] == view) return true;
    return false;
}

/* From the view in which it ran an operation up to that one, the rank was never removed or fenced: nobody may have
 * given up on it. */
static bool stayed(const world_t *w, const model_group_t *g, uint32_t ran, uint32_t rules, mcpg_incarnation_t as) {
    const model_view_t *views = w->views[g->gid.v];
    for (uint32_t i = 0; i < w->view_count[g->gid.v]; i++) {
        bool between =
            mcpg__view_cmp(views[i].id, views[ran].id) > 0 && mcpg__view_cmp(views[i].id, views[rules].id) <= 0;
        if (between && (!member(&views[i], g->slot, as) || mcpg__rankset_has(&views[i].fenced, g->slot.v)))
            return false;
    }
    return true;
}

static void check_numbers(const world_t *w, const node_t *node, uint32_t gid) {
    const model_group_t *g = &node->groups[gid];
    for (uint64_t i = 0; i < g->ran_count; i++) {
        uint32_t rules = ruler(w, gid, g->ran[i].seq);
        if (g->ran[i].view == rules) continue;
        if (!stayed(w, g, g->ran[i].view, rules, g->ran[i].as) || !installed(g, rules)) continue;
        char why[128];
        snprintf(why, sizeof(why), "number %llu of group %u ran at rank %u in view %llu, which view %llu rules",
                 U(g->ran[i].seq), gid, node->rank, U(w->views[gid][g->ran[i].view].id.epoch),
                 U(w->views[gid][rules].id.epoch));
        world_fail(w, "one operation number, one view", why);
    }
}

void world_check_end(world_t *w) {
    for (uint32_t i = 0; i < w->node_count; i++) {
        node_t *node = &w->nodes[i];
        for (uint32_t gid = 1; gid < WORLD_GIDS; gid++) check_numbers(w, node, gid);
        for (uint32_t k = 0; node->alive && !node->stopped && k < node->report_count; k++)
            if (!node->reports[k].resolved) world_fail(w, "OP_FAILED", "an operation was never judged");
    }
}
