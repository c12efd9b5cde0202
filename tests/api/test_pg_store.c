/* test_pg_store.c: a key-value store that fails or hangs: a typed error in bounded time at create, no harm to a job
 * that runs, no callback once nobody waits for it; and what a work still does after its context.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "mooncake/pg.h"

typedef enum { STORE_WORKS, STORE_FAILS, STORE_HANGS } store_mode_t;
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    store_mode_t mode;
    uint32_t calls, stuck;
    char record[512];
    size_t record_len;
    int64_t term;
} fake_store_t;

static uint64_t now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

static struct timespec in_seconds(int seconds) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += seconds;
    return ts;
}

/* Returns with the lock held. */
static mcpg_status_t enter(fake_store_t *s) {
    pthread_mutex_lock(&s->mu);
    s->calls++;
    s->stuck++;
    pthread_cond_broadcast(&s->changed);
    while (s->mode == STORE_HANGS) pthread_cond_wait(&s->changed, &s->mu);
    s->stuck--;
    pthread_cond_broadcast(&s->changed);
    return s->mode == STORE_FAILS ? MCPG_SYSTEM : MCPG_OK;
}

static mcpg_status_t leave(fake_store_t *s, mcpg_status_t status) {
    pthread_mutex_unlock(&s->mu);
    return status;
}

static size_t give(const fake_store_t *s, void *value, size_t cap) {
    memcpy(value, s->record, s->record_len < cap ? s->record_len : cap);
    return s->record_len;
}

static mcpg_status_t get(void *user, const char *key, void *value, size_t cap, size_t *len_out, uint32_t timeout_ms) {
    (void)key;
    (void)timeout_ms;
    fake_store_t *s = user;
    mcpg_status_t status = enter(s);
    if (status == MCPG_OK && s->record_len == 0) status = MCPG_TIMED_OUT;
    if (status == MCPG_OK) *len_out = give(s, value, cap);
    return leave(s, status);
}

static mcpg_status_t set(void *user, const char *key, const void *value, size_t len) {
    (void)user, (void)key, (void)value, (void)len;
    return MCPG_NOT_SUPPORTED;
}

static mcpg_status_t compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                 const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out) {
    (void)key;
    fake_store_t *s = user;
    mcpg_status_t status = enter(s);
    if (status != MCPG_OK) return leave(s, status);
    if (expected_len == s->record_len && memcmp(expected, s->record, expected_len) == 0) {
        memcpy(s->record, desired, desired_len);
        s->record_len = desired_len;
    }
    *len_out = give(s, value, cap);
    return leave(s, MCPG_OK);
}

static mcpg_status_t add(void *user, const char *key, int64_t delta, int64_t *value_out) {
    (void)key;
    fake_store_t *s = user;
    mcpg_status_t status = enter(s);
    if (status == MCPG_OK) *value_out = s->term += delta;
    return leave(s, status);
}

static void set_mode(fake_store_t *s, store_mode_t mode) {
    pthread_mutex_lock(&s->mu);
    s->mode = mode;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mu);
}

/* Until that many callbacks are inside the store. */
static void await_stuck(fake_store_t *s, uint32_t count) {
    struct timespec limit = in_seconds(20);
    pthread_mutex_lock(&s->mu);
    int rc = 0;
    while (s->stuck != count && rc == 0) rc = pthread_cond_timedwait(&s->changed, &s->mu, &limit);
    pthread_mutex_unlock(&s->mu);
    assert_int_equal(rc, 0);
}

static int setup(void **state) {
    unsetenv("MOONCAKE_COORDINATOR");
    fake_store_t *s = calloc(1, sizeof(*s));
    if (s == NULL) return -1;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    *state = s;
    return 0;
}

static int teardown(void **state) {
    fake_store_t *s = *state;
    set_mode(s, STORE_WORKS);
    await_stuck(s, 0);
    pthread_mutex_lock(&s->mu); /* the last one is out of the lock, too */
    pthread_mutex_unlock(&s->mu);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mu);
    free(s);
    return 0;
}

static void quiet(void *user, mcpg_log_level_t level, const char *line) {
    (void)user, (void)level, (void)line;
}

static mcpg_status_t create(fake_store_t *s, bool may_host, uint64_t timeout_us, mcpg_context_t **out, char *error) {
    const mcpg_kv_t kv = {s, get, set, compare_set, add};
    mcpg_config_t config = MCPG_CONFIG_INITIALIZER;
    config.kv = &kv;
    config.may_host_coordinator = may_host;
    config.connect_timeout_us = timeout_us;
    config.log = quiet;
    return mcpg_context_create(&config, out, error, 512);
}

