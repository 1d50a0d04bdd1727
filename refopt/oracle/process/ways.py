"""How a child process can be made: by fork, by a new interpreter, or not at all, with reasons."""

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

FORK, SPAWN, ALONE = "fork", "spawn", "fork, with one thread of PyTorch"
DEVICES = "/dev/nvidia-uvm", "/dev/kfd"  # open in a process that has used a GPU


def ways(task: Any) -> tuple[list[str], list[str]]:
    """The possible ways, the better ones first, and why the others are impossible.

    A forked child has everything of this process without imports, and takes some milliseconds. Fork is impossible once
    a GPU has been used, or JAX has started its threads. A new interpreter must find the step by its name.
    """
    against = {FORK: "; ".join(_against_fork()), SPAWN: "; ".join(_against_spawn(task))}
    return [way for way in (FORK, SPAWN) if not against[way]], [text for text in against.values() if text]


def _against_fork() -> Iterator[str]:
    if sys.platform != "linux":
        yield "processes can be forked safely only on Linux"
    if used := used_device():
        yield f"this process has used a GPU ({used}), which a fork of it cannot"
    bridge = sys.modules.get("jax._src.xla_bridge")
    with contextlib.suppress(Exception):
        if bridge is not None and bridge.backends_are_initialized():
            yield "JAX has started threads, which a fork does not have"


def used_device() -> str:
    """The evidence that this process has used a GPU; empty if it has not."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return "torch.cuda is initialized"
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/self/fd/{fd}")
                if path.startswith(DEVICES):
                    return f"it has {path} open"
    return ""


def _against_spawn(task: Any) -> Iterator[str]:
    if sys.platform != "linux" or not sys.executable:
        yield "a new interpreter is started only on Linux"
        return
    try:
        data = pickle.dumps(task)
    except Exception as error:
        text = " ".join(str(error).split())
        yield f"a new interpreter cannot import the step ({type(error).__name__}: {text})"
        return
    if b"__main__" in data:
        yield "a new interpreter cannot import the step, which is in __main__"
