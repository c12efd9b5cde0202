/* test_ops_async.c: many outstanding operations, callbacks, several threads and groups, waiting and giving up, over the
 * real link layer with a thread per rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "ops_world.h"

#define OUTSTANDING 2000u
#define LIMIT_US    60000000u

static const char *const transports[] = {"shm", "tcp"};

typedef struct {
    world_t *w;
    uint32_t rank, gid, rounds;
    bool backwards;
    const char *failed; /* assertions of cmocka belong to the main thread */
    atomic_uint callbacks;
    uint64_t last_seq;
} worker_t;

static void on_complete(void *user, mcpg_dp_work_t *work) {
    worker_t *t = user;
    const uint64_t seq = mcpg__dp_work_seq(work);
    if (atomic_load(&t->callbacks) != 0 && seq != t->last_seq + 1u) t->failed = "completed out of order";
    t->last_seq = seq;
    atomic_fetch_add(&t->callbacks, 1u);
}

/* Issues everything, then waits for all of it. */
static void *outstanding_main(void *arg) {
    worker_t *t = arg;
    float *in = calloc(OUTSTANDING, sizeof *in), *out = calloc(OUTSTANDING, sizeof *out);
    mcpg_dp_work_t **work = calloc(OUTSTANDING, sizeof *work);
    char error[256];
    for (uint32_t i = 0; i < OUTSTANDING && t->failed == NULL; i++) {
        in[i] = (float)(i + t->rank);
        const mcpg_op_t op = world_allreduce(&in[i], &out[i], 1);
        if (world_try(t->w, t->rank, t->gid, &op, &work[i], error, sizeof error) != MCPG_OK) t->failed = "submit";
        if (t->failed == NULL && mcpg__dp_work_on_complete(work[i], on_complete, t) != MCPG_OK)
            t->failed = "on_complete";
    }
    for (uint32_t k = 0; k < OUTSTANDING && t->failed == NULL; k++) {
        const uint32_t i = t->backwards ? OUTSTANDING - 1u - k : k;
        if (mcpg__dp_work_wait(work[i], LIMIT_US) != MCPG_OK) t->failed = "wait";
        float want = 0;
        for (uint32_t r = 0; r < t->w->n; r++) want += (float)(i + r);
        if (t->failed == NULL && out[i] != want) t->failed = "wrong sum";
    }
    for (uint32_t i = 0; i < OUTSTANDING; i++) mcpg__dp_work_release(work[i]);
    if (t->failed == NULL) {
        free(in);
        free(out);
    }
    free(work);
    return NULL;
}

static void run_threads(worker_t *t, uint32_t n, void *(*main_func)(void *)) {
    pthread_t thread[2u * WORLD_MAX];
    for (uint32_t i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, main_func, &t[i]), 0);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (uint32_t i = 0; i < n; i++)
        if (t[i].failed != NULL) fail_msg("rank %u group %u: %s", t[i].rank, t[i].gid, t[i].failed);
}

static void two_thousand_outstanding_complete_in_order(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const world_config_t config = {.transports = transports[k]};
        world_t *w = world_new(3, &config);
        worker_t t[3];
        memset(t, 0, sizeof t);
        for (uint32_t r = 0; r < 3; r++) {
            t[r].w = w;
            t[r].rank = r;
            t[r].gid = WORLD_GID;
            t[r].backwards = r == 1;
        }
        run_threads(t, 3, outstanding_main);
        world_free(w); /* runs the callbacks that are left */
        for (uint32_t r = 0; r < 3; r++) assert_int_equal(atomic_load(&t[r].callbacks), OUTSTANDING);
    }
}

static void *synchronous_main(void *arg) {
    worker_t *t = arg;
    char error[256];
    for (uint32_t i = 0; i < t->rounds && t->failed == NULL; i++) {
        static const size_t counts[] = {1, 300, 5000};
        const size_t count = counts[i % 3u];
        float in[5000], out[5000];
        for (size_t e = 0; e < count; e++) in[e] = (float)(i + t->rank);
        const mcpg_op_t op = world_allreduce(in, out, count);
        mcpg_dp_work_t *work = NULL;
        if (world_try(t->w, t->rank, t->gid, &op, &work, error, sizeof error) != MCPG_OK) t->failed = "submit";
        if (t->failed == NULL && mcpg__dp_work_wait(work, LIMIT_US) != MCPG_OK) t->failed = "wait";
        if (t->failed == NULL && out[count - 1u] != (float)(2u * i + 1u)) t->failed = "wrong sum";
        mcpg__dp_work_release(work);
    }
    return NULL;
}

static void two_groups_from_two_threads(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const world_config_t config = {.transports = transports[k]};
        world_t *w = world_new(2, &config);
        world_group(w, 8, false);
        for (uint32_t r = 0; r < 2; r++) world_commit(w, r, 8, 1, 3u, 0, NULL, 0, false);
        worker_t t[4];
        memset(t, 0, sizeof t);
        for (uint32_t i = 0; i < 4; i++) {
            t[i].w = w;
            t[i].rank = i % 2u;
            t[i].gid = i < 2 ? WORLD_GID : 8;
            t[i].rounds = 300;
        }
        run_threads(t, 4, synchronous_main);
        world_free(w);
    }
}

