/* agent_state.h: private layout of the agent machine and what its files may call of each other.
 *
 * One struct in memory that the caller gives once; every table has a fixed size and a high-water mark, so that memory
 * is touched only as far as it is used. It must never be included outside src/agent/agent_*.c and never holds a pointer
 * into an event.
 */
#ifndef MCPG_AGENT_AGENT_STATE_H
#define MCPG_AGENT_AGENT_STATE_H

#include "agent/agent.h"
#include "common/pure.h"
#include "common/rankset.h"

#define MCPG_AGENT_NEVER           UINT64_MAX
#define MCPG_AGENT_BACKOFF_MIN_US  20000u
#define MCPG_AGENT_BACKOFF_MAX_US  1000000u
#define MCPG_AGENT_CALL_TIMEOUT_US 300000000u          /* of REGISTER, JOIN and SYNC calls that name none */
#define MCPG_AGENT_ASK_AGAIN_US    1000000u            /* before a SYNC's time is over, at most */
#define MCPG_AGENT_REPORT_US       2000000u            /* an operation that is still not judged */
#define MCPG_AGENT_SAY_AGAIN_US    1000000u            /* an open ACK, or the question what became of its view */
#define MCPG_AGENT_PAUSE_US        100000u             /* a timer that is later than this: the process did not run */
#define MCPG_AGENT_REGISTER_US     200000u             /* a REGISTER that the coordinator could not take yet */
#define MCPG_AGENT_AUTO_CALL       (UINT64_C(1) << 63) /* call ids of the machine's own REGISTERs: this | group index */
#define MCPG_AGENT_NO_INDEX        UINT32_MAX

/* NEW: before the first TIMER. WAITING: between two attempts. CLOSING is WAITING while the old stream is still open. */
typedef enum {
    MCPG_AGENT_NEW = 0,
    MCPG_AGENT_WAITING,
    MCPG_AGENT_CONNECTING,
    MCPG_AGENT_ATTACHING,
    MCPG_AGENT_ATTACHED,
    MCPG_AGENT_FAILED, /* refused for good: calls answer UNAVAILABLE */
    MCPG_AGENT_STOPPED /* detached: calls answer SHUTTING_DOWN */
} mcpg_agent_stage_t;

typedef enum { MCPG_AGENT_LINK_NONE = 0, MCPG_AGENT_LINK_UP, MCPG_AGENT_LINK_LOST } mcpg_agent_link_state_t;

typedef struct {
    bool listed; /* in the coordinator's table */
    bool dead;   /* OFFLINE is proved, says the coordinator */
    bool proved; /* this rank's own proof of the death of proved_inc */
    uint8_t state;
    uint8_t proof;
    uint8_t link; /* mcpg_agent_link_state_t of link_inc */
    mcpg_incarnation_t inc;
    mcpg_incarnation_t open_inc; /* LINK_OPEN was emitted for it and no LINK_CLOSE: else none */
    mcpg_incarnation_t link_inc; /* what the last evidence was about */
    mcpg_incarnation_t proved_inc;
    uint64_t host_id;
    int64_t pid;
    uint32_t endpoint_len;
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
} mcpg_agent_rank_t;

typedef struct {
    mcpg_rank_t rank;       /* declared order, then MEMBERS */
    mcpg_incarnation_t inc; /* of the registered process, or none */
    bool awaiting;
    bool active; /* in the newest installed view */
    mcpg_rank_t view_rank;
    mcpg_incarnation_t view_inc;
    bool left; /* named in the newest COMMIT's list of leaves */
    uint64_t leave_seq;
    bool wanted; /* active in the view that is in preparation */
    mcpg_rank_t wanted_rank;
    mcpg_incarnation_t wanted_inc;
} mcpg_agent_slot_t;

/* LEAVING: destroyed here; only gid is kept until the coordinator has surely heard LEAVE_GROUP: it would take a new
 * REGISTER of the same declaration for the old one. */
typedef enum {
    MCPG_AGENT_GROUP_FREE = 0,
    MCPG_AGENT_GROUP_ASKED,
    MCPG_AGENT_GROUP_OPEN,
    MCPG_AGENT_GROUP_LEAVING
} mcpg_agent_group_stage_t;

