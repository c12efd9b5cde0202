/* agent.h: the agent as a pure state machine: one rank's client of the control plane.
 *
 * Same rules as coord.h: no thread, lock, socket, clock, allocation, float or log call; memory given once; effects
 * borrow from the effect buffer until its next reset. It never decides membership: it obeys the highest (term,
 * coordinator) it attached to.
 */
#ifndef MCPG_AGENT_AGENT_H
#define MCPG_AGENT_AGENT_H

#include "common/base.h"
#include "common/msg.h"

typedef struct {
    mcpg_rank_t rank;
    mcpg_session_t session;
    uint64_t host_id;
    int64_t pid;
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
    uint32_t endpoint_len;
    uint32_t max_ranks, max_groups, max_slots_total, max_calls, max_reports;
    uint64_t attach_timeout_us; /* first attach: RANK_IN_USE is tried again until then */
    uint64_t seed;              /* of the back-off jitter */
    mcpg_timers_t timers;
} mcpg_agent_config_t;

typedef struct mcpg_agent mcpg_agent_t;

typedef struct {
    uint64_t call_id;
    mcpg_bytes_t key, label, device_kind;
    uint32_t order_count;
    const uint32_t *order;
    uint32_t capacity;
    bool is_extension, manual, no_auto_sync;
    uint64_t timeout_us;
} mcpg_agent_call_register_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    uint64_t timeout_us;
} mcpg_agent_call_join_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    mcpg_rankset_t activate, deactivate;
    uint64_t expected_epoch, wait_us;
} mcpg_agent_call_propose_t;
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    mcpg_rankset_t failed;
    uint64_t first_failed_seq;
    uint64_t timeout_us;
} mcpg_agent_call_sync_t;
/* Group destroyed here. next_seq: of the operation that would have come next, as the data plane knows it. */
typedef struct {
    uint64_t call_id;
    mcpg_gid_t gid;
    uint64_t next_seq;
} mcpg_agent_call_leave_t;
typedef struct {
    uint64_t call_id;
} mcpg_agent_call_detach_t; /* end of the context */
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint8_t state;
    uint64_t check_id;
} mcpg_agent_link_ev_t;
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint8_t proof;
} mcpg_agent_death_ev_t;
typedef struct {
    mcpg_gid_t gid;
    uint64_t report_id; /* data plane's id of the operation that waits; DP_RESOLVE names it */
    uint64_t seq;
    uint32_t failed_count;
    const mcpg_member_t *failed;
} mcpg_agent_op_failed_ev_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t view;
    uint64_t next_seq;
    bool steps;
} mcpg_agent_held_ev_t; /* answer to DP_HOLD */
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} mcpg_agent_view_asked_ev_t; /* a linked peer is in doubt about that view */
typedef struct {
    uint32_t reserved;
} mcpg_agent_none_t;

/* CONNECTED/DISCONNECTED: the stream to the coordinator (answers to CONNECT). VIEW_TOLD: a COMMIT or ABORT that a peer
 * relays. */
#define MCPG_AGENT_EVENTS(X)                                                                                           \
    X(CONNECTED, connected, mcpg_agent_none_t)                                                                         \
    X(DISCONNECTED, disconnected, mcpg_agent_none_t)                                                                   \
    X(TIMER, timer, mcpg_agent_none_t)                                                                                 \
    X(MSG, msg, const mcpg_down_msg_t *)                                                                               \
    X(LINK, link, mcpg_agent_link_ev_t)                                                                                \
    X(DEATH, death, mcpg_agent_death_ev_t)                                                                             \
    X(OP_FAILED, op_failed, mcpg_agent_op_failed_ev_t)                                                                 \
    X(HELD, held, mcpg_agent_held_ev_t)                                                                                \
    X(CALL_REGISTER, call_register, mcpg_agent_call_register_t)                                                        \
    X(CALL_JOIN, call_join, mcpg_agent_call_join_t)                                                                    \
    X(CALL_PROPOSE, call_propose, mcpg_agent_call_propose_t)                                                           \
    X(CALL_SYNC, call_sync, mcpg_agent_call_sync_t)                                                                    \
    X(CALL_LEAVE, call_leave, mcpg_agent_call_leave_t)                                                                 \
    X(CALL_DETACH, call_detach, mcpg_agent_call_detach_t)                                                              \
    X(VIEW_ASKED, view_asked, mcpg_agent_view_asked_ev_t)                                                              \
    X(VIEW_TOLD, view_told, const mcpg_down_msg_t *)
