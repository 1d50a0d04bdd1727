"""Tells whether a thread left its kernel by a `return` statement or by running off its end.

From compute capability 7.0 on a barrier waits only for the threads that have not exited: `if i >= n: return` before
it is right, and so is a kernel whose last statement is `if i < n:` without an `else`, which is the same code, provided
that it goes on after the barrier. Threads that skip a barrier in another branch, or leave its loop, and end are the
same to the hardware, but not to the reader. So a kernel runs as a copy of its bytecode in which each of these exits
returns `EARLY`.
"""

from __future__ import annotations

import ast
import dis
import linecache
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType

from .compiled.source import functions_of

EARLY = object()
_Point = tuple[int, int]  # line and column
_copies: weakref.WeakKeyDictionary[Callable, Callable] = weakref.WeakKeyDictionary()


def marked(function: Callable) -> Callable:
    """A copy of a kernel whose `return` statements give EARLY, or the function itself if it has none."""
    copy = _copies.get(function)
    if copy is None:
        copy = _copies[function] = _marked(function) if isinstance(function, FunctionType) else function
    return copy


def _marked(function: FunctionType) -> FunctionType:
    changed = _code(function.__code__)
    copy = FunctionType(changed, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _code(code: CodeType) -> CodeType:
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    guards = _guards(code)
    early = len(code.co_consts)
    changed = bytearray(code.co_code)
    count = 0
    for before, step in zip([None, *steps], steps, strict=False):
        if step.opname == "RETURN_CONST":  # Python 3.12 and 3.13
            loads = step
        elif step.opname == "RETURN_VALUE" and before is not None and before.opname == "LOAD_CONST":
            loads = before
        else:
            continue
        if loads.argval is None and early < 256 and _is_early(code, step, guards):
            changed[loads.offset + 1] = early
            count += 1
    if not count:
        return code
    return code.replace(co_code=bytes(changed), co_consts=(*code.co_consts, EARLY))


def _guards(code: CodeType) -> list[tuple[_Point, _Point]]:
    """Where the tests are, from and to, that end the kernel if they fail."""
    found = []
    for node in functions_of(code):
        last = [node.body[-1]]
        while last:
            statement = last.pop()
            if isinstance(statement, ast.If):
                if not statement.orelse and not _is_barrier(statement.body[-1]):
                    end = statement.test.end_lineno or 0, statement.test.end_col_offset or 0
                    found.append(((statement.lineno, statement.col_offset), end))
                last += [branch[-1] for branch in (statement.body, statement.orelse) if branch]
    return found


def _is_barrier(statement: ast.stmt) -> bool:
    """Whether a statement is a barrier that nothing follows, which is no use to those that wait at it."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = call.func if isinstance(call, ast.Call) else None
    return str(getattr(name, "attr", getattr(name, "id", ""))).startswith("sync")


def _is_early(code: CodeType, step: dis.Instruction, guards: list[tuple[_Point, _Point]]) -> bool:
    """Whether an instruction belongs to a `return` statement, or to the test of a guard.

    What returns at the end has the place of the instruction before it, which for a guard is its jump.
    """
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return True
    if any(start <= (at.lineno, at.col_offset) < end for start, end in guards):
        return True
    text = linecache.getline(code.co_filename, at.lineno).encode()
    if text:
        return text[at.col_offset :].startswith(b"return") or text.lstrip().startswith(b"return")
    return at.end_lineno == at.lineno and at.end_col_offset in (at.col_offset + len("return"), None)
