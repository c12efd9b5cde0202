/* coord_state.h: private layout of the coordinator machine and what its files may call of each other.
 *
 * One block of memory that the caller gives once, zero-filled; every table has a fixed size and is touched only as far
 * as it is used, so that a large configuration costs address space and not memory. It must never be included outside
 * src/coordinator/coord_*.c and never holds a pointer into an event.
 */
#ifndef MCPG_COORDINATOR_COORD_STATE_H
#define MCPG_COORDINATOR_COORD_STATE_H

#include "common/pure.h"
#include "common/rankset.h"
#include "common/state_digest.h"
#include "coordinator/coord.h"

#define MCPG_COORD_NEVER      UINT64_MAX
#define MCPG_COORD_NONE       UINT32_MAX
#define MCPG_COORD_MAX_FAULTS 64u
#define MCPG_COORD_DRAIN_US   5000000u /* of SHUTDOWN */
#define MCPG_COORD_RETRY_US   100000u  /* between two searches that spend their budget on nothing but good news */
#define MCPG_COORD_RECORD_US  1000000u /* after a record that the store did not take */
#define MCPG_COORD_NAG_US     1000000u /* between two SYNCING to those who have not entered */
#define MCPG_COORD_ENDED      64u      /* ids of adopted groups that are over, which nobody brings back */
#define MCPG_COORD_GID_BITS   20u      /* of a group id; what is above comes from the term */
#define MCPG_COORD_SEQ_MAX                                                                                             \
    (UINT64_MAX >> 1)        /* no rank ever gets to such a number: it would lock the group for good                   \
                              */
#define MCPG_COORD_BLOCK  8u /* slots are given to groups in blocks of this many */
#define MCPG_COORD_PASSES 8u /* bounded: rounds of reactions in one step; the rest follows in a TIMER step */

/* One process slot of the job. Everything is about `inc`: I4 rests on clearing it all when inc changes. */
typedef struct {
    bool known;  /* has an incarnation */
    bool dead;   /* the end of inc is proved (a goodbye counts) */
    bool left;   /* it said goodbye */
    bool exited; /* exited_pid is known to have ended */
    /* Nothing is missing of what inc knows: it got inc here, or has said REBUILD_END. */
    bool reported;
    bool renew; /* it has reported a group that is over: it comes back as somebody new */
    bool published, pub_dead;
    uint8_t state, pub_state; /* mcpg_rank_state_t */
    mcpg_incarnation_t inc, pub_inc;
    mcpg_session_t session; /* 0: inc is only named by views, links or deaths of an earlier coordinator's time */
    uint64_t host_id;
    int64_t pid, exited_pid;
    uint64_t exited_at_us, last_heard_us, closed_at_us;
    uint64_t seen_sum;     /* our digest sum at the last heartbeat that differed, 0: it agreed */
    uint32_t active_count; /* groups whose committed view has inc */
    uint32_t endpoint_len;
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
} mcpg_coord_rank_t;

typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t reg;    /* registered process, none: nobody */
    mcpg_incarnation_t left;   /* last process that left this generation */
    mcpg_incarnation_t active; /* of the committed view; valid while the slot is active */
    mcpg_incarnation_t target; /* that the open barrier adds, or (rebuild) of the view in doubt */
    uint64_t active_since;     /* epoch that made `active` active */
    uint64_t leave_seq, ack_seq;
    uint64_t commit_acked; /* newest epoch whose COMMIT this process installed */
    uint64_t join_call;    /* open JOIN, valid while awaiting by call */
    uint64_t sync_call;
    mcpg_view_id_t abort_view; /* an ACK that the process holds open and that nobody waits for any more */
    /* REBUILD: newest COMMIT that the process has, newest view that it was told is aborted */
    mcpg_view_id_t seen, aborted;
} mcpg_coord_slot_t;

typedef enum { MCPG_COORD_GROUP_FREE = 0, MCPG_COORD_GROUP_FORMING, MCPG_COORD_GROUP_READY } mcpg_coord_group_phase_t;
/* How far a group of an earlier coordinator is taken over. GATHER: reports come in. STRANDED: too few have come, or the
 * store does not answer: it waits for more. CLAIM: the store is asked. NONE: decided, or never anybody else's. */
