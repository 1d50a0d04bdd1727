"""Side effects of a step: what it calls, what it changes elsewhere, and what it changes late.

This runs in the step's process, and returns what can be sent: `observe` returns a `Seen`.
"""

import contextlib
import copy
import functools
import gc
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.exact.cases import Case, Outcome, copied
from refopt.oracle.observing import starts
from refopt.oracle.observing.callers import Callers, watch_threads
from refopt.oracle.observing.surroundings import Surroundings, changes, surroundings
from refopt.oracle.running import alike
from refopt.oracle.subject import Subject

__all__ = ["Seen", "Surroundings", "observe", "starts", "surroundings", "watch_threads"]

REST, LONGER = 0.06, 0.3  # seconds after which a call's work must have ended; with other threads
PREFIXES = "_fused_", "_multi_tensor_", "_single_tensor_"  # of PyTorch's functions for the same step
THREADS = 2.0  # seconds to wait for threads that still run


class Seen(NamedTuple):
    """The observations of a call.

    Attributes:
        got: its results when it returned.
        later: the same arrays some time later; ``None`` if they have not changed, or cannot be read again.
        called: which functions of refopt's reference it called, and how it inspected its callers.
        changed: what has changed in its process.
        altered: which numbers it has altered.
        paths: which of a library's alternative functions ran; ``None`` if there are none.
    """

    got: Outcome
    later: Outcome | None
    called: tuple[str, ...]
    changed: tuple[str, ...]
    altered: tuple[str, ...]
    paths: tuple[str, ...] | None


def observe(subject: Subject, case: Case, before: Surroundings | None = None, rest: bool = False) -> Seen:
    """Let a step take a case, whose arrays it may write, and observe its side effects.

    Args:
        before: the initial state of its process; by default the current one.
        rest: wait until all work has ended, to observe late changes.
    """
    before = surroundings() if before is None else before
    numbers = [copy.deepcopy(step) for step in case.steps]
    threads = set(threading.enumerate())
    with np.errstate(all="ignore"):
        settings = np.geterr()
        with paths_of(subject) as ran, Callers() as callers:
            got = subject.run(case)
        changed = ["np.geterr(): expected unchanged, got other settings"] if np.geterr() != settings else []
    if callers.removed:
        changed.append("sys.setprofile: expected the same profiler as before, got another")
    changed += changes(before)
    got, later = copied(got), None
    if rest:
        _wait(threads)
        later = _later(subject, got)
    paths = tuple(ran) if known_paths(subject) else None
    return Seen(got, later, tuple(callers.seen), tuple(changed), tuple(_altered(numbers, case.steps)), paths)


def _wait(threads: set[threading.Thread]) -> None:
    """Wait until remaining threads have ended and timers have expired, and collect garbage."""
    until = time.monotonic() + THREADS
    for thread in set(threading.enumerate()) - threads:
        if not thread.daemon or thread.name.startswith("Thread-"):
            thread.join(max(0.0, until - time.monotonic()))
    gc.collect()
    time.sleep(LONGER if threading.active_count() > 1 else REST)
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()


def _later(subject: Any, got: Outcome) -> Outcome | None:
    """The current contents of a result's arrays, if any has changed."""
    again = getattr(subject, "again", None)
    if again is None:
        return None
    now = again()
    return None if alike(got, now) else copied(now)


def _altered(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Names of numbers that have changed."""
    names = {name: None for step, known in zip(now, before, strict=True) for name in known
             if not _equal(known[name], step.get(name))}
    return list(names)


def _equal(x: Any, y: Any) -> bool:
    return type(x) is type(y) and np.asarray(x).tobytes() == np.asarray(y).tobytes()


@contextlib.contextmanager
def paths_of(subject: Any) -> Iterator[dict[str, None]]:
    """Note the functions of an optimizer's module that run while it is entered."""
    ran: dict[str, None] = {}
    before = known_paths(subject)

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*arguments: Any, **named: Any) -> Any:
            ran[name] = None
            return function(*arguments, **named)

        return noted

    for (module, name), function in before.items():
        setattr(sys.modules[module], name, noting(name, function))
    try:
        yield ran
    finally:
        for (module, name), function in before.items():
            setattr(sys.modules[module], name, function)


def known_paths(subject: Any) -> dict[tuple[str, str], Callable[..., Any]]:
    """The functions for a step in the modules of an optimizer's class and its base classes."""
    classes = getattr(getattr(subject, "kind", None), "__mro__", ())
    modules = {x.__module__ for x in classes} & {*sys.modules}
    named = ((module, name, x) for module in sorted(modules) for name, x in vars(sys.modules[module]).items())
    return {(module, name): x for module, name, x in named if name.startswith(PREFIXES) and inspect.isfunction(x)}
