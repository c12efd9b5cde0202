/* test_coord_storm.c: a seeded storm of valid events, likely and absurd ones, with the invariants checked after every
 * step; then everybody behaves, and everything must come to rest. Also what a step promises about rejected events,
 * memory and effect room.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

#define RANKS 8u
#define GIDS  65536u
#define CALLS 262144u
#define QUEUE 65536u

typedef struct {
    uint64_t conn, session;
    int64_t pid;
    mcpg_incarnation_t inc;
    uint64_t seq;
} actor_t;

typedef struct {
    uint64_t seed, now, timer, next_id, steps, sends, commits;
    mcpg_coord_t *coord;
    void *mem;
    mcpg_coord_effects_t fx;
    actor_t actors[RANKS];
    uint64_t check_id;
    mcpg_rankset_t suspects;
    mcpg_incarnation_t old_incs[16];
    uint32_t last_gid;
    uint64_t newest_epoch[GIDS]; /* by gid: I1 */
    uint64_t newest_hash[GIDS];  /* of that epoch's COMMIT: I2 */
    uint8_t answers[CALLS];      /* by call id: I5 */
    bool members_of[GIDS][RANKS];
    struct {
        uint32_t rank, gid;
        uint64_t epoch;
        bool commit;
    } queue[QUEUE];
    uint32_t head, tail;
    bool calm;
} storm_t;

static uint64_t draw(storm_t *s, uint64_t below) {
    s->seed = mcpg__digest_u64(s->seed, 7);
    return s->seed % below;
}

static void note_commit(storm_t *s, const mcpg_down_commit_t *m) {
    uint64_t hash = mcpg__digest_u64(m->switch_seq, m->leave_count * 2u + (m->sync ? 1u : 0u));
    for (uint32_t i = 0; i < m->view.active_count; i++) {
        hash = mcpg__digest_u64(hash, m->view.active[i].slot.v * 4096u + m->view.active[i].rank.v);
        hash = mcpg__digest_u64(hash, m->view.active[i].inc.counter);
    }
    for (uint32_t i = 0; i < m->leave_count; i++)
        hash = mcpg__digest_u64(hash, m->leaves[i].slot.v ^ m->leaves[i].leave_seq << 11u);
    assert_true(m->gid.v < GIDS && m->view.id.epoch >= s->newest_epoch[m->gid.v]);
    if (m->view.id.epoch == s->newest_epoch[m->gid.v]) assert_int_equal(hash, s->newest_hash[m->gid.v]);
    if (m->view.id.epoch > s->newest_epoch[m->gid.v]) s->commits++;
    s->newest_epoch[m->gid.v] = m->view.id.epoch;
    s->newest_hash[m->gid.v] = hash;
}

static void note_call(storm_t *s, uint64_t call_id) {
    assert_true(call_id < CALLS);
    assert_int_equal(s->answers[call_id], 0);
    s->answers[call_id] = 1;
}

static void enqueue(storm_t *s, uint32_t rank, uint32_t gid, uint64_t epoch, bool commit) {
    if (s->tail - s->head == QUEUE) s->head++;
    uint32_t at = s->tail++ % QUEUE;
    s->queue[at].rank = rank;
    s->queue[at].gid = gid;
    s->queue[at].epoch = epoch;
    s->queue[at].commit = commit;
}

static void note_msg(storm_t *s, uint32_t rank, const mcpg_down_msg_t *m) {
    if (m->kind == MCPG_DOWN_WELCOME) {
        assert_true(mcpg__inc_cmp(m->u.welcome.inc, s->actors[rank].inc) >= 0);
        s->old_incs[s->next_id % 16u] = s->actors[rank].inc;
        s->actors[rank].inc = m->u.welcome.inc;
    }
    if (m->kind == MCPG_DOWN_PREPARE) enqueue(s, rank, m->u.prepare.gid.v, m->u.prepare.view.id.epoch, false);
    if (m->kind == MCPG_DOWN_COMMIT) {
        note_commit(s, &m->u.commit);
        enqueue(s, rank, m->u.commit.gid.v, m->u.commit.view.id.epoch, true);
        if (m->u.commit.sync) s->actors[rank].seq = m->u.commit.switch_seq;
    }
    if (m->kind == MCPG_DOWN_REGISTERED) {
        note_call(s, m->u.registered.call_id);
        if (m->u.registered.status == MCPG_OK) {
            if (m->u.registered.gid.v > s->last_gid) s->last_gid = m->u.registered.gid.v;
            assert_true(m->u.registered.gid.v < GIDS);
            s->members_of[m->u.registered.gid.v][rank] = true;
        }
    }
    if (m->kind == MCPG_DOWN_REPLY) note_call(s, m->u.reply.call_id);
    if (m->kind == MCPG_DOWN_RANK_STATES && m->u.rank_states.check_id != 0) {
        s->check_id = m->u.rank_states.check_id;
        mcpg__rankset_clear(&s->suspects);
        for (uint32_t i = 0; i < m->u.rank_states.count; i++)
            mcpg__rankset_add(&s->suspects, m->u.rank_states.ranks[i].rank.v);
    }
}

