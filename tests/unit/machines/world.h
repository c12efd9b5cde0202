/* world.h: one coordinator machine and N agent machines in one process and one virtual time, wired through the codec,
 * with a model of streams, links, processes and the data plane. The seed decides every order that a real system leaves
 * open.
 *
 * After every step both machines' invariants are checked, and what only a view from above can see: I1, I2, I5, and that
 * an operation number runs in one view. It must never know a scenario.
 */
#ifndef MCPG_TEST_WORLD_H
#define MCPG_TEST_WORLD_H

#include <stdio.h>

#include "agent/agent.h"
#include "common/codec.h"
#include "coordinator/coord.h"

#define WORLD_RANKS 8u
#define WORLD_NODES 16u /* processes over the whole run */
#define WORLD_GIDS  16u
#define WORLD_VIEWS 64u
#define WORLD_CALLS 256u

typedef struct item item_t;
typedef struct {
    item_t *head, *tail;
} queue_t;

/* A view as it was installed somewhere, with its canonical bytes' digest (I2). */
typedef struct {
    mcpg_view_id_t id;
    uint64_t switch_seq, digest;
    uint32_t count;
    mcpg_member_t active[WORLD_RANKS];
    mcpg_rankset_t fenced; /* active, but named in leaves */
    bool sync;
} model_view_t;

typedef struct {
    bool open, isolated, manual, held, fenced;
    mcpg_gid_t gid;
    mcpg_slot_t slot;
    uint64_t next, held_from;
    uint32_t view_count;
    uint32_t views[WORLD_VIEWS]; /* indices into the world's views of the group, as installed here */
    uint64_t ran_count;
    struct {
        uint64_t seq;
        uint32_t view;
        mcpg_incarnation_t as;
    } ran[512]; /* operations, the view each ran in, and the incarnation that its bytes carry */
    uint32_t waiting_count;
    uint64_t waiting[64]; /* numbers taken while held */
} model_group_t;

typedef struct {
    mcpg_gid_t gid;
    uint64_t report_id;
    bool resolved;
    mcpg_status_t status;
} model_report_t;

/* One process. */
typedef struct {
    bool alive, stopped;
    uint32_t rank;
    mcpg_agent_t *agent;
    void *mem;
    mcpg_agent_effects_t fx;
    uint64_t timer_us;
    uint64_t conn; /* 0: no stream */
    bool closing;
    mcpg_incarnation_t open[WORLD_RANKS]; /* LINK_OPEN in force */
    bool up[WORLD_RANKS];                 /* link_up was said of it */
    queue_t down, local;                  /* from the coordinator; from the data plane */
    queue_t out;                          /* to the coordinator */
    bool attached_told;
    mcpg_status_t attached;
    uint32_t lost_count, back_count;
    model_group_t groups[WORLD_GIDS];
    uint32_t report_count;
    model_report_t reports[64];
} node_t;

typedef struct {
    bool done;
    mcpg_agent_call_done_t answer; /* text: see words */
    char words[MCPG_TEXT_CAP];
} call_t;

typedef struct {
    uint64_t random, seed, steps, digest;
    mcpg_time_t now;
    bool trace;
    mcpg_coord_t *coord;
    void *coord_mem;
    mcpg_coord_effects_t coord_fx;
    uint64_t coord_timer_us, last_conn;
    bool coord_stopped, coord_deaf; /* deaf: new streams are refused */
    uint32_t node_count;
    node_t nodes[WORLD_NODES];
    bool cut[WORLD_RANKS][WORLD_RANKS]; /* the link between two ranks carries nothing */
    bool prove_deaths;                  /* peers see a process end (same host) */
    uint32_t lose_percent;              /* of the pushes that a digest heals: RANK_STATES, MEMBERS, COMMIT */
    uint64_t told[MCPG_DOWN__COUNT];    /* messages delivered to agents */
    uint32_t view_count[WORLD_GIDS];
    model_view_t views[WORLD_GIDS][WORLD_VIEWS];
    call_t calls[WORLD_CALLS];
    uint64_t last_call;
    uint8_t *wire, *scratch; /* codec buffers */
} world_t;

world_t *world_new(uint64_t seed);
void world_free(world_t *w);
/* Starts a process in a rank; returns its index. */
uint32_t world_spawn(world_t *w, uint32_t rank);
void world_kill(world_t *w, uint32_t node);
void world_exit_seen(world_t *w, uint32_t node); /* the launcher's proof */
void world_cut(world_t *w, uint32_t a, uint32_t b, bool cut);
void world_drop_stream(world_t *w, uint32_t node);
void world_shutdown(world_t *w);
/* One event of the pending ones, drawn by the seed; false when nothing will ever happen again. */
bool world_step(world_t *w);
/* Steps until the condition holds; fails the test at a bounded number of steps or of virtual seconds. */
typedef bool (*world_cond_t)(world_t *w, const void *arg);
void world_until(world_t *w, world_cond_t cond, const void *arg, const char *what);
void world_run_for(world_t *w, uint64_t us);
uint64_t world_random(world_t *w, uint64_t below);

/* Calls: return the call's id; the answer lies in calls[id]. */
uint64_t call_register(world_t *w, uint32_t node, const uint32_t *order, uint32_t count, uint32_t capacity,
                       const char *flags, uint64_t timeout_us); /* flags: e extension, m manual, n no_auto_sync */
uint64_t call_join(world_t *w, uint32_t node, uint32_t gid, uint64_t timeout_us);
uint64_t call_propose(world_t *w, uint32_t node, uint32_t gid, uint64_t activate, uint64_t deactivate,
                      uint64_t wait_us);
uint64_t call_sync(world_t *w, uint32_t node, uint32_t gid, uint64_t failed, uint64_t first, uint64_t timeout_us);
uint64_t call_leave(world_t *w, uint32_t node, uint32_t gid);
uint64_t call_detach(world_t *w, uint32_t node);
const mcpg_agent_call_done_t *world_answer(world_t *w, uint64_t call); /* runs until it is there */

/* Data plane model. */
void op_run(world_t *w, uint32_t node, uint32_t gid); /* takes a number; runs at once or when the hold ends */
void op_safe_point(world_t *w, uint32_t node, uint32_t gid);
void op_fail(world_t *w, uint32_t node, uint32_t gid, uint32_t slot); /* an operation with that slot failed */
uint64_t world_active(const world_t *w, uint32_t node, uint32_t gid); /* bits by slot; 0: no view */
uint64_t world_epoch(const world_t *w, uint32_t node, uint32_t gid);
/* Every report resolved, every call answered, one operation number one view. */
void world_check_end(world_t *w);

#endif
