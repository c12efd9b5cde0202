/* pg_ops.c: submits operations. Judges nothing itself: what is wrong with an operation is the data plane's to say,
 * which judges the arguments first, before a number is taken.
 */
#include <stdio.h>

#include "api/pg_internal.h"

mcpg_status_t mcpg_group_submit(mcpg_group_t *group, const mcpg_op_t *op, mcpg_work_t **work_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = group->context;
    if (op == NULL || work_out == NULL)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "op and work_out must not be NULL");
    char error[MCPG_ERROR_CAP];
    error[0] = '\0';
    mcpg_op_t own;
    mcpg_status_t status = mcpg__versioned_copy(&own, sizeof(own), op, "mcpg_op_t", error, sizeof(error));
    if (status != MCPG_OK) return mcpg__fail(context, status, "%s", error);
    own.struct_size = sizeof(own);
    mcpg_work_t *work = NULL;
    if (mcpg__work_new(context, &work) != MCPG_OK) return mcpg__fail(context, MCPG_NO_MEMORY, "no memory for a work");
    status = mcpg__dp_submit(context->dp, group->gid, &own, &work->dp, error, sizeof(error));
    if (status != MCPG_OK) {
        work->dp = NULL;
        mcpg__work_unref(work);
        return mcpg__fail(context, status, "%s", error[0] != '\0' ? error : mcpg_status_text(status));
    }
    *work_out = work;
    return MCPG_OK;
}
