"""The process state that a step must leave unchanged: settings, generators, handlers, functions."""

import contextlib
import gc
import hashlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

WATCHED = "builtins", "math", "time", "os", "random", "gc", "numpy", "numpy.linalg", "numpy.random"
MISSING = object()
TORCH = {
    "default dtype": "get_default_dtype", "number of threads": "get_num_threads",
    "grad mode": "is_grad_enabled", "deterministic algorithms": "are_deterministic_algorithms_enabled",
    "float32 matmul precision": "get_float32_matmul_precision",
}


class Surroundings(NamedTuple):
    """The state of a process.

    Attributes:
        settings: by name.
        environment: its variables.
        blanket: how many filters ignore all warnings.
        names: by module, what its names stand for.
    """

    settings: dict[str, Any]
    environment: dict[str, str]
    blanket: int
    names: dict[str, dict[str, Any]]


def surroundings() -> Surroundings:
    """The current state of this process."""
    names: dict[str, dict[str, Any]] = {}
    for module, of in sys.modules.items():
        ours = module.startswith("refopt.") or module == "refopt"
        if of is not None and (ours or module in WATCHED):
            names[module] = {name: x for name, x in vars(of).items() if name[0] != "_" and (ours or callable(x))}
    return Surroundings(dict(_settings()), dict(os.environ), _blanket(), names)


def changes(before: Surroundings) -> Iterator[str]:
    """The changes since then, as text."""
    now = dict(_settings())
    for name, value in before.settings.items():
        if name in now and now[name] != value:
            yield f"{name}: expected {_short(value)} unchanged, got {_short(now[name])}"
    for entry, text in before.environment.items():
        if os.environ.get(entry) != text:
            yield f"os.environ[{entry!r}]: expected unchanged, got another value"
    if _blanket() > before.blanket:
        yield "warnings.filters: expected unchanged, got one more that ignores all warnings"
    for module, names in before.names.items():
        there = vars(sys.modules[module]) if module in sys.modules else {}
        for name, value in names.items():
            if there.get(name, MISSING) is not value:
                yield f"{module}.{name}: expected unchanged, got {'another' if name in there else 'none'}"


def _settings() -> Iterator[tuple[str, Any]]:
    state = np.random.get_state(legacy=False)["state"].values()
    plain = [x.tobytes() if isinstance(x, np.ndarray) else x for x in state]  # printing an array takes long
    yield "np.random", _digest(repr(plain).encode())
    yield "random", _digest(repr(random.getstate()).encode())
    yield "gc.isenabled()", gc.isenabled()
    yield "sys.getrecursionlimit()", sys.getrecursionlimit()
    yield "sys.gettrace()", sys.gettrace()
    yield "os.getcwd()", os.getcwd()
    yield "signal handlers", {s.name: repr(signal.getsignal(s)) for s in signal.Signals}
    yield "signal.getitimer()", signal.getitimer(signal.ITIMER_REAL)[0] > 0
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_default_dtype"):
        for name, getter in TORCH.items():
            with contextlib.suppress(Exception):
                yield f"torch's {name}", getattr(torch, getter)()
        yield "torch's generator", _digest(torch.get_rng_state().numpy().tobytes())  # type: ignore[union-attr]


def _blanket() -> int:
    """How many filters ignore all warnings."""
    return sum(1 for x in warnings.filters if x[1] is None and x[2] is Warning and x[3] is None and x[0] == "ignore")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 80 else f"{text[:77]}..."
