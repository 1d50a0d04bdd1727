"""Short tracebacks, without the executor's own frames."""

from __future__ import annotations

import itertools
import runpy
import traceback
from types import TracebackType

from .errors import SimtError
from .places import is_internal

MOST = 12  # lines of a report, unless its message alone is longer


def own_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an exception without the executor's frames, unless one of those raised it by mistake."""
    steps, step = [], error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    own = [step for step in steps if not is_internal(step.tb_frame.f_code.co_filename)]
    if not isinstance(error, SimtError) and own[-1:] != steps[-1:]:
        return error.__traceback__
    for step in reversed(own):
        step.tb_next = own[own.index(step) + 1] if step is not own[-1] else None
    return own[0] if own else None


def message_of(error: BaseException) -> str:
    """An exception without its traceback."""
    return "".join(traceback.format_exception_only(error)).rstrip("\n")


def traceback_text(error: BaseException, begin: str = "") -> str:
    """An exception as shown when it ends a program.

    For the executor's reports, only the host's frames are shown, as many as fit: those of the kernel are in the
    message. They begin in the file ``begin``, or where a script does.
    """
    whole = traceback.TracebackException.from_exception(error)
    before = (lambda step: step.filename != begin) if begin else (lambda step: _is_ours(step.filename))
    first = next((i for i, step in enumerate(whole.stack) if not before(step)), 0)
    script = whole.stack[first:]
    if not isinstance(error, SimtError):
        whole.stack = traceback.StackSummary.from_list([step for step in script if not _is_ours(step.filename)])
        return "".join(whole.format())
    text = "".join(whole.format_exception_only())
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][first:]
    # The executor calls the kernel, so the kernel's frames do not follow from the frame before.
    called = [True, *(inner.f_back is outer for outer, inner in itertools.pairwise(frames))]
    host = itertools.takewhile(lambda at: at[1] and not _is_ours(at[0].filename), zip(script, called, strict=True))
    steps = [f'  File "{step.filename}", line {step.lineno}, in {step.name}\n    {step.line}\n' for step, _ in host]
    room = max(1, (MOST - 1 - text.count("\n")) // 2)
    return "".join(["Traceback (most recent call last):\n", *steps[-room:], text])


def _is_ours(filename: str) -> bool:
    """Whether a file belongs to the executor or to the part of Python that runs scripts."""
    return is_internal(filename) or filename == runpy.__file__ or filename.startswith("<frozen ")
