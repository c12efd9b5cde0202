/* test_agent_call.c: every call of the API is answered exactly once: replies, time-outs, a lost coordinator. */
#include "unit/test_agent_script.h"

static void propose(void **state) {
    static const line_t lines[] = {
        {"propose 1 7 0 0xc 500", "PROPOSE 1 g7 +0 -c wait 500 2:2:12 3:3:13"}, /* stamps: what it means */
        {"propose 2 7 8 0 0", "PROPOSE 2 g7 +8 -0 wait 0"},
        {"propose 3 7 8 8 0", "DONE 3 INVALID_ARGUMENT 'a rank is to be activated and deactivated: name it once'"},
        {"propose 3 9 8 0 0", "DONE 3 NOT_FOUND 'this process has no such group: create it first'"},
        {"reply 1 OK 4 4", "DONE 1 OK :4 dropped 4"},
        {"reply 1 OK 4", ""}, /* again */
        {"reply 2 NOT_HEALTHY 4", "DONE 2 NOT_HEALTHY :4 'why'"},
        {"commit 7 4 9 0:0:10 1:1:11", "INSTALL g7:4 @9 0:0:10 1:1:11; COMMIT_ACK g7:4; NOTIFY view g7:4"},
        {"propose 4 7 0 0xc 0", "PROPOSE 4 g7 +0 -c wait 0"}, /* nothing active is meant */
    };
    RUN((script_t *)*state, lines);
}

static void propose_never_answered(void **state) {
    static const line_t lines[] = {
        {"propose 1 7 0 8 500", "PROPOSE 1 g7 +0 -8 wait 500 3:3:13"},
        {"+60000500 timer", "HEARTBEAT"}, /* this process did not run meanwhile: not the coordinator's time */
    };
    static const line_t after[] = {{"reply 1 OK 4", ""}};
    script_t *t = *state;
    RUN(t, lines);
    uint64_t begin_us = t->now.us;
    for (int i = 0; strstr(t->out, "DONE") == NULL; i++) {
        assert_true(i < 700);
        run_line(t, "hb");
        run_line(t, "fire");
    }
    assert_string_equal(t->out, "DONE 1 OUTCOME_UNKNOWN :1 'the coordinator did not answer within 60000 ms: read the "
                                "epoch'");
    assert_true(t->now.us - begin_us > 59000000 && t->now.us - begin_us <= 60000500);
    RUN(t, after);
}

static void sync_calls(void **state) {
    static const line_t lines[] = {
        {"sync 1 7 0 0 1000000", "DONE 1 NO_PENDING :1"}, /* nothing failed here and nobody waits */
        {"sync 1 9 0 0 1000000", "DONE 1 NOT_FOUND 'this process has no such group: create it first'"},
        {"syncing 7", "FENCE g7"},
        {"sync 2 7 0 0 1000000", "SYNC_ENTER 2 g7 0 @18446744073709551615"},
        {"commit 7 2 9 0:0:10 1:1:11 2:2:12", /* a barrier that was open before: not the answer */
         "INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12; COMMIT_ACK g7:2; NOTIFY view g7:2"},
        {"commit 7 3 4294967296 0:0:10 1:1:11 2:2:12 sync 8 5",
         "INSTALL g7:3 @4294967296 0:0:10 1:1:11 2:2:12 sync; COMMIT_ACK g7:3; DONE 2 OK g7 slot 1 :3 failed 8 first 5 "
         "resume 4294967296; "
         "NOTIFY view g7:3"},
        {"sync 3 7 0 0 1000000", "DONE 3 NO_PENDING :3"},
        {"sync 4 7 4 9 1000000", "SYNC_ENTER 4 g7 4 @9"},
        {"reply 4 CONFLICT 3", "DONE 4 CONFLICT :3 'why'"},
        {"sync 5 7 4 9 100000", "SYNC_ENTER 5 g7 4 @9"},
        {"fire", "SYNC_ENTER 5 g7 4 @9"}, /* shortly before its time is over it asks who is missing */
        {"fire", "DONE 5 TIMED_OUT :3 'no agreement within 100 ms: every active rank must call sync_after_failure; "
                 "waited for rank 0 and 2'"},
        {"hb", ""},
        {"sync 6 7 4 9 80000", "SYNC_ENTER 6 g7 4 @9"},
        {"fire", "SYNC_ENTER 6 g7 4 @9"},
        {"reply 6 IN_PROGRESS 3 4", ""},
        {"fire", "DONE 6 TIMED_OUT :3 'no agreement within 80 ms: not called by rank 2; every active rank must call "
                 "sync_after_failure'"},
    };
    RUN((script_t *)*state, lines);
}

