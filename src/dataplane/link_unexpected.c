/* link_unexpected.c: messages that came before their receive was posted, and the tombstones of sides that were left.
 *
 * Memory is bounded: eager messages by the credits that each peer holds, announcements by the announcement window,
 * tombstones by a ring that forgets its oldest. Never keeps a message of an operation that this rank itself has left.
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

static const size_t class_bytes[MCPG_SIZE_CLASSES] = {0, 512, MCPG_EAGER_BYTES};

mcpg_unexpected_t *mcpg__unexpected_take(mcpg_engine_t *e, size_t bytes) {
    uint8_t c = 0;
    while (class_bytes[c] < bytes) {
        c++;
        MCPG_ASSERT(c < MCPG_SIZE_CLASSES);
    }
    mcpg_unexpected_t *u = e->entry_pool[c];
    if (u != NULL) {
        e->entry_pool[c] = u->next;
    } else {
        u = malloc(sizeof(*u) + class_bytes[c]);
        if (u == NULL) return NULL;
    }
    memset(u, 0, sizeof(*u));
    u->size_class = c;
    return u;
}

void mcpg__unexpected_add(mcpg_engine_t *e, mcpg_unexpected_t *u) {
    u->bucket = &e->unexpected[mcpg__match_hash(&u->key, u->source)];
    u->next = *u->bucket;
    u->prev = NULL;
    if (u->next != NULL) u->next->prev = u;
    *u->bucket = u;
    e->unexpected_count++;
}

void mcpg__unexpected_drop(mcpg_engine_t *e, mcpg_unexpected_t *u) {
    if (u->bucket != NULL) {
        e->unexpected_count--;
        if (u->prev != NULL)
            u->prev->next = u->next;
        else
            *u->bucket = u->next;
        if (u->next != NULL) u->next->prev = u->prev;
    }
    mcpg_link_t *l = e->links[u->source.v];
    if (l != NULL && l->stream != NULL && l->stream_id == u->stream_id) {
        if (u->announced) {
            l->rx.announced_held--;
        } else {
            l->rx.eager_held--;
            l->rx.credit_owed++;
            if (l->rx.credit_owed >= MCPG_CREDIT_RETURN) mcpg__tx_soon(l);
        }
    }
    u->bucket = NULL;
    u->next = e->entry_pool[u->size_class];
    e->entry_pool[u->size_class] = u;
}

/* The oldest of equal keys is the last one in the bucket: keys are unique in correct programs, order only decides among
 * broken ones. */
mcpg_unexpected_t *mcpg__unexpected_find(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source,
                                         mcpg_incarnation_t inc) {
    mcpg_unexpected_t *found = NULL;
    for (mcpg_unexpected_t *u = e->unexpected[mcpg__match_hash(key, source)]; u != NULL; u = u->next)
        if (u->source.v == source.v && mcpg__inc_eq(u->inc, inc) && memcmp(&u->key, key, sizeof(*key)) == 0) found = u;
    return found;
}

void mcpg__unexpected_drop_stream(mcpg_engine_t *e, mcpg_rank_t source, uint64_t stream_id) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            if (u->announced && u->source.v == source.v && u->stream_id == stream_id) mcpg__unexpected_drop(e, u);
        }
    }
}

void mcpg__unexpected_drop_older(mcpg_engine_t *e, mcpg_rank_t source, mcpg_incarnation_t inc) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            if (u->source.v == source.v && mcpg__inc_cmp(u->inc, inc) < 0) mcpg__unexpected_drop(e, u);
        }
    }
}

/* The peer that announced it must not wait for a grant that will never come. */
static void drop_told(mcpg_engine_t *e, mcpg_unexpected_t *u) {
    mcpg_link_t *l = e->links[u->source.v];
    bool tell = u->announced && l != NULL && l->stream != NULL && l->stream_id == u->stream_id;
    uint64_t handle = u->sender_handle;
    mcpg__unexpected_drop(e, u);
    if (!tell) return;
    mcpg__tx_control(l, MCPG_FT_GONE_RECV, handle, NULL, 0);
    mcpg__tx_soon(l);
}

static bool key_below(const mcpg_msg_key_t *key, uint32_t gid, const mcpg_view_id_t *view, uint64_t below) {
    if (key->gid != gid) return false;
    if (view == NULL) return true;
    if (key->flags & MCPG_KEY_P2P) return false;
    mcpg_view_id_t v = {key->view_term, key->view_epoch};
    return mcpg__view_cmp(v, *view) <= 0 && key->seq < below;
}

void mcpg__unexpected_drop_group(mcpg_engine_t *e, uint32_t gid, const mcpg_view_id_t *view, uint64_t below) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            if (key_below(&u->key, gid, view, below)) drop_told(e, u);
        }
    }
}

bool mcpg__key_same_op(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b) {
    return a->gid == b->gid && (a->flags & MCPG_KEY_P2P) == (b->flags & MCPG_KEY_P2P) && a->view_term == b->view_term &&
           a->view_epoch == b->view_epoch && a->seq == b->seq && a->tag == b->tag;
}

