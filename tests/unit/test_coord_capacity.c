/* test_coord_capacity.c: the machines and the codec built for 4,096 ranks: one group of all of them is formed, loses a
 * rank, gets a replacement, loses half; one of its ranks is a real agent machine behind the codec. And the largest
 * messages that the limits allow stay under the cap of the wire.
 *
 * Links between model ranks are put into the coordinator's matrix (saying 16 million LINK messages takes too long); all
 * of the real agent's are said. It must never be linked with code that was built for another number of ranks.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "coordinator/coord_state.h"
#include "unit/crowd/coord_crowd.h"

#define RANKS MCPG_MAX_RANKS
#define REAL  7u
_Static_assert(RANKS == 4096u, "built for 4,096 ranks");

/* ---- one real agent ---- */

typedef struct parcel {
    struct parcel *next;
    size_t len;
    uint8_t bytes[];
} parcel_t;
typedef struct {
    parcel_t *head, **tail;
} parcels_t;

typedef struct {
    crowd_t *w;
    mcpg_agent_t *agent;
    void *mem;
    mcpg_agent_effects_t fx;
    mcpg_arena_t arena;
    mcpg_frames_rx_t *frames;
    uint8_t *wire;
    parcels_t in, out;
    uint32_t opened[RANKS], opened_count;
    uint32_t held_count;
    mcpg_agent_held_ev_t held[64];
    uint64_t heard[MCPG_DOWN__COUNT], installs;
    size_t largest;
    mcpg_status_t registered;
} real_t;

static void put(parcels_t *list, const uint8_t *bytes, size_t len) {
    parcel_t *p = malloc(sizeof(*p) + len);
    assert_non_null(p);
    p->next = NULL;
    p->len = len;
    memcpy(p->bytes, bytes, len);
    *list->tail = p;
    list->tail = &p->next;
}

static parcel_t *take(parcels_t *list) {
    parcel_t *p = list->head;
    list->head = p->next;
    if (list->head == NULL) list->tail = &list->head;
    return p;
}

static void real_hears(void *user, const uint8_t *bytes, size_t len) {
    real_t *real = (real_t *)user;
    if (len > real->largest) real->largest = len;
    put(&real->in, bytes, len);
}

static void real_effect(real_t *real, const mcpg_agent_effect_t *e) {
    size_t len = 0;
    if (e->kind == MCPG_AGENT_FX_SEND) {
        assert_int_equal(mcpg__up_pack(e->u.send, real->wire, MCPG_MSG_CAP, &len), MCPG_OK);
        put(&real->out, real->wire, len);
    }
    if (e->kind == MCPG_AGENT_FX_LINK_OPEN) real->opened[real->opened_count++] = e->u.link_open.rank.v;
    if (e->kind == MCPG_AGENT_FX_DP_HOLD) {
        assert_true(real->held_count < 64);
        real->held[real->held_count++] = (mcpg_agent_held_ev_t){e->u.dp_hold.gid, e->u.dp_hold.view, 3, false};
    }
    if (e->kind == MCPG_AGENT_FX_DP_INSTALL) real->installs++;
    if (e->kind == MCPG_AGENT_FX_CALL_DONE) real->registered = e->u.call_done->status;
}

static void real_step(real_t *real, mcpg_agent_event_t event) {
    event.now.us = real->w->now_us;
    mcpg_agent_effects_reset(&real->fx);
    assert_int_equal(mcpg_agent_step(real->agent, &event, &real->fx), MCPG_OK);
    for (uint32_t i = 0; i < real->fx.count; i++) real_effect(real, &real->fx.items[i]);
}

static void real_reads(real_t *real) {
    parcel_t *p = take(&real->in);
    mcpg_down_msg_t msg;
    mcpg_bytes_t whole;
    real->arena.used = 0;
    assert_int_equal(mcpg__frames_rx_take(real->frames, p->bytes, p->len, &whole), MCPG_OK);
    assert_int_equal(mcpg__down_unpack(whole.ptr, whole.len, &real->arena, &msg), MCPG_OK);
    real->heard[msg.kind]++;
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_MSG, .u.msg = &msg});
    free(p);
}

static void real_says(real_t *real) {
    parcel_t *p = take(&real->out);
    mcpg_up_msg_t msg;
    real->arena.used = 0;
    assert_int_equal(mcpg__up_unpack(p->bytes, p->len, &real->arena, &msg), MCPG_OK);
    crowd_say(real->w, REAL, &msg);
    free(p);
}

