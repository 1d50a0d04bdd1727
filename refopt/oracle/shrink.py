"""The smallest part of a case that still breaks a law."""

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

from refopt.oracle.broken import Broken, Crashed, Misconduct
from refopt.oracle.cases import at_step, by_count
from refopt.oracle.exact.cases import Case, elements_of, memory

RUNS, SECONDS = 150, 2.0
SHAPES = 6  # shapes in a report
LAST = 4096  # the last step up to which the first wrong one is looked for
Holds = Callable[[Case], object]


class Search:
    """The smallest case found so far that still breaks a law, and how it breaks it.

    Attributes:
        case, broken: the case, and how it breaks the law.
        since: the step's number, if it is known to be the first that is wrong.
    """

    def __init__(self, case: Case, holds: Holds, broken: Broken) -> None:
        self.case, self.holds, self.broken = case, holds, broken
        self.since: int | None = None

    def run(self, until: float) -> None:
        """Look for the first wrong step, then for fewer tensors and elements, then for numbers of few digits.

        The search for fewer takes at most ``SECONDS``, and ends at ``until``; a `Crashed` process ends it as well.
        """
        with contextlib.suppress(Crashed):  # another failure
            self.first_step()
            self.smaller(until)
            self.rounded()

    def breaks(self, case: Case, least: float = 0.0) -> bool:
        """Whether a case breaks the law in the same way, with a ratio of at least ``least``: it is then the new one."""
        try:
            self.holds(case)
        except Crashed:
            raise
        except Broken as error:
            if error.kind == self.broken.kind and (error.ratio or 0.0) >= least:
                self.case, self.broken = case, error
                return True
        except Exception:  # such as a part that the law does not apply to
            pass
        return False

    def first_step(self) -> None:
        """Find the first wrong step by bisection; ``since`` is set if the one before is right."""
        case = self.case
        if len(case.steps) != 1 or not 1 < case.count <= LAST or self.broken.ratio is None:
            return
        until = time.process_time() + SECONDS
        right, wrong = 0, case.count
        while wrong - right > 1 and time.process_time() < until:
            middle = 1 if not right else (right + wrong) // 2
            if self.breaks(at_step(case, middle)):
                wrong = middle
            else:
                right = middle
        self.since = wrong if wrong - right == 1 < wrong else None

    def smaller(self, until: float) -> None:
        """Leave out tensors, then elements of the remaining ones, by halves."""
        stop = min(time.monotonic() + SECONDS, until)
        parts, runs = _parts(self.case, self.broken), 0
        while (part := next(parts, None)) and runs < RUNS and time.monotonic() <= stop:
            runs += 1
            if self.breaks(part):
                parts = _parts(self.case, self.broken)

    def rounded(self) -> None:
        """Round the numbers of few elements to few digits."""
        case, broken = self.case, self.broken
        if broken.ratio is None or elements_of(case) > 4:
            return
        kept = {"master_params", *by_count(case.routine)}
        for bits in (1, 3, 6):
            slots = {name: [None if x is None else _of_bits(x, bits) for x in xs] for name, xs in case.slots.items()
                     if xs is not None and name not in kept}
            if self.breaks(case.replace(**slots), min(2.0, broken.ratio)):
                return


def _of_bits(x: np.ndarray, bits: int) -> np.ndarray:
    if x.dtype.kind in "iu":
        return x
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    return np.asarray(np.ldexp(np.round(fraction * 2**bits) / 2**bits, exponent), x.dtype)


