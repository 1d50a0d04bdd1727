"""One change in a copy of the checkout, and whether a test saw it.

A trial is a fork of a process that has imported the libraries but nothing of refopt: it starts in milliseconds,
imports the changed package, and runs the tests chosen, in the order chosen, up to the first that fails; then, for some
seconds, other cases of the same functions. Tests that need another environment run in a new process of its interpreter,
after the others.
"""

import itertools
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutation.edits import Edit

# What tests read of a checkout.
COPIED = ("refopt", "tests", "benchmarks", "docs", "examples", "notebooks", "requirements", "README.md", "CHANGELOG.md",
          "Makefile", "pyproject.toml")
MORE = 30.0  # seconds of cases that were not measured, unless a bench has other ones
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov"]


@dataclass(frozen=True)
class Outcome:
    """What became of one change.

    Attributes:
        edit: the change.
        verdict: killed, survived, timed out, or uncovered where no test runs the file.
        by: the test that failed first; empty if not even the tests could be collected.
        tests: how many were chosen.
        seconds: what the trial took.
    """

    edit: Edit
    verdict: str
    by: str
    tests: int
    seconds: float

    def __str__(self) -> str:
        edit = self.edit
        return f"{self.verdict}: {edit.file}:{edit.lines[0]} {edit.scope}: {edit.kind}: {edit.old!r} -> {edit.new!r}"


class Bench:
    """A copy of the checkout that changes are tried in, one after another."""

    def __init__(self, root: Path, folder: Path, limit: float, more: float = MORE):
        """Copy the checkout.

        Args:
            root: the checkout.
            folder: of the copy.
            limit: seconds after which a trial is ended.
            more: seconds of cases that were not measured, of tests in this environment.
        """
        self.folder, self.limit, self.more = folder, limit, more
        for name in COPIED:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)

    def trial(self, edit: Edit, tests: list[str], python: Mapping[str, str]) -> Outcome:
        """Try one change on some tests, each with its interpreter, and take it back."""
        if not tests:
            return Outcome(edit, "uncovered", "", 0, 0.0)
        path = self.folder / edit.file
        source = path.read_text()
        begin = time.monotonic()
        path.write_text(edit.applied(source))
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # whose times have whole seconds
        try:
            tests = sorted(tests, key=lambda test: python[test] != sys.executable)
            for interpreter, those in itertools.groupby(tests, key=python.__getitem__):
                status, by = self._run(list(those), interpreter, edit)
                if status != pytest.ExitCode.OK:
                    break
        finally:
            path.write_text(source)
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        # Where none of the tests that ran it exists any more, no test covers it until they are measured again.
        verdicts = {0: "survived", None: "timed out", pytest.ExitCode.NO_TESTS_COLLECTED: "uncovered"}
        verdict = verdicts.get(status, "killed")
        return Outcome(edit, verdict, by, len(tests), round(time.monotonic() - begin, 2))

    def _run(self, tests: list[str], python: str, edit: Edit) -> tuple[int | None, str]:
        """pytest's status, or none after the limit, and the test that failed."""
        with tempfile.NamedTemporaryFile("r", suffix=".txt") as said:
            child = os.fork()
            if not child:
                os.setsid()
                if python == sys.executable:
                    _run_here(self.folder, tests, said.name, edit, self.more)
                paths = os.pathsep.join([str(self.folder), str(self.folder / "tests")])
                command = [python, "-m", "mutation.trial", str(self.folder), said.name, *tests]
                os.execve(python, command, os.environ | {"PYTHONPATH": paths})
            end = time.monotonic() + self.limit
            while time.monotonic() < end:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status), said.read()
                time.sleep(0.02)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, said.read()


_bench: Bench


def start(root: Path, scratch: str, limit: float, more: float) -> None:
    """Make this process one that trials start from: it imports the libraries once; refopt is imported in each trial."""
    global _bench
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401

    _bench = Bench(root, Path(tempfile.mkdtemp(dir=scratch)), limit, more)


def outcome(task: tuple[Edit, list[str], Mapping[str, str]]) -> Outcome:
    """Try one change on its tests in this process's copy."""
    return _bench.trial(*task)


def _run_here(folder: Path, tests: list[str], report: str, edit: Edit | None = None, more: float = MORE) -> None:
    """Run tests in this process, which ends with pytest's status; of other cases those first that a change names."""
    os.chdir(folder)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path[:0] = [str(folder), str(folder / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    try:
        status = int(pytest.main([*OPTIONS, *files], plugins=[_Chosen(tests, Path(report), edit, more)]))
    except BaseException:  # the package cannot even be imported
        status = 1
    os._exit(status)


class _Chosen:
    """A plugin that runs some tests only, in an order, and notes the one that fails."""

    def __init__(self, tests: list[str], report: Path, edit: Edit | None, more: float):
        self.rank = {test: k for k, test in enumerate(tests)}
        self.report, self.edit, self.more = report, edit, more

    def pytest_collection_modifyitems(self, items):
        functions = {test.partition("[")[0] for test in self.rank}
        chosen = [item for item in items if item.nodeid in self.rank]
        others = [item for item in items if item.nodeid not in self.rank and item.nodeid.partition("[")[0] in functions
                  and not any(map(item.get_closest_marker, ("gpu", "slow")))]
        if self.edit is not None:
            others.sort(key=lambda item: -self.edit.named_in(item.nodeid))
        items[:] = sorted(chosen, key=lambda item: self.rank[item.nodeid]) + others * bool(chosen)

    def pytest_runtest_logfinish(self, nodeid):
        if nodeid in self.rank:
            self.end = time.monotonic() + self.more
        elif time.monotonic() > self.end:
            os._exit(pytest.ExitCode.OK)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.report.write_text(report.nodeid)
            self.end = math.inf  # pytest ends by itself, and says so


if __name__ == "__main__":
    _run_here(Path(sys.argv[1]), sys.argv[3:], sys.argv[2])
