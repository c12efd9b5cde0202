/* sim_world.c: virtual time: the heap of what is to come, hosts' clocks, the running hash, and failures.
 *
 * Events of one time come in the order in which they were made. It must never know what an event means.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/pure.h"
#include "sim/sim.h"

const char *sim_fault_name(sim_fault_kind_t kind) {
    static const char *const names[] = {
#define X(NAME, text) text,
        SIM_FAULTS(X)
#undef X
    };
    return (unsigned)kind < SIM_F__COUNT ? names[kind] : "?";
}

void sim_fail(sim_t *w, const char *id, const char *format, ...) {
    if (w->failed) return; /* the first one is what counts */
    w->failed = true;
    w->result->failed = true;
    w->result->failed_at_us = w->now;
    snprintf(w->result->id, sizeof(w->result->id), "%s", id);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(w->result->text, sizeof(w->result->text), format, args);
    va_end(args);
    if (w->options.out != NULL)
        fprintf(w->options.out, "%12llu FAILED %s: %s\n", U(w->now), w->result->id, w->result->text);
}

void sim_trace(const sim_t *w, const char *format, ...) {
    if (!w->options.trace || w->options.out == NULL) return;
    fprintf(w->options.out, "%12llu ", U(w->now));
    va_list args;
    va_start(args, format);
    (void)vfprintf(w->options.out, format, args);
    va_end(args);
    fputc('\n', w->options.out);
}

void sim_mix(sim_t *w, uint64_t value) {
    w->hash = mcpg__digest_u64(w->hash, value);
}

void *sim_zalloc(size_t size) {
    void *room = calloc(1, size);
    if (room == NULL) abort();
    return room;
}

void sim_grow(void **array, uint32_t *cap, uint32_t count, size_t item) {
    if (count < *cap) return;
    uint32_t wanted = *cap == 0 ? 64u : *cap * 2u;
    void *room = realloc(*array, (size_t)wanted * item);
    if (room == NULL) abort();
    memset((uint8_t *)room + (size_t)*cap * item, 0, (size_t)(wanted - *cap) * item);
    *array = room;
    *cap = wanted;
}

/* ---- heap ---- */

static bool before(const sim_event_t *a, const sim_event_t *b) {
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

void sim_at(sim_t *w, uint64_t at, sim_ev_kind_t kind, uint32_t a, uint32_t b, uint64_t c) {
    sim_grow((void **)&w->heap, &w->heap_cap, w->heap_count, sizeof(*w->heap));
    sim_event_t e = {.at = at < w->now ? w->now : at, .seq = ++w->seq, .kind = (uint16_t)kind, .a = a, .b = b, .c = c};
    uint32_t i = w->heap_count++;
    while (i > 0) {
        uint32_t parent = (i - 1u) / 2u;
        if (!before(&e, &w->heap[parent])) break;
        w->heap[i] = w->heap[parent];
        i = parent;
    }
    w->heap[i] = e;
}

bool sim_pop(sim_t *w, sim_event_t *out) {
    if (w->heap_count == 0) return false;
    *out = w->heap[0];
    sim_event_t last = w->heap[--w->heap_count];
    uint32_t i = 0, n = w->heap_count;
    for (;;) { /* bounded: one level each turn */
        uint32_t child = 2u * i + 1u;
        if (child >= n) break;
        if (child + 1u < n && before(&w->heap[child + 1u], &w->heap[child])) child++;
        if (!before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    if (n > 0) w->heap[i] = last;
    return true;
}

/* ---- clocks ---- */

void sim_clock_init(sim_clock_t *clock, uint64_t now, uint64_t local_us, uint64_t rate_ppm) {
    *clock = (sim_clock_t){.base_us = now, .local_us = local_us, .rate_ppm = rate_ppm};
}

uint64_t sim_local_time(const sim_clock_t *clock, uint64_t now) {
    uint64_t passed = now > clock->base_us ? now - clock->base_us : 0;
    if (clock->rate_ppm == SIM_SECOND) return clock->local_us + passed;
    return clock->local_us + (uint64_t)((unsigned __int128)passed * clock->rate_ppm / SIM_SECOND);
}

uint64_t sim_true_time(const sim_clock_t *clock, uint64_t local_us) {
    if (local_us == SIM_NEVER) return SIM_NEVER;
    if (local_us <= clock->local_us) return clock->base_us;
    uint64_t wanted = local_us - clock->local_us;
    if (wanted > UINT64_MAX / 4u) return SIM_NEVER;
    if (clock->rate_ppm == SIM_SECOND) return clock->base_us + wanted;
    uint64_t at = (uint64_t)(((unsigned __int128)wanted * SIM_SECOND + clock->rate_ppm - 1u) / clock->rate_ppm);
    return clock->base_us + at;
}

/* A host that was suspended sees its clock jump; a monotonic clock never goes back. */
void sim_clock_jump(sim_clock_t *clock, uint64_t now, uint64_t by_us) {
    uint64_t local = sim_local_time(clock, now);
    clock->base_us = now;
    clock->local_us = local + by_us;
}
