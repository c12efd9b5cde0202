/* eventlog.c: the flight recorder's two rotating, mmapped segments and their reader. An append is stores into mapped
 * memory, which never allocate and never fail; what the process wrote survives its death, however sudden. Memory is
 * touched only where the disk has given room for it.
 */
#include "common/eventlog.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

#define ROOM_STEP ((size_t)256 << 10)

int (*mcpg__eventlog_take_room)(int fd, off_t at, off_t len) = posix_fallocate;

struct mcpg_eventlog {
    uint8_t *map[SEGMENTS];
    int fd[SEGMENTS];
    size_t room[SEGMENTS]; /* bytes from the start that may be touched */
    bool full;
    char *prefix;
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

static uint64_t caps_hash(void) {
    uint64_t caps = 0;
    const uint64_t all[] = {MCPG_MAX_RANKS, MCPG_MAX_GROUPS, MCPG_MAX_SLOTS_TOTAL, MCPG_ENDPOINT_CAP,
                            MCPG_KEY_CAP,   MCPG_TEXT_CAP,   MCPG_PROTOCOL_VERSION};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) caps = mcpg__digest_u64(caps, all[i]);
    return caps;
}

static void fill_header(mcpg_eventlog_t *log, mcpg_eventlog_machine_t machine) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    uint8_t build_id[20] = {0};
    dl_iterate_phdr(find_build_id, build_id);
    mcpg_put_t put = {.ptr = log->header, .cap = HEADER_BYTES};
    mcpg__put_raw(&put, "MCEL", 4);
    mcpg__put_u16(&put, FORMAT);
    mcpg__put_u16(&put, (uint16_t)machine);
    mcpg__put_u64(&put, caps_hash());
    mcpg__put_u64(&put, mcpg__digest_bytes(0, log->config, log->config_len));
    mcpg__put_raw(&put, build_id, sizeof build_id);
    mcpg__put_u32(&put, 0);
    mcpg__put_u64(&put, (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u);
}

static bool segment_path(const char *prefix, uint32_t index, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s.%u", prefix, index);
    return n > 0 && (size_t)n < cap;
}

/* A new file, locked. One that nobody writes any more makes place. */
static mcpg_status_t create_file(const char *path, int *fd_out) {
    for (int tries = 0; tries < 4; tries++) { /* bounded: others who create and remove the same name at the same time */
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0) {
            *fd_out = fd;
            if (flock(fd, LOCK_EX | LOCK_NB) == 0) return MCPG_OK;
            close(fd);
            return MCPG_BUSY;
        }
        if (errno != EEXIST) return MCPG_SYSTEM;
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0) continue;
        bool is_live = flock(fd, LOCK_EX | LOCK_NB) != 0;
        if (!is_live) unlink(path);
        close(fd);
        if (is_live) return MCPG_BUSY;
    }
    return MCPG_SYSTEM;
}

