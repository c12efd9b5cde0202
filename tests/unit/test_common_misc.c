/* test_common_misc.c: names and sizes, byte buffers, timers, log lines, panic hooks, fork. Children that must die are
 * forked here and waited for; the parent never uses what it told the child.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/fork.h"
#include "common/log.h"
#include "common/panic.h"
#include "common/rankset.h"
#include "common/timers.h"

static void test_names(void **state) {
    (void)state;
    int count = 0;
#define X(NAME, value, class_, text)                                                                                   \
    assert_string_equal(mcpg_status_name((mcpg_status_t)(value)), #NAME);                                              \
    assert_string_equal(mcpg_status_text((mcpg_status_t)(value)), text);                                               \
    count++;
#include "common/statuses.def"
#undef X
    assert_int_equal(count, 38);
    assert_string_equal(mcpg_status_name((mcpg_status_t)-99), "UNKNOWN");
    assert_string_equal(mcpg_status_text((mcpg_status_t)2), "unknown status");
    assert_string_equal(mcpg_version(), "0.1.0");
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 1, 2, 2, 1};
    assert_int_equal(sizeof sizes / sizeof sizes[0], MCPG_DTYPE__COUNT);
    for (int i = 0; i < MCPG_DTYPE__COUNT; i++) {
        assert_int_equal(mcpg_dtype_size((mcpg_dtype_t)i), sizes[i]);
        assert_string_not_equal(mcpg_dtype_name((mcpg_dtype_t)i), "unknown");
    }
    assert_int_equal(mcpg_dtype_size(MCPG_DTYPE__COUNT), 0);
    assert_string_equal(mcpg_dtype_name(MCPG_BF16), "bf16");
    for (int i = 0; i < MCPG_REDOP__COUNT; i++) assert_string_not_equal(mcpg_redop_name((mcpg_redop_t)i), "unknown");
    for (int i = 0; i < MCPG_OP__COUNT; i++) assert_string_not_equal(mcpg_op_name((mcpg_op_kind_t)i), "unknown");
    assert_string_equal(mcpg_op_name((mcpg_op_kind_t)77), "unknown");
}

static void test_bytes(void **state) {
    (void)state;
    uint8_t buf[32];
    mcpg_put_t put = {.ptr = buf, .cap = sizeof buf};
    mcpg__put_u8(&put, 0xfe);
    mcpg__put_u16(&put, 0x1234);
    mcpg__put_u32(&put, 0xdeadbeef);
    mcpg__put_u64(&put, UINT64_C(0x0123456789abcdef));
    mcpg__put_bytes(&put, "abc", 3);
    assert_false(put.bad);
    assert_int_equal(put.len, 22);
    assert_int_equal(buf[1], 0x34);
    mcpg__put_u64(&put, 1);
    mcpg__put_u32(&put, 1);
    assert_true(put.bad);
    assert_int_equal(put.len, 30);
    mcpg__put_u8(&put, 1); /* the error sticks */
    assert_int_equal(put.len, 30);
    mcpg_get_t get = {.ptr = buf, .len = 22};
    assert_int_equal(mcpg__get_u8(&get), 0xfe);
    assert_int_equal(mcpg__get_u16(&get), 0x1234);
    assert_int_equal(mcpg__get_u32(&get), 0xdeadbeef);
    assert_true(mcpg__get_u64(&get) == UINT64_C(0x0123456789abcdef));
    mcpg_bytes_t b = mcpg__get_bytes(&get);
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.ptr, "abc", 3);
    assert_false(get.bad);
    assert_int_equal(mcpg__get_u32(&get), 0);
    assert_true(get.bad);
    get = (mcpg_get_t){.ptr = (const uint8_t *)"\xff\xff\xff\xffxx", .len = 6};
    assert_int_equal(mcpg__get_bytes(&get).len, 0); /* a length that lies */
    assert_true(get.bad);
}

