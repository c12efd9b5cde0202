/* test_agent_session.c: attach, refusals, heartbeats, silence, back-off, re-attach, detach of the agent machine. */
#include "unit/test_agent_script.h"

static void first_attach(void **state) {
    script_t *t = *state;
    RUN(t, script_attach);
    static const line_t after[] = {
        {"armed", "200000"},         {"fire", "HEARTBEAT"}, {"armed", "200000"}, {"hb", ""},
        {"fire", "HEARTBEAT"},       {"timer", ""}, /* too early: nothing is due */
        {"welcome 1 9 11", ""},                     /* again: not awaited any more */
        {"refused RANK_IN_USE", ""}, {"connected", ""},
    };
    RUN(t, after);
    mcpg_incarnation_t inc;
    assert_true(mcpg_agent_attached(t->agent, &inc));
    assert_true(inc.term == 1 && inc.counter == 11);
    assert_int_equal(mcpg_agent_rank_state(t->agent, (mcpg_rank_t){2}), MCPG_RANK_HEALTHY);
    assert_int_equal(mcpg_agent_rank_state(t->agent, (mcpg_rank_t){700}), MCPG_RANK_OFFLINE);
}

static void version_is_final(void **state) {
    static const line_t lines[] = {
        {"timer", "CONNECT"},
        {"connected", "ATTACH 1 prev 0"},
        {"refused VERSION_MISMATCH", "DISCONNECT; ATTACHED VERSION_MISMATCH 'why'"},
        {"disconnected", ""},
        {"armed", "never"},
        {"register 5 2 - 1000 0 1", "DONE 5 UNAVAILABLE 'the coordinator refused this process: create a new context'"},
        {"detach 6", "DONE 6 OK; STOP"},
    };
    RUN((script_t *)*state, lines);
}

static void shutting_down_is_final_at_first(void **state) {
    static const line_t lines[] = {
        {"timer", "CONNECT"},
        {"connected", "ATTACH 1 prev 0"},
        {"refused SHUTTING_DOWN", "DISCONNECT; ATTACHED SHUTTING_DOWN 'why'"},
    };
    RUN((script_t *)*state, lines);
}

/* Tried again with a growing delay until the attach time-out, which reports the refusal. */
static void rank_in_use(void **state) {
    script_t *t = *state;
    run_line(t, "timer");
    uint64_t last = 0;
    for (int i = 0; i < 8; i++) {
        static const line_t round[] = {
            {"connected", "ATTACH 1 prev 0"}, {"refused RANK_IN_USE", "DISCONNECT"}, {"disconnected", ""}};
        RUN(t, round);
        uint64_t delay = t->armed - t->now.us, base = i < 6 ? (uint64_t)20000 << i : 1000000;
        assert_true(delay >= base - base / 4 && delay <= base + base / 4 && delay <= 1000000);
        assert_true(i >= 5 || delay > last);
        last = delay;
        run_line(t, "fire");
        assert_string_equal(t->out, "CONNECT");
    }
    static const line_t end[] = {
        {"connected", "ATTACH 1 prev 0"},
        {"fire", "DISCONNECT"}, /* no answer */
        {"fire", "DISCONNECT; ATTACHED RANK_IN_USE 'why'"},
        {"disconnected", ""},
        {"armed", "never"},
    };
    RUN(t, end);
}

static void nobody_answers(void **state) {
    static const line_t lines[] = {
        {"timer", "CONNECT"},
        {"armed", "5000000"},
        {"disconnected", ""},
        {"disconnected", ""}, /* twice: told once */
        {"fire", "CONNECT"},
        {"fire", "DISCONNECT"}, /* no answer for offline_us: given up, but not tried again while it is open */
        {"+1000000 timer", ""},
        {"connected", ""}, /* of the stream that was given up */
        {"disconnected", ""},
        {"timer", "CONNECT"},
        {"connected", "ATTACH 1 prev 0"},
        {"+60000000 timer", "DISCONNECT"}, /* of which this process ran for 5 s */
        {"fire",
         "DISCONNECT; ATTACHED UNAVAILABLE 'no coordinator answered within 30000 ms: check its address and that it is "
         "running'"},
        {"armed", "never"},
    };
    RUN((script_t *)*state, lines);
}

