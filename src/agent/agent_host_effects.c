/* agent_host_effects.c: carries the machine's effects out, in order, and takes in what the data plane sees.
 *
 * Never skips or reorders an effect; never blocks: the data plane's calls return promptly, a send only queues.
 */
#include <stdio.h>
#include <string.h>

#include "agent/agent_host_internal.h"

static void fx_send(mcpg_agent_host_t *host, const mcpg_up_msg_t *msg) {
    size_t len = 0;
    mcpg_status_t status = mcpg__up_pack(msg, host->scratch, HOST_SCRATCH_CAP, &len);
    MCPG_ASSERT(status == MCPG_OK); /* the machine made the message: it is within bounds */
    status = host->config.rpc->client_send(host->client->client, host->scratch, len);
    if (status != MCPG_OK) /* the stream broke: closed() says so to the machine, which then sends again what matters */
        mcpg__log(&host->log, MCPG_LOG_DEBUG, "send_failed msg %s status %s", mcpg__up_name(msg->kind),
                  mcpg_status_name(status));
}

static void fx_attached(mcpg_agent_host_t *host, const mcpg_agent_attached_t *a) {
    pthread_mutex_lock(&host->calls_mu);
    if (!host->attach_done) {
        host->attach_done = true;
        host->attach_status = a->status;
        (void)snprintf(host->attach_text, sizeof(host->attach_text), "%.*s", (int)a->text.len,
                       a->text.len ? (const char *)a->text.ptr : "");
        pthread_cond_broadcast(&host->attach_cond);
    }
    pthread_mutex_unlock(&host->calls_mu);
}

static void fx_dp_group(mcpg_agent_host_t *host, const mcpg_agent_dp_group_t *g) {
    mcpg_dp_group_config_t config = {.gid = g->gid,
                                     .slot = g->slot,
                                     .capacity = g->capacity,
                                     .isolated = g->isolated,
                                     .manual = g->manual,
                                     .no_auto_sync = g->no_auto_sync};
    host->config.dp_ops->group_open(host->config.dp, &config);
}

static void fx_dp_hold(mcpg_agent_host_t *host, const mcpg_agent_dp_view_t *v) {
    bool steps = false;
    uint64_t next_seq = host->config.dp_ops->hold(host->config.dp, v->gid, &steps);
    host_pending_t held = {.kind = MCPG_AGENT_EV_HELD,
                           .u.held = {.gid = v->gid, .view = v->view, .next_seq = next_seq, .steps = steps}};
    mcpg__host_push_pending(host, &held);
}

static void fx_tell_view(mcpg_agent_host_t *host, const mcpg_agent_tell_view_t *tell) {
    size_t len = 0;
    mcpg_status_t status = mcpg__down_pack(tell->msg, host->scratch, HOST_SCRATCH_CAP, &len);
    MCPG_ASSERT(status == MCPG_OK); /* it came as a message */
    host->config.dp_ops->tell_view(host->config.dp, tell->rank, tell->inc, host->scratch, len);
}

static void fx_disconnect(mcpg_agent_host_t *host) {
    if (!host->stream_open || host->stream_closing) return;
    host->stream_closing = true;
    host->config.rpc->client_disconnect(host->client->client);
}

static void run_effect(mcpg_agent_host_t *host, const mcpg_agent_effect_t *f) {
    const mcpg_dp_ops_t *ops = host->config.dp_ops;
    void *dp = host->config.dp;
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        fx_send(host, f->u.send);
        break;
    case MCPG_AGENT_FX_CONNECT:
        mcpg__host_connect(host);
        break;
    case MCPG_AGENT_FX_DISCONNECT:
        fx_disconnect(host);
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        host->machine_timer = f->u.arm_timer;
        break;
    case MCPG_AGENT_FX_ATTACHED:
        fx_attached(host, &f->u.attached);
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
        mcpg__link_manager_open(host->links, &f->u.link_open, mcpg__now());
        break;
    case MCPG_AGENT_FX_LINK_CLOSE:
        mcpg__link_manager_close(host->links, &f->u.link_close);
        break;
    case MCPG_AGENT_FX_LINK_CHECK:
        mcpg__link_manager_check(host->links, &f->u.link_check, mcpg__now());
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        fx_dp_group(host, &f->u.dp_group);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
        fx_dp_hold(host, &f->u.dp_hold);
        break;
    case MCPG_AGENT_FX_DP_RELEASE:
        ops->release_hold(dp, f->u.dp_release.gid);
        break;
    case MCPG_AGENT_FX_DP_INSTALL:
        ops->install_view(dp, f->u.dp_install);
        break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        ops->sync_fence(dp, f->u.dp_sync_fence.gid);
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        ops->resolve(dp, f->u.dp_resolve.gid, f->u.dp_resolve.report_id, f->u.dp_resolve.status);
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        ops->group_close(dp, f->u.dp_group_gone.gid);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        mcpg__host_call_done(host, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        if (host->config.notify != NULL) host->config.notify(host->config.user, &f->u.notify);
        break;
    case MCPG_AGENT_FX_STOP:
        host->stopped = true;
        break;
    case MCPG_AGENT_FX_LINK_ASK_VIEW:
        ops->ask_view(dp, f->u.link_ask_view.gid, f->u.link_ask_view.view);
        break;
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        fx_tell_view(host, &f->u.link_tell_view);
        break;
    case MCPG_AGENT_FX__COUNT:
        break;
    }
}

