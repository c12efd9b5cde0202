/* coll_select.c: which algorithm runs an operation: the first row that fits. A new algorithm is one file and one row
 * above the last. Every rank of a view must choose alike, so a row looks only at what all of them know.
 */
#include <string.h>

#include "dataplane/coll.h"

typedef struct {
    uint32_t kinds; /* bit per mcpg_op_kind_t */
    uint64_t bytes_min, bytes_max;
    uint32_t ranks_min, ranks_max;
    const char *transport; /* NULL: any */
    const mcpg_coll_t *coll;
} row_t;

static const row_t rows[] = {
    {UINT32_MAX, 0, UINT64_MAX, 0, UINT32_MAX, NULL, &mcpg__coll_direct},
};

const mcpg_coll_t *mcpg__coll_select(mcpg_op_kind_t kind, uint64_t bytes, uint32_t ranks, const char *transport) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row_t *r = &rows[i];
        if (((r->kinds >> (uint32_t)kind) & 1u) == 0 || bytes < r->bytes_min || bytes > r->bytes_max) continue;
        if (ranks < r->ranks_min || ranks > r->ranks_max) continue;
        if (r->transport != NULL && (transport == NULL || strcmp(r->transport, transport) != 0)) continue;
        return r->coll;
    }
    return &mcpg__coll_direct;
}
