/* fuzz_coord.c: the input as a sequence of events for the coordinator machine: processes that attach, say what they
 * like with values that mean something there (or do not), and vanish. coord_world.c checks each step; at the end the
 * machine's timer must not spin. With MCPG_FUZZ_CANARY the check has a fault that must be found. It must never keep the
 * contract of an honest agent.
 */
#include "fuzz/coord_world.h"

#define TIMERS_MOST 200u /* at the end */
#define SAME_TIME   40u  /* bounded: TIMER steps in a row that may ask for another one at the same time */

static uint32_t a_rank(world_t *w) {
    return fuzz_u8(&w->in) % w->config.max_ranks;
}
static mcpg_gid_t a_gid(world_t *w) {
    return fuzz_gid(&w->in, &w->hints);
}

static void refresh_hints(world_t *w) {
    fuzz_hints_t *h = &w->hints;
    *h = (fuzz_hints_t){.ranks = w->config.max_ranks, .slots = w->config.max_ranks, .inc_count = RANKS};
    for (uint32_t r = 0; r < RANKS; r++) h->incs[r] = w->peers[r].inc;
    for (uint32_t i = 0; i < GIDS && w->groups[i].known; i++) {
        h->gids[h->gid_count++] = w->groups[i].gid;
        if (w->groups[i].prepare.term != 0) h->views[h->view_count++] = w->groups[i].prepare;
        if (w->groups[i].commit.term != 0) h->views[h->view_count++] = w->groups[i].commit;
    }
    h->numbers[h->number_count++] = w->last_check;
    h->numbers[h->number_count++] = w->last_call;
    h->numbers[h->number_count++] = w->last_call + 1;
}

/* how: a new process, the same session, or anything. */
static void attach(world_t *w, uint32_t rank, uint32_t how) {
    peer_t *p = &w->peers[rank];
    mcpg_up_msg_t m = {.kind = MCPG_UP_ATTACH};
    if (how == 2) m = fuzz_up(&w->in, MCPG_UP_ATTACH, &w->hints, fuzz_build_arena());
    if (how == 2 && !fuzz_up_through(&m, fuzz_decode_arena())) return;
    if (how < 2) {
        if (how == 0 || p->session == 0) p->session = ++w->last_session;
        if (how == 0) p->pid = (int64_t)w->last_session;
        m.u.attach = (mcpg_up_attach_t){.version = MCPG_PROTOCOL_VERSION, .rank = {rank}, .session = {p->session}};
        m.u.attach.prev_inc = how == 1 ? p->inc : (mcpg_incarnation_t){0, 0};
        m.u.attach.pid = p->pid;
        m.u.attach.endpoint = (mcpg_bytes_t){(const uint8_t *)"e", 1};
    }
    uint64_t conn = ++w->last_conn;
    if (m.u.attach.rank.v < RANKS) w->peers[m.u.attach.rank.v].conn = conn;
    world_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = conn, .msg = &m});
}

static void link_between(world_t *w, uint32_t a, uint32_t b, uint8_t state, uint64_t check_id) {
    mcpg_up_msg_t m = {.kind = MCPG_UP_LINK};
    m.u.link = (mcpg_up_link_t){{b}, w->peers[b].inc, state, check_id};
    if (w->peers[b].inc.term != 0) world_send(w, a, &m);
}

static void links(world_t *w, uint8_t mask, uint8_t others, uint8_t state, uint64_t check_id) {
    for (uint32_t a = 0; a < w->config.max_ranks; a++)
        for (uint32_t b = 0; b < w->config.max_ranks; b++)
            if (a != b && (mask >> a & 1u) && (others >> b & 1u))
                link_between(w, a, b, check_id != 0 && (w->peers[a].broken >> b & 1u) ? MCPG_LINK_LOST : state,
                             check_id);
}

