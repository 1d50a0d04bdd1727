"""The laws as functions of an implementation, and the check of an implementation on fixed cases.

An implementation is a function of a case (`refopt.conformance.cases.runner` makes one of a merged step). A law
raises an AssertionError that names the clause of docs/numerics.md it found broken.
"""

from collections.abc import Callable

from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.conformance.cases import Case, Outcome, Run, assert_same, runner
from refopt.conformance.examples import examples


def reference(case: Case) -> Outcome:
    """What the routine in `refopt.cpu` makes of a case."""
    return runner(getattr(cpu, case.routine.merged_name))(case)


def same_bits_as_reference(run: Run, case: Case) -> None:
    """The result is the reference's, bit for bit (N3, N4, N6)."""
    assert_same(reference(case), run(case), "N4, equal bits")


def merged_is_one_at_a_time(run: Run, case: Case) -> None:
    """Merging changes no bit: each tensor comes out as it does in a list of its own (N11)."""
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


def check(routine: str, merged_step: Callable[..., None]) -> None:
    """Hold an implementation of a merged routine to the laws, on fixed cases; an AssertionError says which broke.

    ``merged_step`` takes NumPy arrays in the signature of its namesake in `refopt.cpu` and works in place.
    Needs NumPy alone (and ml_dtypes for the bf16 cases, which are left out without it).
    """
    check_run(routine, runner(merged_step))


def check_run(routine: str, run: Run) -> None:
    """`check` for an implementation that takes cases."""
    for name, case in examples(ROUTINES[routine.removeprefix("merged_")]):
        for law in LAWS:
            try:
                law(run, case)
            except AssertionError as error:
                raise AssertionError(f"case {name!r}: {error}") from None
