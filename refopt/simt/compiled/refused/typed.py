"""A typer that refuses what Numba refuses: what it reads in the text, and what follows from types."""

from __future__ import annotations

import ast
import linecache
import os
import types
from collections.abc import Iterable
from typing import Any

from ...errors import CompileError, Place
from ...places import is_internal
from ...scalars import FLOATS
from ..expressions import Typed, Unsupported
from ..kinds import Array, Clash, Kind, Known, Record, Scalar, Tuple, items_of, scalar
from ..loops import Loops
from . import calls, names, syntax
from .elements import described, index
from .syntax import NewArray, Refusal

_ARRAY = frozenset((
    "T", "all", "any", "argmax", "argmin", "ctypes", "dtype", "fill", "flat", "item", "itemsize", "mean", "nbytes",
    "ndim", "prod", "real", "reshape", "shape", "size", "std", "strides", "sum", "transpose", "var", "view",
))  # fmt: skip
_SCALAR = {"bit_count", "conjugate", "imag", "item", "real", "view"}
_TEXT = frozenset((
    "find", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isspace", "istitle",
    "isupper", "rfind", "rindex",
))  # fmt: skip
_BITWISE = {"BitAnd", "BitOr", "BitXor", "LShift", "RShift"}
_WHOLE = NewArray("an operator on a whole array, whose result would be a new array")
_COMPARED = NewArray("a comparison of a whole array, whose result would be a new array")
_ELEMENTS = "loop over the elements, or let each thread take one: x[i]"
_MISSING = object()


