"""Planted bugs are found, and the diagnosis names them."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.bugs import FIRST, KNOWN, SECOND_SET, THIRD_SET, step_of
from oracle.kept import assert_kept, digest, digits
from oracle.mutants.table import MUTANTS
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound.evaluate import PRIMITIVES, rebound
from refopt.oracle.broken import Broken
from refopt.oracle.diagnosis import edits, operands
from refopt.oracle.diagnosis.arrays import _clipped
from refopt.oracle.diagnosis.evidence import tensors_of
from refopt.oracle.diagnosis.explain import Explainer, _is_of
from refopt.oracle.diagnosis.failure import Failure
from refopt.oracle.diagnosis.hypotheses import named
from refopt.oracle.diagnosis.situation import of_case
from refopt.oracle.diagnosis.weighing import _steps
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial
from refopt.oracle.variants import ROUTINES as ALL
from refopt.oracle.wrong import OF

# What a rule raises that a change of its source has made none. Those with names raise nothing.
NO_RULE = TypeError, ValueError, AttributeError, LookupError, ArithmeticError
NAMED = dict(dtypes=["float32"], laws=["L1"], examples=0, process=False)


def why(report):
    """The reasons of the first failure that any were looked for."""
    return next(item.reasons for item in report.items if item.reasons is not None)


# Of wrong formulas of the library, of bugs of kinds that a diagnosis is made for, and of those that were written before
# anybody knew what it would look for: of the 60 of the first set it named 32 then, of the 40 of the second one, by what
# was made for the first, 28, and of the 25 of the third 16. Beside each is what names it now. Each takes a second or
# more: make test has some of each.
OF_TEXTS = [(f"{of}, {routine}: {name}", routine, partial(step_of, routine, changes), reason)
            for of, table in (("first", FIRST), ("second", SECOND_SET), ("third", THIRD_SET), ("known", KNOWN))
            for routine, bugs in table.items() for name, (changes, reason) in bugs.items()]
OF_LIBRARY = [(mutant.name, mutant.routine, mutant.step, mutant.reason) for mutant in MUTANTS if mutant.reason]


def test_most_have_a_name():
    reasons = [reason for label, _, _, reason in OF_TEXTS if not label.startswith("known")]
    assert len(reasons) == 87 and sum(map(bool, reasons)) >= 0.9 * len(reasons)


def some(table, every):
    """All of a table, of which make test has one of so many, and all that are known."""
    for k, (label, *of) in enumerate(table):
        laws = ["L1", "L2", "L3"] if "tensor" in label else ["L1"]  # of one tensor, and of several
        slow = k % every or not of[-1] or "10" in label or label.startswith("AdamW")
        slow = "no correction" in label if label.startswith("known") else slow  # two of AdamW's take long
        yield pytest.param(*of, laws, id=label, marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize(("routine", "make", "reason", "laws"), [*some(OF_TEXTS, 58), *some(OF_LIBRARY, 30)])
def test_a_bug_is_named(request, monkeypatch, routine, make, reason, laws):
    """Among the first reasons; lost elements are named by the pattern, which the reason refers to.

    For the bugs in make test, kept.txt has all explanations and how much each explains.
    """
    found, explanations = [], Explainer.explanations
    monkeypatch.setattr(Explainer, "explanations", lambda *of: found.append(explanations(*of)) or found[-1])
    report = oracle.check(routine, make(), **NAMED | {"laws": laws})
    assert not report.ok
    reasons = why(report)
    full = [text for text, share in reasons if share >= 0.9995][:5]
    reason = reason.partition(" (in ")[0]
    assert not reason or any(reason in text for text in full), reasons
    assert not reason or reasons[0][0] in str(report)
    if not request.node.get_closest_marker("slow"):
        kept = [(x.text, f"{x.share:.3f}", x.elements, sorted(x.laws), x.bent) for each in found for x in each]
        label = request.node.callspec.id.replace(": ", ", ")
        assert_kept({f"{label}, explained": f"{len(kept)} explanations: {digest(kept)}"})


def test_which_mistakes_are_thought_of():
    """Of gradients, of numbers in a rule, and of corrections, where the routine has none of its own."""
    changed = {f"gradient {text}" for text in (
        "divided by its norm", "replaced by its sign", "replaced by its absolute value", "clipped to a norm of 1",
        "clipped to a norm of 1, with 1e-6 added to the norm", "clipped elementwise to 1")}
    numbers = {f"as if `0.5` were `{x}`" for x in (0, 1, 2)}
    corrected = {f"as if `m` were `m {by} (1 - beta1**t)` in `return (p - lr * m, m, v)`" for by in "*/"}
    none = {f"no bias correction of the {which} moment" for which in ("first", "second")}
    for of, routine, expected in ((named, "sgd", changed), (named, "adamw", none), (edits.of_rule, "nadam", numbers),
                                  (operands.of_rule, "novograd", corrected),
                                  (operands.of_rule, "adamw", {"as if `g * g` were `sqrt((g * g))`"})):
        names = {hypothesis.name for hypothesis in of(ROUTINES[routine])}
        assert all(any(name.startswith(x) for name in names) for x in expected)
    assert not any("**t" in hypothesis.name for hypothesis in operands.of_rule(ROUTINES["adamax"]))


@pytest.mark.parametrize(("size", "kind", "count"), [(40, "rule", 499), (2**14, "rule", 250), (40, "rough", 50)])
def test_work_is_counted_by_no_clock(size, kind, count):
    """A hypothesis that the first look rejects is one glance, twice as much at 16,384 elements; its bound is ten."""
    row, twice = ROUTINES["lamb"], step_of("lamb", {"p -= real(lr)": "p -= real(2 * lr)"})
    trial = Trial(row, Function(row, twice), "float32", 0, {})
    explainer = Explainer(trial, [Failure("L1", "step 3", trial.case([size]), Broken("wrong"), trial.hold)], [], 1000)
    wrong = next(h for h in explainer.named if h.kind == kind)
    tried = iter(range(1000))
    assert not explainer._tried(((wrong,) for _ in tried), 0.5)
    assert next(tried) == count + 1 and 480 < explainer.work.left <= 500
    row = ALL["muon"]
    muon = Trial(row, Function(row, cpu.merged_muon), "float32", 0, {})
    assert Explainer(muon, [], [], 1000).work.left == 50  # since a look at its iterations takes as long as twenty


def test_what_is_just_outside_of_the_bound_is_explained():
    def step(params, grads, *, lr, l2_decay):
        for p, g in zip(params, grads, strict=True):
            p -= lr * g

    report = oracle.check("sgd", step, set={"l2_decay": 2.0**-18}, **NAMED)
    assert ": 1.15 times the bound" in str(report) and ("no L2 decay", 1.0) in why(report)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_narrow_arithmetic_explains_no_more_than_it_does(dtype):
    """That of fp32, for numbers of fp64, and of 16 bits."""
    options = NAMED | {"dtypes": [dtype]}
    assert why(oracle.check("sgd", with_sign, **options)) == (("gradient replaced by its sign", 1.0),)
    real = np.float32 if dtype == "float64" else numpy_dtype(dtype).type

    def narrow(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p[...] = p.astype(real) - real(lr) * g.astype(real)

    assert f"computed in {np.dtype(real).name}" in str(why(oracle.check("sgd", narrow, **options)))


def test_two_causes_of_two_laws():
    """One in the step with Nesterov's momentum alone, one of a factor that law L1 does not give."""

    def step(params, grads, velocities, *, lr, mu, l2_decay, use_nesterov, grad_factor=None):
        for p, g, v in zip(params, grads, velocities, strict=True):
            factor = p.dtype.type(1 if grad_factor is None else grad_factor[0])
            g = factor * factor * g + l2_decay * p
            v[...] = mu * v + g
            p -= lr * (mu * g + v if use_nesterov else v)

    report = oracle.check("momentum", step, **NAMED | {"laws": ["L1", "L9"]})
    assert [(cause.text.partition(" in ")[0], cause.laws) for cause in report.causes] == [
        ("as if `g + mu * v` were `mu * g + v`", ["L1"]), ("grad_factor squared, or applied twice", ["L9"])]


