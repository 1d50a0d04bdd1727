"""What an optimizer was found to be."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import refopt
from refopt.oracle.cases import NEUTRAL

SCHEMA = "refopt.identity/1"


class Match(NamedTuple):
    """A routine that does what the optimizer does.

    Attributes:
        choices: those that matter; of the others any does the same.
        states: the optional ones that it has, and which starts from 1.
        numbers: of the routine, by refopt's names.
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
        matches: every formula that does the same, the simplest first; none, if no routine does.
        tried: how many formulas.
        steps: of how many steps.
        nearest: of those that differ, the one that does so latest, and by how much; ``None`` where one is equal.
        why: why nothing could be tried; "" otherwise.
        left_out: options that are 0 by default, and with which it is none of the formulas.
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
        """The simplest routine that it is; ``None`` if it is none."""
        return self.matches[0].routine if self.matches else None

    @property
    def choices(self) -> dict[str, Any]:
        """The choices of that routine that matter."""
        return dict(self.matches[0].choices) if self.matches else {}

    @property
    def ambiguous(self) -> bool:
        """Whether several routines do the same with these numbers."""
        return len({match.routine for match in self.matches}) > 1

    def to_json(self) -> str:
        """The same as text of JSON."""
        fields: dict[str, Any] = {
            "schema": SCHEMA, "refopt": refopt.__version__, "subject": self.subject, "routine": self.routine,
            "choices": self.choices, "ambiguous": self.ambiguous, "tried": self.tried, "steps": self.steps,
            "dtype": self.dtype, "why": self.why, "left_out": self.left_out,
            "matches": [_fields(match) for match in self.matches],
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


def _fields(match: Match) -> dict[str, Any]:
    return {**match._asdict(), "choices": dict(match.choices), "numbers": dict(match.numbers)}


def merged(found: Iterable[tuple[Match, Mapping[str, tuple]]]) -> list[Match]:
    """Matches of one routine in several choices as one, where any value of a choice does the same."""
    groups: dict[tuple, list[Match]] = {}
    values: dict[tuple, Mapping[str, tuple]] = {}
    for match, of in found:
        key = match.routine, match.states, tuple(match.numbers.items())
        groups.setdefault(key, []).append(match)
        values[key] = of
    return [one for key, group in groups.items() for one in _free(group, values[key])]


def _free(group: list[Match], values: Mapping[str, tuple]) -> list[Match]:
    """The matches without choices that may be anything."""
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
