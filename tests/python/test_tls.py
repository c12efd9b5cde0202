"""TLS on the control plane with a torch Store: made by the job itself, no action by its user; strangers stay out."""

import os
import re
import socket

import pytest
import torch
import torch.distributed as dist

from harness import Job
from mooncake import pg


@pytest.fixture
def tls_job():
    made = Job(env={"MOONCAKE_TLS": "always"})
    yield made
    made.close()


def total(value):
    x = torch.full((5,), value, dtype=torch.int64)
    dist.all_reduce(x)
    return int(x[0])


def rank_over_tls(r):
    r.init()
    assert total(r.rank + 1) == r.world * (r.world + 1) // 2
    r.store.set(f"address/{r.rank}", pg.status()["coordinator"])
    r.meet("told")
    r.store.wait(["asked"], r.timeout)
    assert total(1) == r.world  # whoever knocked meanwhile, nothing happened
    return pg.status()["coordinator"]


def knock(address, data):
    """What a server says to these bytes until it hangs up, or within 10 s."""
    host, port = address.removeprefix("tls:").rsplit(":", 1)
    got = b""
    with socket.create_connection((host, int(port)), timeout=10) as s:
        s.sendall(data)
        try:
            while chunk := s.recv(4096):
                got += chunk
        except ConnectionResetError:
            pass
    return got


def test_job_makes_its_own(tls_job):
    procs = [tls_job.start(rank_over_tls, r, 3) for r in range(3)]
    for r in range(3):
        tls_job.wait_key(f"address/{r}")
    address = tls_job.server.get("address/0").decode()
    assert re.fullmatch(r"tls:127\.0\.0\.1:\d+", address), address
    assert knock(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0") == b""  # a rank without TLS
    assert knock(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    tls_job.server.set("asked", "1")
    assert tls_job.finish(procs) == [address] * 3


def rank_stranger(r, address):
    os.environ["MOONCAKE_TLS"] = "auto"
    os.environ["MOONCAKE_COORDINATOR"] = address
    r.timeout = r.timeout / 15
    with pytest.raises(Exception, match=r"hangs up on plaintext.*MOONCAKE_TLS_CA|MOONCAKE_TLS_CA"):
        r.init(rank=5, world=6)
    return True


@pytest.mark.parametrize("scheme", ["", "tls:"])
def test_plaintext_stranger_is_refused(tls_job, scheme):
    procs = [tls_job.start(rank_over_tls, r, 2) for r in range(2)]
    for r in range(2):
        tls_job.wait_key(f"address/{r}")
    address = tls_job.server.get("address/0").decode()
    other = Job(timeout_s=30)
    try:
        stranger = other.start(rank_stranger, 5, 6, address=scheme + address.removeprefix("tls:"))
        assert other.finish([stranger]) == [True]
    finally:
        other.close()
    tls_job.server.set("asked", "1")
    assert tls_job.finish(procs) == [address] * 2


def rank_elastic(r):
    r.init()
    assert total(1) == r.world
    if r.rank == 1:
        r.die()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    assert pg.status()["coordinator"].startswith("tls:")
    active = pg.get_active_ranks(dist.group.WORLD).tolist()
    r.meet("read", r.world - 1)  # whoever leaves first would show
    return active


def test_a_rank_dies_over_tls(tls_job):
    procs = [tls_job.start(rank_elastic, r, 3) for r in range(3)]
    assert [x for x in tls_job.finish(procs, may_die=(1,)) if x is not None] == [[1, 0, 1]] * 2
