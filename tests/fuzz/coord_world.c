/* coord_world.c: see coord_world.h. After each step: the machine's own invariants; a rejected event changed nothing;
 * every message it sends is one that the codec accepts; a view id has one content and COMMITs of a group rise (I1, I2);
 * incarnations rise; at most one record operation per group is open; and a second machine that gets the events through
 * the event log's encoding does exactly the same.
 */
#include "fuzz/coord_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/pure.h"
#include "tools/text.h"

static uint8_t scratch[MCPG_COORD_EVENT_CAP];

/* ---- memory, kept between inputs ---- */

/* The largest configuration's, so that one block serves all. */
static void machine_memory(mcpg_coord_config_t most, void **mem_out, mcpg_coord_effects_t *fx_out) {
    *mem_out = fuzz_block(mcpg_coord_size(&most));
    mcpg_coord_effects_worst(&most, &fx_out->cap, &fx_out->arena_cap);
    fx_out->items = fuzz_block(fx_out->cap * sizeof *fx_out->items);
    fx_out->arena = fuzz_block(fx_out->arena_cap);
}

static mcpg_coord_config_t config_of(uint8_t bits) {
    static const uint32_t groups[] = {4, 1, 2, 4};
    mcpg_timers_t timers = fuzz_timers();
    timers.settle_us = 1200000;
    return (mcpg_coord_config_t){.term = 1 + (bits >> 7),
                                 .coordinator_id = 7,
                                 .max_ranks = bits & 1u ? 4 : RANKS,
                                 .max_groups = groups[(bits >> 1) & 3u],
                                 .max_slots_total = bits & 8u ? 16 : 64,
                                 .clique_node_budget = bits & 16u ? 3 : 1000,
                                 .has_store = bits & 32u,
                                 .predecessor = bits & 64u,
                                 .timers = timers};
}

static mcpg_coord_t *make(const mcpg_coord_config_t *config, void *mem) {
    mcpg_coord_t *coord = NULL;
    size_t size = mcpg_coord_size(config);
    memset(mem, 0, size);
    FUZZ_REQUIRE(mcpg_coord_init(mem, size, config, &coord) == MCPG_OK);
    return coord;
}

void world_begin(world_t *w, const uint8_t *data, size_t size) {
    static void *mem, *twin_mem;
    static mcpg_coord_effects_t fx, twin_fx;
    if (mem == NULL) {
        machine_memory(config_of(0), &mem, &fx);
        machine_memory(config_of(0), &twin_mem, &twin_fx);
    }
    memset(w, 0, sizeof *w);
    w->in = (fuzz_in_t){data, data + size};
    w->config = config_of(fuzz_u8(&w->in));
    w->automatic = fuzz_u8(&w->in);
    uint8_t extra = fuzz_u8(&w->in);
    w->with_twin = extra & 1u;
    w->with_codec = extra & 2u;
    w->coord = make(&w->config, mem);
    if (w->with_twin) w->twin = make(&w->config, twin_mem);
    w->fx = fx;
    w->twin_fx = twin_fx;
    w->digest = mcpg_coord_digest(w->coord);
    w->now.us = 1000000;
    w->armed_us = NEVER_US;
    w->last_call = 1;
}

/* ---- what the machine said ---- */

seen_group_t *world_group(world_t *w, mcpg_gid_t gid) {
    for (uint32_t i = 0; i < GIDS; i++) {
        if (w->groups[i].known && w->groups[i].gid.v == gid.v) return &w->groups[i];
        if (w->groups[i].known) continue;
        w->groups[i] = (seen_group_t){.known = true, .gid = gid};
        return &w->groups[i];
    }
    return NULL;
}

static void must_be_due(world_t *w, uint32_t rank, bool commit, mcpg_gid_t gid, mcpg_view_id_t view) {
    if ((w->automatic >> rank & 1u) == 0 || w->due_count == PENDING) return;
    w->due[w->due_count++] = (due_t){rank, commit, gid, view};
}

static void see_view(world_t *w, uint32_t gid, mcpg_view_id_t id, uint64_t content) {
    for (uint32_t i = 0; i < w->view_count; i++) {
        const seen_view_t *v = &w->views[i];
        if (v->gid == gid && mcpg__view_eq(v->id, id)) FUZZ_REQUIRE(v->content == content && "I2");
    }
    if (w->view_count < VIEWS) w->views[w->view_count++] = (seen_view_t){id, gid, content};
}

