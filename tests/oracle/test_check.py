"""`check` and `expect`: what they take and refuse, what a report says, and that whatever a step does is a failure."""

import functools
import inspect
import os
import re
import subprocess
import sys
import tomllib
import traceback
import warnings
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.cli import Terminated
from refopt.oracle import shrink
from refopt.oracle.cases import NUMBERS
from refopt.oracle.laws import LAWS
from refopt.oracle.subjects import public_name
from refopt.oracle.subjects.function import Function

QUICK = dict(dtypes=["float32"], laws=["L1"], examples=0, diagnose=False, process=False)


def sgd(params, grads, *, lr, l2_decay):
    for p, g in zip(params, grads, strict=True):
        if p.dtype == np.float16 or p.dtype.name == "bfloat16":
            raise NotImplementedError("16 bits")
        p -= lr * (g + l2_decay * p)


def test_an_optimizer_is_named_as_one_would_import_it():
    """By the package if that has it, or else by its module, with its options."""
    assert public_name(cpu.merged_sgd, {}) == "refopt.cpu.merged_sgd"
    assert public_name(sgd, {"lr": 0.5}) == f"{__name__}.sgd, lr=0.5"
    assert public_name(sgd, {"mask": functools.partial(max, 1)}).endswith(".sgd, mask=functools.partial(<built-in func"
                                                                          "tion max>, 1)")


