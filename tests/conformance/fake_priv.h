/* fake_priv.h: what fake_link.c and fake_engine.c share. Never used outside these two. */
#ifndef MCPG_TESTS_FAKE_PRIV_H
#define MCPG_TESTS_FAKE_PRIV_H

#include "fake_link.h"

#define RANKS 16u

typedef enum { F_DATA, F_LARGE, F_LEFT, F_NACK, F_ASK, F_DEATH, F_PROBE, F_ANSWER } fkind_t;
typedef struct fmsg {
    struct fmsg *next;
    fkind_t kind;
    mcpg_incarnation_t inc; /* of the sender */
    mcpg_msg_key_t key;
    mcpg_msg_sig_t sig;
    mcpg_lx_t *lx; /* F_LARGE */
    uint32_t from;
    uint8_t *data;
} fmsg_t;
typedef struct ftomb {
    struct ftomb *next;
    uint32_t from;
    mcpg_msg_key_t key;
    bool mismatch;
    mcpg_msg_sig_t sig;
} ftomb_t;
typedef struct {
    fmsg_t *head, **end;
    bool blocked;
} fqueue_t;
typedef struct {
    mcpg_incarnation_t inc;
    mcpg_link_st_t st;
    uint64_t heard;
} fpeer_t;
struct mcpg_engine {
    mcpg_engine_hooks_t hooks;
    mcpg_dp_observer_t observer;
    mcpg_rank_t rank;
    mcpg_incarnation_t own;
    fpeer_t peer[RANKS];
    mcpg_lx_t *recvs, *sends, *ended; /* linked by next */
    fmsg_t *kept;
    ftomb_t *tombs;
    bool locked, kicked, dead, hung;
};
typedef struct {
    mcpg_engine_t *e[RANKS];
    fqueue_t q[RANKS][RANKS];
    uint64_t now, delivered, rng, kill_at;
    uint32_t kill_rank;
    bool kill_keep;
} fnet_t;
extern fnet_t fake_net;

void fake_lose_peer(mcpg_engine_t *e, uint32_t peer, mcpg_lx_result_t why);
void fake_drop_large(uint32_t from, uint32_t to, const mcpg_lx_t *only);
void fake_free_msg(fmsg_t *m);
void fake_push(uint32_t from, uint32_t to, const fmsg_t *proto);
bool fake_same_op(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b);
bool fake_key_equal(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b);
void fake_tick(uint64_t at);
uint64_t fake_next_deadline(void);

#endif
