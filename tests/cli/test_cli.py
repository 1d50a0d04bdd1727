"""The command ``refopt``: what it prints, what it exits with, and that it cannot pass on broken kernels."""

import io
import json
import platform
import re
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import refopt
from refopt import catalog, cli, cpu, gpu
from refopt.catalog import LARS_MOMENTUM, workloads
from refopt.cli import verify
from refopt.cli.progress import Progress
from refopt.cli.verify import around, command, compare, table, tasks
from refopt.cli.verify import report as result
from refopt.cli.verify.compare import Row
from refopt.gpu import cache, cast, tables, timing
from refopt.gpu.machine import Properties
from refopt.gpu.tiles import ROW, TILE
from refopt.oracle import ulp

FOR_LARS = [dtype for dtype in verify.DTYPES if verify.offered(LARS_MOMENTUM, dtype)]


def tiny():
    """A few tensors, one larger than a tile. bn1.bias gets no parameter but zero, bn4.bias no gradient."""
    yield "conv1.weight", (8, 3, 3, 3)
    yield "fc.weight", (10, 110)
    for k in range(6):
        yield f"bn{k}.weight", (7 + k,)
        yield f"bn{k}.bias", (7 + k,)


@pytest.fixture(autouse=True)
def tiny_workload(monkeypatch):
    monkeypatch.setitem(workloads.WORKLOADS, "tiny", tiny)


def run(*args, dtype="fp32", form="two_launches"):
    chosen = [*(["--dtype", dtype] if dtype else []), *(["--form", form] if form else [])]
    return cli.main(["verify", "--workload", "tiny", "--device", "executor", *chosen, *args])


def report(capsys, name="lars_momentum", **choice):
    status = run("--routine", name, "--json", "-", **choice)
    answer = json.loads(capsys.readouterr().out)
    assert status == (0 if answer["ok"] else 1)
    return answer


HEAD = """\
device   the executor, on the CPU (as asked), as a device of compute capability
         9.0, 132 multiprocessors
kernels  run as Python; none is compiled
tensors  the 14 of tiny, 1,430 elements

lars_momentum: CPU reference and kernels, compared after each of 2 steps

"""


@pytest.mark.parametrize("dtypes", [["fp32", "bf16+16"], pytest.param(FOR_LARS, marks=pytest.mark.slow)])
def test_every_row_in_80_columns(capsys, dtypes):
    assert run("--routine", "lars_momentum", "--dtype", *dtypes, dtype=None, form=None) == 0
    out, err = capsys.readouterr()
    assert not err and out.startswith(HEAD) and max(map(len, out.splitlines())) <= 80
    rows = [re.split(" +", text) for text in out.splitlines() if text.endswith(" ok")]
    assert [row[:2] for row in rows] == [[d, f] for d in dtypes for f in LARS_MOMENTUM.forms]
    assert {"fp32", "two_launches", "14", "1", "2", "0"} <= set(rows[2])
    assert f"{4 * len(dtypes)} of {4 * len(dtypes)} equal in every bit" in out


@pytest.mark.parametrize(("said", "reason"), [
    ("device: expected a GPU, got none: no driver", "no driver"), ("device: one that is too old", None)])
def test_the_executor_says_why_there_is_no_gpu(executor, monkeypatch, said, reason):
    def refused(name):
        raise RuntimeError(said)

    monkeypatch.delenv("REFOPT_DEVICE", raising=False)
    monkeypatch.setattr(gpu, "device", refused)
    assert command._device(executor, None)["reason"] == (reason or said)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "check_gradients", "merged_cast", "coalesce_tensor"])
def test_times_of_a_gpu(capsys, name):
    """On a GPU each row has a time, and the rates come after the table."""
    args = ["verify", "--workload", "tiny", "--device", "gpu", "--dtype", "fp32", "--routine", name]
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert "ms/step     GB/s  of copy" in out and max(map(len, out.splitlines())) <= 80
    assert cli.main([*args, "--json", "-"]) == 0
    assert all(row["milliseconds"] > 0 for row in json.loads(capsys.readouterr().out)["rows"])


