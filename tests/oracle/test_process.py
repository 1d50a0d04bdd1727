"""A step in a process of its own: its end is the verdict of one law, and whatever it spoils is not judged by."""

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oracle import ends
from oracle.test_reports import by_place, uphill
from refopt import oracle
from refopt.oracle.cases import alike, draw
from refopt.oracle.process import Kept, Remote, in_process, memory, worker
from refopt.oracle.process.worker import Worker
from refopt.oracle.subject import Ended
from refopt.oracle.variants import ROUTINES

LAWS = ["L1", "L5", "L6", "L17"]
NAMED = dict(dtypes=["float32"], laws=LAWS, examples=0, set={"l2_decay": 0.0})
# With a formula and without: arguments, the law that has a tensor of `ends.SIZE`, and what follows its label.
CHECKS = {"sgd": (NAMED, "L5", ""), None: (dict(
    dtypes=["float32"], laws=["L2", "L26", "L27"], symmetries=["elements", "zero"]), "L26", " in pieces")}


@pytest.fixture
def way(request, monkeypatch):
    """Either way of making a process, alone; "spawn" takes a second, and make test has one end there."""
    if request.param == "spawn":
        monkeypatch.setattr(worker, "used_device", lambda: "for a test")
    else:
        monkeypatch.setattr(worker, "_against_spawn", lambda task: iter(["for a test"]))
    return request.param


ENDS = {
    "segfault": "got the end of its process by SIGSEGV, Segmentation fault; the last it said: about to read at address",
    "hang": "got nothing within 1 s, and ended it",
    "sticky": "got AcceleratorError: CUDA error: an illegal memory access was encountered; its process is spoiled",
    "leave": "got the end of its process, with exit code 0", "exit": "expected no error, got SystemExit: 3"}


def each_way(ends, often=(), rarely=()):
    """By fork, but for those that are rarely tried, and by spawn those that are to be tried often."""
    return pytest.mark.parametrize(("way", "name"), [
        pytest.param(way, name, marks=[pytest.mark.slow] * (name in rarely if way == "fork" else name not in often))
        for way in ("fork", "spawn") for name in ends], indirect=["way"])


def deadline_of(name):
    """Short where a step hangs; what does not may take long on a busy machine."""
    return 1.0 if name == "hang" else 20.0


@pytest.mark.parametrize("routine", CHECKS)
@each_way(ENDS, often=["segfault"])
def test_an_end_is_the_verdict_of_one_law(name, way, routine, monkeypatch):
    """And costs one new process, SystemExit none: what follows is tried, and what cannot be is said to be left."""
    made, (named, law, more) = [], CHECKS[routine]
    monkeypatch.setattr(Worker, f"_{way}", counted(made, getattr(Worker, f"_{way}")))
    report = oracle.check(routine, getattr(ends, name), deadline=deadline_of(name), process=True, **named)
    assert report.failed_laws == [law] and len(made) == (1 if name == "exit" else 2), str(report)
    (failed,) = report.of("failed")
    met = f"{ends.SIZE} elements{more}"
    assert failed.label == met and ENDS[name] in failed.text and failed.command
    if name != "exit":
        left = [x.label for x in report.of("skipped") if x.law == law]
        assert left[0] == f"63 elements{more}" and f"after the process had ended at {met}" in report.details()
    assert not any(x.status == "failed" for x in report.items if x.law != law) and not children()
    assert "ends.py" in failed.text or name in ("sticky", "leave", "exit")


def counted(made, start):
    def counting(*arguments, **named):
        made.append(1)
        return start(*arguments, **named)

    return counting


@each_way(["raise_once"])
def test_what_spoils_nothing_takes_no_new_process(way, name):
    report = oracle.check("sgd", getattr(ends, name), process=True, **NAMED)
    assert report.failed_laws == ["L5"] and len(report.of("failed")) == 1 and not report.of("skipped")
    assert "expected no error, got RuntimeError: CUDA out of memory" in report.of("failed")[0].text


@each_way(["fork_and_return", "elsewhere"])
def test_right_steps_are_right(name, way):
    assert oracle.check("sgd", getattr(ends, name), process=True, **NAMED).ok