/* The link is up at both ends, unless the peer is gone. */
static void real_links(real_t *real) {
    uint32_t peer = real->opened[--real->opened_count];
    if (!real->w->alive[peer]) return;
    crowd_link_half(real->w, peer, REAL);
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_LINK,
                                         .u.link = {{peer}, real->w->incs[peer], MCPG_LINK_UP, 0}});
}

/* Until neither the model ranks nor the real one have anything left to say. */
static void run(real_t *real) {
    for (;;) { /* bounded: every answer asks for at most one more */
        crowd_settle(real->w);
        if (real->in.head != NULL)
            real_reads(real);
        else if (real->held_count > 0)
            real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_HELD, .u.held = real->held[--real->held_count]});
        else if (real->out.head != NULL)
            real_says(real);
        else if (real->opened_count > 0)
            real_links(real);
        else
            return;
    }
}

static real_t *real_new(crowd_t *w) {
    real_t *real = calloc(1, sizeof(*real));
    assert_non_null(real);
    mcpg_agent_config_t config = {.rank = {REAL},
                                  .session = {77},
                                  .host_id = 5,
                                  .pid = 100,
                                  .endpoint = "me",
                                  .endpoint_len = 2,
                                  .max_ranks = RANKS,
                                  .max_groups = 4,
                                  .max_slots_total = 4u * RANKS,
                                  .max_calls = 4,
                                  .max_reports = 4,
                                  .attach_timeout_us = 30000000,
                                  .seed = 1,
                                  .timers = w->config.timers};
    size_t size = mcpg_agent_size(&config);
    real->w = w;
    real->in.tail = &real->in.head;
    real->out.tail = &real->out.head;
    real->mem = calloc(1, size);
    real->wire = malloc(MCPG_MSG_CAP);
    real->frames = mcpg__frames_rx_new();
    real->arena.cap = MCPG_DECODE_ARENA_CAP;
    real->arena.base = malloc(real->arena.cap);
    mcpg_agent_effects_worst(&config, &real->fx.cap, &real->fx.arena_cap);
    real->fx.items = calloc(real->fx.cap, sizeof(*real->fx.items));
    real->fx.arena = malloc(real->fx.arena_cap);
    assert_true(real->mem != NULL && real->wire != NULL && real->frames != NULL && real->arena.base != NULL);
    assert_true(real->fx.items != NULL && real->fx.arena != NULL);
    assert_int_equal(mcpg_agent_init(real->mem, size, &config, &real->agent), MCPG_OK);
    w->real_rank = REAL;
    w->real_hears = real_hears;
    w->real_user = real;
    return real;
}

static void real_free(real_t *real) {
    free(real->mem);
    free(real->wire);
    mcpg__frames_rx_free(real->frames);
    free(real->arena.base);
    free(real->fx.items);
    free(real->fx.arena);
    free(real);
}

static void real_attaches(real_t *real) {
    real->w->conns[REAL] = ++real->w->last_conn;
    real->w->alive[REAL] = true;
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
}

static void real_registers(real_t *real) {
    static uint32_t order[RANKS];
    static const uint8_t kind[] = "cpu";
    for (uint32_t r = 0; r < RANKS; r++) order[r] = r;
    mcpg_agent_call_register_t call = {.call_id = 1,
                                       .device_kind = {kind, 3},
                                       .order = order,
                                       .order_count = RANKS,
                                       .capacity = RANKS,
                                       .timeout_us = 60000000};
    real->registered = MCPG_IN_PROGRESS;
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CALL_REGISTER, .u.call_register = call});
}

/* The agent's view is the coordinator's, member for member (I2). */
static void same_view(const real_t *real, uint32_t members) {
    static mcpg_incarnation_t incs[RANKS];
    const mcpg_coord_group_t *g = mcpg__coord_group_find(real->w->coord, (mcpg_gid_t){1});
    mcpg_view_id_t id;
    mcpg_rankset_t active;
    assert_int_equal(crowd_active(real->w, 1), members);
    assert_true(mcpg_agent_view(real->agent, (mcpg_gid_t){1}, &id, &active, incs, RANKS));
    assert_true(mcpg__view_eq(id, g->committed));
    assert_true(mcpg__rankset_eq(&active, &g->active));
    for (uint32_t s = mcpg__rankset_next(&active, 0); s < RANKS; s = mcpg__rankset_next(&active, s + 1))
        assert_true(mcpg__inc_eq(incs[s], mcpg__coord_slot(real->w->coord, g, s)->active));
    assert_null(mcpg_agent_check(real->agent));
}

