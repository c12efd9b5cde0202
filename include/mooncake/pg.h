/* pg.h: the public C API of libmooncake_pg: fault-tolerant collective communication with a membership control plane.
 *
 * One context per process and job (several contexts per process are allowed; there is no global state). A context owns
 * the agent (control plane client) and the data plane; groups are created on it, operations run on groups and return
 * works. Ranks in group calls are in-group ranks (slots); only mcpg_config_t.global_rank and
 * mcpg_group_config_t.rank_order are global.
 *
 * Threads: every function may be called from any thread. Operations on one group are numbered in the order in which
 * their calls enter the library, so all ranks must issue the collectives of one group in the same order: calls for one
 * group from several threads must be ordered by the caller. mcpg_*_destroy must be the last call on its object. After
 * fork() every call in the child returns MCPG_FORKED.
 *
 * Errors: calls return a status; outputs are written only on MCPG_OK. mcpg_context_error() gives the last detailed
 * sentence of the calling thread's last failed call on that context. A failed rank is not an error: the work says so
 * (mcpg_work_failed_ranks).
 *
 * This header never exposes a transport, a thread or a lock; it must compile alone in C11 and C++17.
 */
#ifndef MOONCAKE_PG_H
#define MOONCAKE_PG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MCPG_API      __attribute__((visibility("default")))
#define MCPG_MUST_USE __attribute__((warn_unused_result))
#else
#define MCPG_API
#define MCPG_MUST_USE
#endif

/* Ranks of a job and slots of a group. Another value (a multiple of 64, up to 4096) must be the library's too: it is
 * built with cmake -DMCPG_MAX_RANKS=. */
#ifndef MCPG_MAX_RANKS
#define MCPG_MAX_RANKS 1024
#endif

/* Negative: failure. 0: ok. Positive: not finished. The table is src/common/statuses.def; values never change. */
typedef enum mcpg_status {
    MCPG_OK = 0,
    MCPG_IN_PROGRESS = 1,
    MCPG_INVALID_ARGUMENT = -1,
    MCPG_INVALID_STATE = -2,
    MCPG_NOT_SUPPORTED = -3,
    MCPG_NOT_ACTIVE = -4,
    MCPG_QUIESCING = -5,
    MCPG_ROOT_NOT_ACTIVE = -6,
    MCPG_MISMATCH = -7,
    MCPG_TIMED_OUT = -8,
    MCPG_BUSY = -9,
    MCPG_LIMIT = -10,
    MCPG_NO_MEMORY = -11,
    MCPG_SYSTEM = -12,
    MCPG_NOT_FOUND = -13,
    MCPG_RANK_IN_USE = -14,
    MCPG_WORLD_MISMATCH = -15,
    MCPG_NEEDS_EXTENSION = -16,
    MCPG_AMBIGUOUS_GROUP = -17,
    MCPG_VERSION_MISMATCH = -18,
    MCPG_UNAVAILABLE = -19,
    MCPG_COORDINATOR_LOST = -20,
    MCPG_IN_DOUBT = -21,
    MCPG_OUTCOME_UNKNOWN = -22,
    MCPG_NOT_HEALTHY = -23,
    MCPG_NOT_AWAITING = -24,
    MCPG_CONFLICT = -25,
    MCPG_STALE_EPOCH = -26,
    MCPG_ABORTED = -27,
    MCPG_SHUTTING_DOWN = -28,
    MCPG_FORKED = -29,
    MCPG_CORRUPT = -30,
    MCPG_LINK_DOWN = -31,
    MCPG_PEER_DEAD = -32,
    MCPG_NO_PENDING = -33,
    MCPG_REJECTED = -34,
    MCPG_INTERNAL = -35,
    MCPG_NOT_PERMITTED = -36
} mcpg_status_t;

/* Static text of a status, never NULL. mcpg_status_name gives "NOT_ACTIVE" and the like. */
MCPG_API const char *mcpg_status_text(mcpg_status_t status);
MCPG_API const char *mcpg_status_name(mcpg_status_t status);
/* "0.1.0". */
MCPG_API const char *mcpg_version(void);

typedef struct mcpg_context mcpg_context_t;
typedef struct mcpg_coordinator mcpg_coordinator_t;
typedef struct mcpg_group mcpg_group_t;
typedef struct mcpg_work mcpg_work_t;

