/* test_ops.c: every operation with sample types, sizes, roots and worlds, over each transport; results, and the memory
 * around them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops_world.h"
#ifdef OPS_FAKE
#include "fake_link.h"
#define TRANSPORTS                                                                                                     \
    { "fake" }
#define RANKS                                                                                                          \
    { 1, 2, 3, 4, 7 }
#else
#define TRANSPORTS                                                                                                     \
    { "shm", "tcp" }
#define RANKS                                                                                                          \
    { 1, 2, 3, 4 }
#endif

#define GUARD 64u

/* ---- values small enough to be exact in every type ---- */
static double value(uint32_t rank, uint32_t piece, size_t i) {
    return (double)((rank * 3u + piece * 5u + i) % 4u + 1u);
}

static void put(void *mem, size_t i, mcpg_dtype_t t, double v) {
    switch (t) {
    case MCPG_U8:
    case MCPG_BYTES:
        ((uint8_t *)mem)[i] = (uint8_t)v;
        break;
    case MCPG_BOOL:
        ((uint8_t *)mem)[i] = v > 2.0;
        break;
    case MCPG_I8:
        ((int8_t *)mem)[i] = (int8_t)v;
        break;
    case MCPG_U16:
        ((uint16_t *)mem)[i] = (uint16_t)v;
        break;
    case MCPG_I16:
        ((int16_t *)mem)[i] = (int16_t)v;
        break;
    case MCPG_U32:
        ((uint32_t *)mem)[i] = (uint32_t)v;
        break;
    case MCPG_I32:
        ((int32_t *)mem)[i] = (int32_t)v;
        break;
    case MCPG_U64:
        ((uint64_t *)mem)[i] = (uint64_t)v;
        break;
    case MCPG_I64:
        ((int64_t *)mem)[i] = (int64_t)v;
        break;
    case MCPG_F32:
        ((float *)mem)[i] = (float)v;
        break;
    case MCPG_F64:
        ((double *)mem)[i] = v;
        break;
    case MCPG_F16: {
        uint32_t e = 0;
        while ((double)(1u << (e + 1u)) <= v) e++;
        const uint32_t mantissa = (uint32_t)((v / (double)(1u << e) - 1.0) * 1024.0);
        ((uint16_t *)mem)[i] = (uint16_t)(v < 1.0 ? 0 : ((e + 15u) << 10) | mantissa);
        break;
    }
    case MCPG_BF16: {
        const float f = (float)v;
        uint32_t u;
        memcpy(&u, &f, 4);
        ((uint16_t *)mem)[i] = (uint16_t)(u >> 16);
        break;
    }
    case MCPG_DTYPE__COUNT:
        break;
    }
}

static double combine(mcpg_redop_t op, double a, double b) {
    switch (op) {
    case MCPG_SUM:
    case MCPG_AVG:
        return a + b;
    case MCPG_PRODUCT:
        return a * b;
    case MCPG_MIN:
        return a < b ? a : b;
    case MCPG_MAX:
        return a > b ? a : b;
    case MCPG_BAND:
        return (double)((uint32_t)a & (uint32_t)b);
    case MCPG_BOR:
        return (double)((uint32_t)a | (uint32_t)b);
    case MCPG_BXOR:
        return (double)((uint32_t)a ^ (uint32_t)b);
    case MCPG_REDOP__COUNT:
        break;
    }
    return 0;
}

static double reduced(mcpg_dtype_t t, mcpg_redop_t op, uint32_t n, uint32_t piece, size_t i) {
    double acc = value(0, piece, i);
    if (t == MCPG_BOOL) {
        bool b = acc > 2.0;
        for (uint32_t r = 1; r < n; r++) {
            const bool x = value(r, piece, i) > 2.0;
            b = op == MCPG_SUM || op == MCPG_MAX || op == MCPG_BOR ? b || x : op == MCPG_BXOR ? b != x : b && x;
        }
        return b ? 3.0 : 0.0;
    }
    for (uint32_t r = 1; r < n; r++) acc = combine(op, acc, value(r, piece, i));
    const bool whole = t != MCPG_F32 && t != MCPG_F64 && t != MCPG_F16 && t != MCPG_BF16;
    if (op == MCPG_AVG) acc = whole ? (double)((int64_t)acc / (int64_t)n) : acc / (double)n;
    return acc;
}

