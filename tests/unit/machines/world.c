/* world.c: streams, links, processes and steps of the world. See world.h. */
#include "unit/machines/world_priv.h"

uint64_t world_random(world_t *w, uint64_t below) {
    w->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = w->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

void world_fail(const world_t *w, const char *what, const char *why) {
    fail_msg("seed %llu step %llu at %llu us: %s: %s", U(w->seed), U(w->steps), U(w->now.us), what, why);
}

uint32_t world_index(const world_t *w, const node_t *node) {
    return (uint32_t)(node - w->nodes);
}

mcpg_incarnation_t world_inc(const node_t *node) {
    mcpg_incarnation_t inc;
    (void)mcpg_agent_attached(node->agent, &inc);
    return inc;
}

/* ---- queues ---- */

item_t *world_push(queue_t *queue, item_kind_t kind, uint64_t conn, const uint8_t *bytes, size_t len) {
    item_t *item = calloc(1, sizeof(*item) + len);
    assert_non_null(item);
    item->kind = kind;
    item->conn = conn;
    item->len = len;
    if (len > 0) memcpy(item->bytes, bytes, len);
    if (queue->tail != NULL)
        queue->tail->next = item;
    else
        queue->head = item;
    queue->tail = item;
    return item;
}

static item_t *pop(queue_t *queue) {
    item_t *item = queue->head;
    queue->head = item->next;
    if (queue->head == NULL) queue->tail = NULL;
    return item;
}

static void drain(queue_t *queue) {
    while (queue->head != NULL) free(pop(queue));
}

void world_push_event(node_t *node, const mcpg_agent_event_t *event) {
    item_t *item = world_push(&node->local, ITEM_EVENT, 0, NULL, 0);
    item->event = *event;
    if (event->kind == MCPG_AGENT_EV_OP_FAILED) {
        item->failed = event->u.op_failed.failed[0];
        item->event.u.op_failed.failed = &item->failed;
    }
}

/* ---- links ---- */

static node_t *living(world_t *w, uint32_t rank) {
    for (uint32_t i = 0; i < w->node_count; i++)
        if (w->nodes[i].alive && w->nodes[i].rank == rank) return &w->nodes[i];
    return NULL;
}

static void say_link(node_t *node, uint32_t rank, mcpg_incarnation_t inc, bool up, uint64_t check_id) {
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_LINK};
    e.u.link = (mcpg_agent_link_ev_t){
        .rank = {rank}, .inc = inc, .state = up ? MCPG_LINK_UP : MCPG_LINK_LOST, .check_id = check_id};
    world_push_event(node, &e);
}

static bool joined(world_t *w, const node_t *a, const node_t *b) {
    return mcpg__inc_eq(a->open[b->rank], world_inc(b)) && mcpg__inc_eq(b->open[a->rank], world_inc(a)) &&
           !w->cut[a->rank][b->rank];
}

static void try_link(world_t *w, node_t *a, node_t *b) {
    if (!joined(w, a, b) || (a->up[b->rank] && b->up[a->rank])) return;
    a->up[b->rank] = b->up[a->rank] = true;
    say_link(a, b->rank, world_inc(b), true, 0);
    say_link(b, a->rank, world_inc(a), true, 0);
}

static void lose_link(node_t *node, uint32_t rank) {
    if (!node->up[rank]) return;
    node->up[rank] = false;
    say_link(node, rank, node->open[rank], false, 0);
}

static void open_link(world_t *w, node_t *node, const mcpg_agent_link_open_t *open) {
    node->open[open->rank.v] = open->inc;
    node->up[open->rank.v] = false;
    node_t *peer = living(w, open->rank.v);
    if (peer == NULL || !mcpg__inc_eq(world_inc(peer), open->inc))
        say_link(node, open->rank.v, open->inc, false, 0);
    else
        try_link(w, node, peer);
}

static void check_link(world_t *w, node_t *node, const mcpg_agent_link_check_t *check) {
    node_t *peer = living(w, check->rank.v);
    bool ok = peer != NULL && mcpg__inc_eq(world_inc(peer), check->inc) && joined(w, node, peer);
    say_link(node, check->rank.v, check->inc, ok, check->check_id);
}

void world_cut(world_t *w, uint32_t a, uint32_t b, bool cut) {
    w->cut[a][b] = w->cut[b][a] = cut;
    node_t *na = living(w, a), *nb = living(w, b);
    if (na == NULL || nb == NULL) return;
    if (cut) {
        lose_link(na, b);
        lose_link(nb, a);
    } else {
        try_link(w, na, nb);
    }
}

/* ---- agents ---- */

