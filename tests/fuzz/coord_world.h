/* coord_world.h: the coordinator machine under the fuzzer, and what is known outside it: processes with their streams
 * and incarnations, groups and views as the machine told of them. It must never know what the right answer of the
 * machine is.
 */
#ifndef MCPG_TESTS_FUZZ_COORD_WORLD_H
#define MCPG_TESTS_FUZZ_COORD_WORLD_H

#include "coordinator/coord_host_codec.h"
#include "fuzz/fuzz.h"

#define RANKS      8u
#define GIDS       8u
#define VIEWS      64u
#define STEPS_MOST 400u
#define PENDING    64u
#define NEVER_US   (UINT64_MAX / 4) /* a timer from here on never fires: no clock gets there */

typedef struct {
    mcpg_view_id_t id;
    uint32_t gid;
    uint64_t content;
} seen_view_t;
typedef struct {
    bool known;
    mcpg_gid_t gid;
    mcpg_view_id_t prepare, commit;
    bool record_open, record_claim;
    uint32_t members;
    mcpg_member_t active[RANKS];
    uint64_t switch_seq;
} seen_group_t;
typedef struct {
    uint64_t conn, session;
    int64_t pid;
    mcpg_incarnation_t inc, given; /* given: by this very coordinator */
    uint8_t broken;                /* bits: links that its checks find lost */
} peer_t;
typedef struct {
    uint32_t rank;
    bool commit;
    mcpg_gid_t gid;
    mcpg_view_id_t view;
} due_t;

typedef struct {
    fuzz_in_t in;
    mcpg_coord_config_t config;
    mcpg_coord_t *coord, *twin;
    mcpg_coord_effects_t fx, twin_fx;
    uint64_t digest;
    bool with_twin, with_codec; /* what takes long is done for some inputs only */
    bool lies;                  /* REBUILD was said: what a group was before is then hearsay */
    mcpg_time_t now;
    uint64_t armed_us, last_conn, last_session, last_call, last_check;
    uint32_t steps;
    peer_t peers[RANKS];
    uint8_t automatic; /* bits: ranks that answer PREPARE and COMMIT by themselves */
    seen_group_t groups[GIDS];
    seen_view_t views[VIEWS];
    uint32_t view_count;
    uint32_t due_count;
    due_t due[PENDING];
    fuzz_hints_t hints;
} world_t;

/* The first bytes of the input say how the machine is configured. */
void world_begin(world_t *w, const uint8_t *data, size_t size);
seen_group_t *world_group(world_t *w, mcpg_gid_t gid); /* makes it known; NULL: no room */
/* Steps the machine and checks it; then what ranks say by themselves is said. The event's time is set here. */
void world_step(world_t *w, mcpg_coord_event_t event);
void world_send(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg); /* from a rank that has a stream */

#endif
