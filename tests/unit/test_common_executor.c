/* test_common_executor.c: order, bounds, timer, stop of the serialized executor. Every wait is a condition with a 20 s
 * limit; nothing is synchronised by sleeping.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/executor.h"

typedef struct {
    mcpg_executor_t *executor;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t seen, sum_bytes, timers, next_of[4];
    mcpg_time_t timer_at;
    bool in_order, gate_closed, gate_reached, posted_after_stop_refused;
} probe_t;

enum { COUNT, GATE, ARM, FROM_HANDLER };

static void probe_init(probe_t *p) {
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->in_order = true;
}
static void probe_free(probe_t *p) {
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}
static struct timespec limit(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += 20;
    return ts;
}
static void wait_until(probe_t *p, const uint64_t *value, uint64_t at_least) {
    struct timespec until = limit();
    pthread_mutex_lock(&p->lock);
    while (*value < at_least && pthread_cond_timedwait(&p->changed, &p->lock, &until) == 0) {
    }
    bool reached = *value >= at_least;
    pthread_mutex_unlock(&p->lock);
    assert_true(reached);
}

static void on_item(void *user, const mcpg_exec_item_t *item) {
    probe_t *p = user;
    if (item->kind == ARM) mcpg__executor_arm(p->executor, (mcpg_time_t){item->a});
    if (item->kind == FROM_HANDLER) {
        uint8_t byte = (uint8_t)item->b;
        mcpg_exec_item_t next = {.kind = COUNT, .a = 0, .b = item->b, .bytes = &byte, .len = 1};
        if (mcpg__executor_post(p->executor, &next) != MCPG_OK) p->posted_after_stop_refused = true;
    }
    pthread_mutex_lock(&p->lock);
    if (item->kind == GATE) {
        p->gate_reached = true;
        pthread_cond_broadcast(&p->changed);
        while (p->gate_closed) pthread_cond_wait(&p->changed, &p->lock);
    }
    if (item->kind == COUNT) {
        p->in_order = p->in_order && item->b == p->next_of[item->a];
        p->next_of[item->a] = item->b + 1;
        for (size_t i = 0; i < item->len; i++) p->in_order = p->in_order && item->bytes[i] == (uint8_t)(item->b + i);
        p->sum_bytes += item->len;
    }
    p->seen++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
static void on_timer(void *user, mcpg_time_t now) {
    probe_t *p = user;
    pthread_mutex_lock(&p->lock);
    p->timers++;
    p->timer_at = now;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
static void start(probe_t *p, uint32_t queue, size_t slab) {
    probe_init(p);
    mcpg_executor_config_t config = {.thread_name = "test-executor-long",
                                     .queue_cap = queue,
                                     .slab_cap = slab,
                                     .user = p,
                                     .item = on_item,
                                     .timer = on_timer};
    assert_int_equal(mcpg__executor_start(&config, &p->executor), MCPG_OK);
}
static void close_gate(probe_t *p) {
    struct timespec until = limit();
    p->gate_closed = true;
    assert_int_equal(mcpg__executor_post(p->executor, &(mcpg_exec_item_t){.kind = GATE}), MCPG_OK);
    pthread_mutex_lock(&p->lock);
    while (!p->gate_reached && pthread_cond_timedwait(&p->changed, &p->lock, &until) == 0) {
    }
    bool reached = p->gate_reached;
    pthread_mutex_unlock(&p->lock);
    assert_true(reached);
}
static void open_gate(probe_t *p) {
    pthread_mutex_lock(&p->lock);
    p->gate_closed = false;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

typedef struct {
    probe_t *probe;
    uint64_t id;
    uint32_t posts;
} poster_t;
static void *poster(void *arg) {
    poster_t *me = arg;
    uint8_t bytes[64];
    for (uint64_t n = 0; n < me->posts; n++) {
        size_t len = (size_t)((n * 7 + me->id) % sizeof bytes);
        for (size_t i = 0; i < len; i++) bytes[i] = (uint8_t)(n + i);
        mcpg_exec_item_t item = {.kind = COUNT, .a = me->id, .b = n, .bytes = bytes, .len = len};
        mcpg_status_t status;
        while ((status = mcpg__executor_post(me->probe->executor, &item)) == MCPG_BUSY)
            nanosleep(&(struct timespec){0, 100000}, NULL);
        if (status != MCPG_OK) return (void *)1;
    }
    return NULL;
}

/* Four posters into a queue and a slab that are both small: nothing lost, each one's order kept, payloads intact. */
static void test_many_posters(void **state) {
    (void)state;
    probe_t p;
    start(&p, 16, 512);
    pthread_t threads[4];
    poster_t posters[4];
    for (uint64_t i = 0; i < 4; i++) {
        posters[i] = (poster_t){&p, i, 2000};
        assert_int_equal(pthread_create(&threads[i], NULL, poster, &posters[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    mcpg__executor_stop(p.executor);
    assert_int_equal(p.seen, 8000);
    assert_true(p.in_order);
    assert_true(p.sum_bytes > 0);
    probe_free(&p);
}

/* A payload's place is free only after its handler returned, which is later than what the handler told. */
static mcpg_status_t post_when_free(mcpg_executor_t *executor, const mcpg_exec_item_t *item) {
    mcpg_time_t end = {mcpg__now().us + 5000000};
    mcpg_status_t status;
    while ((status = mcpg__executor_post(executor, item)) == MCPG_BUSY && mcpg__now().us < end.us)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    return status;
}

static void test_bounds(void **state) {
    (void)state;
    static const uint8_t payload[2048];
    probe_t p;
    start(&p, 8, 1024);
    close_gate(&p);
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = COUNT, .a = 1, .b = i}), MCPG_OK);
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = COUNT}), MCPG_BUSY);
    open_gate(&p);
    wait_until(&p, &p.seen, 9);
    p.gate_reached = false;
    close_gate(&p);
    mcpg_exec_item_t big = {.kind = FROM_HANDLER + 1, .bytes = payload, .len = 600};
    assert_int_equal(mcpg__executor_post(p.executor, &big), MCPG_OK);
    assert_int_equal(mcpg__executor_post(p.executor, &big), MCPG_BUSY); /* the slab is full, the queue is not */
    big.len = sizeof payload;
    assert_int_equal(mcpg__executor_post(p.executor, &big), MCPG_LIMIT);
    open_gate(&p);
    wait_until(&p, &p.seen, 11);
    big.len = 1000;
    assert_int_equal(post_when_free(p.executor, &big), MCPG_OK); /* free again, though the ring had to wrap */
    mcpg__executor_stop(p.executor);
    assert_int_equal(p.seen, 12);
    assert_true(p.in_order);
    probe_free(&p);
}

