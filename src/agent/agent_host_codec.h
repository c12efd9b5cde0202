/* agent_host_codec.h: the canonical encoding of the agent machine's events, config and effects.
 *
 * One encoding serves three uses: items of the executor's queue, payloads of the event log, and replay. Little endian,
 * field by field, never struct memory. An encoded MSG or VIEW_TOLD is the message's wire bytes, with no parsing before
 * the executor.
 */
#ifndef MCPG_AGENT_AGENT_HOST_CODEC_H
#define MCPG_AGENT_AGENT_HOST_CODEC_H

#include "agent/agent.h"
#include "common/codec.h"

#define MCPG_AGENT_EVENT_CAP  32768u /* an encoded event that is not MSG or VIEW_TOLD always fits */
#define MCPG_AGENT_CONFIG_CAP 1024u

/* Everything but now and kind; not for MSG and VIEW_TOLD. LIMIT when it does not fit. */
MCPG_MUST_USE mcpg_status_t mcpg__agent_event_encode(const mcpg_agent_event_t *event, uint8_t *buf, size_t cap,
                                                     size_t *len_out);
/* out->now and out->kind are set by the caller before. Borrows from buf and arena. For MSG and VIEW_TOLD, msg receives
 * the message and out points to it. CORRUPT: malformed. */
MCPG_MUST_USE mcpg_status_t mcpg__agent_event_decode(const uint8_t *buf, size_t len, mcpg_arena_t *arena,
                                                     mcpg_down_msg_t *msg, mcpg_agent_event_t *out);
MCPG_MUST_USE mcpg_status_t mcpg__agent_config_encode(const mcpg_agent_config_t *config, uint8_t *buf, size_t cap,
                                                      size_t *len_out);
MCPG_MUST_USE mcpg_status_t mcpg__agent_config_decode(const uint8_t *buf, size_t len, mcpg_agent_config_t *out);
/* CRC32C of the canonical bytes of all effects, in order. scratch: scratch_cap >= MCPG_MSG_CAP bytes. */
uint32_t mcpg__agent_effects_crc(const mcpg_agent_effects_t *effects, uint8_t *scratch, size_t scratch_cap);
const char *mcpg__agent_event_name(mcpg_agent_ev_kind_t kind);
const char *mcpg__agent_effect_name(mcpg_agent_fx_kind_t kind);

#endif
