/* frames.c: see frames.h. A frame is a packed message as it is (its first byte is a protobuf tag, never below 8), or
 * KEEP slot bytes, or DELTA slot crc delta, or DELTA_KEEP likewise, whose result replaces what the slot had. It must
 * never tell a difference to something that the very stream was not sent.
 */
#include "common/frames.h"

#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/codec.h"
#include "common/delta.h"
#include "common/eventlog.h"
#include "common/rankset.h"

#define GROUP_SLOTS 1024u /* COMMIT and MEMBERS tables; of more, those unused for longest are told whole again */
#define SLOTS       (GROUP_SLOTS + MCPG_MAX_RANKS) /* and one per rank */
#define HEADER      7u                             /* kind, slot (u16), CRC */
#define KEEP_HEADER 3u
#define WORTH       96u /* bytes; a shorter message goes as it is */

enum { FRAME_KEEP = 1, FRAME_DELTA = 2, FRAME_DELTA_KEEP = 3 };
_Static_assert(SLOTS <= UINT16_MAX, "a slot number has two bytes");

/* ---- sender ---- */

typedef struct {
    uint64_t key, used; /* key 0: free */
    uint8_t *bytes;
    uint32_t len, cap;
    mcpg_rankset_t holders; /* ranks whose present stream has exactly these bytes */
} tx_slot_t;

struct mcpg_frames_tx {
    uint64_t uses;
    uint64_t *conns; /* by rank: the stream that `holders` speak of */
    uint32_t max_ranks;
    uint32_t *index;
    uint32_t index_cap;
    uint8_t *keep, *delta; /* frames of the message in work */
    size_t frame_cap;
    /* message in work */
    mcpg_bytes_t packed;
    tx_slot_t *slot; /* NULL: it goes as it is */
    bool kept, same; /* kept: the receiver keeps it; same: it is what the slot has */
    size_t delta_len;
    mcpg_rankset_t told;
    tx_slot_t slots[SLOTS];
};

mcpg_frames_tx_t *mcpg__frames_tx_new(uint32_t max_ranks) {
    mcpg_frames_tx_t *tx = (mcpg_frames_tx_t *)calloc(1, sizeof(*tx));
    if (tx == NULL) return NULL;
    tx->max_ranks = max_ranks;
    tx->conns = (uint64_t *)calloc(max_ranks, sizeof(*tx->conns));
    if (tx->conns != NULL) return tx;
    free(tx);
    return NULL;
}

void mcpg__frames_tx_free(mcpg_frames_tx_t *tx) {
    if (tx == NULL) return;
    for (uint32_t i = 0; i < SLOTS; i++) free(tx->slots[i].bytes);
    free(tx->index);
    free(tx->keep);
    free(tx->delta);
    free(tx->conns);
    free(tx);
}

static tx_slot_t *group_slot(mcpg_frames_tx_t *tx, uint64_t key, bool make) {
    tx_slot_t *oldest = &tx->slots[0];
    for (uint32_t i = 0; i < GROUP_SLOTS; i++) {
        if (tx->slots[i].key == key) return &tx->slots[i];
        if (tx->slots[i].used < oldest->used) oldest = &tx->slots[i];
    }
    if (!make) return NULL;
    oldest->key = key;
    oldest->len = 0;
    mcpg__rankset_clear(&oldest->holders);
    return oldest;
}

/* The slot of a message; NULL: it has none. *kept: its bytes become the slot's. */
static tx_slot_t *slot_of(mcpg_frames_tx_t *tx, const mcpg_down_msg_t *msg, bool *kept) {
    const uint64_t views = UINT64_C(1) << 32u, tables = UINT64_C(2) << 32u;
    *kept = true;
    switch (msg->kind) {
    case MCPG_DOWN_COMMIT:
        return group_slot(tx, views | msg->u.commit.gid.v, true);
    case MCPG_DOWN_PREPARE: /* it is like the view before, which is a COMMIT */
        *kept = false;
        return group_slot(tx, views | msg->u.prepare.gid.v, false);
    case MCPG_DOWN_MEMBERS:
        return group_slot(tx, tables | msg->u.members.gid.v, true);
    case MCPG_DOWN_RANK_STATES:
        if (msg->u.rank_states.full || msg->u.rank_states.count != 1) return NULL;
        return &tx->slots[GROUP_SLOTS + msg->u.rank_states.ranks[0].rank.v];
    case MCPG_DOWN_WELCOME:
    case MCPG_DOWN_REFUSED:
    case MCPG_DOWN_HEARTBEAT_REPLY:
    case MCPG_DOWN_REGISTERED:
    case MCPG_DOWN_ABORT:
    case MCPG_DOWN_REPLY:
    case MCPG_DOWN_RECONCILED:
    case MCPG_DOWN_SYNCING:
    case MCPG_DOWN__COUNT:
        break;
    }
    return NULL;
}

