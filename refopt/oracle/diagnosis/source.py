"""Functions of refopt with another source: what of it calls what, and copies in which something is replaced."""

import ast
import copy
import functools
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import numpy as np

from refopt.oracle.bound.evaluate import PRIMITIVES

SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
OLD = "_before"


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


def replaced_node(tree: ast.FunctionDef, k: int, after: ast.expr) -> ast.FunctionDef:
    """A copy of a function, with another expression in place of one."""
    mine = copy.deepcopy(tree)
    nodes = [node for statement in mine.body for node in ast.walk(statement)]
    target, new = nodes[k], copy.deepcopy(after)
    for parent in ast.walk(mine):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(x is target for x in value):
                value[[x is target for x in value].index(True)] = new
    return mine
