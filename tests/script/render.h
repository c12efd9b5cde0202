/* render.h: one coordinator effect as one line of text, the language of the golden files. It never decides what a test
 * expects. */
#ifndef MCPG_TESTS_SCRIPT_RENDER_H
#define MCPG_TESTS_SCRIPT_RENDER_H

#include <stdio.h>

#include "coordinator/coord.h"

void render_effect(FILE *out, const mcpg_coord_effect_t *effect);
void render_set(FILE *out, const mcpg_rankset_t *set); /* "0,2,5" or "-" */

#endif
