"""Which tests run a line, from the suite's run under coverage.py, and how long each took.

`measure` needs about three times the suite's own time. What ranks and command lines run in processes of their own is
seen too: coverage.py starts itself there, and pytest leaves the running test's name in ``PYTEST_CURRENT_TEST``.

A measurement is a folder with a copy of the package as it was. Lines that have moved since are found again by their
text, and another measurement, of new tests, may stand beside it: what they say is put together.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path

from coverage import CoverageData

from mutation.edits import Edit

CONFIG = """[run]
source_pkgs = refopt
parallel = true
concurrency = thread,greenlet,multiprocessing
context = ${PYTEST_CURRENT_TEST-}
core = ctrace
relative_files = true
data_file = {folder}/coverage
"""
# They stop a thread, or hold it, wherever it is, also where coverage.py has a lock, which then nobody gives back.
LEFT_OUT = ("tests/simt/test_atomics.py::test_a_thread_that_runs_on_is_stopped",
            "tests/simt/test_python_threads.py::test_a_launch_waits_for_another[False]",
            *(f"tests/project/test_detectors.py::test_the_record_says_what_the_executor_says[wait_{x}]"
              for x in ("that_nobody_ends", "on_a_plain_load")))


def measure(
    root: Path, folder: Path, workers: int, arguments: Iterable[str] = (), cases: int = 0, python: str = sys.executable,
) -> None:
    """Run tests once, and leave in a new folder which test ran which lines and for how long.

    Args:
        root: the checkout.
        folder: the one of all measurements, each of which has its number.
        workers: processes.
        arguments: more arguments of pytest, such as a file of tests.
        cases: how many cases of each test function, 0 for all.
        python: the interpreter, of the environment that the tests need; it has coverage.py and pytest-cov.
    """
    to = folder / str(len(measurements(folder)) + 1)
    shutil.copytree(root / "refopt", to / "refopt", ignore=shutil.ignore_patterns("__pycache__"))
    config = to / "coveragerc"
    config.write_text(CONFIG.replace("{folder}", str(to)))
    (to / "python").write_text(python)
    command = [python, "-m", "pytest", "-q", "-p", "mutation.durations", "-m", "not gpu and not slow"]
    command += [f"-n{workers}", "--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report="]
    command += [*(f"--deselect={test}" for test in LEFT_OUT), *arguments]
    names = {"MUTATION_DURATIONS": str(to / "durations"), "MUTATION_COVERAGE": str(config)}
    names["MUTATION_CASES"] = str(cases)
    environment = {**os.environ, **names, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    subprocess.run(command, cwd=root, env=environment)  # what fails here is left out, and pytest has said so


def collected(root: Path, arguments: Iterable[str]) -> list[str]:
    """The ids of all tests that pytest collects for some arguments, in its order.

    Raises:
        ValueError: pytest cannot collect them, or there are none.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not gpu and not slow", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"expected tests, got {shlex.join(arguments)}: {found.stdout}{found.stderr}")
    return [line for line in found.stdout.splitlines() if "::" in line]


def measurements(folder: Path) -> list[Path]:
    """The folders of all measurements that ended."""
    return sorted(path.parent for path in folder.glob("*/durations"))


def moved(old: list[str], new: list[str]) -> Iterator[tuple[int, int]]:
    """The numbers, from 1, that each line has before and after, of lines that are in both texts."""
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        yield from ((block.a + k + 1, block.b + k + 1) for k in range(block.size))


# What reads code without running it, which coverage.py cannot see: kernels are compiled, signatures inspected.
READERS = {"refopt/gpu/": "tests/gpu/test_ptx.py::",
           "refopt/": "tests/project/test_maps.py::test_what_follows_from_the_package"}


