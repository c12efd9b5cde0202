/* link_priv.h: what engine.c, engine_*.c and link_*.c share: the engine, its links, the frames and the match tables.
 *
 * Everything here is guarded by the engine lock unless it says otherwise. done() of a transfer is called only by
 * mcpg__link_deliver, so that no link call ever re-enters its caller; a stream is closed only by the round, never by a
 * poll function.
 */
#ifndef MCPG_DATAPLANE_LINK_PRIV_H
#define MCPG_DATAPLANE_LINK_PRIV_H

#include <pthread.h>
#include <stdatomic.h>

#include "dataplane/engine.h"
#include "dataplane/link.h"
#include "dataplane/transport.h"

#define MCPG_TRANSPORTS_MAX 4u
#define MCPG_EAGER_CREDITS  64u    /* unexpected small messages a peer may leave here */
#define MCPG_CREDIT_RETURN  16u    /* owed credits that are worth a frame of their own */
#define MCPG_ANNOUNCE_MAX   16384u /* announced large messages per direction */
#define MCPG_CONTROL_MAX    65536u /* queued control frames; a peer that makes us queue more is broken */
#define MCPG_HASH_SIZE      4096u
#define MCPG_TOMBS_MAX      4096u
#define MCPG_STAGE_BYTES    8192u
#define MCPG_SLICE_BYTES    UINT64_C(262144) /* of one link in one round */
#define MCPG_ROUND_BYTES    UINT64_C(1048576)
#define MCPG_CONNECT_US     1000000u
#define MCPG_ACCEPT_US      3000000u
#define MCPG_CHECK_US       900000u
#define MCPG_RELAY_US       1000000u /* a rank that is said to be dead has so long to answer */
#define MCPG_HANGUP_US      20000u   /* after a hang-up on this host: time for the proof of death to arrive */
#define MCPG_CHECKS_MAX     8u
#define MCPG_LINK_MAGIC     0x4d46u /* "FM" */
#define MCPG_VIEW_BYTES_MAX MCPG_CHUNK_BYTES
#define MCPG_VIEWS_MAX      4u /* relayed views that wait on one link; more are dropped: they are asked for again */

/* ---- frames ---- */
typedef enum {
    MCPG_FT_EAGER = 1, /* key, sig, payload */
    MCPG_FT_RTS,       /* key, sig; aux: sender's handle */
    MCPG_FT_CTS,       /* aux: sender's handle; body: receiver's handle */
    MCPG_FT_DATA,      /* aux: receiver's handle; payload */
    MCPG_FT_GONE_RECV, /* the receiver ended its side; aux: sender's handle */
    MCPG_FT_GONE_SEND, /* the sender ended its side; aux: receiver's handle */
    MCPG_FT_NACK,      /* key, receiver's sig; aux: sender's handle, 0 for an eager message */
    MCPG_FT_LEFT,      /* key */
    MCPG_FT_PROBE,     /* aux: nonce */
    MCPG_FT_PROBE_ACK, /* aux: nonce */
    MCPG_FT_DEAD,      /* aux: rank; body: incarnation */
    MCPG_FT_BYE,
    MCPG_FT_CREDIT,
    MCPG_FT_ASK,      /* key, sig: what the sender runs and waits for */
    MCPG_FT_ASK_VIEW, /* aux: group; body: view that the sender is in doubt about */
    MCPG_FT_VIEW,     /* payload: the packed COMMIT or ABORT of a coordinator */
    MCPG_FT__COUNT
} mcpg_frame_type_t;

/* On the wire, little-endian. Each frame returns `credit` eager messages to the other side. */
typedef struct {
    uint16_t magic;
    uint8_t type, credit;
    uint32_t len; /* of body and payload */
    uint64_t aux;
} mcpg_frame_t;
#define MCPG_BODY_MAX 64u
typedef struct {
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig;
} mcpg_message_body_t;
_Static_assert(sizeof(mcpg_frame_t) == 16 && sizeof(mcpg_message_body_t) == MCPG_BODY_MAX, "wire layout");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian");