/* A power of two, not below the length. */
static uint32_t index_for(uint32_t len) {
    uint32_t cap = 256u;
    while (cap < len) cap *= 2u; /* bounded: a message is at most 1 MiB */
    return cap;
}

/* Room for frames of len bytes and an index of the slot's. False: no memory, the message goes as it is. */
static bool make_room(mcpg_frames_tx_t *tx, size_t len) {
    if (len + HEADER > tx->frame_cap) {
        size_t cap = len + HEADER + 1024u;
        uint8_t *keep = (uint8_t *)realloc(tx->keep, cap);
        if (keep != NULL) tx->keep = keep;
        uint8_t *delta = (uint8_t *)realloc(tx->delta, cap);
        if (delta != NULL) tx->delta = delta;
        if (keep == NULL || delta == NULL) return false;
        tx->frame_cap = cap;
    }
    uint32_t want = index_for(tx->slot->len);
    if (want <= tx->index_cap) return true;
    uint32_t *index = (uint32_t *)realloc(tx->index, want * sizeof(*index));
    if (index == NULL) return false;
    tx->index = index;
    tx->index_cap = want;
    return true;
}

static void put_header(uint8_t *out, uint8_t kind, uint32_t slot) {
    out[0] = kind;
    out[1] = (uint8_t)slot;
    out[2] = (uint8_t)(slot >> 8u);
}

/* The difference to what the slot has; none when that is not shorter by half. */
static void make_delta(mcpg_frames_tx_t *tx) {
    mcpg_bytes_t base = {tx->slot->bytes, tx->slot->len};
    if (base.len == 0 || mcpg__rankset_empty(&tx->slot->holders)) return; /* nobody could use it */
    uint8_t *out = tx->delta + HEADER;
    size_t len = mcpg__delta_make(base, tx->packed, tx->index, index_for(base.len), out, tx->packed.len / 2u);
    if (len == 0) return;
    uint32_t crc = mcpg__crc32c(0, tx->packed.ptr, tx->packed.len);
    put_header(tx->delta, tx->kept ? FRAME_DELTA_KEEP : FRAME_DELTA, (uint32_t)(tx->slot - tx->slots));
    for (uint32_t i = 0; i < 4u; i++) tx->delta[KEEP_HEADER + i] = (uint8_t)(crc >> (8u * i));
    tx->delta_len = HEADER + len;
}

void mcpg__frames_tx_begin(mcpg_frames_tx_t *tx, const mcpg_down_msg_t *msg, const uint8_t *packed, size_t len) {
    tx->packed = (mcpg_bytes_t){packed, (uint32_t)len};
    tx->slot = NULL;
    tx->delta_len = 0;
    tx->same = false;
    mcpg__rankset_clear(&tx->told);
    if (len < WORTH) return;
    tx->slot = slot_of(tx, msg, &tx->kept);
    if (tx->slot == NULL) return;
    tx->slot->used = ++tx->uses;
    if (!make_room(tx, len)) {
        tx->slot = NULL;
        return;
    }
    tx->same = tx->slot->len == len && memcmp(tx->slot->bytes, packed, len) == 0;
    make_delta(tx);
    if (!tx->kept) return;
    put_header(tx->keep, FRAME_KEEP, (uint32_t)(tx->slot - tx->slots));
    memcpy(tx->keep + KEEP_HEADER, packed, len);
}

static void stream_changed(mcpg_frames_tx_t *tx, uint32_t rank, uint64_t conn) {
    for (uint32_t i = 0; i < SLOTS; i++) mcpg__rankset_del(&tx->slots[i].holders, rank);
    tx->conns[rank] = conn;
}

mcpg_bytes_t mcpg__frames_tx_frame_for(mcpg_frames_tx_t *tx, uint32_t rank, uint64_t conn) {
    if (tx->slot == NULL || rank >= tx->max_ranks) return tx->packed;
    if (tx->conns[rank] != conn) stream_changed(tx, rank, conn);
    if (tx->kept) mcpg__rankset_add(&tx->told, rank);
    if (tx->delta_len > 0 && mcpg__rankset_has(&tx->slot->holders, rank))
        return (mcpg_bytes_t){tx->delta, (uint32_t)tx->delta_len};
    if (!tx->kept) return tx->packed;
    return (mcpg_bytes_t){tx->keep, tx->packed.len + KEEP_HEADER};
}

