"""bench/control_plane [--quick] [--parts steps,grpc,changes,healthy] [--peer-limit-s 60] [--json FILE]: what the control
plane costs.

steps: CPU time of a step of each machine, and steps per second. grpc: PREPARE to COMMIT with 8 and 64 real agents over
gRPC on loopback, from the first hold to the last installed view. changes: coordinator CPU and bytes sent per membership
change of 64, 256 and 1,024 model agents; at most 200 bytes per rank are allowed. healthy: the healthy set at 1,024
ranks with 64 broken links, and networkx and igraph on the same graphs, which get --peer-limit-s seconds each; their
answers must have the size of ours.

The C program control_plane_bench does the measuring and checks its results as it goes.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time

import common

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ("steps", "grpc", "changes", "healthy")


def run_program(program, parts, quick, graphs):
    command = [program, *(["--quick"] if quick else []), "--graphs", graphs, *parts]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        common.fail(f"{' '.join(command)} ended with {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_graphs(path):
    """[(ranks, size of our answer, broken links)]"""
    graphs = []
    with open(path) as file:
        for line in file:
            words = line.split()
            graphs.append((int(words[0]), int(words[1]), [tuple(map(int, w.split("-"))) for w in words[2:]]))
    return graphs


def all_links(ranks, broken):
    missing = set(broken)
    return [(a, b) for a in range(ranks) for b in range(a + 1, ranks) if (a, b) not in missing]


def solve_networkx(ranks, broken):
    import networkx

    sys.setrecursionlimit(100000)  # it recurses once per member of the clique
    graph = networkx.Graph()
    graph.add_nodes_from(range(ranks))
    graph.add_edges_from(all_links(ranks, broken))
    began = time.perf_counter()
    return networkx.max_weight_clique(graph, weight=None)[1], time.perf_counter() - began


def solve_igraph(ranks, broken):
    import igraph

    graph = igraph.Graph(n=ranks, edges=all_links(ranks, broken))
    began = time.perf_counter()
    return graph.clique_number(), time.perf_counter() - began


def solve_in_child(solver, ranks, broken, limit_s):
    """(size, seconds), or None when the limit passed: the child is then ended."""
    ours, theirs = multiprocessing.Pipe()
    child = common.FORK.Process(target=lambda: theirs.send(solver(ranks, broken)), daemon=True)
    child.start()
    theirs.close()  # so that a child that fails ends the waiting
    try:
        return ours.recv() if ours.poll(limit_s) else None
    except EOFError:
        common.fail(f"{solver.__name__} failed")
    finally:
        child.kill()
        child.join()


def peers(rows, graphs, limit_s):
    """Rows of the peers; ours get the ratio to them."""
    names = ("healthy_set", "healthy_set_among_16")
    found = []
    for (ranks, size, broken), name in zip(graphs, names):
        own = next(row for row in rows if row["name"] == name)
        for backend, solver in (("networkx", solve_networkx), ("igraph", solve_igraph)):
            answer = solve_in_child(solver, ranks, broken, limit_s)
            if answer is not None and answer[0] != size:
                common.fail(f"{name}: {backend} found a clique of {answer[0]} ranks, we found {size}")
            seconds = limit_s if answer is None else answer[1]
            row = common.row(name, backend, [seconds * 1e6], ranks=ranks, transport="none")
            row["timed_out"] = answer is None
            own["ratio_vs"][backend] = round(row["median_us"] / own["median_us"], 1)
            found.append(row)
    return found


def say_verdicts(rows):
    for row in rows:
        where = f"{row['name']} at {row['ranks']} ranks"
        if "bytes_per_rank" in row and "limit_bytes_per_rank" in row:
            word = "within" if row["within_limit"] else "OVER"
            print(f"{where}: {row['bytes_per_rank']} bytes per rank sent, {word} {row['limit_bytes_per_rank']}")
        if "limit_us" in row:
            word = "within" if row["p99_us"] < row["limit_us"] else "OVER"
            print(f"{where}: p99 {row['p99_us']} us, {word} {row['limit_us']}; exact in {row['exact']} of {row['n']}")
        if "per_second" in row:
            print(f"{where}: {row['per_second']} per second")
        if row.get("timed_out"):
            print(f"{where}: {row['backend']} did not answer within {row['median_us'] / 1e6:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a figure")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--peer-limit-s", type=float, default=60)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "bench", "control_plane_bench"))
    parser.add_argument("--json")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if set(parts) - set(PARTS):
        common.fail(f"--parts {args.parts}: known are {','.join(PARTS)}")
    if not os.access(args.program, os.X_OK):
        common.fail(f"{args.program} is missing: cmake --build build --target control_plane_bench")
    with tempfile.TemporaryDirectory() as folder:
        graphs = os.path.join(folder, "graphs.txt")
        rows = run_program(args.program, parts, args.quick, graphs)
        if "healthy" in parts:
            rows += peers(rows, read_graphs(graphs), args.peer_limit_s)
    common.report(rows, args.json)
    say_verdicts(rows)


if __name__ == "__main__":
    sys.exit(main())
