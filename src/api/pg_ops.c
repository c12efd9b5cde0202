/* pg_ops.c: submits operations: what can be judged from the arguments alone is judged here, before a number is taken.
 *
 * What depends on the group (who is active, which lists fit, what is supported) is the data plane's to say.
 */
#include <stdio.h>
#include <string.h>

#include "api/pg_internal.h"

static mcpg_status_t check_enums(const mcpg_context_t *context, const mcpg_op_t *op) {
    if ((unsigned)op->kind >= MCPG_OP__COUNT)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "op.kind is %d: give one of mcpg_op_kind_t", (int)op->kind);
    const char *name = mcpg_op_name(op->kind);
    if ((unsigned)op->dtype >= MCPG_DTYPE__COUNT)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: dtype is %d: give one of mcpg_dtype_t", name, (int)op->dtype);
    if ((unsigned)op->redop >= MCPG_REDOP__COUNT)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: redop is %d: give one of mcpg_redop_t", name, (int)op->redop);
    return MCPG_OK;
}

static mcpg_status_t check_seg(const mcpg_context_t *context, const mcpg_op_t *op, const char *what, uint32_t index, const mcpg_seg_t *seg) {
    const char *name = mcpg_op_name(op->kind);
    size_t bytes;
    if (seg->count > 0 && seg->ptr == NULL)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: %s[%u] is NULL with %zu elements: give memory, or a count of 0", name, what,
                          index, seg->count);
    if (__builtin_mul_overflow(seg->count, mcpg_dtype_size(op->dtype), &bytes) || bytes > SIZE_MAX / 2)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: %s[%u] has %zu elements of %s: more than memory can hold", name, what, index,
                          seg->count, mcpg_dtype_name(op->dtype));
    return MCPG_OK;
}

static mcpg_status_t check_list(const mcpg_group_t *g, const mcpg_op_t *op, const char *what, const mcpg_seg_t *list, uint32_t count) {
    if (count > 0 && list == NULL)
        return mcpg__fail(g->context, MCPG_INVALID_ARGUMENT, "%s: %s is NULL with a count of %u", mcpg_op_name(op->kind), what, count);
    if (count > g->capacity)
        return mcpg__fail(g->context, MCPG_INVALID_ARGUMENT, "%s: %s has %u segments, but the group's capacity is %u", mcpg_op_name(op->kind),
                          what, count, g->capacity);
    for (uint32_t i = 0; i < count; i++) MCPG_TRY(check_seg(g->context, op, what, i, &list[i]));
    return MCPG_OK;
}

static bool is_rooted(mcpg_op_kind_t kind) {
    return kind == MCPG_OP_REDUCE || kind == MCPG_OP_BROADCAST || kind == MCPG_OP_GATHER || kind == MCPG_OP_SCATTER;
}

static mcpg_status_t check_op(const mcpg_group_t *g, const mcpg_op_t *op) {
    const mcpg_context_t *context = g->context;
    MCPG_TRY(check_enums(context, op));
    const char *name = mcpg_op_name(op->kind);
    MCPG_TRY(check_seg(context, op, "in", 0, &op->in));
    MCPG_TRY(check_seg(context, op, "out", 0, &op->out));
    MCPG_TRY(check_list(g, op, "ins", op->ins, op->in_count));
    MCPG_TRY(check_list(g, op, "outs", op->outs, op->out_count));
    if (is_rooted(op->kind) && op->root >= g->capacity)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: root is %u, but the group's capacity is %u", name, op->root, g->capacity);
    bool p2p = op->kind == MCPG_OP_SEND || op->kind == MCPG_OP_RECV;
    if (p2p && op->peer >= g->capacity)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: peer is %u, but the group's capacity is %u", name, op->peer, g->capacity);
    bool reduces = op->kind == MCPG_OP_ALLREDUCE || (op->kind == MCPG_OP_REDUCE && op->root == g->slot);
    if (reduces && op->in.count != op->out.count)
        return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "%s: in has %zu elements, out has %zu: they must be equal", name, op->in.count,
                          op->out.count);
    return MCPG_OK;
}

mcpg_status_t mcpg_group_submit(mcpg_group_t *group, const mcpg_op_t *op, mcpg_work_t **work_out) {
    if (mcpg__forked()) return MCPG_FORKED;
    if (group == NULL) return MCPG_INVALID_ARGUMENT;
    mcpg_context_t *context = group->context;
    if (op == NULL || work_out == NULL) return mcpg__fail(context, MCPG_INVALID_ARGUMENT, "op and work_out must not be NULL");
    char error[MCPG_ERROR_CAP] = "";
    mcpg_op_t own;
    mcpg_status_t status = mcpg__versioned_copy(&own, sizeof(own), op, "mcpg_op_t", error, sizeof(error));
    if (status != MCPG_OK) return mcpg__fail(context, status, "%s", error);
    own.struct_size = sizeof(own);
    MCPG_TRY(check_op(group, &own));
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
