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
TESTS = Path(__file__).parents[1]
PAGE = (PACKAGE.parent / "docs" / "adding-an-op.md").read_text()
FILES = dict(re.findall(r"(?s)`(refopt/\S+\.py)`:\n\n```python\n(.*?)```", PAGE))
((BEFORE, LINE),) = re.findall(r"```diff\n (.*\n)\+(.*\n)", PAGE)
(EXAMPLE,) = re.findall(r"(?s)```python\n(import numpy as np\nfrom refopt import gpu.*?)```", PAGE)
LAST = f"line {len(EXAMPLE.splitlines())}, in <module>\nAssertionError"
LAW = (PACKAGE.parent / "examples" / "test_clamps.py").read_text()
# A clamp on each of two ranks, side by side: one of them is not that of the other.
PLACED = """
import numpy as np
from refopt.comm import local
from refopt.program import Op, bind, passes, step_program
from refopt.program.passes.clamps import fuse_clamps

plain = step_program([("w", (4, 3)), ("b", (4,)), ("c", (5,))], "sgd", lr=0.5)
placed = passes.reduce_to_owners(plain, 2).program
scales = [k for k, op in enumerate(placed.main) if op.type == "scale"]
clamps = [Op("clamp", {"x": x}, {"out": x}, {"limit": 0.25}, "communicate", device=placed.main[k].device)
          for k in scales for x in [placed.main[k].inputs["x"]]]
assert {op.device for op in clamps} == {0, 1} and len(clamps) == 3
place = max(scales) + 1
updates = [op for op in placed.main[:place] if op.role == "optimize" or op.type == "broadcast"]
before = [op for op in placed.main[:place] if op not in updates]
program = placed.replace(main=[*before, *clamps, *updates, *placed.main[place:]])
program.check()
fused = fuse_clamps(program)
assert fused.applied and fused.program.counts()["clamp"] == 2, fused.program.counts()

def outcome(program):
    def rank(world):
        arrays = {name: np.ones(shape, np.float32) for name, shape in [("w", (4, 3)), ("b", (4,)), ("c", (5,))]}
        gradients = {f"{name}@GRAD": np.full_like(x, -8) for name, x in arrays.items()}
        bound = bind(passes.on_device(program, world.rank), arrays, comm=world, gradients=gradients)
        bound.startup()
        bound.step()
        return [bound.read(name).tobytes() for name in arrays]

    return local.run(rank, 2)

assert outcome(program) == outcome(fused.program)
"""
DOOR = "refopt/program/ops/__init__.py"


def example(folder, without=(), edits=(), script=EXAMPLE):
    """The page's example, or another, in a copy of the package with the page's files and its line; what it has printed.

    Args:
        folder: where the copy goes.
        without: files, or the line, that are left out.
        edits: of files: the file, what is in it, and what comes instead.
        script: what runs.
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
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(TESTS)])}
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

def test_the_page_runs(tmp_path):
    """And each rank clamps what it owns."""
    assert [*FILES] == [f"refopt/program/{name}.py" for name in ("ops/clamp", "gpu/clamp", "passes/clamps")]
    done = example(tmp_path, script=EXAMPLE + PLACED)
    assert done.returncode == 0, done.stderr


PASS, KERNEL = "refopt/program/passes/clamps.py", "refopt/program/gpu/clamp.py"
FORGOTTEN = [(PASS, "for op in ops for", "for op in ops[:1] for")]
LAWS = "import conftest\n" + LAW + "\n\ntest_fusing_clamps_changes_no_bit()\n"


@pytest.mark.slow
def test_the_law_of_the_page(tmp_path):
    done = example(tmp_path, script=LAWS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("without", "edits", "script", "error"), [
    ([DOOR], [], EXAMPLE, "bind: clamp: expected a type that can be run, one of refopt.program.ops"),
    ([KERNEL], [], EXAMPLE, "No module named 'refopt.program.gpu.clamp'"),
    ([], [(KERNEL, "value > limit", "value < limit")], EXAMPLE, LAST),
    ([], FORGOTTEN, EXAMPLE, LAST),
    ([], FORGOTTEN, LAWS, "AssertionError"),
    ([], [(PASS, ", op.role, op.device)", ", op.role)")], PLACED, "AssertionError"),
    ([], [("refopt/program/ops/clamp.py", 'dtype != "float32"', 'dtype != "float16"')], EXAMPLE,
     "clamp: x[0]: expected float32, got float32"),
], ids=["no line", "no kernel", "another kernel", "one forgotten", "law", "devices", "another check"])
def test_what_is_missing_or_wrong_is_noticed(tmp_path, without, edits, script, error):
    done = example(tmp_path, without, edits, script)
    assert done.returncode != 0 and error in done.stderr, done.stderr
