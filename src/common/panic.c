/* panic.c: ends the process at a local impossible state: says where, lets the event logs flush, aborts. Never returns
 * and never reacts to what a peer sent: a peer's mistake is a status.
 */
#include "common/panic.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    mcpg_panic_hook_t func;
    void *user;
} hooks[MCPG_PANIC_HOOKS_CAP];
static _Thread_local bool panicking; /* a hook that panics must not come back here */

mcpg_status_t mcpg__panic_hook_add(mcpg_panic_hook_t hook, void *user) {
    mcpg_status_t status = MCPG_LIMIT;
    pthread_mutex_lock(&hooks_lock);
    for (uint32_t i = 0; i < MCPG_PANIC_HOOKS_CAP && status != MCPG_OK; i++) {
        if (hooks[i].func != NULL) continue;
        hooks[i].func = hook;
        hooks[i].user = user;
        status = MCPG_OK;
    }
    pthread_mutex_unlock(&hooks_lock);
    return status;
}

void mcpg__panic_hook_remove(mcpg_panic_hook_t hook, void *user) {
    pthread_mutex_lock(&hooks_lock);
    for (uint32_t i = 0; i < MCPG_PANIC_HOOKS_CAP; i++) {
        if (hooks[i].func != hook || hooks[i].user != user) continue;
        hooks[i].func = NULL;
        hooks[i].user = NULL;
        break;
    }
    pthread_mutex_unlock(&hooks_lock);
}

_Noreturn void mcpg__panic(const char *file, int line, const char *what) {
    if (panicking) abort();
    panicking = true;
    char text[512];
    int n =
        snprintf(text, sizeof text, "mooncake-pg: internal error at %s:%d: %s. Please report it with the event log.\n",
                 file, line, what);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    ssize_t written = write(STDERR_FILENO, text, len);
    (void)written;
    /* Never unlocked: the process ends here, and a second panicking thread waits for that end. */
    pthread_mutex_lock(&hooks_lock);
    for (uint32_t i = 0; i < MCPG_PANIC_HOOKS_CAP; i++)
        if (hooks[i].func != NULL) hooks[i].func(hooks[i].user, what);
    abort();
}
