/* test_agent_view.c: PREPARE, HELD, ACK, COMMIT, ABORT, SYNCING in the agent machine, with what is late, doubled or
 * stale. */
#include "unit/test_agent_script.h"

static void commit_order(void **state) {
    static const line_t lines[] = {
        {"opfailed 7 1 5 3:3:13", "OP_FAILED g7 #1 @5 3:3:13"},
        {"sync 91 7 8 5 1000000", "SYNC_ENTER 91 g7 8 @5"},
        {"syncing 7", "FENCE g7"},
        {"syncing 7", ""},
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"held 7 2 8", "ACK g7:2 @8"},
        {"commit 7 2 4294967296 0:0:10 1:1:11 2:2:12 leave 3 6 sync 8 5",
         "INSTALL g7:2 @4294967296 0:0:10 1:1:11 2:2:12 leave 3@6 sync; COMMIT_ACK g7:2; RESOLVE g7 #1 OK; DONE 91 OK "
         "g7 slot 1 :2 failed 8 "
         "first 5 resume 4294967296; NOTIFY view g7:2"},
        {"syncing 7", "FENCE g7"}, /* another one */
    };
    RUN((script_t *)*state, lines);
}

static void duplicates(void **state) {
    static const line_t lines[] = {
        {"commit 7 1 0 0:0:10 1:1:11 2:2:12 3:3:13", "COMMIT_ACK g7:1"}, /* acknowledged again, not installed again */
        {"prepare 7 1 0:0:10 1:1:11 2:2:12 3:3:13", ""},                 /* committed */
        {"prepare 7 3 0:0:10 1:1:11 2:2:12", "HOLD g7:3"},
        {"prepare 7 3 0:0:10 1:1:11 2:2:12", ""}, /* HELD is on its way */
        {"held 7 2 8", ""},                       /* of no view in preparation */
        {"held 7 3 8", "ACK g7:3 @8"},
        {"held 7 3 9", ""},
        {"prepare 7 3 0:0:10 1:1:11 2:2:12", "ACK g7:3 @8"},
        {"prepare 7 2 0:0:10 1:1:11", ""}, /* lower than the highest */
        {"commit 7 2 5 0:0:10 1:1:11 2:2:12",
         "INSTALL g7:2 @5 0:0:10 1:1:11 2:2:12; HOLD g7:3; COMMIT_ACK g7:2; NOTIFY view g7:2"}, /* the later hold still
                                                                                                   stands */
        {"held 7 3 8", "ACK g7:3 @8"},
        {"commit 7 1 0 0:0:10 1:1:11 2:2:12 3:3:13", ""},
        {"commit 7 3 8 0:0:10 1:1:11", "INSTALL g7:3 @8 0:0:10 1:1:11; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"commit 8 3 8 0:0:10 1:1:11", ""}, /* no such group */
    };
    RUN((script_t *)*state, lines);
}

static void aborted(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"abort 7 2", "RELEASE g7:2"},
        {"held 7 2 8", ""}, /* of the aborted view */
        {"abort 7 2", ""},
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", ""},
        {"abort 7 4", ""}, /* overtook its PREPARE */
        {"prepare 7 4 0:0:10 1:1:11 2:2:12", ""},
        {"prepare 7 5 0:0:10 1:1:11 2:2:12", "HOLD g7:5"},
        {"abort 7 4", ""}, /* an older one */
        {"held 7 5 9", "ACK g7:5 @9"},
        {"prepare 7 6 0:0:10 1:1:11", "ACK g7:5 @9"}, /* what became of 5 was lost: it comes first */
        {"abort 7 6", ""},                            /* not of what is held */
        {"abort 7 5", "RELEASE g7:5"},
        {"commit 7 5 9 0:0:10 1:1:11 2:2:12", ""}, /* not after its ABORT */
        {"prepare 7 6 0:0:10 1:1:11", ""},
        {"prepare 7 7 0:0:10 1:1:11", "HOLD g7:7"},
        {"prepare 7 8 0:0:10 1:1:11", "HOLD g7:8"}, /* nothing was promised for 7 yet */
        {"held 7 7 9", ""},
        {"held 7 8 9", "ACK g7:8 @9"},
        {"abort 7 8", "RELEASE g7:8"},
    };
    RUN((script_t *)*state, lines);
}

