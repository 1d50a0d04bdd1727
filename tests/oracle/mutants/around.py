"""Steps around `refopt.cpu`, wrong where the library has nothing: remainders, chance, a state that is hidden."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from oracle.mutants import WRITTEN
from refopt import cpu

HIDDEN: dict[int, Any] = {}


class Around(NamedTuple):
    """A row of the table, as `oracle.mutants.Mutant`; ``wrong`` stands in the place of refopt's own function."""

    wrong: Callable[..., None]
    routine: str
    law: str
    dtypes: tuple[str, ...]
    source: str = WRITTEN

    @property
    def name(self) -> str:
        return self.wrong.__name__.replace("_", " ")

    @property
    def right(self) -> Any:
        return getattr(cpu, f"merged_{self.routine}")

    def step(self) -> Any:
        @functools.wraps(self.right)
        def step(*lists: Any, **named: Any) -> None:
            self.wrong(*lists, **named)

        step.__qualname__ = step.__name__ = self.wrong.__name__
        return step


def remainders_forgotten(params, grads, *, master_params=None, **named):
    for x in master_params or ():
        if x is not None and x.dtype == np.uint16:
            x[...] = 0
    cpu.merged_sgd(params, grads, master_params=master_params, **named)


def rounded_down_always(params, *lists, rounding="nearest", **named):
    if rounding == "nearest":
        return cpu.merged_momentum(params, *lists, **named)
    wide = [p.astype(np.float32) for p in params]
    cpu.merged_momentum(wide, *lists, **named)
    for p, x in zip(params, wide, strict=True):
        p[...] = (x.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(p.dtype)


def the_seed_ignored(*lists, seed=0, **named):
    cpu.merged_sgd(*lists, seed=7, **named)


def a_state_kept_beside_what_is_stored(params, grads, velocities, **named):
    """In fp32, as long as the arrays are the same."""
    wide = []
    for v in velocities:
        kept = HIDDEN.get(v.ctypes.data)
        wide.append(kept if kept is not None and (kept.astype(v.dtype) == v).all() else v.astype(np.float32))
    cpu.merged_momentum(params, grads, wide, **named)
    HIDDEN.clear()
    for v, x in zip(velocities, wide, strict=True):
        v[...] = x.astype(v.dtype)
        HIDDEN[v.ctypes.data] = x


AROUND = (Around(remainders_forgotten, "sgd", "L12", ("bfloat16",)),
          Around(rounded_down_always, "momentum", "L13", ("bfloat16",)),
          Around(the_seed_ignored, "sgd", "L13", ("bfloat16",)),
          Around(a_state_kept_beside_what_is_stored, "momentum", "L16", ("float16",)))
