"""N22: lazy steps: rows with a sparse gradient take the step of its sum, and no other row loses a bit."""

import copy
import re

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st

from laws.marks import few
from refopt import cpu, gpu, simt
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.lazy import COUNTS, LAZY
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.placed import Placed

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N22")
STEPS = 3
SHAPES = (), (0,), (1,), (3,), (2, 2), (128,), (130,)
# Rows, the shape of one, and for each step the indices.
INDICES = st.none() | st.lists(st.integers(0, 4), max_size=9)
TABLES = st.lists(st.tuples(st.integers(5, 9), st.sampled_from(SHAPES), st.lists(INDICES, min_size=STEPS,
                                                                                 max_size=STEPS)), max_size=3)
HOT = [(7, (130,), [[3] * 300, [0, 1] * 90 + [6, 5] * 90, []])], ["float32"], 0  # more than a queue has
DTYPES = st.lists(st.sampled_from(["float32", "float64", "float16", "bfloat16"]), min_size=1, max_size=2)
GATES = st.sampled_from([(), (0.5, 0), (2, 1)])  # factor and flag
each = pytest.mark.parametrize(("routine", "count"), [(routine, count) for routine in LAZY for count in COUNTS])


def made(routine, count, tables, dtypes, seed):
    """The lists of a routine by slot, with some odd numbers, and those of each step: indices, values, and the lr.

    Tables have the dtypes in turn.
    """
    rng = np.random.default_rng(seed)
    kinds = [numpy_dtype(dtypes[i % len(dtypes)]) for i in range(len(tables))]
    reals = [np.float64 if kind == np.float64 else np.float32 for kind in kinds]

    def numbers(shape, dtype):
        x = rng.standard_normal(shape).astype(dtype)
        x[rng.random(shape) < 0.02] = rng.choice([0.0, -0.0, np.inf, np.nan])
        return x

    slots = {}
    for slot in [slot for slot in LAZY[routine].slots if slot.name != "grads"]:
        lists = slots[slot.name] = []
        for (rows, shape, _), kind, real in zip(tables, kinds, reals, strict=True):
            if slot.scalar:
                x = rng.uniform(0.3, 0.9, rows if count == "row" else 1).astype(real)
            elif slot.name == "master_params":
                x = numbers((rows, *shape), real) if seed % 2 and kind.itemsize < 4 else None
            else:
                x = None if slot.optional and seed % 3 else numbers((rows, *shape), kind)
            lists.append(x if x is None or slot.signed else abs(x))
    steps = []
    for k in range(STEPS):
        indices = [None if each[k] is None else np.array(each[k], np.int64) for *_, each in tables]
        values = [None if x is None else numbers((len(x), *shape), kind)
                  for x, (_, shape, _), kind in zip(indices, tables, kinds, strict=True)]
        steps.append((indices, values, {"lr": 0.1 / (k + 1), **({"mu": 0.9} if routine == "momentum" else {})}))
    return slots, steps


def given(routine, slots):
    """The lists that a lazy step takes by position, after the values, and those by name."""
    required = [slot.name for slot in LAZY[routine].slots if not slot.optional]
    return [slots[name] for name in required[2:]], {name: xs for name, xs in slots.items() if name not in required}


def gated(gate, put=np.array):
    """The arrays of a factor and a flag, if there are any."""
    return {name: put(np.array([x], np.float32)) for name, x in zip(("grad_factor", "found_inf"), gate, strict=False)}


def reference(routine, count, slots, steps, gate=()):
    """What the reference leaves."""
    after = copy.deepcopy(slots)
    states, named = given(routine, after)
    for *sparse, numbers in steps:
        cpu.merged_lazy(routine, after["params"], *sparse, *states, count=count, **named, **numbers, **gated(gate))
    return after


def at(array, start, stop):
    """Some rows, of an array that may be missing."""
    return None if array is None else array[start:stop]


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
                own = {name: [xs[i].copy() if name in passed else at(xs[i], row, row + 1)]
                       for name, xs in after.items()}
                dense(grads=[x[None]], **own, **numbers)
            if passed:  # to the next step, once
                none = {name: [xs[i] if name in passed else at(xs[i], 0, 0)] for name, xs in after.items()}
                dense(grads=[values[i][:0]], **none, **numbers)
    return after


def on_device(machine, routine, count, slots, steps, shift, gate):
    """What a plan leaves; its gradients are replaced in every step."""
    placed = {name: [x if x is None else Placed(machine, x, shift) for x in xs] for name, xs in slots.items()}
    states, named = given(routine, {name: [x and x.array for x in xs] for name, xs in placed.items()})
    sparse = [[[x if x is None else Placed(machine, x, k * shift).array for x in xs] for k, xs in enumerate(step[:2])]
              for step in steps]
    shared = gated(gate, machine.to_device)
    plan = gpu.lazy_plan(routine, [x.array for x in placed["params"]], *sparse[0], *states, count=count, **named,
                         **shared)
    for (*_, numbers), gradients in zip(steps, sparse, strict=True):
        plan.rebind(*gradients)
        plan(**numbers)
    plan.check_indices()
    assert plan.launches == 2 * len({x.dtype for x in steps[-1][1] if x is not None})
    return {name: [x and x.read() for x in xs] for name, xs in placed.items()}


