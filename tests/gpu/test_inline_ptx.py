"""Inline PTX does what its Python twin does, in each of its forms: its instructions are followed, without a GPU."""

import itertools
import operator
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.inline_ptx import BLOCKS, FOLLOWED, PLANTED, listed, operands_of, parts_of_numbers, statements
from refopt import simt
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.codes import ROOTS, SIGNED, chance
from refopt.gpu import codes, words

WORD, LONG = 0xFFFFFFFF, 2**64 - 1
anything = st.integers(0, WORD)
# Numbers and their neighbours where exponents end, ties, infinities and NaNs, beside any at all.
UPPER = st.sampled_from([0, 0x3F800000, 0x7F7F0000, 0x7F800000, 0x7FC00000])
LOWER = st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x80000000, 0x80008000])
singles = anything | st.builds(operator.or_, UPPER, LOWER)
doubles = st.integers(0, LONG) | st.floats(width=32).map(lambda x: int(np.float64(x).view(np.uint64)) + 1)
# What kernels ask for: a quad of elements of a large tensor, a pair of arrays, and a seed.
ASKED = {"random4": (anything | st.integers(2**32, 2**40), st.integers(0, 3), st.integers(0, 2**24 - 1))}


def is_nan(x):
    return x & 0x7FFFFFFF > 0x7F800000


def number(bits, dtype):
    return np.array(bits, f"u{np.dtype(dtype).itemsize}").view(dtype)


def converted(bits, source, target):
    """A number's bits in another floating type, to the nearest."""
    with np.errstate(all="ignore"):
        value = number(bits, numpy_dtype(source)).astype(numpy_dtype(target))
    return int(value.view(f"u{value.dtype.itemsize}"))


def towards_zero(bits):
    value = number(bits, np.float64)
    with np.errstate(all="ignore"):
        near = np.float32(value)
        return int((np.nextafter(near, np.float32(0)) if abs(near) > abs(value) else near).view(np.uint32))


def of_floats(function):
    """An instruction of fp32, rounded once, from bits to bits."""
    def instruction(*operands):
        with np.errstate(all="ignore"):
            return int(np.float32(function(*(number(x, np.float32) for x in operands))).view(np.uint32))
    return instruction


def compared(function):
    return lambda a, b: bool(function(number(a, np.float32), number(b, np.float32)))


def copysign(sign, magnitude):
    return np.copysign(magnitude, sign)


def bytes_of(low, high, which):
    """The bytes of two words that the four digits of ``which`` name, or from 8 on their signs."""
    both = (low | high << 32).to_bytes(8, "little")
    each = [(both[digit & 7], digit & 8) for digit in (which >> 4 * k & 15 for k in range(4))]
    return int.from_bytes(bytes(255 * (byte >> 7) if sign else byte for byte, sign in each), "little")


UNIT = {2.0**23 * kind.unit: kind.unit for kind in (SIGNED, ROOTS)}  # of sums with such a number


