/* dp_iface.h: all that the agent host and the data plane share.
 *
 * The agent host calls the data plane through mcpg_dp_ops_t; the data plane tells what it sees through
 * mcpg_dp_observer_t. Neither includes the other; src/api composes them. Every call in both directions returns
 * promptly: no connect, DNS, device copy or user callback happens inside.
 */
#ifndef MCPG_COMMON_DP_IFACE_H
#define MCPG_COMMON_DP_IFACE_H

#include "common/base.h"
#include "common/msg.h"

typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint64_t host_id;
    int64_t pid;
    const uint8_t *endpoint;
    uint32_t endpoint_len;
} mcpg_dp_peer_t;

typedef struct {
    mcpg_gid_t gid;
    mcpg_slot_t slot; /* own */
    uint32_t capacity;
    bool isolated; /* operations run on {self} until a view that contains this rank is installed */
    bool manual, no_auto_sync;
} mcpg_dp_group_config_t;

/* Calls of the agent host, on its executor thread. Unknown groups and stale incarnations are ignored. */
typedef struct {
    /* Sets a link up to this process; tries once (the higher rank connects, the lower accepts), then says link_up or
     * link_lost. A newer incarnation replaces an older one of the same rank. Called again after link_lost to try again.
     */
    void (*open_link)(void *dp, const mcpg_dp_peer_t *peer);
    /* Ends the link. dead: the process is proved dead, operations that wait for it end with it hinted at once. */
    void (*close_link)(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead);
    /* One probe there and back; answers link_checked within 1 s. */
    void (*check_link)(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id);
    /* The group exists, with no view (operations are held until the first install_view) or isolated. */
    void (*group_open)(void *dp, const mcpg_dp_group_config_t *config);
    void (*group_close)(void *dp, mcpg_gid_t gid);
    /* Atomic with taking a number: from now on operations are held; the number that the next one gets. steps: this
     * process has used safe_point in the group. */
    uint64_t (*hold)(void *dp, mcpg_gid_t gid, bool *steps_out);
    void (*release_hold)(void *dp, mcpg_gid_t gid);
    /* Adds (switch_seq, view) to the group's ordered list, applies leave_seqs, writes the mirror, ends the hold. A rank
     * that is added starts at switch_seq. With commit->sync, the next number becomes switch_seq. */
    void (*install_view)(void *dp, const mcpg_down_commit_t *commit);
    /* SYNCING: outstanding and later operations end with local success false until mcpg__dp_sync_done. */
    void (*sync_fence)(void *dp, mcpg_gid_t gid);
    /* The operation that op_failed named may complete with this status (OK, COORDINATOR_LOST, NOT_ACTIVE, LIMIT).
     * report_id 0 with IN_DOUBT: every held operation of the group ends, and none is taken until the hold ends; with
     * NOT_ACTIVE: the group ends, this process is no longer part of the job. */
    void (*resolve)(void *dp, mcpg_gid_t gid, uint64_t report_id, mcpg_status_t status);
    /* Control lane, best effort: asks every linked member of the group what became of a view; tells one peer (packed
     * DOWN message, COMMIT or ABORT; copied). */
    void (*ask_view)(void *dp, mcpg_gid_t gid, mcpg_view_id_t view);
    void (*tell_view)(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes, size_t len);
} mcpg_dp_ops_t;

/* What the data plane sees. Called from data plane threads, possibly with its lock held: an implementation only queues.
 * Returns false when its queue is full: the data plane keeps the observation and offers it again. */
typedef struct {
    void *user;
    bool (*link_up)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc);
    bool (*link_lost)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc);
    bool (*link_checked)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id, bool ok);
    bool (*death)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_proof_t proof);
    /* An operation has failed ranks. In an auto group with auto-sync it stays incomplete until resolve(report_id); else
     * report_id is 0. */
    bool (*op_failed)(void *user, mcpg_gid_t gid, uint64_t report_id, uint64_t seq, const mcpg_member_t *failed,
                      uint32_t failed_count);
    /* A peer asks, or tells (bytes of a packed DOWN message, borrowed). Dropped when the queue is full: asked again. */
    void (*view_asked)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_gid_t gid, mcpg_view_id_t view);
    void (*view_told)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes, size_t len);
} mcpg_dp_observer_t;

#endif
