/* test_agent_script.h: one agent machine driven by lines of text, its effects compared with lines of text.
 *
 * Incarnations and epochs are written as their counters (the term is 1, unless a view is written "2.5"). ARM_TIMER is
 * left out of the expected line; "armed" shows it and "fire" lets it come. After every line the machine's invariants
 * are checked. It must never be included by anything but test_agent_*.c.
 */
#ifndef MCPG_TEST_AGENT_SCRIPT_H
#define MCPG_TEST_AGENT_SCRIPT_H

#include "unit/test_agent_say.h"

static inline mcpg_agent_config_t script_config(void) {
    mcpg_agent_config_t config = {.rank = {1},
                                  .session = {77},
                                  .host_id = 5,
                                  .pid = 100,
                                  .endpoint = "me",
                                  .endpoint_len = 2,
                                  .max_ranks = 8,
                                  .max_groups = 2,
                                  .max_slots_total = 8,
                                  .max_calls = 4,
                                  .max_reports = 2,
                                  .attach_timeout_us = 30000000,
                                  .seed = 1};
    config.timers = (mcpg_timers_t){.heartbeat_us = 200000,
                                    .offline_us = 5000000,
                                    .ack_us = 5000000,
                                    .ack_added_us = 1000000,
                                    .reconcile_us = 2000000,
                                    .coordinator_grace_us = 30000000,
                                    .collective_timeout_us = 1000000,
                                    .p2p_timeout_us = 10000000};
    return config;
}

static inline void script_open(script_t *t, const mcpg_agent_config_t *config) {
    memset(t, 0, sizeof(*t));
    size_t size = mcpg_agent_size(config), arena;
    uint32_t items;
    t->mem = calloc(1, size);
    assert_non_null(t->mem);
    assert_int_equal(mcpg_agent_init(t->mem, size, config, &t->agent), MCPG_OK);
    mcpg_agent_effects_worst(config, &items, &arena);
    t->fx.items = calloc(items, sizeof(*t->fx.items));
    t->fx.arena = aligned_alloc(16, (arena + 15u) & ~(size_t)15u);
    t->fx.cap = items;
    t->fx.arena_cap = arena;
    t->now.us = 1000;
}

static inline void script_close(script_t *t) {
    free(t->fx.items);
    free(t->fx.arena);
    free(t->mem);
}

/* ---- text to events ---- */

static inline uint64_t number(const char **at) {
    char *end = NULL;
    uint64_t value = strtoull(*at, &end, 0);
    if (end == *at) fail_msg("a number is missing at '%s'", *at);
    *at = end;
    return value;
}

static inline bool word(const char **at, char *out, size_t cap) {
    while (**at == ' ') (*at)++;
    size_t n = strcspn(*at, " ");
    if (n == 0) return false;
    assert_true(n < cap);
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
    return true;
}

/* "slot:rank:inc ..." until the end or a word of letters. */
static inline uint32_t read_members(const char **at, mcpg_member_t *out) {
    uint32_t count = 0;
    while (**at == ' ') (*at)++;
    while (**at >= '0' && **at <= '9') {
        mcpg_member_t *m = &out[count++];
        m->slot.v = (uint32_t)number(at);
        (*at)++;
        m->rank.v = (uint32_t)number(at);
        (*at)++;
        m->inc = (mcpg_incarnation_t){1, number(at)};
        if (m->inc.counter == 0) m->inc.term = 0;
        while (**at == ' ') (*at)++;
    }
    return count;
}

static inline void step(script_t *t, const mcpg_agent_event_t *event) {
    mcpg_agent_effects_reset(&t->fx);
    uint64_t before = mcpg_agent_digest(t->agent);
    mcpg_status_t status = mcpg_agent_step(t->agent, event, &t->fx);
    if (status != MCPG_OK) {
        assert_int_equal(t->fx.count, 0);
        assert_true(mcpg_agent_digest(t->agent) == before);
        say(t, "rejected %s", status_name(status));
    }
    for (uint32_t i = 0; i < t->fx.count; i++) say_effect(t, &t->fx.items[i]);
    const char *fault = mcpg_agent_check(t->agent);
    if (fault != NULL) fail_msg("%s", fault);
}

static inline void deliver(script_t *t, const mcpg_down_msg_t *msg) {
    mcpg_agent_event_t e = {.now = t->now, .kind = MCPG_AGENT_EV_MSG, .u.msg = msg};
    step(t, &e);
}

