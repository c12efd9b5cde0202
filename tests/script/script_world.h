/* script_world.h: the world that a script acts on: one coordinator, the agents as far as the script plays them, and the
 * clock. */
#ifndef MCPG_TESTS_SCRIPT_WORLD_H
#define MCPG_TESTS_SCRIPT_WORLD_H

#include <stdio.h>

#include "common/eventlog.h"
#include "coordinator/coord.h"

#define RANKS  64u
#define GROUPS 32u
#define QUEUE  4096u

/* Where a script's actors keep what they know of a group: the ids of two coordinators do not meet. */
#define SCRIPT_GROUP(gid) (((gid).v + ((gid).v >> 20) * 16u) % GROUPS)

/* What one agent knows of a group. */
typedef struct {
    bool in, manual, has_commit;
    mcpg_gid_t gid;
    uint32_t order_count, capacity, doubt_count;
    uint32_t order[RANKS];
    char label[32], key[32];
    mcpg_view_id_t prepared, acked, aborted;
    mcpg_member_t doubt[RANKS], active[RANKS];
    mcpg_leave_t leaves[RANKS];
    mcpg_down_commit_t commit;
} known_t;

typedef struct {
    uint64_t conn, session, term;
    int64_t pid;
    mcpg_incarnation_t inc;
    bool mute;
    uint64_t seq[GROUPS];                               /* by gid: next operation number */
    mcpg_view_id_t prepared[GROUPS], committed[GROUPS]; /* newest that is not yet answered */
    known_t known[GROUPS];
} actor_t;

typedef struct {
    FILE *out;
    mcpg_coord_config_t config;
    mcpg_coord_t *coord;
    void *mem;
    mcpg_coord_effects_t fx;
    uint64_t now, timer, next_conn, next_call, next_pid, next_session, check_id;
    bool automatic, show_timer, failed, stopped;
    mcpg_rankset_t broken[RANKS]; /* links that checks find lost */
    mcpg_rankset_t suspects, asked;
    const char *declared_label, *declared_key;
    actor_t actors[RANKS];
    struct {
        uint32_t rank;
        bool commit;
        mcpg_gid_t gid;
        mcpg_view_id_t view;
    } queue[QUEUE];
    uint32_t queue_head, queue_tail;
    char *last;             /* what the last command printed, or NULL */
    const char *log_prefix; /* an event log is written there, or NULL */
    mcpg_eventlog_t *log;
    uint64_t log_seq;
    uint32_t log_count;
    uint8_t *log_buf;
} world_t;

/* A fresh machine with this configuration, and its event log. */
bool script_world_machine(world_t *w, const mcpg_coord_config_t *config);
void script_step(world_t *w, const mcpg_coord_event_t *event);
/* script_raw.c: events word for word; false: no such command. */
bool script_raw_command(world_t *w, const char *name, char *args);

/* Runs one command line's words; false: no such command. */
bool script_run_command(world_t *w, const char *name, char *args);
/* script_rebuild.c: what the agents know of their groups, and tell a new coordinator. */
known_t *script_known(world_t *w, uint32_t rank, mcpg_gid_t gid);
void script_known_note(world_t *w, uint32_t rank, const mcpg_down_msg_t *msg);
void script_cmd_report(world_t *w, char *args);
void script_cmd_coordinator(world_t *w, char *args);

void script_say(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg); /* nothing when it is not attached */
mcpg_rankset_t script_ranks(const world_t *w, const char *text);
uint64_t script_duration(const char *text);
/* Sends the ACKs that `auto on` has queued. */
void script_drain(world_t *w);
/* Cuts the next word off. */
char *script_word(char **at);

#endif
