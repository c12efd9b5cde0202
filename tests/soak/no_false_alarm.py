"""no_false_alarm.py --seconds S: 4 ranks on an overloaded machine; no live rank may ever be hinted or deactivated."""

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import common  # noqa: E402


def busy(until):
    while time.monotonic() < until:
        pass


def job(rank, ranks, seconds):
    from mooncake import pg

    dist.init_process_group("mooncake-cpu")
    group = dist.group.WORLD
    until, rounds, going = time.monotonic() + seconds, 0, torch.full((1,), float(ranks))
    epoch = pg.get_current_epoch(group)
    while going.item() == ranks:
        size = 1 if rounds % 20 else 1 << 20
        x = torch.full((size,), float(rank + rounds))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        hint = pg.get_failed_ranks_hint(work).tolist()
        if any(hint) or not bool((x == sum(r + rounds for r in range(ranks))).all()):
            raise RuntimeError(f"rank {rank}, round {rounds}: hint {hint}, first value {x[0].item()}")
        if pg.get_current_epoch(group) != epoch or sum(pg.get_active_ranks(group).tolist()) != ranks:
            raise RuntimeError(f"rank {rank}, round {rounds}: the view changed: {pg.get_active_ranks(group).tolist()}")
        rounds += 1
        if rounds % 50 == 0:
            going = torch.full((1,), float(time.monotonic() < until))
            dist.all_reduce(going)
    dist.destroy_process_group()
    return rounds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    loops = [
        multiprocessing.get_context("fork").Process(
            target=busy, args=(time.monotonic() + args.seconds + 60,), daemon=True
        )
        for _ in range(2)
    ]
    for loop in loops:
        loop.start()
    try:
        rounds = common.run_job(job, 4, (args.seconds,), timeout_s=args.seconds + 100)
    finally:
        for loop in loops:
            loop.kill()
    if min(rounds.values()) < args.seconds:
        raise SystemExit(f"only {min(rounds.values())} rounds in {args.seconds:.0f} s: nothing was tested")
    print(
        f"{min(rounds.values())} rounds in {args.seconds:.0f} s beside two busy loops: "
        "no live rank was hinted or deactivated"
    )


if __name__ == "__main__":
    main()
