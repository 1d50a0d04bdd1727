"""The code cells of a notebook, run one after the other in this process."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def of(path: Path) -> list[str]:
    """The code cells of a notebook, without the lines that only IPython understands."""
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [re.sub(r"(?m)^\s*[%!].*$", "pass", text) for text in texts]


def run(
    texts: Iterable[str], folder: Path, wanted: Callable[[ast.Module], bool] = lambda tree: True
) -> tuple[dict[str, Any], list[Any]]:
    """What cells define, and what they show: the value of each that ends in an expression.

    Args:
        texts: the cells.
        folder: where each cell becomes a file, as in Jupyter, for those who look for its source.
        wanted: whether a cell is to run.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    values = []
    for k, body in enumerate(texts):
        path, tree = folder / f"{k}.py", ast.parse(body)
        if not wanted(tree):
            continue
        path.write_text(body)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, path, "exec"), namespace)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), path, "eval"), namespace))
    return namespace, values