/* ---- one operation on every rank ---- */
typedef struct {
    uint32_t n, root;
    mcpg_op_kind_t kind;
    mcpg_dtype_t dtype;
    mcpg_redop_t redop;
    size_t count;
    bool in_place, uneven;
} case_t;

typedef struct {
    uint8_t *in, *out, *in_copy;
    size_t in_bytes, out_bytes;
    mcpg_seg_t ins[WORLD_MAX], outs[WORLD_MAX];
    mcpg_op_t op;
} side_t;

static size_t piece_count(const case_t *c, uint32_t from, uint32_t to) {
    if (!c->uneven) return c->count;
    return c->kind == MCPG_OP_ALLTOALL ? c->count + from * 2u + to : c->count + from;
}

static bool list_in(mcpg_op_kind_t k) {
    return k == MCPG_OP_SCATTER || k == MCPG_OP_REDUCE_SCATTER || k == MCPG_OP_ALLTOALL;
}
static bool list_out(mcpg_op_kind_t k) {
    return k == MCPG_OP_ALLGATHER || k == MCPG_OP_GATHER || k == MCPG_OP_ALLTOALL;
}

static void side_init(side_t *s, const case_t *c, uint32_t rank) {
    const size_t size = mcpg_dtype_size(c->dtype);
    memset(s, 0, sizeof *s);
    size_t in_total = 0, out_total = 0, at = 0;
    for (uint32_t p = 0; p < c->n; p++)
        in_total += list_in(c->kind) ? piece_count(c, rank, p) : p == 0 ? piece_count(c, rank, 0) : 0;
    for (uint32_t p = 0; p < c->n; p++)
        out_total += list_out(c->kind) ? piece_count(c, p, rank) : p == 0 ? piece_count(c, p, rank) : 0;
    s->in_bytes = in_total * size;
    s->out_bytes = out_total * size;
    s->in = calloc(1, s->in_bytes + GUARD);
    s->in_copy = calloc(1, s->in_bytes + GUARD);
    s->out = calloc(1, s->out_bytes + GUARD);
    assert_true(s->in != NULL && s->in_copy != NULL && s->out != NULL);
    memset(s->out, 0xa5, s->out_bytes + GUARD);
    for (uint32_t p = 0; p < (list_in(c->kind) ? c->n : 1u); p++) {
        const size_t k = piece_count(c, rank, p);
        s->ins[p] = (mcpg_seg_t){s->in + at * size, k};
        for (size_t i = 0; i < k; i++) put(s->in, at + i, c->dtype, value(rank, list_in(c->kind) ? p : 0, i));
        at += k;
    }
    at = 0;
    for (uint32_t p = 0; p < (list_out(c->kind) ? c->n : 1u); p++) {
        const size_t k = piece_count(c, p, rank);
        s->outs[p] = (mcpg_seg_t){s->out + at * size, k};
        at += k;
    }
    memcpy(s->in_copy, s->in, s->in_bytes + GUARD);
    s->op = MCPG_OP_INITIALIZER;
    s->op.kind = c->kind;
    s->op.dtype = c->dtype;
    s->op.redop = c->redop;
    s->op.root = c->root;
    if (list_in(c->kind)) {
        s->op.ins = s->ins;
        s->op.in_count = c->n;
    } else {
        s->op.in = s->ins[0];
    }
    if (list_out(c->kind)) {
        s->op.outs = s->outs;
        s->op.out_count = c->n;
    } else {
        s->op.out = s->outs[0];
    }
    if (c->kind == MCPG_OP_BROADCAST && rank == c->root) memcpy(s->out, s->in, s->in_bytes);
    if (c->in_place && (c->kind == MCPG_OP_ALLREDUCE || (c->kind == MCPG_OP_REDUCE && rank == c->root))) {
        memcpy(s->out, s->in, s->in_bytes);
        s->op.in.ptr = s->op.out.ptr;
    }
    if (c->in_place && c->kind == MCPG_OP_ALLGATHER) {
        memcpy(s->outs[rank].ptr, s->in, s->in_bytes);
        s->op.in.ptr = s->outs[rank].ptr;
    }
    if (c->in_place && c->kind == MCPG_OP_ALLTOALL) {
        memcpy(s->out, s->in, s->in_bytes);
        for (uint32_t p = 0; p < c->n; p++) s->ins[p].ptr = s->out + (size_t)((uint8_t *)s->ins[p].ptr - s->in);
    }
}

