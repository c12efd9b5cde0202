/* engine_obs.c: what the data plane saw, on its way to the observer: in order, kept while its queue is full, never lost
 * silently.
 *
 * Called with the engine lock held; the observer only queues.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

#define OBS_CAP_MAX 65536u

static bool offer(mcpg_engine_t *e, const mcpg_obs_t *o) {
    const mcpg_dp_observer_t *to = &e->observer;
    switch (o->kind) {
    case MCPG_OBS_UP:
        return to->link_up == NULL || to->link_up(to->user, o->rank, o->inc);
    case MCPG_OBS_LOST:
        return to->link_lost == NULL || to->link_lost(to->user, o->rank, o->inc);
    case MCPG_OBS_CHECKED:
        return to->link_checked == NULL || to->link_checked(to->user, o->rank, o->inc, o->check_id, o->ok);
    case MCPG_OBS_DEATH:
        return to->death == NULL || to->death(to->user, o->rank, o->inc, o->proof);
    case MCPG_OBS_OP_FAILED:
        return to->op_failed == NULL ||
               to->op_failed(to->user, o->gid, o->report_id, o->seq, o->failed, o->failed_count);
    }
    return true;
}

static bool grow(mcpg_engine_t *e) {
    uint32_t cap = e->obs.cap == 0 ? 64u : e->obs.cap * 2u;
    if (cap > OBS_CAP_MAX) return false;
    mcpg_obs_t *items = malloc((size_t)cap * sizeof(*items));
    if (items == NULL) return false;
    for (uint32_t i = 0; i < e->obs.count; i++) items[i] = e->obs.items[(e->obs.head + i) % e->obs.cap];
    free(e->obs.items);
    e->obs.items = items;
    e->obs.head = 0;
    e->obs.cap = cap;
    return true;
}

static void keep(mcpg_engine_t *e, const mcpg_obs_t *o) {
    mcpg_obs_t kept = *o;
    if (o->failed_count > 0) {
        kept.failed = malloc(o->failed_count * sizeof(*kept.failed));
        if (kept.failed == NULL) goto err_lost;
        memcpy(kept.failed, o->failed, o->failed_count * sizeof(*kept.failed));
    } else {
        kept.failed = NULL;
    }
    if (e->obs.count == e->obs.cap && !grow(e)) goto err_free;
    e->obs.items[(e->obs.head + e->obs.count++) % e->obs.cap] = kept;
    return;
err_free:
    free(kept.failed);
err_lost:
    mcpg__log(&e->log, MCPG_LOG_ERROR, "observation lost kind %d rank %u: the agent does not take any", (int)o->kind,
              o->rank.v);
}

void mcpg__obs_tell(mcpg_engine_t *e, const mcpg_obs_t *o) {
    if (!e->has_observer) return;
    if (e->obs.count == 0 && offer(e, o)) return;
    keep(e, o);
    mcpg__engine_timer(e, e->now_us + 2000);
}

void mcpg__obs_retry(mcpg_engine_t *e) {
    while (e->obs.count > 0) {
        mcpg_obs_t *o = &e->obs.items[e->obs.head];
        if (e->has_observer && !offer(e, o)) {
            mcpg__engine_timer(e, e->now_us + 2000);
            return;
        }
        free(o->failed);
        e->obs.head = (e->obs.head + 1u) % e->obs.cap;
        e->obs.count--;
    }
}

void mcpg__obs_clear(mcpg_engine_t *e) {
    e->has_observer = false;
    mcpg__obs_retry(e);
    free(e->obs.items);
    memset(&e->obs, 0, sizeof(e->obs));
}

void mcpg__engine_set_observer(mcpg_engine_t *e, const mcpg_dp_observer_t *observer) {
    mcpg__engine_lock(e);
    e->has_observer = observer != NULL;
    if (observer != NULL) e->observer = *observer;
    mcpg__engine_unlock(e);
}

void mcpg__engine_tell_op_failed(mcpg_engine_t *e, mcpg_gid_t gid, uint64_t report_id, uint64_t seq,
                                 const mcpg_member_t *failed, uint32_t count) {
    mcpg_obs_t o = {.kind = MCPG_OBS_OP_FAILED, .gid = gid, .report_id = report_id, .seq = seq, .failed_count = count};
    o.failed = (mcpg_member_t *)(uintptr_t)failed; /* copied if it has to be kept */
    mcpg__obs_tell(e, &o);
}