void mcpg__frames_tx_end(mcpg_frames_tx_t *tx) {
    tx_slot_t *slot = tx->slot;
    tx->slot = NULL;
    if (slot == NULL || !tx->kept || mcpg__rankset_empty(&tx->told)) return;
    if (tx->same) {
        mcpg__rankset_or(&slot->holders, &tx->told);
        return;
    }
    if (tx->packed.len > slot->cap) {
        uint8_t *bytes = (uint8_t *)realloc(slot->bytes, tx->packed.len + 256u);
        if (bytes == NULL) { /* the next one is told whole */
            slot->len = 0;
            mcpg__rankset_clear(&slot->holders);
            return;
        }
        slot->bytes = bytes;
        slot->cap = tx->packed.len + 256u;
    }
    memcpy(slot->bytes, tx->packed.ptr, tx->packed.len);
    slot->len = tx->packed.len;
    slot->holders = tx->told; /* whoever was not told has something older */
}

/* ---- receiver ---- */

typedef struct {
    uint8_t *bytes;
    uint32_t len, cap;
} rx_slot_t;

struct mcpg_frames_rx {
    uint8_t *whole; /* result of a delta */
    rx_slot_t slots[SLOTS];
};

mcpg_frames_rx_t *mcpg__frames_rx_new(void) {
    mcpg_frames_rx_t *rx = (mcpg_frames_rx_t *)calloc(1, sizeof(*rx));
    if (rx == NULL) return NULL;
    rx->whole = (uint8_t *)malloc(MCPG_MSG_CAP);
    if (rx->whole != NULL) return rx;
    free(rx);
    return NULL;
}

void mcpg__frames_rx_reset(mcpg_frames_rx_t *rx) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        free(rx->slots[i].bytes);
        rx->slots[i] = (rx_slot_t){NULL, 0, 0};
    }
}

void mcpg__frames_rx_free(mcpg_frames_rx_t *rx) {
    if (rx == NULL) return;
    mcpg__frames_rx_reset(rx);
    free(rx->whole);
    free(rx);
}

static mcpg_status_t keep(rx_slot_t *slot, mcpg_bytes_t whole) {
    if (whole.len > slot->cap) {
        uint8_t *bytes = (uint8_t *)realloc(slot->bytes, whole.len + 64u);
        if (bytes == NULL) return MCPG_NO_MEMORY;
        slot->bytes = bytes;
        slot->cap = whole.len + 64u;
    }
    if (whole.len > 0) memcpy(slot->bytes, whole.ptr, whole.len);
    slot->len = whole.len;
    return MCPG_OK;
}

mcpg_status_t mcpg__frames_rx_take(mcpg_frames_rx_t *rx, const uint8_t *frame, size_t len, mcpg_bytes_t *out) {
    mcpg_bytes_t whole = {frame, (uint32_t)len};
    if (len > MCPG_MSG_CAP + HEADER) return MCPG_CORRUPT;
    if (len == 0 || frame[0] > FRAME_DELTA_KEEP || frame[0] == 0) { /* as it is: the codec judges it */
        *out = whole;
        return MCPG_OK;
    }
    mcpg_get_t get = {.ptr = frame, .len = len};
    uint8_t kind = mcpg__get_u8(&get);
    uint32_t slot = mcpg__get_u16(&get);
    if (get.bad || slot >= SLOTS) return MCPG_CORRUPT;
    if (kind == FRAME_KEEP) {
        whole = (mcpg_bytes_t){frame + get.at, (uint32_t)(len - get.at)};
        MCPG_TRY(keep(&rx->slots[slot], whole));
        *out = whole;
        return MCPG_OK;
    }
    uint32_t crc = mcpg__get_u32(&get);
    size_t whole_len = 0;
    mcpg_bytes_t base = {rx->slots[slot].bytes, rx->slots[slot].len};
    mcpg_bytes_t delta = {frame + get.at, (uint32_t)(len - get.at)};
    if (get.bad || base.len == 0) return MCPG_CORRUPT;
    if (!mcpg__delta_apply(base, delta, rx->whole, MCPG_MSG_CAP, &whole_len)) return MCPG_CORRUPT;
    if (mcpg__crc32c(0, rx->whole, whole_len) != crc) return MCPG_CORRUPT;
    whole = (mcpg_bytes_t){rx->whole, (uint32_t)whole_len};
    if (kind == FRAME_DELTA_KEEP) MCPG_TRY(keep(&rx->slots[slot], whole));
    *out = whole;
    return MCPG_OK;
}
