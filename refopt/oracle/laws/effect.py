"""Effect: every number and state that a step takes changes its result, and the requested path runs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Broken, Misconduct
from refopt.oracle.cases import by_count
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.step import free, times
from refopt.oracle.trial import Trial

SIZE = 300
COUNT = 7  # a step at which RAdam's rate is rectified
SEED = "seed", "rescale_grad"
OTHER = 0.75


def effect(trial: Trial) -> Iterator[Try]:
    usual = trial.numbers()
    for hyper in trial.row.hypers:
        if hyper.name not in SEED and usual[hyper.name] and free(trial, hyper.name) and not hyper.whole:
            change = partial(of_number, trial, hyper.name)
            yield Try(hyper.name, partial(trial.case, [SIZE], count=COUNT), partial(counts, trial, change, hyper.name))
    for slot in trial.row.slots[1:-1]:
        if not slot.scalar and not slot.optional and trial.takes(slot.name):
            change = partial(times, scales={slot.name: OTHER})
            yield Try(slot.name, partial(trial.case, [SIZE], count=COUNT), partial(counts, trial, change, slot.name))
    yield Try("the requested path", partial(trial.case, [SIZE], count=2), partial(path, trial))


def of_number(trial: Trial, name: str, case: Case) -> Case:
    """The same states with another number, and powers of that number."""
    number: dict[str, Any] = {name: case.steps[0][name] * OTHER}
    shapes = [x.shape for x in case.params]
    powers = trial.case(shapes, None, count=case.count, **number).slots
    return case.replace(steps=[case.steps[0] | number], **{x: powers[x] for x in by_count(trial.row)})


def counts(trial: Trial, change: partial, name: str, case: Case) -> None:
    """Another number or state changes the results, if it changes those of the rule."""
    other = change(case)
    if not _differs(trial, case, other):
        return
    one, two = trial.run(case), trial.run(other)
    if all(memory(x).tobytes() == memory(y).tobytes() for x, y in zip(one["params"], two["params"], strict=True)):
        had = f"{case.steps[0][name]:g} and {other.steps[0][name]:g}" if name in case.steps[0] else "another one"
        raise Broken(f"{name}: expected to have an effect, got the same bits with {had}")
    trial.hold(other, two)


def _differs(trial: Trial, case: Case, other: Case) -> bool:
    """Whether the expected parameters differ by more than both bounds."""
    one, two = (trial.expected(x, 0)["params"] for x in (case, other))
    apart = abs(np.asarray(one.value, np.float64) - np.asarray(two.value, np.float64))
    return bool((apart > 2 * (np.asarray(one.error) + np.asarray(two.error))).any())


def path(trial: Trial, case: Case) -> None:
    """A PyTorch optimizer with fused=True or foreach=True runs that implementation."""
    ran = trial.observe(case).paths
    if ran is None:
        return
    trial.paths |= dict.fromkeys(ran)
    for option, prefix in (("fused", "_fused_"), ("foreach", "_multi_tensor_")):
        asked = f"{option}=True" in trial.subject.name
        if asked and not any(x.startswith(prefix) for x in ran):
            got = ", ".join(ran) or "none of the existing ones"
            raise Misconduct(f"{trial.subject.name}: expected {prefix}* to run, since {option}=True, got {got}")


LAWS = (Law("L22", "effect", "Every number and state that a step takes matters, and the requested path ran.", effect),)
