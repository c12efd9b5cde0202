"""Bad input: a typed error with the value and the remedy, in bounded time, and the others are unharmed."""

import gc
import os
import time

import pytest
import torch
import torch.distributed as dist

from harness import raised
from mooncake import pg


def works_again(r, world=None):
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [float(world or r.world)] * 3


def rank_world_size(r):
    r.timeout = type(r.timeout)(seconds=4)
    begin = time.monotonic()
    error = raised(lambda: r.init(world=3 if r.rank == 1 else 2))
    assert isinstance(error, pg.MooncakeError), error
    assert time.monotonic() - begin < 15
    return error.code, str(error)


def test_wrong_world_size(job):
    results = job.run(rank_world_size, 2)
    codes = {code for code, _ in results}
    # The other rank was in the group and waits for us, or loses the coordinator that the refused one hosted.
    assert codes <= {"WORLD_MISMATCH", "TIMED_OUT", "UNAVAILABLE"} and "WORLD_MISMATCH" in codes, results
    text = next(t for c, t in results if c == "WORLD_MISMATCH")
    assert "2" in text and "3" in text, text


def rank_twice(r):
    r.timeout = type(r.timeout)(seconds=3)
    if r.rank == 1:
        r.store.wait(["up"], r.timeout * 10)
        error = raised(lambda: r.init(rank=0, world=1))
        r.store.set("refused", "1")
        assert isinstance(error, pg.MooncakeError)
        return error.code, str(error)
    r.init(rank=0, world=1)
    r.store.set("up", "1")
    r.store.wait(["refused"], r.timeout * 10)
    works_again(r, 1)
    return None


def test_rank_twice(job):
    _, (code, text) = job.run(rank_twice, 2)
    assert code == "RANK_IN_USE" and "0" in text, text


def rank_list_twice(r):
    r.init()
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size, options.group_id = r.store, r.rank, 2, "twice"
    options.global_ranks_in_group = [0, 0]
    options.timeout = r.timeout
    error = raised(lambda: pg.createMooncakeCpuBackend(options, None))
    assert error.code == "INVALID_ARGUMENT" and "[0, 0]" in str(error)
    error = raised(lambda: dist.new_group([0, 1], pg_options=pg.MooncakeBackendOptions(1), timeout=r.timeout))
    assert error.code == "INVALID_ARGUMENT" and "max_group_size 1" in str(error)
    error = raised(lambda: dist.new_group([0, 1], pg_options={"max_group_size": 2}, timeout=r.timeout))
    assert isinstance(error, TypeError) and "dict" in str(error)
    works_again(r)


def test_bad_lists_and_options(job):
    job.run(rank_list_twice, 2)


def rank_environment(r, name, value, words):
    os.environ[name] = value
    begin = time.monotonic()
    error = raised(r.init)
    assert time.monotonic() - begin < 10
    assert isinstance(error, pg.MooncakeError) and value in str(error), error
    assert words in str(error), error
    return error.code


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("MOONCAKE_TRANSPORTS", "carrier-pigeon", "shm"),
        ("MOONCAKE_PG_AUTO_DEACTIVATE_ON_FAILURE", "maybe", "1 or 0"),
        ("MOONCAKE_COORDINATOR", "127.0.0.1:1", ""),
    ],
)
def test_environment(job, name, value, words):
    job.timeout_s = 3
    codes = job.run(rank_environment, 1, name=name, value=value, words=words)
    assert codes[0] in ("INVALID_ARGUMENT", "UNAVAILABLE", "TIMED_OUT", "NOT_SUPPORTED")


def rank_cuda(r):
    error = raised(lambda: r.init(backend="mooncake"))
    assert error.code == "NOT_SUPPORTED" and "mooncake-cpu" in str(error)


def test_cuda_backend_says_what_is_missing(job):
    job.run(rank_cuda, 1)


