"""Rules in which one expression has another value: limited, scaled, by another number, with a term too many.

Each expression of a rule, and of the functions it calls, is compiled once inside a call that receives its value and
the local variables. The result of that call is what the code under test may have instead of the expression.
"""

import ast
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound.bounded import Bounded
from refopt.oracle.cases import DECAYS
from refopt.oracle.diagnosis.situation import Hypothesis, Rule, Situation, base_rule
from refopt.oracle.exact.cases import has
from refopt.oracle.source import compiled, formulas, replaced_node, source, substituted, text_of, within
from refopt.oracle.wrong import limits

HOLE, VALUE, NARROW = "_instead", "_value", "in the gradient's dtype"
NARROWER = "float16", "bfloat16", "float32"
MOVED = (*sorted(DECAYS), "epsilon")  # numbers that have no effect if they are 0, and may occur elsewhere
WEIGHTS = DECAYS | {"lr", "mu", "beta1", "beta2", "rho", "local_lr"}  # factors of arrays


@functools.cache
def of_rule(row: Routine) -> tuple[Hypothesis, ...]:
    """A hypothesis for each expression of a routine's rule, and each value that it may have instead."""
    rule = base_rule(row)
    summed = [Value(text, by, ()) for text, by in limits.summands(2)]  # of one norm
    hypotheses: list[tuple[int, Hypothesis]] = []
    for function in formulas(rule):
        tree = source(function)
        values = [_value(text) for text in _texts(row, tree)]
        for place in _places(tree):
            hole = Hole()
            inside = compiled(function, place.tree, **{HOLE: hole})
            changed = substituted(rule, {function: inside})
            for number, value in enumerate((summed if place.summed else []) + values):
                name = place.named(value.text)
                if name:
                    change = partial(_with, base=rule, changed=changed, hole=hole, value=value)
                    hypotheses.append((number, Hypothesis(name, change, "edit")))
                    if moved := next((x for x in MOVED if x in value.names), ""):
                        change = partial(change, without=moved)
                        hypotheses.append((number, Hypothesis(f"{name}, and no {moved} elsewhere", change, "edit")))
    return tuple(hypothesis for _, hypothesis in sorted(hypotheses, key=lambda x: x[0]))


class Value(NamedTuple):
    """A value that may replace an expression: its text, with ``{}`` for the expression, and a function that returns it.

    ``names`` are the variables that the function takes besides the expression's value.
    """

    text: str
    of: Callable[..., Any]
    names: tuple[str, ...]


@functools.cache
def _value(text: str) -> Value:
    """The value of a text: a Python expression of variables and `FUNCTIONS`, or one that `MEANT` translates."""
    code = MEANT.get(text, text).format(VALUE).replace("**t", "_t")
    names = [x for x in compile(code, text, "eval").co_names if x not in FUNCTIONS and x != VALUE]
    return Value(text, eval(f"lambda {', '.join([VALUE, *names])}: {code}", FUNCTIONS), tuple(names))


class Hole:
    """The call around an expression, which turns its value and the local variables into another value."""

    now: Callable[[Any, dict[str, Any]], Any]

    def __call__(self, x: Any, values: dict[str, Any]) -> Any:
        return self.now(x, values)


def _with(s: Situation, base: Rule, changed: Rule, hole: Hole, value: Value, without: str = "") -> Situation | None:
    if s.rule is not base:
        return None
    known: dict[str, Any] = {name: np.float64(s.real(x)) for name, x in s.numbers.items()}
    known |= {f"{name}_t": x**s.case.count for name, x in known.items() if name.startswith("beta")}
    known["dtype"] = s.arrays["grads"].dtype.name
    rule = partial(_filled, rule=changed, hole=hole, value=value.of, names=value.names, known=known)
    return s._replace(rule=rule, numbers=s.numbers | ({without: 0.0} if without else {}))


def _filled(
    *arrays: Any, rule: Rule, hole: Hole, value: Callable[..., Any], names: tuple[str, ...], known: dict[str, Any],
    **numbers: Any,
) -> tuple:
    """Run a rule with a hole that ``value`` fills, which may use the step's numbers."""

    def now(x: Any, values: dict[str, Any]) -> Any:
        variables = [values.get(name, known.get(name)) for name in names]
        if any(variable is None for variable in variables):
            raise TypeError(f"expected numbers or arrays, got no {' or no '.join(names)}")
        return value(x, *variables)

    hole.now = now
    return rule(*arrays, **numbers)