void mcpg__unexpected_drop_announced(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t from) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE && e->unexpected_count > 0; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            if (u->announced && u->source.v == from.v && mcpg__key_same_op(&u->key, key)) mcpg__unexpected_drop(e, u);
        }
    }
}

void mcpg__link_forget_pairs(mcpg_engine_t *e, uint32_t gid, mcpg_view_id_t view, const mcpg_rank_t *source) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE && e->unexpected_count > 0; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            const mcpg_view_id_t v = {u->key.view_term, u->key.view_epoch};
            if (u->key.gid != gid || (u->key.flags & MCPG_KEY_P2P) == 0 || mcpg__view_cmp(v, view) >= 0) continue;
            if (source == NULL || source->v == u->source.v) drop_told(e, u);
        }
    }
}

void mcpg__unexpected_drop_op(mcpg_engine_t *e, const mcpg_msg_key_t *key, const mcpg_rank_t *only_from) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) {
        for (mcpg_unexpected_t *u = e->unexpected[i], *next; u != NULL; u = next) {
            next = u->next;
            if (only_from != NULL && only_from->v != u->source.v) continue;
            if (mcpg__key_same_op(&u->key, key)) drop_told(e, u);
        }
    }
}

/* ---- tombstones ---- */
static uint32_t tomb_hash(mcpg_rank_t rank, const mcpg_msg_key_t *key) {
    mcpg_msg_key_t op = *key;
    op.phase = 0;
    op.flags &= MCPG_KEY_P2P;
    return mcpg__match_hash(&op, rank);
}

static void tomb_remove(mcpg_engine_t *e, mcpg_tomb_t *t) {
    mcpg_tomb_t **at = &e->tomb_buckets[tomb_hash(t->rank, &t->key)];
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    t->used = false;
}

void mcpg__tomb_add(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                    const mcpg_msg_sig_t *mismatch) {
    mcpg_tomb_t *t = &e->tombs[e->tomb_next];
    e->tomb_next = (e->tomb_next + 1u) % MCPG_TOMBS_MAX;
    if (t->used) tomb_remove(e, t);
    *t = (mcpg_tomb_t){.rank = rank, .inc = inc, .key = *key, .used = true, .mismatch = mismatch != NULL};
    if (mismatch != NULL) t->sig = *mismatch;
    t->key.phase = 0;
    mcpg_tomb_t **bucket = &e->tomb_buckets[tomb_hash(rank, key)];
    t->next = *bucket;
    *bucket = t;
}

/* Whose side a tombstone of this rank's own leaving is filed under. Point-to-point numbers are counted per pair, so
 * there the peer and its incarnation belong to the name. */
mcpg_rank_t mcpg__tomb_own_side(const mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t peer) {
    bool pair = (key->flags & MCPG_KEY_P2P) != 0;
    return (mcpg_rank_t){(pair ? peer.v : e->rank.v) | 0x80000000u};
}

/* is_send: what the asker wants to do itself. The other side of a send is a receive. */
static bool direction_hit(uint32_t left_flags, bool is_send) {
    uint32_t which = left_flags & (MCPG_KEY_LEFT_SEND | MCPG_KEY_LEFT_RECV);
    return which == 0 || (which & (is_send ? MCPG_KEY_LEFT_RECV : MCPG_KEY_LEFT_SEND)) != 0;
}

const mcpg_tomb_t *mcpg__tomb_find(const mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc,
                                   const mcpg_msg_key_t *key, bool is_send) {
    for (const mcpg_tomb_t *t = e->tomb_buckets[tomb_hash(rank, key)]; t != NULL; t = t->next) {
        if (t->rank.v == rank.v && mcpg__inc_eq(t->inc, inc) && mcpg__key_same_op(&t->key, key) &&
            direction_hit(t->key.flags, is_send))
            return t;
    }
    return NULL;
}

void mcpg__tomb_forget(mcpg_engine_t *e, uint32_t gid, const mcpg_view_id_t *view, uint64_t below) {
    for (uint32_t i = 0; i < MCPG_TOMBS_MAX; i++)
        if (e->tombs[i].used && key_below(&e->tombs[i].key, gid, view, below)) tomb_remove(e, &e->tombs[i]);
}

void mcpg__match_free(mcpg_engine_t *e) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++)
        while (e->unexpected[i] != NULL) mcpg__unexpected_drop(e, e->unexpected[i]);
    for (uint32_t c = 0; c < MCPG_SIZE_CLASSES; c++) {
        while (e->entry_pool[c] != NULL) {
            mcpg_unexpected_t *u = e->entry_pool[c];
            e->entry_pool[c] = u->next;
            free(u);
        }
    }
    while (e->control_pool != NULL) {
        mcpg_control_t *c = e->control_pool;
        e->control_pool = c->next;
        free(c);
    }
    free(e->tombs);
    free(e->handles);
}