/* ---- Key-value callbacks: how ranks find their coordinator (a torch Store, etcd, ...)
 * -------------------------------------- All are called on a helper thread of the context, may block up to timeout_ms
 * (the three others: as long as get), and must be safe to call until mcpg_context_destroy, or a mcpg_context_create
 * that failed, returned. Neither waits for a callback that is stuck for 2 s beyond its time: that one is left behind,
 * begins no other, and only has to survive its own return. Values are at most 4,096 bytes. */
typedef struct mcpg_kv {
    void *user;
    /* Waits for the key. Writes at most cap bytes, the full length to *len_out. MCPG_TIMED_OUT when it did not appear.
     */
    mcpg_status_t (*get)(void *user, const char *key, void *value, size_t cap, size_t *len_out, uint32_t timeout_ms);
    mcpg_status_t (*set)(void *user, const char *key, const void *value, size_t len);
    /* Atomic: stores desired if the value equals expected (expected_len 0: if the key is absent). Writes what is stored
     * afterwards. */
    mcpg_status_t (*compare_set)(void *user, const char *key, const void *expected, size_t expected_len,
                                 const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out);
    mcpg_status_t (*add)(void *user, const char *key, int64_t delta, int64_t *value_out);
} mcpg_kv_t;

/* Control-plane and probe timers, microseconds; 0 means the default in brackets. Environment: MOONCAKE_<NAME>_US. */
typedef struct mcpg_timers {
    uint64_t heartbeat_us;          /* [200,000] agent -> coordinator */
    uint64_t offline_us;            /* [5,000,000] silence after which a rank is OFFLINE */
    uint64_t ack_us;                /* [5,000,000] time a staying rank has to acknowledge PREPARE */
    uint64_t ack_added_us;          /* [1,000,000] the same for added and removed ranks */
    uint64_t reconcile_us;          /* [2,000,000] longest judgement of a link failure */
    uint64_t coordinator_grace_us;  /* [30,000,000] in doubt: how long held operations wait for a coordinator */
    uint64_t collective_timeout_us; /* [1,000,000] wait after which the missing peers of a collective are probed */
    uint64_t p2p_timeout_us;        /* [10,000,000] the same for send and receive */
    uint64_t failover_us;       /* [2,000,000] a coordinator that is lost for so long is replaced (key-value store) */
    uint64_t settle_us;         /* [1,200,000] a new coordinator waits so long for the ranks of an earlier one */
    uint64_t link_retry_us;     /* [100,000] a lost link is tried again after this, then after twice as long, ... */
    uint64_t link_retry_max_us; /* [2,000,000] ... up to this */
} mcpg_timers_t;

typedef enum mcpg_log_level {
    MCPG_LOG_ERROR = 0,
    MCPG_LOG_WARN = 1,
    MCPG_LOG_INFO = 2,
    MCPG_LOG_DEBUG = 3
} mcpg_log_level_t;
/* One line without newline; called from library threads, must not call back into the library. NULL sink: stderr. */
typedef void (*mcpg_log_func_t)(void *user, mcpg_log_level_t level, const char *line);

/* ---- Context
 * --------------------------------------------------------------------------------------------------------------- */
typedef struct mcpg_config {
    size_t struct_size;        /* sizeof(mcpg_config_t) */
    uint32_t global_rank;      /* process slot of the job, < MCPG_MAX_RANKS */
    const char *coordinator;   /* "host:port" or "unix:/path"; NULL: MOONCAKE_COORDINATOR, then kv record, then election
                                  over kv */
    const mcpg_kv_t *kv;       /* NULL if coordinator is given; copied */
    const char *host_ip;       /* address this rank can be reached at; NULL: MOONCAKE_HOST_IP, then 127.0.0.1 */
    const char *transports;    /* "shm,tcp" in order of preference; NULL: MOONCAKE_TRANSPORTS, then all */
    bool may_host_coordinator; /* take part in the election (needs kv) */
    uint64_t connect_timeout_us; /* [30,000,000] for attach */
    mcpg_timers_t timers;
    mcpg_log_func_t log;
    void *log_user;
    const char *event_log_dir; /* flight recorder; NULL: MOONCAKE_EVENT_LOG_DIR, then a private folder of the user; "":
                                  off, as with MOONCAKE_EVENT_LOG=off */
    /* Control plane security, docs/security.md. Files: PEM; key and token readable by this user only. */
    const char *tls;    /* "auto", "always", "never"; NULL: MOONCAKE_TLS, then auto: where host_ip is not loopback */
    const char *tls_ca; /* NULL: MOONCAKE_TLS_CA, then what the job makes for itself through kv */
    const char *tls_cert, *tls_key; /* NULL: MOONCAKE_TLS_CERT, MOONCAKE_TLS_KEY */
    const char *token_file;         /* NULL: MOONCAKE_TOKEN_FILE, then none */
    bool may_take_over; /* host the coordinator after another one was lost, but not the first (needs kv); given with
                           may_host_coordinator */
} mcpg_config_t;
#define MCPG_CONFIG_INITIALIZER ((mcpg_config_t){.struct_size = sizeof(mcpg_config_t)})

