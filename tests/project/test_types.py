"""Type checkers see every public function of `refopt.cpu` and `refopt.gpu`, by name and with its arguments."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from refopt import cpu, gpu

ROOT = Path(__file__).parents[2]
CALLS = Path(__file__).with_name("typed_calls.py")
IGNORED = "  # type: ignore["


def static_names(package):
    """What a type checker finds in a package: what its text imports or defines, and what is in its stub."""
    paths = Path(package.__file__), Path(package.__file__).with_name("_functions.pyi")
    names = set()
    for node in (node for path in paths for node in ast.parse(path.read_text()).body):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


@pytest.mark.parametrize("package", [cpu, gpu], ids=lambda x: x.__name__)
def test_every_public_name_is_static(package):
    assert {*package.__all__} <= static_names(package)
    assert {"merged_adamw", "adamw", "merged_muon", "muon"} <= {*package.__all__}


def test_calls_are_refused_for_each_reason():
    lines = [line for line in CALLS.read_text().splitlines() if IGNORED in line]
    assert {line.partition(IGNORED)[2].rstrip("]") for line in lines} == {
        "attr-defined", "call-arg", "arg-type", "list-item"}


@pytest.mark.slow  # mypy takes seconds; `make lint` reports a wrong call that it accepts as an unused comment
def test_mypy_refuses_wrong_calls(tmp_path):
    """Each of them, for the reason that its comment names, and no other."""
    pytest.importorskip("mypy")
    lines, copy = CALLS.read_text().splitlines(), tmp_path / "calls.py"
    copy.write_text("\n".join(line.partition(IGNORED)[0] for line in lines))
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", copy], cwd=ROOT,
                          capture_output=True, text=True, timeout=300)
    reported = [line.split(":") for line in done.stdout.splitlines() if " error: " in line]
    got = [(int(row[1]), row[-1].rpartition("[")[2].rstrip("]")) for row in reported]
    expected = [(n, line.partition(IGNORED)[2].rstrip("]")) for n, line in enumerate(lines, 1) if IGNORED in line]
    assert got == expected, done.stdout
