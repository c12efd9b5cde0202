/* script_coord.c: runs text scripts against the coordinator machine and compares all its effects with a golden file.
 *
 *   script_coord [--rewrite] [--log PREFIX] FILE.script...    FILE.golden lies beside each script
 *
 * --log writes the machine's event log, PREFIX.0 (one script at a time), for `mooncake-pg replay`; a second
 * coordinator's is PREFIX-2.0. A script is one command a line (tests/script/README.md); '#' begins a comment. It must
 * never write a golden file unasked.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_host_codec.h"
#include "script/script_world.h"

static void drop_machine(world_t *w) {
    mcpg__eventlog_close(w->log);
    free(w->mem);
    free(w->fx.items);
    free(w->fx.arena);
    w->log = NULL;
    w->mem = NULL;
    memset(&w->fx, 0, sizeof(w->fx));
}

static bool open_log(world_t *w, const mcpg_coord_config_t *config) {
    uint8_t bytes[MCPG_COORD_CONFIG_CAP];
    size_t len = 0;
    char prefix[1024];
    if (w->log_buf == NULL) w->log_buf = malloc(MCPG_COORD_EVENT_CAP);
    w->log_seq = 0;
    if (++w->log_count == 1)
        (void)snprintf(prefix, sizeof(prefix), "%s", w->log_prefix);
    else
        (void)snprintf(prefix, sizeof(prefix), "%s-%u", w->log_prefix, w->log_count);
    return w->log_buf != NULL && mcpg__coord_config_encode(config, bytes, sizeof(bytes), &len) == MCPG_OK &&
           mcpg__eventlog_open(prefix, MCPG_LOG_COORD, bytes, (uint32_t)len, 0, &w->log) == MCPG_OK;
}

bool script_world_machine(world_t *w, const mcpg_coord_config_t *config) {
    drop_machine(w);
    w->config = *config;
    size_t size = mcpg_coord_size(config);
    mcpg_coord_effects_worst(config, &w->fx.cap, &w->fx.arena_cap);
    w->mem = calloc(1, size);
    w->fx.items = calloc(w->fx.cap, sizeof(*w->fx.items));
    w->fx.arena = malloc(w->fx.arena_cap);
    w->timer = UINT64_MAX;
    if (w->mem == NULL || w->fx.items == NULL || w->fx.arena == NULL) return false;
    if (mcpg_coord_init(w->mem, size, config, &w->coord) != MCPG_OK) return false;
    return w->log_prefix == NULL || open_log(w, config);
}

static bool world_init(world_t *w) {
    mcpg_coord_config_t config = {.term = 1,
                                  .coordinator_id = 7,
                                  .max_ranks = RANKS,
                                  .max_groups = GROUPS,
                                  .max_slots_total = 1024,
                                  .clique_node_budget = 100000,
                                  .timers = {200000, 5000000, 5000000, 1000000, 2000000, 30000000, 1000000, 10000000}};
    w->now = 1000000;
    w->next_pid = 1000;
    return script_world_machine(w, &config);
}

static void run_line(world_t *w, char *line, FILE *total, const char *path, uint32_t number_of_line) {
    char *args = line;
    line[strcspn(line, "\n")] = '\0';
    char *copy = strdup(line); /* the words are cut off */
    if (copy == NULL) abort();
    char *name = script_word(&args);
    if (*name == '\0' || *name == '#') {
        fprintf(total, "%s\n", copy);
        free(copy);
        return;
    }
    if (strcmp(name, "expect") == 0) { /* the last command's effects contain this text */
        free(copy);
        const char *last = w->last != NULL ? w->last : "";
        if (strstr(last, args) != NULL) return;
        fprintf(stderr, "%s:%u: expected \"%s\" in:\n%s", path, number_of_line, args, last);
        w->failed = true;
        return;
    }
    size_t last_len = 0;
    free(w->last);
    w->last = NULL;
    w->out = open_memstream(&w->last, &last_len);
    if (w->out == NULL) abort();
    if (!script_run_command(w, name, args)) {
        fprintf(stderr, "%s:%u: unknown command %s\n", path, number_of_line, name);
        w->failed = true;
    }
    script_drain(w);
    fclose(w->out);
    fprintf(total, "> %s\n%s", copy, w->last);
    free(copy);
}

static char *read_all(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return NULL;
    char *text = NULL;
    size_t cap = 0;
    ssize_t got = getdelim(&text, &cap, '\0', file); /* all of it: a text has no NUL */
    fclose(file);
    if (got < 0) {
        free(text);
        return NULL;
    }
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

static bool run_file(const char *path, bool rewrite, const char *log_prefix) {
    char golden_path[1024];
    const char *dot = strrchr(path, '.');
    if (dot == NULL) return false;
    (void)snprintf(golden_path, sizeof(golden_path), "%.*s.golden", (int)(dot - path), path);
    FILE *script = fopen(path, "r");
    world_t *w = calloc(1, sizeof(*w));
    char *text = NULL, *line = NULL;
    size_t text_len = 0, line_cap = 0;
    FILE *total = open_memstream(&text, &text_len);
    if (w != NULL) w->log_prefix = log_prefix;
    bool ok = script != NULL && w != NULL && total != NULL && world_init(w);
    for (uint32_t n = 1; ok && getline(&line, &line_cap, script) >= 0; n++) run_line(w, line, total, path, n);
    free(line);
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
        drop_machine(w);
        free(w->log_buf);
        free(w->last);
    }
    free(w);
    free(text);
    printf("%s %s\n", ok ? "ok" : "FAILED", path);
    return ok;
}

int main(int argc, char **argv) {
    bool rewrite = false, ok = true;
    const char *log_prefix = NULL;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--rewrite") == 0)
            rewrite = true;
        else if (strcmp(argv[i], "--log") == 0 && i + 1 < argc)
            log_prefix = argv[++i];
        else
            return 2;
    }
    int files = argc - i;
    if (files < 1 || (log_prefix != NULL && files > 1)) return 2;
    for (; i < argc; i++) ok = run_file(argv[i], rewrite, log_prefix) && ok;
    return ok ? 0 : 1;
}
