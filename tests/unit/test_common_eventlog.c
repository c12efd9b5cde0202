/* test_common_eventlog.c: the flight recorder: what is appended is read back, across rotation, at any cut, and after a
 * sudden death of the writer. Uses files in a fresh temporary folder only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/eventlog.h"

static char folder[] = "/tmp/mcpg-eventlog-XXXXXX", prefix[64], path[2][80];
#define SEGMENT ((size_t)64 << 10)

static int set_up(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(prefix, sizeof prefix, "%s/log", folder);
    for (int i = 0; i < 2; i++) snprintf(path[i], sizeof path[i], "%s.%d", prefix, i);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) unlink(path[i]);
    return rmdir(folder);
}

typedef struct {
    uint64_t first_seq, last_seq, events, configs, truncated;
    bool good;
} seen_t;
static uint8_t pattern(uint64_t seq, uint32_t i) {
    return (uint8_t)(seq * 31 + i);
}
static bool look(void *user, const mcpg_record_t *r) {
    seen_t *s = user;
    if (r->kind == MCPG_REC_CONFIG) {
        s->configs++;
        s->good = s->good && r->len == 5 && memcmp(r->payload, "conf!", 5) == 0;
        return true;
    }
    if (s->events++ == 0)
        s->first_seq = r->seq;
    else
        s->good = s->good && r->seq == s->last_seq + 1;
    s->last_seq = r->seq;
    s->good = s->good && r->now.us == r->seq * 10;
    if ((r->flags & MCPG_REC_TRUNCATED) != 0) s->truncated++;
    for (uint32_t i = 0; i < r->len; i++) s->good = s->good && r->payload[i] == pattern(r->seq, i);
    return true;
}
static uint8_t *read_file(const char *name, size_t *len) {
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    uint8_t *bytes = malloc(MCPG_EVENTLOG_SEGMENT);
    *len = fread(bytes, 1, MCPG_EVENTLOG_SEGMENT, f);
    fclose(f);
    return bytes;
}
static seen_t read_log(const char *name) {
    size_t len = 0;
    uint64_t count = 0;
    mcpg_eventlog_machine_t machine = MCPG_LOG_COORD;
    seen_t s = {.good = true};
    uint8_t *bytes = read_file(name, &len);
    assert_int_equal(mcpg__eventlog_read(bytes, len, look, &s, &count, &machine), MCPG_OK);
    assert_int_equal(machine, MCPG_LOG_AGENT);
    assert_int_equal(count, s.events + s.configs);
    free(bytes);
    return s;
}
static void append(mcpg_eventlog_t *log, uint64_t seq, uint32_t len) {
    static uint8_t payload[SEGMENT * 2];
    for (uint32_t i = 0; i < len; i++) payload[i] = pattern(seq, i);
    mcpg__eventlog_append(
        log, &(mcpg_record_t){
                 .kind = MCPG_REC_EVENT, .flags = 3, .seq = seq, .now = {seq * 10}, .payload = payload, .len = len});
}
static mcpg_eventlog_t *open_log(void) {
    mcpg_eventlog_t *log = NULL;
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, (const uint8_t *)"conf!", 5, SEGMENT, &log), MCPG_OK);
    return log;
}

static void test_append_and_read(void **state) {
    (void)state;
    mcpg_eventlog_t *log = open_log();
    for (uint64_t seq = 1; seq <= 100; seq++) append(log, seq, (uint32_t)(seq % 37));
    seen_t s = read_log(path[0]); /* readable while it is open */
    assert_int_equal(s.events, 100);
    mcpg__eventlog_close(log);
    s = read_log(path[0]);
    assert_true(s.good);
    assert_int_equal(s.events, 100);
    assert_int_equal(s.configs, 1);
    struct stat st;
    assert_int_equal(stat(path[0], &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(st.st_size > 2000 && st.st_size < 8000); /* what was written, nothing more */
    assert_int_equal(stat(path[1], &st), -1);            /* never begun */
}

/* An open log takes from the disk what it has written, in steps. */
static void test_sparse(void **state) {
    (void)state;
    mcpg_eventlog_t *log = NULL;
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, (const uint8_t *)"conf!", 5, 0, &log), MCPG_OK);
    struct stat st;
    assert_int_equal(stat(path[0], &st), 0);
    assert_int_equal(st.st_size, MCPG_EVENTLOG_SEGMENT);
    assert_true(st.st_blocks * 512 <= (512 << 10));
    assert_int_equal(stat(path[1], &st), 0);
    assert_true(st.st_blocks * 512 <= (16 << 10));
    for (uint64_t seq = 1; seq <= 20000; seq++) append(log, seq, 100);
    assert_int_equal(stat(path[0], &st), 0);
    assert_true(st.st_blocks * 512 >= 20000 * 128 && st.st_blocks * 512 <= 20000 * 136 + (512 << 10));
    mcpg__eventlog_close(log);
}

