"""N10: ranks average by one multiplication by the arithmetic type's 1/W, after the sum in rank order."""

import pytest
from hypothesis import strategies as st
from program_cases import PARAMS, arrays_of, gradients_of, numbers_of, outcome, read

from laws.marks import few, routines
from refopt.program import bind, step_program

pytestmark = pytest.mark.clause("N10")


@routines
@few(4, ranks=st.integers(2, 5), config=st.sampled_from(["fp32", "fp64"]), seed=st.integers(0, 9),
       params=st.lists(st.sampled_from(PARAMS), min_size=1, max_size=3, unique=True))
def test_a_step_of_ranks_is_that_of_averaged_gradients(routine, ranks, config, seed, params):
    """Every gradient added from rank to rank, multiplied once, and given to one device."""

    def program(size):
        return step_program(params, routine.name, config=config, world_size=size, **numbers_of(routine.name))

    several, alone = program(ranks), program(1)
    each = [gradients_of(several, rank, seed) for rank in range(ranks)]

    def averaged(name, step):
        total = each[0](name, step)
        for gradient in each[1:]:
            total = total + gradient(name, step)
        return total.dtype.type(1 / ranks) * total

    bound = bind(alone, arrays_of(alone, seed), backend="cpu", gradients=averaged)
    bound.startup()
    bound.step()
    bound.step()
    expected, got = read(bound), outcome(several, seed=seed)
    assert {name: bits for name, bits in got.items() if name in expected} == expected
