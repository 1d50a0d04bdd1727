"""A typer that refuses the expressions that Numba refuses, by their source and their types."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

from ...base.errors import CompileError, Place
from ...base.places import is_internal
from ...base.scalars import COMPLEX, FLOATS
from .. import syntax
from ..expressions import Later, Typed, Unsupported
from ..kinds import LATE, Array, Clash, Kind, Known, Tuple, items_of, named_of, scalar
from ..loops import Loops
from ..syntax import NewArray, Refusal
from ..uses import described, index, sort
from . import calls, names

_ARRAY = frozenset((
    "T", "all", "any", "argmax", "argmin", "ctypes", "dtype", "fill", "flat", "item", "itemsize", "mean", "nbytes",
    "ndim", "prod", "real", "reshape", "shape", "size", "std", "strides", "sum", "transpose", "var", "view",
))
_SCALAR = {"bit_count", "conjugate", "imag", "item", "real", "view"}
_TEXT = frozenset((
    "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isspace", "istitle",
    "isupper", "rfind", "rindex",
))
_MISSING = object()


class Expressions(Loops):
    """The visits of expressions, each checked before its type is used."""


    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[ast.AST, Kind] = {}  # of the expressions in the source
        self.captured: dict[str, Any] = {}
        self.literals: dict[str, ast.expr] = {}  # parameters that must be literals, and where
        self.parameters: frozenset[str] = frozenset()
        self._text: ast.AST | None = None
        self._negated: ast.AST | None = None  # the operand of ``not``
        self._listed: set[ast.AST] = set()  # lists that are searched: the compiler makes them tuples

    def refused(self, node: ast.AST, reason: str, instead: str) -> CompileError:
        """The error for a place in the source."""
        code, line = self.function.__code__, getattr(node, "lineno", 0)
        source = linecache.getline(code.co_filename, line)
        prefix = source.encode()[: getattr(node, "col_offset", 0)].decode(errors="replace")
        place = Place(self.function.__name__, code.co_filename, line, None, None)
        return CompileError(reason, place, len(prefix) + 1, source.rstrip(), instead)

    def refuse(self, node: ast.AST, reason: str, instead: str, later: bool = False) -> None:
        """Report that Numba refuses a place in the source, except in the executor's own functions and in those that
        `overload` implements, since these stand in for compiled code."""
        own = is_internal(self.function.__code__.co_filename) or names.is_overloaded(self.function)
        arrays = isinstance(reason, NewArray) and _allocates()
        if not own and not arrays:
            error = self.refused(node, reason, instead)
            if later:
                raise Later from error
            raise error

    def hold(self, found: Iterable[Refusal]) -> None:
        """Raise the first refusal that applies."""
        for each in found:
            self.refuse(*each)

    def read(self, node: ast.FunctionDef | ast.Lambda) -> None:
        """Check the function's source, as the compiler does before it knows any type."""
        self._text = node
        arguments = node.args
        self.parameters = frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        self.hold(syntax.anywhere(node))

    def values_of(self, name: str) -> list[ast.expr]:
        """The values assigned to a variable anywhere in the function; None for other than plain assignments."""
        values: list[Any] = []
        for part in ast.walk(self._text) if self._text is not None else ():
            for target in getattr(part, "targets", [getattr(part, "target", None)]):
                plain = part.value if isinstance(part, ast.Assign | ast.AnnAssign) else None
                pairs = [(target, plain)]
                if isinstance(target, ast.Tuple) and isinstance(plain, ast.Tuple):
                    pairs = list(zip(target.elts, plain.elts, strict=False))
                values += [value for place, value in pairs if isinstance(place, ast.Name) and place.id == name]
        return values

    def as_kernel(self) -> CompileError | None:
        """Why the function cannot be launched, though a kernel may call it."""
        for left, kind in self.returns:
            node: ast.AST = left
            given = kind is not None or not isinstance(left.value, ast.Call)
            if left.value is not None and given and not (isinstance(kind, Known) and kind.value is None):
                return self.refused(node, "a kernel that returns a value", "store it in an array that is an argument")
        for name, node in self.literals.items():
            reason = f"the size {name} of an array is an argument, not a compile-time constant"
            return self.refused(node, reason, "write a number, or a global that is one; or close over it in a factory")
        return None

    def agree(self, kind: Kind) -> None:
        """Check the joint kind of the values that the function returns."""
        if isinstance(kind, Known) and isinstance(kind.value, Clash):
            one, other = described(kind.value.one), described(kind.value.other)
            reason = f"{self.function.__name__} returns {one} on one path and {other} on another"
            self.refuse(self.returns[-1][0], reason, "return values of one type")

    # Expressions

    def raw(self, node: ast.expr, test: bool = False) -> Typed:
        self.hold(syntax.expression(node, node in self._listed))
        try:
            new, kind = super().raw(node, test)
        except Unsupported as reason:
            if not isinstance(node, ast.Name):
                raise
            raise self.refused(node, str(reason), "define it in the module, before the first launch") from None
        self.kinds[node] = kind
        if isinstance(kind, Known) and isinstance(kind.value, Clash):
            self.refuse(node, self._clash(node, kind.value), "use a variable for each")
        value = kind.value if isinstance(kind, Known) else _MISSING
        if type(value) is int and not -(2**63) <= value < 2**64:
            self.refuse(node, f"the number {value} has more than 64 bits", f"write a float: {float(value)!r}")
        name = node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.Name | ast.Attribute) and name not in self.scope:
            held = self.captured.get(name, value)
            if held is not _MISSING and (found := names.refusal(held, ast.unparse(node))):
                self.refuse(node, *found)
        if test:
            self.truth(node, kind)
        return new, kind

    def truth(self, node: ast.expr, kind: Kind) -> None:
        """Check a value whose truth is tested."""
        if scalar(kind) is not None or isinstance(kind, Array) or kind is LATE:
            self.resolved(node, "not a" if node is self._negated else "1 if a else 0", kind, called="the truth")

    def _clash(self, node: ast.expr, clash: Clash) -> str:
        what = f"{node.id} is" if isinstance(node, ast.Name) else "this is"
        return f"{what} {described(clash.one)} on one path and {described(clash.other)} on another"

    def decided(self, test: ast.expr, scope: dict[str, Kind] | None = None) -> bool | None:
        known = self.scope if scope is None else scope
        for part in ast.walk(test):
            kind = known.get(part.id) if isinstance(part, ast.Name) else None
            if isinstance(kind, Known) and isinstance(kind.value, Clash):
                assert isinstance(part, ast.Name)
                self.refuse(part, self._clash(part, kind.value), "use a variable for each")
        match test:  # which Numba decides for numbers
            case ast.Call(ast.Name("isinstance"), [ast.Name(name), ast.Name("int" | "float" as of)], []):
                if (one := scalar(known.get(name))) is not None and one.name != "bool":
                    return (one.name in FLOATS) == (of == "float")
                if sort(known.get(name)) in ("tuple", "array"):
                    return False
        try:
            return super().decided(test, scope)
        except Unsupported as reason:
            raise self.refused(test, str(reason), "define it in the module, before the first launch") from None

    def attribute(self, node: ast.Attribute, kind: Kind, name: str) -> Typed:
        spelled = f"{ast.unparse(node.value)}.{name}" if isinstance(node.value, ast.Name | ast.Attribute) else name
        of_complex = isinstance(kind, Array) and (kind.dtype is None or kind.dtype in COMPLEX)
        parts: tuple[str, ...] = ("conj", "conjugate", "imag") if of_complex else ()
        parts += kind.record.names or () if isinstance(kind, Array) and kind.record else ()
        if isinstance(kind, Array) and name not in (*_ARRAY, *parts):
            self.refuse(node, NewArray(f"{spelled}: an array in a kernel has no {name}"), calls.method(name))
        if scalar(kind) is not None and name not in _SCALAR:
            self.refuse(node, f"{spelled}: a number has no {name}", calls.method(name))
        if sort(kind) in ("text", "texts") and name not in _TEXT:
            self.refuse(node, f"{spelled}: text has no {name} in a kernel", "format text in the caller")
        if (named := named_of(kind)) is not None and name not in named._fields:
            self.refuse(node, f"{spelled}: a {named.__name__} has no field {name}", "use one of its fields")
        if items_of(kind) is not None and name in ("count", "index" if isinstance(kind, Known) else "__len__"):
            self.refuse(node, f"{spelled}: a tuple in a kernel has no {name}", "write a loop over it")
        if isinstance(kind, Known) and (reason := calls.lacking(kind.value, name, spelled)):
            self.refuse(node, *reason)
        return super().attribute(node, kind, name)

    def _Subscript(self, node: ast.Subscript) -> Typed:
        typed = super()._Subscript(node)
        self.indexed(node)
        return typed

    def indexed(self, node: ast.Subscript) -> None:
        """Check an index."""
        base, at = self.kinds.get(node.value), self.kinds.get(node.slice)
        for part in (at.items if isinstance(at, Tuple) else (at,)) if isinstance(base, Array) and base.dtype else ():
            if scalar(part) is not None or part is LATE:
                self.resolved(node, "A[b]", base, part, called="an index")
        self.hold(index(node, base, at))

    def _UnaryOp(self, node: ast.UnaryOp) -> Typed:
        if isinstance(node.op, ast.Not):
            self._negated = node.operand
        return super()._UnaryOp(node)

    def _Compare(self, node: ast.Compare) -> Typed:
        pairs = zip(node.ops, node.comparators, strict=True)
        self._listed |= {part for op, part in pairs if isinstance(op, ast.In | ast.NotIn)}
        return super()._Compare(node)

    def _BoolOp(self, node: ast.BoolOp, test: bool = False) -> Typed:
        typed = super()._BoolOp(node, test)
        for value in node.values[:-1]:
            self.truth(value, self.kinds.get(value))
        return typed

    def called(self, node: ast.Call, test: bool) -> Typed:
        typed = super().called(node, test)
        self.hold(calls.call(self, node))
        return typed

    def _function(
        self, node: ast.Call, function: types.FunctionType, old: ast.Call, args: list[Typed], named: Any
    ) -> Typed:
        self.hold(calls.device(old, function))
        self.needed: frozenset[str] = frozenset()
        typed = super()._function(node, function, old, args, named)
        self.hold(calls.literals(self, old, function, self.needed))
        return typed


def _allocates() -> bool:
    """Whether kernels may create arrays: Numba's runtime is turned on, by the environment or by its configuration."""
    config = sys.modules.get("numba.cuda.core.config") or sys.modules.get("numba.core.config")
    set_there = os.environ.get("NUMBA_CUDA_ENABLE_NRT", "0") not in ("", "0")
    return set_there or bool(getattr(config, "CUDA_ENABLE_NRT", False))
