/* work.c: works: reference counted, pooled, readable without the engine lock once complete.
 *
 * A work holds one reference for its caller and one for the data plane until it is complete. It may outlive group and
 * data plane: the core it came from is counted. Never looks at groups or links except to wait.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

mcpg_dp_core_t *mcpg__core_new(void) {
    mcpg_dp_core_t *core = (mcpg_dp_core_t *)calloc(1, sizeof *core);
    if (core == NULL) return NULL;
    atomic_init(&core->refs, 1u);
    if (pthread_mutex_init(&core->lock, NULL) != 0) {
        free(core);
        return NULL;
    }
    core->callbacks_end = &core->callbacks;
    return core;
}

static void work_free(mcpg_dp_work_t *w) {
    free(w->segs);
    free(w->error);
    free(w);
}

void mcpg__core_release(mcpg_dp_core_t *core) {
    if (atomic_fetch_sub_explicit(&core->refs, 1u, memory_order_acq_rel) != 1u) return;
    for (uint32_t i = 0; i < MCPG_WORK_CLASSES; i++) {
        while (core->pool[i] != NULL) {
            mcpg_dp_work_t *w = core->pool[i];
            core->pool[i] = w->link;
            work_free(w);
        }
    }
    (void)pthread_mutex_destroy(&core->lock);
    free(core);
}

static uint32_t class_of(uint32_t capacity) {
    uint32_t c = 0;
    while (c + 1u < MCPG_WORK_CLASSES && (UINT32_C(1) << c) < capacity) c++;
    return c;
}

mcpg_dp_work_t *mcpg__work_get(mcpg_dp_t *dp, uint32_t capacity) {
    mcpg_dp_core_t *core = dp->core;
    const uint32_t c = class_of(capacity);
    (void)pthread_mutex_lock(&core->lock);
    mcpg_dp_work_t *w = core->pool[c];
    if (w != NULL) core->pool[c] = w->link;
    (void)pthread_mutex_unlock(&core->lock);
    if (w == NULL) {
        w = (mcpg_dp_work_t *)calloc(1, sizeof *w + (sizeof w->hint[0] << c));
        if (w == NULL) return NULL;
        w->core = core;
        w->class_index = c;
        atomic_init(&w->state, (int)MCPG_W_WAITING);
        atomic_init(&w->refs, 0u);
    }
    atomic_fetch_add_explicit(&core->refs, 1u, memory_order_relaxed);
    atomic_store_explicit(&w->refs, 2u, memory_order_relaxed);
    mcpg__work_set_state(w, MCPG_W_WAITING);
    w->next = w->prev = w->link = NULL;
    w->dp = dp;
    w->group = NULL;
    w->exec = NULL;
    w->seq = w->deadline_us = MCPG_NO_SEQ;
    w->pair_seq = w->report_id = 0;
    w->pair_base = (mcpg_view_id_t){0, 0};
    w->status = MCPG_OK;
    w->local_success = true;
    w->asked = false;
    w->func = NULL;
    w->capacity = capacity;
    if (w->error != NULL) w->error[0] = '\0';
    memset(w->hint, 0, capacity * sizeof w->hint[0]);
    return w;
}

mcpg_status_t mcpg__work_copy_op(mcpg_dp_work_t *w, const mcpg_op_t *op) {
    const uint32_t need = op->in_count + op->out_count;
    if (need > w->segs_cap) {
        mcpg_seg_t *segs = (mcpg_seg_t *)realloc(w->segs, need * sizeof *segs);
        if (segs == NULL) return MCPG_NO_MEMORY;
        w->segs = segs;
        w->segs_cap = need;
    }
    w->op = *op;
    if (op->in_count != 0) memcpy(w->segs, op->ins, op->in_count * sizeof *w->segs);
    if (op->out_count != 0) memcpy(w->segs + op->in_count, op->outs, op->out_count * sizeof *w->segs);
    w->op.ins = w->segs;
    w->op.outs = w->segs == NULL ? NULL : w->segs + op->in_count;
    return MCPG_OK;
}

void mcpg__work_fail(mcpg_dp_work_t *w, mcpg_status_t status, const char *fmt, ...) {
    w->status = status;
    w->local_success = false;
    if (w->error == NULL) w->error = (char *)malloc(MCPG_ERROR_CAP);
    if (w->error == NULL) return; /* the status text has to do */
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(w->error, MCPG_ERROR_CAP, fmt, args);
    va_end(args);
}

void mcpg__work_set_state(mcpg_dp_work_t *w, mcpg_wstate_t state) {
    atomic_store_explicit(&w->state, (int)state, memory_order_release);
}

static void queue_callback(mcpg_dp_core_t *core, mcpg_dp_work_t *w) {
    w->link = NULL;
    *core->callbacks_end = w;
    core->callbacks_end = &w->link;
}

