"""Rules with one small change in their source: an operand left out, another operator, an old value instead of a new.

They represent mistakes without a name in `refopt.oracle.wrong`.
"""

import ast
import copy
import functools
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from refopt.catalog import Routine
from refopt.oracle.diagnosis.situation import Hypothesis, Rule, Situation, base_rule
from refopt.oracle.source import OLD, compiled, formulas, replaced_node, source, substituted, text_of, within

OTHER: dict[type, Any] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}


@functools.cache
def of_rule(row: Routine) -> tuple[Hypothesis, ...]:
    """A hypothesis for each change of a routine's rule and of the functions it calls."""
    rule = base_rule(row)
    hypotheses: list[Hypothesis] = []
    for function in formulas(rule):
        for text, tree in _changes(source(function)):
            edited = compiled(function, tree)
            if edited is not None:
                changed = substituted(rule, {function: edited})
                hypotheses.append(Hypothesis(text, partial(_with, rule=changed, base=rule), "edit"))
    return tuple(hypotheses)


def _with(s: Situation, rule: Rule, base: Rule) -> Situation | None:
    return s._replace(rule=rule) if s.rule is base else None


def _changes(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Each change of an expression of a function: what it is, and the function with it."""
    nodes = [(node, statement) for statement in tree.body for node in ast.walk(statement)]
    for k, (node, statement) in enumerate(nodes):
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            for after in _instead(node):
                text = f"as if `{text_of(node)}` were `{text_of(after)}`{within(statement, node)}"
                yield text, replaced_node(tree, k, after)
    yield from _old_values(tree)


def _instead(node: ast.expr) -> Iterator[ast.expr]:
    """What may have been written instead of an expression."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield node.right
        yield from _reordered(node)
        yield from _of_operator(node)
    elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        yield node.args[0]
        if _is_root(node):
            yield _root(node)
        if _is_root(node) and isinstance(node.args[0], ast.BinOp):
            inside = node.args[0]
            yield ast.BinOp(_root(inside.left), inside.op, inside.right)
    elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        yield from node.args  # such as the larger of two
    elif isinstance(node, ast.Compare):
        yield ast.Constant(True)
        yield ast.Constant(False)
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        for value in {0, 1, 2, 2 * node.value} - {node.value}:
            yield ast.Constant(value)


def _reordered(node: ast.BinOp) -> Iterator[ast.expr]:
    """Another operator, or operands in another order."""
    left, right = node.left, node.right
    if type(node.op) in OTHER:
        yield ast.BinOp(left, OTHER[type(node.op)](), right)
    if isinstance(node.op, ast.Sub | ast.Div):
        yield ast.BinOp(right, node.op, left)
    if isinstance(left, ast.BinOp):
        yield ast.BinOp(left.left, left.op, ast.BinOp(left.right, node.op, right))
    if isinstance(right, ast.BinOp):
        yield ast.BinOp(ast.BinOp(left, node.op, right.left), right.op, right.right)


def _of_operator(node: ast.BinOp) -> Iterator[ast.expr]:
    """Replacements for a sum, a difference, a product or a root."""
    left, right = node.left, node.right
    if isinstance(node.op, ast.Add | ast.Sub):
        yield from _factor_moved(node)
    if isinstance(node.op, ast.Add):
        for one, other in itertools.product(_with_last_factor(left), _with_last_factor(right)):
            yield ast.Call(ast.Attribute(ast.Name("np", ast.Load()), "maximum", ast.Load()), [one, other], [])
    if _is_root(left):
        for inside in (right, ast.BinOp(right, ast.Mult(), right)):
            yield ast.Call(left.func, [ast.BinOp(left.args[0], node.op, inside)], [])  # type: ignore[attr-defined]
    if isinstance(node.op, ast.Sub):
        yield _root(node)
    if isinstance(node.op, ast.Mult) and isinstance(left, ast.BinOp) and text_of(left.right) == text_of(right):
        yield ast.BinOp(left.left, node.op, ast.Call(ast.Name("abs", ast.Load()), [right], []))


def _with_last_factor(node: ast.expr) -> list[ast.expr]:
    """A term with and without its weight."""
    return [node, node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else [node]


def _factor_moved(node: ast.BinOp) -> Iterator[ast.expr]:
    """A factor of one term moved to the other, or applied to both."""
    for one, other, swapped in ((node.left, node.right, False), (node.right, node.left, True)):
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult):
            for factor, rest in ((one.left, one.right), (one.right, one.left)):
                by = ast.BinOp(factor, ast.Mult(), other)
                for term in (rest, one):
                    yield ast.BinOp(by, node.op, term) if swapped else ast.BinOp(term, node.op, by)


def _is_root(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "np.sqrt"


def _root(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name("np", ast.Load()), "sqrt", ast.Load()), [node], [])


def _old_values(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The value of a parameter before the step, where it has been reassigned."""
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
                text = f"`{node.id}` as it was before the step in `{text_of(statement)}`"
                yield text, mine
        stored = {x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        assigned |= stored & parameters
