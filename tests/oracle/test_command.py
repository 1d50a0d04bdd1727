"""``refopt check``: statuses, what it prints, the report in JSON and files of expected failures."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refopt import cli, oracle
from refopt.cli.check import readable
from refopt.cli.commands import parsers
from refopt.oracle.laws import LAWS

STEPS = '''
import numpy as np

print("imported")

class Steps:
    @staticmethod
    def nested(params, grads, *, lr, l2_decay=0.0):
        right(params, grads, lr=lr, l2_decay=l2_decay)

def right(params, grads, *, lr, l2_decay):
    for p, g in zip(params, grads):
        real = np.float64 if p.dtype == np.float64 else np.float32
        p[...] = p.astype(real) - real(lr) * (g.astype(real) + real(l2_decay) * p.astype(real))

def wrong(params, grads, *, lr, l2_decay):
    """A mistake, and something that would spoil a report in JSON."""
    print("noise")
    for p, g in zip(params, grads):
        p -= lr * g

def apart(params, grads, *, lr):
    for p, g in zip(params, grads):
        p -= lr * g if len({x.dtype for x in params}) == 1 else 0 * g

def flushing(params, grads, *, lr):
    for p, g in zip(params, grads):
        new = p - lr * g
        p[...] = np.where(abs(new) < np.finfo(np.float32).tiny, 0, new)

number = 3
'''


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "steps_to_check.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "steps_to_check.py"
    sys.modules.pop("steps_to_check", None)


def run(*args):
    return cli.main(["check", *args])


QUICK = ["--as", "sgd", "--dtype", "fp32", "--law", "L1", "--examples", "1"]


def test_right_and_wrong(steps, capsys):
    assert run(f"{steps}:right", *QUICK) == 0
    assert "right, as far as was compared" in capsys.readouterr().out
    assert run("steps_to_check:wrong", *QUICK) == 1
    out, err = capsys.readouterr()
    assert out.startswith("wrong as sgd: WRONG, L1;") and "noise" not in out and "noise" in err
    assert "\ncause: no L2 decay\n" in out and "fails: L1 step, float32" in out
    again = next(line for line in out.splitlines() if "again: " in line).partition("again: ")[2]
    assert again == "refopt check steps_to_check:wrong --as sgd --dtype fp32 --law L1 --examples 1"
    assert run(*again.split()[2:]) == 1
    assert max(len(line) for line in out.splitlines() if "again" not in line) <= 80


ASKED = ("--set l2_decay=0.5 maximize=false --seed 3 --examples 1 --secret 5 --arrays numpy --tolerance 0.001 "
         "--deadline 9.5 --symmetry sign zero --allow-skips L7 L1 --exact --in-place")
ZEROS = "--set l2_decay=0.5 --examples 0 --secret 0 --tolerance 0.0 --deadline 9.5"


@pytest.mark.parametrize(("law", "asked"), [
    *((law, asked) for law in ("L1", "L21") for asked in (ASKED, ZEROS)), ("L24", ASKED)])
def test_a_failure_is_shown_again_by_what_was_asked_for(steps, capsys, law, asked):
    assert run("steps_to_check:wrong", "--as", "sgd", "--dtype", "fp32", "--law", law, *asked.split()) == 1
    again = next(line for line in capsys.readouterr().out.splitlines() if "again: " in line)
    shown = asked if LAWS[law].secret else re.sub(" --secret .", "", asked)
    assert again.strip() == f"again: refopt check steps_to_check:wrong --as sgd --dtype fp32 --law {law} {shown}"


def test_a_failure_of_mixed_dtypes_is_shown_again_by_all_of_them(steps, capsys):
    assert run("steps_to_check:apart", "--as", "sgd", "--dtype", "fp32", "fp64", "--law", "L10") == 1
    again = [line.partition("again: ")[2] for line in capsys.readouterr().out.splitlines() if "again: " in line]
    assert set(again) == {"refopt check steps_to_check:apart --as sgd --dtype fp32 fp64 --law L10"}
    assert run(*again[0].split()[2:]) == 1


def test_what_is_in_a_class(steps):
    assert run(f"{steps}:Steps.nested", *QUICK) == 0


def test_a_report_in_json(steps, capsys):
    assert run(f"{steps}:wrong", *QUICK, "--json", "-") == 1
    report = json.loads(capsys.readouterr().out)
    page = (Path(oracle.__file__).parents[2] / "docs/oracle-bounds.md").read_text().partition("## JSON")[2]
    documented = set(re.findall(r"`(\w+)`", page.partition("\n## ")[0]))
    assert {*report, *report["items"][0]} <= documented
    assert report["ok"] is False and report["laws"] == {"L1": LAWS["L1"].name}
    failed = [item for item in report["items"] if item["reasons"]]
    assert failed[0]["reasons"][0] == {"name": "no L2 decay", "share": 1.0} and failed[0]["pattern"]
    assert run(f"{steps}:right", *QUICK, "--json", "report.json") == 0
    assert json.loads(Path("report.json").read_text())["ok"] is True
    assert "right, as far" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["verify", "check", "compare", "vectors", "show"])
def test_the_values_of_repeated_options_add_up(command, capsys):
    """Of every option that takes several."""
    _, parser = parsers()[1][command]
    several = [x for x in parser._actions if x.nargs in ("+", "*") and x.option_strings]
    given = {x.dest: [[*(x.choices or ["a=1", "b=2"])][k] for k in (0, 1)] for x in several}
    words = [word for x in several for value in given[x.dest] for word in (x.option_strings[0], value)]
    first = {"verify": [], "compare": ["one.py:step", "two.py:step"]}.get(command, ["sgd"])
    args = vars(parser.parse_args(first + words))
    assert several and {name: args[name] for name in given} == given
    assert all(vars(parser.parse_args(first))[x.dest] == x.default for x in several)


def test_laws_are_listed(capsys):
    assert run("--list-laws") == 0
    out = capsys.readouterr().out
    assert all(f"{law.id:<4} {law.name}: " in out for law in LAWS.values())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(("args", "text"), [
    ([], "expected a step"), (["{steps}:right"], "expected --as with the routine that it implements"),
    (["{steps}:right", "--as", "sdg"], "invalid choice: 'sdg'"),
    (["{steps}", "--as", "sgd"], "expected module:name or path/to/file.py:name, got"),
    (["{steps}:left", "--as", "sgd"], "expected something named left, got none"),
    (["{steps}:number", "--as", "sgd"], "check: subject: expected a"),
    (["missing.py:right", "--as", "sgd"], "missing.py: cannot be imported: FileNotFoundError: no such file."),
    (["no.such.module:right", "--as", "sgd"], "cannot be imported: ModuleNotFoundError"),
    (["broken.py:right", "--as", "sgd"], "broken.py: cannot be imported: SyntaxError"),
    (["raising.py:right", "--as", "sgd"], "cannot be imported: RuntimeError: boom (raising.py, line 2)"),
    (["{steps}:right", "--as", "sgd", "--arrays", "tinygrad"], "argument --arrays: invalid choice"),
    (["{steps}:right", "--as", "sgd", "--names", "step=t"], "check: names: expected names of the step's arguments"),
    (["leaving.py:right", "--as", "sgd"], "leaving.py: cannot be imported: SystemExit"),
    (["{steps}:right", "--as", "sgd", "--law", "L99"], "invalid choice: 'L99'"),
    (["{steps}:right", "--as", "sgd", "--dtype", "fp8"], "invalid choice: 'fp8'"),
    (["{steps}:right", "--as", "sgd", "--examples", "-1"], "check: examples: expected"),
    (["{steps}:right", "--as", "sgd", "--set", "lr"], "argument --set: expected NAME=VALUE, got 'lr'"),
    (["{steps}:right", "--as", "sgd", "--with", "seed=1"], "argument --with: expected"),
    (["{steps}:right", "--as", "sgd", "--with", "fused=true"], "fused"),
    (["{steps}:right", "--as", "sgd", "--with", "tolerance=1"], "argument --with: expected one of the optimizer's own"),
    (["{steps}:right", "--as", "sgd", "--expected-failures", "no.txt"], "no.txt: No such file"),
    (["{steps}:right", "--as", "sgd", "--expected-failures", "bad.txt"], "bad.txt, line 2: expected the id"),
    (["{steps}:right", "--as", "sgd", "--expected-failures", "twice.txt"], "twice.txt, line 2: expected the id"),
    (["{steps}:right", *QUICK, "--json", "missing/report.json"], "missing/report.json")])
def test_bad_arguments(steps, args, text, capsys):
    Path("broken.py").write_text("def right(:")
    Path("leaving.py").write_text("raise SystemExit(0)")
    Path("raising.py").write_text("x = 1\nraise RuntimeError('boom')")
    Path("bad.txt").write_text("# skipped\nL7\n")
    Path("twice.txt").write_text("L7 # why\nL7 # again\n")
    assert run(*(arg.format(steps=steps) for arg in args)) == 2
    out, err = capsys.readouterr()
    assert text in " ".join(err.split()) + "." and not out  # a text with a full stop is the end


def test_expected_failures_of_a_file(steps, capsys):
    quick = [x if x != "L1" else "L7" for x in QUICK]
    assert run(f"{steps}:flushing", *quick) == 1
    Path("skips.txt").write_text("# of this build\n\nL7 # flushes to zero\nL3 # elsewhere\n")
    report = oracle.check("sgd", flushing, dtypes=["float32"], laws=["L1", "L7"], expected_failures="skips.txt")
    assert report.ok and report.expected_failures == {"L7": "flushes to zero"}
    laws = ["--as", "sgd", "--dtype", "fp32", "--law", "L1", "L7", "--expected-failures", "skips.txt"]
    assert run(f"{steps}:flushing", *laws) == 0
    assert run(f"{steps}:right", *laws) == 1
    assert "expected to fail (flushes to zero), but nothing failed" in " ".join(capsys.readouterr().out.split())


def flushing(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        new = p - lr * g
        p[...] = np.where(abs(new) < np.finfo(np.float32).tiny, 0, new)


def test_a_skip_file(steps, capsys):
    Path("skips.txt").write_text("L7-float32 # flushes to zero\n")
    named = ["--as", "sgd", "--dtype", "fp32", "--law", "L1", "L7", "--examples", "0"]
    assert run(f"{steps}:flushing", *named, "--skip-file", "skips.txt") == 0
    assert "left out: flushes to zero" in capsys.readouterr().out


def test_signals(steps):
    """A step that runs for long is ended by them."""
    step = "import time\ndef step(params, grads, *, lr):\n    print('on')\n    time.sleep(60)\n"
    Path("hanging.py").write_text(step)
    env = os.environ | {"PYTHONPATH": str(Path(oracle.__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    for signum, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        command = [sys.executable, "-m", "refopt", "check", "hanging.py:step", *QUICK]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
            assert process.stderr.readline() == "on\n"
            process.send_signal(signum)
            out, err = process.communicate(timeout=30)
        assert process.returncode == status and out == "" and "Traceback" not in err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_long_lines_go_on_further_in_and_commands_stay_whole():
    again = f"  again: {'word ' * 30}".rstrip()
    first, *rest, last = readable(f"  {'word ' * 30}\n{again}").splitlines()
    assert rest and all(line.startswith("      word") for line in rest) and last == again
    assert max(map(len, (first, *rest))) <= 80


def test_progress_is_shown_on_a_terminal(steps, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(f"{steps}:right", *QUICK) == 0
    assert "0/1  L1 step, float32" in terminal.getvalue() and terminal.getvalue().endswith("\r\033[K")
    assert "L1 step, float32" not in capsys.readouterr().out
