/* op_check.c: what is wrong with an operation before anything is sent: arguments, support, and whether this rank and
 * the root are active in the view of its number (contract D11). Every refusal is one sentence with the value and the
 * remedy. Changes nothing.
 */
#include <stdio.h>

#include "dataplane/dp_priv.h"

#define REFUSE(status, ...)                                                                                            \
    do {                                                                                                               \
        (void)snprintf(error, cap, __VA_ARGS__);                                                                       \
        return status;                                                                                                 \
    } while (0)

bool mcpg__op_is_rooted(mcpg_op_kind_t kind) {
    return kind == MCPG_OP_REDUCE || kind == MCPG_OP_BROADCAST || kind == MCPG_OP_GATHER || kind == MCPG_OP_SCATTER;
}

bool mcpg__op_is_p2p(mcpg_op_kind_t kind) {
    return kind == MCPG_OP_SEND || kind == MCPG_OP_RECV;
}

static bool reduces(mcpg_op_kind_t kind) {
    return kind == MCPG_OP_ALLREDUCE || kind == MCPG_OP_REDUCE || kind == MCPG_OP_REDUCE_SCATTER;
}

static mcpg_status_t check_seg(const mcpg_seg_t *s, const char *what, int64_t slot, size_t size, char *error,
                               size_t cap) {
    if (s->count > SIZE_MAX / 2u / size)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s has %zu elements: more than memory can hold", what, s->count);
    if (s->ptr != NULL || s->count == 0) return MCPG_OK;
    if (slot < 0)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s is NULL but has %zu elements: pass memory for them", what, s->count);
    REFUSE(MCPG_INVALID_ARGUMENT, "%s[%lld] is NULL but has %zu elements: pass memory for them", what, (long long)slot,
           s->count);
}

static mcpg_status_t check_list(const mcpg_dpgroup_t *g, const mcpg_seg_t *list, uint32_t count, const char *what,
                                size_t size, char *error, size_t cap) {
    if (count > g->capacity)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s has %u segments but the group has room for %u ranks: pass one per rank", what,
               count, g->capacity);
    if (count != 0 && list == NULL)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s is NULL but has %u segments: pass them", what, count);
    for (uint32_t i = 0; i < count; i++) MCPG_TRY(check_seg(&list[i], what, (int64_t)i, size, error, cap));
    return MCPG_OK;
}

/* Own piece of a list against the single segment on the other side. */
static mcpg_status_t check_own(const mcpg_dpgroup_t *g, const mcpg_seg_t *list, uint32_t count, const char *what,
                               const mcpg_seg_t *one, const char *one_name, char *error, size_t cap) {
    const uint32_t slot = g->slot.v;
    if (slot >= count)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s has %u segments, none for in-group rank %u (this one): pass one per rank",
               what, count, slot);
    if (list[slot].count != one->count)
        REFUSE(MCPG_INVALID_ARGUMENT,
               "%s[%u] has %zu elements but %s has %zu: this rank's own piece must be equal on both sides", what, slot,
               list[slot].count, one_name, one->count);
    return MCPG_OK;
}

static mcpg_status_t check_equal(const mcpg_op_t *op, char *error, size_t cap) {
    if (op->in.count != op->out.count)
        REFUSE(MCPG_INVALID_ARGUMENT, "%s: in has %zu elements but out has %zu: pass equal sizes",
               mcpg_op_name(op->kind), op->in.count, op->out.count);
    const uintptr_t in = (uintptr_t)op->in.ptr, out = (uintptr_t)op->out.ptr,
                    len = op->in.count * mcpg_dtype_size(op->dtype);
    if (in != out && in < out + len && out < in + len)
        REFUSE(MCPG_INVALID_ARGUMENT,
               "%s: in and out overlap by a part of %zu bytes: pass the same memory or separate memory",
               mcpg_op_name(op->kind), (size_t)len);
    return MCPG_OK;
}

