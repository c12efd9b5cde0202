"""Every operation against values computed without it: dtypes, operators, layouts, roots, sizes, objects."""

import torch
import torch.distributed as dist

from mooncake import pg

REDUCED = [torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def piece(rank, n, dtype=torch.int64):
    return (torch.arange(n) % 5 + rank + 1).to(dtype)


def rank_allreduce(r):
    r.init()
    ops = {
        dist.ReduceOp.SUM: lambda s: s.sum(0),
        dist.ReduceOp.MIN: lambda s: s.amin(0),
        dist.ReduceOp.MAX: lambda s: s.amax(0),
        dist.ReduceOp.PRODUCT: lambda s: s.prod(0),
    }
    for dtype in REDUCED:
        for op, expect in ops.items():
            for n in (0, 1, 7, 4099):
                x = piece(r.rank, n, dtype)
                dist.all_reduce(x, op)
                want = expect(torch.stack([piece(k, n) for k in range(r.world)])).to(dtype)
                assert torch.equal(x, want), (dtype, op, n)
    for dtype in (torch.float32, torch.float64):
        x = piece(r.rank, 9, dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.equal(x, torch.stack([piece(k, 9) for k in range(r.world)]).to(dtype).mean(0))
    flag = torch.tensor([r.rank == 1, True, False])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    assert flag.tolist() == [True, True, False]
    big = torch.full((3_000_001,), float(r.rank + 1))
    dist.all_reduce(big)
    assert bool((big == sum(range(1, r.world + 1))).all())


def test_allreduce(job):
    job.run(rank_allreduce, 3)


def rank_moves(r):
    r.init()
    w, me = r.world, r.rank
    for dtype in REDUCED + [torch.bool, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]:
        for root in range(w):
            x = (piece(me, 11) * (root + 1)).to(dtype)
            want = (piece(root, 11) * (root + 1)).to(dtype)
            dist.broadcast(x, root)
            assert torch.equal(x.view(torch.uint8), want.view(torch.uint8)), dtype
    out = [torch.zeros(6, dtype=torch.int32) for _ in range(w)]
    dist.all_gather(out, piece(me, 6, torch.int32))
    assert all(torch.equal(out[k], piece(k, 6, torch.int32)) for k in range(w))
    uneven = [torch.zeros(k, dtype=torch.int64) for k in range(w)]
    dist.all_gather(uneven, piece(me, me))
    assert all(torch.equal(uneven[k], piece(k, k)) for k in range(w))
    flat = torch.zeros(w * 6)
    dist.all_gather_into_tensor(flat, piece(me, 6, torch.float32))
    assert torch.equal(flat, torch.cat([piece(k, 6, torch.float32) for k in range(w)]))
    for root in range(w):
        parts = [torch.zeros(3, dtype=torch.int64) for _ in range(w)] if me == root else None
        dist.gather(piece(me, 3), parts, dst=root)
        if me == root:
            assert all(torch.equal(parts[k], piece(k, 3)) for k in range(w))
        got = torch.zeros(3, dtype=torch.int64)
        dist.scatter(got, [piece(k + root, 3) for k in range(w)] if me == root else None, src=root)
        assert torch.equal(got, piece(me + root, 3))
        y = piece(me, 8)
        dist.reduce(y, root)
        want = torch.stack([piece(k, 8) for k in range(w)]).sum(0) if me == root else piece(me, 8)
        assert torch.equal(y, want)
    dist.barrier()


def test_moves(job):
    job.run(rank_moves, 3)


def rank_scatter_like(r):
    r.init()
    w, me = r.world, r.rank
    whole = torch.arange(w * 4, dtype=torch.int64) + 100 * me
    want = sum(torch.arange(w * 4) + 100 * k for k in range(w)).view(w, 4)[me]
    out = torch.zeros(4, dtype=torch.int64)
    dist.reduce_scatter_tensor(out, whole)
    assert torch.equal(out, want)
    out.zero_()
    dist.reduce_scatter(out, list(whole.clone().view(w, 4)))
    assert torch.equal(out, want)
    inplace = whole.clone()
    dist.reduce_scatter_tensor(inplace[me * 4 : me * 4 + 4], inplace)
    assert torch.equal(inplace[me * 4 : me * 4 + 4], want)
    got = torch.zeros(w * 4, dtype=torch.int64)
    dist.all_to_all_single(got, whole)
    assert torch.equal(got, torch.cat([(torch.arange(w * 4) + 100 * k).view(w, 4)[me] for k in range(w)]))
    splits_in, splits_out = [k + 1 for k in range(w)], [me + 1] * w
    source = torch.arange(sum(splits_in)) + 1000 * me
    got = torch.zeros(sum(splits_out), dtype=torch.int64)
    dist.all_to_all_single(got, source, splits_out, splits_in)
    start = sum(splits_in[:me])
    assert torch.equal(got, torch.cat([torch.arange(start, start + me + 1) + 1000 * k for k in range(w)]))
    outs = [torch.zeros(2) for _ in range(w)]
    dist.all_to_all(outs, [torch.full((2,), 10.0 * me + k) for k in range(w)])
    assert [o[0].item() for o in outs] == [10.0 * k + me for k in range(w)]
    same = torch.full((w,), float(me))
    dist.all_to_all_single(same, same)
    assert same.tolist() == [float(k) for k in range(w)]


def test_scatter_like(job):
    job.run(rank_scatter_like, 3)


def rank_strided(r):
    r.init()
    w, me = r.world, r.rank
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    x = (base + 100 * me).t()
    assert not x.is_contiguous()
    dist.all_reduce(x)
    assert torch.equal(x, sum((base + 100 * k).t() for k in range(w)))
    holder = torch.zeros(4, 6)
    work = dist.all_reduce(holder.copy_(base)[:, 1], async_op=True)
    work.wait()
    want = base.clone()
    want[:, 1] *= w
    assert torch.equal(holder, want)
    outs = [torch.full((4, 4), -1.0) for _ in range(w)]
    dist.all_gather([o[:, 2] for o in outs], (base + me)[:, 3])
    for k in range(w):
        want = torch.full((4, 4), -1.0)
        want[:, 2] = (base + k)[:, 3]
        assert torch.equal(outs[k], want)
    y = (base + me).t()
    dist.broadcast(y, 1)
    assert torch.equal(y, (base + 1).t())
    if me == 0:
        dist.send((base + 5)[:, 4], 1)
    elif me == 1:
        into = torch.zeros(4, 2)
        dist.recv(into[:, 1], 0)
        assert torch.equal(into[:, 1], (base + 5)[:, 4]) and not into[:, 0].any()
    dropped = torch.zeros(4, 6)
    dist.all_reduce(dropped.copy_(base)[:, 0], async_op=True)  # the Work is dropped: the result still arrives
    dist.barrier()
    for _ in range(1000):
        if torch.equal(dropped[:, 0], base[:, 0] * w):
            break
        dist.barrier()
    assert torch.equal(dropped[:, 0], base[:, 0] * w)


def test_strided(job):
    job.run(rank_strided, 2)


def rank_objects(r):
    r.init()
    w, me = r.world, r.rank
    mine = {"rank": me, "text": "x" * (1 + 1000 * me)}
    everything = [None] * w
    dist.all_gather_object(everything, mine)
    assert [o["rank"] for o in everything] == list(range(w)) and len(everything[-1]["text"]) == 1 + 1000 * (w - 1)
    box = [mine, me] if me == 1 else [None, None]
    dist.broadcast_object_list(box, src=1)
    assert box[0]["rank"] == 1 and box[1] == 1
    got = [None] * w if me == 0 else None
    dist.gather_object(mine, got, dst=0)
    assert me != 0 or [o["rank"] for o in got] == list(range(w))
    out = [None]
    dist.scatter_object_list(out, ["foo", 12, {1: 2}] if me == 0 else None, src=0)
    assert out[0] == ["foo", 12, {1: 2}][me]


def test_objects(job):
    job.run(rank_objects, 3)


def rank_coalesced(r):
    r.init()
    w, me = r.world, r.rank
    xs = [torch.full((n,), float(me + n)) for n in (1, 5, 300)]
    with dist._coalescing_manager(async_ops=True) as cm:
        for x in xs:
            dist.all_reduce(x)
    cm.wait()
    assert [x[0].item() for x in xs] == [sum(k + n for k in range(w)) for n in (1, 5, 300)]
    outs = [torch.zeros(w * n) for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as cm:
        for n, o in zip((2, 3), outs):
            dist.all_gather_into_tensor(o, torch.full((n,), float(me)))
    cm.wait()
    assert [o.tolist() for o in outs] == [[float(k) for k in range(w) for _ in range(n)] for n in (2, 3)]
    y = torch.full((3,), float(me))
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as cm:
        dist.all_reduce(y)
    cm.wait()
    assert y.tolist() == [float(sum(range(w)))] * 3
    import torch.distributed._functional_collectives as fc

    assert fc.all_reduce(torch.full((2,), float(me)), "sum", dist.group.WORLD).tolist() == [float(sum(range(w)))] * 2
    assert fc.all_gather_tensor(torch.tensor([me]), 0, dist.group.WORLD).tolist() == list(range(w))
    assert fc.reduce_scatter_tensor(torch.ones(w * 2), "sum", 0, dist.group.WORLD).tolist() == [float(w)] * 2


def test_coalesced_and_functional(job):
    job.run(rank_coalesced, 2)


def rank_many(r):
    """Far more operations in flight than any queue holds, waited for backwards."""
    r.init()
    xs = [torch.full((17,), float(i + r.rank)) for i in range(400)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
    assert all(bool((x == sum(i + k for k in range(r.world))).all()) for i, x in enumerate(xs))
    assert pg.get_failed_ranks_hint(works[0]).tolist() == [0] * r.world


def test_many_in_flight(job):
    job.run(rank_many, 2)
