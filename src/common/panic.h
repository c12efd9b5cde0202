/* panic.h: hooks that run once when a local impossible state is met, just before the process aborts.
 *
 * A hook must be short, must not lock anything that other threads hold for long, and must never return to normal work.
 */
#ifndef MCPG_COMMON_PANIC_H
#define MCPG_COMMON_PANIC_H

#include "common/base.h"

#define MCPG_PANIC_HOOKS_CAP 32u

typedef void (*mcpg_panic_hook_t)(void *user, const char *what);
/* LIMIT: all places are taken (the caller goes on without a hook). */
MCPG_MUST_USE mcpg_status_t mcpg__panic_hook_add(mcpg_panic_hook_t hook, void *user);
/* Returns only when the hook is not running. Unknown pairs are ignored. */
void mcpg__panic_hook_remove(mcpg_panic_hook_t hook, void *user);

#endif