static uint32_t rank_of_conn(const storm_t *s, uint64_t conn) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (s->actors[r].conn == conn) return r;
    return RANKS;
}

/* The healthy set is kept up to date piece by piece: it must be what a search of the whole graph finds. */
static void compare_health(const mcpg_coord_t *c) {
    mcpg_rankset_t active, found, healthy;
    if (c->health_dirty || c->health_later || !c->health_exact) return;
    mcpg__rankset_clear(&active);
    mcpg__rankset_clear(&healthy);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (c->ranks[r].active_count > 0 && c->ranks[r].state != MCPG_RANK_OFFLINE) mcpg__rankset_add(&active, r);
        if (c->ranks[r].state == MCPG_RANK_HEALTHY) mcpg__rankset_add(&healthy, r);
    }
    mcpg_coord_graph_t graph = {.n = RANKS,
                                .words = c->words,
                                .adjacency = c->eff,
                                .members = &c->present,
                                .active = &active,
                                .node_budget = 1000000};
    assert_true(mcpg__coord_clique(&graph, &found));
    assert_true(mcpg__rankset_eq(&found, &healthy));
}

static mcpg_status_t step(storm_t *s, mcpg_coord_event_t event) {
    event.now.us = s->now;
    if (event.kind == MCPG_COORD_EV_TIMER) s->timer = UINT64_MAX;
    uint64_t before = mcpg_coord_digest(s->coord);
    mcpg_coord_effects_reset(&s->fx);
    mcpg_status_t status = mcpg_coord_step(s->coord, &event, &s->fx);
    if (status != MCPG_OK) {
        assert_int_equal(before, mcpg_coord_digest(s->coord));
        assert_int_equal(s->fx.count, 0);
        return status;
    }
    s->steps++;
    for (uint32_t i = 0; i < s->fx.count; i++) {
        const mcpg_coord_effect_t *e = &s->fx.items[i];
        if (e->kind == MCPG_COORD_FX_SEND) {
            s->sends++;
            assert_false(mcpg__rankset_empty(e->to));
            for (uint32_t r = mcpg__rankset_next(e->to, 0); r < RANKS; r = mcpg__rankset_next(e->to, r + 1)) {
                uint64_t conn;
                if (mcpg_coord_rank_conn(s->coord, (mcpg_rank_t){r}, &conn)) note_msg(s, r, e->msg);
            }
        }
        if (e->kind == MCPG_COORD_FX_SEND_CONN && rank_of_conn(s, e->conn) < RANKS)
            note_msg(s, rank_of_conn(s, e->conn), e->msg);
        if (e->kind == MCPG_COORD_FX_CLOSE_CONN && rank_of_conn(s, e->conn) < RANKS)
            s->actors[rank_of_conn(s, e->conn)].conn = 0;
        if (e->kind == MCPG_COORD_FX_ARM_TIMER) s->timer = e->at.us;
    }
    compare_health(s->coord);
    const char *broken = mcpg_coord_check(s->coord);
    if (broken != NULL) fail_msg("step %llu: %s", (unsigned long long)s->steps, broken);
    return MCPG_OK;
}

static void say(storm_t *s, uint32_t rank, const mcpg_up_msg_t *msg) {
    if (s->actors[rank].conn == 0) return;
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = s->actors[rank].conn, .msg = msg}),
                     MCPG_OK);
}

static uint64_t call_id(storm_t *s) {
    s->next_id++;
    return s->next_id;
}

