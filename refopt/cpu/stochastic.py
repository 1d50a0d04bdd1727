"""Stochastic rounding to bf16 with a counter-based generator: the same bits wherever it runs (N16).

A value between two bf16 numbers is rounded to one of them at random, to the nearer one with higher probability, so that
small steps are not lost on average. The random bits come from Philox-4x32-10 (Salmon et al., Random123, SC 2011), a
function of the seed, the element's index in its tensor, and the array; so no state passes from step to step, and the
partition of the work does not matter.
"""

import numpy as np

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox-4x32-10.

    Args:
        counter: uint32 array, shape (4, n).
        key: two 32-bit words.

    Returns:
        uint32 array, shape (4, n): random words.
    """
    c0, c1, c2, c3 = counter.astype(np.uint64)
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(ROUNDS):
        first, second = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        c0, c1 = second >> np.uint64(32) ^ c1 ^ np.uint64(k0), second & low
        c2, c3 = first >> np.uint64(32) ^ c3 ^ np.uint64(k1), first & low
        k0, k1 = (k0 + KEY_STEPS[0]) % 2**32, (k1 + KEY_STEPS[1]) % 2**32
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def random16(size: int, seed: int, array: int) -> np.ndarray:
    """16 random bits for each element of a tensor, uint32, shape (size,).

    Four neighbours share a counter, which gives each a word; each word serves two arrays.

    Args:
        size: elements of the tensor.
        seed: key of the generator.
        array: which of the arrays that a step rounds: 0 is the parameter, the states follow.
    """
    quads = np.arange(-(-size // 4), dtype=np.uint64)
    counter = [quads & np.uint64(0xFFFFFFFF), quads >> np.uint64(32), quads * 0 + array // 2, quads * 0]
    words = philox(np.stack(counter).astype(np.uint32), (seed, 0)).T.reshape(-1)[:size]
    return words >> 16 * (array % 2) & 0xFFFF


def dither(x: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Values rounded to bf16 at random: away from zero if the sum of the omitted bits and ``bits`` carries.

    Args:
        x: fp32 array, shape (n,).
        bits: uint32 array of 16 random bits each, shape (n,).

    Returns:
        fp32 array of bf16 values. Infinity and NaN are unchanged; values beyond the largest number of bf16 may become
        infinite.
    """
    rounded = (x.view(np.uint32) + bits & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)
