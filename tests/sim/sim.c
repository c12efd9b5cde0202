/* sim.c: the simulator's program: runs seeds in worker processes, prints a line for each that fails and a summary.
 *
 * A worker that dies (an assertion of a machine, a sanitizer, a signal) is a failure of the seed it was at; a new one
 * goes on after it. It must never stop at a failure: all seeds are run.
 *
 * sim --seeds N [--first S] [--ranks N] [--minutes M] [--jobs J] [--without KIND] [--log FILE] [--log-dir DIR]
 * [--trace]
 *     [--twice] [--shrink] [--json] [--checkers-only]
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/panic.h"
#include "sim/sim.h"

#define MOST_JOBS 64u

typedef struct {
    uint64_t first, seeds;
    uint32_t jobs;
    bool twice, json, shrink, checkers_only;
    const char *log_path, *log_dir;
    sim_options_t run;
} args_t;

typedef struct {
    uint64_t seeds, failed, asserts, events, virtual_us, ops, views, calls, faults, rounds, coords, nodes;
    uint64_t by_kind[SIM_F__COUNT], by_ranks[SIM_RANKS + 1u];
} sum_t;

typedef struct {
    pid_t pid;
    int fd;
    uint64_t next, last; /* seed under way, and the end of its share; step: jobs */
    bool over;
} worker_t;

/* ---- one seed, in a worker ---- */

static sim_result_t *running; /* of the seed under way, for the hook; a worker has one thread */
static int report_fd = -1;

static void write_result(int fd, const sim_result_t *result) {
    const uint8_t *at = (const uint8_t *)result;
    size_t left = sizeof(*result);
    while (left > 0) { /* bounded: one record */
        ssize_t n = write(fd, at, left);
        if (n <= 0) _exit(3);
        at += n;
        left -= (size_t)n;
    }
}

/* An assertion inside a machine: a failure of its own kind, so that mutants can be told to be killed by a checker. */
static void on_panic(void *user, const char *what) {
    (void)user;
    if (running == NULL) return;
    running->failed = true;
    snprintf(running->id, sizeof(running->id), "assert");
    snprintf(running->text, sizeof(running->text), "a machine asserts: %s", what);
    if (report_fd >= 0) write_result(report_fd, running);
    _exit(report_fd >= 0 ? 4 : 1);
}

static void run_one(const args_t *args, uint64_t seed, sim_result_t *result) {
    sim_options_t options = args->run;
    options.seed = seed;
    running = result;
    memset(result, 0, sizeof(*result));
    result->seed = seed;
    sim_run(&options, result);
    if (!args->twice || result->failed) return;
    uint64_t hash = result->hash;
    sim_run(&options, result);
    if (result->failed || result->hash == hash) return;
    result->failed = true;
    snprintf(result->id, sizeof(result->id), "I11");
    snprintf(result->text, sizeof(result->text), "two runs differ: %llx and %llx", U(hash), U(result->hash));
}

/* Only in a build that counts covered lines: _exit would lose the counts. */
extern void __gcov_dump(void) __attribute__((weak));

static void work(const args_t *args, uint64_t from, int fd) {
    report_fd = fd;
    static sim_result_t result;
    for (uint64_t seed = from; seed < args->first + args->seeds; seed += args->jobs) {
        run_one(args, seed, &result);
        write_result(fd, &result);
    }
    if (__gcov_dump != NULL) __gcov_dump();
    _exit(0);
}

static void start_worker(const args_t *args, worker_t *worker) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends) != 0) abort();
    worker->pid = fork();
    if (worker->pid < 0) abort();
    if (worker->pid == 0) {
        close(ends[0]);
        work(args, worker->next, ends[1]);
    }
    close(ends[1]);
    worker->fd = ends[0];
}

/* ---- a failing seed, once more ---- */

