/* test_agent_rebuild.c: another coordinator: what the agent machine tells it, what it obeys, and what it does while in
 * doubt. */
#include "unit/test_agent_script.h"

#define LOST                                                                                                           \
    {"disconnected", "NOTIFY lost"}, {"fire", "CONNECT"}, {                                                            \
        "connected", "ATTACH 1 prev 11 g7:1:0:0"                                                                       \
    }

/* REBUILD, REBUILD_END, then as after any re-attach; deaths that the old one knew are told as relayed. */
static void everything_is_told(void **state) {
    static const line_t lines[] = {
        {"states delta 0 3:13:0d", "CLOSE 3:13 dead; NOTIFY rank 3 0"},
        {"link 2 12 lost 0", "LINK 2:12 lost"},
        {"opfailed 7 1 5 2:2:12", "OP_FAILED g7 #1 @5 2:2:12"},
        {"sync 91 7 8 5 0", "SYNC_ENTER 91 g7 8 @5"},
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"abort 7 2", "RELEASE g7:2"},
        {"prepare 7 3 0:0:10 1:1:11", "HOLD g7:3"},
        {"held 7 3 8", "ACK g7:3 @8"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "ASK_VIEW g7:3"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:3:8"},
        {"welcome 2 1 11 r",
         "NOTIFY back; REBUILD g7:1.1 acked 3@8 0:0:10 1:1:11 aborted 2; LINK 0:10 up; LINK 2:12 lost; DEATH 3:13; "
         "REBUILD_END; COMMIT_ACK g7:1; ACK g7:3 @8; SYNC_ENTER 91 g7 8 @5; OP_FAILED g7 #1 @5 2:2:12"},
        {"states delta 0 2:12:1", "NOTIFY rank 2 1"}, /* what is not named is not forgotten */
        {"commit 7 3 8 0:0:10 1:1:11",
         "INSTALL g7:3 @8 0:0:10 1:1:11; COMMIT_ACK g7:3; RESOLVE g7 #1 OK; NOTIFY view g7:3"},
    };
    script_t *t = *state;
    RUN(t, lines);
    assert_int_equal(mcpg_agent_rank_state(t->agent, (mcpg_rank_t){0}), MCPG_RANK_HEALTHY);
}

/* REGISTERs wait for the first full list; what cannot be taken yet is sent again. */
static void registers_wait(void **state) {
    static const line_t lines[] = {
        LOST,
        {"welcome 2 1 11 r",
         "NOTIFY back; REBUILD g7:1.1; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; REBUILD_END; COMMIT_ACK g7:1"},
        {"register 3 2 - 90000000 0 1", ""},
        {"states delta 0 0:10:1", "NOTIFY rank 0 1"},
        {"states full 0 0:10:2 1:11:2 2:12:2 3:13:2", "NOTIFY rank 0 2; REGISTER 3 cap 2 order 0 1"},
        {"registered 3 UNAVAILABLE 0 0 0", ""},
        {"armed", "200000"},
        {"fire", "HEARTBEAT; REGISTER 3 cap 2 order 0 1"},
        {"registered 3 OK 1048578 1 2", "GROUP g1048578 slot 1 cap 2"},
    };
    RUN((script_t *)*state, lines);
}

