/* link_manager.c: per rank one small record: wanted incarnation, state, back-off, open checks.
 *
 * Never sleeps, locks, opens a socket or decides that a rank has left; it forwards what the data plane saw.
 */
#include "agent/link_manager.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    LM_IDLE = 0,   /* not wanted */
    LM_TRYING = 1, /* the data plane has it */
    LM_UP = 2,
    LM_WAITING = 3, /* lost; tried again at retry_us */
    LM_DEAD = 4     /* proved dead; wanted until the machine closes it, never tried again */
} lm_state_t;

typedef struct {
    uint64_t id, deadline_us;
} lm_check_t;

typedef struct {
    lm_state_t state;
    mcpg_incarnation_t inc;
    uint64_t host_id;
    int64_t pid;
    uint64_t backoff_us, retry_us;
    bool doubted; /* UP, but the machine was told LOST by a check: checked again until it answers */
    uint64_t recheck_backoff_us, recheck_us;
    uint32_t endpoint_len, check_count;
    lm_check_t checks[MCPG_LINK_CHECKS];
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
} lm_link_t;

struct mcpg_link_manager {
    mcpg_link_manager_out_t out;
    uint32_t max_ranks;
    mcpg_link_retry_t retry;
    uint64_t next_us;  /* nothing is due before it; may be earlier than what is due */
    lm_link_t links[]; /* by rank */
};

mcpg_status_t mcpg__link_manager_create(const mcpg_link_manager_out_t *out, uint32_t max_ranks, mcpg_link_retry_t retry,
                                        mcpg_link_manager_t **manager_out) {
    mcpg_link_manager_t *m = calloc(1, sizeof(*m) + (size_t)max_ranks * sizeof(lm_link_t));
    if (m == NULL) return MCPG_NO_MEMORY;
    m->out = *out;
    m->max_ranks = max_ranks;
    m->retry.first_us = retry.first_us > 0 ? retry.first_us : 1u; /* never a try after no time at all */
    m->retry.last_us = retry.last_us > m->retry.first_us ? retry.last_us : m->retry.first_us;
    m->next_us = UINT64_MAX;
    *manager_out = m;
    return MCPG_OK;
}

void mcpg__link_manager_destroy(mcpg_link_manager_t *m) {
    free(m);
}

static lm_link_t *find(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    if (rank.v >= m->max_ranks) return NULL;
    lm_link_t *l = &m->links[rank.v];
    return l->state != LM_IDLE && mcpg__inc_eq(l->inc, inc) ? l : NULL;
}

static void tell(const mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_link_state_t state,
                 uint64_t check_id) {
    mcpg_agent_link_ev_t ev = {.rank = rank, .inc = inc, .state = (uint8_t)state, .check_id = check_id};
    m->out.link_event(m->out.user, &ev);
}

static void due_at(mcpg_link_manager_t *m, uint64_t at_us) {
    if (at_us < m->next_us) m->next_us = at_us;
}

/* A check that failed does not move the link's state when its peer was only silent, so nothing else would ever tell the
 * machine that the link works again. */
static void doubt(mcpg_link_manager_t *m, lm_link_t *l, mcpg_time_t now) {
    if (l->state != LM_UP || l->doubted) return;
    l->doubted = true;
    l->recheck_backoff_us = m->retry.first_us;
    l->recheck_us = now.us + l->recheck_backoff_us;
    due_at(m, l->recheck_us);
}

static void settle(const mcpg_link_manager_t *m, mcpg_rank_t rank, lm_link_t *l) {
    if (!l->doubted) return;
    l->doubted = false;
    tell(m, rank, l->inc, MCPG_LINK_UP, 0);
}

/* The next one comes at the latest when this one's answer would be overdue. */
static void recheck(mcpg_link_manager_t *m, mcpg_rank_t rank, lm_link_t *l, mcpg_time_t now) {
    uint64_t twice = l->recheck_backoff_us * 2;
    l->recheck_backoff_us = twice < m->retry.last_us ? twice : m->retry.last_us;
    l->recheck_us = now.us + MCPG_LINK_CHECK_US + l->recheck_backoff_us;
    m->out.check(m->out.user, rank, l->inc, MCPG_LINK_RECHECK);
}

