"""Hypothesis profiles, and the machines that the tests run on."""

import contextlib
import gc
import os
from importlib.metadata import version

import pytest
from hypothesis import HealthCheck, settings

from refopt import gpu

ASKED = os.environ.get("REFOPT_DEVICE")
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", deadline=None, max_examples=8, derandomize=True, print_blob=True,
                          suppress_health_check=_QUIET)
settings.register_profile("long", deadline=None, max_examples=150, print_blob=True, suppress_health_check=_QUIET)
settings.load_profile("default")


def pytest_configure():
    """Compilers make many objects that stay: looking for garbage took a tenth of the time."""
    gc.set_threshold(200_000, 50, 100)


@contextlib.contextmanager
def meaning(name):
    """Have calls that name no machine take this one, unless REFOPT_DEVICE names another."""
    os.environ["REFOPT_DEVICE"] = ASKED or name
    try:
        yield
    finally:
        if ASKED is None:
            os.environ.pop("REFOPT_DEVICE", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What modules make on import, they make on the executor."""
    with meaning("executor"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test means the executor, also beside a GPU, unless it is marked as one of a GPU; so do its fixtures."""
    with meaning("gpu" if item.get_closest_marker("gpu") else "executor"):
        return (yield)


def pytest_runtest_setup(item):
    """Without a GPU, what needs one is skipped, unless REFOPT_DEVICE asks for it."""
    if ASKED != "gpu" and item.get_closest_marker("gpu"):
        try:
            gpu.device("gpu")
        except RuntimeError as error:
            pytest.skip(str(error))


def pytest_collection_finish():
    """What is collected stays: tests that look for garbage need not look through eighteen thousand tests each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def frozen():
    """What there is stays, so that looking for garbage is looking at what has come since: tests before leave much."""
    gc.collect()
    gc.freeze()


def pytest_report_header():
    """What the kernels run on."""
    try:
        name = gpu.device("gpu").properties.name
    except RuntimeError as error:
        return f"refopt: the executor; {error}"
    versions = ", ".join(f"{package} {version(package)}" for package in ("numpy", "numba", "numba-cuda"))
    return f"refopt: {name}; {versions}"


@pytest.fixture(scope="session", params=["executor", pytest.param("gpu", marks=pytest.mark.gpu)])
def machine(request):
    """The executor, and under ``-m gpu`` the GPU."""
    try:
        return gpu.device(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def executor():
    """The executor, for what only it can show: counts, schedules, races."""
    return gpu.device("executor")


def pytest_sessionfinish(exitstatus):
    """``make ptx`` keeps the digests of what it has compiled, if all of it is right."""
    if os.environ.get("REFOPT_PTX") == "write" and exitstatus == 0:
        from gpu import kept_ptx

        kept_ptx.write()