static void test_size_by_environment(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t mib;
    } cases[] = {{"3", 3}, {"4000", 4000}, {"4001", 8}, {"0", 8}, {"", 8}, {"2x", 8}, {"99999999999999999999", 8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mcpg_eventlog_t *log = NULL;
        struct stat st;
        assert_int_equal(setenv("MOONCAKE_EVENT_LOG_MIB", cases[i].text, 1), 0);
        assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, (const uint8_t *)"conf!", 5, 0, &log), MCPG_OK);
        assert_int_equal(stat(path[0], &st), 0);
        assert_int_equal(st.st_size, cases[i].mib << 20);
        mcpg__eventlog_close(log);
    }
    assert_int_equal(unsetenv("MOONCAKE_EVENT_LOG_MIB"), 0);
}

static off_t room_left;
static int small_disk(int fd, off_t at, off_t len) {
    if (len > room_left) return ENOSPC;
    room_left -= len;
    return posix_fallocate(fd, at, len);
}

/* A disk that gets full ends the recording: what was written stays, nothing is touched beyond it, nobody is hurt. */
static void test_full_disk(void **state) {
    (void)state;
    for (off_t room = 0; room < (4 << 20); room += 300 << 10) {
        mcpg__eventlog_take_room = small_disk;
        room_left = room;
        mcpg_eventlog_t *log = NULL;
        mcpg_status_t status =
            mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, (const uint8_t *)"conf!", 5, (size_t)1 << 20, &log);
        assert_int_equal(status, room < (256 << 10) ? MCPG_SYSTEM : MCPG_OK);
        struct stat st;
        if (status != MCPG_OK) assert_int_equal(stat(path[0], &st), -1);
        uint64_t seq = 0;
        while (status == MCPG_OK && seq < 40000) append(log, ++seq, 100);
        assert_int_equal(mcpg__eventlog_is_full(log), status == MCPG_OK && room < (2 << 20));
        mcpg__eventlog_close(log);
        mcpg__eventlog_take_room = posix_fallocate;
        if (status != MCPG_OK) continue;
        seen_t s = read_log(path[0]);
        assert_true(s.good && s.events > 1000);
    }
}

/* A log that is being written is not taken over; one that was left behind is. */
static void test_in_use(void **state) {
    (void)state;
    mcpg_eventlog_t *log = open_log(), *second = NULL;
    append(log, 1, 8);
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, (const uint8_t *)"conf!", 5, SEGMENT, &second),
                     MCPG_BUSY);
    append(log, 2, 8);
    seen_t s = read_log(path[0]);
    assert_int_equal(s.last_seq, 2);
    mcpg__eventlog_close(log);
    log = open_log();
    s = read_log(path[0]);
    assert_int_equal(s.events, 0);
    mcpg__eventlog_close(log);
}

/* Two segments always hold the newest records without a gap; old bytes behind the end are never read as records. */
static void test_rotation(void **state) {
    (void)state;
    mcpg_eventlog_t *log = open_log();
    uint64_t seq = 0;
    bool rotated = false; /* before the first rotation the second segment has no header */
    for (int checkpoint = 0; checkpoint < 60; checkpoint++) {
        for (int i = 0; i < 97; i++) {
            seq++;
            append(log, seq, (uint32_t)(seq * 13 % 200));
        }
        seen_t a = read_log(path[0]);
        rotated = rotated || a.last_seq != seq;
        seen_t b = rotated ? read_log(path[1]) : (seen_t){.good = true};
        assert_true(a.good && b.good);
        assert_true(a.last_seq == seq || b.last_seq == seq);
        if (rotated && a.last_seq == seq) assert_int_equal(a.first_seq, b.last_seq + 1);
        if (rotated && b.last_seq == seq) assert_int_equal(b.first_seq, a.last_seq + 1);
    }
    assert_true(rotated);
    mcpg__eventlog_close(log);
}

