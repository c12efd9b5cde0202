/* fuzz_coord.c: the input as a sequence of events for the coordinator machine: processes that attach, say what they
 * like with values that mean something there (or do not), and vanish. After each step: its own invariants; a rejected
 * event changed nothing; every message it sends is one that the codec accepts; a view id has one content and COMMITs of
 * a group rise (I1, I2); incarnations rise; at most one record operation per group is open; and a second machine that
 * gets the events through the event log's encoding does exactly the same. At the end its timer must not spin.
 *
 * It must never know what the right answer of the machine is.
 */
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/pure.h"
#include "coordinator/coord_host_codec.h"
#include "fuzz/fuzz.h"
#include "tools/text.h"

#define RANKS       8u
#define GIDS        8u
#define VIEWS       64u
#define STEPS_MOST  400u
#define PENDING     64u
#define TIMERS_MOST 200u             /* at the end */
#define SAME_TIME   40u              /* bounded: TIMER steps in a row that may ask for another one at the same time */
#define NEVER_US    (UINT64_MAX / 4) /* a timer from here on never fires: no clock gets there */

typedef struct {
    mcpg_view_id_t id;
    uint32_t gid;
    uint64_t content;
} seen_view_t;
typedef struct {
    bool known;
    mcpg_gid_t gid;
    mcpg_view_id_t prepare, commit;
    bool record_open, record_claim;
    uint32_t members;
    mcpg_member_t active[RANKS];
    uint64_t switch_seq;
} seen_group_t;
typedef struct {
    uint64_t conn, session;
    int64_t pid;
    mcpg_incarnation_t inc, given; /* given: by this very coordinator */
    uint8_t broken;                /* bits: links that its checks find lost */
} peer_t;
typedef struct {
    uint32_t rank;
    bool commit;
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} due_t;

typedef struct {
    fuzz_in_t in;
    mcpg_coord_config_t config;
    mcpg_coord_t *coord, *twin;
    mcpg_coord_effects_t fx, twin_fx;
    uint64_t digest;
    bool with_twin, with_codec; /* what takes long is done for some inputs only */
    bool lies;                  /* REBUILD was said: what a group was before is then hearsay */
    mcpg_time_t now;
    uint64_t armed_us, last_conn, last_session, last_call, last_check;
    uint32_t steps;
    peer_t peers[RANKS];
    uint8_t automatic; /* bits: ranks that answer PREPARE and COMMIT by themselves */
    seen_group_t groups[GIDS];
    seen_view_t views[VIEWS];
    uint32_t view_count;
    uint32_t due_count;
    due_t due[PENDING];
    fuzz_hints_t hints;
} world_t;

static uint8_t scratch[MCPG_COORD_EVENT_CAP];

/* ---- memory, kept between inputs ---- */

static void *block(size_t size) {
    void *p = malloc(size);
    FUZZ_REQUIRE(p != NULL);
    return p;
}

/* The largest configuration's, so that one block serves all. */
static void machine_memory(mcpg_coord_config_t most, void **mem_out, mcpg_coord_effects_t *fx_out) {
    *mem_out = block(mcpg_coord_size(&most));
    mcpg_coord_effects_worst(&most, &fx_out->cap, &fx_out->arena_cap);
    fx_out->items = block(fx_out->cap * sizeof *fx_out->items);
    fx_out->arena = block(fx_out->arena_cap);
}

static mcpg_coord_config_t config_of(uint8_t bits) {
    static const uint32_t groups[] = {4, 1, 2, 4};
    return (mcpg_coord_config_t){.term = 1 + (bits >> 7),
                                 .coordinator_id = 7,
                                 .max_ranks = bits & 1u ? 4 : RANKS,
                                 .max_groups = groups[(bits >> 1) & 3u],
                                 .max_slots_total = bits & 8u ? 16 : 64,
                                 .clique_node_budget = bits & 16u ? 3 : 1000,
                                 .has_store = bits & 32u,
                                 .predecessor = bits & 64u,
                                 .settle_us = 1200000,
                                 .timers = fuzz_timers()};
}

