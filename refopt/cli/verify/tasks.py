"""The tasks of a verification, run in order; on the executor by as many processes as there are processors."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import wait as futures_wait
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from refopt import gpu
from refopt.catalog import KNOWN
from refopt.catalog.data import gram_of
from refopt.catalog.workloads import Workload
from refopt.cli.verify import around, compare
from refopt.cli.verify.compare import Report, Row

TICK = 0.2  # seconds
SPEED = 25e6  # elements of arrays a second in a process, roughly, as measured on a server's processor
APART = 8  # how much longer a form takes that launches for each tensor, in merged ones, at most
_stages: list[Any] = []  # in a worker, the queue of stages that begin


class Task(NamedTuple):
    """A routine, or an operation around a step, in one dtype configuration; ``forms`` are a routine's."""

    name: str
    dtype: str
    workload: Workload
    forms: tuple[str, ...] = ()

    def stages(self, steps: int) -> int:
        """How often `rows` reports."""
        routine = KNOWN.get(self.name)
        return 1 + steps * (1 + len(self.forms)) * (1 + bool(gram_of(routine, self.dtype))) if routine else 1

    def work(self, steps: int) -> float:
        """Roughly how many elements of arrays it reads; products of matrices read them once for each row."""
        routine = KNOWN.get(self.name)
        if routine is None:
            return 8.0 * self.workload.elements
        arrays = sum(not (slot.optional or slot.scalar) for slot in routine.slots)
        apart = sum(not routine.forms[form].merged for form in self.forms)
        iterates, tensors = routine.matrix_arguments, self.workload.tensors
        rows = (min(x.shape[0], x.elements // x.shape[0]) if iterates else 1 for x in tensors)
        elements = sum(x.elements * n for x, n in zip(tensors, rows, strict=True))
        return float(elements * arrays * (self.stages(steps) + APART * steps * apart))

    def rows(self, machine: Any, steps: int, report: Report) -> Iterator[Row]:
        """Its rows. ``report`` is called with each stage as it begins."""

        def named(stage: str) -> None:
            report(f"{self.name} {self.dtype} {stage}")

        if self.name in around.AROUND:
            named("")
            return around.AROUND[self.name](self.workload, self.dtype, machine)
        return compare.rows(KNOWN[self.name], self.workload, self.dtype, self.forms, machine, steps, named)


def seconds(tasks: Sequence[Task], machine: Any, steps: int) -> float:
    """Roughly how long the executor takes for whole models; 0 for less, and on a GPU."""
    if machine.name != "executor" or all(compare.counts(machine, task.workload) for task in tasks):
        return 0.0
    return sum(task.work(steps) for task in tasks) / SPEED / processes(tasks, machine)


def processes(tasks: Sequence[Task], machine: Any) -> int:
    """How many processes run the tasks."""
    parallel = machine.name == "executor" and hasattr(os, "sched_getaffinity")  # where fork is also safe
    workers = min(len(os.sched_getaffinity(0)), len(tasks)) if parallel else 1
    whole = any(task.workload.elements > compare.COUNTED for task in tasks)  # few whole models fit into memory
    return min(workers, 2) if whole else workers


def all_rows(
    tasks: Sequence[Task], machine: Any, steps: int, report: Report
) -> Generator[tuple[Task, Row], None, None]:
    """The rows of all tasks, in order. ``report`` is called with each stage as it begins, and with "" meanwhile."""
    workers = processes(tasks, machine)
    if workers < 2:
        for task in tasks:
            for row in task.rows(machine, steps, report):
                yield task, row
        return
    with _processes(workers) as (pool, stages):
        with _held_back():  # until the workers have started, which ignore them
            futures = [pool.submit(_rows_here, task, steps) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            ended = False
            while not ended:
                ended = bool(futures_wait([future], TICK).done)
                report("")
                while not stages.empty():
                    report(stages.get())
            for row in future.result():
                yield task, row


def _rows_here(task: Task, steps: int) -> list[Row]:
    with gpu.use("executor") as machine:
        return list(task.rows(machine, steps, _stages[0].put))


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Worker processes, which end with the block: after their work, or immediately if the block fails.

    Also the queue of the stages that they begin.
    """
    others, context = set(multiprocessing.active_children()), multiprocessing.get_context("fork")
    stages = context.SimpleQueue()
    pool = ProcessPoolExecutor(workers, context, _start, (stages,))
    try:
        yield pool, stages
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


def _start(stages: Any) -> None:
    """Start a worker: it leaves Ctrl-C to its parent, and ends when the parent ends, for whatever reason."""
    _stages.append(stages)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
