"""Inner functions and lambdas, as device functions to which the variables that they capture are passed."""

from __future__ import annotations

import ast
from types import FunctionType

from ..base.copies import content
from ..base.source import code_of
from ..base.variables import reads, stores
from .kinds import Kind, Known


def separate(node: ast.FunctionDef | ast.Lambda, outer: FunctionType, scope: dict[str, Kind], local: set[str]) -> Known:
    """The kind of a function that does the same as one inside another, but captures no local variable.

    Its keyword arguments are those variables, and its attribute ``__simt_captured__`` has expressions for them and for
    the defaults of its parameters, to be evaluated where it is called.
    """
    body: list[ast.stmt]
    body = node.body if isinstance(node, ast.FunctionDef) else [ast.copy_location(ast.Return(node.body), node.body)]
    places, defaults = [*node.args.posonlyargs, *node.args.args], node.args.defaults
    own = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)} | stores(body)
    names = reads(body) & local - own
    for kind in map(scope.get, [*names]):
        if isinstance(kind, Known) and is_inner(kind):
            names |= reads(vars(kind.value)["__simt_captured__"].values()) & local
    keywords = [ast.arg(name) for name in sorted(names)]
    nothing: list[ast.expr | None] = [None for _ in names]
    args = ast.arguments(node.args.posonlyargs, node.args.args, node.args.vararg, keywords, nothing, None, [])
    name = getattr(node, "name", "<lambda>")
    new = ast.FunctionDef(name, args, body, [], None)
    code = code_of(new, node, outer.__code__.co_filename)
    cells = zip(outer.__code__.co_freevars, map(content, outer.__closure__ or ()), strict=True)
    made = FunctionType(code, {**outer.__globals__, **dict(cells)} if outer.__closure__ else outer.__globals__, name)
    made.__defaults__, made.__kwdefaults__ = (None,) * len(defaults), dict.fromkeys(names)
    captured = {part.arg: value for part, value in zip(places[len(places) - len(defaults) :], defaults, strict=True)}
    captured |= {name: ast.copy_location(ast.Name(name, ast.Load()), node) for name in names}
    vars(made).update(__simt_device__=True, __simt_definition__=new)
    vars(made).update(__simt_captured__=captured, __simt_outer__=outer)
    return Known(made)


def is_inner(kind: Kind) -> bool:
    """Whether a kind is that of a function that `separate` made."""
    return isinstance(kind, Known) and isinstance(kind.value, FunctionType) and hasattr(kind.value, "__simt_outer__")


def sees(function: FunctionType, inner: FunctionType) -> bool:
    """Whether a function has the variables that an inner function captures: it contains it, or its definition does."""
    around: FunctionType | None = function
    while around is not None and around is not vars(inner)["__simt_outer__"]:
        around = vars(around).get("__simt_outer__")
    return around is not None
