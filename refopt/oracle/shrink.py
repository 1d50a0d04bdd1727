"""The smallest part of a case that still breaks a law."""

import time
from collections.abc import Callable, Iterator

from refopt.oracle.broken import Broken, Crashed
from refopt.oracle.cases import Case, memory

RUNS, SECONDS = 150, 2.0


def smallest(case: Case, holds: Callable[[Case], object], broken: Broken) -> tuple[Case, Broken]:
    """A case with as few tensors, and as few elements in them, as breaks the law, and how it breaks it.

    Tensors are left out first, then elements of those that remain, by halves. What is tried takes no longer than
    ``SECONDS``.
    """
    stop, runs = time.monotonic() + SECONDS, 0
    again = True
    while again:
        again = False
        for smaller in _parts(case, broken):
            if runs == RUNS or time.monotonic() > stop:
                return case, broken
            runs += 1
            try:
                holds(smaller)
            except Crashed:  # which is another failure, and has taken a process
                return case, broken
            except Broken as error:
                case, broken, again = smaller, error, True
                break
            except Exception:  # such as a part that the law cannot be asked of
                continue
    return case, broken


def _parts(case: Case, broken: Broken) -> Iterator[Case]:
    """Smaller cases, those first that would be smallest."""
    count, where = len(case), broken.where
    if count > 1:
        if where is not None:
            yield case.only([where.tensor])
        yield from _without_some(case)
    for i in range(min(count, 4)):
        size = memory(case.params[i]).size
        if where is not None and where.tensor == i and size > 1:
            yield case.part(i, where.element, where.element + 1)
        for pieces in (2, 4, 8):
            step = -(-size // pieces)
            if size > pieces - 1 > 0:
                yield from (case.part(i, at, min(at + step, size)) for at in range(0, size, step))
        if size > 1:
            yield case.part(i, 0, size - 1)


def _without_some(case: Case) -> Iterator[Case]:
    """A case without some tensors in a row, half of them at first."""
    count = len(case)
    kept = count // 2
    while kept:
        for start in range(0, count, kept):
            yield case.only([i for i in range(count) if not start <= i < start + kept])
        kept //= 2
        if count > 64 and kept < count // 64:
            break


def shown(case: Case, broken: Broken) -> str:
    """A case and what is wrong of it, for a reader."""
    sizes = [x.size for x in case.params]
    step = {name: x for name, x in case.steps[0].items() if name != "seed" or x} if case.steps else {}
    lines = [
        f"smallest example: {_counted(len(sizes), 'tensor')} of {_sizes(sizes)}, step {case.count}",
        "    " + ", ".join(f"{name}={_number(x)}" for name, x in (step | case.choices).items()),
    ]
    where = broken.where
    if where is not None and where.tensor < len(sizes):
        lines += _element(case, where.tensor, where.element)
    lines.append(f"  {broken}")
    return "\n".join(lines)


def _element(case: Case, tensor: int, element: int) -> Iterator[str]:
    """What each slot has of an element."""
    for name, x in case.tensor(tensor).items():
        one = name in case.routine.scalars
        if x is not None and (one or element < x.size):  # a scalar may be wrong of a tensor without elements
            value = x.reshape(-1)[0] if one else memory(x)[element]
            at = f"{name}[{tensor}]" + ("" if one else f"[{element}]")
            yield f"    {at} = {value if x.dtype.name == 'uint16' else float(value)!r} ({x.dtype})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _sizes(sizes: list[int]) -> str:
    if len(sizes) > 6:
        return f"{min(sizes)} to {max(sizes)} elements"
    return _counted(sizes[0], "element") if len(sizes) == 1 else f"{', '.join(map(str, sizes)) or 'no'} elements"


def _number(x: object) -> str:
    return f"{x[0]}, ..." if isinstance(x, list) and len(x) > 4 else str(x)
