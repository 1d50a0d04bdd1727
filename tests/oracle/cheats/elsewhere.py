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


@cheat("L23", "np.geterr(): expected as before")
def changes_what_numpy_raises(params, grads, velocities, *, lr, mu, l2_decay):
    np.seterr(all="warn")
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "np.random: expected")
def seeds_numpy(params, grads, velocities, *, lr, mu, l2_decay):
    np.random.seed(0)
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "random: expected")
def seeds_python(params, grads, velocities, *, lr, mu, l2_decay):
    random.seed(0)
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "warnings.filters: expected as before, got one more that ignores all warnings")
def silences_warnings(params, grads, velocities, *, lr, mu, l2_decay):
    warnings.simplefilter("ignore")
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "signal handlers: expected")
def handles_signals(params, grads, velocities, *, lr, mu, l2_decay):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "gc.isenabled(): expected True as before, got False")
def stops_collecting(params, grads, velocities, *, lr, mu, l2_decay):
    gc.disable()
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "time.perf_counter: expected as before, got another")
def stops_the_clock(params, grads, velocities, *, lr, mu, l2_decay):
    time.perf_counter = lambda: 0.0
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "numpy.isnan: expected as before, got another")
def replaces_a_function_of_numpy(params, grads, velocities, *, lr, mu, l2_decay):
    np.isnan = lambda x: np.zeros(np.shape(x), bool)
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "os.environ['PATH']: expected as before")
def changes_the_environment(params, grads, velocities, *, lr, mu, l2_decay):
    os.environ["PATH"] = ""
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L23", "refopt.oracle.bound.expected.expected_of: expected as before, got another")
def replaces_what_is_expected(params, grads, velocities, *, lr, mu, l2_decay):
    expected.expected_of = lambda *arguments, **named: {}
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L1", "times the bound")
def makes_everything_right(params, grads, velocities, *, lr, mu, l2_decay):
    """By what it is judged by, which is elsewhere."""
    expected.Expected.ratio = lambda self, got: np.zeros(np.shape(got))
    for x in (*params, *velocities):
        x[...] = 1


@cheat("L23", "sys.setprofile: expected the profiler that was there, got another")
def looks_who_is_watching(params, grads, velocities, *, lr, mu, l2_decay):
    sys.setprofile(None)
    right(params, grads, velocities, lr, mu, l2_decay)
