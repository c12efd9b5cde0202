/* text_coord.c: the coordinator's configuration, events and effects as lines of a script, and the first two back. It
 * never hides an event's field from the machine.
 */
#include <inttypes.h>
#include <string.h>

#include "tools/text_fields.h"

#define T mcpg_coord_config_t
static const text_field_t config_fields[] = {
    FIELD(TEXT_F_U64, "term", term),
    FIELD(TEXT_F_U64, "id", coordinator_id),
    FIELD(TEXT_F_U32, "ranks", max_ranks),
    FIELD(TEXT_F_U32, "groups", max_groups),
    FIELD(TEXT_F_U32, "slots", max_slots_total),
    FIELD(TEXT_F_U64, "budget", clique_node_budget),
    FIELD(TEXT_F_FLAG, "store", has_store),
    FIELD(TEXT_F_FLAG, "predecessor", predecessor),
    FIELD(TEXT_F_U64, "heartbeat", timers.heartbeat_us),
    FIELD(TEXT_F_U64, "offline", timers.offline_us),
    FIELD(TEXT_F_U64, "ack", timers.ack_us),
    FIELD(TEXT_F_U64, "ack_added", timers.ack_added_us),
    FIELD(TEXT_F_U64, "reconcile", timers.reconcile_us),
    FIELD(TEXT_F_U64, "grace", timers.coordinator_grace_us),
    FIELD(TEXT_F_U64, "collective", timers.collective_timeout_us),
    FIELD(TEXT_F_U64, "p2p", timers.p2p_timeout_us),
    FIELD(TEXT_F_U64, "failover", timers.failover_us),
    FIELD(TEXT_F_U64, "settle", timers.settle_us),
    FIELD(TEXT_F_U64, "retry", timers.link_retry_us),
    FIELD(TEXT_F_U64, "retry_max", timers.link_retry_max_us),
};
#undef T
_Static_assert(sizeof(mcpg_coord_config_t) == 48 + sizeof(mcpg_timers_t) && sizeof(mcpg_timers_t) == 96,
               "a field was added: name it above");
#define T mcpg_group_record_t
static const text_field_t record_fields[] = {
    FIELD(TEXT_F_U64, "term", term),
    FIELD(TEXT_F_U64, "id", coordinator_id),
    FIELD(TEXT_F_FLAG, "has_view", has_view),
    FIELD(TEXT_F_PAIR, "view", view.id),
    LIST(TEXT_F_MEMBERS, "active", view.active, view.active_count),
};
#undef T
_Static_assert(sizeof(mcpg_group_record_t) == 24 + sizeof(mcpg_view_body_t), "a field was added: name it above");
#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

void mcpg__text_coord_config(FILE *out, const mcpg_coord_config_t *config) {
    fputs("config", out);
    text_fields_print(out, config, config_fields, COUNT(config_fields));
    fputc('\n', out);
}

bool mcpg__text_coord_config_parse(char *words, mcpg_coord_config_t *out, char *error, size_t error_cap) {
    memset(out, 0, sizeof *out);
    return text_fields_parse(words, NULL, out, config_fields, COUNT(config_fields), error, error_cap);
}

void mcpg__text_coord_event(FILE *out, const mcpg_coord_event_t *event) {
    switch (event->kind) {
    case MCPG_COORD_EV_MSG:
        fprintf(out, "c%" PRIu64 " ", event->conn);
        mcpg__text_up(out, event->msg);
        break;
    case MCPG_COORD_EV_CLOSED:
        fprintf(out, "closed c%" PRIu64, event->conn);
        break;
    case MCPG_COORD_EV_EXIT:
        fprintf(out, "exit %u pid %" PRId64, event->rank.v, event->pid);
        break;
    case MCPG_COORD_EV_TIMER:
        fputs("timer", out);
        break;
    case MCPG_COORD_EV_SHUTDOWN:
        fputs("shutdown", out);
        break;
    case MCPG_COORD_EV_RECORD:
        fprintf(out, "record g%u %s", event->gid.v, mcpg_status_name(event->status));
        if (event->record != NULL) {
            fputs(" was", out);
            text_fields_print(out, event->record, record_fields, COUNT(record_fields));
        }
        break;
    case MCPG_COORD_EV__COUNT:
        return;
    }
    fputc('\n', out);
}

static bool parse_conn(const char *word, uint64_t *out) {
    return word[0] == 'c' && mcpg__text_number(word + 1, out);
}

