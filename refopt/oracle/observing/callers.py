"""Forbidden calls in a step: calls of the reference that it is checked against, and inspection of its callers."""

import os
import sys
import threading
from types import FrameType
from typing import Any

import numpy as np

import refopt
from refopt.oracle.observing import starts

ROOT = os.path.dirname(refopt.__file__) + os.sep
REFERENCE = tuple(ROOT + part + os.sep for part in ("cpu", "oracle"))
AROUND = tuple(os.path.join(ROOT, "oracle", part, "") for part in ("observing", "process", "subjects"))  # steps
LIBRARIES = tuple(os.path.dirname(path) + os.sep for path in (os.__file__, os.path.dirname(np.__file__)))
# Functions that show other frames or objects, by module.
LOOKING = {
    "sys": {"_getframe", "_current_frames", "_getframemodulename"}, "gc": {"get_objects", "get_referrers"},
    "inspect": {"stack", "currentframe", "getouterframes", "trace"}, "traceback": {"walk_stack", "extract_stack"},
}
MOST = 3  # calls to name
_entered: list["Callers"] = []


def watch_threads() -> None:
    """Also watch threads that are started from now on, while calls are watched."""
    threading.setprofile(_in_thread)


def _in_thread(frame: FrameType, event: str, argument: Any) -> None:
    if _entered:
        _entered[-1].note(frame, event, argument)


class Callers:
    """While it is entered, notes calls that a step's own code makes of refopt's reference, or to inspect the stack.

    Attributes:
        seen: the calls.
        removed: whether the step replaced the profiler.
    """

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self.removed = False

    def __enter__(self) -> "Callers":
        self.before = sys.getprofile()
        if self.before is None:
            watch_threads()
            sys.setprofile(self.note)
            _entered.append(self)
        self.watched = starts.watch()
        return self

    def __exit__(self, *_: object) -> None:
        for event in starts.started(self.watched):
            self._note(f"{event}, which uses another process")
        if self.before is None:
            self.removed = sys.getprofile() != self.note
            sys.setprofile(None)
            _entered.remove(self)

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """A profile function for `sys.setprofile`."""
        if event == "call":
            self._called(frame)
        elif event == "c_call":
            module, name = getattr(argument, "__module__", None), getattr(argument, "__name__", "")
            if name in LOOKING.get(module or "", ()) and _is_own(frame):
                self._note(f"{module}.{name}, which shows its callers")

    def _called(self, frame: FrameType) -> None:
        path = frame.f_code.co_filename
        back = frame.f_back
        if back is None:
            return
        if path.startswith(REFERENCE):
            if not path.startswith(AROUND) and not back.f_code.co_filename.startswith(ROOT):
                module = str(frame.f_globals.get("__name__"))
                self._note(f"{module}.{frame.f_code.co_qualname}, the reference itself")
        elif path.startswith(LIBRARIES):
            module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
            if name in LOOKING.get(module, ()) and _is_own(back):
                self._note(f"{module}.{name}, which shows its callers")

    def _note(self, what: str) -> None:
        if len(self.seen) < MOST:
            self.seen[what] = None


def _is_own(frame: FrameType) -> bool:
    """Whether code is from neither refopt nor a library."""
    path = frame.f_code.co_filename
    return not path.startswith((ROOT, *LIBRARIES, "<frozen"))
