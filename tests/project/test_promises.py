"""The laws of a routine can be listed in words."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each is a collection of all laws
ROOT = Path(__file__).parents[2]


def listed(*options):
    """What pytest collects of the laws: its status, and its lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/laws", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_what_adam_promises():
    status, lines = listed("--promises", "adam")
    laws = [line for line in lines if ": " in line and "Exit" not in line]
    assert status == 0 and f"{len(laws)} laws of adam " in lines[-1]
    assert 25 < len(laws) == len(set(laws)) < 60 and all(law.partition(": ")[2] for law in laws), laws
    assert any(law.startswith("N12 ") for law in laws)


def test_an_unknown_routine_is_refused():
    status, lines = listed("--promises", "adamq")
    assert status == 4 and any("--promises: expected one of" in line for line in lines)