static void register_one(world_t *w, uint32_t rank, uint8_t mask, uint8_t shape) {
    uint32_t order[RANKS];
    mcpg_up_msg_t m = {.kind = MCPG_UP_REGISTER};
    mcpg_up_register_t *r = &m.u.register_group;
    r->call_id = ++w->last_call;
    for (uint32_t i = 0; i < w->config.max_ranks; i++)
        if (mask >> i & 1u) order[r->order_count++] = i;
    if (r->order_count == 0) return;
    r->order = order;
    r->capacity = r->order_count + (shape & 3u);
    r->is_extension = shape & 4u;
    r->manual = shape & 8u;
    r->no_auto_sync = shape & 16u;
    r->label = (mcpg_bytes_t){(const uint8_t *)"ab", shape >> 5 & 1u};
    r->key = (mcpg_bytes_t){(const uint8_t *)"k", shape >> 6 & 1u};
    world_send(w, rank, &m);
}

static void register_some(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), mask = fuzz_u8(&w->in), shape = fuzz_u8(&w->in);
    for (uint32_t r = 0; r < w->config.max_ranks; r++)
        if (who >> r & 1u) register_one(w, r, mask, shape);
}

static void propose(world_t *w) {
    mcpg_up_msg_t m = {.kind = MCPG_UP_PROPOSE};
    mcpg_up_propose_t *p = &m.u.propose;
    uint32_t rank = a_rank(w);
    mcpg_member_t stamps[RANKS];
    p->gid = a_gid(w);
    if (p->gid.v == 0) return;
    p->call_id = ++w->last_call;
    p->activate.w[0] = fuzz_u8(&w->in);
    p->deactivate.w[0] = fuzz_u8(&w->in);
    uint8_t how = fuzz_u8(&w->in);
    seen_group_t *g = world_group(w, p->gid);
    p->expected_epoch = how & 1u && g != NULL ? g->commit.epoch : MCPG_ANY_EPOCH;
    p->wait_us = how & 2u ? 500000 : 0;
    for (uint32_t i = 0; how & 4u && g != NULL && i < g->members; i++) stamps[p->stamp_count++] = g->active[i];
    p->stamps = stamps;
    world_send(w, rank, &m);
}

static void ack_some(world_t *w, bool commit) {
    uint8_t who = fuzz_u8(&w->in), seq = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    seen_group_t *g = gid.v == 0 ? NULL : world_group(w, gid);
    if (g == NULL) return;
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if ((who >> r & 1u) == 0) continue;
        mcpg_up_msg_t m = {.kind = commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
        if (commit)
            m.u.commit_ack = (mcpg_up_commit_ack_t){gid, g->commit};
        else
            m.u.ack = (mcpg_up_ack_t){gid, g->prepare, g->switch_seq + (seq & 15u) * r + ((uint64_t)(seq >> 6) << 32),
                                      seq & 32u};
        if (commit ? g->commit.term != 0 : g->prepare.term != 0) world_send(w, r, &m);
    }
}

static void sync_some(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), failed = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    for (uint32_t r = 0; r < w->config.max_ranks && gid.v != 0; r++) {
        if ((who >> r & 1u) == 0) continue;
        mcpg_up_msg_t m = {.kind = MCPG_UP_SYNC_ENTER};
        m.u.sync_enter = (mcpg_up_sync_enter_t){++w->last_call, gid, {{failed}}, failed == 0 ? MCPG_NO_SEQ : failed};
        world_send(w, r, &m);
    }
}

static void op_failed(world_t *w) {
    uint32_t rank = a_rank(w);
    uint8_t failed = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    seen_group_t *g = gid.v == 0 ? NULL : world_group(w, gid);
    mcpg_member_t members[RANKS];
    mcpg_up_msg_t m = {.kind = MCPG_UP_OP_FAILED};
    m.u.op_failed = (mcpg_up_op_failed_t){.gid = gid, .report_id = ++w->last_call, .seq = failed, .failed = members};
    for (uint32_t i = 0; g != NULL && i < g->members; i++)
        if (failed >> i & 1u) members[m.u.op_failed.failed_count++] = g->active[i];
    if (g != NULL) world_send(w, rank, &m);
}

