/* test_pg_tls.c: TLS as a user of pg.h meets it: made by the job itself through its store, or with files of his own;
 * what is refused, and in which words. Several contexts in one process play the ranks.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "mooncake/pg.h"
#include "rpc/rpc_cert.h"

#define DAY_S    86400
#define ENTRIES  32u
#define NOT_HERE 77 /* this machine does not let us have a network of our own */
#define TOKEN    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

extern char **environ;

/* ---- a store ---- */

typedef struct {
    char key[64];
    char value[4096];
    size_t len;
    int64_t number;
} entry_t;
typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    entry_t entries[ENTRIES];
} store_t;

static entry_t *entry_of(store_t *s, const char *key) {
    for (uint32_t i = 0; i < ENTRIES; i++) {
        entry_t *e = &s->entries[i];
        if (e->key[0] == '\0') (void)snprintf(e->key, sizeof(e->key), "%s", key);
        if (strcmp(e->key, key) == 0) return e;
    }
    abort();
}

static mcpg_status_t get(void *user, const char *key, void *value, size_t cap, size_t *len_out, uint32_t timeout_ms) {
    store_t *s = user;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(timeout_ms % 1000u) * 1000000L;
    until.tv_sec += (time_t)(timeout_ms / 1000u) + until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->mu);
    entry_t *e = entry_of(s, key);
    int rc = 0;
    while (e->len == 0 && rc == 0) rc = pthread_cond_timedwait(&s->changed, &s->mu, &until);
    size_t len = e->len;
    memcpy(value, e->value, len < cap ? len : cap);
    pthread_mutex_unlock(&s->mu);
    if (len == 0) return MCPG_TIMED_OUT;
    *len_out = len;
    return MCPG_OK;
}

static mcpg_status_t set(void *user, const char *key, const void *value, size_t len) {
    store_t *s = user;
    pthread_mutex_lock(&s->mu);
    entry_t *e = entry_of(s, key);
    memcpy(e->value, value, len);
    e->len = len;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mu);
    return MCPG_OK;
}

static mcpg_status_t compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                 const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out) {
    store_t *s = user;
    pthread_mutex_lock(&s->mu);
    entry_t *e = entry_of(s, key);
    if (expected_len == e->len && memcmp(expected, e->value, expected_len) == 0) {
        memcpy(e->value, desired, desired_len);
        e->len = desired_len;
        pthread_cond_broadcast(&s->changed);
    }
    memcpy(value, e->value, e->len < cap ? e->len : cap);
    *len_out = e->len;
    pthread_mutex_unlock(&s->mu);
    return MCPG_OK;
}

static mcpg_status_t add(void *user, const char *key, int64_t delta, int64_t *value_out) {
    store_t *s = user;
    pthread_mutex_lock(&s->mu);
    *value_out = entry_of(s, key)->number += delta;
    pthread_mutex_unlock(&s->mu);
    return MCPG_OK;
}

static store_t *store_new(void) {
    store_t *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    return s;
}

/* ---- contexts ---- */

static void quiet(void *user, mcpg_log_level_t level, const char *line) {
    (void)user, (void)level, (void)line;
}

static mcpg_config_t base(uint32_t rank, uint64_t timeout_us) {
    mcpg_config_t config = MCPG_CONFIG_INITIALIZER;
    config.global_rank = rank;
    config.connect_timeout_us = timeout_us;
    config.log = quiet;
    config.transports = "tcp";
    return config;
}

static mcpg_context_t *made(mcpg_config_t *config, store_t *s) {
    const mcpg_kv_t kv = {s, get, set, compare_set, add};
    mcpg_context_t *c = NULL;
    char error[512] = "";
    if (s != NULL) config->kv = &kv;
    mcpg_status_t status = mcpg_context_create(config, &c, error, sizeof(error));
    config->kv = NULL;
    if (status != MCPG_OK) fail_msg("%s: %s", mcpg_status_name(status), error);
    return c;
}

static void refused(mcpg_config_t *config, store_t *s, mcpg_status_t wanted, const char *must_say) {
    const mcpg_kv_t kv = {s, get, set, compare_set, add};
    mcpg_context_t *c = NULL;
    char error[512] = "";
    if (s != NULL) config->kv = &kv;
    mcpg_status_t status = mcpg_context_create(config, &c, error, sizeof(error));
    config->kv = NULL;
    if (status != wanted || strstr(error, must_say) == NULL)
        fail_msg("%s: '%s' does not say '%s'", mcpg_status_name(status), error, must_say);
    assert_null(c);
}

