/* text_fields.c: see text_fields.h. A value that cannot be read is an error that names it; it is never guessed. */
#include "tools/text_fields.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* ---- words ---- */

char *mcpg__text_word(char **at) {
    char *p = *at;
    while (isspace((unsigned char)*p)) p++;
    char *start = p;
    while (*p != '\0' && !isspace((unsigned char)*p)) p++;
    if (*p != '\0') *p++ = '\0';
    *at = p;
    return start;
}

/* Digits at *at, which moves behind them. */
static bool digits(const char **at, uint64_t *out) {
    const char *p = *at;
    uint64_t value = 0;
    for (; isdigit((unsigned char)*p); p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (UINT64_MAX - digit) / 10u) return false;
        value = value * 10u + digit;
    }
    if (p == *at) return false;
    *at = p;
    *out = value;
    return true;
}

static bool skip(const char **at, char c) {
    if (**at != c) return false;
    (*at)++;
    return true;
}

static bool number32(const char **at, uint32_t *out) {
    uint64_t value;
    if (!digits(at, &value) || value > UINT32_MAX) return false;
    *out = (uint32_t)value;
    return true;
}

bool mcpg__text_number(const char *word, uint64_t *out) {
    return digits(&word, out) && *word == '\0';
}

/* "4" is of term 1; "0" and "-" are none. */
static bool pair(const char **at, uint64_t *term_out, uint64_t *counter_out) {
    uint64_t first, second;
    *term_out = *counter_out = 0;
    if (skip(at, '-')) return true;
    if (!digits(at, &first)) return false;
    if (skip(at, '.')) {
        if (!digits(at, &second)) return false;
        *term_out = first;
        *counter_out = second;
    } else if (first != 0) {
        *term_out = 1;
        *counter_out = first;
    }
    return true;
}

bool mcpg__text_pair(const char *word, uint64_t *term_out, uint64_t *counter_out) {
    return pair(&word, term_out, counter_out) && *word == '\0';
}

static bool seq(const char **at, uint64_t *out) {
    uint64_t value, rest = 0;
    if (strncmp(*at, "none", 4) == 0) {
        *at += 4;
        *out = MCPG_NO_SEQ;
        return true;
    }
    if (!digits(at, &value)) return false;
    if (strncmp(*at, "*2^32", 5) == 0) {
        *at += 5;
        if (skip(at, '+') && !digits(at, &rest)) return false;
        if (value > UINT32_MAX || rest > UINT32_MAX) return false;
        value = value << MCPG_STEP_SHIFT | rest;
    }
    *out = value;
    return true;
}