static void answer_all(mcpg_link_manager_t *m, mcpg_rank_t rank, lm_link_t *l, mcpg_link_state_t state) {
    uint32_t n = l->check_count;
    l->check_count = 0;
    for (uint32_t i = 0; i < n; i++) tell(m, rank, l->inc, state, l->checks[i].id);
}

static void try_open(mcpg_link_manager_t *m, mcpg_rank_t rank, lm_link_t *l) {
    l->state = LM_TRYING;
    mcpg_dp_peer_t peer = {.rank = rank,
                           .inc = l->inc,
                           .host_id = l->host_id,
                           .pid = l->pid,
                           .endpoint = l->endpoint,
                           .endpoint_len = l->endpoint_len};
    m->out.open(m->out.user, &peer);
}

void mcpg__link_manager_open(mcpg_link_manager_t *m, const mcpg_agent_link_open_t *want, mcpg_time_t now) {
    (void)now;
    if (want->rank.v >= m->max_ranks || want->endpoint.len > MCPG_ENDPOINT_CAP) return;
    lm_link_t *l = &m->links[want->rank.v];
    bool same = l->state != LM_IDLE && mcpg__inc_eq(l->inc, want->inc);
    if (l->state != LM_IDLE && mcpg__inc_cmp(want->inc, l->inc) < 0) return;
    if (!same) {
        if (l->state != LM_IDLE) answer_all(m, want->rank, l, MCPG_LINK_LOST);
        memset(l, 0, sizeof(*l));
        l->inc = want->inc;
        l->backoff_us = m->retry.first_us;
    }
    l->host_id = want->host_id;
    l->pid = want->pid;
    l->endpoint_len = want->endpoint.len;
    if (want->endpoint.len != 0) memcpy(l->endpoint, want->endpoint.ptr, want->endpoint.len);
    if (same && l->state == LM_UP) {
        if (l->doubted) return; /* the next check that is answered says so */
        tell(m, want->rank, l->inc, MCPG_LINK_UP, 0);
        return;
    }
    if (same && l->state != LM_WAITING) return; /* being tried, or proved dead */
    try_open(m, want->rank, l);
}

void mcpg__link_manager_close(mcpg_link_manager_t *m, const mcpg_agent_link_close_t *close) {
    lm_link_t *l = find(m, close->rank, close->inc);
    if (l != NULL) {
        answer_all(m, close->rank, l, MCPG_LINK_LOST);
        memset(l, 0, sizeof(*l));
    }
    m->out.close(m->out.user, close->rank, close->inc, close->dead);
}

void mcpg__link_manager_check(mcpg_link_manager_t *m, const mcpg_agent_link_check_t *check, mcpg_time_t now) {
    lm_link_t *l = find(m, check->rank, check->inc);
    if (l == NULL || l->state == LM_DEAD) {
        tell(m, check->rank, check->inc, MCPG_LINK_LOST, check->check_id);
        return;
    }
    if (l->check_count == MCPG_LINK_CHECKS) {
        tell(m, check->rank, check->inc, l->state == LM_UP ? MCPG_LINK_UP : MCPG_LINK_LOST, check->check_id);
        return;
    }
    l->checks[l->check_count++] = (lm_check_t){.id = check->check_id, .deadline_us = now.us + MCPG_LINK_CHECK_US};
    due_at(m, now.us + MCPG_LINK_CHECK_US);
    if (l->state == LM_UP) {
        m->out.check(m->out.user, check->rank, check->inc, check->check_id);
    } else if (l->state == LM_WAITING) {
        l->backoff_us = m->retry.first_us; /* the answer is wanted now */
        try_open(m, check->rank, l);
    }
}

void mcpg__link_manager_up(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    lm_link_t *l = find(m, rank, inc);
    if (l == NULL || l->state == LM_DEAD) return;
    bool news = l->state != LM_UP || l->doubted;
    l->state = LM_UP;
    l->doubted = false;
    l->backoff_us = m->retry.first_us;
    if (news) tell(m, rank, inc, MCPG_LINK_UP, 0);
    answer_all(m, rank, l, MCPG_LINK_UP);
}

