"""Elastic training: DistributedDataParallel over 4 CPU ranks that loses ranks in mid-step and gets them back.

    python -m mooncake.run --nproc 4 --respawn examples/elastic_training.py --kill 2 --run run/demo

A small CNN learns the 1,797 handwritten digits that scikit-learn ships. Each rank in --kill ends itself with SIGKILL
inside the backward pass of step --kill-step, in its first life. The survivors agree on the failed step
(pg.sync_after_failure), go back to the state before it and go on; the launcher starts a replacement, which warms up
alone, joins, gets the state and takes its share of every batch again.

How one step works:
  1. view = pg.safe_point(): who takes part in this step, the same answer at every rank.
  2. If the view has a newcomer: a rank that has the state broadcasts it. After any change: compare checksums of
     parameters and momentum.
  3. The batch is drawn from (seed, step) and split by position among the view's active ranks.
  4. Backward; pg.ddp_hook averages gradients over the ranks that contributed.
  5. If a Work of the step was unsuccessful: pg.sync_after_failure(), restore the snapshot whose operation numbers
     contain the first failed one, and do that step again.

The file never touches membership except through pg.activate_ranks, and never assumes that a rank number stays with
one process.
"""

import argparse
import importlib.util
import json
import os
import signal
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mooncake import pg

WARMUP_PASSES = 3  # DDP rebuilds its buckets in the second one
SNAPSHOTS = 2
SEED = 20


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kill", default="2", help="ranks that kill themselves, e.g. 2 or 1,3; 'none'")
    parser.add_argument("--kill-step", type=int, default=30)
    parser.add_argument("--steps", type=int, default=360)
    parser.add_argument(
        "--pace-ms", type=float, default=100.0, help="shortest time of a step, so that a replacement can be watched"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--run", default="run/demo", help="folder for the ranks' records and the picture")
    parser.add_argument("--baseline", default=None, help="result.json of a run without a fault, to compare with")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args()
    world = int(os.environ["WORLD_SIZE"])
    try:
        args.kill = [] if args.kill == "none" else sorted({int(r) for r in args.kill.split(",")})
    except ValueError:
        parser.error(f"--kill {args.kill!r}: give rank numbers with commas between them, or none")
    if any(not 0 <= r < world for r in args.kill) or len(args.kill) == world:
        parser.error(f"--kill {args.kill}: ranks are 0 to {world - 1}, and one must survive")
    return args


class Net(nn.Module):
    """8x8 pixels to 10 digits. No buffers: nothing but parameters and momentum is state."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.out = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.out(x.flatten(1))


def load_digits():
    """What scikit-learn ships, read without importing it: a replacement would wait for that as long as for torch."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        sys.exit("scikit-learn is not installed; its handwritten digits are the data: pip install scikit-learn")
    table = np.loadtxt(
        Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"),
        delimiter=",",
        dtype=np.float32,
    )
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    images = torch.from_numpy(table[:, :64].reshape(-1, 1, 8, 8) / 16.0)
    labels = torch.from_numpy(table[:, 64].astype(np.int64))
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


class State:
    """Everything that training changes, as one flat vector, so that it can be kept, sent and compared bit for bit."""

    def __init__(self, model):
        self.params = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.params, lr=0.05, momentum=0.9)
        for p in self.params:  # momentum exists from the start, so that every rank's vector has the same layout
            self.optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)

    def tensors(self):
        for p in self.params:
            yield p.data
            yield self.optimizer.state[p]["momentum_buffer"]

    def read(self):
        return torch.cat([t.reshape(-1) for t in self.tensors()])

    def write(self, flat):
        at = 0
        for t in self.tensors():
            t.copy_(flat[at : at + t.numel()].view_as(t))
            at += t.numel()

    def checksum(self):
        return zlib.crc32(self.read().numpy().tobytes())


