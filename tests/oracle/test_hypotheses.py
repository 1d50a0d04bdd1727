"""The hypotheses of a diagnosis do what their names say."""

import re

import numpy as np
import pytest

from refopt import cpu
from refopt.catalog import KNOWN, ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.diagnosis import numbers, operands
from refopt.oracle.diagnosis.evidence import tensors_of
from refopt.oracle.diagnosis.hypotheses import named
from refopt.oracle.diagnosis.situation import base_rule, of_case
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial
from refopt.oracle.wrong import OF

RULE = ("g = {}", "g + l2_decay * p"), ("return ({},)", "p - lr * g")
PLAIN = {"min": np.minimum, "max": np.maximum, "clip": np.clip, "sign": np.sign, "sqrt": np.sqrt,
         "norm": np.linalg.norm, "mean": np.mean,
         "to": lambda x, dtype: np.asarray(x, numpy_dtype(dtype)).astype(float)}
WORDS = {r"(.+) of norm (\S+) at most": r"(\1) * min(1, \2 / norm(\1))", r"(.+) / its norm": r"(\1) / norm(\1)",
         r"(.+) / its rms": r"(\1) / sqrt(mean((\1) * (\1)))",
         r"(.+) rounded to (\w+)": r"to(\1, '\2')", r"(.+) in the gradient's dtype": r"\1"}


def test_an_array_of_a_neighbour_explains_alone():
    """Without another hypothesis beside it."""
    by_name = {h.name: h for h in named(ROUTINES["momentum"])}
    for name, paired in (("velocities of the tensor after", False), ("velocities not read: taken as 0", True)):
        assert (by_name[name].about, by_name[name].paired) == ("velocities", paired)