static mcpg_group_t *found(mcpg_context_t *c) {
    const uint32_t order[] = {0};
    mcpg_group_config_t config = MCPG_GROUP_CONFIG_INITIALIZER;
    config.rank_order = order;
    config.group_size = 1;
    config.timeout_us = 20000000;
    mcpg_group_t *g = NULL;
    assert_int_equal(mcpg_group_create(c, &config, &g), MCPG_OK);
    return g;
}

static mcpg_work_t *barrier(mcpg_group_t *g) {
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_BARRIER;
    mcpg_work_t *w = NULL;
    assert_int_equal(mcpg_group_submit(g, &op, &w), MCPG_OK);
    assert_int_equal(mcpg_work_wait(w, 20000000), MCPG_OK);
    return w;
}

static void create_with_a_store_that_fails(void **state) {
    mcpg_context_t *c = NULL;
    char error[512] = "";
    set_mode(*state, STORE_FAILS);
    uint64_t t0 = now_us();
    assert_int_equal(create(*state, true, 20000000, &c, error), MCPG_UNAVAILABLE);
    assert_true(now_us() - t0 < 5000000u);
    assert_non_null(strstr(error, "the key-value store did not answer a read"));
    assert_null(c);
}

static void create_with_a_store_that_hangs(void **state) {
    fake_store_t *s = *state;
    mcpg_context_t *c = NULL;
    char error[512] = "";
    set_mode(s, STORE_HANGS);
    uint64_t t0 = now_us();
    assert_int_equal(create(s, true, 200000, &c, error), MCPG_UNAVAILABLE);
    assert_true(now_us() - t0 < 10000000u);
    assert_non_null(strstr(error, "the key-value store has not answered within"));
    assert_null(c);
    pthread_mutex_lock(&s->mu);
    uint32_t calls = s->calls;
    pthread_mutex_unlock(&s->mu);
    set_mode(s, STORE_WORKS);
    await_stuck(s, 0);
    assert_int_equal(create(s, true, 20000000, &c, error), MCPG_OK); /* the earlier one published nothing */
    assert_int_equal(calls, 1);
    mcpg_context_destroy(c);
}

/* The host of the coordinator: the job goes on, and its end is not held up. */
static void store_lost_under_the_host(void **state) {
    fake_store_t *s = *state;
    mcpg_context_t *c = NULL;
    char error[512] = "";
    assert_int_equal(create(s, true, 20000000, &c, error), MCPG_OK);
    mcpg_group_t *g = found(c);
    set_mode(s, STORE_HANGS);
    mcpg_work_release(barrier(g));
    uint64_t t0 = now_us();
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
    assert_true(now_us() - t0 < 15000000u);
}

/* Contact is lost, so the record is watched, and the store hangs: still an end in bounded time. */
static void store_and_coordinator_lost(void **state) {
    fake_store_t *s = *state;
    mcpg_coordinator_config_t config = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    config.fresh = true;
    config.log = quiet;
    mcpg_coordinator_t *coordinator = NULL;
    char error[512] = "", address[256];
    assert_int_equal(mcpg_coordinator_start(&config, &coordinator, error, sizeof(error)), MCPG_OK);
    (void)mcpg_coordinator_address(coordinator, address, sizeof(address));
    s->record_len = (size_t)snprintf(s->record, sizeof(s->record), "mcpg1 open 1 %s", address);
    mcpg_context_t *c = NULL;
    assert_int_equal(create(s, false, 20000000, &c, error), MCPG_OK);
    mcpg_group_t *g = found(c);
    set_mode(s, STORE_HANGS);
    mcpg_coordinator_stop(coordinator);
    await_stuck(s, 1);
    mcpg_work_release(barrier(g)); /* nobody is needed for it */
    uint64_t t0 = now_us();
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
    assert_true(now_us() - t0 < 20000000u);
}

static void never(void *user, mcpg_work_t *work) {
    (void)user, (void)work;
    abort();
}

static void work_outlives_its_context(void **state) {
    mcpg_context_t *c = NULL;
    char error[512] = "";
    assert_int_equal(create(*state, true, 20000000, &c, error), MCPG_OK);
    mcpg_work_t *w = barrier(found(c));
    mcpg_context_destroy(c);
    assert_int_equal(mcpg_work_test(w), MCPG_OK);
    assert_int_equal(mcpg_work_wait(w, 1000), MCPG_OK);
    assert_int_equal(mcpg_work_on_complete(w, never, NULL), MCPG_SHUTTING_DOWN);
    mcpg_work_release(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(create_with_a_store_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(create_with_a_store_that_hangs, setup, teardown),
        cmocka_unit_test_setup_teardown(store_lost_under_the_host, setup, teardown),
        cmocka_unit_test_setup_teardown(store_and_coordinator_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(work_outlives_its_context, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