typedef struct mcpg_control {
    struct mcpg_control *next;
    mcpg_frame_t frame;
    uint8_t body[MCPG_BODY_MAX];
    uint32_t body_len;
    uint8_t *payload; /* VIEW: owned */
    uint32_t payload_len;
} mcpg_control_t;

/* ---- transfers ---- */
typedef struct mcpg_lx_list {
    mcpg_lx_t *head, *tail;
} mcpg_lx_list_t;
typedef enum {
    MCPG_LXS_IDLE = 0,
    MCPG_LXS_WAIT,      /* send: no link yet */
    MCPG_LXS_QUEUED,    /* send: in tx.queue */
    MCPG_LXS_ANNOUNCED, /* send: waits for CTS */
    MCPG_LXS_MOVING,    /* send: in tx.moving or the current frame */
    MCPG_LXS_EAGER_OUT, /* send: the current frame */
    MCPG_LXS_POSTED,    /* receive: in the hash */
    MCPG_LXS_EAGER_IN,  /* receive: the frame being read */
    MCPG_LXS_GRANTED,   /* receive: CTS sent */
    MCPG_LXS_ENDED      /* result is known, done() is due */
} mcpg_lx_state_t;

/* A message that nobody waits for yet. */
typedef struct mcpg_unexpected {
    struct mcpg_unexpected *next, *prev;
    struct mcpg_unexpected **bucket; /* NULL: not in the table */
    mcpg_rank_t source;
    mcpg_incarnation_t inc;
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig;
    uint64_t stream_id, sender_handle; /* announced only */
    bool announced;
    uint8_t size_class;
    uint8_t data[];
} mcpg_unexpected_t;
#define MCPG_SIZE_CLASSES 3u

/* One side of one operation is over: LEFT by a peer, left by this rank itself, or refused for a mismatch. */
typedef struct mcpg_tomb {
    struct mcpg_tomb *next; /* bucket */
    mcpg_rank_t rank;       /* whose side */
    mcpg_incarnation_t inc;
    mcpg_msg_key_t key; /* phase 0 */
    bool used, mismatch;
    mcpg_msg_sig_t sig;
} mcpg_tomb_t;

/* ---- links ---- */
typedef struct mcpg_link {
    mcpg_engine_t *e;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint64_t host_id;
    int64_t pid;
    uint8_t endpoint[MCPG_ENDPOINT_CAP];
    uint32_t endpoint_len;
    mcpg_link_st_t state;
    bool expected; /* opened and not closed by the agent */
    /* attempt */
    bool connect_running;
    uint32_t transport_index; /* next or running one */
    uint64_t attempt_until_us, retry_at_us, backoff_us;
    /* stream */
    mcpg_stream_t *stream;
    uint64_t stream_id;
    uint32_t up_index;
    bool failed, hung_up, bye;
    const char *failed_why;
    uint64_t hangup_until_us;
    int pidfd;
    mcpg_poll_t pid_poll;
    bool pid_dead, relay_dead, told_dead; /* seen here, said by another rank, said by the agent */
    uint64_t relay_nonce, relay_until_us; /* said by another rank, but its link is up: asked, 0: not */
    uint64_t last_heard_us;
    uint64_t probe_nonce;
    uint32_t check_count;
    struct {
        uint64_t id, until_us, nonce;
    } checks[MCPG_CHECKS_MAX];
    uint64_t bytes_out, bytes_in, reconnects;
    mcpg_lx_list_t granted; /* receives whose bytes are on their way */
    mcpg_lx_list_t waiting; /* sends, also those for newer incarnations */
    struct {
        mcpg_control_t *head, *tail;
        uint32_t control_count, view_count;
        mcpg_lx_list_t queue, announced, moving;
        uint32_t credits, announced_count;
        bool data_turn;
        bool active;
        uint8_t head_bytes[sizeof(mcpg_frame_t) + MCPG_BODY_MAX];
        uint32_t head_len, head_sent;
        const uint8_t *payload;
        uint64_t payload_len, payload_sent;
        mcpg_lx_t *lx;
        uint8_t *private_copy; /* of a cancelled transfer's last frame, or of a relayed view */
    } tx;
    struct {
        uint8_t *stage;
        uint32_t at, len;
        mcpg_frame_t frame;
        bool in_payload;
        uint64_t left;
        uint8_t *dst; /* NULL: drop */
        mcpg_lx_t *lx;
        mcpg_unexpected_t *entry;
        uint8_t *view; /* a relayed view on its way in; NULL: no memory, dropped */
        uint32_t credit_owed;
        uint32_t eager_held, announced_held; /* by this peer, of this stream */
    } rx;
} mcpg_link_t;

