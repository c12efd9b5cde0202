/* timeline_draw.h: the picture of a timeline. */
#ifndef MCPG_TOOLS_TIMELINE_DRAW_H
#define MCPG_TOOLS_TIMELINE_DRAW_H

#include <stdio.h>

#include "tools/timeline.h"

/* name: of the log, for the heading. problem: a sentence below it, or "". False: something could not be written. */
bool timeline_draw(const timeline_t *timeline, const char *name, const char *problem, FILE *out);

#endif
