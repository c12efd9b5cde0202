"""Small cases from reports about other backends."""

import time

import torch
import torch.distributed as dist

from harness import raised


def rank_w2(r):
    r.init()
    me = r.rank
    x = (torch.arange(8).reshape(4, 2) + 100 * me)[:, 1]  # H1: a strided input
    out = [torch.zeros(4, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(out, x)
    assert [o.tolist() for o in out] == [[1, 3, 5, 7], [101, 103, 105, 107]]
    out2 = torch.zeros(6, dtype=torch.int64)  # H2
    dist.reduce_scatter_tensor(out2, torch.tensor([1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16]))
    assert out2.tolist() == ([2, 4, 6, 8, 10, 12] if me == 0 else [22, 24, 26, 28, 30, 32])
    flag = torch.tensor(me == 1)  # H6: a zero-dimensional bool
    dist.broadcast(flag, 1)
    assert flag.item() is True
    z = torch.tensor([1 + 1j, 2 - 1j]) * (me + 1)  # H7
    dist.all_reduce(z)
    assert z.tolist() == [3 + 3j, 6 - 3j]
    half = torch.zeros(2)  # H8: average in reduce_scatter
    dist.reduce_scatter_tensor(half, torch.tensor([0.0, 2.0, 4.0, 6.0]) * (me + 1), op=dist.ReduceOp.AVG)
    assert half.tolist() == ([0, 3] if me == 0 else [6, 9])
    uneven = [torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)]  # H23
    dist.all_gather(uneven, torch.tensor([7, 8, 9] if me else [], dtype=torch.int64))
    assert uneven[1].tolist() == [7, 8, 9]
    if me == 0:  # H12: one batch of two against two batches of one
        ops = [dist.P2POp(dist.isend, torch.ones(2), 1), dist.P2POp(dist.isend, torch.full((3,), 2.0), 1)]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
    else:
        a, b = torch.zeros(2), torch.zeros(3)
        for t in (a, b):
            for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, t, 0)]):
                w.wait()
        assert a.tolist() == [1, 1] and b.tolist() == [2, 2, 2]
    dist.barrier()
    if me == 0:  # H14: isend does not wait for the receiver
        begin = time.monotonic()
        work = dist.isend(torch.arange(4.0), 1)
        assert time.monotonic() - begin < 0.5
        r.meet("H14")
        work.wait()
    else:
        r.meet("H14")
        x = torch.zeros(4)
        dist.recv(x, 0)
        assert x.tolist() == [0, 1, 2, 3]


def test_two_ranks(job):
    job.run(rank_w2, 2)


def rank_w3(r):
    r.init()
    me = r.rank
    for root in range(3):  # H3
        x = torch.full((3,), float(me + 1))
        dist.reduce(x, root)
        assert me != root or x.tolist() == [6, 6, 6]
    for root in range(3):  # H5
        for n in (1, 2, 3, 5, 7, 1023, 100003):
            x = torch.arange(n) * (me + 1)
            dist.broadcast(x, root)
            assert torch.equal(x, torch.arange(n) * (root + 1))
    buf = torch.zeros(1000)  # H10: the same output thrice
    error = raised(lambda: dist.all_gather([buf] * 3, torch.full((1000,), float(me + 1))))
    assert "share memory" in str(error)
    group = dist.new_group([1, 2])  # H17
    if me:
        x = torch.tensor([10 * me])
        dist.broadcast(x, src=2, group=group)
        assert x.item() == 20
        x = torch.tensor([10 * me])
        dist.broadcast(x, group_src=0, group=group)
        assert x.item() == 10
    a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])  # H21
    for i in range(100):
        u, v = torch.full((1 + 13 * i,), float(i + me)), torch.full((7,), float(1000 + i + me))
        wa, wb = dist.all_reduce(u, group=a, async_op=True), dist.all_reduce(v, group=b, async_op=True)
        wb.wait()
        wa.wait()
        assert bool((u == 3 * i + 3).all()) and bool((v == 3000 + 3 * i + 3).all())
    got = torch.zeros(1)  # H25
    dist.scatter(got, [torch.tensor([10.0 * k]) for k in range(3)] if me == 0 else None, src=0)
    assert got.item() == 10.0 * me
    parts = [torch.zeros(1) for _ in range(3)] if me == 0 else None
    dist.gather(torch.tensor([me + 5.0]), parts, dst=0)
    assert me or [p.item() for p in parts] == [5, 6, 7]
    top = torch.tensor([float(me)])
    dist.reduce(top, 1, op=dist.ReduceOp.MAX)
    assert me != 1 or top.item() == 2
    if me == 0:  # H13: a skip connection
        for peer in (1, 2):
            dist.send(torch.tensor([5.0]), peer)
    elif me == 1:
        x = torch.zeros(1)
        dist.recv(x, 0)
        dist.send(x * 2, 2)
    else:
        x, y = torch.zeros(1), torch.zeros(1)
        for w in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0), dist.P2POp(dist.irecv, y, 1)]):
            w.wait()
        assert (x.item(), y.item()) == (5, 10)


def test_three_ranks(job):
    job.run(rank_w3, 3)


def rank_w4(r):
    r.init()
    me = r.rank
    g = torch.zeros(9)  # H4: nothing beyond the receive buffer
    dist.reduce_scatter_tensor(g[4:5], torch.ones(4))
    assert g.tolist() == [0, 0, 0, 0, 4, 0, 0, 0, 0]
    group = dist.new_group([2, 3])  # H18
    if me >= 2:
        parts = [torch.zeros(1) for _ in range(2)] if me == 3 else None
        dist.gather(torch.tensor([10.0 * me]), parts, dst=3, group=group)
        assert me != 3 or [p.item() for p in parts] == [20, 30]
    for op, want in ((dist.ReduceOp.MAX, 13), (dist.ReduceOp.MIN, 10), (dist.ReduceOp.PRODUCT, 17160)):  # H24
        x = torch.full((3,), 10 + me)
        dist.all_reduce(x, op)
        assert x.tolist() == [want] * 3


def test_four_ranks(job):
    job.run(rank_w4, 4)


def rank_twice_destroyed(r):
    r.init()
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
    dist.destroy_process_group()
    raised(dist.destroy_process_group)  # H19: a plain Python error


def test_destroy_twice(job):
    job.run(rank_twice_destroyed, 2)


def rank_file_store(r, path):
    store = dist.FileStore(path, 2)  # H27: the same Store object for a second life
    for life in (0, 1):
        dist.init_process_group("mooncake-cpu", store=store, rank=r.rank, world_size=2, timeout=r.timeout)
        x = torch.tensor([float(r.rank + life)])
        dist.all_reduce(x)
        assert x.item() == 1 + 2 * life
        dist.destroy_process_group()


def test_file_store_for_two_lives(job, tmp_path):
    job.run(rank_file_store, 2, path=str(tmp_path / "store"))
