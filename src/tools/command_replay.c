/* command_replay.c: mooncake-pg replay: steps logs again and names the first difference, prints them as scripts, shows
 * the machine's state after an event.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/panic.h"
#include "tools/commands.h"
#include "tools/log_replay.h"
#include "tools/text.h"

typedef struct {
    bool text, effects, dump, help;
    uint64_t until; /* UINT64_MAX: to the end */
} options_t;

static void usage(FILE *to) {
    (void)fprintf(
        to,
        "usage: mooncake-pg replay [options] LOG...\n"
        "  LOG            a segment file (NAME.0), NAME for both of its segments, or a folder for every log in it\n"
        "  --text         print a coordinator's log as a script of tests/script, an agent's one event a line; without\n"
        "                 --effects it is not stepped, so that a log whose start was overwritten can be printed as "
        "well\n"
        "  --effects      with --text: the effects too, as comments\n"
        "  --until N      stop after event N\n"
        "  --dump         then show the machine's state\n"
        "Exit code 0: every step came out as it was recorded. 1: it did not, or the log is damaged; the first\n"
        "difference is named. 2: wrong usage, or no log that can be replayed.\n");
}

static bool parse(int argc, char **argv, options_t *o, mcpg_log_list_t *list) {
    char error[512];
    *o = (options_t){.until = UINT64_MAX};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) return o->help = true;
        if (strcmp(a, "--text") == 0) {
            o->text = true;
        } else if (strcmp(a, "--effects") == 0) {
            o->effects = true;
        } else if (strcmp(a, "--dump") == 0) {
            o->dump = true;
        } else if (strcmp(a, "--until") == 0) {
            const char *value = i + 1 < argc ? argv[++i] : "";
            if (mcpg__text_number(value, &o->until) && o->until > 0) continue;
            (void)fprintf(stderr, "mooncake-pg replay: --until '%s': give the number of an event, from 1 on\n", value);
            return false;
        } else if (a[0] == '-') {
            (void)fprintf(stderr, "mooncake-pg replay: '%s' is no option: see --help\n", a);
            return false;
        } else if (!mcpg__log_list_add(list, a, error, sizeof error)) {
            (void)fprintf(stderr, "mooncake-pg replay: %s\n", error);
            return false;
        }
    }
    if (list->count == 0) (void)fprintf(stderr, "mooncake-pg replay: no log is named: see --help\n");
    return list->count > 0;
}

/* ---- printing ---- */

