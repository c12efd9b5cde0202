/* job.c: see job.h. Never waits without a deadline and never ends a process it did not start. */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

uint64_t now_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* ---- in the test process ---- */

static _Noreturn void job_fail(job_t *job, const char *what, const char *detail) {
    fprintf(stderr, "job %s (option %s): %s %s\n", job->role, job->option, what, detail);
    for (uint32_t i = 0; i < job->count; i++) {
        if (!job->procs[i].running) continue;
        fprintf(stderr, "  rank %u life %u pid %d still runs\n", job->procs[i].rank, job->procs[i].life,
                (int)job->procs[i].pid);
        kill(job->procs[i].pid, SIGKILL);
    }
    abort();
}

void job_begin_bare(job_t *job, const char *role, uint32_t world, const char *option) {
    memset(job, 0, sizeof(*job));
    job->role = role;
    job->option = option;
    job->world = world;
    job->deadline_us = now_us() + JOB_LIMIT_US;
}

void job_begin(job_t *job, const char *role, uint32_t world, const char *option) {
    job_begin_bare(job, role, world, option);
    mcpg_coordinator_config_t c = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    c.fresh = true;
    char error[512];
    if (mcpg_coordinator_start(&c, &job->coordinator, error, sizeof(error)) != MCPG_OK)
        job_fail(job, "no coordinator:", error);
    (void)mcpg_coordinator_address(job->coordinator, job->address, sizeof(job->address));
}

proc_t *job_spawn(job_t *job, uint32_t rank, uint32_t life) {
    if (job->count == JOB_PROCS) job_fail(job, "too many processes", "");
    proc_t *p = &job->procs[job->count++];
    memset(p, 0, sizeof(*p));
    char rank_text[16], world_text[16], life_text[16];
    (void)snprintf(rank_text, sizeof(rank_text), "%u", rank);
    (void)snprintf(world_text, sizeof(world_text), "%u", job->world);
    (void)snprintf(life_text, sizeof(life_text), "%u", life);
    char *argv[] = {(char *)"/proc/self/exe",
                    (char *)"--child",
                    (char *)(uintptr_t)job->role,
                    rank_text,
                    world_text,
                    life_text,
                    job->address,
                    (char *)(uintptr_t)job->option,
                    NULL};
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) != 0 || pipe2(up, O_CLOEXEC) != 0) job_fail(job, "no pipe", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], 0);
    posix_spawn_file_actions_adddup2(&actions, up[1], 1);
    int rc = posix_spawn(&p->pid, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(down[0]);
    close(up[1]);
    if (rc != 0) job_fail(job, "cannot start a process:", strerror(rc));
    p->to = down[1];
    p->from = up[0];
    p->rank = rank;
    p->life = life;
    p->running = true;
    return p;
}

void job_spawn_all(job_t *job) {
    for (uint32_t r = 0; r < job->world; r++) (void)job_spawn(job, r, 0);
}

static void read_some(job_t *job, proc_t *p) {
    uint64_t now = now_us();
    struct pollfd fd = {.fd = p->from, .events = POLLIN};
    int left_ms = now < job->deadline_us ? (int)((job->deadline_us - now) / 1000u) : 0;
    if (poll(&fd, 1, left_ms) <= 0)
        job_fail(job, "no line in time from rank", (char[]){(char)('0' + p->rank % 10), '\0'});
    ssize_t n = read(p->from, p->line + p->line_len, sizeof(p->line) - 1 - p->line_len);
    if (n <= 0) job_fail(job, "a process ended before its line came: rank", (char[]){(char)('0' + p->rank % 10), '\0'});
    p->line_len += (size_t)n;
    p->line[p->line_len] = '\0';
}

const char *job_expect(job_t *job, proc_t *p, const char *what) {
    static char line[4096];
    char *end;
    while ((end = memchr(p->line, '\n', p->line_len)) == NULL) read_some(job, p);
    size_t len = (size_t)(end - p->line);
    memcpy(line, p->line, len);
    line[len] = '\0';
    p->line_len -= len + 1;
    memmove(p->line, end + 1, p->line_len + 1);
    if (strncmp(line, what, strlen(what)) != 0) {
        fprintf(stderr, "expected \"%s\"\n", what);
        job_fail(job, "got another line:", line);
    }
    return line + strlen(what);
}

void job_tell(proc_t *p, const char *line) {
    char buf[256];
    int n = snprintf(buf, sizeof(buf), "%s\n", line);
    (void)!write(p->to, buf, (size_t)n);
}

void job_tell_all(job_t *job, const char *line) {
    for (uint32_t i = 0; i < job->count; i++)
        if (job->procs[i].running) job_tell(&job->procs[i], line);
}

static void reaped(proc_t *p) {
    p->running = false;
    close(p->to);
    close(p->from);
}

void job_kill(proc_t *p) {
    kill(p->pid, SIGKILL);
    int status;
    (void)waitpid(p->pid, &status, 0);
    reaped(p);
}

static void finish_one(job_t *job, proc_t *p) {
    int status = 0;
    for (;;) {
        pid_t got = waitpid(p->pid, &status, WNOHANG);
        if (got == p->pid) break;
        if (now_us() >= job->deadline_us) job_fail(job, "a process did not end in time", "");
        struct pollfd fd = {.fd = p->from, .events = POLLIN};
        (void)poll(&fd, 1, 20); /* its end closes the pipe */
        char drop[256];
        if ((fd.revents & POLLIN) != 0) (void)!read(p->from, drop, sizeof(drop));
        if ((fd.revents & (POLLHUP | POLLERR)) != 0)
            (void)poll(NULL, 0, 2); /* between the pipe's end and the process's */
    }
    reaped(p);
    char text[64];
    (void)snprintf(text, sizeof(text), "rank %u life %u status 0x%x", p->rank, p->life, (unsigned)status);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) job_fail(job, "a process failed:", text);
}

