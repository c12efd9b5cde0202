/* test_agent_link.c: rank states, links and their evidence in the agent machine. */
#include "unit/test_agent_script.h"

static void repeated_states(void **state) {
    static const line_t lines[] = {
        {"states full 0 0:10:2 1:11:2 2:12:2 3:13:2", ""}, /* idempotent */
        {"states delta 0 2:12:1", "NOTIFY rank 2 1"},
        {"states delta 0 2:11:2", ""},                       /* of an older incarnation */
        {"states delta 0 9:99:2", ""},                       /* out of range */
        {"states delta 0 2:12:2 2:12:0", "NOTIFY rank 2 2"}, /* twice in one message: the first counts */
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void offline_ranks(void **state) {
    static const line_t lines[] = {
        {"states delta 0 2:12:0", "NOTIFY rank 2 0"}, /* unproved: the link stays */
        {"states delta 0 2:12:2", "NOTIFY rank 2 2"}, /* back: the same link */
        {"states delta 0 2:12:0d", "CLOSE 2:12 dead; NOTIFY rank 2 0"},
        {"states delta 0 2:12:0d", ""},
        {"link 2 12 lost 0", ""},                      /* of a dead process: nothing new */
        {"states delta 0 2:22:1n", "NOTIFY rank 2 1"}, /* replaced, endpoint not known yet */
        {"states delta 0 2:22:1", "OPEN 2:22 ep"},
        {"states delta 0 3:23:1",
         "CLOSE 3:13 dead; OPEN 3:23 ep; NOTIFY rank 3 1"}, /* replaced without a word between */
        {"link 3 13 lost 0", ""},                           /* I4 */
        {"link 3 23 up 0", "LINK 3:23 up"},
        {"states full 0 0:10:2 1:11:2 2:22:2", "NOTIFY rank 2 2; NOTIFY rank 3 0"}, /* 3 is forgotten, its link stays */
        {"states full 0 0:10:2 1:11:2 2:22:2 3:23:2", "NOTIFY rank 3 2"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void link_evidence(void **state) {
    static const line_t lines[] = {
        {"link 2 12 lost 0", "LINK 2:12 lost"},
        {"link 2 12 lost 0", ""}, /* each failed try says it again */
        {"link 2 12 up 0", "LINK 2:12 up"},
        {"link 2 12 up 0", "LINK 2:12 up"},
        {"link 1 11 up 0", ""},             /* this rank itself */
        {"link 4 14 up 0", "LINK 4:14 up"}, /* the peer was faster than the coordinator */
        {"states delta 0 4:14:1", "OPEN 4:14 ep; NOTIFY rank 4 1"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void suspects(void **state) {
    static const line_t lines[] = {
        {"states delta 7 2:12:2s 3:13:2s 1:11:2s", "CHECK 2:12 #7; CHECK 3:13 #7"}, /* never itself */
        {"link 2 12 up 7", "LINK 2:12 up #7"},
        {"link 3 13 lost 7", "LINK 3:13 lost #7"},
        {"link 3 13 lost 0", ""}, /* the same news */
        {"states delta 0 2:12:2 3:13:1", "NOTIFY rank 3 1"},
        {"states delta 8 4:14:1ns", "LINK 4:14 lost #8; NOTIFY rank 4 1"}, /* no link to check */
        {"states delta 9 3:13:0ds", "CLOSE 3:13 dead; LINK 3:13 lost #9; NOTIFY rank 3 0"},
        {"link 2 11 up 7", ""},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

static void deaths(void **state) {
    static const line_t lines[] = {
        {"death 2 12", "DEATH 2:12"},
        {"death 2 12", ""},
        {"death 2 11", ""},
        {"death 1 11", ""},
        {"states delta 0 2:12:0d", "CLOSE 2:12 dead; NOTIFY rank 2 0"},
        {"disconnected", "NOTIFY lost"},
        {"death 3 13", ""}, /* kept */
        {"link 0 10 lost 0", ""},
        {"fire", "CONNECT"},
        {"connected", "ATTACH 1 prev 11"},
        {"welcome 1 9 11", "NOTIFY back; LINK 0:10 lost; LINK 3:13 up; DEATH 3:13"},
    };
    script_t *t = *state;
    RUN(t, script_attach);
    RUN(t, lines);
}

int main(void) {
    const struct CMUnitTest tests[] = {FRESH(repeated_states), FRESH(offline_ranks), FRESH(link_evidence),
                                       FRESH(suspects), FRESH(deaths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
