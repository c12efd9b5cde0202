/* test_script_trip.c: a coordinator's log becomes a script that does the same: every golden script is run with a log,
 * the log printed with --text, that script run again, and its effects and its own log's text are the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tool_run.h"

/* Adds the lines of a golden file that show effects. */
static void add_effects(const char *golden, char **kept) {
    size_t len = 0, had = *kept != NULL ? strlen(*kept) : 0;
    char *text = tool_read(golden, &len), *grown = realloc(*kept, had + len + 1u);
    assert_non_null(grown);
    *kept = grown;
    char *to = grown + had;
    for (char *line = text; *line != '\0';) {
        char *end = strchrnul(line, '\n');
        static const char *const marks[] = {"  -> ", "  close ", "  stop", "  record ", "  rejected "};
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
            if (strncmp(line, marks[i], strlen(marks[i])) != 0) continue;
            memcpy(to, line, (size_t)(end - line) + (*end != '\0'));
            to += end - line + (*end != '\0');
        }
        line = *end != '\0' ? end + 1 : end;
    }
    *to = '\0';
    free(text);
}

/* One coordinator's log: its text, run as a script, makes a log with the same text. False: the script gives the machine
 * what the codec lets nobody send, so its log cannot be read. */
static bool trip_log(const char *script, const char *log) {
    tool_result_t r = TOOL("replay", tool_path(log));
    if (r.code != 0 && strstr(r.err, "cannot be decoded") != NULL) return false;
    if (r.code != 0) fail_msg("%s: %s", script, r.err);
    r = TOOL("replay", "--text", tool_path(log));
    assert_int_equal(r.code, 0);
    char *first = strdup(r.out);
    tool_write(tool_path("text.script"), first, strlen(first));
    tool_log_script(tool_path("text.script"), "b"); /* b-2: `config` makes a new machine */
    r = TOOL("replay", tool_path("b-2"));
    if (r.code != 0) fail_msg("%s: %s", script, r.err);
    r = TOOL("replay", "--text", tool_path("b-2"));
    /* behind the heading, which has a name and a time */
    assert_string_equal(strchr(first, '\n'), strchr(r.out, '\n'));
    free(first);
    return true;
}

/* A script of one coordinator or of several, one after the other. False: it, or its log, is none to try. */
static bool trip(const char *script) {
    char *before = NULL, *after = NULL;
    bool good = true;
    for (unsigned n = 1; good && n < 8; n++) {
        char log[16], file[20];
        (void)snprintf(log, sizeof log, n == 1 ? "a" : "a-%u", n);
        (void)snprintf(file, sizeof file, "%s.0", log);
        if (n == 1 && !tool_try_script(script, "a")) return false;
        if (access(tool_path(file), F_OK) != 0) break;
        good = trip_log(script, log);
        if (good) add_effects(tool_path("b.golden"), &after);
        (void)unlink(tool_path(file));
    }
    if (good) {
        add_effects(tool_path("a.golden"), &before);
        assert_string_equal(before, after);
        assert_true(strlen(before) > 100);
    }
    for (unsigned n = 2; n < 8; n++) { /* what a script that was given up has left */
        char file[20];
        (void)snprintf(file, sizeof file, "a-%u.0", n);
        (void)unlink(tool_path(file));
    }
    free(before);
    free(after);
    return good;
}

static void test_every_script(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob(TEST_FOLDER "/script/coord/*.script", 0, NULL, &found), 0);
    size_t good = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) good += trip(found.gl_pathv[i]);
    print_message("%zu of %zu scripts\n", good, found.gl_pathc);
    assert_true(good >= 20 && good * 10 >= found.gl_pathc * 8);
    globfree(&found);
    assert_true(trip(TEST_FOLDER "/tools/story-4.script"));
    assert_true(trip(TEST_FOLDER "/tools/story-64.script"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_every_script, tool_set_up, tool_tear_down)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
