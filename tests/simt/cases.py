"""Kernels as cases of a test: what each is launched with, and what is to come of it."""

from typing import Any, NamedTuple

import numpy as np

from refopt import simt

FULL = 0xFFFFFFFF
SCHEDULES = [("forward", 0), ("reverse", 0), ("random", 3)]
PAIR = np.dtype([("a", np.float32), ("b", np.float32)])
NESTED = np.dtype([("at", [("x", np.float64), ("y", np.float64)]), ("w", np.float32, (2,)), ("n", np.int32)])
TABLE = np.arange(32, dtype=np.int32)


def ints(n=64):
    return np.zeros(n, np.int32)


def is_race(work, *args, **options):
    """Whether watched work is found to race."""
    try:
        with simt.observe(watch=True, **options):
            work(*args)
    except simt.DataRace:
        return True
    return False


class Case(NamedTuple):
    """A kernel, its expected outcome, what makes its arguments anew for each launch, and options of `observe`."""

    body: Any
    outcome: Any
    makers: tuple
    grid: Any
    block: Any
    options: dict

    def arguments(self):
        return [make() for make in self.makers]


class Cases(dict):
    """Cases by the names of their kernels. It is a decorator, which adds one."""

    def __call__(self, outcome, *makers, grid=1, block=32, **options):
        def add(body):
            self[body.__name__] = Case(body, outcome, makers, grid, block, options)
            return body

        return add