/* What a peer says. */
static inline void relay(script_t *t, const mcpg_down_msg_t *msg) {
    mcpg_agent_event_t e = {.now = t->now, .kind = MCPG_AGENT_EV_VIEW_TOLD, .u.view_told = msg};
    step(t, &e);
}

static inline mcpg_view_id_t read_view(const char **at) {
    mcpg_view_id_t view = {1, number(at)};
    if (**at != '.') return view;
    (*at)++;
    view.term = view.epoch;
    view.epoch = number(at);
    return view;
}

/* states full|delta CHECK rank:inc:state[d][s][n] ...   d: proved dead, s: suspect, n: no endpoint */
static inline void run_states(script_t *t, const char *at) {
    static const uint8_t endpoint[] = "ep";
    mcpg_rank_info_t ranks[16];
    char kind[8];
    memset(ranks, 0, sizeof(ranks));
    assert_true(word(&at, kind, sizeof(kind)));
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_RANK_STATES};
    m.u.rank_states.full = strcmp(kind, "full") == 0;
    m.u.rank_states.check_id = number(&at);
    m.u.rank_states.ranks = ranks;
    while (*at == ' ') at++;
    while (*at != '\0') {
        mcpg_rank_info_t *r = &ranks[m.u.rank_states.count++];
        r->rank.v = (uint32_t)number(&at);
        at++;
        r->inc = (mcpg_incarnation_t){1, number(&at)};
        at++;
        r->state = (uint8_t)number(&at);
        r->endpoint = (mcpg_bytes_t){endpoint, 2};
        for (; *at != '\0' && *at != ' '; at++) {
            if (*at == 'd') r->dead = true;
            if (*at == 's') r->suspect = true;
            if (*at == 'n') r->endpoint.len = 0;
        }
        while (*at == ' ') at++;
    }
    deliver(t, &m);
}

/* members GID slot:rank:inc ... : awaiting in every slot that has an incarnation */
static inline void run_members(script_t *t, const char *at) {
    mcpg_group_member_t members[16];
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_MEMBERS};
    m.u.members.gid.v = (uint32_t)number(&at);
    m.u.members.count = read_members(&at, t->members);
    m.u.members.members = members;
    for (uint32_t i = 0; i < m.u.members.count; i++)
        members[i] = (mcpg_group_member_t){.slot = t->members[i].slot,
                                           .rank = t->members[i].rank,
                                           .inc = t->members[i].inc,
                                           .awaiting = t->members[i].inc.counter != 0};
    deliver(t, &m);
}

/* commit GID EPOCH SWITCH slot:rank:inc ... [leave SLOT SEQ] [sync FAILED FIRST] */
static inline void run_commit(script_t *t, const char *at, bool told) {
    mcpg_leave_t leaves[4];
    char what[8];
    mcpg_down_msg_t m = {.kind = MCPG_DOWN_COMMIT};
    mcpg_down_commit_t *c = &m.u.commit;
    c->gid.v = (uint32_t)number(&at);
    c->view.id = read_view(&at);
    c->switch_seq = number(&at);
    c->view.active_count = read_members(&at, t->members);
    c->view.active = t->members;
    c->leaves = leaves;
    while (word(&at, what, sizeof(what))) {
        if (strcmp(what, "leave") == 0) {
            leaves[c->leave_count].slot.v = (uint32_t)number(&at);
            leaves[c->leave_count++].leave_seq = number(&at);
        } else {
            c->sync = true;
            c->sync_failed.w[0] = number(&at);
            c->sync_first_failed_seq = number(&at);
        }
    }
    if (told)
        relay(t, &m);
    else
        deliver(t, &m);
}

