"""What comes of a lane that takes no part in a shuffle is undefined, through every function, until it is used."""

import math
from contextlib import nullcontext

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory
from refopt.simt.base.conversions import CONVERSIONS
from refopt.simt.base.undefined import Undefined

DTYPES = [np.int32, np.float32, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (np.int64, np.float64))]
LOWER = 0xFFFF
TABLE = np.arange(64)
TOTAL = cuda.to_device(np.zeros(1))


def greater_by_a_branch(v, o):
    if o > v:
        v = o
    return v


def summed(v, o):
    for step in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(LOWER, v, step)
    return v


def count(v, o):
    for _ in range(int(o) & 7):
        v += 1
    return v


USES = {"add": lambda v, o: v + o, "quotient": lambda v, o: o // 3, "shift": lambda v, o: int(o) << 1,
        "greatest": lambda v, o: max(v, o), "least": lambda v, o: min(o, v), "greater by a branch": greater_by_a_branch,
        "lesser by an expression": lambda v, o: o if o < v else v, "root": lambda v, o: math.sqrt(o),
        "absolute": lambda v, o: abs(o), "single": lambda v, o: np.float32(o), "real": lambda v, o: float(o),
        "part": lambda v, o: complex(o, 1).real, "digits": lambda v, o: divmod(o, 3)[0],
        "selected": lambda v, o: cuda.selp(o > v, o, v), "bits": lambda v, o: cuda.popc(int(o)),
        "fused": lambda v, o: cuda.fma(float(o), 2.0, 1.0), "maximum": lambda v, o: np.maximum(v, o),
        "half": lambda v, o: cuda.fp16.hmax(np.float16(v), np.float16(o)),
        "shuffled again": lambda v, o: cuda.shfl_sync(LOWER, o, 0),
        "lane": lambda v, o: cuda.shfl_sync(LOWER, v, int(o) & 7), "summed": summed}
DECIDING = {
    "element": lambda v, o: TABLE[int(o) & 7], "count": count, "vote": lambda v, o: cuda.ballot_sync(LOWER, o > 3),
    "match": lambda v, o: cuda.match_any_sync(LOWER, o),
    "atomic at an address": lambda v, o: memory.atomic_add(TOTAL.address, np.float64, o)}


def kernel(use, stored):
    use = cuda.jit(device=True)(use)

    @cuda.jit
    def body(x, y):
        t = cuda.threadIdx.x
        if t < 16:
            v = x[t]
            result = use(v, cuda.shfl_down_sync(LOWER, v, 16))
            if stored and t == 0:
                y[0] = result
        cuda.syncthreads()

    return body


@pytest.mark.filterwarnings("ignore::refopt.simt.UntypedWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use", [*USES, *DECIDING])
def test_what_is_computed_from_it_is_not_stored(use, dtype):
    """To compute with it is no defect, unless it decides on an element, a count or a vote, or is added to memory."""
    x, function = np.arange(1, 33).astype(dtype), (USES | DECIDING)[use]
    said = r"where the mask leaves out lane \d+ \(rule shuffle-lanes\)"
    with pytest.raises(simt.UninitializedRead, match=said), simt.observe(watch=True):
        kernel(function, True)[1, 32](x, np.zeros(1))
    with nullcontext() if use in USES else pytest.raises(simt.UninitializedRead), simt.observe(watch=True):
        kernel(function, False)[1, 32](x, np.zeros(1))


def test_what_its_value_does_not_change_is_defined():
    """The first lane of the upper half looks at none below: its answer is true in any case."""

    @cuda.jit
    def heads(keys, y):
        t = cuda.threadIdx.x
        if t >= 16:
            before = cuda.shfl_up_sync(0xFFFF0000, keys[t], 1)
            y[t] = (t == 16) | (before != keys[t])

    @cuda.jit
    def sums(x, y):
        t = cuda.threadIdx.x
        kind = np.float32
        part = cuda.local.array(1, kind)
        if t < 16:
            v = x[t]
            for step in (8, 4, 2, 1):
                v += cuda.shfl_down_sync(LOWER, v, step)
            part[0] = np.float32(0)
            if t == 0:
                y[0] = v

    y = np.zeros(32, np.int32)
    with simt.observe(watch=True):
        heads[1, 32](np.arange(32) // 4, y)
        assert y.tolist() == [0] * 16 + [1, 0, 0, 0] * 4
        sums[1, 32](np.arange(32), y)
        assert y[0] == 120
    sums[1, 32](np.arange(32), y)
    assert y[0] == 120


def test_in_place_it_stays_undefined():
    """In a function that is not typed."""
    one = Undefined(np.float32(3), "", None)
    one += 1
    assert type(one) is Undefined and one.value == 4


@pytest.mark.parametrize(("part", "value"), [
    (round, 3), (lambda one: round(one, 1), 2.6), (lambda one: one.real, 2.56), (lambda one: one.item(), 2.56),
    (CONVERSIONS["int64"], 2)])
def test_its_parts_are_undefined(part, value):
    result = part(Undefined(2.56 if part is round else np.float64(2.56), "lane 17 has exited", None))
    assert repr(result) == f"Undefined({result.value!r}: lane 17 has exited)" and result.value == value
    assert hash(result) == hash(value)


def test_device_functions_and_other_launches():
    """A function that shuffles is watched as a copy; unwatched it is itself."""

    @cuda.jit(device=True)
    def total(v):
        for step in (16, 8, 4, 2, 1):
            v += cuda.shfl_xor_sync(0xFFFFFFFF, v, step)
        return v

    @cuda.jit
    def body(x, y):
        v = total(x[cuda.threadIdx.x])
        if cuda.threadIdx.x == 0:
            cuda.atomic.exch(y, 0, v * 2)

    x, y = np.arange(32, dtype=np.int32), np.zeros(1, np.int32)
    for block in (32, 20, 32):
        fails = pytest.raises(simt.UninitializedRead, match=r"where lane \d+ has exited")
        with nullcontext() if block == 32 else fails, simt.observe(watch=True):
            body[1, block](x, y)
        body[1, 32](x, y)
        assert y[0] == 992
