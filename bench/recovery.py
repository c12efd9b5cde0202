"""bench/recovery.py [--trials 20] [--json FILE]: how long a death holds the survivors up.

kill_to_next_op: 4 ranks, default settings. The victim is killed (SIGKILL by itself) before it enters an all_reduce
while the others wait in it; measured from just before the kill to the return of the slowest survivor's all_reduce.
Checked in each trial: every survivor's hint names exactly the victim, the sum is the survivors' sum, and
get_active_ranks is already without the victim.
"""

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist

import common

WAITING_S = 0.2  # how long the survivors have been waiting when the victim dies


def job(rank, ranks, victim, shared):
    from mooncake import pg

    active = torch.zeros(ranks, dtype=torch.int32)
    dist.init_process_group("mooncake-cpu", pg_options=pg.MooncakeBackendOptions(active))
    value = torch.full((256,), float(1 << rank))
    for _ in range(3):
        dist.all_reduce(value.clone())
    dist.barrier()
    if rank == victim:
        time.sleep(WAITING_S)
        shared.value = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    returned = time.monotonic()
    expected_active = [int(r != victim) for r in range(ranks)]
    if pg.get_active_ranks(dist.group.WORLD).tolist() != expected_active:
        raise RuntimeError(
            f"rank {rank}: active ranks {active.tolist()} when the Work returned, expected {expected_active}"
        )
    hint = pg.get_failed_ranks_hint(work).tolist()
    if hint != [int(r == victim) for r in range(ranks)]:
        raise RuntimeError(f"rank {rank}: hint {hint}, expected exactly rank {victim}")
    if value[0].item() != float(sum(1 << r for r in range(ranks) if r != victim)):
        raise RuntimeError(f"rank {rank}: sum {value[0].item()} is not the survivors'")
    again = torch.ones(1)
    dist.all_reduce(again)
    if again.item() != ranks - 1:
        raise RuntimeError(f"rank {rank}: the next all_reduce gave {again.item()}")
    dist.destroy_process_group()
    return returned


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.trials < 1 or args.ranks < 2:
        common.fail(f"--trials {args.trials} --ranks {args.ranks}: give at least 1 trial and 2 ranks")
    times = []
    for trial in range(args.trials):
        victim = trial % args.ranks
        shared = common.FORK.Value("d", 0.0)
        returned = common.run_job(job, args.ranks, (victim, shared), victims=(victim,))
        times.append((max(returned.values()) - shared.value) * 1e6)
    common.report(
        [common.row("kill_to_next_op", "mooncake-cpu", times, ranks=args.ranks, transport="default")], args.json
    )


if __name__ == "__main__":
    main()