#define X(NAME, field, type) MCPG_AGENT_EV_##NAME,
typedef enum { MCPG_AGENT_EVENTS(X) MCPG_AGENT_EV__COUNT } mcpg_agent_ev_kind_t;
#undef X
typedef struct {
    mcpg_time_t now;
    mcpg_agent_ev_kind_t kind;
    union {
#define X(NAME, field, type) type field;
        MCPG_AGENT_EVENTS(X)
#undef X
    } u;
} mcpg_agent_event_t;

typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint64_t host_id;
    int64_t pid;
    mcpg_bytes_t endpoint;
} mcpg_agent_link_open_t;
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    bool dead;
} mcpg_agent_link_close_t;
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint64_t check_id;
} mcpg_agent_link_check_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_slot_t slot;
    uint32_t capacity;
    bool isolated, manual, no_auto_sync;
} mcpg_agent_dp_group_t;
typedef struct {
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} mcpg_agent_dp_view_t; /* DP_HOLD, DP_RELEASE */
typedef struct {
    mcpg_gid_t gid;
} mcpg_agent_dp_gid_t; /* DP_SYNC_FENCE, DP_GROUP_GONE */
typedef struct {
    mcpg_gid_t gid;
    uint64_t report_id;
    mcpg_status_t status;
} mcpg_agent_dp_resolve_t;
typedef struct {
    uint64_t call_id;
    mcpg_status_t status;
    mcpg_gid_t gid;                        /* REGISTER */
    mcpg_slot_t slot;                      /* REGISTER */
    bool isolated;                         /* REGISTER */
    mcpg_view_id_t view;                   /* PROPOSE, JOIN, SYNC */
    uint64_t first_failed_seq, resume_seq; /* SYNC */
    bool dropped_any;
    mcpg_rankset_t dropped; /* PROPOSE: slots */
    mcpg_rankset_t failed;  /* SYNC: slots */
    mcpg_bytes_t text;      /* one sentence when status is not OK */
} mcpg_agent_call_done_t;
typedef struct {
    mcpg_event_kind_t kind;
    mcpg_gid_t gid;
    mcpg_view_id_t view;
    mcpg_rank_t rank;
    uint8_t state;
} mcpg_agent_notify_t;
typedef struct {
    mcpg_status_t status;
    mcpg_bytes_t text;
} mcpg_agent_attached_t; /* outcome of the first attach */
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    const mcpg_down_msg_t *msg; /* COMMIT or ABORT */
} mcpg_agent_tell_view_t;

/* Run in order; the order is part of the contract (DP_INSTALL before SEND COMMIT_ACK before DP_RESOLVE before
 * CALL_DONE). Each DP_* effect is carried out before the next effect is looked at. CONNECT opens a stream (at once;
 * back-off is the machine's). LINK_ASK_VIEW: asks every linked peer of the group what became of the view (may be lost,
 * is asked again). LINK_TELL_VIEW answers one. */
