/* status.c: the names and texts of every public enum, and the library's version. Never changes at run time, never
 * allocates. */
#include "common/base.h"

#define MCPG_VERSION_TEXT "0.1.0"

#define X(NAME, value, kind, text)                                                                                     \
    _Static_assert(MCPG_##NAME == (value), "pg.h and statuses.def disagree about " #NAME);
#include "common/statuses.def"
#undef X

const char *mcpg_status_text(mcpg_status_t status) {
    switch (status) {
#define X(NAME, value, kind, text)                                                                                     \
    case MCPG_##NAME:                                                                                                  \
        return text;
#include "common/statuses.def"
#undef X
    }
    return "unknown status";
}

const char *mcpg_status_name(mcpg_status_t status) {
    switch (status) {
#define X(NAME, value, kind, text)                                                                                     \
    case MCPG_##NAME:                                                                                                  \
        return #NAME;
#include "common/statuses.def"
#undef X
    }
    return "UNKNOWN";
}

const char *mcpg_version(void) {
    return MCPG_VERSION_TEXT;
}

size_t mcpg_dtype_size(mcpg_dtype_t dtype) {
    switch (dtype) {
    case MCPG_U8:
    case MCPG_I8:
    case MCPG_BOOL:
    case MCPG_BYTES:
        return 1;
    case MCPG_U16:
    case MCPG_I16:
    case MCPG_F16:
    case MCPG_BF16:
        return 2;
    case MCPG_U32:
    case MCPG_I32:
    case MCPG_F32:
        return 4;
    case MCPG_U64:
    case MCPG_I64:
    case MCPG_F64:
        return 8;
    case MCPG_DTYPE__COUNT:
        break;
    }
    return 0;
}

const char *mcpg_dtype_name(mcpg_dtype_t dtype) {
    switch (dtype) {
    case MCPG_U8:
        return "u8";
    case MCPG_I8:
        return "i8";
    case MCPG_U16:
        return "u16";
    case MCPG_I16:
        return "i16";
    case MCPG_U32:
        return "u32";
    case MCPG_I32:
        return "i32";
    case MCPG_U64:
        return "u64";
    case MCPG_I64:
        return "i64";
    case MCPG_F32:
        return "f32";
    case MCPG_F64:
        return "f64";
    case MCPG_BOOL:
        return "bool";
    case MCPG_F16:
        return "f16";
    case MCPG_BF16:
        return "bf16";
    case MCPG_BYTES:
        return "bytes";
    case MCPG_DTYPE__COUNT:
        break;
    }
    return "unknown";
}

const char *mcpg_redop_name(mcpg_redop_t op) {
    switch (op) {
    case MCPG_SUM:
        return "sum";
    case MCPG_AVG:
        return "avg";
    case MCPG_PRODUCT:
        return "product";
    case MCPG_MIN:
        return "min";
    case MCPG_MAX:
        return "max";
    case MCPG_BAND:
        return "band";
    case MCPG_BOR:
        return "bor";
    case MCPG_BXOR:
        return "bxor";
    case MCPG_REDOP__COUNT:
        break;
    }
    return "unknown";
}

const char *mcpg_op_name(mcpg_op_kind_t kind) {
    switch (kind) {
    case MCPG_OP_ALLREDUCE:
        return "allreduce";
    case MCPG_OP_REDUCE:
        return "reduce";
    case MCPG_OP_BROADCAST:
        return "broadcast";
    case MCPG_OP_ALLGATHER:
        return "allgather";
    case MCPG_OP_GATHER:
        return "gather";
    case MCPG_OP_SCATTER:
        return "scatter";
    case MCPG_OP_REDUCE_SCATTER:
        return "reduce_scatter";
    case MCPG_OP_ALLTOALL:
        return "alltoall";
    case MCPG_OP_BARRIER:
        return "barrier";
    case MCPG_OP_SEND:
        return "send";
    case MCPG_OP_RECV:
        return "recv";
    case MCPG_OP__COUNT:
        break;
    }
    return "unknown";
}