static void agent_connect(world_t *w, node_t *node) {
    if (node->conn != 0) world_fail(w, "CONNECT", "a stream is open");
    node->conn = ++w->last_conn;
    node->closing = false;
    (void)world_push(&node->down, w->coord_deaf ? ITEM_DISCONNECTED : ITEM_CONNECTED, node->conn, NULL, 0);
}

static void end_stream(node_t *node) {
    if (node->conn == 0 || node->closing) return;
    node->closing = true;
    (void)world_push(&node->out, ITEM_CLOSED, node->conn, NULL, 0);
    (void)world_push(&node->down, ITEM_DISCONNECTED, node->conn, NULL, 0);
}

void world_drop_stream(world_t *w, uint32_t node) {
    if (w->nodes[node].conn == 0 || w->nodes[node].closing) return;
    drain(&w->nodes[node].down); /* what was under way is lost */
    end_stream(&w->nodes[node]);
}

static void agent_send(world_t *w, node_t *node, const mcpg_up_msg_t *msg) {
    size_t len = 0;
    assert_int_equal(mcpg__up_pack(msg, w->wire, WORLD_WIRE_CAP, &len), MCPG_OK);
    if (w->trace) printf("  node %u -> %s\n", world_index(w, node), mcpg__up_name(msg->kind));
    if (node->conn != 0 && !node->closing) (void)world_push(&node->out, ITEM_MSG, node->conn, w->wire, len);
}

static void agent_effect(world_t *w, node_t *node, const mcpg_agent_effect_t *f) {
    switch (f->kind) {
    case MCPG_AGENT_FX_SEND:
        agent_send(w, node, f->u.send);
        break;
    case MCPG_AGENT_FX_CONNECT:
        agent_connect(w, node);
        break;
    case MCPG_AGENT_FX_DISCONNECT:
        end_stream(node);
        break;
    case MCPG_AGENT_FX_ARM_TIMER:
        node->timer_us = f->u.arm_timer.us;
        break;
    case MCPG_AGENT_FX_ATTACHED:
        if (node->attached_told) world_fail(w, "ATTACHED", "told twice");
        node->attached_told = true;
        node->attached = f->u.attached.status;
        break;
    case MCPG_AGENT_FX_LINK_OPEN:
        open_link(w, node, &f->u.link_open);
        break;
    case MCPG_AGENT_FX_LINK_CLOSE:
        node->open[f->u.link_close.rank.v] = (mcpg_incarnation_t){0, 0};
        node->up[f->u.link_close.rank.v] = false;
        break;
    case MCPG_AGENT_FX_LINK_CHECK:
        check_link(w, node, &f->u.link_check);
        break;
    case MCPG_AGENT_FX_DP_GROUP:
        dp_group(node, &f->u.dp_group);
        break;
    case MCPG_AGENT_FX_DP_HOLD:
        dp_hold(node, &f->u.dp_hold);
        break;
    case MCPG_AGENT_FX_DP_RELEASE:
        dp_release(w, node, f->u.dp_release.gid);
        break;
    case MCPG_AGENT_FX_DP_INSTALL:
        dp_install(w, node, f->u.dp_install);
        break;
    case MCPG_AGENT_FX_DP_SYNC_FENCE:
        node->groups[f->u.dp_sync_fence.gid.v].fenced = true;
        break;
    case MCPG_AGENT_FX_DP_RESOLVE:
        dp_resolve(w, node, &f->u.dp_resolve);
        break;
    case MCPG_AGENT_FX_DP_GROUP_GONE:
        dp_gone(node, f->u.dp_group_gone.gid);
        break;
    case MCPG_AGENT_FX_CALL_DONE:
        dp_call_done(w, f->u.call_done);
        break;
    case MCPG_AGENT_FX_NOTIFY:
        if (f->u.notify.kind == MCPG_EVENT_COORDINATOR_LOST) node->lost_count++;
        if (f->u.notify.kind == MCPG_EVENT_COORDINATOR_BACK) node->back_count++;
        break;
    case MCPG_AGENT_FX_LINK_ASK_VIEW: /* no control lane in this world: the answer comes from the coordinator */
    case MCPG_AGENT_FX_LINK_TELL_VIEW:
        break;
    case MCPG_AGENT_FX_STOP:
        node->stopped = true;
        break;
    case MCPG_AGENT_FX__COUNT:
        break;
    }
}

