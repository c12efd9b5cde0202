/* link_watch.c: proof of death: a pidfd per peer process on this host, and deaths that other ranks relay.
 *
 * A pid is only a name: it is watched after its start time was found to be the one the peer told when the stream was
 * set up. Never takes a reset or a hang-up for a proof.
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/fork.h"
#include "dataplane/link_priv.h"
#include "dataplane/transport_priv.h"

static void process_ended(mcpg_poll_t *self, uint32_t events) {
    mcpg_link_t *l = (mcpg_link_t *)((char *)self - offsetof(mcpg_link_t, pid_poll));
    (void)events;
    l->pid_dead = true;
    l->e->service_due = true;
}

void mcpg__watch_start(mcpg_link_t *l, int64_t pid) {
    if (pid <= 0 || pid > INT32_MAX || l->pidfd >= 0 || l->host_id != l->e->host_id) return;
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
    if (fd < 0) return;
    uint64_t start = mcpg__proc_start_time(pid);
    if (start == 0 || start != l->stream->pid_start) {
        close(fd);
        return;
    }
    l->pid_poll.func = process_ended;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->pid_poll};
    if (epoll_ctl(l->e->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        close(fd);
        return;
    }
    (void)mcpg__fork_close_register(fd);
    l->pidfd = fd;
    l->pid = pid;
}

void mcpg__watch_stop(mcpg_link_t *l) {
    if (l->pidfd < 0) return;
    l->e->stale = true;
    mcpg__fork_close_unregister(l->pidfd);
    epoll_ctl(l->e->epoll_fd, EPOLL_CTL_DEL, l->pidfd, NULL);
    close(l->pidfd);
    l->pidfd = -1;
}

bool mcpg__watch_says_alive(const mcpg_link_t *l) {
    if (l->pidfd < 0 || l->pid_dead) return false;
    struct pollfd p = {.fd = l->pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

void mcpg__link_relayed_death(mcpg_engine_t *e, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    if (rank.v == e->rank.v) return;
    mcpg_link_t *l = e->links[rank.v];
    int cmp = l == NULL ? 1 : mcpg__inc_cmp(inc, l->inc);
    if (cmp < 0 || (cmp == 0 && l->state == MCPG_LINK_ST_DEAD)) return;
    if (cmp > 0) {
        mcpg_obs_t obs = {.kind = MCPG_OBS_DEATH, .rank = rank, .inc = inc, .proof = MCPG_PROOF_RELAYED};
        mcpg__obs_tell(e, &obs);
        return;
    }
    if (mcpg__watch_says_alive(l)) {
        mcpg__log(&e->log, MCPG_LOG_WARN, "relayed death ignored: rank %u is alive on this host", rank.v);
        return;
    }
    e->service_due = true;
    if (l->state != MCPG_LINK_ST_UP || l->hung_up || l->failed) {
        l->relay_dead = true;
    } else if (l->relay_nonce == 0) { /* one word of its own outweighs another rank's */
        l->relay_nonce = ++l->probe_nonce;
        l->relay_until_us = e->now_us + MCPG_RELAY_US;
        mcpg__tx_control(l, MCPG_FT_PROBE, l->relay_nonce, NULL, 0);
    }
}
