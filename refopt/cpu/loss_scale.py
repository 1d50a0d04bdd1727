"""The loss scale of the next iteration, from whether this one's gradients were finite.

In the form of Paddle's ``update_loss_scaling`` operator: the scale grows after a number of consecutive good steps, and
shrinks after a number of bad ones::

    found_inf:  good = 0, bad = bad + 1;  when bad = decr_every_n_nan_or_inf: scale = scale * decr_ratio, bad = 0
    otherwise:  bad = 0, good = good + 1;  when good = incr_every_n_steps: scale = scale * incr_ratio, good = 0

The scale does not grow to inf, and does not shrink below 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refopt import checks


def rule(found_inf, scale, good, bad, *, incr_every_n_steps, decr_every_n_nan_or_inf, incr_ratio, decr_ratio):
    """The new scale and counts."""
    if found_inf:
        bad = bad + 1
        if bad < decr_every_n_nan_or_inf:
            return scale, 0, bad
        shrunk = scale * decr_ratio
        return (shrunk if shrunk > 1 else type(scale)(1)), 0, 0
    good = good + 1
    if good < incr_every_n_steps:
        return scale, good, 0
    grown = scale * incr_ratio
    return (grown if np.isfinite(grown) else scale), 0, 0


def update_loss_scaling(
    found_inf: Any, loss_scale: Any, good_steps: Any, bad_steps: Any, *, incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2, incr_ratio: float = 2.0, decr_ratio: float = 0.5,
) -> None:
    """Update the loss scale and the counts of consecutive good and bad steps, in place.

    Args:
        found_inf: fp32 array of one element, 0 if all gradients were finite.
        loss_scale: fp32 array of one element, above 0.
        good_steps, bad_steps: int32 arrays of one element, 0 at first.
        incr_every_n_steps: consecutive good steps after which the scale grows, at least 1.
        decr_every_n_nan_or_inf: consecutive bad steps after which it shrinks, at least 1.
        incr_ratio: the factor of growth, at least 1.
        decr_ratio: the factor of shrinking, above 0 and at most 1.

    Raises:
        ValueError, TypeError: the message names the argument; nothing has been modified then.

    Source: Paddle's ``update_loss_scaling`` operator.
    """
    arrays = [found_inf, loss_scale, good_steps, bad_steps]
    numbers = checks.check_loss_scaling(
        arrays, checks.host_array, incr_every_n_steps=incr_every_n_steps,
        decr_every_n_nan_or_inf=decr_every_n_nan_or_inf, incr_ratio=incr_ratio, decr_ratio=decr_ratio,
    )
    run(arrays, numbers)


def run(arrays: Sequence[np.ndarray], numbers: Mapping[str, Any]) -> None:
    """Run a checked update of the loss scale."""
    overflow, *state = (x.reshape(-1)[0] for x in arrays)
    with np.errstate(all="ignore"):
        after = rule(overflow != 0, *state, **numbers)
    for array, value in zip(arrays[1:], after, strict=True):
        array[...] = value
