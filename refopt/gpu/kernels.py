"""Kernels, and what can be asked of one: its compiled form, its text, and whether the compiler keeps its bits."""

import functools
import os
from collections.abc import Callable
from typing import Any

from refopt.gpu.target import Compilable


class Kernel(Compilable):
    """A kernel that can be listed and checked; `kernel` and `factory` make it."""

    def compiled(self, signature: tuple) -> Any:
        """The Numba kernel for a tuple of Numba argument types, compiled for the GPU in hand."""
        new = signature not in self._compiled
        code = super().compiled(signature)
        if new and (folder := os.environ.get("REFOPT_KERNELS")):
            from refopt.gpu.notes import append

            append(self, signature, folder)
        return code

    def source(self) -> str:
        """All that the kernel runs, as one text in Python that the executor runs with the same bits: `refopt.gpu.show`.

        Raises:
            OSError: a function that it calls has no file that can be read.
            LookupError: it has a value that no text stands for.
        """
        from refopt.gpu.listing.text import listing

        return listing([self]).text

    def inexact(self, *args: Any, double: bool = False, capability: tuple[int, int] = (9, 0)) -> list[Any]:
        """The instructions that break the bits, by lines of Python: `refopt.gpu.exactness.check`. No GPU is needed."""
        from refopt.gpu.exactness import check

        return check(self, *args, double=double, capability=capability)


def kernel(launch_bounds: tuple[int, int] | None = None) -> Callable[[Callable], Kernel]:
    """Make a kernel of a function written against this module's ``cuda``.

    ``launch_bounds``: the most threads of a block, and the blocks that should fit on a multiprocessor at a
    time. From these the compiler knows how many registers it may spend on having many loads under way.
    """
    return lambda function: Kernel(function, launch_bounds)


def factory(make: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Make each kernel of a function of hashable arguments once, and let it know what it was made by."""

    @functools.lru_cache
    @functools.wraps(make)
    def cached(*args: Any) -> Kernel:
        kernel = make(*args)
        kernel.origin = make, args
        return kernel

    return cached
