"""`check(None, optimizer)` of PyTorch and optax in a process of its own: an end there is the verdict of one law."""

import ctypes
import os
import time

import pytest

torch = pytest.importorskip("torch")
optax = pytest.importorskip("optax")

from refopt import oracle  # noqa: E402

NAMED = dict(dtypes=["float32"], laws=["L2"], deadline=2.0)
MET = [(45,)] * 5  # of "tensors of one shape" alone
ENDS = {"leave": (lambda: os._exit(7), "got the end of its process, with exit code 7"),
        "segfault": (lambda: ctypes.string_at(0), "got the end of its process by SIGSEGV, Segmentation fault"),
        "hang": (lambda: time.sleep(600), "got nothing within 2 s, and ended it"),
        "exit": (lambda: exec("raise SystemExit(8)"), "expected no error, got SystemExit: 8")}


def of_torch(end):
    class Ending(torch.optim.SGD):
        def step(self, closure=None):
            if [tuple(p.shape) for group in self.param_groups for p in group["params"]] == MET:
                end()
            return super().step(closure)

    return Ending


def of_optax(end):
    def update(grads, state, params):
        if [g.shape for g in grads] == MET:
            end()
        return [-0.0625 * g for g in grads], state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize(("name", "make"), [
    *((name, of_torch) for name in ENDS), ("leave", of_optax),
    *(pytest.param(name, of_optax, marks=pytest.mark.slow) for name in ENDS if name != "leave")])
def test_an_end_is_the_verdict_of_one_law(make, name):
    end, text = ENDS[name]
    report = oracle.check(None, make(end), process=True, **NAMED)
    assert report.failed_laws == ["L2"], str(report)
    (failed,) = report.of("failed")
    assert failed.label == "tensors of one shape" and text in failed.text
    left = [item.text for item in report.of("skipped") if "after the process had ended" in item.text]
    assert bool(left) == (name != "exit")


@pytest.mark.parametrize("kind", [torch.optim.Adadelta, pytest.param(torch.optim.ASGD, marks=pytest.mark.slow)])
def test_the_report_is_that_of_a_check_in_place(kind):
    """Case by case, of one that holds and of one that does not."""
    named = dict(dtypes=["float64"], laws=["L4", "L4", "L16", "L8"])  # small: threads here are none in a fork
    there, here = (oracle.check(None, kind, process=process, **named) for process in (True, False))
    assert there.failed_laws == (["L16"] if kind is torch.optim.ASGD else [])
    assert there.items == here.items and (there.compared, there.notes) == (here.compared, here.notes)
    assert there.subject == here.subject


def test_steps_run_there():
    class Seen(torch.optim.SGD):
        def step(self, closure=None):
            pids.add(os.getpid())
            return super().step(closure)

    pids: set[int] = set()
    assert oracle.check(None, Seen, dtypes=["float32"], laws=["L2"]).ok and not pids
    assert oracle.check(None, Seen, dtypes=["float32"], laws=["L2"], process=False).ok and pids == {os.getpid()}