/* ---- the engine ---- */
typedef enum { MCPG_DRIVER_NONE, MCPG_DRIVER_CALLER, MCPG_DRIVER_PROGRESS } mcpg_driver_t;
typedef enum { MCPG_PROG_RUNNING, MCPG_PROG_PARKED_SHORT, MCPG_PROG_PARKED_LONG } mcpg_prog_t;
typedef enum { MCPG_OBS_UP, MCPG_OBS_LOST, MCPG_OBS_CHECKED, MCPG_OBS_DEATH, MCPG_OBS_OP_FAILED } mcpg_obs_kind_t;

typedef struct {
    mcpg_obs_kind_t kind;
    mcpg_rank_t rank;
    mcpg_incarnation_t inc;
    uint64_t check_id;
    bool ok;
    mcpg_proof_t proof;
    mcpg_gid_t gid;
    uint64_t report_id, seq;
    mcpg_member_t *failed; /* owned while kept */
    uint32_t failed_count;
} mcpg_obs_t;

struct mcpg_engine {
    pthread_mutex_t lock;
    pthread_cond_t waiter_cond, prog_cond, epoll_cond;
    atomic_uint lock_wanted; /* threads blocked in mcpg__engine_lock */
    atomic_bool kicked, sleeping;
    int epoll_fd, kick_fd;
    mcpg_poll_t kick_poll;
    pthread_t thread;
    bool thread_started, stopping;
    mcpg_driver_t driver;
    mcpg_prog_t prog;
    uint32_t waiters, waiters_asleep;
    uint64_t drive_gen;
    bool woken; /* sleeping waiters were told to look: they need the lock */
    bool in_epoll, armed, unlocked_due, tick_due, service_due;
    bool stale; /* while one thread was inside epoll_wait, something that its events may name was closed */
    uint32_t spin_us;
    uint64_t now_us, timer_us, ops_deadline_us;
    uint32_t rounds;
    mcpg_rank_t rank;
    uint64_t host_id;
    mcpg_incarnation_t own;
    mcpg_engine_hooks_t hooks;
    mcpg_log_t log;
    mcpg_dp_observer_t observer;
    bool has_observer;
    struct {
        mcpg_obs_t *items;
        uint32_t head, count, cap;
    } obs;
    /* transports */
    struct {
        const mcpg_transport_ops_t *ops;
        mcpg_transport_t *t;
        uint64_t tick_us;
    } transports[MCPG_TRANSPORTS_MAX];
    uint32_t transport_count;
    uint32_t event_streams; /* up links whose stream is not polled */
    /* links */
    mcpg_link_t *links[MCPG_MAX_RANKS];
    mcpg_link_t *all[MCPG_MAX_RANKS];
    uint32_t all_count;
    mcpg_link_t *up[MCPG_MAX_RANKS];
    uint32_t up_count, up_start;
    uint64_t stream_ids, nonces;
    uint32_t lx_count; /* posted and not ended: something is outstanding */
    mcpg_lx_list_t ended;
    /* match tables */
    mcpg_lx_list_t posted[MCPG_HASH_SIZE];
    mcpg_unexpected_t *unexpected[MCPG_HASH_SIZE];
    uint32_t unexpected_count;
    mcpg_unexpected_t *entry_pool[MCPG_SIZE_CLASSES];
    mcpg_control_t *control_pool;
    mcpg_tomb_t *tombs; /* MCPG_TOMBS_MAX, reused in turn */
    mcpg_tomb_t *tomb_buckets[MCPG_HASH_SIZE];
    uint32_t tomb_next;
    struct {
        mcpg_lx_t *lx;
        uint32_t generation, next_free;
    } * handles;
    uint32_t handle_cap, handle_free;
};

