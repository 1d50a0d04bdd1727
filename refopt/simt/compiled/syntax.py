"""Syntax that no kernel may contain, whatever its types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

_LOOP = "write a for loop, and use each value in its body"
_ARRAY = "use a tuple, or cuda.local.array with a constant size"
_HOST = "do it in the caller, before the launch"
Refusal = tuple[ast.AST, str, str]


class NewArray(str):
    """A reason that does not apply if kernels may create arrays: with NUMBA_CUDA_ENABLE_NRT=1."""



# By node type: its name, and what to write instead. Numba refuses the first group even on branches that it removes.
_ANYWHERE: dict[type[ast.AST], tuple[str, str]] = {
    ast.With: ("a with statement", "write only its body: a kernel has no context managers"),
    ast.Import: ("an import", "import at the top of the module"),
    ast.ImportFrom: ("an import", "import at the top of the module"),
    ast.ClassDef: ("a class", "use several arrays, or an array of records"),
    ast.AsyncFor: ("an async loop", _LOOP),
    ast.AsyncWith: ("an async with statement", "write only its body"),
    ast.Delete: ("del", "omit it: variables of a kernel need no deletion"),
    ast.MatchSequence: ("a pattern with parts", "compare the parts with if"),
    ast.MatchMapping: ("a pattern with parts", "compare the parts with if"),
    ast.MatchClass: ("a class pattern", "compare values with if"),
}
_REACHED: dict[type[ast.AST], tuple[str, str]] = {
    ast.ListComp: ("a list comprehension", _LOOP),
    ast.SetComp: ("a set comprehension", _LOOP),
    ast.DictComp: ("a dict comprehension", _LOOP),
    ast.GeneratorExp: ("a generator expression", _LOOP),
    ast.Dict: ("a dict", "use a tuple or an array, by index, or an if for each key"),
    ast.Set: ("a set", "use a tuple: x in (1, 2) is compiled"),
    **dict.fromkeys((ast.Try, ast.TryStar), ("try", "test for the case with if: a kernel cannot catch what is raised")),
    ast.Yield: ("a generator", "store the values in an array"),
    ast.YieldFrom: ("a generator", "store the values in an array"),
    ast.Await: ("await", _HOST),
}


@lru_cache(1024)  # a kernel is typed for many kinds of arguments
def anywhere(function: ast.AST) -> tuple[Refusal, ...]:
    """What Numba refuses when it reads a function, even on branches that it removes, but not in unreachable code."""
    return tuple(_anywhere(function))


def _anywhere(function: ast.AST) -> Iterator[Refusal]:
    parts = list(_reachable(function))
    named = {name for part in parts if isinstance(part, ast.Global) for name in part.names}
    for part in parts:
        if isinstance(part, ast.stmt):
            yield from _assigned_apart(part)
        if (found := _ANYWHERE.get(type(part))) is not None:
            yield part, *found
        elif isinstance(part, ast.Starred) and isinstance(part.ctx, ast.Store):
            yield part, "a starred name in an assignment target", "name each part, or index the tuple"
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in named:
            yield part, f"an assignment to the global {part.id}", "store it in an array that is an argument"
        elif isinstance(part, ast.Call) and any(keyword.arg is None for keyword in part.keywords):
            yield part, "** in a call", "pass each argument by its name"
        elif isinstance(part, ast.arguments) and part.kwarg is not None:
            yield part.kwarg, "a ** parameter", "name each parameter"


def expression(node: ast.AST, listed: bool = False) -> Iterator[Refusal]:
    """What Numba refuses about one node; ``listed`` says that a list is allowed here."""
    if (found := _REACHED.get(type(node))) is not None:
        yield node, *found
    elif isinstance(node, ast.List) and isinstance(node.ctx, ast.Load) and not listed:
        yield node, NewArray("a list"), _ARRAY
    elif isinstance(node, ast.JoinedStr) and any(isinstance(part, ast.FormattedValue) for part in node.values):
        yield node, "an f-string with a value in it", 'print takes several values: print("x is", x)'
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield node, "@ of matrices", "write the loops of the product"


def inner(function: ast.FunctionDef | ast.Lambda) -> Iterator[Refusal]:
    """What Numba refuses in a function, or lambda, inside a kernel."""
    name = getattr(function, "name", None)
    for decorator in getattr(function, "decorator_list", ()):
        yield decorator, "a decorator inside a kernel", "define the function outside the kernel"
    if function.args.kwonlyargs:
        yield function, "keyword-only parameters of a function inside a kernel", "make them ordinary parameters"
    if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(function)):
        yield function, f"{name} calls itself", "write a loop"


def _assigned_apart(statement: ast.AST) -> Iterator[Refusal]:
    """``:=`` inside an expression: the compiler loses its type unless the value is a name."""
    whole = getattr(statement, "value", None)
    for part in ast.iter_child_nodes(statement):
        if not isinstance(part, ast.expr):
            continue
        for inside in ast.walk(part):
            if isinstance(inside, ast.NamedExpr) and inside is not whole and not isinstance(inside.value, ast.Name):
                yield inside, ":= inside an expression", "assign in a statement before this one"


def _reachable(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those in it, without statements that follow a return, raise, break or continue."""
    yield node
    for _, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                if isinstance(part, ast.If) and isinstance(part.test, ast.Constant) and not part.test.value:
                    part = ast.Module(part.orelse, [])
                yield from _reachable(part)
                if isinstance(part, ast.Return | ast.Raise | ast.Break | ast.Continue):
                    break
