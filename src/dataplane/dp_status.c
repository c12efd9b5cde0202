/* dp_status.c: what `status` shows of the data plane, as JSON members. Reads only. */
#include <stdarg.h>
#include <stdio.h>

#include "dataplane/coll.h"

typedef struct {
    char *buf;
    size_t cap, len;
} text_t;

static void __attribute__((format(printf, 2, 3))) add(text_t *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const size_t room = t->len < t->cap ? t->cap - t->len : 0;
    const int n = vsnprintf(room != 0 ? t->buf + t->len : NULL, room, fmt, args);
    va_end(args);
    if (n > 0) t->len += (size_t)n;
}

static void add_group(text_t *t, const mcpg_dpgroup_t *g, bool first) {
    const mcpg_view_id_t none = {0, 0}, id = g->newest == NULL ? none : g->newest->id;
    add(t,
        "%s{\"gid\":%u,\"slot\":%u,\"capacity\":%u,\"isolated\":%s,\"held\":%s,\"fenced\":%s,\"term\":%llu,\"epoch\":%"
        "llu,",
        first ? "" : ",", g->gid.v, g->slot.v, g->capacity, g->isolated ? "true" : "false",
        mcpg__group_held(g) ? "true" : "false", g->fenced ? "true" : "false", (unsigned long long)id.term,
        (unsigned long long)id.epoch);
    add(t, "\"next_seq\":%llu,\"outstanding\":%u,\"running\":%u,\"active\":[", (unsigned long long)mcpg__group_next(g),
        g->outstanding, g->running);
    for (uint32_t i = 0; g->newest != NULL && i < g->newest->count; i++)
        add(t, "%s%u", i == 0 ? "" : ",", g->newest->m[i].slot.v);
    add(t, "]}");
}

size_t mcpg__dp_status_json(mcpg_dp_t *dp, char *buf, size_t cap) {
    text_t t = {buf, cap, 0};
    add(&t, "\"links\":");
    t.len += mcpg__engine_links_json(dp->engine, t.len < cap ? buf + t.len : NULL, t.len < cap ? cap - t.len : 0);
    mcpg__engine_lock(dp->engine); /* after the links: they take the lock themselves */
    add(&t, ",\"groups\":[");
    bool first = true;
    for (uint32_t b = 0; b < MCPG_GROUP_BUCKETS; b++) {
        for (const mcpg_dpgroup_t *g = dp->buckets[b]; g != NULL; g = g->next) {
            add_group(&t, g, first);
            first = false;
        }
    }
    add(&t, "]");
    mcpg__dp_unlock(dp);
    return t.len;
}
