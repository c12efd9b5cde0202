/* job.h: a tiny bounded harness: one coordinator in the test process, N real processes that run one named role each.
 *
 * A process is the test program itself, executed again with --child, so nothing of the parent's library state is
 * inherited. It talks to the test over its stdin and stdout in lines. Everything has a deadline; whatever is left over
 * is killed by pid.
 */
#ifndef MCPG_TESTS_API_JOB_H
#define MCPG_TESTS_API_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "mooncake/pg.h"

#define JOB_LIMIT_US 60000000u
#define JOB_PROCS    16

/* ---- in the test process ---- */
typedef struct {
    pid_t pid;
    int to, from;
    uint32_t rank, life;
    bool running;
    char line[4096];
    size_t line_len;
} proc_t;
typedef struct {
    mcpg_coordinator_t *coordinator;
    char address[256];
    const char *role, *option;
    uint32_t world;
    proc_t procs[JOB_PROCS];
    uint32_t count;
    uint64_t deadline_us;
} job_t;

uint64_t now_us(void);
void job_begin(job_t *job, const char *role, uint32_t world, const char *option);      /* coordinator only */
void job_begin_bare(job_t *job, const char *role, uint32_t world, const char *option); /* no coordinator */
proc_t *job_spawn(job_t *job, uint32_t rank, uint32_t life);
void job_spawn_all(job_t *job);
/* The next line of this process must begin with what; returns the rest of it (valid until the next line). */
const char *job_expect(job_t *job, proc_t *p, const char *what);
void job_tell(proc_t *p, const char *line);
void job_tell_all(job_t *job, const char *line);
void job_kill(proc_t *p); /* SIGKILL, reaped; nobody is told */
void job_end(job_t *job); /* every process must exit 0 */

/* ---- in a process of a job ---- */
typedef struct {
    uint32_t rank, world, life;
    const char *address; /* "" when there is none */
    const char *option;
} role_t;
typedef struct {
    const char *name;
    void (*run)(const role_t *role);
} role_entry_t;
extern const role_entry_t roles[]; /* of the test program; ends with a NULL name */
/* True: this was a child and *exit_code is its result. */
bool job_child_main(int argc, char **argv, int *exit_code);

_Noreturn void die(const char *file, int line, const char *what, const char *detail);
#define CHECK(cond)            ((cond) ? (void)0 : die(__FILE__, __LINE__, #cond, ""))
#define CHECK_TEXT(cond, text) ((cond) ? (void)0 : die(__FILE__, __LINE__, #cond, text))
/* status must be OK; the context's sentence is printed otherwise. */
#define OK(context, call) ok_(__FILE__, __LINE__, #call, context, call)
void ok_(const char *file, int line, const char *what, const mcpg_context_t *context, mcpg_status_t status);

void say(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* one line to the test */
void hear(const char *what);                                          /* waits for exactly this line from the test */

mcpg_context_t *make_context(const role_t *role);
/* Order 0..n-1. */
mcpg_group_t *make_group(mcpg_context_t *c, uint32_t n, uint32_t capacity, bool extension, bool manual);
mcpg_work_t *start_sum(mcpg_context_t *c, mcpg_group_t *g, int64_t *value); /* all_reduce of one int64 in place */
int64_t sum(mcpg_context_t *c, mcpg_group_t *g, int64_t value);             /* must have no failed ranks */
/* Bitmask over slots of the failed ranks; releases the work. The work must have completed OK. */
uint32_t hint_of(mcpg_context_t *c, mcpg_work_t *w);
uint32_t active_mask(mcpg_context_t *c, mcpg_group_t *g);

#endif
