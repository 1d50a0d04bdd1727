"""Matrices: data that best show errors of the iteration, and sizes around the tiles of a product.

The bound is tightest if singular values are spread over a decade or two. Then the check finds a coefficient that is off
by a hundredth, and a term left out of a product if its rows or columns are large.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refopt.oracle.cases import Case
from refopt.oracle.laws.law import Try, of_bound
from refopt.oracle.trial import Trial

SHAPES = (1, 1), (9, 1), (20, 15), (24, 40), (48, 32)
TELLING = (32, 48), (48, 40), (64, 64)
OF_GRAM = (6, 12), (96, 24)  # whose smallest singular values rounding outgrows, if Gram matrices are not restarted
TINY = 1e-5
LEAST = 0.05, 0.1  # smallest singular values; the largest is 1
NORMS = 2.0**-20, 2.0**-13, 1.0, 2.0**20
HEAVY = 8  # the last columns or rows, which are large
# Around the tiles of 8, 16, 32, 64 and 128 that products are cut into.
TAILS = (
    (1, 2), (2, 1), (3, 3), (1, 257), (7, 9), (8, 8), (9, 7), (15, 17), (16, 16), (17, 33), (33, 17), (31, 65),
    (32, 32), (63, 64), (64, 64), (65, 63), (66, 129), (129, 40), (128, 128), (130, 136),
)
SIXTEEN_BITS = 2.0**12  # the largest norm of gradients in fp16


def step(trial: Trial) -> Iterator[Try]:
    """Cases of the step law for optimizers of matrices."""
    for shape in SHAPES:
        yield of_bound(trial, f"{shape[0]} x {shape[1]}", [shape], count=2)
    for shape in TELLING:
        for least in LEAST:
            label = f"{shape[0]} x {shape[1]}, singular values from {least} to 1"
            yield Try(label, partial(spread, trial, shape, least), trial.hold)
    for shape in OF_GRAM:
        label = f"{shape[0]} x {shape[1]}, singular values from {TINY:g} to 1"
        yield Try(label, partial(spread, trial, shape, TINY), trial.hold)
    for axis, which in enumerate(("rows", "columns")):
        make = partial(spread, trial, (40, 56), LEAST[0], heavy=axis)
        yield Try(f"the last {HEAVY} {which} heavy", make, trial.hold)
    for norm in NORMS:
        if trial.dtype != "float16" or norm < SIXTEEN_BITS:
            yield Try(f"of norm {norm:.2g}", partial(spread, trial, (24, 40), LEAST[1], norm=norm), trial.hold)
    if trial.takes("iterations") and not trial.fixed.keys() & {"iterations", *trial.row.own}:
        for count in (0, 1, 2, 7):
            yield of_bound(trial, f"{count} iterations", [(24, 40)], count=2, iterations=float(count))


def sizes(trial: Trial) -> Iterator[Try]:
    """Cases of the law of sizes."""
    for rows, columns in TAILS:
        yield Try(f"{rows} x {columns}", partial(ended, trial, (rows, columns)), trial.hold)


def spread(trial: Trial, shape: tuple[int, int], least: float, norm: float = 1.0, heavy: int | None = None) -> Case:
    """The first step of a matrix whose gradient has singular values from ``least`` to 1 in equal ratios.

    ``heavy`` is the axis whose last indices are the largest.
    """
    small = min(shape)
    rng = np.random.default_rng([trial.seed, *shape])
    left, right = (np.linalg.qr(rng.standard_normal((n, small)))[0] for n in shape)
    grad = left * np.geomspace(1, least, small) @ right.T
    if heavy is not None:
        grad[(slice(None),) * heavy + (slice(-HEAVY, None),)] *= 4
    grad *= norm / np.linalg.norm(grad)
    case = trial.case([shape])
    return case.replace(grads=[grad.astype(case.grads[0].dtype)])


def ended(trial: Trial, shape: tuple[int, int]) -> Case:
    """A matrix whose last row and column are large, so that leaving one out shows."""
    case = trial.case([shape], count=2).copy()
    (grad,) = case.grads
    grad[-1:] *= grad.dtype.type(4)
    grad[:, -1:] *= grad.dtype.type(4)
    return case
