/* test_version_mismatch.c: a hand-made ATTACH of another protocol version is refused with both versions named; a right
 * one still attaches. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/codec.h"
#include "mooncake/pg.h"
#include "rpc/rpc.h"

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static bool is_connected, is_answered;
static int32_t refused;
static char text[MCPG_TEXT_CAP];

static void on_connected(void *user) {
    (void)user;
    pthread_mutex_lock(&mu);
    is_connected = true;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mu);
}
static bool on_message(void *user, const uint8_t *buf, size_t len) {
    (void)user;
    static uint8_t mem[65536];
    mcpg_arena_t arena = {.base = mem, .cap = sizeof(mem)};
    mcpg_down_msg_t m;
    if (mcpg__down_unpack(buf, len, &arena, &m) != MCPG_OK || m.kind != MCPG_DOWN_REFUSED) return true;
    pthread_mutex_lock(&mu);
    is_answered = true;
    refused = m.u.refused.status;
    (void)snprintf(text, sizeof(text), "%.*s", (int)m.u.refused.text.len, (const char *)m.u.refused.text.ptr);
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mu);
    return true;
}
static void on_closed(void *user, mcpg_status_t why) {
    (void)user, (void)why;
}

static bool wait_for(const bool *flag) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    int rc = 0;
    pthread_mutex_lock(&mu);
    while (!*flag && rc == 0) rc = pthread_cond_timedwait(&cond, &mu, &until);
    bool set = *flag;
    pthread_mutex_unlock(&mu);
    return set;
}

static void test_version_mismatch(void **state) {
    (void)state;
    mcpg_coordinator_config_t config = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    config.fresh = true;
    mcpg_coordinator_t *coordinator = NULL;
    char error[512] = "", address[128];
    assert_int_equal(mcpg_coordinator_start(&config, &coordinator, error, sizeof(error)), MCPG_OK);
    (void)mcpg_coordinator_address(coordinator, address, sizeof(address));
    mcpg_rpc_client_events_t events = {NULL, on_connected, on_message, on_closed};
    mcpg_rpc_client_t *client = NULL;
    assert_int_equal(mcpg__rpc_grpc()->client_create(address, NULL, &events, &client, error, sizeof(error)), MCPG_OK);
    assert_int_equal(mcpg__rpc_grpc()->client_connect(client), MCPG_OK);
    assert_true(wait_for(&is_connected));
    mcpg_up_msg_t m;
    memset(&m, 0, sizeof(m));
    m.kind = MCPG_UP_ATTACH;
    m.u.attach.version = 99;
    m.u.attach.rank.v = 3;
    m.u.attach.session.v = 1;
    m.u.attach.endpoint = (mcpg_bytes_t){(const uint8_t *)"e", 1};
    static uint8_t buf[65536];
    size_t len = 0;
    assert_int_equal(mcpg__up_pack(&m, buf, sizeof(buf), &len), MCPG_OK);
    assert_int_equal(mcpg__rpc_grpc()->client_send(client, buf, len), MCPG_OK);
    assert_true(wait_for(&is_answered));
    assert_int_equal(refused, MCPG_VERSION_MISMATCH);
    assert_non_null(strstr(text, "99"));
    mcpg__rpc_grpc()->client_destroy(client);
    mcpg_config_t c = MCPG_CONFIG_INITIALIZER;
    mcpg_context_t *context = NULL;
    c.global_rank = 3;
    c.coordinator = address;
    c.connect_timeout_us = 10000000;
    assert_int_equal(mcpg_context_create(&c, &context, error, sizeof(error)), MCPG_OK);
    mcpg_context_destroy(context);
    mcpg_coordinator_stop(coordinator);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_mismatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
