"""Life of groups: first, second, sub, single, not WORLD, with and without options."""

import os

import torch
import torch.distributed as dist

from mooncake import pg


def total(value, group=None):
    x = torch.full((5,), value, dtype=torch.int64)
    dist.all_reduce(x, group=group)
    assert x.unique().numel() == 1
    return int(x[0])


def rank_basic(r, options):
    if options == "mask":
        mask = torch.full((r.world,), 7, dtype=torch.int32)
        r.init(pg.MooncakeBackendOptions(mask))
        assert pg.get_active_ranks(dist.group.WORLD) is mask
        assert mask.tolist() == [1] * r.world
        mask.zero_()  # the user's writes change nothing
    else:
        r.init()
        assert pg.get_active_ranks(dist.group.WORLD).tolist() == [1] * r.world
    assert dist.get_rank() == r.rank and dist.get_world_size() == r.world
    assert dist.get_backend() == "mooncake-cpu" and dist.group.WORLD.name() == "mooncake"
    assert total(r.rank + 1) == r.world * (r.world + 1) // 2
    assert pg.get_peer_state(None, list(range(r.world))) == [True] * r.world
    assert pg.get_num_synced_ranks(dist.group.WORLD) == r.world
    view = pg.get_view()
    assert view.active == tuple(range(r.world)) and len(set(view.incarnations)) == r.world
    assert pg.get_current_epoch() == view.epoch and view.start_seq == 1
    assert pg.safe_point().start_seq == 2**32
    assert total(1) == r.world
    assert pg.safe_point().start_seq == 2 * 2**32
    assert pg.status()["rank"] == r.rank
    assert pg.get_rank_states() == [pg.RankState.HEALTHY] * r.world, pg.get_rank_states()
    r.meet("checked")
    return view


def test_basic(job):
    views = job.run(rank_basic, 4, options=None)
    assert len(set(views)) == 1


def test_mirror_is_the_users_tensor(job):
    job.run(rank_basic, 2, options="mask")


def rank_single(r):
    r.init()
    assert total(3) == 3
    out = [torch.zeros(2)]
    dist.all_gather(out, torch.ones(2))
    assert out[0].tolist() == [1, 1]
    dist.barrier()
    dist.broadcast(out[0], 0)


def test_world_size_one(job):
    job.run(rank_single, 1)


def rank_subgroups(r):
    r.init()
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    mine = odd if r.rank % 2 else even
    assert dist.get_world_size(mine) == 2
    assert total(10**r.rank, mine) == (1010 if r.rank % 2 else 101)
    assert total(1) == 4
    singles = [dist.new_group([i]) for i in range(4)]
    assert total(r.rank, singles[r.rank]) == r.rank
    again = dist.new_group([0, 1, 2, 3])
    assert total(2, again) == 8 and pg.get_active_ranks(again).tolist() == [1] * 4
    dist.destroy_process_group(mine)
    assert total(1) == 4 and total(1, again) == 4


def test_even_and_odd_subgroups(job):
    job.run(rank_subgroups, 4)


def rank_not_world(r):
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("g", r.store), rank=r.rank, world_size=r.world, timeout=r.timeout
    )
    group = dist.new_group([1, 2], backend="mooncake-cpu", timeout=r.timeout)
    if r.rank in (1, 2):
        assert total(10**r.rank, group) == 110
        assert dist.get_rank(group) == r.rank - 1
        x = torch.tensor([r.rank])
        dist.broadcast(x, src=2, group=group)
        assert x.item() == 2
    other = dist.new_group([0, 2], backend="mooncake-cpu", timeout=r.timeout)
    if r.rank in (0, 2):
        assert total(10**r.rank, other) == 101
    dist.barrier()


def test_first_group_is_not_world(job):
    job.run(rank_not_world, 3)


def rank_again(r, rounds):
    for i in range(rounds):
        r.init()
        assert total(r.rank + i) == sum(range(r.world)) + r.world * i
        dist.destroy_process_group()
        assert pg.status() == {}


def test_destroy_and_init_again(job):
    job.run(rank_again, 3, rounds=4)


def rank_two_jobs(r):
    which, rank = divmod(r.rank, 2)
    store = dist.PrefixStore(f"job{which}", r.store)
    dist.init_process_group("mooncake-cpu", store=store, rank=rank, world_size=2, timeout=r.timeout)
    assert total((rank + 1) * 10**which) == 3 * 10**which


def test_two_jobs_on_one_store(job):
    job.run(rank_two_jobs, 4)


def rank_env(r):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(r.port),
        RANK=str(r.rank),
        WORLD_SIZE=str(r.world),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    dist.init_process_group("mooncake-cpu", timeout=r.timeout)
    assert total(1) == 2
    keys = "mooncake_pg/coordinator"
    assert dist.PrefixStore("default_pg", r.store).check([keys])


def test_env_rendezvous(job):
    job.run(rank_env, 2)


def rank_outside_coordinator(r, address):
    os.environ["MOONCAKE_COORDINATOR"] = address
    r.init()
    assert total(1) == r.world
    assert pg.status()["coordinator"]["address"] == address if isinstance(pg.status()["coordinator"], dict) else True


def test_coordinator_in_another_process(job):
    with pg.start_coordinator(fresh=True) as coordinator:
        job.run(rank_outside_coordinator, 2, address=coordinator.address)


def rank_exit_without_destroy(r):
    r.init()
    total(1)
    return os.getpid()


def test_exit_without_destroy(job):
    procs = [job.start(rank_exit_without_destroy, i, 2) for i in range(2)]
    job.finish(procs)
    for p in procs:
        p.process.join(20)
        assert p.process.exitcode == 0
