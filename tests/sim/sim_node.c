/* sim_node.c: one process: the agent machine and the model of its host: executor, timer, stream, link manager (the real
 * one), and the order in which effects are carried out.
 *
 * The host keeps the machine's contract: one event at a time, effects in order, what a step gives rise to (HELD, link
 * events) right after it. It must never decide anything for the machine.
 */
#include <stdlib.h>
#include <string.h>

#include "common/eventlog.h"
#include "sim/sim.h"

#define HOST_PID 1000

mcpg_incarnation_t sim_inc(const sim_node_t *node) {
    mcpg_incarnation_t inc;
    (void)mcpg_agent_attached(node->agent, &inc);
    return inc;
}

bool sim_attached(const sim_node_t *node) {
    return mcpg_agent_attached(node->agent, NULL);
}

/* ---- the executor's queue ---- */

sim_local_t *sim_local_new(sim_t *w, sim_node_t *node, sim_local_kind_t kind, uint64_t delay_us) {
    sim_local_t *item = sim_zalloc(sizeof(*item));
    item->kind = (uint8_t)kind;
    item->at = w->now + delay_us;
    (void)node;
    return item;
}

static void local_free(sim_local_t *item) {
    sim_buf_drop(item->told);
    free(item->members);
    free(item);
}

static void local_schedule(sim_t *w, sim_node_t *node) {
    if (node->local_scheduled || node->local_head == NULL) return;
    node->local_scheduled = true;
    sim_at(w, node->local_head->at, SIM_EV_LOCAL, node->index, 0, 0);
}

void sim_local_post(sim_t *w, sim_node_t *node, sim_local_t *item) {
    if (!node->alive) {
        local_free(item);
        return;
    }
    if (item->at <= node->local_last_us) item->at = node->local_last_us + 1u;
    node->local_last_us = item->at;
    item->next = NULL;
    if (node->local_tail != NULL)
        node->local_tail->next = item;
    else
        node->local_head = item;
    node->local_tail = item;
    local_schedule(w, node);
}

static void local_pop(sim_node_t *node) {
    sim_local_t *item = node->local_head;
    node->local_head = item->next;
    if (node->local_head == NULL) node->local_tail = NULL;
    local_free(item);
}

/* ---- timers ---- */

/* One timer for the machine and the link manager. A pending event that is too early finds that out when it fires. */
void sim_node_arm(sim_t *w, sim_node_t *node) {
    uint64_t due = node->armed_us, links = mcpg__link_manager_next(node->links).us;
    if (links < due) due = links;
    uint64_t at = sim_true_time(&node->clock, due);
    if (at == SIM_NEVER || at >= node->heap_timer_us) return;
    node->heap_timer_us = at < w->now ? w->now : at;
    sim_at(w, node->heap_timer_us, SIM_EV_NODE_TIMER, node->index, 0, 0);
}

static bool postpone(sim_t *w, sim_node_t *node, sim_ev_kind_t kind) {
    uint64_t until = node->paused_until_us > node->busy_until_us ? node->paused_until_us : node->busy_until_us;
    if (until <= w->now) return false;
    sim_at(w, until, kind, node->index, 0, 0);
    return true;
}

static mcpg_time_t local_now(const sim_t *w, const sim_node_t *node) {
    return (mcpg_time_t){sim_local_time(&node->clock, w->now)};
}

void sim_node_timer(sim_t *w, sim_node_t *node) {
    if (!node->alive) return;
    if (node->heap_timer_us > w->now) return; /* an older event: a newer, earlier one has taken its place */
    if (postpone(w, node, SIM_EV_NODE_TIMER)) return;
    node->heap_timer_us = SIM_NEVER;
    mcpg_time_t now = local_now(w, node);
    if (mcpg__link_manager_next(node->links).us <= now.us) {
        mcpg__link_manager_timer(node->links, now);
        sim_agent_step(w, node, NULL, NULL, 0);
    }
    if (node->armed_us <= now.us) {
        node->armed_us = SIM_NEVER;
        mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_TIMER};
        sim_agent_step(w, node, &e, NULL, 0);
    }
    sim_node_arm(w, node);
}

