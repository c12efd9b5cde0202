/* sim.h: the simulator: coordinators and N agents as real state machines, with models of their hosts, of the network,
 * of the data plane, of the Store and of the users, in virtual time and from one seed.
 *
 * Everything that a real system leaves open (order, delay, loss, death, clocks) is drawn from the seed; nothing else is
 * random, so that a seed is a test case. After each step the checkers look at it from above. It must never read a
 * clock, use a thread, or depend on an address. One world per process at a time.
 */
#ifndef MCPG_SIM_H
#define MCPG_SIM_H

#include <stdio.h>

#include "agent/agent.h"
#include "agent/link_manager.h"
#include "common/codec.h"
#include "common/frames.h"
#include "coordinator/coord.h"
#include "sim/sim_rand.h"

#define SIM_RANKS   64u
#define SIM_SITES   (SIM_RANKS + 4u) /* places in the network: one per rank, then the coordinators' own */
#define SIM_SPECS   4u               /* groups that the users of a job declare */
#define SIM_MINE    12u              /* groups that one process may have, fillers included */
#define SIM_OPS     8u               /* outstanding operations of one group */
#define SIM_NO      UINT32_MAX
#define SIM_NEVER   UINT64_MAX
#define SIM_SECOND  UINT64_C(1000000)
#define SIM_COORDS  32u
#define SIM_PENDING 192u
#define U(x)        ((unsigned long long)(x))

/* Fault kinds: name for --without and the summary. */
#define SIM_FAULTS(X)                                                                                                  \
    X(BREAK, "stream-break")                                                                                           \
    X(LATE, "late-stream")                                                                                             \
    X(UNIFORM, "partition-uniform")                                                                                    \
    X(ISOLATE, "partition-isolate")                                                                                    \
    X(ASYM, "partition-asymmetric")                                                                                    \
    X(CLOG, "clog")                                                                                                    \
    X(LINK_RESET, "link-reset")                                                                                        \
    X(LINK_FLAP, "link-flap")                                                                                          \
    X(LINK_CUT, "link-cut")                                                                                            \
    X(CRASH, "crash")                                                                                                  \
    X(PAUSE, "pause")                                                                                                  \
    X(CLOCK, "clock-jump")                                                                                             \
    X(SLOW, "slow-node")                                                                                               \
    X(COORD_PAUSE, "coordinator-pause")                                                                                \
    X(COORD_SLOW, "coordinator-slow")                                                                                  \
    X(BUGGIFY, "host-buggify")                                                                                         \
    X(PUSH_LOSS, "push-loss")                                                                                          \
    X(FILL, "full-tables")                                                                                             \
    X(STORE, "store-outage")                                                                                           \
    X(RESTART, "coordinator-restart")                                                                                  \
    X(SECOND, "second-coordinator")
#define X(NAME, text) SIM_F_##NAME,
typedef enum { SIM_FAULTS(X) SIM_F__COUNT } sim_fault_kind_t;
#undef X
const char *sim_fault_name(sim_fault_kind_t kind);

/* ---- what a run is asked for, and what came of it ---- */
typedef struct {
    uint64_t seed;
    uint32_t ranks; /* 0: drawn */
    uint32_t minutes;
    uint32_t without; /* bits by fault kind */
    bool trace;
    bool log_steps; /* --log: one line per step into `out` */
    FILE *out;
    const char *log_dir; /* event logs of all machines, or NULL */
} sim_options_t;

typedef struct {
    bool failed;
    char id[16];
    char text[400];
    uint64_t seed, hash, virtual_us, events, failed_at_us;
    uint32_t ranks, faults[SIM_F__COUNT], fault_total, rounds, views, calls, coords, nodes;
    uint64_t ops;
} sim_result_t;

/* ---- time ---- */
typedef struct {
    uint64_t base_us, local_us; /* at base_us the host's clock said local_us */
    uint64_t rate_ppm;          /* 1,000,000: right */
} sim_clock_t;

