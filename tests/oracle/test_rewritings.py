"""Right code is within the bound, in whatever order it works: rules of refopt.cpu, rewritten at random."""

import json

import numpy as np
import pytest

from benchmarks.record import RESULTS
from oracle.rewritings import Number, evaluated, number
from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.checks import flat
from refopt.oracle.bound import sums
from refopt.oracle.exact.cases import runner
from refopt.oracle.laws.step import example
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial
from refopt.oracle.variants import ROUTINES as EXTENDED
from refopt.oracle.variants import VARIANTS, is_extended, step_of

pytestmark = pytest.mark.clause("N13")


def leaf(x):
    return None if x is None else Number("leaf", flat(x), value=flat(x).astype(np.float64))


def rewritten(row, case, real, rng, chance):
    """What a random rewriting of the rule makes of the one tensor of a case, by slot."""
    arrays = case.tensor(0)
    numbers = {name: number(x) for name, x in case.numbers_of(0).items() if name not in ("seed", "rescale_grad")}
    numbers |= {name: value for name, value in case.choices.items() if name != "rounding"}
    carried = row.carried
    if not row.elementwise:
        numbers["stored"] = lambda name, x: leaf(arrays["params"]) if name == "params" else x
    states = [number(arrays[name][0]) if name in row.scalars else leaf(arrays[name]) for name in carried]
    with np.errstate(all="ignore"):
        results = evaluated(row.rule, [leaf(arrays["params"]), leaf(arrays["grads"]), *states], numbers, real, rng,
                            chance)
    return {name: x for name, x in zip(("params", *carried), results, strict=True) if x is not None}


class OfVariants:
    """The rule of a row with variants, which takes every number."""

    def __init__(self, row):
        self.run, self.name = runner(step_of(row)), row.name

    def takes(self, what):
        return what != "rescale_grad"


def largest_ratios(routine, real, examples, chance, choices=None):
    """By slot, the largest error over its bound; and how many of the results have other bits than refopt's.

    Of the variant with some choices, and with all numbers, if these are not None; else without the weight decay that is
    none by default, since what it adds to a gradient widens the bound of all that follows.
    """
    row = (ROUTINES if choices is None else EXTENDED)[routine]
    subject = OfVariants(row) if is_extended(row) else Function(row, getattr(cpu, row.merged_name))
    plain = {"weight_decay": 0.0} if "decay" in row.choices else {}
    trial = Trial(row, subject, np.dtype(real).name, 0, plain if choices is None else choices)
    largest, others = {}, 0
    for k in range(examples):
        case = example(trial, k)
        expected, ours = trial.expected(case, 0, sums.random_data), trial.run(case)
        for name, x in rewritten(row, case, real, np.random.default_rng([k, chance]), chance).items():
            like = ours[name][0]
            ratio = expected[name].ratio(x.reshape(like.shape))
            largest[name] = max(largest.get(name, 0.0), float(np.nanmax(ratio)))
            others += x.tobytes() != like.tobytes()
    return largest, others


@pytest.mark.parametrize("chance", [0, 1], ids=["nearest", "either neighbour"])
@pytest.mark.parametrize("routine", ROUTINES)
def test_any_order_is_within_the_bound(routine, chance):
    """With FMA, and with each operation rounded to either neighbour."""
    largest, others = largest_ratios(routine, np.float32, 15, chance)
    assert max(largest.values()) <= 1 and others > 5, largest
    assert largest["params"] > 0.125  # and not far within


@pytest.mark.parametrize("routine", ["adamw", "lamb", "rmsprop"])
def test_in_fp64_as_well(routine):
    largest, others = largest_ratios(routine, np.float64, 15, 0)
    assert 0.1 < max(largest.values()) <= 1 and others > 5, largest


EXAMPLES = 500  # of each rule
CHOICES = [*[(name, {}) for name in VARIANTS if name in ROUTINES],  # iterations of matrices have a bound of their own
           *[(name, {"decay": "decoupled"}) for name, row in EXTENDED.items() if "decay" in row.choices],
           ("adagrad", {"epsilon_at": "inside"}), ("adamax", {"epsilon_at": "gradient", "maximize": True})]


@pytest.mark.parametrize(("routine", "choices"), CHOICES, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_variants_in_any_order(routine, choices):
    """With decay, dampening and rates that fall."""
    largest, others = largest_ratios(routine, np.float32, 12, 0, choices)
    assert 0.125 < max(largest.values()) <= 1 and others > 5, largest


@pytest.mark.slow
@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("routine", ROUTINES)
def test_many_examples(routine, real):
    """All are within, rounded to nearest, and off by up to a whole unit in each operation, in another order too."""
    for chance in (0, 1):
        largest, _ = largest_ratios(routine, real, EXAMPLES, chance)
        assert max(largest.values()) <= 1, largest


def test_the_record_is_within_the_bound():
    record = json.loads((RESULTS / "rewritings.json").read_text())
    assert [row["routine"] for row in record["rows"]] == [*ROUTINES]
    assert all(0.125 < row["nearest"] <= 1 and row["either"] <= 1 for row in record["rows"])
