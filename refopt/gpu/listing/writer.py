"""The text of one function for the values that it closes over: with constants inserted and dead branches omitted.

It is the original text, comments and line breaks included, except for what the values determine.
"""

import ast
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from refopt.gpu.listing.expressions import UNKNOWN, Expressions, Symbols
from refopt.gpu.listing.source import File, Scope

REMARK = re.compile(r"\s*# (noqa\b.*|type: ignore.*)$")  # for other tools


class Writer(Expressions):
    """Writes the statements of one function, without those that only ``dead`` names need."""

    def __init__(
        self, file: File, node: ast.FunctionDef | ast.Lambda | ast.expr, scope: Scope, symbols: Symbols,
        dead: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(file, node, scope, symbols)
        self.dead = dead

    def body(self, node: ast.FunctionDef) -> list[str]:
        """The lines of the function's body."""
        return self.block(node.body, self._first_of_body(node))[0]

    def block(self, body: Sequence[ast.stmt], line: int) -> tuple[list[str], bool]:
        """The lines of statements, with the comments from ``line`` on, and whether what follows them is dead."""
        lines: list[str] = []
        ends = False
        for statement in body:
            above = self._lines(line, statement.lineno - 1)
            line = (statement.end_lineno or 0) + 1
            written, ends = self._statement(statement)
            if written:
                lines += above + written
            if ends:
                break
        return lines, ends

    def _statement(self, node: ast.stmt) -> tuple[list[str], bool]:
        """The lines of a statement, none if it is dead, and whether what follows is."""
        if isinstance(node, ast.If) and not self._in_one_line(node):
            return self._if(node)
        if isinstance(node, ast.For | ast.While) and not node.orelse and not self._in_one_line(node):
            head, first = self._header(node)
            lines, _ = self.block(node.body, first)
            return head + (lines or self._pass(node.body)), False
        if isinstance(node, ast.Assign) and (changed := self._assign(node)) is not None:
            return changed, False
        last = node.end_lineno or 0
        first, stop = self.file.starts[node.lineno - 1], self.file.starts[last]
        text = self.with_edits(first, stop, self.edits(node))
        return _plain(text.rstrip("\n").split("\n")), isinstance(node, ast.Return | ast.Raise)

    def _if(self, node: ast.If) -> tuple[list[str], bool]:
        test = self.value(node.test)
        if test is not UNKNOWN:  # and so has no side effects
            return self._decided(node, test)
        head, first = self._header(node)
        lines, _ = self.block(node.body, first)
        orelse: list[str] = []
        if node.orelse:
            orelse, _ = self.block(node.orelse, self._first_of_else(node))
            if orelse and not (self._is_elif(node) and orelse[0].lstrip().startswith("elif")):
                extra = 4 if self._is_elif(node) else 0
                orelse = [f"{' ' * node.col_offset}else:", *moved(orelse, extra)]
        if not lines and not orelse and self.pure(node.test):
            return [], False
        return head + (lines or self._pass(node.body)) + orelse, False

    def _decided(self, node: ast.If, test: Any) -> tuple[list[str], bool]:
        """The branch that is taken."""
        body = node.body if test else node.orelse
        if not body:
            return [], False
        lines, ends = self.block(body, self._first_of_body(node) if test else self._first_of_else(node))
        if not test and self._is_elif(node):
            if self.file.segment(node).startswith("elif"):
                return lines, ends
            return [re.sub(r"^(\s*)elif\b", r"\1if", line) for line in lines[:1]] + lines[1:], ends
        return moved(lines, node.col_offset - body[0].col_offset), ends

    def _is_elif(self, node: ast.If) -> bool:
        return len(node.orelse) == 1 and self.file.segment(node.orelse[0]).startswith("elif")

    def _first_of_else(self, node: ast.If) -> int:
        """The line after ``else:``, or that of an ``elif``."""
        if self._is_elif(node):
            return node.orelse[0].lineno
        numbers = range((node.body[-1].end_lineno or 0) + 1, node.orelse[0].lineno)
        return next(n for n in numbers if self.file.line(n).strip().startswith("else:")) + 1

    def _in_one_line(self, node: Any) -> bool:
        """Whether a compound statement has its body on the line of its head."""
        return not self.file.line(node.body[0].lineno).encode()[: node.body[0].col_offset].isspace()

    def _first_of_body(self, node: Any) -> int:
        """The line after the head of a compound statement."""
        last = node.body[0].lineno - 1
        while self.file.line(last).strip()[:1] in ("", "#"):
            last -= 1
        return last + 1

    def _header(self, node: Any) -> tuple[list[str], int]:
        """The lines up to the body of a compound statement, and where the body's lines begin."""
        first = self._first_of_body(node)
        parts = [node.test] if hasattr(node, "test") else [node.target, node.iter]
        edits = [(*self.file.span(x), self.text(x)) for x in parts]
        text = self.with_edits(self.file.starts[node.lineno - 1], self.file.starts[first - 1], edits)
        return _plain(text.rstrip("\n").split("\n")), first

    def _assign(self, node: ast.Assign) -> list[str] | None:
        """The lines of an assignment with some dead names; None if it stays unchanged."""
        if len(node.targets) > 1:
            return None
        (target,), value = node.targets, node.value
        if isinstance(target, ast.Name):
            return [] if target.id in self.dead and self.pure(value) else None
        pairs = _pairs(target, value)
        kept = [(x, y) for x, y in pairs if getattr(x, "id", None) not in self.dead or not self.pure(y)]
        if len(kept) == len(pairs):
            return None
        if not kept:
            return []
        names, values = (", ".join(map(self.text, column)) for column in zip(*kept, strict=True))
        end = node.end_lineno or 0
        beside = self.file.line(end).encode()[node.end_col_offset :].decode()
        return _plain([f"{' ' * node.col_offset}{names} = {values}{beside}"])

    def _pass(self, body: Sequence[ast.stmt]) -> list[str]:
        return [f"{' ' * body[0].col_offset}pass"]

    def _lines(self, first: int, last: int) -> list[str]:
        """Comment lines and blank lines, unchanged."""
        return _plain([self.file.line(number) for number in range(first, last + 1)])


@cache
def assigned(node: ast.AST) -> frozenset[str]:
    """The names that a function assigns, without those of augmented assignments."""
    names: dict[type, set[str]] = {ast.Assign: set(), ast.AugAssign: set()}
    for statement in ast.walk(node):
        if type(statement) in names:
            stored = (x for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store))
            names[type(statement)].update(x.id for x in stored)
    return frozenset(names[ast.Assign] - names[ast.AugAssign])


def signature(arguments: ast.arguments, file: File) -> str:
    """The parameters of a function, as text without annotations."""
    names = [x.arg for x in (*arguments.posonlyargs, *arguments.args)]
    first = len(names) - len(arguments.defaults)
    defaults = {name: f"={file.segment(x)}" for name, x in zip(names[first:], arguments.defaults, strict=True)}
    parts = [name + defaults.get(name, "") for name in names]
    return ", ".join([*parts, *([f"*{arguments.vararg.arg}"] if arguments.vararg else [])])


def moved(lines: list[str], by: int) -> list[str]:
    """Lines indented by ``by`` more."""
    return [" " * by + line if by > 0 and line else line[min(-by, len(line) - len(line.lstrip())) :] for line in lines]


def _plain(lines: list[str]) -> list[str]:
    """Lines without remarks for other tools."""
    return [REMARK.sub("", line) for line in lines]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The single assignments in that of a tuple to a tuple; none in any other."""
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)):
        return []
    starred = any(isinstance(x, ast.Starred) for x in (*target.elts, *value.elts))
    return [] if starred else list(zip(target.elts, value.elts, strict=True))