/* engine_obs.c */
void mcpg__obs_tell(mcpg_engine_t *e, const mcpg_obs_t *obs); /* copies obs->failed when it has to be kept */
void mcpg__obs_retry(mcpg_engine_t *e);
void mcpg__obs_clear(mcpg_engine_t *e);

/* engine_round.c. Returns true if something moved. */
bool mcpg__engine_round(mcpg_engine_t *e);
struct epoll_event;
void mcpg__engine_dispatch(mcpg_engine_t *e, const struct epoll_event *events, int count);
#define MCPG_EVENTS_MAX 64
bool mcpg__engine_arm(mcpg_engine_t *e); /* true: something appeared, do not sleep */
void mcpg__engine_disarm(mcpg_engine_t *e);
uint64_t mcpg__engine_next_wake(mcpg_engine_t *e);
void mcpg__engine_timer(mcpg_engine_t *e, uint64_t at_us); /* be looked at by then */

/* link_match.c */
void mcpg__lx_push(mcpg_lx_list_t *list, mcpg_lx_t *x);
void mcpg__lx_unlink(mcpg_lx_t *x);
mcpg_lx_t *mcpg__lx_pop(mcpg_lx_list_t *list);
void mcpg__lx_end(mcpg_engine_t *e, mcpg_lx_t *x,
                  mcpg_lx_result_t result); /* frees its handle; done() follows in deliver */
void mcpg__lx_end_all(mcpg_engine_t *e, mcpg_lx_list_t *list, mcpg_lx_result_t result);
bool mcpg__link_deliver(mcpg_engine_t *e);
uint64_t mcpg__handle_take(mcpg_engine_t *e, mcpg_lx_t *x); /* 0: out of memory */
mcpg_lx_t *mcpg__handle_find(const mcpg_engine_t *e, uint64_t handle, mcpg_rank_t peer, bool is_send);
void mcpg__handle_drop(mcpg_engine_t *e, uint64_t handle);
uint32_t mcpg__match_hash(const mcpg_msg_key_t *key, mcpg_rank_t source);
mcpg_lx_t *mcpg__match_posted(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source, mcpg_incarnation_t inc);
void mcpg__match_post(mcpg_engine_t *e, mcpg_lx_t *x);
/* Ends every posted receive from this rank whose incarnation is inc, or older than inc. */
void mcpg__match_end_from(mcpg_engine_t *e, mcpg_rank_t source, mcpg_incarnation_t inc, bool older,
                          mcpg_lx_result_t result);
bool mcpg__sig_equal(const mcpg_msg_sig_t *a, const mcpg_msg_sig_t *b);

/* link_unexpected.c */
mcpg_unexpected_t *mcpg__unexpected_take(mcpg_engine_t *e, size_t bytes); /* NULL: out of memory */
void mcpg__unexpected_drop(mcpg_engine_t *e, mcpg_unexpected_t *u); /* removes, returns its credit, back to the pool */
void mcpg__unexpected_add(mcpg_engine_t *e, mcpg_unexpected_t *u);
mcpg_unexpected_t *mcpg__unexpected_find(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source,
                                         mcpg_incarnation_t inc);
void mcpg__unexpected_drop_stream(mcpg_engine_t *e, mcpg_rank_t source,
                                  uint64_t stream_id); /* announced ones of that stream */
void mcpg__unexpected_drop_older(mcpg_engine_t *e, mcpg_rank_t source, mcpg_incarnation_t inc);
void mcpg__unexpected_drop_group(mcpg_engine_t *e, uint32_t gid, const mcpg_view_id_t *view,
                                 uint64_t below); /* view NULL: all */
