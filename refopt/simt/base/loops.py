"""The loops in a function's bytecode: the instructions that each contains, and where its iterations begin."""

from __future__ import annotations

import dis
from bisect import bisect_right
from collections.abc import Iterable
from types import CodeType
from typing import Any

_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}  # unconditional ones


class Loops:
    """The loops of a function, numbered so that outer loops come before inner ones.

    A loop contains the instructions between two of its tests, and those that a lane that leaves by `break` or `return`
    runs before it rejoins the others. So lanes that leave in different iterations run those separately.
    """

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.tests: dict[int, int] = {}  # instruction of a repeated test -> the loop whose next iteration it begins
        self._steps = {step.offset: step for step in dis.get_instructions(code)}
        self._offsets = list(self._steps)
        self._after = self._successors()
        self._around: dict[int, tuple[int, ...]] = {}
        self._instructions: dict[int, int] = {}
        jumps = [(at, to) for at, targets in self._after.items() for to in targets if to <= at]
        spans = _spans(jumps)
        self._members = [self._natural([jump for jump in jumps if a <= jump[1] <= b], a) for a, b in spans]
        for loop in range(len(spans)):
            self._find_tests(loop)
        self._first = self._first_tests()
        for loop in range(len(spans)):
            self._add_exits(loop)
        # The loops that each loop contains
        self.within = [[n for n, inner in enumerate(self._members) if inner < outer] for outer in self._members]

    def around(self, offset: int) -> tuple[int, ...]:
        """The numbers of the loops that contain the instruction at an offset, the outermost first."""
        loops = self._around.get(offset)
        if loops is None:
            at = self._start(offset)
            loops = self._around[offset] = tuple(n for n, members in enumerate(self._members) if at in members)
        return loops

    def instruction(self, offset: int) -> int:
        """The instruction at an offset, which may be in its inline cache; a repeated test counts as the first."""
        instruction = self._instructions.get(offset)
        if instruction is None:
            at = self._start(offset)
            instruction = self._instructions[offset] = self._first.get(at, at)
        return instruction

    def _start(self, offset: int) -> int:
        return self._offsets[max(bisect_right(self._offsets, offset) - 1, 0)]

    def _successors(self) -> dict[int, list[int]]:
        """The possible successors of each instruction."""
        after: dict[int, list[int]] = {}
        for at, following in zip(self._offsets, [*self._offsets[1:], None], strict=True):
            step = self._steps[at]
            jumps = "JUMP" in step.opname or step.opname in ("FOR_ITER", "SEND")
            targets = [step.argval] if jumps else []
            if following is not None and step.opname not in _ENDS | _JUMPS:
                targets.insert(0, following)
            after[at] = targets
        return after

    def _natural(self, jumps: list[tuple[int, int]], first: int) -> set[int]:
        """The instructions that can reach a loop's backward jumps without leaving the loop."""
        before: dict[int, list[int]] = {}
        for at, targets in self._after.items():
            for to in targets:
                before.setdefault(to, []).append(at)
        members: set[int] = set()
        for source, header in jumps:
            body, left = {header}, [source]
            while left:
                at = left.pop()
                if at not in body and at >= first:
                    body.add(at)
                    left += before.get(at, [])
            members |= body
        return members

    def _find_tests(self, loop: int) -> None:
        """A `while` tests before its body and again at its end: the second test already begins the next iteration."""
        steps = [self._steps[at] for at in self._offsets if at in self._members[loop]]
        if "POP_JUMP" not in steps[-1].opname and "POP_JUMP" not in steps[-2].opname:
            return
        lines = {step.offset: (step.positions and step.positions.lineno) or 0 for step in steps}
        body = lines[steps[-1].argval]  # the target line of the last jump
        end = max(at for at, line in lines.items() if line >= body)
        self.tests.update((step.offset, loop) for step in steps if step.offset > end)

    def _first_tests(self) -> dict[int, int]:
        """For each instruction of a repeated test, the corresponding one of the first test."""
        first: dict[int, int] = {}
        alike: dict[Any, list[int]] = {}
        for at, step in self._steps.items():
            same = alike.setdefault((step.positions, step.opcode), [])
            if at not in self.tests:
                same.append(at)
            elif same:
                first[at] = same.pop(0)
        return first

    def _add_exits(self, loop: int) -> None:
        """Add to a loop the instructions of lanes that leave it other than by its test."""
        members = self._members[loop]
        tests = {at for at, tested in self.tests.items() if tested == loop}
        tests |= {self._first[at] for at in tests if at in self._first}
        tests |= {at for at in members if self._steps[at].opname == "FOR_ITER" and at == min(members)}
        exits = [(at, to) for at in members for to in self._after[at] if to not in members]
        reached = {to: self._ahead([to]) for _, to in exits}
        usual = {to for at, to in exits if at in tests}
        if not usual and exits:
            usual = {max(reached, key=lambda to: len(reached[to]))}
        members |= self._ahead(set(reached) - usual) - self._ahead(usual)

    def _ahead(self, starts: Iterable[int]) -> set[int]:
        """The instructions reachable from some others without a backward jump."""
        ahead: set[int] = set()
        left = list(starts)
        while left:
            at = left.pop()
            if at not in ahead:
                ahead.add(at)
                left += [to for to in self._after[at] if to > at]
        return ahead


def _spans(jumps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first and last instruction of each loop, from its backward jumps, outer loops before inner ones."""
    longest: dict[int, int] = {}
    for source, header in jumps:
        longest[header] = max(source, longest.get(header, 0))
    spans: list[tuple[int, int]] = []
    for first, last in sorted(longest.items()):
        # A `while` tests its condition in two places, so `continue` and the end of the loop jump to different ones.
        part = next((n for n, (begin, end) in enumerate(spans) if begin < first <= end < last), None)
        if part is None:
            spans.append((first, last))
        else:
            spans[part] = spans[part][0], last
    return spans
