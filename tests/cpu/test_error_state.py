"""What the caller has told NumPy about overflow, or Python about warnings, changes no result and stops no step."""

import warnings

import numpy as np
import pytest
from refusal_cases import ENTRIES, bytes_of, put

from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments

EXTREME = [0.0, -0.0, 1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 1.5]
entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def extreme(arrays):
    """The arrays, each of extreme values of its own."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        return {
            name: x if x is None or x.dtype.kind == "i" or name == "found_inf"
            else rng.choice(EXTREME, x.shape).astype(x.dtype) for name, x in arrays.items()}


@pytest.fixture
def strict():
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def under(arrays, call, strictly):
    with np.errstate(all="raise" if strictly else "ignore"), warnings.catch_warnings():
        warnings.simplefilter("error" if strictly else "ignore")
        call(arrays)
    return bytes_of(arrays)


@pytest.mark.parametrize("seen", [0, 1])
@entries
def test_extreme_values(entry, seen):
    plain, strict = (extreme(entry.make()) for _ in range(2))
    if "found_inf" in plain:
        for arrays in (plain, strict):
            arrays["found_inf"][...] = seen
    there = put(plain)
    expected = under(plain, lambda arrays: entry.run(cpu, arrays), False)
    assert under(strict, lambda arrays: entry.run(cpu, arrays), True) == expected
    with gpu.use("executor"):
        got = under(there, lambda arrays: entry.run(gpu, arrays), True)
    assert all(same(got[name], expected[name], plain[name].dtype) for name in expected)


def same(x, y, dtype):
    """Equal bytes, or both NaN."""
    x, y = (np.frombuffer(b, dtype) for b in (x, y))
    return ((x == y) | ((x != x) & (y != y))).all()


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_numbers_that_underflow(routine, strict):
    """Subnormal ones, and ones that fp32 rounds to 0; as one number and by tensor."""
    tiny = {h.name: 1e-42 if h.positive else 1e-60 for h in routine.hypers if not h.whole}
    lists = {h.name: [1e-41, 1e-70] for h in routine.hypers if h.per_tensor and not h.whole}
    case = make(routine, [4, 4])
    with gpu.use("executor"):
        slots = {name: xs and [gpu.to_device(x) for x in xs] for name, xs in case.slots.items()}
    positional, named = arguments(routine, slots)
    step = gpu.plan(routine.name, *positional, **named, **step_of(routine))
    for numbers in (tiny, tiny | lists, step_of(routine)):
        step(**numbers)
        getattr(cpu, routine.merged_name)(*arguments(routine, case.slots)[0], **numbers)
    for name, xs in slots.items():
        for x, y in zip(xs or (), case.slots[name] or (), strict=True):
            assert same(x.copy_to_host().tobytes(), y.tobytes(), y.dtype)


def test_functions_around_the_step(strict):
    x = np.ones(4, np.float32)
    with gpu.use("executor"):
        y = gpu.to_device(x)
        checks = [gpu.gradient_check([y], max_norm=1e300, epsilon=1e-60)]
        checks[0]()
    checks.append(cpu.check_gradients([x], max_norm=1e300, epsilon=1e-60))
    for found in checks:
        factor, norm = (getattr(found, name) for name in ("grad_factor", "grad_norm"))
        assert factor[0] == 1 and norm[0] == 2
    cpu.merged_cast([x], [x], scale=1e-42)
    gpu.merged_cast([y], [y], scale=1e-42)
    assert y.copy_to_host().tobytes() == x.tobytes()
    for bad in (1, 2**31 - 1):  # the scale underflows; the count wraps around
        one = [np.array([v], np.float32) for v in (1, 1e-40)] + [np.array([v], np.int32) for v in (0, bad)]
        on = [gpu.device("executor").to_device(v) for v in one]
        cpu.update_loss_scaling(*one, decr_ratio=1e-44)
        gpu.update_loss_scaling(*on, decr_ratio=1e-44)
        assert [v.copy_to_host().tobytes() for v in on] == [v.tobytes() for v in one]
    for module in (cpu, gpu):
        made = module.coalesce_tensor([None], shapes=[(3,)], dtype="float16", set_constant=True, constant=1e-30)
        assert (np.asarray(made.views[0] if module is cpu else made.views[0].copy_to_host()) == 0).all()
