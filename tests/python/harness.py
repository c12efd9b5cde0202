"""Runs one function as N ranks in processes forked from a server that has imported torch once. Every wait is
bounded; processes are ended by pid. The Store lives in the test process, so that any rank may die. Never sleeps
to synchronise."""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing as mp
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import wait as wait_for
from typing import Any, Callable

import torch
import torch.distributed as dist

from mooncake import pg

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "numpy", "mooncake.pg"])
HOST = "127.0.0.1"


class Rank:
    """What a rank's function gets."""

    def __init__(self, rank: int, world: int, port: int, timeout_s: float) -> None:
        self.rank = rank
        self.world = world
        self.timeout = datetime.timedelta(seconds=timeout_s)
        self.port = port
        self.store = self.new_store()

    def new_store(self) -> dist.Store:
        return dist.TCPStore(HOST, self.port, is_master=False, wait_for_workers=False, timeout=self.timeout)

    def init(
        self, options: Any = None, backend: str = "mooncake-cpu", rank: int | None = None, world: int | None = None
    ) -> None:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("job", self.store),
            rank=self.rank if rank is None else rank,
            world_size=self.world if world is None else world,
            timeout=self.timeout,
            pg_options=options,
        )

    def meet(self, name: str, count: int | None = None) -> None:
        """A barrier through the Store, which no process group takes part in."""
        count = self.world if count is None else count
        if self.store.add(f"meet/{name}", 1) == count:
            self.store.set(f"met/{name}", "1")
        self.store.wait([f"met/{name}"], self.timeout)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    """Polls, because the library offers this state only to be asked for."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def _child(
    connection: Any,
    function: Callable[..., Any],
    rank: int,
    world: int,
    port: int,
    timeout_s: float,
    env: dict,
    kwargs: dict,
) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        result = function(Rank(rank, world, port, timeout_s), **kwargs)
        if dist.is_initialized():
            dist.destroy_process_group()
        connection.send(("ok", result))
    except BaseException:  # the parent prints it
        connection.send(("error", traceback.format_exc()))
    sys.stdout.flush()
    sys.stderr.flush()
    connection.close()
    pg._at_exit()  # multiprocessing ends its children without running atexit


class Proc:
    def __init__(self, process: Any, connection: Any, rank: int) -> None:
        self.process, self.connection, self.rank = process, connection, rank
        self.outcome: tuple[str, Any] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid


class Job:
    def __init__(self, timeout_s: float = 30.0, env: dict[str, str] | None = None) -> None:
        self.timeout_s = timeout_s
        self.env = env or {}
        self.server = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self.procs: list[Proc] = []
        self.failed = False

    def start(self, function: Callable[..., Any], rank: int, world: int, **kwargs: Any) -> Proc:
        ours, theirs = _context.Pipe(duplex=False)
        args = (theirs, function, rank, world, self.server.port, self.timeout_s, self.env, kwargs)
        process = _context.Process(target=_child, args=args, daemon=True)
        process.start()
        theirs.close()
        proc = Proc(process, ours, rank)
        self.procs.append(proc)
        return proc

    def wait_key(self, key: str, seconds: float = 60.0) -> None:
        """Until a rank has set this key in the Store; a rank that fails meanwhile fails the test at once."""
        end = time.monotonic() + seconds
        while not self.server.check([key]):
            ended = [p for p in self.procs if p.outcome is None and p.connection.poll(0)]
            for p in ended:
                try:
                    p.outcome = p.connection.recv()
                except EOFError:
                    p.outcome = ("died", "before it sent a result")
            failed = [p for p in self.procs if p.outcome is not None and p.outcome[0] == "error"]
            if failed or time.monotonic() > end:
                self.finish(self.procs, may_die=tuple(p.rank for p in self.procs), seconds=3.0)
                raise AssertionError(f"key {key!r} was not set within {seconds} s")
            time.sleep(0.01)

    def finish(self, procs: list[Proc], may_die: tuple[int, ...] = (), seconds: float = 60.0) -> list[Any]:
        """Results by position. A rank that raised, died or hangs fails the test, with everybody's story."""
        end = time.monotonic() + seconds
        while any(p.outcome is None for p in procs):
            open_ = {p.connection: p for p in procs if p.outcome is None}
            ready = wait_for(list(open_), max(0.0, end - time.monotonic()))
            for connection in ready:
                try:
                    open_[connection].outcome = connection.recv()
                except EOFError:
                    open_[connection].process.join(5)
                    open_[connection].outcome = ("died", f"exit code {open_[connection].process.exitcode}")
            if not ready:
                break
        bad = [
            p
            for p in procs
            if p.outcome is None or p.outcome[0] == "error" or (p.outcome[0] == "died" and p.rank not in may_die)
        ]
        for p in bad:
            if p.outcome is None:
                os.kill(p.pid, signal.SIGUSR1)  # prints its stacks
        if bad:
            self.failed = True
            time.sleep(0.3)  # for the stacks to be printed
            raise AssertionError(
                "\n".join(
                    (
                        f"--- rank {p.rank} pid {p.pid}: {p.outcome or f'no result in {seconds} s'}"
                        if p.outcome is None or p.outcome[0] != "error"
                        else f"--- rank {p.rank}: {p.outcome[1]}"
                    )
                    for p in bad
                )
            )
        return [p.outcome[1] if p.outcome and p.outcome[0] == "ok" else None for p in procs]

    def run(
        self,
        function: Callable[..., Any],
        world: int,
        may_die: tuple[int, ...] = (),
        seconds: float = 60.0,
        **kwargs: Any,
    ) -> list[Any]:
        return self.finish([self.start(function, r, world, **kwargs) for r in range(world)], may_die, seconds)

    def close(self) -> None:
        for p in self.procs:
            p.process.join(0.1 if self.failed else 8)
            if p.process.is_alive():
                p.process.kill()
                p.process.join(5)
            p.connection.close()


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")
