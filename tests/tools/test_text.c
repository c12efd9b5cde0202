/* test_text.c: every message of an agent and every event of the coordinator says in its text all that the machine gets:
 * printed and read back it is the same. What is no such text is refused with the word that is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_host_codec.h"
#include "tools/text.h"
#include "unit/test_common_samples.h"

static uint8_t arena_a[MCPG_DECODE_ARENA_CAP], arena_b[MCPG_DECODE_ARENA_CAP];
static uint8_t wire_a[MCPG_MSG_CAP], wire_b[MCPG_MSG_CAP];

static char *printed(const mcpg_up_msg_t *msg) {
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    mcpg__text_up(out, msg);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void test_messages(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < MCPG_UP__COUNT; kind++) {
        for (uint32_t seed = 1; seed <= 200; seed++) {
            sample_t s = {.state = seed * 977u + kind,
                          .arena = {.base = arena_a, .cap = sizeof arena_a},
                          .size = seed % 4 == 0 ? 60 : 4};
            mcpg_up_msg_t msg = sample_up(&s, (mcpg_up_kind_t)kind), back;
            char *text = printed(&msg), *words = strdup(text), error[160] = "";
            mcpg_arena_t arena = {.base = arena_b, .cap = sizeof arena_b};
            if (!mcpg__text_up_parse(words, &arena, &back, error, sizeof error)) fail_msg("%s: %s", text, error);
            size_t len_a = 0, len_b = 0;
            assert_int_equal(mcpg__up_pack(&msg, wire_a, sizeof wire_a, &len_a), MCPG_OK);
            assert_int_equal(mcpg__up_pack(&back, wire_b, sizeof wire_b, &len_b), MCPG_OK);
            if (len_a != len_b || memcmp(wire_a, wire_b, len_a) != 0) fail_msg("another message comes back: %s", text);
            free(words);
            free(text);
        }
    }
}

static char *event_text(const mcpg_coord_event_t *event) {
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    mcpg__text_coord_event(out, event);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void back_and_forth(const mcpg_coord_event_t *event, const char *expected) {
    char *text = event_text(event), error[160] = "";
    if (expected != NULL) assert_string_equal(text, expected);
    mcpg_arena_t arena = {.base = arena_b, .cap = sizeof arena_b};
    mcpg_up_msg_t msg;
    mcpg_coord_event_t back = {.now = event->now};
    if (!mcpg__text_coord_event_parse(text, &arena, &msg, &back, error, sizeof error)) fail_msg("%s", error);
    size_t len_a = 0, len_b = 0;
    assert_int_equal(back.kind, event->kind);
    assert_int_equal(back.now.us, event->now.us);
    assert_int_equal(mcpg__coord_event_encode(event, NULL, 0, wire_a, sizeof wire_a, &len_a), MCPG_OK);
    assert_int_equal(mcpg__coord_event_encode(&back, NULL, 0, wire_b, sizeof wire_b, &len_b), MCPG_OK);
    assert_int_equal(len_a, len_b);
    assert_memory_equal(wire_a, wire_b, len_a);
    free(text);
}

static void test_events(void **state) {
    (void)state;
    sample_t s = {.state = 5, .arena = {.base = arena_a, .cap = sizeof arena_a}, .size = 4};
    mcpg_up_msg_t msg = sample_up(&s, MCPG_UP_PROPOSE);
    back_and_forth(&(mcpg_coord_event_t){.now = {77}, .kind = MCPG_COORD_EV_MSG, .conn = 4, .msg = &msg}, NULL);
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = 1ull << 40}, "closed c1099511627776\n");
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {3}, .pid = 44}, "exit 3 pid 44\n");
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER}, "timer\n");
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_SHUTDOWN}, "shutdown\n");
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_RECORD, .gid = {9}, .status = MCPG_CONFLICT},
                   "record g9 CONFLICT\n");
    static const mcpg_member_t active[] = {{{0}, {4}, {1, 7}}, {{2}, {5}, {2, 8}}};
    mcpg_group_record_t record = {
        .term = 2, .coordinator_id = 66, .has_view = true, .view = {.id = {2, 3}, .active_count = 2, .active = active}};
    back_and_forth(&(mcpg_coord_event_t){.kind = MCPG_COORD_EV_RECORD, .gid = {9}, .record = &record},
                   "record g9 OK was term 2 id 66 has_view view 2.3 active 0:4/7,2:5/2.8\n");
}

static void test_config(void **state) {
    (void)state;
    mcpg_coord_config_t config = {.term = 3,
                                  .coordinator_id = 4,
                                  .max_ranks = 5,
                                  .max_groups = 6,
                                  .max_slots_total = 7,
                                  .clique_node_budget = 8,
                                  .has_store = true,
                                  .predecessor = true,
                                  .timers = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21}},
                        back;
    char *text = NULL, error[160] = "", *words;
    size_t len = 0, len_a = 0, len_b = 0;
    FILE *out = open_memstream(&text, &len);
    mcpg__text_coord_config(out, &config);
    assert_int_equal(fclose(out), 0);
    words = text;
    assert_string_equal(mcpg__text_word(&words), "config");
    assert_true(mcpg__text_coord_config_parse(words, &back, error, sizeof error));
    assert_int_equal(mcpg__coord_config_encode(&config, wire_a, sizeof wire_a, &len_a), MCPG_OK);
    assert_int_equal(mcpg__coord_config_encode(&back, wire_b, sizeof wire_b, &len_b), MCPG_OK);
    assert_int_equal(len_a, len_b);
    assert_memory_equal(wire_a, wire_b, len_a);
    assert_int_equal(mcpg__coord_config_decode(wire_a, len_a, &back), MCPG_OK);
    assert_int_equal(mcpg__coord_config_encode(&back, wire_b, sizeof wire_b, &len_b), MCPG_OK);
    assert_memory_equal(wire_a, wire_b, len_a);
    assert_int_equal(mcpg__coord_config_decode(wire_a, len_a - 1, &back), MCPG_CORRUPT);
    free(text);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *line, *word;
    } cases[] = {{"c1 NONSENSE", "'NONSENSE'"},
                 {"c1 ACK gid 7", "'7' is no value for gid"},
                 {"c1 ACK gidd g7", "'gidd'"},
                 {"c1 ACK gid g7 next 2*2^33", "is no value for next"},
                 {"c1 ACK gid g99999999999", "is no value for gid"},
                 {"c1 LINK peer 1 state sideways", "'sideways'"},
                 {"c1 PROPOSE activate 1,,2", "is no value for activate"},
                 {"c1 PROPOSE activate 5000", "is no value for activate"},
                 {"c1 OP_FAILED failed 1:2", "is no value for failed"},
                 {"c1 REGISTER key abc", "is no value for key"},
                 {"c1 REGISTER key \"a\\xzz\"", "is no value for key"},
                 {"closed 7", "'closed'"},
                 {"exit 3 77", "'exit'"},
                 {"record g1 SIDEWAYS", "'record'"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[128], error[160] = "";
        (void)snprintf(line, sizeof line, "%s", cases[i].line);
        mcpg_arena_t arena = {.base = arena_b, .cap = sizeof arena_b};
        mcpg_up_msg_t msg;
        mcpg_coord_event_t event = {0};
        assert_false(mcpg__text_coord_event_parse(line, &arena, &msg, &event, error, sizeof error));
        if (strstr(error, cases[i].word) == NULL) fail_msg("%s: %s", cases[i].line, error);
    }
    char line[] = "attach 0", error[160] = "x"; /* a command, but none of these */
    mcpg_arena_t arena = {.base = arena_b, .cap = sizeof arena_b};
    mcpg_up_msg_t msg;
    mcpg_coord_event_t event = {0};
    assert_false(mcpg__text_coord_event_parse(line, &arena, &msg, &event, error, sizeof error));
    assert_string_equal(error, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_events),
                                       cmocka_unit_test(test_config), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
