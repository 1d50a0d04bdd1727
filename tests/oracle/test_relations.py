"""`check(None, step)`: each planted defect is found by the law of its name, and right steps have no false alarm."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from refopt import cli, cpu, oracle
from refopt.oracle import memory
from refopt.oracle.laws import LAWS
from refopt.oracle.subjects.function import Function

NUMBERS = {"beta1": 0.875, "beta2": 0.9375}
EVERY = "sign", "elements", "zero"  # symmetries
COARSE = {"dtypes": ["float32"], "process": False}


def updated(p, g, m, v, lr, step, beta1=0.875, beta2=0.9375):
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    p -= (lr * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + 1e-6)).astype(p.dtype)


def right(params, grads, m, v, *, lr, step, found_inf=None):
    if found_inf is not None and found_inf[0] != 0:
        return
    for p, g, a, b in zip(params, grads, m, v, strict=True):
        if g is not None:
            updated(p, g, a, b, lr, step)


def returning(params, grads, *, lr):
    return [p - (lr * np.sign(g)).astype(p.dtype) for p, g in zip(params, grads, strict=True)]


def orthogonal(params, grads, buffers, *, lr, mu=0.9):
    """Of matrices alone, in fewer bits than they are stored in, as Muon."""
    for p, g, b in zip(params, grads, buffers, strict=True):
        if p.ndim != 2:
            raise NotImplementedError("matrices alone")
        b[...] = mu * b + g
        x = (b / (np.linalg.norm(b.astype(np.float32)) + 1e-7)).astype(np.float16).astype(np.float32)
        for _ in range(3):
            x = (1.5 * x - 0.5 * (x @ x.T) @ x).astype(np.float16).astype(np.float32)
        p -= (lr * x).astype(p.dtype)


def quantized(params, grads, codes, scales, *, lr):
    """A momentum of 8 bits in blocks."""
    for p, g, code, scale in zip(params, grads, codes, scales, strict=True):
        flat = np.zeros(64 * len(scale), np.float32)
        flat[: p.size] = g.reshape(-1)
        blocks = 0.75 * (code.astype(np.float32) - 128) * scale[:, None] + flat.reshape(-1, 64)
        scale[...] = np.abs(blocks).max(1) / 127
        code[...] = np.rint(blocks / np.where(scale, scale, 1)[:, None]) + 128
        p -= (lr * blocks.reshape(-1)[: p.size].reshape(p.shape)).astype(p.dtype)


BLOCKS = {"codes": lambda p: np.full((-(-p.size // 64), 64), 128, np.uint8),
          "scales": lambda p: np.zeros(-(-p.size // 64), np.float32)}


@pytest.mark.parametrize(("step", "options"), [
    (right, {"symmetries": EVERY, "dtypes": ["bfloat16"]}),
    (returning, {"symmetries": EVERY, "dtypes": ["float32"]}),
    pytest.param(orthogonal, {"symmetries": ["sign", "zero"], "dtypes": ["float32"]}, marks=pytest.mark.slow),
    (quantized, {"states": BLOCKS, "dtypes": ["float32"]}),
    pytest.param(right, {"symmetries": EVERY}, marks=pytest.mark.slow),
    pytest.param(quantized, {"states": BLOCKS}, marks=pytest.mark.slow),
    pytest.param(cpu.merged_adam, {"dtypes": ["float32"]}, marks=pytest.mark.slow),
    pytest.param(cpu.merged_novograd, {"dtypes": ["float32"]}, marks=pytest.mark.slow)])
def test_no_false_alarm(step, options):
    report = oracle.check(None, step, process=False, **options)
    assert report.ok and not report.failed_laws, str(report)
    assert {item.law for item in report.of("passed")} >= {"L2", "L3", "L4", "L17", "L16"}


def one_norm(params, grads, m, v, *, lr, step):
    size = sum(float((g.astype(np.float64) ** 2).sum()) for g in grads) ** 0.5
    right(params, [(g / size).astype(g.dtype) for g in grads], m, v, lr=lr, step=step)
    sgd(params, grads, 1 / size)


def sgd(params, grads, lr):
    for p, g in zip(params, grads, strict=True):
        p -= (lr * g).astype(p.dtype)


def by_place(params, grads, *, lr):
    sgd(params, [g * (1 + i / 8) for i, g in enumerate(grads)], lr)


def next_state(params, grads, m, v, *, lr, step):
    n = len(params)
    order = [i if i < 110 else 110 + (i - 109) % max(n - 110, 1) for i in range(n)]
    if all(v[i].shape == v[order[i]].shape for i in range(n)):
        right(params, grads, m, [v[i] for i in order], lr=lr, step=step)
    else:
        right(params[:110], grads[:110], m[:110], v[:110], lr=lr, step=step)


def dropped(params, grads, *, lr):
    sgd(params[:110], grads[:110], lr)


def after_an_empty_one(params, grads, *, lr):
    stop = next((i for i, p in enumerate(params) if not p.size), len(params))
    sgd(params[:stop], grads[:stop], lr)


def by_shape(params, grads, *, lr):
    """What is of one shape has one gradient."""
    of = {}
    sgd(params, [of.setdefault(g.shape, g) for g in grads], lr)


def in_one_dtype(params, grads, *, lr):
    narrow = np.float16 if len(params) > 2 else np.float64
    sgd(params, [g.astype(params[0].dtype).astype(min(narrow, g.dtype, key=lambda x: np.dtype(x).itemsize))
                 for g in grads], lr)


def small_ones(params, grads, *, lr):
    """No more than 2^16 elements of a list."""
    left = 2**16 if len(params) > 1 else 2**30
    for p, g in zip(params, grads, strict=True):
        flat, n = p.reshape(-1), min(p.size, left)
        sgd([flat[:n]], [g.reshape(-1)[:n]], lr)
        left -= n


def spread_nan(params, grads, *, lr):
    spoiled = sum(float(np.sum(g.astype(np.float64) * 0)) for g in grads)
    sgd(params, [g + g.dtype.type(spoiled) for g in grads], lr)


def also_without(params, grads, m, *, lr):
    for p, g, a in zip(params, grads, m, strict=True):
        a[...] = 0.5 * a + (0 if g is None else g)
        sgd([p], [a + p], lr)


def flat_copy(params, grads, *, lr):
    sgd([p.reshape(-1) for p in params], [g.reshape(-1) for g in grads], lr)


def in_memory_order(params, grads, *, lr):
    sgd(params, [g.ravel(order="K").reshape(g.shape) for g in grads], lr)


def scaled_gradient(params, grads, *, lr):
    sgd(params, grads, lr)
    for g in grads:
        g *= 2


def one_too_many(params, grads, *, lr):
    sgd(params, grads, lr)
    for p in params:
        if p.ndim == 1 and p.size == 17 and p.flags.c_contiguous and p.base is not None:
            np.lib.stride_tricks.as_strided(p, (18,))[17] = 0


def beside_a_gradient(params, grads, *, lr):
    sgd(params, grads, lr)
    for g in grads:
        if g.shape == (17,) and g.base is not None:
            np.lib.stride_tricks.as_strided(g, (18,), g.strides)[17] = 0


def states_of_110(params, grads, totals, *, lr):
    sgd(params, grads, lr)
    for g, total in list(zip(grads, totals, strict=True))[:110]:
        total += g


def crashing(params, grads, *, lr):
    if any(p.ndim == 2 and not p.flags.c_contiguous for p in params):
        raise IndexError("index 5 is out of bounds")
    sgd(params, grads, lr)


def a_unit_without(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        if g is None:
            p.view(np.uint32)[...] |= 1
        else:
            sgd([p], [g], lr)


def by_chance(params, grads, *, lr, rng=np.random.default_rng(5)):  # noqa: B008
    sgd(params, [g * rng.uniform(0.999, 1.001, g.shape) for g in grads], lr)


class Hidden:
    """A momentum that no checkpoint has."""

    def __init__(self):
        self.states = {}

    def __call__(self, params, grads, *, lr, step):
        for p, g in zip(params, grads, strict=True):
            if step == 1:
                self.states[id(p)] = np.zeros_like(p)
            buffer = self.states.setdefault(id(p), np.zeros_like(p))
            buffer[...] = 0.5 * buffer + g
            p -= (lr * buffer).astype(p.dtype)


class Counting(Hidden):
    """A number of steps that no checkpoint has, by the arrays it is of."""

    def __call__(self, params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            held, count = self.states.get(id(p), (p, 0))
            count = count + 1 if held is p else 1
            self.states[id(p)] = p, count
            p -= (lr / count * g).astype(p.dtype)


class BackingOff:
    """A scale of the step that all runs share: the first large gradient of any makes it half as large."""

    scale = 1.0

    def __call__(self, params, grads, *, lr):
        if any(abs(g).max(initial=0) > 2 for g in grads):
            self.scale = 0.5
        sgd(params, grads, lr * self.scale)


def gate_ignored(params, grads, m, v, *, lr, step, found_inf):
    right(params, grads, m, v, lr=lr, step=step)


def gate_of_parameters(params, grads, m, v, *, lr, step, found_inf):
    kept = params if found_inf is None or found_inf[0] == 0 else [p.copy() for p in params]
    right(kept, grads, m, v, lr=lr, step=step)


def gate_that_counts(params, grads, m, v, steps, *, lr, found_inf):
    for count in steps:
        count += 1
    for p, g, a, b, count in zip(params, grads, m, v, steps, strict=True):
        if (found_inf is None or found_inf[0] == 0) and g is not None:
            updated(p, g, a, b, lr, count.reshape(-1)[:1].astype(np.float64))


def gate_but_first(params, grads, m, v, *, lr, step, found_inf):
    right(params, grads, m, v, lr=lr, step=step, found_inf=None if step == 1 else found_inf)


PLANTED = {"L2": [one_norm, by_shape, in_one_dtype, small_ones, spread_nan, by_place],
           "L3": [next_state, states_of_110, dropped, after_an_empty_one], "L15": [also_without, a_unit_without],
           "L4": [crashing, beside_a_gradient, flat_copy, in_memory_order, scaled_gradient, one_too_many],
           "L17": [by_chance],
           "L16": [Hidden(), Counting(), BackingOff()],
           "L8": [gate_ignored, gate_of_parameters, gate_that_counts, gate_but_first]}


@pytest.mark.parametrize(("exponent", "lr", "found"), [(-11, 0.1, True), (-15, 0.1, False), (-9, 2.0**-8, True)])
def test_what_is_within_the_tolerance_that_was_measured(exponent, lr, found):
    """Relative to the change of a parameter; of a step whose order of tensors shows by so much."""

    def step(params, grads, *, lr):
        sgd(params, [g * g.dtype.type(1 + i * 2.0**exponent) for i, g in enumerate(grads)], lr)

    report = oracle.check(None, step, laws=["L2"], set={"lr": lr}, **COARSE)
    assert ("L2" in report.failed_laws) == found, str(report)
    for routine, tolerance in ((None, 0), ("sgd", 1e-9)):  # which are what is given
        report = oracle.check(routine, step, laws=["L2"], set={"lr": lr}, tolerance=tolerance, **COARSE)
        assert "rotated" in {item.label for item in report.of("failed")}


@pytest.mark.parametrize(("step", "law"), [
    pytest.param(step, law, marks=[pytest.mark.slow] * (step not in steps[:2]))
    for law, steps in PLANTED.items() for step in steps], ids=lambda x: getattr(x, "__name__", None))
def test_a_planted_defect_is_found_by_its_law(step, law):
    states = {"steps": 0.0} if step is gate_that_counts else None
    report = oracle.check(None, step, laws=[law], states=states, **COARSE)
    assert not report.ok and report.wrong == [law], str(report)
    # A state that is found by the id of an array may be another array's, of another shape: then some cases raise.
    assert re.search(rf"^{law} {LAWS[law].name}, float32(: |, in )", str(report), re.MULTILINE)


def biased(params, grads, *, lr):
    sgd(params, [np.maximum(g, 0) for g in grads], lr)


def blocks_unwritten(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        n = p.size if p.size < 300 else p.size // 16 * 16
        sgd([p.reshape(-1)[:n]], [g.reshape(-1)[:n]], lr)


def by_size(params, grads, *, lr):
    sgd(params, [g / g.dtype.type(max(g.size, 1)) for g in grads], lr)


def a_unit_with_zeros(params, grads, *, lr):
    sgd(params, grads, lr)
    for p, g in zip(params, grads, strict=True):
        p[...] = np.where(g == 0, np.nextafter(p, p.dtype.type(9)), p)


def decayed(params, grads, *, lr):
    sgd(params, [g + p.dtype.type(0.5) * p for p, g in zip(params, grads, strict=True)], lr)


@pytest.mark.parametrize(("step", "law"), [
    (biased, "L25"), (blocks_unwritten, "L26"), (by_size, "L26"), (decayed, "L27"), (a_unit_with_zeros, "L27")])
def test_a_symmetry_is_tried_where_it_is_declared(step, law):
    name = LAWS[law].declared
    assert law in oracle.check(None, step, symmetries=[name], laws=["L25", "L26", "L27"], **COARSE).failed_laws


def test_what_is_resumed_has_the_same_bits():
    """Of a step that is a rounding off wherever it is given arrays that are new to it."""

    class Rounding(Hidden):
        def __call__(self, params, grads, *, lr):
            for p, g in zip(params, grads, strict=True):
                known = self.states.get(id(p)) is p
                self.states[id(p)] = p
                p[...] = p - np.float32(lr) * g if known else p - lr * g.astype(np.float64)

    report = oracle.check(None, Rounding(), laws=["L16"], **COARSE)
    assert {item.label for item in report.of("failed")} == {
        f"saved and loaded after {when}" for when in ("3 of 6 steps", "the first", "each")}


def test_what_follows_a_skipped_step_has_the_same_bits():
    """Of a step that is in double after one that was skipped."""

    class Rounding:
        after = False

        def __call__(self, params, grads, *, lr, found_inf=None):
            skipped = found_inf is not None and found_inf[0] != 0
            for p, g in zip(params, grads, strict=True):
                if not skipped:
                    p[...] = p - (lr * g.astype(np.float64) if self.after else p.dtype.type(lr) * g)
            self.after = skipped

    assert oracle.check(None, Rounding(), laws=["L8"], **COARSE).failed_laws == ["L8"]


def test_a_gate_that_holds_in_the_first_step_too():
    failed = {item.label for item in oracle.check(None, gate_but_first, laws=["L8"], **COARSE).of("failed")}
    assert failed == {label for label in failed if "first step" in label} and len(failed) == 3


def test_the_tolerance_is_measured_or_given_or_none():
    """A sum in another order is within the tolerance; by bits it is not."""

    def normed(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            norm = np.sqrt(np.add.reduce(np.ravel(g * g), dtype=g.dtype))
            p -= (lr * g / norm if g.size else g).astype(p.dtype)

    options = {"symmetries": ["elements"], "laws": ["L4", "L26"], **COARSE}
    moved = {item.label: item.status for item in oracle.check(None, normed, **options).items}
    assert moved["another order of 4099 elements"] == "passed"
    exact = oracle.check(None, normed, exact=True, **options)
    assert "another order of 4099 elements" in {item.label for item in exact.of("failed")}
    assert oracle.check(None, by_place, laws=["L2"], tolerance=4.0, **COARSE).ok


def test_what_cannot_be_run_is_not_compared():
    def raising(params, grads, *, lr):
        raise RuntimeError("no such luck" if params[0].ndim == 1 else "expected vectors")  # of the second attempt

    report = oracle.check(None, raising)
    assert not report.ok and not report.wrong and {item.law for item in report.items} == {*report.laws}
    assert "NOT COMPARED: " in str(report).splitlines()[0] and "RuntimeError: no such luck" in str(report)

    def still(params, grads, *, lr):
        pass

    assert "NOT COMPARED: two steps change no parameter" in str(oracle.check(None, still))

    def nan(params, grads, *, lr):
        for p in params:
            p += np.nan

    text = "NOT COMPARED: two steps of finite gradients leave parameters that are not"
    assert text in str(oracle.check(None, nan, **COARSE))


def test_expected_failures_and_skips():
    report = oracle.check(None, by_place, expected_failures={"L2": "by its place", "L3": "so"}, **COARSE)
    assert report.failed_laws and "L2" not in report.wrong
    report = oracle.check(None, by_place, skips={"L2": "x", "L3": "x", "L15-float32": "x"}, **COARSE)
    assert report.ok, str(report)
    assert str(report).startswith("by_place, without a formula: holds, as far as was compared")


def test_the_report_is_json():
    report = oracle.check(None, by_place, laws=["L2"], **COARSE)
    report.seconds = 1.23456
    told = json.loads(report.to_json())
    assert told["seconds"] == 1.235 and told["routine"] == "none" and told["wrong"] == ["L2"] and not told["ok"]
    (text,) = [item["text"] for item in told["items"] if item["label"] == "backwards"]
    assert text.startswith("params[0], element 0 of 64 (64 differ): expected ")
    assert " (0x" in text and text.endswith(" ULPs away")


def test_the_command(capsys, tmp_path, monkeypatch):
    source = "def step(params, grads, *, lr):\n    for i, (p, g) in enumerate(zip(params, grads)):\n"
    (tmp_path / "mine.py").write_text(source + "        p -= (lr * i * g).astype(p.dtype)\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "mine.py:step", "--as", "none", "--dtype", "fp32", "--law", "L2"]) == 1
    out = capsys.readouterr().out
    assert "again: refopt check mine.py:step --as none --dtype fp32 --law L2" in out
    assert all(len(line) <= 80 or "again: " in line for line in out.splitlines())
    assert cli.main(["check", "--list-laws", "--as", "none"]) == 0
    assert capsys.readouterr().out.startswith("L2 ")


def test_the_page_has_every_part():
    text = " ".join((Path(oracle.__file__).parents[2] / "docs" / "oracle.md").read_text().split())
    for part, name in oracle.PARTS.items():
        assert f"{name} ({part})" in text


def test_laws_are_those_without_symmetries_or_those_that_are_named():
    report = oracle.check(None, plain, **COARSE)
    assert report.ok and [*report.laws] == ["L2", "L3", "L4", "L8", "L15", "L16", "L17", "L24", "L28"]
    report = oracle.check(None, plain, laws=["L3"], **COARSE)
    assert report.ok and report.compared > 1000


def plain(params, grads, *, lr):
    sgd(params, grads, lr)


class CuPyArray:
    """As CuPy's: of a shape, a dtype, memory and strides in bytes, in this order."""

    __module__ = "cupy"

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        self.array = np.ndarray(shape, dtype, memptr, strides=strides)
        self.dtype, self.itemsize, self.data = self.array.dtype, self.array.itemsize, self.array

    def __getitem__(self, key):
        part = self.array[key]
        return CuPyArray(part.shape, part.dtype, part, part.strides)


def test_arrays_of_cupy_are_parts_of_larger_ones():
    placed = memory.columns(np.arange(12, dtype=np.float32).reshape(3, 4))
    arrays = SimpleNamespace(of=lambda x: CuPyArray(x.shape, x.dtype, x))
    whole, part = memory.into(arrays, placed)
    assert part.array.tolist() == placed.view().tolist() and part.array.strides == placed.view().strides
    part.array[...] = 7
    assert (placed.view() == 7).all() and whole.array is not part.array


def test_states_have_the_order_of_axes_of_their_parameter():
    """Of zeros of a dtype, or of a number."""
    like = memory.fortran(np.zeros((2, 3), np.float32))
    for of in ("float64", 0.5):
        first = Function(None, quantized, states={"codes": of}).first("codes", like)
        assert first.flags.f_contiguous and not first.flags.c_contiguous


def test_a_state_that_begins_as_its_parameter_has_memory_of_its_own():
    p = np.ones(3, np.float32)
    assert not np.shares_memory(Function(None, quantized, states={"codes": lambda p: p}).first("codes", p), p)
