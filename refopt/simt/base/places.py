"""The source location of the running thread: the line of its kernel, and its caller."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from .errors import Place, SimtError, Unsupported
from .state import current

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_NUMPY, _PYTHON = (os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (np, os))


@cache
def is_internal(filename: str) -> bool:
    """Whether a source file belongs to the executor itself."""
    return os.path.abspath(filename).startswith(_PACKAGE)


@cache
def is_kernels(filename: str) -> bool:
    """Whether a file is user code, which a kernel would compile: not the executor's, NumPy's or Python's own."""
    installed = any(f"{folder}-packages{os.sep}" in filename for folder in ("site", "dist"))
    of_python = filename.startswith("<frozen ") or (filename.startswith(_PYTHON) and not installed)
    return not (is_internal(filename) or filename.startswith(_NUMPY) or of_python)


class Site(NamedTuple):
    """A point in source code that is cheap to record: line numbers are computed only when it is reported."""

    code: CodeType
    instruction: int
    kernel_code: CodeType | None
    kernel_instruction: int

    @staticmethod
    def of(frame: FrameType | None) -> Site:
        """The innermost point outside the executor, and the point in the kernel that leads to it."""
        kernel = current.kernel_code
        if frame is not None and frame.f_code is kernel:
            return Site(frame.f_code, frame.f_lasti, None, 0)
        while frame is not None and is_internal(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return Site(Site.of.__code__, 0, None, 0)
        code, instruction = frame.f_code, frame.f_lasti
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not kernel:
            outer = outer.f_back if kernel is not None else None
        if outer is None or outer is frame:
            return Site(code, instruction, None, 0)
        return Site(code, instruction, kernel, outer.f_lasti)

    def place(self, kernel: str | None, block: Any = None, thread: Any = None) -> Place:
        """The point as a `Place`, for the given thread."""
        via = None
        if self.kernel_code is not None:
            via = f"{self.kernel_code.co_filename}:{_line(self.kernel_code, self.kernel_instruction)}"
        return Place(kernel, self.code.co_filename, _line(self.code, self.instruction), block, thread, via)


def _line(code: CodeType, instruction: int) -> int:
    for start, stop, line in code.co_lines():
        if start <= instruction < stop and line is not None:
            return line
    return code.co_firstlineno


def here(frame: FrameType | None = None) -> Place:
    """The place of the running thread (or of the host, outside launches)."""
    site = Site.of(frame or sys._getframe(1))
    if not current.inside:
        return site.place(None)
    thread = current.thread
    return site.place(current.launch.name, thread.block.index, thread.index)


_DEBUGGERS = "bdb", "cmd", "code", "pydevd", "_pydevd", "debugpy", "IPython"  # prefixes of their modules' names


def is_nobodys(frame: FrameType | None) -> bool:
    """Whether no thread makes an access: a debugger evaluates an expression, in a kernel or after its end."""
    if current.runner is None:
        return True
    while frame is not None and frame.f_code is not current.kernel_code:
        if str(frame.f_globals.get("__name__")).startswith(_DEBUGGERS):
            return True
        frame = frame.f_back
    return False


def report(error: SimtError) -> None:
    """Raise the error for a defect, or list it if the observer continues after one."""
    if current.observer is None:
        raise error
    current.observer.report(error)


def unsupported(name: str, why: str = "", among: Iterable[str] = ()) -> Unsupported:
    """The error for a missing feature: its name, a similar name that exists, and where it was requested."""
    near = _nearest(name.rpartition(".")[2].lower(), tuple(among))
    why = f"did you mean {near}?" if near else why
    return Unsupported(f"the executor has no {name}{f': {why}' if why else ''}", here())


class Namespace(type):
    """The type of classes that stand for namespaces of `cuda`."""

    def __getattr__(cls, name: str) -> Any:
        raise unsupported(f"cuda.{cls.__name__}.{name}", among=vars(cls))


@cache  # a kernel's modules are asked for the same few names, again and again
def _nearest(own: str, among: tuple[str, ...]) -> str:
    """The name most like a name in lower case; empty if none is like it."""
    by_case = {one.lower(): one for one in among if not one.startswith("_")}
    longer = [one for one in by_case if len(own) > 3 and one.startswith(own)]
    for near in longer[:1] or difflib.get_close_matches(own, by_case, 1, 0.8):
        if near == own or not own.endswith(near):  # bfloat16, float16
            return by_case[near]
    return ""
