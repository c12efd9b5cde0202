/* timeline_axis.c: see timeline.h: which stretches are quiet, where a moment lies, which ticks to draw. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/timeline.h"

#define BREAK_SHARE 10u /* a gap of more than a tenth of what is drawn is cut out, */
#define BREAK_RATIO 6u  /* if it is also so many times the usual gap */
#define PAD_SHARE   60u /* of what is drawn stays at both ends of a cut */

static int by_time(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

typedef struct {
    uint64_t *us;
    uint32_t count, cap;
} moments_t;

static void moment(moments_t *m, uint64_t us) {
    if (m->count == m->cap) {
        uint32_t cap = m->cap == 0 ? 1024u : m->cap * 2u;
        uint64_t *grown = realloc(m->us, cap * sizeof *grown);
        if (grown == NULL) return;
        m->us = grown;
        m->cap = cap;
    }
    m->us[m->count++] = us;
}

/* Every moment at which something is seen to happen, sorted. */
static moments_t moments_of(const timeline_t *t) {
    moments_t m = {0};
    moment(&m, t->start);
    moment(&m, t->end);
#define BOTH(list, type)                                                                                               \
    for (uint32_t i = 0; i < t->list.count; i++) {                                                                     \
        moment(&m, ((const type *)t->list.items)[i].from);                                                             \
        moment(&m, ((const type *)t->list.items)[i].to);                                                               \
    }
#define ONE(list, type)                                                                                                \
    for (uint32_t i = 0; i < t->list.count; i++) moment(&m, ((const type *)t->list.items)[i].at);
    BOTH(states, timeline_state_t)
    BOTH(suspects, timeline_suspect_t)
    BOTH(views, timeline_view_t)
    BOTH(barriers, timeline_barrier_t)
    BOTH(calls, timeline_call_t)
    ONE(marks, timeline_mark_t)
    ONE(links, timeline_link_t)
    ONE(notes, timeline_note_t)
#undef BOTH
#undef ONE
    if (m.count > 0) qsort(m.us, m.count, sizeof *m.us, by_time);
    return m;
}

static int by_length(const void *a, const void *b) {
    const timeline_stretch_t *x = a, *y = b;
    uint64_t p = x->to - x->from, q = y->to - y->from;
    return p > q ? -1 : p < q;
}

static int by_start(const void *a, const void *b) {
    return by_time(&((const timeline_stretch_t *)a)->from, &((const timeline_stretch_t *)b)->from);
}

/* Cuts the longest gaps out, the longest first, as long as they dwarf the rest. */
static void find_quiet(timeline_axis_t *axis, timeline_stretch_t *gaps, uint32_t count) {
    qsort(gaps, count, sizeof *gaps, by_length);
    uint64_t shown = axis->end - axis->start;
    uint32_t n = 0;
    while (n < count && n < TIMELINE_BREAKS) {
        uint64_t gap = gaps[n].to - gaps[n].from, rest = shown - gap;
        uint64_t usual = rest / (count - n);
        if (gap < shown / BREAK_SHARE || gap < usual * BREAK_RATIO || gap < 1000u || rest < 100u) break;
        axis->quiet[n] = gaps[n];
        n++;
        shown = rest;
    }
    uint64_t pad = shown / PAD_SHARE + 1u;
    for (uint32_t i = 0; i < n; i++) {
        timeline_stretch_t *q = &axis->quiet[i];
        if (q->to - q->from <= 4u * pad) pad = (q->to - q->from) / 5u;
    }
    for (uint32_t i = 0; i < n; i++) {
        axis->quiet[i].from += pad;
        axis->quiet[i].to -= pad;
    }
    axis->breaks = n;
    if (n > 0) qsort(axis->quiet, n, sizeof axis->quiet[0], by_start);
}

void timeline_axis_make(const timeline_t *t, double x0, double width, timeline_axis_t *out) {
    *out = (timeline_axis_t){
        .start = t->start, .end = t->end > t->start ? t->end : t->start + 1u, .x0 = x0, .width = width};
    moments_t m = moments_of(t);
    timeline_stretch_t *gaps = malloc((m.count + 1u) * sizeof *gaps);
    uint32_t count = 0;
    for (uint32_t i = 1; gaps != NULL && i < m.count; i++)
        if (m.us[i] > m.us[i - 1]) gaps[count++] = (timeline_stretch_t){m.us[i - 1], m.us[i]};
    if (count > 0) find_quiet(out, gaps, count);
    free(gaps);
    free(m.us);
    uint64_t shown = out->end - out->start;
    for (uint32_t i = 0; i < out->breaks; i++) shown -= out->quiet[i].to - out->quiet[i].from;
    out->per_us = (width - TIMELINE_BREAK_WIDTH * out->breaks) / (double)(shown > 0 ? shown : 1u);
}

double timeline_x(const timeline_axis_t *axis, uint64_t us) {
    if (us < axis->start) us = axis->start;
    if (us > axis->end) us = axis->end;
    double cut_px = 0;
    uint64_t cut_us = 0;
    for (uint32_t i = 0; i < axis->breaks && us > axis->quiet[i].from; i++) {
        const timeline_stretch_t *q = &axis->quiet[i];
        uint64_t length = q->to - q->from, into = us < q->to ? us - q->from : length;
        cut_us += into;
        cut_px += TIMELINE_BREAK_WIDTH * ((double)into / (double)length);
    }
    return axis->x0 + (double)(us - axis->start - cut_us) * axis->per_us + cut_px;
}

uint64_t timeline_tick_us(const timeline_axis_t *axis) {
    static const uint64_t factors[] = {1, 2, 5};
    double least = 90.0 / axis->per_us;
    for (uint64_t power = 1; power < UINT64_MAX / 100u; power *= 10u)
        for (uint32_t i = 0; i < 3; i++)
            if ((double)(power * factors[i]) >= least) return power * factors[i];
    return UINT64_MAX;
}

void timeline_time_text(uint64_t us, uint64_t step_us, char *buf, size_t cap) {
    uint64_t unit = 1;
    const char *name = "us";
    if (us >= 1000000u || step_us >= 1000000u) {
        unit = 1000000u;
        name = "s";
    } else if (us >= 1000u || step_us >= 1000u) {
        unit = 1000u;
        name = "ms";
    }
    int digits = 0;
    for (uint64_t u = unit; u > step_us && u > 1; u /= 10u) digits++;
    if (us == 0)
        (void)snprintf(buf, cap, "0");
    else
        (void)snprintf(buf, cap, "%.*f %s", digits, (double)us / (double)unit, name);
}