/* Attaches to the coordinator (or is elected to host it). Blocks at most connect_timeout_us.
 * RANK_IN_USE, VERSION_MISMATCH, UNAVAILABLE, TIMED_OUT, INVALID_ARGUMENT. error (cap bytes, may be NULL) gets the
 * sentence. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_context_create(const mcpg_config_t *config, mcpg_context_t **context_out,
                                                         char *error, size_t error_cap);
/* Leaves all groups, flushes, detaches, stops a coordinator it hosts (drains at most 5 s). NULL is allowed. */
MCPG_API void mcpg_context_destroy(mcpg_context_t *context);
MCPG_API const char *mcpg_context_error(const mcpg_context_t *context);
/* Address of the coordinator this context is attached to. Copies; returns the full length. */
MCPG_API size_t mcpg_context_coordinator(const mcpg_context_t *context, char *buf, size_t cap);
/* Probe triggers, not hard limits: a live peer is waited for. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_context_set_collective_timeout(mcpg_context_t *context, uint64_t timeout_us);
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_context_set_p2p_timeout(mcpg_context_t *context, uint64_t timeout_us);
/* One JSON object: rank, incarnation, coordinator, per-link transport and state, per-group view, outstanding
 * operations. Copies at most cap bytes with a final NUL; returns the full length. */
MCPG_API size_t mcpg_context_status_json(mcpg_context_t *context, char *buf, size_t cap);

/* ---- Coordinator in this process (launchers, tests, rank 0)
 * ---------------------------------------------------------------- */
typedef struct mcpg_coordinator_config {
    size_t struct_size;
    const char *bind; /* NULL: "127.0.0.1:0"; "unix:/path"; a wider bind needs TLS, see below */
    uint64_t term;    /* 0: milliseconds since 1970, so that a restart is always higher than what ran before */
    mcpg_timers_t timers;
    mcpg_log_func_t log;
    void *log_user;
    const char *event_log_dir;                                  /* as in mcpg_config_t */
    const char *tls, *tls_ca, *tls_cert, *tls_key, *token_file; /* as in mcpg_config_t */
    bool fresh; /* there was no coordinator of this job before: newcomers are taken at once; else after timers.settle_us
                 */
} mcpg_coordinator_config_t;
#define MCPG_COORDINATOR_CONFIG_INITIALIZER                                                                            \
    ((mcpg_coordinator_config_t){.struct_size = sizeof(mcpg_coordinator_config_t)})
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_coordinator_start(const mcpg_coordinator_config_t *config,
                                                            mcpg_coordinator_t **out, char *error, size_t error_cap);
MCPG_API size_t mcpg_coordinator_address(const mcpg_coordinator_t *coordinator, char *buf, size_t cap);
/* A launcher saw process pid, which ran global_rank, exit: a proof of death. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_coordinator_report_exit(mcpg_coordinator_t *coordinator, uint32_t global_rank,
                                                                  int64_t pid);
MCPG_API void mcpg_coordinator_stop(mcpg_coordinator_t *coordinator);

/* ---- Groups
 * ---------------------------------------------------------------------------------------------------------------- */
