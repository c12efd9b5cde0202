/* pg_error.c: the last sentence per context and thread, versioned structs, and other helpers of every entry point.
 *
 * The sentences live in thread-local slots keyed by context id: nothing global is visible to users, no lock, no
 * allocation.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/pg_internal.h"

#define ERROR_SLOTS 4u /* contexts whose sentences one thread remembers */

typedef struct {
    uint64_t context_id; /* 0: free */
    char text[MCPG_ERROR_CAP];
} error_slot_t;
static _Thread_local error_slot_t slots[ERROR_SLOTS];
static _Thread_local uint32_t next_slot;

static error_slot_t *slot_of(uint64_t id) {
    for (uint32_t i = 0; i < ERROR_SLOTS; i++)
        if (slots[i].context_id == id) return &slots[i];
    return NULL;
}

mcpg_status_t mcpg__fail(const mcpg_context_t *context, mcpg_status_t status, const char *fmt, ...) {
    error_slot_t *s = slot_of(context->id);
    if (s == NULL) {
        s = &slots[next_slot];
        next_slot = (next_slot + 1) % ERROR_SLOTS;
        s->context_id = context->id;
    }
    char text[MCPG_ERROR_CAP]; /* an argument may be the old sentence */
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memcpy(s->text, text, sizeof(text));
    return status;
}

const char *mcpg__error_of(const mcpg_context_t *context) {
    const error_slot_t *s = slot_of(context->id);
    return s != NULL ? s->text : "";
}

mcpg_status_t mcpg__versioned_copy(void *dst, size_t own_size, const void *src, const char *what, char *error,
                                   size_t error_cap) {
    size_t size;
    memcpy(&size, src, sizeof(size));
    if (size < own_size) { /* no shorter version of any struct was ever published */
        (void)snprintf(error, error_cap,
                       "%s.struct_size is %zu, but this library needs %zu: set it with the INITIALIZER macro", what,
                       size, own_size);
        return MCPG_INVALID_ARGUMENT;
    }
    const unsigned char *bytes = src;
    for (size_t i = own_size; i < size && i < own_size + 65536u; i++) {
        if (bytes[i] == 0) continue;
        (void)snprintf(error, error_cap,
                       "%s has %zu bytes and uses a field that this library (version %s, %zu bytes) does not know: use "
                       "a newer library",
                       what, size, mcpg_version(), own_size);
        return MCPG_INVALID_ARGUMENT;
    }
    memcpy(dst, src, own_size);
    return MCPG_OK;
}

void mcpg__cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool mcpg__cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mu, uint64_t deadline_us) {
    struct timespec ts = {.tv_sec = (time_t)(deadline_us / 1000000u), .tv_nsec = (long)(deadline_us % 1000000u) * 1000};
    return pthread_cond_timedwait(cond, mu, &ts) == 0 || mcpg__now().us < deadline_us;
}

const mcpg_rpc_ops_t *mcpg__rpc_for(const char *address) {
    return address != NULL && strncmp(address, "inproc:", 7) == 0 ? mcpg__rpc_inproc() : mcpg__rpc_grpc();
}
