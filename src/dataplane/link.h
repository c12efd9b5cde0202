/* link.h: messages over streams: framing, matching, large-message rendezvous, probes, death watch.
 *
 * Below it: transport.h streams. Above it: the operation engine, which posts sends and receives by message key.
 * Everything here runs with the engine lock held and never blocks. A link never decides that a rank has left: it
 * reports.
 *
 * Matching: a message is {key, source rank}. A small one (<= MCPG_EAGER_BYTES) travels with its header and, if nobody
 * waits for it yet, is kept in a bounded pool; a large one announces itself and moves when the receive is posted,
 * straight from user memory to user memory. A receive that was cancelled can no longer be written: late bytes are read
 * and dropped (contract D2).
 */
#ifndef MCPG_DATAPLANE_LINK_H
#define MCPG_DATAPLANE_LINK_H

#include "common/base.h"
#include "common/dp_iface.h"
#include "common/log.h"

#define MCPG_EAGER_BYTES 8192u
#define MCPG_CHUNK_BYTES 262144u /* largest payload of one frame: other messages interleave */

/* Names one message between two processes. Collective: (gid, view, seq, phase). Point-to-point: view = the one that the
 * pair met in, seq = pair number, tag, MCPG_KEY_P2P in flags. */
typedef struct {
    uint32_t gid;
    uint32_t flags; /* MCPG_KEY_P2P */
    uint64_t view_term, view_epoch;
    uint64_t seq;
    uint64_t tag;
    uint32_t phase; /* step or chunk of the operation */
    uint32_t pad;   /* 0 */
} mcpg_msg_key_t;
#define MCPG_KEY_P2P 1u
/* link_leave of a point-to-point key only: which of this rank's two directions with that pair number and tag ends (none
 * of both: both). */
#define MCPG_KEY_LEFT_SEND 2u
#define MCPG_KEY_LEFT_RECV 4u

/* What sender and receiver must agree on; a difference ends both with MISMATCH, naming both. */
typedef struct {
    uint8_t kind, dtype, redop, pad; /* mcpg_op_kind_t, ... */
    uint32_t root;
    uint64_t bytes; /* of this message */
} mcpg_msg_sig_t;

typedef enum {
    MCPG_LX_DONE = 0,      /* all bytes handed to the transport / in the destination */
    MCPG_LX_LINK_LOST = 1, /* the stream broke or was closed */
    MCPG_LX_PEER_DEAD = 2, /* proved */
    MCPG_LX_LEFT = 3,      /* the peer ended its side of this operation */
    MCPG_LX_MISMATCH = 4   /* signatures differ: peer_sig holds the peer's */
} mcpg_lx_result_t;

typedef struct mcpg_engine mcpg_engine_t; /* engine.h */

/* What a peer says about a collective outside the transfers posted for it. KEPT: its message came and no receive wants
 * it now. ASKED: it waits for this rank and tells what it runs. REFUSED: it runs something else under that name. */
typedef enum { MCPG_STRAY_KEPT, MCPG_STRAY_ASKED, MCPG_STRAY_REFUSED } mcpg_stray_t;

/* Embedded in the operation; the link layer links it into its lists. Owner fills the first part. done() is called
 * exactly once unless cancelled, lock held, by the driving thread and never from inside a link call; it may post and
 * cancel others, and reuse self. */
typedef struct mcpg_lx {
    mcpg_rank_t peer;
    mcpg_incarnation_t peer_inc;
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig;
    void *buf; /* source of a send, destination of a receive; sig.bytes long */
    void (*done)(struct mcpg_lx *self, mcpg_lx_result_t result);
    void *owner;
    mcpg_msg_sig_t peer_sig; /* MISMATCH */
    /* link layer's own */
    struct mcpg_lx *next, *prev;
    struct mcpg_lx_list *list;
    uint64_t handle, moved, peer_handle;
    uint8_t state, is_send, result;
} mcpg_lx_t;

typedef enum {
    MCPG_LINK_ST_NONE,
    MCPG_LINK_ST_CONNECTING,
    MCPG_LINK_ST_UP,
    MCPG_LINK_ST_DOWN,
    MCPG_LINK_ST_DEAD
} mcpg_link_st_t;

/* A posted send or receive waits while the link to exactly that incarnation is CONNECTING or DOWN (the operation's own
 * deadline decides how long); it ends at once with PEER_DEAD when that incarnation is dead or replaced. */
void mcpg__link_send(mcpg_engine_t *e, mcpg_lx_t *x);
void mcpg__link_recv(mcpg_engine_t *e, mcpg_lx_t *x);
/* Point-to-point, from a process that may be gone: takes the (whole) message if it came before its receive was posted.
 * DONE: it is in buf. MISMATCH: peer_sig_out holds what the sender meant. LEFT: there is none. */
mcpg_lx_result_t mcpg__link_take_kept(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source,
                                      mcpg_incarnation_t inc, const mcpg_msg_sig_t *sig, void *buf,
                                      mcpg_msg_sig_t *peer_sig_out);
/* No done() afterwards, and `buf` is neither read nor written again. A half-sent frame is completed from a private copy
 * of its remaining bytes; a peer that matched the rest of the message gets LX_LEFT. Safe on an x that already ended or
 * was never posted (zeroed). */
void mcpg__link_cancel(mcpg_engine_t *e, mcpg_lx_t *x);
/* Ends own side of (gid, view, seq) towards every peer of the list: peers that still need this rank there get LX_LEFT.
 */
void mcpg__link_leave(mcpg_engine_t *e, const mcpg_msg_key_t *key, const mcpg_member_t *peers, uint32_t count);
/* Tells the peer that own side of this operation is `own`, not what it takes it for: its transfers with this rank in it
 * end with MISMATCH. Drops what the peer had sent for it. */
void mcpg__link_refuse(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                       const mcpg_msg_sig_t *own);
/* Tells the peer what this rank runs under this name and waits for. It answers only if it disagrees, or is past it. */
void mcpg__link_ask(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *own);
/* True if exactly this message came and no receive has taken it. */
bool mcpg__link_kept(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source, mcpg_incarnation_t inc,
                     mcpg_msg_sig_t *sig_out);
/* Drops kept point-to-point messages of this group from an older time than this view: source NULL: of every rank. */
void mcpg__link_forget_pairs(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, const mcpg_rank_t *source);
/* Drops kept messages of this group for which seq < below (of that view or an older one). */
void mcpg__link_forget(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, uint64_t below);
void mcpg__link_forget_group(mcpg_engine_t *e, uint32_t gid);

mcpg_link_st_t mcpg__link_state(const mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc);
/* Asks the peer's engine for a sign of life. */
void mcpg__link_probe(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc);
/* The last time anything was read from it. Reads first what is there already: silence is judged by what has arrived,
 * not by what this process found the time to look at. */
uint64_t mcpg__link_last_heard_us(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc);

#endif
