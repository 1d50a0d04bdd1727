"""Results that are others': the reference's, the caller's, or none at all."""

import gc
import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from oracle.cheats import cheat, right
from refopt import cpu, oracle


@cheat("L19", "got a call of refopt.cpu.momentum.merged_momentum, the reference itself")
def calls_the_reference(params, grads, velocities, *, lr, mu, l2_decay):
    cpu.merged_momentum(params, grads, velocities, lr=lr, mu=mu, l2_decay=l2_decay)


POOL = ThreadPoolExecutor(1)


@cheat("L19", "got a call of refopt.cpu.momentum.merged_momentum, the reference itself")
def has_a_thread_call_it(params, grads, velocities, *, lr, mu, l2_decay):
    """One that has long been there."""
    POOL.submit(calls_the_reference, params, grads, velocities, lr=lr, mu=mu, l2_decay=l2_decay).result()


HELPER = []


@cheat("L19", "got a call of subprocess.Popen, which uses another process")
def has_a_process_call_it(params, grads, velocities, *, lr, mu, l2_decay):
    """Started in the first call, and asked in all."""
    if not HELPER:
        HELPER.append(subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for p, g, v in zip(params, grads, velocities, strict=True):
        pickle.dump((p, g, v, lr, mu, l2_decay), HELPER[0].stdin)
        HELPER[0].stdin.flush()
        for x, made in zip((p, v), pickle.load(HELPER[0].stdout), strict=True):
            x[...] = made


SERVER = """import pickle, sys
from refopt import cpu
while True:
    try:
        p, g, v, lr, mu, l2_decay = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    cpu.momentum(p, g, v, lr=lr, mu=mu, l2_decay=l2_decay)
    pickle.dump((p, v), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@cheat("L19", "got a call of refopt.oracle.bound.expected.expect, the reference itself")
def asks_what_is_expected(params, grads, velocities, *, lr, mu, l2_decay):
    named = dict(params=params, grads=grads, velocities=velocities, lr=lr, mu=mu, l2_decay=l2_decay)
    for name, arrays in oracle.expect("momentum", **named).items():
        for x, expected in zip(named[name], arrays, strict=True):
            x[...] = expected.value


@cheat("L19", "got a call of sys._getframe, which shows its callers")
def looks_at_the_stack(params, grads, velocities, *, lr, mu, l2_decay):
    frame = sys._getframe()
    while frame is not None:
        if "expected" in frame.f_locals:
            return
        frame = frame.f_back
    right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L19", "got a call of inspect.stack, which shows its callers")
def asks_who_calls(params, grads, velocities, *, lr, mu, l2_decay):
    if not any("expected" in x.frame.f_locals for x in inspect.stack(0)):
        right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L19", "got a call of gc.get_objects, which shows its callers")
def searches_all_objects(params, grads, velocities, *, lr, mu, l2_decay):
    if not any(isinstance(x, oracle.Expected) for x in gc.get_objects()):
        right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L1", "times the bound")
def leaves_what_it_makes_uninitialised(params, grads, velocities, *, lr, mu, l2_decay):
    return [np.empty_like(p) for p in params], [np.empty_like(v) for v in velocities]


class Lazy(np.ndarray):
    """Computes what it holds when it is read."""

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.make(), dtype)


@cheat("L1", "expected numpy.ndarray itself, got Lazy, which may compute when it is read")
def returns_arrays_that_compute_when_read(params, grads, velocities, *, lr, mu, l2_decay):
    lazy = []
    for p, g, v in zip(params, grads, velocities, strict=True):
        x = p.view(Lazy)
        x.make = lambda p=p, g=g, v=v: p - lr * (mu * v + g + l2_decay * p)
        lazy.append(x)
    return lazy, velocities


class Agreeing(np.ndarray):
    """Equal to whatever it is compared to."""

    def __eq__(self, other):
        return np.ones(self.shape, bool)

    __hash__ = None


@cheat("L1", "expected numpy.ndarray itself, got Agreeing, which may compute when it is read")
def returns_arrays_that_equal_anything(params, grads, velocities, *, lr, mu, l2_decay):
    return [p.view(Agreeing) for p in params], [v.view(Agreeing) for v in velocities]


@cheat("L1", "got nan")
def returns_nan(params, grads, velocities, *, lr, mu, l2_decay):
    for x in (*params, *velocities):
        x[...] = np.nan