static inline bool run_answer(script_t *t, const char *verb, const char *at) {
    static const uint8_t why[] = "why";
    char name[32];
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    if (strcmp(verb, "welcome") == 0) { /* TERM COORDINATOR INC [r]: it rebuilds */
        m.kind = MCPG_DOWN_WELCOME;
        m.u.welcome.term = number(&at);
        m.u.welcome.coordinator_id = number(&at);
        m.u.welcome.inc = (mcpg_incarnation_t){1, number(&at)};
        m.u.welcome.rebuilding = strchr(at, 'r') != NULL;
    } else if (strcmp(verb, "refused") == 0) {
        m.kind = MCPG_DOWN_REFUSED;
        assert_true(word(&at, name, sizeof(name)));
        m.u.refused.status = status_of(name);
        m.u.refused.text = (mcpg_bytes_t){why, 3};
    } else if (strcmp(verb, "registered") == 0) { /* CALL STATUS GID SLOT CAP [i][m][n] */
        m.kind = MCPG_DOWN_REGISTERED;
        m.u.registered.call_id = number(&at);
        assert_true(word(&at, name, sizeof(name)));
        m.u.registered.status = status_of(name);
        if (m.u.registered.status != MCPG_OK) m.u.registered.text = (mcpg_bytes_t){why, 3};
        m.u.registered.gid.v = (uint32_t)number(&at);
        m.u.registered.slot.v = (uint32_t)number(&at);
        m.u.registered.capacity = (uint32_t)number(&at);
        m.u.registered.isolated = strchr(at, 'i') != NULL;
        m.u.registered.manual = strchr(at, 'm') != NULL;
        m.u.registered.no_auto_sync = strchr(at, 'n') != NULL;
    } else if (strcmp(verb, "reply") == 0) { /* CALL STATUS EPOCH [DROPPED] */
        m.kind = MCPG_DOWN_REPLY;
        m.u.reply.call_id = number(&at);
        assert_true(word(&at, name, sizeof(name)));
        m.u.reply.status = status_of(name);
        if (m.u.reply.status != MCPG_OK) m.u.reply.text = (mcpg_bytes_t){why, 3};
        m.u.reply.epoch = number(&at);
        if (*at == ' ') m.u.reply.dropped.w[0] = number(&at);
        m.u.reply.dropped_any = m.u.reply.dropped.w[0] != 0;
    } else if (strcmp(verb, "hb") == 0) {
        m.kind = MCPG_DOWN_HEARTBEAT_REPLY;
    } else {
        return false;
    }
    deliver(t, &m);
    return true;
}

static inline bool run_msg(script_t *t, const char *verb, const char *at) {
    mcpg_down_msg_t m;
    memset(&m, 0, sizeof(m));
    if (strcmp(verb, "states") == 0) return run_states(t, at), true;
    if (strcmp(verb, "members") == 0) return run_members(t, at), true;
    if (strcmp(verb, "commit") == 0) return run_commit(t, at, false), true;
    if (strcmp(verb, "told-commit") == 0) return run_commit(t, at, true), true;
    if (strcmp(verb, "prepare") == 0) { /* GID EPOCH slot:rank:inc ... */
        m.kind = MCPG_DOWN_PREPARE;
        m.u.prepare.gid.v = (uint32_t)number(&at);
        m.u.prepare.view.id = read_view(&at);
        m.u.prepare.view.active_count = read_members(&at, t->members);
        m.u.prepare.view.active = t->members;
    } else if (strcmp(verb, "abort") == 0) {
        m.kind = MCPG_DOWN_ABORT;
        m.u.abort.gid.v = (uint32_t)number(&at);
        m.u.abort.view = read_view(&at);
    } else if (strcmp(verb, "told-abort") == 0) {
        m.kind = MCPG_DOWN_ABORT;
        m.u.abort.gid.v = (uint32_t)number(&at);
        m.u.abort.view = read_view(&at);
        relay(t, &m);
        return true;
    } else if (strcmp(verb, "reconciled") == 0) { /* GID REPORT CLEARED */
        m.kind = MCPG_DOWN_RECONCILED;
        m.u.reconciled.gid.v = (uint32_t)number(&at);
        m.u.reconciled.report_id = number(&at);
        m.u.reconciled.cleared.w[0] = number(&at);
    } else if (strcmp(verb, "syncing") == 0) {
        m.kind = MCPG_DOWN_SYNCING;
        m.u.syncing.gid.v = (uint32_t)number(&at);
    } else {
        return run_answer(t, verb, at);
    }
    deliver(t, &m);
    return true;
}

/* register CALL CAP flags(e m n -) TIMEOUT rank ... */
static inline void read_register(script_t *t, const char *at, mcpg_agent_call_register_t *r) {
    static const uint8_t kind[] = "cpu";
    char flags[8];
    r->call_id = number(&at);
    r->capacity = (uint32_t)number(&at);
    assert_true(word(&at, flags, sizeof(flags)));
    r->is_extension = strchr(flags, 'e') != NULL;
    r->manual = strchr(flags, 'm') != NULL;
    r->no_auto_sync = strchr(flags, 'n') != NULL;
    r->timeout_us = number(&at);
    r->device_kind = (mcpg_bytes_t){kind, 3};
    r->order = t->order;
    while (*at != '\0') t->order[r->order_count++] = (uint32_t)number(&at);
}

