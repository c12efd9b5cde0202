/* test_coord_mass.c: changes that do not fit one step: a rank of very many groups dies, many calls are answered at
 * once, many ranks fall silent together. The machine goes on in TIMER steps at the same time, never beyond the effect
 * room that it asked for.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/coord.h"

#define RANKS  48u
#define GROUPS 200u

typedef struct {
    uint64_t now, timer, calls, timer_steps, most_items;
    mcpg_coord_t *coord;
    void *mem;
    mcpg_coord_effects_t fx;
    mcpg_incarnation_t incs[RANKS];
    uint64_t sent[MCPG_DOWN__COUNT];
    uint64_t epoch[GROUPS + 1u];
    struct {
        uint32_t gid;
        uint64_t epoch;
        bool commit;
    } due[GROUPS * 64u];
    uint32_t due_count;
} mass_t;

static void note(mass_t *w, uint64_t conn, const mcpg_down_msg_t *msg) {
    w->sent[msg->kind]++;
    if (msg->kind == MCPG_DOWN_WELCOME) w->incs[conn - 1u] = msg->u.welcome.inc;
    if (msg->kind != MCPG_DOWN_PREPARE && msg->kind != MCPG_DOWN_COMMIT) return;
    bool commit = msg->kind == MCPG_DOWN_COMMIT;
    uint32_t gid = commit ? msg->u.commit.gid.v : msg->u.prepare.gid.v;
    uint64_t epoch = commit ? msg->u.commit.view.id.epoch : msg->u.prepare.view.id.epoch;
    if (commit) w->epoch[gid] = epoch;
    assert_true(w->due_count < GROUPS * 64u);
    w->due[w->due_count].gid = gid;
    w->due[w->due_count].epoch = epoch;
    w->due[w->due_count++].commit = commit;
}

static void step(mass_t *w, mcpg_coord_event_t event) {
    event.now.us = w->now;
    if (event.kind == MCPG_COORD_EV_TIMER) w->timer = UINT64_MAX;
    mcpg_coord_effects_reset(&w->fx);
    assert_int_equal(mcpg_coord_step(w->coord, &event, &w->fx), MCPG_OK);
    if (w->fx.count > w->most_items) w->most_items = w->fx.count;
    for (uint32_t i = 0; i < w->fx.count; i++) {
        const mcpg_coord_effect_t *e = &w->fx.items[i];
        if (e->kind == MCPG_COORD_FX_ARM_TIMER) w->timer = e->at.us;
        if (e->kind == MCPG_COORD_FX_SEND || e->kind == MCPG_COORD_FX_SEND_CONN) note(w, e->conn, e->msg);
    }
}

static void go_on(mass_t *w) {
    for (uint32_t i = 0; w->timer <= w->now; i++) {
        assert_true(i < 100000);
        w->timer_steps++;
        step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
    }
}

static void say(mass_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = rank + 1u, .msg = msg});
    go_on(w);
}

/* Everybody that lives answers everything, until nothing is asked any more. */
static void answer_all(mass_t *w, uint32_t dead) {
    while (w->due_count > 0) {
        uint32_t gid = w->due[w->due_count - 1u].gid;
        mcpg_view_id_t view = {1, w->due[w->due_count - 1u].epoch};
        bool commit = w->due[--w->due_count].commit;
        mcpg_up_msg_t msg = {.kind = commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
        if (commit)
            msg.u.commit_ack = (mcpg_up_commit_ack_t){.gid = {gid}, .view = view};
        else
            msg.u.ack = (mcpg_up_ack_t){.gid = {gid}, .view = view, .next_seq = 3};
        for (uint32_t r = 0; r < RANKS; r++)
            if (r != dead) say(w, r, &msg);
    }
}

static mass_t *mass_new(void) {
    static const uint8_t endpoint[] = "tcp:x";
    mcpg_coord_config_t config = {.term = 1,
                                  .max_ranks = RANKS,
                                  .max_groups = GROUPS,
                                  .max_slots_total = GROUPS * RANKS,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    mass_t *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    mcpg_coord_effects_worst(&config, &w->fx.cap, &w->fx.arena_cap);
    size_t size = mcpg_coord_size(&config);
    w->mem = calloc(1, size);
    w->fx.items = calloc(w->fx.cap, sizeof(*w->fx.items));
    w->fx.arena = malloc(w->fx.arena_cap);
    assert_true(w->mem != NULL && w->fx.items != NULL && w->fx.arena != NULL);
    assert_int_equal(mcpg_coord_init(w->mem, size, &config, &w->coord), MCPG_OK);
    w->now = 1000;
    w->timer = UINT64_MAX;
    for (uint32_t r = 0; r < RANKS; r++) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_ATTACH};
        msg.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                          .rank = {r},
                                          .session = {r + 1u},
                                          .pid = (int64_t)r + 100,
                                          .endpoint = {endpoint, sizeof(endpoint)}};
        say(w, r, &msg);
    }
    for (uint32_t a = 0; a < RANKS; a++)
        for (uint32_t b = 0; b < RANKS; b++) {
            mcpg_up_msg_t msg = {.kind = MCPG_UP_LINK};
            msg.u.link = (mcpg_up_link_t){.peer = {b}, .peer_inc = w->incs[b], .state = MCPG_LINK_UP};
            if (a != b) say(w, a, &msg);
        }
    return w;
}