void job_end(job_t *job) {
    for (uint32_t i = 0; i < job->count; i++)
        if (job->procs[i].running) finish_one(job, &job->procs[i]);
    mcpg_coordinator_stop(job->coordinator);
}

/* ---- in a process of a job ---- */

bool job_child_main(int argc, char **argv, int *exit_code) {
    if (argc < 8 || strcmp(argv[1], "--child") != 0) return false;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    role_t role = {.rank = (uint32_t)strtoul(argv[3], NULL, 10),
                   .world = (uint32_t)strtoul(argv[4], NULL, 10),
                   .life = (uint32_t)strtoul(argv[5], NULL, 10),
                   .address = argv[6],
                   .option = argv[7]};
    *exit_code = 3;
    for (const role_entry_t *e = roles; e->name != NULL; e++) {
        if (strcmp(e->name, argv[2]) != 0) continue;
        e->run(&role);
        *exit_code = 0;
    }
    return true;
}

static uint32_t my_rank;

void die(const char *file, int line, const char *what, const char *detail) {
    fprintf(stderr, "rank %u: %s:%d: %s %s\n", my_rank, file, line, what, detail);
    _exit(1);
}

void ok_(const char *file, int line, const char *what, const mcpg_context_t *context, mcpg_status_t status) {
    if (status == MCPG_OK) return;
    char detail[1024];
    (void)snprintf(detail, sizeof(detail), "gave %s: %s", mcpg_status_name(status),
                   context != NULL ? mcpg_context_error(context) : "");
    die(file, line, what, detail);
}

void say(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    (void)printf("\n");
    (void)fflush(stdout);
}

void hear(const char *what) {
    char line[256];
    size_t n = 0;
    while (n < sizeof(line) - 1) {
        if (read(0, line + n, 1) != 1) die(__FILE__, __LINE__, "the test went away before it said", what);
        if (line[n] == '\n') break;
        n++;
    }
    line[n] = '\0';
    if (strcmp(line, what) != 0) die(__FILE__, __LINE__, "heard another line:", line);
}

mcpg_context_t *make_context(const role_t *role) {
    my_rank = role->rank;
    mcpg_config_t c = MCPG_CONFIG_INITIALIZER;
    c.global_rank = role->rank;
    c.coordinator = role->address;
    c.transports = strcmp(role->option, "tcp") == 0 || strcmp(role->option, "shm") == 0 ? role->option : NULL;
    c.connect_timeout_us = 20000000;
    mcpg_context_t *context = NULL;
    char error[512] = "";
    mcpg_status_t status = mcpg_context_create(&c, &context, error, sizeof(error));
    if (status != MCPG_OK) die(__FILE__, __LINE__, mcpg_status_name(status), error);
    return context;
}

mcpg_group_t *make_group(mcpg_context_t *c, uint32_t n, uint32_t capacity, bool extension, bool manual) {
    uint32_t order[MCPG_MAX_RANKS];
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    mcpg_group_config_t config = MCPG_GROUP_CONFIG_INITIALIZER;
    config.rank_order = order;
    config.group_size = n;
    config.max_group_size = capacity;
    config.is_extension = extension;
    config.manual = manual;
    config.timeout_us = 30000000;
    mcpg_group_t *g = NULL;
    OK(c, mcpg_group_create(c, &config, &g));
    return g;
}

mcpg_work_t *start_sum(mcpg_context_t *c, mcpg_group_t *g, int64_t *value) {
    mcpg_op_t op = MCPG_OP_INITIALIZER;
    op.kind = MCPG_OP_ALLREDUCE;
    op.dtype = MCPG_I64;
    op.redop = MCPG_SUM;
    op.in = op.out = (mcpg_seg_t){value, 1};
    mcpg_work_t *w = NULL;
    OK(c, mcpg_group_submit(g, &op, &w));
    return w;
}

uint32_t hint_of(mcpg_context_t *c, mcpg_work_t *w) {
    (void)c;
    int32_t hint[32] = {0};
    bool success = false;
    mcpg_status_t status = mcpg_work_test(w);
    CHECK_TEXT(status == MCPG_OK, mcpg_work_error(w));
    CHECK(mcpg_work_failed_ranks(w, hint, 32, &success) == MCPG_OK);
    uint32_t mask = 0;
    for (uint32_t i = 0; i < 32; i++) mask |= hint[i] != 0 ? 1u << i : 0u;
    CHECK(mask == 0 || !success);
    mcpg_work_release(w);
    return mask;
}

int64_t sum(mcpg_context_t *c, mcpg_group_t *g, int64_t value) {
    int64_t v = value;
    mcpg_work_t *w = start_sum(c, g, &v);
    mcpg_status_t status = mcpg_work_wait(w, 30000000);
    CHECK_TEXT(status == MCPG_OK, mcpg_work_error(w));
    uint32_t hint = hint_of(c, w);
    char text[64];
    (void)snprintf(text, sizeof(text), "hint 0x%x", hint);
    if (hint != 0) {
        static char json[65536];
        (void)mcpg_context_status_json(c, json, sizeof(json));
        fprintf(stderr, "rank %u: %s\n", my_rank, json);
    }
    CHECK_TEXT(hint == 0, text);
    return v;
}

uint32_t active_mask(mcpg_context_t *c, mcpg_group_t *g) {
    static mcpg_view_t v;
    OK(c, mcpg_group_view(g, &v));
    uint32_t mask = 0;
    for (uint32_t i = 0; i < v.slot_count && i < 32; i++) mask |= v.active[i] != 0 ? 1u << i : 0u;
    return mask;
}