/* Any message at all, from a rank, as its bytes would come. */
static void any_message(world_t *w) {
    uint32_t rank = a_rank(w);
    mcpg_up_kind_t kind = (mcpg_up_kind_t)fuzz_below(&w->in, MCPG_UP__COUNT);
    mcpg_up_msg_t m = fuzz_up(&w->in, kind, &w->hints, fuzz_build_arena());
    if (fuzz_up_through(&m, fuzz_decode_arena())) world_send(w, rank, &m);
}

/* What a process of an earlier coordinator's time would report: the newest view seen here, bent a little. */
static void rebuild_one(world_t *w, uint32_t rank, mcpg_gid_t gid, uint8_t bend) {
    seen_group_t *g = world_group(w, gid);
    uint32_t order[RANKS];
    mcpg_member_t active[RANKS];
    mcpg_up_msg_t m = {.kind = MCPG_UP_REBUILD};
    mcpg_up_rebuild_t *r = &m.u.rebuild;
    if (g == NULL || gid.v == 0) return;
    *r = (mcpg_up_rebuild_t){.gid = gid, .order = order, .order_count = w->config.max_ranks, .awaiting = bend & 1u};
    r->capacity = r->order_count;
    r->manual = bend & 2u;
    for (uint32_t i = 0; i < r->order_count; i++) order[i] = i;
    uint64_t term = g->commit.term != 0 ? g->commit.term : w->config.term - (w->config.term > 1);
    r->has_commit = (bend & 12u) != 12u;
    if (!r->has_commit || bend & 16u) r->acked = (mcpg_view_id_t){term, g->commit.epoch + 1 + (bend >> 6)};
    r->next_seq = bend;
    if (r->has_commit) {
        r->commit =
            (mcpg_down_commit_t){.gid = gid, .view = {.id = {term, g->commit.epoch + (bend >> 6)}, .active = active}};
        if (r->commit.view.id.epoch == 0) r->commit.view.id.epoch = 1;
        r->commit.switch_seq = g->switch_seq;
        for (uint32_t i = 0; i < r->order_count; i++) {
            if (bend & 32u && i == (bend & 3u)) continue;
            mcpg_incarnation_t inc = w->peers[i].inc.term != 0 ? w->peers[i].inc : (mcpg_incarnation_t){term, i + 1};
            active[r->commit.view.active_count++] = (mcpg_member_t){{i}, {i}, inc};
        }
    }
    world_send(w, rank, &m);
}

static void rebuild_some(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), bend = fuzz_u8(&w->in), end = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    mcpg_up_msg_t done = {.kind = MCPG_UP_REBUILD_END};
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if (who >> r & 1u) rebuild_one(w, r, gid, bend);
        if (who >> r & 1u && end & 1u) world_send(w, r, &done);
    }
}

/* A process of an earlier coordinator's time comes: with an incarnation of that time. */
static void return_one(world_t *w, uint32_t rank) {
    peer_t *p = &w->peers[rank];
    if (p->inc.term == 0 && w->config.term > 1) p->inc = (mcpg_incarnation_t){1, rank + 1};
    if (p->session == 0) p->session = ++w->last_session;
    attach(w, rank, 1);
}

static void record_answer(world_t *w) {
    uint8_t pick = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    seen_group_t *g = &w->groups[pick % GIDS];
    for (uint32_t i = 0; i < GIDS && how < 250; i++)
        if (w->groups[i].record_open) g = &w->groups[i];
    static const mcpg_status_t answers[] = {MCPG_OK, MCPG_OK, MCPG_UNAVAILABLE, MCPG_CONFLICT};
    mcpg_coord_event_t event = {.kind = MCPG_COORD_EV_RECORD, .gid = g->gid, .status = answers[how & 3u]};
    mcpg_group_record_t record = {.term = w->config.term, .coordinator_id = 7, .has_view = how & 8u};
    if (!g->known || (!g->record_open && how < 250)) return;
    bool claim = g->record_claim;
    g->record_open = false;
    record.term -= record.term > 1 && how & 4u;
    if (how & 16u) record = fuzz_record(&w->in, &w->hints, fuzz_build_arena());
    if (how & 8u && !(how & 16u)) {
        record.view.id = (mcpg_view_id_t){record.term, g->commit.epoch + (how >> 6)};
        record.view.active = g->active;
        for (uint32_t i = 0; i < g->members; i++)
            if (!(how & 32u) || i > 0) record.view.active_count++;
    }
    if (claim && event.status == MCPG_OK && fuzz_record_valid(&record)) event.record = &record;
    world_step(w, event);
}

