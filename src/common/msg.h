/* msg.h: the messages between agent and coordinator as validated domain structs.
 *
 * UP: agent -> coordinator. DOWN: coordinator -> agent. The wire form is protobuf (pg.proto); codec.h converts and
 * checks every limit, so the state machines may trust what they get to be within bounds, but not to be true. Pointers
 * inside a message borrow from the decode arena or the effect arena: valid for the one call. This header never holds
 * behaviour.
 */
#ifndef MCPG_COMMON_MSG_H
#define MCPG_COMMON_MSG_H

#include "common/base.h"
#include "common/rankset.h"

/* ---- parts ---- */
typedef struct {
    mcpg_slot_t slot;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
} mcpg_member_t;

/* A view as committed: the whole active set, never a delta, in ascending slot order. */
typedef struct {
    mcpg_view_id_t id;
    uint32_t active_count;
    const mcpg_member_t *active;
} mcpg_view_body_t;

typedef struct {
    mcpg_slot_t slot;
    uint64_t leave_seq; /* from this number on nobody waits for the slot */
} mcpg_leave_t;

typedef enum { MCPG_LINK_UP = 0, MCPG_LINK_LOST = 1 } mcpg_link_state_t;
typedef enum {
    MCPG_PROOF_PIDFD = 0,    /* a peer on the same host saw the process end */
    MCPG_PROOF_LAUNCHER = 1, /* its parent did */
    MCPG_PROOF_RELAYED = 2   /* another rank said so on a link's control lane */
} mcpg_proof_t;

typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint8_t state;    /* mcpg_rank_state_t */
    bool suspect;     /* check your link to this rank and report it with check_id */
    bool dead;        /* OFFLINE is proved */
    uint64_t host_id; /* equal: same host and network namespace */
    int64_t pid;
    mcpg_bytes_t endpoint; /* opaque to the control plane; empty when OFFLINE */
} mcpg_rank_info_t;

/* One slot's registration, as get_peer_state needs it. */
typedef struct {
    mcpg_slot_t slot;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc; /* of the registered process; none: nobody is registered */
    bool awaiting;          /* called join_group (a founder counts as having) */
} mcpg_group_member_t;

/* What an agent knows of a group when it attaches: the coordinator's rebuild input. */
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t committed; /* newest COMMIT seen */
    mcpg_view_id_t acked;     /* open ACK, or none */
    uint64_t next_seq;
} mcpg_group_report_t;

/* A committed view with all that goes with it: sent down as COMMIT, reported up to a coordinator that rebuilds, relayed
 * between agents. */
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_body_t view;
    uint64_t switch_seq;
    uint32_t leave_count; /* removed slots, and fenced ones (still active) */
    const mcpg_leave_t *leaves;
    /* result of sync_after_failure, when sync is true */
    bool sync;
    mcpg_rankset_t sync_failed;
    uint64_t sync_first_failed_seq;
} mcpg_down_commit_t;

/* A group's record in the key-value store: who rules it, and the newest view that left somebody out unproved. */
typedef struct {
    uint64_t term, coordinator_id;
    bool has_view; /* false: claimed, no view was ever written */
    mcpg_view_body_t view;
} mcpg_group_record_t;

