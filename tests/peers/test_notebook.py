"""The notebook on the oracle runs from top to bottom, beside the libraries that it holds to it."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NAME = "15-the-oracle"


def printed(notebook):
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return "".join(out.text for out in outputs if out.output_type == "stream")


@pytest.fixture(scope="module")
def ran():
    for library in ("torch", "optax"):
        pytest.importorskip(library)
    if importlib.util.find_spec("timm") is None:  # which is not imported whole: it wants torchvision
        pytest.skip("timm is not installed")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(FOLDER / f"{NAME}.ipynb", as_version=4)
    before = printed(notebook)
    resources = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return before, printed(notebook)


def test_it_says_what_its_text_says(ran):
    """As committed and now: mistakes are named, the mended step is right, and so are the verdicts on libraries."""
    for text in ran:
        assert "why: epsilon inside the root (100 % of the wrong elements)" in text
        assert "why: elements that are not written: they are as they were" in text
        assert "mended as adamw: right, as far as was compared" in text
        assert "torch.optim.AdamW, fused=True as adamw: right" in text and "optax.adamw as adamw: right" in text
        assert "timm.optim.lamb.Lamb, max_grad_norm=None as lamb: WRONG, L15" in text
        assert "torch.optim.SGD, fused=True as sgd: WRONG, L1" in text
