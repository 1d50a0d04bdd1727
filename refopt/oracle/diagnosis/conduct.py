"""Mistakes outside of the formula, found by trials: the same case on copies, alone, with other numbers.

A remedy is a subject that makes a mistake harmless. A failure that disappears with the remedy comes from the mistake.
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from refopt.oracle.broken import Broken, Skipped
from refopt.oracle.diagnosis.failure import Cause, Failure
from refopt.oracle.diagnosis.growth import indefinite
from refopt.oracle.exact.cases import Case, Outcome, copied, elements_of, memory, runner
from refopt.oracle.running import alike
from refopt.oracle.trial import Trial
from refopt.oracle.variants import step_of
from refopt.oracle.wrong import MORE, OF

BITS = 16, 12, 10, 8  # widths of an index that may be too narrow
LARGEST = 2**18  # the most elements of a case that is run again
OF_GRADIENTS = "gradient is overwritten", "aliases the gradient"  # causes that come first: others follow from them


def before(trial: Trial, failures: Sequence[Failure]) -> list[Cause]:
    """Causes to report before searching for a formula."""
    return _all((_no_default, _gradients, _strides, _index, _indefinite), trial, failures)


def after(trial: Trial, failures: Sequence[Failure]) -> list[Cause]:
    """Causes of failures that no formula explains."""
    return _all((_bits, _captured, _together), trial, failures)


def _all(looks: Sequence[Callable[..., Iterator[Cause]]], trial: Trial, failures: Sequence[Failure]) -> list[Cause]:
    found: list[Cause] = []
    for look in looks:
        explained = {key for told in found for key in told.failures}
        left = [x for x in failures if x.key not in explained]
        with contextlib.suppress(Exception):  # an error during the search is not a cause
            found += [told for told in look(trial, left) if told.failures] if left else []
    return [dataclasses.replace(told, dtype=trial.dtype) for told in found]


def _keys(failures: Sequence[Failure]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(x.key for x in failures))


def _no_default(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """An optional state without a default, for which ``None`` causes an error."""
    nones = [x for x in failures if "NoneType" in str(x.broken)]
    absent = [
        slot.name for slot in trial.row.slots
        if slot.optional and trial.takes(slot.name) and nones and all(x.case.slots[slot.name] is None for x in nones)
    ]
    if absent:
        names = " and ".join(absent)
        yield Cause(f"{names} is optional, and None when absent: give {names} a default, {absent[0]}=None, and "
                    "let the step run without it", _keys(nones))


def _indefinite(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Muon by Gram matrices whose rounding errors have grown, as singular values show."""
    bounded = [x for x in failures if x.is_bounded and x.size[1] <= LARGEST]
    if trial.row.matrix_arguments and (text := indefinite(trial, bounded)):
        yield Cause(text, _keys(bounded))


def _bits(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Bits that are not the reference's but those of a wrong rule."""
    mine = [x for x in failures if x.law == "L18" and x.size[1] <= LARGEST][:4]
    for wrong in (*OF[trial.row.name].values(), *MORE[trial.row.name].values()) if mine else ():
        with contextlib.suppress(Exception):  # a rule that asks for what a case lacks
            run = runner(step_of(trial.row, wrong.of(trial.row.rule)))
            if all(alike(trial.run(x.case), run(x.case)) for x in mine):
                yield Cause(f"{wrong.name}: the bits are those of this rule", _keys(mine))
                return


class _With:
    """A subject with another ``run``."""

    def __init__(self, subject: Any, run: Callable[[Any, Case], Outcome]) -> None:
        self.subject, self.way = subject, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.subject, name)

    def run(self, case: Case) -> Outcome:
        return self.way(self.subject, case)


def _cured(trial: Trial, failures: Sequence[Failure], way: Callable[[Any, Case], Outcome]) -> list[tuple[str, str]]:
    """The failures that disappear if the subject is run in another way."""
    subject, keys = trial.subject, []
    for key in _keys(failures):
        mine = [x for x in failures if x.key == key and x.size[1] <= LARGEST]
        try:
            trial.subject = _With(subject, way)
            for failure in mine[:4]:
                failure.holds(failure.case)
            keys += [key] * bool(mine)
        except (Broken, Skipped):
            continue
        finally:
            trial.subject = subject
    return keys


