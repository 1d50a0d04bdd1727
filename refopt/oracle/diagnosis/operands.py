"""Rules in which one expression has another value: limited, scaled, by another number, with a term too many.

Each expression of a rule, and of what it calls, is compiled once with a function around it, which gets its value and
the variables of the function that it stands in. What that function makes of them is what may have been written.
"""

import ast
import copy
import functools
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.oracle.diagnosis.hypotheses import DECAYS, Hypothesis, base_rule
from refopt.oracle.diagnosis.situation import Rule, Situation
from refopt.oracle.diagnosis.source import compiled, reached, replaced_node, source, substituted, text_of
from refopt.oracle.wrong import limits, norms

HOLE = "_instead"
MOVED = (*sorted(DECAYS), "epsilon")  # numbers that do nothing if they are 0, and may stand elsewhere
WEIGHTS = DECAYS | {"lr", "mu", "beta1", "beta2", "rho", "local_lr"}  # what arrays are multiplied by
LONG = 60  # characters of a statement that is shown
Value = Callable[[Any, dict[str, Any]], Any]  # of an expression's value and the variables around it


@functools.cache
def of_rule(row: Routine) -> tuple[Hypothesis, ...]:
    """A hypothesis for each expression of a routine's rule, and each value that it may have instead."""
    rule = base_rule(row)
    summed: list[tuple[str, Value]] = [(text, partial(_alone, by=by)) for text, by in norms.summands()]
    hypotheses: list[tuple[int, Hypothesis]] = []
    for function in reached(rule):
        tree = source(function)
        values = list(_values(row, tree))
        for place in _places(tree):
            hole = compiled(function, place.tree)
            for number, (text, value) in enumerate((summed if place.summed else []) + values):
                name = place.named(text, function.__name__)
                if name:
                    change = partial(_with, base=rule, function=function, hole=hole, value=value)
                    hypotheses.append((number, Hypothesis(name, change, "edit")))
                    if elsewhere := next((x for x in MOVED if isinstance(value, partial) and x in _named(value)), ""):
                        change = partial(change, without=elsewhere)
                        hypotheses.append((number, Hypothesis(f"{name}, and no {elsewhere} elsewhere", change, "edit")))
    return tuple(hypothesis for _, hypothesis in sorted(hypotheses, key=lambda x: x[0]))


def _named(value: partial) -> tuple[str, ...]:
    """The numbers that a value is made of."""
    return tuple(x for x in value.keywords.values() if isinstance(x, str))


def _with(s: Situation, base: Rule, function: Any, hole: Any, value: Value, without: str = "") -> Situation | None:
    if s.rule is not base:
        return None
    numbers = {name: np.float64(s.real(x)) for name, x in s.numbers.items()}
    numbers |= {f"{name}**t": x**s.case.count for name, x in numbers.items() if name.startswith("beta")}
    names = hole.__globals__ | {HOLE: partial(_inside, value=value, numbers=numbers)}
    filled = FunctionType(hole.__code__, names, hole.__name__, hole.__defaults__)
    filled.__kwdefaults__ = hole.__kwdefaults__
    changed = s._replace(rule=substituted(base, function, filled))
    return changed._replace(numbers=s.numbers | {without: 0.0}) if without else changed


class Place(NamedTuple):
    """An expression of a function, the statement that it is in, and the function with a hole around it.

    ``summed`` says that the squares of its elements are added up.
    """

    expression: str
    statement: str
    summed: bool
    tree: ast.FunctionDef

    def named(self, text: str, function: str) -> str:
        """What is said of the expression with a value; nothing if that is itself."""
        name = self.expression.removeprefix("each ")
        operand = name if name.isidentifier() else f"({name})"
        new = text.format(operand)
        short = self.statement != self.expression and len(self.statement) <= LONG
        where = f" in `{self.statement}`" if short else f" (in {function})"
        return "" if new == operand else f"as if `{self.expression}` were `{new}`{where}"


def _places(tree: ast.FunctionDef) -> Iterator[Place]:
    """Each expression that has a number or an array for its value."""
    nodes = [(node, statement) for statement in tree.body for node in ast.walk(statement)]
    calls = [node for node, _ in nodes if isinstance(node, ast.Call)]
    skipped = _skipped(tree, [node for node, _ in nodes], calls)
    summed = {id(call.args[0]) for call in calls if text_of(call.func) in ("sum_of_squares", "squares")}
    for k, (node, statement) in enumerate(nodes):
        value = isinstance(node, ast.BinOp | ast.Call) or id(node) in summed or _reads(node)
        if value and id(node) not in skipped:
            changed = replaced_node(tree, k, _hole(node))
            yield Place(text_of(node), text_of(statement), id(node) in summed, changed)
    yield from _each(tree, nodes)