/* Only a link that was up can be lost: a first try that failed is silence, or every start would open a fault. */
void mcpg__link_manager_lost(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_time_t now) {
    lm_link_t *l = find(m, rank, inc);
    if (l == NULL || l->state == LM_DEAD || l->state == LM_WAITING) return;
    bool was_up = l->state == LM_UP;
    l->state = LM_WAITING;
    l->doubted = false;
    l->retry_us = now.us + l->backoff_us;
    due_at(m, l->retry_us);
    l->backoff_us = l->backoff_us * 2 < m->retry.last_us ? l->backoff_us * 2 : m->retry.last_us;
    if (was_up) tell(m, rank, inc, MCPG_LINK_LOST, 0);
}

void mcpg__link_manager_checked(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id,
                                bool ok, mcpg_time_t now) {
    lm_link_t *l = find(m, rank, inc);
    if (l == NULL) return;
    if (check_id == MCPG_LINK_RECHECK) {
        if (!l->doubted) return;
        if (ok) {
            settle(m, rank, l);
        } else {
            l->recheck_us = now.us + l->recheck_backoff_us;
            due_at(m, l->recheck_us);
        }
        return;
    }
    for (uint32_t i = 0; i < l->check_count; i++) {
        if (l->checks[i].id != check_id) continue;
        if (!ok && l->state != LM_UP) return; /* being set up again: that, or the deadline, is the answer */
        l->checks[i] = l->checks[--l->check_count];
        tell(m, rank, inc, ok ? MCPG_LINK_UP : MCPG_LINK_LOST, check_id);
        if (ok) settle(m, rank, l);
        if (!ok) doubt(m, l, now);
        return;
    }
    if (ok) settle(m, rank, l); /* late: its deadline has answered for it */
}

void mcpg__link_manager_death(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_proof_t proof) {
    lm_link_t *l = find(m, rank, inc);
    if (l != NULL && l->state == LM_DEAD) return;
    mcpg_agent_death_ev_t ev = {.rank = rank, .inc = inc, .proof = (uint8_t)proof};
    m->out.death_event(m->out.user, &ev);
    if (l == NULL) return;
    l->state = LM_DEAD;
    l->doubted = false;
    answer_all(m, rank, l, MCPG_LINK_LOST);
}

static void expire_checks(mcpg_link_manager_t *m, mcpg_rank_t rank, lm_link_t *l, mcpg_time_t now) {
    uint32_t kept = 0, n = l->check_count;
    for (uint32_t i = 0; i < n; i++) {
        lm_check_t c = l->checks[i];
        if (c.deadline_us > now.us) {
            l->checks[kept++] = c;
        } else {
            tell(m, rank, l->inc, MCPG_LINK_LOST, c.id);
            doubt(m, l, now);
        }
    }
    l->check_count = kept;
}

static uint64_t earliest(const mcpg_link_manager_t *m) {
    uint64_t at = UINT64_MAX;
    for (uint32_t r = 0; r < m->max_ranks; r++) {
        const lm_link_t *l = &m->links[r];
        if (l->state == LM_WAITING && l->retry_us < at) at = l->retry_us;
        if (l->doubted && l->recheck_us < at) at = l->recheck_us;
        for (uint32_t i = 0; i < l->check_count; i++)
            if (l->checks[i].deadline_us < at) at = l->checks[i].deadline_us;
    }
    return at;
}

void mcpg__link_manager_timer(mcpg_link_manager_t *m, mcpg_time_t now) {
    if (now.us < m->next_us) return;
    for (uint32_t r = 0; r < m->max_ranks; r++) {
        lm_link_t *l = &m->links[r];
        if (l->state == LM_IDLE) continue;
        if (l->check_count != 0) expire_checks(m, (mcpg_rank_t){r}, l, now);
        if (l->state == LM_WAITING && l->retry_us <= now.us) try_open(m, (mcpg_rank_t){r}, l);
        if (l->doubted && l->recheck_us <= now.us) recheck(m, (mcpg_rank_t){r}, l, now);
    }
    m->next_us = earliest(m);
}

mcpg_time_t mcpg__link_manager_next(const mcpg_link_manager_t *m) {
    return (mcpg_time_t){m->next_us};
}