INSTRUCTIONS = {"mov.b32": lambda a: a, "mov.b16": lambda a: a, "shl.b32": lambda a, b: a << b & WORD,
                "mov.b64": lambda a: a, "add.u32": lambda a, b: a + b & WORD, "sub.u32": lambda a, b: a - b & WORD,
                "mul.lo.u32": lambda a, b: a * b & WORD, "mul.hi.u32": lambda a, b: a * b >> 32,
                "and.b32": operator.and_, "or.b32": operator.or_, "xor.b32": operator.xor, "shr.u32": operator.rshift,
                "shr.b32": operator.rshift, "setp.eq.u32": operator.eq, "setp.ge.u32": operator.ge,
                "setp.le.u32": operator.le, "setp.lt.u32": operator.lt,
                "setp.nan.f32": lambda a, b: is_nan(a) or is_nan(b), "selp.b32": lambda a, b, p: a if p else b,
                "setp.neu.f64": lambda a, b: bool(number(a, np.float64) != number(b, np.float64)),
                "cvt.rz.f32.f64": towards_zero, "cvt.f64.f32": lambda a: converted(a, "float32", "float64"),
                "cvt.f32.f16": lambda a: converted(a, "float16", "float32"),
                "cvt.rn.f16.f32": lambda a: converted(a, "float32", "float16"),
                "mul.rn.f32": of_floats(operator.mul), "add.rn.f32": of_floats(operator.add),
                "sub.rn.f32": of_floats(operator.sub), "abs.f32": of_floats(abs), "copysign.f32": of_floats(copysign),
                "rcp.rn.f32": of_floats(lambda a: np.float32(1) / a), "max.f32": of_floats(max),
                "max.NaN.f32": of_floats(np.maximum), "set.gt.f32.f32": of_floats(operator.gt),
                "fma.rn.f32": of_floats(lambda a, b, c: np.float64(a) * np.float64(b) + c),
                "add.rm.f32": of_floats(lambda a, b: np.floor((np.float64(a) + b) / UNIT[float(b)]) * UNIT[float(b)]),
                "lg2.approx.ftz.f32": of_floats(np.log2), "ex2.approx.ftz.f32": of_floats(np.exp2),
                "setp.gt.f32": compared(operator.gt), "setp.le.f32": compared(operator.le),
                "setp.lt.f32": compared(operator.lt), "setp.geu.f32": compared(lambda a, b: not a < b),
                "selp.f32": lambda a, b, p: a if p else b, "prmt.b32": bytes_of,
                "bfe.u32": lambda a, first, length: a >> first & (1 << length) - 1,
                "cvt.rn.f32.u32": lambda a: int(np.float32(a).view(np.uint32)),
                "cvt.rn.bf16.f32": lambda a: 0x7FFF if is_nan(a) else converted(a, "float32", "bfloat16")}


def followed(asm, registers, memory):
    """Follow instructions, from registers to registers and in memory, which begins at address 0."""

    def value_of(operand):
        if operand.startswith("{"):
            low, high = map(value_of, listed(operand))
            return low | high << 16
        if operand.startswith("0f"):
            return int(operand[2:], 16)
        return registers[operand] if operand in registers else int(operand, 0)

    for name, operands in statements(asm):
        targets = listed(operands[0])
        size = int(re.search(r"\d+$", name)[0]) // 8
        if name.startswith("ld.global"):
            at = registers[operands[1].strip("[]")]
            for k, target in enumerate(targets):
                stored, signed = memory[at + size * k : at + size * (k + 1)], ".s" in name
                registers[target] = int.from_bytes(stored, "little", signed=signed) & (WORD if signed else LONG)
        elif name.startswith("st.global"):
            at = registers[targets[0].strip("[]")]
            for k, word in enumerate(listed(operands[1])):
                memory[at + size * k : at + size * (k + 1)] = value_of(word).to_bytes(8, "little")[:size]
        elif re.fullmatch(r"cvt\.u\d+\.u\d+", name):
            registers[operands[0]] = value_of(operands[1]) & min(1 << int(x) for x in re.findall(r"\d+", name)) - 1
        else:
            value = INSTRUCTIONS[name](*map(value_of, operands[1:]))
            part = 8 * size // len(targets)  # a register may be taken apart
            for k, target in enumerate(targets):
                registers[target] = value if len(targets) == 1 else value >> part * k & (1 << part) - 1


FORMS = [pytest.param(value, asm, id=f"{name} {form}") for name, value in FOLLOWED.items()
         for form, asm in (("now", value.asm[0]), ("before", value.before)) if asm]


