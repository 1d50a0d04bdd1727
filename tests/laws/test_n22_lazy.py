"""N22: lazy steps: rows with a sparse gradient take the step of its sum, and no other row loses a bit."""

import copy
import re

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st

from laws.marks import few
from refopt import cpu
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.lazy import COUNTS, LAZY
from refopt.oracle.exact.cases import assert_same

pytestmark = pytest.mark.clause("N22")
STEPS = 3
SHAPES = (), (1,), (3,), (2, 2), (128,), (130,)
# Rows, the shape of one, and for each step the indices.
INDICES = st.none() | st.lists(st.integers(0, 4), max_size=9)
TABLES = st.lists(st.tuples(st.integers(5, 9), st.sampled_from(SHAPES), st.lists(INDICES, min_size=STEPS,
                                                                                 max_size=STEPS)), max_size=3)
HOT = [(7, (130,), [[3] * 300, [0, 1] * 90 + [6, 5] * 90, []])], "float32", 0  # more repeats than a queue has room for
DTYPES = st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])
each = pytest.mark.parametrize(("routine", "count"), [(routine, count) for routine in LAZY for count in COUNTS])


def made(routine, count, tables, dtype, seed):
    """The lists of a routine by slot, with some odd numbers, and those of each step: indices, values, and the lr."""
    rng = np.random.default_rng(seed)
    kind, real = numpy_dtype(dtype), np.float64 if dtype == "float64" else np.float32

    def numbers(shape, dtype):
        x = rng.standard_normal(shape).astype(dtype)
        x[rng.random(shape) < 0.02] = rng.choice([0.0, -0.0, np.inf, np.nan])
        return x

    slots = {}
    for slot in [slot for slot in LAZY[routine].slots if slot.name != "grads"]:
        masters = slot.name == "master_params"
        if slot.scalar:
            slots[slot.name] = [rng.uniform(0.3, 0.9, rows if count == "row" else 1).astype(real)
                                for rows, *_ in tables]
        elif not masters or (seed % 2 and kind.itemsize < 4):
            slots[slot.name] = [numbers((rows, *shape), real if masters else kind) for rows, shape, _ in tables]
            slots[slot.name] = slots[slot.name] if slot.signed else [abs(x) for x in slots[slot.name]]
    steps = []
    for k in range(STEPS):
        indices = [None if each[k] is None else np.array(each[k], np.int64) for *_, each in tables]
        values = [None if x is None else numbers((len(x), *shape), kind)
                  for x, (_, shape, _) in zip(indices, tables, strict=True)]
        steps.append((indices, values, {"lr": 0.1 / (k + 1), **({"mu": 0.9} if routine == "momentum" else {})}))
    return slots, steps


def given(routine, slots):
    """The lists that a lazy step takes by position, after the values, and those by name."""
    required = [slot.name for slot in LAZY[routine].slots if not slot.optional]
    return [slots[name] for name in required[2:]], {name: xs for name, xs in slots.items() if name not in required}


def reference(routine, count, slots, steps):
    """What the reference leaves."""
    after = copy.deepcopy(slots)
    states, named = given(routine, after)
    for *sparse, numbers in steps:
        cpu.merged_lazy(routine, after["params"], *sparse, *states, count=count, **named, **numbers)
    return after


def by_hand(routine, count, slots, steps):
    """What the routine leaves, called for one row after the other."""
    after, dense = copy.deepcopy(slots), getattr(cpu, f"merged_{routine}")
    passed = LAZY[routine].scalars if count == "global" else ()
    for indices, values, numbers in steps:
        for i in [i for i, x in enumerate(indices) if x is not None]:
            sums, real = {}, np.float64 if values[i].dtype == np.float64 else np.float32
            for row, x in zip(indices[i].tolist(), values[i].astype(real), strict=True):
                with np.errstate(all="ignore"):
                    sums[row] = sums[row] + x if row in sums else x
            for row, x in sums.items():
                own = {name: [xs[i].copy() if name in passed else xs[i][row:row + 1]] for name, xs in after.items()}
                dense(grads=[x[None]], **own, **numbers)
            if passed:  # to the next step, once
                none = {name: [xs[i] if name in passed else xs[i][:0]] for name, xs in after.items()}
                dense(grads=[values[i][:0]], **none, **numbers)
    return after