void mcpg__host_run_effects(mcpg_agent_host_t *host) {
    for (uint32_t i = 0; i < host->effects.count; i++) run_effect(host, &host->effects.items[i]);
}

/* ---- what the data plane sees: any thread, only queues ---- */

static bool post_link(void *user, uint32_t kind, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t d) {
    mcpg_exec_item_t item = {.kind = kind, .a = rank.v, .b = inc.term, .c = inc.counter, .d = d};
    return mcpg__host_post(user, &item, false);
}
static bool see_link_up(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    return post_link(user, HOST_ITEM_LINK_UP, rank, inc, 0);
}
static bool see_link_lost(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    return post_link(user, HOST_ITEM_LINK_LOST, rank, inc, 0);
}
static bool see_link_checked(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id, bool ok) {
    return post_link(user, ok ? HOST_ITEM_LINK_CHECKED_OK : HOST_ITEM_LINK_CHECKED_BAD, rank, inc, check_id);
}
static bool see_death(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_proof_t proof) {
    return post_link(user, HOST_ITEM_LINK_DEATH, rank, inc, (uint64_t)proof);
}

static bool see_op_failed(void *user, mcpg_gid_t gid, uint64_t report_id, uint64_t seq, const mcpg_member_t *failed,
                          uint32_t failed_count) {
    uint8_t buf[MCPG_AGENT_EVENT_CAP];
    size_t len = 0;
    mcpg_agent_event_t ev;
    memset(&ev, 0, sizeof(ev));
    ev.kind = MCPG_AGENT_EV_OP_FAILED;
    ev.u.op_failed = (mcpg_agent_op_failed_ev_t){
        .gid = gid, .report_id = report_id, .seq = seq, .failed_count = failed_count, .failed = failed};
    MCPG_ASSERT(mcpg__agent_event_encode(&ev, buf, sizeof(buf), &len) == MCPG_OK);
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_OP_FAILED, .bytes = buf, .len = len};
    return mcpg__host_post(user, &item, false);
}

/* Lost when the queue is full: it is asked again. */
static void see_view_asked(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_gid_t gid, mcpg_view_id_t view) {
    uint8_t buf[64];
    size_t len = 0;
    mcpg_agent_event_t ev;
    memset(&ev, 0, sizeof(ev));
    ev.kind = MCPG_AGENT_EV_VIEW_ASKED;
    ev.u.view_asked = (mcpg_agent_view_asked_ev_t){.rank = rank, .inc = inc, .gid = gid, .view = view};
    MCPG_ASSERT(mcpg__agent_event_encode(&ev, buf, sizeof(buf), &len) == MCPG_OK);
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_VIEW_ASKED, .bytes = buf, .len = len};
    (void)mcpg__host_post(user, &item, false);
}

static void see_view_told(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes, size_t len) {
    (void)rank; /* whoever relays it: it is the coordinator's word */
    (void)inc;
    mcpg_exec_item_t item = {.kind = MCPG_AGENT_EV_VIEW_TOLD, .bytes = bytes, .len = len};
    (void)mcpg__host_post(user, &item, false);
}

void mcpg__host_init_observer(mcpg_agent_host_t *host) {
    host->observer = (mcpg_dp_observer_t){.user = host,
                                          .link_up = see_link_up,
                                          .link_lost = see_link_lost,
                                          .link_checked = see_link_checked,
                                          .death = see_death,
                                          .op_failed = see_op_failed,
                                          .view_asked = see_view_asked,
                                          .view_told = see_view_told};
}
