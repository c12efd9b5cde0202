/* dp_priv.h: the inside of the data plane above links: groups, views, works, running operations.
 *
 * Everything here except works' reference counts and the callback queue is guarded by the engine lock. Never included
 * outside src/dataplane and its tests.
 */
#ifndef MCPG_DATAPLANE_DP_PRIV_H
#define MCPG_DATAPLANE_DP_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/executor.h"
#include "dataplane/dp.h"
#include "dataplane/engine.h"

#define MCPG_HOLD_BIT          (UINT64_C(1) << 63)
#define MCPG_RUN_MAX           64u                 /* collectives of one group that exchange messages at a time */
#define MCPG_OUTSTANDING_MAX   65536u              /* works of one group: beyond it submit waits */
#define MCPG_GROUP_SCRATCH_MAX ((size_t)64 << 20)  /* of running collectives of one group, the oldest always runs */
#define MCPG_SCRATCH_KEEP      ((size_t)128 << 20) /* unused scratch that is kept for later */
#define MCPG_SCRATCH_CLASSES   28u                 /* 4 KiB << class */
#define MCPG_WORK_CLASSES      14u                 /* hint entries: 1 << class */
#define MCPG_GROUP_BUCKETS     256u
#define MCPG_WINDOW            4u /* chunks of one operation in flight */
#define MCPG_PROBE_WAIT_US     1000000u
#define MCPG_TURN_BYTES        ((uint64_t)8 << 20) /* copied or combined in one turn: then links are served again */
#define MCPG_ERROR_CAP         512u

typedef struct mcpg_dpgroup mcpg_dpgroup_t;
typedef struct mcpg_exec mcpg_exec_t;
typedef struct mcpg_coll mcpg_coll_t;

/* One installed view. leave_seq[i]: from that number on nobody waits for member i (MCPG_NO_SEQ: it stays). */
typedef struct mcpg_dpview {
    struct mcpg_dpview *older;
    mcpg_view_id_t id;
    uint64_t switch_seq;
    uint32_t refs; /* running operations */
    uint32_t count;
    mcpg_member_t *m; /* ascending slots */
    uint64_t *leave_seq;
    mcpg_view_id_t *pair_base; /* first view of the unbroken time in which own slot and member i are both active: names
                                  p2p numbers */
} mcpg_dpview_t;

typedef enum {
    MCPG_W_WAITING = 0, /* not started: held, or behind the window */
    MCPG_W_RUNNING,
    MCPG_W_JUDGING, /* failed ranks were reported, waits for resolve */
    MCPG_W_DONE,    /* result is there, earlier operations are not complete */
    MCPG_W_COMPLETE
} mcpg_wstate_t;

/* Outlives its group and its data plane. state is stored with release after everything else was written. */
struct mcpg_dp_work {
    struct mcpg_dp_work *next, *prev; /* of the group, issue order */
    struct mcpg_dp_work *link;        /* pool or callback queue */
    struct mcpg_dp_core *core;
    mcpg_dp_t *dp;
    mcpg_dpgroup_t *group; /* while not complete */
    mcpg_exec_t *exec;     /* while running */
    atomic_uint refs;
    atomic_int state; /* mcpg_wstate_t */
    mcpg_op_t op;     /* ins and outs point into segs */
    mcpg_seg_t *segs;
    uint32_t segs_cap;
    uint64_t seq, pair_seq, report_id;
    mcpg_view_id_t pair_base;
    uint64_t deadline_us; /* hard limit, MCPG_NO_SEQ: none */
    mcpg_status_t status;
    bool local_success, asked; /* asked: a callback was registered */
    char *error;
    void (*func)(void *user, mcpg_dp_work_t *work);
    void *user;
    uint32_t capacity, class_index;
    int32_t hint[];
};

/* What works need after the data plane is gone. */
typedef struct mcpg_dp_core {
    atomic_uint refs; /* data plane and works that exist */
    pthread_mutex_t lock;
    mcpg_dp_work_t *pool[MCPG_WORK_CLASSES];
    mcpg_dp_work_t *callbacks, **callbacks_end;
    bool calling; /* a thread runs callbacks */
} mcpg_dp_core_t;

typedef struct mcpg_scratch {
    struct mcpg_scratch *next;
    size_t cap;
    uint32_t class_index;
    _Alignas(64) uint8_t bytes[];
} mcpg_scratch_t;

/* The last process that left a slot while this rank was active: what it had sent may still be received. */
typedef struct {
    mcpg_rank_t rank;
    mcpg_incarnation_t inc; /* none: nobody left */
    mcpg_view_id_t base;    /* pair_base towards it */
} mcpg_gone_t;

