/* pg_status.c: the context's state as one JSON object, for people and tools. Reads snapshots only; sends nothing, waits
 * for nobody. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/pg_internal.h"

typedef struct {
    char *buf;
    size_t cap, len; /* len: full length, also beyond cap */
} text_t;

static void add(text_t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(text_t *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    size_t room = t->len < t->cap ? t->cap - t->len : 0;
    int n = vsnprintf(room > 0 ? t->buf + t->len : NULL, room, fmt, args);
    va_end(args);
    if (n > 0) t->len += (size_t)n;
}

/* A JSON string. */
static void add_string(text_t *t, const char *s) {
    add(t, "\"");
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            add(t, "\\%c", c);
        } else if (c < 0x20) {
            add(t, "\\u%04x", c);
        } else {
            add(t, "%c", c);
        }
    }
    add(t, "\"");
}

static void add_ranks(text_t *t, const mcpg_context_t *context) {
    static const char *const names[] = {"OFFLINE", "SYNCED", "HEALTHY"};
    mcpg_rank_state_t states[MCPG_MAX_RANKS];
    uint32_t n = mcpg__agent_host_rank_states(context->agent, states, MCPG_MAX_RANKS);
    const char *comma = "";
    add(t, ",\"rank_states\":{");
    for (uint32_t r = 0; r < n; r++) {
        if (states[r] == MCPG_RANK_OFFLINE) continue;
        add(t, "%s\"%u\":\"%s\"", comma, r, (unsigned)states[r] <= MCPG_RANK_HEALTHY ? names[states[r]] : "?");
        comma = ",";
    }
    add(t, "}");
}

static void add_view(text_t *t, const mcpg_context_t *context, mcpg_gid_t gid, uint32_t slot, uint32_t capacity) {
    mcpg_view_t v;
    add(t, "{\"gid\":%u,\"slot\":%u,\"capacity\":%u", gid.v, slot, capacity);
    if (mcpg__agent_host_view(context->agent, gid, &v)) {
        const char *comma = "";
        add(t, ",\"term\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"active\":[", v.term, v.epoch);
        for (uint32_t s = 0; s < capacity; s++) {
            if (!v.active[s]) continue;
            add(t, "%s%u", comma, s);
            comma = ",";
        }
        add(t, "]");
    }
    add(t, "}");
}

typedef struct {
    mcpg_gid_t gid;
    uint32_t slot, capacity;
} group_key_t;

static void add_views(text_t *t, mcpg_context_t *context) {
    enum { MOST = 256 };
    group_key_t keys[MOST];
    uint32_t n = 0;
    pthread_mutex_lock(&context->groups_mu);
    for (const mcpg_group_t *g = context->groups; g != NULL && n < MOST; g = g->next)
        keys[n++] = (group_key_t){.gid = g->gid, .slot = g->slot, .capacity = g->capacity};
    pthread_mutex_unlock(&context->groups_mu);
    add(t, ",\"views\":[");
    for (uint32_t i = 0; i < n; i++) {
        add(t, "%s", i > 0 ? "," : "");
        add_view(t, context, keys[i].gid, keys[i].slot, keys[i].capacity);
    }
    add(t, "]");
}

size_t mcpg_context_status_json(mcpg_context_t *context, char *buf, size_t cap) {
    if (cap > 0) buf[0] = '\0';
    if (context == NULL || mcpg__forked()) return 0;
    char address[MCPG_ADDRESS_CAP];
    (void)mcpg_context_coordinator(context, address, sizeof(address));
    pthread_mutex_lock(&context->groups_mu);
    mcpg_incarnation_t inc = context->inc;
    pthread_mutex_unlock(&context->groups_mu);
    text_t t = {.buf = buf, .cap = cap};
    add(&t,
        "{\"version\":\"%s\",\"rank\":%u,\"incarnation\":{\"term\":%" PRIu64 ",\"counter\":%" PRIu64
        "},\"coordinator\":",
        mcpg_version(), context->rank, inc.term, inc.counter);
    add_string(&t, address);
    add(&t, ",\"connected\":%s,\"hosting\":%s", mcpg__agent_host_connected(context->agent) ? "true" : "false",
        context->bootstrap.hosted != NULL ? "true" : "false");
    add_ranks(&t, context);
    add_views(&t, context);
    add(&t, ",");
    size_t room = t.len < cap ? cap - t.len : 0;
    char none[1];
    t.len += mcpg__dp_status_json(context->dp, room > 0 ? buf + t.len : none, room);
    add(&t, "}");
    return t.len;
}