static void attach(storm_t *s, uint32_t r, bool same) {
    static const uint8_t endpoint[] = "tcp:somewhere";
    actor_t *a = &s->actors[r], old = *a;
    if (!same && draw(s, 3) != 0) /* most old processes are known to have ended, others still hold the rank */
        (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {r}, .pid = a->pid});
    if (!same || a->session == 0) {
        a->session = call_id(s);
        a->pid = (int64_t)call_id(s);
        a->seq = 0;
    }
    mcpg_up_msg_t msg = {.kind = MCPG_UP_ATTACH};
    mcpg_group_report_t report = {.gid = {s->last_gid}, .acked = {1, draw(s, 9)}};
    msg.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION,
                                      .rank = {r},
                                      .session = {a->session},
                                      .pid = a->pid,
                                      .host_id = 3,
                                      .endpoint = {endpoint, sizeof(endpoint)},
                                      .report_count = 1,
                                      .reports = &report};
    a->conn = call_id(s);
    say(s, r, &msg);
    if (a->conn != 0) return;
    a->session = old.session; /* refused: the old process goes on */
    a->pid = old.pid;
    a->conn = mcpg_coord_rank_conn(s->coord, (mcpg_rank_t){r}, &old.conn) ? old.conn : 0;
}

static void link_say(storm_t *s, uint32_t a, uint32_t b, bool up, uint64_t check) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_LINK};
    mcpg_incarnation_t inc = draw(s, 20) == 0 ? s->old_incs[draw(s, 16)] : s->actors[b].inc;
    msg.u.link =
        (mcpg_up_link_t){.peer = {b}, .peer_inc = inc, .state = up ? MCPG_LINK_UP : MCPG_LINK_LOST, .check_id = check};
    say(s, a, &msg);
}

static mcpg_rankset_t few(storm_t *s) {
    mcpg_rankset_t set;
    mcpg__rankset_clear(&set);
    for (uint64_t n = draw(s, 3); n > 0; n--) mcpg__rankset_add(&set, (uint32_t)draw(s, 6));
    return set;
}

static void register_one(storm_t *s, uint32_t r, uint64_t which, bool ext) {
    static const uint32_t orders[4][RANKS] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2}, {0, 1, 2, 3}, {4, 5, 6, 7}};
    static const uint32_t counts[4] = {8, 3, 4, 4}, caps[4] = {8, 4, 4, 4};
    static const uint8_t labels[3] = "abc";
    mcpg_up_msg_t msg = {.kind = MCPG_UP_REGISTER};
    mcpg_up_register_t *m = &msg.u.register_group;
    m->call_id = call_id(s);
    m->order = orders[which];
    m->order_count = counts[which];
    m->capacity = draw(s, 50) == 0 ? 9 : caps[which];
    m->is_extension = ext;
    m->manual = draw(s, 40) == 0 ? which != 3 : which == 3;
    if (draw(s, 2)) m->label = (mcpg_bytes_t){&labels[which % 3u], 1};
    say(s, r, &msg);
}

/* Everybody declares the same, joins what there is, and asks for all slots: what a well-behaved job does after a
 * restart. */
static void recover(storm_t *s) {
    uint64_t which = draw(s, 4);
    bool ext = draw(s, 2) != 0;
    for (uint32_t r = 0; r < RANKS; r++) register_one(s, r, which, ext);
    for (uint32_t gid = s->last_gid > 6 ? s->last_gid - 6 : 1; gid <= s->last_gid; gid++) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_PROPOSE};
        for (uint32_t r = 0; r < RANKS; r++) {
            if (!s->members_of[gid][r] || draw(s, 4) == 0) continue;
            mcpg_up_msg_t join = {.kind = MCPG_UP_JOIN};
            join.u.join = (mcpg_up_join_t){.call_id = call_id(s), .gid = {gid}};
            say(s, r, &join);
            mcpg__rankset_add(&msg.u.propose.activate, (uint32_t)draw(s, 4));
        }
        msg.u.propose.gid.v = gid;
        msg.u.propose.call_id = call_id(s);
        msg.u.propose.expected_epoch = MCPG_ANY_EPOCH;
        msg.u.propose.wait_us = 1000000;
        say(s, (uint32_t)draw(s, RANKS), &msg);
    }
}

static void propose_some(storm_t *s, uint32_t r, uint32_t gid) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_PROPOSE};
    mcpg_member_t stamp = {.slot = {(uint32_t)draw(s, 6)}, .inc = s->actors[draw(s, RANKS)].inc};
    msg.u.propose = (mcpg_up_propose_t){.call_id = call_id(s),
                                        .gid = {gid},
                                        .activate = few(s),
                                        .deactivate = few(s),
                                        .expected_epoch = draw(s, 6) == 0 ? draw(s, 9) : MCPG_ANY_EPOCH,
                                        .wait_us = draw(s, 3) == 0 ? draw(s, 3000000) : 0,
                                        .stamp_count = draw(s, 2) ? 1u : 0u,
                                        .stamps = &stamp};
    say(s, r, &msg);
}

