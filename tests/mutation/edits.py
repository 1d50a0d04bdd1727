"""The changes that a file offers: small ones, each of which should change what the code does."""

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
         ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>", ast.MatMult: "@"}
OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "&": "|", "|": "&", "^": "&",
             "<<": ">>", ">>": "<<", "@": "*"}
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
            ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
             "in": "not in", "not in": "in"}
BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
UNCHANGED_DECORATORS = {"dataclass", "cache", "lru_cache", "overload", "property", "staticmethod", "classmethod"}


@dataclass(frozen=True)
class Edit:
    """One change.

    Attributes:
        file: the file, from the root of the checkout.
        scope: the function or class that it stands in, dotted, or at the top of the module the name that is assigned.
        kind: which kind of change.
        lines: first and last line of the statement, of a compound statement's header, or of the function that a
            default or a decorator belongs to, from 1.
        start, end: the text replaced, as offsets in characters.
        old, new: what stands there, and what is to stand there.
    """

    file: str
    scope: str
    kind: str
    lines: tuple[int, int]
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        """The file's text with this change."""
        if source[self.start : self.end] != self.old:
            raise ValueError(f"{self.file}: {self.old!r} no longer stands at {self.start}")
        return source[: self.start] + self.new + source[self.end :]

    def named_in(self, test: str) -> int:
        """How many words of the file's and the scope's names are in a test's id."""
        words = re.findall(r"[a-z0-9]+", f"{self.file.removesuffix('.py').rpartition('/')[2]}.{self.scope}".lower())
        return sum(word in test.lower() for word in {*words})

    def key(self) -> dict[str, str]:
        """What names the change however far other lines move it: as in equivalent.json."""
        return {key: value for key, value in asdict(self).items() if key in ("file", "scope", "kind", "old", "new")}


def edits(file: str, source: str) -> list[Edit]:
    """All changes that a file offers, in the order of its text; a few may not compile."""
    return sorted(_Finder(file, source).edits(), key=lambda edit: (edit.start, edit.end, edit.kind))


