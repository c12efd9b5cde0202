"""send and recv: tags, order, batches, sizes."""

import time

import torch
import torch.distributed as dist


def rank_tags(r):
    r.init()
    if r.rank == 0:
        works = [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (5, 1, 9)]
        for w in works:
            w.wait()
        for i in range(1, 5):
            dist.send(torch.tensor([i]), 1)
    else:
        for tag in (9, 5, 1):
            x = torch.zeros(3)
            dist.recv(x, 0, tag=tag)
            assert x.tolist() == [float(tag)] * 3
        got = []
        for _ in range(4):
            x = torch.zeros(1, dtype=torch.int64)
            assert dist.recv(x, 0) == 0
            got.append(x.item())
        assert got == [1, 2, 3, 4]
    r.meet("received")


def test_tags_and_order(job):
    job.run(rank_tags, 2)


def rank_ring(r):
    r.init()
    right, left = (r.rank + 1) % r.world, (r.rank - 1) % r.world
    for n in (0, 1, 1000, 400_000):
        out, into = torch.full((n,), float(r.rank)), torch.zeros(n)
        ops = [dist.P2POp(dist.isend, out, right), dist.P2POp(dist.irecv, into, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert bool((into == left).all()), n


def test_batch_ring(job):
    job.run(rank_ring, 4)


def rank_eager(r):
    """isend returns before the peer has posted its receive, and both directions can be in flight at once."""
    r.init()
    if r.rank == 0:
        begin = time.monotonic()
        work = dist.isend(torch.arange(4.0), 1)
        assert time.monotonic() - begin < 0.5
        r.meet("sent")
        work.wait()
    else:
        r.meet("sent")
        x = torch.zeros(4)
        dist.recv(x, 0)
        assert x.tolist() == [0, 1, 2, 3]
    big = torch.full((200_000,), float(r.rank))
    got = torch.zeros_like(big)
    pair = [dist.isend(big, 1 - r.rank), dist.irecv(got, 1 - r.rank)]
    for work in pair:
        work.wait()
    assert bool((got == 1 - r.rank).all())


def test_eager_and_crossing(job):
    job.run(rank_eager, 2)


def rank_fan_in(r):
    r.init()
    if r.rank == 0:
        for i in range(20):
            for peer in (2, 1):
                x = torch.zeros(1)
                dist.recv(x, peer)
                assert x.item() == 100 * peer + i
        dist.send(torch.ones(1), 1)
        dist.send(torch.ones(1), 2)
    else:
        for i in range(20):
            dist.send(torch.tensor([100.0 * r.rank + i]), 0)
        x = torch.zeros(1)
        dist.recv(x, 0)
        assert x.item() == 1


def test_two_senders(job):
    job.run(rank_fan_in, 3)


def rank_unwaited(r):
    """A sender that leaves at once has still sent."""
    r.init()
    if r.rank == 0:
        dist.isend(torch.full((4, 4), 3.0), 1)
        dist.destroy_process_group()
        r.meet("gone")
    else:
        r.meet("gone")
        x = torch.zeros(4, 4)
        dist.recv(x, 0)
        assert bool((x == 3).all())


def test_isend_then_destroy(job):
    job.run(rank_unwaited, 2)
