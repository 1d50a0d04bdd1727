"""Groups executions of an instruction by the lanes of a warp, by each thread's position in its loops and calls.

Lanes run one after another here. On a GPU they run an instruction together if they reach it by the same path: through
the same calls, and in the same iteration of each enclosing loop, counted from where the loop was entered. Lanes that
leave a loop early wait after it for the others; lanes on different sides of a branch rejoin where the sides meet. This
is how compiled kernels with structured control flow run, which Python's always is.

While a tracer is active, each line is an event (`sys.settrace`). A backward jump begins the next iteration of the
innermost loop that contains it; the bytecode determines which loops contain an instruction.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

from ..base.loops import Loops
from ..base.places import is_kernels
from ..base.state import current

RETURN = 0  # the line that follows the last one of a function


class Activation:
    """One call of a function by one thread."""

    def __init__(self, tracer: Tracer, loops: Loops, base: int) -> None:
        self.loops, self._tracer, self._base = loops, tracer, base
        self._counts: dict[int, int] = {}  # loop -> iterations begun after the first
        self._contexts: dict[tuple[int, ...], int] = {}
        self._ahead: int | None = None  # a loop whose next iteration began with the test at the end of the previous one
        self._offset = self._line = -1  # of the last line event
        self._visits: dict[tuple[int, int], int] = {}  # line and context -> times: a long statement revisits lines
        self._following: set[int] | None = None  # the lines at which the warp continued from there

    def context(self, offset: int) -> int:
        """A number for the path to an instruction, equal for lanes that reached it by the same path."""
        loops = self.loops.around(offset)
        if not loops:
            return self._base
        context = self._contexts.get(loops)
        if context is None:
            iterations = tuple(self._counts.get(loop, 0) for loop in loops)
            context = self._contexts[loops] = self._tracer.number((self._base, loops, iterations))
        return context

    def _jump_back(self, offset: int) -> None:
        """A backward jump to an instruction, or at it: the next iteration of the innermost loop around it."""
        loops = self.loops.around(offset)
        if loops:
            if loops[-1] != self._ahead:
                self._iterate(loops[-1])
            self._ahead = None

    def _iterate(self, loop: int) -> None:
        for inner in self.loops.within[loop]:
            self._counts.pop(inner, None)
        self._counts[loop] = self._counts.get(loop, 0) + 1
        self._contexts.clear()
        self._visits.clear()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The local trace function."""
        if event == "line":
            offset, line = frame.f_lasti, frame.f_lineno
            # From Python 3.12 on, a backward jump within a line is reported at the jump, not at its target.
            if offset <= self._offset or line == self._line:
                self._jump_back(offset)
            test = self.loops.tests.get(offset)
            if test is not None and test != self._ahead:
                self._iterate(test)
                self._ahead = test
            if self._following is not None:
                self._following.add(line)
            self._offset, self._line = offset, line
            context = self.context(offset)
            visit = self._visits[line, context] = self._visits.get((line, context), 0) + 1
            self._following = self._tracer.executed(self.loops.code, line, context, visit)
        elif event == "return":
            if self._following is not None:
                self._following.add(RETURN)
            self._tracer.leave(frame)
        return self.trace


class Execution:
    """A line executed by a warp: the number of lanes, and the lines at which they continued."""

    def __init__(self) -> None:
        self.lanes = 0
        self.following: set[int] = set()


class Tracer:
    """Follows all threads of the launches of one observe block."""

    def __init__(self) -> None:
        self._activations: dict[FrameType, Activation] = {}
        self._loops: dict[int, Loops] = {}
        self._others: dict[int, CodeType] = {}  # code that is not traced, by its id
        self._numbers: dict[Any, int] = {}
        self._before: Any = None
        # Of this launch, by code, line, context, visit and warp
        self.executions: dict[tuple[int, int, int, int, int], Execution] = {}

    def number(self, way: Any) -> int:
        """A number for a path through calls and loops, from 1."""
        return self._numbers.setdefault(way, len(self._numbers) + 1)

    def begin(self) -> None:
        """A launch begins. Debuggers and coverage tools do not see it."""
        self.executions = {}
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def end(self) -> None:
        """The launch has ended."""
        sys.settrace(self._before)
        self._activations.clear()

    def code(self, number: int) -> CodeType:
        """The code object that a key of `executions` refers to."""
        return self._loops[number].code

    def leave(self, frame: FrameType) -> None:
        """A function returns."""
        self._activations.pop(frame, None)

    def nearest(self, frame: FrameType | None) -> tuple[Loops, int, int] | None:
        """The position of the innermost traced call: its function, the offset in it, and the number of its path."""
        activations = self._activations
        while frame is not None:
            activation = activations.get(frame)
            if activation is not None:
                at = frame.f_lasti
                return activation.loops, at, activation.context(at)
            if frame.f_code is current.kernel_code:
                break
            frame = frame.f_back
        return None

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The global trace function."""
        code = frame.f_code
        if id(code) in self._others:
            return None
        if not is_kernels(code.co_filename) or (frame.f_globals.get("__name__") or "").startswith("namedtuple_"):
            self._others[id(code)] = code
            return None
        base = 0
        if code is not current.kernel_code:
            caller = self.nearest(frame.f_back)
            if caller is None:
                return None
            loops, at, context = caller
            base = self.number((context, loops.instruction(at), id(code)))
        own = self._loops.get(id(code))
        if own is None:
            own = self._loops[id(code)] = Loops(code)  # keeps the code alive, so that its id is not reused
        activation = self._activations[frame] = Activation(self, own, base)
        return activation.trace

    def executed(self, code: CodeType, line: int, context: int, visit: int) -> set[int]:
        """The running thread executes a line; return the set of lines at which its warp continues."""
        thread = current.thread
        key = id(code), line, context, visit, thread.block.number << 5 | thread.rank >> 5
        execution = self.executions.get(key)
        if execution is None:
            execution = self.executions[key] = Execution()
        execution.lanes += 1
        return execution.following
