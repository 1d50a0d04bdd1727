"""The location of a function's text, and the values of the names in it."""

import ast
import builtins
import importlib
import importlib.util
import linecache
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, ModuleType
from typing import Any, NamedTuple


class File(NamedTuple):
    """The text of a file in bytes, which is what positions in a tree count, where its lines begin, its tree, and the
    functions in it by the line that each begins in, for Python the line of the first decorator.
    """

    text: bytes
    starts: tuple[int, ...]
    tree: ast.Module
    functions: dict[int, list[ast.FunctionDef | ast.Lambda]]

    def at(self, line: int, column: int) -> int:
        """A position in the text; lines count from 1."""
        return self.starts[line - 1] + column

    def span(self, node: Any) -> tuple[int, int]:
        """The start and end of a node."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def segment(self, node: Any) -> str:
        first, stop = self.span(node)
        return self.text[first:stop].decode()

    def line(self, number: int) -> str:
        """A line without its end."""
        return self.text[self.starts[number - 1] : self.starts[number]].decode().rstrip("\n")


@cache
def read(name: str) -> File:
    """The file of that name, or its entry in `linecache`.

    Raises:
        OSError: there is neither, as for a function typed at a prompt.
    """
    lines = [line.encode() for line in linecache.getlines(name)]
    if not lines:
        raise OSError(f"source: expected functions of a file that can be read, got one of {name}")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = b"".join(lines)
    tree = ast.parse(text)
    functions: dict[int, list[ast.FunctionDef | ast.Lambda]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            first = min([node.lineno, *(x.lineno for x in getattr(node, "decorator_list", []))])
            functions.setdefault(first, []).append(node)
    return File(text, tuple(starts), tree, functions)


def found(function: Callable) -> tuple[File, ast.FunctionDef | ast.Lambda]:
    """The file and the tree of a function."""
    code = function.__code__
    file = read(code.co_filename)
    nodes = file.functions.get(code.co_firstlineno, [])
    if code.co_name != "<lambda>":
        return file, next(x for x in nodes if isinstance(x, ast.FunctionDef) and x.name == code.co_name)
    # Several may begin on one line: code objects and trees are both in the order of the text.
    lambdas = sorted((x for x in nodes if isinstance(x, ast.Lambda)), key=lambda x: x.col_offset)
    compiled = compile(file.tree, code.co_filename, "exec")
    same_line = [x for x in _inner(compiled) if x.co_name == "<lambda>" and x.co_firstlineno == code.co_firstlineno]
    return file, lambdas[same_line.index(code)]


def _inner(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions within that of another or of a module, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


class Scope:
    """The values of a function's names that are not local; or of a module's names."""

    def __init__(self, of: Callable | ModuleType) -> None:
        self.closed: dict[str, Any] = {}
        if isinstance(of, ModuleType):
            self.module, self.given = of.__name__, vars(of)
            return
        self.module, self.given = of.__module__ or "", of.__globals__
        for name, cell in zip(of.__code__.co_freevars, of.__closure__ or (), strict=True):
            self.closed[name] = cell.cell_contents

    def __getitem__(self, name: str) -> Any:
        for names in (self.closed, self.given, vars(builtins)):
            if name in names:
                return names[name]
        raise LookupError(f"source: {self.module}: expected a value of {name}, got none")


class Definition(NamedTuple):
    """The statement of a module that gives a name its value."""

    module: ModuleType
    file: File
    statement: ast.Assign | ast.AnnAssign

    @property
    def names(self) -> list[str]:
        return [x.id for target in targets(self.statement) for x in ast.walk(target) if isinstance(x, ast.Name)]

    def comments(self) -> tuple[list[str], str]:
        """The comment above the statement, line by line, and the one at its end."""
        above: list[str] = []
        for number in range(self.statement.lineno - 1, 0, -1):
            if not self.file.line(number).startswith("#"):
                break
            above.insert(0, self.file.line(number))
        end = self.statement.end_lineno or 0
        beside = self.file.line(end).encode()[self.statement.end_col_offset :].decode().strip()
        return above, beside


def targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


@cache
def defined(module: str, name: str) -> Definition | str | None:
    """The origin of the value of a module's name, followed through refopt's imports.

    The statement that assigns it; the import statement, as text, if it is not from refopt; None if there is neither.
    """
    place = importlib.import_module(module)
    if not getattr(place, "__file__", None):
        return None
    file = read(str(place.__file__))
    for statement in file.tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            definition = Definition(place, file, statement)
            if name in definition.names:
                return definition
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    package = module if hasattr(place, "__path__") else module.rpartition(".")[0]
                    came = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
                    ours = came.partition(".")[0] == module.partition(".")[0]
                    return defined(came, alias.name) if ours else f"from {came} import {ast.unparse(alias)}"
    return None