void world_agent(world_t *w, node_t *node, mcpg_agent_event_t *event) {
    event->now = w->now;
    mcpg_agent_effects_reset(&node->fx);
    mcpg_status_t status = mcpg_agent_step(node->agent, event, &node->fx);
    if (status != MCPG_OK) world_fail(w, "agent step", "rejected");
    for (uint32_t i = 0; i < node->fx.count; i++) agent_effect(w, node, &node->fx.items[i]);
    const char *fault = mcpg_agent_check(node->agent);
    if (fault != NULL) world_fail(w, "agent", fault);
    w->digest = w->digest * 31u + mcpg_agent_digest(node->agent);
}

uint32_t world_spawn(world_t *w, uint32_t rank) {
    assert_true(w->node_count < WORLD_NODES && rank < WORLD_RANKS && living(w, rank) == NULL);
    uint32_t index = w->node_count++;
    node_t *node = &w->nodes[index];
    mcpg_agent_config_t config = {.rank = {rank},
                                  .session = {1000u + index},
                                  .host_id = 1,
                                  .pid = 100 + (int64_t)index,
                                  .endpoint = "here",
                                  .endpoint_len = 4,
                                  .max_ranks = WORLD_RANKS,
                                  .max_groups = 8,
                                  .max_slots_total = 64,
                                  .max_calls = 16,
                                  .max_reports = 16,
                                  .attach_timeout_us = 30000000,
                                  .seed = w->seed + index};
    config.timers = (mcpg_timers_t){200000,  5000000,  5000000, 1000000, 2000000, 30000000,
                                    1000000, 10000000, 2000000, 1200000, 100000,  2000000};
    size_t size = mcpg_agent_size(&config), arena;
    uint32_t items;
    node->mem = calloc(1, size);
    assert_int_equal(mcpg_agent_init(node->mem, size, &config, &node->agent), MCPG_OK);
    mcpg_agent_effects_worst(&config, &items, &arena);
    node->fx.items = calloc(items, sizeof(*node->fx.items));
    node->fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
    node->fx.cap = items;
    node->fx.arena_cap = arena;
    node->alive = true;
    node->rank = rank;
    node->timer_us = w->now.us;
    return index;
}

void world_kill(world_t *w, uint32_t index) {
    node_t *node = &w->nodes[index];
    if (!node->alive) return;
    node->alive = false;
    drain(&node->down);
    drain(&node->local);
    if (node->conn != 0 && !node->closing) (void)world_push(&node->out, ITEM_CLOSED, node->conn, NULL, 0);
    node->conn = 0;
    for (uint32_t i = 0; i < w->node_count; i++) {
        node_t *peer = &w->nodes[i];
        if (!peer->alive || !mcpg__inc_eq(peer->open[node->rank], world_inc(node)) || mcpg__inc_none(world_inc(node)))
            continue;
        lose_link(peer, node->rank);
        mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_DEATH};
        e.u.death = (mcpg_agent_death_ev_t){.rank = {node->rank}, .inc = world_inc(node), .proof = MCPG_PROOF_PIDFD};
        if (w->prove_deaths) world_push_event(peer, &e);
    }
}

/* ---- coordinator ---- */

static void coord_send(world_t *w, uint64_t conn, const uint8_t *bytes, size_t len, item_kind_t kind) {
    for (uint32_t i = 0; i < w->node_count; i++)
        if (w->nodes[i].alive && w->nodes[i].conn == conn) (void)world_push(&w->nodes[i].down, kind, conn, bytes, len);
}

static void coord_push(world_t *w, const mcpg_coord_effect_t *f, const uint8_t *bytes, size_t len) {
    for (uint32_t r = mcpg__rankset_next(f->to, 0); r < WORLD_RANKS; r = mcpg__rankset_next(f->to, r + 1u)) {
        uint64_t conn;
        if (mcpg_coord_rank_conn(w->coord, (mcpg_rank_t){r}, &conn)) coord_send(w, conn, bytes, len, ITEM_MSG);
    }
}

static void coord_effect(world_t *w, const mcpg_coord_effect_t *f) {
    size_t len = 0;
    if (f->kind == MCPG_COORD_FX_SEND || f->kind == MCPG_COORD_FX_SEND_CONN) {
        assert_int_equal(mcpg__down_pack(f->msg, w->wire, WORLD_WIRE_CAP, &len), MCPG_OK);
        if (w->trace) printf("  coord -> %s\n", mcpg__down_name(f->msg->kind));
    }
    switch (f->kind) {
    case MCPG_COORD_FX_SEND:
        coord_push(w, f, w->wire, len);
        break;
    case MCPG_COORD_FX_SEND_CONN:
        coord_send(w, f->conn, w->wire, len, ITEM_MSG);
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        coord_send(w, f->conn, NULL, 0, ITEM_DISCONNECTED);
        for (uint32_t i = 0; i < w->node_count; i++)
            if (w->nodes[i].conn == f->conn && !w->nodes[i].closing)
                (void)world_push(&w->nodes[i].out, ITEM_CLOSED, f->conn, NULL, 0);
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        w->coord_timer_us = f->at.us;
        break;
    case MCPG_COORD_FX_STOP:
        w->coord_stopped = true;
        break;
    case MCPG_COORD_FX_RECORD_CLAIM: /* no store in this world */
    case MCPG_COORD_FX_RECORD_WRITE:
        world_fail(w, "coordinator", "a record without a store");
        break;
    case MCPG_COORD_FX__COUNT:
        break;
    }
}

