"""One law in one dtype: its cases are tried one after the other, and what fails is looked into."""

from collections.abc import Sequence
from typing import Any

from refopt.oracle import diagnosis, shrink
from refopt.oracle.broken import Broken, Crashed, Skipped
from refopt.oracle.cases import Case
from refopt.oracle.laws import Law, Try
from refopt.oracle.laws.step import random_tries
from refopt.oracle.report import FAILED, PASSED, SKIPPED, Item
from refopt.oracle.running import Running
from refopt.oracle.script import Smallest, call_of
from refopt.oracle.trial import Trial


def explained(items: Sequence[Item], diagnose: bool = True) -> list[Item] | None:
    """The failures that were looked into; ``None`` if none is to be."""
    return [item for item in items if item.reasons is not None] if diagnose else None


def tries_of(law: Law, trial: Any, examples: int) -> list[Try]:
    """The cases of a law; of the step, more of them that are drawn at random."""
    return [*law.tries(trial), *(random_tries(trial, examples) if law.id == "L1" else ())]


def try_all(
    law: Law, kind: str, tries: Sequence[Try], command: str, trial: Any, known: Sequence[Item] | None
) -> list[Item]:
    """Every case of a law; of the failure of the smallest case there are an even smaller example and a diagnosis."""
    items: list[Item] = []
    failed: list[tuple[tuple[int, int], int, Case, Try, Broken]] = []
    passed: list[Case] = []
    over = ""
    for one in tries:
        if over:
            items.append(Item(law.id, kind, one.label, SKIPPED, f"not tried, after {over}", lacks=True))
            continue
        case = None
        try:
            if one.case is None:
                _ran(trial, one)
            else:
                case = one.case()
                one.holds(case)
        except Skipped as reason:
            items.append(Item(law.id, kind, one.label, SKIPPED, str(reason), lacks=reason.lacks))
        except Broken as broken:
            items.append(Item(law.id, kind, one.label, FAILED, str(broken), broken.ratio, command=command))
            if case is not None:
                size = len(case), sum(x.size for x in case.params)
                failed.append((size, len(items) - 1, case, one, broken))
            if isinstance(broken, Crashed):
                over = f"the process had ended at {one.label}"
        else:
            items.append(Item(law.id, kind, one.label, PASSED))
            if case is not None and sum(x.size for x in case.params) <= diagnosis.MOST:
                passed.append(case)
    if failed:
        _, k, case, one, error = min(failed, key=lambda x: (isinstance(x[4], Crashed), x[0]))
        small, diagnosed = (case, error), diagnosis.Found()
        if not isinstance(error, Crashed):
            if known is not None:
                diagnosed = diagnosis.of_failures(trial, law.id, [(x[2], x[4]) for x in failed], passed, known)
            small = shrink.smallest(case, one.holds, error)
        items[k] = items[k]._replace(
            example=shrink.shown(*small), pattern=diagnosed.pattern, reasons=diagnosed.reasons,
            smallest=_smallest(*small, trial),
        )
    return items


def _ran(trial: Running, one: Try) -> None:
    """Hold runs to a law, where runs can be made."""
    trial.settle()
    if trial.why_not:
        raise Skipped(trial.why_not)
    one.holds()


def _smallest(case: Case, broken: Broken, trial: Trial) -> Smallest | None:
    """The smallest example, with how a script calls the step; ``None`` if that cannot be said."""
    try:
        return Smallest(case, broken, trial, call_of(trial.subject, case))
    except Exception:  # whatever a subject of somebody's raises, or its process
        return None
