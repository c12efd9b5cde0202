/* test_pg_errors.c: wrong input and missing peers: a typed error with a useful sentence, in bounded time, and the
 * others go on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job.h"

/* ---- no processes needed ---- */

static mcpg_status_t try_context(mcpg_config_t *c, char *error, size_t cap) {
    mcpg_context_t *context = NULL;
    mcpg_status_t status = mcpg_context_create(c, &context, error, cap);
    if (status == MCPG_OK) {
        mcpg_context_destroy(context);
    } else {
        assert_null(context);
    }
    return status;
}

static void test_no_coordinator_at_the_address(void **state) {
    (void)state;
    mcpg_config_t c = MCPG_CONFIG_INITIALIZER;
    char error[512] = "";
    c.coordinator = "127.0.0.1:9"; /* the discard port: nobody */
    c.connect_timeout_us = 700000;
    uint64_t t0 = now_us();
    assert_int_equal(try_context(&c, error, sizeof(error)), MCPG_UNAVAILABLE);
    assert_true(now_us() - t0 < 6000000);
    assert_non_null(strstr(error, "127.0.0.1:9"));
}

static void test_bad_config(void **state) {
    (void)state;
    mcpg_config_t c = MCPG_CONFIG_INITIALIZER;
    char error[512] = "";
    unsetenv("MOONCAKE_COORDINATOR");
    assert_int_equal(try_context(&c, error, sizeof(error)), MCPG_INVALID_ARGUMENT); /* no way to a coordinator */
    assert_non_null(strstr(error, "MOONCAKE_COORDINATOR"));
    c.coordinator = "127.0.0.1:9";
    c.transports = "shm,carrier-pigeon";
    assert_int_equal(try_context(&c, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "carrier-pigeon"));
    c.transports = NULL;
    c.global_rank = MCPG_MAX_RANKS;
    assert_int_equal(try_context(&c, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "1024"));
    c.global_rank = 0;
    c.struct_size = 8;
    assert_int_equal(try_context(&c, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    struct {
        mcpg_config_t c;
        uint64_t more;
    } newer;
    memset(&newer, 0, sizeof(newer));
    newer.c.struct_size = sizeof(newer);
    newer.c.coordinator = "127.0.0.1:9";
    newer.c.connect_timeout_us = 200000;
    assert_int_equal(try_context(&newer.c, error, sizeof(error)),
                     MCPG_UNAVAILABLE); /* a tail of zeros is nothing new */
    newer.more = 1;
    assert_int_equal(try_context(&newer.c, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "mcpg_config_t"));
    mcpg_context_destroy(NULL);
    mcpg_group_destroy(NULL);
    mcpg_work_release(NULL);
    mcpg_coordinator_stop(NULL);
}

static void test_wide_bind_is_refused(void **state) {
    (void)state;
    mcpg_coordinator_config_t c = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    mcpg_coordinator_t *coordinator = NULL;
    char error[512] = "";
    c.bind = "0.0.0.0:0";
    mcpg_status_t status = mcpg_coordinator_start(&c, &coordinator, error, sizeof(error));
    assert_true(status != MCPG_OK);
    assert_null(coordinator);
    assert_non_null(strstr(error, "0.0.0.0"));
}

/* ---- declarations ---- */

static mcpg_group_config_t declare(const uint32_t *order, uint32_t n) {
    mcpg_group_config_t g = MCPG_GROUP_CONFIG_INITIALIZER;
    g.rank_order = order;
    g.group_size = n;
    g.label = "default_pg";
    g.timeout_us = 20000000;
    return g;
}

static void expect_mismatch(mcpg_context_t *c, mcpg_group_config_t *d, const char *one, const char *two) {
    mcpg_group_t *g = NULL;
    mcpg_status_t status;
    uint64_t t0 = now_us();
    d->timeout_us = 200000;
    do { /* as long as the right declaration has not arrived, the wrong one is merely alone */
        status = mcpg_group_create(c, d, &g);
    } while (status == MCPG_TIMED_OUT && now_us() - t0 < 20000000);
    CHECK_TEXT(status == MCPG_WORLD_MISMATCH, mcpg_status_name(status));
    CHECK(g == NULL);
    CHECK_TEXT(strstr(mcpg_context_error(c), one) != NULL, mcpg_context_error(c));
    CHECK_TEXT(strstr(mcpg_context_error(c), two) != NULL, mcpg_context_error(c));
}

static void role_declare(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    static const uint32_t right[] = {0, 1}, swapped[] = {1, 0}, more[] = {0, 1, 2}, twice[] = {0, 1, 1},
                          foreign[] = {5};
    mcpg_group_t *g = NULL;
    mcpg_group_config_t d = declare(right, 2);
    if (role->rank == 1) {
        hear("go"); /* rank 0's declaration is there and waits */
        mcpg_group_config_t bad = declare(twice, 3);
        CHECK(mcpg_group_create(c, &bad, &g) == MCPG_INVALID_ARGUMENT);
        bad = declare(foreign, 1);
        CHECK(mcpg_group_create(c, &bad, &g) == MCPG_INVALID_ARGUMENT);
        bad = declare(right, 2);
        bad.max_group_size = 1;
        CHECK(mcpg_group_create(c, &bad, &g) == MCPG_INVALID_ARGUMENT);
        bad = declare(swapped, 2);
        expect_mismatch(c, &bad, "", "");
        bad = declare(more, 3);
        expect_mismatch(c, &bad, "", "");
        bad = declare(right, 2);
        bad.max_group_size = 7;
        expect_mismatch(c, &bad, "7", "2");
        bad = declare(right, 2);
        bad.manual = true;
        expect_mismatch(c, &bad, "", "");
        bad = declare(right, 2);
        bad.no_auto_sync = true;
        expect_mismatch(c, &bad, "", "");
    } else {
        say("here");
    }
    mcpg_status_t status;
    uint64_t t0 = now_us();
    do { /* and the right one works: rank 0 was not harmed */
        status = mcpg_group_create(c, &d, &g);
    } while (status == MCPG_WORLD_MISMATCH && role->rank == 0 && now_us() - t0 < 20000000);
    OK(c, status);
    CHECK(sum(c, g, 1) == 2);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_wrong_declarations(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "declare", 2, "");
    job_spawn_all(&job);
    (void)job_expect(&job, &job.procs[0], "here");
    job_tell(&job.procs[1], "go");
    job_end(&job);
}

static void role_lonely(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    static const uint32_t order[] = {0, 1};
    mcpg_group_config_t d = declare(order, 2);
    mcpg_group_t *g = NULL;
    d.timeout_us = 500000;
    uint64_t t0 = now_us();
    mcpg_status_t status = mcpg_group_create(c, &d, &g);
    CHECK_TEXT(status == MCPG_TIMED_OUT, mcpg_status_name(status));
    CHECK(now_us() - t0 < 5000000);
    CHECK_TEXT(strstr(mcpg_context_error(c), "1") != NULL, mcpg_context_error(c)); /* names who is missing */
    mcpg_context_destroy(c);
}

static void test_founder_that_never_comes(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "lonely", 1, "");
    (void)job_spawn(&job, 0, 0);
    job_end(&job);
}

/* ---- a rank twice ---- */

static void role_twice(const role_t *role) {
    if (role->life == 0) {
        mcpg_context_t *c = make_context(role);
        say("attached");
        hear("end");
        mcpg_context_destroy(c);
        return;
    }
    mcpg_config_t c = MCPG_CONFIG_INITIALIZER;
    c.global_rank = role->rank;
    c.coordinator = role->address;
    c.connect_timeout_us = 600000;
    char error[512] = "";
    mcpg_context_t *context = NULL;
    mcpg_status_t status = mcpg_context_create(&c, &context, error, sizeof(error));
    CHECK_TEXT(status == MCPG_RANK_IN_USE, mcpg_status_name(status));
    CHECK_TEXT(strstr(error, "0") != NULL, error);
    say("refused");
    hear("again");
    c.connect_timeout_us = 20000000;
    status = mcpg_context_create(&c, &context, error, sizeof(error)); /* the other one has left by now */
    CHECK_TEXT(status == MCPG_OK, error);
    mcpg_context_destroy(context);
}

static void test_rank_in_use(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "twice", 1, "");
    proc_t *first = job_spawn(&job, 0, 0);
    (void)job_expect(&job, first, "attached");
    proc_t *second = job_spawn(&job, 0, 1);
    (void)job_expect(&job, second, "refused");
    job_tell(first, "end");
    job_tell(second, "again");
    job_end(&job);
}

