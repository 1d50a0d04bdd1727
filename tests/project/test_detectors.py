"""The kernels with defects, what is made of what each tool says of them, and the record with tools that are scripts."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba.cuda", exc_type=ImportError)

from benchmarks import detectors, sanitizer, sectors
from benchmarks.defects import CASES, case
from benchmarks.detectors import CRASHES, HANGS, LACKS, REPORTED, RIGHT, TOOLS, WRONG, judged, way
from refopt import simt

from .stand_ins import recorded, tool

ROWS = {row["name"]: row for row in json.loads((detectors.RESULTS / "detectors.json").read_text())["rows"]}
MISSED = {"misaligned_view"}  # by the executor, whatever it is asked
OPTIONS = {"--strict": "strict", "--doubles": "doubles"}


def test_the_record_has_every_kernel():
    assert list(ROWS) == list(CASES)
    assert {name: row["what"] for name, row in ROWS.items()} == {name: one.what for name, one in CASES.items()}


@pytest.fixture
def on_executor(monkeypatch):
    """Runs a case with the executor in place of Numba, watched, with options: what it reports, or its result."""
    for name, module in list(sys.modules.items()):
        if name.startswith("benchmarks.defects.") and hasattr(module, "cuda"):
            monkeypatch.setattr(module, "cuda", simt.cuda)
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 1_000)
    monkeypatch.setattr(simt.limits, "seconds", 0.5)

    def run(one, options):
        named = dict(zip([OPTIONS[word] for word in options[::2]], options[1::2], strict=True))
        try:
            with simt.observe(watch=True, **named):
                values, meant = one.run()
        except simt.SimtError as error:
            return REPORTED, type(error).__name__
        return (RIGHT if np.allclose(values[: np.size(meant)], meant, rtol=1e-6) else WRONG), ""

    yield run


@pytest.mark.parametrize("name", CASES)
def test_the_record_says_what_the_executor_says(on_executor, name):
    ways = {one["how"]: (one["verdict"], one.get("says", "")) for one in ROWS[name]["ways"]}
    assert on_executor(CASES[name], ()) == ways["executor"], "run python -m benchmarks.detectors --on cpu"
    assert (ways["executor"] == (RIGHT, "")) >= CASES[name].right
    if CASES[name].options:
        assert on_executor(CASES[name], CASES[name].options) == ways["executor, on request"]
    elif not CASES[name].right and name not in MISSED:
        assert ways["executor"][0] == REPORTED


# They are nothing of the package's: make test compiles every sixth.
COMPILED = [pytest.param(name, marks=[pytest.mark.slow] * (k % 6 > 0))
            for k, name in enumerate(name for name, one in CASES.items() if one.body.__name__ == name)]


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernels_compile_for_a_gpu(name, monkeypatch):
    """With lines, as compute-sanitizer needs them."""
    from numba import cuda, types
    from numba.np.numpy_support import from_dtype

    arrays = []
    monkeypatch.setattr(cuda, "device_array", np.empty)
    device = SimpleNamespace(compute_capability=(9, 0))  # which a barrier of the grid and views ask for
    monkeypatch.setattr(cuda.dispatcher, "get_current_device", lambda: device)
    monkeypatch.setattr(case, "jit", lambda body: defaultdict(lambda: lambda *args: arrays.extend(args)))
    CASES[name].run()
    signature = types.void(*(types.Array(from_dtype(x.dtype), x.ndim, "C") for x in arrays))
    ptx, _ = cuda.compile_ptx(CASES[name].body, signature, cc=(9, 0), lineinfo=True)
    assert ".entry" in ptx and ".loc" in ptx


# What is made of what the tools say.

MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at __main__::no_guard[abi:v2](Array<float, (int)1, C, mutable, aligned>)+0xd0 in memory.py:{line}
=========     by thread (36,0,0) in block (1,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:  run in case.py:60
========= ERROR SUMMARY: 1 error
"""
RACE = """========= Error: Potential RAW hazard detected at __shared__ 0x7c in block (0,0,0) :
=========     Write Thread (31,0,0) at reverse+0x260 in memory.py:{line}
=========     Read Thread (32,0,0) at reverse+0x270 in memory.py:{line}
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
ANALYSIS = """========= Warning: Race reported between Write access at reverse+0x260
=========     and Read access at reverse+0x270 [256 hazards]
"""
EXECUTOR = """Traceback (most recent call last):
  File "/x/benchmarks/defects/case.py", line 60, in run
