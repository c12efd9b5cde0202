/* dump.h: a state as readable text in a buffer of the caller, for both step machines' dumps. Header only and pure; what
 * does not fit is cut, and len still counts it, so that a caller can ask for the size first.
 */
#ifndef MCPG_COMMON_DUMP_H
#define MCPG_COMMON_DUMP_H

#include "common/base.h"
#include "common/rankset.h"

typedef struct {
    char *ptr;
    size_t len, cap; /* cap: with the final NUL */
} mcpg_dump_t;

static inline void mcpg__dump_char(mcpg_dump_t *d, char c) {
    if (d->len + 1u < d->cap) d->ptr[d->len] = c;
    d->len++;
}
static inline void mcpg__dump(mcpg_dump_t *d, const char *words) {
    for (; *words != '\0'; words++) mcpg__dump_char(d, *words);
}
static inline void mcpg__dump_u64(mcpg_dump_t *d, uint64_t value) {
    char digits[20];
    uint32_t n = 0;
    do {
        digits[n++] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value > 0);
    while (n > 0) mcpg__dump_char(d, digits[--n]);
}
/* " word 7" */
static inline void mcpg__dump_field(mcpg_dump_t *d, const char *word, uint64_t value) {
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
    mcpg__dump_char(d, ' ');
    mcpg__dump_u64(d, value);
}
/* " word", when it is so */
static inline void mcpg__dump_flag(mcpg_dump_t *d, const char *word, bool is_so) {
    if (!is_so) return;
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
}
static inline void mcpg__dump_number(mcpg_dump_t *d, const char *word, uint64_t seq) {
    if (seq != MCPG_NO_SEQ) {
        mcpg__dump_field(d, word, seq);
        return;
    }
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
    mcpg__dump(d, " none");
}
/* An incarnation or a view id: "4" in term 1, else "2.4". */
static inline void mcpg__dump_pair(mcpg_dump_t *d, uint64_t term, uint64_t counter) {
    if (term > 1) {
        mcpg__dump_u64(d, term);
        mcpg__dump_char(d, '.');
    }
    mcpg__dump_u64(d, counter);
}
/* The words as they are before it. */
static inline void mcpg__dump_words_pair(mcpg_dump_t *d, const char *words, uint64_t term, uint64_t counter) {
    mcpg__dump(d, words);
    mcpg__dump_pair(d, term, counter);
}
static inline void mcpg__dump_set(mcpg_dump_t *d, const char *word, const mcpg_rankset_t *set) {
    const char *between = "";
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
    mcpg__dump_char(d, ' ');
    for (uint32_t r = mcpg__rankset_next(set, 0); r < MCPG_MAX_RANKS; r = mcpg__rankset_next(set, r + 1)) {
        mcpg__dump(d, between);
        mcpg__dump_u64(d, r);
        between = ",";
    }
    if (*between == '\0') mcpg__dump_char(d, '-');
}
/* When it has a member. */
static inline void mcpg__dump_some(mcpg_dump_t *d, const char *word, const mcpg_rankset_t *set) {
    if (!mcpg__rankset_empty(set)) mcpg__dump_set(d, word, set);
}
/* Relative to now, signed: " word 1200 us" from now, " word -1200 us" ago; UINT64_MAX and 0 are not printed. */
static inline void mcpg__dump_when(mcpg_dump_t *d, const char *word, uint64_t at_us, mcpg_time_t now) {
    if (at_us == 0 || at_us >= UINT64_MAX - 1u) return;
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
    mcpg__dump(d, at_us < now.us ? " -" : " ");
    mcpg__dump_u64(d, at_us < now.us ? now.us - at_us : at_us - now.us);
    mcpg__dump(d, " us");
}
/* In quotes; what is not plain is a dot. */
static inline void mcpg__dump_bytes(mcpg_dump_t *d, const char *word, const uint8_t *bytes, uint32_t len) {
    if (len == 0) return;
    mcpg__dump_char(d, ' ');
    mcpg__dump(d, word);
    mcpg__dump(d, " \"");
    for (uint32_t i = 0; i < len; i++) mcpg__dump_char(d, bytes[i] >= ' ' && bytes[i] < 0x7f ? (char)bytes[i] : '.');
    mcpg__dump_char(d, '"');
}
static inline size_t mcpg__dump_end(mcpg_dump_t *d) {
    if (d->cap > 0) d->ptr[d->len < d->cap ? d->len : d->cap - 1u] = '\0';
    return d->len;
}

#endif
