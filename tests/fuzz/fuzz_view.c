/* fuzz_view.c: built messages about views: PREPARE, COMMIT, ABORT, their acknowledgements, PROPOSE, and a group's
 * record in the key-value store; then their bytes with damage. It must never build only what is valid.
 */
#include "fuzz/fuzz.h"

static const mcpg_up_kind_t ups[] = {MCPG_UP_PROPOSE, MCPG_UP_ACK, MCPG_UP_COMMIT_ACK, MCPG_UP_REBUILD};
static const mcpg_down_kind_t downs[] = {MCPG_DOWN_PREPARE, MCPG_DOWN_COMMIT, MCPG_DOWN_ABORT, MCPG_DOWN_REPLY};
#define UPS   (sizeof ups / sizeof ups[0])
#define DOWNS (sizeof downs / sizeof downs[0])

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_in_t in = {data, data + size};
    uint32_t which = fuzz_below(&in, UPS + DOWNS + 2);
    fuzz_msg_t msg;
    fuzz_wire_t wire = FUZZ_RECORD;
    if (which < UPS) {
        wire = FUZZ_UP;
        msg.up = fuzz_up(&in, ups[which], &fuzz_hints_none, fuzz_build_arena());
    } else if (which < UPS + DOWNS) {
        wire = FUZZ_DOWN;
        msg.down = fuzz_down(&in, downs[which - UPS], &fuzz_hints_none, fuzz_build_arena());
    } else if (which == UPS + DOWNS) {
        msg.record = fuzz_record(&in, &fuzz_hints_none, fuzz_build_arena());
    } else {
        (void)fuzz_wire_bytes(FUZZ_RECORD, in.at, fuzz_left(&in));
        return 0;
    }
    fuzz_wire_built(wire, &msg, &in);
    return 0;
}