static void see_commit(world_t *w, const mcpg_rankset_t *to, const mcpg_down_commit_t *m, uint64_t content) {
    seen_group_t *g = world_group(w, m->gid);
    if (g == NULL) return;
    if (!w->lies) {
        FUZZ_REQUIRE(mcpg__view_cmp(m->view.id, g->commit) >= 0 && "I1");
        see_view(w, m->gid.v, m->view.id, content);
    }
    g->commit = m->view.id;
    g->switch_seq = m->switch_seq;
    g->members = m->view.active_count < RANKS ? m->view.active_count : RANKS;
    for (uint32_t i = 0; i < g->members; i++) g->active[i] = m->view.active[i];
    for (uint32_t r = 0; r < RANKS; r++)
        if (mcpg__rankset_has(to, r)) must_be_due(w, r, true, m->gid, m->view.id);
}

static void see_push(world_t *w, const mcpg_rankset_t *to, const mcpg_down_msg_t *m, uint64_t content) {
    if (m->kind == MCPG_DOWN_COMMIT) see_commit(w, to, &m->u.commit, content);
    if (m->kind == MCPG_DOWN_RANK_STATES && m->u.rank_states.check_id != 0) w->last_check = m->u.rank_states.check_id;
    if (m->kind != MCPG_DOWN_PREPARE) return;
    seen_group_t *g = world_group(w, m->u.prepare.gid);
    if (g != NULL) g->prepare = m->u.prepare.view.id;
    for (uint32_t r = 0; r < RANKS; r++)
        if (mcpg__rankset_has(to, r)) must_be_due(w, r, false, m->u.prepare.gid, m->u.prepare.view.id);
}

static void see_answer(world_t *w, uint64_t conn, const mcpg_down_msg_t *m, uint64_t content) {
    mcpg_rankset_t to = {{0}};
    for (uint32_t r = 0; r < RANKS; r++) {
        peer_t *p = &w->peers[r];
        if (p->conn != conn) continue;
        mcpg__rankset_add(&to, r);
        if (m->kind != MCPG_DOWN_WELCOME) continue;
        int order = mcpg__inc_cmp(m->u.welcome.inc, p->given);
        FUZZ_REQUIRE(m->u.welcome.resumed ? order >= 0 : order > 0);
        p->inc = p->given = m->u.welcome.inc;
    }
    if (m->kind == MCPG_DOWN_REGISTERED && m->u.registered.status == MCPG_OK) (void)world_group(w, m->u.registered.gid);
    see_push(w, &to, m, content);
}

