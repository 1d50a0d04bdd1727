"""The tests of other projects, run whole: stumpy's for GPUs, and numba-cuda's own that its simulator does not skip."""

import os
import re
import subprocess
import sys
from pathlib import Path

from foreign.cases import case
from foreign.repositories import ROOT, files

STUMPY, NUMBA_CUDA = "stumpy-dev/stumpy", "NVIDIA/numba-cuda"
TESTS = "numba_cuda/numba/cuda/tests"
STUMPY_TESTS = 134
OWN_TESTS = 638  # of 658; own_tests.txt has the others


def pytest(folder: Path, *args: str, **environment: str) -> dict[str, int]:
    """Run pytest in a folder, in a process of its own; how many tests ended how."""
    tests = ROOT / "tests"
    paths = [ROOT, tests, *[tests / "foreign" / "child"] * ("NUMBA_CUDA_TESTS" in environment)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=line", "-rfE"]
    command = [sys.executable, "-m", "pytest", *options, *args]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (\w+)", last)}
    if counts.get("failed") or counts.get("errors") or counts.get("error") or not counts.get("passed"):
        wrong = [line for line in done.stdout.splitlines() if re.match("FAILED|ERROR|SUBFAILED", line)]
        raise AssertionError(f"{counts}: {'; '.join(wrong) or done.stdout[-2000:] + done.stderr[-2000:]}")
    return counts


@case(STUMPY, "its GPU tests")
def stumpy() -> str:
    """All of tests/test_gpu_*.py."""
    folder = files(STUMPY, ["stumpy", "tests", "pyproject.toml"])
    tests = sorted(str(path.relative_to(folder)) for path in folder.glob("tests/test_gpu_*.py"))
    counts = pytest(folder, "-p", "refopt.simt", *tests, REFOPT_SIMT="1")
    if counts["passed"] < STUMPY_TESTS or counts.get("skipped"):
        raise AssertionError(f"{counts}, not {STUMPY_TESTS} passed")
    return f"{counts['passed']} tests pass"


@case(NUMBA_CUDA, "its own tests, its documentation's among them")
def own() -> str:
    """Those of kernels and of the documentation's examples."""
    folder = files(NUMBA_CUDA, [TESTS])
    counts = pytest(folder, "-p", "foreign.own_tests", "-c", "/dev/null", "--rootdir", str(folder),
                    "--import-mode=importlib", f"{TESTS}/cudapy", f"{TESTS}/doc_examples",
                    NUMBA_CUDA_TESTS=str(folder / TESTS))
    if counts["passed"] < OWN_TESTS:
        raise AssertionError(f"{counts}, not {OWN_TESTS} passed")
    return ", ".join(f"{count} {word}" for word, count in counts.items())
