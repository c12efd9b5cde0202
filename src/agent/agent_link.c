/* agent_link.c: what the coordinator says of ranks becomes links; what the data plane sees of links and deaths becomes
 * evidence.
 *
 * One LINK_OPEN per incarnation. Evidence is kept for the newest incarnation of each rank, so that it can be given
 * again after a re-attach. It must never judge evidence and never change a membership.
 */
#include "agent/agent_state.h"

mcpg_agent_rank_t *mcpg__agent_rank(mcpg_agent_t *agent, mcpg_rank_t rank) {
    if (rank.v >= agent->config.max_ranks) return NULL;
    if (rank.v >= agent->rank_high) agent->rank_high = rank.v + 1u;
    return &agent->ranks[rank.v];
}

static bool is_self(const mcpg_agent_t *agent, uint32_t rank) {
    return rank == agent->config.rank.v;
}

static void send_link(uint32_t rank, mcpg_incarnation_t inc, uint8_t link, uint64_t check_id,
                      mcpg_agent_effects_t *fx) {
    mcpg_up_link_t *up = &mcpg__agent_send(fx, MCPG_UP_LINK)->u.link;
    up->peer.v = rank;
    up->peer_inc = inc;
    up->state = link == MCPG_AGENT_LINK_UP ? MCPG_LINK_UP : MCPG_LINK_LOST;
    up->check_id = check_id;
}

static void send_death(uint32_t rank, const mcpg_agent_rank_t *r, mcpg_agent_effects_t *fx) {
    mcpg_up_death_t *up = &mcpg__agent_send(fx, MCPG_UP_DEATH)->u.death;
    up->rank.v = rank;
    up->inc = r->proved_inc;
    up->proof = r->proof;
}

static void close_link(mcpg_agent_rank_t *r, uint32_t rank, bool dead, mcpg_agent_effects_t *fx) {
    if (mcpg__inc_none(r->open_inc)) return;
    mcpg_agent_link_close_t *close = &mcpg__agent_emit(fx, MCPG_AGENT_FX_LINK_CLOSE)->u.link_close;
    close->rank.v = rank;
    close->inc = r->open_inc;
    close->dead = dead;
    r->open_inc = (mcpg_incarnation_t){0, 0};
}

static void open_link(mcpg_agent_rank_t *r, uint32_t rank, mcpg_agent_effects_t *fx) {
    r->open_inc = r->inc;
    if (!mcpg__inc_eq(r->link_inc, r->inc)) {
        r->link_inc = r->inc;
        r->link = MCPG_AGENT_LINK_NONE;
    }
    mcpg_agent_link_open_t *open = &mcpg__agent_emit(fx, MCPG_AGENT_FX_LINK_OPEN)->u.link_open;
    open->rank.v = rank;
    open->inc = r->inc;
    open->host_id = r->host_id;
    open->pid = r->pid;
    open->endpoint = mcpg__agent_copy(fx, r->endpoint, r->endpoint_len);
}

/* A link to an OFFLINE rank that is not proved dead stays: perhaps only the coordinator cannot see it. */
static void follow_link(mcpg_agent_rank_t *r, uint32_t rank, mcpg_agent_effects_t *fx) {
    if (!mcpg__inc_none(r->open_inc) && !mcpg__inc_eq(r->open_inc, r->inc)) close_link(r, rank, true, fx);
    if (r->state == MCPG_RANK_OFFLINE) {
        if (r->dead) close_link(r, rank, true, fx);
        return;
    }
    if (mcpg__inc_none(r->open_inc) && r->endpoint_len > 0) open_link(r, rank, fx);
}

static void check_link(const mcpg_agent_rank_t *r, uint32_t rank, uint64_t check_id, mcpg_agent_effects_t *fx) {
    if (mcpg__inc_none(r->open_inc)) {
        send_link(rank, r->inc, MCPG_AGENT_LINK_LOST, check_id, fx);
        return;
    }
    mcpg_agent_link_check_t *check = &mcpg__agent_emit(fx, MCPG_AGENT_FX_LINK_CHECK)->u.link_check;
    check->rank.v = rank;
    check->inc = r->inc;
    check->check_id = check_id;
}

static void notify_state(uint32_t rank, uint8_t state, mcpg_agent_effects_t *fx) {
    mcpg_agent_notify_t notify = {.kind = MCPG_EVENT_RANK_STATE, .rank = {rank}, .state = state};
    mcpg__agent_notify(fx, &notify);
}

static void apply_info(mcpg_agent_t *agent, const mcpg_rank_info_t *info, uint64_t check_id, mcpg_agent_effects_t *fx) {
    mcpg_agent_rank_t *r = mcpg__agent_rank(agent, info->rank);
    if (r == NULL || mcpg__inc_cmp(info->inc, r->inc) < 0 || info->state > MCPG_RANK_HEALTHY) return;
    bool changed = r->state != info->state || !mcpg__inc_eq(r->inc, info->inc);
    r->listed = true;
    r->inc = info->inc;
    r->state = info->state;
    r->dead = info->dead && info->state == MCPG_RANK_OFFLINE;
    if (r->dead && (!r->proved || mcpg__inc_cmp(info->inc, r->proved_inc) > 0)) {
        /* For another coordinator, which was not told. */
        r->proved = true;
        r->proved_inc = info->inc;
        r->proof = MCPG_PROOF_RELAYED;
    }
    if (info->endpoint.len <= MCPG_ENDPOINT_CAP && info->state != MCPG_RANK_OFFLINE) {
        r->host_id = info->host_id;
        r->pid = info->pid;
        r->endpoint_len = info->endpoint.len;
        if (r->endpoint_len > 0) memcpy(r->endpoint, info->endpoint.ptr, r->endpoint_len);
    }
    if (!is_self(agent, info->rank.v)) {
        follow_link(r, info->rank.v, fx);
        if (info->suspect && check_id != 0) check_link(r, info->rank.v, check_id, fx);
    }
    if (changed) notify_state(info->rank.v, r->state, fx);
}