@pytest.mark.clause("N1", "N15", "N16")
@pytest.mark.parametrize(("function", "asm"), FORMS)
@given(data=st.data())
def test_instructions_do_what_the_twin_does(function, asm, data):
    """To nearest even, away from zero or by chance; every NaN that is stored as bf16 becomes one, others stay."""
    _, constraints, results, letters = function.asm
    assert len(operands_of(constraints)) == len(results) + len(letters)
    before = data.draw(st.binary(min_size=32, max_size=32))
    array = simt.cuda.to_device(np.frombuffer(before, np.uint8).copy())
    base, registers, given = array.__cuda_array_interface__["data"][0], {}, []
    width = re.search(r"st\.global\.\w(\d+)", asm)
    asked = iter(ASKED.get(function.__name__, [st.integers(0, 2 ** int(width[1] if width else 0) // 2 - 1)]))
    addresses = iter((0, 16))
    kinds = {"f": np.float32, "d": np.uint64 if function in (words.load16, words.store16) else np.float64}
    for k, letter in enumerate(letters):
        register = f"${len(results) + k}"
        if f"[{register}]" in asm:
            registers[register] = next(addresses)
            given.append(base + registers[register])
        else:
            patterns = {"f": singles, "d": doubles, "r": anything}
            drawn = data.draw(patterns[letter] if letter in patterns else next(asked))
            registers[register] = drawn
            given.append(number(drawn, kinds[letter])[()] if letter in kinds else drawn)
    grouped = []
    for letter, run in itertools.groupby(zip(letters, given, strict=True), lambda pair: pair[0]):
        run = [value for _, value in run]
        grouped += run if letter == "l" or len(run) == 1 else [tuple(run)]
    with np.errstate(all="ignore"):
        left = function(*grouped)
    memory = bytearray(before)
    followed(asm, registers, memory)
    assert memory == array.copy_to_host().tobytes()
    for k, value in enumerate(map(np.asarray, left if len(results) > 1 else (left,) * len(results))):
        bits = value.view(f"u{value.itemsize}") if value.dtype.kind == "f" else value
        assert registers[f"${k}"] == int(bits) & LONG


def test_no_block_stores_a_part_of_a_number():
    """Assemblers may convert a number that a narrower store takes, unless its bits are moved to a register first."""
    forms = {name: list(filter(None, (x.asm[0], x.before))) for name, x in BLOCKS.items()}
    assert not [name for name, asms in forms.items() for asm in asms if parts_of_numbers(asm, BLOCKS[name].asm[1])]
    assert all(parts_of_numbers(*planted) for planted in PLANTED)
    moved = "{ .reg .b32 m; mov.b32 m, $1; st.global.b8 [$0], m; }"
    assert not parts_of_numbers(moved, "l,f")


def results_of(function, *operands, memory=None):
    """What its instructions leave in the registers of its results."""
    asm, _, results, _ = function.asm
    registers = {f"${len(results) + k}": x for k, x in enumerate(operands)}
    followed(asm, registers, memory)
    return [registers[f"${k}"] for k in range(len(results))]


@pytest.mark.clause("N21")
@pytest.mark.parametrize("kind", [SIGNED, ROOTS])
@pytest.mark.parametrize(("u", "scale", "sign", "error"), [
    (0, 1, 1, 2.0**-20), (2**14 - 1, 1.5 + 2.0**-19, -1, -(2.0**-20)), (8192, 1.25, -1, 0)])
def test_codes_are_exact_whatever_is_approximated(kind, u, scale, sign, error):
    """Beside every code and every place between two where the code changes; approximations may be a little off."""
    scale, u = np.float32(scale), chance(np.uint32(4 * u))
    goes_up = kind.parts[:-1] + u * np.diff(kind.parts)
    places = np.concatenate([kind.parts, goes_up]) * scale * np.float32(sign if kind.signed else 1)
    x = np.concatenate([places, np.nextafter(places, np.float32(0)), np.nextafter(places, np.float32(3))])
    x = np.pad(x, (0, -x.size % 4))
    operands = np.column_stack([x.reshape(-1, 4), np.full(x.size // 4, scale), np.full((x.size // 4, 4), u)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INSTRUCTIONS, "ex2.approx.ftz.f32", of_floats(lambda x: np.exp2(x) * (1 + np.float64(error))))
        words = [results_of(codes.codes4(kind), *four) for four in operands.astype(np.float32).view(np.uint32).tolist()]
    expected = kind.codes(x, scale, u).astype(np.uint8).view("<u4")
    assert (np.array(words, np.uint32)[:, 0] == expected).all()


@pytest.mark.clause("N21")
@pytest.mark.parametrize("scale", [0.0, np.nan])
def test_codes_of_a_group_without_a_scale_are_zero(monkeypatch, scale):
    """Although a GPU's NaN has bits in its last byte."""
    add = INSTRUCTIONS["add.rn.f32"]
    monkeypatch.setitem(INSTRUCTIONS, "add.rn.f32", lambda a, b: 0x7FFFFFFF if is_nan(add(a, b)) else add(a, b))
    for kind in (SIGNED, ROOTS):
        given = np.array([np.inf, np.nan, 1e-30, 0, scale, *[0.5] * 4], np.float32)
        assert results_of(codes.codes4(kind), *given.view(np.uint32).tolist()) == [0]
