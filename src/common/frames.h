/* frames.h: what a stream carries of the coordinator's messages: whole, or as the difference to what the same stream
 * carried before.
 *
 * A group's view and member table and a rank's state are told again and again with little changed; at 1,024 ranks the
 * whole of them would be most of the traffic. Both ends of a stream keep the last whole one of each; the sender names
 * the one that it means by a slot number and adds a CRC of the result. A new stream begins with nothing kept. Messages
 * above this layer are always whole. It must never be shared between threads, and never decides what is sent.
 */
#ifndef MCPG_COMMON_FRAMES_H
#define MCPG_COMMON_FRAMES_H

#include "common/base.h"
#include "common/msg.h"

/* ---- sender: all streams of one coordinator ---- */
typedef struct mcpg_frames_tx mcpg_frames_tx_t;
mcpg_frames_tx_t *mcpg__frames_tx_new(uint32_t max_ranks); /* NULL: no memory */
void mcpg__frames_tx_free(mcpg_frames_tx_t *tx);           /* NULL allowed */
/* One message for many ranks: begin, frame_for each of them (at most once), end. packed is borrowed until end. */
void mcpg__frames_tx_begin(mcpg_frames_tx_t *tx, const mcpg_down_msg_t *msg, const uint8_t *packed, size_t len);
/* Bytes for the rank's stream, valid until end. conn: the stream's id; another one than last time has nothing kept. */
mcpg_bytes_t mcpg__frames_tx_frame_for(mcpg_frames_tx_t *tx, uint32_t rank, uint64_t conn);
void mcpg__frames_tx_end(mcpg_frames_tx_t *tx);

/* ---- receiver: one stream ---- */
typedef struct mcpg_frames_rx mcpg_frames_rx_t;
mcpg_frames_rx_t *mcpg__frames_rx_new(void);      /* NULL: no memory */
void mcpg__frames_rx_free(mcpg_frames_rx_t *rx);  /* NULL allowed */
void mcpg__frames_rx_reset(mcpg_frames_rx_t *rx); /* a new stream */
/* The whole message of a frame: borrows from the frame, or from rx until the next call. CORRUPT: the stream must be
 * ended. NO_MEMORY: the same. */
MCPG_MUST_USE mcpg_status_t mcpg__frames_rx_take(mcpg_frames_rx_t *rx, const uint8_t *frame, size_t len,
                                                 mcpg_bytes_t *out);

#endif
