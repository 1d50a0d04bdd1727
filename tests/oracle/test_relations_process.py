"""Laws without a formula, of a step in a process of its own: what `test_process` does not have of both forms."""

import os

import pytest

from oracle import ends
from refopt import cli, oracle


def ends_where(condition):
    def step(params, grads, *, lr, found_inf=None):
        if condition(params, grads, found_inf):
            os._exit(4)
        if found_inf is None or found_inf[0] == 0:
            for p, g in zip(params, grads, strict=True):
                if g is not None:
                    p -= (lr * g).astype(p.dtype)

    return step


@pytest.mark.parametrize(("law", "label", "condition"), [
    ("L2", "tensors of two dtypes", lambda params, grads, flag: len({x.dtype for x in params}) > 1),
    ("L3", "an empty one at 0", lambda params, grads, flag: not sum(x.size for x in params) and len(params)),
    ("L15", "two of five, from the first step", lambda params, grads, flag: any(g is None for g in grads)),
    ("L4", "columns of a wider matrix", lambda params, grads, flag: params[1].strides == (32, 4)),
    ("L8", "after steps", lambda params, grads, flag: flag is not None)])
def test_an_end_is_a_failure_where_an_error_is_a_refusal(law, label, condition):
    """As of an empty tensor, which a step may refuse by any error."""
    report = oracle.check(None, ends_where(condition), dtypes=["float32"], laws=[law])
    assert report.failed_laws == [law], str(report)
    (failed,) = report.of("failed")
    assert failed.label.startswith(label) and "the end of its process, with exit code 4" in failed.text


def test_what_ends_at_once_is_not_compared():
    """Nor with matrices alone, which would hide that it has ended."""
    report = oracle.check(None, ends_where(lambda params, *_: params[0].ndim == 1), dtypes=["float32"])
    assert not report.ok and not report.wrong
    assert "NOT COMPARED: " in str(report) and "with exit code 4" in str(report).splitlines()[0]


def test_memory_is_soiled_where_steps_run(monkeypatch, tmp_path):
    """So that a read of what was not written shows."""
    def soiled(shapes, dtype, k):
        (tmp_path / f"soiled{k}").write_text(f"{dtype} {type(shapes[0])}")

    monkeypatch.setattr("refopt.oracle.process.child.soiled", soiled)
    oracle.check(None, ends.plain_lr, dtypes=["float32"], laws=["L17"])
    assert (tmp_path / "soiled0").read_text() == "float32 <class 'tuple'>"


def test_an_optimizer_that_exits_when_it_is_made_is_none():
    class Exiting:
        @property
        def __signature__(self):
            raise SystemExit(5)

        def __call__(self, params, grads):
            raise AssertionError

    with pytest.raises(TypeError, match="check: subject: expected a step, got SystemExit: 5"):
        oracle.check(None, Exiting())


def test_the_command(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import os, time\ndef step(params, grads, *, lr):\n    while len(params) == 36:\n        time.sleep(0.1)\n"
        "    if 'HERE' in os.environ:\n        os.environ['HERE'] = 'written'\n"
        "    for p, g in zip(params, grads):\n        p -= (lr * g).astype(p.dtype)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERE", "no")
    given = ["check", "mine.py:step", "--as", "none", "--dtype", "fp32"]
    assert cli.main([*given, "--law", "L3", "--deadline", "1"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "got nothing within 1 s, and ended it" in out and "--law L3 --deadline 1.0" in out
    assert os.environ["HERE"] == "no"
    assert cli.main([*given, "--law", "L2", "--in-place"]) == 0 and os.environ["HERE"] == "written"
    for name, value in (("--secret", "3"), ("--examples", "2"), ("--names", "lr=x")):
        capsys.readouterr()
        assert cli.main([*given, name, value]) == 2
        assert name.strip("-") in capsys.readouterr().err
