/* timers.c: resolves the control-plane timers. A value that cannot be meant (bad text, zero, more than a day) is an
 * error, never silently replaced.
 */
#include "common/timers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAY_US UINT64_C(86400000000)

typedef struct {
    const char *field, *variable;
    size_t offset;
    uint64_t preset_us;
} timer_rule_t;

static const timer_rule_t rules[] = {
    {"heartbeat_us", "MOONCAKE_HEARTBEAT_US", offsetof(mcpg_timers_t, heartbeat_us), 200000},
    {"offline_us", "MOONCAKE_OFFLINE_US", offsetof(mcpg_timers_t, offline_us), 5000000},
    {"ack_us", "MOONCAKE_ACK_US", offsetof(mcpg_timers_t, ack_us), 5000000},
    {"ack_added_us", "MOONCAKE_ACK_ADDED_US", offsetof(mcpg_timers_t, ack_added_us), 1000000},
    {"reconcile_us", "MOONCAKE_RECONCILE_US", offsetof(mcpg_timers_t, reconcile_us), 2000000},
    {"coordinator_grace_us", "MOONCAKE_COORDINATOR_GRACE_US", offsetof(mcpg_timers_t, coordinator_grace_us), 30000000},
    {"collective_timeout_us", "MOONCAKE_COLLECTIVE_TIMEOUT_US", offsetof(mcpg_timers_t, collective_timeout_us),
     1000000},
    {"p2p_timeout_us", "MOONCAKE_P2P_TIMEOUT_US", offsetof(mcpg_timers_t, p2p_timeout_us), 10000000},
    {"failover_us", "MOONCAKE_FAILOVER_US", offsetof(mcpg_timers_t, failover_us), 2000000},
    {"settle_us", "MOONCAKE_SETTLE_US", offsetof(mcpg_timers_t, settle_us), 1200000},
    {"link_retry_us", "MOONCAKE_LINK_RETRY_US", offsetof(mcpg_timers_t, link_retry_us), 100000},
    {"link_retry_max_us", "MOONCAKE_LINK_RETRY_MAX_US", offsetof(mcpg_timers_t, link_retry_max_us), 2000000},
};
#define RULE_COUNT (sizeof rules / sizeof rules[0])
_Static_assert(RULE_COUNT * sizeof(uint64_t) == sizeof(mcpg_timers_t), "every timer has a rule");

/* Digits only: no sign, space, unit or hexadecimal. */
static bool parse_us(const char *text, uint64_t *out) {
    uint64_t value = 0;
    if (*text == '\0') return false;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9') return false;
        value = value * 10u + (uint64_t)(*c - '0');
        if (value > DAY_US) return false;
    }
    *out = value;
    return value != 0;
}

static mcpg_status_t resolve_one(const timer_rule_t *rule, uint64_t given_us, uint64_t *out, char *error, size_t cap) {
    if (given_us > DAY_US) {
        if (error != NULL)
            snprintf(error, cap,
                     "%s is %" PRIu64 ": give 1 to %" PRIu64 " microseconds, or 0 for the default of %" PRIu64,
                     rule->field, given_us, DAY_US, rule->preset_us);
        return MCPG_INVALID_ARGUMENT;
    }
    const char *text = given_us == 0 ? getenv(rule->variable) : NULL;
    *out = given_us != 0 ? given_us : rule->preset_us;
    if (text != NULL && !parse_us(text, out)) {
        if (error != NULL)
            snprintf(error, cap,
                     "%s is \"%.40s\": set it to 1 to %" PRIu64
                     " microseconds, or unset it for the default of %" PRIu64,
                     rule->variable, text, DAY_US, rule->preset_us);
        return MCPG_INVALID_ARGUMENT;
    }
    return MCPG_OK;
}

mcpg_status_t mcpg__timers_resolve(const mcpg_timers_t *given, mcpg_timers_t *out, char *error, size_t cap) {
    mcpg_timers_t timers;
    memset(&timers, 0, sizeof timers);
    for (size_t i = 0; i < RULE_COUNT; i++) {
        uint64_t value = 0;
        if (given != NULL) memcpy(&value, (const uint8_t *)given + rules[i].offset, sizeof value);
        MCPG_TRY(resolve_one(&rules[i], value, &value, error, cap));
        memcpy((uint8_t *)&timers + rules[i].offset, &value, sizeof value);
    }
    if (timers.offline_us <= timers.heartbeat_us) {
        if (error != NULL)
            snprintf(error, cap,
                     "offline_us (%" PRIu64 ") is not above heartbeat_us (%" PRIu64
                     "), so every rank would count as lost: raise MOONCAKE_OFFLINE_US or lower MOONCAKE_HEARTBEAT_US",
                     timers.offline_us, timers.heartbeat_us);
        return MCPG_INVALID_ARGUMENT;
    }
    *out = timers;
    return MCPG_OK;
}
