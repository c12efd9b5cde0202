/* link_match.c: transfer lists, handles and the table of posted receives.
 *
 * The only caller of done(). Never allocates per message: handles grow by doubling, the tables have a fixed number of
 * buckets.
 */
#include <stdlib.h>
#include <string.h>

#include "common/pure.h"
#include "dataplane/link_priv.h"

void mcpg__lx_push(mcpg_lx_list_t *list, mcpg_lx_t *x) {
    MCPG_ASSERT(x->list == NULL);
    x->list = list;
    x->next = NULL;
    x->prev = list->tail;
    if (list->tail != NULL)
        list->tail->next = x;
    else
        list->head = x;
    list->tail = x;
}

void mcpg__lx_unlink(mcpg_lx_t *x) {
    mcpg_lx_list_t *list = x->list;
    if (list == NULL) return;
    if (x->prev != NULL)
        x->prev->next = x->next;
    else
        list->head = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    else
        list->tail = x->prev;
    x->next = x->prev = NULL;
    x->list = NULL;
}

mcpg_lx_t *mcpg__lx_pop(mcpg_lx_list_t *list) {
    mcpg_lx_t *x = list->head;
    if (x != NULL) mcpg__lx_unlink(x);
    return x;
}

void mcpg__lx_end(mcpg_engine_t *e, mcpg_lx_t *x, mcpg_lx_result_t result) {
    MCPG_ASSERT(x->state != MCPG_LXS_IDLE && x->state != MCPG_LXS_ENDED);
    mcpg__lx_unlink(x);
    if (x->handle != 0) mcpg__handle_drop(e, x->handle);
    x->handle = 0;
    x->state = MCPG_LXS_ENDED;
    x->result = (uint8_t)result;
    mcpg__lx_push(&e->ended, x);
    MCPG_ASSERT(e->lx_count > 0);
    e->lx_count--;
}

void mcpg__lx_end_all(mcpg_engine_t *e, mcpg_lx_list_t *list, mcpg_lx_result_t result) {
    while (list->head != NULL) mcpg__lx_end(e, list->head, result);
}

bool mcpg__link_deliver(mcpg_engine_t *e) {
    bool any = false;
    for (mcpg_lx_t *x = mcpg__lx_pop(&e->ended); x != NULL; x = mcpg__lx_pop(&e->ended)) {
        x->state = MCPG_LXS_IDLE;
        any = true;
        x->done(x, (mcpg_lx_result_t)x->result);
    }
    return any;
}

bool mcpg__sig_equal(const mcpg_msg_sig_t *a, const mcpg_msg_sig_t *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->redop == b->redop && a->root == b->root &&
           a->bytes == b->bytes;
}

/* ---- handles: generation in the upper half, index + 1 in the lower, so that 0 names nothing ---- */
static bool handles_grow(mcpg_engine_t *e) {
    uint32_t cap = e->handle_cap == 0 ? 256u : e->handle_cap * 2u;
    if (cap > (1u << 24)) return false;
    void *grown = realloc(e->handles, (size_t)cap * sizeof(*e->handles));
    if (grown == NULL) return false;
    e->handles = grown;
    for (uint32_t i = e->handle_cap; i < cap; i++) {
        e->handles[i].lx = NULL;
        e->handles[i].generation = 1;
        e->handles[i].next_free = i + 1 < cap ? i + 2 : 0;
    }
    e->handle_free = e->handle_cap + 1;
    e->handle_cap = cap;
    return true;
}

uint64_t mcpg__handle_take(mcpg_engine_t *e, mcpg_lx_t *x) {
    if (e->handle_free == 0 && !handles_grow(e)) return 0;
    uint32_t index = e->handle_free - 1u;
    e->handle_free = e->handles[index].next_free;
    e->handles[index].lx = x;
    return ((uint64_t)e->handles[index].generation << 32) | (index + 1u);
}

mcpg_lx_t *mcpg__handle_find(const mcpg_engine_t *e, uint64_t handle, mcpg_rank_t peer, bool is_send) {
    uint32_t index = (uint32_t)handle;
    if (index == 0 || index > e->handle_cap) return NULL;
    if (e->handles[index - 1u].generation != (uint32_t)(handle >> 32)) return NULL;
    mcpg_lx_t *x = e->handles[index - 1u].lx;
    return x != NULL && x->peer.v == peer.v && (x->is_send != 0) == is_send ? x : NULL;
}

void mcpg__handle_drop(mcpg_engine_t *e, uint64_t handle) {
    uint32_t index = (uint32_t)handle - 1u;
    MCPG_ASSERT(index < e->handle_cap && e->handles[index].lx != NULL);
    e->handles[index].lx = NULL;
    e->handles[index].generation++;
    e->handles[index].next_free = e->handle_free;
    e->handle_free = index + 1u;
}

/* ---- posted receives ---- */
uint32_t mcpg__match_hash(const mcpg_msg_key_t *key, mcpg_rank_t source) {
    uint64_t d = mcpg__digest_u64(key->seq, ((uint64_t)key->gid << 32) | source.v);
    d = mcpg__digest_u64(d ^ key->view_epoch, key->tag ^ ((uint64_t)key->phase << 40) ^ key->flags);
    return (uint32_t)(d % MCPG_HASH_SIZE);
}

static bool key_equal(const mcpg_msg_key_t *a, const mcpg_msg_key_t *b) {
    return memcmp(a, b, sizeof(*a)) == 0;
}

void mcpg__match_post(mcpg_engine_t *e, mcpg_lx_t *x) {
    x->state = MCPG_LXS_POSTED;
    mcpg__lx_push(&e->posted[mcpg__match_hash(&x->key, x->peer)], x);
}

mcpg_lx_t *mcpg__match_posted(mcpg_engine_t *e, const mcpg_msg_key_t *key, mcpg_rank_t source, mcpg_incarnation_t inc) {
    for (mcpg_lx_t *x = e->posted[mcpg__match_hash(key, source)].head; x != NULL; x = x->next)
        if (x->peer.v == source.v && mcpg__inc_eq(x->peer_inc, inc) && key_equal(&x->key, key)) return x;
    return NULL;
}

void mcpg__match_end_from(mcpg_engine_t *e, mcpg_rank_t source, mcpg_incarnation_t inc, bool older,
                          mcpg_lx_result_t result) {
    for (uint32_t i = 0; i < MCPG_HASH_SIZE; i++) {
        for (mcpg_lx_t *x = e->posted[i].head, *next; x != NULL; x = next) {
            next = x->next;
            int cmp = mcpg__inc_cmp(x->peer_inc, inc);
            if (x->peer.v == source.v && (older ? cmp < 0 : cmp == 0)) mcpg__lx_end(e, x, result);
        }
    }
}
