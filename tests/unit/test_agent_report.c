/* test_agent_report.c: failed operations: what is waited for, and what ends the wait. */
#include "unit/test_agent_script.h"

static void left_by_commit(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 2:2:12 3:3:13", "OP_FAILED g7 #1 @5 2:2:12 3:3:13"},
        {"opfailed 7 1 5 2:2:12 3:3:13", ""}, /* offered again */
        {"opfailed 7 2 6 3:3:13", "OP_FAILED g7 #2 @6 3:3:13"},
        {"opfailed 7 3 6 3:3:13", "RESOLVE g7 #3 LIMIT"}, /* the table is full: the operation does not hang */
        {"commit 7 2 9 0:0:10 1:1:11 2:2:12",
         "INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12; COMMIT_ACK g7:2; RESOLVE g7 #2 OK; NOTIFY view g7:2"},
        {"opfailed 7 4 7 3:3:13", "RESOLVE g7 #4 OK"}, /* has left already */
        {"opfailed 7 5 7 2:2:11", "RESOLVE g7 #5 OK"}, /* another incarnation is active */
        {"reconciled 7 1 4", "RESOLVE g7 #1 OK"},      /* 3 has left, 2 was cleared */
        {"reconciled 7 1 4", ""},
    };
    RUN((script_t *)*state, lines);
}

static void cleared(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 2:2:12 3:3:13", "OP_FAILED g7 #1 @5 2:2:12 3:3:13"},
        {"reconciled 7 9 12", ""},
        {"reconciled 7 1 8", ""}, /* only one of them */
        {"reconciled 7 1 4", "RESOLVE g7 #1 OK"},
        {"opfailed 9 1 5 2:2:12", "RESOLVE g9 #1 OK"}, /* no such group here */
        {"opfailed 9 0 5 2:2:12", ""},
        {"reconciled 9 1 4", ""},
    };
    RUN((script_t *)*state, lines);
}

/* A view without this rank: nobody judges for it any more, and its operations do not hang. */
static void out_itself(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 2:2:12", "OP_FAILED g7 #1 @5 2:2:12"},
        {"opfailed 7 2 8 2:2:12", "OP_FAILED g7 #2 @8 2:2:12"},
        {"commit 7 2 9 0:0:10 2:2:12 leave 1 7", /* 5 it still finished with the others */
         "INSTALL g7:2 @9 0:0:10 2:2:12 leave 1@7; COMMIT_ACK g7:2; RESOLVE g7 #1 OK; RESOLVE g7 #2 NOT_ACTIVE; "
         "NOTIFY view g7:2"},
        {"opfailed 7 3 6 2:2:12", "RESOLVE g7 #3 OK"},
        {"commit 7 3 9 0:0:10", "INSTALL g7:3 @9 0:0:10; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"opfailed 7 4 6 0:0:10", "RESOLVE g7 #4 NOT_ACTIVE"},
    };
    RUN((script_t *)*state, lines);
}

static void replaced(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        {"commit 7 2 9 0:0:10 1:1:11 2:2:12 3:3:23",
         "INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12 3:3:23; COMMIT_ACK g7:2; RESOLVE g7 #1 OK; NOTIFY view g7:2"},
    };
    RUN((script_t *)*state, lines);
}