static bool parse_exit(char *words, mcpg_coord_event_t *out) {
    uint64_t rank, pid;
    out->kind = MCPG_COORD_EV_EXIT;
    if (!mcpg__text_number(mcpg__text_word(&words), &rank) || rank > UINT32_MAX) return false;
    if (strcmp(mcpg__text_word(&words), "pid") != 0 || !mcpg__text_number(mcpg__text_word(&words), &pid)) return false;
    out->rank.v = (uint32_t)rank;
    out->pid = (int64_t)pid;
    return true;
}

static bool parse_record(char *words, mcpg_arena_t *arena, mcpg_coord_event_t *out, char *error, size_t error_cap) {
    static const mcpg_status_t statuses[] = {MCPG_OK, MCPG_UNAVAILABLE, MCPG_CONFLICT};
    uint64_t gid;
    const char *group = mcpg__text_word(&words), *name = mcpg__text_word(&words);
    out->kind = MCPG_COORD_EV_RECORD;
    if (group[0] != 'g' || !mcpg__text_number(group + 1, &gid) || gid > UINT32_MAX) return false;
    out->gid.v = (uint32_t)gid;
    uint32_t i = 0;
    while (i < COUNT(statuses) && strcmp(mcpg_status_name(statuses[i]), name) != 0) i++;
    if (i == COUNT(statuses)) return false;
    out->status = statuses[i];
    if (strcmp(mcpg__text_word(&words), "was") != 0) return true;
    mcpg_group_record_t *record = mcpg__arena_take(arena, sizeof *record);
    if (record == NULL) return false;
    memset(record, 0, sizeof *record);
    out->record = record;
    return text_fields_parse(words, arena, record, record_fields, COUNT(record_fields), error, error_cap);
}

bool mcpg__text_coord_event_parse(char *line, mcpg_arena_t *arena, mcpg_up_msg_t *msg, mcpg_coord_event_t *out,
                                  char *error, size_t error_cap) {
    error[0] = '\0';
    mcpg_time_t now = out->now;
    memset(out, 0, sizeof *out);
    out->now = now;
    const char *name = mcpg__text_word(&line);
    bool ok = false;
    if (parse_conn(name, &out->conn)) {
        out->kind = MCPG_COORD_EV_MSG;
        out->msg = msg;
        return mcpg__text_up_parse(line, arena, msg, error, error_cap);
    }
    if (strcmp(name, "closed") == 0) {
        out->kind = MCPG_COORD_EV_CLOSED;
        ok = parse_conn(mcpg__text_word(&line), &out->conn);
    } else if (strcmp(name, "exit") == 0) {
        ok = parse_exit(line, out);
    } else if (strcmp(name, "record") == 0) {
        ok = parse_record(line, arena, out, error, error_cap);
    } else if (strcmp(name, "timer") == 0 || strcmp(name, "shutdown") == 0) {
        out->kind = name[0] == 't' ? MCPG_COORD_EV_TIMER : MCPG_COORD_EV_SHUTDOWN;
        ok = true;
    } else {
        return false;
    }
    if (!ok && error[0] == '\0')
        (void)snprintf(error, error_cap, "'%s' is followed by what it does not take: see tests/script/README.md", name);
    return ok;
}

void mcpg__text_coord_effect(FILE *out, const mcpg_coord_effect_t *effect) {
    switch (effect->kind) {
    case MCPG_COORD_FX_SEND:
        fputs("  -> ", out);
        mcpg__text_set(out, effect->to);
        fputs(": ", out);
        mcpg__text_down(out, effect->msg);
        break;
    case MCPG_COORD_FX_SEND_CONN:
        fprintf(out, "  -> c%" PRIu64 ": ", effect->conn);
        mcpg__text_down(out, effect->msg);
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        fprintf(out, "  close c%" PRIu64, effect->conn);
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        fprintf(out, "  timer %" PRIu64 " us", effect->at.us);
        break;
    case MCPG_COORD_FX_STOP:
        fputs("  stop", out);
        break;
    case MCPG_COORD_FX_RECORD_CLAIM:
        fprintf(out, "  record g%u: claim", effect->gid.v);
        break;
    case MCPG_COORD_FX_RECORD_WRITE:
        fprintf(out, "  record g%u: write ", effect->gid.v);
        mcpg__text_view_body(out, effect->gid, &effect->record->view);
        break;
    case MCPG_COORD_FX__COUNT:
        return;
    }
    fputc('\n', out);
}