static void print_head(FILE *out, const char *mark, const mcpg_log_file_t *log) {
    const mcpg_eventlog_header_t *h = &log->segment[0].header;
    time_t seconds = (time_t)(h->started_us / 1000000u);
    struct tm tm;
    char when[32] = "?";
    if (gmtime_r(&seconds, &tm) != NULL) (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    (void)fprintf(out, "%s%s: %s, started %s UTC, build ", mark, log->prefix,
                  h->machine == MCPG_LOG_COORD ? "coordinator" : "agent", when);
    for (size_t i = 0; i < 4; i++) (void)fprintf(out, "%02x", h->build_id[i]);
    (void)fputc('\n', out);
}

static void print_event(FILE *out, const mcpg_replay_t *r) {
    if (r->machine == MCPG_LOG_COORD)
        mcpg__text_coord_event(out, &r->coord_event);
    else
        mcpg__text_agent_event(out, &r->agent_event);
}

static void print_effects(FILE *out, const char *mark, const mcpg_replay_t *r) {
    if (r->status != MCPG_OK) (void)fprintf(out, "%s  rejected %s\n", mark, mcpg_status_name(r->status));
    for (uint32_t i = 0; r->machine == MCPG_LOG_COORD && i < r->coord_fx.count; i++) {
        (void)fputs(mark, out);
        mcpg__text_coord_effect(out, &r->coord_fx.items[i]);
    }
    for (uint32_t i = 0; r->machine == MCPG_LOG_AGENT && i < r->agent_fx.count; i++) {
        (void)fputs(mark, out);
        mcpg__text_agent_effect(out, &r->agent_fx.items[i]);
    }
}

static void print_config(const mcpg_replay_t *r) {
    if (r->machine == MCPG_LOG_COORD)
        mcpg__text_coord_config(stdout, &r->coord_config);
    else
        mcpg__text_agent_config(stdout, &r->agent_config);
}

static void print_text(const mcpg_replay_t *r, uint64_t *last_us, bool effects) {
    if (r->machine == MCPG_LOG_COORD) {
        if (r->now.us != *last_us) (void)printf("at %" PRIu64 "\n", r->now.us);
    } else {
        (void)printf("%" PRIu64 " at %" PRIu64 " ", r->seq, r->now.us);
    }
    *last_us = r->now.us;
    print_event(stdout, r);
    if (effects) print_effects(stdout, r->machine == MCPG_LOG_COORD ? "# " : "", r);
}

static void print_dump(const mcpg_replay_t *r) {
    bool is_coord = r->machine == MCPG_LOG_COORD;
    size_t len = is_coord ? mcpg_coord_dump(r->coord, NULL, 0) : mcpg_agent_dump(r->agent, NULL, 0);
    char *text = malloc(len + 1u);
    if (text == NULL) return;
    (void)(is_coord ? mcpg_coord_dump(r->coord, text, len + 1u) : mcpg_agent_dump(r->agent, text, len + 1u));
    (void)printf("state after event %" PRIu64 ":\n%s", r->seq, text);
    free(text);
}

/* What could not be compared, or was not as recorded: the event, and what the machine does now. */
static void print_difference(const mcpg_log_file_t *log, const mcpg_replay_t *r, mcpg_replay_found_t found) {
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s: %s: %s\n", log->prefix, found == MCPG_REPLAY_DIFFERS ? "differs" : "broken", r->problem);
    if (found != MCPG_REPLAY_DIFFERS) return;
    (void)fprintf(stderr, "event %" PRIu64 " at %" PRIu64 " us: ", r->seq, r->now.us);
    print_event(stderr, r);
    (void)fprintf(stderr, "effects now, status %s:\n", mcpg_status_name(r->status));
    print_effects(stderr, "", r);
}

/* ---- one log ---- */

/* A step that panics says at least in which event it did. */
static void say_where(void *user, const char *what) {
    const mcpg_replay_t *r = user;
    (void)fprintf(stderr, "event %" PRIu64 " at %" PRIu64 " us stops the machine (%s): ", r->seq, r->now.us, what);
    print_event(stderr, r);
}

static mcpg_replay_found_t run(mcpg_replay_t *r, const options_t *o) {
    uint64_t last_us = UINT64_MAX;
    for (;;) {
        if (r->seq >= o->until) return MCPG_REPLAY_END;
        mcpg_replay_found_t found = mcpg__replay_next(r, NULL, NULL);
        bool is_there = found == MCPG_REPLAY_EVENT || found == MCPG_REPLAY_DIFFERS;
        if (o->text && is_there) print_text(r, &last_us, o->effects && r->is_stepped);
        if (found != MCPG_REPLAY_EVENT) return found;
    }
}

static int replay(const mcpg_log_file_t *log, const options_t *o) {
    mcpg_replay_t r;
    char error[512];
    bool steps = !o->text || o->effects || o->dump;
    if (!mcpg__replay_open(&r, log, steps, error, sizeof error)) {
        (void)fprintf(stderr, "mooncake-pg replay: %s\n", error);
        return EXIT_USAGE;
    }
    if (o->text) {
        print_head(stdout, "# ", log);
        if (!mcpg__log_file_has_start(log)) (void)printf("# its start was overwritten: this is the end of it\n");
        print_config(&r);
    }
    mcpg_status_t hooked = mcpg__panic_hook_add(say_where, &r);
    mcpg_replay_found_t found = run(&r, o);
    if (hooked == MCPG_OK) mcpg__panic_hook_remove(say_where, &r);
    int code = EXIT_FINE;
    if (found != MCPG_REPLAY_END) {
        print_difference(log, &r, found);
        code = EXIT_DIFFERS;
    } else if (o->until != UINT64_MAX && r.seq < o->until) {
        (void)fprintf(stderr, "mooncake-pg replay: '%s' ends with event %" PRIu64 ": give no higher one to --until\n",
                      log->prefix, r.seq);
        code = EXIT_USAGE;
    }
    if (o->dump && steps) print_dump(&r);
    if (r.is_torn) (void)fprintf(stderr, "%s: the last record is not whole: its writer died in it\n", log->prefix);
    if (code == EXIT_FINE && r.events > 0 && !r.has_effects && !r.is_torn && o->until == UINT64_MAX)
        (void)fprintf(stderr,
                      "%s: event %" PRIu64 " has no effects recorded: its writer died in that step, or is in it\n",
                      log->prefix, r.seq);
    if (code == EXIT_FINE && !o->text && !o->dump)
        (void)printf("ok: %" PRIu64 " events, %" PRIu64 " digests\n", r.events, r.digests);
    mcpg__replay_close(&r);
    return code;
}

int mcpg__command_replay(int argc, char **argv) {
    options_t o;
    mcpg_log_list_t list = {0};
    int code = EXIT_USAGE;
    if (!parse(argc, argv, &o, &list)) goto out;
    code = EXIT_FINE;
    if (o.help) {
        usage(stdout);
        goto out;
    }
    for (uint32_t i = 0; i < list.count; i++) {
        mcpg_log_file_t log;
        char error[512];
        int one = EXIT_USAGE;
        if (mcpg__log_file_load(list.prefix[i], &log, error, sizeof error)) {
            if (list.count > 1 && !o.text) print_head(stdout, "", &log);
            one = replay(&log, &o);
            mcpg__log_file_free(&log);
        } else {
            (void)fprintf(stderr, "mooncake-pg replay: %s\n", error);
        }
        if (one > code) code = one;
    }
out:
    mcpg__log_list_free(&list);
    return code;
}
