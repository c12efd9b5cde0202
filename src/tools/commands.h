/* commands.h: the subcommands of mooncake-pg. Each parses its own arguments (argv[0] is its name), prints to stdout
 * what was asked for and to stderr what went wrong, and returns the exit code. */
#ifndef MCPG_TOOLS_COMMANDS_H
#define MCPG_TOOLS_COMMANDS_H

enum { EXIT_FINE = 0, EXIT_DIFFERS = 1, EXIT_USAGE = 2 };

int mcpg__command_replay(int argc, char **argv);
int mcpg__command_timeline(int argc, char **argv);

#endif