static void coord_step(world_t *w, mcpg_coord_event_t *event) {
    event->now = w->now;
    mcpg_coord_effects_reset(&w->coord_fx);
    uint64_t before = mcpg_coord_digest(w->coord);
    mcpg_status_t status = mcpg_coord_step(w->coord, event, &w->coord_fx);
    if (status != MCPG_OK && (mcpg_coord_digest(w->coord) != before || w->coord_fx.count != 0))
        world_fail(w, "coordinator", "a rejected event changed something");
    for (uint32_t i = 0; i < w->coord_fx.count; i++) coord_effect(w, &w->coord_fx.items[i]);
    const char *fault = mcpg_coord_check(w->coord);
    if (fault != NULL) world_fail(w, "coordinator", fault);
    w->digest = w->digest * 31u + mcpg_coord_digest(w->coord);
}

void world_exit_seen(world_t *w, uint32_t node) {
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_EXIT, .rank = {w->nodes[node].rank}, .pid = 100 + (int64_t)node};
    coord_step(w, &e);
}

void world_shutdown(world_t *w) {
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_SHUTDOWN};
    coord_step(w, &e);
}

/* ---- steps ---- */

static void deliver_up(world_t *w, node_t *node) {
    item_t *item = pop(&node->out);
    mcpg_up_msg_t msg;
    mcpg_arena_t arena = {.base = w->scratch, .cap = WORLD_WIRE_CAP};
    mcpg_coord_event_t e = {
        .kind = item->kind == ITEM_CLOSED ? MCPG_COORD_EV_CLOSED : MCPG_COORD_EV_MSG, .conn = item->conn, .msg = &msg};
    if (item->kind == ITEM_MSG) assert_int_equal(mcpg__up_unpack(item->bytes, item->len, &arena, &msg), MCPG_OK);
    if (w->trace)
        printf("%llu coord <- node %u %s\n", U(w->now.us), world_index(w, node),
               item->kind == ITEM_MSG ? mcpg__up_name(msg.kind) : "CLOSED");
    coord_step(w, &e);
    free(item);
}

static bool lost(world_t *w, mcpg_down_kind_t kind) {
    bool healed = kind == MCPG_DOWN_RANK_STATES || kind == MCPG_DOWN_MEMBERS || kind == MCPG_DOWN_COMMIT;
    return healed && w->lose_percent > 0 && world_random(w, 100) < w->lose_percent;
}

static void deliver_down(world_t *w, node_t *node) {
    item_t *item = pop(&node->down);
    if (item->conn != node->conn) {
        free(item);
        return;
    }
    mcpg_down_msg_t msg;
    mcpg_arena_t arena = {.base = w->scratch, .cap = WORLD_WIRE_CAP};
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_MSG, .u.msg = &msg};
    if (item->kind == ITEM_MSG) assert_int_equal(mcpg__down_unpack(item->bytes, item->len, &arena, &msg), MCPG_OK);
    if (item->kind == ITEM_CONNECTED) e.kind = MCPG_AGENT_EV_CONNECTED;
    if (item->kind == ITEM_DISCONNECTED) {
        e.kind = MCPG_AGENT_EV_DISCONNECTED;
        node->conn = 0;
    }
    if (w->trace)
        printf("%llu node %u <- %s\n", U(w->now.us), world_index(w, node),
               item->kind == ITEM_MSG ? mcpg__down_name(msg.kind) : "stream");
    if (item->kind == ITEM_MSG) w->told[msg.kind]++;
    if (item->kind != ITEM_MSG || !lost(w, msg.kind)) world_agent(w, node, &e);
    free(item);
}

static void deliver_local(world_t *w, node_t *node) {
    item_t *item = pop(&node->local);
    if (w->trace) printf("%llu node %u <- local %d\n", U(w->now.us), world_index(w, node), (int)item->event.kind);
    world_agent(w, node, &item->event);
    free(item);
}