typedef struct {
    uint8_t stage;
    bool is_extension, manual, no_auto_sync;
    bool isolated;
    bool registered; /* REGISTERED came for the present incarnation */
    bool syncing;
    bool acked;      /* HELD came for `preparing` */
    bool steps;      /* safe_point is used here, said HELD */
    bool in_doubt;   /* held operations were ended */
    int32_t refused; /* why the machine's own REGISTER was refused, or OK: only a new group helps */
    bool orphan; /* founder that reported an ACK without a COMMIT to a new coordinator: an ABORT ends the group's id */
    mcpg_gid_t gid;
    mcpg_slot_t slot; /* own */
    uint32_t capacity, order_count, member_count;
    uint32_t base; /* first of `capacity` entries in the slot pool */
    uint32_t key_len, label_len, device_kind_len;
    uint8_t key[MCPG_KEY_CAP], label[MCPG_KEY_CAP], device_kind[MCPG_KEY_CAP];
    mcpg_view_id_t committed, preparing, highest;
    mcpg_view_id_t aborted; /* the last one whose ABORT ended a hold */
    uint64_t next_seq;      /* of the newest ACK, or the newest switch_seq */
    uint64_t left_us;       /* LEAVING: when LEAVE_GROUP was sent, 0: not yet */
    uint64_t again_us;      /* while an ACK is open: when it is said, or asked about, again */
    /* the rest of the newest COMMIT */
    uint64_t switch_seq;
    bool sync;
    mcpg_rankset_t sync_failed;
    uint64_t sync_first_failed_seq;
} mcpg_agent_group_t;

typedef enum {
    MCPG_AGENT_CALL_FREE = 0,
    MCPG_AGENT_CALL_REGISTER,
    MCPG_AGENT_CALL_JOIN,
    MCPG_AGENT_CALL_PROPOSE,
    MCPG_AGENT_CALL_SYNC
} mcpg_agent_call_kind_t;
typedef struct {
    uint8_t kind;
    bool installing; /* REGISTER: REGISTERED came, the first COMMIT is awaited */
    uint64_t call_id;
    uint32_t group; /* index */
    uint64_t deadline_us, timeout_us;
    mcpg_view_id_t since;      /* committed view at the start (I8) */
    mcpg_rankset_t failed;     /* SYNC */
    uint64_t first_failed_seq; /* SYNC */
    uint64_t ask_again_us;     /* SYNC: when it asks who is missing, shortly before its time is over; 0: not any more */
    mcpg_rankset_t missing;    /* SYNC: slots, as the coordinator last said */
} mcpg_agent_call_t;

typedef struct {
    bool used;
    uint32_t group; /* index */
    uint64_t report_id, seq;
    uint64_t again_us;                  /* a slot that healed meanwhile is cleared only if it is named again */
    uint32_t failed_base, failed_count; /* in the member pool */
    mcpg_rankset_t cleared;
} mcpg_agent_report_t;

struct mcpg_agent {
    mcpg_agent_config_t config;
    mcpg_agent_stage_t stage;
    bool stream_open;   /* CONNECT was emitted and DISCONNECTED has not come */
    bool told_attached; /* ATTACHED was emitted */
    bool lost;          /* COORDINATOR_LOST was notified and not BACK */
    bool loss_judged;   /* offline_us after the loss has passed */
    bool rebuilding;    /* the coordinator takes no REGISTER until its first full RANK_STATES */
    bool stop_due;
    mcpg_time_t now;               /* of the event in work */
    uint64_t term, coordinator_id; /* highest ever attached to */
    mcpg_incarnation_t inc;        /* own, newest */
    uint64_t heartbeat_us, offline_us;
    uint64_t attach_deadline_us, stage_deadline_us, retry_at_us, next_heartbeat_us, last_heard_us, lost_at_us;
    uint64_t armed_us;
    uint64_t attach_sent_us;
    uint64_t leased_until_us;   /* no coordinator leaves this rank out unproved sooner; a pause does not move it */
    uint64_t register_again_us; /* 0: nothing to send again */
    uint32_t attempts;
    uint64_t random;
    int32_t refusal; /* of the last REFUSED, or OK */
    uint32_t refusal_len;
    uint8_t refusal_text[MCPG_TEXT_CAP];
    uint64_t calls_opened, calls_answered;                  /* I5 */
    uint32_t rank_high, group_high, call_high, report_high; /* high-water marks */
    uint32_t slots_used, failed_used, failed_cap;
    mcpg_agent_rank_t *ranks;
    mcpg_agent_group_t *groups;
    mcpg_agent_slot_t *slots;
    mcpg_agent_call_t *calls;
    mcpg_agent_report_t *reports;
    mcpg_member_t *failed;
};