def _skipped(tree: ast.FunctionDef, nodes: list[ast.AST], calls: list[ast.Call]) -> set[int]:
    """Expressions that are no values, or that are changed elsewhere."""
    skipped = {id(call.func) for call in calls}
    for call in calls:  # what is handed on by its own name is changed where it is used
        skipped |= {id(x.value) for x in call.keywords if isinstance(x.value, ast.Name) and x.value.id == x.arg}
    tests = [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)]
    tests += [node for node in nodes if isinstance(node, ast.Compare)]
    skipped |= {id(x) for test in tests for x in ast.walk(test)}
    skipped |= {id(call) for call in calls if text_of(call.func) in ("stored", "moments")}
    return skipped | _read_once(tree, nodes)


def _read_once(tree: ast.FunctionDef, nodes: list[ast.AST]) -> set[int]:
    """Values that are read once by a name: they are changed there."""
    reads = [node.id for node in nodes if _is_read(node)]  # type: ignore[attr-defined]
    assigned = [(x.targets[0], x.value) for x in tree.body if isinstance(x, ast.Assign)]
    return {id(value) for x, value in assigned if isinstance(x, ast.Name) and reads.count(x.id) == 1}


def _each(tree: ast.FunctionDef, nodes: list[tuple[ast.AST, ast.stmt]]) -> Iterator[Place]:
    """Names that a statement reads more than once, all at once."""
    for statement in [x for x in tree.body if isinstance(x, ast.Assign | ast.Return)]:
        mine = [(k, node) for k, (node, where) in enumerate(nodes) if where is statement and _reads(node)]
        names = [node.id for _, node in mine if isinstance(node, ast.Name)]
        for name in [x for x in dict.fromkeys(names) if names.count(x) > 1]:
            changed = tree
            for k, node in mine[::-1]:
                if isinstance(node, ast.Name) and node.id == name:
                    changed = replaced_node(changed, k, _hole(node))
            yield Place(f"each {name}", text_of(statement), False, changed)


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _reads(node: ast.AST) -> bool:
    return _is_read(node) and node.id not in ("np", "type")  # type: ignore[attr-defined]


def _hole(node: Any) -> ast.Call:
    variables = ast.Call(ast.Name("locals", ast.Load()), [], [])
    return ast.Call(ast.Name(HOLE, ast.Load()), [copy.deepcopy(node), variables], [])


def _values(row: Routine, tree: ast.FunctionDef) -> Iterator[tuple[str, Value]]:
    """What an expression ``{}`` may be instead, simple things first."""
    numbers, arrays = _operands(row, tree)
    if "epsilon" in numbers:
        yield "{} + epsilon", partial(_by_one, by=lambda x, n: x + n, name="epsilon")
    for decay in [name for name in numbers if name in DECAYS]:
        yield f"{{}} * (1 - lr * {decay})", partial(_by_both, by=_decayed, number="lr", array=decay)
    yield from _plain_values()
    for name in dict.fromkeys([*numbers, *sorted(arrays)]):
        yield name, partial(_other, name=name)
    yield from _with_numbers(row, numbers)
    for array in sorted(arrays):
        yield from _with_array(array, numbers)