static void test_rankset(void **state) {
    (void)state;
    mcpg_rankset_t a = {{0}}, b = {{0}};
    static const uint32_t members[] = {0, 63, 64, 511, MCPG_MAX_RANKS - 1};
    for (size_t i = 0; i < 5; i++) mcpg__rankset_add(&a, members[i]);
    size_t n = 0;
    for (uint32_t r = mcpg__rankset_next(&a, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(&a, r + 1))
        assert_int_equal(r, members[n++]);
    assert_int_equal(n, 5);
    assert_int_equal(mcpg__rankset_count(&a), 5);
    mcpg__rankset_add(&b, 64);
    assert_true(mcpg__rankset_subset(&b, &a) && mcpg__rankset_meets(&a, &b) && !mcpg__rankset_subset(&a, &b));
    mcpg__rankset_minus(&a, &b);
    assert_false(mcpg__rankset_has(&a, 64) || mcpg__rankset_meets(&a, &b));
    mcpg__rankset_or(&a, &b);
    mcpg__rankset_and(&b, &a);
    assert_true(mcpg__rankset_has(&b, 64) && !mcpg__rankset_eq(&a, &b));
}

static void test_timers(void **state) {
    (void)state;
    char error[256];
    mcpg_timers_t out;
    unsetenv("MOONCAKE_HEARTBEAT_US");
    assert_int_equal(mcpg__timers_resolve(NULL, &out, NULL, 0), MCPG_OK);
    assert_int_equal(out.heartbeat_us, 200000);
    assert_int_equal(out.offline_us, 5000000);
    assert_int_equal(out.ack_us, 5000000);
    assert_int_equal(out.ack_added_us, 1000000);
    assert_int_equal(out.reconcile_us, 2000000);
    assert_int_equal(out.coordinator_grace_us, 30000000);
    assert_int_equal(out.collective_timeout_us, 1000000);
    assert_int_equal(out.p2p_timeout_us, 10000000);
    setenv("MOONCAKE_HEARTBEAT_US", "150000", 1);
    setenv("MOONCAKE_P2P_TIMEOUT_US", "7", 1);
    mcpg_timers_t given = {.heartbeat_us = 100000};
    assert_int_equal(mcpg__timers_resolve(&given, &out, error, sizeof error), MCPG_OK);
    assert_int_equal(out.heartbeat_us, 100000); /* what the caller gave wins */
    assert_int_equal(out.p2p_timeout_us, 7);
    static const char *const bad[] = {"",    "0", "abc", "-5", "12ms", " 5", "86400000001", "99999999999999999999999",
                                      "0x10"};
    out.heartbeat_us = 42;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("MOONCAKE_HEARTBEAT_US", bad[i], 1);
        assert_int_equal(mcpg__timers_resolve(NULL, &out, error, sizeof error), MCPG_INVALID_ARGUMENT);
        assert_non_null(strstr(error, "MOONCAKE_HEARTBEAT_US"));
        assert_non_null(strstr(error, bad[i]));
        assert_non_null(strstr(error, "200000"));
    }
    assert_int_equal(out.heartbeat_us, 42);
    unsetenv("MOONCAKE_HEARTBEAT_US");
    unsetenv("MOONCAKE_P2P_TIMEOUT_US");
    given = (mcpg_timers_t){.ack_us = UINT64_C(86400000001)};
    assert_int_equal(mcpg__timers_resolve(&given, &out, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "ack_us"));
    given = (mcpg_timers_t){.heartbeat_us = 5000000};
    assert_int_equal(mcpg__timers_resolve(&given, &out, error, sizeof error), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "offline_us"));
}

