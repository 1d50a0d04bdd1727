"""Laws hold on every machine; its name comes last in an id, the routine's first."""

import pytest

from refopt import gpu

MACHINES = "executor", pytest.param("gpu", marks=pytest.mark.gpu)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    """After the test's own parameters, which are thus named before it; by module, so that files stay in order."""
    if "machine" in metafunc.fixturenames:
        metafunc.parametrize("machine", MACHINES, indirect=True, scope="module")


@pytest.fixture(scope="module")
def machine(request):
    """The executor, and under ``-m gpu`` the GPU."""
    try:
        return gpu.device(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
