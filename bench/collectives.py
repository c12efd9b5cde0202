"""bench/collectives.py [--backends mooncake-cpu,gloo] [--ranks 2] [--sizes 8,...] [--json FILE]: synchronous f32
operations from Python.

All backends run in the same processes, interleaved block by block, so that noise of the machine meets them alike.
Times are rank 0's, per call; results are checked in the timed program.
"""

import argparse
import time

import torch
import torch.distributed as dist

import common

BLOCKS = 8
OPS = ("allreduce", "broadcast", "allgather", "sendrecv")


def prepare(op, group, rank, ranks, count):
    """(call, check): one synchronous operation and the test of what it left."""
    x = torch.full((count,), float(rank + 1))
    if op == "allreduce":

        def call():
            x.fill_(float(rank + 1))
            dist.all_reduce(x, group=group)

        return call, lambda: bool((x == ranks * (ranks + 1) / 2).all())
    if op == "broadcast":
        return lambda: dist.broadcast(x, src=0, group=group), lambda: bool((x == 1).all())
    if op == "allgather":
        out = [torch.empty(count) for _ in range(ranks)]
        return lambda: dist.all_gather(out, x, group=group), lambda: all(
            bool((o == i + 1).all()) for i, o in enumerate(out)
        )
    y = torch.empty(count)

    def swap():
        if rank == 0:
            dist.send(x, 1, group=group)
            dist.recv(y, 1, group=group)
        elif rank == 1:
            dist.recv(y, 0, group=group)
            dist.send(x, 0, group=group)

    return swap, lambda: rank > 1 or bool((y == 2 - rank).all())


def job(rank, ranks, backends, ops, sizes):
    dist.init_process_group("gloo")
    groups = {b: dist.new_group(backend=b) for b in backends}
    times = {}
    for op in ops:
        for size in sizes:
            count = max(1, size // 4)
            iterations = max(3, min(200, (8 << 20) // size))
            calls = {b: prepare(op, g, rank, ranks, count) for b, g in groups.items()}
            for call, _ in calls.values():
                for _ in range(3):
                    call()
            for _ in range(BLOCKS):
                for backend, (call, check) in calls.items():
                    dist.barrier()
                    took = times.setdefault((op, size, backend), [])
                    for _ in range(iterations):
                        began = time.perf_counter()
                        call()
                        took.append((time.perf_counter() - began) * 1e6)
                    if not check():
                        raise RuntimeError(f"rank {rank}: wrong result of {op}, {size} bytes, {backend}")
    dist.barrier()
    dist.destroy_process_group()
    return times if rank == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backends", default="mooncake-cpu,gloo")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ops", default="allreduce")
    parser.add_argument("--sizes", default="8,4096,65536,1048576,67108864")
    parser.add_argument("--json")
    args = parser.parse_args()
    backends, ops = args.backends.split(","), args.ops.split(",")
    if set(ops) - set(OPS):
        common.fail(f"--ops {args.ops}: known are {','.join(OPS)}")
    times = common.run_job(job, args.ranks, (backends, ops, [int(s) for s in args.sizes.split(",")]), timeout_s=540)[0]
    rows = []
    for (op, size, backend), took in times.items():
        ours = sorted(took)[len(took) // 2]
        ratio = {b: sorted(times[op, size, b])[len(times[op, size, b]) // 2] / ours for b in backends if b != backend}
        rows.append(common.row(op, backend, took, ranks=args.ranks, size_bytes=size, ratio_vs=ratio))
    common.report(rows, args.json)


if __name__ == "__main__":
    from mooncake import pg  # noqa: F401  registers the backend before ranks are forked

    main()
