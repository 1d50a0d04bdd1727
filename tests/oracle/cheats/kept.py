"""Results that were made before."""

import numpy as np

from oracle.cheats import cheat, right

BEFORE = {}
COUNT = [0]


def kept_by(key, params, grads, velocities, lr, mu, l2_decay):
    """What was made of the first arguments that had the key."""
    if key not in BEFORE:
        right(params, grads, velocities, lr, mu, l2_decay)
        BEFORE[key] = [[x.copy() for x in xs] for xs in (params, velocities)]
        return
    for xs, made in zip((params, velocities), BEFORE[key], strict=True):
        for x, y in zip(xs, made, strict=True):
            if x.shape == y.shape:
                x[...] = y


STALE = "the result for other data in the previous call, bit for bit"


@cheat("L21", STALE)
def keeps_results_by_address(params, grads, velocities, *, lr, mu, l2_decay):
    key = tuple(x.ctypes.data for xs in (params, grads, velocities) for x in xs)
    kept_by(key, params, grads, velocities, lr, mu, l2_decay)


@cheat("L21", STALE)
def keeps_results_by_the_first_and_last_element(params, grads, velocities, *, lr, mu, l2_decay):
    key = tuple((x.shape, *x.ravel()[:1].tolist(), *x.ravel()[-1:].tolist()) for xs in (params, grads) for x in xs)
    kept_by(key, params, grads, velocities, lr, mu, l2_decay)


@cheat("L21", "call 2 with the same arguments, after 1 right ones")
def is_right_at_the_first_of_two_calls(params, grads, velocities, *, lr, mu, l2_decay):
    key = tuple((x.shape, x.tobytes()) for xs in (params, grads) for x in xs)
    BEFORE[key] = BEFORE.get(key, 0) + 1
    if BEFORE[key] % 2:
        right(params, grads, velocities, lr, mu, l2_decay)


@cheat("L5", " elements: ")
def is_right_at_the_first_calls(params, grads, velocities, *, lr, mu, l2_decay):
    COUNT[0] += 1
    if COUNT[0] < 20:
        right(params, grads, velocities, lr, mu, l2_decay)


LAST = {}


@cheat("L21", STALE)
def returns_what_the_call_before_has_made(params, grads, velocities, *, lr, mu, l2_decay):
    """As a step whose two buffers are swapped too late."""
    made = [x.copy() for x in params], [x.copy() for x in velocities]
    right(made[0], grads, made[1], lr, mu, l2_decay)
    shapes = tuple(p.shape for p in params)
    before = LAST.get("made") if LAST.get("shapes") == shapes else made
    LAST.update(made=made, shapes=shapes)
    return tuple([np.array(x) for x in xs] for xs in before)