class Place(NamedTuple):
    """An expression of a function, text that says where it is, and the function with a hole around it.

    ``summed`` is true if the squares of its elements are added up.
    """

    expression: str
    where: str
    summed: bool
    tree: ast.FunctionDef

    def named(self, text: str) -> str:
        """The hypothesis about the expression with a value; empty if the value is the expression itself."""
        name = self.expression.removeprefix("each ")
        operand = name if name.isidentifier() else f"({name})"
        new = text.format(operand)
        return "" if new == operand else f"as if `{self.expression}` were `{new}`{self.where}"


def _places(tree: ast.FunctionDef) -> Iterator[Place]:
    """Each expression whose value is a number or an array."""
    nodes = [(node, statement) for statement in tree.body for node in ast.walk(statement)]
    calls = [node for node, _ in nodes if isinstance(node, ast.Call)]
    skipped = _skipped(tree, [node for node, _ in nodes], calls)
    summed = {id(call.args[0]): call for call in calls if text_of(call.func) in ("sum_of_squares", "squares")}
    for k, (node, statement) in enumerate(nodes):
        value = isinstance(node, ast.BinOp | ast.Call) or id(node) in summed or _reads(node)
        if value and id(node) not in skipped:
            changed = replaced_node(tree, k, _hole(node))
            where = within(statement, node) or (f" in `{text_of(summed[id(node)])}`" if id(node) in summed else "")
            yield Place(text_of(node), where, id(node) in summed, changed)
    yield from _squares(tree, nodes)
    yield from _each(tree, nodes)


def _squares(tree: ast.FunctionDef, nodes: list[tuple[ast.AST, ast.stmt]]) -> Iterator[Place]:
    """Squares with a factor before them: ``b * x * x``."""
    for k, (node, statement) in enumerate(nodes):
        match node:
            case ast.BinOp(ast.BinOp(factor, ast.Mult(), x), ast.Mult(), y) if text_of(x) == text_of(y):
                square = ast.BinOp(x, ast.Mult(), y)
                changed = replaced_node(tree, k, ast.BinOp(factor, ast.Mult(), _hole(square)))
                yield Place(text_of(square), within(statement, square), False, changed)


def _skipped(tree: ast.FunctionDef, nodes: list[ast.AST], calls: list[ast.Call]) -> set[int]:
    """Expressions that are not values, or that are changed elsewhere."""
    skipped = {id(call.func) for call in calls}
    for call in calls:  # an argument passed by its own name is changed where it is used
        skipped |= {id(x.value) for x in call.keywords if isinstance(x.value, ast.Name) and x.value.id == x.arg}
    tests = [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)]
    tests += [node for node in nodes if isinstance(node, ast.Compare)]
    skipped |= {id(x) for test in tests for x in ast.walk(test)}
    skipped |= {id(call) for call in calls if text_of(call.func) in ("stored", "moments")}
    return skipped | _read_once(tree, nodes)


def _read_once(tree: ast.FunctionDef, nodes: list[ast.AST]) -> set[int]:
    """Values of variables that are read once: they are changed where they are read."""
    reads = [node.id for node in nodes if _is_read(node)]  # type: ignore[attr-defined]
    assigned = [(x.targets[0], x.value) for x in tree.body if isinstance(x, ast.Assign)]
    return {id(value) for x, value in assigned if isinstance(x, ast.Name) and reads.count(x.id) == 1}


def _each(tree: ast.FunctionDef, nodes: list[tuple[ast.AST, ast.stmt]]) -> Iterator[Place]:
    """Names that a statement reads more than once, changed everywhere in it."""
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


