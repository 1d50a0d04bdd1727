"""N3: one rounding for each operator, in the written order: the bits are those that were written once."""

import operator

import numpy as np
import pytest
from frozen import generate
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import each
from laws.routines import ELEMENTWISE, OF_EACH_FAMILY
from refopt.catalog import ROUTINES
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels
from refopt.oracle.exact.strategies import cases

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


def test_every_routine_has_frozen_bits():
    """If this fails, run python tests/frozen/generate.py."""
    assert {routine for routine, _ in ENTRIES} == ROUTINES.keys()


def load(key):
    return generate.load(ROUTINES[key[0]], ENTRIES[key])


@pytest.mark.clause("N3")
@entries
def test_the_reference_has_its_frozen_bits(key):
    """The reference reproduces tests/frozen, which are written once per version of a routine."""
    case, expected = load(key)
    assert_same(expected, reference(case), "frozen bits")


@pytest.mark.clause("N3", "N4")
@pytest.mark.parametrize("key", FORMS, ids=", ".join)
def test_the_kernels_have_their_frozen_bits(machine, key):
    """So do the kernels of each form."""
    case, expected = load(key[:2])
    assert_same(expected, kernels(key[2], machine)(case), "frozen bits")


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key not in FIRST)) for key in ENTRIES],
                         ids=", ".join)
def test_every_frozen_bit_counts(key):
    """Changing any word of the file fails; `make test` tries one entry per routine."""
    case, expected = load(key)
    for arrays in expected.values():
        last = next(array for array in reversed(arrays) if array.size)
        word = last.view(f"u{last.itemsize}")
        word[-1] ^= word.dtype.type(1)
        with pytest.raises(AssertionError, match=r"\(1 differ\)"):
            assert_same(expected, reference(case), "frozen bits")
        word[-1] ^= word.dtype.type(1)


class One:
    """A number of fp32. Operations are done in fp64 and rounded once: 53 bits have room for twice 24 and two more."""

    dtype = np.dtype(np.float32)

    def __init__(self, x):
        x = x.item() if isinstance(x, np.ndarray) else x  # of a selection
        self.x = np.float64(np.float32(getattr(x, "x", x)))

    def sqrt(self):
        return One(np.sqrt(self.x))


def operation(do, kind):
    return lambda *numbers: kind(do(*(One(x).x for x in numbers)))


for name in ("add", "sub", "mul", "truediv", "neg", "abs", "gt", "lt", "eq"):
    do, kind = getattr(operator, name), bool if name in ("gt", "lt", "eq") else One
    setattr(One, f"__{name}__", operation(do, kind))
    setattr(One, f"__r{name}__", operation(lambda a, b, do=do: do(b, a), kind))


@pytest.mark.clause("N3")
@each(*ELEMENTWISE)
@given(data=st.data())
def test_each_operator_is_rounded_once_in_the_order_of_the_rule(routine, data):
    """The reference equals the rule, applied to one element at a time by numbers that round as IEEE prescribes."""
    kinds = st.just(("float32",) * 3 + (None,))
    case = data.draw(cases(routine, 1, 2, kinds, 1, rounding="nearest"))
    left, choices = reference(case), {name: x for name, x in case.choices.items() if name != "rounding"}
    for i, g in enumerate(case.grads):
        numbers = {name: One(x) for name, x in case.numbers_of(i).items() if name != "seed"}
        rescale = numbers.pop("rescale_grad")
        for k in {0, g.size // 2, g.size - 1} if g is not None and g.size else ():
            given = {name: x if x is None else One(x.flat[min(k, x.size - 1)]) for name, x in case.tensor(i).items()}
            carried = [given[name] for name in routine.carried]
            with np.errstate(all="ignore"):
                new = routine.rule(given["params"], rescale * given["grads"], *carried, **numbers, **choices)
            for name, x in zip(("params", *routine.carried), new, strict=True):
                if given[name] is not None:
                    got = left[name][i].flat[min(k, left[name][i].size - 1)]
                    assert_same({name: [np.float32([np.asarray(x).item().x])]}, {name: [np.float32([got])]}, "N3")