/* A heartbeat later nothing had to be sent again: both sides agree about every rank, member and view. */
static void agree(real_t *real) {
    uint64_t before = real->heard[MCPG_DOWN_HEARTBEAT_REPLY];
    real->w->now_us += real->w->config.timers.heartbeat_us;
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    run(real);
    uint64_t others = real->heard[MCPG_DOWN_RANK_STATES] + real->heard[MCPG_DOWN_COMMIT];
    real->w->now_us += real->w->config.timers.heartbeat_us;
    real_step(real, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    run(real);
    assert_int_equal(real->heard[MCPG_DOWN_HEARTBEAT_REPLY], before + 2u);
    assert_int_equal(real->heard[MCPG_DOWN_RANK_STATES] + real->heard[MCPG_DOWN_COMMIT], others);
}

/* As if every two model ranks had said that their link is up. */
static void links_preset(crowd_t *w) {
    for (uint32_t a = 0; a < RANKS; a++)
        for (uint32_t b = 0; b < RANKS; b++) {
            if (a == b || a == REAL || b == REAL) continue;
            mcpg__bit_put(mcpg__coord_raw(w->coord, a), b, true);
            mcpg__bit_put(mcpg__coord_eff(w->coord, a), b, true);
        }
    w->coord->health_dirty = true;
    crowd_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
}

static void activate(crowd_t *w, uint32_t rank) {
    mcpg_rankset_t set;
    mcpg__rankset_clear(&set);
    mcpg__rankset_add(&set, rank);
    crowd_register(w, rank, RANKS, true, false);
    crowd_join(w, rank, 1);
    crowd_propose(w, 0, 1, &set, NULL);
}

static void a_job_of_all_ranks(void **state) {
    (void)state;
    crowd_t *w = crowd_new(RANKS, MCPG_ENDPOINT_CAP);
    w->light = true;
    real_t *real = real_new(w);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != REAL) crowd_attach(w, r);
    links_preset(w);
    real_attaches(real);
    run(real);
    assert_int_equal(mcpg_coord_rank_state(w->coord, (mcpg_rank_t){REAL}), MCPG_RANK_HEALTHY);
    assert_true(w->coord->health_exact);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != REAL) crowd_register(w, r, RANKS, false, false);
    real_registers(real);
    run(real);
    assert_int_equal(real->registered, MCPG_OK);
    same_view(real, RANKS);
    agree(real);

    crowd_exit(w, 5);
    run(real);
    same_view(real, RANKS - 1u);

    crowd_attach(w, 5);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r == 5 || r == REAL) continue;
        crowd_link(w, 5, r);
    }
    run(real);
    assert_int_equal(mcpg_coord_rank_state(w->coord, (mcpg_rank_t){5}), MCPG_RANK_HEALTHY);
    activate(w, 5);
    run(real);
    assert_int_equal(w->last_reply, MCPG_OK);
    same_view(real, RANKS);
    agree(real);

    for (uint32_t r = RANKS / 2u; r < RANKS; r++) crowd_exit(w, r);
    run(real);
    same_view(real, RANKS / 2u);
    agree(real);
    assert_null(mcpg_coord_check(w->coord));
    assert_true(real->largest < MCPG_MSG_CAP);
    real_free(real);
    crowd_free(w);
}

/* ---- the largest messages ---- */

static uint8_t wire[MCPG_MSG_CAP];
static mcpg_arena_t arena;
static mcpg_member_t members[RANKS];
static mcpg_leave_t leaves[RANKS];
static mcpg_group_member_t table[RANKS];
static mcpg_group_report_t reports[MCPG_MAX_GROUPS];
static uint32_t order[RANKS];
static uint8_t filler[MCPG_ENDPOINT_CAP];

static mcpg_down_commit_t largest_commit(void) {
    mcpg_down_commit_t commit = {.gid = {UINT32_MAX},
                                 .view = {{UINT64_MAX - 1u, UINT64_MAX - 1u}, RANKS, members},
                                 .switch_seq = UINT64_MAX / 2u,
                                 .leave_count = RANKS,
                                 .leaves = leaves,
                                 .sync = true};
    for (uint32_t r = 0; r < RANKS; r++) mcpg__rankset_add(&commit.sync_failed, r);
    return commit;
}

