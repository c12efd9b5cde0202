/* test_agent_group.c: register, members, join and leave in the agent machine. */
#include "unit/test_agent_script.h"

static void bad_declarations(void **state) {
    static const line_t lines[] = {
        {"register 1 2 - 0", "DONE 1 INVALID_ARGUMENT 'rank_order is empty: name the global rank of every slot'"},
        {"register 1 2 - 0 0 1 2",
         "DONE 1 INVALID_ARGUMENT 'max_group_size is smaller than group_size: raise it or pass 0'"},
        {"register 1 9 - 0 0 1", "DONE 1 INVALID_ARGUMENT 'max_group_size is above the limit of ranks: lower it'"},
        {"register 1 3 - 0 0 1 0", "DONE 1 INVALID_ARGUMENT 'rank_order names a rank twice: each rank has one slot'"},
        {"register 1 3 - 0 0 1 8",
         "DONE 1 INVALID_ARGUMENT 'rank_order names a rank above the limit: use ranks of this job'"},
        {"register 1 3 - 0 0 2",
         "DONE 1 INVALID_ARGUMENT 'rank_order does not contain this process's rank: only members create a group'"},
        {"join 2 7 0", "DONE 2 NOT_FOUND 'this process has no such group: create it first'"},
        {"leave 2 7", "DONE 2 NOT_FOUND 'this process has no such group'"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void tables_are_bounded(void **state) {
    static const line_t lines[] = {
        {"register 1 5 - 0 0 1", "REGISTER 1 cap 5 order 0 1"},
        {"register 2 4 - 0 1 2", "DONE 2 LIMIT 'this process has too many groups: destroy one first'"}, /* slots */
        {"register 3 3 - 0 1 2", "REGISTER 3 cap 3 order 1 2"},
        {"register 4 1 - 0 1", "DONE 4 LIMIT 'this process has too many groups: destroy one first'"}, /* groups */
        {"registered 1 WORLD_MISMATCH 0 0 0", "DONE 1 WORLD_MISMATCH 'why'"},
        {"register 5 4 - 0 1 3", "REGISTER 5 cap 4 order 1 3"},
        {"registered 3 OK 8 0 3", "GROUP g8 slot 0 cap 3"},
        {"registered 5 OK 9 0 4", "GROUP g9 slot 0 cap 4"},
        {"members 8 0:1:11 1:2:0", ""},
        {"members 9 0:1:11 1:3:0", ""},
        {"members 9 0:1:11 1:3:0 2:4:0 3:5:0 4:6:0", ""}, /* more than it has slots: not believed */
        {"leave 6 8",
         "DONE 3 ABORTED 'the group was destroyed'; GONE g8; LEAVE_GROUP g8; DONE 6 OK"}, /* slots of g9 move down */
        {"commit 9 1 0 0:1:11", "INSTALL g9:1 @0 0:1:11; COMMIT_ACK g9:1; DONE 5 OK g9 slot 0 :1; NOTIFY view g9:1"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
    mcpg_view_id_t id;
    mcpg_rankset_t active;
    mcpg_incarnation_t incs[4];
    assert_false(mcpg_agent_view(t->agent, (mcpg_gid_t){8}, &id, &active, incs, 4));
    assert_true(mcpg_agent_view(t->agent, (mcpg_gid_t){9}, &id, &active, incs, 4));
    assert_int_equal(id.epoch, 1);
    assert_int_equal(active.w[0], 1);
    assert_int_equal(incs[0].counter, 11);
}

static void calls_are_bounded(void **state) {
    static const line_t lines[] = {
        {"propose 1 7 0 8 0", "PROPOSE 1 g7 +0 -8 wait 0 3:3:13"},
        {"propose 2 7 0 8 0", "PROPOSE 2 g7 +0 -8 wait 0 3:3:13"},
        {"sync 3 7 8 5 0", "SYNC_ENTER 3 g7 8 @5"},
        {"sync 4 7 8 5 0", "SYNC_ENTER 4 g7 8 @5"},
        {"sync 5 7 8 5 0", "DONE 5 LIMIT 'too many calls are open in this process: wait for one to return'"},
        {"register 5 2 - 0 0 1", "DONE 5 LIMIT 'too many calls are open in this process: wait for one to return'"},
        {"reply 2 OK 2", "DONE 2 OK :2"},
        {"register 6 2 - 0 0 1", "REGISTER 6 cap 2 order 0 1"},
    };
    RUN((script_t *)*state, lines);
}

/* A founder's time-out names who is missing; the coordinator hears that the group ended here. */
static void founder_times_out(void **state) {
    static const line_t lines[] = {
        {"register 1 4 m 100000 0 1 2 3", "REGISTER 1 cap 4 manual order 0 1 2 3"},
        {"registered 1 OK 7 1 4 m", "GROUP g7 slot 1 cap 4 manual"},
        {"members 7 0:0:0 1:1:11 2:2:12 3:3:0", ""},
        {"states delta 0 2:12:1", "NOTIFY rank 2 1"},
        {"fire", "DONE 1 TIMED_OUT 'the group was not ready within 100 ms: rank 0 and 3 did not create the group, rank "
                 "2 is not HEALTHY (no "
                 "link to every other rank)'; GONE g7; LEAVE_GROUP g7"},
        {"prepare 7 1 0:0:10 1:1:11", "LEAVE_GROUP g7"}, /* it crossed the leave */
        {"commit 7 1 0 0:0:10 1:1:11", ""},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void registration_is_late(void **state) {
    static const line_t lines[] = {
        {"register 1 4 - 100000 0 1 2 3", "REGISTER 1 cap 4 order 0 1 2 3"},
        {"fire", "DONE 1 TIMED_OUT 'the coordinator did not answer the registration of the group within 100 ms'"},
        {"registered 1 OK 7 1 4", "LEAVE_GROUP g7"},
        {"registered 1 NEEDS_EXTENSION 0 0 0", ""},
        {"register 2 4 - 0 0 1 2 3", "REGISTER 2 cap 4 order 0 1 2 3"},
        {"prepare 7 1 0:0:10 1:1:11", ""}, /* perhaps this registration's: not disowned */
        {"registered 2 OK 7 1 5", "DONE 2 INTERNAL 'the coordinator's answer does not fit the declaration: check that "
                                  "both run the same version'; LEAVE_GROUP g7"},
        {"register 3 4 e 0 0 1 2 3", "REGISTER 3 cap 4 ext order 0 1 2 3"},
        {"registered 3 OK 7 1 4 i", "GROUP g7 slot 1 cap 4 isolated; DONE 3 OK g7 slot 1 isolated"},
        {"registered 3 OK 7 1 4 i", ""}, /* again */
        {"register 4 4 - 0 0 1 2 3", "REGISTER 4 cap 4 order 0 1 2 3"},
        {"registered 4 OK 7 1 4",
         "DONE 4 INVALID_STATE 'this process already has this group: destroy it first, or pass another group_key'"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void joiner(void **state) {
    static const line_t lines[] = {
        {"register 1 4 e 0 0 1 2 3", "REGISTER 1 cap 4 ext order 0 1 2 3"},
        {"registered 1 OK 7 1 4 i", "GROUP g7 slot 1 cap 4 isolated; DONE 1 OK g7 slot 1 isolated"},
        {"members 7 0:0:10 1:1:11 2:2:12 3:3:13", ""},
        {"commit 7 4 9 0:0:10 2:2:12 3:3:13", /* registered, not in it: it may know */
         "INSTALL g7:4 @9 0:0:10 2:2:12 3:3:13; COMMIT_ACK g7:4; NOTIFY view g7:4"},
        {"join 2 7 100000", "JOIN 2 g7"},
        {"reply 2 OK 4", ""}, /* not before its view is here */
        {"prepare 7 5 0:0:10 1:1:11 2:2:12 3:3:13", "HOLD g7:5"},
        {"held 7 5 0", "ACK g7:5 @0"},
        {"commit 7 5 30 0:0:10 1:1:11 2:2:12 3:3:13",
         "INSTALL g7:5 @30 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:5; DONE 2 OK g7 slot 1 :5; NOTIFY view g7:5"},
        {"join 3 7 100000", "DONE 3 OK :5"}, /* already */
        {"reply 2 NOT_AWAITING 5", ""},      /* answered long ago */
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
    for (uint32_t i = 0; i < 4; i++) assert_true(mcpg_agent_peer_ok(t->agent, (mcpg_gid_t){7}, (mcpg_slot_t){i}));
    assert_false(mcpg_agent_peer_ok(t->agent, (mcpg_gid_t){7}, (mcpg_slot_t){4}));
    run_line(t, "states delta 0 3:13:1");
    assert_false(mcpg_agent_peer_ok(t->agent, (mcpg_gid_t){7}, (mcpg_slot_t){3}));
    run_line(t, "states delta 0 3:23:2");
    assert_false(
        mcpg_agent_peer_ok(t->agent, (mcpg_gid_t){7}, (mcpg_slot_t){3})); /* the new process is not registered */
    run_line(t, "members 7 0:0:10 1:1:11 2:2:12 3:3:23");
    assert_true(mcpg_agent_peer_ok(t->agent, (mcpg_gid_t){7}, (mcpg_slot_t){3}));
}

static void joiner_times_out(void **state) {
    static const line_t lines[] = {
        {"register 1 4 e 0 0 1 2 3", "REGISTER 1 cap 4 ext order 0 1 2 3"},
        {"registered 1 OK 7 1 4 i", "GROUP g7 slot 1 cap 4 isolated; DONE 1 OK g7 slot 1 isolated"},
        {"join 2 7 100000", "JOIN 2 g7"},
        {"fire", "DONE 2 TIMED_OUT 'this rank was not activated within 100 ms: an active rank must call activate_ranks "
                 "with 1'"},
        {"join 3 7 100000", "JOIN 3 g7"},
        {"reply 3 NOT_FOUND 0", "DONE 3 NOT_FOUND 'why'"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void leave(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        {"propose 1 7 0 8 0", "PROPOSE 1 g7 +0 -8 wait 0 3:3:13"},
        {"prepare 7 2 0:0:10 1:1:11", "HOLD g7:2"},
        {"leave 2 7", "DONE 1 ABORTED 'the group was destroyed'; GONE g7; LEAVE_GROUP g7; DONE 2 OK"},
        {"held 7 2 5", ""},
        {"reply 1 OK 2", ""},
        {"reconciled 7 1 8", ""},
        {"members 7 0:0:10", ""},
        {"syncing 7", ""},
        {"abort 7 2", ""},
    };
    RUN((script_t *)*state, lines);
}

/* What the leaver finished counts: the number that it would have taken next goes with it. */
static void leave_after_work(void **state) {
    static const line_t lines[] = {
        {"leave 2 7 12", "GONE g7; LEAVE_GROUP g7 @12; DONE 2 OK"},
        /* The coordinator counts on this process in a group that it does not have: it hears that. Not of another's. */
        {"members 9 0:0:10 1:1:11", "LEAVE_GROUP g9"},
        {"members 9 0:0:10 1:1:0", ""},
        {"register 3 2 - 1000000 0 1", "REGISTER 3 cap 2 order 0 1"},
        {"members 9 0:0:10 1:1:11", ""}, /* perhaps it is this one: REGISTERED decides */
    };
    RUN((script_t *)*state, lines);
}

/* Destroyed while the coordinator is lost: told at the next attach. */
/* It held from 5 on: what it numbered since then it never did, and nobody may wait for that. */
static void leave_while_held(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11", "HOLD g7:2"},
        {"held 7 2 5", "ACK g7:2 @5"},
        {"leave 2 7 8", "GONE g7; LEAVE_GROUP g7 @5; DONE 2 OK"},
    };
    RUN((script_t *)*state, lines);
}

/* It was behind when a view that starts at 40 was installed: its own number is the lower one. */
static void leave_before_the_switch(void **state) {
    static const line_t lines[] = {
        {"commit 7 2 40 0:0:10 1:1:11 2:2:12 3:3:13",
         "INSTALL g7:2 @40 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:2; NOTIFY view g7:2"},
        {"leave 2 7 12", "GONE g7; LEAVE_GROUP g7 @12; DONE 2 OK"},
    };
    RUN((script_t *)*state, lines);
}

static void leave_later(void **state) {
    static const line_t lines[] = {
        {"disconnected", "NOTIFY lost"},
        {"leave 2 7 40", "GONE g7; DONE 2 OK"},
        {"leave 3 7", "DONE 3 NOT_FOUND 'this process has no such group'"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; LEAVE_GROUP g7 @40"},
    };
    RUN((script_t *)*state, lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FRESH(bad_declarations),     FRESH(tables_are_bounded),
        FOUND(calls_are_bounded),    FRESH(founder_times_out),
        FRESH(registration_is_late), FRESH(joiner),
        FRESH(joiner_times_out),     FOUND(leave),
        FOUND(leave_after_work),     FOUND(leave_later),
        FOUND(leave_while_held),     FOUND(leave_before_the_switch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