def _texts(row: Routine, tree: ast.FunctionDef) -> Iterator[str]:
    """Replacements of an expression ``{}``, simple ones first."""
    numbers, arrays = _operands(row, tree)
    arrays, decays = sorted(arrays), [name for name in numbers if name in DECAYS]
    if "epsilon" in numbers:
        yield "{} + epsilon"
    yield from _each_of(["{} * (1 - lr * %s)"], decays)
    yield from _each_of(["min({}, %s)", "max({}, %s)", "clip({}, -%s, %s)", "{} of norm %s at most"], LIMITS)
    yield "{} in the gradient's dtype"
    yield from _each_of(["{} rounded to %s"], [x for x in NARROWER if has(x)])
    yield from PLAIN
    yield from dict.fromkeys([*numbers, *arrays])
    yield from _each_of(["{} * %s", "{} / %s", "{} * (1 - %s)", "{} / (1 - %s)"], numbers)
    if not row.scalars or "second_moment" in row.scalars:  # no powers, and so no bias correction
        powers = [f"{name}**t" for name in numbers if name.startswith("beta")]
        yield from _each_of(["{} / (1 - %s)", "{} * (1 - %s)"], powers)
    yield from _each_of(["max({}, %s)", "min({}, %s)"], [name for name in ("lr", "epsilon") if name in numbers])
    powers = [name for name in numbers if name.endswith("_pow") or name in ("b1", "b2")]
    yield from _each_of(["{} * sqrt(1 - %s)", "{} / sqrt(1 - %s)"], powers)
    for array in arrays:
        yield from _each_of([f"{{}} - lr * %s * {array}"], decays)
        yield from _each_of(["{} + %s", "{} - %s", "{} * %s", "{} / %s"], [array])
        weights = [name for name in numbers if name in WEIGHTS]
        yield from _each_of([f"{{}} + %s * {array}", f"{{}} - %s * {array}", f"{{}} * %s + {array}"], weights)


def _each_of(texts: Sequence[str], names: Iterable[str]) -> Iterator[str]:
    """The texts with each of the names inserted."""
    return (text.replace("%s", name) for name in names for text in texts)


def _operands(row: Routine, tree: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """The names of numbers and of arrays in a rule."""
    parameters = [x.arg for x in (*tree.args.posonlyargs, *tree.args.args)]
    inputs = {*parameters, *(x.arg for x in tree.args.kwonlyargs)}
    numbers = [name for name in (hyper.name for hyper in row.hypers) if name not in ("seed", "rescale_grad")]
    numbers += [name for name in row.scalars if name in inputs]
    arrays = [name for name in inputs - set(numbers) if name in parameters] + sorted(_assigned(tree) - inputs)
    singles = [name for name in sorted(inputs) if name.endswith(("_pow", "_norm", "_lr"))]
    return list(dict.fromkeys([*numbers, *singles, *(x for x in ("b1", "b2") if x in inputs)])), arrays


def _assigned(tree: ast.FunctionDef) -> set[str]:
    return {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def _rounded(x: Any, name: str) -> Any:
    """An expression rounded to a narrower dtype."""
    dtype = numpy_dtype(name)
    if not isinstance(x, Bounded):
        return np.asarray(x).astype(dtype).astype(np.float64)
    low, up = (np.asarray(end).astype(dtype).astype(np.float64) for end in x.ends())
    return Bounded((low + up) / 2, (up - low) / 2, x.arithmetic)


LIMITS = [f"{limit:g}" for limit in limits.USUAL]
PLAIN = (
    "abs({})", "sign({})", "sqrt({})", "{} ** 2", "{0} * abs({0})", "1 / {}", "1 - {}", "{} + 1", "-{}", "2 * {}",
    "{} / 2", "0", "1", "{} / its norm", "{} / its rms",
)
# Texts that are not Python, or are evaluated in another way.
MEANT = {
    "{} ** 2": "{0} * {0}", "0": "0 * {}", "1": "0 * {} + 1", "{} / its norm": "normalized({})",
    "{} / its rms": "{0} / root_of_mean({0})", "{} in the gradient's dtype": "rounded({}, dtype)",
    **{f"{{}} of norm {limit} at most": f"norm_at_most({{}}, {limit})" for limit in LIMITS},
    **{f"{{}} rounded to {dtype}": f"rounded({{}}, {dtype!r})" for dtype in NARROWER},
}
FUNCTIONS: dict[str, Any] = {
    "__name__": __name__, "min": limits.at_most, "max": limits.at_least, 
    "clip": lambda x, _, limit: limits.within(x, limit),
    "abs": abs, "sign": np.sign, "sqrt": np.sqrt, "rounded": _rounded, "normalized": limits.normalized,
    "root_of_mean": limits.root_of_mean,
    "norm_at_most": limits.norm_at_most,
}
