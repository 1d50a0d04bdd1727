"""`identify`: which routine and choices an optimizer is, or none; and the result, as text and as JSON."""

import contextlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import refopt
from refopt.checks.arguments import mapped, number
from refopt.oracle.broken import Broken, Skipped
from refopt.oracle.cases import NEUTRAL, noise
from refopt.oracle.identity.candidates import LEFT_OUT, Candidate, candidates, numbers_of, off, telling
from refopt.oracle.subject import Subject
from refopt.oracle.subjects import subject_of
from refopt.oracle.trial import Trial
from refopt.oracle.variants import ROUTINES

SCHEMA = "refopt.identity/1"
# Scales of each step's gradients, which reveal maxima, averages, and the step from which RAdam rectifies.
SIZES = 1.0, 1.5, 0.25, 0.5, 2.0, 0.125, 1.0, 0.75
# By how many axes tensors have to have; matrices of fewer than four rows are not what some take for one.
SHAPES: dict[int, list[tuple[int, ...]]] = {1: [(12,), (4, 5), (7,)], 2: [(4, 6), (4, 5), (5, 2)]}
# Libraries that keep a product in fp32 are off by some 1e-8; a formula that differs is by more, where it matters.
ENOUGH = {"float64": 2.0**-22, "float32": 2.0**-12}
KNOWN = sorted({hyper.name for row in ROUTINES.values() for hyper in row.hypers})  # numbers of any routine
COARSE = 2.0**-16  # of what computes in fp32, whatever its parameters are
ROUGH = 2.0**-3  # of what iterates in 16 bits
NEARER = 16  # times nearer, and a formula excludes others that are near enough


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


def identify(
    subject: Any, *, set: Any = None, states: Any = None, arrays: str | None = None, device: str | None = None,
    names: Mapping[str, str] | None = None, seed: int = 0, **options: Any,
) -> Identity:
    """Identify an optimizer with a routine of the catalogue and its choices, by its behavior.

    It takes eight steps in fp64 with gradients that distinguish formulas, and so does every routine with every choice,
    with the optimizer's numbers. A class is constructed with numbers that distinguish formulas as well, unless options
    set them; an instance keeps its own, and if several formulas are equal with these, all are listed.

    Args:
        subject, states, arrays, device: as in `refopt.oracle.check`.
        set: numbers that are built into it, by refopt's names, such as ``{"mu": 0.875}``.
        names: what the optimizer calls its numbers, by refopt's names, if it differs from its library.
        seed: of the data.
        options: further arguments of a class.

    Raises:
        TypeError, ValueError: naming the argument.

    >>> def mine(params, grads, velocities, *, lr, mu):
    ...     for p, g, v in zip(params, grads, velocities):
    ...         v[...] = mu * v + g
    ...         p -= lr * (g + mu * v)
    >>> found = identify(mine)
    >>> found.routine, found.choices["use_nesterov"]
    ('momentum', True)
    """
    own = mapped("identify: names", {} if names is None else names)
    numbers = mapped("identify: set", {} if set is None else set, KNOWN)
    numbers = {name: number(f"identify: set[{name!r}]", x, 0, finite=True) for name, x in numbers.items()}
    optimizer, plain = _telling(subject, numbers, states, arrays, device, options)
    for one in (optimizer, plain):
        one.values = {**one.values, **{own.get(name, name): x for name, x in numbers.items()}}
    found = _identified(optimizer, own, seed)
    if not found.matches and plain is not optimizer:  # some formulas are in the catalogue for some numbers alone
        other = _identified(plain, own, seed)
        told, defaults = (getattr(one, name, {}) for one, name in ((optimizer, "options"), (plain, "accepts")))
        other.left_out = [name for name, x in defaults.items() if name in told and x == 0]
        found = other if other.matches or found.why else found
    return found


def _identified(optimizer: Subject, own: Mapping[str, str], seed: int) -> Identity:
    """Identify an optimizer with its numbers."""
    for dtype in ENOUGH:
        for axes in SHAPES:
            try:
                params, grads, came = _probed(optimizer, dtype, SHAPES[axes], seed)
            except (Skipped, Broken) as error:
                why = str(error)
                continue
            if not all(np.isfinite(x).all() for x in came[-1]):
                why = "its parameters are not finite within eight steps"
                continue
            found = _found(optimizer, dtype, params, grads, came, own)
            if not found.matches and axes == 1:  # what is told by matrices alone, vectors being another routine's
                with contextlib.suppress(Skipped, Broken):
                    params, grads, came = _probed(optimizer, dtype, SHAPES[2], seed)
                    matrices = _found(optimizer, dtype, params, grads, came, own, shaped=True)
                    found = matrices if matrices.matches else found
            return found
    return Identity(optimizer.name, [], tried=0, steps=len(SIZES), dtype="float64", why=why)


