"""Shapes and places in memory: any number of axes, in any order, at any address; and nothing else is written."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from refopt.oracle.cases import Case, memory
from refopt.oracle.laws.conduct import numbers_kept
from refopt.oracle.laws.law import Law, Try, of_bound
from refopt.oracle.trial import Broken, Trial

GUARD = 64  # bytes on either side, of a pattern that a stray store would spoil
PATTERN = 0x5C
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (4, 5), (2, 3, 7), (1, 1, 3), (3, 0, 2), (2, 3, 1, 2, 2))


def layouts(trial: Trial) -> Iterator[Try]:
    for shape in SHAPES:
        yield of_bound(trial, f"shape {shape}", [shape], count=2)
    yield Try("axes in another order", lambda: transposed(trial.case([(4, 5), (2, 3, 7)], count=2)), trial.hold)

    def within_guards(case: Case, shift: int = 1) -> None:
        """The bytes around each array stay, and the arrays are held to the bound."""
        mine, images = placed(case, shift)
        got = trial.run_in_place(mine)
        for name, i, image, start, stop in images:
            outside = np.concatenate([image[:start], image[stop:]])
            if (outside != PATTERN).any():
                raise Broken(f"{name}[{i}]: expected the bytes around it as they were, got some written")
        trial.hold(case, got)

    shapes = [17, 300, (3, 5), 0, 64]
    yield Try("misaligned, between guards", lambda: trial.case(shapes, count=2), within_guards)
    yield Try("aligned, between guards", lambda: trial.case(shapes, count=2), lambda case: within_guards(case, 0))

    def untouched(case: Case) -> None:
        """No gradient is written."""
        mine = case.copy()
        trial.run_in_place(mine)
        for i, (before, now) in enumerate(zip(case.grads, mine.grads, strict=True)):
            if before.tobytes() != now.tobytes():
                raise Broken(f"grads[{i}]: expected as it was, since a step does not write it, got another")

    def lists_kept(case: Case) -> None:
        """The lists have the arrays that they were given with, in the same order."""
        got = trial.run(case)
        if getattr(trial.subject, "replaced", False):
            raise Broken("the lists: expected as they were, since a step writes arrays, got other arrays in them")
        trial.hold(case, got)

    def shared(case: Case) -> None:
        """Gradients may share their memory."""
        same = case.replace(grads=[case.grads[0]] * len(case))
        mine = same.copy()
        mine = mine.replace(grads=[mine.grads[0]] * len(case))
        trial.hold(same, trial.run_in_place(mine))

    yield Try("one gradient for two tensors", lambda: trial.case([33, 33], count=2), shared)
    yield Try("gradients untouched", lambda: trial.case([300, (4, 5)], count=2), untouched)
    yield Try("lists untouched", lambda: trial.case([7, 300, (4, 5), 0], count=2), lists_kept)
    yield from numbers_kept(trial)


def transposed(case: Case) -> Case:
    """The same arrays with their axes in the other order in memory."""
    changed = {
        name: [x if x is None else x.copy(order="F") for x in values]
        for name, values in case.slots.items() if values is not None
    }  # fmt: skip
    return case.replace(**changed)


def placed(case: Case, shift: int) -> tuple[Case, list[tuple[str, int, np.ndarray, int, int]]]:
    """A copy whose arrays lie between guards, some elements off an aligned address; and where they are."""
    slots: dict[str, Any] = {}
    images = []
    for name, values in case.slots.items():
        slots[name] = values and []
        for i, x in enumerate(values or ()):
            if x is None:
                slots[name].append(None)
                continue
            start = GUARD + shift * x.itemsize
            image = np.full(start + x.nbytes + GUARD, PATTERN, np.uint8)
            image[start : start + x.nbytes] = memory(x).view(np.uint8)
            slots[name].append(np.ndarray(x.shape, x.dtype, image.data, start, x.strides))
            images.append((name, i, image, start, start + x.nbytes))
    return case.replace(**slots), images


LAWS = (Law("L4", "layouts", "Any shape, order of axes and address; gradients and other bytes stay.", layouts),)
