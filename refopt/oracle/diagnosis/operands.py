"""Rules in which one expression has another value: limited, scaled, by another number, with a term too many.

Each expression of a rule, and of what it calls, is compiled once with a function around it, which gets its value and
the variables of the function that it stands in. What that function makes of them is what may have been written.
"""

import ast
import copy
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.cases import has
from refopt.oracle.diagnosis.hypotheses import DECAYS, Hypothesis, base_rule
from refopt.oracle.diagnosis.situation import Rule, Situation
from refopt.oracle.diagnosis.source import compiled, formulas, replaced_node, source, substituted, text_of, within
from refopt.oracle.wrong import limits, norms

HOLE, DTYPE, NARROW = "_instead", "_dtype", "in the gradient's dtype"
MOVED = (*sorted(DECAYS), "epsilon")  # numbers that do nothing if they are 0, and may stand elsewhere
WEIGHTS = DECAYS | {"lr", "mu", "beta1", "beta2", "rho", "local_lr"}  # what arrays are multiplied by
Value = Callable[[Any, dict[str, Any]], Any]  # of an expression's value and the variables around it


@functools.cache
def of_rule(row: Routine) -> tuple[Hypothesis, ...]:
    """A hypothesis for each expression of a routine's rule, and each value that it may have instead."""
    rule = base_rule(row)
    summed: list[tuple[str, Value, str]] = [(text, partial(_alone, by=by), "") for text, by in norms.summands()]
    hypotheses: list[tuple[int, Hypothesis]] = []
    for function in formulas(rule):
        tree = source(function)
        values = [(text, value, _moved(value)) for text, value in _values(row, tree)]
        for place in _places(tree):
            hole = Hole()
            inside = compiled(function, place.tree)
            inside.__globals__[HOLE] = hole
            changed = substituted(rule, function, inside)
            for number, (text, value, elsewhere) in enumerate((summed if place.summed else []) + values):
                name = place.named(text)
                if name:
                    change = partial(_with, base=rule, changed=changed, hole=hole, value=value)
                    hypotheses.append((number, Hypothesis(name, change, "edit")))
                    if elsewhere:
                        change = partial(change, without=elsewhere)
                        hypotheses.append((number, Hypothesis(f"{name}, and no {elsewhere} elsewhere", change, "edit")))
    return tuple(hypothesis for _, hypothesis in sorted(hypotheses, key=lambda x: x[0]))


def _moved(value: Value) -> str:
    """The number, of those that may stand elsewhere, that a value is made of."""
    names = value.keywords.values() if isinstance(value, partial) else ()
    return next((x for x in MOVED if any(x == name for name in names)), "")


class Hole:
    """What stands around an expression: it makes another value of its value, and of the variables around it."""

    now: Value

    def __call__(self, x: Any, values: dict[str, Any]) -> Any:
        return self.now(x, values)


def _with(s: Situation, base: Rule, changed: Rule, hole: Hole, value: Value, without: str = "") -> Situation | None:
    if s.rule is not base:
        return None
    known: dict[str, Any] = {name: np.float64(s.real(x)) for name, x in s.numbers.items()}
    known |= {f"{name}**t": x**s.case.count for name, x in known.items() if name.startswith("beta")}
    known[DTYPE] = s.arrays["grads"].dtype
    filled = s._replace(rule=partial(_filled, rule=changed, hole=hole, value=value, known=known))
    return filled._replace(numbers=s.numbers | {without: 0.0}) if without else filled


def _filled(*arrays: Any, rule: Rule, hole: Hole, value: Value, known: dict[str, Any], **numbers: Any) -> tuple:
    """A rule with a hole in it, which is filled as long as it runs. What it is filled with knows the step's numbers."""
    hole.now = lambda x, values: value(x, known | values)
    return rule(*arrays, **numbers)


class Place(NamedTuple):
    """An expression of a function, what says where it is, and the function with a hole around it.

    ``summed`` says that the squares of its elements are added up.
    """

    expression: str
    where: str
    summed: bool
    tree: ast.FunctionDef

    def named(self, text: str) -> str:
        """What is said of the expression with a value; nothing if that is itself."""
        name = self.expression.removeprefix("each ")
        operand = name if name.isidentifier() else f"({name})"
        new = text.format(operand)
        return "" if new == operand else f"as if `{self.expression}` were `{new}`{self.where}"


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
            yield Place(text_of(node), within(statement, node), id(node) in summed, changed)
    yield from _squares(tree, nodes)
    yield from _each(tree, nodes)


def _squares(tree: ast.FunctionDef, nodes: list[tuple[ast.AST, ast.stmt]]) -> Iterator[Place]:
    """Squares that have a factor before them: ``b * x * x``."""
    for k, (node, statement) in enumerate(nodes):
        match node:
            case ast.BinOp(ast.BinOp(factor, ast.Mult(), x), ast.Mult(), y) if text_of(x) == text_of(y):
                square = ast.BinOp(x, ast.Mult(), y)
                changed = replaced_node(tree, k, ast.BinOp(factor, ast.Mult(), _hole(square)))
                yield Place(text_of(square), within(statement, square), False, changed)


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
            yield Place(f"each {name}", within(statement, tree), False, changed)


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
    yield f"{{}} {NARROW}", lambda x, values: _rounded(x, values[DTYPE])
    for dtype in ("float16", "bfloat16", "float32"):
        if has(dtype):
            yield f"{{}} rounded to {dtype}", partial(_alone, by=partial(_rounded, dtype=numpy_dtype(dtype)))
    for text, alone in (
        ("abs({})", abs), ("sign({})", np.sign), ("sqrt({})", np.sqrt), ("{} ** 2", lambda x: x * x),
        ("{0} * abs({0})", lambda x: x * abs(x)), ("1 / {}", lambda x: 1 / x), ("1 - {}", lambda x: 1 - x),
        ("{} + 1", lambda x: x + 1), ("-{}", lambda x: -x), ("2 * {}", lambda x: 2 * x), ("{} / 2", lambda x: x / 2),
        ("0", lambda x: 0 * x), ("1", lambda x: 0 * x + 1), ("{} / its norm", limits.normalized),
    ):  # fmt: skip
        yield text, partial(_alone, by=alone)


def _variable(values: dict[str, Any], name: str) -> Any:
    if values.get(name) is None:
        raise TypeError(f"expected a number or an array, got no {name}")
    return values[name]


def _limited(x: Any, values: dict[str, Any], by: Any, limit: float) -> Any:
    return by(x, limit)


def _alone(x: Any, values: dict[str, Any], by: Any) -> Any:
    return by(x)


def _rounded(x: Any, dtype: np.dtype) -> Any:
    """What an expression comes to in a narrower dtype."""
    if not isinstance(x, Bounded):
        return np.asarray(x).astype(dtype).astype(np.float64)
    low, up = (np.asarray(end).astype(dtype).astype(np.float64) for end in x.ends())
    return Bounded((low + up) / 2, (up - low) / 2, x.arithmetic)


def _other(x: Any, values: dict[str, Any], name: str) -> Any:
    return _variable(values, name)


def _decayed_by(x: Any, values: dict[str, Any], decay: str, array: str) -> Any:
    return x - _variable(values, "lr") * _variable(values, decay) * _variable(values, array)


def _by_one(x: Any, values: dict[str, Any], by: Any, name: str) -> Any:
    return by(x, _variable(values, name))


def _by_both(x: Any, values: dict[str, Any], by: Any, number: str, array: str) -> Any:
    return by(x, _variable(values, number), _variable(values, array))
