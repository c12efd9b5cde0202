/* reduce.c: combines contributions element by element, in the order given (contract D1), block by block so that the
 * destination may be one of the sources. Plain loops that gcc -O3 turns into vector code. Never allocates, never looks
 * at who contributed.
 */
#include <string.h>

#include "dataplane/dp_priv.h"

#define BLOCK 1024u /* elements: the accumulator stays in the first-level cache */

typedef void (*kernel_t)(void *d, const void *a, const void *b, size_t n);
typedef void (*avg_t)(void *d, const void *const *srcs, uint32_t src_count, size_t off, size_t n);

#define LOOP _Pragma("GCC ivdep") for (size_t i = 0; i < n; i++)

#define KERNEL(name, T, expr)                                                                                          \
    static void name(void *d, const void *a, const void *b, size_t n) {                                                \
        T *dst = (T *)d;                                                                                               \
        const T *left = (const T *)a, *right = (const T *)b;                                                           \
        LOOP {                                                                                                         \
            const T x = left[i], y = right[i];                                                                         \
            dst[i] = (T)(expr);                                                                                        \
        }                                                                                                              \
    }

/* U: unsigned type that arithmetic happens in (wraps); ACC: type that sums for an average fit in. */
#define INTEGER(T, id, U, ACC)                                                                                         \
    KERNEL(sum_##id, T, (U)x + (U)y)                                                                                   \
    KERNEL(product_##id, T, (U)x *(U)y)                                                                                \
    KERNEL(min_##id, T, x < y ? x : y)                                                                                 \
    KERNEL(max_##id, T, x > y ? x : y)                                                                                 \
    KERNEL(band_##id, T, x &y)                                                                                         \
    KERNEL(bor_##id, T, x | y)                                                                                         \
    KERNEL(bxor_##id, T, x ^ y)                                                                                        \
    static void avg_##id(void *d, const void *const *srcs, uint32_t src_count, size_t off, size_t n) {                 \
        ACC acc[BLOCK];                                                                                                \
        const T *first = (const T *)srcs[0] + off;                                                                     \
        LOOP acc[i] = first[i];                                                                                        \
        for (uint32_t s = 1; s < src_count; s++) {                                                                     \
            const T *src = (const T *)srcs[s] + off;                                                                   \
            LOOP acc[i] += src[i];                                                                                     \
        }                                                                                                              \
        T *dst = (T *)d + off;                                                                                         \
        LOOP dst[i] = (T)(acc[i] / (ACC)src_count);                                                                    \
    }

/* A NaN on either side stays: x if it is one, else y when the comparison fails because y is. */
#define FLOATING(T, id)                                                                                                \
    KERNEL(sum_##id, T, x + y)                                                                                         \
    KERNEL(product_##id, T, x *y)                                                                                      \
    KERNEL(min_##id, T, (x < y || x != x) ? x : y)                                                                     \
    KERNEL(max_##id, T, (x > y || x != x) ? x : y)

__extension__ typedef __int128 wide_t;
__extension__ typedef unsigned __int128 uwide_t;

INTEGER(uint8_t, u8, uint32_t, int64_t)
INTEGER(int8_t, i8, uint32_t, int64_t)
INTEGER(uint16_t, u16, uint32_t, int64_t)
INTEGER(int16_t, i16, uint32_t, int64_t)
INTEGER(uint32_t, u32, uint32_t, int64_t)
INTEGER(int32_t, i32, uint32_t, int64_t)
INTEGER(uint64_t, u64, uint64_t, uwide_t)
INTEGER(int64_t, i64, uint64_t, wide_t)
FLOATING(float, f32)
FLOATING(double, f64)
KERNEL(or_bool, uint8_t, (x | y) != 0)
KERNEL(and_bool, uint8_t, (x != 0) & (y != 0))
KERNEL(xor_bool, uint8_t, (x != 0) ^ (y != 0))

#define INTEGER_ROW(id)                                                                                                \
    { sum_##id, sum_##id, product_##id, min_##id, max_##id, band_##id, bor_##id, bxor_##id }
#define FLOAT_ROW                                                                                                      \
    { sum_f32, sum_f32, product_f32, min_f32, max_f32, NULL, NULL, NULL }
static const kernel_t kernels[MCPG_DTYPE__COUNT][MCPG_REDOP__COUNT] = {
    [MCPG_U8] = INTEGER_ROW(u8),
    [MCPG_I8] = INTEGER_ROW(i8),
    [MCPG_U16] = INTEGER_ROW(u16),
    [MCPG_I16] = INTEGER_ROW(i16),
    [MCPG_U32] = INTEGER_ROW(u32),
    [MCPG_I32] = INTEGER_ROW(i32),
    [MCPG_U64] = INTEGER_ROW(u64),
    [MCPG_I64] = INTEGER_ROW(i64),
    [MCPG_F32] = FLOAT_ROW,
    [MCPG_F64] = {sum_f64, sum_f64, product_f64, min_f64, max_f64, NULL, NULL, NULL},
    [MCPG_BOOL] = {or_bool, NULL, and_bool, and_bool, or_bool, and_bool, or_bool, xor_bool},
    [MCPG_F16] = FLOAT_ROW, /* converted to f32 first */
    [MCPG_BF16] = FLOAT_ROW,
    [MCPG_BYTES] = {NULL}};

static const avg_t averages[MCPG_DTYPE__COUNT] = {
    [MCPG_U8] = avg_u8,   [MCPG_I8] = avg_i8,   [MCPG_U16] = avg_u16, [MCPG_I16] = avg_i16,
    [MCPG_U32] = avg_u32, [MCPG_I32] = avg_i32, [MCPG_U64] = avg_u64, [MCPG_I64] = avg_i64};

bool mcpg__reduce_supported(mcpg_dtype_t dtype, mcpg_redop_t op) {
    return (uint32_t)dtype < MCPG_DTYPE__COUNT && (uint32_t)op < MCPG_REDOP__COUNT && kernels[dtype][op] != NULL;
}

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float half_to_float(uint16_t h) {
    const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    const uint32_t tiny = bits_of((float)(int32_t)mantissa * 0x1p-24f);
    const uint32_t normal = ((exponent + 112u) << 23) | (mantissa << 13);
    const uint32_t special = 0x7f800000u | (mantissa << 13);
    const uint32_t magnitude = exponent == 31u ? special : exponent == 0u ? tiny : normal;
    return float_of(((uint32_t)(h & 0x8000u) << 16) | magnitude);
}

/* Rounds to nearest, ties to even, as every conversion here. */
static inline uint16_t float_to_half(float f) {
    const uint32_t all = bits_of(f), a = all & 0x7fffffffu;
    const uint32_t nan = 0x7e00u | ((a >> 13) & 0x3ffu);
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    /* Adding 0.5 puts the last place of the sum at 2^-24, the smallest half. */
    const float small = a < 0x38800000u ? float_of(a) : 0.0f;
    const uint32_t tiny = bits_of(small + 0.5f) - 0x3f000000u;
    const uint32_t magnitude = a > 0x7f800000u ? nan : a >= 0x477ff000u ? 0x7c00u : a < 0x38800000u ? tiny : normal;
    return (uint16_t)(((all >> 16) & 0x8000u) | magnitude);
}

static inline uint16_t float_to_bfloat(float f) {
    const uint32_t all = bits_of(f);
    const uint32_t nan = (all >> 16) | 0x40u, rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
    return (uint16_t)((all & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static void load_narrow(float *dst, const uint16_t *src, size_t n, bool brain) {
    if (brain) {
        for (size_t i = 0; i < n; i++) dst[i] = float_of((uint32_t)src[i] << 16);
    } else {
        for (size_t i = 0; i < n; i++) dst[i] = half_to_float(src[i]);
    }
}

static void store_narrow(uint16_t *dst, const float *src, size_t n, bool brain) {
    if (brain) {
        for (size_t i = 0; i < n; i++) dst[i] = float_to_bfloat(src[i]);
    } else {
        for (size_t i = 0; i < n; i++) dst[i] = float_to_half(src[i]);
    }
}

static void reduce_narrow(uint16_t *dst, const void *const *srcs, uint32_t src_count, size_t count, bool brain,
                          mcpg_redop_t op) {
    float acc[BLOCK], next[BLOCK];
    const kernel_t kernel = kernels[MCPG_F32][op];
    for (size_t off = 0; off < count; off += BLOCK) {
        const size_t n = count - off < BLOCK ? count - off : BLOCK;
        load_narrow(acc, (const uint16_t *)srcs[0] + off, n, brain);
        for (uint32_t s = 1; s < src_count; s++) {
            load_narrow(next, (const uint16_t *)srcs[s] + off, n, brain);
            kernel(acc, acc, next, n);
        }
        if (op == MCPG_AVG) {
            for (size_t i = 0; i < n; i++) acc[i] /= (float)src_count;
        }
        store_narrow(dst + off, acc, n, brain);
    }
}

static void divide(void *d, size_t n, mcpg_dtype_t dtype, uint32_t by) {
    if (dtype == MCPG_F32) {
        float *f = (float *)d;
        for (size_t i = 0; i < n; i++) f[i] /= (float)by;
    } else {
        double *f = (double *)d;
        for (size_t i = 0; i < n; i++) f[i] /= (double)by;
    }
}

static void reduce_same(uint8_t *dst, const void *const *srcs, uint32_t src_count, size_t count, mcpg_dtype_t dtype,
                        mcpg_redop_t op) {
    _Alignas(64) uint8_t acc[BLOCK * sizeof(uint64_t)];
    const kernel_t kernel = kernels[dtype][op];
    const size_t size = mcpg_dtype_size(dtype);
    for (size_t off = 0; off < count; off += BLOCK) {
        const size_t n = count - off < BLOCK ? count - off : BLOCK, at = off * size;
        const uint8_t *left = (const uint8_t *)srcs[0] + at;
        for (uint32_t s = 1; s < src_count; s++) {
            /* Only the last step writes the destination: every source of this block was read by then. */
            uint8_t *to = s + 1 == src_count ? dst + at : acc;
            kernel(to, left, (const uint8_t *)srcs[s] + at, n);
            left = to;
        }
        if (op == MCPG_AVG) divide(dst + at, n, dtype, src_count);
    }
}

void mcpg__reduce(void *dst, const void *const *srcs, uint32_t src_count, size_t count, mcpg_dtype_t dtype,
                  mcpg_redop_t op) {
    if (src_count == 0 || count == 0) return;
    if (src_count == 1) {
        if (dst != srcs[0]) memmove(dst, srcs[0], count * mcpg_dtype_size(dtype));
        return;
    }
    if (dtype == MCPG_F16 || dtype == MCPG_BF16) {
        reduce_narrow((uint16_t *)dst, srcs, src_count, count, dtype == MCPG_BF16, op);
        return;
    }
    if (op == MCPG_AVG && averages[dtype] != NULL) {
        for (size_t off = 0; off < count; off += BLOCK)
            averages[dtype](dst, srcs, src_count, off, count - off < BLOCK ? count - off : BLOCK);
        return;
    }
    reduce_same((uint8_t *)dst, srcs, src_count, count, dtype, op);
}
