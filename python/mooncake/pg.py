"""mooncake.pg: fault-tolerant process groups for torch.distributed.

Importing this module registers the backends "mooncake-cpu" (CPU tensors) and "mooncake" (CUDA tensors). All ranks in
the calls below are in-group ranks. This file checks arguments and names results; libmooncake_pg decides.
"""

from __future__ import annotations

import atexit
import enum
import json
import os
import warnings
import weakref
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from ._pg import _C
from ._pg.options import MAX_RANKS, MooncakeBackendOptions, MooncakeError, default_options
from ._pg.options import error as _error
from ._pg.options import whole as _whole

__version__ = _C.version()

# ---- Creation ----


def createMooncakeCpuBackend(
    dist_backend_opts: Any, backend_options: Optional[MooncakeBackendOptions] = None
) -> dist.ProcessGroup:
    """The creator behind "mooncake-cpu". Returns when the group is Ready; a joiner's when attached and isolated."""
    if backend_options is None:
        backend_options = default_options()
    if not isinstance(backend_options, MooncakeBackendOptions):
        raise TypeError(f"pg_options must be mooncake.pg.MooncakeBackendOptions, got {type(backend_options).__name__}")
    size = dist_backend_opts.group_size
    if not 0 <= dist_backend_opts.group_rank < size:
        raise _error(
            "INVALID_ARGUMENT",
            f"rank {dist_backend_opts.group_rank} is not within the group of {size}: use 0 to {size - 1}",
        )
    ranks = list(dist_backend_opts.global_ranks_in_group)
    if len(set(ranks)) != len(ranks):
        raise _error("INVALID_ARGUMENT", f"the group's rank list {ranks} names a rank twice: give each rank once")
    capacity = size if backend_options.max_group_size == -1 else backend_options.max_group_size
    if not size <= capacity <= MAX_RANKS:
        raise _error(
            "INVALID_ARGUMENT", f"max_group_size {capacity} does not fit a group of {size}: use {size} to {MAX_RANKS}"
        )
    if backend_options.is_extension and os.environ.get("TORCH_DIST_INIT_BARRIER") == "1":
        raise _error(
            "INVALID_STATE",
            "TORCH_DIST_INIT_BARRIER=1 would block a joiner for ever: unset it where is_extension=True is used",
        )
    mask = backend_options.active_ranks
    if mask is None:
        mask = torch.zeros(capacity, dtype=torch.int32)
    if mask.device.type != "cpu":
        raise _error(
            "NOT_SUPPORTED",
            f'active_ranks is on {mask.device}, but "mooncake-cpu" needs a CPU tensor: create it with device="cpu"',
        )
    if mask.numel() < capacity:
        raise _error(
            "INVALID_ARGUMENT",
            f"active_ranks has {mask.numel()} elements for a group of up to {capacity}: it needs one per rank",
        )
    options = _C.Options("mooncake", dist_backend_opts.timeout.total_seconds())
    options.is_extension = backend_options.is_extension
    options.auto_deactivate_on_failure = backend_options.auto_deactivate_on_failure
    options.auto_sync_on_failure = backend_options.auto_sync_on_failure
    options.max_group_size = capacity
    options.group_key = backend_options.group_key or ""
    options.active_ranks = mask
    return _C.create(dist_backend_opts, options)


def createMooncakeBackend(
    dist_backend_opts: Any, backend_options: Optional[MooncakeBackendOptions] = None
) -> dist.ProcessGroup:
    """The creator behind "mooncake" (CUDA tensors)."""
    found = (
        "this torch has no CUDA" if not torch.cuda.is_available() else "this build of mooncake has no CUDA data plane"
    )
    raise _error(
        "NOT_SUPPORTED",
        f'backend "mooncake" serves CUDA tensors, and {found}: use backend "mooncake-cpu" with CPU tensors instead',
    )


dist.Backend.register_backend("mooncake-cpu", createMooncakeCpuBackend, extended_api=True, devices=["cpu"])
dist.Backend.register_backend("mooncake", createMooncakeBackend, extended_api=True, devices=["cuda"])


# ---- Settings, before the first group ----

_device_filter: list[str] = []


def set_host_ip(ip: str) -> None:
    """The address at which other ranks reach this process; needed on several hosts, before init_process_group."""
    if not isinstance(ip, str) or not ip:
        raise TypeError(f"set_host_ip needs an address like '10.0.0.7', got {ip!r}")
    _C.set_host_ip(ip)


