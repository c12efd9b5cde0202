/* link_rx.c: what arrives on a link: cuts the stream into frames and puts payload where it belongs.
 *
 * Nothing that a peer sends can do more than break its own link: every length is checked before a byte is placed.
 * Payload of a receive that was cancelled meanwhile is read and dropped, so no late byte reaches user memory (contract
 * D2).
 */
#include <stdlib.h>
#include <string.h>

#include "dataplane/link_priv.h"

/* Body bytes of each type, 0xff: no such type. */
static const uint8_t body_bytes[MCPG_FT__COUNT] = {
    [0] = 0xff,
    [MCPG_FT_EAGER] = sizeof(mcpg_message_body_t),
    [MCPG_FT_RTS] = sizeof(mcpg_message_body_t),
    [MCPG_FT_CTS] = 8,
    [MCPG_FT_DATA] = 0,
    [MCPG_FT_GONE_RECV] = 0,
    [MCPG_FT_GONE_SEND] = 0,
    [MCPG_FT_NACK] = sizeof(mcpg_message_body_t),
    [MCPG_FT_LEFT] = sizeof(mcpg_msg_key_t),
    [MCPG_FT_PROBE] = 0,
    [MCPG_FT_PROBE_ACK] = 0,
    [MCPG_FT_DEAD] = sizeof(mcpg_incarnation_t),
    [MCPG_FT_BYE] = 0,
    [MCPG_FT_CREDIT] = 0,
    [MCPG_FT_ASK] = sizeof(mcpg_message_body_t),
    [MCPG_FT_ASK_VIEW] = sizeof(mcpg_view_id_t),
    [MCPG_FT_VIEW] = 0,
};

static bool has_payload(uint8_t type) {
    return type == MCPG_FT_EAGER || type == MCPG_FT_DATA || type == MCPG_FT_VIEW;
}

/* Bytes read, 0: nothing there. */
static uint32_t fill(mcpg_link_t *l) {
    if (l->rx.at == l->rx.len) l->rx.at = l->rx.len = 0;
    if (l->rx.at > 0 && l->rx.len == MCPG_STAGE_BYTES) {
        memmove(l->rx.stage, l->rx.stage + l->rx.at, l->rx.len - l->rx.at);
        l->rx.len -= l->rx.at;
        l->rx.at = 0;
    }
    int64_t n = l->stream->ops->read(l->stream, l->rx.stage + l->rx.len, MCPG_STAGE_BYTES - l->rx.len);
    if (n < 0) l->hung_up = true;
    if (n <= 0) return 0;
    l->rx.len += (uint32_t)n;
    l->bytes_in += (uint64_t)n;
    return (uint32_t)n;
}

static void place(mcpg_link_t *l, uint64_t n) {
    l->rx.left -= n;
    if (l->rx.dst != NULL) l->rx.dst += n;
    if (l->rx.left > 0) return;
    l->rx.in_payload = false;
    l->rx.dst = NULL;
    mcpg__rx_message_complete(l);
}

/* Moves some payload; false: nothing there now. */
static bool payload_step(mcpg_link_t *l, uint64_t *budget) {
    uint32_t staged = l->rx.len - l->rx.at;
    if (staged > 0) {
        uint64_t n = staged < l->rx.left ? staged : l->rx.left;
        if (l->rx.dst != NULL) memcpy(l->rx.dst, l->rx.stage + l->rx.at, (size_t)n);
        l->rx.at += (uint32_t)n;
        place(l, n);
        return true;
    }
    if (l->rx.dst == NULL || l->rx.left < MCPG_STAGE_BYTES / 4u) {
        uint32_t got = fill(l);
        *budget -= got < *budget ? got : *budget;
        return got > 0;
    }
    uint64_t want = l->rx.left < *budget ? l->rx.left : *budget;
    int64_t n = l->stream->ops->read(l->stream, l->rx.dst, (size_t)want);
    if (n < 0) l->hung_up = true;
    if (n <= 0) return false;
    l->bytes_in += (uint64_t)n;
    *budget -= (uint64_t)n < *budget ? (uint64_t)n : *budget;
    place(l, (uint64_t)n);
    return true;
}

/* The lengths in a header that are right whatever the rest says. */
static bool header_valid(const mcpg_frame_t *f) {
    if (f->magic != MCPG_LINK_MAGIC || f->type >= MCPG_FT__COUNT || body_bytes[f->type] == 0xff) return false;
    uint32_t body = body_bytes[f->type];
    if (!has_payload(f->type)) return f->len == body;
    if (f->type == MCPG_FT_EAGER) return f->len >= body && f->len - body <= MCPG_EAGER_BYTES;
    return f->len >= 1 && f->len <= (f->type == MCPG_FT_VIEW ? MCPG_VIEW_BYTES_MAX : MCPG_CHUNK_BYTES);
}

