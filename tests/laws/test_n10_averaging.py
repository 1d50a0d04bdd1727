"""N10: ranks average by one multiplication by the arithmetic type's 1/W, after the sum in rank order."""

import pytest
from program_cases import PARAMS, arrays_of, gradients_of, numbers_of, outcome, read

from laws.marks import routines
from refopt.program import bind, step_program

pytestmark = pytest.mark.clause("N10")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("config", ["fp32", "fp64"])
@routines
def test_a_step_of_ranks_is_that_of_averaged_gradients(routine, config, ranks):
    """Every gradient added from rank to rank, multiplied once, and given to one device."""

    def program(size):
        return step_program(PARAMS[:3], routine.name, config=config, world_size=size, **numbers_of(routine.name))

    several, alone = program(ranks), program(1)
    each = [gradients_of(several, rank) for rank in range(ranks)]

    def averaged(name, step):
        total = each[0](name, step)
        for gradient in each[1:]:
            total = total + gradient(name, step)
        return total.dtype.type(1 / ranks) * total

    bound = bind(alone, arrays_of(alone), backend="cpu", gradients=averaged)
    bound.startup()
    bound.step()
    bound.step()
    expected, got = read(bound), outcome(several)
    assert {name: bits for name, bits in got.items() if name in expected} == expected
