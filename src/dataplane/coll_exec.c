/* coll_exec.c: the pool of running operations and of scratch memory: after warm-up an operation allocates nothing
 * (contract D6). Never posts a message.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/coll.h"

mcpg_exec_t *mcpg__exec_get(mcpg_dp_t *dp, bool p2p) {
    mcpg_exec_t **pool = p2p ? &dp->free_p2p : &dp->free_coll;
    mcpg_exec_t *x = *pool;
    if (x != NULL) {
        *pool = x->next;
    } else {
        x = (mcpg_exec_t *)calloc(1, sizeof *x);
        if (x == NULL) return NULL;
    }
    x->next = NULL;
    x->dp = dp;
    x->p2p = p2p;
    x->queued = x->probing = x->combine = x->staged = false;
    x->status = MCPG_OK;
    x->error[0] = '\0';
    x->peer_count = x->own_pos = x->rows_used = x->sends_pending = 0;
    x->chunks = x->next_chunk = x->chunks_done = 0;
    x->own_src = x->own_dst = NULL;
    x->own_bytes = 0;
    memset(x->rows, 0, sizeof x->rows);
    return x;
}

static uint32_t scratch_class(size_t bytes) {
    uint32_t c = 0;
    while (c + 1u < MCPG_SCRATCH_CLASSES && ((size_t)4096 << c) < bytes) c++;
    return c;
}

static void scratch_put(mcpg_dp_t *dp, mcpg_scratch_t *s) {
    if (dp->scratch_kept + s->cap > MCPG_SCRATCH_KEEP) {
        free(s);
        return;
    }
    dp->scratch_kept += s->cap;
    s->next = dp->scratch[s->class_index];
    dp->scratch[s->class_index] = s;
}

void mcpg__scratch_free_all(mcpg_dp_t *dp) {
    for (uint32_t i = 0; i < MCPG_SCRATCH_CLASSES; i++) {
        while (dp->scratch[i] != NULL) {
            mcpg_scratch_t *s = dp->scratch[i];
            dp->scratch[i] = s->next;
            free(s);
        }
    }
}

mcpg_status_t mcpg__exec_scratch(mcpg_exec_t *x, size_t bytes) {
    mcpg_dp_t *dp = x->dp;
    const uint32_t c = scratch_class(bytes);
    const size_t cap = (size_t)4096 << c;
    if (cap < bytes) return MCPG_LIMIT;
    mcpg_scratch_t *s = dp->scratch[c];
    if (s != NULL) {
        dp->scratch[c] = s->next;
        dp->scratch_kept -= s->cap;
    } else {
        s = (mcpg_scratch_t *)aligned_alloc(64, sizeof *s + cap);
        if (s == NULL) return MCPG_NO_MEMORY;
        s->cap = cap;
        s->class_index = c;
    }
    x->scratch = s;
    x->group->scratch_used += cap;
    return MCPG_OK;
}

void mcpg__exec_put(mcpg_exec_t *x) {
    mcpg_dp_t *dp = x->dp;
    MCPG_ASSERT(!x->queued);
    if (x->scratch != NULL) {
        x->group->scratch_used -= x->scratch->cap;
        scratch_put(dp, x->scratch);
        x->scratch = NULL;
    }
    if (x->view != NULL) mcpg__view_release(x->group, x->view);
    x->view = NULL;
    x->group = NULL;
    x->work = NULL;
    mcpg_exec_t **pool = x->p2p ? &dp->free_p2p : &dp->free_coll;
    x->next = *pool;
    *pool = x;
}

static bool grow(void **mem, size_t count, size_t size) {
    void *fresh = realloc(*mem, (count == 0 ? 1 : count) * size);
    if (fresh == NULL) return false;
    *mem = fresh;
    return true;
}

mcpg_status_t mcpg__exec_room(mcpg_exec_t *x, uint32_t members, uint32_t peers, uint32_t rows) {
    const size_t lx = (size_t)rows * peers * 2u;
    if (members > x->members_cap) {
        if (!grow((void **)&x->member_state, members, 1u)) return MCPG_NO_MEMORY;
        x->members_cap = members;
    }
    if (peers >= x->peers_cap) { /* sources needs one more than there are peers */
        if (!grow((void **)&x->peers, peers + 1u, sizeof *x->peers)) return MCPG_NO_MEMORY;
        if (!grow((void **)&x->sources, peers + 1u, sizeof *x->sources)) return MCPG_NO_MEMORY;
        x->peers_cap = peers + 1u;
    }
    if (lx > x->lx_cap) {
        if (!grow((void **)&x->lx, lx, sizeof *x->lx) || !grow((void **)&x->flight, lx, 1u) ||
            !grow((void **)&x->arrived, lx, 1u))
            return MCPG_NO_MEMORY;
        x->lx_cap = lx;
    }
    if (lx != 0) {
        memset(x->lx, 0, lx * sizeof *x->lx);
        memset(x->flight, 0, lx);
        memset(x->arrived, 0, lx / 2u);
    }
    return MCPG_OK;
}

void mcpg__exec_free(mcpg_exec_t *x) {
    free(x->member_state);
    free(x->peers);
    free((void *)x->sources);
    free(x->lx);
    free(x->flight);
    free(x->arrived);
    free(x);
}

void mcpg__exec_ready(mcpg_exec_t *x) {
    if (x->queued) return;
    x->queued = true;
    x->next = NULL;
    *x->dp->ready_end = x;
    x->dp->ready_end = &x->next;
}

void mcpg__exec_unready(mcpg_exec_t *x) {
    if (!x->queued) return;
    mcpg_dp_t *dp = x->dp;
    mcpg_exec_t **at = &dp->ready;
    while (*at != NULL && *at != x) at = &(*at)->next;
    x->queued = false;
    if (*at == NULL) return; /* its turn is now */
    *at = x->next;
    if (*at == NULL) dp->ready_end = at;
}
