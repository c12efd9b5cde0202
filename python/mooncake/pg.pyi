"""Types of mooncake.pg. All ranks are in-group ranks unless a name says global."""

import enum
from typing import Any, Iterator, NamedTuple, Optional, Sequence, overload

import torch
import torch.distributed as dist

__version__: str
MAX_RANKS: int

class MooncakeError(dist.DistBackendError):
    code: str
    status: int

class MooncakeBackendOptions:
    @property
    def active_ranks(self) -> Optional[torch.Tensor]: ...
    @property
    def is_extension(self) -> bool: ...
    @property
    def max_group_size(self) -> int: ...
    @property
    def auto_deactivate_on_failure(self) -> bool: ...
    @property
    def auto_sync_on_failure(self) -> bool: ...
    @property
    def group_key(self) -> Optional[str]: ...
    @overload
    def __init__(
        self,
        active_ranks: torch.Tensor,
        is_extension: bool = False,
        max_group_size: int = -1,
        *,
        auto_deactivate_on_failure: bool = True,
        auto_sync_on_failure: bool = True,
        group_key: Optional[str] = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        max_group_size: int = -1,
        is_extension: bool = False,
        auto_deactivate_on_failure: bool = True,
        auto_sync_on_failure: bool = True,
        *,
        active_ranks: Optional[torch.Tensor] = None,
        group_key: Optional[str] = None,
    ) -> None: ...

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

class EventKind(enum.IntEnum):
    VIEW = 0
    RANK_STATE = 1
    COORDINATOR_LOST = 2
    COORDINATOR_BACK = 3

class ProposeViewUpdateResponse(NamedTuple):
    status: ProposalStatus
    new_epoch: int
    dropped_ranks: list[int]
    reject_reason: str
    code: str

class SyncAfterFailureResponse(NamedTuple):
    status: SyncAfterFailureStatus
    reject_reason: str
    code: str
    epoch: int
    failed_ranks: list[int]
    first_failed_seq: int
    resume_seq: int

class View(NamedTuple):
    epoch: int
    active: tuple[int, ...]
    incarnations: tuple[int, ...]
    start_seq: int
    term: int

class Event(NamedTuple):
    kind: EventKind
    group: str
    epoch: int
    rank: int
    state: RankState

class DDPState:
    group: dist.ProcessGroup
    def __init__(self, group: Optional[dist.ProcessGroup] = None) -> None: ...
    def take_works(self) -> list[dist.Work]: ...

class Coordinator:
    def __init__(self, bind: Optional[str] = None, term: int = 1) -> None: ...
    @property
    def address(self) -> str: ...
    def report_exit(self, rank: int, pid: int) -> None: ...
    def stop(self) -> None: ...
    def __enter__(self) -> Coordinator: ...
    def __exit__(self, *_: Any) -> None: ...

def createMooncakeBackend(
    dist_backend_opts: Any, backend_options: Optional[MooncakeBackendOptions] = None
) -> dist.ProcessGroup: ...
def createMooncakeCpuBackend(
    dist_backend_opts: Any, backend_options: Optional[MooncakeBackendOptions] = None
) -> dist.ProcessGroup: ...
def set_host_ip(ip: str) -> None: ...
def set_device_filter(devices: Sequence[str]) -> None: ...
def set_transfer_engine(engine: Any) -> None: ...
def set_collective_timeout_us(us: int) -> None: ...
def set_p2p_timeout_us(us: int) -> None: ...
def set_fault_reconciliation_window_us(us: int) -> None: ...
def get_active_ranks(group: Optional[dist.ProcessGroup] = None) -> torch.Tensor: ...
def get_peer_state(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> list[bool]: ...
def get_num_synced_ranks(group: Optional[dist.ProcessGroup] = None) -> int: ...
def update_ranks(
    group: Optional[dist.ProcessGroup],
    activate: Sequence[int] = (),
    deactivate: Sequence[int] = (),
    *,
    expected_epoch: Optional[int] = None,
    wait_us: int = 0,
) -> ProposeViewUpdateResponse: ...
def activate_ranks(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> ProposeViewUpdateResponse: ...
def recover_ranks(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> ProposeViewUpdateResponse: ...
def deactivate_ranks(group: Optional[dist.ProcessGroup], ranks: Sequence[int]) -> ProposeViewUpdateResponse: ...
def join_group(group: Optional[dist.ProcessGroup] = None, timeout_us: int = 300_000_000) -> None: ...
def extend_group_size_to(group: dist.ProcessGroup, size: int) -> None: ...
def get_current_epoch(group: Optional[dist.ProcessGroup] = None) -> int: ...
def get_view(group: Optional[dist.ProcessGroup] = None) -> View: ...
def safe_point(group: Optional[dist.ProcessGroup] = None) -> View: ...
def sync_after_failure(
    group: Optional[dist.ProcessGroup] = None, timeout_us: int = 300_000_000
) -> SyncAfterFailureResponse: ...
def get_failed_ranks_hint(work: dist.Work) -> Optional[torch.Tensor]: ...
def get_local_success(work: dist.Work) -> bool: ...
def ddp_hook(state: DDPState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]: ...
def status() -> dict[str, Any]: ...
def get_rank_states() -> list[RankState]: ...
def events(timeout: Optional[float] = None) -> Iterator[Event]: ...
def start_coordinator(bind: Optional[str] = None, term: int = 0, fresh: bool = False) -> Coordinator: ...