refopt.simt.OutOfBounds: index 100 is out of bounds for x, shape (100,), float32
  in kernel no_guard at /x/benchmarks/defects/memory.py:{line}, block (1, 0, 0), thread (36, 0, 0)
"""
SIMULATOR = """Traceback (most recent call last):
  File "/x/benchmarks/defects/memory.py", line {line}, in no_guard
IndexError: tid=[36, 0, 0] ctaid=[1, 0, 0]: index 100 is out of bounds for axis 0 with size 100
"""
LINE = max(CASES["no_guard"].lines()[1])
UNKNOWN = "AttributeError: tid=[0, 0, 0] ctaid=[0, 0, 0]: 'FakeCUDAModule' object has no attribute 'syncwarp'"
ILLEGAL = "numba.cuda.cudadrv.driver.CudaAPIError: [716] Call to x results in CUDA_ERROR_MISALIGNED_ADDRESS\nmore"
HOST_ALONE = MEMCHECK.replace(" in memory.py:{line}", "").replace("case.py:60", "memory.py:{line}")
SAID = [("memcheck", 9, MEMCHECK, (REPORTED, "Invalid __global__ write", True, True)),
        ("memcheck", 9, HOST_ALONE, (REPORTED, "Invalid __global__ write", False, True)),
        ("memcheck", 9, MEMCHECK.replace("{line}", "1"), (REPORTED, "Invalid __global__ write", False, True)),
        ("racecheck", 9, RACE, (REPORTED, "Potential RAW hazard", True, True)),
        ("racecheck", 0, ANALYSIS + "the result is right\n", (REPORTED, "Race reported", False, False)),
        ("synccheck", 9, "========= Barrier error detected. Invalid arguments.", (REPORTED, "Barrier error")),
        ("synccheck", 0, "the result is wrong\n========= ERROR SUMMARY: 0 errors", (WRONG,)),
        ("memcheck", "timed out", "========= COMPUTE-SANITIZER", (HANGS,)),
        ("memcheck", "timed out", MEMCHECK, (REPORTED, "Invalid __global__ write", True, True)),
        ("memcheck", 1, "compute-sanitizer: unknown option", (CRASHES, "")),
        ("alone", 1, ILLEGAL, (CRASHES, "CUDA_ERROR_MISALIGNED_ADDRESS")),
        ("alone", 0, "the result is right", (RIGHT,)), ("alone", -9, "", (CRASHES, "")),
        ("executor", 1, EXECUTOR, (REPORTED, "OutOfBounds", True, True)),
        ("executor", 1, "ValueError: none of its reports", (CRASHES, "")),
        ("simulator", 1, SIMULATOR, (REPORTED, "IndexError", True, True)), ("simulator", 1, UNKNOWN, (LACKS, "")),
        ("simulator", 0, "the result is wrong", (WRONG,))]


@pytest.mark.parametrize(("how", "status", "output", "expected"), SAID)
def test_a_verdict(how, status, output, expected):
    row = judged(way(how, CASES["no_guard"]), CASES["no_guard"], status, output.replace("{line}", str(LINE)))
    assert tuple(row.get(key) for key in ("verdict", "says", "line", "threads"))[: len(expected)] == expected


# The record of a GPU: alone it is Numba's simulator, and the tool is a script that runs nothing.

TOOL = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version 2026.1"; exit 0; fi
case "$2 $*" in
  *wait_that_nobody_ends) sleep 60;;
  {reports}
  *) echo 'the result is wrong';;
esac
"""
REPORTS = {"memcheck negative_index": "Invalid __global__ write of size 4",
           "racecheck negative_index": "Error: Potential RAW hazard detected at __shared__ 0x0",
           "initcheck negative_index": "Uninitialized __global__ memory read of size 4",
           "synccheck negative_index": "Barrier error detected. Divergent thread(s) in warp."}