static bool out_is_written(const case_t *c, uint32_t rank) {
    switch (c->kind) {
    case MCPG_OP_REDUCE:
    case MCPG_OP_GATHER:
        return rank == c->root;
    case MCPG_OP_BARRIER:
    case MCPG_OP_SEND:
    case MCPG_OP_RECV:
    case MCPG_OP__COUNT:
        return false;
    case MCPG_OP_ALLREDUCE:
    case MCPG_OP_BROADCAST:
    case MCPG_OP_ALLGATHER:
    case MCPG_OP_SCATTER:
    case MCPG_OP_REDUCE_SCATTER:
    case MCPG_OP_ALLTOALL:
        return true;
    }
    return false;
}

static double wanted(const case_t *c, uint32_t rank, uint32_t piece, size_t i) {
    switch (c->kind) {
    case MCPG_OP_ALLREDUCE:
    case MCPG_OP_REDUCE:
        return reduced(c->dtype, c->redop, c->n, 0, i);
    case MCPG_OP_REDUCE_SCATTER:
        return reduced(c->dtype, c->redop, c->n, rank, i);
    case MCPG_OP_BROADCAST:
        return value(c->root, 0, i);
    case MCPG_OP_ALLGATHER:
    case MCPG_OP_GATHER:
        return value(piece, 0, i);
    case MCPG_OP_SCATTER:
        return value(c->root, rank, i);
    case MCPG_OP_ALLTOALL:
        return value(piece, rank, i);
    case MCPG_OP_BARRIER:
    case MCPG_OP_SEND:
    case MCPG_OP_RECV:
    case MCPG_OP__COUNT:
        break;
    }
    return 0;
}

static void side_check(const side_t *s, const case_t *c, uint32_t rank) {
    uint8_t *want = malloc(s->out_bytes + GUARD);
    assert_non_null(want);
    memset(want, 0xa5, s->out_bytes + GUARD);
    size_t at = 0;
    for (uint32_t p = 0; out_is_written(c, rank) && p < (list_out(c->kind) ? c->n : 1u); p++) {
        for (size_t i = 0; i < piece_count(c, p, rank); i++) put(want, at++, c->dtype, wanted(c, rank, p, i));
    }
    if (memcmp(want, s->out, s->out_bytes + GUARD) != 0) {
        size_t bad = 0;
        while (want[bad] == s->out[bad]) bad++;
        fail_msg("%s %s %s n %u root %u count %zu in_place %d uneven %d rank %u: byte %zu is %02x, expected %02x",
                 mcpg_op_name(c->kind), mcpg_dtype_name(c->dtype), mcpg_redop_name(c->redop), c->n, c->root, c->count,
                 c->in_place, c->uneven, rank, bad, s->out[bad], want[bad]);
    }
    assert_memory_equal(s->in, s->in_copy, s->in_bytes + GUARD);
    free(want);
}

