"""The random numbers of `numba.cuda.random`: a generator for each thread, 2^64 numbers after that of the one before.

The generator is D. Blackman and S. Vigna's xoroshiro128+ of 2016, with rotations by 55, 14 and 36, seeded by
SplitMix64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..base.arguments import whole
from ..base.numba_types import Record
from ..memory.arrays import DeviceArray, device_array

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)
xoroshiro128p_type = Record(xoroshiro128p_dtype)

_BITS = (1 << 64) - 1
_JUMP = 0xBEAC0467EBA5FACB | 0xD86B048B86AA9922 << 64  # advances by 2^64 numbers
_TWO_PI: dict[Any, Any] = {np.float32: np.float32(2 * math.pi), np.float64: np.float64(2 * math.pi)}


def _rotated(x: int, k: int) -> int:
    return (x << k | x >> 64 - k) & _BITS


def _after(s0: int, s1: int) -> tuple[int, int]:
    """The state after one number."""
    s1 ^= s0
    return _rotated(s0, 55) ^ s1 ^ (s1 << 14 & _BITS), _rotated(s1, 36)


def _jumped(s0: int, s1: int) -> tuple[int, int]:
    """The state after 2^64 numbers."""
    to0 = to1 = 0
    for bit in range(128):
        if _JUMP >> bit & 1:
            to0, to1 = to0 ^ s0, to1 ^ s1
        s0, s1 = _after(s0, s1)
    return to0, to1


def _seeded(seed: int) -> tuple[int, int]:
    """SplitMix64's first number, for both words."""
    z = (seed + 0x9E3779B97F4A7C15) & _BITS
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _BITS
    return z ^ z >> 31, z ^ z >> 31


def init_xoroshiro128p_states(states: DeviceArray, seed: int, subsequence_start: int = 0, stream: Any = 0) -> None:
    """Seed all generators of a device array, each 2^64 numbers after the one before it."""
    state = _seeded(int(seed) & _BITS)
    for _ in range(whole("subsequence_start", subsequence_start)):
        state = _jumped(*state)
    values = np.empty(states.shape, xoroshiro128p_dtype)
    for index in range(len(values)):
        values[index] = state
        state = _jumped(*state)
    states.copy_to_device(values, stream=stream)


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0, stream: Any = 0) -> DeviceArray:
    """A device array of n generators, `xoroshiro128p_dtype`, seeded."""
    states = device_array(whole("n", n), xoroshiro128p_dtype, stream=stream)
    init_xoroshiro128p_states(states, seed, subsequence_start, stream)
    return states


def init_xoroshiro128p_state(states: Any, index: Any, seed: Any) -> None:
    """Seed one generator."""
    record = states[index]
    record["s0"], record["s1"] = map(np.uint64, _seeded(int(seed) & _BITS))


def xoroshiro128p_jump(states: Any, index: Any) -> None:
    """Advance a generator by 2^64 numbers."""
    record = states[index]
    record["s0"], record["s1"] = map(np.uint64, _jumped(int(record["s0"]), int(record["s1"])))


def xoroshiro128p_next(states: Any, index: Any) -> np.uint64:
    """The next 64 bits."""
    record = states[index]
    s0, s1 = int(record["s0"]), int(record["s1"])
    record["s0"], record["s1"] = map(np.uint64, _after(s0, s1))
    return np.uint64(s0 + s1 & _BITS)


def xoroshiro128p_uniform_float64(states: Any, index: Any) -> np.float64:
    """A number in [0, 1), from the upper 53 bits."""
    return np.float64((int(xoroshiro128p_next(states, index)) >> 11) * 2.0**-53)


def xoroshiro128p_uniform_float32(states: Any, index: Any) -> np.float32:
    """A number in [0, 1]: rounded from float64, so it may be 1."""
    return np.float32(xoroshiro128p_uniform_float64(states, index))


def _normal(states: Any, index: Any, kind: Any) -> Any:
    """A normal number by the Box-Muller transform of two uniform float32, even for float64, as in Numba."""
    u1, u2 = xoroshiro128p_uniform_float32(states, index), xoroshiro128p_uniform_float32(states, index)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.float32(np.log(np.float64(u1)))
        cosine = kind(np.cos(np.float64(_TWO_PI[kind] * u2)))
        return kind(np.sqrt(np.float64(kind(-2) * log))) * cosine


def xoroshiro128p_normal_float32(states: Any, index: Any) -> np.float32:
    """A number of mean 0 and standard deviation 1; two numbers are used up."""
    return _normal(states, index, np.float32)


def xoroshiro128p_normal_float64(states: Any, index: Any) -> np.float64:
    """A number of mean 0 and standard deviation 1; two numbers are used up."""
    return _normal(states, index, np.float64)


_RESULTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (init_xoroshiro128p_state, ()), (xoroshiro128p_jump, ()), (xoroshiro128p_next, ("uint64",)),
    (xoroshiro128p_uniform_float32, ("float32",)), (xoroshiro128p_uniform_float64, ("float64",)),
    (xoroshiro128p_normal_float32, ("float32",)), (xoroshiro128p_normal_float64, ("float64",)),
)
for _function, _types in _RESULTS:
    vars(_function)["__simt_types__"] = _types