def compiles(edit: Edit, source: str) -> bool:
    """Whether the file is still Python with a change."""
    try:
        compile(edit.applied(source), edit.file, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    """Walks a module's statements; annotations, docstrings and the texts of errors offer nothing."""

    def __init__(self, file: str, source: str):
        self.file = file
        self.source = source
        self.tree = ast.parse(source)
        self.rows = source.splitlines(keepends=True)
        self.starts = [0, *itertools.accumulate(map(len, self.rows))]

    def edits(self) -> Iterator[Edit]:
        yield from self._block(self.tree.body, "")

    def _block(self, body: list[ast.stmt], scope: str) -> Iterator[Edit]:
        for statement in body:
            yield from self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: str) -> Iterator[Edit]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}" if scope else node.name
            lines = (node.lineno, node.end_lineno or node.lineno)  # a default shows where the function runs
            for decorator in node.decorator_list:
                if _name(decorator) not in UNCHANGED_DECORATORS:
                    yield from self._expression(decorator, inner, lines)
            if isinstance(node, ast.FunctionDef):
                for default in (*node.args.defaults, *node.args.kw_defaults):
                    if default is not None:
                        yield from self._expression(default, inner, lines)
            yield from self._block(node.body, inner)
            return
        if _says_nothing(node):
            return
        if not scope and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            scope = node.targets[0].id
        blocks = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        blocks += [case.body for case in getattr(node, "cases", [])]
        first = next((body[0].lineno for body in blocks if body), None)
        last = node.end_lineno or node.lineno
        lines = (node.lineno, last if first is None else max(node.lineno, first - 1))
        if _can_be_dropped(node):
            yield self._edit("statement dropped", node, "pass", scope, lines)
        if isinstance(node, ast.Return) and node.value is not None and not _is_false(node.value):
            yield self._edit("result dropped", node.value, "None", scope, lines)
        if isinstance(node, ast.If | ast.While):
            yield self._edit("condition negated", node.test, self._negated(node.test), scope, lines)
        for name, value in ast.iter_fields(node):
            if name in _NOT_VALUES:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.withitem):
                    child = child.context_expr
                if isinstance(child, ast.expr):
                    yield from self._expression(child, scope, lines)
        for name in ("targets", "target"):
            value = getattr(node, name, None)
            for target in value if isinstance(value, list) else [value]:
                if isinstance(target, ast.Subscript):  # which element is written, not the name
                    yield from self._expression(target.slice, scope, lines)
        for body in blocks:
            yield from self._block(body, scope)

    def _expression(self, root: ast.expr, scope: str, lines: tuple[int, int]) -> Iterator[Edit]:
        waiting: list[ast.AST] = [root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.JoinedStr):
                continue  # text
            yield from self._changes(node, scope, lines)
            waiting += [x for x in ast.iter_child_nodes(node) if isinstance(x, _INNER) and not _is_strict(x)]

    def _changes(self, node: ast.AST, scope: str, lines: tuple[int, int]) -> Iterator[Edit]:
        if isinstance(node, ast.BinOp) and not _is_text(node):
            sign = SIGNS[type(node.op)]
            yield self._sign("operator", (node.left, node.right), sign, OPERATORS[sign], scope, lines)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides, sign = (node.left, node.comparators[0]), COMPARED[type(node.ops[0])]
            if sign in BOUNDARIES:
                yield self._sign("boundary", sides, sign, BOUNDARIES[sign], scope, lines)
            yield self._sign("comparison", sides, sign, OPPOSITES[sign], scope, lines)
        if isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield self._sign(f"{old} to {new}", (node.values[0], node.values[1]), old, new, scope, lines)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            yield self._edit("sign dropped", node, self._text(node.operand), scope, lines)
        if isinstance(node, ast.IfExp):
            yield self._edit("condition negated", node.test, f"({self._negated(node.test)})", scope, lines)
        if isinstance(node, ast.Constant):
            for new in _other_constants(node.value):
                yield self._edit("constant", node, new, scope, lines)
        if isinstance(node, ast.Call) and _name(node.func) not in ("isinstance", "getattr", "setattr", "hasattr"):
            for first, second in zip(node.args, node.args[1:], strict=False):
                starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
                if not starred and ast.dump(first) != ast.dump(second):
                    one, other = self._enclosed(first), self._enclosed(second)
                    new = self.source[slice(*other)] + self.source[one[1] : other[0]] + self.source[slice(*one)]
                    yield self._at("arguments swapped", one[0], other[1], new, scope, lines)

    def _sign(
        self, kind: str, sides: tuple[ast.expr, ast.expr], old: str, new: str, scope: str, lines: tuple[int, int],
    ) -> Edit:
        """The sign between two operands, of which only brackets and comments stand beside it."""
        begin, end = self._span(sides[0])[1], self._span(sides[1])[0]
        at = begin + self.source[begin:end].index(old)
        return self._at(kind, at, at + len(old), new, scope, lines)

    def _edit(self, kind: str, node: ast.AST, new: str, scope: str, lines: tuple[int, int]) -> Edit:
        return self._at(kind, *self._span(node), new, scope, lines)

    def _at(self, kind: str, start: int, end: int, new: str, scope: str, lines: tuple[int, int]) -> Edit:
        return Edit(self.file, scope, kind, lines, start, end, self.source[start:end], new)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, column: int) -> int:
        text = self.rows[line - 1]  # columns count bytes
        return self.starts[line - 1] + len(text.encode()[:column].decode())

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        text = self.source[start:end]
        return f"({text})" if isinstance(node, _LOOSE) else text

    def _negated(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return f"not ({self.source[start:end]})"

    def _enclosed(self, node: ast.AST) -> tuple[int, int]:
        """Where an argument stands with brackets of its own."""
        start, end = self._span(node)
        while self.source[:start].rstrip().endswith("(") and self.source[end:].lstrip().startswith(")"):
            start, end = self.source.rindex("(", 0, start), self.source.index(")", end) + 1
        return start, end


_NOT_VALUES = "annotation", "body", "orelse", "finalbody", "handlers", "cases", "targets", "target"
_INNER = ast.expr | ast.comprehension | ast.keyword
_LOOSE = ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp | ast.Lambda | ast.NamedExpr


def _name(node: ast.AST) -> str:
    """The last name of what is called or applied."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_false(node: ast.AST) -> bool:
    """Whether it is None, or what None is as false as: that it becomes True is a change of its own."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_strict(node: ast.AST) -> bool:
    """Whether it is ``strict=`` of a zip: an assertion, which changes nothing where it holds."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(child, ast.JoinedStr) or _is_string(child) for child in ast.walk(node))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _says_nothing(node: ast.stmt) -> bool:
    """Imports, names without values, docstrings, what is raised and how it reads."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.Pass | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return True
    if isinstance(node, ast.Assign) and any(getattr(target, "id", "").startswith("__") for target in node.targets):
        return True
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return True
    return isinstance(node, ast.Expr) and (_is_string(node.value) or isinstance(node.value, ast.Constant))


def _can_be_dropped(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr | ast.AugAssign | ast.Continue | ast.Break | ast.Delete) or (
        isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets))


def _other_constants(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1)] + ([str(value - 1)] if value > 0 else [])
    if isinstance(value, float):
        return [repr(value + 1.0) if value in (0.0, 1.0) else repr(value * 1.25)]
    return []
