/* script_coord.c: runs text scripts against the coordinator machine and compares all its effects with a golden file.
 *
 *   script_coord [--rewrite] FILE.script...    FILE.golden lies beside each script
 *
 * A script is one command a line (tests/script/README.md); '#' begins a comment. It must never write a golden file
 * unasked.
 */
#include <stdlib.h>
#include <string.h>

#include "script/script_world.h"

static bool world_init(world_t *w) {
    mcpg_coord_config_t config = {.term = 1,
                                  .coordinator_id = 7,
                                  .max_ranks = RANKS,
                                  .max_groups = GROUPS,
                                  .max_slots_total = 1024,
                                  .clique_node_budget = 100000,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    size_t size = mcpg_coord_size(&config);
    mcpg_coord_effects_worst(&config, &w->fx.cap, &w->fx.arena_cap);
    w->mem = calloc(1, size);
    w->fx.items = calloc(w->fx.cap, sizeof(*w->fx.items));
    w->fx.arena = malloc(w->fx.arena_cap);
    w->now = 1000000;
    w->timer = UINT64_MAX;
    w->next_pid = 1000;
    return w->mem != NULL && w->fx.items != NULL && w->fx.arena != NULL &&
           mcpg_coord_init(w->mem, size, &config, &w->coord) == MCPG_OK;
}

static void run_line(world_t *w, char *line, FILE *total, const char *path, uint32_t number_of_line) {
    char *args = line, copy[512];
    line[strcspn(line, "\n")] = '\0';
    (void)snprintf(copy, sizeof(copy), "%s", line);
    char *name = script_word(&args);
    if (*name == '\0' || *name == '#') {
        fprintf(total, "%s\n", copy);
        return;
    }
    if (strcmp(name, "expect") == 0) { /* the last command's effects contain this text */
        if (strstr(w->last, args) != NULL) return;
        fprintf(stderr, "%s:%u: expected \"%s\" in:\n%s", path, number_of_line, args, w->last);
        w->failed = true;
        return;
    }
    memset(w->last, 0, sizeof(w->last));
    w->out = fmemopen(w->last, sizeof(w->last) - 1u, "w");
    if (w->out == NULL) abort();
    if (!script_run_command(w, name, args)) {
        fprintf(stderr, "%s:%u: unknown command %s\n", path, number_of_line, name);
        w->failed = true;
    }
    script_drain(w);
    fclose(w->out);
    fprintf(total, "> %s\n%s", copy, w->last);
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return NULL;
    char *text = calloc(1, 1u << 20);
    size_t got = text == NULL ? 0 : fread(text, 1, (1u << 20) - 1u, file);
    (void)got;
    fclose(file);
    return text;
}

/* Prints the first line that differs. */
static bool same_text(const char *path, const char *want, const char *got) {
    uint32_t line = 1;
    const char *line_want = want, *line_got = got;
    while (*want != '\0' && *want == *got) {
        if (*want == '\n') {
            line++;
            line_want = want + 1;
            line_got = got + 1;
        }
        want++;
        got++;
    }
    if (*want == *got) return true;
    fprintf(stderr, "%s:%u: differs\n  golden: %.*s\n  now:    %.*s\n", path, line, (int)strcspn(line_want, "\n"),
            line_want, (int)strcspn(line_got, "\n"), line_got);
    return false;
}

static bool run_file(const char *path, bool rewrite) {
    char golden_path[1024];
    const char *dot = strrchr(path, '.');
    if (dot == NULL) return false;
    (void)snprintf(golden_path, sizeof(golden_path), "%.*s.golden", (int)(dot - path), path);
    FILE *script = fopen(path, "r");
    world_t *w = calloc(1, sizeof(*w));
    char *text = NULL, line[512];
    size_t text_len = 0;
    FILE *total = open_memstream(&text, &text_len);
    bool ok = script != NULL && w != NULL && total != NULL && world_init(w);
    for (uint32_t n = 1; ok && fgets(line, sizeof(line), script) != NULL; n++) run_line(w, line, total, path, n);
    if (total != NULL) fclose(total);
    if (script != NULL) fclose(script);
    ok = ok && !w->failed;
    if (ok && rewrite) {
        FILE *golden = fopen(golden_path, "w");
        ok = golden != NULL && fwrite(text, 1, text_len, golden) == text_len;
        if (golden != NULL) ok = fclose(golden) == 0 && ok;
    } else if (ok) {
        char *want = read_all(golden_path);
        ok = want != NULL && same_text(golden_path, want, text);
        free(want);
    }
    if (w != NULL) {
        free(w->mem);
        free(w->fx.items);
        free(w->fx.arena);
    }
    free(w);
    free(text);
    printf("%s %s\n", ok ? "ok" : "FAILED", path);
    return ok;
}

int main(int argc, char **argv) {
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0, ok = true;
    for (int i = rewrite ? 2 : 1; i < argc; i++) ok = run_file(argv[i], rewrite) && ok;
    return ok && argc > (rewrite ? 2 : 1) ? 0 : 1;
}