typedef enum {
    SIM_EV_NODE_TIMER,
    SIM_EV_COORD_TIMER,
    SIM_EV_UP,          /* a = stream: its next item for the coordinator */
    SIM_EV_DOWN,        /* a = stream: its next item for the agent */
    SIM_EV_LOCAL,       /* a = node: the next thing its executor finds in its queue */
    SIM_EV_LINK,        /* a = node, b = rank, c = generation */
    SIM_EV_TICK,        /* a = node: its user and its operations */
    SIM_EV_FAULT,       /* the next fault is drawn */
    SIM_EV_HEAL,        /* a = index of a fault in force that ends */
    SIM_EV_SPAWN,       /* a = rank */
    SIM_EV_EXIT,        /* a = node: the launcher saw it end */
    SIM_EV_STORE,       /* a = operation */
    SIM_EV_COORD_START, /* a = number of coordinators until now: nothing when another has started meanwhile */
    SIM_EV_SWEEP,
    SIM_EV__COUNT
} sim_ev_kind_t;
typedef struct {
    uint64_t at, seq;
    uint16_t kind;
    uint32_t a, b;
    uint64_t c;
} sim_event_t;

/* ---- network ---- */
typedef struct {
    uint32_t refs, len;
    uint8_t bytes[];
} sim_buf_t;
typedef enum { SIM_ITEM_MSG, SIM_ITEM_CONNECTED, SIM_ITEM_GONE, SIM_ITEM_GONE_HERE } sim_item_kind_t;
typedef struct sim_item {
    struct sim_item *next;
    uint64_t at;
    sim_buf_t *buf;
    uint8_t kind; /* GONE_HERE: the end's own doing, no matter of the network */
} sim_item_t;
typedef struct {
    sim_item_t *head, *tail;
    uint64_t last_at;
    bool scheduled, stalled;
} sim_fifo_t;
typedef struct {
    uint32_t node, coord;
    sim_fifo_t up, down;
    bool closing; /* the coordinator closes it: what still comes is not heard */
    bool up_over; /* CLOSED was delivered, or nobody is there to hear it */
} sim_stream_t;

/* ---- views and groups from above ---- */
typedef struct {
    mcpg_view_id_t id;
    uint64_t switch_seq, digest, at_us;
    uint64_t active, fenced; /* slots */
    uint32_t coord, count;
    bool sync, installed;
    uint64_t sync_failed, sync_first;
    uint64_t done_low;           /* lowest number that somebody completed in it without an error */
    uint64_t done_of[SIM_RANKS]; /* by index: one above the highest that this member completed; 0: none */
    uint8_t place[SIM_RANKS];    /* slot -> index + 1 */
    mcpg_member_t members[SIM_RANKS];
    uint32_t nodes[SIM_RANKS]; /* by index: the process, or SIM_NO */
} sim_view_t;

typedef struct {
    uint32_t gid;
    bool manual, no_auto_sync;
    uint32_t spec; /* of the users' declarations, or SIM_NO: a filler */
    uint32_t view_count, view_cap;
    sim_view_t **views;                 /* by id */
    uint64_t asked_in, asked_out;       /* slots that a PROPOSE ever named */
    uint64_t left;                      /* slots that ever left or were replaced */
    uint8_t slot_of[SIM_RANKS];         /* rank -> slot + 1 */
    mcpg_view_id_t base[SIM_COORDS];    /* by coordinator: the newest view that it committed or was told of */
    mcpg_view_id_t told[SIM_COORDS][4]; /* by coordinator: some of those that it was told of */
    uint32_t told_count[SIM_COORDS];
    struct {
        mcpg_view_id_t view;
        uint64_t acked; /* slots whose ACK was delivered */
        uint64_t seq[SIM_RANKS];
        mcpg_incarnation_t inc[SIM_RANKS];
    } acks[4];
    uint32_t ack_next;
} sim_group_t;

/* ---- one process ---- */
typedef struct {
    sim_view_t *view;
    uint64_t leave[SIM_RANKS]; /* by index in the view */
} sim_local_view_t;
typedef enum { SIM_OP_WAIT, SIM_OP_RUN, SIM_OP_JUDGE } sim_op_state_t;
typedef struct {
    uint64_t seq, since_us, report_id;
    sim_op_state_t state;
    sim_view_t *view;
    uint64_t arrived, failed; /* by index in the view */
    uint64_t failed_slots;
} sim_op_t;
typedef struct {
    sim_view_t *view;
    uint64_t low, high;
    mcpg_incarnation_t as;
} sim_run_t;

typedef enum {
    SIM_APP_NONE,
    SIM_APP_REGISTERING,
    SIM_APP_MEMBER,  /* registered; active or not */
    SIM_APP_LEAVING, /* LEAVE is called */
    SIM_APP_AWAY     /* left: not back before the next generation or process */
} sim_app_stage_t;