def assert_others_kept(routine, before, after, steps):
    """Rows without a gradient keep every bit, NaN included."""
    for i in range(len(before["params"])):
        seen = np.concatenate([np.empty(0, np.int64), *(indices[i] for indices, *_ in steps if indices[i] is not None)])
        for name in before.keys() - LAZY[routine].scalars:
            if before[name][i] is not None:
                x, y = (np.delete(slots[name][i], seen, axis=0) for slots in (before, after))
                assert x.tobytes() == y.tobytes(), "N22, a row without a gradient"


def assert_lawful(routine, count, slots, steps):
    after = reference(routine, count, slots, steps)
    assert_others_kept(routine, slots, after, steps)
    assert_same(by_hand(routine, count, slots, steps), after, "N22, a step")


@each
@few(2, tables=TABLES, dtypes=DTYPES, seed=st.integers(0, 99))
@example(*HOT)
def test_a_lazy_step_equals_a_step_of_its_rows(routine, count, tables, dtypes, seed):
    """Values are added in order of occurrence; rows without a gradient keep every bit, even NaN."""
    assert_lawful(routine, count, *made(routine, count, tables, dtypes, seed))


def of_all_rows(indices, values, param):
    """A gradient of 0 for rows that have none, as in a dense step, which decays them and their moments."""
    return np.arange(len(param)), np.stack([values[indices == row].sum(0) for row in range(len(param))])


def of_last_values(indices, values, param):
    """Of a row that occurs several times, the last value alone: it overwrites the others."""
    rows, last = np.unique(indices[::-1], return_index=True)
    return rows, values[::-1][last]


@pytest.mark.parametrize(("summed", "law"), [(of_all_rows, "without a gradient"), (of_last_values, "a step")])
def test_a_planted_fault_breaks_its_law(monkeypatch, summed, law):
    """The laws notice steps of all rows, and steps with the last value of a repeated row."""
    given = made("adamw", "global", [(6, (3,), [[4, 2, 4]] * STEPS)], ["float32"], 2)
    monkeypatch.setattr("refopt.cpu.lazy.summed", summed)
    with pytest.raises(AssertionError, match=law):
        assert_lawful("adamw", "global", *given)


@pytest.mark.clause("N4")
@each
@few(4, tables=TABLES, dtypes=DTYPES, seed=st.integers(0, 99), shift=st.integers(0, 3), gate=GATES)
@example(*HOT, 0, ())
@example(*HOT, 1, (0.5, 0))
@example([(5, (3,), [[1, 1]] * STEPS), (5, (0,), [[1, 2]] * STEPS)], ["float32"], 1, 0, (1, 1))
@example([(5, (0,), [[1, 2]] * STEPS)], ["float32"], 1, 0, ())
def test_kernels_equal_the_reference(machine, routine, count, tables, dtypes, seed, shift, gate):
    """For any tables in one plan, with new gradients in each step, aligned or not, with a flag and a factor."""
    slots, steps = made(routine, count, tables, dtypes, seed)
    got = on_device(machine, routine, count, slots, steps, shift, gate)
    assert_same(reference(routine, count, slots, steps, gate), got, "N22, kernels")
    assert_others_kept(routine, slots, got, steps)


@pytest.mark.parametrize(("count", "order"), [("global", "forward"), ("row", "random")])
def test_nothing_races(executor, count, order):
    """Neither between warps that mark a row, nor between lanes that add its values or update its scalars."""
    tables = [(5, (3,), [[3] * 200, None, [4, 4]]), (6, (130,), [[0, 5, 0], [1], [1]])]
    slots, steps = made("adamw", count, tables, ["float32"], 0)
    with simt.observe(count=False, watch=True, schedule=order, seed=3):
        on_device(executor, "adamw", count, slots, steps, 0, ())


@each
@few(4, data=st.data(), seed=st.integers(0, 99))
def test_the_order_of_distinct_indices_changes_no_bit(routine, count, data, seed):
    """Nor does the order of occurrences of different rows."""
    order = data.draw(st.permutations(range(5)))
    tables = [(6, (3,), [[*range(5)]] * STEPS)]
    slots, [(indices, values, numbers), *_] = made(routine, count, tables, ["float32"], seed)
    moved = [x[order] for x in indices], [x[order] for x in values], numbers
    assert_same(*(reference(routine, count, slots, [step]) for step in ((indices, values, numbers), moved)), "N22")