def test_expressions_are_changed_to_what_is_said():
    """Each change of an operand of SGD, in the text of the rule: the same numbers."""
    row, (p, g) = ROUTINES["sgd"], np.array([[-3.5, -0.004, 0.25, 2.0], [0.5, 0.007, -1.5, 3.0]])
    case = Trial(row, Function(row, cpu.merged_sgd), "float32", 0, {}).case([40], count=3)
    situation, seen = of_case(case, 0, row.rule, np.float32), set()
    for hypothesis in operands.of_rule(row):
        found = re.fullmatch(r"as if `(?:each )?(.+)` were `(.+)` in `(.+)`", hypothesis.name)
        lines = [(line, text) for line, text in RULE if found and line.format(text) == found[3]]
        if not lines or (changed := hypothesis.change(situation)) is None:
            continue
        new = found[2]
        for words, formula in WORDS.items():
            new = re.sub(words, formula, new)
        known = PLAIN | situation.numbers | {"p": p, "g": g}
        with np.errstate(all="ignore"):
            for line, text in RULE:
                if line in lines[0]:
                    text = re.sub(rf"(?<!\w){re.escape(found[1])}(?!\w)", "NEW", text)
                known["g" if line[0] == "g" else "result"] = eval(text.replace("NEW", f"({new})"), {}, known)
            held = {x: np.float64(changed.numbers[x]) for x in ("lr", "l2_decay")}
            (got,) = changed.rule(p, g, **held, maximize=False)
        np.testing.assert_allclose(got, known["result"], rtol=1e-6, err_msg=hypothesis.name)
        seen.add((found[2], found[3]))
    assert len(seen) == 712  # that are numbers of the case, or formulas


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_arrays_are_read_as_is_said(dtype):
    """In a narrower dtype, as nothing, or those of another tensor."""
    row = ROUTINES["momentum"]
    case = Trial(row, Function(row, cpu.merged_momentum), dtype, 0, {}).case([40, 40, 40], count=3)
    situation, sizes = of_case(case, 1, row.rule, np.float32), {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
    known = {hypothesis.name: hypothesis.change(situation) for hypothesis in named(row)}
    for name in ("grads", "velocities"):
        lists = case.lists()[name]
        expected = {f"{name} of the first tensor": lists[0], f"{name} of the tensor before": lists[0],
                    f"{name} of the tensor after": lists[2], f"{name} of the last tensor": lists[2]}
        expected["gradient taken as 0" if name == "grads" else f"{name} not read: taken as 0"] = 0 * lists[1]
        for other in ("float32", "float16", "bfloat16"):
            narrowed = lists[1].astype(numpy_dtype(other)).astype(lists[1].dtype)
            expected[f"{name} read in {other}"] = narrowed if sizes[other] < sizes[dtype] else None
        for text, x in expected.items():
            assert (known[text] is None) == (x is None), text
            assert x is None or np.array_equal(known[text].arrays[name], x), text


def test_one_norm_is_that_of_all_elements_and_scalars_stay():
    row = ROUTINES["lamb"]
    case = Trial(row, Function(row, cpu.merged_lamb), "float32", 0, {}).case([40, 30], count=3)
    situation = of_case(case, 1, base_rule(row), np.float32)
    (one,) = (h for h in named(row) if h.name == "one norm over all tensors, not one for each")
    changed, lists = one.change(situation), case.lists()
    assert changed.among == slice(40, 70)
    for name, x in situation.arrays.items():
        expected = x if x is None or name in row.scalars else np.concatenate(lists[name])
        assert np.array_equal(changed.arrays[name], expected), name


@pytest.mark.parametrize("bits", [20, 11, 9])
def test_an_operation_that_is_rough_is_off_by_so_much_of_the_update(bits):
    """Either way, and of the decay as well."""
    row = ROUTINES["adamw"]
    case = Trial(row, Function(row, cpu.merged_adamw), "float32", 0, {}).case([40], count=3)
    situation = of_case(case, 0, row.rule, np.float32)
    (rough,) = (h for h in named(row) if h.name.startswith("a fast reciprocal") and f"2**-{bits} " in h.name)
    exact, loose = (s.expected()["params"] for s in (situation, rough.change(situation)))
    p, numbers = case.params[0].astype(float), situation.numbers
    update = abs(exact.value - p) + numbers["lr"] * numbers["coeff"] * abs(p)
    np.testing.assert_allclose(loose.error - exact.error, 2.0**-bits * update, rtol=1e-3)


def test_three_tensors_of_a_case_are_evidence_and_the_wrong_one():
    row = ROUTINES["sgd"]
    trial = Trial(row, Function(row, cpu.merged_sgd), "float32", 0, {})
    case = trial.case([4, 5, 0, 6, 7, 8])
    for first, tensors in ((0, [0, 3, 5]), (4, [4, 0, 3, 5]), (2, [0, 3, 5])):
        assert [x.tensor for x in tensors_of(trial, case, first)] == tensors


@pytest.mark.parametrize(("routine", "size", "elements"), [
    ("sgd", 2**11, 2**11), ("sgd", 2**11 + 1, 188), ("lars_momentum", 2**11 + 1, 2**11 + 1)])
def test_elements_of_large_tensors_are_evidence(routine, size, elements):
    """Those at either end, and some between, unless a norm is of all."""
    row = ROUTINES[routine]
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {})
    (tensor,) = tensors_of(trial, trial.case([size]))
    assert tensor.wide["params"].size == elements
    if elements < size:
        assert [*tensor.elements[:64]] == [*range(64)] and [*tensor.elements[-64:]] == [*range(size - 64, size)]


@pytest.mark.parametrize("name", KNOWN)
def test_every_hypothesis_can_be_asked_of_every_routine(name):
    """One that raises is passed over in a diagnosis, and its cause never named."""
    row = KNOWN[name]
    case = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {}).case([(4, 5), (3, 2)], count=3)
    situation, changed = of_case(case, 0, base_rule(row), np.float32), []
    for hypothesis in named(row):
        if hypothesis.change(situation) is not None:
            changed.append(hypothesis.name)
    assert {wrong.name for wrong in OF[name].values()} <= {*changed}


KINDS = {"arithmetic", "array", "choice", "clipped", "flush", "gradient", "kept", "narrow", "number", "power", "rough",
         "rule"}


@pytest.mark.parametrize("row", KNOWN.values(), ids=lambda row: row.name)
def test_every_hypothesis_has_a_kind(row):
    assert {hypothesis.kind for hypothesis in named(row)} <= KINDS


def test_steps_of_a_wrong_correction_are_those_that_are_said():
    """Of step t and of tensor 3."""
    steps = [[x.change.keywords["to"](t, 3) for t in (1, 7, 256, 70_000)] for x in numbers._other_steps("x", ("a",))]
    none = numbers.NONE
    assert steps == [
        [0, 6, 255, 69_999], [2, 8, 257, 70_001], [1, 1, 1, 1], [4, 10, 259, 70_003], [1, 7, 256, 256],
        [1, 7, 256, 2048], [1, 7, 256, 70_000], [1, 7, 256, 65_504], [1, 7, 256, 65_536],
        [1, 7, none, 70_000 % 256], [1, 7, 256, 70_000 % 2**16]]