def _operands(row: Routine, tree: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """The names of numbers and of arrays in a rule."""
    parameters = [x.arg for x in (*tree.args.posonlyargs, *tree.args.args)]
    inputs = {*parameters, *(x.arg for x in tree.args.kwonlyargs)}
    numbers = [name for name in (hyper.name for hyper in row.hypers) if name not in ("seed", "rescale_grad")]
    numbers += [name for name in row.scalars if name in inputs]
    arrays = [name for name in inputs - set(numbers) if name in parameters] + sorted(_assigned(tree) - inputs)
    singles = [name for name in sorted(inputs) if name.endswith(("_pow", "_norm", "_lr"))]
    return list(dict.fromkeys([*numbers, *singles, *(x for x in ("b1", "b2") if x in inputs)])), arrays


def _with_numbers(row: Routine, numbers: list[str]) -> Iterator[tuple[str, Value]]:
    for number in numbers:
        for text, value in (
            ("{} * %s", lambda x, n: x * n), ("{} / %s", lambda x, n: x / n),
            ("{} * (1 - %s)", lambda x, n: x * (1 - n)), ("{} / (1 - %s)", lambda x, n: x / (1 - n)),
        ):  # fmt: skip
            yield text % number, partial(_by_one, by=value, name=number)
    if not row.scalars or "second_moment" in row.scalars:  # no powers, and so no corrections of its own
        for power in [f"{name}**t" for name in numbers if name.startswith("beta")]:
            yield f"{{}} / (1 - {power})", partial(_by_one, by=lambda x, n: x / (1 - n), name=power)
            yield f"{{}} * (1 - {power})", partial(_by_one, by=lambda x, n: x * (1 - n), name=power)
    for number in [name for name in ("lr", "epsilon") if name in numbers]:
        yield f"max({{}}, {number})", partial(_by_one, by=limits.at_least, name=number)
        yield f"min({{}}, {number})", partial(_by_one, by=limits.at_most, name=number)
    for power in [name for name in numbers if name.endswith("_pow") or name in ("b1", "b2")]:
        yield f"{{}} * sqrt(1 - {power})", partial(_by_one, by=lambda x, n: x * np.sqrt(1 - n), name=power)
        yield f"{{}} / sqrt(1 - {power})", partial(_by_one, by=lambda x, n: x / np.sqrt(1 - n), name=power)


def _with_array(array: str, numbers: list[str]) -> Iterator[tuple[str, Value]]:
    for decay in [name for name in numbers if name in DECAYS]:
        yield f"{{}} - lr * {decay} * {array}", partial(_decayed_by, decay=decay, array=array)
    for text, value in (
        ("{} + %s", lambda x, a: x + a), ("{} - %s", lambda x, a: x - a), ("{} * %s", lambda x, a: x * a),
        ("{} / %s", lambda x, a: x / a),
    ):  # fmt: skip
        yield text % array, partial(_by_one, by=value, name=array)
    for number in [name for name in numbers if name in WEIGHTS]:
        for text, of_three in (
            ("{} + %s * %s", lambda x, n, a: x + n * a), ("{} - %s * %s", lambda x, n, a: x - n * a),
            ("{} * %s + %s", lambda x, n, a: x * n + a),
        ):  # fmt: skip
            yield text % (number, array), partial(_by_both, by=of_three, number=number, array=array)


def _decayed(x: Any, lr: Any, decay: Any) -> Any:
    return x * (1 - lr * decay)


def _assigned(tree: ast.FunctionDef) -> set[str]:
    return {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def _plain_values() -> Iterator[tuple[str, Value]]:
    for limit in limits.USUAL:
        for text, by in (
            ("min({}, %g)", limits.at_most), ("max({}, %g)", limits.at_least), ("clip({}, -%g, %g)", limits.within),
            ("{} of norm %g at most", limits.norm_at_most),
        ):  # fmt: skip
            yield text.replace("%g", f"{limit:g}"), partial(_limited, by=by, limit=limit)
    for text, alone in (
        ("abs({})", abs), ("sign({})", np.sign), ("sqrt({})", np.sqrt), ("{} ** 2", lambda x: x * x),
        ("{0} * abs({0})", lambda x: x * abs(x)), ("1 / {}", lambda x: 1 / x), ("1 - {}", lambda x: 1 - x),
        ("{} + 1", lambda x: x + 1), ("-{}", lambda x: -x), ("2 * {}", lambda x: 2 * x), ("{} / 2", lambda x: x / 2),
        ("0", lambda x: 0 * x), ("1", lambda x: 0 * x + 1), ("{} / its norm", limits.normalized),
    ):  # fmt: skip
        yield text, partial(_alone, by=alone)


def _inside(x: Any, values: dict[str, Any], value: Value, numbers: dict[str, Any]) -> Any:
    """What stands for an expression's value; numbers of the step are known everywhere."""
    return value(x, numbers | values)


def _variable(values: dict[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise TypeError(f"expected a number or an array, got no {name}")
    return values[name]


def _limited(x: Any, values: dict[str, Any], by: Any, limit: float) -> Any:
    return by(x, limit)


def _alone(x: Any, values: dict[str, Any], by: Any) -> Any:
    return by(x)


def _other(x: Any, values: dict[str, Any], name: str) -> Any:
    return _variable(values, name)


def _decayed_by(x: Any, values: dict[str, Any], decay: str, array: str) -> Any:
    return x - _variable(values, "lr") * _variable(values, decay) * _variable(values, array)


def _by_one(x: Any, values: dict[str, Any], by: Any, name: str) -> Any:
    return by(x, _variable(values, name))


def _by_both(x: Any, values: dict[str, Any], by: Any, number: str, array: str) -> Any:
    return by(x, _variable(values, number), _variable(values, array))
