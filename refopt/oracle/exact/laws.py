"""The laws as functions of an implementation.

An implementation is a function of a case (`refopt.oracle.exact.cases.runner` makes one from a merged step). A law
raises an AssertionError that names the clause of docs/numerics.md that is broken.
"""

from collections.abc import Callable

from refopt import cpu
from refopt.oracle.exact.cases import Case, Outcome, Run, assert_same, runner
from refopt.oracle.variants import is_extended, step_of


def reference(case: Case) -> Outcome:
    """The outcome of a case by the routine in `refopt.cpu` or, if its row has variants, by their rule."""
    extended = is_extended(case.routine)
    return runner(step_of(case.routine) if extended else getattr(cpu, case.routine.merged_name))(case)


def same_bits_as_reference(run: Run, case: Case) -> None:
    """The result is the reference's, bit for bit (N3, N4, N6)."""
    assert_same(reference(case), run(case), "N4, equal bits")


def merged_is_one_at_a_time(run: Run, case: Case) -> None:
    """Merging changes no bit: each tensor has the same result as in a list by itself (N11)."""
    together = run(case)
    for i in range(len(case)):
        alone = run(case.only([i]))
        assert_same(alone, {slot: [arrays[i]] for slot, arrays in together.items()}, f"N11, tensor {i} merged")


def order_is_free(run: Run, case: Case) -> None:
    """The order of the tensors changes no bit (N11)."""
    backwards = list(range(len(case.params)))[::-1]
    there = run(case)
    back = {slot: arrays[::-1] for slot, arrays in run(case.only(backwards)).items()}
    assert_same(there, back, "N11, order of tensors")


LAWS: tuple[Callable[[Run, Case], None], ...] = (same_bits_as_reference, merged_is_one_at_a_time, order_is_free)
