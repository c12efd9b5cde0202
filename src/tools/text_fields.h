/* text_fields.h: a struct as "word value word value" and back, by a table of its fields. For the text_*.c files only;
 * a field that is zero is not printed, so a struct is zeroed before it is parsed. */
#ifndef MCPG_TOOLS_TEXT_FIELDS_H
#define MCPG_TOOLS_TEXT_FIELDS_H

#include "tools/text.h"

typedef enum {
    TEXT_F_U32,
    TEXT_F_RANK, /* the same, and always printed */
    TEXT_F_U64,
    TEXT_F_FLAG,    /* bool: its word alone */
    TEXT_F_NAMED,   /* uint8_t: a name of `names`, or a number; always printed */
    TEXT_F_GID,     /* g3 */
    TEXT_F_SEQ,     /* none, 7, 2*2^32+7 */
    TEXT_F_MAX,     /* UINT64_MAX is "any" */
    TEXT_F_PAIR,    /* incarnation, view id */
    TEXT_F_SET,     /* mcpg_rankset_t */
    TEXT_F_BYTES,   /* mcpg_bytes_t */
    TEXT_F_ORDER,   /* uint32_t list */
    TEXT_F_MEMBERS, /* mcpg_member_t list: 0:3/4,1:5/6 */
    TEXT_F_LEAVES,  /* mcpg_leave_t list: 3:7,4:none */
    TEXT_F_REPORTS  /* mcpg_group_report_t list: g1@2/3/7: committed, acked, next */
} text_field_kind_t;

typedef struct {
    const char *word;
    text_field_kind_t kind;
    size_t at, count_at; /* count_at: of a list's uint32_t */
    const char *const *names;
} text_field_t;

/* Rows of a table for the struct that T names at the time. */
#define FIELD(kind, word, member)                                                                                      \
    { word, kind, offsetof(T, member), 0, NULL }
#define NAMED(word, member, names)                                                                                     \
    { word, TEXT_F_NAMED, offsetof(T, member), 0, names }
#define LIST(kind, word, member, count)                                                                                \
    { word, kind, offsetof(T, member), offsetof(T, count), NULL }

void text_fields_print(FILE *out, const void *object, const text_field_t *fields, uint32_t count);
bool text_fields_parse(char *words, mcpg_arena_t *arena, void *object, const text_field_t *fields, uint32_t count,
                       char *error, size_t error_cap);

#endif
