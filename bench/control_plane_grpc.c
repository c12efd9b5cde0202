/* control_plane_grpc.c: PREPARE to COMMIT with real hosts: one coordinator and many agents in one process, joined by
 * gRPC on loopback, with a data plane that does nothing.
 *
 * A change is measured from the first hold at any agent (PREPARE came) to the last installed view (COMMIT came at
 * everybody). It must never touch a socket itself.
 */
#include "control_plane_bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_host.h"
#include "common/executor.h"
#include "coordinator/coord_host.h"

#define MAX_AGENTS 64u
#define WAIT_US    60000000u

/* One membership change as all agents' data planes see it. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t first_hold_us, last_install_us;
    uint32_t installs;
} round_t;

typedef struct {
    round_t *round;
    uint32_t rank, ranks;
    const mcpg_dp_observer_t *observer;
    mcpg_agent_host_t *host;
    const char *address;
    uint64_t next_seq;
    mcpg_gid_t gid;
    mcpg_status_t status;
    char error[256];
} node_t;

static const mcpg_timers_t timers = {.heartbeat_us = 200000,
                                     .offline_us = 20000000, /* a slow machine loses nobody */
                                     .ack_us = 20000000,
                                     .ack_added_us = 10000000,
                                     .reconcile_us = 2000000,
                                     .coordinator_grace_us = 30000000,
                                     .collective_timeout_us = 1000000,
                                     .p2p_timeout_us = 10000000};

/* ---- a data plane that does nothing ---- */

static void dp_open_link(void *dp, const mcpg_dp_peer_t *peer) {
    node_t *node = (node_t *)dp;
    (void)node->observer->link_up(node->observer->user, peer->rank, peer->inc);
}
static void dp_close_link(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, bool dead) {
    (void)dp, (void)rank, (void)inc, (void)dead;
}
static void dp_check_link(void *dp, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t check_id) {
    node_t *node = (node_t *)dp;
    (void)node->observer->link_checked(node->observer->user, rank, inc, check_id, true);
}
static void dp_group_open(void *dp, const mcpg_dp_group_config_t *config) {
    (void)dp, (void)config;
}
static void dp_gid(void *dp, mcpg_gid_t gid) {
    (void)dp, (void)gid;
}
static uint64_t dp_hold(void *dp, mcpg_gid_t gid, bool *steps_out) {
    node_t *node = (node_t *)dp;
    (void)gid;
    *steps_out = false;
    uint64_t now = mcpg__now().us;
    (void)pthread_mutex_lock(&node->round->lock);
    if (now < node->round->first_hold_us) node->round->first_hold_us = now;
    (void)pthread_mutex_unlock(&node->round->lock);
    return node->next_seq;
}
static void dp_install_view(void *dp, const mcpg_down_commit_t *commit) {
    node_t *node = (node_t *)dp;
    (void)commit;
    uint64_t now = mcpg__now().us;
    (void)pthread_mutex_lock(&node->round->lock);
    if (now > node->round->last_install_us) node->round->last_install_us = now;
    node->round->installs++;
    (void)pthread_cond_broadcast(&node->round->changed);
    (void)pthread_mutex_unlock(&node->round->lock);
}
static void dp_resolve(void *dp, mcpg_gid_t gid, uint64_t report_id, mcpg_status_t status) {
    (void)dp, (void)gid, (void)report_id, (void)status;
}
static const mcpg_dp_ops_t null_dp = {.open_link = dp_open_link,
                                      .close_link = dp_close_link,
                                      .check_link = dp_check_link,
                                      .group_open = dp_group_open,
                                      .group_close = dp_gid,
                                      .hold = dp_hold,
                                      .release_hold = dp_gid,
                                      .install_view = dp_install_view,
                                      .sync_fence = dp_gid,
                                      .resolve = dp_resolve};

static void on_attached(void *user, mcpg_incarnation_t inc) {
    (void)user, (void)inc;
}
static void on_observe(void *user, const mcpg_dp_observer_t *observer) {
    ((node_t *)user)->observer = observer;
}
static void on_notify(void *user, const mcpg_agent_notify_t *notify) {
    (void)user, (void)notify;
}

/* ---- agents ---- */

static void *node_start(void *arg) {
    node_t *node = (node_t *)arg;
    mcpg_agent_host_config_t config = {.rpc = mcpg__rpc_grpc(),
                                       .coordinator = node->address,
                                       .dp_ops = &null_dp,
                                       .dp = node,
                                       .attached = on_attached,
                                       .observe = on_observe,
                                       .notify = on_notify,
                                       .user = node};
    config.agent = (mcpg_agent_config_t){.rank = {node->rank},
                                         .session = {node->rank + 1000u},
                                         .host_id = 5,
                                         .pid = 100000 + (int64_t)node->rank,
                                         .endpoint = "endpoint",
                                         .endpoint_len = 8,
                                         .max_ranks = node->ranks,
                                         .max_groups = 4,
                                         .max_slots_total = 4u * node->ranks,
                                         .max_calls = 8,
                                         .max_reports = 8,
                                         .attach_timeout_us = WAIT_US,
                                         .seed = node->rank + 1u,
                                         .timers = timers};
    mcpg__log_init(&config.log, NULL, NULL, "bench");
    node->status = mcpg__agent_host_start(&config, &node->host, node->error, sizeof(node->error));
    if (node->status != MCPG_OK) return NULL;
    uint32_t order[MAX_AGENTS];
    for (uint32_t r = 0; r < node->ranks; r++) order[r] = r;
    mcpg_agent_call_register_t call = {
        .order = order, .order_count = node->ranks, .capacity = node->ranks, .manual = true, .timeout_us = WAIT_US};
    mcpg_agent_call_done_t done = {.status = MCPG_OK};
    node->status = mcpg__agent_host_register(node->host, &call, &done, node->error, sizeof(node->error));
    node->gid = done.gid;
    return NULL;
}

