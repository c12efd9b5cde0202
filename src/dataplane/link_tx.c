/* link_tx.c: what leaves on a link: control frames first, then small messages and large ones in turn, a chunk at a
 * time.
 *
 * Reads user memory only while a transfer is posted: a cancelled one whose frame is half out goes on from a private
 * copy. Never blocks and never calls done().
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

/* NULL: the link has failed. */
static mcpg_control_t *control_new(mcpg_link_t *l) {
    mcpg_engine_t *e = l->e;
    if (l->tx.control_count >= MCPG_CONTROL_MAX) {
        mcpg__link_fail(l, "the peer does not read our answers");
        return NULL;
    }
    mcpg_control_t *c = e->control_pool;
    if (c != NULL) {
        e->control_pool = c->next;
    } else {
        c = malloc(sizeof(*c));
        if (c == NULL) {
            mcpg__link_fail(l, "out of memory");
            return NULL;
        }
    }
    memset(c, 0, sizeof(*c));
    return c;
}

static void control_push(mcpg_link_t *l, mcpg_control_t *c) {
    if (l->tx.tail != NULL)
        l->tx.tail->next = c;
    else
        l->tx.head = c;
    l->tx.tail = c;
    l->tx.control_count++;
}

void mcpg__tx_control(mcpg_link_t *l, mcpg_frame_type_t type, uint64_t aux, const void *body, uint32_t body_len) {
    MCPG_ASSERT(body_len <= MCPG_BODY_MAX);
    if (l->stream == NULL || l->failed) return;
    mcpg_control_t *c = control_new(l);
    if (c == NULL) return;
    c->frame = (mcpg_frame_t){.magic = MCPG_LINK_MAGIC, .type = (uint8_t)type, .len = body_len, .aux = aux};
    c->body_len = body_len;
    if (body_len > 0) memcpy(c->body, body, body_len);
    control_push(l, c);
}

void mcpg__tx_view(mcpg_link_t *l, const uint8_t *bytes, uint32_t len) {
    if (l->stream == NULL || l->failed || l->tx.view_count >= MCPG_VIEWS_MAX) return;
    uint8_t *copy = malloc(len);
    mcpg_control_t *c = copy != NULL ? control_new(l) : NULL;
    if (c == NULL) {
        free(copy);
        return;
    }
    memcpy(copy, bytes, len);
    c->frame = (mcpg_frame_t){.magic = MCPG_LINK_MAGIC, .type = MCPG_FT_VIEW, .len = len};
    c->payload = copy;
    c->payload_len = len;
    l->tx.view_count++;
    control_push(l, c);
}

void mcpg__tx_queue(mcpg_link_t *l, mcpg_lx_t *x) {
    x->state = MCPG_LXS_QUEUED;
    mcpg__lx_push(&l->tx.queue, x);
}

void mcpg__tx_start_moving(mcpg_link_t *l, mcpg_lx_t *x) {
    mcpg__lx_unlink(x);
    l->tx.announced_count--;
    x->state = MCPG_LXS_MOVING;
    mcpg__lx_push(&l->tx.moving, x);
}

bool mcpg__tx_pending(const mcpg_link_t *l) {
    if (l->tx.active || l->tx.head != NULL || l->tx.moving.head != NULL) return true;
    return l->tx.queue.head != NULL && (l->tx.credits > 0 || l->tx.announced_count < MCPG_ANNOUNCE_MAX);
}

static void frame_begin(mcpg_link_t *l, mcpg_frame_t frame, const void *body, uint32_t body_len) {
    uint32_t credit = l->rx.credit_owed < 255u ? l->rx.credit_owed : 255u;
    frame.magic = MCPG_LINK_MAGIC;
    frame.credit = (uint8_t)credit;
    l->rx.credit_owed -= credit;
    memcpy(l->tx.head_bytes, &frame, sizeof(frame));
    if (body_len > 0) memcpy(l->tx.head_bytes + sizeof(frame), body, body_len);
    l->tx.head_len = (uint32_t)sizeof(frame) + body_len;
    l->tx.head_sent = 0;
    l->tx.payload = NULL;
    l->tx.payload_len = l->tx.payload_sent = 0;
    l->tx.lx = NULL;
    l->tx.active = true;
}

static bool control_begin(mcpg_link_t *l) {
    mcpg_control_t *c = l->tx.head;
    if (c == NULL) return false;
    l->tx.head = c->next;
    if (l->tx.head == NULL) l->tx.tail = NULL;
    l->tx.control_count--;
    frame_begin(l, c->frame, c->body, c->body_len);
    if (c->payload != NULL) {
        l->tx.view_count--;
        l->tx.payload = l->tx.private_copy = c->payload; /* freed with the frame */
        l->tx.payload_len = c->payload_len;
    }
    c->next = l->e->control_pool;
    l->e->control_pool = c;
    return true;
}

static bool message_begin(mcpg_link_t *l) {
    mcpg_lx_t *x = l->tx.queue.head;
    if (x == NULL) return false;
    mcpg_message_body_t body = {.key = x->key, .sig = x->sig};
    if (x->sig.bytes <= MCPG_EAGER_BYTES && l->tx.credits > 0) {
        mcpg__lx_unlink(x);
        l->tx.credits--;
        mcpg_frame_t frame = {.type = MCPG_FT_EAGER, .len = (uint32_t)(sizeof(body) + x->sig.bytes)};
        frame_begin(l, frame, &body, sizeof(body));
        l->tx.payload = x->buf;
        l->tx.payload_len = x->sig.bytes;
        l->tx.lx = x;
        x->state = MCPG_LXS_EAGER_OUT;
        return true;
    }
    if (l->tx.announced_count >= MCPG_ANNOUNCE_MAX) return false;
    x->handle = mcpg__handle_take(l->e, x);
    if (x->handle == 0) {
        mcpg__link_fail(l, "out of memory");
        return false;
    }
    mcpg__lx_unlink(x);
    frame_begin(l, (mcpg_frame_t){.type = MCPG_FT_RTS, .len = sizeof(body), .aux = x->handle}, &body, sizeof(body));
    x->state = MCPG_LXS_ANNOUNCED;
    mcpg__lx_push(&l->tx.announced, x);
    l->tx.announced_count++;
    return true;
}

