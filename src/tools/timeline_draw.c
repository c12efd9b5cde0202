/* timeline_draw.c: see timeline_draw.h: one lane per rank, one block per group, an axis above and below. Heights follow
 * the number of ranks, labels thin out when lanes are low.
 */
#include "tools/timeline_draw.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/svg.h"

#define WIDTH      1480.0
#define LEFT       96.0
#define RIGHT      24.0
#define MAX_GROUPS 24u
#define CALL_ROWS  8u
#define LABEL_ROWS 2u /* below the calls of a group */

static const char style[] =
    ".bg{fill:#fff} .lane{fill:#fafafa} .grid{stroke:#e3e3e3;stroke-width:1} .axis{stroke:#555;stroke-width:1}\n"
    ".t{font-size:11px;fill:#333} .s{font-size:9.5px;fill:#444} .h{font-size:15px;font-weight:bold;fill:#111}\n"
    ".warn{font-size:12px;fill:#b00020} .b{font-size:11px;font-weight:bold;fill:#222}\n"
    ".healthy{fill:#2e9e6b} .synced{fill:#f2c14e} .offline{fill:#d0d0d0} .dead{fill:#7d7d7d}\n"
    ".edge{stroke:#fff;stroke-width:1.2} .suspect{fill:#b23a9d;fill-opacity:.85}\n"
    ".view0{fill:#bcd4ec} .view1{fill:#dce8f5} .viewedge{stroke:#2b5f94;stroke-width:1.2}\n"
    ".prepare{fill:#1f6fb5} .aborted{fill:#d9541e} .ok{fill:#57a9d9} .refused{fill:#d9541e} .waiting{fill:#b5b5b5}\n"
    ".sync{fill:#8e6bbf} .link{stroke:#d9541e;stroke-width:1;stroke-opacity:.55} .end{fill:#d9541e}\n"
    ".x{stroke:#000;stroke-width:1.5} .closed{fill:#fff;stroke:#000;stroke-width:1} .new{fill:#111}\n"
    ".cut{fill:#fff;fill-opacity:.82} .zig{fill:none;stroke:#777;stroke-width:1} .note{stroke:#444;stroke-width:1;"
    "stroke-dasharray:3 2}\n"
    ".light{font-size:10px;fill:#0b2c4a}\n";

typedef struct {
    const timeline_t *t;
    timeline_axis_t axis;
    svg_t svg;
    uint32_t row[MCPG_MAX_RANKS]; /* lane of a rank */
    uint32_t lanes;
    double lane_height, ranks_y, groups_y, bottom_y, height;
    double group_y[MAX_GROUPS];
    uint32_t group_at[MAX_GROUPS], groups; /* index in t->groups of the n-th block */
    uint64_t tick_us;
} picture_t;

#define AT(list, type, i) (&((const type *)(list).items)[i])

static double lane_y(const picture_t *p, uint32_t rank) {
    return p->ranks_y + p->row[rank] * p->lane_height;
}
static double lane_mid(const picture_t *p, uint32_t rank) {
    return lane_y(p, rank) + p->lane_height / 2.0;
}
static double gap(const picture_t *p) {
    return p->lane_height >= 10.0 ? 2.0 : p->lane_height >= 6.0 ? 1.0 : 0.4;
}
static double x_of(const picture_t *p, uint64_t us) {
    return timeline_x(&p->axis, us);
}
/* Since the start, exact to a hundredth of a tick: for tooltips. */
static void when_text(const picture_t *p, uint64_t us, char *buf, size_t cap) {
    uint64_t fine = p->tick_us / 100u;
    timeline_time_text(us - p->t->start, fine > 0 ? fine : 1u, buf, cap);
}

/* ---- layout ---- */

static double group_height(const timeline_group_t *g) {
    uint32_t rows = g->rows < CALL_ROWS ? g->rows : CALL_ROWS;
    return 12.0 + 20.0 + 8.0 * rows + (rows > 0 ? LABEL_ROWS * 10.0 + 4.0 : 0) + 8.0;
}

