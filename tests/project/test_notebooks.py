"""The notebooks run from top to bottom, and are committed as they ran."""

import asyncio
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OF_HARNESS = [path for path in NOTEBOOKS if "figure(" in path.read_text()]  # which takes an alternative text
MAX_LINES = 20
# The others run in make test-long, and where the site is built.
IN_MAKE_TEST = {"7-what-goes-wrong", "9-a-step-as-a-program", "11-fused-all-reduce"}
OF_PEERS = {"15-the-oracle", "16-in-pytorchs-step"}  # run by tests/peers/test_notebook.py
# Hundreds of steps of a training show by their losses what twenty show of the code, and so do fewer elements.
SIZES = "SIZES = [3000, 64, 64, 1500, 1, 0, 4100, 10]", "SIZES = [1100, 64, 64, 30, 1, 0, 300, 10]"
FEWER = {"3-lars": [SIZES],
         "4-momentum-and-adam": [("name, steps=200,", "name, steps=20,"),
                                 ("SIZES = [3000, 64, 1500, 1, 0, 2048, 10]", "SIZES = [300, 64, 30, 1, 0, 1040, 10]")],
         "5-adamw-lamb-and-norms": [SIZES, ("STEPS = 0.01, 0.1, 600", "STEPS = 0.01, 0.1, 60"),
                                    ("sizes=[9000, 20, 1]", "sizes=[1100, 20, 1]"),
                                    ("sizes = [40_000, 64, 0]", "sizes = [9000, 64, 0]")],
         "6-mixed-precision": [("optimizer, steps=150,", "optimizer, steps=20,")]}


def read(path):
    nbformat = pytest.importorskip("nbformat")  # here, since it takes seconds to import
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


RUN = [pytest.param(x, id=x.stem, marks=[pytest.mark.slow] * (x.stem not in IN_MAKE_TEST))
       for x in NOTEBOOKS if x.stem not in OF_PEERS]


@pytest.fixture(scope="module")
def kernel():
    """One for all, which imports what they use once."""
    manager = pytest.importorskip("jupyter_client").AsyncKernelManager(kernel_name="python3")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if Path(path).name != "tests"]  # whose comm is another than Jupyter's
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(others))
        yield manager
    asyncio.run(manager.shutdown_kernel(now=True))


@pytest.mark.parametrize("path", RUN)
def test_runs(path, kernel):
    nbclient, notebook = pytest.importorskip("nbclient"), read(path)
    for old, new in FEWER.get(path.stem, ()):
        (cell,) = [cell for cell in notebook.cells if old in cell.source]
        cell.source = cell.source.replace(old, new)
    notebook.cells.insert(0, pytest.importorskip("nbformat").v4.new_code_cell("%reset -f"))
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, km=kernel, timeout=120, resources=resources).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_as_it_ran_in_short_cells(path):
    cells = code_cells(path)
    assert cells and [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [cell.source for cell in cells if cell.source.count("\n") >= MAX_LINES]


@pytest.mark.parametrize("path", OF_HARNESS, ids=lambda path: path.stem)
def test_figures_have_words_for_those_who_do_not_see_them(path):
    outputs = [output for cell in code_cells(path) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert not [output for output in outputs if len(output.metadata.get("image/png", {}).get("alt", "")) < 40]