@each
def test_an_index_out_of_range_is_left_out_on_a_device(machine, routine, count, monkeypatch):
    """The step does not access it, and reports it on request; the merged function checks first.

    A step that is captured keeps its gradients.
    """
    tables, outside = [(6, (3,), [[4, 2, 4, 1]] * STEPS)], [np.array([4, -1, 4, 6])]
    slots, [(*sparse, numbers), *_] = made(routine, count, tables, ["float32"], 0)
    kept = reference(routine, count, slots, [(*([x[[0, 2]] for x in xs] for xs in sparse), numbers)])
    there = {name: [x if x is None else machine.to_device(x) for x in xs] for name, xs in slots.items()}
    states, named = given(routine, there)
    sparse = [[machine.to_device(x) for x in xs] for xs in (outside, sparse[1])]
    with pytest.raises(ValueError, match=r"indices\[0\]\[1\]: expected a row from 0 to 5, got -1$"):
        gpu.merged_lazy(routine, there["params"], *sparse, *states, count=count, **named, **numbers)
    plan = gpu.lazy_plan(routine, there["params"], *sparse, *states, count=count, **named, **numbers)
    plan.check_indices()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=r"no new value .*call rebind"):
        patch.setattr(type(machine), "capturing", lambda *_: True)
        plan.rebind(*sparse)
    plan()
    with pytest.raises(ValueError, match=r"indices\[0\]\[3\]: expected a row from 0 to 5, got another number; it was"):
        plan.check_indices()
    assert_same(kept, {name: [x if x is None else x.copy_to_host() for x in xs] for name, xs in there.items()}, "N22")


TABLE, ACROSS, VALUES = np.zeros((5, 2), np.float32), np.zeros((2, 5), np.float32).T, np.ones((2, 2), np.float32)
REFUSED = [
    ({"routine": "lion"}, "merged_lazy: routine: expected one of adagrad, adam, adamw, momentum, sgd, got 'lion'"),
    ({"count": "rows"}, "merged_lazy_momentum: count: expected one of global, row, got 'rows'"),
    ({"states": ()}, "merged_lazy_momentum: expected 1 lists after values (velocities), got 0"),
    ({"params": [np.array(0, np.float32)], "states": ([np.array(0, np.float32)],)},
     "params[0]: expected an axis of rows, got shape ()"),
    ({"params": [ACROSS]}, "params[0]: expected a C-contiguous array, got strides (4, 20) for (5, 2)"),
    ({"indices": [np.array([0, 5])]}, "indices[0][1]: expected a row from 0 to 4, got 5"),
    ({"indices": [np.array([-1, 7])]}, "indices[0][0]: expected a row from 0 to 4, got -1"),
    ({"indices": [np.array([0, 1], np.int32)]}, "indices[0]: expected int64, got int32"),
    ({"indices": [np.array([[0, 1]])]}, "indices[0]: expected one axis, got shape (1, 2)"),
    ({"indices": [np.arange(3)]}, "values[0]: expected shape (3, 2), a row for each index, got (2, 2)"),
    ({"indices": [None]}, "values[0]: expected None, as indices[0] is, got an array"),
    ({"values": [None]}, "values[0]: expected an array, as indices[0] is, got None"),
    ({"values": [VALUES.astype(float)]}, "values[0]: expected a dtype that widens to float32, got float64"),
    ({"values": []}, "values: expected 1 entries, as params has, got 0"),
    ({"seed": 1}, "seed: expected one of lr, mu, l2_decay, dampening, rescale_grad, use_nesterov, maximize, "
     "master_params, grad_factor, found_inf, count")]


def on_executor(x):
    """An array, or those in a list, on the executor."""
    if isinstance(x, list | tuple):
        return type(x)(map(on_executor, x))
    return gpu.device("executor").to_device(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_errors_name_the_argument_and_modify_nothing(changed, message):
    """By the reference and on a device."""
    given = {"routine": "momentum", "params": [TABLE], "indices": [np.array([3, 1])], "values": [VALUES], "lr": 0.1,
             "mu": 0.9, "states": ([TABLE + 1],), **changed}
    for side in (cpu, gpu):
        arrays = copy.deepcopy(given)
        placed = arrays if side is cpu else {name: on_executor(x) for name, x in arrays.items()}
        by_position = [placed.pop(name) for name in ("routine", "params", "indices", "values")]
        states = placed.pop("states")
        with pytest.raises((TypeError, ValueError), match=re.escape(message) + "$"):
            side.merged_lazy(*by_position, *states, **placed)
        left = by_position[1][0]
        left = left if side is cpu else left.copy_to_host()
        assert left.tobytes() == given["params"][0].tobytes()