/* Point-to-point numbers with one slot and tag: they count from 0 again when the pair's base changes. */
typedef struct mcpg_pair {
    struct mcpg_pair *next;
    uint32_t slot;
    uint64_t tag;
    mcpg_view_id_t base;
    uint64_t send_next, recv_next;
} mcpg_pair_t;
/* A small message to oneself whose receive was not posted yet. */
typedef struct mcpg_self_msg {
    struct mcpg_self_msg *next;
    uint64_t tag, seq;
    uint32_t dtype;
    size_t bytes;
    uint8_t data[];
} mcpg_self_msg_t;
#define MCPG_PAIR_BUCKETS 64u

struct mcpg_dpgroup {
    mcpg_dpgroup_t *next; /* bucket */
    mcpg_dp_t *dp;
    mcpg_gid_t gid;
    mcpg_slot_t slot;
    uint32_t capacity;
    bool isolated, manual, no_auto_sync, fenced, quiescing;
    bool steps;          /* safe_point was used here */
    bool doubted;        /* held, and nobody knows what became of the view: no operation is taken */
    bool dirty;          /* messages of ended numbers may be kept by the link layer */
    mcpg_status_t ended; /* OK, or what abort said */
    char ended_why[192];
    _Atomic uint64_t word; /* next number, MCPG_HOLD_BIT */
    uint64_t hold_seq;     /* with the bit set: operations from here on wait */
    mcpg_dpview_t *newest; /* linked towards older ones */
    mcpg_dpview_t *self_view;
    int32_t *mirror;
    uint64_t timeout_us;
    mcpg_rankset_t failed; /* since the last sync or safe point */
    uint64_t first_failed_seq;
    mcpg_dp_work_t *head, *tail, *next_start; /* collectives */
    uint64_t *owed; /* numbers that this rank ended while held: the others are told when their view is known */
    uint32_t owed_count, owed_cap;
    mcpg_dp_work_t *p2p_head, *p2p_tail;
    uint32_t outstanding, running;
    size_t scratch_used;
    uint64_t forgotten;  /* numbers below need no kept messages any more */
    mcpg_pair_t **pairs; /* MCPG_PAIR_BUCKETS, made with the first message */
    mcpg_self_msg_t *self_msgs;
    mcpg_gone_t *gone; /* capacity, made with the first departure */
};

struct mcpg_dp {
    mcpg_engine_t *engine;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    mcpg_log_t log;
    uint64_t collective_timeout_us, p2p_timeout_us;
    mcpg_dpgroup_t *buckets[MCPG_GROUP_BUCKETS];
    uint64_t deadline_us; /* not later than the earliest deadline of any work */
    uint64_t report_next;
    mcpg_exec_t *ready, **ready_end;
    uint64_t turn_bytes;
    mcpg_exec_t *free_coll, *free_p2p;
    mcpg_scratch_t *scratch[MCPG_SCRATCH_CLASSES];
    size_t scratch_kept;
    mcpg_dp_core_t *core;
    uint32_t waiting; /* threads in mcpg__dp_wait */
    bool kick;        /* something completed or must move: wake the driver after unlocking */
    bool news;        /* the same, for the driver's next turn: waiting threads must look again */
};

/* dp.c */
void mcpg__dp_turn(mcpg_dp_t *dp);   /* runs what is ready */
void mcpg__dp_unlock(mcpg_dp_t *dp); /* runs what is ready, unlocks, kicks if needed */
void mcpg__dp_arm(mcpg_dp_t *dp, uint64_t at_us);
bool mcpg__dp_wait(mcpg_dp_t *dp, bool (*done)(void *arg), void *arg,
                   uint64_t deadline_us); /* lock held; runs what is ready first */
mcpg_dpgroup_t *mcpg__dp_group(const mcpg_dp_t *dp, mcpg_gid_t gid);
bool mcpg__dp_unlocked_hook(void *user);

/* view.c */
mcpg_dpview_t *mcpg__view_new(const mcpg_member_t *members, uint32_t count);
int32_t mcpg__view_find(const mcpg_dpview_t *v, uint32_t slot); /* member index or -1 */
mcpg_dpview_t *mcpg__view_of(const mcpg_dpgroup_t *g, uint64_t seq);
bool mcpg__view_runs(const mcpg_dpgroup_t *g, const mcpg_dpview_t *v,
                     uint64_t seq); /* own slot takes part in number seq */
void mcpg__view_release(mcpg_dpgroup_t *g, mcpg_dpview_t *v);
void mcpg__view_prune(mcpg_dpgroup_t *g);
void mcpg__view_free_all(mcpg_dpgroup_t *g);
mcpg_status_t mcpg__view_add(mcpg_dpgroup_t *g, const mcpg_down_commit_t *c);

