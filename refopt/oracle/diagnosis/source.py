"""Functions of refopt with another source: what of it calls what, and copies in which something is replaced."""

import ast
import copy
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from refopt.oracle.bound.evaluate import PRIMITIVES

SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
OLD = "_before"
LONG = 60  # characters of a statement that is shown


def _inner(function: Any) -> Iterator[Any]:
    """The functions of refopt that one calls, or has as defaults."""
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    for value in (*values, *(function.__kwdefaults__ or {}).values()):
        ours = isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "refopt"
        if ours and value not in PRIMITIVES and value is not function:
            yield value


@functools.cache
def reached(function: Any) -> tuple[Any, ...]:
    """A function, and those of refopt that it calls, directly or not."""
    functions = {function: None}
    for value in _inner(function):
        functions |= dict.fromkeys(reached(value))
    return tuple(functions)


def formulas(function: Any) -> list[Any]:
    """Those of them that say something of an optimizer; not helpers, such as the larger of x and y."""
    return [x for x in reached(function) if not {*inspect.signature(x).parameters} <= {"x", "y"}]


def legend(function: Any, text: str, slots: Sequence[str]) -> str:
    """What the names in a text stand for that a rule has for its slots."""
    names: dict[str, str] = {}
    for inner in reached(function):
        parameters = inspect.signature(inner).parameters.values()
        positional = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
        if len(positional) == len(slots):
            names |= {name: slot for name, slot in zip(positional[2:], slots[2:], strict=True)}
    used = [f"{name} is {slot}" for name, slot in names.items() if re.search(rf"`[^`]*\b{name}\b[^`]*`", text)]
    return f" ({', '.join(used)})" if used else ""


def substituted(function: Any, old: Any, new: Any) -> Any:
    """A function that calls ``new`` wherever it, or what it calls, called ``old``."""
    if function is old:
        return new
    if old not in reached(function):
        return function
    names = dict(function.__globals__)

    def other(value: Any) -> Any:
        ours = isinstance(value, FunctionType) and value.__module__.partition(".")[0] == "refopt"
        return substituted(value, old, new) if ours and value is not function and value not in PRIMITIVES else value

    names |= {name: other(names[name]) for name in function.__code__.co_names if name in names}
    twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = {name: other(value) for name, value in (function.__kwdefaults__ or {}).items()}
    return twin


def source(function: Any) -> ast.FunctionDef:
    """The source of a function, without its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        del tree.body[0]
    return tree


def compiled(function: Any, tree: ast.FunctionDef) -> Any:
    """The function that a changed source defines, in the module of the original one."""
    names = {"np": np, **function.__globals__}
    tree.decorator_list = []
    tree.args.kw_defaults = [None] * len(tree.args.kwonlyargs)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    try:
        exec(compile(module, f"<{function.__name__} with a change>", "exec"), names)
    except (SyntaxError, ValueError):
        return None
    edited = names[tree.name]
    copied = FunctionType(edited.__code__, names | {tree.name: function}, edited.__name__, edited.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def text_of(node: ast.AST) -> str:
    """An expression, with long operands left out."""
    text = ast.unparse(node).replace("np.", "").replace(OLD, " before the step")
    if len(text) > 44 and isinstance(node, ast.BinOp):
        sides = [x if len(x) <= 20 else "(...)" for x in map(text_of, (node.left, node.right))]
        text = f"{sides[0]} {SIGNS[type(node.op)]} {sides[1]}"
    return text


def within(statement: ast.stmt, node: ast.AST) -> str:
    """Where an expression stands, if that can be shown."""
    text = text_of(statement)
    return f" in `{text}`" if len(text) <= LONG and text != text_of(node) else ""


def replaced_node(tree: ast.FunctionDef, k: int, after: ast.expr) -> ast.FunctionDef:
    """A function with another expression in place of one; what does not change is shared."""
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    return _replaced(tree, nodes[k], after)


def _replaced(node: Any, old: ast.AST, new: ast.AST) -> Any:
    if node is old:
        return new
    for name, value in ast.iter_fields(node):
        values = value if isinstance(value, list) else [value]
        after = [_replaced(x, old, new) if isinstance(x, ast.AST) else x for x in values]
        if any(x is not y for x, y in zip(values, after, strict=True)):
            mine = copy.copy(node)
            setattr(mine, name, after if isinstance(value, list) else after[0])
            return mine
    return node
