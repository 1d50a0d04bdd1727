"""N3: one rounding for each operator, in the written order: the bits are those that were written once."""

import pytest
from frozen import generate

from laws.routines import OF_EACH_FAMILY
from refopt.catalog import ROUTINES
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

ENTRIES = {(routine, name): entry for routine in ROUTINES for file in (f"{routine}{kind}" for kind in generate.MADE)
           for name, entry in generate.entries(file).items()}
FIRST = {routine: key for key in reversed(ENTRIES) for routine in key[:1]}.values()
# A rule is one function in all forms of a routine and all dtypes: make test tries what is of fp32 merged, and in other
# forms the first entry of one routine of each family. In other storage, N4 holds kernels to the reference.
OF_STORAGE = "fp16, fp32 master", "bf16", "fp64", "remainder", "stochastic", "gate, fp32"


def often(routine, name, form):
    """Whether make test tries an entry in a form."""
    if form != routine.merged_form:
        return routine in OF_EACH_FAMILY and (routine.name, name) in FIRST
    return not name.endswith(OF_STORAGE)


FORMS = [pytest.param((*key, form), marks=[pytest.mark.slow] * (not often(ROUTINES[key[0]], key[1], form)))
         for key in ENTRIES for form in ROUTINES[key[0]].forms]
entries = pytest.mark.parametrize("key", ENTRIES, ids=", ".join)


def test_every_routine_has_bits_written_once():
    """If this fails, run python tests/frozen/generate.py."""
    assert {routine for routine, _ in ENTRIES} == ROUTINES.keys()


def load(key):
    return generate.load(ROUTINES[key[0]], ENTRIES[key])


@pytest.mark.clause("N3")
@entries
def test_the_reference_has_the_bits_written_once(key):
    """The reference gives the bits of tests/frozen, which are written once for each version of a routine."""
    case, expected = load(key)
    assert_same(expected, reference(case), "frozen bits")


@pytest.mark.clause("N3", "N4")
@pytest.mark.parametrize("key", FORMS, ids=", ".join)
def test_the_kernels_have_the_bits_written_once(machine, key):
    """So do the kernels of each form."""
    case, expected = load(key[:2])
    assert_same(expected, kernels(key[2], machine)(case), "frozen bits")


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key not in FIRST)) for key in ENTRIES],
                         ids=", ".join)
def test_every_bit_that_was_written_counts(key):
    """Every word of the file counts; make test looks at one entry of each routine."""
    case, expected = load(key)
    for arrays in expected.values():
        last = next(array for array in reversed(arrays) if array.size)
        word = last.view(f"u{last.itemsize}")
        word[-1] ^= word.dtype.type(1)
        with pytest.raises(AssertionError, match=r"\(1 differ\)"):
            assert_same(expected, reference(case), "frozen bits")
        word[-1] ^= word.dtype.type(1)