static void layout(picture_t *p) {
    const mcpg_rankset_t *ranks = &p->t->ranks;
    for (uint32_t r = mcpg__rankset_next(ranks, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(ranks, r + 1))
        p->row[r] = p->lanes++;
    p->lane_height = p->lanes > 0 ? 640.0 / p->lanes : 26.0;
    if (p->lane_height > 26.0) p->lane_height = 26.0;
    if (p->lane_height < 2.0) p->lane_height = 2.0;
    p->ranks_y = 104.0;
    p->groups_y = p->ranks_y + p->lanes * p->lane_height + 16.0;
    double y = p->groups_y;
    for (uint32_t i = 0; i < p->t->groups.count && p->groups < MAX_GROUPS; i++) {
        if (AT(p->t->groups, timeline_group_t, i)->views == 0 && p->t->groups.count > MAX_GROUPS) continue;
        p->group_at[p->groups] = i;
        p->group_y[p->groups++] = y;
        y += group_height(AT(p->t->groups, timeline_group_t, i));
    }
    p->bottom_y = y + 4.0;
    p->height = p->bottom_y + 78.0;
    timeline_axis_make(p->t, LEFT, WIDTH - LEFT - RIGHT, &p->axis);
    p->tick_us = timeline_tick_us(&p->axis);
}

/* Block of a group, or -1: it is not drawn. */
static int block_of(const picture_t *p, uint32_t group) {
    for (uint32_t i = 0; i < p->groups; i++)
        if (p->group_at[i] == group) return (int)i;
    return -1;
}

/* ---- frame ---- */

static void draw_tick(picture_t *p, uint64_t since_us, double *last_label_x) {
    double x = x_of(p, p->t->start + since_us), top = p->ranks_y - 6.0;
    char text[32];
    svg_line(&p->svg, x, top, x, p->bottom_y, "grid", NULL);
    if (x < *last_label_x + 56.0) return;
    *last_label_x = x;
    timeline_time_text(since_us, p->tick_us, text, sizeof text);
    svg_text(&p->svg, x, top - 4.0, SVG_MIDDLE, "t", text);
    svg_text(&p->svg, x, p->bottom_y + 13.0, SVG_MIDDLE, "t", text);
}

static bool is_quiet(const timeline_axis_t *axis, uint64_t us, uint64_t *end_out) {
    for (uint32_t i = 0; i < axis->breaks; i++)
        if (us > axis->quiet[i].from && us < axis->quiet[i].to) {
            *end_out = axis->quiet[i].to;
            return true;
        }
    return false;
}

static void draw_ticks(picture_t *p) {
    uint64_t span = p->axis.end - p->axis.start, resume;
    double last_x = -1000.0;
    for (uint64_t at = 0; at <= span; at += p->tick_us) {
        if (!is_quiet(&p->axis, p->axis.start + at, &resume)) {
            draw_tick(p, at, &last_x);
            continue;
        }
        uint64_t since = resume - p->axis.start; /* first tick behind the cut */
        at = since - since % p->tick_us;
        if (p->tick_us > span - at) break;
    }
    svg_line(&p->svg, LEFT, p->ranks_y - 6.0, WIDTH - RIGHT, p->ranks_y - 6.0, "axis", NULL);
    svg_line(&p->svg, LEFT, p->bottom_y, WIDTH - RIGHT, p->bottom_y, "axis", NULL);
}

/* A cut through all lanes, with how long it was quiet, and the time at which it goes on. */
static void draw_cut(picture_t *p, const timeline_stretch_t *q) {
    double x = x_of(p, q->from), width = x_of(p, q->to) - x, mid = x + width / 2.0;
    char path[4096], text[48];
    svg_rect(&p->svg, x, p->ranks_y - 6.0, width, p->bottom_y - p->ranks_y + 6.0, "cut", NULL);
    for (int side = -1; side <= 1; side += 2) {
        size_t len = 0;
        double at = mid + side * 3.0;
        len += (size_t)snprintf(path, sizeof path, "M%.1f %.1f", at, p->ranks_y - 6.0);
        double step = (p->bottom_y - p->ranks_y) / 60.0 > 8.0 ? (p->bottom_y - p->ranks_y) / 60.0 : 8.0;
        int turn = 0;
        for (double y = p->ranks_y; y < p->bottom_y && len < sizeof path - 32u; y += step)
            len +=
                (size_t)snprintf(path + len, sizeof path - len, "L%.1f %.1f", at + (turn++ % 2 == 0 ? 2.5 : -2.5), y);
        svg_path(&p->svg, path, "zig");
    }
    uint64_t length = q->to - q->from, unit = 1;
    while (unit < length / 100u) unit *= 10u;
    timeline_time_text(length, unit, text, sizeof text);
    svg_text(&p->svg, mid, p->ranks_y - 32.0, SVG_MIDDLE, "s", text);
    svg_text(&p->svg, mid, p->ranks_y - 23.0, SVG_MIDDLE, "s", "quiet");
}

static void draw_head(picture_t *p, const char *name, const char *problem) {
    char text[256], span[32];
    const timeline_t *t = p->t;
    uint64_t length = t->end - t->start, unit = 1;
    while (unit < length / 1000u) unit *= 10u;
    timeline_time_text(length, unit, span, sizeof span);
    svg_rect(&p->svg, 0, 0, WIDTH, p->height, "bg", NULL);
    (void)snprintf(text, sizeof text, "Coordinator, term %" PRIu64 ": %u ranks, %u groups, %" PRIu64 " events in %s",
                   t->term, p->lanes, t->groups.count, t->events, span);
    svg_text(&p->svg, LEFT, 22.0, SVG_START, "h", text);
    (void)snprintf(text, sizeof text, "%.200s", name);
    svg_text(&p->svg, WIDTH - RIGHT, 22.0, SVG_END, "t", text);
    if (problem[0] != '\0') svg_text(&p->svg, LEFT, 40.0, SVG_START, "warn", problem);
}

static void draw_notes(picture_t *p) {
    double last_x = -1000.0;
    int row = 0;
    for (uint32_t i = 0; i < p->t->notes.count; i++) {
        const timeline_note_t *n = AT(p->t->notes, timeline_note_t, i);
        double x = x_of(p, n->at);
        row = x < last_x + 70.0 ? (row + 1) % 2 : 0;
        last_x = x;
        double y = 46.0 + 11.0 * row;
        svg_line(&p->svg, x, y + 2.0, x, p->bottom_y, "note", n->text);
        svg_text(&p->svg, x > WIDTH - 120.0 ? x - 3.0 : x + 3.0, y + 2.0, x > WIDTH - 120.0 ? SVG_END : SVG_START, "s",
                 n->text);
    }
}

/* ---- ranks ---- */

static void draw_lane_labels(picture_t *p) {
    uint32_t every = 1;
    while (every * p->lane_height < 11.0) every = every % 3u == 2u ? every / 2u * 5u : every * 2u;
    const mcpg_rankset_t *ranks = &p->t->ranks;
    for (uint32_t r = mcpg__rankset_next(ranks, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(ranks, r + 1)) {
        svg_rect(&p->svg, LEFT, lane_y(p, r), WIDTH - LEFT - RIGHT, p->lane_height - gap(p), "lane", NULL);
        if (p->row[r] % every != 0) continue;
        char text[24];
        (void)snprintf(text, sizeof text, "rank %u", r);
        svg_text(&p->svg, LEFT - 8.0, lane_mid(p, r) + 3.5, SVG_END, every == 1 ? "t" : "s", text);
    }
}

static void draw_states(picture_t *p) {
    static const char *const classes[] = {"offline", "synced", "healthy"};
    static const char *const names[] = {"OFFLINE", "SYNCED", "HEALTHY"};
    for (uint32_t i = 0; i < p->t->states.count; i++) {
        const timeline_state_t *s = AT(p->t->states, timeline_state_t, i);
        double x = x_of(p, s->from), width = x_of(p, s->to) - x, height = p->lane_height - gap(p);
        if (width < 0.8) width = 0.8;
        char text[128], from[32], to[32];
        when_text(p, s->from, from, sizeof from);
        when_text(p, s->to, to, sizeof to);
        (void)snprintf(text, sizeof text, "rank %u/%" PRIu64 " %s%s, %s to %s", s->rank, s->inc.counter,
                       names[s->state], s->dead ? " dead" : "", from, to);
        svg_rect(&p->svg, x, lane_y(p, s->rank), width, height, s->dead ? "dead" : classes[s->state], text);
    }
}

static void draw_suspects(picture_t *p) {
    for (uint32_t i = 0; i < p->t->suspects.count; i++) {
        const timeline_suspect_t *s = AT(p->t->suspects, timeline_suspect_t, i);
        double x = x_of(p, s->from), width = x_of(p, s->to) - x;
        double height = p->lane_height >= 10.0 ? 5.0 : (p->lane_height - gap(p)) * 0.5;
        char text[64];
        (void)snprintf(text, sizeof text, "rank %u is suspect", s->rank);
        svg_rect(&p->svg, x, lane_y(p, s->rank) + (p->lane_height - gap(p) - height), width < 1.5 ? 1.5 : width, height,
                 "suspect", text);
    }
}

static void draw_links(picture_t *p) {
    for (uint32_t i = 0; i < p->t->links.count; i++) {
        const timeline_link_t *l = AT(p->t->links, timeline_link_t, i);
        if (!mcpg__rankset_has(&p->t->ranks, l->from) || !mcpg__rankset_has(&p->t->ranks, l->to)) continue;
        double x = x_of(p, l->at);
        char text[96], when[32];
        when_text(p, l->at, when, sizeof when);
        (void)snprintf(text, sizeof text, "rank %u reports its link to rank %u lost, %s", l->from, l->to, when);
        svg_line(&p->svg, x, lane_mid(p, l->from), x, lane_mid(p, l->to), "link", text);
        svg_circle(&p->svg, x, lane_mid(p, l->to), p->lane_height >= 10.0 ? 2.5 : 1.5, "end", text);
    }
}

static void draw_marks(picture_t *p) {
    double size = p->lane_height >= 10.0 ? 4.0 : p->lane_height >= 6.0 ? 2.5 : 1.5;
    for (uint32_t i = 0; i < p->t->marks.count; i++) {
        const timeline_mark_t *m = AT(p->t->marks, timeline_mark_t, i);
        if (!mcpg__rankset_has(&p->t->ranks, m->rank)) continue;
        double x = x_of(p, m->at), y = lane_mid(p, m->rank) - gap(p) / 2.0;
        char path[96];
        switch (m->kind) {
        case TIMELINE_DEATH:
            svg_line(&p->svg, x - size, y - size, x + size, y + size, "x", "its process has ended");
            svg_line(&p->svg, x - size, y + size, x + size, y - size, "x", "its process has ended");
            break;
        case TIMELINE_CLOSED:
            svg_circle(&p->svg, x, y, size * 0.7, "closed", "its stream has closed");
            break;
        case TIMELINE_DETACHED:
            svg_rect(&p->svg, x - size * 0.6, y - size * 0.6, size * 1.2, size * 1.2, "closed", "it says goodbye");
            break;
        case TIMELINE_ATTACHED:
            (void)snprintf(path, sizeof path, "M%.1f %.1f L%.1f %.1f L%.1f %.1f Z", x, y - size, x + size * 1.2, y, x,
                           y + size);
            svg_path(&p->svg, path, "new");
            break;
        }
    }
}

/* ---- groups ---- */

#define LETTER 5.6 /* about the width of one, at the size of these labels */

/* The widest part of a span that no cut covers. */
static void widest_visible(const picture_t *p, uint64_t from, uint64_t to, double *x_out, double *width_out) {
    uint64_t at = from;
    *x_out = x_of(p, from);
    *width_out = 0;
    for (uint32_t i = 0; i <= p->axis.breaks; i++) {
        uint64_t end = i < p->axis.breaks && p->axis.quiet[i].from < to ? p->axis.quiet[i].from : to;
        if (end > at && x_of(p, end) - x_of(p, at) > *width_out) {
            *x_out = x_of(p, at);
            *width_out = x_of(p, end) - *x_out;
        }
        if (i < p->axis.breaks && p->axis.quiet[i].to > at) at = p->axis.quiet[i].to;
    }
}

/* Where a label of this width may begin, near x, so that no cut and no end of the picture is in it. */
static double beside_cuts(const picture_t *p, double x, double width) {
    if (x + width > WIDTH - RIGHT) x = WIDTH - RIGHT - width;
    for (uint32_t i = 0; i < p->axis.breaks; i++) {
        double from = x_of(p, p->axis.quiet[i].from), to = x_of(p, p->axis.quiet[i].to);
        if (x + width > from && x < to) x = from - width - 2.0;
    }
    return x;
}

/* free_x: where the next label may begin, of each row of labels. */
static void draw_call_label(picture_t *p, const timeline_call_t *k, double y, double free_x[LABEL_ROWS]) {
    char label[192];
    (void)snprintf(label, sizeof label, "%s%s", k->is_sync ? "sync" : k->what,
                   k->is_answered && k->status != MCPG_OK ? " refused" : "");
    double width = LETTER * (double)strlen(label), x = beside_cuts(p, x_of(p, k->from), width);
    for (uint32_t row = 0; row < LABEL_ROWS; row++) {
        if (x < free_x[row] || x < LEFT) continue;
        free_x[row] = x + width + 6.0;
        svg_text(&p->svg, x, y + 10.0 * row, SVG_START, "s", label);
        return;
    }
}

static void draw_view(picture_t *p, const timeline_view_t *v, double y) {
    double x = x_of(p, v->from), width = x_of(p, v->to) - x;
    char text[224], when[32], label[160];
    when_text(p, v->from, when, sizeof when);
    (void)snprintf(label, sizeof label, "@%" PRIu64 " n=%u %s", v->id.epoch, v->active, v->change);
    (void)snprintf(text, sizeof text, "epoch %" PRIu64 " from %s: %u ranks active %s", v->id.epoch, when, v->active,
                   v->change);
    svg_rect(&p->svg, x, y, width < 1.0 ? 1.0 : width, 20.0, v->id.epoch % 2u == 0 ? "view0" : "view1", text);
    svg_line(&p->svg, x, y, x, y + 20.0, "viewedge", NULL);
    double label_x, room;
    widest_visible(p, v->from, v->to, &label_x, &room);
    if (room < LETTER * (double)strlen(label) + 6.0) (void)snprintf(label, sizeof label, "@%" PRIu64, v->id.epoch);
    if (room > LETTER * (double)strlen(label) + 9.0)
        svg_text(&p->svg, label_x + 4.0, y + 14.0, SVG_START, "light", label);
}

static void draw_barrier(picture_t *p, const timeline_barrier_t *b, double y) {
    static const char *const words[] = {"is open", "is committed", "is aborted"};
    double x = x_of(p, b->from), width = x_of(p, b->to) - x;
    char text[128], took[32];
    timeline_time_text(b->to - b->from, 1, took, sizeof took);
    (void)snprintf(text, sizeof text, "PREPARE of epoch %" PRIu64 " %s after %s", b->id.epoch, words[b->outcome], took);
    svg_rect(&p->svg, x, y, width < 1.5 ? 1.5 : width, 8.0, b->outcome == TIMELINE_ABORTED ? "aborted" : "prepare",
             text);
}

static void draw_call(picture_t *p, const timeline_call_t *k, double y) {
    double x = x_of(p, k->from), width = x_of(p, k->to) - x;
    char text[320];
    const char *class_name = k->is_sync ? "sync" : "ok";
    if (!k->is_answered) class_name = "waiting";
    if (k->is_answered && k->status != MCPG_OK) class_name = "refused";
    (void)snprintf(text, sizeof text, "rank %u: %s %s: %s", k->rank, k->is_sync ? "sync_after_failure" : "propose",
                   k->what, k->is_answered ? mcpg_status_name((mcpg_status_t)k->status) : "no answer");
    svg_rect(&p->svg, x, y, width < 3.0 ? 3.0 : width, 6.0, class_name, text);
}

static void draw_groups(picture_t *p) {
    for (uint32_t i = 0; i < p->groups; i++) {
        const timeline_group_t *g = AT(p->t->groups, timeline_group_t, p->group_at[i]);
        svg_text(&p->svg, LEFT - 8.0, p->group_y[i] + 26.0, SVG_END, "b", g->name);
        svg_text(&p->svg, LEFT - 8.0, p->group_y[i] + 8.0, SVG_END, "s", "barrier");
        if (g->rows > 0) svg_text(&p->svg, LEFT - 8.0, p->group_y[i] + 41.0, SVG_END, "s", "calls");
    }
    for (uint32_t i = 0; i < p->t->views.count; i++) {
        const timeline_view_t *v = AT(p->t->views, timeline_view_t, i);
        int block = block_of(p, v->group);
        if (block >= 0) draw_view(p, v, p->group_y[block] + 12.0);
    }
    for (uint32_t i = 0; i < p->t->barriers.count; i++) {
        const timeline_barrier_t *b = AT(p->t->barriers, timeline_barrier_t, i);
        int block = block_of(p, b->group);
        if (block >= 0) draw_barrier(p, b, p->group_y[block] + 2.0);
    }
    double free_x[MAX_GROUPS][LABEL_ROWS] = {{0}};
    for (uint32_t i = 0; i < p->t->calls.count; i++) {
        const timeline_call_t *k = AT(p->t->calls, timeline_call_t, i);
        int block = block_of(p, k->group);
        if (block < 0 || k->row >= CALL_ROWS) continue;
        const timeline_group_t *g = AT(p->t->groups, timeline_group_t, k->group);
        double top = p->group_y[block] + 35.0;
        draw_call(p, k, top + 8.0 * k->row);
        if (k->row == 0)
            draw_call_label(p, k, top + 8.0 * (g->rows < CALL_ROWS ? g->rows : CALL_ROWS) + 8.0, free_x[block]);
    }
}

/* ---- legend ---- */

static void draw_legend(picture_t *p) {
    static const struct {
        const char *class_name, *text;
    } boxes[] = {{"healthy", "HEALTHY"},          {"synced", "SYNCED"},       {"offline", "OFFLINE"},
                 {"dead", "OFFLINE, dead"},       {"suspect", "suspect"},     {"prepare", "PREPARE to COMMIT"},
                 {"aborted", "aborted, refused"}, {"view0", "view (@epoch)"}, {"ok", "proposal"},
                 {"sync", "sync_after_failure"},  {"waiting", "no answer"}};
    double x = LEFT, y = p->bottom_y + 30.0;
    for (size_t i = 0; i < sizeof boxes / sizeof boxes[0]; i++) {
        svg_rect(&p->svg, x, y, 12.0, 10.0, boxes[i].class_name, NULL);
        svg_text(&p->svg, x + 16.0, y + 9.0, SVG_START, "t", boxes[i].text);
        x += 34.0 + 6.2 * (double)strlen(boxes[i].text);
    }
    x = LEFT;
    y += 20.0;
    svg_line(&p->svg, x, y - 1.0, x, y + 11.0, "link", NULL);
    svg_circle(&p->svg, x, y + 9.0, 2.5, "end", NULL);
    svg_text(&p->svg, x + 8.0, y + 9.0, SVG_START, "t", "link reported lost");
    x += 130.0;
    svg_line(&p->svg, x, y + 1.0, x + 8.0, y + 9.0, "x", NULL);
    svg_line(&p->svg, x, y + 9.0, x + 8.0, y + 1.0, "x", NULL);
    svg_text(&p->svg, x + 13.0, y + 9.0, SVG_START, "t", "process ended");
    x += 112.0;
    svg_circle(&p->svg, x + 4.0, y + 5.0, 3.0, "closed", NULL);
    svg_text(&p->svg, x + 13.0, y + 9.0, SVG_START, "t", "stream closed");
    x += 106.0;
    svg_rect(&p->svg, x + 1.0, y + 2.0, 6.0, 6.0, "closed", NULL);
    svg_text(&p->svg, x + 13.0, y + 9.0, SVG_START, "t", "goodbye");
    x += 78.0;
    char path[96];
    (void)snprintf(path, sizeof path, "M%.1f %.1f L%.1f %.1f L%.1f %.1f Z", x, y + 1.0, x + 5.0, y + 5.0, x, y + 9.0);
    svg_path(&p->svg, path, "new");
    svg_text(&p->svg, x + 10.0, y + 9.0, SVG_START, "t", "attached");
    if (p->groups < p->t->groups.count) {
        char text[80];
        (void)snprintf(text, sizeof text, "%u of %u groups are drawn", p->groups, p->t->groups.count);
        svg_text(&p->svg, WIDTH - RIGHT, y + 9.0, SVG_END, "t", text);
    }
}

bool timeline_draw(const timeline_t *timeline, const char *name, const char *problem, FILE *out) {
    picture_t *p = calloc(1, sizeof *p);
    if (p == NULL) return false;
    p->t = timeline;
    layout(p);
    svg_begin(&p->svg, out, WIDTH, p->height, style);
    draw_head(p, name, problem);
    draw_lane_labels(p);
    draw_ticks(p);
    draw_states(p);
    draw_suspects(p);
    draw_links(p);
    draw_marks(p);
    draw_groups(p);
    for (uint32_t i = 0; i < p->axis.breaks; i++) draw_cut(p, &p->axis.quiet[i]);
    draw_notes(p);
    draw_legend(p);
    bool ok = svg_end(&p->svg);
    free(p);
    return ok;
}
