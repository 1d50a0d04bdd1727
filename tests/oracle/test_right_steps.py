"""Right steps of all kinds break no law of conduct, and none of these is skipped: no false alarm."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from oracle.cheats import right
from refopt import oracle

LAWS = ["L1", "L4", "L16", "L17", "L19", "L20", "L21", "L22", "L23"]
SCRATCH = {}
POOL = ThreadPoolExecutor(3)
LOCK = threading.Lock()


def one(p, g, v, lr, mu, l2_decay):
    right([p], [g], [v], lr, mu, l2_decay)


def with_threads(params, grads, velocities, *, lr, mu, l2_decay):
    """A thread for each tensor, all joined."""
    lists = zip(params, grads, velocities, strict=True)
    threads = [threading.Thread(target=one, args=(*of, lr, mu, l2_decay)) for of in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_a_pool_that_stays(params, grads, velocities, *, lr, mu, l2_decay):
    lists = zip(params, grads, velocities, strict=True)
    for future in [POOL.submit(one, *of, lr, mu, l2_decay) for of in lists]:
        future.result()


def with_buffers_that_stay(params, grads, velocities, *, lr, mu, l2_decay):
    """Scratch memory by size, as an allocator that caches has it."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        with LOCK:
            if (p.size, real) not in SCRATCH:
                SCRATCH[p.size, real] = np.empty(p.size, real)
        scratch = SCRATCH[p.size, real].reshape(p.shape)
        np.multiply(p, real(l2_decay), out=scratch)
        scratch += g
        v *= real(mu)
        v += scratch
        np.multiply(v, real(lr), out=scratch)
        p -= scratch


def with_new_lists(params, grads, velocities, *, lr, mu, l2_decay):
    moved = [p.dtype.type(mu) * v + (g + p.dtype.type(l2_decay) * p)
             for p, g, v in zip(params, grads, velocities, strict=True)]
    return [p - p.dtype.type(lr) * v for p, v in zip(params, moved, strict=True)], moved


@numba.njit(error_model="numpy")
def compiled(p, g, v, lr, mu, decay):
    for i in range(p.size):
        v[i] = mu * v[i] + (g[i] + decay * p[i])
        p[i] -= lr * v[i]


def by_a_compiler(params, grads, velocities, *, lr, mu, l2_decay):
    """Compiled at the first call of each dtype."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        real = p.dtype.type
        flat = [np.array(x, order="C").reshape(-1) for x in (p, g, v)]
        compiled(*flat, real(lr), real(mu), real(l2_decay))
        p[...], v[...] = flat[0].reshape(p.shape), flat[2].reshape(p.shape)


def with_a_setting_for_the_time(params, grads, velocities, *, lr, mu, l2_decay):
    with np.errstate(all="raise", under="ignore", over="ignore", invalid="ignore"):
        right(params, grads, velocities, lr, mu, l2_decay)


def with_a_generator_of_its_own(params, grads, velocities, *, lr, mu, l2_decay):
    """The order of the tensors is drawn."""
    order = np.random.default_rng(3).permutation(len(params))
    right(*([xs[i] for i in order] for xs in (params, grads, velocities)), lr, mu, l2_decay)


STEPS = [with_threads, with_a_pool_that_stays, with_buffers_that_stay, functools.partial(with_new_lists), by_a_compiler,
         with_a_setting_for_the_time, with_a_generator_of_its_own]


@pytest.mark.parametrize("step", [
    pytest.param(x, marks=[pytest.mark.slow] * (x in (with_a_pool_that_stays, with_buffers_that_stay))) for x in STEPS],
                         ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_a_right_step(step):
    report = oracle.check("momentum", step, dtypes=["float32"], laws=LAWS, examples=0, diagnose=False)
    assert report.ok, str(report)
    left = {x.text for x in report.of("skipped") if x.law in LAWS[4:]}
    assert not left, left
    assert {x.law for x in report.of("passed")} == {*LAWS}