def set_device_filter(devices: Sequence[str]) -> None:
    """Names of the network devices that may be used, before init_process_group. The shm and tcp transports use none."""
    if isinstance(devices, str) or not all(isinstance(name, str) for name in devices):
        raise TypeError(f"set_device_filter needs a list of device names, got {devices!r}")
    _device_filter[:] = devices


def set_transfer_engine(engine: Any) -> None:
    """None is accepted; a foreign engine is refused."""
    if engine is not None:
        raise _error(
            "NOT_SUPPORTED",
            f"a foreign transfer engine ({type(engine).__name__}) cannot be used: this library has its own transports, "
            "choose them with MOONCAKE_TRANSPORTS and call set_transfer_engine(None)",
        )


def _positive(name: str, us: Any) -> int:
    if _whole(name, us) <= 0:
        raise ValueError(f"{name} must be above 0 microseconds, got {us}")
    return us


def set_collective_timeout_us(us: int) -> None:
    """Wait after which a collective probes the ranks it waits for. Not a hard limit: a live rank is waited for."""
    _C.set_collective_timeout_us(_positive("collective timeout", us))


def set_p2p_timeout_us(us: int) -> None:
    """The same for send and receive."""
    _C.set_p2p_timeout_us(_positive("p2p timeout", us))


def set_fault_reconciliation_window_us(us: int) -> None:
    """Longest judgement of a link failure, for a coordinator hosted by this process. Before init_process_group."""
    _C.set_reconcile_us(_positive("reconciliation window", us))


# ---- Membership ----


class ProposalStatus(enum.IntEnum):
    Rejected = 0
    Applied = 1
    AppliedWithDroppedRanks = 2


ViewUpdateStatus = ProposalStatus


class SyncAfterFailureStatus(enum.IntEnum):
    Reconciled = 0
    NoPending = 1
    Rejected = 2


class RankState(enum.IntEnum):
    OFFLINE = 0
    SYNCED = 1
    HEALTHY = 2


class ProposeViewUpdateResponse(NamedTuple):
    status: ProposalStatus
    new_epoch: int
    dropped_ranks: list[int]
    reject_reason: str
    code: str  # name of the status that reject_reason explains, "OK" if applied


class SyncAfterFailureResponse(NamedTuple):
    status: SyncAfterFailureStatus
    reject_reason: str
    code: str
    epoch: int
    failed_ranks: list[int]  # union over the survivors
    first_failed_seq: int  # the first operation number that any survivor saw fail
    resume_seq: int  # numbering goes on here


class View(NamedTuple):
    """A group's active set. incarnations[i] belongs to active[i] and changes when another process takes the rank."""

    epoch: int
    active: tuple[int, ...]
    incarnations: tuple[int, ...]
    start_seq: int  # number of the next operation
    term: int


# The call itself was wrong or the process cannot go on: these raise, everything else is a Rejected response.
_MISUSE = {
    "INVALID_ARGUMENT",
    "INVALID_STATE",
    "NOT_SUPPORTED",
    "FORKED",
    "NO_MEMORY",
    "SYSTEM",
    "SHUTTING_DOWN",
    "INTERNAL",
}


def _group(group: Optional[dist.ProcessGroup]) -> dist.ProcessGroup:
    return dist.distributed_c10d._get_default_group() if group is None else group


def _ranks(name: str, ranks: Sequence[int]) -> list[int]:
    if isinstance(ranks, (int, str)):
        raise TypeError(f"{name} must be a list of in-group ranks, got {ranks!r}")
    return [_whole(name, int(rank) if isinstance(rank, torch.Tensor) else rank) for rank in ranks]


def get_active_ranks(group: Optional[dist.ProcessGroup] = None) -> torch.Tensor:
    """The int32 mask itself, one 0 or 1 per rank; follows every change. Writing to it changes nothing else."""
    return _C.active_ranks(_group(group))


