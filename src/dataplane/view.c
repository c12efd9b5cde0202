/* view.c: a group's ordered list of views and the question which one a number runs in (design.md 4.3).
 *
 * The list is linked from the newest to older ones; switch_seq never rises on the way. A view stays as long as an
 * operation runs in it or a number that was not started yet belongs to it. Never starts or ends an operation.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/dp_priv.h"

mcpg_dpview_t *mcpg__view_new(const mcpg_member_t *members, uint32_t count) {
    mcpg_dpview_t *v = (mcpg_dpview_t *)calloc(
        1, sizeof *v + (size_t)count * (sizeof *v->m + sizeof *v->leave_seq + sizeof *v->pair_base));
    if (v == NULL) return NULL;
    v->m = (mcpg_member_t *)(void *)(v + 1);
    v->leave_seq = (uint64_t *)(void *)(v->m + count);
    v->pair_base = (mcpg_view_id_t *)(void *)(v->leave_seq + count);
    v->count = count;
    if (count != 0) memcpy(v->m, members, count * sizeof *members);
    for (uint32_t i = 0; i < count; i++) v->leave_seq[i] = MCPG_NO_SEQ;
    return v;
}

int32_t mcpg__view_find(const mcpg_dpview_t *v, uint32_t slot) {
    uint32_t low = 0, high = v->count;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2u;
        if (v->m[mid].slot.v < slot) {
            low = mid + 1u;
        } else {
            high = mid;
        }
    }
    return low < v->count && v->m[low].slot.v == slot ? (int32_t)low : -1;
}

mcpg_dpview_t *mcpg__view_of(const mcpg_dpgroup_t *g, uint64_t seq) {
    if (g->isolated) return g->self_view;
    mcpg_dpview_t *v = g->newest;
    while (v != NULL && v->switch_seq > seq && v->older != NULL) v = v->older;
    return v;
}

bool mcpg__view_runs(const mcpg_dpgroup_t *g, const mcpg_dpview_t *v, uint64_t seq) {
    if (v == g->self_view) return true;
    const int32_t own = mcpg__view_find(v, g->slot.v);
    return own >= 0 && mcpg__inc_eq(v->m[own].inc, g->dp->inc) && v->leave_seq[own] > seq;
}

void mcpg__view_release(mcpg_dpgroup_t *g, mcpg_dpview_t *v) {
    MCPG_ASSERT(v->refs != 0);
    if (--v->refs == 0 && v != g->newest && v != g->self_view) mcpg__view_prune(g);
}

/* Lowest number that may still start. */
static uint64_t lowest_open(const mcpg_dpgroup_t *g) {
    const mcpg_dp_work_t *w = g->next_start;
    while (w != NULL && mcpg__work_state(w) != MCPG_W_WAITING) w = w->next;
    return w != NULL ? w->seq : mcpg__group_next(g);
}

void mcpg__view_prune(mcpg_dpgroup_t *g) {
    if (g->newest == NULL) return;
    const uint64_t open = lowest_open(g);
    const mcpg_dpview_t *needed = g->newest;
    while (needed->switch_seq > open && needed->older != NULL) needed = needed->older;
    bool past = g->newest == needed;
    mcpg_dpview_t *newer = g->newest;
    while (newer->older != NULL) {
        mcpg_dpview_t *v = newer->older;
        /* Nothing starts in a view below the needed one, nor in one whose newer neighbour begins at the same number. */
        const bool dead = past || (v != needed && v->switch_seq == newer->switch_seq);
        if (v == needed) past = true;
        if (dead && v->refs == 0) {
            newer->older = v->older;
            free(v);
        } else {
            newer = v;
        }
    }
}

void mcpg__view_free_all(mcpg_dpgroup_t *g) {
    while (g->newest != NULL) {
        mcpg_dpview_t *v = g->newest;
        g->newest = v->older;
        free(v);
    }
    free(g->self_view);
    g->self_view = NULL;
}

static void lower(uint64_t *seq, uint64_t to) {
    if (to < *seq) *seq = to;
}

/* One entry of COMMIT's leave list. In the new view it means a fenced slot, unless the slot has a new process there. */
static void apply_leave(mcpg_dpgroup_t *g, mcpg_dpview_t *fresh, const mcpg_leave_t *leave) {
    const int32_t now = mcpg__view_find(fresh, leave->slot.v);
    const int32_t last = g->newest == NULL ? -1 : mcpg__view_find(g->newest, leave->slot.v);
    const mcpg_incarnation_t none = {0, 0}, leaver = last < 0 ? none : g->newest->m[last].inc;
    /* It may not have reached the view that it leaves: back through its unbroken membership. */
    for (mcpg_dpview_t *v = last < 0 ? NULL : g->newest; v != NULL; v = v->older) {
        const int32_t i = mcpg__view_find(v, leave->slot.v);
        if (i < 0 || !mcpg__inc_eq(v->m[i].inc, leaver)) break;
        lower(&v->leave_seq[i], leave->leave_seq);
    }
    const bool replaced = now >= 0 && last >= 0 && !mcpg__inc_eq(fresh->m[now].inc, leaver);
    if (now >= 0 && !replaced) lower(&fresh->leave_seq[now], leave->leave_seq);
}

/* Without memory for it, messages of the leaver that were not received yet are lost with it. */
static void note_gone(mcpg_dpgroup_t *g, const mcpg_dpview_t *fresh) {
    const mcpg_dpview_t *last = g->newest;
    for (uint32_t i = 0; last != NULL && i < last->count; i++) {
        const mcpg_member_t *m = &last->m[i];
        const int32_t now = mcpg__view_find(fresh, m->slot.v);
        if (now >= 0 && mcpg__inc_eq(fresh->m[now].inc, m->inc)) continue;
        if (g->gone == NULL) g->gone = (mcpg_gone_t *)calloc(g->capacity, sizeof *g->gone);
        if (g->gone == NULL) return;
        g->gone[m->slot.v] = (mcpg_gone_t){m->rank, m->inc, last->pair_base[i]};
    }
}

mcpg_status_t mcpg__view_add(mcpg_dpgroup_t *g, const mcpg_down_commit_t *c) {
    mcpg_dpview_t *fresh = mcpg__view_new(c->view.active, c->view.active_count);
    if (fresh == NULL) return MCPG_NO_MEMORY;
    fresh->id = c->view.id;
    fresh->switch_seq = c->switch_seq;
    const mcpg_dpview_t *last = g->newest;
    const int32_t own = last == NULL ? -1 : mcpg__view_find(last, g->slot.v);
    const bool stayed = own >= 0 && mcpg__inc_eq(last->m[own].inc, g->dp->inc);
    for (uint32_t i = 0; i < fresh->count; i++) {
        const int32_t was = last == NULL ? -1 : mcpg__view_find(last, fresh->m[i].slot.v);
        const bool same = was >= 0 && mcpg__inc_eq(last->m[was].inc, fresh->m[i].inc);
        /* A fenced process stays fenced for as long as it is that process. */
        if (same) fresh->leave_seq[i] = last->leave_seq[was];
        fresh->pair_base[i] = same && stayed && !c->sync ? last->pair_base[was] : c->view.id;
    }
    for (uint32_t i = 0; i < c->leave_count; i++) apply_leave(g, fresh, &c->leaves[i]);
    if (stayed) note_gone(g, fresh);
    fresh->older = g->newest;
    g->newest = fresh;
    return MCPG_OK;
}