typedef struct mcpg_group_config {
    size_t struct_size;
    const char *group_key;      /* explicit identity; NULL: device kind + rank_order + capacity */
    const char *label;          /* the framework's group name: founders of one label must agree; NULL: none */
    const uint32_t *rank_order; /* slot -> global rank, group_size entries, no duplicates; copied */
    uint32_t group_size;
    uint32_t max_group_size; /* capacity, >= group_size; 0: group_size */
    bool is_extension;       /* join a group that exists: replacement or growth */
    bool manual;             /* true: failures never change membership (auto_deactivate_on_failure=False) */
    bool no_auto_sync; /* true: a failed work completes before the failure was judged (auto_sync_on_failure=False) */
    const char *device_kind; /* NULL: "cpu" */
    int32_t *active_mirror;  /* max_group_size int32, 0/1 per slot, written at every COMMIT; NULL: none; until group
                                destroy */
    uint64_t timeout_us; /* [300,000,000] until Ready; also the hard limit of operations, see mcpg_group_set_timeout */
} mcpg_group_config_t;
#define MCPG_GROUP_CONFIG_INITIALIZER ((mcpg_group_config_t){.struct_size = sizeof(mcpg_group_config_t)})

/* A founder returns when the group is Ready, a joiner when it is registered and isolated ({self}).
 * WORLD_MISMATCH, NEEDS_EXTENSION, AMBIGUOUS_GROUP, TIMED_OUT (names the ranks that are missing), UNAVAILABLE. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_create(mcpg_context_t *context, const mcpg_group_config_t *config,
                                                       mcpg_group_t **out);
/* Graceful leave: flushes sends, ends outstanding works with ABORTED, tells the coordinator. Blocks at most 5 s. NULL
 * allowed. */
MCPG_API void mcpg_group_destroy(mcpg_group_t *group);
/* Ends every outstanding work with ABORTED; later operations are refused. From any thread. */
MCPG_API void mcpg_group_abort(mcpg_group_t *group, const char *why);
/* Hard limit of each later operation, 0: none. TIMED_OUT names operation, number and missing ranks. Numbers stay
 * aligned. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_set_timeout(mcpg_group_t *group, uint64_t timeout_us);

MCPG_API uint32_t mcpg_group_rank(const mcpg_group_t *group); /* own slot */
MCPG_API uint32_t
mcpg_group_size(const mcpg_group_t *group); /* highest active slot + 1, of the view the next operation runs in */
MCPG_API uint32_t mcpg_group_capacity(const mcpg_group_t *group); /* max_group_size */
MCPG_API bool mcpg_group_is_isolated(const mcpg_group_t *group);  /* a joiner before join_group completed */

typedef struct mcpg_view {
    uint64_t term;
    uint64_t epoch;      /* rises with every membership change */
    uint64_t start_seq;  /* number of the next operation */
    uint32_t slot_count; /* max_group_size: entries used in the arrays */
    uint8_t active[MCPG_MAX_RANKS];
    uint64_t incarnation[MCPG_MAX_RANKS]; /* counter part; changes when a slot gets a new process; 0: never attached */
} mcpg_view_t;
/* The committed configuration (what get_active_ranks shows). */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_view(const mcpg_group_t *group, mcpg_view_t *view_out);
/* Step boundary: to be called at the same places by every rank. Rounds the next operation number up to a multiple of
 * 2^32 and returns the view that operation runs in. Waits only while a membership change is between this rank's ACK and
 * its COMMIT. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_safe_point(mcpg_group_t *group, mcpg_view_t *view_out);

/* Per slot: HEALTHY, registered, and active or waiting in join_group. Local, no message. ok_out: slot_count bytes. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_peer_state(const mcpg_group_t *group, const uint32_t *slots,
                                                           uint32_t slot_count, uint8_t *ok_out);

typedef enum mcpg_rank_state { MCPG_RANK_OFFLINE = 0, MCPG_RANK_SYNCED = 1, MCPG_RANK_HEALTHY = 2 } mcpg_rank_state_t;
/* State of global ranks [0, cap): returns how many entries were written. */
MCPG_API uint32_t mcpg_context_rank_states(const mcpg_context_t *context, mcpg_rank_state_t *states, uint32_t cap);

/* ---- Membership
 * ------------------------------------------------------------------------------------------------------------ */
