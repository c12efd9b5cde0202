/* fake_link.h: engine.h and link.h in memory, for N ranks in one thread, with a virtual clock and faults on command.
 *
 * Everything is deterministic from the seed: messages between two ranks keep their order, pairs take turns at random.
 * Linked instead of the real engine (the archive's members are then not needed). Single-threaded: a wait drives all
 * ranks.
 */
#ifndef MCPG_TESTS_FAKE_LINK_H
#define MCPG_TESTS_FAKE_LINK_H

#include "dataplane/engine.h"

void fake_reset(uint64_t seed);                     /* no engine may exist */
bool fake_step(void);                               /* one event; false: nothing can move */
void fake_drain(void);                              /* until nothing moves; time stands still */
void fake_advance(uint64_t us);                     /* time passes, deadlines fire */
uint64_t fake_delivered(void);                      /* messages delivered since reset */
void fake_kill(uint32_t rank, bool keep_in_flight); /* proved dead; what it had sent small may still arrive */
void fake_kill_at(uint32_t rank, uint64_t delivered, bool keep_in_flight);
bool fake_is_dead(uint32_t rank);
void fake_cut(uint32_t a, uint32_t b); /* the stream breaks */
void fake_heal(uint32_t a, uint32_t b);
void fake_block(uint32_t from, uint32_t to, bool blocked);
void fake_hang(uint32_t rank, bool hung); /* stopped: reads nothing, sends nothing */
uint32_t fake_posted(uint32_t rank);      /* transfers posted and not ended */
uint32_t fake_kept(uint32_t rank);        /* messages that nobody waits for */

#endif
