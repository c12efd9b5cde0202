/* fuzz_register.c: built messages of a process that comes: ATTACH with its reports, REGISTER, JOIN, REBUILD, and the
 * answers to them; then their bytes with damage. It must never build only what is valid. With MCPG_FUZZ_CANARY what was
 * decoded goes to a double that looks one slot beyond the declared order, which the fuzzer must find: so the harness
 * can fail.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz/fuzz.h"

static const mcpg_up_kind_t ups[] = {MCPG_UP_ATTACH, MCPG_UP_REGISTER, MCPG_UP_JOIN, MCPG_UP_REBUILD,
                                     MCPG_UP_LEAVE_GROUP};
static const mcpg_down_kind_t downs[] = {MCPG_DOWN_REGISTERED, MCPG_DOWN_MEMBERS, MCPG_DOWN_WELCOME, MCPG_DOWN_REFUSED};
#define UPS   (sizeof ups / sizeof ups[0])
#define DOWNS (sizeof downs / sizeof downs[0])

#ifdef MCPG_FUZZ_CANARY
/* Only a REGISTER that the codec accepts, with several ranks and room for more, leads to the fault. */
static void canary(const mcpg_up_msg_t *built) {
    mcpg_up_msg_t msg = *built;
    if (msg.kind != MCPG_UP_REGISTER || !fuzz_up_through(&msg, fuzz_decode_arena())) return;
    const mcpg_up_register_t *r = &msg.u.register_group;
    if (r->order_count < 3 || r->capacity != r->order_count + 2) return;
    uint32_t *order = malloc(r->order_count * sizeof *order);
    FUZZ_REQUIRE(order != NULL);
    memcpy(order, r->order, r->order_count * sizeof *order);
    volatile uint32_t beyond = order[r->order_count];
    (void)beyond;
    free(order);
}
#else
static void canary(const mcpg_up_msg_t *built) {
    (void)built;
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_in_t in = {data, data + size};
    uint32_t which = fuzz_below(&in, UPS + DOWNS);
    fuzz_msg_t msg;
    if (which < UPS)
        msg.up = fuzz_up(&in, ups[which], &fuzz_hints_none, fuzz_build_arena());
    else
        msg.down = fuzz_down(&in, downs[which - UPS], &fuzz_hints_none, fuzz_build_arena());
    if (which < UPS) canary(&msg.up);
    fuzz_wire_built(which < UPS ? FUZZ_UP : FUZZ_DOWN, &msg, &in);
    return 0;
}