@pytest.mark.parametrize("routine", CHECKS)
def test_a_step_that_is_nowhere_else_runs_in_place(routine, monkeypatch):
    """It says so; and is refused if it must not."""
    named = CHECKS[routine][0]
    monkeypatch.setattr(worker, "used_device", lambda: "it has /dev/nvidia-uvm open")
    here = []

    def step(params, grads, *, lr):
        here.append(os.getpid())
        ends.plain(params, grads, lr)

    report = oracle.check(routine, step, **named)
    assert report.ok and set(here) == {os.getpid()}
    (note,) = (x for x in report.notes if x.startswith("in this process"))
    assert "has used a GPU (it has /dev/nvidia-uvm open)" in note and "cannot import the step" in note
    with pytest.raises(ValueError, match="check: process: expected a step that a process can be made for, got none"):
        oracle.check(routine, step, process=True, **named)


class Building:
    """A subject that is left to be made."""

    @property
    def name(self):
        os._exit(3)

    def takes(self, what):
        return True

    def run(self, case):
        raise NotImplementedError


def test_a_subject_that_cannot_be_made_ends_no_more_than_its_process():
    with pytest.raises(TypeError, match="expected a step, got the end of its process, with exit code 3"):
        oracle.check("sgd", Building(), **NAMED)


def test_a_process_may_be_kept(monkeypatch):
    """For checks of the same step; another one, or an end, makes another."""
    made = []
    monkeypatch.setattr(Worker, "_fork", counted(made, Worker._fork))
    named = dict(dtypes=["float32"], laws=["L6"], set={"l2_decay": 0.0})
    kept, other = Kept(), Kept()
    for _ in range(3):
        assert not oracle.check("sgd", ends.elsewhere, process=kept, **named).failed_laws
    assert len(made) == 1
    assert not oracle.check("sgd", ends.elsewhere, process=other, **named).failed_laws
    assert len(made) == 2 and kept.remote is None
    assert oracle.check("sgd", ends.segfault, process=other, **named | {"laws": ["L5"]}).failed_laws == ["L5"]
    assert oracle.check("sgd", ends.segfault, process=other, **named | {"laws": ["L5"]}).failed_laws == ["L5"]
    assert len(made) == 4  # one of another step, one after the first end
    for arrays in (None, "numpy"):  # of which one is another argument of the adapter
        before = other.remote
        assert not oracle.check("sgd", ends.elsewhere, process=other, arrays=arrays, **named).failed_laws
        assert other.remote is not before
    other.end()
    assert not children()


def test_an_end_may_be_expected():
    """What cannot be tried after it is not missed."""
    report = oracle.check("sgd", ends.leave, expected_failures={"L5": "it leaves"}, process=True, **NAMED)
    assert report.failed_laws == ["L5"] and not report.unheld, str(report)


def test_a_process_that_is_kept_has_the_shortest_deadline():
    kept = Kept()
    for deadline, shortest in ((20.0, 20.0), (10.0, 10.0), (40.0, 10.0)):
        named = dict(dtypes=["float32"], laws=["L6"], set={"l2_decay": 0.0}, deadline=deadline)
        assert not oracle.check("sgd", ends.elsewhere, process=kept, **named).failed_laws
        assert kept.remote.deadline == shortest
    kept.end()


@pytest.mark.parametrize(("longest", "deadline"), [(0.0, 10.0), (3.0, 30.0), (50.0, 40.0)])
def test_after_a_hang_others_may_take_ten_times_as_long_as_any_that_has_not(longest, deadline):
    """But 10 seconds at least, and no longer than before."""
    remote = Remote(None, "fork", 40.0)
    remote.longest = longest

    def hang(*asked):
        raise Ended("nothing within 40 s", [], late=True)

    remote.worker = SimpleNamespace(ask=hang, close=lambda: None)
    with pytest.raises(Ended):
        remote.asked("run")
    assert remote.deadline == deadline