/* Every message is one that an agent's codec takes; a COMMIT's bytes' digest. */
static uint64_t check_message(const world_t *w, const mcpg_down_msg_t *msg) {
    size_t len = 0;
    if (!w->with_codec && msg->kind != MCPG_DOWN_COMMIT) return 0;
    mcpg_down_msg_t back;
    FUZZ_REQUIRE(mcpg__down_pack(msg, scratch, MCPG_MSG_CAP, &len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__down_unpack(scratch, len, fuzz_decode_arena(), &back) == MCPG_OK);
    return mcpg__digest_bytes(0, scratch, len);
}

static void see_record(world_t *w, const mcpg_coord_effect_t *e) {
    size_t len = 0;
    mcpg_group_record_t back;
    FUZZ_REQUIRE(w->config.has_store && e->record != NULL && e->record->term == w->config.term);
    FUZZ_REQUIRE(mcpg__record_pack(e->record, scratch, MCPG_MSG_CAP, &len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__record_unpack(scratch, len, fuzz_decode_arena(), &back) == MCPG_OK);
    seen_group_t *g = world_group(w, e->gid);
    if (g == NULL) return;
    FUZZ_REQUIRE(!g->record_open && "at most one record operation per group");
    g->record_open = true;
    g->record_claim = e->kind == MCPG_COORD_FX_RECORD_CLAIM;
}

static void see_effects(world_t *w) {
    for (uint32_t i = 0; i < w->fx.count; i++) {
        const mcpg_coord_effect_t *e = &w->fx.items[i];
        switch (e->kind) {
        case MCPG_COORD_FX_SEND:
            FUZZ_REQUIRE(e->to != NULL && mcpg__rankset_next(e->to, w->config.max_ranks) == MCPG_MAX_RANKS);
            see_push(w, e->to, e->msg, check_message(w, e->msg));
            break;
        case MCPG_COORD_FX_SEND_CONN:
            FUZZ_REQUIRE(e->conn != 0);
            see_answer(w, e->conn, e->msg, check_message(w, e->msg));
            break;
        case MCPG_COORD_FX_CLOSE_CONN:
            FUZZ_REQUIRE(e->conn != 0);
            for (uint32_t r = 0; r < RANKS; r++)
                if (w->peers[r].conn == e->conn) w->peers[r].conn = 0;
            break;
        case MCPG_COORD_FX_ARM_TIMER:
            w->armed_us = e->at.us;
            break;
        case MCPG_COORD_FX_RECORD_CLAIM:
        case MCPG_COORD_FX_RECORD_WRITE:
            see_record(w, e);
            break;
        case MCPG_COORD_FX_STOP:
            break;
        case MCPG_COORD_FX__COUNT:
            fuzz_fail(__FILE__, __LINE__, "an effect of no kind");
        }
    }
}

/* ---- a step ---- */

/* The same event as replay gets it. */
static void step_twin(world_t *w, const mcpg_coord_event_t *event, mcpg_status_t status) {
    size_t len = 0;
    mcpg_up_msg_t msg;
    mcpg_coord_event_t again = {.now = event->now, .kind = event->kind};
    FUZZ_REQUIRE(mcpg__coord_event_encode(event, NULL, 0, scratch, sizeof scratch, &len) == MCPG_OK);
    FUZZ_REQUIRE(mcpg__coord_event_decode(scratch, len, fuzz_decode_arena(), &msg, &again) == MCPG_OK);
    mcpg_coord_effects_reset(&w->twin_fx);
    FUZZ_REQUIRE(mcpg_coord_step(w->twin, &again, &w->twin_fx) == status);
    if (status != MCPG_OK) return;
    FUZZ_REQUIRE(w->twin_fx.count == w->fx.count);
    uint32_t crc = mcpg__coord_effects_crc(&w->fx, scratch, sizeof scratch);
    FUZZ_REQUIRE(mcpg__coord_effects_crc(&w->twin_fx, scratch, sizeof scratch) == crc);
    FUZZ_REQUIRE(mcpg_coord_digest(w->twin) == w->digest);
}

#ifdef MCPG_FUZZ_CANARY
/* A checker with a fault of its own: it takes the third view of a group for a broken invariant. */
static const char *check(const world_t *w) {
    for (uint32_t i = 0; i < GIDS; i++)
        if (!w->lies && w->groups[i].commit.epoch >= 3) return "canary: a group has come to its third view";
    return mcpg_coord_check(w->coord);
}
#else
static const char *check(const world_t *w) {
    return mcpg_coord_check(w->coord);
}
#endif

static void print_event(const world_t *w, const mcpg_coord_event_t *event) {
    printf("%llu us: ", (unsigned long long)w->now.us);
    mcpg__text_coord_event(stdout, event);
    printf("\n");
}

static void step_one(world_t *w, mcpg_coord_event_t event) {
    if (w->steps++ >= STEPS_MOST) return;
    event.now = w->now;
    mcpg_coord_effects_reset(&w->fx);
    if (fuzz_verbose) print_event(w, &event);
    mcpg_status_t status = mcpg_coord_step(w->coord, &event, &w->fx);
    for (uint32_t i = 0; fuzz_verbose && i < w->fx.count; i++) mcpg__text_coord_effect(stdout, &w->fx.items[i]);
    uint64_t digest = mcpg_coord_digest(w->coord);
    FUZZ_REQUIRE(status == MCPG_OK || digest == w->digest);
    FUZZ_REQUIRE(status == MCPG_OK || w->fx.count == 0);
    w->digest = digest;
    if (w->with_twin) step_twin(w, &event, status);
    see_effects(w);
    FUZZ_REQUIRE_NULL(check(w));
}

static void send_one(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    if (!fuzz_up_valid(msg)) return;
    if (msg->kind == MCPG_UP_REBUILD) w->lies = true;
    if (w->peers[rank].conn != 0)
        step_one(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = w->peers[rank].conn, .msg = msg});
}

/* What ranks say by themselves is said before the next event. */
static void answer_due(world_t *w) {
    for (uint32_t i = 0; i < PENDING && w->due_count > 0; i++) {
        due_t due = w->due[0];
        memmove(w->due, w->due + 1, --w->due_count * sizeof due);
        mcpg_up_msg_t m = {.kind = due.commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
        if (due.commit)
            m.u.commit_ack = (mcpg_up_commit_ack_t){due.gid, due.view};
        else
            m.u.ack = (mcpg_up_ack_t){due.gid, due.view, 0, false};
        send_one(w, due.rank, &m);
    }
    w->due_count = 0;
}

void world_step(world_t *w, mcpg_coord_event_t event) {
    step_one(w, event);
    answer_due(w);
}
void world_send(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    send_one(w, rank, msg);
    answer_due(w);
}