static void group_word(storm_t *s, uint32_t r, uint32_t gid) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_JOIN};
    mcpg_member_t failed[2];
    switch (draw(s, 5)) {
    case 0:
        msg.u.join = (mcpg_up_join_t){.call_id = call_id(s), .gid = {gid}};
        break;
    case 1:
        if (draw(s, 3) != 0) return;
        msg.kind = MCPG_UP_LEAVE_GROUP;
        msg.u.leave_group.gid.v = gid;
        break;
    case 2:
    case 3:
        msg.kind = MCPG_UP_OP_FAILED;
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t slot = (uint32_t)draw(s, 4);
            failed[i] = (mcpg_member_t){.slot = {slot}, .rank = {slot}, .inc = s->actors[slot].inc};
        }
        msg.u.op_failed = (mcpg_up_op_failed_t){
            .gid = {gid}, .report_id = draw(s, 3), .seq = draw(s, 99), .failed_count = 2, .failed = failed};
        break;
    default:
        msg.kind = MCPG_UP_SYNC_ENTER;
        msg.u.sync_enter = (mcpg_up_sync_enter_t){.call_id = call_id(s),
                                                  .gid = {gid},
                                                  .failed = few(s),
                                                  .first_failed_seq = draw(s, 3) == 0 ? MCPG_NO_SEQ : draw(s, 50)};
        break;
    }
    say(s, r, &msg);
}

/* The oldest PREPARE or COMMIT that nobody has answered. */
static void answer_one(storm_t *s, bool surely) {
    if (s->head == s->tail) return;
    uint32_t at = s->head++ % QUEUE, r = s->queue[at].rank;
    if (!surely && draw(s, 60) == 0) return;
    mcpg_up_msg_t msg = {.kind = s->queue[at].commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
    mcpg_view_id_t view = {1, s->queue[at].epoch};
    s->actors[r].seq += draw(s, 4) + (draw(s, 40) == 0 ? UINT64_C(1) << 32 : 0);
    if (s->queue[at].commit)
        msg.u.commit_ack = (mcpg_up_commit_ack_t){.gid = {s->queue[at].gid}, .view = view};
    else
        msg.u.ack = (mcpg_up_ack_t){.gid = {s->queue[at].gid},
                                    .view = view,
                                    .next_seq = s->actors[r].seq,
                                    .steps = s->actors[r].seq >> 32 != 0};
    say(s, r, &msg);
}

static void heartbeat(storm_t *s, uint32_t r) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_HEARTBEAT};
    msg.u.heartbeat.digest = draw(s, 5);
    say(s, r, &msg);
}

static void pass_time(storm_t *s, uint64_t us) {
    uint64_t until = s->now + us;
    while (s->timer <= until) { /* the machine may ask for more than one step at the same time */
        if (s->timer > s->now) s->now = s->timer;
        assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER}), MCPG_OK);
    }
    s->now = until;
}

static void end_process(storm_t *s, uint32_t r, uint32_t peer) {
    actor_t *a = &s->actors[r];
    uint64_t conn = a->conn;
    mcpg_up_msg_t death = {.kind = MCPG_UP_DEATH};
    death.u.death.rank.v = r;
    death.u.death.inc = a->inc;
    a->conn = 0;
    uint64_t how = draw(s, 3);
    if (how != 0 && conn != 0) (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = conn});
    if (how != 1) (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {r}, .pid = a->pid});
    if (how == 1 && peer != r) say(s, peer, &death);
}

static void links_up(storm_t *s) {
    for (uint32_t a = 0; a < RANKS; a++)
        for (uint32_t b = 0; b < RANKS; b++)
            if (a != b) link_say(s, a, b, true, 0);
}

/* Mostly one that the rank has registered in. */
static uint32_t pick_group(storm_t *s, uint32_t r) {
    uint32_t any = 1 + (uint32_t)draw(s, s->last_gid + 1u);
    for (uint32_t i = 0; i < 200 && draw(s, 400) != 0; i++) {
        uint32_t gid = 1 + (uint32_t)draw(s, s->last_gid + 1u);
        if (gid + 20u > s->last_gid && s->members_of[gid][r]) return gid;
    }
    return any;
}

