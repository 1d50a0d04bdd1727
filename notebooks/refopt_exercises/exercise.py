"""`Exercise`: a specification, cases, and how an answer to it is judged."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from refopt import gpu

from . import solution, speed, witness
from .arguments import Difference, arrays, copied, difference, on_device, on_host
from .picture import picture
from .requests import requests
from .score import NAMES, Score, dearest, repeated, score, table
from .verdict import Verdict, right, wrong

SCORES = Path(__file__).parent / "scores.json"


def call(answer: Any, *args: Any) -> None:
    """Launch an answer that launches its kernels itself."""
    answer(*args)


def compiled(results: dict[str, str]) -> str:
    """What came of compiling the kernels of an answer, in a line."""
    reasons = {name: result for name, result in results.items() if result.startswith("not")}
    if not reasons:
        return f"Compiled to PTX: {', '.join(results)}."
    name, reason = next(iter(reasons.items()))
    return f"{name}: {reason}."


def doubles(found: Any) -> str:
    """What is said of operations in fp64 among those of fp32."""
    lines = "\n".join(f"{witness.source(x.filename, x.line)} ({x.operands})" for x in found)
    advice = "A Python number, even an integer, turns fp32 arithmetic into fp64; np.float32(...) does not."
    return f"computes in fp64, at a fraction of the speed:\n{lines}\n{advice}"


class Exercise:
    """A specification in NumPy, cases, and how an answer is launched."""

    def __init__(
        self, name: str, spec: Callable, cases: dict[str, tuple], launch: Callable = call, limits: Sequence[str] = (),
        ignore: Sequence[str] = (), on_gpu: bool = True, large: Callable[[], tuple] | None = None,
    ) -> None:
        """Define an exercise.

        Args:
            name: of its solution file.
            spec: a function that changes arrays of NumPy in place, as the answer is to change those of the device.
            cases: arguments of ``spec``, by what is special about them. The first is scored, and drawn.
            launch: takes the answer and arguments on the device; by default it calls the answer with them.
            limits: columns of the score in which an answer may cost no more than the reference solution.
            ignore: arguments whose arrays may hold anything after the step.
            on_gpu: whether one GPU can run it.
            large: makes arguments for which an answer is timed on a GPU; without it none is.
        """
        self._on_gpu, self._ignored, self._large = on_gpu, frozenset(ignore), large
        self.name, self.spec, self.cases, self.launch, self.limits = name, spec, cases, launch, tuple(limits)
        self.names = list(inspect.signature(spec).parameters)

    @cached_property
    def reference(self) -> Score:
        """What the reference solution costs in the first case, by the record, which `generate` writes."""
        return Score(*json.loads(SCORES.read_text())[self.name])

    def cost(self, answer: Any) -> Score:
        """What an answer costs in the first case."""
        return score(self._run(answer, self._first).log)

    def _run(self, answer: Any, args: tuple, **options: Any) -> witness.Run:
        return witness.run(self.launch, answer, args, self.names, **options)

    @property
    def _first(self) -> tuple:
        return next(iter(self.cases.values()))

    def check(self, answer: Any) -> Verdict:
        """Judge an answer: on the executor, watched, and if there is a GPU, by its bits there.

        Args:
            answer: what is to be filled in: a kernel, or a function that launches kernels.
        """
        first = None
        for title, args in self.cases.items():
            seen = self._run(answer, args)
            first = first or seen
            if words := self._fault(seen, title, args):
                return wrong(words)
        assert first is not None
        for title, args in self.cases.items():
            title += ", with blocks and threads in reverse order"
            if words := self._of_numbers(answer, title, args, schedule="reverse"):
                return wrong(words)
        costs = score(first.log)
        scores = "\n".join(filter(None, [table(costs, self.reference), repeated(first.log)]))
        for column in self.limits:
            if getattr(costs, column) > getattr(self.reference, column):
                words = f"The numbers are right, but there are too many {NAMES.get(column, column)}.\n{scores}"
                return wrong(f"{words}\n{dearest(first.log, column)}")
        seen = self._run(answer, self._first, watch=False, compile=True)
        if words := self._raised(seen, "compiled for a GPU"):
            return wrong(words)
        scores += "\n" + compiled(seen.log.compiled)
        if self._on_gpu and gpu.device().name == "gpu":
            if words := self._bits_on_gpu(answer):
                return wrong(words)
            scores += self._speed_on_gpu(answer)
        return right(scores)

    def compare(self, answer: Any) -> Verdict:
        """Compare numbers, and nothing else, on the executor: what a test finds that watches no access."""
        for title, args in self.cases.items():
            if words := self._of_numbers(answer, title, args):
                return wrong(words)
        return right("All numbers are as expected, in this order of threads.")

    def picture(self, answer: Any, *only: str, launch: int = 0) -> Any:
        """Draw which threads of an answer touch which elements, in the first case.

        Args:
            answer: as of `check`.
            only: names of the arrays to draw, such as ``params[0]``; all by default, shared ones too.
            launch: which of its launches; -1 is the last.
        """
        return picture(self._run(answer, self._first), self.names, only, launch)

    def requests(self, answer: Any, name: str, launch: int = 0) -> Any:
        """Draw what one warp accesses at a time, in the first case.

        Args:
            answer: as of `check`.
            name: of an array, or ``shared``.
            launch: as of `picture`.
        """
        return requests(self._run(answer, self._first), name, launch)

    def differences(self, answer: Any) -> Verdict:
        """How many elements of each array differ, in each case: a table."""
        rows, total = [], 0
        for title, args in self.cases.items():
            seen = self._run(answer, args, watch=False)
            if words := self._raised(seen, title):
                return wrong(words)
            counts = {name: found.wrong if found else 0 for name, found in self._compared(args, seen.args)}
            rows.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
            total += sum(counts.values())
        return Verdict(not total, "\n".join(["Elements that differ:", *rows]))

    def _fault(self, seen: witness.Run, title: str, args: tuple) -> str:
        """What is wrong with a run, if anything."""
        if words := self._raised(seen, title) or self._differences(title, args, seen.args, seen):
            return words
        if seen.log.doubles:
            return f"The numbers are right, but the kernel {doubles(seen.log.doubles)}"
        return ""

    def _raised(self, seen: witness.Run, title: str) -> str:
        """What a run has raised, if anything."""
        return "" if seen.error is None else f"Case: {title}.\n{witness.report(seen.error)}"

    def _of_numbers(self, answer: Any, title: str, args: tuple, schedule: str = "forward") -> str:
        """What is wrong with the numbers alone, if anything, in an order of blocks and threads."""
        seen = self._run(answer, args, watch=False, schedule=schedule)
        return self._raised(seen, title) or self._differences(title, args, seen.args)

    def _compared(self, args: tuple, device: Any) -> Iterator[tuple[str, Difference | None]]:
        """Each array's name, and its first difference."""
        expected = copied(args)
        self.spec(*expected)
        pairs = zip(arrays(expected, self.names), arrays(on_host(device), self.names), strict=True)
        for (name, ours), (_, theirs) in pairs:
            if name.partition("[")[0] not in self._ignored:
                yield name, difference(name, ours, theirs)

    def _differences(self, title: str, args: tuple, device: Any, seen: witness.Run | None = None) -> str:
        for name, found in self._compared(args, device):
            if found is None:
                continue
            if seen is not None and not witness.wrote(seen):
                return "No thread has written anything: fill in the lines at FILL ME IN."
            expected, got = found.values()
            words = [f"Case: {title}.", f"{found.element}: expected {expected}, got {got}"]
            if seen is not None:
                words.append(witness.touched(seen, dict(arrays(device, self.names))[name], found.at))
            words.append(f"{found.wrong} of {found.total} elements of {name} differ")
            if found.is_rounding and seen is not None and seen.log.doubles:
                words.append(f"Only the last bits differ: the kernel {doubles(seen.log.doubles)}")
            elif found.is_rounding:
                words.append("Only the last bits differ: are the operations in the order of the specification?")
            return "\n".join(words)
        return ""

    def _bits_on_gpu(self, answer: Any) -> str:
        for title, args in self.cases.items():
            with gpu.use("gpu"):
                device = on_device(args)
                self.launch(answer, *device)
            if words := self._differences(f"{title}, on the GPU", args, device):
                return words
        return ""

    def _speed_on_gpu(self, answer: Any) -> str:
        """A line on how long an answer takes; empty without large arguments."""
        if self._large is None:
            return ""
        args = self._large()
        moved = self.reference.bytes * speed.nbytes(args, self.names) // speed.nbytes(self._first, self.names)
        reference = solution.load(self.name).answer if solution.names() else None
        with gpu.use("gpu"):
            return "\n" + speed.words(self.launch, answer, reference, args, moved)
