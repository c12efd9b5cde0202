/* pg_coordinator.c: a coordinator in this process: for launchers, tests and the standalone program. Decides nothing
 * itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/pg_internal.h"
#include "common/recorder.h"
#include "common/timers.h"

struct mcpg_coordinator {
    mcpg_coord_host_t *host;
};

/* Milliseconds: one that ends at once and is started again within the second is higher, too. */
static uint64_t term_of_now(void) {
    struct timespec ts = {0};
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000u + (uint64_t)ts.tv_nsec / 1000000u;
}

mcpg_status_t mcpg_coordinator_start(const mcpg_coordinator_config_t *config, mcpg_coordinator_t **out, char *error,
                                     size_t error_cap) {
    if (mcpg__forked()) return MCPG_FORKED;
    char spare[MCPG_ERROR_CAP];
    if (error == NULL || error_cap == 0) {
        error = spare;
        error_cap = sizeof(spare);
    }
    error[0] = '\0';
    if (config == NULL || out == NULL) {
        (void)snprintf(error, error_cap, "config and out must not be NULL");
        return MCPG_INVALID_ARGUMENT;
    }
    mcpg__fork_watch();
    mcpg_coordinator_config_t own;
    MCPG_TRY(mcpg__versioned_copy(&own, sizeof(own), config, "mcpg_coordinator_config_t", error, error_cap));
    mcpg_coord_host_config_t c = {.bind = own.bind != NULL ? own.bind : "127.0.0.1:0",
                                  .term = own.term != 0 ? own.term : term_of_now(),
                                  .predecessor = !own.fresh};
    c.rpc = mcpg__rpc_for(c.bind);
    MCPG_TRY(mcpg__timers_resolve(&own.timers, &c.timers, error, error_cap));
    mcpg_security_config_t wanted = {.tls = own.tls,
                                     .ca_file = own.tls_ca,
                                     .cert_file = own.tls_cert,
                                     .key_file = own.tls_key,
                                     .token_file = own.token_file,
                                     .is_coordinator = true};
    mcpg_security_t *security = NULL;
    MCPG_TRY(mcpg__security_new(&wanted, &security, error, error_cap));
    c.credentials = mcpg__security_own(security);
    mcpg__log_init(&c.log, own.log, own.log_user, "coordinator");
    mcpg_coordinator_t *coordinator = calloc(1, sizeof(*coordinator));
    if (coordinator == NULL) {
        mcpg__security_unref(security);
        return MCPG_NO_MEMORY;
    }
    mcpg__fork_in_use(1);
    char *log_dir = mcpg__recorder_folder(own.event_log_dir);
    c.event_log_dir = log_dir;
    mcpg_status_t status = mcpg__coord_host_start(&c, &coordinator->host, error, error_cap);
    mcpg__security_unref(security); /* what serves has its own reference */
    free(log_dir);
    if (status != MCPG_OK) {
        free(coordinator);
        mcpg__fork_in_use(-1);
        return status;
    }
    *out = coordinator;
    return MCPG_OK;
}

size_t mcpg_coordinator_address(const mcpg_coordinator_t *coordinator, char *buf, size_t cap) {
    if (cap > 0) buf[0] = '\0';
    return coordinator != NULL && !mcpg__forked() ? mcpg__coord_host_address(coordinator->host, buf, cap) : 0;
}

mcpg_status_t mcpg_coordinator_report_exit(mcpg_coordinator_t *coordinator, uint32_t global_rank, int64_t pid) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (coordinator == NULL || global_rank >= MCPG_MAX_RANKS) return MCPG_INVALID_ARGUMENT;
    return mcpg__coord_host_report_exit(coordinator->host, (mcpg_rank_t){global_rank}, pid);
}

void mcpg_coordinator_stop(mcpg_coordinator_t *coordinator) {
    if (coordinator == NULL || mcpg__forked()) return;
    mcpg__coord_host_stop(coordinator->host);
    free(coordinator);
    mcpg__fork_in_use(-1);
}