static char last_line[2048];
static int lines;
static void sink(void *user, mcpg_log_level_t level, const char *line) {
    assert_ptr_equal(user, &lines);
    assert_int_equal(level, MCPG_LOG_WARN);
    snprintf(last_line, sizeof last_line, "%s", line);
    lines++;
}
static void test_log(void **state) {
    (void)state;
    mcpg_log_t log;
    setenv("MOONCAKE_LOG", "warn", 1);
    mcpg__log_init(&log, sink, &lines, "rank 3");
    mcpg__log(&log, MCPG_LOG_INFO, "hidden %d", 1);
    assert_int_equal(lines, 0);
    mcpg__log(&log, MCPG_LOG_WARN, "link_lost rank %d\nnext", 5);
    assert_string_equal(last_line, "rank 3: link_lost rank 5 next");
    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    mcpg__log(&log, MCPG_LOG_WARN, "%s", longer);
    assert_int_equal(strlen(last_line), 1023);
    mcpg__log(NULL, MCPG_LOG_ERROR, "nowhere");
    setenv("MOONCAKE_LOG", "DEBUG", 1);
    mcpg__log_init(&log, sink, &lines, NULL);
    assert_int_equal(log.level, MCPG_LOG_DEBUG);
    setenv("MOONCAKE_LOG", "loud", 1);
    mcpg__log_init(&log, sink, &lines, NULL);
    assert_int_equal(log.level, MCPG_LOG_WARN);
    unsetenv("MOONCAKE_LOG");
}

static int hook_pipe[2];
static void hook(void *user, const char *what) {
    (void)user;
    ssize_t n = write(hook_pipe[1], what, strlen(what));
    (void)n;
}
static void other_hook(void *user, const char *what) {
    (void)user;
    (void)what;
    _exit(9);
}
static void test_panic(void **state) {
    (void)state;
    assert_int_equal(pipe(hook_pipe), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        if (mcpg__panic_hook_add(hook, NULL) != MCPG_OK || mcpg__panic_hook_add(other_hook, NULL) != MCPG_OK) _exit(1);
        mcpg__panic_hook_remove(other_hook, NULL);
        volatile int two = 2;
        MCPG_ASSERT(two == 3);
        _exit(2);
    }
    close(hook_pipe[1]);
    char text[64] = {0};
    assert_int_equal(read(hook_pipe[0], text, sizeof text - 1), 8);
    assert_string_equal(text, "two == 3");
    close(hook_pipe[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    for (uint32_t i = 0; i < MCPG_PANIC_HOOKS_CAP; i++) assert_int_equal(mcpg__panic_hook_add(hook, &lines), MCPG_OK);
    assert_int_equal(mcpg__panic_hook_add(hook, &lines), MCPG_LIMIT);
    for (uint32_t i = 0; i < MCPG_PANIC_HOOKS_CAP; i++) mcpg__panic_hook_remove(hook, &lines);
}

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) != -1 || errno != EBADF;
}
static void test_fork(void **state) {
    (void)state;
    int fds[4];
    mcpg__fork_watch();
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(pipe(fds + 2), 0);
    assert_int_equal(mcpg__fork_close_register(fds[0]), MCPG_OK);
    assert_int_equal(mcpg__fork_close_register(fds[1]), MCPG_OK);
    assert_int_equal(mcpg__fork_close_register(fds[2]), MCPG_OK);
    mcpg__fork_close_unregister(fds[2]);
    assert_int_equal(mcpg__fork_close_register(-1), MCPG_INVALID_ARGUMENT);
    assert_int_equal(mcpg__fork_close_register((int)MCPG_FORK_FDS_CAP), MCPG_LIMIT);
    assert_false(mcpg__forked());
    pid_t early = fork(); /* loaded, but no context lives: the child may use the library */
    assert_true(early >= 0);
    if (early == 0) _exit(!mcpg__forked() ? 7 : 1);
    int early_status = 0;
    assert_int_equal(waitpid(early, &early_status, 0), early);
    assert_true(WIFEXITED(early_status) && WEXITSTATUS(early_status) == 7);
    mcpg__fork_in_use(1);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(mcpg__forked() && !is_open(fds[0]) && !is_open(fds[1]) && is_open(fds[2]) && is_open(fds[3]) ? 7 : 1);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_false(mcpg__forked());
    assert_true(is_open(fds[0]) && is_open(fds[1])); /* the parent keeps them */
    mcpg__fork_in_use(-1);
    mcpg__fork_close_unregister(fds[0]);
    mcpg__fork_close_unregister(fds[1]);
    for (int i = 0; i < 4; i++) close(fds[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),   cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_rankset), cmocka_unit_test(test_timers),
                                       cmocka_unit_test(test_log),     cmocka_unit_test(test_panic),
                                       cmocka_unit_test(test_fork)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
