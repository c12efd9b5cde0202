/* script_rebuild.c: what the script's agents know of their groups, and how they tell a new coordinator. Part of
 * script_world.c; it decides nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "script/script_world.h"

known_t *script_known(world_t *w, uint32_t rank, mcpg_gid_t gid) {
    return &w->actors[rank].known[SCRIPT_GROUP(gid)];
}

static void keep_members(mcpg_member_t *to, const mcpg_member_t *from, uint32_t count) {
    for (uint32_t i = 0; i < count && i < RANKS; i++) to[i] = from[i];
}

static void note_commit(known_t *k, const mcpg_down_commit_t *m) {
    if (mcpg__view_cmp(m->view.id, k->commit.view.id) < 0) return;
    k->has_commit = true;
    k->commit = *m;
    keep_members(k->active, m->view.active, m->view.active_count);
    for (uint32_t i = 0; i < m->leave_count; i++) k->leaves[i] = m->leaves[i];
    k->commit.view.active = k->active;
    k->commit.leaves = k->leaves;
    if (mcpg__view_cmp(k->acked, m->view.id) <= 0) k->acked = (mcpg_view_id_t){0, 0};
}

void script_known_note(world_t *w, uint32_t rank, const mcpg_down_msg_t *msg) {
    known_t *k;
    switch (msg->kind) {
    case MCPG_DOWN_REGISTERED:
        if (msg->u.registered.status != MCPG_OK) return;
        k = script_known(w, rank, msg->u.registered.gid);
        if (k->gid.v == msg->u.registered.gid.v && k->in) return;
        memset(k, 0, sizeof(*k));
        k->in = true;
        k->gid = msg->u.registered.gid;
        k->capacity = msg->u.registered.capacity;
        k->manual = msg->u.registered.manual;
        (void)snprintf(k->label, sizeof(k->label), "%s", w->declared_label);
        (void)snprintf(k->key, sizeof(k->key), "%s", w->declared_key);
        return;
    case MCPG_DOWN_MEMBERS:
        k = script_known(w, rank, msg->u.members.gid);
        k->order_count = msg->u.members.count;
        for (uint32_t i = 0; i < k->order_count && i < RANKS; i++) k->order[i] = msg->u.members.members[i].rank.v;
        return;
    case MCPG_DOWN_PREPARE:
        k = script_known(w, rank, msg->u.prepare.gid);
        k->prepared = msg->u.prepare.view.id;
        k->doubt_count = msg->u.prepare.view.active_count;
        keep_members(k->doubt, msg->u.prepare.view.active, k->doubt_count);
        return;
    case MCPG_DOWN_COMMIT:
        note_commit(script_known(w, rank, msg->u.commit.gid), &msg->u.commit);
        return;
    case MCPG_DOWN_ABORT:
        k = script_known(w, rank, msg->u.abort.gid);
        if (!mcpg__view_eq(k->acked, msg->u.abort.view)) return;
        k->acked = (mcpg_view_id_t){0, 0};
        k->aborted = msg->u.abort.view;
        return;
    case MCPG_DOWN_WELCOME:
    case MCPG_DOWN_REFUSED:
    case MCPG_DOWN_HEARTBEAT_REPLY:
    case MCPG_DOWN_RANK_STATES:
    case MCPG_DOWN_REPLY:
    case MCPG_DOWN_RECONCILED:
    case MCPG_DOWN_SYNCING:
    case MCPG_DOWN__COUNT:
        return;
    }
}

static mcpg_bytes_t text_bytes(const char *text) {
    return (mcpg_bytes_t){(const uint8_t *)text, (uint32_t)strlen(text)};
}

static void say_group(world_t *w, uint32_t rank, const known_t *k) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_REBUILD};
    bool doubts = k->acked.epoch != 0;
    msg.u.rebuild = (mcpg_up_rebuild_t){.gid = k->gid,
                                        .key = text_bytes(k->key),
                                        .label = text_bytes(k->label),
                                        .device_kind = text_bytes("cpu"),
                                        .order_count = k->order_count,
                                        .order = k->order,
                                        .capacity = k->capacity,
                                        .manual = k->manual,
                                        .awaiting = true,
                                        .acked = k->acked,
                                        .doubt_count = doubts ? k->doubt_count : 0,
                                        .doubt = k->doubt,
                                        .aborted = k->aborted,
                                        .next_seq = w->actors[rank].seq[SCRIPT_GROUP(k->gid)],
                                        .has_commit = k->has_commit,
                                        .commit = k->commit};
    script_say(w, rank, &msg);
}

/* report SET [except gN] [open]: everything that these know of their groups, then REBUILD_END unless `open`. */
void script_cmd_report(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    const char *word = script_word(&args);
    uint64_t except = 0;
    if (strcmp(word, "except") == 0) {
        const char *group = script_word(&args);
        except = strtoull(group + (group[0] == 'g' ? 1 : 0), NULL, 10);
        word = script_word(&args);
    }
    bool open = strcmp(word, "open") == 0;
    for (uint32_t r = mcpg__rankset_next(&who, 0); r < RANKS; r = mcpg__rankset_next(&who, r + 1)) {
        for (uint32_t g = 0; g < GROUPS; g++) {
            const known_t *k = &w->actors[r].known[g];
            if (k->in && k->gid.v != except && (k->has_commit || k->acked.epoch != 0)) say_group(w, r, k);
        }
        if (!open) script_say(w, r, &(mcpg_up_msg_t){.kind = MCPG_UP_REBUILD_END});
    }
}

/* coordinator [term N] [store] [settle D]: the present one is gone with all its streams, and another begins. */
void script_cmd_coordinator(world_t *w, char *args) {
    mcpg_coord_config_t config = w->config;
    config.term++;
    config.coordinator_id++;
    config.predecessor = true;
    config.timers.settle_us = 1200000;
    for (char *key = script_word(&args); *key != '\0'; key = script_word(&args)) {
        if (strcmp(key, "term") == 0) config.term = strtoull(script_word(&args), NULL, 10);
        if (strcmp(key, "store") == 0) config.has_store = true;
        if (strcmp(key, "settle") == 0) config.timers.settle_us = script_duration(script_word(&args));
        if (strcmp(key, "first") == 0) config.predecessor = false;
    }
    for (uint32_t r = 0; r < RANKS; r++) w->actors[r].conn = 0;
    w->queue_head = w->queue_tail;
    w->stopped = false;
    if (!script_world_machine(w, &config)) w->failed = true;
}
