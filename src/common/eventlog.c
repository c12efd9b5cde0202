/* eventlog.c: the flight recorder's two rotating, mmapped segments and their reader. An append is stores into mapped
 * memory: it never calls the kernel, never allocates and never fails; what the process wrote survives its death,
 * however sudden.
 */
#include "common/eventlog.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/panic.h"
#include "common/pure.h"

#define HEADER_BYTES  64u
#define RECORD_HEAD   24u /* len, kind, flags, seq, now_us */
#define CRC_BYTES     4u
#define FORMAT        1u
#define SEGMENTS      2u
#define SEGMENT_LEAST ((size_t)64 << 10)

struct mcpg_eventlog {
    uint8_t *map[SEGMENTS];
    size_t segment_bytes, used; /* used: of the current segment */
    uint64_t number;            /* of the current segment, from 1; it lives in map[(number - 1) % 2] */
    uint8_t header[HEADER_BYTES];
    uint8_t *config;
    uint32_t config_len;
    bool hooked;
};

static size_t record_bytes(size_t len) {
    return (RECORD_HEAD + len + CRC_BYTES + 7u) & ~(size_t)7u;
}

/* The build id of the object this code is in: which binary wrote the log. */
static int find_build_id(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size;
    uintptr_t here = (uintptr_t)&find_build_id;
    bool ours = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + ph->p_vaddr;
        ours = ours || (ph->p_type == PT_LOAD && here >= start && here < start + ph->p_memsz);
    }
    if (!ours) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
        if (ph->p_type != PT_NOTE) continue;
        mcpg_get_t get = {.ptr = (const uint8_t *)(info->dlpi_addr + ph->p_vaddr), .len = ph->p_memsz};
        while (!get.bad && get.len - get.at >= 12) {
            uint32_t name_len = mcpg__get_u32(&get), desc_len = mcpg__get_u32(&get), type = mcpg__get_u32(&get);
            const uint8_t *name = mcpg__get_raw(&get, (name_len + 3u) & ~3u);
            const uint8_t *desc = mcpg__get_raw(&get, (desc_len + 3u) & ~3u);
            if (type != NT_GNU_BUILD_ID || desc == NULL || name_len != 4 || memcmp(name, "GNU", 4) != 0) continue;
            memcpy(user, desc, desc_len < 20 ? desc_len : 20);
            return 1;
        }
    }
    return 1;
}

static void fill_header(mcpg_eventlog_t *log, mcpg_eventlog_machine_t machine) {
    uint64_t caps = 0;
    const uint64_t all[] = {MCPG_MAX_RANKS, MCPG_MAX_GROUPS, MCPG_MAX_SLOTS_TOTAL, MCPG_ENDPOINT_CAP,
                            MCPG_KEY_CAP,   MCPG_TEXT_CAP,   MCPG_PROTOCOL_VERSION};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) caps = mcpg__digest_u64(caps, all[i]);
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    uint8_t build_id[20] = {0};
    dl_iterate_phdr(find_build_id, build_id);
    mcpg_put_t put = {.ptr = log->header, .cap = HEADER_BYTES};
    mcpg__put_raw(&put, "MCEL", 4);
    mcpg__put_u16(&put, FORMAT);
    mcpg__put_u16(&put, (uint16_t)machine);
    mcpg__put_u64(&put, caps);
    mcpg__put_u64(&put, mcpg__digest_bytes(0, log->config, log->config_len));
    mcpg__put_raw(&put, build_id, sizeof build_id);
    mcpg__put_u32(&put, 0);
    mcpg__put_u64(&put, (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u);
}

static mcpg_status_t map_segment(const char *prefix, uint32_t index, size_t bytes, uint8_t **out) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s.%u", prefix, index);
    if (n < 0 || (size_t)n >= sizeof path) return MCPG_INVALID_ARGUMENT;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return MCPG_SYSTEM;
    /* Room is taken now: a full disk must be an error here, not a SIGBUS in the middle of a job. */
    int failed;
    do failed = posix_fallocate(fd, 0, (off_t)bytes);
    while (failed == EINTR);
    void *map = failed != 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) {
        unlink(path);
        return MCPG_SYSTEM;
    }
    *out = map;
    return MCPG_OK;
}

static uint8_t *current_map(const mcpg_eventlog_t *log) {
    return log->map[(log->number - 1) % SEGMENTS];
}

/* Writes one record at the end of the current segment, where it is known to fit. */
static void put_record(mcpg_eventlog_t *log, const mcpg_record_t *record, uint32_t len, uint16_t flags) {
    uint8_t *at = current_map(log) + log->used;
    size_t size = record_bytes(len);
    /* The place after this record may hold an old segment's bytes: they must not look like the next record. */
    if (log->used + size + RECORD_HEAD <= log->segment_bytes) memset(at + size, 0, RECORD_HEAD);
    mcpg_put_t put = {.ptr = at, .cap = size};
    mcpg__put_u32(&put, len);
    mcpg__put_u16(&put, record->kind);
    mcpg__put_u16(&put, flags);
    mcpg__put_u64(&put, record->seq);
    mcpg__put_u64(&put, record->now.us);
    mcpg__put_raw(&put, record->payload, len);
    uint32_t crc = mcpg__crc32c(0, at, RECORD_HEAD + len);
    __asm__ volatile("" ::: "memory"); /* the record first, then the CRC that makes it visible */
    mcpg__put_u32(&put, crc);
    log->used += size;
}

