"""A script that shows a failure on its smallest example, and needs nothing of refopt."""

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.oracle.bound import sums
from refopt.oracle.cases import Case, memory
from refopt.oracle.subject import STEP, Function
from refopt.oracle.trial import Broken, Trial

HEAD = '''"""{title}

{text}
"""

import numpy as np{imports}

'''
END = '''
wrong = 0
for slot, values in expected.items():
    for i, value in enumerate(values):
        if value is None or slot not in got:
            continue
        found = np.asarray(got[slot][i]).astype(np.float64).ravel()
        off = abs(found - np.array(value))
        for k in np.flatnonzero(~(off <= np.array(bound[slot][i]))):
            wrong += 1
            within = f"{value[k]!r} within {bound[slot][i][k]:.2g}"
            print(f"{slot}[{i}], element {k}: expected {within}, got {float(found[k])!r}")
print(f"{wrong} wrong elements")
raise SystemExit(wrong > 0)
'''


class Smallest(NamedTuple):
    """The smallest example of a failure: the case, how the law is broken, and what it is a case of."""

    case: Case
    broken: Broken
    trial: Trial


def of(small: Smallest, title: str) -> str:
    """The text of the script. A subject that is no function has ``call(case)``, which returns a `Call`."""
    case, broken, trial = small
    text = "\n".join(textwrap.wrap(str(broken), 116))
    brain = any(x is not None and x.dtype.name == "bfloat16" for values in case.lists().values() for x in values)
    parts = [HEAD.format(title=title, text=text, imports="\nimport ml_dtypes" if brain else "")]
    call = getattr(trial.subject, "call", None)
    define, lines, slots, numbers = call(case) if call else _function(trial.subject, case)
    parts.append(define + "\n")
    for name in slots:
        arrays = case.slots[name]
        if arrays is not None:
            parts.append(f"{name} = {_lists([_array(x) for x in arrays])}\n")
    parts.append(f"numbers = {{{', '.join(f'{name!r}: {_number(x)}' for name, x in numbers.items())}}}\n\n{lines}\n")
    if broken.where is None or broken.ratio is None:
        return "".join([*parts, f"\n# {broken}\n", "print(got)\n"])
    values, bounds = _expected(trial, case)
    for name, lists in (("expected", values), ("bound", bounds)):
        shown = "".join(f'    "{slot}": {_lists(x)},\n' for slot, x in lists.items())
        parts.append(f"\n{name} = {{\n{shown}}}\n")
    return "".join([*parts, END])


def _expected(trial: Trial, case: Case) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The truth, and how far from it right code may be, as literals by slot."""
    values: dict[str, list[str]] = {}
    bounds: dict[str, list[str]] = {}
    for i in range(len(case)):
        for slot, expected in trial.expected(case, i, sums.random_data).items():
            value = np.ravel(memory(expected.value))
            ends = (np.ravel(memory(x)).astype(np.float64) for x in (expected.low, expected.high))
            with np.errstate(all="ignore"):
                reach = np.fmax(np.ravel(memory(expected.error)), np.fmax(*(abs(x - value) for x in ends)))
            values.setdefault(slot, ["None"] * len(case))[i] = _floats(value)
            bounds.setdefault(slot, ["None"] * len(case))[i] = _floats(np.where(np.isfinite(reach), reach, np.inf))
    return values, bounds


class Call(NamedTuple):
    """How a script calls a subject: what it defines first, the call itself, and the slots and numbers it takes.

    The call leaves ``got``, arrays by slot; slots are lists of their names, and numbers the dict ``numbers``.
    """

    define: str
    lines: str
    slots: Sequence[str]
    numbers: Mapping[str, Any]


def _function(subject: Any, case: Case) -> Call:
    """The call of a function of lists."""
    if not isinstance(subject, Function):
        lines = f"# Call {subject.name} here, and keep its arrays.\ngot = {{}}"
        return Call("", lines, list(case.slots), case.steps[0])
    given = [name for name in case.slots if case.slots[name] is not None and subject.takes(name)]
    options = {STEP: case.count, **case.choices, **case.steps[0]}
    numbers = {name: x for name, x in options.items() if name in subject.named}
    named = [f"{name}={name}" for name in given if name in subject.named]
    arguments = ", ".join([*subject.positional, *named, *(["**numbers"] if numbers else [])])
    written = [slot.name for slot in case.routine.slots if slot.written and slot.name in given]
    kept = ", ".join(f'"{name}": {name}' for name in written)
    text = [f"result = optimizer_step({arguments})", f"got = {{{kept}}}"]
    text += ["if result is not None:", "    lists = result if isinstance(result, tuple) else (result,)"]
    text += ["    got = result if isinstance(result, dict) else dict(zip(got, lists))"]
    return Call(_definition(subject.function), "\n".join(text), given, numbers)


def _definition(function: Any) -> str:
    """How a script comes by a function: by import, or, if it is defined in another one, as its text."""
    module, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "")
    if module != "__main__" and name.isidentifier():
        return f"from {module} import {name} as optimizer_step\n"
    try:
        text = textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        text = ""
    if not text.startswith("def "):
        return f"# Define {name or 'the step'} here, as optimizer_step.\n"
    return f"{text}\n\n\noptimizer_step = {function.__name__}\n"


def _array(x: Any) -> str:
    """A NumPy array as a literal."""
    if x is None:
        return "None"
    name = x.dtype.name
    dtype = f"ml_dtypes.{name}" if name == "bfloat16" else f"np.{name}"
    numbers = ", ".join(_literal(v) for v in memory(x).ravel())
    if x.ndim == 1:
        return f"np.array([{numbers}], {dtype})"
    order = "" if x.flags.c_contiguous else ", order='F'"
    return f"np.array([{numbers}], {dtype}).reshape({x.shape}{order})"


def _literal(x: Any) -> str:
    value = x.item()
    if isinstance(value, int):
        return str(value)
    value = float(value)
    return repr(value) if np.isfinite(value) else ("np.nan" if value != value else "np.inf" if value > 0 else "-np.inf")


def _floats(values: np.ndarray) -> str:
    return f"[{', '.join(_literal(x) for x in values)}]"


def _number(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_number(x) for x in value)}]"
    return repr(value.item() if isinstance(value, np.generic) else value)


def _lists(values: list[str]) -> str:
    """A list that is broken between its entries where it is long."""
    text = f"[{', '.join(values)}]"
    return text if len(text) <= 110 else "[\n        " + ",\n        ".join(values) + ",\n    ]"