def test_nothing_is_made_up():
    """What no hypothesis says is explained by none."""

    def step(params, grads, *, lr, l2_decay):
        for p, g in zip(params, grads, strict=True):
            p -= lr * (g + l2_decay * p) + p.dtype.type(0.001) * np.sin(37 * g).astype(p.dtype)

    report = oracle.check("sgd", step, **NAMED)
    assert why(report) == () and "why: none of the hypotheses explains it" in str(report)


def test_a_narrow_dtype_is_explained_by_what_is_known():
    """16-bit arithmetic beside the mistake that was found in fp32."""
    dampened = step_of("momentum", {"v += g": "v += real(1 - mu) * g"})
    report = oracle.check("momentum", dampened, **NAMED | {"dtypes": ["float32", "float16"]})
    last = [item.reasons for item in report.items if item.dtype == "float16" and item.reasons is not None]
    assert any("dampened" in reason for reason, share in last[0] if share >= 0.99), last


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_how_near_an_element_has_to_come(dtype):
    """Elements that are right, a few units off, or far off."""
    def step(params, grads, velocities, *, lr, mu):
        cpu.merged_momentum(params, grads, velocities, lr=lr, mu=mu)
        for x in (*params, *velocities):
            x[::3] *= x.dtype.type(1 + 2.0**-6)
            x[::5] += x.dtype.type(1)

    row = ROUTINES["momentum"]
    trial = Trial(row, Function(row, step), dtype, 0, {})
    (tensor,) = tensors_of(trial, trial.case([40], count=3))
    assert 10 < tensor.wrong["params"].sum() < 30
    assert_kept({f"room, {dtype}": digest(digits(tensor.room, 4))})


@pytest.mark.parametrize(("factor", "named"), [
    (0.75, True), (0.25, True), (4.0, True), (4 / 3, True), (0.5, False), (-0.75, False), (1.5, False)])
