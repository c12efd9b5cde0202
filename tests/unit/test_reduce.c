/* test_reduce.c: reduction kernels: order, rounding, NaN, saturation, aliasing, block edges, and what is not supported.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dataplane/dp_priv.h"

static void supported_pairs(void **state) {
    (void)state;
    for (uint32_t t = 0; t < MCPG_DTYPE__COUNT; t++) {
        const bool floating = t == MCPG_F32 || t == MCPG_F64 || t == MCPG_F16 || t == MCPG_BF16;
        for (uint32_t op = 0; op < MCPG_REDOP__COUNT; op++) {
            bool want = t != MCPG_BYTES;
            if (floating && op >= MCPG_BAND) want = false;
            if (t == MCPG_BOOL && op == MCPG_AVG) want = false;
            assert_int_equal(mcpg__reduce_supported((mcpg_dtype_t)t, (mcpg_redop_t)op), want);
        }
    }
    assert_false(mcpg__reduce_supported(MCPG_DTYPE__COUNT, MCPG_SUM));
    assert_false(mcpg__reduce_supported(MCPG_F32, MCPG_REDOP__COUNT));
}

static void integers(void **state) {
    (void)state;
    const int8_t a8[] = {127, -128, -7, 3}, b8[] = {1, -1, 2, -8}, c8[] = {100, 1, 0, 4};
    const void *s8[] = {a8, b8, c8};
    int8_t d8[4];
    mcpg__reduce(d8, s8, 3, 4, MCPG_I8, MCPG_AVG); /* no overflow on the way, towards zero */
    const int8_t avg[] = {76, -42, -1, 0};
    assert_memory_equal(d8, avg, 4);
    mcpg__reduce(d8, s8, 2, 4, MCPG_I8, MCPG_SUM);
    const int8_t sum[] = {-128, 127, -5, -5};
    assert_memory_equal(d8, sum, 4);
    const int64_t a64[] = {INT64_MAX, INT64_MIN}, b64[] = {INT64_MAX, INT64_MIN + 1};
    const void *s64[] = {a64, b64};
    int64_t d64[2];
    mcpg__reduce(d64, s64, 2, 2, MCPG_I64, MCPG_AVG);
    assert_true(d64[0] == INT64_MAX && d64[1] == INT64_MIN + 1);
    mcpg__reduce(d64, s64, 2, 2, MCPG_I64, MCPG_PRODUCT);
    assert_true(d64[0] == 1 && d64[1] == INT64_MIN);
    const uint16_t a16[] = {65535, 3}, b16[] = {65535, 5};
    const void *s16[] = {a16, b16};
    uint16_t d16[2];
    mcpg__reduce(d16, s16, 2, 2, MCPG_U16, MCPG_PRODUCT);
    assert_true(d16[0] == 1 && d16[1] == 15);
    mcpg__reduce(d16, s16, 2, 2, MCPG_U16, MCPG_BXOR);
    assert_true(d16[0] == 0 && d16[1] == 6);
    const uint8_t ab[] = {0, 1, 0, 1}, bb[] = {0, 0, 1, 1};
    const void *sb[] = {ab, bb, bb};
    uint8_t db[4];
    mcpg__reduce(db, sb, 3, 4, MCPG_BOOL, MCPG_SUM);
    assert_memory_equal(db, ((uint8_t[]){0, 1, 1, 1}), 4);
    mcpg__reduce(db, sb, 3, 4, MCPG_BOOL, MCPG_PRODUCT);
    assert_memory_equal(db, ((uint8_t[]){0, 0, 0, 1}), 4);
    mcpg__reduce(db, sb, 2, 4, MCPG_BOOL, MCPG_BXOR);
    assert_memory_equal(db, ((uint8_t[]){0, 1, 1, 0}), 4);
}

static void floats(void **state) {
    (void)state;
    const float big[] = {1e8f, NAN, 1.0f, -0.0f}, one[] = {1.0f, 1.0f, NAN, 0.0f}, minus[] = {-1e8f, 1.0f, 1.0f, 0.0f};
    const void *srcs[] = {big, one, minus};
    float d[4];
    mcpg__reduce(d, srcs, 3, 4, MCPG_F32, MCPG_SUM);
    assert_true(d[0] == 0.0f); /* (1e8 + 1) - 1e8 in this order */
    const void *other[] = {big, minus, one};
    mcpg__reduce(d, other, 3, 4, MCPG_F32, MCPG_SUM);
    assert_true(d[0] == 1.0f);
    const mcpg_redop_t ops[] = {MCPG_MIN, MCPG_MAX, MCPG_SUM, MCPG_AVG, MCPG_PRODUCT};
    for (size_t i = 0; i < 5; i++) {
        mcpg__reduce(d, srcs, 3, 4, MCPG_F32, ops[i]);
        assert_true(isnan(d[1]) && isnan(d[2]));
    }
    const double x[] = {1.0}, y[] = {2.0}, z[] = {4.0};
    const void *s[] = {x, y, z};
    double avg;
    mcpg__reduce(&avg, s, 3, 1, MCPG_F64, MCPG_AVG);
    assert_true(avg == 7.0 / 3.0);
    mcpg__reduce(&avg, s, 1, 1, MCPG_F64, MCPG_AVG);
    assert_true(avg == 1.0);
}