class GroupGone(Exception):
    """The job ended before this replacement could join it."""


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.dir = Path(args.run)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.records = open(self.dir / f"rank-{self.rank}.{self.life}.jsonl", "w")
        self.train_x, self.train_y, self.test_x, self.test_y = load_digits()
        self.step = 0
        self.members = None  # slot -> incarnation of the last view; None: this rank has no state yet
        self.snapshots = []  # (start_seq, step, flat state), newest last
        self.checks = 0

    # ---- setting up ----
    def setup(self):
        joiner = self.life > 0
        self.active = torch.zeros(self.world, dtype=torch.int32)
        options = pg.MooncakeBackendOptions(self.active, is_extension=joiner)
        try:
            dist.init_process_group("mooncake-cpu", timeout=timedelta(seconds=120), pg_options=options)
        except RuntimeError as error:
            if not joiner:
                raise
            raise GroupGone(str(error)) from error
        self.group = dist.group.WORLD
        torch.manual_seed(SEED)
        model = Net()
        self.ddp = DistributedDataParallel(model, init_sync=False)
        self.hook_state = pg.DDPState(self.group)
        self.ddp.register_comm_hook(self.hook_state, pg.ddp_hook)
        self.state = State(model)
        self.last_layer = model.out.bias
        for _ in range(WARMUP_PASSES):  # a joiner does these alone, isolated from the running job
            nn.functional.cross_entropy(self.ddp(self.train_x[:8]), self.train_y[:8]).backward()
            self.ddp.zero_grad()
        self.hook_state.take_works()
        if joiner:
            try:
                pg.join_group(self.group)
            except RuntimeError as error:
                raise GroupGone(str(error)) from error
        else:
            self.members = {}

    # ---- one step ----
    def share(self, view):
        rng = np.random.default_rng((SEED, self.step))
        picked = rng.choice(len(self.train_y), self.args.batch, replace=False)
        mine = picked[view.active.index(self.rank) :: len(view.active)]
        return self.train_x[mine], self.train_y[mine]

    def dies_now(self):
        return self.rank in self.args.kill and self.life == 0 and self.step == self.args.kill_step

    def kill_self(self, grad):
        (self.dir / f"killed-{self.rank}.json").write_text(
            json.dumps({"rank": self.rank, "t": time.time(), "step": self.step})
        )
        os.kill(os.getpid(), signal.SIGKILL)
        return grad

    def train_step(self, view):
        x, y = self.share(view)
        if self.dies_now():
            self.last_layer.register_hook(self.kill_self)
        loss = nn.functional.cross_entropy(self.ddp(x), y)
        loss.backward()
        works = self.hook_state.take_works()
        if not all(pg.get_local_success(w) for w in works):
            self.ddp.zero_grad()
            return None
        self.state.optimizer.step()
        self.ddp.zero_grad()
        return loss.item()

    # ---- membership ----
    def ok(self, work):
        work.wait()
        return pg.get_local_success(work)

    def enter_view(self, view):
        """After a change of the view: give newcomers the state, then compare it everywhere. False: a rank failed."""
        now = dict(zip(view.active, view.incarnations))
        if self.members is not None and now == self.members:
            return True
        if self.members is None or set(now.items()) - set(self.members.items()):
            # The lowest rank that has the state gives it; a newcomer cannot know which that is: first agree on it.
            giver = torch.tensor([self.rank if self.members is not None else self.world], dtype=torch.int64)
            if not self.ok(dist.all_reduce(giver, op=dist.ReduceOp.MIN, async_op=True)):
                return False
            flat = self.state.read()
            step = torch.tensor([self.step], dtype=torch.int64)
            for tensor in (step, flat):
                if not self.ok(dist.broadcast(tensor, src=int(giver), async_op=True)):
                    return False
            self.state.write(flat)
            self.step = int(step)
        if not self.compare_checksums(now):
            return False
        newcomer = self.members is None
        change = f"rank {self.rank} joined" if newcomer else self.describe(now) if self.members else "start"
        self.members = now
        if newcomer:
            self.keep_snapshot(view)
        self.say_change(view, change)
        return True

    def compare_checksums(self, now):
        mine = torch.tensor([self.state.checksum()], dtype=torch.int64)
        sums = [torch.full((1,), -1, dtype=torch.int64) for _ in range(self.group.size())]
        if not self.ok(dist.all_gather(sums, mine, async_op=True)):
            return False
        got = {int(sums[slot]) for slot in now}
        if len(got) != 1:
            raise RuntimeError(f"rank {self.rank}: states differ between ranks at step {self.step}: {sorted(got)}")
        self.checks += 1
        return True

    def describe(self, now):
        lost = sorted(s for s in self.members if s not in now)
        came = sorted(s for s in now if now[s] != self.members.get(s))
        return ", ".join([f"lost rank {s}" for s in lost] + [f"rank {s} joined" for s in came]) or "no change"

    def recover(self):
        """A Work failed here or at a peer: the survivors agree, then go back to the state before the failed step."""
        reply = pg.sync_after_failure(self.group)
        if reply.status != pg.SyncAfterFailureStatus.Reconciled:
            raise RuntimeError(f"rank {self.rank}: sync_after_failure: {reply.status}: {reply.reject_reason}")
        usable = [s for s in self.snapshots if s[0] <= reply.first_failed_seq]
        if self.members is None or not usable:
            # A newcomer that has not got the state yet waits for it in the next view.
            return
        _, self.step, flat = usable[-1]
        self.state.write(flat)
        self.snapshots = []

    def bring_back(self, view):
        """The leader, once a step: activates replacements that are waiting to join."""
        missing = [rank for rank in range(self.world) if rank not in view.active]
        if not missing or not self.is_leader(view):
            return
        ready = [slot for slot, ok in zip(missing, pg.get_peer_state(self.group, missing)) if ok]
        if ready:
            reply = pg.activate_ranks(self.group, ready)
            if reply.status == pg.ProposalStatus.Rejected:
                print(f"activate_ranks({ready}) was rejected: {reply.reject_reason}", flush=True)

    # ---- the loop ----
    def run(self):
        while True:
            began = time.time()
            view = pg.safe_point(self.group)
            self.keep_snapshot(view)
            if not self.enter_view(view):
                self.recover()
                continue
            if self.step >= self.args.steps:
                if self.finish(view):
                    return
                self.recover()
                continue
            loss = self.train_step(view)
            self.record(view, began, loss)
            if loss is None:
                self.recover()
                continue
            self.step += 1
            self.bring_back(view)
            self.progress(view, loss)
            time.sleep(max(0.0, self.pace_s(view) - (time.time() - began)))

    def keep_snapshot(self, view):
        """The state before the numbers from view.start_seq on. Ranks are at most one step apart, so two suffice."""
        if self.members is not None:
            self.snapshots = [*self.snapshots, (view.start_seq, self.step, self.state.read())][-SNAPSHOTS:]

    def pace_s(self, view):
        """Slower when a replacement is late: on a busy machine it needs longer to start than the steps would last."""
        late = len(view.active) < self.world and self.step >= self.args.steps // 3
        return self.args.pace_ms / 1000 * (4 if late else 1)

    def record(self, view, began, loss):
        line = {
            "t": began,
            "ms": round((time.time() - began) * 1000, 3),
            "step": self.step,
            "loss": loss,
            "epoch": view.epoch,
            "active": list(view.active),
            "checks": self.checks,
        }
        self.records.write(json.dumps(line) + "\n")
        self.records.flush()

    def finish(self, view):
        """True when every rank of the view has the same final state. The leader evaluates and draws."""
        if not self.compare_checksums(self.members):
            return False
        if self.is_leader(view):
            import elastic_report

            elastic_report.finish(self, view)
        # Nobody leaves before the leader is done.
        return self.ok(dist.barrier(async_op=True))

    # ---- what a person sees ----
    def is_leader(self, view):
        return self.rank == view.active[0]

    def killed_at(self):
        times = [json.loads(p.read_text())["t"] for p in self.dir.glob("killed-*.json")]
        return min(times) if times else None

    def say_change(self, view, what):
        if self.args.quiet or not self.is_leader(view):
            return
        killed = self.killed_at()
        since = f"+{(time.time() - killed) * 1000:7.0f} ms" if killed else " " * 11
        shown = "".join(str(rank) if rank in view.active else "." for rank in range(self.world))
        print(f"{since} | epoch {view.epoch:2d} | active {shown} | step {self.step:3d} | {what}", flush=True)

    def progress(self, view, loss):
        if self.args.quiet or not self.is_leader(view) or not sys.stdout:
            return
        done = 30 * self.step // self.args.steps
        bar = "#" * done + "-" * (30 - done)
        print(
            f"[{bar}] step {self.step}/{self.args.steps}  loss {loss:.3f}  ranks {len(view.active)}",
            end="\r",
            flush=True,
        )


def main():
    args = parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(args)
    try:
        trainer.setup()
    except GroupGone as gone:
        print(f"rank {trainer.rank}: the job was over before this replacement could join it: {gone}", flush=True)
        return 0
    trainer.run()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