def test_a_factor_that_a_number_says(factor, named):
    """It, 1 minus it, or the inverse of one of both."""
    assert _is_of(factor, [0.75]) == named


def test_the_gradient_of_another_tensor():
    def step(params, grads, *, lr, l2_decay):
        for i, p in enumerate(params):
            other = grads[max(i - 1, 0)]
            g = other[: p.size] if other.size >= p.size else grads[i]
            p -= lr * (g + l2_decay * p)

    report = oracle.check("sgd", step, **NAMED | {"laws": ["L3"]})
    assert report.failed_laws == ["L3"] and "grads of the tensor before" in str(why(report))


@pytest.mark.parametrize("routine", [pytest.param(x, marks=pytest.mark.slow if "momentum" not in x else ())
                                     for x in ROUTINES])
def test_hypotheses_do_not_break(routine):
    """Each named wrong rule runs over bounded numbers, and the names differ. What a change of the
    source raises has a reason: it is no rule any more."""
    row = ROUTINES[routine]
    names = [hypothesis.name for hypothesis in named(row)]
    own = [name for name in names if not name.startswith("norms of")]  # shares end at either of two elements
    assert len(names) > 50 and len(set(own)) >= len(own) - 3 and max(map(names.count, names)) <= 2
    rules = [wrong.of(row.rule) for wrong in OF[routine].values()]
    assert all(rebound(rule) is not None and rule not in PRIMITIVES for rule in rules)
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {})
    optional = [slot.name for slot in row.slots if slot.optional and slot.name != "master_params"]
    case = trial.case([40], count=3, optional=optional)
    explainer = Explainer(trial, [Failure("L1", "step 3", case, Broken("wrong"), trial.hold)], [], 0)
    tensor, broken, changes = explainer.right[0], {}, [*edits.of_rule(row), *operands.of_rule(row)]
    assert len(changes) > 20
    hypotheses = [*named(row), *changes[:: max(1, len(changes) // 400)]]
    for hypothesis in hypotheses:
        changed = explainer._changed(tensor, (hypothesis,))
        for way in (changed.plain, changed.expected) if changed else ():
            try:
                with np.errstate(all="ignore"):
                    way()
            except Exception as error:
                broken[hypothesis.name, hypothesis.kind] = error
    for (name, kind), error in broken.items():
        assert kind == "edit" and isinstance(error, NO_RULE), (name, error)
    assert len(broken) < len(hypotheses) / 4


@pytest.mark.parametrize(("wrong", "right", "text"), [
    ([1], [3], "in the first step only"), ([2, 1], [3], "up to step 2"), ([5, 7], [3], "from step 5 on"),
    ([1, 5], [3], ""), ([1], [], "")])
def test_which_steps_a_mistake_is_of(wrong, right, text):
    """Of cases of the same numbers, one of each kind at least."""

    def tensors(counts, lr=1):
        cases = [SimpleNamespace(count=k, numbers_of=lambda i: {"lr": lr}) for k in counts]
        return [SimpleNamespace(tensor=0, case=case) for case in cases]

    assert _steps(tensors(wrong), tensors(right), True) == text
    assert _steps(tensors(wrong), tensors(right, 2), True) == ""


def test_numbers_of_a_situation():
    """Powers of another step, and gradients clipped by the norm of all tensors or of each."""
    row = ROUTINES["adam"]
    case = Trial(row, Function(row, cpu.merged_adam), "float32", 0, {}).case([40, 30], count=3)
    s = of_case(case, 0, row.rule, np.float32)._replace(powers={"beta1_pow": 2})
    assert s._power("beta1_pow") == pytest.approx(s.numbers["beta1"] ** 2)
    for by, grads in (("all tensors", case.grads), ("each tensor", case.grads[:1])):
        factor = 1 / np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in grads))
        assert _clipped(s, by).numbers["grad_factor"] == pytest.approx(factor)


def random_changes(p, g, v, mu, seed):
    """Something that nobody would write."""
    r = np.random.default_rng(seed).uniform(0.2, 0.8, 3)
    v[...] = mu * v + np.cos(g * r[0]) * g + np.sin(r[1] + p) * r[2]
    return v * (1 + r[0] * g * g) + np.tanh(p) * r[2]


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_unrelated_changes_get_no_name(seed):
    def step(params, grads, velocities, *, lr, mu):
        for p, g, v in zip(params, grads, velocities, strict=True):
            p -= (lr * random_changes(p, g, v, mu, seed)).astype(p.dtype)

    assert all(share < 0.9995 for _, share in why(oracle.check("momentum", step, **NAMED)))


def test_the_first_error_is_the_worst_over_its_bound():
    lines = str(oracle.check("sgd", with_sign, **NAMED)).splitlines()
    order = [next(i for i, line in enumerate(lines) if text in line) for text in
             ("cause: ", "  fails: ", "smallest example", "times the bound", "  where: ", "  again: ")]
    assert order == sorted(order)


def with_sign(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p[...] = p - np.float64(lr) * np.sign(g)