static void run_case(world_t *w, const case_t *c) {
    side_t side[WORLD_MAX];
    mcpg_dp_work_t *work[WORLD_MAX];
    for (uint32_t r = 0; r < c->n; r++) side_init(&side[r], c, r);
    for (uint32_t r = 0; r < c->n; r++) work[r] = world_submit(w, r, &side[r].op);
    for (uint32_t r = 0; r < c->n; r++) {
        const mcpg_status_t status = world_wait(w, work[r]);
        if (status != MCPG_OK) fail_msg("rank %u: %s", r, mcpg__dp_work_error(work[r]));
        assert_int_equal(world_hints(work[r]), 0);
        assert_int_equal(mcpg__dp_work_seq(work[r]), mcpg__dp_work_seq(work[0]));
        mcpg__dp_work_release(work[r]);
        side_check(&side[r], c, r);
    }
    for (uint32_t r = 0; r < c->n; r++) {
        free(side[r].in);
        free(side[r].in_copy);
        free(side[r].out);
    }
}

static const size_t sizes[] = {0, 1, 7, 1023, 100003};

static void run_kind(world_t *w, mcpg_op_kind_t kind) {
    static const mcpg_dtype_t types[] = {MCPG_F32, MCPG_U8, MCPG_I64, MCPG_BF16};
    const bool rooted =
        kind == MCPG_OP_REDUCE || kind == MCPG_OP_BROADCAST || kind == MCPG_OP_GATHER || kind == MCPG_OP_SCATTER;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            case_t c = {w->n, 0, kind, types[t], MCPG_SUM, sizes[s], false, false};
            if (t != 0 && sizes[s] > 1023) continue; /* long ones once */
            for (c.root = 0; c.root < (rooted ? w->n : 1u); c.root++) {
                run_case(w, &c);
                c.in_place = true;
                run_case(w, &c);
                c.in_place = false;
            }
            c.root = 0;
            c.uneven = kind == MCPG_OP_ALLGATHER || kind == MCPG_OP_GATHER || kind == MCPG_OP_ALLTOALL;
            if (c.uneven) run_case(w, &c);
        }
    }
}

static void run_reductions(world_t *w) {
    for (uint32_t t = 0; t < MCPG_BYTES; t++) {
        for (uint32_t op = 0; op < MCPG_REDOP__COUNT; op++) {
            const bool floating = t == MCPG_F32 || t == MCPG_F64 || t == MCPG_F16 || t == MCPG_BF16;
            if ((floating && op >= MCPG_BAND) || (t == MCPG_BOOL && op == MCPG_AVG)) continue;
            const case_t c = {w->n, 0, MCPG_OP_ALLREDUCE, (mcpg_dtype_t)t, (mcpg_redop_t)op, 33, false, false};
            const bool inexact =
                floating && op == MCPG_AVG && w->n % 2u == 1 && w->n != 1; /* thirds: other rounding than by double */
            if (!inexact) run_case(w, &c);
        }
    }
}

static void all_ops(void **state) {
    (void)state;
    const char *transports[] = TRANSPORTS;
    const uint32_t ranks[] = RANKS;
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
            const uint32_t n = ranks[k];
#ifdef OPS_FAKE
            fake_reset(n);
#endif
            const world_config_t config = {.transports = transports[t]};
            world_t *w = world_new(n, &config);
            for (uint32_t kind = 0; kind <= MCPG_OP_BARRIER; kind++) run_kind(w, (mcpg_op_kind_t)kind);
            run_reductions(w);
            world_free(w);
        }
    }
}

static void several_chunks_in_place(void **state) {
    (void)state;
    const char *transports[] = TRANSPORTS;
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
#ifdef OPS_FAKE
        fake_reset(5);
#endif
        const world_config_t config = {.transports = transports[t]};
        world_t *w = world_new(3, &config);
        const mcpg_op_kind_t kinds[] = {MCPG_OP_ALLREDUCE, MCPG_OP_REDUCE_SCATTER, MCPG_OP_ALLTOALL, MCPG_OP_BROADCAST};
        for (size_t k = 0; k < 4; k++) {
            case_t c = {3, 1, kinds[k], MCPG_F32, MCPG_SUM, 700001, true, false};
            run_case(w, &c);
            c.in_place = false;
            c.uneven = kinds[k] == MCPG_OP_ALLTOALL;
            run_case(w, &c);
        }
        world_free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_ops), cmocka_unit_test(several_chunks_in_place)};
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
