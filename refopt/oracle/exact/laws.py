"""The laws as functions of an implementation, and the check of an implementation on fixed cases.

An implementation is a function of a case (`refopt.oracle.exact.cases.runner` makes one from a merged step). A law
raises an AssertionError that names the clause of docs/numerics.md that is broken.
"""

from collections.abc import Callable
from typing import Any

from refopt import cpu
from refopt.catalog import KNOWN
from refopt.checks.arguments import chosen, kind_of
from refopt.oracle.exact.cases import Case, Outcome, Run, assert_same, runner
from refopt.oracle.exact.examples import examples
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


def check(routine: str, merged_step: Callable[..., Any]) -> None:
    """Check an implementation of a merged routine against the laws, on fixed cases.

    ``merged_step`` takes NumPy arrays, has the signature of its namesake in `refopt.cpu`, and works in place. Only
    NumPy is needed (and ml_dtypes for the bf16 cases, which are left out without it). Errors that ``merged_step``
    raises are reported in the same way; its return value is ignored.

    Raises:
        AssertionError: naming the case, and the clause that is broken or the error that ``merged_step`` raised.
        TypeError, ValueError: there is no such routine, or ``merged_step`` cannot be called.
    """
    returned: list[str] = []

    def step(*lists: Any, **named: Any) -> None:
        result = merged_step(*lists, **named)
        returned[:] = [] if result is None else [kind_of(result)]

    try:
        check_run(routine, runner(step) if callable(merged_step) else merged_step, "merged_step")
    except AssertionError as error:
        if returned:
            error.add_note(f"merged_step works in place; the {returned[0]} that it returned was ignored")
        raise


def check_run(routine: str, run: Run, what: str = "run") -> None:
    """`check` for an implementation that takes cases, ``run``, and returns the arrays of each slot that it writes."""
    where = "check_run" if what == "run" else "check"
    bare = routine.removeprefix("merged_") if isinstance(routine, str) else routine
    row = KNOWN[chosen(f"{where}: routine", bare, KNOWN)]
    if not callable(run):
        raise TypeError(f"{where}: {what}: expected a function, got {kind_of(run)}")

    def watched(case: Case) -> Outcome:
        try:
            return run(case)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{what}: expected no error, got {kind_of(error)}: {error}") from error

    for name, case in examples(row):
        for law in LAWS:
            try:
                law(watched, case)
            except AssertionError as error:
                raise AssertionError(f"case {name!r}: {error}") from error.__cause__