typedef enum mcpg_proposal_result {
    MCPG_PROPOSAL_REJECTED = 0,
    MCPG_PROPOSAL_APPLIED = 1,
    MCPG_PROPOSAL_APPLIED_WITH_DROPPED_RANKS = 2
} mcpg_proposal_result_t;
typedef struct mcpg_proposal_reply {
    mcpg_proposal_result_t result;
    mcpg_status_t reason; /* OK, or why it was rejected */
    uint64_t new_epoch;
    uint32_t dropped_count; /* in-group ranks that missed the ACK deadline */
    uint32_t dropped[MCPG_MAX_RANKS];
    char text[256];
} mcpg_proposal_reply_t;
#define MCPG_ANY_EPOCH UINT64_MAX
/* One rank's call suffices; identical calls of several ranks are merged. Returns OK whenever an answer arrived, also a
 * rejection. expected_epoch: compare-and-set, or MCPG_ANY_EPOCH. wait_us: how long to wait for ranks to become HEALTHY
 * and awaiting. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_update_ranks(mcpg_group_t *group, const uint32_t *activate,
                                                             uint32_t activate_count, const uint32_t *deactivate,
                                                             uint32_t deactivate_count, uint64_t expected_epoch,
                                                             uint64_t wait_us, mcpg_proposal_reply_t *reply_out);
/* Joiner or rejoiner: drains own isolated operations, waits until a view with this rank starts. timeout_us 0: 300 s. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_join(mcpg_group_t *group, uint64_t timeout_us);

typedef struct mcpg_sync_reply {
    uint64_t term, epoch;
    uint64_t first_failed_seq; /* the first operation number that any survivor saw fail */
    uint64_t resume_seq;       /* numbering goes on here */
    uint32_t slot_count;
    uint8_t failed[MCPG_MAX_RANKS]; /* union over the survivors, per slot */
} mcpg_sync_reply_t;
/* The same answer at every survivor. NO_PENDING when nothing failed here and no peer is waiting. TIMED_OUT names who
 * has not entered. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_sync_after_failure(mcpg_group_t *group, uint64_t timeout_us,
                                                                   mcpg_sync_reply_t *reply_out);

/* ---- Operations
 * ------------------------------------------------------------------------------------------------------------ */
typedef enum mcpg_dtype {
    MCPG_U8 = 0,
    MCPG_I8,
    MCPG_U16,
    MCPG_I16,
    MCPG_U32,
    MCPG_I32,
    MCPG_U64,
    MCPG_I64,
    MCPG_F32,
    MCPG_F64,
    MCPG_BOOL,
    MCPG_F16,
    MCPG_BF16,
    MCPG_BYTES, /* BYTES: movement only, element size 1 */
    MCPG_DTYPE__COUNT
} mcpg_dtype_t;
typedef enum mcpg_redop {
    MCPG_SUM = 0,
    MCPG_AVG,
    MCPG_PRODUCT,
    MCPG_MIN,
    MCPG_MAX,
    MCPG_BAND,
    MCPG_BOR,
    MCPG_BXOR,
    MCPG_REDOP__COUNT
} mcpg_redop_t;
MCPG_API size_t mcpg_dtype_size(mcpg_dtype_t dtype);
MCPG_API const char *mcpg_dtype_name(mcpg_dtype_t dtype);
MCPG_API const char *mcpg_redop_name(mcpg_redop_t op);

typedef enum mcpg_op_kind {
    MCPG_OP_ALLREDUCE = 0,
    MCPG_OP_REDUCE,
    MCPG_OP_BROADCAST,
    MCPG_OP_ALLGATHER,
    MCPG_OP_GATHER,
    MCPG_OP_SCATTER,
    MCPG_OP_REDUCE_SCATTER,
    MCPG_OP_ALLTOALL,
    MCPG_OP_BARRIER,
    MCPG_OP_SEND,
    MCPG_OP_RECV,
    MCPG_OP__COUNT
} mcpg_op_kind_t;
MCPG_API const char *mcpg_op_name(mcpg_op_kind_t kind);

/* One piece of memory: ptr may be NULL when count is 0. */
typedef struct mcpg_seg {
    void *ptr;
    size_t count; /* elements */
} mcpg_seg_t;

