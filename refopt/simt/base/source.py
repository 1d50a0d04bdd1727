"""The syntax trees of functions, from their files."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

Definition = ast.FunctionDef | ast.Lambda
_by_code: dict[CodeType, Definition] = {}
_compiled: dict[str, tuple[Any, dict[int, list[CodeType]]]] = {}
_trees: dict[str, tuple[Any, dict[int, list[Definition]]]] = {}


def definition(function: FunctionType) -> Definition | None:
    """The definition of a function in its file; None if that cannot be read or is a different function."""
    if (known := getattr(function, "__simt_definition__", None)) is not None:
        return known
    code = function.__code__
    for changed in (False, True):
        if code in _by_code:
            break
        if changed:  # second try: the file may have changed since it was last read
            linecache.checkcache(code.co_filename)
        node = _definition(code)
        if node is not None and _is_compiled_from_its_file(code):
            _by_code[code] = node
    return _by_code.get(code)


def code_of(node: ast.FunctionDef, at: ast.AST, file: str) -> CodeType:
    """The code of a function whose definition was written anew, at the place of another in a file."""
    node.type_params = []  # type: ignore[attr-defined]  # from Python 3.12 on
    tree = ast.fix_missing_locations(ast.Module([ast.copy_location(node, at)], []))
    return next(x for x in compile(tree, file, "exec", dont_inherit=True).co_consts if isinstance(x, CodeType))


def _definition(code: CodeType) -> Definition | None:
    candidates = [node for node in _definitions(code.co_filename).get(code.co_firstlineno, ()) if _fits(node, code)]
    if len(candidates) > 1:
        places = {(p[0], p[2]) for p in code.co_positions() if p[0] is not None and p[2] is not None}
        held = [sum(_contains(node, place) for place in places) for node in candidates]
        candidates = [node for node, count in zip(candidates, held, strict=True) if count == max(held)]
        if not max(held):  # Python 3.12 records no position for a returned constant
            candidates = [node for node in candidates if _returns(node, code)]
        inner = [(node.lineno, node.col_offset) for node in candidates]
        candidates = [node for node in candidates if not any(_contains(node, place) for place in inner)]
    return candidates[0] if len({ast.dump(node) for node in candidates}) == 1 else None


def _is_compiled_from_its_file(code: CodeType) -> bool:
    """Whether code matches its file, which may have changed, or whose name other source may have been compiled under.

    pytest rewrites assertions; code that contains any is trusted.
    """
    lines = linecache.getlines(file := code.co_filename)
    if file not in _compiled or _compiled[file][0] is not lines:
        codes: dict[int, list[CodeType]] = {}
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook, which compiles each statement alone
        tree = compile("".join(lines), file, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        alone = [] if os.path.exists(file) else [ast.Module([x], []) for x in tree.body]
        for part in (tree, *alone):
            for each in _codes(compile(part, file, "exec", flags, dont_inherit=True)):
                codes.setdefault(each.co_firstlineno, []).append(each)
        _compiled[file] = lines, codes
    rewritten = any(name.startswith("@py") for name in code.co_names)
    return rewritten or any(_same(each, code) for each in _compiled[file][1].get(code.co_firstlineno, ()))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of its inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, wherever they are defined."""
    parts = "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_kwonlyargcount"
    if any(getattr(one, part) != getattr(other, part) for part in parts) or len(one.co_consts) != len(other.co_consts):
        return False
    pairs = zip(one.co_consts, other.co_consts, strict=True)
    return all(
        _same(x, y) if isinstance(x, CodeType) and isinstance(y, CodeType) else (type(x), repr(x)) == (type(y), repr(y))
        for x, y in pairs
    )


def around(file: str, line: int) -> ast.FunctionDef | None:
    """The innermost function of a file that contains a line."""
    every = [node for nodes in _definitions(file).values() for node in nodes if isinstance(node, ast.FunctionDef)]
    return max((node for node in every if covers(node, line)), key=lambda node: node.lineno, default=None)


def covers(node: Any, line: int) -> bool:
    """Whether a statement covers a line."""
    return node.lineno <= line <= node.end_lineno


def _definitions(file: str) -> dict[int, list[Definition]]:
    """All definitions of a file, by `co_firstlineno`."""
    lines = linecache.getlines(file)
    if file not in _trees or _trees[file][0] is not lines:
        definitions: dict[int, list[Definition]] = {}
        try:
            tree: Any = ast.parse("".join(lines))
        except (SyntaxError, ValueError):
            tree = ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                definitions.setdefault(first, []).append(node)
        _trees[file] = lines, definitions
    return _trees[file][1]


def _fits(node: Definition, code: CodeType) -> bool:
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)] + [x.arg for x in (a.vararg, a.kwarg) if x]
    last = max((line for _, _, line in code.co_lines() if line), default=0)  # beyond the end if the file has changed
    return last <= (node.end_lineno or 0) and (name, *names) == (code.co_name, *code.co_varnames[: len(names)])


def _returns(node: Definition, code: CodeType) -> bool:
    """Whether a function is a lambda that returns a constant of the code."""
    value = node.body.value if isinstance(node.body, ast.Constant) else _returns
    return any(type(value) is type(constant) and value == constant for constant in code.co_consts)


def _contains(node: Definition, place: tuple[int, int]) -> bool:
    body = node.body[0] if isinstance(node, ast.FunctionDef) else node.body
    end = (body.end_lineno or 0, body.end_col_offset or 0)
    return (body.lineno, body.col_offset) <= place <= end
