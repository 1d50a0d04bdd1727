"""The running thread. The scheduler writes it at every switch; everything else reads it."""

from __future__ import annotations

import threading
from threading import get_ident
from types import CodeType
from typing import Any

from .errors import LaunchError

# This state is global, so Python threads take turns at launches, copies and whatever orders them.
one_at_a_time = threading.RLock()


def _outside(what: str) -> Any:
    raise LaunchError(f"{what} is defined inside a kernel only")


class Dim3:
    """Three extents or coordinates; unset outside launches."""

    __slots__ = ("x", "y", "z")
    x: int
    y: int
    z: int

    def __getattr__(self, name: str) -> Any:  # reached only while the slots are unset
        if name in Dim3.__slots__:
            _outside("a thread or block index")
        raise AttributeError(name)

    def set(self, xyz: tuple[int, int, int]) -> None:
        """Set all three."""
        self.x, self.y, self.z = xyz

    def clear(self) -> None:
        """Unset all three."""
        del self.x, self.y, self.z

    def __iter__(self) -> Any:
        return iter((self.x, self.y, self.z))

    def __repr__(self) -> str:
        try:
            return f"({self.x}, {self.y}, {self.z})"
        except LaunchError:
            return "(unset outside kernels)"


class NoThread:
    """A placeholder for the running thread outside launches: any use of it is an error."""

    def __getattr__(self, name: str) -> Any:
        return _outside("this operation")


NO_THREAD = NoThread()


class Current:
    """The running thread, block and launch, the observer if there is one, and the claimed device."""

    __slots__ = ("as_numba", "block", "claim", "kernel_code", "lanes", "launch", "observer", "runner", "thread")

    def __init__(self) -> None:
        self.observer: Any = None
        self.claim: Any  # by `claims`
        self.as_numba = 0  # how many times the executor currently replaces Numba
        self.reset()

    def reset(self) -> None:
        """No launch is running."""
        self.thread: Any = NO_THREAD
        self.block: Any = NO_THREAD
        self.launch: Any = NO_THREAD
        self.lanes: Any = None  # the launch, if it runs by lanes
        self.kernel_code: CodeType | None = None
        self.runner: int | None = None  # the Python thread that launched

    @property
    def inside(self) -> bool:
        """Whether the caller is part of the running kernel, not another Python thread."""
        return self.runner is not None and self.runner == get_ident()


current = Current()
threadIdx, blockIdx, blockDim, gridDim = Dim3(), Dim3(), Dim3(), Dim3()