class Refusals(Loops):
    """The visits of all that the layers before have, each looked at before its type is used."""

    function: Any

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[ast.AST, Kind] = {}  # of the expressions of the text
        self.captured: dict[str, Any] = {}
        self.literals: dict[str, ast.expr] = {}  # parameters that have to be literals, and where
        self.parameters: frozenset[str] = frozenset()
        self._text: ast.AST | None = None
        self._listed: set[ast.AST] = set()  # lists that are iterated over, or looked in: tuples to the compiler

    def refused(self, node: ast.AST, reason: str, instead: str) -> CompileError:
        """The error for a place in the text."""
        code, line = self.function.__code__, getattr(node, "lineno", 0)
        source = linecache.getline(code.co_filename, line)
        prefix = source.encode()[: getattr(node, "col_offset", 0)].decode(errors="replace")
        place = Place(self.function.__name__, code.co_filename, line, None, None)
        return CompileError(reason, place, len(prefix) + 1, source.rstrip(), instead)

    def refuse(self, node: ast.AST, reason: str, instead: str) -> None:
        """Say that Numba refuses a place in the text; the executor's own kernels stand for what it has compiled."""
        own = is_internal(self.function.__code__.co_filename)
        arrays = isinstance(reason, NewArray) and os.environ.get("NUMBA_CUDA_ENABLE_NRT", "0") not in ("", "0")
        if not own and not arrays:
            raise self.refused(node, reason, instead)

    def hold(self, found: Iterable[Refusal]) -> None:
        """Raise the first of what is refused."""
        for each in found:
            self.refuse(*each)

    def read(self, node: ast.FunctionDef | ast.Lambda) -> None:
        """Look at the text of the function, as the compiler does before it knows any type."""
        self._text = node
        arguments = node.args
        self.parameters = frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
        self.hold(syntax.anywhere(node))

    def values_of(self, name: str) -> list[ast.expr]:
        """What is assigned to a variable, anywhere in the function; None where that is no plain assignment."""
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
        """Why the function cannot be launched itself, though a kernel may call it."""
        for left, kind in self.returns:
            node: ast.AST = left
            given = kind is not None or not isinstance(left.value, ast.Call)
            if left.value is not None and given and not (isinstance(kind, Known) and kind.value is None):
                return self.refused(node, "a value that a kernel returns", "store it in an array that is an argument")
        for name, node in self.literals.items():
            reason = f"the size {name} of an array, which is an argument: no compile-time constant"
            return self.refused(node, reason, "write a number, or a global that is one; a factory can close over it")
        return None

    def agree(self, kind: Kind) -> None:
        """Hold the joint kind of what the function returns."""
        if isinstance(kind, Known) and isinstance(kind.value, Clash):
            one, other = described(kind.value.one), described(kind.value.other)
            reason = f"{self.function.__name__} returns {one} on one way and {other} on another"
            self.refuse(self.returns[-1][0], reason, "return one type of value")

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
            self.refuse(node, self._clash(node, kind.value), "give each of the two its own variable")
        if isinstance(node, ast.Name | ast.Attribute):
            held = self.captured.get(node.id, _MISSING) if isinstance(node, ast.Name) else _MISSING
            if isinstance(node, ast.Name) and node.id in self.scope:
                held = _MISSING
            elif held is _MISSING and isinstance(kind, Known):
                held = kind.value
            if held is not _MISSING and (found := names.refusal(held, ast.unparse(node))):
                self.refuse(node, *found)
        if test and isinstance(kind, Array):
            self.refuse(node, "the truth of an array", "test an element, or x is not None")
        return new, kind

    def _clash(self, node: ast.expr, clash: Clash) -> str:
        what = f"{node.id} is" if isinstance(node, ast.Name) else "this is"
        return f"{what} {described(clash.one)} on one way and {described(clash.other)} on another"

    def decided(self, test: ast.expr, scope: dict[str, Kind] | None = None) -> bool | None:
        known = self.scope if scope is None else scope
        for part in ast.walk(test):
            kind = known.get(part.id) if isinstance(part, ast.Name) else None
            if isinstance(kind, Known) and isinstance(kind.value, Clash):
                assert isinstance(part, ast.Name)
                self.refuse(part, self._clash(part, kind.value), "give each of the two its own variable")
        try:
            return super().decided(test, scope)
        except Unsupported as reason:
            raise self.refused(test, str(reason), "define it in the module, before the first launch") from None

    def attribute(self, node: ast.Attribute, kind: Kind, name: str) -> Typed:
        spelled = f"{ast.unparse(node.value)}.{name}" if isinstance(node.value, ast.Name | ast.Attribute) else name
        if isinstance(kind, Array) and name not in _ARRAY and not (kind.record and name in (kind.record.names or ())):
            self.refuse(node, NewArray(f"{spelled}: an array of a kernel has no {name}"), calls.method(name))
        if scalar(kind) is not None and name not in _SCALAR:
            self.refuse(node, f"{spelled}: a number has no {name}", calls.method(name))
        if isinstance(kind, Known) and isinstance(kind.value, str) and name not in _TEXT:
            self.refuse(node, f"{spelled}: text has no {name} in a kernel", "make text in the caller")
        constant = isinstance(kind, Known) and type(kind.value) is tuple
        if (isinstance(kind, Tuple) and name in ("count", "__len__")) or (constant and name in ("count", "index")):
            self.refuse(node, f"{spelled}: a tuple of a kernel has no {name}", "write a loop over it")
        if isinstance(kind, Known) and (reason := calls.lacking(kind.value, name, spelled)):
            self.refuse(node, *reason)
        return super().attribute(node, kind, name)

    def _Subscript(self, node: ast.Subscript) -> Typed:
        typed = super()._Subscript(node)
        self.hold(index(node, self.kinds.get(node.value), self.kinds.get(node.slice)))
        return typed

    def operation(self, node: ast.expr, symbol: str, left: Typed, right: Typed) -> Typed:
        kinds = left[1], right[1]
        one, other = map(scalar, kinds)
        if any(isinstance(kind, Array) for kind in kinds):
            self.refuse(node, _WHOLE, _ELEMENTS)
        if one is not None and other is not None:
            if symbol in _BITWISE and (one.name in FLOATS or other.name in FLOATS):
                reason = f"a bit operator on {one.name} and {other.name}"
                self.refuse(node, reason, "convert to an integer first: int(x), or x.view(np.int32) for its bits")
        elif sum(items_of(kind) is not None for kind in kinds) == 1 and None not in kinds and symbol != "Mult":
            reason = f"{described(kinds[0])} and {described(kinds[1])} in one operation"
            self.refuse(node, reason, "use its parts: t[0]")
        elif any(_is_text(kind) for kind in kinds) and not (all(map(_is_text, kinds)) and symbol == "Add"):
            if None not in kinds:
                self.refuse(node, "an operator on text", 'print takes several values: print("x is", x)')
        elif any(isinstance(kind, Known) and kind.value is None for kind in kinds) and None not in kinds:
            self.refuse(node, "None in a computation", "use a number that stands for nothing, such as -1")
        return super().operation(node, symbol, left, right)

    def _UnaryOp(self, node: ast.UnaryOp) -> Typed:
        if not isinstance(node.op, ast.Not):
            kind = self.visit(node.operand)[1]
            one = scalar(kind)
            if isinstance(kind, Array):
                self.refuse(node, _WHOLE, _ELEMENTS)
            if items_of(kind) is not None or _is_text(kind):
                self.refuse(node, f"{described(kind)} with a sign", "use its parts: t[0]")
            if one is not None and isinstance(node.op, ast.Invert) and one.name in FLOATS:
                self.refuse(node, f"~ of {one.name}", "convert to an integer first: int(x)")
        return super()._UnaryOp(node)

    def _Compare(self, node: ast.Compare) -> Typed:
        self._listed |= {
            part for op, part in zip(node.ops, node.comparators, strict=True) if isinstance(op, ast.In | ast.NotIn)
        }
        typed = super()._Compare(node)
        parts = [self.kinds.get(part) for part in (node.left, *node.comparators)]
        for one, other, op in zip(parts, parts[1:], node.ops, strict=False):
            if isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn):
                continue
            kinds = one, other
            nothing = any(isinstance(kind, Known) and kind.value is None for kind in kinds)
            if any(isinstance(kind, Array) for kind in kinds) and not nothing:
                self.refuse(node, _COMPARED, _ELEMENTS)
            if not isinstance(op, ast.Eq | ast.NotEq) and sum(map(_is_text, kinds)) == 1 and None not in kinds:
                self.refuse(node, "text compared with what is none", "compare numbers")
        return typed

    def _BoolOp(self, node: ast.BoolOp, test: bool = False) -> Typed:
        typed = super()._BoolOp(node, test)
        for value in node.values[:-1]:
            if isinstance(self.kinds.get(value), Array):
                self.refuse(value, "the truth of an array", "test an element, or x is not None")
        return typed

    def _Lambda(self, node: ast.Lambda) -> Typed:
        self.hold(syntax.inner(node))
        return super()._Lambda(node)

    def called(self, node: ast.Call, test: bool) -> Typed:
        typed = super().called(node, test)
        self.hold(calls.call(self, node))
        return typed

    def _function(
        self, node: ast.Call, function: types.FunctionType, old: ast.Call, args: list[Typed], named: Any
    ) -> Typed:
        self.hold(calls.device(old, function))
        self.needed: frozenset[str] = frozenset()
        try:
            typed = super()._function(node, function, old, args, named)
        except RecursionError:
            reason = f"{function.__name__} calls itself"
            raise self.refused(old, reason, "write a loop, with what is still to do in an array") from None
        self.hold(calls.literals(self, old, function, self.needed))
        return typed

    # Statements

    def _do_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        self.hold(syntax.expression(node.value))
        return super()._do_Expr(node)

    def _do_Try(self, node: ast.Try) -> list[ast.stmt]:
        self.hold(syntax.expression(node))
        raise Unsupported("try")

    _do_TryStar = _do_Try

    def _do_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if node.msg is not None:
            self._constant_of(node.msg)
        return super()._do_Assert(node)

    def _do_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        self.hold(syntax.raised(node))
        if node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            kind = self.visit(raised)[1]
            known = isinstance(kind, Known) and isinstance(kind.value, type) and issubclass(kind.value, BaseException)
            if kind is not None and not known:
                self.refuse(raised, "what is raised is no exception", "raise ValueError, and the like, with constants")
            for arg in node.exc.args if isinstance(node.exc, ast.Call) else ():
                self._constant_of(arg)
        return super()._do_Raise(node)

    def _constant_of(self, node: ast.expr) -> None:
        kind = self.visit(node)[1]
        if kind is not None and not isinstance(kind, Known) and not isinstance(node, ast.Tuple):
            self.refuse(node, "an exception with a value that is not constant", "say it in words, or print the value")

    def _do_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Lambda):
                self.refuse(decorator, "a decorator inside a kernel", "define the function beside the kernel")
        self.hold(syntax.inner(node))
        return super()._do_FunctionDef(node)

    def _do_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> list[ast.stmt]:
        self.scope[node.name] = None
        return [node]

    def _do_For(self, node: ast.For) -> list[ast.stmt]:
        self._listed.add(node.iter)
        return super()._do_For(node)

    def _loop(self, node: Any, iterated: ast.expr | None = None, element: Kind = None) -> list[ast.stmt]:
        if iterated is not None:
            self.hold(calls.iterated(node.iter, self.kinds.get(node.iter)))
        return super()._loop(node, iterated, element)

    def _target(self, node: ast.expr, kind: Kind) -> ast.expr:
        if isinstance(node, ast.Tuple | ast.List):
            items, count = items_of(kind), len(node.elts)
            if items is not None and len(items) != count:
                self.refuse(node, f"{count} names for a tuple of {len(items)}", "take as many names as it has parts")
            if scalar(kind) is not None:
                self.refuse(node, f"{count} names for a number", "cuda.grid(2) gives two numbers, cuda.grid(1) one")
        if isinstance(node, ast.Subscript):
            new = super()._target(node, kind)
            self._stored_at(node, kind)
            return new
        return super()._target(node, kind)

    def _store(self, node: ast.stmt, target: ast.Subscript, value: ast.expr, kind: Kind) -> ast.stmt:
        new = super()._store(node, target, value, kind)
        self._stored_at(target, kind)
        return new

    def _stored_at(self, target: ast.Subscript, kind: Kind) -> None:
        """Look at an assignment to an element, or to a view, of a value of a kind."""
        base, at = self.kinds.get(target.value), self.kinds.get(target.slice)
        self.hold(index(target, base, at))
        if items_of(base) is not None:
            self.refuse(target, "an assignment to a part of a tuple", "make it an array: cuda.local.array")
        inner = target.value
        if isinstance(inner, ast.Name) and inner.id not in self.scope and isinstance(base, Array):
            reason = f"an assignment to {inner.id}, which the kernel captures: it is constant"
            self.refuse(target, reason, "make it an argument of the kernel")
        place = self.item(base, at, target.slice) if isinstance(base, Array) else None
        if isinstance(place, Array) and isinstance(kind, Array):
            instead = "copy by elements, in a loop or one for each thread"
            self.refuse(target, NewArray("a copy of a whole array"), instead)
        if isinstance(place, Scalar):
            wrong = isinstance(kind, Tuple) or (isinstance(kind, Array) and kind.axes > 0)
            wrong = wrong or _is_text(kind) or isinstance(getattr(kind, "value", 0), complex)
            if wrong or (isinstance(kind, Known) and kind.value is None):
                self.refuse(target, f"{described(kind)} for an element of {place.name}", "store one number")

    def _do_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        new = super()._do_Assign(node)
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                owner = self.kinds.get(target.value)
                if owner is not None and not isinstance(owner, Record):
                    self.refuse(target, f"an assignment to .{target.attr}", "only fields of records can be assigned to")
        return new

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        target = node.target
        if isinstance(target, ast.Name) and isinstance(self.scope.get(target.id), Array):
            self.refuse(target, _WHOLE, _ELEMENTS)
        new = super()._do_AugAssign(node)
        if isinstance(target, ast.Subscript):
            base, at = self.kinds.get(target.value), self.kinds.get(target.slice)
            if isinstance(base, Array) and isinstance(self.item(base, at, target.slice), Array):
                self.refuse(target, NewArray("an operator on a view of an array"), _ELEMENTS)
            self._stored_at(target, None)
        return new


def _is_text(kind: Kind) -> bool:
    return isinstance(kind, Known) and isinstance(kind.value, str)
