/* test_timeline.c: mooncake-pg timeline: the picture is well-formed, says what the log tells, for 4 and for 64 ranks,
 * and nothing lies outside it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool_run.h"

/* Every element is closed in its order, attributes are quoted, no bare & or < stands in text. */
static void well_formed(const char *p) {
    char open[32][32];
    int depth = 0;
    assert_memory_equal(p, "<?xml ", 6);
    p = strstr(p, "?>") + 2;
    while (*p != '\0') {
        if (*p == '&')
            assert_true(strncmp(p, "&lt;", 4) == 0 || strncmp(p, "&gt;", 4) == 0 || strncmp(p, "&amp;", 5) == 0 ||
                        strncmp(p, "&quot;", 6) == 0);
        if (*p++ != '<') continue;
        bool closes = *p == '/';
        p += closes;
        size_t len = strspn(p, "abcdefghijklmnopqrstuvwxyz");
        assert_true(len > 0 && len < sizeof open[0]);
        const char *name = p;
        for (p += len; *p != '>'; p++) {
            assert_true(*p != '\0' && *p != '<');
            if (*p != '"') continue;
            for (p++; *p != '"'; p++) assert_true(*p != '\0' && *p != '<');
        }
        if (closes) {
            assert_true(depth > 0 && strlen(open[depth - 1]) == len && memcmp(open[depth - 1], name, len) == 0);
            depth--;
        } else if (p[-1] != '/') {
            assert_true(depth < 32);
            memcpy(open[depth], name, len);
            open[depth++][len] = '\0';
        }
        p++;
    }
    assert_int_equal(depth, 0);
}

static uint32_t count_of(const char *text, const char *words) {
    uint32_t count = 0;
    for (const char *p = strstr(text, words); p != NULL; p = strstr(p + 1, words)) count++;
    return count;
}

/* Every rectangle lies within the picture and has a size. */
static void rectangles_fit(const char *svg) {
    double width = 0, height = 0;
    assert_int_equal(sscanf(strstr(svg, "<svg"),
                            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lf\" height=\"%lf\"", &width, &height),
                     2);
    assert_true(width > 1000 && height > 200 && height < 1300);
    for (const char *p = strstr(svg, "<rect "); p != NULL; p = strstr(p + 1, "<rect ")) {
        double x, y, w, h;
        assert_int_equal(sscanf(p, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &x, &y, &w, &h), 4);
        assert_true(w > 0 && h > 0 && x >= 0 && y >= 0 && x + w <= width + 3 && y + h <= height);
    }
}

static char *drawn(const char *script, const char *name) {
    char svg[32];
    tool_log_script(script, name);
    (void)snprintf(svg, sizeof svg, "%s.svg", name);
    tool_result_t r = TOOL("timeline", tool_path(name), "-o", tool_path(svg));
    if (r.code != 0) fail_msg("%s", r.err);
    char *text = tool_read(tool_path(svg), NULL);
    well_formed(text);
    rectangles_fit(text);
    return text;
}

#define SAYS(text, words)                                                                                              \
    do {                                                                                                               \
        if (strstr(text, words) == NULL) fail_msg("\"%s\" is not in the picture", words);                              \
    } while (0)

static void test_four(void **state) {
    (void)state;
    char *svg = drawn(TEST_FOLDER "/tools/story-4.script", "four");
    SAYS(svg, "4 ranks, 1 groups");
    SAYS(svg, ">rank 0<");
    SAYS(svg, ">rank 3<");
    SAYS(svg, "class=\"dead\"");
    SAYS(svg, "rank 2/3 OFFLINE dead");
    SAYS(svg, "rank 1 is suspect");
    SAYS(svg, "rank 0 reports its link to rank 1 lost");
    SAYS(svg, "PREPARE of epoch 2 is committed");
    SAYS(svg, "its process has ended");
    SAYS(svg, "activate 2");
    SAYS(svg, "STALE_EPOCH");
    SAYS(svg, "sync_after_failure");
    SAYS(svg, ">12 s<"); /* a quiet stretch is cut out */
    SAYS(svg, ">shutdown<");
    assert_true(count_of(svg, "class=\"lane\"") == 4);
    free(svg);
}

static void test_sixty_four(void **state) {
    (void)state;
    char *svg = drawn(TEST_FOLDER "/tools/story-64.script", "many");
    SAYS(svg, "64 ranks, 1 groups");
    assert_int_equal(count_of(svg, "class=\"lane\""), 64);
    SAYS(svg, ">rank 0<");
    assert_null(strstr(svg, ">rank 1<")); /* labels thin out */
    SAYS(svg, "rank 17/18 OFFLINE dead");
    SAYS(svg, "activate 17");
    SAYS(svg, ">@");
    free(svg);
}

/* Every golden script gives a good picture, whatever happens in it. */
static void test_small_ones(void **state) {
    (void)state;
    static const char *const names[] = {"bootstrap", "shutdown", "split-brain", "manual-mode", "last-rank"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char script[256];
        (void)snprintf(script, sizeof script, "%s/script/coord/%s.script", TEST_FOLDER, names[i]);
        free(drawn(script, "small"));
    }
}

static void test_refused(void **state) {
    (void)state;
    tool_log_script(TEST_FOLDER "/script/coord/bootstrap.script", "log");
    tool_result_t r = TOOL("timeline", tool_path("log"), "-o", "/nonexistent/out.svg");
    assert_int_equal(r.code, 2);
    SAYS(r.err, "/nonexistent/out.svg");
    r = TOOL("timeline", tool_path("nothing"), "-o", tool_path("out.svg"));
    assert_int_equal(r.code, 2);
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, tool_set_up, tool_tear_down)
    const struct CMUnitTest tests[] = {T(test_four), T(test_sixty_four), T(test_small_ones), T(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
