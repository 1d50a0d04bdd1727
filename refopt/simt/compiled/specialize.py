"""Types functions for their arguments, once each: kernels when launched, device functions when called."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
import warnings
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.copies import copied
from ..base.errors import CompileError
from ..base.places import is_kernels
from ..base.source import Definition, code_of, definition
from ..base.threads import EARLY
from . import syntax
from .calls import Callee
from .expressions import Later, Typed, Unsupported
from .facts import facts_of
from .inner import is_inner, sees, separate
from .kinds import Kind, Known, Named, Tuple, Varying, frozen_value, joined, of_value, scalar, variable, widened
from .lifted import SHUFFLES
from .refused.statements import Refusals


class UntypedWarning(UserWarning):
    """A function of a kernel runs by NumPy's rules, since it cannot be typed as in Numba."""


class Compiled(NamedTuple):
    """A function typed for arguments.

    Attributes:
        function: the copy that computes as Numba does, or the function itself if it already does.
        result: the kind of its result.
        doubles: operations in fp64, also in the functions that it calls: file, line and types of operands.
        untyped: why it is not typed; empty if it is.
        calls: the device functions that it uses, directly or not: the namespace, name and function of each.
        literals: parameters that must be literals where it is called.
        refused: why it cannot be launched; None if it can.
    """

    function: Any
    result: Kind
    doubles: frozenset[tuple[str, int, str]] = frozenset()
    untyped: str = ""
    calls: tuple[tuple[Any, str, Any], ...] = ()
    literals: frozenset[str] = frozenset()
    refused: CompileError | None = None

    def stale(self) -> bool:
        """Whether a device function has been replaced since, which Numba would not notice."""
        return any(_current(names, name) is not function for names, name, function in self.calls)


_compiled: WeakKeyDictionary[Any, dict[tuple, Compiled | None]] = WeakKeyDictionary()


def compiled(function: types.FunctionType, args: tuple) -> Compiled:
    """A kernel typed for arguments.

    Raises:
        CompileError: Numba does not compile it, or a function that it calls.
    """
    kinds = tuple(widened(of_value(arg)) for arg in args)
    typed = _typed(function, kinds)
    if typed is not None and typed.stale():
        _compiled.clear()
        typed = _typed(function, kinds)
    if typed is not None and typed.refused is not None:
        raise typed.refused.with_traceback(None)
    return typed or Compiled(function, None)


def _current(names: Any, name: str) -> Any:
    """The current value of a name, in the globals of a module or in a closure's cell."""
    try:
        return names.cell_contents if isinstance(names, types.CellType) else names.get(name)
    except ValueError:
        return None


def _typed(function: types.FunctionType, kinds: tuple[Kind, ...]) -> Compiled | None:
    """A function typed for kinds of arguments; None while it is being typed."""
    known = _compiled.setdefault(function, {})
    if kinds not in known:
        known[kinds] = None
        try:
            known[kinds] = _compile(function, kinds)
        except Unsupported as reason:
            known[kinds] = Compiled(None, None, untyped=str(reason))
            code = function.__code__
            where = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
            text = f"{where} is computed by NumPy's rules, not in the types that Numba gives it: {reason}"
            warnings.warn(text, UntypedWarning, stacklevel=2)
        except BaseException:
            del known[kinds]
            raise
    typed = known[kinds]
    # The table does not store the function itself, which would keep it alive.
    return typed if typed is None or typed.function is not None else typed._replace(function=function)


def _compile(function: types.FunctionType, kinds: tuple[Kind, ...]) -> Compiled:
    """A function typed for kinds of arguments; its `function` is None if the original already computes as in Numba."""
    node = definition(function)
    if node is None:
        raise Unsupported("its source cannot be read")
    typer = Typer(function, node, kinds)
    typer.read(node)
    body: list[ast.stmt]
    body = node.body if isinstance(node, ast.FunctionDef) else [ast.copy_location(ast.Return(node.body), node.body)]
    new_body = typer.settle(body)
    result = typer.result()
    for end, _ in typer.returns if result == Known(None) else ():
        if end.value is None or isinstance(end.value, ast.Constant):
            end.value = typer.constant(EARLY, "early", end)
    typer.changed |= frozen_value(function.__defaults__) is not function.__defaults__
    calls, literals = tuple(typer.calls.values()), frozenset(typer.literals)
    found = Compiled(None, result, frozenset(typer.doubles), "", calls, literals, typer.as_kernel())
    if not typer.changed and not typer.facts.shuffles:
        return found
    places = (node.args.posonlyargs, node.args.args, node.args.kwonlyargs)
    first, plain, named_only = ([ast.arg(a.arg) for a in each] for each in places)
    starred = ast.arg(node.args.vararg.arg) if node.args.vararg else None
    arguments = ast.arguments(first, plain, starred, named_only, [None for _ in named_only], None, [])
    code = function.__code__
    new_code = code_of(ast.FunctionDef("typed", arguments, new_body, [], None), node, code.co_filename)
    new_code = new_code.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    typed = copied(function, typer.namespace(), (), new_code)
    named, typed.__defaults__ = function.__kwdefaults__, frozen_value(function.__defaults__)
    typed.__kwdefaults__ = {name: frozen_value(value) for name, value in named.items()} if named else named
    return found._replace(function=typed)


