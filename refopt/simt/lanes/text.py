"""Writes the form of a function for lanes as Python text.

Each expression is evaluated once for all lanes. What has an effect, or reads memory, is a statement of its own, so that
the order stays. A branch or a loop is a function of the lanes and of variables, which `flow` calls with those that take
it.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import atomics, shared, state, warps
from ..compiled import functions
from ..compiled.kinds import Array, Known, Record, items_of, scalar
from ..conversions import wrapped
from . import device, flow, values
from .structure import RESULT, Structure
from .typed import LaneTyper, Refused
from .variables import live, live_before, reads, stores

_DIMENSIONS = {id(getattr(state, name)): name for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}
_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.LShift: "<<",
    ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not",
}  # fmt: skip
_EXACT = {np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.abs, np.negative, np.floor, np.ceil, np.trunc, np.rint,
          np.isnan, np.isinf, np.isfinite, np.signbit, np.copysign, np.fmax, np.fmin, np.maximum, np.minimum}  # fmt: skip
_AS_THEY_ARE = {tuple, zip, len}
_HELPERS = {"branch": flow.branch, "loop": flow.loop, "each_of": flow.each_of, "pick": values.pick, "both": values.both,
            "any_of": values.any_of, "opposite": values.opposite, "get": device.get, "put": device.put}  # fmt: skip
_NOTHING = object()


class Form:
    """A function for lanes: its name in the text, what it returns, and whether it does atomics or fences."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.result: Any = None
        self.waits = False
        self.cooperative = False  # it waits for other blocks
        self.pure = True  # it neither reads memory nor has an effect
        self.calls: dict[Any, Any] = {}


