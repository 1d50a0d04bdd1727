"""`compare` runs steps in processes of their own: the end of one is a difference."""

import os

import pytest

from oracle import ends
from oracle.test_process import children, deadline_of
from refopt import cli, oracle
from refopt.oracle.process import remote

SHORT = {"dtypes": ["float32"], "parts": ["C1", "C3"]}
MET = f"{ends.SIZE} elements"


@pytest.mark.parametrize(("name", "text"), [("segfault", "got the end of its process by SIGSEGV"),
                                            ("leave", "got the end of its process, with exit code 0"),
                                            ("hang", "got nothing within 1 s, and ended it")])
def test_an_end_is_a_difference(name, text):
    """Of either, and of both, where errors of both would be none."""
    plain, ending = ends.plain_lr, getattr(ends, name)
    for pair in ((plain, ending), (ending, ending)) if name == "leave" else ((ending, plain),):
        report = oracle.compare(*pair, process=True, deadline=deadline_of(name), **SHORT)
        assert report.failed_laws == ["C1"], str(report)
        (failed,) = report.of("failed")
        assert failed.label == MET and text in failed.text
        left = [x.label for x in report.of("skipped") if f"after the process had ended at {MET}" in x.text]
        assert left and left[0] == "63 elements"
        assert {x.status for x in report.items if x.law == "C3"} == {"passed"}
    assert not children()


def test_an_end_beside_an_error_is_a_difference():
    report = oracle.compare(ends.raise_once, ends.leave, **SHORT)
    assert [x.label for x in report.of("failed")] == [MET] and "with exit code 0" in report.of("failed")[0].text


def test_steps_run_there():
    def step(params, grads, *, lr):
        pids.add(os.getpid())
        ends.plain(params, grads, lr)

    pids: set[int] = set()
    there = oracle.compare(step, step, **SHORT)
    assert not pids
    here = oracle.compare(step, step, process=False, **SHORT)
    assert there.ok and there.items == here.items and there.compared == here.compared
    assert pids == {os.getpid()}


def test_the_report_says_that_no_process_can_be_made(monkeypatch):
    monkeypatch.setattr(remote, "ways", lambda task: ([], ["nothing starts here"]))
    report = oracle.compare(ends.plain_lr, ends.plain_lr, **SHORT)
    assert report.ok and report.notes == [f"{remote.IN_PLACE}nothing starts here"]


def test_the_command(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, time\ndef step(params, grads, *, lr):\n"
        "    while len(params) == 36 and 'HERE' not in os.environ:\n        time.sleep(0.1)\n"
        "    if 'HERE' in os.environ:\n        os.environ['HERE'] = 'written'\n"
        "    for p, g in zip(params, grads):\n        p -= (lr * g).astype(p.dtype)\n")
    monkeypatch.chdir(tmp_path)
    given = ["compare", "mine.py:step", "mine.py:step", "--dtype", "fp32"]
    assert cli.main([*given, "--deadline", "1"]) == 1
    assert "got nothing within 1 s" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("HERE", "no")
    assert cli.main(given) == 0 and os.environ["HERE"] == "no"
    assert cli.main([*given, "--in-place"]) == 0 and os.environ["HERE"] == "written"
    assert cli.main([*given, "--deadline", "0"]) == 2
