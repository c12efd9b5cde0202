/* script_raw.c: the commands that `mooncake-pg replay --text` prints: events word for word, at their own times, for the
 * machine alone. No actor hears of them, and none answers.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_host_codec.h"
#include "script/script_world.h"
#include "tools/text.h"

static void say_wrong(world_t *w, const char *error) {
    fprintf(w->out, "  WRONG: %s\n", error);
    fprintf(stderr, "%s\n", error);
    w->failed = true;
}

/* Through the codec, as a host gets it: whatever a script says, the machine sees only what could come over the wire. */
static bool validate(mcpg_up_msg_t *msg, uint8_t *wire, mcpg_arena_t *arena) {
    size_t len = 0;
    if (mcpg__up_pack(msg, wire, MCPG_MSG_CAP, &len) != MCPG_OK) return false;
    return mcpg__up_unpack(wire, len, arena, msg) == MCPG_OK;
}

bool script_raw_command(world_t *w, const char *name, char *args) {
    char error[160] = "";
    if (strcmp(name, "config") == 0) {
        mcpg_coord_config_t config;
        if (!mcpg__text_coord_config_parse(args, &config, error, sizeof error) || !script_world_machine(w, &config))
            say_wrong(w, error[0] != '\0' ? error : "the coordinator does not take this config");
        return true;
    }
    if (strcmp(name, "at") == 0) {
        const char *when = script_word(&args);
        if (!mcpg__text_number(when, &w->now)) say_wrong(w, "at: give a time in microseconds");
        return true;
    }
    size_t line_cap = strlen(name) + strlen(args) + 2u;
    char *line = malloc(line_cap);
    mcpg_arena_t arena = {.base = malloc(MCPG_COORD_DECODE_CAP), .cap = MCPG_COORD_DECODE_CAP};
    uint8_t *wire = malloc(MCPG_MSG_CAP);
    if (line == NULL || arena.base == NULL || wire == NULL) abort();
    (void)snprintf(line, line_cap, "%s %s", name, args);
    mcpg_up_msg_t msg;
    mcpg_coord_event_t event = {.now = {w->now}};
    bool ok = mcpg__text_coord_event_parse(line, &arena, &msg, &event, error, sizeof error);
    if (ok && event.kind == MCPG_COORD_EV_MSG && !validate(&msg, wire, &arena)) {
        ok = false;
        (void)snprintf(error, sizeof error, "this message is beyond a limit");
    }
    if (ok)
        script_step(w, &event);
    else if (error[0] != '\0')
        say_wrong(w, error);
    free(wire);
    free(arena.base);
    free(line);
    return ok || error[0] != '\0';
}
