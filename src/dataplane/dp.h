/* dp.h: the data plane as src/api sees it: links, groups, operations, works. It decides nothing about membership.
 *
 * One engine per context: one mutex, one epoll set, one progress thread. A thread that waits for a work drives the
 * engine itself (no thread hop for a small synchronous operation); the progress thread drives the rest and sleeps when
 * nothing moves. Never includes agent or coordinator headers; the agent host reaches it through dp_iface.h only.
 */
#ifndef MCPG_DATAPLANE_DP_H
#define MCPG_DATAPLANE_DP_H

#include "common/dp_iface.h"
#include "common/log.h"

typedef struct mcpg_dp mcpg_dp_t;
typedef struct mcpg_dp_work mcpg_dp_work_t;

typedef struct {
    mcpg_rank_t rank;
    uint64_t host_id;
    const char *host_ip;    /* for tcp */
    const char *transports; /* "shm,tcp" */
    uint64_t collective_timeout_us, p2p_timeout_us;
    mcpg_log_t log;
} mcpg_dp_config_t;

/* Listens on every transport. INVALID_ARGUMENT names an unknown transport. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_create(const mcpg_dp_config_t *config, mcpg_dp_t **out, char *error,
                                            size_t error_cap);
/* Observations start with this; incarnation is known after attach. */
void mcpg__dp_set_observer(mcpg_dp_t *dp, const mcpg_dp_observer_t *observer);
void mcpg__dp_set_incarnation(mcpg_dp_t *dp, mcpg_incarnation_t own);
size_t mcpg__dp_endpoint(const mcpg_dp_t *dp, uint8_t *buf, size_t cap); /* bytes to publish */
const mcpg_dp_ops_t *mcpg__dp_ops(void);                                 /* first argument of each: the mcpg_dp_t */
void mcpg__dp_set_timeouts(mcpg_dp_t *dp, uint64_t collective_us, uint64_t p2p_us);
/* Stops threads, closes everything; outstanding works end with SHUTTING_DOWN. */
void mcpg__dp_destroy(mcpg_dp_t *dp);

/* Group calls of the API; NOT_FOUND when the group is gone. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_set_mirror(mcpg_dp_t *dp, mcpg_gid_t gid, int32_t *mirror); /* capacity entries */
MCPG_MUST_USE mcpg_status_t mcpg__dp_set_group_timeout(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us);
/* Extent (highest active slot + 1) and ids of the view that the next operation runs in. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_next_view(mcpg_dp_t *dp, mcpg_gid_t gid, uint32_t *extent_out, bool *isolated_out,
                                               uint64_t *next_seq_out);
/* Blocks only while held. Fills term, epoch, start_seq, active, incarnation. Clears the pending failure. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_safe_point(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_view_t *out);
/* Failures seen here since the last sync or safe point; fenced: a SYNCING is in force. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_pending_failure(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_rankset_t *failed_out,
                                                     uint64_t *first_seq_out, bool *fenced_out);
MCPG_MUST_USE mcpg_status_t mcpg__dp_sync_done(mcpg_dp_t *dp,
                                               mcpg_gid_t gid); /* lifts the fence, clears what is pending */
/* Waits until operations outstanding now are complete; new ones are refused with QUIESCING until the next view or
 * resume. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_quiesce(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us);
void mcpg__dp_resume(mcpg_dp_t *dp, mcpg_gid_t gid);
/* Outstanding works end with this status; later ones are refused with it. */
void mcpg__dp_abort(mcpg_dp_t *dp, mcpg_gid_t gid, mcpg_status_t status, const char *why);
/* Waits until every outstanding send of the group has left this process, at most timeout_us. */
mcpg_status_t mcpg__dp_flush(mcpg_dp_t *dp, mcpg_gid_t gid, uint64_t timeout_us);

/* Operations. error gets the sentence when the status is not OK. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_submit(mcpg_dp_t *dp, mcpg_gid_t gid, const mcpg_op_t *op, mcpg_dp_work_t **out,
                                            char *error, size_t error_cap);
mcpg_status_t mcpg__dp_work_test(mcpg_dp_work_t *work);
MCPG_MUST_USE mcpg_status_t mcpg__dp_work_wait(mcpg_dp_work_t *work, uint64_t timeout_us);
MCPG_MUST_USE mcpg_status_t mcpg__dp_work_failed(const mcpg_dp_work_t *work, int32_t *hint, uint32_t cap,
                                                 bool *local_success_out);
const char *mcpg__dp_work_error(const mcpg_dp_work_t *work);
mcpg_op_kind_t mcpg__dp_work_kind(const mcpg_dp_work_t *work);
uint64_t mcpg__dp_work_seq(const mcpg_dp_work_t *work);
/* func runs on a data plane thread with no lock held and must only queue; at once if the work is complete. At most one
 * per work. */
MCPG_MUST_USE mcpg_status_t mcpg__dp_work_on_complete(mcpg_dp_work_t *work,
                                                      void (*func)(void *user, mcpg_dp_work_t *work), void *user);
void mcpg__dp_work_retain(mcpg_dp_work_t *work);
void mcpg__dp_work_release(mcpg_dp_work_t *work);

/* Appends "links":[...],"groups":[...] as JSON members; returns the full length. */
size_t mcpg__dp_status_json(mcpg_dp_t *dp, char *buf, size_t cap);

#endif
