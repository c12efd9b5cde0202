/* engine.h: the one lock, the one epoll set and the one progress thread under links and operations.
 *
 * Whoever needs something to move drives: it takes the lock, lets links and operations progress, and sleeps in epoll
 * when nothing moves. At most one thread drives at a time: a waiting caller if there is one, else the progress thread.
 * Spinning is bounded, then it sleeps. An idle process uses no CPU. Never calls user code with the lock held.
 */
#ifndef MCPG_DATAPLANE_ENGINE_H
#define MCPG_DATAPLANE_ENGINE_H

#include "common/base.h"
#include "common/dp_iface.h"
#include "common/log.h"
#include "dataplane/link.h"

typedef struct {
    void *user;
    /* Operations' turn, lock held, after links moved or a deadline came. Returns true if it made something move. */
    bool (*progress)(void *user, uint64_t now_us);
    /* Earliest time progress wants to be called again without an event; UINT64_MAX: none. Lock held. */
    uint64_t (*next_deadline)(void *user);
    /* The state of a link changed (up, lost, dead): lock held. The link layer has told the observer already. */
    void (*link_changed)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_link_st_t state);
    /* Work that must happen without the lock (completion callbacks): called after the lock was dropped, on a data plane
     * thread or a waiting caller. Returns false when there was nothing. */
    bool (*unlocked)(void *user);
    /* A peer's word about a collective that is no transfer's result: lock held, from inside the link layer. May cancel
     * and refuse, must not post. */
    void (*stray)(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const mcpg_msg_key_t *key,
                  const mcpg_msg_sig_t *sig, mcpg_stray_t how);
} mcpg_engine_hooks_t;

typedef struct {
    mcpg_rank_t rank;
    uint64_t host_id;
    const char *host_ip;
    const char *transports;
    mcpg_engine_hooks_t hooks;
    mcpg_log_t log;
} mcpg_engine_config_t;

MCPG_MUST_USE mcpg_status_t mcpg__engine_create(const mcpg_engine_config_t *config, mcpg_engine_t **out, char *error,
                                                size_t error_cap);
void mcpg__engine_destroy(
    mcpg_engine_t *e); /* joins, closes links: posted sends and receives end with LINK_LOST first */
void mcpg__engine_lock(mcpg_engine_t *e);
void mcpg__engine_unlock(mcpg_engine_t *e);
/* Something was posted from outside the driving thread: the driver must look. Lock held or not. */
void mcpg__engine_kick(mcpg_engine_t *e);
/* Drives until done(arg) is true (evaluated with the lock held; the lock is held again at return) or deadline_us passed
 * (mcpg__now). Called with the lock held. Returns done(arg). Never from a hook. Several threads may wait at once. */
bool mcpg__engine_wait(mcpg_engine_t *e, bool (*done)(void *arg), void *arg, uint64_t deadline_us);
void mcpg__engine_set_observer(mcpg_engine_t *e, const mcpg_dp_observer_t *observer); /* NULL: none */
void mcpg__engine_set_incarnation(mcpg_engine_t *e, mcpg_incarnation_t own);
size_t mcpg__engine_endpoint(const mcpg_engine_t *e, uint8_t *buf, size_t cap);
/* dp_iface's link calls; take the lock themselves. */
void mcpg__engine_open_link(mcpg_engine_t *e, const mcpg_dp_peer_t *peer);
void mcpg__engine_close_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead);
void mcpg__engine_check_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id);
/* dp_iface's relay of views: to every peer whose link is up; to one. */
void mcpg__engine_ask_view(mcpg_engine_t *e, mcpg_gid_t gid, mcpg_view_id_t view);
void mcpg__engine_tell_view(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes,
                            size_t len);
/* Lock held, not from a hook: reads what this process has sent so far and hands it out, as if the driver had just done
 * so. */
void mcpg__engine_drain_link(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc);
/* Lock held. Keeps what a full observer queue refused and offers it again. */
void mcpg__engine_tell_op_failed(mcpg_engine_t *e, mcpg_gid_t gid, uint64_t report_id, uint64_t seq,
                                 const mcpg_member_t *failed, uint32_t count);
size_t mcpg__engine_links_json(mcpg_engine_t *e, char *buf,
                               size_t cap); /* [{"rank":1,"transport":"shm","state":"up",...}]; takes the lock */
const char *mcpg__link_transport_name(const mcpg_engine_t *e, mcpg_rank_t rank);

#endif
