"""docs/adding-an-optimizer.md adds two optimizers: in a copy of the package they run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import refopt

PACKAGE = Path(refopt.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "adding-an-optimizer.md").read_text()
FILES = dict(re.findall(r"(?s)`(refopt/\S+\.py)`:\n\n```python\n(.*?)```", PAGE))
NAMES = "yogi", "ngd"


def run(folder, *args):
    """A command of Python's on the copy."""
    environment = os.environ | {"PYTHONPATH": str(folder), "REFOPT_DEVICE": "executor"}
    return subprocess.run([sys.executable, *args], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=300)


def copy(folder, without=""):
    """The package with the page's files but one."""
    shutil.copytree(PACKAGE, folder / "refopt", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        if name != without:
            (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def added(tmp_path_factory):
    return copy(tmp_path_factory.mktemp("added"))


def test_three_files_each_and_no_more_lines():
    folders = "refopt/cpu", "refopt/gpu/rules", "refopt/oracle/wrong"
    assert [*FILES] == [f"{folder}/{name}.py" for name in NAMES for folder in folders]
    for name in NAMES:
        own = "".join(text for file, text in FILES.items() if file.endswith(f"/{name}.py") and "wrong" not in file)
        assert len([line for line in own.splitlines() if line.strip()]) <= 60


@pytest.mark.slow  # every dtype; test_they_run_and_the_oracle_knows_them has one
@pytest.mark.parametrize(("name", "expected"), [("yogi", "11 of 11 equal"), ("ngd", "8 of 8 equal")])
def test_kernels_are_the_reference(added, name, expected):
    done = run(added, "-m", "refopt", "verify", "--routine", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert expected in done.stdout and (name == "ngd" or expected in PAGE)


(CHECK,) = re.findall(r"(?s)```python\n(import numpy.*?)```", PAGE)
WORK = """
from refopt import cli, oracle
from refopt.catalog.workloads import WORKLOADS
from refopt.oracle.wrong import OF
from refopt.oracle.variants import ROUTINES
from refopt.cpu.merged import merged
WORKLOADS["small"] = lambda: [("weight", (11, 110)), *((f"bias{k}", (7 + k,)) for k in range(8))]
small = "--device", "executor", "--workload", "small", "--dtype", "fp16-amp"
assert cli.main(["verify", *small, "--routine", "yogi", "ngd"]) == 0
for name in ("yogi", "ngd"):
    assert name == "ngd" or cli.main(["show", name]) == 0
    row = ROUTINES[name]
    for wrong in [*OF[name].values()][:1]:
        def step(*lists, grad_factor=None, found_inf=None, master_params=None, wrong=wrong, row=row, **numbers):
            slots = dict(zip((s.name for s in row.slots if not s.optional), lists)) | {"master_params": master_params}
            merged(row, wrong.of(row.rule), slots, numbers, grad_factor, found_inf)
        report = oracle.check(name, step, laws=["L1"], dtypes=["float32"], examples=0)
        assert wrong.name in str(report), str(report)
"""


def test_they_run_and_the_oracle_knows_them(added):
    """With the same bits on both sides, and a wrong rule by its name; `refopt show` prints the rule."""
    done = run(added, "-c", WORK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in a step: merged_yogi[" in done.stdout and FILES["refopt/gpu/rules/yogi.py"] in done.stdout


@pytest.mark.slow  # tests/oracle has such checks of every routine
@pytest.mark.parametrize("name", NAMES)
def test_the_check_of_the_page(added, name):
    done = run(added, "-c", CHECK.replace("yogi", name))
    assert done.returncode == 0, done.stderr


SAID = re.search(r"(?s)```text\n(refopt\.cpu.*?)```", PAGE)[1].splitlines()
CHANGES = [  # what is wrong, by file and text, and which line of the page says so
    ("refopt/cpu/yogi.py", "epsilon=1e-3,", "epsilon=1e-3, eta=0.5,", "import refopt.cpu", 0),
    ("refopt/gpu/rules/yogi.py", None, None, "import refopt.gpu", 1),
    ("refopt/gpu/rules/yogi.py", ", m, u\n\n    return", ", m\n\n    return", "import refopt.gpu", 2),
    ("refopt/oracle/wrong/yogi.py", None, None, "import refopt.oracle", 3)]


@pytest.mark.parametrize(("file", "old", "new", "command", "line"), CHANGES)
def test_what_is_forgotten_is_an_error(tmp_path, file, old, new, command, line):
    copy(tmp_path, without=file)
    if old:
        assert FILES[file].count(old) == 1
        (tmp_path / file).write_text(FILES[file].replace(old, new))
    done = run(tmp_path, "-c", command)
    assert done.stderr.splitlines()[-1] == f"TypeError: {SAID[line]}"
