"""Distinguishes threads that leave their kernel by a `return` statement from those that run off its end.

From compute capability 7.0 on, a barrier waits only for threads that have not exited, so `if i >= n: return` before it
is correct. Threads that skip a barrier in a branch and then end look the same to the hardware, but are probably a bug.
So a kernel runs from a copy of its bytecode in which each `return` statement returns `EARLY`, unless the kernel has 256
constants or more: an instruction's argument is one byte.
"""

from __future__ import annotations

import dis
import linecache
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType

from .copies import copied

EARLY = object()
_copies: weakref.WeakKeyDictionary[Callable, Callable] = weakref.WeakKeyDictionary()


def marked(function: Callable) -> Callable:
    """A copy of a kernel whose `return` statements return EARLY, or the function itself if it has none."""
    copy = _copies.get(function)
    if copy is None:
        copy = _copies[function] = _marked(function) if isinstance(function, FunctionType) else function
    return copy


def _marked(function: FunctionType) -> FunctionType:
    return copied(function, code=_code(function.__code__))


def _code(code: CodeType) -> CodeType:
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
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
        if loads.argval is None and early < 256 and _is_statement(code, step):
            changed[loads.offset + 1] = early
            count += 1
    if not count:
        return code
    return code.replace(co_code=bytes(changed), co_consts=(*code.co_consts, EARLY))


def _is_statement(code: CodeType, step: dis.Instruction) -> bool:
    """Whether an instruction belongs to a `return` statement; the implicit return at the end has another position."""
    at = step.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return True
    text = linecache.getline(code.co_filename, at.lineno).encode()
    if text:
        return text[at.col_offset :].startswith(b"return") or text.lstrip().startswith(b"return")
    return at.end_lineno == at.lineno and at.end_col_offset in (at.col_offset + len("return"), None)
