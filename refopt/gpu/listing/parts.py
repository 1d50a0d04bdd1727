"""The functions and constants of a listing: each once, whichever kernels use it."""

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from refopt.gpu.listing.expressions import SIMPLE, UNKNOWN, own_names
from refopt.gpu.listing.source import Definition, File, Scope, defined, found, targets
from refopt.gpu.listing.writer import Writer, assigned, moved, signature

REFERENCE = re.compile("\ue000(\\d+)\ue001")  # a part's number, replaced by its name at the end
CUDA = "from refopt.simt import cuda"
MODULES = {"numpy": "import numpy as np", "refopt.simt.memory": "from refopt.simt import memory"}
MODULES["refopt.simt.vectors"] = "from refopt.simt import vectors"
MODULES |= dict.fromkeys(("refopt.simt.cuda", "refopt.gpu.cuda"), CUDA)
UNROLLED = "<unrolled"  # the start of the file names of functions made from strings


class Constant:
    """A statement that assigns names, with its comments; or a value of a closure under its name there."""

    def __init__(self, names: list[str], text: str) -> None:
        self.names, self.text = names, text


class Named:
    """One name of a constant."""

    def __init__(self, constant: Constant, name: str, value: Any) -> None:
        self.constant, self.base, self.value = constant, name, value


class Part:
    """A listed function.

    Attributes:
        function, base, aliases: the function, its name, and the names by which callers call it.
        text: its text, with references instead of names.
        own: its parameters and local names.
    """

    def __init__(self, function: Callable, base: str) -> None:
        self.function, self.base = function, base
        self.aliases: set[str] = set()
        self.text = self.above = ""
        self.own: frozenset[str] = frozenset()

    @property
    def asm(self) -> tuple[str, str, str, str] | None:
        """An intrinsic's PTX, constraints, results and arguments."""
        return getattr(self.function, "asm", None)

    @property
    def newer(self) -> tuple[tuple[int, int], str | None, bool]:
        """The first compute capability with an intrinsic's PTX, its PTX before that, and whether later ones lack it."""
        return self.function.since, self.function.before, self.function.alone  # type: ignore[attr-defined]

    def numbers(self) -> Iterator[int]:
        """The numbers of the parts to which it refers, in the order of the text."""
        return (int(number) for number in REFERENCE.findall(self.text))


class Parts:
    """All parts that some kernels use. `all` has them in any order; `imports` are statements."""

    def __init__(self) -> None:
        self.all: list[Part | Named] = []
        # The imports of decorators.
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

    # Called by `Writer`

    def text(self, value: Any, name: str, scope: Scope) -> str:
        """The text for the value of a name: a reference, a literal, or the name itself."""
        if hasattr(value, "__simt_warp__"):  # the listing cannot contain its sums
            name = value.__name__
            self.imports[name] = f"from {value.__module__} import {name}"
            return name
        value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
        if isinstance(value, FunctionType) and _is_ours(value):
            part = self.part(value, name)
            part.aliases.add(name)
            return self.reference(part)
        if isinstance(value, ModuleType):
            return self._module(value, name)
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
        statement = MODULES.get(module.__name__, f"import {module.__name__}").partition(" as ")[0]
        self.imports[name] = statement if statement.endswith(f" {name}") else f"{statement} as {name}"
        return name

    def _constant(self, name: str, value: Any) -> Named:
        self._module(np, "np")
        key = name, literal(value)
        if key not in self._named:
            self._named[key] = Named(Constant([name], f"\ue004 = {literal(value)}"), name, value)
        return self._named[key]

    def _defined(self, definition: Definition, name: str) -> Named:
        """The name assigned by a module's statement, which is listed unchanged."""
        place = f"{definition.module.__name__}:{definition.statement.lineno}"
        if (place, name) not in self._named:
            names, (above, beside) = definition.names, definition.comments()
            value = definition.statement.value
            assert value is not None
            writer = Writer(definition.file, value, Scope(definition.module), self)
            left = " = ".join(definition.file.segment(target) for target in targets(definition.statement))
            statement = f"{left} = {writer.text(value)}"
            constant = Constant(names, "\n".join([*above, f"{statement}  {beside}".rstrip()]))
            for each in names:
                self._named[place, each] = Named(constant, each, vars(definition.module)[each])
        return self._named[place, name]

    # Functions

    def part(self, function: Callable, alias: str = "") -> Part:
        """The part of a function; functions that differ only in their names have one, with the shortest of these."""
        if id(function) not in self._of:
            part = self._made(function, alias)
            self._of[id(function)] = same = self._same.setdefault((part.text, part.asm), part)
            if len(part.base) < len(same.base):
                same.base, same.function = part.base, part.function
        return self._of[id(function)]

    def _made(self, function: Callable, alias: str) -> Part:
        name = function.__name__
        if name == "<lambda>":
            name = alias or "function"
        part = Part(function, name)
        file, node = found(function)
        part.own = own_names(node)
        scope = Scope(function)
        writer, lines = self._written(file, node, scope)
        head = f"def \ue004({signature(node.args, file)}):"
        part.text = "\n".join([head, *lines])
        if kept := [x for x in getattr(node, "decorator_list", []) if _caches(x, scope)]:
            part.above = "\n".join(f"@{writer.text(x)}" for x in kept)
        return part

    def _written(self, file: File, node: Any, scope: Scope) -> tuple[Writer, list[str]]:
        """The lines of a function's body, without those that only dead names need."""
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


def _is_ours(function: FunctionType) -> bool:
    """Whether a function is listed instead of imported."""
    package = (function.__module__ or "").partition(".")[0]
    known = package in sys.stdlib_module_names or package in ("numpy", "numba", "ml_dtypes")
    return not known or function.__code__.co_filename.startswith(UNROLLED)


def _caches(decorator: ast.expr, scope: Scope) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(name, ast.Name) and getattr(scope[name.id], "__module__", "") == "functools"


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