static void found_groups(mass_t *w, uint32_t count) {
    uint32_t order[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) order[r] = r;
    for (uint32_t g = 0; g < count; g++) {
        uint8_t key[2] = {(uint8_t)(g & 255u), (uint8_t)(g >> 8u)};
        mcpg_up_msg_t msg = {.kind = MCPG_UP_REGISTER};
        msg.u.register_group =
            (mcpg_up_register_t){.key = {key, 2}, .order = order, .order_count = RANKS, .capacity = RANKS};
        for (uint32_t r = 0; r < RANKS; r++) say(w, r, &msg);
        answer_all(w, RANKS);
    }
    for (uint32_t g = 1; g <= count; g++) assert_int_equal(w->epoch[g], 1);
}

static void mass_free(mass_t *w) {
    assert_null(mcpg_coord_check(w->coord));
    assert_true(mcpg_coord_quiescent(w->coord));
    free(w->mem);
    free(w->fx.items);
    free(w->fx.arena);
    free(w);
}

static void one_death_in_many_groups(void **state) {
    (void)state;
    mass_t *w = mass_new();
    found_groups(w, GROUPS);
    w->timer_steps = 0;
    step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {5}, .pid = 105});
    assert_true(w->sent[MCPG_DOWN_PREPARE] < 2u * GROUPS); /* not all in that step */
    go_on(w);
    assert_true(w->timer_steps > 3);
    assert_int_equal(w->sent[MCPG_DOWN_PREPARE], 2u * GROUPS);
    answer_all(w, 5);
    for (uint32_t g = 1; g <= GROUPS; g++) assert_int_equal(w->epoch[g], 2);
    mass_free(w);
}

/* Hundreds of callers on one proposal are answered over several steps, each once. */
static void many_callers(void **state) {
    (void)state;
    mass_t *w = mass_new();
    found_groups(w, 1);
    mcpg_up_msg_t msg = {.kind = MCPG_UP_PROPOSE};
    msg.u.propose.gid.v = 1;
    msg.u.propose.expected_epoch = MCPG_ANY_EPOCH;
    mcpg__rankset_add(&msg.u.propose.deactivate, 7);
    for (uint32_t i = 0; i < 4u * RANKS + 64u; i++) {
        msg.u.propose.call_id = i;
        say(w, i % RANKS, &msg);
    }
    assert_int_equal(w->sent[MCPG_DOWN_REPLY], 0);
    say(w, 0, &msg); /* one more than the table holds: BUSY at once */
    assert_int_equal(w->sent[MCPG_DOWN_REPLY], 1);
    answer_all(w, RANKS);
    assert_int_equal(w->sent[MCPG_DOWN_REPLY], 4u * RANKS + 65u);
    mass_free(w);
}

/* All fall silent at once: every stream is closed, every group loses everybody, in bounded steps. */
static void all_silent(void **state) {
    (void)state;
    mass_t *w = mass_new();
    found_groups(w, 40);
    w->now = w->timer + 1000;
    go_on(w);
    while (w->timer != UINT64_MAX) {
        w->now = w->timer > w->now ? w->timer : w->now;
        go_on(w);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(mcpg_coord_rank_state(w->coord, (mcpg_rank_t){r}), MCPG_RANK_OFFLINE);
    assert_true(w->most_items < w->fx.cap);
    mass_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_death_in_many_groups), cmocka_unit_test(many_callers),
                                       cmocka_unit_test(all_silent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
