"""Right where it is looked at."""

from oracle.cheats import cheat, right
from refopt.oracle.laws import sizes

FORESEEN = {300, 1, 45, 7, 128, 20, *sizes.TAILS, sizes.LARGE, sizes.HUGE, *range(3, 9), 70001, 33}


@cheat("L21", "shapes, numbers and data of secret")
def is_right_of_sizes_that_are_tried(params, grads, velocities, *, lr, mu, l2_decay):
    few = [i for i, p in enumerate(params) if p.size in FORESEEN]
    right(*([xs[i] for i in few] for xs in (params, grads, velocities)), lr, mu, l2_decay)


@cheat("L1", "grads zero")
def skips_zero_gradients(params, grads, velocities, *, lr, mu, l2_decay):
    few = [i for i, g in enumerate(grads) if g.any()]
    right(*([xs[i] for i in few] for xs in (params, grads, velocities)), lr, mu, l2_decay)


@cheat("L4", "found_inf: expected unchanged")
def opens_the_gate(params, grads, velocities, *, lr, mu, l2_decay, found_inf):
    if found_inf is None or found_inf[0] == 0:
        right(params, grads, velocities, lr, mu, l2_decay)
    if found_inf is not None:
        found_inf[0] = 1


@cheat("L14", "lr: expected unchanged")
def halves_the_rates_for_the_next_call(params, grads, velocities, *, lr, mu, l2_decay):
    rates = lr if isinstance(lr, list) else [lr] * len(params)
    for i, (p, g, v) in enumerate(zip(params, grads, velocities, strict=True)):
        right([p], [g], [v], rates[i], mu, l2_decay)
        rates[i] /= 2


@cheat("L22", "velocities: expected to have an effect, got the same bits with another one")
def forgets_its_state(params, grads, velocities, *, lr, mu, l2_decay):
    for p, g, v in zip(params, grads, velocities, strict=True):
        v[...] = g + p.dtype.type(l2_decay) * p
        p -= p.dtype.type(lr) * v


@cheat("L22", "l2_decay: expected to have an effect, got the same bits with")
def takes_a_number_and_leaves_it(params, grads, velocities, *, lr, mu, l2_decay):
    right(params, grads, velocities, lr, mu, 0.0)
