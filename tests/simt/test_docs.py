"""Examples in docstrings give what they say."""

import doctest
import sys
from pathlib import Path

import pytest

from refopt import simt


@pytest.mark.parametrize("module", [simt, sys.modules["refopt.simt.occupancy"]], ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module)
    assert result.failed == 0 < result.attempted


def test_the_page_on_profiles():
    page = Path(__file__).parents[2] / "docs" / "profile.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.failed == 0 < result.attempted
