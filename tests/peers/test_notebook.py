"""The notebooks on the oracle and on PyTorch's step run from top to bottom, beside the libraries that they take."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"


def printed(notebook):
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    return "".join(out.text for out in outputs if out.output_type == "stream")


def told(name, runs):
    """What a notebook has printed as committed, or prints now."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    if runs:
        resources = {"metadata": {"path": str(FOLDER)}}
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return printed(notebook)


both = pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["committed", "run"])


@both
def test_the_oracle_says_what_its_text_says(runs):
    """Mistakes are named, the mended step is right, and so are the verdicts on libraries."""
    for library in ("torch", "optax"):
        pytest.importorskip(library)
    if importlib.util.find_spec("timm") is None:  # which is not imported whole: it wants torchvision
        pytest.skip("timm is not installed")
    text = told("15-the-oracle", runs)
    assert re.search("(cause|why): epsilon inside the root", text)
    assert re.search("(cause|why): elements are not written: they keep their old values", text)
    assert "mended as adamw: right, as far as was compared" in text
    assert "torch.optim.AdamW, fused=True as adamw: right" in text and "optax.adamw as adamw: right" in text
    assert "timm.optim.lamb.Lamb, max_grad_norm=None as lamb: WRONG, L15" in text
    assert "torch.optim.SGD, fused=True as sgd: WRONG, L1" in text


@both
def test_pytorchs_step_is_as_its_text_says(runs):
    """One launch for all tensors, states that come back with the same bits, a step left out, and one clipped."""
    pytest.importorskip("torch")
    text = told("16-in-pytorchs-step", runs)
    assert text.count("launches ['merged_adamw']") == 2 and text.count("same bits: True") == 3
    assert "overflow True    moved by 0.000000" in text and "overflow False   moved by 1.000000" in text
    assert "fp32, PyTorch: 0.9400, bf16, PyTorch: 1.0000" in text and "False" not in text.split("overflow")[0]