static void fire(world_t *w, node_t *node) {
    node->timer_us = UINT64_MAX;
    mcpg_agent_event_t e = {.kind = MCPG_AGENT_EV_TIMER};
    world_agent(w, node, &e);
}

static void fire_coord(world_t *w) {
    w->coord_timer_us = UINT64_MAX;
    mcpg_coord_event_t e = {.kind = MCPG_COORD_EV_TIMER};
    coord_step(w, &e);
}

/* What can happen now: node * 4 + {0 down, 1 local, 2 up, 3 timer}; the last one is the coordinator's timer. */
static uint32_t possible(const world_t *w, uint32_t *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->node_count; i++) {
        const node_t *node = &w->nodes[i];
        if (node->alive && node->down.head != NULL) out[count++] = i * 4u;
        if (node->alive && node->local.head != NULL) out[count++] = i * 4u + 1u;
        if (node->out.head != NULL) out[count++] = i * 4u + 2u;
        if (node->alive && node->timer_us <= w->now.us) out[count++] = i * 4u + 3u;
    }
    if (w->coord_timer_us <= w->now.us) out[count++] = WORLD_NODES * 4u;
    return count;
}

static bool advance(world_t *w) {
    uint64_t next = w->coord_timer_us;
    for (uint32_t i = 0; i < w->node_count; i++)
        if (w->nodes[i].alive && w->nodes[i].timer_us < next) next = w->nodes[i].timer_us;
    if (next == UINT64_MAX) return false;
    if (next > w->now.us) w->now.us = next;
    return true;
}

bool world_step(world_t *w) {
    uint32_t choices[WORLD_NODES * 4u + 1u];
    w->now.us += 1u + world_random(w, 20);
    uint32_t count = possible(w, choices);
    if (count == 0) {
        if (!advance(w)) return false;
        count = possible(w, choices);
    }
    w->steps++;
    uint32_t choice = choices[world_random(w, count)];
    if (choice == WORLD_NODES * 4u) {
        fire_coord(w);
        return true;
    }
    node_t *node = &w->nodes[choice / 4u];
    if (choice % 4u == 0u) deliver_down(w, node);
    if (choice % 4u == 1u) deliver_local(w, node);
    if (choice % 4u == 2u) deliver_up(w, node);
    if (choice % 4u == 3u) fire(w, node);
    return true;
}

void world_until(world_t *w, world_cond_t cond, const void *arg, const char *what) {
    uint64_t steps = w->steps + 100000u, until_us = w->now.us + 400000000u;
    while (!cond(w, arg)) /* bounded: steps and virtual time */
        if (!world_step(w) || w->steps > steps || w->now.us > until_us) world_fail(w, what, "it never happens");
}

void world_run_for(world_t *w, uint64_t us) {
    uint64_t until_us = w->now.us + us;
    while (w->now.us < until_us && world_step(w)) {
    } /* bounded: virtual time */
}

world_t *world_new(uint64_t seed) {
    world_t *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->seed = w->random = seed;
    w->now.us = 1000000;
    w->prove_deaths = true;
    w->coord_timer_us = UINT64_MAX;
    w->wire = malloc(WORLD_WIRE_CAP);
    w->scratch = aligned_alloc(16, WORLD_WIRE_CAP);
    mcpg_coord_config_t config = {.term = 1,
                                  .coordinator_id = 1,
                                  .max_ranks = WORLD_RANKS,
                                  .max_groups = 8,
                                  .max_slots_total = 64,
                                  .clique_node_budget = 100000};
    config.timers = (mcpg_timers_t){200000,  5000000,  5000000, 1000000, 2000000, 30000000,
                                    1000000, 10000000, 2000000, 1200000, 100000,  2000000};
    size_t size = mcpg_coord_size(&config), arena;
    w->coord_mem = calloc(1, size);
    assert_int_equal(mcpg_coord_init(w->coord_mem, size, &config, &w->coord), MCPG_OK);
    mcpg_coord_effects_worst(&config, &w->coord_fx.cap, &arena);
    w->coord_fx.items = calloc(w->coord_fx.cap, sizeof(*w->coord_fx.items));
    w->coord_fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
    w->coord_fx.arena_cap = arena;
    return w;
}

void world_free(world_t *w) {
    for (uint32_t i = 0; i < w->node_count; i++) {
        node_t *node = &w->nodes[i];
        drain(&node->down);
        drain(&node->local);
        drain(&node->out);
        free(node->fx.items);
        free(node->fx.arena);
        free(node->mem);
    }
    free(w->coord_fx.items);
    free(w->coord_fx.arena);
    free(w->coord_mem);
    free(w->wire);
    free(w->scratch);
    free(w);
}
