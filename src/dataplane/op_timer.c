/* op_timer.c: deadlines of one operation: the hard limit, and the probe that tells a slow peer from a silent one
 * (contract D7).
 *
 * A peer that was heard from since the probe is waited for, however long it takes; one that says nothing for a second,
 * or whose link did not come up within the timeout, failed in this operation. Never blames a peer for time in which
 * this process itself did not run.
 */
#include <stdio.h>
#include <string.h>

#include "dataplane/coll.h"

#define LATE_US   500000u /* a check that comes this late: this process did not run */
#define NAMES_MAX 16u

static size_t put(char *buf, size_t cap, size_t at, const char *text) {
    const int n = at < cap ? snprintf(buf + at, cap - at, "%s", text) : 0;
    return n < 0 ? at : at + (size_t)n;
}

static void missing_names(const mcpg_exec_t *x, char *buf, size_t cap) {
    size_t at = 0;
    uint32_t named = 0, all = 0;
    buf[0] = '\0';
    for (uint32_t i = 0; i < x->view->count; i++) {
        if (!x->coll->waits_for(x, i)) continue;
        all++;
        if (named == NAMES_MAX) continue;
        char one[16];
        (void)snprintf(one, sizeof one, "%s%u", named == 0 ? "" : ", ", x->view->m[i].slot.v);
        at = put(buf, cap, at, one);
        named++;
    }
    if (all > named) (void)put(buf, cap, at, " and others");
}

static void time_out(mcpg_dp_work_t *w) {
    char why[MCPG_ERROR_CAP], names[160] = "";
    char number[32] = "";
    if (w->seq != MCPG_NO_SEQ) (void)snprintf(number, sizeof number, " number %llu", (unsigned long long)w->seq);
    if (w->exec != NULL) missing_names(w->exec, names, sizeof names);
    if (w->exec != NULL) {
        (void)snprintf(
            why, sizeof why,
            "%s%s timed out waiting for in-group ranks %s: raise the timeout, or look at what those ranks do",
            mcpg_op_name(w->op.kind), number, names);
    } else if (mcpg__work_state(w) == MCPG_W_JUDGING) {
        (void)snprintf(
            why, sizeof why,
            "%s%s had failed ranks and timed out waiting for the coordinator's judgement: look at the coordinator",
            mcpg_op_name(w->op.kind), number);
    } else {
        (void)snprintf(
            why, sizeof why,
            "%s%s timed out before it could start, held by a membership change or by earlier operations: raise the "
            "timeout",
            mcpg_op_name(w->op.kind), number);
    }
    mcpg__op_end(w, MCPG_TIMED_OUT, why);
}

/* One peer that the operation waits for. */
static void check_peer(mcpg_exec_t *x, uint32_t i, bool late) {
    mcpg_engine_t *engine = x->dp->engine;
    const mcpg_member_t *m = &x->view->m[i];
    const mcpg_link_st_t state = mcpg__link_state(engine, m->rank, m->inc);
    bool failed = state != MCPG_LINK_ST_UP;
    if (!failed && x->probing && !late) failed = mcpg__link_last_heard_us(engine, m->rank, m->inc) < x->probe_us;
    if (!failed) {
        if (x->probing && !late) return;
        mcpg__link_probe(engine, m->rank, m->inc);
        /* It may be alive and run something else under this number, in which nothing passes between the two. */
        if (!x->p2p) mcpg__link_ask(engine, m->rank, m->inc, &x->key, &x->sig);
        return;
    }
    if (late) return; /* one more round */
    mcpg__log(&x->dp->log, MCPG_LOG_WARN, "operation_peer_failed group %u operation %llu in-group rank %u: %s",
              x->group->gid.v, (unsigned long long)x->key.seq, m->slot.v,
              state == MCPG_LINK_ST_UP ? "no answer to a probe" : "its link did not come up");
    mcpg__op_say_left(x, m, 1); /* what it still sends for this must not be kept */
    x->coll->drop(x, i, MCPG_XP_FAILED);
}

static void check(mcpg_exec_t *x, uint64_t now_us) {
    const bool late = now_us - x->check_us > LATE_US;
    for (uint32_t i = 0; i < x->view->count; i++)
        if (x->coll->waits_for(x, i)) check_peer(x, i, late);
    if (x->probing && !late) { /* heard from all that are still needed: look again after another timeout */
        x->probing = false;
        x->check_us = x->timeout_us > MCPG_NO_SEQ - now_us ? MCPG_NO_SEQ : now_us + x->timeout_us;
        return;
    }
    x->probing = true;
    x->probe_us = now_us;
    x->check_us = now_us + MCPG_PROBE_WAIT_US;
}

uint64_t mcpg__op_timer(mcpg_dp_work_t *w, uint64_t now_us) {
    const mcpg_wstate_t state = mcpg__work_state(w);
    if (state == MCPG_W_DONE || state == MCPG_W_COMPLETE) return MCPG_NO_SEQ;
    if (w->deadline_us <= now_us) {
        time_out(w);
        return MCPG_NO_SEQ;
    }
    uint64_t next = w->deadline_us;
    if (state == MCPG_W_RUNNING) {
        if (w->exec->check_us <= now_us) check(w->exec, now_us);
        if (w->exec->check_us < next) next = w->exec->check_us;
    }
    return next;
}