@pytest.fixture
def record_of(tmp_path, monkeypatch):
    """The record of some kernels with such a tool, and the exit status; "GPU alone" is Numba's simulator."""

    def run(reports, *names, hanging=3.0):
        lines = (f"{key.replace(' ', '*')}) echo '========= {text}'; exit 9;;" for key, text in reports.items())
        tool(tmp_path / "compute-sanitizer", TOOL.format(reports="\n  ".join(lines)), monkeypatch)
        real = detectors.way
        simulated = {"NUMBA_ENABLE_CUDASIM": "1"}
        monkeypatch.setattr(detectors, "way", lambda name, one: real(name, one)._replace(environment=simulated))
        monkeypatch.setattr(detectors, "CASES", {name: CASES[name] for name in names})
        monkeypatch.setattr(detectors, "machine", lambda: {"device": "NVIDIA H200"})
        monkeypatch.setattr(detectors, "HANGING", hanging)
        return recorded(detectors, tmp_path / "x.json", monkeypatch, "--jobs", 2)

    return run


@pytest.mark.slow  # a clock
def test_the_record_of_a_gpu(record_of):
    """Reports, results of silent tools, and a kernel that hangs, which is ended."""
    report, status = record_of(REPORTS, "negative_index", "wait_that_nobody_ends")
    assert status == 0 and report["failures"] == {} and report["sanitizer"] == ["Version 2026.1"]
    verdicts = {row["name"]: {one["how"]: (one["verdict"], one.get("says")) for one in row["ways"]}
                for row in report["rows"]}
    assert list(verdicts["negative_index"]) == ["alone", *TOOLS]
    assert verdicts["negative_index"]["alone"] == (WRONG, None)
    assert verdicts["negative_index"]["memcheck"] == (REPORTED, "Invalid __global__ write")
    assert verdicts["negative_index"]["racecheck"] == (REPORTED, "Potential RAW hazard")
    assert set(verdicts["wait_that_nobody_ends"].values()) == {(HANGS, None)}


@pytest.mark.slow  # simulators in processes of their own
def test_a_silent_tool_and_a_wrong_result_fail_the_record(record_of):
    reports = {key: text for key, text in REPORTS.items() if not key.startswith("initcheck")}
    report, status = record_of(reports, "negative_index", "mean_of_bytes")
    assert status == 1
    assert report["failures"] == {"initcheck": "it has reported nothing at all", "mean_of_bytes, alone": WRONG}


@pytest.mark.slow  # a clock
def test_what_is_ended_begins_nothing_more(tmp_path):
    """By a signal, as `benchmarks.gpu_records` ends a step: no kernel is left running, and no other is started."""
    out, log = tmp_path / "x.json", tmp_path / "log"
    command = [sys.executable, "-m", "benchmarks.detectors", "--on", "cpu", "--out", str(out), "--only"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, "no_guard", "lock", "no_syncwarp"], cwd=detectors.ROOT, stdout=file)
    until = time.monotonic() + 60
    while "no_guard" not in log.read_text() and time.monotonic() < until:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(20) == 143 and len(json.loads(out.read_text())["rows"]) < 3


@pytest.mark.parametrize(("module", "arguments", "name"), [(detectors, ["--on", "gpu"], "compute-sanitizer"),
                                                           (sanitizer, [], "compute-sanitizer"), (sectors, [], "ncu")])
def test_without_the_tool(module, arguments, name, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["x", *arguments])
    with pytest.raises(SystemExit):
        module.main()
    assert f"expected {name} on the path" in capsys.readouterr().err