/* ---- UP ---- */
typedef struct {
    uint32_t version; /* MCPG_PROTOCOL_VERSION; first field of the first message */
    mcpg_rank_t rank;
    mcpg_session_t session;
    mcpg_incarnation_t prev_inc; /* held from an earlier attach of this session, or none */
    uint64_t highest_term;
    uint64_t host_id;
    int64_t pid;
    mcpg_bytes_t endpoint;
    uint32_t report_count;
    const mcpg_group_report_t *reports;
} mcpg_up_attach_t;
typedef struct {
    uint64_t digest;  /* of states and views as this agent holds them: 0 when it has none */
    uint64_t sent_us; /* echoed */
} mcpg_up_heartbeat_t;
/* check_id 0: spontaneous. Otherwise the answer to a SUSPECT round. */
typedef struct {
    mcpg_rank_t peer;
    mcpg_incarnation_t peer_inc;
    uint8_t state; /* mcpg_link_state_t */
    uint64_t check_id;
} mcpg_up_link_t;
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint8_t proof; /* mcpg_proof_t */
} mcpg_up_death_t;
typedef struct {
    uint64_t call_id;
    mcpg_bytes_t key;   /* explicit key, or empty */
    mcpg_bytes_t label; /* framework's id, or empty */
    mcpg_bytes_t device_kind;
    uint32_t order_count;
    const uint32_t *order; /* slot -> global rank */
    uint32_t capacity;
    bool is_extension, manual, no_auto_sync;
} mcpg_up_register_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
} mcpg_up_join_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    mcpg_rankset_t activate, deactivate; /* slots */
    uint32_t stamp_count;                /* incarnations meant by deactivate, as the agent saw them */
    const mcpg_member_t *stamps;
    uint64_t expected_epoch; /* MCPG_ANY_EPOCH */
    uint64_t wait_us;
} mcpg_up_propose_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t view;
    uint64_t next_seq;
    bool steps; /* this process uses safe_point in this group */
} mcpg_up_ack_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} mcpg_up_commit_ack_t;
/* An operation ended with failed ranks and waits to be judged (auto groups), or just says so (manual). */
typedef struct {
    mcpg_gid_t gid;
    uint64_t report_id; /* echoed by RECONCILED; rises per agent */
    uint64_t seq;       /* MCPG_NO_SEQ for point-to-point */
    uint32_t failed_count;
    const mcpg_member_t *failed;
} mcpg_up_op_failed_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    mcpg_rankset_t failed;     /* slots this rank saw fail */
    uint64_t first_failed_seq; /* MCPG_NO_SEQ: none here, entered because of SYNCING */
} mcpg_up_sync_enter_t;
/* next_seq: the number that the leaver's next operation would have had; operations below it end with it as usual. */
typedef struct {
    mcpg_gid_t gid;
    uint64_t next_seq;
} mcpg_up_leave_group_t;
typedef struct {
    uint32_t reserved;
} mcpg_up_detach_t; /* graceful end of the process's context */
/* To a coordinator that this process was not attached to before: one group as this process knows it. */
typedef struct {
    mcpg_gid_t gid;
    mcpg_bytes_t key, label, device_kind;
    uint32_t order_count;
    const uint32_t *order; /* slot -> global rank, as far as this process knows it */
    uint32_t capacity;
    bool manual, no_auto_sync;
    bool awaiting;        /* called join_group, or is a founder */
    mcpg_view_id_t acked; /* open ACK, or none */
    uint32_t doubt_count; /* active set of that view, as PREPARE said it */
    const mcpg_member_t *doubt;
    mcpg_view_id_t aborted; /* the last one that this process was told was aborted, or none */
    uint64_t next_seq;      /* of the open ACK, else of the next operation as far as it is known */
    bool has_commit;
    mcpg_down_commit_t commit; /* newest one installed */
} mcpg_up_rebuild_t;
/* This process has told every group that it knows. */
typedef struct {
    uint32_t reserved;
} mcpg_up_rebuild_end_t;

#define MCPG_UP_MSGS(X)                                                                                                \
    X(ATTACH, attach, mcpg_up_attach_t)                                                                                \
    X(HEARTBEAT, heartbeat, mcpg_up_heartbeat_t)                                                                       \
    X(LINK, link, mcpg_up_link_t)                                                                                      \
    X(DEATH, death, mcpg_up_death_t)                                                                                   \
    X(REGISTER, register_group, mcpg_up_register_t)                                                                    \
    X(JOIN, join, mcpg_up_join_t)                                                                                      \
    X(PROPOSE, propose, mcpg_up_propose_t)                                                                             \
    X(ACK, ack, mcpg_up_ack_t)                                                                                         \
    X(COMMIT_ACK, commit_ack, mcpg_up_commit_ack_t)                                                                    \
    X(OP_FAILED, op_failed, mcpg_up_op_failed_t)                                                                       \
    X(SYNC_ENTER, sync_enter, mcpg_up_sync_enter_t)                                                                    \
    X(LEAVE_GROUP, leave_group, mcpg_up_leave_group_t)                                                                 \
    X(DETACH, detach, mcpg_up_detach_t)                                                                                \
    X(REBUILD, rebuild, mcpg_up_rebuild_t)                                                                             \
    X(REBUILD_END, rebuild_end, mcpg_up_rebuild_end_t)

