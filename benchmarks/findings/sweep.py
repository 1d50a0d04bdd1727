"""All optimizers, some at a time, each in a process of its own that is ended in time."""

import datetime
import os
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.findings.judge import judged
from benchmarks.findings.subjects import Subject

LIMIT = 150.0  # seconds for one
MEMORY = 8 * 2**30  # bytes, after which an allocation fails


def sweep(
    subjects: Sequence[Subject], jobs: int, limit: float = LIMIT, judge: Callable[[Subject], Any] = judged,
    preload: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """A row for each subject, as they come; of one that ends its process, or takes too long, that.

    Args:
        subjects, judge: what is tried, and what makes a row of one.
        jobs: how many at a time.
        limit: seconds that one may take.
        preload: modules that are imported once, for all.
    """
    context = get_context("forkserver")  # which has imported what takes long, and has no threads that a fork would lose
    context.set_forkserver_preload(["benchmarks.findings.judge", "refopt.oracle", *preload])
    waiting, running = list(reversed(subjects)), dict[Any, tuple[Subject, Any, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            subject = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(theirs, judge, subject))
            process.start()
            theirs.close()
            running[ours] = subject, process, time.monotonic() + limit
        first = min(end for *_, end in running.values())
        ready = wait(list(running), max(0.0, first - time.monotonic()))
        late = [pipe for pipe, (*_, end) in running.items() if pipe not in ready and end <= time.monotonic()]
        for pipe in [*ready, *late]:
            subject, process, _ = running.pop(pipe)
            yield _row(pipe, subject, process, limit, pipe in late)


def _child(pipe: Connection, judge: Callable[[Subject], Any], subject: Subject) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        pipe.send(judge(subject))
    except Exception as error:  # whatever somebody's module raises
        pipe.send({"library": subject.library, "subject": str(subject), "error": f"{type(error).__name__}: {error}"})


def _row(pipe: Any, subject: Subject, process: Any, limit: float, late: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"library": subject.library, "subject": str(subject)}
    try:
        row = row | {"error": f"not done in {limit:.0f} s"} if late else pipe.recv()
    except EOFError:
        process.join()
        row["error"] = f"the end of its process, with exit code {process.exitcode}"
    if late:
        process.kill()
    process.join()
    pipe.close()
    return row | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}  # of others, a record keeps its rows
