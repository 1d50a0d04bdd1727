"""The benchmarks of `refopt.torch`, on small tensors without a GPU: what they compare, and what they notice."""

import gc
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from benchmarks import torch_models, torch_pages, torch_step, torch_trace, torch_training, torch_work  # noqa: E402
from benchmarks.torch_work import OURS, Subject, Work, subjects  # noqa: E402
from refopt import torch as merged  # noqa: E402

SHAPES = [(3, 4), (5,), ()]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Has what the benchmarks set of the environment last for a test; what was there before is no garbage."""
    monkeypatch.setenv("REFOPT_KERNELS", str(tmp_path / "kernels"))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def work():
    return Work("small", SHAPES, "cpu")


def test_gradients_lie_elsewhere_at_every_turn(work):
    """And are all others; the parameters are the same."""
    places = [(p.grad.data_ptr(), p.data_ptr()) for p in work.params]
    work.turn()
    for (grad, param), p in zip(places, work.params, strict=True):
        assert p.grad.data_ptr() != grad and p.data_ptr() == param and p.grad.shape == p.shape


@pytest.mark.parametrize("routine", [
    pytest.param(routine, marks=[pytest.mark.slow] * (k > 0)) for k, routine in enumerate(torch_work.OPTIMIZERS)])
def test_a_row_for_each_condition(work, routine, monkeypatch):
    """On the CPU, whose times are those of the executor; tests/pytorch/test_host.py compiles the host's part."""
    monkeypatch.setattr(merged, "accelerate", lambda on: on)
    listed = [x for x in subjects(routine) if x.how == "eager" and x.name != "capturable"]
    rows = list(torch_step.rows_of(work, routine, listed))
    found = [(row["condition"], row["implementation"]) for row in rows]
    assert found == [(condition, x.name) for condition in ("same addresses", "new addresses", "after backward",
                                                           "other mask", "new lr", "states read") for x in listed]
    assert all(row["whole_us"] >= row["host_us"] >= row["host_least_us"] > 0 for row in rows)


def test_what_pytorch_has_not_is_a_row_with_the_reason(work):
    listed = [Subject(name, "eager", lambda params: 1 / 0) for name in ("capturable", OURS)]
    rows = list(torch_step.rows_of(work, "adamw", listed))
    assert [row["ok"] for row in rows] == [True, False] and rows[0]["skipped"].startswith("ZeroDivisionError")


def test_shares_are_of_steps(work):
    """On the CPU most is the executor's."""
    work.name = torch_step.SAMPLED
    row = next(torch_step.shares([work], samples=5))
    assert row["samples"] > 10 and 0.5 < sum(row["shares"].values()) <= 1.0
    assert not any("backward" in name for name in row["shares"])


def test_a_step_that_computes_something_else_is_noticed(work, monkeypatch):
    monkeypatch.setattr(merged.AdamW, "step", lambda self, closure=None: None)
    assert [row["ok"] for row in torch_step.agreement([work])] == [False, True]


def test_a_trace_is_read():
    events = [{"name": torch_trace.STEP, "cat": "user_annotation", "ts": 100.0, "dur": 50.0},
              {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 110.0, "dur": 5.0},
              {"name": "cudaDeviceSynchronize", "cat": "cuda_runtime", "ts": 151.0, "dur": 500.0},
              {"name": "merged_adamw", "cat": "kernel", "ts": 120.0, "dur": 200.0},
              {"name": "earlier", "cat": "kernel", "ts": 90.0, "dur": 2.0},
              {"name": "aten::add", "cat": "cpu_op", "ts": 101.0, "dur": 1.0}]
    assert [(lane, at, length) for lane, _, at, length in torch_trace.spans_of(events)] == [
        ("host", 10.0, 5.0), ("gpu", 20.0, 200.0), ("step", 0.0, 50.0)]


