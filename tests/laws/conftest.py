"""Laws hold on every machine; its name comes last in an id, the routine's first."""

import pytest

from refopt import gpu
from refopt.catalog import ROUTINES

ROUTINE = "--promises"
MACHINES = "executor", pytest.param("gpu", marks=pytest.mark.gpu)


def pytest_addoption(parser):
    """``pytest -q tests/laws --promises adamw`` reads as the list of what AdamW promises."""
    parser.addoption(ROUTINE, metavar="ROUTINE", help="list each law of a routine once, as what it says")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """With ``--promises``, write each law of that routine once, with its statement, and run none."""
    routine = config.getoption(ROUTINE, None)
    if routine is None:
        return
    if routine not in ROUTINES:
        raise pytest.UsageError(f"{ROUTINE}: expected one of {', '.join(ROUTINES)}, got {routine}")
    laws = {}
    for item in items:
        if hasattr(item, "callspec") and item.callspec.id.split("-")[0] == routine:
            laws.setdefault((item.path, item.originalname), item)
    for item in laws.values():
        marked = [mark.args[0] for mark in item.iter_markers("clause")]  # the file's last, which is its name
        clause = marked[-1] if marked else item.path.stem.removeprefix("test_")
        name = item.originalname.removeprefix("test_").replace("_", " ")
        says = " ".join((item.obj.__doc__ or "").partition("\n\n")[0].split())
        config.get_terminal_writer().line(f"{clause} {name}: {says}")
    pytest.exit(f"{len(laws)} laws of {routine}", returncode=0)


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