/* One sentence in the effect arena, built without the C library; what does not fit is cut. */
typedef struct {
    uint8_t *buf;
    uint32_t len;
} mcpg_agent_text_t;
mcpg_agent_text_t mcpg__agent_text(mcpg_agent_effects_t *fx);
void mcpg__agent_text_add(mcpg_agent_text_t *text, const char *words);
void mcpg__agent_text_add_u64(mcpg_agent_text_t *text, uint64_t value);
/* "0, 3 and 5"; from the tenth on only how many. */
void mcpg__agent_text_add_set(mcpg_agent_text_t *text, const mcpg_rankset_t *set);
static inline mcpg_bytes_t mcpg__agent_text_bytes(const mcpg_agent_text_t *text) {
    return (mcpg_bytes_t){.ptr = text->buf, .len = text->len};
}

/* agent_step.c: effects. */
mcpg_agent_effect_t *mcpg__agent_emit(mcpg_agent_effects_t *fx, mcpg_agent_fx_kind_t kind);
void *mcpg__agent_take(mcpg_agent_effects_t *fx, size_t size);
mcpg_bytes_t mcpg__agent_copy(mcpg_agent_effects_t *fx, const void *data, uint32_t len);
/* A zeroed SEND to be filled in by the caller; only while attached. */
mcpg_up_msg_t *mcpg__agent_send(mcpg_agent_effects_t *fx, mcpg_up_kind_t kind);
void mcpg__agent_notify(mcpg_agent_effects_t *fx, const mcpg_agent_notify_t *notify);
static inline bool mcpg__agent_up(const mcpg_agent_t *agent) {
    return agent->stage == MCPG_AGENT_ATTACHED;
}
static inline uint64_t mcpg__agent_after(mcpg_time_t now, uint64_t delay_us) {
    return delay_us > UINT64_MAX - 1 - now.us ? UINT64_MAX - 1 : now.us + delay_us;
}