static bool fails_without(const args_t *args, uint64_t seed, uint32_t without, sim_result_t *out) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends) != 0) abort();
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
        args_t again = *args;
        again.run.without |= without;
        report_fd = ends[1];
        static sim_result_t result;
        run_one(&again, seed, &result);
        write_result(ends[1], &result);
        _exit(0);
    }
    close(ends[1]);
    memset(out, 0, sizeof(*out));
    bool whole = read(ends[0], out, sizeof(*out)) == (ssize_t)sizeof(*out);
    close(ends[0]);
    int status;
    (void)waitpid(pid, &status, 0);
    return !whole || out->failed;
}

/* Greedy: kinds of fault that are not needed for the failure are left out, one after the other. */
static void shrink(const args_t *args, uint64_t seed) {
    uint32_t without = 0;
    sim_result_t result;
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        if (fails_without(args, seed, without | 1u << k, &result)) without |= 1u << k;
    printf("  shrunk: needs");
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        if (!(without >> k & 1u)) printf(" %s", sim_fault_name((sim_fault_kind_t)k));
    (void)fails_without(args, seed, without, &result);
    printf("; then %s at %.3f s: %s\n  again: --first %llu --seeds 1", result.id, (double)result.failed_at_us / 1e6,
           result.text, U(seed));
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        if (without >> k & 1u) printf(" --without %s", sim_fault_name((sim_fault_kind_t)k));
    printf("\n");
}

/* With the machines' event logs on. */
static void leave_logs(const args_t *args, uint64_t seed) {
    static char dir[512];
    snprintf(dir, sizeof(dir), "%s/seed-%llu", args->log_dir, U(seed));
    (void)mkdir(args->log_dir, 0700);
    (void)mkdir(dir, 0700);
    args_t again = *args;
    again.run.log_dir = dir;
    again.twice = false;
    sim_result_t result;
    (void)fails_without(&again, seed, 0, &result);
    printf("  event logs: %s (mooncake-pg replay FILE)\n", dir);
}

static void say_failure(const args_t *args, const sim_result_t *r) {
    printf("FAILED seed %llu %s at %.3f s (%u ranks): %s\n", U(r->seed), r->id, (double)r->failed_at_us / 1e6, r->ranks,
           r->text);
    if (args->log_dir != NULL) leave_logs(args, r->seed);
    if (args->shrink) shrink(args, r->seed);
    fflush(stdout);
}

/* ---- summary ---- */

static void add(sum_t *sum, const sim_result_t *r) {
    sum->seeds++;
    sum->failed += r->failed ? 1u : 0u;
    sum->asserts += r->failed && strcmp(r->id, "assert") == 0 ? 1u : 0u;
    sum->events += r->events;
    sum->virtual_us += r->virtual_us;
    sum->ops += r->ops;
    sum->views += r->views;
    sum->calls += r->calls;
    sum->faults += r->fault_total;
    sum->rounds += r->rounds;
    sum->coords += r->coords;
    sum->nodes += r->nodes;
    for (uint32_t k = 0; k < SIM_F__COUNT; k++) sum->by_kind[k] += r->faults[k];
    if (r->ranks <= SIM_RANKS) sum->by_ranks[r->ranks]++;
}

static uint64_t between(const sum_t *s, uint32_t low, uint32_t high) {
    uint64_t n = 0;
    for (uint32_t i = low; i <= high; i++) n += s->by_ranks[i];
    return n;
}

static void print_json(const sum_t *s, double seconds) {
    printf("{\"seeds\": %llu, \"failed\": %llu, \"asserts\": %llu, \"virtual_hours\": %.3f, \"events\": %llu, ",
           U(s->seeds), U(s->failed), U(s->asserts), (double)s->virtual_us / 3.6e9, U(s->events));
    printf("\"ops\": %llu, \"views\": %llu, \"calls\": %llu, \"heals\": %llu, \"faults\": %llu, \"seconds\": %.3f, ",
           U(s->ops), U(s->views), U(s->calls), U(s->rounds), U(s->faults), seconds);
    printf("\"seeds_per_second\": %.3f, \"fault_kinds\": {", (double)s->seeds / seconds);
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        printf("%s\"%s\": %llu", k == 0 ? "" : ", ", sim_fault_name((sim_fault_kind_t)k), U(s->by_kind[k]));
    printf("}}\n");
}