def test_the_longest_call_of_cases_and_of_runs_is_known(monkeypatch):
    """Of four that take 3, 1, 7 and 2 seconds."""
    times = iter([0.0, 3.0, 10.0, 11.0, 20.0, 27.0, 30.0, 32.0])
    monkeypatch.setattr("refopt.oracle.process.remote.time", SimpleNamespace(monotonic=times.__next__))
    numbers = {"lr": 0.5, "l2_decay": 0.0, "rescale_grad": 1.0}
    case = draw(ROUTINES["sgd"], [(3,)], [alike("float32")], seed=1, numbers=numbers, choices={})
    remote, longest = Remote(None, "fork", 40.0), []
    remote.sender = memory.Sender()
    remote.worker = SimpleNamespace(ask=lambda message, seconds: pickle.dumps(("value", ({}, False))))
    for call in (lambda: remote.run(case), lambda: remote.soil([], "float32", 0)) * 2:
        call()
        longest.append(remote.longest)
    assert longest == [3.0, 3.0, 7.0, 7.0]


def test_an_end_has_the_last_twelve_lines():
    def leaving(params, grads, *, lr):
        print("\n".join(f"line {k}" for k in range(15)), flush=True)
        os._exit(4)

    (failed,) = oracle.check("sgd", leaving, **NAMED | {"laws": ["L6"]}).of("failed")
    assert failed.text.partition("the last it said: ")[2] == " | ".join(f"line {k}" for k in range(3, 15))


@pytest.mark.parametrize(("size", "tried"), [(2**13, True), (2**13 + 1, False)])
def test_whether_a_process_is_spoiled_is_tried_with_what_worked_in_it(size, tried):
    """Up to 64 KiB of parameters and gradients; a step whose process is not known to be spoiled has only raised."""
    calls = []

    def sticky(params, grads, *, lr):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("an illegal access")

    row, numbers = ROUTINES["sgd"], {"lr": 0.5, "l2_decay": 0.0, "rescale_grad": 1.0}
    case = draw(row, [(size,)], [alike("float32")], seed=1, numbers=numbers, choices={})
    with contextlib.ExitStack() as stack:
        named = dict(process=True, deadline=20.0, stack=stack, arrays=None, device=None, names=None, options={})
        remote, _ = in_process(row, sticky, **named)
        remote.run(case)
        with pytest.raises(Exception, match="an illegal access") as raised:
            remote.run(case)
    assert isinstance(raised.value, Ended) is tried


def test_the_report_is_that_of_a_check_in_place():
    """With its examples and causes; and without a formula, refusals of layouts among its cases."""
    named = dict(dtypes=["bfloat16"], laws=["L1", "L10"])
    there, here = (oracle.check("sgd", uphill, process=process, **named) for process in (True, False))
    assert there.items == here.items and there.causes == here.causes and there.largest == here.largest
    for step, dtype in ((ends.plain_lr, "bfloat16"), (by_place, "float32")):
        named = dict(symmetries=["sign", "elements", "zero"], dtypes=[dtype])
        there, here = (oracle.check(None, step, process=process, **named) for process in (True, False))
        assert there.items == here.items and there.compared == here.compared and there.notes == here.notes
        assert there.subject == here.subject and there.dtypes == here.dtypes


@pytest.mark.parametrize("routine", CHECKS)
def test_nothing_of_it_reaches_this_process(routine):
    def step(params, grads, *, lr):
        np.seterr(all="raise")
        np.random.seed(3)
        os.environ["REFOPT_TEST"] = "there"
        oracle.LAWS.clear()
        ends.plain(params, grads, lr)

    before, state = np.geterr(), np.random.get_state()[1].copy()
    assert oracle.check(routine, step, **CHECKS[routine][0] | {"laws": ["L1"] if routine else ["L2", "L17"]}).ok
    assert before == np.geterr() and (state == np.random.get_state()[1]).all()
    assert "REFOPT_TEST" not in os.environ and oracle.LAWS


def test_what_it_prints_is_printed_here(capsys):
    def step(params, grads, *, lr):
        print("out")
        os.write(2, b"err\n")
        ends.plain(params, grads, lr)

    oracle.check("sgd", step, **NAMED)
    out, err = capsys.readouterr()
    assert "out\n" in out and "err\n" in err


def children():
    mine = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, text=True)
    return [x for x in mine.stdout.split() if x != "ps"]


