"""An answer as text: what a learner's cells define, and nothing that could reach its judge.

The text is all that is taken from a notebook: `text` reads it from the cells, none of which has to run. It has the
functions and constants by which the answer is defined; what the exercise itself defines stays as it is. Before `load`
runs it, it reads the text: an answer may use arithmetic, the names of the exercise, `numpy`'s types and `math`, and
attributes that the exercise uses as well. Neither files, modules nor Python's own machinery can be reached with that.
"""

from __future__ import annotations

import ast
import builtins
import collections
import importlib
import itertools
import linecache
import math
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from refopt.gpu import cuda, parts, vectors
from refopt.simt.base.numba_types import is_numba_type

from . import cells, generate, solution

FILE = "answer.py"  # in reports; there is no such file
OF_JUDGE = {"Exercise", "exercise", "spec", "cases", "arguments", "launch"}  # of an exercise: no business of an answer
IMPORTS = {  # and types of Numba
    "math": math, "numpy": np, "itertools": itertools, "collections": collections, "numba.cuda": cuda,
    "refopt.gpu.cuda": cuda, "refopt.gpu.parts": parts, "refopt.gpu.vectors": vectors,
}
BUILTINS = {x.__name__: x for x in (
    abs, all, any, bool, dict, divmod, enumerate, filter, float, frozenset, hash, id, int, isinstance, iter, len, list,
    map, max, min, next, pow, print, range, repr, reversed, round, set, slice, sorted, str, sum, tuple, zip, Exception,
    IndexError, KeyError, RuntimeError, TypeError, ValueError, ZeroDivisionError)}
NUMPY = {  # its functions that an answer may call; types, numbers and ufuncs beside them
    "arange", "array", "asarray", "concatenate", "dtype", "empty", "finfo", "full", "iinfo", "ones", "split", "stack",
    "where", "zeros",
}
DECORATORS = {"jit", "device_function", "rows"}  # above a function, and nowhere else
NAMESPACES = {"atomic", "cg", "const", "local", "shared"}  # of `cuda`
STRINGS = {"jit", "vectorize", "reduce", "Reduce"}  # may take signatures, which are evaluated
ATTRIBUTES = {  # of anything but a module, beside those that the exercise uses itself
    "x", "y", "z", "size", "shape", "ndim", "dtype", "itemsize", "T", "astype",  # of indices and arrays
    "append", "extend", "insert", "pop", "sort", "index", "count", "copy", "get", "items", "keys", "values", "join",
    "setdefault", "update", "split", "startswith", "endswith",  # of Python's
    "main", "type", "inputs", "outputs", "attrs", "role", "name", "replace",  # of programs
    "rank", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv", "barrier",  # of communicators
}

REFUSED = (
    ast.ClassDef, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.With, ast.Delete, ast.Match, ast.Await,
    ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith,
)