typedef enum {
    MCPG_COORD_REBUILD_NONE = 0,
    MCPG_COORD_REBUILD_GATHER,
    MCPG_COORD_REBUILD_STRANDED,
    MCPG_COORD_REBUILD_CLAIM
} mcpg_coord_rebuild_phase_t;
typedef enum { MCPG_COORD_RECORD_NONE = 0, MCPG_COORD_RECORD_CLAIM, MCPG_COORD_RECORD_WRITE } mcpg_coord_record_phase_t;
/* ADDED: only the added ranks were asked so far. ALL: stayers and removed ones too. */
typedef enum {
    MCPG_COORD_BARRIER_NONE = 0,
    MCPG_COORD_BARRIER_ADDED,
    MCPG_COORD_BARRIER_ALL
} mcpg_coord_barrier_phase_t;
typedef enum {
    MCPG_COORD_BARRIER_BOOT = 0,
    MCPG_COORD_BARRIER_CHANGE,
    MCPG_COORD_BARRIER_SYNC
} mcpg_coord_barrier_kind_t;

/* Sets are of slots. */
typedef struct {
    mcpg_coord_barrier_phase_t phase;
    mcpg_coord_barrier_kind_t kind;
    mcpg_view_id_t id;
    uint64_t deadline_us, removed_deadline_us;
    uint64_t again_us, again_after_us; /* PREPARE is repeated to those who have not answered, ever more rarely */
    bool again;                        /* now */
    bool steps;                        /* somebody who has ACKed uses safe points */
    uint32_t proposal;                 /* index, NONE */
    mcpg_rankset_t added, removed, asked, acked;
    mcpg_rankset_t dropped; /* was asked and is not waited for any more without its ACK */
} mcpg_coord_barrier_t;

typedef struct {
    mcpg_coord_group_phase_t phase;
    mcpg_gid_t gid;
    uint64_t created; /* rises over all groups: candidates are tried oldest first */
    uint32_t base, order_count, founder_count, capacity;
    uint32_t key_len, label_len, kind_len;
    uint8_t key[MCPG_KEY_CAP], label[MCPG_KEY_CAP], kind[MCPG_KEY_CAP];
    bool manual, no_auto_sync;
    bool members_dirty, dirty;
    bool sync_on;          /* somebody called sync_after_failure on this very group */
    bool sync_agreed;      /* everybody entered; the covered groups commit first */
    bool sync_go;          /* a sync barrier is due */
    bool syncing_due;      /* SYNCING is still to be sent */
    bool sync_last;        /* the committed view came from a sync */
    mcpg_gid_t sync_owner; /* group whose sync covers this one, 0: none */
    uint64_t nag_us;       /* next SYNCING to those who have not entered */
    uint64_t epoch_used;   /* I1: highest epoch ever given out here */
    mcpg_view_id_t committed;
    uint64_t switch_seq;
    uint64_t sync_first, last_sync_first;
    uint64_t members_sum; /* anti-entropy digest of the member table */
    uint32_t first_proposal, last_proposal, proposal_count;
    uint32_t cover_cursor;
    mcpg_rankset_t ranks;                  /* global ranks of the order */
    mcpg_rankset_t active, fenced, leaves; /* of the committed view */
    mcpg_rankset_t awaiting, joined;       /* joined: awaiting by a JOIN call, which has a call id */
    mcpg_rankset_t leaving;                /* active, registration ended by LEAVE_GROUP */
    mcpg_rankset_t unseen;                 /* views were committed without this slot's ACK */
    mcpg_rankset_t resync;                 /* MEMBERS, COMMIT, PREPARE, SYNCING are to be sent again */
    mcpg_rankset_t sync_entered, sync_failed, last_sync_failed;
    mcpg_coord_barrier_t barrier;
    /* rebuild */
    mcpg_coord_rebuild_phase_t rebuild;
    bool adopted;     /* an earlier coordinator made it */
    bool rebuild_due; /* something was learned: look again */
    uint64_t gather_until_us;
    mcpg_view_id_t doubt;        /* highest view that somebody ACKed and nobody has the COMMIT of */
    mcpg_rankset_t doubt_active; /* its slots; incarnations are in `target` */
    mcpg_rankset_t wanted;       /* global ranks that are active in any reported view */
    mcpg_rankset_t was_active;   /* slots whose process reported itself active */
    mcpg_rankset_t left_early;   /* slots whose process has left meanwhile: ack_seq is its number */
    mcpg_rankset_t sync_held;    /* SYNC_ENTER is kept until the group is decided */
    mcpg_rankset_t bound;        /* slots that the store's record leaves out: the first barrier removes them */
    /* record */
    mcpg_coord_record_phase_t record;
    bool record_done, record_failed; /* answers about record_view with record_set */
    uint64_t record_retry_us;        /* after UNAVAILABLE, 0: none */
    mcpg_view_id_t record_view;
    mcpg_rankset_t record_set;
} mcpg_coord_group_t;

