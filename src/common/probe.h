/* probe.h: two seams for the tests of the pure machines, nothing in any other build.
 *
 * MCPG_MARK(NAME) stands at an edge of a state diagram: with MCPG_WITH_MARKS it counts that the edge was walked.
 * MCPG_MUTANT(NAME) is false; with MCPG_WITH_MUTANTS it is true for the one mutant that the test has chosen, so that
 * `if (x && !MCPG_MUTANT(SKIP_X))` is a fault on demand. It must never change what a machine does in a build that is
 * installed.
 */
#ifndef MCPG_COMMON_PROBE_H
#define MCPG_COMMON_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef MCPG_WITH_MARKS
#define X(NAME, script, edge) MCPG_MARK_##NAME,
typedef enum {
#include "common/marks.def"
    MCPG_MARK__COUNT
} mcpg_mark_t;
#undef X
extern uint64_t mcpg__marks[MCPG_MARK__COUNT];
#define MCPG_MARK(NAME) (mcpg__marks[MCPG_MARK_##NAME]++)
#else
#define MCPG_MARK(NAME) ((void)0)
#endif

#ifdef MCPG_WITH_MUTANTS
#define X(NAME, breaks, what) MCPG_MUTANT_##NAME,
typedef enum {
    MCPG_MUTANT_NONE = 0,
#include "common/mutants.def"
    MCPG_MUTANT__COUNT
} mcpg_mutant_t;
#undef X
extern mcpg_mutant_t mcpg__mutant;
#define MCPG_MUTANT(NAME) (mcpg__mutant == MCPG_MUTANT_##NAME)
#else
#define MCPG_MUTANT(NAME) false
#endif

#endif