static void fire_timer(world_t *w, bool early) {
    if (!early && w->armed_us < NEVER_US && w->armed_us > w->now.us) w->now.us = w->armed_us;
    if (w->armed_us <= w->now.us) w->armed_us = NEVER_US;
    world_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
}

static void heartbeats(world_t *w) {
    uint8_t who = fuzz_u8(&w->in);
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        mcpg_up_msg_t m = {.kind = MCPG_UP_HEARTBEAT};
        m.u.heartbeat = (mcpg_up_heartbeat_t){r & 1u, w->now.us};
        if (who >> r & 1u) world_send(w, r, &m);
    }
}

static void death(world_t *w) {
    uint32_t rank = a_rank(w);
    mcpg_up_msg_t m = {.kind = MCPG_UP_DEATH};
    m.u.death.rank.v = a_rank(w);
    m.u.death.inc = fuzz_inc(&w->in, &w->hints, m.u.death.rank.v);
    m.u.death.proof = (uint8_t)fuzz_below(&w->in, 3);
    world_send(w, rank, &m);
}

static void end_of(world_t *w) {
    uint32_t rank = a_rank(w);
    uint8_t how = fuzz_u8(&w->in);
    uint64_t conn = w->peers[rank].conn;
    mcpg_up_msg_t m = {.kind = MCPG_UP_DETACH};
    if ((how & 3u) == 0) world_send(w, rank, &m);
    if ((how & 3u) == 1 && conn != 0) {
        w->peers[rank].conn = 0;
        world_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = conn});
    }
    int64_t pid = how & 4u ? w->peers[rank].pid + 1 : w->peers[rank].pid;
    if ((how & 3u) >= 2) world_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {rank}, .pid = pid});
}

static void join_or_leave(world_t *w, bool leave) {
    uint32_t rank = a_rank(w);
    mcpg_up_msg_t m = {.kind = leave ? MCPG_UP_LEAVE_GROUP : MCPG_UP_JOIN};
    mcpg_gid_t gid = a_gid(w);
    if (leave)
        m.u.leave_group = (mcpg_up_leave_group_t){gid, fuzz_u8(&w->in)};
    else
        m.u.join = (mcpg_up_join_t){++w->last_call, gid};
    if (gid.v != 0) world_send(w, rank, &m);
}

/* Several processes come, all links between them are up. */
static void come_together(world_t *w, uint8_t who, uint32_t how) {
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if ((who >> r & 1u) == 0) continue;
        if (how == 2)
            return_one(w, r);
        else
            attach(w, r, how);
    }
    links(w, who, who, MCPG_LINK_UP, 0);
}

/* All that it takes to a first view, at once: what comes after it is the part that is worth fuzzing. */
static void start(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), shape = fuzz_u8(&w->in);
    w->automatic = 0xff;
    come_together(w, who, 0);
    for (uint32_t r = 0; r < w->config.max_ranks; r++)
        if (who >> r & 1u) register_one(w, r, who, shape);
}

/* All processes of an earlier coordinator's time come back and say the same of one group: `who` of them, in a view of
 * everybody, bent as rebuild_one does it. */
