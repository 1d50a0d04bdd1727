"""N10: ranks average by one multiplication by the arithmetic type's 1/W, after the sum in rank order."""

import pytest
from hypothesis import strategies as st
from program_cases import PARAMS, arrays_of, gradients_of, numbers_of, outcome, read

from laws.marks import few, routines
from refopt.checks.dtypes import numpy_dtype
from refopt.program import bind, passes, step_program

pytestmark = pytest.mark.clause("N10")


NARROW = [("float16", "before"), ("bfloat16", "before"), ("bfloat16", "after")]


@routines
@few(4, ranks=st.integers(2, 5), config=st.sampled_from(["fp32", "fp64"]), seed=st.integers(0, 9),
       params=st.lists(st.sampled_from(PARAMS), min_size=1, max_size=3, unique=True),
       narrow=st.sampled_from([None, None, *NARROW]))
def test_a_step_of_ranks_uses_averaged_gradients(routine, ranks, config, seed, params, narrow):
    """As on one device, with gradients added in rank order and multiplied once.

    By `narrow_sums`, the gradients and their sum are rounded to 16 bits, and multiplied before or after, as `average`
    says.
    """
    config, (dtype, average) = ("fp32", narrow) if narrow else (config, (None, "after"))

    def program(size):
        return step_program(params, routine.name, config=config, world_size=size, **numbers_of(routine.name))

    several, alone = program(ranks), program(1)
    several = passes.narrow_sums(several, dtype, average).program if narrow else several
    each = [gradients_of(several, rank, seed) for rank in range(ranks)]

    def averaged(name, step):
        terms = [gradient(name, step) for gradient in each]
        real = terms[0].dtype.type
        terms = [real(1 / ranks) * term for term in terms] if average == "before" else terms
        rounded = (lambda x: x.astype(numpy_dtype(dtype)).astype(real)) if narrow else lambda x: x
        total = rounded(terms[0])
        for term in terms[1:]:
            total = total + rounded(term)
        return rounded(total) if average == "before" else real(1 / ranks) * rounded(total)

    bound = bind(alone, arrays_of(alone, seed), backend="cpu", gradients=averaged)
    bound.startup()
    bound.step()
    bound.step()
    expected, got = read(bound), outcome(several, seed=seed)
    assert {name: bits for name, bits in got.items() if name in expected} == expected