/* What this peer announced for an operation that it has ended. */
void mcpg__unexpected_drop_announced(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t from);
/* only_from NULL: from every rank. Announcing peers are told GONE. */
void mcpg__unexpected_drop_op(mcpg_engine_t *e, const mcpg_msg_key_t *key, const mcpg_rank_t *only_from);
void mcpg__tomb_add(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *mismatch);
const mcpg_tomb_t *mcpg__tomb_find(const mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc,
                                   const mcpg_msg_key_t *key, bool is_send);
mcpg_rank_t mcpg__tomb_own_side(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t peer);
void mcpg__tomb_forget(mcpg_engine_t *e, uint32_t gid, const mcpg_view_id_t *view, uint64_t below);
bool mcpg__key_same_op(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b);
void mcpg__match_free(mcpg_engine_t *e);

/* link_tx.c */
void mcpg__tx_control(mcpg_link_t *l, mcpg_frame_type_t type, uint64_t aux, const void *body, uint32_t body_len);
void mcpg__tx_view(mcpg_link_t *l, const uint8_t *bytes, uint32_t len); /* copies; dropped when too many wait */
void mcpg__tx_queue(mcpg_link_t *l, mcpg_lx_t *x);
void mcpg__tx_start_moving(mcpg_link_t *l, mcpg_lx_t *x);
void mcpg__tx_detach(mcpg_link_t *l, mcpg_lx_t *x); /* a cancelled transfer is the current frame: keep its bytes */
bool mcpg__tx_pending(const mcpg_link_t *l);
bool mcpg__tx_pump(mcpg_link_t *l, uint64_t *budget); /* true: bytes moved */
void mcpg__tx_soon(mcpg_link_t *l);                   /* pump now, kick if something is left */
void mcpg__tx_reset(mcpg_link_t *l, mcpg_lx_result_t result);

/* link_frames.c */
void mcpg__link_stray(mcpg_link_t *l, const mcpg_message_body_t *body, mcpg_stray_t how);

/* link_rx.c */
bool mcpg__rx_pump(mcpg_link_t *l, uint64_t *budget);
void mcpg__rx_reset(mcpg_link_t *l, mcpg_lx_result_t result);
/* A receive and an announced message belong together: grants it or ends both with MISMATCH. */
void mcpg__rx_grant(mcpg_link_t *l, mcpg_lx_t *x, uint64_t sender_handle, const mcpg_msg_sig_t *sender_sig);
/* link_frames.c: everything that is not payload. False: malformed, the link breaks. */
bool mcpg__rx_frame(mcpg_link_t *l, const uint8_t *body);
void mcpg__rx_message_complete(mcpg_link_t *l);
void mcpg__end_op_with_peer(mcpg_link_t *l, const mcpg_msg_key_t *key, const mcpg_msg_sig_t *mismatch);

/* link_conn.c */
mcpg_link_t *mcpg__link_get(mcpg_engine_t *e, mcpg_rank_t rank); /* creates; NULL: out of memory or no such rank */
void mcpg__link_fail(mcpg_link_t *l, const char *why);           /* noted; the round ends it */
void mcpg__link_down(mcpg_link_t *l, mcpg_link_st_t state, bool tell);
void mcpg__link_die(mcpg_link_t *l); /* its transfers end with PEER_DEAD */
void mcpg__link_up(mcpg_link_t *l, mcpg_stream_t *stream, int64_t pid);
void mcpg__link_attempt(mcpg_link_t *l);
bool mcpg__link_service(mcpg_link_t *l); /* failures, deaths, timers of one link; true: something changed */
void mcpg__link_relayed_death(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc);
void mcpg__link_send_checks(mcpg_link_t *l);
void mcpg__link_events(mcpg_engine_t *e, mcpg_transport_events_t *out);
void mcpg__link_free(mcpg_link_t *l);
/* link_watch.c */
void mcpg__watch_start(mcpg_link_t *l, int64_t pid);
void mcpg__watch_stop(mcpg_link_t *l);
bool mcpg__watch_says_alive(const mcpg_link_t *l); /* a watched process that has not ended */
/* engine_links.c */
bool mcpg__endpoint_part(const uint8_t *endpoint, size_t len, const char *name, const uint8_t **part, size_t *part_len);

#endif