static inline bool read_call(script_t *t, const char *verb, const char *at, mcpg_agent_event_t *e) {
    if (strcmp(verb, "register") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_REGISTER;
        read_register(t, at, &e->u.call_register);
    } else if (strcmp(verb, "join") == 0) { /* CALL GID TIMEOUT */
        e->kind = MCPG_AGENT_EV_CALL_JOIN;
        e->u.call_join.call_id = number(&at);
        e->u.call_join.gid.v = (uint32_t)number(&at);
        e->u.call_join.timeout_us = number(&at);
    } else if (strcmp(verb, "propose") == 0) { /* CALL GID ACTIVATE DEACTIVATE WAIT */
        e->kind = MCPG_AGENT_EV_CALL_PROPOSE;
        e->u.call_propose.call_id = number(&at);
        e->u.call_propose.gid.v = (uint32_t)number(&at);
        e->u.call_propose.activate.w[0] = number(&at);
        e->u.call_propose.deactivate.w[0] = number(&at);
        e->u.call_propose.wait_us = number(&at);
        e->u.call_propose.expected_epoch = MCPG_ANY_EPOCH;
    } else if (strcmp(verb, "sync") == 0) { /* CALL GID FAILED FIRST TIMEOUT; FIRST 0: none */
        e->kind = MCPG_AGENT_EV_CALL_SYNC;
        e->u.call_sync.call_id = number(&at);
        e->u.call_sync.gid.v = (uint32_t)number(&at);
        e->u.call_sync.failed.w[0] = number(&at);
        e->u.call_sync.first_failed_seq = number(&at);
        if (e->u.call_sync.first_failed_seq == 0) e->u.call_sync.first_failed_seq = MCPG_NO_SEQ;
        e->u.call_sync.timeout_us = number(&at);
    } else if (strcmp(verb, "leave") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_LEAVE;
        e->u.call_leave.call_id = number(&at);
        e->u.call_leave.gid.v = (uint32_t)number(&at);
        if (*at == ' ') e->u.call_leave.next_seq = number(&at); /* optional */
    } else if (strcmp(verb, "detach") == 0) {
        e->kind = MCPG_AGENT_EV_CALL_DETACH;
        e->u.call_detach.call_id = number(&at);
    } else {
        return false;
    }
    return true;
}

static inline bool read_event(script_t *t, const char *verb, const char *at, mcpg_agent_event_t *e) {
    char what[8];
    if (strcmp(verb, "timer") == 0) {
        e->kind = MCPG_AGENT_EV_TIMER;
    } else if (strcmp(verb, "connected") == 0) {
        e->kind = MCPG_AGENT_EV_CONNECTED;
    } else if (strcmp(verb, "disconnected") == 0) {
        e->kind = MCPG_AGENT_EV_DISCONNECTED;
    } else if (strcmp(verb, "link") == 0) { /* RANK INC up|lost CHECK */
        e->kind = MCPG_AGENT_EV_LINK;
        e->u.link.rank.v = (uint32_t)number(&at);
        e->u.link.inc = (mcpg_incarnation_t){1, number(&at)};
        assert_true(word(&at, what, sizeof(what)));
        e->u.link.state = strcmp(what, "up") == 0 ? MCPG_LINK_UP : MCPG_LINK_LOST;
        e->u.link.check_id = number(&at);
    } else if (strcmp(verb, "death") == 0) {
        e->kind = MCPG_AGENT_EV_DEATH;
        e->u.death.rank.v = (uint32_t)number(&at);
        e->u.death.inc = (mcpg_incarnation_t){1, number(&at)};
    } else if (strcmp(verb, "opfailed") == 0) { /* GID REPORT SEQ slot:rank:inc ... */
        e->kind = MCPG_AGENT_EV_OP_FAILED;
        e->u.op_failed.gid.v = (uint32_t)number(&at);
        e->u.op_failed.report_id = number(&at);
        e->u.op_failed.seq = number(&at);
        e->u.op_failed.failed_count = read_members(&at, t->members);
        e->u.op_failed.failed = t->members;
    } else if (strcmp(verb, "held") == 0) { /* GID EPOCH SEQ */
        e->kind = MCPG_AGENT_EV_HELD;
        e->u.held.gid.v = (uint32_t)number(&at);
        e->u.held.view = read_view(&at);
        e->u.held.next_seq = number(&at);
    } else if (strcmp(verb, "asked") == 0) { /* RANK INC GID VIEW */
        e->kind = MCPG_AGENT_EV_VIEW_ASKED;
        e->u.view_asked.rank.v = (uint32_t)number(&at);
        e->u.view_asked.inc = (mcpg_incarnation_t){1, number(&at)};
        e->u.view_asked.gid.v = (uint32_t)number(&at);
        e->u.view_asked.view = read_view(&at);
    } else {
        return read_call(t, verb, at, e);
    }
    return true;
}

