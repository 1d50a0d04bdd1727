"""Kernels, with their compiled form and a check that compiling keeps their bits."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from refopt.gpu import cache, notes
from refopt.gpu.compiler import Linked
from refopt.gpu.compiling import INSTALL, compiling, no_compiler
from refopt.gpu.machine import Properties, require
from refopt.gpu.target import Compilable, oldest


class Kernel(Compilable):
    """A kernel that can be run on a GPU and checked; `kernel` and `factory` make it."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._linked: dict[tuple, Linked] = {}

    def linked(self, signature: tuple, machine: Properties) -> Linked:
        """The kernel for the types of its arguments and a GPU: from this process, from the cache, or compiled now.

        Raises:
            RuntimeError: the machine lacks an instruction of the kernel; or there is no compiler, and the message says
                how to install one.
        """
        key = signature, machine.capability
        if key not in self._linked:
            self.require(machine)
            self._linked[key] = self._kept_or_compiled(signature, machine)
            if folder := os.environ.get("REFOPT_KERNELS"):
                notes.append(self, signature, folder)
        return self._linked[key]

    def _kept_or_compiled(self, signature: tuple, machine: Properties) -> Linked:
        key = cache.key(self, signature, machine.capability)
        if code := cache.read(key):
            cache.origins["kept"] += 1
            return code
        if reason := no_compiler():
            raise RuntimeError(f"{self.name}: expected a compiler ({INSTALL}), got none: {reason}")
        require(self.name, machine, oldest())
        if not cache.origins["compiled"] and sys.stderr.isatty():
            print("\r\033[Krefopt: compiling kernels, which takes some seconds", file=sys.stderr, flush=True)
        cache.origins["compiled"] += 1
        wanted = self.wanted(machine.capability)
        with compiling(wanted) as made:
            code = made.linked(self.form(), signature, wanted)
        cache.write(key, self.name, code)
        return code

    def inexact(self, *args: Any, double: bool = False, capability: tuple[int, int] = (9, 0)) -> list[Any]:
        """The instructions that change bits, by lines of Python: `refopt.gpu.exactness.check`. No GPU is needed."""
        from refopt.gpu.exactness import check

        return check(self, *args, double=double, capability=capability)


def kernel(launch_bounds: tuple[int, int] | None = None) -> Callable[[Callable], Kernel]:
    """Make a kernel of a function that uses ``refopt.gpu.target.cuda``.

    ``launch_bounds``: the most threads of a block, and the blocks that should fit on a multiprocessor at a
    time. They tell the compiler how many registers it may use to have many loads in flight.
    """
    return lambda function: Kernel(function, launch_bounds)


def factory(make: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Make a function with hashable arguments build each kernel once, and record itself as the kernel's origin."""

    @functools.lru_cache
    @functools.wraps(make)
    def cached(*args: Any) -> Kernel:
        kernel = make(*args)
        kernel.origin = make, args
        return kernel

    return cached
