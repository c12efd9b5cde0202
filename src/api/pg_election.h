/* pg_election.h: the coordinator's record in the key-value store, and candidacies, for pg_bootstrap.c and pg_follow.c
 * only.
 *
 * Whatever is declared here calls key-value callbacks on the calling thread, which must be a helper thread.
 */
#ifndef MCPG_API_PG_ELECTION_H
#define MCPG_API_PG_ELECTION_H

#include "api/pg_internal.h"

#define MCPG_KEY_RECORD       "mooncake_pg/coordinator"
#define MCPG_KEY_TERM         "mooncake_pg/term"
#define MCPG_RECORD_CAP       (MCPG_ADDRESS_CAP + 64u)
#define MCPG_POLL_US          50000u
#define MCPG_ELECTION_STEP_US 100000u /* per rank number */
#define MCPG_ELECTION_LAST_US 2000000u
#define MCPG_KV_GRACE_US      2000000u /* beyond its own limit, until a callback counts as stuck */

/* closing: also when ended. */
typedef struct mcpg_record_line {
    bool present, closing, ended;
    uint64_t term;
    char address[MCPG_ADDRESS_CAP];
    char raw[MCPG_RECORD_CAP + 1];
    size_t raw_len;
} mcpg_record_line_t;

/* One search on its helper thread. Whoever of the two is last frees it. */
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done, abandoned; /* abandoned: nobody waits for it any more */
    mcpg_kv_t kv;
    mcpg_log_t log;
    mcpg_timers_t timers;
    uint32_t rank;
    bool may_host;
    char *event_log_dir;
    mcpg_security_t *security;
    mcpg_credentials_t *credentials; /* for what was found */
    uint64_t above_term, deadline_us;
    mcpg_status_t status;
    mcpg_record_line_t found;
    mcpg_coord_host_t *hosted;
    char error[MCPG_ERROR_CAP];
} mcpg_search_t;

/* The lowest ranks try first. */
static inline uint64_t mcpg__election_turn_us(uint32_t rank) {
    uint64_t turn_us = (uint64_t)rank * MCPG_ELECTION_STEP_US;
    return turn_us < MCPG_ELECTION_LAST_US ? turn_us : MCPG_ELECTION_LAST_US;
}

/* OK with present false: there is none. */
mcpg_status_t mcpg__record_read(const mcpg_kv_t *kv, uint32_t timeout_ms, mcpg_record_line_t *out, char *error,
                                size_t error_cap);
void mcpg__record_retract(const mcpg_kv_t *kv, const mcpg_record_line_t *open);
void mcpg__record_use(mcpg_context_t *context, const mcpg_record_line_t *r,
                      mcpg_credentials_t *credentials); /* takes the credentials over */
mcpg_search_t *mcpg__search_new(const mcpg_context_t *context, uint64_t above_term, uint64_t deadline_us);
void mcpg__search_free(mcpg_search_t *s);
/* One candidacy against the record as it was read. OK with *won_out false: somebody else was first. */
mcpg_status_t mcpg__campaign(mcpg_search_t *s, const mcpg_record_line_t *old, bool *won_out);
void mcpg__bootstrap_host(mcpg_context_t *context, mcpg_coord_host_t *hosted, const mcpg_record_line_t *record);
bool mcpg__run_detached(void *(*func)(void *), void *arg); /* on a thread that nobody joins */

#endif