void sim_node_local(sim_t *w, sim_node_t *node) {
    node->local_scheduled = false;
    if (!node->alive || node->local_head == NULL) return;
    if (postpone(w, node, SIM_EV_LOCAL)) {
        node->local_scheduled = true;
        return;
    }
    sim_local_t *item = node->local_head;
    mcpg_time_t now = local_now(w, node);
    mcpg_agent_event_t *event = NULL;
    mcpg_down_msg_t told;
    switch ((sim_local_kind_t)item->kind) {
    case SIM_LOCAL_EVENT:
        event = &item->event;
        if (item->told != NULL) {
            mcpg_arena_t arena = {.base = w->arena, .cap = w->arena_cap};
            event->u.view_told = &told;
            if (mcpg__down_unpack(item->told->bytes, item->told->len, &arena, &told) != MCPG_OK) event = NULL;
        }
        break;
    case SIM_LOCAL_UP:
        mcpg__link_manager_up(node->links, (mcpg_rank_t){item->rank}, item->inc);
        break;
    case SIM_LOCAL_LOST:
        mcpg__link_manager_lost(node->links, (mcpg_rank_t){item->rank}, item->inc, now);
        break;
    case SIM_LOCAL_CHECKED:
        mcpg__link_manager_checked(node->links, (mcpg_rank_t){item->rank}, item->inc, item->check_id, item->ok, now);
        break;
    case SIM_LOCAL_DEATH:
        mcpg__link_manager_death(node->links, (mcpg_rank_t){item->rank}, item->inc, (mcpg_proof_t)item->proof);
        break;
    }
    node->local_head = item->next; /* taken out before the step, which may post more */
    if (node->local_head == NULL) node->local_tail = NULL;
    if (item->told != NULL)
        sim_agent_step(w, node, event, item->told->bytes, item->told->len);
    else
        sim_agent_step(w, node, event, NULL, 0);
    local_free(item);
    if (node->alive) local_schedule(w, node);
}

/* ---- steps ---- */

void sim_agent_pend(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event) {
    if (node->pending_count == SIM_PENDING) {
        sim_fail(w, "host", "one step of rank %u gave rise to more events than a host has room for", node->rank);
        return;
    }
    node->pending[(node->pending_head + node->pending_count++) % SIM_PENDING] = *event;
}

static void fx_send(sim_t *w, sim_node_t *node, const mcpg_up_msg_t *msg) {
    size_t len = 0;
    if (mcpg__up_pack(msg, w->wire, w->wire_cap, &len) != MCPG_OK) {
        sim_fail(w, "codec", "rank %u made a %s that cannot be packed", node->rank, mcpg__up_name(msg->kind));
        return;
    }
    sim_mix(w, mcpg__crc32c((uint32_t)msg->kind, w->wire, len));
    if (node->stream == SIM_NO) return;
    sim_stream_up(w, node->stream, sim_buf_new(w->wire, len));
}

static void fx_install(sim_t *w, sim_node_t *node, const mcpg_down_commit_t *commit) {
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_COMMIT, .u.commit = *commit};
    size_t len = 0;
    if (mcpg__down_pack(&msg, w->wire, w->wire_cap, &len) != MCPG_OK) {
        sim_fail(w, "codec", "a COMMIT to install cannot be packed");
        return;
    }
    sim_dp_install(w, node, commit, mcpg__crc32c(1, w->wire, len) | (uint64_t)len << 32);
}

static void fx_other(sim_t *w, sim_node_t *node, const mcpg_agent_effect_t *f) {
    mcpg_time_t now = local_now(w, node);
    if (f->kind == MCPG_AGENT_FX_LINK_OPEN) mcpg__link_manager_open(node->links, &f->u.link_open, now);
    if (f->kind == MCPG_AGENT_FX_LINK_CLOSE) mcpg__link_manager_close(node->links, &f->u.link_close);
    if (f->kind == MCPG_AGENT_FX_LINK_CHECK) mcpg__link_manager_check(node->links, &f->u.link_check, now);
    if (f->kind == MCPG_AGENT_FX_CONNECT) {
        if (node->stream != SIM_NO) sim_fail(w, "host", "rank %u opens a stream while one is open", node->rank);
        (void)sim_stream_open(w, node);
    }
    if (f->kind == MCPG_AGENT_FX_DISCONNECT && node->stream != SIM_NO) sim_stream_node_closes(w, node->stream);
    if (f->kind == MCPG_AGENT_FX_ATTACHED) node->failed_attach = f->u.attached.status != MCPG_OK;
}