/* WAIT: a rank to add is not ready yet and some caller waits for it. QUEUED: admissible. RUNNING: the open barrier
 * carries it out. APPLIED: committed (or satisfied), waits for COMMIT_ACKs. ANSWER: status and text are final. */
typedef enum {
    MCPG_COORD_PROP_FREE = 0,
    MCPG_COORD_PROP_WAIT,
    MCPG_COORD_PROP_QUEUED,
    MCPG_COORD_PROP_RUNNING,
    MCPG_COORD_PROP_APPLIED,
    MCPG_COORD_PROP_ANSWER
} mcpg_coord_prop_phase_t;
typedef struct {
    mcpg_coord_prop_phase_t phase;
    uint32_t group, next, first_caller;
    mcpg_rankset_t activate, deactivate; /* as asked for */
    mcpg_rankset_t stale;                /* deactivations whose stamp was no longer active on arrival */
    mcpg_rankset_t dropped;
    uint64_t expected_epoch, admit_epoch, epoch;
    int32_t status;
    uint32_t text_len;
    char text[MCPG_TEXT_CAP];
} mcpg_coord_prop_t;

typedef struct {
    bool used;
    uint32_t next;
    uint64_t conn, call_id;
    uint64_t wait_until_us;
} mcpg_coord_caller_t;

/* One judgement. answered: bit (answerer row, suspect column), rows of max_ranks bits. */
typedef struct {
    bool used;
    uint64_t check_id, deadline_us;
    mcpg_rankset_t suspects, asked;
} mcpg_coord_fault_t;

typedef struct {
    bool used, due;
    bool held; /* until the group is decided */
    uint32_t fault;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    mcpg_gid_t gid;
    uint64_t report_id;
    mcpg_rankset_t failed; /* slots */
    mcpg_rankset_t told;   /* those that it was told are cleared */
} mcpg_coord_report_t;

struct mcpg_coord {
    mcpg_coord_config_t config;
    uint32_t words; /* of one link row */
    uint32_t prop_cap, caller_cap, report_cap;
    mcpg_time_t now;
    uint64_t armed_us, want_us;
    uint64_t last_counter, last_check, last_created;
    uint32_t last_gid;
    uint64_t settle_us;      /* end of settling; 0: settled, NEVER: not begun */
    uint32_t gathering;      /* groups that gather or claim */
    uint64_t mass_us;        /* until then nobody is removed for silence alone, 0: no mass loss */
    uint64_t mass_window_us; /* begin of the window in which silences are counted */
    uint32_t mass_base, mass_lost;
    uint32_t ended[MCPG_COORD_ENDED], ended_at; /* ring */
    bool deposed;
    bool shutting, stopped, more, health_dirty, health_exact, rank_sum_valid;
    bool states_due;   /* a rank may differ from what was told of it */
    bool health_later; /* a hard graph: new links are looked at together, at health_retry_us */
    uint64_t health_retry_us;
    bool link_added; /* one new link (added_a, added_b) is all that happened to the healthy set */
    uint32_t added_a, added_b;
    uint64_t drain_until_us;
    uint64_t rank_sum;
    uint32_t rank_high, group_high, prop_high, caller_high, report_high; /* first index never used */
    uint32_t props_used, callers_used, reports_used, faults_used, groups_used, slots_used;
    uint32_t group_cursor;
    mcpg_rankset_t present;   /* state is not OFFLINE */
    mcpg_rankset_t healthy;   /* state is HEALTHY, while health_dirty is false */
    mcpg_rankset_t active;    /* of those present: active in any group, while health_dirty is false */
    mcpg_rankset_t streams;   /* has a stream */
    mcpg_rankset_t republish; /* to be told again, changed or not */
    mcpg_rankset_t need_full; /* gets a full RANK_STATES */
    mcpg_coord_fault_t faults[MCPG_COORD_MAX_FAULTS];
    /* tables behind this struct */
    uint64_t *conns; /* by rank, 0: no stream */
    uint32_t *hints; /* by connection modulo max_ranks: the rank that had it last */
    uint32_t *gids;  /* by group index, 0: free */
    mcpg_coord_rank_t *ranks;
    uint64_t *raw, *eff; /* link rows: what was reported, what counts */
    uint64_t *answered;  /* MAX_FAULTS matrices */
    mcpg_coord_group_t *groups;
    mcpg_coord_slot_t *slots;
    uint64_t *blocks; /* bitmap of slot blocks in use */
    mcpg_coord_prop_t *props;
    mcpg_coord_caller_t *callers;
    mcpg_coord_report_t *reports;
};