void mcpg__agent_link_states(mcpg_agent_t *agent, const mcpg_down_rank_states_t *msg, mcpg_agent_effects_t *fx) {
    uint32_t count = msg->count < agent->config.max_ranks ? msg->count : agent->config.max_ranks;
    mcpg_rankset_t named;
    mcpg__rankset_clear(&named);
    for (uint32_t i = 0; i < count; i++) {
        const mcpg_rank_info_t *info = &msg->ranks[i];
        if (info->rank.v >= agent->config.max_ranks || mcpg__rankset_has(&named, info->rank.v)) continue;
        mcpg__rankset_add(&named, info->rank.v);
        apply_info(agent, info, msg->check_id, fx);
    }
    if (!msg->full) return; /* ranks that are not named are as they were */
    for (uint32_t i = 0; i < agent->rank_high; i++) {
        mcpg_agent_rank_t *r = &agent->ranks[i];
        if (msg->end != 0 && (i < msg->first || i >= msg->end)) continue; /* of another part */
        if (!r->listed || mcpg__rankset_has(&named, i)) continue;
        r->listed = false;
        if (r->state == MCPG_RANK_OFFLINE) continue;
        r->state = MCPG_RANK_OFFLINE;
        notify_state(i, r->state, fx);
    }
    if (!agent->rebuilding) return;
    agent->rebuilding = false; /* it knows now what the ranks know */
    mcpg__agent_group_send_registers(agent, fx);
}

void mcpg__agent_link_event(mcpg_agent_t *agent, const mcpg_agent_link_ev_t *event, mcpg_agent_effects_t *fx) {
    mcpg_agent_rank_t *r = mcpg__agent_rank(agent, event->rank);
    if (r == NULL || is_self(agent, event->rank.v) || mcpg__inc_none(event->inc)) return;
    /* I4: what concerns an older incarnation is not said of a newer one. */
    if (mcpg__inc_cmp(event->inc, r->inc) < 0 || mcpg__inc_cmp(event->inc, r->link_inc) < 0) return;
    if (r->dead && mcpg__inc_eq(event->inc, r->inc)) return;
    uint8_t link = event->state == MCPG_LINK_UP ? MCPG_AGENT_LINK_UP : MCPG_AGENT_LINK_LOST;
    if (!mcpg__inc_eq(r->link_inc, event->inc)) r->link = MCPG_AGENT_LINK_NONE;
    /* LOST is told once: a link that is being tried again says it at every failure. */
    bool tell = event->check_id != 0 || link == MCPG_AGENT_LINK_UP || r->link != link;
    r->link_inc = event->inc;
    r->link = link;
    if (tell && mcpg__agent_up(agent)) send_link(event->rank.v, event->inc, link, event->check_id, fx);
}

void mcpg__agent_link_death(mcpg_agent_t *agent, const mcpg_agent_death_ev_t *event, mcpg_agent_effects_t *fx) {
    mcpg_agent_rank_t *r = mcpg__agent_rank(agent, event->rank);
    if (r == NULL || is_self(agent, event->rank.v) || mcpg__inc_none(event->inc)) return;
    if (mcpg__inc_cmp(event->inc, r->inc) < 0) return;
    if (r->proved && mcpg__inc_cmp(event->inc, r->proved_inc) <= 0) return;
    r->proved = true;
    r->proved_inc = event->inc;
    r->proof = event->proof;
    if (mcpg__agent_up(agent)) send_death(event->rank.v, r, fx);
    mcpg__agent_report_judge(agent, MCPG_AGENT_NO_INDEX, fx);
}

bool mcpg__agent_link_proved_dead(const mcpg_agent_t *agent, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    if (rank.v >= agent->config.max_ranks) return false;
    const mcpg_agent_rank_t *r = &agent->ranks[rank.v];
    if (r->proved && mcpg__inc_cmp(inc, r->proved_inc) <= 0) return true;
    int order = mcpg__inc_cmp(inc, r->inc);
    return order < 0 || (order == 0 && r->dead);
}

static void resend_death(mcpg_agent_t *agent, uint32_t rank, bool other, mcpg_agent_effects_t *fx) {
    const mcpg_agent_rank_t *r = &agent->ranks[rank];
    if (r->proved && (other || !r->dead) && mcpg__inc_cmp(r->proved_inc, r->inc) >= 0) send_death(rank, r, fx);
}

void mcpg__agent_link_tell_deaths(mcpg_agent_t *agent, bool other, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->rank_high; i++) resend_death(agent, i, other, fx);
}

void mcpg__agent_link_resend(mcpg_agent_t *agent, bool other, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->rank_high; i++) {
        const mcpg_agent_rank_t *r = &agent->ranks[i];
        if (r->link != MCPG_AGENT_LINK_NONE && !r->dead) send_link(i, r->link_inc, r->link, 0, fx);
        resend_death(agent, i, other, fx);
    }
}

/* A new incarnation of this process: the peers end their links to the old one, so every link is made anew. */
void mcpg__agent_link_close_all(mcpg_agent_t *agent, mcpg_agent_effects_t *fx) {
    for (uint32_t i = 0; i < agent->rank_high; i++) {
        mcpg_agent_rank_t *r = &agent->ranks[i];
        close_link(r, i, false, fx);
        r->link = MCPG_AGENT_LINK_NONE;
        r->link_inc = (mcpg_incarnation_t){0, 0};
    }
}