/* Narrow types, with values written as bits. */
static uint16_t narrow(mcpg_dtype_t t, mcpg_redop_t op, uint16_t a, uint16_t b, uint16_t c, uint32_t n) {
    const void *srcs[] = {&a, &b, &c};
    uint16_t d = 0;
    mcpg__reduce(&d, srcs, n, 1, t, op);
    return d;
}

static void halves(void **state) {
    (void)state;
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x3c00, 0x4000, 0, 2), 0x4200);      /* 1 + 2 */
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x7bff, 0x7bff, 0, 2), 0x7c00);      /* 65504 * 2: infinity */
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x7bff, 0x7bff, 0xfbff, 3), 0x7bff); /* not on the way: summed as f32 */
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x0001, 0x0001, 0, 2), 0x0002);      /* smallest ones */
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x03ff, 0x0001, 0, 2), 0x0400);      /* into the normal ones */
    assert_int_equal(narrow(MCPG_F16, MCPG_AVG, 0x0001, 0x0000, 0, 2), 0x0000); /* half of the smallest: tie to even */
    assert_int_equal(narrow(MCPG_F16, MCPG_AVG, 0x0003, 0x0000, 0, 2), 0x0002);
    assert_int_equal(narrow(MCPG_F16, MCPG_SUM, 0x8000, 0x8000, 0, 2), 0x8000); /* -0 */
    assert_int_equal(narrow(MCPG_F16, MCPG_MAX, 0x7e01, 0x3c00, 0, 2) & 0x7e00, 0x7e00);
    assert_int_equal(narrow(MCPG_F16, MCPG_MIN, 0xfc00, 0x3c00, 0, 2), 0xfc00);
    assert_int_equal(narrow(MCPG_BF16, MCPG_SUM, 0x3f80, 0x4000, 0, 2), 0x4040);
    assert_int_equal(narrow(MCPG_BF16, MCPG_SUM, 0x3f80, 0x3b80, 0, 2), 0x3f80); /* 1 + 2^-8: tie to even */
    assert_int_equal(narrow(MCPG_BF16, MCPG_SUM, 0x3f81, 0x3b80, 0, 2), 0x3f82);
    assert_int_equal(narrow(MCPG_BF16, MCPG_MAX, 0x7fc0, 0x3f80, 0, 2) & 0x7fc0, 0x7fc0);
    assert_int_equal(narrow(MCPG_BF16, MCPG_SUM, 0x7f80, 0x3f80, 0, 2), 0x7f80);
    for (uint32_t h = 0; h < 65536u; h++) { /* every half comes through as itself */
        const bool nan = (h & 0x7c00u) == 0x7c00u && (h & 0x3ffu) != 0;
        if (!nan) assert_int_equal(narrow(MCPG_F16, MCPG_MAX, (uint16_t)h, (uint16_t)h, 0, 2), h);
    }
}

static void blocks_and_aliasing(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    static float mem[4][COUNT], want[COUNT], d[COUNT];
    for (uint32_t count = 1020; count < COUNT; count += 1321) {
        for (uint32_t alias = 0; alias < 5; alias++) {
            for (uint32_t r = 0; r < 4; r++)
                for (uint32_t i = 0; i < count; i++) mem[r][i] = (float)((r + 1u) * (i % 97u)) * 0.3f;
            for (uint32_t i = 0; i < count; i++) want[i] = ((mem[0][i] + mem[1][i]) + mem[2][i]) + mem[3][i];
            const void *srcs[] = {mem[0], mem[1], mem[2], mem[3]};
            float *to = alias == 4 ? d : mem[alias];
            mcpg__reduce(to, srcs, 4, count, MCPG_F32, MCPG_SUM);
            assert_memory_equal(to, want, count * sizeof(float));
        }
    }
    mcpg__reduce(d, NULL, 0, 10, MCPG_F32, MCPG_SUM); /* nobody: nothing happens */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(supported_pairs), cmocka_unit_test(integers),
                                       cmocka_unit_test(floats), cmocka_unit_test(halves),
                                       cmocka_unit_test(blocks_and_aliasing)};
    return cmocka_run_group_tests_name("reduce", tests, NULL, NULL);
}