typedef struct {
    bool used;
    /* the user's side */
    uint32_t spec, generation, place; /* place in the declared order */
    sim_app_stage_t stage, then;
    bool filler, extends;
    uint32_t timed_out;
    uint64_t leave_call, filler_until_us;
    uint8_t key[24];
    uint32_t key_len;
    uint64_t register_call, join_call, sync_call, propose_call, wait_until_us;
    uint64_t first_failed, failed_slots; /* since the last sync */
    /* the data plane's side */
    bool open, isolated, manual, no_auto_sync, held, fenced;
    bool steps; /* safe_point was called */
    uint32_t gid, slot;
    sim_group_t *group;
    uint64_t next, hold_seq, held_at_us;
    uint32_t view_count; /* oldest first */
    sim_local_view_t *views[16];
    uint32_t op_count;
    sim_op_t ops[SIM_OPS];
    uint32_t run_count, run_cap;
    sim_run_t *runs;
    uint64_t completed, ended;
} sim_mine_t;

typedef enum { SIM_LINK_NONE, SIM_LINK_TRYING, SIM_LINK_UP } sim_link_state_t;
typedef struct {
    uint8_t state;
    bool probing;              /* the pending LINK event answers a check */
    uint32_t generation, peer; /* UP: the other process */
    mcpg_incarnation_t inc;
} sim_link_t;

typedef enum { SIM_LOCAL_EVENT, SIM_LOCAL_UP, SIM_LOCAL_LOST, SIM_LOCAL_CHECKED, SIM_LOCAL_DEATH } sim_local_kind_t;
typedef struct sim_local {
    struct sim_local *next;
    uint64_t at;
    uint8_t kind;
    bool ok;
    uint8_t proof;
    uint32_t rank;
    mcpg_incarnation_t inc;
    uint64_t check_id;
    mcpg_agent_event_t event;
    uint32_t count;
    mcpg_member_t *members; /* owned */
    sim_buf_t *told;
} sim_local_t;

typedef struct {
    uint32_t index, rank;
    uint64_t session;
    int64_t pid;
    uint64_t host_id;
    bool alive, stopped, failed_attach, exit_seen, replaces;
    uint64_t paused_until_us, busy_until_us, slow_us;
    sim_clock_t clock;
    mcpg_agent_t *agent;
    void *mem;
    mcpg_agent_config_t config;
    uint64_t armed_us, heap_timer_us; /* armed: the host's clock; heap: true time of the earliest pending event */
    mcpg_link_manager_t *links;
    void *link_user;
    mcpg_frames_rx_t *frames;
    sim_link_t link[SIM_RANKS];
    uint32_t stream;  /* index, SIM_NO: none */
    uint32_t address; /* the coordinator that it read of last */
    sim_local_t *local_head, *local_tail;
    bool local_scheduled;
    uint64_t local_last_us;
    mcpg_agent_event_t pending[SIM_PENDING]; /* what the step itself gave rise to: HELD, link events */
    uint32_t pending_head, pending_count;
    sim_mine_t mine[SIM_MINE];
    uint64_t next_report, steps;
    uint64_t retry_at_us; /* the user's */
    void *log;
} sim_node_t;

/* ---- one coordinator ---- */
typedef struct {
    uint32_t index, site;
    bool alive, stopped, shutting, deposed;
    uint64_t term, id;
    uint64_t paused_until_us, busy_until_us, slow_us;
    sim_clock_t clock;
    mcpg_coord_t *machine;
    void *mem;
    mcpg_coord_config_t config;
    mcpg_frames_tx_t *frames;
    uint64_t armed_us, heap_timer_us, steps;
    uint8_t published[SIM_RANKS]; /* rank states as it said them last */
    void *log;
} sim_coord_t;

typedef enum {
    SIM_CALL_REGISTER,
    SIM_CALL_JOIN,
    SIM_CALL_PROPOSE,
    SIM_CALL_SYNC,
    SIM_CALL_LEAVE,
    SIM_CALL_DETACH
} sim_call_kind_t;
typedef struct {
    uint32_t node, mine;
    uint8_t kind;
    bool done;
    mcpg_status_t status;
    uint64_t asked_us, bound_us;
    mcpg_view_id_t since;
    uint64_t activate, deactivate;
    uint32_t gid;
} sim_call_t;

