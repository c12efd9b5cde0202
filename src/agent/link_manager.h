/* link_manager.h: the links the agent machine wants, and what became of them: bookkeeping between machine and data
 * plane.
 *
 * The machine says which links it wants (open, close) and which it doubts (check); the data plane tries a link once and
 * says up or lost. This part stands between: it tries again with a back-off while the machine wants the link, answers
 * checks in bounded time, and tells the machine only about changes. Time is an argument. It never sleeps, locks, opens
 * a socket or decides that a rank has left.
 */
#ifndef MCPG_AGENT_LINK_MANAGER_H
#define MCPG_AGENT_LINK_MANAGER_H

#include "agent/agent.h"
#include "common/dp_iface.h"

#define MCPG_LINK_CHECK_US 1000000u
#define MCPG_LINK_CHECKS   8u         /* checks of one link that may be open at once */
#define MCPG_LINK_RECHECK  UINT64_MAX /* id of the manager's own checks; the machine's never reach it */

typedef struct mcpg_link_manager mcpg_link_manager_t;

/* open/close/check go to the data plane; link_event and death_event go to the machine. None may call back into the
 * manager. */
typedef struct {
    void *user;
    void (*open)(void *user, const mcpg_dp_peer_t *peer);
    void (*close)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead);
    void (*check)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id);
    void (*link_event)(void *user, const mcpg_agent_link_ev_t *event);
    void (*death_event)(void *user, const mcpg_agent_death_ev_t *event);
} mcpg_link_manager_out_t;

/* A lost link is tried again after the first time, then after twice as long each time, up to the last. */
typedef struct {
    uint64_t first_us, last_us;
} mcpg_link_retry_t;

MCPG_MUST_USE mcpg_status_t mcpg__link_manager_create(const mcpg_link_manager_out_t *out, uint32_t max_ranks,
                                                      mcpg_link_retry_t retry, mcpg_link_manager_t **manager_out);
void mcpg__link_manager_destroy(mcpg_link_manager_t *m); /* closes nothing; NULL allowed */

/* From the machine. A newer incarnation replaces an older one of the same rank; the same one again refreshes the
 * endpoint and, if the link is up, says so again. */
void mcpg__link_manager_open(mcpg_link_manager_t *m, const mcpg_agent_link_open_t *want, mcpg_time_t now);
void mcpg__link_manager_close(mcpg_link_manager_t *m, const mcpg_agent_link_close_t *close);
void mcpg__link_manager_check(mcpg_link_manager_t *m, const mcpg_agent_link_check_t *check, mcpg_time_t now);

/* From the data plane; observations of an incarnation that is not wanted are dropped, except deaths. */
void mcpg__link_manager_up(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc);
void mcpg__link_manager_lost(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_time_t now);
void mcpg__link_manager_checked(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id,
                                bool ok, mcpg_time_t now);
void mcpg__link_manager_death(mcpg_link_manager_t *m, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_proof_t proof);

/* Retries and answers what is due. Then: the time of the next call, UINT64_MAX when none is needed. */
void mcpg__link_manager_timer(mcpg_link_manager_t *m, mcpg_time_t now);
mcpg_time_t mcpg__link_manager_next(const mcpg_link_manager_t *m);

#endif
