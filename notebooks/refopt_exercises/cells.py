"""The code cells of a notebook: read, and run one after the other as in Jupyter.

``python -m refopt_exercises.cells`` runs the cells that it reads from its input, a list in JSON. This is the process of
a learner's notebook: its exit status is 1 if a cell raises, and the last line of its errors says which.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def of(path: Path) -> list[str]:
    """The code cells of a notebook.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        cells = json.loads(path.read_text() if path.is_file() else "")["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: expected a notebook, got {type(error).__name__}: {error}") from None


def python(text: str) -> str:
    """A cell without the lines that only IPython understands."""
    return re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", text)


def is_judging(text: str) -> bool:
    """Whether a cell only calls methods of its exercise: what it shows is of no interest to those who grade."""
    try:
        body = ast.parse(python(text)).body
    except SyntaxError:
        return False
    calls = [x.value.func for x in body if isinstance(x, ast.Expr) and isinstance(x.value, ast.Call)]
    return bool(body) and len(calls) == len(body) and all(
        isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == "exercise" for x in calls
    )


def run(texts: Iterable[str]) -> list[Any]:
    """What cells show: the value of each that ends in an expression.

    Raises:
        BaseException: what a cell raises, with a note that says which cell it is.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def enable_gui(self, gui: str | None = None) -> None:
            """Show nothing: nobody looks."""

    shell, values = Shell(config=Config({"HistoryManager": {"enabled": False}})), []
    for number, text in enumerate(texts, 1):
        result = shell.run_cell(text)
        if error := result.error_before_exec or result.error_in_exec:
            error.add_note(f"code cell {number}")
            raise error
        if result.result is not None:
            values.append(result.result)
    return values


def without_solutions(path: Iterable[str]) -> list[str]:
    """The folders of a path by which nobody comes to the solutions."""
    beside = Path("refopt_exercises", "solutions"), Path("notebooks", "refopt_exercises", "solutions")
    return [x for x in path if not any(Path(x, y).exists() for y in beside)]


def main() -> int:
    """Run the cells of a learner, without the solutions on the path; the exit status."""
    sys.path[:] = without_solutions(sys.path)
    texts = json.load(sys.stdin)
    try:
        run("" if is_judging(text) else text for text in texts)
    except BaseException as error:
        print(f"\n{error.__notes__[-1]} raises {type(error).__name__}: {error}".splitlines()[1], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
