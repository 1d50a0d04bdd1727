"""Inline PTX does what its Python twin does, in each of its forms: its instructions are followed, without a GPU."""

import operator
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import simt
from refopt.gpu import philox, vectors
from refopt.gpu.lars.stored import round4_away

WORD = 0xFFFFFFFF
words = st.integers(0, WORD)
# Numbers and their neighbours where exponents end, ties, infinities and NaNs, beside any at all.
UPPER = st.sampled_from([0, 0x3F800000, 0x7F7F0000, 0x7F800000, 0x7FC00000])
LOWER = st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x80000000, 0x80008000])
patterns = words | st.builds(operator.or_, UPPER, LOWER)

INSTRUCTIONS = {
    "mov.b32": lambda a: a, "mov.b16": lambda a: a, "shl.b32": lambda a, b: a << b & WORD,
    "mov.b64": lambda a: (a & WORD, a >> 32), "cvt.u32.u64": lambda a: a & WORD,
    "add.u32": lambda a, b: a + b & WORD, "mul.lo.u32": lambda a, b: a * b & WORD,
    "mul.hi.u32": lambda a, b: a * b >> 32, "and.b32": operator.and_,
    "or.b32": operator.or_, "xor.b32": operator.xor, "shr.u32": operator.rshift,
    "setp.eq.u32": operator.eq, "setp.nan.f32": lambda a, b: max(a & 0x7FFFFFFF, b & 0x7FFFFFFF) > 0x7F800000,
    "selp.b32": lambda a, b, p: a if p else b,
}


def followed(function, *arguments, before=False):
    """What the PTX of an intrinsic leaves in its results and, in 16 bits each, in memory; or that of older GPUs."""
    asm, constraints, results, _ = function.asm
    count, stored = len(results), []
    assert len(list(filter(None, constraints.split(",")))) == count + len(arguments)
    registers = {f"${count + k}": x for k, x in enumerate(arguments)}

    def value_of(operand):
        if operand.startswith("{"):
            low, high = map(value_of, re.findall(r"[^\s,{}]+", operand))
            return low | high << 16
        return registers[operand] if operand in registers else int(operand, 0)

    for line in (function.before if before else asm).split(";"):
        name, _, rest = re.sub(r"^(\s*[{}]\s)*\s*", "", line).partition(" ")
        if name in ("", ".reg", "}"):
            continue
        target, *operands = re.findall(r"\{[^}]*\}|[^\s,]+", rest)
        if name in ("st.global.b16", "st.global.v2.b32"):
            words = re.findall(r"[^\s,{}]+", operands[0])
            halves = 1 if name.endswith("b16") else 2
            stored += [value_of(word) >> 16 * k & 0xFFFF for word in words for k in range(halves)]
            continue
        value = INSTRUCTIONS[name](*map(value_of, operands))
        targets = re.findall(r"[^\s,{}]+", target)
        if name == "mov.b32" and len(targets) == 2:
            value = value & 0xFFFF, value >> 16
        registers.update(zip(targets, value if len(targets) > 1 else [value], strict=True))
    return [registers[f"${k}"] for k in range(count)] + stored


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


def halves(count):
    """Memory of the executor for so many numbers of 16 bits, and its address."""
    array = simt.cuda.to_device(np.zeros(count, np.uint16))
    return array, array.__cuda_array_interface__["data"][0]


@pytest.mark.clause("N1")
@pytest.mark.parametrize("count", [1, 4])
@given(x=st.tuples(*[patterns] * 4))
def test_stores_of_bf16_before_there_was_an_instruction(count, x):
    """To nearest even, by integers; every NaN becomes one."""
    store = {1: vectors.store_bfloat16, 4: vectors.store4_bfloat16}[count]
    array, address = halves(count)
    values = numbers(x[:count])
    store(address, values[0] if count == 1 else values)
    assert followed(store, address, *x[:count], before=True) == array.copy_to_host().tolist()


@pytest.mark.clause("N1")
@given(x=patterns)
def test_bf16_after_a_store_before_there_was_an_instruction(x):
    assert followed(vectors.round_bfloat16, x, before=True) == bits([vectors.round_bfloat16(*numbers([x]))])
