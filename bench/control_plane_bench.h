/* control_plane_bench.h: rows of the control plane's measurements. Never judges a figure. */
#ifndef MCPG_BENCH_CONTROL_PLANE_BENCH_H
#define MCPG_BENCH_CONTROL_PLANE_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name, *backend, *transport;
    uint32_t ranks;
    uint64_t size_bytes;
    double per_second; /* 0: not a rate */
    const char *more;  /* further JSON members, each after a comma, or "" */
} bench_row_t;

/* Sorts the samples (microseconds) and prints one row. */
void bench_row(const bench_row_t *row, double *times_us, size_t count);
/* PREPARE to COMMIT with that many real agents over gRPC on loopback. False: it could not be set up. */
bool bench_grpc(uint32_t ranks, uint32_t rounds);

#endif