static mcpg_coord_t *make(const mcpg_coord_config_t *config, void *mem) {
    mcpg_coord_t *coord = NULL;
    size_t size = mcpg_coord_size(config);
    memset(mem, 0, size);
    FUZZ_REQUIRE(mcpg_coord_init(mem, size, config, &coord) == MCPG_OK);
    return coord;
}

static void world_begin(world_t *w, const uint8_t *data, size_t size) {
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

static seen_group_t *group_of(world_t *w, mcpg_gid_t gid) {
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
    seen_group_t *g = group_of(w, m->gid);
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
    seen_group_t *g = group_of(w, m->u.prepare.gid);
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
    if (m->kind == MCPG_DOWN_REGISTERED && m->u.registered.status == MCPG_OK) (void)group_of(w, m->u.registered.gid);
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
    seen_group_t *g = group_of(w, e->gid);
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

static void step(world_t *w, mcpg_coord_event_t event) {
    step_one(w, event);
    answer_due(w);
}
static void send(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    send_one(w, rank, msg);
    answer_due(w);
}

/* ---- events ---- */

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
    step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = conn, .msg = &m});
}

static void link_between(world_t *w, uint32_t a, uint32_t b, uint8_t state, uint64_t check_id) {
    mcpg_up_msg_t m = {.kind = MCPG_UP_LINK};
    m.u.link = (mcpg_up_link_t){{b}, w->peers[b].inc, state, check_id};
    if (w->peers[b].inc.term != 0) send(w, a, &m);
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
    send(w, rank, &m);
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
    seen_group_t *g = group_of(w, p->gid);
    p->expected_epoch = how & 1u && g != NULL ? g->commit.epoch : MCPG_ANY_EPOCH;
    p->wait_us = how & 2u ? 500000 : 0;
    for (uint32_t i = 0; how & 4u && g != NULL && i < g->members; i++) stamps[p->stamp_count++] = g->active[i];
    p->stamps = stamps;
    send(w, rank, &m);
}

static void ack_some(world_t *w, bool commit) {
    uint8_t who = fuzz_u8(&w->in), seq = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    seen_group_t *g = gid.v == 0 ? NULL : group_of(w, gid);
    if (g == NULL) return;
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if ((who >> r & 1u) == 0) continue;
        mcpg_up_msg_t m = {.kind = commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
        if (commit)
            m.u.commit_ack = (mcpg_up_commit_ack_t){gid, g->commit};
        else
            m.u.ack = (mcpg_up_ack_t){gid, g->prepare, g->switch_seq + (seq & 15u) * r + ((uint64_t)(seq >> 6) << 32),
                                      seq & 32u};
        if (commit ? g->commit.term != 0 : g->prepare.term != 0) send(w, r, &m);
    }
}

static void sync_some(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), failed = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    for (uint32_t r = 0; r < w->config.max_ranks && gid.v != 0; r++) {
        if ((who >> r & 1u) == 0) continue;
        mcpg_up_msg_t m = {.kind = MCPG_UP_SYNC_ENTER};
        m.u.sync_enter = (mcpg_up_sync_enter_t){++w->last_call, gid, {{failed}}, failed == 0 ? MCPG_NO_SEQ : failed};
        send(w, r, &m);
    }
}

static void op_failed(world_t *w) {
    uint32_t rank = a_rank(w);
    uint8_t failed = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    seen_group_t *g = gid.v == 0 ? NULL : group_of(w, gid);
    mcpg_member_t members[RANKS];
    mcpg_up_msg_t m = {.kind = MCPG_UP_OP_FAILED};
    m.u.op_failed = (mcpg_up_op_failed_t){.gid = gid, .report_id = ++w->last_call, .seq = failed, .failed = members};
    for (uint32_t i = 0; g != NULL && i < g->members; i++)
        if (failed >> i & 1u) members[m.u.op_failed.failed_count++] = g->active[i];
    if (g != NULL) send(w, rank, &m);
}