static void *node_join(void *arg) {
    node_t *node = (node_t *)arg;
    mcpg_agent_call_join_t call = {.gid = node->gid, .timeout_us = WAIT_US};
    mcpg_agent_call_done_t done;
    node->status = mcpg__agent_host_join(node->host, &call, &done, node->error, sizeof(node->error));
    return NULL;
}

/* ---- rounds ---- */

static bool round_ended(round_t *round, uint32_t installs) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_US / 1000000u;
    int rc = 0;
    (void)pthread_mutex_lock(&round->lock);
    while (round->installs < installs && rc == 0) rc = pthread_cond_timedwait(&round->changed, &round->lock, &until);
    bool ok = round->installs >= installs;
    (void)pthread_mutex_unlock(&round->lock);
    return ok;
}

/* Rank 0 asks; the time of the change as the data planes saw it. Negative: it failed. */
static double change(node_t *nodes, uint32_t ranks, bool activate) {
    round_t *round = nodes[0].round;
    (void)pthread_mutex_lock(&round->lock);
    round->first_hold_us = UINT64_MAX;
    round->last_install_us = 0;
    round->installs = 0;
    (void)pthread_mutex_unlock(&round->lock);
    mcpg_agent_call_propose_t call = {.gid = nodes[0].gid, .expected_epoch = MCPG_ANY_EPOCH, .wait_us = WAIT_US / 2u};
    mcpg__rankset_add(activate ? &call.activate : &call.deactivate, ranks - 1u);
    mcpg_agent_call_done_t done;
    mcpg_status_t status =
        mcpg__agent_host_propose(nodes[0].host, &call, &done, nodes[0].error, sizeof(nodes[0].error));
    if (status != MCPG_OK || !round_ended(round, ranks)) {
        (void)fprintf(stderr, "a change failed: %s %s\n", mcpg_status_name(status), nodes[0].error);
        return -1;
    }
    return (double)(round->last_install_us - round->first_hold_us);
}

static bool rounds_run(node_t *nodes, uint32_t ranks, uint32_t rounds, double *removes, double *adds) {
    node_t *last = &nodes[ranks - 1u];
    for (uint32_t i = 0; i < rounds; i++) {
        pthread_t joiner;
        removes[i] = change(nodes, ranks, false);
        if (removes[i] < 0 || pthread_create(&joiner, NULL, node_join, last) != 0) return false;
        adds[i] = change(nodes, ranks, true);
        (void)pthread_join(joiner, NULL);
        if (adds[i] < 0 || last->status != MCPG_OK) return false;
    }
    return true;
}

static bool nodes_start(node_t *nodes, round_t *round, const char *address, uint32_t ranks) {
    pthread_t threads[MAX_AGENTS];
    bool ok = true;
    for (uint32_t r = 0; r < ranks; r++) {
        nodes[r] = (node_t){.round = round, .rank = r, .ranks = ranks, .address = address, .next_seq = 3};
        if (pthread_create(&threads[r], NULL, node_start, &nodes[r]) != 0) abort();
    }
    for (uint32_t r = 0; r < ranks; r++) {
        (void)pthread_join(threads[r], NULL);
        if (nodes[r].status == MCPG_OK) continue;
        (void)fprintf(stderr, "rank %u: %s %s\n", r, mcpg_status_name(nodes[r].status), nodes[r].error);
        ok = false;
    }
    return ok;
}

static void print_rows(uint32_t ranks, uint32_t rounds, double *removes, double *adds) {
    bench_row_t row = {
        .name = "prepare_to_commit_remove", .backend = "hosts", .transport = "grpc", .ranks = ranks, .more = ""};
    bench_row(&row, removes, rounds);
    row.name = "prepare_to_commit_add";
    bench_row(&row, adds, rounds);
}

bool bench_grpc(uint32_t ranks, uint32_t rounds) {
    static node_t nodes[MAX_AGENTS];
    round_t round = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    char error[256] = "", address[160];
    mcpg_coord_host_t *coord = NULL;
    mcpg_coord_host_config_t config = {.rpc = mcpg__rpc_grpc(), .bind = "127.0.0.1:0", .term = 1, .timers = timers};
    mcpg__log_init(&config.log, NULL, NULL, "bench");
    if (ranks > MAX_AGENTS || mcpg__coord_host_start(&config, &coord, error, sizeof(error)) != MCPG_OK) {
        (void)fprintf(stderr, "coordinator: %s\n", error);
        return false;
    }
    (void)mcpg__coord_host_address(coord, address, sizeof(address));
    double *removes = calloc(rounds, sizeof(*removes)), *adds = calloc(rounds, sizeof(*adds));
    bool ok = removes != NULL && adds != NULL && nodes_start(nodes, &round, address, ranks) &&
              rounds_run(nodes, ranks, rounds, removes, adds);
    if (ok) print_rows(ranks, rounds, removes, adds);
    for (uint32_t r = 0; r < ranks; r++) mcpg__agent_host_stop(nodes[r].host);
    mcpg__coord_host_stop(coord);
    free(removes);
    free(adds);
    return ok;
}