static void run_effect(sim_t *w, sim_node_t *node, const mcpg_agent_effect_t *f) {
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        fx_send(w, node, f->u.send);
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        node->armed_us = f->u.arm_timer.us;
        break;
    case MCPG_AGENT_FX_CONNECT:
    case MCPG_AGENT_FX_DISCONNECT:
    case MCPG_AGENT_FX_ATTACHED:
    case MCPG_AGENT_FX_LINK_OPEN:
    case MCPG_AGENT_FX_LINK_CLOSE:
    case MCPG_AGENT_FX_LINK_CHECK:
        fx_other(w, node, f);
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        sim_dp_group(w, node, &f->u.dp_group);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
        sim_dp_hold(w, node, &f->u.dp_hold);
        break;
    case MCPG_AGENT_FX_DP_RELEASE:
        sim_dp_release(w, node, f->u.dp_release.gid.v);
        break;
    case MCPG_AGENT_FX_DP_INSTALL:
        fx_install(w, node, f->u.dp_install);
        break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        sim_dp_fence(w, node, f->u.dp_sync_fence.gid.v);
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        sim_dp_resolve(w, node, &f->u.dp_resolve);
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        sim_dp_gone(w, node, f->u.dp_group_gone.gid.v);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        sim_check_answer(w, node, f->u.call_done);
        sim_work_done(w, node, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        break;
    case MCPG_AGENT_FX_STOP:
        node->stopped = true;
        break;
    case MCPG_AGENT_FX_LINK_ASK_VIEW:
        sim_link_ask_view(w, node, f->u.link_ask_view.gid, f->u.link_ask_view.view);
        break;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        sim_link_tell_view(w, node, &f->u.link_tell_view);
        break;
    case MCPG_AGENT_FX__COUNT:
        break;
    }
}

static void one_step(sim_t *w, sim_node_t *node, mcpg_agent_event_t *event, const uint8_t *raw, size_t raw_len) {
    event->now = local_now(w, node);
    sim_mix(w, (uint64_t)event->kind << 32 | node->index);
    sim_log_agent_event(w, node, event, raw, raw_len);
    mcpg_agent_effects_reset(&w->agent_fx);
    mcpg_status_t status = mcpg_agent_step(node->agent, event, &w->agent_fx);
    node->steps++;
    sim_log_agent_effects(w, node, event);
    if (status != MCPG_OK)
        sim_fail(w, "I16", "rank %u: an event of kind %u was rejected with %d", node->rank, (unsigned)event->kind,
                 (int)status);
    if (w->options.trace)
        sim_trace(w, "rank %u node %u <- %u%s, %u effects", node->rank, node->index, (unsigned)event->kind,
                  event->kind == MCPG_AGENT_EV_MSG ? mcpg__down_name(event->u.msg->kind) : "", w->agent_fx.count);
    if (w->options.trace && event->kind == MCPG_AGENT_EV_MSG && event->u.msg->kind == MCPG_DOWN_REFUSED)
        sim_trace(w, "  refused: %.*s", (int)event->u.msg->u.refused.text.len, event->u.msg->u.refused.text.ptr);
    for (uint32_t i = 0; i < w->agent_fx.count && !w->failed; i++) run_effect(w, node, &w->agent_fx.items[i]);
    if (node->slow_us > 0) node->busy_until_us = w->now + node->slow_us;
    if (node->steps % w->plan.check_every != 0) return;
    const char *fault = mcpg_agent_check(node->agent);
    if (fault != NULL) sim_fail(w, "agent", "rank %u: %s", node->rank, fault);
    if (node->steps % 256u == 0) sim_mix(w, mcpg_agent_digest(node->agent));
}