static void waiting_gives_up_and_the_work_goes_on(void **state) {
    (void)state;
    const world_config_t config = {.transports = "shm"};
    world_t *w = world_new(2, &config);
    float in[2] = {1, 2}, out[2] = {0, 0};
    mcpg_op_t op = world_allreduce(&in[0], &out[0], 1);
    mcpg_dp_work_t *a = world_submit(w, 0, &op);
    assert_int_equal(mcpg__dp_work_wait(a, 20000), MCPG_TIMED_OUT);
    assert_int_equal(mcpg__dp_work_test(a), MCPG_IN_PROGRESS);
    assert_int_equal(mcpg__dp_work_failed(a, NULL, 0, NULL), MCPG_INVALID_STATE);
    assert_int_equal(mcpg__dp_flush(w->dp[0], (mcpg_gid_t){WORLD_GID}, LIMIT_US), MCPG_OK);
    op = world_allreduce(&in[1], &out[1], 1);
    mcpg_dp_work_t *b = world_submit(w, 1, &op);
    assert_int_equal(mcpg__dp_work_wait(b, LIMIT_US), MCPG_OK);
    assert_int_equal(mcpg__dp_work_wait(a, LIMIT_US), MCPG_OK);
    assert_true(out[0] == 3.0f && out[1] == 3.0f);
    assert_int_equal(mcpg__dp_quiesce(w->dp[0], (mcpg_gid_t){WORLD_GID}, LIMIT_US), MCPG_OK);
    mcpg__dp_resume(w->dp[0], (mcpg_gid_t){WORLD_GID});
    /* A work outlives its data plane, and one that is outstanding ends with it. */
    op = world_allreduce(&in[0], &out[0], 1);
    mcpg_dp_work_t *late = world_submit(w, 0, &op);
    char json[2048];
    assert_true(mcpg__dp_status_json(w->dp[0], json, sizeof json) < sizeof json);
    assert_non_null(strstr(json, "\"outstanding\":1"));
    world_free(w);
    assert_int_equal(mcpg__dp_work_test(late), MCPG_SHUTTING_DOWN);
    assert_int_equal(mcpg__dp_work_wait(late, 0), MCPG_SHUTTING_DOWN);
    assert_true(strlen(mcpg__dp_work_error(late)) > 10);
    mcpg__dp_work_release(late);
    mcpg__dp_work_release(a);
    mcpg__dp_work_release(b);
    mcpg__dp_work_release(NULL);
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint32_t done;
} latch_t;

static void latch_down(void *user, mcpg_dp_work_t *work) {
    latch_t *l = user;
    (void)work;
    (void)pthread_mutex_lock(&l->lock);
    l->done++;
    (void)pthread_cond_signal(&l->cond);
    (void)pthread_mutex_unlock(&l->lock);
}

static void nobody_waits_and_it_completes(void **state) {
    (void)state;
    static float in[2][300000], out[2][300000];
    for (size_t k = 0; k < 2; k++) {
        const world_config_t config = {.transports = transports[k]};
        world_t *w = world_new(2, &config);
        latch_t latch = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 60;
        mcpg_dp_work_t *work[2][10];
        for (uint32_t i = 0; i < 10; i++) {
            for (uint32_t r = 0; r < 2; r++) {
                const mcpg_op_t op = world_allreduce(in[r], out[r], i % 2 == 0 ? 1 : 300000);
                work[r][i] = world_submit(w, r, &op);
                assert_int_equal(mcpg__dp_work_on_complete(work[r][i], latch_down, &latch), MCPG_OK);
                assert_int_equal(mcpg__dp_work_on_complete(work[r][i], latch_down, &latch), MCPG_INVALID_STATE);
            }
        }
        (void)pthread_mutex_lock(&latch.lock);
        int rc = 0;
        while (latch.done < 20 && rc == 0) rc = pthread_cond_timedwait(&latch.cond, &latch.lock, &until);
        assert_int_equal(latch.done, 20);
        (void)pthread_mutex_unlock(&latch.lock);
        for (uint32_t i = 0; i < 20; i++) {
            assert_int_equal(mcpg__dp_work_test(work[i % 2][i / 2]), MCPG_OK);
            mcpg__dp_work_release(work[i % 2][i / 2]);
        }
        world_free(w);
    }
}

static void lost_process_is_hinted_over_the_real_links(void **state) {
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const world_config_t config = {.transports = transports[k], .manual = true};
        world_t *w = world_new(3, &config);
        float in[3] = {1, 2, 4}, out[3];
        mcpg_dp_work_t *work[3];
        for (uint32_t round = 0; round < 2; round++) {
            for (uint32_t r = 0; r < 3 - round; r++) {
                const mcpg_op_t op = world_allreduce(&in[r], &out[r], 1);
                work[r] = world_submit(w, r, &op);
            }
            if (round == 1) {
                /* As the agent says it when the process is proved dead. */
                for (uint32_t r = 0; r < 2; r++)
                    mcpg__dp_ops()->close_link(w->dp[r], (mcpg_rank_t){2}, w->inc[2], true);
            }
            for (uint32_t r = 0; r < 3 - round; r++) {
                assert_int_equal(world_wait(w, work[r]), MCPG_OK);
                assert_int_equal(world_hints(work[r]), round == 0 ? 0 : 4u);
                assert_true(out[r] == (round == 0 ? 7.0f : 3.0f));
                mcpg__dp_work_release(work[r]);
            }
        }
        world_free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_thousand_outstanding_complete_in_order), cmocka_unit_test(two_groups_from_two_threads),
        cmocka_unit_test(waiting_gives_up_and_the_work_goes_on),      cmocka_unit_test(nobody_waits_and_it_completes),
        cmocka_unit_test(lost_process_is_hinted_over_the_real_links),
    };
    return cmocka_run_group_tests_name("ops_async", tests, NULL, NULL);
}