class Program:
    """The text of a kernel and of all that it calls, and the objects that it names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = dict(_HELPERS)
        self.known: dict[int, str] = {}
        self.count = 0

    def name(self, label: str) -> str:
        self.count += 1
        return f"{label}{self.count}"

    def constant(self, value: Any) -> str:
        """The name of an object."""
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        if isinstance(value, np.ndarray) or hasattr(value, "buffer"):
            raise Refused("it captures an array")
        if id(value) not in self.known:
            self.known[id(value)] = name = self.name("k")
            self.names[name] = value
        return self.known[id(value)]


class Writer:
    """Writes one function."""

    def __init__(self, program: Program, form: Form, typer: LaneTyper, tree: ast.FunctionDef) -> None:
        self.program, self.form, self.typer = program, form, typer
        args = tree.args
        body = Structure().function(tree.body)
        parameters = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        self.locals = {*parameters, *stores(body), *([args.vararg.arg] if args.vararg else [])}
        self.defined = self.locals - stores(body) | set(parameters)
        # Variables that an expression may assign: what stands before it has their value from before.
        self.assigned = {part.target.id for part in ast.walk(tree) if isinstance(part, ast.NamedExpr)}
        self.assigned = {name for name in self.assigned if not name.startswith("_simt_")}
        self.lines: list[str] = []
        defaults = dict(zip(parameters[::-1], (typer.function.__defaults__ or ())[::-1], strict=False))
        defaults |= typer.function.__kwdefaults__ or {}
        written = [f"v_{name}={self._default(defaults[name])}" if name in defaults else f"v_{name}" for name in parameters]
        if args.vararg:
            written.insert(len(args.posonlyargs) + len(args.args), f"*v_{args.vararg.arg}")
        self.block(body, {RESULT} & self.locals)
        end = f"return v_{RESULT}" if RESULT in self.locals else "return None"
        if RESULT not in self.defined:
            end = "return None"
        self._function(form.name, ", ".join(["L", *written]), [*self.lines, end])

    def _default(self, value: Any) -> str:
        return self.program.constant(np.float64(value) if type(value) is float else value)

    def _function(self, name: str, parameters: str, lines: list[str]) -> None:
        self.program.lines += [f"def {name}({parameters}):", *(f"    {line}" for line in lines), ""]

    # Statements

    def block(self, body: list[ast.stmt], after: set[str]) -> None:
        """Statements, with the variables that are read after them."""
        lives = [after]
        for node in reversed(body[1:]):
            lives.append(live(node, lives[-1]))
        for node, then in zip(body, reversed(lives), strict=False):
            getattr(self, f"_do_{type(node).__name__}", self._refuse)(node, then & self.locals)

    def _refuse(self, node: Any, _: Any = None) -> Any:
        raise Refused(f"{type(node).__name__} in {self.typer.function.__name__}, line {getattr(node, 'lineno', 0)}")

    def _do_Pass(self, node: ast.stmt, after: set[str]) -> None:
        pass

    _do_Delete = _do_Pass

    def _do_Raise(self, node: ast.stmt, after: set[str]) -> None:
        self.form.pure = False
        self.lines.append(f"{self.program.constant(device.failed)}(L)")

    def _do_Assert(self, node: ast.Assert, after: set[str]) -> None:
        self._do_If(ast.If(node.test, [], [ast.Raise()]), after)

    def _do_Expr(self, node: ast.Expr, after: set[str]) -> None:
        text = self.call(node.value, False) if isinstance(node.value, ast.Call) else self.expr(node.value)
        if "(" in text:
            self.lines.append(text)

    def _do_Assign(self, node: ast.Assign, after: set[str]) -> None:
        text = self.expr(node.value)
        if len(node.targets) > 1:
            text = self._held(text)
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                base = self.expr(target.value)
                self.form.pure = False
                self.lines.append(f"put(L, {base}, {self.expr(target.slice)}, {text})")
            else:
                self.lines.append(f"{self._target(target)} = {text}")
                self.defined |= stores([target])

    def _target(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return f"v_{node.id}"
        if isinstance(node, ast.Tuple | ast.List):
            return f"({''.join(f'{self._target(part)}, ' for part in node.elts)})"
        if isinstance(node, ast.Starred):
            raise Refused("a starred target")
        return self._refuse(node)

    def _do_AugAssign(self, node: ast.AugAssign, after: set[str]) -> None:
        if not isinstance(node.target, ast.Subscript):
            self._refuse(node)
        base, index = self._held(self.expr(node.target.value)), self._held(self.expr(node.target.slice))
        old = self._effect(f"get(L, {base}, {index})")
        self.lines.append(f"put(L, {base}, {index}, {old} {_OPERATORS[type(node.op)]} {self.expr(node.value)})")

    def _variables(self, names: Any) -> list[str]:
        """Variables to hand over; those that have no value yet get None."""
        names = sorted(names)
        for name in names:
            if name not in self.defined:
                self.lines.append(f"v_{name} = None")
                self.defined.add(name)
        return [f"v_{name}" for name in names]

    def _inner(self, body: Callable[[], None], parameters: list[str], results: list[str]) -> str:
        """A function of a part of this one."""
        outer, defined = self.lines, set(self.defined)
        self.lines = []
        body()
        name = self.program.name("part")
        self._function(name, ", ".join(["L", *parameters]), [*self.lines, f"return ({''.join(f'{r}, ' for r in results)})"])
        self.lines, self.defined = outer, defined
        return name

    def _do_If(self, node: ast.If, after: set[str]) -> None:
        test = self._held(self.expr(node.test))
        changed = (stores(node.body) | stores(node.orelse)) & after
        inside = self.locals & (live_before(node.body, changed) | live_before(node.orelse, changed))
        ins, outs = self._variables(inside), [f"v_{name}" for name in sorted(changed)]
        ways = [self._inner(lambda way=way: self._way(way, changed), ins, outs) for way in (node.body, node.orelse)]
        self.lines.append(f"{_targets(outs)}branch(L, {test}, {', '.join(ways)}, ({''.join(f'{x}, ' for x in ins)}))")
        self.defined |= changed

    def _way(self, body: list[ast.stmt], changed: set[str]) -> None:
        self.block(body, changed)
        self._variables(changed)

    def _do_While(self, node: ast.While | ast.For, after: set[str]) -> None:
        go, targets = node.go, stores([node.target]) if isinstance(node, ast.For) else set()  # type: ignore[union-attr]
        if isinstance(node, ast.While):
            self._spin(node.source)  # type: ignore[attr-defined]
        items = self._held(self.expr(node.iter)) if isinstance(node, ast.For) else ""
        before = live(node, after) & self.locals
        carried = (stores(node.body) | targets) & (before | after) - {go}
        fixed = before - carried - {go}
        first = [f"v_{go}"] if go else []
        given, changed = self._variables(fixed), [*first, *self._variables(carried)]
        self._variables({go} - {""})

        def body() -> None:
            if isinstance(node, ast.For):
                self.lines.append(f"{self._target(node.target)} = item")
                self.defined.update(targets)
            self.block(node.body, carried | fixed | {go})

        parameters = [*(["item"] if isinstance(node, ast.For) else []), *given, *changed]
        part = self._inner(body, parameters, changed)
        lists = ", ".join(f"({''.join(f'{x}, ' for x in each)})" for each in (given, changed))
        call = f"each_of(L, {items}, {part}, {bool(go)}, {lists})" if items else f"loop(L, {part}, {lists})"
        self.lines.append(f"{_targets(changed)}{call}")

    _do_For = _do_While

    def _spin(self, node: ast.While) -> None:
        """Refuse a loop whose end depends on what other threads do: by what it does in its test, or in an endless loop."""
        endless = isinstance(node.test, ast.Constant)
        for part in ast.walk(ast.Module(node.body, []) if endless else node.test):
            function = self.static(part.func) if isinstance(part, ast.Call) else None
            if getattr(function, "waits", False) or getattr(function, "__module__", "") == atomics.__name__:
                raise Refused("it waits for other threads")

    # Expressions

    def expr(self, node: ast.expr) -> str:
        """The text of an expression."""
        return getattr(self, f"_{type(node).__name__}", self._refuse)(node)

    def _effect(self, text: str) -> str:
        """The value of what reads memory or has an effect."""
        self.form.pure = False
        return self._held(text)

    def _held(self, text: str) -> str:
        """A value in a variable of its own, unless it is in one, or is a constant."""
        if text.replace("_", "a").isalnum():
            return text
        name = self.program.name("t")
        self.lines.append(f"{name} = {text}")
        return name

    def static(self, node: ast.expr) -> Any:
        """The object that an expression always is, or `_NOTHING`."""
        if isinstance(node, ast.Name) and node.id not in self.locals:
            for names in (self.typer.constants, self.typer.captured):
                if node.id in names:
                    return names[node.id]
            return getattr(builtins, node.id, _NOTHING)
        if isinstance(node, ast.Attribute):
            owner = self.static(node.value)
            if isinstance(owner, types.ModuleType | types.SimpleNamespace | type | np.dtype):
                return getattr(owner, node.attr, _NOTHING)
        return _NOTHING

    def _Constant(self, node: ast.Constant) -> str:
        return self.program.constant(node.value)

    def _Name(self, node: ast.Name) -> str:
        if node.id in self.locals:
            self._variables([node.id])
            return self._held(f"(v_{node.id})") if node.id in self.assigned else f"v_{node.id}"
        value = self.static(node)
        return self._refuse(node) if value is _NOTHING else self.program.constant(value)

    def _Attribute(self, node: ast.Attribute) -> str:
        owner = self.static(node.value)
        if id(owner) in _DIMENSIONS:
            return f'L.of("{_DIMENSIONS[id(owner)]}.{node.attr}")'
        if node.attr == "laneid" and isinstance(owner, types.ModuleType):
            return 'L.of("lane")'
        if (value := self.static(node)) is not _NOTHING:
            return self.program.constant(value)
        kind = getattr(node.value, "typed_as", None)
        if scalar(kind) is not None and node.attr == "real":
            return self.expr(node.value)
        if not isinstance(kind, Array) or node.attr not in "shape size ndim dtype itemsize nbytes strides T".split():
            raise Refused(f"attribute {node.attr}")
        return f"{self.expr(node.value)}.{node.attr}"

    def _Subscript(self, node: ast.Subscript) -> str:
        kind = getattr(node.value, "typed_as", None)
        if isinstance(kind, Record) or (isinstance(kind, Array) and kind.dtype is None):
            raise Refused("records")
        base = self.expr(node.value)
        inner = isinstance(node.slice, ast.Slice) or isinstance(getattr(node.slice, "typed_as", None), Known)
        if items_of(kind) is not None and inner:
            return f"{base}[{self.expr(node.slice)}]"
        return self._effect(f"get(L, {base}, {self.expr(node.slice)})")

    def _Slice(self, node: ast.Slice) -> str:
        return f"slice({', '.join(self.expr(part) if part else 'None' for part in (node.lower, node.upper, node.step))})"

    def _Tuple(self, node: ast.Tuple) -> str:
        return f"({''.join(f'{self.expr(part)}, ' for part in node.elts)})"

    def _Starred(self, node: ast.Starred) -> str:
        return f"*{self.expr(node.value)}"

    def _NamedExpr(self, node: ast.NamedExpr) -> str:
        text = self.expr(node.value)
        self.lines.append(f"v_{node.target.id} = {text}")
        self.defined.add(node.target.id)
        return f"v_{node.target.id}"

    def _BinOp(self, node: ast.BinOp) -> str:
        left, right = self.expr(node.left), self.expr(node.right)
        power = node.right.value if isinstance(node.right, ast.Constant) and type(node.right.value) is int else 0
        if power > 0 and power & (power - 1) == 0 and isinstance(node.op, ast.FloorDiv | ast.Mod):
            return f"({left} & {power - 1})" if isinstance(node.op, ast.Mod) else f"({left} >> {power.bit_length() - 1})"
        return f"({left} {_OPERATORS[type(node.op)]} {right})"

    def _UnaryOp(self, node: ast.UnaryOp) -> str:
        operand = self.expr(node.operand)
        return f"opposite({operand})" if isinstance(node.op, ast.Not) else f"({_OPERATORS[type(node.op)]}{operand})"

    def _Compare(self, node: ast.Compare) -> str:
        parts = [self.expr(part) for part in (node.left, *node.comparators)]
        parts[1:-1] = map(self._held, parts[1:-1])
        tests = []
        for left, op, right in zip(parts, node.ops, parts[1:], strict=False):
            if type(op) not in _OPERATORS:
                self._refuse(node)
            tests.append(f"({left} {_OPERATORS[type(op)]} {right})")
        text = tests[0]
        for test in tests[1:]:
            text = f"both({text}, {test})"
        return text

    def _BoolOp(self, node: ast.BoolOp) -> str:
        every = isinstance(node.op, ast.And)
        text = self._held(self.expr(node.values[0]))
        for value in node.values[1:]:
            whether = scalar(getattr(value, "typed_as", None))
            helper = ("both" if every else "any_of") if whether and whether.name == "bool" else ""
            text = self._held(self._either(text, value if every else None, None if every else value, text, helper))
        return text

    def _IfExp(self, node: ast.IfExp) -> str:
        return self._either(self._held(self.expr(node.test)), node.body, node.orelse, "", "")

    def _either(self, test: str, body: ast.expr | None, orelse: ast.expr | None, given: str, helper: str) -> str:
        """One of two expressions, of which one may be a value that there is; each is evaluated only where it is asked for.

        Where neither reads memory nor has an effect, both are evaluated everywhere.
        """
        outer, defined, pure = self.lines, set(self.defined), self.form.pure
        self.lines, self.form.pure = [], True
        texts = [self.expr(part) if part is not None else given for part in (body, orelse)]
        added, self.lines = self.lines, outer
        harmless, self.form.pure = self.form.pure, pure and self.form.pure
        if harmless:
            self.lines += added
            if helper:
                return f"{helper}({test}, {texts[0] if body is not None else texts[1]})"
            return f"pick({test}, {', '.join(texts)})"
        self.defined = defined
        parts = [part for part in (body, orelse) if part is not None]
        if stores(parts):
            raise Refused("an assignment in part of an expression")
        ins = self._variables(self.locals & reads(parts))
        given_in = [given] if given and not given.startswith("v_") and given.isidentifier() and given not in ins else []
        name = self.program.name("t")

        def way(part: ast.expr | None) -> Callable[[], None]:
            return lambda: self.lines.append(f"{name} = {self.expr(part) if part is not None else given}")

        ins += [given] if given.startswith("v_") and given not in ins else given_in
        ways = [self._inner(way(part), ins, [name]) for part in (body, orelse)]
        self.lines.append(f"({name}, ) = branch(L, {test}, {', '.join(ways)}, ({''.join(f'{x}, ' for x in ins)}))")
        return name

    def _Call(self, node: ast.Call) -> str:
        return self.call(node, True)

    def call(self, node: ast.Call, used: bool) -> str:
        """A call; whether its value is used."""
        function = self.static(node.func)
        if function is _NOTHING:
            return self._method(node)
        if function in (shared.shared.array, shared.local.array):
            return self._array(node, function)
        args = [self.expr(arg) for arg in node.args]
        first = getattr(node.args[0], "typed_as", None) if node.args else None
        if _in(device.ATOMICS, function) and not (isinstance(first, Array) and first.dtype in atomics.WHOLE):
            raise Refused("an atomic of other than integers")
        named = [f"v_{k.arg}={self.expr(k.value)}" for k in node.keywords]
        if isinstance(function, Form):
            self.form.waits |= function.waits
            self.form.cooperative |= function.cooperative
            text = f"{function.name}({', '.join(['L', *args, *named])})"
            return self._held(text) if function.pure else self._effect(text)
        if function is zip and all(k.arg == "strict" for k in node.keywords):
            named = []
        if named:
            raise Refused("an argument by name")
        if hasattr(function, "__simt_types__"):
            return self._twin(function, args, used)
        return self._library(function, args, used)

    def _library(self, function: Any, args: list[str], used: bool) -> str:
        """A function of Python's, NumPy's or the executor's."""
        arguments = ", ".join(args)
        if _in(device.ATOMICS, function):
            self.form.waits = True
            operation, of = self.program.constant(device.atomic), self.program.constant(function)
            return self._effect(f"{operation}({of}, {used}, L, {arguments})")
        if _in(device.OF_LANES, function):
            self.form.waits |= "threadfence" in function.__name__
            self.form.cooperative |= function.__name__ == "this_grid"
            return self._effect(f"{self.program.constant(device.OF_LANES[function])}(L, {arguments})")
        form = self._plain(function)
        return f"{self.program.constant(form)}({arguments})"

    def _plain(self, function: Any) -> Any:
        """The form of a function of values alone."""
        name = getattr(function, "__module__", "") or ""
        if _in(device.PLAIN, function):
            return device.PLAIN[function]
        if function is wrapped:
            return values.wrap
        if function is range:
            return values.lane_range
        if function in (max, min):
            return _extreme(function is max)
        if function in (int, abs):
            return _cast("int64") if function is int else np.abs
        if function in _AS_THEY_ARE or (isinstance(function, np.ufunc) and function in _EXACT):
            return function
        if isinstance(function, type) and issubclass(function, np.generic):
            return _cast(np.dtype(function).name)
        if (form := values.of_scalars(function)) is not None:
            return form
        if function is functions.printed:
            raise Refused("a call of print")
        inside = name.startswith(__package__.rpartition(".")[0]) and ".compiled.functions" in name
        if inside or isinstance(function, np.ufunc) or name.endswith((".compiled.operators", ".compiled.unassigned", ".conversions", ".half")):
            return values.each(function)
        raise Refused(f"a call of {getattr(function, '__name__', function)}")

    def _twin(self, function: Any, args: list[str], used: bool) -> str:
        form = getattr(function, "__simt_lanes__", None)
        if not args and not function.__simt_types__:  # a fence, or a hint
            form, self.form.waits = function, True
        if form is None:
            raise Refused(f"{function.__name__} has no form for lanes")
        if not function.__simt_types__ and args:
            self.form.pure = False
            return f"{self.program.constant(device.of_all)}({self.program.constant(form)}, L, {', '.join(args)})"
        return self._effect(f"{self.program.constant(form)}({', '.join(args)})")

    def _array(self, node: ast.Call, function: Any) -> str:
        args = [self.expr(arg) for arg in node.args[:2]] + [self.expr(k.value) for k in node.keywords if k.arg in ("shape", "dtype")]
        if not isinstance(getattr(node, "typed_as", None), Array) or node.typed_as.dtype is None:  # type: ignore[attr-defined]
            raise Refused("an array of unknown type")
        site = [str(self.program.count)] if function is shared.shared.array else []
        maker = device.shared_array if site else device.local_array
        self.program.count += 1
        return self._effect(f"{self.program.constant(maker)}({', '.join(['L', *site, *args])})")

    def _method(self, node: ast.Call) -> str:
        place = node.func
        if isinstance(place, ast.Attribute) and place.attr == "view" and scalar(getattr(place.value, "typed_as", None)):
            return f"{self.expr(place.value)}.view({self.expr(node.args[0])})"
        if isinstance(place, ast.Attribute) and place.attr == "sync" and self.form.cooperative:
            return self._effect(f"{self.expr(place.value)}.sync(L)")
        raise Refused("a call of something that is known only when it runs")


def _in(table: Any, key: Any) -> bool:
    try:
        return key in table
    except TypeError:
        return False


def _cast(name: str) -> Callable:
    return lambda value: values.cast(name, value)


def _extreme(greatest: bool) -> Callable:
    return lambda *args: values.extreme(greatest, ("int64",) * len(args), *args)


def _targets(names: list[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)}) = " if names else ""

