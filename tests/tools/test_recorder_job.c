/* test_recorder_job.c: a job that asks for nothing has its flight recorders on, in its user's own folder, and what they
 * wrote can be stepped again; a job that wants none has none.
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
#include <sys/stat.h>
#include <unistd.h>

#include "mooncake/pg.h"
#include "tools/tool_run.h"

static int set_up(void **state) {
    (void)unsetenv("MOONCAKE_EVENT_LOG");
    (void)unsetenv("MOONCAKE_EVENT_LOG_DIR");
    (void)unsetenv("XDG_STATE_HOME");
    return tool_set_up(state) == 0 ? setenv("HOME", tool_folder, 1) : -1;
}

/* A coordinator and one rank, who makes a group of its own. */
static void run_job(const char *coordinator_dir, const char *rank_dir) {
    mcpg_coordinator_config_t c = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    mcpg_config_t r = MCPG_CONFIG_INITIALIZER;
    mcpg_coordinator_t *coordinator = NULL;
    mcpg_context_t *context = NULL;
    char error[512] = "", address[256];
    c.event_log_dir = coordinator_dir;
    if (mcpg_coordinator_start(&c, &coordinator, error, sizeof error) != MCPG_OK) fail_msg("%s", error);
    (void)mcpg_coordinator_address(coordinator, address, sizeof address);
    r.coordinator = address;
    r.event_log_dir = rank_dir;
    if (mcpg_context_create(&r, &context, error, sizeof error) != MCPG_OK) fail_msg("%s", error);
    mcpg_context_destroy(context);
    mcpg_coordinator_stop(coordinator);
}

static size_t count_logs(const char *pattern) {
    glob_t found;
    size_t count = 0;
    if (glob(tool_path(pattern), 0, NULL, &found) == 0) count = found.gl_pathc;
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        assert_int_equal(stat(found.gl_pathv[i], &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_true(st.st_size > 64 && st.st_size < 65536); /* cut to what was written */
    }
    globfree(&found);
    return count;
}

static void test_on(void **state) {
    (void)state;
    run_job(NULL, NULL);
    assert_int_equal(count_logs(".local/state/mooncake_pg/agent-0-*.0"), 1);
    assert_int_equal(count_logs(".local/state/mooncake_pg/coordinator-*.0"), 1);
    tool_result_t t = TOOL("replay", tool_path(".local/state/mooncake_pg"));
    if (t.code != 0) fail_msg("%s%s", t.out, t.err);
    assert_non_null(strstr(t.out, "ok: "));
    run_job(NULL, NULL); /* beside the first ones */
    assert_int_equal(count_logs(".local/state/mooncake_pg/*.0"), 4);
}

static void test_off(void **state) {
    (void)state;
    assert_int_equal(mkdir(tool_path("named"), 0700), 0);
    run_job("", "");
    assert_int_equal(access(tool_path(".local"), F_OK), -1);
    (void)setenv("MOONCAKE_EVENT_LOG", "off", 1);
    run_job(NULL, tool_path("named"));
    assert_int_equal(access(tool_path(".local"), F_OK), -1);
    assert_int_equal(count_logs("named/*"), 0);
}

static void test_named(void **state) {
    (void)state;
    assert_int_equal(mkdir(tool_path("named"), 0755), 0);
    (void)setenv("MOONCAKE_EVENT_LOG_DIR", tool_path("named"), 1);
    run_job(NULL, NULL);
    assert_int_equal(count_logs("named/*.0"), 2);
    run_job("/nonexistent/folder", NULL); /* the job goes on without */
    assert_int_equal(count_logs("named/*.0"), 3);
    assert_int_equal(access(tool_path(".local"), F_OK), -1);
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up, tool_tear_down)
    const struct CMUnitTest tests[] = {T(test_on), T(test_off), T(test_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
