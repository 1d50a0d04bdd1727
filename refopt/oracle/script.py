"""A script that reproduces a failure on its smallest example without refopt."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.bound import sums
from refopt.oracle.bound.expected import Expected
from refopt.oracle.broken import Broken
from refopt.oracle.exact.cases import Case
from refopt.oracle.literals import Literals, definition, floats, library_of, lists, number
from refopt.oracle.subject import STEP
from refopt.oracle.trial import Trial

HEAD = '''"""{title}

{text}
"""

import numpy as np
{define}
'''
COMPARED = '''
wrong = 0
for slot, values in expected.items():
    for i, value in enumerate(values):
        if value is None or slot not in got or got[slot][i] is None:
            continue
        found, value, within = numbers_of(got[slot][i]), np.array(value), np.array(bound[slot][i])
        right = (abs(found - value) <= within) | (within == np.inf) | ~(np.isfinite(value) | np.isfinite(found))
        for k in np.flatnonzero(~right):
            wrong += 1
            print(f"{slot}[{i}], element {k}: expected {value[k]} within {within[k]:.2g}, got {found[k]}")
print(f"wrong elements: {wrong}")
raise SystemExit(wrong > 0)
'''
SHAPES = '''
wrong = 0
for slot, arrays in expected.items():
    for i, array in enumerate(arrays):
        x = got[slot][i] if slot in got else None
        if array is None or x is None:
            continue
        found = str(x.dtype).rpartition(".")[2], tuple(x.shape)
        if found != array:
            wrong += 1
            print(f"{slot}[{i}]: expected {array}, got {found}")
        print(slot, i, x)
raise SystemExit(wrong > 0)
'''


class Smallest(NamedTuple):
    """The smallest example of a failure: the case, how it breaks the law, the trial, and the call of the subject."""

    case: Case
    broken: Broken
    trial: Trial
    call: "Call"


class Call(NamedTuple):
    """How a script calls a subject.

    Attributes:
        define: the first lines: imports, definitions.
        arrays: lists of arrays that it gets, by their names in the script.
        numbers: the contents of the script's mapping ``numbers``.
        lines: the call, which sets ``got``, lists of arrays by slot.
        of: how arrays are written.
    """

    define: str
    arrays: Mapping[str, Any]
    numbers: Mapping[str, Any]
    lines: str
    of: Literals


def of(small: Smallest, title: str) -> str:
    """The text of the script. A subject that is not a function has ``call(case)``, which returns a `Call`."""
    call, broken = small.call, small.broken
    imports, _, define = f"{call.of.imports}\n{call.define}".partition("\n\n")
    lines = list(dict.fromkeys(filter(None, imports.splitlines())))
    if any("ml_dtypes." in call.of.array(x) for xs in call.arrays.values() for x in xs or () if x is not None):
        lines.insert(0, "import ml_dtypes")
    lines += ["", define.strip("\n"), ""] if define.strip() else []
    lines += ["", "def numbers_of(array):", f"    return {call.of.numbers}.ravel()", "", ""]
    text = "\n".join(textwrap.wrap(str(broken), 116))
    parts = [HEAD.format(title=title, text=text, define="\n".join(lines))]
    for name, arrays in call.arrays.items():
        if arrays is not None:
            parts.append(f"{name} = {lists([call.of.array(x) for x in arrays])}\n")
    numbers = ", ".join(f"{name!r}: {number(x, call.of)}" for name, x in call.numbers.items())
    parts.append(f"numbers = {{{numbers}}}\n" if numbers else "")
    parts.append(f"\n{call.lines}\n")
    known = _expected(small)
    if known is None:
        parts.append(_mapping("expected", _kinds(small.case)))
        return "".join([*parts, SHAPES])
    return "".join([*parts, _mapping("expected", known[0]), _mapping("bound", known[1]), COMPARED])


def call_of(subject: Any, case: Case) -> Call:
    """How a script calls a subject on a case."""
    make = getattr(subject, "call", None)
    return make(case) if make else _function(subject, case)


def _mapping(name: str, values: Mapping[str, list[str]]) -> str:
    shown = "".join(f'    "{slot}": {lists(x)},\n' for slot, x in values.items())
    return f"\n{name} = {{\n{shown}}}\n"


def _expected(small: Smallest) -> tuple[dict[str, list[str]], dict[str, list[str]]] | None:
    """Exact results and bounds as literals by slot; ``None`` if the failure does not concern bounds."""
    case, broken, trial, _ = small
    where = broken.where
    flag = case.steps[0].get("found_inf") if len(case.steps) == 1 else None
    hidden = where is not None and not np.isfinite(where.expected) and np.isfinite(where.got)
    if where is None or len(case.steps) != 1 or not (broken.ratio is not None or flag is not None or hidden):
        return None
    values: dict[str, list[str]] = {}
    bounds: dict[str, list[str]] = {}
    for i in range(len(case)):
        for slot, expected in trial.expected(case, i, sums.random_data).items():
            value, reach = _ends(expected)
            if hidden and (slot, i) == (where.slot, where.tensor):
                value[where.element], reach[where.element] = where.expected, 0
            values.setdefault(slot, ["None"] * len(case))[i] = floats(value)
            bounds.setdefault(slot, ["None"] * len(case))[i] = floats(reach)
    return values, bounds


def _ends(expected: Expected) -> tuple[np.ndarray, np.ndarray]:
    """Values and their bounds, in the order of an array's elements."""
    value = np.ravel(expected.value).astype(np.float64)
    ends = (np.ravel(x).astype(np.float64) for x in (expected.low, expected.high))
    with np.errstate(all="ignore"):
        reach = np.fmax(np.ravel(expected.error).astype(np.float64), np.fmax(*(abs(x - value) for x in ends)))
    return value, np.where(np.isfinite(reach), reach, np.inf)


def _kinds(case: Case) -> dict[str, list[str]]:
    """Dtype and shape of each array that a step writes."""
    written = [slot.name for slot in case.routine.slots if slot.written and case.slots[slot.name] is not None]
    return {
        name: ["None" if x is None else repr((x.dtype.name, x.shape)) for x in case.lists()[name]] for name in written
    }


def _function(subject: Any, case: Case) -> Call:
    """The call of a function of lists."""
    if not getattr(subject, "is_function", False):
        lines = f"# Call {getattr(subject, 'name', 'the step')} here, and keep its arrays.\ngot = {{}}"
        return Call("", case.slots, case.steps[0], lines, library_of(None))
    present = [name for name in case.slots if case.slots[name] is not None and subject.takes(name)]
    options = {STEP: case.count, **case.choices, **case.steps[0]}
    theirs = subject.names
    numbers = {theirs.get(name, name): x for name, x in options.items() if name in subject.named}
    named = [f"{theirs.get(name, name)}={name}" for name in present if name in subject.named]
    arguments = ", ".join([*subject.positional, *named, *(["**numbers"] if numbers else [])])
    written = [slot.name for slot in case.routine.slots if slot.written and slot.name in present]
    kept = ", ".join(f'"{name}": {name}' for name in written)
    text = [f"result = optimizer_step({arguments})", f"got = {{{kept}}}"]
    text += ["if result is not None:", "    lists = result if isinstance(result, tuple) else (result,)"]
    text += ["    got = result if isinstance(result, dict) else dict(zip(got, lists))"]
    define = definition(subject.function, "optimizer_step")
    return Call(define, {x: case.slots[x] for x in present}, numbers, "\n".join(text), library_of(subject.arrays))
