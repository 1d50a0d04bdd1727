"""Tensor sizes at which code takes another path than at the size before."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refopt.oracle import long
from refopt.oracle.bound import sums
from refopt.oracle.broken import Broken
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws import matrices
from refopt.oracle.laws.law import Law, Try, of_bound, of_runs
from refopt.oracle.laws.step import free
from refopt.oracle.trial import Trial

TAILS = (*range(1, 34), 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025, 2047, 2049, 4097)
LARGE = 2**16 + 1
LATE = 20  # a step for rules with norms, whose bound then depends less on the elements
DECAYS, LITTLE = ("weight_decay", "lars_weight_decay"), 2.0**-6
HUGE = 2**20 + 3  # elements; a part left out of a norm shows only if it is large


def sizes(trial: Trial) -> Iterator[Try]:
    if trial.row.matrix_arguments:
        yield from matrices.sizes(trial)
        return
    first, count = trial.dtype == "float32", 2 if trial.row.elementwise else LATE
    for size in TAILS:
        yield of_bound(trial, f"{size} elements", [size], count=count)
    yield of_bound(trial, f"{LARGE} elements", [LARGE], count=count)
    if first:
        yield of_bound(trial, f"{HUGE} elements", [HUGE])
    if first and not trial.recompiled:  # the places of elements are the compiler's work
        yield of_runs(f"{long.SIZE} elements, nearly all 0", partial(beyond, trial))
    if not trial.row.elementwise:
        yield Try("equal elements", partial(equal, trial), partial(trial.hold, depth=sums.any_order))
        for size in (LARGE, HUGE) if first else (LARGE,):
            for name in ("params", "grads"):
                make = partial(uneven, trial, size, name)
                yield Try(f"{size} elements, the last of {name} large", make, partial(trial.hold, depth=sums.any_order))


def uneven(trial: Trial, size: int, name: str) -> Case:
    """Data whose last elements make half of one norm, so that a quotient of norms shows if both lack a part.

    A sum that starts with them may be off by n roundings, since all other terms are small in comparison. Little decay
    keeps the norm of a parameter out of the divisor.
    """
    little = {name: LITTLE for name in DECAYS if free(trial, name)}
    case = trial.case([size], None, **little)  # type: ignore[arg-type]
    x = case.slots[name][0].copy()  # type: ignore[index]
    x[size // 2 :] *= x.dtype.type(4)
    x[-3:] *= x.dtype.type(2.0 ** (size.bit_length() // 2))
    return case.replace(**{name: [x]})


def beyond(trial: Trial) -> None:
    """Elements that fp32 cannot count."""
    case = trial.case([long.HAS.size], count=2)
    for name in trial.row.slot_names:
        if case.slots[name] is not None and name not in trial.row.scalars:
            case.slots[name][0][long.ZERO] = 0  # type: ignore[index]
    try:
        trial.hold(case, trial.long_step(case), depth=sums.any_order)
    except Broken as broken:
        raise long.placed(broken) from None


def equal(trial: Trial) -> Case:
    """Structured data, whose sum may be off by n roundings."""
    case = trial.case([2**15 + 1])
    alike = {name: [np.full_like(x, 1.25) for x in case.slots[name] or ()] for name in ("params", "grads")}
    return case.replace(**alike)


LAWS = (Law("L5", "sizes", "Every element is updated, whatever the size: tails, 2**16 + 1, more than 2**24.", sizes),)