/* One operation. Which fields it reads:
 *   ALLREDUCE       in (one segment), out (one segment; may be the same memory), redop
 *   REDUCE          in, out (root only; ignored elsewhere), root, redop
 *   BROADCAST       out (the buffer: read at the root, written elsewhere), root
 *   ALLGATHER       in (one), outs (out_count segments by slot)
 *   GATHER          in (one), outs at the root
 *   SCATTER         ins at the root, out (one)
 *   REDUCE_SCATTER  ins (in_count segments by slot), out (one), redop
 *   ALLTOALL        ins, outs by slot
 *   BARRIER         nothing
 *   SEND / RECV     in / out (one), peer (slot), tag
 * Segment lists have either size() of the current or of the coming view, or capacity entries; a missing slot counts as
 * empty. Memory is borrowed until the work is complete. Inputs are never written. */
typedef struct mcpg_op {
    size_t struct_size;
    mcpg_op_kind_t kind;
    mcpg_dtype_t dtype;
    mcpg_redop_t redop;
    uint32_t root;
    uint32_t peer;
    uint64_t tag;
    mcpg_seg_t in, out;
    const mcpg_seg_t *ins, *outs; /* copied */
    uint32_t in_count, out_count;
    uint64_t timeout_us; /* hard limit of this operation, 0: the group's */
} mcpg_op_t;
#define MCPG_OP_INITIALIZER ((mcpg_op_t){.struct_size = sizeof(mcpg_op_t)})

/* Starts an operation; never blocks on a peer. On an error nothing was sent and work_out is untouched (a collective has
 * consumed its number all the same, except for INVALID_ARGUMENT and FORKED). The caller owns the work. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_group_submit(mcpg_group_t *group, const mcpg_op_t *op,
                                                       mcpg_work_t **work_out);

/* OK: complete (failed ranks or not). IN_PROGRESS. Other: the operation ended with this error. */
MCPG_API mcpg_status_t mcpg_work_test(mcpg_work_t *work);
/* Drives the operation on the calling thread. timeout_us UINT64_MAX: no limit of this call. TIMED_OUT when this call's
 * limit passed (the work goes on). */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_work_wait(mcpg_work_t *work, uint64_t timeout_us);
/* Per slot 1 if that rank failed in this operation; the first min(cap, capacity) entries. Waits for nothing:
 * INVALID_STATE before completion. local_success_out (may be NULL): false if a rank failed or the work was ended by
 * SYNCING. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_work_failed_ranks(const mcpg_work_t *work, int32_t *hint, uint32_t cap,
                                                            bool *local_success_out);
MCPG_API const char *mcpg_work_error(const mcpg_work_t *work); /* the sentence that belongs to an error, "" otherwise */
MCPG_API mcpg_op_kind_t mcpg_work_kind(const mcpg_work_t *work);
MCPG_API uint64_t mcpg_work_seq(const mcpg_work_t *work); /* operation number; UINT64_MAX for send and receive */
/* Called once, on the context's callback thread, when the work is complete (at once on that thread if it already is).
 * At most one callback per work. The callback may call the library, but must not destroy groups or contexts. */
typedef void (*mcpg_work_func_t)(void *user, mcpg_work_t *work);
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_work_on_complete(mcpg_work_t *work, mcpg_work_func_t func, void *user);
/* Gives the handle up; the operation goes on if it is not complete (memory stays borrowed until then). NULL is allowed.
 */
MCPG_API void mcpg_work_release(mcpg_work_t *work);

/* ---- Events
 * ---------------------------------------------------------------------------------------------------------------- */
typedef enum mcpg_event_kind {
    MCPG_EVENT_VIEW = 0,
    MCPG_EVENT_RANK_STATE = 1,
    MCPG_EVENT_COORDINATOR_LOST = 2,
    MCPG_EVENT_COORDINATOR_BACK = 3
} mcpg_event_kind_t;
typedef struct mcpg_event {
    mcpg_event_kind_t kind;
    mcpg_group_t *group;     /* VIEW */
    uint64_t epoch;          /* VIEW */
    uint32_t global_rank;    /* RANK_STATE */
    mcpg_rank_state_t state; /* RANK_STATE */
} mcpg_event_t;
typedef void (*mcpg_event_func_t)(void *user, const mcpg_event_t *event);
/* On the callback thread. One callback per context; NULL removes it and returns only when no call is running. */
MCPG_API MCPG_MUST_USE mcpg_status_t mcpg_context_on_event(mcpg_context_t *context, mcpg_event_func_t func, void *user);

#ifdef __cplusplus
}
#endif
#endif
