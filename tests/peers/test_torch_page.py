"""docs/torch.md runs, on the executor."""

import pytest
from page_code import run

pytest.importorskip("torch")


def test_the_page_on_pytorch_runs(tmp_path):
    assert run("torch", tmp_path) == 9
