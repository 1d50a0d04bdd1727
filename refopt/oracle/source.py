"""Functions of refopt with changed source: which call which, and copies in which something is replaced."""

import ast
import copy
import functools
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from refopt.oracle.bound.evaluate import PRIMITIVES, copied, is_ours

SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
OLD = "_before"
LONG = 60  # characters of a statement that is shown


@functools.cache
def reached(function: Any) -> tuple[Any, ...]:
    """A function, and those of refopt that it calls or has as defaults, directly or not."""
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    functions = {function: None}
    for value in (*values, *(function.__kwdefaults__ or {}).values()):
        if is_ours(value) and value not in PRIMITIVES and value is not function:
            functions |= dict.fromkeys(reached(value))
    return tuple(functions)


def formulas(function: Any) -> list[Any]:
    """Those of them that are part of an optimizer's formula; not helpers, such as the larger of x and y."""
    return [x for x in reached(function) if not {*inspect.signature(x).parameters} <= {"x", "y"}]


def legend(function: Any, text: str, slots: Sequence[str]) -> str:
    """The meaning of a rule's names for its slots that occur in a text."""
    names: dict[str, str] = {}
    for inner in reached(function):
        parameters = inspect.signature(inner).parameters.values()
        positional = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
        if len(positional) == len(slots):
            names |= {name: slot for name, slot in zip(positional[2:], slots[2:], strict=True)}
    used = [f"{name} is {slot}" for name, slot in names.items() if re.search(rf"`[^`]*\b{name}\b[^`]*`", text)]
    return f" ({', '.join(used)})" if used else ""


def substituted(function: Any, others: Mapping[Any, Any]) -> Any:
    """A function that calls others instead of some, wherever it or its callees call these.

    A replacement may call the function that it replaces.
    """
    if not others.keys() & {*reached(function)}:
        return function
    rest = {one: new for one, new in others.items() if one is not function}

    def other(value: Any) -> Any:
        inner = is_ours(value) and value is not function and value not in PRIMITIVES
        return substituted(value, rest) if inner else value

    new = others.get(function, function)
    return copied(new, other) if isinstance(new, FunctionType) else new


def rewritten(rule: Any, changes: Mapping[str, str], **names: Any) -> Any:
    """A rule in which some text of its functions' source is replaced, wherever it occurs.

    Changes are made in order, each to the result of the previous ones. Names in new text are looked up in the module of
    the function, in NumPy as ``np``, and in ``names``. The returned rule has an attribute ``changes``.

    Raises:
        ValueError: the text to replace does not occur.
    """
    written = {function: textwrap.dedent(inspect.getsource(function)) for function in reached(rule)}
    others: dict[Any, Any] = {}
    for old, new in changes.items():
        found = [function for function, text in written.items() if old in text]
        if not found:
            raise ValueError(f"{rule.__module__}: expected {old!r} in the source of its rule, got none")
        for function in found:
            written[function] = written[function].replace(old, new)
            others[function] = None
    for function in others:
        tree = ast.parse(written[function]).body[0]
        assert isinstance(tree, ast.FunctionDef)
        others[function] = compiled(function, tree, **names)
    changed = substituted(rule, others)
    changed.changes = dict(changes)
    return changed


def source(function: Any) -> ast.FunctionDef:
    """The source of a function, without its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        del tree.body[0]
    return tree


def compiled(function: Any, tree: ast.FunctionDef, **more: Any) -> Any:
    """The function that changed source defines, in the module of the original, with further names."""
    names = {"np": np, **function.__globals__, **more}
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
    """The statement that contains an expression, if it is short enough to show."""
    text = text_of(statement)
    return f" in `{text}`" if len(text) <= LONG and text != text_of(node) else ""


def replaced_node(tree: ast.FunctionDef, k: int, after: ast.expr) -> ast.FunctionDef:
    """A function with one expression replaced; unchanged nodes are shared."""
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
