"""Instructions that kernels use and Numba lacks: a fence between blocks, overlapping launches; and the square root."""

import math

import numpy as np

from refopt.gpu.target import cuda, intrinsic


@intrinsic("fence.acq_rel.gpu;", "", "", "")
def fence():
    """Order memory between blocks around an atomic: a lighter ``cuda.threadfence()``."""
    cuda.threadfence()


# The compute capability from which launches may overlap. The two functions are hints: on older GPUs a launch starts
# when the previous one has ended.
OVERLAPS = 9, 0


@intrinsic("griddepcontrol.launch_dependents;", "", "", "", since=OVERLAPS, before="")
def let_next_launch_begin():
    """Let a launch prepared with ``overlaps`` start its blocks; they wait where they need this one's results."""


@intrinsic("griddepcontrol.wait;", "", "", "", since=OVERLAPS, before="")
def wait_for_previous_launch():
    """Wait until the previous launch is complete and its writes are visible."""


def sqrt(x: np.floating) -> np.floating:
    """The square root, rounded once: ``sqrt.rn`` in the kernel."""
    return math.sqrt(x)  # type: ignore[return-value]


sqrt.__refopt_numba__ = lambda: math.sqrt  # type: ignore[attr-defined]
cuda.jit(device=True)(sqrt)