def test_a_time_is_of_what_was_compared(monkeypatch):
    """Casts and coalescing are plain calls, not plans with steps."""
    monkeypatch.setattr(timing, "milliseconds", lambda run, **_: 7.0 + run())
    calls = SimpleNamespace(launches=1, bytes=8)
    machine = SimpleNamespace(name="gpu", synchronize=lambda: None)
    row = around.row("merged_cast", "fp32", "", workloads.load("tiny"), lambda: 1.0, calls, machine, lambda: [], [])
    assert row.milliseconds == 8.0


def test_widest_rows_are_80_columns():
    row = verify.Row("lars_momentum", "fp16-amp", "carried_norm", 999_999, 10**12, 999_999, 99_999, 999_999, 99_999,
                     87_226_227_200, True, 10**18, 1, (), ("launches: ...",), 99_999.999, 99_999.99)
    assert len(table.line(row)) == 80 and len(table.speed_line(row, copy=4.3e12)) <= 80
    assert table.line(row._replace(max_ulps=ulp.MAXIMUM)).endswith("NaN  FAIL")
    m = verify.Mismatch(2, "master_params", 999, "x." * 25, 10**9, ("0x" + 16 * "f", "nan"), ("0x0", "0"), ulp.MAXIMUM)
    text = table.explain(row._replace(mismatches=(m,)))
    assert max(map(len, text.splitlines())) <= 80 and "off by NaN ULP" in " ".join(text.split())
    assert max(map(len, (table.HEADER + "\n" + table.SPEED_HEADER).splitlines())) <= 80


def test_json(capsys, tmp_path):
    file = tmp_path / "report.json"
    assert run("--json", str(file), dtype="fp16-amp", form="cooperative") == 0
    assert "cooperative" in capsys.readouterr().out
    answer = json.loads(file.read_text())
    assert answer.pop("versions")["numpy"] == np.__version__ and answer.pop("seconds") > 0
    counts = {"tensors": 14, "elements": 1430}
    row = counts | {"routine": "lars_momentum", "dtype": "fp16-amp", "form": "cooperative", "ops_before": 14,
                    "ops_after": 1, "launches_before": 14, "launches_after": 1,
                    "bytes": 1430 * (2 * 2 + 2 * 2 + 4 * 2 + 4 * 2), "counted": True, "max_ulps": 0, "differing": 0,
                    "mismatches": [], "problems": [], "milliseconds": None, "speedup": None, "ok": True}
    device = {"kind": "executor", "name": "the executor, on the CPU", "reason": "as asked", "multiprocessors": 132,
              "kernels": "run as Python; none is compiled", "compute_capability": "9.0"}
    assert answer == {"schema": "refopt.verify/1", "ok": True, "device": device, "steps": 2, "skipped": {},
                      "rows": [row], "workload": counts | {"name": "tiny", "elements_used": 1430, "scaled": ""},
                      "copy_bytes_per_second": None}


def test_what_a_scaled_model_has_left(capsys):
    assert run("--routine", "sgd", "--max-elements", "9", "--json", "-", form=None) == 0
    model = json.loads(capsys.readouterr().out)["workload"]
    assert (model["elements"], model["elements_used"], model["scaled"]) == (
        1430, 5 + 9 + 2 * (7 + 8 + 4 * 9), "tensors of up to 9")


EXPLAINED = """\
adam fp32 merged:
  a
  b
  c
  d
  and 1 more
  step 2, params[3] fc.weight, element 7: off by 1e+06 ULP
    expected 0x1 = 0.5
    got      0x2 = 0.25
  and 12,345 more differences"""


