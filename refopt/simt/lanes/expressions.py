"""Generates expressions for lanes: each is evaluated once for all of them.

An expression that has an effect, or reads memory, becomes a separate statement, so that the order is preserved.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable, Iterable
from keyword import iskeyword
from typing import Any

import numpy as np

from ..base import state
from ..base.scalars import COMPLEX, SIGNS
from ..base.variables import reads, stores
from ..compiled.kinds import Array, Known, Record, items_of, scalar
from ..machine import atomics
from ..memory import shared
from . import device
from .forms import Form, Program, of_values
from .typed import LaneTyper, Refused

_DIMENSIONS = {id(getattr(state, name)): name for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}
OPERATORS = {getattr(ast, name): sign for name, sign in SIGNS.items()} | {ast.Is: "is", ast.IsNot: "is not"}
_OF_ARRAYS = ["shape", "size", "ndim", "dtype", "itemsize", "nbytes", "strides", "T"]
NOTHING = object()


def listed(names: Iterable[str]) -> str:
    """The source of a tuple of expressions."""
    return f"({''.join(f'{name}, ' for name in names)})"


def _kind(node: ast.AST) -> Any:
    return getattr(node, "typed_as", None)


class Expressions:
    """Generates the source of one function's expressions; ``lines`` are the statements so far."""

    def __init__(self, program: Program, form: Form, typer: LaneTyper, tree: ast.FunctionDef) -> None:
        self.program, self.form, self.typer = program, form, typer
        self.lines: list[str] = []
        self.locals: set[str] = set()
        self.defined: set[str] = set()  # variables that have a value
        # Variables that an expression may assign: parts of it to the left must use the value from before.
        named = {part.target.id for part in ast.walk(tree) if isinstance(part, ast.NamedExpr)}
        self.assigned = {name for name in named if not name.startswith("_simt_")}

    def refuse(self, node: Any, _: Any = None) -> Any:
        """Refuse a node that has no form."""
        raise Refused(f"{type(node).__name__} in {self.typer.function.__name__}, line {getattr(node, 'lineno', 0)}")

    def variables(self, names: Iterable[str]) -> list[str]:
        """Variables to pass; those without a value yet are set to None."""
        names = sorted(names)
        new = [name for name in names if name not in self.defined]
        self.lines += [f"v_{name} = None" for name in new]
        self.defined.update(new)
        return [f"v_{name}" for name in names]

    def inner(self, body: Callable[[], Any], parameters: list[str], results: list[str]) -> str:
        """Generate a function for a part of this one."""
        outer, defined, self.lines = self.lines, set(self.defined), []
        body()
        name = self.program.name("part")
        self.program.function(name, parameters, [*self.lines, f"return {listed(results)}"])
        self.lines, self.defined = outer, defined
        return name

    def effect(self, text: str) -> str:
        """The value of an expression that reads memory or has an effect."""
        self.form.pure = False
        return self.held(text)

    def held(self, text: str) -> str:
        """A value in a new variable, unless it already is a variable or a constant."""
        if text.replace("_", "a").isalnum():
            return text
        name = self.program.name("t")
        self.lines.append(f"{name} = {text}")
        return name

    def expr(self, node: ast.expr) -> str:
        """The source of an expression."""
        return getattr(self, f"_{type(node).__name__}", self.refuse)(node)

    def static(self, node: ast.expr) -> Any:
        """The object that an expression always evaluates to, or `NOTHING`."""
        if isinstance(node, ast.Name) and node.id not in self.locals:
            names = self.typer.constants if node.id in self.typer.constants else self.typer.captured
            return names[node.id] if node.id in names else getattr(builtins, node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            if isinstance(owner, types.ModuleType | types.SimpleNamespace | type | np.dtype):
                return getattr(owner, node.attr, NOTHING)
        return NOTHING

    def _Constant(self, node: ast.Constant) -> str:
        return self.program.constant(node.value)

    def _Name(self, node: ast.Name) -> str:
        if node.id in self.locals:
            (name,) = self.variables([node.id])
            return self.held(f"({name})") if node.id in self.assigned else name
        value = self.static(node)
        return self.refuse(node) if value is NOTHING else self.program.constant(value)

    def _Attribute(self, node: ast.Attribute) -> str:
        owner, kind = self.static(node.value), _kind(node.value)
        if id(owner) in _DIMENSIONS:
            return f'L.of("{_DIMENSIONS[id(owner)]}.{node.attr}")'
        if node.attr == "laneid" and isinstance(owner, types.ModuleType):
            return 'L.of("lane")'
        if (value := self.static(node)) is not NOTHING:
            return self.program.constant(value)
        if (one := scalar(kind)) is not None and node.attr in ("real", "imag"):
            whole = node.attr == "real" and one.name not in COMPLEX
            return self.expr(node.value) if whole else f"{self.expr(node.value)}.{node.attr}"
        if not isinstance(kind, Array) or node.attr not in _OF_ARRAYS:
            raise Refused(f"attribute {node.attr}")
        return f"{self.expr(node.value)}.{node.attr}"

    def _Subscript(self, node: ast.Subscript) -> str:
        kind = _kind(node.value)
        if isinstance(kind, Record) or (isinstance(kind, Array) and kind.dtype is None):
            raise Refused("records")
        base, index = self.expr(node.value), self.expr(node.slice)
        if items_of(kind) is not None and (isinstance(node.slice, ast.Slice) or isinstance(_kind(node.slice), Known)):
            return f"{base}[{index}]"
        return self.effect(f"get(L, {base}, {index})")

    def _Slice(self, node: ast.Slice) -> str:
        parts = (node.lower, node.upper, node.step)
        return f"slice({', '.join(self.expr(part) if part else 'None' for part in parts)})"

    def _Tuple(self, node: ast.Tuple) -> str:
        return listed(map(self.expr, node.elts))

    def _Starred(self, node: ast.Starred) -> str:
        return f"*{self.expr(node.value)}"

    def _NamedExpr(self, node: ast.NamedExpr) -> str:
        self.lines.append(f"v_{node.target.id} = {self.expr(node.value)}")
        self.defined.add(node.target.id)
        return f"v_{node.target.id}"

    def _BinOp(self, node: ast.BinOp) -> str:
        left, right = self.expr(node.left), self.expr(node.right)
        power = int(right) if right.isdigit() else 0
        if power and power & (power - 1) == 0 and isinstance(node.op, ast.FloorDiv | ast.Mod):  # a division is slow
            return f"({left} {f'& {power - 1}' if isinstance(node.op, ast.Mod) else f'>> {power.bit_length() - 1}'})"
        return f"({left} {OPERATORS[type(node.op)]} {right})"

    def _UnaryOp(self, node: ast.UnaryOp) -> str:
        operand = self.expr(node.operand)
        return f"opposite({operand})" if isinstance(node.op, ast.Not) else f"({OPERATORS[type(node.op)]}{operand})"

    def _Compare(self, node: ast.Compare) -> str:
        parts = [self.expr(part) for part in (node.left, *node.comparators)]
        parts[1:-1] = map(self.held, parts[1:-1])
        text = ""
        for left, op, right in zip(parts, node.ops, parts[1:], strict=False):
            if type(op) not in OPERATORS:
                self.refuse(node)
            test = f"({left} {OPERATORS[type(op)]} {right})"
            text = f"both({text}, {test})" if text else test
        return text

    def _BoolOp(self, node: ast.BoolOp) -> str:
        every = isinstance(node.op, ast.And)
        text = self.held(self.expr(node.values[0]))
        for value in node.values[1:]:
            whether = scalar(_kind(value))
            helper = ("both" if every else "any_of") if whether and whether.name == "bool" else ""
            text = self.held(self._either(text, value if every else text, text if every else value, helper))
        return text

    def _IfExp(self, node: ast.IfExp) -> str:
        return self._either(self.held(self.expr(node.test)), node.body, node.orelse)

    def _either(self, test: str, body: ast.expr | str, orelse: ast.expr | str, helper: str = "") -> str:
        """One of two expressions, one of which may be a variable; each is evaluated only for the lanes that need it.

        If neither reads memory or has an effect, both are evaluated for all lanes.
        """
        ways = body, orelse
        outer, defined, pure = self.lines, set(self.defined), self.form.pure
        self.lines, self.form.pure = [], True
        texts = [way if isinstance(way, str) else self.expr(way) for way in ways]
        added, self.lines = self.lines, outer
        if self.form.pure:
            self.lines += added
            self.form.pure = pure
            if helper:
                return f"{helper}({test}, {texts[isinstance(body, str)]})"
            return f"pick({test}, {', '.join(texts)})"
        self.defined = defined
        parts = [way for way in ways if not isinstance(way, str)]
        if stores(parts):
            raise Refused("an assignment in part of an expression")
        given = [way for way in ways if isinstance(way, str) and way.isidentifier() and not iskeyword(way)]
        ins = list(dict.fromkeys([*self.variables(self.locals & reads(parts)), *given]))
        name = self.program.name("t")

        def one(way: ast.expr | str) -> Callable[[], None]:
            return lambda: self.lines.append(f"{name} = {way if isinstance(way, str) else self.expr(way)}")

        yes, no = (self.inner(one(way), ins, [name]) for way in ways)
        self.lines.append(f"({name}, ) = branch(L, {test}, {yes}, {no}, {listed(ins)})")
        return name

    def _Call(self, node: ast.Call) -> str:
        return self.call(node, True)

    def call(self, node: ast.Call, used: bool) -> str:
        """A call; ``used`` says whether its value is used."""
        function = self.static(node.func)
        if function is NOTHING or type(function).__hash__ is None:
            return self._method(node)
        if function in (shared.shared.array, shared.local.array):
            return self._array(node, function is shared.shared.array)
        kind = _kind(node.args[0]) if node.args else None
        args = [self.expr(arg) for arg in node.args]
        if isinstance(function, Form):
            args += [f"v_{k.arg}={self.expr(k.value)}" for k in node.keywords]
            self.form.waits |= function.waits
            self.form.cooperative |= function.cooperative
            return (self.held if function.pure else self.effect)(f"{function.name}({', '.join(['L', *args])})")
        if node.keywords and function is not zip:
            raise Refused("a keyword argument")
        if hasattr(function, "__simt_types__"):
            return self._twin(function, args)
        if function in device.ATOMICS:
            if not (isinstance(kind, Array) and kind.dtype in atomics.NUMBERS):
                raise Refused("an atomic on an array of unknown type")
            self.form.waits = True
            return self.effect(f"atomic({', '.join([self.program.constant(function), str(used), 'L', *args])})")
        if function in device.OF_LANES:
            self.form.waits |= function.__name__ in device.FENCES
            self.form.cooperative |= function.__name__ == "this_grid"
            return self.effect(f"{self.program.constant(device.OF_LANES[function])}({', '.join(['L', *args])})")
        return f"{self.program.constant(of_values(function))}({', '.join(args)})"

    def _twin(self, function: Any, args: list[str]) -> str:
        """A call of a PTX twin: without operands it is a fence or a hint, without results a store."""
        if hasattr(function, "__simt_warp__"):
            return self.effect(f"of_warps({', '.join([self.program.constant(function), 'L', *args])})")
        form = getattr(function, "__simt_lanes__", None)
        if not args and not function.__simt_types__:
            form, self.form.waits = function, True
        if form is None:
            raise Refused(f"{function.__name__} has no form for lanes")
        name = self.program.constant(form)
        if function.__simt_types__:
            return self.effect(f"{name}({', '.join(args)})")
        return self.effect(f"of_all({', '.join([name, 'L', *args])})")

    def _array(self, node: ast.Call, block: bool) -> str:
        """A shared or a local array; each call is a site of its own."""
        kind = _kind(node)
        if not isinstance(kind, Array) or kind.dtype is None:
            raise Refused("an array of unknown type")
        named = [k.value for k in node.keywords if k.arg in ("shape", "dtype")]
        args = map(self.expr, [*node.args[:2], *named])
        where = ["shared_array(L", self.program.name("")] if block else ["local_array(L"]
        return self.effect(f"{', '.join([*where, *args])})")

    def _method(self, node: ast.Call) -> str:
        place = node.func
        if isinstance(place, ast.Attribute) and place.attr == "view" and scalar(_kind(place.value)):
            return f"{self.expr(place.value)}.view({self.expr(node.args[0])})"
        if isinstance(place, ast.Attribute) and place.attr == "conjugate" and scalar(_kind(place.value)):
            return f"{self.expr(place.value)}.conjugate()"
        if isinstance(place, ast.Attribute) and place.attr == "sync" and self.form.cooperative:
            return self.effect(f"{self.expr(place.value)}.sync(L)")
        raise Refused("a call of something that is known only at run time")
