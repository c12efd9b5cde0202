/* pg_internal.h: what the files of src/api share: context, group, work, and the small helpers of every entry point.
 *
 * src/api only composes: it checks arguments, turns handles into ids and waits. It never decides about membership and
 * never moves data. Lock order: groups_mu, works_mu and events.mu are leaves: none is held while another is taken or
 * while user code runs.
 */
#ifndef MCPG_API_PG_INTERNAL_H
#define MCPG_API_PG_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/agent_host.h"
#include "api/pg_security.h"
#include "common/base.h"
#include "common/executor.h"
#include "common/fork.h"
#include "common/log.h"
#include "coordinator/coord_host.h"
#include "dataplane/dp.h"
#include "rpc/rpc.h"

#define MCPG_ADDRESS_CAP     256u
#define MCPG_ERROR_CAP       512u
#define MCPG_EVENT_QUEUE_CAP 4096u    /* events that may wait for the callback thread; the oldest are dropped */
#define MCPG_DRAIN_US        5000000u /* longest a destroy may take for its peers' sake */

/* Where the coordinator is, and whether this process hosts it. */
typedef struct {
    char address[MCPG_ADDRESS_CAP];
    uint64_t term;                   /* of the record it came from, 0: not from a record */
    bool from_record;                /* may move: the record is watched */
    mcpg_credentials_t *credentials; /* for that address, owned; NULL: plaintext */
    mcpg_coord_host_t *hosted;
    uint64_t hosted_term; /* of the record that this process published */
    char hosted_address[MCPG_ADDRESS_CAP];
} mcpg_bootstrap_t;

typedef struct {
    mcpg_agent_notify_t notify;
} mcpg_queued_event_t;

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t wake, idle;
    pthread_t thread;
    bool started, stop, running, over; /* over: the thread has ended, nothing is called any more */
    mcpg_event_func_t func;
    void *user;
    struct mcpg_work *done_head, *done_tail; /* completed works with a callback */
    mcpg_queued_event_t *ring;
    uint32_t ring_at, ring_count;
    uint64_t dropped;
} mcpg_events_t;

struct mcpg_work {
    mcpg_context_t *context;
    mcpg_dp_work_t *dp;
    atomic_uint refs; /* the handle, and a callback that has not run */
    mcpg_work_func_t func;
    void *user;
    struct mcpg_work *done_next;
    struct mcpg_work *next; /* spare list */
};

struct mcpg_group {
    mcpg_context_t *context;
    mcpg_gid_t gid;
    uint32_t slot, capacity;
    bool manual;
    mcpg_group_t *next;
};

/* The thread that follows the coordinator's record (from_record only). */
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t wake;
    bool started, stop, lost;
    bool leaving; /* the context is being destroyed: no candidacy any more */
    uint64_t lost_at_us;
    bool asking, ended; /* asking: inside a key-value callback */
} mcpg_watch_t;

struct mcpg_context {
    uint64_t id;
    atomic_uint refs; /* the handle, and each live work */
    mcpg_log_t log;
    mcpg_timers_t timers;
    uint32_t rank;
    bool has_kv, may_host, may_take_over;
    mcpg_kv_t kv;
    char *event_log_dir;
    mcpg_security_t *security;
    mcpg_bootstrap_t bootstrap;
    mcpg_watch_t watch;
    mcpg_dp_t *dp;
    mcpg_agent_host_t *agent;
    mcpg_events_t events;

    pthread_mutex_t groups_mu; /* groups, inc, bootstrap.address */
    mcpg_group_t *groups;
    mcpg_incarnation_t inc;

    pthread_mutex_t works_mu;
    pthread_cond_t works_idle;
    mcpg_work_t *spare;
    atomic_uint waiters; /* threads inside mcpg_work_wait */
    atomic_bool settling;
};

/* ---- pg_error.c ---- */
/* Records the sentence for the calling thread and this context; returns status. */
mcpg_status_t mcpg__fail(const mcpg_context_t *context, mcpg_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *mcpg__error_of(const mcpg_context_t *context);
/* Copies a versioned struct. dst: own_size bytes. INVALID_ARGUMENT with a sentence in error. what: "mcpg_config_t". */
MCPG_MUST_USE mcpg_status_t mcpg__versioned_copy(void *dst, size_t own_size, const void *src, const char *what,
                                                 char *error, size_t error_cap);
void mcpg__cond_init(pthread_cond_t *cond);
bool mcpg__cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mu, uint64_t deadline_us); /* false: time is up */
const mcpg_rpc_ops_t *mcpg__rpc_for(const char *address); /* "inproc:..." is the in-process twin, for tests */

/* ---- pg_bootstrap.c ---- */
/* Finds the coordinator or is elected. Runs kv callbacks on a helper thread. above_term: records up to it are of the
 * past. */
MCPG_MUST_USE mcpg_status_t mcpg__bootstrap(mcpg_context_t *context, const char *configured, uint64_t above_term,
                                            uint64_t deadline_us, char *error, size_t error_cap);
void mcpg__bootstrap_mark_closing(mcpg_context_t *context); /* before anything else of a destroy; helper thread */
/* over: at the end of the context; its record then says whether a rank was still attached. */
void mcpg__bootstrap_stop_hosted(mcpg_context_t *context, bool over);
/* ---- pg_follow.c ---- */
/* Starts following the record; mcpg__follow_lost tells it that contact was lost (true) or found (false). */
MCPG_MUST_USE mcpg_status_t mcpg__follow_start(mcpg_context_t *context);
void mcpg__follow_lost(mcpg_context_t *context, bool lost);
void mcpg__follow_leaving(mcpg_context_t *context);
void mcpg__follow_stop(mcpg_context_t *context);

/* ---- pg_host.c ---- */
uint64_t mcpg__host_id(void); /* equal: same kernel, network and process namespace */

/* ---- pg_events.c ---- */
MCPG_MUST_USE mcpg_status_t mcpg__events_start(mcpg_context_t *context);
void mcpg__events_push(mcpg_context_t *context, const mcpg_agent_notify_t *notify);
void mcpg__events_push_work(mcpg_context_t *context, mcpg_work_t *work); /* takes over one reference */
bool mcpg__events_over(mcpg_context_t *context);
void mcpg__events_barrier(
    mcpg_context_t *context); /* returns when no callback that began before is running; no-op on that thread */
void mcpg__events_stop(mcpg_context_t *context); /* runs what is queued, joins */

/* ---- pg_work.c ---- */
MCPG_MUST_USE mcpg_status_t mcpg__work_new(mcpg_context_t *context, mcpg_work_t **out);
void mcpg__work_unref(mcpg_work_t *work);
void mcpg__works_settle(mcpg_context_t *context); /* returns when no thread waits for a work any more */
void mcpg__context_unref(mcpg_context_t *context);

/* ---- pg_group.c ---- */
void mcpg__group_leave(mcpg_group_t *group, uint64_t flush_us); /* flush, abort, leave, free; already unlinked */

#endif