void mcpg__text_bytes(FILE *out, mcpg_bytes_t bytes) {
    fputc('"', out);
    for (uint32_t i = 0; i < bytes.len; i++) {
        uint8_t c = bytes.ptr[i];
        if (c > ' ' && c < 0x7f && c != '"' && c != '\\')
            fputc(c, out);
        else
            fprintf(out, "\\x%02x", c);
    }
    fputc('"', out);
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place: what stands between the quotes gets shorter at most. */
static bool bytes_of(char *word, mcpg_bytes_t *out) {
    size_t len = strlen(word);
    if (len < 2 || word[0] != '"' || word[len - 1] != '"') return false;
    uint8_t *to = (uint8_t *)word + 1;
    for (const char *p = word + 1; p < word + len - 1;) {
        if (*p != '\\') {
            *to++ = (uint8_t)*p++;
            continue;
        }
        if (p[1] != 'x' || hex(p[2]) < 0 || hex(p[3]) < 0) return false;
        *to++ = (uint8_t)(hex(p[2]) * 16 + hex(p[3]));
        p += 4;
    }
    *out = (mcpg_bytes_t){(const uint8_t *)word + 1, (uint32_t)(to - (uint8_t *)word - 1)};
    return true;
}

static bool set_of(const char *word, mcpg_rankset_t *out) {
    mcpg__rankset_clear(out);
    if (strcmp(word, "-") == 0) return true;
    for (;;) {
        uint32_t r;
        if (!number32(&word, &r) || r >= MCPG_MAX_RANKS) return false;
        mcpg__rankset_add(out, r);
        if (*word == '\0') return true;
        if (!skip(&word, ',')) return false;
    }
}

/* ---- lists ---- */

static const size_t element_size[] = {[TEXT_F_ORDER] = sizeof(uint32_t),
                                      [TEXT_F_MEMBERS] = sizeof(mcpg_member_t),
                                      [TEXT_F_LEAVES] = sizeof(mcpg_leave_t),
                                      [TEXT_F_REPORTS] = sizeof(mcpg_group_report_t)};

static bool is_list(text_field_kind_t kind) {
    return kind >= TEXT_F_ORDER;
}

static void print_element(FILE *out, text_field_kind_t kind, const void *element) {
    if (kind == TEXT_F_ORDER) {
        fprintf(out, "%u", *(const uint32_t *)element);
    } else if (kind == TEXT_F_MEMBERS) {
        const mcpg_member_t *m = element;
        fprintf(out, "%u:%u/", m->slot.v, m->rank.v);
        mcpg__text_inc(out, m->inc);
    } else if (kind == TEXT_F_LEAVES) {
        const mcpg_leave_t *l = element;
        fprintf(out, "%u:", l->slot.v);
        mcpg__text_seq(out, l->leave_seq);
    } else {
        const mcpg_group_report_t *r = element;
        mcpg__text_view(out, r->gid, r->committed);
        fputc('/', out);
        mcpg__text_inc(out, (mcpg_incarnation_t){r->acked.term, r->acked.epoch});
        fputc('/', out);
        mcpg__text_seq(out, r->next_seq);
    }
}

static bool parse_element(const char **at, text_field_kind_t kind, void *element) {
    if (kind == TEXT_F_ORDER) return number32(at, element);
    if (kind == TEXT_F_MEMBERS) {
        mcpg_member_t *m = element;
        return number32(at, &m->slot.v) && skip(at, ':') && number32(at, &m->rank.v) && skip(at, '/') &&
               pair(at, &m->inc.term, &m->inc.counter);
    }
    if (kind == TEXT_F_LEAVES) {
        mcpg_leave_t *l = element;
        return number32(at, &l->slot.v) && skip(at, ':') && seq(at, &l->leave_seq);
    }
    mcpg_group_report_t *r = element;
    return skip(at, 'g') && number32(at, &r->gid.v) && skip(at, '@') &&
           pair(at, &r->committed.term, &r->committed.epoch) && skip(at, '/') &&
           pair(at, &r->acked.term, &r->acked.epoch) && skip(at, '/') && seq(at, &r->next_seq);
}

static void print_list(FILE *out, const text_field_t *f, const uint8_t *object) {
    const uint8_t *items;
    uint32_t count;
    memcpy(&items, object + f->at, sizeof items);
    memcpy(&count, object + f->count_at, sizeof count);
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) fputc(',', out);
        print_element(out, f->kind, items + i * element_size[f->kind]);
    }
}

static bool parse_list(const char *word, mcpg_arena_t *arena, const text_field_t *f, uint8_t *object) {
    uint32_t count = 1, at = 0;
    for (const char *p = word; *p != '\0'; p++) count += *p == ',';
    uint8_t *items = mcpg__arena_take(arena, count * element_size[f->kind]);
    if (items == NULL) return false;
    memset(items, 0, count * element_size[f->kind]);
    for (; at < count; at++) {
        if (at > 0 && !skip(&word, ',')) return false;
        if (!parse_element(&word, f->kind, items + at * element_size[f->kind])) return false;
    }
    memcpy(object + f->at, &items, sizeof items);
    memcpy(object + f->count_at, &count, sizeof count);
    return *word == '\0';
}

/* ---- fields ---- */

static bool is_zero(const text_field_t *f, const uint8_t *at, uint32_t list_count) {
    uint32_t u32;
    uint64_t u64;
    mcpg_incarnation_t inc;
    mcpg_bytes_t bytes;
    switch (f->kind) {
    case TEXT_F_U32:
    case TEXT_F_GID:
        memcpy(&u32, at, sizeof u32);
        return u32 == 0;
    case TEXT_F_U64:
    case TEXT_F_SEQ:
    case TEXT_F_MAX:
        memcpy(&u64, at, sizeof u64);
        return u64 == 0;
    case TEXT_F_FLAG:
        return *at == 0;
    case TEXT_F_RANK:
    case TEXT_F_NAMED:
        return false;
    case TEXT_F_PAIR:
        memcpy(&inc, at, sizeof inc);
        return mcpg__inc_none(inc);
    case TEXT_F_SET:
        return mcpg__rankset_empty((const mcpg_rankset_t *)at);
    case TEXT_F_BYTES:
        memcpy(&bytes, at, sizeof bytes);
        return bytes.len == 0;
    case TEXT_F_ORDER:
    case TEXT_F_MEMBERS:
    case TEXT_F_LEAVES:
    case TEXT_F_REPORTS:
        return list_count == 0;
    }
    return true;
}

static void print_named(FILE *out, const text_field_t *f, uint8_t value) {
    uint32_t count = 0;
    while (f->names[count] != NULL) count++;
    if (value < count)
        fputs(f->names[value], out);
    else
        fprintf(out, "%u", value);
}