typedef struct {
    uint32_t order_count, base_count, capacity; /* base: founders */
    uint32_t order[SIM_RANKS];
    bool manual, no_auto_sync;
    uint8_t key[16];
    uint32_t key_len, generation;
    uint32_t grown; /* longest order that is known to be registered */
} sim_spec_t;

typedef struct {
    sim_fault_kind_t kind;
    uint64_t until_us;
    uint32_t a, b;
    uint64_t set_a, set_b;
    uint64_t set_c;
    bool used;
} sim_force_t;

/* What the seed drew for the whole run. */
typedef struct {
    uint32_t ranks, max_ranks, hosts, specs;
    uint64_t latency_us, jitter_us;
    uint32_t spike_permille, lose_permille, exit_permille, relay_permille, buggify_permille;
    uint64_t fault_every_us, tick_us, step_len;
    uint32_t weight[SIM_F__COUNT];
    bool small_caps, co_hosted, has_store;
    uint32_t check_every;
    mcpg_timers_t timers;
    uint32_t propose_permille, sync_permille, leave_permille, depth;
} sim_plan_t;

typedef struct sim sim_t;
struct sim {
    sim_options_t options;
    sim_result_t *result;
    sim_plan_t plan;
    sim_rng_t net, fault, work, host;
    uint64_t now, seq, hash, events;
    bool failed, healing;
    uint64_t phase_end_us, heal_began_us, last_disturbed_us;
    uint32_t heap_count, heap_cap;
    sim_event_t *heap;
    uint32_t stream_count, stream_cap;
    sim_stream_t **streams;
    uint32_t node_count, node_cap;
    sim_node_t **nodes;
    uint32_t at_rank[SIM_RANKS]; /* the living process, or SIM_NO */
    bool gone[SIM_RANKS];        /* no process will be started there any more */
    uint32_t coord_count;
    sim_coord_t *coords[SIM_COORDS];
    uint32_t address; /* the coordinator that the store's record names */
    bool finishing;
    uint8_t cut[SIM_SITES][SIM_SITES]; /* from, to: how many faults forbid it */
    uint64_t clog_us[SIM_SITES];
    uint32_t group_count, group_cap;
    sim_group_t **groups;
    uint32_t inc_count, inc_cap;
    struct {
        mcpg_incarnation_t inc;
        uint32_t node;
    } * incs;
    uint32_t call_count, call_cap;
    sim_call_t *calls;
    uint32_t open_calls, call_oldest;
    sim_spec_t specs[SIM_SPECS];
    sim_force_t force[64];
    mcpg_agent_effects_t agent_fx;
    mcpg_coord_effects_t coord_fx;
    uint32_t agent_fx_items, coord_fx_items;
    uint8_t *wire, *arena;
    size_t wire_cap, arena_cap;
    void *store;
};

/* sim_run.c */
void sim_run(const sim_options_t *options, sim_result_t *result);

