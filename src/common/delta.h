/* delta.h: one byte string told as the changes of another. Pure: no allocation, no I/O; a wrong delta is refused, never
 * read or written beyond its ends.
 */
#ifndef MCPG_COMMON_DELTA_H
#define MCPG_COMMON_DELTA_H

#include "common/base.h"

/* index: scratch of index_cap words, a power of two, best at least base_len. Returns the delta's length, or 0 when it
 * does not fit cap: the whole is then the better choice. */
size_t mcpg__delta_make(mcpg_bytes_t base, mcpg_bytes_t whole, uint32_t *index, uint32_t index_cap, uint8_t *out,
                        size_t cap);
/* False: not a delta of this base, or longer than cap. *len_out is written on success only. */
bool mcpg__delta_apply(mcpg_bytes_t base, mcpg_bytes_t delta, uint8_t *out, size_t cap, size_t *len_out);

#endif