static void down_fits(const mcpg_down_msg_t *msg) {
    size_t len = 0;
    mcpg_down_msg_t back;
    assert_int_equal(mcpg__down_pack(msg, wire, sizeof(wire), &len), MCPG_OK);
    arena.used = 0;
    assert_int_equal(mcpg__down_unpack(wire, len, &arena, &back), MCPG_OK);
    assert_int_equal(back.kind, msg->kind);
    assert_true(len <= MCPG_MSG_CAP);
    print_message("%s of %u entries: %zu bytes\n", mcpg__down_name(msg->kind), RANKS, len);
}

static void up_fits(const mcpg_up_msg_t *msg) {
    size_t len = 0;
    mcpg_up_msg_t back;
    assert_int_equal(mcpg__up_pack(msg, wire, sizeof(wire), &len), MCPG_OK);
    arena.used = 0;
    assert_int_equal(mcpg__up_unpack(wire, len, &arena, &back), MCPG_OK);
    assert_int_equal(back.kind, msg->kind);
    print_message("%s of %u entries: %zu bytes\n", mcpg__up_name(msg->kind), RANKS, len);
}

static void largest_messages(void **state) {
    (void)state;
    const mcpg_incarnation_t inc = {UINT64_MAX - 1u, UINT64_MAX - 1u};
    arena.base = malloc(MCPG_DECODE_ARENA_CAP);
    arena.cap = MCPG_DECODE_ARENA_CAP;
    assert_non_null(arena.base);
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r] = (mcpg_member_t){{r}, {r}, inc};
        leaves[r] = (mcpg_leave_t){{r}, UINT64_MAX / 2u};
        table[r] = (mcpg_group_member_t){{r}, {r}, inc, true};
        order[r] = r;
    }
    for (uint32_t g = 0; g < MCPG_MAX_GROUPS; g++)
        reports[g] = (mcpg_group_report_t){{UINT32_MAX - g}, {inc.term, inc.counter}, {inc.term, inc.counter}, 1};
    mcpg_down_msg_t down = {.kind = MCPG_DOWN_COMMIT};
    down.u.commit = largest_commit();
    down_fits(&down);
    memset(&down, 0, sizeof(down));
    down.kind = MCPG_DOWN_PREPARE;
    down.u.prepare = (mcpg_down_prepare_t){.gid = {1}, .view = largest_commit().view};
    down_fits(&down);
    memset(&down, 0, sizeof(down));
    down.kind = MCPG_DOWN_MEMBERS;
    down.u.members = (mcpg_down_members_t){.gid = {1}, .count = RANKS, .members = table};
    down_fits(&down);
    mcpg_up_msg_t up = {.kind = MCPG_UP_ATTACH};
    up.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                     .session = {1},
                                     .endpoint = {filler, sizeof(filler)},
                                     .report_count = MCPG_MAX_GROUPS,
                                     .reports = reports};
    up_fits(&up);
    memset(&up, 0, sizeof(up));
    up.kind = MCPG_UP_REGISTER;
    up.u.register_group = (mcpg_up_register_t){.order_count = RANKS, .order = order, .capacity = RANKS};
    up_fits(&up);
    memset(&up, 0, sizeof(up));
    up.kind = MCPG_UP_PROPOSE;
    up.u.propose = (mcpg_up_propose_t){.gid = {1}, .stamp_count = RANKS, .stamps = members, .expected_epoch = 1};
    for (uint32_t r = 0; r < RANKS; r++) mcpg__rankset_add(&up.u.propose.deactivate, r);
    up_fits(&up);
    memset(&up, 0, sizeof(up));
    up.kind = MCPG_UP_OP_FAILED;
    up.u.op_failed = (mcpg_up_op_failed_t){.gid = {1}, .seq = 1, .failed_count = RANKS, .failed = members};
    up_fits(&up);
    memset(&up, 0, sizeof(up));
    up.kind = MCPG_UP_REBUILD;
    up.u.rebuild = (mcpg_up_rebuild_t){.gid = {UINT32_MAX},
                                       .order_count = RANKS,
                                       .order = order,
                                       .capacity = RANKS,
                                       .has_commit = true,
                                       .commit = largest_commit()};
    up_fits(&up);
    free(arena.base);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(largest_messages), cmocka_unit_test(a_job_of_all_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
