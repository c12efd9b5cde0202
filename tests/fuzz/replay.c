/* replay.c: runs a target's checked-in inputs once each, without a fuzzer: `replay_TARGET FILE_OR_FOLDER...`. Built
 * with any compiler and sanitizer. An input that breaks a property aborts; the last line printed names it. It must
 * never pass when there was nothing to run.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz/fuzz.h"

static size_t done;

static void run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s cannot be read: check the path\n", path);
        exit(1);
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    if (size < 0 || data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
        fprintf(stderr, "%s cannot be read: check the file\n", path);
        exit(1);
    }
    fclose(file);
    fprintf(stderr, "%s\r", path);
    (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    done++;
}

static void run_folder(const char *path) {
    struct dirent **names;
    int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char file[4096];
        int n = snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && n > 0 && (size_t)n < sizeof file) run_file(file);
        free(names[i]);
    }
    if (count >= 0) free(names);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (strcmp(argv[i], "-v") == 0) {
            fuzz_verbose = true;
            setvbuf(stdout, NULL, _IOLBF, 0); /* an input that aborts must not take its story along */
            continue;
        }
        if (stat(argv[i], &info) != 0) {
            fprintf(stderr, "%s is not there: check the path\n", argv[i]);
            return 1;
        }
        if (S_ISDIR(info.st_mode))
            run_folder(argv[i]);
        else
            run_file(argv[i]);
    }
    fprintf(stderr, "\n");
    printf("%zu inputs, no property broken\n", done);
    return done > 0 ? 0 : 1;
}
