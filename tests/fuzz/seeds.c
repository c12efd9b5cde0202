/* seeds.c: writes a small valid message of every kind as a file each: `fuzz_seeds up|down FOLDER`. A fuzzer that begins
 * with them reaches a new kind of message at once, without anybody adding an input by hand. It must never write
 * anything but these files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"
#include "unit/test_common_samples.h"

static int write_seed(const char *folder, const char *name, const uint8_t *bytes, size_t len) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/seed-%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof path) return 1;
    FILE *file = fopen(path, "wb");
    bool written = file != NULL && fwrite(bytes, 1, len, file) == len;
    if (file != NULL && fclose(file) != 0) written = false;
    if (!written) fprintf(stderr, "%s cannot be written: check the folder\n", path);
    return written ? 0 : 1;
}

int main(int argc, char **argv) {
    static uint8_t bytes[MCPG_MSG_CAP];
    if (argc != 3 || (strcmp(argv[1], "up") != 0 && strcmp(argv[1], "down") != 0)) {
        fprintf(stderr, "usage: fuzz_seeds up|down FOLDER\n");
        return 1;
    }
    bool up = argv[1][0] == 'u';
    int failed = 0;
    for (uint32_t kind = 0; kind < (up ? (uint32_t)MCPG_UP__COUNT : (uint32_t)MCPG_DOWN__COUNT); kind++) {
        sample_t sample = {.state = kind, .arena = *fuzz_build_arena(), .size = 3};
        size_t len = 0;
        mcpg_status_t status;
        if (up) {
            mcpg_up_msg_t m = sample_up(&sample, (mcpg_up_kind_t)kind);
            status = mcpg__up_pack(&m, bytes, sizeof bytes, &len);
        } else {
            mcpg_down_msg_t m = sample_down(&sample, (mcpg_down_kind_t)kind);
            status = mcpg__down_pack(&m, bytes, sizeof bytes, &len);
        }
        FUZZ_REQUIRE(status == MCPG_OK);
        const char *name = up ? mcpg__up_name((mcpg_up_kind_t)kind) : mcpg__down_name((mcpg_down_kind_t)kind);
        failed |= write_seed(argv[2], name, bytes, len);
    }
    return failed;
}
