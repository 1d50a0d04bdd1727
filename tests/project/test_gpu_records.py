"""The records of a machine with GPUs: steps that fail or hang end nothing, and outcomes are kept as they come."""

import importlib
import json
import os
import sys

import pytest

from benchmarks import children, gpu_records, laws, record, verify
from refopt.catalog import ROUTINES

from .stand_ins import H200, recorded

PYTHON = sys.executable


@pytest.mark.slow  # a clock
def test_a_command_is_ended_in_time_with_its_children(tmp_path):
    """Those in sessions of their own, too, as `benchmarks.laws` has."""
    mark = tmp_path / "pid"
    inner = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    outer = f"from benchmarks.children import run; run([{PYTHON!r}, '-c', {inner!r}], 50)"
    assert children.run([PYTHON, "-c", outer], 3, cwd=record.ROOT) == ("timed out", "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_that_ends(status):
    assert children.run([PYTHON, "-c", f"print('x'); raise SystemExit({status})"], 30) == (status, "x\n")


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Runs steps, each a line of Python's that is given the file to write: status, and what was printed."""

    def run(scripts, *arguments, capsys):
        steps = {name: gpu_records.Step(["-c", f"import sys; {text}"], 5.0, name) for name, text in scripts.items()}
        monkeypatch.setattr(gpu_records, "ONE", steps)
        monkeypatch.setattr(gpu_records, "SEVERAL", steps)
        monkeypatch.setattr(gpu_records, "machine", lambda: {"device": "NVIDIA H200"})
        monkeypatch.setattr("sys.argv", ["gpu_records", "--to", str(tmp_path / "out"), *arguments])
        return gpu_records.main(), capsys.readouterr().out

    return run


WRITE = "open(sys.argv[2], 'w').write('0')"


@pytest.mark.slow  # a clock
def test_a_step_that_fails_ends_nothing(steps, tmp_path, capsys):
    hangs = f"{WRITE}; import time; time.sleep(60)"
    scripts = {"one": WRITE, "two": "raise SystemExit(4)", "three": hangs, "four": WRITE}
    status, text = steps(scripts, "--seconds", "30", capsys=capsys)
    assert status == 1 and "FAILED (4)" in text and "FAILED (timed out)" in text
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["four-h200.json", "one-h200.json", "three-h200.json"]


def test_steps_are_chosen_and_the_time_of_all_is_kept(steps, tmp_path, capsys):
    scripts = {"one": WRITE, "two": WRITE}
    assert steps(scripts, "--only", "two", capsys=capsys)[0] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["two-h200.json"]
    status, text = steps(scripts, "--seconds", "0", capsys=capsys)
    assert status == 1 and text.count("no time left") == 2
    with pytest.raises(SystemExit, match="2"):
        steps(scripts, "--only", "three", capsys=capsys)


def test_steps_on_four_gpus(steps, tmp_path, capsys):
    assert steps({"ranks": WRITE.replace("0", "{gpus}")}, "--gpus", "4", capsys=capsys)[0] == 0
    assert (tmp_path / "out" / "ranks-h200-x4.json").read_text() == "4"


def test_every_step_is_a_module_and_sees_where_its_record_goes():
    for step in (*gpu_records.ONE.values(), *gpu_records.SEVERAL.values()):
        module = next(word for word in step.arguments if word.startswith("benchmarks."))
        (path,) = [path for path in record.closure(module) if path.stem == module.partition(".")[2]]
        assert "--out" in path.read_text() or "options_of" in path.read_text()


# The laws.

TESTS = '''
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError("broken")
def test_error(broken): pass
def test_skips_itself(): pytest.importorskip("no_such_module")
@pytest.mark.slow
def test_more_than_an_int32_counts(): pass
'''


@pytest.fixture
def of_tests(tmp_path, monkeypatch):
    """The record of a file of tests, as if on an H200, and its exit status."""

    def run(text, *arguments):
        monkeypatch.setenv("REFOPT_KERNELS", str(tmp_path / "kernels"))
        (tmp_path / "test_some.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: long\n")
        arguments = [*arguments, "--select", tmp_path / "test_some.py"]
        return recorded(laws, tmp_path / "laws.json", monkeypatch, *arguments)

    return run


def last(test):
    """The function of a test."""
    return test.rpartition("::")[2]


@pytest.mark.slow  # runs of pytest
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_record_of_laws(of_tests, workers):
    """Counts, skips with reasons, and failures with their text; by one process or several."""
    report, status = of_tests(TESTS, "-n", workers)
    assert status == 1 and report["counts"] == {"passed": 2, "failed": 2, "skipped": 2}
    reasons = {reason: [*map(last, tests)] for reason, tests in report["skips"].items()}
    assert reasons.pop("no such machine") == ["test_skipped"]
    ((reason, tests),) = reasons.items()
    assert "no_such_module" in reason and tests == ["test_skips_itself"]
    texts = {last(test): text for test, text in report["failures"].items()}
    assert "assert 1 == 2" in texts["test_fails"] and "broken" in texts["test_error"]
    assert [*map(last, report["listed"])] == ["test_more_than_an_int32_counts"]


def test_nothing_that_passes_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr(laws, "run_tests", lambda *args: (5, []))
    monkeypatch.setattr(laws, "sources", lambda outcomes: {})
    report, status = recorded(laws, tmp_path / "x.json", monkeypatch)
    assert status == 1 and report["failures"]["all"] == "nothing passed"


@pytest.mark.parametrize(("option", "device", "asked", "name"),
                         [([], "gpu", "gpu", "laws-h200.json"),
                          (["--two"], "gpu", "gpu", "laws-h200-x2.json"),
                          (["--long"], "executor", "not gpu", "long.json")])
def test_which_tests_are_on_record(tmp_path, monkeypatch, option, device, asked, name):
    monkeypatch.setattr(laws, "RESULTS", tmp_path)
    monkeypatch.setattr(laws, "begin", lambda *args: H200 | {"command": args[1]})
    monkeypatch.setattr(laws, "sources", lambda outcomes: {})
    runs = []
    passed = {"test": "x.py::test", "outcome": "passed", "seconds": 1.0}
    monkeypatch.setattr(laws, "run_tests", lambda *args: runs.append(args) or (0, [passed]))
    monkeypatch.setattr("sys.argv", ["laws", "-n", "1", *option])
    assert laws.main() == 0
    ((arguments, _, machine),) = runs
    assert machine == device and arguments[:2] == ["-m", asked]
    assert ("--hypothesis-profile=long" in arguments) == (option == ["--long"])
    assert f"REFOPT_DEVICE={device} " in json.loads((tmp_path / name).read_text())["command"]


# refopt verify.


def test_the_record_of_verify(tmp_path, monkeypatch):
    """The rows of every routine without times; a wrong row, an error or no row fails it."""

    def answer(command, seconds, cwd):
        name = command[command.index("--routine") + 1]
        rows = [{"routine": name, "ok": name != "lion", "milliseconds": 1.0}] if name != "adam" else []
        if name == "sgd":
            return "timed out", "no more"
        with open(command[command.index("--json") + 1], "w") as file:
            json.dump({"rows": rows, "steps": 2, "workload": {}, "skipped": {}}, file)
        return int(name == "lion"), ""

    monkeypatch.setattr(verify, "run", answer)
    report, status = recorded(verify, tmp_path / "x.json", monkeypatch)
    assert status == 1 and set(report["failures"]) == {"lion", "sgd", "adam"}
    assert {row["routine"] for row in report["rows"]} == {*ROUTINES, *verify.AROUND} - {"sgd", "adam"}
    assert not any("milliseconds" in row for row in report["rows"])


@pytest.mark.slow  # commands in processes of their own
def test_verify_runs_the_command_itself(tmp_path):
    """On the executor, a routine at its smallest."""
    report = verify.verified("sgd", "executor", 100, ["--dtype", "fp32", "--max-elements", "5"])
    assert verify.wrong(report) == "" and report["rows"][0]["routine"] == "sgd"
    assert "exit status 2" in verify.verified("sgd", "executor", 100, ["--dtype", "none"])["error"]


@pytest.mark.parametrize("name", ["laws", "verify", "sanitizer", "sectors", "detectors", "gpu_records", "records"])
def test_the_tools_ask_for_help(name, monkeypatch, capsys):
    """Every command answers without a GPU."""
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert capsys.readouterr().out.startswith("usage: ")