#define MCPG_AGENT_EFFECTS(X)                                                                                          \
    X(SEND, send, const mcpg_up_msg_t *)                                                                               \
    X(CONNECT, connect, mcpg_agent_none_t)                                                                             \
    X(DISCONNECT, disconnect, mcpg_agent_none_t)                                                                       \
    X(ARM_TIMER, arm_timer, mcpg_time_t)                                                                               \
    X(ATTACHED, attached, mcpg_agent_attached_t)                                                                       \
    X(LINK_OPEN, link_open, mcpg_agent_link_open_t)                                                                    \
    X(LINK_CLOSE, link_close, mcpg_agent_link_close_t)                                                                 \
    X(LINK_CHECK, link_check, mcpg_agent_link_check_t)                                                                 \
    X(DP_GROUP, dp_group, mcpg_agent_dp_group_t)                                                                       \
    X(DP_HOLD, dp_hold, mcpg_agent_dp_view_t)                                                                          \
    X(DP_RELEASE, dp_release, mcpg_agent_dp_view_t)                                                                    \
    X(DP_INSTALL, dp_install, const mcpg_down_commit_t *)                                                              \
    X(DP_SYNC_FENCE, dp_sync_fence, mcpg_agent_dp_gid_t)                                                               \
    X(DP_RESOLVE, dp_resolve, mcpg_agent_dp_resolve_t)                                                                 \
    X(DP_GROUP_GONE, dp_group_gone, mcpg_agent_dp_gid_t)                                                               \
    X(CALL_DONE, call_done, const mcpg_agent_call_done_t *)                                                            \
    X(NOTIFY, notify, mcpg_agent_notify_t)                                                                             \
    X(STOP, stop, mcpg_agent_none_t)                                                                                   \
    X(LINK_ASK_VIEW, link_ask_view, mcpg_agent_dp_view_t)                                                              \
    X(LINK_TELL_VIEW, link_tell_view, mcpg_agent_tell_view_t)
#define X(NAME, field, type) MCPG_AGENT_FX_##NAME,
typedef enum { MCPG_AGENT_EFFECTS(X) MCPG_AGENT_FX__COUNT } mcpg_agent_fx_kind_t;
#undef X
typedef struct {
    mcpg_agent_fx_kind_t kind;
    union {
#define X(NAME, field, type) type field;
        MCPG_AGENT_EFFECTS(X)
#undef X
    } u;
} mcpg_agent_effect_t;
typedef struct {
    uint32_t count, cap;
    mcpg_agent_effect_t *items;
    uint8_t *arena;
    size_t arena_used, arena_cap;
} mcpg_agent_effects_t;

size_t mcpg_agent_size(const mcpg_agent_config_t *config);
/* mem: mcpg_agent_size bytes, 16-aligned, zero-filled. The first event must be TIMER: it makes the machine connect. */
MCPG_MUST_USE mcpg_status_t mcpg_agent_init(void *mem, size_t size, const mcpg_agent_config_t *config,
                                            mcpg_agent_t **out);
void mcpg_agent_effects_worst(const mcpg_agent_config_t *config, uint32_t *item_cap_out, size_t *arena_cap_out);
static inline void mcpg_agent_effects_reset(mcpg_agent_effects_t *fx) {
    fx->count = 0;
    fx->arena_used = 0;
}
MCPG_MUST_USE mcpg_status_t mcpg_agent_step(mcpg_agent_t *agent, const mcpg_agent_event_t *event,
                                            mcpg_agent_effects_t *effects);
/* The call that a CALL_* event opens; 0 for any other event. */
uint64_t mcpg_agent_event_call(const mcpg_agent_event_t *event);
uint64_t mcpg_agent_digest(const mcpg_agent_t *agent);
const char *mcpg_agent_check(const mcpg_agent_t *agent);
/* The whole state as text for people. Copies at most cap bytes with a final NUL; returns the full length. */
size_t mcpg_agent_dump(const mcpg_agent_t *agent, char *buf, size_t cap);

/* Read-only queries: the host copies them into a snapshot after each step. */
bool mcpg_agent_attached(const mcpg_agent_t *agent, mcpg_incarnation_t *inc_out);
uint8_t mcpg_agent_rank_state(const mcpg_agent_t *agent, mcpg_rank_t rank);
/* HEALTHY, registered, endpoint known, and active or awaiting. */
bool mcpg_agent_peer_ok(const mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_slot_t slot);
/* Committed view: fills active and incarnations by slot, up to cap. False: no such group or no view. */
bool mcpg_agent_view(const mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_view_id_t *id_out, mcpg_rankset_t *active_out,
                     mcpg_incarnation_t *incs_out, uint32_t cap);

#endif
