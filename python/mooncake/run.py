"""python -m mooncake.run: start N ranks of a script on this host and start only a dead one again.

    python -m mooncake.run --nproc 4 --respawn script.py --its --arguments

It hosts the Store and the membership coordinator itself, so any rank may die, rank 0 too. Ranks get torchrun's
environment. It reports each exit to the coordinator as a proof of death. It never ends a process that it did not
start, and never restarts a healthy rank.
"""

import argparse
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from datetime import timedelta

STOP_GRACE_S = 10.0  # after Ctrl-C, before ranks are killed
DRAIN_S = 2.0  # for output that is still in the pipes when the last rank has ended


def parse_args(argv):
    parser = argparse.ArgumentParser(
        prog="python -m mooncake.run",
        description="Start ranks of a torch.distributed script; restart only those that die.",
    )
    parser.add_argument(
        "--nproc", "--nproc-per-node", type=int, required=True, metavar="N", help="number of ranks, 1 to 1024"
    )
    parser.add_argument(
        "--respawn", action="store_true", help="start a rank again when it ends with an error or a signal"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=3,
        metavar="K",
        help="restarts of one rank before it is given up (default 3)",
    )
    parser.add_argument("--master-port", type=int, default=0, metavar="PORT", help="port of the Store, 0: any free one")
    parser.add_argument("--no-prefix", action="store_true", help="do not put '[rank]' before output lines")
    parser.add_argument("script", help="Python file to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    options = parser.parse_args(argv)
    if not 1 <= options.nproc <= 1024:
        parser.error(f"--nproc {options.nproc}: give 1 to 1024 ranks")
    if options.max_restarts < 0:
        parser.error(f"--max-restarts {options.max_restarts}: give 0 or more")
    if not os.path.isfile(options.script):
        parser.error(f"script {options.script!r} is not a file")
    return options


class Output:
    """Writes lines with a prefix; one that ends in a carriage return is drawn in place on a terminal, else dropped."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.tty = sys.stdout.isatty()
        self.in_place = False

    def write(self, rank, segment):
        text, end = segment[:-1], segment[-1:]
        head = f"[{rank}] " if self.prefix else ""
        if end == b"\r":
            if self.tty:
                self._raw(b"\r\x1b[K" + head.encode() + text)
                self.in_place = True
            return
        if self.in_place:
            self._raw(b"\r\x1b[K")
            self.in_place = False
        self._raw(head.encode() + text + b"\n")

    def say(self, text):
        self.write("run", text.encode() + b"\n")

    @staticmethod
    def _raw(data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class Rank:
    """One process slot: its present process and the unfinished end of its output."""

    def __init__(self, rank):
        self.rank = rank
        self.restarts = 0
        self.process = None
        self.tail = b""
        self.exit_code = None  # set when it ended for good


class Launcher:
    def __init__(self, options, store_port, coordinator):
        self.options = options
        self.store_port = store_port
        self.coordinator = coordinator
        self.ranks = [Rank(r) for r in range(options.nproc)]
        self.selector = selectors.DefaultSelector()
        self.out = Output(prefix=not options.no_prefix)
        self.first_failure = 0
        self.stop_signal = 0
        self.stop_at = 0.0

    def environment(self, rank):
        env = dict(os.environ)
        nproc = str(self.options.nproc)
        env.update(
            RANK=str(rank.rank),
            LOCAL_RANK=str(rank.rank),
            GROUP_RANK="0",
            ROLE_RANK=str(rank.rank),
            ROLE_NAME="default",
            WORLD_SIZE=nproc,
            LOCAL_WORLD_SIZE=nproc,
            GROUP_WORLD_SIZE="1",
            ROLE_WORLD_SIZE=nproc,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.store_port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCHELASTIC_RUN_ID=f"mooncake-{os.getpid()}",
            TORCHELASTIC_RESTART_COUNT=str(rank.restarts),
            TORCHELASTIC_MAX_RESTARTS=str(self.options.max_restarts),
            MOONCAKE_COORDINATOR=self.coordinator.address,
        )
        env.setdefault("OMP_NUM_THREADS", "1")
        env.setdefault("PYTHONUNBUFFERED", "1")
        return env

    def start(self, rank):
        rank.process = subprocess.Popen(
            [sys.executable, self.options.script, *self.options.args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(rank),
        )
        os.set_blocking(rank.process.stdout.fileno(), False)
        self.selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        pidfd = os.pidfd_open(rank.process.pid)
        self.selector.register(pidfd, selectors.EVENT_READ, (rank, rank.process, pidfd))

    def pump(self, rank, stream):
        try:
            data = stream.read(65536)
        except BlockingIOError:
            return
        if data is None:
            return
        if data == b"":
            self.selector.unregister(stream)
            stream.close()
            if rank.tail:
                self.out.write(rank.rank, rank.tail + b"\n")
                rank.tail = b""
            return
        *whole, rank.tail = re.split(rb"(?<=[\r\n])", rank.tail + data)
        for segment in whole:
            self.out.write(rank.rank, segment)

    def ended(self, rank, process, pidfd):
        self.selector.unregister(pidfd)
        os.close(pidfd)
        # The proof of death goes out before anything else: survivors wait for it.
        self.coordinator.report_exit(rank.rank, process.pid)
        code = process.wait()
        if process.stdout and not process.stdout.closed:
            self.pump(rank, process.stdout)
        shell_code = 128 - code if code < 0 else code
        if code == 0:
            rank.exit_code = 0
            return
        what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self.options.respawn and not self.stop_signal and rank.restarts < self.options.max_restarts:
            rank.restarts += 1
            self.out.say(
                f"rank {rank.rank} (pid {process.pid}) ended with {what}; "
                f"start {rank.restarts} of {self.options.max_restarts} again"
            )
            self.start(rank)
            return
        rank.exit_code = shell_code
        if not self.stop_signal:
            self.out.say(f"rank {rank.rank} (pid {process.pid}) ended with {what}, for good")
            self.first_failure = self.first_failure or shell_code

    def alive(self):
        return [r for r in self.ranks if r.exit_code is None]

    def on_signal(self, signum, _frame):
        self.stop_signal = self.stop_signal or signum
        self.stop_at = self.stop_at or time.monotonic() + STOP_GRACE_S
        for rank in self.alive():
            if rank.process.poll() is None:
                rank.process.send_signal(signum)

    def handle(self, timeout):
        ready = self.selector.select(timeout)
        for key, _ in ready:
            if isinstance(key.data, Rank):
                self.pump(key.data, key.fileobj)
            else:
                self.ended(*key.data)
        return bool(ready)

    def run(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self.on_signal)
        for rank in self.ranks:
            self.start(rank)
        while self.alive():
            self.handle(timeout=0.5)
            if self.stop_signal and time.monotonic() > self.stop_at:
                for rank in self.alive():
                    rank.process.kill()
        drained_at = time.monotonic() + DRAIN_S
        while self.selector.get_map() and time.monotonic() < drained_at and self.handle(timeout=0.05):
            pass
        return 128 + self.stop_signal if self.stop_signal else self.first_failure


def main(argv=None):
    options = parse_args(sys.argv[1:] if argv is None else argv)
    from torch.distributed import TCPStore

    from mooncake import pg

    store = TCPStore(
        "127.0.0.1", options.master_port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
    )
    coordinator = pg.start_coordinator(fresh=True)
    try:
        return Launcher(options, store.port, coordinator).run()
    finally:
        coordinator.stop()


if __name__ == "__main__":
    sys.exit(main())
