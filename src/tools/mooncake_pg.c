/* mooncake_pg.c: the mooncake-pg command line tool: one subcommand per file. It only reads what a job left behind and
 * never talks to one.
 */
#include <stdio.h>
#include <string.h>

#include "mooncake/pg.h"
#include "tools/commands.h"

static void usage(FILE *to) {
    (void)fprintf(to, "usage: mooncake-pg COMMAND [arguments]\n"
                      "  replay LOG...              step a flight recorder's log again, bit for bit\n"
                      "  timeline LOG -o OUT.svg    draw a coordinator's log\n"
                      "  --version, --help\n"
                      "'mooncake-pg COMMAND --help' says more. LOG is a segment file (NAME.0), NAME, or a folder.\n");
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (strcmp(command, "replay") == 0) return mcpg__command_replay(argc - 1, argv + 1);
    if (strcmp(command, "timeline") == 0) return mcpg__command_timeline(argc - 1, argv + 1);
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) {
        usage(stdout);
        return EXIT_FINE;
    }
    if (strcmp(command, "--version") == 0) {
        (void)printf("mooncake-pg %s\n", mcpg_version());
        return EXIT_FINE;
    }
    if (argc > 1) (void)fprintf(stderr, "mooncake-pg: '%s' is no command: use replay or timeline\n", command);
    usage(stderr);
    return EXIT_USAGE;
}