def test_it_ends_with_the_check():
    """However that ends."""
    gc.collect()  # what tests before have left open
    before, files = len(children()), len(os.listdir("/proc/self/fd"))

    def interrupted(done, total, what):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oracle.check("sgd", ends.elsewhere, progress=interrupted, **NAMED)
    with pytest.raises(TypeError):
        oracle.check("sgd", lambda params: None)
    assert oracle.check("sgd", ends.elsewhere, **NAMED).ok
    gc.collect()
    assert len(children()) == before and len(os.listdir("/proc/self/fd")) == files


def test_it_ends_with_its_parent(tmp_path):
    """Killed, that can end nothing itself."""
    (tmp_path / "hanging.py").write_text(
        "import os, time\nfrom refopt import oracle\n"
        "def step(params, grads, *, lr):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"
        "oracle.check('sgd', step, laws=['L1'])\n")
    env = os.environ | {"PYTHONPATH": str(Path(oracle.__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "hanging.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path) as process:
        child = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    until = time.monotonic() + 20
    while alive(child) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(child)


def alive(pid):
    """Whether a process is there, and more than what is left of it until its end has been seen."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_case_comes_there_as_it_is():
    """Views of one memory, guards, shared gradients; what is written there is written here, and memory is kept."""
    row = ROUTINES["momentum"]
    numbers = {hyper.name: 0.5 * (not hyper.whole) for hyper in row.hypers}
    case = draw(row, [(3, 5), (), (0,)], [alike("float32")] * 3, seed=1, numbers=numbers,
                choices={"use_nesterov": True}, count=3)
    image = np.arange(40, dtype=np.uint8)
    shared = np.ndarray((4,), np.float32, image.data, 5)
    case = case.replace(grads=[case.grads[0].T.copy().T, shared, shared], steps=[{"lr": [1.0, np.float32(2)]}])
    assert case.grads[0].strides == case.copy().grads[0].strides
    sender, receiver = memory.Sender(), memory.Receiver()
    there = receiver.unpack(sender.pack(case))
    assert there.grads[1] is there.grads[2] and there.routine is case.routine and there.steps == case.steps
    assert there.choices == case.choices == {"use_nesterov": True} and there.count == case.count == 3
    for name, values in case.slots.items():
        for x, y in zip(values or (), there.slots[name] or (), strict=True):
            assert x.tobytes() == y.tobytes() and (x.shape, x.strides, x.dtype) == (y.shape, y.strides, y.dtype)
            assert not x.size or x.ctypes.data % 64 == y.ctypes.data % 64
    there.grads[1][0] = 7
    there.params[0][...] = 9
    sender.received(receiver.pack(None))
    assert shared[0] == 7 and image[0] == 0 and image[30] == 30 and (case.params[0] == 9).all()
    address = there.params[0].ctypes.data
    again = sender.pack(case)
    kept = receiver.unpack(again)
    assert min(k for *_, k in again.pieces) == 0 and kept.params[0].ctypes.data == address
    other = draw(row, [(3,)], [alike("float32")], seed=1, numbers=numbers, choices={})
    packed = sender.pack(other.replace(grads=case.grads[1:2]))
    there = receiver.unpack(packed)
    assert sum(k >= 0 for *_, k in packed.pieces) == 1 and len(receiver.memories) == len(packed.pieces)
    assert there.grads[0] is kept.grads[1] and there.params[0].ctypes.data != address


def test_an_outcome_comes_back_in_the_arrays_of_the_case():
    """Not as copies of those; and what is no array of the case comes as it is."""
    row = ROUTINES["momentum"]
    numbers = {hyper.name: 0.5 for hyper in row.hypers}
    case = draw(row, [(3, 5), (4,)], [alike("float32")] * 2, seed=1, numbers=numbers, choices={})
    sender, receiver = memory.Sender(), memory.Receiver()
    there = receiver.unpack(sender.pack(case))
    sent = receiver.pack({"params": there.params, "velocities": [there.velocities[0], there.grads[1] + 1]})
    back = sender.received(sent)
    assert all(x is y for x, y in zip(back["params"], case.params, strict=True))
    assert back["velocities"][0] is case.velocities[0]
    assert back["velocities"][1].tobytes() == (case.grads[1] + 1).tobytes()
    sent = receiver.pack({"params": [np.repeat(there.params[0], 2, 1)[:, ::2], there.params[1]]})
    assert (sender.received(sent)["params"][0] == case.params[0]).all()
