/* coord_host_auth.c: the coordinator's host asks the transport whether a stream may speak for the rank it names, and
 * puts a refusal into the protocol's words. Decides nothing itself; the machine never sees who was refused. */
#include <string.h>

#include "common/codec.h"
#include "coordinator/coord_host_priv.h"

/* Any thread. Returns 0 when it does not fit. */
static size_t pack_refusal(mcpg_status_t status, const char *why, uint8_t *buf, size_t cap) {
    mcpg_down_msg_t msg;
    memset(&msg, 0, sizeof(msg));
    size_t len = strlen(why), packed = 0;
    if (len >= MCPG_TEXT_CAP) len = MCPG_TEXT_CAP - 1u;
    msg.kind = MCPG_DOWN_REFUSED;
    msg.u.refused.status = (int32_t)status;
    msg.u.refused.text = (mcpg_bytes_t){(const uint8_t *)why, (uint32_t)len};
    return mcpg__down_pack(&msg, buf, cap, &packed) == MCPG_OK ? packed : 0;
}

size_t mcpg__coord_host_refusal(void *user, const char *why, uint8_t *buf, size_t cap) {
    (void)user;
    return pack_refusal(MCPG_NOT_PERMITTED, why, buf, cap);
}

bool mcpg__coord_host_admits(mcpg_coord_host_t *host, uint64_t conn, const mcpg_up_msg_t *msg) {
    char why[MCPG_TEXT_CAP] = "";
    uint8_t buf[1024];
    if (msg->kind != MCPG_UP_ATTACH) return true; /* every later message speaks for the rank that attached */
    mcpg_status_t status = host->rpc->server_may_speak(host->server, conn, msg->u.attach.rank.v, why, sizeof(why));
    if (status == MCPG_OK) return true;
    if (status == MCPG_NOT_PERMITTED) {
        mcpg__log(&host->log, MCPG_LOG_WARN, "attach_refused conn %llu rank %u: %s", (unsigned long long)conn,
                  msg->u.attach.rank.v, why);
        size_t len = pack_refusal(status, why, buf, sizeof(buf));
        if (len > 0) (void)host->rpc->server_send(host->server, conn, buf, len); /* gone: nobody to tell */
    }
    mcpg__conn_table_set_closing(&host->conns, conn);
    host->rpc->server_close(host->server, conn);
    return false;
}
