/* test_recorder.c: where flight recorders write by default, what turns them off, which folders are not used, and that
 * old logs go while those of living writers and everything else stay.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/eventlog.h"
#include "common/recorder.h"

static char top[64], command[128];

static int set_up(void **state) {
    (void)state;
    (void)snprintf(top, sizeof top, "/tmp/mcpg-recorder-XXXXXX");
    (void)unsetenv("MOONCAKE_EVENT_LOG");
    (void)unsetenv("MOONCAKE_EVENT_LOG_DIR");
    (void)unsetenv("XDG_STATE_HOME");
    return mkdtemp(top) != NULL && setenv("HOME", top, 1) == 0 ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", top);
    return system(command);
}

static const char *under(const char *rest) {
    static char paths[4][160];
    static unsigned next;
    char *path = paths[next++ % 4u];
    (void)snprintf(path, sizeof paths[0], "%s/%s", top, rest);
    return path;
}

static void folder_is(const char *configured, const char *expected) {
    char *folder = mcpg__recorder_folder(configured);
    if (expected == NULL)
        assert_null(folder);
    else
        assert_string_equal(folder, expected);
    free(folder);
}

static void test_which(void **state) {
    (void)state;
    folder_is(NULL, under(".local/state/mooncake_pg"));
    struct stat st;
    assert_int_equal(stat(under(".local/state/mooncake_pg"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(mkdir(under("xdg"), 0755), 0);
    (void)setenv("XDG_STATE_HOME", under("xdg"), 1);
    folder_is(NULL, under("xdg/mooncake_pg"));
    (void)setenv("XDG_STATE_HOME", "relative", 1);
    folder_is(NULL, under(".local/state/mooncake_pg"));
    (void)setenv("MOONCAKE_EVENT_LOG_DIR", "/named", 1);
    folder_is(NULL, "/named");
    folder_is("/configured", "/configured");
    folder_is("", NULL);
    (void)setenv("MOONCAKE_EVENT_LOG", "off", 1);
    folder_is(NULL, NULL);
    folder_is("/configured", NULL);
}

/* A link, somebody's open folder, a home that is not there: another one is taken. */
static void test_not_these(void **state) {
    (void)state;
    char own[64];
    (void)snprintf(own, sizeof own, "/tmp/mooncake_pg-%lu", (unsigned long)geteuid());
    assert_int_equal(mkdir(under(".local"), 0700), 0);
    assert_int_equal(mkdir(under(".local/state"), 0700), 0);
    assert_int_equal(mkdir(under("elsewhere"), 0700), 0);
    assert_int_equal(symlink(under("elsewhere"), under(".local/state/mooncake_pg")), 0);
    folder_is(NULL, own);
    assert_int_equal(unlink(under(".local/state/mooncake_pg")), 0);
    assert_int_equal(mkdir(under(".local/state/mooncake_pg"), 0700), 0);
    assert_int_equal(chmod(under(".local/state/mooncake_pg"), 0770), 0);
    folder_is(NULL, own);
    assert_int_equal(chmod(under(".local/state/mooncake_pg"), 0700), 0);
    folder_is(NULL, under(".local/state/mooncake_pg"));
    (void)setenv("HOME", "/nonexistent", 1);
    folder_is(NULL, own);
    (void)unsetenv("HOME");
    folder_is(NULL, own);
}

static void old_file(const char *name, size_t bytes, time_t age) {
    FILE *f = fopen(under(name), "wb");
    assert_non_null(f);
    for (size_t i = 0; i < bytes; i++) (void)fputc('x', f);
    assert_int_equal(fclose(f), 0);
    struct timeval now, times[2];
    assert_int_equal(gettimeofday(&now, NULL), 0);
    now.tv_sec -= age;
    times[0] = times[1] = now;
    assert_int_equal(utimes(under(name), times), 0);
}
static bool is_there(const char *name) {
    return access(under(name), F_OK) == 0;
}

static void test_prune(void **state) {
    (void)state;
    old_file("agent-0-100-aaaaaaaa.0", 8192, 500);
    old_file("agent-0-100-aaaaaaaa.1", 8192, 10); /* its newer segment counts */
    old_file("agent-1-100-aaaaaaaa.0", 8192, 400);
    old_file("agent-1-100-aaaaaaaa.1", 8192, 400);
    old_file("coordinator-1-100-bbbbbbbb.0", 8192, 300);
    old_file("agent-2-100-aaaaaaaa.0", 8192, 200);
    old_file("agent-precious.0", 8192, 9000); /* nobody's log */
    old_file("notes.txt", 8192, 9000);
    assert_int_equal(symlink(under("notes.txt"), under("agent-3-3-3.0")), 0);
    mcpg__recorder_prune(top, 4, 1 << 30);
    assert_true(is_there("agent-1-100-aaaaaaaa.0") && is_there("coordinator-1-100-bbbbbbbb.0"));
    mcpg__recorder_prune(top, 3, 1 << 30);
    assert_false(is_there("agent-1-100-aaaaaaaa.0") || is_there("agent-1-100-aaaaaaaa.1"));
    assert_true(is_there("coordinator-1-100-bbbbbbbb.0") && is_there("agent-0-100-aaaaaaaa.0"));
    mcpg__recorder_prune(top, 100, 30 << 10); /* by size: 32 KiB are there */
    assert_false(is_there("coordinator-1-100-bbbbbbbb.0"));
    assert_true(is_there("agent-2-100-aaaaaaaa.0") && is_there("agent-0-100-aaaaaaaa.1"));
    mcpg__recorder_prune(top, 0, 0);
    assert_false(is_there("agent-2-100-aaaaaaaa.0") || is_there("agent-0-100-aaaaaaaa.0"));
    assert_true(is_there("agent-precious.0") && is_there("notes.txt") && is_there("agent-3-3-3.0"));
    mcpg__recorder_prune(under("nothing"), 0, 0);
}

/* A log that another process writes stays; when its writer was killed it goes. */
static void test_prune_live(void **state) {
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mcpg_eventlog_t *log = NULL;
        mcpg_status_t status =
            mcpg__eventlog_open(under("agent-7-7-77777777"), MCPG_LOG_AGENT, NULL, 0, (size_t)64 << 10, &log);
        if (status != MCPG_OK || write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) (void)pause();
    }
    char byte;
    (void)close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    old_file("agent-8-8-88888888.0", 100, 100);
    mcpg__recorder_prune(top, 0, 0);
    assert_true(is_there("agent-7-7-77777777.0") && is_there("agent-7-7-77777777.1"));
    assert_false(is_there("agent-8-8-88888888.0"));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    mcpg__recorder_prune(top, 0, 0);
    assert_false(is_there("agent-7-7-77777777.0") || is_there("agent-7-7-77777777.1"));
}

int main(void) {
#define T(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {T(test_which), T(test_not_these), T(test_prune), T(test_prune_live)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