/* Any message at all, from a rank, as its bytes would come. */
static void any_message(world_t *w) {
    uint32_t rank = a_rank(w);
    mcpg_up_kind_t kind = (mcpg_up_kind_t)fuzz_below(&w->in, MCPG_UP__COUNT);
    mcpg_up_msg_t m = fuzz_up(&w->in, kind, &w->hints, fuzz_build_arena());
    if (fuzz_up_through(&m, fuzz_decode_arena())) send(w, rank, &m);
}

/* What a process of an earlier coordinator's time would report: the newest view seen here, bent a little. */
static void rebuild_one(world_t *w, uint32_t rank, mcpg_gid_t gid, uint8_t bend) {
    seen_group_t *g = group_of(w, gid);
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
    send(w, rank, &m);
}

static void rebuild_some(world_t *w) {
    uint8_t who = fuzz_u8(&w->in), bend = fuzz_u8(&w->in), end = fuzz_u8(&w->in);
    mcpg_gid_t gid = a_gid(w);
    mcpg_up_msg_t done = {.kind = MCPG_UP_REBUILD_END};
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        if (who >> r & 1u) rebuild_one(w, r, gid, bend);
        if (who >> r & 1u && end & 1u) send(w, r, &done);
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
    step(w, event);
}

static void fire_timer(world_t *w, bool early) {
    if (!early && w->armed_us < NEVER_US && w->armed_us > w->now.us) w->now.us = w->armed_us;
    if (w->armed_us <= w->now.us) w->armed_us = NEVER_US;
    step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
}

static void heartbeats(world_t *w) {
    uint8_t who = fuzz_u8(&w->in);
    for (uint32_t r = 0; r < w->config.max_ranks; r++) {
        mcpg_up_msg_t m = {.kind = MCPG_UP_HEARTBEAT};
        m.u.heartbeat = (mcpg_up_heartbeat_t){r & 1u, w->now.us};
        if (who >> r & 1u) send(w, r, &m);
    }
}

static void death(world_t *w) {
    uint32_t rank = a_rank(w);
    mcpg_up_msg_t m = {.kind = MCPG_UP_DEATH};
    m.u.death.rank.v = a_rank(w);
    m.u.death.inc = fuzz_inc(&w->in, &w->hints, m.u.death.rank.v);
    m.u.death.proof = (uint8_t)fuzz_below(&w->in, 3);
    send(w, rank, &m);
}

static void end_of(world_t *w) {
    uint32_t rank = a_rank(w);
    uint8_t how = fuzz_u8(&w->in);
    uint64_t conn = w->peers[rank].conn;
    mcpg_up_msg_t m = {.kind = MCPG_UP_DETACH};
    if ((how & 3u) == 0) send(w, rank, &m);
    if ((how & 3u) == 1 && conn != 0) {
        w->peers[rank].conn = 0;
        step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = conn});
    }
    int64_t pid = how & 4u ? w->peers[rank].pid + 1 : w->peers[rank].pid;
    if ((how & 3u) >= 2) step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {rank}, .pid = pid});
}

static void join_or_leave(world_t *w, bool leave) {
    uint32_t rank = a_rank(w);
    mcpg_up_msg_t m = {.kind = leave ? MCPG_UP_LEAVE_GROUP : MCPG_UP_JOIN};
    mcpg_gid_t gid = a_gid(w);
    if (leave)
        m.u.leave_group = (mcpg_up_leave_group_t){gid, fuzz_u8(&w->in)};
    else
        m.u.join = (mcpg_up_join_t){++w->last_call, gid};
    if (gid.v != 0) send(w, rank, &m);
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
        send(w, r, &done);
    }
    links(w, who, who, MCPG_LINK_UP, 0);
    if (how & 4u) w->now.us += w->config.settle_us;
    if (how & 8u) fire_timer(w, false);
}

