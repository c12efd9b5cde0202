/* world_priv.h: what world.c (streams, processes, steps) and world_dp.c (data plane, calls, final checks) share; for
 * them only. */
#ifndef MCPG_TEST_WORLD_PRIV_H
#define MCPG_TEST_WORLD_PRIV_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/machines/world.h"

#define WORLD_WIRE_CAP 65536u
#define U(x)           ((unsigned long long)(x))

/* MSG: packed bytes behind it. EVENT: an agent event; its failed member, if any, behind it. */
typedef enum { ITEM_MSG, ITEM_CONNECTED, ITEM_DISCONNECTED, ITEM_CLOSED, ITEM_EVENT } item_kind_t;
struct item {
    item_t *next;
    item_kind_t kind;
    uint64_t conn;
    size_t len;
    mcpg_agent_event_t event;
    mcpg_member_t failed;
    uint8_t bytes[];
};

item_t *world_push(queue_t *queue, item_kind_t kind, uint64_t conn, const uint8_t *bytes, size_t len);
void world_push_event(node_t *node, const mcpg_agent_event_t *event);
void world_agent(world_t *w, node_t *node, mcpg_agent_event_t *event);
void world_fail(const world_t *w, const char *what, const char *why);
uint32_t world_index(const world_t *w, const node_t *node);
mcpg_incarnation_t world_inc(const node_t *node);

/* world_dp.c */
void dp_group(node_t *node, const mcpg_agent_dp_group_t *group);
void dp_gone(node_t *node, mcpg_gid_t gid);
void dp_hold(node_t *node, const mcpg_agent_dp_view_t *hold);
void dp_release(world_t *w, node_t *node, mcpg_gid_t gid);
void dp_install(world_t *w, node_t *node, const mcpg_down_commit_t *commit);
void dp_resolve(world_t *w, node_t *node, const mcpg_agent_dp_resolve_t *resolve);
void dp_call_done(world_t *w, const mcpg_agent_call_done_t *done);

#endif