/* A group without a view: its id dies with the coordinator that gave it. */
static void founders_start_over(void **state) {
    static const line_t lines[] = {
        {"register 3 2 - 90000000 0 1", "REGISTER 3 cap 2 order 0 1"},
        {"registered 3 OK 8 1 2", "GROUP g8 slot 1 cap 2"},
        {"members 8 0:0:10 1:1:11", ""},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0 g8:0:0:0"},
        {"welcome 2 1 11", "NOTIFY back; REBUILD g7:1.1; GONE g8; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; "
                           "REBUILD_END; REGISTER 3 cap 2 order 0 1; COMMIT_ACK g7:1"},
        {"registered 3 OK 1048577 1 2", "GROUP g1048577 slot 1 cap 2"},
        {"prepare 1048577 2.1 0:0:10 1:1:11", "HOLD g1048577:1"},
        {"held 1048577 2.1 0", "ACK g1048577:1 @0"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "ASK_VIEW g1048577:1"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0 g1048577:0:1:0"},
        {"welcome 3 1 11 r", /* its bootstrap barrier may have been committed: reported */
         "NOTIFY back; REBUILD g7:1.1; REBUILD g1048577 acked 1@0 0:0:10 1:1:11; LINK 0:10 up; LINK 2:12 up; LINK 3:13 "
         "up; REBUILD_END; COMMIT_ACK g7:1; ACK g1048577:1 @0"},
        {"abort 1048577 2.1", "RELEASE g1048577:1; GONE g1048577"}, /* nobody had it: forgotten */
        {"states full 0 0:10:2 1:11:2 2:12:2 3:13:2", "REGISTER 3 cap 2 order 0 1"},
        {"registered 3 OK 2097153 1 2", "GROUP g2097153 slot 1 cap 2"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0 g2097153:0:0:0"},
        {"welcome 3 1 21", /* the same one, but renewed */
         "NOTIFY back; CLOSE 0:10; CLOSE 2:12; CLOSE 3:13; GONE g2097153; REGISTER 8000000000000000 cap 4 ext order 0 "
         "1 2 3; REGISTER 3 cap 2 order 0 1"},
    };
    RUN((script_t *)*state, lines);
}

static void joiner_registers_again(void **state) {
    static const line_t lines[] = {
        {"register 1 4 e 0 0 1 2 3", "REGISTER 1 cap 4 ext order 0 1 2 3"},
        {"registered 1 OK 7 1 4 i", "GROUP g7 slot 1 cap 4 isolated; DONE 1 OK g7 slot 1 isolated"},
        {"join 2 7 9000000", "JOIN 2 g7"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:0:0:0"},
        {"welcome 2 1 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; REBUILD_END; REGISTER "
                           "8000000000000000 cap 4 ext order 0 1 2 3"},
        {"registered 9223372036854775808 OK 7 1 4 i", "JOIN 2 g7"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

/* In doubt: peers are asked each second; the COMMIT that one relays is acknowledged at the next attach. */
static void a_peer_relays_the_commit(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"held 7 2 8", "ACK g7:2 @8"},
        {"told-commit 7 2 9 0:0:10 1:1:11 2:2:12", ""}, /* attached: the coordinator says it itself */
        {"disconnected", "NOTIFY lost"},
        {"opfailed 7 1 5 3:3:13", ""},
        {"fire", "ASK_VIEW g7:2"},
        {"told-commit 7 1 0 0:0:10 1:1:11 2:2:12 3:3:13", ""}, /* older */
        {"told-commit 7 2.2 9 0:0:10 1:1:11", ""},             /* of a coordinator that it never attached to */
        {"told-abort 7 1", ""},
        {"told-abort 7 3", ""},
        {"told-commit 7 2 9 0:0:10 1:1:11 2:2:12 leave 3 0",
         "INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12 leave 3@0; RESOLVE g7 #1 OK; NOTIFY view g7:2"},
        {"told-commit 7 2 9 0:0:10 1:1:11 2:2:12", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:2:0:9"},
        {"welcome 2 1 11",
         "NOTIFY back; REBUILD g7:1.2; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; REBUILD_END; COMMIT_ACK g7:2"},
        {"asked 2 12 7 2", "TELL_VIEW 2:12 INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12 leave 3@0"},
        {"asked 2 12 7 1", "TELL_VIEW 2:12 INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12 leave 3@0"},
        {"asked 2 12 7 3", ""},
        {"asked 2 12 9 1", ""},
    };
    RUN((script_t *)*state, lines);
}

static void a_peer_relays_the_abort(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"held 7 2 8", "ACK g7:2 @8"},
        {"disconnected", "NOTIFY lost"},
        {"told-abort 7 2", "RELEASE g7:2"},
        {"asked 0 10 7 2", "TELL_VIEW 0:10 ABORT g7:2"},
        {"told-commit 7 2 9 0:0:10 1:1:11 2:2:12", ""}, /* not after that */
        {"fire", "CONNECT"},
    };
    RUN((script_t *)*state, lines);
}

/* What it reported to a newer coordinator is a promise: the older one's COMMIT, relayed later, is not taken. */
static void a_report_is_a_promise(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"held 7 2 8", "ACK g7:2 @8"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "ASK_VIEW g7:2"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:2:8"},
        {"welcome 2 1 11", "NOTIFY back; REBUILD g7:1.1 acked 2@8 0:0:10 1:1:11 2:2:12; LINK 0:10 up; LINK 2:12 up; "
                           "LINK 3:13 up; REBUILD_END; COMMIT_ACK g7:1; ACK g7:2 @8"},
        {"disconnected", "NOTIFY lost"},
        {"told-commit 7 2 9 0:0:10 1:1:11 2:2:12", ""},
        {"told-abort 7 2", "RELEASE g7:2"}, /* whoever made it: it is final */
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:8"},
        {"welcome 2 1 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; COMMIT_ACK g7:1"}, /* known there */
        {"prepare 7 1.9 0:0:10 1:1:11", ""}, /* not of the coordinator attached to */
        {"prepare 7 3.1 0:0:10 1:1:11", ""},
        {"commit 7 3.1 9 0:0:10 1:1:11", ""},
        {"abort 7 3.1", ""},
        {"prepare 7 2.1 0:0:10 1:1:11", "HOLD g7:1"},
        {"held 7 2.1 8", "ACK g7:1 @8"},
    };
    RUN((script_t *)*state, lines);
}

/* Another process has the rank now. */
static void superseded(void **state) {
    static const line_t lines[] = {
        {"sync 2 7 8 5 0", "SYNC_ENTER 2 g7 8 @5"},
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        LOST,
        {"refused INVALID_STATE", "DISCONNECT; DONE 2 INVALID_STATE 'why'; RESOLVE g7 #1 NOT_ACTIVE; RESOLVE g7 #0 "
                                  "NOT_ACTIVE"},
        {"disconnected", ""},
        {"armed", "never"},
        {"propose 3 7 0 8 0", "DONE 3 INVALID_STATE 'why'"},
        {"join 3 7 0", "DONE 3 OK :1"},
        {"register 3 2 - 0 0 1", "DONE 3 INVALID_STATE 'why'"},
        {"opfailed 7 2 6 3:3:13", "RESOLVE g7 #2 NOT_ACTIVE"},
        {"leave 3 7", "GONE g7; DONE 3 OK"},
        {"detach 4", "DONE 4 OK; STOP"},
    };
    RUN((script_t *)*state, lines);
}

/* The answer of a sync that this rank missed comes as the COMMIT that it has; it answers older failures only. */
static void sync_answered_again(void **state) {
    static const line_t lines[] = {
        {"commit 7 2 4294967296 0:0:10 1:1:11 2:2:12 sync 8 5",
         "INSTALL g7:2 @4294967296 0:0:10 1:1:11 2:2:12 sync; COMMIT_ACK g7:2; NOTIFY view g7:2"},
        {"sync 2 7 8 7 0", "SYNC_ENTER 2 g7 8 @7"},
        {"sync 3 7 4 4294967300 0", "SYNC_ENTER 3 g7 4 @4294967300"},
        {"commit 7 2 4294967296 0:0:10 1:1:11 2:2:12 sync 8 5",
         "COMMIT_ACK g7:2; DONE 2 OK g7 slot 1 :2 failed 8 first 5 resume 4294967296"},
        {"commit 7 3 4294967310 0:0:10 1:1:11",
         "INSTALL g7:3 @4294967310 0:0:10 1:1:11; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"sync 4 7 8 7 0", "SYNC_ENTER 4 g7 8 @7"},
        {"commit 7 2 4294967296 0:0:10 1:1:11 2:2:12 sync 8 5", /* not installed again, but it is the answer (I8) */
         "DONE 4 OK g7 slot 1 :3 failed 8 first 5 resume 4294967296"},
    };
    RUN((script_t *)*state, lines);
}

/* Stopped for a minute: neither an open call's nor the coordinator's time. */
static void stopped_for_a_minute(void **state) {
    static const line_t lines[] = {
        {"sync 2 7 8 5 2000000", "SYNC_ENTER 2 g7 8 @5"},
        {"+60000000 hb", ""},
        {"timer", "HEARTBEAT"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"+60000000 connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; COMMIT_ACK g7:1; SYNC_ENTER 2 g7 8 "
                           "@5"},
        {"commit 7 2 4294967296 0:0:10 1:1:11 sync 8 5",
         "INSTALL g7:2 @4294967296 0:0:10 1:1:11 sync; COMMIT_ACK g7:2; DONE 2 OK g7 slot 1 :2 failed 8 first 5 resume "
         "4294967296; NOTIFY view g7:2"},
    };
    RUN((script_t *)*state, lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOUND(everything_is_told),       FOUND(registers_wait),
        FOUND(founders_start_over),      FRESH(joiner_registers_again),
        FOUND(a_peer_relays_the_commit), FOUND(a_peer_relays_the_abort),
        FOUND(a_report_is_a_promise),    FOUND(superseded),
        FOUND(sync_answered_again),      FOUND(stopped_for_a_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
