/* base.h: identities, status helpers and limits that every layer shares.
 *
 * Identities are one-field structs so that the compiler refuses to mix them. This header never depends on another
 * header of ours except the public one, and nothing in it allocates, locks or reads a clock.
 */
#ifndef MCPG_COMMON_BASE_H
#define MCPG_COMMON_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mooncake/pg.h"

#define MCPG_PROTOCOL_VERSION 1u
#define MCPG_MAX_GROUPS       4096u
#define MCPG_MAX_SLOTS_TOTAL  262144u
#define MCPG_ENDPOINT_CAP     256u /* bytes of one data-plane endpoint */
#define MCPG_KEY_CAP          128u /* bytes of a group key or label */
#define MCPG_TEXT_CAP         256u /* bytes of a rejection sentence, final NUL included */
#define MCPG_STEP_SHIFT       32u  /* safe points are multiples of 2^32 */
#define MCPG_NO_SEQ           UINT64_MAX

typedef struct {
    uint32_t v;
} mcpg_rank_t; /* global rank: process slot of the job */
typedef struct {
    uint32_t v;
} mcpg_slot_t; /* in-group rank */
typedef struct {
    uint32_t v;
} mcpg_gid_t; /* group id, given by the coordinator, never 0 */
typedef struct {
    uint64_t v;
} mcpg_session_t; /* random, never 0, new with every context */
typedef struct {
    uint64_t us;
} mcpg_time_t; /* monotonic, microseconds */

/* New with every process or session in a rank. Compared term first. {0,0}: none. */
typedef struct {
    uint64_t term, counter;
} mcpg_incarnation_t;
/* (term, epoch), compared in that order; epochs strictly rise within a group. {0,0}: none or isolated. */
typedef struct {
    uint64_t term, epoch;
} mcpg_view_id_t;

static inline int mcpg__inc_cmp(mcpg_incarnation_t a, mcpg_incarnation_t b) {
    if (a.term != b.term) return a.term < b.term ? -1 : 1;
    return a.counter < b.counter ? -1 : a.counter > b.counter;
}
static inline bool mcpg__inc_eq(mcpg_incarnation_t a, mcpg_incarnation_t b) {
    return mcpg__inc_cmp(a, b) == 0;
}
static inline bool mcpg__inc_none(mcpg_incarnation_t a) {
    return a.term == 0 && a.counter == 0;
}
static inline int mcpg__view_cmp(mcpg_view_id_t a, mcpg_view_id_t b) {
    if (a.term != b.term) return a.term < b.term ? -1 : 1;
    return a.epoch < b.epoch ? -1 : a.epoch > b.epoch;
}
static inline bool mcpg__view_eq(mcpg_view_id_t a, mcpg_view_id_t b) {
    return mcpg__view_cmp(a, b) == 0;
}

/* For so long after a rank was last heard nobody leaves it out of a view without proof of its death, and for so long
 * after its word was last heard a rank may take a proof of death for a judgement. */
static inline uint64_t mcpg__lease_us(uint64_t offline_us) {
    return offline_us / 4u;
}

/* A borrowed byte range; never NUL-terminated by contract. */
typedef struct {
    const uint8_t *ptr;
    uint32_t len;
} mcpg_bytes_t;

/* A local impossible state. The hook flushes the event log, then aborts; it never returns. Peers' mistakes are never
 * asserted. */
_Noreturn void mcpg__panic(const char *file, int line, const char *what);
#define MCPG_ASSERT(cond) ((cond) ? (void)0 : mcpg__panic(__FILE__, __LINE__, #cond))

#define MCPG_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        mcpg_status_t mcpg_try_status_ = (expr);                                                                       \
        if (mcpg_try_status_ != MCPG_OK) return mcpg_try_status_;                                                      \
    } while (0)

#endif
