"""The syntax tree of a function, from its file."""

from __future__ import annotations

import ast
import linecache
from types import CodeType, FunctionType
from typing import Any

Definition = ast.FunctionDef | ast.Lambda
_trees: dict[str, tuple[Any, dict[int, list[Definition]]]] = {}


def definition(function: FunctionType) -> Definition | None:
    """The definition of a function as its file has it; None if it cannot be read or is another."""
    code = function.__code__
    candidates = [node for node in _definitions(code).get(code.co_firstlineno, ()) if _fits(node, code)]
    if len(candidates) > 1:
        places = {(p[0], p[2]) for p in code.co_positions() if p[0] is not None and p[2] is not None}
        held = [sum(_contains(node, place) for place in places) for node in candidates]
        candidates = [node for node, count in zip(candidates, held, strict=True) if count == max(held)]
        if not max(held):  # Python 3.12 has no place for a constant that is returned
            candidates = [node for node in candidates if _returns(node, code)]
        inner = [(node.lineno, node.col_offset) for node in candidates]
        candidates = [node for node in candidates if not any(_contains(node, place) for place in inner)]
    same = len({ast.dump(node) for node in candidates}) == 1
    return candidates[0] if same else None


def _definitions(code: CodeType) -> dict[int, list[Definition]]:
    """All definitions of a file by the line that their code names as its first."""
    file = code.co_filename
    lines = linecache.getlines(file)
    if file not in _trees or _trees[file][0] is not lines:
        found: dict[int, list[Definition]] = {}
        try:
            tree: Any = ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            tree = ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                found.setdefault(first, []).append(node)
        _trees[file] = lines, found
    return _trees[file][1]


def _fits(node: Definition, code: CodeType) -> bool:
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)] + [x.arg for x in (a.vararg, a.kwarg) if x]
    last = max((line for _, _, line in code.co_lines() if line), default=0)
    inside = last <= (node.end_lineno or 0)  # else the file has changed since it was imported
    return inside and name == code.co_name and tuple(names) == code.co_varnames[: len(names)]


def _returns(node: Definition, code: CodeType) -> bool:
    """Whether a function is a lambda of a constant that the code has."""
    value = node.body.value if isinstance(node.body, ast.Constant) else _returns
    return any(type(value) is type(constant) and value == constant for constant in code.co_consts)


def _contains(node: Definition, place: tuple[int, int]) -> bool:
    body = node.body[0] if isinstance(node, ast.FunctionDef) else node.body
    end = (body.end_lineno or 0, body.end_col_offset or 0)
    return (body.lineno, body.col_offset) <= place <= end
