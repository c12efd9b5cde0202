"""What the Python benchmarks share: jobs of forked ranks, medians, and the output contract.

Every benchmark writes, with --json FILE, {"schema": 1, "host": {...}, "rows": [{"name", "backend", "transport",
"ranks", "size_bytes", "n", "median_us", "p99_us", "ratio_vs": {...}}]}. ratio_vs = the peer's median / ours from the
same interleaved run: above 1 is faster. A benchmark checks its results while it runs; it never decides whether a test
passes.
"""

import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

FORK = multiprocessing.get_context("fork")


def host():
    with open("/proc/cpuinfo") as file:
        model = next(
            (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine()
        )
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "kernel": platform.release(),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def row(name, backend, times_us, *, ranks, transport="", size_bytes=0, ratio_vs=None):
    ordered = sorted(times_us)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {
        "name": name,
        "backend": backend,
        "transport": transport,
        "ranks": ranks,
        "size_bytes": size_bytes,
        "n": len(ordered),
        "median_us": round(statistics.median(ordered), 2),
        "p99_us": round(p99, 2),
        "ratio_vs": ratio_vs or {},
    }


def report(rows, path):
    print(f"{'name':24} {'backend':14} {'ranks':>5} {'bytes':>10} {'median us':>12} {'p99 us':>12}  ratio")
    for r in rows:
        ratio = " ".join(f"{k} {v:.2f}x" for k, v in r["ratio_vs"].items())
        print(
            f"{r['name']:24} {r['backend']:14} {r['ranks']:5d} {r['size_bytes']:10d} "
            f"{r['median_us']:12.1f} {r['p99_us']:12.1f}  {ratio}"
        )
    if path:
        with open(path, "w") as file:
            json.dump({"schema": 1, "host": host(), "rows": rows}, file, indent=1)


def _services(pipe, ranks):
    """Store and coordinator in a process of their own, so that every rank may be killed."""
    from mooncake import pg

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    coordinator = pg.start_coordinator()
    pipe.send((store.port, coordinator.address))
    pipe.recv()  # the job is over
    coordinator.stop()


def _rank_main(func, rank, ranks, port, address, queue, args):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
        MOONCAKE_COORDINATOR=address,
    )
    torch.set_num_threads(1)
    try:
        queue.put((rank, func(rank, ranks, *args), None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))
    queue.close()
    queue.join_thread()
    os._exit(0)


def run_job(func, ranks, args=(), *, victims=(), timeout_s=120):
    """Forks processes that call func(rank, ranks, *args); returns {rank: result}. Ranks in victims need not answer."""
    ours, theirs = FORK.Pipe()
    services = FORK.Process(target=_services, args=(theirs, ranks), daemon=True)
    services.start()
    if not ours.poll(30):
        services.kill()
        raise RuntimeError("Store and coordinator did not start within 30 s")
    port, address = ours.recv()
    queue = FORK.Queue()
    processes = [
        FORK.Process(target=_rank_main, args=(func, r, ranks, port, address, queue, args), daemon=True)
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    results, until = {}, time.monotonic() + timeout_s
    try:
        while len(results) < ranks - len(victims):
            rank, value, error = queue.get(timeout=max(0.1, until - time.monotonic()))
            if error:
                raise RuntimeError(f"rank {rank} failed:\n{error}")
            results[rank] = value
    finally:
        for process in processes:
            process.join(timeout=10 if len(results) >= ranks - len(victims) else 0)
            if process.is_alive():
                process.kill()
                process.join()
        ours.send("over")
        services.join(timeout=10)
        if services.is_alive():
            services.kill()
    return results


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