static void print_value(FILE *out, const text_field_t *f, const uint8_t *object) {
    const uint8_t *at = object + f->at;
    switch (f->kind) {
    case TEXT_F_U32:
    case TEXT_F_RANK:
        fprintf(out, "%u", *(const uint32_t *)at);
        break;
    case TEXT_F_GID:
        fprintf(out, "g%u", *(const uint32_t *)at);
        break;
    case TEXT_F_U64:
        fprintf(out, "%" PRIu64, *(const uint64_t *)at);
        break;
    case TEXT_F_SEQ:
        mcpg__text_seq(out, *(const uint64_t *)at);
        break;
    case TEXT_F_MAX:
        if (*(const uint64_t *)at == UINT64_MAX)
            fputs("any", out);
        else
            fprintf(out, "%" PRIu64, *(const uint64_t *)at);
        break;
    case TEXT_F_FLAG:
        break;
    case TEXT_F_NAMED:
        print_named(out, f, *at);
        break;
    case TEXT_F_PAIR:
        mcpg__text_inc(out, *(const mcpg_incarnation_t *)at);
        break;
    case TEXT_F_SET:
        mcpg__text_set(out, (const mcpg_rankset_t *)at);
        break;
    case TEXT_F_BYTES:
        mcpg__text_bytes(out, *(const mcpg_bytes_t *)at);
        break;
    case TEXT_F_ORDER:
    case TEXT_F_MEMBERS:
    case TEXT_F_LEAVES:
    case TEXT_F_REPORTS:
        print_list(out, f, object);
        break;
    }
}

void text_fields_print(FILE *out, const void *object, const text_field_t *fields, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t list_count = 0;
        if (is_list(fields[i].kind))
            memcpy(&list_count, (const uint8_t *)object + fields[i].count_at, sizeof list_count);
        if (is_zero(&fields[i], (const uint8_t *)object + fields[i].at, list_count)) continue;
        fprintf(out, fields[i].kind == TEXT_F_FLAG ? " %s" : " %s ", fields[i].word);
        print_value(out, &fields[i], object);
    }
}

static bool parse_named(const char *word, const text_field_t *f, uint8_t *out) {
    uint64_t value = 0;
    for (; f->names[value] != NULL; value++)
        if (strcmp(f->names[value], word) == 0) break;
    if (f->names[value] == NULL && (!mcpg__text_number(word, &value) || value > UINT8_MAX)) return false;
    *out = (uint8_t)value;
    return true;
}

static bool parse_value(char *word, mcpg_arena_t *arena, const text_field_t *f, uint8_t *object) {
    uint8_t *at = object + f->at;
    const char *p = word;
    switch (f->kind) {
    case TEXT_F_GID:
        if (!skip(&p, 'g')) return false;
        return number32(&p, (uint32_t *)at) && *p == '\0';
    case TEXT_F_U32:
    case TEXT_F_RANK:
        return number32(&p, (uint32_t *)at) && *p == '\0';
    case TEXT_F_U64:
        return mcpg__text_number(word, (uint64_t *)at);
    case TEXT_F_SEQ:
        return seq(&p, (uint64_t *)at) && *p == '\0';
    case TEXT_F_MAX:
        if (strcmp(word, "any") != 0) return mcpg__text_number(word, (uint64_t *)at);
        *(uint64_t *)at = UINT64_MAX;
        return true;
    case TEXT_F_FLAG:
        *(bool *)at = true;
        return true;
    case TEXT_F_NAMED:
        return parse_named(word, f, at);
    case TEXT_F_PAIR: {
        mcpg_incarnation_t *inc = (mcpg_incarnation_t *)at;
        return mcpg__text_pair(word, &inc->term, &inc->counter);
    }
    case TEXT_F_SET:
        return set_of(word, (mcpg_rankset_t *)at);
    case TEXT_F_BYTES:
        return bytes_of(word, (mcpg_bytes_t *)at);
    case TEXT_F_ORDER:
    case TEXT_F_MEMBERS:
    case TEXT_F_LEAVES:
    case TEXT_F_REPORTS:
        return parse_list(word, arena, f, object);
    }
    return false;
}

bool text_fields_parse(char *words, mcpg_arena_t *arena, void *object, const text_field_t *fields, uint32_t count,
                       char *error, size_t error_cap) {
    for (char *word = mcpg__text_word(&words); *word != '\0'; word = mcpg__text_word(&words)) {
        uint32_t i = 0;
        while (i < count && strcmp(fields[i].word, word) != 0) i++;
        if (i == count) {
            (void)snprintf(error, error_cap, "'%s' is no field here: see tests/script/README.md", word);
            return false;
        }
        char *value = fields[i].kind == TEXT_F_FLAG ? word : mcpg__text_word(&words);
        char copy[48];
        (void)snprintf(copy, sizeof copy, "%s", value);
        if (parse_value(value, arena, &fields[i], object)) continue;
        (void)snprintf(error, error_cap, "'%s' is no value for %s: see tests/script/README.md", copy, word);
        return false;
    }
    return true;
}
