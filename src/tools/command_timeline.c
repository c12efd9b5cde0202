/* command_timeline.c: mooncake-pg timeline: draws a coordinator's log as an SVG picture. It replaces the picture only
 * when it is whole.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/timeline.h"
#include "tools/timeline_draw.h"

static void usage(FILE *to) {
    (void)fprintf(to,
                  "usage: mooncake-pg timeline LOG -o OUT.svg\n"
                  "  LOG: a coordinator's log: a segment file (NAME.0) or NAME. Draws ranks' states, suspects, link\n"
                  "  failures, views, barriers and proposals over time; long quiet stretches are cut out.\n"
                  "Exit code 0: drawn. 1: drawn up to where the log differs or is damaged. 2: nothing drawn.\n");
}

static bool write_picture(const timeline_t *t, const char *name, const char *problem, const char *path) {
    char temporary[4096];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    FILE *out = n > 0 && (size_t)n < sizeof temporary ? fopen(temporary, "w") : NULL;
    bool ok = out != NULL && timeline_draw(t, name, problem, out);
    if (out != NULL && fclose(out) != 0) ok = false;
    if (ok && rename(temporary, path) == 0) return true;
    (void)fprintf(stderr, "mooncake-pg timeline: '%s' cannot be written (%s): give a path in a folder that may be\n",
                  path, strerror(errno));
    if (out != NULL) (void)unlink(temporary);
    return false;
}

static int draw(const char *prefix, const char *path) {
    mcpg_log_file_t log;
    timeline_t t;
    char error[512], problem[320];
    if (!mcpg__log_file_load(prefix, &log, error, sizeof error)) {
        (void)fprintf(stderr, "mooncake-pg timeline: %s\n", error);
        return EXIT_USAGE;
    }
    int code = EXIT_USAGE;
    if (log.segment[0].header.machine != MCPG_LOG_COORD) {
        (void)fprintf(stderr, "mooncake-pg timeline: '%s' is an agent's log: give a coordinator's\n", prefix);
    } else if (!timeline_collect(&log, &t, problem, sizeof problem, error, sizeof error)) {
        (void)fprintf(stderr, "mooncake-pg timeline: %s\n", error);
    } else {
        const char *slash = strrchr(prefix, '/');
        if (write_picture(&t, slash != NULL ? slash + 1 : prefix, problem, path))
            code = problem[0] != '\0' ? EXIT_DIFFERS : EXIT_FINE;
        if (problem[0] != '\0') (void)fprintf(stderr, "mooncake-pg timeline: drawn up to there: %s\n", problem);
        timeline_free(&t);
    }
    mcpg__log_file_free(&log);
    return code;
}

int mcpg__command_timeline(int argc, char **argv) {
    const char *path = NULL;
    mcpg_log_list_t list = {0};
    char error[512];
    int code = EXIT_USAGE;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            code = EXIT_FINE;
            goto out;
        }
        if (strcmp(argv[i], "-o") == 0 && i + 1 < argc) {
            path = argv[++i];
        } else if (argv[i][0] == '-') {
            (void)fprintf(stderr, "mooncake-pg timeline: '%s' is no option, or needs a value: see --help\n", argv[i]);
            goto out;
        } else if (!mcpg__log_list_add(&list, argv[i], error, sizeof error)) {
            (void)fprintf(stderr, "mooncake-pg timeline: %s\n", error);
            goto out;
        }
    }
    if (path == NULL || list.count != 1)
        (void)fprintf(stderr, "mooncake-pg timeline: give one log and -o OUT.svg\n");
    else
        code = draw(list.prefix[0], path);
out:
    mcpg__log_list_free(&list);
    return code;
}