def rank_mismatch(r):
    r.init()
    me = r.rank
    seen = []

    def attempt(call):
        """Runs an operation that must fail at the ranks concerned; returns the code, or None."""
        try:
            work = call()
            work.wait()
        except pg.MooncakeError as error:
            seen.append(str(error))
            return error.code
        return None

    codes = [
        attempt(lambda: dist.all_reduce(torch.ones(3 if me == 1 else 4), async_op=True)),
        attempt(
            lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64 if me == 1 else torch.float32), async_op=True)
        ),
        attempt(lambda: dist.broadcast(torch.ones(3 if me == 1 else 4), 0, async_op=True)),
        attempt(
            lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if me == 1 else dist.ReduceOp.SUM, async_op=True)
        ),
    ]
    for _ in range(3):
        works_again(r)
    assert dist.get_world_size() == r.world and pg.get_active_ranks().tolist() == [1] * r.world
    r.meet("checked")
    return codes, seen


def test_mismatch_between_ranks(job):
    results = job.run(rank_mismatch, 3)
    for i in range(4):
        codes = [codes[i] for codes, _ in results]
        assert "MISMATCH" in codes and set(codes) <= {None, "MISMATCH"}, (i, results)


def rank_local(r):
    r.init()
    x = torch.ones(4)
    cases = [
        (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "NOT_SUPPORTED", "dense"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2)), "NOT_SUPPORTED", "Float8_e5m2"),
        (lambda: dist.all_gather_into_tensor(torch.zeros(7), x), "INVALID_ARGUMENT", "7"),
        (lambda: dist.reduce_scatter_tensor(torch.zeros(3), x), "INVALID_ARGUMENT", "4"),
        (lambda: dist.all_to_all_single(torch.zeros(4), x, [1, 1], [2, 2]), "INVALID_ARGUMENT", "split"),
        (lambda: dist.all_gather([x, x], torch.ones(4)), "INVALID_ARGUMENT", "share memory"),
        (lambda: dist.recv(x, None), "NOT_SUPPORTED", "src"),
        (lambda: dist.all_reduce(torch.ones(1).expand(5)), "", ""),
    ]
    for call, code, words in cases:
        error = raised(call)
        assert isinstance(error, RuntimeError), error
        if code:
            assert error.code == code, error
        assert words.lower() in str(error).lower(), error
    works_again(r)
    error = raised(lambda: pg.get_peer_state(None, [5]))
    assert error.code == "INVALID_ARGUMENT" and "5" in str(error)
    assert isinstance(raised(lambda: pg.get_peer_state(None, 1)), TypeError)
    error = raised(lambda: pg.activate_ranks(None, [2]))
    assert error.code == "INVALID_ARGUMENT"
    group = dist.group.WORLD
    dist.destroy_process_group()
    error = raised(lambda: pg.get_view(group))
    assert error.code == "INVALID_STATE" and "destroyed" in str(error)


def test_refused_before_anything_is_sent(job):
    job.run(rank_local, 2)


def rank_joiner_barrier(r):
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    error = raised(lambda: r.init(pg.MooncakeBackendOptions(1, True)))
    assert error.code == "INVALID_STATE" and "TORCH_DIST_INIT_BARRIER" in str(error)


def test_init_barrier_is_refused_for_joiners(job):
    job.run(rank_joiner_barrier, 1)


def rank_missing(r):
    """One founder never comes: the other gets an error that names it."""
    r.timeout = type(r.timeout)(seconds=2)
    if r.rank == 1:
        r.store.wait(["done"], r.timeout * 20)
        return None
    begin = time.monotonic()
    error = raised(r.init)
    r.store.set("done", "1")
    assert time.monotonic() - begin < 10
    return error.code, str(error)


def test_missing_founder(job):
    code, text = job.run(rank_missing, 2)[0]
    assert code == "TIMED_OUT" and "1" in text


def rank_store_gone(r):
    r.init()
    works_again(r)
    r.store.set(f"ready{r.rank}", "1")
    end = time.monotonic() + 20
    while time.monotonic() < end:  # until the Store is gone
        try:
            r.store.get("ready0")
        except Exception:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("the Store never went away")
    for _ in range(20):
        works_again(r)
    r.store = None


def test_store_lost_after_rendezvous(job):
    procs = [job.start(rank_store_gone, i, 2) for i in range(2)]
    job.wait_key("ready0")
    job.wait_key("ready1")
    job.server = None
    gc.collect()
    job.finish(procs)
