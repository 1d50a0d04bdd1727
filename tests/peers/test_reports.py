"""Each report of docs/reports shows, without refopt, what it says."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPORTS = sorted((ROOT / "docs" / "reports").glob("*-*.md"))
WITHOUT_TORCHVISION = "from benchmarks.findings.imports import optimizers_of_timm\noptimizers_of_timm()\n"
# Runs each script in a fork of a process that has imported what takes long.
RUN = """
import os, runpy, sys
import torch
failed = 0
for path in sys.argv[1:]:
    if not os.fork():
        sys.stdout = open(path + ".txt", "w")
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    failed |= os.wait()[1]
sys.exit(bool(failed))
"""


# Those of PyTorch itself; to import the other libraries takes most of a minute.
OF_TORCH = [path for path in REPORTS if re.match("torch-(?!optimizer)", path.name)]


@pytest.mark.parametrize("reports", [OF_TORCH, pytest.param(REPORTS, marks=pytest.mark.slow)], ids=["torch", "all"])
def test_scripts_print_what_is_said(reports, tmp_path):
    pytest.importorskip("torch")
    expected, left_out = {}, set()
    for path in reports:
        page = path.read_text()
        (script,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
        assert "refopt" not in script
        named = {*re.findall(r"^(?:import|from) (\w+)", script, re.MULTILINE)}
        if missing := {name for name in named if find_spec(name) is None}:
            left_out |= missing
            continue
        (tmp_path / path.stem).write_text((WITHOUT_TORCHVISION if "from timm" in script else "") + script)
        expected[path.stem] = printed.strip()
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", RUN, *expected]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert {name: (tmp_path / f"{name}.txt").read_text().strip() for name in expected} == expected, done.stderr
    assert done.returncode == 0, done.stderr
    assert len(reports) > 3
    if left_out:
        pytest.skip(f"{', '.join(sorted(left_out))} not installed")
