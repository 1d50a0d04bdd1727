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


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_script_prints_what_is_said(path):
    page = path.read_text()
    (script,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    assert "refopt" not in script
    for name in {*re.findall(r"^(?:import|from) (\w+)", script, re.MULTILINE)}:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    script = (WITHOUT_TORCHVISION if "from timm" in script else "") + script
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed.strip()


def test_there_are_reports():
    assert len(REPORTS) > 5
