"""The functions and constants that a listing is made of: each once, whichever kernel it is reached from."""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from refopt.gpu.listing.expressions import SIMPLE, UNKNOWN, own_names
from refopt.gpu.listing.source import Definition, File, Scope, defined, found
from refopt.gpu.listing.writer import Writer, arity, assigned, moved, signature

REFERENCE = re.compile("\ue000(\\d+)\ue001")  # to a part by its number, until it has its name
CUDA = "from refopt.simt import cuda"
MODULES = {"numpy": "import numpy as np", "refopt.simt.memory": "from refopt.simt import memory"}
MODULES["refopt.simt.vectors"] = "from refopt.simt import vectors"
MODULES |= dict.fromkeys(("refopt.simt.cuda", "refopt.gpu.cuda"), CUDA)
UNROLLED = "<unrolled"  # how the files of functions that are made from strings begin


class Constant:
    """A statement that gives names their values, with its comments; or a value of a closure under its name there."""

    def __init__(self, names: list[str], text: str) -> None:
        self.names, self.text = names, text


class Named:
    """One name of a constant."""

    def __init__(self, constant: Constant, name: str, value: Any) -> None:
        self.constant, self.base, self.value = constant, name, value


class Part:
    """A function as it is listed.

    Attributes:
        function, base, aliases: the function, its name, and the names that it goes by where it is called.
        text: its text, with references in place of names.
        own: its parameters and local names.
        parameters, dropped: those of the function, and those that nothing in it reads any more.
        inline, statement, known: what may stand in place of a call, with markers for parameters, and whether only
            where the call is a statement; the value, where that is the same for all arguments.
        arity: the elements of the tuple that it returns.
    """

    def __init__(self, function: Callable, base: str) -> None:
        self.function, self.base = function, base
        self.aliases: set[str] = set()
        self.text = self.above = ""
        self.own: frozenset[str] = frozenset()
        self.parameters: list[str] = []
        self.dropped: frozenset[str] = frozenset()
        self.inline: str | None = None
        self.statement = False
        self.known: Any = UNKNOWN
        self.arity = 0

    @property
    def asm(self) -> tuple[str, str, str, str] | None:
        """PTX and how it is called, of an intrinsic."""
        return getattr(self.function, "asm", None)

    @property
    def newer(self) -> tuple[tuple[int, int], str | None]:
        """From which compute capability on an intrinsic has its PTX, and what it has before."""
        return self.function.since, self.function.before  # type: ignore[attr-defined]

    def numbers(self) -> Iterator[int]:
        """The parts that it refers to, in the order of the text."""
        return (int(number) for number in REFERENCE.findall(self.text))


class Again(Exception):
    """A parameter that nothing reads has to stay, since what is passed for it does something: all is made again."""