/* Takes one frame's header and body out of the stage; false: not all there yet, or the link failed. */
static bool frame_step(mcpg_link_t *l) {
    uint32_t staged = l->rx.len - l->rx.at;
    if (staged < sizeof(mcpg_frame_t)) return false;
    const uint8_t *at = l->rx.stage + l->rx.at;
    memcpy(&l->rx.frame, at, sizeof(l->rx.frame));
    if (!header_valid(&l->rx.frame)) {
        mcpg__link_fail(l, "malformed frame header");
        return false;
    }
    uint32_t body = body_bytes[l->rx.frame.type];
    if (staged < sizeof(mcpg_frame_t) + body) return false;
    l->rx.at += (uint32_t)sizeof(mcpg_frame_t) + body;
    l->tx.credits += l->rx.frame.credit;
    if (l->tx.credits > MCPG_EAGER_CREDITS) {
        mcpg__link_fail(l, "more credit than was used");
        return false;
    }
    l->rx.dst = NULL;
    l->rx.lx = NULL;
    l->rx.entry = NULL;
    l->rx.left = has_payload(l->rx.frame.type) ? l->rx.frame.len - body : 0;
    if (!mcpg__rx_frame(l, at + sizeof(mcpg_frame_t))) {
        mcpg__link_fail(l, "malformed frame");
        return false;
    }
    l->rx.in_payload = l->rx.left > 0;
    if (!l->rx.in_payload && has_payload(l->rx.frame.type)) mcpg__rx_message_complete(l);
    return true;
}

bool mcpg__rx_pump(mcpg_link_t *l, uint64_t *budget) {
    uint64_t before = l->bytes_in;
    bool more = true;
    l->stream->readable = false;
    while (*budget > 0 && !l->failed) {
        if (l->rx.in_payload)
            more = payload_step(l, budget);
        else if (!frame_step(l) && !l->failed) {
            uint32_t got = fill(l);
            *budget -= got < *budget ? got : *budget;
            more = got > 0;
        }
        if (!more) break;
    }
    if (more) l->stream->readable = true; /* the slice ended first */
    if (l->bytes_in == before) return false;
    l->last_heard_us = l->e->now_us;
    return true;
}

void mcpg__rx_grant(mcpg_link_t *l, mcpg_lx_t *x, uint64_t sender_handle, const mcpg_msg_sig_t *sender_sig) {
    if (!mcpg__sig_equal(&x->sig, sender_sig)) {
        mcpg_message_body_t body = {.key = x->key, .sig = x->sig};
        mcpg__tx_control(l, MCPG_FT_NACK, sender_handle, &body, sizeof(body));
        x->peer_sig = *sender_sig;
        mcpg__lx_end(l->e, x, MCPG_LX_MISMATCH);
        return;
    }
    if (x->sig.bytes == 0) { /* nothing will move: the grant itself completes both sides */
        uint64_t none = 0;
        mcpg__tx_control(l, MCPG_FT_CTS, sender_handle, &none, sizeof(none));
        mcpg__lx_end(l->e, x, MCPG_LX_DONE);
        return;
    }
    x->handle = mcpg__handle_take(l->e, x);
    if (x->handle == 0) {
        mcpg__link_fail(l, "out of memory");
        return;
    }
    mcpg__lx_unlink(x);
    x->state = MCPG_LXS_GRANTED;
    x->peer_handle = sender_handle;
    mcpg__lx_push(&l->granted, x);
    mcpg__tx_control(l, MCPG_FT_CTS, sender_handle, &x->handle, sizeof(x->handle));
}

void mcpg__rx_reset(mcpg_link_t *l, mcpg_lx_result_t result) {
    mcpg_engine_t *e = l->e;
    mcpg_lx_t *x = l->rx.lx;
    if (x != NULL && x->state == MCPG_LXS_EAGER_IN) mcpg__lx_end(e, x, result);
    mcpg__lx_end_all(e, &l->granted, result);
    if (l->rx.entry != NULL) {
        l->rx.entry->stream_id = 0;
        mcpg__unexpected_drop(e, l->rx.entry);
    }
    free(l->rx.view);
    uint8_t *stage = l->rx.stage;
    memset(&l->rx, 0, sizeof(l->rx));
    l->rx.stage = stage;
}