static void start_segment(mcpg_eventlog_t *log) {
    log->number++;
    uint8_t *map = current_map(log);
    memset(map, 0, HEADER_BYTES + RECORD_HEAD);
    __asm__ volatile("" ::: "memory");
    memcpy(map, log->header, HEADER_BYTES - 8u);
    mcpg_put_t put = {.ptr = map + HEADER_BYTES - 8u, .cap = 8};
    mcpg__put_u64(&put, log->number);
    log->used = HEADER_BYTES;
    put_record(log, &(mcpg_record_t){.kind = MCPG_REC_CONFIG, .payload = log->config}, log->config_len, 0);
}

static void flush_at_panic(void *user, const char *what) {
    (void)what;
    mcpg_eventlog_t *log = user;
    msync(current_map(log), log->segment_bytes, MS_SYNC);
}

static void free_log(mcpg_eventlog_t *log) {
    for (uint32_t i = 0; i < SEGMENTS; i++)
        if (log->map[i] != NULL) munmap(log->map[i], log->segment_bytes);
    free(log->config);
    free(log);
}

mcpg_status_t mcpg__eventlog_open(const char *path_prefix, mcpg_eventlog_machine_t machine, const uint8_t *config_bytes,
                                  uint32_t config_len, size_t segment_bytes, mcpg_eventlog_t **out) {
    if (segment_bytes == 0) segment_bytes = MCPG_EVENTLOG_SEGMENT;
    if (segment_bytes < SEGMENT_LEAST || segment_bytes > UINT32_MAX || config_len > segment_bytes / 4)
        return MCPG_INVALID_ARGUMENT;
    mcpg_status_t status = MCPG_NO_MEMORY;
    mcpg_eventlog_t *log = calloc(1, sizeof *log);
    if (log == NULL) return status;
    log->segment_bytes = segment_bytes & ~(size_t)7u;
    log->config = malloc(config_len + 1u);
    if (log->config == NULL) goto err_log;
    if (config_len > 0) memcpy(log->config, config_bytes, config_len);
    log->config_len = config_len;
    fill_header(log, machine);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        status = map_segment(path_prefix, i, log->segment_bytes, &log->map[i]);
        if (status != MCPG_OK) goto err_log;
    }
    start_segment(log);
    log->hooked = mcpg__panic_hook_add(flush_at_panic, log) == MCPG_OK;
    *out = log;
    return MCPG_OK;
err_log:
    free_log(log);
    return status;
}

void mcpg__eventlog_append(mcpg_eventlog_t *log, const mcpg_record_t *record) {
    if (log == NULL) return;
    uint16_t flags = record->flags;
    uint32_t len = record->len;
    size_t room = log->segment_bytes - HEADER_BYTES - record_bytes(log->config_len); /* of an empty segment */
    if (record_bytes(len) > room) {
        len = (uint32_t)(room - RECORD_HEAD - CRC_BYTES);
        flags |= MCPG_REC_TRUNCATED;
    }
    if (log->used + record_bytes(len) > log->segment_bytes) start_segment(log);
    put_record(log, record, len, flags);
}

void mcpg__eventlog_close(mcpg_eventlog_t *log) {
    if (log == NULL) return;
    if (log->hooked) mcpg__panic_hook_remove(flush_at_panic, log);
    free_log(log);
}

mcpg_status_t mcpg__eventlog_read(const uint8_t *file, size_t len, bool (*each)(void *user, const mcpg_record_t *),
                                  void *user, uint64_t *count_out, mcpg_eventlog_machine_t *machine_out) {
    if (len < HEADER_BYTES || memcmp(file, "MCEL", 4) != 0) return MCPG_CORRUPT;
    mcpg_get_t head = {.ptr = file, .at = 4, .len = HEADER_BYTES};
    uint16_t format = mcpg__get_u16(&head), machine = mcpg__get_u16(&head);
    if (format != FORMAT || (machine != MCPG_LOG_COORD && machine != MCPG_LOG_AGENT)) return MCPG_CORRUPT;
    uint64_t count = 0;
    size_t at = HEADER_BYTES;
    bool more = true;
    while (more && len - at >= RECORD_HEAD + CRC_BYTES) {
        mcpg_get_t get = {.ptr = file, .at = at, .len = len};
        mcpg_record_t record;
        record.len = mcpg__get_u32(&get);
        record.kind = mcpg__get_u16(&get);
        record.flags = mcpg__get_u16(&get);
        record.seq = mcpg__get_u64(&get);
        record.now.us = mcpg__get_u64(&get);
        record.payload = mcpg__get_raw(&get, record.len);
        uint32_t crc = mcpg__get_u32(&get);
        if (get.bad || record.kind == 0 || crc != mcpg__crc32c(0, file + at, RECORD_HEAD + record.len)) break;
        count++;
        more = each(user, &record);
        size_t size = record_bytes(record.len);
        if (size > len - at) break;
        at += size;
    }
    *count_out = count;
    *machine_out = (mcpg_eventlog_machine_t)machine;
    return MCPG_OK;
}