void mcpg__work_complete(mcpg_dp_work_t *w) {
    mcpg_dp_core_t *core = w->core;
    w->group = NULL;
    if (w->dp->waiting != 0) w->dp->kick = true;
    (void)pthread_mutex_lock(&core->lock);
    mcpg__work_set_state(w, MCPG_W_COMPLETE);
    const bool call = w->func != NULL;
    if (call) queue_callback(core, w);
    (void)pthread_mutex_unlock(&core->lock);
    if (call) {
        w->dp->kick = true;
    } else {
        mcpg__dp_work_release(w);
    }
}

/* One thread at a time, so that callbacks run in the order of completion; it also runs what is queued meanwhile. */
static bool run_callbacks(mcpg_dp_core_t *core) {
    bool any = false;
    (void)pthread_mutex_lock(&core->lock);
    while (!core->calling && core->callbacks != NULL) {
        mcpg_dp_work_t *w = core->callbacks;
        core->callbacks = w->link;
        if (core->callbacks == NULL) core->callbacks_end = &core->callbacks;
        core->calling = any = true;
        (void)pthread_mutex_unlock(&core->lock);
        w->func(w->user, w);
        mcpg__dp_work_release(w);
        (void)pthread_mutex_lock(&core->lock);
        core->calling = false;
    }
    (void)pthread_mutex_unlock(&core->lock);
    return any;
}

bool mcpg__dp_unlocked_hook(void *user) {
    return run_callbacks(((mcpg_dp_t *)user)->core);
}

mcpg_status_t mcpg__dp_work_test(mcpg_dp_work_t *work) {
    return mcpg__work_state(work) == MCPG_W_COMPLETE ? work->status : MCPG_IN_PROGRESS;
}

static bool work_is_complete(void *arg) {
    return mcpg__work_state((const mcpg_dp_work_t *)arg) == MCPG_W_COMPLETE;
}

mcpg_status_t mcpg__dp_work_wait(mcpg_dp_work_t *work, uint64_t timeout_us) {
    if (mcpg__work_state(work) == MCPG_W_COMPLETE) return work->status;
    mcpg_dp_t *dp = work->dp;
    const uint64_t now = mcpg__now().us;
    const uint64_t deadline = timeout_us > MCPG_NO_SEQ - now ? MCPG_NO_SEQ : now + timeout_us;
    mcpg__engine_lock(dp->engine);
    const bool done = mcpg__dp_wait(dp, work_is_complete, work, deadline);
    mcpg__dp_unlock(dp); /* what this thread completed may be what another one waits for */
    return done ? work->status : MCPG_TIMED_OUT;
}

mcpg_status_t mcpg__dp_work_failed(const mcpg_dp_work_t *work, int32_t *hint, uint32_t cap, bool *local_success_out) {
    if (mcpg__work_state(work) != MCPG_W_COMPLETE) return MCPG_INVALID_STATE;
    const uint32_t n = cap < work->capacity ? cap : work->capacity;
    if (hint != NULL && n != 0) memcpy(hint, work->hint, n * sizeof *hint);
    if (local_success_out != NULL) *local_success_out = work->local_success;
    return MCPG_OK;
}

const char *mcpg__dp_work_error(const mcpg_dp_work_t *work) {
    if (mcpg__work_state(work) != MCPG_W_COMPLETE || work->status == MCPG_OK) return "";
    return work->error != NULL && work->error[0] != '\0' ? work->error : mcpg_status_text(work->status);
}

mcpg_op_kind_t mcpg__dp_work_kind(const mcpg_dp_work_t *work) {
    return work->op.kind;
}

uint64_t mcpg__dp_work_seq(const mcpg_dp_work_t *work) {
    return work->seq;
}

mcpg_status_t mcpg__dp_work_on_complete(mcpg_dp_work_t *work, void (*func)(void *user, mcpg_dp_work_t *work),
                                        void *user) {
    mcpg_dp_core_t *core = work->core;
    if (func == NULL) return MCPG_INVALID_ARGUMENT;
    (void)pthread_mutex_lock(&core->lock);
    const bool again = work->asked;
    const bool complete = mcpg__work_state(work) == MCPG_W_COMPLETE;
    if (!again) {
        work->asked = true;
        work->user = user;
        work->func = func;
    }
    if (!again && complete) { /* behind the callbacks of earlier works */
        mcpg__dp_work_retain(work);
        queue_callback(core, work);
        atomic_fetch_add_explicit(&core->refs, 1u, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&core->lock);
    if (again) return MCPG_INVALID_STATE;
    if (complete) {
        (void)run_callbacks(core);
        mcpg__core_release(core);
    }
    return MCPG_OK;
}

void mcpg__dp_work_retain(mcpg_dp_work_t *work) {
    atomic_fetch_add_explicit(&work->refs, 1u, memory_order_relaxed);
}

void mcpg__dp_work_release(mcpg_dp_work_t *work) {
    if (work == NULL || atomic_fetch_sub_explicit(&work->refs, 1u, memory_order_acq_rel) != 1u) return;
    mcpg_dp_core_t *core = work->core;
    (void)pthread_mutex_lock(&core->lock);
    work->link = core->pool[work->class_index];
    core->pool[work->class_index] = work;
    (void)pthread_mutex_unlock(&core->lock);
    mcpg__core_release(core);
}
