/* coord_register.c: REGISTER: which group a declaration means, and what the process becomes in it.
 *
 * A group is named by its key, else by device kind, order and capacity; the label only tells apart what two
 * declarations of one process mean. A process that has left a generation never gets back into it: the next one is made
 * or found. It must never change a view.
 */
#include "coordinator/coord_state.h"

typedef enum { ORDER_OTHER = 0, ORDER_EXACT, ORDER_EXTENDS } order_relation_t;
/* What a search of the table found. */
typedef struct {
    mcpg_coord_group_t *group;
    order_relation_t relation;
    bool lives, by_label, ambiguous;
    mcpg_coord_group_t *mismatch; /* same key or label, another declaration */
} match_t;

static bool same_bytes(const uint8_t *a, uint32_t a_len, mcpg_bytes_t b) {
    return a_len == b.len && (a_len == 0 || memcmp(a, b.ptr, a_len) == 0);
}

static order_relation_t relation_of(const mcpg_coord_t *c, const mcpg_coord_group_t *g, const mcpg_up_register_t *m) {
    uint32_t common = m->order_count < g->order_count ? m->order_count : g->order_count;
    for (uint32_t i = 0; i < common; i++)
        if (mcpg__coord_slot(c, g, i)->rank.v != m->order[i]) return ORDER_OTHER;
    if (m->capacity != g->capacity) return ORDER_OTHER;
    if (m->order_count > g->order_count) return m->is_extension ? ORDER_EXTENDS : ORDER_OTHER;
    if (m->order_count == g->order_count || m->order_count == g->founder_count || m->is_extension) return ORDER_EXACT;
    return ORDER_OTHER;
}

/* Why this process cannot mean g although the declaration fits: it left this generation, or the generation is over. */
static bool passed_by(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t rank, const mcpg_up_register_t *m) {
    if (g->phase == MCPG_COORD_GROUP_READY && mcpg__rankset_empty(&g->active)) return true;
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    if (slot == MCPG_COORD_NONE) return false;
    const mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    if (mcpg__inc_none(s->left)) return false;
    return mcpg__inc_eq(s->left, c->ranks[rank].inc) || !m->is_extension;
}

static bool is_registered_here(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t rank) {
    uint32_t slot = mcpg__coord_slot_of(c, g, rank);
    return slot != MCPG_COORD_NONE && mcpg__coord_registered(c, g, slot);
}

/* A generation in which somebody is at work: who extends means this one. */
static bool is_at_work(const mcpg_coord_t *c, const mcpg_coord_group_t *g) {
    for (uint32_t s = mcpg__rankset_next(&g->active, 0); s < g->order_count; s = mcpg__rankset_next(&g->active, s + 1))
        if (mcpg__coord_active_live(c, g, s)) return true;
    return false;
}

/* Takes g if it is the better match: for an extension one that is at work, then an exact order, then the same label,
 * then the newer generation. */
static void consider(match_t *best, mcpg_coord_group_t *g, order_relation_t relation, bool lives, bool by_label) {
    mcpg_coord_group_t *old = best->group;
    bool wins = old == NULL || (lives && !best->lives);
    bool loses = old != NULL && !lives && best->lives;
    if (!wins && !loses) {
        wins = relation == ORDER_EXACT && best->relation != ORDER_EXACT;
        loses = relation != ORDER_EXACT && best->relation == ORDER_EXACT;
    }
    if (!wins && !loses && by_label != best->by_label) {
        wins = by_label;
        loses = !by_label;
    }
    if (loses) return;
    if (wins) {
        *best = (match_t){
            .group = g, .relation = relation, .lives = lives, .by_label = by_label, .mismatch = best->mismatch};
        return;
    }
    bool same_name = old->label_len == g->label_len && memcmp(old->label, g->label, g->label_len) == 0;
    if (!same_name || old->order_count != g->order_count) best->ambiguous = true;
    if (g->created > old->created) best->group = g;
}

static match_t find_match(const mcpg_coord_t *c, uint32_t rank, const mcpg_up_register_t *m) {
    match_t best = {.group = NULL};
    for (uint32_t i = 0; i < c->group_high; i++) {
        mcpg_coord_group_t *g = &c->groups[i];
        if (g->phase == MCPG_COORD_GROUP_FREE || !same_bytes(g->kind, g->kind_len, m->device_kind)) continue;
        bool unborn = g->rebuild != MCPG_COORD_REBUILD_NONE && g->phase == MCPG_COORD_GROUP_FORMING;
        if (unborn || passed_by(c, g, rank, m)) continue;
        order_relation_t relation = relation_of(c, g, m);
        bool same_key = same_bytes(g->key, g->key_len, m->key);
        bool labelled = m->label.len > 0 && g->label_len > 0;
        bool same_label = labelled && same_bytes(g->label, g->label_len, m->label);
        if (!same_key || relation == ORDER_OTHER) {
            if ((same_key && g->key_len > 0) || same_label) best.mismatch = g;
            continue;
        }
        bool here = is_registered_here(c, g, rank);
        if (g->key_len == 0 && labelled && !same_label && (here || !m->is_extension)) continue;
        if (here) return (match_t){.group = g, .relation = ORDER_EXACT, .by_label = same_label};
        consider(&best, g, relation, m->is_extension && is_at_work(c, g), same_label);
    }
    return best;
}