/* sim_world.c: time, the heap, failures. */
void sim_fail(sim_t *w, const char *id, const char *format, ...) __attribute__((format(printf, 3, 4)));
void sim_trace(const sim_t *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_at(sim_t *w, uint64_t at, sim_ev_kind_t kind, uint32_t a, uint32_t b, uint64_t c);
bool sim_pop(sim_t *w, sim_event_t *out);
uint64_t sim_local_time(const sim_clock_t *clock, uint64_t now);
uint64_t sim_true_time(const sim_clock_t *clock, uint64_t local_us);
void sim_clock_jump(sim_clock_t *clock, uint64_t now, uint64_t by_us);
void sim_clock_init(sim_clock_t *clock, uint64_t now, uint64_t local_us, uint64_t rate_ppm);
void sim_mix(sim_t *w, uint64_t value);
void *sim_zalloc(size_t size);
void sim_grow(void **array, uint32_t *cap, uint32_t count, size_t item);

/* sim_net.c: streams between agents and coordinators. */
uint32_t sim_stream_open(sim_t *w, sim_node_t *node);
void sim_stream_up(sim_t *w, uint32_t stream, sim_buf_t *buf);
void sim_stream_down(sim_t *w, uint32_t stream, sim_buf_t *buf);
void sim_stream_node_closes(sim_t *w, uint32_t stream);
void sim_stream_coord_closes(sim_t *w, uint32_t stream);
void sim_stream_break(sim_t *w, uint32_t stream, uint64_t late_us);
void sim_stream_node_died(sim_t *w, uint32_t stream);
void sim_stream_coord_died(sim_t *w, uint32_t coord);
void sim_stream_event(sim_t *w, uint32_t stream, bool up);
void sim_path_healed(sim_t *w);
uint64_t sim_delay(sim_t *w, uint32_t from, uint32_t to);
sim_buf_t *sim_buf_new(const uint8_t *bytes, size_t len);
void sim_buf_drop(sim_buf_t *buf);
void sim_streams_free(sim_t *w);
static inline bool sim_reaches(const sim_t *w, uint32_t from, uint32_t to) {
    return w->cut[from][to] == 0;
}

/* sim_node.c: agents and their hosts. */
uint32_t sim_spawn(sim_t *w, uint32_t rank);
void sim_crash(sim_t *w, sim_node_t *node);
void sim_agent_step(sim_t *w, sim_node_t *node, mcpg_agent_event_t *event, const uint8_t *raw, size_t raw_len);
void sim_agent_pend(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event);
void sim_node_timer(sim_t *w, sim_node_t *node);
void sim_node_arm(sim_t *w, sim_node_t *node);
void sim_node_local(sim_t *w, sim_node_t *node);
sim_local_t *sim_local_new(sim_t *w, sim_node_t *node, sim_local_kind_t kind, uint64_t delay_us);
void sim_local_post(sim_t *w, sim_node_t *node, sim_local_t *item);
void sim_node_free(sim_node_t *node);
mcpg_incarnation_t sim_inc(const sim_node_t *node);
bool sim_attached(const sim_node_t *node);

/* sim_coord.c: coordinators and their hosts. */
sim_coord_t *sim_coord_start(sim_t *w);
void sim_coord_crash(sim_t *w, sim_coord_t *c);
void sim_coord_msg(sim_t *w, sim_coord_t *c, uint32_t stream, const uint8_t *bytes, size_t len);
void sim_coord_closed(sim_t *w, sim_coord_t *c, uint32_t stream);
void sim_coord_exit(sim_t *w, sim_coord_t *c, const sim_node_t *node);
void sim_coord_shutdown(sim_t *w, sim_coord_t *c);
void sim_coord_timer(sim_t *w, sim_coord_t *c);
void sim_coord_record(sim_t *w, sim_coord_t *c, mcpg_coord_event_t *event);
void sim_coord_clock(sim_t *w, sim_coord_t *c); /* its clock has jumped */
void sim_coord_free(sim_coord_t *c);
sim_coord_t *sim_coord_now(const sim_t *w); /* the one that the record names, alive; or NULL */

/* sim_link.c: links between processes, as the data plane has them. */
mcpg_status_t sim_links_create(sim_t *w, sim_node_t *node);
void sim_link_event(sim_t *w, sim_node_t *node, uint32_t rank, uint64_t generation);
void sim_link_lose(sim_t *w, sim_node_t *node, uint32_t rank, uint64_t delay_us);
void sim_link_died(sim_t *w, sim_node_t *node);
void sim_link_relay(sim_t *w, sim_node_t *node, uint32_t rank, mcpg_incarnation_t inc);
bool sim_link_ok(const sim_t *w, const sim_node_t *a, const sim_node_t *b); /* up at both ends and carries bytes */
void sim_link_ask_view(sim_t *w, sim_node_t *node, mcpg_gid_t gid, mcpg_view_id_t view);
void sim_link_tell_view(sim_t *w, sim_node_t *node, const mcpg_agent_tell_view_t *tell);

/* sim_dp.c, sim_ops.c: groups, numbers, views, operations. */
sim_mine_t *sim_mine(sim_node_t *node, uint32_t gid);
void sim_dp_group(sim_t *w, sim_node_t *node, const mcpg_agent_dp_group_t *group);
void sim_dp_gone(sim_t *w, sim_node_t *node, uint32_t gid);
void sim_dp_hold(sim_t *w, sim_node_t *node, const mcpg_agent_dp_view_t *hold);
void sim_dp_release(sim_t *w, sim_node_t *node, uint32_t gid);
void sim_dp_install(sim_t *w, sim_node_t *node, const mcpg_down_commit_t *commit, uint64_t digest);
void sim_dp_fence(sim_t *w, sim_node_t *node, uint32_t gid);
void sim_dp_resolve(sim_t *w, sim_node_t *node, const mcpg_agent_dp_resolve_t *resolve);
void sim_mine_clear(sim_mine_t *m);
sim_local_view_t *sim_view_of(const sim_mine_t *m, uint64_t seq);
bool sim_view_runs(const sim_node_t *node, const sim_mine_t *m, const sim_local_view_t *v, uint64_t seq);
bool sim_dp_active(const sim_node_t *node, const sim_mine_t *m);
void sim_ops_start(sim_t *w, sim_node_t *node, sim_mine_t *m);
void sim_ops_issue(sim_t *w, sim_node_t *node, sim_mine_t *m);
void sim_ops_progress(sim_t *w, sim_node_t *node, sim_mine_t *m);
void sim_ops_end(sim_t *w, sim_node_t *node, sim_mine_t *m, uint32_t at, mcpg_status_t status, bool success);

/* sim_work.c: what the users do. */
void sim_plan_draw(sim_t *w);
void sim_work_tick(sim_t *w, sim_node_t *node);
void sim_work_done(sim_t *w, sim_node_t *node, const mcpg_agent_call_done_t *done);
void sim_work_destroy_group(sim_t *w, uint32_t spec);
void sim_work_renew(sim_t *w);
bool sim_work_settled(sim_t *w, const char **why);                /* sim_settle.c */
void sim_work_progress(const sim_t *w, uint64_t done[SIM_SPECS]); /* SIM_NEVER: nothing is expected */
void sim_work_dump(sim_t *w);
void sim_work_detach(sim_t *w, sim_node_t *node);

/* sim_fault.c: what goes wrong, and healing. */
void sim_fault_next(sim_t *w);
void sim_fault_end(sim_t *w, uint32_t index, uint64_t until_us);
uint64_t sim_fault_heal_all(sim_t *w);
void sim_fault_schedule(sim_t *w);

/* sim_check.c: what is looked at from above. */
sim_group_t *sim_group(sim_t *w, uint32_t gid);
void sim_check_register_inc(sim_t *w, mcpg_incarnation_t inc, uint32_t node);
uint32_t sim_node_of(const sim_t *w, mcpg_incarnation_t inc);
void sim_check_down(sim_t *w, sim_coord_t *c, const mcpg_down_msg_t *msg, uint64_t conn, const uint8_t *bytes,
                    size_t len);
void sim_check_up(sim_t *w, sim_coord_t *c, uint32_t node, const mcpg_up_msg_t *msg);
sim_view_t *sim_check_install(sim_t *w, sim_node_t *node, sim_mine_t *m, const mcpg_down_commit_t *commit,
                              uint64_t digest);
void sim_check_ran(sim_t *w, const sim_node_t *node, const sim_mine_t *m, const sim_view_t *view, uint64_t seq);
void sim_check_completed(sim_t *w, const sim_node_t *node, const sim_mine_t *m, sim_view_t *view, uint64_t seq);
uint64_t sim_call_new(sim_t *w, sim_node_t *node, uint32_t mine, sim_call_kind_t kind, uint64_t bound_us);
sim_call_t *sim_call(sim_t *w, uint64_t id);
void sim_check_answer(sim_t *w, sim_node_t *node, const mcpg_agent_call_done_t *done);
void sim_check_sweep(sim_t *w);
void sim_groups_free(sim_t *w);

/* sim_store.c: the key-value store with its records. */
void sim_store_create(sim_t *w);
void sim_store_free(sim_t *w);
void sim_store_begin(sim_t *w, sim_coord_t *c, bool claim, mcpg_gid_t gid, const mcpg_group_record_t *record);
void sim_store_event(sim_t *w, uint32_t at);
void sim_store_fail(sim_t *w, uint64_t until_us);
void sim_store_heal(sim_t *w);
bool sim_store_down(const sim_t *w);

/* sim_log.c: event logs in the flight recorder's format. */
void sim_log_coord_open(sim_t *w, sim_coord_t *c);
void sim_log_coord_event(sim_t *w, sim_coord_t *c, const mcpg_coord_event_t *event, const uint8_t *raw, size_t len);
void sim_log_coord_effects(sim_t *w, sim_coord_t *c, const mcpg_coord_event_t *event, uint32_t crc);
void sim_log_coord_close(sim_coord_t *c);
void sim_log_agent_open(sim_t *w, sim_node_t *node);
void sim_log_agent_event(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event, const uint8_t *raw, size_t len);
void sim_log_agent_effects(sim_t *w, sim_node_t *node, const mcpg_agent_event_t *event);
void sim_log_agent_close(sim_node_t *node);

#endif
