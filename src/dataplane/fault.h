/* fault.h: transports that misbehave on purpose, for tests: cut, corrupt, delay, refuse. Nothing but these calls turns
 * them on. */
#ifndef MCPG_DATAPLANE_FAULT_H
#define MCPG_DATAPLANE_FAULT_H

#include "dataplane/transport.h"

#define MCPG_FAULT_ANY   UINT32_MAX
#define MCPG_FAULT_NEVER UINT64_MAX

/* What happens to bytes that `from` writes to `to`. Counted per stream. */
typedef struct {
    uint32_t from, to;   /* global ranks or MCPG_FAULT_ANY */
    uint64_t cut_after;  /* the stream breaks after so many bytes */
    uint64_t corrupt_at; /* one bit of this byte is flipped */
    uint64_t delay_us;   /* between two writes */
    bool refuse;         /* connects by `from` to `to` fail at once */
    bool swallow;        /* bytes are taken and never arrive */
} mcpg_fault_plan_t;

/* Engines created while this is on use the wrapped transports. */
void mcpg__fault_enable(bool on);
void mcpg__fault_clear(void);
void mcpg__fault_add(const mcpg_fault_plan_t *plan); /* at most 16 */
const mcpg_transport_ops_t *mcpg__fault_wrap(const mcpg_transport_ops_t *ops);

#endif