class Parts:
    """All that is reached from some kernels. `all` has it in any order; `imports` are statements.

    ``kept`` has parameters that have to stay, by the code of their function.
    """

    def __init__(self, kept: set[tuple[CodeType, str]]) -> None:
        self.kept = kept
        self.all: list[Part | Named] = []
        # What decorators are of.
        self.imports = {"cuda": CUDA, "ptx_twin": "from refopt.simt import ptx_twin"}
        self._number: dict[Any, int] = {}
        self._of: dict[int, Part] = {}
        self._named: dict[tuple[str, Any], Named] = {}
        self._same: dict[tuple, Part] = {}

    def reference(self, part: Part | Named) -> str:
        if part not in self._number:
            self._number[part] = len(self.all)
            self.all.append(part)
        return f"\ue000{self._number[part]}\ue001"

    # What `Writer` asks

    def called(self, value: Any, name: str) -> Part | None:
        """The part of a function; None for any other value."""
        value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        listed = isinstance(value, FunctionType) and _is_ours(value) and not hasattr(value, "__simt_warp__")
        return self.part(value, name) if listed else None

    def keep(self, called: Part, parameter: str) -> NoReturn:
        """Have a parameter of a function stay.

        Raises:
            Again: always; the parts that are made with the same ``kept`` then have it.
        """
        self.kept.add((called.function.__code__, parameter))
        raise Again

    def text(self, value: Any, name: str, scope: Scope) -> str:
        """What stands for a value that a name has: a reference, a literal, or the name itself."""
        part = self.called(value, name)
        if part:
            part.aliases.add(name)
            return self.reference(part)
        if isinstance(value, ModuleType):
            return self._module(value, name)
        if hasattr(value, "__simt_warp__"):  # its sums are more than a text
            name = value.__name__
            self.imports[name] = f"from {value.__module__} import {name}"
            return name
        if isinstance(value, type) and issubclass(value, np.generic):
            return f"{self._module(np, 'np')}.{value.__name__}"
        closed = name in scope.closed
        if isinstance(value, bool | str | None) or (type(value) in SIMPLE and closed):
            return repr(value)
        if closed:
            return self.reference(self._constant(name, value))
        if getattr(builtins, name, UNKNOWN) is value:
            return name
        definition = defined(scope.module, name)
        if isinstance(definition, Definition):
            return self.reference(self._defined(definition, name))
        if definition is None and isinstance(value, (*SIMPLE, np.generic, tuple)):  # as in a notebook
            return self.reference(self._constant(name, value))
        if definition is None:
            raise LookupError(f"source: {scope.module}.{name}: expected a function, a number or a table, got {value!r}")
        self.imports[name] = definition
        return name

    def _module(self, module: ModuleType, name: str) -> str:
        statement = MODULES.get(module.__name__, f"import {module.__name__}")
        self.imports[name] = statement if statement.endswith(f" {name}") else f"{statement} as {name}"
        return name

    def _constant(self, name: str, value: Any) -> Named:
        self._module(np, "np")
        key = name, literal(value)
        if key not in self._named:
            self._named[key] = Named(Constant([name], f"\ue004 = {literal(value)}"), name, value)
        return self._named[key]

    def _defined(self, definition: Definition, name: str) -> Named:
        """The name of a module's statement, which is listed as it stands."""
        place = f"{definition.module.__name__}:{definition.statement.lineno}"
        if (place, name) not in self._named:
            names, (above, beside) = definition.names, definition.comments()
            value = definition.statement.value
            assert value is not None
            writer = Writer(definition.file, value, Scope(definition.module), self)
            statement = f"{', '.join(names)} = {writer.text(value)}"
            constant = Constant(names, "\n".join([*above, f"{statement}  {beside}".rstrip()]))
            for each in names:
                self._named[place, each] = Named(constant, each, vars(definition.module)[each])
        return self._named[place, name]

    # Functions

    def part(self, function: Callable, alias: str = "", whole: bool = False) -> Part:
        """The part of a function; ``whole`` keeps all parameters, as a kernel has to."""
        if id(function) not in self._of:
            part = self._made(function, alias, whole)
            key = part.base, part.text, part.asm
            self._of[id(function)] = self._same.setdefault(key, part)
        return self._of[id(function)]

    def _made(self, function: Callable, alias: str, whole: bool) -> Part:
        name = function.__name__
        if name == "<lambda>":
            name = alias or "function"
        part = Part(function, name)
        file, node = found(function)
        part.parameters = [x.arg for x in (*node.args.posonlyargs, *node.args.args)]
        part.own = own_names(node)
        whole = whole or not _is_device_function(function)
        scope = Scope(function)
        writer, lines = self._written(file, node, scope)
        if not whole:
            part.dropped = frozenset(part.parameters) - writer.used
            part.dropped -= {name for code, name in self.kept if code == function.__code__}
            self._simplify(part, writer)
        part.arity = arity(node)
        head = f"def \ue004({signature(node.args, part.dropped, file)}):"
        part.text = "\n".join([head, *lines])
        if kept := [x for x in getattr(node, "decorator_list", []) if _caches(x, scope)]:
            part.above = "\n".join(f"@{writer.text(x)}" for x in kept)
        return part

    def _written(self, file: File, node: Any, scope: Scope) -> tuple[Writer, list[str]]:
        """The lines of a function's body, without what only dead names need."""
        dead: frozenset[str] = frozenset()
        while True:
            writer = Writer(file, node, scope, self, dead)
            if isinstance(node, ast.Lambda):
                return writer, [f"    return {writer.text(node.body)}"]
            lines = writer.body(node)
            unread = assigned(node) - writer.used
            if unread <= dead:
                return writer, moved(lines, 4 - node.body[0].col_offset) or ["    pass"]
            dead |= unread

    def _simplify(self, part: Part, writer: Writer) -> None:
        """Say what may stand in place of a call, if the function does one thing only."""
        if isinstance(writer.node, ast.Lambda):
            only: Any = writer.node.body
        else:
            left = [x for x in writer.left if not _is_docstring(x)]
            if len(left) != 1 or not isinstance(left[0], ast.Return | ast.Expr) or left[0].value is None:
                return
            only, part.statement = left[0].value, isinstance(left[0], ast.Expr)
        while isinstance(only, ast.IfExp) and (test := writer.value(only.test)) is not UNKNOWN:
            only = only.body if test else only.orelse
        part.known = writer.value(only)
        if self._passes_on(only, writer):
            marker = Writer(writer.file, writer.node, writer.scope, self)
            marker.marked = frozenset(part.parameters)
            marker.alone = only if part.statement else None
            text = marker.text(only)
            part.inline = f"({text})" if isinstance(only, ast.Tuple) and not text.startswith("(") else text

    def _passes_on(self, node: ast.expr, writer: Writer) -> bool:
        """Whether an expression is a parameter, a constant, or a call or tuple of nothing else."""

        def simple(x: ast.expr) -> bool:
            while isinstance(x, ast.IfExp) and (test := writer.value(x.test)) is not UNKNOWN:
                x = x.body if test else x.orelse
            return isinstance(x, ast.Name | ast.Constant)

        if isinstance(node, ast.Call):
            called = writer.called(node)
            return called is not None and not node.keywords and all(map(simple, node.args))
        if isinstance(node, ast.Tuple):
            elements = [x.value if isinstance(x, ast.Subscript) and simple(x.slice) else x for x in node.elts]
            return all(map(simple, elements))
        return simple(node)


def _is_ours(function: FunctionType) -> bool:
    """Whether a function is listed, and not imported."""
    package = (function.__module__ or "").partition(".")[0]
    known = package in sys.stdlib_module_names or package in ("numpy", "numba", "ml_dtypes")
    return not known or function.__code__.co_filename.startswith(UNROLLED)


def _is_device_function(function: Any) -> bool:
    original = getattr(function, "__refopt_numba__", None)
    return original is not None and original.__qualname__.startswith("device_function.")


def _caches(decorator: ast.expr, scope: Scope) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(name, ast.Name) and getattr(scope[name.id], "__module__", "") == "functools"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def literal(value: Any) -> str:
    """A number or a tuple of them as text."""
    if isinstance(value, tuple):
        if len(value) > 2 and len(set(map(literal, value))) == 1:
            return f"({literal(value[0])},) * {len(value)}"
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, np.generic):
        number = value.item()
        if isinstance(number, float) and number.is_integer() and (number or not np.signbit(number)):
            number = int(number)
        text = repr(number).replace("inf", "np.inf").replace("nan", "np.nan")
        return f"np.{value.dtype.name}({text})"
    return repr(value)
