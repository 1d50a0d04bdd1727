"""The launcher, and the directory in which its processes meet."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from refopt.comm import CommError, launch
from refopt.comm.rendezvous import VARIABLE, Rendezvous

SHOW = """
import os, sys
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"
line = " ".join([*(os.environ[name] for name in names), *sys.argv[1:]])
os.write(1, f"{line} {os.path.isdir(os.environ['REFOPT_RENDEZVOUS'])}\\n".encode())  # a whole line at once
"""
RANK = "import os, sys, time, signal; rank = int(os.environ['RANK'])\n"


STAY = "time.sleep(60), print('has stayed', flush=True)"  # longer than a test, of which that would be seen


@pytest.fixture
def start(tmp_path, capfd, monkeypatch):
    """Launch a script; its status, and what was printed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def start(script, *options):
        (tmp_path / "script.py").write_text(script)
        return launch.main([*options, str(tmp_path / "script.py")]), capfd.readouterr().out

    return start


def test_the_environment(start, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status, out = start(SHOW, "-n", "3")
    assert status == 0 and sorted(out.splitlines()) == [f"{r} {r} 3 {r} True" for r in range(3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-6")
    status, out = start(SHOW, "-n", "2")
    assert status == 0 and sorted(out.splitlines()) == ["0 0 2 4 True", "1 1 2 GPU-6 True"]


def test_arguments_and_modules(tmp_path, capfd, monkeypatch):
    (tmp_path / "shown.py").write_text(SHOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert launch.main(["-n", "1", "-m", "shown", "--lr", "-n"]) == 0
    assert capfd.readouterr().out == "0 0 1 0 --lr -n True\n"


@pytest.mark.parametrize(("script", "options", "status", "printed"), [
    (f"time.sleep(0.2) if rank == 1 else ({STAY}); sys.exit(7)", "-n 3 --grace 0.2", 7, ""),
    ("sys.exit(3) if rank == 0 else time.sleep(0.3); print('reported', flush=True)", "-n 2 --grace 20", 3,
     "reported\n"),
    (f"os.kill(os.getpid(), signal.SIGKILL) if rank else ({STAY})", "-n 2 --grace 0", 128 + signal.SIGKILL, ""),
    ("sys.exit(5)", "-n 1", 5, ""),
    (f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(0.3)\nrank or sys.exit(1)\n{STAY}",
     "-n 2 --grace 0.2", 1, ""),
], ids=["ends the others", "after a moment to report", "by a signal", "alone", "kills one that will not end"])
def test_one_that_fails(start, monkeypatch, script, options, status, printed):
    """The status is that of the first that failed."""
    end = launch._end
    monkeypatch.setattr(launch, "_end", lambda processes: end(processes, 0.3))
    assert start(RANK + script, *options.split()) == (status, printed)


def test_of_two_that_fail_the_status_is_that_of_the_first():
    polls = [iter([None] * 9 + [3] * 9), iter([None] * 2 + [7] * 9)]
    assert launch._wait([SimpleNamespace(poll=lambda each=each: next(each)) for each in polls], 60.0) == 7


def test_ending_the_launcher_ends_all(tmp_path):
    (tmp_path / "script.py").write_text(RANK + "os.write(1, f'{os.getpid()}\\n'.encode()); time.sleep(60)")
    command = [sys.executable, "-m", "refopt.comm.launch", "-n", "2", str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        ids = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.terminate()
        assert launcher.wait(20) == 128 + signal.SIGTERM
    for each in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


@pytest.mark.parametrize(("arguments", "message"), [
    (["-n", "0", "x.py"], "-n: expected at least 1, got 0"),
    (["-n", "3", "x.py"], "-n: expected at most 2, the GPUs in CUDA_VISIBLE_DEVICES, got 3"), (["x.py"], "-n")])
def test_wrong_usage(capsys, monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(SystemExit) as stop:
        launch.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_processes_meet(start):
    script = RANK + (
        "from refopt.comm.rendezvous import Rendezvous\nsize = int(os.environ['WORLD_SIZE'])\n"
        "meeting = Rendezvous(os.environ['REFOPT_RENDEZVOUS'], rank, size)\ntime.sleep(0.1 * rank)\n"
        "if rank == 0: meeting.put('id', bytes(range(128)))\nassert meeting.get('id', 0) == bytes(range(128))\n"
        "for turn in range(20):\n    everything = meeting.exchange(f'turn-{turn}', bytes([rank]) * turn)\n"
        "    assert everything == [bytes([r]) * turn for r in range(size)]\n")
    assert start(script, "-n", "3")[0] == 0


def test_readers_find_all_of_a_value(tmp_path, monkeypatch):
    first, second = (Rendezvous(tmp_path, rank, 2, timeout=0.2) for rank in range(2))
    write, seen = Path.write_bytes, []
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (write(path, data), seen.append(first.peek("key"))))
    second.put("key", b"three")
    assert seen == [None] and first.peek("key") == b"three"


def test_a_meeting(tmp_path):
    first, second = (Rendezvous(tmp_path / "for" / "all", rank, 2, timeout=0.2) for rank in range(2))
    assert first.peek("key") is None
    second.put("key", b"one")
    second.put("key", b"two")
    assert first.peek("key") == first.get("key", 1) == b"two"
    threading.Timer(0.05, lambda: second.put("later.1", b"")).start()
    assert first.exchange("later", b"x") == [b"x", b""]
    with pytest.raises(CommError, match=r"rank 0: rendezvous .*: never: heard nothing from rank 1 in 0\.2 s"):
        first.exchange("never", b"")
    with pytest.raises(CommError, match="rank 1 is already registered: expected a fresh directory, and each rank once"):
        Rendezvous(tmp_path / "for" / "all", 1, 2)
    assert VARIABLE == "REFOPT_RENDEZVOUS"
