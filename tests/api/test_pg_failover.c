/* test_pg_failover.c: the rank that hosts the coordinator is killed; the key-value store lives on outside the job:
 * another rank takes the coordinator's place, and a replacement of the killed rank joins. The store is a folder with
 * one file for each key, so that processes share it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "job.h"

#define WORLD 3u

static void pause_ms(unsigned ms) {
    struct timespec ts = {.tv_sec = ms / 1000u, .tv_nsec = (long)(ms % 1000u) * 1000000L};
    (void)nanosleep(&ts, NULL);
}

/* ---- the store ---- */

static void path_of(const char *folder, const char *key, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s/%s", folder, key);
    CHECK(n > 0 && (size_t)n < cap);
    for (char *c = out + strlen(folder) + 1; *c != '\0'; c++)
        if (*c == '/') *c = '_';
}

static int lock_store(const char *folder) {
    char path[256];
    path_of(folder, ".lock", path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    return fd;
}

/* Bytes read, -1: there is no such key. */
static ssize_t read_key(const char *folder, const char *key, void *value, size_t cap) {
    char path[256];
    path_of(folder, key, path, sizeof(path));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, value, cap);
    (void)close(fd);
    return n;
}

static void write_key(const char *folder, const char *key, const void *value, size_t len) {
    char path[256];
    path_of(folder, key, path, sizeof(path));
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, value, len) == (ssize_t)len);
    (void)close(fd);
}

static mcpg_status_t kv_get(void *user, const char *key, void *value, size_t cap, size_t *len_out,
                            uint32_t timeout_ms) {
    int lock = lock_store(user);
    ssize_t n = read_key(user, key, value, cap);
    (void)close(lock);
    if (n < 0) pause_ms(timeout_ms < 20u ? timeout_ms : 20u);
    if (n < 0) return MCPG_TIMED_OUT;
    *len_out = (size_t)n;
    return MCPG_OK;
}

static mcpg_status_t kv_set(void *user, const char *key, const void *value, size_t len) {
    int lock = lock_store(user);
    write_key(user, key, value, len);
    (void)close(lock);
    return MCPG_OK;
}

static mcpg_status_t kv_compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                    const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out) {
    static char now[65536];
    int lock = lock_store(user);
    ssize_t n = read_key(user, key, now, sizeof(now));
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len == expected_len && memcmp(now, expected, len) == 0) {
        write_key(user, key, desired, desired_len);
        memcpy(now, desired, desired_len);
        len = desired_len;
    }
    memcpy(value, now, len < cap ? len : cap);
    *len_out = len;
    (void)close(lock);
    return MCPG_OK;
}

static mcpg_status_t kv_add(void *user, const char *key, int64_t delta, int64_t *value_out) {
    int64_t value = 0;
    int lock = lock_store(user);
    (void)read_key(user, key, &value, sizeof(value));
    value += delta;
    write_key(user, key, &value, sizeof(value));
    (void)close(lock);
    *value_out = value;
    return MCPG_OK;
}

static void remove_store(const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.' || strcmp(e->d_name, ".lock") == 0) (void)unlink(path);
    }
    (void)closedir(dir);
    (void)rmdir(folder);
}

/* ---- in a process of the job ---- */

static void activate_zero(mcpg_context_t *c, mcpg_group_t *g) {
    const uint32_t slot = 0;
    uint64_t until = now_us() + 40000000u;
    mcpg_proposal_reply_t reply;
    do { /* a coordinator has to be elected first, and the new process to join */
        memset(&reply, 0, sizeof(reply));
        OK(c, mcpg_group_update_ranks(g, &slot, 1, NULL, 0, MCPG_ANY_EPOCH, 1000000, &reply));
        if (reply.result != MCPG_PROPOSAL_REJECTED) return;
        pause_ms(50);
    } while (now_us() < until);
    CHECK_TEXT(false, reply.text);
}

static void hosted(const role_t *role) {
    mcpg_kv_t kv = {.user = (void *)(uintptr_t)role->option,
                    .get = kv_get,
                    .set = kv_set,
                    .compare_set = kv_compare_set,
                    .add = kv_add};
    mcpg_config_t config = MCPG_CONFIG_INITIALIZER;
    config.global_rank = role->rank;
    config.kv = &kv;
    config.may_host_coordinator = true;
    mcpg_context_t *c = NULL;
    char error[512] = "";
    CHECK_TEXT(mcpg_context_create(&config, &c, error, sizeof(error)) == MCPG_OK, error);
    mcpg_group_t *g = make_group(c, WORLD, WORLD, role->life > 0, false);
    if (role->life > 0) {
        say("joins");
        OK(c, mcpg_group_join(g, 40000000));
    } else {
        CHECK(sum(c, g, 1) == WORLD);
        char address[256];
        (void)mcpg_context_coordinator(c, address, sizeof(address));
        say("ready %s", address);
        if (role->rank == 0) hear("never");
        hear("go");
        int64_t v = 1;
        mcpg_work_t *w = start_sum(c, g, &v);
        CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
        CHECK(hint_of(c, w) == 1u); /* proved dead: the others go on at once */
        CHECK(v == WORLD - 1);
        say("alone");
        hear("activate");
        if (role->rank == 1) activate_zero(c, g);
    }
    say("whole");
    hear("end");
    CHECK(sum(c, g, 1) == WORLD);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

/* ---- in the test ---- */

static void host_is_killed(void **state) {
    (void)state;
    char folder[] = "/tmp/mcpg-store-XXXXXX";
    assert_non_null(mkdtemp(folder));
    job_t job;
    job_begin_bare(&job, "hosted", WORLD, folder);
    job_spawn_all(&job);
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&job, &job.procs[i], "ready ");
    job_kill(&job.procs[0]);
    for (uint32_t i = 1; i < WORLD; i++) job_tell(&job.procs[i], "go");
    for (uint32_t i = 1; i < WORLD; i++) (void)job_expect(&job, &job.procs[i], "alone");
    proc_t *fresh = job_spawn(&job, 0, 1);
    (void)job_expect(&job, fresh, "joins"); /* found the new coordinator, and its group there */
    for (uint32_t i = 1; i < WORLD; i++) job_tell(&job.procs[i], "activate");
    for (uint32_t i = 1; i < WORLD; i++) (void)job_expect(&job, &job.procs[i], "whole");
    (void)job_expect(&job, fresh, "whole");
    job_tell_all(&job, "end");
    job_end(&job);
    remove_store(folder);
}

const role_entry_t roles[] = {{"hosted", hosted}, {NULL, NULL}};

int main(int argc, char **argv) {
    int code = 0;
    if (job_child_main(argc, argv, &code)) return code;
    (void)setenv("MOONCAKE_FAILOVER_US", "500000", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(host_is_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