static void manual_waits_for_nothing(void **state) {
    static const line_t lines[] = {
        {"register 1 4 m 0 0 1 2 3", "REGISTER 1 cap 4 manual order 0 1 2 3"},
        {"registered 1 OK 7 1 4 m", "GROUP g7 slot 1 cap 4 manual"},
        {"commit 7 1 0 0:0:10 1:1:11 3:3:13",
         "INSTALL g7:1 @0 0:0:10 1:1:11 3:3:13; COMMIT_ACK g7:1; DONE 1 OK g7 slot 1 :1; NOTIFY view g7:1"},
        {"opfailed 7 0 5 3:3:13", "OP_FAILED g7 #0 @5 3:3:13"},
        {"opfailed 7 4 5 3:3:13", "OP_FAILED g7 #0 @5 3:3:13; RESOLVE g7 #4 OK"},
        {"disconnected", "NOTIFY lost"},
        {"opfailed 7 0 5 3:3:13", ""},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void no_auto_sync_waits_for_nothing(void **state) {
    static const line_t lines[] = {
        {"register 1 4 n 0 0 1 2 3", "REGISTER 1 cap 4 nosync order 0 1 2 3"},
        {"registered 1 OK 7 1 4 n", "GROUP g7 slot 1 cap 4 nosync"},
        {"opfailed 7 0 5 3:3:13", "OP_FAILED g7 #0 @5 3:3:13"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

/* While the coordinator is lost: a proof ends the wait, else one offline time after the loss. */
static void coordinator_lost(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        {"death 2 12", "DEATH 2:12"},
        {"disconnected", "NOTIFY lost"},
        {"opfailed 7 2 5 2:2:12", "RESOLVE g7 #2 OK"}, /* proved dead */
        {"opfailed 7 3 6 0:0:10", ""},
        {"death 3 13", "RESOLVE g7 #1 OK"},
        {"fire", "CONNECT"},
        {"+4900000 timer", ""},
        {"+90000 timer", "RESOLVE g7 #3 COORDINATOR_LOST"},
        {"opfailed 7 4 6 0:0:10", "RESOLVE g7 #4 COORDINATOR_LOST"}, /* at once from here on */
        {"disconnected", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 11",
         "NOTIFY back; LINK 0:10 up; LINK 2:12 up; DEATH 2:12; LINK 3:13 up; DEATH 3:13; COMMIT_ACK g7:1"},
        {"opfailed 7 5 6 0:0:10", "OP_FAILED g7 #5 @6 0:0:10"},
        {"disconnected", "NOTIFY lost"}, /* back within the time: told again, judged as ever */
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:0:0"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; DEATH 2:12; LINK 3:13 up; DEATH 3:13; COMMIT_ACK "
                           "g7:1; OP_FAILED g7 #5 @6 "
                           "0:0:10"},
        {"reconciled 7 5 1", "RESOLVE g7 #5 OK"},
    };
    RUN((script_t *)*state, lines);
}

/* A coordinator that has not heard from here for one offline time may have gone on without this rank: proof of death is
 * not enough any more. */
static void lease(void **state) {
    static const line_t lines[] = {
        {"fire", "HEARTBEAT"}, /* not answered: the last word that was heard is ATTACH */
        {"disconnected", "NOTIFY lost"},
        {"opfailed 7 1 5 3:3:13", ""},
        {"opfailed 7 2 5 2:2:12", ""},
        {"death 2 12", "RESOLVE g7 #2 OK"},
        {"fire", "CONNECT"},
        {"+4850000 death 3 13", ""},
        {"fire", "RESOLVE g7 #1 COORDINATOR_LOST"},
    };
    RUN((script_t *)*state, lines);
}

/* Nor is it when the view that was acknowledged leaves this rank out. */
static void acknowledged_away(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 2:2:12 3:3:13", "HOLD g7:2"},
        {"held 7 2 8", "ACK g7:2 @8"},
        {"disconnected", "NOTIFY lost"},
        {"death 3 13", ""},
        {"opfailed 7 1 5 3:3:13", ""},
        {"told-abort 7 2", "RELEASE g7:2; RESOLVE g7 #1 OK"},
        {"opfailed 7 2 5 3:3:13", "RESOLVE g7 #2 OK"},
    };
    RUN((script_t *)*state, lines);
}

/* A slot that was settled may come back: nobody would judge it again. */
static void settled_once(void **state) {
    static const line_t lines[] = {
        {"commit 7 2 9 0:0:10 1:1:11 2:2:12",
         "INSTALL g7:2 @9 0:0:10 1:1:11 2:2:12; COMMIT_ACK g7:2; NOTIFY view g7:2"},
        {"opfailed 7 1 5 2:2:12 3:3:13", "OP_FAILED g7 #1 @5 2:2:12 3:3:13"},
        {"commit 7 3 9 0:0:10 1:1:11 2:2:12 3:3:13",
         "INSTALL g7:3 @9 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"reconciled 7 1 4", "RESOLVE g7 #1 OK"},
    };
    RUN((script_t *)*state, lines);
}

/* What the coordinator had proved before it was lost counts as well. */
static void proved_before_the_loss(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        {"states delta 0 3:13:0d", "CLOSE 3:13 dead; NOTIFY rank 3 0"},
        {"disconnected", "NOTIFY lost; RESOLVE g7 #1 OK"},
    };
    RUN((script_t *)*state, lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOUND(left_by_commit),
        FOUND(cleared),
        FOUND(out_itself),
        FOUND(replaced),
        FRESH(manual_waits_for_nothing),
        FRESH(no_auto_sync_waits_for_nothing),
        FOUND(coordinator_lost),
        FOUND(lease),
        FOUND(acknowledged_away),
        FOUND(settled_once),
        FOUND(proved_before_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
