/* text_up.c: what agents say, as text and back: one table of fields per message serves both ways.
 *
 * A message without its table does not compile, and neither does one whose struct grew. It never validates: the codec
 * does.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text.h"
#include "tools/text_fields.h"

static const char *const link_states[] = {"up", "lost", NULL};
static const char *const proofs[] = {"pidfd", "launcher", "relayed", NULL};

#define GREW(bytes) _Static_assert(sizeof(T) == (bytes), "the message grew: name the field above")

#define T mcpg_up_attach_t
static const text_field_t fields_ATTACH[] = {
    FIELD(TEXT_F_U32, "version", version),
    FIELD(TEXT_F_RANK, "rank", rank),
    FIELD(TEXT_F_U64, "session", session),
    FIELD(TEXT_F_PAIR, "prev", prev_inc),
    FIELD(TEXT_F_U64, "highest", highest_term),
    FIELD(TEXT_F_U64, "host", host_id),
    FIELD(TEXT_F_U64, "pid", pid),
    FIELD(TEXT_F_BYTES, "endpoint", endpoint),
    LIST(TEXT_F_REPORTS, "reports", reports, report_count),
};
GREW(88);
#undef T
#define T mcpg_up_heartbeat_t
static const text_field_t fields_HEARTBEAT[] = {FIELD(TEXT_F_U64, "digest", digest),
                                                FIELD(TEXT_F_U64, "sent", sent_us)};
GREW(16);
#undef T
#define T mcpg_up_link_t
static const text_field_t fields_LINK[] = {FIELD(TEXT_F_RANK, "peer", peer), FIELD(TEXT_F_PAIR, "inc", peer_inc),
                                           NAMED("state", state, link_states), FIELD(TEXT_F_U64, "check", check_id)};
GREW(40);
#undef T
#define T mcpg_up_death_t
static const text_field_t fields_DEATH[] = {FIELD(TEXT_F_RANK, "rank", rank), FIELD(TEXT_F_PAIR, "inc", inc),
                                            NAMED("proof", proof, proofs)};
GREW(32);
#undef T
#define T mcpg_up_register_t
static const text_field_t fields_REGISTER[] = {
    FIELD(TEXT_F_U64, "call", call_id),
    FIELD(TEXT_F_BYTES, "key", key),
    FIELD(TEXT_F_BYTES, "label", label),
    FIELD(TEXT_F_BYTES, "device", device_kind),
    LIST(TEXT_F_ORDER, "order", order, order_count),
    FIELD(TEXT_F_U32, "cap", capacity),
    FIELD(TEXT_F_FLAG, "ext", is_extension),
    FIELD(TEXT_F_FLAG, "manual", manual),
    FIELD(TEXT_F_FLAG, "no_auto_sync", no_auto_sync),
};
GREW(80);
#undef T
#define T mcpg_up_join_t
static const text_field_t fields_JOIN[] = {FIELD(TEXT_F_U64, "call", call_id), FIELD(TEXT_F_GID, "gid", gid)};
GREW(16);
#undef T
#define T mcpg_up_propose_t
static const text_field_t fields_PROPOSE[] = {
    FIELD(TEXT_F_U64, "call", call_id),
    FIELD(TEXT_F_GID, "gid", gid),
    FIELD(TEXT_F_SET, "activate", activate),
    FIELD(TEXT_F_SET, "deactivate", deactivate),
    LIST(TEXT_F_MEMBERS, "stamps", stamps, stamp_count),
    FIELD(TEXT_F_MAX, "epoch", expected_epoch),
    FIELD(TEXT_F_U64, "wait", wait_us),
};
GREW(48 + 2 * sizeof(mcpg_rankset_t));
#undef T
#define T mcpg_up_ack_t
static const text_field_t fields_ACK[] = {FIELD(TEXT_F_GID, "gid", gid), FIELD(TEXT_F_PAIR, "view", view),
                                          FIELD(TEXT_F_SEQ, "next", next_seq), FIELD(TEXT_F_FLAG, "steps", steps)};
GREW(40);
#undef T
#define T mcpg_up_commit_ack_t
static const text_field_t fields_COMMIT_ACK[] = {FIELD(TEXT_F_GID, "gid", gid), FIELD(TEXT_F_PAIR, "view", view)};
GREW(24);
#undef T
#define T mcpg_up_op_failed_t
static const text_field_t fields_OP_FAILED[] = {FIELD(TEXT_F_GID, "gid", gid), FIELD(TEXT_F_U64, "report", report_id),
                                                FIELD(TEXT_F_SEQ, "seq", seq),
                                                LIST(TEXT_F_MEMBERS, "failed", failed, failed_count)};
GREW(40);
#undef T
#define T mcpg_up_sync_enter_t
static const text_field_t fields_SYNC_ENTER[] = {FIELD(TEXT_F_U64, "call", call_id), FIELD(TEXT_F_GID, "gid", gid),
                                                 FIELD(TEXT_F_SET, "failed", failed),
                                                 FIELD(TEXT_F_SEQ, "first", first_failed_seq)};
GREW(24 + sizeof(mcpg_rankset_t));
#undef T
#define T mcpg_up_leave_group_t
static const text_field_t fields_LEAVE_GROUP[] = {FIELD(TEXT_F_GID, "gid", gid), FIELD(TEXT_F_SEQ, "next", next_seq)};
GREW(16);
#undef T
#define T mcpg_up_detach_t
static const text_field_t fields_DETACH[] = {FIELD(TEXT_F_U32, "reserved", reserved)};
GREW(4);
#undef T
#define T mcpg_up_rebuild_t
static const text_field_t fields_REBUILD[] = {
    FIELD(TEXT_F_GID, "gid", gid),
    FIELD(TEXT_F_BYTES, "key", key),
    FIELD(TEXT_F_BYTES, "label", label),
    FIELD(TEXT_F_BYTES, "device", device_kind),
    LIST(TEXT_F_ORDER, "order", order, order_count),
    FIELD(TEXT_F_U32, "cap", capacity),
    FIELD(TEXT_F_FLAG, "manual", manual),
    FIELD(TEXT_F_FLAG, "no_auto_sync", no_auto_sync),
    FIELD(TEXT_F_FLAG, "awaiting", awaiting),
    FIELD(TEXT_F_PAIR, "acked", acked),
    LIST(TEXT_F_MEMBERS, "doubt", doubt, doubt_count),
    FIELD(TEXT_F_PAIR, "aborted", aborted),
    FIELD(TEXT_F_SEQ, "next", next_seq),
    FIELD(TEXT_F_FLAG, "commit", has_commit),
    FIELD(TEXT_F_GID, "of", commit.gid),
    FIELD(TEXT_F_PAIR, "view", commit.view.id),
    LIST(TEXT_F_MEMBERS, "active", commit.view.active, commit.view.active_count),
    FIELD(TEXT_F_SEQ, "switch", commit.switch_seq),
    LIST(TEXT_F_LEAVES, "leaves", commit.leaves, commit.leave_count),
    FIELD(TEXT_F_FLAG, "sync", commit.sync),
    FIELD(TEXT_F_SET, "failed", commit.sync_failed),
    FIELD(TEXT_F_SEQ, "first", commit.sync_first_failed_seq),
};
GREW(144 + sizeof(mcpg_down_commit_t));
_Static_assert(sizeof(mcpg_down_commit_t) == 80 + sizeof(mcpg_rankset_t), "COMMIT grew: name the field above");
#undef T
#define T mcpg_up_rebuild_end_t
static const text_field_t fields_REBUILD_END[] = {FIELD(TEXT_F_U32, "reserved", reserved)};
GREW(4);
#undef T

static const struct {
    const char *name;
    const text_field_t *fields;
    uint32_t count;
    size_t at;
} table[] = {
#define X(NAME, field, type)                                                                                           \
    {#NAME, fields_##NAME, sizeof(fields_##NAME) / sizeof(fields_##NAME[0]), offsetof(mcpg_up_msg_t, u.field)},
    MCPG_UP_MSGS(X)
#undef X
};

void mcpg__text_up(FILE *out, const mcpg_up_msg_t *msg) {
    if ((unsigned)msg->kind >= MCPG_UP__COUNT) return;
    fputs(table[msg->kind].name, out);
    text_fields_print(out, (const uint8_t *)msg + table[msg->kind].at, table[msg->kind].fields, table[msg->kind].count);
}

bool mcpg__text_up_parse(char *words, mcpg_arena_t *arena, mcpg_up_msg_t *out, char *error, size_t error_cap) {
    const char *name = mcpg__text_word(&words);
    memset(out, 0, sizeof *out);
    for (uint32_t kind = 0; kind < MCPG_UP__COUNT; kind++) {
        if (strcmp(name, table[kind].name) != 0) continue;
        out->kind = (mcpg_up_kind_t)kind;
        return text_fields_parse(words, arena, (uint8_t *)out + table[kind].at, table[kind].fields, table[kind].count,
                                 error, error_cap);
    }
    (void)snprintf(error, error_cap, "'%s' is no message of an agent: use a name of MCPG_UP_MSGS", name);
    return false;
}
