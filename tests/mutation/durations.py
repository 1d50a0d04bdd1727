"""A plugin of pytest that writes how long each test took, and has coverage.py start in processes that tests start.

The file that it writes is named in ``MUTATION_DURATIONS``, coverage.py's configuration in ``MUTATION_COVERAGE``. At
most ``MUTATION_CASES`` cases of each test function run, spread evenly over all, or all of them if that is not set.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

_seconds: dict[str, float] = defaultdict(float)
_left_out: set[str] = set()


def pytest_collection_modifyitems(config, items):
    """Leave out the cases beyond the number allowed."""
    most = int(os.environ.get("MUTATION_CASES", "0"))
    if not most:
        return
    functions = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    kept = {cases[k * len(cases) // most] for cases in functions.values() for k in range(most)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_runtest_setup():
    """From the first test on, so that it does not start a second time in xdist's processes."""
    os.environ["COVERAGE_PROCESS_START"] = os.environ["MUTATION_COVERAGE"]


def pytest_runtest_logreport(report):
    """Add up set-up, call and teardown; tests that are skipped or fail as the code stands can show nothing."""
    _seconds[report.nodeid] += report.duration
    if not report.passed:
        _left_out.add(report.nodeid)


def pytest_sessionfinish(session):
    """Under xdist only the process that collects the reports writes."""
    if not hasattr(session.config, "workerinput"):
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _left_out}
        Path(os.environ["MUTATION_DURATIONS"]).write_text(json.dumps(passed))
