/* coord_fx.c: how the coordinator's files write effects and sentences.
 *
 * Everything goes into the caller's effect buffer; the worst case of one step is computed here and asserted by every
 * allocation. It must never decide anything and never touch the state.
 */
#include "coordinator/coord_state.h"

#define ALIGNED(size)        (((size) + 15u) & ~(size_t)15u)
#define ANSWER_BYTES         (ALIGNED(sizeof(mcpg_down_msg_t)) + ALIGNED(MCPG_TEXT_CAP))
#define SEND_BYTES           (ALIGNED(sizeof(mcpg_down_msg_t)) + ALIGNED(sizeof(mcpg_rankset_t)))
#define GROUP_UNITS_PER_STEP 24u
#define STATES_PER_STEP      6u
#define ANSWERS_PER_STEP     64u

static uint32_t states_parts(const mcpg_coord_config_t *config) {
    return (config->max_ranks + MCPG_STATES_PART - 1u) / MCPG_STATES_PART;
}

static size_t states_bytes(const mcpg_coord_config_t *config) {
    return states_parts(config) * (SEND_BYTES + 16u) + ALIGNED(config->max_ranks * sizeof(mcpg_rank_info_t));
}

/* The largest of MEMBERS, PREPARE, COMMIT. */
static size_t group_bytes(const mcpg_coord_config_t *config) {
    size_t commit = config->max_ranks * (sizeof(mcpg_member_t) + sizeof(mcpg_leave_t)) + 32u;
    size_t members = config->max_ranks * sizeof(mcpg_group_member_t) + 16u;
    return SEND_BYTES + ALIGNED(commit > members ? commit : members);
}

void mcpg_coord_effects_worst(const mcpg_coord_config_t *config, uint32_t *item_cap_out, size_t *arena_cap_out) {
    *item_cap_out =
        config->max_ranks + STATES_PER_STEP * states_parts(config) + GROUP_UNITS_PER_STEP + ANSWERS_PER_STEP + 16u;
    *arena_cap_out = STATES_PER_STEP * states_bytes(config) + GROUP_UNITS_PER_STEP * group_bytes(config) +
                     (ANSWERS_PER_STEP + 16u) * ANSWER_BYTES;
}

/* Every connection may have to be closed in any step, and ARM_TIMER and STOP come last: their items are never given
 * away. */
static bool room(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx, uint32_t items, size_t bytes) {
    return fx->cap - fx->count >= items + c->config.max_ranks + 4u && fx->arena_cap - fx->arena_used >= bytes + 16u;
}

bool mcpg__fx_room_group(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx, uint32_t units) {
    return room(c, fx, units, units * group_bytes(&c->config));
}
bool mcpg__fx_room_states(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx) {
    return room(c, fx, states_parts(&c->config), states_bytes(&c->config));
}
bool mcpg__fx_room_answer(const mcpg_coord_t *c, const mcpg_coord_effects_t *fx) {
    return room(c, fx, 1u, ANSWER_BYTES);
}

void *mcpg__fx_alloc(mcpg_coord_effects_t *fx, size_t size) {
    return mcpg__fx_take(fx->arena, &fx->arena_used, fx->arena_cap, size);
}

static mcpg_coord_effect_t *next_item(mcpg_coord_effects_t *fx, mcpg_coord_fx_kind_t kind) {
    MCPG_ASSERT(fx->count < fx->cap);
    mcpg_coord_effect_t *item = &fx->items[fx->count++];
    memset(item, 0, sizeof(*item));
    item->kind = kind;
    return item;
}

static mcpg_down_msg_t *next_msg(mcpg_coord_effects_t *fx, mcpg_down_kind_t kind) {
    mcpg_down_msg_t *msg = (mcpg_down_msg_t *)mcpg__fx_alloc(fx, sizeof(*msg));
    memset(msg, 0, sizeof(*msg));
    msg->kind = kind;
    return msg;
}

mcpg_bytes_t mcpg__fx_text(mcpg_coord_effects_t *fx, const char *text, uint32_t len) {
    if (len == 0) return (mcpg_bytes_t){NULL, 0};
    uint8_t *copy = (uint8_t *)mcpg__fx_alloc(fx, len);
    memcpy(copy, text, len);
    return (mcpg_bytes_t){copy, len};
}

