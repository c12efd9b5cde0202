/* tool_run.c: see tool_run.h. */
#include "tools/tool_run.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

char tool_folder[64];
static tool_result_t last;

int tool_set_up(void **state) {
    (void)state;
    (void)snprintf(tool_folder, sizeof tool_folder, "/tmp/mcpg-tools-XXXXXX");
    return mkdtemp(tool_folder) != NULL ? 0 : -1;
}

static void remove_all(const char *folder) {
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        char path[512];
        struct stat st;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) remove_all(path);
        (void)remove(path);
    }
    closedir(dir);
}

int tool_tear_down(void **state) {
    (void)state;
    free(last.out);
    free(last.err);
    last = (tool_result_t){0};
    remove_all(tool_folder);
    return rmdir(tool_folder);
}

const char *tool_path(const char *name) {
    static char paths[8][256];
    static unsigned next;
    char *path = paths[next++ % 8u];
    (void)snprintf(path, sizeof paths[0], "%s/%s", tool_folder, name);
    return path;
}

char *tool_read(const char *path, size_t *len_out) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s is not there", path);
    struct stat st;
    assert_int_equal(fstat(fileno(f), &st), 0);
    char *bytes = calloc(1, (size_t)st.st_size + 1u);
    assert_non_null(bytes);
    size_t len = fread(bytes, 1, (size_t)st.st_size, f);
    assert_int_equal(fclose(f), 0);
    if (len_out != NULL) *len_out = len;
    return bytes;
}

void tool_write(const char *path, const void *bytes, size_t len) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void be_program(const char *const *argv, const char *out, const char *err) {
    int fd1 = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), fd2 = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd1 < 0 || fd2 < 0 || dup2(fd1, 1) < 0 || dup2(fd2, 2) < 0) _exit(126);
    (void)alarm(60);
    char *copies[16] = {0};
    for (int i = 0; argv[i] != NULL && i < 15; i++) copies[i] = strdup(argv[i]);
    (void)execv(copies[0], copies);
    _exit(127);
}

tool_result_t tool_run(const char *const *argv) {
    const char *out = tool_path("out"), *err = tool_path("err");
    free(last.out);
    free(last.err);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) be_program(argv, out, err);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    last.out = tool_read(out, NULL);
    last.err = tool_read(err, NULL);
    return last;
}

bool tool_try_script(const char *script, const char *name) {
    char copy[300], prefix[300];
    size_t len = 0;
    (void)snprintf(copy, sizeof copy, "%s/%s.script", tool_folder, name);
    (void)snprintf(prefix, sizeof prefix, "%s/%s", tool_folder, name);
    char *text = tool_read(script, &len);
    tool_write(copy, text, len);
    free(text);
    return tool_run((const char *const[]){SCRIPT_COORD, "--rewrite", "--log", prefix, copy, NULL}).code == 0;
}

void tool_log_script(const char *script, const char *name) {
    if (!tool_try_script(script, name)) fail_msg("%s: %s%s", script, last.out, last.err);
}

size_t tool_find_event(const uint8_t *file, size_t len, int kind, uint32_t n, mcpg_record_t *out) {
    size_t at = 0;
    for (;;) {
        size_t here = at == 0 ? 64u : at;
        mcpg_record_t record;
        if (mcpg__eventlog_next(file, len, &at, &record) != MCPG_OK) fail_msg("there is no such event");
        bool is_it = record.kind == MCPG_REC_EVENT && (kind < 0 || record.flags == kind);
        if (!is_it || --n > 0) continue;
        *out = record;
        return here;
    }
}

void tool_fix_crc(uint8_t *file, size_t at) {
    uint32_t len;
    memcpy(&len, file + at, sizeof len);
    uint32_t crc = mcpg__crc32c(0, file + at, 24u + len);
    memcpy(file + at + 24u + len, &crc, sizeof crc);
}