/* ---- forks ---- */

static void role_fork(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, role->world, 0, false, false);
    CHECK(sum(c, g, 1) == role->world);
    pid_t pid = fork();
    if (pid == 0) {
        mcpg_view_t v;
        mcpg_config_t config = MCPG_CONFIG_INITIALIZER;
        mcpg_context_t *other = NULL;
        bool ok = mcpg_group_view(g, &v) == MCPG_FORKED && mcpg_context_create(&config, &other, NULL, 0) == MCPG_FORKED;
        mcpg_group_destroy(g);
        mcpg_context_destroy(c);
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(sum(c, g, 1) == role->world); /* the parent is not disturbed */
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void test_forked_child_is_refused(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "fork", 2, "");
    job_spawn_all(&job);
    job_end(&job);
}

static void role_fork_server(const role_t *role) {
    CHECK(mcpg_version()[0] != '\0'); /* loaded, not in use: its children may use it */
    pid_t pids[2];
    for (uint32_t r = 0; r < 2; r++) {
        pids[r] = fork();
        if (pids[r] != 0) continue;
        role_t own = *role;
        own.rank = r;
        mcpg_context_t *c = make_context(&own);
        mcpg_group_t *g = make_group(c, 2, 0, false, false);
        CHECK(sum(c, g, 1) == 2);
        mcpg_group_destroy(g);
        mcpg_context_destroy(c);
        _exit(0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        int status = -1;
        CHECK(waitpid(pids[r], &status, 0) == pids[r] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_children_of_a_fork_server(void **state) {
    (void)state;
    job_t job;
    job_begin(&job, "fork_server", 1, "");
    job_spawn_all(&job);
    job_end(&job);
}

/* ---- election over a key-value store (files under one lock) ---- */

typedef struct {
    char dir[256];
} files_t;

static int store_lock(const files_t *f) {
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/lock", f->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    return fd;
}
static void path_of(const files_t *f, const char *key, char *path, size_t cap) {
    (void)snprintf(path, cap, "%s/k_%s", f->dir, key);
    for (char *p = path + strlen(f->dir) + 1; *p != '\0'; p++)
        if (*p == '/') *p = '_';
}
static size_t load(const files_t *f, const char *key, char *buf, size_t cap) {
    char path[512];
    path_of(f, key, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, buf, cap);
    close(fd);
    return n > 0 ? (size_t)n : 0;
}
static void store(const files_t *f, const char *key, const void *value, size_t len) {
    char path[512];
    path_of(f, key, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, value, len) == (ssize_t)len);
    close(fd);
}
static mcpg_status_t kv_get(void *user, const char *key, void *value, size_t cap, size_t *len_out,
                            uint32_t timeout_ms) {
    for (uint64_t t0 = now_us();;) {
        int fd = store_lock(user);
        size_t n = load(user, key, value, cap);
        close(fd);
        if (n > 0) {
            *len_out = n;
            return MCPG_OK;
        }
        if (now_us() - t0 >= timeout_ms * 1000u) return MCPG_TIMED_OUT;
        usleep(2000);
    }
}
static mcpg_status_t kv_set(void *user, const char *key, const void *value, size_t len) {
    int fd = store_lock(user);
    store(user, key, value, len);
    close(fd);
    return MCPG_OK;
}
static mcpg_status_t kv_compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                    const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out) {
    char now[4096];
    int fd = store_lock(user);
    size_t n = load(user, key, now, sizeof(now));
    if (n == expected_len && memcmp(now, expected, n) == 0) {
        store(user, key, desired, desired_len);
        n = load(user, key, now, sizeof(now));
    }
    close(fd);
    memcpy(value, now, n < cap ? n : cap);
    *len_out = n;
    return MCPG_OK;
}
static mcpg_status_t kv_add(void *user, const char *key, int64_t delta, int64_t *value_out) {
    char now[64] = "";
    int fd = store_lock(user);
    (void)load(user, key, now, sizeof(now) - 1);
    int64_t v = strtoll(now, NULL, 10) + delta;
    int n = snprintf(now, sizeof(now), "%lld", (long long)v);
    store(user, key, now, (size_t)n);
    close(fd);
    *value_out = v;
    return MCPG_OK;
}

static void role_elect(const role_t *role) {
    files_t f;
    (void)snprintf(f.dir, sizeof(f.dir), "%s", role->option);
    const mcpg_kv_t kv = {&f, kv_get, kv_set, kv_compare_set, kv_add};
    uint64_t term = 0;
    for (int life = 0; life < 3; life++) { /* no barrier between the lives: somebody is always early */
        mcpg_config_t config = MCPG_CONFIG_INITIALIZER;
        config.global_rank = role->rank;
        config.kv = &kv;
        config.may_host_coordinator = role->rank < 2;
        config.connect_timeout_us = 20000000;
        mcpg_context_t *c = NULL;
        char error[512] = "";
        mcpg_status_t status = mcpg_context_create(&config, &c, error, sizeof(error));
        CHECK_TEXT(status == MCPG_OK, error);
        char address[64];
        CHECK(mcpg_context_coordinator(c, address, sizeof(address)) > 0);
        mcpg_group_t *g = make_group(c, role->world, 0, false, false);
        CHECK(sum(c, g, 1) == role->world);
        mcpg_view_t v;
        OK(c, mcpg_group_view(g, &v));
        CHECK(v.term > term);
        term = v.term;
        mcpg_group_destroy(g);
        mcpg_context_destroy(c);
    }
}

static void test_election(void **state) {
    (void)state;
    char dir[] = "/tmp/mcpg-kv-XXXXXX";
    assert_non_null(mkdtemp(dir));
    unsetenv("MOONCAKE_COORDINATOR");
    job_t job;
    job_begin_bare(&job, "elect", 3, dir);
    job_spawn_all(&job);
    job_end(&job);
    static const char *const names[] = {"lock", "k_mooncake_pg_coordinator", "k_mooncake_pg_term"};
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

const role_entry_t roles[] = {
    {"declare", role_declare},         {"lonely", role_lonely}, {"twice", role_twice}, {"fork", role_fork},
    {"fork_server", role_fork_server}, {"elect", role_elect},   {NULL, NULL}};

int main(int argc, char **argv) {
    int code;
    if (job_child_main(argc, argv, &code)) return code;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_coordinator_at_the_address),
                                       cmocka_unit_test(test_bad_config),
                                       cmocka_unit_test(test_wide_bind_is_refused),
                                       cmocka_unit_test(test_wrong_declarations),
                                       cmocka_unit_test(test_founder_that_never_comes),
                                       cmocka_unit_test(test_rank_in_use),
                                       cmocka_unit_test(test_forked_child_is_refused),
                                       cmocka_unit_test(test_children_of_a_fork_server),
                                       cmocka_unit_test(test_election)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
