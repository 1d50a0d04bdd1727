"""What is changed elsewhere: settings, other people's functions, and what the step is judged by."""

import gc
import os
import random
import signal
import sys
import time
import warnings

import numpy as np

from oracle.cheats import cheat, right
from refopt.oracle.bound import expected


def never(x):
    return np.zeros(np.shape(x), bool)


CHANGES = {
    "np.geterr(): expected unchanged": lambda: np.seterr(all="warn"), "np.random: expected": lambda: np.random.seed(0),
    "random: expected": lambda: random.seed(0), "gc.isenabled(): expected True unchanged, got False": gc.disable,
    "sys.gettrace(): expected None unchanged": lambda: sys.settrace(lambda *_: None),
    "sys.getrecursionlimit(): expected": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "os.getcwd(): expected": lambda: os.chdir("/"),
    "signal handlers: expected": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "signal.getitimer(): expected False unchanged, got True": lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
    "os.environ['PATH']: expected unchanged": lambda: os.environ.update(PATH=""),
    "warnings.filters: expected unchanged, got one more that ignores all": lambda: warnings.simplefilter("ignore"),
    "time.perf_counter: expected unchanged, got another": lambda: setattr(time, "perf_counter", float),
    "numpy.isnan: expected unchanged, got another": lambda: setattr(np, "isnan", never),
    "numpy.linalg.norm: expected unchanged, got none": lambda: vars(np.linalg).pop("norm", None),
    "refopt.oracle.bound.expected.expected_of: expected unchanged, got another":
        lambda: setattr(expected, "expected_of", dict),
    "sys.setprofile: expected the same profiler as before, got another": lambda: sys.setprofile(None)}


def changing(change, name):
    def step(params, grads, velocities, *, lr, mu, l2_decay):
        change()
        right(params, grads, velocities, lr, mu, l2_decay)

    step.__name__ = f"changes_{name}"
    return step


for words, change in CHANGES.items():
    cheat("L23", words)(changing(change, words.partition(":")[0]))


@cheat("L1", "times the bound")
def makes_everything_right(params, grads, velocities, *, lr, mu, l2_decay):
    """By what it is judged by, which is elsewhere."""
    expected.Expected.ratio = lambda self, got: np.zeros(np.shape(got))
    for x in (*params, *velocities):
        x[...] = 1
