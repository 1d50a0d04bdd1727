"""The result of a pass, and pipelines of passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from refopt.checks.arguments import collected, flag, names, shown
from refopt.program.model import Op, Var
from refopt.program.passes import dependencies
from refopt.program.passes.dependencies import Move
from refopt.program.program import Program, expect_program, side_by_side


@dataclass(frozen=True)
class Result:
    """The result of a pass.

    Attributes:
        program: the new program; the old one if the pass has not been applied.
        applied: whether anything was changed.
        reasons: why something was declined, or not done as requested.
    """

    program: Program
    applied: bool
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expect_program(type(self).__name__, self.program)
        object.__setattr__(self, "applied", flag(f"{type(self).__name__}: applied", self.applied))
        object.__setattr__(self, "reasons", names(f"{type(self).__name__}: reasons", self.reasons))


@dataclass(frozen=True)
class Report(Result):
    """The result of a pipeline.

    Attributes:
        before: the original program.
        steps: name and result of each pass, in order.
    """

    before: Program = field(default_factory=lambda: Program({}))
    steps: tuple[tuple[str, Result], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_program("Report: before", self.before)
        object.__setattr__(self, "steps", _steps("Report: steps", self.steps))

    def __str__(self) -> str:
        """Both programs side by side, and the remarks of each pass, in at most 120 columns."""
        lines = [side_by_side(self.before, self.program), ""]
        for name, result in self.steps:
            lines.append(f"{name}: {'applied' if result.applied else 'not applied'}")
            lines += [f"  {reason}" if len(reason) <= 118 else f"  {reason[:115]}..." for reason in result.reasons]
        return "\n".join(lines)


def _steps(where: str, value: Any) -> tuple[tuple[str, Result], ...]:
    """Names and results; raises for anything else."""
    checked = []
    for k, step in enumerate(collected(where, value, "names and results")):
        pair = collected(f"{where}[{k}]", step, "a name and a Result")
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Result):
            raise TypeError(f"{where}[{k}]: expected a name and a Result, got {shown(step)}")
        checked.append((pair[0], pair[1]))
    return tuple(checked)


def changed(program: Program, new: Program, reasons: Iterable[str], nothing: str) -> Result:
    """The result of a pass that made a new program; or, if that is equal to the old one, why it does nothing."""
    return Result(program, False, (*reasons, nothing)) if new == program else Result(new, True, tuple(reasons))


def moved(
    program: Program, moves: Sequence[Move], reasons: Iterable[str], nothing: str, vars: Iterable[Var] = (),
    startup: Iterable[Op] = (),
) -> Result:
    """The result of a pass that moves ops of a step, and adds variables and startup ops; or why it does nothing."""
    main = dependencies.rewritten(program, moves)
    new = program.with_vars(vars).replace(startup=[*program.startup, *startup], main=main)
    return changed(program, new, reasons, nothing)


def pipeline(program: Program, *passes: Callable[[Program], Result]) -> Report:
    """Apply passes one after the other. Arguments of a pass are bound by `functools.partial`.

    Args:
        passes: functions of a program.

    Returns:
        The last program; printing the report shows it next to the first.

    Raises:
        TypeError: naming the argument that is not a pass, or does not return a result.
    """
    expect_program("pipeline", program)
    for k, apply in enumerate(passes):
        if not callable(apply):
            hint = "; write * before a list of passes" if isinstance(apply, list | tuple) else ""
            raise TypeError(f"pipeline: passes[{k}]: expected a function of a program, got {shown(apply)}{hint}")
    steps: list[tuple[str, Result]] = []
    now = program
    for k, apply in enumerate(passes):
        _check_arguments(f"pipeline: passes[{k}], {_name(apply)}", apply)
        result = apply(now)
        if not isinstance(result, Result):
            raise TypeError(f"pipeline: passes[{k}], {_name(apply)}: expected a Result from it, got {shown(result)}")
        steps.append((_name(apply), result))
        now = result.program
    reasons = tuple(f"{name}: {reason}" for name, result in steps for reason in result.reasons)
    return Report(now, any(result.applied for _, result in steps), reasons, program, tuple(steps))


def _check_arguments(where: str, apply: Callable[..., Any]) -> None:
    """Raise if a pass has further arguments that must be bound."""
    try:
        _, *others = inspect.signature(apply).parameters.values()
    except ValueError:  # it has no signature, or no argument
        return
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [each.name for each in others if each.default is each.empty and each.kind not in variadic]
    if needed:
        expected = "expected a function of only a program, bound by functools.partial"
        raise TypeError(f"{where}: {expected}, got one that needs {', '.join(needed)}, too")


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return _name(function.func)
    return getattr(function, "__name__", type(function).__name__)