mcpg_down_msg_t *mcpg__fx_send(mcpg_coord_effects_t *fx, const mcpg_rankset_t *to, mcpg_down_kind_t kind) {
    mcpg_rankset_t *copy = (mcpg_rankset_t *)mcpg__fx_alloc(fx, sizeof(*copy));
    *copy = *to;
    mcpg_down_msg_t *msg = next_msg(fx, kind);
    mcpg_coord_effect_t *item = next_item(fx, MCPG_COORD_FX_SEND);
    item->to = copy;
    item->msg = msg;
    return msg;
}

mcpg_down_msg_t *mcpg__fx_answer(mcpg_coord_effects_t *fx, uint64_t conn, mcpg_down_kind_t kind) {
    mcpg_down_msg_t *msg = next_msg(fx, kind);
    mcpg_coord_effect_t *item = next_item(fx, MCPG_COORD_FX_SEND_CONN);
    item->conn = conn;
    item->msg = msg;
    return msg;
}

mcpg_group_record_t *mcpg__fx_record(mcpg_coord_effects_t *fx, mcpg_coord_fx_kind_t kind, mcpg_gid_t gid) {
    mcpg_group_record_t *record = (mcpg_group_record_t *)mcpg__fx_alloc(fx, sizeof(*record));
    memset(record, 0, sizeof(*record));
    mcpg_coord_effect_t *item = next_item(fx, kind);
    item->gid = gid;
    item->record = record;
    return record;
}

void mcpg__fx_close(mcpg_coord_effects_t *fx, uint64_t conn) {
    next_item(fx, MCPG_COORD_FX_CLOSE_CONN)->conn = conn;
}
void mcpg__fx_arm(mcpg_coord_effects_t *fx, uint64_t at_us) {
    next_item(fx, MCPG_COORD_FX_ARM_TIMER)->at.us = at_us;
}
void mcpg__fx_stop(mcpg_coord_effects_t *fx) {
    (void)next_item(fx, MCPG_COORD_FX_STOP);
}

void mcpg__fx_refuse_call(mcpg_coord_effects_t *fx, uint64_t conn, uint64_t call_id, mcpg_status_t status,
                          uint64_t epoch, const mcpg_coord_text_t *text) {
    mcpg_down_reply_t *reply = &mcpg__fx_answer(fx, conn, MCPG_DOWN_REPLY)->u.reply;
    reply->call_id = call_id;
    reply->status = status;
    reply->epoch = epoch;
    reply->text = mcpg__fx_text(fx, text->buf, text->len);
}

/* ---- sentences: cut at the cap, never NUL-terminated ---- */

void mcpg__coord_say_bytes(mcpg_coord_text_t *text, const uint8_t *bytes, uint32_t len) {
    uint32_t left = MCPG_TEXT_CAP - 1u - text->len;
    if (len > left) len = left;
    if (len > 0) memcpy(text->buf + text->len, bytes, len);
    text->len += len;
}

void mcpg__coord_say(mcpg_coord_text_t *text, const char *words) {
    mcpg__coord_say_bytes(text, (const uint8_t *)words, (uint32_t)strlen(words));
}

void mcpg__coord_say_u64(mcpg_coord_text_t *text, uint64_t value) {
    uint8_t digits[20];
    uint32_t at = sizeof(digits);
    do {
        digits[--at] = (uint8_t)('0' + value % 10u);
        value /= 10u;
    } while (value != 0);
    mcpg__coord_say_bytes(text, digits + at, (uint32_t)sizeof(digits) - at);
}

void mcpg__coord_say_rank(mcpg_coord_text_t *text, const mcpg_coord_t *c, uint32_t rank) {
    static const char *const names[] = {"OFFLINE", "SYNCED", "HEALTHY"};
    const mcpg_coord_rank_t *r = &c->ranks[rank];
    mcpg__coord_say(text, "rank ");
    mcpg__coord_say_u64(text, rank);
    mcpg__coord_say(text, " is ");
    mcpg__coord_say(text, names[r->state]);
    if (!r->known)
        mcpg__coord_say(text, " (never attached)");
    else if (r->left)
        mcpg__coord_say(text, " (its process has ended)");
    else if (r->dead)
        mcpg__coord_say(text, " (its process is dead)");
}
