"""What a pass gives back, and passes one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from refopt.program import Program, side_by_side


@dataclass(frozen=True)
class Result:
    """What a pass has made of a program.

    Attributes:
        program: the new program; the old one if the pass has not been applied.
        applied: whether anything was changed.
        reasons: why something was declined, or done otherwise than asked for.
    """

    program: Program
    applied: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report(Result):
    """What a pipeline has made of a program.

    Attributes:
        before: the program that it was given.
        steps: name and result of each pass, in order.
    """

    before: Program = field(default_factory=lambda: Program({}))
    steps: tuple[tuple[str, Result], ...] = ()

    def __str__(self) -> str:
        """Both programs side by side, and what each pass has to say, at most 120 columns."""
        lines = [side_by_side(self.before, self.program), ""]
        for name, result in self.steps:
            lines.append(f"{name}: {'applied' if result.applied else 'not applied'}")
            lines += [f"  {reason}" if len(reason) <= 118 else f"  {reason[:115]}..." for reason in result.reasons]
        return "\n".join(lines)


def pipeline(program: Program, *passes: Callable[[Program], Result]) -> Report:
    """Apply passes one after the other. Arguments of a pass are bound by `functools.partial`.

    Args:
        program: the program; it stays as it is.
        passes: functions of a program.

    Returns:
        The last program; printing the report shows it beside the first.
    """
    steps: list[tuple[str, Result]] = []
    now = program
    for apply in passes:
        result = apply(now)
        steps.append((_name(apply), result))
        now = result.program
    reasons = tuple(f"{name}: {reason}" for name, result in steps for reason in result.reasons)
    return Report(now, any(result.applied for _, result in steps), reasons, program, tuple(steps))


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return _name(function.func)
    return getattr(function, "__name__", type(function).__name__)