def bound(statement: ast.stmt) -> set[str]:
    """The names that a statement defines, if it is a function, a class, an assignment or an import."""
    match statement:
        case ast.FunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Assign() | ast.AnnAssign():
            return {x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        case ast.Import() | ast.ImportFrom():
            return {x.asname or x.name.partition(".")[0] for x in statement.names}
    return set()


def used(statement: ast.stmt) -> set[str]:
    """The names that a statement reads from outside."""
    names = [x for x in ast.walk(statement) if isinstance(x, ast.Name)]
    own = {x.arg for x in ast.walk(statement) if isinstance(x, ast.arg)} | {
        x.id for x in names if isinstance(x.ctx, ast.Store)}
    return {x.id for x in names} - own


def given(name: str) -> set[str]:
    """The names that an exercise defines itself, in its first code cell."""
    return {x for statement in ast.parse(generate.code(name)[0]).body for x in bound(statement)}


def text(name: str, texts: Iterable[str]) -> str:
    """The answer in a notebook: its last definition, and the last ones of what it uses.

    Args:
        name: of the exercise's solution.
        texts: the code cells.

    Raises:
        ValueError: no cell defines the answer; the message has the cells that are not Python.
    """
    texts, own, found, unread = list(texts), given(name), [], []
    for number, lines in enumerate(map(cells.python, texts), 1):
        try:
            body = ast.parse(lines).body
        except SyntaxError as error:
            unread.append(f"code cell {number}, line {error.lineno}: {type(error).__name__}: {error.msg}")
            continue
        found += [(statement, lines.splitlines()) for statement in body if bound(statement) - own]
    last = {x: statement for statement, _ in found for x in bound(statement)}
    wanted = solution.answer_name(name)
    if wanted not in last:
        checked = [x for x in re.findall(r"exercise\.check\((\w+)\)", "\n".join(texts)) if x != wanted]
        raise ValueError("; ".join([f"no cell defines {wanted}", *(f"it checks {x}" for x in checked[-1:]), *unread]))
    kept, names = [], [wanted]
    while names:
        statement = last.get(names.pop())
        if statement is not None and statement not in kept:
            kept.append(statement)
            names += used(statement)
    return "\n\n".join(_source(statement, lines) for statement, lines in found if statement in kept) + "\n"


def _source(statement: ast.stmt, lines: list[str]) -> str:
    first = min([statement.lineno, *(x.lineno for x in getattr(statement, "decorator_list", []))])
    return "\n".join(lines[first - 1 : statement.end_lineno])


def load(name: str, source: str) -> Any:
    """The answer that a text defines, once it has been read.

    Raises:
        ValueError: an answer may not use what the text uses; the message has the line.
        Exception: what the text raises.
    """
    module, tree = solution.load(name).module, ast.parse(source)
    names = {x: getattr(module, x) for x in given(name) - OF_JUDGE}
    for statement in list(tree.body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names |= _imported(statement, {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)})
            tree.body.remove(statement)
    attributes = {x.attr for x in ast.walk(ast.parse(solution.text(name))) if isinstance(x, ast.Attribute)}
    _Reader(source, names, ATTRIBUTES | attributes).visit(tree)
    linecache.cache[FILE] = len(source), None, source.splitlines(keepends=True), FILE
    space = names | {"__builtins__": BUILTINS, "__name__": "answer"}
    exec(compile(tree, FILE, "exec"), space)
    return space[solution.answer_name(name)]


def _imported(statement: ast.Import | ast.ImportFrom, wanted: set[str]) -> dict[str, Any]:
    """What an import binds of what is wanted: modules of `IMPORTS`, and names of these."""
    found: dict[str, Any] = {}
    for x in statement.names:
        if (x.asname or x.name.partition(".")[0]) not in wanted:
            continue
        module, attribute = (x.name, "") if isinstance(statement, ast.Import) else (statement.module or "", x.name)
        whole = f"{module}.{attribute}".strip(".")
        if whole in IMPORTS and (x.asname or "." not in x.name):
            found[x.asname or x.name] = IMPORTS[whole]
        elif module in IMPORTS and _is_open(IMPORTS[module], attribute) and attribute not in DECORATORS | STRINGS:
            found[x.asname or x.name] = getattr(IMPORTS[module], attribute)
        elif module == "numba" and is_numba_type(value := getattr(importlib.import_module(module), attribute, None)):
            found[x.asname or x.name] = value
        else:
            raise ValueError(f"An answer may not import {whole}; of modules, there are {', '.join(IMPORTS)}")
    return found


def _is_open(module: ModuleType, name: str) -> bool:
    """Whether an answer may use a name of a module: no private one, no module, and of NumPy's functions a few."""
    value = getattr(module, name, None)
    if name.startswith("_") or value is None or isinstance(value, ModuleType):
        return False
    of_numpy = isinstance(value, np.ufunc | float) or (isinstance(value, type) and issubclass(value, np.generic))
    return module is not np or of_numpy or name in NUMPY


class _Reader(ast.NodeVisitor):
    """Reads an answer, and raises for what an answer may not use."""

    def __init__(self, source: str, names: dict[str, Any], attributes: set[str]) -> None:
        self.lines, self.names, self.attributes = source.splitlines(), names, attributes

    def refuse(self, node: Any, what: str) -> None:
        line = f"line {node.lineno}: {self.lines[node.lineno - 1].strip()}"
        raise ValueError(f"An answer may not use {what}.\n{line}")

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, REFUSED):
            self.refuse(node, f"`{ast.unparse(node).split()[0]}`")
        super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(ast.Attribute(ast.Name(module), name), [], options):
                    plain = all(isinstance(x.value, ast.Constant) for x in options)
                case ast.Attribute(ast.Name(module), name):
                    plain = True
                case _:
                    plain, module, name = False, "", ""
            if not (plain and name in DECORATORS and isinstance(self.names.get(module), ModuleType)):
                self.refuse(decorator, f"`@{ast.unparse(decorator)}`")
        for child in ast.iter_child_nodes(node):
            if child not in node.decorator_list:
                self.visit(child)

    def module(self, node: ast.expr) -> ModuleType | None:
        """The module that an expression names, if any."""
        if isinstance(node, ast.Attribute) and node.attr in NAMESPACES:
            return getattr(self.module(node.value), node.attr, None)
        found = self.names.get(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, ModuleType) else None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        module = self.module(node.value)
        if module is not None:
            may = _is_open(module, node.attr) and node.attr not in DECORATORS | STRINGS
        else:
            may = node.attr in self.attributes
            self.visit(node.value)
        if not (may and isinstance(node.ctx, ast.Load)):
            self.refuse(node, f"`.{node.attr}`" + " as a target" * (not isinstance(node.ctx, ast.Load)))

    def visit_Name(self, node: ast.Name) -> None:
        of_python = hasattr(builtins, node.id) and node.id not in BUILTINS
        if node.id.startswith("__") or of_python or isinstance(self.names.get(node.id), ModuleType):
            self.refuse(node, f"`{node.id}`")