def _gradients(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Gradients that a step overwrites, or keeps as states."""
    cases = [x.case for x in failures if len(x.case.steps) == 1 and any(g is not None and g.size for g in x.case.grads)]
    case = min(cases, key=elements_of) if cases else trial.case([7, 5], count=2)
    mine = case.copy()
    got = trial.run_in_place(mine)
    pairs = [(i, x, y) for i, (x, y) in enumerate(zip(case.grads, mine.grads, strict=True)) if x is not None]
    written = any(x.tobytes() != y.tobytes() for _, x, y in pairs)
    states = [
        name for name in trial.row.states for values in [got.get(name)]
        if values and pairs and all(
            np.shares_memory(values[i], y) or (written and values[i].tobytes() == y.tobytes()) for i, _, y in pairs
        )
    ]
    if not written and not states:
        return

    def protected(subject: Any, case: Case) -> Outcome:
        got: Outcome = {}
        for k, step in enumerate(case.steps):
            there = {name: x for name, x in got.items() if case.slots[name] is not None} | copied({"grads": case.grads})
            got = got | subject.run(case.replace(steps=[step], count=case.count + k, **there))
        return copied(got)

    texts = [f"{name} aliases the gradient: the gradient's own array is kept as the state" for name in states]
    said = [x.key for x in failures if re.match(r"grads\[|the lists", str(x.broken))]
    keys = dict.fromkeys([*said, *_cured(trial, failures, protected)])
    yield Cause("; ".join([*texts, *["the gradient is overwritten by the step"] * written]), [*keys])


def _strides(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Arrays that are read as if they were in C order."""

    def is_other(x: Any) -> bool:
        return isinstance(x, np.ndarray) and not x.flags.c_contiguous

    wrong = [x for x in failures if not x.broken.kind]
    others = [x for x in wrong if any(is_other(a) for values in x.case.lists().values() for a in values)]

    def in_order(subject: Any, case: Case) -> Outcome:
        copied = lambda x: np.ascontiguousarray(x) if is_other(x) else x  # noqa: E731
        slots = {name: values and [copied(x) for x in values] for name, values in case.slots.items()}
        got = subject.run(case.replace(**slots))
        for name, values in got.items():
            for x, y in zip(values, case.slots[name] or (), strict=False):
                if is_other(y):
                    y[...] = x
        return {name: [y if is_other(y) else x for x, y in zip(values, case.lists()[name], strict=True)]
                for name, values in got.items()}

    if others:
        text = "strides are ignored: an array with its axes in another order in memory is read as if in C order"
        yield Cause(text, _cured(trial, others, in_order))


def _index(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """An index that wraps at a power of two, so that later elements are mistaken for the first ones."""
    for failure in sorted((x for x in failures if x.is_bounded and x.size[1] <= LARGEST), key=lambda x: x.size):
        i, size = failure.tensor, failure.case.params[failure.tensor].size
        for n in [2**bits for bits in BITS if 2**bits < size < 2 * 2**bits]:
            got, expected = trial.run(failure.case), trial.expected(failure.case, i)["params"]
            wrong = np.ravel(memory(expected.ratio(got["params"][i]))) > 1
            beyond = memory(got["params"][i])[n:] == memory(failure.case.params[i])[n:]
            if beyond.all() and wrong[: size - n].all() and not wrong[size - n : n].any():
                text = f"an index modulo {n:,} (2**{n.bit_length() - 1}): elements from number {n:,} on are not updated"
                same = [x for x in failures if not x.broken.kind and any(p.size > n for p in x.case.params)]
                yield Cause(f"{text}, and the first ones are updated again instead", _keys(same))
                return


def _captured(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Numbers whose changes between steps have no effect."""
    several = [x for x in failures if len(x.case.steps) > 1 and not x.broken.kind]
    several = [] if any(x.is_bounded for x in failures) else several
    for failure in several:
        first, *rest = failure.case.steps
        got, dead = _tensors(trial, failure.case), []
        for name in [name for name in first if any(step[name] != first[name] for step in rest)]:
            kept = failure.case.replace(steps=[step | {name: first[name]} for step in failure.case.steps])
            if alike(got, _tensors(trial, kept)):
                dead.append(name)
        if dead:
            what = f"{' and '.join(dead)} of the first call in every later one: captured once, so changing"
            yield Cause(f"{what} {'it' if len(dead) == 1 else 'them'} has no effect", [failure.key])
            return


def _tensors(trial: Trial, case: Case) -> Outcome:
    """A subject's results without scalars, which may follow from the numbers."""
    return {name: values for name, values in trial.run(case).items() if name not in trial.row.scalars}


def _together(trial: Trial, failures: Sequence[Failure]) -> Iterator[Cause]:
    """Tensors that are right alone but wrong in a list."""

    several = [x for x in failures if len(x.case) > 1]
    keys = _cured(trial, several, _alone)
    if keys:
        shared = _shared(trial)
        yield Cause(f"{shared} shared between tensors of one shape" if shared else _lent(trial, several[0].case) or
                    "tensors of a list depend on each other: alone, each is right", keys)


def _alone(subject: Any, case: Case) -> Outcome:
    ones = [subject.run(case.only([i])) for i in range(len(case))]
    return {name: [one[name][0] for one in ones] for name in ones[0]} if ones else subject.run(case)


def _lent(trial: Trial, case: Case) -> str:
    """The scalars that a step takes of one tensor for all, if these explain its results."""
    every, got = trial.row.scalars, trial.run(case)
    for names, (what, k) in itertools.product([*([x] for x in every), every], (("first", 0), ("last", -1))):
        lent = case.replace(**{name: [case.lists()[name][k]] * len(case) for name in names})
        if alike({name: x for name, x in got.items() if name not in names}, _alone(trial.subject, lent.copy())):
            return f"{' and '.join(names)} of the {what} tensor used for all"
    return ""


def _shared(trial: Trial) -> str:
    """The states that are wrong for two tensors of one shape, but right for two shapes."""

    def wrong(shapes: list[int]) -> set[str]:
        case = trial.case(shapes, count=3)
        got = trial.run(case)
        return {
            name for i in range(2) for name, expected in trial.expected(case, i).items()
            if got.get(name) and (np.ravel(memory(expected.ratio(got[name][i]))) > 1).any()
        }

    found = [*wrong([45, 45]) - {"params"}] if not wrong([45, 44]) else []
    return " and ".join(name for name in trial.row.states if name in found)