def get_peer_state(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> list[bool]:
    """Per rank: healthy, registered, and active or waiting in join_group. Local, no message."""
    return _C.peer_state(_group(group), _ranks("ranks", ranks))


def get_num_synced_ranks(group: Optional[dist.ProcessGroup] = None) -> int:
    """How many ranks get_peer_state is true for."""
    group = _group(group)
    return sum(_C.peer_state(group, list(range(_C.capacity(group)))))


def update_ranks(
    group: Optional[dist.ProcessGroup],
    activate: Sequence[int] = (),
    deactivate: Sequence[int] = (),
    *,
    expected_epoch: Optional[int] = None,
    wait_us: int = 0,
) -> ProposeViewUpdateResponse:
    """Adds and removes ranks in one change. One rank's call suffices. A rejection does not raise.

    expected_epoch: apply only at this epoch. wait_us: how long to wait for ranks to be healthy and in join_group.
    """
    answered, result, code, epoch, dropped, text = _C.update_ranks(
        _group(group),
        _ranks("activate", activate),
        _ranks("deactivate", deactivate),
        expected_epoch,
        _whole("wait_us", wait_us),
    )
    status = ProposalStatus(result)
    if not answered and code in _MISUSE:
        raise _error(code, text)
    reason = text if status == ProposalStatus.Rejected else ""
    return ProposeViewUpdateResponse(status, epoch, list(dropped), reason, code)


def activate_ranks(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    return update_ranks(group, activate=ranks)


recover_ranks = activate_ranks


def deactivate_ranks(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> ProposeViewUpdateResponse:
    return update_ranks(group, deactivate=ranks)


def join_group(group: Optional[dist.ProcessGroup] = None, timeout_us: int = 300_000_000) -> None:
    """A joiner or rejoiner: waits until a view with this rank starts."""
    _C.join_group(_group(group), _positive("timeout", timeout_us))


def extend_group_size_to(group: dist.ProcessGroup, size: int) -> None:
    """Deprecated, no effect: a group's capacity is max_group_size of its options."""
    warnings.warn(
        "extend_group_size_to has no effect: set max_group_size in MooncakeBackendOptions",
        DeprecationWarning,
        stacklevel=2,
    )


def get_current_epoch(group: Optional[dist.ProcessGroup] = None) -> int:
    return _C.view(_group(group))[1]


def _view(term: int, epoch: int, active: tuple[int, ...], incarnations: tuple[int, ...], start_seq: int) -> View:
    return View(epoch, active, incarnations, start_seq, term)


def get_view(group: Optional[dist.ProcessGroup] = None) -> View:
    """The committed view, as get_active_ranks shows it."""
    return _view(*_C.view(_group(group)))


def safe_point(group: Optional[dist.ProcessGroup] = None) -> View:
    """Step boundary, called at the same places by every rank: returns the view that the next operation runs in."""
    return _view(*_C.safe_point(_group(group)))


def sync_after_failure(
    group: Optional[dist.ProcessGroup] = None, timeout_us: int = 300_000_000
) -> SyncAfterFailureResponse:
    """The same answer at every survivor. Call it on a group that holds every rank the step talks to."""
    code, text, _term, epoch, failed, first, resume = _C.sync_after_failure(
        _group(group), _positive("timeout", timeout_us)
    )
    if code in _MISUSE:
        raise _error(code, text)
    statuses = {"OK": SyncAfterFailureStatus.Reconciled, "NO_PENDING": SyncAfterFailureStatus.NoPending}
    status = statuses.get(code, SyncAfterFailureStatus.Rejected)
    reason = text if status == SyncAfterFailureStatus.Rejected else ""
    if code == "NO_PENDING":
        epoch = get_current_epoch(group)
    return SyncAfterFailureResponse(status, reason, code, epoch, list(failed), first, resume)


# ---- Works ----


def get_failed_ranks_hint(work: dist.Work) -> Optional[torch.Tensor]:
    """int32 CPU tensor of max_group_size: 1 for each rank that failed in it. Waits. None for a foreign Work."""
    return _C.failed_ranks_hint(work)


def get_local_success(work: dist.Work) -> bool:
    """True if no rank failed in this operation as seen from here. Waits for it."""
    success = _C.local_success(work)
    return work.is_success() if success is None else success


class DDPState:
    """State for DistributedDataParallel.register_comm_hook(state, ddp_hook)."""

    def __init__(self, group: Optional[dist.ProcessGroup] = None) -> None:
        self.group = _group(group)
        self._works: list[dist.Work] = []

    def take_works(self) -> list[dist.Work]:
        """The Works since the last call, one per gradient bucket."""
        works, self._works = self._works, []
        return works


def ddp_hook(state, bucket):  # torch compares annotations with classes, so there are none: types are in pg.pyi
    """Averages gradients over the ranks that contributed, not over a size that counts the places of lost ranks."""
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=state.group, async_op=True)
    state._works.append(work)
    return work.get_future().then(lambda future: future.value()[0])


# ---- The process ----


def status() -> dict[str, Any]:
    """Rank, incarnation, coordinator, links, views and outstanding operations of this process; {} without a group."""
    return json.loads(_C.status_json())


def get_rank_states() -> list[RankState]:
    """State of the global ranks, as last told by the coordinator. Ranks beyond the list's end never attached."""
    states = [RankState(state) for state in _C.rank_states()]
    size = dist.get_world_size() if states and dist.is_initialized() else 0
    while len(states) > size and states[-1] == RankState.OFFLINE:
        states.pop()
    return states


class EventKind(enum.IntEnum):
    VIEW = 0
    RANK_STATE = 1
    COORDINATOR_LOST = 2
    COORDINATOR_BACK = 3


class Event(NamedTuple):
    kind: EventKind
    group: str  # torch's group name, VIEW only
    epoch: int  # VIEW only
    rank: int  # global rank, RANK_STATE only
    state: RankState  # RANK_STATE only


def events(timeout: Optional[float] = None) -> Iterator[Event]:
    """View and state changes from now on. Ends after timeout quiet seconds (None: no limit), or with the last group."""
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r}")
        if not 0 <= timeout < float("inf"):
            raise ValueError(f"timeout must be a finite number of seconds >= 0, or None for no limit, got {timeout}")
    queue = _C.subscribe()

    def follow() -> Iterator[Event]:
        while True:
            slice_s = 0.5 if timeout is None else timeout
            item = queue.next(slice_s)
            if item is not None:
                kind, group, epoch, rank, state = item
                yield Event(EventKind(kind), group, epoch, rank, RankState(state))
            elif timeout is not None or queue.closed():
                return

    return follow()


class Coordinator:
    """A coordinator in this process, for launchers: it outlives any rank. Stop it last."""

    def __init__(self, bind: Optional[str] = None, term: int = 0, fresh: bool = False) -> None:
        self._impl = _C.Coordinator(bind, _whole("term", term), bool(fresh))
        _coordinators.add(self)

    @property
    def address(self) -> str:
        """For MOONCAKE_COORDINATOR in the ranks' environment."""
        return self._impl.address

    def report_exit(self, rank: int, pid: int) -> None:
        """Process pid, which ran this global rank, was seen to exit: a proof of death."""
        self._impl.report_exit(rank, pid)

    def stop(self) -> None:
        self._impl.stop()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


_coordinators: weakref.WeakSet[Coordinator] = weakref.WeakSet()


def start_coordinator(bind: Optional[str] = None, term: int = 0, fresh: bool = False) -> Coordinator:
    """bind: "127.0.0.1:0" by default, or "unix:/path". term: above that of any earlier coordinator of this job; 0:
    milliseconds since 1970. fresh: this job had none before, so newcomers are taken at once."""
    return Coordinator(bind, term, fresh)


def _at_exit() -> None:
    _C.shutdown_everything()
    for coordinator in list(_coordinators):
        coordinator.stop()


atexit.register(_at_exit)

# fmt: off
__all__ = [
    "Coordinator", "DDPState", "Event", "EventKind", "MAX_RANKS", "MooncakeBackendOptions", "MooncakeError",
    "ProposalStatus", "ProposeViewUpdateResponse", "RankState", "SyncAfterFailureResponse",
    "SyncAfterFailureStatus", "View", "ViewUpdateStatus", "activate_ranks", "createMooncakeBackend",
    "createMooncakeCpuBackend", "ddp_hook", "deactivate_ranks", "events", "extend_group_size_to",
    "get_active_ranks", "get_current_epoch", "get_failed_ranks_hint", "get_local_success", "get_num_synced_ranks",
    "get_peer_state", "get_rank_states", "get_view", "join_group", "recover_ranks", "safe_point",
    "set_collective_timeout_us", "set_device_filter", "set_fault_reconciliation_window_us", "set_host_ip",
    "set_p2p_timeout_us", "set_transfer_engine", "start_coordinator", "status", "sync_after_failure",
    "update_ranks",
]