static void test_too_long(void **state) {
    (void)state;
    mcpg_eventlog_t *log = open_log();
    append(log, 1, SEGMENT * 2);
    append(log, 2, 10);
    mcpg__eventlog_close(log);
    seen_t s = read_log(path[0]), t = read_log(path[1]);
    assert_true(s.good && t.good);
    assert_int_equal(s.events + t.events, 2);
    assert_int_equal(s.truncated + t.truncated, 1);
}

/* Cut anywhere, or with any byte changed, the reader stops at the first record that is not whole. */
static void test_damage(void **state) {
    (void)state;
    mcpg_eventlog_t *log = open_log();
    for (uint64_t seq = 1; seq <= 20; seq++) append(log, seq, 20);
    mcpg__eventlog_close(log);
    size_t len = 0;
    uint8_t *bytes = read_file(path[0], &len);
    uint64_t count = 0, last = 0;
    mcpg_eventlog_machine_t machine;
    for (size_t cut = 64; cut < 2000; cut++) {
        seen_t s = {.good = true};
        uint8_t *exact = memcpy(malloc(cut), bytes, cut);
        assert_int_equal(mcpg__eventlog_read(exact, cut, look, &s, &count, &machine), MCPG_OK);
        free(exact);
        assert_true(s.good && count >= last && count <= 21);
        last = count;
    }
    assert_int_equal(last, 21);
    for (size_t at = 64; at < 1100; at++) {
        seen_t s = {.good = true};
        bytes[at] ^= 0x10;
        assert_int_equal(mcpg__eventlog_read(bytes, len, look, &s, &count, &machine), MCPG_OK);
        bytes[at] ^= 0x10;
        assert_true(s.good && count <= 21);
    }
    assert_int_equal(mcpg__eventlog_read(bytes, 63, look, NULL, &count, &machine), MCPG_CORRUPT);
    bytes[0] = 'X';
    assert_int_equal(mcpg__eventlog_read(bytes, len, look, NULL, &count, &machine), MCPG_CORRUPT);
    free(bytes);
}

/* What a SIGKILLed writer appended is there. */
static void test_sudden_death(void **state) {
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        mcpg_eventlog_t *log = open_log();
        for (uint64_t seq = 1; seq <= 500; seq++) append(log, seq, 8);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    seen_t s = read_log(path[0]);
    assert_true(s.good);
    assert_int_equal(s.last_seq, 500);
}

static void test_bad_open(void **state) {
    (void)state;
    mcpg_eventlog_t *log = NULL;
    assert_int_equal(mcpg__eventlog_open("/nonexistent-folder/x", MCPG_LOG_AGENT, NULL, 0, SEGMENT, &log), MCPG_SYSTEM);
    assert_int_equal(mcpg__eventlog_open(prefix, MCPG_LOG_AGENT, NULL, 0, 100, &log), MCPG_INVALID_ARGUMENT);
    assert_null(log);
    append(NULL, 1, 1);
    mcpg__eventlog_close(NULL);
}

static void test_crc(void **state) {
    (void)state;
    assert_int_equal(mcpg__crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(mcpg__crc32c_portable(0, "123456789", 9), 0xe3069283u);
    uint8_t bytes[300];
    for (uint32_t i = 0; i < sizeof bytes; i++) bytes[i] = pattern(9, i * i);
    for (size_t len = 0; len < 280; len++) {
        const uint8_t *p = bytes + len % 9;
        uint32_t whole = mcpg__crc32c(0, p, len);
        assert_int_equal(whole, mcpg__crc32c_portable(0, p, len));
        assert_int_equal(whole, mcpg__crc32c(mcpg__crc32c(0, p, len / 3), p + len / 3, len - len / 3));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_append_and_read),
                                       cmocka_unit_test(test_sparse),
                                       cmocka_unit_test(test_size_by_environment),
                                       cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_in_use),
                                       cmocka_unit_test(test_rotation),
                                       cmocka_unit_test(test_too_long),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_sudden_death),
                                       cmocka_unit_test(test_bad_open),
                                       cmocka_unit_test(test_crc)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