def test_words_of_a_row():
    wrong = verify.Mismatch(2, "params", 3, "fc.weight", 7, ("0x1", "0.5"), ("0x2", "0.25"), 1_000_000)
    counts = 3, 9, 3, 1, 3, 1, 4_000_000_000
    row = Row("adam", "fp32", "merged", *counts, True, 999_999, 12_346, (wrong,), (*"abcde",), 2.0)
    assert table.line(row) == "fp32      merged             3     1       3     1   4,000,000,000  999999  FAIL"
    assert table.explain(row) == EXPLAINED
    assert "more" not in table.explain(row._replace(problems=(*"abcd",), differing=1))
    assert compare.text_of(np.float16(6e-8)) == ("0x0001", "6e-08")
    right = row._replace(differing=0, problems=(), mismatches=())
    assert table.explain(right) == "adam fp32 merged:" and (right.ok, row.ok) == (True, False)
    assert table.summary([row, right], 9.96) == "1 of 2 FAILED; 10.0 s"
    assert table.summary([right], 10) == "1 of 1 equal in every bit; launches and bytes as in the catalogue; 10 s"
    assert "bytes computed, not counted; 1.0 s" in table.summary([right, right._replace(counted=False)], 1)
    assert result.record(row, 4e12)["copy_share"] == 0.5 and "copy_share" not in result.record(row, None)
    assert result.line([row, right], {"kind": "gpu", "name": "H200", "compute_capability": "9.0"}).startswith(
        f"refopt {refopt.__version__}: 1/2 equal, H200 9.0, numba-cuda ")
    assert result.line([row], {"kind": "executor", "compute_capability": "9.0"}) == (
        f"refopt {refopt.__version__}: 0/1 equal, executor 9.0, python {platform.python_version()}")


@pytest.mark.parametrize(("most", "counted", "said"), [
    (1430, True, "as in the catalogue"), (1429, False, "computed, not counted")])
def test_large_models_are_not_counted(capsys, monkeypatch, most, counted, said):
    """Their launches and bytes are the plan's."""
    monkeypatch.setattr(compare, "COUNTED", most)
    for name in ("sgd", "merged_cast"):
        assert all(row["counted"] == counted for row in report(capsys, name, form=None)["rows"])
    assert run("--routine", "sgd", form=None) == 0 and f"launches and bytes {said}" in capsys.readouterr().out


