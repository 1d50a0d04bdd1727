"""What the executor saw of an answer: an error of its own, who touched an element, and in which line."""

from __future__ import annotations

import linecache
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import refopt
from refopt import gpu, simt

from .arguments import arrays, on_device

PACKAGE = str(Path(refopt.__file__).parent)
SECONDS = 20.0  # of CPU time that one run of an answer may take; a right one takes a few


class Endless(Exception):
    """The threads of an answer come to barriers again and again; `simt.limits` stops only those that do not."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise Endless in what runs for longer; in the main thread alone, and where there are timers of CPU time."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: Any) -> None:
        raise Endless(f"the answer ran for {SECONDS:g} s")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


LESSONS = {
    simt.OutOfBounds: "A GPU says nothing here: it reads, or overwrites, what lies behind the array.",
    simt.DataRace: "Nothing orders these two accesses: a GPU may do either of them first. Threads of a block are "
    "ordered by cuda.syncthreads(), those of a warp by cuda.syncwarp(); several threads that add to one element need "
    "an atomic; or let a single thread write. In a loop, one of the two may be in the next round.",
    simt.BarrierDivergence: "All threads of a block have to come to the same barrier, those without work as well. "
    "On a GPU the block may hang, or go on with what is not there yet.",
    simt.UninitializedRead: "Shared and fresh memory has no value until some thread writes one: on a GPU it is what "
    "was left there.",
    simt.IntegerError: "An integer array holds so many bits: what does not fit is cut off. A division by zero gives "
    "anything.",
    simt.MisalignedAddress: "An access of n bytes has to begin at a multiple of n. Addresses count bytes: fp32 element "
    "i is at `p + 4 * i`.",
    simt.Deadlock: "The thread does not end: does its loop variable move?",
    Endless: "The threads do not end: does their loop variable move?",
}
BLOCKS = (
    "Blocks of a launch are not ordered at all. Does this element belong to both of them? Look at where each block "
    "begins and ends."
)
SHUFFLE = (
    "All lanes of the mask have to come to a shuffle: take it out of the condition, and let the condition choose who "
    "uses the result."
)
ADDRESS = "`p` is an address, a number, not an array: "
INDEXED = {  # what is said of `p[i]`, loaded and stored
    "an index into a number": f"{ADDRESS}`load_float32(p + 4 * i)`.",
    "an assignment by index into a number": f"{ADDRESS}`store_float32(p + 4 * i, value)`.",
}


class Run(NamedTuple):
    """An answer that has run on the executor: its arguments there, what was seen, and what it raised."""

    args: Any
    log: Any
    error: Exception | None


def run(
    launch: Any, answer: Any, args: Any, names: Any, watch: bool = True, schedule: str = "forward",
    compile: bool = False,
) -> Run:
    """Run an answer on the executor. Reports and pictures call arrays by the names of the arguments.

    With ``watch`` it is profiled as well; without, its numbers alone are of interest, which is faster. With ``compile``
    its kernels are compiled to PTX, too, where numba-cuda is installed.
    """
    with gpu.use("executor"):
        device, error = on_device(args), None
        for name, array in arrays(device, names):
            array.name = name
        doubles = "report" if watch else "ignore"
        with simt.observe(watch, watch, schedule, profile=watch, doubles=doubles, compile=compile) as log:
            try:
                with limited():
                    launch(answer, *device)
            except Exception as raised:
                error = raised
    return Run(device, log, error)


def source(filename: str | None, line: int | None) -> str:
    """A line as a report names it: its number in the cell or file, and its text."""
    text = linecache.getline(filename or "", line or 0).strip()
    return f"line {line}: {text}" if text else f"line {line}"


def report(error: Exception) -> str:
    """What the executor says, with lines quoted, and what it means."""
    words = str(error)
    if isinstance(error, simt.CompileError):
        told = [f"Numba does not compile this: {error.reason}.", source(error.filename, error.line)]
        instead = next((text for words, text in INDEXED.items() if error.reason.startswith(words)), error.instead)
        return "\n".join([*told, *([f"Instead: {instead}"] if instead else [])])
    if not isinstance(error, simt.SimtError):
        where = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        words += where
    text = lesson(error)
    return f"{type(error).__name__}: {quoted(words)}" + (f"\n{text}" if text else "")


def lesson(error: Exception) -> str:
    """What to think of when a kernel has raised an error; nothing for most errors of Python's."""
    if isinstance(error, simt.DataRace) and _of_two_blocks(error):
        return BLOCKS
    if isinstance(error, simt.UninitializedRead) and "(rule shuffle-lanes)" in str(error):
        return SHUFFLE
    if isinstance(error, simt.BarrierDivergence) and "a warp operation" in str(error):
        return SHUFFLE
    if isinstance(error, TypeError) and "'function' object is not subscriptable" in str(error):
        return "What is launched as `kernel[blocks, threads](...)` needs `@cuda.jit` above it."
    return next((text for kind, text in LESSONS.items() if isinstance(error, kind)), "")


def _of_two_blocks(race: Any) -> bool:
    """Whether the accesses of a race are those of two blocks of one kernel."""
    one, other = race.first, race.second
    return None not in (one, other) and one.kernel == other.kernel and one.block != other.block


def quoted(text: str) -> str:
    """A report with lines of source in the place of file names, which are temporary ones in a notebook.

    Where a function of refopt's has made the access, the line is that of the kernel which called it.
    """

    def quote(match: re.Match) -> str:
        name, *own = match.groups()
        filename, line = own[2:] if own[2] else own[:2]
        return f"{name}, {source(filename, int(line))}\n    by"

    text = re.sub(r"\n(    |  shown by ).*", "", text)  # the lines as they stand, and the order
    text = re.sub(r"(kernel \w+) at (\S+):(\d+)(?: \(called from (\S+):(\d+)\))?,", quote, text)
    return re.sub(r"(\S+\.py):(\d+)", r"line \2", text)


def own_line(filename: str, line: int) -> str:
    """A line of the answer's, as `source` has it; empty for one of refopt's."""
    return "" if filename.startswith(PACKAGE) else source(filename, line)


def touched(seen: Run, array: Any, index: tuple[int, ...]) -> str:
    """Which thread last wrote an element, and in which line."""
    offset = int(np.ravel_multi_index(index, array.shape)) * array.dtype.itemsize
    for accesses in reversed(seen.log.profile.accesses):
        numbers = [n for n, entry in enumerate(accesses.arrays) if entry.base == array.buffer.base]
        start, end = accesses.start, accesses.start + accesses.of_instruction("nbytes")
        written = np.isin(accesses.array, numbers) & (accesses.of_instruction("kind") != "load")
        rows = np.flatnonzero(written & (start <= offset) & (offset < end))
        if len(rows):
            at, thread = accesses.instructions[accesses.instruction[rows[-1]]], int(accesses.thread[rows[-1]])
            who = f"block {thread // accesses.threads}, thread {thread % accesses.threads}"
            return f"it was last written by {who}" + "".join(f", in {x}" for x in [own_line(at.filename, at.line)] if x)
    return "no thread has written it"


def wrote(seen: Run) -> bool:
    """Whether any thread has written to global memory."""
    return any(
        ((x.of_instruction("kind") != "load") & ~x.of_instruction("shared").astype(bool)).any()
        for x in seen.log.profile.accesses
    )