/* ---- answers ---- */

static void say_declaration(mcpg_coord_text_t *text, uint32_t count, uint32_t capacity, bool manual,
                            bool no_auto_sync) {
    mcpg__coord_say_u64(text, count);
    mcpg__coord_say(text, count == 1 ? " rank, capacity " : " ranks, capacity ");
    mcpg__coord_say_u64(text, capacity);
    mcpg__coord_say(text, manual ? ", manual" : ", auto");
    if (no_auto_sync) mcpg__coord_say(text, ", no auto sync");
}

static void refuse(mcpg_coord_effects_t *fx, uint64_t conn, const mcpg_up_register_t *m, mcpg_status_t status,
                   const mcpg_coord_text_t *text) {
    mcpg_down_registered_t *reply = &mcpg__fx_answer(fx, conn, MCPG_DOWN_REGISTERED)->u.registered;
    reply->call_id = m->call_id;
    reply->status = status;
    reply->text = mcpg__fx_text(fx, text->buf, text->len);
}

static void refuse_words(mcpg_coord_effects_t *fx, uint64_t conn, const mcpg_up_register_t *m, mcpg_status_t status,
                         const char *words) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg__coord_say(&text, words);
    refuse(fx, conn, m, status, &text);
}

static void refuse_mismatch(const mcpg_coord_t *c, mcpg_coord_effects_t *fx, uint64_t conn, const mcpg_up_register_t *m,
                            const mcpg_coord_group_t *g) {
    mcpg_coord_text_t text = {.len = 0};
    mcpg__coord_say(&text, "this rank declares ");
    say_declaration(&text, m->order_count, m->capacity, m->manual, m->no_auto_sync);
    mcpg__coord_say(&text, "; group ");
    mcpg__coord_say_u64(&text, g->gid.v);
    mcpg__coord_say(&text, " was declared with ");
    say_declaration(&text, g->order_count, g->capacity, g->manual, g->no_auto_sync);
    for (uint32_t i = 0; i < m->order_count && i < g->order_count; i++) {
        uint32_t theirs = mcpg__coord_slot(c, g, i)->rank.v;
        if (theirs == m->order[i]) continue;
        mcpg__coord_say(&text, ", and slot ");
        mcpg__coord_say_u64(&text, i);
        mcpg__coord_say(&text, " is rank ");
        mcpg__coord_say_u64(&text, m->order[i]);
        mcpg__coord_say(&text, " here, rank ");
        mcpg__coord_say_u64(&text, theirs);
        mcpg__coord_say(&text, " there");
        break;
    }
    mcpg__coord_say(&text, ": pass the same values on all ranks");
    refuse(fx, conn, m, MCPG_WORLD_MISMATCH, &text);
}

static bool declaration_bad(const mcpg_coord_t *c, uint32_t rank, const mcpg_up_register_t *m,
                            mcpg_coord_text_t *text) {
    mcpg_rankset_t seen;
    mcpg__rankset_clear(&seen);
    if (m->key.len > MCPG_KEY_CAP || m->label.len > MCPG_KEY_CAP || m->device_kind.len > MCPG_KEY_CAP)
        mcpg__coord_say(text, "group_key, label or device kind is longer than 128 bytes: shorten it");
    else if (m->order_count == 0 || m->order_count > m->capacity || m->capacity > MCPG_MAX_RANKS)
        mcpg__coord_say(text, "the order needs 1 to capacity ranks and the capacity at most 1024: correct them");
    for (uint32_t i = 0; i < m->order_count && text->len == 0; i++) {
        if (m->order[i] >= c->config.max_ranks || mcpg__rankset_has(&seen, m->order[i])) {
            mcpg__coord_say(text, "the order names rank ");
            mcpg__coord_say_u64(text, m->order[i]);
            mcpg__coord_say(text, ", which is above the limit of ranks or named twice: correct it");
        } else {
            mcpg__rankset_add(&seen, m->order[i]);
        }
    }
    if (text->len == 0 && !mcpg__rankset_has(&seen, rank)) {
        mcpg__coord_say(text, "the order does not contain this process's rank ");
        mcpg__coord_say_u64(text, rank);
        mcpg__coord_say(text, ": only members create a group");
    }
    return text->len > 0;
}

/* ---- registering ---- */

static void keep_bytes(uint8_t *to, uint32_t *len, mcpg_bytes_t from) {
    if (from.len > 0) memcpy(to, from.ptr, from.len);
    *len = from.len;
}

static mcpg_coord_group_t *found_group(mcpg_coord_t *c, const mcpg_up_register_t *m) {
    mcpg_coord_group_t *g = mcpg__coord_group_new(c, m->capacity, (mcpg_gid_t){0});
    if (g == NULL) return NULL;
    keep_bytes(g->key, &g->key_len, m->key);
    keep_bytes(g->label, &g->label_len, m->label);
    keep_bytes(g->kind, &g->kind_len, m->device_kind);
    g->manual = m->manual;
    g->no_auto_sync = m->no_auto_sync;
    g->founder_count = m->order_count;
    return g;
}

