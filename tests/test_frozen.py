"""The bits of the first release: a change of them is a change of the specification."""

import json

import numpy as np
import pytest
from frozen import generate

from refopt.catalog import LARS_MOMENTUM
from refopt.conformance.cases import assert_same
from refopt.conformance.laws import reference
from refopt.conformance.placed import kernels

ENTRIES = json.loads(generate.FILE.read_text())
entries = pytest.mark.parametrize("name", ENTRIES)


@entries
def test_reference(name):
    case, expected = generate.load(ENTRIES[name])
    assert_same(expected, reference(case), "frozen bits")


@entries
@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
def test_kernels(machine, form, name):
    case, expected = generate.load(ENTRIES[name])
    assert_same(expected, kernels(form, machine)(case), "frozen bits")


@entries
def test_a_bit_more_is_seen(name):
    """Every word of the file counts."""
    case, expected = generate.load(ENTRIES[name])
    for arrays in expected.values():
        word = arrays[-1].view(f"u{arrays[-1].itemsize}")
        word[-1] ^= np.array(1, word.dtype)
        with pytest.raises(AssertionError, match=r"\(1 differ\)"):
            assert_same(expected, reference(case), "frozen bits")
        word[-1] ^= np.array(1, word.dtype)