/* The file has its whole length and no room yet: it takes from the disk what is written. */
static mcpg_status_t map_segment(mcpg_eventlog_t *log, uint32_t index) {
    char path[4096];
    struct rlimit limit;
    if (!segment_path(log->prefix, index, path, sizeof path)) return MCPG_INVALID_ARGUMENT;
    /* Beyond this limit there is not an error but a signal. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < log->segment_bytes) return MCPG_SYSTEM;
    int fd = -1;
    MCPG_TRY(create_file(path, &fd));
    void *map = MAP_FAILED;
    if (ftruncate(fd, (off_t)log->segment_bytes) == 0)
        map = mmap(NULL, log->segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        unlink(path);
        close(fd);
        return MCPG_SYSTEM;
    }
    log->map[index] = map;
    log->fd[index] = fd;
    return MCPG_OK;
}

/* Room up to end in the segment of this index: a full disk must be an error here, not a SIGBUS in the middle of a job.
 */
static bool take_room(mcpg_eventlog_t *log, uint32_t index, size_t end) {
    if (end > log->segment_bytes) end = log->segment_bytes;
    if (log->full || end <= log->room[index]) return !log->full;
    size_t want = log->room[index] + ROOM_STEP;
    if (want < end) want = end;
    if (want > log->segment_bytes) want = log->segment_bytes;
    int failed = EINTR;
    for (int tries = 0; tries < 16 && failed == EINTR; tries++) /* bounded: signals, again and again */
        failed = mcpg__eventlog_take_room(log->fd[index], (off_t)log->room[index], (off_t)(want - log->room[index]));
    log->full = failed != 0;
    if (!log->full) log->room[index] = want;
    return !log->full;
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

/* False: no room; the segment before it stays the newest. */
static bool start_segment(mcpg_eventlog_t *log) {
    size_t least = HEADER_BYTES + record_bytes(log->config_len) + RECORD_HEAD;
    if (!take_room(log, (uint32_t)(log->number % SEGMENTS), least)) return false;
    log->number++;
    uint8_t *map = current_map(log);
    memset(map, 0, HEADER_BYTES + RECORD_HEAD);
    __asm__ volatile("" ::: "memory");
    memcpy(map, log->header, HEADER_BYTES - 8u);
    mcpg_put_t put = {.ptr = map + HEADER_BYTES - 8u, .cap = 8};
    mcpg__put_u64(&put, log->number);
    log->used = HEADER_BYTES;
    put_record(log, &(mcpg_record_t){.kind = MCPG_REC_CONFIG, .payload = log->config}, log->config_len, 0);
    return true;
}

static void flush_at_panic(void *user, const char *what) {
    (void)what;
    mcpg_eventlog_t *log = user;
    msync(current_map(log), log->segment_bytes, MS_SYNC);
}

static void free_log(mcpg_eventlog_t *log) {
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        if (log->map[i] != NULL) munmap(log->map[i], log->segment_bytes);
        if (log->fd[i] >= 0) close(log->fd[i]);
    }
    free(log->prefix);
    free(log->config);
    free(log);
}

/* Also when it was never begun: nothing is left of it. */
static void remove_segment(const mcpg_eventlog_t *log, uint32_t index) {
    char path[4096];
    if (log->map[index] != NULL && segment_path(log->prefix, index, path, sizeof path)) unlink(path);
}

/* MOONCAKE_EVENT_LOG_MIB: of each segment; what is no number from 1 to 4000 is not heard. */
static size_t default_segment(void) {
    const char *text = getenv("MOONCAKE_EVENT_LOG_MIB");
    size_t mib = 0;
    for (; text != NULL && *text >= '0' && *text <= '9' && mib <= 4000u; text++)
        mib = mib * 10u + (size_t)(*text - '0');
    return text != NULL && *text == '\0' && mib >= 1u && mib <= 4000u ? mib << 20 : MCPG_EVENTLOG_SEGMENT;
}

mcpg_status_t mcpg__eventlog_open(const char *path_prefix, mcpg_eventlog_machine_t machine, const uint8_t *config_bytes,
                                  uint32_t config_len, size_t segment_bytes, mcpg_eventlog_t **out) {
    if (segment_bytes == 0) segment_bytes = default_segment();
    if (segment_bytes < SEGMENT_LEAST || segment_bytes > UINT32_MAX || config_len > segment_bytes / 4)
        return MCPG_INVALID_ARGUMENT;
    mcpg_status_t status = MCPG_NO_MEMORY;
    mcpg_eventlog_t *log = calloc(1, sizeof *log);
    if (log == NULL) return status;
    for (uint32_t i = 0; i < SEGMENTS; i++) log->fd[i] = -1;
    log->segment_bytes = segment_bytes & ~(size_t)7u;
    log->config = malloc(config_len + 1u);
    log->prefix = strdup(path_prefix);
    if (log->config == NULL || log->prefix == NULL) goto err_log;
    if (config_len > 0) memcpy(log->config, config_bytes, config_len);
    log->config_len = config_len;
    fill_header(log, machine);
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        status = map_segment(log, i);
        if (status != MCPG_OK) goto err_files;
    }
    status = MCPG_SYSTEM;
    if (!start_segment(log)) goto err_files;
    log->hooked = mcpg__panic_hook_add(flush_at_panic, log) == MCPG_OK;
    *out = log;
    return MCPG_OK;
err_files:
    for (uint32_t i = 0; i < SEGMENTS; i++) remove_segment(log, i);
err_log:
    free_log(log);
    return status;
}

void mcpg__eventlog_append(mcpg_eventlog_t *log, const mcpg_record_t *record) {
    if (log == NULL || log->full) return;
    uint16_t flags = record->flags;
    uint32_t len = record->len;
    size_t room = log->segment_bytes - HEADER_BYTES - record_bytes(log->config_len); /* of an empty segment */
    if (record_bytes(len) > room) {
        len = (uint32_t)(room - RECORD_HEAD - CRC_BYTES);
        flags |= MCPG_REC_TRUNCATED;
    }
    if (log->used + record_bytes(len) > log->segment_bytes && !start_segment(log)) return;
    if (take_room(log, (uint32_t)((log->number - 1) % SEGMENTS), log->used + record_bytes(len) + RECORD_HEAD))
        put_record(log, record, len, flags);
}

bool mcpg__eventlog_is_full(const mcpg_eventlog_t *log) {
    return log != NULL && log->full;
}

void mcpg__eventlog_event(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint16_t kind, const uint8_t *payload,
                          size_t len) {
    mcpg_record_t record = {
        .kind = MCPG_REC_EVENT, .flags = kind, .seq = seq, .now = now, .payload = payload, .len = (uint32_t)len};
    mcpg__eventlog_append(log, &record);
}

static void append_word(mcpg_eventlog_t *log, const mcpg_record_t *like, uint64_t word, size_t size) {
    uint8_t bytes[8];
    mcpg_put_t put = {.ptr = bytes, .cap = sizeof bytes};
    mcpg__put_le(&put, word, size);
    mcpg_record_t record = *like;
    record.payload = bytes;
    record.len = (uint32_t)size;
    mcpg__eventlog_append(log, &record);
}