class Covered:
    """The tests of each line, the fastest first.

    Attributes:
        seconds: of each test.
        python: the interpreter that each test is run by.
    """

    def __init__(self, root: Path, folder: Path):
        """Read all measurements.

        Args:
            root: the checkout, as it is now.
            folder: the one of all measurements.
        """
        self.root, self.texts = root, dict[str, str]()
        self.seconds: dict[str, float] = {}
        self.python: dict[str, str] = {}
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for each in measurements(folder):
            seconds, python = json.loads((each / "durations").read_text()), (each / "python").read_text()
            self.seconds |= seconds
            self.python = dict.fromkeys(seconds, python) | self.python  # a test of both runs in the first
            data = CoverageData(str(each / "coverage"))
            data.read()
            for file in data.measured_files():
                self._add(root, each, file, data.contexts_by_lineno(file))

    def _add(self, root: Path, measurement: Path, file: str, contexts: dict[int, list[str]]) -> None:
        """What one measurement knows of a file."""
        old, new = measurement / file, root / file
        if not new.exists():
            return
        for before, now in moved(old.read_text().splitlines(), new.read_text().splitlines()):
            tests = (self._test(context) for context in contexts.get(before, ()))
            self.lines[file][now] |= {test for test in tests if test}

    def _test(self, context: str) -> str:
        """The id of the test that a context speaks of: ``id|run``, or ``id (call)`` in another process."""
        static, _, dynamic = context.partition("|")
        test = static if "::" in static else dynamic
        for phase in ("|run", "|setup", "|teardown", " (call)", " (setup)", " (teardown)"):
            test = test.removesuffix(phase)
        return test if test in self.seconds else ""

    def _at_import(self, file: str) -> list[range]:
        """The lines of what a module assigns."""
        body = ast.parse(self._text(file)).body
        assigned = (node for node in body if isinstance(node, ast.Assign | ast.AnnAssign))
        return [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in assigned]

    def _users(self, name: str) -> set[str]:
        """The tests that run a line of a function, of any file, which has a name in it."""
        users: set[str] = set()
        for file, known in self.lines.items():
            if name not in self._text(file):
                continue
            rows, assigned = self._text(file).splitlines(), self._at_import(file)
            for line, tests in known.items():
                if re.search(rf"\b{re.escape(name)}\b", rows[line - 1]) and not any(line in span for span in assigned):
                    users |= tests
        return users

    def _in_function(self, edit: Edit) -> bool:
        """Whether a change is within a function's body."""
        functions = (node for node in ast.walk(ast.parse(self._text(edit.file))) if isinstance(node, ast.FunctionDef))
        return any(node.body[0].lineno <= edit.lines[0] <= (node.end_lineno or 0) for node in functions)

    def _of_file(self, file: str) -> set[str]:
        """The tests that run something of a file."""
        return set().union(*self.lines.get(file, {}).values())

    def _text(self, file: str) -> str:
        return self.texts.setdefault(file, (self.root / file).read_text())

    def tests(self, edit: Edit, budget: float) -> list[str]:
        """The tests that run one of a change's lines, while their times fit a budget.

        The fastest come first, and a test function's first case before any function's second one; then the first cases
        of those that read the file without running it. What runs at import runs outside any test: then they are those
        that run a line with the name assigned, and those that are called after it, such as the cases of a row of a
        table, or else any that run something of the file. A kernel, which the executor translates, runs outside any
        test, too: then they are all of these, and first those whose ids have most in common with what has changed.

        Args:
            edit: the change.
            budget: seconds.
        """
        known: dict[int, set[str]] = self.lines.get(edit.file, {})
        near = set().union(*(known.get(line, set()) for line in range(edit.lines[0], edit.lines[1] + 1)))
        assigned = any(edit.lines[0] in span for span in self._at_import(edit.file))
        if not near or assigned:
            name = edit.scope.rpartition(".")[2]
            word = name.strip("_").lower()
            near = {test for test in self.seconds if len(word) > 3 and word in test.lower()}
            near |= self._users(name) if name else set()
            near |= self._of_file(edit.file) if self._in_function(edit) else set()
        cases: dict[str, int] = defaultdict(int)
        ranked = []
        for test in sorted(near or self._of_file(edit.file), key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            ranked.append((cases[function], -edit.named_in(test), self.seconds[test], test))
            cases[function] += 1
        chosen = []
        for *_, seconds, test in sorted(ranked):
            budget -= seconds
            if budget < 0 and chosen:
                break
            chosen.append(test)
        return chosen and list(dict.fromkeys(chosen + self._readers(edit.file)))

    def _readers(self, file: str) -> list[str]:
        """The first case of each test function that reads a file without running it."""
        names = tuple(name for part, name in READERS.items() if file.startswith(part))
        first: dict[str, str] = {}
        for test in sorted(self.seconds):
            if test.startswith(names):
                first.setdefault(test.partition("[")[0], test)
        return list(first.values())
