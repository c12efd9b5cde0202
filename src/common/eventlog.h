/* eventlog.h: the flight recorder: every event of one state machine in its canonical encoding, with the CRC of its
 * effects.
 *
 * File: 64-byte header {magic "MCEL", format u16, machine kind u16, caps hash u64, config hash u64, build id 20 B, wall
 * clock start u64, segment number u64 (rises; tells which of two segments is newer)}; then 8-aligned little-endian
 * records {len u32, kind u16, flags u16, seq u64, now_us u64, payload, crc32c u32}. The event's record is written
 * before the step, an EFFECTS record {effects_crc u32} after it; every 64 events a DIGEST record. Two rotating segments
 * (PREFIX.0, PREFIX.1; 8 MiB each by default, mode 0600), mmapped: an append is memory stores, and once per 256 KiB a
 * call that takes room on the disk. A disk without room ends the recording, nothing else. While it is open the files
 * are locked (flock). A record is visible once its CRC is in place. Never holds secrets. One writer thread.
 */
#ifndef MCPG_COMMON_EVENTLOG_H
#define MCPG_COMMON_EVENTLOG_H

#include <sys/types.h>

#include "common/base.h"

typedef struct mcpg_eventlog mcpg_eventlog_t;
typedef enum { MCPG_LOG_COORD = 1, MCPG_LOG_AGENT = 2 } mcpg_eventlog_machine_t;
#define MCPG_REC_TRUNCATED    0x8000u /* in flags: the payload was too long, only its beginning is here */
#define MCPG_EVENTLOG_SEGMENT ((size_t)8 << 20)
enum { MCPG_REC_EVENT = 1, MCPG_REC_EFFECTS = 2, MCPG_REC_DIGEST = 3, MCPG_REC_CONFIG = 4 };

typedef struct {
    uint16_t kind;  /* MCPG_REC_* */
    uint16_t flags; /* EVENT: the machine's event kind; EFFECTS: their number */
    uint64_t seq;
    mcpg_time_t now;
    const uint8_t *payload;
    uint32_t len;
} mcpg_record_t;

/* config_bytes (the machine's canonical config encoding) is the first record of each segment. segment_bytes 0:
 * MOONCAKE_EVENT_LOG_MIB, else 8 MiB.
 * Files of that name are replaced, unless another process is writing them: BUSY. SYSTEM: no such folder, or no room on
 * its disk. */
MCPG_MUST_USE mcpg_status_t mcpg__eventlog_open(const char *path_prefix, mcpg_eventlog_machine_t machine,
                                                const uint8_t *config_bytes, uint32_t config_len, size_t segment_bytes,
                                                mcpg_eventlog_t **out);
void mcpg__eventlog_append(mcpg_eventlog_t *log,
                           const mcpg_record_t *record); /* NULL log: no-op; too long: truncated flag, never fails */
/* The three records of one step, for either machine. seq counts the events from 1 on. */
void mcpg__eventlog_event(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint16_t kind, const uint8_t *payload,
                          size_t len);
void mcpg__eventlog_effects(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint32_t count, uint32_t crc);
void mcpg__eventlog_digest(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint64_t digest);
static inline bool mcpg__eventlog_digest_due(uint64_t seq) {
    return seq % 64u == 0;
}
/* No room was left on the disk: what is appended is dropped from then on. */
bool mcpg__eventlog_is_full(const mcpg_eventlog_t *log);
bool mcpg__eventlog_end_if_full(mcpg_eventlog_t **log); /* closes it then, and *log is NULL */
/* Gives the room back that was not used. */
void mcpg__eventlog_close(mcpg_eventlog_t *log);
/* Takes room for a range of a file; 0 or an errno. A test puts a disk without room in its place. */
extern int (*mcpg__eventlog_take_room)(int fd, off_t at, off_t len);

typedef struct {
    mcpg_eventlog_machine_t machine;
    bool same_caps; /* written by a build with this one's limits and protocol version */
    uint8_t build_id[20];
    uint64_t started_us; /* wall clock */
    uint64_t number;     /* of the segment, from 1 */
} mcpg_eventlog_header_t;
/* NOT_FOUND: a segment that was never begun. CORRUPT: no segment. */
MCPG_MUST_USE mcpg_status_t mcpg__eventlog_header(const uint8_t *file, size_t len, mcpg_eventlog_header_t *out);
/* The record at *at (0 at first), which moves on. NOT_FOUND: the end. CORRUPT: what is there is no whole record; *at
 * stays. */
MCPG_MUST_USE mcpg_status_t mcpg__eventlog_next(const uint8_t *file, size_t len, size_t *at, mcpg_record_t *out);
/* Reader over one file's bytes: calls back in order, stops at the first record that is not whole. Returns how many were
 * read; CORRUPT when the header is wrong. */
MCPG_MUST_USE mcpg_status_t mcpg__eventlog_read(const uint8_t *file, size_t len,
                                                bool (*each)(void *user, const mcpg_record_t *), void *user,
                                                uint64_t *count_out, mcpg_eventlog_machine_t *machine_out);
/* Chained: crc is the value so far, 0 at first. The portable one gives the same without special instructions. */
uint32_t mcpg__crc32c(uint32_t crc, const void *data, size_t len);
uint32_t mcpg__crc32c_portable(uint32_t crc, const void *data, size_t len);

#endif