def _parts(case: Case, broken: Broken) -> Iterator[Case]:
    """Smaller cases, the smallest first."""
    count, where = len(case), broken.where
    if count > 1:
        if where is not None:
            yield case.only([where.tensor])
        yield from _without_some(case)
    for i in range(0 if case.routine.matrix_arguments else min(count, 4)):
        size = memory(case.params[i]).size
        if where is not None and where.tensor == i and size > 1:
            yield case.part(i, where.element, where.element + 1)
        for pieces in (2, 4, 8):
            step = -(-size // pieces)
            if size > pieces - 1 > 0:
                yield from (case.part(i, at, min(at + step, size)) for at in range(0, size, step))
        for fewer in (size // 8, min(1, size - 1)):
            if fewer:
                yield case.part(i, 0, size - fewer)


def _without_some(case: Case) -> Iterator[Case]:
    """A case without some consecutive tensors, half of them at first."""
    count = len(case)
    kept = count // 2
    while kept:
        for start in range(0, count, kept):
            yield case.only([i for i in range(count) if not start <= i < start + kept])
        kept //= 2
        if count > 64 and kept < count // 64:
            break


def shown(case: Case, broken: Broken, since: int | None = None) -> str:
    """A case and its error as text; ``since`` is the first wrong step, if known."""
    sizes = [x.size for x in case.params]
    step = {name: x for name, x in case.steps[0].items() if name != "seed" or x} if case.steps else {}
    first = f", the first that is wrong: step {since - 1} is right" if since else ""
    lines = [
        f"smallest example: {_counted(len(sizes), 'tensor')} of {_sizes(sizes)}, step {case.count}{first}",
        "    " + ", ".join(f"{name}={_number(x)}" for name, x in (step | case.choices).items()),
    ]
    lines += _shapes(case, isinstance(broken, Misconduct))
    where = broken.where
    if where is not None and where.tensor < len(sizes):
        lines += _element(case, where.tensor, where.element)
    lines.append(f"  {told(broken)}")
    return "\n".join(lines)


def _shapes(case: Case, every: bool) -> list[str]:
    """A line of shapes, unless all are (n,) and not ``every`` tensor counts; those of slots if they differ."""
    told: list[str] = []
    for i, x in enumerate(case.params):
        if every or x.ndim != 1:
            shapes: dict[tuple[int, ...], list[str]] = {x.shape: [f"params[{i}]"]}
            for name, y in case.tensor(i).items():
                if y is not None and y.shape != x.shape:
                    shapes.setdefault(y.shape, []).append(f"{name}[{i}]")
            told += [f"{' and '.join(names)} of shape {shape}" for shape, names in shapes.items()]
    return [f"    {', '.join(told[:SHAPES])}{', ...' if len(told) > SHAPES else ''}"] if told else []


def told(broken: Broken) -> str:
    """What is wrong; a number outside its bound is printed in plain decimal."""
    where = broken.where
    if where is None or broken.ratio is None:
        return str(broken)
    at = f"{where.slot}[{where.tensor}], element {where.element} of {where.wrong.size}"
    size = f"{broken.ratio:.3g} times the bound"
    digits = 17 if where.error < 1e-10 * abs(where.expected) else 9
    return f"{at}: expected {where.expected:.{digits}g} within {where.error:.2g}, got {where.got:.{digits}g}: {size}"


def _element(case: Case, tensor: int, element: int) -> Iterator[str]:
    """The value of an element in each slot."""
    for name, x in case.tensor(tensor).items():
        one = name in case.routine.scalars
        if x is not None and (one or element < x.size):  # a tensor without elements may have a wrong scalar
            value = x.reshape(-1)[0] if one else memory(x)[element]
            at = f"{name}[{tensor}]" + ("" if one else f"[{element}]")
            digits = 17 if x.dtype.itemsize == 8 else 9
            yield f"    {at} = {value if x.dtype.kind in 'iu' else f'{float(value):.{digits}g}'} ({x.dtype})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _sizes(sizes: list[int]) -> str:
    if len(sizes) > 6:
        return f"{min(sizes)} to {max(sizes)} elements"
    return _counted(sizes[0], "element") if len(sizes) == 1 else f"{', '.join(map(str, sizes)) or 'no'} elements"


def _number(x: object) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_number, x[:4]))}{', ...' if len(x) > 4 else ''}]"
    if isinstance(x, np.ndarray) and x.size == 1:
        return _number(float(x.ravel()[0]))
    return f"{float(x):.9g}" if isinstance(x, float | np.floating) else str(x)