/* ---- DOWN ---- */
typedef struct {
    uint64_t term, coordinator_id;
    mcpg_incarnation_t inc;
    bool resumed; /* same session kept its incarnation */
    uint64_t heartbeat_us, offline_us;
    bool rebuilding; /* it still gathers what the ranks know */
} mcpg_down_welcome_t;
/* ATTACH refused. RANK_IN_USE and UNAVAILABLE may be tried again. */
typedef struct {
    int32_t status;
    mcpg_bytes_t text;
} mcpg_down_refused_t;
typedef struct {
    uint64_t digest, sent_us;
} mcpg_down_heartbeat_reply_t;
/* At most MCPG_STATES_PART ranks: with the longest endpoints that is under 1 MiB. */
#define MCPG_STATES_PART 2048u
typedef struct {
    bool full;           /* ranks not listed are unknown: forget them */
    uint32_t first, end; /* full: about ranks first to end - 1 only; end 0: about all */
    uint64_t check_id;   /* != 0 when an entry is suspect */
    uint32_t count;
    const mcpg_rank_info_t *ranks;
} mcpg_down_rank_states_t;
/* Answer to REGISTER. */
typedef struct {
    uint64_t call_id;
    int32_t status;
    mcpg_bytes_t text;
    mcpg_gid_t gid;
    mcpg_slot_t slot;
    uint32_t capacity;
    bool isolated; /* joiner: runs on {self} until it is activated */
    bool manual, no_auto_sync;
} mcpg_down_registered_t;
/* Whole member table of a group; sent on every change of registration or awaiting. */
typedef struct {
    mcpg_gid_t gid;
    uint32_t count;
    const mcpg_group_member_t *members; /* by slot, 0..count-1 */
} mcpg_down_members_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_body_t view;
} mcpg_down_prepare_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} mcpg_down_abort_t;
/* Answer to JOIN (only when refused), PROPOSE, SYNC_ENTER (only when refused or the group's answer is in no COMMIT). */
typedef struct {
    uint64_t call_id;
    int32_t status; /* mcpg_status_t: OK = applied */
    bool dropped_any;
    mcpg_rankset_t dropped; /* slots */
    uint64_t epoch;
    mcpg_bytes_t text;
} mcpg_down_reply_t;
/* The judgement of an OP_FAILED report: slots found to be fine. Slots not cleared have left the view (auto). */
typedef struct {
    mcpg_gid_t gid;
    uint64_t report_id;
    mcpg_rankset_t cleared;
} mcpg_down_reconciled_t;
/* Some rank entered sync_after_failure: operations of this group end unsuccessfully until this rank's own call. */
typedef struct {
    mcpg_gid_t gid;
} mcpg_down_syncing_t;

#define MCPG_DOWN_MSGS(X)                                                                                              \
    X(WELCOME, welcome, mcpg_down_welcome_t)                                                                           \
    X(REFUSED, refused, mcpg_down_refused_t)                                                                           \
    X(HEARTBEAT_REPLY, heartbeat_reply, mcpg_down_heartbeat_reply_t)                                                   \
    X(RANK_STATES, rank_states, mcpg_down_rank_states_t)                                                               \
    X(REGISTERED, registered, mcpg_down_registered_t)                                                                  \
    X(MEMBERS, members, mcpg_down_members_t)                                                                           \
    X(PREPARE, prepare, mcpg_down_prepare_t)                                                                           \
    X(COMMIT, commit, mcpg_down_commit_t)                                                                              \
    X(ABORT, abort, mcpg_down_abort_t)                                                                                 \
    X(REPLY, reply, mcpg_down_reply_t)                                                                                 \
    X(RECONCILED, reconciled, mcpg_down_reconciled_t)                                                                  \
    X(SYNCING, syncing, mcpg_down_syncing_t)

#define X(NAME, field, type) MCPG_UP_##NAME,
typedef enum { MCPG_UP_MSGS(X) MCPG_UP__COUNT } mcpg_up_kind_t;
#undef X
#define X(NAME, field, type) MCPG_DOWN_##NAME,
typedef enum { MCPG_DOWN_MSGS(X) MCPG_DOWN__COUNT } mcpg_down_kind_t;
#undef X

typedef struct {
    mcpg_up_kind_t kind;
    union {
#define X(NAME, field, type) type field;
        MCPG_UP_MSGS(X)
#undef X
    } u;
} mcpg_up_msg_t;
typedef struct {
    mcpg_down_kind_t kind;
    union {
#define X(NAME, field, type) type field;
        MCPG_DOWN_MSGS(X)
#undef X
    } u;
} mcpg_down_msg_t;

#endif
