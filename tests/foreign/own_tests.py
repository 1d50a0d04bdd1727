"""A plugin of pytest for numba-cuda's own tests: what runs kernels is the executor, the rest is numba-cuda's.

NUMBA_CUDA_TESTS names the folder of the tests. They import parts of numba-cuda that are no interface, so
`replace_numba` does not do here: in the package `numba.cuda`, as its simulator has it, the executor's names take the
places of the simulator's. Tests that the simulator skips are skipped.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numba.cuda
import pytest

from refopt.simt import cuda
from refopt.simt.base.state import current

SECONDS = 60  # of processor time: a test that takes longer fails
_OF_LINKERS = "LinkableCode CUSource PTXSource LTOIR Cubin Fatbin Archive Object declare_device"


def _replace() -> None:
    folder = os.environ["NUMBA_CUDA_TESTS"]
    spec = importlib.util.spec_from_file_location("numba.cuda.tests", f"{folder}/__init__.py",
                                                  submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    sys.modules["numba.cuda.tests"] = vars(numba.cuda)["tests"] = tests
    sys.meta_path[:] = [finder for finder in sys.meta_path if "numba" not in type(finder).__module__]
    testing: Any = importlib.import_module("numba.cuda.testing")
    skip = testing.skip_on_cudasim
    # What the simulator cannot do because it looks for `cuda` in the globals of a kernel is no reason here.
    testing.skip_on_cudasim = lambda reason: (lambda test: test) if "non-top-level" in reason else skip(reason)
    importlib.import_module("numba.cuda.tests.support")
    spec.loader.exec_module(tests)
    for name, value in list(vars(numba.cuda).items()):
        homes = str(getattr(value, "__module__", "")), type(value).__module__
        simulated = any("simulator" in home for home in homes) and not isinstance(value, ModuleType)
        if simulated and name not in _OF_LINKERS.split():
            delattr(numba.cuda, name)
    ours = {name for name in cuda.__all__ if name not in cuda._NAMED and name != "types"}
    vars(numba.cuda).update({name: getattr(cuda, name) for name in ours}, __getattr__=cuda.__getattr__)


_replace()
current.as_numba += 1  # device arrays become host arrays, as numba-cuda's do


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: Any) -> None:
    """What numba-cuda's own conftest has."""
    request.cls._dump_failed_filechecks = False


class TooLong(Exception):
    """A test took too long."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Stop a test that takes too long."""

    def late(*_: Any) -> None:
        raise TooLong(f"more than {SECONDS} s")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is known to differ is expected to fail, and has to."""
    known = dict(line.split("  ", 1) for line in (Path(__file__).parent / "own_tests.txt").read_text().splitlines())
    for item in items:
        name = item.nodeid.split("/")[-1]
        if name in known:
            item.add_marker(pytest.mark.xfail(reason=known[name], strict=True))
