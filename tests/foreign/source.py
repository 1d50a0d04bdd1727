"""Kernels taken from scripts and notebooks: their text stays as it is, and the rest of the file is left out."""

import ast
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from foreign.repositories import BUILD, text

from refopt import simt


def notebook(name: str, path: str) -> str:
    """The code of a notebook, cell by cell, without the lines that are for the notebook's shell."""
    cells = json.loads(text(name, path))["cells"]
    lines = []
    for cell in cells:
        if cell["cell_type"] == "code":
            lines += [*"".join(cell["source"]).splitlines(), ""]
    return "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in lines)


def kernels(name: str, path: str, wanted: Iterable[str], nth: int = 0, **values: Any) -> SimpleNamespace:
    """Functions and constants of a file, by name, defined where `numba.cuda` is replaced, with values to begin with.

    Kept are, at their lines, imports of Numba, NumPy and math, and the statements that define a wanted name; of several
    that do, the `nth`.

    Raises:
        LookupError: a name is not defined in the file.
    """
    source = notebook(name, path) if path.endswith(".ipynb") else text(name, path)
    wanted, lines = set(wanted), source.splitlines()
    kept: list[ast.stmt] = []
    defined: dict[str, list[ast.stmt]] = {each: [] for each in wanted}
    for node in statements(source):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_known(node):
            kept.append(node)
        for each in _names(node) & wanted:
            defined[each].append(node)
    missing = sorted(each for each, nodes in defined.items() if len(nodes) <= nth)
    if missing:
        raise LookupError(f"{name}: {path} does not define {missing[0]}")
    kept += [nodes[nth] for nodes in defined.values()]
    rows = set()
    for node in kept:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        rows |= set(range(first, (node.end_lineno or first) + 1))
    file = BUILD / "kernels" / f"{Path(path).stem}-{min(wanted)}-{nth}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(line if row in rows else "" for row, line in enumerate(lines, 1)) + "\n")
    namespace: dict[str, Any] = {"__name__": file.stem, **values}
    with simt.replace_numba():
        exec(compile(file.read_text(), str(file), "exec"), namespace)
    return SimpleNamespace(**{each: namespace[each] for each in wanted})


def statements(source: str) -> list[ast.stmt]:
    """The statements of a file. What does not parse, as exercises do not, is left out by lines."""
    lines = source.splitlines()
    while True:
        try:
            return ast.parse("\n".join(lines)).body
        except SyntaxError as error:
            row = (error.lineno or 1) - 1
            if row >= len(lines) or not lines[row].strip():
                row = next((k for k in range(min(row, len(lines) - 1), -1, -1) if lines[k].strip()), 0)
            lines[row] = ""


def _is_known(node: ast.Import | ast.ImportFrom) -> bool:
    modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    return all(module.split(".")[0] in ("numba", "numpy", "math", "__future__") for module in modules)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()