static void expect_address(const mcpg_context_t *c, const char *begin, char *out, size_t cap) {
    (void)mcpg_context_coordinator(c, out, cap);
    if (strncmp(out, begin, strlen(begin)) != 0) fail_msg("address '%s' does not begin with '%s'", out, begin);
}

static uint64_t now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* ---- the job's own ---- */

static void job_makes_its_own(void **state) {
    (void)state;
    store_t *s = store_new();
    char address[256];
    mcpg_config_t zero = base(0, 20000000), one = base(1, 20000000), stranger = base(2, 1500000);
    zero.tls = "always";
    zero.may_host_coordinator = true;
    mcpg_context_t *a = made(&zero, s);
    expect_address(a, "tls:127.0.0.1:", address, sizeof(address));
    mcpg_context_t *b = made(&one, s); /* told nothing: the record says it */
    expect_address(b, address, address, sizeof(address));
    const entry_t *e = entry_of(s, "mooncake_pg/tls/1");
    const char *key = strstr(e->value, "BEGIN PRIVATE KEY");
    assert_true(e->len > 0 && e->len < 4096);
    assert_non_null(key);                              /* the ranks' */
    assert_null(strstr(key + 1, "BEGIN PRIVATE KEY")); /* and no other: neither the CA's nor the coordinator's */
    stranger.coordinator = address + strlen("tls:");
    refused(&stranger, NULL, MCPG_UNAVAILABLE, "hangs up on plaintext");
    stranger.coordinator = address;
    refused(&stranger, NULL, MCPG_INVALID_ARGUMENT, "MOONCAKE_TLS_CA");
    store_t *other = store_new(); /* another job's material for the same address */
    mcpg_config_t elsewhere = base(0, 20000000);
    elsewhere.tls = "always";
    elsewhere.may_host_coordinator = true;
    mcpg_context_t *c = made(&elsewhere, other);
    (void)compare_set(other, "mooncake_pg/coordinator", entry_of(other, "mooncake_pg/coordinator")->value,
                      entry_of(other, "mooncake_pg/coordinator")->len, entry_of(s, "mooncake_pg/coordinator")->value,
                      entry_of(s, "mooncake_pg/coordinator")->len, (char[4096]){0}, 4096, &(size_t){0});
    stranger.coordinator = NULL;
    refused(&stranger, other, MCPG_UNAVAILABLE, "its certificate is not accepted");
    mcpg_context_destroy(c);
    mcpg_context_destroy(b);
    mcpg_context_destroy(a);
    free(s);
    free(other);
}

static uint64_t attach_time_us(const char *tls, uint32_t rounds) {
    uint64_t total_us = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        store_t *s = store_new();
        mcpg_config_t zero = base(0, 20000000), one = base(1, 20000000);
        zero.tls = tls;
        zero.may_host_coordinator = true;
        mcpg_context_t *a = made(&zero, s);
        uint64_t start_us = now_us();
        mcpg_context_t *b = made(&one, s);
        total_us += now_us() - start_us;
        mcpg_context_destroy(b);
        mcpg_context_destroy(a);
        free(s);
    }
    return total_us / rounds;
}

/* The figures are printed; the bound is only there so that something grossly slow is seen. */
static void attach_time(void **state) {
    (void)state;
    uint64_t plain_us = attach_time_us("never", 5), tls_us = attach_time_us("always", 5);
    print_message("attach through the store: %llu us plaintext, %llu us TLS\n", (unsigned long long)plain_us,
                  (unsigned long long)tls_us);
    assert_true(tls_us < plain_us + 2000000u);
}

static void settings_must_agree(void **state) {
    (void)state;
    store_t *s = store_new();
    char address[256];
    mcpg_config_t zero = base(0, 20000000), one = base(1, 2000000);
    zero.may_host_coordinator = true;
    mcpg_context_t *a = made(&zero, s);
    expect_address(a, "127.0.0.1:", address, sizeof(address));
    one.tls = "always";
    refused(&one, s, MCPG_INVALID_ARGUMENT, "was told to use TLS");
    one.coordinator = address;
    refused(&one, NULL, MCPG_INVALID_ARGUMENT, "was told to use TLS");
    one.tls = "sometimes";
    refused(&one, s, MCPG_INVALID_ARGUMENT, "auto, always or never");
    one.tls = NULL;
    one.tls_ca = "/nowhere/ca.pem";
    refused(&one, s, MCPG_INVALID_ARGUMENT, "/nowhere/ca.pem");
    mcpg_context_destroy(a);
    free(s);
}