/* agent_session.c */
/* This process did not run for so long: nobody's silence, and no call's time. */
void mcpg__agent_session_paused(mcpg_agent_t *agent, uint64_t late_us);
/* The coordinator has heard what this process sent then. */
void mcpg__agent_session_heard(mcpg_agent_t *agent, uint64_t sent_us);
void mcpg__agent_session_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_session_connected(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_session_disconnected(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_session_welcome(mcpg_agent_t *agent, const mcpg_down_welcome_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_session_refused(mcpg_agent_t *agent, const mcpg_down_refused_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_session_detach(mcpg_agent_t *agent, uint64_t call_id, mcpg_agent_effects_t *fx);
uint64_t mcpg__agent_session_deadline(const mcpg_agent_t *agent);

/* agent_link.c */
mcpg_agent_rank_t *mcpg__agent_rank(mcpg_agent_t *agent, mcpg_rank_t rank); /* NULL: out of range */
void mcpg__agent_link_states(mcpg_agent_t *agent, const mcpg_down_rank_states_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_link_event(mcpg_agent_t *agent, const mcpg_agent_link_ev_t *event, mcpg_agent_effects_t *fx);
void mcpg__agent_link_death(mcpg_agent_t *agent, const mcpg_agent_death_ev_t *event, mcpg_agent_effects_t *fx);
/* other: to a coordinator that was not told anything yet. */
void mcpg__agent_link_resend(mcpg_agent_t *agent, bool other, mcpg_agent_effects_t *fx);
void mcpg__agent_link_close_all(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_link_tell_deaths(mcpg_agent_t *agent, bool other, mcpg_agent_effects_t *fx);
bool mcpg__agent_link_proved_dead(const mcpg_agent_t *agent, mcpg_rank_t rank, mcpg_incarnation_t inc);

/* agent_group.c */
uint32_t mcpg__agent_group_find(const mcpg_agent_t *agent, mcpg_gid_t gid); /* OPEN groups only */
void mcpg__agent_group_register(mcpg_agent_t *agent, const mcpg_agent_call_register_t *call, mcpg_agent_effects_t *fx);
void mcpg__agent_group_registered(mcpg_agent_t *agent, const mcpg_down_registered_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_group_members(mcpg_agent_t *agent, const mcpg_down_members_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_group_disown(mcpg_agent_t *agent, mcpg_gid_t gid, mcpg_agent_effects_t *fx);
void mcpg__agent_group_join(mcpg_agent_t *agent, const mcpg_agent_call_join_t *call, mcpg_agent_effects_t *fx);
void mcpg__agent_group_leave(mcpg_agent_t *agent, const mcpg_agent_call_leave_t *call, mcpg_agent_effects_t *fx);
/* The rank order as far as it is known here, order_count entries in the effect arena. */
const uint32_t *mcpg__agent_group_order(const mcpg_agent_t *agent, const mcpg_agent_group_t *group,
                                        mcpg_agent_effects_t *fx);
void mcpg__agent_group_send_register(mcpg_agent_t *agent, uint32_t group, uint64_t call_id, mcpg_agent_effects_t *fx);
void mcpg__agent_group_send_join(mcpg_agent_t *agent, const mcpg_agent_call_t *call, mcpg_agent_effects_t *fx);
/* Ends the group here: DP_GROUP_GONE, LEAVE_GROUP (now or after the next attach), its other calls are answered ABORTED.
 */
void mcpg__agent_group_end(mcpg_agent_t *agent, uint32_t group, mcpg_agent_effects_t *fx);
void mcpg__agent_group_drop(mcpg_agent_t *agent, uint32_t group); /* frees the entry and its slots */
/* What was sent up to then has been heard. */
void mcpg__agent_group_heard(mcpg_agent_t *agent, uint64_t sent_us);
/* After WELCOME: LEAVE_GROUPs that were perhaps not heard. */
void mcpg__agent_group_send_leaves(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
/* After WELCOME. renewed: this process has a new incarnation, so every group is registered again. */
void mcpg__agent_group_resend(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx);
/* Every REGISTER that is due, unless the coordinator still rebuilds. */
void mcpg__agent_group_send_registers(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
/* Answers the call when the group's registration was refused for good. */
bool mcpg__agent_group_refused(const mcpg_agent_group_t *group, uint64_t call_id, mcpg_agent_effects_t *fx);
void mcpg__agent_group_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
uint64_t mcpg__agent_group_deadline(const mcpg_agent_t *agent);
/* The group's id means nothing any more and it never had a view: a founder registers it again under its open call.
 * False: nobody waits for it. */
bool mcpg__agent_group_restart(mcpg_agent_t *agent, uint32_t group, mcpg_agent_effects_t *fx);

/* agent_view.c */
void mcpg__agent_view_prepare(mcpg_agent_t *agent, const mcpg_down_prepare_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_view_held(mcpg_agent_t *agent, const mcpg_agent_held_ev_t *event, mcpg_agent_effects_t *fx);
void mcpg__agent_view_commit(mcpg_agent_t *agent, const mcpg_down_commit_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_view_abort(mcpg_agent_t *agent, const mcpg_down_abort_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_view_syncing(mcpg_agent_t *agent, const mcpg_down_syncing_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_view_resend(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx);
bool mcpg__agent_view_has_self(const mcpg_agent_t *agent, const mcpg_agent_group_t *group);
void mcpg__agent_view_send_ack(mcpg_agent_t *agent, mcpg_agent_group_t *group, mcpg_agent_effects_t *fx);
/* The newest COMMIT as it was received, in the effect arena. Only if there is one. */
void mcpg__agent_view_rebuild_commit(const mcpg_agent_t *agent, const mcpg_agent_group_t *group,
                                     mcpg_down_commit_t *out, mcpg_agent_effects_t *fx);
static inline bool mcpg__agent_view_any(mcpg_view_id_t view) {
    return view.term != 0 || view.epoch != 0;
}

/* agent_doubt.c: between an ACK and its COMMIT or ABORT. */
void mcpg__agent_doubt_lost(mcpg_agent_t *agent); /* contact was lost just now */
void mcpg__agent_doubt_asked(mcpg_agent_t *agent, const mcpg_agent_view_asked_ev_t *event, mcpg_agent_effects_t *fx);
void mcpg__agent_doubt_told(mcpg_agent_t *agent, const mcpg_down_msg_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_doubt_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
uint64_t mcpg__agent_doubt_deadline(const mcpg_agent_t *agent);

/* agent_rebuild.c: REBUILD of every group that has a COMMIT or an open ACK. Links and deaths, then REBUILD_END follow.
 */
void mcpg__agent_rebuild(mcpg_agent_t *agent, bool renewed, mcpg_agent_effects_t *fx);

/* agent_call.c */
mcpg_agent_call_t *mcpg__agent_call_find(mcpg_agent_t *agent, uint64_t call_id);
/* NULL, and the call answered LIMIT, when the table is full. */
mcpg_agent_call_t *mcpg__agent_call_open(mcpg_agent_t *agent, mcpg_agent_call_kind_t kind, uint64_t call_id,
                                         uint32_t group, uint64_t timeout_us, mcpg_agent_effects_t *fx);
/* A zeroed CALL_DONE for a call that was never in the table. */
mcpg_agent_call_done_t *mcpg__agent_call_answer(mcpg_agent_effects_t *fx, uint64_t call_id, mcpg_status_t status);
void mcpg__agent_call_refuse(mcpg_agent_effects_t *fx, uint64_t call_id, mcpg_status_t status, const char *words);
/* Answers an open call and frees its entry (I5). */
mcpg_agent_call_done_t *mcpg__agent_call_close(mcpg_agent_t *agent, mcpg_agent_call_t *call, mcpg_status_t status,
                                               mcpg_agent_effects_t *fx);
void mcpg__agent_call_propose(mcpg_agent_t *agent, const mcpg_agent_call_propose_t *call, mcpg_agent_effects_t *fx);
void mcpg__agent_call_sync(mcpg_agent_t *agent, const mcpg_agent_call_sync_t *call, mcpg_agent_effects_t *fx);
void mcpg__agent_call_reply(mcpg_agent_t *agent, const mcpg_down_reply_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_call_committed(mcpg_agent_t *agent, uint32_t group, const mcpg_down_commit_t *commit,
                                mcpg_agent_effects_t *fx);
/* A sync COMMIT that is here already answers calls about failures below it. */
void mcpg__agent_call_synced(mcpg_agent_t *agent, uint32_t group, const mcpg_down_commit_t *commit,
                             mcpg_agent_effects_t *fx);
/* The coordinator refused this process for good. */
void mcpg__agent_call_refuse_failed(const mcpg_agent_t *agent, uint64_t call_id, mcpg_agent_effects_t *fx);
void mcpg__agent_call_paused(mcpg_agent_t *agent, uint64_t late_us);
void mcpg__agent_call_lost(mcpg_agent_t *agent, mcpg_agent_effects_t *fx); /* contact lost: PROPOSEs end */
void mcpg__agent_call_end_all(mcpg_agent_t *agent, mcpg_status_t status, const char *words, mcpg_agent_effects_t *fx);
void mcpg__agent_call_end_group(mcpg_agent_t *agent, uint32_t group, mcpg_status_t status, const char *words,
                                mcpg_agent_effects_t *fx);
/* The same, but for this one. */
void mcpg__agent_call_end_others(mcpg_agent_t *agent, uint32_t group, uint64_t call_id, mcpg_status_t status,
                                 const char *words, mcpg_agent_effects_t *fx);
void mcpg__agent_call_resend(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_call_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
uint64_t mcpg__agent_call_deadline(const mcpg_agent_t *agent);

/* agent_report.c */
void mcpg__agent_report_event(mcpg_agent_t *agent, const mcpg_agent_op_failed_ev_t *event, mcpg_agent_effects_t *fx);
void mcpg__agent_report_reconciled(mcpg_agent_t *agent, const mcpg_down_reconciled_t *msg, mcpg_agent_effects_t *fx);
void mcpg__agent_report_judge(mcpg_agent_t *agent, uint32_t group,
                              mcpg_agent_effects_t *fx); /* NO_INDEX: every group */
void mcpg__agent_report_drop_group(mcpg_agent_t *agent, uint32_t group);
void mcpg__agent_report_resend(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
void mcpg__agent_report_end_all(mcpg_agent_t *agent, mcpg_status_t status, mcpg_agent_effects_t *fx);
void mcpg__agent_report_timer(mcpg_agent_t *agent, mcpg_agent_effects_t *fx);
uint64_t mcpg__agent_report_deadline(const mcpg_agent_t *agent);

/* agent_check.c */
uint64_t mcpg__agent_wire_digest(const mcpg_agent_t *agent); /* what heartbeats carry */

#endif