typedef enum {
    OP_START,
    OP_TAKE_OVER,
    OP_ATTACH,
    OP_ATTACH_AGAIN,
    OP_ATTACH_ANY,
    OP_COME,
    OP_RETURN,
    OP_LINKS_UP,
    OP_LINKS_LOST,
    OP_BREAK,
    OP_ANSWER_CHECKS,
    OP_REGISTER,
    OP_JOIN,
    OP_LEAVE,
    OP_PROPOSE,
    OP_ACK,
    OP_COMMIT_ACK,
    OP_SYNC,
    OP_OP_FAILED,
    OP_DEATH,
    OP_END,
    OP_HEARTBEAT,
    OP_TIMER,
    OP_ADVANCE,
    OP_REBUILD,
    OP_RECORD,
    OP_AUTOMATIC,
    OP_ANY_MESSAGE,
    OP_SHUTDOWN,
    OP__COUNT
} op_t;

static void run_op(world_t *w, op_t op) {
    uint8_t mask;
    switch (op) {
    case OP_START:
        start(w);
        return;
    case OP_TAKE_OVER:
        take_over(w);
        return;
    case OP_ATTACH:
        attach(w, a_rank(w), 0);
        return;
    case OP_ATTACH_AGAIN:
        attach(w, a_rank(w), 1);
        return;
    case OP_ATTACH_ANY:
        attach(w, 0, 2);
        return;
    case OP_COME:
        come_together(w, fuzz_u8(&w->in), 0);
        return;
    case OP_RETURN:
        come_together(w, fuzz_u8(&w->in), 2);
        return;
    case OP_LINKS_UP:
    case OP_LINKS_LOST:
        mask = fuzz_u8(&w->in);
        links(w, mask, fuzz_u8(&w->in), op == OP_LINKS_UP ? MCPG_LINK_UP : MCPG_LINK_LOST, 0);
        return;
    case OP_BREAK:
        w->peers[a_rank(w)].broken = fuzz_u8(&w->in);
        return;
    case OP_ANSWER_CHECKS:
        mask = fuzz_u8(&w->in);
        links(w, mask, fuzz_u8(&w->in), MCPG_LINK_UP, w->last_check);
        return;
    case OP_REGISTER:
        register_some(w);
        return;
    case OP_JOIN:
    case OP_LEAVE:
        join_or_leave(w, op == OP_LEAVE);
        return;
    case OP_PROPOSE:
        propose(w);
        return;
    case OP_ACK:
    case OP_COMMIT_ACK:
        ack_some(w, op == OP_COMMIT_ACK);
        return;
    case OP_SYNC:
        sync_some(w);
        return;
    case OP_OP_FAILED:
        op_failed(w);
        return;
    case OP_DEATH:
        death(w);
        return;
    case OP_END:
        end_of(w);
        return;
    case OP_HEARTBEAT:
        heartbeats(w);
        return;
    case OP_TIMER:
        fire_timer(w, fuzz_u8(&w->in) >= 224);
        return;
    case OP_ADVANCE:
        w->now.us += (uint64_t)fuzz_u8(&w->in) * 20000u;
        return;
    case OP_REBUILD:
        rebuild_some(w);
        return;
    case OP_RECORD:
        record_answer(w);
        return;
    case OP_AUTOMATIC:
        w->automatic = fuzz_u8(&w->in);
        return;
    case OP_ANY_MESSAGE:
        any_message(w);
        return;
    case OP_SHUTDOWN:
        if (fuzz_u8(&w->in) >= 192) step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_SHUTDOWN});
        return;
    case OP__COUNT:
        return;
    }
}

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
        run_op(&world, (op_t)(fuzz_u8(&world.in) % OP__COUNT));
    }
    run_out(&world);
    return 0;
}
