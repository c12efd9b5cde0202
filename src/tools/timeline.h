/* timeline.h: what a coordinator's log tells over time, collected by stepping it again, and the axis on which it is
 * drawn. Nothing here draws.
 */
#ifndef MCPG_TOOLS_TIMELINE_H
#define MCPG_TOOLS_TIMELINE_H

#include "tools/log_replay.h"

/* A growable array of fixed-size elements; count elements at items. */
typedef struct {
    void *items;
    uint32_t count, cap;
} timeline_list_t;

typedef struct {
    uint64_t from, to;
    uint32_t rank;
    uint8_t state; /* mcpg_rank_state_t */
    bool dead;
    mcpg_incarnation_t inc;
} timeline_state_t;
typedef struct {
    uint64_t from, to;
    uint32_t rank;
} timeline_suspect_t;
typedef struct {
    uint64_t from, to;
    uint32_t group; /* index in groups */
    mcpg_view_id_t id;
    uint32_t active, added, removed; /* how many */
    char change[96];                 /* "+3 -1,2" */
} timeline_view_t;
typedef enum { TIMELINE_OPEN, TIMELINE_COMMITTED, TIMELINE_ABORTED } timeline_outcome_t;
typedef struct {
    uint64_t from, to;
    uint32_t group;
    mcpg_view_id_t id;
    timeline_outcome_t outcome;
} timeline_barrier_t;
typedef struct {
    uint64_t from, to;
    uint32_t group, rank, row;
    uint64_t conn, call;
    bool is_answered, is_sync;
    int32_t status;
    char what[160];
} timeline_call_t;
typedef enum { TIMELINE_DEATH, TIMELINE_CLOSED, TIMELINE_ATTACHED, TIMELINE_DETACHED } timeline_mark_kind_t;
typedef struct {
    uint64_t at;
    uint32_t rank;
    timeline_mark_kind_t kind;
} timeline_mark_t;
typedef struct {
    uint64_t at;
    uint32_t from, to; /* rank `from` reported its link to rank `to` lost */
} timeline_link_t;
typedef struct {
    uint64_t at;
    char text[64];
} timeline_note_t;
typedef struct {
    mcpg_gid_t gid;
    uint32_t views, rows; /* rows: of calls that overlap */
    mcpg_rankset_t active;
    char name[64];
} timeline_group_t;

typedef struct {
    uint64_t start, end, events;
    uint64_t term;
    mcpg_rankset_t ranks; /* that ever attached */
    timeline_list_t states, suspects, views, barriers, calls, marks, links, notes, groups;
} timeline_t;

/* False: error says why, and nothing was collected. A log that differs or breaks off is collected up to there, and the
 * sentence is in problem. */
bool timeline_collect(const mcpg_log_file_t *log, timeline_t *out, char *problem, size_t problem_cap, char *error,
                      size_t error_cap);
void timeline_free(timeline_t *timeline);

/* ---- the axis: linear, but for long quiet stretches, which are cut out ---- */
#define TIMELINE_BREAKS 12u
typedef struct {
    uint64_t from, to;
} timeline_stretch_t;
typedef struct {
    uint64_t start, end;
    double x0, width, per_us;
    uint32_t breaks;
    timeline_stretch_t quiet[TIMELINE_BREAKS]; /* in order */
} timeline_axis_t;
#define TIMELINE_BREAK_WIDTH 30.0
void timeline_axis_make(const timeline_t *timeline, double x0, double width, timeline_axis_t *out);
double timeline_x(const timeline_axis_t *axis, uint64_t us);
/* Distance of the ticks: 1, 2 or 5 times a power of ten, at least about 90 px apart. */
uint64_t timeline_tick_us(const timeline_axis_t *axis);
/* "0", "12.5 ms", "3.2 s": as exact as steps of this size need. */
void timeline_time_text(uint64_t us, uint64_t step_us, char *buf, size_t cap);

#endif
