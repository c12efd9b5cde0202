"""Work and Future: what each call returns, waits for and raises."""

import datetime
import gc
import threading

import torch
import torch.distributed as dist

from harness import raised
from mooncake import pg
from mooncake._pg import _C


def rank_handles(r):
    r.init()
    x = torch.ones(3)
    assert dist.all_reduce(x) is None and dist.broadcast(x, 0) is None and dist.barrier() is None
    assert dist.all_gather([torch.zeros(3) for _ in range(2)], x) is None and dist.reduce(x, 0) is None
    y = torch.full((3,), float(r.rank))
    works = [
        dist.all_reduce(y, async_op=True),
        dist.broadcast(x, 0, async_op=True),
        dist.barrier(async_op=True),
        dist.reduce(x, 0, async_op=True),
        dist.all_gather([torch.zeros(3) for _ in range(2)], x, async_op=True),
    ]
    for work in works:
        assert isinstance(work, _C.MooncakeWork)
        assert work.wait() is True and work.is_completed() and work.is_success() and work.wait() is True
        assert pg.get_local_success(work) is True
        hint = pg.get_failed_ranks_hint(work)
        assert hint.dtype == torch.int32 and hint.device.type == "cpu" and hint.tolist() == [0, 0]
    assert works[0].result()[0] is y or torch.equal(works[0].result()[0], y)
    assert y.tolist() == [1, 1, 1]
    assert [w.seq for w in works] == list(range(works[0].seq, works[0].seq + 5))
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=20))
    options = dist.group.WORLD._get_backend(torch.device("cpu")).options
    assert options.max_group_size == 2 and options.auto_deactivate_on_failure


def test_handles(job):
    job.run(rank_handles, 2)


def rank_futures(r):
    r.init()
    done = threading.Event()
    x = torch.full((2,), float(r.rank + 1))
    r.meet("start")
    future = dist.all_reduce(x, async_op=True).get_future()
    chained = future.then(lambda f: f.value()[0] * 2)
    chained.add_done_callback(lambda f: done.set())
    assert torch.equal(future.wait()[0], torch.full((2,), 3.0))
    assert torch.equal(chained.wait(), torch.full((2,), 6.0))
    assert done.wait(10)
    late = dist.all_reduce(x, async_op=True)
    late.wait()
    assert torch.equal(late.get_future().wait()[0], torch.full((2,), 6.0))
    gathered = [torch.zeros(1) for _ in range(2)]
    value = dist.all_gather(gathered, torch.tensor([float(r.rank)]), async_op=True).get_future().wait()
    assert [v.item() for v in value] == [0, 1]
    assert dist.barrier(async_op=True).get_future().wait() == []


def test_futures(job):
    job.run(rank_futures, 2)


def rank_dropped(r):
    """A Work that nobody keeps: tensors live until the operation is over, and nothing blocks."""
    r.init()
    for i in range(50):
        dist.all_reduce(torch.full((5000,), float(i)), async_op=True)
        if i % 10 == 0:
            gc.collect()
    if r.rank == 0:
        work = dist.irecv(torch.zeros(4), 1)
        del work
        gc.collect()
        r.meet("dropped")
    else:
        r.meet("dropped")
        dist.send(torch.ones(4), 0)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2


def test_dropped_works(job):
    job.run(rank_dropped, 2)


def rank_wait_timeout(r):
    r.init()
    if r.rank == 0:
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        error = raised(lambda: work.wait(datetime.timedelta(milliseconds=200)))
        assert (
            isinstance(error, pg.MooncakeError)
            and error.code == "TIMED_OUT"
            and "allreduce" in str(error).lower().replace("_", "")
        )
        assert not work.is_completed()
        r.meet("timed out")
        assert work.wait() and x.tolist() == [2] * 4
    else:
        r.meet("timed out")
        dist.all_reduce(torch.ones(4))


def test_wait_with_a_timeout(job):
    job.run(rank_wait_timeout, 2)


def rank_hard_timeout(r):
    r.init()
    dist.group.WORLD.set_timeout(datetime.timedelta(milliseconds=500))
    if r.rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        future = work.get_future()
        error = raised(work.wait)
        assert isinstance(error, dist.DistBackendError) and error.code == "TIMED_OUT", error
        assert "number" in str(error) and "1" in str(error)
        assert isinstance(raised(future.wait), RuntimeError)
        assert not work.is_success() and not pg.get_local_success(work)
        assert isinstance(work.exception(), BaseException) or work.exception() is not None
        r.meet("timed out")
    else:
        r.meet("timed out")
        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        try:
            work.wait()
        except dist.DistBackendError:
            pass
    dist.group.WORLD.set_timeout(r.timeout)
    r.meet("again")
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2  # numbers stayed aligned


def test_hard_timeout_and_next_operation(job):
    job.run(rank_hard_timeout, 2)


def rank_abort(r):
    r.init()
    if r.rank == 0:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        timer = threading.Timer(0.3, lambda: dist.group.WORLD.abort())
        timer.start()
        error = raised(work.wait)
        assert error.code == "ABORTED", error
        timer.join()
        assert raised(lambda: dist.all_reduce(torch.ones(1))).code == "INVALID_STATE"
    r.meet("aborted")
    dist.destroy_process_group()
    r.store = dist.PrefixStore("second", r.store)
    r.init()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2


def test_abort_frees_a_waiting_operation(job):
    job.run(rank_abort, 2)