/* The next coordinator of the job has another term and another CA, and who was attached finds both. */
static void next_coordinator(void **state) {
    (void)state;
    store_t *s = store_new();
    char first[256], next[256];
    mcpg_config_t zero = base(0, 20000000), one = base(1, 20000000), two = base(2, 20000000);
    zero.tls = one.tls = two.tls = "always";
    zero.may_host_coordinator = one.may_host_coordinator = true;
    mcpg_context_t *a = made(&zero, s), *b = made(&one, s), *c = made(&two, s);
    expect_address(c, "tls:", first, sizeof(first));
    mcpg_context_destroy(a);
    uint64_t until_us = now_us() + 30000000u;
    do { /* bounded: 30 s */
        struct timespec pause = {.tv_nsec = 20000000L};
        (void)nanosleep(&pause, NULL);
        expect_address(c, "tls:", next, sizeof(next));
    } while (strcmp(first, next) == 0 && now_us() < until_us);
    assert_string_not_equal(first, next);
    mcpg_config_t late = base(3, 20000000);
    mcpg_context_t *d = made(&late, s);
    expect_address(d, next, first, sizeof(first));
    assert_string_not_equal(entry_of(s, "mooncake_pg/tls/1")->value, entry_of(s, "mooncake_pg/tls/2")->value);
    mcpg_context_destroy(d);
    mcpg_context_destroy(c);
    mcpg_context_destroy(b);
    free(s);
}

/* ---- files ---- */

typedef struct {
    char dir[64];
    mcpg_ca_t *ca;
    char ca_file[96], token[96];
} files_t;
static files_t F;

static void put(const char *path, const char *text, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static const char *file(const char *name) {
    static char paths[8][160];
    static uint32_t next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof(paths[0]), "%s/%s", F.dir, name);
    return path;
}

static void issue(const char *name, mcpg_cert_spec_t spec) {
    mcpg_cert_t cert;
    char leaf[64];
    spec.job = "files";
    if (spec.until_s == 0) spec.until_s = DAY_S;
    assert_int_equal(mcpg__ca_issue(F.ca, &spec, &cert), MCPG_OK);
    (void)snprintf(leaf, sizeof(leaf), "%s.pem", name);
    put(file(leaf), cert.cert, 0644);
    (void)snprintf(leaf, sizeof(leaf), "%s.key", name);
    put(file(leaf), cert.key.bytes, 0600);
    mcpg__cert_fini(&cert);
}

static int make_files(void **state) {
    (void)state;
    (void)unsetenv("MOONCAKE_COORDINATOR");
    (void)snprintf(F.dir, sizeof(F.dir), "/tmp/mcpg-test-tls-XXXXXX");
    if (mkdtemp(F.dir) == NULL || mcpg__ca_new("files", -DAY_S, DAY_S, &F.ca) != MCPG_OK) return -1;
    (void)snprintf(F.ca_file, sizeof(F.ca_file), "%s/ca.pem", F.dir);
    (void)snprintf(F.token, sizeof(F.token), "%s/token", F.dir);
    put(F.ca_file, mcpg__ca_cert(F.ca), 0644);
    put(F.token, TOKEN "\n", 0600);
    issue("server", (mcpg_cert_spec_t){.is_coordinator = true});
    issue("rank3", (mcpg_cert_spec_t){.is_rank = true, .rank = 3});
    issue("rank5", (mcpg_cert_spec_t){.is_rank = true, .rank = 5});
    issue("host7", (mcpg_cert_spec_t){.is_rank = true, .rank = 7, .is_coordinator = true});
    issue("old", (mcpg_cert_spec_t){.is_rank = true, .rank = 3, .from_s = -DAY_S, .until_s = -60});
    return 0;
}

static int drop_files(void **state) {
    (void)state;
    static const char *const names[] = {"ca.pem",    "token",     "server.pem", "server.key", "rank3.pem", "rank3.key",
                                        "rank5.pem", "rank5.key", "host7.pem",  "host7.key",  "old.pem",   "old.key"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) (void)unlink(file(names[i]));
    mcpg__ca_free(F.ca);
    return rmdir(F.dir);
}

static void use(mcpg_config_t *c, const char *name) {
    static char paths[2][96];
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s.pem", F.dir, name);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.key", F.dir, name);
    c->tls_ca = F.ca_file;
    c->tls_cert = paths[0];
    c->tls_key = paths[1];
}

static mcpg_coordinator_t *serve(const char *ca, const char *token, char *address, size_t cap) {
    mcpg_coordinator_config_t config = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    mcpg_coordinator_t *c = NULL;
    char error[512] = "";
    config.log = quiet;
    config.fresh = true;
    config.tls_ca = ca;
    config.tls_cert = file("server.pem");
    config.tls_key = file("server.key");
    config.token_file = token;
    mcpg_status_t status = mcpg_coordinator_start(&config, &c, error, sizeof(error));
    if (status != MCPG_OK) fail_msg("%s: %s", mcpg_status_name(status), error);
    (void)mcpg_coordinator_address(c, address, cap);
    assert_int_equal(strncmp(address, "tls:127.0.0.1:", 14), 0);
    return c;
}