_Static_assert(MCPG_MAX_RANKS % 64u == 0, "link rows fit a rankset");
_Static_assert(sizeof(mcpg_coord_effect_t) <= 64, "one cache line per effect");
_Static_assert(MCPG_MAX_SLOTS_TOTAL % MCPG_COORD_BLOCK == 0, "slots divide into blocks");
_Static_assert(MCPG_MAX_SLOTS_TOTAL / MCPG_COORD_BLOCK >= MCPG_MAX_GROUPS, "every group finds a block");

/* ---- small helpers ---- */
static inline bool mcpg__bit_get(const uint64_t *row, uint32_t i) {
    return (row[i / 64u] >> (i % 64u)) & 1u;
}
static inline void mcpg__bit_put(uint64_t *row, uint32_t i, bool on) {
    uint64_t bit = UINT64_C(1) << (i % 64u);
    row[i / 64u] = on ? row[i / 64u] | bit : row[i / 64u] & ~bit;
}
static inline uint64_t *mcpg__coord_raw(const mcpg_coord_t *c, uint32_t rank) {
    return c->raw + (size_t)rank * c->words;
}
static inline uint64_t *mcpg__coord_eff(const mcpg_coord_t *c, uint32_t rank) {
    return c->eff + (size_t)rank * c->words;
}
static inline uint64_t *mcpg__coord_answered(const mcpg_coord_t *c, uint32_t fault, uint32_t rank) {
    return c->answered + ((size_t)fault * c->config.max_ranks + rank) * c->words;
}
static inline uint64_t mcpg__after(mcpg_time_t now, uint64_t delay_us) {
    return delay_us >= MCPG_COORD_NEVER - 1 - now.us ? MCPG_COORD_NEVER - 1 : now.us + delay_us;
}
static inline void mcpg__coord_want(mcpg_coord_t *c, uint64_t at_us) {
    if (at_us < c->want_us) c->want_us = at_us;
}
static inline mcpg_coord_slot_t *mcpg__coord_slot(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    return &c->slots[g->base + slot];
}
static inline mcpg_coord_rank_t *mcpg__coord_rank_of(const mcpg_coord_t *c, const mcpg_coord_group_t *g,
                                                     uint32_t slot) {
    return &c->ranks[c->slots[g->base + slot].rank.v];
}
static inline void mcpg__coord_touch(mcpg_coord_group_t *g) {
    g->dirty = true;
}
/* The slot has a registered process, which is the rank's present one. */
static inline bool mcpg__coord_registered(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    return !mcpg__inc_none(s->reg) && mcpg__inc_eq(s->reg, c->ranks[s->rank.v].inc);
}
/* The slot's committed process is the rank's present one and not OFFLINE. */
static inline bool mcpg__coord_active_live(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    const mcpg_coord_rank_t *r = &c->ranks[s->rank.v];
    return mcpg__rankset_has(&g->active, slot) && mcpg__inc_eq(s->active, r->inc) && r->state != MCPG_RANK_OFFLINE;
}
/* The same, and registered here: one that a barrier asks. */
static inline bool mcpg__coord_live(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot) {
    return mcpg__coord_active_live(c, g, slot) && mcpg__coord_registered(c, g, slot);
}
/* Something was learned about a group of an earlier coordinator: whether it can be decided is looked at again. */
static inline void mcpg__coord_look_again(mcpg_coord_group_t *g) {
    g->rebuild_due = true;
    mcpg__coord_touch(g);
}
/* More than half; or half, when the lowest is among them. Of two disjoint parts only one is ever the greater. */
static inline bool mcpg__coord_greater_part(uint32_t here, uint32_t all, bool lowest_here) {
    return here * 2u > all || (here * 2u == all && (lowest_here || all == 0));
}

