"""Growth with subgroups, buffers that follow size(), point-to-point across failures, leaving and coming back."""

import torch
import torch.distributed as dist

from harness import until
from mooncake import pg


def total(value=1.0, group=None):
    x = torch.full((4,), float(value))
    dist.all_reduce(x, group=group)
    return x[0].item()


def bring_in(group, ranks):
    """What each member does: any one caller suffices, and all may call."""
    until(lambda: all(pg.get_peer_state(group, ranks)), f"ranks {ranks} are ready")
    answer = pg.recover_ranks(group, ranks)
    assert answer.status == pg.ProposalStatus.Applied, answer
    pg.safe_point(group)


def rank_subgroups(r):
    """Two primaries grow to four; groups a [0]->[0,2], b [1]->[1,3], c [0,1]->[0..3]. Joiners declare the full lists."""
    joiner = r.rank >= 2
    if joiner:
        r.store.wait(["primaries"], r.timeout)
    world = 4 if joiner else 2

    def options(size):
        return pg.MooncakeBackendOptions(size, joiner)

    r.init(options(4), world=world)
    lists = [[0, 2], [1, 3], [0, 1, 2, 3]] if joiner else [[0], [1], [0, 1]]
    groups = [
        dist.new_group(ranks, pg_options=options(max_), timeout=r.timeout) for ranks, max_ in zip(lists, (2, 2, 4))
    ]
    small = groups[r.rank % 2]
    mine = r.rank + 1
    if not joiner:
        assert total(mine) == 3 and total(mine, groups[2]) == 3 and total(mine, small) == mine
        r.meet("before", 2)
        r.store.set("primaries", "1")
    for group, ranks in ((None, [2, 3]), (small, [1]), (groups[2], [2, 3])):
        if joiner:
            assert total(mine, group) == mine
            pg.join_group(group)
            pg.safe_point(group)
        else:
            bring_in(group, ranks)
    assert total(mine) == 10 and total(mine, groups[2]) == 10
    assert total(mine, small) == (4 if r.rank % 2 == 0 else 6)
    assert dist.get_world_size(small) == 2 and dist.get_world_size() == 4
    r.meet("after", 4)


def test_growth_with_subgroups(job):
    job.run(rank_subgroups, 4)


def check_buffers(r):
    n = dist.get_world_size()
    live = [k for k, a in enumerate(pg.get_active_ranks().tolist()) if a]
    flat = torch.zeros(2 * n)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(r.rank)))
    assert [flat[2 * k].item() for k in live] == [float(k) for k in live]
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * n))
    assert out.tolist() == [len(live) * 2.0 * r.rank, len(live) * (2.0 * r.rank + 1)]
    return n


def rank_recovery(r, again):
    if again:
        r.init(pg.MooncakeBackendOptions(4, True))
        pg.join_group()
    else:
        r.init(pg.MooncakeBackendOptions(4))
        assert check_buffers(r) == 4
        r.meet("four", 4)
        if r.rank == 3:
            r.die()
        total()
        r.meet("hinted", 3)
        pg.sync_after_failure()
        assert check_buffers(r) == 3, "the last rank is gone: buffers are smaller"
        if r.rank == 0:
            r.store.set("three", "1")
        bring_in(None, [3])
    pg.safe_point()
    assert check_buffers(r) == 4
    r.meet("again", 4)


def test_buffers_follow_the_size(job):
    procs = [job.start(rank_recovery, i, 4, again=False) for i in range(4)]
    job.wait_key("three")
    procs.append(job.start(rank_recovery, 3, 4, again=True))
    job.finish(procs, may_die=(3,))


def exchange(r, value):
    """All to all by send and recv. Returns hints and successes by peer."""
    peers = [k for k in range(r.world) if k != r.rank]
    outs = {p: torch.full((5,), float(value)) for p in peers}
    ins = {p: torch.zeros(5) for p in peers}
    works = {p: (dist.isend(outs[p], p), dist.irecv(ins[p], p)) for p in peers}
    for pair in works.values():
        for work in pair:
            work.wait()
    return ins, works


def rank_p2p_fault(r):
    r.init()
    ins, works = exchange(r, r.rank)
    assert all(bool((ins[p] == p).all()) for p in ins)
    assert all(pg.get_failed_ranks_hint(w).tolist() == [0, 0, 0] for pair in works.values() for w in pair)
    r.meet("first")
    if r.rank == 1:
        r.die()
    ins, works = exchange(r, 10 + r.rank)
    for peer, pair in works.items():
        hints = [pg.get_failed_ranks_hint(w).tolist() for w in pair]
        if peer == 1:
            assert hints[1] == [0, 1, 0] and not pg.get_local_success(pair[1])
        else:
            assert hints == [[0, 0, 0]] * 2 and bool((ins[peer] == 10 + peer).all())
    assert pg.get_active_ranks().tolist() == [1, 0, 1]
    r.meet("second", 2)


def test_p2p_with_a_dead_peer(job):
    job.run(rank_p2p_fault, 3, may_die=(1,))


def ping_pong(r, value):
    x = torch.full((300,), float(value))
    if r.rank == 0:
        dist.send(x, 1)
        work = dist.irecv(x, 1)
    else:
        work = dist.irecv(x, 0)
        work.wait()
        dist.send(x + 1, 0)
    work.wait()
    assert pg.get_local_success(work) and x[0].item() == value + (1 if r.rank == 0 else 0)


def rank_graceful(r, again):
    """Rank 1 takes itself out, destroys and exits; another process takes its place."""
    if again:
        r.init(pg.MooncakeBackendOptions(2, True))
        pg.join_group()
    else:
        r.init(pg.MooncakeBackendOptions(2))
        ping_pong(r, 1)
        r.meet("played")
        if r.rank == 1:
            answer = pg.deactivate_ranks(None, [1])
            assert answer.status == pg.ProposalStatus.Applied, answer
            dist.destroy_process_group()
            r.store.set("left", "1")
            return
        r.store.wait(["left"], r.timeout)
        until(lambda: pg.get_active_ranks().tolist() == [1, 0], "rank 1 left")
        assert total(4) == 4
        bring_in(None, [1])
    pg.safe_point()
    ping_pong(r, 20)
    assert total() == 2
    r.meet("done", 2)


def test_leave_and_replacement(job):
    procs = [job.start(rank_graceful, i, 2, again=False) for i in range(2)]
    job.wait_key("left")
    procs.append(job.start(rank_graceful, 1, 2, again=True))
    job.finish(procs)


def rank_topologies(r):
    """Overlapping groups used together, with in-group ranks."""
    r.init()
    pairs = {(a, b): dist.new_group([a, b]) for a in range(4) for b in range(a + 1, 4)}
    for i in range(10):
        works = []
        for (a, b), group in pairs.items():
            if r.rank in (a, b):
                x = torch.full((3,), float(10 * i + r.rank))
                works.append((dist.all_reduce(x, group=group, async_op=True), x, 20 * i + a + b))
        for work, x, want in works:
            work.wait()
            assert x[0].item() == want
    lane = pairs[(1, 3)]
    if r.rank == 1:
        dist.send(torch.tensor([7.0]), group=lane, group_dst=1)
    if r.rank == 3:
        x = torch.zeros(1)
        dist.recv(x, group=lane, group_src=0)
        assert x.item() == 7
    dist.barrier()


def test_overlapping_groups(job):
    job.run(rank_topologies, 4)
