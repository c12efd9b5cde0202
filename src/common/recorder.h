/* recorder.h: where flight recorders write, and how many logs are kept there. See docs/decisions/0007.
 *
 * It never touches a log that a live process writes, nor a file that has not the name of one, and nothing in a folder
 * that somebody named.
 */
#ifndef MCPG_COMMON_RECORDER_H
#define MCPG_COMMON_RECORDER_H

#include "common/base.h"

#define MCPG_RECORDER_KEEP_LOGS  128u
#define MCPG_RECORDER_KEEP_BYTES ((uint64_t)512 << 20)
#define MCPG_RECORDER_FREE_BYTES ((uint64_t)512 << 20) /* a disk with less room is left alone */

/* The folder to write to: configured, else MOONCAKE_EVENT_LOG_DIR, else a private one of this user, which is created
 * and whose oldest logs are removed. NULL: off, by MOONCAKE_EVENT_LOG=off, or an empty name, or because no folder will
 * do. The caller frees it. */
char *mcpg__recorder_folder(const char *configured);
/* Removes the oldest logs of a folder until so many, of so many bytes, are left; those that are being written stay. */
void mcpg__recorder_prune(const char *folder, uint32_t keep_logs, uint64_t keep_bytes);

#endif
