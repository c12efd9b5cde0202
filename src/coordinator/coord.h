/* coord.h: the coordinator as a pure state machine: event in, effects out.
 *
 * It holds no thread, lock, socket, clock, allocation, float or log call. Memory is given once by the caller. Time
 * comes with the event, timers leave as ARM_TIMER. The event is borrowed for the call; effects borrow from the effect
 * buffer until its next reset. step validates, makes sure that the worst case fits, then mutates: on an error the state
 * digest is unchanged.
 */
#ifndef MCPG_COORDINATOR_COORD_H
#define MCPG_COORDINATOR_COORD_H

#include "common/base.h"
#include "common/msg.h"

typedef struct {
    uint64_t term, coordinator_id;
    uint32_t max_ranks;       /* <= MCPG_MAX_RANKS */
    uint32_t max_groups;      /* <= MCPG_MAX_GROUPS */
    uint32_t max_slots_total; /* over all groups */
    uint64_t clique_node_budget;
    bool has_store;       /* RECORD_* effects are carried out and answered */
    bool predecessor;     /* there may have been an earlier coordinator, whose ranks may still come */
    mcpg_timers_t timers; /* all non-zero */
} mcpg_coord_config_t;

typedef struct mcpg_coord mcpg_coord_t;

/* RECORD: the answer to RECORD_CLAIM or RECORD_WRITE: OK, UNAVAILABLE (the store did not answer), or CONFLICT (somebody
 * else has written meanwhile: a newer coordinator). MSG: a validated message on a connection. CLOSED: the connection is
 * gone. EXIT: the launcher saw a process end. TIMER: the armed time came. SHUTDOWN: refuse what is new, answer what is
 * open; STOP is emitted when nothing is left or the drain deadline passed, or at once when somebody newer rules. */
typedef enum {
    MCPG_COORD_EV_MSG,
    MCPG_COORD_EV_CLOSED,
    MCPG_COORD_EV_EXIT,
    MCPG_COORD_EV_TIMER,
    MCPG_COORD_EV_SHUTDOWN,
    MCPG_COORD_EV_RECORD,
    MCPG_COORD_EV__COUNT
} mcpg_coord_ev_kind_t;
typedef struct {
    mcpg_time_t now;
    mcpg_coord_ev_kind_t kind;
    uint64_t conn;                     /* MSG, CLOSED: host's connection id, never reused, never 0 */
    const mcpg_up_msg_t *msg;          /* MSG */
    mcpg_rank_t rank;                  /* EXIT */
    int64_t pid;                       /* EXIT */
    mcpg_gid_t gid;                    /* RECORD */
    mcpg_status_t status;              /* RECORD */
    const mcpg_group_record_t *record; /* RECORD after a claim that is OK: what it said before, NULL: there was none */
} mcpg_coord_event_t;

typedef enum {
    MCPG_COORD_FX_SEND,
    MCPG_COORD_FX_SEND_CONN,
    MCPG_COORD_FX_CLOSE_CONN,
    MCPG_COORD_FX_ARM_TIMER,
    MCPG_COORD_FX_STOP,
    MCPG_COORD_FX_RECORD_CLAIM,
    MCPG_COORD_FX_RECORD_WRITE,
    MCPG_COORD_FX__COUNT
} mcpg_coord_fx_kind_t;
/* Run in order. SEND goes to every rank of `to` that is attached (a push: may be lost, is idempotent). SEND_CONN
 * answers one connection (replies: unique). ARM_TIMER replaces the earlier one; at.us == UINT64_MAX disarms.
 * RECORD_CLAIM: read the group's record and write it again under this coordinator's term, whatever it was unless its
 * term is higher (CONFLICT). RECORD_WRITE: compare-and-set from what this coordinator claimed or wrote last (or from
 * nothing). At most one of them is open per group; each is answered by one RECORD event. */
typedef struct {
    mcpg_coord_fx_kind_t kind;
    const mcpg_rankset_t *to;          /* SEND: global ranks */
    uint64_t conn;                     /* SEND_CONN, CLOSE_CONN */
    const mcpg_down_msg_t *msg;        /* SEND, SEND_CONN */
    mcpg_time_t at;                    /* ARM_TIMER */
    mcpg_gid_t gid;                    /* RECORD_* */
    const mcpg_group_record_t *record; /* RECORD_WRITE; RECORD_CLAIM: term and id only */
} mcpg_coord_effect_t;

typedef struct {
    uint32_t count, cap;
    mcpg_coord_effect_t *items;
    uint8_t *arena;
    size_t arena_used, arena_cap;
} mcpg_coord_effects_t;

size_t mcpg_coord_size(const mcpg_coord_config_t *config);
/* mem: mcpg_coord_size bytes, 16-aligned, zero-filled. */
MCPG_MUST_USE mcpg_status_t mcpg_coord_init(void *mem, size_t size, const mcpg_coord_config_t *config,
                                            mcpg_coord_t **out);
/* Worst case that one step may emit; the host allocates the buffer once and calls mcpg_coord_effects_reset before each
 * step. */
void mcpg_coord_effects_worst(const mcpg_coord_config_t *config, uint32_t *item_cap_out, size_t *arena_cap_out);
static inline void mcpg_coord_effects_reset(mcpg_coord_effects_t *fx) {
    fx->count = 0;
    fx->arena_used = 0;
}
/* A rejected event (INVALID_ARGUMENT, NOT_FOUND, LIMIT, ...) changes nothing; a peer's mistake is answered by an effect
 * and OK. */
MCPG_MUST_USE mcpg_status_t mcpg_coord_step(mcpg_coord_t *coord, const mcpg_coord_event_t *event,
                                            mcpg_coord_effects_t *effects);
uint64_t mcpg_coord_digest(const mcpg_coord_t *coord); /* of everything that decides later behaviour */
/* Invariants of one coordinator: NULL, or the id and text of the first broken one ("I3 ..."). */
const char *mcpg_coord_check(const mcpg_coord_t *coord);
/* The whole state as text for people. Copies at most cap bytes with a final NUL; returns the full length. */
size_t mcpg_coord_dump(const mcpg_coord_t *coord, char *buf, size_t cap);

/* Read-only queries for hosts and tests. */
bool mcpg_coord_rank_conn(const mcpg_coord_t *coord, mcpg_rank_t rank, uint64_t *conn_out); /* attached connection */
uint8_t mcpg_coord_rank_state(const mcpg_coord_t *coord, mcpg_rank_t rank);                 /* mcpg_rank_state_t */
bool mcpg_coord_deposed(const mcpg_coord_t *coord); /* STOP came because somebody newer rules */
bool mcpg_coord_quiescent(const mcpg_coord_t *coord);
void mcpg_coord_suspects(const mcpg_coord_t *coord, mcpg_rankset_t *out); /* ranks whose links are being judged */

#endif