def test_importing_it_needs_numpy_alone():
    """And the standard library; none of refopt's kernels or its executor either."""
    code = ("import sys, numpy\nbefore = set(sys.modules)\nfrom refopt import oracle\n"
            "new = sorted({x.partition('.')[0] for x in set(sys.modules) - before} - sys.stdlib_module_names)\n"
            "print(*new, *(x for x in ('refopt.gpu', 'refopt.simt') if x in sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refopt"


def test_the_extra_has_what_is_imported_beside_numpy():
    root = Path(oracle.__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {*extras["oracle"], *extras["bf16"]} - {"refopt[bf16]"}
    lines = [line for path in (root / "refopt/oracle").rglob("*.py") for line in path.read_text().splitlines()]
    imported = {line.split()[1].partition(".")[0] for line in lines if re.match(r"\s*(import|from) \w", line)}
    assert imported - sys.stdlib_module_names - {"refopt", "numpy", "pytest"} == wanted


def raising(error):
    def step(params, grads, *, lr):
        raise error

    return step


def returning(value):
    def step(params, grads, *, lr):
        return value(params)

    return step


WRONG = {"ZeroDivisionError: oops": raising(ZeroDivisionError("oops")), "SystemExit: 3": raising(SystemExit(3)),
         "MemoryError": raising(MemoryError()), "AssertionError": raising(AssertionError("no")),
         "KeyError": raising(KeyError("x")),
         "returned: expected None or lists for params, got int": returning(lambda params: 3),
         "expected a list of one array, got list of 2": returning(lambda params: {"params": params * 2}),
         "expected an array of NumPy, got str": returning(lambda params: {"params": ["x"]}),
         "expected an array of NumPy or, with arrays='jax', of jax, got Array": returning(
             lambda params: {"params": [type("Array", (), {"__module__": "jaxlib.xla_extension"})()]}),
         "expected an array of float32 of shape": returning(lambda params: [p.astype(np.float64) for p in params]),
         r"shape \(300,\), got one of float32 of shape \(299,\)": returning(lambda params: [p[:-1] for p in params]),
         "the arrays in the lists were replaced, expected them to be written": returning(
             lambda params: params.__setitem__(0, params[0] + 1)),
         "got one of 'grads'": returning(lambda params: {"grads": params})}


@pytest.mark.parametrize("text", WRONG)
def test_whatever_a_step_does_is_a_failure(text):
    report = oracle.check("sgd", WRONG[text], **QUICK | {"process": None})
    assert not report.ok and report.failed_laws == ["L1"]
    with pytest.raises(AssertionError, match=text):
        report.raise_if_failed()


@pytest.mark.parametrize("least", [2, 7, 13, 61])
def test_the_smallest_example_is_the_smallest(least, monkeypatch):
    """Of a fault of tensors of so many elements, whichever these are."""
    monkeypatch.setattr(shrink, "SECONDS", 60.0)
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * g if p.size < least else 0 * g

    report = oracle.check("sgd", step, dtypes=["float32"], laws=["L1"], examples=0, process=False, diagnose=False)
    assert f"smallest example: 1 tensor of {least} elements, step 1\n" in str(report)


@pytest.mark.parametrize(("added", "wrong"), [
    (("ignore", None, Warning, None, 0), ["L23"]), (("ignore", None, DeprecationWarning, None, 0), []),
    (("ignore", re.compile("slow"), Warning, None, 0), []), (("ignore", None, Warning, re.compile("some"), 0), []),
    (("default", None, Warning, None, 0), [])])
def test_a_step_may_ignore_some_warnings(added, wrong):
    """But not all there are."""
    def step(params, grads, *, lr):
        warnings.filters.insert(0, added)
        for p, g in zip(params, grads, strict=True):
            p -= lr * g

    with warnings.catch_warnings():
        report = oracle.check("sgd", step, dtypes=["float32"], laws=["L23"], process=False)
    assert report.failed_laws == wrong
    assert ("one more that ignores all warnings" in report.details()) == bool(wrong)


def test_what_is_not_taken_is_skipped_and_listed():
    report = oracle.check("sgd", sgd, **QUICK | {"dtypes": None})
    assert report.ok and len(report.of("skipped")) == len(report.items) / 2
    assert "(50 %)" in str(report).splitlines()[0] and "skipped, not failed: 16 bits" in str(report)
    assert "skipped: 16 bits: L1 step 1" in report.details()
    assert "numbers not taken: rescale_grad (1 in the rule)" in report.notes
    assert not oracle.check("sgd", sgd, **QUICK | {"dtypes": ["float32", "float16"]}).ok  # which was asked for


def test_bf16_is_skipped_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    report = oracle.check("sgd", sgd, **QUICK | {"dtypes": ["float32", "bfloat16"]})
    why = "ml_dtypes is not installed (pip install 'refopt[bf16]')"
    assert {(x.dtype, x.text) for x in report.of("skipped")} == {("bfloat16", why)}
    assert {x.dtype for x in report.of("passed")} == {"float32"}
    alone = oracle.check("sgd", sgd, **QUICK | {"dtypes": ["bfloat16"]})
    assert {x.text for x in alone.items} == {why} and not alone.ok


def test_scalars_of_a_tensor_without_elements():
    """They go on with the others, and the report can say so of a tensor that has nothing else to show."""

    def step(params, grads, moment1, moment2, beta1_pow, beta2_pow, **numbers):
        for p, g, *states in zip(params, grads, moment1, moment2, beta1_pow, beta2_pow, strict=True):
            if p.size:
                cpu.adam(p, g, *states, **{name: x for name, x in numbers.items() if x is not None})

    report = oracle.check("adam", step, **QUICK | {"laws": ["L3"]})
    assert report.failed_laws == ["L3"] and "beta1_pow[0], element 0 of 1: expected" in str(report)


def test_a_step_that_was_never_compared_is_not_right():
    report = oracle.check("sgd", raising(NotImplementedError()), **QUICK)
    assert not report.ok and not report.wrong and "NOT COMPARED" in str(report).splitlines()[0]
    with pytest.raises(AssertionError):
        report.raise_if_failed()


def test_what_a_step_raises_is_told_once_and_in_one_line():
    error = TypeError("no such\n  dtype\n" + 99 * "long ")
    report = oracle.check("sgd", raising(error), **QUICK)
    (line,) = (line for line in str(report).splitlines() if "TypeError: no such dtype long" in line)
    assert line.startswith("L1 step, float32, in 'step 1' and 17 more: ") and len(line) < 400
    assert line.endswith("long ...")
    assert "let the step raise NotImplementedError" in report.notes[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated])
def test_signals_end_a_check(error):
    with pytest.raises(error):
        oracle.check("sgd", raising(error()), **QUICK | {"process": None})


def test_expected_failures_and_skips_of_a_dtype():
    """Expected failures are strict."""
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= p.dtype.type(lr) * g.astype(np.float32).astype(p.dtype)  # which is wrong of fp64

    named = QUICK | {"dtypes": ["float32", "float64"], "laws": ["L1", "L7"]}
    assert oracle.check("sgd", step, **named).wrong == ["L1", "L7"]
    entries = {"L1-float64": "it narrows gradients", "L7-float64": "it does"}
    report = oracle.check("sgd", step, expected_failures=entries, **named)
    assert report.ok and "L1 step (expected: it narrows gradients), " in str(report)
    report = oracle.check("sgd", step, expected_failures={"L1": "narrow", "L7-float32": "why"}, **named)
    assert report.wrong == ["L7"] and not report.ok
    assert "L7 subnormals, float32: expected to fail (why), but nothing failed" in str(report)
    report = oracle.check("sgd", step, skips={"L1": "any", "L1-float64": "wide", "L7": "any"}, **named)
    told = {(x.dtype, x.text) for x in report.of("skipped") if x.law == "L1"}
    assert told == {("float64", "left out: wide"), ("float32", "left out: any")}
    report = oracle.check("sgd", step, skips={"L1-float64": "narrow", "L7": "it flushes"}, **named)
    assert report.ok and {item.law for item in report.of("passed")} == {"L1"}
    assert "skipped: left out: it flushes: L7 subnormals" in report.details()
    report = oracle.check("sgd", step, skips={"L1": "narrow", "L7": "narrow"}, **named)
    assert not report.ok and "NOT COMPARED: left out: narrow;" in str(report)
    verdict = "NOT COMPARED: left out: narrow; 4 of 4 cases skipped (100 %)"
    assert repr(report) == f"<Report: {report.subject} as sgd: {verdict}>"


def test_a_step_of_other_arrays_is_told_how_to_get_them():
    known = {"torch": type(sys)("torch")}
    exec("def step(params, grads, *, lr):\n    torch.add(params, grads)", known)
    report = oracle.check("sgd", known["step"], **QUICK)
    assert "the step was given NumPy arrays; for others, pass arrays='torch'" in report.notes


def test_a_report_has_the_seconds_that_its_check_took(monkeypatch):
    monkeypatch.setattr("refopt.oracle.checking.time", SimpleNamespace(perf_counter=iter([100.0, 103.5]).__next__))
    assert oracle.check("sgd", sgd, **QUICK).seconds == 3.5


def test_a_step_may_name_its_lists_itself():
    def step(p, g, first, second, *, lr, beta1, beta2, epsilon, step):
        for x, d, m, v in zip(p, g, first, second, strict=True):
            m[...] = beta1 * m + (1 - beta1) * d
            v[...] = beta2 * v + (1 - beta2) * d * d
            x -= lr / (1 - beta1**step) * m / (np.sqrt(v / (1 - beta2**step)) + epsilon)

    report = oracle.check("adam", step, **QUICK)
    assert report.ok and "not returned, so not compared: beta1_pow, beta2_pow" in report.notes


@pytest.mark.parametrize(("text", "lists", "named"), [
    ("params, grads, velocities, lr, mu", ["params", "grads", "velocities"], {"lr", "mu"}),
    ("p, g, v, *, lr, mu", ["params", "grads", "velocities"], {"lr", "mu"}),
    ("*lists, lr, mu, step", ["params", "grads", "velocities"], {"lr", "mu", "step"}),
    ("params, *others, lr, mu", ["params", "grads", "velocities"], {"lr", "mu"}),
    ("grads, params, lr, mu, velocities", ["grads", "params"], {"lr", "mu", "velocities"}),
    ("p, g, v=None, *, lr, mu, found_inf=None, scale=1", ["params", "grads"], {"lr", "mu", "found_inf"}),
    ("p, g, *, velocities=None, lr=0.5, mu", ["params", "grads"], {"velocities", "lr", "mu"})])
def test_what_parameters_are_for(text, lists, named):
    """A list by its name or its place, all else by its name; what has a default may be neither."""
    known = {}
    exec(f"def step({text}): pass", known)
    function = Function(ROUTINES["momentum"], known["step"])
    assert (function.positional, function.named) == (lists, named)
    with pytest.raises(TypeError, match=r"expected parameters named dampening, .*, got 'v'$"):
        Function(ROUTINES["momentum"], lambda p, params, v, *, lr, mu: None)
    with pytest.raises(TypeError, match=r"got 'learning_rate'$"):
        Function(ROUTINES["momentum"], lambda p, g, v, *, learning_rate, mu: None)
    with pytest.raises(TypeError, match=r"got 'eps'; did you mean epsilon\?$"):
        Function(ROUTINES["adam"], lambda *lists, lr, beta1, beta2, eps: None)


def test_the_libraries_that_a_step_has_imported():
    step = FunctionType(sgd.__code__, {"np": np, "linear": ModuleType("jaxlib.linear")})
    assert Function(ROUTINES["sgd"], step).libraries == ["jax"]


def test_what_a_case_does_not_have_is_none():
    """The gate, for a step that has no default for it."""
    given = []

    def step(params, grads, *, lr, grad_factor, found_inf):
        given.append((grad_factor is None, found_inf is None))
        if found_inf is not None and found_inf[0] != 0:
            return
        factor = 1 if grad_factor is None else grad_factor[0]
        for p, g in zip(params, grads, strict=True):
            p -= p.dtype.type(lr) * (p.dtype.type(factor) * g)

    assert oracle.check("sgd", step, dtypes=["float32"], laws=["L1", "L8", "L9"], process=False).ok
    assert set(given) == {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("name", ["lr", "beta1", "beta2", "epsilon", "coeff", "lr_ratio"])
def test_every_number_has_an_effect(name):
    """One that a step takes, and always takes to be what it was, breaks the law of effect."""

    @functools.wraps(cpu.merged_adamw)
    def step(*lists, **named):
        cpu.merged_adamw(*lists, **named | {name: NUMBERS[name]})

    report = oracle.check("adamw", step, dtypes=["float32"], laws=["L22"], diagnose=False, process=False)
    assert {(x.law, x.label) for x in report.of("failed")} == {("L22", name)}, str(report)
    assert name.startswith("beta") or f"{name}: expected to have an effect, got the same bits" in str(report)


@pytest.mark.parametrize(("law", "name"), [("L14", "lr"), ("L4", "found_inf")])
def test_numbers_are_only_read(law, name):
    def step(params, grads, *, lr, found_inf=None):
        if found_inf is not None and found_inf[0] != 0:
            return
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            p -= p.dtype.type(lr[i] if isinstance(lr, list) else lr) * g
        written = {"lr": lr, "found_inf": found_inf}[name]
        if isinstance(written, list | np.ndarray):
            written[0] += 1

    report = oracle.check("sgd", step, **QUICK | {"laws": [law]})
    assert f"{name}: expected unchanged, since a step only reads it, got another value in it" in str(report)


def test_numbers_that_a_step_has_for_itself():
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * (g + p.dtype.type(0.25) * p)

    assert not oracle.check("sgd", step, **QUICK).ok
    assert oracle.check("sgd", step, set={"l2_decay": 0.25}, **QUICK).ok


def test_the_page_has_each_law():
    """In the order in which they are, by their names."""
    page = (Path(__file__).parents[2] / "docs/oracle-laws.md").read_text()
    rows = re.findall(r"^- \*\*(L\d+) ([^*]+)\*\*: \S", page, re.M)
    assert rows == [(law.id, law.name) for law in LAWS.values()]


def test_a_process_is_said_to_be_started_by_the_step_that_does():
    def helped(params, grads, *, lr):
        os.system("true")

    named = QUICK | {"laws": ["L19"]}
    assert [oracle.check("sgd", step, **named).failed_laws for step in (helped, sgd)] == [["L19"], []]


@pytest.mark.parametrize("look", [
    inspect.currentframe, inspect.stack, sys._current_frames, lambda: list(traceback.walk_stack(None))])
def test_a_look_at_the_callers_is_seen(look):
    def step(params, grads, *, lr):
        look()

    assert oracle.check("sgd", step, **QUICK | {"laws": ["L19"]}).failed_laws == ["L19"]


def test_a_failure_of_mixed_dtypes_is_shown_again_by_all_of_them():
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * g if len({x.dtype for x in params}) == 1 else 0 * g

    report = oracle.check("sgd", step, **QUICK | {"dtypes": ["float32", "float64"], "laws": ["L10"]})
    assert report.of("failed") and all("dtypes=['float32', 'float64']" in x.command for x in report.of("failed"))


def test_progress_counts_laws_of_all_dtypes():
    seen = []
    oracle.check("sgd", sgd, **QUICK | {"dtypes": ["float32", "float64"], "laws": ["L1", "L6", "L7"]},
                 progress=lambda done, total, what: seen.append((done, total)))
    assert seen == [(k, 6) for k in range(6)]


def test_a_tensor_that_differs_alone_has_its_own_number():
    def step(params, grads, *, lr):
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            p[...] = np.nextafter((p - lr * g).astype(p.dtype), np.float32(9)) if i == 3 else p - lr * g

    report = oracle.check("sgd", step, **QUICK | {"laws": ["L2"]})
    texts = [x.text for x in report.of("failed")]
    assert any(x.startswith("params[3], element 0 of 1 ") and ", the result of the tensor alone, " in x for x in texts)
