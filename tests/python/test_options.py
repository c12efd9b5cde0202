"""MooncakeBackendOptions, names and enums: no processes."""

import ast
import inspect
import pathlib

import pytest
import torch
import torch.distributed as dist

from mooncake import pg

NAMES = """
createMooncakeBackend createMooncakeCpuBackend set_host_ip set_device_filter set_transfer_engine
set_collective_timeout_us set_p2p_timeout_us set_fault_reconciliation_window_us get_active_ranks
get_num_synced_ranks get_peer_state activate_ranks recover_ranks deactivate_ranks join_group extend_group_size_to
get_failed_ranks_hint get_local_success get_current_epoch sync_after_failure ProposeViewUpdateResponse
ProposalStatus ViewUpdateStatus SyncAfterFailureResponse SyncAfterFailureStatus MooncakeBackendOptions update_ranks
safe_point get_view get_rank_states events status ddp_hook DDPState start_coordinator MooncakeError
""".split()


def test_every_name_exists():
    assert [name for name in NAMES if not hasattr(pg, name)] == []
    assert pg.recover_ranks is pg.activate_ranks
    assert [
        int(s)
        for s in (pg.ProposalStatus.Rejected, pg.ProposalStatus.Applied, pg.ProposalStatus.AppliedWithDroppedRanks)
    ] == [0, 1, 2]
    s = pg.SyncAfterFailureStatus
    assert [int(v) for v in (s.Reconciled, s.NoPending, s.Rejected)] == [0, 1, 2]
    assert "mooncake-cpu" in dist.Backend.backend_list and "mooncake" in dist.Backend.backend_list


def test_stub_file_matches():
    stub = ast.parse(pathlib.Path(pg.__file__).with_suffix(".pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    declared |= {t.id for node in stub.body if isinstance(node, ast.Assign) for t in node.targets}
    assert sorted(name for name in declared if not hasattr(pg, name)) == []
    assert sorted(name for name in pg.__all__ if name not in declared and name != "MAX_RANKS") == []
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            want = [a.arg for a in node.args.args + node.args.kwonlyargs]
            assert list(inspect.signature(getattr(pg, node.name)).parameters) == want, node.name


def test_overloads():
    mask = torch.ones(4, dtype=torch.int32)
    make = pg.MooncakeBackendOptions

    def fields(o):
        return (
            o.active_ranks is mask,
            o.is_extension,
            o.max_group_size,
            o.auto_deactivate_on_failure,
            o.auto_sync_on_failure,
        )

    assert fields(make(mask)) == (True, False, -1, True, True)
    assert fields(make(mask, True)) == (True, True, -1, True, True)
    assert fields(make(mask, True, 4)) == (True, True, 4, True, True)
    assert fields(make(8)) == (False, False, 8, True, True)
    assert fields(make(8, True)) == (False, True, 8, True, True)
    assert fields(make(8, False, False, False)) == (False, False, 8, False, False)
    assert fields(
        make(max_group_size=8, is_extension=True, auto_deactivate_on_failure=True, auto_sync_on_failure=False)
    ) == (False, True, 8, True, False)
    assert fields(make(active_ranks=mask, max_group_size=4, group_key="k")) == (True, False, 4, True, True)
    one = torch.ones(1, dtype=torch.int32)
    assert make(one).active_ranks is one and make(one).max_group_size == -1


@pytest.mark.parametrize(
    "args, kwargs, kind, words",
    [
        ((4, False, False, True), {}, ValueError, "auto_deactivate_on_failure=True"),
        ((1025,), {}, ValueError, "1025"),
        ((0,), {}, ValueError, "0"),
        ((True,), {}, TypeError, "max_group_size"),
        ((4, 1), {}, TypeError, "is_extension"),
        ((), {"max_size": 3}, TypeError, "max_size"),
        ((4,), {"max_group_size": 4}, TypeError, "twice"),
        ((torch.ones(2),), {}, ValueError, "int32"),
        ((torch.ones(2, dtype=torch.int32), False, 4), {}, ValueError, "2 elements"),
        ((torch.ones(8, dtype=torch.int32)[::2],), {}, ValueError, "contiguous"),
        ((), {"group_key": ""}, TypeError, "group_key"),
        ((4, False, True, True, 1), {}, TypeError, "at most 4"),
    ],
)
def test_bad_options(args, kwargs, kind, words):
    with pytest.raises(kind, match=words):
        pg.MooncakeBackendOptions(*args, **kwargs)


def test_options_are_immutable():
    options = pg.MooncakeBackendOptions(4)
    with pytest.raises(AttributeError):
        options.max_group_size = 5


def test_settings_check_their_arguments():
    pg.set_transfer_engine(None)
    with pytest.raises(pg.MooncakeError) as refused:
        pg.set_transfer_engine(object())
    assert refused.value.code == "NOT_SUPPORTED" and "MOONCAKE_TRANSPORTS" in str(refused.value)
    with pytest.raises(TypeError):
        pg.set_device_filter("mlx5_0")
    pg.set_device_filter(["mlx5_0"])
    pg.set_device_filter([])
    for setter in (pg.set_collective_timeout_us, pg.set_p2p_timeout_us, pg.set_fault_reconciliation_window_us):
        with pytest.raises(ValueError):
            setter(0)
    with pytest.warns(DeprecationWarning):
        pg.extend_group_size_to(None, 5)
    assert pg.status() == {} and pg.get_rank_states() == []
    assert list(pg.events(timeout=0.01)) == []
    assert issubclass(pg.MooncakeError, dist.DistBackendError) and issubclass(pg.MooncakeError, RuntimeError)


def test_not_a_mooncake_group():
    with pytest.raises(pg.MooncakeError) as error:
        pg.get_active_ranks(dist.ProcessGroup(dist.HashStore(), 0, 1))
    assert error.value.code == "INVALID_ARGUMENT" and "mooncake-cpu" in str(error.value)


@pytest.mark.parametrize("timeout, error", [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), ([], TypeError)])
def test_events_checks_its_timeout_at_once(timeout, error):
    with pytest.raises(error, match="timeout must be"):
        pg.events(timeout)
