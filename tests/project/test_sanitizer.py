"""The work that compute-sanitizer watches, on the executor, and the defects planted for its tools."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", exc_type=ImportError)

from benchmarks import planted, sanitizer
from refopt import simt
from refopt.catalog import ROUTINES
from refopt.gpu import notes

from .stand_ins import noting, recorded, tool

FOUND = {"write_beyond": simt.OutOfBounds,
         "read_a_neighbour_too_early": simt.DataRace, "barrier_for_half_a_warp": simt.BarrierDivergence,
         "barrier_for_other_lanes": simt.SimtError}


@pytest.mark.parametrize("name", FOUND)
def test_the_executor_finds_the_planted_defects(executor, name):
    x = executor.to_device(np.zeros(planted.THREADS, np.float32))
    with pytest.raises(FOUND[name]), simt.observe(watch=True):
        planted.DEFECTS[name].kernel.executor[1, planted.THREADS](x)


def test_the_executor_runs_the_one_that_it_does_not_look_for(executor):
    """Reads of memory as it was allocated: it looks for these in shared memory alone."""
    planted.launch(planted.DEFECTS["read_what_nobody_wrote"], executor)


@pytest.mark.parametrize("name", planted.DEFECTS)
def test_the_planted_kernels_compile(name):
    """And keep what they were planted for: shared memory, barriers, and a read that is not optimised away."""
    kernel, tool, *_ = planted.DEFECTS[name]
    ptx = kernel.ptx(["float32[1]"] * kernel.function.__code__.co_argcount)
    wanted = {"memcheck": "st.global", "racecheck": "ld.shared", "initcheck": "ld.global", "synccheck": "bar."}
    assert wanted[tool] in ptx


@pytest.mark.slow  # all kernels
def test_the_work_runs_every_kernel(tmp_path, monkeypatch, capsys):
    """Of refopt, on tensors as small as can be; those of programs alone included."""
    noting(tmp_path, monkeypatch)
    monkeypatch.setattr(sanitizer, "SIZES", [1, 0, 9, 1025])
    monkeypatch.setattr(sanitizer, "DTYPES", sanitizer.DTYPES[:1])
    monkeypatch.setattr(sanitizer, "MATRICES", [(1, 1), (17, 33)])
    routines = ["lars_momentum", "lamb", "novograd", "adam"]
    sanitizer.work([*routines, sanitizer.AROUND, sanitizer.MUON], "executor")
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.endswith(": equal") for line in lines)
    elementwise = {name: row for name, row in ROUTINES.items() if row.elementwise}
    left = {row.merged_name for name, row in elementwise.items() if name not in (*routines, "adamw")}
    run = {note["name"] for note in notes.read(tmp_path)}
    assert run >= {"accumulate", "scatter_add"} and sanitizer.all_kernels() - run == left


# What is made of the tools' answers, with a tool that is a script.

TOOL = """#!/bin/sh
tool=$2
for word; do last=$word; done
case "$* " in
  *benchmarks.planted*) {planted} ;;
  *) echo "adam: equal"; {clean} ;;
esac
"""
REPORTS = {"memcheck": "========= Invalid __global__ write of size 4 bytes",
           "racecheck": "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
           "initcheck": "========= Uninitialized __global__ memory read of size 4 bytes",
           "synccheck": "========= Barrier error detected. Divergent thread(s) in warp."}
ALL = "case $tool in " + "".join(f"{tool}) echo '{text}';; " for tool, text in REPORTS.items()) + "esac; exit 9"
NONE = "case $tool in racecheck) s='RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)';; "
NONE += "*) s='ERROR SUMMARY: 0 errors';; esac; echo \"========= $s\""


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """The report and exit status of a run with such a tool, in which all kernels were run but those left out."""

    def run(planted=ALL, clean=NONE, left=(), seconds=30.0):
        tool(tmp_path / "compute-sanitizer", TOOL.format(planted=planted, clean=clean), monkeypatch)
        monkeypatch.setenv("REFOPT_KERNELS", str(tmp_path / "kernels"))
        monkeypatch.setattr(sanitizer, "LIMIT", seconds)
        monkeypatch.setattr(sanitizer, "PLANTED_LIMIT", seconds)
        every = sanitizer.all_kernels() - set(left)
        about = {"module": "refopt.gpu.words", "made_by": None, "args": None, "signature": []}
        monkeypatch.setattr(notes, "read", lambda folder: [about | {"name": name} for name in sorted(every)])
        return recorded(sanitizer, tmp_path / "x.json", monkeypatch)

    return run


@pytest.mark.slow  # sixteen runs
def test_a_run_whose_tools_report_what_was_planted_passes(run_of):
    report, status = run_of()
    assert status == 0 and report["failures"] == {} and len(report["runs"]) == 16
    assert all(row["reported"] for row in report["planted"]) and len(report["planted"]) == 5


@pytest.mark.parametrize("tool", REPORTS)
def test_the_silence_of_a_tool_that_does_not_look_fails(run_of, tool):
    report, status = run_of(planted=ALL.replace(REPORTS[tool], "========= ERROR SUMMARY: 0 errors"))
    assert status == 1 and report["failures"] == {tool: "it has not reported the defect planted for it"}


@pytest.mark.parametrize("clean", [NONE.replace("0 errors", "1 error"), NONE + "; exit 9", "true",
                                   NONE.replace("0 hazards", "2 hazards")])
def test_a_run_with_something_to_say_fails(run_of, clean):
    _, status = run_of(clean=clean)
    assert status == 1


def test_a_kernel_that_was_not_run_fails(run_of):
    report, status = run_of(left=["accumulate"])
    assert status == 1 and report["failures"] == {"kernels": "not run: accumulate"}


def test_a_tool_that_hangs_is_ended(run_of):
    report, status = run_of(planted="sleep 60", seconds=1.0)
    assert status == 1 and {row["exit_status"] for row in report["planted"]} == {"timed out"}
    assert set(report["failures"]) == set(sanitizer.TOOLS)
