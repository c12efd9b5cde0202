/* timers.h: the effective control-plane timers: what the caller gave, else the environment, else the default. Never
 * reads a clock. */
#ifndef MCPG_COMMON_TIMERS_H
#define MCPG_COMMON_TIMERS_H

#include "common/base.h"

/* Every field of *out is non-zero afterwards. INVALID_ARGUMENT: error (cap bytes, may be NULL) names variable, value
 * and remedy. given may be NULL (all zero). */
MCPG_MUST_USE mcpg_status_t mcpg__timers_resolve(const mcpg_timers_t *given, mcpg_timers_t *out, char *error,
                                                 size_t cap);

#endif
