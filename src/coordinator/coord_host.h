/* coord_host.h: runs one coordinator machine: executor, timers, RPC server, event log. The only part of src/coordinator
 * that knows time and sockets; it decides nothing.
 */
#ifndef MCPG_COORDINATOR_COORD_HOST_H
#define MCPG_COORDINATOR_COORD_HOST_H

#include "common/base.h"
#include "common/log.h"
#include "rpc/rpc.h"

typedef struct mcpg_coord_host mcpg_coord_host_t;
typedef struct {
    const mcpg_rpc_ops_t *rpc;
    const char *bind;
    mcpg_credentials_t *credentials; /* NULL: plaintext; a reference is taken */
    uint64_t term;
    bool predecessor;          /* there may have been an earlier coordinator, whose ranks may still come */
    const mcpg_kv_t *kv;       /* for the groups' records, on a helper thread; copied; NULL: no store */
    mcpg_timers_t timers;      /* all non-zero */
    const char *event_log_dir; /* NULL: off */
    mcpg_log_t log;
} mcpg_coord_host_config_t;
MCPG_MUST_USE mcpg_status_t mcpg__coord_host_start(const mcpg_coord_host_config_t *config, mcpg_coord_host_t **out,
                                                   char *error, size_t error_cap);
size_t mcpg__coord_host_address(const mcpg_coord_host_t *host, char *buf, size_t cap);
MCPG_MUST_USE mcpg_status_t mcpg__coord_host_report_exit(mcpg_coord_host_t *host, mcpg_rank_t rank, int64_t pid);
/* Stop accepting, SHUTDOWN, drain until quiescent or 5 s, answer leftovers, join, free. NULL allowed. */
void mcpg__coord_host_stop(mcpg_coord_host_t *host);

#endif