def test_where_kernels_come_from(monkeypatch, tmp_path):
    """On a GPU: from the folder that they are kept in, or from the compiler, whose version is said."""
    about = Properties("H200", (9, 0), 132, 1)
    monkeypatch.setenv("REFOPT_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "origins", Counter(kept=5, compiled=2))
    device = command._device(SimpleNamespace(name="gpu", properties=about), None)
    assert device["kernels"].startswith(f"as kept in {tmp_path}, or compiled for 9.0 by numba-cuda ")
    assert command._came_from(device).startswith(f"5 as kept in {tmp_path}, 2 compiled for 9.0 by numba-cuda ")
    monkeypatch.setenv("REFOPT_CACHE", "0")
    monkeypatch.setattr(cache, "origins", Counter(compiled=7))
    assert command._came_from(device).startswith("7 compiled for 9.0 by numba-cuda ")
    device = command._device(SimpleNamespace(name="gpu", properties=about), None)
    assert device["kernels"].startswith("compiled for 9.0 by")


def test_as_many_steps_as_asked(monkeypatch):
    step, taken = gpu.Plan.step, []
    monkeypatch.setattr(gpu.Plan, "step", lambda self, **hyper: taken.append(step(self, **hyper)))
    assert cli.main(["verify", "--routine", "sgd", "--dtype", "fp32", "--form", "merged", "--steps", "4"]) == 0
    assert len(taken) == 4


def test_averages_of_rows_are_compared_and_not_counted(capsys):
    """Bytes are per element in the catalogue."""
    (row, *_) = report(capsys, "normuon", form=None)["rows"]
    assert row["counted"] and row["max_ulps"] == 0 and not row["problems"]


def test_broken_rule_is_found(capsys, monkeypatch):
    exact = LARS_MOMENTUM.rule

    def broken(p, g, v, **numbers):
        p, v = exact(p, g, v, **numbers)
        if p.size == 1100:
            v[1030] = np.nextafter(v[1030], p.dtype.type(np.inf))
        return p, v

    monkeypatch.setitem(cpu.merged_lars_momentum.__globals__, "LARS_MOMENTUM", LARS_MOMENTUM._replace(rule=broken))
    assert run() == 1
    out = capsys.readouterr().out
    assert re.search(r"^fp32 +two_launches .* FAIL$", out, re.MULTILINE)
    assert "step 1, velocities[1] fc.weight, element 1030: off by 1 ULP" in out
    assert re.search(r"expected 0x[0-9a-f]{8} = -?0\.\d+", out) and max(map(len, out.splitlines())) <= 80
    assert "1 of 1 FAILED" in out
    (row,) = report(capsys)["rows"]
    first = row["mismatches"][0]
    assert first["ulps"] == 1 and row["differing"] >= 2
    expected, got = (np.array(int(first[side][0], 16), np.uint32).view(np.float32) for side in ("expected", "got"))
    assert expected == np.nextafter(got, np.float32(np.inf))


@pytest.mark.parametrize("name", verify.AROUND)
def test_what_goes_on_around_a_step(capsys, monkeypatch, name):
    """Every row agrees, in 80 columns; a kernel that does nothing is found."""
    dtypes = [dtype for dtype in verify.PLAIN if not verify.unavailable(dtype)]
    assert run("--routine", name, dtype=None, form=None) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert {text.split()[0] for text in out.splitlines() if text.endswith(" ok")} == set(dtypes)
    for idle in (gpu.GradientCheck, cast.CastPlan):
        monkeypatch.setattr(idle, "__call__", lambda self, **scale: None)
    (row, *_) = rows = report(capsys, name=name, form=None)["rows"]
    for one in rows if name != "check_gradients" else ():
        assert one["differing"] == (2 * 1430 if one["form"] == "gather" else 1430), "in views, and in their buffer"
    where = {(m["step"], m["slot"], m["tensor"], m["name"]) for m in row["mismatches"]}
    assert {m["got"][1] for m in row["mismatches"]} == {"0.0"} != {m["expected"][1] for m in row["mismatches"]}
    assert min(where) == (1, row["form"], *((14, "result") if name == "check_gradients" else (0, "conv1.weight")))
    before = 28 if name == "check_gradients" else 14
    assert (row["tensors"], row["elements"], row["ops_before"], row["launches_before"]) == (14, 1430, before, before)
    assert row["ops_after"] == 1
    assert row["problems"][0] == f"launches: expected {row['launches_after']} by the plan, got 0"
    assert row["differing"] and [text.split(":")[0] for text in row["problems"]] == ["launches", "bytes"]


def idle(patch):
    patch.setattr(gpu.Plan, "step", lambda self, **hyper: None)


def spoiling(patch):
    step = gpu.Plan.step

    def spoil(self, **hyper):
        step(self, **hyper)
        self._call.slots["grads"][0].copy_to_device(np.ones((8, 3, 3, 3), np.float32))

    patch.setattr(gpu.Plan, "step", spoil)


def all_idle(patch):
    idle(patch)
    patch.setattr(cpu, "merged_lars_momentum", lambda *slots, **numbers: None)


def other_launches(patch):
    forms = {**LARS_MOMENTUM.forms, "two_launches": catalog.Form(launches=3)}
    patch.setitem(catalog.KNOWN, "lars_momentum", LARS_MOMENTUM._replace(forms=forms))


def other_bytes(patch):
    def traffic(form, dtypes, **choices):
        return LARS_MOMENTUM.traffic(form, dtypes, **choices) | {"grads": 3}

    patch.setitem(catalog.KNOWN, "lars_momentum", LARS_MOMENTUM._replace(traffic=traffic))


@pytest.mark.parametrize(("breaking", "slots", "problems"),
                         [(idle, {"params"}, ["launches", "bytes"]), (spoiling, {"grads"}, []),
                          (all_idle, set(), [r"\w+\[\d+\] [\w.]+: the reference changes nothing", "launches", "bytes"]),
                          (other_launches, set(), ["launches: expected 3 by the catalogue, got 2"]),
                          (other_bytes, set(), [r"bytes: expected [\d,]+ by the catalogue, got [\d,]+"])])
def test_what_is_broken_is_found(capsys, monkeypatch, breaking, slots, problems):
    """A kernel that does nothing or too much, a reference that does nothing, another catalogue."""
    breaking(monkeypatch)
    (row,) = report(capsys)["rows"]
    assert {m["slot"] for m in row["mismatches"]} == slots and len(row["mismatches"]) == min(4, row["differing"])
    assert row["max_ulps"] >= max((m["ulps"] for m in row["mismatches"]), default=0)
    said = [next((known for known in problems if re.match(known, text)), text) for text in row["problems"]]
    assert [*dict.fromkeys(said)] == problems and not row["ok"]


@pytest.mark.parametrize(("args", "named"),
                         [(["--dtype", "fp8"], list(verify.DTYPES)),
                          (["--form", "fast"], list(LARS_MOMENTUM.forms)),
                          (["--routine", "sgd", "--form", "two_launches"],
                           ["--form: sgd has " + ", ".join(catalog.KNOWN["sgd"].forms)]),
                          (["--routine", "sgdm"], list(catalog.KNOWN)),
                          (["--workload", "vgg"], ["resnet50", "bert-large", "gpt2-xl", "llama-3-8b"]),
                          (["--device", "tpu"], ["gpu", "executor"]), (["--steps", "1"], ["at least 2"]),
                          (["--max-elements", "none"], ["at least 1"]),
                          (["--routine", "novograd", "--dtype", "bf16-sr"], ["nothing to verify"])])
def test_wrong_usage(capsys, args, named):
    assert cli.main(["verify", *args]) == 2
    out, err = capsys.readouterr()
    assert not out and all(name in " ".join(err.split()) for name in named) and max(map(len, err.splitlines())) <= 80
    assert err.startswith("refopt verify: error: ") and err.endswith("\nrefopt verify --help shows the arguments\n")


ALL_OF_LARS = tuple(LARS_MOMENTUM.forms)
TASKS = [(["sgd", "sgd", "--dtype", "fp32", "fp32"], [("sgd", "fp32", ("merged",))]),
         (["sgd", "--form", "separate", "merged", "--dtype", "bf16-sr"], [("sgd", "bf16-sr", ("separate", "merged"))]),
         (["lars_momentum", "--dtype", "fp64", "bf16-sr"], [("lars_momentum", "fp64", ALL_OF_LARS)]),
         (["merged_cast", "lamb", "--dtype", "fp16-amp", "fp16"],
          [("lamb", "fp16-amp", ("merged",)), ("lamb", "fp16", ("merged",)), ("merged_cast", "fp16", ())])]


@pytest.fixture
def computed(monkeypatch):
    """Those that a run would compute."""
    found = []

    def none(asked, machine, steps, report):
        found.extend(asked)
        yield from ()

    monkeypatch.setattr(command, "all_rows", none)
    monkeypatch.setenv("REFOPT_DEVICE", "executor")
    return found


@pytest.mark.parametrize(("args", "expected"), TASKS)
def test_tasks(computed, args, expected):
    assert cli.main(["verify", "--routine", *args]) == 0
    assert [(task.name, task.dtype, task.forms) for task in computed] == expected


def test_all_tasks(computed, capsys):
    """Of every routine, its own forms; operations around a step unless a form is asked for. Models are scaled."""
    assert cli.main(["verify", "--dtype", "fp32", "fp64"]) == 0
    assert "the CPU (as asked)" in (out := " ".join(capsys.readouterr().out.split())) and "scaled to" in out
    assert {task.name for task in computed} == {*catalog.KNOWN, *verify.AROUND}
    sizes = {task.name: (len(task.workload), max(x.elements for x in task.workload.tensors)) for task in computed}
    assert sizes["sgd"][1] <= 1500 < sizes["lamb"][1] == sizes["merged_cast"][1] <= 17_500 and sizes["muon"][0] == 6
    assert f"scaled to {max(task.workload.elements for task in computed):,}: " in out
    computed.clear()
    assert cli.main(["verify", "--form", "merged"]) == 0 and "skipped" not in capsys.readouterr().out
    assert not {task.name for task in computed} & {*verify.AROUND}
    computed.clear()
    assert cli.main(["verify", "--routine", "sgd", "muon", "--dtype", "fp32", "--full"]) == 0
    assert [task.workload for task in computed] == [(whole := workloads.load("resnet50")), whole.matrices()]
    assert cli.main(["verify", "--full", "--max-elements", "9"]) == 2
    assert "argument --full: cannot be combined with --max-elements" in capsys.readouterr().err


def test_version(capsys):
    assert cli.main(["--version"]) == 0 and capsys.readouterr().out == f"refopt {refopt.__version__}\n"


NO_BF16 = "ml_dtypes is not installed (pip install 'refopt[bf16]')"


def test_bf16_is_skipped_without_ml_dtypes(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    answer = report(capsys, "sgd", dtype=None, form=None)
    assert {row["dtype"] for row in answer["rows"]} == {"fp32", "fp64", "fp16", "fp16-amp"}
    assert answer["skipped"]["bf16"] == NO_BF16 and not report(capsys, "sgd", form=None)["skipped"]
    assert [row["form"] for row in report(capsys, "merged_cast", form=None)["rows"]] == ["to fp16"]
    for name, dtype, what in (("sgd", "bf16", "bf16"), ("muon", "fp32", "muon in fp32")):
        assert run("--routine", name, dtype=dtype, form=None) == 2
        assert f"argument --dtype: {what}: {NO_BF16}" in " ".join(capsys.readouterr().err.split())
    everything = report(capsys, "muon", dtype=None, form=None)
    assert {row["dtype"] for row in everything["rows"]} == {"fp64"}
    assert everything["skipped"]["muon in fp32"] == everything["skipped"]["bf16"] == NO_BF16


@pytest.mark.parametrize("several", [False, True])
def test_progress_moves_within_a_routine(executor, monkeypatch, several):
    """Whether tasks run in other processes or here; each reports all of its stages, in order."""
    monkeypatch.setattr(tasks, "processes", lambda *_: 1 + several)
    lars = tasks.Task("lars_momentum", "fp32", workloads.load("tiny"), ("two_launches", "carried_norm"))
    asked, told = [lars, tasks.Task("check_gradients", "fp64", workloads.load("tiny"))], []
    assert [task for task, _ in tasks.all_rows(asked, executor, 2, told.append)] == [lars, lars, asked[1]]
    begun = [stage for stage in told if stage.startswith("lars_momentum fp32 ")]
    assert [stage.removeprefix("lars_momentum fp32 ") for stage in begun] == ["data", *(
        f"{what}, step {k}" for what in ("reference", "two_launches", "carried_norm") for k in (1, 2))]
    assert [tasks.Task("muon", x, lars.workload, ("merged",)).stages(2) for x in ("fp32", "fp16")] == [9, 5]
    assert len(begun) == lars.stages(2) and len([*filter(None, told)]) == sum(task.stages(2) for task in asked)


def test_how_long_whole_models_take_is_said_before(capsys, monkeypatch):
    """By the elements that are read: once for each array and stage, or for each row of a product."""
    assert run("--routine", "sgd", form=None) == 0 and "\ntime " not in capsys.readouterr().out
    monkeypatch.setattr(compare, "COUNTED", 1429)
    monkeypatch.setattr(tasks, "SPEED", 2 * 1430 * (1 + 2 + 2) / 7)
    assert run("--routine", "sgd", form=None) == 0
    assert "\ntime     roughly 7 s, by processes that each read " in capsys.readouterr().out
    whole = workloads.load("resnet50").matrices()
    work = [tasks.Task(name, "fp32", whole, ("merged",)).work(2) for name in ("momentum", "muon")]
    assert 100 < work[1] / work[0] < 1000
    assert [table.span(x) for x in (99, 100, 5999, 6000)] == ["99 s", "2 min", "100 min", "2 h"]


def test_progress_is_one_line_and_gone_in_the_end(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(time, "monotonic", lambda: 3.0)
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        with Progress(stream, 2) as progress:
            progress.show("fp32 reference")
            progress.done += 1
            progress.show("fp32 cooperative")
            for stage in ("data", "", "merged"):
                progress.begin(stage)
    assert not pipe.getvalue()
    bars = f"[{' ' * 30}] 0/2  fp32 refere", f"[{'#' * 15}{' ' * 15}] 1/2  fp32 cooper"  # a column is left
    bars += *[f"[{'#' * 15}{' ' * 15}] 1/2  0 s  data"] * 2, f"[{'#' * 30}] 2/2  0 s  merged"
    assert terminal.getvalue() == "".join(f"\r\033[K{bar}" for bar in (*bars, ""))


@pytest.mark.parametrize("name", ["resnet50", "bert-large", "gpt2-xl", "llama-3-8b"])
def test_scaled_workloads_cross_tiles_and_chunks(name):
    whole = workloads.load(name)
    workload, how = verify.extents(whole, "executor")
    sizes = sorted(tensor.elements for tensor in workload.tensors)
    assert len(workload) == len(whole) and how
    assert sizes[-1] > tables.CHUNK_BYTES // 4  # of elements with a gradient, both of 16 bits
    assert all(size > TILE for size in sizes[-3:]) and all(size > ROW for size in sizes[-7:]) and sizes[-8] <= 16
    sizes = sorted(tensor.elements for tensor in verify.extents(whole, "executor", norms=False)[0].tensors)
    assert all(TILE < size <= 1500 for size in sizes[-3:]) and all(size > ROW for size in sizes[-7:])
    assert verify.extents(whole, "gpu", 50)[0] == whole.scaled(50)
    assert (verify.extents(whole, "gpu")[0] is whole) == (name in ("resnet50", "bert-large"))
    decays = verify.hypers(LARS_MOMENTUM, whole, 0)["lars_weight_decay"]  # none for biases and norms
    assert [decay == 0 for decay in decays] == [len(tensor.shape) == 1 for tensor in whole.tensors]


def test_data():
    workload, _ = verify.extents(workloads.load("resnet50"), "executor")
    case = verify.make_case(LARS_MOMENTUM, workload, "bf16-amp", steps=3)
    params, masters = case.slots["params"], case.slots["master_params"]
    assert all((m.astype(p.dtype) == p).all() for m, p in zip(masters, params, strict=True))
    assert any((m != p.astype(m.dtype)).any() for m, p in zip(masters, params, strict=True))
    zero = [[not x.any() for x in xs] for xs in (params, case.grads[0], case.slots["velocities"])]
    assert [sum(z) for z in zero] == [9, 9, 0] and any(p and not g for p, g, _ in zip(*zero, strict=True))
    assert any(p and g for p, g, _ in zip(*zero, strict=True))
    assert not np.array_equal(case.grads[0][0], case.grads[1][0])
    assert case.hypers[0]["lr"] != case.hypers[1]["lr"] and len(set(case.hypers[0]["lr"])) > 1
    assert case.hypers[0]["rescale_grad"] != 1 and min(case.hypers[0]["epsilon"]) > 0
