"""Rules with one small change in their source: an operand left out, an operator for another, an old value for a new.

They stand for mistakes that have no name in `refopt.oracle.wrong`.
"""

import ast
import copy
import functools
import inspect
import textwrap
from collections.abc import Iterator
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.oracle.diagnosis.hypotheses import Hypothesis, base_rule
from refopt.oracle.diagnosis.situation import Rule, Situation
from refopt.oracle.diagnosis.substitution import reached, substituted

OTHER: dict[type, Any] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
OLD = "_before"


@functools.cache
def of_rule(row: Routine) -> tuple[Hypothesis, ...]:
    """A hypothesis for each change of a routine's rule and of what it calls."""
    rule = base_rule(row)
    found: list[Hypothesis] = []
    for function in reached(rule):
        for edit in _edits(function):
            changed = substituted(rule, function, edit.function)
            name = f"{edit.text} (in {function.__name__})"
            found.append(Hypothesis(name, partial(_with, rule=changed, base=rule), "edit"))
    return tuple(found)


def _with(s: Situation, rule: Rule, base: Rule) -> Situation | None:
    return s._replace(rule=rule) if s.rule is base else None


class Edit(NamedTuple):
    text: str
    function: Any


def _edits(function: Any) -> Iterator[Edit]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        del tree.body[0]
    for change in _changes(tree):
        compiled = _compiled(function, change.tree)
        if compiled is not None:
            yield Edit(change.text, compiled)


def _compiled(function: Any, tree: ast.FunctionDef) -> Any:
    """The function that a changed source defines, in the module of the original one."""
    names = {"np": np, **function.__globals__}
    tree.decorator_list = []
    tree.args.kw_defaults = [None] * len(tree.args.kwonlyargs)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    try:
        exec(compile(module, f"<{function.__name__} with a change>", "exec"), names)
    except (SyntaxError, ValueError):
        return None
    made = names[tree.name]
    copied = FunctionType(made.__code__, names | {tree.name: function}, made.__name__, made.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


class Change(NamedTuple):
    text: str
    tree: ast.FunctionDef


def _changes(tree: ast.FunctionDef) -> Iterator[Change]:
    """Each change of an expression of a function."""
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    for k, node in enumerate(nodes):
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            for after in _instead(node, tree):
                yield Change(f"as if `{_text(node)}` were `{_text(after)}`", _replaced(tree, k, after))
    yield from _old_values(tree)


def _text(node: ast.AST) -> str:
    """An expression, with long operands left out."""
    text = ast.unparse(node).replace("np.", "").replace(OLD, " before the step")
    if len(text) > 44 and isinstance(node, ast.BinOp):
        sides = [x if len(x) <= 20 else "(...)" for x in map(_text, (node.left, node.right))]
        text = f"{sides[0]} {SIGNS[type(node.op)]} {sides[1]}"
    return text


def _replaced(tree: ast.FunctionDef, k: int, after: ast.expr) -> ast.FunctionDef:
    """A copy of a function, with another expression in the place of one."""
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


def _instead(node: ast.expr, tree: ast.FunctionDef) -> Iterator[ast.expr]:
    """What may have been written for an expression."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
        if type(node.op) in OTHER:
            yield ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
        if isinstance(node.op, ast.Sub | ast.Div):
            yield ast.BinOp(node.right, node.op, node.left)
        left, right = node.left, node.right
        if isinstance(left, ast.BinOp):
            yield ast.BinOp(left.left, left.op, ast.BinOp(left.right, node.op, right))
        if isinstance(right, ast.BinOp):
            yield ast.BinOp(ast.BinOp(left, node.op, right.left), right.op, right.right)
        if _is_root(left):
            yield ast.Call(left.func, [ast.BinOp(left.args[0], node.op, right)], [])  # type: ignore[attr-defined]
        if isinstance(node.op, ast.Sub):
            yield _root(node)
        if isinstance(node.op, ast.Mult) and isinstance(left, ast.BinOp) and _text(left.right) == _text(right):
            yield ast.BinOp(left.left, node.op, ast.Call(ast.Name("abs", ast.Load()), [right], []))
    elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        yield node.args[0]
        if _is_root(node):
            yield _root(node)
        if _is_root(node) and isinstance(node.args[0], ast.BinOp):
            inside = node.args[0]
            yield ast.BinOp(_root(inside.left), inside.op, inside.right)
    elif isinstance(node, ast.Compare):
        yield ast.Constant(True)
        yield ast.Constant(False)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Name):
        for name in _alike(node.id, tree):
            yield ast.Name(name, ast.Load())
        if node.id not in ("np", "p", "type") and node.id in _values(tree):
            yield ast.BinOp(node, ast.Mult(), node)
            yield _root(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        for value in {0, 1, 2, 2 * node.value} - {node.value}:
            yield ast.Constant(value)


def _values(tree: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters and variables."""
    given = {x.arg for x in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)}
    nodes = ast.walk(tree)
    return given | {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def _is_root(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "np.sqrt"


def _root(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("np", ast.Load()), "sqrt", ast.Load()), [node], [])


def _alike(name: str, tree: ast.FunctionDef) -> list[str]:
    """Other parameters of a function that may be taken for one: arrays for arrays, numbers for numbers."""
    numbers = [x.arg for x in tree.args.kwonlyargs]
    parameters = [x.arg for x in (*tree.args.posonlyargs, *tree.args.args)]
    arrays = [x for x in parameters if len(x) == 1 or x.startswith("u_")]
    singles = [x for x in (*parameters, *numbers) if x not in arrays]
    same = arrays if name in arrays else singles if name in singles else []
    return [x for x in same if x != name]


def _old_values(tree: ast.FunctionDef) -> Iterator[Change]:
    """What a parameter was before the step, where it has been assigned to."""
    parameters = {x.arg for x in (*tree.args.posonlyargs, *tree.args.args)}
    assigned: set[str] = set()
    for number, statement in enumerate(tree.body):
        for k, node in enumerate(ast.walk(statement)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in assigned:
                mine = copy.deepcopy(tree)
                again = list(ast.walk(mine.body[number]))[k]
                assert isinstance(again, ast.Name)
                again.id = node.id + OLD
                first = ast.parse(f"{node.id}{OLD} = {node.id}").body[0]
                mine.body.insert(0, first)
                text = f"`{node.id}` as it was before the step in `{_text(statement)}`"
                yield Change(text, mine)
        stored = {x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        assigned |= stored & parameters
