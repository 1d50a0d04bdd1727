"""Examples in docstrings give what they say."""

import doctest
import sys

import pytest

from refopt import simt


@pytest.mark.parametrize("module", [simt, sys.modules["refopt.simt.occupancy"]], ids=lambda module: module.__name__)
def test_examples(module):
    result = doctest.testmod(module)
    assert result.failed == 0 < result.attempted
