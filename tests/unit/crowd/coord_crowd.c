/* coord_crowd.c: see coord_crowd.h. Must never judge a result. */
#include "coord_crowd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/coord_state.h"

static void *must(void *memory) {
    if (memory != NULL) return memory;
    (void)fprintf(stderr, "out of memory\n");
    abort();
}

static void must_ok(mcpg_status_t status, const char *what) {
    if (status == MCPG_OK) return;
    (void)fprintf(stderr, "%s: %s\n", what, mcpg_status_name(status));
    abort();
}

uint64_t crowd_cpu_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- what the agents will say ---- */

static mcpg_up_msg_t *will_say(crowd_t *w, uint32_t rank, mcpg_up_kind_t kind) {
    if (w->queue_tail == w->queue_cap && w->queue_head > 0) {
        memmove(w->queue, w->queue + w->queue_head, (w->queue_tail - w->queue_head) * sizeof(*w->queue));
        w->queue_tail -= w->queue_head;
        w->queue_head = 0;
    }
    if (w->queue_tail == w->queue_cap) {
        w->queue_cap = w->queue_cap * 2u + 1024u;
        w->queue = must(realloc(w->queue, w->queue_cap * sizeof(*w->queue)));
    }
    crowd_answer_t *answer = &w->queue[w->queue_tail++];
    memset(answer, 0, sizeof(*answer));
    answer->rank = rank;
    answer->msg.kind = kind;
    return &answer->msg;
}

static bool is_real(const crowd_t *w, uint32_t rank) {
    return w->real_hears != NULL && rank == w->real_rank;
}

static void hear(crowd_t *w, uint32_t rank, const mcpg_down_msg_t *msg, mcpg_bytes_t frame) {
    if (is_real(w, rank)) {
        if (msg->kind == MCPG_DOWN_WELCOME) w->incs[rank] = msg->u.welcome.inc;
        w->real_hears(w->real_user, frame.ptr, frame.len);
        return;
    }
    if (msg->kind == MCPG_DOWN_WELCOME) w->incs[rank] = msg->u.welcome.inc;
    if (msg->kind == MCPG_DOWN_HEARTBEAT_REPLY) w->digests[rank] = msg->u.heartbeat_reply.digest;
    if (msg->kind == MCPG_DOWN_REPLY || msg->kind == MCPG_DOWN_REGISTERED) {
        w->last_reply = msg->kind == MCPG_DOWN_REPLY ? msg->u.reply.status : msg->u.registered.status;
        if (msg->kind == MCPG_DOWN_REGISTERED) w->last_gid = msg->u.registered.gid.v;
        w->replies++;
    }
    if (msg->kind == MCPG_DOWN_PREPARE) {
        mcpg_up_ack_t *ack = &will_say(w, rank, MCPG_UP_ACK)->u.ack;
        ack->gid = msg->u.prepare.gid;
        ack->view = msg->u.prepare.view.id;
        ack->next_seq = w->next_seq;
    }
    if (msg->kind == MCPG_DOWN_COMMIT) {
        mcpg_up_commit_ack_t *ack = &will_say(w, rank, MCPG_UP_COMMIT_ACK)->u.commit_ack;
        ack->gid = msg->u.commit.gid;
        ack->view = msg->u.commit.view.id;
    }
    if (msg->kind != MCPG_DOWN_RANK_STATES || msg->u.rank_states.check_id == 0) return;
    for (uint32_t i = 0; i < msg->u.rank_states.count; i++) {
        const mcpg_rank_info_t *suspect = &msg->u.rank_states.ranks[i];
        if (suspect->rank.v == rank) continue;
        mcpg_up_link_t *link = &will_say(w, rank, MCPG_UP_LINK)->u.link;
        link->peer = suspect->rank;
        link->peer_inc = suspect->inc;
        link->state = w->alive[suspect->rank.v] ? MCPG_LINK_UP : MCPG_LINK_LOST;
        link->check_id = msg->u.rank_states.check_id;
    }
}

/* ---- effects ---- */

static uint32_t rank_of(const crowd_t *w, uint64_t conn) {
    for (uint32_t r = 0; r < w->ranks; r++)
        if (w->conns[r] == conn) return r;
    return w->ranks;
}

static void count_sent(crowd_t *w, mcpg_down_kind_t kind, size_t len) {
    w->count.messages++;
    w->count.bytes += len;
    w->count.kind_messages[kind]++;
    w->count.kind_bytes[kind] += len;
    if (len > w->count.largest) w->count.largest = len;
}

static bool goes_to_real(const crowd_t *w, const mcpg_coord_effect_t *effect) {
    if (w->real_hears == NULL) return false;
    if (effect->kind == MCPG_COORD_FX_SEND_CONN) return effect->conn == w->conns[w->real_rank];
    return mcpg__rankset_has(effect->to, w->real_rank);
}

static size_t pack(crowd_t *w, const mcpg_coord_effect_t *effect) {
    size_t len = 0;
    must_ok(mcpg__down_pack(effect->msg, w->packed, MCPG_MSG_CAP, &len), mcpg__down_name(effect->msg->kind));
    w->count.packs++;
    return len;
}

