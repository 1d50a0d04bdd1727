"""docs/use-in-pytorch.md runs, on the executor."""

import pytest
from page_code import run

pytest.importorskip("torch")


def test_the_page_on_pytorch_runs(tmp_path):
    assert run("use-in-pytorch", tmp_path) == 3