static void certificates_of_ranks(void **state) {
    (void)state;
    char address[256];
    mcpg_coordinator_t *coordinator = serve(F.ca_file, NULL, address, sizeof(address));
    mcpg_config_t three = base(3, 20000000), five = base(5, 20000000), late = base(3, 20000000);
    three.coordinator = five.coordinator = late.coordinator = address;
    use(&three, "rank3");
    mcpg_context_t *a = made(&three, NULL);
    use(&five, "rank3");
    refused(&five, NULL, MCPG_NOT_PERMITTED, "is for rank 3, not for rank 5");
    use(&five, "rank5");
    mcpg_context_t *b = made(&five, NULL);
    use(&late, "old");
    refused(&late, NULL, MCPG_INVALID_ARGUMENT, "expired on");
    use(&late, "server");
    refused(&late, NULL, MCPG_INVALID_ARGUMENT, "names no rank");
    mcpg_config_t bare = base(6, 1500000);
    bare.coordinator = address;
    bare.tls_ca = F.ca_file;
    refused(&bare, NULL, MCPG_INVALID_ARGUMENT, "proves nothing");
    bare.token_file = F.token;
    refused(&bare, NULL, MCPG_UNAVAILABLE, "it asks for a certificate");
    mcpg_context_destroy(b);
    mcpg_context_destroy(a);
    /* by environment, as a launcher would */
    (void)setenv("MOONCAKE_TLS_CA", F.ca_file, 1);
    (void)setenv("MOONCAKE_TLS_CERT", file("rank3.pem"), 1);
    (void)setenv("MOONCAKE_TLS_KEY", file("rank3.key"), 1);
    (void)setenv("MOONCAKE_COORDINATOR", address + strlen("tls:"), 1); /* a CA says TLS as well */
    mcpg_config_t by_env = base(3, 20000000);
    a = made(&by_env, NULL);
    (void)unsetenv("MOONCAKE_TLS_CA");
    (void)unsetenv("MOONCAKE_TLS_CERT");
    (void)unsetenv("MOONCAKE_TLS_KEY");
    (void)unsetenv("MOONCAKE_COORDINATOR");
    mcpg_context_destroy(a);
    mcpg_coordinator_stop(coordinator);
}

static void token_of_the_job(void **state) {
    (void)state;
    char address[256];
    mcpg_coordinator_t *coordinator = serve(NULL, F.token, address, sizeof(address));
    mcpg_config_t one = base(1, 20000000);
    one.coordinator = address;
    one.tls_ca = F.ca_file;
    one.token_file = F.token;
    mcpg_context_t *a = made(&one, NULL);
    put(file("wrong"), "ff" TOKEN, 0600);
    one.token_file = file("wrong");
    refused(&one, NULL, MCPG_INVALID_ARGUMENT, "64 hexadecimal");
    put(file("wrong"), "112233445566778899aabbccddeeff00112233445566778899aabbccddeeff00", 0600);
    one.token_file = file("wrong");
    refused(&one, NULL, MCPG_NOT_PERMITTED, "token is missing or another one");
    use(&one, "rank3");
    one.token_file = NULL;
    refused(&one, NULL, MCPG_NOT_PERMITTED, "token is missing or another one");
    (void)unlink(file("wrong"));
    mcpg_context_destroy(a);
    mcpg_coordinator_stop(coordinator);
}

static void files_of_others(void **state) {
    (void)state;
    mcpg_config_t c = base(3, 1500000);
    c.coordinator = "tls:127.0.0.1:9";
    use(&c, "rank3");
    assert_int_equal(chmod(c.tls_key, 0640), 0);
    refused(&c, NULL, MCPG_INVALID_ARGUMENT, "chmod 600");
    assert_int_equal(chmod(c.tls_key, 0600), 0);
    c.tls_cert = NULL;
    refused(&c, NULL, MCPG_INVALID_ARGUMENT, "without its certificate");
    use(&c, "rank3");
    c.tls_key = file("rank5.key");
    refused(&c, NULL, MCPG_INVALID_ARGUMENT, "does not belong");
    c.tls_key = F.dir;
    refused(&c, NULL, MCPG_INVALID_ARGUMENT, "not a regular file");
    use(&c, "rank3");
    c.tls = "never";
    refused(&c, NULL, MCPG_INVALID_ARGUMENT, "contradicts");
    mcpg_coordinator_config_t config = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    mcpg_coordinator_t *none = NULL;
    char error[512] = "";
    config.log = quiet;
    config.bind = "0.0.0.0:0";
    assert_int_equal(mcpg_coordinator_start(&config, &none, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "is not loopback, so it needs TLS"));
    assert_non_null(strstr(error, "MOONCAKE_TLS_CERT"));
    config.bind = NULL;
    config.tls_cert = file("rank3.pem");
    config.tls_key = file("rank3.key");
    assert_int_equal(mcpg_coordinator_start(&config, &none, error, sizeof(error)), MCPG_INVALID_ARGUMENT);
    assert_non_null(strstr(error, "DNS:coordinator.mooncake-pg"));
    assert_null(none);
}