/* One connection. */
static void answer(crowd_t *w, const mcpg_coord_effect_t *effect, size_t len) {
    uint32_t rank = rank_of(w, effect->conn);
    count_sent(w, effect->msg->kind, len);
    if (rank < w->ranks && w->alive[rank]) hear(w, rank, effect->msg, (mcpg_bytes_t){w->packed, (uint32_t)len});
}

/* Every attached rank of the set; framed unless the messages are not even packed. */
static void push(crowd_t *w, const mcpg_coord_effect_t *effect, bool framed) {
    for (uint32_t r = mcpg__rankset_next(effect->to, 0); r < w->ranks; r = mcpg__rankset_next(effect->to, r + 1)) {
        uint64_t conn;
        mcpg_bytes_t frame = {NULL, 0};
        if (!mcpg_coord_rank_conn(w->coord, (mcpg_rank_t){r}, &conn)) continue;
        if (framed) {
            frame = mcpg__frames_tx_frame_for(w->frames, r, conn);
            count_sent(w, effect->msg->kind, frame.len);
        }
        if (w->alive[r]) hear(w, r, effect->msg, frame);
    }
}

static void carry_out(crowd_t *w, const mcpg_coord_effect_t *effect) {
    if (effect->kind == MCPG_COORD_FX_ARM_TIMER) w->timer_us = effect->at.us;
    bool one = effect->kind == MCPG_COORD_FX_SEND_CONN;
    if (!one && effect->kind != MCPG_COORD_FX_SEND) return;
    if (w->light && !goes_to_real(w, effect)) {
        if (!one) push(w, effect, false);
        if (one) answer(w, effect, 0);
        return;
    }
    uint64_t began = w->light ? 0 : crowd_cpu_ns();
    size_t len = pack(w, effect);
    if (!one) mcpg__frames_tx_begin(w->frames, effect->msg, w->packed, len);
    w->count.pack_ns += w->light ? 0 : crowd_cpu_ns() - began;
    if (one) {
        answer(w, effect, len);
        return;
    }
    push(w, effect, true);
    mcpg__frames_tx_end(w->frames);
}

static void one_step(crowd_t *w, mcpg_coord_event_t event) {
    event.now.us = w->now_us;
    if (event.kind == MCPG_COORD_EV_TIMER) w->timer_us = UINT64_MAX;
    mcpg_coord_effects_reset(&w->fx);
    uint64_t began = w->light ? 0 : crowd_cpu_ns();
    mcpg_status_t status = mcpg_coord_step(w->coord, &event, &w->fx);
    w->count.step_ns += w->light ? 0 : crowd_cpu_ns() - began;
    w->count.steps++;
    must_ok(status, "step");
    for (uint32_t i = 0; i < w->fx.count; i++) carry_out(w, &w->fx.items[i]);
}

void crowd_step(crowd_t *w, mcpg_coord_event_t event) {
    one_step(w, event);
    for (uint32_t i = 0; w->timer_us <= w->now_us; i++) {
        if (i > 1000000u) must_ok(MCPG_TIMED_OUT, "the machine asks for one TIMER step after another");
        one_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
    }
}

void crowd_say(crowd_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    size_t len = 0;
    if (msg->kind != MCPG_UP_LINK && !w->light) { /* the many; all of one size */
        must_ok(mcpg__up_pack(msg, w->packed, MCPG_MSG_CAP, &len), mcpg__up_name(msg->kind));
        w->count.up_bytes += len;
    }
    w->count.up_messages++;
    crowd_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = w->conns[rank], .msg = msg});
}

void crowd_settle(crowd_t *w) {
    while (w->queue_head < w->queue_tail) { /* bounded: an answer asks for at most one more */
        crowd_answer_t answer = w->queue[w->queue_head++];
        if (w->alive[answer.rank]) crowd_say(w, answer.rank, &answer.msg);
    }
    w->queue_head = 0;
    w->queue_tail = 0;
}

/* ---- the job ---- */

crowd_t *crowd_new(uint32_t ranks, uint32_t endpoint_len) {
    crowd_t *w = must(calloc(1, sizeof(*w)));
    w->config = (mcpg_coord_config_t){.term = 1,
                                      .coordinator_id = 1,
                                      .max_ranks = ranks,
                                      .max_groups = 8,
                                      .max_slots_total = 8u * ranks,
                                      .timers = {.heartbeat_us = 200000,
                                                 .offline_us = 5000000,
                                                 .ack_us = 5000000,
                                                 .ack_added_us = 1000000,
                                                 .reconcile_us = 2000000,
                                                 .coordinator_grace_us = 30000000,
                                                 .collective_timeout_us = 1000000,
                                                 .p2p_timeout_us = 10000000}};
    w->ranks = ranks;
    w->endpoint_len = endpoint_len;
    w->now_us = 1000;
    w->timer_us = UINT64_MAX;
    w->next_seq = 3;
    w->mem_size = mcpg_coord_size(&w->config);
    w->mem = must(calloc(1, w->mem_size));
    mcpg_coord_effects_worst(&w->config, &w->fx.cap, &w->fx.arena_cap);
    w->fx.items = must(calloc(w->fx.cap, sizeof(*w->fx.items)));
    w->fx.arena = must(malloc(w->fx.arena_cap));
    w->conns = must(calloc(ranks, sizeof(*w->conns)));
    w->incs = must(calloc(ranks, sizeof(*w->incs)));
    w->pids = must(calloc(ranks, sizeof(*w->pids)));
    w->digests = must(calloc(ranks, sizeof(*w->digests)));
    w->alive = must(calloc(ranks, sizeof(*w->alive)));
    w->packed = must(malloc(MCPG_MSG_CAP));
    w->frames = must(mcpg__frames_tx_new(ranks));
    must_ok(mcpg_coord_init(w->mem, w->mem_size, &w->config, &w->coord), "init");
    return w;
}

