"""What a step uses outside of its process: processes that it starts, and hosts that it connects to."""

import sys
from typing import Any

__tracebackhide__ = True  # an error in the hook below is one of whatever line runs

STARTS = {
    "subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.posix_spawn", "os.startfile",
    "socket.connect", "socket.bind", "socket.sendto",
}
COMPILERS = "torch._inductor", "torch.utils.cpp_extension", "triton", "jax", "numba"  # run others to make code
_seen: dict[str, None] = {}
_watched = [False, False]  # whether there is a hook, which cannot be removed; whether it notes anything


def watch() -> bool:
    """Record from now on what this process starts; returns whether it already did."""
    before, _watched[1] = _watched[1], True
    if not _watched[0]:
        sys.addaudithook(_note)
        _watched[0] = True
    return before


def started(on: bool) -> list[str]:
    """The recorded starts, by the names of Python's audit events. Unless ``on``, recording stops."""
    seen, _watched[1] = list(_seen), on
    if not on:
        _seen.clear()
    return seen


def _note(event: str, _: Any) -> None:
    if _watched[1] and event in STARTS and not _is_a_compilers(sys._getframe(1)):
        _seen[event] = None


def _is_a_compilers(frame: Any) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(COMPILERS):
            return True
        frame = frame.f_back
    return False
