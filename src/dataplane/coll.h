/* coll.h: what an algorithm for collectives is, and the state of one running operation.
 *
 * An algorithm is one file with one mcpg_coll_t and one line in coll_select.c. It posts sends and receives, and never
 * decides membership: a peer that cannot be reached is dropped from this operation and hinted, nothing else. Runs with
 * the engine lock held.
 */
#ifndef MCPG_DATAPLANE_COLL_H
#define MCPG_DATAPLANE_COLL_H

#include "dataplane/dp_priv.h"

/* A member of the view, as this operation sees it. */
typedef enum {
    MCPG_XP_OK = 0,
    MCPG_XP_FAILED, /* evidence: hinted and reported */
    MCPG_XP_GONE,   /* a COMMIT says that it had left by this number: hinted, not reported */
    MCPG_XP_LEFT    /* it ended its side of this operation: hinted, no evidence of anything */
} mcpg_xp_t;

struct mcpg_coll {
    const char *name;
    mcpg_status_t (*start)(mcpg_exec_t *x);
    void (*progress)(mcpg_exec_t *x); /* from the ready list; ends with mcpg__op_finish */
    void (*drop)(mcpg_exec_t *x, uint32_t member, mcpg_xp_t why);
    bool (*waits_for)(const mcpg_exec_t *x, uint32_t member);
    /* By its plan it receives something from this member, now, later or already. */
    bool (*receives)(const mcpg_exec_t *x, uint32_t member);
    /* This member runs something else under the same number: the operation will end with MISMATCH, and nothing is
     * exchanged with it any more. */
    void (*disagrees)(mcpg_exec_t *x, uint32_t member, const mcpg_msg_sig_t *theirs);
    void (*stop)(mcpg_exec_t *x); /* cancels all that is in flight */
};
const mcpg_coll_t *mcpg__coll_select(mcpg_op_kind_t kind, uint64_t bytes, uint32_t ranks, const char *transport);
extern const mcpg_coll_t mcpg__coll_direct;

typedef struct {
    uint32_t member; /* index in the view */
    uint64_t send_chunks, recv_chunks;
    uint64_t send_bytes, recv_bytes;
    uint8_t *send_ptr, *recv_ptr;
    bool send_missing, recv_missing; /* own lists have no entry for this slot */
} mcpg_xpeer_t;

typedef struct {
    uint64_t chunk;
    uint32_t pending; /* in flight, plus one while the row is being posted */
    bool active;
} mcpg_xrow_t;

struct mcpg_exec {
    mcpg_exec_t *next; /* ready list or pool */
    bool queued, p2p;
    mcpg_dp_t *dp;
    mcpg_dpgroup_t *group;
    mcpg_dp_work_t *work;
    mcpg_dpview_t *view;
    const mcpg_coll_t *coll;
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig;
    uint64_t timeout_us, check_us, probe_us;
    bool probing;
    uint8_t *member_state; /* mcpg_xp_t, view->count */
    /* mismatch: the first one */
    mcpg_status_t status;
    char error[MCPG_ERROR_CAP];
    /* direct exchange */
    uint32_t peer_count, own_pos; /* own_pos: peers with a lower slot */
    uint32_t rows_used, sends_pending;
    uint64_t chunk_bytes, chunks, next_chunk, chunks_done;
    bool combine, staged;
    uint8_t *own_src, *own_dst;
    uint64_t own_bytes;
    size_t stride;
    mcpg_scratch_t *scratch;
    mcpg_xrow_t rows[MCPG_WINDOW];
    mcpg_xpeer_t *peers;
    mcpg_lx_t *lx;        /* [row][peer][receive, send] */
    uint8_t *flight;      /* the same */
    uint8_t *arrived;     /* [row][peer] */
    const void **sources; /* peer_count + 1 */
    size_t peers_cap, lx_cap, members_cap;
};

mcpg_exec_t *mcpg__exec_get(mcpg_dp_t *dp, bool p2p);
void mcpg__exec_put(mcpg_exec_t *x); /* gives view and scratch back too */
mcpg_status_t mcpg__exec_room(mcpg_exec_t *x, uint32_t members, uint32_t peers, uint32_t rows);
mcpg_status_t mcpg__exec_scratch(mcpg_exec_t *x, size_t bytes);
void mcpg__exec_free(mcpg_exec_t *x);
void mcpg__exec_ready(mcpg_exec_t *x);
void mcpg__exec_unready(mcpg_exec_t *x);
void mcpg__scratch_free_all(mcpg_dp_t *dp);
/* op_end.c: own side of this operation is over for these. */
void mcpg__op_say_left(mcpg_exec_t *x, const mcpg_member_t *peers, uint32_t count);
/* op_stray.c */
#define MCPG_SIG_NO_SLOT   1u  /* mcpg_msg_sig_t.pad: this side's lists have no entry for the other */
#define MCPG_SIG_ROOT_BITS 12u /* of sig.root; above them the number of chunks, so that both sides agree on the total  \
                                */
void mcpg__op_stray_hook(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                         const mcpg_msg_sig_t *sig, mcpg_stray_t how);
void mcpg__op_find_strays(mcpg_exec_t *x); /* once it has started: what came before it and does not belong to it */

#endif