/* ---- coord_fx.c: effects and sentences ---- */
typedef struct {
    uint32_t len;
    char buf[MCPG_TEXT_CAP];
} mcpg_coord_text_t;
void mcpg__coord_say(mcpg_coord_text_t *text, const char *words);
void mcpg__coord_say_u64(mcpg_coord_text_t *text, uint64_t value);
void mcpg__coord_say_bytes(mcpg_coord_text_t *text, const uint8_t *bytes, uint32_t len);
void mcpg__coord_say_rank(mcpg_coord_text_t *text, const mcpg_coord_t *c,
                          uint32_t rank); /* "rank 3 is OFFLINE (process dead)" */

/* Room that one unit of a group's reactions, one RANK_STATES, one short answer may take. */
bool mcpg__fx_room_group(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx, uint32_t units);
bool mcpg__fx_room_states(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx);
bool mcpg__fx_room_answer(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx);
void *mcpg__fx_alloc(mcpg_coord_effects_t *fx, size_t size);
mcpg_bytes_t mcpg__fx_text(mcpg_coord_effects_t *fx, const char *text, uint32_t len);
mcpg_down_msg_t *mcpg__fx_send(mcpg_coord_effects_t *fx, const mcpg_rankset_t *to,
                               mcpg_down_kind_t kind); /* copies the set */
mcpg_down_msg_t *mcpg__fx_answer(mcpg_coord_effects_t *fx, uint64_t conn, mcpg_down_kind_t kind);
mcpg_group_record_t *mcpg__fx_record(mcpg_coord_effects_t *fx, mcpg_coord_fx_kind_t kind, mcpg_gid_t gid);
void mcpg__fx_close(mcpg_coord_effects_t *fx, uint64_t conn);
void mcpg__fx_arm(mcpg_coord_effects_t *fx, uint64_t at_us);
void mcpg__fx_stop(mcpg_coord_effects_t *fx);
void mcpg__fx_refuse_call(mcpg_coord_effects_t *fx, uint64_t conn, uint64_t call_id, mcpg_status_t status,
                          uint64_t epoch, const mcpg_coord_text_t *text);

