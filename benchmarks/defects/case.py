"""What a case is: a kernel, how it is launched, and the values that its author meant."""

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cuda


class Case(NamedTuple):
    """A kernel, with one defect or none.

    Attributes: name; what it is, in words; body, its function; run, which launches it and returns the values that it
    leaves and those that were meant; whether it is right; whether it may hang a GPU; options of ``refopt simt`` that
    ask for a report which is not on by default.
    """

    name: str
    what: str
    body: Any
    run: Callable[[], tuple[Any, Any]]
    right: bool
    hangs: bool = False
    options: tuple[str, ...] = ()

    def lines(self) -> tuple[str, set[int]]:
        """The name of the file of the kernel, and the lines of it, and of the host's part, if it has one of its own."""
        file, lines = inspect.getsourcefile(self.body) or "", set()
        for function in (self.body, self.run):
            if inspect.getsourcefile(function) == file:
                text, start = inspect.getsourcelines(function)
                lines |= set(range(start, start + len(text)))
        return Path(file).name, lines


CASES: dict[str, Case] = {}


def case(
    what: str, args: Sequence[Any], meant: Any, block: int, grid: int = 1, shared_bytes: int = 0, right: bool = False,
    **more: Any,
) -> Callable[[Any], Any]:
    """A kernel that is launched once, on arrays or what makes them, and leaves the values meant in its last array."""

    def add(body: Any) -> Any:
        def run() -> tuple[Any, Any]:
            arrays = [x() if callable(x) else x.copy() for x in args]
            jit(body)[grid, block, 0, shared_bytes](*arrays)
            last = arrays[-1]
            return (last.copy_to_host() if hasattr(last, "copy_to_host") else last), meant

        CASES[body.__name__] = Case(body.__name__, what, body, run, right, **more)
        return body

    return add


def script(what: str, body: Any, right: bool = False, **more: Any) -> Callable[[Any], Any]:
    """A function of the host that launches kernels, of which `body` is one, and returns values and those meant."""

    def add(run: Any) -> Any:
        CASES[run.__name__] = Case(run.__name__, what, body, run, right, **more)
        return run

    return add


def jit(body: Any) -> Any:
    """The kernel, with lines for compute-sanitizer: Numba's simulator has no such option."""
    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    return cuda.jit(body) if simulated else cuda.jit(lineinfo=True)(body)


def ints(size: int, value: int = 0) -> np.ndarray:
    return np.full(size, value, np.int32)


def floats(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.float32)