static void any_event(storm_t *s) {
    uint32_t r = (uint32_t)draw(s, RANKS), p = (uint32_t)draw(s, RANKS);
    uint32_t gid = pick_group(s, r);
    uint64_t dice = draw(s, 1000);
    if (dice >= 993 && draw(s, 3) != 0) dice -= 300; /* the rare things are rarer still */
    if (dice < 60) {
        if (s->actors[r].conn == 0 || draw(s, 60) == 0) attach(s, r, draw(s, 3) == 0);
    } else if (dice < 250) {
        link_say(s, r, p, draw(s, 100) != 0, 0);
    } else if (dice < 265) {
        links_up(s);
    } else if (dice < 275) {
        recover(s);
    } else if (dice < 360) {
        uint32_t suspect = mcpg__rankset_next(&s->suspects, p);
        link_say(s, r, suspect < RANKS ? suspect : p, draw(s, 60) != 0, s->check_id);
    } else if (dice < 460) {
        uint64_t which = draw(s, 4);
        if (draw(s, 8) != 0 && (which == 3) != (r >= 4)) which = r >= 4 ? 3 : 2;
        register_one(s, r, which, draw(s, 3) == 0);
    } else if (dice < 530) {
        propose_some(s, r, gid);
    } else if (dice < 600) {
        group_word(s, r, gid);
    } else if (dice < 900) {
        for (uint32_t i = 0; i < 6; i++) answer_one(s, false);
    } else if (dice < 950) {
        heartbeat(s, r);
    } else if (dice < 993) {
        pass_time(s, draw(s, 300000));
    } else if (dice < 995) {
        end_process(s, r, p);
    } else if (dice < 996) {
        say(s, r, &(mcpg_up_msg_t){.kind = MCPG_UP_DETACH});
    } else if (dice < 998) {
        uint64_t conn = s->actors[r].conn == 0 ? 99999999 : s->actors[r].conn;
        (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = conn});
        s->actors[r].conn = 0;
    } else {
        (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {draw(s, 2) ? r : 4096u}, .pid = 1});
    }
}

static storm_t *storm_new(uint64_t seed) {
    mcpg_coord_config_t config = {.term = 1,
                                  .coordinator_id = 7,
                                  .max_ranks = RANKS,
                                  .max_groups = 12,
                                  .max_slots_total = 96,
                                  .clique_node_budget = 5000,
                                  .timers = {200000, 2000000, 400000, 100000, 300000, 30000000, 1000000, 10000000}};
    storm_t *s = calloc(1, sizeof(*s));
    size_t size = mcpg_coord_size(&config);
    assert_non_null(s);
    mcpg_coord_effects_worst(&config, &s->fx.cap, &s->fx.arena_cap);
    s->mem = calloc(1, size);
    s->fx.items = calloc(s->fx.cap, sizeof(*s->fx.items));
    s->fx.arena = malloc(s->fx.arena_cap);
    assert_true(s->mem != NULL && s->fx.items != NULL && s->fx.arena != NULL);
    assert_int_equal(mcpg_coord_init(s->mem, size, &config, &s->coord), MCPG_OK);
    s->seed = seed;
    s->now = 1000000;
    s->timer = UINT64_MAX;
    return s;
}

static void storm_free(storm_t *s) {
    free(s->mem);
    free(s->fx.items);
    free(s->fx.arena);
    free(s);
}

/* Those that run go on, those that lost their stream come back; whoever is fenced by a sync enters it. */
static void come_back(storm_t *s) {
    for (uint32_t r = 0; r < RANKS; r++) {
        if (s->actors[r].conn == 0) attach(s, r, true);
        if (s->actors[r].conn == 0) attach(s, r, false);
        for (uint32_t gid = 1; gid <= s->last_gid; gid++) {
            mcpg_up_msg_t msg = {.kind = MCPG_UP_SYNC_ENTER};
            msg.u.sync_enter.gid.v = gid;
            msg.u.sync_enter.first_failed_seq = MCPG_NO_SEQ;
            msg.u.sync_enter.call_id = call_id(s);
            if (s->members_of[gid][r]) say(s, r, &msg);
        }
    }
}