def assert_others_kept(routine, before, after, steps):
    """Rows without a gradient keep every bit, NaN included."""
    for i in range(len(before["params"])):
        seen = np.concatenate([np.empty(0, np.int64), *(indices[i] for indices, *_ in steps if indices[i] is not None)])
        for name in before.keys() - LAZY[routine].scalars:
            x, y = (np.delete(slots[name][i], seen, axis=0) for slots in (before, after))
            assert x.tobytes() == y.tobytes()


@each
@few(2, tables=TABLES, dtype=DTYPES, seed=st.integers(0, 99))
@example(*HOT)
def test_a_lazy_step_is_that_of_its_rows_alone(routine, count, tables, dtype, seed):
    """Values are added in the order of occurrence; rows without a gradient keep every bit, NaN included."""
    slots, steps = made(routine, count, tables, dtype, seed)
    after = reference(routine, count, slots, steps)
    assert_same(by_hand(routine, count, slots, steps), after, "N22, a step")
    assert_others_kept(routine, slots, after, steps)


@each
@few(4, data=st.data(), seed=st.integers(0, 99))
def test_the_order_of_distinct_indices_changes_no_bit(routine, count, data, seed):
    """Nor does that of occurrences of different rows."""
    order = data.draw(st.permutations(range(5)))
    slots, [(indices, values, numbers), *_] = made(routine, count, [(6, (3,), [[*range(5)]] * STEPS)], "float32", seed)
    moved = [x[order] for x in indices], [x[order] for x in values], numbers
    assert_same(*(reference(routine, count, slots, [step]) for step in ((indices, values, numbers), moved)), "N22")


TABLE, ACROSS, VALUES = np.zeros((5, 2), np.float32), np.zeros((2, 5), np.float32).T, np.ones((2, 2), np.float32)
REFUSED = [
    ({"routine": "lion"}, "merged_lazy: routine: expected one of adagrad, adam, adamw, momentum, sgd, got 'lion'"),
    ({"count": "rows"}, "merged_lazy_momentum: count: expected one of global, row, got 'rows'"),
    ({"states": ()}, "merged_lazy_momentum: expected 1 lists after values (velocities), got 0"),
    ({"params": [np.zeros((), np.float32)]}, "velocities[0]: expected shape (), as params[0] has, got (5, 2)"),
    ({"params": [ACROSS], "states": ([ACROSS + 1],)},
     "params[0]: expected a C-contiguous array, got strides (4, 20) for (5, 2)"),
    ({"indices": [np.array([0, 5])]}, "indices[0][1]: expected a row from 0 to 4, got 5"),
    ({"indices": [np.array([-1, 7])]}, "indices[0][0]: expected a row from 0 to 4, got -1"),
    ({"indices": [np.array([0, 1], np.int32)]}, "indices[0]: expected int64, got int32"),
    ({"indices": [np.array([[0, 1]])]}, "indices[0]: expected one axis, got shape (1, 2)"),
    ({"indices": [np.arange(3)]}, "values[0]: expected shape (3, 2), a row for each index, got (2, 2)"),
    ({"indices": [None]}, "values[0]: expected None, as indices[0] is, got an array"),
    ({"values": [None]}, "values[0]: expected an array, as indices[0] is, got None"),
    ({"values": [VALUES.astype(float)]}, "values[0]: expected a dtype that widens to float32, got float64"),
    ({"values": []}, "values: expected 1 entries, as params has, got 0"),
    ({"seed": 1}, "seed: expected one of lr, mu, l2_decay, dampening, rescale_grad, use_nesterov, maximize"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_wrong_is_named_and_nothing_is_modified(changed, message):
    """By the reference and on a device."""
    given = {"routine": "momentum", "params": [TABLE], "indices": [np.array([3, 1])], "values": [VALUES], "lr": 0.1,
             "mu": 0.9, "states": ([TABLE + 1],), **changed}
    arrays = copy.deepcopy(given)
    by_position = [arrays.pop(name) for name in ("routine", "params", "indices", "values")]
    with pytest.raises((TypeError, ValueError), match=re.escape(message) + "$"):
        cpu.merged_lazy(*by_position, *arrays.pop("states"), **arrays)
    assert by_position[1][0].tobytes() == given["params"][0].tobytes()
