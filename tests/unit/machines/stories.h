/* stories.h: pieces that the stories of test_machines.c and chaos.c share: founding, working, waiting, replacing. */
#ifndef MCPG_TEST_STORIES_H
#define MCPG_TEST_STORIES_H

#include "unit/machines/world_priv.h"

#define S(n)    (UINT64_C(1) << (n))
#define LONG_US 60000000u
extern const uint32_t order4[4];

/* The slot is registered, HEALTHY and active or awaiting, as that node sees it. */
typedef struct {
    uint32_t gid, slot, node;
} peer_t;

void until_active(world_t *w, uint32_t gid, uint64_t nodes, uint64_t active);
void until_state(world_t *w, uint32_t node, uint32_t rank, uint8_t state);
bool all_judged(world_t *w, const void *arg);
bool peer_ok(world_t *w, const void *arg);
bool quiescent(world_t *w, const void *arg);
uint32_t found(world_t *w, uint32_t count, const char *flags);
void work(world_t *w, uint32_t gid, uint32_t operations);
const mcpg_agent_call_done_t *expect(world_t *w, uint64_t call, mcpg_status_t status);
uint32_t replace(world_t *w, uint32_t gid, uint32_t slot, uint32_t leader);

/* Everything at once, then healing, then everything must be as it should. */
void chaos(world_t *w);

#endif
