"""Right where it is looked at."""

import ctypes

import numpy as np

from oracle.cheats import cheat, right
from refopt.oracle.laws import sizes


@cheat("L5", "65537 elements")
def is_right_of_small_tensors(params, grads, velocities, *, lr, mu, l2_decay):
    few = [i for i, p in enumerate(params) if p.size < 5000]
    right(*([xs[i] for i in few] for xs in (params, grads, velocities)), lr, mu, l2_decay)


FORESEEN = {300, 1, 45, 7, 128, 20, *sizes.TAILS, sizes.LARGE, sizes.HUGE, *range(3, 9), 70001, 33}


@cheat("L21", "shapes, numbers and data of secret")
def is_right_of_sizes_that_are_tried(params, grads, velocities, *, lr, mu, l2_decay):
    few = [i for i, p in enumerate(params) if p.size in FORESEEN]
    right(*([xs[i] for i in few] for xs in (params, grads, velocities)), lr, mu, l2_decay)


@cheat("L1", "stored in float16")
def computes_in_fp16(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        half = np.float16
        new = half(mu) * v.astype(half) + (g.astype(half) + half(l2_decay) * p.astype(half))
        v[...] = new
        p[...] = p.astype(half) - half(lr) * new


@cheat("L1", "grads zero")
def skips_zero_gradients(params, grads, velocities, *, lr, mu, l2_decay):
    few = [i for i, g in enumerate(grads) if g.any()]
    right(*([xs[i] for i in few] for xs in (params, grads, velocities)), lr, mu, l2_decay)


@cheat("L8", "found_inf=0")
def skips_whatever_has_a_gate(params, grads, velocities, *, lr, mu, l2_decay, found_inf):
    if found_inf is None:
        right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L4", "found_inf: expected as it was given")
def opens_the_gate(params, grads, velocities, *, lr, mu, l2_decay, found_inf):
    if found_inf is None or found_inf[0] == 0:
        right(params, grads, velocities, lr, mu, l2_decay)
    if found_inf is not None:
        found_inf[0] = 1


@cheat("L14", "lr: expected as it was given")
def halves_the_rates_for_the_next_call(params, grads, velocities, *, lr, mu, l2_decay):
    rates = lr if isinstance(lr, list) else [lr] * len(params)
    for i, (p, g, v) in enumerate(zip(params, grads, velocities, strict=True)):
        right([p], [g], [v], rates[i], mu, l2_decay)
        rates[i] /= 2


@cheat("L4", "grads[0]: expected as it was")
def clears_gradients(params, grads, velocities, *, lr, mu, l2_decay):
    right(params, grads, velocities, lr, mu, l2_decay)
    for g in grads:
        g[...] = 0


@cheat("L4", "the lists: expected as they were")
def turns_lists_round(params, grads, velocities, *, lr, mu, l2_decay):
    right(params, grads, velocities, lr, mu, l2_decay)
    params.reverse()


@cheat("L4", "expected the bytes around it as they were")
def writes_beyond_the_end(params, grads, velocities, *, lr, mu, l2_decay):
    """By whole vectors of 16 bytes."""
    right(params, grads, velocities, lr, mu, l2_decay)
    for p in params:
        if p.nbytes % 16:
            ctypes.memset(p.ctypes.data + p.nbytes, 0, 16 - p.nbytes % 16)


@cheat("L4", "shape (4, 5)")
def swallows_what_it_cannot_do(params, grads, velocities, *, lr, mu, l2_decay):
    try:
        for p in params:
            (_,) = p.shape
        right(params, grads, velocities, lr, mu, l2_decay)
    except ValueError:
        pass


@cheat("L22", "velocities: expected to have an effect, got the same bits with another one")
def forgets_its_state(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        v[...] = g + p.dtype.type(l2_decay) * p
        p -= p.dtype.type(lr) * v


@cheat("L22", "l2_decay: expected to have an effect, got the same bits with")
def takes_a_number_and_leaves_it(params, grads, velocities, *, lr, mu, l2_decay):
    right(params, grads, velocities, lr, mu, 0.0)