static void print_summary(const sum_t *s, double seconds) {
    double n = s->seeds == 0 ? 1.0 : (double)s->seeds;
    printf("%llu seeds, %llu failed (%llu by an assertion); %.1f virtual hours, %.1f virtual minutes and %.1f faults a "
           "seed\n",
           U(s->seeds), U(s->failed), U(s->asserts), (double)s->virtual_us / 3.6e9, (double)s->virtual_us / 6e7 / n,
           (double)s->faults / n);
    printf("ranks: 2-8 %llu, 9-16 %llu, 17-64 %llu; %llu processes, %llu coordinators, %llu healed rounds\n",
           U(between(s, 0, 8)), U(between(s, 9, 16)), U(between(s, 17, SIM_RANKS)), U(s->nodes), U(s->coords),
           U(s->rounds));
    printf("events %llu, views %llu, calls %llu, operations %llu\nfaults:", U(s->events), U(s->views), U(s->calls),
           U(s->ops));
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        printf(" %s %.2f", sim_fault_name((sim_fault_kind_t)k), (double)s->by_kind[k] / n);
    printf(" (a seed)\n%.1f s, %.2f seeds/s, %.0f events/s\n", seconds, (double)s->seeds / seconds,
           (double)s->events / seconds);
}

/* ---- the parent ---- */

/* One record, or the worker's end: then the seed that it was at has failed, or it is done. */
static void listen_to(const args_t *args, worker_t *worker, sum_t *sum) {
    static sim_result_t r;
    size_t got = 0;
    while (got < sizeof(r)) { /* bounded: one record */
        ssize_t n = read(worker->fd, (uint8_t *)&r + got, sizeof(r) - got);
        if (n <= 0) break;
        got += (size_t)n;
    }
    if (got == sizeof(r)) {
        add(sum, &r);
        if (r.failed) say_failure(args, &r);
        worker->next = r.seed + args->jobs;
        return;
    }
    int status = 0;
    close(worker->fd);
    (void)waitpid(worker->pid, &status, 0);
    bool done = worker->next >= args->first + args->seeds;
    bool told = WIFEXITED(status) && WEXITSTATUS(status) == 4;
    if (!done && !told) {
        memset(&r, 0, sizeof(r));
        r.seed = worker->next;
        r.failed = true;
        snprintf(r.id, sizeof(r.id), "crash");
        snprintf(r.text, sizeof(r.text), "the process ended with status %d", status);
        add(sum, &r);
        say_failure(args, &r);
        worker->next += args->jobs;
        done = worker->next >= args->first + args->seeds;
    }
    worker->over = done;
    if (!done) start_worker(args, worker);
}