void mcpg__eventlog_effects(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint32_t count, uint32_t crc) {
    uint16_t flags = count < MCPG_REC_TRUNCATED ? (uint16_t)count : MCPG_REC_TRUNCATED - 1u;
    append_word(log, &(mcpg_record_t){.kind = MCPG_REC_EFFECTS, .flags = flags, .seq = seq, .now = now}, crc, 4);
}

void mcpg__eventlog_digest(mcpg_eventlog_t *log, uint64_t seq, mcpg_time_t now, uint64_t digest) {
    append_word(log, &(mcpg_record_t){.kind = MCPG_REC_DIGEST, .seq = seq, .now = now}, digest, 8);
}

void mcpg__eventlog_close(mcpg_eventlog_t *log) {
    if (log == NULL) return;
    if (log->hooked) mcpg__panic_hook_remove(flush_at_panic, log);
    int shortened = ftruncate(log->fd[(log->number - 1) % SEGMENTS], (off_t)log->used);
    (void)shortened; /* else it stays as long as it was */
    if (log->number < SEGMENTS) remove_segment(log, SEGMENTS - 1u);
    free_log(log);
}

bool mcpg__eventlog_end_if_full(mcpg_eventlog_t **log) {
    if (!mcpg__eventlog_is_full(*log)) return false;
    mcpg__eventlog_close(*log);
    *log = NULL;
    return true;
}

mcpg_status_t mcpg__eventlog_header(const uint8_t *file, size_t len, mcpg_eventlog_header_t *out) {
    static const uint8_t zeros[HEADER_BYTES];
    if (len < HEADER_BYTES) return MCPG_CORRUPT;
    if (memcmp(file, zeros, HEADER_BYTES) == 0) return MCPG_NOT_FOUND;
    mcpg_get_t get = {.ptr = file, .at = 4, .len = HEADER_BYTES};
    uint16_t format = mcpg__get_u16(&get), machine = mcpg__get_u16(&get);
    if (memcmp(file, "MCEL", 4) != 0 || format != FORMAT || (machine != MCPG_LOG_COORD && machine != MCPG_LOG_AGENT))
        return MCPG_CORRUPT;
    mcpg_eventlog_header_t header = {.machine = (mcpg_eventlog_machine_t)machine};
    header.same_caps = mcpg__get_u64(&get) == caps_hash();
    (void)mcpg__get_u64(&get); /* of the config, which is the first record */
    memcpy(header.build_id, mcpg__get_raw(&get, sizeof header.build_id), sizeof header.build_id);
    (void)mcpg__get_u32(&get);
    header.started_us = mcpg__get_u64(&get);
    header.number = mcpg__get_u64(&get);
    *out = header;
    return MCPG_OK;
}

mcpg_status_t mcpg__eventlog_next(const uint8_t *file, size_t len, size_t *at, mcpg_record_t *out) {
    static const uint8_t zeros[RECORD_HEAD];
    size_t from = *at == 0 ? HEADER_BYTES : *at;
    if (from >= len || len - from < RECORD_HEAD + CRC_BYTES) return MCPG_NOT_FOUND;
    if (memcmp(file + from, zeros, RECORD_HEAD) == 0) return MCPG_NOT_FOUND;
    mcpg_get_t get = {.ptr = file, .at = from, .len = len};
    mcpg_record_t record;
    record.len = mcpg__get_u32(&get);
    record.kind = mcpg__get_u16(&get);
    record.flags = mcpg__get_u16(&get);
    record.seq = mcpg__get_u64(&get);
    record.now.us = mcpg__get_u64(&get);
    record.payload = mcpg__get_raw(&get, record.len);
    uint32_t crc = mcpg__get_u32(&get);
    if (get.bad || record.kind == 0 || crc != mcpg__crc32c(0, file + from, RECORD_HEAD + record.len))
        return MCPG_CORRUPT;
    size_t size = record_bytes(record.len);
    *at = size > len - from ? len : from + size;
    *out = record;
    return MCPG_OK;
}

mcpg_status_t mcpg__eventlog_read(const uint8_t *file, size_t len, bool (*each)(void *user, const mcpg_record_t *),
                                  void *user, uint64_t *count_out, mcpg_eventlog_machine_t *machine_out) {
    mcpg_eventlog_header_t header;
    if (mcpg__eventlog_header(file, len, &header) != MCPG_OK) return MCPG_CORRUPT;
    uint64_t count = 0;
    size_t at = 0;
    mcpg_record_t record;
    bool more = true;
    while (more && mcpg__eventlog_next(file, len, &at, &record) == MCPG_OK) {
        count++;
        more = each(user, &record);
    }
    *count_out = count;
    *machine_out = header.machine;
    return MCPG_OK;
}