/* Certificates of one's own and an election: only who has a coordinator's name in his may host. */
static void own_certificates_and_a_store(void **state) {
    (void)state;
    store_t *s = store_new();
    char address[256];
    mcpg_config_t three = base(3, 1500000), seven = base(7, 20000000), none = base(1, 5000000);
    three.may_host_coordinator = seven.may_host_coordinator = true;
    use(&three, "rank3");
    refused(&three, s, MCPG_UNAVAILABLE, "no rank has published");
    use(&seven, "host7");
    mcpg_context_t *a = made(&seven, s);
    expect_address(a, "tls:127.0.0.1:", address, sizeof(address));
    use(&three, "rank3");
    three.connect_timeout_us = 20000000;
    mcpg_context_t *b = made(&three, s);
    refused(&none, s, MCPG_INVALID_ARGUMENT, "not the job's own");
    mcpg_context_destroy(b);
    mcpg_context_destroy(a);
    free(s);
}

/* ---- an address that others can reach ---- */

static bool give_address(const char *name, const char *ip) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq r;
    memset(&r, 0, sizeof(r));
    (void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
    struct sockaddr_in *a = (struct sockaddr_in *)(void *)&r.ifr_addr;
    a->sin_family = AF_INET;
    bool ok = fd >= 0 && inet_pton(AF_INET, ip, &a->sin_addr) == 1 && ioctl(fd, SIOCSIFADDR, &r) == 0;
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    ok = ok && ioctl(fd, SIOCSIFFLAGS, &r) == 0;
    if (fd >= 0) (void)close(fd);
    return ok;
}

static void wide_by_itself(void **state) {
    (void)state;
    store_t *s = store_new();
    char address[256];
    mcpg_config_t zero = base(0, 20000000), one = base(1, 20000000), two = base(2, 1500000);
    zero.host_ip = one.host_ip = "10.9.9.1";
    zero.may_host_coordinator = true;
    mcpg_context_t *a = made(&zero, s);
    expect_address(a, "tls:10.9.9.1:", address, sizeof(address));
    mcpg_context_t *b = made(&one, s);
    two.coordinator = address + strlen("tls:");
    refused(&two, NULL, MCPG_INVALID_ARGUMENT, "is not loopback, so it needs TLS");
    mcpg_context_destroy(b);
    mcpg_context_destroy(a);
    memset(s->entries, 0, sizeof(s->entries));
    zero.tls = "never"; /* then nobody from outside gets in, rather than everybody */
    a = made(&zero, s);
    expect_address(a, "127.0.0.1:", address, sizeof(address));
    mcpg_context_destroy(a);
    free(s);
}

/* In a process and a network of its own: nothing of it can be reached from outside. */
static int wide_main(void) {
    (void)unsetenv("MOONCAKE_COORDINATOR");
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && unshare(CLONE_NEWNET) != 0) return NOT_HERE;
    if (!give_address("lo", "127.0.0.1") || !give_address("lo:1", "10.9.9.1")) return NOT_HERE;
    const struct CMUnitTest tests[] = {cmocka_unit_test(wide_by_itself)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static void wide_host_ip(void **state) {
    (void)state;
    pid_t pid = 0;
    int status = 0;
    char *argv[] = {(char *)(uintptr_t) "test_pg_tls", (char *)(uintptr_t) "--wide", NULL};
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_HERE) {
        print_message("skipped: no network namespace of its own is possible here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--wide") == 0) return wide_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_makes_its_own),     cmocka_unit_test(attach_time),
        cmocka_unit_test(next_coordinator),      cmocka_unit_test(settings_must_agree),
        cmocka_unit_test(certificates_of_ranks), cmocka_unit_test(token_of_the_job),
        cmocka_unit_test(files_of_others),       cmocka_unit_test(own_certificates_and_a_store),
        cmocka_unit_test(wide_host_ip),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