def test_the_whole_report(work, monkeypatch, tmp_path):
    """On the CPU, where what needs a GPU says why it is missing."""
    monkeypatch.setattr(torch_step, "copy_gb_s", lambda: 1000.0)
    monkeypatch.setattr(torch_step, "work_of", lambda name, device: Work(name, SHAPES, device))
    monkeypatch.setattr(torch_step, "timelines", lambda works: iter(()))
    out = tmp_path / "step.json"
    report = torch_step.measured(["small"], 0.0, out, "cpu")
    assert report["failures"] == {} and len(json.loads(out.read_text())["steps"]) == len(report["steps"])
    assert {row["how"] for row in report["steps"]} == {"eager", "graph"}
    assert [row["ok"] for row in report["agreement"]] == [True, True]
    found = {(row["routine"], row["implementation"]): row["state_bytes"] for row in report["memory"]}
    for name in (OURS, "fused", "foreach"):
        assert found["momentum", name] == 4 * work.elements
        assert found["adamw", name] == 8 * work.elements + 4 * len(SHAPES)
    assert all("no time left" in row["skipped"] for row in report["compiled"]) and report["compiled"]
    assert "refopt/torch/merged.py" in report["sources"]


# A training.


@pytest.fixture
def one(monkeypatch):
    """Has `benchmarks.torch_training` train one small model alone."""
    monkeypatch.setitem(torch_models.CASES, "cpu", torch_models.CASES["cpu"][:1])
    return torch_models.CASES["cpu"][0]


def test_a_training_is_held_to_the_bound(one, tmp_path):
    out = tmp_path / "training.json"
    assert torch_training.main(["--device", "cpu", "--steps", "3", "--half", "2", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    (row,), (resumed,) = report["curves"], report["resumed"]
    assert 0 < row["largest_refopt"] <= 1 and row["largest_fused"] <= 1 and row["skipped"] == 0
    assert all(len(losses) == 3 for losses in row["losses"].values()) and resumed["differing_elements"] == 0
    first = {losses[0] for losses in row["losses"].values()}
    assert len(first) == 1, "they begin with the same parameters and batches"


def test_a_step_beyond_the_bound_is_noticed(one, monkeypatch):
    """By another learning rate, as if the step had not seen the schedule."""
    right = merged.AdamW.formula

    def wrong(group):
        formula = right(group)
        return formula._replace(numbers=formula.numbers | {"lr": formula.numbers["lr"] * 1.01})

    shadow = torch_training.Shadow(one)
    monkeypatch.setattr(merged.AdamW, "formula", staticmethod(wrong))
    run = torch_models.Run(one, "fused", "cpu", 3)
    expect = shadow._expect

    def expected(of):
        shadow._formula = right(of.optimizer.param_groups[0])
        return expect(of)

    monkeypatch.setattr(shadow, "_expect", expected)
    run.step(shadow.look)
    shadow.compare(run)
    assert shadow.rows[0]["refopt"] > 1 >= shadow.rows[0]["fused"]


def test_a_run_that_loses_its_states_is_noticed(one, monkeypatch):
    monkeypatch.setattr(merged.AdamW, "load_state_dict", lambda self, state: None)
    row = torch_training.resumed(one, "cpu", half=2)
    assert not row["ok"] and row["differing_elements"] > 0


@pytest.mark.slow
def test_a_sharded_training(tmp_path):
    """On two processes by gloo: what it says is what the page shows."""
    out = tmp_path / "sharded.json"
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "benchmarks.fully_shard"]
    found = subprocess.run([sys.executable, "-m", *command, "--device", "cpu", "--out", str(out)],
                           capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    report = json.loads(out.read_text())
    assert report["failures"] == {} and len(report["steps"]) == 6 and report["world"] == 2
    assert all(row["ok"] and 0 <= row["difference"] < row["tolerance"] for row in report["agreement"])
    assert report["checkpoint"][0]["differing_elements"] == 0 and "refopt/torch/merged.py" in report["sources"]
    for row in report["steps"]:
        row |= {"step_device_ms": 1.0, "peak_bytes": 2e9}  # which a GPU has
    text = torch_pages.sharded_text(report)
    assert text.count("2.00 |") == 6 and "0 elements differed" in text
