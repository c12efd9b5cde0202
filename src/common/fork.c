/* fork.c: notices forks by a pthread_atfork child handler: poisons the library there and closes the registered
 * descriptors, so that forked helper processes (data loaders) do not keep a dead rank's sockets alive. Never does
 * anything in the parent.
 */
#include "common/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_bool poisoned;
static atomic_int in_use;
static _Atomic uint64_t
    fds[MCPG_FORK_FDS_CAP / 64u]; /* bit per descriptor: lock-free, as a fork may come at any time */
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void in_child(void) {
    if (atomic_load(&in_use) > 0) atomic_store(&poisoned, true);
    for (uint32_t i = 0; i < MCPG_FORK_FDS_CAP / 64u; i++) {
        uint64_t word = atomic_exchange(&fds[i], 0);
        while (word != 0) {
            close((int)(i * 64u + (uint32_t)__builtin_ctzll(word)));
            word &= word - 1;
        }
    }
}

static void install(void) {
    /* ENOMEM here would leave forks unnoticed: a local impossible state for a call of a few bytes at start. */
    MCPG_ASSERT(pthread_atfork(NULL, NULL, in_child) == 0);
}

void mcpg__fork_watch(void) {
    pthread_once(&watch_once, install);
}

void mcpg__fork_in_use(int delta) {
    atomic_fetch_add(&in_use, delta);
}

bool mcpg__forked(void) {
    return atomic_load_explicit(&poisoned, memory_order_relaxed);
}

mcpg_status_t mcpg__fork_close_register(int fd) {
    if (fd < 0) return MCPG_INVALID_ARGUMENT;
    if ((uint32_t)fd >= MCPG_FORK_FDS_CAP) return MCPG_LIMIT;
    mcpg__fork_watch();
    atomic_fetch_or(&fds[(uint32_t)fd / 64u], UINT64_C(1) << ((uint32_t)fd % 64u));
    return MCPG_OK;
}

void mcpg__fork_close_unregister(int fd) {
    if (fd < 0 || (uint32_t)fd >= MCPG_FORK_FDS_CAP) return;
    atomic_fetch_and(&fds[(uint32_t)fd / 64u], ~(UINT64_C(1) << ((uint32_t)fd % 64u)));
}
