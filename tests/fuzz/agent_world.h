/* agent_world.h: the agent machine under the fuzzer, and what the contract of its effects says outside it: the stream,
 * the links, the data plane's groups and holds, the open calls and reports. It must never know what the right answer of
 * the machine is.
 */
#ifndef MCPG_TESTS_FUZZ_AGENT_WORLD_H
#define MCPG_TESTS_FUZZ_AGENT_WORLD_H

#include "agent/agent_host_codec.h"
#include "fuzz/fuzz.h"

#define RANKS         8u
#define GIDS          8u
#define CALLS         64u
#define REPORTS       32u
#define STEPS_MOST    400u
#define NEVER_US      (UINT64_MAX / 4) /* a timer from here on never fires: no clock gets there */
#define CALL_ID_FIRST 100u

typedef struct {
    bool used, held; /* held: DP_HOLD of `hold` is in force */
    mcpg_gid_t gid;
    mcpg_view_id_t hold, held_told, installed;
    uint32_t capacity;
} dp_group_t;
typedef enum { STREAM_NONE, STREAM_OPENING, STREAM_OPEN } stream_t;

typedef struct {
    fuzz_in_t in;
    mcpg_agent_config_t config;
    mcpg_agent_t *agent, *twin;
    mcpg_agent_effects_t fx, twin_fx;
    bool with_twin, with_codec;
    uint64_t digest, armed_us;
    mcpg_time_t now;
    uint32_t steps;
    stream_t stream;
    bool closing, attached_sent, told_attached, stopped;
    mcpg_incarnation_t links[RANKS];
    dp_group_t groups[GIDS];
    uint64_t gone[GIDS]; /* gids that ended, so that the coordinator goes on about them */
    uint32_t gone_count;
    uint64_t last_call;
    bool call_open[CALLS];
    uint64_t last_report;
    struct {
        bool open;
        uint32_t gid;
    } reports[REPORTS];
    uint64_t term, epoch, last_check, counter;
    fuzz_hints_t hints;
} world_t;

/* The first bytes of the input say how the machine is configured. */
void world_begin(world_t *w, const uint8_t *data, size_t size);
dp_group_t *world_group(world_t *w, mcpg_gid_t gid); /* NULL: the data plane has no such group */
/* Steps the machine and checks it. The event's time is set here. */
void world_step(world_t *w, mcpg_agent_event_t event);

#endif