/* A peer's mistake is dropped, never believed and never a crash. */
static void malformed(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12 3:3:13 4:4:14", ""},
        {"prepare 7 2 1:1:11 0:0:10", ""},
        {"prepare 7 2 0:0:10 4:1:11", ""},
        {"prepare 7 2 0:0:10 1:8:11", ""},
        {"commit 7 2 0 1:1:11 1:1:11", ""},
        {"prepare 9 2 0:0:10", "LEAVE_GROUP g9"},
        {"abort 9 2", ""},
        {"syncing 9", ""},
        {"held 9 2 5", ""},
    };
    RUN((script_t *)*state, lines);
}

static void removed_and_replaced(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 2:2:12 3:3:13", "HOLD g7:2"}, /* this rank is removed: it is asked as well */
        {"held 7 2 4", "ACK g7:2 @4"},
        {"commit 7 2 6 0:0:10 2:2:12 3:3:13 leave 1 4",
         "INSTALL g7:2 @6 0:0:10 2:2:12 3:3:13 leave 1@4; COMMIT_ACK g7:2; NOTIFY view g7:2"},
        {"join 91 7 1000000", "JOIN 91 g7"},
        {"commit 7 3 6 0:0:10 1:1:99 2:2:12 3:3:13", /* somebody else in its slot */
         "INSTALL g7:3 @6 0:0:10 1:1:99 2:2:12 3:3:13; COMMIT_ACK g7:3; NOTIFY view g7:3"},
        {"commit 7 4 6 0:0:10 1:1:11 2:2:12 3:3:13",
         "INSTALL g7:4 @6 0:0:10 1:1:11 2:2:12 3:3:13; COMMIT_ACK g7:4; DONE 91 OK g7 slot 1 :4; NOTIFY view g7:4"},
    };
    RUN((script_t *)*state, lines);
}

/* Between ACK and COMMIT when contact is lost: it holds, and after coordinator_grace the held operations end in doubt.
 */
static void in_doubt(void **state) {
    static const line_t lines[] = {
        {"prepare 7 2 0:0:10 1:1:11 2:2:12", "HOLD g7:2"},
        {"disconnected", "NOTIFY lost"},
        {"held 7 2 40", ""}, /* nobody to tell: kept for the attach */
        {"fire", "ASK_VIEW g7:2"},
        {"fire", "CONNECT"},
        {"+1000000 timer", "ASK_VIEW g7:2"},
        {"+1000000 timer", "ASK_VIEW g7:2"},
        {"+1000000 timer", "ASK_VIEW g7:2"},
        {"+1000000 timer", "ASK_VIEW g7:2"},
        {"+1000000 timer", "DISCONNECT; ASK_VIEW g7:2"},
    };
    static const line_t back[] = {
        {"disconnected", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11 g7:1:2:40"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 up; LINK 2:12 up; LINK 3:13 up; COMMIT_ACK g7:1; ACK g7:2 @40"},
        {"+1000000 timer", "HEARTBEAT; ACK g7:2 @40"}, /* again while it is open */
        {"abort 7 2", "RELEASE g7:2"},
    };
    script_t *t = *state;
    RUN(t, lines);
    uint64_t lost_us = t->now.us - 5000000;
    for (uint32_t asked = 0; strcmp(t->out, "RESOLVE g7 #0 IN_DOUBT") != 0; asked++) {
        assert_true(asked < 40);
        run_line(t, "fire");
    }
    assert_true(t->now.us - lost_us >= 29900000 && t->now.us - lost_us < 30100000);
    run_line(t, "fire"); /* gives up once, asks on */
    assert_string_equal(t->out, "ASK_VIEW g7:2");
    RUN(t, back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOUND(commit_order), FOUND(duplicates),           FOUND(aborted),
        FOUND(malformed),    FOUND(removed_and_replaced), FOUND(in_doubt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
