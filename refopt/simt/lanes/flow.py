"""Branches and loops of lanes: where lanes diverge, each path runs on arrays over the lanes that take it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .places import Lanes
from .values import Range, assembled, take, truth

Values = Sequence[Any]
_TURNS = 100_000


def branch(lanes: Lanes, test: Any, yes: Callable, no: Callable, values: Values) -> Values:
    """The variables after a branch: each of two functions of lanes and variables computes them for its lanes."""
    test = truth(test)
    if type(test) is not np.ndarray:
        return (yes if test else no)(lanes, *values)
    count = np.count_nonzero(test)
    if count == 0 or count == len(test):
        return (yes if count else no)(lanes, *values)
    ways = []
    for at, function in ((np.flatnonzero(test), yes), (np.flatnonzero(~test), no)):
        ways.append((at, function(lanes.part(at), *[take(value, at) for value in values])))
    return _joined(lanes.count, ways)


def _joined(count: int, parts: list[tuple[np.ndarray, Values]]) -> Values:
    return [assembled(count, [(at, values[k]) for at, values in parts]) for k in range(len(parts[0][1]))]


class _Loop:
    """The lanes in a loop, their variables, and those of the lanes that have left it."""

    def __init__(self, lanes: Lanes, fixed: Values, carried: Values) -> None:
        self.count, self.lanes, self.fixed, self.carried = lanes.count, lanes, fixed, carried
        self.at: np.ndarray | None = None  # positions of the lanes among those that entered the loop
        self.left: list[tuple[np.ndarray, Values]] = []
        self.extra: Values = ()

    def keep(self, going: Any) -> bool:
        """Remove the lanes that do not continue; return whether any does."""
        going = truth(going)
        if type(going) is not np.ndarray:
            return bool(going)
        count = int(np.count_nonzero(going))
        if count == len(going):
            return True
        stay, leave = np.flatnonzero(going), np.flatnonzero(~going)
        at = np.arange(self.count) if self.at is None else self.at
        if not count and not self.left:
            return False
        self.lanes.batch.run.steps += 1
        self.left.append((at[leave], [take(value, leave) for value in self.carried]))
        self.at, self.lanes = at[stay], self.lanes.part(stay)
        self.fixed, self.carried, self.extra = (
            [take(value, stay) for value in values] for values in (self.fixed, self.carried, self.extra)
        )
        return count > 0

    def result(self) -> Values:
        """The variables of all lanes after the loop."""
        if not self.left:
            return self.carried
        at = self.at if self.at is not None else np.arange(self.count)
        return _joined(self.count, [*self.left, *([(at, self.carried)] if len(at) else [])])


def loop(lanes: Lanes, body: Callable, fixed: Values, carried: Values) -> Values:
    """`while`: the body returns whether each lane continues, then the other variables."""
    state, run = _Loop(lanes, fixed, carried), lanes.batch.run
    for turn in itertools.count():
        run.steps += turn < _TURNS  # after this, the watchdog stops the loop unless lanes leave it
        state.carried = body(state.lanes, *state.fixed, *state.carried)
        if not state.keep(state.carried[0]):
            break
    return state.result()


def each_of(lanes: Lanes, items: Any, body: Callable, stops: bool, fixed: Values, carried: Values) -> Values:
    """`for`: the body takes an item first and returns the variables, preceded by whether lanes continue if `stops`."""
    state = _Loop(lanes, fixed, carried)
    for item in _items(state, items) if type(items) is Range else items:
        state.carried = body(state.lanes, item, *state.fixed, *state.carried)
        state.lanes.batch.run.steps += 1
        if stops and not state.keep(state.carried[0]):
            break
    return state.result()


def _items(state: _Loop, items: Range) -> Any:
    """The items of a range per lane, while any lane has one."""
    start, stop, step = items
    rounds = np.maximum(0, (stop - start + step - np.sign(step)) // step)
    state.extra = start, step, rounds
    least, turn = rounds.min(), 0
    while True:
        if turn >= least and not state.keep(state.extra[2] > turn):
            return
        start, step, rounds = state.extra
        if type(rounds) is np.ndarray and not len(rounds):
            return
        yield start + turn * step
        turn += 1

