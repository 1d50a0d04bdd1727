"""The tasks of a verification, run in order; on the executor by as many processes as there are processors."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from refopt import gpu
from refopt.catalog import KNOWN
from refopt.catalog.workloads import Workload
from refopt.cli.verify import around, compare
from refopt.cli.verify.compare import Row


class Task(NamedTuple):
    """A routine, or an operation around a step, in one dtype configuration; ``forms`` are a routine's."""

    name: str
    dtype: str
    workload: Workload
    forms: tuple[str, ...] = ()

    def rows(self, machine: Any, steps: int, report: Callable[[str], None] = lambda stage: None) -> Iterator[Row]:
        """Its rows. ``report`` is called with each stage."""
        if self.name in around.AROUND:
            report(f"{self.dtype} {self.name}")
            return around.AROUND[self.name](self.workload, self.dtype, machine)
        return compare.rows(KNOWN[self.name], self.workload, self.dtype, self.forms, machine, steps, report)


def all_rows(
    tasks: Sequence[Task], machine: Any, steps: int = 2, report: Callable[[str], None] = lambda stage: None
) -> Generator[tuple[Task, Row], None, None]:
    """The rows of all tasks, in order."""
    parallel = machine.name == "executor" and hasattr(os, "sched_getaffinity")  # where fork is also safe
    workers = min(len(os.sched_getaffinity(0)), len(tasks)) if parallel else 1
    if any(task.workload.elements > compare.COUNTED for task in tasks):  # few whole models fit into memory
        workers = min(workers, 2)
    if workers < 2:
        for task in tasks:
            for row in task.rows(machine, steps, report):
                yield task, row
        return
    report(f"{workers} at a time")
    with _processes(workers) as pool:
        with _held_back():  # until the workers have started, which ignore them
            futures = [pool.submit(_rows_here, task, steps) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            for row in future.result():
                yield task, row


def _rows_here(task: Task, steps: int) -> list[Row]:
    with gpu.use("executor") as machine:
        return list(task.rows(machine, steps))


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, which end with the block: after their work, or immediately if the block fails."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
            process.join()
        raise
    pool.shutdown()


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Defer signals that end the command until the end of the block; processes started in it have them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start() -> None:
    """Start a worker: it leaves Ctrl-C to its parent, and ends when the parent ends, for whatever reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
