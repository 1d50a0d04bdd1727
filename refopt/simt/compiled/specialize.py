"""Types functions for their arguments, once each: kernels when launched, device functions when called."""

from __future__ import annotations

import ast
import builtins
import types
import warnings
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ..base.copies import copied
from ..base.errors import CompileError
from ..base.places import is_kernels
from ..base.source import Definition, definition, trust
from .expressions import Unsupported
from .facts import facts_of
from .kinds import Kind, Known, Named, Tuple, Varying, joined, of_value, scalar, variable, widened
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
    """A function typed for kinds of arguments; None while it is being typed, that is for a recursive call."""
    known = _compiled.setdefault(function, {})
    if kinds not in known:
        known[kinds] = None
        try:
            known[kinds] = _compile(function, kinds)
        except Unsupported as reason:
            known[kinds] = Compiled(None, None, untyped=str(reason))
            _warn(function, reason)
        except BaseException:
            del known[kinds]
            raise
    typed = known[kinds]
    # The table does not store the function itself, which would keep it alive.
    return typed if typed is None or typed.function is not None else typed._replace(function=function)


def _warn(function: types.FunctionType, reason: Unsupported) -> None:
    code = function.__code__
    where = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    text = f"{where} is computed by NumPy's rules, not in the types that Numba gives it: {reason}"
    warnings.warn(text, UntypedWarning, stacklevel=2)


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
    typer.changed |= _frozen(function.__defaults__) is not function.__defaults__
    calls, literals = tuple(typer.calls.values()), frozenset(typer.literals)
    found = Compiled(None, result, frozenset(typer.doubles), "", calls, literals, typer.as_kernel())
    if not typer.changed and not typer.facts.shuffles:
        return found
    places = (node.args.posonlyargs, node.args.args, node.args.kwonlyargs)
    first, plain, named_only = ([ast.arg(a.arg) for a in each] for each in places)
    starred = ast.arg(node.args.vararg.arg) if node.args.vararg else None
    arguments = ast.arguments(first, plain, starred, named_only, [None for _ in named_only], None, [])
    new = ast.FunctionDef("typed", arguments, new_body, [], None)
    new.type_params = []  # type: ignore[attr-defined]  # from Python 3.12 on
    tree = ast.fix_missing_locations(ast.Module([ast.copy_location(new, node)], []))
    code = function.__code__
    module = compile(tree, code.co_filename, "exec", dont_inherit=True)
    (inner,) = (constant for constant in module.co_consts if isinstance(constant, types.CodeType))
    trust(inner)
    inner = inner.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    typed = copied(function, typer.namespace(), (), inner)
    named, typed.__defaults__ = function.__kwdefaults__, _frozen(function.__defaults__)
    typed.__kwdefaults__ = {name: _frozen(value) for name, value in named.items()} if named else named
    return found._replace(function=typed)


class Typer(Refusals):
    """The typing of one function for kinds of arguments."""

    def __init__(self, function: types.FunctionType, node: Definition, kinds: tuple[Kind, ...]) -> None:
        super().__init__()
        self.function, self.facts = function, facts_of(node)
        self.local_names, self.maybe = self.facts.stored, self.facts.unassigned
        self.calls: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.scope = self._bound(node.args, kinds)
        self.free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def _bound(self, args: ast.arguments, kinds: tuple[Kind, ...]) -> dict[str, Kind]:
        names = [a.arg for a in (*args.posonlyargs, *args.args)]
        named = {each.name: each.kind for each in kinds if isinstance(each, Named)}
        kinds = tuple(kind for kind in kinds if not isinstance(kind, Named))
        parameters = {a.arg for a in (*args.args, *args.kwonlyargs)} - set(names[: len(kinds)])
        if args.kwarg or named.keys() - parameters or (len(kinds) > len(names) and not args.vararg):
            raise Unsupported("its arguments do not match its parameters")
        defaults = self.function.__defaults__ or ()
        scope: dict[str, Kind] = dict(zip(names[len(names) - len(defaults) :], map(_default, defaults), strict=True))
        scope |= dict(zip(names, kinds, strict=False)) | named
        if missing := [name for name in names if name not in scope]:
            raise Unsupported(f"no argument {missing[0]}")
        if args.vararg:
            scope[args.vararg.arg] = Tuple(kinds[len(names) :])
        for name, value in (self.function.__kwdefaults__ or {}).items():
            scope.setdefault(name, _default(value))
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
        self.captured[name] = frozen = _frozen(value)
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
        for name in self.facts.names:
            if name not in self.scope and name not in self.captured:
                try:
                    self.named(name)
                except Unsupported:
                    continue
        scope = {"__builtins__": builtins, "__name__": self.function.__module__, SHUFFLES: self.facts.shuffles}
        return scope | self.captured | self.constants

    def result(self) -> Kind:
        """The kind of the function's result, after its return values are converted to one type."""
        if not self.returns:
            return Known(None)
        kind = self.returns[0][1]
        for _, other in self.returns[1:]:
            kind = joined(kind, other)
        self.agree(kind)
        if isinstance(kind, Known) and isinstance(kind.value, Varying):
            kind = None
        if self.live:
            return None if scalar(kind) or not isinstance(kind, Known) else joined(kind, Known(None))
        for node, each in self.returns:
            if node.value is not None:
                node.value = self.brought(node.value, each, kind)
        return widened(kind)

    def device_function(self, function: types.FunctionType, kinds: list[Kind]) -> tuple[Any, Kind] | None:
        """A device function typed for arguments, and the kind of its result; None if it runs unchanged."""
        if not is_kernels(function.__code__.co_filename):
            return None
        typed = _typed(function, tuple(kinds))
        if typed is None:
            return resolved(function), None
        self.needed = typed.literals
        self.doubles |= typed.doubles
        self.calls |= {(id(names), name): (names, name, value) for names, name, value in typed.calls}
        return typed.function, typed.result

    def resolver(self) -> Any:
        """The function that wraps a function so that it is typed when it is called."""
        return resolved


def _default(value: Any) -> Kind:
    """The kind of a default: not a constant, unless it is None."""
    return variable(Known(value))


def _captured(value: Any) -> Kind:
    """The kind of a captured value."""
    if isinstance(value, np.ndarray):
        return of_value(value)
    return Known(value) if not isinstance(value, list | dict | set) else None


def _frozen(value: Any) -> Any:
    """A captured value in a class that identifies its type."""
    if type(value) is float:
        return np.float64(value)
    if type(value) is int and 2**63 <= value < 2**64:
        return np.uint64(value)
    if type(value) is complex:
        return np.complex128(value)
    if type(value) is tuple:
        items = tuple(_frozen(item) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def resolved(function: Any) -> Any:
    """A wrapper that types a function by its arguments when it is called; anything else is returned unchanged."""
    own = isinstance(function, types.FunctionType) and is_kernels(function.__code__.co_filename)
    if not own or hasattr(function, "__simt_types__"):
        return function

    def call(*args: Any, **named: Any) -> Any:
        kinds = [widened(of_value(arg)) for arg in args]
        kinds += [Named(name, widened(of_value(arg))) for name, arg in named.items()]
        typed = _typed(function, tuple(kinds))
        return (typed.function if typed else function)(*args, **named)

    return call
