/* crc32c.c: CRC-32C (Castagnoli) of a byte range, by the SSE4.2 instruction where the processor has it, else by a
 * table. Pure. */
#include <pthread.h>
#include <string.h>

#include "common/eventlog.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */

typedef uint32_t (*crc_func_t)(uint32_t crc, const uint8_t *p, size_t len);
static uint32_t table[256];
static crc_func_t best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t crc_table(uint32_t crc, const uint8_t *p, size_t len) {
    for (size_t i = 0; i < len; i++) crc = table[(crc ^ p[i]) & 0xffu] ^ (crc >> 8);
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const uint8_t *p, size_t len) {
    uint64_t wide = crc;
    for (; len >= 8; len -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (size_t i = 0; i < len; i++) crc = __builtin_ia32_crc32qi(crc, p[i]);
    return crc;
}
#endif

static void choose(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? POLYNOMIAL : 0u);
        table[i] = crc;
    }
    best = crc_table;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) best = crc_sse42;
#endif
}

uint32_t mcpg__crc32c(uint32_t crc, const void *data, size_t len) {
    pthread_once(&once, choose);
    return ~best(~crc, data, len);
}

uint32_t mcpg__crc32c_portable(uint32_t crc, const void *data, size_t len) {
    pthread_once(&once, choose);
    return ~crc_table(~crc, data, len);
}