static mcpg_status_t check_shape(const mcpg_dpgroup_t *g, const mcpg_op_t *op, char *error, size_t cap) {
    const bool root = !g->isolated && op->root == g->slot.v;
    switch (op->kind) {
    case MCPG_OP_ALLREDUCE:
        return check_equal(op, error, cap);
    case MCPG_OP_REDUCE:
        return root ? check_equal(op, error, cap) : MCPG_OK;
    case MCPG_OP_ALLGATHER:
        return check_own(g, op->outs, op->out_count, "outs", &op->in, "in", error, cap);
    case MCPG_OP_GATHER:
        return root ? check_own(g, op->outs, op->out_count, "outs", &op->in, "in", error, cap) : MCPG_OK;
    case MCPG_OP_SCATTER:
        return root ? check_own(g, op->ins, op->in_count, "ins", &op->out, "out", error, cap) : MCPG_OK;
    case MCPG_OP_REDUCE_SCATTER:
        return check_own(g, op->ins, op->in_count, "ins", &op->out, "out", error, cap);
    case MCPG_OP_ALLTOALL: {
        const uint32_t slot = g->slot.v;
        const mcpg_seg_t none = {NULL, 0};
        const mcpg_seg_t *own = slot < op->in_count ? &op->ins[slot] : &none;
        return check_own(g, op->outs, op->out_count, "outs", own, "the own piece of ins", error, cap);
    }
    case MCPG_OP_BROADCAST:
    case MCPG_OP_BARRIER:
    case MCPG_OP_SEND:
    case MCPG_OP_RECV:
    case MCPG_OP__COUNT:
        return MCPG_OK;
    }
    return MCPG_OK;
}

mcpg_status_t mcpg__op_check(const mcpg_dpgroup_t *g, const mcpg_op_t *op, char *error, size_t cap) {
    if (op->struct_size != sizeof *op)
        REFUSE(MCPG_INVALID_ARGUMENT, "mcpg_op_t has struct_size %zu, expected %zu: start from MCPG_OP_INITIALIZER",
               op->struct_size, sizeof *op);
    if ((uint32_t)op->kind >= MCPG_OP__COUNT)
        REFUSE(MCPG_INVALID_ARGUMENT, "operation kind %d does not exist: pass one of mcpg_op_kind_t", (int)op->kind);
    if ((uint32_t)op->dtype >= MCPG_DTYPE__COUNT)
        REFUSE(MCPG_INVALID_ARGUMENT, "dtype %d does not exist: pass one of mcpg_dtype_t", (int)op->dtype);
    if (reduces(op->kind) && (uint32_t)op->redop >= MCPG_REDOP__COUNT)
        REFUSE(MCPG_INVALID_ARGUMENT, "reduction %d does not exist: pass one of mcpg_redop_t", (int)op->redop);
    if (mcpg__op_is_rooted(op->kind) && op->root >= g->capacity)
        REFUSE(MCPG_INVALID_ARGUMENT, "root %u is outside the group of at most %u ranks: pass an in-group rank",
               op->root, g->capacity);
    if (mcpg__op_is_p2p(op->kind) && op->peer >= g->capacity)
        REFUSE(MCPG_INVALID_ARGUMENT, "peer %u is outside the group of at most %u ranks: pass an in-group rank",
               op->peer, g->capacity);
    const size_t size = mcpg_dtype_size(op->dtype);
    MCPG_TRY(check_seg(&op->in, "in", -1, size, error, cap));
    MCPG_TRY(check_seg(&op->out, "out", -1, size, error, cap));
    MCPG_TRY(check_list(g, op->ins, op->in_count, "ins", size, error, cap));
    MCPG_TRY(check_list(g, op->outs, op->out_count, "outs", size, error, cap));
    return check_shape(g, op, error, cap);
}

mcpg_status_t mcpg__op_supported(const mcpg_op_t *op, char *error, size_t cap) {
    if (!reduces(op->kind) || mcpg__reduce_supported(op->dtype, op->redop)) return MCPG_OK;
    REFUSE(MCPG_NOT_SUPPORTED, "%s cannot combine %s with %s: %s", mcpg_op_name(op->kind), mcpg_dtype_name(op->dtype),
           mcpg_redop_name(op->redop),
           op->dtype == MCPG_BYTES ? "bytes can be moved but not combined, convert to a number type"
           : op->redop == MCPG_AVG ? "use sum, or convert to a number type"
                                   : "bitwise reductions need an integer or bool type");
}

mcpg_status_t mcpg__op_judge(const mcpg_dpgroup_t *g, const mcpg_op_t *op, uint64_t seq, char *error, size_t cap) {
    const mcpg_dpview_t *v = mcpg__view_of(g, seq);
    if (v == g->self_view) return MCPG_OK;
    if (!mcpg__view_runs(g, v, seq))
        REFUSE(MCPG_NOT_ACTIVE,
               "in-group rank %u (this one) is not active in view %llu, which operation %llu runs in: call join_group "
               "and have it activated",
               g->slot.v, (unsigned long long)v->id.epoch, (unsigned long long)seq);
    if (mcpg__op_is_rooted(op->kind) && mcpg__view_find(v, op->root) < 0)
        REFUSE(MCPG_ROOT_NOT_ACTIVE,
               "root %u of %s is not active in view %llu, which operation %llu runs in: choose an active root",
               op->root, mcpg_op_name(op->kind), (unsigned long long)v->id.epoch, (unsigned long long)seq);
    return MCPG_OK;
}
