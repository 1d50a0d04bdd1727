"""Uses of values: by the use and the sort of the value, why Numba refuses it, and what to write instead."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator

from ..base import state
from ..base.scalars import COMPLEX, FLOATS
from ..machine.vector_types import Vector
from .kinds import Array, Kind, Known, Range, Record, Scalar, Tuple, Varying, items_of, named_of, scalar, type_of
from .syntax import NewArray, Refusal

ELEMENTS = "loop over the elements, or let each thread take one: x[i]"
_NUMBER = "int float bool"
# What to write instead of an operand of a sort.
_OPERANDS = {
    "array": ELEMENTS, "tuple": "use its items: t[0]", "vector": "use its parts: v.x", "record": "use its fields",
    "text": 'print takes several values: print("x is", x)', "texts": "format text in the caller",
    "None": "use a number that stands for nothing, such as -1", "late": "initialize it with its type, not with None",
}
# The use, the sorts of values it does not allow, the reason ({} is the value), and what to write instead.
_UNFIT: tuple[tuple[str, str, str, str], ...] = (
    ("call", f"{_NUMBER} array tuple record text None", "a call of {}", "an element is x[i], with brackets"),
    ("loop", f"{_NUMBER} vector", "a loop over {}", "loop over range(n)"),
    ("loop", "text texts", "a loop over text", "loop over a tuple of numbers"),
    ("loop", "mixed", "a loop over a tuple of several types", "make them one type, or unroll the loop"),
    ("indexed", f"{_NUMBER} complex vector", "{name} {}", "index an array: a number has no elements"),
    ("indexed", "texts", "an index into text", "compare the whole text"),
    ("indexed", "range", "an index into a range", "compute the number: start + i * step"),
    ("load index", "array", NewArray("an array as index, whose result would be a new array"),
     "index by one number at a time"),
    ("print", "array complex None", "print of {}", "print its elements"),
    ("print", "texts", "print of {}", "print in each branch"),
    ("len", f"{_NUMBER} vector", "len of {}", "should this argument be an array?"),
    ("tuple", "array", "a tuple of an array", "index the array: its length is known only at run time"),
)
_BY_USE = {use: [row[1:] for row in _UNFIT if row[0] == use] for use, *_ in _UNFIT}


def unfit(use: str, node: ast.AST, kind: Kind, name: str = "") -> Iterator[Refusal]:
    """Why a value cannot be used in a way; ``name`` is that of the function or operation that uses it."""
    if not use:
        return
    found = sort(kind) if not isinstance(node, ast.Starred) else "several"
    if found == "late":
        yield node, f"{described(kind)} is used as if it had a value", _OPERANDS["late"]
    for sorts, reason, instead in _BY_USE.get(use, ()):
        if found in sorts.split() or ("mixed" in sorts and is_mixed(kind)):
            yield node, type(reason)(reason.format(described(kind), name=name)), instead


def unfit_operand(kind: Kind, called: str) -> tuple[str, str]:
    """Why a value that is no number cannot be an operand, and what to write instead."""
    found = sort(kind)
    if found == "array":
        return NewArray(f"{called} of a whole array, whose result would be a new array"), ELEMENTS
    reason = called.format(described(kind)) if "{" in called else f"{called} of {described(kind)}"
    return reason, _OPERANDS.get(found, "use numbers")


def incomparable(symbol: str, a: Kind, b: Kind) -> bool:
    """Whether Numba refuses to compare two values that are not both numbers: arrays, or the order of text."""
    sorts = [sort(a), sort(b)]
    texts = sum(each in ("text", "texts") for each in sorts)
    return ("array" in sorts and "None" not in sorts) or (
        texts == 1 and None not in (a, b) and symbol not in ("Eq", "NotEq"))


def sort(kind: Kind) -> str:
    """The sort of a value: int, float, bool, complex, array, tuple, vector, record, range, text, None, object; else
    unknown."""
    if (one := scalar(kind)) is not None:
        plain = {"bool": "bool"} | dict.fromkeys(FLOATS, "float") | dict.fromkeys(COMPLEX, "complex")
        return plain.get(one.name, "int")
    if items_of(kind) is not None:
        return "vector" if isinstance(named := named_of(kind), type) and issubclass(named, Vector) else "tuple"
    if not isinstance(kind, Known):
        return {Array: "array", Record: "record", Range: "range"}.get(type(kind), "unknown")
    if isinstance(kind.value, Varying):
        return kind.value.sort
    known = {str: "text", type(None): "None"}.get(type(kind.value))
    is_object = callable(kind.value) or isinstance(kind.value, types.ModuleType | state.Dim3)
    return known or ("object" if is_object else "unknown")


def described(kind: Kind) -> str:
    """A description of a kind."""
    match kind:
        case Array():
            many = "s" * (kind.axes != 1)
            return f"an array of {kind.axes} dimension{many} ({kind.dtype or kind.record or 'records'})"
        case Record():
            return "a record"
    if (one := scalar(kind)) is not None:
        return f"a number ({one.name})"
    if (items := items_of(kind)) is not None:
        return f"a tuple of {len(items)}"
    if not isinstance(kind, Known):
        return "something else"
    if isinstance(kind.value, Varying):
        return kind.value.words
    if isinstance(kind.value, state.Dim3):
        return "indices of three axes"
    if isinstance(kind.value, types.ModuleType):
        return f"the module {kind.value.__name__}"
    named = getattr(kind.value, "__name__", None)
    return f"the function {named}" if named else "text" if isinstance(kind.value, str) else repr(kind.value)


def is_mixed(kind: Kind) -> bool:
    """Whether a tuple has items of several types, as far as they are known."""
    types_of = {type_of(item) for item in items_of(kind) or ()}
    return len(types_of) > 1 and None not in types_of


def index(node: ast.Subscript, base: Kind, at: Kind) -> Iterator[Refusal]:
    """What Numba refuses about an index."""
    stores = isinstance(node.ctx, ast.Store)
    yield from unfit("indexed", node, base, "an assignment by index into" if stores else "an index into")
    items = items_of(base)
    if items is not None and not isinstance(node.slice, ast.Slice):
        value = at.value if isinstance(at, Known) else None
        if type(value) is int and not -len(items) <= value < len(items):
            yield node, f"index {value} into a tuple of {len(items)}", "use an index within the tuple"
        if value is None and scalar(at) is not None and is_mixed(base):
            instead = "make them one type, or choose with if: i == 0"
            yield node, "an index that is not constant into a tuple of several types", instead
    if not isinstance(base, Array):
        return
    parts = at.items if isinstance(at, Tuple) else (at,)
    for part in parts:
        yield from () if stores else unfit("load index", node, part)
        if sort(part) == "text" and not base.record:
            yield node, f"the field {part.value!r} of an array without fields", "index it by numbers"
    written = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    count = len(parts) - sum(isinstance(w, ast.Constant) and w.value in (None, ...) for w in written)
    if isinstance(at, Scalar | Tuple | Known) and count > base.axes and not (base.record and not base.axes):
        yield node, f"{count} indices into {described(base)}", "use at most one index for each dimension"
