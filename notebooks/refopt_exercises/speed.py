"""How long an answer takes on a GPU, beside a copy of as many bytes and the reference solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from refopt.gpu import timing
from refopt.gpu.cuda import Launch

from .arguments import arrays, on_device


def nbytes(args: Any, names: Any) -> int:
    """Of all arrays among arguments."""
    return sum(array.nbytes for _, array in arrays(args, names))


def milliseconds(launch: Callable, answer: Any, args: Any) -> float:
    """The time of an answer's launches alone, on the machine in force, without what the host does between them."""
    launches, call = [], Launch.__call__

    def noted(own: Launch, stream: Any = 0) -> None:
        launches.append(own)
        call(own, stream)

    device = on_device(args)
    with mock.patch.object(Launch, "__call__", noted):
        launch(answer, *device)
    return timing.milliseconds_of(launches)


def words(launch: Callable, answer: Any, reference: Any, args: Any, moved: int) -> str:
    """A line on the speed of an answer.

    Args:
        launch: takes the answer and arguments on the device.
        answer: the learner's.
        reference: the answer of the solution; None where there are no solutions.
        args: arguments in NumPy, large enough to fill a GPU.
        moved: bytes that the reference reads and writes.
    """
    yours, copy = milliseconds(launch, answer, args), timing.copy_milliseconds(moved)
    said = f"Your kernel: {yours:.3f} ms for {moved / 1e6:,.1f} MB, {copy / yours:.0%} of the speed of a copy"
    if reference is None:
        return f"{said}."
    return f"{said}, {milliseconds(launch, reference, args) / yours:.0%} of that of the reference solution."
