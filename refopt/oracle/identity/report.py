"""The result of identifying an optimizer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import refopt
from refopt.oracle.cases import NEUTRAL

SCHEMA = "refopt.identity/1"


class Match(NamedTuple):
    """A routine that behaves like the optimizer.

    Attributes:
        choices: those that matter; the others have no effect.
        states: its optional states, and the states that start from 1.
        numbers: the routine's numbers, by refopt's names.
        off: the largest difference, relative to a tensor's largest change.
    """

    routine: str
    choices: Mapping[str, Any]
    states: tuple[str, ...]
    numbers: Mapping[str, float]
    off: float

    def __str__(self) -> str:
        chosen = (f"{name}={x}" for name, x in self.choices.items() if x is not False)
        return ", ".join([self.routine, *chosen, *self.states])


class Identity:
    """What `refopt.oracle.identify` returns.

    Attributes:
        subject: the name of the optimizer.
        matches: every formula that behaves the same, the simplest first; empty if none does.
        tried: how many formulas were tried.
        steps: how many steps were taken.
        nearest: the formula that differs latest, with its error; ``None`` if one matches.
        why: why nothing could be tried; "" otherwise.
        left_out: options that are 0 by default; with other values no formula matches.
    """

    def __init__(
        self, subject: str, matches: Sequence[Match], *, tried: int, steps: int, dtype: str,
        nearest: Match | None = None, agreed: int = 0, why: str = "",
    ) -> None:
        self.subject, self.matches, self.tried, self.steps = subject, list(matches), tried, steps
        self.dtype, self.nearest, self.agreed, self.why = dtype, nearest, agreed, why
        self.left_out: list[str] = []

    @property
    def routine(self) -> str | None:
        """The simplest routine that matches; ``None`` if none does."""
        return self.matches[0].routine if self.matches else None

    @property
    def choices(self) -> dict[str, Any]:
        """The choices of that routine that matter."""
        return dict(self.matches[0].choices) if self.matches else {}

    @property
    def ambiguous(self) -> bool:
        """Whether several routines behave the same with these numbers."""
        return len({match.routine for match in self.matches}) > 1

    def to_json(self) -> str:
        """The same as JSON text."""
        fields: dict[str, Any] = {
            "schema": SCHEMA, "refopt": refopt.__version__, "subject": self.subject, "routine": self.routine,
            "choices": self.choices, "ambiguous": self.ambiguous, "tried": self.tried, "steps": self.steps,
            "dtype": self.dtype, "why": self.why, "left_out": self.left_out,
            "matches": [{**x._asdict(), "choices": dict(x.choices), "numbers": dict(x.numbers)} for x in self.matches],
        }
        return json.dumps(fields, indent=1)

    def __repr__(self) -> str:
        return f"<Identity: {str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        if self.why:
            return f"{self.subject}: none could be tried: {self.why}"
        if not self.matches:
            lines = [f"{self.subject}: none of {self.tried} formulas"]
            if self.nearest is not None:
                since = f"after {self.agreed} of {self.steps} steps" if self.agreed else "from the first step"
                lines.append(f"the nearest, {self.nearest}: {since} off by {self.nearest.off:.2g} of the change")
            lines.append("check it as the routine that it is meant to be, to see what is wrong")
            return "\n".join(lines)
        first, *others = self.matches
        lines = [f"{self.subject}: {first}"]
        numbers = {name: x for name, x in first.numbers.items() if x != NEUTRAL.get(name)}
        lines.append("numbers: " + ", ".join(f"{name}={x:.6g}" for name, x in numbers.items()))
        lines.append(f"off by at most {first.off:.2g} of the change in {self.steps} steps of {self.dtype}")
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(f"without {names}, 0 by default: with other values it matches no formula")
        if others:
            lines.append("equal with these numbers: " + "; ".join(map(str, others)))
        return "\n".join(lines)


def merged(found: Iterable[tuple[Match, Mapping[str, tuple]]]) -> list[Match]:
    """Merge matches of a routine that differ only in choices without effect."""
    groups: dict[tuple, list[Match]] = {}
    values: dict[tuple, Mapping[str, tuple]] = {}
    for match, of in found:
        key = match.routine, match.states, tuple(match.numbers.items())
        groups.setdefault(key, []).append(match)
        values[key] = of
    return [one for key, group in groups.items() for one in _free(group, values[key])]


def _free(group: list[Match], values: Mapping[str, tuple]) -> list[Match]:
    """The matches without choices that have no effect."""
    left = {tuple(match.choices.items()): match for match in group}
    for name, of in values.items():
        rest: dict[tuple, list[Match]] = {}
        for match in left.values():
            others = tuple((other, x) for other, x in match.choices.items() if other != name)
            rest.setdefault(others, []).append(match)
        left = {}
        for others, same in rest.items():
            if len(same) == len(of):
                left[others] = same[0]._replace(choices=dict(others), off=max(match.off for match in same))
            else:
                left |= {tuple(match.choices.items()): match for match in same}
    return list(left.values())