static void test_timer(void **state) {
    (void)state;
    probe_t p;
    start(&p, 0, 0);
    mcpg_time_t begin = mcpg__now();
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = ARM, .a = begin.us + 30000}), MCPG_OK);
    wait_until(&p, &p.timers, 1);
    pthread_mutex_lock(&p.lock);
    assert_true(p.timer_at.us >= begin.us + 30000);
    pthread_mutex_unlock(&p.lock);
    /* Re-armed by a later item: only the last time counts; a time in the past fires at once; MAX disarms. */
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = ARM, .a = begin.us + 3600000000u}),
                     MCPG_OK);
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = ARM, .a = 1}), MCPG_OK);
    wait_until(&p, &p.timers, 2);
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = ARM, .a = UINT64_MAX}), MCPG_OK);
    mcpg__executor_stop(p.executor);
    assert_int_equal(p.timers, 2);
    probe_free(&p);
}

/* Stop runs what is queued; what a handler posts then is refused; an armed timer does not delay it. */
static void test_stop_drains(void **state) {
    (void)state;
    probe_t p;
    start(&p, 64, 0);
    close_gate(&p);
    assert_int_equal(
        mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = ARM, .a = mcpg__now().us + 3600000000u}), MCPG_OK);
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = COUNT, .a = 2, .b = i}), MCPG_OK);
    open_gate(&p);
    mcpg__executor_stop(p.executor);
    assert_int_equal(p.next_of[2], 20);
    assert_false(p.posted_after_stop_refused);
    probe_free(&p);
    mcpg__executor_stop(NULL);
}

static void test_post_from_handler(void **state) {
    (void)state;
    probe_t p;
    start(&p, 4, 1024);
    assert_false(mcpg__executor_is_current(p.executor));
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = FROM_HANDLER}), MCPG_OK);
    wait_until(&p, &p.seen, 2);
    /* An item without a payload that waits behind one with a payload frees nothing of what is posted while it runs. */
    close_gate(&p);
    static const uint8_t payload[600];
    mcpg_exec_item_t big = {.kind = FROM_HANDLER + 1, .bytes = payload, .len = sizeof payload};
    assert_int_equal(mcpg__executor_post(p.executor, &big), MCPG_OK);
    assert_int_equal(mcpg__executor_post(p.executor, &(mcpg_exec_item_t){.kind = FROM_HANDLER, .b = 1}), MCPG_OK);
    open_gate(&p);
    wait_until(&p, &p.seen, 6);
    p.gate_reached = false;
    close_gate(&p);
    assert_int_equal(post_when_free(p.executor, &big), MCPG_OK);
    assert_int_equal(mcpg__executor_post(p.executor, &big), MCPG_BUSY); /* it would lie over the first */
    open_gate(&p);
    mcpg__executor_stop(p.executor);
    assert_int_equal(p.seen, 8);
    assert_false(p.posted_after_stop_refused);
    probe_free(&p);
    mcpg_executor_config_t config = {0};
    assert_int_equal(mcpg__executor_start(&config, &p.executor), MCPG_INVALID_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_posters), cmocka_unit_test(test_bounds),
                                       cmocka_unit_test(test_timer), cmocka_unit_test(test_stop_drains),
                                       cmocka_unit_test(test_post_from_handler)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