/* event NULL: only what is pending, after the link manager was told something. */
void sim_agent_step(sim_t *w, sim_node_t *node, mcpg_agent_event_t *event, const uint8_t *raw, size_t raw_len) {
    if (event != NULL) one_step(w, node, event, raw, raw_len);
    while (node->pending_count > 0 && !w->failed) { /* bounded: what they give rise to ends */
        mcpg_agent_event_t e = node->pending[node->pending_head];
        node->pending_head = (node->pending_head + 1u) % SIM_PENDING;
        node->pending_count--;
        one_step(w, node, &e, NULL, 0);
    }
    if (node->alive) sim_node_arm(w, node);
}

/* ---- life ---- */

static void draw_clock(sim_t *w, sim_node_t *node) {
    uint64_t rate = SIM_SECOND;
    if (w->plan.weight[SIM_F_CLOCK] > 0 && sim_chance(&w->host, 300)) rate += sim_below(&w->host, 40001) - 20000u;
    sim_clock_init(&node->clock, w->now, SIM_SECOND + sim_below(&w->host, 3600u * SIM_SECOND), rate);
}

uint32_t sim_spawn(sim_t *w, uint32_t rank) {
    sim_grow((void **)&w->nodes, &w->node_cap, w->node_count, sizeof(*w->nodes));
    uint32_t index = w->node_count++;
    sim_node_t *node = sim_zalloc(sizeof(*node));
    w->nodes[index] = node;
    node->index = index;
    node->rank = rank;
    node->session = sim_next(&w->host) | 1u;
    node->pid = HOST_PID + (int64_t)index;
    node->host_id = 1u + rank % w->plan.hosts;
    node->alive = true;
    node->replaces = w->at_rank[rank] != SIM_NO;
    node->stream = SIM_NO;
    node->address = w->address;
    node->heap_timer_us = SIM_NEVER;
    draw_clock(w, node);
    mcpg_agent_config_t *config = &node->config;
    *config = (mcpg_agent_config_t){.rank = {rank},
                                    .session = {node->session},
                                    .host_id = node->host_id,
                                    .pid = node->pid,
                                    .endpoint_len = 8,
                                    .max_ranks = w->plan.max_ranks,
                                    .max_groups = SIM_MINE,
                                    .max_slots_total = SIM_SPECS * SIM_RANKS,
                                    .max_calls = 16,
                                    .max_reports = w->plan.small_caps ? 2 : 16,
                                    .attach_timeout_us = 600u * SIM_SECOND,
                                    .seed = sim_next(&w->host),
                                    .timers = w->plan.timers};
    memcpy(config->endpoint, &index, sizeof(index));
    size_t size = mcpg_agent_size(config);
    node->mem = sim_zalloc(size);
    if (mcpg_agent_init(node->mem, size, config, &node->agent) != MCPG_OK || sim_links_create(w, node) != MCPG_OK)
        abort();
    node->frames = mcpg__frames_rx_new();
    if (node->frames == NULL) abort();
    node->armed_us = 0;
    w->at_rank[rank] = index;
    sim_log_agent_open(w, node);
    sim_node_arm(w, node);
    sim_at(w, w->now + sim_below(&w->work, w->plan.tick_us), SIM_EV_TICK, index, 0, 0);
    sim_trace(w, "rank %u: process %u starts", rank, index);
    return index;
}

void sim_crash(sim_t *w, sim_node_t *node) {
    if (!node->alive) return;
    sim_trace(w, "rank %u: process %u ends", node->rank, node->index);
    node->alive = false;
    if (node->stream != SIM_NO) sim_stream_node_died(w, node->stream);
    node->stream = SIM_NO;
    while (node->local_head != NULL) local_pop(node);
    node->pending_count = 0;
    sim_link_died(w, node);
    for (uint32_t i = 0; i < SIM_MINE; i++) node->mine[i].op_count = 0;
}

void sim_node_free(sim_node_t *node) {
    while (node->local_head != NULL) local_pop(node);
    for (uint32_t i = 0; i < SIM_MINE; i++) sim_mine_clear(&node->mine[i]);
    sim_log_agent_close(node);
    mcpg__link_manager_destroy(node->links);
    free(node->link_user);
    mcpg__frames_rx_free(node->frames);
    free(node->mem);
    free(node);
}