static double now_s(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int run_all(args_t *args) {
    static sum_t sum;
    worker_t workers[MOST_JOBS];
    double began = now_s();
    if (args->jobs > args->seeds) args->jobs = (uint32_t)args->seeds;
    for (uint32_t i = 0; i < args->jobs; i++) {
        workers[i] = (worker_t){.next = args->first + i};
        start_worker(args, &workers[i]);
    }
    for (uint32_t left = args->jobs; left > 0;) { /* bounded: each turn takes a record or ends a worker */
        left = 0;
        fd_set set;
        FD_ZERO(&set);
        int high = -1;
        for (uint32_t i = 0; i < args->jobs; i++) {
            if (workers[i].over) continue;
            left++;
            FD_SET(workers[i].fd, &set);
            if (workers[i].fd > high) high = workers[i].fd;
        }
        if (left == 0 || select(high + 1, &set, NULL, NULL, NULL) < 0) break;
        for (uint32_t i = 0; i < args->jobs; i++)
            if (!workers[i].over && FD_ISSET(workers[i].fd, &set)) listen_to(args, &workers[i], &sum);
    }
    double seconds = now_s() - began;
    if (args->json)
        print_json(&sum, seconds);
    else
        print_summary(&sum, seconds);
    /* Mutants have to be killed by a checker: there an assertion does not count. */
    return sum.failed == (args->checkers_only ? sum.asserts : 0) ? 0 : 1;
}

/* One seed in this process, for a debugger and for --trace. */
static int run_here(args_t *args) {
    static sim_result_t result;
    if (args->log_path != NULL) args->run.out = fopen(args->log_path, "w");
    if (args->run.out == NULL) args->run.out = stdout;
    args->run.log_dir = args->log_dir;
    if (args->log_dir != NULL) (void)mkdir(args->log_dir, 0700);
    run_one(args, args->first, &result);
    if (result.failed)
        printf("FAILED seed %llu %s at %.3f s: %s\n", U(result.seed), result.id, (double)result.failed_at_us / 1e6,
               result.text);
    printf("seed %llu: %u ranks, hash %016llx, %.1f virtual s, %llu events, %u faults\n", U(result.seed), result.ranks,
           U(result.hash), (double)result.virtual_us / 1e6, U(result.events), result.fault_total);
    if (args->run.out != stdout) fclose(args->run.out);
    return result.failed ? 1 : 0;
}

static uint64_t number(const char *text) {
    char *end;
    unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0' || end == text) {
        fprintf(stderr, "sim: \"%s\" is not a number\n", text);
        exit(2);
    }
    return v;
}

static uint32_t kind_bit(const char *name) {
    for (uint32_t k = 0; k < SIM_F__COUNT; k++)
        if (strcmp(name, sim_fault_name((sim_fault_kind_t)k)) == 0) return 1u << k;
    fprintf(stderr, "sim: there is no fault kind \"%s\"\n", name);
    exit(2);
}

static bool take_flag(args_t *a, const char *name) {
    struct {
        const char *name;
        bool *flag;
    } flags[] = {{"--trace", &a->run.trace},
                 {"--twice", &a->twice},
                 {"--json", &a->json},
                 {"--shrink", &a->shrink},
                 {"--checkers-only", &a->checkers_only}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (strcmp(name, flags[i].name) != 0) continue;
        *flags[i].flag = true;
        return true;
    }
    return false;
}

static bool take_value(args_t *a, const char *name, const char *value) {
    if (strcmp(name, "--seeds") == 0)
        a->seeds = number(value);
    else if (strcmp(name, "--first") == 0)
        a->first = number(value);
    else if (strcmp(name, "--ranks") == 0)
        a->run.ranks = (uint32_t)number(value);
    else if (strcmp(name, "--minutes") == 0)
        a->run.minutes = (uint32_t)number(value);
    else if (strcmp(name, "--jobs") == 0)
        a->jobs = (uint32_t)number(value);
    else if (strcmp(name, "--log") == 0)
        a->log_path = value;
    else if (strcmp(name, "--log-dir") == 0)
        a->log_dir = value;
    else if (strcmp(name, "--without") == 0)
        a->run.without |= kind_bit(value);
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    args_t args = {.first = 1, .seeds = 1, .jobs = 2, .run = {.minutes = 10}};
    for (int i = 1; i < argc; i++) {
        if (take_flag(&args, argv[i])) continue;
        if (i + 1 < argc && take_value(&args, argv[i], argv[i + 1])) {
            i++;
            continue;
        }
        fprintf(stderr, "sim: \"%s\" is no option, or lacks its value: see the beginning of sim.c\n", argv[i]);
        return 2;
    }
    if (args.jobs == 0 || args.jobs > MOST_JOBS || args.seeds == 0 || args.run.minutes == 0 ||
        args.run.ranks > SIM_RANKS || args.run.ranks == 1) {
        fprintf(stderr, "sim: --jobs is 1 to 64, --ranks 2 to 64, --seeds and --minutes at least 1\n");
        return 2;
    }
    if (mcpg__panic_hook_add(on_panic, NULL) != MCPG_OK) return 2;
    bool here = args.run.trace || args.log_path != NULL;
    return here ? run_here(&args) : run_all(&args);
}