static void take_over(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), bend = fuzz_u8(&w->in), how = fuzz_u8(&w->in);
    mcpg_up_msg_t done = {.kind = MCPG_UP_REBUILD_END};
    w->automatic = 0xff;
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if ((who >> r & 1u) == 0) continue;
        return_one(w, r);
        rebuild_one(w, r, (mcpg_gid_t){1 + (how & 1u)}, r == 0 && how & 2u ? bend ^ 0x40u : bend);
        world_send(w, r, &done);
    }
    links(w, who, who, MCPG_LINK_UP, 0);
    if (how & 4u) w->now.us += w->config.timers.settle_us;
    if (how & 8u) fire_timer(w, false);
}

static void op_attach(world_t *w) {
    attach(w, a_rank(w), 0);
}
static void op_attach_again(world_t *w) {
    attach(w, a_rank(w), 1);
}
static void op_attach_any(world_t *w) {
    attach(w, 0, 2);
}
static void op_come(world_t *w) {
    come_together(w, fuzz_u8(&w->in), 0);
}
static void op_return(world_t *w) {
    come_together(w, fuzz_u8(&w->in), 2);
}
static void op_links_up(world_t *w) {
    uint8_t mask = fuzz_u8(&w->in);
    links(w, mask, fuzz_u8(&w->in), MCPG_LINK_UP, 0);
}
static void op_links_lost(world_t *w) {
    uint8_t mask = fuzz_u8(&w->in);
    links(w, mask, fuzz_u8(&w->in), MCPG_LINK_LOST, 0);
}
static void op_break(world_t *w) {
    uint32_t rank = a_rank(w);
    w->peers[rank].broken = fuzz_u8(&w->in);
}
static void op_answer_checks(world_t *w) {
    uint8_t mask = fuzz_u8(&w->in);
    links(w, mask, fuzz_u8(&w->in), MCPG_LINK_UP, w->last_check);
}
static void op_join(world_t *w) {
    join_or_leave(w, false);
}
static void op_leave(world_t *w) {
    join_or_leave(w, true);
}
static void op_ack(world_t *w) {
    ack_some(w, false);
}
static void op_commit_ack(world_t *w) {
    ack_some(w, true);
}
static void op_timer(world_t *w) {
    fire_timer(w, fuzz_u8(&w->in) >= 224);
}
static void op_advance(world_t *w) {
    w->now.us += (uint64_t)fuzz_u8(&w->in) * 20000u;
}
static void op_automatic(world_t *w) {
    w->automatic = fuzz_u8(&w->in);
}
static void op_shutdown(world_t *w) {
    if (fuzz_u8(&w->in) >= 192) world_step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_SHUTDOWN});
}

/* The corpus is written in these numbers: append, never insert. The rest of the space does nothing. */
#define OP_SPACE 32u
static void (*const ops[OP_SPACE])(world_t *w) = {
    start,         take_over,     op_attach,        op_attach_again, op_attach_any, op_come,    op_return, op_links_up,
    op_links_lost, op_break,      op_answer_checks, register_some,   op_join,       op_leave,   propose,   op_ack,
    op_commit_ack, sync_some,     op_failed,        death,           end_of,        heartbeats, op_timer,  op_advance,
    rebuild_some,  record_answer, op_automatic,     any_message,     op_shutdown,
};

/* Nobody says anything any more: the timer goes on only with time. */
static void run_out(world_t *w) {
    uint32_t same = 0;
    w->steps = 0;
    for (uint32_t i = 0; i < TIMERS_MOST && w->armed_us < NEVER_US; i++) {
        same = w->armed_us > w->now.us ? 0 : same + 1;
        FUZZ_REQUIRE(same < SAME_TIME && "the timer spins");
        fire_timer(w, false);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static world_t world;
    world_begin(&world, data, size);
    while (fuzz_left(&world.in) > 0 && world.steps < STEPS_MOST) {
        refresh_hints(&world);
        void (*op)(world_t *) = ops[fuzz_below(&world.in, OP_SPACE)];
        if (op != NULL) op(&world);
    }
    run_out(&world);
    return 0;
}