/* Everybody attaches, all links are up, everything is answered, time passes: nothing may be left open. */
static void calm_down(storm_t *s, bool gently) {
    for (uint32_t r = 0; r < RANKS && !gently; r++) {
        (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {r}, .pid = s->actors[r].pid});
        s->actors[r].conn = 0;
    }
    for (uint32_t r = 0; r < RANKS && !gently; r++) attach(s, r, false);
    for (uint32_t round = 0; round < 40; round++) {
        if (gently) come_back(s);
        links_up(s);
        for (uint32_t r = 0; r < RANKS; r++) heartbeat(s, r);
        while (s->head != s->tail) answer_one(s, true);
        pass_time(s, 250000);
    }
    assert_true(mcpg_coord_quiescent(s->coord));
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(mcpg_coord_rank_state(s->coord, (mcpg_rank_t){r}), MCPG_RANK_HEALTHY);
}

static void storm(void **state) {
    (void)state;
    const char *more = getenv("STORM_SEEDS");
    uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : 8, steps = 0, sends = 0, commits = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        storm_t *s = storm_new(seed);
        for (uint32_t i = 0; i < 5000; i++) any_event(s);
        steps += s->steps;
        sends += s->sends;
        commits += s->commits;
        calm_down(s, seed % 2u == 0);
        storm_free(s);
    }
    print_message("%llu seeds: %llu steps, %llu pushes, %llu views\n", (unsigned long long)seeds,
                  (unsigned long long)steps, (unsigned long long)sends, (unsigned long long)commits);
    assert_true(steps > 5000 * seeds && sends > 1000 * seeds && commits > 15 * seeds); /* the storm reached something */
}

/* The same seed gives the same state, bit for bit. */
static void deterministic(void **state) {
    (void)state;
    storm_t *a = storm_new(77), *b = storm_new(77);
    for (uint32_t i = 0; i < 2000; i++) {
        any_event(a);
        any_event(b);
        assert_int_equal(mcpg_coord_digest(a->coord), mcpg_coord_digest(b->coord));
    }
    storm_free(a);
    storm_free(b);
}

/* SHUTDOWN in the middle of a storm: STOP comes within the drain time, every caller that is still there was answered.
 */
static void shutdown_drains(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        storm_t *s = storm_new(seed * 1000);
        for (uint32_t i = 0; i < 1500; i++) any_event(s);
        (void)step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_SHUTDOWN});
        uint64_t end = s->now + 6000000;
        mcpg_status_t status = MCPG_OK;
        while (status == MCPG_OK && s->now < end) {
            s->now = s->timer < end ? (s->timer > s->now ? s->timer : s->now) : end;
            status = step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
        }
        assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER}), MCPG_SHUTTING_DOWN);
        storm_free(s);
    }
}

static void rejected_events(void **state) {
    (void)state;
    storm_t *s = storm_new(3);
    for (uint32_t i = 0; i < 300; i++) any_event(s);
    mcpg_up_msg_t odd = {.kind = MCPG_UP__COUNT};
    uint64_t before = mcpg_coord_digest(s->coord);
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV__COUNT}), MCPG_INVALID_ARGUMENT);
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = 1}), MCPG_INVALID_ARGUMENT);
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = 1, .msg = &odd}),
                     MCPG_INVALID_ARGUMENT);
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED}), MCPG_INVALID_ARGUMENT);
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {RANKS}}), MCPG_INVALID_ARGUMENT);
    s->fx.arena_cap /= 2;
    assert_int_equal(step(s, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER}), MCPG_LIMIT);
    assert_int_equal(mcpg_coord_digest(s->coord), before);
    storm_free(s);
}

/* A configuration of full size costs address space, not work: init and a few steps touch few pages. */
static void full_size(void **state) {
    (void)state;
    mcpg_coord_config_t config = {.term = 1,
                                  .max_ranks = MCPG_MAX_RANKS,
                                  .max_groups = MCPG_MAX_GROUPS,
                                  .max_slots_total = MCPG_MAX_SLOTS_TOTAL,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    size_t size = mcpg_coord_size(&config);
    assert_true(size > 0 && size < UINT64_C(128) << 20u);
    void *mem = calloc(1, size);
    mcpg_coord_t *coord;
    assert_non_null(mem);
    assert_int_equal(mcpg_coord_init(mem, size - 64, &config, &coord), MCPG_INVALID_ARGUMENT);
    assert_int_equal(mcpg_coord_init(mem, size, &config, &coord), MCPG_OK);
    assert_null(mcpg_coord_check(coord));
    assert_true(mcpg_coord_quiescent(coord));
    config.timers.ack_us = 0;
    assert_int_equal(mcpg_coord_size(&config), 0);
    free(mem);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(storm), cmocka_unit_test(deterministic),
                                       cmocka_unit_test(shutdown_drains), cmocka_unit_test(rejected_events),
                                       cmocka_unit_test(full_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
