/* fuzz_down.c: bytes as they come from a coordinator, every kind of message. It must never be told what is in them. */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    (void)fuzz_wire_bytes(FUZZ_DOWN, data, size);
    return 0;
}
