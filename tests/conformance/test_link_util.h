/* test_link_util.h: engines with recorded observations, linked in pairs, for the link conformance tests. Waits are
 * bounded, nothing sleeps as synchronisation.
 */
#ifndef MCPG_TEST_LINK_UTIL_H
#define MCPG_TEST_LINK_UTIL_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/executor.h"
#include "dataplane/engine.h"
#include "dataplane/fault.h"
#include "dataplane/link.h"

#define NODES_MAX 4u
#define WAIT_US   10000000u

typedef struct {
    mcpg_engine_t *e;
    uint32_t rank;
    mcpg_incarnation_t inc;
    /* observations, by peer rank */
    atomic_uint up[NODES_MAX], lost[NODES_MAX], dead[NODES_MAX], relayed[NODES_MAX];
    atomic_uint checked_ok, checked_bad, refuse_first;
    _Atomic uint64_t dead_at_us[NODES_MAX];
    /* relayed views: the last one */
    atomic_uint asked, told;
    _Atomic uint64_t asked_epoch, told_len, told_sum;
} node_t;

typedef struct {
    const char *name, *transports;
    bool fault;
} variant_t;

typedef struct {
    mcpg_lx_t x;
    bool ended;
    mcpg_lx_result_t result;
} xfer_t;

static inline uint64_t now_us(void) {
    return mcpg__now().us;
}

static inline bool obs_up(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    node_t *n = user;
    (void)inc;
    if (atomic_load(&n->refuse_first) > 0) {
        atomic_fetch_sub(&n->refuse_first, 1u);
        return false;
    }
    atomic_fetch_add(&n->up[rank.v], 1u);
    return true;
}
static inline bool obs_lost(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc) {
    node_t *n = user;
    (void)inc;
    atomic_fetch_add(&n->lost[rank.v], 1u);
    return true;
}
static inline bool obs_checked(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, uint64_t id, bool ok) {
    node_t *n = user;
    (void)rank;
    (void)inc;
    (void)id;
    atomic_fetch_add(ok ? &n->checked_ok : &n->checked_bad, 1u);
    return true;
}
static inline bool obs_death(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_proof_t proof) {
    node_t *n = user;
    (void)inc;
    atomic_store(&n->dead_at_us[rank.v], mcpg__now().us);
    atomic_fetch_add(proof == MCPG_PROOF_RELAYED ? &n->relayed[rank.v] : &n->dead[rank.v], 1u);
    return true;
}

static inline void obs_view_asked(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, mcpg_gid_t gid,
                                  mcpg_view_id_t view) {
    node_t *n = user;
    (void)inc;
    atomic_store(&n->asked_epoch, (uint64_t)rank.v << 48 | (uint64_t)gid.v << 32 | view.epoch);
    atomic_fetch_add(&n->asked, 1u);
}
static inline uint64_t sum_of(const uint8_t *bytes, size_t len) {
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i++) sum = sum * 31u + bytes[i];
    return sum;
}
static inline void obs_view_told(void *user, mcpg_rank_t rank, mcpg_incarnation_t inc, const uint8_t *bytes,
                                 size_t len) {
    node_t *n = user;
    (void)rank;
    (void)inc;
    atomic_store(&n->told_len, len);
    atomic_store(&n->told_sum, sum_of(bytes, len));
    atomic_fetch_add(&n->told, 1u);
}

/* Broken links are the subject here: their warnings would bury the results. */
static inline void no_log(void *user, mcpg_log_level_t level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}
static inline void node_start_on(node_t *n, uint32_t rank, uint64_t counter, const variant_t *v, uint64_t host_id) {
    mcpg_engine_config_t c = {.rank = {rank}, .host_id = host_id, .host_ip = "127.0.0.1", .transports = v->transports};
    char error[256] = "";
    memset(n, 0, sizeof(*n));
    mcpg__fault_enable(v->fault);
    mcpg__log_init(&c.log, no_log, NULL, "test");
    mcpg_status_t status = mcpg__engine_create(&c, &n->e, error, sizeof(error));
    if (status != MCPG_OK) fail_msg("engine_create: %d %s", (int)status, error);
    n->rank = rank;
    n->inc = (mcpg_incarnation_t){1, counter};
    mcpg_dp_observer_t obs = {.user = n,
                              .link_up = obs_up,
                              .link_lost = obs_lost,
                              .link_checked = obs_checked,
                              .death = obs_death,
                              .view_asked = obs_view_asked,
                              .view_told = obs_view_told};
    mcpg__engine_set_observer(n->e, &obs);
    mcpg__engine_set_incarnation(n->e, n->inc);
}
static inline void node_start(node_t *n, uint32_t rank, uint64_t counter, const variant_t *v) {
    node_start_on(n, rank, counter, v, 77);
}
static inline void node_stop(node_t *n) {
    mcpg__engine_destroy(n->e);
    n->e = NULL;
}