/* Besides events: "+N" advances the clock; "fire" lets the armed timer come; "armed" shows it. */
static inline void run_line(script_t *t, const char *line) {
    char verb[16];
    const char *at = line;
    t->out_len = 0;
    t->out[0] = '\0';
    if (*at == '+') {
        at++;
        t->now.us += number(&at);
    }
    if (!word(&at, verb, sizeof(verb))) return;
    mcpg_agent_event_t e;
    memset(&e, 0, sizeof(e));
    if (strcmp(verb, "armed") == 0) {
        if (t->armed == UINT64_MAX)
            say(t, "never");
        else
            say(t, "%lld", (long long)(t->armed - t->now.us));
        return;
    }
    if (strcmp(verb, "fire") == 0) {
        assert_true(t->armed != UINT64_MAX);
        if (t->armed > t->now.us) t->now.us = t->armed;
        e.kind = MCPG_AGENT_EV_TIMER;
    } else if (run_msg(t, verb, at)) {
        return;
    } else if (!read_event(t, verb, at, &e)) {
        fail_msg("no such line: %s", line);
    }
    e.now = t->now;
    step(t, &e);
}

static inline void run_script(script_t *t, const line_t *lines, size_t count) {
    for (size_t i = 0; i < count; i++) {
        run_line(t, lines[i].event);
        if (strcmp(t->out, lines[i].effects) != 0)
            fail_msg("line %zu: %s\n  expected: %s\n  got:      %s", i, lines[i].event, lines[i].effects, t->out);
    }
}

/* Rank 1 attached with incarnation 11; ranks 0, 2, 3 (incarnations 10, 12, 13) HEALTHY, links up. */
static const line_t script_attach[] = {
    {"timer", "CONNECT"},
    {"connected", "ATTACH 1 prev 0"},
    {"welcome 1 9 11", "ATTACHED OK"},
    {"states full 0 0:10:2 1:11:2 2:12:2 3:13:2",
     "OPEN 0:10 ep; NOTIFY rank 0 2; NOTIFY rank 1 2; OPEN 2:12 ep; NOTIFY rank 2 2; OPEN 3:13 ep; NOTIFY rank 3 2"},
    {"link 0 10 up 0", "LINK 0:10 up"},
    {"link 2 12 up 0", "LINK 2:12 up"},
    {"link 3 13 up 0", "LINK 3:13 up"},
};
/* And a founder of group 7 = {0, 1, 2, 3}, view 1 committed. */
static const line_t script_found[] = {
    {"register 90 4 - 1000000 0 1 2 3", "REGISTER 5a cap 4 order 0 1 2 3"},
    {"registered 90 OK 7 1 4", "GROUP g7 slot 1 cap 4"},
    {"members 7 0:0:10 1:1:11 2:2:12 3:3:13", ""},
    {"prepare 7 1 0:0:10 1:1:11 2:2:12 3:3:13", "HOLD g7:1"},
    {"held 7 1 0", "ACK g7:1 @0"},
    {"commit 7 1 0 0:0:10 1:1:11 2:2:12 3:3:13",
     "INSTALL g7:1 @0 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:1; DONE 90 OK g7 slot 1 :1; NOTIFY view g7:1"},
};
#define COUNT(a)      (sizeof(a) / sizeof((a)[0]))
#define RUN(t, lines) run_script((t), (lines), COUNT(lines))

static inline int script_setup(void **state) {
    script_t *t = malloc(sizeof(*t));
    mcpg_agent_config_t config = script_config();
    script_open(t, &config);
    *state = t;
    return 0;
}
static inline int script_setup_found(void **state) {
    if (script_setup(state) != 0) return -1;
    RUN((script_t *)*state, script_attach);
    RUN((script_t *)*state, script_found);
    return 0;
}
static inline int script_teardown(void **state) {
    script_close((script_t *)*state);
    free(*state);
    return 0;
}
#define FRESH(f) cmocka_unit_test_setup_teardown(f, script_setup, script_teardown)
#define FOUND(f) cmocka_unit_test_setup_teardown(f, script_setup_found, script_teardown)

#endif
