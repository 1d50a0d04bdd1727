"""A tensor that is too long for counts in fp32: nearly all elements are 0, so that few are sent and compared."""

import sys
from typing import Any

import numpy as np

from refopt.oracle.broken import Broken
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.subject import Lacks, Wrong

LAST = 2**24  # fp32 has no odd number beyond
SIZE = LAST + 2**12 + 1  # which fp32 rounds to whole blocks
ZERO = 8  # an element that is 0 in every slot, like all that are not in HAS
HAS = np.r_[: ZERO + 1, LAST - 8 : LAST + 16, SIZE - 16 : SIZE]  # the places of a case's elements
FEW, MANY = 2**12 + 1, 2**16 + 1  # sizes for which a step should run about as many lines of Python
MORE = 1000  # lines for ``MANY``


def long_step(subject: Any, case: Case) -> Outcome:
    """The results of a long tensor, of which a case has the elements ``HAS``.

    Raises:
        Lacks: the step runs Python code for every few elements, or has not enough memory.
        Wrong: the other elements have other results than element ``ZERO``.
    """
    few, many = (_lines(subject, _lengthened(case, size)) for size in (FEW, MANY))
    if many > few + MORE:
        raise Lacks(f"runs Python code for every few elements, so that {SIZE:,} take long")
    try:
        got = subject.run(_lengthened(case, SIZE))
        return {name: [_shortened(name, x) for x in values] for name, values in got.items()}
    except MemoryError:
        raise Lacks(f"has not enough memory for {SIZE:,} elements") from None


def _lines(subject: Any, case: Case) -> int:
    """How many lines of Python a step runs."""
    count, before = 0, sys.gettrace()

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        subject.run(case)
    finally:
        sys.settrace(before)
    return count


def _lengthened(case: Case, size: int) -> Case:
    """A copy of the case with as many elements."""
    return case.replace(**{name: values and [_long(x, size) for x in values] for name, values in case.slots.items()})


def _long(x: Any, size: int) -> Any:
    if x is None or x.shape != HAS.shape:
        return x if x is None else x.copy()
    whole, there = np.zeros(size, x.dtype), size > HAS
    whole[HAS[there]] = x[there]
    return whole


def _shortened(name: str, x: Any) -> Any:
    if x is None or x.size < SIZE:
        return x
    stray = x != x[ZERO]
    stray[HAS] = False
    if stray.any() and x[ZERO] == x[ZERO]:  # not NaN
        k = int(np.argmax(stray))
        raise Wrong(f"{name}[0], element {k} of {SIZE}: expected {x[ZERO]}, like element {ZERO}, got {x[k]}")
    return x[HAS]


def placed(broken: Broken) -> Broken:
    """The same failure with the place of its element in the long tensor, and what follows from it."""
    at, text = broken.where, str(broken)
    if at is not None and at.wrong.size == HAS.size:
        text = text.replace(f"element {at.element} of {HAS.size}", f"element {HAS[at.element]} of {SIZE}")
        if HAS[at.wrong].min() >= LAST:
            text += "; those up to 2**24 are right, and fp32 has no odd number beyond: count and index by integers"
    return Broken(text)