def _telling(
    subject: Any, numbers: Mapping[str, Any], states: Any, arrays: str | None, device: str | None,
    options: Mapping[str, Any],
) -> tuple[Subject, Subject]:
    """The optimizer with numbers that distinguish formulas, where options permit; and with its own numbers."""

    def made(options: Mapping[str, Any]) -> Subject:
        taken = {name: x for name, x in numbers.items() if name in _parameters(subject)}
        return subject_of(
            None, subject, numbers=taken, states=states, arrays=arrays, device=device, options=options, where="identify"
        )

    optimizer = made(options)
    if not (own := telling(optimizer)):
        return optimizer, optimizer
    try:
        told = made({**own, **options})
    except (TypeError, ValueError):  # numbers that it does not take together
        return optimizer, optimizer
    told.name = optimizer.name
    return told, optimizer


def _parameters(subject: Any) -> set[str]:
    """The arguments that a function takes by name; empty for a class, whose numbers are options."""
    if isinstance(subject, type) or not callable(subject):
        return set()
    try:
        return {*inspect.signature(subject).parameters}
    except (TypeError, ValueError):
        return set()


def _probed(optimizer: Subject, dtype: str, shapes: Sequence[tuple[int, ...]], seed: int) -> tuple:
    """The parameters, the gradients of each step, and the parameters after each."""
    params = [noise([seed, 0, k], shape).astype(dtype) for k, shape in enumerate(shapes)]
    grads = [
        [(size * noise([seed, t, k], shape)).astype(dtype) for k, shape in enumerate(shapes)]
        for t, size in enumerate(SIZES, 1)
    ]
    # Some formulas, such as AdamP, differ if a matrix is nearly orthogonal to its gradient.
    matrix, grad = params[1], grads[0][1]
    grad -= 0.96875 * matrix * (matrix * grad).sum() / (matrix**2).sum()
    trial, came = Trial(None, optimizer, dtype, seed), []
    run = trial.start(params)
    for of in grads:
        trial.step(run, of)
        came.append([x.astype(np.float64) for x in trial.outcome(run)["params"]])
    wide = [x.astype(np.float64) for x in params], [[x.astype(np.float64) for x in of] for of in grads]
    return *wide, came


def _found(
    optimizer: Subject, dtype: str, params: Any, grads: Any, came: Any, names: Mapping[str, str],
    shaped: bool = False,
) -> Identity:
    """Every formula with the same results; if ``shaped``, only those for matrices."""
    tried = 0
    matches: list[tuple[Match, Mapping[str, tuple]]] = []
    nearest: tuple[int, float, Match] | None = None
    for of in _every(optimizer, names):
        if of.ones and matches:
            break
        if any(x.ndim != 2 for x in params) if of.row.matrix_arguments else shaped:
            continue
        tried += 1
        enough = ROUGH if of.row.matrix_arguments else max(COARSE, ENOUGH[dtype])
        steps, away = off(of, params, grads, came, enough)
        match = _match(of, away)
        if steps == len(grads):
            matches.append((match, of.row.choices))
        elif not of.ones and (nearest is None or (-steps, away) < (-nearest[0], nearest[1])):
            nearest = steps, away, match
    least = min((match.off for match, _ in matches), default=0.0)
    close = [pair for pair in matches if pair[0].off <= max(ENOUGH[dtype], NEARER * least)]
    ordered = sorted(merged(close), key=lambda match: (_size(match), match.off))
    agreed, near = (0, None) if nearest is None or matches else (nearest[0], nearest[2])
    return Identity(optimizer.name, ordered, tried=tried, steps=len(grads), dtype=dtype, nearest=near, agreed=agreed)


def _every(optimizer: Subject, names: Mapping[str, str]) -> Iterator[Candidate]:
    """Every formula, first those with few numbers; last those of states that start from 1, as some libraries have."""
    for ones in (False, True):
        for row in sorted(ROUTINES.values(), key=lambda row: (len(row.hypers), row.name)):
            for numbers in numbers_of(row, optimizer, names):
                yield from candidates(row, numbers, ones)


def _size(match: Match) -> tuple[bool, int, int]:
    """The complexity of a match: norms, then numbers that matter, then choices."""
    numbers = sum(x not in (0.0, 1.0) for x in match.numbers.values())
    return not ROUTINES[match.routine].elementwise, numbers + len(match.states), len(match.choices)


def _match(of: Candidate, away: float) -> Match:
    scalars = {slot.name for slot in of.row.slots if slot.scalar}
    kept = {name: x for name, x in of.choices.items() if name not in LEFT_OUT}
    numbers = {name: float(x) for name, x in of.numbers.items() if name not in ("seed", "rescale_grad")}
    states = tuple(x for x in of.states if x not in scalars) + tuple(f"{name} from 1" for name in of.ones)
    return Match(of.row.name, kept, states, numbers, away)


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