static void silence(void **state) {
    script_t *t = *state;
    RUN(t, script_attach);
    for (int i = 0; i < 24; i++) {
        run_line(t, "fire");
        assert_string_equal(t->out, "HEARTBEAT");
    }
    static const line_t lines[] = {
        {"fire", "DISCONNECT; NOTIFY lost"},
        {"hb", ""}, /* what the old stream still delivers is not heard */
        {"armed", "5000000"},
        {"disconnected", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up"},
    };
    RUN(t, lines);
}

/* A pause of this process itself is not the coordinator's silence. */
static void own_pause(void **state) {
    static const line_t lines[] = {
        {"armed", "200000"},
        {"+60000000 timer", "HEARTBEAT"},
        {"hb", ""},
        {"fire", "HEARTBEAT"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

/* The stream breaks; what was said and not surely heard is said again. */
static void reattach_same(void **state) {
    static const line_t lines[] = {
        {"link 2 12 lost 0", "LINK 2:12 lost"},
        {"death 3 13", "DEATH 3:13"},
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"held 7 2 40", "ACK g7:2 @40"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "ASK_VIEW g7:2"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:2:40"},
        {"welcome 1 9 11",
         "NOTIFY back; LINK 0:10 up; LINK 2:12 lost; LINK 3:13 up; DEATH 3:13; COMMIT_ACK g7:1; ACK g7:2 @40"},
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "ACK g7:2 @40"},
    };
    RUN((script_t *)*state, lines);
}

/* A view was committed without this rank: new incarnation, new links, registered again as a replacement of itself. */
static void reattach_renewed(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12 3:3:13", "HOLD g7:2"},
        {"opfailed 7 1 5 2:2:12", "OP_FAILED g7 #1 @5 2:2:12"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 21", "NOTIFY back; CLOSE 0:10; CLOSE 2:12; CLOSE 3:13; REGISTER 8000000000000000 cap 4 ext order "
                           "0 1 2 3; RELEASE g7:2; RESOLVE g7 #1 NOT_ACTIVE"},
        {"held 7 2 3", ""},
        {"join 91 7 1000000", ""}, /* sent when the registration is back */
        {"states full 0 0:10:2 1:21:1 2:12:2 3:13:2", "OPEN 0:10 ep; NOTIFY rank 1 1; OPEN 2:12 ep; OPEN 3:13 ep"},
        {"registered 9223372036854775808 OK 7 1 4 i", "JOIN 91 g7"},
        {"members 7 0:0:10 1:1:21 2:2:12 3:3:13", ""},
        {"commit 7 3 9 0:0:10 2:2:12 3:3:13",
         "INSTALL g7:3 @9 0:0:10 2:2:12 3:3:13; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"prepare 7 4 0:0:10 1:1:21 2:2:12 3:3:13", "HOLD g7:4"},
        {"held 7 4 3", "ACK g7:4 @3"},
        {"commit 7 4 20 0:0:10 1:1:21 2:2:12 3:3:13",
         "INSTALL g7:4 @20 0:0:10 1:1:21 2:2:12 3:3:13; COMMIT_ACK g7:4; DONE 91 OK g7 slot 1 :4; NOTIFY view g7:4"},
    };
    RUN((script_t *)*state, lines);
}

/* The same, but the group is over or has no place for it: calls end, what the coordinator founded by mistake is left.
 */
static void reattach_without_group(void **state) {
    static const line_t lines[] = {
        {"disconnected", "NOTIFY lost"},
        {"join 90 7 0", "DONE 90 OK :1"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 21",
         "NOTIFY back; CLOSE 0:10; CLOSE 2:12; CLOSE 3:13; REGISTER 8000000000000000 cap 4 ext order 0 1 2 3"},
        {"join 91 7 0", ""},
        {"registered 9223372036854775808 OK 8 1 4 i",
         "LEAVE_GROUP g8; DONE 91 NOT_FOUND 'the group went on without this process: destroy it and create it again'"},
        {"join 92 7 0", "DONE 92 NOT_FOUND 'the group went on without this process: destroy it and create it again'"},
        {"propose 92 7 0 8 0",
         "DONE 92 NOT_FOUND 'the group went on without this process: destroy it and create it again'"},
        {"sync 92 7 8 5 0", "DONE 92 NOT_FOUND 'the group went on without this process: destroy it and create it "
                            "again'"},
        {"registered 9223372036854775808 NEEDS_EXTENSION 0 0 0", ""},
        {"join 92 7 0",
         "DONE 92 NEEDS_EXTENSION 'the group went on without this process: destroy it and create it again'"},
        {"leave 93 7", "GONE g7; LEAVE_GROUP g7; DONE 93 OK"},
        {"registered 9223372036854775808 OK 8 1 4", "LEAVE_GROUP g8"},
        {"registered 9223372036854775815 OK 8 1 4", "LEAVE_GROUP g8"},
    };
    RUN((script_t *)*state, lines);
}

/* An older coordinator is not obeyed. */
static void lower_term(void **state) {
    static const line_t lines[] = {
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 8 11", "DISCONNECT"}, /* the same term, another coordinator with a lower id */
        {"disconnected", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"refused SHUTTING_DOWN", "DISCONNECT"}, /* not final for who was attached: another may come */
        {"disconnected", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 2 1 11",
         "NOTIFY back; REBUILD g7:1.1; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; REBUILD_END; COMMIT_ACK g7:1"},
    };
    RUN((script_t *)*state, lines);
}

static void detach(void **state) {
    static const line_t lines[] = {
        {"propose 91 7 0 8 0", "PROPOSE 91 g7 +0 -8 wait 0 3:3:13"},
        {"sync 92 7 8 5 1000000", "SYNC_ENTER 92 g7 8 @5"},
        {"detach 93",
         "DETACH; DONE 91 SHUTTING_DOWN 'the context is being closed'; DONE 92 SHUTTING_DOWN 'the context is being "
         "closed'; DONE 93 OK; DISCONNECT; STOP"},
        {"disconnected", ""},
        {"timer", ""},
        {"join 94 7 1", "DONE 94 SHUTTING_DOWN 'the context has been closed: create a new one'"},
    };
    RUN((script_t *)*state, lines);
}

static void detach_before_attach(void **state) {
    static const line_t lines[] = {
        {"timer", "CONNECT"},
        {"register 4 2 - 0 0 1", ""},
        {"detach 5", "DONE 4 SHUTTING_DOWN 'the context is being closed'; ATTACHED SHUTTING_DOWN 'the context is being "
                     "closed'; DONE 5 OK; "
                     "DISCONNECT; STOP"},
    };
    RUN((script_t *)*state, lines);
}

static void rejects(void **state) {
    script_t *t = *state;
    mcpg_agent_config_t config = script_config();
    mcpg_agent_t *out = NULL;
    size_t size = mcpg_agent_size(&config);
    assert_int_equal(mcpg_agent_init(t->mem, size - 1, &config, &out), MCPG_LIMIT);
    config.rank.v = 8;
    assert_int_equal(mcpg_agent_init(t->mem, size, &config, &out), MCPG_INVALID_ARGUMENT);
    assert_null(out);
    RUN(t, script_attach);
    RUN(t, script_found);
    static const line_t lines[] = {
        {"sync 91 7 8 5 1000000", "SYNC_ENTER 91 g7 8 @5"},
        {"leave 91 7", "rejected INVALID_ARGUMENT"}, /* a call id that is open */
        {"join 0x8000000000000000 7 1", "rejected INVALID_ARGUMENT"},
        {"opfailed 7 1 5", "rejected INVALID_ARGUMENT"},
    };
    RUN(t, lines);
    mcpg_agent_event_t e = {.now = t->now, .kind = MCPG_AGENT_EV__COUNT};
    mcpg_agent_effects_reset(&t->fx);
    assert_int_equal(mcpg_agent_step(t->agent, &e, &t->fx), MCPG_INVALID_ARGUMENT);
    e.kind = MCPG_AGENT_EV_TIMER;
    t->fx.count = 1; /* not reset: the worst case would not fit */
    assert_int_equal(mcpg_agent_step(t->agent, &e, &t->fx), MCPG_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FRESH(first_attach),
        FRESH(version_is_final),
        FRESH(shutting_down_is_final_at_first),
        FRESH(rank_in_use),
        FRESH(nobody_answers),
        FRESH(silence),
        FRESH(own_pause),
        FOUND(reattach_same),
        FOUND(reattach_renewed),
        FOUND(reattach_without_group),
        FOUND(lower_term),
        FOUND(detach),
        FRESH(detach_before_attach),
        FRESH(rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
