"""Inline PTX on registers alone does what its Python twin does: here its instructions are followed, without a GPU."""

import operator
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.gpu import philox
from refopt.gpu.lars.stored import round4_away

WORD = 0xFFFFFFFF
words = st.integers(0, WORD)
# Numbers and their neighbours where exponents end, ties, infinities and NaNs, beside any at all.
UPPER = st.sampled_from([0, 0x3F800000, 0x7F7F0000, 0x7F800000, 0x7FC00000])
LOWER = st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x80000000, 0x80008000])
patterns = words | st.builds(operator.or_, UPPER, LOWER)

INSTRUCTIONS = {
    "mov.b32": lambda a: a, "mov.b64": lambda a: (a & WORD, a >> 32), "cvt.u32.u64": lambda a: a & WORD,
    "add.u32": lambda a, b: a + b & WORD, "mul.lo.u32": lambda a, b: a * b & WORD,
    "mul.hi.u32": lambda a, b: a * b >> 32, "and.b32": operator.and_,
    "or.b32": operator.or_, "xor.b32": operator.xor, "shr.u32": operator.rshift,
    "setp.eq.u32": operator.eq, "setp.nan.f32": lambda a, b: max(a & 0x7FFFFFFF, b & 0x7FFFFFFF) > 0x7F800000,
    "selp.b32": lambda a, b, p: a if p else b,
}  # fmt: skip


def followed(function, *arguments):
    """What the PTX of an intrinsic leaves in its results, as words."""
    asm, constraints, results, _ = function.asm
    count = len(results)
    assert len(constraints.split(",")) == count + len(arguments)
    registers = {f"${count + k}": x for k, x in enumerate(arguments)}
    for line in asm.strip("{ }").split(";"):
        name, _, rest = line.strip().partition(" ")
        if name in ("", ".reg"):
            continue
        target, *operands = re.findall(r"\{[^}]*\}|[^\s,]+", rest)
        value = INSTRUCTIONS[name](*(registers[x] if x in registers else int(x, 0) for x in operands))
        targets = re.findall(r"[^\s,{}]+", target)
        registers.update(zip(targets, value if len(targets) > 1 else [value], strict=True))
    return [registers[f"${k}"] for k in range(count)]


def numbers(bits):
    return tuple(np.array(bits, np.uint32).view(np.float32))


def bits(values):
    return np.array(values, np.float32).view(np.uint32).tolist()


@pytest.mark.clause("N16")
@given(quad=words | st.integers(2**32, 2**40), pair=st.integers(0, 3), seed=st.integers(0, 2**24 - 1))
def test_random_words(quad, pair, seed):
    assert followed(philox.random4, quad, pair, seed) == list(philox.random4(quad, pair, seed))


@pytest.mark.clause("N16")
@pytest.mark.parametrize("name", ["dither4_low", "dither4_high"])
@given(x=st.tuples(*[patterns] * 4), by=st.tuples(*[words] * 4))
def test_rounding_by_chance(name, x, by):
    """Infinity and NaN stay, with all their bits."""
    function = getattr(philox, name)
    assert followed(function, *x, *by) == bits(function(numbers(x), by))


@pytest.mark.clause("N15")
@given(x=st.tuples(*[patterns] * 4))
def test_rounding_away_from_zero(x):
    assert followed(round4_away, *x) == bits(round4_away(numbers(x)))
