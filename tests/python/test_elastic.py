"""Ranks that die, leave, are replaced and join; automatic and manual groups."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from harness import until
from mooncake import pg

MANUAL = dict(auto_deactivate_on_failure=False, auto_sync_on_failure=False)


def total(value=1.0, group=None):
    x = torch.full((8,), float(value))
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert x.unique().numel() == 1
    return x[0].item(), work


def rank_killed(r, victims, waiting):
    r.init()
    assert total()[0] == r.world
    survivors = [k for k in range(r.world) if k not in victims]
    r.meet("before")
    if r.rank in victims:
        if waiting:
            time.sleep(0.2)  # the others wait in the operation by then; too early only makes the test easier
        r.die()
    value, work = total()
    hint = pg.get_failed_ranks_hint(work).tolist()
    mask = pg.get_active_ranks().tolist()
    assert mask == [int(k in survivors) for k in range(r.world)], "the new view must be there when the Work completes"
    assert hint == [int(k in victims) for k in range(r.world)]
    assert pg.get_local_success(work) is False and value == len(survivors)
    r.meet("hinted", len(survivors))  # a sync ends what the others have outstanding, before they see their hint
    sync = pg.sync_after_failure()
    assert sync.status == pg.SyncAfterFailureStatus.Reconciled and sync.failed_ranks == sorted(victims), sync
    value, work = total(r.rank + 1)
    assert value == sum(k + 1 for k in survivors) and pg.get_local_success(work)
    assert dist.get_world_size() == max(survivors) + 1
    view = pg.get_view()
    r.meet("after", len(survivors))
    return sync.epoch, sync.first_failed_seq, sync.resume_seq, view


@pytest.mark.parametrize("victims, waiting", [((1,), False), ((3,), True), ((1, 2), True)])
def test_killed_rank(job, victims, waiting):
    results = job.run(rank_killed, 4, may_die=victims, victims=victims, waiting=waiting)
    left = [x for i, x in enumerate(results) if i not in victims]
    assert len(set(left)) == 1, left


def rank_killed_zero(r, address):
    os.environ["MOONCAKE_COORDINATOR"] = address
    return rank_killed(r, (0,), True)


def test_killed_rank_zero(job):
    with pg.start_coordinator(fresh=True) as coordinator:
        results = job.run(rank_killed_zero, 3, may_die=(0,), address=coordinator.address)
        assert len(set(results[1:])) == 1


def replaced(r, size, victim, options):
    """Common to members and replacement once the replacement runs."""
    if options.get("joiner"):
        r.init(pg.MooncakeBackendOptions(size, True, options["auto"], options["auto"]))
        assert total(7)[0] == 7, "isolated: only the own value"
        assert dist.get_world_size() == size
        pg.join_group()
    else:
        until(lambda: pg.get_peer_state(None, [victim])[0], "the replacement is ready")
        answer = pg.recover_ranks(dist.group.WORLD, [victim])
        assert answer.status == pg.ProposalStatus.Applied, answer
        again = pg.activate_ranks(dist.group.WORLD, [victim])
        assert again.status == pg.ProposalStatus.Applied and again.new_epoch == pg.get_current_epoch()
    view = pg.safe_point()
    assert view.active == tuple(range(size))
    value, work = total(10**r.rank)
    assert value == float("1" * size) and pg.get_local_success(work)
    r.meet("replaced", size)
    return view


def rank_replacement(r, victim, auto):
    r.init(pg.MooncakeBackendOptions(r.world, False, auto, auto))
    total()
    r.meet("before")
    if r.rank == victim:
        r.die()
    value, work = total()
    assert (
        pg.get_failed_ranks_hint(work).tolist() == [int(k == victim) for k in range(r.world)] and value == r.world - 1
    )
    if not auto:
        assert pg.get_active_ranks().tolist() == [1] * r.world, "a manual group changes only by proposal"
    r.meet("hinted", r.world - 1)
    if auto:
        pg.sync_after_failure()
    else:
        until(lambda: not pg.get_peer_state(None, [victim])[0], "the dead rank is known to be dead")
        answer = pg.deactivate_ranks(dist.group.WORLD, [victim])
        assert answer.status == pg.ProposalStatus.Applied, answer
        assert pg.get_active_ranks().tolist() == [int(k != victim) for k in range(r.world)]
        r.meet("deactivated", r.world - 1)
        pg.sync_after_failure()
    assert total()[0] == r.world - 1
    if r.rank == (0 if victim != 0 else 1):
        r.store.set("gone", "1")
    return replaced(r, r.world, victim, {})


def rank_replacing(r, auto):
    return replaced(r, r.world, r.rank, {"joiner": True, "auto": auto})


@pytest.mark.parametrize("auto", [True, False])
def test_replacement(job, auto):
    procs = [job.start(rank_replacement, i, 3, victim=1, auto=auto) for i in range(3)]
    job.wait_key("gone")
    procs.append(job.start(rank_replacing, 1, 3, auto=auto))
    views = job.finish(procs, may_die=(1,))
    assert len({v for v in (views[0], views[2], views[3])}) == 1, views


def rank_grow(r, size):
    joiner = r.rank >= 2
    if joiner:
        r.store.wait(["up"], r.timeout)
        r.init(pg.MooncakeBackendOptions(size, True), world=3)
        assert dist.get_world_size() == 3 and total(5)[0] == 5
        out = [torch.zeros(1) for _ in range(3)]
        dist.all_gather(out, torch.ones(1))
        assert [o.item() for o in out] == [0, 0, 1]
        pg.join_group()
    else:
        r.init(pg.MooncakeBackendOptions(size), world=2)
        assert dist.get_world_size() == 2 and pg.get_active_ranks().tolist() == [1, 1, 0, 0]
        assert total()[0] == 2
        r.meet("two", 2)
        r.store.set("up", "1")
        until(lambda: pg.get_peer_state(None, [2])[0], "the joiner is ready")
        assert pg.activate_ranks(None, [2]).status == pg.ProposalStatus.Applied
    pg.safe_point()
    assert dist.get_world_size() == 3 and total()[0] == 3
    assert pg.get_active_ranks().tolist() == [1, 1, 1, 0]
    if r.rank == 0:
        dist.send(torch.arange(1024, dtype=torch.int32), 2)
    if r.rank == 2:
        x = torch.zeros(1024, dtype=torch.int32)
        dist.recv(x, 0)
        assert x[-1] == 1023
    r.meet("three", 3)


def test_growth(job):
    job.run(rank_grow, 3, size=4)


def rank_leave(r):
    r.init()
    total()
    r.meet("in")
    if r.rank == 2:
        answer = pg.deactivate_ranks(None, [2])
        assert answer.status == pg.ProposalStatus.Applied, answer
        dist.destroy_process_group()
        r.store.set("left", "1")
        return
    r.store.wait(["left"], r.timeout)
    for i in range(20):
        value, work = total(1 << r.rank)
        assert value == 3 and pg.get_failed_ranks_hint(work).tolist() == [0, 0, 0]
    assert pg.get_active_ranks().tolist() == [1, 1, 0] and dist.get_world_size() == 2
    r.meet("checked", 2)


def test_planned_leave(job):
    job.run(rank_leave, 3)


def rank_manual_idle(r):
    r.init(pg.MooncakeBackendOptions(r.world, False, False, False))
    total()
    r.meet("up")
    if r.rank == 2:
        r.die()
    until(lambda: pg.get_rank_states()[2] == pg.RankState.OFFLINE, "the death is known")
    assert pg.get_active_ranks().tolist() == [1, 1, 1] and pg.get_current_epoch() == pg.get_view().epoch
    value, work = total()
    assert value == 2 and pg.get_failed_ranks_hint(work).tolist() == [0, 0, 1]
    r.meet("hinted", 2)
    sync = pg.sync_after_failure()
    assert sync.status in (pg.SyncAfterFailureStatus.Reconciled, pg.SyncAfterFailureStatus.NoPending)
    assert total()[0] == 2
    refused = pg.activate_ranks(None, [0])
    assert refused.status == pg.ProposalStatus.Applied, ("already active", refused)
    r.meet("checked", 2)


def test_manual_group_does_not_change_by_itself(job):
    job.run(rank_manual_idle, 3, may_die=(2,))


def rank_gather_failed(r):
    """Outputs of a failed rank stay as they were."""
    r.init()
    total()
    r.meet("up")
    if r.rank == 1:
        r.die()
    out = [torch.full((2,), -1.0) for _ in range(3)]
    work = dist.all_gather(out, torch.full((2,), float(r.rank)), async_op=True)
    work.wait()
    assert pg.get_failed_ranks_hint(work).tolist() == [0, 1, 0]
    assert [o[0].item() for o in out] == [0, -1, 2]
    avg = torch.full((2,), float(r.rank))
    r.meet("hinted", 2)
    pg.sync_after_failure()
    dist.all_reduce(avg, dist.ReduceOp.AVG)
    assert avg.tolist() == [1, 1]  # of 0 and 2: the lost rank does not count


def test_outputs_of_a_failed_rank(job):
    job.run(rank_gather_failed, 3, may_die=(1,))


def rank_events(r):
    r.init()
    stream = pg.events(timeout=20)
    total()
    r.meet("up")
    if r.rank == 1:
        r.die()
    seen = []
    for event in stream:
        seen.append(event)
        if event.kind == pg.EventKind.VIEW:
            break
    assert seen[-1].group == dist.group.WORLD.group_name and seen[-1].epoch == pg.get_current_epoch(), seen
    assert all(e.rank == 1 for e in seen if e.kind == pg.EventKind.RANK_STATE), seen
    dist.destroy_process_group()
    assert all(e.kind != pg.EventKind.VIEW for e in stream)


def test_events(job):
    job.run(rank_events, 2, may_die=(1,))


def rank_update(r):
    r.init()
    total()
    r.meet("up")
    epoch = pg.get_current_epoch()
    if r.rank == 0:
        none = pg.update_ranks(None, activate=[0, 1, 2])
        assert none.status == pg.ProposalStatus.Applied and none.new_epoch == epoch
        stale = pg.update_ranks(None, deactivate=[2], expected_epoch=epoch + 7)
        assert stale.status == pg.ProposalStatus.Rejected and stale.code == "STALE_EPOCH" and stale.reject_reason, stale
        done = pg.update_ranks(None, deactivate=[2], expected_epoch=epoch)
        assert done.status == pg.ProposalStatus.Applied and done.new_epoch > epoch, done
        r.store.set("out", "1")
    r.store.wait(["out"], r.timeout)
    until(lambda: pg.get_active_ranks().tolist() == [1, 1, 0], "the view reached this rank")
    if r.rank == 2:
        error = None
        try:
            total()
        except pg.MooncakeError as e:
            error = e
        assert error is not None and error.code == "NOT_ACTIVE" and "join_group" in str(error), error
        pg.join_group()
    else:
        assert total()[0] == 2
        until(lambda: pg.get_peer_state(None, [2])[0], "rank 2 waits in join_group")
        back = pg.activate_ranks(None, [2])
        assert back.status == pg.ProposalStatus.Applied, back
    pg.safe_point()
    assert total()[0] == 3


def test_update_ranks_and_rejoin(job):
    job.run(rank_update, 3)