/* group.c, group_iface.c */
static inline uint64_t mcpg__group_next(const mcpg_dpgroup_t *g) {
    return atomic_load_explicit(&g->word, memory_order_relaxed) & ~MCPG_HOLD_BIT;
}
static inline bool mcpg__group_held(const mcpg_dpgroup_t *g) {
    return !g->isolated &&
           (g->newest == NULL || (atomic_load_explicit(&g->word, memory_order_relaxed) & MCPG_HOLD_BIT) != 0);
}
void mcpg__group_set_next(mcpg_dpgroup_t *g, uint64_t next); /* keeps the hold */
void mcpg__group_start_ready(mcpg_dpgroup_t *g);
void mcpg__group_complete(mcpg_dpgroup_t *g); /* in issue order, as far as results are there */
/* Every outstanding work ends with this status. include_judging: also those that wait for resolve. below: only smaller
 * numbers. */
void mcpg__group_end_all(mcpg_dpgroup_t *g, mcpg_status_t status, const char *why, bool include_judging,
                         uint64_t below);
void mcpg__group_clear_failure(mcpg_dpgroup_t *g);
void mcpg__group_close(mcpg_dpgroup_t *g, mcpg_status_t status, const char *why);
void mcpg__group_forget(mcpg_dpgroup_t *g); /* kept messages of numbers that ended, if there can be any */
void mcpg__group_write_mirror(const mcpg_dpgroup_t *g);
mcpg_dpgroup_t *mcpg__group_new(mcpg_dp_t *dp, const mcpg_dp_group_config_t *c);

/* work.c */
mcpg_dp_work_t *mcpg__work_get(mcpg_dp_t *dp, uint32_t capacity);
mcpg_status_t mcpg__work_copy_op(mcpg_dp_work_t *w, const mcpg_op_t *op);
void mcpg__work_fail(mcpg_dp_work_t *w, mcpg_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void mcpg__work_complete(mcpg_dp_work_t *w); /* publishes; queues the callback; drops the data plane's reference */
static inline mcpg_wstate_t mcpg__work_state(const mcpg_dp_work_t *w) {
    return (mcpg_wstate_t)atomic_load_explicit(&w->state, memory_order_acquire);
}
void mcpg__work_set_state(mcpg_dp_work_t *w, mcpg_wstate_t state);
mcpg_dp_core_t *mcpg__core_new(void);
void mcpg__core_release(mcpg_dp_core_t *core);

/* op.c, op_check.c, op_end.c, op_timer.c */
mcpg_status_t mcpg__op_check(const mcpg_dpgroup_t *g, const mcpg_op_t *op, char *error, size_t cap);
mcpg_status_t mcpg__op_supported(const mcpg_op_t *op, char *error, size_t cap);
/* NOT_ACTIVE and ROOT_NOT_ACTIVE by the view of the number. */
mcpg_status_t mcpg__op_judge(const mcpg_dpgroup_t *g, const mcpg_op_t *op, uint64_t seq, char *error, size_t cap);
bool mcpg__op_is_rooted(mcpg_op_kind_t kind);
bool mcpg__op_is_p2p(mcpg_op_kind_t kind);
void mcpg__op_start(mcpg_dp_work_t *w);
/* Own end of a number that never started and that other ranks may wait for: they are told, when its view is known. */
void mcpg__op_leave_number(mcpg_dpgroup_t *g, uint64_t seq);
void mcpg__op_leave_owed(mcpg_dpgroup_t *g);
/* Ends w (waiting, running or judging) now; the caller completes. why may be NULL (SYNCING: local success false, no
 * error). */
void mcpg__op_end(mcpg_dp_work_t *w, mcpg_status_t status, const char *why);
void mcpg__op_finish(mcpg_exec_t *x); /* from progress: everything that could arrive has */
void mcpg__op_resolve(mcpg_dp_work_t *w, mcpg_status_t status);
/* Deadlines and probes of one work; returns when it wants to be looked at again. */
uint64_t mcpg__op_timer(mcpg_dp_work_t *w, uint64_t now_us);

/* p2p.c */
mcpg_status_t mcpg__p2p_submit(mcpg_dpgroup_t *g, const mcpg_op_t *op, mcpg_dp_work_t **out, char *error, size_t cap);
void mcpg__p2p_complete(mcpg_dp_work_t *w);     /* its result is there: p2p works complete in no order */
void mcpg__p2p_view_changed(mcpg_dpgroup_t *g); /* works with ranks that are not in the newest view end hinted */
/* Kept messages from before the newest view's pairs began; all: every pair begins anew. */
void mcpg__p2p_forget(mcpg_dpgroup_t *g, bool all);
void mcpg__p2p_free(mcpg_dpgroup_t *g);

/* reduce.c */
bool mcpg__reduce_supported(mcpg_dtype_t dtype, mcpg_redop_t op);
/* dst may be exactly one of the sources. Sources combine in their order. */
void mcpg__reduce(void *dst, const void *const *srcs, uint32_t src_count, size_t count, mcpg_dtype_t dtype,
                  mcpg_redop_t op);

#endif