/* Contact is lost: PROPOSE ends, the others go on after the re-attach. */
static void lost_while_open(void **state) {
    static const line_t lines[] = {
        {"propose 1 7 0 8 0", "PROPOSE 1 g7 +0 -8 wait 0 3:3:13"},
        {"sync 2 7 8 5 2000000", "SYNC_ENTER 2 g7 8 @5"},
        {"register 3 2 - 2000000 0 1", "REGISTER 3 cap 2 order 0 1"},
        {"disconnected", "NOTIFY lost; DONE 1 OUTCOME_UNKNOWN :1 'contact to the coordinator was lost before the "
                         "answer: read the epoch'"},
        {"propose 4 7 0 8 0", "DONE 4 UNAVAILABLE 'contact to the coordinator is lost: try again when it is back'"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; REGISTER 3 cap 2 order 0 1; "
                           "COMMIT_ACK g7:1; SYNC_ENTER 2 g7 8 @5"},
        {"reply 1 OK 2", ""},
        {"registered 3 OK 8 1 2", "GROUP g8 slot 1 cap 2"},
        {"disconnected", "NOTIFY lost"},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0 g8:0:0:0"},
        {"welcome 1 9 11", /* the registration itself was answered: not sent again */
         "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; COMMIT_ACK g7:1; SYNC_ENTER 2 g7 8 @5"},
        {"commit 8 1 0 0:0:10 1:1:11",
         "INSTALL g8:1 @0 0:0:10 1:1:11; COMMIT_ACK g8:1; DONE 3 OK g8 slot 1 :1; NOTIFY view g8:1"},
    };
    RUN((script_t *)*state, lines);
}

static void lost_until_timeout(void **state) {
    static const line_t lines[] = {
        {"disconnected", "NOTIFY lost"},
        {"sync 2 7 8 5 100000", ""},
        {"register 3 2 - 200000 0 1", ""},
        {"fire", "CONNECT"},
        {"+100000 timer",
         "DONE 2 UNAVAILABLE :1 'contact to the coordinator is lost and did not come back within 100 ms'"},
        {"+100000 timer",
         "DONE 3 UNAVAILABLE 'contact to the coordinator is lost and did not come back within 200 ms'"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; COMMIT_ACK g7:1"},
    };
    RUN((script_t *)*state, lines);
}

/* JOIN while lost, and a founder's registration that turns out to be a new incarnation's. */
/* As long as an operation waits for the judgement of its failed ranks, however long the caller would wait. */
static void sync_gives_up_with_the_coordinator(void **state) {
    static const line_t lines[] = {
        {"disconnected", "NOTIFY lost"},
        {"sync 2 7 8 5 60000000", ""},
        {"fire", "CONNECT"},
        {"+5000000 timer",
         "DISCONNECT; "
         "DONE 2 UNAVAILABLE :1 'contact to the coordinator is lost and did not come back within 5000 ms'"},
    };
    RUN((script_t *)*state, lines);
}

static void lost_joiner(void **state) {
    static const line_t lines[] = {
        {"register 1 4 e 0 0 1 2 3", "REGISTER 1 cap 4 ext order 0 1 2 3"},
        {"registered 1 OK 7 1 4 i", "GROUP g7 slot 1 cap 4 isolated; DONE 1 OK g7 slot 1 isolated"},
        {"join 2 7 9000000", "JOIN 2 g7"},
        {"disconnected", "NOTIFY lost"},
        {"join 3 7 9000000", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:0:0:0"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; JOIN 2 g7; JOIN 3 g7"},
        {"commit 7 5 30 0:0:10 1:1:11",
         "INSTALL g7:5 @30 0:0:10 1:1:11; COMMIT_ACK g7:5; DONE 2 OK g7 slot 1 :5; DONE 3 OK g7 slot 1 :5; "
         "NOTIFY view g7:5"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

/* Refused for good at a re-attach: nothing stays open. */
static void refused_for_good(void **state) {
    static const line_t lines[] = {
        {"sync 2 7 8 5 0", "SYNC_ENTER 2 g7 8 @5"},
        {"register 3 2 - 0 0 1", "REGISTER 3 cap 2 order 0 1"},
        {"registered 3 OK 8 1 2", "GROUP g8 slot 1 cap 2"},
        {"disconnected", "NOTIFY lost"},
        {"opfailed 7 1 5 3:3:13", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0 g8:0:0:0"},
        {"refused VERSION_MISMATCH", "DISCONNECT; DONE 2 UNAVAILABLE 'the coordinator refused this process: create a "
                                     "new context'; DONE 3 UNAVAILABLE 'the coordinator "
                                     "refused this process: create a new context'; GONE g8; RESOLVE g7 #1 NOT_ACTIVE; "
                                     "RESOLVE g7 #0 NOT_ACTIVE"},
        {"sync 4 7 8 5 0", "DONE 4 UNAVAILABLE 'the coordinator refused this process: create a new context'"},
        {"opfailed 7 2 6 3:3:13", "RESOLVE g7 #2 NOT_ACTIVE"},
        {"propose 5 7 0 8 0", "DONE 5 UNAVAILABLE 'the coordinator refused this process: create a new context'"},
        {"leave 5 7", "GONE g7; DONE 5 OK"},
        {"armed", "never"},
    };
    RUN((script_t *)*state, lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOUND(propose),
        FOUND(propose_never_answered),
        FOUND(sync_calls),
        FOUND(lost_while_open),
        FOUND(lost_until_timeout),
        FRESH(lost_joiner),
        FOUND(refused_for_good),
        FOUND(sync_gives_up_with_the_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
