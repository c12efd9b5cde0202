/* fuzz_link.c: built messages of evidence: LINK, DEATH, HEARTBEAT, OP_FAILED, SYNC_ENTER, and what the coordinator says
 * of it; then their bytes with damage. It must never build only what is valid.
 */
#include "fuzz/fuzz.h"

static const mcpg_up_kind_t ups[] = {MCPG_UP_LINK, MCPG_UP_DEATH, MCPG_UP_HEARTBEAT, MCPG_UP_OP_FAILED,
                                     MCPG_UP_SYNC_ENTER};
static const mcpg_down_kind_t downs[] = {MCPG_DOWN_RANK_STATES, MCPG_DOWN_HEARTBEAT_REPLY, MCPG_DOWN_RECONCILED,
                                         MCPG_DOWN_SYNCING};
#define UPS   (sizeof ups / sizeof ups[0])
#define DOWNS (sizeof downs / sizeof downs[0])

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_in_t in = {data, data + size};
    uint32_t which = fuzz_below(&in, UPS + DOWNS);
    fuzz_msg_t msg;
    if (which < UPS)
        msg.up = fuzz_up(&in, ups[which], &fuzz_hints_none, fuzz_build_arena());
    else
        msg.down = fuzz_down(&in, downs[which - UPS], &fuzz_hints_none, fuzz_build_arena());
    fuzz_wire_built(which < UPS ? FUZZ_UP : FUZZ_DOWN, &msg, &in);
    return 0;
}
