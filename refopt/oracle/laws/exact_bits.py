"""Equal bits, on request: all fixed cases of refopt's own arithmetic, exactly as in docs/numerics.md."""

from collections.abc import Iterator
from functools import partial

from refopt.oracle.broken import Broken, Skipped
from refopt.oracle.cases import numbers_of
from refopt.oracle.exact import laws
from refopt.oracle.exact.cases import Case, Outcome, assert_unwritten
from refopt.oracle.exact.examples import examples, gated
from refopt.oracle.laws.law import Law, Try, taken
from refopt.oracle.laws.numbers import LISTS
from refopt.oracle.subject import GATE
from refopt.oracle.trial import Trial


def exact_bits(trial: Trial) -> Iterator[Try]:
    def same(case: Case) -> None:
        trial.same(laws.reference(case.copy()), trial.run(case), "the result of refopt.cpu")

    for count in (1, 2, 7):
        yield Try(f"step {count}", partial(trial.case, [300, 2100, 1], count=count), same)
    yield from fixed_cases(trial)


def fixed_cases(trial: Trial) -> Iterator[Try]:
    """The cases of `refopt.oracle.exact` in the dtype: tiles, tails, choices, storage, NaN, stochastic rounding.

    Of matrices those alone whose parameters are matrices.
    """
    for name, case in (*examples(trial.row), *gated(trial.row)):
        dtypes = {x.dtype.name for x in case.params} or {"float32"}
        if dtypes == {trial.dtype} and all(trial.axes == 1 or x.ndim == trial.axes for x in case.params):
            yield Try(name, partial(as_taken, trial, case), partial(same_bits, trial))


def as_taken(trial: Trial, case: Case) -> Case:
    """A case without the numbers that the step does not take; skipped if the step lacks anything else."""
    if trial.row.scalars and not getattr(trial.subject, "is_function", False):
        raise Skipped("powers that belong to no step")
    present = [slot.name for slot in trial.row.slots if not slot.optional or case.slots[slot.name] is not None]
    gate = [name for name in GATE if any(name in step for step in case.steps)]
    others = [name for name, value in case.choices.items() if value != trial.choices()[name]]
    trial.need(*present, *gate, *others)
    known = numbers_of(trial.row, lambda name: False)
    held = {name: trial.fixed.get(name, known[name]) for name in known if not trial.takes(name)}
    gated = case.replace(steps=[step | held for step in case.steps])
    if any(g is None for g in gated.grads):
        taken(trial, gated, "gradients of None")
    if any(isinstance(x, list) for step in gated.steps for x in step.values()):
        taken(trial, gated, LISTS)
    return gated


def same_bits(trial: Trial, case: Case) -> None:
    """The bits are the reference's, merged or alone, in any order; other arrays are not written."""

    def run(one: Case) -> Outcome:
        mine = one.copy()
        got = trial.run_in_place(mine)
        assert_unwritten(one, mine)
        absent = {slot.name for slot in one.routine.slots if slot.written and one.slots[slot.name] is None}
        return {name: [None] * len(one) for name in absent} | got

    for law in laws.LAWS:
        try:
            law(run, case)
        except AssertionError as error:
            raise Broken(str(error)) from error


LAWS = (Law("L18", "exact bits", "The bits are those of refopt.cpu.", exact_bits, asked=True),)
