"""The launcher: exit codes, respawn of only the dead rank, prefixes, Ctrl-C, bad arguments. Its ranks here are tiny
scripts without torch, so that only the launcher's own behaviour is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

LIMIT_S = 60


def start(folder: Path, body: str, *options: str, args: tuple[str, ...] = ()) -> subprocess.Popen:
    script = folder / "rank.py"
    script.write_text("import os, signal, sys, time\nrank = os.environ['RANK']\n" + textwrap.dedent(body))
    command = [sys.executable, "-m", "mooncake.run", *options, str(script), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, output


def test_environment_and_prefix(tmp_path):
    body = """
        print(os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1:])
        assert os.environ["MOONCAKE_COORDINATOR"] and int(os.environ["MASTER_PORT"]) > 0
    """
    code, output = finish(start(tmp_path, body, "--nproc", "2", args=("--its", "own")))
    assert code == 0, output
    assert sorted(output.splitlines()) == ["[0] 2 0 0 ['--its', 'own']", "[1] 2 1 0 ['--its', 'own']"]


def test_only_the_dead_rank_is_started_again(tmp_path):
    body = """
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print(f"life {life}", flush=True)
        if rank == "1" and life == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    code, output = finish(start(tmp_path, body, "--nproc", "3", "--respawn"))
    assert code == 0, output
    lives = sorted(line for line in output.splitlines() if "life" in line)
    assert lives == ["[0] life 0", "[1] life 0", "[1] life 1", "[2] life 0"]
    assert "SIGKILL" in output and "start 1 of 3 again" in output


def test_exit_code_of_the_first_rank_that_failed_for_good(tmp_path):
    body = """
        if rank == "0":
            time.sleep(1)
            sys.exit(9)
        if rank == "1":
            sys.exit(7)
    """
    code, output = finish(start(tmp_path, body, "--nproc", "3"))
    assert code == 7, output
    assert "rank 1" in output and "exit code 7, for good" in output


def test_respawn_is_bounded(tmp_path):
    code, output = finish(start(tmp_path, "sys.exit(5)", "--nproc", "1", "--respawn", "--max-restarts", "2"))
    assert code == 5, output
    assert output.count("again") == 2


def test_interrupt_stops_all(tmp_path):
    process = start(tmp_path, "print('up', flush=True)\ntime.sleep(600)\n", "--nproc", "2", "--respawn")
    assert process.stdout.readline().endswith("up\n") and process.stdout.readline().endswith("up\n")
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 128 + signal.SIGINT, output
    assert "again" not in output


def test_bad_arguments(tmp_path):
    for options, words in (
        (("--nproc", "0"), ("0", "1 to 1024")),
        (("--nproc", "2", "--max-restarts", "-1"), ("-1", "0 or more")),
    ):
        code, output = finish(start(tmp_path, "pass", *options))
        assert code == 2 and all(word in output for word in words), output
    command = [sys.executable, "-m", "mooncake.run", "--nproc", "1", str(tmp_path / "absent.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=dict(os.environ))
    assert done.returncode == 2 and "absent.py" in done.stderr