void crowd_free(crowd_t *w) {
    if (w == NULL) return;
    free(w->mem);
    free(w->fx.items);
    free(w->fx.arena);
    free(w->conns);
    free(w->incs);
    free(w->digests);
    free(w->alive);
    free(w->pids);
    free(w->packed);
    mcpg__frames_tx_free(w->frames);
    free(w->queue);
    free(w);
}

void crowd_attach(crowd_t *w, uint32_t rank) {
    static uint8_t endpoint[MCPG_ENDPOINT_CAP];
    mcpg_up_msg_t msg = {.kind = MCPG_UP_ATTACH};
    w->conns[rank] = ++w->last_conn;
    w->alive[rank] = true;
    w->pids[rank] = 100000 + (int64_t)++w->last_session;
    memset(endpoint, 'x', sizeof(endpoint));
    msg.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                      .rank = {rank},
                                      .session = {w->last_session},
                                      .host_id = UINT64_C(0x123456789abcdef0),
                                      .pid = w->pids[rank],
                                      .endpoint = {endpoint, w->endpoint_len}};
    crowd_say(w, rank, &msg);
}

void crowd_link_half(crowd_t *w, uint32_t rank, uint32_t peer) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_LINK};
    msg.u.link = (mcpg_up_link_t){.peer = {peer}, .peer_inc = w->incs[peer], .state = MCPG_LINK_UP};
    crowd_say(w, rank, &msg);
}

void crowd_link(crowd_t *w, uint32_t a, uint32_t b) {
    crowd_link_half(w, a, b);
    crowd_link_half(w, b, a);
}

void crowd_gather(crowd_t *w) {
    for (uint32_t r = 0; r < w->ranks; r++) crowd_attach(w, r);
    for (uint32_t a = 0; a < w->ranks; a++)
        for (uint32_t b = 0; b < a; b++) crowd_link(w, a, b);
    crowd_settle(w);
}

void crowd_register(crowd_t *w, uint32_t rank, uint32_t group_ranks, bool extension, bool manual) {
    static uint32_t order[MCPG_MAX_RANKS];
    static const uint8_t kind[] = "cpu";
    for (uint32_t r = 0; r < group_ranks; r++) order[r] = r;
    mcpg_up_msg_t msg = {.kind = MCPG_UP_REGISTER};
    msg.u.register_group = (mcpg_up_register_t){.call_id = 1,
                                                .device_kind = {kind, 3},
                                                .order_count = group_ranks,
                                                .order = order,
                                                .capacity = group_ranks,
                                                .is_extension = extension,
                                                .manual = manual};
    crowd_say(w, rank, &msg);
}

void crowd_join(crowd_t *w, uint32_t rank, uint32_t gid) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_JOIN};
    msg.u.join = (mcpg_up_join_t){.call_id = 2, .gid = {gid}};
    crowd_say(w, rank, &msg);
}

void crowd_propose(crowd_t *w, uint32_t rank, uint32_t gid, const mcpg_rankset_t *activate,
                   const mcpg_rankset_t *deactivate) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_PROPOSE};
    msg.u.propose.call_id = 3;
    msg.u.propose.gid.v = gid;
    msg.u.propose.expected_epoch = MCPG_ANY_EPOCH;
    if (activate != NULL) msg.u.propose.activate = *activate;
    if (deactivate != NULL) msg.u.propose.deactivate = *deactivate;
    crowd_say(w, rank, &msg);
}

void crowd_exit(crowd_t *w, uint32_t rank) {
    w->alive[rank] = false;
    crowd_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {rank}, .pid = w->pids[rank]});
}

void crowd_heartbeat(crowd_t *w, uint32_t rank) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_HEARTBEAT};
    msg.u.heartbeat = (mcpg_up_heartbeat_t){.digest = w->digests[rank], .sent_us = w->now_us};
    crowd_say(w, rank, &msg);
}

uint32_t crowd_active(const crowd_t *w, uint32_t gid) {
    const mcpg_coord_group_t *g = mcpg__coord_group_find(w->coord, (mcpg_gid_t){gid});
    return g == NULL || g->committed.epoch == 0 ? 0 : mcpg__rankset_count(&g->active);
}

void crowd_count_reset(crowd_t *w) {
    memset(&w->count, 0, sizeof(w->count));
}
