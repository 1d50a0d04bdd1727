"""Which tests run a line, from the suite's run under coverage.py, and how long each took.

`measure` needs about three times the suite's own time. What ranks and command lines run in processes of their own is
seen too: coverage.py starts itself there, and pytest leaves the running test's name in ``PYTEST_CURRENT_TEST``.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
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


def measure(root: Path, folder: Path, workers: int, arguments: Iterable[str] = ()) -> None:
    """Run the suite once, and leave in `folder` which test ran which lines and for how long.

    Args:
        root: the checkout.
        folder: where the data goes.
        workers: processes.
        arguments: more arguments of pytest, such as a file of tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "coveragerc"
    config.write_text(CONFIG.replace("{folder}", str(folder)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutation.durations", "-m", "not gpu and not slow"]
    command += [f"-n{workers}", "--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=", *arguments]
    names = {"MUTATION_DURATIONS": str(folder / "durations"), "MUTATION_COVERAGE": str(config)}
    path = os.pathsep.join([str(root), str(root / "tests"), *sys.path])
    environment = {**os.environ, **names, "PYTHONPATH": path}
    subprocess.run(command, cwd=root, env=environment)  # what fails here is left out, and pytest has said so


class Covered:
    """The tests of each line, the fastest first."""

    def __init__(self, folder: Path):
        self.seconds: dict[str, float] = json.loads((folder / "durations").read_text())
        data = CoverageData(str(folder / "coverage"))
        data.read()
        self.lines: dict[str, dict[int, set[str]]] = {}
        for file in data.measured_files():
            self.lines[file] = {
                line: {test for context in contexts if (test := self._test(context))}
                for line, contexts in data.contexts_by_lineno(file).items()
            }

    def _test(self, context: str) -> str:
        """The id of the test that a context speaks of: ``id|run``, or ``id (call)`` in another process."""
        static, _, dynamic = context.partition("|")
        test = static if "::" in static else dynamic
        for phase in ("|run", "|setup", "|teardown", " (call)", " (setup)", " (teardown)"):
            test = test.removesuffix(phase)
        return test if test in self.seconds else ""

    def tests(self, edit: Edit, budget: float) -> list[str]:
        """The tests that run one of a change's lines, while their times fit a budget.

        The fastest come first, and a test function's first case before any function's second one. Where a line runs at
        import alone, so outside any test, they are those that run anything of the file, first those whose names have
        that of the change's scope in them: of a row of a table, the cases that are about that row.

        Args:
            edit: the change.
            budget: seconds.
        """
        known = self.lines.get(edit.file, {})
        found = set().union(*(known.get(line, set()) for line in range(edit.lines[0], edit.lines[1] + 1)))
        word = "" if found else edit.scope.rpartition(".")[2].strip("_").lower()
        cases: dict[str, int] = defaultdict(int)
        ranked = []
        for test in sorted(found or set().union(*known.values()), key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            ranked.append((word not in test.lower(), cases[function] if found else 0, self.seconds[test], test))
            cases[function] += 1
        chosen = []
        for *_, seconds, test in sorted(ranked):
            budget -= seconds
            if budget < 0 and chosen:
                break
            chosen.append(test)
        return chosen