static inline void node_open_at(node_t *n, uint32_t rank, mcpg_incarnation_t inc, const uint8_t *endpoint, uint32_t len,
                                uint64_t host_id) {
    mcpg_dp_peer_t p = {
        .rank = {rank}, .inc = inc, .host_id = host_id, .pid = 0, .endpoint = endpoint, .endpoint_len = len};
    mcpg__engine_open_link(n->e, &p);
}
static inline void node_open(node_t *n, const node_t *to) {
    uint8_t ep[MCPG_ENDPOINT_CAP];
    size_t len = mcpg__engine_endpoint(to->e, ep, sizeof(ep));
    node_open_at(n, to->rank, to->inc, ep, (uint32_t)len, 77);
}

typedef struct {
    node_t *n;
    uint32_t rank;
    mcpg_incarnation_t inc;
    mcpg_link_st_t st;
} state_wait_t;
static inline bool state_is(void *arg) {
    state_wait_t *w = arg;
    return mcpg__link_state(w->n->e, (mcpg_rank_t){w->rank}, w->inc) == w->st;
}
static inline bool node_wait_state(node_t *n, uint32_t rank, mcpg_incarnation_t inc, mcpg_link_st_t st,
                                   uint64_t within_us) {
    state_wait_t w = {n, rank, inc, st};
    mcpg__engine_lock(n->e);
    bool ok = mcpg__engine_wait(n->e, state_is, &w, now_us() + within_us);
    mcpg__engine_unlock(n->e);
    return ok;
}
static inline void link_pair(node_t *a, node_t *b) {
    node_open(a, b);
    node_open(b, a);
    assert_true(node_wait_state(a, b->rank, b->inc, MCPG_LINK_ST_UP, WAIT_US));
    assert_true(node_wait_state(b, a->rank, a->inc, MCPG_LINK_ST_UP, WAIT_US));
}

/* Waits on a counter that an observer of another thread raises. */
typedef struct {
    atomic_uint *at;
    unsigned least;
} count_wait_t;
static inline bool count_is(void *arg) {
    count_wait_t *w = arg;
    return atomic_load(w->at) >= w->least;
}
static inline bool node_wait_count(node_t *n, atomic_uint *at, unsigned least, uint64_t within_us) {
    count_wait_t w = {at, least};
    mcpg__engine_lock(n->e);
    bool ok = mcpg__engine_wait(n->e, count_is, &w, now_us() + within_us);
    mcpg__engine_unlock(n->e);
    return ok;
}

static inline void xfer_done(mcpg_lx_t *x, mcpg_lx_result_t result) {
    xfer_t *t = x->owner;
    t->ended = true;
    t->result = result;
}
static inline void xfer_init(xfer_t *t, const node_t *peer, uint32_t gid, uint64_t seq, void *buf, uint64_t bytes) {
    memset(t, 0, sizeof(*t));
    t->x.peer = (mcpg_rank_t){peer->rank};
    t->x.peer_inc = peer->inc;
    t->x.key = (mcpg_msg_key_t){.gid = gid, .view_term = 1, .view_epoch = 1, .seq = seq};
    t->x.sig = (mcpg_msg_sig_t){.kind = 1, .dtype = 2, .redop = 3, .root = 0, .bytes = bytes};
    t->x.buf = buf;
    t->x.done = xfer_done;
    t->x.owner = t;
}
static inline void post(node_t *n, xfer_t *t, bool is_send) {
    mcpg__engine_lock(n->e);
    if (is_send)
        mcpg__link_send(n->e, &t->x);
    else
        mcpg__link_recv(n->e, &t->x);
    mcpg__engine_kick(n->e);
    mcpg__engine_unlock(n->e);
}
static inline bool xfer_ended(void *arg) {
    return ((xfer_t *)arg)->ended;
}
static inline bool wait_ended(node_t *n, xfer_t *t, uint64_t within_us) {
    mcpg__engine_lock(n->e);
    bool ok = mcpg__engine_wait(n->e, xfer_ended, t, now_us() + within_us);
    mcpg__engine_unlock(n->e);
    return ok;
}
static inline void expect(node_t *n, xfer_t *t, mcpg_lx_result_t result) {
    if (!wait_ended(n, t, WAIT_US)) fail_msg("transfer did not end");
    assert_int_equal(t->result, result);
}
static inline void fill(uint8_t *buf, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) buf[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
}
static inline void cancel(node_t *n, xfer_t *t) {
    mcpg__engine_lock(n->e);
    mcpg__link_cancel(n->e, &t->x);
    mcpg__engine_unlock(n->e);
}

#endif