class Typer(Refusals):
    """The typing of one function for kinds of arguments."""

    def __init__(self, function: types.FunctionType, node: Definition, kinds: tuple[Kind, ...]) -> None:
        super().__init__()
        self.function, self.facts, self.given = function, facts_of(node), kinds
        self.inner: dict[ast.AST, Known] = {}  # the functions in it
        self.recursive = False
        self.returned: Any = ...  # the kind of its result, as far as it is known
        self.local_names, self.maybe = self.facts.stored, self.facts.unassigned
        self.calls: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.scope = self._bound(kinds)
        self.free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def _bound(self, kinds: tuple[Kind, ...]) -> dict[str, Kind]:
        """The kinds of the parameters."""
        signature = inspect.signature(self.function, follow_wrapped=False)
        named = {each.name: each.kind for each in kinds if isinstance(each, Named)}
        try:
            given = signature.bind(*(kind for kind in kinds if not isinstance(kind, Named)), **named).arguments
        except TypeError as error:
            raise Unsupported(f"its arguments do not match its parameters: {error}") from None
        scope: dict[str, Kind] = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                scope[name] = Tuple(given.get(name, ()))
            else:  # a default is no constant, unless it is None
                scope[name] = given[name] if name in given else variable(_captured(parameter.default))
        return scope

    def named(self, name: str) -> Kind:
        """A global, or a variable of an enclosing function, which is constant as in Numba."""
        if name in self.captured:
            return _captured(self.captured[name])
        try:
            if name in self.free:
                value = self.free[name].cell_contents
            elif name in self.function.__globals__:
                value = self.function.__globals__[name]
            else:
                value = getattr(builtins, name)
        except (ValueError, AttributeError):
            if name in self.function.__code__.co_varnames:
                return None
            raise Unsupported(f"name {name} is not defined") from None
        self.captured[name] = frozen = frozen_value(value)
        if name in self.free or name in self.function.__globals__:
            self.named_function(self.free.get(name, self.function.__globals__), name, value)
        if frozen is not value:
            self.changed = True
        return _captured(frozen)

    def named_function(self, names: Any, name: str, value: Any) -> None:
        """Note where a device function was found."""
        if isinstance(value, types.FunctionType) and is_kernels(value.__code__.co_filename):
            self.calls[id(names), name] = names, name, value

    def namespace(self) -> dict[str, Any]:
        """The globals of the typed function."""
        scope = {"__builtins__": builtins, "__name__": self.function.__module__, SHUFFLES: self.facts.shuffles}
        return scope | self.captured | self.constants

    def result(self) -> Kind:
        """The kind of the function's result, after its return values are converted to one type."""
        if not self.returns:
            return Known(None)
        kind = functools.reduce(joined, (kind for _, kind in self.returns))
        self.agree(kind)
        if isinstance(kind, Known) and isinstance(kind.value, Varying):
            kind = None
        if self.live:
            return None if scalar(kind) or not isinstance(kind, Known) else joined(kind, Known(None))
        for node, each in self.returns:
            if node.value is not None:
                node.value = self.brought(node.value, each, kind)
        return widened(kind)

    def returns_more(self) -> bool:
        """Whether the function calls itself, and returned other kinds in the passes before."""
        before = self.returned
        if self.recursive and (self.returns or self.live):
            kinds = [kind for _, kind in self.returns] or [Known(None)]
            self.returned = widened(functools.reduce(joined, kinds))
        return self.returned != before

    def device_function(self, node: ast.AST, function: types.FunctionType, kinds: list[Kind]) -> Callee | None:
        """A device function typed for the arguments of a call, and the kind of its result; None if it runs as it is."""
        if not is_kernels(function.__code__.co_filename):
            return None
        typed = _typed(function, tuple(kinds))
        if typed is None:
            return self._recursive(node, function, tuple(kinds))
        self.needed = typed.literals
        self.doubles |= typed.doubles
        self.calls |= {(id(names), name): (names, name, value) for names, name, value in typed.calls}
        return typed.function, typed.result

    def _recursive(self, node: ast.AST, function: types.FunctionType, kinds: tuple[Kind, ...]) -> Callee:
        """A call of the function itself, whose result gets a type from the other returns."""
        name = function.__name__
        if function is not self.function or kinds != self.given:
            raise self.refused(node, f"{self.function.__name__} and {name} call each other", "write one function")
        self.recursive = True
        if self.returned is ...:
            instead = "end on one path: if n < 2: return n"
            raise Later from self.refused(node, f"{name} calls itself on every path", instead)
        return lambda *args, **named: _typed(function, kinds).function(*args, **named), self.returned  # type: ignore

    def _Name(self, node: ast.Name) -> Typed:
        new, kind = super()._Name(node)
        return (self.constant(kind.value, node.id, node) if is_inner(kind) else new), kind  # type: ignore[union-attr]

    def _Lambda(self, node: ast.Lambda) -> Typed:
        kind = self._separate(node)
        return self.constant(kind.value, "lambda", node), kind

    def _do_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        self.scope[node.name] = self._separate(node)
        return []

    def _separate(self, node: ast.FunctionDef | ast.Lambda) -> Known:
        """An inner function, made a device function once."""
        self.hold(syntax.inner(node))
        if node not in self.inner:
            self.inner[node] = separate(node, self.function, self.scope, {*self.local_names, *self.scope})
        return self.inner[node]

    def captured_by(self, node: ast.Call, function: types.FunctionType) -> dict[str, ast.expr]:
        """What an inner function captures, and the defaults of its parameters, by the names it takes them by."""
        captured = vars(function).get("__simt_captured__", {})
        if captured and not sees(self.function, function):
            reason = f"{function.__name__}, which captures variables, is passed on"
            self.refuse(node, reason, "pass the variables as arguments")
        return captured

def _captured(value: Any) -> Kind:
    """The kind of a captured value."""
    if isinstance(value, np.ndarray):
        return of_value(value)
    return Known(value) if not isinstance(value, list | dict | set) else None
