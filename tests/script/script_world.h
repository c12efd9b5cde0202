/* script_world.h: the world that a script acts on: one coordinator, the agents as far as the script plays them, and the
 * clock. */
#ifndef MCPG_TESTS_SCRIPT_WORLD_H
#define MCPG_TESTS_SCRIPT_WORLD_H

#include <stdio.h>

#include "coordinator/coord.h"

#define RANKS  64u
#define GROUPS 32u
#define QUEUE  4096u

typedef struct {
    uint64_t conn, session;
    int64_t pid;
    mcpg_incarnation_t inc;
    bool mute;
    uint64_t seq[GROUPS];                               /* by gid: next operation number */
    mcpg_view_id_t prepared[GROUPS], committed[GROUPS]; /* newest that is not yet answered */
} actor_t;

typedef struct {
    FILE *out;
    mcpg_coord_t *coord;
    void *mem;
    mcpg_coord_effects_t fx;
    uint64_t now, timer, next_conn, next_call, next_pid, next_session, check_id;
    bool automatic, show_timer, failed, stopped;
    mcpg_rankset_t broken[RANKS]; /* links that checks find lost */
    mcpg_rankset_t suspects, asked;
    actor_t actors[RANKS];
    struct {
        uint32_t rank;
        bool commit;
        mcpg_gid_t gid;
        mcpg_view_id_t view;
    } queue[QUEUE];
    uint32_t queue_head, queue_tail;
    char last[65536]; /* what the last command printed */
} world_t;

/* Runs one command line's words; false: no such command. */
bool script_run_command(world_t *w, const char *name, char *args);
/* Sends the ACKs that `auto on` has queued. */
void script_drain(world_t *w);
/* Cuts the next word off. */
char *script_word(char **at);

#endif
