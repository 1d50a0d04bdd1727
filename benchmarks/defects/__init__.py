"""Kernels with one defect each, and right ones that look as if they had one, as scripts of `numba.cuda`.

    python -m benchmarks.defects NAME

runs one, and prints whether its result is what its author meant. `benchmarks.detectors` runs them under what is to
report them.
"""

from benchmarks.defects import memory, order, right, waiting, warps
from benchmarks.defects.case import CASES, Case

__all__ = ["CASES", "Case", "memory", "order", "right", "waiting", "warps"]