static bool data_begin(mcpg_link_t *l) {
    mcpg_lx_t *x = mcpg__lx_pop(&l->tx.moving);
    if (x == NULL) return false;
    uint64_t left = x->sig.bytes - x->moved;
    uint32_t len = left < MCPG_CHUNK_BYTES ? (uint32_t)left : MCPG_CHUNK_BYTES;
    frame_begin(l, (mcpg_frame_t){.type = MCPG_FT_DATA, .len = len, .aux = x->peer_handle}, NULL, 0);
    l->tx.payload = (const uint8_t *)x->buf + x->moved;
    l->tx.payload_len = len;
    l->tx.lx = x;
    return true;
}

static bool next_frame(mcpg_link_t *l) {
    if (control_begin(l)) return true;
    l->tx.data_turn = !l->tx.data_turn;
    bool begun = l->tx.data_turn ? data_begin(l) || message_begin(l) : message_begin(l) || data_begin(l);
    if (begun) return true;
    if (l->rx.credit_owed < MCPG_CREDIT_RETURN) return false;
    frame_begin(l, (mcpg_frame_t){.type = MCPG_FT_CREDIT}, NULL, 0);
    return true;
}

static void frame_end(mcpg_link_t *l) {
    mcpg_lx_t *x = l->tx.lx;
    l->tx.active = false;
    l->tx.lx = NULL;
    free(l->tx.private_copy);
    l->tx.private_copy = NULL;
    if (x == NULL) return;
    x->moved += l->tx.payload_len;
    if (x->moved < x->sig.bytes)
        mcpg__lx_push(&l->tx.moving, x);
    else
        mcpg__lx_end(l->e, x, MCPG_LX_DONE);
}

bool mcpg__tx_pump(mcpg_link_t *l, uint64_t *budget) {
    bool any = false;
    while (*budget > 0 && l->stream != NULL && !l->failed && !l->hung_up && !l->stream->blocked) {
        if (!l->tx.active && !next_frame(l)) break;
        struct iovec iov[2];
        int n = 0;
        if (l->tx.head_sent < l->tx.head_len)
            iov[n++] = (struct iovec){l->tx.head_bytes + l->tx.head_sent, l->tx.head_len - l->tx.head_sent};
        uint64_t rest = l->tx.payload_len - l->tx.payload_sent;
        if (rest > 0) iov[n++] = (struct iovec){(void *)(uintptr_t)(l->tx.payload + l->tx.payload_sent), (size_t)rest};
        int64_t took = l->stream->ops->writev(l->stream, iov, n);
        if (took < 0) {
            /* What the peer sent before it broke is still to be read: the read side decides that this is the end. */
            l->stream->blocked = true;
            l->stream->readable = true;
            break;
        }
        if (took == 0) break;
        any = true;
        l->bytes_out += (uint64_t)took;
        *budget -= (uint64_t)took < *budget ? (uint64_t)took : *budget;
        uint64_t head = l->tx.head_len - l->tx.head_sent;
        if (head > (uint64_t)took) head = (uint64_t)took;
        l->tx.head_sent += (uint32_t)head;
        l->tx.payload_sent += (uint64_t)took - head;
        if (l->tx.head_sent == l->tx.head_len && l->tx.payload_sent == l->tx.payload_len) frame_end(l);
    }
    return any;
}

void mcpg__tx_soon(mcpg_link_t *l) {
    if (l->state != MCPG_LINK_ST_UP) return;
    uint64_t budget = MCPG_SLICE_BYTES;
    mcpg__tx_pump(l, &budget);
    if (mcpg__tx_pending(l) || l->e->ended.head != NULL || l->failed) mcpg__engine_kick(l->e);
}

void mcpg__tx_detach(mcpg_link_t *l, mcpg_lx_t *x) {
    MCPG_ASSERT(l->tx.lx == x);
    l->tx.lx = NULL;
    uint64_t rest = l->tx.payload_len - l->tx.payload_sent;
    if (rest == 0) return;
    l->tx.private_copy = malloc((size_t)rest);
    if (l->tx.private_copy == NULL) {
        mcpg__link_fail(l, "out of memory");
        l->tx.payload_len = l->tx.payload_sent;
        return;
    }
    memcpy(l->tx.private_copy, l->tx.payload + l->tx.payload_sent, (size_t)rest);
    l->tx.payload = l->tx.private_copy;
    l->tx.payload_len = rest;
    l->tx.payload_sent = 0;
}

void mcpg__tx_reset(mcpg_link_t *l, mcpg_lx_result_t result) {
    mcpg_engine_t *e = l->e;
    if (l->tx.lx != NULL) mcpg__lx_end(e, l->tx.lx, result);
    mcpg__lx_end_all(e, &l->tx.queue, result);
    mcpg__lx_end_all(e, &l->tx.announced, result);
    mcpg__lx_end_all(e, &l->tx.moving, result);
    while (l->tx.head != NULL) {
        mcpg_control_t *c = l->tx.head;
        l->tx.head = c->next;
        free(c->payload);
        c->next = e->control_pool;
        e->control_pool = c;
    }
    free(l->tx.private_copy);
    memset(&l->tx, 0, sizeof(l->tx));
    l->tx.credits = MCPG_EAGER_CREDITS;
}