/* ---- coord_attach.c: streams, incarnations, deaths ---- */
uint32_t mcpg__coord_rank_by_conn(const mcpg_coord_t *c, uint64_t conn); /* NONE */
void mcpg__coord_attach(mcpg_coord_t *c, uint64_t conn, const mcpg_up_attach_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_heartbeat(mcpg_coord_t *c, uint32_t rank, const mcpg_up_heartbeat_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_closed(mcpg_coord_t *c, uint64_t conn);
void mcpg__coord_exit(mcpg_coord_t *c, uint32_t rank, int64_t pid, mcpg_coord_effects_t *fx);
void mcpg__coord_death(mcpg_coord_t *c, uint32_t rank, const mcpg_up_death_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_detach(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx);
void mcpg__coord_offline(mcpg_coord_t *c, uint32_t rank,
                         mcpg_coord_effects_t *fx); /* unproved; fx NULL: the stream is gone already */
/* An incarnation that an earlier coordinator gave is named: it is known from now on, and supersedes a lower one. */
void mcpg__coord_name(mcpg_coord_t *c, uint32_t rank, mcpg_incarnation_t inc, mcpg_coord_effects_t *fx);
void mcpg__coord_silence(mcpg_coord_t *c, mcpg_coord_effects_t *fx);
uint64_t mcpg__coord_silence_deadline(const mcpg_coord_t *c);

/* ---- coord_states.c: RANK_STATES and the anti-entropy digest ---- */
bool mcpg__coord_publish(mcpg_coord_t *c, mcpg_coord_effects_t *fx); /* false: no room, tried again */
void mcpg__coord_send_suspects(mcpg_coord_t *c, const mcpg_coord_fault_t *fault, mcpg_coord_effects_t *fx);
uint64_t mcpg__coord_digest_for(mcpg_coord_t *c, uint32_t rank); /* value on the wire */

/* ---- coord_link.c ---- */
void mcpg__coord_link(mcpg_coord_t *c, uint32_t rank, const mcpg_up_link_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_links_forget(mcpg_coord_t *c, uint32_t rank); /* a new incarnation, or proved dead */
void mcpg__coord_links_offline(mcpg_coord_t *c,
                               uint32_t rank); /* OFFLINE, unproved: what was being judged is applied */
void mcpg__coord_links_all_lost(mcpg_coord_t *c, uint32_t rank);

/* ---- coord_fault.c: windows and OP_FAILED reports ---- */
bool mcpg__coord_fault_covers(const mcpg_coord_t *c, uint32_t a, uint32_t b);
void mcpg__coord_fault_open(mcpg_coord_t *c, const mcpg_rankset_t *suspects, mcpg_coord_effects_t *fx,
                            uint32_t *index_out);
void mcpg__coord_fault_answered(mcpg_coord_t *c, uint64_t check_id, uint32_t rank, uint32_t suspect);
void mcpg__coord_fault_forget_rank(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_fault_unask(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_faults_close(mcpg_coord_t *c); /* those that are complete or over */
uint64_t mcpg__coord_fault_deadline(const mcpg_coord_t *c);
void mcpg__coord_op_failed(mcpg_coord_t *c, uint32_t rank, const mcpg_up_op_failed_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_reports_answer(mcpg_coord_t *c, mcpg_coord_effects_t *fx);
void mcpg__coord_reports_forget(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_reports_release(mcpg_coord_t *c, const mcpg_coord_group_t *g,
                                 mcpg_coord_effects_t *fx); /* the group is decided: what was kept is judged */

/* ---- coord_clique.c, coord_health.c: the healthy set ---- */
typedef struct {
    uint32_t n, words;             /* rows of `words` words */
    const uint64_t *adjacency;     /* symmetric; bit (a, b): linked */
    const mcpg_rankset_t *members; /* vertices that take part */
    const mcpg_rankset_t *active;  /* preferred */
    uint64_t node_budget;
    uint64_t at_least; /* weight below which an answer is not wanted: the result is then empty */
} mcpg_coord_graph_t;
/* The best clique; returns false when the budget ran out and the answer is the greedy one. */
bool mcpg__coord_clique(const mcpg_coord_graph_t *graph, mcpg_rankset_t *out);
uint64_t mcpg__coord_clique_weight(const mcpg_coord_graph_t *graph, const mcpg_rankset_t *set);
/* News that may change the healthy set; what cannot is not searched for. */
void mcpg__coord_health_link_added(mcpg_coord_t *c, uint32_t a, uint32_t b);
void mcpg__coord_health_link_removed(mcpg_coord_t *c, uint32_t a, uint32_t b);
void mcpg__coord_health_rank_added(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_health_update(mcpg_coord_t *c);
void mcpg__coord_health_timer(mcpg_coord_t *c);
uint32_t mcpg__coord_missing_link(const mcpg_coord_t *c, uint32_t rank); /* lowest HEALTHY rank without a link, NONE */

/* ---- coord_register.c, coord_group.c ---- */
void mcpg__coord_register(mcpg_coord_t *c, uint32_t rank, const mcpg_up_register_t *m, mcpg_coord_effects_t *fx);
mcpg_coord_group_t *mcpg__coord_group_find(const mcpg_coord_t *c, mcpg_gid_t gid);
uint32_t mcpg__coord_slot_of(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t rank); /* NONE */
/* gid 0: a new one. NULL: tables full. */
mcpg_coord_group_t *mcpg__coord_group_new(mcpg_coord_t *c, uint32_t capacity, mcpg_gid_t gid);
void mcpg__coord_group_forget(mcpg_coord_t *c, mcpg_coord_group_t *g);
bool mcpg__coord_group_deserted(const mcpg_coord_t *c, const mcpg_coord_group_t *g);
void mcpg__coord_unregister(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot);
void mcpg__coord_groups_lose_rank(mcpg_coord_t *c, uint32_t rank); /* its incarnation ended for good */
void mcpg__coord_groups_touch_rank(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_groups_resync(mcpg_coord_t *c, uint32_t rank);
void mcpg__coord_groups_nag(mcpg_coord_t *c, uint32_t rank); /* PREPARE and SYNCING that it seems to have missed */
void mcpg__coord_join(mcpg_coord_t *c, uint32_t rank, const mcpg_up_join_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_leave(mcpg_coord_t *c, uint32_t rank, const mcpg_up_leave_group_t *m);
void mcpg__coord_members_changed(mcpg_coord_group_t *g);
void mcpg__coord_listeners(const mcpg_coord_t *c, const mcpg_coord_group_t *g,
                           mcpg_rankset_t *out); /* registered, with a stream */
void mcpg__coord_send_members(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_rankset_t *to,
                              mcpg_coord_effects_t *fx);
/* Reactions of one group. False: it needs more room or another pass. */
bool mcpg__coord_group_react(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);

/* ---- coord_view.c: barriers ---- */
void mcpg__coord_barrier_open(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_barrier_kind_t kind,
                              const mcpg_rankset_t *added, const mcpg_rankset_t *removed, uint32_t proposal,
                              mcpg_coord_effects_t *fx);
bool mcpg__coord_barrier_advance(mcpg_coord_t *c, mcpg_coord_group_t *g,
                                 mcpg_coord_effects_t *fx); /* true: something happened */
void mcpg__coord_barrier_abort(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
mcpg_member_t *mcpg__coord_copy_members(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *set,
                                        const mcpg_rankset_t *added, uint32_t *count_out, mcpg_coord_effects_t *fx);
/* Takes the group's active slots into the ranks' counts, or out of them. */
void mcpg__coord_count_active(mcpg_coord_t *c, const mcpg_coord_group_t *g, bool up);
void mcpg__coord_barrier_ask_again(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_coord_effects_t *fx);
void mcpg__coord_barrier_nag(mcpg_coord_t *c, mcpg_coord_group_t *g); /* repeats a PREPARE that got no ACK */
void mcpg__coord_ack(mcpg_coord_t *c, uint32_t rank, const mcpg_up_ack_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_commit_ack(mcpg_coord_t *c, uint32_t rank, const mcpg_up_commit_ack_t *m);
void mcpg__coord_send_commit(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *to,
                             mcpg_coord_effects_t *fx);
bool mcpg__coord_everywhere(const mcpg_coord_t *c, const mcpg_coord_group_t *g,
                            uint64_t epoch); /* installed by all live ones */

/* ---- coord_last.c: who leaves an auto group by itself, and who never does ---- */
void mcpg__coord_auto_removed(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_rankset_t *out);
/* Nothing changes in the group until one of its ranks is back: the last active ranks of an auto group all lost contact,
 * unproved, or a mass loss is younger than its grace, or the group is not taken over yet. */
bool mcpg__coord_stranded(const mcpg_coord_t *c, const mcpg_coord_group_t *g);
/* The barrier would leave out one of the last ranks that nobody asked to leave out, or has nobody left to ask. */
bool mcpg__coord_barrier_loses_last(const mcpg_coord_t *c, const mcpg_coord_group_t *g);
void mcpg__coord_mass_note(mcpg_coord_t *c, uint32_t present_before); /* one more rank is OFFLINE for its silence */
void mcpg__coord_mass_back(mcpg_coord_t *c);                          /* somebody attaches */
void mcpg__coord_mass_begin(mcpg_coord_t *c);
void mcpg__coord_mass_timer(mcpg_coord_t *c);

/* ---- coord_rebuild.c, coord_takeover.c: groups of an earlier coordinator ---- */
bool mcpg__coord_rebuilding(const mcpg_coord_t *c); /* settling, or some group still gathers */
void mcpg__coord_rebuild(mcpg_coord_t *c, uint32_t rank, const mcpg_up_rebuild_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_rebuild_end(mcpg_coord_t *c, uint32_t rank, mcpg_coord_effects_t *fx);
/* Rule 9: the process goes on as somebody new when it attaches again. */
bool mcpg__coord_lost_a_view(const mcpg_coord_t *c, uint32_t rank);
/* Begins to settle, ends it, and wakes the groups whose time has come. */
void mcpg__coord_rebuild_clock(mcpg_coord_t *c);
uint64_t mcpg__coord_rebuild_deadline(const mcpg_coord_t *c);
void mcpg__coord_rebuild_forgive(mcpg_coord_t *c, uint64_t late_us);
void mcpg__coord_rebuild_set(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_rebuild_phase_t phase);
/* True: the group is the earlier coordinator's still, and nothing else may happen to it. */
bool mcpg__coord_rebuild_react(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
void mcpg__coord_rebuild_decide(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
/* The process has lost a view: its stream ends, and when it comes back it is somebody new. True: so it is. */
bool mcpg__coord_rebuild_judge(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot, mcpg_coord_effects_t *fx);
bool mcpg__coord_accounted_for(const mcpg_coord_t *c, uint32_t rank); /* has reported, or is proved dead */
bool mcpg__coord_rebuild_buried(const mcpg_coord_t *c, const mcpg_coord_group_t *g, mcpg_view_id_t id);
/* A slot whose process is active and has reported, but not this group: it has left. */
void mcpg__coord_rebuild_leaver(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t slot);
/* Sentence of a refusal while the group is not taken over. */
void mcpg__coord_say_gathering(mcpg_coord_text_t *text);
/* The incarnation has ended for good: proved dead, or a later one has the rank. */
bool mcpg__coord_inc_over(const mcpg_coord_t *c, uint32_t rank, mcpg_incarnation_t inc);

/* ---- coord_record.c: one ruler (rule 8) ---- */
typedef enum { MCPG_COORD_RECORD_READY = 0, MCPG_COORD_RECORD_WAIT, MCPG_COORD_RECORD_FAILED } mcpg_coord_record_step_t;
/* What the open barrier may do about its COMMIT; writes the record when that is due. */
mcpg_coord_record_step_t mcpg__coord_record_step(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
/* Removing these by itself would need the store, which did not answer a moment ago. */
bool mcpg__coord_record_blocked(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_rankset_t *removed);
void mcpg__coord_record_claim(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
void mcpg__coord_record_event(mcpg_coord_t *c, const mcpg_coord_event_t *event, mcpg_coord_effects_t *fx);
/* Somebody newer rules: no decision any more. */
void mcpg__coord_depose(mcpg_coord_t *c);
void mcpg__coord_depose_finish(mcpg_coord_t *c, mcpg_coord_effects_t *fx);

/* ---- coord_propose.c ---- */
void mcpg__coord_propose(mcpg_coord_t *c, uint32_t rank, const mcpg_up_propose_t *m, mcpg_coord_effects_t *fx);
bool mcpg__coord_proposal_start(mcpg_coord_t *c, mcpg_coord_group_t *g,
                                mcpg_coord_effects_t *fx); /* true: something happened */
void mcpg__coord_proposal_applied(mcpg_coord_t *c, uint32_t index, const mcpg_rankset_t *dropped, uint64_t epoch);
void mcpg__coord_proposal_reject(mcpg_coord_t *c, uint32_t index, mcpg_status_t status, uint64_t epoch,
                                 const mcpg_coord_text_t *text);
bool mcpg__coord_proposals_answer(mcpg_coord_t *c, mcpg_coord_group_t *g,
                                  mcpg_coord_effects_t *fx); /* false: no room */
void mcpg__coord_proposals_reject_all(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_status_t status, const char *words);
void mcpg__coord_proposals_forget(
    mcpg_coord_t *c, mcpg_coord_group_t *g); /* frees those of a group that is forgotten; all are answered */
void mcpg__coord_callers_lost(mcpg_coord_t *c, uint64_t conn);
bool mcpg__coord_callers_expire(mcpg_coord_t *c, mcpg_coord_effects_t *fx); /* false: no room */
uint64_t mcpg__coord_caller_deadline(const mcpg_coord_t *c);

/* ---- coord_sync.c ---- */
void mcpg__coord_sync_enter(mcpg_coord_t *c, uint32_t rank, const mcpg_up_sync_enter_t *m, mcpg_coord_effects_t *fx);
void mcpg__coord_sync_evaluate(mcpg_coord_t *c, mcpg_coord_group_t *g);
void mcpg__coord_sync_committed(mcpg_coord_t *c, mcpg_coord_group_t *g);
void mcpg__coord_sync_abandon(mcpg_coord_t *c, mcpg_coord_group_t *g);
/* Rank's SYNC_ENTERs that were kept until the group was decided. */
void mcpg__coord_sync_release(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
void mcpg__coord_sync_slot_gone(mcpg_coord_group_t *g, uint32_t slot);

/* ---- coord_shutdown.c ---- */
void mcpg__coord_shutdown(mcpg_coord_t *c);
void mcpg__coord_shutdown_group(mcpg_coord_t *c, mcpg_coord_group_t *g, mcpg_coord_effects_t *fx);
void mcpg__coord_shutdown_finish(mcpg_coord_t *c, mcpg_coord_effects_t *fx);

#endif
