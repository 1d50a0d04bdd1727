"""docs/adding-an-op.md adds an op and a pass: in a copy of the package they run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refopt

PACKAGE = Path(refopt.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "adding-an-op.md").read_text()
FILES = dict(re.findall(r"(?s)`(refopt/\S+\.py)`:\n\n```python\n(.*?)```", PAGE))
((BEFORE, LINE),) = re.findall(r"```diff\n (.*\n)\+(.*\n)", PAGE)
(EXAMPLE,) = re.findall(r"(?s)```python\n(import numpy as np\nfrom refopt import gpu.*?)```", PAGE)
LAST = f"line {len(EXAMPLE.splitlines())}, in <module>\nAssertionError"
DOOR = "refopt/program/ops/__init__.py"


def example(folder, without=(), edits=()):
    """The page's example in a copy of the package with the page's files and its line; what it has printed.

    Args:
        folder: where the copy goes.
        without: files, or the line, that are left out.
        edits: of files: the file, what is in it, and what comes instead.
    """
    shutil.copytree(PACKAGE, folder / "refopt", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        if name not in without:
            (folder / name).write_text(text)
    if DOOR not in without:
        edits = [(DOOR, BEFORE, BEFORE + LINE), *edits]
    for name, before, after in edits:
        text = (folder / name).read_text()
        assert text.count(before) == 1, (name, before)
        (folder / name).write_text(text.replace(before, after))
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", EXAMPLE], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_page_runs(tmp_path):
    assert [*FILES] == [f"refopt/program/{name}.py" for name in ("ops/clamp", "gpu/clamp", "passes/clamps")]
    done = example(tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("without", "edits", "error"), [
    pytest.param([DOOR], [], "bind: clamp: expected a type that can be run, one of refopt.program.ops", id="no line"),
    pytest.param(["refopt/program/gpu/clamp.py"], [], "No module named 'refopt.program.gpu.clamp'", id="no kernel"),
    pytest.param([], [("refopt/program/gpu/clamp.py", "value > limit", "value < limit")], LAST,
                 id="another kernel"),
    pytest.param([], [("refopt/program/passes/clamps.py", "for op in ops for", "for op in ops[:1] for")],
                 LAST, id="one forgotten"),
    pytest.param([], [("refopt/program/ops/clamp.py", 'dtype != "float32"', 'dtype != "float16"')],
                 "clamp: x[0]: expected float32, got float32", id="another check"),
])  # fmt: skip
def test_what_is_missing_or_wrong_is_noticed(tmp_path, without, edits, error):
    done = example(tmp_path, without, edits)
    assert done.returncode != 0 and error in done.stderr, done.stderr
