/* fork.h: what happens to the library when the process forks: the child may not use it, and must not keep its sockets
 * open.
 *
 * The child handler is async-signal-safe: it never locks, allocates or frees.
 */
#ifndef MCPG_COMMON_FORK_H
#define MCPG_COMMON_FORK_H

#include "common/base.h"

#define MCPG_FORK_FDS_CAP 65536u

/* From now on forks are noticed. Every context calls it before it makes a thread or a descriptor. Once is enough, more
 * is harmless. */
void mcpg__fork_watch(void);
/* +1 when a context or coordinator begins, -1 when it has ended. */
void mcpg__fork_in_use(int delta);
/* True in a process that was forked while a context or coordinator lived. A process that had merely loaded the library
 * may fork, and its child may use it. */
bool mcpg__forked(void);
/* The child closes fd. LIMIT: fd is too high to be watched (it stays open in children). Any thread. */
mcpg_status_t mcpg__fork_close_register(int fd);
/* Before close(fd), so that a child never closes a descriptor that means something else by then. */
void mcpg__fork_close_unregister(int fd);

#endif
