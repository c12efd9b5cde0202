/* test_pg_restart.c: a standalone coordinator is killed with SIGKILL and started again while ranks work; a rank, and
 * the coordinator, are stopped for longer than the offline time and go on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "job.h"

#define WORLD 4u
#define LAST  (WORLD - 1u)

static void pause_ms(unsigned ms) {
    struct timespec ts = {.tv_sec = ms / 1000u, .tv_nsec = (long)(ms % 1000u) * 1000000L};
    (void)nanosleep(&ts, NULL);
}

/* ---- in a process of the job ---- */

static mcpg_status_t change(mcpg_group_t *g, bool activate, uint64_t *epoch_out) {
    const uint32_t slot = LAST;
    mcpg_proposal_reply_t reply = {0};
    mcpg_status_t status =
        mcpg_group_update_ranks(g, activate ? &slot : NULL, activate ? 1u : 0u, activate ? NULL : &slot,
                                activate ? 0u : 1u, MCPG_ANY_EPOCH, 0, &reply);
    *epoch_out = reply.new_epoch;
    return status != MCPG_OK ? status : reply.reason;
}

static bool passing(mcpg_status_t status) {
    return status == MCPG_UNAVAILABLE || status == MCPG_OUTCOME_UNKNOWN || status == MCPG_NOT_HEALTHY ||
           status == MCPG_NOT_AWAITING;
}

static uint64_t change_until(mcpg_context_t *c, mcpg_group_t *g, bool activate) {
    uint64_t epoch = 0, until = now_us() + 30000000u;
    mcpg_status_t status = change(g, activate, &epoch);
    while (passing(status) && now_us() < until) {
        pause_ms(100);
        status = change(g, activate, &epoch);
    }
    OK(c, status);
    return epoch;
}

static void restarted(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, WORLD, WORLD, false, false);
    static mcpg_view_t v;
    CHECK(sum(c, g, 1) == WORLD);
    OK(c, mcpg_group_view(g, &v));
    uint64_t first = v.epoch, epoch = 0;
    say("ready");
    hear("lost");
    for (int i = 0; i < 200; i++) CHECK(sum(c, g, 1) == WORLD); /* operations go on */
    if (role->rank == 0) {
        mcpg_status_t status = change(g, false, &epoch);
        CHECK_TEXT(status == MCPG_UNAVAILABLE || status == MCPG_OUTCOME_UNKNOWN, mcpg_status_name(status));
    }
    say("went on");
    hear("back");
    if (role->rank == 0) {
        epoch = change_until(c, g, false);
        CHECK(epoch > first);
        say("removed");
    }
    hear("go");
    if (role->rank == LAST) {
        say("joins");
        OK(c, mcpg_group_join(g, 30000000));
    } else {
        CHECK(sum(c, g, 1) == WORLD - 1u);
        if (role->rank == 0) CHECK(change_until(c, g, true) > epoch);
    }
    say("whole");
    hear("end");
    CHECK(sum(c, g, 1) == WORLD);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

static void paused(const role_t *role) {
    mcpg_context_t *c = make_context(role);
    mcpg_group_t *g = make_group(c, WORLD, WORLD, false, false);
    static mcpg_view_t v;
    CHECK(sum(c, g, 1) == WORLD);
    OK(c, mcpg_group_view(g, &v));
    const uint64_t first = v.epoch;
    say("ready");
    hear("go");
    if (role->rank == LAST) { /* it was stopped meanwhile: the job went on without it */
        uint64_t until = now_us() + 30000000u;
        while (v.epoch == first && now_us() < until) {
            pause_ms(20);
            OK(c, mcpg_group_view(g, &v));
        }
        CHECK(v.epoch > first && v.active[LAST] == 0);
        int64_t value = 1;
        mcpg_op_t op = MCPG_OP_INITIALIZER;
        op.kind = MCPG_OP_ALLREDUCE;
        op.dtype = MCPG_I64;
        op.in = op.out = (mcpg_seg_t){&value, 1};
        mcpg_work_t *w = NULL;
        CHECK(mcpg_group_submit(g, &op, &w) == MCPG_NOT_ACTIVE);
        OK(c, mcpg_group_join(g, 30000000));
    } else {
        int64_t value = 1;
        mcpg_work_t *w = start_sum(c, g, &value);
        CHECK_TEXT(mcpg_work_wait(w, 30000000) == MCPG_OK, mcpg_work_error(w));
        CHECK(hint_of(c, w) == 1u << LAST);
        CHECK(sum(c, g, 1) == WORLD - 1u);
        say("went on");
        hear("back");
        if (role->rank == 0) (void)change_until(c, g, true);
    }
    say("whole");
    hear("end");
    CHECK(sum(c, g, 1) == WORLD);
    mcpg_group_destroy(g);
    mcpg_context_destroy(c);
}

/* ---- in the test ---- */

