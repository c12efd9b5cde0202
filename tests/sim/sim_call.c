/* sim_call.c: what is checked of calls: each is answered once, in bounded time, and with what really is.
 */
#include <string.h>

#include "sim/sim.h"

#define SLACK_US (90u * SIM_SECOND)

uint64_t sim_call_new(sim_t *w, sim_node_t *node, uint32_t mine, sim_call_kind_t kind, uint64_t bound_us) {
    sim_grow((void **)&w->calls, &w->call_cap, w->call_count + 1u, sizeof(*w->calls));
    uint64_t id = ++w->call_count;
    sim_call_t *call = &w->calls[id];
    *call = (sim_call_t){.node = node->index,
                         .mine = mine,
                         .kind = (uint8_t)kind,
                         .asked_us = w->now,
                         .bound_us = bound_us,
                         .gid = node->mine[mine].open ? node->mine[mine].gid : 0};
    const sim_mine_t *m = &node->mine[mine];
    if (m->view_count > 0) call->since = m->views[m->view_count - 1u]->view->id;
    w->open_calls++;
    w->result->calls++;
    return id;
}

sim_call_t *sim_call(sim_t *w, uint64_t id) {
    return id == 0 || id > w->call_count ? NULL : &w->calls[id];
}

static void check_sync(sim_t *w, const sim_call_t *call, const mcpg_agent_call_done_t *done) {
    sim_group_t *g = sim_group(w, call->gid);
    for (uint32_t i = 0; i < g->view_count; i++) {
        const sim_view_t *v = g->views[i];
        if (!mcpg__view_eq(v->id, done->view)) continue;
        bool same = v->sync && v->sync_failed == done->failed.w[0] && v->sync_first == done->first_failed_seq &&
                    v->switch_seq == done->resume_seq;
        if (!same)
            sim_fail(w, "I17", "group %u: a sync is answered with something else than view %llu says", call->gid,
                     U(v->id.epoch));
        return;
    }
    sim_fail(w, "I17", "group %u: a sync is answered with a view that nobody committed", call->gid);
}

void sim_check_answer(sim_t *w, sim_node_t *node, const mcpg_agent_call_done_t *done) {
    sim_call_t *call = sim_call(w, done->call_id);
    if (call == NULL || call->node != node->index || call->done) {
        sim_fail(w, "I5", "rank %u: call %llu is answered %s", node->rank, U(done->call_id),
                 call != NULL && call->done ? "twice" : "and was never made");
        return;
    }
    call->done = true;
    call->status = done->status;
    w->open_calls--;
    sim_mix(w, done->call_id << 8 | (uint64_t)(uint8_t)done->status);
    if (w->options.trace)
        sim_trace(w, "  rank %u: call %llu kind %u: %s %.*s", node->rank, U(done->call_id), call->kind,
                  mcpg_status_name(done->status), (int)done->text.len,
                  done->text.len > 0 ? (const char *)done->text.ptr : "");
    if (done->status != MCPG_OK) return;
    bool with_view = call->kind == SIM_CALL_JOIN || call->kind == SIM_CALL_SYNC || call->kind == SIM_CALL_PROPOSE;
    if (with_view && mcpg__view_cmp(done->view, call->since) < 0)
        sim_fail(w, "I8", "rank %u: a call is answered with epoch %llu, older than %llu when it was made", node->rank,
                 U(done->view.epoch), U(call->since.epoch));
    if (call->kind == SIM_CALL_SYNC) check_sync(w, call, done);
}

/* Calls of processes that were stopped or whose clocks ran otherwise get what that took. */
void sim_check_sweep(sim_t *w) {
    for (uint32_t i = w->call_oldest; i <= w->call_count && !w->failed; i++) {
        sim_call_t *call = &w->calls[i];
        const sim_node_t *node = w->nodes[call->node];
        bool over = call->done || !node->alive;
        if (over && i == w->call_oldest) {
            if (!call->done) w->open_calls--;
            call->done = true;
            w->call_oldest++;
        }
        if (over || w->now < call->asked_us + call->bound_us + SLACK_US) continue;
        if (node->paused_until_us + SLACK_US > w->now) continue;
        sim_fail(w, "I5", "rank %u: call %u of kind %u was made %llu s ago and is not answered", node->rank, i,
                 call->kind, U((w->now - call->asked_us) / SIM_SECOND));
    }
}
