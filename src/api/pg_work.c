/* pg_work.c: work handles: a thin, pooled wrapper around the data plane's works, which outlive the data plane.
 *
 * Adds what the data plane does not know: the context (for callbacks and memory). Never runs user code: that is the
 * callback thread's.
 */
#include <stdlib.h>
#include <string.h>

#include "api/pg_internal.h"

mcpg_status_t mcpg__work_new(mcpg_context_t *context, mcpg_work_t **out) {
    pthread_mutex_lock(&context->works_mu);
    mcpg_work_t *w = context->spare;
    if (w != NULL) context->spare = w->next;
    pthread_mutex_unlock(&context->works_mu);
    if (w == NULL) w = malloc(sizeof(*w));
    if (w == NULL) return MCPG_NO_MEMORY;
    memset(w, 0, sizeof(*w));
    w->context = context;
    atomic_init(&w->refs, 1);
    atomic_fetch_add(&context->refs, 1);
    *out = w;
    return MCPG_OK;
}

void mcpg__work_unref(mcpg_work_t *w) {
    if (atomic_fetch_sub(&w->refs, 1) != 1) return;
    mcpg_context_t *context = w->context;
    if (w->dp != NULL) mcpg__dp_work_release(w->dp);
    pthread_mutex_lock(&context->works_mu);
    w->next = context->spare;
    context->spare = w;
    pthread_mutex_unlock(&context->works_mu);
    mcpg__context_unref(context);
}

/* A destroy ends every work first, so that the waiting threads come back; then it waits for them here. */
void mcpg__works_settle(mcpg_context_t *context) {
    pthread_mutex_lock(&context->works_mu);
    atomic_store(&context->settling, true);
    /* bounded: it sleeps, and every work has ended */
    while (atomic_load(&context->waiters) > 0) (void)pthread_cond_wait(&context->works_idle, &context->works_mu);
    pthread_mutex_unlock(&context->works_mu);
}

mcpg_status_t mcpg_work_test(mcpg_work_t *work) {
    if (mcpg__forked()) return MCPG_FORKED;
    return work != NULL ? mcpg__dp_work_test(work->dp) : MCPG_INVALID_ARGUMENT;
}

mcpg_status_t mcpg_work_wait(mcpg_work_t *work, uint64_t timeout_us) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (work == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = work->context;
    atomic_fetch_add(&context->waiters, 1);
    mcpg_status_t status = mcpg__dp_work_wait(work->dp, timeout_us);
    if (atomic_fetch_sub(&context->waiters, 1) == 1 && atomic_load(&context->settling)) {
        pthread_mutex_lock(&context->works_mu);
        pthread_cond_broadcast(&context->works_idle);
        pthread_mutex_unlock(&context->works_mu);
    }
    return status;
}

mcpg_status_t mcpg_work_failed_ranks(const mcpg_work_t *work, int32_t *hint, uint32_t cap, bool *local_success_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (work == NULL || (hint == NULL && cap > 0)) return MCPG_INVALID_ARGUMENT;
    return mcpg__dp_work_failed(work->dp, hint, cap, local_success_out);
}

const char *mcpg_work_error(const mcpg_work_t *work) {
    return work != NULL && !mcpg__forked() ? mcpg__dp_work_error(work->dp) : "";
}

mcpg_op_kind_t mcpg_work_kind(const mcpg_work_t *work) {
    return work != NULL && !mcpg__forked() ? mcpg__dp_work_kind(work->dp) : MCPG_OP__COUNT;
}

uint64_t mcpg_work_seq(const mcpg_work_t *work) {
    return work != NULL && !mcpg__forked() ? mcpg__dp_work_seq(work->dp) : MCPG_NO_SEQ;
}

static void on_dp_complete(void *user, mcpg_dp_work_t *dp) {
    (void)dp;
    mcpg_work_t *w = user;
    mcpg__events_push_work(w->context, w);
}

mcpg_status_t mcpg_work_on_complete(mcpg_work_t *work, mcpg_work_func_t func, void *user) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (work == NULL || func == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = work->context;
    if (mcpg__events_over(context))
        return mcpg__fail(context, MCPG_SHUTTING_DOWN,
                          "the work's context was destroyed: it calls nothing back any more, ask the work itself");
    pthread_mutex_lock(&context->works_mu);
    bool taken = work->func != NULL;
    if (!taken) {
        work->func = func;
        work->user = user;
    }
    pthread_mutex_unlock(&context->works_mu);
    if (taken)
        return mcpg__fail(context, MCPG_INVALID_STATE,
                          "the work has a completion callback already: one per work is allowed");
    atomic_fetch_add(&work->refs, 1); /* the callback's */
    mcpg_status_t status = mcpg__dp_work_on_complete(work->dp, on_dp_complete, work);
    if (status != MCPG_OK) mcpg__work_unref(work);
    return status;
}

void mcpg_work_release(mcpg_work_t *work) {
    if (work == NULL || mcpg__forked()) return;
    mcpg__work_unref(work);
}
