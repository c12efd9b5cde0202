/* render.h: one coordinator effect as one line of text, the language of the golden files (src/tools/text.h). It never
 * decides what a test expects. */
#ifndef MCPG_TESTS_SCRIPT_RENDER_H
#define MCPG_TESTS_SCRIPT_RENDER_H

#include "tools/text.h"

static inline void render_effect(FILE *out, const mcpg_coord_effect_t *effect) {
    mcpg__text_coord_effect(out, effect);
}

#endif
