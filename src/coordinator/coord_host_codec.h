/* coord_host_codec.h: the canonical encoding of the coordinator machine's events, config and effects.
 *
 * One encoding serves whoever writes an event log (host, simulator, tests) and whoever reads one (replay). Little
 * endian, field by field, never struct memory. A MSG event's payload is the connection and the message's wire bytes. It
 * needs no host, no thread and no socket; it allocates nothing.
 */
#ifndef MCPG_COORDINATOR_COORD_HOST_CODEC_H
#define MCPG_COORDINATOR_COORD_HOST_CODEC_H

#include "common/codec.h"
#include "common/eventlog.h"
#include "coordinator/coord.h"

#define MCPG_COORD_EVENT_CAP  (MCPG_MSG_CAP + 64u) /* any encoded event fits; also the scratch of the effects' CRC */
#define MCPG_COORD_CONFIG_CAP 512u
#define MCPG_COORD_DECODE_CAP ((size_t)8 << 20) /* decode arena: what one message of 1 MiB may become */

MCPG_MUST_USE mcpg_status_t mcpg__coord_config_encode(const mcpg_coord_config_t *config, uint8_t *buf, size_t cap,
                                                      size_t *len_out);
MCPG_MUST_USE mcpg_status_t mcpg__coord_config_decode(const uint8_t *buf, size_t len, mcpg_coord_config_t *out);

/* Everything but now and kind. raw: a MSG's wire bytes as they came; NULL: the message is packed. LIMIT: no room. */
MCPG_MUST_USE mcpg_status_t mcpg__coord_event_encode(const mcpg_coord_event_t *event, const uint8_t *raw,
                                                     size_t raw_len, uint8_t *buf, size_t cap, size_t *len_out);
/* out->now and out->kind are set by the caller before. Borrows from arena. For MSG, msg receives the message and
 * out->msg points to it. CORRUPT: malformed. */
MCPG_MUST_USE mcpg_status_t mcpg__coord_event_decode(const uint8_t *buf, size_t len, mcpg_arena_t *arena,
                                                     mcpg_up_msg_t *msg, mcpg_coord_event_t *out);

/* Packs an effect's message or record; 0 bytes when it has none. False: it cannot be packed, a bug of the machine. */
bool mcpg__coord_effect_pack(const mcpg_coord_effect_t *fx, uint8_t *buf, size_t cap, size_t *len_out);
/* Chained CRC32C over one effect's canonical bytes. packed, len: what mcpg__coord_effect_pack made, 0 when it failed.
 */
uint32_t mcpg__coord_effect_crc(uint32_t crc, const mcpg_coord_effect_t *fx, const uint8_t *packed, size_t len);
/* The same over all effects, in order; packs the messages itself. scratch_cap >= MCPG_MSG_CAP. */
uint32_t mcpg__coord_effects_crc(const mcpg_coord_effects_t *effects, uint8_t *scratch, size_t scratch_cap);
const char *mcpg__coord_event_name(mcpg_coord_ev_kind_t kind);
const char *mcpg__coord_effect_name(mcpg_coord_fx_kind_t kind);

/* How a step is recorded: the first before it, the second after it, with the same seq (1, 2, ...). log NULL: nothing.
 * A rejected event has no effects: count 0, crc 0. buf: MCPG_COORD_EVENT_CAP bytes. */
void mcpg__coord_log_event(mcpg_eventlog_t *log, uint64_t seq, const mcpg_coord_event_t *event, const uint8_t *raw,
                           size_t raw_len, uint8_t *buf);
void mcpg__coord_log_effects(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint32_t count, uint32_t crc,
                             const mcpg_coord_t *coord);

#endif
