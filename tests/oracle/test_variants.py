"""Variants of routines: by default they are the catalogue's rules, to the bit; a step that is another one is named."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.bugs import step_of
from oracle.mutants import built, mutant
from oracle.mutants.table import MUTANTS
from refopt import cpu, oracle
from refopt.catalog import KNOWN as OWN
from refopt.oracle import variants
from refopt.oracle.cases import Dtypes, draw, number
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.variants import VARIANTS, added, defaults

pytestmark = pytest.mark.clause("N13")
L1 = dict(dtypes=["float32"], laws=["L1"], examples=0, process=False)


def drawn(row, choices=None, numbers=None, count=3, dtype="float32"):
    """A case of a row, none of whose numbers is neutral unless it is named."""
    of_row = {hyper.name: number(hyper) for hyper in row.hypers} | {"rescale_grad": 1.0} | (numbers or {})
    every = {name: values[0] for name, values in row.choices.items()} | (choices or {})
    optional = [slot.name for slot in row.slots if slot.optional and slot.name != "master_params"]
    kinds, shape = [Dtypes(dtype, dtype, dtype)], (5, 8) if row.matrix_arguments else (40,)
    return draw(row, [shape], kinds, seed=0, numbers=of_row, choices=every, optional=optional, count=count)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_by_default_they_are_the_catalogues(name, dtype):
    """Choices and numbers at their defaults change no bit."""
    row, own = VARIANTS[name].row, OWN[name]
    numbers, choices = defaults(name, added(name))
    plain = drawn(row, numbers=numbers, dtype=dtype)
    expected = runner(getattr(cpu, own.merged_name))(drawn(own, dtype=dtype))
    got = variants_step(row)(plain)
    assert_same(expected, {slot: got[slot] for slot in expected}, "by default")
    assert added(name) == {*numbers, *choices} and added(name)


def variants_step(row):
    return runner(variants.step_of(row))


@pytest.mark.parametrize("name", VARIANTS)
def test_choices_of_the_catalogue_stay(name):
    """Its slots, numbers and choices come first, with the same defaults, and no choice has other values."""
    row, own = VARIANTS[name].row, OWN[name]
    assert {*own.slots} <= {*row.slots} and {*own.hypers} <= {*row.hypers}
    assert own.choices.items() <= row.choices.items()
    assert all(slot.optional and slot.scalar for slot in {*row.slots} - {*own.slots})


def edited(routine, *changes, reason=""):
    """A step of the library that is right for who says which variant it is; the report says so to who does not."""
    return mutant(f"{routine}, another one", routine, "L1", *changes, reason=reason)


def of_text(routine, changes, reason):
    return SimpleNamespace(routine=routine, step=partial(step_of, routine, changes), reason=reason)


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
ROOT = "np.sqrt(v if v_max is None else v_max) / n.root_correction2"
ADAMAX = edited("adamax",
                ("functors.adamax", "n.beta2 * norm + n.epsilon, abs(g)", "n.beta2 * norm, abs(g) + n.epsilon"),
                reason="epsilon_at=gradient: epsilon added to the gradient's size, as in PyTorch and optax")
ROWS = {"amsgrad": ({"max_of": "corrected"}, edited(
            "adam", ("functors.adam", "np.maximum(v_max, v)", "np.maximum(v_max, v / n.correction2)"),
            ("functors.adam", ROOT, "np.sqrt(v / n.correction2 if v_max is None else v_max)"),
            reason="AMSGrad's maximum of the corrected second moments")),
        "adamax": ({"epsilon_at": "gradient"}, ADAMAX),
        "radam": ({"epsilon_at": "corrected"}, BY_NAME["RAdam: epsilon beside the corrected root"]),
        "radam of four": ({"threshold": 4}, BY_NAME["RAdam: the threshold at 4"]),
        "adagrad": ({"epsilon_at": "inside"}, BY_NAME["Adagrad: epsilon in the root"]),
        "rmsprop": ({"lr_at": "step"}, BY_NAME["RMSProp: the rate outside of the velocity"]),
        "sgdw": ({"decay": "decoupled"}, of_text(
            "momentum", {"g = g + real(l2_decay) * p": "p *= real(1 - lr * l2_decay)"},
            "weight decay decoupled from the gradient")),
        "lars": ({"grad_norm": "decayed", "adapt": "norms"}, of_text(
            "lars_momentum", {"np.linalg.norm(g.ravel())": "np.linalg.norm((g + wd * p).ravel())", "n + wd * w": "n"},
            "the norm of the gradient and its decay"))}


@pytest.mark.parametrize(("variant", "other"), [
    pytest.param(*row, id=name, marks=[pytest.mark.slow] * (name not in ("adamax", "sgdw", "lars")))
    for name, row in ROWS.items()])
def test_said_or_named(variant, other):
    """A step is told which variant it is, or the report names it."""
    said = oracle.check(other.routine, other.step(), set=variant, **L1)
    said.raise_if_failed()
    assert {item.text for item in said.of("skipped")} <= {"takes no epsilon_at", "takes no norm_of"}
    report = oracle.check(other.routine, other.step(), set={k: x for k, x in variant.items() if k == "adapt"}, **L1)
    assert report.wrong == ["L1"] and other.reason in str(report)


def test_a_known_mistake_is_named_in_a_variant_too():
    step = step_of("momentum", {"g = g + real(l2_decay) * p": "p *= real(1 - lr * l2_decay)",
                                "v += g": "v += real(lr) * g"})
    report = oracle.check("momentum", step, set={"decay": "decoupled"}, **L1 | {"examples": 5})
    assert report.wrong == ["L1"] and "cause: learning rate inside the velocity, and again in the step" in str(report)


def test_the_catalogues_own_is_named_where_another_was_asked_for():
    assert "epsilon_at=norm: epsilon added to the decayed norm" in str(
        oracle.check("adamax", built()["adamax"], set={"epsilon_at": "gradient"}, **L1))


def test_an_epsilon_in_the_root_is_a_number():
    step = edited(
        "adam", ("steps.adam", "epsilon, step,", "epsilon, epsilon_root, step,"),
        ("steps.adam", '"epsilon": epsilon,', '"epsilon": epsilon, "epsilon_root": epsilon_root,'),
        ("functors.adam", ROOT, "np.sqrt((v if v_max is None else v_max) / n.correction2 + n.epsilon_root)")).step()
    report = oracle.check("adam", step, **L1)
    report.raise_if_failed()
    assert "epsilon_root=0" in {item.label for item in report.of("passed")}


def test_novograd_knows_its_first_step():
    step = step_of("novograd", {"weight_decay):": "weight_decay, step):", "n if v[0] == 0": "n if step == 1"})
    oracle.check("novograd", step, set={"first_norm": "by_number"}, **L1).raise_if_failed()
    with pytest.raises(TypeError, match="expect: step_number: expected arrays of one element, for first_norm"):
        one = [np.ones(3, np.float32)]
        given = dict(moment=one, second_moment=[np.ones(1, np.float32)], lr=0.1, first_norm="by_number")
        oracle.expect("novograd", params=one, grads=one, **given)


def from_one(params, grads, moment, *, lr, epsilon, step):
    for p, g, s in zip(params, grads, moment, strict=True):
        s[...] = (1 if step == 1 else s) + g * g
        p -= p.dtype.type(lr) * g / (np.sqrt(s) + p.dtype.type(epsilon))


CLIPPED = {"    for p, g": "    norm = np.sqrt(sum((g.astype(np.float64)**2).sum() for g in grads))\n    for p, g",
           "        g = g +": "        g = g / real(max(norm, 1))\n        g = g +"}


@pytest.mark.parametrize(("routine", "step", "name"), [
    ("momentum", step_of("momentum", CLIPPED), "gradients clipped, to a norm of 1 of all tensors"),
    ("adagrad", from_one, "moment starts from 1")])
def test_what_is_done_outside_of_the_rule_is_named(routine, step, name):
    assert name in oracle.check(routine, step, **L1).details()


def test_expect_takes_variants():
    p, g = (np.linspace(-1, 1, 10, dtype=np.float32) + np.float32(k) for k in (0.25, 1.5))
    given = dict(moment=[0 * p], inf_norm=[0 * p], beta1_pow=[np.full(1, 0.875, np.float32)], lr=0.25, beta1=0.875)
    with_decay = dict(weight_decay=0.5, epsilon_at="gradient", epsilon=0.25)
    expected = oracle.expect("adamax", params=[p], grads=[g], **given, **with_decay)
    after = p.copy(), 0 * p, 0 * p
    lists = [[after[0]], [g + np.float32(0.5) * p], [after[1]], [after[2]]]
    ADAMAX.step()(*lists, lr=0.25, beta1=0.875, beta2=0.999, epsilon=0.25, step=1)
    assert expected["params"][0].ratio(after[0]).max() <= 1 and expected["inf_norm"][0].ratio(after[2]).max() <= 1
    plain = oracle.expect("adamax", params=[p], grads=[g], **given, epsilon=0.25)
    assert plain["params"][0].ratio(after[0]).min() > 1