static pid_t start_coordinator(const char *address, bool fresh) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)execl(COORDINATOR_PATH, COORDINATOR_PATH, "--bind", address, fresh ? "--fresh" : (char *)NULL,
                    (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void await_socket(const char *path) {
    uint64_t until = now_us() + 20000000u;
    while (access(path, F_OK) != 0 && now_us() < until) pause_ms(20);
    assert_int_equal(access(path, F_OK), 0);
}

/* A standalone coordinator on a socket of its own and a job of `restarted` on it, that has begun. */
typedef struct {
    char path[64], address[80];
    pid_t coordinator;
    job_t job;
} outage_t;

static void outage_begin(outage_t *o, const char *name) {
    (void)snprintf(o->path, sizeof(o->path), "/tmp/mcpg-%s-%ld", name, (long)getpid());
    (void)snprintf(o->address, sizeof(o->address), "unix:%s", o->path);
    o->coordinator = start_coordinator(o->address, true);
    await_socket(o->path);
    job_begin_bare(&o->job, "restarted", WORLD, "");
    (void)snprintf(o->job.address, sizeof(o->job.address), "%s", o->address);
    job_spawn_all(&o->job);
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&o->job, &o->job.procs[i], "ready");
}

static void outage_works(outage_t *o) {
    job_tell_all(&o->job, "lost");
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&o->job, &o->job.procs[i], "went on");
}

static void outage_over(outage_t *o) {
    job_tell_all(&o->job, "back");
    (void)job_expect(&o->job, &o->job.procs[0], "removed");
    job_tell_all(&o->job, "go");
    (void)job_expect(&o->job, &o->job.procs[LAST], "joins");
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&o->job, &o->job.procs[i], "whole");
    job_tell_all(&o->job, "end");
    job_end(&o->job);
    (void)kill(o->coordinator, SIGTERM);
    (void)waitpid(o->coordinator, NULL, 0);
}

static void kill_and_restart(void **state) {
    (void)state;
    outage_t o;
    outage_begin(&o, "restart");
    (void)kill(o.coordinator, SIGKILL);
    (void)waitpid(o.coordinator, NULL, 0);
    (void)unlink(o.path);
    outage_works(&o);
    o.coordinator = start_coordinator(o.address, false);
    await_socket(o.path);
    outage_over(&o);
}

/* Longer than the offline time: it was a pause of the coordinator, nobody loses anything. */
static void coordinator_stopped(void **state) {
    (void)state;
    outage_t o;
    outage_begin(&o, "stopped");
    (void)kill(o.coordinator, SIGSTOP);
    pause_ms(2500); /* offline_us is 1 s here */
    outage_works(&o);
    (void)kill(o.coordinator, SIGCONT);
    outage_over(&o);
}

/* Whatever was killed or stopped: each log that was left steps again bit for bit. */
static void logs_replay(void **state) {
    (void)state;
    const char *folder = getenv("MOONCAKE_EVENT_LOG_DIR");
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(126);
        (void)execl(REPLAY_PATH, REPLAY_PATH, "replay", folder, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    unsigned files = 0;
    for (const struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char path[512];
        (void)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.') continue;
        files++;
        (void)unlink(path);
    }
    (void)closedir(dir);
    (void)rmdir(folder);
    assert_true(files >= 3u * WORLD + 3u); /* each process of each job, and the coordinators */
}

/* MCPG_TEST_STOP_S: how long; the soak stops it for a minute. */
static void rank_stopped(void **state) {
    (void)state;
    const char *stop_s = getenv("MCPG_TEST_STOP_S");
    unsigned stop_ms = stop_s != NULL ? 1000u * (unsigned)strtoul(stop_s, NULL, 10) : 5000u;
    job_t job;
    job_begin(&job, "paused", WORLD, "");
    job.deadline_us += (uint64_t)stop_ms * 1000u;
    job_spawn_all(&job);
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&job, &job.procs[i], "ready");
    (void)kill(job.procs[LAST].pid, SIGSTOP);
    job_tell_all(&job, "go");
    for (uint32_t i = 0; i < LAST; i++) (void)job_expect(&job, &job.procs[i], "went on");
    pause_ms(stop_ms);
    (void)kill(job.procs[LAST].pid, SIGCONT);
    for (uint32_t i = 0; i < LAST; i++) job_tell(&job.procs[i], "back");
    for (uint32_t i = 0; i < WORLD; i++) (void)job_expect(&job, &job.procs[i], "whole");
    job_tell_all(&job, "end");
    job_end(&job);
}

const role_entry_t roles[] = {{"restarted", restarted}, {"paused", paused}, {NULL, NULL}};

int main(int argc, char **argv) {
    int code = 0;
    if (job_child_main(argc, argv, &code)) return code;
    char folder[] = "/tmp/mcpg-restart-logs-XXXXXX";
    if (mkdtemp(folder) == NULL) return 1;
    (void)setenv("MOONCAKE_EVENT_LOG_DIR", folder, 1);
    (void)setenv("MOONCAKE_OFFLINE_US", "1000000", 1);
    (void)setenv("MOONCAKE_SETTLE_US", "1200000", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_and_restart),
        cmocka_unit_test(coordinator_stopped),
        cmocka_unit_test(rank_stopped),
        cmocka_unit_test(logs_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