static void grow_order(mcpg_coord_t *c, mcpg_coord_group_t *g, const mcpg_up_register_t *m) {
    for (uint32_t i = g->order_count; i < m->order_count; i++) {
        mcpg__coord_slot(c, g, i)->rank.v = m->order[i];
        mcpg__rankset_add(&g->ranks, m->order[i]);
    }
    if (m->order_count > g->order_count) g->order_count = m->order_count;
}

static void take_slot(mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t rank, uint32_t slot) {
    mcpg_coord_slot_t *s = mcpg__coord_slot(c, g, slot);
    if (mcpg__coord_registered(c, g, slot)) return; /* asked again */
    s->reg = c->ranks[rank].inc;
    s->left = (mcpg_incarnation_t){0, 0};
    s->commit_acked = 0;
    s->sync_call = 0;
    s->abort_view = (mcpg_view_id_t){0, 0};
    mcpg__rankset_del(&g->awaiting, slot);
    mcpg__rankset_del(&g->joined, slot);
    if (g->phase == MCPG_COORD_GROUP_FORMING && slot < g->founder_count) mcpg__rankset_add(&g->awaiting, slot);
    mcpg__coord_members_changed(g);
}

static void answer_registered(const mcpg_coord_t *c, mcpg_coord_group_t *g, uint32_t rank, uint32_t slot,
                              const mcpg_up_register_t *m, mcpg_coord_effects_t *fx) {
    bool founder = g->phase == MCPG_COORD_GROUP_FORMING && slot < g->founder_count;
    mcpg_down_registered_t *reply = &mcpg__fx_answer(fx, c->conns[rank], MCPG_DOWN_REGISTERED)->u.registered;
    reply->call_id = m->call_id;
    reply->status = MCPG_OK;
    reply->gid = g->gid;
    reply->slot.v = slot;
    reply->capacity = g->capacity;
    reply->isolated = !founder && !mcpg__coord_active_live(c, g, slot);
    reply->manual = g->manual;
    reply->no_auto_sync = g->no_auto_sync;
    mcpg__rankset_add(&g->resync, slot);
    mcpg__coord_touch(g);
}

/* A Ready group takes a process only in place of one that is gone, and only one that says so. */
static bool needs_extension(const mcpg_coord_t *c, const mcpg_coord_group_t *g, uint32_t slot,
                            const mcpg_up_register_t *m) {
    return g->phase == MCPG_COORD_GROUP_READY && !m->is_extension && !mcpg__coord_registered(c, g, slot);
}

void mcpg__coord_register(mcpg_coord_t *c, uint32_t rank, const mcpg_up_register_t *m, mcpg_coord_effects_t *fx) {
    uint64_t conn = c->conns[rank];
    mcpg_coord_text_t text = {.len = 0};
    if (c->shutting) { /* I9 */
        refuse_words(fx, conn, m, MCPG_SHUTTING_DOWN, "the coordinator is shutting down: create no new groups");
        return;
    }
    if (mcpg__coord_rebuilding(c)) { /* it may mean a group that is still to be reported */
        mcpg__coord_say_gathering(&text);
        refuse(fx, conn, m, MCPG_UNAVAILABLE, &text);
        return;
    }
    if (declaration_bad(c, rank, m, &text)) {
        refuse(fx, conn, m, MCPG_INVALID_ARGUMENT, &text);
        return;
    }
    match_t match = find_match(c, rank, m);
    mcpg_coord_group_t *g = match.group;
    if (g == NULL && match.mismatch != NULL) {
        refuse_mismatch(c, fx, conn, m, match.mismatch);
        return;
    }
    if (g != NULL && match.ambiguous && m->is_extension) {
        refuse_words(fx, conn, m, MCPG_AMBIGUOUS_GROUP, "more than one group fits this declaration: pass group_key");
        return;
    }
    if (g != NULL && (g->manual != m->manual || g->no_auto_sync != m->no_auto_sync)) {
        refuse_mismatch(c, fx, conn, m, g);
        return;
    }
    if (g == NULL) g = found_group(c, m);
    if (g == NULL) {
        refuse_words(fx, conn, m, MCPG_LIMIT,
                     "the coordinator's group or slot table is full: destroy a group or lower the capacity");
        return;
    }
    uint32_t slot = 0;
    while (m->order[slot] != rank) slot++;
    if (slot < g->order_count && needs_extension(c, g, slot, m)) {
        mcpg__coord_say(&text, "slot ");
        mcpg__coord_say_u64(&text, slot);
        mcpg__coord_say(&text, " of group ");
        mcpg__coord_say_u64(&text, g->gid.v);
        mcpg__coord_say(&text, " belongs to a process that is gone: pass is_extension=True to replace it");
        refuse(fx, conn, m, MCPG_NEEDS_EXTENSION, &text);
        return;
    }
    grow_order(c, g, m);
    take_slot(c, g, rank, slot);
    answer_registered(c, g, rank, slot, m, fx);
}
