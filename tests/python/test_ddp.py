"""DistributedDataParallel: the same step as one process, with and without pg.ddp_hook, and after a death."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from mooncake import pg


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).double()


def batch(step):
    g = torch.Generator().manual_seed(100 + step)
    return torch.randn(24, 10, generator=g, dtype=torch.float64), torch.randint(0, 3, (24,), generator=g)


def single(steps):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def rank_train(r, hook):
    r.init()
    net = DDP(model(), bucket_cap_mb=0.01)
    state = pg.DDPState(dist.group.WORLD)
    if hook:
        net.register_comm_hook(state, pg.ddp_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        x, y = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[r.rank :: r.world]), y[r.rank :: r.world]).backward()
        if hook:
            works = state.take_works()
            assert works and all(pg.get_local_success(w) for w in works) and state.take_works() == []
        optimizer.step()
    mine = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(mine, single(6), rtol=1e-9, atol=1e-12)
    everyone = [torch.zeros_like(mine) for _ in range(r.world)]
    dist.all_gather(everyone, mine)
    assert all(torch.equal(e, mine) for e in everyone)


def test_equals_one_process(job):
    job.run(rank_train, 3, hook=False)


def test_hook_equals_one_process(job):
    job.run(rank_train, 2, hook=True)


def rank_die_in_backward(r):
    r.init()
    net = DDP(model(), broadcast_buffers=False, bucket_cap_mb=0.01)
    state = pg.DDPState()
    net.register_comm_hook(state, pg.ddp_hook)
    for step in range(6):
        x, y = batch(step)
        net.zero_grad()
        loss = nn.functional.cross_entropy(net(x[r.rank :: 3]), y[r.rank :: 3])
        if step == 3 and r.rank == 1:
            next(iter(net.parameters())).register_hook(lambda g: r.die())
        loss.backward()
        works = state.take_works()
        failed = not all(pg.get_local_success(w) for w in works)
        if step == 3:
            answer = pg.sync_after_failure()
            assert failed or answer.status == pg.SyncAfterFailureStatus.Reconciled
        elif step > 3:
            assert not failed
    grads = torch.cat([p.grad.flatten() for p in net.parameters()])
    pieces = []
    for k in (0, 2):
        alone = model()
        x, y = batch(5)
        nn.functional.cross_entropy(alone(x[k::3]), y[k::3]).backward()
        pieces.append(torch.cat([p.grad.flatten() for p in alone.parameters()]))
    torch.testing.assert_close(grads, sum(pieces) / 2, rtol=1e-9, atol=1e-12)


def test_death_in_backward(job):
    job.run(rank_die_in_backward, 3, may_die=(1,))
