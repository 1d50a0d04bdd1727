"""The random bits of a step (numerics, N16), from Philox-4x32-10 as it was published, a word at a time.

Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and table 2.
"""

import functools

import numpy as np

WORD = 2**32
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # the golden ratio and sqrt(3) - 1


def philox(counter, key):
    """Four random words of a counter of four words and a key of two."""
    left, right = list(counter[0::2]), list(counter[1::2])
    for number in range(10):
        round_key = [(word + number * weyl) % WORD for word, weyl in zip(key, WEYL, strict=True)]
        high, low = zip(*(divmod(m * word, WORD) for m, word in zip(MULTIPLIERS, left, strict=True)), strict=True)
        left, right = [high[1] ^ right[0] ^ round_key[0], high[0] ^ right[1] ^ round_key[1]], [low[1], low[0]]
    return left[0], right[0], left[1], right[1]


@functools.cache
def bits(seed, array, count):
    """16 bits for each element of an array of a step: of word i % 4 at counter i // 4 the lower or the upper half."""
    words = [philox((i % WORD, i // WORD, array // 2, 0), (seed, 0)) for i in range(-(-count // 4))]
    shift = 16 if array % 2 else 0
    return np.array([words[i // 4][i % 4] >> shift & 0xFFFF for i in range(count)], np.uint32)
