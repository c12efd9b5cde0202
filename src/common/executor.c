/* executor.c: one thread that takes items from a bounded ring in order and sleeps, without a tick, until a post or the
 * armed time. Payloads are copied into a byte ring (the slab), so that posting never allocates. Never runs a handler
 * under its lock.
 */
#include "common/executor.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_QUEUE 4096u
#define DEFAULT_SLAB  ((size_t)4 << 20)

typedef struct {
    mcpg_exec_item_t item;
    uint64_t slab_end; /* slab position after this item's payload */
} entry_t;

struct mcpg_executor {
    mcpg_executor_config_t config;
    char name[16];
    pthread_t thread;
    pthread_mutex_t lock; /* protects all below but armed_us */
    pthread_cond_t wake;
    bool stopping, sleeping;
    entry_t *ring;
    uint32_t head, count;
    uint8_t *slab; /* positions rise for ever, the offset is the position modulo the size */
    uint64_t slab_head, slab_tail;
    uint64_t armed_us; /* handler thread only */
};

static _Thread_local const mcpg_executor_t *current;

mcpg_time_t mcpg__now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (mcpg_time_t){.us = (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u};
}

/* Place for len contiguous bytes, 8-aligned, or NULL. Called with the lock held. */
static uint8_t *slab_take(mcpg_executor_t *e, size_t len, uint64_t *end_out) {
    size_t cap = e->config.slab_cap;
    size_t size = (len + 7u) & ~(size_t)7u;
    if (e->slab_head == e->slab_tail) e->slab_head = e->slab_tail = 0;
    size_t at = (size_t)(e->slab_tail % cap);
    size_t skipped = at + size > cap ? cap - at : 0;
    if (e->slab_tail + skipped + size - e->slab_head > cap) return NULL;
    uint64_t start = e->slab_tail + skipped;
    *end_out = e->slab_tail = start + size;
    return e->slab + start % cap;
}

mcpg_status_t mcpg__executor_post(mcpg_executor_t *executor, const mcpg_exec_item_t *item) {
    if (item->len > executor->config.slab_cap - 8u) return MCPG_LIMIT;
    mcpg_status_t status = MCPG_OK;
    pthread_mutex_lock(&executor->lock);
    entry_t entry = {.item = *item};
    if (executor->stopping) {
        status = MCPG_SHUTTING_DOWN;
    } else if (executor->count == executor->config.queue_cap) {
        status = MCPG_BUSY;
    } else if (item->len > 0) {
        uint8_t *copy = slab_take(executor, item->len, &entry.slab_end);
        if (copy == NULL)
            status = MCPG_BUSY;
        else
            entry.item.bytes = memcpy(copy, item->bytes, item->len);
    } else {
        entry.item.bytes = NULL;
        entry.slab_end = 0; /* holds nothing, so frees nothing */
    }
    if (status == MCPG_OK) {
        executor->ring[(executor->head + executor->count++) % executor->config.queue_cap] = entry;
        /* Under the lock: after it, stop may already have destroyed the condition. */
        if (executor->sleeping) pthread_cond_signal(&executor->wake);
        executor->sleeping = false;
    }
    pthread_mutex_unlock(&executor->lock);
    return status;
}

void mcpg__executor_arm(mcpg_executor_t *executor, mcpg_time_t at) {
    MCPG_ASSERT(current == executor);
    executor->armed_us = at.us;
}

bool mcpg__executor_is_current(const mcpg_executor_t *executor) {
    return current == executor;
}

/* Called with the lock held; returns with it held. */
static void sleep_until_armed(mcpg_executor_t *e) {
    e->sleeping = true;
    if (e->armed_us == UINT64_MAX) {
        pthread_cond_wait(&e->wake, &e->lock);
    } else {
        struct timespec until = {.tv_sec = (time_t)(e->armed_us / 1000000u),
                                 .tv_nsec = (long)(e->armed_us % 1000000u) * 1000};
        pthread_cond_timedwait(&e->wake, &e->lock, &until);
    }
    e->sleeping = false;
}

/* Runs the oldest item. Called with the lock held; returns with it held. */
static void run_one(mcpg_executor_t *e) {
    entry_t entry = e->ring[e->head];
    e->head = (e->head + 1) % e->config.queue_cap;
    e->count--;
    pthread_mutex_unlock(&e->lock);
    e->config.item(e->config.user, &entry.item);
    pthread_mutex_lock(&e->lock);
    if (entry.slab_end > e->slab_head) e->slab_head = entry.slab_end; /* only now: the handler borrowed the payload */
}

static void *executor_main(void *arg) {
    mcpg_executor_t *e = arg;
    current = e;
    pthread_setname_np(pthread_self(), e->name);
    pthread_mutex_lock(&e->lock);
    for (;;) {
        bool ran = false;
        if (e->armed_us != UINT64_MAX && !e->stopping) {
            mcpg_time_t now = mcpg__now();
            if (now.us >= e->armed_us) {
                e->armed_us = UINT64_MAX;
                pthread_mutex_unlock(&e->lock);
                e->config.timer(e->config.user, now);
                pthread_mutex_lock(&e->lock);
                ran = true;
            }
        }
        if (e->count > 0) {
            run_one(e);
            ran = true;
        }
        if (ran) continue;
        if (e->stopping) break;
        sleep_until_armed(e);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static mcpg_status_t start_thread(mcpg_executor_t *e) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals belong to the application's threads */
    int failed = pthread_create(&e->thread, NULL, executor_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0 ? MCPG_OK : MCPG_SYSTEM;
}

mcpg_status_t mcpg__executor_start(const mcpg_executor_config_t *config, mcpg_executor_t **out) {
    if (config->item == NULL || config->timer == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_status_t status = MCPG_NO_MEMORY;
    mcpg_executor_t *e = calloc(1, sizeof *e);
    if (e == NULL) return status;
    e->config = *config;
    if (e->config.queue_cap == 0) e->config.queue_cap = DEFAULT_QUEUE;
    if (e->config.slab_cap == 0) e->config.slab_cap = DEFAULT_SLAB;
    e->config.slab_cap = (e->config.slab_cap + 15u) & ~(size_t)7u;
    e->armed_us = UINT64_MAX;
    const char *name = config->thread_name != NULL ? config->thread_name : "mcpg-exec";
    memcpy(e->name, name, strnlen(name, sizeof e->name - 1));
    e->ring = calloc(e->config.queue_cap, sizeof *e->ring);
    e->slab = malloc(e->config.slab_cap);
    if (e->ring == NULL || e->slab == NULL) goto err_memory;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    status = start_thread(e);
    if (status != MCPG_OK) goto err_sync;
    *out = e;
    return MCPG_OK;
err_sync:
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
err_memory:
    free(e->slab);
    free(e->ring);
    free(e);
    return status;
}

void mcpg__executor_stop(mcpg_executor_t *executor) {
    if (executor == NULL) return;
    MCPG_ASSERT(current != executor);
    pthread_mutex_lock(&executor->lock);
    executor->stopping = true;
    pthread_cond_signal(&executor->wake);
    pthread_mutex_unlock(&executor->lock);
    pthread_join(executor->thread, NULL);
    pthread_cond_destroy(&executor->wake);
    pthread_mutex_destroy(&executor->lock);
    free(executor->slab);
    free(executor->ring);
    free(executor);
}
